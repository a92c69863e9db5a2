"""Messages about the placement of shards: standbys, promotions, hand-overs, servers that leave.

    master -> server   HostStandby>Report  BackUp>Ok  Alone>Ok  Promote>Ok  Yield>Ok  DropShard>Ok
                       KeepShards>Ok
    server -> master   Backed  Unbacked  Yielded
    driver -> master   Drain>Ok

Must not know rows.
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
    """Order a server to make a standby of a shard, with these tables; the Report has its
    ``endpoint``."""

    shard: Shard
    tables: NumberedTables


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class BackUp(Message):
    """Order a shard to copy itself to the standby at this address, and then to stream to it.

    Also to a complete standby, which then has a standby of its own when it is promoted.  `copy`
    numbers the copy: `Backed` reports that it is complete, `Unbacked` that it failed.  With `sync`
    pushes are acknowledged once the standby has them.  With `paced` copying gives way to requests.
    A second order for the same copy changes only the pace.  With `resume` the shard at this address
    was the primary until it yielded: nothing is copied.
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
    """A shard has lost its standby, or cannot reach it.  With `sync` it acknowledges no push until
    `Alone`: the standby may be promoted."""

    shard: Shard
    copy: Natural
    text: Text


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Alone(Message):
    """Order a shard to serve without a standby: the previous one will never be promoted."""

    shard: Shard


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Promote(Message):
    """Order a standby, or a shard that has yielded, to be the primary.

    Answered once its own standby, if it has one, has executed the order, too.
    """

    shard: Shard
    epoch: Id32


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Yield(Message):
    """Order a primary to hand over to its standby and to stop serving; `Yielded` follows.

    With `stay` it becomes a standby, and waits for a stream that resumes.
    """

    shard: Shard
    limit_s: Seconds
    stay: Bool = False


@message(by="server")
@dataclass(frozen=True, slots=True)
class Yielded(Message):
    """A primary has yielded; with a `text` it has not, and continues to serve."""

    shard: Shard
    text: Text = ""


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class DropShard(Message):
    """Order a server to stop a standby, or a shard that has yielded, if it has it."""

    shard: Shard


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class KeepShards(Message):
    """Order a server to stop all standbys and yielded shards but these: a new master knows no
    others."""

    shards: Shards


@message(by="anyone", answers="Ok")
@dataclass(frozen=True, slots=True)
class Drain(Message):
    """Ask for a server's shards to move and the server to leave; answered when that is done, or
    with the reason why not."""

    server: Id32
