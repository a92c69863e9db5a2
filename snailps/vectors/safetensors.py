"""Writes ``.safetensors`` files array by array, each in pieces.

    names, types, shapes -> header -> pieces in that order -> file        safetensors reads it

The header has the offset of each array, so all shapes must be known before the first value is
written.  Needs no package.  Must not know tables.

References
----------
https://github.com/huggingface/safetensors, "Format": 8 bytes of length, a JSON header, the bytes of
the arrays without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.files.atomic import atomic_file
from snailps.files.model_file import bytes_of

_TYPES = {"U64": np.dtype("<u8"), "I64": np.dtype("<i8"), "F32": np.dtype("<f4")}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_ALIGN = 64
"""The first value's offset is a multiple of this, because readers map the file."""


class Array(NamedTuple):
    """An array to write, uint64, int64 or float32, which comes in pieces of rows."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def header_of(arrays: Sequence[Array], metadata: Mapping[str, str]) -> bytes:
    """Make the header: its length and JSON, padded with spaces as the format allows."""
    offset = 0
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for array in arrays:
        header[array.name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def write_safetensors(path: str, arrays: Sequence[Array], metadata: Mapping[str, str]) -> None:
    """Write arrays in order, whole or not at all; checks free disk space first.

    Arrays of 8-byte values must come first, so that each array is aligned to its type.
    """
    head = header_of(arrays, metadata)
    with atomic_file(path, len(head) + sum(array.nbytes for array in arrays)) as file:
        file.write(head)
        for array in arrays:
            for data in bytes_of(*array):
                file.write(data)
