"""The fork server of a session: its children end, and are told to, as a session's own would."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import LIMIT_S, until

from snailps.local import fork
from snailps.local.fork_server import ForkServer

SCRIPT = """
import json, os, random, signal, socket, sys, time
import numpy.random
from snailps.local.fork_server import serve

def main():
    arguments = json.loads(sys.argv[3])
    print("pid", os.getpid(), flush=True)
    exec(arguments["body"], {**globals(), **arguments})

if __name__ == "__main__":
    sys.stderr.write(f"{os.getpid()}\\n")
    serve(socket.socket(fileno=json.loads(sys.argv[3])["socket_fd"]), main)
"""
SESSION = """
import sys, time
from snailps.local import fork
from snailps.local.fork_server import ForkServer
fork.PROGRAM = (sys.executable, sys.argv[1])
server = ForkServer()
forked = server.start("node", {"body": "time.sleep(600)"}, {})  # kept: it reads the child's lines
print(server.process.pid, forked.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # as the command sets it
    (tmp_path / "main").write_text(SCRIPT)
    monkeypatch.setattr(fork, "PROGRAM", (sys.executable, str(tmp_path / "main")))
    made = ForkServer()
    yield made
    made.close()


def started(server, body, **files):
    return server.start("node", {"body": body}, files)


def is_gone(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.parametrize(
    ("body", "code"),
    [("pass", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM)],
)
def test_forked_process_has_the_code_and_the_lines_of_its_own_end(server, body, code):
    process = started(server, body)
    assert process.wait(LIMIT_S) == process.poll() == code
    assert process.stderr.read() == f"pid {process.pid}\n"
    process.stderr.close()


def test_forked_process_has_the_files_that_it_was_given_and_is_ended_by_signals(server):
    read, write = os.pipe()
    process = started(server, "os.write(file_fd, b'here'); time.sleep(600)", file_fd=write)
    os.close(write)
    assert os.read(read, 4) == b"here"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    ends = []
    waits = [threading.Thread(target=lambda: ends.append(process.wait(LIMIT_S))) for _ in range(2)]
    for wait in waits:
        wait.start()
    process.terminate()
    for wait in waits:
        wait.join(LIMIT_S)
    assert ends == [-signal.SIGTERM] * 2
    assert os.read(read, 1) == b""  # no other process has it
    os.close(read)
    process.stderr.close()


def test_forked_processes_draw_other_numbers(server):
    body = "sys.stderr.write(f'{random.random()} {numpy.random.random()}'); sys.stderr.flush()"
    drawn = []
    for _ in range(2):
        process = started(server, body)
        assert process.wait(LIMIT_S) == 0
        drawn.append(process.stderr.read().splitlines()[-1].split())
        process.stderr.close()
    (first, of_numpy), (second, of_numpy_again) = drawn
    assert first != second
    assert of_numpy != of_numpy_again


@pytest.mark.parametrize("end", ["close", "kill"])
def test_end_of_a_fork_server_ends_its_children(server, end):
    process = started(server, "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
    server.close() if end == "close" else server.process.kill()
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    until(lambda: is_gone(process.pid), "that the child is gone")
    if end == "kill":
        with pytest.raises(OSError, match="has ended with exit code -9"):
            started(server, "pass")
    process.stderr.close()


def test_killed_session_leaves_neither_fork_server_nor_children(tmp_path):
    (tmp_path / "main").write_text(SCRIPT)
    command = [sys.executable, "-c", SESSION, str(tmp_path / "main")]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as session:
        try:
            pids = [int(word) for word in session.stdout.readline().split()]
            assert len(pids) == 2
            assert not any(map(is_gone, pids))
        finally:
            session.kill()
    until(lambda: all(map(is_gone, pids)), f"that {pids} are gone")


AT_EXIT = """
import atexit, os, subprocess

@atexit.register  # runs after the finalizers, which register themselves later
def wait():
    try:
        process.wait(0)
    except subprocess.TimeoutExpired:
        print("still waits")

from snailps.local.fork_server import Forked
(errors, _), (ended, _) = os.pipe(), os.pipe()
process = Forked(None, 1, errors, ended)
"""


def test_thread_may_wait_for_a_process_while_the_interpreter_ends():
    """As the one does that replaces the workers of a failed job."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("still waits\n", "")
