"""ORC, which Hive writes: read stripe by stripe; a stripe is in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import IO, Any

from snailps.data.formats.arrow_table import ArrowTable, ArrowTarget, arrow_module, schema_with
from snailps.data.formats.table import Target
from snailps.errors import DataError
from snailps.files.extras import optional_module


class OrcFile(ArrowTable):
    has_parts = True

    def _open(self) -> None:
        self._orc = self._module().ORCFile(self._file)
        self.schema = self._orc.schema

    def _module(self) -> Any:
        return optional_module("pyarrow.orc", f"reading {self.path}", "snailps[data]")

    def _record_batches(
        self, names: Sequence[str] | None, part: tuple[int, int] | None
    ) -> Iterator[Any]:
        # ORC's reader takes `a.b` for the field b of column a: with such a name among the columns
        # it reads all, and the wanted ones are selected here.
        plain = names is not None and not any("." in name for name in self.own_names)
        for stripe in range(*(part or (0, self._orc.nstripes))):
            try:
                batch = self._orc.read_stripe(stripe, list(names or ()) if plain else None)
            except arrow_module().ArrowInvalid as error:
                if "out of range for nanosecond" not in str(error):
                    raise
                raise DataError(
                    f"{self.path}: {error}: pyarrow reads times of ORC from 1677 to 2262 only. "
                    "Write the table as Parquet, or without that column"
                ) from None
            yield batch if names is None or plain else batch.select(list(names))

    def cuts(self, part_bytes: int) -> list[tuple[tuple[int, int], int]]:
        """Even parts of stripes, which are taken to be equally long: pyarrow does not tell."""
        stripes, size = self._orc.nstripes, self._orc.content_length
        count = max(1, min(stripes, -(-size // part_bytes)))
        ends = [part * stripes // count for part in range(count + 1)]
        return [
            ((first, last), size * (last - first) // max(stripes, 1))
            for first, last in pairwise(ends)
        ]

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        schema, codec = schema_with(self.schema, added), self._orc.compression.lower()
        return _OrcTarget(schema, self._module().ORCWriter(file, compression=codec))


class _OrcTarget(ArrowTarget):
    _has_schema = False

    def _write_table(self, table: Any) -> None:
        self._writer.write(table)
        self._has_schema = True

    def close(self) -> None:
        # The writer learns the schema from the first table: without one the file would be broken.
        if not (self._waiting or self._has_schema):
            self._write_table(self._schema.empty_table())
        super().close()

    def abandon(self) -> None:
        # Else the writer's destructor would write a footer into a file that is being removed.
        self._writer.is_open = False
