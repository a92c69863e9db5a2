"""Decides which worker trains which block: a schedule of one pass over the input.

    take(worker) -> entry -> done(number, worker, result) -> records.make_durable(numbers, worker)
    release(worker): its leased entries are given to others

A schedule is a policy over the records of all entries (`records.py`): which entry is next, and
which worker waits. What only some schedules have, such as clocks or checkouts, is a part of its
own: an object or None. No files, sockets or time.

A master that takes over makes the schedule anew from records and `snapshot`, then replays the facts
since by the same calls. So nothing here may depend on time, chance or the sequence of a set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.api.range_passes import RangePasses
from snailps.master.leases.entries import Entries, Entry, Plan
from snailps.master.leases.pace import Pace
from snailps.master.leases.parts import CheckoutPart, ChunkPart, RoundPart
from snailps.master.leases.queue import BlockQueue
from snailps.master.leases.records import NO_RESULT, OUTCOME, BlockRecords, BlockResult
from snailps.master.leases.seats import Seats
from snailps.master.leases.slots import SlotClocks
from snailps.master.leases.survey_parts import SurveyParts
from snailps.master.leases.waits import Wait

LOSSES_MAX = 3
"""Workers lost at one block before the block is held responsible."""
NO_RECORDS: NDArray[Any] = np.zeros(0, OUTCOME)


class Schedule(ABC):
    """What every schedule answers; the rest is in its parts.

    A policy has a plan of its entries. It decides who gets the next one and who asks again
    (`_next_of`, `woken`), what happens to leases (`claim`, `release`), and how far the pass is
    (`over`, `epoch`, `size`, `progress`). It takes the parts that it needs, and extends the other
    methods of this class where it has more to do.
    """

    plan: Plan
    """What there is to train."""
    queue: BlockQueue | None = None
    """Entries that any worker may get; None: each has its worker, or its clock."""
    pace: Pace | None = None
    """Clocks of workers, which count entries of their own."""
    slots: SlotClocks | None = None
    """Clocks that shards apply, of slots."""
    rounds: RoundPart | None = None
    """Clocks that the master closes, of workers that it draws."""
    chunks: ChunkPart | None = None
    """Pieces of the input that are encoded, then trained by partitions, in a rotation."""
    checkouts: CheckoutPart | None = None
    """Output partitions of a rotation."""
    survey: SurveyParts | None = None
    """Parts of a survey, in its pass."""
    ranges: RangePasses | None = None
    """Passes over ranges of names, each of which waits for the one before."""
    seats: Seats | None = None
    """Workers that train at the same time; None: all."""
    is_flushed = False
    """A worker reports an entry once its pushes are acknowledged."""
    part = 1.0
    """Share of the job's epochs that the plan has: below 1 with `max_steps`."""
    held: int | None = None
    """Epochs after which nothing is leased, as the model is tested there; None: leases go on."""

    def __init__(self, records: BlockRecords, nodes: Iterable[int] = ()) -> None:
        self.records = records
        # A dict and no set: a master that replays the same facts has to choose the same workers.
        self.workers = dict.fromkeys(nodes)
        """Workers that take part, in the order in which they came."""
        self.closed = False
        self._refused: dict[int, None] = {}  # workers that got nothing, in the order they asked
        self._lost: dict[int, int] = {}  # workers lost while they trained an entry, by entry

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch, or round, that the pass is in, from 0."""

    # --- leases ----------------------------------------------------------------------------------

    def take(self, node: int) -> Entry | None:
        """Lease the next entry to a worker; None: it has to wait, until `woken` names it."""
        if self.seats is not None and not self.seats.take(node):
            return None
        entry = self._next_of(node)
        if entry is None:
            self._refused.setdefault(node)
        else:
            self._refused.pop(node, None)
        return entry

    @abstractmethod
    def _next_of(self, node: int) -> Entry | None:
        """Lease the next entry of a worker, if there is one."""

    @abstractmethod
    def woken(self, waiting: Container[int]) -> list[int]:
        """Waiting workers that may get an entry now; each asks again, in this sequence.

        The cost may grow with the entries to give, but not with the waiting workers, of which there
        may be a thousand. A name too many costs one look; a name too few would leave a worker idle
        until the next change.
        """

    def _still(self, waiting: Container[int]) -> Iterable[int]:
        """Workers that were refused and still wait; the others are forgotten."""
        gone = []
        try:
            for node in self._refused:
                if node in waiting:
                    yield node
                else:
                    gone.append(node)
        finally:
            for node in gone:
                del self._refused[node]

    def wait_of(self, node: int) -> Wait:
        """The workers that a worker without an entry waits for: those with a seat that it lacks, or
        with entries that may come back."""
        if self.seats is not None and self.seats.waits(node):
            text = f"leave: no more than {self.seats.count} may train at a time"
            return Wait.for_some(self.seats.taken, text)
        others = (n for n in self.records.holders() if n != node)
        return Wait.for_some(others, "finish")

    @abstractmethod
    def claim(self, number: int, node: int) -> bool:
        """Lease this entry to a worker that reports to hold it, after a takeover; False: the entry
        is done, or another worker has it."""

    def done(self, number: int, node: int, result: BlockResult = NO_RESULT) -> bool:
        """Record the result of an entry; False if the entry is not leased to this worker."""
        if self.records.holder(number) != node:
            return False
        self._finish(number, result)
        return True

    def _finish(self, number: int, result: BlockResult) -> None:
        node = self.records.finish(number, result)
        if self.is_flushed:
            self.records.make_durable([number], node)

    @abstractmethod
    def release(self, node: int) -> list[int]:
        """Return a worker's leases, to be leased first; their numbers."""

    def _release_all(self, node: int) -> list[int]:
        numbers = self.records.held_by(node)
        for number in numbers:
            self._release(number)
        return numbers

    def _release(self, number: int) -> None:
        """Return an entry that is leased and not done."""
        self.records.release(number)

    # --- workers ---------------------------------------------------------------------------------

    def join(self, node: int) -> None:
        """A worker takes part from now on."""
        self.workers.setdefault(node)

    def leave(self, node: int) -> None:
        """A worker finishes what it has leased, and gets nothing more."""
        self.workers.pop(node, None)

    def retire(self, node: int) -> list[int]:
        """A worker no longer takes part, and its leases wait again; returns their numbers."""
        self.leave(node)
        return self.release(node)

    def blame(self, node: int) -> int:
        """Count a loss at what a lost worker was at; the entry that has cost too many, else -1."""
        suspects = self._suspects(node)
        guilty = [number for number, most in suspects if self.count_loss(number) >= most]
        return guilty[0] if guilty else -1

    def _suspects(self, node: int) -> list[tuple[int, int]]:
        """Entries that may have killed a lost worker, each with the losses that it may cause: the
        one that it was training. What it had prefetched is innocent."""
        return [(number, LOSSES_MAX) for number in self.records.begun_by(node)[:1]]

    def count_loss(self, number: int) -> int:
        """Count a loss at an entry; how many by now."""
        self._lost[number] = self._lost.get(number, 0) + 1
        return self._lost[number]

    @property
    def losses(self) -> dict[int, int]:
        """Workers lost, by entry."""
        return dict(self._lost)

    # --- tests after epochs ----------------------------------------------------------------------

    def hold(self, epochs: int) -> None:
        """Lease nothing after the first `epochs` epochs, until the next call."""
        self.held = epochs

    @property
    def at_hold(self) -> bool:
        """Whether all that `hold` lets through is done: everything, where epochs have no order."""
        return self.held is not None and self.over

    def pushing(self) -> set[int]:
        """Workers with entries that are done, and whose pushes the servers may lack."""
        return self.records.workers_of(self.records.undurable())

    # --- the end ---------------------------------------------------------------------------------

    def close(self, size: int | None = None) -> None:
        """Lease nothing more; what is leased may still be finished. With slots, end with a whole
        clock: the one of the last entry leased, or of `size` entries, as an earlier master did."""
        self.closed = True

    def abandon(self, node: int) -> None:
        """Stop waiting for a worker's leases, as the training ends."""
        self.release(node)

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether nothing is left to lease, and nothing leased: the pass has ended."""

    @property
    def drops(self) -> bool:
        """Whether leases that are not begun need not be trained any more. Entries of a clock must:
        without one of them the whole clock is lost."""
        return self.closed and self.slots is None

    def unpushed(self) -> list[int]:
        """Entries that are done, and some of whose pushes the servers may lack."""
        return self.records.undurable()

    def withdraw(self) -> dict[int, BlockResult]:
        """Take back what is done and perhaps not in the rows, once the training has ended early and
        the workers are gone; returns the results that no longer count."""
        return {number: self.records.withdraw(number) for number in self.unpushed()}

    # --- parts that several schedules have -------------------------------------------------------

    @property
    def clocks(self) -> SlotClocks | RoundPart | None:
        """Clocks of the shards: each shard is at one of them, and keeps pushes to later ones
        apart."""
        return self.slots if self.rounds is None else self.rounds

    @property
    def limits(self) -> SlotClocks | BlockQueue | None:
        """The part that can end a training a fixed number of entries, or clocks, after the one
        whose loss was low enough, so that the result can be reproduced; None: the training ends
        whenever the master looks."""
        return self.queue if self.slots is None else self.slots

    @property
    def needs(self) -> Literal["", "clock", "fence"]:
        """What all shards must have before a lease: their clock, or the fence of each lost worker,
        as an output partition that it had checked out must not have two writers."""
        if self.clocks is not None:
            return "clock"
        return "" if self.checkouts is None else "fence"

    def clock_of(self, node: int) -> int | None:
        """The clock of a worker, for its status."""
        clocks = self.pace if self.clocks is None else self.clocks
        return None if clocks is None else clocks.of(node)

    # --- figures ---------------------------------------------------------------------------------

    @property
    def finished(self) -> int:
        return self.records.finished

    @property
    @abstractmethod
    def size(self) -> int:
        """Entries in all."""

    @property
    @abstractmethod
    def progress(self) -> float:
        """Share of all bytes whose entries are done, 0 to 1."""

    def figures(self) -> dict[str, Any]:
        """Figures of the run."""
        figures: dict[str, Any] = {}
        for part in (self.pace, self.clocks, self.chunks):
            figures |= {} if part is None else part.figures()
        return figures

    # --- state -----------------------------------------------------------------------------------

    def known(self) -> NDArray[Any]:
        """`RECORD` of each entry, for a master that takes over."""
        return self.records.known()

    def durable(self) -> NDArray[Any]:
        """`OUTCOME` of each entry for a checkpoint; zero where it is not durable."""
        return self.records.durable()

    def snapshot(self) -> dict[str, Any]:
        """State beside the records: values for JSON, or arrays. Leases are not in it: the worker
        that holds one reports it to the next master (`claim`)."""
        return {"losses": sorted(self._lost.items())}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from the `snapshot` of another schedule, whose records this one began with."""
        self._lost = {int(number): int(count) for number, count in snapshot["losses"]}


