"""Lines whose columns are names: triples of a graph, pairs or ratings of users and items.

    bytes of a block, head of its file -> NameColumns.read -> a list of names a column, values
    names -> NameCounts.add -> dump -> bytes of a survey's part -> merge -> summary
    summary -> Names: name <-> number

Columns are separated by tabs, commas as in CSV, or blanks; the first line of a file decides, and
shows their number.  Names are numbered by falling count, ties by bytes, so that numbers depend
on the input alone.  Owns the numbering; `examples` parses; must not know rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import first_row
from snailps.data._text import NameTable
from snailps.data.blocks import first_line_of
from snailps.data.columns import Column, Kind, is_number
from snailps.data.examples import CELLS, ExampleReader, format_of_rows
from snailps.dataclass import dataclass
from snailps.errors import DataError

_HEAD = struct.Struct("<QQ")
_MALFORMED = "a survey's part is no list of names and counts"


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a block: names, one a line, and float32 values (empty without values)."""

    names: Sequence[Sequence[bytes]]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.names[0])


@dataclass(frozen=True, slots=True)
class NameColumns:
    """Reads lines of names.

    `expected` names the columns for messages.  `valued`: a number may follow the names, then
    ignored columns; if it is no number in a file's first line, that line names the columns.
    """

    expected: tuple[str, ...]
    valued: bool = False

    def read(self, data: bytes, path: str, start: int, head: bytes) -> Columns:
        """The columns of lines from byte `start` on of a file that begins with `head`."""
        line = first_line_of(head)
        format = format_of_rows(line, self._fits, tuple(CELLS))
        cells, _ = first_row(line, *CELLS[format])
        width, names = len(cells), len(self.expected)
        if not line:
            return Columns([[] for _ in self.expected], np.zeros(0, np.float32))
        if not self._fits(width):
            raise DataError(
                f"{path}: expected {self._shape}, got {width} columns in the first line"
            )
        columns = [Column(f"name of {one}", Kind.TEXT) for one in self.expected]
        if width > names:
            columns.append(Column("value", Kind.LABEL))
            columns += [Column(f"column {at}", Kind.IGNORE) for at in range(names + 1, width)]
        first = 0
        if start <= head.index(line) and width > names and not is_number(cells[names]):
            first = data.index(line) + len(line) if line in data else len(data)
        reader = ExampleReader(format, columns=columns, needs_labels=False, may_skip=False)
        try:
            found = reader.read(data, path, start, (first, len(data)))
        except DataError as error:
            raise DataError(f"{error}: the file has {self._shape}, as its first line") from None
        values = found.labels if width > names else np.zeros(0)
        return Columns(found.cells, np.asarray(values, np.float32))

    def _fits(self, cells: int) -> bool:
        return cells == len(self.expected) or (self.valued and cells > len(self.expected))

    @property
    def _shape(self) -> str:
        shape = " ".join(self.expected) + (" [value]" if self.valued else "")
        return f"lines of {shape}, separated by tabs, commas or blanks"


class NameCounts:
    def __init__(self, kinds: int) -> None:
        self.counts = [NameTable() for _ in range(kinds)]
        self.sums = np.zeros(3)
        """Number of values, their sum, and that of their squares."""

    def add(self, kind: int, names: Sequence[bytes]) -> None:
        self.counts[kind].add(names)

    def add_values(self, values: NDArray[np.float32]) -> None:
        wide = values.astype(np.float64)
        self.sums += np.array([len(wide), wide.sum(), wide @ wide])

    def merge(self, part: bytes) -> None:
        names = Names(part)
        if len(names.names) != len(self.counts):
            raise DataError(f"{_MALFORMED}: {len(names.names)} kinds, not {len(self.counts)}")
        for table, some, counts in zip(self.counts, names.names, names.counts, strict=True):
            table.add(some, counts)
        self.sums += names.sums

    @property
    def size_bytes(self) -> int:
        """About as many bytes as `dump` has."""
        return sum(table.letters + 9 * len(table) for table in self.counts)

    def dump(self) -> bytes:
        """All counts, the most frequent names first."""
        pieces = [self.sums.tobytes()]
        for table in self.counts:
            names, counts = table.names(), table.counts()
            order = names.order(counts)
            text = names.take(order).with_tails(np.full((len(names), 1), ord("\n"), np.uint8))
            pieces += [_HEAD.pack(len(names), max(0, len(text) - 1)), text[:-1].tobytes()]
            pieces.append(counts[order].tobytes())
        return b"".join(pieces)


class Names:
    """Numbered names by kind, parsed from `NameCounts.dump`, with int64 counts.

    `sums` is float64 (3,): number of values, their sum, and that of their squares.
    """

    def __init__(self, dumped: bytes) -> None:
        self.names: list[list[bytes]] = []
        self.counts: list[NDArray[np.int64]] = []
        try:
            self.sums = np.frombuffer(dumped, np.float64, 3)
            at = self.sums.nbytes
            while at < len(dumped):
                number, length = _HEAD.unpack_from(dumped, at)
                at += _HEAD.size
                text = dumped[at : at + length]
                at += length
                self.names.append(text.split(b"\n") if number else [])
                self.counts.append(np.frombuffer(dumped[at : at + 8 * number], np.int64))
                at += 8 * number
                if not len(self.names[-1]) == len(self.counts[-1]) == number:
                    raise ValueError
        except (ValueError, struct.error):
            raise DataError(_MALFORMED) from None
        self._tables: list[NameTable] | None = None

    def numbers(self, kind: int, names: Sequence[bytes]) -> NDArray[np.int64]:
        """Number of each name, int64; -1 for an unknown one."""
        if self._tables is None:
            tables = [NameTable() for _ in self.names]
            for table, some in zip(tables, self.names, strict=True):
                table.add(some)
                if len(table) != len(some):
                    raise DataError(f"{_MALFORMED}: a name comes twice")
            self._tables = tables
        return self._tables[kind].numbers(names)
