"""Declarations of the columns of tables: their syntax, and the errors in them.

    "label:label, age:numeric log, c1..c26:categorical" -> columns_of -> Columns, in file order
    "age:numeric log", "clicked" -> columns_by_name -> Columns of files with a header

docs/sparse_data.md says which features each kind of column makes; `_cells.h` makes them.  Must not
know files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any

from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.files.partitions import columns_of_folders

HASHED_BITS_MAX = 62
TRUTH = {"false": 0, "true": 1, "False": 0, "True": 1, "FALSE": 0, "TRUE": 1}
"""Cells of CSV that count as numbers, like `true` in JSON and Parquet; `_cells.h` has them too."""
MISSING = frozenset({
    "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", r"\N",
})  # fmt: skip
"""Cells of numeric CSV columns that mean a missing value, as an empty one; also in `_cells.h`."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
"""Counts as a number when kinds are inferred, so that such a cell is refused with its row; else one
of them would make a column of numbers a column of texts."""
_RANGE = re.compile(r"(?P<head>.*?)(?P<first>[0-9]+)\.\.(?P=head)(?P<last>[0-9]+)")


class ColumnKind(IntEnum):
    """Kind of a column; `_cells.h` has the same numbers."""

    IGNORE = 0
    LABEL = 1
    TEXT = 2
    """The cell itself: for readers; a declaration cannot ask for it."""
    NUMERIC = 3
    BUCKET = 4
    CATEGORICAL = 5
    HASHED = 6


@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A declared column.

    `log`: numbers become sign(x) log(1 + |x|), before `bounds`, ascending, cut them into buckets.
    `bits`: a hashed column has at most 2^bits different keys.
    """

    name: str
    kind: ColumnKind
    log: bool = False
    bounds: tuple[float, ...] = ()
    bits: int = 0

    @property
    def is_feature(self) -> bool:
        return self.kind >= ColumnKind.NUMERIC


Declared = str | Sequence[str] | Sequence[DeclaredColumn]


def columns_of(declared: Declared, *, needs_label: bool = True) -> tuple[DeclaredColumn, ...]:
    """Parse declarations ``name:kind`` of all columns, in the order of the file.

    ``a1..a9:kind`` is nine columns; a name in single quotes is taken literally.  A string separates
    columns by commas or newlines.  ConfigError: malformed, or not exactly one label, which may be
    missing unless `needs_label`.
    """
    columns = _declared(declared)
    labels = [column.name for column in columns if column.kind is ColumnKind.LABEL]
    if len(labels) != 1 and (labels or needs_label):
        got = " and ".join(labels) if labels else "none"
        raise ConfigError(f"columns: expected exactly one column of kind label, got {got}")
    return columns


def columns_by_name(declared: Sequence[str], label: str) -> tuple[DeclaredColumn, ...]:
    """Parse declarations of some columns, in any order, for files with a header.

    `label` names the column of labels, which need not be declared.  ConfigError: malformed, or a
    declaration that contradicts `label`.
    """
    columns = _declared(declared)
    for column in columns:
        if column.kind is ColumnKind.LABEL and column.name != label:
            raise ConfigError(
                f"columns: {column.name} is declared as label, but label_column is {label}"
            )
        if column.kind is not ColumnKind.LABEL and column.name == label:
            raise ConfigError(
                f"columns: {label} is label_column, so its kind has to be label, got "
                f"{declaration_of(column).rpartition(':')[2]}"
            )
    return columns


def declaration_of(column: DeclaredColumn) -> str:
    """The text that `columns_of` parses to this column."""
    name = column.name
    if not name or name != name.strip() or _RANGE.fullmatch(name) or _quoted(name) is not None:
        name = f"'{name}'"
    words = [column.kind.name.lower()]
    if column.kind is ColumnKind.HASHED:
        words.append(str(column.bits))
    elif column.kind in (ColumnKind.NUMERIC, ColumnKind.BUCKET):
        words = ["numeric"] + ["log"] * column.log
    if column.kind is ColumnKind.BUCKET:
        words += ["bucket", *(f"{bound:.17g}" for bound in column.bounds)]
    return f"{name}:{' '.join(words)}"


def _quoted(name: str) -> str | None:
    """The text between single quotes; None: it is not quoted."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == "'" else None


def as_float(cell: Any) -> float:
    """Convert a number, or a cell of CSV, str or bytes; ValueError or TypeError: it is none.

    Python alone reads ``1_0`` as 10, and digits of other scripts, which the readers in C refuse.
    """
    text = cell.decode("latin-1") if isinstance(cell, bytes) else cell
    if isinstance(text, str) and ("_" in text or not text.isascii()):
        raise ValueError(f"expected a number, got {text!r:.60}")
    return float(text)


