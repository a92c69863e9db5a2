"""Writes matrix files of Python's data: sparse and dense matrices, tables, lists of dicts.

    X, y -> rows_source -> pieces of rows -> sections of the file, piece by piece
         -> write_matrix -> Written, a user's file
                      -> spool_matrix, spool_rows -> Spooled, a driver's
                      -> Draft, then its labels -> Spooled

Memory stays bounded: a piece has about a million entries.  If the number of entries is unknown
beforehand (missing values, dicts), sections are separate files first.  The format is in
`matrix_file`, sources of pieces in `matrix_sources`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.atomic import NewFile, Unfinished
from snailps.data.elements import column_of, refuse_masked
from snailps.data.feature_rows import RowsSource
from snailps.data.host_cache import HostCache, ScratchFile
from snailps.data.matrix_file import KEY_LIMIT, Flags, Header, first_not_weight, floats
from snailps.data.matrix_sources import check_finite, rows_source
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass
from snailps.errors import DataError

Progress = Callable[[int, int | None], None]
"""Called with the rows written so far and the number of all, None if unknown."""

COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A matrix file that was written, of `units` examples with `entries` entries together.

    `name` describes the data, for messages.
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
    """Write examples to a file that models of examples read like LIBSVM text, only faster.

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
        Field of each column of a matrix, for field-aware models; of tables the column's number.
    dense : bool
        Keep all values, of a matrix or of columns of numbers, for models of dense examples.  An
        array of uint8 stays one.
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

            def make(name: str) -> Unfinished:
                file = Unfinished(Path(os.path.realpath(path)), name, os.O_RDWR)
                stack.callback(file.close)
                return file

            file = make("part")
            header = write_rows(file, make, source, content, on_progress)
            file.publish()
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
    on_progress: Progress | None = None,
) -> Spooled:
    """Write examples, given as to `write_matrix`, into one scratch file; see `spool_rows`."""
    source = rows_source(X, label=label, fields=fields, dense=dense)
    content = _content_of(source, y, label, sample_weight)
    with Draft(source, folder, bytes_max, content, on_progress) as draft:
        return draft.finish()


def spool_rows(
    source: RowsSource,
    y: Any = None,
    folder: str = "",
    *,
    sample_weight: Any = None,
    bytes_max: int = 0,
) -> Spooled:
    """Write examples into one scratch file, an input like any other.

    `folder`: the scratch folder; empty: the one of this user on this host.  `bytes_max`: limit on
    all files in the folder, in bytes; 0: half of the disk's space without them.  DataError: as in
    `write_matrix`, or the limit does not allow it.
    """
    content = _content_of(source, y, "", sample_weight)
    with Draft(source, folder, bytes_max, content) as draft:
        return draft.finish()


