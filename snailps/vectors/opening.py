"""Opens model files of any format: handles missing files, folders, pipes and gzip.

path -> opened -> an open file, unpacked if it is a .gz; or an error with the next step

Must not know formats; `files` recognises them by the first `START_BYTES`.
"""

from __future__ import annotations

import gzip
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

from snailps.abi.quota import memory
from snailps.earlier_names import JOURNAL_COPY
from snailps.errors import ModelFileError
from snailps.files.atomic import free_bytes, human_bytes
from snailps.files.model_file import refuse_pipe, refuse_pointer
from snailps.pointers import POINTER_BYTES

Path_: TypeAlias = "str | os.PathLike[str]"

START_BYTES = 1 << 16
"""Bytes by which the format of a file is recognised."""
SUFFIXES = (".bin", ".ftz", ".npz", ".vec")
"""Endings of files with vectors, for suggestions in errors."""
_GZIP_MAGIC = b"\x1f\x8b"
_BYTES_TOGETHER = 1 << 24
"""Bytes unpacked at a time."""
_ROOM_LEFT = 1 << 26
"""Bytes that unpacking leaves free on the disk and in memory, where TMPDIR often is."""


@contextmanager
def opened(path: Path_) -> Iterator[IO[bytes]]:
    """Open a file, or a nameless unpacked copy if its first bytes are gzip's."""
    if not first_bytes(path).startswith(_GZIP_MAGIC):
        with open(path, "rb") as file:
            yield file
        return
    with tempfile.TemporaryFile(prefix="snailps-") as copy:
        try:
            with gzip.open(path, "rb") as packed:
                while piece := packed.read(_BYTES_TOGETHER):
                    check_room(path, copy, len(piece))
                    copy.write(piece)
            copy.flush()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ModelFileError(f"{path}: cannot be unpacked: {error}; fetch it again") from error
        except OSError as error:
            raise ModelFileError(
                f"{path}: cannot be unpacked into {tempfile.gettempdir()}: "
                f"{error.strerror or error}; make room, or name another folder by TMPDIR"
            ) from error
        copy.seek(0)
        yield copy


def check_room(path: Path_, copy: IO[bytes], more: int) -> None:
    """Refuse to unpack further if room runs out: a .gz may hold a thousand times its size."""
    folder = tempfile.gettempdir()
    for where, free in ((folder, free_bytes(Path(folder))), ("memory", memory()[0] or None)):
        if free is not None and free < more + _ROOM_LEFT:
            raise ModelFileError(
                f"{path}: cannot be unpacked into {folder}: after the first "
                f"{human_bytes(copy.tell())}, {where} has {human_bytes(free)} left; make room, or "
                "name another folder by TMPDIR"
            )


def first_bytes(path: Path_) -> bytes:
    """Read the first bytes of a file; if it is missing, the error suggests a similar name.

    ModelFileError: it is a pointer in the place of the model.
    """
    refuse_pipe(path)
    try:
        with open(path, "rb") as file:
            head = file.read(POINTER_BYTES)
    except FileNotFoundError as error:
        ends = [*SUFFIXES, ".txt", *(f"{end}.gz" for end in (*SUFFIXES, ".txt")), ".weights.npz"]
        beside = [name for end in ends if (name := Path(f"{path}{end}")).is_file()]
        hint = f"; did you mean {beside[0]}?" if beside else "; check the path"
        raise ModelFileError(f"{path}: no such file{hint}") from error
    except IsADirectoryError as error:
        raise ModelFileError(f"{path}: {identify_folder(path)}") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    refuse_pointer(path, head)
    return head


def identify_folder(path: Path_) -> str:
    """Describe what a folder is, and name the file or command to use instead."""
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208
    except OSError:
        return "a folder; give the path of a model in it"
    if "manifest.json" in names:
        return "a checkpoint: snailps checkpoint export makes a model of it"
    if any(re.fullmatch(r"checkpoint-\d{6,}", name) for name in names):
        return "a folder of checkpoints: snailps checkpoint export makes a model of it"
    if "passed.json" in names or ("lock" in names and str(path).endswith(".checkpoints")):
        return "a folder of checkpoints, without one: the training that kept them has ended"
    if "facts" in names and {"cluster", JOURNAL_COPY} & {*names}:
        return "the journal of a training: the command that began it goes on with it"
    models = [name for name in names if name.removesuffix(".gz").endswith(SUFFIXES)]
    hint = f", such as {Path(path) / models[0]}" if models else ""
    return f"a folder; give the path of a model in it{hint}"
