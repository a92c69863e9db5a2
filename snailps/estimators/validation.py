"""Validation of y, sample_weight and class_weight, with errors in scikit-learn's words.

    y -> labels_of -> classes, numbers    y -> targets_of -> float64    sample_weight -> weights_of

`sklearn.utils.estimator_checks` looks for some of these words, so they must not be reworded.
scikit-learn is used only if the program has imported it.  X is not checked here: its values are
checked where they are written or scored, which saves a pass over them.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import column_of, digits_of, refuse_masked
from snailps.errors import DataError, NotFitted
from snailps.estimators.labels import classes_of, values_of
from snailps.models.class_weights import BALANCED, balanced

CLASS_WEIGHT: Mapping[str, tuple[str, Any]] = {
    "class_weight": ('Mapping[Any, float] | Literal["balanced"] | None', None)
}
"""The parameter of classifiers."""
_CONTINUOUS = (
    "Unknown label type: continuous. Labels of a classifier are str, bool or whole numbers; a "
    "regressor learns numbers such as {0!r}"
)


def one_axis(y: Any, who: str, rows: int = -1) -> Any:
    """Convert y to an array of one axis if it has a form of an array; check its length.

    `who` is the class, for messages; `rows` is the expected length, -1 for any.
    """
    if y is None:
        raise DataError(f"This {who} requires y to be passed, but the target y is None")
    if isinstance(y, str):
        raise DataError(
            f"y: expected a value for each row of X, got the str {y!r:.80}. If it names a column "
            "of X, give that column as y, and X without it"
        )
    y = column_of(y, "y")
    if hasattr(y, "to_numpy"):
        with contextlib.suppress(TypeError, ValueError):  # pyarrow refuses if it had to copy
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
    """Warn as scikit-learn does, if the program uses it."""
    exceptions = sys.modules.get("sklearn.exceptions")
    if exceptions is not None:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Please change the shape of "
            "y to (n_samples, ), for example using ravel().",
            exceptions.DataConversionWarning,
            stacklevel=4,
        )


def labels_of(y: Any, who: str, rows: int = -1) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the distinct labels, sorted, and the index of each label among them, int64 (n,)."""
    y = one_axis(y, who, rows)
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuUf":
        if y.dtype.kind == "f":
            _check_whole(y)
        return numbered(y)
    values = values_of(y)
    if rows >= 0 and len(values) != rows:
        raise DataError(f"y: expected {rows:,} labels, one for each row of X; got {len(values):,}")
    if any(isinstance(value, float) for value in values):
        _check_whole(np.array(values, np.float64))
    classes = classes_of(values)
    places = {label: place for place, label in enumerate(classes.tolist())}
    return classes, np.array([places[value] for value in values], np.int64)


def numbered(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """`np.unique` with the inverse, int64, of whole numbers, bools or texts.

    Numbers near each other are counted, which takes a third of the time of a sort.
    """
    if y.dtype.kind in "biuf" and len(y) and float(y.max()) - float(y.min()) < len(y):
        # In a type in which differences of whole numbers are exact.
        wide = y if y.dtype.kind == "u" else y.astype(np.float64 if y.dtype.kind == "f" else int)
        least = wide.min()
        numbers = (wide - least).astype(np.int64, copy=False)
        is_used = np.bincount(numbers) > 0
        used = np.flatnonzero(is_used)
        if len(used) < len(is_used):
            numbers = (np.cumsum(is_used) - 1)[numbers]
        return (used.astype(wide.dtype) + least).astype(y.dtype), numbers
    classes, numbers = np.unique(y, return_inverse=True)
    return classes, numbers.astype(np.int64)


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
    """Convert y to finite numbers, float64 (n,), for a regression."""
    y = one_axis(y, who, rows)
    if not isinstance(y, np.ndarray):
        y = one_axis(np.asarray(y if hasattr(y, "__len__") else list(y)), who, rows)
    if y.dtype.kind not in "biufO":
        raise DataError(f"y: expected numbers, got {y.dtype}: a classifier learns labels")
    try:
        targets = y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"y: expected numbers: {error}") from None
    _check_finite(targets)
    return np.asarray(targets)


def weights_of(sample_weight: Any, rows: int) -> NDArray[np.float64] | None:
    """Convert sample_weight to float64 (rows,); None: every weight is 1.

    A single number is the weight of every example.
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, str):
        raise DataError(
            "sample_weight: expected numbers, one a row, as X is in memory; a name is for a column "
            f"of tables in files, got {sample_weight!r:.60}"
        )
    sample_weight = column_of(sample_weight, "sample_weight")
    refuse_masked(sample_weight, "sample_weight")
    try:
        weights = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"sample_weight: expected numbers: {error}") from None
    if weights.ndim == 0:
        weights = np.full(rows, float(weights))
    if weights.shape != (rows,):
        raise DataError(f"sample_weight: expected shape ({rows},), got {weights.shape}")
    if not np.isfinite(weights).all() or weights.min(initial=0) < 0:
        raise DataError("sample_weight: expected finite numbers of at least 0")
    if not weights.any():
        raise DataError("sample_weight: all weights are zero: there is nothing to learn from")
    return weights


def class_weights_of(
    class_weight: Any,
    classes: NDArray[Any],
    numbers: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
    who: str,
) -> NDArray[np.float64] | None:
    """Return the factor of each example's weight by its class, float64 (n,); None: 1.

    "balanced" is inversely proportional to the sum of `weights` of a class, so an example of
    weight 2 counts like two examples.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == BALANCED:
        sums = np.bincount(numbers, weights, minlength=len(classes))
        return np.asarray(balanced(sums)[numbers])
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
    if not by_class.any():
        raise DataError(
            f"{who}: class_weight: expected a number above 0, got 0 for all classes of y: nothing "
            "would be learnt"
        )
    return np.asarray(by_class[numbers])


# --- errors ---------------------------------------------------------------------------------------


class _Both:
    """Pickles an error by its text: its class exists only in processes with scikit-learn."""

    args: tuple[Any, ...]

    def __reduce__(self) -> Any:
        """For pickle."""
        return not_fitted, self.args


def not_fitted(text: str) -> NotFitted:
    """Make the error of an unfitted estimator; also a NotFittedError if scikit-learn is loaded."""
    exceptions = sys.modules.get("sklearn.exceptions")
    if exceptions is None:
        return NotFitted(text)
    bases = (_Both, NotFitted, exceptions.NotFittedError)
    error: NotFitted = type("NotFitted", bases, {"__module__": __name__})(text)
    return error
