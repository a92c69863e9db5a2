"""Servers die, hang, come and leave while a job runs: it ends with 0 and nothing is lost.

Each line of the input adds 1 to one row, so that the rows say how often each push was applied.
"""

import re
import signal
from collections import Counter

import numpy as np
import pytest
from cluster_models import gated_job
from processes import Cluster, Gate, run_snailps, run_well
from test_cluster import figures_of
from test_failures import LONG_S
from waiting import LIMIT_S, until
from with_time import Clock

from snailps.cli.masters import ask

FAILED, STOPPED = 1, 3
REDUNDANT = "every shard has its standby"
AGAIN = "every shard has its standby again"


@pytest.fixture
def job(tmp_path):
    """Ten blocks that count 1,000 lines, with a gate before the third."""
    return gated_job(tmp_path)


@pytest.fixture
def gate(tmp_path, job):
    """A worker stands there while something happens."""
    return Gate(tmp_path / "gates", 2)


def begin(cluster, gate):
    """Starts all, waits until every shard has a standby and a worker stands at the gate."""
    master, servers, workers = cluster.started_at(gate)
    master.wait_line(REDUNDANT)
    return master, servers, workers


def at_rest(cluster, servers=0):
    """The shards as the status has them, once each is ready and all `servers` have as many.

    Until then standbys move, though every shard has one.
    """
    shards = []

    def even():
        shards[:] = ask(cluster.address, LIMIT_S)["shards"]
        held = Counter(shard[whose] for shard in shards for whose in ("primary", "standby"))
        ready = all(shard["state"] == "ready" for shard in shards)
        served = [*Counter(shard["primary"] for shard in shards).values()]
        alive = servers or cluster.servers
        both = len(held) == len(served) == alive and max(served) - min(served) <= 1
        return ready and both and len({*held.values()}) == 1

    until(even, lambda: f"as many shards at each server: {shards}")
    return shards


def assert_counted_once(folder, times=1):
    with np.load(folder / "out.npz") as saved:
        assert saved["counts.keys"].tolist() == list(range(50))
        assert (saved["counts.rows"] == 20 * times).all(), saved["counts.rows"].ravel().tolist()


def wait_lines(process, pattern, count, behind=""):
    """Waits until a process has written as many lines in which the pattern is found.

    Those count that come behind the first one with another pattern: a standby may be made good, and
    that be said, before the master knows that its server is lost.
    """

    def found():
        lines = list(process.lines)
        first = next((at for at, line in enumerate(lines) if re.search(behind, line)), len(lines))
        return sum(bool(re.search(pattern, line)) for line in lines[first:]) >= count

    process.until(found, f"{count} lines with {pattern!r} of {process.name}")


def test_job_goes_on_when_a_server_is_killed(tmp_path, job, gate):
    with Cluster(tmp_path, {"shard_num": 2}, job, servers=3, workers=2, cores=2) as cluster:
        master, (victim, *_), _ = begin(cluster, gate)
        name = cluster.name_of(victim)
        victim.send(signal.SIGKILL)
        master.wait_line(rf"{name} .* is lost")
        master.wait_line("reachable again")
        gate.open()
        codes = cluster.codes()
        assert codes == [0, -signal.SIGKILL, *[0] * 4], master.stderr
        figures = figures_of(master)
    assert figures["failovers"] == 1
    assert 0 < figures["resume_s_max"] < LIMIT_S
    assert_counted_once(tmp_path)


def test_server_killed_while_the_master_exports_is_replaced_by_a_standby(tmp_path, job, gate):
    job |= {"worker_class": "cluster_models:HalfScanned"}
    at_export = Gate(tmp_path / "gates", 0, "export")
    with Cluster(tmp_path, job=job, servers=2) as cluster:
        master, (victim, _), _ = begin(cluster, gate)
        gate.open()
        at_export.meet()
        victim.send(signal.SIGKILL)
        at_export.open()
        assert cluster.codes() == [0, -signal.SIGKILL, 0, 0], master.stderr
        assert figures_of(master)["scanned"] == list(range(50))
    assert_counted_once(tmp_path)


@pytest.mark.long
def test_job_with_both_servers_killed_at_once_says_what_is_gone(tmp_path, job, gate):
    with Cluster(tmp_path, job=job, servers=3, workers=1) as cluster:
        master, servers, _ = begin(cluster, gate)
        shard = at_rest(cluster)[0]
        by_name = {cluster.name_of(server): server for server in servers}
        first, second = (by_name[f"server {shard[whose]}"] for whose in ("primary", "standby"))
        second.send(signal.SIGSTOP)  # so that it does nothing in between
        first.send(signal.SIGKILL)
        second.send(signal.SIGKILL)
        gate.open()
        codes = cluster.codes()
        assert codes[0] == FAILED
        assert "no other server has all of shard" in master.errors[0]
        assert "the same command starts from the beginning" in master.errors[0]


