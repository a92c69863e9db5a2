"""`ClusterProcesses.wait` beside a master that is late, or has closed its connection for good."""

from types import SimpleNamespace

import pytest

from snailps.config import ClusterSettings
from snailps.errors import ConnectionLost
from snailps.local import run as module
from snailps.local.run import ENDING_S, LOOK_S, ClusterProcesses


class Launcher:
    """A master that ends after so many looks, and processes that need nothing."""

    address, secret, children = "127.0.0.1:1", b"", [1]

    def __init__(self, raw, clock, looks):
        self._clock, self._looks = clock, looks

    def poll(self):
        return 0 if self._looks <= 0 else None

    def wait(self, seconds):
        self._clock.now += seconds
        self._looks -= 1

    def restart_killed(self, numbers, give_up=None):
        return False

    def check(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "awake_s", lambda: now.now)
    return now


def waits(monkeypatch, clock, answers, looks=10_000):
    """Runs `ClusterProcesses.wait` with what the status line has for each look, the last one again
    and again; the phases shown, and how often the line was closed."""
    shown, closed = [], []

    def look(limit_s):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise ConnectionLost("the master did not answer the handshake")
        return {"phase": answer}

    line = SimpleNamespace(look=look, close=lambda: closed.append(1))
    monkeypatch.setattr(module, "StatusLine", lambda address, trust: line)
    run = ClusterProcesses(None, Launcher, clock=clock, looks=looks)
    run.wait(ClusterSettings(), lambda status: shown.append(status["phase"]))
    return shown, len(closed)


def test_master_that_was_too_busy_for_a_connection_is_asked_again(monkeypatch, clock):
    answers = [None, None, "training", None, "training", "training"]
    shown, closed = waits(monkeypatch, clock, answers, looks=8)
    assert shown[:3] == ["training"] * 3
    assert closed == 3 + 1  # each time, and at the end


def test_master_that_closed_its_connection_for_good_is_not_waited_for_long(monkeypatch, clock):
    begin = clock.now
    shown, _ = waits(monkeypatch, clock, ["training", None])
    assert shown == ["training"]
    assert ENDING_S < clock.now - begin <= ENDING_S + 3 * LOOK_S


def test_processes_are_started_before_the_clock_has_a_thread(monkeypatch, clock):
    """A process of two threads may not fork: each child would import all anew."""
    order = []
    monkeypatch.setattr(module, "watch", lambda: order.append("watch"))
    run = ClusterProcesses(None, Launcher, clock=clock, looks=1)
    run.launcher.start = lambda give_up: order.append("start")
    assert run.start()
    assert order == ["start", "watch"]
