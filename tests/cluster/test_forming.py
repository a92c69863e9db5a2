"""Processes that are killed, restarted or slow while a cluster forms, or while they join one."""

import signal

import pytest
from cluster_models import counting_job
from processes import Gate, free_port
from test_checkpoint_cluster import assert_counted_once
from test_failures import FAILED, INTERRUPTED, STOPPED, assert_one_sentence
from test_master_dies import Mortal
from waiting import LIMIT_S, until
from with_time import Clock

from snailps.cli.masters import ask
from snailps.errors import SnailError

LATER_S = int(LIMIT_S) + 10
"""When `init_timeout` is over, and no other limit of a running cluster."""


@pytest.fixture
def job(tmp_path):
    """A job of ten blocks; its result is known."""
    return counting_job(tmp_path, "gates", on_node_loss="recover")


def states(cluster):
    """Process id -> what it does, as the master says."""
    try:
        return {node["pid"]: node["state"] for node in ask(cluster.address, 5.0)["nodes"]}
    except SnailError:  # it is dead, or being started
        return {}


def await_states(cluster, condition):
    """Asks the master until the states of its nodes are as they should be."""
    until(lambda: condition(states(cluster)), lambda: f"other states than {states(cluster)}")


def routed(*processes):
    """The master knows that these have the route."""
    return lambda now: all(now.get(process.pid) == "ready" for process in processes)


class Held(Mortal):
    """A cluster that has its route and is not complete: its first worker is stopped."""

    def form(self, *sets):
        self.sets = sets
        master = self.master(*sets, port=free_port())
        servers = [self.start("server") for _ in range(self.servers)]
        slow = self.start("worker")
        self.name_of(slow)
        slow.send(signal.SIGSTOP)
        workers = [self.start("worker") for _ in range(self.workers - 1)]
        await_states(self, routed(*servers, *workers))
        return master, servers, [slow, *workers]

    def lose(self, process, number=signal.SIGKILL):
        process.send(number)
        code = process.wait()
        self.processes.remove(process)
        return code

    def says_goodbye(self, workers):
        """The master ends all; the stopped worker, which it would wait for, once another has."""
        assert workers[1].wait() == STOPPED, workers[1].stderr
        workers[0].send(signal.SIGCONT)


# --- a container that is killed, or asked to end, and started again ------------------------------


def test_server_restarted_while_others_connect_is_waited_for(tmp_path, job):
    with Held(tmp_path, job=job, servers=2, workers=2) as cluster:
        master, servers, workers = cluster.form()
        name = cluster.name_of(servers[0])
        assert cluster.lose(servers[0]) == -signal.SIGKILL
        master.wait_line(rf"{name} .* goes on forming")
        master.wait_line("waiting for 1 more server")
        again = cluster.start("server")
        workers[0].send(signal.SIGCONT)
        cluster.ends_well()
        assert "route epoch 2: 2 shards" in master.stderr
        assert cluster.name_of(again) != name
    assert_counted_once(tmp_path)


