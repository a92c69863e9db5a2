"""Linear models as estimators: `LogisticRegression`, `LinearRegression`.

    X, y -> fit -> a job -> weights by column: coef_, intercept_       more -> partial_fit
    weights and state (FTRL's sums) -> .npz -> continue_from of the next job

What training means is `models.sparse`'; how X becomes a file and is predicted, `sparse`'.
"""

from __future__ import annotations

import tempfile
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError, NotFitted, ParameterError
from snailps.estimators.jobs import Packed
from snailps.estimators.labels import classes_of
from snailps.estimators.sparse import (
    CLASS_WEIGHT,
    NO_PARAMETERS,
    SparseClassifier,
    SparseEstimator,
    SparseRegressor,
    centre_of,
    model_path,
)
from snailps.estimators.validation import (
    Matrix,
    check_columns,
    labels_of,
    matrix_of,
    targets_of,
    weights_of,
)
from snailps.models.sparse.batch import BIAS_KEY
from snailps.models.sparse.export import write_packed
from snailps.models.sparse.linear import LinearSettings
from snailps.models.sparse.worker import TABLE
from snailps.vectors.extras import optional_module

Floats = NDArray[np.float32]
T = TypeVar("T", bound="LinearEstimator")
L = TypeVar("L", bound="LogisticRegression")
R = TypeVar("R", bound="LinearRegression")
DENSE_MAX = 1 << 28
"""Weights that `coef_` has at most; more are sparse."""
ONE_PASS = MappingProxyType({"epochs": 1})


class LinearEstimator(SparseEstimator):
    """A linear model of the columns of a matrix, or of features by name.

    Attributes
    ----------
    coef_ : float32 (outputs, features)
        Weights of the columns; none where features have names (tables with texts, and dicts).
    intercept_ : float64 (outputs,)
    """

    worker_class = "snailps.models.sparse.linear:Linear"
    _kept_table = TABLE
    _is_sparse = False

    @property
    def coef_(self) -> Any:
        """Weights, float32 (outputs, features); after `sparsify` a CSR matrix."""
        self._refuse_unfitted("coef_")
        columns = self.__dict__.get("n_features_in_", -1)
        if self._hashed or columns < 0:
            raise NotFitted(f"{type(self).__name__}: coef_: features have names, not columns")
        model = self._model
        is_column = model.keys != np.uint64(BIAS_KEY)
        keys, rows = model.keys[is_column].astype(np.int64), model.rows[is_column]
        outputs = rows.shape[1]
        if self._is_sparse:
            return _csr(keys, rows, columns)
        if outputs * columns > DENSE_MAX:
            raise DataError(
                f"coef_: {outputs:,} x {columns:,} are {4 * outputs * columns >> 30:,} GiB:"
                " call sparsify() first"
            )
        coef = np.zeros((outputs, columns), np.float32)
        coef[:, keys] = rows.T
        return coef

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """The constant of each output, (outputs,)."""
        self._refuse_unfitted("intercept_")
        of_bias = self._model.rows[self._model.keys == np.uint64(BIAS_KEY)]
        return np.asarray(of_bias.sum(axis=0, dtype=np.float64) + getattr(self, "_offset", 0.0))

    def sparsify(self: T) -> T:
        """Makes `coef_` a CSR matrix of `scipy.sparse`, which it must be of very many columns."""
        self._refuse_unfitted("sparsify")
        self._is_sparse = True
        return self

    def densify(self: T) -> T:
        """Makes `coef_` an array again."""
        self._refuse_unfitted("densify")
        self._is_sparse = False
        return self

    def _refuse_other_rows(self, matrix: Matrix) -> None:
        """Refuses to go on with other columns, optimizer or bias than the model has."""
        check_columns(matrix, self)
        before = self._model.settings
        for name in ("optimizer", "bias"):
            if (now := self._parameter(name)) != getattr(before, name):
                raise ParameterError(
                    f"{type(self).__name__}: {name}: the fitted model has "
                    f"{getattr(before, name)!r}, got {now!r:.80}: partial_fit goes on with that "
                    "model; call fit for another one"
                )
        if self._packed is None:
            raise NotFitted(
                f"{type(self).__name__}: the model was loaded from a file of weights alone, "
                "without the optimizer's state: call fit"
            )


def _csr(keys: NDArray[np.int64], rows: Floats, columns: int) -> Any:
    """Weights of some columns as a CSR matrix (outputs, columns)."""
    sparse = optional_module("scipy.sparse", "sparsify", "scipy")
    outputs = rows.shape[1]
    ptr = np.arange(outputs + 1) * len(keys)
    return sparse.csr_matrix(
        (rows.T.ravel(), np.tile(keys, outputs), ptr), shape=(outputs, columns)
    )


