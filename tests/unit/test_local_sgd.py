"""models.local_sgd: layouts and pools of arrays, shares of deltas; sizes of blocks of text."""

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snailps import kernels
from snailps.kernels._row_exchange import share_of_delta
from snailps.models.local_sgd import ArrayPool, Contention, LocalSgd, RowLayout
from snailps.models.text_model import TextModel
from snailps.models.word_vectors import WordVectors

# --- pools ------------------------------------------------------------------------------------


class Maker:
    """Makes arrays and remembers their lengths."""

    def __init__(self):
        self.made = []

    def __call__(self, n):
        self.made.append(n)
        return np.zeros((n, 2), np.float32)


def test_pool_reuses_an_array_given_back():
    pool = ArrayPool(maker := Maker())
    first = pool.take(80)
    assert first.shape == (80, 2)
    where = first.ctypes.data
    pool.give(first)
    for n in (80, 10, 90, 1):  # 90: an array has an eighth more than was asked for
        again = pool.take(n)
        assert (len(again), again.ctypes.data) == (n, where)
        pool.give(again)
    assert maker.made == [90]


def test_pool_drops_arrays_that_are_too_small():
    pool = ArrayPool(maker := Maker())
    for n in (8, 80, 800, 8000):
        pool.give(pool.take(n))
    assert maker.made == [9, 90, 900, 9000]
    assert len(pool.free) == 1


def test_pool_of_padded_arrays_gives_rows_that_kernels_take():
    pool = ArrayPool(lambda n: kernels.padded(n, 3))
    rows = pool.take(0)
    assert rows.shape == (0, kernels.PAD)
    pool.give(rows)
    assert pool.take(5).ctypes.data % 64 == 0


def test_pool_has_no_array_taken_twice():
    pool = ArrayPool(Maker())
    lent = [pool.take(10) for _ in range(5)]
    for number, array in enumerate(lent):
        array[:] = number
    assert [array[0, 0] for array in lent] == [0, 1, 2, 3, 4]
    for array in lent:
        pool.give(array)
    assert pool.taken == {}


@pytest.mark.parametrize(
    "layout",
    [
        RowLayout(1, 3, 1),
        RowLayout(16, 2, 16),
        RowLayout.padded(5, 3),
        RowLayout.padded(5, 1),
        RowLayout.padded(5, 2, split=True),
        RowLayout.padded(16, 1, split=True),
    ],
)
def test_layout_loads_rows_and_subtracts_them(layout):
    packed = np.random.default_rng(1).normal(size=(4, layout.width)).astype(np.float32)
    trained = [layout.make(4) for _ in range(layout.arrays)]
    for array in trained:
        array[:] = 9  # left from before
    layout.load(packed, *trained)
    parts = np.concatenate(trained, axis=1).reshape(4, layout.parts, layout.stride)
    np.testing.assert_array_equal(parts[:, :, : layout.dim].reshape(4, -1), packed)
    for array in trained:
        array *= 3
    expected = packed * 3 - packed
    layout.subtract(packed, *trained)
    np.testing.assert_array_equal(packed, expected)


def floats(*values):
    return np.array(values, np.float32)


def test_share_of_delta_is_all_for_rare_rows_and_a_mean_for_hot_ones():
    own = floats(0, 1e-6, 50, 1e6)
    share = share_of_delta(own, 3 * own)
    assert share[:2] == pytest.approx([1, 1], abs=2e-3)
    assert share[2:] == pytest.approx([0.25, 0.25])
    assert share_of_delta(floats(0.7, 20), floats(0, 0)) == pytest.approx([1, 1])


