"""The trainer of partition leases: input rows stay here, output rows are checked out.

    encode:  a block -> numbers -> a table of blocks                     (by any worker, ahead)
    prepare: numbers of the chunk -> Lease: its examples, by output partition
    train:   input rows <- PULL, unless they are here; then for each checkout:
             check out -> output rows <- PULL -> kernel threads -> PUSH -> check in;
             deltas of input rows -> PUSH, at the end and, in long leases, between two
             checkouts: these are durable then

Owns the order of these steps, the threads of a lease, and when checkouts become durable; a subclass
owns what an example is, and which rows it trains.  Four threads share a lease: `train` runs in the
training thread, `ahead` checks out and pulls, `behind` waits for pushes and checks in, and kernels
train.

Each worker leases one input partition.  One worker at a time has an output partition, so it trains
output rows that all others have finished with, and pushes exact differences: no row is stale, no
delta is shared out.  Rows of which several input partitions have a copy are the exception
(`input_exchange`).

A chunk of one partition has one lease.  Its worker keeps the output rows, too, if it has memory for
all.  A checkout is then a share of the examples, and nothing travels between checkouts.  If workers
join, the next chunk has more partitions, and starts when this one is pushed.
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
"""Which input partition: its number, and the sizes of all partitions."""
Judged = tuple[float, float]
"""Sum of the loss, and examples."""
Span = tuple[int, int]
Rates = tuple[float, float]
"""Learning rate at the beginning and at the end."""
RETURNING = 2
"""Checkouts whose pushes may be under way while another checkout trains."""
DURABLE_SHARE = 0.25
"""Least share of a lease's checkouts between two points at which they are made durable."""
DURABLE_SECONDS = 4.0
"""Least seconds between two such points: to train less than that again costs little."""
DURABLE_ROWS = 0.2
"""Most rows that are pushed for these points, as a share of what the lease moves anyway."""


class InputPartition:
    """An input partition at its worker, with the rows that stay here.

    `of` says which partition it is.  `staying` are all output rows, where these stay, too.  `chunk`
    is the last chunk whose training these rows have.  `opening` pulls the rows of a partition that
    is new here; its result is how many.
    """

    inputs: PartitionRows
    staying: tuple[PartitionRows, ...] = ()
    opening: Future[int] | None = None
    chunk: int

    def __init__(self, of: Which) -> None:
        self.of = of

    def forget(self) -> None:
        """Have all rows pulled again, because another worker has trained them."""
        for rows in self._tables():
            rows.forget()

    def free(self) -> None:
        """Free the memory of the rows."""
        for rows in self._tables():
            rows.free()

    def _tables(self) -> list[PartitionRows]:
        return [self.inputs, *self.staying]


def whole(block: Block, read: Callable[[], Found]) -> Found:
    """Call `read` until its chunk is whole; blocks that servers have lost are encoded again."""
    while True:
        try:
            return read()
        except LostBlocks as lost:
            for index in lost.indices:
                block.checkouts.encode_again(index)


@dataclass(slots=True)
class PreparedLease:
    """A prepared lease of an input partition; a subclass has its examples."""

    part: InputPartition
    """The rows that stay here."""
    rows: Places
    """The input rows that the lease trains; None: all."""
    units: int
    """Words or lines of the whole lease, with durable checkouts."""
    share: NDArray[np.int64]
    """Running sum of the checkouts' shares of `units`, in any unit."""
    sharing: Sharing | None
    """How rows travel that other partitions have, too; None: there are none."""

    def units_of(self, checkout: int) -> int:
        """Units that a checkout trains."""
        return units_between(self.units, self.share, checkout)


