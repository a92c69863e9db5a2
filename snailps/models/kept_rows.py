"""Rows of one table kept at a worker: trained where they lie, exchanged with the servers by rate.

    keys of a block -> find, ask: a place each; keys without one -> PULL
    places -> ready: rows to train -> spans of examples, with `exchange` between them
    exchange: rows that are due -> PUSH share x (local - base), PULL behind it -> answer
              local += answer - (base + pushed); base = answer
    close, every few blocks: rows that were trained -> PUSH, or send_some beside kernels
    ready: rows that a period has pushed, when a block uses them again -> PULL -> merged

Each worker exchanges its copy of a row when the steps of all workers since the last exchange would
go so far that copies disagree (`exchange_times.py`); a single worker only pushes, and may recall
the bases of its rows in the place of keeping them (`recalled_bases.py`, with what that pays).  No
optimiser and no text; the arithmetic is `kernels/_row_exchange.pyx`.  docs/design/shared-rows.md.
Invariants:

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
  gone far (`FAR_OF_ALL`), or is lost when kept rows are dropped.  A single worker's share is all
  of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import numpy as np

from snailps.api.worker import Pending
from snailps.data._key_numbering import KeptNumbers
from snailps.dataclass import dataclass
from snailps.kernels._row_exchange import DriftEstimate, RowExchange
from snailps.models.exchange_times import ExchangeRule, ExchangeTimes
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.recalled_bases import FirstValues, RecalledBases
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
"""`CACHE_BYTES` of a single worker, which would pull rows that just do not fit again and again:
10.9 to 8.1 s of processor time with the classifier's pairs of words."""
KEY_BYTES = 64
"""Memory of a key beside its row: its part of the hash table at its emptiest, and its record."""
FAR = 10.0
"""`DRIFT` from which half of a delta's rest is given up with AdaGrad and SGD."""
LATE = 2
"""Spans without an answer after which training waits for it."""
CHUNK_ROWS = 1 << 15
"""Rows of one request; frequent rows are exchanged again once all chunks of a period are merged."""
CHUNK_BYTES = 16 << 20
"""Deltas of one request without an answer, at most; `CHUNK_ROWS` rows at least."""
CHUNKS_ON_WAY = 2
"""Requests without an answer that may be unacknowledged."""

