"""Labels of a classifier: a user's values, sorted and numbered.

    y -> values_of -> Python values -> classes_of -> classes, sorted
    y with weights -> soft_labels_of -> weights of each text's labels

Owns which values may be labels.  Must not know models or files; `data.label_words` translates
labels to words of a text file and back.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data._labelled import WEIGHT_MAX
from snailps.data.elements import (
    a_kind,
    elements_of,
    is_missing,
    library_of,
    mapping_of,
    native,
    refuse_masked,
    table_of,
)
from snailps.data.label_words import label_of
from snailps.data.vocabulary import LABEL_PREFIX
from snailps.errors import DataError

_ROWS = 1 << 10
"""Rows of a matrix of weights that are Python objects at a time."""


def values_of(y: Any, X: Any = None) -> list[Any]:
    """Return labels as Python values: str, int, bool or float; y may name a column of X."""
    if y is None:
        raise DataError("y: expected a label for each text, got none")
    elements = elements_of(X, y) if isinstance(y, str) else elements_of(y, what="y")
    values = [_label(value, elements.at, number) for number, value in enumerate(elements.values)]
    kinds = {str if isinstance(value, str) else float for value in values}
    if len(kinds) > 1:
        raise DataError("y: expected labels of one type, got both str and numbers")
    return values


def _label(value: Any, at: Callable[[int], str], number: int) -> Any:
    """Return a label as a Python value; `at` gives words for the element of a `number`."""
    if isinstance(value, np.generic):
        value = value.item()
    if is_missing(value):
        raise DataError(
            f"y: {at(number)} is missing ({value!r}): leave such rows out, or fill them"
        )
    if not isinstance(value, (str, int, float)):
        raise DataError(
            f"y: {at(number)} is {a_kind(value)}: expected one label a text, a str or a number"
        )
    if isinstance(value, str) and value.endswith("\0"):  # NumPy would drop the byte
        raise DataError(f"y: {at(number)} ends with a zero byte: {value!r:.60}")
    return value


class SoftLabels(NamedTuple):
    """Weights of the labels of texts: those above 0, by label, for each of `texts` texts.

    `labels` lists each label that some text has.  Iterate over `rows` once: the rows of a matrix
    are made a few at a time, because Python objects take forty times its memory.
    """

    labels: list[Any]
    texts: int
    rows: Iterable[Mapping[Any, float]]


class CountedRows:
    """Values that are made as they are read once, whose number is known before."""

    def __init__(self, values: Iterable[Any], count: int) -> None:
        self._values, self._count = values, count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return self._count


def soft_labels_of(
    y: Any, classes: Sequence[Any] | None = None, X: Any = None
) -> SoftLabels | None:
    """Return the weights of the labels of each text; None: y has one label a text.

    y has a mapping a text: a list, a column, or the name of a column of X; or it is a matrix, dense
    or sparse, or a table with a column for each of `classes`, by default the names or numbers of
    its columns.
    """
    if y is None:
        return None
    soft = None if isinstance(y, str) else _of_matrix(y, classes)
    if soft is not None:
        return soft
    elements = elements_of(X, y) if isinstance(y, str) else elements_of(y, what="y")
    rows = list[Any]()
    for value in elements.values:
        try:
            rows.append(mapping_of(value))
        except DataError as error:
            raise DataError(f"y: element {len(rows):,}: {error}") from None
    first = next((row for row in rows if not _is_empty(row)), None)
    if not isinstance(first, Mapping):
        return None
    labels: dict[Any, Any] = {}  # checked once, not in each row
    weighed = []
    for number, row in enumerate(rows):
        if _is_empty(row):
            raise _no_weight(number)
        if not isinstance(row, Mapping):
            raise DataError(
                f"y: element {number:,} is {a_kind(row)}: expected a mapping from labels to "
                "weights, as the first one"
            )
        weights: dict[Any, float] = {}
        for label, weight in row.items():
            if weight is None:  # of a struct, whose rows have all fields
                continue
            if label not in labels:
                labels[label] = _label(label, "a label of element {:,}".format, number)
            if isinstance(weight, np.generic):
                weight = weight.item()
            if not isinstance(weight, (int, float)) or not 0 <= weight <= WEIGHT_MAX:
                raise _wrong_weight(number, label, weight)
            if weight:
                weights[labels[label]] = float(weight)
        if not weights:
            raise _no_weight(number)
        weighed.append(weights)
    return SoftLabels([*dict.fromkeys(itertools.chain(*weighed))], len(weighed), weighed)


def _is_empty(row: Any) -> bool:
    """Whether a row is a map of Arrow without entries; arrays have no truth value to ask for."""
    return isinstance(row, list) and not row


def _wrong_weight(number: int, label: Any, weight: Any) -> DataError:
    return DataError(
        f"y: element {number:,} gives label {label!r:.60} the weight {weight!r:.60}: expected a "
        f"number from 0 to {WEIGHT_MAX:,.0f}"
    )


def _no_weight(number: int) -> DataError:
    return DataError(f"y: element {number:,} has no label of a weight above 0: leave the text out")


def _of_matrix(y: Any, classes: Sequence[Any] | None) -> SoftLabels | None:
    """Return the weights in a matrix or table; None: y is neither, or has one column."""
    y = native(y, "y")
    table = table_of(y)
    names: Sequence[Any] = ()
    if table is not None:
        names = table.columns
    elif getattr(y, "ndim", 0) == 2:
        names = range(y.shape[1])
    if len(names) < 2:
        return None
    labels = values_of(list(names if classes is None else classes))
    if len(labels) != len(names):
        raise DataError(
            f"classes: expected a label for each of the {len(names):,} columns of y, got "
            f"{len(labels):,}"
        )
    if table is not None and Counter(labels) == Counter(names):  # in another order: by name
        labels = values_of(list(names))
    counts = Counter(labels) | Counter(names)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise DataError(f"y: expected another label for each column, got {twice[0]!r:.60} twice")
    if library_of(y) == "scipy":
        matrix = y.tocoo().tocsr()  # adds up entries of the same place, in a matrix of its own
    elif table is not None:
        matrix = _floats([table.column(name).numbers(0, table.rows) for name in names]).T
    else:
        refuse_masked(y, "y")
        matrix = _floats(y)
    is_used = np.zeros(len(labels), bool)
    for first, ptr, places, weights in _parts_of(matrix):
        is_wrong = ~((weights >= 0) & (weights <= WEIGHT_MAX))
        if is_wrong.any():
            at = int(is_wrong.argmax())
            row = first + int(np.searchsorted(ptr, at, "right")) - 1
            raise _wrong_weight(row, labels[places[at]], weights[at].item())
        if (is_empty := np.diff(ptr) == 0).any():
            raise _no_weight(first + int(is_empty.argmax()))
        is_used[places] = True
    used = [label for label, is_one in zip(labels, is_used.tolist(), strict=True) if is_one]
    return SoftLabels(used, matrix.shape[0], _rows_of(matrix, labels))


def _floats(values: Any) -> NDArray[Any]:
    """Return numbers as an array of floats; DataError: they are none."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biufO":  # NumPy would also read texts
            raise TypeError(f"got an array of {array.dtype}")
        return array if array.dtype.kind == "f" else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"y: expected weights of labels, numbers: {error}") from None


