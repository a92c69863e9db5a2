"""Fits scikit-learn's LogisticRegression to convergence; runs in the bench's own environment.

    JSON of the job (argument) -> LogisticRegression, converged -> PREFIX.pred, one JSON line

What it finds is the optimum of a convex problem, which is the reference for quality;
its time is not compared.
"""

import json
import sys
import time

import numpy as np
import sklearn
from sklearn.datasets import load_svmlight_files
from sklearn.linear_model import LogisticRegression


def main():
    """Read the job, fit, predict, report."""
    job = json.loads(sys.argv[1])
    x, y, x_test, _ = load_svmlight_files([job["train"], job["test"]])
    model = LogisticRegression(C=job["c"], tol=1e-8, max_iter=10_000)
    begin_s = time.monotonic()
    model.fit(x, y > 0)
    fit_s = time.monotonic() - begin_s
    steps = int(model.n_iter_[0])
    if steps >= model.max_iter:
        sys.exit(f"LogisticRegression has not converged in {steps} steps")
    np.savetxt(job["prefix"] + ".pred", model.predict_proba(x_test)[:, 1], fmt="%.9g")
    version = f"scikit-learn {sklearn.__version__}"
    print(json.dumps({"fit_s": fit_s, "steps": steps, "version": version}), flush=True)


if __name__ == "__main__":
    main()
