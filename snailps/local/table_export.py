"""Export of tables to files of other programs: ``.npz``, safetensors, Parquet.

    TableSource.pieces -> RowSorter -> keys ascending -> OUTPUT.npz | OUTPUT.safetensors
                                                      -> OUTPUT.TABLE.parquet

A source is a checkpoint (`offline_export`) or a running cluster (`session_tables`).  An export
takes memory for the sorters' buffers only, whatever the size of the tables; its scratch files on
the output's disk are as large as the tables.  No sockets; must not know models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.api.export_progress import ExportProgress
from snailps.api.tables import Keys, Rows, Table
from snailps.config.output import refuse_existing, refuse_folders
from snailps.errors import ConfigError
from snailps.files.atomic import atomic_file, check_target
from snailps.files.extras import optional_module
from snailps.files.model_file import model_writer
from snailps.files.row_sorter import RowSorter
from snailps.vectors.safetensors import Array, write_safetensors

GROUP_ROWS_MAX = 1 << 20
FORMATS = ("npz", "safetensors", "parquet")
Format = Literal["npz", "safetensors", "parquet"]


class TableSource(Protocol):
    """Source of tables; `tables`: name -> declaration."""

    tables: Mapping[str, Table]

    def pieces(
        self, table: str, state: bool, progress: ExportProgress
    ) -> Iterator[tuple[Keys, Rows]]:
        """Every stored row, each key once: uint64 (n,), (n, dim [+ state]) of the table's type.

        Begins a stage of `progress` and advances it.
        """


def files_of(output: str, format: Format, tables: Sequence[str]) -> list[str]:
    if format == "parquet":
        return [f"{output}.{table}.parquet" for table in tables]
    return [f"{output}.{format}"]


def export_tables(
    source: TableSource,
    output: str,
    format: Format = "npz",
    *,
    tables: Sequence[str] | None = None,
    state: bool = False,
    overwrite: bool = False,
    how: str = "pass overwrite=True",
    progress: ExportProgress | None = None,
) -> list[str]:
    """Write keys and rows of `tables` (default: all), keys ascending; see `Cluster.export`.

    `output` is the prefix of the paths; `how` names the option for `overwrite` in messages.
    """
    if format not in FORMATS:
        raise ConfigError(f"format: expected {', '.join(FORMATS)}, got {format!r}")
    if isinstance(tables, str):
        tables = [tables]
    names = list(source.tables) if tables is None else list(dict.fromkeys(tables))
    for name in names:
        if name not in source.tables:
            there = ", ".join(source.tables) or "none"
            raise ConfigError(f"no table {name!r} to export: there are {there}")
    if not names:
        raise ConfigError("there are no tables to export")
    if not output or output.endswith("/"):
        raise ConfigError(f"output: expected a prefix of paths, got {output!r}")
    files = files_of(output, format, names)
    refuse_folders(files)
    if not overwrite:
        refuse_existing(files, unfinished=False, how=how)
    for file in files:
        check_target(Path(file))
    job = _TableExport(source, state, progress or ExportProgress())
    job.progress.plan([1.0, 1.0] * len(names))
    _WRITERS[format](job, names, files)
    return files


class _TableExport:
    def __init__(self, source: TableSource, state: bool, progress: ExportProgress) -> None:
        self.source, self.progress, self._state = source, progress, state

    def widths(self, table: str) -> dict[str, int]:
        """Values of each array of rows, in their order in a sorted row."""
        declared = self.source.tables[table]
        widths = {"rows": declared.dim}
        if self._state and declared.state_floats:
            widths["state"] = declared.state_floats
        return widths

    def sort(self, table: str, target: str) -> RowSorter:
        """Sort all rows of a table by key; the caller closes the sorter."""
        declared, state = self.source.tables[table], "state" in self.widths(table)
        sorter = RowSorter(target, declared.words + (declared.state_floats if state else 0))
        try:
            for keys, rows in self.source.pieces(table, state, self.progress):
                sorter.add(keys, rows)
        except BaseException:
            sorter.close()
            raise
        return sorter

    def pieces(self, table: str, sorter: RowSorter) -> Iterator[tuple[Keys, Rows]]:
        """Yield the sorted rows, counted as a stage of the progress."""
        what, typed = f"writing table {table}", self.source.tables[table].typed
        pieces = ((keys, typed(words)) for keys, words in sorter.pieces())
        return self.progress.count(what, sorter.count, "rows", pieces, lambda piece: len(piece[0]))

    def arrays(self, table: str, sorter: RowSorter) -> Iterator[Array]:
        """Yield the arrays ``TABLE.keys``, ``TABLE.rows`` and, with state, ``TABLE.state``."""
        yield Array(f"{table}.keys", np.dtype(np.uint64), (sorter.count,), sorter.keys())
        first = 0
        for name, width in self.widths(table).items():
            pieces = self.pieces(table, sorter) if name == "rows" else sorter.pieces()
            rows = _columns(pieces, slice(first, first + width))
            dtype = np.dtype(self.source.tables[table].dtype)
            yield Array(f"{table}.{name}", dtype, (sorter.count, width), rows)
            first += width

    def declarations(self, names: Sequence[str]) -> str:
        return json.dumps([self.source.tables[name].to_dict() for name in names])


def _columns(pieces: Iterator[tuple[Keys, Rows]], columns: slice) -> Iterator[NDArray[np.float32]]:
    for _, rows in pieces:
        yield rows[:, columns]


def _closing(sorter: RowSorter, pieces: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the pieces, then close the sorter, which frees its disk space for other tables."""
    yield from pieces
    sorter.close()