class BlockSchedule(Schedule):
    """A schedule whose entries are the blocks of the input, in each epoch."""

    plan: Entries

    def __init__(
        self,
        entries: Entries,
        known: NDArray[Any] | None = None,  # records of an earlier run, of `durable` or `known`
        nodes: Sequence[int] = (),  # the workers
    ) -> None:
        super().__init__(BlockRecords(entries.count), nodes)
        self.plan, self.part = entries, entries.part
        self._done_bytes = 0
        if known is not None:
            self.records.resume(known)
            self._done_bytes = entries.bytes_of_all(self.records.done())

    @property
    def epoch(self) -> int:
        return self.plan.epoch_of(self.finished)

    def is_held(self, number: int) -> bool:
        """Whether an entry is to wait for a test."""
        return self.held is not None and number >= self.plan.first_of(self.held)

    @property
    def at_hold(self) -> bool:
        if self.held is None or self.records.leased:
            return False
        return self.finished >= min(self.size, self.plan.first_of(self.held))

    @property
    def size(self) -> int:
        return self.plan.count

    def claim(self, number: int, node: int) -> bool:
        if 0 <= number < self.size and self.records.is_waiting(number):
            self._adopt(number, node)
        return self.records.holder(number) == node

    @abstractmethod
    def _adopt(self, number: int, node: int) -> None:
        """Lease this entry, which waits, to this worker."""

    def _finish(self, number: int, result: BlockResult) -> None:
        super()._finish(number, result)
        self._done_bytes += self.plan.bytes_of(number)

    def withdraw(self) -> dict[int, BlockResult]:
        withdrawn = super().withdraw()
        self._done_bytes -= sum(map(self.plan.bytes_of, withdrawn))
        return withdrawn

    @property
    def progress(self) -> float:
        return self._done_bytes / self.plan.total_bytes
