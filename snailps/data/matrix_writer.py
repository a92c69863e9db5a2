"""Writes matrix files of Python's data: sparse and dense matrices, tables, lists of dicts.

    X, y -> rows_source -> pieces of rows -> sections of the file, piece by piece
         -> write_matrix -> Written, a user's file; spool_matrix -> Spooled, a driver's
    RowsSource -> Draft, then its labels -> Spooled

Memory stays bounded: a piece has about a million entries.  A matrix is not copied where it has the
file's types.  Where the number of entries is not known beforehand (missing values, dicts), sections
are written beside each other, then put together.  The format is in `matrix_file`, tables and dicts
in `feature_rows`.  No library is imported here: the objects' own methods are used.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.data._matrix import first_falling, first_not_finite, wide_keys
from snailps.data.feature_rows import Piece, RowsSource, features_of
from snailps.data.matrix_file import (
    KEY_LIMIT,
    Flags,
    Header,
    Labels,
    Section,
    first_not_weight,
)
from snailps.data.scratch import Scratch, ScratchFile
from snailps.data.spool import Spooled
from snailps.errors import DataError

Progress = Callable[[int, int | None], None]
"""Called with the rows written so far and the number of all, None if it is not known."""

PIECE_ENTRIES = 1 << 20
COPY_BYTES = 1 << 20
CLASSES_MAX = 1 << 24
"""Whole numbers up to here are exact in float32."""


@dataclass(frozen=True, slots=True)
class Written:
    """A matrix file that was written.

    Attributes
    ----------
    path : str
    bytes, units, entries : int
        Length, number of examples, number of their entries.
    name : str
        What it was made of, for messages.
    """

    path: str
    bytes: int
    units: int
    entries: int
    name: str


def write_matrix(
    path: str | Path,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    label: str = "",
    fields: Sequence[int] | NDArray[Any] | None = None,
    dense: bool = False,
    on_progress: Progress | None = None,
) -> Written:
    """Writes examples to a file that models of examples read like LIBSVM text, only faster.

    Parameters
    ----------
    path : path
        Replaced when it is complete.
    X : object
        A matrix of `scipy.sparse`; a NumPy array of two axes, whose zeros are left out; a pandas or
        polars DataFrame or a pyarrow Table, whose columns of numbers and of strings become features
        by their names, as in CSV files; a list of dicts from names to numbers or strings.  Missing
        values of tables and dicts make no entry.
    y : array-like, optional
        Labels, numbers.
    sample_weight : array-like, optional
        A weight for each example, 0 and above; 1 by default.
    label : str
        Instead of `y`: name of a table's column.
    fields : sequence of int, optional
        Field of each column of a matrix, for field-aware models.  Tables have their own: the number
        of the column.
    dense : bool
        Keep all values, of a matrix or of columns of numbers, for models of dense examples.  An
        array of uint8 stays one, whose values models take for 255ths, as those of images.
    on_progress : callable, optional
        See `Progress`.

    Returns
    -------
    Written

    Raises
    ------
    DataError
        The data has another form, a value is not finite or outside float32's range, labels are
        missing or not as many as rows, or the file cannot be written.

    Examples
    --------
    >>> from snailps import write_matrix
    >>> write_matrix("clicks.mx", [{"age": 31, "city": "Berlin"}, {"age": 44}], [1, 0]).units
    2
    """
    source = rows_source(X, label=label, fields=fields, dense=dense)
    content = _content_of(source, y, label, sample_weight)
    try:
        with contextlib.ExitStack() as stack:

            def make(name: str) -> _PlainFile:
                file = _PlainFile(Path(path), name)
                stack.callback(file.close)
                return file

            file = make("part")
            header = _write(file, make, source, content, on_progress)
            file.path.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    return Written(str(path), header.size, header.rows, header.nonzeros, source.name)


def spool_matrix(
    X: Any,
    y: Any = None,
    folder: str = "",
    *,
    sample_weight: Any = None,
    bytes_max: int = 0,
    label: str = "",
    fields: Sequence[int] | NDArray[Any] | None = None,
    dense: bool = False,
    keep_bytes: bool = True,
    on_progress: Progress | None = None,
) -> Spooled:
    """Writes examples into one scratch file, which is an input as any other.

    Parameters
    ----------
    X, y, sample_weight, label, fields, dense, on_progress
        As of `write_matrix`.
    folder : str
        Scratch folder; empty: that of this user on this host.
    bytes_max : int
        Limit on all files in the folder, as that of `Scratch`.
    keep_bytes : bool
        False: values of a dense array of uint8 are what they are, not 255ths.

    Raises
    ------
    DataError
        As `write_matrix`, or the limit does not allow it.
    """
    source = rows_source(X, label=label, fields=fields, dense=dense, keep_bytes=keep_bytes)
    content = _content_of(source, y, label, sample_weight)
    scratch = Scratch(folder, bytes_max)
    purpose = f"writing {source.name}"
    with contextlib.ExitStack() as stack:

        def make(name: str) -> ScratchFile:
            part = scratch.new_file(f"{purpose} ({name})")
            stack.callback(part.close)
            return part

        try:
            file = scratch.new_file(purpose)
            try:
                header = _write(file, make, source, content, on_progress)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise DataError(
                f"cannot write to {scratch.folder}: {error.strerror or error}. Make room, or "
                "choose another scratch folder"
            ) from error
    return Spooled(file, header.rows, source.name)


def write_rows(file: FileWriter, make: Callable[[str], FileWriter], source: RowsSource) -> Header:
    """Writes a matrix file of rows whose pieces have their labels, if there are any.

    Parameters
    ----------
    file : FileWriter
        An empty one.
    make : callable
        Gives other files by their purpose, for sections whose length is not known beforehand.
    source : RowsSource

    Raises
    ------
    DataError
        There are no rows, a value cannot be one of an example, or the files' limit is reached.
    """
    return _write(file, make, source, _NO_CONTENT, None)


def rows_source(
    X: Any,
    *,
    label: str = "",
    fields: Sequence[int] | NDArray[Any] | None = None,
    dense: bool = False,
    keep_bytes: bool = True,
) -> RowsSource:
    """What gives the rows of an object in pieces; parameters and errors as of `spool_matrix`.

    A `RowsSource` stays as it is.
    """
    if isinstance(X, RowsSource):
        return X
    modules = {cls.__module__.partition(".")[0] for cls in type(X).__mro__}
    if "scipy" in modules and hasattr(X, "tocsr"):
        if dense and fields is not None:
            raise DataError("fields: expected none with dense=True")
        found: RowsSource = DenseSparseRows(X) if dense else SparseRows(X, fields)
    elif isinstance(X, np.ndarray):
        if dense and fields is not None:
            raise DataError("fields: expected none with dense=True")
        found = DenseRows(X, dense, fields, keep_bytes)
    else:
        found = features_of(X, modules, label, dense)
        if fields is not None:
            raise DataError(f"fields: expected none for {found.name}: its columns are its fields")
    if label and not found.has_label:
        raise DataError(f"label: {found.name} has no columns of names: pass the labels as y")
    return found


class SparseRows(RowsSource):
    """Rows of a matrix of `scipy.sparse`."""

    def __init__(self, X: Any, fields: Sequence[int] | NDArray[Any] | None = None) -> None:
        shape = X.shape
        if len(shape) != 2:
            raise DataError(f"X: expected two axes, got shape {shape}")
        self.rows, self.columns = int(shape[0]), int(shape[1])
        self.name = f"a {type(X).__name__} of {self.rows:,} x {self.columns:,}"
        if X.format != "csr":
            X = X.tocsr()
        self._take(X)
        if not self._is_summed(X):
            self._take(_summed(X))
        self._fields = _fields_of(fields, self.columns)
        self.flags = Flags.FIELDS if self._fields is not None else Flags(0)
        if not self._all_ones():
            self.flags |= Flags.VALUES
        if self.columns > 1 << 32:
            self.flags |= Flags.WIDE
        elif self.columns == 0 and self.entries:
            raise DataError("X has entries, but no columns")

    def _take(self, X: Any) -> None:
        """The arrays of a CSR matrix, which are checked."""
        self._ptr, self._keys = np.asarray(X.indptr, np.int64), np.asarray(X.indices)
        self._values = np.asarray(X.data)
        if self._values.dtype.kind not in "biuf":
            raise DataError(f"X: expected numbers, got {self._values.dtype}")
        ptr = self._ptr
        if len(ptr) != self.rows + 1 or first_falling(ptr) >= 0 or ptr[0] < 0:
            raise DataError("X: its row pointers (indptr) are not those of a CSR matrix")
        self.entries = int(ptr[-1] - ptr[0])
        if ptr[-1] > min(len(self._keys), len(self._values)):
            raise DataError(f"X: its row pointers end at entry {ptr[-1]:,}, but it has fewer")

    def _is_summed(self, X: Any) -> bool:
        """Whether no row has an entry twice: models would take it for two features."""
        return self.entries < 2 or bool(X.has_canonical_format)

    def _all_ones(self) -> bool:
        values = self._values[self._ptr[0] : self._ptr[-1]]
        firsts = range(0, len(values), PIECE_ENTRIES)
        return all((values[at : at + PIECE_ENTRIES] == 1).all() for at in firsts)

    def pieces(self) -> Iterator[Piece]:
        """Views, where the matrix has the file's types."""
        ptr = self._ptr
        key_type = np.dtype(np.uint64 if Flags.WIDE in self.flags else np.uint32)
        for first, last in _even(ptr):
            a, b = int(ptr[first]), int(ptr[last])
            keys, fields = self._keys[a:b], None
            if b > a and not 0 <= int(keys.min()) <= int(keys.max()) < self.columns:
                raise DataError(
                    f"X: expected column numbers from 0 to {self.columns - 1:,}, got "
                    f"{int(keys.min())} to {int(keys.max())} in rows {first:,} to {last - 1:,}"
                )
            if keys.dtype.itemsize == key_type.itemsize:
                stored = np.ascontiguousarray(keys).view(key_type)
            else:
                stored = keys.astype(key_type)
            if self._fields is not None:
                fields = self._fields[keys]
            values = _floats(self._values[a:b]) if Flags.VALUES in self.flags else None
            if values is not None:
                _check_finite(values, lambda at: f"row {_row_of(ptr, first, at)}", "X")  # noqa: B023
            yield Piece(ptr[first : last + 1] - ptr[first], stored, values, fields)


