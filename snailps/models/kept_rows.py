"""Rows of one table kept at a worker: trained where they lie, exchanged with the servers by rate.

    keys of a block -> find, ask: a place each; keys without one -> PULL
    places -> ready: rows to train -> spans of examples, with `exchange` between them
    exchange: rows that are due -> PUSH share x (local - base), PULL behind it -> answer
              local += answer - (base + pushed); base = answer
    close, every few blocks: rows that were trained -> PUSH, or send_some beside kernels
    ready: rows that a period has pushed, when a block uses them again -> PULL -> merged

Each worker exchanges its copy of a row when the steps of all workers since the last exchange would
go so far that copies disagree (`DriftEstimate`); an only worker only pushes.  No optimiser and no
text; the arithmetic is `kernels/_row_exchange.pyx`.  docs/design/shared-rows.md.  Invariants:

* `find` and `ask` for a later block may run in other threads while a block trains: they write
  places; the training thread writes rows, and kernel threads between `ready` and `exchange`.
  `send_some` reads rows meanwhile.
* `find` may run in several threads at once, but not while `ask` does.  Blocks are asked for, and
  trained, in one order.
* A row is in one exchange at a time: none begins while answers are missing, except pulls of rows
  that no exchange since their period has sent.
* After a period is closed, and `send_some` until it returns False, the client has the share of each
  delta of the trained blocks, but of rows that wait (`rare_steps`): later periods, or `flush`,
  send these.  The rest goes with later exchanges of the row, is given up where all workers have
  gone far (`FAR_OF_ALL`), or is lost when kept rows are dropped.  An only worker's share is all of
  it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Pending
from snailps.data._key_numbering import KeptNumbers
from snailps.dataclass import dataclass
from snailps.kernels._row_exchange import DriftEstimate, RowExchange
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.rows import (
    NO_KEYS,
    NO_PLACES,
    WHOLE,
    Ids,
    Lookup,
    Rows,
    Scale,
    Trained,
    ascending,
)

CACHE_BYTES = 512 << 20
"""Memory of one table's kept rows and their numbering."""
CACHE_BYTES_ALONE = 1 << 30
"""`CACHE_BYTES` of an only worker, which would pull rows that just do not fit again and again."""
KEY_BYTES = 64
"""Memory of a key beside its row: its part of the hash table at its emptiest, and its record."""
DRIFT = 3.0
"""Steps of all workers x rate x curvature after which a row is exchanged."""
STEPS_MIN = 4
"""Own steps on a row between two exchanges, at least: an exchange costs as much as some steps."""
RARE_PERIODS = 4
"""Periods, as long as the last one, that a rare row waits at most: so much of it is lost with a
worker that dies."""
RARE_DRIFT = 0.5
"""Part of the drift without which a row waits for a later period."""
FAR = 10.0
"""`DRIFT` from which half of a delta's rest is given up with AdaGrad and SGD."""
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
LATE = 2
"""Spans without an answer after which training waits for it."""
CHUNK_ROWS = 1 << 15
"""Rows of one request; frequent rows are exchanged again once all chunks of a period are merged."""
MADE_BYTES = 128 << 10
"""Rows whose first values are made at a time: they are in cache when they are copied."""
CHUNK_BYTES = 16 << 20
"""Deltas of one request without an answer, at most; `CHUNK_ROWS` rows at least."""
CHUNKS_ON_WAY = 2
"""Requests without an answer that may be unacknowledged, and pulls of bases ahead."""
PIECE_BYTES = 1 << 20
"""Deltas of one request of rows without bases: small enough to stay in the second cache."""

SGD = 1  # of abi/_row_ops.h


def of_curvature(dim: int) -> DriftEstimate:
    """Make the estimate of rows without state, all of one curvature: `a_step`, at first 0."""
    return DriftEstimate(SGD, dim, far=FAR)


class _Places:
    """Numbering, rows and measurements of the keys that fit into the memory, by place.

    Pages of memory are taken when they are first written, so unused room costs nothing.
    """

    def __init__(self, sgd: LocalSgd, room: int, *, bases: bool) -> None:
        self.room = min(max(1, room), (1 << 30) - 1)
        self.numbers = KeptNumbers(self.room)
        self.pulling = False  # whether own deltas of earlier places have arrived
        self.makes = False  # whether no server has rows of its new keys
        layout = sgd.layout
        self.rows = layout.make(self.room)
        self.exchange = RowExchange(self.rows, layout.dim, layout.parts, bases=bases)
        self.used = 0  # of all blocks that are trained or being trained


