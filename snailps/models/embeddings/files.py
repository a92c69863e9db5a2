"""Files of embeddings of names: hold-out lines, and the ``.npz`` of a model.

    paths -> blocks -> NameColumns -> Names.numbers -> LineIds: numbered lines
    settings, names, rows -> write -> .npz -> read -> settings, arrays

An ``.npz`` has ``about`` (the settings).  For each kind of names it has ``KIND``, the bytes of the
names, one a line (uint8; UTF-8 if the input was), and ``KIND.rows`` (float32, a row a name);
``KIND.state``, of the same size, has the state of the optimizer, where `keep_state` says so.
``whole`` (uint8) has a 1 for each kind whose names are whole numbers, else a 0.  Files that
estimators save also have ``columns``, the names of their table's columns.  ``known.ptr``,
``known.items`` and ``known.weights`` (`least_squares.KnownLines`) are the lines of a training of
`als`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.export_progress import TESTING, ExportProgress
from snailps.config import JobSettings, RawConfig
from snailps.data.name_columns import (
    Columns,
    NameColumns,
    Names,
    place_of_row,
    refuse_other_text,
)
from snailps.data.packed_words import PackedWords
from snailps.dataclass import dataclass
from snailps.errors import DataError
from snailps.files.blocks import (
    cut,
    expand,
    files_of,
    head_of,
    read_block,
    read_head,
    test_files,
)
from snailps.files.driver_files import is_driver_file
from snailps.files.file_kinds import HEAD_BYTES, UNIT_BYTES_MAX, refuse_foreign
from snailps.files.model_file import HEADER, Pieces, model_settings, write_model
from snailps.files.reading import Reading, is_table
from snailps.files.scratch import Scratch
from snailps.pieces import Piece
from snailps.vectors.model_reading import read_model
from snailps.vectors.words import to_text

BLOCK_BYTES = 8 << 20
HEADS_MAX = 100


@dataclass(frozen=True, slots=True)
class LineIds:
    """Numbered lines: ids (columns, n), values (n,) or empty; `unknown` counts unknown ones."""

    ids: NDArray[np.int32]
    values: NDArray[np.float64]
    unknown: int

    def __len__(self) -> int:
        return len(self.ids[0])


def check_heads(columns: NameColumns, setting: str, paths: Sequence[str]) -> None:
    """Raise a `DataError` for missing files, or first lines with other columns."""
    try:
        files = files_of if setting == "input" else test_files
        for path in files(paths)[:HEADS_MAX] if paths else ():
            head = head_lines(columns, path)
            if not (is_driver_file(path) or is_table(path)):
                refuse_foreign(head[:HEAD_BYTES], path, text=True)
            if setting == "input":
                refuse_other_text(head, path, 0)
            columns.read(head, path, 0, head)
    except DataError as error:
        raise DataError(f"{setting}: {str(error).removeprefix('input ')}") from None


def choices_say(columns: NameColumns, settings: JobSettings) -> str:
    """Why the lines of the input are choices, and no ratings: they have no values, or all the same
    one above 0; empty: they are ratings, or cannot be read, which `check_heads` reports.

    Reads the first lines, and all of them only while their values are equal.
    """
    value, count = None, 0
    try:
        for head in _heads_of(columns, settings.input):
            if not len(head.values):
                return "lines have no values"
            value = head.values[0] if value is None else value
            if value <= 0 or (head.values != value).any():
                return ""
        more = settings.scratch_dir, settings.scratch_bytes
        for lines, _ in columns_of(columns, settings.input, *more):
            count += len(lines)
            if (lines.values != value).any():
                return ""
    except DataError:
        return ""
    # A single rating is equal to no other.
    return f"all values are {value:g}, which says what was chosen" if count > 1 else ""


def _heads_of(columns: NameColumns, paths: Sequence[str]) -> Iterator[Columns]:
    """The first lines of the first files that have any."""
    for path in files_of(paths)[:HEADS_MAX] if paths else ():
        head = head_lines(columns, path)
        if len(lines := columns.read(head, path, 0, head)):
            yield lines


def reading_of(columns: NameColumns) -> Reading:
    """How tables with these columns are read."""
    timed = columns.time if columns.reads_times or columns.time == len(columns.expected) + 1 else 0
    return Reading("names", names=columns.expected, is_valued=columns.valued, time_column=timed)


def head_lines(columns: NameColumns, path: str) -> bytes:
    """`head_of` a file, or the first lines that a table is read as."""
    if not is_table(path):
        return head_of(path, UNIT_BYTES_MAX)
    from snailps.data.table_files import text_of

    return next(text_of(reading_of(columns), path), b"")


def read_lines(
    columns: NameColumns,
    kinds: Sequence[int],
    names: Names,
    paths: Sequence[str],
    settings: JobSettings,
) -> LineIds:
    """Read and number the lines of some files without unknown names; `kinds`: of each column."""
    numbered = LineNumbering(kinds, names)
    for lines, _ in columns_of(columns, paths, settings.scratch_dir, settings.scratch_bytes):
        numbered.add(lines)
    return numbered.lines()


class LineNumbering:
    """Numbers lines, block by block; `kinds` has the kind of each column.

    With `keep_unknown`, lines with unknown names are kept, with -1 for the name; else dropped.
    """

    def __init__(self, kinds: Sequence[int], names: Names, *, keep_unknown: bool = False) -> None:
        self._kinds, self._names, self._keep_unknown = kinds, names, keep_unknown
        self._ids, self._values = [np.zeros((len(kinds), 0), np.int32)], [np.zeros(0)]
        self._unknown = 0

    def add(self, lines: Columns) -> None:
        columns = zip(self._kinds, lines.names, strict=True)
        ids = np.array([self._names.numbers(kind, names) for kind, names in columns], np.int32)
        are_known = (ids >= 0).all(0)
        self._unknown += int((~are_known).sum())
        wanted = slice(None) if self._keep_unknown else are_known
        self._ids.append(ids[:, wanted])
        if len(lines.values):
            self._values.append(lines.values[wanted])

    def lines(self) -> LineIds:
        """All lines so far."""
        return LineIds(
            np.concatenate(self._ids, axis=1), np.concatenate(self._values), self._unknown
        )


def columns_of(
    columns: NameColumns,
    paths: Sequence[str],
    scratch_dir: str = "",
    scratch_bytes: int = 0,
    progress: ExportProgress | None = None,
) -> Iterator[tuple[Columns, Callable[[int], str]]]:
    """Yield the lines of some files, a block at a time, with file and line of each for messages.

    `progress` gets a stage of a test with the bytes of all files.
    """
    if not paths:
        return
    tables = reading_of(columns)
    with Scratch(scratch_dir, scratch_bytes, tables=tables) as scratch:
        sources = expand(paths, scratch)
        heads = {source.path: read_head(source.path, scratch) for source in sources}
        blocks: Iterable[Piece] = cut(sources, BLOCK_BYTES)
        if progress is not None:
            total = sum(source.bytes for source in sources)
            what = f"{TESTING}: reading {'the files' if sources[1:] else sources[0].path}"
            blocks = progress.count(what, total, "bytes", blocks, lambda b: b.stop - b.start)
        for block in blocks:
            data = read_block(block.path, block.start, block.stop, unit="line", scratch=scratch)
            lines = columns.read(data, block.path, block.start, heads[block.path])
            if len(lines):
                where = partial(place_of_row, data, block.path, block.start, rows=len(lines))
                yield lines, where


def rows_of(kind: str) -> str:
    """Name of the array of a kind's rows."""
    return f"{kind}.rows"


