"""Checkpoints at a server: helper threads write what shards copy out, and read it back.

    Save -> CheckpointSave: shard.copy_fragments -> buffer -> ShardFileWriter      -> Saved
    Load -> CheckpointLoad: ShardFile -> section, checked -> shard.put_section    -> Loaded

The shard's thread only copies whole fragments, some ms at a time, between requests; the helpers
compute checksums and write.  Must not know jobs: the master decides when and what to save.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from snailps.errors import CheckpointError, SnailError, explain
from snailps.node.limits import STOP_S
from snailps.shard.shard import FragmentCursor
from snailps.shard.shard_thread import ShardThread
from snailps.store.checkpoint.folder import BEGUN, open_checkpoint
from snailps.store.checkpoint.shard_file import (
    BATCH_BYTES,
    FileEntry,
    ShardFile,
    ShardFileWriter,
    new_buffer,
)
from snailps.transport import messages

log = logging.getLogger(__name__)

LANES = 2
"""Helper threads per shard: while one's buffer is filled, another's is checksummed or written."""
REST = 1.0
"""After a write, a lane sleeps for this multiple of its duration, to leave the CPU to training.

Two lanes then keep one write in flight on average: enough for one disk.  Measured with fastText and
4 GB: a factor of a quarter gave 1.1 of the disk's speed and 0.72 of the words/s, this one 0.8 and
0.84.
"""
CLOCK_S = 0.002
"""How often a lane polls whether its shard has reached the clock to be saved."""


class _Stopped(Exception):
    """Cancelled."""


class _Work:
    """A thread that runs work in further threads, and can be stopped."""

    def __init__(self, shards: Sequence[ShardThread]) -> None:
        self.shards = list(shards)
        self.done_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snailps-checkpoint", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def stop(self, limit_s: float = STOP_S) -> None:
        """Cancels the work and waits up to `limit_s` seconds for its end."""
        self._stopped.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        raise NotImplementedError

    def _each(self, works: Sequence[Callable[[], None]]) -> None:
        """Runs all in threads; the first one's error stops the others and is raised."""
        errors: list[BaseException] = []

        def guarded(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                self._stopped.set()

        threads = [
            threading.Thread(target=guarded, args=(work,), name="snailps-lane", daemon=True)
            for work in works
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next((e for e in errors if not isinstance(e, _Stopped)), errors[0])

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _Stopped


class _File:
    """The file of one shard, and a cursor from which its lanes take the next fragments.

    Parameters
    ----------
    shard : ShardThread
    writer : ShardFileWriter
    """

    def __init__(self, shard: ShardThread, writer: ShardFileWriter) -> None:
        self.shard, self.writer = shard, writer
        self.cursor = FragmentCursor(shard.fragments())


class CheckpointSave(_Work):
    """Writes the fragments of a server's shards into the folder of a checkpoint.

    Parameters
    ----------
    shards : sequence of ShardThread
    order : messages.Save
    life, node, frag_num : int
        Of the cluster, of this server, of the keys.
    tell : callable
        Called with the `Saved`, from another thread.
    """

    def __init__(
        self,
        shards: Sequence[ShardThread],
        order: messages.Save,
        *,
        life: int,
        node: int,
        frag_num: int,
        tell: Callable[[messages.Saved], None],
    ) -> None:
        super().__init__(shards)
        self.number, self._folder, self._clock = order.number, Path(order.folder), order.clock
        self._life, self._node, self._frag_num, self._tell = life, node, frag_num, tell

    @staticmethod
    def check_folder(order: messages.Save, life: int) -> None:
        """Refuses a folder that is not the one that the master made.

        Raises
        ------
        CheckpointError
            It is missing, or another folder of the same name.
        """
        try:
            found = (Path(order.folder) / BEGUN).read_text().strip()
        except OSError as error:
            raise CheckpointError(
                f"{order.folder}: not visible from here ({error.strerror}): checkpoint_dir must "
                "be on a disk that the master and all servers share, under the same path"
            ) from None
        if found != f"{life:016x}":
            raise CheckpointError(
                f"{order.folder}: not the folder that the master made: checkpoint_dir must be on a "
                "disk that the master and all servers share"
            )

    def _run(self) -> None:
        try:
            files = [entry.to_dict() for entry in self._save()]
            self._tell(messages.Saved(self.number, files))
        except _Stopped:
            self._tell(messages.Saved(self.number, [], "told to stop"))
        except Exception as error:
            if not isinstance(error, SnailError):
                log.exception("checkpoint %d failed", self.number)
            self._tell(messages.Saved(self.number, [], explain(error)))

    def _save(self) -> list[FileEntry]:
        files: list[_File] = []
        try:
            for index, shard in enumerate(self.shards):
                path = self._folder / f"server-{self._node}-shard-{index}.rows"
                writer = ShardFileWriter(path, self._life, self.number, self._frag_num)
                files.append(_File(shard, writer))
            self._each([lambda file=file: self._write(file) for file in files * LANES])  # type: ignore[misc]
            entries = [file.writer.close() for file in files]
            self._check()  # a cancelled save must not report files, however late it ends
            return entries
        except BaseException:
            for file in files:
                file.writer.abandon()
            if self._clock >= 0:
                for shard in self.shards:
                    shard.thaw()
            raise

    def _write(self, file: _File) -> None:
        """One lane: has a buffer of fragments copied, then writes them."""
        buffer = new_buffer(BATCH_BYTES)
        while self._clock >= 0 and file.shard.clock() < self._clock:
            self._check()
            self._stopped.wait(CLOCK_S)
        while True:
            self._check()
            used, sections = file.shard.copy_next(file.cursor, buffer)
            if used == 0:
                if self._clock >= 0:  # all is copied, though not yet written
                    file.shard.thaw()
                return
            if not sections:  # the next fragment is larger than the buffer
                buffer = new_buffer(used)
                continue
            begin = time.monotonic()
            file.writer.put(file.writer.reserve(used), buffer, used, sections)
            self.done_bytes += used
            self._stopped.wait(REST * (time.monotonic() - begin))


class CheckpointLoad(_Work):
    """Restores the fragments of a server's shards from a checkpoint.

    Parameters
    ----------
    shards : sequence of ShardThread
    order : messages.Load
    life, frag_num : int
        Of the cluster, of the keys.
    tell : callable
        Called with the `Loaded`, from another thread.
    """

    def __init__(
        self,
        shards: Sequence[ShardThread],
        order: messages.Load,
        *,
        life: int,
        frag_num: int,
        tell: Callable[[messages.Loaded], None],
    ) -> None:
        super().__init__(shards)
        self._number, self._folder = order.number, Path(order.folder)
        self._tables = {int(theirs): int(ours) for theirs, ours in order.tables}
        self._life, self._frag_num, self._tell = life, frag_num, tell
        self._rows = 0

    def _run(self) -> None:
        try:
            self._load()
            self._tell(messages.Loaded(self._number, self._rows))
        except _Stopped:
            self._tell(messages.Loaded(self._number, 0, "told to stop"))
        except Exception as error:
            if not isinstance(error, SnailError):
                log.exception("loading of checkpoint %d failed", self._number)
            self._tell(messages.Loaded(self._number, 0, explain(error)))

    def _load(self) -> None:
        manifest, files = open_checkpoint(self._folder)
        if (manifest.number, manifest.frag_num) != (self._number, self._frag_num):
            raise CheckpointError(
                f"{self._folder}: checkpoint {manifest.number} of {manifest.frag_num} fragments, "
                f"expected {self._number} of {self._frag_num}"
            )
        # Marks belong to incarnations, which are unique within one life of a cluster only.
        marks = manifest.life == self._life
        self._each(
            [lambda s=shard: self._take(s, files, self._tables, marks) for shard in self.shards]  # type: ignore[misc]
        )

    def _take(
        self, shard: ShardThread, files: list[ShardFile], tables: Mapping[int, int], marks: bool
    ) -> None:
        owned = np.zeros(self._frag_num, np.bool_)
        owned[shard.fragments()] = True
        for file in files:
            for _, section in file.sections(owned):
                self._check()
                self._rows += shard.put_section(section, tables, marks)
                self.done_bytes += len(section)
