"""A table in a file, whatever its format: column names, kinds, batches of rows, examples.

    path -> open_table -> TableFile -> batches(columns) -> RowBatch: columns of consecutive rows
                                    -> pieces(declared columns) -> Piece: examples
                                    -> selected(batch, rows), target -> a file of the same format

Owns what all formats share, such as columns in the names of folders and the errors of parsers.
Memory is bounded: about ten thousand rows at a time, or one batch of a packed Arrow file.  A module
of this package parses a format; this one imports it by name.  Must not know what jobs do with
tables.
"""

from __future__ import annotations

import importlib
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import MISSING, TRUTH, ColumnKind, DeclaredColumn, as_float, is_number
from snailps.data.elements import DataTable, table_of_lists
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError, DataError
from snailps.files.formats import FORMATS, format_of
from snailps.files.host_cache import Make
from snailps.files.lakes import columns_around, type_name
from snailps.files.partitions import columns_of_folders
from snailps.files.unpacking import is_url, open_content, read_errors

if TYPE_CHECKING:
    from snailps.data.feature_rows import ExampleRows, Rule

T = TypeVar("T", bound="TableFile")
CODEC = ("utf-8", "surrogateescape")
_LISTED_TYPES = {
    "string": ColumnKind.CATEGORICAL,
    **dict.fromkeys(
        ("byte", "short", "int", "integer", "long", "float", "double", "decimal", "boolean"),
        ColumnKind.NUMERIC,
    ),
}
"""Kinds of columns by their types in the lists of Delta and Iceberg."""


@dataclass(frozen=True, slots=True)
class RowBatch(DataTable):
    """Consecutive rows of a file.

    `numbers`: for messages, each row's number in the file, or its line's, from 1.  `raw`: the rows
    as the format reads them, from which `TableFile.selected` makes what is written.
    """

    numbers: Sequence[int]
    raw: Any


class Target(ABC):
    """A file that is being written.  Call `close`, or `abandon` after an error; not both."""

    @abstractmethod
    def write(self, rows: Any) -> None:
        """Write what `TableFile.selected` returned."""

    @abstractmethod
    def close(self) -> None:
        """Write what is buffered, and the end of the file."""

    def abandon(self) -> None:  # noqa: B027
        """Write nothing more, not even later: the file is about to be removed."""


