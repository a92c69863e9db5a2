"""Input rows that stay at a worker from chunk to chunk, as long as it keeps its part.

    keys of a tenancy -> place -> rows of the arrays      (when it is prepared, beside the training)
    open:   rows that are new, or that may have changed <- PULL
    settle: deltas so far of the tenancy's rows -> PUSH, beside the training
    close:  deltas of the tenancy's rows -> PUSH, acknowledged

A word's row of skip-gram is written by the worker that has its part, and by no other: what it has
pushed is what the servers have.  Rows that other parts have, too, are pulled again for each
tenancy: those of n-grams, and all rows of CBOW.  So are all rows when the route has changed: with
`replication: async` the new primary of a shard may lack the last pushes to the one that is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Pending
from snailps.models.local_sgd import Floats, Keys
from snailps.models.text_model import BUCKET_KEY

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

ROWS_AT_ONCE = 1 << 15
"""Deltas are pushed so many rows at a time, which bounds their memory."""

Ints = NDArray[np.int32]
Places = NDArray[np.int64]


class ResidentRows:
    """The input rows of one part.

    Parameters
    ----------
    model : WordVectors
    room : int
        Rows at most.

    Attributes
    ----------
    local : tuple of arrays
        Rows to train, and AdaGrad's squares behind them; none before the first `open`.
    base : float32 array
        Packed rows as the servers have them.

    Notes
    -----
    `place` may run while another thread trains.
    """

    def __init__(self, model: WordVectors, room: int) -> None:
        s = model.settings
        self._model, self._room = model, room
        self._of_words = np.full(len(model.vocabulary), -1, np.int32)
        self._of_buckets = np.full(s.bucket if s.maxn else 0, -1, np.int32)
        self._placed = 0
        self._route_epoch = -1  # of the last `open`
        self._here = np.zeros(room, np.bool_)
        self.local: tuple[Floats, ...] = ()
        self.base: Floats = np.zeros((0, 0), np.float32)

    def place(self, keys: Keys) -> Places | None:
        """Rows of these keys, each once, words first; None if there is no room for them."""
        words = int(np.searchsorted(keys, BUCKET_KEY))
        own = keys[:words].astype(np.int64)
        buckets = (keys[words:] - np.uint64(BUCKET_KEY)).astype(np.int64)
        rows = np.concatenate((self._of_words[own], self._of_buckets[buckets]))
        new = np.flatnonzero(rows < 0)
        if self._placed + len(new) > self._room:
            return None
        rows[new] = np.arange(self._placed, self._placed + len(new), dtype=np.int32)
        self._placed += len(new)
        self._of_words[own], self._of_buckets[buckets] = rows[:words], rows[words:]
        return rows.astype(np.int64)

    def open(self, keys: Keys, rows: Places, shared: NDArray[np.bool_]) -> int:
        """Pulls the rows of a tenancy that are new, or that may have changed at the servers.

        Parameters
        ----------
        keys, rows : arrays
            What it needs, and what `place` returned for it.
        shared : bool array
            Of each key: whether other parts have it, too.

        Returns
        -------
        int
            Rows that were pulled.
        """
        sgd = self._model.sgd
        if not self.local:
            self.local = tuple(sgd.layout.make(self._room) for _ in range(sgd.layout.arrays))
            self.base = np.empty((self._room, sgd.layout.width), np.float32)
        epoch = self._model.route_epoch  # read first: it may change during the pull
        if self._route_epoch != epoch:
            self._here[:] = False
        self._route_epoch = epoch
        lacks = np.flatnonzero(shared | ~self._here[rows])
        self._here[rows] = True
        pulled = self._model.pull_async("input", keys[lacks], state=sgd.state).wait()
        sgd.in_threads(self._load, rows[lacks], pulled)
        return len(lacks)

    def free(self) -> None:
        """Frees the rows; no other tenancy will need them."""
        self.local, self.base = (), np.zeros((0, 0), np.float32)

    def _load(self, rows: Places, packed: Floats) -> None:
        dim = self._model.sgd.layout.dim
        self.base[rows] = packed
        for part, array in enumerate(self.local):
            array[rows, :dim] = packed[:, part * dim : (part + 1) * dim]

    def packed(self, rows: Places) -> Floats:
        """These rows as they are now."""
        dim = self._model.sgd.layout.dim
        return np.concatenate([array[rows, :dim] for array in self.local], axis=1)

    def settle(self, keys: Keys, rows: Places, shares: Floats | None) -> list[Pending]:
        """Starts to push what has changed since the tenancy began, or since the last such push.

        Parameters
        ----------
        keys, rows, shares
            As for `close`.

        Returns
        -------
        list of Pending
            Pushes of copies: the rows may be trained meanwhile.
        """
        sgd, pushes = self._model.sgd, []
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            deltas = self._deltas(rows[some], None if shares is None else shares[some])
            changed = np.flatnonzero(deltas.any(axis=1))
            if len(changed):
                copy = deltas[changed]
                pushes.append(
                    self._model.push_async("input", keys[some][changed], copy, state=sgd.state)
                )
            sgd.packed.give(deltas)
        return pushes

    def close(self, keys: Keys, rows: Places, shares: Floats | None) -> None:
        """Pushes the deltas of a tenancy, and waits until they are acknowledged.

        Parameters
        ----------
        keys, rows : arrays
            As for `open`.
        shares : float32 array or None
            What part of each delta of weights is pushed; None: all.
        """
        sgd = self._model.sgd
        before = None
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            deltas = self._deltas(rows[some], None if shares is None else shares[some])
            push = self._model.push_async("input", keys[some], deltas, state=sgd.state)
            if before is not None:
                sgd.packed.give(before.wait())
            before = push
        if before is not None:
            sgd.packed.give(before.wait())

    def _deltas(self, rows: Places, shares: Floats | None) -> Floats:
        """An array of `sgd.packed`: what is to be pushed of some rows, which then count as sent."""
        sgd = self._model.sgd
        deltas = sgd.packed.take(len(rows))
        sgd.in_threads(self._subtract, rows, deltas)
        if shares is not None:
            deltas[:, : sgd.layout.dim] *= shares[:, None]
        return deltas

    def _subtract(self, rows: Places, deltas: Floats) -> None:
        now = self.packed(rows)
        np.subtract(now, self.base[rows], out=deltas)
        self.base[rows] = now
