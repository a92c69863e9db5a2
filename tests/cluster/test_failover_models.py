"""A server dies in the middle of real trainings: the same bits in bsp and rounds, else they learn.

How well they do, tests/quality says.
"""

import signal

import numpy as np
import pytest
from processes import Cluster, Gate
from test_bsp import files_of, prepare, run, undisturbed
from test_cluster import figures_of
from test_failover import at_rest
from texts import write_topics

from snailps.models.fedavg.prepare import prepare as prepare_windows

pytestmark = pytest.mark.limit(600)


def train_and_kill(tmp_path, job, gates, blocks, when="before", servers=3):
    """Kills a server at each of these blocks; the result's hashes and figures."""
    folder = tmp_path / "killed"
    folder.mkdir()
    stages = [Gate(gates, number, when) for number in blocks]
    with Cluster(folder, job=job, workers=2, servers=servers) as cluster:
        master = cluster.master()
        nodes, _ = cluster.nodes()
        for at, gate in enumerate(stages):
            gate.meet()
            at_rest(cluster, servers - at)  # one that is primary of nothing costs no failover
            nodes[at].send(signal.SIGKILL)
            master.wait_line(rf"process {nodes[at].pid}\) is lost")
            gate.open()
        codes = {process.pid: process.wait() for process in cluster.processes}
        lost = {node.pid: -signal.SIGKILL for node in nodes[: len(blocks)]}
        assert {pid: code for pid, code in codes.items() if code} == lost, master.stderr
        figures = figures_of(master)
    assert figures["failovers"] == len(blocks)
    return files_of(folder), figures


@pytest.mark.long(but=["logistic"])
@pytest.mark.parametrize("model", ["logistic", "words", "mlp"])
def test_bsp_with_a_server_killed_gives_the_same_bits(tmp_path, model):
    gates = tmp_path / "gates"
    job = prepare(tmp_path, model, gates=str(gates))
    found, _ = train_and_kill(tmp_path, job, gates, [4], "seal", servers=2)
    plain, _ = undisturbed(tmp_path.parent, model)
    assert found["out.tables.npz"] == plain["out.tables.npz"]


@pytest.mark.long(but=["words"])
@pytest.mark.parametrize("model", ["logistic", "words", "classifier"])
def test_training_with_a_server_killed_loses_nothing_and_learns(tmp_path, model):
    _, plain = undisturbed(tmp_path.parent, model)
    figures = train_async_and_kill(tmp_path, model)
    assert figures["rows"] == plain["rows"]
    assert figures["blocks"] == plain["blocks"]
    # Workers that do not wait for each other never end twice with the same loss; untrained it is
    # ln 2 an example, and with five negatives 6 ln 2 a word.
    assert figures["loss_by_epoch"][-1] < 0.8 * np.log(2) * (6 if model == "words" else 1)


def train_async_and_kill(tmp_path, model):
    """Figures of a job without clocks that loses a server."""
    gates = tmp_path / "gates"
    job = prepare(tmp_path, model, gates=str(gates), consistency="async")
    return train_and_kill(tmp_path, job, gates, [4])[1]


@pytest.mark.long
def test_rounds_with_two_servers_killed_give_the_same_bits(tmp_path):
    write_topics(tmp_path / "input", 300)
    prepare_windows([str(tmp_path / "input")], tmp_path / "data", test_windows=50)
    job = {
        "worker_class": "clock_models:GatedFedAvg", "input": str(tmp_path / "input"),
        "output": "out", "data_dir": str(tmp_path / "data"), "bs": 16, "bpe": 4, "rounds": 4,
        "dim": 16, "shuffle": 64, "learners": 2, "lr": 0.02, "on_node_loss": "recover",
    }  # fmt: skip
    plain, _ = run(tmp_path, job, 2, 2)
    gates = tmp_path / "gates"
    found, figures = train_and_kill(tmp_path, job | {"gates": str(gates)}, gates, [2, 5])
    assert found["out.tables.npz"] == plain["out.tables.npz"]
    assert figures["rounds"] == 4