class TableFile(ABC):
    """A table in an open file; a context manager that closes it.

    One thread reads it.  The rows are read once: call one of `batches`, `rows` and `pieces`.
    """

    is_complete = True
    """Whether a column that the first rows lack is absent from the file: not so in JSON lines."""
    needs_labels = False
    """Whether a declared column of labels has to exist: each cell of CSV has a place."""
    is_typed = False
    """Whether the file has a schema with types, and columns are Arrow's; else they are lists."""
    row = "row"
    """What messages call a row."""
    has_parts = False
    """Whether `cuts` may divide it."""
    is_written = True
    """Whether it has a `target`."""
    is_stream = False
    """Whether it is read once, from beginning to end, so that it may be a pipe."""
    head_rows = 10_000
    """Rows that show the kinds of the columns of CSV and of JSON lines."""
    head_bytes = 64 << 20
    """Most bytes read for that: JSON lines may be long."""
    batch_rows = 1 << 14
    """Most rows of a batch."""
    batch_bytes = 4 << 20
    """About the bytes of a batch."""

    def __init__(
        self,
        path: str,
        make: Make | None = None,
        file: IO[bytes] | None = None,
        *,
        known: AbstractSet[str] | None = None,
        has_blanks: bool = False,
        skips_bad: bool = False,
    ) -> None:
        """As `open_table`.  `file`: read this open file instead of the path, and leave it open."""
        self.path, self._is_lent = path, file is not None
        self.known, self.has_blanks, self.skips_bad = known, has_blanks, skips_bad
        self.bad_lines, self.first_bad = 0, ""  # left out so far, and what the first one was
        self._file: Any = file or open_content(path)
        try:
            self._begin(make)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if not self._is_lent:
            self._file.close()

    def _begin(self, make: Make | None) -> None:  # noqa: B027
        """Read the header; `make` as in `open_table`."""

    @abstractmethod
    def _names(self) -> list[str]:
        """`own_names`, uncached."""

    @cached_property
    def own_names(self) -> list[str]:
        """Names of the columns stored in the file; of JSON lines, in its first rows."""
        return self._names()

    @cached_property
    def folders(self) -> dict[str, str | None]:
        """Columns with one value for all rows: in the names of folders, or null where the file's
        table got the column later.  A column of the file wins.
        """
        constant: dict[str, str | None] = dict.fromkeys(self.later_columns)
        constant |= columns_of_folders(self.path)
        return {name: text for name, text in constant.items() if name not in self.own_names}

    @cached_property
    def listed_columns(self) -> dict[str, Any]:
        """Columns of the table whose list has this file, as in `columns_around`."""
        return columns_around(self.path) if self.is_typed and not is_url(self.path) else {}

    @cached_property
    def later_columns(self) -> dict[str, str]:
        """Columns, with their types, that the file's table got after the file was written."""
        columns = self.listed_columns.items()
        taken = (*self.own_names, *columns_of_folders(self.path))
        return {name: type_name(kind) for name, kind in columns if name not in taken}

    @cached_property
    def names(self) -> list[str]:
        """Names of all columns in order; those in the names of folders come last."""
        return [*self.own_names, *self.folders]

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kinds(self, but: Sequence[str]) -> dict[str, ColumnKind]:
        """Kind of each column that has a type, or a value in the first rows; without `but`.

        DataError: a column holds neither numbers nor texts.  Columns in the names of folders are
        left out: their kind depends on all files (`kinds_of_folders`).
        """
        kinds = self._kinds([*but, *self.folders])
        for name, listed in self.later_columns.items():
            if name in but:
                continue
            if not (kind := _LISTED_TYPES.get(listed.partition("(")[0])):
                raise self.odd_type(name, listed)
            kinds[name] = kind
        return kinds

    def odd_type(self, name: str, type_name: str) -> DataError:
        """The error that a column holds neither numbers nor texts."""
        return DataError(
            f"{self.path}: column {name!r} has type {type_name}: expected numbers or texts. "
            f"Declare {name}:ignore in columns, or convert it"
        )

    @abstractmethod
    def _kinds(self, but: Sequence[str]) -> dict[str, ColumnKind]:
        """`kinds` of the columns stored in the file."""

    def has_numbers(self, name: str) -> bool:
        """Whether a column's type is of numbers, be they categories or not."""
        return False

    @property
    def has_more(self) -> bool:
        """Whether later rows may have names that the first ones lack."""
        return False

    def later_kinds(
        self, names: Sequence[str], bytes_max: int
    ) -> tuple[dict[str, ColumnKind], int]:
        """Kinds of columns that had no value in the first rows; and the bytes read.

        Reads on, about `bytes_max` at most.  The first batch with a value of a column decides its
        kind; a column without one is left out.
        """
        return {}, 0

    def batches(self, names: Sequence[str]) -> Iterator[DataTable]:
        """These columns, as far as they exist, batch by batch; call it once."""
        folders = {name: text for name, text in self.folders.items() if name in names}
        # If all wanted columns are in folders, one of the file says how many rows there are.
        stored = [name for name in names if name not in folders] or self.own_names[:1]
        for batch in self.rows(stored):
            yield batch_with(batch, folders) if folders else batch

    @abstractmethod
    def rows(
        self, names: Sequence[str] | None = None, part: tuple[int, int] | None = None
    ) -> Iterator[RowBatch]:
        """The rows of the file, or of one of its parts (`cuts`), batch by batch; call it once.

        `names` selects columns stored in the file, as far as they exist; None: all.
        """

    def no_values(self, name: str) -> Any:
        """An empty array of a column's type, to check the type; a list if the file has no types."""
        return []

    # --- files of selected rows ------------------------------------------------------------------

    def cuts(self, part_bytes: int) -> list[tuple[tuple[int, int], int]]:
        """Parts of about `part_bytes`, each with its bytes, that `rows` can read alone.

        Empty: the file has no parts.
        """
        return []

    def remarks(self) -> list[str]:
        """Warnings: what is lost when rows are written to a file of the same format."""
        return []

    def selected(
        self, batch: RowBatch, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]
    ) -> Any:
        """`rows` of a batch for `Target.write`, with further columns (float32, bool or object)."""
        raise self._not_written()

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        """Begin a file of the same format, with further columns of float, bool or str.

        It is packed with the codec of `column`, the largest one of a file of texts.
        """
        raise self._not_written()

    def _not_written(self) -> DataError:
        return DataError(f"{self.path}: files of this format are read, but not written: convert it")

    # --- examples --------------------------------------------------------------------------------

    def pieces(
        self, columns: Sequence[DeclaredColumn], label: str = "", on_bad_line: str = ""
    ) -> Iterator[tuple[ExampleRows, Any]]:
        """Examples of all rows, piece by piece, and the cells of column `label`; call it once.

        Cells are as the table has them.  A declared column of kind label that the table lacks is
        left out.  `on_bad_line` ("stop", "skip") is for CSV and TSV.
        """
        in_folders = [column for column in columns if column.name in self.folders]
        stored = [column for column in columns if column.name not in self.folders]
        if not in_folders and label not in self.folders:
            yield from self._pieces(columns, label, on_bad_line)
            return
        # An entry's field is its column's number among all features.  Both groups number their own,
        # so these arrays translate.
        features = [column.name for column in columns if column.is_feature]
        fields_of_stored, fields_of_folders = (
            np.array(
                [features.index(column.name) for column in group if column.is_feature], np.int32
            )
            for group in (stored, in_folders)
        )
        entries = self._of_folders(in_folders)
        text = self.folders.get(label)
        stored_label = "" if label in self.folders else label
        for piece, labels in self._pieces(stored, stored_label, on_bad_line):
            yield (
                piece_with(piece, entries, fields_of_stored, fields_of_folders),
                [text] * piece.rows if label in self.folders else labels,
            )

    def _of_folders(self, columns: Sequence[DeclaredColumn]) -> ExampleRows:
        """The entries that columns in the names of folders add to each row, as a piece of one row.

        A value that reads as a number is one, as a cell of CSV is.
        """
        cells: dict[str, list[Any]] = {}
        for column in columns:
            cell = cells.setdefault(column.name, [self.folders[column.name]])
            is_text = column.kind in (ColumnKind.CATEGORICAL, ColumnKind.HASHED)
            if not is_text and cell[0] in MISSING:
                cell[0] = None
            elif not is_text and cell[0] is not None and is_number(cell[0]):
                cell[0] = as_float(TRUTH.get(cell[0], cell[0]))
        table = table_of_lists(cells, self.path)
        return _rule(columns, self.path).piece(table, 0, 1, 1)

    def _pieces(
        self, columns: Sequence[DeclaredColumn], label: str, on_bad_line: str
    ) -> Iterator[tuple[ExampleRows, Any]]:
        """`pieces` of the columns stored in the file."""
        rule, first = _rule(columns, self.path), 1
        names = [column.name for column in columns if column.kind is ColumnKind.LABEL]
        names = [name for name in (*names, label) if name in self.names]
        for batch in self.batches([*(column.name for column in rule.features), *names]):
            labels: Any = []
            if label:
                column = batch.column(label)
                is_typed = self.is_typed and column.is_numeric()
                labels = (column.numbers if is_typed else column.values)(0, batch.rows)
            yield rule.piece(batch, 0, batch.rows, first), labels
            first += batch.rows


