"""Reads the tables of a checkpoint by key, without a cluster.

    folder -> open_checkpoint -> SavedTables -> table -> RowIndex over mapped files -> rows

Rows stay in the mapped files, so all processes of a machine share them in the page cache; each
process has only an index of its own, which the first use of a table builds
(`SavedTable.index_bytes`).  Read only.  Must not know sockets.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snailps.api.access_method import load_method
from snailps.api.class_loading import admit
from snailps.api.tables import AnyKeys, Keys, Rows, Table, Tensor
from snailps.data.arguments import whole_number
from snailps.errors import CheckpointError, MisuseError
from snailps.serving.row_reader import Lack, RowReader
from snailps.store.checkpoint._row_index import RowIndex
from snailps.store.checkpoint.folder import found_at
from snailps.store.checkpoint.folder import open_checkpoint as open_files
from snailps.store.checkpoint.manifest import NAME
from snailps.store.checkpoint.shard_file import ShardFile

PIECE_ROWS = 16_384


def open_checkpoint(
    path: str | os.PathLike[str], *, verify: bool = True, modules: Collection[str] = ()
) -> SavedTables:
    """Open a checkpoint to read its rows by key.

    Parameters
    ----------
    path : path
        Folder of a checkpoint, or a folder of several, whose newest undamaged one is opened.
    verify : bool
        Compare the checksums of a table on first use, which reads all its rows once.
    modules : collection of str
        Python modules that may be imported for access methods.  Nothing else is imported, and
        nothing from the current folder.

    Returns
    -------
    SavedTables

    Raises
    ------
    DataError
        The folder is missing, or has no checkpoint.
    CheckpointError
        Every checkpoint in the folder is damaged or unfinished, or the named one is.

    Examples
    --------
    >>> saved = snailps.open_checkpoint("out/ads.checkpoints")  # doctest: +SKIP
    >>> saved["users"].pull([17, 4])  # doctest: +SKIP
    """
    return SavedTables(newest_of(Path(path)), verify=verify, modules=modules)


def newest_of(path: Path) -> Path:
    """Return `path`, or the newest undamaged checkpoint in it; errors as in `open_checkpoint`."""
    if (path / NAME).exists():
        return path
    checkpoints = found_at(path)
    for checkpoint in reversed(checkpoints):
        if checkpoint.state == "good":
            return checkpoint.path
    raise CheckpointError(f"{path}: no good checkpoint here: {checkpoints[-1].why}")


class SavedTables(Mapping[str, "SavedTable"]):
    """A mapping from names to the tables of a checkpoint; `snailps.open_checkpoint` makes one.

    Attributes
    ----------
    path : Path
        Folder of the checkpoint.
    saved_at : str
        When the checkpoint was begun, ISO 8601 in UTC.
    progress : float
        Progress of the training at that time, 0 to 1.

    Examples
    --------
    >>> saved = snailps.open_checkpoint("out/ads.checkpoints")  # doctest: +SKIP
    >>> {name: len(table) for name, table in saved.items()}  # doctest: +SKIP
    {'users': 131072, 'items': 9021}
    """

    def __init__(self, path: Path, *, verify: bool = True, modules: Collection[str] = ()) -> None:
        self.path, self._verify, self._modules = path, verify, modules
        manifest, self._files = open_files(path)
        self.saved_at = manifest.saved_at
        self.progress = float(manifest.job.get("progress", 0.0))
        self._frag_num = manifest.frag_num
        self._declared = {}
        for item in manifest.tables:
            table = Table.from_dict(item["table"])
            self._declared[table.name] = (int(item["number"]), table)
        self._lock = threading.Lock()
        self._opened: dict[str, SavedTable] = {}
        self._mapped: list[NDArray[np.uint8]] | None = None

    def __repr__(self) -> str:
        return f"<checkpoint {self.path}: {', '.join(self._declared) or 'no tables'}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def __contains__(self, name: object) -> bool:
        return name in self._declared  # without an index of the table's keys

    def __getitem__(self, name: str) -> SavedTable:
        """Return a table; its first use builds an index of its keys.

        Raises
        ------
        KeyError
            There is no table of that name.
        CheckpointError
            The table is damaged.
        ConfigError
            The module of its access method is not in `modules`, or cannot be imported.
        """
        if name not in self._declared:
            there = ", ".join(self._declared) or "none"
            raise KeyError(f"no table {name!r} in {self.path}: there are {there}")
        number, table = self._declared[name]
        with self._lock:
            if name not in self._opened:
                if table.in_python:
                    admit(table.access, f"{self.path}: table {name!r}", self._modules)
                if self._mapped is None:
                    self._mapped = [_map(file) for file in self._files]
                floats = table.words + table.state_floats
                index = RowIndex(number, self._frag_num, floats)
                for file, mapped in zip(self._files, self._mapped, strict=True):
                    for section in _sections(file, mapped, self._verify):
                        index.add(section)
                index.build()
                self._opened[name] = SavedTable(table, index)
            return self._opened[name]

    def tensor(self, name: str, shape: Sequence[int]) -> Rows:
        """Return the values of a tensor (`snailps.Tensor`), float32, in its shape.

        Raises
        ------
        KeyError
            There is no table of that name.
        MisuseError
            The table is not a tensor of that shape.
        """
        table = self[name]
        declared = Tensor(name, tuple(shape))
        if declared.table().dim != table.table.dim or len(table) > len(declared.keys()):
            raise MisuseError(
                f"table {name!r} with {len(table):,} rows of {table.table.dim} is no tensor of "
                f"shape {tuple(shape)}"
            )
        return declared.from_rows(table.pull(declared.keys()))


class SavedRows:
    """A `RowSource` over one table of a checkpoint."""

    def __init__(self, table: Table, index: RowIndex) -> None:
        self.table, self._index = table, index
        self._method = load_method(table) if table.in_python else None

    def find(self, keys: Keys, rows: Rows) -> Lack | None:
        if self._method is None:
            there = self._index.find(keys, rows)
        else:
            stored = np.zeros((len(keys), self._index.floats), np.float32)
            there = self._index.find(keys, stored)
            rows[there] = self._method.pull(stored[there])
        return None if there.all() else Lack(~there, 0, None)


class SavedTable(RowReader):
    """One table of a checkpoint, by key.  Thread-safe."""

    def __init__(self, table: Table, index: RowIndex) -> None:
        super().__init__(SavedRows(table, index))
        self._index = index

    def __repr__(self) -> str:
        return f"<saved table {self.table.name!r}, {len(self):,} rows of {self.table.dim}>"

    def __len__(self) -> int:
        return self._index.rows

    @property
    def index_bytes(self) -> int:
        """Memory of the index in bytes; rows are in the page cache."""
        return self._index.index_bytes

    def contains(self, keys: AnyKeys) -> NDArray[np.bool_]:
        """Return which of n keys are stored, bool (n,)."""
        return self._index.find(np.ascontiguousarray(self.table.keys(keys)))

    def keys(self) -> Keys:
        """Return all stored keys, uint64 (n,), in no particular order."""
        pieces = [self._index.keys_of(fragment) for fragment in range(self._index.frag_num)]
        return np.concatenate(pieces) if pieces else np.empty(0, np.uint64)

    def pieces(self, rows_max: int = PIECE_ROWS) -> Iterator[tuple[Keys, Rows]]:
        """Yield keys uint64 (n,) and their rows in file order, n <= `rows_max`."""
        rows_max = whole_number(rows_max, 1, "rows_max: expected at least 1 row")
        for fragment in range(self._index.frag_num):
            keys = self._index.keys_of(fragment)
            for start in range(0, len(keys), rows_max):
                piece = keys[start : start + rows_max]
                yield piece, self.pull(piece)


def _map(file: ShardFile) -> NDArray[np.uint8]:
    """Map a shard's file; the mapping lives as long as the array."""
    try:
        with open(file.path, "rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file.path}: cannot be read: {error}") from None
    return np.frombuffer(mapped, np.uint8)


def _sections(
    file: ShardFile, mapped: NDArray[np.uint8], verify: bool
) -> Iterator[NDArray[np.uint8]]:
    for entry in file.index:
        begin, length = int(entry["at"]), int(entry["bytes"])
        section = mapped[begin : begin + length]
        if verify:
            file.check_section(entry, section)
        yield section
