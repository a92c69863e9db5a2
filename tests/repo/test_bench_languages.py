"""bench/languages.py: texts of languages from catalogues of messages."""

import struct
import sys

import pytest
from processes import PACKAGE

sys.path.append(str(PACKAGE / "bench"))
import languages

HEADER = ("", "Content-Type: text/plain; charset=UTF-8\n")


def write_catalogue(path, *pairs):
    """A catalogue as gettext's programs read it: English -> translation."""
    path.parent.mkdir(parents=True)
    pairs = sorted((HEADER, *pairs))
    texts = [text.encode() for side in zip(*pairs, strict=True) for text in side]
    at, table = 28 + 8 * len(texts), b""
    for text in texts:
        table += struct.pack("<II", len(text), at)
        at += len(text) + 1
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    path.write_bytes(head + table + b"".join(text + b"\0" for text in texts))


@pytest.mark.parametrize(
    ("locale", "language"),
    [
        ("pt_BR", "pt"), ("de", "de"), ("ca@valencia", "ca"), ("sr@latin", "sr_latin"),
        ("zh_HK", "zh_hant"), ("mni@bengali", "mni_beng"), ("kok@latin", "kok_latin"),
    ],
)  # fmt: skip
def test_regions_are_one_language_and_scripts_are_not(locale, language):
    assert languages.language_of(locale) == language


def test_messages_are_those_translated_without_marks_of_programs(tmp_path):
    asked, shown = "Do you want to save %s now?", "_Open the <b>folder</b> &amp; close"
    for locale, pairs in {
        "de": [(asked, "Wollen Sie %s jetzt speichern?"), ("Ok", "Gut"), (shown, shown)],
        "de_AT": [(asked, "Möchten Sie %s jetzt sichern?")],
        "en_GB": [(asked, "Would you like to save %s now?")],
    }.items():
        write_catalogue(tmp_path / locale / "LC_MESSAGES" / "a.mo", *pairs)
    (tmp_path / "fr" / "LC_MESSAGES").mkdir(parents=True)
    (tmp_path / "fr" / "LC_MESSAGES" / "a.mo").write_bytes(b"no catalogue")
    found = languages.messages(tmp_path)
    assert found["de"] - {""} == {"Wollen Sie jetzt speichern?", "Möchten Sie jetzt sichern?"}
    assert found["en"] - {""} == {"Do you want to save now?", "Open the folder close"}
    assert "fr" not in found
