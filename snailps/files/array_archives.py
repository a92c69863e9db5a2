"""Reads arrays of an untrusted ``.npz``: sizes are checked before memory is allocated.

    beginning of a .npy -> npy_header -> shape, order, type
    member of an archive -> member_of -> ArchiveMember: its header -> values_of -> array
    archive -> arrays_of -> arrays by name

Never unpickles.  Must not open files.  Functions raise `OSError` or one of `DAMAGED`.
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
"""What `zipfile` and NumPy raise for archives that are damaged, encrypted or malicious."""
EXPANDED_MAX = 100
EXPANDED_BYTES = 16 << 20
"""An array above 16 MiB may be at most `EXPANDED_MAX` times its packed size.

Deflate packs up to 1,000 times, so a small file could claim all memory."""
_HEAD_BYTES = 4096
"""Bytes of a member read for its header."""
_COLUMN = re.compile(r"\(\s*'([^']*)'\s*,\s*'([^']*)'\s*\)")
_VALUES = {
    "descr": rf"'[^']*' | \[ (?: \s* {_COLUMN.pattern} \s* (?: , | (?=\]) ) )+ \s* \]",
    "fortran_order": r"True | False",
    "shape": r"\( \s* (?: (?: -?\d+L? \s* , \s* )+ (?: -?\d+L? \s* )? )? \)",
}
"""Forms of a header's values: a type, or (name, type) of each column; a truth value; sizes."""
_FORMS = [rf"'{name}' \s* : \s* (?P<{name}> {value} )" for name, value in _VALUES.items()]
_FIELD = re.compile(r"\s* (?: " + " | ".join(_FORMS) + r" ) \s* (?: , | (?=\}) )", re.VERBOSE)


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """An array of an archive whose header was checked; values begin at byte `at` of the member."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    at: int

    @property
    def is_stored(self) -> bool:
        return self.info.compress_type == zipfile.ZIP_STORED


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and type of a ``.npy``; `DAMAGED` if it is none.

    Not by NumPy, which parses the header with `ast`: in Python 3.11 that fails by chance when two
    threads parse at once.
    """
    width = {(1, 0): 2, (2, 0): 4}[np.lib.format.read_magic(file)]
    size = int.from_bytes(file.read(width), "little")
    text = file.read(size).decode("latin-1")
    fields: dict[str, str] = {}
    offset = len(text) - len(text.lstrip()) + 1  # after the brace
    while (field := _FIELD.match(text, offset)) is not None:
        fields |= {name: value for name, value in field.groupdict().items() if value is not None}
        offset = field.end()
    braces = text.lstrip()[:1] + text[offset:].strip()
    if braces != "{}" or len(fields) < len(_VALUES) or len(text) < size:
        raise ValueError(f"it has no header of an array: {text!r:.200}")
    kind, names = fields["descr"], _COLUMN.findall(fields["descr"])
    shape = tuple(int(size) for size in re.findall(r"-?\d+", fields["shape"]))
    try:
        dtype = np.dtype(names or kind.strip("'"))
    except TypeError as error:
        raise ValueError(str(error)) from None
    return shape, fields["fortran_order"] == "True", dtype


def member_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file_bytes: int) -> ArchiveMember:
    """The header of an array, checked against the sizes that archive and file have.

    ValueError: it claims more than it can hold, or a type with Python objects.
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
    shape, fortran, dtype = npy_header(head)
    if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"{info.filename!r} has {dtype} of shape {shape}")
    if head.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(
            f"{info.filename!r} announces {dtype} of shape {shape} in {info.file_size:,} bytes"
        )
    return ArchiveMember(info, shape, dtype, fortran, head.tell())


def values_of(archive: zipfile.ZipFile, member: ArchiveMember) -> NDArray[Any]:
    """The array of a member; zipfile's error if its checksum differs."""
    array = np.empty(math.prod(member.shape), member.dtype)
    into, filled = array.view(np.uint8).data, 0
    with archive.open(member.info) as file:
        file.read(member.at)
        while data := file.read(1 << 20):  # to the end, where zipfile compares the checksum
            into[filled : filled + len(data)] = data
            filled += len(data)
    if filled != len(into):
        raise EOFError(f"{len(into) - filled} bytes of {member.info.filename!r} are missing")
    return array.reshape(member.shape, order="F" if member.fortran else "C")


def arrays_of(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, NDArray[Any]]:
    """All arrays by name, of an archive in a file of `file_bytes` bytes."""
    infos = archive.infolist()
    # Members that overlap would be unpacked many times from the same bytes.
    if sum(info.compress_size for info in infos) > file_bytes:
        raise ValueError(f"its members announce more than the file's {file_bytes:,} bytes")
    members = [member_of(archive, info, file_bytes) for info in infos]
    return {
        member.info.filename.removesuffix(".npy"): values_of(archive, member) for member in members
    }
