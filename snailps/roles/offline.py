"""A checkpoint's tables without a cluster: what a model's export needs of them.

    checkpoint -> ShardFile -> one ShardStore in this process -> Results -> Worker.export

Holds all tables of the checkpoint in memory at once.  No sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.config import JobSettings, RawConfig
from snailps.errors import CheckpointError, MisuseError, SnailError
from snailps.roles.access import AccessMethod, load_method
from snailps.roles.backup import write_tables
from snailps.roles.position import unpack
from snailps.roles.results import Results
from snailps.roles.tables import Keys, Rows, Table
from snailps.roles.worker import load_class
from snailps.store._sections import put_section
from snailps.store._store import ShardStore
from snailps.store.checkpoints import open_checkpoint, read_course
from snailps.store.manifest import Manifest

_SCAN_ROWS = 16_384


class _Pulled:
    """Rows that are there already, as a pull that was waited for."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def wait(self) -> Rows:
        """The rows."""
        return self._rows


class StoredTables:
    """The part of a fan-out client that reads, over one store in this process.

    Parameters
    ----------
    store : ShardStore
    tables : mapping
        Number -> declaration.
    """

    def __init__(self, store: ShardStore, tables: Mapping[int, Table]) -> None:
        self._store = store
        self._methods: dict[int, AccessMethod] = {
            number: load_method(table) for number, table in tables.items() if table.in_python
        }

    def pull(self, number: int, keys: Keys, rows: Rows) -> Rows:
        """Rows of `keys`, into `rows`."""
        method = self._methods.get(number)
        if method is None:
            rows[:] = self._store.pull(number, keys)
            return rows
        whole = self._store.pull(number, keys, state=True)
        fresh = ~np.isin(keys, self._store.keys(number))
        if fresh.any():
            whole[fresh] = method.init(keys[fresh])
        rows[:] = method.pull(whole)
        return rows

    def pull_async(self, number: int, keys: Keys, rows: Rows) -> _Pulled:
        """The same for a caller that asks ahead."""
        return _Pulled(self.pull(number, keys, rows))

    def scan(
        self, number: int, dim: int, fragments: Iterable[int], ended: Callable[[], object]
    ) -> Iterator[tuple[Keys, Rows]]:
        """All stored rows of some fragments, in pieces."""
        for fragment in fragments:
            cursor = 0
            while True:
                cursor, keys, rows = self._store.scan(number, fragment, cursor, _SCAN_ROWS)
                if not len(keys):
                    break
                if number in self._methods:
                    rows = np.empty((len(keys), dim), np.float32)
                    self.pull(number, keys, rows)
                yield keys, rows
            ended()

    def forward_async(self, *_: Any, **__: Any) -> Any:
        """Refused: products need a cluster."""
        raise MisuseError("products with a table need a running cluster, not a checkpoint")


def open_results(path: Path, settings: JobSettings) -> Results:
    """The tables of a checkpoint, as the master would have them at the end of a training.

    Parameters
    ----------
    path : Path
        Folder of the checkpoint.
    settings : JobSettings
        What the export is to go by.

    Raises
    ------
    CheckpointError
        It is damaged.
    """
    manifest, files = open_checkpoint(path)
    tables = {item["number"]: Table.from_dict(item["table"]) for item in manifest.tables}
    store = ShardStore(manifest.frag_num, kernels.row_ops())
    store.own(range(manifest.frag_num))
    for number, table in tables.items():
        state = table.state_floats if table.in_python else 0
        store.add_table(number, *table.store_arguments(), state_floats=state)
    everything: NDArray[np.bool_] = np.ones(manifest.frag_num, np.bool_)
    same = {number: number for number in tables}
    for file in files:
        for _, section in file.sections(everything):
            put_section(store, section, same, False)
    position = unpack(read_course(path, manifest))
    return Results(
        settings,
        position.summary or b"",
        {},
        StoredTables(store, tables),  # type: ignore[arg-type]
        {table.name: number for number, table in tables.items()},
        {table.name: table for table in tables.values()},
        [list(range(manifest.frag_num))],
    )


def settings_of_checkpoint(path: Path, manifest: Manifest, output: str) -> tuple[Any, JobSettings]:
    """The model's class and its settings, with another output.

    Raises
    ------
    SnailError
        The class cannot be imported here, or does not know these settings (any more).
    """
    try:
        worker_class = str(manifest.job["worker_class"])
        values = dict(manifest.job["settings"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: its manifest names no job") from None
    cls = load_class(worker_class, str(path))
    raw = RawConfig.from_mapping({**values, "output": output}, str(path))
    return cls, raw.build(cls.Settings)


def export(path: Path, output: str, *, tables_only: bool = False) -> list[str]:
    """Writes what the job would have written at its end; or all tables to ``OUTPUT.npz``.

    Returns
    -------
    list of str
        Paths of the files.

    Raises
    ------
    SnailError
        The checkpoint is damaged, or the model or its files cannot be made.
    """
    manifest, _ = open_checkpoint(path)
    if tables_only:
        target = Path(f"{output}.npz")
        write_tables(target, open_results(path, JobSettings()))
        return [str(target)]
    cls, settings = settings_of_checkpoint(path, manifest, output)
    try:
        figures = cls.export(open_results(path, settings))
    except MisuseError as error:
        raise SnailError(f"{cls.__name__}: {error}. --tables writes its tables") from None
    return [str(file) for file in figures.get("files", [])]
