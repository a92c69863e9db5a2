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
from snailps.data.formats import ENDINGS, format_of
from snailps.data.matrices import Known, Matrix
from snailps.errors import DataError
from snailps.estimators.corpus import paths_of


def matrix_of_files(
    X: Any,
    y: Any,
    columns: Sequence[str],
    known: Known | None,
    settings: Any,
    *,
    use: str,
    width: bool,
) -> Matrix:
    """Examples of files, of which only the beginnings are read yet, for a `use` as in an estimator.

    `y` is a table's column of labels, `columns` declares some of them; a fitted model has its own,
    `known`, and its `settings`.  `width`: the number of columns has to be known.
    """
    paths = paths_of(X, "rows are a matrix, an array, a table or a list of dicts")
    if y is not None and not isinstance(y, str):
        raise DataError(
            f"y: expected the name of a column of the file {X!s:.80}, or None where its lines have "
            f"their labels; got {a_kind(y)}"
        )
    if isinstance(columns, str):
        raise DataError(f"columns: expected a list such as ['age:numeric'], got {columns!r:.60}")
    label, declared, names = y or "", tuple(columns), list[str]()
    lines: Mapping[str, Any] = {}
    if known is not None:
        if getattr(settings, "text_columns", ()):  # declared to `snailps train`
            lines = {"format": settings.format, "columns": settings.text_columns}
        if declared and set(declared) - set(known.declared):
            raise DataError(
                "columns: the fitted model has its own, columns_: call fit for another one"
            )
        names = list(known.names or ())
        kinds = columns_of(known.declared, needs_label=False)
        declared = tuple(
            text
            for text, column in zip(known.declared, kinds, strict=True)
            if column.kind is not Kind.LABEL and column.name != label
        )
        if known.declared and not lines and format_of(path := files_of(paths)[0]) is None:
            every = ", ".join(map(repr, names))
            raise DataError(
                f"X: {path} is no table: {known.who} was fitted on a table with "
                f"columns by name ({every:.120}). The names of tables end in {ENDINGS}"
            )
        if use != "predict":
            label = label or known.label
    found = example_files(
        paths,
        label,
        declared,
        names=names,
        infer=known is not None and known.by_name and not known.declared,
        others=use in ("predict", "score"),
        kinds={} if known is None else known.kinds,
        needs_labels=use != "predict",
        by_name=known is not None and known.by_name,
        lines=lines,
    )
    if isinstance(found, LineExamples):
        if known is not None and known.columns >= 0 and not found.by_name:
            found.expect(known.columns, known.who)
        elif width and not found.is_counted:
            found.count_columns()
        count = found.columns if found.is_counted and not found.by_name else -1
        shown = None
    else:
        shown = np.array(found.names, object)
        count = len(shown)
    return Matrix(found, count, shown, by_name=found.by_name)
