"""Rows of one table kept at a worker: trained where they lie, exchanged with the servers by rate.

    keys of a block -> find, ask: a place each; keys without one -> PULL
    places -> ready: rows to train -> spans of examples, with `exchange` between them
    exchange: rows that are due -> PUSH a share of the delta, PULL behind it -> merged
    close_round, every few blocks: all rows that were trained -> PUSH, PULL -> merged

A row is pulled when it is first needed, and not with every block.  Several workers train copies of
a row; each exchanges its copy after as many of its own steps as the steps of all workers since
the last exchange may go before the copies disagree.  So a frequent row travels often, a rare one
once a round, and traffic falls as steps get shorter.  A single worker only pushes.  No optimizer,
no text: a `Motion` says how far steps go.

Exchange of a row: with `base` the row as the server had it, a worker pushes ``share x (local -
base)`` and pulls the row behind that, so that the answer includes it.  Then ``local += answer -
(base + pushed)``, and the answer is the new base.  What was not pushed stays in the local copy and
in later deltas, except of rows on which all workers have gone far (`FAR_OF_ALL`): there the copies
give it up.  Steps made meanwhile are kept.  docs/design/shared-rows.md has the measurements.

Invariants
----------
* `find` and `ask` for a later block may run in other threads while a block trains: they write
  places; rows are written by the training thread only, and by kernel threads between `ready` and
  `exchange`.
* `find` may run in several threads at once, but not while `ask` does.  Blocks are asked for, and
  trained, in one order.
* A row is in one exchange at a time.
* After `close_round` every delta of the trained blocks is handed to the client.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Pending
from snailps.data._key_numbering import KeptNumbers
from snailps.models.local_sgd import Floats, Keys, LocalSgd, share_of_delta

CACHE_BYTES = 512 << 20
"""Memory of one table's kept rows and their numbering: 5.8 million features of a linear model with
FTRL, 600,000 rows of 100 columns."""
KEY_BYTES = 64
"""Memory of a key beside its row: itself, its part of the hash table at its emptiest, and what is
measured about it."""
DRIFT = 3.0
"""Steps of all workers x rate x curvature after which a row is exchanged.  8 workers, 300,000
clicks, log loss above that of one worker: .0005 at 3, .0017 at 10 (with 1.0 rows an example less
to exchange), .0004 at 1 (with 3 rows more)."""
STEPS_MIN = 3
"""Own steps on a row between two exchanges, at least: rows that few examples use have long first
steps, but an exchange costs as much as 40 steps of a linear model.  The loss above is .0015 at 8.
"""
CORRELATION = 0.3
"""Part of a step's curvature that all workers have in common.  `share_of_delta` takes the steps of
an example's features as one step; those of other features differ from worker to worker."""
FAR_OF_ALL = 2.0
"""Steps of all workers x rate x curvature from which half of a delta's rest is given up, of a row
that every example uses (a bias would swing to and fro otherwise: with AdaGrad on a9a, 8 workers,
100 examples between exchanges, log loss .371 without this, .325 with it)."""
FAR = 10.0
"""The same of any row, if first steps on rare rows are as long as later ones (AdaGrad, SGD)."""
ONE_STEP = 1.01
"""Up to so many steps (estimated) a delta is pushed whole."""
MEMORY = 0.75
"""Weight of the counts so far when those of a block are added."""
HOT_MAX = 1 << 17
"""Rows, the most frequent ones, that are exchanged between rounds."""
SPAN_MIN = 16
"""Examples between two calls of `exchange`, at least."""
STALE = 5.0
"""Price of an exchange's time beside that of rows that wait for it: spans are the root of this x
what an exchange costs (in examples) x the shortest interval of a row, if that is longer than the
interval."""
LATE = 2
"""Spans without an answer after which training waits for it."""
CHUNK_ROWS = 1 << 15
"""Rows of one request; frequent rows are exchanged again once all chunks of a round are merged."""
QUIET_MAX = 3
"""A row that no other worker has changed is pulled with every 2nd, 4th, then 8th exchange."""

