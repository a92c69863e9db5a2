"""How many cores this process may compute on: by its CPU mask, and by its control group's quota.

    sched_getaffinity, /proc/self/cgroup -> cpu.max or cpu.cfs_quota_us -> cores, capacity

A container with a limit of two cores sees all 64 of its host.  As many threads would use up its
quota in the first moments of each period, and then stand still all together, heartbeats too.
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
    """At least 1; a part of a core counts as one.  The quota is read once."""
    return max(1, ceil(capacity(len(os.sched_getaffinity(0)), root)))


def capacity(threads: int, root: Path = SYSTEM) -> float:
    """Cores that so many threads may keep busy, with parts of one, at least a hundredth."""
    return max(0.01, float(min(threads, len(os.sched_getaffinity(0)), _quota(root))))


@cache
def _quota(root: Path) -> float:
    return min(_quotas(root), default=inf)


def _quotas(root: Path) -> Iterator[float]:
    """Cores that each control group of this process may use; of the first and second version."""
    with suppress(OSError):
        text = (root / "proc/self/cgroup").read_text(errors="surrogateescape")
        for line in filter(None, text.split("\n")):  # names may have other ends of lines
            controllers, _, path = line.partition(":")[2].partition(":")
            if controllers and "cpu" not in controllers.split(","):
                continue
            for name in {controllers, "cpu" if controllers else ""}:
                group = root / "sys/fs/cgroup" / name
                # In a container the path may be that of its host: only the top one is there then.
                for folder in (group / path.strip("/"), *(group / path.strip("/")).parents):
                    yield _quota_of(folder)
                    if folder == group:
                        break


def _quota_of(folder: Path) -> float:
    """Cores that a control group may use; infinite without a limit."""
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return float(quota) / float(period)  # "max": no number
    with suppress(OSError, ValueError):
        quota, period = (
            (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )
        return float(quota) / float(period) if int(quota) > 0 else inf
    return inf
