"""Rows of matrices in memory, in pieces: arrays, `scipy.sparse`; tables and lists of dicts.

    X -> rows_source -> RowsSource -> pieces of about a million entries, values checked
    piece -> examples_of_piece -> Examples, without a file

A matrix whose arrays have the types of matrix files is not copied.  Tables and dicts are in
`feature_rows`.  Imports no library: calls methods of the objects.  Must not know files, labels or
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import Examples
from snailps.data.elements import library_of, refuse_masked, table_of, whole
from snailps.data.feature_rows import (
    DictRows,
    ExampleRows,
    Fields,
    RowsSource,
    TableRows,
    dense_piece,
)
from snailps.errors import DataError
from snailps.files._matrix import first_falling, first_not_finite, nonzero_entries, wide_keys
from snailps.files.matrix_file import KEY_LIMIT, Flags, floats

PIECE_ENTRIES = 1 << 20
"""Entries, or rows if these have fewer entries, of a piece: it bounds copies."""


def rows_source(
    X: Any,
    *,
    label: str = "",
    fields: Fields | None = None,
    dense: bool = False,
) -> RowsSource:
    """The source of an object's rows; parameters and errors as in `write_matrix`."""
    refuse_masked(X, "X")
    X = whole(X)
    source: RowsSource
    if library_of(X) == "scipy" and hasattr(X, "tocsr"):
        source = SparseRows(X)
    elif isinstance(X, np.ndarray):
        source = DenseRows(X)
    elif (table := table_of(X)) is not None:
        source = TableRows(table, label)
    elif isinstance(X, Sequence) and not isinstance(X, (str, bytes)):
        source = DictRows(X)
    else:
        raise DataError(
            "X: expected a scipy.sparse matrix, an array of two axes, a DataFrame, a Table or a "
            f"list of dicts, got {type(X).__module__}.{type(X).__name__}"
        )
    source.write_as(fields=fields, dense=dense)
    if label and not source.has_label:
        raise DataError(
            f"label: {source.name} has no column names, so none is {label!r:.60}: pass the labels "
            "as y"
        )
    return source


class SparseRows(RowsSource):
    """Rows of a `scipy.sparse` matrix; with their zeros if they are written dense."""

    _fields: NDArray[np.int32] | None = None

    def __init__(self, X: Any) -> None:
        shape = X.shape
        if len(shape) != 2:
            raise DataError(f"X: expected two axes, got shape {shape}")
        self.rows, self.columns = int(shape[0]), int(shape[1])
        self.name = f"a {type(X).__name__} of {self.rows:,} x {self.columns:,}"
        if X.format != "csr":
            X = X.tocsr()
        self._take(X)
        # A row may have a column twice, and scipy means the sum; a model would take it for two
        # features.
        if self.entries >= 2 and not X.has_canonical_format:
            self._take(summed(X))
        if self.columns == 0 and self.entries:
            raise DataError("X has entries, but no columns: its shape is wrong")
        self.flags = Flags.VALUES

    def write_as(self, *, fields: Fields | None = None, dense: bool = False) -> None:
        self._fields = _fields_of(fields, self.columns, dense)
        self.flags = Flags.FIELDS if self._fields is not None else Flags(0)
        if dense:
            self.flags, self.entries = Flags.DENSE | Flags.VALUES, self.rows * self.columns
            return
        if not self._all_ones():
            self.flags |= Flags.VALUES
        if self.columns > 1 << 32:
            self.flags |= Flags.WIDE

    def _take(self, X: Any) -> None:
        """Take the arrays of a CSR matrix, checked: scipy does not check what its users put in."""
        self._ptr, self._keys = np.asarray(X.indptr, np.int64), np.asarray(X.indices)
        self._values = np.asarray(X.data)
        if self._values.dtype.kind not in "biuf":
            raise DataError(f"X: expected numbers, got {self._values.dtype}")
        ptr = self._ptr
        if len(ptr) != self.rows + 1 or first_falling(ptr) >= 0 or ptr[0] < 0:
            raise DataError(
                "X: its row pointers (indptr) do not ascend from 0 or more, one per row and one "
                "more: it is no valid CSR matrix"
            )
        self.entries = int(ptr[-1] - ptr[0])
        if ptr[-1] > min(len(self._keys), len(self._values)):
            raise DataError(
                f"X: its row pointers end at entry {ptr[-1]:,}, but it has fewer entries: it is no "
                "valid CSR matrix"
            )

    def _all_ones(self) -> bool:
        values = self._values[self._ptr[0] : self._ptr[-1]]
        firsts = range(0, len(values), PIECE_ENTRIES)
        return all((values[first : first + PIECE_ENTRIES] == 1).all() for first in firsts)

    def pieces(self) -> Iterator[ExampleRows]:
        """As in `RowsSource`; views of the matrix where it has the file's types."""
        ptr = self._ptr
        key_type = np.dtype(np.uint64 if self.columns > 1 << 32 else np.uint32)
        for first, last in _even(np.arange(len(ptr)) * self.columns if self.dense else ptr):
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
            values = floats(self._values[a:b]) if Flags.VALUES in self.flags else None
            if values is not None:
                check_finite(values, lambda entry: f"row {_row_of(ptr, first, entry)}", "X")  # noqa: B023
            piece_ptr = ptr[first : last + 1] - ptr[first]
            if values is not None and self.dense:
                yield dense_piece(piece_ptr, stored, values, self.columns)
            else:
                yield ExampleRows(piece_ptr, stored, values, fields)


