"""Memory of a worker's process, in a process of its own: settings of its allocator stay."""

import ctypes
import subprocess
import sys

import pytest

from snailps.cli import worker

FAULTS = """
import resource, sys, threading
import numpy as np
from snailps.node.usage import keep_memory

if sys.argv[1] == "keep":
    keep_memory()
found = []

def use():
    for _ in range(12):
        np.ones(1 << 18)  # 2 MB
        found.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt)
        gone = [np.ones(3 << 20) for _ in range(2)]  # 24 MB each
        del gone

thread = threading.Thread(target=use)
thread.start()
thread.join()
print(found[-1] - found[1])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_kept_memory_is_used_again_by_threads_without_page_faults():
    def faults(how):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert faults("keep") < 100 < faults("leave")


def test_a_worker_keeps_memory_before_it_has_threads(monkeypatch):
    done = []
    monkeypatch.setattr(worker, "keep_memory", lambda: done.append("keep"))
    monkeypatch.setattr(worker, "run_node", lambda *_: done.append("run"))
    worker.command(None, None, -1)
    assert done == ["keep", "run"]
