"""What jobs take from tables in files: lines of text, sparse examples, declarations of columns.

    TableFile, Reading -> text_of -> a line a row; write_examples -> a matrix file
    first table of a job, declarations of some columns -> complete -> declarations of all

Labels of all examples are in memory, rows are not.  Must not know how a format is parsed
(table_formats.py).  Functions raise ConfigError (a missing library, a declaration) and DataError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from snailps.data._examples import Examples
from snailps.data.columns import Column, Kind, columns_by_name, declaration_of
from snailps.data.elements import Elements
from snailps.data.feature_rows import Piece, RowsSource
from snailps.data.label_words import word_of
from snailps.data.matrix_file import Flags
from snailps.data.matrix_sources import examples_of_piece
from snailps.data.matrix_writer import write_rows
from snailps.data.reading import Reading
from snailps.data.scratch import ScratchFile
from snailps.data.spool import lines_of
from snailps.data.table_formats import (
    JsonLines,
    Make,
    SeparatedFile,
    TableFile,
    open_table,
    table_errors,
)
from snailps.errors import DataError

_END = object()


def text_of(reading: Reading, path: str, make: Make | None = None) -> Iterator[bytes]:
    """Whole lines, about a MiB, of a column's texts, with labels if a column has them.

    `make` is as of `open_table`.
    """
    names = [name for name in (reading.column, reading.label_column) if name]
    with open_table(path, make) as table, table_errors(path):
        _require(table, names)
        rows = _TextRows(table, reading)
        at = f"column {{!r}} of {path}"
        texts = Elements(rows.texts(), None, at.format(reading.column), "row")
        labels = None
        if reading.label_column:
            labels = Elements(rows.labels(), None, at.format(reading.label_column), "row")
        for piece, _ in lines_of(texts, labels, reading.label_prefix):
            yield piece


def write_text(
    reading: Reading,
    path: str,
    file: ScratchFile,
    make: Make,
    on_piece: Callable[[], None],
) -> None:
    for piece in text_of(reading, path, make):
        file.write(piece)
        on_piece()


def write_examples(
    reading: Reading,
    path: str,
    file: ScratchFile,
    make: Make,
    on_piece: Callable[[], None],
) -> None:
    columns = columns_by_name(reading.columns, reading.label_column)
    with open_table(path, make) as table, table_errors(path):
        _check(table, columns, reading.label_column, reading.needs_labels)
        write_rows(file, make, _ExampleRows(table, columns, reading, on_piece))


def complete(path: str, declared: Sequence[str], label: str) -> tuple[str, ...]:
    """Declarations of all columns of a table, in order: those that are given, others by their
    values.

    `label` is the column of the labels; empty: there is none.
    """
    given = {column.name: column for column in columns_by_name(declared, label)}
    named = [*given, label] if label else [*given]
    with open_table(path) as table, table_errors(path):
        later = [name for name in given if table.has_more and name not in table.names]
        _require(table, [name for name in named if name not in later])
        kinds = table.kinds(named)
        columns = [
            given.get(name) or Column(name, Kind.LABEL if name == label else _kind(name, kinds))
            for name in (*table.names, *later)
        ]
    if not any(column.is_feature for column in columns):
        beside = f" beside the label {label!r}" if label else ""
        raise DataError(f"{path} has no column of features{beside}")
    return tuple(map(declaration_of, columns))


def _kind(name: str, kinds: Mapping[str, Kind]) -> Kind:
    """Kind of a column's values; IGNORE for pandas' index, the order of the rows."""
    return Kind.IGNORE if name.startswith("__index_level_") else kinds[name]


def check_table(path: str, reading: Reading) -> None:
    """Refuse a table of examples that lacks columns, or has undeclared ones."""
    columns = columns_by_name(reading.columns, reading.label_column)
    with open_table(path) as table:
        _check(table, columns, reading.label_column, reading.needs_labels)


def first_examples(path: str, reading: Reading, hash_bits: int) -> tuple[Examples, bool]:
    """Examples of a table's first rows, and whether these are all."""
    columns = columns_by_name(reading.columns, reading.label_column)
    with open_table(path) as table, table_errors(path):
        _check(table, columns, reading.label_column, reading.needs_labels)
        source = _ExampleRows(table, columns, reading, lambda: None)
        pieces = source.pieces()
        first = next(pieces)
        examples = examples_of_piece(first, source, hash_bits)
        if first.labels is not None:
            examples = examples._replace(labels=first.labels)
        return examples, next(pieces, None) is None


