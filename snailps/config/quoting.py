"""Quoting, comments and comma lists in the text of a setting.

    line -> cut_comment -> text -> unquote -> str
                                -> split_list -> list[str]      quote: str -> text

Characters only: no keys, files or types.  A double quote opens a quoted part only where an item
begins (at the start of the text, or after a comma), so ``5" disks`` needs no quoting.
"""

from __future__ import annotations

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_ESCAPED = {char: "\\" + letter for letter, char in _ESCAPES.items()}


def cut_comment(text: str) -> str:
    """The text before the first ``#`` that follows white space outside quotes.

    An unclosed quote keeps the rest of the line, so that parsing the value reports it.
    """
    item_begins = True
    at = 0
    while at < len(text):
        char = text[at]
        if char == '"' and item_begins:
            at = _closing_quote(text, at)
            if at < 0:
                return text
        elif char == "#" and at > 0 and text[at - 1].isspace():
            return text[:at]
        item_begins = char == "," or (item_begins and char.isspace())
        at += 1
    return text


def unquote(text: str) -> str:
    r"""Strip outer white space, decode quotes and escapes (``\" \\ \n \r \t``), or `ValueError`."""
    text = text.strip()
    if not text.startswith('"'):
        return text
    end = _closing_quote(text, 0)
    if end < 0:
        raise ValueError("the opening quote is never closed")
    if end != len(text) - 1:
        raise ValueError(f"unexpected text after the closing quote: {text[end + 1 :].strip()!r}")
    out = []
    at = 1
    while at < end:
        char = text[at]
        if char == "\\":
            at += 1
            if text[at] not in _ESCAPES:
                raise ValueError(f"unknown escape \\{text[at]} (write \\\\ for a backslash)")
            char = _ESCAPES[text[at]]
        out.append(char)
        at += 1
    return "".join(out)


def quote(value: str) -> str:
    """Quote if necessary: `unquote` restores it from a `.conf` line and from a comma list."""
    plain = value.isprintable() and value == value.strip() and not set(value) & set('",#')
    if plain and value:
        return value
    return '"' + "".join(_ESCAPED.get(char, char) for char in value) + '"'


def split_list(text: str) -> list[str]:
    """Split at commas outside quotes; one may end the list.  `ValueError` for an empty item."""
    items = []
    start = at = 0
    while at < len(text):
        if text[at] == '"' and not text[start:at].strip():
            end = _closing_quote(text, at)
            at = len(text) if end < 0 else end
        elif text[at] == ",":
            items.append(text[start:at])
            start = at + 1
        at += 1
    if text[start:].strip():
        items.append(text[start:])
    if not all(item.strip() for item in items):
        raise ValueError("an item between two commas is empty")
    return [unquote(item) for item in items]


def _closing_quote(text: str, opening: int) -> int:
    at = opening + 1
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == '"':
            return at
        at += 1
    return -1
