"""Messages of a job: its settings, its tables' names, blocks and their results.

    driver -> master   Submit>Submitted  Cancel>Ok  AskJob>Report  Summarise>Summary  Shutdown>Ok
                       SaveRows>Report  LoadRows>Report
    worker, master -> driver   ReadFile>Content
    master -> worker   Start  CameBack  Slowest  Workers
    worker -> master   Declare>Declared  Lease>Leased  Fetch>Content  Summarise>Summary|Again
                       CheckOut>CheckedOut  CheckIn  Done>Ok|Enough  Durable  Finished

Must not know shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from snailps.dataclass import dataclass, field
from snailps.pieces import FILES_MAX, JoinedFile, Layout, Piece
from snailps.transport.messages.codec import Message, message
from snailps.transport.messages.inline import Inline
from snailps.transport.messages.terms import TERMS, Terms
from snailps.transport.messages.validation import (
    CLOCK_OR_NONE,
    FLAG,
    NUMBERED_TABLES,
    TABLES_MAX,
    TEXTS,
    TRACE_CHARS_MAX,
    U32,
    U63,
    Blob,
    Bool,
    Clock,
    Count,
    Figures,
    Flag,
    Id32,
    Id64,
    Label,
    ListOf,
    Location,
    Maybe,
    Metrics,
    Misfit,
    Natural,
    Number,
    Part,
    PartOrNone,
    Path,
    Plain,
    Row,
    Seconds,
    Struct,
    Table,
    Text,
    Texts,
    TupleOf,
    Words,
)

_JOB = Struct(
    {
        "settings": TEXTS,
        "figures": Plain(),
        "failure": Words(),
        "trace": Words(TRACE_CHARS_MAX),
        "tables": Maybe(NUMBERED_TABLES),
    },
    {"again": Flag(), "is_wrong": Flag()},
)
"""A finished job: how it ran, why and where it failed; tables null if they are gone.
`again`: it failed with its master, and the same job may be submitted once more; `is_wrong`: for its
input or a setting."""
_ROWS = Struct({"path": Words(), "rows": U63})
"""A checkpoint that was written or read: its folder, rows of all tables."""


@message(by="driver", answers="Submitted")
@dataclass(frozen=True, slots=True)
class Submit(Message):
    """Submit a job to a waiting cluster; its settings are strings.

    `files`: paths in the settings that name files of the driver itself.  The blob is the source of
    a class that no other process can import (`api.class_source`); the `key` proves that it comes
    from the process that started the master.
    """

    settings: Texts
    files: Annotated[list[Any], ListOf(Path(), FILES_MAX)] = field(default_factory=list)
    key: Text = ""
    blob: Blob = b""


@message(by="master")
@dataclass(frozen=True, slots=True)
class Submitted(Message):
    """Answer to Submit: the input is open and the job begins; `job`: its number in the session."""

    job: Id32


@message(by="driver", answers="Report", report=_JOB)
@dataclass(frozen=True, slots=True)
class AskJob(Message):
    """Ask for the results of a job of the session; the master keeps the last 16."""

    job: Id32


@message(by="worker master", answers="Content")
@dataclass(frozen=True, slots=True)
class ReadFile(Message):
    """Ask for bytes `start` to `stop` of a driver's file."""

    file: Label
    start: Natural
    stop: Natural


@message(by="driver", answers="Ok")
@dataclass(frozen=True, slots=True)
class Cancel(Message):
    """Cancel the submitted job; without one nothing happens.

    `early`: end the training now, and keep its result.
    """

    early: Bool = False


@message(by="driver", answers="Report", report=_ROWS)
@dataclass(frozen=True, slots=True)
class SaveRows(Message):
    """Write a checkpoint of all tables of a session to a folder that master and servers share."""

    folder: Location


@message(by="driver", answers="Report", report=_ROWS)
@dataclass(frozen=True, slots=True)
class LoadRows(Message):
    """Replace the rows of a session's tables by the newest good checkpoint of a folder."""

    folder: Location


@message(by="driver", answers="Ok")
@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """End the cluster."""


@message(by="master")
@dataclass(frozen=True, slots=True)
class Start(Message):
    """Begin a job, with its settings as strings: every node has the route.

    The blob is the source of the job's class, if there is no module to import it from.
    """

    number: Id32
    worker_class: Label
    settings: Texts
    workers: Id32
    survey: Bool
    blob: Blob = b""


@message(by="worker driver", answers="Declared")
@dataclass(frozen=True, slots=True)
class Declare(Message):
    """Declare tables; equal names must be declared equally."""

    tables: Annotated[list[Any], ListOf(Table, TABLES_MAX)]


@message(by="master")
@dataclass(frozen=True, slots=True)
class Declared(Message):
    """Numbers of the declared tables, in the order asked."""

    numbers: Annotated[list[Any], ListOf(U32, TABLES_MAX)]


@message(by="worker", answers="Leased")
@dataclass(frozen=True, slots=True)
class Lease(Message):
    """Ask for the next block of a pass ("survey", "train"); waits while blocks of others may come
    back.

    With `back`: only for a block that has come back; answered at once, with -1 if there is none.
    `held`: approximate bytes of the part of the survey that the worker has not sent, which covers
    all blocks leased to it.  `again`: number of the worker's partition lease, and place in the
    chunk of a block that servers have lost: that block, at once, or -1 if another worker has it.
    """

    pass_: Label
    back: Bool = False
    held: Natural = 0
    again: Annotated[list[Any], ListOf(U63, 2)] = field(default_factory=list)

    def check(self) -> None:
        if len(self.again) not in (0, 2):
            raise Misfit("no number or two", len(self.again), ".again")


