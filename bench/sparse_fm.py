"""Factorization machines: the NumPy reference's quality, and the kernel alone on one core.

    LIBSVM text -> reference_fm.fit -> probabilities -> quality
                -> arrays -> kernels.train_fm, one thread, over and over -> examples/s

It owns how the reference and the kernel are called; data, turns and the cluster are sparse.py's.
"""

import time
from pathlib import Path

import numpy as np
import reference_fm
from judge import quality

from snailps import kernels

KERNEL_EXAMPLES = 100_000
METHODS = {"adagrad": 2, "ftrl": 4}
"""As the kernel numbers them, with the floats behind a weight that each has."""
STATES = {"adagrad": 1, "ftrl": 2}


def fit_reference(train: Path, test: Path, **sizes: float) -> dict:
    """Fit the reference; its seconds and its quality on the test file.

    Parameters
    ----------
    train, test : Path
        LIBSVM.
    sizes
        As of `reference_fm.fit`.
    """
    parts = [reference_fm.Examples(*reference_fm.read_libsvm(path)) for path in (train, test)]
    feature_num = 1 + int(max(part.features.max() for part in parts))
    begin_s = time.perf_counter()
    machine = reference_fm.fit(parts[0], feature_num, **sizes)
    fit_s = time.perf_counter() - begin_s
    scores = machine.scores(parts[1])
    found = quality(parts[1].labels > 0, 1.0 / (1.0 + np.exp(-scores)))
    return {"wall_s": fit_s, "examples_per_s": len(parts[0].labels) / fit_s, "quality": found}


def kernel_rate(train: Path, *, factors: int, method: str, seconds: float) -> float:
    """Examples a second of `kernels.train_fm` in one thread, rows and examples in memory.

    Parameters
    ----------
    train : Path
        LIBSVM; its first examples are trained on again and again.
    seconds : float
        How long, after one pass to warm up; the fastest pass counts, since others use the machine.
    """
    with open(train, "rb") as file:
        lines = [line.split() for _, line in zip(range(KERNEL_EXAMPLES), file, strict=False)]
    labels = np.array([float(line[0]) for line in lines], np.float32)
    entries = [entry.partition(b":") for line in lines for entry in line[1:]]
    keys = np.array([int(key) for key, _, _ in entries])
    values = np.array([float(value) for _, _, value in entries], np.float32)
    ptr = np.concatenate([[0], np.cumsum([len(line) - 1 for line in lines])]).astype(np.int64)
    unique, places = np.unique(keys, return_inverse=True)
    stride = -(-(1 + factors) // kernels.PAD) * kernels.PAD
    rows = kernels.padded(len(unique) + 1, (1 + STATES[method]) * stride)
    rng = np.random.default_rng(1)
    rows[:, 1 : 1 + factors] = rng.normal(0, 0.05, (len(rows), factors))
    none = np.zeros(0, np.float32)
    best_s, until = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin_s = time.perf_counter()
        kernels.train_fm(
            rows, ptr, places.astype(np.int32), values, np.zeros(0, np.int32), labels, none,
            factors=factors, field_num=1, loss=0, method=METHODS[method], bias=len(unique), hot=0,
            lr_start=0.05, lr_stop=0.05, eps=1.0, l1=0.0, l2=0.0, factor_l2=0.0,
            beta=1.0, first=0, last=len(labels),
        )  # fmt: skip
        best_s = min(best_s, time.perf_counter() - begin_s)
    return len(labels) / best_s
