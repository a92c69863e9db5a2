"""Arguments of calls, checked.  Beside `elements`, as queries of vectors do not import that."""

from __future__ import annotations

import operator
from typing import Any

from snailps.errors import DataError


def whole_number(value: Any, least: int, expected: str, most: int | None = None) -> int:
    """Return a parameter as an int; `expected` begins the DataError if it is none, or too small or
    large.  A bool is none: it stands for a parameter in the wrong place, not for 0 or 1."""
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    number = operator.index(value) if is_whole else least - 1
    if number < least or (most is not None and number > most):
        raise DataError(f"{expected}, got {value!r:.80}")
    return number
