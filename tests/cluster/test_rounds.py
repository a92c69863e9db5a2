"""Jobs in rounds, on clusters of real processes: means, drawn workers, deadlines, losses."""

import json
import os
import signal

import pytest
from processes import Cluster, Gate, run_well
from test_cluster import figures_of
from test_failures import LONG_S
from with_time import Clock

pytestmark = pytest.mark.limit(600)


@pytest.fixture
def job(tmp_path):
    """Three workers and five rounds; no input."""
    return {
        "worker_class": "clock_models:Mean", "output": str(tmp_path / "out"),
        "on_node_loss": "recover", "gates": str(tmp_path / "gates"),
    }  # fmt: skip


def after(folder, round_):
    """The model behind a round, as `after_round` saw it: the one value that all its rows have."""
    (value,) = json.loads((folder / f"out.{round_}").read_text())
    return value


def mean_step(*indices):
    """What a round adds in which workers of these indices take part."""
    return sum((i + 1) ** 2 for i in indices) / sum(i + 1 for i in indices)


def test_rounds_apply_the_weighted_mean_of_all_workers_once_each(tmp_path, job):
    figures = figures_of(run_well(tmp_path, job=job, workers=3, servers=2))
    for round_ in range(5):
        assert after(tmp_path, round_) == pytest.approx((round_ + 1) * mean_step(0, 1, 2))
    assert figures["model"][0] == pytest.approx(5 * mean_step(0, 1, 2))
    assert (figures["rounds"], figures["ended_by"]) == (5, "rounds")
    assert [entry["round"] for entry in figures["by_round"]] == list(range(1, 6))
    assert figures["by_round"][4]["loss"] == pytest.approx(100 - after(tmp_path, 4))


def test_rounds_whose_loss_is_no_number_fail(tmp_path, job):
    with Cluster(tmp_path, job={**job, "fails_on": 2}, workers=1) as cluster:
        codes, master = cluster.run()
        assert codes[0] == 1
        assert "round 3: the loss is nan: the training has diverged" in master.errors[0]
    assert not (tmp_path / "out.3").exists()


def test_rounds_draw_a_fraction_of_the_workers(tmp_path, job):
    settings = {**job, "fraction": 0.5, "rounds": 8}
    run_well(tmp_path, job=settings, workers=4)
    steps = [after(tmp_path, round_) for round_ in range(8)]
    steps = [b - a for a, b in zip([0.0, *steps], steps, strict=False)]
    pairs = {round(mean_step(a, b), 4) for a in range(4) for b in range(a)}
    assert {round(step, 4) for step in steps} <= pairs
    assert len({round(step, 4) for step in steps}) > 1


@pytest.mark.long
def test_rounds_with_a_deadline_go_on_without_a_straggler_which_takes_part_again(tmp_path, job):
    gates = tmp_path / "gates"
    gate = Gate(gates, 1 * 3 + 2, "before")  # round 1, index 2
    clock = Clock(tmp_path)
    settings = {**job, "deadline": LONG_S - 1, "rounds": 40}
    with Cluster(tmp_path, job=settings, workers=3) as cluster:
        master = cluster.master(program=clock.program)  # others' requests have a limit of time, too
        cluster.nodes()
        gate.meet()
        clock.advance(LONG_S)
        master.wait_line("round 2 goes on without worker")
        gate.open()
        assert cluster.codes() == [0] * 5
    assert after(tmp_path, 0) == pytest.approx(mean_step(0, 1, 2))
    assert after(tmp_path, 1) - after(tmp_path, 0) == pytest.approx(mean_step(0, 1))
    last = after(tmp_path, 39) - after(tmp_path, 38)
    assert last == pytest.approx(mean_step(0, 1, 2), rel=1e-4)


def test_rounds_go_on_without_a_killed_worker(tmp_path, job):
    gate = Gate(tmp_path / "gates", 2 * 3 + 1, "before")  # round 2, index 1
    with Cluster(tmp_path, job=job, workers=3, servers=2) as cluster:
        master, *_ = cluster.started_at(gate)
        os.kill(gate.pid, signal.SIGKILL)
        master.wait_line("is lost: .* The others go on")
        gate.open()
        codes = [process.wait() for process in cluster.processes]
        assert sorted(codes) == [-signal.SIGKILL, *[0] * 5]
    assert after(tmp_path, 1) == pytest.approx(2 * mean_step(0, 1, 2))
    for round_ in range(2, 5):
        assert after(tmp_path, round_) - after(tmp_path, round_ - 1) == pytest.approx(
            mean_step(0, 2)
        )


def test_rounds_of_which_there_may_be_very_many_take_no_memory_beforehand(tmp_path, job):
    figures = figures_of(run_well(tmp_path, job={**job, "rounds": 1 << 30, "target_loss": 95.0}))
    assert len(figures["loss_by_epoch"]) in (figures["rounds"], figures["rounds"] + 1)
    assert figures["peak_rss_mb"] < 1000  # 190 with 5 rounds: no byte for each of them
