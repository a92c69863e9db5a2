"""The trainer of partition leases: input rows that stay, output rows that are checked out.

    encode:  a block -> numbers -> a table of blocks                     (by any worker, ahead)
    prepare: numbers of the chunk -> Lease: its examples, by output partition
    train:   input rows <- PULL, unless they are here; then for each checkout:
             check out -> output rows <- PULL -> kernel threads -> PUSH -> check in;
             deltas of input rows -> PUSH, at the end and, in long leases, between two
             checkouts: these are durable then

Input rows are split into input partitions, one a worker, and output rows into some more
output partitions.  One worker at a time checks out an output partition.  So it trains output rows
that all others have finished with, and pushes exact differences: neither stale rows nor shares.
Rows of which several input partitions have a copy are the exception (`input_exchange`).

A chunk of one partition has one lease.  Its worker keeps the output rows, too, if it has memory
for all, and a checkout is a share of the examples: nothing travels between checkouts.  If workers
join, the next chunk has more partitions, and begins when this one is pushed.

What an example is, and which rows it trains, is the subclass's.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import GOLDEN
from snailps.api.worker import Block, Pending
from snailps.dataclass import dataclass, field
from snailps.models.block_trainer import BlockTrainer
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.rotation.input_exchange import InputExchange, Sharing
from snailps.models.rotation.partition_rows import PartitionRows, Places, Push
from snailps.models.rotation.shared_blocks import LostBlocks

Found = TypeVar("Found")
Which = tuple[int, tuple[int, ...]]
"""An input partition: its number, and the sizes of all."""
Judged = tuple[float, float]
"""Sum of the loss, and examples."""
Span = tuple[int, int]
Rates = tuple[float, float]
"""Learning rate at the begin and at the end."""
RETURNING = 2
"""Checkouts whose pushes are not waited for while another one trains."""
DURABLE_SHARE = 0.25
"""Share of a lease's checkouts between two times that they are made durable, at least."""
DURABLE_SECONDS = 4.0
"""Seconds between two such times, at least: to train less than that again costs little."""
DURABLE_ROWS = 0.2
"""Rows that are pushed for that, at most, as a share of those that the lease moves anyhow."""


class Partition:
    """An input partition at its worker: the rows that stay.

    `of`: its number, and the sizes of all.  `staying` are all output rows, where they stay, too.
    `chunk` is the last one of which it has what was trained.  `opening` pulls the rows of one that
    is new here, and returns their number.
    """

    inputs: PartitionRows
    staying: tuple[PartitionRows, ...] = ()
    opening: Future[int] | None = None
    chunk: int

    def __init__(self, of: Which) -> None:
        self.of = of

    def forget(self) -> None:
        """Has all rows pulled again: another worker has trained them."""
        for rows in self._tables():
            rows.forget()

    def free(self) -> None:
        """Frees the rows' memory."""
        for rows in self._tables():
            rows.free()

    def _tables(self) -> list[PartitionRows]:
        return [self.inputs, *self.staying]


def whole(block: Block, read: Callable[[], Found]) -> Found:
    """What `read` finds of a partition's chunk; blocks that servers have lost are encoded again."""
    while True:
        try:
            return read()
        except LostBlocks as lost:
            for index in lost.indices:
                block.checkouts.encode_again(index)


@dataclass(slots=True)
class Lease:
    """A prepared lease of an input partition; subclasses have its examples."""

    part: Partition
    """What stays here."""
    rows: Places
    """Input rows that it trains; None: all."""
    units: int
    """Words or lines that count as this lease's, durable checkouts or not."""
    share: NDArray[np.int64]
    """Running sum of the checkouts' shares of these, in any unit."""
    sharing: Sharing | None
    """How rows travel that other partitions have, too."""

    def units_of(self, checkout: int) -> int:
        """Units that count as trained by a checkout."""
        return units_between(self.units, self.share, checkout)


