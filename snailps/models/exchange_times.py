"""Decides when a kept row is exchanged: before all workers' steps since the last time go too far.

    steps of a block -> saw -> frequent rows, an interval each -> due: rows to exchange now
    a period ends -> ripe: rows that go with it                   span: examples until `due` again

Owns the rows that are exchanged between periods, and their intervals.  Times are examples that this
worker has trained.  `kernels/_row_exchange.pyx` counts and estimates; no row and no request here.
docs/design/shared-rows.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Worker
from snailps.dataclass import dataclass
from snailps.kernels._row_exchange import DriftEstimate, RowExchange
from snailps.models.local_sgd import Floats
from snailps.models.rows import NO_PLACES, WHOLE, Ids

DRIFT = 3.0
"""Steps of all workers x rate x curvature after which a row is exchanged."""
STEPS_MIN = 4
"""This worker's steps on a row between two exchanges, at least: an exchange costs as much as some
steps."""
RARE_PERIODS = 4
"""Most periods (as long as the last one) that a rare row waits.  A worker that dies loses what the
row has learnt in that time."""
RARE_DRIFT = 0.5
"""A row waits for a later period if its drift is below this part of `drift`."""
MEMORY = 0.75
"""Factor of the earlier counts when the counts of a block are added."""
HOT_MAX = 1 << 17
"""Most rows that are exchanged between periods, the most frequent ones."""
CHOOSE = 8
"""Rows and intervals are chosen again after 1 / CHOOSE of the examples so far, or of a period; but
not before any row may be exchanged again (`growth_least`)."""
SPAN_MIN = 16
"""Fewest examples between two calls of `exchange`."""
STALE = 100.0
"""A span is at least sqrt(STALE x cost of an exchange (in examples) x shortest interval)."""
SPANS_MIN = 32
"""A span by `STALE` is at most 1 / SPANS_MIN of the examples so far: first steps are long.  Nor is
it longer than the part of them that `ExchangeRule.growth_of_all` gives."""

NO_TIMES = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True)
class ExchangeRule:
    """How far a row goes before it is exchanged.

    `drift` bounds the steps of all workers between two exchanges of a row; `steps_min` is the least
    number of this worker's steps, and `growth_least` the least part by which its examples have
    grown: until then rows travel at the end of a period at the latest.  `growth` is for rows that
    start near zero and whose steps are proportional to each other: a frequent row is exchanged
    after this part of the examples so far.  `growth_of_all`, `factor_drift_of_all`: w workers
    exchange such a row at the latest after 1 / w of this part of the examples, or when its factors,
    with AdaGrad, have drifted by 1 / w of this.  `rare_steps`: rows with fewer steps of this
    worker, or a drift below `RARE_DRIFT`, wait at the end of a period, for up to `RARE_PERIODS`.
    `stale` says how much the cost of an exchange makes spans longer than the shortest interval
    (`STALE`); 0: not at all.
    """

    drift: float = DRIFT
    steps_min: float = STEPS_MIN
    growth_least: float = 0.0
    growth: float = np.inf
    growth_of_all: float = np.inf
    factor_drift_of_all: float = np.inf
    rare_steps: float = 0.0
    stale: float = STALE

    @property
    def grows(self) -> bool:
        return self.growth < np.inf


class ExchangeTimes:
    """The rows that are exchanged between periods, by place, with their intervals.

    ``seconds()`` is the clock by which the cost of an exchange, in examples, is measured.  Used by
    the training thread alone.
    """

    def __init__(
        self,
        worker: Worker,
        estimate: DriftEstimate,
        rule: ExchangeRule,
        seconds: Callable[[], float],
    ) -> None:
        self._worker, self._estimate, self.rule, self.seconds = worker, estimate, rule, seconds
        self.now = 0.0  # examples trained
        self._period_began = 0.0  # `now` when this period began
        self._period_examples = 0.0  # of the last whole period, or as the first block suggests
        self._periods = 0
        self._choose_at = 0.0
        self._forget()
        self._shortest = 0.0  # shortest interval of a row
        self._example_s = self._exchange_s = 0.0
        self._trains_since: float | None = None

    def _forget(self) -> None:
        self._hot, self._due, self._interval = NO_PLACES, NO_TIMES, NO_TIMES

    def begin_anew(self) -> None:
        """Forget rows and intervals: rows have other places from now on."""
        self._choose_at = 0.0
        self._forget()

    def begin_block(self) -> None:
        """Start a block; the time until its first span does not count as training."""
        self._trains_since = None

    def saw(
        self,
        rows: RowExchange,
        used: int,
        places: Ids,
        examples: int,
        weights: Floats | None,
        period_examples: float,
    ) -> None:
        """Count a block's steps; a period of such blocks has `period_examples`."""
        rows.count(places, examples, MEMORY, weights)
        if self._periods == 0:
            self._period_examples = period_examples
        if self.now >= self._choose_at:
            self._choose(rows, used)

    def _choose(self, rows: RowExchange, used: int) -> None:
        """Choose the rows that are exchanged between periods, and their intervals."""
        rule = self.rule
        grown = self.now * rule.growth_least
        self._choose_at = self.now + max(min(self.now, self._period_examples) / CHOOSE, grown)
        # A row with about one exchange a period gains nothing here: the period sends it anyway.
        least = 2 * rule.steps_min * rows.examples / max(1.0, self._period_examples)
        hot = rows.frequent(used, max(least, 1.0))
        if len(hot) > HOT_MAX:
            top = np.argpartition(rows.counted(hot), len(hot) - HOT_MAX)[-HOT_MAX:]
            hot = hot[np.sort(top)]
        interval, last = self._intervals(rows, hot, rule.drift, rule.steps_min)
        np.maximum(interval, grown, out=interval)
        if rule.grows:
            at_least = rule.steps_min * rows.examples / rows.counted(hot)
            growth = min(rule.growth, rule.growth_of_all / self._worker.workers)
            interval = np.minimum(interval, np.maximum(self.now * growth, at_least))
        few = interval < self._period_examples / 2
        self._hot, self._interval = hot[few], interval[few]
        self._due = last[few] + self._interval
        self._shortest = float(self._interval.min()) if len(self._hot) else 0.0

    def _intervals(
        self, rows: RowExchange, places: Ids, drift: float, steps: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Examples between two exchanges (infinite: not counted), and the time of the last one."""
        workers = self._worker.workers
        return rows.intervals(
            self._estimate,
            places,
            workers=workers,
            drift=drift,
            steps_min=steps,
            now=self.now,
            factor_drift=self.rule.factor_drift_of_all / workers,
        )

    def span(self) -> int:
        """Examples until `due` is asked again."""
        if len(self._hot) == 0:
            return WHOLE
        cost = self._exchange_s / self._example_s if self._example_s > 0 else 0.0
        cheap = (self.rule.stale * cost * self._shortest) ** 0.5
        growth = min(1 / SPANS_MIN, self.rule.growth_of_all / self._worker.workers)
        return int(max(SPAN_MIN, self._shortest, min(cheap, self.now * growth)))

    def begin_exchange(self, rows: RowExchange, used: int, examples: int) -> float:
        """Start an exchange after `examples`, which `now` includes; returns the time, for
        `end_exchange`.
        """
        begin = self.seconds()
        if self._trains_since is not None and examples:
            self._example_s = _mean(self._example_s, (begin - self._trains_since) / examples)
        if self.rule.grows and examples and self.now >= self._choose_at:
            self._choose(rows, used)
        return begin

    def due(self) -> Ids:
        """Take the rows to exchange now; their intervals stay as chosen until `saw`."""
        if len(self._hot) == 0:
            return NO_PLACES
        due = np.flatnonzero(self._due <= self.now)
        if len(due):
            self._due[due] = self.now + self._interval[due]
        return self._hot[due]

    def end_exchange(self, begin: float) -> None:
        self._trains_since = self.seconds()
        self._exchange_s = _mean(self._exchange_s, self._trains_since - begin)

    def end_period(self) -> None:
        self._period_examples = self.now - self._period_began
        self._period_began = self.now
        self._periods += 1

    def ripe(self, rows: RowExchange, places: Ids) -> NDArray[np.bool_]:
        """Which rows are sent at the end of this period; the others wait for a later one."""
        rule = self.rule
        interval, last = self._intervals(rows, places, RARE_DRIFT * rule.drift, rule.rare_steps)
        np.minimum(interval, RARE_PERIODS * self._period_examples, out=interval)
        return np.asarray(self.now - last >= interval)


def _mean(mean: float, value: float) -> float:
    return value if mean == 0 else 0.9 * mean + 0.1 * value
