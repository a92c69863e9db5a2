"""The events that `ServerCore.handle` takes. Declarations only.

    orders of the master, shards, dials, works, time -> process.py -> Event -> ServerCore

`performer.py` numbers calls; shards, posts, dials, streams and works have the numbers of the
effects that began them. No number is given twice.
"""

from __future__ import annotations

from snailps.dataclass import dataclass
from snailps.node.effects import Event
from snailps.transport import messages

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ordered(Event):
    """A call of the master; an `Answering` follows, not necessarily at once."""

    call: int
    message: messages.Message


@dataclass(frozen=True, slots=True)
class StreamReported(Event):
    """No `trouble`: the standby is complete. Else the stream is over, or was refused."""

    stream: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class End(Event):
    """The process ends: what is under way is cancelled."""
