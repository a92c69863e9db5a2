"""Rows of which each thread has a copy: adding up the copies' differences loses none of them."""

import threading

import numpy as np
import pytest

from snailps import kernels

ADAGRAD, SQUARED = 2, 1
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
        factor_rate=1.0, eps=1e-8, l1=0.0, l2=0.0, factor_l2=0.0, beta=1.0, first=0, last=EXAMPLES,
    )  # fmt: skip


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
    together = threading.Barrier(THREADS)

    def work():
        for _ in range(TIMES):
            together.wait(60)
            train(rows, ptr, places, ones)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    examples = THREADS * TIMES * EXAMPLES
    np.testing.assert_array_equal(rows[:ROWS, state], examples / ROWS)
    assert rows[ROWS, state] == examples
