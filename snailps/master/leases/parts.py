"""What the core asks of parts that only the schedule of an option has (`registry.OPTIONS`).

    Schedule.rounds    -> RoundPart      filled by round_entries.Rounds
    Schedule.chunks    -> ChunkPart      ...       chunks.Chunks, of a rotation
    Schedule.checkouts -> CheckoutPart   ...       checkouts.Checkouts, of a rotation

The core must run without an option, so these protocols are all that it may ask of the part.  To
ask more, add the method here first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from snailps.api.rotation import Rotation
from snailps.master.leases.entries import Entry
from snailps.master.leases.waits import Wait

NO_PART, NO_MORE = -1, -2
"""Stand in for an output partition: the lease has had all of them, or gets no more."""


class RoundPart(Protocol):
    """Clocks that the master closes, of workers that it draws."""

    round: int
    """The present one, from 0: those before are in the rows."""

    @property
    def width(self) -> int:
        """Workers as models count them."""

    def of(self, node: int) -> int | None:
        """The present round, if a worker takes part; else None."""

    def is_void(self, number: int) -> bool:
        """Whether an entry came too late to count."""

    def stage(self) -> str:
        """Progress in words."""

    def figures(self) -> dict[str, Any]: ...


class EntryKinds(Protocol):
    """What a number of an entry means in a rotation."""

    def encodes(self, number: int) -> bool:
        """Whether it is a block that is encoded."""


class ChunkPart(Protocol):
    """Pieces of the input that are encoded, then trained by partitions."""

    rotation: Rotation

    @property
    def numbers(self) -> EntryKinds: ...

    @property
    def bad_lines(self) -> int:
        """Bad lines in blocks that a checkpoint does not include."""

    def plan(self) -> dict[str, Any]:
        """How the input is cut, beside its blocks."""

    def figures(self) -> dict[str, Any]: ...

    def decided(self) -> Iterable[tuple[int, int, tuple[int, ...]]]:
        """Cuts that the journal does not have yet: chunk, parts, sizes."""

    def decide(self, chunk: int, parts: int, sizes: Sequence[int]) -> bool:
        """Cut a chunk as the journal says; False if it is not open, or cut already."""

    def learn(self, reported: Iterable[Mapping[str, Any]]) -> None:
        """Cut chunks as a worker that came back reports, where the journal has lost that."""

    def is_undecided(self, number: int) -> bool:
        """Whether an entry is a partition of a chunk whose cut is not known."""

    def adopt_durable(self, number: int, parts: Collection[int]) -> bool:
        """Adopt what was durable under an earlier master; False if the partition is done."""

    def encode_again(self, number: int, index: int, node: int) -> Entry | None:
        """Lease a block once more, whose encoded rows servers have lost."""


class CheckoutPart(Protocol):
    """Who has which output partition."""

    def check_out(self, number: int, node: int) -> int | None:
        """Check out the next one, `NO_PART` or `NO_MORE`; None: other leases hold them."""

    def check_in(
        self, number: int, node: int, part: int, units: int = 0, seconds: float = 0.0
    ) -> bool:
        """Take one back; False if the worker does not hold it for this lease."""

    def make_durable(self, number: int, node: int) -> list[int]:
        """Make all that a lease has checked in durable; returns what was not yet."""

    def adopt(self, node: int, reported: Iterable[Mapping[str, Any]]) -> None:
        """Adopt what a worker that came back reports of the partitions that it holds."""

    def cut(self, number: int, node: int) -> bool:
        """A worker ends a lease before it had all; False: it has no such lease."""

    def wait_of(self, number: int, node: int) -> Wait | None:
        """The worker that holds what a lease wants; None if the lease holds one."""
