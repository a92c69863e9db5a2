"""Text on its way out of a process: to files, pages, terminals, logs and other processes.

    addresses of the input -> without_secrets -> https://***@host/x.txt?***
    text of peers -> printable -> no character that moves a terminal's cursor

An address with a password or a signature stays whole where it is opened, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = "***"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
# All up to the last @ before the path; up to a later one where what follows the colon is no port,
# as of a password that has a / or a ?.
_USER = re.compile(
    rf"({_SCHEME})(?:([^\s\"<>/?#]*)@|[^\s\"<>/?#@\[]*:(?!\d{{1,5}}(?:[/?#\s]|$))[^\s\"<>]*@)"
)
# Of other protocols a question mark may be a pattern's: a query has a name and =.
_QUERY = re.compile(
    rf"((?:https?://[^\s\"'<>?]*|{_SCHEME}[^\s\"'<>?]*(?=\?[\w.~%-]+=))\?)"
    rf"((?:(?![,;]\s*{_SCHEME})[^\s\"'<>])+)"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def without_secrets(text: str) -> str:
    """A text whose addresses have neither password nor query; the same for one made before."""
    if "://" not in text:
        return text
    return _QUERY.sub(_query, _USER.sub(_user, text))


def _user(found: re.Match[str]) -> str:
    name = found[2]
    is_secret = name is None or ":" in name or found[1].lower().startswith("http")
    return f"{found[1]}{HIDDEN}@" if is_secret else found[0]  # a container, a name alone


def _query(found: re.Match[str]) -> str:
    text = found[2]
    return found[1] + HIDDEN + text[len(text.rstrip(".,:;)")) :]


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