class _File(Row):
    def check(self, value: Any) -> Any:
        return JoinedFile(*super().check(value))


_PIECE = Inline(Piece, path=Path(), start=U63, stop=U63)
_FILES = TupleOf(_File(Path(), U63, U63, Words()), FILES_MAX)
_LAYOUT = Inline(Layout, version=Words(), spread=U63, files=_FILES, by_file=FLAG)


@message(by="master")
@dataclass(frozen=True, slots=True)
class Leased(Message):
    """A block; with `number` -1 the end of the pass: a worker that holds a part of the survey sends
    it.

    `progress`: the shares of the whole training that are done before and after this block, 0 to 1.
    `first`: it is the first lease of the training.  `flushes`, with `number` -1: an epoch ends that
    is tested: the worker pushes all that it has trained, and asks again.
    """

    number: Annotated[int, CLOCK_OR_NONE]
    piece: Annotated[Piece, _PIECE] = Piece()
    epoch: Natural = 0
    seed: Id64 = 0
    progress: Annotated[tuple[float, ...], TupleOf(Number(0.0, 2.0), 2)] = ()
    terms: Annotated[Terms | None, TERMS] = None
    first: Bool = False
    layout: Annotated[Layout, _LAYOUT] = Layout()
    flushes: Bool = False

    def check(self) -> None:
        if self.number >= 0 and self.flushes:
            raise Misfit("no block beside .flushes", self.number, ".number")
        if self.number >= 0 and len(self.progress) != 2:
            raise Misfit(f".progress: expected two shares, got {len(self.progress)}", 0)


@message(by="worker", answers="CheckedOut")
@dataclass(frozen=True, slots=True)
class CheckOut(Message):
    """Ask for an output partition for a lease; waits while others hold all that the lease lacks."""

    number: Natural


@message(by="master")
@dataclass(frozen=True, slots=True)
class CheckedOut(Message):
    """An output partition; `part` -1: the lease has had all, or with `ends` the training ends."""

    part: PartOrNone
    ends: Bool = False


@message(by="worker")
@dataclass(frozen=True, slots=True)
class CheckIn(Message):
    """Return an output partition, trained, its pushes acknowledged; the figures are of this
    checkout.

    `durable`: the pushes of the input rows are acknowledged, too, for all checkouts so far.
    """

    number: Natural
    part: Part
    units: Count
    seconds: Seconds
    metrics: Metrics
    durable: Bool = False


@message(by="master")
@dataclass(frozen=True, slots=True)
class CameBack(Message):
    """A block of an earlier clock is free again: a worker that waits for a clock should lease
    it."""


@message(by="master")
@dataclass(frozen=True, slots=True)
class Slowest(Message):
    """The slowest worker, and its clock: the number of its finished blocks."""

    clock: Clock
    node: Id32


@message(by="master")
@dataclass(frozen=True, slots=True)
class Workers(Message):
    """The present number of workers: one joined or left in the middle of a job."""

    workers: Id32


@message(by="worker", answers="Content")
@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """Ask for the bytes of a block whose path the worker cannot open; of several files, for a
    text's."""

    number: Natural
    pass_: Label
    unit: Label
    text: Natural = 0


@message(by="worker", answers="Ok Enough")
@dataclass(frozen=True, slots=True)
class Done(Message):
    """A block is finished: its units, time, metrics, and in a survey its part.

    `numbers`: the other blocks that the part covers.  Not `whole`: a lease that lacked output
    partitions when the training ended.
    """

    pass_: Label
    number: Natural
    units: Count
    seconds: Seconds
    metrics: Metrics
    blob: Blob = b""
    numbers: Annotated[list[Any], ListOf(U63)] = field(default_factory=list)
    whole: Bool = True

    def result(self) -> dict[str, Any]:
        """Result of a block of the training, as in the journal and `Rejoin.state`."""
        result = {name: getattr(self, name) for name in _RESULT}
        return result if self.whole else {**result, "whole": False}

    @classmethod
    def of_result(cls, result: Mapping[str, Any]) -> Done:
        fields = {name: result[name] for name in _RESULT}
        return cls("train", **fields, whole=result.get("whole", True))


_RESULT = ("number", "units", "seconds", "metrics")


@message(by="worker")
@dataclass(frozen=True, slots=True)
class Durable(Message):
    """Finished blocks of the training whose pushes are all acknowledged."""

    numbers: Annotated[list[Any], ListOf(U63)]


@message(by="worker driver", answers="Summary Again")
@dataclass(frozen=True, slots=True)
class Summarise(Message):
    """Ask for the merged survey: a worker waits for it; a driver names the `job`, and gets nothing
    while the survey is under way."""

    job: Id32 = 0


@message(by="master")
@dataclass(frozen=True, slots=True)
class Summary(Message):
    """The merged survey (a vocabulary, say)."""

    blob: Blob


@message(by="master")
@dataclass(frozen=True, slots=True)
class Again(Message):
    """Answer to Summarise instead of Summary: the survey was lost; take part in it once more."""


@message(by="master")
@dataclass(frozen=True, slots=True)
class Enough(Message):
    """Answer to Done instead of Ok: the training ends; train no other block."""


@message(by="worker")
@dataclass(frozen=True, slots=True)
class Finished(Message):
    """A worker has no block left and every push acknowledged."""

    figures: Figures
