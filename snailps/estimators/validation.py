"""y and weights of scikit-learn's users: what they may be, and scikit-learn's words otherwise.

    y -> labels_of -> classes, numbers    y -> targets_of -> float64    sample_weight -> weights_of

`sklearn.utils.estimator_checks` looks for these words in errors; scikit-learn itself is only used
where it is loaded already.  Whether numbers are finite is checked where they are written or scored.
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

_CONTINUOUS = (
    "Unknown label type: continuous. Labels of a classifier are str, bool or whole numbers; a "
    "regressor learns numbers such as {0!r}"
)


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
