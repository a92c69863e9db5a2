"""Processor time and memory of this process.

    /proc/self/statm, clocks -> usage() -> the report on `Ask("stats")` -> the master's status

Each process measures itself.  Must not know how figures are sent or kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import time
from pathlib import Path

from snailps.node.status import Usage

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h


def usage() -> Usage:
    """Measure what this process uses now; takes a few microseconds."""
    return {
        "cpu_s": round(time.process_time(), 4),
        "time_s": round(time.monotonic(), 4),
        "rss_bytes": rss_bytes(),
    }


def rss_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):  # no descriptor may be left
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # sandboxes without /proc


def peak_rss_mb() -> float:
    """Peak resident size of this process, MB; `getrusage` starts at the parent's size."""
    with contextlib.suppress(OSError):  # no descriptor may be left
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1000
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000  # sandboxes without /proc


def keep_memory() -> None:
    """Have malloc keep freed memory: all blocks need arrays of about the same sizes.

    Otherwise the kernel clears 100 MB of pages for each block, 7 % of all CPU time.  Call it before
    threads start: a thread's own arena would be too small for such arrays.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # its maximum
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_ARENA_MAX, 1)
