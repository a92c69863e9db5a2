"""Text on its way out of a process: to files, pages, terminals, logs and other processes.

    addresses of the input -> without_secrets -> https://***@host/x.txt?***
    text of peers -> printable -> no character that moves a terminal's cursor

An address with a password or a signature stays whole where it is opened, and nowhere else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

HIDDEN = "***"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_WORD = re.compile(r"[^\s\"<>]+")
_NEXT = re.compile(r"(?:[,;]|::)[A-Za-z][A-Za-z0-9+.-]{0,30}$")
"""End of what follows an address, if another one begins there: its protocol."""
_MARK = re.compile(r"(://|(?:(?<=\bhttp)|(?<=\bhttps)|(?<=\bs3)):/)", re.I)
"""What follows a protocol; of paths that are made of addresses one slash is left."""
_NAME = re.compile(r"[\w.~%-]+=")
_PORT = re.compile(r"\d{1,5}(?:[/?#]|$)")


def without_secrets(text: str) -> str:
    """A text whose addresses have neither password nor query; the same for one made before."""
    if ":/" not in text:
        return text
    return _WORD.sub(lambda found: _hidden(found[0]), text)


def _hidden(word: str) -> str:
    """A word of a text, with any addresses in it; takes time by its length."""
    protocol, *more = _MARK.split(word)
    shown, is_query = protocol, False
    for at in range(0, len(more), 2):
        mark, rest = more[at : at + 2]
        following = _NEXT.search(rest[-34:]) if at + 2 < len(more) else None
        tail = following[0] if following else ""
        body = rest[: len(rest) - len(tail)]
        if is_query:  # an address in a query is a part of it
            shown += tail
        else:
            is_web = protocol.lower().endswith(("http", "https"))
            body, is_query = _without_query(_without_user(body, is_web), is_web)
            shown += f"{mark}{body}{tail}"
        is_query = is_query and not tail
        protocol = tail or rest
    return shown


def _without_user(rest: str, is_web: bool) -> str:
    """What follows ``://`` without a password."""
    path = min((at for mark in "/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    end = rest.rfind("@", 0, path)
    colon = rest.find(":", 0, path)
    if end < 0 and colon >= 0 and rest[:1] != "[" and not _PORT.match(rest, colon + 1):
        end = rest.rfind("@")  # of a password that has a / or a ?
    if end < 0 or not (is_web or ":" in rest[:end]):  # a container, a name alone
        return rest
    return f"{HIDDEN}{rest[end:]}"


def _without_query(rest: str, is_web: bool) -> tuple[str, bool]:
    """The same without a query, and whether it had one.

    Of protocols but the web's a question mark may be a pattern's: a query has a name and =.
    """
    at = rest.find("?") + 1
    end = len(rest.rstrip(".,:;)]}'"))
    if not at or end <= at or not (is_web or _NAME.match(rest, at)):
        return rest, False
    return f"{rest[:at]}{HIDDEN}{rest[end:]}", True


def distinct_names(paths: Iterable[str]) -> dict[str, str]:
    """Each path without its secrets; after the first of equal ones each has a number."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for path in dict.fromkeys(paths):
        name = without_secrets(path)
        counts[name] += 1
        names[path] = f"{name} ({counts[name]})" if counts[name] > 1 else name
    return names


def printable(text: str) -> str:
    r"""A text whose control characters are escaped (``\x1b``), but for newlines and tabs."""
    if text.isprintable():
        return text
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _shown(text: str) -> str:
    return printable(without_secrets(text))


def outward(value: Any, clean: Callable[[str], str] = _shown) -> Any:
    """A value for JSON, or a text, with all texts in it fit to be shown, or as `clean` has them."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {outward(key, clean): outward(item, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [outward(item, clean) for item in value]
    return value
