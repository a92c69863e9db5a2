"""What a job's scratch copies of tables are: hands `Scratch` the writer of `table_files`.

    Reading -> TableCopies -> Scratch: which files are tables, and what stands in their place

`table_files` is imported for the first table: most jobs read none, and would start later.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps.data.host_cache import Make, ScratchFile
from snailps.data.reading import Reading
from snailps.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TableCopies:
    reading: Reading

    def write(self, path: str, make: Make, on_piece: Callable[[], object]) -> ScratchFile:
        """Write what a job reads in a table's place; `on_piece` is called at times, may raise."""
        from snailps.data.table_files import write_table

        return write_table(self.reading, path, make, on_piece)