class _RowsWriter:
    """Writes a file's rows before their labels and weights, which may be known beforehand.

    `file` is empty.  If its length is unknown, each section is a file of `make` until `finish`.
    """

    def __init__(
        self,
        file: NewFile,
        make: Callable[[str], NewFile],
        source: RowsSource,
        content: _Content | None,
    ) -> None:
        self._file, self._make, self._source = file, make, source
        self._header: Header | None = None
        self.rows = self._entries = 0
        self._labels: list[NDArray[Any]] = []  # labels that come with the rows
        self._at: dict[str, int] = {}
        self._parts: dict[str, NewFile] = {}
        if content is not None and min(source.rows, source.entries) >= 0:
            self._header = self._of(source.flags, content, source.rows, source.entries)
            self._at = {name: one.start for name, one in self._header.sections().items()}
            file.grow(self._header.size)
        self._ones = self._header is None

    def write(self, on_progress: Progress | None) -> None:
        source = self._source
        if not source.dense:
            self._append("ptr", np.zeros(1, np.int64))
        for piece in source.pieces():
            if piece.labels is not None:
                self._labels.append(piece.labels)
            if piece.ptr is not None:
                self._append("ptr", piece.ptr[1:] + self._entries)
            for name in ("keys", "values", "fields"):
                if (array := getattr(piece, name)) is not None:
                    self._append(name, array)
            if piece.values is not None:
                self._ones = self._ones and bool((piece.values == 1).all())
            self.rows, self._entries = self.rows + piece.rows, self._entries + piece.entries
            if on_progress is not None:
                on_progress(self.rows, source.rows if source.rows >= 0 else None)
        if self.rows == 0:
            raise DataError(f"X: {source.name} has no rows")

    def finish(self, content: _Content) -> Header:
        source, header = self._source, self._header
        if header is not None:
            assert (self.rows, self._entries) == (header.rows, header.nonzeros)
        else:
            if self._labels:
                content = content._replace(labels=_narrow(np.concatenate(self._labels)))
            is_plain = self._ones and not source.dense
            flags = source.flags & ~Flags.VALUES if is_plain else source.flags
            header = self._of(flags, content, self.rows, self._entries)
        for name, array in content._asdict().items():
            if len(array):
                self._append(name, array)
        # Extend the file only as parts are removed.
        for name, section in header.sections().items():
            if name in self._parts:
                self._file.grow(section.stop)
                self._copy(self._parts[name].fileno(), section.start)
                self._parts[name].close()
        self._file.grow(header.size)
        self._file.write_at(header.pack(), 0)
        return header

    def _of(self, flags: Flags, content: _Content, rows: int, entries: int) -> Header:
        if len(content.weights):
            flags |= Flags.WEIGHTS
        if content.labels.dtype == np.float64:
            flags |= Flags.WIDE_LABELS
        columns = self._source.columns if self._source.columns <= KEY_LIMIT else 0
        return Header(flags, min(1, len(content.labels)), rows, entries, columns)

    def _append(self, name: str, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if name in self._at:
            self._file.write_at(data, self._at[name])
            self._at[name] += len(data)
            return
        if name not in self._parts:
            self._parts[name] = self._make(name)
        self._parts[name].write(data)

    def _copy(self, part: int, start: int) -> None:
        done = 0
        while step := os.pread(part, COPY_BYTES, done):
            self._file.write_at(step, start + done)
            done += len(step)


def write_rows(
    file: NewFile,
    make: Callable[[str], NewFile],
    source: RowsSource,
    content: _Content | None = None,
    on_progress: Progress | None = None,
) -> Header:
    """Write a matrix file of rows; without `content` their pieces have their labels, if any.

    `file` is empty; `make` gives other files by their purpose, for sections of unknown length.
    """
    writer = _RowsWriter(file, make, source, content)
    writer.write(on_progress)
    return writer.finish(content or _NO_CONTENT)


class Draft(contextlib.ExitStack):
    """A scratch file that has its rows, and gets their labels and weights at the end.

    For rows that can be read only once, or whose labels are numbered when all are known.  Its end
    removes what was written unless `finish` gave it away.  `source` has pieces without labels;
    the others are as in `spool_rows`.  `content`: labels and weights, if they are known before.
    """

    def __init__(
        self,
        source: RowsSource,
        folder: str = "",
        bytes_max: int = 0,
        content: _Content | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self._source, self._content = source, content
        cache = HostCache(folder, bytes_max)

        def make(name: str) -> ScratchFile:
            return self.enter_context(cache.new_file(f"writing {source.name} ({name})"))

        try:
            self._file = self.enter_context(cache.new_file(f"writing {source.name}"))
            self._body = _RowsWriter(self._file, make, source, content)
            self._body.write(on_progress)
        except BaseException:
            self.close()
            raise
        self.rows = self._body.rows
        if content is None:
            source.rows = self.rows

    def finish(self, y: Any = None, sample_weight: Any = None) -> Spooled:
        """Complete the file with y and weights, finite numbers, one a row."""
        content = self._content or _content_of(self._source, y, "", sample_weight)
        header = self._body.finish(content)
        return Spooled(self._file, header.rows, self._source.name)


class _Content(NamedTuple):
    """Labels and weights of rows; empty: none."""

    labels: NDArray[Any]
    """Float32, or float64 if a label needs it."""
    weights: NDArray[np.float32]


_NO_CONTENT = _Content(np.zeros(0, np.float32), np.zeros(0, np.float32))


def _content_of(source: RowsSource, y: Any, label: str, sample_weight: Any) -> _Content:
    """Labels and weights of the rows, checked; refuses both `y` and `label`."""
    if label and y is not None:
        raise DataError(f"y: expected none with label={label!r}, the labels' column")
    labels = _labels_of(source.labels() if label else y, source)
    if sample_weight is None:
        return _NO_CONTENT._replace(labels=labels)
    sample_weight = column_of(sample_weight, "sample_weight")
    refuse_masked(sample_weight, "sample_weight")
    given = np.asarray(sample_weight)
    if given.dtype.kind not in "biuf" or given.ndim != 1 or len(given) != max(0, source.rows):
        raise DataError(
            f"sample_weight: expected {source.rows:,} numbers, as many as X has rows, got "
            f"{given.dtype} of shape {given.shape}"
        )
    weights = floats(given)
    if (at := first_not_weight(weights)) >= 0:
        raise DataError(
            f"sample_weight: number {at:,} is {given[at]}: expected finite numbers of at least 0"
        )
    return _Content(labels, weights)


def _labels_of(y: Any, source: RowsSource) -> NDArray[Any]:
    if y is None:
        return np.zeros(0, np.float32)
    y = column_of(y, "y")
    refuse_masked(y, "y")
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
    found = _narrow(given)
    check_finite(floats(found), lambda at: f"label {at:,}", "y")
    return found


def _narrow(given: NDArray[Any]) -> NDArray[Any]:
    """Labels as float32 if they are exact, else as float64."""
    labels, narrow = np.asarray(given, np.float64), floats(given)
    return narrow if np.array_equal(narrow, labels, equal_nan=True) else labels


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number, np.bool_)) and value == value
