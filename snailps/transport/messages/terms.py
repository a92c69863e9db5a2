"""The terms of a lease: what its schedule adds to a block.

    schedule -> Terms, in its entry -> Leased -> Block.terms -> Block.clock, Block.part, ...

None: a worker trains the block whenever it has time.  Master, message and worker hand the value on,
and look into it only where they act on it.  A further schedule adds its class to `Terms`.

These values stand with the messages, and not beside `pieces.py`, because a class declares the range
of each field where it declares the field: a worker checks a lease by it before it acts.  A further
schedule is then one class in one file.
"""

from __future__ import annotations

from typing import Annotated, get_args

from snailps.dataclass import dataclass
from snailps.transport.messages.inline import OneOf
from snailps.transport.messages.validation import (
    CLOCK_OR_NONE,
    PART,
    PART_OR_NONE,
    PARTS_MAX,
    SIZE,
    U32,
    U63,
    Misfit,
    TupleOf,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A contribution to a synchronous step: number `slot` of the `slots` of a clock.

    In a round of federated averaging `index` numbers the drawn worker that makes it; else -1.
    """

    clock: Annotated[int, CLOCK_OR_NONE] = -1
    slot: Annotated[int, U32] = 0
    slots: Annotated[int, U32] = 1
    index: Annotated[int, CLOCK_OR_NONE] = -1


@dataclass(frozen=True, slots=True)
class ChunkBlock:
    """A block to encode in a rotation: number `chunk_index` of the `chunk_blocks` of its chunk."""

    chunk: Annotated[int, CLOCK_OR_NONE] = -1
    chunk_index: Annotated[int, CLOCK_OR_NONE] = -1
    chunk_blocks: Annotated[int, U63] = 0

    def check(self) -> None:
        if self.chunk < 0 or self.chunk_index >= self.chunk_blocks:
            raise Misfit("a block of a chunk", self.chunk_index, ".chunk_index")


@dataclass(frozen=True, slots=True)
class Partition:
    """Input partition `part` of the `parts` of a chunk.

    It is trained with each of `output_parts` output partitions, but for those in `durable`, whose
    checkouts an earlier lease has finished.  `sizes`: relative sizes of the input partitions;
    empty: all equal.  `passes`: of an epoch, each with other partitions.
    """

    chunk: Annotated[int, CLOCK_OR_NONE] = -1
    chunk_blocks: Annotated[int, U63] = 0
    part: Annotated[int, PART_OR_NONE] = -1
    parts: Annotated[int, PART] = 0
    output_parts: Annotated[int, PART] = 0
    durable: Annotated[tuple[int, ...], TupleOf(PART, PARTS_MAX)] = ()
    sizes: Annotated[tuple[int, ...], TupleOf(SIZE, PARTS_MAX)] = ()
    passes: Annotated[int, SIZE] = 1

    def check(self) -> None:
        if self.chunk < 0 or not self.part < self.parts <= self.output_parts:
            raise Misfit("a partition of a chunk", self.part, ".part")
        if len(self.sizes) not in (0, self.parts):
            raise Misfit(f"one for each of {self.parts} partitions", len(self.sizes), ".sizes")


@dataclass(frozen=True, slots=True)
class PassRange:
    """Range `range_index` of the `range_count` of a pass over names. The ranges of pass 0 are the
    `block_count` blocks of the input."""

    pass_index: Annotated[int, CLOCK_OR_NONE] = -1
    range_index: Annotated[int, CLOCK_OR_NONE] = -1
    range_count: Annotated[int, U63] = 0
    block_count: Annotated[int, U63] = 0

    def check(self) -> None:
        if not 0 <= self.range_index < self.range_count:
            raise Misfit("a range of a pass", self.range_index, ".range_index")


Terms = Step | ChunkBlock | Partition | PassRange
TERMS = OneOf(*get_args(Terms))
