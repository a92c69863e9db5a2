"""What jobs read from tables in files: lines of text, sparse examples, declarations of columns.

    TableFile, Reading -> text_of -> one line per row; write_table -> a matrix file
    first table of a job, declarations of some columns -> complete -> declarations of all

Labels of all examples are in memory, rows are not.  Must not know how a format is parsed
(formats/).  Functions raise ConfigError (a missing library, a malformed declaration) and DataError.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import first_row
from snailps.data.columns import (
    ColumnKind,
    DeclaredColumn,
    as_float,
    columns_by_name,
    declaration_of,
    kinds_of_folders,
)
from snailps.data.elements import Elements, is_missing, mapping_of, shown_names
from snailps.data.examples import NUMBERS
from snailps.data.feature_rows import NAMED, ExampleRows, RowsSource
from snailps.data.formats.table import TableFile, open_table, table_errors
from snailps.data.label_words import word_of
from snailps.data.matrix_writer import write_rows
from snailps.data.name_tables import lines_of
from snailps.data.spool import LineHeads, SpooledText
from snailps.dataclass import replace
from snailps.errors import DataError
from snailps.files.file_kinds import BOM, CELLS
from snailps.files.formats import format_of
from snailps.files.host_cache import Make, ScratchFile
from snailps.files.matrix_file import first_not_weight, floats
from snailps.files.reading import Reading

LOOKED_BYTES = 256 << 20
"""Bytes after the first rows that are searched for a value of each column."""
LOOKED_FILES = 256
"""Most files searched: each counts as this fraction of the bytes at least, however small it is."""
NAMES_MAX = 1 << 16
"""More different labels are refused: such a column does not name classes."""
_INDEX = "__index_level_"
"""Beginning of the column name that pandas gives an index in Parquet."""
SHOWN_CHARS = 80
"""Characters of a list of column names, in messages."""
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def refuse_header(head: bytes, path: str) -> None:
    """DataError for CSV or TSV that is about to be read as plain text, though it names columns.

    Its first line has names only, its second line as many cells.  `head`: the first `CSV_BYTES`.
    """
    cells_of = CELLS["tsv" if format_of(path) == "tsv" else "csv"]
    head = head.removeprefix(BOM)
    cells, end = first_row(head, *cells_of)
    names = [cell.decode(errors="replace") for cell in cells]
    second, _ = first_row(head[end:], *cells_of)
    if 1 < len(names) <= len(second) and all(map(_COLUMN.fullmatch, names)):
        raise DataError(
            f"{path} has names of columns in its first line "
            f"({', '.join(names)[:SHOWN_CHARS]}): set column to the one that has the texts, for "
            f"example column={names[0]!r:.40}. Rename the file to .txt if all of it is text"
        )


def text_of(reading: Reading, path: str, make: Make | None = None) -> Iterator[bytes]:
    """Whole lines, about a MiB at a time: a column's texts, with labels in front if there are any.

    `make` as in `open_table`.
    """
    if reading.form == "names":
        yield from lines_of(reading, path, make)
        return
    others = [name for name in (reading.label_column, reading.weight_column) if name]
    # A batch has all columns; the writer takes one text, then its labels and its weight.  What
    # belongs to texts that were not taken yet waits here, a batch at most.
    waiting: dict[str, deque[Any]] = {name: deque() for name in others}
    with open_table(path, make) as table, table_errors(path):
        _require(table, [reading.column, *others])

        def texts() -> Iterator[Any]:
            for batch in table.batches([reading.column, *others]):
                for name, values in waiting.items():
                    values.extend(batch.column(name).values(0, batch.rows))
                yield from batch.column(reading.column).values(0, batch.rows)

        def taken(name: str) -> Iterator[Any]:
            while waiting[name]:
                yield waiting[name].popleft()

        def elements(name: str, values: Iterable[Any]) -> Elements:
            return Elements(values, None, f"column {name!r} of {path}", "row", first=1)

        heads = None
        if label := reading.label_column:
            weight = reading.weight_column
            heads = LineHeads(
                elements(label, map(label_words, taken(label))),
                reading.label_prefix,
                elements(weight, taken(weight)) if weight else None,
                ":" if weight and not reading.soft_labels else "",
                are_soft=reading.soft_labels,
            )
        for piece, _ in SpooledText(elements(reading.column, texts()), heads).pieces():
            yield piece


def write_table(
    reading: Reading, path: str, make: Make, on_piece: Callable[[], object]
) -> ScratchFile:
    """Write what a job reads instead of a table.

    Calls `on_piece` for each piece; it may raise, to break off.
    """
    file, parts = make(f"reading {path}"), lambda part: make(f"reading {path} ({part})")
    if reading.form != "examples":
        for piece in text_of(reading, path, parts):
            file.write(piece)
            on_piece()
        return file
    with _examples_of(reading, path, parts, on_piece) as source, table_errors(path):
        write_rows(file, parts, source)
    return file


def complete(
    paths: Sequence[str], declared: Sequence[str], label: str, weight: str = ""
) -> tuple[str, ...]:
    """Declarations of all columns of the first table, in order.

    Columns in `declared` keep their declaration, others get a kind by their values.  A column
    without a value in the first rows (10,000 of CSV and JSON lines) is searched further on, in all
    tables, up to `LOOKED_BYTES` and `LOOKED_FILES`.  Without any value there it is numeric, so that
    a text in it is refused with its row.

    `label` is the column of the labels, `weight` of the weights, which is no feature; empty: there
    is none.
    """
    by_name = {column.name: column for column in columns_by_name(declared, label)}
    if weight:
        column = by_name.setdefault(weight, DeclaredColumn(weight, ColumnKind.IGNORE))
        if column.kind is not ColumnKind.IGNORE:
            got = declaration_of(column)
            raise DataError(f"columns: {weight} is weight_column: leave it out, got {got}")
    named = [*by_name, label] if label else [*by_name]
    path = paths[0]
    with open_table(path) as table, table_errors(path):
        later = [name for name in by_name if table.has_more and name not in table.names]
        _require(table, [name for name in named if name not in later])
        kinds = table.kinds(named)
        # The index that pandas writes numbers the rows: training on it would learn their order.
        kinds |= {name: ColumnKind.IGNORE for name in table.names if name.startswith(_INDEX)}
        of_folders = kinds_of_folders(paths) if table.folders else {}
        unknown = [name for name in table.names if name not in (*named, *kinds, *table.folders)]
        later_kinds, size = table.later_kinds(unknown, LOOKED_BYTES) if unknown else ({}, 0)
        names = (*table.names, *later)
    kinds |= later_kinds | {name: kind for name, kind in of_folders.items() if name not in kinds}
    for other in paths[1:]:
        unknown = [name for name in unknown if name not in kinds]
        if not unknown or size >= LOOKED_BYTES:
            break
        with open_table(other) as table, table_errors(other):
            kinds |= table.kinds([name for name in table.names if name not in unknown])
            later_kinds, read = table.later_kinds(
                [name for name in unknown if name not in kinds], LOOKED_BYTES - size
            )
        kinds, size = kinds | later_kinds, size + max(read, LOOKED_BYTES // LOOKED_FILES)
    columns = [
        by_name.get(name)
        or DeclaredColumn(
            name, ColumnKind.LABEL if name == label else kinds.get(name, ColumnKind.NUMERIC)
        )
        for name in names
    ]
    if not any(column.is_feature for column in columns):
        beside = f" beside the label {label!r}" if label else ""
        raise DataError(
            f"{path} has no column of features{beside}: declare one in columns, or name another "
            "table"
        )
    return tuple(map(declaration_of, columns))


def check_table(path: str, reading: Reading) -> None:
    """DataError: a table of examples lacks columns of the job, or has undeclared ones."""
    with _examples_of(reading, path):
        pass


def read_rows(
    path: str,
    columns: Sequence[DeclaredColumn],
    label: str = "",
    weight: str = "",
    *,
    others: bool = False,
) -> Iterator[tuple[ExampleRows, Any]]:
    """Examples of a table, piece by piece, and with each the labels as the table has them.

    A missing label is "" in CSV, else None.  `columns` may include the label and ignored columns,
    without effect; an empty `label` reads no labels; pieces have the weights of column `weight`, if
    one is named; `others`: the table may have further columns.
    """
    allowed = None if others else {*(column.name for column in columns), label, weight}
    with open_table(path, known=allowed) as table, table_errors(path):
        features = [column for column in columns if column.is_feature]
        needed = [column.name for column in features if table.is_complete]
        _require(table, [*needed, *(name for name in (label, weight) if name)])
        if undeclared := _others(table):
            raise DataError(
                f"{path} has columns that the model or the first file lacks: "
                f"{shown_names(undeclared)}. Leave them out: columns=[{_ignored(undeclared[0])!r}]"
            )
        if not weight:
            yield from table.pieces(features, label)
            return
        first = 1
        with _weight_errors():
            for piece, labels in table.pieces(
                [*features, DeclaredColumn(weight, ColumnKind.LABEL)], label
            ):
                weights = _weights(piece.labels, path, weight, first)
                yield replace(piece, labels=None, weights=weights), labels
                first += piece.rows


def has_column(path: str, name: str) -> bool:
    """Whether a table has a column."""
    with open_table(path) as table, table_errors(path):
        return name in table.names or name in table.folders


def names_of(path: str) -> str:
    """The column names of a table, for messages."""
    with open_table(path) as table, table_errors(path):
        return shown_names(table.names)


def names_of_labels(reading: Reading, paths: Sequence[str]) -> list[str]:
    """The different text labels of all rows of tables, sorted, without missing ones.

    DataError: more than `NAMES_MAX`.
    """
    names = set[str]()
    for path in paths:
        with open_table(path) as table, table_errors(path):
            _require(table, [reading.label_column])
            for _, labels in table.pieces((), reading.label_column, reading.on_bad_line):
                names.update(label for label in labels if isinstance(label, str) and label)
                if len(names) > NAMES_MAX:
                    raise DataError(
                        f"{path}: column {reading.label_column!r} has more than {NAMES_MAX:,} "
                        "different texts: expected the names of classes, or numbers"
                    )
    return sorted(names)


def label_kind(paths: Sequence[str], label: str) -> ColumnKind:
    """Whether labels are numbers or texts: by the column's type, or the first rows with a label."""
    path = paths[0]
    with open_table(path) as table, table_errors(path):
        _require(table, [label])
        if label in table.folders and label not in table.later_columns:
            return kinds_of_folders(paths).get(label, ColumnKind.CATEGORICAL)
        if label in table.own_names and table.has_numbers(label):
            return ColumnKind.NUMERIC  # categories of numbers, too: a label is its number
        kinds = table.kinds([name for name in table.names if name != label])
        if label not in kinds:
            kinds, _ = table.later_kinds([label], LOOKED_BYTES)
        return kinds.get(label, ColumnKind.CATEGORICAL)


