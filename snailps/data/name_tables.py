"""Lines of names from tables in files: triples, pairs of users and items, ratings.

    TableFile, Reading -> lines_of -> CSV lines, which `name_columns` reads

Columns are chosen by their names (``user_id``), or else in their order, as in a table in memory.
Must not know how a format is parsed (formats/), or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from snailps.data.elements import Elements, shown_names
from snailps.data.formats.table import open_table, table_errors
from snailps.data.name_columns import TITLE
from snailps.data.name_rows import numbers_of, quoted, refuse_odd, texts_of, times_in
from snailps.errors import DataError
from snailps.files.host_cache import Make
from snailps.files.reading import Reading

_INDEX = "__index_level_"
"""Beginning of the column name that pandas gives an index in Parquet."""


def lines_of(reading: Reading, path: str, make: Make | None = None) -> Iterator[bytes]:
    """Whole lines, a batch of rows at a time; `make` as in `open_table`.

    DataError, with column and row: a name is missing or is no text or whole number; a value is no
    number.
    """
    names, width = reading.names, len(reading.names)
    with open_table(path, make) as table, table_errors(path):
        columns = chosen(path, names, table.names)
        is_valued = reading.is_valued and reading.time_column != width + 1
        timed = reading.time_column - 1 if reading.is_valued else -1
        needed = columns[: max(width + reading.is_valued, timed + 1)]
        named = (f"column {name!r} of {path}" for name in needed)
        where = [Elements((), None, name, "row", first=1) for name in named]
        first = 0
        for batch in table.batches(needed):
            cells = [list(batch.column(name).values(0, batch.rows)) for name in needed]
            texts: list[Iterable[str]] = []
            for place, column in enumerate(cells):
                if place < width:
                    of_names, _ = texts_of(column, names[place], first, where[place])
                    refuse_odd(of_names)
                    texts.append(quoted(of_names))
                elif place == width and is_valued:
                    texts.append(_values(column, first, where[place], timed))
                elif place == timed:
                    times = times_in(column, len(column), first, where[place])
                    texts.append(map(repr, times.tolist()))
                else:
                    texts.append(["0"] * len(column))
            if batch.rows:
                yield ("\n".join(map(",".join, zip(*texts, strict=True))) + "\n").encode()
            first += batch.rows


def chosen(path: str, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns of a table in the order of a line: first `names`, then the others."""
    columns = [name for name in columns if not name.startswith(_INDEX)]
    if len(columns) < len(names):
        raise DataError(
            f"{path}: expected a table with the columns {' '.join(names)}, got "
            f"{shown_names(columns)}"
        )
    found: list[str] = []
    for name in names:
        title = re.compile((TITLE % name.encode()).decode(), re.IGNORECASE)
        found += [column for column in columns if title.fullmatch(column.strip())][:1]
    if len({*found}) < len(names):
        return columns
    return [*found, *(column for column in columns if column not in found)]


def _values(column: Sequence[object], first: int, where: Elements, timed: int) -> Iterable[str]:
    """Values as cells of lines."""
    try:
        return map(repr, numbers_of(column, first, where).tolist())
    except DataError as error:
        option = "" if timed == 2 else ", or set time_column: 3 if it has times"
        raise DataError(
            f"{error}. The column after the names has values: put another one there{option}"
        ) from None
