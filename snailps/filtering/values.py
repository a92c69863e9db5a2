"""Values of a column of a table, compared exactly, and what is known of rows.

    Column, Column or constant -> compared -> Truth: yes, no, or not known

Whole numbers are compared as such, of any size.  Must not know files, nor conditions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
EXACT = 1 << 53
"""float64 has each whole number up to this one."""


class Column(NamedTuple):
    """Values of some rows of a table, and which rows have one.

    Texts are objects.  Numbers are int64, uint64 or float64, or objects, Python's own numbers,
    where none of these types has all of them exactly.  `texts`: what the numbers are as texts, if
    the column has no type.
    """

    values: NDArray[Any]
    present: Mask
    are_texts: bool = False
    texts: NDArray[Any] | None = None

    def at(self, rows: NDArray[Any]) -> Column:
        texts = None if self.texts is None else self.texts[rows]
        return Column(self.values[rows], self.present[rows], self.are_texts, texts)


class Truth(NamedTuple):
    """Rows of which something is so, and rows of which it is not; of others it is not known."""

    yes: Mask
    no: Mask

    @classmethod
    def of(cls, yes: NDArray[Any], *present: Mask) -> Truth:
        """Make the truth of a comparison, known where all values are `present`."""
        known = reduce(operator.and_, present)
        answer = np.asarray(yes, bool)
        return cls(answer & known, ~answer & known)

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.yes & other.yes, self.no | other.no)

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.yes | other.yes, self.no & other.no)

    def __invert__(self) -> Truth:
        return Truth(self.no, self.yes)


def compared(compare: Callable[[Any, Any], Any], one: Column, two: Any) -> Truth:
    """Compare a column with another one, or with a constant, exactly."""
    if isinstance(two, Column):
        sides = one.values, two.values
        kinds = {side.dtype.kind for side in sides}
        if "f" in kinds and not kinds <= {"f", "O"} and any(map(_is_beyond, sides)):
            sides = one.values.astype(object), two.values.astype(object)
        with np.errstate(invalid="ignore"):  # NaN among objects, which is not present
            return Truth.of(compare(*sides), one.present, two.present)
    if not isinstance(two, str):
        if one.values.dtype.kind == "f":
            two = float(two)
        elif float(two).is_integer():  # others are below 2^53, where float64 has all whole numbers
            two = int(two)
    with np.errstate(invalid="ignore"):
        return Truth.of(compare(one.values, two), one.present)


def _is_beyond(values: NDArray[Any]) -> bool:
    """Whether whole numbers are among these that float64 may not have."""
    return values.dtype.kind in "iu" and bool(((values > EXACT) | (values < -EXACT)).any())


def nothing(column: Column, *, are_texts: bool) -> Column:
    """A column without values."""
    return Column(np.zeros(len(column.present), object), column.present, are_texts)
