"""Arrays of an untrusted ``.npz``: sizes are compared before memory is allocated.

    beginning of a .npy -> npy_header -> shape, order, type
    member of an archive -> member_of -> Member: its header -> values_of -> array
    archive -> arrays_of -> arrays by name

Opens no file, and unpickles nothing.  Functions raise `OSError` or one of `DAMAGED`.
"""

from __future__ import annotations

import io
import math
import re
import struct
import tokenize
import zipfile
import zlib
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from snailps.dataclass import dataclass

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
"""Errors of `zipfile` and NumPy for archives that are damaged, encrypted or malicious."""
EXPANDED_MAX = 100
EXPANDED_BYTES = 16 << 20
"""A larger array may be `EXPANDED_MAX` times its size in the file: deflate could announce 1,000."""
_HEAD_BYTES = 4096
_COLUMN = re.compile(r"\(\s*'([^']*)'\s*,\s*'([^']*)'\s*\)")
_VALUES = {
    "descr": rf"'[^']*' | \[ (?: \s* {_COLUMN.pattern} \s* (?: , | (?=\]) ) )+ \s* \]",
    "fortran_order": r"True | False",
    "shape": r"\( \s* (?: (?: -?\d+L? \s* , \s* )+ (?: -?\d+L? \s* )? )? \)",
}
"""Forms of the values of a header: a type or columns (name, type), a truth value, sizes."""
_FORMS = [rf"'{name}' \s* : \s* (?P<{name}> {value} )" for name, value in _VALUES.items()]
_FIELD = re.compile(r"\s* (?: " + " | ".join(_FORMS) + r" ) \s* (?: , | (?=\}) )", re.VERBOSE)


@dataclass(frozen=True, slots=True)
class Member:
    """An array of an archive before its values are read; they begin at byte `at` of the member."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    at: int

    @property
    def is_stored(self) -> bool:
        return self.info.compress_type == zipfile.ZIP_STORED


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape of a ``.npy``, whether in Fortran order, and type; `DAMAGED` if it is none.

    NumPy reads it by `ast`, which fails by chance where two threads of Python 3.11 parse at once.
    """
    width = {(1, 0): 2, (2, 0): 4}[np.lib.format.read_magic(file)]
    size = int.from_bytes(file.read(width), "little")
    text = file.read(size).decode("latin-1")
    fields: dict[str, str] = {}
    at = len(text) - len(text.lstrip()) + 1  # behind the brace
    while (field := _FIELD.match(text, at)) is not None:
        fields |= {name: value for name, value in field.groupdict().items() if value is not None}
        at = field.end()
    braces = text.lstrip()[:1] + text[at:].strip()
    if braces != "{}" or len(fields) < len(_VALUES) or len(text) < size:
        raise ValueError(f"it has no header of an array: {text!r:.200}")
    kind, names = fields["descr"], _COLUMN.findall(fields["descr"])
    shape = tuple(int(one) for one in re.findall(r"-?\d+", fields["shape"]))
    try:
        dtype = np.dtype(names or kind.strip("'"))
    except TypeError as error:
        raise ValueError(str(error)) from None
    return shape, fields["fortran_order"] == "True", dtype


def member_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file_bytes: int) -> Member:
    """Read the header of an array, compared with the sizes of archive and file."""
    is_stored = info.compress_type == zipfile.ZIP_STORED
    most = info.compress_size if is_stored else info.compress_size * EXPANDED_MAX + EXPANDED_BYTES
    if info.compress_size > file_bytes or info.file_size > most:
        raise ValueError(
            f"{info.filename!r} announces {info.file_size:,} bytes in {info.compress_size:,} of "
            f"the file's {file_bytes:,}"
        )
    with archive.open(info) as member:
        head = io.BytesIO(member.read(_HEAD_BYTES))
    shape, fortran, dtype = npy_header(head)
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"{info.filename!r} has {dtype} of shape {shape}")
    if head.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(
            f"{info.filename!r} announces {dtype} of shape {shape} in {info.file_size:,} bytes"
        )
    return Member(info, shape, dtype, fortran, head.tell())


def values_of(archive: zipfile.ZipFile, member: Member) -> NDArray[Any]:
    """Read the array, its checksum compared."""
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
    """All arrays, by name, of an archive of `file_bytes` bytes."""
    infos = archive.infolist()
    if sum(info.compress_size for info in infos) > file_bytes:
        raise ValueError(f"its members announce more than the file's {file_bytes:,} bytes")
    members = [member_of(archive, info, file_bytes) for info in infos]
    return {one.info.filename.removesuffix(".npy"): values_of(archive, one) for one in members}
