"""What every format of tables in files has: names of columns, kinds, batches and pieces of rows.

    path -> open_table -> TableFile -> batches(columns) -> RowBatch: columns of some rows
                                    -> pieces(declared columns) -> Piece: examples
                                    -> selected(batch, rows), target -> a file of the same format

Memory stays bounded: some ten thousand rows at a time, of Arrow's compressed files a batch of
theirs.  A module of this package parses a format; this one imports it by name.  Must not know what
jobs take of tables.
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

from snailps.data.columns import MISSING, TRUTH, Column, Kind, is_number
from snailps.data.elements import DataTable, table_of_lists
from snailps.data.formats import FORMATS, format_of
from snailps.data.host_cache import Make
from snailps.data.partitions import columns_of_folders
from snailps.data.unpacking import is_url, open_content, read_errors
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError, DataError

if TYPE_CHECKING:
    from snailps.data.feature_rows import Piece, Rule

T = TypeVar("T", bound="TableFile")
CODEC = ("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class RowBatch(DataTable):
    """Some rows of a file.

    `numbers`: of the rows in the file, or of their lines, for messages.  `raw` is what
    `TableFile.selected` takes rows of.
    """

    numbers: Sequence[int]
    raw: Any


class Target(ABC):
    """A file that is written; `TableFile.selected` makes what it takes."""

    @abstractmethod
    def write(self, kept: Any) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Write its end."""

    def abandon(self) -> None:  # noqa: B027
        """The file is not wanted: nothing more is written."""


