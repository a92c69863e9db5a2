"""Data of scikit-learn's users: what X, y and weights may be, and scikit-learn's words otherwise.

    X [, fitted] -> matrix_of -> Matrix, as `rows_source` takes it    matrix -> check_columns
    y -> labels_of -> classes, numbers    y -> targets_of -> float64    sample_weight -> weights_of

`sklearn.utils.estimator_checks` looks for these words in errors; scikit-learn itself is only used
where it is loaded already.  Whether numbers are finite is checked where they are written or scored.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import (
    DataTable,
    a_kind,
    column_of,
    digits_of,
    library_of,
    native,
    refuse_masked,
    table_of,
    whole,
)
from snailps.data.example_files import ExampleFiles
from snailps.data.feature_rows import DictRows, TableRows, numbers_of, table_of_dicts
from snailps.dataclass import dataclass, field
from snailps.errors import DataError, NotFitted
from snailps.estimators.labels import classes_of, values_of

_KINDS = "X: expected a matrix, an array of two axes, a table or a list of dicts"
_CONTINUOUS = (
    "Unknown label type: continuous. Labels of a classifier are str, bool or whole numbers; a "
    "regressor learns numbers such as {0!r}"
)


_ARRAYS = ("__array__", "__array_interface__", "__array_struct__", "__getitem__", "tobytes")
"""Attributes of arrays, sequences and buffers, as NumPy takes them."""


class NotNumbers(DataError, TypeError):
    """X has elements that cannot be numbers."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Examples as `rows_source` takes them, with its options; columns of dicts are -1."""

    data: Any
    rows: int
    columns: int
    names: NDArray[np.object_] | None = None
    hashed: bool = False
    """Features are known by name, not by number: tables with texts, and dicts."""
    files: ExampleFiles | None = None
    """Files that the rows are read from, if any."""
    fields: NDArray[np.int64] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def matrix_of(X: Any, *, numeric: bool, fitted: Any = None, use: str = "fit") -> Matrix:
    """X as examples; a sparse matrix or an array of numbers is not copied.

    `numeric`: refuse tables with texts, and dicts.  Columns are what a `fitted` model knows.
    """
    X = whole(X)
    is_sparse = library_of(X) == "scipy" and hasattr(X, "tocsr")
    if isinstance(X, (str, bytes, os.PathLike)):
        raise DataError(
            f"{_KINDS}; or the path of a file as a str or Path; got a {type(X).__name__}"
        )
    if isinstance(X, (Mapping, Iterator)) and not is_sparse:
        raise DataError(
            f"{_KINDS}, got {a_kind(X)}: give "
            f"{'a DataFrame of it' if isinstance(X, Mapping) else 'list(X)'}"
        )
    if (table := table_of(X)) is not None:
        found = _of_table(X, table, fitted)
    elif isinstance(X, Sequence) and len(X) and isinstance(X[0], Mapping):
        found = _of_dicts(X, fitted, use)
    elif isinstance(X, (list, tuple)) and X and table_of(native(X[0])) is not None:
        raise DataError(
            f"X: {a_kind(X)} of {len(X):,} tables, {a_kind(X[0])} first: expected one table. "
            "Concatenate them, batches by pyarrow.Table.from_batches(X)"
        )
    else:
        found = _of_array(X if is_sparse else _array(X))
    if numeric and found.hashed:
        raise DataError(
            "X: expected numbers: this estimator takes no texts and no dicts. Encode them, for "
            "example with sklearn.feature_extraction.DictVectorizer"
        )
    if none := "sample" if found.rows == 0 else "feature" if found.columns == 0 else "":
        raise DataError(
            f"X: Found array with 0 {none}(s) (shape=({found.rows}, {found.columns})) while a "
            "minimum of 1 is required."
        )
    return found


def _of_dicts(X: Sequence[Any], fitted: Any, use: str) -> Matrix:
    """Dicts as rows of the table that a model was fitted on, or as features by name."""
    names = None if fitted is None else getattr(fitted, "feature_names_in_", None)
    if names is None:
        rows = DictRows(X, fitted._kinds if fitted is not None else None)
        return Matrix(rows, len(X), -1, hashed=True)
    table = table_of_dicts(X, names.tolist())
    if use == "partial_fit":
        known = set(names.tolist())
        other = next((name for row in X for name in row if name not in known), None)
        if other is not None:
            raise DataError(f"X: {table.name} has {other!r:.60}, which is no column of the model")
    return _of_table(X, table, fitted)


