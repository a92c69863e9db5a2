"""Declares the effects that `MasterCore.handle` returns, and owns the outbox that collects them.

    parts of the core -> Outbox -> list of Effect -> performer.py performs them, in sequence

The sequence is a promise: a `Journaled` is with the kernel before a `Send` after it leaves. So no
peer knows more than a master that takes over after the death of the process. After a power cut one
may: the journal then lacks the last 0.2 s or so (`journal.SYNC_S`), which nodes report again. No
I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass, field
from snailps.errors import ConnectionLost
from snailps.master.events import Answer
from snailps.master.life import COMMAND, Life
from snailps.node.effects import Effect, EffectQueue
from snailps.node.status import EventKind
from snailps.store.route import Route
from snailps.transport import messages


@dataclass(frozen=True, slots=True)
class Fact:
    """An entry of the journal; `data` are the values of `Outbox.journal` as JSON returns them."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a job that replaces the facts that led to it."""

    state: dict[str, Any]  # for JSON
    # too large for JSON; a thread writes them, so they must not change before the next snapshot
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    # facts that follow the state in the journal, and replace all of their kinds
    facts: Sequence[Fact] = ()


# --- effects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """A note to a peer."""

    peer: int
    message: messages.Message


@dataclass(frozen=True, slots=True)
class Order(Effect):
    """A call to a peer; `Answered` always follows."""

    peer: int
    message: messages.Message
    number: int


@dataclass(frozen=True, slots=True)
class Close(Effect):
    """Close a connection once all is sent; no `Gone` follows."""

    peer: int


@dataclass(frozen=True, slots=True)
class Broken(Effect):
    """A peer's message cannot be handled: send it the error and close; `Gone` follows."""

    peer: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Forget(Effect):
    """Expect no more heartbeats of a member."""

    member: int


@dataclass(frozen=True, slots=True)
class Journaled(Effect):
    """A fact for the journal, with the kernel before any later effect."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compact(Effect):
    """The journal may be compacted to this snapshot."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Rerouted(Effect):
    """A new route, for the master's own clients."""

    route: Route


@dataclass(frozen=True, slots=True)
class CancelExport(Effect):
    """Interrupt what the export waits for at servers."""


@dataclass(frozen=True, slots=True)
class LeaveRounds(Effect):
    """Close the connection by which the model inspects rounds."""


@dataclass(frozen=True, slots=True)
class Diagnose(Effect):
    """Find out why expected nodes are missing, once half of `limit_s` is over. Replaces an earlier
    search; an empty `wait` only ends it."""

    wait: Literal["", "nodes", "connections"] = ""
    limit_s: float = 0.0
    places: Sequence[tuple[int, tuple[str, int]]] = ()


@dataclass(frozen=True, slots=True)
class Say(Effect):
    """A log line that a user may act on, written after the journal has the facts that it reports;
    `reported`: the display shows it as a status event anyway."""

    text: str
    level: int = logging.INFO
    reported: bool = False


@dataclass(frozen=True, slots=True)
class StatusEvent(Effect):
    """An event for the users of the cluster; `who` is a process, as "server 2"."""

    kind: EventKind
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class ReportStatus(Effect):
    """Answer these calls with the status."""

    calls: Sequence[int]


OnAnswer = Callable[[Answer, float], None]


OF_SESSION = frozenset(
    ("numbers", "route", "member", "gone", "driver", "drivers_gone", "shards", "table", "drop",
     "stopped", "open", "job", "ended", "shared", "restores", "load")
)  # fmt: skip
"""Kinds of facts in the journal of a session. What its jobs do is not among them: no master could
continue a job whose class only a driver has."""


class Outbox(EffectQueue):
    def __init__(self, *, kept: bool = False, life: Life = COMMAND) -> None:
        super().__init__()
        self.kept = kept  # there is a journal: another master could continue
        self.noted = kept  # facts go to the journal, also while it cannot be written
        self._life = life
        self._orders: dict[int, tuple[int, OnAnswer]] = {}

    # --- peers -----------------------------------------------------------------------------------

    def send(self, peer: int, message: messages.Message) -> None:
        """Send a note; lost if the peer is gone."""
        self._effects.append(Send(peer, message))

    def order(self, peer: int, message: messages.Message, on_answer: OnAnswer) -> None:
        """Send a call; a later event brings its answer to `on_answer`."""
        number = self.number()
        self._orders[number] = (peer, on_answer)
        self._effects.append(Order(peer, message, number))

    def close(self, peer: int) -> None:
        self._effects.append(Close(peer))

    def contain(self, peer: int, do: Callable[[], None]) -> None:
        """Do what a peer asked for; an error breaks this peer only."""
        try:
            do()
        except Exception as error:
            self._effects.append(Broken(peer, error))

    def answered(self, number: int, answer: Answer, now: float) -> None:
        """Call the callback of an order with its answer."""
        peer, on_answer = self._orders.pop(number)
        if isinstance(answer, ConnectionLost):
            on_answer(answer, now)  # no data of a peer: an error here is a defect of ours
        else:
            self.contain(peer, partial(on_answer, answer, now))

    def say(self, text: str, level: int = logging.INFO, *, reported: bool = False) -> None:
        """Log a line after all facts noted so far."""
        self._effects.append(Say(text, level, reported))

    def happened(self, kind: EventKind, who: str, text: str) -> None:
        self._effects.append(StatusEvent(kind, who, text))

    def journal(self, kind: str, data: dict[str, Any]) -> None:
        """Have a fact in the journal before any later effect; `kind` and `data` are its format."""
        if self.noted and (self._life.job_goes_on or kind in OF_SESSION):
            self._effects.append(Journaled(kind, data))
