"""An estimator's X, of whatever type, as one value: a source of rows, and what its columns are.

    X [, Known] -> matrix_of -> Matrix: TableRows, DictRows, DenseRows or SparseRows
    Matrix, KnownColumns -> check_columns

Owns the question what X is: code below gets a `Matrix` and does not ask again.  `KnownColumns` is
what a fitted model knows of its columns.  Several errors have scikit-learn's wording, because
`sklearn.utils.estimator_checks` looks for it.  Must not know models.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import ColumnKind
from snailps.data.elements import (
    DataTable,
    a_kind,
    library_of,
    native,
    refuse_masked,
    table_of,
    whole,
)
from snailps.data.example_files import ExampleFiles
from snailps.data.feature_rows import DictRows, RowsSource, TableRows, numbers_of, table_of_dicts
from snailps.data.matrix_sources import DenseRows, SparseRows
from snailps.dataclass import dataclass, field
from snailps.errors import DataError

_EXPECTED = "X: expected a matrix, an array of two axes, a table or a list of dicts"
_ARRAYS = ("__array__", "__array_interface__", "__array_struct__", "__getitem__", "tobytes")
"""Attributes of arrays, sequences and buffers, as NumPy takes them."""


class NotNumbers(DataError, TypeError):
    """X has elements that cannot be numbers; also a TypeError, as scikit-learn expects."""


@dataclass(frozen=True, slots=True)
class KnownColumns:
    """What a fitted model knows of its columns.

    Attributes
    ----------
    who : str
        The estimator, for messages.
    by_name : bool
        Features are known by name, else by number.
    names : tuple or None
        Column names, if the training data had some.
    declared : tuple of str
        Columns as ``name:kind``.
    kinds : mapping
        Kinds of the names in dicts.
    label, weight : str
        Columns of the labels and of the weights in files.
    columns : int
        Number of columns; -1: unknown (trained on lines).
    last : int
        If `columns` is unknown, the largest feature with a row; -1: none.
    """

    who: str
    by_name: bool
    names: tuple[Any, ...] | None = None
    declared: tuple[str, ...] = ()
    kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    label: str = ""
    weight: str = ""
    columns: int = -1
    last: int = -1


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of examples, and their columns.

    `columns`: how many there are; -1 for dicts and lines.  `by_name`: features are known by name,
    which is so for tables with texts, and dicts.
    """

    source: RowsSource
    columns: int
    names: NDArray[np.object_] | None = None
    by_name: bool = False
    fields: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """Number of rows; -1: the rows of files are not read yet."""
        return self.source.rows

    @property
    def files(self) -> ExampleFiles | None:
        """The files that the rows are read from; None: they are in memory."""
        return self.source if isinstance(self.source, ExampleFiles) else None


def matrix_of(
    X: Any, *, numeric: bool, known: KnownColumns | None = None, others: bool = True
) -> Matrix:
    """X as examples; a sparse matrix or an array of numbers is not copied.

    `numeric`: refuse tables with texts, and dicts.  `known`: what a fitted model knows of its
    columns, which then decides what X's columns are.  `others`: dicts may have names that the model
    does not know, which are ignored.  DataError: X is none of the types that are read, is empty, or
    has values that cannot be numbers.
    """
    X = whole(X)
    is_sparse = library_of(X) == "scipy" and hasattr(X, "tocsr")
    if isinstance(X, (str, bytes, os.PathLike)):
        raise DataError(
            f"{_EXPECTED}; or the path of a file as a str or Path; got a {type(X).__name__}"
        )
    if isinstance(X, (Mapping, Iterator)) and not is_sparse:
        raise DataError(
            f"{_EXPECTED}, got {a_kind(X)}: give "
            f"{'a DataFrame of it' if isinstance(X, Mapping) else 'list(X)'}"
        )
    if (table := table_of(X)) is not None:
        matrix = _of_table(table, known)
    elif isinstance(X, Sequence) and len(X) and isinstance(X[0], Mapping):
        matrix = _of_dicts(X, known, others)
    elif isinstance(X, (list, tuple)) and X and table_of(native(X[0])) is not None:
        raise DataError(
            f"X: expected one table, got {a_kind(X)} of {len(X):,}, of which the first is "
            f"{a_kind(X[0])}: concatenate them, record batches by pyarrow.Table.from_batches(X)"
        )
    else:
        matrix = _of_array(X if is_sparse else _array(X), is_sparse)
    if numeric and matrix.by_name:
        raise DataError(
            "X: expected numbers: this estimator takes no texts and no dicts. Encode them, for "
            "example with sklearn.feature_extraction.DictVectorizer"
        )
    return matrix


