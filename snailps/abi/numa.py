"""Memory nodes of this machine (NUMA), and the CPUs to which a shard or a local worker is pinned.

    /sys/devices/system/node -> numa_nodes -> the nodes that this process may compute on
    number of a shard, or of workers -> cpus_of_shard, cpus_of_workers -> keep_thread_on

Linux places a page at the node of the thread that first writes it, and leaves it there.  So a
thread is pinned before it makes its rows, and no memory policy is needed.  Nothing is pinned if the
machine has one node, if the process may use only one (a container, `taskset`), or if it may use
only a few CPUs of some node: pinned threads would crowd there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from snailps.dataclass import dataclass

SYSTEM = Path("/sys/devices/system/node")
ANYWHERE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A memory node, with the CPUs of it that this process may use; `memory_bytes` 0: unknown."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int


def numa_nodes(root: Path = SYSTEM, allowed: Collection[int] | None = None) -> list[NumaNode]:
    """Return the nodes with CPUs that this process may use, by number.

    `allowed` are these CPUs; by default the affinity of the calling thread.
    """
    usable = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    nodes = []
    for folder in root.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            cpus = cpu_list((folder / "cpulist").read_text()) & usable
            if cpus:
                nodes.append(NumaNode(int(folder.name[4:]), cpus, _memory_of(folder)))
    return sorted(nodes, key=lambda node: node.number)


def are_alike(nodes: Sequence[NumaNode]) -> bool:
    """Whether there are several nodes, none with less than 3/4 of the CPUs of another."""
    sizes = [len(node.cpus) for node in nodes]
    return len(sizes) > 1 and 4 * min(sizes) >= 3 * max(sizes)


def cpus_of_shard(number: int, nodes: Sequence[NumaNode]) -> frozenset[int]:
    """Return the CPUs for a shard's thread; shards go round the nodes by number, if `are_alike`."""
    return nodes[number % len(nodes)].cpus if are_alike(nodes) else ANYWHERE


def cpus_of_workers(workers: int, nodes: Sequence[NumaNode]) -> list[frozenset[int]]:
    """Return the CPUs for each worker process; `ANYWHERE` unless all nodes get equally many.

    Workers that share too few CPUs lose more than access to memory of another node costs.
    """
    if not are_alike(nodes) or workers % len(nodes):
        return [ANYWHERE] * workers
    return [nodes[worker % len(nodes)].cpus for worker in range(workers)]


def keep_thread_on(cpus: Collection[int]) -> None:
    """Pin the calling thread, and threads that it starts, to these CPUs; empty: no pinning."""
    if cpus:
        with suppress(OSError):  # the CPUs may have been taken from this process meanwhile
            os.sched_setaffinity(0, cpus)


def cpu_list(text: str) -> frozenset[int]:
    """Parse a list of CPUs such as ``0-3,8``."""
    cpus: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _memory_of(folder: Path) -> int:
    """Read the bytes in the line ``Node 0 MemTotal:  1024 kB``; 0: the line is missing."""
    with suppress(OSError):
        for line in (folder / "meminfo").read_text().splitlines():
            words = line.split()
            if len(words) == 5 and words[2] == "MemTotal:" and words[3].isdigit():
                return int(words[3]) * 1024
    return 0
