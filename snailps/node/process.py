"""The base of every process but the master: how it joins, what it does without a master, how it
ends.

    dial -> Register -> Welcome -> heartbeats ... Stop | master lost | signal -> End
                 master lost, but has a journal -> dial -> Rejoin -> Welcome -> heartbeats ...

Owns the connections to the master and the decision *that* this process ends; a subclass implements
its work.  Must not know rows or models.

Threads: the main thread does the subclass's work.  The reader thread of `ControlClient` handles
notes, and `_find_master` when the connection breaks.  Heartbeats run without the GIL, so that a
busy process is not taken for dead; over TLS they pass the relay, which needs the GIL.  A thread for
signals exists because Python runs handlers only between two steps of the main thread, which may
compute for minutes in one step.

When the master is lost, a node without a journal at its master (`patience_s` 0) ends.  Others keep
working and connect again for up to `patience_s`.  `ControlClient` then repeats their unanswered
calls, with their numbers, before anything new; a note sent just before the break may be lost.

A master that is stopped, or cut off by the network, is noticed by its silence: a warning after
`heartbeat_timeout`, the end after `patience_s` more (`_watch`).  A master whose loop alone hangs
still sends heartbeats, from a thread of its own: only the time limits of calls to it notice that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable, Collection, Container, Mapping
from typing import TYPE_CHECKING, Any

from snailps.abi.quota import capacity, cores
from snailps.config import ClusterSettings, ListenerSettings, parse_addr, parse_port_range
from snailps.dataclass import dataclass
from snailps.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    ClusterError,
    ConnectionLost,
    MisuseError,
    ProtocolError,
    RemoteError,
    SnailError,
    explain,
)
from snailps.node.checks import look_half_way, why_no_master
from snailps.node.limits import GRACE_S
from snailps.node.master_waits import Waiting
from snailps.node.metric_samples import of_process
from snailps.node.metrics import Sample
from snailps.node.run_registry import trust_at
from snailps.node.signals import ending_signals
from snailps.node.status import EVENT_REPORTED
from snailps.node.usage import peak_rss_mb, usage
from snailps.transport import messages
from snailps.transport._awake import awake_s, watch
from snailps.transport._heartbeat import HeartbeatThread
from snailps.transport.control import (
    Address,
    AnswerOrFuture,
    ControlClient,
    Listener,
    Trust,
    dial,
    listen,
    route_host,
    show,
)
from snailps.transport.control.client import ask
from snailps.transport.handshake import Channel, Role

if TYPE_CHECKING:
    from snailps.node.metrics_server import MetricsServer

log = logging.getLogger(__name__)

AWAY_S = 1.0
"""How long a signal waits for a lost master to return, or for the answer to Register, before this
process leaves without telling a master."""

WATCH_S = 0.2
"""Polling interval of threads that no event wakes."""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """Why a process ends: its exit code, and a text for the log."""

    code: int
    text: str


def raise_descriptors() -> None:
    """Raise the limit of open files to the maximum: each peer takes sockets, and strangers may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_listener(settings: ListenerSettings, trust: Trust) -> Listener:
    """Listen at the configured address, or on the interface that routes to the master. SnailError:
    no address can be bound (it names the range), or other machines could connect without a
    secret."""
    host, port = "", 0
    if settings.listen_addr:
        host, port = parse_addr(settings.listen_addr, "listen_addr", port_optional=True)
    if not host:
        host = _own_host(settings)
    ports = parse_port_range(settings.port_range, "port_range") if port == 0 else None
    if ports is None:
        return listen(host, port, trust)
    for candidate in range(ports[0], ports[1] + 1):
        try:
            return listen(host, candidate, trust)
        except ConnectionLost:
            continue
    raise ClusterError(
        f"no port of {ports[0]} to {ports[1]} is free on {host}: widen port_range, "
        "a server needs one port a shard"
    )


def advertised(settings: ListenerSettings, listener: Listener) -> Address:
    """Return the address that other processes are to connect to."""
    host, port = listener.getsockname()[:2]
    if settings.advertise_addr:
        host, own_port = parse_addr(settings.advertise_addr, "advertise_addr", port_optional=True)
        return host, own_port or port
    if host in ("0.0.0.0", "::"):
        host = _own_host(settings)
    return host, port


