"""Files as the X of estimators of rows.

    path, y [, a fitted model] -> matrix_of_files -> Matrix whose rows are read later, and labels

What files are is `data.example_files`'; what a fitted model expects of them, this module's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from snailps.data.blocks import files_of
from snailps.data.columns import Kind, columns_of
from snailps.data.elements import a_kind
from snailps.data.example_files import LineExamples, example_files
from snailps.data.reading import ENDINGS, format_of
from snailps.errors import DataError
from snailps.estimators.corpus import paths_of
from snailps.estimators.validation import Matrix


def matrix_of_files(
    X: Any, y: Any, columns: Sequence[str], fitted: Any, *, use: str, width: bool
) -> Matrix:
    """Examples of files, of which only the beginnings are read yet, for a `use` as of an estimator.

    `y` is a table's column of labels, `columns` declares some of them; those of a `fitted` model
    are its own.  `width`: the number of columns has to be known.
    """
    paths = paths_of(X, "rows are a matrix, an array, a table or a list of dicts")
    if y is not None and not isinstance(y, str):
        raise DataError(
            f"y: expected the name of a column of the file {X!s:.80}, or None where its lines have "
            f"their labels; got {a_kind(y)}"
        )
    if isinstance(columns, str):
        raise DataError(f"columns: expected a list such as ['age:numeric'], got {columns!r:.60}")
    label, declared, names, hashed = y or "", tuple(columns), [], False
    lines: Mapping[str, Any] = {}
    if fitted is not None:
        hashed, settings = fitted._hashed, fitted._model.settings
        if getattr(settings, "text_columns", ()):  # declared to `snailps train`
            lines = {"format": settings.format, "columns": settings.text_columns}
        if declared and set(declared) - set(fitted._declared):
            raise DataError(
                "columns: the fitted model has its own, columns_: call fit for another one"
            )
        names = list(getattr(fitted, "feature_names_in_", ()))
        kinds = columns_of(fitted._declared, needs_label=False)
        declared = tuple(
            text
            for text, column in zip(fitted._declared, kinds, strict=True)
            if column.kind is not Kind.LABEL and column.name != label
        )
        if fitted._declared and not lines and format_of(path := files_of(paths)[0]) is None:
            every = ", ".join(map(repr, names))
            raise DataError(
                f"X: {path} is no table: {type(fitted).__name__} was fitted on a table with "
                f"columns by name ({every:.120}). The names of tables end in {ENDINGS}"
            )
        if use != "predict":
            label = label or fitted._label
    found = example_files(
        paths,
        label,
        declared,
        names=names,
        infer=hashed and not fitted._declared,
        others=use in ("predict", "score"),
        kinds=fitted._kinds if fitted is not None else {},
        needs_labels=use != "predict",
        by_name=hashed,
        lines=lines,
    )
    if isinstance(found, LineExamples):
        known = getattr(fitted, "n_features_in_", -1)
        if known >= 0 and not found.by_name:
            found.expect(known, type(fitted).__name__)
        elif width and not found.is_counted:
            found.count_columns()
        count = found.columns if found.is_counted and not found.by_name else -1
        shown = None
    else:
        shown = np.array(found.names, object)
        count = len(shown)
    return Matrix(found, -1, count, shown, hashed=found.by_name, files=found)
