"""The master's journal: what it must know again if it dies, as a file of facts that only grows.

    note(kind, data) -> line: checksum, JSON -> file       thread: fdatasync, a few times a second
    take -> lines of an unended run -> Facts -> Members, Course (they replay what they noted)

It owns a folder, the order of facts and their safety on disk; what a fact means is known to who
notes it.  No connections here.

Notes
-----
A fact is with the kernel when `note` returns: the death of the process loses none.  The death of
the machine loses what the last `SYNC_S` seconds or so brought, and what lies behind that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snailps.errors import ClusterError
from snailps.store._crc32c import crc32c
from snailps.store.lock import FolderTaken, take_folder

log = logging.getLogger(__name__)

FACTS, BASE = "facts", "base.npz"
SYNC_S = 0.2
"""Pause between two fdatasyncs; each may take as long as the disk likes."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened.

    Attributes
    ----------
    kind : str
        A word: who replays it looks at this first.
    data : dict
        As it was given to `note`, after a way through JSON.
    """

    kind: str
    data: dict[str, Any]


def encode(fact: Fact) -> bytes:
    """A fact as a line: CRC-32C of the rest in hex, a space, JSON in ASCII."""
    text = json.dumps([fact.kind, fact.data], separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def decode(data: bytes) -> tuple[list[Fact], int]:
    """The facts of a file, and how many bytes of it are whole: the rest is damaged, or half."""
    facts: list[Fact] = []
    good = 0
    while (end := data.find(b"\n", good)) >= 0:
        text = data[good + 9 : end]
        if data[good : good + 9] != b"%08x " % crc32c(text):
            break
        kind, content = json.loads(text)
        facts.append(Fact(kind, content))
        good = end + 1
    return facts, good


class Journal:
    """The journal of one run.

    Parameters
    ----------
    path : Path or None
        Its folder; None: nothing is kept, and every call does nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = self._file = -1
        self._dirty, self._closed = threading.Event(), threading.Event()
        self._syncer: threading.Thread | None = None

    @property
    def kept(self) -> bool:
        """Whether facts are kept: the master can be started again."""
        return self._file >= 0

    def take(self) -> list[Fact]:
        """Keeps the folder for this process; the facts of a run that has not ended, if there are.

        Raises
        ------
        ClusterError
            Another process has it, or it cannot be used.
        """
        if self.path is None:
            return []
        try:
            self._lock = take_folder(self.path)
            data = (self.path / FACTS).read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error(error) from None
        except FolderTaken as taken:
            raise ClusterError(
                f"{self.path}: another master keeps its journal here ({taken}): wait for its end, "
                "or, if it hangs, end it; or choose another output or journal_dir"
            ) from None
        facts, good = decode(data)
        if good < len(data):
            log.warning(
                "%s: damaged from byte %s on: the last %s bytes are cut off; what they told is "
                "asked of the nodes, or done again",
                self.path / FACTS, f"{good:,}", f"{len(data) - good:,}",
            )  # fmt: skip
        return facts

    def begin(self, facts: Iterable[Fact]) -> None:
        """Begins the file anew with these facts, all of it safe on disk, and goes on behind them.

        Raises
        ------
        ClusterError
            It cannot be written.
        """
        if self.path is None:
            return
        part = self.path / f"{FACTS}.part"
        try:
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            _write(file, b"".join(encode(fact) for fact in facts))
            os.fsync(file)
            part.replace(self.path / FACTS)
            self._sync_folder()
        except OSError as error:
            raise self._error(error) from None
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        if self._syncer is None:
            self._syncer = threading.Thread(target=self._sync, name="snailps-journal", daemon=True)
            self._syncer.start()

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """Adds a fact.  Of the master's loop; costs some microseconds."""
        if self._file < 0:
            return
        try:
            _write(self._file, encode(Fact(kind, data)))
        except OSError as error:
            self._give_up(error)
        self._dirty.set()

    def keep_base(self, data: bytes) -> None:
        """Keeps the position at which the training begins, safe on disk.  From any thread.

        Raises
        ------
        ClusterError
            It cannot be written.
        """
        if self.path is None or self._file < 0:
            return
        part = self.path / f"{BASE}.part"
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path / BASE)
            self._sync_folder()
        except OSError as error:
            raise self._error(error) from None

    def base(self) -> bytes:
        """What `keep_base` was given.

        Raises
        ------
        ClusterError
            It is not there.
        """
        assert self.path is not None
        try:
            return (self.path / BASE).read_bytes()
        except OSError as error:
            raise self._error(error) from None

    def end(self) -> None:
        """The run has ended: nobody is to take it over.  Removes the journal."""
        self.close()
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            for name in (FACTS, BASE, f"{FACTS}.part", f"{BASE}.part", "lock"):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def close(self) -> None:
        """Writes no more and lets go of the folder; twice is harmless."""
        self._closed.set()
        self._dirty.set()
        if self._syncer is not None:
            self._syncer.join(SYNC_S)
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _sync(self) -> None:
        while not self._closed.wait(SYNC_S):
            self._dirty.wait()
            self._dirty.clear()
            with contextlib.suppress(OSError):  # `note` is told of a full disk, too
                os.fdatasync(self._file)

    def _sync_folder(self) -> None:
        assert self.path is not None
        with contextlib.suppress(OSError):  # some file systems refuse this
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _give_up(self, error: OSError) -> None:
        """A journal with a gap is worse than none: whoever took it over would do things twice."""
        assert self.path is not None
        log.error(
            "%s: THE JOURNAL CANNOT BE WRITTEN (%s): the job goes on, but ends if this master dies",
            self.path, error.strerror or error,
        )  # fmt: skip
        with contextlib.suppress(OSError):
            (self.path / FACTS).unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1

    def _error(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"{self.path}: the master's journal cannot be used: {error.strerror or error}. Choose "
            "another journal_dir"
        )


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
