"""Lines whose columns are names: triples of a graph, pairs or ratings of users and items.

    bytes of a block, head of its file -> NameColumns.read -> names by column, values
    names -> NameCounts.add -> dump -> bytes of a survey's part -> merge -> summary
    summary -> Names: name <-> number

Owns the numbering of names: by falling count, ties by bytes, so that numbers depend on the input
alone, and not on workers or time.  Columns are separated by tabs, commas as in CSV, blanks, or
MovieLens's ``::``; the first line of a file shows which, and how many columns there are.
`examples` parses.  Must not know rows of tables.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from snailps.data._examples import first_row
from snailps.data._text import NameTable
from snailps.data.columns import ColumnKind, DeclaredColumn, as_float, is_number
from snailps.data.examples import ExampleReader, format_of_rows, lines_before
from snailps.data.packed_words import PackedWords
from snailps.dataclass import dataclass, field
from snailps.errors import DataError
from snailps.files.driver_files import is_driver_file
from snailps.files.file_kinds import CELLS, SHOWING_BYTES, first_line_of
from snailps.files.reading import is_table

_HEAD = struct.Struct("<QQ")
_KINDS = struct.Struct("<Q")
_VALUES = struct.Struct("<6d")
_COLONS = b"::"
TITLE = rb"%ss?([ _-]?(id|name|index))?"
_WHOLE = re.compile(rb"[ \t]*-?[0-9]+[ \t\r]*")
_DATE = re.compile(
    r"\s*(?P<date>\d{4}(?:-\d\d){0,2}(?:[T ]\d\d(?::\d\d){0,2}(?:\.\d+)?"
    r"(?: ?(?P<zone>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?))?)?)\s*",
    re.ASCII,
)
"""A date in ISO 8601: the zone of its time counts alike after T and after a blank."""
_MALFORMED = "a survey's part is no list of names and counts"
Counted = tuple[Sequence[bytes], NDArray[np.int64]]
"""Names, and how often each has come."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a block: by column, the names line by line.

    `values` and `times`, float64 (n,), are empty if lines have none, or if no times were asked for.
    """

    names: Sequence[Sequence[bytes]]
    values: NDArray[np.float64]
    times: NDArray[np.float64] = field(default_factory=partial(np.zeros, 0))

    def __len__(self) -> int:
        return len(self.names[0])

    def choices(self) -> Columns:
        """The lines that a ranking learns from: all, or, if there are values, those above 0."""
        return self.take(self.values > 0) if len(self.values) else self

    def weighted(self) -> Columns:
        """The lines that have a weight, where values are weights: those whose value is not 0."""
        return self.take(self.values != 0) if len(self.values) else self

    def take(self, wanted: NDArray[np.bool_]) -> Columns:
        """The lines where `wanted`, bool (n,), is true."""
        chosen = np.flatnonzero(wanted)
        if len(chosen) == len(self):
            return self
        names = [PackedWords.of(names).take(chosen) for names in self.names]
        values, times = (
            numbers[chosen] if len(numbers) else numbers for numbers in (self.values, self.times)
        )
        return Columns(names, values, times)


@dataclass(frozen=True, slots=True)
class ValueMoments:
    """Moments of values, which can be added: parts of a survey give the moments of the whole.

    The mean of equal values is exact.  `squares`: sum of squared differences from the mean;
    `below`: number of values below 0; `least` and `most`: extremes of the values above 0.
    """

    number: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    below: float = 0.0
    least: float = np.inf
    most: float = 0.0

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> ValueMoments:
        if not len(values):
            return cls()
        others = values - values[0]
        mean = float(others.mean())
        squares = float(((others - mean) ** 2).sum())
        above = values[values > 0]
        return cls(
            float(len(values)),
            float(values[0]) + mean,
            squares,
            float((values < 0).sum()),
            float(above.min(initial=np.inf)),
            float(above.max(initial=0)),
        )

    def __add__(self, other: ValueMoments) -> ValueMoments:
        number = self.number + other.number
        if not self.number or not other.number:
            return self if self.number else other
        apart, share = other.mean - self.mean, other.number / number
        return ValueMoments(
            number,
            self.mean + apart * share,
            self.squares + other.squares + apart**2 * self.number * share,
            self.below + other.below,
            min(self.least, other.least),
            max(self.most, other.most),
        )

    @property
    def unused(self) -> str:
        """A warning about what a ranking does not use of the values; empty: it uses all."""
        parts = []
        if self.below:
            parts.append(f"{self.below:,.0f} entries of values below 0 are left out")
        if self.least < self.most:
            parts.append(f"values from {self.least:g} to {self.most:g} count as one choice each")
        if not parts:
            return ""
        return (
            " and ".join(parts) + ": a ranking learns what was chosen; loss squared learns values"
        )

    @property
    def size(self) -> float:
        """Root of the mean square."""
        return float((self.squares / self.number + self.mean**2) ** 0.5) if self.number else 0.0

    @property
    def deviation(self) -> float:
        return float((self.squares / self.number) ** 0.5) if self.number else 0.0

    def dump(self) -> bytes:
        return _VALUES.pack(self.number, self.mean, self.squares, self.below, self.least, self.most)


@dataclass(frozen=True, slots=True)
class NameColumns:
    """Reads lines of names.

    `expected`: what the columns are, for messages.  `valued`: a number may follow the names, and
    further columns, which are ignored, may follow it; if a file's first line has no number at that
    place, the line is a header; without such a column `are_titles` decides.  `time`: the column
    with the time of a line, counted from 1; in the place of the value, there is no value.  0: there
    is none.  Without `reads_times` that column is ignored, and lines may lack it.
    """

    expected: tuple[str, ...]
    valued: bool = False
    time: int = 0
    reads_times: bool = True

    def read(
        self, data: bytes, path: str, start: int, head: bytes, *, may_lack: bool = False
    ) -> Columns:
        """The columns of lines that lie at byte `start` of a file that begins with `head`.

        `head` shows separator and number of columns, which a block from the middle cannot.
        DataError: another number of columns, or an empty name unless `may_lack`.
        """
        line = first_line_of(head)
        following = _after(head, line)
        format = format_of_rows(line, self._fits, tuple(CELLS))
        cells, _ = first_row(line, *CELLS[format])
        width, names = len(cells), len(self.expected)
        if not self._fits(width) and _COLONS in line:
            texts = (text.replace(_COLONS, b"\t") for text in (data, head, following))
            data, head, following = texts
            line, format = line.replace(_COLONS, b"\t"), "tsv"
            cells, _ = first_row(line, *CELLS[format])
            width = len(cells)
        if not line:
            return Columns([[] for _ in self.expected], np.zeros(0))
        if not self._fits(width):
            raise DataError(
                f"{path}: expected {self._shape}, got {width} columns in the first line"
            )
        columns = [DeclaredColumn(f"name of {what}", ColumnKind.TEXT) for what in self.expected]
        for place in range(names, width):
            if place == self.time - 1:
                columns.append(
                    DeclaredColumn(
                        "time", ColumnKind.TEXT if self.reads_times else ColumnKind.IGNORE
                    )
                )
            elif place == names:
                columns.append(DeclaredColumn("value", ColumnKind.LABEL))
            else:
                columns.append(DeclaredColumn(f"column {place}", ColumnKind.IGNORE))
        has_values = width > names and self.time != names + 1
        first = 0
        if width == names:
            # Rows of a driver or a table have none: a first pair of odd names would be lost.
            may_have = not (is_driver_file(path) or is_table(path))
            has_titles = may_have and are_titles(cells, self.expected, following, CELLS[format])
        else:
            cell = cells[names]
            has_titles = bool(cell.strip()) and not is_number(cell)
            if has_titles and not has_values:
                has_titles = len(times_of([cell])) == 0
        if start <= head.index(line) and has_titles:
            first = data.index(line) + len(line) if line in data else len(data)
        reader = ExampleReader(format, columns=columns, needs_labels=False, may_skip=False)
        try:
            examples = reader.read(data, path, start, (first, len(data)))
        except DataError as error:
            raise DataError(f"{error}: by its first line the file has {self._shape}") from None
        if not may_lack:
            for what, column in zip(self.expected, examples.cells, strict=False):
                if (row := _first_empty(column)) >= 0:
                    line_names = " ".join(repr(cells[row])[1:] for cells in examples.cells)
                    where = place_of_row(data, path, start, row, len(examples.cells[0]))
                    raise DataError(
                        f"{where}: expected a name as {what}, got an empty one in "
                        f"{line_names:.80}. Leave such lines out, or name what is missing"
                    )
        values = examples.labels if has_values else np.zeros(0)
        times = np.zeros(0)
        if self._is_timed:
            cells_of_times = examples.cells[names]
            times = times_of(cells_of_times)
            if len(times) < len(cells_of_times):
                row = next(i for i, cell in enumerate(cells_of_times) if not len(times_of([cell])))
                where = place_of_row(data, path, start, row, len(cells_of_times))
                raise DataError(
                    f"{where}: expected a time in column {self.time}, a number or a date such as "
                    "2024-05-31 or 2024-05-31T18:00:00, got "
                    f"{repr(cells_of_times[row])[1:]:.60}. Set time_column (--time-column) to the "
                    "column with times"
                )
        return Columns(examples.cells[:names], np.asarray(values, np.float64), times)

    def _fits(self, cells: int) -> bool:
        if self._is_timed:
            return cells >= max(self.time, len(self.expected) + 1)
        return cells == len(self.expected) or (self.valued and cells > len(self.expected))

    @property
    def _is_timed(self) -> bool:
        return self.time > 0 and self.reads_times

    @property
    def _shape(self) -> str:
        shape = " ".join(self.expected) + (" [value]" if self.valued else "")
        times = f" with a time in column {self.time}" if self._is_timed else ""
        option = " (--time-column says which)" if times else ""
        return f"lines of {shape}{times}{option}, separated by tabs, commas, blanks or ::"


def _after(head: bytes, line: bytes) -> bytes:
    """The whole lines of a head after its first line, as far as they show what that line is.

    The same of each head that begins a file, however much of the file it has.
    """
    begin = head.index(line) + len(line)
    following = head[begin : begin + SHOWING_BYTES]
    is_cut = len(head) > begin + SHOWING_BYTES
    return following[: following.rfind(b"\n") + 1] if is_cut else following


def are_titles(
    cells: Sequence[bytes], expected: Sequence[str], following: bytes, format: tuple[bytes, int]
) -> bool:
    """Whether the first line of a file, all of whose columns are names, names the columns.

    So it is, if others follow, where they are called `expected` (``user_id,item_id``), or if two
    columns of whole numbers begin with a name that is none.
    """
    titles = (TITLE % what.encode() for what in expected)
    words = (cell.strip().lower() for cell in cells)
    if following.strip() and all(map(re.fullmatch, titles, words)):
        return True
    rows = [first_row(line, *format)[0] for line in following.splitlines(keepends=True)]
    columns = list(zip(*(row for row in rows if len(row) == len(cells)), strict=True))
    whole = [place for place, column in enumerate(columns) if all(map(_WHOLE.fullmatch, column))]
    return len(whole) >= 2 and not any(_WHOLE.fullmatch(cells[place]) for place in whole)


def times_of(cells: Sequence[bytes]) -> NDArray[np.float64]:
    """Convert times to numbers: as they are, or seconds since 1970 of dates in ISO 8601.

    A date is in UTC if it names no zone.  Each cell by itself, whatever is beside it.  Empty if a
    cell is neither.
    """
    texts = list(cells)
    try:
        if b"_" in b"".join(texts):  # NumPy reads ``1_0`` as 10
            raise ValueError
        times = np.array(texts, np.bytes_).astype(np.float64)
    except ValueError:
        are_dates = np.array([not is_number(text) for text in texts])
        times = np.empty(len(texts))
        times[~are_dates] = [as_float(text) for text in texts if is_number(text)]
        times[are_dates] = _seconds_of([text for text in texts if not is_number(text)])
    return times if np.isfinite(times).all() else np.zeros(0)


def _seconds_of(dates: Sequence[bytes]) -> NDArray[np.float64]:
    """Convert dates to seconds since 1970; NaN for all if one is malformed."""
    none = np.full(len(dates), np.nan)
    matches = [_DATE.fullmatch(date.decode("latin-1")) for date in dates]
    zones = [match["zone"] or "" for match in matches if match]
    if len(zones) < len(dates):
        return none
    # NumPy warns of zones, or refuses them.
    named = [match["date"].removesuffix(match["zone"] or "") for match in matches if match]
    try:
        moments = np.array([date.strip() for date in named], "datetime64[us]")
    except ValueError:  # such as a thirteenth month
        return none
    return moments.astype(np.float64) / 1e6 - [_offset_of(zone) for zone in zones]


def _offset_of(zone: str) -> int:
    """Seconds of a zone before UTC: ``+05:30``, ``-0800``, ``+01``; 0 for ``Z`` and no zone."""
    digits = zone.strip("Z+-").replace(":", "")
    seconds = 3600 * int(digits[:2] or 0) + 60 * int(digits[2:] or 0)
    return -seconds if zone.startswith("-") else seconds


def lines_of_rows(data: bytes, rows: int) -> list[int]:
    """By row, its line in a text, from 0.

    Blank lines and a header are no rows; the rows are the last `rows` lines that are not blank.
    """
    lines = [number for number, line in enumerate(data.split(b"\n")) if line.strip(b" \r")]
    return lines[len(lines) - rows :]


def place_of_row(data: bytes, path: str, start: int, row: int, rows: int) -> str:
    """File and line of a row, for messages; `data`, with `rows` rows, lies at byte `start`."""
    before, line = lines_before(path, start), lines_of_rows(data, rows)[row] + 1
    if before < 0:
        return f"{path}, line {line} of the block at byte {start:,}"
    return f"{path}, line {before + line}"


def refuse_other_text(data: bytes, path: str, start: int) -> None:
    """DataError: a line that is not UTF-8, whose names could be neither printed nor asked for."""
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start)
        line = data.split(b"\n", number + 1)[number]
        before = lines_before(path, start)
        of_block = f" of the block at byte {start:,}" if before < 0 else ""
        raise DataError(
            f"{path}, line {max(0, before) + number + 1}{of_block}: expected names in UTF-8, got "
            f"{line!r:.80}. Convert the file, as by `iconv -f latin1 -t utf-8`"
        ) from None


def _first_empty(names: Sequence[bytes]) -> int:
    """Index of the first name that is empty or blank; -1: there is none."""
    packed = PackedWords.of(names)
    lengths = packed.lengths
    may_be_blank = lengths == 0
    filled = ~may_be_blank
    may_be_blank[filled] = packed.text[packed.starts[:-1][filled].astype(np.int64)] <= ord(" ")
    candidates = np.flatnonzero(may_be_blank).tolist()
    return next((place for place in candidates if not packed[place].strip()), -1)


class NameCounts:
    """Counts of the names of each kind (users, items, ...), and moments of values.

    Workers count their blocks and `dump`; the master merges the parts.
    """

    def __init__(self, kinds: int) -> None:
        self.counts = [NameTable() for _ in range(kinds)]
        self.values = ValueMoments()

    def add(self, kind: int, names: Sequence[bytes]) -> None:
        self.counts[kind].add(names)

    def add_values(self, values: NDArray[np.float64]) -> None:
        self.values += ValueMoments.of(values)

    def merge(self, part: bytes) -> Names:
        """Add another object's `dump`, and return it; DataError: malformed, nothing was added."""
        names = Names(part)
        if len(names.names) != len(self.counts):
            raise DataError(f"{_MALFORMED}: {len(names.names)} kinds, not {len(self.counts)}")
        for table, of_kind, counts in zip(self.counts, names.names, names.counts, strict=True):
            table.add(of_kind, counts)
        self.values += names.values
        return names

    def less(self, counts: Sequence[NDArray[np.int64]]) -> NameCounts:
        """The names without some of their lines, and without names that have no other line.

        `counts`: by kind, int64 (names,), the lines of each name in the order of its table.
        """
        others = NameCounts(len(self.counts))
        others.values = self.values
        for table, whole, fewer in zip(others.counts, self.counts, counts, strict=True):
            remaining = whole.counts() - fewer
            has_lines = np.flatnonzero(remaining)
            table.add(whole.names().take(has_lines), remaining[has_lines])
        return others

    @property
    def size_bytes(self) -> int:
        """About the bytes of `dump`."""
        return sum(table.letters + 9 * len(table) for table in self.counts)

    def dump(self, first: Sequence[Counted] = ()) -> bytes:
        """All names with their counts, the most frequent first, as bytes for `Names`.

        `first`: by kind, names that come before all others, in this order, and the counts that are
        added to theirs: a model to start from has numbered them already.
        """
        pieces = [self.values.dump(), _KINDS.pack(len(self.counts))]
        for kind, table in enumerate(self.counts):
            names, counts = table.names(), table.counts()
            order = names.order(counts)
            names, counts = names.take(order), counts[order]
            if first:
                whole = NameTable()
                whole.add(*first[kind])
                whole.add(names, counts)
                names, counts = whole.names(), whole.counts()
            text = names.with_tails(np.full((len(names), 1), ord("\n"), np.uint8))
            pieces += [_HEAD.pack(len(names), max(0, len(text) - 1)), text[:-1].tobytes()]
            pieces.append(counts.tobytes())
        return b"".join(pieces)


