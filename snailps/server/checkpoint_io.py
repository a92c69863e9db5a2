"""Checkpoints at a server as files: shards written and read back.

    create -> Writer.write, for each buffer of sections -> close -> entry of the manifest
    open -> Reader.batches -> sections, each compared with its checksum

Every method blocks on the disk, and runs as a `Work`. Must not know shards: `checkpoints.py`
decides when rows are copied, and where sections go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snailps.errors import CheckpointError
from snailps.server.services import Batch, Buffer
from snailps.store.checkpoint.disk import OS_DISK, Disk, read_file
from snailps.store.checkpoint.folder import BEGUN, open_checkpoint
from snailps.store.checkpoint.shard_file import ShardFile, ShardFileWriter, new_buffer


class ServerCheckpointFiles:
    def __init__(self, cluster_id: int, frag_num: int, disk: Disk = OS_DISK) -> None:
        self._cluster_id, self._frag_num, self._disk = cluster_id, frag_num, disk

    def check_folder(self, folder: str, cluster_id: int) -> None:
        """Refuse a folder that is missing, or is not the one that the master made: then this server
        sees another disk under that name."""
        try:
            noted = read_file(self._disk, Path(folder) / BEGUN).decode().strip()
        except OSError as error:
            raise CheckpointError(
                f"{folder}: not visible from here ({error.strerror}): checkpoint_dir must "
                "be on a disk that the master and all servers share, under the same path"
            ) from None
        except UnicodeDecodeError:
            noted = ""
        if noted != f"{cluster_id:016x}":
            raise CheckpointError(
                f"{folder}: not the folder that the master made: checkpoint_dir must be on a "
                "disk that the master and all servers share"
            )

    def create(self, folder: str, names: Sequence[str], number: int) -> list[ShardFileWriter]:
        made: list[ShardFileWriter] = []
        try:
            for name in names:
                path = Path(folder) / name
                made.append(
                    ShardFileWriter(path, self._cluster_id, number, self._frag_num, self._disk)
                )
        except BaseException:
            for writer in made:
                writer.abandon()
            raise
        return made

    def buffer(self, length: int) -> Buffer:
        return new_buffer(length)

    def open(self, folder: str, number: int) -> CheckpointReader:
        """Open a checkpoint to restore it; CheckpointError if it is damaged, or another one."""
        manifest, files = open_checkpoint(Path(folder), self._disk)
        if (manifest.number, manifest.frag_num) != (number, self._frag_num):
            raise CheckpointError(
                f"{folder}: checkpoint {manifest.number} of {manifest.frag_num} fragments, "
                f"expected {number} of {self._frag_num}"
            )
        return CheckpointReader(files, self._frag_num)


class CheckpointReader:
    def __init__(self, files: Sequence[ShardFile], frag_num: int) -> None:
        self._files, self._frag_num = files, frag_num

    def batches(self, fragments: NDArray[np.uint32]) -> Iterator[Batch]:
        owned = np.zeros(self._frag_num, np.bool_)
        owned[fragments] = True
        for file in self._files:
            yield from file.batches(owned)