def state_of(kind: str) -> str:
    """Name of the array of the state of a kind's rows."""
    return f"{kind}.state"


def packed_names(names: Sequence[bytes]) -> NDArray[np.uint8]:
    """Names as an array of text, one a line."""
    words = PackedWords.of(names)
    ends = np.full((len(words), 1), ord("\n"), np.uint8)
    return words.with_tails(ends)[:-1]


def names_of(packed: NDArray[np.uint8], rows: NDArray[np.float32]) -> PackedWords:
    """The names of `packed_names`, one a row.

    An empty array means no name if there are no rows, else a single empty name.  ValueError:
    there are more names or fewer than rows.
    """
    return PackedWords.of_lines(packed, len(rows))


def unpacked_names(packed: NDArray[np.uint8], rows: NDArray[np.float32]) -> list[str]:
    """`names_of` as text; bytes that are not UTF-8 become lone surrogates."""
    text = to_text(packed.tobytes())
    return text.split("\n") if text or len(rows) else []


def write(path: str, settings: JobSettings, arrays: Mapping[str, NDArray[Any] | Pieces]) -> str:
    """Write a model; no partial file is left after a `ModelFileError`."""
    return write_model(path, arrays, model_settings(settings))


def read(
    path: str | Path, what: str, cls: type[JobSettings], kinds: Sequence[str]
) -> tuple[JobSettings, dict[str, NDArray[Any]]]:
    """Settings and arrays of a model, or a `ModelFileError`."""
    wanted = (HEADER, *kinds, *map(rows_of, kinds))
    with read_model(path, what, wanted) as (kept, arrays):
        for kind in kinds:
            rows, names = arrays[rows_of(kind)], arrays[kind]
            state = arrays.get(state_of(kind), rows)
            if rows.dtype != np.float32 or rows.ndim != 2 or names.dtype != np.uint8:
                raise ValueError(f"{kind} {names.dtype}, rows {rows.dtype}{rows.shape}")
            if (state.dtype, state.shape) != (rows.dtype, rows.shape):
                raise ValueError(f"{kind} rows {rows.shape}, state {state.dtype}{state.shape}")
            names_of(names, rows)
        return RawConfig.from_mapping(kept, str(path)).build(cls), arrays
