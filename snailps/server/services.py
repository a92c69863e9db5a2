"""Disk work, as a server's core sees it: run as a `Work`, beside the control thread.

    core -> Work(files.open ...) -> process.py calls it in a thread -> WorkDone

The core calls none of it itself. `checkpoint_io.py` has the real ones, on any `Disk`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]
Sections = Sequence[tuple[int, int, int, int]]
"""Sections of a buffer, as `Shard.copy_next` returns them."""
Batch = list[tuple[int, Buffer]]
"""Fragments with their sections, valid until the next batch is taken."""


class Writer(Protocol):
    """See `store.checkpoint.shard_file.ShardFileWriter`."""

    def write(self, buffer: Buffer, used: int, sections: Sections) -> object:
        """Append a buffer of sections."""

    def close(self) -> Any:
        """Complete the file; returns its entry in `Saved`, after `to_dict`."""

    def abandon(self) -> None:
        """Remove the file, unless it is closed."""


class OpenCheckpoint(Protocol):
    """A checkpoint that is being restored."""

    def batches(self, fragments: NDArray[np.uint32]) -> Iterator[Batch]:
        """All sections of these fragments, compared with their checksums."""


class ServerFiles(Protocol):
    """See `checkpoint_io.ServerCheckpointFiles`."""

    def check_folder(self, folder: str, cluster_id: int) -> None:
        """Refuse a folder that is not the one that the master made."""

    def create(self, folder: str, names: Sequence[str], number: int) -> Sequence[Writer]:
        """Make all files in the folder of a checkpoint, or none."""

    def buffer(self, length: int) -> Buffer:
        """A buffer to be written."""

    def open(self, folder: str, number: int) -> OpenCheckpoint:
        """Open a checkpoint to restore it."""
