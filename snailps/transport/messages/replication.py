"""Messages about the placement of shards: standbys, changes of place, servers that leave.

    master -> server   HostStandby>Report  BackUp>Ok  Alone>Ok  Promote>Ok  Yield>Ok  DropShard>Ok
                       KeepShards>Ok
    server -> master   Backed  Unbacked  Yielded
    driver -> master   Drain>Ok

It knows nothing of what rows hold.
"""

from __future__ import annotations

from snailps.dataclass import dataclass
from snailps.transport.messages.codec import Message, message
from snailps.transport.messages.validation import (
    ENDPOINT,
    Bool,
    HostName,
    Id32,
    Natural,
    NumberedTables,
    Port,
    Seconds,
    Shard,
    Shards,
    Struct,
    Text,
)

_HOSTED = Struct({"endpoint": ENDPOINT}, open=True)


@message(by="master", answers="Report", report=_HOSTED)
@dataclass(frozen=True, slots=True)
class HostStandby(Message):
    """Order a server to make a standby of a shard with these tables; the Report has its
    ``endpoint``."""

    shard: Shard
    tables: NumberedTables


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class BackUp(Message):
    """Order a shard to copy itself to the standby at this address, and then to stream to it.

    Also for a complete standby: the other is to follow it when it is promoted.  `copy` numbers the
    standby: `Backed` says that it is complete, `Unbacked` that it is unreachable.  With `sync`
    pushes are acknowledged once it has them; `paced` copying gives way to requests.  A second order
    for the same copy changes the pace alone.  With `resume` the one at this address was the primary
    until it yielded: nothing is copied.
    """

    shard: Shard
    copy: Natural
    host: HostName
    port: Port
    sync: Bool
    paced: Bool
    resume: Bool = False


@message(by="server")
@dataclass(frozen=True, slots=True)
class Backed(Message):
    """The standby of a primary, or of a standby, is complete."""

    shard: Shard
    copy: Natural


@message(by="server")
@dataclass(frozen=True, slots=True)
class Unbacked(Message):
    """A primary cannot reach its standby; what that lacks is not acknowledged until `Alone`."""

    shard: Shard
    copy: Natural
    text: Text


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Alone(Message):
    """A shard has no standby: the previous one will never be promoted."""

    shard: Shard


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Promote(Message):
    """Make a standby, or a shard that has yielded, the primary.

    Answered once its own standby, if it has one, is complete.
    """

    shard: Shard
    epoch: Id32


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Yield(Message):
    """Order a primary to hand over to its standby and to stop serving; `Yielded` is the result.

    To `stay` it becomes a standby, and waits for a stream that resumes.
    """

    shard: Shard
    limit_s: Seconds
    stay: Bool = False


@message(by="server")
@dataclass(frozen=True, slots=True)
class Yielded(Message):
    """A primary has yielded, or continues to serve, for the reason in `text`."""

    shard: Shard
    text: Text = ""


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class DropShard(Message):
    """Order a server to forget a shard, if it has it."""

    shard: Shard


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class KeepShards(Message):
    """Order a server to forget all shards but these: orders of an earlier master are void."""

    shards: Shards


@message(by="anyone", answers="Ok")
@dataclass(frozen=True, slots=True)
class Drain(Message):
    """Ask that a server leaves and its shards move; answered when it has, or with the reason."""

    server: Id32
