"""Dense examples in files: idx (MNIST's format), NumPy's .npy, dense matrix files.

    path -> read_header -> ArrayPlace: type, shape, where the values begin  (also of packed files)
    path -> Scratch -> read_array -> array mapped from the file
    files of examples and labels -> Labelled -> examples by number: float32 (n, width), classes (n,)

Owns the idx format: two zero bytes, a code of the type, the number of axes, the size of each as 4
bytes, then the values in C order, all big endian.  A matrix file holds its labels itself.  Must not
know what a class means.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.errors import DataError
from snailps.files.array_archives import npy_header
from snailps.files.driver_files import is_driver_file, size_of
from snailps.files.file_kinds import is_pipe
from snailps.files.matrix_file import ArrayPlace, first_not_weight, is_matrix
from snailps.files.matrix_file import read_header as read_matrix_header
from snailps.files.scratch import Scratch, open_input
from snailps.files.unpacking import DAMAGED, is_packed

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NPY_MAGIC = b"\x93NUMPY"
_BEGINNING_BYTES = 10_240
"""NumPy reads at most 10,000 bytes of header from an untrusted file."""
AXES_MAX = 8
"""Most axes of an array of examples."""
IMAGES, LABELS = "images-idx3", "labels-idx1"
"""Parts of MNIST's file names that distinguish examples from labels."""


def is_array_file(path: str) -> bool:
    """Whether a file is idx or ``.npy``, by its first bytes; a pipe is not read, and is neither."""
    if is_pipe(path) or Path(path).is_dir():
        return False
    try:
        begin = _beginning(path)
    except (OSError, *DAMAGED):
        return False
    is_idx = begin[:2] == b"\0\0" and len(begin) >= 4 and begin[2] in _TYPES
    return is_idx or begin.startswith(_NPY_MAGIC)


def read_header(path: str, name: str = "values") -> ArrayPlace:
    """Where the array `name` (values, labels, weights) of a file lies; its first axis is examples.

    DataError: unreadable, malformed, empty, or without such an array.
    """
    return _section(path, name)[0]


def _section(path: str, name: str) -> tuple[ArrayPlace, int]:
    """An array of a file, and the length that the file has to have."""
    sections, size = _sections(path)
    if name not in sections:
        raise DataError(f"{path} has no {name}: write the file with y")
    return sections[name], size


def _sections(path: str) -> tuple[Mapping[str, ArrayPlace], int]:
    """The arrays of a file by name, and its length.

    A file with one array may be examples or labels: it has the array under both names.
    """
    try:
        begin = _beginning(path)
        if is_matrix(begin):
            sections, size = _sections_of_matrix(begin, path)
        else:
            read = _header_of_npy if begin.startswith(_NPY_MAGIC) else _header_of_idx
            only = read(begin, path)
            sections, size = {"values": only, "labels": only}, only.stop
    except (OSError, *DAMAGED) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path}: {why}") from None
    for section in sections.values():
        if 0 in section.shape:
            raise DataError(
                f"{path} is empty: expected at least one example, got an array of shape "
                f"{section.shape}"
            )
    return sections, size


def _beginning(path: str) -> bytes:
    with open_input(path) as file:
        return file.read(_BEGINNING_BYTES)


def _header_of_idx(begin: bytes, path: str) -> ArrayPlace:
    if len(begin) < 4 or begin[:2] != b"\0\0" or begin[2] not in _TYPES or not begin[3]:
        raise DataError(
            f"{path} is no idx file: expected it to begin with two zeros, a type from 08 to 0e and "
            f"a number of axes from 1 to {AXES_MAX} (or to be a .npy or a dense matrix file), got "
            f"{begin[:4].hex(' ') or 'nothing'}"
        )
    axes = begin[3]
    sizes = begin[4 : 4 + 4 * axes] if axes <= AXES_MAX else b""
    if len(sizes) < 4 * axes:
        raise DataError(
            f"{path} is no idx file: expected the sizes of {axes} axes (at most {AXES_MAX}), "
            f"got {len(sizes)} bytes of them"
        )
    shape = struct.unpack(f">{axes}I", sizes)
    return ArrayPlace(4 + 4 * axes, np.dtype(_TYPES[begin[2]]), shape)


def _header_of_npy(begin: bytes, path: str) -> ArrayPlace:
    file = io.BytesIO(begin)
    try:
        shape, is_fortran, dtype = npy_header(file)
    except (ValueError, KeyError) as error:
        raise DataError(f"{path} is no .npy file that can be read: {error}") from None
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise DataError(f"{path}: expected an array of numbers, got {dtype}")
    if is_fortran and len(shape) > 1:
        raise DataError(
            f"{path} has its values column by column (Fortran order): save "
            "numpy.ascontiguousarray(array) instead"
        )
    if not shape or len(shape) > AXES_MAX:
        raise DataError(f"{path}: expected 1 to {AXES_MAX} axes, got {len(shape)}")
    return ArrayPlace(file.tell(), dtype, shape)


