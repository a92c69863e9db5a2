"""A process of a cluster: it dials the master, registers, beats, rejoins another master, ends.

    dial -> Register -> Welcome -> ... Stop | master lost -> dial -> Rejoin -> Welcome -> ...

Servers, workers and drivers derive from it.  It follows the rules of `snailps.node.process.Node`,
which owns sockets and threads.
"""

from __future__ import annotations

from snailps.errors import ConnectionLost, ProtocolError, RemoteError, SnailError
from snailps.node.limits import GRACE_S
from snailps.transport import messages
from snailps.transport.handshake import Channel, Hello
from tests.sim.control import NONCE, NodeEnd
from tests.sim.scheduler import Future, Process, first_of

AWAY_S = 1.0
WATCH_S = 0.2
MASTER = ("master", 7000)
"""Where the master listens: every one of them."""


class Node(Process):
    """A process that registers with a master.

    Parameters
    ----------
    cluster : Cluster
    role : Role
    name, host : str
    """

    def __init__(self, cluster, role, name, host):
        super().__init__(cluster.world, name, host)
        self.cluster, self.network, self.settings = cluster, cluster.network, cluster.node_settings
        self.role = role
        self.welcome = None
        self.number = 0
        self.control = NodeEnd(self._receive, self._master_lost)
        self.endpoints = []
        self.route_epoch = 0
        self.ending = False
        self.leaves = ""
        self._pulse = None
        self._was_closed = self._mending = False
        self._heard_at = 0.0

    def start(self):
        """Begins to dial the master."""
        self.spawn(self._join())

    # --- connections -----------------------------------------------------------------------------

    def sleep(self, seconds):
        """A future that is done after this many seconds."""
        made = Future()
        self.after(seconds, made.set)
        return made

    def dial(self, address, channel, limit_s, give_up=lambda: False):
        """Connects, trying again until the limit (a generator: `yield from`)."""
        until = self.world.now + limit_s
        us, pause_s = self.welcome, 0.05
        while True:
            hello = Hello(
                channel, self.role, NONCE, *((us.node, us.incarnation, us.job) if us else ())
            )
            made = self.network.connect(self, address, hello)
            limit = self.sleep(max(0.0, until - self.world.now))
            yield first_of(made, limit)
            if not made.done:
                made.then(lambda late: late.value.close() if late.value is not None else None)
                raise ConnectionLost("no answer in time")
            if made.error is None:
                return made.value
            if not isinstance(made.error, ConnectionLost):
                raise made.error
            if give_up() or self.world.now >= until:
                raise made.error
            yield pause_s
            pause_s = min(1.5 * pause_s, 1.0)

    # --- joining ---------------------------------------------------------------------------------

    def _join(self):
        until = self.world.now + self.settings.init_timeout
        while self.welcome is None:
            try:
                end = yield from self.dial(
                    MASTER, Channel.CONTROL, max(0.1, until - self.world.now)
                )
                self.control = NodeEnd(self._receive, self._master_lost)
                self.control.attach(end)
                register = messages.Register(
                    self.role.name.lower(), self.host, self.cluster.pid_of(self), 2,
                    [list(endpoint) for endpoint in self.endpoints],
                )  # fmt: skip
                yield self.control.call(register, self._take_welcome)
            except ConnectionLost as error:
                if self.world.now > until:
                    self.end(1, f"cannot reach the master: {error}")
                    return
            except SnailError as error:
                self.end(1, f"refused: {error}")
                return
        try:
            yield from self._beat(self.settings.init_timeout)
        except SnailError as error:
            self.end(1, f"no heartbeat connection: {error}")
            return
        self._heard_at = self.world.now
        self.after(WATCH_S, self._watch)

    def _take_welcome(self, answer):
        if isinstance(answer, messages.Welcome):
            self.number = answer.node
            self.say(f"is {self.role.name.lower()} {answer.node}")
            self.on_welcome(answer)
            self.welcome = answer

    def on_welcome(self, welcome):
        """Hook: the master has accepted this process; `self.welcome` is not set yet."""

    def _beat(self, limit_s):
        """Makes the heartbeat connection, in the place of the one before."""
        end = yield from self.dial(MASTER, Channel.PULSE, limit_s, lambda: self.ending)
        if self._pulse is not None:
            self._pulse.close()
        self._pulse = end
        end.listen(lambda data: None, lambda why: None)

    def _mend_beat(self):
        self._mending = True
        try:
            yield from self._beat(self.welcome.timeout_s)
        except SnailError:
            self.say("cannot make its heartbeat connection again")
        self._mending = False

    def _watch(self):
        """Ends the process if the master is silent for long; mends a lost heartbeat connection."""
        if self.ending:
            return
        master = self.cluster.master
        heard = (
            self._pulse is not None
            and self._pulse.open
            and master is not None
            and master.runs
            and self.world.now >= self.network.cut_until(self.host, master.host)
        )
        if heard or self.control.away:
            self._heard_at = self.world.now
        closed = self._pulse is None or not self._pulse.open
        if not self.control.away and closed and self._was_closed and not self._mending:
            self.spawn(self._mend_beat())
        self._was_closed = closed and not self.control.away
        limit_s = self.welcome.timeout_s + self.welcome.patience_s
        if self.world.now - self._heard_at > limit_s:
            self.end(1, "the master has been silent")
            return
        self.after(WATCH_S if closed else 1.0, self._watch)

    # --- another master --------------------------------------------------------------------------

    def _master_lost(self, why):
        if self.welcome is None:
            self.control.end(why)
        elif self.ending:
            pass
        elif self.control.ended or not self.welcome.patience_s:
            self.control.end(why)
            self.end(1, f"the master is gone: {why}")
        else:
            self.say(f"lost the master: {why}")
            self.spawn(self._find_master(why))

    def _find_master(self, why):
        until = self.world.now + self.welcome.patience_s
        while not self.ending:
            left_s = max(0.1, until - self.world.now)
            end = None
            try:
                end = yield from self.dial(MASTER, Channel.CONTROL, left_s, lambda: self.ending)
                yield from self._rejoin(end, left_s)
            except (RemoteError, ProtocolError) as error:
                self.end(1, f"the master does not take us back: {error}")
            except SnailError as error:
                if self.world.now >= until:
                    self.end(1, f"the master is gone: {why}; {error}")
            else:
                return
            if end is not None:
                end.close()
            yield WATCH_S

    def _rejoin(self, end, limit_s):
        """Calls Rejoin on a fresh connection, before `control` reads from it."""
        us = self.welcome
        rejoin = messages.Rejoin(
            us.job, us.node, us.incarnation, self.role.name.lower(), self.host,
            self.cluster.pid_of(self), 2, [list(endpoint) for endpoint in self.endpoints],
            self.epoch_of_route(), self.leaves, self.resume_state(),
        )  # fmt: skip
        once = NodeEnd(lambda message, reply: None, lambda why: once.end(why))
        once.attach(end)
        # Bytes after the answer are for `control`, which reads next.
        answer = once.call(rejoin, lambda answer: end.pause())
        yield first_of(answer, self.sleep(limit_s))
        if not answer.done:
            raise ConnectionLost("no answer to Rejoin")
        if answer.error is not None:
            raise answer.error
        yield from self._beat(limit_s)
        self.say("is back with the master")
        self.on_rejoined()
        self.control.attach(end)

    def epoch_of_route(self):
        """Epoch of the route that this process has."""
        return self.route_epoch

    def resume_state(self):
        """Hook: the state that a Rejoin carries."""
        return {}

    def on_rejoined(self):
        """Hook: a master has taken this process back."""

    # --- messages, the end -----------------------------------------------------------------------

    def _receive(self, message, reply):
        if self.ending:
            return
        if isinstance(message, messages.Stop):
            if "declared it lost" in message.text:
                self.cluster.expelled[self] = message.text
            self.end(3 if message.failed else 0, message.text)
        else:
            self.on_message(message, reply)

    def on_message(self, message, reply):
        """Hook: an order or a note of the master."""

    def asked_to_leave(self):
        """SIGTERM."""
        if self.welcome is None or self.ending:
            self.end(130, "SIGTERM before it belonged")
            return
        self.say("SIGTERM")
        self._leave_on(self.world.now + AWAY_S)

    def _leave_on(self, until):
        """Sends Leaving, once there is a master, or ends when `until` is over."""
        if self.ending:
            return
        if self.control.away:
            if self.world.now < until:
                self.after(WATCH_S / 4, self._leave_on, until)
            else:
                self.end(130, "SIGTERM while the master was gone")
            return
        self.leaves = "SIGTERM"
        self.on_leave()
        self.control.note(messages.Leaving("SIGTERM"))

    def on_leave(self):
        """Hook: SIGTERM."""

    def end(self, code, text):
        """Begins the end of this process; a later call changes nothing."""
        if self.ending or not self.alive:
            return
        self.ending = True
        self.say(f"is to end, code {code}: {text}")
        self.code = code
        self.after(GRACE_S, self.exit, code, "still busy after the end")
        self.on_end(code, text)

    def on_end(self, code, text):
        """Hook: lets the process leave, now or later."""
        self.after(self.network.delay(), self.leave, code, text)

    def leave(self, code, text):
        """Sends Bye and exits."""
        if self.welcome is not None:
            self.control.note(messages.Bye({"peak_rss_mb": 1.0}))
        self.control.close()
        self.exit(code, text)