Ids = NDArray[np.int32]


class Motion(Protocol):
    """What a model knows about its steps.

    Attributes
    ----------
    far : float
        See `FAR`; infinite if steps on rare rows add up however many workers make them.
    """

    far: float

    def steps(self, rows: Floats, deltas: Floats, counts: Floats) -> Floats:
        """Rate x curvature x steps of packed rows: how far this worker has moved them.

        Parameters
        ----------
        rows, deltas : numpy.ndarray
            float32 (n, width): packed rows as trained, and their changes.
        counts : numpy.ndarray
            float32 (n, 1): number of steps.

        Returns
        -------
        numpy.ndarray
            float32 (n, 1), or a number for each column that `scale` scales.
        """

    def scale(self, rows: Floats, deltas: Floats, shares: Floats) -> None:
        """Reduces deltas to shares, of the shape that `steps` returns, in place.

        Sums that add up however many workers there are (AdaGrad's, FTRL's n) stay whole.
        """


class Curvature:
    """Motion of rows without state, of one curvature: the default.

    Parameters
    ----------
    a_step : float
        Rate x curvature of the loss in a row, for a step.
    """

    def __init__(self, a_step: float) -> None:
        self.a_step, self.far = a_step, FAR

    def steps(self, rows: Floats, deltas: Floats, counts: Floats) -> Floats:
        """The same for all rows."""
        steps: Floats = counts * np.float32(self.a_step)
        return steps

    def scale(self, rows: Floats, deltas: Floats, shares: Floats) -> None:
        """All columns alike."""
        deltas *= shares


@dataclass(slots=True)
class Found:
    """Places of some keys of a block.

    Attributes
    ----------
    keys : numpy.ndarray
        uint64.
    places : numpy.ndarray
        int32, one a key; -1 where it has none yet, until `SharedRows.ask`.
    missing : numpy.ndarray
        int32: indices of those.
    touched : numpy.ndarray
        int32: places that no block of this round has used.
    """

    keys: Keys
    places: Ids
    missing: Ids
    touched: Ids


class _Places:
    """Numbering, rows and measurements of the keys that fit into the memory, by place.

    Pages of memory are taken when they are first written, so all of the room is cheap.
    """

    def __init__(self, sgd: LocalSgd, room: int) -> None:
        self.room = min(max(1, room), (1 << 30) - 1)
        self.numbers = KeptNumbers(self.room)
        self.pulling = False  # whether own deltas of earlier places have arrived
        width = sgd.layout.width
        self.keys = np.empty(self.room, np.uint64)
        self.rows = sgd.layout.make(self.room)
        self.base = np.empty((self.room, width), np.float32)
        self.counts = np.zeros(self.room, np.float32)
        self.examples = 0.0  # of the counts
        self.last = np.empty(self.room, np.float32)  # exchange, in thousands of examples
        self.rest = np.zeros(self.room, np.float32)  # steps that were not pushed
        self.quiet = np.zeros(self.room, np.uint8)
        self.used = 0  # of all blocks that are trained or being trained

    def find(self, keys: Keys) -> Found:
        """Places of keys, which count as touched."""
        return Found(keys, *self.numbers.find(keys))


@dataclass(slots=True)
class KeptRows:
    """A block's rows among the kept ones.

    Attributes
    ----------
    places : object
        The numbering that its places belong to.
    row_num : int
        Places in use, this block's included.
    new : slice
        Places of rows that it uses first.
    pull : Pending or None
        Of these; None if there are none, or they are pulled by `ready`.
    touched : numpy.ndarray
        int32: places that no block of this round has used, the new ones included.
    closes : bool
        Whether this block is the last of its round.
    """

    places: _Places
    row_num: int
    new: slice
    pull: Pending | None
    touched: Ids
    closes: bool

    def abandon(self) -> None:
        """Cancels the pull."""
        if self.pull is not None:
            self.pull.abandon()


