"""The model at the master: its rows, read and set before, during or after the training.

    settings, summary, a client -> Results -> loader, inspector, tester, after_round, judge, export
    Results.scan -> RowSorter -> write_tables -> NAME.keys, NAME.rows of every table in one .npz

Owns how many pieces are in memory at a time: a model may be larger than the master.  Does not own
the client that it reads with; must not know workers or leases.
"""

from __future__ import annotations

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
from snailps.files.model_file import model_writer
from snailps.files.row_sorter import RowSorter
from snailps.transport.client._client import Client, Pending

PULLS_AHEAD = 1
"""Lists of keys that `Results.pulls` pulls ahead of the list it waits for."""
JOINED_BYTES = 1 << 18
"""Small pieces of a scan are joined up to this size."""


class Results:
    """The model at the master: what `judge`, `export`, `loader` and other class methods get.

    Attributes
    ----------
    settings : JobSettings
        Settings of the job, an instance of the model's `Settings`.
    summary : bytes
        Result of the survey; empty without one.
    figures : dict
        Figures of the run, read-only.
    tables : dict of Table
        The declared tables, by name.
    exporting : ExportProgress
        Gets the progress of an export, or of what a `loader` reads.
    memo : dict
        Kept for the job by this master: a class method may put here what a later one needs again.
    scanned : dict or None
        Keys of each table that `scan` has read to its end, so that `packed` need not read them
        again.  None, the default: they are not kept.

    Examples
    --------
    >>> def judge(results):
    ...     counts = results.pull("lengths", [5, 6])
    ...     rows = sum(len(keys) for keys, _ in results.scan("lengths"))
    ...     return {"lines of 5 or 6 bytes": counts.sum(), "rows": rows}
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
        frag_num: int,
        exporting: ExportProgress | None = None,
    ) -> None:
        self.settings, self.summary, self.figures = settings, summary, figures
        self._client, self._numbers, self._frag_num = client, numbers, frag_num
        self.tables = tables
        self.exporting = exporting or ExportProgress()
        self.memo: dict[str, Any] = {}

    def pull(self, table: str, keys: AnyKeys) -> Rows:
        """Read rows, (n, dim) of `Table.dtype`; a key that was never pushed has its first value.

        Raises
        ------
        NotFinite
            A row is NaN or infinite in a table with `Table.finite`: the training has diverged.
        """
        wanted = self.tables[table].keys(keys)
        rows = self.tables[table].empty(len(wanted))
        self._client.pull(self._numbers[table], wanted, rows)
        self.tables[table].check_finite(wanted, rows)
        return rows

    def pulls(self, table: str, keys: Iterable[Keys]) -> Iterator[Rows]:
        """Read rows as `pull` does, for many arrays of keys, in their order.

        The next array is pulled while one is used: at most three are in memory.
        """
        declared, number = self.tables[table], self._numbers[table]
        under_way: deque[tuple[Keys, Pending]] = deque()

        def first() -> Rows:
            asked, pull = under_way.popleft()
            rows = pull.wait()
            declared.check_finite(asked, rows)
            return rows

        for some in keys:
            rows = declared.empty(len(some))
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
        """Compute the product of sparse examples with a table at its shards, like `Worker.forward`.

        Returns float32 (m, dim).  A key that was never pushed has its first value; with `stored` it
        counts as 0, as in the model's file.
        """
        declared, number = self.tables[table], self._numbers[table]
        declared.check_floats("forward()")
        return self._client.forward_async(
            number, ptr, declared.keys(keys), values, declared.dim, keep=False, stored=stored
        ).wait()

    def put(self, table: str, keys: AnyKeys, rows: Any) -> None:
        """Set the rows of keys, before the training (in a `loader`).

        Parameters
        ----------
        table : str
            A table of access method ``add`` or ``adagrad``; AdaGrad's state starts at 0.
        keys : numpy.ndarray
            Integers from 0 on, (n,), each once.
        rows : numpy.ndarray
            Finite numbers, (n, dim), which become float32.

        Raises
        ------
        MisuseError
            The table has another access method, or the shapes do not fit.

        Notes
        -----
        A server adds what is pushed.  So the current value is subtracted, which gives exactly 0,
        and the row is added to that: ``x + (row - x)`` would have a rounding error.  Rows that are
        equal already cost only a pull, and are not stored.
        """
        self.puts(table, [(keys, rows)])

    def puts(self, table: str, pieces: Iterable[tuple[AnyKeys, Any]]) -> None:
        """Set rows as `put` does, for many pieces (keys, rows); each key once in all of them.

        The next piece is pulled while one is pushed: at most four are in memory.
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
        for present in self.pulls(table, wanted()):
            pushed.append(self._replace(table, *asked.popleft(), present))
            if len(pushed) > PULLS_AHEAD:
                _wait(pushed.popleft())
        for pushes in pushed:
            _wait(pushes)

    def packed(
        self, table: str, asked: Iterable[Keys] | None = None
    ) -> Iterator[tuple[Keys, Rows]]:
        """Read rows with the state of their optimizer, in pieces: of the keys `asked`, or of every
        stored row.

        Yields
        ------
        keys : uint64 (n,)
        rows : float32 (n, dim + state)
        """
        declared, number = self.tables[table], self._numbers[table]
        if asked is None:
            known = (self.scanned or {}).get(table)
            asked = known or [keys for keys, _ in self.scan(table)]
        for keys in asked:
            rows = declared.empty(len(keys), state=True)
            self._client.pull(number, keys, rows, True)
            declared.check_finite(keys, rows)
            yield keys, rows

    def put_packed(self, table: str, pieces: Iterable[tuple[AnyKeys, Rows]]) -> None:
        """Set rows and the state of their optimizer, as `packed` gives them.

        Parameters
        ----------
        table : str
        pieces : iterable of (keys, rows)
            Each key once in all of them.
        """
        declared, number = self.tables[table], self._numbers[table]
        width = declared.dim + declared.state_floats
        for keys, rows in pieces:
            keys = declared.keys(keys)
            declared.check_width(rows, width)
            values = np.require(rows, requirements=["C", "A"])
            self._client.push_async(number, keys, values, True, assign=True).wait()

    def _replace(self, table: str, keys: Keys, values: Rows, present: Rows) -> list[Pending]:
        """Start the pushes that turn rows with the values `present` into `values`."""
        state = self.tables[table].access == "adagrad"
        number = self._numbers[table]
        if not (present[:, 0] != values[:, 0]).all():  # else all rows differ, as they mostly do
            other = np.flatnonzero((present != values).any(axis=1))
            keys, values, present = keys[other], values[other], present[other]
        parts = [np.require(values, requirements=["C", "A"])]  # may still be the caller's array
        if present.view(np.uint8).any():  # by bytes: four times as fast as by numbers
            parts.insert(0, np.negative(present, out=present))
        pushes = []
        for part in parts:
            if state:  # as a difference of weights and state
                part = np.hstack((part, np.zeros_like(part)))
            pushes.append(self._client.push_async(number, keys, part, state, False))
        return pushes

    def scan(self, table: str) -> Iterator[tuple[Keys, Rows]]:
        """Read every stored row, in pieces of up to 1 MiB: keys uint64 (n,), rows as in `pull`.

        Keys come in no order, each once.  All shards are read at the same time, with some 16 pieces
        in flight; small ones are joined.

        Raises
        ------
        NotFinite
            As in `pull`.
        ExportCancelled
            The user has interrupted the export.
        """
        fragments, progress, declared = range(self._frag_num), self.exporting, self.tables[table]
        progress.begin(f"reading table {table}", len(fragments), "fragments")
        pieces = self._client.scan(self._numbers[table], declared.words, fragments, progress.add)
        keys: list[Keys] = []
        for piece_keys, words in joined(pieces):
            progress.check()
            rows = declared.typed(words)
            declared.check_finite(piece_keys, rows)
            if self.scanned is not None:
                keys.append(piece_keys)
            yield piece_keys, rows
        if self.scanned is not None:
            self.scanned[table] = keys


