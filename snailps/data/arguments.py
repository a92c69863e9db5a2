"""Arguments of calls, checked.  Beside `elements`, as queries of vectors do not import that."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any

from snailps.errors import DataError


def whole_number(value: Any, least: int, expected: str, most: int | None = None) -> int:
    """Return a parameter as an int; `expected` begins the DataError if it is none, or too small or
    large.  A bool is none: it stands for a parameter in the wrong place, not for 0 or 1."""
    number = least - 1
    if not isinstance(value, bool):
        with suppress(TypeError):  # also of an array, which has the method
            number = operator.index(value)
    if number < least or (most is not None and number > most):
        raise DataError(f"{expected}, got {value!r:.80}")
    return number
