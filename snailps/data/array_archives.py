"""Arrays of an ``.npz`` that a stranger may have made: sizes are compared before memory is taken.

    member of an archive -> member_of -> Member: its header -> values_of -> array
    archive -> arrays_of -> arrays by name

Opens no file, and unpickles nothing.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What `zipfile` and NumPy raise for archives that are damaged, encrypted or made to do harm."""
EXPANDED_MAX = 100
EXPANDED_BYTES = 16 << 20
"""A compressed array is at most so many times as large as in the file, and these bytes: trained
numbers shrink by a tenth, and deflate could announce a thousand times what was sent."""
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Member:
    """An array of an archive, before its values are read; they begin at byte `at` of it."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    at: int

    @property
    def is_stored(self) -> bool:
        """Whether it is not compressed."""
        return self.info.compress_type == zipfile.ZIP_STORED


def member_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file_bytes: int) -> Member:
    """Header of an array, compared with the sizes of archive and file before memory is taken.

    Raises
    ------
    OSError, *DAMAGED
        They contradict each other, or the member is no array of plain values.
    """
    is_stored = info.compress_type == zipfile.ZIP_STORED
    most = info.compress_size if is_stored else info.compress_size * EXPANDED_MAX + EXPANDED_BYTES
    if info.compress_size > file_bytes or info.file_size > most:
        raise ValueError(
            f"{info.filename!r} announces {info.file_size:,} bytes in {info.compress_size:,} of "
            f"the file's {file_bytes:,}"
        )
    with archive.open(info) as member:
        head = io.BytesIO(member.read(_HEAD_BYTES))
    version = np.lib.format.read_magic(head)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, fortran, dtype = readers[version](head)
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"{info.filename!r} has {dtype} of shape {shape}")
    if head.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(
            f"{info.filename!r} announces {dtype} of shape {shape} in {info.file_size:,} bytes"
        )
    return Member(info, shape, dtype, fortran, head.tell())


def values_of(archive: zipfile.ZipFile, member: Member) -> NDArray[Any]:
    """The array, its checksum compared.

    Raises
    ------
    OSError, *DAMAGED
        It is damaged or cut short.
    """
    array = np.empty(math.prod(member.shape), member.dtype)
    into, filled = array.view(np.uint8).data, 0
    with archive.open(member.info) as file:
        file.read(member.at)
        while data := file.read(1 << 20):  # to the end, where the checksum is compared
            into[filled : filled + len(data)] = data
            filled += len(data)
    if filled != len(into):
        raise EOFError(f"{len(into) - filled} bytes of {member.info.filename!r} are missing")
    return array.reshape(member.shape, order="F" if member.fortran else "C")


def arrays_of(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, NDArray[Any]]:
    """All arrays of an archive of so many bytes, by name.

    Raises
    ------
    OSError, *DAMAGED
        It is damaged, or announces more than it has.
    """
    infos = archive.infolist()
    if sum(info.compress_size for info in infos) > file_bytes:
        raise ValueError(f"its members announce more than the file's {file_bytes:,} bytes")
    members = [member_of(archive, info, file_bytes) for info in infos]
    return {one.info.filename.removesuffix(".npy"): values_of(archive, one) for one in members}
