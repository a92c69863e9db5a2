"""A tenancy's input rows: its words' own, which nobody else has, and copies of n-grams' rows.

    keys -> PULL -> trained rows;  exchange: share of the delta -> PUSH, PULL behind it -> merged
    close: last deltas -> PUSH, acknowledged

Words of several resident parts have an n-gram, so several workers train copies of its row.  A copy
is exchanged when all workers together are expected to have made `STEPS_APART` steps on the row; the
worker pushes the share of its delta that its part of the way has if all pull to the same optimum.

Notes
-----
With a curvature c a step, a row that makes s steps goes 1 - exp(-c s) of its way.  t workers that
make s steps each on copies go t times that by sums, and 1 - exp(-c s t) one after the other: the
share is the quotient.  It is 1 for one worker and for few steps, 1 / t for many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Block, Pending
from snailps.models.local_sgd import ArrayPool, Floats, Keys
from snailps.models.text_model import BUCKET_KEY

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors
    from snailps.models.word_vectors.rotation import Tenancy

STEPS_APART = 300.0
TURNS_MAX = 8
TURN_GROUPS = 500
"""Least groups of pairs between two exchanges."""
CURVATURE = 1.0
"""Share of its way to the optimum that a row goes in a step, a unit of the learning rate."""


class GramCopies:
    """The input rows of one tenancy.

    Parameters
    ----------
    model : WordVectors
    keys : uint64 array
        Of the rows, each once.
    arrays : ArrayPool
        Of trained rows.

    Attributes
    ----------
    local : tuple of arrays
        Rows to train, and AdaGrad's squares behind them.
    turns : int
        How often in a visit `exchange` is to be called.
    """

    def __init__(self, model: WordVectors, keys: Keys, arrays: ArrayPool) -> None:
        self._model, self._keys, self._arrays = model, keys, arrays
        self._sgd = model.sgd
        self._base: Floats = model.sgd.pull_rows("input", keys).wait()
        self.local = tuple(arrays.take(len(keys)) for _ in range(model.sgd.layout.arrays))
        model.sgd.in_threads(model.sgd.layout.load, self._base, *self.local)
        self._every = np.zeros(0, np.int64)
        self.turns = 1
        self._last = 0
        self._share = np.ones(len(keys), np.float32)
        self._open: list[tuple[NDArray[np.int64], Floats, Pending, Pending]] = []

    def count_steps(self, tenancy: Tenancy, block: Block) -> None:
        """Finds which rows have copies elsewhere, how often and by which share they travel."""
        s = self._model.settings
        if s.maxn == 0:
            return
        groups = np.bincount(tenancy.centres, minlength=len(tenancy.present))
        weights = np.repeat(groups, np.diff(tenancy.bag_ptr))
        own = np.bincount(tenancy.bag_rows, weights, len(self._keys))
        words = int(np.searchsorted(self._keys, BUCKET_KEY))
        sharers = np.ones(len(self._keys), np.int32)
        sharers[words:] = tenancy.parts.sharers[
            (self._keys[words:] - np.uint64(BUCKET_KEY)).astype(np.int64)
        ]
        self.turns = max(1, min(TURNS_MAX, len(tenancy.centres) // (block.visiting * TURN_GROUPS)))
        turns = self._last = block.visiting * self.turns
        apart = STEPS_APART / np.maximum(own * sharers, 1e-9) * turns
        every = np.clip(apart, 1, turns).astype(np.int64)
        every[sharers < 2] = turns + 1  # never
        self._every = every
        # Of the steps between two exchanges.
        way = CURVATURE * s.lr * (1.0 - block.progress[0]) * own / turns * np.minimum(every, turns)
        way = np.maximum(way, 1e-9)
        self._share = (-np.expm1(-way * sharers) / (sharers * -np.expm1(-way))).astype(np.float32)
        self._share[sharers < 2] = 1.0

    def exchange(self, number: int) -> None:
        """After turn `number`, from 1 on: merges what has come, starts to exchange what is due."""
        self._merge()
        if number >= self._last or not len(self._every):
            return
        due = np.flatnonzero(number % self._every == 0)
        if not len(due):
            return
        now = self._packed(due)
        keys = self._keys[due]
        push = self._push(keys, due, now)
        pull = self._model.pull_async("input", keys, state=self._sgd.state)
        self._open.append((due, now, push, pull))

    def close(self) -> None:
        """Pushes all deltas and waits until they are acknowledged."""
        self._merge()
        everything = np.arange(len(self._keys))
        self._push(self._keys, everything, self._packed(everything)).wait()
        self._sgd.packed.give(self._base)
        for array in self.local:
            self._arrays.give(array)

    def _push(self, keys: Keys, rows: NDArray[np.int64], now: Floats) -> Pending:
        """Starts to push shares of the deltas; squares add up as they are."""
        deltas = now - self._base[rows]
        deltas[:, : self._sgd.layout.dim] *= self._share[rows, None]
        return self._model.push_async("input", keys, deltas, state=self._sgd.state)

    def _packed(self, rows: NDArray[np.int64]) -> Floats:
        dim = self._sgd.layout.dim
        return np.concatenate([array[rows, :dim] for array in self.local], axis=1)

    def _merge(self) -> None:
        """Takes merged rows, and adds this worker's steps since it sent its own."""
        dim = self._sgd.layout.dim
        for rows, sent, push, pull in self._open:
            push.wait()
            merged = pull.wait()
            for part, array in enumerate(self.local):
                columns = slice(part * dim, (part + 1) * dim)
                array[rows, :dim] += merged[:, columns] - sent[:, columns]
            self._base[rows] = merged
        self._open.clear()
