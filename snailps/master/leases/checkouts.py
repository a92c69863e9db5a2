"""Owns which lease of a rotation holds which output partition, and which ones it has had.

    check_out -> held by one lease -> check_in -> durable      the lease ends: what it holds is free

A part of the schedule of a rotation. The invariant: an output partition is held by one lease at a
time, so its rows have one writer. A lease that ends frees what it holds at once. Its lost worker
may still write until shards have fenced it, so `service.py` waits for the fence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from snailps.dataclass import dataclass, field
from snailps.master.leases.chunks import Chunks
from snailps.master.leases.parts import NO_MORE, NO_PART
from snailps.master.leases.waits import MASTER, Wait


@dataclass(slots=True)
class _Lease:
    """Checkouts of a leased partition."""

    had: set[int] = field(default_factory=set)  # all so far, and those durable by earlier leases
    holds: set[int] = field(default_factory=set)  # of these, not checked in yet


class Checkouts:
    """Who has which output partition. Checkout ``sweep * outputs + n`` of a lease is output
    partition n in that sweep."""

    def __init__(
        self,
        chunks: Chunks,
        cut_short: Callable[[int], None],  # tells the schedule that a lease ends before it had all
        trained: Callable[[int, int, float], None],  # ... that a worker trained units, in seconds
    ) -> None:
        self._chunks, self._records = chunks, chunks.records
        self._cut_short, self._trained = cut_short, trained
        self.closed = False
        """Nothing more is checked out: the training ends."""
        self._leases: dict[int, _Lease] = {}
        self._out: dict[int, int] = {}  # output partition -> input partition

    # --- leases of partitions --------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """A partition is leased."""
        self._leases[number] = _Lease(set(self._chunks.durable_of(number)))

    def end(self, number: int) -> None:
        """The lease of a partition has ended: what it holds is free."""
        for part in self._leases.pop(number).holds:
            del self._out[self._output(number, part)]

    def cut(self, number: int, node: int) -> bool:
        """A worker ends a lease before it had all output partitions; False: it has no such
        lease."""
        if self._records.holder(number) != node:
            return False
        self._cut_short(number)
        self._chunks.forget_durable(number)
        return True

    def count(self, number: int) -> int:
        """Checkouts of a partition that are checked in."""
        if self._records.is_done(number):
            return self._chunks.outputs_of(number)
        if (lease := self._leases.get(number)) is not None:
            return len(lease.had) - len(lease.holds)
        return len(self._chunks.durable_of(number))

    def share(self, number: int) -> float:
        """Share of a partition that is trained."""
        return self.count(number) / self._chunks.outputs_of(number)

    # --- checkouts -------------------------------------------------------------------------------

    def check_out(self, number: int, node: int) -> int | None:
        """Check out the next output partition of a lease. None: other leases hold all that it
        lacks. `NO_PART`: it has had all. `NO_MORE`: nothing more is checked out. LookupError: the
        partition is not leased to this worker.

        Leases begin their sweep at different places, so that they seldom want the same one.
        """
        lease = self._lease_of(number, node)
        if len(lease.had) == self._chunks.outputs_of(number):
            return NO_PART
        if self.closed:
            return NO_MORE
        sweep, parts = self._sweep(number), self._parts(number)
        begin = len(sweep) * self._chunks.numbers.part(number) // parts
        for step in range(len(sweep)):
            part = sweep[(begin + step) % len(sweep)]
            if part not in lease.had and part % len(sweep) not in self._out:
                self._hand_out(number, part)
                return part
        return None

    def check_in(
        self, number: int, node: int, part: int, units: int = 0, seconds: float = 0.0
    ) -> bool:
        """Take back an output partition, trained with `units` in `seconds`; False if the worker
        does not hold it for this lease."""
        lease = self._leases.get(number)
        if lease is None or self._records.holder(number) != node or part not in lease.holds:
            return False
        lease.holds.discard(part)
        del self._out[self._output(number, part)]
        self._trained(node, units, seconds)
        return True

    def make_durable(self, number: int, node: int) -> list[int]:
        """Make all that a lease has checked in durable; returns what was not yet. If this worker is
        lost, the next holder of the partition skips what is durable."""
        lease = self._lease_of(number, node)
        return self._chunks.make_durable(number, lease.had - lease.holds)

    def adopt(self, node: int, reported: Iterable[Mapping[str, Any]]) -> None:
        """Adopt what a worker that came back reports of the partitions that it holds."""
        for lease in reported:
            # One that is not leased to the worker is done: the lost master noted it, and died
            # before it answered.
            number = lease["number"]
            if self._chunks.numbers.is_partition(number) and self._records.holder(number) == node:
                self.claim(number, node, lease["had"], lease["holds"])

    def claim(self, number: int, node: int, had: Collection[int], holds: Collection[int]) -> None:
        """Adopt what a lease had and holds, as a worker that came back reports. LookupError if it
        is not leased to the worker, or another lease holds one of these output partitions."""
        lease, outputs = self._lease_of(number, node), self._chunks.outputs_of(number)
        if not (set(holds) <= set(had) <= set(range(outputs))):
            raise LookupError(f"partition {number} has {outputs} checkouts")
        for part in holds:
            if self._out.get(self._output(number, part), number) != number:
                raise LookupError(f"output partition {part} is checked out already")
        lease.had |= set(had)
        for part in holds:
            self._hand_out(number, part)

    def wait_of(self, number: int, node: int) -> Wait | None:
        """The worker that holds what a lease wants to check out; None if the lease holds one, and
        its worker trains."""
        lease = self._leases.get(number)
        if lease is None or self._records.holder(number) != node or lease.holds:
            return None
        sweep = self._sweep(number)
        lacks = (part % len(sweep) for part in sweep if part not in lease.had)
        part = min((part for part in lacks if part in self._out), default=NO_PART)
        if part == NO_PART:
            return Wait((MASTER,), "have a lost worker fenced")
        return Wait((self._records.holder(self._out[part]),), f"check in partition {part}")

    def _lease_of(self, number: int, node: int) -> _Lease:
        lease = self._leases.get(number)
        if lease is None or self._records.holder(number) != node:
            raise LookupError(f"partition {number} is not leased to worker {node}")
        return lease

    def _hand_out(self, number: int, part: int) -> None:
        lease = self._leases[number]
        lease.had.add(part)
        lease.holds.add(part)
        self._out[self._output(number, part)] = number

    def _parts(self, number: int) -> int:
        """Partitions of the chunk of a partition."""
        return self._chunks.at(self._chunks.numbers.chunk_of(number)).parts

    def _output(self, number: int, part: int) -> int:
        """The output partition of a checkout of a partition."""
        return part % self._chunks.rotation.checkouts(self._parts(number))

    def _sweep(self, number: int) -> range:
        """The checkouts of the first sweep that a lease has not completed."""
        outputs = self._chunks.rotation.checkouts(self._parts(number))
        had = self._leases[number].had
        lacks = (part for part in range(self._chunks.outputs_of(number)) if part not in had)
        first = next(lacks, 0) // outputs * outputs
        return range(first, first + outputs)
