"""What is said of a job: its settings, its tables' names, blocks and what became of them.

    driver -> master   Submit>Ok  Shutdown>Ok
    master -> worker   Start  CameBack  Slowest  Workers
    worker -> master   Declare>Declared  Lease>Leased  Fetch>Content  Summarise>Summary|Again
                       Done>Ok|Enough  Settled  Finished

It knows no shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from snailps.transport.messages.body import Message, message


@message
@dataclass(frozen=True, slots=True)
class Submit(Message):
    """A driver gives a waiting cluster its job, in settings that are strings."""

    settings: dict[str, Any]


@message
@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """A driver ends the cluster."""


@message
@dataclass(frozen=True, slots=True)
class Start(Message):
    """Every node has the route: here is the job, in settings that are strings."""

    number: int
    worker_class: str
    settings: dict[str, Any]
    workers: int
    survey: bool


@message
@dataclass(frozen=True, slots=True)
class Declare(Message):
    """A worker or driver names the tables that it wants; equal names must be declared equally."""

    tables: list[Any]


@message
@dataclass(frozen=True, slots=True)
class Declared(Message):
    """Numbers of the declared tables, in the order asked."""

    numbers: list[Any]


@message
@dataclass(frozen=True, slots=True)
class Lease(Message):
    """A worker wants its next block of a pass ("survey", "train"); parks while others may fail.

    With `back` only one that has come back, and the answer comes at once: -1 where there is none.
    """

    pass_: str
    back: bool = False


@message
@dataclass(frozen=True, slots=True)
class Leased(Message):
    """A block, or with `number` -1 the end of the pass.

    `progress` is the share of all training that comes before this block and after it, 0 to 1;
    `clock`, `slot`, `slots` and `index` are those of `roles.block.Block`.
    """

    number: int
    path: str = ""
    start: int = 0
    stop: int = 0
    epoch: int = 0
    seed: int = 0
    progress: list[Any] = field(default_factory=list)
    clock: int = -1
    slot: int = 0
    slots: int = 1
    index: int = -1


@message
@dataclass(frozen=True, slots=True)
class CameBack(Message):
    """A block of an early clock is free again: whoever waits for that clock should lease it."""


@message
@dataclass(frozen=True, slots=True)
class Slowest(Message):
    """The slowest worker, and its clock: how many of its blocks it has finished."""

    clock: int
    node: int


@message
@dataclass(frozen=True, slots=True)
class Workers(Message):
    """One has come or gone in the middle of a job: so many workers are at it now."""

    workers: int


@message
@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """A worker cannot open the path of its block and wants the bytes."""

    number: int
    pass_: str
    unit: str


@message
@dataclass(frozen=True, slots=True)
class Done(Message):
    """A block is finished: what it held, how it went, and a survey's part."""

    pass_: str
    number: int
    units: int
    seconds: float
    metrics: dict[str, float]
    blob: bytes = b""


@message
@dataclass(frozen=True, slots=True)
class Settled(Message):
    """Blocks of the training that are finished and all of whose pushes are acknowledged by now."""

    numbers: list[Any]


@message
@dataclass(frozen=True, slots=True)
class Summarise(Message):
    """A worker waits for the merged survey."""


@message
@dataclass(frozen=True, slots=True)
class Summary(Message):
    """The merged survey (a vocabulary, say)."""

    blob: bytes


@message
@dataclass(frozen=True, slots=True)
class Again(Message):
    """Answer to Summarise in the place of Summary: the survey was lost, take part in it again."""


@message
@dataclass(frozen=True, slots=True)
class Enough(Message):
    """Answer to Done in the place of Ok: the training is to end, train on no further block."""


@message
@dataclass(frozen=True, slots=True)
class Finished(Message):
    """A worker has no block left and every push acknowledged."""

    figures: dict[str, float]
