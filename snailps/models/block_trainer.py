"""The trainer of blocks: pulls the rows that a block needs, trains them by spans, pushes deltas.

    prepare: block -> encode -> keys of each table -> Rows.find, ask        (while others train)
    train:   Rows.ready -> spans: step(rows) -> Rows.exchange -> Rows.close

Owns the order of the calls on rows, and which blocks are not pushed yet.  A model gives `tables`,
`prepare` (a block's examples and their keys), `step` (kernels), `rates`, and how its steps add up
with those of other workers: `count_steps` where rows are kept, `scales` where they are copied.  A
model's `setup` decides whether they are kept or copied; nothing else does.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

from snailps.api.row_updates import RowUpdate
from snailps.api.traits import Cut, Gathered, Limited, Surveyed
from snailps.api.worker import Block, Worker
from snailps.dataclass import dataclass
from snailps.models.local_sgd import LocalSgd
from snailps.models.pace import Pace
from snailps.models.row_bounds import LOSS_BOUND
from snailps.models.rows import RowPlaces, Rows, Scale, Trained

Span = tuple[int, int]
Rates = tuple[float, float]
Sums = tuple[float, float]
"""Sum of the losses before each step, and sum of the examples' weights."""


@dataclass(slots=True)
class Prepared:
    """A prepared block.

    `batch` has the places of its rows; `asked` is the result of `Rows.ask` for each table (empty:
    there is nothing to learn from).  `size` is its examples or lines, which spans count.  `metrics`
    are known before the training.
    """

    batch: Any
    size: int
    metrics: Mapping[str, float]
    asked: tuple[Any, ...] = ()


class BlockTrainer(Worker, Cut, Surveyed, Gathered, Limited):
    """Base class of models that train on rows of a block's keys; see the module's docstring."""

    loss_bound = LOSS_BOUND
    row_updates: ClassVar[Mapping[str, RowUpdate]] = {"gradient of the loss": RowUpdate.STEP}
    """How each change that the model makes to rows reaches other workers."""
    sgd: LocalSgd
    rows: tuple[Rows, ...] = ()
    """The rows of each trained table."""
    span_least = 1
    """Fewest examples in a span."""
    _asked = 0  # blocks asked for; of the preparing thread
    _trained = _closed = 0  # blocks trained in this push period, and in the one before

    # --- to be written by the model -------------------------------------------------------------

    @classmethod
    @abstractmethod
    def pace(cls, settings: Any, workers: int) -> Pace:
        """Choose the size of blocks and periods for this many workers."""

    @abstractmethod
    def step(
        self, batch: Any, rows: Sequence[Trained], span: Span, rates: Rates, seed: int
    ) -> Sums:
        """Train examples ``range(*span)`` of a batch with all threads."""

    @abstractmethod
    def rates(self, block: Block) -> Rates:
        """Step sizes before and after a block."""

    def count_steps(self, batch: Any, rows: Sequence[Trained], rate: float) -> None:
        """Count the steps of a block whose rows are exchanged, before it trains, and set how far a
        step goes.
        """

    def scales(self, batch: Any, rows: Sequence[Trained], rate: float) -> Sequence[Scale | None]:
        """Give how to scale each table's deltas of a block of copies; None: push them whole.

        Only used if other workers push, too.
        """
        return [None] * len(rows)

    def judged(self, batch: Any, rows: Sequence[Trained], sums: Sums) -> Mapping[str, float]:
        """Metrics of a trained block: at least ``loss`` and ``examples``."""
        return {"loss": sums[0], "examples": sums[1]}

    # --- preparing ------------------------------------------------------------------------------

    @classmethod
    def block_bytes(cls, settings: Any, total_bytes: int, workers: int) -> int:
        return cls.pace(settings, workers).block_bytes(total_bytes, workers)

    def ask(
        self, block: Block, found: Sequence[Sequence[RowPlaces]], examples: int
    ) -> tuple[Any, ...]:
        """Complete the places of a block's keys in each table, and start to pull their rows.

        Called once a block, in the order in which blocks are trained.
        """
        if not self._asked and not (block.first and self.loader(self.settings) is None):
            for rows in self.rows:
                rows.begin_known()
        self._asked += 1
        pace = self.pace(self.settings, self.workers)
        size = pace.period_size(block, examples, self._asked)
        return tuple(rows.ask(some, size) for rows, some in zip(self.rows, found, strict=True))

    # --- training -------------------------------------------------------------------------------

    def train(self, block: Block) -> Mapping[str, float]:
        """Train a prepared block, span by span."""
        prepared: Prepared = block.prepared
        self._trained += any(rows.keeps for rows in self.rows)
        rates = self.rates(block)
        metrics = {**prepared.metrics, "lr": rates[1]}
        if not prepared.asked:
            return metrics
        batch, size = prepared.batch, prepared.size
        rows = [each.ready(asked) for each, asked in zip(self.rows, prepared.asked, strict=True)]
        if size and any(each.exchanges for each in self.rows):
            self.count_steps(batch, rows, rates[0])
        loss, weight, first, begin = 0.0, 0.0, 0, rates[0]
        while first < size:
            last = min(size, first + max(self.span_least, min(each.span() for each in self.rows)))
            end = rates[1] if last == size else rates[0] + (rates[1] - rates[0]) * last / size
            of_span = self.step(batch, rows, (first, last), (begin, end), block.seed)
            loss, weight = loss + of_span[0], weight + of_span[1]
            for each in self.rows:
                each.exchange(last - first)
            first, begin = last, end
        if size:
            metrics |= self.judged(batch, rows, (loss, weight))
        block.kernel_s = self.sgd.take_kernel_s()
        scales = self.scales(batch, rows, rates[0])
        parts = zip(self.rows, prepared.asked, scales, strict=True)
        closed = [each.close(asked, scale) for each, asked, scale in parts]
        if all(closed):  # else some table's deltas are not pushed: the blocks stay `unpushed`
            self._closed, self._trained = self._trained, 0
        return metrics

    def results_of(self, tasks: Sequence[Future[Any]]) -> list[Any]:
        """Wait for kernels, and send rows of the last period meanwhile; returns their results."""
        for task, rows in itertools.product(tasks, self.rows):
            while not task.done() and rows.send_some():
                pass
        return [task.result() for task in tasks]

    def workers_changed(self) -> None:
        for rows in self.rows:
            rows.workers_changed()

    @property
    def unpushed(self) -> int:
        """Blocks of this period, and of the period before while some of its rows are not sent."""
        return self._trained + self._closed * any(rows.sends for rows in self.rows)

    def push_all(self) -> None:
        for rows in self.rows:
            rows.push_all()
        self._trained = self._closed = 0

    def finish(self) -> None:
        for rows in self.rows:
            rows.flush()
        self.rows = ()  # frees the largest thing here: the export needs memory
        self._trained = self._closed = 0
        self.sgd.close()
        super().finish()
