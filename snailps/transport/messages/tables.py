"""Orders of the master about servers' rows: tables, clocks, fences, checkpoints.

    master -> server   MakeTables>Ok  DropTables>Ok  Expire>Report  SetClock>Report
                       CloseClock>Report  Fence>Report  Save>Ok  StopSaving>Ok  Load>Ok
    server -> master   Saved  Loaded

Must not know what workers do.
"""

from __future__ import annotations

from typing import Annotated, Any

from snailps.dataclass import dataclass, field
from snailps.transport.frame import SLOTS_MAX
from snailps.transport.messages.codec import Message, message
from snailps.transport.messages.validation import (
    SCALAR,
    SHARDS_MAX,
    TABLES_MAX,
    U16,
    U32,
    U63,
    U64,
    Bool,
    Clock,
    ClockOrNone,
    Id32,
    Id64,
    ListOf,
    Location,
    MapOf,
    Misfit,
    Natural,
    NumberedTables,
    Plain,
    Row,
    Shards,
    Struct,
    Text,
    Whole,
)

Slots = Annotated[list[Any], ListOf(Whole(0, SLOTS_MAX - 1), SLOTS_MAX)]
SPANS_MAX = 1 << 16
_DONE = Struct({"done": ListOf(U16, SHARDS_MAX)}, {"expired": U63, "shards": Plain()}, open=True)


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class MakeTables(Message):
    """Order servers to make tables with these numbers and declarations."""

    tables: NumberedTables


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class DropTables(Message):
    """Order servers to drop tables with their rows, of an earlier job of a session."""

    numbers: Annotated[list[Any], ListOf(U32, TABLES_MAX)]


@message(by="master", answers="Report", report=_DONE)
@dataclass(frozen=True, slots=True)
class Expire(Message):
    """Order shards to set their tick, and to delete rows that no push touched since `before`.

    It concerns tables that track touches; the Report has the number of deleted rows as ``expired``.
    Like all orders that change rows it names `shards`; the Report lists under ``done`` the ones
    that have executed it, with their standbys.
    """

    tick: Id32
    before: Id32
    shards: Shards = field(default_factory=list)

    def check(self) -> None:
        if self.before > self.tick:
            raise Misfit(f"before is {self.before}, at most the tick {self.tick} expected", 0)


@message(by="master", answers="Report", report=_DONE)
@dataclass(frozen=True, slots=True)
class SetClock(Message):
    """Order shards to begin at `clock` and to forget contributions: a job begins.

    `early`: only `CloseClock` ends a clock, maybe without some of its slots; otherwise the last
    seal does.
    """

    clock: Clock
    early: Bool = False
    shards: Shards = field(default_factory=list)


@message(by="master", answers="Report", report=_DONE)
@dataclass(frozen=True, slots=True)
class CloseClock(Message):
    """Order shards to apply exactly these slots of `clock`, and to drop the others.

    The slots must be sealed at every shard: a worker reports a slot when all shards have answered
    its seals.  The Report has under ``shards`` the state of each before: its ``clock`` (if higher,
    the clock was applied already, and nothing changed), ``slots`` and the list ``sealed``.
    """

    clock: Clock
    slots: Slots
    shards: Shards = field(default_factory=list)


@message(by="master", answers="Report", report=_DONE)
@dataclass(frozen=True, slots=True)
class Fence(Message):
    """Order shards to refuse all frames of this incarnation: others get its work.

    They refuse all from the first to the last of each span of `gone`, too, which have all ended.
    With a `clock` of 0 or more the incarnation had pushed this slot completely, and sealed it at
    some shards perhaps: each shard seals it in its name, so that all shards agree.
    """

    incarnation: Id64
    clock: ClockOrNone = -1
    slot: Id32 = 0
    slots: Id32 = 1
    shards: Shards = field(default_factory=list)
    gone: Annotated[list[Any], ListOf(Row(U64, U64), SPANS_MAX)] = field(default_factory=list)


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Save(Message):
    """Order a server to write its fragments to the folder of a checkpoint; `Saved` follows.

    With a `clock` of 0 or more the rows are copied at that clock: the master withholds one of its
    slots until all are.
    """

    number: Natural
    folder: Location
    clock: ClockOrNone = -1


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class StopSaving(Message):
    """Order a server to cancel its checkpoint or loading in progress, if any."""


@message(by="server")
@dataclass(frozen=True, slots=True)
class Saved(Message):
    """A server has written its fragments to these files (FileEntry.to_dict), or says why not."""

    number: Natural
    files: Annotated[list[Any], ListOf(MapOf(SCALAR, 16), SHARDS_MAX)]
    text: Text = ""


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Load(Message):
    """Order a server to take the rows of its fragments from a checkpoint; `Loaded` follows.

    `tables`: pairs of a table's number in the checkpoint and here.
    """

    number: Natural
    folder: Location
    tables: Annotated[list[Any], ListOf(Row(U32, U32), TABLES_MAX)]


@message(by="server")
@dataclass(frozen=True, slots=True)
class Loaded(Message):
    """A server has loaded this number of rows, or says why not."""

    number: Natural
    rows: Natural
    text: Text = ""