def _rule(columns: Sequence[DeclaredColumn], path: str) -> Rule:
    """The rule that makes examples; imported here, since labelling of texts starts without it."""
    from snailps.data.feature_rows import Rule

    return Rule(columns, path)


def class_of(format: str | None) -> type[TableFile]:
    """The class that reads a format; None: text."""
    reader = "text.TextFile" if format is None else FORMATS[format].reader
    module, _, name = reader.partition(".")
    file_class: type[TableFile] = getattr(
        importlib.import_module(f"snailps.data.formats.{module}"), name
    )
    return file_class


def open_table(
    path: str,
    make: Make | None = None,
    *,
    once: bool = False,
    known: AbstractSet[str] | None = None,
    has_blanks: bool = False,
    skips_bad: bool = False,
) -> TableFile:
    """Open a table, or a file of text, by the ending of its name.

    Parameters
    ----------
    make : callable, optional
        Gives an empty file for a purpose, into which a packed or remote file is copied if its
        format needs seeking.  None: the copy is in the system's temporary folder.
    once : bool
        The file is not opened again, so it may be a pipe if its format is a stream.
    known : set of str, optional
        The only names that rows of JSON lines may have; None: any.
    has_blanks : bool
        A blank line of JSON lines is a row without values, and rows come a MiB at a time; else
        blank lines are skipped.
    skips_bad : bool
        A line of JSON lines that has no object is left out and counted (`bad_lines`).

    Raises
    ------
    DataError
        Missing or unreadable, no regular file, or a malformed header.  JSON lines and text, which
        may be pipes, are read later: enter `table_errors` around whatever reads names or rows.
    """
    file_class = class_of(format_of(path))
    with table_errors(path):
        # Looked at before opening: opening a pipe would wait for a writer.  For a URL not at all:
        # each look is a request.
        if not (is_url(path) or (once and file_class.is_stream)) and not stat.S_ISREG(
            Path(path).stat().st_mode
        ):
            raise DataError(
                f"expected a regular file, got something else: {path}. A table is read more than "
                "once: write what a pipe has into a file"
            )
        return file_class(path, make, known=known, has_blanks=has_blanks, skips_bad=skips_bad)


