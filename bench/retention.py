#!/usr/bin/env python3
"""What a limit of rows, an age or an admission costs on real text, and how many rows it saves.

    novels -> pieces of 40 words of 20 books -> pairs of neighbouring words, hashed: ids
    EmbeddingBag(20, mode="mean") of a local cluster, its sums are the logits of the books
    -> rows, memory, right books and log loss of pieces that were held out

Most pairs come once, as most ids of clicks do.  Pieces come shuffled: nothing is forgotten because
its book is over.  README.md here says more.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from words import say  # first of ours: it sets the path to the tree of this script

import snailps
from snailps.data.unpacking import open_content
from snailps.torch import EmbeddingBag

BOOKS, PIECE, BATCH = 20, 40, 256
HELD_OUT = 10  # every tenth piece is one of the test


def pieces_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Ids int64 (pieces, 2 PIECE - 1), single words' and pairs', and each one's book."""
    numbers: dict[bytes, int] = {}
    ids, books = [], []
    with open_content(str(path)) as file:
        texts = file.read().split(b"\n\n", BOOKS)[:BOOKS]
    for book, text in enumerate(texts):
        words = np.array([numbers.setdefault(w, len(numbers)) for w in text.split()], np.uint64)
        words = words[: len(words) // PIECE * PIECE].reshape(-1, PIECE)
        pairs = (words[:, :-1] << np.uint64(32) | words[:, 1:]) * np.uint64(0x9E3779B97F4A7C15)
        ids.append(np.concatenate([words, pairs], axis=1).view(np.int64))
        books.append(np.full(len(words), book))
    return np.concatenate(ids), np.concatenate(books)


def rows_of(cluster: snailps.Cluster, name: str) -> dict[str, int]:
    """The table's counts, once its server has reported them after the training."""
    time.sleep(2.5)  # a server reports to its master with each heartbeat
    return next(table for table in cluster.status()["tables"] if table["name"] == name)


def trained(
    cluster: snailps.Cluster, name: str, ids: Any, books: Any, args: Any, seed: int, **bounds: Any
) -> dict:
    """Trains one table; how well it recognises the books of held-out pieces."""
    bag = EmbeddingBag(BOOKS, name, mode="mean", lr=args.lr, seed=seed, cluster=cluster, **bounds)
    test = np.arange(len(ids)) % HELD_OUT == 0
    learnt = np.flatnonzero(~test)
    rng = np.random.default_rng(seed)
    for _ in range(args.epochs):
        for at in np.array_split(rng.permutation(learnt), len(learnt) // BATCH):
            loss = F.cross_entropy(bag(torch.from_numpy(ids[at])), torch.from_numpy(books[at]))
            (loss * len(at)).backward()
    bag.eval()
    with torch.no_grad():
        logits = bag(torch.from_numpy(ids[test]))
    truth = torch.from_numpy(books[test])
    counts = rows_of(cluster, name)
    return {
        "rows": counts["rows"],
        "mb": counts["bytes"] / 1e6,
        "right": float((logits.argmax(1) == truth).float().mean()),
        "log_loss": float(F.cross_entropy(logits, truth)),
    }


def main() -> None:
    """Measures, then prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("corpus", type=Path, help="books separated by empty lines; may be packed")
    add("--epochs", type=int, default=1, help="with several, each id comes often")
    add("--lr", type=float, default=2.0)
    add("--seeds", type=int, default=3)
    args = parser.parse_args()
    ids, books = pieces_of(args.corpus)
    distinct = len(np.unique(ids))
    say(f"{len(ids):,} pieces, {ids.size:,} ids, {distinct:,} different ones")
    bounds: dict[str, dict[str, int]] = {"all rows": {}}
    for part in (0.5, 0.25, 0.1, 0.05):
        bounds[f"rows_max {part:.0%}"] = {"rows_max": int(part * distinct)}
    for count in (2, 3, 5):
        bounds[f"admit_after {count}"] = {"admit_after": count}
    bounds["rows_max 10%, admit_after 3"] = {"rows_max": distinct // 10, "admit_after": 3}
    bounds["age_max 1,000,000"] = {"age_max": 1_000_000}
    found = []
    with snailps.local_cluster(servers=1) as cluster:
        for number, (told, options) in enumerate(bounds.items()):
            runs = [
                trained(cluster, f"bag-{number}-{seed}", ids, books, args, seed, **options)
                for seed in range(args.seeds)
            ]
            means = {key: round(statistics.mean(run[key] for run in runs), 4) for key in runs[0]}
            found.append({"bounds": told, **means})
            say(json.dumps(found[-1]))
    print(json.dumps({"ids": distinct, "snailps": snailps.__version__, "bounds": found}))


if __name__ == "__main__":
    main()
