"""Linear models as estimators: `LogisticRegression`, `LinearRegression`, `PoissonRegressor`.

    X, y -> fit -> a job -> weights by column: coef_, intercept_

Owns `coef_` and `intercept_`.  `sparse` reads X and predicts; `models.sparse` trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError, NotFitted
from snailps.estimators.sparse import (
    NO_PARAMETERS,
    SparseClassifier,
    SparseEstimator,
    SparseRegressor,
)
from snailps.estimators.validation import CLASS_WEIGHT
from snailps.files.extras import optional_module
from snailps.models.packed_tables import GrownClasses, Packed, grown
from snailps.models.sparse.batch import BIAS_KEY, TABLE
from snailps.models.sparse.linear import LinearSettings

Floats = NDArray[np.float32]
T = TypeVar("T", bound="LinearEstimator")
DENSE_MAX = 1 << 28
"""Largest dense `coef_`, in weights (1 GiB); a larger one is refused with a hint at `sparsify`."""


class LinearEstimator(SparseEstimator):
    """A linear model of the columns of a matrix, or of features by name.

    Attributes
    ----------
    coef_ : float32 (outputs, columns)
        Weights.  Not available after fitting on dicts or on tables with texts, where features have
        names instead of columns.
    intercept_ : float64 (outputs,)
        Constants.
    """

    worker_class = "snailps.models.sparse.linear:Linear"
    _must_match = ("optimizer", "bias")
    _is_sparse = False

    @property
    def coef_(self) -> Any:
        """Weights, float32 (outputs, columns); after `sparsify` a CSR matrix.

        There is one output for a regression and for two classes, else one a class.

        Raises
        ------
        NotFitted
            `fit` was not called, or features have names instead of columns.
        DataError
            The array would exceed 1 GiB: call `sparsify` first.
        """
        self._refuse_unfitted("coef_")
        model = self._model
        if self._hashed or model.settings.hash_bits:
            raise NotFitted(
                f"{type(self).__name__}: coef_: the model was fitted on features with names, "
                "which have no column"
            )
        is_column = model.keys != np.uint64(BIAS_KEY)
        keys, rows = model.keys[is_column].astype(np.int64), model.rows[is_column]
        columns = self.__dict__.get("n_features_in_", int(keys[-1]) + 1 if len(keys) else 0)
        outputs = rows.shape[1]
        if self._is_sparse:
            return _csr(keys, rows, columns)
        if outputs * columns > DENSE_MAX:
            raise DataError(
                f"coef_: an array of {outputs:,} x {columns:,} would take "
                f"{4 * outputs * columns >> 30:,} GiB: call sparsify() first"
            )
        coef = np.zeros((outputs, columns), np.float32)
        coef[:, keys] = rows.T
        return coef

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """Constants, float64 (outputs,)."""
        self._refuse_unfitted("intercept_")
        of_bias = self._model.rows[self._model.keys == np.uint64(BIAS_KEY)]
        return np.asarray(of_bias.sum(axis=0, dtype=np.float64) + getattr(self, "_offset", 0.0))

    def sparsify(self: T) -> T:
        """Make `coef_` a CSR matrix of `scipy.sparse`; needed if an array would exceed 1 GiB."""
        self._refuse_unfitted("sparsify")
        self._is_sparse = True
        return self

    def densify(self: T) -> T:
        """Make `coef_` a dense array again."""
        self._refuse_unfitted("densify")
        self._is_sparse = False
        return self


def _csr(keys: NDArray[np.int64], rows: Floats, columns: int) -> Any:
    """Build a CSR matrix (outputs, columns) of the weights of some columns."""
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
    """Logistic regression on sparse or dense data; multinomial for more than two classes.

    Parameters
    ----------
    lr, l1, l2, beta, bias, min_count, optimizer, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    held_out : float
        Share of the rows, 0 to 0.9, that is not trained, on which the model is tested after each
        epoch; ``figures_["tests"]`` has the figures.  Which rows depends on their values, their
        label and `seed`.
    stop_after : int
        Epochs in a row without a smaller loss on these rows after which the training ends; the
        model is then the one of the best epoch, ``figures_["best_epoch"]``.  0: all epochs are
        trained.
    stop_by : str
        Another figure than the loss: ``"accuracy"``; of two classes ``"auc"``; of numbers
        ``"mae"``.
    class_weight : mapping from label to number, "balanced" or None
        Factor for the weights of a label's examples; labels that are not in it have 1.
        "balanced": inversely proportional to the label's total weight in the rows that are
        trained.  Figures of rows that are held out are without it.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Attributes
    ----------
    classes_ : array (classes,)
        The labels, sorted.

    Examples
    --------
    >>> X = np.eye(3, dtype=np.float32)[[0, 1, 2] * 100]
    >>> model = LogisticRegression(lr=0.5).fit(X, ["a", "b", "b"] * 100)  # doctest: +SKIP
    >>> model.predict(X[:2])  # doctest: +SKIP
    array(['a', 'b'], dtype='<U1')
    """

    def _grown(self, classes: GrownClasses) -> Mapping[str, Packed]:
        return {TABLE: grown(self._packed[TABLE], classes, BIAS_KEY)}


class LinearRegression(
    LinearEstimator,
    SparseRegressor,
    settings=LinearSettings,
    fixed={"loss": "squared"},
    without=NO_PARAMETERS,
):
    """Linear regression with the squared loss, on sparse or dense data.

    It is trained on ``(y - mean) / deviation``, to which `l1` and `l2` apply too; then the weights
    are scaled back to the unit of y.

    Parameters
    ----------
    lr, l1, l2, beta, bias, min_count, optimizer, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    held_out, stop_after, stop_by
        As in `LogisticRegression`.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> X = np.random.default_rng(1).normal(size=(1000, 3))
    >>> y = X @ [1, 2, 3] + 100
    >>> model = LinearRegression(epochs=20).fit(X, y)  # doctest: +SKIP
    >>> model.score(X, y) > 0.99  # doctest: +SKIP
    True
    """


class PoissonRegressor(
    LinearEstimator,
    SparseRegressor,
    settings=LinearSettings,
    fixed={"loss": "poisson"},
    without=NO_PARAMETERS,
):
    """Poisson regression of counts, with mean exp(w.x + b), on sparse or dense data.

    It is trained on ``y / mean``, so b starts at the logarithm of the mean, and `l2` is
    scikit-learn's ``alpha`` / mean.  y must not be negative.  `score` is D^2, the explained share
    of the deviance.

    Parameters
    ----------
    lr, l1, l2, beta, bias, min_count, optimizer, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    held_out, stop_after, stop_by
        As in `LogisticRegression`.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(2000, 3))
    >>> y = rng.poisson(np.exp(X @ [0.5, -0.3, 0.2] + 1))
    >>> model = PoissonRegressor(epochs=20).fit(X, y)  # doctest: +SKIP
    >>> model.score(X, y) > 0.4  # doctest: +SKIP
    True
    """

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`: counts are not negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
