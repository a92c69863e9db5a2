"""A PyTorch model for tests, which worker processes import: planted clicks, with gates."""

import numpy as np
import torch
import torch.nn.functional as F
from cluster_models import wait_at
from torch import nn

from snailps.torch import EmbeddingBagCollection, Worker
from snailps.worker.training import TrainPass

FIELDS = 3


def write_clicks(path, lines=3000, ids=60, seed=4):
    """Lines ``label id id id``; whether it is clicked follows from a planted weight of each id."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(FIELDS, ids))
    drawn = rng.integers(0, ids, (lines, FIELDS))
    chance = 1 / (1 + np.exp(-2 * weights[np.arange(FIELDS), drawn].sum(1)))
    labels = rng.random(lines) < chance
    with path.open("w") as file:
        for label, row in zip(labels, drawn, strict=True):
            file.write(f"{int(label)} {' '.join(str((int(id) << 33) + 1) for id in row)}\n")


class Net(nn.Module):
    def __init__(self, staleness):
        super().__init__()
        self.bags = EmbeddingBagCollection(4, ["a", "b", "c"], lr=0.1, staleness=staleness)
        self.top = nn.Sequential(
            nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1)
        )

    def forward(self, ids):
        return self.top(self.bags(ids).reshape(len(ids), -1)).squeeze(1)


class Clicks(Worker):
    """Batches of 64 lines; stops at gates ``before-N``, ``after-N`` and ``seal-N`` of block N."""

    gates: str = ""

    def setup(self):
        super().setup()
        if self.gates:
            seal = TrainPass.seal

            def stopping(training, block):
                self._stop(f"seal-{block.number}")
                seal(training, block)

            TrainPass.seal = stopping  # of this process only

    def _stop(self, gate):
        if self.gates:
            wait_at(self.settings, gate)

    def model(self):
        return Net(staleness=1)

    def batches(self, block):
        rows = np.array([line.split() for line in block.data.decode().splitlines()], np.int64)
        for start in range(0, len(rows), 64):
            part = torch.from_numpy(rows[start : start + 64])
            yield part[:, 1:], part[:, 0].float()

    def ahead(self, batch):
        self.net.bags.prefetch(batch[0])

    def loss(self, batch):
        ids, labels = batch
        return F.binary_cross_entropy_with_logits(self.net(ids), labels), len(labels)

    def train(self, block):
        self._stop(f"before-{block.number}")
        figures = super().train(block)
        self._stop(f"after-{block.number}")
        return figures


class DlrmNet(nn.Module):
    """Dot products of all pairs of embeddings, beside these, into a network."""

    def __init__(self):
        super().__init__()
        self.bags = EmbeddingBagCollection(4, ["a", "b", "c"], lr=0.1)
        self.register_buffer("pairs", torch.triu_indices(FIELDS, FIELDS, 1), persistent=False)
        self.top = nn.Sequential(nn.Linear(15, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids):
        rows = self.bags(ids)
        dots = (rows @ rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([rows.flatten(1), dots], 1)).squeeze(1)


class DlrmClicks(Clicks):
    """The same on a DLRM."""

    def model(self):
        return DlrmNet()
