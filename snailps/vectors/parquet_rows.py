"""Writes keys with rows as a Parquet file: a row group a piece.

    (keys, rows [, state]) ... -> columns key, row [, state] -> row groups -> file

Needs pyarrow (``snailps[data]``), which is imported when a file is begun.  Keys that ascend give
row groups whose key ranges are disjoint, which query engines skip by.  Must not know tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.atomic import atomic_file
from snailps.vectors.extras import optional_module

GROUP_ROWS_MAX = 1 << 20
Keys = NDArray[np.uint64]
Float32 = NDArray[np.float32]


class ParquetRows:
    """Write pieces of rows to an open file; `widths`: floats a column, ``{"row": 16}``."""

    def __init__(self, file: Any, widths: Mapping[str, int], metadata: Mapping[str, str]) -> None:
        self._arrow = optional_module("pyarrow", "a Parquet file", "snailps[data]")
        parquet = optional_module("pyarrow.parquet", "a Parquet file", "snailps[data]")
        arrow = self._arrow
        fields = [arrow.field("key", arrow.uint64(), nullable=False)]
        for name, width in widths.items():
            kind = arrow.list_(arrow.field("item", arrow.float32(), nullable=False), width)
            fields.append(arrow.field(name, kind, nullable=False))
        self._schema = arrow.schema(fields, metadata=dict(metadata))
        # Weights do not compress, and their dictionaries cost time and memory for nothing.
        self._writer = parquet.ParquetWriter(
            file, self._schema, compression="none", use_dictionary=False,
            column_encoding={"key": "DELTA_BINARY_PACKED"},
        )  # fmt: skip

    def add(self, keys: Keys, columns: Mapping[str, Float32]) -> None:
        """Writes a row group: keys uint64 (n,), float32 (n, width) of each column."""
        arrow = self._arrow
        arrays = [arrow.array(keys)]
        for field in list(self._schema)[1:]:
            rows = np.ascontiguousarray(columns[field.name]).reshape(-1)
            arrays.append(arrow.FixedSizeListArray.from_arrays(arrow.array(rows), type=field.type))
        batch = arrow.record_batch(arrays, schema=self._schema)
        self._writer.write_batch(batch, row_group_size=GROUP_ROWS_MAX)

    def close(self) -> None:
        """Writes the file's footer."""
        self._writer.close()


@contextmanager
def parquet_file(
    path: str,
    widths: Mapping[str, int],
    metadata: Mapping[str, str],
    bytes_needed: int | None = None,
) -> Iterator[ParquetRows]:
    """Open `path` for writing rows, as `atomic_file`; `ConfigError` without pyarrow."""
    with atomic_file(path, bytes_needed) as file:
        rows = ParquetRows(file, widths, metadata)
        yield rows
        rows.close()
