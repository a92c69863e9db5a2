"""How many cores and how much memory this process may use: CPU affinity and control groups.

    sched_getaffinity, /proc/self/cgroup -> cpu.max or cpu.cfs_quota_us -> cores, capacity
    MemAvailable, /proc/self/cgroup -> memory.max or memory.limit_in_bytes -> memory

A container limited to two cores still sees all 64 cores of its host.  With 64 threads it would use
up its quota in the first moments of each period; then all threads would stall, heartbeats included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from math import ceil, inf
from pathlib import Path

SYSTEM = Path("/")


def cores(root: Path = SYSTEM) -> int:
    """Return the number of cores, at least 1; a fraction of a core counts as one.

    The quota is read once per process.
    """
    return max(1, ceil(capacity(len(os.sched_getaffinity(0)), root)))


def capacity(threads: int, root: Path = SYSTEM) -> float:
    """Return how many cores `threads` threads can keep busy, a float of at least 0.01."""
    return max(0.01, float(min(threads, len(os.sched_getaffinity(0)), group_quota(root))))


@cache
def group_quota(root: Path) -> float:
    return min(_quotas(root), default=inf)


def _quotas(root: Path) -> Iterator[float]:
    """Yield the cores that each control group of this process may use, of cgroup v1 and v2."""
    groups = _groups(root / "proc/self/cgroup", root / "sys/fs/cgroup", "cpu")
    yield from map(_quota_of, groups)


def _groups(membership: Path, top: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process: its own and all above."""
    with suppress(OSError):
        text = membership.read_text(errors="surrogateescape")
        for line in filter(None, text.split("\n")):  # not splitlines: names may contain "\r"
            controllers, _, path = line.partition(":")[2].partition(":")
            if controllers and controller not in controllers.split(","):
                continue
            for name in {controllers, controller if controllers else ""}:
                group = top / name
                # In a container the path may be the host's, so that only `group` itself exists.
                for folder in (group / path.strip("/"), *(group / path.strip("/")).parents):
                    yield folder
                    if folder == group:
                        break


def _quota_of(folder: Path) -> float:
    """Return the cores that a control group may use; infinite without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return float(quota) / float(period)  # "max" is no number: ValueError, no limit
    with suppress(OSError, ValueError):
        quota, period = (
            (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )
        return float(quota) / float(period) if int(quota) > 0 else inf
    return inf


def memory(
    meminfo: Path = SYSTEM / "proc/meminfo",
    membership: Path = SYSTEM / "proc/self/cgroup",
    groups: Path = SYSTEM / "sys/fs/cgroup",
) -> tuple[int, str]:
    """Return the bytes that processes here may still allocate (0: unknown), and what limits them.

    The page cache counts as free, because the kernel can drop it.
    """
    least, why = 0, "MemAvailable"
    with suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                least = int(line.split()[1]) * 1024
    for folder in _groups(membership, groups, "memory"):
        free = _room_of(folder)
        if free < least:
            least, why = max(0, int(free)), f"the control group {folder.relative_to(groups)}"
    return least, why.removesuffix(" .")


def _room_of(folder: Path) -> float:
    """Return the bytes that a control group may still take; infinite without a limit."""
    for limit, used, dropped in (
        ("memory.max", "memory.current", "inactive_file "),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ):
        with suppress(OSError, ValueError):
            room = int((folder / limit).read_text()) - int((folder / used).read_text())
            with suppress(OSError):
                for line in (folder / "memory.stat").read_text().splitlines():
                    if line.startswith(dropped):
                        room += int(line.split()[1])
            return room  # "max" is no number: ValueError, no limit
    return inf
