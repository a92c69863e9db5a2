"""A classifier's labels as words of a line: blanks and percent signs are quoted, as in URLs.

    label: "salt water" -> word_of -> "salt%20%water" -> label_of -> "salt water"

Must not know lines, nor the prefix that a setting chooses.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import near_name

_ODD = re.compile(r"[%\s\0]")
_QUOTED = re.compile(r"%([0-9A-F]{2,6})%")
_EMPTY = "%%"
_WEIGHT = re.compile(rb":[0-9.][0-9.eE+-]*$")
SHOWN = 5
"""Labels that an error names."""


def word_of(label: object) -> str:
    """A word without blanks that stands for a label; an empty label has one too."""
    text = str(label)
    return _ODD.sub(lambda match: f"%{ord(match[0]):02X}%", text) if text else _EMPTY


def label_of(word: str, prefix: str = LABEL_PREFIX.decode()) -> str:
    """The label that `word_of` quoted, without the prefix."""
    text = word.removeprefix(prefix)
    if text == _EMPTY:
        return ""
    return _QUOTED.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), text)


def no_label(label: str, words: Sequence[str], prefix: str) -> str:
    """Say that a text has no `label`, and which it has, in the form in which the label is given."""
    names = list(words)
    if not (prefix and label.startswith(prefix)):
        names = [label_of(name, prefix) for name in names]
    near = near_name(label, names)
    hint = f"; did you mean {near!r:.60}" if near else ""
    shown = ", ".join(f"{name!r:.60}" for name in names[:SHOWN])
    more = ", ..." if len(names) > SHOWN else ""
    return f"the input has no label {label!r:.60}{hint}. It has {len(names):,}: {shown}{more}"


def prefix_of(labels: Sequence[bytes]) -> bytes:
    """Return the usual prefix of labels, or what all of them begin with if that is another one."""
    first, last = min(labels), max(labels)  # all labels share what these two share
    size = 0
    while first[: size + 1] == last[: size + 1] and size < len(first):
        size += 1
    common = first[:size]
    return LABEL_PREFIX if common.startswith(LABEL_PREFIX) else common


def like_weights(words: Iterable[bytes], labels: Container[bytes], prefix: bytes) -> list[bytes]:
    """Return the labels that would be weights if `soft_labels` were set: without their ends they
    are a label, or the prefix alone, which is the weight of a line."""
    weights = []
    for word in words:
        if b":" in word and word.startswith(prefix):
            label = _WEIGHT.sub(b"", word)
            if label != word and (label in labels or label == prefix):
                weights.append(word)
    return weights
