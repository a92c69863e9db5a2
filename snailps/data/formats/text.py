"""Text as a table: one row per line, and one column, without a name."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import ColumnKind
from snailps.data.elements import ListColumn
from snailps.data.formats.lines import LineTarget
from snailps.data.formats.table import RowBatch, TableFile, Target
from snailps.files.file_kinds import whole_lines


class TextFile(TableFile):
    row = "line"
    is_stream = True

    def _names(self) -> list[str]:
        return [""]

    def _kinds(self, but: Sequence[str]) -> dict[str, ColumnKind]:
        return {"": ColumnKind.CATEGORICAL}

    def lines(self) -> Iterator[bytes]:
        """Whole lines, about a MiB at a time."""
        return whole_lines(self._file, self.path)

    def rows(
        self, names: Sequence[str] | None = None, part: tuple[int, int] | None = None
    ) -> Iterator[RowBatch]:
        first = 1
        for data in self.lines():
            lines = io.BytesIO(data).readlines()
            for begin in range(0, len(lines), self.batch_rows):
                part_lines = lines[begin : begin + self.batch_rows]
                rows = len(part_lines)
                texts = {"": ListColumn([line.removesuffix(b"\n") for line in part_lines])}
                numbers = range(first, first + rows)
                yield RowBatch([""], rows, self.path, texts.__getitem__, numbers, part_lines)
                first += rows

    def selected(
        self, batch: RowBatch, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]
    ) -> bytes:
        return b"".join([batch.raw[row] for row in rows.tolist()])

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        return LineTarget(file, self.path)
