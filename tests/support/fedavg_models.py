"""Kinds of federated averaging for tests: importable by the processes that run them."""

import time
from pathlib import Path

import numpy as np
from processes import LIMIT_S

from snailps.models.fedavg import FedAvg


class Diverges(FedAvg):
    """Its second round ends in numbers that are none, once the first one's weights are written."""

    def _push(self, learners):
        self.pushed = getattr(self, "pushed", 0) + 1
        if self.pushed == 2:
            until, weights = time.monotonic() + LIMIT_S, Path(f"{self.settings.output}.weights.npz")
            while not weights.exists():
                assert time.monotonic() < until, f"{weights} was not written"
                time.sleep(0.01)
            learners[0].network.output[0] = np.nan
        super()._push(learners)
