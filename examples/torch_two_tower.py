"""Retrieval with two towers: embeddings on servers, in-batch negatives, an index of neighbours.

    clicks (user, item) -> UserTower, ItemTower -> softmax over the batch -> rows on the servers
    items -> ItemTower -> index -> nearest items of a user

`python examples/torch_two_tower.py` trains on a cluster of this machine, `--connect HOST:PORT` on
another; `--plain` trains the same with PyTorch's own embeddings.  Needs PyTorch, and usearch for
the index.
"""

import argparse
import contextlib
import json

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import snailps
from snailps.torch import Embedding

USERS, ITEMS, FACTORS = 3_000, 2_000, 8
DIM, BATCH, EPOCHS, TEMPERATURE, LR = 16, 512, 6, 0.1, 0.3
ITEM_ID_0 = 1 << 40  # ids need not be small, nor dense


def clicks(count, seed=1):
    """Clicks (count, 2) of users on items, by planted tastes; and the planted scores.

    An item's odds are exp(taste . item) times its popularity, which a model must not learn to
    recommend by: it is the same for all users.
    """
    rng = np.random.default_rng(seed)
    tastes = rng.normal(size=(USERS, FACTORS))
    items = rng.normal(size=(ITEMS, FACTORS))
    popularity = rng.normal(size=ITEMS)
    scores = 1.2 * tastes @ items.T
    odds = np.exp(scores + popularity)
    odds /= odds.sum(axis=1, keepdims=True)
    users = np.arange(count) % USERS
    ends = odds.cumsum(axis=1) + np.arange(USERS)[:, None]  # ascending over all users
    chosen = np.searchsorted(ends.ravel(), users + rng.random(count)) - users * ITEMS
    pairs = np.stack([users, chosen.clip(0, ITEMS - 1)], axis=1)
    return pairs[rng.permutation(count)], scores


class Tower(nn.Module):
    """An embedding and a dense layer; unit vectors come out."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding, self.dense = embedding, nn.Linear(DIM, DIM)

    def forward(self, ids):
        """Unit vectors (n, DIM) of ids (n,)."""
        rows = self.embedding(ids)
        return F.normalize(rows + self.dense(rows), dim=-1)


def loss_of(users, items, log_share, chosen):
    """Softmax over the items of the batch.  Items come as often as they are popular, so their log
    share is subtracted (Yi et al., "Sampling-bias-corrected neural modeling", RecSys 2019)."""
    logits = users @ items.T / TEMPERATURE - log_share
    # A click of another user on the same item is no negative.
    same = chosen[:, None] == chosen[None, :]
    same.fill_diagonal_(False)
    return F.cross_entropy(logits.masked_fill(same, -1e9), torch.arange(len(users)))


def train(pairs, plain=False, epochs=EPOCHS, seed=0):
    """Both towers, trained; in a ``with`` block of a cluster, unless `plain`."""
    torch.manual_seed(seed)
    if plain:
        embeddings = [nn.Embedding(n, DIM, sparse=True) for n in (USERS, ITEMS)]
        for one in embeddings:
            nn.init.uniform_(one.weight, -0.05, 0.05)
        rows = [torch.optim.Adagrad([one.weight for one in embeddings], lr=LR)]
    else:
        embeddings = [Embedding(DIM, name, lr=LR, seed=seed) for name in ("users", "items")]
        rows = []
    towers = [Tower(one) for one in embeddings]
    dense = [weight for tower in towers for weight in tower.dense.parameters()]
    steppers = [torch.optim.Adam(dense, lr=0.002), *rows]
    first = 0 if plain else ITEM_ID_0
    share = np.bincount(pairs[:, 1], minlength=ITEMS) / len(pairs)
    log_share = torch.from_numpy(np.log(share.clip(1e-9)).astype(np.float32))
    data = torch.from_numpy(pairs)
    for _ in range(epochs):
        for batch in data[torch.randperm(len(data))].split(BATCH):
            users, items = towers[0](batch[:, 0]), towers[1](batch[:, 1] + first)
            loss = loss_of(users, items, log_share[batch[:, 1]], batch[:, 1])
            for stepper in steppers:
                stepper.zero_grad()
            loss.backward()
            for stepper in steppers:
                stepper.step()
    for one in () if plain else embeddings:
        one.flush()
    return towers


def vectors_of(towers, plain=False):
    """Unit vectors of all users and of all items, float32."""
    first = 0 if plain else ITEM_ID_0
    with torch.no_grad():
        users = towers[0](torch.arange(USERS)).numpy()
        items = towers[1](torch.arange(ITEMS) + first).numpy()
    return users, items


def recall(scores, planted, k=10):
    """Share of the `k` best items by the planted scores among the `k` best by `scores`."""
    best = np.argpartition(-planted, k, axis=1)[:, :k]
    found = np.argpartition(-scores, k, axis=1)[:, :k]
    hits = sum(len(np.intersect1d(a, b)) for a, b in zip(best, found, strict=True))
    return hits / best.size


def index_of(items, path):
    """An index of the items by their ids, written to a file that usearch reads."""
    from usearch.index import Index

    index = Index(ndim=items.shape[1], metric="ip")
    index.add(np.arange(len(items), dtype=np.uint64) + np.uint64(ITEM_ID_0), items)
    index.save(str(path))
    return index


def main():
    """Trains, measures, and writes the index."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clicks", type=int, default=150_000)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--connect", metavar="HOST:PORT")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--index", metavar="FILE")
    args = parser.parse_args()
    pairs, planted = clicks(args.clicks)
    if args.plain:
        cluster = contextlib.nullcontext()
    elif args.connect:
        cluster = snailps.connect(args.connect)
    else:
        cluster = snailps.local_cluster(servers=2, workers=0)
    with cluster:
        towers = train(pairs, args.plain, args.epochs)
        users, items = vectors_of(towers, args.plain)
    popular = np.bincount(pairs[:, 1], minlength=ITEMS)[None, :].repeat(USERS, axis=0)
    figures = {
        "recall_at_10": round(recall(users @ items.T, planted), 4),
        "of_popular_items": round(recall(popular, planted), 4),
    }
    if args.index:
        index = index_of(items, args.index)
        found = index.search(users, 10).keys.astype(np.int64) - ITEM_ID_0
        exact = np.argsort(-users @ items.T, axis=1)[:, :10]
        hits = sum(len(np.intersect1d(a, b)) for a, b in zip(found, exact, strict=True))
        figures["index_finds"] = round(hits / exact.size, 4)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
