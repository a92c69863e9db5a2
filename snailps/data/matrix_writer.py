"""Writes matrix files from data in memory: sparse and dense matrices, tables, lists of dicts.

    X, y -> rows_source -> pieces of rows -> sections of the file, piece by piece
         -> write_matrix -> Written, a user's file
         -> spool_matrix, spool_rows -> Spooled, a scratch file
         -> Draft, then its labels -> Spooled

Memory is bounded: a piece has about a million entries.  If the number of entries is unknown
beforehand (missing values, dicts), each section is a file of its own first.  `files/matrix_file.py`
owns the format, `matrix_sources` the sources of pieces.  Must not know what labels mean.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import column_of, library_of, refuse_masked
from snailps.data.feature_rows import RowsSource
from snailps.data.matrix_sources import check_finite, rows_source
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files.atomic import NewFile, Unfinished
from snailps.files.host_cache import HostCache, ScratchFile
from snailps.files.matrix_file import KEY_LIMIT, Flags, Header, first_not_weight, floats

Progress = Callable[[int, int | None], None]
"""Called with the number of rows written so far, and of all (None: unknown)."""

COPY_BYTES = 1 << 20
"""Bytes of a section that are copied at a time."""


@dataclass(frozen=True, slots=True)
class WrittenMatrix:
    """A matrix file that was written: `units` examples with `entries` entries in all.

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
) -> WrittenMatrix:
    """Write examples to a matrix file, which models of examples read faster than LIBSVM text.

    Parameters
    ----------
    path : path
        File to write; an existing one is replaced when the new one is complete.
    X : object
        A `scipy.sparse` matrix; a NumPy array of two axes, whose zeros are left out; a pandas or
        polars DataFrame or a pyarrow Table, whose columns of numbers and of strings become features
        by name, as in CSV files; a list of dicts from names to numbers or strings.  Missing values
        in tables and dicts make no entry.
    y : array-like, optional
        Labels: numbers, one per row.
    sample_weight : array-like, optional
        Weights of the examples, at least 0; 1 by default.
    label : str
        Column of a table that has the labels, instead of `y`.
    fields : sequence of int, optional
        Field of each column of a matrix, for field-aware models.  In tables a column is its own
        field.
    dense : bool
        Keep all values, for models of dense examples: of a matrix, or of a table of numbers.  An
        array of uint8 stays uint8.
    on_progress : callable, optional
        Called with the number of rows written so far, and of all (None: unknown).

    Returns
    -------
    Written

    Raises
    ------
    DataError
        X is of another type or shape; a value is not finite or outside float32's range; labels are
        no numbers, or not as many as rows; or the file cannot be written.

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
    return WrittenMatrix(str(path), header.size, header.rows, header.nonzeros, source.name)


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
    """Write examples, given as to `write_matrix`, into a scratch file; see `spool_rows`."""
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
    """Write examples into a scratch file, an input like any other.

    `folder`: the scratch folder; empty: this user's folder on this host.  `bytes_max`: limit for
    all files in the folder; 0: half of the disk space that is free without them.  DataError: as in
    `write_matrix`, or the limit is exceeded.
    """
    content = _content_of(source, y, "", sample_weight)
    with Draft(source, folder, bytes_max, content) as draft:
        return draft.finish()


class _RowsWriter:
    """Writes rows first, labels and weights at the end.

    If all sizes are known when it begins (`content` is given, and the source knows rows and
    entries), sections are written to their places at once; else each section is a file of `make`
    until `finish` copies them.  `file` is empty.
    """

    def __init__(
        self,
        file: NewFile,
        make: Callable[[str], NewFile],
        source: RowsSource,
        content: _RowLabels | None,
    ) -> None:
        self._file, self._make, self._source = file, make, source
        self._header: Header | None = None
        self.rows = self._entries = 0
        self._labels: list[NDArray[Any]] = []
        """Labels that come with the rows."""
        self._weights: list[NDArray[np.float32]] = []
        """Weights that do."""
        self._offsets: dict[str, int] = {}
        """By section, where its next bytes belong; empty if sizes are unknown."""
        self._parts: dict[str, NewFile] = {}
        """By section, its own file; empty if sizes are known."""
        if content is not None and min(source.rows, source.entries) >= 0:
            self._header = self._header_of(source.flags, content, source.rows, source.entries)
            sections = self._header.sections()
            self._offsets = {name: section.start for name, section in sections.items()}
            file.grow(self._header.size)
        self._are_ones = self._header is None
        """Whether all values so far are 1, so that the file needs none."""

    def write(self, on_progress: Progress | None) -> None:
        """Write all rows of the source; DataError: it has none."""
        source = self._source
        if not source.dense:
            self._append("ptr", np.zeros(1, np.int64))
        for piece in source.pieces():
            if piece.labels is not None:
                self._labels.append(piece.labels)
            if piece.weights is not None:
                self._weights.append(piece.weights)
            if piece.ptr is not None:
                self._append("ptr", piece.ptr[1:] + self._entries)
            for name in ("keys", "values", "fields"):
                if (array := getattr(piece, name)) is not None:
                    self._append(name, array)
            if piece.values is not None:
                self._are_ones = self._are_ones and bool((piece.values == 1).all())
            self.rows, self._entries = self.rows + piece.rows, self._entries + piece.entries
            if on_progress is not None:
                on_progress(self.rows, source.rows if source.rows >= 0 else None)
        if self.rows == 0:
            raise DataError(f"X: {source.name} has no rows")

    def finish(self, content: _RowLabels) -> Header:
        """Write labels, weights and header; the file is then complete."""
        source, header = self._source, self._header
        if header is not None:
            assert (self.rows, self._entries) == (header.rows, header.nonzeros)
        else:
            if self._labels:
                content = content._replace(labels=_narrow(np.concatenate(self._labels)))
            if self._weights:
                content = content._replace(weights=np.concatenate(self._weights))
            is_plain = self._are_ones and not source.dense
            flags = source.flags & ~Flags.VALUES if is_plain else source.flags
            header = self._header_of(flags, content, self.rows, self._entries)
        for name, array in content._asdict().items():
            if len(array):
                self._append(name, array)
        # Each part is removed before the next one is copied: the disk needs room for one section
        # more, not for the file twice.
        for name, section in header.sections().items():
            if name in self._parts:
                self._file.grow(section.stop)
                self._copy(self._parts[name].fileno(), section.start)
                self._parts[name].close()
        self._file.grow(header.size)
        self._file.write_at(header.pack(), 0)
        return header

    def _header_of(self, flags: Flags, content: _RowLabels, rows: int, entries: int) -> Header:
        if len(content.weights):
            flags |= Flags.WEIGHTS
        if content.labels.dtype == np.float64:
            flags |= Flags.WIDE_LABELS
        columns = self._source.columns if self._source.columns <= KEY_LIMIT else 0
        return Header(flags, min(1, len(content.labels)), rows, entries, columns)

    def _append(self, name: str, array: NDArray[Any]) -> None:
        """Add an array to a section."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if name in self._offsets:
            self._file.write_at(data, self._offsets[name])
            self._offsets[name] += len(data)
            return
        if name not in self._parts:
            self._parts[name] = self._make(name)
        self._parts[name].write(data)

    def _copy(self, part: int, start: int) -> None:
        """Copy a section's own file, of descriptor `part`, to byte `start`."""
        done = 0
        while step := os.pread(part, COPY_BYTES, done):
            self._file.write_at(step, start + done)
            done += len(step)


