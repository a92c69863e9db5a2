"""Processor seconds and peak memory of this process, for scripts that measure from inside."""

import resource
from pathlib import Path


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()  # ru_maxrss has the memory of the parent, too
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3
