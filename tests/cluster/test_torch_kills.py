"""kill -9 of a server, a worker and the master within one epoch of a DLRM; of a rank under ssp."""

import os
import re
import signal
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from processes import SUPPORT, Gate, Process, environment
from test_bsp import kill_who_stands_at
from test_checkpoint_clocks_cluster import run
from test_cluster import figures_of
from test_master_dies import Mortal
from test_torch_training import bits_of
from torch_models import DlrmNet, write_clicks
from torch_rows import StoredRows
from torchrun import ranks_told
from waiting import until

import snailps
from snailps.models.sparse.metrics import auc
from snailps.torch.rows import bound

TRAINED, HELD_OUT = 6000, 3000


def job_of(folder, consistency, **settings):
    """Writes the input and, beside it, what is held out; the settings of one epoch."""
    write_clicks(folder / "all", lines=TRAINED + HELD_OUT)
    lines = (folder / "all").read_text().splitlines(keepends=True)
    (folder / "input").write_text("".join(lines[:TRAINED]))
    (folder / "held-out").write_text("".join(lines[TRAINED:]))
    slots = {"micro_batches": 3} if consistency == "bsp" else {}
    return {
        "worker_class": "torch_models:DlrmClicks", "input": str(folder / "input"), "output": "out",
        "consistency": consistency, "block_bytes": 8000, "epochs": 1, "dense_lr": 0.05,
        "on_node_loss": "recover", **slots, **settings,
    }  # fmt: skip


def auc_of(folder):
    """Of the trained model on the lines that are held out."""
    store = StoredRows()
    with bound(store):
        net = DlrmNet().eval()
    with np.load(folder / "out.npz") as tables:
        for name in "abc":
            rows = zip(tables[f"{name}.keys"].tolist(), tables[f"{name}.rows"], strict=True)
            store.rows.update({(name, key): row for key, row in rows})
    net.load_state_dict(torch.load(folder / "out.pt", weights_only=True))
    told = np.loadtxt(folder / "held-out", dtype=np.int64)
    with torch.no_grad():
        return auc(told[:, 0] > 0, net(torch.from_numpy(told[:, 1:])).numpy())


def assert_ended(cluster, killed):
    """All others ended well."""
    codes = {process.pid: process.wait() for process in cluster.processes}
    assert {pid: code for pid, code in codes.items() if code} == dict.fromkeys(
        killed, -signal.SIGKILL
    )


def run_killed(folder, consistency):
    """Trains while a server, a worker and the master are killed."""
    folder.mkdir()
    gates = folder / "gates"
    places = [Gate(gates, number, "before") for number in (5, 12, 19)]
    job = job_of(folder, consistency, gates=str(gates))
    with Mortal(folder, {"replication": "sync"}, job, workers=3, servers=3) as cluster:
        master = cluster.begin()
        killed = []
        places[0].meet()
        master.wait_line("every shard has its standby")
        server = next(one for one in cluster.processes if one.name.startswith("server"))
        server.send(signal.SIGKILL)
        killed.append(server.pid)
        master.wait_line(rf"process {server.pid}\) is lost")
        places[0].open()
        places[1].meet()
        killed.append(kill_who_stands_at(places[1]))
        master.wait_line(rf"process {killed[1]}\) is lost: .* The others go on")
        places[1].open()
        places[2].meet()
        master = cluster.kill(master)
        master.wait_line("took over from the previous master")
        places[2].open()
        assert_ended(cluster, killed)
    assert figures_of(master)["examples"] == TRAINED


@pytest.mark.long
@pytest.mark.limit(600)
def test_dlrm_in_bsp_is_as_undisturbed_with_server_worker_and_master_killed_in_one_epoch(tmp_path):
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    quiet.mkdir()
    run(quiet, job_of(quiet, "bsp"), 1, 1)
    run_killed(killed, "bsp")
    assert auc_of(quiet) > 0.85
    assert bits_of(killed) == bits_of(quiet)


@pytest.mark.long
@pytest.mark.limit(600)
def test_dlrm_learns_with_server_worker_and_master_killed_in_one_epoch(tmp_path):
    """As well as undisturbed, .907, tests/quality says; untrained it has .5."""
    run_killed(tmp_path / "killed", "async")
    assert auc_of(tmp_path / "killed") > 0.75


# --- ranks under ssp ------------------------------------------------------------------------------

RANK = str(SUPPORT / "torch_ssp_rank.py")


@pytest.fixture
def cluster():
    with snailps.local_cluster(servers=1, workers=0, shard_num=1) as made:
        yield made


def test_rank_that_loses_the_other_under_ssp_ends_and_names_it(cluster, tmp_path):
    clock = tmp_path / "clock"
    clock.touch()
    ranks = [
        Process(
            f"rank {rank}", [sys.executable, RANK, cluster.address, "20", str(clock)], cwd=tmp_path,
            env=environment(OMP_NUM_THREADS="1", RANK=str(rank), WORLD_SIZE="2"),
        )
        for rank in range(2)
    ]  # fmt: skip

    def has_ended():
        """Lets time pass, again and again: rank 0 may not wait yet."""
        os.truncate(clock, clock.stat().st_size + 1001)
        return not ranks[0].runs

    try:
        assert ranks[1].wait() == -signal.SIGKILL
        until(has_ended, "rank 0 to end")
        assert ranks[0].wait() == 1
    finally:
        for one in ranks:
            one.close()
    line = re.search(r"WaitTimeout: rank 0 has waited 1000 s for rank 1, .*", ranks[0].stderr)
    assert line, ranks[0].stderr
    assert line[0].endswith("which has made 20 steps: does it run?")


def test_torchrun_starts_ranks_under_ssp_again_and_they_go_on(cluster):
    options = ("--max-restarts=1", "--monitor-interval=0.1")
    told = ranks_told(RANK, cluster.address, "40", options=options)
    assert sorted((one["rank"], one["start"]) for one in told) == [(0, 1), (1, 1)]
    for one in told:  # untrained it is above 0.2
        assert one["first"] < 0.1
        assert one["last"] < 0.05