def write_rows(
    file: NewFile,
    make: Callable[[str], NewFile],
    source: RowsSource,
    content: _RowLabels | None = None,
    on_progress: Progress | None = None,
) -> Header:
    """Write a matrix file of rows.

    Without `content`, labels come with the pieces, if there are any.  `file` is empty; `make` gives
    files by purpose, for sections of unknown length.
    """
    writer = _RowsWriter(file, make, source, content)
    writer.write(on_progress)
    return writer.finish(content or _NO_CONTENT)


class Draft(contextlib.ExitStack):
    """A scratch file that has its rows, and gets their labels and weights in `finish`.

    For rows that can be read only once, and labels that are numbered when all of them are known.  A
    context manager: its end removes what was written, unless `finish` gave it away.  `source` has
    pieces without labels; `folder` and `bytes_max` as in `spool_rows`; `content`: labels and
    weights, if they are known before.
    """

    def __init__(
        self,
        source: RowsSource,
        folder: str = "",
        bytes_max: int = 0,
        content: _RowLabels | None = None,
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
        """Complete the file with y and weights: finite numbers, one per row."""
        content = self._content or _content_of(self._source, y, "", sample_weight)
        header = self._body.finish(content)
        return Spooled(self._file, header.rows, self._source.name)


class _RowLabels(NamedTuple):
    """Labels and weights of rows; empty: none."""

    labels: NDArray[Any]
    """Float32, or float64 if a label needs it."""
    weights: NDArray[np.float32]


_NO_CONTENT = _RowLabels(np.zeros(0, np.float32), np.zeros(0, np.float32))


def _content_of(source: RowsSource, y: Any, label: str, sample_weight: Any) -> _RowLabels:
    """Labels and weights of the rows, checked; refuses both `y` and `label`."""
    if label and y is not None:
        raise DataError(
            f"y: expected none with label={label!r}, which names the column of labels: give one of "
            "them"
        )
    labels = _labels_of(source.labels() if label else y, source)
    if sample_weight is None:
        return _NO_CONTENT._replace(labels=labels)
    sample_weight = column_of(sample_weight, "sample_weight")
    refuse_masked(sample_weight, "sample_weight")
    numbers = np.asarray(sample_weight)
    if numbers.dtype.kind not in "biuf" or numbers.ndim != 1 or len(numbers) != max(0, source.rows):
        raise DataError(
            f"sample_weight: expected {source.rows:,} numbers, as many as X has rows, got "
            f"{numbers.dtype} of shape {numbers.shape}"
        )
    weights = floats(numbers)
    if (place := first_not_weight(weights)) >= 0:
        raise DataError(
            f"sample_weight: number {place:,} is {numbers[place]}: expected finite numbers of at "
            "least 0"
        )
    return _RowLabels(labels, weights)


def _labels_of(y: Any, source: RowsSource) -> NDArray[Any]:
    """Labels as numbers, checked; empty: y is None."""
    if y is None:
        return np.zeros(0, np.float32)
    y = column_of(y, "y")
    refuse_masked(y, "y")
    # pyarrow's own `to_numpy` refuses nulls.
    is_plain = library_of(y) == "pyarrow" or not hasattr(y, "to_numpy")
    numbers = np.asarray(y) if is_plain else y.to_numpy()
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]
    if numbers.ndim != 1:
        raise DataError(f"y: expected one axis, got shape {numbers.shape}")
    if source.rows >= 0 and len(numbers) != source.rows:
        raise DataError(
            f"y: expected {source.rows:,} labels, as many as X has rows, got {len(numbers):,}"
        )
    if numbers.dtype.kind == "O":
        are_numbers = map(_is_number, numbers.tolist())
        odd = next((place for place, is_number in enumerate(are_numbers) if not is_number), -1)
        if odd >= 0:
            raise DataError(
                f"y: label {odd:,} is {numbers[odd]!r:.80}: expected numbers. Number the classes "
                "from 0 on, and leave examples without a label out"
            )
    elif numbers.dtype.kind not in "biuf":
        raise DataError(f"y: expected numbers, got {numbers.dtype}: number the classes from 0 on")
    labels = _narrow(numbers)
    check_finite(floats(labels), lambda place: f"label {place:,}", "y")
    return labels


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Labels as float32 if that keeps them exact, else as float64."""
    labels, narrow = np.asarray(numbers, np.float64), floats(numbers)
    is_exact = (narrow == labels).all() or np.array_equal(narrow, labels, equal_nan=True)
    return narrow if is_exact else labels


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number, np.bool_)) and value == value
