"""Parse plain command lines without Typer, whose start takes 0.1 s.

    signature of a command, words -> plain_arguments -> its arguments, or None: ask Typer

Every launched process parses a line that its launcher wrote, and most lines that users write are
right.  All others (help, a mistake, a word with two readings) are left to Typer, whose rules and
messages are the only ones.  Must not know commands.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_WHOLE = re.compile(r"[0-9]+")


def _whole(text: str) -> int:
    """A number without a sign; Typer decides on others."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError
    return int(text)


_KINDS: dict[object, Callable[[str], Any]] = {str: str, int: _whole, Path: Path}
_UNSET: dict[str, object] = {
    "callback": None,
    "clamp": False,
    "count": False,
    "default_factory": None,
    "envvar": None,
    "exists": False,
    "flag_value": None,
    "is_flag": None,
    "is_eager": False,
    "parser": None,
    "path_type": None,
    "prompt": False,
    "resolve_path": False,
    "writable": False,
}
"""Attributes of an option, and their values if it has no rules of its own."""


class _Option(NamedTuple):
    """An option of a command: its parameter, and how its word is read."""

    name: str
    kind: Callable[[str], Any] | None  # None: a flag
    many: bool
    least: int | None
    most: int | None


def plain_arguments(command: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """Keyword arguments for `command`, as Typer would pass them; None if Typer must parse.

    Each parameter is annotated with a type and a ``typer.Option``; `words` follow the command's
    name.
    """
    found: dict[str, Any] = {}
    options: dict[str, _Option] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        named = _named(parameter)
        if named is None:
            return None
        found[parameter.name] = parameter.default
        options |= named
    given: dict[str, list[Any]] = {}
    left = iter(words)
    for word in left:
        flag, is_joined, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = options.get(flag)
        if option is None or (option.kind is None and is_joined):
            return None
        if option.kind is None:
            found[option.name] = True
            continue
        text = value if is_joined else next(left, "-")
        if text.startswith("-") and not is_joined:
            return None
        try:
            read = option.kind(text)
        except ValueError:
            return None
        if option.least is not None and not read >= option.least:
            return None
        if option.most is not None and not read <= option.most:
            return None
        if option.many:
            given.setdefault(option.name, []).append(read)
        else:
            found[option.name] = read
    found |= given
    return None if inspect.Parameter.empty in found.values() else found


def _named(parameter: inspect.Parameter) -> dict[str, _Option] | None:
    """A parameter's option by each of its words; None: it has rules of its own."""
    hint = parameter.annotation
    marks: Sequence[Any] = getattr(hint, "__metadata__", ())
    if len(marks) != 1 or type(marks[0]).__name__ != "OptionInfo":
        return None
    mark = marks[0]
    if any(getattr(mark, name, unset) != unset for name, unset in _UNSET.items()):
        return None
    kind = _kind_of(hint.__origin__)
    many = typing.get_origin(kind) is list
    if many:
        (kind,) = typing.get_args(kind)
    is_flag = kind is bool
    if not is_flag and kind not in _KINDS:
        return None
    # In an annotation the first word takes the place of the default.
    names = [mark.default] if isinstance(mark.default, str) else []
    names += mark.param_decls or ()
    if not names and not is_flag:  # a flag without a word would have two
        names = [f"--{parameter.name.replace('_', '-')}"]
    if not names or any(not name.startswith("-") or "/" in name for name in names):
        return None
    read = None if is_flag else _KINDS[kind]
    return dict.fromkeys(names, _Option(parameter.name, read, many, mark.min, mark.max))


def _kind_of(hint: Any) -> Any:
    """`X` of ``X | None``."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        rest = [one for one in typing.get_args(hint) if one is not type(None)]
        return rest.pop() if len(rest) == 1 else None
    return hint
