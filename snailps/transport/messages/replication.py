"""Messages about the placement of shards: standbys, changes of place, servers that leave.

    master -> server   HostStandby>Report  BackUp>Ok  Alone>Ok  Promote>Ok  Yield>Ok  DropShard>Ok
                       KeepShards>Ok
    server -> master   Backed  Unbacked  Yielded
    driver -> master   Drain>Ok

It knows nothing of what rows hold.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """A server makes a standby of a shard, with these tables; the Report has its ``endpoint``."""

    shard: Shard
    tables: NumberedTables


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class BackUp(Message):
    """A primary copies itself to the standby at this address, and lets it follow from then on.

    So does a standby that has everything: that one is to follow it when it is promoted.

    `copy` numbers the standby; `Backed` says that it has all, `Unbacked` that it is out of reach.
    With `sync` pushes are acknowledged once it has them; `paced` copying gives way to requests.  A
    second order for the same copy changes the pace alone.  With `resume` the one at this address
    was the primary until it yielded: it has everything, and nothing is copied.
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
    """A primary's standby has all of it; or that of a standby, which its server tells."""

    shard: Shard
    copy: Natural


@message(by="server")
@dataclass(frozen=True, slots=True)
class Unbacked(Message):
    """A primary cannot reach its standby; what this one lacks is not acknowledged until `Alone`."""

    shard: Shard
    copy: Natural
    text: Text


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Alone(Message):
    """A primary, or a standby, has no standby: the one it had will never be promoted."""

    shard: Shard


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Promote(Message):
    """A standby is the primary from now on; or one that has yielded is again.

    Answered once its own standby, if it has one, has everything.
    """

    shard: Shard
    epoch: Id32


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Yield(Message):
    """A primary hands over to its standby and serves no more; `Yielded` says how it went.

    To `stay` it stands by from then on, and waits for a stream that resumes.
    """

    shard: Shard
    limit_s: Seconds
    stay: Bool = False


@message(by="server")
@dataclass(frozen=True, slots=True)
class Yielded(Message):
    """A primary has yielded, or serves on, for the reason in `text`."""

    shard: Shard
    text: Text = ""


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class DropShard(Message):
    """A server forgets a shard that it has, if it has it."""

    shard: Shard


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class KeepShards(Message):
    """A server forgets all shards that it has but these: what an earlier master wanted is over."""

    shards: Shards


@message(by="anyone", answers="Ok")
@dataclass(frozen=True, slots=True)
class Drain(Message):
    """A server is to leave, and its shards to move; answered when it has, or with the reason."""

    server: Id32
