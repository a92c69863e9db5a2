"""Connects `Scratch` with `table_files`: how the copies of a job's tables are written.

    Reading -> TableCopies -> Scratch: which files are tables, and what is read instead of them

`table_files` is the option `tables` (`registry`): imported for the first table only, because most
jobs read none, and would start later.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps.data.host_cache import Make, ScratchFile
from snailps.data.reading import Reading
from snailps.dataclass import dataclass
from snailps.registry import named


@dataclass(frozen=True, slots=True)
class TableCopies:
    """`scratch.Tables` of a job."""

    reading: Reading

    def write(self, path: str, make: Make, on_piece: Callable[[], object]) -> ScratchFile:
        """As `table_files.write_table`."""
        file: ScratchFile = named("tables").write_table(self.reading, path, make, on_piece)
        return file
