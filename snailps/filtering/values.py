"""Values of a column, exact comparison, and the three-valued truth of rows.

    Column, Column or constant -> compared -> Truth: yes, no, or unknown

A comparison with a missing value is unknown, as SQL's NULL is.  Integers are compared exactly, of
any size.  Must not know files, nor conditions.
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
"""float64 holds every integer up to this one."""


class Column(NamedTuple):
    """A column's values, and which rows have one (`present`).

    `values` of texts have dtype object.  Numbers are int64, uint64, or floats as they are stored;
    where none of these holds all of them exactly they are Python's own, dtype object.  `texts`: the
    same values as texts, if the column has no type (it comes from names of folders).
    """

    values: NDArray[Any]
    present: Mask
    are_texts: bool = False
    texts: NDArray[Any] | None = None

    def at(self, rows: NDArray[Any]) -> Column:
        """The column of some rows, by number or mask."""
        texts = None if self.texts is None else self.texts[rows]
        return Column(self.values[rows], self.present[rows], self.are_texts, texts)


class Truth(NamedTuple):
    """Rows where a test holds (`yes`), and where it does not (`no`); in neither: unknown.

    `&`, `|` and `~` follow Kleene's logic: no & unknown is no, yes | unknown is yes.
    """

    yes: Mask
    no: Mask

    @classmethod
    def of(cls, yes: NDArray[Any], *present: Mask) -> Truth:
        """The truth of a comparison; unknown where a value is missing in any of `present`."""
        has_all = reduce(operator.and_, present)
        answer = np.asarray(yes, bool)
        return cls(answer & has_all, ~answer & has_all)

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.yes & other.yes, self.no | other.no)

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.yes | other.yes, self.no & other.no)

    def __invert__(self) -> Truth:
        return Truth(self.no, self.yes)


def compared(compare: Callable[[Any, Any], Any], column: Column, other: Any) -> Truth:
    """Compare a column with another column or a constant, exactly.

    NumPy compares int64 with float64 as float64, which rounds integers beyond 2^53: such columns
    are compared as Python's numbers.  A constant is rounded like a column of floats: the float32
    that prints as 0.9 is .9, as it is to NumPy, pandas and polars.
    """
    if isinstance(other, Column):
        sides = column.values, other.values
        kinds = {side.dtype.kind for side in sides}
        if "f" in kinds and not kinds <= {"f", "O"} and any(map(_is_beyond, sides)):
            sides = column.values.astype(object), other.values.astype(object)
        with np.errstate(invalid="ignore"):  # NaN among objects: a missing value
            return Truth.of(compare(*sides), column.present, other.present)
    if not isinstance(other, str):
        if column.values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                other = column.values.dtype.type(other)
        elif float(other).is_integer():  # a fraction is below 2^53, where float64 is exact
            other = int(other)
    with np.errstate(invalid="ignore"):
        return Truth.of(compare(column.values, other), column.present)


def _is_beyond(values: NDArray[Any]) -> bool:
    """Whether there are integers that float64 may round."""
    return values.dtype.kind in "iu" and bool(((values > EXACT) | (values < -EXACT)).any())


def rounded(column: Column) -> Column:
    """Round numbers to float32, as the scores are that they are compared with.

    A score that JSON has with nine digits is the same score again.
    """
    values = column.values
    with np.errstate(over="ignore", invalid="ignore"):
        if values.dtype == object:  # integers of any size: beyond 0 and 1 all compare alike
            values = np.clip(values, -1, 2)
        return column._replace(values=values.astype(np.float32))


def nothing(column: Column, *, are_texts: bool) -> Column:
    """Make a column of texts or numbers that has no value, from a column of nulls alone."""
    return Column(np.zeros(len(column.present), object), column.present, are_texts)
