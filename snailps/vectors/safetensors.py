"""Writes a ``.safetensors`` file array by array, each in pieces.

    names, types, shapes -> header -> pieces in that order -> file        safetensors reads it

The header states where each array lies, so all shapes are known before the first value is written.
Needs no package.  Must not know tables.

References
----------
https://github.com/huggingface/safetensors, "Format": 8 bytes of length, a JSON header, the bytes of
the arrays without holes between them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.atomic import atomic_file
from snailps.errors import MisuseError

_TYPES = {"U64": np.dtype("<u8"), "F32": np.dtype("<f4")}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_ALIGN = 64
"""The values begin at a multiple of it in the file: readers map them into memory."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the file, uint64 or float32."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsWriter:
    """Writes the arrays of an open file in the order of its header."""

    def __init__(self, file: IO[bytes], arrays: Sequence[Array]) -> None:
        self._file, self._left = file, list(arrays)

    def add_pieces(self, name: str, pieces: Iterable[NDArray[Any]]) -> None:
        """Write the next array from pieces of rows."""
        array = self._left.pop(0) if self._left else None
        if array is None or array.name != name:
            raise MisuseError(f"array {name!r}: expected {array.name if array else 'none'!r} next")
        left = array.shape[0]
        for piece in pieces:
            left -= len(piece)
            if piece.shape[1:] != array.shape[1:] or piece.dtype != array.dtype or left < 0:
                raise MisuseError(
                    f"{name}: a piece {piece.dtype}{piece.shape} of {array.dtype}{array.shape}"
                )
            self._file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        if left:
            raise MisuseError(f"{name}: {left:,} rows of {array.shape[0]:,} are missing")

    def check_complete(self) -> None:
        """Refuse a file that lacks arrays of its header."""
        if self._left:
            raise MisuseError(f"arrays were not written: {[array.name for array in self._left]}")


def header_of(arrays: Sequence[Array], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON of the header, padded with spaces as the format allows."""
    at = 0
    told: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for array in arrays:
        told[array.name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def safetensors_file(
    path: str, arrays: Sequence[Array], metadata: Mapping[str, str]
) -> Iterator[SafetensorsWriter]:
    """Open `path` for writing `arrays` in their order, as `atomic_file`; checks the disk's room.

    Arrays of 8-byte values must come first: each array is then aligned to its type.
    """
    head = header_of(arrays, metadata)
    needed = len(head) + sum(array.nbytes for array in arrays)
    with atomic_file(path, needed) as file:
        file.write(head)
        writer = SafetensorsWriter(file, arrays)
        yield writer
        writer.check_complete()
