"""Networks with hidden layers as estimators: `SparseNetClassifier`, and the base of `mlp`.

    X, y -> fit, partial_fit -> a job -> rows of the first layer by feature, dense layers -> predict

Owns the parameter `hidden` and how a network gets more classes.  `sparse` reads X and predicts;
`models.sparse.net` trains.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from snailps.api.tables import Tensor
from snailps.errors import ParameterError
from snailps.estimators.sparse import NO_PARAMETERS, SparseClassifier
from snailps.estimators.validation import CLASS_WEIGHT
from snailps.models.packed_tables import GrownClasses, Packed, grown_tensors
from snailps.models.sparse.net import NetSettings


def hidden_of(width: int) -> Mapping[str, tuple[str, Any]]:
    """Declare the parameter `hidden`, with one hidden layer as default."""
    return {"hidden": ("int | Sequence[int]", (width,))}


class NetEstimator(SparseClassifier):
    """A network with hidden layers."""

    _must_match = ("optimizer", "hidden", "activation")
    hidden: Any

    @staticmethod
    @abstractmethod
    def _tensors(settings: Any) -> Sequence[Tensor]:
        """Return the dense layers of a network."""

    def _translated(self) -> dict[str, Any]:
        """Return `hidden` as its setting has it: widths as text."""
        hidden = self.hidden
        plain = hidden.tolist() if isinstance(hidden, (np.ndarray, np.generic)) else hidden
        widths = list(plain) if isinstance(plain, (list, tuple)) else [plain]
        numbers = [int(width) if isinstance(width, (int, np.integer)) else 0 for width in widths]
        if not numbers or min(numbers) < 1 or any(isinstance(width, bool) for width in widths):
            raise ParameterError(
                f"{type(self).__name__}: hidden: expected a width, or a sequence of widths, whole "
                f"numbers from 1 on; got {hidden!r:.80}"
            )
        return {"hidden": tuple(map(str, numbers))}

    def _grown(self, classes: GrownClasses) -> Mapping[str, Packed]:
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
    """Neural network on sparse data: a row of weights for each feature, then dense layers.

    Parameters
    ----------
    hidden : int or sequence of int
        Widths of the hidden layers; the first is the length of a feature's row.
    activation, lr, batch_size, init_scale, min_count, optimizer, epochs, ...
        Settings of the training, described with their ranges in docs/settings.md.
    held_out, stop_after, stop_by
        As in `LogisticRegression`.
    class_weight : mapping, "balanced" or None
        As in `LogisticRegression`.
    cluster, workers, callbacks, verbose
        As in `FastText`.

    Attributes
    ----------
    classes_ : array (classes,)
        The labels, sorted.

    Examples
    --------
    >>> X = [{"colour": "red", "size": 3}, {"colour": "blue", "size": 1}] * 500
    >>> model = SparseNetClassifier(hidden=(20, 10)).fit(X, ["a", "b"] * 500)  # doctest: +SKIP
    >>> model.predict([{"colour": "red", "size": 3}])  # doctest: +SKIP
    array(['a'], dtype='<U1')
    """

    worker_class = "snailps.models.sparse.net:Net"
    _learns_by_heart = True

    @staticmethod
    def _tensors(settings: NetSettings) -> Sequence[Tensor]:
        return settings.layers.tensors(access=settings.method, lr=settings.lr)