def _refuse_empty(rows: int, columns: int) -> None:
    """DataError, in scikit-learn's words: no rows or no columns."""
    if lacking := "sample" if rows == 0 else "feature" if columns == 0 else "":
        raise DataError(
            f"X: Found array with 0 {lacking}(s) (shape=({rows}, {columns})) while a minimum of 1 "
            "is required."
        )


def _of_dicts(X: Sequence[Any], known: KnownColumns | None, others: bool) -> Matrix:
    """Dicts as rows of the table that the model was fitted on; without one, features by name."""
    if known is None or known.names is None:
        return Matrix(DictRows(X, known.kinds if known else None), -1, by_name=True)
    table = table_of_dicts(X, known.names)
    if not others:
        names = set(known.names)
        other = next((name for row in X for name in row if name not in names), None)
        if other is not None:
            raise DataError(
                f"X: {table.name} has the name {other!r:.60}, which is no column of the model: "
                "leave it out"
            )
    return _of_table(table, known)


def _of_table(table: DataTable, known: KnownColumns | None) -> Matrix:
    """A table of numbers as an array; one with texts, or for a model by name, column by column."""
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise DataError(f"X: expected every column once, got {twice[0]!r:.80} more than once")
    names = None
    if table.columns and all(isinstance(name, str) for name in table.columns):
        names = np.array(table.columns, object)
    rows, columns = table.rows, len(table.columns)
    _refuse_empty(rows, columns)
    if known is not None and known.by_name and names is not None:
        by_name = TableRows(table, declared=known.declared, kinds=known.kinds)
        return Matrix(by_name, columns, names, by_name=True)
    if known is None and not all(table.column(name).is_numeric() for name in table.columns):
        return Matrix(TableRows(table), columns, names, by_name=True)
    numbers = np.empty((rows, columns), np.float64)
    for place, name in enumerate(table.columns):
        numbers[:, place] = numbers_of(table, name)
    return Matrix(DenseRows(numbers), columns, names)


def _array(X: Any) -> NDArray[Any]:
    """X as an array of numbers.

    DataError: X offers nothing that NumPy would read elements from; else NumPy would make an array
    of one object of it.
    """
    if not (isinstance(X, (Sequence, Number)) or any(hasattr(X, name) for name in _ARRAYS)):
        raise DataError(f"{_EXPECTED}; got {a_kind(X)} (of {type(X).__module__})")
    refuse_masked(X, "X")
    try:
        array = np.asarray(X)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"X: expected rows of equally many numbers: {error}") from None
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except TypeError as error:
            raise NotNumbers(f"X: {error}") from None
        except ValueError as error:
            raise DataError(f"X: expected numbers: {error}") from None
    if array.dtype.kind not in "biufc":
        raise DataError(f"X: expected numbers, got an array of {array.dtype}")
    return array


def _of_array(X: Any, is_sparse: bool) -> Matrix:
    if X.dtype.kind == "c":
        raise DataError(f"X: Complex data not supported: {X.dtype}")
    if len(X.shape) == 1:
        raise DataError(
            f"X: Expected 2D array, got 1D array of shape {tuple(X.shape)} instead. Reshape your "
            "data either using array.reshape(-1, 1) if your data has a single feature or "
            "array.reshape(1, -1) if it contains a single sample."
        )
    if len(X.shape) != 2:
        raise DataError(f"X: Expected 2D array, got an array of shape {tuple(X.shape)} instead.")
    _refuse_empty(*X.shape)
    return Matrix((SparseRows if is_sparse else DenseRows)(X), int(X.shape[1]))


def check_columns(matrix: Matrix, known: KnownColumns) -> None:
    """DataError: X has other columns than the model was fitted on: number, names or order."""
    if matrix.by_name != known.by_name:
        kinds = ("columns by number", "features by name (a table with texts, or dicts)")
        raise DataError(
            f"X: {known.who} was fitted on {kinds[known.by_name]}, and X has "
            f"{kinds[matrix.by_name]}"
        )
    if -1 not in (known.columns, matrix.columns) and matrix.columns != known.columns:
        raise DataError(
            f"X has {matrix.columns} features, but {known.who} is expecting {known.columns} "
            "features as input"
        )
    is_short = 0 <= matrix.columns <= known.last
    if known.columns < 0 and is_short and matrix.files is None:
        raise DataError(
            f"X has columns 0 to {matrix.columns - 1}, but {known.who} was fitted on lines with "
            f"features up to {known.last}: column 0 is feature 0. If the lines number from 1, give "
            "a matrix with an empty column 0"
        )
    if known.names is not None and matrix.names is not None:
        pairs = zip(matrix.names, known.names, strict=False)
        for wrong, expected in (pair for pair in pairs if pair[0] != pair[1]):
            raise DataError(
                "The feature names should match those that were passed during fit, in their order; "
                f"got {wrong!r:.80} instead of {expected!r:.80}"
            )