def test_server_that_joins_makes_up_for_a_lost_one(tmp_path, job, gate):
    with Cluster(tmp_path, {"shard_num": 2}, job, servers=2, workers=1, cores=2) as cluster:
        master, (victim, _), _ = begin(cluster, gate)
        victim.send(signal.SIGKILL)
        master.wait_line("there is only one server")
        late = cluster.start("server")
        wait_lines(master, AGAIN, 1, behind="is lost")
        number = cluster.name_of(late).split()[1]
        wait_lines(master, f"has moved from server . to server {number}", 2)
        gate.open()
        assert cluster.codes() == [0, -9, 0, 0, 0], master.stderr
        assert figures_of(master)["servers"] == 2
    assert_counted_once(tmp_path)


def drain(cluster, number, **expected):
    where = ("--set", f"master_addr={cluster.address}")
    return run_snailps("cluster", "drain", number, *where, **expected)


@pytest.mark.long(but=["drain-sync"])
@pytest.mark.parametrize(("how", "replication"), [("drain", "sync"), ("SIGTERM", "none")])
def test_server_leaves_a_running_job(tmp_path, job, gate, how, replication):
    settings = {"shard_num": 2, "replication": replication}
    with Cluster(tmp_path, job={**job, **settings}, servers=2, workers=1) as cluster:
        master, (leaving, _), _ = cluster.started_at(gate)
        if replication != "none":
            master.wait_line(REDUNDANT)
        number = cluster.name_of(leaving).split()[1]
        if how == "drain":
            assert drain(cluster, number).stdout == f"server {number} has left\n"
        else:
            leaving.send(signal.SIGTERM)
        assert leaving.wait() == 0, leaving.stderr
        gate.open()
        assert cluster.codes() == [0] * 4, master.stderr
        figures = figures_of(master)
    assert figures["moves"] >= 1
    assert "failovers" not in figures
    assert_counted_once(tmp_path)


@pytest.mark.long
def test_drain_of_what_cannot_leave_is_refused_and_the_job_goes_on(tmp_path, job, gate):
    with Cluster(tmp_path, job=job, servers=1, workers=1) as cluster:
        master, (server,), _ = cluster.started_at(gate)
        number = cluster.name_of(server).split()[1]
        for wanted, part in [
            (number, "no other server can take its shards"),
            ("99", "there is no server 99"),
        ]:
            assert part in drain(cluster, wanted, code=FAILED).stderr
        gate.open()
        assert cluster.codes() == [0, 0, 0], master.stderr
    assert_counted_once(tmp_path)


def test_without_replication_a_lost_server_ends_the_job_and_says_why(tmp_path, job, gate):
    settings = {**job, "replication": "none", "checkpoint_interval": 0.2}
    with Cluster(tmp_path, job=settings, servers=2, workers=1) as cluster:
        master, (victim, _), _ = cluster.started_at(gate)
        master.wait_line("checkpoint 1:")
        victim.send(signal.SIGKILL)
        gate.open()
        assert cluster.codes()[0] == FAILED
        assert len(master.errors) == 1
        for part in ("is lost", "replication is 'none'", "goes on from checkpoint"):
            assert part in master.errors[0]
    gate.path.unlink(missing_ok=True)
    master = run_well(tmp_path, job=settings, servers=1, workers=1)
    assert "continuing from checkpoint" in master.stderr


@pytest.mark.long
def test_machine_that_dies_without_a_word_takes_no_other_server_with_it(tmp_path, job, gate):
    """A fence waits for the silent standbys of eight shards, and nothing waits behind it.

    The word that a shard is alone ends that wait.  Where it came behind eight waits, it came too
    late, and the healthy server was expelled.
    """
    clock = Clock(tmp_path)
    with Cluster(tmp_path, {"shard_num": 8}, job, servers=2, workers=2, cores=8) as cluster:
        master = cluster.master(program=clock.program)
        silent, healthy = [cluster.start("server") for _ in range(2)]
        victim, _ = [cluster.start("worker") for _ in range(2)]
        gate.meet()
        master.wait_line(REDUNDANT)
        names = cluster.name_of(silent), cluster.name_of(healthy)
        silent.send(signal.SIGSTOP)
        victim.send(signal.SIGKILL)
        gate.open()
        master.wait_line(rf"process {victim.pid}\) is lost")  # a fence is on its way
        clock.silent(LONG_S)
        master.wait_line(rf"{names[0]} .* is lost: silent for")
        master.wait_line("reachable again")
        silent.send(signal.SIGCONT)
        codes = cluster.codes()
        assert [codes[0], codes[2], codes[4]] == [0, 0, 0], master.stderr
        assert not [line for line in master.lines if re.search(rf"{names[1]} .* is lost", line)]
    with np.load(tmp_path / "out.npz") as saved:  # a block of a killed worker may count twice
        assert (saved["counts.rows"] >= 20).all(), saved["counts.rows"].ravel().tolist()
