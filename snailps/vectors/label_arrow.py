"""Predictions of a classifier as Arrow columns, without a Python object per line.

    numbers of labels, probabilities -> label_table -> pyarrow.Table

pyarrow is optional, so it is imported on first use.  Must not know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError, shown_bytes
from snailps.files.extras import optional_module


def label_names(arrow: Any, labels: Sequence[bytes]) -> Any:
    """Convert labels to an Arrow array of strings; DataError: a label is not UTF-8."""
    try:
        return arrow.array([label.decode() for label in labels], arrow.string())
    except UnicodeDecodeError as error:
        raise DataError(
            f"label {shown_bytes(error.object)} is no UTF-8, which Arrow and Parquet require"
        ) from None


def label_table(
    best: NDArray[np.int32],
    chances: NDArray[np.float32],
    threshold: float,
    names: Any,
    *,
    is_flat: bool,
) -> Any:
    """Make a table of one row per line: `label`, `probability`, or lists of these unless `is_flat`.

    Labels are dictionary-encoded.  A label below the threshold is left out of the lists, and null
    in flat columns.
    """
    arrow = optional_module("pyarrow", "labels as Arrow", "snailps[data]")
    # Compared as float64, like Python's numbers in `predict`, so both choose the same labels.
    chosen = (best >= 0) & (chances.astype(np.float64) >= threshold)
    if is_flat:
        is_null = None if chosen[:, 0].all() else ~chosen[:, 0]
        codes = arrow.array(np.ascontiguousarray(best[:, 0]), mask=is_null)
        likely = arrow.array(np.ascontiguousarray(chances[:, 0]), mask=is_null)
        columns = [arrow.DictionaryArray.from_arrays(codes, names), likely]
        return arrow.table(columns, ["label", "probability"])
    ends = np.zeros(len(best) + 1, np.int32)
    np.cumsum(chosen.sum(axis=1), out=ends[1:])
    values = arrow.DictionaryArray.from_arrays(best[chosen], names), arrow.array(chances[chosen])
    lists = [arrow.ListArray.from_arrays(ends, items) for items in values]
    return arrow.table(lists, ["labels", "probabilities"])
