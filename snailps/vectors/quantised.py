"""Product-quantised matrices of fastText's .ftz models.

    mapped file -> Cursor -> read_quantised -> QuantisedRows -> rows, float32
    QuantisedRows -> pieces -> the same bytes; `quantising` makes them of rows

A row is cut into parts of a few values; a part is stored as the number (one byte) of one of 256
centroids.  With norms, rows are quantised at length 1, and their lengths by another 256 centroids.
Must not know words or labels.

References
----------
Jegou, Douze, Schmid, "Product Quantization for Nearest Neighbor Search", 2011.
Joulin et al., "FastText.zip: Compressing text classification models", 2016.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from snailps.dataclass import dataclass
from snailps.errors import ModelFileError
from snailps.files.atomic import human_bytes
from snailps.kernels import CENTROIDS

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

_HEAD = struct.Struct("<?qqi")  # norms?, rows, columns, bytes of the codes
_QUANTISER = struct.Struct("<iiii")  # columns, parts, columns of a part, columns of the last part
CODE_BYTES_MAX = 2**31 - 1
"""The format counts the bytes of a matrix's codes by an int32."""


@dataclass(frozen=True, slots=True)
class Quantiser:
    """Centroids: `parts` has a float32[256, columns of the part] for each part of a row."""

    parts: list[Float32]

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the format; float32 little-endian."""
        widths = [part.shape[1] for part in self.parts]
        yield _QUANTISER.pack(sum(widths), len(widths), widths[0], widths[-1])
        for part in self.parts:
            yield part.astype("<f4").tobytes()

    def decode(self, codes: UInt8) -> Float32:
        """Decode uint8[k, parts] codes to float32[k, columns]."""
        return np.concatenate([part[codes[:, i]] for i, part in enumerate(self.parts)], axis=1)


class QuantisedRows:
    """A quantised matrix; ``matrix[numbers]`` and ``matrix[first:last]`` decode rows to float32."""

    ndim = 2

    def __init__(
        self,
        shape: tuple[int, int],
        codes: UInt8,
        quantiser: Quantiser,
        norm_codes: UInt8 | None = None,
        norms: Float32 | None = None,
    ) -> None:
        self.shape = shape
        self._codes, self._quantiser = codes, quantiser
        self._norm_codes, self._norms = norm_codes, norms

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def arrays(self) -> tuple[UInt8, Float32, int, UInt8 | None, Float32 | None]:
        """Arguments of `kernels.labelling`: codes, all centroids in one array, columns of a part,
        and the codes and values of lengths.
        """
        parts = self._quantiser.parts
        centroids = np.concatenate([part.ravel() for part in parts])
        return self._codes, centroids, parts[0].shape[1], self._norm_codes, self._norms

    @property
    def nbytes(self) -> int:
        """Size in a file, in bytes."""
        rows, columns = self.shape
        size = self.head_bytes(columns, norms=self._norms is not None) + self._codes.size
        return size if self._norms is None else size + rows

    @staticmethod
    def head_bytes(columns: int, *, norms: bool) -> int:
        """Bytes in a file besides those of each row."""
        size = 1 + _HEAD.size + _QUANTISER.size + 4 * CENTROIDS * columns
        return size + (_QUANTISER.size + 4 * CENTROIDS) * norms

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the format: a mark, shape, codes, centroids, norms."""
        yield b"\x01" + _HEAD.pack(self._norms is not None, *self.shape, self._codes.size)
        yield np.ascontiguousarray(self._codes).reshape(-1).data
        yield from self._quantiser.pieces()
        if self._norms is not None and self._norm_codes is not None:
            yield np.ascontiguousarray(self._norm_codes).data
            yield from Quantiser([self._norms.reshape(-1, 1)]).pieces()

    def __getitem__(self, which: slice | npt.NDArray[np.integer]) -> Float32:
        rows = self._quantiser.decode(self._codes[which])
        if self._norm_codes is not None and self._norms is not None:
            rows *= self._norms[self._norm_codes[which]][:, None]
        return rows

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Float32:
        return self[:] if dtype is None else self[:].astype(dtype)


class Cursor:
    """Reads values of a mapped file in sequence; checks the file's length before each."""

    def __init__(self, path: str | os.PathLike[str], mapped: mmap.mmap, offset: int) -> None:
        self.path, self.mapped, self.offset = path, mapped, offset
        self.part = "dictionary"

    def damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: damaged {self.part}: {what}; fetch or export it again")

    def need(self, size: int) -> None:
        """Raise ModelFileError unless the file has `size` more bytes."""
        needed, length = self.offset + size, len(self.mapped)
        if needed > length:
            raise ModelFileError(
                f"{self.path}: cut short in its {self.part}: the file has {length} bytes and would "
                f"need at least {needed} ({human_bytes(needed)}); fetch or export it again"
            )

    def skip(self, size: int) -> int:
        """Advance by `size` bytes; return the offset where they begin."""
        self.need(size)
        self.offset += size
        return self.offset - size

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack_from(self.mapped, self.skip(form.size))

    def array(self, dtype: str, count: int) -> npt.NDArray[Any]:
        offset = self.skip(np.dtype(dtype).itemsize * count)
        return np.frombuffer(self.mapped, dtype, count, offset)


def read_quantised(cursor: Cursor, columns: int) -> QuantisedRows:
    """Read a quantised matrix, which must have `columns` columns."""
    with_norms, rows, width, size = cursor.unpack(_HEAD)
    if width != columns or rows < 0 or size < 0:
        raise cursor.damaged(f"{rows} x {width} values, expected {columns} columns")
    codes = cursor.array("u1", size)
    quantiser = _read_quantiser(cursor, columns)
    if size != rows * len(quantiser.parts):
        raise cursor.damaged(f"{size} codes for {rows} rows of {len(quantiser.parts)} parts")
    codes = codes.reshape(rows, -1)
    if not with_norms:
        return QuantisedRows((rows, columns), codes, quantiser)
    norm_codes = cursor.array("u1", rows)
    norms = _read_quantiser(cursor, 1).parts[0].reshape(-1)
    return QuantisedRows((rows, columns), codes, quantiser, norm_codes, norms)


def _read_quantiser(cursor: Cursor, columns: int) -> Quantiser:
    """Read centroids; the last part may have fewer columns than the others."""
    total, parts, width, last = cursor.unpack(_QUANTISER)
    sizes = 1 <= parts <= columns and width >= 1 and 1 <= last <= width
    if total != columns or not sizes or (parts - 1) * width + last != columns:
        raise cursor.damaged(f"{parts} parts of {width} and {last} values for {columns} columns")
    values = cursor.array("<f4", CENTROIDS * columns).astype(np.float32)
    wide = values[: CENTROIDS * width * (parts - 1)].reshape(parts - 1, CENTROIDS, width)
    return Quantiser([*wide, values[wide.size :].reshape(CENTROIDS, last)])