class LogisticRegression(
    LinearEstimator,
    SparseClassifier,
    settings=LinearSettings,
    without=NO_PARAMETERS,
    extra=CLASS_WEIGHT,
):
    """Logistic regression, of more than two classes multinomial, on sparse or dense matrices.

    Parameters
    ----------
    lr, l1, l2, beta, bias, min_count, optimizer, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    class_weight : mapping, "balanced" or None
        Weight of the examples of each label; "balanced": inverse to their number.
    cluster, workers, callbacks, verbose
        As of `FastText`.

    Attributes
    ----------
    classes_ : array
        The labels, sorted.

    Examples
    --------
    >>> X = np.eye(3, dtype=np.float32)[[0, 1, 2] * 100]
    >>> model = LogisticRegression(lr=0.5).fit(X, ["a", "b", "b"] * 100)  # doctest: +SKIP
    >>> model.predict(X[:2])  # doctest: +SKIP
    array(['a', 'b'], dtype='<U1')
    """

    def partial_fit(self: L, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> L:
        """Goes on with other examples: one pass over X, with the steps that the model is at.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`; y may have one class only.
        classes : sequence, optional
            All labels, known at the first call: columns of `predict_proba` then stay.  New labels
            may come later, too.

        Raises
        ------
        ParameterError, DataError, ClusterError
            As of `fit`; or X has other columns, or the optimizer was changed.
        """
        self._checked(ONE_PASS)
        matrix = matrix_of(X)
        name = type(self).__name__
        goes_on = self._is_fitted
        if goes_on:
            self._refuse_other_rows(matrix)
        found, numbers = labels_of(y, name, matrix.rows)
        known = self.classes_ if goes_on else np.empty(0)
        every = classes_of(found.tolist(), known.tolist())
        if classes is not None:
            every = classes_of(every.tolist(), list(np.asarray(classes).tolist()))
        if len(every) < 2:
            raise DataError(
                f"y: expected labels of two classes at least, got one class: {every.tolist()!r:.60}"
                ". Name those that come later: partial_fit(X, y, classes=[...])"
            )
        numbers = np.searchsorted(every, found)[numbers]
        weights = self._weights(sample_weight, every, numbers, matrix.rows)
        settings = {**ONE_PASS, **self._of_classes(len(every))}
        if not goes_on:
            self._train_on(matrix, numbers, weights, settings)
            self._keep_shape(matrix)
        else:
            packed = grown(self._packed, known, every)
            with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
                settings["continue_from"] = _written(folder, self._model.settings, packed, every)
                self._train_on(matrix, numbers, weights, settings, first=False)
        self.classes_ = every
        return self


def grown(packed: Packed | None, known: NDArray[Any], every: NDArray[Any]) -> Packed:
    """Rows with state of a model of more classes: those that are new begin with zeros.

    Two classes have one output, the second's; more have one each.
    """
    assert packed is not None
    if len(known) == len(every):
        return packed
    outputs = 1 if len(known) == 2 else len(known)
    count = len(packed.rows)
    parts = packed.rows.shape[1] // outputs
    wide = packed.rows.reshape(count, parts, outputs)
    places = np.searchsorted(every, known)[-outputs:]
    made = np.zeros((count, parts, len(every)), np.float32)
    made[:, :, places] = wide
    return Packed(packed.keys, made.reshape(count, parts * len(every)))


def _written(folder: str, settings: Any, packed: Packed, classes: NDArray[Any]) -> str:
    """A file for a job that goes on with these rows."""
    outputs = 1 if len(classes) <= 2 else len(classes)
    return write_packed(model_path(folder), settings, packed.keys, packed.rows, outputs)


class LinearRegression(
    LinearEstimator,
    SparseRegressor,
    settings=LinearSettings,
    fixed={"loss": "squared"},
    without=NO_PARAMETERS,
):
    """Linear regression with the squared loss, on sparse or dense matrices.

    It learns ``(y - mean) / deviation`` and scales the weights back; `l1` and `l2` apply to the
    scaled ones.  Columns should have similar scales.

    Parameters
    ----------
    lr, l1, l2, beta, bias, min_count, optimizer, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    cluster, workers, callbacks, verbose
        As of `FastText`.

    Examples
    --------
    >>> X = np.random.default_rng(1).normal(size=(1000, 3))
    >>> y = X @ [1, 2, 3] + 100
    >>> model = LinearRegression(epochs=20).fit(X, y)  # doctest: +SKIP
    >>> model.score(X, y) > 0.99  # doctest: +SKIP
    True
    """

    def partial_fit(self: R, X: Any, y: Any, sample_weight: Any = None) -> R:
        """Goes on with other examples: one pass over X, with the steps that the model is at.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`.  Mean and deviation of y are those of the first call.

        Raises
        ------
        ParameterError, DataError, ClusterError
            As of `fit`; or X has other columns, or the optimizer was changed.
        """
        self._checked(ONE_PASS)
        matrix = matrix_of(X)
        goes_on = self._is_fitted
        if goes_on:
            self._refuse_other_rows(matrix)
        targets = targets_of(y, type(self).__name__, matrix.rows)
        weights = weights_of(sample_weight, matrix.rows)
        if not goes_on:
            centre = centre_of(targets, weights, self._has_bias())
            self._learn(matrix, targets, weights, centre, settings=ONE_PASS)
            return self
        assert self._packed is not None
        with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
            before = _written(folder, self._model.settings, self._packed, np.empty(0))
            settings = {**ONE_PASS, "continue_from": before}
            self._learn(matrix, targets, weights, self._centre, settings=settings, first=False)
        return self