def _parts_of(matrix: Any) -> Iterator[tuple[int, NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """Yield some rows at a time: the number of the first one, and what is not 0 in them.

    Row i of them has ``weights[ptr[i] : ptr[i + 1]]`` in the columns `places`.
    """
    for first in range(0, matrix.shape[0], _ROWS):
        part = matrix[first : first + _ROWS]
        if library_of(part) == "scipy":
            part.eliminate_zeros()
            yield first, part.indptr, part.indices, part.data
            continue
        is_there = part != 0
        ptr = np.concatenate(([0], is_there.sum(axis=1).cumsum()))
        yield first, ptr, np.nonzero(is_there)[1], part[is_there]


def _rows_of(matrix: Any, labels: Sequence[Any]) -> Iterator[dict[Any, float]]:
    """Yield the weights above 0 of each row, by label."""
    for _, ptr, places, weights in _parts_of(matrix):
        names, values = [labels[place] for place in places.tolist()], weights.tolist()
        for start, stop in itertools.pairwise(ptr.tolist()):
            yield dict(zip(names[start:stop], values[start:stop], strict=True))


def classes_of(values: Iterable[Any], known: Sequence[Any] = ()) -> NDArray[Any]:
    """Return the distinct labels of `values` and `known`, sorted.

    `known` are the labels of a fitted model; values must be of their type, str or number.
    """
    new = dict.fromkeys(values)
    every = [*dict.fromkeys(known), *new]
    if len({isinstance(value, str) for value in every}) > 1:
        like = known[0] if known else every[0]
        other = next(value for value in every if isinstance(value, str) != isinstance(like, str))
        raise DataError(
            f"y: expected labels like {like!r:.60}"
            f"{', which the model has' if known else ''}; got {other!r:.60}"
        )
    labels = sorted(set(every))
    array = np.array(labels)
    if array.tolist() == labels:  # else NumPy has rounded, as mixed int64 and uint64 to float64
        return array
    if all(isinstance(value, int) and 0 <= value < 1 << 64 for value in labels):
        return np.array(labels, np.uint64)
    raise DataError(
        f"y: no type of number holds all labels from {labels[0]!r:.60} to {labels[-1]!r:.60}: "
        "give them as str"
    )


def accuracy(predicted: Sequence[Any], values: Sequence[Any], weights: Any = None) -> float:
    """Return the (weighted) share of labels predicted right, 0 to 1; both are Python values."""
    if len(predicted) != len(values):
        raise DataError(f"y: expected {len(predicted):,} labels, one a text; got {len(values):,}")
    if not values:
        raise DataError("score: expected some examples, got none")
    if isinstance(predicted[0], str) != isinstance(values[0], str):
        raise DataError(
            f"y: expected labels like {predicted[0]!r:.60}, which the model has; got "
            f"{values[0]!r:.60}. A model loaded from a file has labels of type str, unless "
            "load(..., classes=...) gives others"
        )
    right = np.array([bool(a == b) for a, b in zip(predicted, values, strict=True)])
    return float(np.average(right, weights=weights))


def known_label(word: str, kind: type, prefix: str = LABEL_PREFIX.decode()) -> Any:
    """Convert a word of a model to a label of type `kind`: str, int, float or bool."""
    text = label_of(word, prefix)
    if kind is str:
        return text
    if kind is bool and text in ("True", "False"):
        return text == "True"
    try:
        return kind(text) if kind is not bool else int(text)
    except ValueError:
        raise DataError(
            f"the model has a label {text!r:.60}, which is no {kind.__name__} as its other labels "
            "or the given classes are"
        ) from None
