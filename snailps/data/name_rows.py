"""Rows of names from Python objects: triples, pairs of users and items, ratings.

    list, array, table, sparse matrix [, values] -> NameRows.pieces -> names by column, values
    NameRows -> spool_names -> Spooled: CSV lines, which `name_columns` reads

A name is a text or a whole number.  Imports no library: calls methods of the objects.  Must not
know models.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.elements import (
    PIECE,
    Elements,
    a_kind,
    digits_of,
    elements_of,
    is_missing,
    library_of,
    table_of,
    whole,
)
from snailps.data.matrix_sources import summed
from snailps.data.name_columns import ValueMoments, times_of
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files.scratch import Scratch

_CODEC = ("utf-8", "surrogateescape")
_NO_CHARACTERS = "\t\n\r"
_ODD = re.compile(r'[",]|^ | $', re.MULTILINE)
"""Matches what a cell of CSV may contain only if it is quoted."""
_END = object()


@dataclass(frozen=True, slots=True)
class NamePiece:
    """Consecutive rows: names by column, and float64 values (empty: none).

    `whole`: by column, whether all its names were whole numbers.  `times`: seconds or other
    numbers, float64, empty if none were given.
    """

    names: list[list[str]]
    values: NDArray[np.float64]
    whole: tuple[bool, ...]
    times: NDArray[np.float64]


class NameRows:
    """Rows of names, which can be read as often as the data can.

    Parameters
    ----------
    data : object
        A 2-D array, a list or generator of rows, a table, or a dict of columns.  If `valued`, also
        a sparse matrix, each of whose entries is a row (row, column, value).
    expected : sequence of str
        What the columns are, for messages: ``("user", "item")``.
    values : object, optional
        A value for each row, or the name of a column.
    columns : sequence of str
        Columns of a table; empty: the `usual` ones if the table has all of them, else its first
        ones.
    usual : sequence
        Column names that tables of this kind usually have, names first.
    valued : bool
        A column of values may follow the names.
    finds_values : bool
        If a table has the usual names and exactly one other column, that one has the values.
    times : object, optional
        A time for each row, or the name of a column: numbers, dates, or texts of either.
    """

    def __init__(
        self,
        data: Any,
        expected: Sequence[str],
        values: Any = None,
        *,
        columns: Sequence[str] = (),
        usual: Sequence[Any] = (),
        valued: bool = False,
        finds_values: bool = False,
        times: Any = None,
    ) -> None:
        data = data if library_of(data) == "datasets" else whole(data)
        self._data, self._expected, self._values = data, tuple(expected), values
        self._columns, self._usual, self._valued = tuple(columns), tuple(usual), valued
        self._finds_values, self._times = finds_values, times
        self._sparse = hasattr(data, "tocoo")
        self._known = None if self._sparse else _names_of_columns(data)
        shape = " ".join(self._expected) + (" [value]" if valued else "")
        if self._sparse and not valued:
            raise DataError(f"X: expected rows of {shape}, got a sparse matrix: give its places")
        if self._sparse and times is not None:
            raise DataError(
                "times: expected none with a sparse matrix, whose entries have no order: give rows"
            )
        if isinstance(times, str) and self._known is None:
            raise DataError(f"times: expected a table that has {times!r:.60}, got {a_kind(data)}")
        if columns and self._known is None:
            raise DataError(f"columns: expected a table to choose columns of, got {a_kind(data)}")
        self._shape = shape
        self.name = a_kind(data)

    def pieces(self) -> Iterator[NamePiece]:
        """The rows, `PIECE` at a time.

        DataError: rows of another width, a missing name, a value that is no finite number, or
        another number of values than of rows.
        """
        values, width = None, len(self._expected)
        if self._sparse:
            parts, where = self._of_sparse(), [Elements((), None, self.name, "row")] * (width + 1)
        elif self._known is not None:
            parts, where = self._of_table(self.chosen())
        else:
            where = [elements_of(self._data, what="X")] * (width + 1)
            parts = self._of_rows(where[0])
        if self._values is not None and not isinstance(self._values, str):
            where = [*where[:width], elements_of(self._values, what="y")]
            values = iter(where[width].values)
        if self._times is not None:
            whole_column = isinstance(self._times, str)
            of_times = elements_of(
                self._data if whole_column else self._times,
                self._times if whole_column else "",
                what="times",
            )
            times = iter(of_times.values)
        first = 0
        for columns in parts:
            rows = len(columns[0])
            moments = np.zeros(0)
            if self._times is not None:
                moments = times_in([*islice(times, rows)], rows, first, of_times)
            if values is not None:
                columns[width:] = [list(islice(values, rows))]
            if {*map(len, columns)} != {rows}:
                got = first + len(columns[-1])
                raise DataError(f"y: expected a value for each row of X, got {got:,}")
            yield self._piece(columns, first, where, moments)
            first += rows
        if values is not None and next(values, _END) is not _END:
            raise DataError(f"y: expected a value for each row of X, got more than {first:,}")
        if self._times is not None and next(times, _END) is not _END:
            raise DataError(f"times: expected a time for each row of X, got more than {first:,}")

    def _of_sparse(self) -> Iterator[list[list[Any]]]:
        if self._values is not None:
            raise DataError("y: expected none with a sparse matrix, whose entries are the values")
        # Row by row, and one value for each place: a matrix gives the same rows in any format.
        rows = self._data.tocsr()
        entries = (rows if rows.has_canonical_format else summed(rows)).tocoo()
        for first in range(0, entries.nnz, PIECE):
            part = slice(first, first + PIECE)
            yield [ids[part].tolist() for ids in (entries.row, entries.col, entries.data)]

    def chosen(self) -> list[Any]:
        """The columns of a table to read, the one with values last; empty: the data is no table.

        DataError: the table lacks one, or has too few.
        """
        if self._known is None:
            return []
        table_names, width = self._known, len(self._expected)
        chosen = list(self._columns) or self._usual_of(table_names)
        if isinstance(self._values, str):
            chosen = [*(chosen or [name for name in table_names if name != self._values])[:width]]
            chosen.append(self._values)
        else:
            others = [name for name in table_names if name != self._times]
            chosen = chosen or others[: width + self._valued]
            chosen = chosen if self._values is None else chosen[:width]
        lacking = [name for name in chosen if name not in table_names]
        if lacking or not width <= len(chosen) <= width + self._valued:
            got = f"no column {lacking[0]!r} in" if lacking else f"{len(chosen)} of"
            raise DataError(
                f"X: expected columns {self._shape}; got {got} {list(table_names)!r:.120}"
            )
        return chosen

    def _usual_of(self, table_names: Sequence[Any]) -> list[Any]:
        """The usual columns, if the table has all of those with names; else none.

        If no usual column has values, the only other column does, if `finds_values`.
        """
        usual, width = list(self._usual), len(self._expected)
        if not usual or not set(usual[:width]) <= set(table_names):
            return []
        others = [name for name in table_names if name not in usual]
        if self._finds_values and len(usual) == width and len(others) == 1:
            usual += others
        return [name for name in usual if name in table_names]

    def _of_table(self, chosen: Sequence[Any]) -> tuple[Iterator[list[list[Any]]], list[Elements]]:
        """The chosen columns piece by piece, and each as elements, for messages."""
        columns = [elements_of(self._data, name, what="X") for name in chosen]
        streams = [iter(column.values) for column in columns]
        end: list[list[Any]] = [[] for _ in streams]
        return iter(lambda: [list(islice(stream, PIECE)) for stream in streams], end), columns

    def _of_rows(self, rows: Elements) -> Iterator[list[list[Any]]]:
        stream, first = iter(rows.values), 0
        width = len(self._expected)
        while part := list(islice(stream, PIECE)):
            part = [row.tolist() if hasattr(row, "tolist") else row for row in part]
            sizes = [len(row) if isinstance(row, (list, tuple)) else -1 for row in part]
            right = {sizes[0]} & {width, width + self._valued}
            if set(sizes) != right:
                odd = next(place for place, size in enumerate(sizes) if size not in right)
                raise DataError(
                    f"X: expected rows of {self._shape}, all alike; {rows.at(first + odd)} is "
                    f"{part[odd]!r:.80}"
                )
            yield [list(column) for column in zip(*part, strict=True)]
            first += len(part)

    def _piece(
        self,
        columns: list[list[Any]],
        first: int,
        where: Sequence[Elements],
        times: NDArray[np.float64],
    ) -> NamePiece:
        """A piece from columns, checked; `where`: by column, its elements, for messages."""
        width = len(self._expected)
        checked = [
            texts_of(column, what, first, of_column)
            for column, what, of_column in zip(columns, self._expected, where, strict=False)
        ]
        values = np.zeros(0)
        if len(columns) > width:
            values = numbers_of(columns[width], first, where[width])
        return NamePiece(
            [texts for texts, _ in checked],
            values,
            tuple(is_whole for _, is_whole in checked),
            times,
        )


def _names_of_columns(data: Any) -> list[Any] | None:
    """Column names of a table; None: the data is no table."""
    if isinstance(data, Mapping):
        return list(data)
    table = table_of(data)
    names = getattr(data, "column_names", None) if table is None else table.columns
    return None if names is None else list(names)


def texts_of(cells: list[Any], what: str, first: int, where: Elements) -> tuple[list[str], bool]:
    """Names as texts, and whether all were whole numbers.

    DataError: a name is missing or of another type, or is a float too large to be exact: two ids
    would become one.
    """
    kinds = set(map(type, cells))
    if kinds == {str}:
        return cells, False
    if kinds == {int}:
        return list(map(str, cells)), True
    whole, texts = True, []
    for number, cell in enumerate(cells, first):
        value = cell.item() if hasattr(cell, "item") else cell
        if isinstance(value, float) and value.is_integer():  # of an array with values
            digits = min(where.digits, digits_of(cell))
            if abs(value) >= 1 << digits:
                raise DataError(
                    f"{what}: {where.at(number)} has {value:.0f}, a float of {digits} bits "
                    f"of digits, which cannot hold every whole number beyond 2^{digits}: give "
                    "names as int or str, separate from values"
                )
            value = int(value)
        if isinstance(value, bytes):
            value = value.decode(*_CODEC)
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            problem = "is missing" if is_missing(value) else f"is {a_kind(value)}"
            raise DataError(
                f"{what}: expected a text or a whole number; in {where.at(number)} it {problem} "
                f"({value!r:.40})"
            )
        whole = whole and isinstance(value, int)
        texts.append(str(value))
    return texts, whole


def times_in(cells: list[Any], rows: int, first: int, where: Elements) -> NDArray[np.float64]:
    """Times of some rows as numbers; dates are seconds since 1970, in UTC if they name no zone.

    DataError: too few, or one that is neither a number nor a date.
    """
    if len(cells) < rows:
        raise DataError(f"times: expected a time for each row of X, got {first + len(cells):,}")
    times = np.empty(rows)
    for number, cell in enumerate(cells):
        time = _time_of(cell)
        if not math.isfinite(time):
            raise DataError(
                f"times: expected a number or a date; in {where.at(first + number)} it is "
                f"{cell!r:.60}"
            )
        times[number] = time
    return times


def _time_of(cell: Any) -> float:
    """A time as a number; NaN if it is none."""
    if isinstance(cell, np.datetime64):
        cell = cell.astype("datetime64[us]").item()
    if isinstance(cell, datetime.date) and not isinstance(cell, datetime.datetime):
        cell = datetime.datetime(cell.year, cell.month, cell.day)
    if isinstance(cell, datetime.datetime):
        zoned = cell if cell.tzinfo else cell.replace(tzinfo=datetime.timezone.utc)
        return zoned.timestamp()
    if isinstance(cell, (str, bytes)):
        numbers = times_of([cell.encode() if isinstance(cell, str) else cell])
        return float(numbers[0]) if len(numbers) else math.nan
    if cell is None or isinstance(cell, bool):
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def numbers_of(cells: Sequence[Any], first: int, where: Elements) -> NDArray[np.float64]:
    """Values as numbers; DataError: a value is none, or is not finite as float32."""
    try:
        values = np.array(cells, np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"values: expected numbers, got {list(cells[:3])!r:.80} from {where.at(first)} on"
        ) from None
    if not np.isfinite(values.astype(np.float32)).all():
        row = int(np.argmin(np.isfinite(values.astype(np.float32))))
        raise DataError(
            f"values: expected finite numbers; in {where.at(first + row)} it is {values[row]}"
        )
    return values


def choices_of(piece: NamePiece, *, weighted: bool = False) -> NamePiece:
    """The rows that a ranking learns from: see `Columns.choices`, and `Columns.weighted`."""
    is_choice = (piece.values != 0 if weighted else piece.values > 0).tolist()
    if all(is_choice):
        return piece
    names = [list(compress(column, is_choice)) for column in piece.names]
    times = piece.times[is_choice] if len(piece.times) else piece.times
    return NamePiece(names, piece.values[is_choice], piece.whole, times)


def spool_names(
    rows: NameRows,
    folder: str = "",
    *,
    choices: bool = False,
    on_bytes: Callable[[int], object] | None = None,
) -> tuple[Spooled, tuple[bool, ...], ValueMoments]:
    """Write rows into a scratch file.

    Returns the file; by column, whether all names were whole numbers; and the moments of all
    values.  `choices`: write only the rows that a ranking learns from, without values.  Times are
    the last column.  `on_bytes`
    is called after each piece with the bytes written.  DataError: no rows, or a name that no line
    can hold.
    """
    whole: tuple[bool, ...] = ()
    units, values = 0, ValueMoments()
    with Scratch(folder, 0).new_file(f"writing {rows.name}") as file:
        for every in rows.pieces():
            piece = choices_of(every) if choices else every
            values += ValueMoments.of(every.values)
            if not piece.names[0]:
                continue
            for column in piece.names:
                refuse_odd(column)
            columns: list[Iterable[str]] = list(map(quoted, piece.names))
            if len(piece.values) and not choices:
                columns.append(map(repr, piece.values.tolist()))
            if len(piece.times):
                columns.append(map(repr, piece.times.tolist()))
            lines = map(",".join, zip(*columns, strict=True))
            try:
                data = ("\n".join(lines) + "\n").encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"X: {rows.name} has a name with {error.object[error.start]!r}, half of a pair "
                    "(a lone surrogate): it is no text. Decode the bytes that it comes from"
                ) from None
            file.write(data)
            whole = tuple(map(all, zip(whole, piece.whole, strict=True))) if whole else piece.whole
            units += len(piece.names[0])
            if on_bytes is not None:
                on_bytes(file.bytes)
        if units == 0:
            of_value = " of a value above 0" if values.number else ""
            raise DataError(f"X: {rows.name} has no rows{of_value}")
        return Spooled(file, units, rows.name), whole, values


def quoted(names: list[str]) -> list[str]:
    """Names as cells of CSV."""
    if not _ODD.search("\n".join(names)):
        return names
    return ['"' + name.replace('"', '""') + '"' if _ODD.search(name) else name for name in names]


def refuse_odd(names: list[str]) -> None:
    """DataError: a name that is empty, or has a tab or newline."""
    joined = "".join(names)
    if all(names) and not any(char in joined for char in _NO_CHARACTERS) and joined.strip():
        return
    for name in names:
        if not name.strip() or any(char in name for char in _NO_CHARACTERS):
            raise DataError(
                f"a name is {name!r:.60}: expected text without tabs and newlines, not empty"
            )
