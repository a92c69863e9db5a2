"""Writes whole tables to one file: the default export, and the export of a checkpoint.

    Results.scan -> RowSorter -> NAME.keys, NAME.rows of every table in one .npz, atomically

Memory is that of the sorter; models with their own format override `Worker.export`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from snailps.vectors.npz import NpzWriter, npz_file
from snailps.vectors.row_sorter import RowSorter

if TYPE_CHECKING:
    from snailps.api.export_progress import ExportProgress
    from snailps.api.results import Results


def write_tables(path: Path, results: Results) -> None:
    """Writes all tables, keys ascending, to an ``.npz`` that `numpy.load` reads.

    Raises
    ------
    ModelFileError
        The folder is missing or not writable, or the disk is full.  No partial file is left.
    """
    results.exporting.plan([1.0, 1.0] * len(results.tables))
    with npz_file(path) as file:
        for name, table in results.tables.items():
            with RowSorter(path, table.dim) as sorter:
                for keys, rows in results.scan(name):
                    sorter.add(keys, rows)
                write_sorted(file, f"{name}.", sorter, results.exporting)
    results.exporting.wrote(str(path))


def write_sorted(file: NpzWriter, prefix: str, sorter: RowSorter, told: ExportProgress) -> None:
    """Writes the arrays ``keys`` and ``rows`` of a sorter, as one stage of the export."""
    n = sorter.count
    file.add_pieces(f"{prefix}keys", np.uint64, (n,), sorter.keys())
    pieces = told.count(
        f"writing {sorter.target.name}", n, "rows", sorter.pieces(), lambda piece: len(piece[0])
    )
    rows = (rows for _, rows in pieces)
    file.add_pieces(f"{prefix}rows", np.float32, (n, sorter.dim), rows)
