"""Files as an estimator's X: tables that name their columns, lines of LIBSVM, matrix files, pipes.

    paths, column of labels, declarations -> example_files -> TableExamples or LineExamples
    -> pieces -> Piece, as for a matrix in memory     -> labels: of the pieces read so far

Owns whether columns are known by number or by name: a table of plain numbers has columns by number,
like an array; one with texts, or with declarations of other kinds, has features by name.  Rows are
read piece by piece; labels of all rows are in memory.  Must not know models or clusters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import (
    TRUTH,
    ColumnKind,
    DeclaredColumn,
    as_float,
    columns_by_name,
    columns_of,
    declaration_of,
    is_number,
)
from snailps.data.examples import ExampleReader
from snailps.data.feature_rows import NAMED, ExampleRows, Fields, RowsSource, dense_piece
from snailps.dataclass import replace
from snailps.errors import DataError
from snailps.files.blocks import cut, expand, files_of, read_block
from snailps.files.file_kinds import HEAD_BYTES, is_pipe, refuse_foreign, whole_lines
from snailps.files.formats import ENDINGS, format_of
from snailps.files.matrix_file import (
    HEADER_BYTES,
    KEY_LIMIT,
    Flags,
    check_labels,
    is_matrix,
    read_header,
)
from snailps.files.scratch import Scratch, open_input
from snailps.files.unpacking import is_url, read_errors

BLOCK_BYTES = 8 << 20
UNKNOWN = KEY_LIMIT + 1
"""Number of columns of lines that nobody has counted: any key is allowed."""
_MISSING = "leave such rows out, or fill them"


class Beside(NamedTuple):
    """Columns of tables that are no features; empty: there is none."""

    label: str = ""
    weight: str = ""


class ExampleFiles(RowsSource):
    """Examples of files.

    Attributes
    ----------
    names : list of str
        Columns that are features; empty for files without names.
    by_name : bool
        Features are known by name, else by number.
    declared : tuple of str
        ``name:kind`` of the columns; empty for files without names.
    label, weight : str
        Columns of the labels and of the weights, or empty.
    has_fields, field_num
        Whether entries have fields, and the bound of these.
    """

    names: list[str]
    by_name: bool
    declared: tuple[str, ...] = ()
    label = weight = ""
    has_fields = False
    field_num = 0
    _fields: NDArray[np.int32] | None = None

    def write_as(self, *, fields: Fields | None = None, dense: bool = False) -> None:
        if fields is not None:
            self._fields = np.asarray(fields, np.int32)
            self.flags |= Flags.FIELDS
        if dense:
            if self.by_name:
                raise DataError(
                    f"X: {self.name} has texts, or columns declared as other than numeric: this "
                    "estimator takes numbers. Leave these columns out"
                )
            self.flags = Flags.DENSE | Flags.VALUES

    @abstractmethod
    def labels(self) -> NDArray[Any]:
        """Labels of the pieces read so far."""

    def weights(self) -> NDArray[np.float32] | None:
        """Weights of the rows read so far; None: the files have none."""
        return None


def example_files(
    paths: Sequence[str],
    label: str = "",
    columns: Sequence[str] = (),
    *,
    names: Sequence[str] = (),
    infer: bool = False,
    others: bool = False,
    needs_labels: bool = True,
    by_name: bool = False,
    kinds: Mapping[str, ColumnKind] = MappingProxyType({}),
    weight: str = "",
    lines: Mapping[str, Any] = MappingProxyType({}),
) -> ExampleFiles:
    """The examples of files, folders, globs, URLs and named pipes.

    Parameters
    ----------
    paths : sequence of str
        All tables, or none of them.
    label : str
        Column of the labels, for tables.
    columns : sequence of str
        Declarations ``name:kind`` of some columns, for tables.
    names : sequence of str
        All features in order, as a model knows them; undeclared ones are numeric.  Empty: the
        columns of the first table.
    infer : bool
        Infer the kinds of `names` from the first table.
    others : bool
        Ignore further columns instead of refusing them.
    needs_labels : bool
        Labels have to exist.
    by_name : bool
        Name features even if all of them are plain numbers.
    kinds : mapping
        Kinds by name that a model knows; they win over inferred ones.
    weight : str
        Column of the weights, for tables.
    lines : mapping
        `format` and `columns` of `ExampleReader` for a model that was trained on lines.  Used for
        CSV and TSV too, if their first line does not have the model's names.

    Raises
    ------
    DataError
        Tables beside other files, a missing column, or a label where there can be none.
    """
    files = files_of(paths)
    tables = [format_of(path) is not None for path in files]
    if any(tables) != all(tables):
        other = files[tables.index(not tables[0])]
        raise DataError(
            f"X: {files[0]} and {other}: expected only tables ({ENDINGS}), or none: give them one "
            "kind after the other"
        )
    if lines and not (tables[0] and _has_names(files[0], names, lines["columns"])):
        declared = columns_of(lines["columns"])
        labels = [column.name for column in declared if column.kind is ColumnKind.LABEL]
        if label and label not in labels:
            raise DataError(
                f"y: {files[0]} has no column names in its first line, so its columns are taken to "
                f"be those of the training, with the labels in {labels[0]!r:.60}; got {label!r:.60}"
            )
        if weight:
            raise DataError(
                f"sample_weight: there is no column {weight!r:.60}: {files[0]} has no column names "
                "in its first line"
            )
        return LineExamples(files, paths, needs_labels, lines)
    if tables[0]:
        if needs_labels and not label:
            from snailps.data.table_files import names_of

            raise DataError(
                f"y: {files[0]} is a table: expected the name of the column that has the labels, "
                f"one of {names_of(files[0])}"
            )
        beside = Beside(label, weight)
        return TableExamples(files, beside, columns, names, others, infer, by_name, kinds)
    if label or columns or weight:
        what = f"y: there is no column {label!r:.60}" if label else "columns: expected none"
        if weight:
            what = f"sample_weight: there is no column {weight!r:.60}"
        raise DataError(
            f"{what}: {files[0]} is no table: each line or row begins with its label. The names of "
            f"tables end in {ENDINGS}"
        )
    return LineExamples(files, paths, needs_labels, lines)


class TableExamples(ExampleFiles):
    """Rows of tables that name their columns; made by `example_files`."""

    def __init__(
        self,
        files: Sequence[str],
        beside: Beside,
        columns: Sequence[str],
        names: Sequence[str],
        others: bool,
        infer: bool,
        by_name: bool,
        kinds: Mapping[str, ColumnKind],
    ) -> None:
        from snailps.data.table_files import complete, label_kind

        self._files, self._others = files, others
        self.label, self.weight = label, weight = beside
        self._weights: list[NDArray[np.float32]] = []
        if weight and weight == label:
            raise DataError(
                f"column {label!r:.60} has the labels: expected another one for the weights"
            )
        if weight and weight in names:
            raise DataError(
                f"column {weight!r:.60} is a feature of the model: expected another one for the "
                "weights"
            )
        if names and infer:
            every = columns_by_name(complete(files, columns, label, weight), label)
            inferred = {column.name: column for column in every}
            missing = [name for name in names if name not in inferred]
            if missing:
                raise DataError(
                    f"{files[0]} has no column {missing[0]!r:.60}, which the model was trained on"
                )
            self._columns = [inferred[name] for name in names]
        elif names:
            declared = {column.name: column for column in columns_by_name(columns, label)}
            features = [
                declared.get(name, DeclaredColumn(name, ColumnKind.NUMERIC)) for name in names
            ]
            if (
                weight
                and declared.pop(weight, DeclaredColumn(weight, ColumnKind.IGNORE)).is_feature
            ):
                raise DataError(f"columns: {weight} has the weights: leave it out")
            ignored = [column for column in declared.values() if not column.is_feature]
            self._columns = [*features, *ignored]
        else:
            every = columns_of(complete(files, columns, label, weight), needs_label=False)
            self._columns = [
                DeclaredColumn(column.name, kinds[column.name])
                if column.is_feature and column.name in kinds
                else column
                for column in every
            ]
        self.declared = tuple(map(declaration_of, self._columns))
        features = [column for column in self._columns if column.is_feature]
        self.names = [column.name for column in features]
        self.by_name = by_name or any(map(is_named, self.declared))
        self.rows = self.entries = -1
        self.name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        if self.by_name:
            self.columns = 0
            self.flags = NAMED
        else:
            self.columns = len(features)
            self.flags = Flags.VALUES
        self.field_num = len(features)
        self._labels = _TableLabels(
            bool(label) and label_kind(files, label) is ColumnKind.NUMERIC, label
        )

    def pieces(self) -> Iterator[ExampleRows]:
        from snailps.data.table_files import read_rows

        self._labels.clear()
        self._weights.clear()
        for path in self._files:
            first = 1
            rows = read_rows(path, self._columns, self.label, self.weight, others=self._others)
            for read, labels in rows:
                piece = read
                if read.weights is not None:
                    self._weights.append(read.weights)
                    piece = replace(read, weights=None)
                if self.label:
                    if len(labels) != piece.rows:
                        raise DataError(
                            f"{path}: expected a label a row, got {len(labels):,} in the column "
                            f"{self.label!r} for {piece.rows:,} rows"
                        )
                    self._labels.add(labels, path, first)
                first += piece.rows
                yield piece if self.by_name else self._numbered(piece, path, first - piece.rows)

    def labels(self) -> NDArray[Any]:
        return self._labels.whole()

    def weights(self) -> NDArray[np.float32] | None:
        return np.concatenate(self._weights) if self._weights else None

    def _numbered(self, piece: ExampleRows, path: str, first: int) -> ExampleRows:
        """A piece with column numbers as keys, without the hashes of names.

        Columns are plain numbers here, so an entry's field is its column's number.
        """
        assert piece.ptr is not None
        assert piece.fields is not None
        assert piece.values is not None
        keys, values = piece.fields.astype(np.uint32), piece.values
        if self.dense:
            if len(keys) != piece.rows * self.columns:
                row = int(np.flatnonzero(np.diff(piece.ptr) != self.columns)[0])
                present = set(keys[piece.ptr[row] : piece.ptr[row + 1]].tolist())
                name = next(name for column, name in enumerate(self.names) if column not in present)
                raise DataError(
                    f"{path}: column {name!r}, row {first + row:,} is missing: dense examples have "
                    f"all values: {_MISSING}"
                )
            return dense_piece(piece.ptr, keys, values, self.columns)
        ptr = piece.ptr
        is_entry = values != 0  # an array's zeros are no entries either
        if not is_entry.all():
            ptr = np.concatenate(([0], np.cumsum(is_entry)))[ptr].astype(np.int64)
            keys, values = keys[is_entry], values[is_entry]
        fields = None if self._fields is None else self._fields[keys]
        return ExampleRows(ptr, keys, values, fields)


class LineExamples(ExampleFiles):
    """Lines of text, each with its label in front, and rows of matrix files.

    The number of columns, and whether entries have fields, may be known only after reading: what
    the first file shows holds for all, and a pipe is looked at while it is read.
    """

    def __init__(
        self,
        files: Sequence[str],
        paths: Sequence[str],
        needs_labels: bool,
        lines: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._files, self._paths, self._needs_labels = files, paths, needs_labels
        self._reader = ExampleReader(needs_labels=needs_labels, may_skip=False, **lines)
        self._declared = bool(self._reader.columns)
        self._expected_by = ""
        self.names = []
        self.rows = self.entries = -1
        self.columns = UNKNOWN
        self.name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        self.flags = Flags.VALUES | Flags.WIDE
        self._reported: list[NDArray[Any]] = []
        self._weights: list[NDArray[np.float32]] = []
        self.by_name = self.has_fields = self._declared
        self._is_plain = False
        if self._declared:
            self.columns, self.field_num = 0, self._reader.field_num
            self.flags |= Flags.HASHED | Flags.FIELDS
        self._is_pipe = any(map(is_pipe, files))
        if not self._is_pipe:
            self._look()

    def _look(self) -> None:
        """Learn format, fields and columns from the beginning of the first file."""
        path = self._files[0]
        with read_errors(path), open_input(path) as file:
            head = file.read(HEAD_BYTES)
            refuse_foreign(head, path)
            if not is_matrix(head) and not self._declared:
                lines = head + file.readline()
                while not self._reader.learn_format(lines) and (lines := file.readline()):
                    pass
                self.has_fields = self._reader.format == "libffm"
                return
            if not is_matrix(head) or is_url(path) or not file.seekable():
                return
            header = read_header(head[:HEADER_BYTES], file.seek(0, 2), path)
        self.by_name = Flags.HASHED in header.flags
        self.has_fields = Flags.FIELDS in header.flags
        if self.by_name:
            self.columns = 0
            self.flags |= Flags.HASHED
        elif header.columns:
            self.columns = header.columns

    def leave_out_fields(self) -> None:
        """Drop the fields of entries, if the files have any."""
        self._is_plain, self.has_fields = True, False
        self.flags &= ~Flags.FIELDS

    @property
    def is_counted(self) -> bool:
        return self.columns < UNKNOWN

    def expect(self, columns: int, who: str) -> None:
        """Refuse keys beyond the `columns` that a model, `who` in messages, was fitted on."""
        if not self.columns < UNKNOWN or self.columns <= columns:
            self.columns, self._expected_by = columns, who

    def count_columns(self) -> None:
        """Read the files once to count the columns: the largest key + 1.

        DataError: a pipe, which cannot be read again.
        """
        if self._is_pipe:
            raise DataError(
                f"X: {self.name} is a pipe, whose number of columns is known only at its end, and "
                "dense examples need it before: give a file"
            )
        self.columns = 0
        for piece in self._read(False):
            if piece.keys is not None and len(piece.keys):
                self.columns = max(self.columns, int(piece.keys.max()) + 1)

    def pieces(self) -> Iterator[ExampleRows]:
        self._reported.clear()
        self._weights.clear()
        yield from self._read(self.dense)

    def labels(self) -> NDArray[Any]:
        """The labels of the pieces read so far; int64 if all of them are whole."""
        labels = np.concatenate(self._reported) if self._reported else np.empty(0, np.float32)
        return _whole_if_all(labels.astype(np.float64))

    def weights(self) -> NDArray[np.float32] | None:
        return np.concatenate(self._weights) if any(map(len, self._weights)) else None

    def _read(self, dense: bool) -> Iterator[ExampleRows]:
        for data, path, start in self._texts():
            if is_matrix(data) and read_header(data, len(data), path).dense:
                piece = self._of_dense(data, path, dense)
            else:
                read = self._reader.read(data, path, start)
                self._add(read.labels, read.weights, path)
                fields = read.fields if len(read.fields) else None
                piece = ExampleRows(read.ptr, read.keys, read.values, fields)
                if dense:
                    self._check_keys(read.keys, path)
                    piece = dense_piece(read.ptr, read.keys, read.values, self.columns)
            if piece.ptr is not None:
                piece = self._with_fields(piece, path)
            yield piece

    def _with_fields(self, piece: ExampleRows, path: str) -> ExampleRows:
        """The piece, with fields in its entries if and only if all other pieces have them."""
        assert piece.ptr is not None
        assert piece.keys is not None
        fields = piece.fields
        if self._fields is not None or self._expected_by:
            self._check_keys(piece.keys, path)
        if self._fields is not None:
            fields = self._fields[piece.keys.astype(np.int64)]
        elif fields is None and self.has_fields and piece.entries:
            raise DataError(
                f"X: {path} has no fields, but the files before it have: give files of one format"
            )
        elif fields is None and self.has_fields:
            fields = np.empty(0, np.int32)
        elif not self.has_fields:
            if self._is_pipe and fields is not None and not self._is_plain:
                self.has_fields, self.flags = True, self.flags | Flags.FIELDS
            else:
                fields = None
        if fields is not None:
            self.flags |= Flags.FIELDS
            self.field_num = max(self.field_num, int(fields.max(initial=-1)) + 1)
        return ExampleRows(piece.ptr, piece.keys, piece.values, fields)

    def _check_keys(self, keys: NDArray[Any], path: str) -> None:
        if len(keys) and int(keys.max()) >= self.columns:
            wanted = f"expected column numbers below {self.columns:,}"
            if self._expected_by:
                wanted = (
                    f"{self._expected_by} was fitted on columns 0 to {self.columns - 1:,}. Lines "
                    "that number from 1 go with a model of such lines, or of a matrix with an "
                    "empty column 0"
                )
            raise DataError(f"X: {path} has column {int(keys.max()):,}: {wanted}")

    def _of_dense(self, data: bytes, path: str, dense: bool) -> ExampleRows:
        """The rows of a block of a dense matrix file, as they are or (not `dense`) sparse."""
        header = read_header(data, len(data), path)
        if self._needs_labels:
            check_labels(data, path)
        self._add(header.array(data, "labels"), header.array(data, "weights"), path, header.rows)
        values = header.array(data, "values")
        if Flags.BYTES in header.flags:
            values = values.astype(np.float32)
        if dense:
            if header.columns != self.columns:
                raise DataError(
                    f"X: {path} has rows of {header.columns:,} values: expected {self.columns:,}"
                )
            return ExampleRows(None, None, values, None, header.rows)
        x = values.reshape(header.rows, header.columns)
        rows, columns = np.nonzero(x)
        ptr = np.searchsorted(rows, np.arange(len(x) + 1)).astype(np.int64)
        return ExampleRows(ptr, columns.astype(np.uint64), x[rows, columns], None)

    def _add(
        self, labels: NDArray[Any], weights: NDArray[Any], path: str, rows: int | None = None
    ) -> None:
        count = len(labels) if rows is None else rows
        self._reported.append(np.asarray(labels) if len(labels) else np.zeros(count, np.float32))
        if self._weights and any(map(len, self._weights)) != bool(len(weights)) and count:
            raise DataError(
                f"X: {path}: some files have weights of examples, others none: write all of them "
                "with sample_weight, or none"
            )
        self._weights.append(np.asarray(weights))

    def _texts(self) -> Iterator[tuple[bytes, str, int]]:
        if self._is_pipe:
            for path in self._files:
                with Path(path).open("rb") as stream:
                    yield from lines_of(stream, path)
            return
        with Scratch("", 0) as scratch:
            for block in cut(expand(self._paths, scratch), BLOCK_BYTES):
                data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
                if data:
                    yield data, block.path, block.start


def lines_of(stream: Any, path: str) -> Iterator[tuple[bytes, str, int]]:
    """Whole lines of a stream, piece by piece: data, `path`, and offset.

    From a terminal one line at a time, so that each is answered at once.  DataError: a matrix file,
    whose blocks need seeking.
    """
    start = 0
    for data in whole_lines(stream, path, 1 if stream.isatty() else BLOCK_BYTES, text=False):
        if start == 0 and is_matrix(data):
            raise DataError(f"{path} is a matrix file: name the file instead of a pipe")
        yield data, path, start
        start += len(data)


def _has_names(path: str, names: Sequence[str], declared: Sequence[str]) -> bool:
    """Whether a table's first line names these columns, so that it is read by name.

    If the line has as many cells as the training's lines had, all declared names have to be in it:
    a row may have a few of them as its cells by chance.
    """
    from snailps.data.formats.separated import first_cells

    cells = first_cells(path)
    if cells is None:
        return True
    columns = columns_of(declared)
    if len(cells) == len(columns):  # as a row has
        names = [column.name for column in columns if column.kind is not ColumnKind.IGNORE]
    return set(names) <= set(cells)


def is_named(declared: str) -> bool:
    """Whether a declared column makes features by name: it is a feature, but no plain number."""
    column = columns_of([declared], needs_label=False)[0]
    return column.is_feature and (column.kind is not ColumnKind.NUMERIC or column.log)


class _TableLabels:
    """Labels of tables in files of any format: all numbers, or all texts."""

    def __init__(self, are_numbers: bool, column: str) -> None:
        self._are_numbers, self._column = are_numbers, column
        self._parts: list[NDArray[Any]] = []
        self._shared: dict[Any, Any] = {}
        """Each different label once: millions of rows share a few texts."""
        self._paths: dict[str, str] = {}
        """The first file with labels of each kind, for the error of both."""

    def clear(self) -> None:
        self._parts.clear()
        self._shared.clear()
        self._paths.clear()

    def add(self, labels: NDArray[Any] | list[Any], path: str, first: int) -> None:
        """Add the labels of consecutive rows; `first` is the number of the first one in `path`."""
        if isinstance(labels, list):
            are_texts = all(label is None or isinstance(label, str) for label in labels)
            read = self._cells if are_texts and self._are_numbers else self._values
            labels = read(labels, path, first)
        self._look_at(labels, path)
        self._parts.append(labels)

    def _cells(self, labels: list[Any], path: str, first: int) -> NDArray[Any]:
        """Labels as numbers, from texts such as cells of CSV."""
        if all(label in TRUTH for label in labels):
            return np.array([TRUTH[label] for label in labels], np.bool_)
        try:
            return _numbers(labels)
        except ValueError:
            row = next(
                place for place, label in enumerate(labels) if label and not is_number(label)
            )
            like = self._paths.get("numbers", path)
            raise DataError(
                f"{path}: column {self._column!r}, row {first + row:,} is {labels[row]!r:.60}: "
                f"expected a number as label, as in the first rows of {like}"
            ) from None

    def _values(self, labels: list[Any], path: str, first: int) -> NDArray[Any]:
        """Labels of any type as objects, each different one once in memory."""
        values, share = np.empty(len(labels), object), self._shared.setdefault
        try:
            values[:] = [
                None if label == "" else share((type(label), label), label) for label in labels
            ]
        except TypeError:
            raise DataError(
                f"{path}: column {self._column!r} has lists: expected one label per row"
            ) from None
        return values

    def _look_at(self, labels: NDArray[Any], path: str) -> None:
        """Refuse texts beside numbers."""
        sample = labels if labels.dtype == object else labels[:1]
        for is_text in {isinstance(label, str) for label in sample if label is not None}:
            self._paths.setdefault("texts" if is_text else "numbers", path)
        if len(self._paths) > 1:
            got = " and ".join(f"{kind} in {where}" for kind, where in self._paths.items())
            raise DataError(
                f"column {self._column!r}: expected labels of one kind, got {got}: convert them"
            )

    def whole(self) -> NDArray[Any]:
        """All labels; int64 if they are whole numbers."""
        labels = np.concatenate(self._parts) if self._parts else np.empty(0)
        if labels.dtype.kind != "f" or not np.isfinite(labels).all():
            return labels
        return _whole_if_all(labels)


def _whole_if_all(numbers: NDArray[Any]) -> NDArray[Any]:
    """The numbers as int64 if all are whole and below 2^53; else unchanged."""
    is_whole = (numbers == np.floor(numbers)).all() and np.abs(numbers).max(initial=0) < 1 << 53
    return numbers.astype(np.int64) if is_whole else numbers


def _numbers(cells: list[Any]) -> NDArray[Any]:
    """Numbers of cells: int64 if all are whole, else float64, NaN for empty ones."""
    numbers = np.array([as_float(TRUTH.get(cell, cell or "nan")) for cell in cells], np.float64)
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (TypeError, ValueError, OverflowError):
        return numbers