def is_number(cell: Any) -> bool:
    """Whether a cell of CSV, str or bytes, is a number."""
    try:
        as_float(TRUTH.get(cell, cell))
    except ValueError:
        return False
    return True


def kinds_of_cells(cells: Iterable[bytes]) -> set[ColumnKind]:
    """Whether cells of CSV are numbers, texts, or both; missing cells are neither."""
    kinds = set()
    for cell in {cell.decode("utf-8", "surrogateescape").strip() for cell in set(cells)}:
        if NUMBER.fullmatch(cell) or cell in TRUTH or _INFINITE.fullmatch(cell):
            kinds.add(ColumnKind.NUMERIC)
        elif cell and cell not in MISSING:
            kinds.add(ColumnKind.CATEGORICAL)
    return kinds


def kind_of_cells(kinds: Iterable[ColumnKind]) -> ColumnKind:
    """Kind of a column with cells of these kinds: categorical if any is a text."""
    return max(kinds, key=lambda kind: kind is ColumnKind.CATEGORICAL)


def _declared(declared: Declared) -> tuple[DeclaredColumn, ...]:
    parts = re.split(r"[,\n]", declared) if isinstance(declared, str) else declared
    columns: list[DeclaredColumn] = []
    for part in parts:
        if isinstance(part, DeclaredColumn):
            columns.append(part)
        elif part.strip():
            columns += _columns_of_part(part.strip())
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"columns: expected every name once, got {twice[0]!r} more than once")
    return tuple(columns)


def _columns_of_part(part: str) -> Iterable[DeclaredColumn]:
    name, colon, kind = (piece.strip() for piece in part.rpartition(":"))
    if not colon or not name or not kind:
        raise ConfigError(
            f"columns: expected name:kind, got {part!r}. Kinds are label, ignore, numeric, "
            "categorical and hashed BITS"
        )
    quoted = _quoted(name)
    column = _column(name if quoted is None else quoted, kind.split(), part)
    names = None if quoted is not None else _RANGE.fullmatch(name)
    if not names:
        return [column]
    first, last = int(names["first"]), int(names["last"])
    if not first < last <= first + 100_000:
        raise ConfigError(
            f"columns: expected an ascending range of at most 100,001 names, got {part!r}"
        )
    return [
        DeclaredColumn(f"{names['head']}{i}", column.kind, column.log, column.bounds, column.bits)
        for i in range(first, last + 1)
    ]


def _column(name: str, words: list[str], part: str) -> DeclaredColumn:
    """The column of a name and the words of its kind; `part` is the declaration, for errors."""
    kind, options = words[0], words[1:]
    if kind in ("label", "ignore", "categorical") and not options:
        return DeclaredColumn(name, ColumnKind[kind.upper()])
    if kind == "hashed" and len(options) == 1 and options[0].isdecimal():
        bits = int(options[0])
        if not 1 <= bits <= HASHED_BITS_MAX:
            raise ConfigError(
                f"columns: expected hashed with 1 to {HASHED_BITS_MAX} bits, got {part!r}"
            )
        return DeclaredColumn(name, ColumnKind.HASHED, bits=bits)
    if kind == "numeric":
        log = options[:1] == ["log"]
        options = options[log:]
        if not options:
            return DeclaredColumn(name, ColumnKind.NUMERIC, log=log)
        if options[0] == "bucket" and len(options) > 1:
            return DeclaredColumn(
                name, ColumnKind.BUCKET, log=log, bounds=_bounds(options[1:], part)
            )
    raise ConfigError(
        f"columns: expected label, ignore, categorical, hashed BITS, or numeric [log] "
        f"[bucket BOUND ...], got {part!r}"
    )


def _bounds(words: list[str], part: str) -> tuple[float, ...]:
    try:
        bounds = tuple(float(word) for word in words)
    except ValueError:
        raise ConfigError(f"columns: expected numbers after bucket, got {part!r}") from None
    if not all(a < b for a, b in pairwise(bounds)) or not abs(bounds[-1] - bounds[0]) < 1e300:
        raise ConfigError(f"columns: expected ascending finite bounds after bucket, got {part!r}")
    return bounds


def kinds_of_folders(paths: Iterable[str]) -> dict[str, ColumnKind]:
    """Kind of each column in the names of folders, judged like cells of CSV, over all files."""
    values: dict[str, set[bytes]] = {}
    for path in paths:
        for name, text in columns_of_folders(path).items():
            cells = [] if text is None else [text.encode("utf-8", "surrogateescape")]
            values.setdefault(name, set()).update(cells)
    kinds_in = {name: kinds_of_cells(cells) for name, cells in values.items()}
    return {name: kind_of_cells(kinds) for name, kinds in kinds_in.items() if kinds}
