"""Files as X of estimators whose examples are rows.

    path, y [, a fitted model] -> matrix_of_files -> Matrix whose rows are read later, and labels

Owns what a fitted model expects of files; `data.example_files` knows their formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from snailps.data.columns import ColumnKind, columns_of
from snailps.data.elements import a_kind
from snailps.data.example_files import LineExamples, example_files
from snailps.data.matrices import KnownColumns, Matrix
from snailps.errors import DataError
from snailps.estimators.corpus import paths_of
from snailps.files.blocks import files_of
from snailps.files.formats import ENDINGS, format_of


def matrix_of_files(
    X: Any,
    y: Any,
    sample_weight: Any,
    columns: Sequence[str],
    known: KnownColumns | None,
    settings: Any,
    *,
    use: str,
    width: bool,
) -> Matrix:
    """Open files as examples; only their beginnings are read, to find names and kinds of columns.

    `y` names a table's column of labels, `sample_weight` may name one of weights, and `columns`
    declares kinds of some columns.  `known` are the columns of a fitted model, and `settings` its
    settings.  `use` is "fit", "partial_fit", "predict" or "score".  `width`: lines without names
    are counted for their number of columns.
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
    weight = sample_weight if isinstance(sample_weight, str) else ""
    lines: Mapping[str, Any] = {}
    if known is not None:
        if getattr(settings, "text_columns", ()):  # the model of `snailps train` had text files
            lines = {"format": settings.format, "columns": settings.text_columns}
        if declared and set(declared) - set(known.declared):
            raise DataError(
                "columns: the fitted model has its own, columns_: call fit to train a new one"
            )
        names = list(known.names or ())
        kinds = columns_of(known.declared, needs_label=False)
        declared = tuple(
            text
            for text, column in zip(known.declared, kinds, strict=True)
            if column.kind is not ColumnKind.LABEL and column.name not in (label, weight)
        )
        if known.declared and not lines and format_of(path := files_of(paths)[0]) is None:
            shown_names = ", ".join(map(repr, names))
            raise DataError(
                f"X: {path} is no table: {known.who} was fitted on a table with "
                f"columns by name ({shown_names:.120}). The names of tables end in {ENDINGS}"
            )
        if use != "predict":
            label = label or known.label
            if known.weight and sample_weight is None and _has(paths, known.weight):
                weight = known.weight
    examples = example_files(
        paths,
        label,
        declared,
        names=names,
        infer=known is not None and known.by_name and not known.declared,
        others=use in ("predict", "score"),
        kinds={} if known is None else known.kinds,
        needs_labels=use != "predict",
        by_name=known is not None and known.by_name,
        weight=weight,
        lines=lines,
    )
    if isinstance(examples, LineExamples):
        if known is not None and known.columns >= 0 and not examples.by_name:
            examples.expect(known.columns, known.who)
        elif width and not examples.is_counted:
            examples.count_columns()
        count = examples.columns if examples.is_counted and not examples.by_name else -1
        names_of_columns = None
    else:
        names_of_columns = np.array(examples.names, object)
        count = len(names_of_columns)
    return Matrix(examples, count, names_of_columns, by_name=examples.by_name)


def _has(paths: Sequence[str], column: str) -> bool:
    """Whether the first file is a table with a column of this name."""
    path = files_of(paths)[0]
    if format_of(path) is None:
        return False
    from snailps.data.table_files import has_column

    return has_column(path, column)
