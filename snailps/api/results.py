"""The model as the master sees it, before, during or after training: its rows, to read or to put.

    settings, summary, a client -> Results -> Worker.loader, inspector, after_round, judge, export

It knows no worker and no lease; it does not own the client that it reads with.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.export_progress import ExportProgress
from snailps.api.tables import AnyKeys, Keys, Rows, Table
from snailps.config import JobSettings
from snailps.errors import MisuseError
from snailps.transport.client._client import Client, Pending

PULLS_AHEAD = 1
"""Lists of keys that `Results.pulls` asks for beside the one that is waited for."""


class Results:
    """The model as the master sees it, before, during or after training: settings, summary, tables.

    Attributes
    ----------
    settings : JobSettings
    summary : bytes
        Of the survey; empty without one.
    figures : dict
        Figures of the run, for reading.
    exporting : ExportProgress
        Where an export tells how far it is.
    """

    def __init__(
        self,
        settings: JobSettings,
        summary: bytes,
        figures: Mapping[str, Any],
        client: Client,
        numbers: Mapping[str, int],
        tables: Mapping[str, Table],
        shards: Sequence[Sequence[int]],
        exporting: ExportProgress | None = None,
    ) -> None:
        self.settings, self.summary, self.figures = settings, summary, figures
        self._client, self._numbers, self._shards = client, numbers, shards
        self.tables = tables
        self.exporting = exporting or ExportProgress()

    def pull(self, table: str, keys: AnyKeys) -> Rows:
        """Rows of these keys, float32 (n, dim); keys that were never pushed: their first value."""
        wanted = self.tables[table].keys(keys)
        rows = np.empty((len(wanted), self.tables[table].dim), np.float32)
        self._client.pull(self._numbers[table], wanted, rows)
        return rows

    def pulls(self, table: str, keys: Iterable[Keys]) -> Iterator[Rows]:
        """Rows as `pull` gives them, for many lists of keys, in their order.

        The next list is asked for while one is used: three of them are in memory at most.
        """
        dim, number = self.tables[table].dim, self._numbers[table]
        under_way: deque[Pending] = deque()
        for some in keys:
            rows = np.empty((len(some), dim), np.float32)
            under_way.append(self._client.pull_async(number, some, rows))
            if len(under_way) > PULLS_AHEAD:
                yield under_way.popleft().wait()
        while under_way:
            yield under_way.popleft().wait()

    def forward(
        self, table: str, ptr: NDArray[np.int64], keys: AnyKeys, values: Rows | None = None
    ) -> Rows:
        """Product of sparse examples with a table, as `Worker.forward`, at the shards."""
        declared, number = self.tables[table], self._numbers[table]
        return self._client.forward_async(
            number, ptr, declared.keys(keys), values, declared.dim, keep=False
        ).wait()

    def put(self, table: str, keys: AnyKeys, rows: Any) -> None:
        """Makes the rows of these keys equal to `rows`, whatever they were; before the training.

        Parameters
        ----------
        table : str
            Of access method ``add``, or ``adagrad``, whose state begins at 0.
        keys : numpy.ndarray
            Any integers from 0 on, (n,), each once.
        rows : numpy.ndarray
            Numbers that become float32 (n, dim), finite.

        Notes
        -----
        A server adds what is pushed.  So the first value is taken away, which leaves exactly 0,
        and the row added to that: ``x + (row - x)`` would be off by rounding.  Rows that are so
        already cost a pull only and are not stored.
        """
        state = self.tables[table].access == "adagrad"
        if not state and self.tables[table].access != "add":
            raise MisuseError(f"table {table!r}: put() needs access 'add' or 'adagrad'")
        wanted, values = self.tables[table].keys(keys), self.tables[table].values(rows)
        self.tables[table].check_width(values, self.tables[table].dim)
        found = self.pull(table, wanted)
        other = np.flatnonzero((found != values).any(axis=1))
        wanted, number = wanted[other], self._numbers[table]
        parts = [-found[other]] if found[other].any() else []
        for part in [*parts, values[other]]:
            if state:  # as a difference of weights and state
                part = np.hstack((part, np.zeros_like(part)))
            self._client.push_async(number, wanted, part, state, False).wait()

    def scan(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        """Every stored row, in pieces of up to 1 MiB: keys uint64 (n,), rows float32 (n, dim).

        Of all shards in turns, in no order of keys; some 16 pieces are on their way meanwhile.
        """
        turns = itertools.chain.from_iterable(itertools.zip_longest(*self._shards))
        fragments = [fragment for fragment in turns if fragment is not None]
        told = self.exporting
        told.begin(f"reading table {table}", len(fragments), "fragments")
        pieces = self._client.scan(
            self._numbers[table], self.tables[table].dim, fragments, lambda: told.add(1)
        )
        for piece in pieces:
            told.check()
            yield piece