@contextmanager
def _examples_of(
    reading: Reading, path: str, make: Make | None = None, on_piece: Callable[[], object] = int
) -> Iterator[RowsSource]:
    """The examples of a table that is checked to have the job's columns and no others."""
    columns = columns_by_name(reading.columns, reading.label_column)
    with open_table(path, make, known={column.name for column in columns}) as table:
        with table_errors(path):  # names of JSON lines are read here
            _check(table, columns, reading.label_column, reading.needs_labels)
            _require(table, [name for name in (reading.weight_column,) if name])
        yield _TableFileExamples(table, columns, reading, on_piece)


class _TableFileExamples(RowsSource):
    """The rows of a table as examples, with labels as numbers."""

    has_label = True

    def __init__(
        self,
        table: TableFile,
        columns: Sequence[DeclaredColumn],
        reading: Reading,
        on_piece: Callable[[], object],
    ) -> None:
        self._table, self._declared, self._reading = table, columns, reading
        self._on_piece, self.name, self.flags = on_piece, table.path, NAMED
        self.rows = self.entries = -1
        self.columns = 0

    def pieces(self) -> Iterator[ExampleRows]:
        reading, columns, first = self._reading, self._declared, 1
        names = {name: float(number) for number, name in enumerate(reading.label_names)}
        # A piece has the numbers of one column, and the cells of another.
        cells, weight = reading.weight_column, reading.weight_column
        if names:
            columns = [column for column in columns if column.is_feature]
            columns += [DeclaredColumn(weight, ColumnKind.LABEL)] * bool(weight)
            cells = reading.label_column
        elif weight:
            columns = [column for column in columns if column.name != weight]
        for piece, values in self._read(columns, cells):
            self._on_piece()
            weights = piece.labels if names else values
            if names:
                piece = replace(piece, labels=self._numbered(values, names, first))
            if weight:
                piece = replace(piece, weights=_weights(weights, self.name, weight, first))
            yield piece
            first += piece.rows

    def _read(
        self, columns: Sequence[DeclaredColumn], cells: str
    ) -> Iterator[tuple[ExampleRows, Any]]:
        """`TableFile.pieces`, with the word for what a column of numbers has in its errors."""
        weight = self._reading.weight_column
        is_weight = any(c.name == weight and c.kind is ColumnKind.LABEL for c in columns)
        with _weight_errors() if is_weight else nullcontext():
            yield from self._table.pieces(columns, cells, self._reading.on_bad_line)

    def _numbered(
        self, labels: Sequence[Any], names: Mapping[Any, float], first: int
    ) -> NDArray[np.float64]:
        """Numbers of text labels; `first` is the number of the first row, for the error."""
        try:
            return np.array([names[label] for label in labels], np.float64)
        except (KeyError, TypeError):
            row = next(
                place for place, label in enumerate(labels)
                if not (isinstance(label, str) and label in names)
            )  # fmt: skip
            label = labels[row]
            got = "missing" if label == "" or is_missing(label) else f"{label!r:.60}"
            raise DataError(
                f"{self.name}: column {self._reading.label_column!r}, row {first + row:,} is "
                f"{got}: expected a label, one of {shown_names(list(names))}"
            ) from None


