"""Export of a checkpoint without a cluster: reads its tables for a model's `export`.

    checkpoint -> ShardFile -> StoredTables: a section at a time -> Results -> Worker.export
                                                                 -> export_tables -> files

Takes memory for the largest section and the sorter, not for all rows.  Tables that are pulled by
key are first sorted into a scratch file beside the output.  No sockets.
"""

from __future__ import annotations

import itertools
import mmap
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.abi import loops
from snailps.api.access_method import AccessMethod, load_method
from snailps.api.class_loading import admit
from snailps.api.export_progress import ExportProgress
from snailps.api.plain_values import plain_figures
from snailps.api.results import Results
from snailps.api.tables import Keys, Rows, Table
from snailps.api.worker import load_class
from snailps.config import JobSettings, RawConfig
from snailps.config.output import refuse_existing
from snailps.dataclass import replace
from snailps.errors import CheckpointError, MisuseError, SnailError
from snailps.files.atomic import write_error
from snailps.files.row_sorter import RowSorter
from snailps.master.job.settings import output_prefix
from snailps.master.job.state import unpack
from snailps.store._store import ShardStore
from snailps.store.checkpoint._sections import SectionTable, read_section
from snailps.store.checkpoint.folder import open_checkpoint, read_course
from snailps.store.checkpoint.manifest import Manifest
from snailps.store.checkpoint.shard_file import ShardFile

_SCAN_ROWS = 16_384


class _Pulled:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def wait(self) -> Rows:
        return self._rows


