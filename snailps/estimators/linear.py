"""Linear models as estimators: `LogisticRegression`, `LinearRegression`.

    CSR or dense array, y -> spool_matrix -> a job -> .npz -> coef_, intercept_
    X -> X @ coef_.T + intercept_ -> decision_function, predict, predict_proba

Columns of X are the features.  What training means is `models.sparse`'; how X becomes a file,
`data.matrix_writer`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.data.matrix_writer import spool_matrix
from snailps.errors import DataError
from snailps.estimators.base import Estimator
from snailps.estimators.jobs import Finished
from snailps.estimators.labels import numbered, values_of
from snailps.models.sparse.batch import BIAS_KEY
from snailps.models.sparse.export import read_npz
from snailps.models.sparse.linear import LinearSettings

Floats = NDArray[np.float32]
_NO_PARAMETERS = (
    "format", "columns", "hash_bits", "on_bad_line", "expire_after", "formats", "loss", "classes",
)  # fmt: skip


class LinearEstimator(Estimator):
    """A linear model of the columns of a matrix.

    Attributes
    ----------
    coef_ : float32 (outputs, features)
    intercept_ : float32 (outputs,)
    n_features_in_ : int
    """

    worker_class = "snailps.models.sparse.linear:Linear"
    coef_: Floats
    intercept_: Floats
    n_features_in_: int

    def _train_on(self, X: Any, y: NDArray[np.float32], settings: Mapping[str, Any]) -> None:
        """Trains; X is checked by what writes it."""
        shape = _shape_of(X)
        with spool_matrix(X, y) as given:
            self._columns = shape[1]
            self._fit(given, settings)

    def _take(self, done: Finished) -> None:
        saved = read_npz(done.files[0])
        bias = saved.keys == np.uint64(BIAS_KEY)
        outputs = saved.rows.shape[1]
        coef = np.zeros((outputs, self._columns), np.float32)
        coef[:, saved.keys[~bias].astype(np.int64)] = saved.rows[~bias].T
        self.coef_, self.n_features_in_ = coef, self._columns
        found: Floats = saved.rows[bias].sum(axis=0, dtype=np.float32)
        self.intercept_ = found

    def _scores(self, X: Any) -> Floats:
        """Scores, float32 (n, outputs)."""
        self._refuse_unfitted("predict")
        columns = _shape_of(X)[1]
        if columns != self.n_features_in_:
            raise DataError(
                f"X: expected {self.n_features_in_:,} columns, as in fit; got {columns:,}"
            )
        scores: Floats = np.asarray(X @ self.coef_.T, np.float32) + self.intercept_
        return scores

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, which has imported scikit-learn."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = False, True
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags


class LogisticRegression(LinearEstimator, settings=LinearSettings, without=_NO_PARAMETERS):
    """Logistic regression, of more than two classes multinomial, on sparse or dense matrices.

    Parameters
    ----------
    lr, l1, l2, beta, bias, class_weights, min_count, optimizer, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
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

    _estimator_type = "classifier"
    classes_: NDArray[Any]

    def fit(self: L, X: Any, y: Any) -> L:
        """Learns weights of the columns; forgets what was learnt before.

        Parameters
        ----------
        X : scipy.sparse matrix or array of two axes
            n examples.  A CSR matrix is written as it is.
        y : sequence or array of str, int, bool or float
            A label for each example; two different ones at least.

        Raises
        ------
        ParameterError
            A parameter is wrong.
        DataError
            X or y have another form, or are not finite.
        ClusterError
            The job failed; the estimator is what it was before.
        """
        classes, numbers = numbered(y)
        if len(classes) < 2:
            raise DataError(
                f"y: expected two different labels at least, got {len(classes)}: "
                f"{classes.tolist()!r:.60}"
            )
        several = {"loss": "multinomial", "classes": len(classes)} if len(classes) > 2 else {}
        self._train_on(X, numbers, several)
        self.classes_ = classes
        return self

    def decision_function(self, X: Any) -> Floats:
        """Scores: (n,) of the second class if there are two, else (n, classes)."""
        scores = self._scores(X)
        found: Floats = scores[:, 0] if scores.shape[1] == 1 else scores
        return found

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each of `classes_`, float32 (n, classes)."""
        scores = self._scores(X)
        if scores.shape[1] == 1:
            scores = np.concatenate((np.zeros_like(scores), scores), axis=1)
        chances: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        return chances

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each example, (n,)."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def score(self, X: Any, y: Any) -> float:
        """The share of examples whose class is predicted right, 0 to 1."""
        said, values = self.predict(X).tolist(), values_of(y)
        if len(said) != len(values) or not said:
            raise DataError(
                f"y: expected {len(said):,} labels, one an example; got {len(values):,}"
            )
        right = sum(bool(one == other) for one, other in zip(said, values, strict=True))
        return right / len(said)

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, which has imported scikit-learn."""
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        return tags


class LinearRegression(
    LinearEstimator,
    settings=LinearSettings,
    fixed={"loss": "squared"},
    without=(*_NO_PARAMETERS, "class_weights"),
):
    """Linear regression with the squared loss, on sparse or dense matrices.

    Parameters
    ----------
    lr, l1, l2, beta, bias, min_count, optimizer, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    cluster, workers, callbacks, verbose
        As of `FastText`.
    """

    _estimator_type = "regressor"

    def fit(self: R, X: Any, y: Any) -> R:
        """Learns weights of the columns; forgets what was learnt before.

        Parameters
        ----------
        X : scipy.sparse matrix or array of two axes
            n examples.  A CSR matrix is written as it is.
        y : array of n numbers

        Raises
        ------
        ParameterError, DataError, ClusterError
            As `LogisticRegression.fit`.
        """
        self._train_on(X, np.asarray(y, np.float32), {})
        return self

    def predict(self, X: Any) -> Floats:
        """A number for each example, float32 (n,)."""
        found: Floats = self._scores(X)[:, 0]
        return found

    def score(self, X: Any, y: Any) -> float:
        """The coefficient of determination, R^2: at most 1."""
        wanted = np.asarray(y, np.float64)
        left = wanted - self.predict(X)
        spread = float(((wanted - wanted.mean()) ** 2).sum())
        return 1.0 - float((left**2).sum()) / spread if spread else 0.0

    def __sklearn_tags__(self) -> Any:
        """For `sklearn.utils.get_tags`, which has imported scikit-learn."""
        from sklearn.utils import RegressorTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags


L = TypeVar("L", bound=LogisticRegression)
R = TypeVar("R", bound=LinearRegression)


def _shape_of(X: Any) -> tuple[int, int]:
    """Rows and columns.

    Raises
    ------
    DataError
        It is no matrix.
    """
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) != 2 or not hasattr(X, "dtype"):
        raise DataError(
            "X: expected a matrix of scipy.sparse or a NumPy array of two axes, got "
            f"{type(X).__name__}{list(shape) if shape else ''}: convert tables by .to_numpy()"
        )
    return int(shape[0]), int(shape[1])
