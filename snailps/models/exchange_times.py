"""When a kept row is exchanged: after the steps of all workers since then would go too far.

    steps of a block -> saw -> frequent rows, an interval each -> due: rows to exchange now
    a period ends -> ripe: rows that go with it                   span: examples until `due` again

Counts and estimates are `kernels/_row_exchange.pyx`'s; no row and no request here.  Times are
examples that this worker has trained.  docs/design/shared-rows.md.
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
"""Own steps on a row between two exchanges, at least: an exchange costs as much as some steps."""
RARE_PERIODS = 4
"""Periods, as long as the last one, that a rare row waits at most: so much of it is lost with a
worker that dies."""
RARE_DRIFT = 0.5
"""Part of the drift without which a row waits for a later period."""
GROWTH_OF_ALL = 0.08
"""Part of the examples so far, times the workers, after which a row with `growth` is exchanged."""
FACTOR_DRIFT_OF_ALL = 1.6
"""Drift of factors with AdaGrad, times the workers, after which such a row is exchanged."""
MEMORY = 0.75
"""Weight of the counts so far when those of a block are added."""
HOT_MAX = 1 << 17
"""Rows, the most frequent ones, that are exchanged between periods."""
CHOOSE = 8
"""Rows and intervals are chosen anew after 1 / CHOOSE of the examples so far, and of a period."""
SPAN_MIN = 16
"""Examples between two calls of `exchange`, at least."""
STALE = 100.0
"""Spans are at least the root of STALE x cost of an exchange (in examples) x shortest interval."""
SPANS_MIN = 32
"""A span by `STALE` is at most 1 / SPANS_MIN of the examples so far: first steps are long."""

NO_TIMES = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True)
class ExchangeRule:
    """How far a row goes before it is exchanged.

    `growth`, for rows that begin near zero: a frequent row is exchanged after this part of the
    examples so far, after `GROWTH_OF_ALL` or `FACTOR_DRIFT_OF_ALL` over the workers at the latest,
    and no span is longer, whatever an exchange costs.  With `rare_steps` one of several workers
    keeps rows back when a period ends: rows with fewer own steps, or less than `RARE_DRIFT`, for
    `RARE_PERIODS` at most.
    """

    drift: float = DRIFT
    steps_min: float = STEPS_MIN
    growth: float = np.inf
    rare_steps: float = 0.0

    @property
    def grows(self) -> bool:
        return self.growth < np.inf


class ExchangeTimes:
    """Rows that are exchanged between periods, by place, with their intervals.

    `seconds` measures what an exchange costs in examples.
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
        self._begun = 0.0  # the same when the period began
        self._period_examples = 0.0  # of a whole period, as far as known
        self._periods = 0
        self._choose_at = 0.0
        self._forget()
        self._shortest = 0.0  # interval of any row
        self._example_s = self._exchange_s = 0.0
        self._trains_since: float | None = None

    def _forget(self) -> None:
        self._hot, self._due, self._interval = NO_PLACES, NO_TIMES, NO_TIMES

    def begin_anew(self) -> None:
        """Rows have other places from now on."""
        self._choose_at = 0.0
        self._forget()

    def begin_block(self) -> None:
        """What comes now is no time of training."""
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
        """Count a block's steps; `period_examples` are those of a period of such blocks."""
        rows.count(places, examples, MEMORY, weights)
        if self._periods == 0:
            self._period_examples = period_examples
        if self.now >= self._choose_at:
            self._choose(rows, used)

    def _choose(self, rows: RowExchange, used: int) -> None:
        """Choose the rows that are exchanged between periods, and the intervals."""
        rule = self.rule
        # Rows that a period exchanges as often gain nothing.
        least = 2 * rule.steps_min * rows.examples / max(1.0, self._period_examples)
        hot = rows.frequent(used, max(least, 1.0))
        if len(hot) > HOT_MAX:
            top = np.argpartition(rows.counted(hot), len(hot) - HOT_MAX)[-HOT_MAX:]
            hot = hot[np.sort(top)]
        interval, last = self._intervals(rows, hot, rule.drift, rule.steps_min)
        if rule.grows:
            at_least = rule.steps_min * rows.examples / rows.counted(hot)
            growth = min(rule.growth, GROWTH_OF_ALL / self._worker.workers)
            interval = np.minimum(interval, np.maximum(self.now * growth, at_least))
        few = interval < self._period_examples / 2
        self._hot, self._interval = hot[few], interval[few]
        self._due = last[few] + self._interval
        self._shortest = float(self._interval.min()) if len(self._hot) else 0.0
        self._choose_at = self.now + min(self.now / CHOOSE, self._period_examples / CHOOSE)

    def _intervals(
        self, rows: RowExchange, places: Ids, drift: float, steps: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Examples between two exchanges (infinite: not counted), and when the last one was."""
        workers = self._worker.workers
        return rows.intervals(
            self._estimate,
            places,
            workers=workers,
            drift=drift,
            steps_min=steps,
            now=self.now,
            factor_drift=FACTOR_DRIFT_OF_ALL / workers if self.rule.grows else np.inf,
        )

    def span(self) -> int:
        """Examples until `due` is asked again."""
        if len(self._hot) == 0:
            return WHOLE
        cost = self._exchange_s / self._example_s if self._example_s > 0 else 0.0
        cheap = 0.0 if self.rule.grows else (STALE * cost * self._shortest) ** 0.5
        return int(max(SPAN_MIN, self._shortest, min(cheap, self.now / SPANS_MIN)))

    def begin_exchange(self, rows: RowExchange, used: int, examples: int) -> float:
        """After so many examples, the last ones in `now`; returns when, for `end_exchange`."""
        begin = self.seconds()
        if self._trains_since is not None and examples:
            self._example_s = _mean(self._example_s, (begin - self._trains_since) / examples)
        if self.rule.grows and examples and self.now >= self._choose_at:
            self._choose(rows, used)
        return begin

    def due(self) -> Ids:
        """Rows to exchange now; the intervals stay as chosen, `saw` measures again."""
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
        self._period_examples = self.now - self._begun
        self._begun = self.now
        self._periods += 1

    def ripe(self, rows: RowExchange, places: Ids) -> NDArray[np.bool_]:
        """Which rows are sent at the end of this period."""
        rule = self.rule
        interval, last = self._intervals(rows, places, RARE_DRIFT * rule.drift, rule.rare_steps)
        np.minimum(interval, RARE_PERIODS * self._period_examples, out=interval)
        return np.asarray(self.now - last >= interval)


def _mean(mean: float, value: float) -> float:
    return value if mean == 0 else 0.9 * mean + 0.1 * value
