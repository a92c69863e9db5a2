"""Real models whose training ends while their last push is under way: what they write is whole."""

import random
import signal
import sys

import numpy as np
import pytest
from processes import LIMIT_S, Cluster, Gate, run_well, until
from test_cluster import figures_of

from snailps.cli.masters import ask

INTERRUPTED, STOPPED, DIM = 130, 3, 8
EPOCHS = 240
PERIODS = 600  # blocks: a tenth of so many epochs, more than two periods of a single worker


@pytest.fixture
def gated(tmp_path):
    """A cluster of one worker whose last push stops at a gate, and that gate."""
    gates = tmp_path / "gates"
    gates.mkdir()

    def make(job, name):
        program = [sys.executable, "-m", "with_slow_push", str(gates)]
        return Cluster(tmp_path, job=job, program=program), Gate(gates, 0, name)

    return make


def test_rotation_that_ends_between_the_pushes_of_its_tables_waits_for_the_other(tmp_path, gated):
    """All output rows were 0, all input rows trained."""
    words = random.Random(1).choices([f"w{n}" for n in range(5000)], k=150_000)
    (tmp_path / "in.txt").write_text(" ".join(words))
    job = {"worker_class": "snailps.models.word_vectors:WordVectors", "input": "in.txt"}
    job |= {
        "output": "out",
        "dim": DIM,
        "epochs": 1000,
        "max_seconds": 1,
        "minn": 0,
        "maxn": 0,
        "sample": 0,
    }
    cluster, gate = gated(job, "input")
    with cluster:
        master, *_ = cluster.started_at(gate)
        master.wait_line("has pushed a part of its last blocks, and nothing for 1 s")
        gate.open()
        assert cluster.codes() == [0, 0, 0]
    figures = figures_of(master)
    assert figures["words"] > 0
    written = (tmp_path / "out.bin").read_bytes()[-4 * DIM * figures["vocabulary"] :]
    outputs = np.frombuffer(written, np.float32).reshape(-1, DIM)
    assert np.count_nonzero(outputs.any(axis=1)) > len(outputs) / 2


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl"])
def test_kept_rows_that_are_not_pushed_at_the_end_do_not_count(tmp_path, gated, optimizer):
    """The model is that of as many steps as the figures count. (Those of `sgd` depend on the time
    that is left.)"""
    rng = random.Random(1)
    lines = [
        f"{rng.randint(0, 1)} " + " ".join(f"{rng.randint(1, 400)}:1" for _ in range(8))
        for _ in range(2000)
    ]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    job = {"worker_class": "snailps.models.sparse.linear:Linear", "input": "in.txt"}
    job |= {"output": "out", "optimizer": optimizer, "block_bytes": 4000, "shuffle": "false"}
    cluster, gate = gated(job | {"epochs": EPOCHS}, "flush")

    def blocks_done():
        return ask(cluster.address, LIMIT_S)["blocks"]["done"]

    with cluster:
        master = cluster.master()
        cluster.nodes()
        until(lambda: blocks_done() > PERIODS, lambda: f"{PERIODS} blocks, not {blocks_done()}")
        master.send(signal.SIGINT)  # after `max_seconds` under load there might be no whole period
        gate.meet()
        master.wait_line("at its last blocks, and none of them pushed")
        gate.open()
        assert cluster.codes() == [INTERRUPTED, 0, STOPPED]
    figures = figures_of(master)
    assert figures["blocks"] > 0
    again = {**job, "output": "again", "max_steps": figures["blocks"], "epochs": EPOCHS}
    counted = figures_of(run_well(tmp_path, job=again))
    assert counted["examples"] == figures["examples"]
    assert counted["train_loss"] == figures["train_loss"]
    with np.load(tmp_path / "out.npz") as out, np.load(tmp_path / "again.npz") as known:
        assert np.array_equal(out["keys"], known["keys"])
        # Periods end elsewhere, so sums are rounded otherwise; a step is a million times as far.
        assert np.allclose(out["rows"], known["rows"], rtol=0, atol=1e-7)
