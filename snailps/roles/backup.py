"""Whole tables in one file: what the default export and the periodic backup write.

    Results.scan -> keys, rows of every table -> NAME.keys, NAME.rows in one .npz, atomically

Holds one table in memory at a time; models with a format of their own override `Worker.export`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps.vectors.atomic import atomic_file

if TYPE_CHECKING:
    from snailps.roles.results import Results


def write_tables(path: Path, results: Results) -> None:
    """Writes all tables, keys ascending, to an ``.npz`` that `numpy.load` reads.

    Raises
    ------
    ModelFileError
        The folder is missing or not writable, or the disk is full.  No half a file is left.
    """
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, table in results.tables.items():
            pieces = list(results.scan(name))
            keys = np.concatenate([k for k, _ in pieces] or [np.empty(0, np.uint64)])
            rows = np.concatenate([r for _, r in pieces] or [np.empty((0, table.dim), np.float32)])
            order = np.argsort(keys)
            _add(archive, f"{name}.keys", keys[order])
            _add(archive, f"{name}.rows", rows[order])


def _add(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    # A fixed date: the same tables are the same file.
    info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
    with archive.open(info, "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