def units_between(units: int, ends: NDArray[np.int64], part: int) -> int:
    """The share of so many units that lies between two of these ends."""
    whole = max(1, int(ends[-1]))
    before, after = (units * int(end) // whole for end in ends[part : part + 2])
    return after - before


@dataclass(slots=True)
class Checkout:
    """A checkout, until it is checked in."""

    part: int
    examples: int
    begin: Callable[[Span, Rates, int], list[Future[Judged]]]
    """Begins to train these examples at these rates, with a seed."""
    subtract: Callable[[], None] | None = None
    """Makes the deltas of the rows in `packed`, and frees what it trained them in."""
    keys: Keys | None = None
    packed: Floats | None = None
    """Keys and rows that travel: as the servers have them, then their deltas."""
    finite: Callable[[], bool] = lambda: True
    """Whether its rows are, when it is trained, where a loss does not show that."""
    number: int = 0
    """Checkouts of the lease before this one."""
    rates: Rates = (0.0, 0.0)
    tasks: list[Future[Judged]] = field(default_factory=list)
    results: list[Judged] = field(default_factory=list)
    """Kernels at work, and results of those that are done."""

    def wait(self) -> None:
        """Waits for the kernels."""
        self.results += [task.result() for task in self.tasks]
        self.tasks = []


class Exchange(Protocol):
    """What turns of a checkout need of the input rows."""

    @property
    def turns(self) -> int: ...

    @property
    def turns_apart(self) -> int: ...

    def exchange(self, number: int) -> None: ...


def turns_of(checkout: Checkout, inputs: Exchange, seed: int) -> Iterator[None]:
    """Trains a checkout: begins `turns_apart` turns for each `next`, then exchanges rows."""
    turns = inputs.turns
    edges = np.linspace(0, checkout.examples, turns + 1).astype(int).tolist()
    begin, end = checkout.rates
    turn = 0
    while turn < turns:
        last = min(turn + inputs.turns_apart, turns)
        lr = [begin + (end - begin) * done / turns for done in (turn, last)]
        drawn = seed + checkout.part * GOLDEN + (turn << 32)
        checkout.tasks = checkout.begin((edges[turn], edges[last]), (lr[0], lr[1]), drawn)
        yield
        checkout.wait()
        inputs.exchange(checkout.number * turns + last)
        turn = last


class LeaseRates:
    """Learning rates of a lease's checkouts; `rate` is of the training's progress.

    Where time is limited, a lease may be longer than what is left of it.
    """

    def __init__(self, block: Block, rate: Callable[[float], float], max_seconds: float) -> None:
        self._block, self._rate, self._limit_s = block, rate, max_seconds
        self._since = time.monotonic()

    def of(self, number: int) -> Rates:
        """Learning rate at the begin and at the end of a checkout that begins now."""
        begin, end = self._block.progress
        step = (end - begin) / self._block.output_parts
        first, last = (begin + step * checkout for checkout in (number, number + 1))
        if self._limit_s:
            spent = (time.monotonic() - self._since) / self._limit_s
            each = spent / max(1, number - self._block.had)  # of the checkouts so far
            first, last = max(first, begin + spent), max(last, begin + spent + each)
        return self._rate(min(1.0, first)), self._rate(min(1.0, last))


class DurablePoints:
    """Points of a lease, besides its end, at which its checkouts are made durable.

    If its worker is lost, those checkouts are not trained again.  `rows` are pushed each time;
    `opened` were pulled when the lease began.
    """

    def __init__(self, block: Block, rows: int, opened: int) -> None:
        self._first = self._last = block.had
        self._output_parts, self._rows, self._opened = block.output_parts, max(1, rows), opened
        self._since = time.monotonic()

    def is_due(self, checkouts: int, moved: int) -> bool:
        """Whether to make the first `checkouts` durable, which moved `moved` rows."""
        left = self._output_parts - self._first
        whole = self._opened + self._rows + moved * left / (checkouts - self._first)
        times = int(DURABLE_ROWS * whole / self._rows)
        apart = max(DURABLE_SHARE * self._output_parts, left / (times + 1))
        lasts = time.monotonic() - self._since
        return self._last + apart <= checkouts < self._output_parts and lasts >= DURABLE_SECONDS

    def note(self, checkouts: int) -> None:
        """Record that the lease's first `checkouts` are durable."""
        self._last, self._since = checkouts, time.monotonic()


class RotationTrainer(ABC):
    """Prepares and trains leases for a worker, after its `setup`; `outputs`: table of output rows.

    `part` is the partition that was prepared last.
    """

    part: Partition | None = None

    def __init__(self, worker: BlockTrainer, sgd: LocalSgd, outputs: str) -> None:
        self.worker, self.sgd, self.outputs = worker, sgd, outputs
        # A thread that checks out waits for other workers, so another one checks in.
        self.ahead = ThreadPoolExecutor(1, "snailps-check-out")
        self.behind = ThreadPoolExecutor(1, "snailps-check-in")

    def close(self) -> None:
        """Ends the threads."""
        self.ahead.shutdown()
        self.behind.shutdown()

    # --- to be written by the model -------------------------------------------------------------

    @abstractmethod
    def lease(self, block: Block) -> Lease:
        """A lease, with its examples or those of its first checkout; its partition is `part`."""

    @abstractmethod
    def check_out(self, block: Block, lease: Any, part: int) -> Checkout:
        """An output partition that is checked out, with its rows.  Called in a thread of its own,
        beside the kernels of the checkout before."""

    @abstractmethod
    def rate(self, progress: float) -> float:
        """Learning rate at a share of the whole training."""

    @abstractmethod
    def figures(self, results: Sequence[Judged], finite: bool) -> Mapping[str, float]:
        """``loss`` and ``examples`` of a checkout; no number if it diverged."""

    # --- a lease, prepared while another one trains ------------------------------------------

    def prepare(self, block: Block) -> Lease:
        """Prepares a lease; begins to open a new one."""
        before = self.part
        lease = self.lease(block)
        if lease.part is not before:
            lease.part.chunk = block.chunk - 1
            if before is None or before.of != lease.part.of:  # else it may still be trained here
                first = block.first and self.worker.loader(self.worker.settings) is None
                lease.part.opening = self.ahead.submit(self._open, lease, first)
        return lease

    def _open(self, lease: Lease, first: bool) -> int:
        """Pulls rows that are not here, or makes the `first` ones; input rows that it pulled."""
        part = lease.part
        for rows in part.staying:
            rows.open(None, first=first)
        return part.inputs.open(lease.rows, first=first)

    # --- a lease, trained ---------------------------------------------------------------------

    def train(self, block: Block) -> dict[str, float]:
        """Trains a lease: all its checkouts, in the order in which the master hands them out."""
        part = block.prepared.part
        figures = _Training(self, block).run()
        part.chunk = block.chunk
        if block.progress[1] >= 1.0:
            part.free()  # before the master, which is told next, begins to export
        return figures


class _Training:
    """A lease that is trained.

    Where no rows are exchanged, the kernels of a checkout are queued before those of the one before
    are done, so that no thread waits for another.  Behind one that makes rows durable they are not:
    deltas of the next one's steps would be pushed, and trained again if this worker is lost.
    """

    def __init__(self, trainer: RotationTrainer, block: Block) -> None:
        self._trainer, self._worker, self._block = trainer, trainer.worker, block
        self._sgd = trainer.sgd
        lease: Lease = block.prepared
        self._lease, self._part = lease, lease.part
        block.prepared = None  # so that memory of the first checkout is returned when it is trained
        opened = 0
        if lease.part.opening is not None:
            opened, lease.part.opening = lease.part.opening.result(), None
        if self._part.chunk != block.chunk - 1 or block.had:
            self._part.forget()  # another worker has trained it
        for rows in self._part.staying:
            rows.open(None)
        self._inputs = InputExchange(self._part.inputs, lease.rows, lease.sharing, block)
        self._durable_points = DurablePoints(
            block,
            len(self._part.inputs.keys if lease.rows is None else lease.rows),
            opened + self._inputs.opened,
        )
        self._totals = {"units": 0.0, "loss": 0.0, "examples": 0.0}
        self._begun = self._done = block.had  # checkouts
        self._rates = LeaseRates(block, trainer.rate, self._worker.settings.max_seconds)
        self._moved = 0  # output rows
        self._returned: deque[Future[None]] = deque()

    def run(self) -> dict[str, float]:
        """Trains all checkouts and pushes the deltas of input rows."""
        coming, queued = self._trainer.ahead.submit(self._check_out), None
        while True:
            if queued is not None and (
                self._makes_durable(queued) or not comes_first(coming, queued.tasks)
            ):
                self._finish(queued)  # another worker may wait for its partition
                queued = None
            checkout = coming.result()
            if checkout is None:
                break
            while self._returned and (self._returned[0].done() or len(self._returned) > RETURNING):
                self._returned.popleft().result()  # raises if its push has failed
            turns = self._turns(checkout)
            next(turns)
            if queued is not None:
                self._finish(queued)
            coming, queued = self._trainer.ahead.submit(self._check_out), checkout
            if self._inputs.shares:
                for _ in turns:
                    pass
                self._finish(checkout)
                queued = None
        if queued is not None:
            self._finish(queued)
        self._inputs.close()
        for rows in self._part.staying:
            rows.close(None)
        for task in self._returned:
            task.result()
        if self._done == self._block.output_parts and not self._block.had:  # else it is to end
            self._totals["units"] = float(self._lease.units)  # of a text without pairs, too
        return self._totals

    def _check_out(self) -> Checkout | None:
        """Waits for an output partition and for its rows; None when this lease has had all."""
        part = self._block.checkouts.check_out()
        return None if part is None else self._trainer.check_out(self._block, self._lease, part)

    def _turns(self, checkout: Checkout) -> Iterator[None]:
        checkout.number, self._begun = self._begun, self._begun + 1
        checkout.rates = self._rates.of(checkout.number)
        return turns_of(checkout, self._inputs, self._block.seed)

    def _finish(self, checkout: Checkout) -> None:
        """Waits for the kernels; has what changed pushed, and the partition checked in."""
        checkout.wait()
        figures = {
            "units": float(self._lease.units_of(checkout.part)),
            "lr": checkout.rates[1],
            **self._trainer.figures(checkout.results, checkout.finite()),
        }
        for name in self._totals:
            self._totals[name] += figures[name]
        self._totals["lr"] = figures["lr"]
        makes_durable = self._makes_durable(checkout)
        self._done += 1
        push, pushes = None, None
        if checkout.keys is not None and checkout.subtract is not None:
            checkout.subtract()
            push = self._worker.push_async(
                self._trainer.outputs, checkout.keys, checkout.packed, state=self._sgd.state
            )
            self._moved += 2 * len(checkout.keys)
            if makes_durable:
                pushes = self._inputs.push_all()
                self._durable_points.note(self._done)
        previous = self._returned[-1] if self._returned else None
        self._returned.append(
            self._trainer.behind.submit(
                self._check_in, checkout.part, figures, push, pushes, previous
            )
        )

    def _makes_durable(self, checkout: Checkout) -> bool:
        """Whether to make this checkout durable, and no other one has begun."""
        if checkout.keys is None or self._begun > checkout.number + 1:
            return False
        moved = self._moved + 2 * len(checkout.keys) + self._inputs.exchanged
        return self._durable_points.is_due(checkout.number + 1, moved)

    def _check_in(
        self,
        part: int,
        figures: dict[str, float],
        push: Pending | None,
        pushes: Collection[Push] | None,
        previous: Future[None] | None,
    ) -> None:
        """Checks a partition in once its deltas are acknowledged, and those that make it durable.

        `previous` checks in the one before: if it failed, nothing behind it is durable.
        """
        if previous is not None:
            previous.result()
        if push is not None:
            self._sgd.packed.give(push.wait())
        self._part.inputs.wait_for(pushes or ())
        self._block.checkouts.check_in(part, figures, durable=pushes is not None)


def comes_first(coming: Future[Any], tasks: Sequence[Future[Any]]) -> bool:
    """Whether the next checkout comes before these kernels are done."""
    while not coming.done() and (at_work := [task for task in tasks if not task.done()]):
        wait([coming, *at_work], return_when=FIRST_COMPLETED)
    return coming.done() and coming.exception() is None
