"""Answers of a classifier as columns of Arrow's, without an object a line.

    numbers of labels, probabilities -> label_table -> pyarrow.Table

pyarrow is an optional package: it is imported at the first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.extras import optional_module
from snailps.errors import DataError, shown_bytes


def label_names(arrow: Any, labels: Sequence[bytes]) -> Any:
    """Labels as an array of strings; DataError: one that is no UTF-8, which Arrow's are."""
    try:
        return arrow.array([label.decode() for label in labels], arrow.string())
    except UnicodeDecodeError as error:
        raise DataError(
            f"label {shown_bytes(error.object)} is no UTF-8, which Arrow and Parquet have"
        ) from None


def label_table(
    best: NDArray[np.int32],
    chances: NDArray[np.float32],
    threshold: float,
    names: Any,
    *,
    is_flat: bool,
) -> Any:
    """A row a line: `label` and `probability`, or `labels` and `probabilities`, which are lists.

    Labels are a dictionary's; those below the threshold are left out, of flat columns null.
    """
    arrow = optional_module("pyarrow", "labels as Arrow", "snailps[data]")
    # As Python's numbers, which `predict` compares.
    chosen = (best >= 0) & (chances.astype(np.float64) >= threshold)
    if is_flat:
        no = None if chosen[:, 0].all() else ~chosen[:, 0]
        codes = arrow.array(np.ascontiguousarray(best[:, 0]), mask=no)
        likely = arrow.array(np.ascontiguousarray(chances[:, 0]), mask=no)
        columns = [arrow.DictionaryArray.from_arrays(codes, names), likely]
        return arrow.table(columns, ["label", "probability"])
    ends = np.zeros(len(best) + 1, np.int32)
    np.cumsum(chosen.sum(axis=1), out=ends[1:])
    values = arrow.DictionaryArray.from_arrays(best[chosen], names), arrow.array(chances[chosen])
    lists = [arrow.ListArray.from_arrays(ends, one) for one in values]
    return arrow.table(lists, ["labels", "probabilities"])
