"""JSON lines: an object a line; a key that a line lacks is missing, as null is."""

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

from snailps.data.columns import Kind
from snailps.data.elements import NUMBERS, ListColumn, a_kind, is_missing
from snailps.data.file_kinds import BOM, READ_BYTES, whole_lines
from snailps.data.formats.lines import LineTarget
from snailps.data.formats.table import CODEC, RowBatch, TableFile, Target
from snailps.data.host_cache import Make
from snailps.errors import ConfigError, DataError


class _Rows(NamedTuple):
    """Some rows: the numbers of their lines, these as they are, and the objects."""

    numbers: Sequence[int]
    lines: list[bytes]
    objects: list[dict[str, Any]]


class _Names(Sequence[str]):
    """Names that objects have, which are gathered only if all are asked for."""

    def __init__(self, objects: Sequence[dict[str, Any]]) -> None:
        self._objects = objects

    def __contains__(self, name: object) -> bool:
        return any(name in row for row in self._objects)

    @cached_property
    def _all(self) -> list[str]:
        return list(dict.fromkeys(chain.from_iterable(self._objects)))

    def __getitem__(self, at: Any) -> Any:
        return self._all[at]

    def __len__(self) -> int:
        return len(self._all)


class File(TableFile):
    is_complete = False
    is_stream = True
    row = "line"

    def _begin(self, make: Make | None) -> None:
        self._bytes = 0  # of the pieces so far
        self._later = self._parsed()
        self._ahead: list[_Rows] = []

    @cached_property
    def _head(self) -> list[dict[str, Any]]:
        """The first rows, which `rows` has, too."""
        objects: list[dict[str, Any]] = []
        while len(objects) < self.head_rows and self._bytes < self.head_bytes:
            if (rows := next(self._later, None)) is None:
                break
            self._ahead.append(rows)
            objects += rows.objects
        if not objects:
            raise DataError(f"{self.path} is empty: it has no line")
        return objects[: self.head_rows]

    def _names(self) -> list[str]:
        return list(_Names(self._head))

    @property
    def has_more(self) -> bool:
        return len(self._head) == self.head_rows or self._bytes >= self.head_bytes

    def _kinds(self, but: Sequence[str]) -> dict[str, Kind]:
        return self._kinds_in(self._head, [name for name in self.own_names if name not in but])

    def later_kinds(self, names: Sequence[str], bytes_max: int) -> tuple[dict[str, Kind], int]:
        ahead = [row for rows in self._ahead for row in rows.objects]
        kinds, begin = dict[str, Kind](), self._bytes
        later = chain([ahead[len(self._head) :]], (rows.objects for rows in self._later))
        while len(kinds) < len(names) and self._bytes - begin < bytes_max:
            if (objects := next(later, None)) is None:
                break
            kinds |= self._kinds_in(objects, [name for name in names if name not in kinds])
        return kinds, self._bytes - begin

    def _kinds_in(self, objects: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Kind]:
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
        """Refuses names that are not among the known ones."""
        first = 1
        while rows := self._ahead.pop(0) if self._ahead else next(self._later, None):
            if self.known is not None:
                self._refuse_others(rows, first, self.known)
            first += len(rows.objects)
            yield self._batch(rows, _Names(rows.objects) if names is None else names)

    def _batch(self, rows: _Rows, names: Sequence[str]) -> RowBatch:
        objects = rows.objects
        return RowBatch(
            names,
            len(objects),
            self.path,
            lambda name: ListColumn([row.get(name) for row in objects]),
            rows.numbers,
            rows,
        )

    def _refuse_others(self, rows: _Rows, first: int, known: AbstractSet[str]) -> None:
        for number, row in enumerate(rows.objects, first):
            if not row.keys() <= known:
                other = min(row.keys() - known)
                raise DataError(
                    f"{self.path}: row {number:,} has {other!r}, which the first "
                    f"{len(self._head):,} rows have not: declare it in columns, as "
                    f"{other}:numeric, {other}:categorical or {other}:ignore"
                )

    def _parsed(self) -> Iterator[_Rows]:
        """Some rows at a time, at least one."""
        first = 1
        for data in whole_lines(self._file, self.path, min(READ_BYTES, self.batch_bytes)):
            self._bytes += len(data)
            every = io.BytesIO(data).readlines()
            most = len(every) if self.has_blanks else self.batch_rows
            for at in range(0, len(every), most):
                rows = self._rows_of(every[at : at + most], first + at)
                if rows.lines:
                    yield rows
            first += len(every)

    def _rows_of(self, lines: list[bytes], first: int) -> _Rows:
        path, numbers = self.path, range(first, first + len(lines))
        pairs = list(zip(lines, numbers, strict=True))
        if any(map(bytes.isspace, lines)) or lines[0].strip() == BOM:
            if self.has_blanks:
                objects = [{} if _is_blank(one) else object_of(one, path, at) for one, at in pairs]
                return _Rows(numbers, lines, objects)
            pairs = [(line, number) for line, number in pairs if not _is_blank(line)]
        objects = [object_of(line, path, number) for line, number in pairs]
        return _Rows([number for _, number in pairs], [line for line, _ in pairs], objects)

    def selected(
        self, batch: RowBatch, rows: NDArray[np.int64], added: Mapping[str, NDArray[Any]]
    ) -> bytes:
        """Lines keep their bytes."""
        chosen = rows.tolist()
        lines = [batch.raw.lines[row] for row in chosen]
        if not added:
            return b"".join(lines)
        for name in added:
            if any(name in batch.raw.objects[row] for row in chosen):
                raise ConfigError(f"--add {name}: {self.path} has that name")
        values = zip(*(array.tolist() for array in added.values()), strict=True)
        keys = [json.dumps(name) for name in added]
        return b"".join(map(_with, lines, (
            ", ".join(f"{key}: {_json(one)}" for key, one in zip(keys, some, strict=True))
            for some in values
        )))  # fmt: skip

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        return LineTarget(file, self.path)


