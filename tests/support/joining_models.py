"""Models for tests of workers that come and go: they stop at gates and write down what they do.

A worker stops in ``train`` at the gate ``gates/block-N`` of its folder, where there is one, and
adds a line ``N WORKERS KEPT`` to the file ``journal/PID``: its block, how many workers it knows of,
and whether it keeps rows.
"""

import os
from pathlib import Path

from cluster_models import stop_at

from snailps.models.classifier.model import Classifier
from snailps.models.sparse.fm import FactorizationMachine
from snailps.models.sparse.linear import Linear
from snailps.models.sparse.net import Net
from snailps.models.word_vectors.model import WordVectors


class Gated:
    """Stops and writes down."""

    def train(self, block):
        stop_at(Path("gates") / f"block-{block.number}")
        kept = int(any(rows.keeps for rows in self.rows))
        with (Path("journal") / str(os.getpid())).open("a") as file:
            file.write(f"{block.number} {self.workers} {kept}\n")
        return super().train(block)


class GatedLinear(Gated, Linear):
    pass


class SettlingLinear(GatedLinear):
    """Begins a block when all that it pushed is acknowledged: of that the block's end tells."""

    def train(self, block):
        self._client.flush()
        return super().train(block)


class GatedFm(Gated, FactorizationMachine):
    pass


class GatedNet(Gated, Net):
    pass


class GatedClassifier(Gated, Classifier):
    pass


class GatedVectors(Gated, WordVectors):
    pass
