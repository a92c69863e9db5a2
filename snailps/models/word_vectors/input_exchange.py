"""A tenancy's input rows: those that its part alone has, and copies of those that others have, too.

    resident rows -> exchange: share of the delta -> PUSH, PULL behind it -> merged
                  -> settle: all deltas so far -> PUSH
                  -> close: last deltas -> PUSH, acknowledged

With skip-gram, words of several resident parts have an n-gram, so several workers train copies of
its row; with CBOW all rows are such copies.  A copy is exchanged when all workers together are
expected to have made `Sharing.steps_apart` steps on the row; the worker pushes the share of its
delta that its part of the way has if all pull to the same optimum.

Notes
-----
With a curvature c a step, a row that makes s steps goes 1 - exp(-c s) of its way.  t workers that
make s steps each on copies go t times that by sums, and 1 - exp(-c s t) one after the other: the
share is the quotient.  It is 1 for one worker and for few steps, 1 / t for many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Block, Pending
from snailps.models.local_sgd import Floats, share_of_delta
from snailps.models.text_model import BUCKET_KEY

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors
    from snailps.models.word_vectors.rotation import SkipGramTenancy, Tenancy
    from snailps.models.word_vectors.settings import WordVectorSettings

TURNS_MAX = 16
"""Exchanges in a visit at most."""
GRAM_STEPS_APART = 300.0
TURN_GROUPS = 64
"""Least groups of pairs between two exchanges."""
GROUP_CURVATURE = 4.0
"""Share of its way to the optimum that the hidden vector of a group of pairs goes in a step, a unit
of the learning rate.  That of one of its n rows is an n-th of it."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How often and by which share the rows of a tenancy travel.

    Attributes
    ----------
    crowding : array
        Of each row: steps of all workers over those of this one; 1: no other part has it.
    own, way : float64 array
        Steps of this worker in the tenancy, and rate x curvature of all of them.
    steps_apart : float
        Steps of all workers between two exchanges.
    turns : int
        How often in a visit rows may be exchanged.
    """

    crowding: NDArray[Any]
    own: NDArray[Any]
    way: NDArray[Any]
    steps_apart: float
    turns: int


def sharing_of_grams(
    settings: WordVectorSettings, tenancy: SkipGramTenancy, block: Block
) -> Sharing:
    """Of skip-gram: parts share rows of n-grams, and step as often as each other."""
    keys, rows = tenancy.keys, tenancy.rows
    sharers = np.ones(len(keys), np.int32)
    words = int(np.searchsorted(keys, BUCKET_KEY))
    buckets = (keys[words:] - np.uint64(BUCKET_KEY)).astype(np.int64)
    sharers[words:] = tenancy.parts.sharers[buckets]
    if (sharers < 2).all():
        return Sharing(sharers, np.zeros(len(keys)), np.zeros(len(keys)), GRAM_STEPS_APART, 1)
    groups = np.bincount(tenancy.centres, minlength=len(tenancy.present))
    sizes = np.diff(tenancy.bags.ptr)
    own = np.bincount(tenancy.bags.rows, np.repeat(groups, sizes))[rows]
    way = np.bincount(tenancy.bags.rows, np.repeat(groups / np.maximum(sizes, 1), sizes))[rows]
    rate = GROUP_CURVATURE * settings.lr * (1.0 - block.progress[0])
    turns = max(1, min(TURNS_MAX, len(tenancy.centres) // (block.visiting * TURN_GROUPS)))
    return Sharing(sharers, own, rate * way, GRAM_STEPS_APART, turns)


class InputExchange:
    """The input rows of one tenancy.

    Parameters
    ----------
    model : WordVectors
    tenancy : Tenancy
    block : Block
    sharing : Sharing

    Attributes
    ----------
    local : tuple of arrays
        Resident rows to train, and AdaGrad's squares behind them.
    turns : int
        How often in a visit `exchange` is to be called.
    opened, exchanged : int
        Rows that were pulled at first; and pulled or pushed since, in exchanges.
    """

    def __init__(
        self, model: WordVectors, tenancy: Tenancy, block: Block, sharing: Sharing
    ) -> None:
        self._model, self._sgd = model, model.sgd
        self._keys, self._rows, self._resident = tenancy.keys, tenancy.rows, tenancy.resident
        self._crowding, self.turns = sharing.crowding, sharing.turns
        shared = self._crowding > 1
        self._alone = not shared.any()
        last = self._last = block.visiting * self.turns
        apart = sharing.steps_apart / np.maximum(sharing.own * self._crowding, 1e-9) * last
        # Each turn looks for rows that are due, and most rows of n-grams never are.
        self._among = np.flatnonzero(shared & (apart < last))
        self._every = np.maximum(apart[self._among], 1).astype(np.int32)  # turns between two
        self._number = block.had * self.turns
        self._due = self._every + self._number  # turn of the next one
        self._way = sharing.way / last
        self._sent = np.full(len(self._keys), self._number)  # turn of the last exchange
        self._open: tuple[NDArray[np.int64], Floats, Pending, Pending] | None = None
        self.opened = self._resident.open(self._keys, self._rows, shared)
        self.exchanged = 0
        self.local = self._resident.local

    def exchange(self, number: int) -> None:
        """After turn `number`, from 1 on: merges what has come, starts to exchange what is due.

        While rows are on their way nothing else is sent, and nothing waits for them: on a slow
        network rows are exchanged less often, by smaller shares.
        """
        self._number = number
        if not self._merge(wait=False) or number >= self._last:
            return
        found = np.flatnonzero(self._due <= number)
        if not len(found):
            return
        self._due[found] = number + self._every[found]
        due = self._among[found]
        now = self._resident.packed(self._rows[due])
        push = self._push(due, now)
        pull = self._model.pull_async("input", self._keys[due], state=self._sgd.state)
        self._open = (due, now, push, pull)
        self.exchanged += 2 * len(due)

    def settle(self) -> list[Pending]:
        """Between two visits: starts to push all deltas so far; settled when these pushes are done.

        Of rows that other parts have, too, the share that is due after these steps, as in `close`.
        """
        self._merge(wait=True)
        shares = None if self._alone else self._shares(np.arange(len(self._keys)))
        self._sent[:] = self._number
        return self._resident.settle(self._keys, self._rows, shares)

    def close(self) -> None:
        """Pushes all deltas and waits until they are acknowledged."""
        self._merge(wait=True)
        shares = None if self._alone else self._shares(np.arange(len(self._keys)))
        self._resident.close(self._keys, self._rows, shares)

    def _push(self, due: NDArray[np.int64], now: Floats) -> Pending:
        """Starts to push shares of the deltas; squares add up as they are."""
        deltas = now - self._resident.base[self._rows[due]]
        deltas[:, : self._sgd.layout.dim] *= self._shares(due)[:, None]
        self._sent[due] = self._number
        return self._model.push_async("input", self._keys[due], deltas, state=self._sgd.state)

    def _shares(self, places: NDArray[np.int64]) -> Floats:
        """Share of each delta to push, by the steps since the row was sent before."""
        way = (self._way[places] * (self._number - self._sent[places])).astype(np.float32)
        return share_of_delta(way, way * (self._crowding[places] - 1).astype(np.float32))

    def _merge(self, wait: bool) -> bool:
        """Takes merged rows, and adds this worker's steps since it sent its own.

        False if they have not come yet, and are not waited for.
        """
        if self._open is None:
            return True
        due, sent, push, pull = self._open
        if not (wait or (push.done and pull.done)):
            return False
        push.wait()
        merged = pull.wait()
        dim, rows = self._sgd.layout.dim, self._rows[due]
        for part, array in enumerate(self.local):
            columns = slice(part * dim, (part + 1) * dim)
            array[rows, :dim] += merged[:, columns] - sent[:, columns]
        self._resident.base[rows] = merged
        self._open = None
        return True
