"""Matrix factorisation by scikit-surprise (ratings) or implicit (pairs): figures as JSON.

    python bench/peers/fit_factors.py surprise FOLDER --dim 16 --epochs 20 --lr .005 --l2 .02
    python bench/peers/fit_factors.py implicit FOLDER --dim 16 --epochs 15 --l2 .01 --top 10

FOLDER has train.txt and test.txt, lines of ``user<TAB>item[<TAB>value]`` with numbers as names.
Seconds are those of `fit` alone.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np


def timed(function):
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return {"train_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def surprise(o: argparse.Namespace, train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    import pandas as pd
    from surprise import SVD, Dataset, Reader

    frame = pd.DataFrame(train, columns=["user", "item", "value"])
    reader = Reader(rating_scale=(train[:, 2].min(), train[:, 2].max()))
    data = Dataset.load_from_df(frame, reader).build_full_trainset()
    model = SVD(n_factors=o.dim, n_epochs=o.epochs, lr_all=o.lr, reg_all=o.l2, random_state=o.seed)
    figures = timed(lambda: model.fit(data))
    found = np.array([model.predict(user, item, clip=False).est for user, item, _ in test])
    return {**figures, "rmse": float(np.sqrt(np.square(found - test[:, 2]).mean()))}


def implicit(o: argparse.Namespace, train: np.ndarray, test: np.ndarray) -> dict[str, float]:
    import scipy.sparse as sp
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking
    from implicit.evaluation import ranking_metrics_at_k

    shape = tuple(np.concatenate([train, test])[:, :2].max(0).astype(int) + 1)
    data, held = (
        sp.csr_matrix((np.ones(len(x), np.float32), x[:, :2].T.astype(np.int32)), shape=shape)
        for x in (train, test)
    )
    if o.method == "als":
        model = AlternatingLeastSquares(
            factors=o.dim, iterations=o.epochs, regularization=o.l2, alpha=o.alpha,
            num_threads=o.threads, random_state=o.seed,
        )  # fmt: skip
    else:
        model = BayesianPersonalizedRanking(
            factors=o.dim, iterations=o.epochs, regularization=o.l2, learning_rate=o.lr,
            num_threads=o.threads, random_state=o.seed,
        )  # fmt: skip
    figures = timed(lambda: model.fit(data, show_progress=False))
    found = ranking_metrics_at_k(
        model, data, held, K=o.top, show_progress=False, num_threads=o.threads
    )
    return {**figures, "recall": float(found["precision"]), "ndcg": float(found["ndcg"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("peer", choices=("surprise", "implicit"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--method", choices=("als", "bpr"), default="als")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--l2", type=float, default=0.02)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    o = parser.parse_args()
    train, test = (np.loadtxt(o.folder / f"{part}.txt") for part in ("train", "test"))
    figures = {"surprise": surprise, "implicit": implicit}[o.peer](o, train, test)
    print(json.dumps(figures | {"lines": len(train) * o.epochs}))


if __name__ == "__main__":
    main()