def _sections_of_matrix(begin: bytes, path: str) -> tuple[Mapping[str, ArrayPlace], int]:
    if is_packed(path):
        raise DataError(f"{path}: a dense matrix file is mapped, so it cannot be packed: unpack it")
    size = size_of(path) if is_driver_file(path) else Path(path).stat().st_size
    header = read_matrix_header(begin, size, path)
    if not header.dense:
        raise DataError(
            f"{path}: expected dense examples, got sparse ones: write them with dense=True, or "
            "train a model of sparse examples, such as logistic"
        )
    return header.sections(), size


def read_array(path: str, scratch: Scratch, name: str = "values") -> NDArray[Any]:
    """Map an array of a file, read-only, in its own type, which may be big endian.

    `scratch` unpacks a packed file, and must stay open while the array is used.  DataError: the
    file does not have the length that its header says.
    """
    section, size = _section(path, name)
    local = scratch.local(path, section.start, section.stop)
    try:
        length = local.stat().st_size
        if length != size:
            raise DataError(
                f"{path}: expected {size:,} bytes for shape {section.shape}, got {length:,}: it "
                "was cut off, or has another format: copy it again"
            )
        return np.memmap(local, section.dtype, "r", section.start, section.shape)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def labels_of(images: str, option: str = "--labels") -> str:
    """The file with the labels of `images`, found by its name.

    MNIST's names, or `X` and `y` for ``.npy``; packed or not.  A matrix file holds its labels
    itself.  DataError: no such file; the message advises `option`, which names the file.
    """
    path = Path(images)
    with suppress(OSError, *DAMAGED):  # reported when the examples are read
        begin = _beginning(images)
        if is_matrix(begin):
            return images
        if not begin.startswith(_NPY_MAGIC):
            _header_of_idx(begin, images)  # the error of a file that is no array comes first
    part, other_part = ("X", "y") if path.suffix == ".npy" else (IMAGES, LABELS)
    if part not in path.name:
        raise DataError(
            f"{images}: its labels cannot be found by its name, which lacks {part!r}: name their "
            f"file with {option}"
        )
    beside = path.with_name(path.name.replace(part, other_part))
    other = beside.with_suffix("") if beside.suffix == ".gz" else Path(f"{beside}.gz")
    for candidate in (beside, other):
        if candidate.exists():
            return str(candidate)
    raise DataError(
        f"expected the labels of {images} in {beside}, which does not exist: name their file with "
        f"{option}"
    )


class Labelled:
    """Examples with their classes, from pairs of a file of examples and a file of labels.

    Examples are mapped from their files, so that processes of a machine share them; labels are in
    memory.  `weights`, float32 (n,), come from matrix files; empty: all 1.  `scratch` must stay
    open while this is used.
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
            read_array(images, scratch).reshape(header.shape[0], -1)
            for (images, _), header in zip(pairs, self.headers, strict=True)
        ]
        self._first = np.cumsum([0, *(len(part) for part in self._parts)])
        self.labels = np.concatenate([classes_of(labels, scratch) for _, labels in pairs])
        self.weights = np.zeros(0, np.float32)
        by_file = [weights_of(images, scratch) for images, _ in pairs]
        if any(len(weights) for weights in by_file):
            self.weights = np.concatenate(
                [
                    weights if len(weights) else np.ones(header.shape[0], np.float32)
                    for weights, header in zip(by_file, self.headers, strict=True)
                ]
            )

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The examples with these numbers, float32 (n, width), copied."""
        if len(self._parts) == 1:
            return np.asarray(self._parts[0][numbers], np.float32)
        out = np.empty((len(numbers), self.width), np.float32)
        of_part = np.searchsorted(self._first, numbers, side="right") - 1
        for number, part in enumerate(self._parts):
            is_here = of_part == number
            out[is_here] = part[numbers[is_here] - self._first[number]]
        return out


def check_pair(images: str, labels: str) -> ArrayPlace:
    """Where the examples lie; DataError: the files do not have an example and a label per row."""
    header, other = read_header(images), read_header(labels, "labels")
    if len(header.shape) < 2:
        raise DataError(
            f"{images}: expected examples of at least two axes, got shape {header.shape}: "
            "are these the labels?"
        )
    if len(other.shape) != 1 or (other.dtype.kind == "f" and labels != images):
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
    """Class numbers of a file of labels, int64 (n,); DataError: negative or not whole ones."""
    stored = read_array(path, scratch, "labels")
    with np.errstate(invalid="ignore"):  # NaN is refused below
        labels = np.asarray(stored, np.int64)
    if stored.dtype.kind == "f" and (odd := np.flatnonzero(labels != stored)).size:
        row = int(odd[0])
        raise DataError(
            f"{path}: expected class numbers from 0 on, got {stored[row]} in row {row:,}"
        )
    if labels.min() < 0:
        raise DataError(f"{path}: expected class numbers from 0 on, got {labels.min()}")
    return labels


def weights_of(path: str, scratch: Scratch) -> NDArray[np.float32]:
    """Weights of the examples of a matrix file, float32 (n,); empty: the file has none."""
    if "weights" not in _sections(path)[0]:
        return np.zeros(0, np.float32)
    weights: NDArray[np.float32] = np.array(read_array(path, scratch, "weights"))
    if (row := first_not_weight(weights)) >= 0:
        raise DataError(
            f"{path}: row {row:,} has weight {weights[row]}: expected a finite number of 0 or more"
        )
    return weights
