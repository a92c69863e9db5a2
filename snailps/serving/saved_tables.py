"""The tables of a checkpoint, read by key without any cluster.

    folder -> open_checkpoint -> SavedTables -> table -> RowIndex over mapped files -> rows

Rows stay in the files, in the page cache that all processes of a machine share; a process has the
index alone.  Read only; no sockets.
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
        Folder of a checkpoint, or of several: the newest good one is taken.
    verify : bool
        Compare a table's checksums when it is first used.
    modules : collection of str
        Modules of access methods in Python that may be imported.  A checkpoint imports no other,
        and none from the current folder.

    Returns
    -------
    SavedTables

    Raises
    ------
    DataError
        No such folder, or no checkpoint in it.
    CheckpointError
        No checkpoint is good, or the named one is damaged.

    Examples
    --------
    >>> saved = snailps.open_checkpoint("out/ads.checkpoints")  # doctest: +SKIP
    >>> saved["users"].pull([17, 4])  # doctest: +SKIP
    """
    return SavedTables(newest_of(Path(path)), verify=verify, modules=modules)


def newest_of(path: Path) -> Path:
    """Folder of a checkpoint: `path`, or the newest good one in it; errors of `open_checkpoint`."""
    if (path / NAME).exists():
        return path
    found = found_at(path)
    for one in reversed(found):
        if one.state == "good":
            return one.path
    raise CheckpointError(f"{path}: no good checkpoint here: {found[-1].why}")


class SavedTables(Mapping[str, "SavedTable"]):
    """The tables of a checkpoint by name; made by `snailps.open_checkpoint`.

    Attributes
    ----------
    path : Path
        Its folder.
    saved_at : str
        When it was begun, ISO 8601 in UTC.
    progress : float
        Of the training, 0 to 1.
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

    def __getitem__(self, name: str) -> SavedTable:
        """A table; the first use indexes its keys.

        Raises
        ------
        KeyError
            No table of that name.
        CheckpointError
            The table is damaged.
        ConfigError
            Its access method is of a module that is not in `modules`, or cannot be imported.
        """
        number, table = self._declared[name]
        with self._lock:
            if name not in self._opened:
                if table.in_python:
                    admit(table.access, f"{self.path}: table {name!r}", self._modules)
                if self._mapped is None:
                    self._mapped = [_map(file) for file in self._files]
                floats = table.dim + table.state_floats
                index = RowIndex(number, self._frag_num, floats)
                for file, mapped in zip(self._files, self._mapped, strict=True):
                    for section in _sections(file, mapped, self._verify):
                        index.add(section)
                index.build()
                self._opened[name] = SavedTable(table, index)
            return self._opened[name]

    def tensor(self, name: str, shape: Sequence[int]) -> Rows:
        """Values of a tensor (`snailps.Tensor`), float32, in its shape.

        Raises
        ------
        KeyError
            No table of that name.
        MisuseError
            The table is no tensor of that shape.
        """
        found = self[name]
        declared = Tensor(name, tuple(shape))
        if declared.table().dim != found.table.dim or len(found) > len(declared.keys()):
            raise MisuseError(
                f"table {name!r} with {len(found):,} rows of {found.table.dim} is no tensor of "
                f"shape {tuple(shape)}"
            )
        return declared.from_rows(found.pull(declared.keys()))


class SavedRows:
    """A `RowSource`: rows of a checkpoint's table by its index."""

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
        """Memory of the index; rows are in the page cache."""
        return self._index.index_bytes

    def contains(self, keys: AnyKeys) -> NDArray[np.bool_]:
        """Which keys are stored, bool (n,)."""
        return self._index.find(np.ascontiguousarray(self.table.keys(keys)))

    def keys(self) -> Keys:
        """All stored keys, uint64 (n,), unordered."""
        found = [self._index.keys_of(fragment) for fragment in range(self._index.frag_num)]
        return np.concatenate(found) if found else np.empty(0, np.uint64)

    def pieces(self, rows_max: int = PIECE_ROWS) -> Iterator[tuple[Keys, Rows]]:
        """Stored rows in pieces, in file order: uint64 (n,), float32 (n, dim)."""
        for fragment in range(self._index.frag_num):
            keys = self._index.keys_of(fragment)
            for at in range(0, len(keys), rows_max):
                some = keys[at : at + rows_max]
                yield some, self.pull(some)


def _map(file: ShardFile) -> NDArray[np.uint8]:
    """Bytes of a shard's file, mapped as long as the array lives."""
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