@contextmanager
def _weight_errors() -> Iterator[None]:
    """Say in errors that the column that is read as labels has weights."""
    try:
        yield
    except DataError as error:
        text = str(error).replace(NUMBERS, "a finite number of at least 0", 1)
        raise DataError(text.replace("expected a label, ", "expected a weight, ", 1)) from None


def _weights(values: Any, path: str, column: str, first: int) -> NDArray[np.float32]:
    """Weights in cells or numbers; `first` is the number of the first row, for the error."""
    is_numeric = isinstance(values, np.ndarray) and values.dtype.kind in "biuf"
    numbers = values if is_numeric else np.array([_number(value) for value in values], np.float64)
    weights = floats(numbers)
    if (place := first_not_weight(weights)) >= 0:
        cell = values[place]
        cell = cell.item() if isinstance(cell, np.generic) else cell
        raise DataError(
            f"{path}: column {column!r}, row {first + place:,} is {cell!r:.60}: expected a weight, "
            "a finite number of at least 0"
        )
    return weights


def _number(cell: Any) -> float:
    """A cell as a number; NaN: it is none."""
    try:
        return as_float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def label_words(label: Any) -> Any:
    """A label, or each of a list or mapping, as a word of a line; None: missing."""
    label = mapping_of(label)
    if isinstance(label, Mapping):
        return {label_words(name): weight for name, weight in label.items()}
    if isinstance(label, list):
        return [label_words(item) for item in label]
    if isinstance(label, str):
        return word_of(label) if label else None  # an empty cell is missing
    return label