def batch_with(batch: DataTable, columns: Mapping[str, str | None]) -> DataTable:
    """The rows of a batch with further columns, each of one value."""
    constant = table_of_lists({name: [text] * batch.rows for name, text in columns.items()}, "")

    def column(name: Any) -> Any:
        return (constant if name in columns else batch).column(name)

    return DataTable([*batch.columns, *columns], batch.rows, batch.name, column)


def piece_with(
    piece: ExampleRows,
    entries: ExampleRows,
    fields: NDArray[np.int32],
    of_entries: NDArray[np.int32],
) -> ExampleRows:
    """A piece with the entries of another, of one row, added to each of its rows.

    `fields`, `of_entries`: by field in each piece, the field in the result.
    """
    assert piece.ptr is not None
    assert piece.keys is not None
    assert piece.values is not None
    assert piece.fields is not None
    assert entries.keys is not None
    assert entries.values is not None
    assert entries.fields is not None
    count, row_ends = len(entries.keys), np.repeat(piece.ptr[1:], len(entries.keys))
    labels = piece.labels
    if labels is None and entries.labels is not None:
        labels = np.repeat(entries.labels, piece.rows)
    added_fields = np.tile(of_entries[entries.fields], piece.rows)
    return replace(
        piece,
        ptr=piece.ptr + np.arange(len(piece.ptr)) * count,
        keys=np.insert(piece.keys, row_ends, np.tile(entries.keys, piece.rows)),
        values=np.insert(piece.values, row_ends, np.tile(entries.values, piece.rows)),
        fields=np.insert(fields[piece.fields], row_ends, added_fields),
        labels=labels,
    )


def no_column(path: str, name: str, names: Iterable[str]) -> DataError:
    """The error that a table lacks a column; `names` are those that it has."""
    return DataError(f"{path} has no column {name!r}, but {', '.join(names)}")


def raw_text(value: Any) -> Any:
    """The bytes of a text, as a file of text would have them; other values unchanged.

    Lone surrogates, which some crawls have in JSON, become the three bytes that UTF-8 would give
    them, as other writers leave them; those that stand for invalid bytes become these bytes.
    """
    if not isinstance(value, str):
        return value
    try:
        return value.encode(*CODEC)
    except UnicodeEncodeError:
        return b"".join(
            char.encode("utf-8", CODEC[1] if "\udc80" <= char <= "\udcff" else "surrogatepass")
            for char in value
        )


@contextmanager
def table_errors(path: str) -> Iterator[None]:
    """Turn errors of parsers, and of damaged or unreadable files, into DataError with the path."""
    file_errors: AbstractContextManager[None] = read_errors(path)
    with file_errors:
        try:
            yield
        except (DataError, ConfigError):
            raise
        except Exception as error:
            if not isinstance(error, ValueError) and not is_of_arrow(error):
                raise
            raise DataError(f"cannot read {path}: {error}{_cure_of(error)}") from error


def is_of_arrow(error: Exception) -> bool:
    """Whether pyarrow raised an error; asked by name, since pyarrow may not be imported."""
    return any(base.__name__ == "ArrowException" for base in type(error).__mro__)


def _cure_of(error: Exception) -> str:
    """What to do about a type or codec that pyarrow lacks."""
    if isinstance(error, NotImplementedError) or "not implemented" in f"{error}".lower():
        return ". Write it again with another type or codec, such as text, or without that column"
    return ""
