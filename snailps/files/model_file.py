"""Model files: an ``.npz`` that NumPy reads, with named arrays and a header of settings.

    settings, arrays -> write_model, or model_writer -> ModelWriter: array by array, in pieces
    open archive -> ModelFile -> settings, an array in memory, an array mapped

Equal arrays give equal bytes, and a file appears whole or not at all.  A size that a file announces
is compared with the file's length before memory is taken (`files.array_archives`).  Must not know
models.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from snailps.config import CHECKPOINT_SETTINGS, Settings, to_mapping
from snailps.errors import MisuseError, ModelFileError
from snailps.files.array_archives import ArchiveMember, arrays_of, member_of, values_of
from snailps.files.atomic import atomic_file
from snailps.files.file_kinds import is_pipe
from snailps.pointers import POINTER_BYTES, pointer_of

HEADER = "about"
"""Name of the array with the header, UTF-8 JSON."""
VERSION = 1
OF_THE_RUN = {
    "input", "output", "test", "valid", "labels", "test_labels", "scratch_dir", "scratch_bytes",
    "continue_from", "validation", "validation_labels", "stop_after", "stop_by",
    *CHECKPOINT_SETTINGS,
}  # fmt: skip
"""Settings of a run that do not describe the model; a header leaves them out."""


def bytes_of(
    name: str, dtype: DTypeLike, shape: Sequence[int], pieces: Iterable[NDArray[Any]]
) -> Iterator[memoryview]:
    """Yield the bytes of an array of known shape that comes in pieces of rows.

    MisuseError unless the pieces make exactly that array.
    """
    missing = shape[0]
    for piece in pieces:
        missing -= len(piece)
        if piece.shape[1:] != tuple(shape[1:]) or piece.dtype != dtype or missing < 0:
            raise MisuseError(f"{name}: a piece {piece.dtype}{piece.shape} of {shape}")
        yield np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
    if missing:
        raise MisuseError(f"{name}: {missing:,} rows of {shape[0]:,} are missing")


class Pieces(NamedTuple):
    """An array of known type and shape that comes in pieces of rows while it is written."""

    dtype: DTypeLike
    shape: Sequence[int]
    rows: Iterable[NDArray[Any]]


class ModelWriter:
    """Writes arrays into an open archive, one after the other."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        # A fixed date, because equal arrays must give equal bytes.
        info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
        with self._archive.open(info, "w", force_zip64=True) as member:
            yield member

    def add(self, name: str, array: NDArray[Any]) -> None:
        with self._open(name) as member:
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)

    def add_pieces(
        self, name: str, dtype: DTypeLike, shape: Sequence[int], pieces: Iterable[NDArray[Any]]
    ) -> None:
        """Write an array of known shape from pieces of rows, without having it in memory."""
        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        head = {"descr": descr, "fortran_order": False, "shape": tuple(shape)}
        with self._open(name) as member:
            np.lib.format.write_array_header_1_0(member, head)
            for data in bytes_of(name, dtype, shape, pieces):
                member.write(data)


