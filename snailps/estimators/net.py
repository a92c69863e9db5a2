"""A network with a sparse first layer as an estimator: `SparseNetClassifier`.

    X, y -> fit -> a job -> rows of the first layer by feature, dense layers -> predict

What training means is `models.sparse.net`'s; how X becomes a file and is predicted, `sparse`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from snailps.errors import ParameterError
from snailps.estimators.sparse import CLASS_WEIGHT, NO_PARAMETERS, SparseClassifier
from snailps.models.sparse.net import NetSettings


def hidden_of(width: int) -> Mapping[str, tuple[str, Any]]:
    """The parameter `hidden` of a network whose default is one layer."""
    return {"hidden": ("int | Sequence[int]", (width,))}


def widths_of(hidden: Any, who: str) -> tuple[str, ...]:
    """Widths of the hidden layers as their setting has them.

    Raises
    ------
    ParameterError
        They are not whole numbers from 1 on.
    """
    given = hidden.tolist() if isinstance(hidden, (np.ndarray, np.generic)) else hidden
    widths = list(given) if isinstance(given, (list, tuple)) else [given]
    numbers = [int(width) if isinstance(width, (int, np.integer)) else 0 for width in widths]
    if not numbers or min(numbers) < 1 or any(isinstance(width, bool) for width in widths):
        raise ParameterError(
            f"{who}: hidden: expected a width, or a sequence of widths, whole numbers from 1 on; "
            f"got {hidden!r:.80}"
        )
    return tuple(map(str, numbers))


class SparseNetClassifier(
    SparseClassifier,
    settings=NetSettings,
    without=(*NO_PARAMETERS, "hidden"),
    extra={**hidden_of(50), **CLASS_WEIGHT},
):
    """A network on sparse examples: a row of weights a feature, then dense layers.

    Parameters
    ----------
    hidden : int or sequence of int
        Widths of the hidden layers; the first is the sparse one's.
    activation, lr, batch_size, init_scale, min_count, optimizer, epochs, ...
        Of the training; docs/settings.md says what they do, and what the others are for.
    class_weight : mapping, "balanced" or None
        Weight of the examples of each label; "balanced": inverse to their number.
    cluster, workers, callbacks, verbose
        As of `FastText`.

    Attributes
    ----------
    classes_ : array
        The labels, sorted.

    Examples
    --------
    >>> X = [{"colour": "red", "size": 3}, {"colour": "blue", "size": 1}] * 500
    >>> model = SparseNetClassifier(hidden=(20, 10)).fit(X, ["a", "b"] * 500)  # doctest: +SKIP
    >>> model.predict([{"colour": "red", "size": 3}])  # doctest: +SKIP
    array(['a'], dtype='<U1')
    """

    worker_class = "snailps.models.sparse.net:Net"

    def _translated(self) -> dict[str, Any]:
        return {"hidden": widths_of(self._parameter("hidden"), type(self).__name__)}