@dataclass(slots=True)
class _Exchange:
    """Rows on their way: pushed, and perhaps pulled behind that.

    `pulled` are the places that come back, `expected` their packed rows if nobody else changes
    them, `given_up` what their local copies lose.
    """

    push: Pending
    deltas: Floats
    pull: Pending | None
    pulled: Ids
    expected: Floats
    given_up: Floats | None


class SharedRows:
    """Rows of one table, kept at this worker and exchanged by rate.

    Parameters
    ----------
    sgd : LocalSgd
        Pulls new rows; its layout must not be split if rows have state.
    table : str
    motion : Motion
    room : int
        Number of rows that are kept.  0: as many as `CACHE_BYTES` hold.  When the room is used up
        the worker pushes everything and begins anew with the rows of the next block, so what is
        evicted is what later blocks do not use; the frequent rows are back at once.
    round_blocks : int
        Blocks of a round.
    steps_min : float
        Own steps on a row between two exchanges, at least.
    seconds : callable
        Measures how much time exchanges take.

    Notes
    -----
    A worker calls, for each block: `find` and `ask` in `Worker.prepare`; in `Worker.train` `ready`,
    `saw`, then for spans of `span` examples a kernel and `exchange`, and at the end `close_round`
    if the block closes one.  `workers` is to be set by `Worker.workers_changed`.
    """

    def __init__(
        self,
        sgd: LocalSgd,
        table: str,
        motion: Motion,
        *,
        room: int = 0,
        round_blocks: int = 1,
        steps_min: float = STEPS_MIN,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        self._sgd, self._table, self.motion = sgd, table, motion
        layout = sgd.layout
        row_bytes = 4 * (layout.trained_width + layout.width) + KEY_BYTES
        self._room = room or CACHE_BYTES // row_bytes
        self._round_blocks, self._steps_min = round_blocks, steps_min
        # A waiting main thread's time says nothing about kernel threads.
        own_time = time.thread_time if sgd.worker.threads == 1 else time.perf_counter
        self._seconds = seconds or own_time
        self.workers = sgd.worker.workers
        # Of the preparing thread.
        self._asked = _Places(sgd, self._room)
        self._asked.pulling = True
        self._blocks = 0
        # Of the training thread.
        self._kept = self._asked
        self._touched: list[Ids] = []  # in this round
        self._on_way: deque[_Exchange] = deque()
        self._now = 0.0  # examples trained
        self._begun = 0.0  # the same when the round began
        self._round_examples = 0.0  # of a whole round, as far as known
        self._rounds = 0
        self._hot = np.empty(0, np.int32)
        self._due = np.empty(0, np.float64)
        self._shortest = 0.0  # interval of any row
        self._example_s = self._exchange_s = 0.0
        self._left_at: float | None = None
        self._waited = 0
        self.exchanged = 0

    # --- in the preparing thread -------------------------------------------------------------

    def find(self, keys: Keys) -> Found:
        """Places of keys of the next block; several threads may call it at once."""
        return self._asked.find(keys)

    def ask(self, found: Sequence[Found]) -> KeptRows:
        """Gives the missing keys of a block places and starts to pull their rows.

        Parameters
        ----------
        found : sequence of Found
            All keys of the block; their places are completed.
        """
        numbered = self._number(found)
        if numbered is None:
            needed = sum(len(one.keys) for one in found)
            self._asked = _Places(self._sgd, max(self._room, needed))
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
        places.keys[new] = keys
        pull = None
        if len(keys) and places.pulling:
            pull = self._sgd.pull_rows(self._table, keys)
        fresh = np.arange(new.start, new.stop, dtype=np.int32)
        touched = np.concatenate([*(one.touched for one in found), fresh])
        self._blocks += 1
        closes = self._blocks % self._round_blocks == 0
        if closes:
            places.numbers.begin_round()
        return KeptRows(places, new.stop, new, pull, touched, closes)

    def _number(self, found: Sequence[Found]) -> tuple[Keys, slice] | None:
        """New keys and their places; None: there is no room for them."""
        numbers = self._asked.numbers
        first = len(numbers)
        parts = [numbers.number(one.keys, one.missing, one.places) for one in found]
        if not all(fits for _, fits in parts):
            return None
        return np.concatenate([keys for keys, _ in parts]), slice(first, len(numbers))

    # --- in the training thread --------------------------------------------------------------

    def ready(self, kept: KeptRows) -> Floats:
        """Waits for a block's new rows; the rows of all places, to be trained where they lie."""
        places, sgd = kept.places, self._sgd
        if places is not self._kept:
            self._begin_anew(places)
        new = kept.new
        if new.stop > new.start:
            pull = kept.pull
            if pull is None:
                keys = places.keys[new]
                out = sgd.packed.take(len(keys))
                pull = sgd.worker.pull_async(self._table, keys, out, state=sgd.state)
            pulled = pull.wait()
            sgd.in_threads(sgd.layout.load, pulled, places.rows[new])
            places.base[new] = pulled
            places.last[new] = self._now / 1000
            sgd.packed.give(pulled)
        places.used = kept.row_num
        self._touched.append(kept.touched)
        self._left_at = None
        return places.rows[: kept.row_num]

    def _begin_anew(self, places: _Places) -> None:
        """Pushes all that was trained on, and continues with other places."""
        self._send_round(answers=False)
        self._settle()
        self._kept = places
        places.pulling = True
        self._hot = np.empty(0, np.int32)

    def saw(
        self, places: Ids, examples: int, share: float = 1.0, weights: Floats | None = None
    ) -> None:
        """Counts steps on rows of the block that begins, and chooses what is exchanged in it.

        Parameters
        ----------
        places : numpy.ndarray
            int32, as often as they get a step; of a sample of the block, or of all of it.
        examples : int
            Size of the sample, in the unit of `exchange`.
        share : float
            Part of the block that the sample is.
        weights : numpy.ndarray, optional
            float32: steps at each of `places`; None: one.
        """
        kept = self._kept
        if self.workers < 2 or examples == 0:
            return
        counts = kept.counts[: kept.used]
        counts *= MEMORY
        if 4 * len(places) < len(counts):
            np.add.at(counts, places, np.float32(1) if weights is None else weights)
        else:
            counts += np.bincount(places, weights, minlength=len(counts))
        kept.examples = MEMORY * kept.examples + examples
        if self._rounds == 0:
            self._round_examples = examples / share * self._round_blocks
        self._choose()

    def _choose(self) -> None:
        """Chooses the rows that are exchanged between rounds, and when."""
        kept, counts = self._kept, self._kept.counts[: self._kept.used]
        # Of rows that a round exchanges as often nothing is to be gained.
        least = 2 * self._steps_min * kept.examples / max(1.0, self._round_examples)
        hot = np.flatnonzero(counts > max(least, 1.0)).astype(np.int32)
        if len(hot) > HOT_MAX:
            top = np.argpartition(counts[hot], len(hot) - HOT_MAX)[-HOT_MAX:]
            hot = hot[np.sort(top)]
        self._hot, self._shortest = hot, 0.0
        if len(hot) == 0:
            return
        rows = self._packed(hot)
        one = np.ones((len(hot), 1), np.float32)
        step = self.motion.steps(rows, np.zeros_like(rows), one).max(axis=1)
        steps = np.maximum(self._steps_min, DRIFT / np.maximum(step * self.workers, 1e-9))
        interval = steps * (kept.examples / counts[hot])
        few = interval < self._round_examples / 2
        self._hot, interval = hot[few], interval[few]
        self._due = kept.last[self._hot] * 1000.0 + interval
        if len(self._hot):
            self._shortest = float(interval.min())

    def span(self) -> int:
        """Number of examples to train before the next `exchange`."""
        if self.workers < 2 or len(self._hot) == 0:
            return 1 << 30
        cost = self._exchange_s / self._example_s if self._example_s > 0 else 0.0
        return int(max(SPAN_MIN, self._shortest, (STALE * cost * self._shortest) ** 0.5))

    def exchange(self, examples: int) -> None:
        """Merges what has arrived, and sends the rows that are due, after a span of examples.

        No kernel may run meanwhile.
        """
        begin = self._seconds()
        self._now += examples
        if self.workers < 2:
            return
        if self._left_at is not None and examples:
            self._example_s = _mean(self._example_s, (begin - self._left_at) / examples)
        self._waited += 1
        self._settle(wait=self._waited >= LATE)
        if not self._on_way and len(self._hot):
            at = np.flatnonzero(self._due <= self._now)
            if len(at):
                hot = self._hot[at]
                kept = self._kept
                since = self._now - kept.last[hot] * 1000.0
                self._send(hot, answers=True)
                self._waited = 0
                # The interval stays what it was chosen to be; `saw` measures again.
                self._due[at] = self._now + np.maximum(self._due[at] - self._now + since, 1.0)
        self._left_at = self._seconds()
        self._exchange_s = _mean(self._exchange_s, self._left_at - begin)

    def close_round(self) -> None:
        """Pushes the deltas of all rows trained in this round; does not wait for the answers."""
        self._settle()
        self._send_round(answers=self.workers > 1)
        self._round_examples = self._now - self._begun
        self._begun = self._now
        self._rounds += 1

    @property
    def owes(self) -> bool:
        """Whether blocks were trained since the last round."""
        return bool(self._touched)

    def flush(self) -> None:
        """Pushes all deltas and waits for their acknowledgement."""
        self._settle()
        self._send_round(answers=False)
        self._settle()

    def _send_round(self, *, answers: bool) -> None:
        """Sends all rows that were trained in this round."""
        if not self._touched:
            return
        self._settle()
        touched = np.concatenate(self._touched)
        self._touched = []
        if not answers:
            self._send(touched, answers=False)
            return
        for chunk in np.array_split(touched, len(touched) // CHUNK_ROWS + 1):
            self._send(chunk, answers=True, quiet_too=False)

    def _send(self, places: Ids, *, answers: bool, quiet_too: bool = True) -> None:
        """Pushes shares of the deltas of rows, and starts to pull them behind that."""
        if len(places) == 0:
            return
        kept, sgd, layout = self._kept, self._sgd, self._sgd.layout
        base = kept.base[places]
        deltas = sgd.packed.take(len(places))
        deltas[:] = base
        take = partial(kernels.take_changes, kept.rows, dim=layout.dim, parts=layout.parts)
        self._in_threads(take, places, deltas)
        given_up = None
        if self.workers > 1:
            given_up = self._share(places, base, deltas)
        base += deltas
        kept.base[places] = base
        kept.last[places] = self._now / 1000
        keys = kept.keys[places]
        push = sgd.worker.push_async(self._table, keys, deltas, state=sgd.state)
        pull, pulled, expected = None, places[:0], base[:0]
        if answers:
            pulled, expected = places, base
            if not quiet_too:
                every = (1 << kept.quiet[places].astype(np.int32)) - 1
                loud = ((places + self._rounds) & every) == 0
                pulled, expected, keys = places[loud], base[loud], keys[loud]
                given_up = None if given_up is None else given_up[loud]
            if len(pulled):
                out = sgd.packed.take(len(pulled))
                pull = sgd.worker.pull_async(self._table, keys, out, state=sgd.state)
        self.exchanged += len(places)
        self._on_way.append(_Exchange(push, deltas, pull, pulled, expected, given_up))

    def _share(self, places: Ids, base: Floats, deltas: Floats) -> Floats | None:
        """Reduces deltas to the share that is pushed; what the local copies give up of the rest."""
        kept = self._kept
        since = self._now - kept.last[places] * np.float32(1000)
        counts = kept.counts[places] * (since / max(1.0, kept.examples)).astype(np.float32)
        counts = np.maximum(counts, 1) + kept.rest[places]
        kept.rest[places] = 0
        # A row with one step is probably no other worker's: it is pushed whole.
        shared = np.flatnonzero(counts > ONE_STEP)
        if len(shared) == 0:
            return None
        places, counts = places[shared], counts[shared][:, None]
        reduced = deltas[shared]
        rows = base[shared] + reduced
        own = self.motion.steps(rows, reduced, counts)
        beyond = np.maximum(own.max(axis=1, keepdims=True) * np.float32(self.workers) - 1, 0)
        common = np.minimum(kept.counts[places] / np.float32(max(1.0, kept.examples)), 1)[:, None]
        held = 1 / (
            1 + np.square(beyond * common / FAR_OF_ALL) + np.square(beyond / self.motion.far)
        )
        own = own * (np.float32(CORRELATION) * held + (1 - held))
        others = own * ((counts - 1) / counts * np.float32(self.workers - 1))
        shares = share_of_delta(own, others)
        self.motion.scale(rows, reduced, shares)
        kept.rest[places] = counts[:, 0] * (1 - shares.mean(axis=1)) * held[:, 0]
        given_up = None
        if beyond.any():
            given_up = np.zeros_like(deltas)
            given_up[shared] = (deltas[shared] - reduced) * (1 - held)
        deltas[shared] = reduced
        return given_up

    def _settle(self, *, wait: bool = True) -> None:
        """Merges answers in the order of the requests; all of them, or what has arrived."""
        while self._on_way:
            first = self._on_way[0]
            if not wait and not (first.push.done and (first.pull is None or first.pull.done)):
                return
            self._on_way.popleft()
            self._sgd.packed.give(first.push.wait())
            if first.pull is not None:
                self._merge(first, first.pull.wait())

    def _merge(self, exchange: _Exchange, merged: Floats) -> None:
        """Adds what other workers have done to kept rows."""
        kept, sgd, layout = self._kept, self._sgd, self._sgd.layout
        places, expected, given_up = exchange.pulled, exchange.expected, exchange.given_up
        kept.base[places] = merged
        # What follows from the state is rounded differently here and there.
        first = 0 if sgd.derive is None else layout.dim
        changes = (merged[:, first:] != expected[:, first:]).any(axis=1)
        kept.quiet[places] = np.where(changes, 0, np.minimum(kept.quiet[places] + 1, QUIET_MAX))
        if given_up is not None:
            expected += given_up
            changes |= given_up.any(axis=1)
        changed = np.flatnonzero(changes)
        others = places[changed]
        rows = sgd.packed.take(len(others))
        take = partial(kernels.take_rows, kept.rows, dim=layout.dim, parts=layout.parts)
        self._in_threads(take, others, rows)
        rows += merged[changed] - expected[changed]
        if sgd.derive is not None:
            sgd.derive(rows)
        trained = kept.rows.reshape(-1, layout.parts, layout.stride)
        trained[others, :, : layout.dim] = rows.reshape(-1, layout.parts, layout.dim)
        sgd.packed.give(rows)
        sgd.packed.give(merged)

    def _packed(self, places: Ids) -> Floats:
        """Packed rows of places."""
        layout = self._sgd.layout
        rows = np.empty((len(places), layout.width), np.float32)
        kernels.take_rows(self._kept.rows, places, rows, layout.dim, layout.parts)
        return rows

    def _in_threads(self, function: Callable[..., object], places: Ids, rows: Floats) -> None:
        """Calls a row-wise function, in threads where that is worth their start."""
        if len(places) < CHUNK_ROWS:
            function(places, rows)
        else:
            self._sgd.in_threads(function, places, rows)


def _mean(mean: float, value: float) -> float:
    """A running mean that the first value begins."""
    return value if mean == 0 else 0.9 * mean + 0.1 * value