class _SortedTable:
    """Rows in the order of their keys, in a scratch file that is mapped into memory."""

    def __init__(self, sorter: RowSorter, folder: Path) -> None:
        n, dim = sorter.count, sorter.dim
        pieces: Iterator[NDArray[Any]] = itertools.chain(
            sorter.keys(), (rows for _, rows in sorter.pieces())
        )
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                for piece in pieces:
                    file.write(piece.data)
                file.write(bytes(8))  # an empty file cannot be mapped
                file.flush()
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise write_error(folder / "scratch", error, None) from error
        self._keys: Keys = np.frombuffer(self._mapped, np.uint64, n)
        self._rows: Rows = np.frombuffer(self._mapped, np.float32, n * dim, 8 * n).reshape(n, dim)

    def rows_of(self, keys: Keys) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the rows of `keys`, and which are stored; rows of the others are undefined."""
        if len(self._keys) == 0:
            empty = np.empty((len(keys), self._rows.shape[1]), np.float32)
            return empty, np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        rows, are_stored = self._rows[places], self._keys[places] == keys
        # Pages stay in the page cache, which the kernel may reclaim; this process frees them.
        self._mapped.madvise(mmap.MADV_DONTNEED)
        return rows, are_stored


class StoredTables:
    """The reading part of a fan-out client, over the files of a checkpoint.

    `files` together hold every fragment once; `scratch` is the folder of sorted scratch files.
    """

    def __init__(
        self, files: Sequence[ShardFile], frag_num: int, tables: Mapping[int, Table], scratch: Path
    ) -> None:
        self._files, self._tables, self._scratch = files, tables, scratch
        self._frag_num = frag_num
        self._methods: dict[int, AccessMethod] = {
            number: load_method(table) for number, table in tables.items() if table.in_python
        }
        self._fresh = self._store(tables)
        self._sorted: dict[tuple[int, bool], _SortedTable] = {}

    def pull(self, number: int, keys: Keys, rows: Rows, state: bool = False) -> Rows:
        """Read rows of `keys` into `rows`, with `state` also their optimizer's state.

        The first pull of a table, and of its state, sorts it into a scratch file.
        """
        if (number, state) not in self._sorted:
            self._sorted[number, state] = self._sort(number, state)
        stored, are_stored = self._sorted[number, state].rows_of(keys)
        method = self._methods.get(number)
        if not are_stored.all():  # a key without a row has its initial value, as on a server
            missing = keys[~are_stored]
            stored[~are_stored] = (
                self._fresh.pull(number, missing, state) if method is None else method.init(missing)
            )
        if method is not None:
            weights = np.asarray(method.pull(stored), np.float32)
            stored = np.hstack((weights, stored[:, weights.shape[1] :])) if state else weights
        rows.view(np.float32)[:] = stored
        return rows

    def pull_async(self, number: int, keys: Keys, rows: Rows) -> _Pulled:
        """Like `pull`, for callers that pull ahead."""
        return _Pulled(self.pull(number, keys, rows))

    def scan(
        self, number: int, dim: int, fragments: Iterable[int], ended: Callable[[int], object]
    ) -> Iterator[tuple[Keys, Rows]]:
        """Yield all stored rows of `fragments`, in pieces, in the order of the files; `ended` gets
        the number of fragments that have ended, as in `Client.scan`."""
        method = self._methods.get(number)
        for keys, rows in self._stored(number, fragments, ended):
            yield keys, rows if method is None else np.asarray(method.pull(rows), np.float32)

    def scan_with_state(
        self, number: int, ended: Callable[[int], object]
    ) -> Iterator[tuple[Keys, Rows]]:
        """Yield all stored rows like `scan`, each followed by its optimizer's state."""
        method, dim = self._methods.get(number), self._tables[number].dim
        for keys, rows in self._stored(number, range(self._frag_num), ended, state=True):
            if method is not None:
                rows = np.hstack((np.asarray(method.pull(rows), np.float32), rows[:, dim:]))
            yield keys, rows

    def _stored(
        self,
        number: int,
        fragments: Iterable[int],
        ended: Callable[[int], object],
        state: bool = False,
    ) -> Iterator[tuple[Keys, Rows]]:
        """Yield rows as stored, a section at a time.

        With `state`, and always for access methods in Python, the optimizer's state follows.
        """
        wanted: NDArray[np.bool_] = np.zeros(self._frag_num, np.bool_)
        wanted[list(fragments)] = True
        table = self._tables[number]
        floats = table.words + table.state_floats
        width = floats if state or number in self._methods else table.words
        for file in self._files:
            sections_left = np.bincount(file.index["fragment"], minlength=self._frag_num)
            for fragment, section in file.sections(wanted):
                for piece in read_section(section).tables:
                    if piece.table != number:
                        continue
                    if piece.floats != floats:
                        raise CheckpointError(
                            f"{file.path}: table {number} has rows of {piece.floats} floats in the "
                            f"section of fragment {fragment}, and {floats} in its declaration"
                        )
                    yield from rows_of_piece(section, piece, width)
                sections_left[fragment] -= 1
                if sections_left[fragment] == 0:
                    ended(1)

    def _store(self, tables: Mapping[int, Table]) -> ShardStore:
        """Make a store without rows, which computes initial values."""
        store = ShardStore(self._frag_num, loops.row_ops())
        store.own(range(self._frag_num))
        for number, table in tables.items():
            state = table.state_floats if table.in_python else 0
            store.add_table(number, *table.store_arguments(), state_floats=state)
        return store

    def _sort(self, number: int, state: bool) -> _SortedTable:
        table, every = self._tables[number], range(self._frag_num)
        width = table.words + (table.state_floats if state or table.in_python else 0)
        with RowSorter(self._scratch / "scratch", width) as sorter:
            for keys, rows in self._stored(number, every, lambda _: None, state=state):
                sorter.add(keys, rows)
            return _SortedTable(sorter, self._scratch)

    def forward_async(self, *_: Any, **__: Any) -> Any:
        """Refuse: products need a cluster."""
        raise MisuseError("products with a table need a running cluster, not a checkpoint")


def rows_of_piece(
    section: NDArray[np.uint8], piece: SectionTable, width: int
) -> Iterator[tuple[Keys, Rows]]:
    """Yield the rows of a table in a section, the first `width` floats of each, in pieces."""
    end = piece.at + piece.rows * piece.row_bytes
    rows = section[piece.at : end].reshape(piece.rows, piece.row_bytes)
    for first in range(0, piece.rows, _SCAN_ROWS):
        part = rows[first : first + _SCAN_ROWS]
        floats = part[:, 8 : 8 + 4 * width]
        yield part[:, :8].copy().view(np.uint64)[:, 0], floats.copy().view(np.float32)


