"""Files as the X of estimators of rows.

    path, y [, a fitted model] -> matrix_of_files -> Matrix whose rows are read later, and labels

What files are is `data.example_files`'; what a fitted model expects of them, this module's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snailps.data.blocks import files_of
from snailps.data.columns import Kind, columns_of
from snailps.data.elements import a_kind
from snailps.data.example_files import UNKNOWN, LineExamples, example_files
from snailps.data.reading import ENDINGS, format_of
from snailps.errors import DataError
from snailps.estimators.corpus import paths_of
from snailps.estimators.validation import Matrix


def matrix_of_files(
    X: Any,
    y: Any,
    columns: Sequence[str],
    fitted: Any = None,
    *,
    predicts: bool = False,
    scores: bool = False,
    width: bool = False,
) -> Matrix:
    """Examples of files; nothing but their beginnings is read yet.

    Parameters
    ----------
    X : path, or list of `pathlib.Path`
    y : str or None
        The column of the labels, of tables.
    columns : sequence of str
        Declarations of some of their columns.
    fitted : estimator or None
        The model that goes on or predicts: columns are its own.
    predicts : bool
        Whether there need be no labels, and may be other columns.
    scores : bool
        Whether there may be other columns.
    width : bool
        Whether the number of columns has to be known.

    Raises
    ------
    ConfigError, DataError
        As `example_files`; or y is no name.
    """
    paths = paths_of(X, "rows are a matrix, an array, a table or a list of dicts")
    if y is not None and not isinstance(y, str):
        raise DataError(
            f"y: expected the name of a column of the file {X!s:.80}, or None where its lines have "
            f"their labels; got {a_kind(y)}"
        )
    if isinstance(columns, str):
        raise DataError(f"columns: expected a list such as ['age:numeric'], got {columns!r:.60}")
    label = y or ""
    declared, names = tuple(columns), []
    if fitted is not None:
        if declared and set(declared) - set(fitted._declared):
            raise DataError(
                "columns: the fitted model has its own, columns_: call fit for another one"
            )
        names = list(getattr(fitted, "feature_names_in_", ()))
        kinds = columns_of(fitted._declared, needs_label=False) if fitted._declared else ()
        declared = tuple(
            text
            for text, column in zip(fitted._declared, kinds, strict=True)
            if column.kind is not Kind.LABEL and column.name != label
        )
        _refuse_other_kind(paths, fitted)
        if not predicts:
            label = label or fitted._label
    found = example_files(
        paths,
        label,
        declared,
        names=names,
        infer=fitted is not None and fitted._hashed and not fitted._declared,
        others=predicts or scores,
        needs_labels=not predicts,
        by_name=fitted is not None and fitted._hashed,
        lines={} if fitted is None else fitted._of_lines(),
    )
    if isinstance(found, LineExamples):
        known = getattr(fitted, "n_features_in_", -1)
        if known >= 0 and not found.by_name and not (known < found.columns < UNKNOWN):
            found.columns = known
        elif width and not found.is_counted:
            found.count_columns()
        count = found.columns if found.is_counted and not found.by_name else -1
        return Matrix(found, -1, count, None, hashed=found.by_name, files=found)
    shown = np.array(found.names, object)
    return Matrix(found, -1, len(shown), shown, hashed=found.by_name, files=found)


def _refuse_other_kind(paths: Sequence[str], fitted: Any) -> None:
    """Refuses lines and matrix files for a model of the columns of a table.

    Raises
    ------
    DataError
    """
    if not fitted._declared or fitted._of_lines():
        return
    path = files_of(paths)[0]
    if format_of(path) is None:
        known = ", ".join(map(repr, getattr(fitted, "feature_names_in_", ())))
        raise DataError(
            f"X: {path} is no table: {type(fitted).__name__} was fitted on a table with columns by "
            f"name ({known:.120}). The names of tables end in {ENDINGS}"
        )
