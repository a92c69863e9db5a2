"""Writes keys with rows as a Parquet file, one row group for each piece.

    (keys, rows [, state]) ... -> columns key, row [, state] -> row groups -> file

Needs pyarrow (``snailps[data]``), which is imported when a file is begun.  If keys ascend, the row
groups have disjoint ranges of keys, by which query engines skip groups.  Must not know tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from snailps.files.atomic import atomic_file
from snailps.files.extras import optional_module

GROUP_ROWS_MAX = 1 << 20
Keys = NDArray[np.uint64]
Float32 = NDArray[np.float32]


def write_parquet(
    path: str,
    widths: Mapping[str, int],
    pieces: Iterable[tuple[Keys, Float32]],
    metadata: Mapping[str, str],
    bytes_needed: int | None = None,
) -> None:
    """Write keys uint64 (n,) and rows float32 (n, sum of widths), whole or not at all.

    `widths` has the number of floats of each column, such as ``{"row": 16}``.  ConfigError without
    pyarrow.
    """
    with atomic_file(path, bytes_needed) as file:
        arrow = optional_module("pyarrow", "a Parquet file", "snailps[data]")
        parquet = optional_module("pyarrow.parquet", "a Parquet file", "snailps[data]")
        fields = [arrow.field("key", arrow.uint64(), nullable=False)]
        for name, width in widths.items():
            kind = arrow.list_(arrow.field("item", arrow.float32(), nullable=False), width)
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
