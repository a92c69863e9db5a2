"""Clicks with DLRM: the tables of all features on servers, the dense part in PyTorch.

    ids, numbers -> EmbeddingBagCollection, bottom net -> dot products of pairs -> top net -> odds

`python examples/torch_dlrm.py` trains on a cluster of this machine, `--connect HOST:PORT` on
another; `--plain` trains the same with PyTorch's own embeddings.  Needs PyTorch.

References
----------
Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems",
2019.
"""

import argparse
import contextlib
import json

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import snailps
from snailps.torch import EmbeddingBagCollection

FEATURES, NUMBERS, IDS = 8, 4, 2_000
DIM, BATCH, LR = 8, 512, 0.1
NAMES = [f"feature{number}" for number in range(FEATURES)]


def clicks(count, seed=1):
    """Ids (count, FEATURES), numbers (count, NUMBERS), labels (count,), and their planted logits.

    Each id has a weight; ids of the first two features also have factors whose product counts,
    which no sum of weights can learn.  Few ids are frequent, as in logs.
    """
    rng = np.random.default_rng(1)  # the planted truth is the same for all seeds
    weights = rng.normal(0, 0.5, (FEATURES, IDS))
    factors = rng.normal(0, 0.8, (2, IDS, 4))
    slopes = rng.normal(0, 0.5, NUMBERS)
    rng = np.random.default_rng(seed + 1)
    ids = (IDS * rng.random((count, FEATURES)) ** 3).astype(np.int64)
    numbers = rng.normal(size=(count, NUMBERS)).astype(np.float32)
    logits = weights[np.arange(FEATURES), ids].sum(axis=1) + numbers @ slopes - 0.5
    logits += (factors[0, ids[:, 0]] * factors[1, ids[:, 1]]).sum(axis=1)
    labels = (rng.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return ids, numbers, labels, logits


class PlainTables(nn.Module):
    """PyTorch's own tables, in this process."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(IDS, DIM, mode="sum", sparse=True) for _ in range(FEATURES)
        )
        for bag in self.bags:
            nn.init.uniform_(bag.weight, -0.05, 0.05)

    def forward(self, ids):
        """Rows (batch, FEATURES, DIM)."""
        rows = [bag(ids[:, at : at + 1]) for at, bag in enumerate(self.bags)]
        return torch.stack(rows, dim=1)


class DLRM(nn.Module):
    """A bottom net for numbers, dot products with all features, a top net."""

    def __init__(self, tables):
        super().__init__()
        self.tables = tables
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 32), nn.ReLU(), nn.Linear(32, DIM))
        pairs = FEATURES * (FEATURES + 1) // 2
        wide = pairs + (FEATURES + 1) * DIM
        self.top = nn.Sequential(nn.Linear(wide, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.triu_indices(FEATURES + 1, FEATURES + 1, 1))

    def forward(self, ids, numbers):
        """Logits (batch,)."""
        vectors = torch.cat([self.bottom(numbers)[:, None], self.tables(ids)], dim=1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([products, vectors.flatten(1)], dim=1)).squeeze(1)


def train(data, plain=False, epochs=1, seed=0):
    """A model, trained; in a ``with`` block of a cluster, unless `plain`."""
    torch.manual_seed(seed)
    tables = PlainTables() if plain else EmbeddingBagCollection(DIM, NAMES, lr=LR, seed=seed)
    model = DLRM(tables)
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    steppers = [torch.optim.Adam(dense, lr=0.002)]
    if plain:
        steppers.append(torch.optim.Adagrad(tables.parameters(), lr=LR))
    ids, numbers, labels = (torch.from_numpy(array) for array in data)
    for _ in range(epochs):
        batches = torch.randperm(len(ids)).split(BATCH)
        for at, batch in enumerate(batches):
            loss = F.binary_cross_entropy_with_logits(
                model(ids[batch], numbers[batch]), labels[batch]
            )
            if not plain and at + 1 < len(batches):
                tables.prefetch(ids[batches[at + 1]])  # on its way during this batch's backward
            for stepper in steppers:
                stepper.zero_grad()
            loss.backward()
            for stepper in steppers:
                stepper.step()
    if not plain:
        tables.flush()
    return model


def auc(labels, scores):
    """Area under the ROC curve: the share of pairs, one of each class, in the right order."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    ones = int(labels.sum())
    return (ranks[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))


def logits_of(model, ids, numbers):
    """Logits (n,) of examples, float32."""
    with torch.no_grad():
        return model.eval()(torch.from_numpy(ids), torch.from_numpy(numbers)).numpy()


def main():
    """Trains, and measures on examples that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--connect", metavar="HOST:PORT")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--export", metavar="PREFIX", help="write the rows to PREFIX.safetensors")
    args = parser.parse_args()
    *data, _ = clicks(args.examples)
    ids, numbers, labels, planted = clicks(50_000, seed=2)
    if args.plain:
        cluster = contextlib.nullcontext()
    elif args.connect:
        cluster = snailps.connect(args.connect)
    else:
        cluster = snailps.local_cluster(servers=2, workers=0)
    with cluster:
        model = train(data, args.plain, args.epochs)
        found = logits_of(model, ids, numbers)
        if args.export and not args.plain:
            cluster.export(args.export, tables=NAMES, overwrite=True)
    figures = {"auc": auc(labels, found), "auc_of_the_planted_odds": auc(labels, planted)}
    print(json.dumps({name: round(float(value), 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
