"""Rows of one table that a worker keeps: trained in place, exchanged with the servers by rate.

    keys of a block -> find, ask: a place each; keys without one -> PULL
    places -> ready: rows to train -> spans of examples, with `exchange` between them
    exchange: rows that are due -> PUSH share x (local - base), then PULL -> answer
              local += answer - (base + pushed); base = answer
    copies that lead the servers' rows (`lead.py`): base += what others are expected to push
    close, every few blocks: rows that were trained -> PUSH, or send_some beside kernels
    ready: rows that a period has pushed, once a block uses them again -> PULL -> merged

Owns the local rows, their bases, and which rows are on their way.  A worker exchanges its copy of a
row before the steps of all workers since the last exchange make copies disagree
(`exchange_times.py`).  A single worker only pushes, and may recall the bases of its rows instead of
keeping them (`recalled_bases.py`, which says what that saves).  Knows no optimizer and no text; the
arithmetic is in `kernels/_row_exchange.pyx`.  docs/design/shared-rows.md explains the design.

Invariants:

* Threads that prepare later blocks call `find` and `ask`, which write places alone.  The training
  thread writes rows; kernel threads write them between `ready` and `exchange`, while `send_some`
  may read them.
* Several threads may call `find` at once, but not while one calls `ask`.  Blocks are asked for and
  trained in the same order.
* A row is in one exchange at a time: no exchange starts while answers are missing, but for pulls of
  rows that no exchange has sent since their period.
* Once a period is closed and `send_some` has returned False, the client has the share of each delta
  of the trained blocks, except for rows that wait (`rare_steps`), which later periods or `flush`
  send.  The rest of a delta goes with later exchanges of its row, is given up where all workers
  have gone far (`FAR_OF_ALL`), or is lost when kept rows are dropped.  A single worker's share is
  the whole delta.
* A worker that dies loses the deltas since its last period, and of rows that wait up to
  `RARE_PERIODS` periods.  Blocks that it has reported are not trained again.
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
from snailps.models.lead import Lead
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.recalled_bases import DeclaredFirstValues, RecalledBases
from snailps.models.rows import (
    NO_KEYS,
    NO_PLACES,
    WHOLE,
    Ids,
    RowPlaces,
    Rows,
    Scale,
    Trained,
    ascending,
)

KEY_BYTES = 64
"""Memory of a key besides its row: its part of the hash table at its emptiest, and its record."""
FAR = 10.0
"""Drift (`exchange_times.DRIFT`) from which half of a delta's rest is given up, with AdaGrad and
SGD."""
LATE = 2
"""Spans without an answer after which training waits for it."""
CHUNK_ROWS = 1 << 15
"""Rows of one request.  Frequent rows are exchanged again only after all chunks of a period."""
CHUNK_BYTES = 16 << 20
"""Most deltas of one request without an answer; but at least `CHUNK_ROWS` rows."""
CHUNKS_ON_WAY = 2
"""Requests without an answer that may be unacknowledged."""

SGD = 1  # of abi/_row_ops.h
RULE = ExchangeRule()


def of_curvature(dim: int) -> DriftEstimate:
    """Make the estimate for rows without state that share one curvature, `a_step`, at first 0."""
    return DriftEstimate(SGD, dim, far=FAR)


class _KeptPlaces:
    """Numbering, rows and counts of the keys that fit into the memory, by place.

    When the room is used up, other `_KeptPlaces` follow.  Room that is never written
    takes no memory.
    """

    def __init__(self, sgd: LocalSgd, room: int, *, bases: bool) -> None:
        self.room = min(max(1, room), (1 << 30) - 1)
        self.numbers = KeptNumbers(self.room)
        # Whether `ask` may pull: the deltas of the places before, which a pull must see, are sent.
        self.pulling = False
        self.first: DeclaredFirstValues | None = (
            None  # makes new rows, while no server can have them
        )
        layout = sgd.layout
        self.rows = layout.make(self.room)
        self.exchange = RowExchange(self.rows, layout.dim, layout.parts, bases=bases)
        self.used = 0  # places of blocks that are trained or in training


@dataclass(slots=True)
class KeptBlock:
    """The rows of a block among the kept rows.

    `new` are the places that no earlier block has used, for `new_keys`; `pull` has their rows
    (None: `ready` pulls or makes them, or there are none).  `touched` are the places that no
    earlier block of the period has used, `new` included.  `row_num` places are in use once this
    block is trained; `closes`: it is the last block of its period.
    """

    places: _KeptPlaces
    row_num: int
    new: slice
    new_keys: Keys
    pull: Pending | None
    touched: Ids
    closes: bool


@dataclass(slots=True)
class _RowsUnderWay:
    """Rows on their way: a push, a pull, or a push with a pull after it.

    The pull is for the places `pulled`.  With its answer, local copies at `pulled[given_at]` lose
    `given_up`, the part of their delta that nobody gets.
    """

    push: Pending | None
    pull: Pending | None
    pulled: Ids
    given_up: Floats
    given_at: Ids


class KeptRows(Rows):
    """Rows of one table, kept at this worker and exchanged by rate.

    Parameters
    ----------
    estimate : DriftEstimate
        How far steps go; the model keeps it up to date.
    rule : ExchangeRule
        When a row is exchanged.
    room : int
        Most kept rows; 0: by `RowSharing.memory_bytes`.  When it is used up, everything is pushed,
        and the next block starts with no rows.
    period_blocks : int
        Blocks of a push period, at least.
    recalls : bool
        A single worker keeps no bases in memory.
    fill_first : callable, optional
        ``fill_first(keys, rows)`` lets a single worker make first values instead of pulling them,
        until `begin_known`, or until another worker comes.
    seconds : callable, optional
        Clock for the cost of an exchange.

    Notes
    -----
    With optimizer state, the layout of `sgd` must not be split.
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
        first = None if fill_first is None else DeclaredFirstValues(fill_first, sgd.layout.width)
        # With kernel threads, the processor time of this thread, which waits, says nothing.  Nor
        # does it where one thread of the pool trains: an exchange then seems long, and spans are
        # as long as they may be.  To count the kernel was no better (docs/lab/shared-rows.md).
        own_time = time.thread_time if sgd.worker.threads == 1 else time.perf_counter
        # Written by the preparing thread.
        self._asked = self._places_for(0)
        self._asked.pulling = True
        self._asked.first = None if self.sharing.others_push else first
        self.numbering = 0
        self._blocks, self._size = 0, 0.0  # of this period, by now
        self._blocks_a_period = period_blocks
        # Written by the training thread.
        self.kept = self._asked
        self._recalled = RecalledBases(sgd, table, first)
        self.times = ExchangeTimes(sgd.worker, estimate, rule, seconds or own_time)
        self._lead = Lead()
        self._touched: list[Ids] = []  # places trained in this period
        self._on_way: deque[_RowsUnderWay] = deque()  # in the order of the requests
        self._no_rows = np.empty((0, sgd.layout.width), np.float32)
        self._waited = 0  # spans since rows were last sent between periods
        self._exchanged_before = False  # whether the block before was one of `exchanges`
        self._workers_changed = False  # since the block before
        self.exchanged = 0  # rows sent so far

    def begin_known(self) -> None:
        self._asked.first = self.kept.first = None

    def workers_changed(self) -> None:
        super().workers_changed()
        self._workers_changed = True

    @property
    def exchanges(self) -> bool:
        """Not for a single worker, which only pushes, nor until rows have bases."""
        return self.sharing.others_push and self.kept.exchange.has_bases

    def _places_for(self, needed: int) -> _KeptPlaces:
        """Make places for as many rows as the memory holds, and for `needed` at least."""
        layout, sharing = self._sgd.layout, self.sharing
        bases = sharing.others_push or not self._recalls
        row_bytes = 4 * (layout.trained_width + bases * layout.width) + KEY_BYTES
        room = self._room or sharing.memory_bytes // row_bytes
        return _KeptPlaces(self._sgd, max(room, needed), bases=bases)

    # --- in the preparing thread -------------------------------------------------------------

    def find(self, keys: Keys) -> RowPlaces:
        return RowPlaces(keys, *self._asked.numbers.find(keys))

    def find_again(self, places: Ids) -> RowPlaces:
        return RowPlaces(NO_KEYS, NO_PLACES, NO_PLACES, self._asked.numbers.touch(places))

    def ask(self, found: Sequence[RowPlaces], size: float = np.inf) -> KeptBlock:
        """Give a block's missing keys places, and start to pull their rows.

        The lookups `found` have all keys of the block, and are completed.  `size` is the part of a
        push period that the block is: the blocks of a period add up to 1, and are at least
        `period_blocks`.
        """
        numbered = self._number(found)
        if numbered is None:  # no room: go on with new places, which have no rows yet
            needed = sum(len(lookup.keys) for lookup in found)
            self._asked = self._places_for(needed)
            self.numbering += 1
            for lookup in found:
                again = self.find(lookup.keys)
                # In place: the model's parsed examples refer to this array.
                lookup.places[:] = again.places
                lookup.missing, lookup.touched = again.missing, again.touched
            numbered = self._number(found)
            assert numbered is not None
        places, keys, new = self._asked, numbered[0], numbered[1]
        pull = None
        # New places wait for `ready`: the deltas of the same keys at the old places must be sent
        # first, or the pull would lack them.
        if len(keys) and places.pulling and places.first is None:
            pull = self._sgd.pull_rows(self._table, keys)
        new_places = np.arange(new.start, new.stop, dtype=np.int32)
        touched = np.concatenate([*(lookup.touched for lookup in found), new_places])
        self._blocks += 1
        self._size += size
        self._blocks_a_period = max(self._period_blocks, ceil(1 / max(size, 1e-6)))
        closes = self._blocks >= self._period_blocks and self._size > 1 - 1e-6
        if closes:
            places.numbers.begin_period()
            self._blocks, self._size = 0, 0.0
        return KeptBlock(places, new.stop, new, keys, pull, touched, closes)

    def _number(self, found: Sequence[RowPlaces]) -> tuple[Keys, slice] | None:
        """Number the missing keys: these keys and their places; None: there is no room."""
        numbers = self._asked.numbers
        first = len(numbers)
        parts = [numbers.number(each.keys, each.missing, each.places) for each in found]
        if not all(fits for _, fits in parts):
            return None
        return np.concatenate([keys for keys, _ in parts]), slice(first, len(numbers))

    # --- in the training thread --------------------------------------------------------------

    def ready(self, asked: KeptBlock) -> Trained:
        """Wait for the rows of a block; returns the rows of all places in use.

        Blocks come in the order of `ask`.
        """
        kept, places, sgd = asked, asked.places, self._sgd
        if places is not self.kept:
            self._begin_anew(places)
        if self.sharing.others_push and not places.exchange.has_bases:
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
        workers_changed, self._workers_changed = self._workers_changed, False
        if workers_changed:
            places.exchange.share_anew()  # rows that only this worker trained may be others', too
        if self.exchanges:
            self._refresh(kept.touched[: len(kept.touched) - len(kept.new_keys)])
        elif self._exchanged_before or (workers_changed and places.exchange.has_bases):
            # This worker is alone now.  Once more it sends and gets everything: what others have
            # pushed since its last exchange would otherwise never reach its copies.
            self._send_all()
            earlier = np.arange(kept.row_num - (new.stop - new.start), dtype=np.int32)
            self._refresh(earlier, quiet_too=True)
            self._settle()
        self._exchanged_before = self.exchanges
        self._touched.append(kept.touched)
        self.times.begin_block()
        return (places.rows[: kept.row_num],)

    def _begin_anew(self, places: _KeptPlaces) -> None:
        """Push shares of all trained rows, and go on with other places."""
        self._send_period(answers=False)
        self._settle()
        self.kept = places
        places.pulling = True
        self.times.begin_anew()

    def _take_bases(self) -> None:
        """Start to keep bases, because another worker has joined.

        All deltas are pushed, and the local rows become the bases.  Recalled bases are what servers
        have, so servers end with exactly these rows: what the other worker has pushed to them
        before is lost.
        """
        self._send_all()
        self._settle()
        exchange, used = self.kept.exchange, self.kept.used
        exchange.keep_bases(used)
        # Counted as sent now: else the next exchange would count all steps since rows were pulled.
        keys = np.empty(CHUNK_ROWS, np.uint64)
        deltas = np.empty((CHUNK_ROWS, self._sgd.layout.width), np.float32)
        for first in range(0, used, CHUNK_ROWS):
            chunk = np.arange(first, min(first + CHUNK_ROWS, used), dtype=np.int32)
            n = len(chunk)
            exchange.send(
                self.estimate,
                chunk,
                keys[:n],
                deltas[:n],
                workers=1,
                now=self.times.now,
                giving=False,
            )

    def _send_all(self) -> None:
        """Push all deltas in the middle of a period; its end pushes these rows again.

        Later blocks of the period name as `touched` only rows that no block before has used.
        """
        touched = self._touched
        self._send_period(answers=False)
        self._touched = touched

    def saw(
        self, places: Ids, examples: int, share: float = 1.0, weights: Floats | None = None
    ) -> None:
        """Count a block's steps, and choose the rows to exchange between its spans.

        Between `ready` and the first span.
        """
        if not self.exchanges or examples == 0:
            return
        kept, period_examples = self.kept, examples / share * self._blocks_a_period
        self.times.saw(kept.exchange, kept.used, places, examples, weights, period_examples)

    def span(self) -> int:
        return self.times.span() if self.exchanges else WHOLE

    def exchange(self, examples: int) -> None:
        """Merge answers that have arrived, and send rows that are due; no kernel may be running."""
        kept, times = self.kept, self.times
        times.now += examples
        self._lead.trained(times.now, self.estimate.lead)
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
        """Push the period's deltas if the block ends it, without waiting for answers.

        With several threads, rows without bases are left to `send_some`, beside the next block.
        """
        if not asked.closes:
            return False
        self._settle()
        self._send_period(answers=self.exchanges)
        # With one thread the same seed must give the same bits: rows are not read while they are
        # trained.
        while self._sgd.worker.threads == 1 and self.send_some():
            pass
        self.times.end_period()
        return True

    @property
    def sends(self) -> bool:
        return self._recalled.waits

    def push_all(self) -> None:
        self._settle()
        self._send_all()
        self._settle()

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
        """Send rows without an answer, in chunks: all deltas at once would take the memory of all
        rows.
        """
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
        """Send a piece of the rows that a closed period has left; False: none is left.

        Kernels may train the rows meanwhile: steps that this piece misses go with the next period.
        """
        sgd = self._sgd
        piece = self._recalled.take(self.kept.exchange)
        if piece is None:
            return False
        keys, deltas = piece
        while len(self._on_way) >= CHUNKS_ON_WAY:
            self._settle_first()
        push = sgd.worker.push_async(self._table, keys, deltas, state=sgd.state)
        self._on_way.append(_RowsUnderWay(push, None, NO_PLACES, self._no_rows, NO_PLACES))
        self.exchanged += len(keys)
        return True

    def _send(self, places: Ids, *, answers: bool, all_back: bool = True) -> None:
        """Push shares of the deltas of rows; with `answers`, start to pull the rows after the push.

        The same connection serves push and pull in this order, so the answer includes the push.
        Without `all_back`, only rows whose local copy gives something up are pulled; other rows are
        pulled once a block uses them again.
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
        if self._lead.has_led:
            since = kept.since(places, self.times.now)
            kept.expect(places, self._lead.share_of_others(since), self.times.now)
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
        self._on_way.append(_RowsUnderWay(push, pull, pulled, given_up, given_at))

    def _pull(self, places: Ids, keys: Keys) -> Pending:
        """Start to pull kept rows, after all pushes so far."""
        sgd = self._sgd
        return sgd.worker.pull_async(
            self._table, keys, sgd.packed.take(len(places)), state=sgd.state
        )

    def _refresh(self, earlier: Ids, *, quiet_too: bool = False) -> None:
        """Start to pull those rows of earlier blocks that were pushed without an answer.

        Rows that nobody else changes (quiet) are pulled more rarely, unless `quiet_too`.
        """
        places, keys = self.kept.exchange.stale(
            ascending(earlier, self.kept.used), quiet_too=quiet_too
        )
        for first in range(0, len(places), CHUNK_ROWS):
            chunk = slice(first, first + CHUNK_ROWS)
            pull = self._pull(places[chunk], keys[chunk])
            self._on_way.append(_RowsUnderWay(None, pull, places[chunk], self._no_rows, places[:0]))
            self._waited = 0

    def _settle(self, *, wait: bool = True) -> None:
        """Merge answers in the order of their requests: all, or without `wait` those that are here.

        With `wait`, rows that a closed period has left are sent first.
        """
        while wait and self.send_some():
            pass
        while self._on_way:
            first = self._on_way[0]
            if not wait and not all(each is None or each.done for each in (first.push, first.pull)):
                return
            self._settle_first()

    def _settle_first(self) -> None:
        first = self._on_way.popleft()
        if first.push is not None:
            self._sgd.packed.give(first.push.wait())
        if first.pull is not None:
            self._merge(first, first.pull.wait())

    def _merge(self, exchange: _RowsUnderWay, answers: Floats) -> None:
        """Add other workers' changes to kept rows."""
        if self._sgd.project is not None:  # to look up keys takes time
            self._project(self.kept.exchange.keys(exchange.pulled), answers)
        self.kept.exchange.merge(
            self.estimate, exchange.pulled, answers, exchange.given_up, exchange.given_at
        )
        self._sgd.packed.give(answers)
