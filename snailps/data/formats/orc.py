"""ORC, as Hive writes it: a stripe of rows at a time, which is in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import IO, Any

from snailps.data.extras import optional_module
from snailps.data.formats.arrow_table import ArrowTable, ArrowTarget, schema_with
from snailps.data.formats.table import Target


class File(ArrowTable):
    has_parts = True

    def _open(self) -> None:
        self._orc = self._module().ORCFile(self._file)
        self.schema = self._orc.schema

    def _module(self) -> Any:
        return optional_module("pyarrow.orc", f"reading {self.path}", "snailps[data]")

    def _record_batches(
        self, names: Sequence[str] | None, part: tuple[int, int] | None
    ) -> Iterator[Any]:
        # A name selects what is nested below it, too, by a point.
        plain = names is not None and not any("." in name for name in self.own_names)
        for stripe in range(*(part or (0, self._orc.nstripes))):
            batch = self._orc.read_stripe(stripe, list(names or ()) if plain else None)
            yield batch if names is None or plain else batch.select(list(names))

    def cuts(self, part_bytes: int) -> list[tuple[tuple[int, int], int]]:
        """Even parts of stripes: a file does not say how long each is."""
        stripes, size = self._orc.nstripes, self._orc.content_length
        count = max(1, min(stripes, -(-size // part_bytes)))
        ends = [part * stripes // count for part in range(count + 1)]
        return [
            ((first, last), size * (last - first) // max(stripes, 1))
            for first, last in pairwise(ends)
        ]

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        schema, codec = schema_with(self.schema, added), self._orc.compression.lower()
        return _Target(schema, self._module().ORCWriter(file, compression=codec))


class _Target(ArrowTarget):
    _is_begun = False

    def _write_table(self, table: Any) -> None:
        self._writer.write(table)
        self._is_begun = True

    def close(self) -> None:
        if not (self._waiting or self._is_begun):  # a file without rows has a schema, too
            self._write_table(self._schema.empty_table())
        super().close()

    def abandon(self) -> None:
        self._writer.is_open = False