def _of_table(X: Any, table: DataTable, fitted: Any) -> Matrix:
    """A table of numbers as an array; one with texts, or of a model by name, as it is."""
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise DataError(f"X: expected every column once, got {twice[0]!r:.80} more than once")
    names = None
    if table.columns and all(isinstance(name, str) for name in table.columns):
        names = np.array(table.columns, object)
    columns = [table.column(name) for name in table.columns]
    if names is not None and fitted is not None and fitted._hashed:
        rows = TableRows(table, declared=fitted._declared, kinds=fitted._kinds)
        return Matrix(rows, table.rows, len(names), names, hashed=True)
    if fitted is None and not all(column.is_numeric() for column in columns):
        return Matrix(TableRows(table), table.rows, len(columns), names, hashed=True)
    made = np.empty((table.rows, len(columns)), np.float64)
    for at in range(len(columns)):
        made[:, at] = numbers_of(table, table.columns[at])
    return Matrix(made, table.rows, len(table.columns), names)


def _array(X: Any) -> NDArray[Any]:
    """X as an array of numbers, if NumPy defines what its elements are."""
    if not (isinstance(X, (Sequence, Number)) or any(hasattr(X, name) for name in _ARRAYS)):
        raise DataError(f"{_KINDS}; got {a_kind(X)} (of {type(X).__module__})")
    refuse_masked(X, "X")
    try:
        found = np.asarray(X)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"X: expected rows of equally many numbers: {error}") from None
    if found.dtype.kind == "O":
        try:
            found = found.astype(np.float64)
        except TypeError as error:
            raise NotNumbers(f"X: {error}") from None
        except ValueError as error:
            raise DataError(f"X: expected numbers: {error}") from None
    if found.dtype.kind not in "biufc":
        raise DataError(f"X: expected numbers, got an array of {found.dtype}")
    return found


def _of_array(X: Any) -> Matrix:
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
    return Matrix(X, int(X.shape[0]), int(X.shape[1]))


def check_columns(matrix: Matrix, estimator: Any, last: int = -1) -> None:
    """Refuse other columns than those of an estimator; `last`: the last feature with a row."""
    name = type(estimator).__name__
    if matrix.hashed != estimator._hashed:
        kinds = ("columns by number", "features by name (a table with texts, or dicts)")
        raise DataError(
            f"X: {name} was fitted on {kinds[estimator._hashed]}, and X has {kinds[matrix.hashed]}"
        )
    expected = getattr(estimator, "n_features_in_", -1)
    if -1 not in (expected, matrix.columns) and matrix.columns != expected:
        raise DataError(
            f"X has {matrix.columns} features, but {name} is expecting {expected} features as input"
        )
    if expected < 0 <= matrix.columns and matrix.files is None and matrix.columns <= last:
        raise DataError(
            f"X has columns 0 to {matrix.columns - 1}, but {name} was fitted on lines with "
            f"features up to {last}: column 0 is feature 0. Lines that number from 1 go with a "
            "matrix that has an empty column 0"
        )
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and matrix.names is not None and list(names) != list(matrix.names):
        wrong, expected = next(
            pair for pair in zip(matrix.names, names, strict=False) if pair[0] != pair[1]
        )
        raise DataError(
            "The feature names should match those that were passed during fit, in their order; got "
            f"{wrong!r:.80} in the place of {expected!r:.80}"
        )


# --- y and weights --------------------------------------------------------------------------------


def one_axis(y: Any, who: str, rows: int = -1) -> Any:
    """y as an array of one axis where it is or gives an array, else as it is; -1 rows: any."""
    if y is None:
        raise DataError(f"This {who} requires y to be passed, but the target y is None")
    if isinstance(y, str):
        raise DataError(
            f"y: expected a value for each row of X, got the str {y!r:.80}. If it names a column "
            "of X, give that column as y, and X without it"
        )
    y = column_of(y, "y")
    if hasattr(y, "to_numpy"):
        with contextlib.suppress(TypeError, ValueError):  # of pyarrow, where it needs a copy
            y = y.to_numpy()
    elif hasattr(y, "__array__") and not isinstance(y, np.ndarray):
        y = np.asarray(y)
    refuse_masked(y, "y")
    if isinstance(y, np.ndarray):
        if y.ndim == 2 and y.shape[1] == 1:
            _warn_of_column()
            y = y.ravel()
        if y.ndim != 1:
            raise DataError(f"y should be a 1d array, got an array of shape {y.shape} instead.")
        if y.dtype.kind == "c":
            raise DataError(f"y: Complex data not supported: {y.dtype}")
    if rows >= 0 and hasattr(y, "__len__") and len(y) != rows:
        raise DataError(
            f"y: expected {rows:,} labels, one for each row of X; got {len(y):,} (inconsistent "
            "numbers of samples)"
        )
    return y


def _warn_of_column() -> None:
    """Warn as scikit-learn does, if it is there."""
    found = sys.modules.get("sklearn.exceptions")
    if found is not None:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of "
            "y to (n_samples, ), for example using ravel().",
            found.DataConversionWarning,
            stacklevel=4,
        )


