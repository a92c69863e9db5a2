"""Which worker trains which block: the ledger of one pass over the input.

    take(worker) -> entry -> done(number, worker, result) -> make_durable(numbers, worker)
    release(worker): its leased entries are given to others

`Ledger` owns the records of all blocks (`records.py`) and gives a block to each worker that asks.
Its subclasses are policies over the same records: which block is next, and which worker waits.  No
files, sockets or time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.api.concurrency import ALL
from snailps.data.orders import order as permutation
from snailps.dataclass import dataclass
from snailps.master.leases.records import NO_RESULT, OUTCOME, BlockRecords, BlockResult
from snailps.master.leases.seats import Seats
from snailps.pieces import Piece
from snailps.transport.messages.terms import Step, Terms

LOSSES_MAX = 3
"""Workers lost at one block before the block is held responsible."""

ENTRIES_AHEAD = 2
"""Entries trained after the one whose loss ends the training: as many as a single worker has leased
when it reports one, so that the result does not depend on when the master looks."""

ANY_WORKER, MASTER = 0, -1
"""Stand for a worker's number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A block in one epoch, under the terms of the schedule; `before` and `after` are the shares of
    all bytes up to it."""

    number: int
    piece: Piece
    epoch: int
    before: float
    after: float
    terms: Terms | None = None


NAMED_MAX = 8
"""Workers that a message names one by one."""


class Wait(NamedTuple):
    """The workers (`ANY_WORKER`, `MASTER`) that a worker waits for, and what they are to do.
    Without workers it waits for its own last block."""

    nodes: tuple[int, ...]
    text: str

    @classmethod
    def for_some(cls, nodes: Iterable[int], text: str) -> Wait:
        """Takes the first few workers only: a thousand may wait for a thousand."""
        return cls(tuple(sorted(islice(nodes, NAMED_MAX + 1))), text)

    def __str__(self) -> str:
        others = {ANY_WORKER: "the next free worker", MASTER: "the master"}
        names = [others.get(node, f"worker {node}") for node in self.nodes[:NAMED_MAX]]
        names += ["..."] * (len(self.nodes) > NAMED_MAX)
        return f"{', '.join(names) or 'its own last block'} to {self.text}"


ORDERS_KEPT = 4
"""Epochs whose order is kept: blocks of few are leased at the same time."""


class EpochOrder:
    """The order of an epoch's blocks, and how many bytes are before each."""

    def __init__(self, blocks: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.blocks = blocks  # int64 (n,): the block at each place
        # int64 (n + 1,): bytes before each place, and all
        self.before = np.concatenate(([0], np.cumsum(sizes[blocks])))


class EntryQueue:
    """Numbers of entries, first in, first out; any of them is removed at once."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers = OrderedDict.fromkeys(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def take(self) -> int:
        return self._numbers.popitem(last=False)[0]

    def append(self, number: int) -> None:
        self._numbers[number] = None

    def extend(self, numbers: Iterable[int]) -> None:
        self._numbers.update(dict.fromkeys(numbers))

    def remove(self, number: int) -> None:
        """KeyError: it is not there."""
        del self._numbers[number]


class EpochQueues:
    """The entries of an epoch that are to be leased, by the worker that had their block before."""

    def __init__(
        self, records: BlockRecords, numbers: NDArray[np.int64], nodes: NDArray[np.int64]
    ) -> None:
        self._records = records
        by_node = np.argsort(nodes, kind="stable")
        found, starts = np.unique(nodes[by_node], return_index=True)
        parts = np.split(numbers[by_node], starts)[1:]
        self._of = dict(zip(found.tolist(), parts, strict=True))
        self._left = len(numbers)

    def __len__(self) -> int:
        return self._left

    def take(self, node: int) -> int:
        """The next entry of a worker; if none is left, one new to all, or of who has most left."""
        while True:
            of = node if node in self._of else ANY_WORKER
            if of not in self._of:
                of = max(self._of, key=lambda one: len(self._of[one]))
            number, self._of[of] = int(self._of[of][0]), self._of[of][1:]
            if not len(self._of[of]):
                del self._of[of]
            if self._records.is_waiting(number):
                self._left -= 1
                return number

    def withdraw(self) -> None:
        """One of the entries is leased otherwise: it is left out when its turn comes."""
        self._left -= 1


class Ledger:
    """The ledger of one pass: every block, `epochs` times, in order or in a drawn order.

    In later epochs a worker gets the blocks that it had in the epoch before, which it may have kept
    as it read them, and whose rows it has: others' only when it has no more of its own.
    """

    def __init__(
        self,
        blocks: Sequence[Piece],  # at least one
        epochs: int = 1,  # entry ``e * len(blocks) + i`` is the i-th block of epoch e
        limit: int = 0,  # most entries; 0: no limit
        known: NDArray[Any] | None = None,  # records of an earlier run, of `durable` or `known`
        # seed that, with the epoch, decides the order of the blocks; None: as they are
        order: int | None = None,
        *,
        seats: int = ALL,  # most workers that train at a time
    ) -> None:
        self._blocks = tuple(blocks)
        self._size = min(len(self._blocks) * epochs, limit or len(self._blocks) * epochs)
        self.records = BlockRecords(self._size)
        self._next = 0  # the first entry that is in no queue yet
        nothing = np.zeros(0, np.int64)
        self._queues = EpochQueues(self.records, nothing, nothing)
        self._back = EntryQueue()
        self._refused: dict[int, None] = {}  # workers that got nothing, in the order they asked
        self._lost: dict[int, int] = {}
        self._seats = Seats(seats)
        self.closed = False
        self._leaves = False  # closed, what is in `_back` is leased nevertheless
        self._sizes = np.array([block.stop - block.start for block in self._blocks], np.int64)
        self._order, self._orders = order, dict[int, EpochOrder]()
        self._plain = EpochOrder(np.arange(len(self._blocks)), self._sizes)
        self._epoch_bytes = int(self._sizes.sum())
        whole, rest = divmod(self._size, len(self._blocks))
        behind = int(self._of_epoch(whole).before[rest]) if rest else 0
        self._total_bytes = max(1, self._epoch_bytes * whole + behind)
        self._done_bytes = self._counted_bytes = 0
        if known is not None:
            self.records.resume(known)
            self._done_bytes = self._bytes_of(self.records.done())
        self._skip()

    def entry(self, number: int) -> Entry:
        epoch, place = divmod(number, len(self._blocks))
        order, base = self._of_epoch(epoch), epoch * self._epoch_bytes
        return Entry(
            number,
            self._blocks[order.blocks[place]],
            epoch,
            (base + int(order.before[place])) / self._total_bytes,
            (base + int(order.before[place + 1])) / self._total_bytes,
        )

    def _of_epoch(self, epoch: int) -> EpochOrder:
        if self._order is None:
            return self._plain
        found = self._orders.get(epoch)
        if found is None:
            drawn = permutation(len(self._blocks), self._order, epoch)
            found = self._orders[epoch] = EpochOrder(drawn, self._sizes)
            if len(self._orders) > ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
        return found

    # --- leases ------------------------------------------------------------------------------

    def take(self, node: int) -> Entry | None:
        """Lease the next entry to a worker; None: there is none for it at present."""
        if not self._seats.take(node):
            return None
        entry = self._next_of(node)
        if entry is None:
            self._refused.setdefault(node)
        else:
            self._refused.pop(node, None)
        return entry

    def take_back(self, node: int) -> Entry | None:
        """Lease a returned entry that others wait for; None: there is none."""
        return None

    def take_again(self, number: int, index: int, node: int) -> Entry | None:
        """Lease the block at a place of the chunk of a partition once more: servers have lost what
        was written of it. None if another worker has it. LookupError: `number` is no partition of
        this worker's."""
        raise LookupError(f"entry {number} is no partition")

    def woken(self, waiting: Container[int]) -> list[int]:
        """Waiting workers that may get an entry now; each is to ask again. Costs as much as there
        are entries to give, not a look at each of a thousand waiting workers."""
        if self._leases_none:
            return []
        count = len(self._back) + len(self._queues) + self._size - self._next
        return list(islice(self._still(waiting), count)) if count else []

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

    def _next_of(self, node: int) -> Entry | None:
        if self._leases_none or (number := self._take(node)) is None:
            return None
        self._lease(number, node)
        return self.entry(number)

    @property
    def _leases_none(self) -> bool:
        return self.closed and not self._leaves

    def _take(self, node: int) -> int | None:
        """Remove the next entry of a worker from those that are to be leased."""
        if self._back:
            return self._back.take()
        if not len(self._queues):
            if self._next >= self._size:
                return None
            self._queue_epoch()
        return self._queues.take(node)

    def _queue_epoch(self) -> None:
        """Queue what waits of the epoch of `_next`."""
        epoch, count = self.epoch_of(self._next), len(self._blocks)
        stop = min((epoch + 1) * count, self._size)
        numbers = np.array(self.records.waiting(self._next, stop), np.int64)
        had = np.full(count, ANY_WORKER, np.int64)  # by block: the worker that had it
        if epoch:
            had[self._of_epoch(epoch - 1).blocks] = self.records.nodes((epoch - 1) * count, count)
        places = numbers - epoch * count
        self._queues = EpochQueues(self.records, numbers, had[self._of_epoch(epoch).blocks[places]])
        self._next = stop
        self._skip()

    def _lease(self, number: int, node: int) -> None:
        self.records.lease(number, node)

    def _release(self, number: int) -> None:
        """Return an entry that is leased and not done."""
        if self.records.is_counted(number):
            self._counted_bytes -= self._bytes(number)
        self.records.release(number)

    def _release_all(self, node: int) -> list[int]:
        numbers = self.records.held_by(node)
        for number in numbers:
            self._release(number)
        return numbers

    def done(
        self, number: int, node: int, result: BlockResult = NO_RESULT, *, whole: bool = True
    ) -> bool:
        """Record the result of an entry; False if the entry is not leased to this worker. Not
        `whole`: a lease has ended before it had all partitions."""
        if self.records.holder(number) != node:
            return False
        self._finish(number, result)
        return True

    def count(self, node: int) -> list[int]:
        """Count a worker's leases as surveyed into its part; returns what is new."""
        numbers = [n for n in self.records.held_by(node) if not self.records.is_counted(n)]
        for number in numbers:
            self.records.count(number)
            self._counted_bytes += self._bytes(number)
        return numbers

    def merge(self, numbers: Collection[int], node: int) -> bool:
        """Begin the merge of a survey part; False if an entry is not this worker's, or comes
        twice."""
        if len(set(numbers)) < len(numbers):
            return False
        if any(self.records.holder(number) != node for number in numbers):
            return False
        for number in numbers:
            if not self.records.is_counted(number):
                self._counted_bytes += self._bytes(number)
            self.records.merge(number)
        return True

    def merged(self, number: int, result: BlockResult) -> None:
        self._counted_bytes -= self._bytes(number)
        self._finish(number, result)

    def merge_failed(self, number: int) -> None:
        """The part with an entry cannot be merged: the entry is its worker's again."""
        self._counted_bytes -= self._bytes(number)
        self.records.merge_failed(number)

    def _finish(self, number: int, result: BlockResult) -> None:
        node = self.records.finish(number, result)
        if self.flushed:
            self.records.make_durable([number], node)
        self._done_bytes += self._bytes(number)

    def withdraw(self) -> dict[int, BlockResult]:
        """Take back what is done and not in the rows, as the training has ended early and the
        workers of it are gone: the results that no longer count."""
        taken = {number: self.records.withdraw(number) for number in self.unpushed()}
        self._done_bytes -= sum(map(self._bytes, taken))
        return taken

    def unpushed(self) -> list[int]:
        """Entries that are done, and of which the servers may lack pushes."""
        return self.records.undurable()

    def counted(self, number: int, result: BlockResult) -> Iterator[tuple[int, BlockResult]]:
        """Numbers and results that count now that this entry is done, in the order they count."""
        yield number, result

    def epoch_of(self, number: int) -> int:
        """The epoch of an entry."""
        return number // len(self._blocks)

    @property
    def epoch(self) -> int:
        """The epoch that the pass is in, from 0."""
        return self.finished // len(self._blocks)

    def piece(self, number: int) -> Piece | None:
        """The block of input of an entry; None: it has none, or there is no such entry."""
        return self.entry(number).piece if 0 <= number < self._size else None

    def claim(self, number: int, node: int) -> bool:
        """Lease this entry to a worker that reports to hold it; False: done, or another's."""
        if not 0 <= number < self._size:
            return False
        if self.records.is_waiting(number):
            self._withdraw(number)
            self._lease(number, node)
            self._seats.keep(node)
        return self.records.holder(number) == node

    def _withdraw(self, number: int) -> None:
        """Remove an entry from those that are to be leased."""
        if (
            number >= self._next
            and not len(self._queues)
            and self.epoch_of(number) == self.epoch_of(self._next)
        ):
            self._queue_epoch()
        if number < self._next:
            if number in self._back:
                self._back.remove(number)
            elif len(self._queues):
                self._queues.withdraw()
            elif self._back:  # after the limit: in the place of another one
                self._back.take()
            return
        self._back.extend(self.records.waiting(self._next, number))
        self._next = number + 1
        self._skip()

    def share(self, numbers: Collection[int] | NDArray[np.int64]) -> float:
        """Share of all bytes that these entries are, 0 to 1."""
        return self._bytes_of(np.asarray(numbers, np.int64)) / self._total_bytes

    def _bytes(self, number: int) -> int:
        epoch, place = divmod(number, len(self._blocks))
        return int(self._sizes[self._of_epoch(epoch).blocks[place]])

    def _bytes_of(self, numbers: NDArray[np.int64]) -> int:
        epochs, places = np.divmod(numbers, len(self._blocks))
        found, counts = np.unique(epochs, return_counts=True)
        whole = found[counts == len(self._blocks)]
        total = len(whole) * self._epoch_bytes
        for epoch in found[counts < len(self._blocks)].tolist():
            of_epoch = self._of_epoch(epoch).blocks[places[epochs == epoch]]
            total += int(self._sizes[of_epoch].sum())
        return total

    def release(self, node: int) -> list[int]:
        """Return a worker's leases, to be leased first; their numbers."""
        numbers = self._release_all(node)
        self._back = EntryQueue(sorted([*self._back, *numbers]))
        return numbers

    def close(self, size: int | None = None) -> None:
        """Lease nothing more, but what a `limit` leaves; what is leased may still be finished. With
        clocks that all workers share, end with a whole one: that of the last entry leased, or of
        `size` entries, as an earlier master did. Again: leave nothing."""
        self._leaves &= not self.closed
        self.closed = True

    def abandon(self, node: int) -> None:
        """Stop waiting for a worker's leases, as the training ends."""
        self.release(node)

    # --- workers -----------------------------------------------------------------------------

    def join(self, node: int) -> None:
        """A worker takes part from now on."""

    def leave(self, node: int) -> None:
        """A worker finishes what it has leased and takes nothing more."""
        self._refused.update(dict.fromkeys(self._seats.leave(node)))

    def retire(self, node: int) -> list[int]:
        """A worker takes part no more; returns the numbers of its leases."""
        self.leave(node)
        return self.release(node)

    def blame(self, node: int) -> int:
        """Count a loss at the first entry of a lost worker; the entry if it reached `LOSSES_MAX`,
        else -1. What it had prefetched or counted is innocent."""
        held = [n for n in self.records.begun_by(node) if not self.records.is_counted(n)]
        if not held:
            return -1
        first = held[0]
        return first if self.count_loss(first) >= LOSSES_MAX else -1

    def losses_max(self, number: int) -> int:
        """Workers that may be lost at an entry."""
        return LOSSES_MAX

    def count_loss(self, number: int) -> int:
        """Count a loss at an entry; how many by now."""
        self._lost[number] = self._lost.get(number, 0) + 1
        return self._lost[number]

    @property
    def losses(self) -> dict[int, int]:
        """Workers lost, by entry."""
        return dict(self._lost)

    def last_of(self, node: int) -> Step | None:
        """The step that a worker may have sealed at some shards only; None without clocks."""
        return None

    def wait_of(self, node: int) -> Wait:
        """The workers that a worker without an entry waits for."""
        if self._seats.waits(node):
            count = self._seats.count
            return Wait.for_some(self._seats.taken, f"leave, as {count} of all train at a time")
        others = (n for n in self.records.holders() if n != node)
        wait = Wait.for_some(others, "finish")
        if self.records.merging and not wait.nodes:
            return Wait((MASTER,), "merge the survey")
        return wait

    def as_counted(self, workers: int) -> int:
        """How many workers a model counts, of `workers` present."""
        return workers

    def limit(self, place: int) -> None:
        """The loss of so many entries, or of a clock, ends the training, some entries or clocks
        later."""
        count = place + ENTRIES_AHEAD - self.records.finished - self.records.leased
        numbers: list[int] = []
        while len(numbers) < count and (number := self._take(ANY_WORKER)) is not None:
            numbers.append(number)
        nothing = np.zeros(0, np.int64)
        self._back = EntryQueue(numbers)
        self._next, self._queues = self._size, EpochQueues(self.records, nothing, nothing)
        self._leaves = True

    def clock_of(self, node: int) -> int | None:
        """The clock of a worker; None without clocks."""
        return None

    def held_up(self, node: int) -> Wait | None:
        """The workers that must act before a worker can train what it holds; None: it can."""
        return None

    # --- what policies answer -------------------------------------------------------------------

    repeats: ClassVar[Literal["epochs", "rounds"]] = "epochs"
    """Unit whose number ends a training that nothing ends early."""
    flushed: bool = False
    """A worker reports an entry once its pushes are acknowledged."""
    judged: ClassVar[Literal["entry", "clock", "look"]] = "entry"
    """When a loss may end the training: with each entry, each clock, or as the master looks."""
    needs: ClassVar[Literal["", "clock", "fence"]] = ""
    """Before a lease all shards are at their clock, or have fenced lost workers."""

    @property
    def waits_for_copy(self) -> bool:
        """The open clock lacks only what is withheld."""
        return False

    @property
    def clock(self) -> int:
        """The round; -1 without rounds."""
        return -1

    @property
    def open_clock(self) -> int:
        """The first clock with entries that are not done; -1 without clocks."""
        return -1

    def withhold(self, checkpoint: int) -> int:
        """Withhold leases until a checkpoint is copied; the clock at whose beginning that is, or
        -1: at any time."""
        return -1

    def resume_leases(self) -> None:
        """Release what `withhold` held back."""

    def comes(self, clock: int) -> bool:
        """Whether a clock begins, or has begun; False where the training ends before it."""
        return True

    def is_void(self, number: int) -> bool:
        """Whether an entry does not count any more."""
        return False

    def is_undecided(self, number: int) -> bool:
        """Whether an entry is a partition of a chunk that is not cut yet, as far as is known."""
        return False

    def encodes(self, number: int) -> bool:
        """Whether an entry is a block to encode for all workers, and not trained."""
        return False

    def ended_clock(self, number: int) -> int | None:
        """The clock whose last result is that of an entry; None without clocks."""
        return None

    def slowest(self) -> tuple[int, int] | None:
        """The slowest clock of a worker, and the worker; None if no worker waits for it."""
        return None

    def stage(self, epochs: int, *, at_most: bool) -> str:
        """Progress in words."""
        return f"epoch {min(self.epoch + 1, epochs)}{', at most' if at_most else ' of'} {epochs}"

    def figures(self) -> dict[str, Any]:
        """Figures of the run."""
        return {}

    # Of a rotation only: output partitions that are checked out.

    def check_out(self, number: int, node: int) -> int | None:
        """Check out an output partition; None: others hold all that the lease lacks. `NO_PART`: it
        has had all; `NO_MORE`: the ledger is closed. LookupError: it is not the worker's."""
        raise LookupError("no partition can be checked out: this training is no rotation")

    def check_in(
        self, number: int, node: int, part: int, units: int = 0, seconds: float = 0.0
    ) -> bool:
        """Take an output partition back, trained in so many seconds; False if the worker does not
        hold it for this lease."""
        return False

    def make_durable(self, number: int, node: int) -> list[int]:
        """Mark what a lease has checked in durable; what was not before."""
        return []

    def adopt_durable(self, number: int, parts: Collection[int]) -> bool:
        """Take durable checkouts from an earlier master; False if the partition is done."""
        return False

    def wait_of_checkout(self, number: int, node: int) -> Wait | None:
        """The workers that hold what a lease wants to check out; None if it holds one."""
        return None

    def decided(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Chunks, and the number and sizes of their partitions, that were decided since the last
        call."""
        return []

    def decide(self, chunk: int, parts: int, sizes: Sequence[int] = ()) -> bool:
        """Take the number and the sizes of the partitions of a chunk from the journal; whether they
        are new."""
        return False

    def claim_all(
        self, node: int, numbers: Iterable[int], checkouts: Iterable[Mapping[str, Any]]
    ) -> None:
        """Lease to a worker of an earlier master what it reports to hold, and its checkouts."""
        for number in numbers:
            self.claim(number, node)

    # --- state ---------------------------------------------------------------------------------

    @property
    def drops(self) -> bool:
        """Whether leases that are not begun need not be trained any more, as part of no clock."""
        return self._leases_none and self.open_clock < 0

    @property
    def over(self) -> bool:
        """Nothing left and nothing leased."""
        left = self._next < self._size or self._back or len(self._queues)
        at_work = self.records.leased or self.records.merging
        return not at_work and (self._leases_none or not left)

    @property
    def progress(self) -> float:
        """Share of all bytes whose entries are done, or counted in a survey; 0 to 1."""
        return (self._done_bytes + self._counted_bytes) / self._total_bytes

    @property
    def size(self) -> int:
        return self._size

    @property
    def results_per_epoch(self) -> int:
        """How many losses an epoch has: that of each block."""
        return len(self._blocks)

    @property
    def leased(self) -> int:
        return self.records.leased

    @property
    def finished(self) -> int:
        return self.records.finished

    def holders(self) -> dict[int, list[int]]:
        """Leased entries by worker."""
        return {node: self.records.held_by(node) for node in self.records.holders()}

    # --- what is kept of it --------------------------------------------------------------------

    def plan(self) -> dict[str, Any]:
        """How the input is cut, beside its blocks."""
        return {}

    def bad_lines(self) -> int:
        """Bad lines of entries that are done, and not in a checkpoint."""
        return 0

    def known(self) -> NDArray[Any]:
        """`RECORD` of each entry, for a master that takes over."""
        return self.records.known()

    def durable(self, clock: int = -1) -> NDArray[Any]:
        """`OUTCOME` of each entry for a checkpoint, of the beginning of a clock if there are; zero
        where it is not durable."""
        return self.records.durable()

    def snapshot(self) -> dict[str, Any]:
        """State beside the records: values for JSON, or arrays. Leased entries count as waiting:
        the worker that has one reports it (`claim`)."""
        return {"losses": sorted(self._lost.items())}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from the `snapshot` of another ledger, whose records this one began with."""
        self._lost = {int(number): int(count) for number, count in snapshot["losses"]}

    def _skip(self) -> None:
        """Skip entries that are done already."""
        self._next = self.records.next_not_done(self._next, self._size)


NO_RECORDS: NDArray[Any] = np.zeros(0, OUTCOME)


def no_ledger() -> Ledger:
    """Make the ledger of a job before its first pass: nothing is left, and nothing done."""
    return Ledger([Piece()], epochs=0)
