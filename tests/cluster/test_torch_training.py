"""PyTorch models on leased blocks: processes are killed, jobs go on, and bsp has the same bits."""

import functools
import os
import re
import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from processes import PACKAGE, SUPPORT, Cluster, Gate
from test_bsp import kill_who_stands_at
from test_checkpoint_clocks_cluster import run, stop_between
from test_cluster import figures_of
from torch_models import Clicks, write_clicks

import snailps

pytestmark = pytest.mark.limit(600)  # several clusters a test


def prepare(folder, **settings):
    """Writes the input; the settings of a job of some twenty blocks."""
    if not (folder / "input").exists():
        write_clicks(folder / "input")
    return {
        "worker_class": "torch_models:Clicks", "input": str(folder / "input"), "output": "out",
        "consistency": "bsp", "micro_batches": 3, "block_bytes": 8000, "epochs": 2,
        "dense_lr": 0.05, "on_node_loss": "recover", **settings,
    }  # fmt: skip


def bits_of(folder):
    """Keys and rows of all tables, and the dense parameters."""
    found = {}
    with np.load(folder / "out.npz") as tables:
        for name in sorted(tables.files):
            found[name] = tables[name].tobytes()
    for name, value in torch.load(folder / "out.pt", weights_only=True).items():
        found[name] = value.numpy().tobytes()
    return found


@functools.cache
def undisturbed(base):
    """Bits and figures of a run with one worker and one server."""
    folder = base / "undisturbed-torch"
    folder.mkdir()
    master = run(folder, prepare(folder), 1, 1)
    return bits_of(folder), figures_of(master)


def test_model_learns_and_its_files_hold_rows_and_dense_parameters(tmp_path):
    bits, figures = undisturbed(tmp_path.parent)
    assert figures["loss_by_epoch"][1] < figures["loss_by_epoch"][0] < 0.7
    assert {f"{name}.{part}" for name in "abc" for part in ("keys", "rows")} < bits.keys()
    assert np.frombuffer(bits["a.keys"], np.uint64).max() > 1 << 33
    assert {"top.0.weight", "top.4.bias", "top.1.running_mean"} <= bits.keys()
    assert abs(np.frombuffer(bits["top.1.running_mean"], np.float32)).max() > 0.01
    # Of each step the mean of its contributions: each has one block, of some seven batches.
    assert np.frombuffer(bits["top.1.num_batches_tracked"], np.int64)[0] >= 2 * 3000 // 64 // 3


@pytest.mark.long
def test_bsp_with_other_numbers_of_workers_and_servers_gives_the_same_bits(tmp_path):
    bits, figures = undisturbed(tmp_path.parent)
    master = run(tmp_path, prepare(tmp_path), 2, 3)
    assert bits_of(tmp_path) == bits
    assert figures_of(master)["loss_by_epoch"] == figures["loss_by_epoch"]


def test_bsp_continued_from_a_checkpoint_on_other_numbers_gives_the_same_bits(tmp_path):
    gates = tmp_path / "gates"
    job = prepare(tmp_path, checkpoint_interval=0.3, checkpoint_dir="saved", gates=str(gates))
    stop_between(tmp_path, job, Gate(gates, 4, "before"), Gate(gates, 15, "before"))
    master = run(tmp_path, job, 2, 3)
    line = master.wait_line(r"continuing from checkpoint \d+ .* of the training")
    assert 0 < int(re.search(r": (\d+)% of", line)[1]) < 100
    assert bits_of(tmp_path) == undisturbed(tmp_path.parent)[0]


@pytest.mark.long(but=["async"])
@pytest.mark.parametrize("consistency", ["async", "ssp"])
def test_job_without_common_steps_learns_while_a_worker_is_killed(tmp_path, consistency):
    gate = Gate(tmp_path / "gates", 6, "before")
    job = prepare(tmp_path, gates=str(tmp_path / "gates"), consistency=consistency)
    del job["micro_batches"]
    with Cluster(tmp_path, job=job, workers=3, servers=2) as cluster:
        master = cluster.master()
        cluster.nodes()
        gate.meet()
        killed = kill_who_stands_at(gate)
        gate.open()
        codes = {process.pid: process.wait() for process in cluster.processes}
        assert {pid: code for pid, code in codes.items() if code} == {killed: -signal.SIGKILL}
    figures = figures_of(master)
    assert figures["examples"] == 6000  # each line twice, whoever is lost
    # Untrained it is .69; as a rule .54 and .39, by .01 to each side.
    assert figures["loss_by_epoch"][1] < figures["loss_by_epoch"][0] < 0.7


def test_model_of_a_finished_job_has_its_dense_parameters(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(SUPPORT)]))
    write_clicks(tmp_path / "input")
    with snailps.cluster(threads=1) as cluster:
        job = cluster.run(
            "torch_models:Clicks", {"epochs": 2, "block_bytes": 8000, "output": ""},
            input=tmp_path / "input", timeout_s=120,
        )  # fmt: skip
        with job.results() as results:
            net = Clicks.trained(results)
            assert results.pull("a", [1]).shape == (1, 4)
            first = Clicks(results.settings)
            first.tables()
    assert [table.name for table in net.bags.tables] == ["a", "b", "c"]
    assert not torch.equal(net.top[0].weight, first.net.top[0].weight)
