"""Declares the events that `MasterCore.handle` takes.

    sockets, threads, signals, the clock -> process.py -> Event -> MasterCore

Connections and calls are numbers that `performer.py` gives; no number is given twice.
"""

from __future__ import annotations

import signal
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

from snailps.dataclass import dataclass, field
from snailps.errors import SnailError
from snailps.node.effects import Event
from snailps.transport import messages

if TYPE_CHECKING:
    from snailps.master.job.job import Job

Answer = messages.Message | SnailError


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The process is up, with its expected workers and the job of its settings, if any."""

    job: Job | None = None
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Listening(Event):
    """Members can connect from now on: limits of forming count from here."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A message of a peer; `call` is the number to answer, None for a note."""

    peer: int
    message: messages.Message
    call: int | None = None
    address: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """The answer to an `Order`; `ConnectionLost`: there will be none."""

    order: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Gone(Event):
    """A connection was lost, or closed by the peer."""

    peer: int
    why: str


@dataclass(frozen=True, slots=True)
class Heartbeats(Event):
    """Seconds since each member was last heard, and whose heartbeat connection is closed."""

    silences: Mapping[int, float]
    closed: Container[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Signal(Event):
    """SIGINT, SIGHUP or SIGTERM at the master."""

    number: int = signal.SIGINT


@dataclass(frozen=True, slots=True)
class JournalGrown(Event):
    """The journal is long enough to be compacted."""


@dataclass(frozen=True, slots=True)
class JournalKept(Event):
    """The journal is written again: another master could continue."""


@dataclass(frozen=True, slots=True)
class JournalFailed(Event):
    """The journal cannot be written any more: no other master can take over."""
