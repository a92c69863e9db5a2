"""Figures of a user's class as plain values: what JSON holds, so messages and the journal do.

    what judge, export, after_round ... return -> plain -> None, bool, int, float, str, lists, dicts

Used once, where such a value comes in: nothing after that asks what it is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

from snailps.errors import ClusterError, is_own_code

Number = TypeVar("Number", int, float, str)

ELEMENTS_MAX = 10_000
"""Most elements of an array among figures: it becomes text in messages, the journal and reports."""
FIGURES_BYTES_MAX = 4 << 20
"""Most bytes of JSON of one result; a message has room for four times as many."""


class _Odd(Exception):
    """A value that is none of JSON's: where in the result, and what came."""

    def __init__(self, place: str, got: str) -> None:
        super().__init__(place, got)
        self.place, self.got = place, got


def plain_figures(cls: type, method: str, result: object) -> dict[str, Any]:
    """The figures that a class method has returned, as plain values.

    Scalars and small arrays of NumPy, PyTorch or pandas become numbers and lists, paths text.
    ClusterError names class, method, key and type of anything else.
    """
    where = named_method(cls, method)
    if not isinstance(result, Mapping):
        raise ClusterError(
            f"{where} returned {_kind(result)}: expected a mapping of names to figures, such as "
            "{'auc': 0.9}"
        )
    try:
        figures = {_key(key, ""): _plain(value, f"[{key!r:.80}]") for key, value in result.items()}
        size = len(json.dumps(figures))
    except _Odd as error:
        place = f" {error.place}" if error.place else ""
        raise ClusterError(
            f"{where}: the figure{place} is {error.got}: expected numbers, text, True, "
            "False, None, or lists and dicts of these"
        ) from None
    except (RecursionError, ValueError) as error:
        raise ClusterError(f"{where}: its figures cannot be written as JSON: {error}") from None
    if size > FIGURES_BYTES_MAX:
        raise ClusterError(
            f"{where}: its figures have {size:,} bytes of JSON, limit {FIGURES_BYTES_MAX:,}: write "
            "large results into a file, in export()"
        )
    return figures


def plain_number(cls: type, method: str, value: object, kind: Callable[[Any], Number]) -> Number:
    """A single value that a class method has returned; `int` rounds down. ClusterError if it is
    none of this kind."""
    try:
        found = _plain(value, "")
        if isinstance(found, str) != (kind is str):
            raise TypeError
        return kind(found)
    except (_Odd, TypeError, ValueError, OverflowError):
        noun = {int: "a whole number", float: "a number"}.get(kind, "text")  # type: ignore[call-overload]
        raise ClusterError(
            f"{named_method(cls, method)}: expected {noun}, got {value!r:.80} ({_kind(value)})"
        ) from None


def is_users(cls: type) -> bool:
    """Whether a class is a user's, and none of snailps."""
    return not cls.__module__.startswith("snailps.")


def named_method(cls: type, method: str) -> str:
    """A class's method in messages; of a user's own code with the line where it begins."""
    function = getattr(cls, method, None)  # None: a default of a trait that it lacks
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    name = f"{cls.__name__}.{method}"
    if code is None or not is_own_code(code.co_filename):
        return name
    return f"{name} ({code.co_filename}, line {code.co_firstlineno})"


def plain(value: object) -> Any:
    """A value as JSON has it where it has one, else as it is."""
    try:
        return _plain(value, "")
    except _Odd:
        return value


def _plain(value: object, place: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return {
            _key(key, place): _plain(element, f"{place}[{key!r:.80}]")
            for key, element in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_plain(element, f"{place}[{i}]") for i, element in enumerate(value)]
    as_list, shape = getattr(value, "tolist", None), getattr(value, "shape", None)
    if callable(as_list) and isinstance(shape, Sequence):  # of NumPy, PyTorch, pandas
        elements = math.prod(shape)
        if elements > ELEMENTS_MAX:
            raise _Odd(place, f"{_kind(value)} of {elements:,} elements, limit {ELEMENTS_MAX:,}")
        found = as_list()
        if not isinstance(found, type(value)):
            return _plain(found, place)
    raise _Odd(place, _kind(value))


def _key(key: object, place: str) -> str:
    """A key as JSON has it: text."""
    found = plain(key)
    if isinstance(found, str):
        return found
    if isinstance(found, (int, float)):
        return json.dumps(found)
    raise _Odd(place, f"under the key {key!r:.80} ({_kind(key)})")


def _kind(value: object) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
