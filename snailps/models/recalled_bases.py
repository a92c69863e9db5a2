"""Bases that a single worker does not keep: computed again, or pulled, when deltas are pushed.

    new keys -> FirstValues.load -> rows that no server has
    rows of a closed period -> leave -> pieces -> take: made again | PULLED -> keys, deltas

Nobody else changes the rows, so the server's copy of a row is its first value, or what a pull
gives.  Owns the rows of closed periods until their deltas are computed.

What this special case saves (whole commands of the classifier; docs/lab/shared-rows.md, "Memory"):
bases that are not in memory, 1,075 to 855 MB and 12.2 to 10.1 s of processor time; first values
made here, 92 to 65 bytes of traffic a word; pieces sent while kernels run, 2.76 to 2.34 s from the
first to the last block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from snailps.api.worker import Pending
from snailps.kernels._row_exchange import RowExchange
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.rows import Ids

MADE_BYTES = 128 << 10
"""Rows whose first values are made at a time, so that they are in cache when they are copied."""
PIECE_BYTES = 1 << 20
"""Deltas of one request, small enough for the second-level cache."""
PULLED_AHEAD = 2
"""Pieces whose bases are pulled before they are needed."""


class DeclaredFirstValues:
    """First values of rows as the table declares them, written by ``fill(keys, rows)``."""

    def __init__(self, fill: Callable[[Keys, Floats], None], width: int) -> None:
        self._fill, self._width = fill, width
        self._step = max(1, MADE_BYTES // (4 * width))

    def load(self, rows: RowExchange, places: Ids, keys: Keys, now: float) -> None:
        """Give new rows their first values; several threads may do so, for different rows."""
        packed = np.empty((min(len(keys), self._step), self._width), np.float32)
        for first in range(0, len(keys), self._step):
            some = slice(first, first + self._step)
            values = packed[: len(keys[some])]
            self._fill(keys[some], values)
            rows.load(places[some], keys[some], values, now=now)

    def subtract(self, rows: RowExchange, places: Ids, keys: Keys, deltas: Floats) -> None:
        """Write the deltas of rows that were made here: trained rows less first values."""
        for first in range(0, len(keys), self._step):
            some = slice(first, first + self._step)
            self._fill(keys[some], deltas[some])
            rows.subtract(places[some], deltas[some])


class RecalledBases:
    """Rows of closed periods that wait for their bases, in pieces; of the training thread alone."""

    def __init__(self, sgd: LocalSgd, table: str, first: DeclaredFirstValues | None) -> None:
        self._sgd, self._table, self._first = sgd, table, first
        self._made = (0, 0)  # range of places whose rows were made here, and never pushed
        self._pieces: deque[tuple[Ids, bool]] = deque()  # and whether its rows were made here
        self._asked: deque[tuple[Ids, Keys, Floats, Pending | None]] = deque()

    def made(self, stop: int) -> None:
        """Record that rows up to the place `stop` were made here."""
        self._made = self._made[0], stop

    def leave(self, touched: Ids) -> None:
        """Leave the rows of a period, by ascending place, to `take`.

        Rows that were made here and never pushed have first values as bases; other rows are pulled.
        """
        rows = max(1, PIECE_BYTES // (4 * self._sgd.layout.width))
        self._sgd.packed.drop(rows)
        parts = np.split(touched, np.searchsorted(touched, self._made))
        self._made = self._made[1], self._made[1]
        for part, made in zip(parts, (False, True, False), strict=True):
            if len(part):
                pieces = np.array_split(part, len(part) // rows + 1)
                self._pieces.extend((piece, made) for piece in pieces)

    @property
    def waits(self) -> bool:
        """Whether rows are left."""
        return bool(self._pieces or self._asked)

    def take(self, rows: RowExchange) -> tuple[Keys, Floats] | None:
        """Give keys and deltas of the next piece; None: nothing is left."""
        while self._pieces and len(self._asked) < PULLED_AHEAD:
            places, made = self._pieces.popleft()
            self._asked.append(self._ask(rows, places, made))
        if not self._asked:
            return None
        places, keys, deltas, pull = self._asked.popleft()
        if pull is not None:
            deltas = pull.wait()
            rows.subtract(places, deltas)
        else:
            assert self._first is not None
            self._first.subtract(rows, places, keys, deltas)
        return keys, deltas

    def _ask(
        self, rows: RowExchange, places: Ids, made: bool
    ) -> tuple[Ids, Keys, Floats, Pending | None]:
        keys = rows.keys(places)
        out, pull = self._sgd.packed.take(len(places)), None
        if not made:
            # With state, hence as float32, exactly as the server has the rows.
            pull = self._sgd.worker.pull_async(self._table, keys, out, state=True, ahead=True)
        return places, keys, out, pull
