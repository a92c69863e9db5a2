"""Kinds of federated averaging for tests: importable by the processes that run them."""

import numpy as np

from snailps.models.fedavg import FedAvg


class Diverges(FedAvg):
    """Its second round ends in numbers that are none."""

    def _push(self, learners):
        self.pushed = getattr(self, "pushed", 0) + 1
        if self.pushed == 2:
            learners[0].network.output[0] = np.nan
        super()._push(learners)
