"""Converts the figures of a user's class to plain values, which messages and the journal can hold.

    results of judge, export, after_round ... -> plain -> None, bool, int, float, str, lists, dicts

Called once, where such a value enters: no later code asks for its type.
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
"""Most elements of an array among figures, which messages, journal and reports hold as text."""
FIGURES_BYTES_MAX = 4 << 20
"""Most bytes of JSON in one result; a message has room for four times as many."""


class _Odd(Exception):
    """A value that JSON cannot hold: `place` in the result, and what was `got`."""

    def __init__(self, place: str, got: str) -> None:
        super().__init__(place, got)
        self.place, self.got = place, got


def plain_figures(cls: type, method: str, result: object) -> dict[str, Any]:
    """Convert the figures that a class method has returned.

    Scalars and small arrays of NumPy, PyTorch or pandas become numbers and lists, paths text.  A
    `ClusterError` names class, method, key and type of anything else.
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
    """Convert a single value that a class method has returned; `int` cuts off decimals.

    `ClusterError` if it is not of this kind.
    """
    try:
        plain_value = _plain(value, "")
        if isinstance(plain_value, str) != (kind is str):
            raise TypeError
        return kind(plain_value)
    except (_Odd, TypeError, ValueError, OverflowError):
        noun = {int: "a whole number", float: "a number"}.get(kind, "text")  # type: ignore[call-overload]
        raise ClusterError(
            f"{named_method(cls, method)}: expected {noun}, got {value!r:.80} ({_kind(value)})"
        ) from None


def is_users(cls: type) -> bool:
    """Whether a class is a user's, not part of snailps."""
    return not cls.__module__.startswith("snailps.")


def named_method(cls: type, method: str) -> str:
    """Name a class's method in messages; in a user's own code, with file and first line."""
    function = getattr(cls, method, None)  # None: a default of a trait that it lacks
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    name = f"{cls.__name__}.{method}"
    if code is None or not is_own_code(code.co_filename):
        return name
    return f"{name} ({code.co_filename}, line {code.co_firstlineno})"


def plain(value: object) -> Any:
    """Convert a value if JSON can hold it; else return it unchanged."""
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
        elements_of_value = as_list()
        if not isinstance(elements_of_value, type(value)):  # else it would not end
            return _plain(elements_of_value, place)
    raise _Odd(place, _kind(value))


def _key(key: object, place: str) -> str:
    """Convert a key to text, as JSON does."""
    plain_key = plain(key)
    if isinstance(plain_key, str):
        return plain_key
    if isinstance(plain_key, (int, float)):
        return json.dumps(plain_key)
    raise _Odd(place, f"under the key {key!r:.80} ({_kind(key)})")


def _kind(value: object) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