class TableFile(ABC):
    """A table in an open file; a context manager that closes it."""

    is_complete = True
    """Whether a column that the first rows lack is absent."""
    needs_labels = False
    """Whether a declared column of labels cannot be absent."""
    is_typed = False
    """Whether columns are Arrow's, with types; else they are lists."""
    row = "row"
    """What messages call a row."""
    has_parts = False
    """Whether it may have `cuts`."""
    is_written = True
    """Whether it has a `target`."""
    is_stream = False
    """Whether it is read once, from beginning to end, so that it may be a pipe."""
    head_rows = 10_000
    """Rows that show what the columns of CSV and of JSON lines are."""
    head_bytes = 64 << 20
    """The same in bytes, for long JSON lines."""
    batch_rows = 1 << 14
    batch_bytes = 4 << 20
    """Bytes of rows parsed together."""

    def __init__(
        self,
        path: str,
        make: Make | None = None,
        file: IO[bytes] | None = None,
        *,
        known: AbstractSet[str] | None = None,
        has_blanks: bool = False,
    ) -> None:
        """`file` is read in the path's place, and stays open; the others are as in `open_table`."""
        self.path, self._is_lent = path, file is not None
        self.known, self.has_blanks = known, has_blanks
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
        """Read the beginning."""

    @abstractmethod
    def _names(self) -> list[str]:
        """Names of the columns in the file."""

    @cached_property
    def own_names(self) -> list[str]:
        """Names of the columns in the file; of JSON lines, in its first rows."""
        return self._names()

    @cached_property
    def folders(self) -> dict[str, str | None]:
        """Columns in the names of folders, with their values."""
        in_folders = columns_of_folders(self.path).items()
        return {name: text for name, text in in_folders if name not in self.own_names}

    @cached_property
    def names(self) -> list[str]:
        """Names of all columns, in order; those in the names of folders are the last ones."""
        return [*self.own_names, *self.folders]

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        """Kind of each column except `but` that has a value in the first rows, or a type.

        DataError if it has neither numbers nor texts.  Those of folders: see `kinds_of_folders`.
        """
        return self._kinds([*but, *self.folders])

    @abstractmethod
    def _kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        """`kinds` of the columns in the file."""

    @property
    def has_more(self) -> bool:
        """Whether later rows may have other names."""
        return False

    def later_kinds(self, names: Sequence[str], bytes_max: int) -> tuple[dict[str, Kind], int]:
        """Kinds of these columns, as far as they have a value in the following rows, each by the
        rows with the first value; and the bytes read, about `bytes_max` at most."""
        return {}, 0

    def batches(self, names: Sequence[str]) -> Iterator[DataTable]:
        """Yield these columns, as far as they exist, some rows at a time; once."""
        folders = {name: text for name, text in self.folders.items() if name in names}
        own = [name for name in names if name not in folders] or self.own_names[:1]
        for batch in self.rows(own):
            yield batch_with(batch, folders) if folders else batch

    @abstractmethod
    def rows(
        self, names: Sequence[str] | None = None, part: tuple[int, int] | None = None
    ) -> Iterator[RowBatch]:
        """All rows of the file, or of a part of it (`cuts`), some at a time; once.

        `names` chooses columns of the file, as far as they exist; None: all.
        """

    def no_values(self, name: str) -> Any:
        """No value of a column, of its type if it has one."""
        return []

    # --- files of some of the rows ---------------------------------------------------------------

    def cuts(self, part_bytes: int) -> list[tuple[tuple[int, int], int]]:
        """Parts of about `part_bytes` that `rows` can read, and the bytes of each; empty: none."""
        return []

    def remarks(self) -> list[str]:
        """What is lost when rows are written to a file of the same format."""
        return []

    def selected(
        self, batch: RowBatch, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]
    ) -> Any:
        """Some rows for `Target.write`, with more columns (float32 or object)."""
        raise self._not_written()

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        """Begin a file of the same format, with further columns of float or str, and the codec of
        `column`."""
        raise self._not_written()

    def _not_written(self) -> DataError:
        return DataError(f"{self.path}: files of this format are read, and not written")

    # --- examples --------------------------------------------------------------------------------

    def pieces(
        self, columns: Sequence[Column], label: str = "", on_bad_line: str = ""
    ) -> Iterator[tuple[Piece, Any]]:
        """Examples of all rows, and the cells of a column as the table has them; once.

        A column of kind label that the table lacks is left out.  `on_bad_line` is of CSV and TSV.
        """
        apart = [column for column in columns if column.name in self.folders]
        own = [column for column in columns if column.name not in self.folders]
        if not apart and label not in self.folders:
            yield from self._pieces(columns, label, on_bad_line)
            return
        features = [column.name for column in columns if column.is_feature]
        places = [
            np.array([features.index(one.name) for one in some if one.is_feature], np.int32)
            for some in (own, apart)
        ]
        entries = self._of_folders(apart)
        text = self.folders.get(label)
        for piece, labels in self._pieces(own, "" if label in self.folders else label, on_bad_line):
            yield (
                piece_with(piece, entries, *places),
                [text] * piece.rows if label in self.folders else labels,
            )

    def _of_folders(self, columns: Sequence[Column]) -> Piece:
        """What columns of folders add to each row, as a piece of one row."""
        cells: dict[str, list[Any]] = {}
        for column in columns:
            cell = cells.setdefault(column.name, [self.folders[column.name]])
            is_text = column.kind in (Kind.CATEGORICAL, Kind.HASHED)
            if not is_text and cell[0] in MISSING:
                cell[0] = None
            elif not is_text and cell[0] is not None and is_number(cell[0]):
                cell[0] = float(TRUTH.get(cell[0], cell[0]))
        table = table_of_lists(cells, self.path)
        return _rule(columns, self.path).piece(table, 0, 1, 1)

    def _pieces(
        self, columns: Sequence[Column], label: str, on_bad_line: str
    ) -> Iterator[tuple[Piece, Any]]:
        """`pieces` of the columns in the file."""
        rule, first = _rule(columns, self.path), 1
        names = [column.name for column in columns if column.kind is Kind.LABEL]
        names = [name for name in (*names, label) if name in self.names]
        for batch in self.batches([*(column.name for column in rule.features), *names]):
            labels: Any = []
            if label:
                column = batch.column(label)
                is_typed = self.is_typed and column.is_numeric()
                labels = (column.numbers if is_typed else column.values)(0, batch.rows)
            yield rule.piece(batch, 0, batch.rows, first), labels
            first += batch.rows


def _rule(columns: Sequence[Column], path: str) -> Rule:
    """Imports the rule of features for examples alone: labelling of texts starts without it."""
    from snailps.data.feature_rows import Rule

    return Rule(columns, path)


def class_of(format: str | None) -> type[TableFile]:
    """The class of a format's files; None: text."""
    name = "text" if format is None else FORMATS[format].module
    kind: type[TableFile] = importlib.import_module(f"snailps.data.formats.{name}").File
    return kind


