"""Orders of the master about servers' rows: tables, clocks, fences, checkpoints.

    master -> server   MakeTables>Ok  DropTables>Ok  Expire>Report  SetClock>Report
                       CloseClock>Report  Fence>Report  Save>Ok  StopSaving>Ok  Load>Ok
    server -> master   Saved  Loaded

It knows no worker's job.
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
_DONE = Struct({"done": ListOf(U16, SHARDS_MAX)}, {"expired": U63, "shards": Plain()}, open=True)


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class MakeTables(Message):
    """Table declarations with their numbers, for servers."""

    tables: NumberedTables


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class DropTables(Message):
    """Order servers to drop these tables with their rows: those of a session's earlier job."""

    numbers: Annotated[list[Any], ListOf(U32, TABLES_MAX)]


@message(by="master", answers="Report", report=_DONE)
@dataclass(frozen=True, slots=True)
class Expire(Message):
    """Shards note that it is `tick` now, and delete rows that no push touched since `before`.

    Of tables that track touches; the Report has their number as ``expired``.  Like all orders that
    change rows it names `shards`, which the server must serve; the Report has those under ``done``.
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
    """Shards begin at `clock` and forget what is staged: a job begins.

    `early`: a clock ends with `CloseClock` alone, maybe without some of its slots; otherwise with
    the last seal.
    """

    clock: Clock
    early: Bool = False
    shards: Shards = field(default_factory=list)


@message(by="master", answers="Report", report=_DONE)
@dataclass(frozen=True, slots=True)
class CloseClock(Message):
    """Exactly these slots of `clock` count: shards apply them now and drop the others.

    They must be sealed at every shard: each sealer has the answers of all.  The Report
    has under ``shards`` what each had: its ``clock`` (higher: applied already, and left alone),
    ``slots`` and the list ``sealed``.
    """

    clock: Clock
    slots: Slots
    shards: Shards = field(default_factory=list)


@message(by="master", answers="Report", report=_DONE)
@dataclass(frozen=True, slots=True)
class Fence(Message):
    """Shards refuse whatever comes from this incarnation: its work is given to others.

    They refuse all incarnations `below`, too: of these none is left.
    From `clock` 0 on: except for that slot, which it has pushed whole.  Each shard seals it in its
    place, for it may have sealed it at some of them.
    """

    incarnation: Id64
    clock: ClockOrNone = -1
    slot: Id32 = 0
    slots: Id32 = 1
    shards: Shards = field(default_factory=list)
    below: Id64 = 0


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Save(Message):
    """A server writes its fragments into the folder of a checkpoint; `Saved` says how it went.

    With a `clock` of at least 0 as they are when that clock begins: the master withholds one of its
    slots until then.
    """

    number: Natural
    folder: Location
    clock: ClockOrNone = -1


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class StopSaving(Message):
    """Order a server to drop its checkpoint or loading in progress, if any."""


@message(by="server")
@dataclass(frozen=True, slots=True)
class Saved(Message):
    """A server has written its fragments: its files (FileEntry.to_dict), or why it could not."""

    number: Natural
    files: Annotated[list[Any], ListOf(MapOf(SCALAR, 16), SHARDS_MAX)]
    text: Text = ""


@message(by="master", answers="Ok")
@dataclass(frozen=True, slots=True)
class Load(Message):
    """A server takes the rows of its fragments from a checkpoint; `Loaded` says how it went.

    `tables` are pairs of a table's number in the checkpoint and here.
    """

    number: Natural
    folder: Location
    tables: Annotated[list[Any], ListOf(Row(U32, U32), TABLES_MAX)]


@message(by="server")
@dataclass(frozen=True, slots=True)
class Loaded(Message):
    """A server has its rows, so many, or why it has not."""

    number: Natural
    rows: Natural
    text: Text = ""