def _write_npz(job: _TableExport, names: Sequence[str], files: Sequence[str]) -> None:
    with model_writer(files[0]) as file:
        for name in names:
            with job.sort(name, files[0]) as sorter:
                for array in job.arrays(name, sorter):
                    file.add_pieces(*array)
    job.progress.wrote(files[0])


def _write_safetensors(job: _TableExport, names: Sequence[str], files: Sequence[str]) -> None:
    """Sort all tables before the first is written: the header has the length of each."""
    with ExitStack() as stack:
        arrays: list[Array] = []
        for name in names:
            sorter = stack.enter_context(job.sort(name, files[0]))
            if len(names) > 1:
                sorter.spill()  # a buffer at a time, however many tables there are
            *others, last = job.arrays(name, sorter)
            arrays += [*others, last._replace(pieces=_closing(sorter, last.pieces))]
        arrays.sort(key=lambda array: array.dtype.itemsize, reverse=True)
        about = {"format": "snailps", "tables": job.declarations(names)}
        write_safetensors(files[0], arrays, about)
    job.progress.wrote(files[0])


def _write_row_groups(
    path: str,
    widths: Mapping[str, int],
    dtype: str,
    pieces: Iterable[tuple[Keys, Rows]],
    metadata: Mapping[str, str],
    bytes_needed: int | None = None,
) -> None:
    """Write keys and rows (n, sum of widths) as Parquet, a row group a piece, whole or not at all.

    `widths` has the number of values of each column, such as ``{"row": 16}``.  Keys ascend, so row
    groups have disjoint ranges of keys, by which query engines skip groups.
    """
    with atomic_file(path, bytes_needed) as file:
        arrow = optional_module("pyarrow", "a Parquet file", "snailps[data]")
        parquet = optional_module("pyarrow.parquet", "a Parquet file", "snailps[data]")
        fields = [arrow.field("key", arrow.uint64(), nullable=False)]
        for name, width in widths.items():
            value = arrow.from_numpy_dtype(np.dtype(dtype))
            kind = arrow.list_(arrow.field("item", value, nullable=False), width)
            fields.append(arrow.field(name, kind, nullable=False))
        schema = arrow.schema(fields, metadata=dict(metadata))
        # Trained weights do not compress, and a dictionary of them would only cost time and memory.
        writer = parquet.ParquetWriter(
            file, schema, compression="none", use_dictionary=False,
            column_encoding={"key": "DELTA_BINARY_PACKED"},
        )  # fmt: skip
        edges = np.cumsum(list(widths.values()))[:-1]
        for keys, rows in pieces:
            arrays = [arrow.array(keys)]
            for field, part in zip(fields[1:], np.split(rows, edges, axis=1), strict=True):
                values = arrow.array(np.ascontiguousarray(part).reshape(-1))
                arrays.append(arrow.FixedSizeListArray.from_arrays(values, type=field.type))
            batch = arrow.record_batch(arrays, schema=schema)
            writer.write_batch(batch, row_group_size=GROUP_ROWS_MAX)
        writer.close()


def _write_parquet(job: _TableExport, names: Sequence[str], files: Sequence[str]) -> None:
    columns = {"rows": "row", "state": "state"}
    for name, path in zip(names, files, strict=True):
        widths = {columns[part]: width for part, width in job.widths(name).items()}
        with job.sort(name, path) as sorter:
            about = {"snailps": job.declarations([name])}
            needed = sorter.count * 4 * sorter.dim
            dtype = job.source.tables[name].dtype
            _write_row_groups(path, widths, dtype, job.pieces(name, sorter), about, needed)
        job.progress.wrote(path)


_WRITERS: dict[str, Callable[[_TableExport, Sequence[str], Sequence[str]], None]] = {
    "npz": _write_npz,
    "safetensors": _write_safetensors,
    "parquet": _write_parquet,
}
