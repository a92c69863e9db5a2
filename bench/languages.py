#!/usr/bin/env python3
"""Labelled texts of a hundred languages, from what Debian's packages say in them.

    packages -> apt-get download -> catalogues of messages -> language, message -> one labelled text

    python bench/languages.py --output languages.txt
    python bench/classifier.py --text languages.txt --minn 2 --maxn 4 --dim 16 --lr 0.5 --runs 3
    python bench/predict.py --text languages.txt --systems fasttext,snailps-1,snailps-2

A label is a language, with its script where that is not the usual one: regions of a language are
one.  The English of each message is a language, too.  Nothing is installed.
"""

import argparse
import gettext
import hashlib
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from words import fail, say

PACKAGES = ("gimp-data", "gnucash-common", "inkscape", "pidgin-data", "vlc-l10n")
LOCALES = Path("usr/share/locale")
SCRIPTS = {
    "bengali": "beng", "zh_CN": "zh_hans", "zh_HK": "zh_hant", "zh_TW": "zh_hant",
    "be@tarask": "be", "ca@valencia": "ca",
}  # fmt: skip
"""A locale's language, or a modifier's script, where its name does not say it."""
MARKS = re.compile(r"%\d*\$?[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]+|%%|<[^<>]*>|&[a-z]+;|\{[^{}]*\}|[_&]")
"""What a program fills in, tags, and the marks of keys in menus."""
LETTERS_MIN = 12
"""Of a message: shorter ones are names and abbreviations."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--output", type=Path, required=True, help="the labelled text")
    add("--packages", default=",".join(PACKAGES), help=f"default {', '.join(PACKAGES)}")
    add("--least", type=int, default=1500, help="messages of a language; with fewer it is left out")
    add("--most", type=int, default=6000, help="messages of a language")
    return parser.parse_args()


def unpack(packages: list[str], folder: Path) -> Path:
    """The locales of all packages, fetched from where apt has them."""
    run_in(folder, "apt-get", "download", "-q", *packages)
    for file in sorted(folder.glob("*.deb")):
        run_in(folder, "dpkg-deb", "-x", file.name, ".")
    return folder / LOCALES


def run_in(folder: Path, *command: str) -> None:
    """Run a command of Debian's, which has to succeed."""
    try:
        subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        fail(f"no {command[0]}: this needs a Debian or Ubuntu")
    except subprocess.CalledProcessError as error:
        fail(f"{' '.join(command)} failed, is apt-get update due?\n{error.stderr.strip()}")


def language_of(locale: str) -> str:
    """Its language, with a script where that is not the usual one."""
    if locale in SCRIPTS:
        return SCRIPTS[locale]
    name, _, script = locale.partition("@")
    language = name.partition("_")[0]
    return f"{language}_{SCRIPTS.get(script, script)}" if script else language


def cleaned(message: str) -> str:
    """A message as running text, or nothing where it has too few letters."""
    text = " ".join(MARKS.sub(" ", message).split())
    return text if sum(letter.isalpha() for letter in text) >= LETTERS_MIN else ""


def messages(locales: Path) -> dict[str, set[str]]:
    """The texts of each language; those that are not translated are left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(locales.glob("*/LC_MESSAGES/*.mo")):
        language = language_of(path.parts[-3])
        try:
            with path.open("rb") as file:
                catalogue = gettext.GNUTranslations(file)._catalog
        except (IndexError, OSError, UnicodeDecodeError, ValueError) as error:
            say(f"{path.parts[-3]}/{path.name} is damaged ({error}): left out")
            continue
        for key, value in catalogue.items():
            # A key with a number is one of several forms; one without a text is the head.
            english = cleaned((key[0] if isinstance(key, tuple) else key).rpartition("\x04")[2])
            text = cleaned(value) if key else ""
            found["en"].add(english)
            if text != english and language != "en":
                found[language].add(text)
    return found


def mixed(text: str) -> bytes:
    """A place in an order in which neighbours have nothing in common, the same from day to day."""
    return hashlib.sha256(text.encode()).digest()


def main() -> None:
    """Fetch, read, write."""
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as folder:
        found = messages(unpack(args.packages.split(","), Path(folder)))
    # A text that two languages have says nothing of either.
    languages_of = Counter(text for texts in found.values() for text in texts)
    lines, few = [], []
    for language, texts in sorted(found.items()):
        own = [text for text in texts if text and languages_of[text] == 1]
        if len(own) < args.least:
            few.append(language)
            continue
        lines += [f"__label__{language} {text}\n" for text in sorted(own, key=mixed)[: args.most]]
    lines.sort(key=mixed)
    args.output.write_text("".join(lines), encoding="utf-8")
    count = len(found) - len(few)
    say(f"{len(lines):,} texts of {count} languages; too few of {len(few)}: {' '.join(few)}")


if __name__ == "__main__":
    main()
