"""Cleans text that leaves a process: for files, pages, terminals, logs and other processes.

    addresses of the input -> without_secrets -> https://***@host/x.txt?***
    text of peers -> printable -> no character that moves a terminal's cursor

An address with a password or a signature is complete only where it is opened.  Must not know who
shows the text.
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
"""Protocol of the next address, at the end of the text between two addresses."""
_MARK = re.compile(r"(://|(?:(?<=\bhttp)|(?<=\bhttps)|(?<=\bs3)):/)", re.I)
"""What follows a protocol.  `Path` turns ``://`` of an address into ``:/``, so both count."""
_NAME = re.compile(r"[\w.~%-]+=")
_PORT = re.compile(r"\d{1,5}(?:[/?#]|$)")


def without_secrets(text: str) -> str:
    """Hide password and query of each address in a text; idempotent."""
    if ":/" not in text:
        return text
    return _WORD.sub(lambda found: _hidden(found[0]), text)


def _hidden(word: str) -> str:
    """Hide the secrets of all addresses in a word, in time linear in its length."""
    protocol, *pieces = _MARK.split(word)
    shown, is_query = protocol, False
    for index in range(0, len(pieces), 2):
        mark, rest = pieces[index : index + 2]
        following = _NEXT.search(rest[-34:]) if index + 2 < len(pieces) else None
        tail = following[0] if following else ""
        body = rest[: len(rest) - len(tail)]
        if is_query:  # an address inside a query is part of it, and hidden with it
            shown += tail
        else:
            is_web = protocol.lower().endswith(("http", "https"))
            body, is_query = _without_query(_without_user(body, is_web), is_web)
            shown += f"{mark}{body}{tail}"
        is_query = is_query and not tail
        protocol = tail or rest
    return shown


def _without_user(rest: str, is_web: bool) -> str:
    """Hide user and password in the text after ``://``."""
    path = min((place for mark in "/?#" if (place := rest.find(mark)) >= 0), default=len(rest))
    end = rest.rfind("@", 0, path)
    colon = rest.find(":", 0, path)
    if end < 0 and colon >= 0 and rest[:1] != "[" and not _PORT.match(rest, colon + 1):
        end = rest.rfind("@")  # the password has a / or a ? in it
    if end < 0 or not (is_web or ":" in rest[:end]):  # a container's name, or a user's alone
        return rest
    return f"{HIDDEN}{rest[end:]}"


def _without_query(rest: str, is_web: bool) -> tuple[str, bool]:
    """Hide the query of an address, and tell whether it had one.

    With protocols other than the web's a question mark may belong to a glob, so only ``?name=``
    begins a query.
    """
    begin = rest.find("?") + 1
    end = len(rest.rstrip(".,:;)]}'"))
    if not begin or end <= begin or not (is_web or _NAME.match(rest, begin)):
        return rest, False
    return f"{rest[:begin]}{HIDDEN}{rest[end:]}", True


def distinct_names(paths: Iterable[str]) -> dict[str, str]:
    """Name each path without its secrets; names that become equal get numbers."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for path in dict.fromkeys(paths):
        name = without_secrets(path)
        counts[name] += 1
        names[path] = f"{name} ({counts[name]})" if counts[name] > 1 else name
    return names


def printable(text: str) -> str:
    r"""Escape the control characters of a text (``\x1b``) except newlines and tabs."""
    if text.isprintable():
        return text
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _shown(text: str) -> str:
    return printable(without_secrets(text))


def outward(value: Any, clean: Callable[[str], str] = _shown) -> Any:
    """Clean all texts in a value for JSON, keys included; `clean` replaces the usual cleaning."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {outward(key, clean): outward(item, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [outward(item, clean) for item in value]
    return value
