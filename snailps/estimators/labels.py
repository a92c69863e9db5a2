"""Labels of a classifier: any values of a user, sorted and numbered.

    y -> values_of -> Python values -> classes_of -> classes, sorted

No model, no file; `data.label_words` has the words that stand for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import a_kind, elements_of, is_missing
from snailps.errors import DataError


def values_of(y: Any, X: Any = None) -> list[Any]:
    """The labels as Python values: str, int, bool or float.

    Parameters
    ----------
    y : sequence, array or column; or the name of a column of X
    X : object
        The texts.

    Raises
    ------
    DataError
        A label is missing or is no such value, or they are not of one kind.
    """
    if y is None:
        raise DataError("y: expected a label for each text, got none")
    found = elements_of(X, y) if isinstance(y, str) else elements_of(y, what="y")
    values = []
    for number, value in enumerate(found.values):
        if isinstance(value, np.generic):
            value = value.item()
        if is_missing(value):
            raise DataError(
                f"y: {found.at(number)} is missing ({value!r}): leave such rows out, or fill them"
            )
        if not isinstance(value, (str, int, float)):
            raise DataError(
                f"y: {found.at(number)} is {a_kind(value)}: expected one label a text, a str or a "
                "number"
            )
        values.append(value)
    kinds = {str if isinstance(value, str) else float for value in values}
    if len(kinds) > 1:
        raise DataError(
            "y: expected labels of one kind, got some that are str and some that are not"
        )
    return values


def classes_of(values: Iterable[Any], known: Sequence[Any] = ()) -> NDArray[Any]:
    """The different labels, sorted, those that are `known` among them.

    Raises
    ------
    DataError
        New labels are of another kind than the known ones.
    """
    every = {*values, *known}
    if len({isinstance(value, str) for value in every}) > 1:
        raise DataError(
            f"y: expected labels like {known[0]!r}, which the model has; got "
            f"{next(v for v in every if isinstance(v, str) != isinstance(known[0], str))!r:.60}"
        )
    return np.array(sorted(every))


def numbered(y: Any) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """The different labels, sorted, and the number among them of each label.

    Raises
    ------
    DataError
        As `values_of`.
    """
    if isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind in "biuU":  # none is missing
        classes, numbers = np.unique(y, return_inverse=True)
        return classes, numbers.astype(np.float32)
    values = values_of(y)
    classes = classes_of(values)
    places = {label: place for place, label in enumerate(classes.tolist())}
    return classes, np.array([places[value] for value in values], np.float32)
