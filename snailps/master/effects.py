"""Effects: what `MasterCore.handle` returns, and the outbox that collects them.

    parts of the core -> Outbox -> list of Effect -> process.py performs them, in order

The order is a promise: a `Note` is with the kernel before a `Send` behind it leaves, so no peer
knows more than a master that takes over.  Nothing here does anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.errors import ConnectionLost, SnailError
from snailps.master.events import Answer
from snailps.node.effects import EffectQueue, Work
from snailps.node.status import EventKind, Status
from snailps.store.route import Route
from snailps.transport import messages
from snailps.transport.control.encoded import Encoded

Reply = messages.Message | Encoded | SnailError


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened, for the journal.

    Attributes
    ----------
    kind : str
        A word: who replays it looks at this first.
    data : dict
        As it was given to `Outbox.note`, after a way through JSON.
    """

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a master has to know of a job, instead of all facts that led there.

    Attributes
    ----------
    state : dict
        For JSON.
    arrays : dict of str to numpy.ndarray
        What is too large for that; it does not change before the next snapshot is taken.
    facts : sequence of Fact
        What follows the state, in place of facts of the same kinds.
    """

    state: dict[str, Any]
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    facts: Sequence[Fact] = ()


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that users want to know of their cluster; `who` is a process, as "server 2"."""

    kind: EventKind
    who: str
    text: str


# --- effects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """A note to a peer."""

    peer: int
    message: messages.Message


@dataclass(frozen=True, slots=True)
class Order:
    """A call to a peer; `Answered` follows, always."""

    peer: int
    message: messages.Message
    number: int


@dataclass(frozen=True, slots=True)
class Answering:
    """The answer to a call of a peer."""

    call: int
    answer: Reply


@dataclass(frozen=True, slots=True)
class Close:
    """Closes a connection once all is sent; no `Gone` follows."""

    peer: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A peer's message cannot be handled: sends it the error and closes; `Gone` follows."""

    peer: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Forget:
    """A member is gone: no heartbeat of it is expected any more."""

    member: int


@dataclass(frozen=True, slots=True)
class Note:
    """A fact for the journal, with the kernel before any effect behind it."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compact:
    """The journal may begin anew with this in place of its facts."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Rerouted:
    """There is a new route: the master's own clients follow it."""

    route: Route


@dataclass(frozen=True, slots=True)
class CancelExport:
    """What the export waits for at servers ends now."""


@dataclass(frozen=True, slots=True)
class LeaveRounds:
    """No round is looked at any more: the connections for that may close."""


@dataclass(frozen=True, slots=True)
class Diagnose:
    """Examines why expected nodes are missing, once half of `limit_s` is over.

    It replaces the one before; with an empty `wait` the search ends.
    """

    wait: Literal["", "nodes", "connections"] = ""
    limit_s: float = 0.0
    places: Sequence[tuple[int, tuple[str, int]]] = ()


@dataclass(frozen=True, slots=True)
class Say:
    """A line of the log that a user may act on: its facts are in the journal before it.

    `told`: an event of the status tells it as well.
    """

    text: str
    level: int = logging.INFO
    told: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The last record of a run, for `json_log`."""

    status: Status


Effect = (
    Send
    | Order
    | Answering
    | Close
    | Broken
    | Forget
    | Note
    | Compact
    | Work
    | Rerouted
    | CancelExport
    | LeaveRounds
    | Diagnose
    | Record
    | Say
)

OnAnswer = Callable[[Answer, float], None]
"""Gets the answer, and the time."""


class Outbox(EffectQueue[Effect]):
    """Collects the effects of one event, and knows what is to follow on answers and results.

    Attributes
    ----------
    kept : bool
        Whether there is a journal: a master that dies can be started again.
    """

    def __init__(self, *, kept: bool = False) -> None:
        super().__init__()
        self.kept = kept
        self._happened: list[Happened] = []
        self._orders: dict[int, tuple[int, OnAnswer]] = {}

    # --- peers -----------------------------------------------------------------------------------

    def send(self, peer: int, message: messages.Message) -> None:
        """A note; lost where the peer is gone."""
        self._effects.append(Send(peer, message))

    def order(self, peer: int, message: messages.Message, on_answer: OnAnswer) -> None:
        """A call; `on_answer` gets its answer, in a later event."""
        number = self.number()
        self._orders[number] = (peer, on_answer)
        self._effects.append(Order(peer, message, number))

    def reply(self, call: int, answer: Reply) -> None:
        """Answers a call."""
        self._effects.append(Answering(call, answer))

    def close(self, peer: int) -> None:
        """Ends a connection."""
        self._effects.append(Close(peer))

    def fence(self, peer: int, do: Callable[[], None]) -> None:
        """Does what a peer asked for: an error of that is the end of this peer, of no other."""
        try:
            do()
        except Exception as error:
            self._effects.append(Broken(peer, error))

    def answered(self, number: int, answer: Answer, now: float) -> None:
        """The answer to an order has come, or never will."""
        peer, on_answer = self._orders.pop(number)
        if isinstance(answer, ConnectionLost):
            on_answer(answer, now)  # not a word of the peer: an error here is ours
        else:
            self.fence(peer, partial(on_answer, answer, now))

    def say(self, text: str, level: int = logging.INFO, *, told: bool = False) -> None:
        """A line of the log, behind what was noted so far."""
        self._effects.append(Say(text, level, told))

    def happened(self, kind: EventKind, who: str, text: str) -> None:
        """Tells users what has happened; `MasterCore` puts it into its `EventLog`."""
        self._happened.append(Happened(kind, who, text))

    def take_happened(self) -> list[Happened]:
        """What has happened since the last time."""
        happened, self._happened = self._happened, []
        return happened

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """A fact that a master that takes over has to know."""
        if self.kept:
            self._effects.append(Note(kind, data))