def joined(pieces: Iterable[tuple[Keys, Rows]]) -> Iterator[tuple[Keys, Rows]]:
    """Join small pieces of rows to ones of up to `JOINED_BYTES`: what is done with a piece costs as
    much for a row as for a thousand, and a table has several pieces, however few rows it has.
    """
    held: list[tuple[Keys, Rows]] = []
    held_bytes = 0
    for keys, rows in pieces:
        piece_bytes = keys.nbytes + rows.nbytes
        if held and held_bytes + piece_bytes > JOINED_BYTES:
            whole = _concatenated(held)
            held, held_bytes = [], 0  # before the next ones are read
            yield whole
            del whole
        held.append((keys, rows))
        held_bytes += piece_bytes
    if held:
        yield _concatenated(held)


def _concatenated(pieces: Sequence[tuple[Keys, Rows]]) -> tuple[Keys, Rows]:
    if len(pieces) == 1:
        return pieces[0]
    keys, rows = zip(*pieces, strict=True)
    return np.concatenate(keys), np.concatenate(rows)


def _wait(pushes: list[Pending]) -> None:
    for push in pushes:
        push.wait()


def write_tables(path: Path, results: Results) -> None:
    """Write all tables to an ``.npz``, keys ascending: the default export.

    Needs the memory of one `RowSorter`, whatever the size of the model.
    """
    progress = results.exporting
    progress.plan([1.0, 1.0] * len(results.tables))
    with model_writer(path) as file:
        for name, table in results.tables.items():
            with RowSorter(path, table.words) as sorter:
                for keys, rows in results.scan(name):
                    sorter.add(keys, rows)
                n = sorter.count
                file.add_pieces(f"{name}.keys", np.uint64, (n,), sorter.keys())
                pieces = progress.count(
                    f"writing {path.name}", n, "rows", sorter.pieces(), lambda piece: len(piece[0])
                )
                sorted_rows = (table.typed(rows) for _, rows in pieces)
                file.add_pieces(f"{name}.rows", table.dtype, (n, table.dim), sorted_rows)
    progress.wrote(str(path))