def open_table(
    path: str,
    make: Make | None = None,
    *,
    once: bool = False,
    known: AbstractSet[str] | None = None,
    has_blanks: bool = False,
) -> TableFile:
    """Open a table, or a file of text.

    What is wrong with its beginning is reported at once; of JSON lines and text, which may be
    pipes, when names or rows are asked for: within `table_errors`, as all that is read.

    A packed or remote file that has to be sought in is copied to a file that `make` gives for a
    purpose; None: to the system's temporary folder.  `once`: it is opened this time only, and may
    be a pipe if rows can be read from one.  `known`: the only names that rows of JSON lines may
    have; None: any.  `has_blanks`: a blank line of JSON lines is a row without values, and rows
    come a MiB at a time; else it is skipped.
    """
    kind = class_of(format_of(path))
    with table_errors(path):
        # Before opening, which would wait for a writer.  Each opening of a URL is a request.
        if not (is_url(path) or (once and kind.is_stream)) and not stat.S_ISREG(
            Path(path).stat().st_mode
        ):
            raise DataError(
                f"expected a regular file, got something else: {path}. A table is read more than "
                "once: write what a pipe has into a file"
            )
        return kind(path, make, known=known, has_blanks=has_blanks)


def batch_with(batch: DataTable, columns: Mapping[str, str | None]) -> DataTable:
    """Some rows, with further columns of one value each."""
    constant = table_of_lists({name: [text] * batch.rows for name, text in columns.items()}, "")

    def column(name: Any) -> Any:
        return (constant if name in columns else batch).column(name)

    return DataTable([*batch.columns, *columns], batch.rows, batch.name, column)


def piece_with(
    piece: Piece, entries: Piece, fields: NDArray[np.int32], of_entries: NDArray[np.int32]
) -> Piece:
    """A piece each of whose rows has further entries, those of one row.

    `fields`, `of_entries`: what the fields of each are among those of both.
    """
    assert piece.ptr is not None
    assert piece.keys is not None
    assert piece.values is not None
    assert piece.fields is not None
    assert entries.keys is not None
    assert entries.values is not None
    assert entries.fields is not None
    count, at = len(entries.keys), np.repeat(piece.ptr[1:], len(entries.keys))
    labels = piece.labels
    if labels is None and entries.labels is not None:
        labels = np.repeat(entries.labels, piece.rows)
    own_fields = fields[piece.fields]
    return replace(
        piece,
        ptr=piece.ptr + np.arange(len(piece.ptr)) * count,
        keys=np.insert(piece.keys, at, np.tile(entries.keys, piece.rows)),
        values=np.insert(piece.values, at, np.tile(entries.values, piece.rows)),
        fields=np.insert(own_fields, at, np.tile(of_entries[entries.fields], piece.rows)),
        labels=labels,
    )


def no_column(path: str, name: str, names: Iterable[str]) -> DataError:
    """The error of a table without a column."""
    return DataError(f"{path} has no column {name!r}, but {', '.join(names)}")


def raw_text(value: Any) -> Any:
    """The bytes of a text that was read, as a file of text has them; other values as they are.

    Halves of pairs, which some crawls have in JSON, become bytes that are no text, as in others.
    """
    if not isinstance(value, str):
        return value
    try:
        return value.encode(*CODEC)
    except UnicodeEncodeError:
        return b"".join(
            one.encode("utf-8", CODEC[1] if "\udc80" <= one <= "\udcff" else "surrogatepass")
            for one in value
        )


@contextmanager
def table_errors(path: str) -> Iterator[None]:
    """Turn errors of parsers into DataError, and those of `unpacking.read_errors`."""
    known: AbstractContextManager[None] = read_errors(path)
    with known:
        try:
            yield
        except (DataError, ConfigError):
            raise
        except Exception as error:
            if not isinstance(error, ValueError) and not is_of_arrow(error):
                raise
            raise DataError(f"cannot read {path}: {error}{_cure_of(error)}") from error


def is_of_arrow(error: Exception) -> bool:
    """Whether it is pyarrow's: some are no ValueError, as of types that it lacks."""
    return any(kind.__name__ == "ArrowException" for kind in type(error).__mro__)


def _cure_of(error: Exception) -> str:
    if isinstance(error, NotImplementedError) or "not implemented" in f"{error}".lower():
        return ". Write it again with another type or codec, such as text, or without that column"
    return ""
