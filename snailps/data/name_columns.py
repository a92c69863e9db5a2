"""Lines whose columns are names: triples of a graph, pairs or ratings of users and items.

    bytes of a block -> NameColumns.read -> a list of names a column, values   ->  NameCounts.add
    NameCounts.dump -> bytes of a survey's part -> merge -> summary -> Names: name <-> number

Columns are separated by tabs, or by commas, or by spaces, whichever the block's first line has.
Names are numbered by how often they occur, ties by their bytes, so that numbers depend on the input
alone.  Owns the text and the numbering; knows nothing of rows.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError

_HEAD = struct.Struct("<QQ")
_LINE_SHOWN = 80
_VALUE_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Columns:
    """What a block has.

    Attributes
    ----------
    names : list of list of bytes
        Of each column, one a line.
    values : numpy.ndarray
        float32, one a line; empty where lines have none.
    """

    names: list[list[bytes]]
    values: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.names[0])


@dataclass(frozen=True, slots=True)
class NameColumns:
    """Reads lines of names.

    Attributes
    ----------
    expected : tuple of str
        What the columns are, for messages: ``("head", "relation", "tail")``.
    valued : bool
        Behind the names may be a number, and columns behind that are ignored; a first line of a
        file whose value is no number is a head.
    """

    expected: tuple[str, ...]
    valued: bool = False

    def read(self, data: bytes, path: str, start: int) -> Columns:
        """The columns of some lines; empty lines are ignored.

        Raises
        ------
        DataError
            A line has other columns; names file and line.
        """
        whole = data.replace(b"\r\n", b"\n")
        data = whole.strip(b"\n")
        if not data.strip():
            return Columns([[] for _ in self.expected], np.zeros(0, np.float32))
        line = data.partition(b"\n")[0]
        separator = b"\t" if b"\t" in line else b"," if b"," in line else None
        width = len(line.split(separator))
        if width != len(self.expected) and not (self.valued and width > len(self.expected)):
            raise self._refuse(line, separator, whole, path, start)
        parts = _split(data, separator, width)
        if parts is None:
            parts = self._split_slowly(whole, separator, width, path, start)
        names = [parts[at::width] for at in range(len(self.expected))]
        if width == len(self.expected):
            return Columns(names, np.zeros(0, np.float32))
        texts = parts[len(self.expected) :: width]
        headed = start == 0 and not _is_number(texts[0])
        if headed:
            names, texts = [some[1:] for some in names], texts[1:]
        try:
            with np.errstate(over="ignore"):
                values = np.array(texts or [], "S").astype(np.float32)
            if not np.isfinite(values).all():
                raise ValueError
        except ValueError:
            wrong, at = next((text for text in texts if not _is_number(text)), b""), len(names)
            for line in data.split(b"\n")[headed:]:
                if line.strip() and line.split(separator)[at].strip() == wrong.strip():
                    break
            raise DataError(
                f"{_place(line, whole, path, start)}: expected {self._shape()}, with numbers as "
                f"values; got {_shown(wrong)!r}"
            ) from None
        return Columns(names, values)

    def _split_slowly(
        self, data: bytes, separator: bytes | None, width: int, path: str, start: int
    ) -> list[bytes]:
        parts: list[bytes] = []
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            cells = [cell.strip() for cell in line.split(separator)]
            if len(cells) != width:
                raise self._refuse(line, separator, data, path, start)
            parts += cells
        return parts

    def _refuse(
        self, line: bytes, separator: bytes | None, data: bytes, path: str, start: int
    ) -> DataError:
        return DataError(
            f"{_place(line, data, path, start)}: expected lines of {self._shape()}, separated by "
            f"tabs, commas or spaces, all alike; got {len(line.split(separator))} columns"
        )

    def _shape(self) -> str:
        return " ".join(self.expected) + (" [value]" if self.valued else "")


def _split(data: bytes, separator: bytes | None, width: int) -> list[bytes] | None:
    """All cells in one list, where every line has `width` of them; else None."""
    if separator is None:
        return None
    text = np.frombuffer(data, np.uint8)
    ends = text[(text == separator[0]) | (text == 10)]
    if (len(ends) + 1) % width:
        return None
    pattern = np.full(width, separator[0], np.uint8)
    pattern[-1] = 10
    if not (np.append(ends, np.uint8(10)).reshape(-1, width) == pattern).all():
        return None
    return data.replace(b"\n", separator).split(separator)


def _place(line: bytes, data: bytes, path: str, start: int) -> str:
    """Which of the lines that begin at byte `start` of a file it is, the first such one."""
    number = data.split(b"\n").index(line) + 1
    return f"{path}, line {number}{f' from byte {start:,} on' if start else ''}"


def _is_number(text: bytes) -> bool:
    try:
        return abs(float(text)) <= _VALUE_MAX
    except ValueError:
        return False


def _shown(text: bytes) -> str:
    return text[:_LINE_SHOWN].decode("utf-8", "replace")


class NameCounts:
    """How often names occur, by kind, and sums of values.

    Parameters
    ----------
    kinds : int
    """

    def __init__(self, kinds: int) -> None:
        self.counts: list[Counter[bytes]] = [Counter() for _ in range(kinds)]
        self.sums = np.zeros(2)
        """Number and sum of values."""

    def add(self, kind: int, names: Sequence[bytes]) -> None:
        """Counts names."""
        self.counts[kind].update(names)

    def add_values(self, values: NDArray[np.float32]) -> None:
        """Counts and sums values."""
        self.sums += (len(values), values.sum(dtype=np.float64))

    def merge(self, part: bytes) -> None:
        """Adds what `dump` returned."""
        names = Names(part)
        for kind, counter in enumerate(self.counts):
            for name, count in zip(names.names[kind], names.counts[kind].tolist(), strict=True):
                counter[name] += count
        self.sums += names.sums

    @property
    def size_bytes(self) -> int:
        """About how many bytes `dump` would return."""
        return sum(32 * len(counter) for counter in self.counts)

    def dump(self) -> bytes:
        """All counts, the most frequent names first."""
        pieces = [self.sums.tobytes()]
        for counter in self.counts:
            known = sorted(counter.items(), key=lambda entry: (-entry[1], entry[0]))
            text = b"\n".join(name for name, _ in known)
            pieces += [_HEAD.pack(len(known), len(text)), text]
            pieces.append(np.array([count for _, count in known], np.int64).tobytes())
        return b"".join(pieces)


class Names:
    """Numbered names by kind, of what `NameCounts.dump` returned.

    Attributes
    ----------
    names : list of list of bytes
        By kind and number.
    counts : list of numpy.ndarray
        int64, how often each occurs.
    sums : numpy.ndarray
        float64 (2,): number and sum of values.

    Raises
    ------
    DataError
        The bytes are something else.
    """

    def __init__(self, dumped: bytes) -> None:
        self.names: list[list[bytes]] = []
        self.counts: list[NDArray[np.int64]] = []
        try:
            self.sums = np.frombuffer(dumped, np.float64, 2)
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
            raise DataError("a survey's part is no list of names and counts") from None
        self._places: list[dict[bytes, int]] | None = None

    def numbers(self, kind: int, names: Sequence[bytes]) -> NDArray[np.int64]:
        """Number of each name, int64; -1 for a name that is not known."""
        if self._places is None:
            self._places = [
                {name: number for number, name in enumerate(some)} for some in self.names
            ]
        find = self._places[kind].get
        return np.fromiter((find(name, -1) for name in names), np.int64, len(names))