def _tables_of(path: Path, manifest: Manifest, modules: Collection[str]) -> dict[int, Table]:
    """The tables by number; Python classes that they name must be in `modules`."""
    tables = {item["number"]: Table.from_dict(item["table"]) for item in manifest.tables}
    for table in tables.values():
        if table.in_python:
            admit(table.access, f"{path}: table {table.name!r}", modules)
    return tables


def open_results(path: Path, settings: JobSettings, modules: Collection[str] = ()) -> Results:
    """The tables of a checkpoint, as the master has them at the end of a training.

    `modules` may be imported, as in `snailps.open_checkpoint`.
    """
    manifest, files = open_checkpoint(path)
    tables = _tables_of(path, manifest, modules)
    scratch = Path(settings.output).absolute().parent
    position = unpack(read_course(path, manifest))
    return Results(
        settings,
        position.summary or b"",
        {},
        StoredTables(files, manifest.frag_num, tables, scratch),  # type: ignore[arg-type]
        {table.name: number for number, table in tables.items()},
        {table.name: table for table in tables.values()},
        manifest.frag_num,
    )


class CheckpointSource:
    """The tables of a checkpoint, for `export_tables`; `modules` as in `open_results`."""

    def __init__(self, path: Path, modules: Collection[str] = ()) -> None:
        manifest, files = open_checkpoint(path)
        declared = _tables_of(path, manifest, modules)
        self.tables: Mapping[str, Table] = {t.name: t for t in declared.values()}
        self._numbers = {table.name: number for number, table in declared.items()}
        self._frag_num = manifest.frag_num
        self._stored = StoredTables(files, manifest.frag_num, declared, path)

    def pieces(
        self, table: str, state: bool, progress: ExportProgress
    ) -> Iterator[tuple[Keys, Rows]]:
        progress.begin(f"reading table {table}", self._frag_num, "fragments")

        def ended(fragments: int) -> None:
            progress.check()
            progress.add(fragments)

        number, declared = self._numbers[table], self.tables[table]
        if state:
            pieces = self._stored.scan_with_state(number, ended)
        else:
            pieces = self._stored.scan(number, declared.words, range(self._frag_num), ended)
        for keys, words in pieces:
            rows = declared.typed(words)
            declared.check_finite(keys, rows)
            yield keys, rows


def settings_of_checkpoint(
    path: Path, manifest: Manifest, output: str, modules: Collection[str] = ()
) -> tuple[Any, JobSettings]:
    """The model's class, if it can be imported, and its settings with another output, which may
    name a result file."""
    try:
        worker_class = str(manifest.job["worker_class"])
        values = dict(manifest.job["settings"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: its manifest names no job") from None
    admit(worker_class, str(path), modules)
    cls = load_class(worker_class, str(path))
    raw = RawConfig.from_mapping({**values, "output": output}, str(path))
    settings = raw.build(cls.Settings)
    return cls, replace(settings, output=output_prefix(cls, settings))


def export(
    path: Path,
    output: str,
    *,
    overwrite: bool = False,
    progress: ExportProgress | None = None,
    modules: Collection[str] = (),
) -> list[str]:
    """Write the files that the job writes at its end; `modules` as in `open_results`."""
    manifest, _ = open_checkpoint(path)
    cls, settings = settings_of_checkpoint(path, manifest, output, modules)
    if not overwrite:
        refuse_existing(cls.result_files(settings), unfinished=False)
    results = open_results(path, settings, modules)
    results.exporting = progress or results.exporting
    try:
        figures = plain_figures(cls, "export", cls.export(results))
    except MisuseError as error:
        raise SnailError(f"{cls.__name__}: {error}. --tables writes its tables") from None
    return [str(file) for file in figures.get("files", [])]
