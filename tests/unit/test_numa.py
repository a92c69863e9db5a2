"""Memory nodes: a made-up tree of files is read, shards and workers are spread over its nodes."""

import os
import socket
import threading

import pytest
from waiting import LIMIT_S, joined

from snailps.abi import loops, numa
from snailps.abi.numa import (
    ANYWHERE,
    SYSTEM,
    NumaNode,
    cpus_of_shard,
    cpus_of_workers,
    keep_thread_on,
    numa_nodes,
)
from snailps.node.checks import check_numa
from snailps.shard.shard_thread import ShardThread

TWO = [NumaNode(0, frozenset({0, 1}), 64 << 30), NumaNode(1, frozenset({2, 3}), 64 << 30)]


@pytest.fixture
def tree(tmp_path):
    """A machine of two sockets with two threads a core, and a node of memory alone."""
    for number, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7"), (2, "")):
        folder = tmp_path / f"node{number}"
        folder.mkdir()
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "meminfo").write_text(
            f"Node {number} MemTotal:       1024 kB\nNode {number} MemFree:  7 kB\n"
        )
    (tmp_path / "online").write_text("0-2\n")
    return tmp_path


def test_nodes_have_the_cpus_that_this_process_may_use(tree):
    assert numa_nodes(tree, range(8)) == [
        NumaNode(0, frozenset({0, 1, 4, 5}), 1 << 20),
        NumaNode(1, frozenset({2, 3, 6, 7}), 1 << 20),
    ]
    assert numa_nodes(tree, {3, 4, 5}) == [
        NumaNode(0, frozenset({4, 5}), 1 << 20),
        NumaNode(1, frozenset({3}), 1 << 20),
    ]
    assert [node.number for node in numa_nodes(tree, {2, 3})] == [1]


def test_node_that_cannot_be_read_is_left_out(tree):
    (tree / "node0" / "cpulist").write_text("0-x\n")
    (tree / "node1" / "meminfo").unlink()
    assert numa_nodes(tree, range(8)) == [NumaNode(1, frozenset({2, 3, 6, 7}), 0)]
    assert numa_nodes(tree / "nothing", range(8)) == []


def test_nodes_of_this_machine_have_all_cpus_of_this_process():
    nodes = numa_nodes()
    if not nodes:
        pytest.skip("the system tells no nodes")
    usable = os.sched_getaffinity(0) & numa.cpu_list((SYSTEM.parent / "cpu/online").read_text())
    assert frozenset().union(*(node.cpus for node in nodes)) == usable


def test_shards_go_round_the_nodes():
    assert [cpus_of_shard(number, TWO) for number in range(3)] == [{0, 1}, {2, 3}, {0, 1}]


@pytest.mark.parametrize("nodes", [[], TWO[:1]])
def test_one_node_keeps_nothing_anywhere(nodes):
    assert cpus_of_shard(3, nodes) == ANYWHERE
    assert cpus_of_workers(2, nodes) == [ANYWHERE] * 2
    assert check_numa(nodes) == []


@pytest.mark.parametrize(("cpus", "alike"), [(3, True), (2, False)])
def test_node_with_few_cpus_is_not_crowded(cpus, alike):
    """Of a container whose CPUs were dealt without a look at the nodes."""
    nodes = [NumaNode(0, frozenset(range(4)), 0), NumaNode(1, frozenset(range(4, 4 + cpus)), 0)]
    kept = [node.cpus if alike else ANYWHERE for node in nodes]
    assert [cpus_of_shard(number, nodes) for number in range(2)] == kept
    assert cpus_of_workers(2, nodes) == kept
    assert bool(check_numa(nodes)) == alike


def test_workers_are_spread_where_each_node_gets_as_many():
    assert cpus_of_workers(4, TWO) == [{0, 1}, {2, 3}] * 2
    assert cpus_of_workers(3, TWO) == [ANYWHERE] * 3
    assert cpus_of_workers(1, TWO) == [ANYWHERE]


def test_doctor_tells_the_nodes():
    (finding,) = check_numa(TWO)
    assert finding.level == "note"
    assert "node 0: 2 CPUs, 69 GB, node 1: 2 CPUs, 69 GB" in finding.text


def test_doctor_names_no_memory_where_none_is_told():
    (finding,) = check_numa([NumaNode(number, frozenset({number}), 0) for number in range(2)])
    assert "(node 0: 1 CPUs, node 1: 1 CPUs)" in finding.text


def no_session():
    raise AssertionError("a connection was not expected")


def test_shard_runs_where_it_is_kept_and_its_maker_does_not():
    before = os.sched_getaffinity(0)
    one = {min(before)}
    listener = socket.create_server(("127.0.0.1", 0))
    shard = ShardThread(
        listener, no_session, loops.row_ops(), loops.wire_ops(), 16, 5.0, "kept", cpus=one
    )
    shard.start()
    try:
        assert shard.post(lambda: os.sched_getaffinity(0)).result(LIMIT_S) == one
        assert os.sched_getaffinity(0) == before
    finally:
        assert shard.stop(LIMIT_S)


def test_no_cpus_leave_a_thread_as_it_is():
    seen = []

    def look():
        keep_thread_on(ANYWHERE)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=look)
    thread.start()
    joined(thread)
    assert seen == [os.sched_getaffinity(0)]
