"""Parses quotes, comments and comma lists in the text of a setting.

    line -> cut_comment -> text -> unquote -> str
                                -> split_list -> list[str]      quote: str -> text

Characters only: no keys, files or types.  A double quote opens a quoted part only where an item
begins (at the start of the text, or after a comma), so ``5" disks`` needs no quoting.
"""

from __future__ import annotations

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_ESCAPED = {char: "\\" + letter for letter, char in _ESCAPES.items()}


def cut_comment(text: str) -> str:
    """Cut a text at the first ``#`` that follows white space outside quotes.

    After an unclosed quote nothing is cut, so that parsing the value reports the quote.
    """
    item_begins = True
    place = 0
    while place < len(text):
        char = text[place]
        if char == '"' and item_begins:
            place = _closing_quote(text, place)
            if place < 0:
                return text
        elif char == "#" and place > 0 and text[place - 1].isspace():
            return text[:place]
        item_begins = char == "," or (item_begins and char.isspace())
        place += 1
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
    place = 1
    while place < end:
        char = text[place]
        if char == "\\":
            place += 1
            if text[place] not in _ESCAPES:
                raise ValueError(f"unknown escape \\{text[place]} (write \\\\ for a backslash)")
            char = _ESCAPES[text[place]]
        out.append(char)
        place += 1
    return "".join(out)


def quote(value: str) -> str:
    """Quote a value if necessary, so that a `.conf` line and a comma list restore it exactly."""
    plain = value.isprintable() and value == value.strip() and not set(value) & set('",#')
    if plain and value:
        return value
    return '"' + "".join(_ESCAPED.get(char, char) for char in value) + '"'


def split_list(text: str) -> list[str]:
    """Split at commas outside quotes; one may end the list.  `ValueError` for an empty item."""
    items = []
    start = place = 0
    while place < len(text):
        if text[place] == '"' and not text[start:place].strip():
            end = _closing_quote(text, place)
            place = len(text) if end < 0 else end
        elif text[place] == ",":
            items.append(text[start:place])
            start = place + 1
        place += 1
    if text[start:].strip():
        items.append(text[start:])
    if not all(item.strip() for item in items):
        raise ValueError("an item between two commas is empty")
    return [unquote(item) for item in items]


def _closing_quote(text: str, opening: int) -> int:
    """Find the quote that closes the one at `opening`; -1 if there is none."""
    place = opening + 1
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text[place] == '"':
            return place
        place += 1
    return -1
