"""bench/transport.py: the bare loop moves the right rows, and every figure is there."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from processes import PACKAGE

BENCH = PACKAGE / "bench"
LIMIT_S = 300

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (cc)")


@pytest.fixture
def loop(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import bare.loop

    return bare.loop


@pytest.mark.parametrize("over", ["tcp", "unix"])
@pytest.mark.parametrize("dim", [1, 100])
def test_bare_loop_pull_after_push_has_the_sum_of_both(loop, tmp_path, over, dim):
    rng = np.random.default_rng(5)
    keys = np.unique(rng.integers(0, 2**64, 1500, dtype=np.uint64))
    keys[:2] = 0, 2**64 - 1
    n = len(keys)
    loaded = (np.arange(n) % 1000).sum() * dim
    with loop.Bare(loop.build(tmp_path), tmp_path, keys, dim, over) as bare:
        shuffled = np.stack([rng.permutation(keys) for _ in range(3)])
        assert bare.pull(shuffled) > 0
        assert bare.sum == loaded
        assert bare.push(shuffled) > 0
        assert bare.sum == n * dim
        bare.pull(shuffled)
        assert bare.sum == loaded + 3 * n * dim
        # Rows of some keys only, one of them twice: 700, 700 and 3, each pushed three times.
        bare.pull(keys[[[700, 3, 700]]])
        assert bare.sum == (700 + 700 + 3 + 3 * 3) * dim


def run(*words):
    return subprocess.run(
        [sys.executable, str(BENCH / "transport.py"), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_transport_quick_prints_figures_targets_and_where_they_come_from():
    done = run("--quick", "--runs=1", "--json", "--unix", "--only=pull,push,small,access,mixed")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    for key in ("pull_rows_per_s", "push_rows_per_s", "small_pull_us"):
        for name in (key, f"limit_{key}", f"limit_{key}_unix"):
            assert figures[name] > 0, name
    for access in ("add", "sgd", "adagrad", "ftrl", "adam"):
        assert figures[f"push_rows_per_s_{access}"] > 0
    assert figures["mixed_small_pull_p50_ms"] <= figures["mixed_small_pull_p99_ms"]
    targets = {row["target"]: row for row in figures["targets"]}
    pull = targets["pull / bare loop >= 0.85"]
    ratio = figures["pull_rows_per_s"] / figures["limit_pull_rows_per_s"]
    assert pull["value"] == round(ratio, 3)
    assert pull["met"] is None  # of toy sizes
    unmeasured = targets["lookups, 20 M rows / 100,000 >= 0.5"]
    assert (unmeasured["value"], unmeasured["met"]) == (None, None)
    assert figures["runs"] == 1
    assert {"date", "machine", "versions", "command"} <= set(figures)


def test_transport_unknown_part_names_it_and_the_known_ones():
    done = run("--only", "pull,nonsense")
    assert done.returncode == 1
    assert "unknown part 'nonsense'; known: pull, push, small" in done.stderr