def _is_blank(line: bytes) -> bool:
    return line.isspace() or line.strip() == BOM


def object_of(line: bytes, path: str, number: int) -> dict[str, Any]:
    """The object of a line of JSON."""
    try:
        row = json.loads(line.removeprefix(BOM).decode(*CODEC))
    except ValueError as error:
        raise DataError(f"{path}, line {number:,}: no JSON: {error}") from None
    except RecursionError:
        raise DataError(
            f"{path}, line {number:,}: expected an object of numbers and texts, got lists or "
            "objects nested too deeply: leave such names out"
        ) from None
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, line {number:,}: expected an object with names, {{...}}, got {row!r:.60}"
        )
    return row


def _kind_of_values(values: Sequence[Any], where: str) -> Kind | None:
    """Kind of a column with these values, None: all are missing; refuses lists, dicts, and texts
    among numbers."""
    there = [one for one in values if not is_missing(one)]
    if all(isinstance(one, NUMBERS) for one in there):
        return Kind.NUMERIC if there else None
    odd = next((one for one in there if not isinstance(one, (str, *NUMBERS))), None)
    if odd is not None:
        raise DataError(
            f"{where} has {a_kind(odd)}: expected numbers or texts. Declare it as ignore in columns"
        )
    if all(isinstance(one, str) for one in there):
        return Kind.CATEGORICAL
    raise DataError(
        f"{where} has both numbers and texts: declare it in columns, as categorical or ignore"
    )


def _json(value: Any) -> str:
    """A text or a number; numbers that are none are null."""
    if isinstance(value, float):
        return "null" if value != value else repr(float(f"{value:.9g}"))
    return json.dumps(value)


def _with(line: bytes, pairs: str) -> bytes:
    """An object with further names, its own bytes as they were."""
    body = line.rstrip()
    head = body[:-1].rstrip()
    comma = b"" if head.endswith(b"{") else b", "
    return head + comma + pairs.encode() + b"}" + line[len(body) :]
