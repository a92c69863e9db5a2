"""Stopped for longer than `heartbeat_timeout`, and resumed: docker pause, Slurm, Ctrl-Z."""

import os
import signal
import subprocess
import sys
import time

import pytest
from cluster_models import counting_job
from processes import Cluster, Gate, environment
from test_checkpoint_cluster import assert_counted_once, trained
from waiting import until
from with_time import is_stopped

STOP_S = 4
SHORT = {"heartbeat_timeout": 2, "heartbeat_interval": 0.1}
DRIVER = """
import sys
import snailps
with snailps.connect(sys.argv[1], timeout_s=60) as cluster:
    table = cluster.table("w", dim=1)
    for value in (5.0, 1.0, 1.0):
        table.push([7], [[value]])
        print(table.pull([7]).item(), *cluster.tables(), flush=True)
        input()
"""


def suspend(processes):
    """Stops processes for longer than their limits, one after the other, and resumes them so."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    until(lambda: all(is_stopped(process.pid) for process in processes), "stopped processes")
    end = time.monotonic() + STOP_S
    until(lambda: time.monotonic() > end, "the end of the stop")
    for process in processes:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("recovers", ["recover", "stop"])
def test_suspended_cluster_loses_nobody_and_trains_each_block_once(tmp_path, recovers):
    """Each took its own sleep for the silence of the others, and ended."""
    job = counting_job(tmp_path, "gates", "journal", on_node_loss=recovers) | SHORT
    gates = [Gate(tmp_path / "gates", block) for block in (2, 6)]
    with Cluster(tmp_path, job=job, servers=2, workers=2) as cluster:
        cluster.master()
        cluster.nodes()
        for gate in gates:
            gate.meet()
            suspend([process.popen for process in cluster.processes])
            gate.open()
        assert cluster.codes() == [0] * 5
        assert "lost" not in cluster.processes[0].stderr
    assert_counted_once(tmp_path)
    assert trained(tmp_path) == [*range(10)]


@pytest.mark.parametrize("who", ["driver", "all"])
def test_suspended_driver_goes_on(tmp_path, who):
    """A driver that had slept was told that the cluster had ended."""
    with Cluster(tmp_path, SHORT, servers=1, workers=0) as cluster:
        master = cluster.master(options=["--session"])
        cluster.nodes()
        command = [sys.executable, "-c", DRIVER, cluster.address]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, env=environment(), **pipes) as driver:
            for row in (5.0, 6.0, 7.0):
                assert driver.stdout.readline().split() == [str(row), "w"]
                others = [process.popen for process in cluster.processes]
                suspend([driver, *(others if who == "all" else [])])
                driver.stdin.write("\n")
                driver.stdin.flush()
            assert driver.wait(60) == 0
        assert "lost" not in master.stderr
        master.send(signal.SIGINT)
        cluster.codes()


SLEEP_S, GAP_S, TICK_S = 1.2, 0.25, 0.05
LOOKS = """
import os, sys, time
from snailps.transport._awake import awake_s, watch

def look():
    print(os.getpid(), time.monotonic(), awake_s(), flush=True)
    sys.stdin.readline()

if {watched}:
    watch()
look()
look()
if os.fork() == 0:
    watch()
    look()
    look()
    os._exit(0)
os.wait()
"""


def look_of(child):
    pid, *times = child.stdout.readline().split()
    return int(pid), [float(seconds) for seconds in times]


def go_on(child):
    child.stdin.write("\n")
    child.stdin.flush()


def elapsed(child):
    """Seconds between two looks, between which it is stopped: of the monotonic clock, and of ours.

    The second look is the first thing that it does after the stop.
    """
    pid, before = look_of(child)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid), "a process that is stopped")
    go_on(child)
    end = time.monotonic() + SLEEP_S
    until(lambda: time.monotonic() > end, "the end of the stop")
    os.kill(pid, signal.SIGCONT)
    _, after = look_of(child)
    return [later - earlier for earlier, later in zip(before, after, strict=True)]


def run(watched):
    program = [sys.executable, "-c", LOOKS.format(watched=watched)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(program, text=True, **pipes)


def test_stop_of_a_process_counts_neither_in_it_nor_in_its_fork():
    with run(watched=True) as child:
        for _ in range(2):
            real_s, awake = elapsed(child)
            assert real_s >= SLEEP_S
            assert real_s - awake >= SLEEP_S - GAP_S - 2 * TICK_S
            go_on(child)


def test_clock_is_the_monotonic_one_until_it_is_watched():
    with run(watched=False) as child:
        real_s, awake = elapsed(child)
        # 0, but for what comes between two readings; a watched clock would lack the stop.
        assert abs(real_s - awake) < (SLEEP_S - GAP_S) / 2
        child.kill()
