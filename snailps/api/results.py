"""The model at the master, before, during or after training: reads and sets its rows.

    settings, summary, a client -> Results -> loader, inspector, after_round, judge, export
    Results.scan -> RowSorter -> write_tables -> NAME.keys, NAME.rows of every table in one .npz

Must not know workers or leases; does not own the client that it reads with.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.export_progress import ExportProgress
from snailps.api.tables import AnyKeys, Keys, Rows, Table
from snailps.config import JobSettings
from snailps.errors import MisuseError
from snailps.transport.client._client import Client, Pending
from snailps.vectors.model_file import model_writer
from snailps.vectors.row_sorter import RowSorter

PULLS_AHEAD = 1
"""Lists of keys that `Results.pulls` pulls ahead of the one it waits for."""


class Results:
    """The model at the master, before, during or after training: settings, summary, tables.

    Attributes
    ----------
    settings : JobSettings
    summary : bytes
        Result of the survey; empty without one.
    figures : dict
        Figures of the run, read-only.
    exporting : ExportProgress
        Receives the progress of an export, or of what a `loader` reads.
    scanned : dict or None
        Keys of each table that `scan` has read to its end, for `packed`, which then need not read
        them again; None, the default: they are not kept.
    """

    scanned: dict[str, list[Keys]] | None = None

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
        """Rows of these keys, float32 (n, dim); keys never pushed have their first value.

        Raises
        ------
        NotFinite
            A row is NaN or infinite, which `Table.finite` rules out: the training has diverged.
        """
        wanted = self.tables[table].keys(keys)
        rows = np.empty((len(wanted), self.tables[table].dim), np.float32)
        self._client.pull(self._numbers[table], wanted, rows)
        self.tables[table].check_finite(wanted, rows)
        return rows

    def pulls(self, table: str, keys: Iterable[Keys]) -> Iterator[Rows]:
        """Rows as `pull` gives them, for many lists of keys, in their order.

        The next list is pulled while one is used: at most three are in memory.
        """
        declared, number = self.tables[table], self._numbers[table]
        under_way: deque[tuple[Keys, Pending]] = deque()

        def first() -> Rows:
            asked, pull = under_way.popleft()
            rows = pull.wait()
            declared.check_finite(asked, rows)
            return rows

        for some in keys:
            rows = np.empty((len(some), declared.dim), np.float32)
            under_way.append((some, self._client.pull_async(number, some, rows)))
            if len(under_way) > PULLS_AHEAD:
                yield first()
        while under_way:
            yield first()

    def forward(
        self,
        table: str,
        ptr: NDArray[np.int64],
        keys: AnyKeys,
        values: Rows | None = None,
        *,
        stored: bool = False,
    ) -> Rows:
        """Product of sparse examples with a table, as `Worker.forward`, at the shards.

        Keys never pushed have their first value, or with `stored` 0, as in the model's file.
        """
        declared, number = self.tables[table], self._numbers[table]
        return self._client.forward_async(
            number, ptr, declared.keys(keys), values, declared.dim, keep=False, stored=stored
        ).wait()

    def put(self, table: str, keys: AnyKeys, rows: Any) -> None:
        """Sets the rows of these keys to `rows`; before the training.

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
        A server adds what is pushed.  So the current value is subtracted, which gives exactly 0,
        and the row is added to that: ``x + (row - x)`` would have a rounding error.  Rows that are
        already equal cost only a pull and are not stored.
        """
        self.puts(table, [(keys, rows)])

    def puts(self, table: str, pieces: Iterable[tuple[AnyKeys, Any]]) -> None:
        """Sets rows as `put` does, for many lists of keys, each key once in all of them.

        The next list is pulled while one is pushed: at most four are in memory.
        """
        declared = self.tables[table]
        if declared.access not in ("add", "adagrad"):
            raise MisuseError(f"table {table!r}: put() needs access 'add' or 'adagrad'")
        asked: deque[tuple[Keys, Rows]] = deque()

        def wanted() -> Iterator[Keys]:
            for keys, rows in pieces:
                values = declared.values(rows)
                declared.check_width(values, declared.dim)
                asked.append((declared.keys(keys), values))
                yield asked[-1][0]

        pushed: deque[list[Pending]] = deque()
        for found in self.pulls(table, wanted()):
            pushed.append(self._replace(table, *asked.popleft(), found))
            if len(pushed) > PULLS_AHEAD:
                _wait(pushed.popleft())
        for pushes in pushed:
            _wait(pushes)

    def packed(
        self, table: str, asked: Iterable[Keys] | None = None
    ) -> Iterator[tuple[Keys, Rows]]:
        """Rows with the state of their optimizer, in pieces: `asked` ones, else every stored row.

        Yields
        ------
        keys : uint64 (n,)
        rows : float32 (n, dim + state)
        """
        declared, number = self.tables[table], self._numbers[table]
        width = declared.dim + declared.state_floats
        if asked is None:
            known = (self.scanned or {}).get(table)
            asked = known or [keys for keys, _ in self.scan(table)]
        for keys in asked:
            rows = np.empty((len(keys), width), np.float32)
            self._client.pull(number, keys, rows, True)
            declared.check_finite(keys, rows)
            yield keys, rows

    def put_packed(self, table: str, pieces: Iterable[tuple[AnyKeys, Rows]]) -> None:
        """Sets rows and the state of their optimizer, as `packed` gives them.

        Parameters
        ----------
        table : str
        pieces : iterable of (keys, rows)
            Each key once in all of them.
        """
        declared, number = self.tables[table], self._numbers[table]
        width = declared.dim + declared.state_floats
        for given, rows in pieces:
            keys = declared.keys(given)
            declared.check_width(rows, width)
            values = np.require(rows, requirements=["C", "A"])
            self._client.push_async(number, keys, values, True, assign=True).wait()

    def _replace(self, table: str, keys: Keys, values: Rows, found: Rows) -> list[Pending]:
        """Starts the pushes that make `values` of rows that are as they were found."""
        state = self.tables[table].access == "adagrad"
        number = self._numbers[table]
        if not (found[:, 0] != values[:, 0]).all():  # else all rows differ, as they mostly do
            other = np.flatnonzero((found != values).any(axis=1))
            keys, values, found = keys[other], values[other], found[other]
        parts = [np.require(values, requirements=["C", "A"])]  # they may still be the caller's
        if found.view(np.uint8).any():  # by bytes: four times as fast as by numbers
            parts.insert(0, np.negative(found, out=found))
        pushes = []
        for part in parts:
            if state:  # as a difference of weights and state
                part = np.hstack((part, np.zeros_like(part)))
            pushes.append(self._client.push_async(number, keys, part, state, False))
        return pushes

    def scan(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        """Every stored row, in pieces of up to 1 MiB: keys uint64 (n,), rows float32 (n, dim).

        Reads the shards in turn, keys in no order, with some 16 pieces in flight.
        """
        turns = itertools.chain.from_iterable(itertools.zip_longest(*self._shards))
        fragments = [fragment for fragment in turns if fragment is not None]
        progress = self.exporting
        progress.begin(f"reading table {table}", len(fragments), "fragments")
        pieces = self._client.scan(
            self._numbers[table], self.tables[table].dim, fragments, lambda: progress.add(1)
        )
        keys: list[Keys] = []
        for piece in pieces:
            progress.check()
            self.tables[table].check_finite(*piece)
            if self.scanned is not None:
                keys.append(piece[0])
            yield piece
        if self.scanned is not None:
            self.scanned[table] = keys


def _wait(pushes: list[Pending]) -> None:
    for push in pushes:
        push.wait()


def write_tables(path: Path, results: Results) -> None:
    """Write all tables, keys ascending, to an ``.npz``: the default export.

    Its memory is that of one `RowSorter`.
    """
    progress = results.exporting
    progress.plan([1.0, 1.0] * len(results.tables))
    with model_writer(path) as file:
        for name, table in results.tables.items():
            with RowSorter(path, table.dim) as sorter:
                for keys, rows in results.scan(name):
                    sorter.add(keys, rows)
                n = sorter.count
                file.add_pieces(f"{name}.keys", np.uint64, (n,), sorter.keys())
                pieces = progress.count(
                    f"writing {path.name}", n, "rows", sorter.pieces(), lambda piece: len(piece[0])
                )
                sorted_rows = (rows for _, rows in pieces)
                file.add_pieces(f"{name}.rows", np.float32, (n, table.dim), sorted_rows)
    progress.wrote(str(path))
