"""Idx files, the format of MNIST and similar data sets.

    path -> Header: type, shape        (a few bytes, also of a .gz)
    path -> Scratch -> read_idx -> array mapped from the file
    images and labels -> Labelled -> examples by number: float32 (n, width), classes (n,)
    number of examples, seed, epoch -> order -> int64, each number once

Two zero bytes, a code of the type, the number of axes, the size of each as 4 bytes, big endian,
then the values in C order, big endian.  `order`, in which examples are trained on, is the same in
every process, whatever was computed before.  What a class means is not known here.

References
----------
Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten digits.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data.scratch import Scratch, is_packed
from snailps.errors import DataError

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
AXES_MAX = 8
IMAGES, LABELS = "images-idx3", "labels-idx1"
"""Parts of MNIST's file names that distinguish examples from labels."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Header:
    """Header of an idx file.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
        The first axis counts examples.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the header itself."""
        return 4 + 4 * len(self.shape)

    @property
    def width(self) -> int:
        """Values of an example."""
        return math.prod(self.shape[1:])


def read_header(path: str) -> Header:
    """The header of an idx file, packed or not.

    Raises
    ------
    DataError
        The file cannot be read, or is not an idx file.
    """
    try:
        with gzip.open(path) if is_packed(path) else Path(path).open("rb") as file:
            begin = file.read(4)
            axes = begin[3] if len(begin) == 4 else 0
            sizes = file.read(4 * axes) if axes <= AXES_MAX else b""
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path}: {why}") from None
    if len(begin) < 4 or begin[:2] != b"\0\0" or begin[2] not in _TYPES or not axes:
        raise DataError(
            f"{path} is no idx file: expected it to begin with two zeros, a type from 08 to 0e and "
            f"a number of axes from 1 to {AXES_MAX}, got {begin.hex(' ') or 'nothing'}"
        )
    if len(sizes) < 4 * axes:
        raise DataError(
            f"{path} is no idx file: expected the sizes of {axes} axes (at most {AXES_MAX}), "
            f"got {len(sizes)} bytes of them"
        )
    shape = struct.unpack(f">{axes}I", sizes)
    if 0 in shape:
        raise DataError(f"{path} is empty: its shape is {shape}")
    return Header(np.dtype(_TYPES[begin[2]]), shape)


def read_idx(path: str, scratch: Scratch) -> NDArray[Any]:
    """The values of an idx file, memory-mapped.

    Parameters
    ----------
    path : str
    scratch : Scratch
        Unpacks a `.gz`; must stay open as long as the array is used.

    Returns
    -------
    numpy.ndarray
        Read-only, of the file's shape and type (big endian where a value has several bytes).

    Raises
    ------
    DataError
        The file cannot be read, is no idx file, or has fewer or more values than its header says.
    """
    header = read_header(path)
    local = scratch.local(path)
    try:
        found = local.stat().st_size
        expected = header.bytes + math.prod(header.shape) * header.dtype.itemsize
        if found != expected:
            raise DataError(
                f"{path}: expected {expected:,} bytes for shape {header.shape}, got {found:,}: "
                "a file that was cut off, or another format"
            )
        return np.memmap(local, header.dtype, "r", header.bytes, header.shape)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def labels_of(images: str, option: str = "--labels") -> str:
    """Path of the labels that belong to images, by MNIST's way of naming them.

    Parameters
    ----------
    images : str
    option : str
        Names the labels' file where the way of naming does not.

    Raises
    ------
    DataError
        The name is of another form, or there is no such file.
    """
    path = Path(images)
    if IMAGES not in path.name:
        raise DataError(
            f"{images}: its labels cannot be found by its name, which lacks {IMAGES!r}: "
            f"name their file by {option}"
        )
    beside = path.with_name(path.name.replace(IMAGES, LABELS))
    other = beside.with_suffix("") if beside.suffix == ".gz" else Path(f"{beside}.gz")
    for candidate in (beside, other):
        if candidate.exists():
            return str(candidate)
    raise DataError(
        f"expected the labels of {images} in {beside}, which does not exist: name their file by "
        f"{option}"
    )


