"""Declarations of the columns of CSV, TSV and other tables: syntax and messages.

    "label:label, age:numeric log, c1..c26:categorical" -> columns_of -> Columns, in file order
    "age:numeric log", "clicked" -> columns_by_name -> Columns of files that name theirs

docs/sparse_data.md describes the features of each kind of column; `_cells.h` makes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any

from snailps.dataclass import dataclass
from snailps.errors import ConfigError

HASHED_BITS_MAX = 62
TRUTH = {"false": 0, "true": 1, "False": 0, "True": 1, "FALSE": 0, "TRUE": 1}
"""Cells of CSV that are numbers, as `true` of JSON and Parquet is; `_cells.h` reads them."""
MISSING = frozenset({
    "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", r"\N",
})  # fmt: skip
"""Cells of numeric columns of CSV that are missing, as empty ones are; `_cells.h` has them too."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
"""A number, too, so that such a cell is refused instead of making the column one of texts."""
_RANGE = re.compile(r"(?P<head>.*?)(?P<first>[0-9]+)\.\.(?P=head)(?P<last>[0-9]+)")


class Kind(IntEnum):
    """Kind of a column; the numbers are those of `_cells.h`."""

    IGNORE = 0
    LABEL = 1
    TEXT = 2
    """Kept as it is: for readers, not in declarations."""
    NUMERIC = 3
    BUCKET = 4
    CATEGORICAL = 5
    HASHED = 6


@dataclass(frozen=True, slots=True)
class Column:
    """One declared column.

    `log`: numbers become sign(x) log(1 + |x|), before `bounds` (rising) cut them into buckets.
    `bits`: a hashed column has at most 2^bits different keys.
    """

    name: str
    kind: Kind
    log: bool = False
    bounds: tuple[float, ...] = ()
    bits: int = 0

    @property
    def is_feature(self) -> bool:
        return self.kind >= Kind.NUMERIC


Declared = str | Sequence[str] | Sequence[Column]


def columns_of(declared: Declared, *, needs_label: bool = True) -> tuple[Column, ...]:
    """Parse ``name:kind`` a column, in the order of the file; ``a1..a9:kind`` is nine columns.

    A name in single quotes is taken as it is.  A string separates columns by commas or newlines.
    One label, unless `needs_label` is False.
    """
    columns = _declared(declared)
    labels = [column.name for column in columns if column.kind is Kind.LABEL]
    if len(labels) != 1 and (labels or needs_label):
        got = " and ".join(labels) if labels else "none"
        raise ConfigError(f"columns: expected exactly one column of kind label, got {got}")
    return columns


def columns_by_name(declared: Sequence[str], label: str) -> tuple[Column, ...]:
    """Parse declarations of some columns, in any order, of files that name theirs.

    They may omit columns, that of the labels, too; `label` names it.
    """
    columns = _declared(declared)
    for column in columns:
        if column.kind is Kind.LABEL and column.name != label:
            raise ConfigError(
                f"columns: {column.name} is declared as label, but label_column is {label}"
            )
        if column.kind is not Kind.LABEL and column.name == label:
            raise ConfigError(
                f"columns: {label} is label_column, so its kind is label, and not "
                f"{declaration_of(column).rpartition(':')[2]}"
            )
    return columns


def declaration_of(column: Column) -> str:
    """The declaration that `columns_of` parses as this column."""
    name = column.name
    if not name or name != name.strip() or _RANGE.fullmatch(name) or _quoted(name) is not None:
        name = f"'{name}'"
    words = [column.kind.name.lower()]
    if column.kind is Kind.HASHED:
        words.append(str(column.bits))
    elif column.kind in (Kind.NUMERIC, Kind.BUCKET):
        words = ["numeric"] + ["log"] * column.log
    if column.kind is Kind.BUCKET:
        words += ["bucket", *(f"{bound:.17g}" for bound in column.bounds)]
    return f"{name}:{' '.join(words)}"


