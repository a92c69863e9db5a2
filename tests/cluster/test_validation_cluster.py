"""Tests after epochs on real clusters: the rows of the best epoch are what is saved."""

import signal

import numpy as np
import pytest
from cluster_models import write_numbers
from processes import Cluster, Gate
from test_cluster import figures_of

LINES, ROWS = 200, 20


@pytest.mark.parametrize("victim", ["server", "master"])
def test_rows_of_the_best_epoch_are_saved_though_a_process_is_killed_after_it(tmp_path, victim):
    write_numbers(tmp_path / "in.txt", LINES, ROWS)
    job = {
        "worker_class": "cluster_models:Best", "input": "in.txt", "output": "out", "epochs": 5,
        "gates": str(tmp_path / "gates"), "replication": "sync",
    }  # fmt: skip
    common = {"on_node_loss": "recover"}
    gate = Gate(tmp_path / "gates", 13)  # in the second epoch: the rows of the first are kept
    with Cluster(tmp_path, common, job, servers=2) as cluster:
        master = cluster.master()
        nodes = cluster.nodes()
        gate.meet()
        assert (tmp_path / "out.best").is_dir()
        if victim == "server":
            nodes[0][0].send(signal.SIGKILL)
            master.wait_line("is lost")
        else:
            master.send(signal.SIGKILL)
            master.wait()
            master = cluster.master(port=cluster.port)
        gate.open()
        codes = cluster.codes()
    assert codes.count(-signal.SIGKILL) == 1
    figures = figures_of(master)
    assert (figures["ended_by"], figures["best_epoch"], figures["saved_epoch"]) == (
        "stop_after", 1, 1,
    )  # fmt: skip
    assert [test["epoch"] for test in figures["tests"]] == [1, 2]
    with np.load(tmp_path / "out.npz") as tables:
        assert tables["counts.keys"].tolist() == list(range(ROWS))
        assert np.unique(tables["counts.rows"]).tolist() == [LINES / ROWS]
    assert not (tmp_path / "out.best").exists()
