"""Labels of a classifier as words of a line: blanks and percent signs are quoted, as in URLs.

    label: "salt water" -> word_of -> "salt%20%water" -> label_of -> "salt water"

No lines, no prefixes of settings.
"""

from __future__ import annotations

import re

from snailps.data.vocabulary import LABEL_PREFIX

_ODD = re.compile(r"[%\s\0]")
_QUOTED = re.compile(r"%([0-9A-F]{2,6})%")
_EMPTY = "%%"


def word_of(label: object) -> str:
    text = str(label)
    return _ODD.sub(lambda match: f"%{ord(match[0]):02X}%", text) if text else _EMPTY


def label_of(word: str) -> str:
    text = word.removeprefix(LABEL_PREFIX.decode())
    if text == _EMPTY:
        return ""
    return _QUOTED.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), text)