def sizes_in(dumped: bytes) -> list[int]:
    """Number of names of each kind in a dump of `NameCounts`, without reading the names."""
    (kinds,) = _KINDS.unpack_from(dumped, _VALUES.size)
    offset, sizes = _VALUES.size + _KINDS.size, []
    for _ in range(kinds):
        number, length = _HEAD.unpack_from(dumped, offset)
        offset += _HEAD.size + length + 8 * number
        sizes.append(number)
    return sizes


class Names:
    """Names by kind in the order of their numbers, with int64 counts, from `NameCounts.dump`.

    The bytes come from another process: DataError if lengths and counts do not fit together.
    `rest` has what follows the names, of whoever has added it.
    """

    def __init__(self, dumped: bytes) -> None:
        self.names: list[PackedWords] = []
        self.counts: list[NDArray[np.int64]] = []
        try:
            self.values = ValueMoments(*_VALUES.unpack_from(dumped))
            (kinds,) = _KINDS.unpack_from(dumped, _VALUES.size)
            offset = _VALUES.size + _KINDS.size
            for _ in range(min(kinds, len(dumped))):
                number, length = _HEAD.unpack_from(dumped, offset)
                offset += _HEAD.size
                text = np.frombuffer(dumped, np.uint8, length, offset)
                offset += length
                self.names.append(PackedWords.of_lines(text, number))
                self.counts.append(np.frombuffer(dumped[offset : offset + 8 * number], np.int64))
                offset += 8 * number
                if len(self.counts[-1]) != number:
                    raise ValueError
        except (ValueError, struct.error):
            raise DataError(_MALFORMED) from None
        self.rest = dumped[offset:]
        self._tables: list[NameTable] | None = None

    def numbers(self, kind: int, names: Sequence[bytes]) -> NDArray[np.int64]:
        """Number of each name of a kind, int64; -1 for an unknown name."""
        if self._tables is None:
            tables = [NameTable() for _ in self.names]
            for table, of_kind in zip(tables, self.names, strict=True):
                table.reserve(of_kind)
                table.add(of_kind)
                if len(table) != len(of_kind):
                    raise DataError(f"{_MALFORMED}: a name comes twice")
            self._tables = tables
        return self._tables[kind].numbers(names)
