"""Children that are copies of a process: words, descriptors, signals and ends are their own."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from waiting import LIMIT_S, happens, joined

from snailps.files import atomic
from snailps.files.atomic import atomic_file
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
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "OPENBLAS_NUM_THREADS": "1"}  # as the command
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, env=env, timeout=LIMIT_S)
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
        ("assert {sys.stdout.encoding, sys.stderr.encoding} == {'utf-8'}", 0),
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
    thread = threading.Thread(target=lambda: (there.set(), done.wait(LIMIT_S)))
    thread.start()
    happens(there, "the second thread")
    assert not may_fork()
    done.set()
    joined(thread)


def end_in_child(path):
    """A forked child that leaves an export, as ``sys.exit`` does, and what it does at exit."""
    try:
        with atomic_file(path) as file:
            file.write(b"all of it")
            if (child := os.fork()) == 0:
                raise SystemExit
            assert os.waitpid(child, 0)[1] == 0
            if (child := os.fork()) == 0:
                atomic.remove_unfinished()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    except SystemExit:
        os._exit(0)


def test_unfinished_file_stays_when_a_forked_child_ends(tmp_path):
    path = tmp_path / "m"
    end_in_child(path)
    assert path.read_bytes() == b"all of it"
    assert list(tmp_path.iterdir()) == [path]
