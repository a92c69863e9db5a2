"""Factorization machines as estimators: `FMClassifier`, `FMRegressor`.

    X, y [, fields of the columns] -> fit, partial_fit -> a job -> weights and factors by feature
        -> predict

What training means is `models.sparse.fm`'s; how X becomes a file and is predicted, `sparse`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.matrices import Matrix
from snailps.errors import ParameterError
from snailps.estimators.sparse import (
    CLASS_WEIGHT,
    NO_PARAMETERS,
    SparseClassifier,
    SparseEstimator,
    SparseRegressor,
)
from snailps.models.sparse.fm import FmSettings

FIELDS: Mapping[str, tuple[str, Any]] = {
    "fields": ('Sequence[int] | Literal["columns"] | None', None)
}


class FactorizationEstimator(SparseEstimator):
    """A factorization machine, plain or field-aware."""

    worker_class = "snailps.models.sparse.fm:FactorizationMachine"
    _must_match = ("optimizer", "factors")
    fields: Any
    _fitted_fields: NDArray[np.int64] | None = None

    def _fields_of(self, matrix: Matrix, use: str) -> NDArray[np.int64] | None:
        fitted = self._fitted_fields
        if use in ("predict", "score"):
            return fitted
        fields = self._fields(matrix)
        both = [[] if one is None else one.tolist() for one in (fields, fitted)]
        if use == "partial_fit" and both[0] != both[1]:
            raise ParameterError(
                f"{type(self).__name__}: fields: the fitted model has others: partial_fit goes on "
                "with that model; call fit for another one"
            )
        return fields

    def _settings_of_columns(self, matrix: Matrix) -> dict[str, Any]:
        """The number of fields."""
        fields = matrix.fields
        if fields is None:
            return {}
        if len(fields) == 0:
            assert matrix.files is not None
            return {"fields": matrix.files.field_num}
        return {"fields": matrix.columns if matrix.by_name else int(fields.max()) + 1}

    def _needs_width(self) -> bool:
        return isinstance(self.fields, Sequence) and self.fields != "columns"

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        attributes = super()._described(model, about, classes)
        if "fields" in about:
            fields = attributes["_fitted_fields"] = np.array(about["fields"], np.int64)
            is_numbered = fields.size and not attributes["_hashed"]
            attributes["fields"] = fields.tolist() if is_numbered else "columns"
        return attributes

    def _fields(self, matrix: Matrix) -> NDArray[np.int64] | None:
        """Return each column's field; None: there are none; empty: entries have their own."""
        fields, name = self.fields, type(self).__name__
        if fields is None:
            return None
        if isinstance(fields, str) and fields == "columns":
            if matrix.files is not None and matrix.files.has_fields:
                return np.empty(0, np.int64)  # its entries have their own
            if matrix.columns < 0:
                what = "dicts" if matrix.files is None else "lines without fields"
                raise ParameterError(f"{name}: fields: {what} have no columns: give a table")
            return np.arange(matrix.columns)
        if matrix.by_name:
            raise ParameterError(
                f"{name}: fields: expected 'columns' or None with tables that have texts and with "
                f"dicts; got {fields!r:.80}"
            )
        try:
            found = np.asarray(fields)
        except ValueError:
            found = np.empty(0)
        if found.shape != (matrix.columns,) or found.dtype.kind not in "iu" or found.min() < 0:
            raise ParameterError(
                f"{name}: fields: expected a number from 0 on for each of {matrix.columns:,} "
                f"columns, 'columns' or None; got {fields!r:.80}"
            )
        return found.astype(np.int64)


class FMClassifier(
    FactorizationEstimator,
    SparseClassifier,
    settings=FmSettings,
    without=NO_PARAMETERS,
    extra={**FIELDS, **CLASS_WEIGHT},
):
    """A factorization machine for two classes: a weight a feature, a product a pair of features.

    Parameters
    ----------
    factors, scale, lr, l2, factor_l2, eps, min_count, optimizer, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    fields : sequence of int, "columns" or None
        Field of each column: the machine is field-aware.  "columns": each is a field of its own;
        files of LIBFFM have their own.
    class_weight : mapping, "balanced" or None
        Weight of the examples of each label; "balanced": inverse to the sum of their weights.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Attributes
    ----------
    classes_ : array
        The two labels, sorted.

    Examples
    --------
    >>> X = [{"user": "ann", "film": "jaws"}, {"user": "bob", "film": "jaws"}] * 200
    >>> model = FMClassifier(factors=4).fit(X, [1, 0] * 200)  # doctest: +SKIP
    >>> model.predict([{"user": "ann", "film": "jaws"}])  # doctest: +SKIP
    array([1])
    """

    _multiclass = False


class FMRegressor(
    FactorizationEstimator,
    SparseRegressor,
    settings=FmSettings,
    fixed={"loss": "squared"},
    without=NO_PARAMETERS,
    extra=FIELDS,
):
    """A factorization machine for numbers: a weight a feature, a product a pair of features.

    It learns ``(y - mean) / deviation`` and scales weights and factors back.

    Parameters
    ----------
    factors, scale, lr, l2, factor_l2, eps, min_count, optimizer, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    fields
        As in `FMClassifier`.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Examples
    --------
    >>> X = [{"user": "ann", "film": "jaws"}, {"user": "bob", "film": "jaws"}] * 200
    >>> model = FMRegressor(factors=4).fit(X, [5.0, 1.0] * 200)  # doctest: +SKIP
    >>> model.predict(X[:1]).round()  # doctest: +SKIP
    array([5.])
    """
