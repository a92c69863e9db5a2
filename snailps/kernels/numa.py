"""Memory nodes of this machine (NUMA), and the CPUs that a shard or a local worker is kept on.

    /sys/devices/system/node -> numa_nodes -> the nodes that this process may compute on
    number of a shard, or of workers -> cpus_of_shard, cpus_of_workers -> keep_thread_on

A page lies at the node whose thread writes it first, and stays there.  So a thread is put on a node
before it makes its rows, and no memory policy is needed.  A machine with one node, or a process
that may use one only (a container, `taskset`), keeps no thread anywhere; nor does one that may use
few CPUs of some node: they would be crowded.
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
    """A memory node; `cpus`: those that this process may use, one or more; `memory_bytes` 0:
    unknown."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int


def numa_nodes(root: Path = SYSTEM, allowed: Collection[int] | None = None) -> list[NumaNode]:
    """Nodes with CPUs that this process may use, by number; `allowed`: CPUs, default those of the
    thread."""
    usable = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    found = []
    for folder in root.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            cpus = cpu_list((folder / "cpulist").read_text()) & usable
            if cpus:
                found.append(NumaNode(int(folder.name[4:]), cpus, _memory_of(folder)))
    return sorted(found, key=lambda node: node.number)


def are_alike(nodes: Sequence[NumaNode]) -> bool:
    """Whether there are several nodes, and none has less than 3/4 of the CPUs of another."""
    sizes = [len(node.cpus) for node in nodes]
    return len(sizes) > 1 and 4 * min(sizes) >= 3 * max(sizes)


def cpus_of_shard(number: int, nodes: Sequence[NumaNode]) -> frozenset[int]:
    """CPUs for a shard's thread: shards go round the nodes by number, if `are_alike`."""
    return nodes[number % len(nodes)].cpus if are_alike(nodes) else ANYWHERE


def cpus_of_workers(workers: int, nodes: Sequence[NumaNode]) -> list[frozenset[int]]:
    """CPUs for each worker process; `ANYWHERE` unless each node gets equally many workers.

    Sharing fewer CPUs costs more than memory of another node.
    """
    if not are_alike(nodes) or workers % len(nodes):
        return [ANYWHERE] * workers
    return [nodes[worker % len(nodes)].cpus for worker in range(workers)]


def keep_thread_on(cpus: Collection[int]) -> None:
    """Keep the calling thread, and those that it will start, on these CPUs; none: anywhere."""
    if cpus:
        with suppress(OSError):  # they were taken from this process meanwhile
            os.sched_setaffinity(0, cpus)


def cpu_list(text: str) -> frozenset[int]:
    """CPUs of a list such as ``0-3,8``."""
    cpus: set[int] = set()
    for part in text.split(","):
        if part.strip():
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _memory_of(folder: Path) -> int:
    """Bytes of the line ``Node 0 MemTotal:  1024 kB``; 0: missing."""
    with suppress(OSError):
        for line in (folder / "meminfo").read_text().splitlines():
            words = line.split()
            if len(words) == 5 and words[2] == "MemTotal:" and words[3].isdigit():
                return int(words[3]) * 1024
    return 0
