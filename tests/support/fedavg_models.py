"""Kinds of federated averaging for tests: importable by the processes that run them."""

from pathlib import Path

import numpy as np
from waiting import until

from snailps.models.fedavg import FedAvg


class Diverges(FedAvg):
    """Its second round ends in numbers that are none, once the first one's weights are written."""

    def _push(self, client, **named):
        self.pushed = getattr(self, "pushed", 0) + 1
        if self.pushed == 2:
            until(Path(f"{self.settings.output}.weights.npz").exists, "the weights' file")
            client.learners[0].network.output[0] = np.nan
        super()._push(client, **named)
