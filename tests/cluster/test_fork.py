"""Children that are copies of a process: words, descriptors, signals and ends are their own."""

import signal
import subprocess
import sys
import threading

import pytest

from snailps.local.fork import may_fork

SCRIPT = """
import os, signal, subprocess, sys
from functools import partial
from pathlib import Path
from snailps.local.fork import become, may_fork

class Lost(Exception): pass

def main():
    BODY

signal.signal(signal.SIGTERM, lambda *_: None)
read, write = os.pipe()
assert may_fork()
child = subprocess.Popen(["copy"], preexec_fn=partial(become, main, ["server", "--x"], [read]),
                         pass_fds=(read,), restore_signals=False)
print(child.wait())
"""


def code_of(body):
    script = SCRIPT.replace("BODY", body) + "#" * 200  # its words leave room for the copy's
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    return int(done.stdout), done.stderr.decode()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(7)", 7),
        ("raise KeyboardInterrupt", 130),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("assert sys.argv[1:] == ['server', '--x']", 0),
        ("assert b'\\0server\\0--x' in Path('/proc/self/cmdline').read_bytes()", 0),
        ("os.close(read)", 0),
        ("os.close(write)", 1),
    ],
)  # fmt: skip
def test_become_ends_as_a_process_of_its_own_would(body, code):
    found, said = code_of(body)
    assert found == code, said


def test_become_with_an_error_nobody_expected_shows_where(tmp_path):
    code, said = code_of("raise Lost('planted')")
    assert code == 1
    assert "Traceback" in said
    assert "Lost: planted" in said


def test_may_fork_with_a_second_thread_says_no():
    there, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (there.set(), done.wait(20)))
    thread.start()
    assert there.wait(20)
    assert not may_fork()
    done.set()
    thread.join()
