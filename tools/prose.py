#!/usr/bin/env python3
"""Where the text of the project has words that readers of the field stumble over; to look at.

    tools/prose.py                     how often each stands in each part
    tools/prose.py behind one          lines with these
    tools/prose.py --in snailps/master one

Fails never: some of these words are right where they stand.  CONTRIBUTING.md says how we write.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TEXT = {
    "behind": r"\bbehind\b",
    "those of": r"\b(those|that) of\b",
    "an only": r"\b(an|the) only (worker|server|thread|process)\b",
    "as of": r"\bas of `",
    "in turns": r"\bin turns\b",
    "told": r"\b(is|are|was|were|be) told\b|\btells\b",
    "what is": r"\b[Ww]hat (is|was|are|were|has|have)\b[^?]*$",
    "so many": r"\bso (many|much)\b",
}
"""Phrases, by name; of pages, comments, docstrings and messages."""
LOCALS = ("found", "one", "at", "own", "known", "left", "kept", "some", "given", "rest")
"""Names that do not say what they hold."""
NAMES = {
    name: rf"^\s*{name}(: [^=]+)? = |\bfor (?:\w+, )*{name}(?:, \w+)* in\b|\b{name} :=|, {name} = "
    for name in LOCALS
}
KINDS = {".md": TEXT, ".py": TEXT | NAMES, ".pyx": TEXT | NAMES, ".pxd": TEXT, ".h": TEXT}


class Place(NamedTuple):
    file: Path
    line: int
    word: str
    text: str


def places(files: Sequence[Path]) -> Iterator[Place]:
    """Lines that have one of the words, once for each."""
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            for word, pattern in KINDS[file.suffix].items():
                if re.search(pattern, line):
                    yield Place(file, number, word, line.strip())


def part_of(file: Path) -> str:
    """The package or folder of a file."""
    return "/".join(file.parts[:2]) if len(file.parts) > 2 else file.parts[0]


def table(lines: Sequence[Place]) -> Iterator[str]:
    """Counts by part and word."""
    words = [word for word in TEXT | NAMES if any(place.word == word for place in lines)]
    counts = Counter((part_of(place.file), place.word) for place in lines)
    parts = sorted({part for part, _ in counts})
    width = max(map(len, parts), default=0)
    yield " ".join([" " * width, *(f"{word:>8}" for word in words)])
    for part in parts:
        yield " ".join([f"{part:{width}}", *(f"{counts[part, word] or '':>8}" for word in words)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="print the lines that have these")
    parser.add_argument("--in", dest="folder", default="", help="only files below")
    chosen = parser.parse_args(arguments)
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", chosen.folder or "."],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    files = [Path(name) for name in listed.splitlines() if Path(name).suffix in KINDS]
    there = list(places(files))
    if not chosen.words:
        print(*table(there), sep="\n")
    for place in there:
        if place.word in chosen.words:
            print(f"{place.file}:{place.line}: {place.text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
