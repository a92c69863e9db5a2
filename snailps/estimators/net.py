"""Networks on rows: what `hidden` is, how outputs grow; `SparseNetClassifier`.

    X, y -> fit, partial_fit -> a job -> rows of the first layer by feature, dense layers -> predict

What training means is `models.sparse.net`'s; how X becomes a file and is predicted, `sparse`'.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from snailps.api.tables import Tensor
from snailps.errors import ParameterError
from snailps.estimators.sparse import CLASS_WEIGHT, NO_PARAMETERS, SparseClassifier
from snailps.models.packed_tables import Classes, Packed, grown_tensors
from snailps.models.sparse.net import NetSettings


def hidden_of(width: int) -> Mapping[str, tuple[str, Any]]:
    """The parameter `hidden` of a network whose default is one layer."""
    return {"hidden": ("int | Sequence[int]", (width,))}


class NetEstimator(SparseClassifier):
    """A network with hidden layers."""

    _must_match = ("optimizer", "hidden", "activation")
    hidden: Any

    @staticmethod
    @abstractmethod
    def _tensors(settings: Any) -> Sequence[Tensor]:
        """The dense layers of a network."""

    def _translated(self) -> dict[str, Any]:
        """Widths of the hidden layers as their setting has them."""
        hidden = self.hidden
        given = hidden.tolist() if isinstance(hidden, (np.ndarray, np.generic)) else hidden
        widths = list(given) if isinstance(given, (list, tuple)) else [given]
        numbers = [int(width) if isinstance(width, (int, np.integer)) else 0 for width in widths]
        if not numbers or min(numbers) < 1 or any(isinstance(width, bool) for width in widths):
            raise ParameterError(
                f"{type(self).__name__}: hidden: expected a width, or a sequence of widths, whole "
                f"numbers from 1 on; got {hidden!r:.80}"
            )
        return {"hidden": tuple(map(str, numbers))}

    def _grown(self, classes: Classes) -> Mapping[str, Packed]:
        before = self._model.settings
        after = replace(before, **self._settings_of_classes(len(classes)))
        old, new = self._tensors(before), self._tensors(after)
        return grown_tensors(self._packed, old, new, classes, before.layers.sizes[-1])

    @classmethod
    def _described(cls, model: Any, about: Mapping[str, Any], classes: Any) -> dict[str, Any]:
        hidden = tuple(map(int, model.settings.hidden))
        return {**super()._described(model, about, classes), "hidden": hidden}


class SparseNetClassifier(
    NetEstimator,
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
        Weight of the examples of each label; "balanced": inverse to the sum of their weights.
    cluster, workers, callbacks, verbose
        As in `FastText`.

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

    @staticmethod
    def _tensors(settings: NetSettings) -> Sequence[Tensor]:
        return settings.layers.tensors(access=settings.method, lr=settings.lr)
