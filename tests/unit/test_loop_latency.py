"""`LoopLatency`: how long turns of a loop take, in buckets."""

import pytest

from snailps.master.loop_latency import LoopLatency, quantile_ms


def test_no_turn_yet_is_all_zeros():
    assert LoopLatency().status() == {
        "turns": 0, "busy_s": 0.0, "busy_ms_p999": 0.0, "busy_ms_max": 0.0, "counts": [],
        "cpu_counts": [],
    }  # fmt: skip


def test_quantiles_are_bounds_within_a_tenth():
    times = LoopLatency()
    for at in range(1, 10_001):
        times.note(at * 1e-5, 1e-3)  # 0.01 to 100 ms
    status = times.status()
    assert status["turns"] == sum(count for _, count in status["counts"]) == 10_000
    assert status["busy_s"] == pytest.approx(500.05)
    assert status["busy_ms_max"] == pytest.approx(100.0)
    for share, exact in ((0.5, 50.0), (0.99, 99.0), (0.999, 99.9)):
        assert exact <= quantile_ms(status["counts"], share) <= 1.1 * exact
    assert status["busy_ms_p999"] == pytest.approx(100.0)
    ((upper_ms, count),) = status["cpu_counts"]
    assert 1.0 <= upper_ms <= 1.1
    assert count == 10_000


def test_turns_of_no_time_are_counted():
    times = LoopLatency()
    times.note(0.0, 0.0)
    assert times.status()["counts"] == [[0.001, 1]]
