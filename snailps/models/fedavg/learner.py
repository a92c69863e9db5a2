"""A learner: a copy of the network, which trains on its own batches for a round.

    the round's weights -> train (bpe batches) -> weights, number of uses of each word

One thread at a time uses a learner; the kernels run without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.errors import DataError
from snailps.models.fedavg.network import Network
from snailps.models.fedavg.settings import FedAvgSettings

Floats = NDArray[np.float32]


class Learner:
    """A network, with windows, loss and uses of words (`touched`) of the last round.

    `used` counts uses of words since its owner last set it to 0.
    """

    def __init__(self, words: int, settings: FedAvgSettings) -> None:
        self._settings = settings
        self.network = Network(words, settings.dim, 3)
        self._scratch = self.network.scratch(settings.window, settings.bs)
        self.touched: Floats = np.zeros(words, np.float32)
        self.used: Floats = np.zeros(words, np.float32)
        self.windows = 0
        self.loss = 0.0

    def _begin(self, base: Network, layers: Sequence[int]) -> None:
        """Copy layers of `base`; counts of steps come with the second moments."""
        for layer in layers:
            self.network.embedding[layer] = base.embedding[layer]
            self.network.output[layer] = base.output[layer]
        if 2 in layers:
            self.network.counts[:] = base.counts

    def train(
        self,
        base: Network,
        take: Callable[[], NDArray[np.int32] | None],
        steps: int,
        *,
        layers: Sequence[int],
    ) -> None:
        """Train a round: `bpe` steps, a batch each, from these `layers` of `base`.

        Layer 0 has weights, 1 and 2 Adam's moments; other layers stay as this learner has them.
        ``take()`` gives a batch, or None after the last.  `steps` were taken in earlier rounds.
        `DataError` if the input ends within the round.
        """
        s = self._settings
        self._begin(base, layers)
        self.windows, self.loss = 0, 0.0
        batches = []
        for step in range(s.bpe):
            batch = take()
            if batch is None:
                raise DataError(f"the input ended after {step} batches of a round of {s.bpe}")
            self.loss += kernels.train_cbow(
                batch,
                self.network.embedding,
                self.network.counts,
                self.network.output,
                self._scratch,
                batch=max(1, len(batch)),
                steps=steps + step,
                lr=s.lr,
                beta1=s.beta1,
                beta2=s.beta2,
                eps=s.eps,
            )
            batches.append(batch)
            self.windows += len(batch)
        seen = np.concatenate(batches)
        middle = seen.shape[1] // 2
        context = np.delete(seen, middle, axis=1)
        self.touched = np.bincount(context.ravel(), minlength=len(self.touched)).astype(np.float32)
        self.used += self.touched
