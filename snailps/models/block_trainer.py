"""The trainer of blocks: pulls the rows that a block needs, trains them by spans, pushes deltas.

    prepare: block -> encode -> keys of each table -> Rows.find, ask        (while others train)
    train:   Rows.ready -> spans: step(rows) -> Rows.exchange -> Rows.close

A model gives `tables`, `prepare` (what a block's examples are, and their keys), `step` (kernels),
`rates`, and how its steps on rows add up: `count_steps` where rows are kept, `scales` where they
are copied.  Whether they are kept or copied is decided in `setup`, and nowhere else.
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
from snailps.models.rows import Lookup, Rows, Scale, Trained

Span = tuple[int, int]
Rates = tuple[float, float]
Sums = tuple[float, float]
"""Losses before each step, and weights of examples."""


@dataclass(slots=True)
class Prepared:
    """A prepared block: `batch` has places of rows that were `asked` for, of each table.

    `size` is what spans count, examples or lines; without `asked` there is nothing to learn from.
    `metrics` are those of the block whatever is learned.
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
    """Rows of each trained table."""
    span_least = 1
    _asked = 0  # blocks
    _trained = _closed = 0  # blocks of this period, and of the one before

    # --- to be written by the model -------------------------------------------------------------

    @classmethod
    @abstractmethod
    def pace(cls, settings: Any, workers: int) -> Pace:
        """Blocks and periods for so many workers."""

    @abstractmethod
    def step(
        self, batch: Any, rows: Sequence[Trained], span: Span, rates: Rates, seed: int
    ) -> Sums:
        """Train examples ``range(*span)`` of a batch with all threads."""

    @abstractmethod
    def rates(self, block: Block) -> Rates:
        """Step sizes before and after a block."""

    def count_steps(self, batch: Any, rows: Sequence[Trained], rate: float) -> None:
        """Before a block whose rows are exchanged: count its steps, say how far they go."""

    def scales(self, batch: Any, rows: Sequence[Trained], rate: float) -> Sequence[Scale | None]:
        """After a block of copies: how to scale deltas if rows are shared; None: not at all."""
        return [None] * len(rows)

    def judged(self, batch: Any, rows: Sequence[Trained], sums: Sums) -> Mapping[str, float]:
        """Metrics of a trained block: at least ``loss`` and ``examples``."""
        return {"loss": sums[0], "examples": sums[1]}

    # --- preparing ------------------------------------------------------------------------------

    @classmethod
    def block_bytes(cls, settings: Any, total_bytes: int, workers: int) -> int:
        return cls.pace(settings, workers).block_bytes(total_bytes, workers)

    def ask(
        self, block: Block, found: Sequence[Sequence[Lookup]], examples: int
    ) -> tuple[Any, ...]:
        """Complete the places of a block's keys in each table; start to pull its rows."""
        if not self._asked and not (block.first and self.loader(self.settings) is None):
            for rows in self.rows:
                rows.begin_known()
        self._asked += 1
        pace = self.pace(self.settings, self.workers)
        size = pace.period_size(block, examples, self._asked)
        return tuple(rows.ask(some, size) for rows, some in zip(self.rows, found, strict=True))

    # --- training -------------------------------------------------------------------------------

    def train(self, block: Block) -> Mapping[str, float]:
        """Train on a prepared block."""
        prepared: Prepared = block.prepared
        self._trained += any(rows.keeps for rows in self.rows)
        rates = self.rates(block)
        metrics = {**prepared.metrics, "lr": rates[1]}
        if not prepared.asked:
            return metrics
        batch, size = prepared.batch, prepared.size
        rows = [one.ready(asked) for one, asked in zip(self.rows, prepared.asked, strict=True)]
        if size and any(one.exchanges for one in self.rows):
            self.count_steps(batch, rows, rates[0])
        loss, weight, first, begin = 0.0, 0.0, 0, rates[0]
        while first < size:
            last = min(size, first + max(self.span_least, min(one.span() for one in self.rows)))
            end = rates[1] if last == size else rates[0] + (rates[1] - rates[0]) * last / size
            of_span = self.step(batch, rows, (first, last), (begin, end), block.seed)
            loss, weight = loss + of_span[0], weight + of_span[1]
            for one in self.rows:
                one.exchange(last - first)
            first, begin = last, end
        if size:
            metrics |= self.judged(batch, rows, (loss, weight))
        scales = self.scales(batch, rows, rates[0])
        parts = zip(self.rows, prepared.asked, scales, strict=True)
        closed = [one.close(asked, scale) for one, asked, scale in parts]
        if all(closed):  # else deltas of a table are still here
            self._closed, self._trained = self._trained, 0
        return metrics

    def results_of(self, tasks: Sequence[Future[Any]]) -> list[Any]:
        """Results of kernels at work, beside which rows of the last period are sent."""
        for task, rows in itertools.product(tasks, self.rows):
            while not task.done() and rows.send_some():
                pass
        return [task.result() for task in tasks]

    def workers_changed(self) -> None:
        for rows in self.rows:
            rows.workers_changed()

    @property
    def unpushed(self) -> int:
        """Blocks of this period, and of the one before while some of its rows are not pushed."""
        return self._trained + self._closed * any(rows.sends for rows in self.rows)

    def finish(self) -> None:
        for rows in self.rows:
            rows.flush()
        self.rows = ()  # the largest thing here, and the export follows
        self._trained = self._closed = 0
        self.sgd.close()
        super().finish()