@pytest.mark.long(but=["15"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_lost_while_forming_ends_a_cluster_that_stops_and_says_so(tmp_path, job, number):
    job["on_node_loss"] = "stop"
    with Held(tmp_path, job=job, servers=2, workers=2) as cluster:
        master, servers, workers = cluster.form()
        name = cluster.name_of(servers[0])
        cluster.lose(servers[0], number)
        cluster.says_goodbye(workers)
        what = "is lost" if number == signal.SIGKILL else "was asked to leave"
        assert_one_sentence(master, name, what, "while the cluster forms", "on_node_loss is 'stop'")
        # What was stopped itself may see the end of the master before its last words.
        assert set(cluster.codes()[1:]) <= {STOPPED, FAILED}


# --- the master ends, too ------------------------------------------------------------------------


def test_master_killed_while_members_connect_forms_on(tmp_path, job):
    with Held(tmp_path, job=job, servers=2, workers=2) as cluster:
        master, _, workers = cluster.form()
        master.send(signal.SIGKILL)
        workers[0].send(signal.SIGCONT)
        cluster.kill(master)
        cluster.ends_well()
    assert_counted_once(tmp_path)


# --- a node joins a running job -------------------------------------------------------------------


class Joining(Mortal):
    """A job at a gate, and a newcomer of a role that is in the middle of joining it."""

    def __init__(self, folder, job, **named):
        super().__init__(folder, job=job, servers=3, workers=2, **named)
        self.gate = Gate(folder / "gates", 6)

    def begin(self, redundant=True):
        self.sets = ()
        master = self.master(port=free_port(), **self.how)
        servers, workers = self.nodes()
        self.gate.meet()
        if redundant:
            until(
                lambda: all(one["state"] == "ready" for one in self.shards()),
                lambda: f"a standby of each shard of {self.shards()}",
            )
        return master, servers, workers

    def shards(self):
        return ask(self.address, LIMIT_S)["shards"]

    def stuck(self, server, **how):
        """A worker that dials a server which says nothing."""
        server.send(signal.SIGSTOP)
        newcomer = self.start("worker", **how)
        self.name_of(newcomer)
        await_states(self, lambda now: now.get(newcomer.pid) == "connecting")
        return newcomer


@pytest.mark.long
def test_joining_worker_that_never_connects_is_dropped_and_the_job_goes_on(tmp_path, job):
    clock = Clock(tmp_path)
    with Joining(tmp_path, job) as cluster:
        cluster.how = {"program": clock.program}
        master, servers, _ = cluster.begin()
        newcomer = cluster.stuck(servers[0])
        clock.advance(LATER_S)
        line = master.wait_line("is gone while it joined")
        assert f"process {newcomer.pid})" in line
        assert "init_timeout" in line
        assert newcomer.wait() == STOPPED
        cluster.processes.remove(newcomer)
        servers[0].send(signal.SIGCONT)
        cluster.gate.open()
        cluster.ends_well()
    assert_counted_once(tmp_path)


@pytest.mark.long(but=["worker-9"])
@pytest.mark.parametrize(
    ("role", "number"),
    [("worker", signal.SIGKILL), ("worker", signal.SIGTERM), ("server", signal.SIGTERM)],
)
def test_newcomer_that_ends_while_it_joins_is_not_missed(tmp_path, job, role, number):
    job["on_node_loss"] = "stop"  # it has no part in the job yet
    with Joining(tmp_path, job) as cluster:
        master, servers, _ = cluster.begin(redundant=False)
        if role == "worker":
            newcomer = cluster.stuck(servers[0])
        else:
            newcomer = cluster.start("server")
            newcomer.wait_line("registered with the master")
        newcomer.send(number)
        if number == signal.SIGTERM:
            master.wait_line(rf"process {newcomer.pid}\).*SIGTERM")
        servers[0].send(signal.SIGCONT)
        newcomer.wait()
        cluster.processes.remove(newcomer)
        master.wait_line(rf"process {newcomer.pid}\) .*(is gone while it joined|is lost|left)")
        cluster.gate.open()
        cluster.ends_well()
    assert_counted_once(tmp_path)


def test_master_asked_to_end_while_somebody_joins_saves_and_ends_all(tmp_path, job):
    with Joining(tmp_path, job) as cluster:
        master, servers, _ = cluster.begin()
        newcomer = cluster.stuck(servers[0])
        master.send(signal.SIGINT)
        master.wait_line("interrupted: finishing the blocks at work")
        cluster.gate.open()
        servers[0].send(signal.SIGCONT)
        assert master.wait() == INTERRUPTED, master.stderr
        assert newcomer.wait() == 0, newcomer.stderr
        assert set(cluster.codes()[1:]) == {0}
    assert (tmp_path / "out.npz").exists()
