"""Matrix factorisation beside scikit-surprise and implicit, on planted factors, interleaved.

    planted ratings -> snailps train mf | surprise's SVD -> RMSE, ratings/s
    planted choices -> snailps train mf --loss softmax | implicit's ALS, BPR -> recall, NDCG

Ratings have planted biases, factors and noise, popular items by a power law; choices are drawn by
a softmax of the same scores.  With ratings both systems take the same steps: plain SGD, the same
rate (unless `--lr-end`), penalty, epochs and factors.  An epoch of ALS solves all rows and is
no epoch of ours, so of choices the seconds until the figures are what counts.

    python bench/mf.py --peer-python peers-venv/bin/python --ratings 1000000
    python bench/mf.py --peer-python peers-venv/bin/python --choices 30
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from kge import Figures, output_of

PEER = Path(__file__).parent / "peers" / "fit_factors.py"
FACTORS, NOISE = 8, 0.5


class Planted:
    """Users and items with biases and factors."""

    def __init__(self, users: int, items: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.users, self.items = users, items
        size = FACTORS**0.25
        self.p = self.rng.normal(0, 1 / size, (users, FACTORS))
        self.q = self.rng.normal(0, 1 / size, (items, FACTORS))
        self.of_user = self.rng.normal(0, 0.4, users)
        self.of_item = self.rng.normal(0, 0.5, items)
        popular = np.minimum(self.rng.zipf(1.3, items), 200).astype(float)
        self.popular = popular / popular.sum()

    def ratings(self, number: int) -> np.ndarray:
        """About this many distinct ratings: user, item, value."""
        u = self.rng.integers(0, self.users, number)
        i = self.rng.choice(self.items, number, p=self.popular)
        pairs = self.rng.permutation(np.unique(u * self.items + i))
        u, i = np.divmod(pairs, self.items)
        product = np.einsum("ij,ij->i", self.p[u], self.q[i])
        values = 3.5 + self.of_user[u] + self.of_item[i] + 0.5 * product
        values += self.rng.normal(0, NOISE, len(u))
        return np.column_stack([u, i, np.clip(np.round(2 * values) / 2, 0.5, 5)])

    def choices(self, each: int) -> np.ndarray:
        """So many items of each user, in random order of users and items."""
        found = []
        for user in range(self.users):
            scores = 2.5 * (self.q @ self.p[user]) + np.log(self.popular)
            best = np.argsort(-(scores + self.rng.gumbel(size=self.items)))[:each]
            found.append(np.column_stack([np.full(each, user), best]))
        return self.rng.permutation(np.concatenate(found))


def write(folder: Path, lines: np.ndarray, held: float) -> None:
    cut = int(len(lines) * (1 - held))
    for name, some in (("train", lines[:cut]), ("test", lines[cut:])):
        np.savetxt(folder / f"{name}.txt", some, fmt=["%d", "%d", "%.1f"][: lines.shape[1]],
                   delimiter="\t")  # fmt: skip


def ours(folder: Path, o: argparse.Namespace, seed: int) -> Figures:
    options = {
        "train": folder / "train.txt", "test": folder / "test.txt", "output": folder / "out",
        "dim": o.dim, "epochs": o.epochs, "lr": o.lr, "l2": o.l2, "threads": o.threads,
        "workers": o.workers, "seed": seed, "lr-end": o.lr_end,
        "loss": "squared" if o.ratings else "softmax", "negatives": o.negatives,
    }  # fmt: skip
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    told = output_of(
        [sys.executable, "-m", "snailps", "train", "mf", *words, "--overwrite", "--json"]
    )
    figures = json.loads(told.splitlines()[-1])
    speed = {"train_s": figures["train_s"], "lines": figures["examples"]}
    return {**speed, **figures["test"]}


def peer(name: str, folder: Path, o: argparse.Namespace, seed: int) -> Figures:
    which, _, method = name.partition("-")
    epochs, lr, l2 = o.epochs, o.lr, o.l2
    if which == "implicit":
        epochs, lr, l2 = o.peer_epochs, o.peer_lr, o.peer_l2
    options = {"dim": o.dim, "epochs": epochs, "lr": lr, "l2": l2, "threads": o.threads}
    options |= {"seed": seed, "alpha": o.alpha} | ({"method": method} if method else {})
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    one = str(o.threads)
    told = output_of(
        [o.peer_python, str(PEER), which, str(folder), *words],
        OMP_NUM_THREADS=one, OPENBLAS_NUM_THREADS="1",
    )  # fmt: skip
    found: Figures = json.loads(told.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default="", help="Python with the peers; empty: none")
    parser.add_argument("--ratings", type=int, default=0, help="number of ratings, about")
    parser.add_argument("--choices", type=int, default=0, help="number of items of each user")
    parser.add_argument("--users", type=int, default=5000)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, help="default: 0.05 for ratings, ours for choices")
    parser.add_argument("--lr-end", type=float, help="1, as surprise, for ratings; 0: it falls")
    parser.add_argument("--l2", type=float, default=0.03)
    parser.add_argument("--negatives", type=int, default=64)
    parser.add_argument("--peer-epochs", type=int, default=15)
    parser.add_argument("--peer-lr", type=float, default=0.05)
    parser.add_argument("--peer-l2", type=float, default=0.01)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    o = parser.parse_args()
    if bool(o.ratings) == bool(o.choices):
        parser.error("expected one of --ratings and --choices")
    o.lr = o.lr if o.lr is not None else 0.05 if o.ratings else 0.0
    o.lr_end = o.lr_end if o.lr_end is not None else float(bool(o.ratings))
    names = ["surprise"] if o.ratings else ["implicit-als", "implicit-bpr"]
    found: dict[str, list[Figures]] = {"snailps": []}
    for seed in range(1, o.runs + 1):
        with tempfile.TemporaryDirectory() as work:
            planted = Planted(o.users, o.items, seed)
            lines = planted.ratings(o.ratings) if o.ratings else planted.choices(o.choices)
            write(Path(work), lines, 0.1 if o.ratings else 0.25)
            turns = ["snailps", *names] if o.peer_python else ["snailps"]
            for name in turns[:: 1 if seed % 2 else -1]:
                run = ours if name == "snailps" else lambda *a, name=name: peer(name, *a)
                figures = run(Path(work), o, seed)
                figures["lines_per_s"] = figures["lines"] / figures["train_s"]
                found.setdefault(name, []).append(figures)
                print(seed, name, json.dumps(figures), file=sys.stderr, flush=True)
    means = {
        name: {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
        for name, runs in found.items()
    }
    print(json.dumps({"options": vars(o), **means}, indent=1))


if __name__ == "__main__":
    main()
