"""Processes of a session: started and ended whatever interrupts the one who waits."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
from concurrent.futures import Future

import pytest
from machine import fails
from waiting import LIMIT_S, until

from snailps.config import RawConfig
from snailps.errors import ClusterError, ConfigError
from snailps.local import cluster, launcher, session
from snailps.local.launcher import Child, Launcher
from snailps.master.life import SESSION
from snailps.transport.security.trust import OPEN
from snailps.transport.sockets import listen


def made(kind=Launcher):
    return kind(RawConfig(), servers=1, workers=1, life=SESSION)


@pytest.mark.parametrize("name", ["file", "file/folder"])
def test_folder_of_checkpoints_that_cannot_be_is_refused_before_any_process(
    name, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(cluster, "ClusterProcesses", None)  # is not reached
    refused = pytest.raises(ConfigError, match=r"^local_cluster\(checkpoint_dir\): .*/file")
    with refused, cluster.local_cluster(checkpoint_dir=tmp_path / name):
        pass


def test_start_of_a_session_interrupted_is_given_up_before_the_caller_goes_on(monkeypatch):
    begun, interrupts, ended = threading.Event(), [KeyboardInterrupt()], []

    class Interrupted(Future):
        """A result for which the first wait is interrupted."""

        def result(self, timeout=None):
            if interrupts:
                assert begun.wait(LIMIT_S)
                raise interrupts.pop()
            return super().result(timeout)

    def start(self, give_up):
        begun.set()
        until(give_up, "that it is given up")
        ended.append(True)

    monkeypatch.setattr(cluster, "Future", Interrupted)
    monkeypatch.setattr(Launcher, "start", start)
    with pytest.raises(KeyboardInterrupt):
        made(cluster.KeptLauncher).start()
    assert ended == [True]


def test_start_of_a_master_that_never_listens_ends_by_its_limit(monkeypatch):
    def start(self, give_up):
        assert give_up()

    monkeypatch.setattr(Launcher, "start", start)
    monkeypatch.setattr(cluster, "MARGIN_S", -1e9)
    with pytest.raises(ClusterError, match="has not begun to listen"):
        cluster.cluster()


def test_start_of_more_processes_than_may_be_is_cluster_error_and_ends_those_there_are(monkeypatch):
    started, closed = [], []

    class Full:
        """A fork server that can start one process more."""

        def start(self, *_):
            if started:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            started.append(Process())
            return started[0]

        def close(self):
            closed.append(started[0].returncode)

    monkeypatch.setattr(cluster, "ForkServer", Full)
    with pytest.raises(ClusterError, match="process 2 of 3 cannot be started: Resource temporar"):
        cluster.cluster()
    assert closed == [-signal.SIGTERM]


class Driver:
    """A driver whose cluster is being closed while Ctrl-C comes."""

    is_own, closed = True, False

    def shut_down(self):
        raise KeyboardInterrupt

    def close(self):
        self.closed = True


def test_close_interrupted_ends_the_processes_nevertheless(monkeypatch):
    ended, one = [], made()
    monkeypatch.setattr(one, "end", lambda: ended.append(True))
    with pytest.raises(KeyboardInterrupt):
        session.end_processes(one, Driver())
    assert ended == [True]


class Process:
    """A child that ends when it is asked to."""

    stderr = stdout = returncode = None
    pid = 1

    def poll(self):
        return self.returncode

    def wait(self, limit_s=None):
        if self.returncode is None:
            raise subprocess.TimeoutExpired("child", limit_s)

    def terminate(self):
        self.returncode = -signal.SIGTERM

    def send_signal(self, number):
        self.terminate()

    kill = terminate


def test_end_without_a_descriptor_left_ends_all_children(monkeypatch):
    one = made()
    one.children = [Child(role, Process()) for role in ("master", "server")]
    monkeypatch.setattr(os, "pidfd_open", fails(errno.EMFILE))
    one.end(0.01)
    assert [child.process.returncode for child in one.children] == [-signal.SIGTERM] * 2


def test_poll_of_a_launcher_whose_master_could_not_be_started_is_none():
    assert made().poll() is None


def test_signal_name_of_a_real_time_signal_is_its_number():
    assert launcher.signal_name(signal.SIGKILL) == "SIGKILL"
    assert launcher.signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


def test_end_reading_of_a_pipe_that_another_process_has_open_does_not_wait_for_it():
    read, write = os.pipe()
    child, shown = Child("worker", Process()), []
    child.process.stderr = os.fdopen(read, "r")
    one = Launcher(RawConfig(), servers=1, workers=1, on_line=lambda _, line: shown.append(line))
    one.listen_to(child)
    ending = threading.Thread(target=child.end_reading, args=(0.0,), daemon=True)
    ending.start()
    ending.join(LIMIT_S)
    is_over = not ending.is_alive()
    os.write(write, b"late\n")
    os.close(write)
    child.reader.join(LIMIT_S)
    assert is_over
    assert shown == ["late"]
    assert child.process.stderr.closed


def test_port_of_a_master_that_may_be_started_again_stays_its_own():
    raw = RawConfig.from_mapping({"listen_addr": "127.0.0.1:0"}, "--set {key}")
    one = Launcher(raw, servers=1, workers=1, revives=True)
    host, port = one.keep_port()["listen_addr"].split(":")
    assert Launcher(raw, servers=1, workers=1).keep_port() == {}  # nor is it started again
    for _ in range(2):  # as masters do, one after the other
        with listen(host, int(port), OPEN):
            pass
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
    one._port.close()
    with socket.socket() as other:
        other.bind((host, int(port)))


class Hung(Launcher):
    """Children that read nothing; their pipes."""

    def spawn(self, role, pipes, files=(), **more):
        self.ends = launcher.managed_pipe(pipes)
        self.children.append(Child(role, Process()))
        return self.ends[1]


def test_child_that_does_not_read_its_settings_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(launcher, "SEND_S", 0.0)
    monkeypatch.setattr(launcher, "LOOK_S", 0.01)
    looks = []
    settings = {f"worker_class{n}": "x" * 1000 for n in range(200)}
    one = Hung(RawConfig.from_mapping(settings, "x"), servers=1, workers=1, life=SESSION)
    with pytest.raises(ClusterError, match=r"the master does not read its settings: 1.*bytes of"):
        one.start(lambda: looks.append(True))
    assert looks
    monkeypatch.setattr(launcher, "SEND_S", LIMIT_S)
    with contextlib.ExitStack() as pipes:
        pipe = one.spawn("worker", pipes)
        one.send_settings("worker", pipe, {}, lambda: True)  # given up by its caller
        assert pipe.closed
    one.children = [Child("master", Process()), Child("worker", Process())]
    one.children[1].process.terminate()
    monkeypatch.setattr(launcher, "SEND_S", 0.0)
    lines, one.on_line, one.address = [], lambda *line: lines.append(line), "h:1"
    monkeypatch.setattr(one, "listen_to", lambda child: None)
    assert not one.restart(1, "it was killed")
    assert "the worker does not read its settings" in lines[-1][1]