def summed(X: Any) -> Any:
    """A CSR matrix in which entries at the same place are added; X itself if there are none."""
    ptr = np.asarray(X.indptr)
    first, last = int(ptr[0]), int(ptr[-1])
    try:
        copy = type(X)(
            (X.data[first:last].copy(), X.indices[first:last].copy(), ptr - ptr[0]), shape=X.shape
        )
        copy.sum_duplicates()
    except (TypeError, ValueError):  # `pieces` says what is wrong with the matrix
        return X
    return X if copy.nnz == last - first else copy


class DenseRows(RowsSource):
    """Rows of an array: sparse, without its zeros, or dense.  A dense one may have more axes."""

    _fields: NDArray[np.int32] | None = None

    def __init__(self, X: NDArray[Any]) -> None:
        if X.ndim < 2:
            raise self._wrong_shape(X.shape)
        if X.dtype.kind not in "biuf":
            raise DataError(f"X: expected numbers, got an array of {X.dtype}")
        self.name = f"an array of {' x '.join(f'{size:,}' for size in X.shape)}"
        self._shape = X.shape
        self._x = X.reshape(len(X), math.prod(X.shape[1:]))
        self.rows, self.columns = self._x.shape
        self._step = max(1, PIECE_ENTRIES // max(1, self.columns))
        self.flags, self.entries = Flags.VALUES, -1

    @staticmethod
    def _wrong_shape(shape: tuple[int, ...]) -> DataError:
        return DataError(
            f"X: expected an array of two axes, a row for each example, got shape {shape}"
        )

    def write_as(self, *, fields: Fields | None = None, dense: bool = False) -> None:
        if len(self._shape) > 2 and not dense:
            raise self._wrong_shape(self._shape)
        self._fields = _fields_of(fields, self.columns, dense)
        if dense:
            self.flags = Flags.DENSE | Flags.VALUES
            if self._x.dtype == np.uint8:
                self.flags |= Flags.BYTES
            self.entries = self._x.size
        else:
            self.flags = Flags.VALUES
            if self._fields is not None:
                self.flags |= Flags.FIELDS
            firsts = range(0, self.rows, self._step)
            self.entries = sum(int(np.count_nonzero(self._exact(first))) for first in firsts)

    def pieces(self) -> Iterator[ExampleRows]:
        for first in range(0, self.rows, self._step):
            x = self._x[first : first + self._step]
            if Flags.BYTES in self.flags:
                yield ExampleRows(None, None, np.ascontiguousarray(x).ravel(), None, len(x))
            elif Flags.DENSE in self.flags:
                values = floats(x).ravel()
                self._check(values, first)
                yield ExampleRows(None, None, values, None, len(x))
            else:
                ptr, keys, values = nonzero_entries(np.ascontiguousarray(self._exact(first)))
                if first_not_finite(values) >= 0:
                    self._check(floats(x).ravel(), first)
                yield ExampleRows(
                    ptr, keys, values, None if self._fields is None else self._fields[keys]
                )

    def _exact(self, first: int) -> NDArray[Any]:
        """The rows of the piece from `first` on, in which as many numbers are 0 as in the array.

        Zeros are left out before floats become float32, which rounds some to 0.  It rounds no whole
        number to 0.
        """
        x = self._x[first : first + self._step]
        if x.dtype in (np.float32, np.float64):
            return x
        return x.astype(np.float64 if x.dtype.kind == "f" else np.float32)  # rounded once

    def _check(self, values: NDArray[np.float32], first: int) -> None:
        """DataError, with row and column: a value of the rows from `first` on is not finite."""
        columns = self.columns
        check_finite(
            values,
            lambda place: f"row {first + place // columns:,}, column {place % columns:,}",
            "X",
        )


def _fields_of(fields: Fields | None, columns: int, dense: bool) -> NDArray[np.int32] | None:
    """The field of each column, checked."""
    if fields is None:
        return None
    if dense:
        raise DataError("fields: expected none with dense=True, got some: leave fields out")
    checked = np.asarray(fields)
    is_whole = checked.dtype.kind in "iu"
    if checked.shape != (columns,) or not is_whole or checked.min(initial=0) < 0:
        raise DataError(
            f"fields: expected a number from 0 on for each of {columns:,} columns, got "
            f"{checked.dtype} of shape {checked.shape}"
        )
    if checked.max(initial=0) >= 1 << 31:
        raise DataError(f"fields: expected numbers below 2^31, got {checked.max()}")
    return checked.astype(np.int32)


def check_finite(values: NDArray[np.float32], where: Callable[[int], str], name: str) -> None:
    """DataError: a value is NaN or infinite; `where` says where its index is, `name` in what."""
    place = first_not_finite(values)
    if place >= 0:
        value = "NaN" if np.isnan(values[place]) else str(values[place])  # scikit-learn's spelling
        raise DataError(
            f"{name}: {where(place)} has value {value}: expected finite numbers within "
            "float32's range. Fill missing values, or leave such rows out"
        )


def _even(ptr: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about `PIECE_ENTRIES` entries, and at most as many rows."""
    first, rows = 0, len(ptr) - 1
    while first < rows:
        last = int(np.searchsorted(ptr, ptr[first] + PIECE_ENTRIES, side="right")) - 1
        last = min(max(first + 1, last), first + PIECE_ENTRIES, rows)
        yield first, last
        first = last


def _row_of(ptr: NDArray[Any], first: int, entry: int) -> str:
    row = int(np.searchsorted(ptr, ptr[first] + entry, side="right")) - 1
    return f"{row:,}"


def examples_of_piece(piece: ExampleRows, source: RowsSource, hash_bits: int = 0) -> Examples:
    """A sparse piece as examples with labels 0; keys folded to `hash_bits` (0: not)."""
    assert piece.ptr is not None
    assert piece.keys is not None
    hashed = Flags.HASHED in source.flags
    keys, _ = wide_keys(np.ascontiguousarray(piece.keys), KEY_LIMIT, hashed, hash_bits)
    values, fields = piece.values, piece.fields
    if values is None:
        values = np.ones(len(keys), np.float32)
    if fields is None:
        fields = np.empty(0, np.int32)
    labels = np.zeros(piece.rows)
    return Examples(labels, piece.ptr, keys, values, np.ascontiguousarray(fields, np.int32), 0)