@dataclass(slots=True)
class KeptBlock:
    """A block's rows among the kept ones.

    `new` are the places that the block uses first, of `new_keys`, which `pull` brings (None:
    `ready` pulls them, or there are none); `touched` includes them.  `row_num` counts places in
    use, and `closes` says whether the block is the last of its period.
    """

    places: _Places
    row_num: int
    new: slice
    new_keys: Keys
    pull: Pending | None
    touched: Ids
    closes: bool


@dataclass(slots=True)
class _Exchange:
    """Rows on their way: pushed, pulled, or pulled behind the push.

    `pulled` are the places that are answered, `given_up` what local copies at `given_at` lose.
    """

    push: Pending | None
    pull: Pending | None
    pulled: Ids
    given_up: Floats
    given_at: Ids


class KeptRows(Rows):
    """Rows of one table, kept at this worker and exchanged by rate.

    `saw` counts a block's steps, between `ready` and the first span.  `room` is the number of kept
    rows (0: by `CACHE_BYTES`); when it is used up, everything is pushed and the next block begins
    anew.  `growth`, for rows that begin near zero: a frequent row is exchanged after this part of
    the examples so far, after `GROWTH_OF_ALL` or `FACTOR_DRIFT_OF_ALL` over the workers at the
    latest, and no span is longer, whatever an exchange costs.  With `rare_steps` one of several
    workers keeps rows back when a period ends: those with fewer own steps, or less than
    `RARE_DRIFT`, for `RARE_PERIODS` at most.  With `pulls_bases` an only worker has no bases and
    pulls them when it pushes; with ``fill_first(keys, rows)`` it makes first values itself, until
    `begin_known` or another worker comes.  With state, the layout of `sgd` must not be split.
    """

    keeps = True

    def __init__(
        self,
        sgd: LocalSgd,
        table: str,
        estimate: DriftEstimate,
        *,
        room: int = 0,
        period_blocks: int = 1,
        steps_min: float = STEPS_MIN,
        drift: float = DRIFT,
        growth: float = np.inf,
        rare_steps: float = 0.0,
        pulls_bases: bool = False,
        fill_first: Callable[[Keys, Floats], None] | None = None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(sgd, table)
        self.estimate, self._room, self._pulls_bases = estimate, room, pulls_bases
        self._period_blocks, self._steps_min, self._drift = period_blocks, steps_min, drift
        self._growth, self._rare_steps = growth, rare_steps
        # A waiting main thread's time says nothing about kernel threads.
        own_time = time.thread_time if sgd.worker.threads == 1 else time.perf_counter
        self._seconds = seconds or own_time
        # Of the preparing thread.
        self._asked = self._places_for(0)
        self._asked.pulling = True
        self._fill_first = fill_first
        self._made_rows = max(1, MADE_BYTES // (4 * sgd.layout.width))
        self._asked.makes = fill_first is not None and not self.are_shared
        self.numbering = 0  # how often places were given anew
        self._blocks, self._size = 0, 0.0  # of this period
        self._blocks_a_period = period_blocks
        # Of the training thread.
        self._kept = self._asked
        self._made = (0, 0)  # range of places whose rows were made here, and not pushed yet
        self._touched: list[Ids] = []  # in this period
        self._on_way: deque[_Exchange] = deque()
        self._left: deque[tuple[Ids, bool]] = deque()  # chunks to be sent, and whether made here
        self._bases: deque[tuple[Ids, Keys, Floats, Pending | None]] = deque()  # of the next ones
        self._no_rows = np.empty((0, sgd.layout.width), np.float32)
        self._now = 0.0  # examples trained
        self._begun = 0.0  # the same when the period began
        self._period_examples = 0.0  # of a whole period, as far as known
        self._periods = 0
        self._hot = np.empty(0, np.int32)
        self._due = np.empty(0, np.float64)
        self._interval = np.empty(0, np.float64)
        self._choose_at = 0.0
        self._shortest = 0.0  # interval of any row
        self._example_s = self._exchange_s = 0.0
        self._left_at: float | None = None
        self._waited = 0
        self._shares = False  # in the last block with other workers
        self._has_new_company = False
        self.exchanged = 0

    def begin_known(self) -> None:
        self._asked.makes = self._kept.makes = False

    def workers_changed(self) -> None:
        super().workers_changed()
        self._has_new_company = True

    @property
    def exchanges(self) -> bool:
        """False for an only worker, which only pushes, and for others until they have bases."""
        return self.are_shared and self._kept.exchange.has_bases

    def _places_for(self, needed: int) -> _Places:
        """Places for `needed` rows at least, and for as many as the memory holds."""
        layout = self._sgd.layout
        bases = self.are_shared or not self._pulls_bases
        row_bytes = 4 * (layout.trained_width + bases * layout.width) + KEY_BYTES
        room = self._room or (CACHE_BYTES if self.are_shared else CACHE_BYTES_ALONE) // row_bytes
        return _Places(self._sgd, max(room, needed), bases=bases)

    # --- in the preparing thread -------------------------------------------------------------

    def find(self, keys: Keys) -> Lookup:
        return Lookup(keys, *self._asked.numbers.find(keys))

    def find_again(self, places: Ids) -> Lookup:
        return Lookup(NO_KEYS, NO_PLACES, NO_PLACES, self._asked.numbers.touch(places))

    def ask(self, found: Sequence[Lookup], size: float = np.inf) -> KeptBlock:
        """Give the missing keys of a block places and start to pull their rows.

        `found` has all keys of the block and is completed.  `size` is the part of a period that the
        block is: a period's blocks add up to 1, and are `period_blocks` at least.
        """
        numbered = self._number(found)
        if numbered is None:
            needed = sum(len(one.keys) for one in found)
            self._asked = self._places_for(needed)
            self.numbering += 1
            for one in found:
                again = self.find(one.keys)
                one.places[:], one.missing, one.touched = (
                    again.places,
                    again.missing,
                    again.touched,
                )
            numbered = self._number(found)
            assert numbered is not None
        places, keys, new = self._asked, numbered[0], numbered[1]
        pull = None
        if len(keys) and places.pulling and not places.makes:
            pull = self._sgd.pull_rows(self._table, keys)
        fresh = np.arange(new.start, new.stop, dtype=np.int32)
        touched = np.concatenate([*(one.touched for one in found), fresh])
        self._blocks += 1
        self._size += size
        self._blocks_a_period = max(self._period_blocks, ceil(1 / max(size, 1e-6)))
        closes = self._blocks >= self._period_blocks and self._size > 1 - 1e-6
        if closes:
            places.numbers.begin_period()
            self._blocks, self._size = 0, 0.0
        return KeptBlock(places, new.stop, new, keys, pull, touched, closes)

    def _number(self, found: Sequence[Lookup]) -> tuple[Keys, slice] | None:
        """New keys and their places; None if there is no room for them."""
        numbers = self._asked.numbers
        first = len(numbers)
        parts = [numbers.number(one.keys, one.missing, one.places) for one in found]
        if not all(fits for _, fits in parts):
            return None
        return np.concatenate([keys for keys, _ in parts]), slice(first, len(numbers))

    # --- in the training thread --------------------------------------------------------------

    def ready(self, asked: KeptBlock) -> Trained:
        """The rows of all places so far."""
        kept, places, sgd = asked, asked.places, self._sgd
        if places is not self._kept:
            self._begin_anew(places)
        if self.are_shared and not places.exchange.has_bases:
            self._take_bases()
        new = kept.new
        if new.stop > new.start and kept.pull is None and places.makes:
            numbers = np.arange(new.start, new.stop, dtype=np.int32)
            sgd.in_threads(self._make, numbers, kept.new_keys)
            self._made = self._made[0], new.stop
        elif new.stop > new.start:
            pull = kept.pull
            if pull is None:
                out = sgd.packed.take(len(kept.new_keys))
                pull = sgd.worker.pull_async(self._table, kept.new_keys, out, state=sgd.state)
            pulled = pull.wait()
            self._project(kept.new_keys, pulled)
            numbers = np.arange(new.start, new.stop, dtype=np.int32)
            load = partial(places.exchange.load, now=self._now)
            sgd.in_threads(load, numbers, kept.new_keys, pulled)
            sgd.packed.give(pulled)
        places.used = kept.row_num
        has_new_company, self._has_new_company = self._has_new_company, False
        if has_new_company:
            places.exchange.share_anew()
        if self.exchanges:
            self._refresh(kept.touched[: len(kept.touched) - len(kept.new_keys)])
        elif self._shares or (has_new_company and places.exchange.has_bases):
            # The last exchange with workers that have left, or whose place this one has.
            self._send_all()
            known = np.arange(kept.row_num - (new.stop - new.start), dtype=np.int32)
            self._refresh(known, quiet_too=True)
            self._settle()
        self._shares = self.exchanges
        self._touched.append(kept.touched)
        self._left_at = None
        return (places.rows[: kept.row_num],)

    def _make(self, places: Ids, keys: Keys) -> None:
        """Give new rows their first values; threads may call it for different rows."""
        assert self._fill_first is not None
        step = self._made_rows
        packed = np.empty((min(len(keys), step), self._sgd.layout.width), np.float32)
        for first in range(0, len(keys), step):
            some = slice(first, first + step)
            rows = packed[: len(keys[some])]
            self._fill_first(keys[some], rows)
            self._kept.exchange.load(places[some], keys[some], rows, now=self._now)

    def _take_made(self, places: Ids, keys: Keys, deltas: Floats) -> None:
        """Write the deltas of rows that were made here."""
        assert self._fill_first is not None
        for first in range(0, len(keys), self._made_rows):
            some = slice(first, first + self._made_rows)
            self._fill_first(keys[some], deltas[some])
            self._kept.exchange.subtract(places[some], deltas[some])

    def _begin_anew(self, places: _Places) -> None:
        """Push shares of all trained rows, and continue with other places."""
        self._send_period(answers=False)
        self._settle()
        self._kept = places
        self._choose_at = 0.0
        places.pulling = True
        self._hot = np.empty(0, np.int32)

    def _take_bases(self) -> None:
        """Another worker has joined: push all deltas; the servers' rows are then the bases.

        What the other worker pushed to these rows before is lost.
        """
        self._send_all()
        self._settle()
        exchange, used = self._kept.exchange, self._kept.used
        exchange.keep_bases(used)
        # Sent now, with no steps: else the next deltas would count as all steps since rows came.
        keys = np.empty(CHUNK_ROWS, np.uint64)
        deltas = np.empty((CHUNK_ROWS, self._sgd.layout.width), np.float32)
        for first in range(0, used, CHUNK_ROWS):
            some = np.arange(first, min(first + CHUNK_ROWS, used), dtype=np.int32)
            n = len(some)
            exchange.send(
                self.estimate, some, keys[:n], deltas[:n], workers=1, now=self._now, giving=False
            )

    def _send_all(self) -> None:
        """Push all deltas within a period, whose later blocks do not name these rows again."""
        touched = self._touched
        self._send_period(answers=False)
        self._touched = touched

    def saw(
        self, places: Ids, examples: int, share: float = 1.0, weights: Floats | None = None
    ) -> None:
        """Chooses the rows that are exchanged in the block, too."""
        kept = self._kept
        if not self.exchanges or examples == 0:
            return
        kept.exchange.count(places, examples, MEMORY, weights)
        if self._periods == 0:
            self._period_examples = examples / share * self._blocks_a_period
        if self._now >= self._choose_at:
            self._choose()

    def _choose(self) -> None:
        """Choose the rows that are exchanged between periods, and the intervals."""
        kept, known = self._kept, self._kept.exchange
        # Rows that a period exchanges as often gain nothing.
        least = 2 * self._steps_min * known.examples / max(1.0, self._period_examples)
        hot = known.frequent(kept.used, max(least, 1.0))
        if len(hot) > HOT_MAX:
            top = np.argpartition(known.counted(hot), len(hot) - HOT_MAX)[-HOT_MAX:]
            hot = hot[np.sort(top)]
        interval, last = self._intervals(hot, self._drift, self._steps_min)
        if self._growth < np.inf:
            at_least = self._steps_min * known.examples / known.counted(hot)
            growth = min(self._growth, GROWTH_OF_ALL / self._sgd.worker.workers)
            interval = np.minimum(interval, np.maximum(self._now * growth, at_least))
        few = interval < self._period_examples / 2
        self._hot, self._interval = hot[few], interval[few]
        self._due = last[few] + self._interval
        self._shortest = float(self._interval.min()) if len(self._hot) else 0.0
        self._choose_at = self._now + min(self._now / CHOOSE, self._period_examples / CHOOSE)

    def _intervals(
        self, places: Ids, drift: float, steps: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Examples between two exchanges (infinite: not counted), and when the last one was."""
        workers, grows = self._sgd.worker.workers, self._growth < np.inf
        return self._kept.exchange.intervals(
            self.estimate,
            places,
            workers=workers,
            drift=drift,
            steps_min=steps,
            now=self._now,
            factor_drift=FACTOR_DRIFT_OF_ALL / workers if grows else np.inf,
        )

    def span(self) -> int:
        if not self.exchanges or len(self._hot) == 0:
            return WHOLE
        cost = self._exchange_s / self._example_s if self._example_s > 0 else 0.0
        cheap = (STALE * cost * self._shortest) ** 0.5 if self._growth == np.inf else 0.0
        return int(max(SPAN_MIN, self._shortest, min(cheap, self._now / SPANS_MIN)))

    def exchange(self, examples: int) -> None:
        """Merge arrived answers, and send rows that are due; no kernel may run meanwhile."""
        begin = self._seconds()
        self._now += examples
        if not self.exchanges:
            return
        if self._left_at is not None and examples:
            self._example_s = _mean(self._example_s, (begin - self._left_at) / examples)
        if self._growth < np.inf and examples and self._now >= self._choose_at:
            self._choose()
        self._waited += 1
        self._settle(wait=self._waited >= LATE)
        if not self._on_way and len(self._hot):
            at = np.flatnonzero(self._due <= self._now)
            if len(at):
                self._send(self._hot[at], answers=True)
                self._waited = 0
                # The interval stays as chosen; `saw` measures again.
                self._due[at] = self._now + self._interval[at]
        self._left_at = self._seconds()
        self._exchange_s = _mean(self._exchange_s, self._left_at - begin)

    def close(self, asked: KeptBlock, scale: Scale | None = None) -> bool:
        """Push the deltas of the period's rows, if it ends here, without waiting for answers.

        With several threads, rows without bases are left to `send_some`.
        """
        if not asked.closes:
            return False
        self._settle()
        self._send_period(answers=self.exchanges)
        # With one thread a seed gives the same bits each time: no row is read while it is trained.
        while self._sgd.worker.threads == 1 and self.send_some():
            pass
        self._period_examples = self._now - self._begun
        self._begun = self._now
        self._periods += 1
        return True

    @property
    def sends(self) -> bool:
        return bool(self._left or self._bases)

    def flush(self) -> None:
        self._settle()
        self._send_period(answers=False)
        self._settle()

    def _send_period(self, *, answers: bool) -> None:
        if not self._touched:
            return
        self._settle()
        touched = ascending(np.concatenate(self._touched), self._kept.used)
        self._touched = []
        if not answers:
            self._send_quietly(touched)
            return
        if self._rare_steps > 0:
            chunks = np.array_split(touched, len(touched) // CHUNK_ROWS + 1)
            ripe = np.concatenate([self._ripe(chunk) for chunk in chunks])  # in cache
            self._touched, touched = [touched[~ripe]], touched[ripe]
        for chunk in np.array_split(touched, len(touched) // CHUNK_ROWS + 1):
            self._send(chunk, answers=True, all_back=False)

    def _ripe(self, places: Ids) -> NDArray[np.bool_]:
        """Which rows are sent at the end of this period."""
        interval, last = self._intervals(places, RARE_DRIFT * self._drift, self._rare_steps)
        np.minimum(interval, RARE_PERIODS * self._period_examples, out=interval)
        return np.asarray(self._now - last >= interval)

    def _send_quietly(self, touched: Ids) -> None:
        """Send rows without an answer, in chunks: all deltas would take as much memory as rows."""
        if not self._kept.exchange.has_bases:
            rows = max(1, PIECE_BYTES // (4 * self._sgd.layout.width))
            self._sgd.packed.drop(rows)
            parts = np.split(touched, np.searchsorted(touched, self._made))
            self._made = self._made[1], self._made[1]
            for part, made in zip(parts, (False, True, False), strict=True):
                if len(part):
                    chunks = np.array_split(part, len(part) // rows + 1)
                    self._left.extend((chunk, made) for chunk in chunks)
            return
        rows = max(CHUNK_ROWS, CHUNK_BYTES // (4 * self._sgd.layout.width))
        self._sgd.packed.drop(rows)
        for chunk in np.array_split(touched, len(touched) // rows + 1):
            while len(self._on_way) >= CHUNKS_ON_WAY:
                self._settle_first()
            self._send(chunk, answers=False)

    def send_some(self) -> bool:
        """Send some of the rows that a closed period has left.

        Bases are made, if no push has changed the row since it was made, or pulled, as no other
        worker changes them.  Kernels may train the rows meanwhile: steps that are missed go with
        the next period.
        """
        sgd, exchange = self._sgd, self._kept.exchange
        while self._left and len(self._bases) < CHUNKS_ON_WAY:
            places, made = self._left.popleft()
            keys = exchange.keys(places)
            out, pull = sgd.packed.take(len(places)), None
            if not made:
                # With state, hence exactly as the server has the rows, whatever their wire type.
                pull = sgd.worker.pull_async(self._table, keys, out, state=True, ahead=True)
            self._bases.append((places, keys, out, pull))
        if not self._bases:
            return False
        places, keys, deltas, pull = self._bases.popleft()
        if pull is None:
            self._take_made(places, keys, deltas)
        else:
            deltas = pull.wait()
            exchange.subtract(places, deltas)
        while len(self._on_way) >= CHUNKS_ON_WAY:
            self._settle_first()
        push = sgd.worker.push_async(self._table, keys, deltas, state=sgd.state)
        self._on_way.append(_Exchange(push, None, NO_PLACES, self._no_rows, NO_PLACES))
        self.exchanged += len(places)
        return True

    def _send(self, places: Ids, *, answers: bool, all_back: bool = True) -> None:
        """Push shares of the deltas of rows, and start to pull the rows behind the push.

        Without `all_back`, pull only rows whose local copy gives something up with the answer.
        """
        if len(places) == 0:
            return
        kept, sgd = self._kept.exchange, self._sgd
        keys, deltas = np.empty(len(places), np.uint64), sgd.packed.take(len(places))
        send = partial(
            kept.send, self.estimate, workers=sgd.worker.workers, now=self._now, giving=answers
        )
        given_up, given_at = deltas[:0], places[:0]
        if answers or len(places) < CHUNK_ROWS:
            given_up, given_at = send(places, keys, deltas)
        else:
            sgd.in_threads(send, places, keys, deltas)
        push = sgd.worker.push_async(self._table, keys, deltas, state=sgd.state)
        self.exchanged += len(places)
        if not all_back:
            places, keys = places[given_at], keys[given_at]
            given_at = np.arange(len(places), dtype=np.int32)
        pull, pulled = None, places[:0]
        if answers and len(places):
            pull, pulled = self._pull(places, keys), places
            kept.asked(places)
        self._on_way.append(_Exchange(push, pull, pulled, given_up, given_at))

    def _pull(self, places: Ids, keys: Keys) -> Pending:
        """Start to pull kept rows, behind all pushes."""
        sgd = self._sgd
        return sgd.worker.pull_async(
            self._table, keys, sgd.packed.take(len(places)), state=sgd.state
        )

    def _refresh(self, known: Ids, *, quiet_too: bool = False) -> None:
        """Start to pull those of the known rows that were pushed without an answer."""
        places, keys = self._kept.exchange.stale(
            ascending(known, self._kept.used), quiet_too=quiet_too
        )
        for first in range(0, len(places), CHUNK_ROWS):
            some = slice(first, first + CHUNK_ROWS)
            pull = self._pull(places[some], keys[some])
            self._on_way.append(_Exchange(None, pull, places[some], self._no_rows, places[:0]))
            self._waited = 0

    def _settle(self, *, wait: bool = True) -> None:
        """Merge answers in the order of the requests: those that have arrived or, with `wait`, all.

        With `wait`, rows that a closed period has left are sent first.
        """
        while wait and self.send_some():
            pass
        while self._on_way:
            first = self._on_way[0]
            if not wait and not all(one is None or one.done for one in (first.push, first.pull)):
                return
            self._settle_first()

    def _settle_first(self) -> None:
        first = self._on_way.popleft()
        if first.push is not None:
            self._sgd.packed.give(first.push.wait())
        if first.pull is not None:
            self._merge(first, first.pull.wait())

    def _merge(self, exchange: _Exchange, answers: Floats) -> None:
        """Add other workers' changes to kept rows."""
        if self._sgd.project is not None:  # else their keys are not needed
            self._project(self._kept.exchange.keys(exchange.pulled), answers)
        self._kept.exchange.merge(
            self.estimate, exchange.pulled, answers, exchange.given_up, exchange.given_at
        )
        self._sgd.packed.give(answers)


def _mean(mean: float, value: float) -> float:
    return value if mean == 0 else 0.9 * mean + 0.1 * value
