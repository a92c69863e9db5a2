"""Factorization machines as estimators: `FMClassifier`, `FMRegressor`.

    X, y [, fields of the columns] -> fit, partial_fit -> a job -> weights and factors by feature
        -> predict

Owns the fields of columns.  `sparse` reads X and predicts; `models.sparse.fm` trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.matrices import Matrix
from snailps.errors import ParameterError
from snailps.estimators.sparse import (
    NO_PARAMETERS,
    SparseClassifier,
    SparseEstimator,
    SparseRegressor,
)
from snailps.estimators.validation import CLASS_WEIGHT
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
        if use == "fit":
            return self._fields(matrix)
        # Of a model whose examples named their fields, no column has a known one.
        are_named = fitted is not None and not len(fitted)
        has_names = matrix.by_name or (matrix.files is not None and matrix.files.has_fields)
        if use == "partial_fit" or (are_named and not has_names):
            fields = self._fields(matrix)
        else:
            return fitted
        if are_named and fields is not None:
            self._refuse_more(fields)
            return fields
        if matrix.by_name and fitted is not None and fields is not None:
            return fields  # each column has its own, in files and in memory
        wanted, before = ([] if array is None else array.tolist() for array in (fields, fitted))
        if wanted != before:
            raise ParameterError(
                f"{type(self).__name__}: fields: the fitted model has others: partial_fit "
                "continues that model; call fit to train a new one"
            )
        return fields

    def _refuse_more(self, fields: NDArray[np.int64]) -> None:
        """Refuse fields of columns for which the model has no factors."""
        count = self._model.settings.fields
        if len(fields) and fields.max() >= count:
            raise ParameterError(
                f"{type(self).__name__}: fields: expected fields 0 to {count - 1:,}, as the model "
                f"has, for {len(fields):,} columns that name none, got {self.fields!r:.80}: "
                "set_params(fields=[...]) says which field each column has"
            )

    def _settings_of_columns(self, matrix: Matrix, *, continues: bool) -> dict[str, Any]:
        """Return the number of fields; a model that goes on keeps its number."""
        fields = matrix.fields
        if fields is None:
            return {}
        if continues:
            return {"fields": self._model.settings.fields}
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
        elif model.settings.fields:  # a file of `snailps train`: its examples named their fields
            attributes |= {"_fitted_fields": np.empty(0, np.int64), "fields": "columns"}
        return attributes

    def _fields(self, matrix: Matrix) -> NDArray[np.int64] | None:
        """Return the field of each column; empty: entries of files name theirs; None: no fields."""
        fields, name = self.fields, type(self).__name__
        if fields is None:
            return None
        if isinstance(fields, str) and fields == "columns":
            if matrix.files is not None and matrix.files.has_fields:
                return np.empty(0, np.int64)  # LIBFFM: field:column:value
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
            numbers = np.asarray(fields)
        except ValueError:
            numbers = np.empty(0)
        if (
            numbers.shape != (matrix.columns,)
            or numbers.dtype.kind not in "iu"
            or numbers.min() < 0
        ):
            raise ParameterError(
                f"{name}: fields: expected a number from 0 on for each of {matrix.columns:,} "
                f"columns, 'columns' or None; got {fields!r:.80}"
            )
        return numbers.astype(np.int64)


class FMClassifier(
    FactorizationEstimator,
    SparseClassifier,
    settings=FmSettings,
    without=NO_PARAMETERS,
    extra={**FIELDS, **CLASS_WEIGHT},
):
    """Factorization machine for two classes: linear weights, and factors for pairs of features.

    Parameters
    ----------
    factors, scale, lr, l2, factor_l2, eps, min_count, optimizer, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    held_out, stop_after, stop_by
        As in `LogisticRegression`.
    fields : sequence of int, "columns" or None
        Field of each column, from 0 on, which makes the machine field-aware.  "columns": each
        column is its own field; files of LIBFFM name the fields of their entries.
    class_weight : mapping, "balanced" or None
        As in `LogisticRegression`.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Attributes
    ----------
    classes_ : array (2,)
        The labels, sorted.

    Examples
    --------
    >>> X = [{"user": "ann", "film": "jaws"}, {"user": "bob", "film": "jaws"}] * 200
    >>> model = FMClassifier(factors=4).fit(X, [1, 0] * 200)  # doctest: +SKIP
    >>> model.predict([{"user": "ann", "film": "jaws"}])  # doctest: +SKIP
    array([1])
    """

    _multiclass = False
    _learns_by_heart = True


class FMRegressor(
    FactorizationEstimator,
    SparseRegressor,
    settings=FmSettings,
    fixed={"loss": "squared"},
    without=NO_PARAMETERS,
    extra=FIELDS,
):
    """Factorization machine for regression: linear weights, and factors for pairs of features.

    It is trained on ``(y - mean) / deviation``; then weights and factors are scaled back to the
    unit of y.

    Parameters
    ----------
    factors, scale, lr, l2, factor_l2, eps, min_count, optimizer, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    held_out, stop_after, stop_by
        As in `LogisticRegression`.
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
