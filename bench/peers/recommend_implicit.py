"""Lists of all users by implicit: FOLDER/rows.npz -> FOLDER/implicit.npz, seconds."""

import argparse
import json
import time
import warnings

import numpy as np
import scipy.sparse as sp
from implicit.als import AlternatingLeastSquares
from threadpoolctl import threadpool_limits
from usage import cpu_s, peak_mb


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--top", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--items", type=int, help="only so many of the items; 0: all")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    with np.load(f"{o.folder}/rows.npz") as saved:
        rows = {name: saved[name] for name in saved}
    users, items = rows["users"], rows["items"]
    ones = np.ones(len(rows["known"]), np.float32)
    known = sp.csr_matrix((ones, rows["known"], rows["ptr"]), (len(users), len(items)))
    model = AlternatingLeastSquares(
        factors=users.shape[1], num_threads=o.threads, use_gpu=False, dtype=np.float32
    )
    model.user_factors, model.item_factors = users, items
    only = rows["only"][: o.items] if o.items else None
    everyone = np.arange(len(users))
    with threadpool_limits(1, "blas"):  # as implicit asks for: else threads wait for each other
        spent, begun = cpu_s(), time.monotonic()
        numbers, scores = model.recommend(everyone, known, N=o.top, items=only)
        seconds = {"cpu_s": cpu_s() - spent, "wall_s": time.monotonic() - begun}
    peak = peak_mb()
    np.savez(f"{o.folder}/implicit.npz", numbers=numbers, scores=scores)
    print(json.dumps({**seconds, "peak_mb": peak}))


if __name__ == "__main__":
    main()