def _require(table: TableFile, names: Sequence[str]) -> None:
    """DataError: the table lacks a column; says why, where that can be guessed."""
    for name in names:
        if name not in table.names:
            has = shown_names(table.names)
            if len(table.names) == 1 and (match := re.search(r"[,;\t|]", table.names[0])):
                has += f". Cells of .csv are separated by ',', of .tsv by tabs; got {match[0]!r}"
            if f"/{quote(name)}=" in table.path:
                has += f". A folder's name has it: name the folder above {name}=... as the input"
            raise DataError(f"{table.path} has no column {name!r}; it has {has}")


def _check(
    table: TableFile, columns: Sequence[DeclaredColumn], label: str, needs_labels: bool
) -> None:
    """DataError: the table lacks a declared column, or has an undeclared one."""
    needs_labels = needs_labels or table.needs_labels
    _require(
        table,
        [
            column.name
            for column in columns
            if column.kind is not ColumnKind.IGNORE
            and (needs_labels if column.kind is ColumnKind.LABEL else table.is_complete)
        ],
    )
    others = _others(table)
    if others:
        raise DataError(
            f"{table.path} has columns that the first file lacks: {shown_names(others)}. Declare "
            f"{_ignored(others[0])} in columns, or another kind; label_column is {label}"
        )


def _others(table: TableFile) -> list[str]:
    """Columns of a table that are not among its `known` ones."""
    return [name for name in table.names if table.known is not None and name not in table.known]


def _ignored(name: str) -> str:
    return declaration_of(DeclaredColumn(name, ColumnKind.IGNORE))
