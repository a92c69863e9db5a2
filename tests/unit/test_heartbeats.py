"""Heartbeat connections that are lost alone: made again by the node, missed by the master."""

import contextlib
import signal
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from master_parts import context_of
from processes import LIMIT_S
from waiting import until

from snailps.config import ClusterSettings, MasterSettings
from snailps.errors import EXIT_FAILED
from snailps.master.effects import Forget, Outbox
from snailps.master.events import Heartbeats
from snailps.master.heartbeats import HeartbeatMonitor
from snailps.node.process import Node
from snailps.transport import messages
from snailps.transport._awake import awake_s, watch
from snailps.transport._heartbeat import HeartbeatThread
from snailps.transport.control import ControlServer, listen
from snailps.transport.handshake import Role
from snailps.transport.security.trust import OPEN, Trust

LIFE = 7


class Master:
    """As much of a master as a node needs to join; it takes heartbeat connections as it is told."""

    def __init__(self, timeout_s, trust=OPEN):
        self.pulses = []
        self.takes = True
        self.news = threading.Condition()
        self._over = threading.Event()
        self._welcome = messages.Welcome(1, 1, LIFE, 64, 0.02, timeout_s)
        listener = listen("127.0.0.1", 0, trust)
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._server = ControlServer(
            listener,
            role=Role.MASTER,
            trust=trust,
            job=LIFE,
            on_message=lambda peer, message, reply: reply and reply(self._welcome),
            on_lost=lambda peer, why: None,
            on_pulse=self._take,
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while not self._over.is_set():
            self._server.step(0.01)
        self._server.close()

    def _take(self, hello, sock):
        with self.news:
            if self.takes:
                self.pulses.append(sock)
            else:
                sock.close()
            self.news.notify_all()

    def wait_pulses(self, number):
        with self.news:
            assert self.news.wait_for(lambda: len(self.pulses) >= number, LIMIT_S)

    def close(self):
        self._over.set()
        self._thread.join(LIMIT_S)
        for sock in self.pulses:
            sock.close()


@contextlib.contextmanager
def joined(timeout_s, tls=""):
    """A node that has joined, and its master."""
    settings = ClusterSettings(init_timeout=LIMIT_S, tls=tls)
    master = Master(timeout_s, Trust.of(settings))
    # A driver: others end their whole process, which is this one.
    node = Node(Role.DRIVER, replace(settings, master_addr=master.address))
    try:
        node.join()
        master.wait_pulses(1)
        yield node, master
    finally:
        node.end(0, "over")
        node.leave({})
        master.close()


def dials_its_heartbeat_connection_again(folder=""):
    """Of a node with these certificates, where only that connection is lost."""
    with joined(10 * LIMIT_S, folder) as (node, master):
        for number in (1, 2):
            master.pulses[-1].close()
            master.wait_pulses(number + 1)
            fresh = master.pulses[-1]
            fresh.setblocking(True)
            fresh.settimeout(LIMIT_S)
            assert fresh.recv(1)  # it beats there
        assert not node.ended.is_set()


def test_node_dials_its_heartbeat_connection_again_when_that_alone_is_lost():
    dials_its_heartbeat_connection_again()


def test_node_that_gets_no_heartbeat_connection_any_more_ends():
    with joined(0.4) as (node, master):
        master.takes = False
        master.pulses[-1].close()
        assert node.ended.wait(LIMIT_S)
        assert node.verdict.code == EXIT_FAILED
        assert "heartbeat connection" in node.verdict.text
        assert "heartbeat_timeout" in node.verdict.text


def monitor_of(settings, member, expel, out=None):
    members = SimpleNamespace(all={1: member})
    return HeartbeatMonitor(
        context_of(out or Outbox(), settings=settings),
        members,
        SimpleNamespace(stopping=False),
        SimpleNamespace(expel=expel),
        settings.heartbeat_timeout,
    )


class Ears:
    """What a master hears of one member, and why it expelled that: thread and judge."""

    def __init__(self, timeout_s):
        since = time.monotonic()
        member = SimpleNamespace(
            number=1, role="worker", away=False, missed="", state="ready", since=since
        )
        settings = MasterSettings(heartbeat_interval=0.05, heartbeat_timeout=timeout_s)
        self.expelled = []
        self.thread = HeartbeatThread(settings.heartbeat_interval)
        self.thread.start()
        self.monitor = monitor_of(
            settings, member, lambda member, why, now: self.expelled.append(why)
        )

    def beat(self):
        """Another heartbeat connection of the member."""
        ours, theirs = socket.socketpair()
        self.thread.add(ours, 1)
        return theirs

    def step(self):
        now = time.monotonic()
        self.monitor.step(now)
        heard = Heartbeats(self.thread.silences(), self.thread.closed())
        self.monitor.heard(heard, now)

    def until(self, condition):
        until(lambda: condition() or self.step(), "what the ears wait for")


@pytest.fixture
def ears(request):
    made = Ears(request.param)
    yield made
    made.thread.stop()


@pytest.mark.parametrize("ears", [0.4], indirect=True, ids=["short"])
def test_member_whose_heartbeat_connection_stays_closed_is_expelled_in_time(ears):
    ears.beat().close()
    ears.until(lambda: ears.expelled)
    assert "heartbeat connection" in ears.expelled[0]
    assert "heartbeat_timeout" in ears.expelled[0]


@pytest.mark.parametrize("ears", [LIMIT_S], indirect=True, ids=["long"])
def test_member_that_comes_back_with_another_heartbeat_connection_stays(ears):
    ears.beat().close()
    ears.until(lambda: ears.thread.closed() and ears.thread.silences()[1] > 0.2)
    again = ears.beat()

    def heard():
        again.send(b"x")
        return not ears.thread.closed() and ears.thread.silences()[1] < 0.2

    ears.until(heard)
    assert not ears.expelled
    again.close()


def test_master_that_was_stopped_itself_expels_no_member_at_once():
    """It read no heartbeat while it was stopped; a member that is gone has no connection."""
    member = SimpleNamespace(
        number=1, role="worker", away=False, missed="", state="ready", since=0.0
    )
    expelled, out = [], Outbox()
    monitor = monitor_of(
        MasterSettings(heartbeat_timeout=10.0), member, lambda member, *why: expelled.append(why),
        out,
    )  # fmt: skip
    monitor.step(1.0)
    monitor.heard(Heartbeats({1: 11.0, 2: 0.1}), 9.0)
    for now in (9.1, 14.0, 19.0):
        monitor.step(now)
        assert not expelled
    monitor.heard(Heartbeats({1: 20.0, 2: 0.1}), 19.1)
    assert [why for why, _ in expelled] == ["silent for 20 s (heartbeat_timeout)"]
    assert out.take() == [Forget(2)]
    assert monitor.silence_s(1, 20.1) == 21.0


@pytest.mark.parametrize("closed", [False, True])
def test_driver_that_is_only_silent_stays(closed):
    """It may be stopped, as by Ctrl-Z; TCP closes its connections if its machine is gone."""
    driver = SimpleNamespace(number=1, role="driver", away=False, since=0.0)
    expelled = []
    monitor = monitor_of(
        MasterSettings(heartbeat_timeout=10.0),
        driver,
        lambda member, why, now: expelled.append(why),
    )
    monitor.heard(Heartbeats({1: 3600.0}, frozenset({1} if closed else ())), 3600.0)
    assert bool(expelled) == closed


def test_signal_before_the_answer_to_register_asks_the_master_too(monkeypatch):
    """It knows this process by then, and would take one that just ends for lost."""
    with joined(10 * LIMIT_S) as (joins, _):
        asked = threading.Event()
        node = Node(Role.DRIVER, joins.settings)  # without threads, which know the answer
        node._control = joins.control
        monkeypatch.setattr("snailps.node.process.AWAY_S", LIMIT_S)
        monkeypatch.setattr(node, "on_leave_request", lambda why: asked.set())
        hearing = threading.Thread(target=node.on_signal, args=(signal.SIGTERM,))
        hearing.start()
        time.sleep(0.05)
        node.welcome = joins.welcome
        assert asked.wait(LIMIT_S)
        hearing.join(LIMIT_S)
        assert not node.ended.is_set()


def test_signal_while_the_master_comes_back_asks_it_and_does_not_end_the_process(monkeypatch):
    with joined(10 * LIMIT_S) as (node, _):
        asked = threading.Event()
        monkeypatch.setattr("snailps.node.process.AWAY_S", LIMIT_S)
        monkeypatch.setattr(node, "on_leave_request", lambda why: asked.set())
        node.control.away = True  # it was found again, and this side does not know yet
        hearing = threading.Thread(target=node.on_signal, args=(signal.SIGTERM,))
        hearing.start()
        time.sleep(0.05)
        node.control.away = False
        assert asked.wait(LIMIT_S)
        hearing.join(LIMIT_S)
        assert not node.ended.is_set()


def test_clock_never_goes_back():
    watch()
    watch()
    times = [awake_s() for _ in range(10_000)]
    assert times == sorted(times)
