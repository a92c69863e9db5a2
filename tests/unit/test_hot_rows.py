"""Rows of which each thread has a copy: adding up the copies' differences loses none of them."""

import threading
from functools import partial

import numpy as np
import pytest
from waiting import LIMIT_S, run_all

from snailps import kernels

ADAGRAD, SQUARED, SAMPLING = 2, 1, 2
NONE = np.zeros(0, np.float32)
EXAMPLES, ROWS, THREADS, TIMES = 256 * 400, 256, 4, 6
RATE = 1e-20
"""Weights stay as good as 0: each example adds exactly 1 to its sums of squared gradients."""


def linear(rows, ptr, places, ones):
    kernels.train_linear(
        rows, ptr, places, ones, ones, NONE, outputs=1, loss=SQUARED, method=ADAGRAD,
        bias=ROWS, hot=ROWS, lr_start=RATE, lr_stop=RATE, eps=1e-8, l1=0.0, l2=0.0, beta=1.0,
        first=0, last=EXAMPLES,
    )  # fmt: skip


def fm(rows, ptr, places, ones):
    kernels.train_fm(
        rows, ptr, places, ones, np.zeros(0, np.int32), ones, NONE, factors=4, field_num=1,
        loss=SQUARED, method=ADAGRAD, bias=ROWS, hot=ROWS, lr_start=RATE, lr_stop=RATE,
        eps=1e-8, l1=0.0, l2=0.0, factor_l2=0.0, beta=1.0, first=0, last=EXAMPLES,
    )  # fmt: skip


def test_label_rows_exchanged_by_threads_at_once_lose_no_line():
    lines, labels, rate = 64 * 1000, 64, 2.0**-60  # scores stay 0, probabilities a half
    inputs, outputs = kernels.padded(1, 64), kernels.padded(labels, 64)
    inputs[:], outputs[:] = 1, 0
    ptr = np.arange(lines + 1, dtype=np.int64)
    features = np.zeros(lines, np.int32)
    wanted = np.resize(np.arange(labels, dtype=np.int32), lines)

    def train():
        kernels.train_labels(
            inputs, outputs, 64, ptr, features, ptr, wanted, np.zeros(0, np.int32), loss=SAMPLING,
            negatives=0, shared=True, lr_start=rate, lr_stop=rate, seed=1, first=0, last=lines,
        )  # fmt: skip

    at_once(train)
    np.testing.assert_array_equal(outputs, THREADS * TIMES * lines / labels * rate / 2)


def at_once(function):
    """Calls it `TIMES` times in each of `THREADS` threads, every time together."""
    together = threading.Barrier(THREADS)

    def work(_):
        for _ in range(TIMES):
            together.wait(LIMIT_S)
            function()

    run_all(*(partial(work, one) for one in range(THREADS)))


@pytest.mark.parametrize(
    ("train", "rows", "state"),
    [
        (linear, np.zeros((ROWS + 1, 2), np.float32), 1),
        (fm, kernels.padded(ROWS + 1, 32), 16),
    ],
)
def test_hot_rows_exchanged_by_threads_at_once_lose_no_example(train, rows, state):
    rows[:] = 0
    ptr = np.arange(EXAMPLES + 1, dtype=np.int64)
    places = np.resize(np.arange(ROWS, dtype=np.int32), EXAMPLES)
    ones = np.ones(EXAMPLES, np.float32)
    at_once(lambda: train(rows, ptr, places, ones))
    examples = THREADS * TIMES * EXAMPLES
    np.testing.assert_array_equal(rows[:ROWS, state], examples / ROWS)
    assert rows[ROWS, state] == examples