def labels_of(y: Any, who: str, rows: int = -1) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different labels, sorted, and the number among them of each label."""
    y = one_axis(y, who, rows)
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuUf":
        if y.dtype.kind == "f":
            _check_whole(y)
        classes, numbers = np.unique(y, return_inverse=True)
        return classes, numbers.astype(np.int64)
    values = values_of(y)
    if rows >= 0 and len(values) != rows:
        raise DataError(f"y: expected {rows:,} labels, one for each row of X; got {len(values):,}")
    if any(isinstance(value, float) for value in values):
        _check_whole(np.array(values, np.float64))
    classes = classes_of(values)
    places = {label: place for place, label in enumerate(classes.tolist())}
    return classes, np.array([places[value] for value in values], np.int64)


def _check_whole(y: NDArray[Any]) -> None:
    digits = digits_of(y)
    _check_finite(y)
    odd = y[y != np.floor(y)]
    if len(odd):
        raise DataError(_CONTINUOUS.format(float(odd[0])))
    if len(y) and (far := y[np.abs(y).argmax()]) and abs(far) >= 1 << digits:
        raise DataError(
            f"y: label {far:.0f} is a {y.dtype}, which cannot hold every whole number beyond "
            f"2^{digits}: give labels as int or str, or number the classes"
        )


def _check_finite(y: NDArray[Any]) -> None:
    if np.isnan(y).any():
        raise DataError("Input y contains NaN: leave such rows out, or fill them")
    if np.isinf(y).any():
        raise DataError("Input y contains infinity or a value too large for dtype('float64').")


def targets_of(y: Any, who: str, rows: int = -1) -> NDArray[np.float64]:
    """Numbers to learn, float64 (n,)."""
    y = one_axis(y, who, rows)
    if not isinstance(y, np.ndarray):
        y = one_axis(np.asarray(y if hasattr(y, "__len__") else list(y)), who, rows)
    if y.dtype.kind not in "biufO":
        raise DataError(f"y: expected numbers, got {y.dtype}: a classifier learns labels")
    try:
        found = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"y: expected numbers: {error}") from None
    _check_finite(found)
    return np.asarray(found)


def weights_of(sample_weight: Any, rows: int) -> NDArray[np.float64] | None:
    """Weights of examples, float64 (rows,); None: 1."""
    if sample_weight is None:
        return None
    sample_weight = column_of(sample_weight, "sample_weight")
    refuse_masked(sample_weight, "sample_weight")
    try:
        found = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"sample_weight: expected numbers: {error}") from None
    if found.ndim == 0:
        found = np.full(rows, float(found))
    if found.shape != (rows,):
        raise DataError(f"sample_weight: expected shape ({rows},), got {found.shape}")
    if not np.isfinite(found).all() or found.min(initial=0) < 0:
        raise DataError("sample_weight: expected finite numbers of at least 0")
    if not found.any():
        raise DataError("sample_weight: all weights are zero: there is nothing to learn from")
    return found


def class_weights_of(
    class_weight: Any,
    classes: NDArray[Any],
    numbers: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
    who: str,
) -> NDArray[np.float64] | None:
    """Weight of each example by its class; None: 1.

    "balanced": inverse to the sum of the examples' `weights` of the class, so that an example of
    weight 2 counts as one that comes twice.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        sums = np.bincount(numbers, weights, minlength=len(classes))
        by_class = sums.sum() / (len(classes) * np.where(sums > 0, sums, 1))
        return np.asarray(by_class[numbers])
    if not isinstance(class_weight, Mapping):
        raise DataError(
            f"{who}: class_weight: expected a dict from labels to numbers, 'balanced' or None; got "
            f"{class_weight!r:.80}"
        )
    known = classes.tolist()
    unknown = [label for label in class_weight if label not in known]
    if len(unknown) == len(class_weight) and unknown:
        raise DataError(
            f"{who}: class_weight: no class {unknown[0]!r:.60} in y, which has {known!r:.120}"
        )
    try:
        by_class = np.array([float(class_weight.get(label, 1.0)) for label in known])
    except (TypeError, ValueError):
        by_class = np.array([-1.0])
    if not np.isfinite(by_class).all() or by_class.min() < 0:
        raise DataError(f"{who}: class_weight: expected finite numbers of at least 0")
    return np.asarray(by_class[numbers])


# --- errors ---------------------------------------------------------------------------------------


class _Both:
    """How an error of a class that is made here travels: by its text."""

    args: tuple[Any, ...]

    def __reduce__(self) -> Any:
        """For pickle."""
        return not_fitted, self.args


def not_fitted(text: str) -> NotFitted:
    """The error for an estimator that is not fitted; scikit-learn's, too, if that is loaded."""
    found = sys.modules.get("sklearn.exceptions")
    if found is None:
        return NotFitted(text)
    both = type("NotFitted", (_Both, NotFitted, found.NotFittedError), {"__module__": __name__})
    made: NotFitted = both(text)
    return made