SGD = 1  # of abi/_row_ops.h
RULE = ExchangeRule()


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
        self.first: FirstValues | None = None  # of its new keys, as long as no server has them
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

    `saw` counts a block's steps, between `ready` and the first span.  `rule` says when a row is
    exchanged.  `room` is the number of kept rows (0: by `CACHE_BYTES`); when it is used up,
    everything is pushed and the next block begins anew.  With `recalls` a single worker has no
    bases in memory; with ``fill_first(keys, rows)`` it makes first values itself, until
    `begin_known` or another worker comes.  With state, the layout of `sgd` must not be split.
    """

    keeps = True

    def __init__(
        self,
        sgd: LocalSgd,
        table: str,
        estimate: DriftEstimate,
        *,
        rule: ExchangeRule = RULE,
        room: int = 0,
        period_blocks: int = 1,
        recalls: bool = False,
        fill_first: Callable[[Keys, Floats], None] | None = None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(sgd, table)
        self.estimate, self._room, self._recalls = estimate, room, recalls
        self._period_blocks = period_blocks
        first = None if fill_first is None else FirstValues(fill_first, sgd.layout.width)
        # A waiting main thread's time says nothing about kernel threads.
        own_time = time.thread_time if sgd.worker.threads == 1 else time.perf_counter
        # Of the preparing thread.
        self._asked = self._places_for(0)
        self._asked.pulling = True
        self._asked.first = None if self.are_shared else first
        self.numbering = 0  # how often places were given anew
        self._blocks, self._size = 0, 0.0  # of this period
        self._blocks_a_period = period_blocks
        # Of the training thread.
        self.kept = self._asked
        self._recalled = RecalledBases(sgd, table, first)
        self.times = ExchangeTimes(sgd.worker, estimate, rule, seconds or own_time)
        self._touched: list[Ids] = []  # in this period
        self._on_way: deque[_Exchange] = deque()
        self._no_rows = np.empty((0, sgd.layout.width), np.float32)
        self._waited = 0
        self._shares = False  # in the last block with other workers
        self._has_new_company = False
        self.exchanged = 0

    def begin_known(self) -> None:
        self._asked.first = self.kept.first = None

    def workers_changed(self) -> None:
        super().workers_changed()
        self._has_new_company = True

    @property
    def exchanges(self) -> bool:
        """False for a single worker, which only pushes, and for others until they have bases."""
        return self.are_shared and self.kept.exchange.has_bases

    def _places_for(self, needed: int) -> _Places:
        """Places for `needed` rows at least, and for as many as the memory holds."""
        layout = self._sgd.layout
        bases = self.are_shared or not self._recalls
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
        if len(keys) and places.pulling and places.first is None:
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
        if places is not self.kept:
            self._begin_anew(places)
        if self.are_shared and not places.exchange.has_bases:
            self._take_bases()
        new, made = kept.new, places.first
        if new.stop > new.start and kept.pull is None and made is not None:
            numbers = np.arange(new.start, new.stop, dtype=np.int32)
            load = partial(made.load, places.exchange, now=self.times.now)
            sgd.in_threads(load, numbers, kept.new_keys)
            self._recalled.made(new.stop)
        elif new.stop > new.start:
            pull = kept.pull
            if pull is None:
                out = sgd.packed.take(len(kept.new_keys))
                pull = sgd.worker.pull_async(self._table, kept.new_keys, out, state=sgd.state)
            pulled = pull.wait()
            self._project(kept.new_keys, pulled)
            numbers = np.arange(new.start, new.stop, dtype=np.int32)
            load = partial(places.exchange.load, now=self.times.now)
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
        self.times.begin_block()
        return (places.rows[: kept.row_num],)

    def _begin_anew(self, places: _Places) -> None:
        """Push shares of all trained rows, and continue with other places."""
        self._send_period(answers=False)
        self._settle()
        self.kept = places
        places.pulling = True
        self.times.begin_anew()

    def _take_bases(self) -> None:
        """Another worker has joined: push all deltas; the servers' rows are then the bases.

        What the other worker pushed to these rows before is lost.
        """
        self._send_all()
        self._settle()
        exchange, used = self.kept.exchange, self.kept.used
        exchange.keep_bases(used)
        # Sent now, with no steps: else the next deltas would count as all steps since rows came.
        keys = np.empty(CHUNK_ROWS, np.uint64)
        deltas = np.empty((CHUNK_ROWS, self._sgd.layout.width), np.float32)
        for first in range(0, used, CHUNK_ROWS):
            some = np.arange(first, min(first + CHUNK_ROWS, used), dtype=np.int32)
            n = len(some)
            exchange.send(
                self.estimate,
                some,
                keys[:n],
                deltas[:n],
                workers=1,
                now=self.times.now,
                giving=False,
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
        if not self.exchanges or examples == 0:
            return
        kept, period_examples = self.kept, examples / share * self._blocks_a_period
        self.times.saw(kept.exchange, kept.used, places, examples, weights, period_examples)

    def span(self) -> int:
        return self.times.span() if self.exchanges else WHOLE

    def exchange(self, examples: int) -> None:
        """Merge arrived answers, and send rows that are due; no kernel may run meanwhile."""
        kept, times = self.kept, self.times
        times.now += examples
        if not self.exchanges:
            return
        begin = times.begin_exchange(kept.exchange, kept.used, examples)
        self._waited += 1
        self._settle(wait=self._waited >= LATE)
        if not self._on_way and len(due := times.due()):
            self._send(due, answers=True)
            self._waited = 0
        times.end_exchange(begin)

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
        self.times.end_period()
        return True

    @property
    def sends(self) -> bool:
        return self._recalled.waits

    def flush(self) -> None:
        self._settle()
        self._send_period(answers=False)
        self._settle()

    def _send_period(self, *, answers: bool) -> None:
        if not self._touched:
            return
        self._settle()
        touched = ascending(np.concatenate(self._touched), self.kept.used)
        self._touched = []
        if not answers:
            self._send_quietly(touched)
            return
        if self.times.rule.rare_steps > 0:
            chunks = np.array_split(touched, len(touched) // CHUNK_ROWS + 1)
            ripe = partial(self.times.ripe, self.kept.exchange)
            goes = np.concatenate([ripe(chunk) for chunk in chunks])  # in cache
            self._touched, touched = [touched[~goes]], touched[goes]
        for chunk in np.array_split(touched, len(touched) // CHUNK_ROWS + 1):
            self._send(chunk, answers=True, all_back=False)

    def _send_quietly(self, touched: Ids) -> None:
        """Send rows without an answer, in chunks: all deltas would take as much memory as rows."""
        if not self.kept.exchange.has_bases:
            self._recalled.leave(touched)
            return
        rows = max(CHUNK_ROWS, CHUNK_BYTES // (4 * self._sgd.layout.width))
        self._sgd.packed.drop(rows)
        for chunk in np.array_split(touched, len(touched) // rows + 1):
            while len(self._on_way) >= CHUNKS_ON_WAY:
                self._settle_first()
            self._send(chunk, answers=False)

    def send_some(self) -> bool:
        """Send some of the rows that a closed period has left, if their bases were not kept.

        Kernels may train the rows meanwhile: steps that are missed go with the next period.
        """
        sgd = self._sgd
        piece = self._recalled.take(self.kept.exchange)
        if piece is None:
            return False
        keys, deltas = piece
        while len(self._on_way) >= CHUNKS_ON_WAY:
            self._settle_first()
        push = sgd.worker.push_async(self._table, keys, deltas, state=sgd.state)
        self._on_way.append(_Exchange(push, None, NO_PLACES, self._no_rows, NO_PLACES))
        self.exchanged += len(keys)
        return True

    def _send(self, places: Ids, *, answers: bool, all_back: bool = True) -> None:
        """Push shares of the deltas of rows, and start to pull the rows behind the push.

        Without `all_back`, pull only rows whose local copy gives something up with the answer.
        """
        if len(places) == 0:
            return
        kept, sgd = self.kept.exchange, self._sgd
        keys, deltas = np.empty(len(places), np.uint64), sgd.packed.take(len(places))
        send = partial(
            kept.send,
            self.estimate,
            workers=sgd.worker.workers,
            now=self.times.now,
            giving=answers,
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
        places, keys = self.kept.exchange.stale(
            ascending(known, self.kept.used), quiet_too=quiet_too
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
            self._project(self.kept.exchange.keys(exchange.pulled), answers)
        self.kept.exchange.merge(
            self.estimate, exchange.pulled, answers, exchange.given_up, exchange.given_at
        )
        self._sgd.packed.give(answers)