@given(st.floats(1e-2, 5), st.lists(st.floats(0, 5), max_size=7))
def test_share_of_delta_makes_the_sum_what_taking_turns_gives(own, others):
    """On a bowl: each worker goes 1 - exp(-steps) of the way from one start."""
    steps = [own, *others]
    total = sum(steps)
    together = sum(
        float(share_of_delta(floats(mine), floats(total - mine))[0]) * -math.expm1(-mine)
        for mine in steps
    )
    assert together == pytest.approx(-math.expm1(-total), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("workers", [2, 5])
def test_contention_with_a_matrix_makes_the_sum_what_taking_turns_gives(workers):
    """On a bowl that is steep in some directions and flat in others; a rare row among the rows."""
    rng = np.random.default_rng(5)
    directions = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    curvatures = np.array([8, 1, 0.3, 0.1, 0.01, 0])
    curvature = (directions * curvatures) @ directions.T
    start = rng.normal(size=(3, 6))
    own = floats(0.01, 1, 4)

    def way(steps):
        """What `steps` change of each row: it goes to 0 along each direction at its own pace."""
        left = np.expm1(-np.outer(steps, curvatures))
        return ((start @ directions) * left) @ directions.T

    deltas = way(own).astype(np.float32)
    Contention(own, own * np.float32(workers - 1), curvature.astype(np.float32)).scale(deltas)
    np.testing.assert_allclose(deltas * workers, way(own * workers), rtol=0.05, atol=2e-3)


def test_contention_without_other_workers_leaves_deltas_alone():
    deltas = np.ones((2, 3), np.float32)
    for curvature in (2.0, np.eye(3, dtype=np.float32)):
        Contention(floats(5, 50), floats(0, 0), curvature).scale(deltas)
        np.testing.assert_allclose(deltas, 1, rtol=1e-6)


@pytest.mark.parametrize("dim", [3, 100])  # NumPy raises for some sizes and not for others
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_contention_of_rows_that_diverged_leaves_deltas_alone(dim, value):
    deltas = np.ones((2, dim), np.float32)
    for curvature in (value, np.full((dim, dim), value, np.float32)):
        Contention(floats(5, 50), floats(10, 100), curvature).scale(deltas)
        np.testing.assert_array_equal(deltas, 1)


SSP = {"consistency": "ssp", "staleness": 2}  # word vectors do not rotate then


@pytest.mark.parametrize(
    ("model", "settings", "total", "workers", "expected"),
    [
        (TextModel, SSP, 1 << 20, 1, (1 << 20) // 10),
        (TextModel, SSP, 1 << 30, 1, 6 << 20),
        (TextModel, SSP, 100 << 20, 8, (100 << 20) // 320),
        (WordVectors, SSP, 100 << 20, 8, (100 << 20) // 640),
        (WordVectors, SSP, 30 << 20, 8, 64 << 10),
        (WordVectors, SSP, 1 << 20, 8, (1 << 20) // 320),
        (WordVectors, SSP, 1000, 8, 512),
        # Rotating, an eighth of an epoch by the workers.
        (WordVectors, {}, 30 << 20, 1, 3 << 20),
        (WordVectors, {}, 100 << 20, 1, 3 << 20),
        (WordVectors, {}, 30 << 20, 2, (30 << 20) // 16),
        (WordVectors, {}, 100 << 20, 8, (100 << 20) // 64),
        (WordVectors, {}, 1000, 8, 512),
        (WordVectors, {}, 1 << 40, 8, 3 << 20),
    ],
)
def test_block_bytes_are_a_share_of_an_epoch_not_too_small(
    model, settings, total, workers, expected
):
    assert model.block_bytes(model.Settings(**settings), total, workers) == expected


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_copied_by_the_caller_if_one_thread_is_all(threads):
    """Not behind the kernel that is at work there."""
    sgd = LocalSgd(SimpleNamespace(threads=threads), RowLayout.padded(4))
    seen = []

    def note(rows, other, nothing):
        seen.append((threading.get_ident(), rows.tolist(), other.tolist(), nothing))

    sgd.in_threads(note, np.arange(6), np.arange(6) + 10, None)
    sgd.close()
    assert sorted(row for _, rows, _, _ in seen for row in rows) == list(range(6))
    assert all(other == [row + 10 for row in rows] for _, rows, other, _ in seen)
    assert all((thread == threading.get_ident()) == (threads == 1) for thread, *_ in seen)
    assert len(seen) == threads


# --- kernels ----------------------------------------------------------------------------------


def test_processor_time_of_kernels_is_counted_here_and_in_the_pool():
    def busy(seconds, fails=False):
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        time.sleep(0.05)  # waiting is no work
        if fails:
            raise ValueError("no rows")
        return seconds

    sgd = LocalSgd(SimpleNamespace(threads=2), RowLayout.padded(4))
    try:
        assert sgd.run(busy, 0.01) == 0.01
        tasks = [sgd.start(busy, seconds) for seconds in (0.01, 0.02)]
        assert [task.result() for task in tasks] == [0.01, 0.02]
        with pytest.raises(ValueError, match="no rows"):
            sgd.start(busy, 0.01, fails=True).result()
        assert 0.05 <= sgd.take_kernel_s() < 0.075
        assert sgd.take_kernel_s() == 0.0
    finally:
        sgd.close()
