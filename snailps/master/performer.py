"""Performs the effects of a `MasterCore`: those for peers itself, the others by its process.

    message of a Peer -> received -> Received, Gone -> the core
    Send, Order, Answering, Close, Broken -> perform -> a Peer; an effect that fails -> its receiver

Owns the numbers of connections, and of calls that have no answer yet. Must not know sockets: it
gets the control server. Effects are performed in order. If one fails, later ones are performed all
the same, because the core decided each as if all succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

from snailps.errors import ClusterError, ConnectionLost, SnailError, explain
from snailps.master import effects, events
from snailps.master.events import Answer
from snailps.node.effects import Answering, Effect, Event
from snailps.transport import messages
from snailps.transport.control import Peer
from snailps.transport.control.server import Reply

log = logging.getLogger(__name__)


class PeerSender(Protocol):
    """The part that sends to peers: a `ControlServer`."""

    def note(self, peer: Peer, message: messages.Message) -> None: ...

    def call(
        self, peer: Peer, message: messages.Message, on_answer: Callable[[Answer], None]
    ) -> None: ...

    def contain(self, peer: Peer, do: Callable[[], None]) -> None: ...

    def close_peer(self, peer: Peer) -> None: ...


class Performer:
    """The effects of one master, in its loop.

    `others` perform what is for no peer; `status` makes the report of a `ReportStatus`; `closed` is
    called with a peer whose connection is closed here, or lost.
    """

    def __init__(
        self,
        server: PeerSender,
        feed: Callable[[Event], None],
        others: Mapping[type[Effect], Callable[[Any], None]],
        *,
        status: Callable[[], Mapping[str, Any]],
        closed: Callable[[Peer], None],
    ) -> None:
        self._server, self._feed, self._status, self._closed = server, feed, status, closed
        self._peers: dict[int, Peer] = {}
        self._replies: dict[int, tuple[int, Reply]] = {}  # by call: the peer, and how to answer
        self._calls: dict[int, set[int]] = {}  # not answered yet, by peer
        self._next = 1
        self._methods: Mapping[type[Effect], Callable[[Any], None]] = {
            effects.Send: self._send,
            effects.Order: self._order,
            Answering: self._answer,
            effects.Close: self._close,
            effects.Broken: self._break,
            effects.ReportStatus: self._report_status,
            **others,
        }

    # --- from peers ------------------------------------------------------------------------------

    def received(self, peer: Peer, message: messages.Message, reply: Reply | None) -> None:
        """A peer has sent a message; `reply`: it waits for an answer."""
        number, call = self.number_of(peer), None
        if reply is not None:
            call = self._number()
            self._replies[call] = number, reply
            self._calls[number].add(call)
        self._feed(events.Received(number, message, call, peer.address))

    def number_of(self, peer: Peer) -> int:
        """The number of a connection, from its first message on."""
        if isinstance(peer.tag, int):
            return peer.tag
        number = peer.tag = self._number()
        self._peers[number] = peer
        self._calls[number] = set()
        return number

    def lost(self, peer: Peer, why: str) -> None:
        """A connection is gone."""
        self._closed(peer)
        if isinstance(peer.tag, int) and self._forget(peer.tag) is not None:
            self._feed(events.Gone(peer.tag, why))

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _forget(self, number: int) -> Peer | None:
        """Forget a connection that is gone, and its open calls."""
        for call in self._calls.pop(number, ()):
            self._replies.pop(call, None)
        return self._peers.pop(number, None)

    # --- effects ---------------------------------------------------------------------------------

    def perform(self, wanted: Iterable[Effect]) -> None:
        for effect in wanted:
            try:
                self._methods[type(effect)](effect)
            except Exception as error:
                self._not_performed(effect, error)

    def _not_performed(self, effect: Effect, error: Exception) -> None:
        """An effect has failed, such as a message that cannot be encoded: only its receiver gets
        the error, and effects after it are performed."""
        log.error("%s failed at the master", type(effect).__name__, exc_info=error)
        why = error if isinstance(error, SnailError) else ClusterError(explain(error))
        if isinstance(effect, Answering):
            self._answer(Answering(effect.call, why))
        elif isinstance(effect, effects.ReportStatus):
            for call in effect.calls:
                self._answer(Answering(call, why))
        elif isinstance(effect, effects.Order):
            self._answered(effect.number, why)
        elif isinstance(effect, effects.Send):
            self._break(effects.Broken(effect.peer, why))

    def _send(self, effect: effects.Send) -> None:
        peer = self._peers.get(effect.peer)
        if peer is not None:
            self._server.note(peer, effect.message)

    def _order(self, effect: effects.Order) -> None:
        peer = self._peers.get(effect.peer)
        if peer is None:
            self._answered(effect.number, ConnectionLost("the connection is closed already"))
        else:
            self._server.call(peer, effect.message, partial(self._answered, effect.number))

    def _answered(self, order: int, answer: Answer) -> None:
        self._feed(events.Answered(order, answer))

    def _answer(self, effect: Answering) -> None:
        asked = self._replies.get(effect.call)
        if asked is not None:
            peer, reply = asked
            reply(effect.answer)  # before the call is forgotten: if this fails, it gets the error
            self._replies.pop(effect.call, None)
            self._calls.get(peer, set()).discard(effect.call)

    def _close(self, effect: effects.Close) -> None:
        peer = self._forget(effect.peer)
        if peer is not None:
            self._closed(peer)
            self._server.close_peer(peer)

    def _break(self, effect: effects.Broken) -> None:
        peer = self._peers.get(effect.peer)
        if peer is not None:
            self._server.contain(peer, partial(_raise, effect.error))

    def _report_status(self, effect: effects.ReportStatus) -> None:
        report = messages.Report({**self._status()})
        for call in effect.calls:
            self._answer(Answering(call, report))


def _raise(error: Exception) -> NoReturn:
    raise error
