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

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Pending
from snailps.models.local_sgd import Floats, Keys
from snailps.models.text_model import BUCKET_KEY

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

BYTES_AT_ONCE = 1 << 20
"""Rows are pulled and pushed so many at a time, to take little besides their places."""
UNDER_WAY = 2
"""Pulls, and pushes, that are under way while other rows are loaded or subtracted."""

Ints = NDArray[np.int32]
Places = NDArray[np.int64]


def pieces(rows: int, width: int) -> Iterator[slice]:
    """Rows of so many floats, some at a time."""
    size = max(1, BYTES_AT_ONCE // (4 * width))
    return (slice(first, first + size) for first in range(0, rows, size))


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
        coming: deque[tuple[Places, Pending]] = deque()
        for some in pieces(len(lacks), sgd.layout.width):
            own = lacks[some]
            pull = self._model.pull_async("input", keys[own], state=sgd.state)
            coming.append((rows[own], pull))
            if len(coming) > UNDER_WAY:
                self._take(*coming.popleft())
        for of, pull in coming:
            self._take(of, pull)
        return len(lacks)

    def _take(self, rows: Places, pull: Pending) -> None:
        self._model.sgd.in_threads(self._load, rows, pull.wait())

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
        for some in pieces(len(rows), sgd.layout.width):
            deltas = self._deltas(rows[some], None if shares is None else shares[some])
            changed = np.flatnonzero(deltas.any(axis=1))
            if len(changed):
                copy = deltas[changed]
                pushes.append(
                    self._model.push_async("input", keys[some][changed], copy, state=sgd.state)
                )
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
        under_way: deque[Pending] = deque()
        for some in pieces(len(rows), sgd.layout.width):
            deltas = self._deltas(rows[some], None if shares is None else shares[some])
            under_way.append(self._model.push_async("input", keys[some], deltas, state=sgd.state))
            if len(under_way) > UNDER_WAY:
                under_way.popleft().wait()
        for push in under_way:
            push.wait()

    def _deltas(self, rows: Places, shares: Floats | None) -> Floats:
        """What is to be pushed of some rows, which then count as sent.

        No array of `sgd.packed`: those of visits are much larger, and would be taken for these.
        """
        sgd = self._model.sgd
        deltas = np.empty((len(rows), sgd.layout.width), np.float32)
        sgd.in_threads(self._subtract, rows, deltas)
        if shares is not None:
            deltas[:, : sgd.layout.dim] *= shares[:, None]
        return deltas

    def _subtract(self, rows: Places, deltas: Floats) -> None:
        now = self.packed(rows)
        np.subtract(now, self.base[rows], out=deltas)
        self.base[rows] = now