@contextmanager
def model_writer(
    path: str | os.PathLike[str], bytes_needed: int | None = None
) -> Iterator[ModelWriter]:
    """Open `path` for writing arrays; raises the errors of `atomic_file`."""
    with (
        atomic_file(path, bytes_needed) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        yield ModelWriter(archive)


def write_model(
    path: str,
    arrays: Mapping[str, NDArray[Any] | Pieces],
    settings: Mapping[str, str] | None = None,
) -> str:
    """Write arrays by name, and a header if there are settings; return the path."""
    header = {} if settings is None else {HEADER: header_of(settings)}
    with model_writer(path) as file:
        for name, array in (header | dict(arrays)).items():
            if isinstance(array, Pieces):
                file.add_pieces(name, *array)
            else:
                file.add(name, array)
    return path


def header_of(settings: Mapping[str, str]) -> NDArray[np.uint8]:
    header = {"snailps": VERSION, "settings": settings}
    return np.frombuffer(json.dumps(header).encode(), np.uint8)


def model_settings(settings: Settings) -> dict[str, str]:
    """Return the settings for a model's header: all except `OF_THE_RUN`."""
    return {k: v for k, v in to_mapping(settings).items() if k not in OF_THE_RUN}


def settings_of(header: NDArray[Any]) -> dict[str, Any]:
    """Return the settings in a header; KeyError, TypeError or ValueError if it is malformed."""
    try:
        content = json.loads(header.tobytes())
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if content["snailps"] != VERSION:
        raise ValueError(f"version {content['snailps']}, this program reads {VERSION}")
    if not isinstance(settings := content["settings"], dict):
        raise TypeError(f"settings {settings!r:.80}")
    return settings


def check_rows(name: str, keys: NDArray[Any], rows: NDArray[Any]) -> None:
    """Raise ValueError unless keys are uint64 (n,) and rows float32 (n, dim)."""
    types = keys.dtype == np.uint64 and rows.dtype == np.float32
    if not types or (keys.ndim, rows.ndim) != (1, 2) or len(keys) != len(rows):
        raise ValueError(f"{name}: keys {keys.dtype}{keys.shape} and rows {rows.dtype}{rows.shape}")


def refuse_pointer(path: str | os.PathLike[str], head: bytes) -> None:
    """ModelFileError: by its first bytes a file is a pointer in the place of the model."""
    if pointer := pointer_of(head):
        raise ModelFileError(f"{path} is {pointer}")


class ModelFile:
    """The arrays of an open file, by name; raises `OSError` or one of `DAMAGED`."""

    def __init__(self, path: str | os.PathLike[str], file: IO[bytes]) -> None:
        refuse_pointer(path, file.read(POINTER_BYTES))
        self._path, self._file, self._archive = path, file, zipfile.ZipFile(file)
        self._bytes = file.seek(0, os.SEEK_END)
        self.members = self._archive.namelist()

    def settings(self) -> dict[str, Any]:
        """Return the settings in the header."""
        return settings_of(self.read(HEADER))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Read all arrays into memory and compare their checksums."""
        return arrays_of(self._archive, self._bytes)

    def read(self, name: str) -> NDArray[Any]:
        return values_of(self._archive, self._member(name))

    def map(self, name: str, dtype: DTypeLike, ndim: int) -> NDArray[Any]:
        """Map an array; its checksum is compared first.  A compressed array is read instead.

        The array is a view of the file and not aligned to its type.  ModelFileError if type or
        number of axes differ.
        """
        member = self._member(name)
        shape = member.shape
        if (member.dtype, len(shape), member.fortran) != (dtype, ndim, False) or min(shape) < 1:
            raise ModelFileError(
                f"{self._path}: '{name}' must be {np.dtype(dtype)} with {ndim} dimensions, "
                f"got {member.dtype}{list(shape)}; it is not a vector file of ours"
            )
        if not member.is_stored:
            return values_of(self._archive, member)
        with self._archive.open(member.info) as content:
            while content.read(1 << 20):  # `zipfile` compares the checksum at the end
                pass
        # The local header has 30 bytes, then a name and an extra field whose lengths are at 26.
        self._file.seek(member.info.header_offset + 26)
        start = member.info.header_offset + 30 + sum(struct.unpack("<HH", self._file.read(4)))
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        if start + member.info.file_size > len(mapped):
            raise EOFError(f"'{name}' ends after the file")
        return np.frombuffer(mapped, dtype, math.prod(shape), start + member.at).reshape(shape)

    def _member(self, name: str) -> ArchiveMember:
        return member_of(self._archive, self._archive.getinfo(f"{name}.npy"), self._bytes)


def refuse_pipe(path: str | os.PathLike[str]) -> None:
    """Refuse a pipe before it is opened, because opening one waits for its writer."""
    if is_pipe(path):
        raise ModelFileError(
            f"{path}: a pipe or a device, and a model is not read in sequence: write it into a "
            "file, and name that"
        )