def read_rows(
    path: str, columns: Sequence[Column], label: str = "", *, others: bool = False
) -> Iterator[tuple[Piece, Any]]:
    """Examples of a table, in pieces without labels, and their labels as the table has them.

    Missing labels of CSV are "".  `columns` may include the labels' and ignored ones, without
    effect; an empty `label` reads none; `others`: the table may have other columns.
    """
    with open_table(path) as table, table_errors(path):
        features = [column for column in columns if column.is_feature]
        is_lenient = isinstance(table, JsonLines)  # whose lines may lack a name
        needed = [] if is_lenient else [column.name for column in features]
        _require(table, [*needed, *([label] if label else [])])
        if not others:
            table.known = {*(column.name for column in columns), label}
            _refuse_others(table, table.known)
        yield from table.labelled(features, label)


def names_of(path: str) -> str:
    with open_table(path) as table, table_errors(path):
        return _shown(table.names)


def label_kind(path: str, label: str) -> Kind:
    """Whether a column of labels has numbers or texts, of CSV by its first rows."""
    with open_table(path) as table, table_errors(path):
        _require(table, [label])
        return table.kinds([name for name in table.names if name != label])[label]


class _TextRows:
    """Texts and labels of a table, in step: a label is taken behind its text."""

    def __init__(self, table: TableFile, reading: Reading) -> None:
        self._table, self._reading = table, reading
        self._labels: Iterator[Any] = iter(())

    def texts(self) -> Iterator[Any]:
        names = [self._reading.column]
        if self._reading.label_column:
            names.append(self._reading.label_column)
        for batch in self._table.batches(names):
            if len(names) > 1:
                self._labels = iter(batch.texts(names[1], 0, batch.rows))
            yield from batch.texts(names[0], 0, batch.rows)

    def labels(self) -> Iterator[Any]:
        """Labels; texts as words, without blanks."""
        while (label := next(self._labels, _END)) is not _END:
            yield _word(label)


class _ExampleRows(RowsSource):
    has_label = True

    def __init__(
        self,
        table: TableFile,
        columns: Sequence[Column],
        reading: Reading,
        on_piece: Callable[[], None],
    ) -> None:
        self._table, self._declared, self._reading = table, columns, reading
        self._on_piece = on_piece
        self.name = table.path
        self.flags = Flags.VALUES | Flags.FIELDS | Flags.WIDE | Flags.HASHED
        self.rows = self.entries = -1
        self.columns = 0

    def pieces(self) -> Iterator[Piece]:
        for piece in self._table.pieces(self._declared, self._reading):
            self._on_piece()
            yield piece


def _word(label: Any) -> Any:
    if isinstance(label, list):
        return [_word(one) for one in label]
    if isinstance(label, str):
        return word_of(label) if label else None  # an empty cell is missing
    return label


def _require(table: TableFile, names: Sequence[str]) -> None:
    for name in names:
        if name not in table.names:
            has = _shown(table.names)
            if len(table.names) == 1 and (found := re.search(r"[,;\t|]", table.names[0])):
                has += f". Cells of .csv are separated by ',', of .tsv by tabs; got {found[0]!r}"
            raise DataError(f"{table.path} has no column {name!r}; it has {has}")


def _check(table: TableFile, columns: Sequence[Column], label: str, needs_labels: bool) -> None:
    needs_labels = needs_labels or isinstance(table, SeparatedFile)
    # Lines of JSON may lack a name, or have one that the first lines lack.
    optional = isinstance(table, JsonLines)
    _require(
        table,
        [
            column.name
            for column in columns
            if column.kind is not Kind.IGNORE
            and (needs_labels if column.kind is Kind.LABEL else not optional)
        ],
    )
    others = _others(table, {column.name for column in columns})
    if others:
        raise DataError(
            f"{table.path} has columns that the first file has not: {_shown(others)}. Declare "
            f"{others[0]}:ignore in columns, or another kind; label_column is {label}"
        )


def _others(table: TableFile, known: Collection[str]) -> list[str]:
    return [name for name in table.names if name not in known]


def _refuse_others(table: TableFile, known: Collection[str]) -> None:
    """Refuse columns that neither the first file nor a fitted model has."""
    others = _others(table, known)
    if others:
        raise DataError(
            f"{table.path} has columns that the model or the first file has not: {_shown(others)}. "
            f"Leave them out: columns=['{others[0]}:ignore']"
        )


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
