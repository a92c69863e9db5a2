"""Fit implicit's ALS to a matrix of choices: FOLDER/train.npz -> FOLDER/peer.npz, seconds."""

import argparse
import json

import numpy as np
import scipy.sparse as sp
from implicit.als import AlternatingLeastSquares
from threadpoolctl import threadpool_limits
from usage import cpu_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name, kind in (("factors", int), ("iterations", int), ("threads", int)):
        parser.add_argument(f"--{name}", type=kind)
    for name in ("alpha", "regularization"):
        parser.add_argument(f"--{name}", type=float)
    o = parser.parse_args()
    with np.load(f"{o.folder}/train.npz") as saved:
        ones = np.ones(len(saved["items"]), np.float32)
        matrix = sp.csr_matrix((ones, saved["items"], saved["ptr"]), saved["shape"])
    model = AlternatingLeastSquares(
        factors=o.factors,
        alpha=o.alpha,
        regularization=o.regularization,
        iterations=o.iterations,
        num_threads=o.threads,
        use_gpu=False,
        random_state=1,
    )
    with threadpool_limits(1, "blas"):
        before = cpu_s()
        model.fit(matrix, show_progress=False)
        spent = cpu_s() - before
    np.savez(f"{o.folder}/peer.npz", users=model.user_factors, items=model.item_factors)
    print(json.dumps({"fit_cpu_s": spent}))


if __name__ == "__main__":
    main()
