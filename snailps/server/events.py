"""The events that `ServerCore.handle` takes. Declarations only.

    orders of the master, shards, dials, works, time -> process.py -> Event -> ServerCore

`process.py` numbers calls; shards, posts, dials, streams and works have the numbers of the effects
that began them. No number is given twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snailps.errors import SnailError
from snailps.node.effects import Event
from snailps.transport import messages

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ordered(Event):
    """A call of the master; an `Answering` follows, not necessarily at once."""

    call: int
    message: messages.Message


@dataclass(frozen=True, slots=True)
class ShardStarted(Event):
    """A shard serves at this endpoint."""

    shard: int
    endpoint: Address


@dataclass(frozen=True, slots=True)
class ShardFailed(Event):
    """A shard could not be started: there is no listener for it."""

    shard: int
    error: SnailError


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """What a `Post` returned or raised; `ConnectionLost`: the shard runs no more."""

    post: int
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Dialled(Event):
    """A standby is connected; the link is a descriptor, or its equivalent in tests."""

    dial: int
    link: int


@dataclass(frozen=True, slots=True)
class DialFailed(Event):
    """A standby cannot be reached, or the dial was cancelled."""

    dial: int
    error: SnailError


@dataclass(frozen=True, slots=True)
class StreamTold(Event):
    """No `trouble`: the standby is complete. Else the stream is over, or was refused."""

    stream: int
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class End(Event):
    """The process ends: what is under way is cancelled."""
