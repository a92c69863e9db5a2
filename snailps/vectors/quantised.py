"""What is special in fastText's quantised models (.ftz): matrices of codes, n-grams left out.

    bytes of a mapped file -> read_quantised -> QuantisedRows -> rows, float32
    pairs of bucket and row -> KeptGrams -> rows of buckets

A row is cut into parts of a few values; each part is the number (a byte) of one of 256 centroids.
With norms, rows are quantised at length 1, and their lengths by 256 centroids of their own.  Must
not know words or labels.

References
----------
Jegou, Douze, Schmid, "Product Quantization for Nearest Neighbor Search", 2011.
Joulin et al., "FastText.zip: Compressing text classification models", 2016.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from snailps.errors import ModelFileError

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

_HEAD = struct.Struct("<?qqi")  # norms?, rows, columns, bytes of the codes
_QUANTISER = struct.Struct("<iiii")  # columns, parts, columns of a part, columns of the last part
_CENTROIDS = 256


class KeptGrams:
    """N-gram rows of a pruned model; `pairs`: int32[k, 2], bucket and row."""

    def __init__(self, pairs: npt.NDArray[np.int32]) -> None:
        order = np.argsort(pairs[:, 0], kind="stable")
        self._buckets = pairs[order, 0]
        self._rows = pairs[order, 1].astype(np.int32)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, buckets: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """The row of each bucket, int32 of the same shape; -1 for one that was left out."""
        if not len(self._rows):
            return np.full(buckets.shape, -1, np.int32)
        at = np.searchsorted(self._buckets, buckets).clip(max=len(self._rows) - 1)
        rows: npt.NDArray[np.int32] = self._rows[at]
        rows[self._buckets[at] != buckets] = -1
        return rows


@dataclass(frozen=True, slots=True)
class _Quantiser:
    """Centroids of each part of a row: `parts`, float32[256, columns of the part] each."""

    parts: list[Float32]

    def decode(self, codes: UInt8) -> Float32:
        """Rows of uint8[k, parts] codes, float32[k, columns]."""
        return np.concatenate([part[codes[:, i]] for i, part in enumerate(self.parts)], axis=1)


class QuantisedRows:
    """A quantised matrix; ``matrix[numbers]`` and ``matrix[first:last]`` decode rows to float32."""

    ndim = 2

    def __init__(
        self,
        shape: tuple[int, int],
        codes: UInt8,
        quantiser: _Quantiser,
        norm_codes: UInt8 | None = None,
        norms: Float32 | None = None,
    ) -> None:
        self.shape = shape
        self._codes, self._quantiser = codes, quantiser
        self._norm_codes, self._norms = norm_codes, norms

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice | npt.NDArray[np.integer]) -> Float32:
        rows = self._quantiser.decode(self._codes[which])
        if self._norm_codes is not None and self._norms is not None:
            rows *= self._norms[self._norm_codes[which]][:, None]
        return rows

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Float32:
        return self[:] if dtype is None else self[:].astype(dtype)


def read_quantised(
    path: str | os.PathLike[str], mapped: mmap.mmap, offset: int, name: str, columns: int
) -> tuple[QuantisedRows, int]:
    """A quantised matrix of a mapped file, and the offset behind it.

    Sizes are checked against the file's before memory is allocated.
    """
    reader = _Reader(path, mapped, offset, name)
    with_norms, rows, found, size = reader.unpack(_HEAD)
    if found != columns or rows < 0 or size < 0:
        raise reader.damaged(f"{rows} x {found} values, expected {columns} columns")
    at_codes = reader.offset
    reader.skip(size)
    quantiser = reader.quantiser(columns)
    if size != rows * len(quantiser.parts):
        raise reader.damaged(f"{size} codes for {rows} rows of {len(quantiser.parts)} parts")
    codes = np.frombuffer(mapped, np.uint8, size, at_codes).reshape(rows, -1)
    if not with_norms:
        return QuantisedRows((rows, columns), codes, quantiser), reader.offset
    norm_codes = reader.array(np.dtype(np.uint8), rows).astype(np.uint8, copy=False)
    norms = reader.quantiser(1).parts[0].reshape(-1)
    matrix = QuantisedRows((rows, columns), codes, quantiser, norm_codes, norms)
    return matrix, reader.offset


class _Reader:
    """Takes values from a mapped file in sequence, each after a check of its length."""

    def __init__(
        self, path: str | os.PathLike[str], mapped: mmap.mmap, offset: int, name: str
    ) -> None:
        self._path, self._mapped, self._name = path, mapped, name
        self.offset = offset

    def damaged(self, what: str) -> ModelFileError:
        return ModelFileError(
            f"{self._path}: damaged {self._name} matrix: {what}; fetch or quantise it again"
        )

    def skip(self, size: int) -> None:
        if self.offset + size > len(self._mapped):
            raise ModelFileError(
                f"{self._path}: cut short in its {self._name} matrix: the file has "
                f"{len(self._mapped)} bytes and would need at least {self.offset + size}; "
                "fetch or quantise it again"
            )
        self.offset += size

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        at = self.offset
        self.skip(form.size)
        return form.unpack_from(self._mapped, at)

    def array(self, dtype: np.dtype[np.generic], count: int) -> npt.NDArray[np.generic]:
        at = self.offset
        self.skip(dtype.itemsize * count)
        return np.frombuffer(self._mapped, dtype, count, at)

    def quantiser(self, columns: int) -> _Quantiser:
        """Centroids: those of all parts but the last one, then those of the last one."""
        found, parts, width, last = self.unpack(_QUANTISER)
        sizes = 1 <= parts <= columns and width >= 1 and 1 <= last <= width
        if found != columns or not sizes or (parts - 1) * width + last != columns:
            raise self.damaged(f"{parts} parts of {width} and {last} values for {columns} columns")
        values = self.array(np.dtype("<f4"), _CENTROIDS * columns).astype(np.float32)
        wide = values[: _CENTROIDS * width * (parts - 1)].reshape(parts - 1, _CENTROIDS, width)
        return _Quantiser([*wide, values[wide.size :].reshape(_CENTROIDS, last)])