def _summed(X: Any) -> Any:
    """X without entries that come twice, or X itself if it is only not sorted."""
    ptr = np.asarray(X.indptr)
    first, last = int(ptr[0]), int(ptr[-1])
    try:
        copy = type(X)(
            (X.data[first:last].copy(), X.indices[first:last].copy(), ptr - ptr[0]), shape=X.shape
        )
        copy.sum_duplicates()
    except (TypeError, ValueError):  # `pieces` tells what is wrong
        return X
    return X if copy.nnz == last - first else copy


class DenseSparseRows(RowsSource):
    """Rows of a matrix of `scipy.sparse` with all their values."""

    def __init__(self, X: Any) -> None:
        sparse = SparseRows(X)
        self.name, self.rows, self.columns = sparse.name, sparse.rows, sparse.columns
        self.entries = self.rows * self.columns
        self.flags = Flags.DENSE | Flags.VALUES
        self._sparse = sparse
        self._step = max(1, PIECE_ENTRIES // max(1, self.columns))

    def pieces(self) -> Iterator[Piece]:
        """Some rows at a time, zeros but for the entries."""
        for piece in self._sparse.pieces():
            assert piece.ptr is not None
            assert piece.keys is not None
            for first in range(0, piece.rows, self._step):
                ptr = piece.ptr[first : first + self._step + 1]
                a, b = int(ptr[0]), int(ptr[-1])
                x = np.zeros((len(ptr) - 1, self.columns), np.float32)
                rows = np.repeat(np.arange(len(x)), np.diff(ptr))
                x[rows, piece.keys[a:b]] = 1 if piece.values is None else piece.values[a:b]
                yield Piece(None, None, x.ravel(), None, len(x))


class DenseRows(RowsSource):
    """Rows of an array of two axes, its zeros left out unless it is to stay dense."""

    def __init__(
        self,
        X: NDArray[Any],
        dense: bool,
        fields: Sequence[int] | NDArray[Any] | None = None,
        keep_bytes: bool = True,
    ) -> None:
        if X.ndim < 2 or (X.ndim > 2 and not dense):
            raise DataError(f"X: expected two axes, got shape {X.shape}: a row an example")
        if X.dtype.kind not in "biuf":
            raise DataError(f"X: expected numbers, got an array of {X.dtype}")
        self.name = f"an array of {' x '.join(f'{size:,}' for size in X.shape)}"
        self._x = X.reshape(len(X), math.prod(X.shape[1:]))
        self.rows, self.columns = self._x.shape
        self._step = max(1, PIECE_ENTRIES // max(1, self.columns))
        self._fields = _fields_of(fields, self.columns)
        if dense:
            self.flags = Flags.DENSE | Flags.VALUES
            if X.dtype == np.uint8 and keep_bytes:
                self.flags |= Flags.BYTES
            self.entries = self._x.size
        else:
            self.flags = Flags.VALUES
            if self._fields is not None:
                self.flags |= Flags.FIELDS
            firsts = range(0, self.rows, self._step)
            self.entries = sum(
                int(np.count_nonzero(self._x[at : at + self._step])) for at in firsts
            )

    def pieces(self) -> Iterator[Piece]:
        """Copies of some rows at a time."""
        for first in range(0, self.rows, self._step):
            x = self._x[first : first + self._step]
            if Flags.BYTES in self.flags:
                yield Piece(None, None, np.ascontiguousarray(x).ravel(), None, len(x))
                continue
            given, x = x, _floats(x)
            _check_finite(
                x.ravel(),
                lambda at: f"row {first + at // self.columns:,}, column {at % self.columns:,}",  # noqa: B023
                "X",
            )
            if Flags.DENSE in self.flags:
                yield Piece(None, None, x.ravel(), None, len(x))
                continue
            rows, columns = np.nonzero(given)  # also what is so small that it becomes 0
            ptr = np.searchsorted(rows, np.arange(len(x) + 1))
            fields = None if self._fields is None else self._fields[columns]
            yield Piece(ptr.astype(np.int64), columns.astype(np.uint32), x[rows, columns], fields)


class FileWriter(Protocol):
    """A file being written; a `ScratchFile`, or one at a place of its own."""

    def write(self, data: bytes) -> None:
        """Appends."""

    def grow(self, size: int) -> None:
        """Makes it so long."""

    def fileno(self) -> int:
        """Its descriptor."""

    def close(self) -> None:
        """Removes it."""


class _PlainFile:
    """A file beside the one that is to be, gone when it is closed unless it was renamed."""

    def __init__(self, beside: Path, name: str) -> None:
        hidden = f".{beside.name[:100]}.{secrets.token_hex(8)}.{name}"
        self.path = beside.with_name(hidden)
        self._file = self.path.open("x+b", buffering=0)

    def write(self, data: bytes) -> None:
        """Appends."""
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def grow(self, size: int) -> None:
        """Makes it so long."""
        self._file.truncate(size)

    def fileno(self) -> int:
        """Its descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Closes and removes it."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def _write(
    file: FileWriter,
    make: Callable[[str], FileWriter],
    source: RowsSource,
    content: _OfRows,
    on_progress: Progress | None,
) -> Header:
    """Writes all sections, then the header."""
    header = None
    if source.rows >= 0 and source.entries >= 0:
        flags = source.flags | _flags_of(content)
        header = Header(flags, content.kind, source.rows, source.entries, _columns(source))
    body = _Body(file, make, source, header)
    body.write(on_progress)
    return body.finish(content)


class _Body:
    """A file's rows, written before what there is of each besides: labels, weights.

    `known` is the header, if lengths are known beforehand.
    """

    def __init__(
        self,
        file: FileWriter,
        make: Callable[[str], FileWriter],
        source: RowsSource,
        known: Header | None,
    ) -> None:
        self._source, self._known = source, known
        self._sections = _Sections(file, known, make)
        self.rows = self._entries = 0
        self._ones = known is None
        self._told: list[NDArray[np.float32]] = []  # labels that come with the rows

    def write(self, on_progress: Progress | None) -> None:
        """Writes all rows."""
        source, sections = self._source, self._sections
        if not source.dense:
            sections.write("ptr", np.zeros(1, np.int64))
        for piece in source.pieces():
            if piece.labels is not None:
                self._told.append(piece.labels)
            if piece.ptr is not None:
                sections.write("ptr", piece.ptr[1:] + self._entries)
            if piece.keys is not None:
                sections.write("keys", piece.keys)
            if piece.values is not None:
                sections.write("values", piece.values)
                self._ones = self._ones and bool((piece.values == 1).all())
            if piece.fields is not None:
                sections.write("fields", piece.fields)
            self.rows, self._entries = self.rows + piece.rows, self._entries + piece.entries
            if on_progress is not None:
                on_progress(self.rows, source.rows if source.rows >= 0 else None)
        if self.rows == 0:
            raise DataError(f"X: {source.name} has no rows")

    def finish(self, content: _OfRows) -> Header:
        """Writes labels, weights and the header."""
        source, header = self._source, self._known
        labels, kind = content.labels, content.kind
        if header is not None:
            assert (self.rows, self._entries) == (header.rows, header.nonzeros)
        else:
            if self._told:
                labels = np.concatenate(self._told)
                kind = _kind_of(labels)
            is_plain = self._ones and not source.dense
            flags = source.flags & ~Flags.VALUES if is_plain else source.flags
            header = Header(
                flags | _flags_of(content), kind, self.rows, self._entries, _columns(source)
            )
        if kind:
            self._sections.write("labels", labels)
        if len(content.weights):
            self._sections.write("weights", content.weights)
        self._sections.finish(header)
        return header


def _flags_of(content: _OfRows) -> Flags:
    return Flags.WEIGHTS if len(content.weights) else Flags(0)


class Draft:
    """A scratch file that has its rows, and gets their labels and weights at the end.

    For rows that can be read only once, or whose labels are numbered when all are known.  A context
    manager that removes what it has written, unless `finish` gave it away.

    Parameters
    ----------
    source : RowsSource
        Its pieces have no labels; `rows` is set when all are read.
    folder, bytes_max, on_progress
        As of `spool_matrix`.

    Attributes
    ----------
    rows : int

    Raises
    ------
    DataError
        As `spool_matrix`.
    """

    def __init__(
        self,
        source: RowsSource,
        folder: str = "",
        bytes_max: int = 0,
        on_progress: Progress | None = None,
    ) -> None:
        self._source, self._parts = source, contextlib.ExitStack()
        scratch = Scratch(folder, bytes_max)

        def make(name: str) -> ScratchFile:
            part = scratch.new_file(f"writing {source.name} ({name})")
            self._parts.callback(part.close)
            return part

        self._file = scratch.new_file(f"writing {source.name}")
        self._is_kept = False
        try:
            self._body = _Body(self._file, make, source, None)
            self._body.write(on_progress)
        except BaseException:
            self.close()
            raise
        self.rows = source.rows = self._body.rows

    def finish(self, y: Any, sample_weight: Any = None) -> Spooled:
        """The complete file; y and weights are numbers, one a row.

        Raises
        ------
        DataError
            They are not as many as rows, or not finite; or the scratch folder is full.
        """
        content = _content_of(self._source, y, "", sample_weight)
        try:
            header = self._body.finish(content)
        except OSError as error:
            raise DataError(
                f"cannot write to {self._file.path.parent}: {error.strerror or error}. Make room, "
                "or choose another scratch folder"
            ) from error
        self._is_kept = True
        return Spooled(self._file, header.rows, self._source.name)

    def close(self) -> None:
        """Removes what was written and is not given away."""
        self._parts.close()
        if not self._is_kept:
            self._file.close()

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Sections:
    """The sections of a file being written, each from its beginning to its end.

    Without a header, each is a file of its own until `finish`.
    """

    def __init__(
        self, file: FileWriter, header: Header | None, make: Callable[[str], FileWriter]
    ) -> None:
        self._file, self._make = file, make
        self._parts: dict[str, FileWriter] = {}
        self._at: dict[str, int] | None = None
        if header is not None:
            self._at = {name: section.start for name, section in header.sections().items()}
            file.grow(header.size)

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Appends to a section."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if self._at is not None:
            self._at[name] = _put(self._file, self._at[name], data)
            return
        if name not in self._parts:
            self._parts[name] = self._make(name)
        self._parts[name].write(data.tobytes())

    def finish(self, header: Header) -> None:
        """Writes the header; puts sections together that are in parts."""
        if self._at is None:
            # Room is taken as parts give theirs back.
            for name, section in header.sections().items():
                self._file.grow(section.start + section.bytes)
                if name in self._parts:  # else it is empty
                    self._copy(self._parts[name].fileno(), section)
                    self._parts[name].close()
            self._file.grow(header.size)
        _put(self._file, 0, memoryview(header.pack()))

    def _copy(self, part: int, section: Section) -> None:
        done = 0
        while step := os.pread(part, COPY_BYTES, done):
            _put(self._file, section.start + done, memoryview(step))
            done += len(step)


def _put(file: FileWriter, at: int, data: memoryview) -> int:
    """Writes at a place; where it ends."""
    while data:
        count = os.pwrite(file.fileno(), data, at)
        data, at = data[count:], at + count
    return at


def _columns(source: RowsSource) -> int:
    return source.columns if source.columns <= KEY_LIMIT else 0


@dataclass(frozen=True, slots=True)
class _OfRows:
    """What rows have besides their values: labels, what these are, weights; arrays may be empty."""

    labels: NDArray[np.float32]
    kind: Labels
    weights: NDArray[np.float32]


_NO_CONTENT = _OfRows(np.zeros(0, np.float32), Labels.NONE, np.zeros(0, np.float32))


def _content_of(source: RowsSource, y: Any, label: str, sample_weight: Any) -> _OfRows:
    """Labels and weights of the rows.

    Raises
    ------
    DataError
        They are not as many as rows, or not finite numbers; both `y` and `label` are given.
    """
    if label and y is not None:
        raise DataError(f"y: expected none with label={label!r}, the labels' column")
    labels, kind = _labels_of(source.labels() if label else y, source)
    if sample_weight is None:
        return _OfRows(labels, kind, np.zeros(0, np.float32))
    given = np.asarray(sample_weight)
    if given.dtype.kind not in "biuf" or given.ndim != 1 or len(given) != max(0, source.rows):
        raise DataError(
            f"sample_weight: expected {source.rows:,} numbers, as many as X has rows, got "
            f"{given.dtype} of shape {given.shape}"
        )
    weights = _floats(given)
    if (at := first_not_weight(weights)) >= 0:
        raise DataError(
            f"sample_weight: number {at:,} is {given[at]}: expected finite numbers of at least 0"
        )
    return _OfRows(labels, kind, weights)


def _labels_of(y: Any, source: RowsSource) -> tuple[NDArray[np.float32], Labels]:
    """Labels as float32, and what they are."""
    if y is None:
        return np.zeros(0, np.float32), Labels.NONE
    given = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1:
        raise DataError(f"y: expected one axis, got shape {given.shape}")
    if source.rows >= 0 and len(given) != source.rows:
        raise DataError(
            f"y: expected {source.rows:,} labels, as many as X has rows, got {len(given):,}"
        )
    if given.dtype.kind == "O":
        odd = next((at for at, one in enumerate(given.tolist()) if not _is_number(one)), -1)
        if odd >= 0:
            raise DataError(
                f"y: label {odd:,} is {given[odd]!r:.80}: expected numbers. Number the classes "
                "from 0 on, and leave examples without a label out"
            )
    elif given.dtype.kind not in "biuf":
        raise DataError(f"y: expected numbers, got {given.dtype}: number the classes from 0 on")
    labels = _floats(given)
    _check_finite(labels, lambda at: f"label {at:,}", "y")
    return labels, _kind_of(labels)


def _kind_of(labels: NDArray[np.float32]) -> Labels:
    whole = (labels >= 0) & (labels < CLASSES_MAX) & (labels == np.floor(labels))
    return Labels.CLASSES if whole.all() else Labels.NUMBERS


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number, np.bool_)) and value == value


def _fields_of(
    fields: Sequence[int] | NDArray[Any] | None, columns: int
) -> NDArray[np.int32] | None:
    if fields is None:
        return None
    found = np.asarray(fields)
    if found.shape != (columns,) or found.dtype.kind not in "iu" or found.min(initial=0) < 0:
        raise DataError(
            f"fields: expected a number from 0 on for each of {columns:,} columns, got "
            f"{found.dtype} of shape {found.shape}"
        )
    if found.max(initial=0) >= 1 << 31:
        raise DataError(f"fields: expected numbers below 2^31, got {found.max()}")
    return found.astype(np.int32)


def _floats(values: NDArray[Any]) -> NDArray[np.float32]:
    """As float32; what does not fit becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32)


def _check_finite(values: NDArray[np.float32], where: Callable[[int], str], name: str) -> None:
    at = first_not_finite(values)
    if at >= 0:
        raise DataError(
            f"{name}: {where(at)} has value {_spelt(values[at])}: expected finite numbers within "
            "float32's range. Fill missing values, or leave such rows out"
        )


def _spelt(value: Any) -> str:
    """As scikit-learn has it: NaN, and inf."""
    return "NaN" if value != value else str(value)


def _even(ptr: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about `PIECE_ENTRIES` entries; no more rows than that, either."""
    first, rows = 0, len(ptr) - 1
    while first < rows:
        last = int(np.searchsorted(ptr, ptr[first] + PIECE_ENTRIES, side="right")) - 1
        last = min(max(first + 1, last), first + PIECE_ENTRIES, rows)
        yield first, last
        first = last


def _row_of(ptr: NDArray[Any], first: int, entry: int) -> str:
    row = int(np.searchsorted(ptr, ptr[first] + entry, side="right")) - 1
    return f"{row:,}"


def examples_of_piece(piece: Piece, source: RowsSource, hash_bits: int = 0) -> Examples:
    """A piece of rows as models have examples, without a file; labels are 0."""
    assert piece.ptr is not None
    assert piece.keys is not None
    hashed = Flags.HASHED in source.flags
    keys, _ = wide_keys(np.ascontiguousarray(piece.keys), KEY_LIMIT, hashed, hash_bits)
    values, fields = piece.values, piece.fields
    if values is None:
        values = np.ones(len(keys), np.float32)
    if fields is None:
        fields = np.empty(0, np.int32)
    labels = np.zeros(piece.rows, np.float32)
    return Examples(labels, piece.ptr, keys, values, np.ascontiguousarray(fields, np.int32), 0)