class Labelled:
    """Examples with their classes, from pairs of idx files.

    Parameters
    ----------
    pairs : sequence of (str, str)
        Files of examples and of their labels, in the order of the examples' numbers.
    scratch : Scratch
        Stays open as long as this is used.

    Raises
    ------
    DataError
        A file is no idx file, or the two of a pair, or two pairs, do not fit each other.

    Notes
    -----
    Examples stay in their files, which processes of a machine share; labels are in memory.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], scratch: Scratch) -> None:
        self.headers = [check_pair(*pair) for pair in pairs]
        self.width = self.headers[0].width
        for (images, _), header in zip(pairs, self.headers, strict=True):
            if header.width != self.width:
                raise DataError(
                    f"{images}: expected examples of {self.width} values, as in {pairs[0][0]}, "
                    f"got {header.width}"
                )
        self._parts = [
            read_idx(images, scratch).reshape(header.shape[0], -1)
            for (images, _), header in zip(pairs, self.headers, strict=True)
        ]
        self._first = np.cumsum([0, *(len(part) for part in self._parts)])
        self.labels = np.concatenate([classes_of(labels, scratch) for _, labels in pairs])

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """Examples by number, float32 (n, width); bytes become 0 to 1, other types stay."""
        if len(self._parts) == 1:
            return _as_floats(self._parts[0][numbers])
        out = np.empty((len(numbers), self.width), np.float32)
        of_part = np.searchsorted(self._first, numbers, side="right") - 1
        for number, part in enumerate(self._parts):
            own = of_part == number
            out[own] = _as_floats(part[numbers[own] - self._first[number]])
        return out


def check_pair(images: str, labels: str) -> Header:
    """Header of the examples; refuses labels that are not theirs.

    Raises
    ------
    DataError
    """
    header, other = read_header(images), read_header(labels)
    if len(header.shape) < 2:
        raise DataError(
            f"{images}: expected examples of at least two axes, got shape {header.shape}: "
            "are these the labels?"
        )
    if len(other.shape) != 1 or other.dtype.kind == "f":
        raise DataError(
            f"{labels}: expected labels, whole numbers along one axis, got {other.dtype} of shape "
            f"{other.shape}"
        )
    if other.shape[0] != header.shape[0]:
        raise DataError(
            f"{labels}: expected {header.shape[0]:,} labels, as many as {images} has examples, "
            f"got {other.shape[0]:,}"
        )
    return header


def classes_of(path: str, scratch: Scratch) -> NDArray[np.int64]:
    """Class numbers of a file of labels, int64 (n,).

    Raises
    ------
    DataError
        One is negative.
    """
    labels = np.asarray(read_idx(path, scratch), np.int64)
    if labels.min() < 0:
        raise DataError(f"{path}: expected class numbers from 0 on, got {labels.min()}")
    return labels


def _as_floats(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.uint8:
        return np.asarray(np.multiply(values, np.float32(1 / 255), dtype=np.float32))
    return np.asarray(values, np.float32)


def order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 to `count` - 1, another one for each seed and epoch.

    Notes
    -----
    Sorts `count` hashes, element i being draw i + 1 of SplitMix64 started at a hash of seed and
    epoch.  No two are equal, as its steps and its finaliser are bijective: every way of sorting
    gives the same order, and the fastest one takes a fifth of a stable one's time.

    References
    ----------
    G. Steele, D. Lea, C. Flood: Fast splittable pseudorandom number generators. OOPSLA 2014.
    """
    start = _mixed(np.array([seed & _MASK], np.uint64) * _GOLDEN + np.uint64((epoch + 1) & _MASK))
    draws = np.arange(1, count + 1, dtype=np.uint64)
    return np.argsort(_mixed(draws * _GOLDEN + start))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser of each element."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