def _own_host(settings: ClusterSettings) -> str:
    """Return the address of the interface that routes to the master; wait until its name resolves.
    In Docker and Kubernetes a name exists only while its process runs, and the master may start
    last. ConnectionLost: no name within `init_timeout`, or no route."""
    master = parse_addr(settings.master_addr, "master_addr")
    until = awake_s() + settings.init_timeout
    waits = False
    while True:
        try:
            return route_host(master)
        except ConnectionLost as error:
            left_s = until - awake_s()
            if left_s <= 0:
                raise
            if not waits:
                waits = True
                log.info("waiting for the name of the master: %s %.0f s left", error, left_s)
        threading.Event().wait(WATCH_S)


def _before_joining(number: int) -> str:
    return f"{signal.Signals(number).name} before the cluster was formed"


class _ChildSignals:
    """Gives a child that a model forks the default signal handlers, instead of this process's.

    Signals are blocked from before the fork until the child has its handlers: one that came in
    between would be written to the parent's wake-up descriptor.
    """

    def __init__(self, numbers: Collection[signal.Signals]) -> None:
        self._numbers = numbers
        self._of_thread = threading.local()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._let_go, after_in_child=self._begin
        )

    def _hold(self) -> None:
        self._of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)

    def _let_go(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.mask)

    def _begin(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        self._let_go()


class Node:
    """A process that belongs to a master. `secret`: from the launcher, if that made the cluster."""

    def __init__(self, role: Role, settings: ClusterSettings, secret: bytes = b"") -> None:
        watch()
        self.role = role
        self.settings = settings
        self.trust = (
            Trust.of(settings, secret=secret)
            if secret
            else trust_at(settings.master_addr, settings)
        )
        self.ended = threading.Event()
        self.welcome: messages.Welcome | None = None
        self._end: ProcessEnd | None = None
        self._end_lock = threading.Lock()
        self._control: ControlClient | None = None
        self._pulse: HeartbeatThread | None = None
        self._pulse_lock = threading.Lock()
        self._pulse_mender: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        self._metrics: MetricsServer | None = None
        self._endpoints: list[Address] = []
        self._leaves = ""
        self.route_epoch = 0
        self.on_named: Callable[[str], None] | None = None
        """Called with the name of this process as soon as the master has given it one."""
        self.begin_anew: Callable[[], None] | None = None
        """Starts this process anew, if the master of a session orders that."""
        self._stop_again = self._signalled = False
        self._stopped = threading.Event()

    @property
    def name(self) -> str:
        number = f" {self.welcome.node}" if self.welcome else ""
        return f"{self.role.name.lower()}{number}"

    @property
    def control(self) -> ControlClient:
        """The connection to the master; only after `join`."""
        assert self._control is not None, "join() first"
        return self._control

    def join(
        self, endpoints: list[Address] | None = None, give_up: Callable[[], bool] = lambda: False
    ) -> messages.Welcome:
        """Connect to the master, register, and start heartbeats. WaitTimeout: the master cannot be
        reached within `init_timeout`, or until `give_up`. SnailError: it refused this process."""
        limit_s = self.settings.init_timeout
        self._endpoints = endpoints or []
        look = look_half_way(limit_s, "the master", lambda: why_no_master(self.settings))
        try:
            welcome = self._join(limit_s, give_up)
        finally:
            look.cancel()
        self._serve_metrics()
        return welcome

    def _join(
        self, limit_s: float, give_up: Callable[[], bool] = lambda: False
    ) -> messages.Welcome:
        until = awake_s() + limit_s
        while self.welcome is None:
            try:
                self._register(max(0.1, until - awake_s()), give_up)
            except ConnectionLost:
                # The master died before it registered us: nothing was begun, so try again. A
                # driver does not: its caller gets the error, and decides.
                over = self.ended.is_set() or awake_s() > until
                if over or self.role == Role.DRIVER:
                    raise
        self._beat(limit_s)
        self._watcher = threading.Thread(target=self._watch, name="snailps-watch", daemon=True)
        self._watcher.start()
        log.info("%s registered with the master at %s", self.name, self._master)
        return self.welcome

    @property
    def _master(self) -> str:
        return show(parse_addr(self.settings.master_addr, "master_addr"))

    def _dial(
        self, channel: Channel, limit_s: float, give_up: Callable[[], bool] = lambda: False
    ) -> socket.socket:
        """Connect to the master, with our number if it has given us one."""
        us = self.welcome
        with Waiting(self.name, self._master, log.info) as waiting:
            return dial(
                parse_addr(self.settings.master_addr, "master_addr"),
                channel,
                self.role,
                peer_name="the master",
                limit_s=limit_s,
                node=us.node if us else 0,
                incarnation=us.incarnation if us else 0,
                job=us.job if us else 0,
                trust=self.trust,
                give_up=lambda: self.ended.is_set() or give_up(),
                on_wait=waiting.report,
            )

    def _register(self, limit_s: float, give_up: Callable[[], bool]) -> None:
        self._control = ControlClient(
            self._dial(Channel.CONTROL, limit_s, give_up),
            self._receive,
            self._master_lost,
            peer_name=f"the master at {self._master}",
            mend=self._find_master,
        )
        self._control.start()
        if self.ending:  # a signal came while we connected
            raise ConnectionLost(self.verdict.text)
        register = messages.Register(
            self.role.name.lower(),
            socket.gethostname(),
            os.getpid(),
            self.capacity(),
            [list(endpoint) for endpoint in self._endpoints],
        )
        # The answer is taken in the reader thread: orders may follow at once, and need it.
        future = self.control.call_async(register, self._take_welcome)
        welcome = self.control.result(future, limit_s, "Register")
        assert isinstance(welcome, messages.Welcome)

    def _take_welcome(self, answer: messages.Message) -> None:
        if isinstance(answer, messages.Welcome):
            self.on_welcome(answer)
            self.welcome = answer
            if self.on_named is not None:
                self.on_named(self.name)

    def capacity(self) -> float:
        """Hook: return the number of cores that this process may keep busy."""
        return capacity(cores())

    def on_welcome(self, welcome: messages.Welcome) -> None:
        """Hook: called in the reader thread when the master has accepted this process, before its
        first orders; `self.welcome` is not set yet."""

    def _beat(self, limit_s: float, *, again: bool = False) -> None:
        """Start heartbeats to the master, or to a master that took over. `again`: to the same
        master, unless another thread has done so meanwhile."""
        assert self.welcome is not None
        sock = self._dial(Channel.PULSE, limit_s)
        with self._pulse_lock:
            if self._pulse is None:
                self._pulse = HeartbeatThread(self.welcome.interval_s)
                self._pulse.start()
            try:
                if not again:
                    self._pulse.remove(0)
                elif 0 not in self._pulse.closed():
                    sock.close()
                    return
                # With `again` the silence counts on: a new connection alone proves nothing, since a
                # master may accept each and close it again.
                self._pulse.add(sock, 0, self._pulse.silences().get(0, 0.0) if again else 0.0)
            except MisuseError:  # this process leaves
                sock.close()
                return
        if again:
            log.warning("the heartbeat connection to the master was lost and is made again")

    def _mend_beat(self) -> None:
        """Make a lost heartbeat connection again, in a thread of its own: connecting may block."""
        assert self.welcome is not None
        if self._pulse_mender is not None and self._pulse_mender.is_alive():
            return
        limit_s = self.welcome.timeout_s

        def dial_again() -> None:
            with contextlib.suppress(SnailError, OSError):  # `_watch` limits the silence
                self._beat(limit_s, again=True)

        self._pulse_mender = threading.Thread(target=dial_again, name="snailps-beat", daemon=True)
        self._pulse_mender.start()

    # --- another master ------------------------------------------------------------------------

    def _find_master(self, why: str) -> socket.socket | None:
        """Find the master that takes over, and rejoin it; None: there is none in time, or this
        process ends. Called in the reader thread: meanwhile rows are served and leased blocks
        trained."""
        us = self.welcome
        if us is None or not us.patience_s or self.ended.is_set():
            return None
        until = awake_s() + us.patience_s
        log.warning(
            "the master at %s is gone: %s. Continuing with work in progress; waiting %.0f s for "
            "it to be started again",
            self._master, why, us.patience_s, extra=EVENT_REPORTED,
        )  # fmt: skip
        while not self.ended.is_set():
            left_s = until - awake_s()
            sock = None
            try:
                sock = self._dial(Channel.CONTROL, left_s)
                answer = ask(sock, self._rejoin(), max(0.1, left_s))
                assert isinstance(answer, messages.Welcome)
                self._beat(max(0.1, left_s))
            except (RemoteError, ProtocolError) as error:
                # A driver holds nothing that others have by now: it may join again, as another one.
                self._stop_again |= self.role == Role.DRIVER and error.code == messages.GIVEN_UP
                self.end(EXIT_FAILED, f"the master at {self._master} refuses this process: {error}")
            except (SnailError, OSError) as error:
                if awake_s() >= until:
                    self.end(
                        EXIT_FAILED,
                        f"the master at {self._master} is gone: {why}. It was not started again "
                        f"within {us.patience_s:.0f} s (master_time_out): {explain(error)}",
                    )
            else:
                log.info("%s is back with the master at %s", self.name, self._master)
                return sock
            if sock is not None:
                sock.close()
            self.ended.wait(WATCH_S)
        return None

    def _rejoin(self) -> messages.Rejoin:
        us = self.welcome
        assert us is not None
        return messages.Rejoin(
            us.job,
            us.node,
            us.incarnation,
            self.role.name.lower(),
            socket.gethostname(),
            os.getpid(),
            self.capacity(),
            [list(endpoint) for endpoint in self._endpoints],
            self.route_epoch,
            self._leaves,
            self.resume_state(),
        )

    def resume_state(self) -> dict[str, Any]:
        """Hook: return this role's state for a master that takes over. Called in the reader
        thread."""
        return {}

    # --- usage and metrics ---------------------------------------------------------------------

    def own_stats(self) -> dict[str, Any]:
        """Return what each role's report contains: usage, and the address of the metrics."""
        metrics = {"metrics": self._metrics.address} if self._metrics is not None else {}
        return {"usage": dict(usage()), **metrics}

    def metric_samples(self) -> list[Sample]:
        """Hook: return the metrics of this process. Called in a thread of the metrics server."""
        number = self.welcome.node if self.welcome is not None else 0
        return of_process(self.role.name.lower(), number)

    def _serve_metrics(self) -> None:
        if self.settings.metrics_addr and self.role != Role.DRIVER:  # that is the user's process
            from snailps.node.metrics_server import serve_metrics  # imports an HTTP server

            self._metrics = serve_metrics(self.settings.metrics_addr, self.metric_samples)

    # --- the end -------------------------------------------------------------------------------

    def end(self, code: int, text: str) -> None:
        """Decide that this process ends; the first decision counts. For any thread."""
        with self._end_lock:
            if self._end is not None:
                return
            self._end = ProcessEnd(code, text)
        # Before `ended`: whoever wakes by that is to find the reason with the client, too.
        self.on_end(self._end)
        self.ended.set()

    @property
    def ending(self) -> bool:
        """Whether the end is decided; `ended` is set only after `on_end`."""
        return self._end is not None

    @property
    def begins_anew(self) -> bool:
        """Whether the master of a session ordered this process to start anew, and no signal
        came."""
        return self._stop_again and not self._signalled

    @property
    def verdict(self) -> ProcessEnd:
        """Why the process ends; only after `ended` is set."""
        assert self._end is not None
        return self._end

    def hear_stop(self, limit_s: float) -> None:
        """After a failure of this process: wait for the master's Stop, which names the cause."""
        until = awake_s() + limit_s
        while not (self.control.away or self._stopped.wait(WATCH_S)):
            if awake_s() > until:
                return

    def leave(self, figures: Mapping[str, float]) -> None:
        """Send `Bye` to the master and close the connections."""
        if self._control is not None:
            self._control.note(messages.Bye({"peak_rss_mb": peak_rss_mb(), **figures}))
            self._control.close()
        if self._pulse is not None:
            self._pulse.stop()
        if self._metrics is not None:
            self._metrics.close()
        self.trust.close()

    def catch_signals(self) -> None:
        """Have SIGINT and SIGHUP ask the master to end the job, and SIGTERM to let this process
        leave. Called in the main thread. A thread of its own reads signals from the interpreter's
        wake-up descriptor: handlers do not run while a model computes or waits in compiled code."""
        hears, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
        numbers = (signal.SIGINT, *ending_signals())
        threading.Thread(
            target=self._hear_signals, args=(hears, numbers), name="snailps-signals", daemon=True
        ).start()
        for number in numbers:
            signal.signal(number, self._break_dialling)
        _ChildSignals(numbers)

    def _receive(self, message: messages.Message) -> AnswerOrFuture:
        """Pass a message to `on_message`; any error becomes a `ClusterError`, and goes to the
        master."""
        if self.welcome is None:
            raise ClusterError(f"{type(message).__name__} before Welcome")
        try:
            return self.on_message(message)
        except SnailError:
            raise
        except Exception as error:
            log.exception("%s: %s failed", self.name, type(message).__name__)
            raise ClusterError(f"{type(message).__name__} failed: {explain(error)}") from error

    def on_message(self, message: messages.Message) -> AnswerOrFuture:
        """Handle a call or a note of the master, in the reader thread."""
        if isinstance(message, messages.Stop):
            code = EXIT_STOPPED if message.failed else EXIT_OK
            self._stop_again |= message.again  # a second Stop may follow, after a loss
            self._stopped.set()
            self.end(code, message.text)
        return None

    def on_end(self, end: ProcessEnd) -> None:
        """Hook: end the waits of the main thread."""

    def on_leave_request(self, why: str) -> None:
        """Hook: called after SIGTERM, SIGINT or SIGHUP, once joined."""
        self._leaves = why
        self.control.note(messages.Leaving(why))

    def _break_dialling(self, number: int, frame: types.FrameType | None) -> None:
        """Handle a signal in the main thread: only an exception ends a connection attempt there."""
        if self._control is None:
            self.end(EXIT_INTERRUPTED, _before_joining(number))
            raise KeyboardInterrupt

    def _hear_signals(self, hears: socket.socket, numbers: Container[int]) -> None:
        while number := hears.recv(1):
            if number[0] in numbers:  # a model may have handlers for others
                self.on_signal(number[0])

    def on_signal(self, number: int) -> None:
        self._signalled = True
        until = awake_s() + AWAY_S
        # The master may have registered us already: leave by telling it, else it takes us for lost.
        while self._control is not None and self.welcome is None and awake_s() < until:
            if self.ended.wait(WATCH_S / 4):
                break
        if self.welcome is not None and not self.ended.is_set():
            self._leave_on(signal.Signals(number).name)
            return
        self.end(EXIT_INTERRUPTED, _before_joining(number))
        if self._control is not None:  # else _register sees the end
            self._control.close()

    def _leave_on(self, name: str) -> None:
        """After a signal: ask the master to let this process leave; without a master just leave."""
        until = awake_s() + AWAY_S
        while self.control.away and awake_s() < until:  # the master may be about to return
            if self.ended.wait(WATCH_S / 4):
                return
        if self.control.away:
            self.end(EXIT_INTERRUPTED, f"{name} while the master was gone")
        else:
            self.on_leave_request(name)

    def _master_lost(self, why: str) -> None:
        if self.welcome is None:
            return  # the caller of `join` gets the error
        address = self.settings.master_addr
        self.end(EXIT_FAILED, f"the master at {address} is gone: {why}. See the master's own log")

    def _watch(self) -> None:
        """Watch the master's heartbeats until the end is decided; then end the process by force if
        it has not ended `GRACE_S` later."""
        assert self._pulse is not None
        assert self.welcome is not None
        warned = was_closed = False
        while not self.ended.wait(WATCH_S):
            if self.control.away:  # `_find_master` starts heartbeats to the next master
                warned = was_closed = False
                continue
            closed = 0 in self._pulse.closed()
            # Closed in two looks: at first the control connection may be about to close, too.
            if closed and was_closed:
                self._mend_beat()
            was_closed = closed
            silence_s = self._pulse.silences().get(0, 0.0)
            limit_s = self.welcome.timeout_s
            silent = silence_s > limit_s
            if silent and silence_s > limit_s + self.welcome.patience_s:
                self.end(EXIT_FAILED, self._why_silent(silence_s, closed))
            elif silent and not warned:
                log.warning(
                    "the master at %s has been silent for %.0f s: waiting %.0f s more for it",
                    self._master, silence_s, self.welcome.patience_s,
                )  # fmt: skip
            warned = silent
        # The main thread may hang in a model. A driver runs in the user's process: leave it alone.
        if self.role != Role.DRIVER:
            until = awake_s() + GRACE_S
            while awake_s() < until:
                threading.Event().wait(WATCH_S)
            sys.stderr.write(f"{self.name}: still busy {GRACE_S:.0f} s after the end, leaving\n")
            sys.stderr.flush()
            if self.begins_anew and self.begin_anew is not None:
                self.begin_anew()
            os._exit(self.verdict.code)

    def _why_silent(self, silence_s: float, closed: bool) -> str:
        assert self.welcome is not None
        limit = f"(heartbeat_timeout {self.welcome.timeout_s:.0f} s)"
        if closed:
            return (
                f"the heartbeat connection to the master at {self._master} was lost "
                f"{silence_s:.0f} s ago and cannot be made again {limit}: the master does not take "
                "it, or the network lets no new connection through"
            )
        return (
            f"the master at {self._master} has been silent for {silence_s:.0f} s {limit}: it "
            "hangs, or the network is cut"
        )
