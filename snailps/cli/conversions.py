"""Takes typed values whose conversion is certain past Typer's converters.

    a command, its parameters -> spare_conversions -> the same command, which imports less

From 0.27 on Typer converts every value by pydantic, also a text to a text, and an option that was
not given.  That import, with a converter for each option, is a fifth of the start of ``snailps
train``.  Only what is certain is converted here: everything else, each mistake too, goes to Typer,
so that there is one set of rules and messages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

_NUMBERS = {int: r"[0-9]{1,9}", float: r"[0-9]{1,9}(\.[0-9]{1,9})?"}
"""Texts that are such a number for everyone."""
_UNCERTAIN = object()


def spare_conversions(command: Any) -> None:
    """Let the parameters of a command, and of its commands, convert what is certain themselves.

    Changes nothing before Typer 0.27, which needs no pydantic.
    """
    command.get_params = partial(_parameters, command.get_params)
    for inner in getattr(command, "commands", {}).values():
        spare_conversions(inner)


def _parameters(every: Callable[[Any], list[Any]], context: Any) -> list[Any]:
    """Return the parameters of a command, ``--help`` too, which is made for the context."""
    parameters = every(context)
    for parameter in parameters:
        if hasattr(parameter, "type_descriptor") and "process_value" not in vars(parameter):
            parameter.process_value = partial(_process, parameter, parameter.process_value)
    return parameters


def _process(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """Do what `process` does, the parameter's own ``process_value``."""
    try:
        converted = _converted(parameter, value)
    except AttributeError:  # of a later Typer, in which a name is another one
        converted = _UNCERTAIN
    if converted is _UNCERTAIN:
        return process(context, value)
    if parameter.callback is not None:
        return parameter.callback(context, parameter, converted)
    return converted


def _converted(parameter: Any, value: Any) -> Any:
    """Convert a value, if the result is certain."""
    kind, info = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
    is_list = parameter.multiple or parameter.nargs == -1
    if value is None:
        return _UNCERTAIN if parameter.required else () if is_list else None
    if info.parser is not None:
        return _UNCERTAIN
    if is_list:
        is_certain = kind == list[str] and len(value) > 0 and {*map(type, value)} == {str}
        return [*value] if is_certain else _UNCERTAIN
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _UNCERTAIN
    if kind in _NUMBERS and re.fullmatch(_NUMBERS[kind], str(value)):
        number = kind(value)
        is_low = info.min is not None and number < info.min
        is_high = info.max is not None and number > info.max
        return _UNCERTAIN if is_low or is_high else number
    if kind is Path and _is_plain(info) and type(value) is str and os.access(value, os.R_OK):
        return Path(value)
    return value if type(value) is kind is str else _UNCERTAIN


def _is_plain(info: Any) -> bool:
    """Whether the path of a file or folder that can be read meets all conditions, as it is."""
    changes = info.path_type is not None or info.resolve_path or info.allow_dash
    return info.file_okay and info.dir_okay and not (changes or info.writable)