def _quoted(name: str) -> str | None:
    """What is between single quotes; None: there are none."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == "'" else None


def is_number(cell: Any) -> bool:
    """Whether a cell of CSV, str or bytes, is a number."""
    try:
        float(TRUTH.get(cell, cell))
    except ValueError:
        return False
    return True


def kinds_of_cells(cells: Iterable[bytes]) -> set[Kind]:
    """Whether cells of CSV have numbers, texts, or both."""
    kinds = set()
    for cell in {cell.decode("utf-8", "surrogateescape").strip() for cell in set(cells)}:
        if NUMBER.fullmatch(cell) or cell in TRUTH or _INFINITE.fullmatch(cell):
            kinds.add(Kind.NUMERIC)
        elif cell and cell not in MISSING:
            kinds.add(Kind.CATEGORICAL)
    return kinds


def kind_of_cells(kinds: Iterable[Kind]) -> Kind:
    """Kind of a column that has cells of these kinds: a number may be a text as well."""
    return max(kinds, key=lambda kind: kind is Kind.CATEGORICAL)


def _declared(declared: Declared) -> tuple[Column, ...]:
    parts = re.split(r"[,\n]", declared) if isinstance(declared, str) else declared
    columns: list[Column] = []
    for part in parts:
        if isinstance(part, Column):
            columns.append(part)
        elif part.strip():
            columns += _columns_of_part(part.strip())
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"columns: expected every name once, got {twice[0]!r} more than once")
    return tuple(columns)


def _columns_of_part(part: str) -> Iterable[Column]:
    name, colon, kind = (piece.strip() for piece in part.rpartition(":"))
    if not colon or not name or not kind:
        raise ConfigError(
            f"columns: expected name:kind, got {part!r}. Kinds are label, ignore, numeric, "
            "categorical and hashed BITS"
        )
    quoted = _quoted(name)
    column = _column(name if quoted is None else quoted, kind.split(), part)
    found = None if quoted is not None else _RANGE.fullmatch(name)
    if not found:
        return [column]
    first, last = int(found["first"]), int(found["last"])
    if not first < last <= first + 100_000:
        raise ConfigError(f"columns: expected a rising range of names, got {part!r}")
    return [
        Column(f"{found['head']}{i}", column.kind, column.log, column.bounds, column.bits)
        for i in range(first, last + 1)
    ]


def _column(name: str, words: list[str], part: str) -> Column:
    kind, rest = words[0], words[1:]
    if kind in ("label", "ignore", "categorical") and not rest:
        return Column(name, Kind[kind.upper()])
    if kind == "hashed" and len(rest) == 1 and rest[0].isdecimal():
        bits = int(rest[0])
        if not 1 <= bits <= HASHED_BITS_MAX:
            raise ConfigError(
                f"columns: expected hashed with 1 to {HASHED_BITS_MAX} bits, got {part!r}"
            )
        return Column(name, Kind.HASHED, bits=bits)
    if kind == "numeric":
        log = rest[:1] == ["log"]
        rest = rest[log:]
        if not rest:
            return Column(name, Kind.NUMERIC, log=log)
        if rest[0] == "bucket" and len(rest) > 1:
            return Column(name, Kind.BUCKET, log=log, bounds=_bounds(rest[1:], part))
    raise ConfigError(
        f"columns: expected label, ignore, categorical, hashed BITS, or numeric [log] "
        f"[bucket BOUND ...], got {part!r}"
    )


def _bounds(words: list[str], part: str) -> tuple[float, ...]:
    try:
        bounds = tuple(float(word) for word in words)
    except ValueError:
        raise ConfigError(f"columns: expected numbers behind bucket, got {part!r}") from None
    if not all(a < b for a, b in pairwise(bounds)) or not abs(bounds[-1] - bounds[0]) < 1e300:
        raise ConfigError(f"columns: expected rising finite bounds behind bucket, got {part!r}")
    return bounds