def units_between(units: int, ends: NDArray[np.int64], part: int) -> int:
    """The share of `units` between two ends, which are running sums of any unit."""
    total = max(1, int(ends[-1]))
    before, after = (units * int(end) // total for end in ends[part : part + 2])
    return after - before


class StandIns(Protocol):
    """Rows that stand for others during `turns` turns of a checkout, a divisor of all turns."""

    @property
    def turns(self) -> int: ...

    def open(self) -> None:
        """Make the rows, before the kernels of a run."""

    def close(self) -> None:
        """Hand what they have learnt to the rows for which they stood, after these kernels."""


@dataclass(slots=True)
class Checkout:
    """A checkout, from its rows' arrival until it is checked in."""

    part: int
    examples: int
    begin: Callable[[Span, Rates, int], list[Future[Judged]]]
    """``begin(span, rates, seed)`` starts kernels that train a span of the examples."""
    subtract: Callable[[], None] | None = None
    """Turns `packed` into the deltas of the trained rows, and frees the arrays of these."""
    keys: Keys | None = None
    packed: Floats | None = None
    """Keys and rows that travel: rows as the servers have them, later their deltas.  None: output
    rows stay here."""
    finite: Callable[[], bool] = lambda: True
    """Whether the trained rows are finite, where a loss would not show that they are not."""
    run: StandIns | None = None
    """Rows that stand for others while kernels train; None: there are none."""
    number: int = 0
    """How many checkouts of the lease came before this one."""
    rates: Rates = (0.0, 0.0)
    tasks: list[Future[Judged]] = field(default_factory=list)
    """Kernels at work."""
    results: list[Judged] = field(default_factory=list)
    """Results of kernels that are done."""

    def wait(self) -> None:
        """Wait for the kernels."""
        self.results += [task.result() for task in self.tasks]
        self.tasks = []


class TurnExchange(Protocol):
    """The part of `InputExchange` that `turns_of` uses."""

    @property
    def turns(self) -> int: ...

    @property
    def turns_apart(self) -> int: ...

    def exchange(self, number: int) -> None: ...


def turns_of(checkout: Checkout, inputs: TurnExchange, seed: int) -> Iterator[None]:
    """Train a checkout: each `next` starts kernels for `turns_apart` turns; the one after it waits
    for them, and exchanges rows.  No kernel call goes beyond the end of a run.
    """
    turns, run = inputs.turns, checkout.run
    of_run = turns if run is None else run.turns
    edges = np.linspace(0, checkout.examples, turns + 1).astype(int).tolist()
    begin, end = checkout.rates
    turn = 0
    while turn < turns:
        last = min(turn + inputs.turns_apart, turn - turn % of_run + of_run)
        if run is not None and turn % of_run == 0:
            run.open()
        lr = [begin + (end - begin) * done / turns for done in (turn, last)]
        drawn = seed + checkout.part * GOLDEN + (turn << 32)
        checkout.tasks = checkout.begin((edges[turn], edges[last]), (lr[0], lr[1]), drawn)
        yield
        checkout.wait()
        if run is not None and last % of_run == 0:
            run.close()
        inputs.exchange(checkout.number * turns + last)
        turn = last


class LeaseRates:
    """Learning rates of a lease's checkouts; `rate` gives them for a progress of the training.

    With `max_seconds`, the time may be over before the lease is: rates then fall by the time spent.
    """

    def __init__(self, block: Block, rate: Callable[[float], float], max_seconds: float) -> None:
        self._block, self._rate, self._limit_s = block, rate, max_seconds
        self._since = time.monotonic()

    def of(self, number: int) -> Rates:
        """Rates of a checkout that starts now, the lease's `number`-th from 0."""
        begin, end = self._block.progress
        step = (end - begin) / self._block.output_parts
        first, last = (begin + step * checkout for checkout in (number, number + 1))
        if self._limit_s:
            spent = (time.monotonic() - self._since) / self._limit_s
            each = spent / max(1, number - self._block.had)  # of the checkouts so far
            first, last = max(first, begin + spent), max(last, begin + spent + each)
        return self._rate(min(1.0, first)), self._rate(min(1.0, last))


class DurablePoints:
    """Decides when, before its end, a lease makes its checkouts so far durable.

    Those are not trained again if the worker is lost.  Each time costs a push of `rows` input rows;
    `opened` rows were pulled when the lease began.
    """

    def __init__(self, block: Block, rows: int, opened: int) -> None:
        self._first = self._last = block.had
        self._output_parts, self._rows, self._opened = block.output_parts, max(1, rows), opened
        self._since = time.monotonic()

    def is_due(self, checkouts: int, moved: int) -> bool:
        """Whether to make the first `checkouts` durable now; they have moved `moved` rows."""
        of_lease = self._output_parts - self._first
        rows_of_lease = self._opened + self._rows + moved * of_lease / (checkouts - self._first)
        times = int(DURABLE_ROWS * rows_of_lease / self._rows)
        apart = max(DURABLE_SHARE * self._output_parts, of_lease / (times + 1))
        lasts = time.monotonic() - self._since
        return self._last + apart <= checkouts < self._output_parts and lasts >= DURABLE_SECONDS

    def note(self, checkouts: int) -> None:
        """Record that the lease's first `checkouts` are durable."""
        self._last, self._since = checkouts, time.monotonic()


class RotationTrainer(ABC):
    """Prepares and trains leases for a worker, after its `setup`.

    `outputs` names the table of output rows; `part` is the partition that was prepared last.
    """

    part: InputPartition | None = None

    def __init__(self, worker: BlockTrainer, sgd: LocalSgd, outputs: str) -> None:
        self.worker, self.sgd, self.outputs = worker, sgd, outputs
        # Two threads: the one that checks out waits for other workers, which may wait for what the
        # other one checks in.
        self.ahead = ThreadPoolExecutor(1, "snailps-check-out")
        self.behind = ThreadPoolExecutor(1, "snailps-check-in")

    def close(self) -> None:
        """End the threads."""
        self.ahead.shutdown()
        self.behind.shutdown()

    # --- to be written by the model -------------------------------------------------------------

    @abstractmethod
    def lease(self, block: Block) -> PreparedLease:
        """Make a lease with its examples, or with those of its first checkout; sets `part`."""

    @abstractmethod
    def check_out(self, block: Block, lease: Any, part: int) -> Checkout:
        """Make the checkout of an output partition, and pull its rows.

        Called in the thread `ahead`, beside the kernels of the checkout before.
        """

    @abstractmethod
    def rate(self, progress: float) -> float:
        """Learning rate at a progress of the training, 0 to 1."""

    @abstractmethod
    def figures(self, results: Sequence[Judged], finite: bool) -> Mapping[str, float]:
        """Give ``loss`` and ``examples`` of a checkout; a loss that is NaN or infinite if the
        training has diverged, or if rows are not `finite`.
        """

    # --- a lease, prepared while another one trains ------------------------------------------

    def prepare(self, block: Block) -> PreparedLease:
        """Prepare a lease; start to pull its rows if the partition is new here."""
        before = self.part
        lease = self.lease(block)
        if lease.part is not before:
            lease.part.chunk = block.chunk - 1
            if before is None or before.of != lease.part.of:
                # Else the rows are here, and may still be in training.
                first = block.first and self.worker.loader(self.worker.settings) is None
                lease.part.opening = self.ahead.submit(self._open, lease, first)
        return lease

    def _open(self, lease: PreparedLease, first: bool) -> int:
        """Pull rows that are not here, or make them if servers have none yet (`first`).

        Returns how many input rows were pulled.
        """
        part = lease.part
        for rows in part.staying:
            rows.open(None, first=first)
        return part.inputs.open(lease.rows, first=first)

    # --- a lease, trained ---------------------------------------------------------------------

    def train(self, block: Block) -> dict[str, float]:
        """Train a lease: all its checkouts, in the order in which the master hands them out."""
        part = block.prepared.part
        figures = _LeaseTraining(self, block).run()
        part.chunk = block.chunk
        if block.progress[1] >= 1.0:
            part.free()  # before the report, after which the master starts to export
        return figures


class _LeaseTraining:
    """A lease in training.

    Where no rows are exchanged, the kernels of a checkout are queued before those of the checkout
    before it are done, so that no thread waits for another.  Not after a checkout that makes rows
    durable: steps of the next checkout would be pushed with them, and trained again if this worker
    is lost.
    """

    def __init__(self, trainer: RotationTrainer, block: Block) -> None:
        self._trainer, self._worker, self._block = trainer, trainer.worker, block
        self._sgd = trainer.sgd
        lease: PreparedLease = block.prepared
        self._lease, self._part = lease, lease.part
        block.prepared = None  # else it would hold the first checkout's memory to the end
        opened = 0
        if lease.part.opening is not None:
            opened, lease.part.opening = lease.part.opening.result(), None
        if self._part.chunk != block.chunk - 1 or block.had:
            self._part.forget()  # another worker has trained it since
        for rows in self._part.staying:
            rows.open(None)
        self._inputs = InputExchange(self._part.inputs, lease.rows, lease.sharing, block)
        self._durable_points = DurablePoints(
            block,
            len(self._part.inputs.keys if lease.rows is None else lease.rows),
            opened + self._inputs.opened,
        )
        self._totals = {"units": 0.0, "loss": 0.0, "examples": 0.0}
        self._begun = self._done = block.had  # how many checkouts
        self._rates = LeaseRates(block, trainer.rate, self._worker.settings.max_seconds)
        self._moved = 0  # output rows pulled and pushed
        self._returned: deque[Future[None]] = deque()  # check-ins under way

    def run(self) -> dict[str, float]:
        """Train all checkouts, and push the deltas of input rows."""
        coming, queued = self._trainer.ahead.submit(self._check_out), None
        while True:
            if queued is not None and (
                self._makes_durable(queued) or not comes_first(coming, queued.tasks)
            ):
                self._finish(queued)  # at once: another worker may wait for its partition
                queued = None
            checkout = coming.result()
            if checkout is None:
                break
            while self._returned and (self._returned[0].done() or len(self._returned) > RETURNING):
                self._returned.popleft().result()  # raises if the push has failed
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
        if self._done == self._block.output_parts and not self._block.had:  # else the training ends
            self._totals["units"] = float(self._lease.units)  # also of a text without any pairs
        self._block.kernel_s = self._sgd.take_kernel_s()
        return self._totals

    def _check_out(self) -> Checkout | None:
        """Wait for an output partition and its rows; None: the lease has had all."""
        part = self._block.checkouts.check_out()
        return None if part is None else self._trainer.check_out(self._block, self._lease, part)

    def _turns(self, checkout: Checkout) -> Iterator[None]:
        checkout.number, self._begun = self._begun, self._begun + 1
        checkout.rates = self._rates.of(checkout.number)
        return turns_of(checkout, self._inputs, self._block.seed)

    def _finish(self, checkout: Checkout) -> None:
        """Wait for the kernels, start to push what they changed, have the partition checked in."""
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
        """Whether to make this checkout durable: it is due, and no later checkout has begun."""
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
        """Check a partition in once its deltas, and `pushes` that make it durable, have arrived.

        `previous` checks in the partition before: if that has failed, nothing after it is durable.
        """
        if previous is not None:
            previous.result()
        if push is not None:
            self._sgd.packed.give(push.wait())
        self._part.inputs.wait_for(pushes or ())
        self._block.checkouts.check_in(part, figures, durable=pushes is not None)


def comes_first(coming: Future[Any], tasks: Sequence[Future[Any]]) -> bool:
    """Wait until the next checkout is there, or these kernels are done; whether it is there."""
    while not coming.done() and (at_work := [task for task in tasks if not task.done()]):
        wait([coming, *at_work], return_when=FIRST_COMPLETED)
    return coming.done() and coming.exception() is None
