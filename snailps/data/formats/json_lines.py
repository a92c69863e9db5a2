"""JSON lines: one object per line; a name that a line lacks is missing, as null is.

The names of a file are known only at its end, so the names in the first rows count (`head_rows`),
and a later row with another name is refused where they were declared.  Lines keep their bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.columns import ColumnKind
from snailps.data.elements import NUMBERS, ListColumn, a_kind, is_missing
from snailps.data.formats.lines import LineTarget
from snailps.data.formats.table import CODEC, RowBatch, TableFile, Target
from snailps.errors import ConfigError, DataError
from snailps.files.file_kinds import BOM, READ_BYTES, whole_lines
from snailps.files.host_cache import Make


class _LineObjects(NamedTuple):
    """Consecutive rows: line numbers, lines as they were read, and their objects."""

    numbers: Sequence[int]
    lines: list[bytes]
    objects: list[dict[str, Any]]


class _GatheredNames(Sequence[str]):
    """The names of some objects, gathered only when all are asked for: most callers ask for one."""

    def __init__(self, objects: Sequence[dict[str, Any]]) -> None:
        self._objects = objects

    def __contains__(self, name: object) -> bool:
        return any(name in row for row in self._objects)

    @cached_property
    def _all(self) -> list[str]:
        return list(dict.fromkeys(chain.from_iterable(self._objects)))

    def __getitem__(self, place: Any) -> Any:
        return self._all[place]

    def __len__(self) -> int:
        return len(self._all)


class JsonLinesFile(TableFile):
    is_complete = False
    is_stream = True
    row = "line"

    def _begin(self, make: Make | None) -> None:
        self._bytes = 0  # read so far
        self._later = self._parsed()
        # Rows read for `_head`.  A pipe cannot be read again, so `rows` hands these out first.
        self._ahead: list[_LineObjects] = []

    @cached_property
    def _head(self) -> list[dict[str, Any]]:
        """The first rows, by which names and kinds are known; `rows` yields them again."""
        objects: list[dict[str, Any]] = []
        while len(objects) < self.head_rows and self._bytes < self.head_bytes:
            if (rows := next(self._later, None)) is None:
                break
            self._ahead.append(rows)
            objects += rows.objects
        if not objects:
            raise DataError(f"{self.path} is empty: expected a JSON object per line")
        return objects[: self.head_rows]

    def _names(self) -> list[str]:
        return list(_GatheredNames(self._head))

    @property
    def has_more(self) -> bool:
        return len(self._head) == self.head_rows or self._bytes >= self.head_bytes

    def _kinds(self, but: Sequence[str]) -> dict[str, ColumnKind]:
        return self._kinds_in(self._head, [name for name in self.own_names if name not in but])

    def later_kinds(
        self, names: Sequence[str], bytes_max: int
    ) -> tuple[dict[str, ColumnKind], int]:
        ahead = [row for rows in self._ahead for row in rows.objects]
        kinds, begin = dict[str, ColumnKind](), self._bytes
        later = chain([ahead[len(self._head) :]], (rows.objects for rows in self._later))
        while len(kinds) < len(names) and self._bytes - begin < bytes_max:
            if (objects := next(later, None)) is None:
                break
            kinds |= self._kinds_in(objects, [name for name in names if name not in kinds])
        return kinds, self._bytes - begin

    def _kinds_in(
        self, objects: Sequence[dict[str, Any]], names: Sequence[str]
    ) -> dict[str, ColumnKind]:
        kinds = {
            name: _kind_of_values(
                [row.get(name) for row in objects], f"{self.path}: column {name!r}"
            )
            for name in names
        }
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def rows(
        self, names: Sequence[str] | None = None, part: tuple[int, int] | None = None
    ) -> Iterator[RowBatch]:
        """As in `TableFile.rows`; DataError: a row has a name that is not among `known`."""
        first = 1
        while rows := self._ahead.pop(0) if self._ahead else next(self._later, None):
            if self.known is not None:
                self._refuse_others(rows, first, self.known)
            first += len(rows.objects)
            yield self._batch(rows, _GatheredNames(rows.objects) if names is None else names)

    def _batch(self, rows: _LineObjects, names: Sequence[str]) -> RowBatch:
        objects = rows.objects
        return RowBatch(
            names,
            len(objects),
            self.path,
            lambda name: ListColumn([row.get(name) for row in objects]),
            rows.numbers,
            rows,
        )

    def _refuse_others(self, rows: _LineObjects, first: int, known: AbstractSet[str]) -> None:
        for number, row in enumerate(rows.objects, first):
            if not row.keys() <= known:
                other = min(row.keys() - known)
                raise DataError(
                    f"{self.path}: row {number:,} has {other!r}, which the first "
                    f"{len(self._head):,} rows lack: declare it in columns, as "
                    f"{other}:numeric, {other}:categorical or {other}:ignore"
                )

    def _parsed(self) -> Iterator[_LineObjects]:
        """Batches of rows, none of them empty."""
        first = 1
        for data in whole_lines(self._file, self.path, min(READ_BYTES, self.batch_bytes)):
            self._bytes += len(data)
            lines = io.BytesIO(data).readlines()
            most = len(lines) if self.has_blanks else self.batch_rows
            for begin in range(0, len(lines), most):
                rows = self._rows_of(lines[begin : begin + most], first + begin)
                if rows.lines:
                    yield rows
            first += len(lines)

    def _rows_of(self, lines: list[bytes], first: int) -> _LineObjects:
        path, numbers = self.path, range(first, first + len(lines))
        pairs = list(zip(lines, numbers, strict=True))
        if any(map(bytes.isspace, lines)) or lines[0].strip() == BOM:
            if self.has_blanks:
                objects = [
                    {} if _is_blank(line) else object_of(line, path, number)
                    for line, number in pairs
                ]
                return _LineObjects(numbers, lines, objects)
            pairs = [(line, number) for line, number in pairs if not _is_blank(line)]
        if self.skips_bad:
            return self._good_rows(pairs)
        objects = [object_of(line, path, number) for line, number in pairs]
        return _LineObjects([number for _, number in pairs], [line for line, _ in pairs], objects)

    def _good_rows(self, pairs: Sequence[tuple[bytes, int]]) -> _LineObjects:
        """The rows of the lines that have objects; the others are counted."""
        good: list[tuple[int, bytes, dict[str, Any]]] = []
        for line, number in pairs:
            try:
                good.append((number, line, object_of(line, self.path, number)))
            except DataError as error:
                self.bad_lines += 1
                self.first_bad = self.first_bad or str(error)
        numbers, lines, objects = ([row[part] for row in good] for part in range(3))
        return _LineObjects(numbers, lines, objects)  # type: ignore[arg-type]

    def selected(
        self, batch: RowBatch, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]
    ) -> bytes:
        """The lines of `rows`, byte for byte, with further names in front of the closing brace."""
        chosen = rows.tolist()
        lines = [batch.raw.lines[row] for row in chosen]
        if not added:
            return b"".join(lines)
        for name in added:
            if any(name in batch.raw.objects[row] for row in chosen):
                raise ConfigError(
                    f"--add {name}: {self.path} has that name: choose another one, NAME=..."
                )
        values = zip(*(array.tolist() for array in added.values()), strict=True)
        keys = [json.dumps(name) for name in added]
        return b"".join(map(_with, lines, (
            ", ".join(f"{key}: {_json(value)}" for key, value in zip(keys, of_row, strict=True))
            for of_row in values
        )))  # fmt: skip

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        return LineTarget(file, self.path)


def _is_blank(line: bytes) -> bool:
    return line.isspace() or line.strip() == BOM


def object_of(line: bytes, path: str, number: int) -> dict[str, Any]:
    """The object in a line of JSON; DataError, with file and line: there is none."""
    try:
        row = json.loads(line.removeprefix(BOM).decode(*CODEC))
    except ValueError as error:
        raise DataError(f"{path}, line {number:,}: no JSON: {error}. Correct the line") from None
    except RecursionError:
        raise DataError(
            f"{path}, line {number:,}: expected an object of numbers and texts, got lists or "
            "objects nested too deeply: remove such names"
        ) from None
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, line {number:,}: expected an object with names, {{...}}, got {row!r:.60}"
        )
    return row


def _kind_of_values(values: Sequence[Any], where: str) -> ColumnKind | None:
    """Kind of a column with these values; None: all are missing.

    DataError: a list or dict, or texts beside numbers.
    """
    present = [value for value in values if not is_missing(value)]
    if all(isinstance(value, NUMBERS) for value in present):
        return ColumnKind.NUMERIC if present else None
    odd = next((value for value in present if not isinstance(value, (str, *NUMBERS))), None)
    if odd is not None:
        raise DataError(
            f"{where} has {a_kind(odd)}: expected numbers or texts. Declare it as ignore in columns"
        )
    if all(isinstance(value, str) for value in present):
        return ColumnKind.CATEGORICAL
    raise DataError(
        f"{where} has both numbers and texts: declare it in columns, as categorical or ignore"
    )


def _json(value: Any) -> str:
    """JSON of a text or a score; NaN is null, and nine digits give the same float32 again."""
    if isinstance(value, float):
        return "null" if value != value else repr(float(f"{value:.9g}"))
    return json.dumps(value)


def _with(line: bytes, pairs: str) -> bytes:
    """A line's object with further names at its end; the other bytes stay as they were."""
    body = line.rstrip()
    head = body[:-1].rstrip()
    comma = b"" if head.endswith(b"{") else b", "
    return head + comma + pairs.encode() + b"}" + line[len(body) :]
