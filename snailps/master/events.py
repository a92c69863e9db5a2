"""The events that `MasterCore.handle` takes. Declarations only.

    sockets, threads, signals, the clock -> process.py -> Event -> MasterCore

Connections and calls are numbers that `process.py` gives; no number is given twice.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snailps.errors import SnailError
from snailps.node.effects import WorkDone
from snailps.node.status import Usage
from snailps.transport import messages

if TYPE_CHECKING:
    from snailps.master.job.job import Job

Answer = messages.Message | SnailError


@dataclass(frozen=True, slots=True)
class Started:
    """The process is up, with its expected workers and the job of its settings, if any."""

    job: Job | None = None
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Listening:
    """Members can connect from now on."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a peer; `call` is the number to answer, None for a note."""

    peer: int
    message: messages.Message
    call: int | None = None
    address: tuple[str, int] = ("", 0)


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to an `Order`; `ConnectionLost`: there will be none."""

    order: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Gone:
    """A connection was lost, or closed by the peer."""

    peer: int
    why: str


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Seconds since each member was last heard, and whose heartbeat connection is closed."""

    silences: Mapping[int, float]
    closed: Container[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Signal:
    """SIGINT or SIGTERM."""


@dataclass(frozen=True, slots=True)
class JournalGrown:
    """The journal is long enough to be compacted."""


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """The journal cannot be written any more: no other master can take over."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: at least every 50 ms. `usage` is given where it was measured anew."""

    peak_rss_mb: float = 0.0
    usage: Usage | None = None


Event = (
    Started
    | Listening
    | Received
    | Answered
    | Gone
    | Heartbeats
    | WorkDone
    | Signal
    | JournalGrown
    | JournalFailed
    | Tick
)
