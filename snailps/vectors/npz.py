"""Writes an ``.npz`` file array by array, each whole or in pieces, deterministically.

    arrays, pieces of arrays -> NpzWriter -> zip of .npy, not compressed        numpy.load reads it
    arrays by name -> write_arrays -> the same -> read_arrays -> arrays by name
    settings -> about -> an array of such a file -> settings_of

The file appears complete or not at all.  Must not know models.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from snailps.data.array_archives import DAMAGED, arrays_of
from snailps.data.atomic import atomic_file
from snailps.errors import ModelFileError


class NpzWriter:
    """Writes the arrays of an open file in sequence."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A member of the archive, to which the caller writes the array's head and values."""
        # A fixed date: the same arrays give the same bytes.
        info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
        with self._archive.open(info, "w", force_zip64=True) as member:
            yield member

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Writes an array that is in memory."""
        with self.open(name) as member:
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)

    def add_pieces(
        self,
        name: str,
        dtype: npt.DTypeLike,
        shape: Sequence[int],
        pieces: Iterable[npt.NDArray[Any]],
    ) -> None:
        """Write an array of a known shape from pieces of rows."""
        left = shape[0]
        with self.open(name) as member:
            write_npy_head(member, dtype, shape)
            for piece in pieces:
                left -= len(piece)
                if piece.shape[1:] != tuple(shape[1:]) or piece.dtype != dtype or left < 0:
                    raise ValueError(f"{name}: a piece {piece.dtype}{piece.shape} of {shape}")
                member.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        if left:
            raise ValueError(f"{name}: {left:,} rows of {shape[0]:,} are missing")


def write_npy_head(file: IO[bytes], dtype: npt.DTypeLike, shape: Sequence[int]) -> None:
    """The head of a ``.npy``, as `numpy.save` writes it."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    head = {"descr": descr, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, head)


@contextmanager
def npz_file(path: str | os.PathLike[str], bytes_needed: int | None = None) -> Iterator[NpzWriter]:
    """Open `path` for writing arrays; errors as of `atomic_file`."""
    with (
        atomic_file(path, bytes_needed) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        yield NpzWriter(archive)


ABOUT_VERSION = 1


def about(settings: Mapping[str, object]) -> NDArray[np.uint8]:
    """Description of a model for its file: UTF-8 JSON of its settings, uint8 (n,)."""
    said = {"snailps": ABOUT_VERSION, "settings": settings}
    return np.frombuffer(json.dumps(said).encode(), np.uint8)


def settings_of(about: NDArray[Any]) -> Mapping[str, Any]:
    """The settings of `about`; `KeyError`, `TypeError` or `ValueError` if it is none."""
    try:
        said = json.loads(about.tobytes())
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if said["snailps"] != ABOUT_VERSION:
        raise ValueError(f"version {said['snailps']}, this program reads {ABOUT_VERSION}")
    settings = said["settings"]
    if not isinstance(settings, dict):
        raise TypeError(f"settings {settings!r:.80}")
    return settings


def write_arrays(path: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Write arrays by name; returns the path."""
    with npz_file(path) as file:
        for name, array in arrays.items():
            file.add(name, array)
    return path


def read_arrays(
    path: str | os.PathLike[str], what: str, names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file of `what` (such as ``a net``); `names` are required."""
    # Imported here: it reads `about` with what is above.
    from snailps.vectors.identity import identify

    def refusal(got: str) -> ModelFileError:
        with open(path, "rb") as file:
            found = identify(path, file)
        got = f"{got}: it is {found}" if found else got
        return ModelFileError(
            f"{path}: expected the .npz of {what}, as snailps train writes it, got {got}"
        )

    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            arrays = arrays_of(archive, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read as {what}: {error.strerror or error}"
        ) from None
    except DAMAGED as error:
        raise refusal(f"a file that is no sound .npz ({error!s:.200})") from None
    lacks = [name for name in names if name not in arrays]
    if lacks:
        raise refusal(f"an .npz without {', '.join(lacks)}")
    return arrays
