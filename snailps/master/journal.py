"""Owns the master's journal: a write-ahead log of facts, from which another master continues.

    note(kind, data) -> line: checksum, JSON -> file       thread: fdatasync, a few times a second
    compact(state of the job) -> a new file in place of the old one, beside the loop, at any time
    take, read -> facts of an unended run -> Membership, JobRecovery (they replay what they noted)

    facts       cluster, facts that stay true, the job's state if there is one, "begun", facts since
    cluster     the first line of `facts` once more: one bad sector does not take both
    base        the snapshot at which the training begins, after its checksum
    state-N     arrays of the job's state that `facts` names with their checksum

Owns a folder, the order of facts and their safety on disk. Must not know what a fact means, or
connections.

What is promised. A fact is with the kernel when `note` returns, so the death of the process loses
none, and a power cut only the last `SYNC_S` or so. A power cut leaves a file that ends within a
record, or in zeros: `read` drops that end, and nodes report again what it said. Any other damage
`read` refuses, and changes nothing. A journal that cannot be written any more is given up at once
and removed under its name: a master that replayed one with a gap would give orders twice. Every
`AGAIN_S` a compaction writes all of it anew, so it is kept again once its disk has room.

Two threads beside the loop: one syncs, one compacts. `_guard` decides which file gets a fact.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.earlier_names import FIRST_FACT, JOURNAL_COPY
from snailps.errors import FULL, ClusterError
from snailps.master.effects import Fact, Snapshot
from snailps.node.status import EVENTS_MAX
from snailps.store.checkpoint._crc32c import crc32c
from snailps.store.checkpoint.disk import OS_DISK, sync_folder
from snailps.store.checkpoint.lock import LOCK, FolderTaken, take_folder

log = logging.getLogger(__name__)

FACTS, CLUSTER, BASE, STATE = "facts", "cluster", "base", "state-"
GIVEN_UP = "facts.given-up"
"""Name of facts that end before the run did: no master takes over from these."""
SYNC_S = 0.2
"""Pause between two fdatasyncs, each of which may take longer."""
GROWN_BYTES = 8 << 20
"""Bytes of facts after which a compaction pays: 80,000 facts, a second of replaying."""
GROWN_SHARE = 4
"""A large state is written again only after facts of at least this part of its size."""
AGAIN_S = 10.0
"""Seconds between two tries to keep a journal again that could not be written."""
SAID_TRIES = 6
"""Tries of which one is logged: once a minute."""
LAST_S = 10.0
"""Seconds that the end waits for a compaction under way."""

_NEWEST = {"numbers", "route", "load"}
"""Kinds of which only the newest fact counts: compaction drops the others."""
_NEWEST_FEW = {"event": EVENTS_MAX, "job": 16, "ended": 16, "shared": 1, "restores": 1}
"""Kinds of which only this many of the newest facts count."""
_IN_STATE = {
    "begun", "state", "shards", "done", "durable", "durable_all", "join", "leave", "retire", "loss",
    "clocks", "tick", "early", "close", "look", "round", "chunk",
    "checkouts", "spent", "tested", "driver", "drivers_gone",
}  # fmt: skip
"""Kinds that lead to the state of a job, or to a session's drivers: a `Snapshot` replaces them."""


BEGUN = Fact("begun", {})
"""Ends the facts with which a file begins. A file gets the journal's name when it is complete and
synced, so one that lacks this is damaged."""


class Damaged(Exception):
    """A file differs from what was written; the text names the place."""


def encode(fact: Fact) -> bytes:
    """A fact as a line: CRC-32C of the rest in hex, a space, JSON in ASCII."""
    text = json.dumps([fact.kind, fact.data], separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def decode(data: bytes, start: int = 0) -> tuple[list[Fact], int]:
    """The facts of a file from byte `start` on, and the offset after the last complete one.

    The rest was being written when the machine stopped. It may be the last record alone: where
    another one follows, the disk has lost or changed bytes, and `Damaged` is raised.
    """
    facts: list[Fact] = []
    good = start
    while (end := data.find(b"\n", good)) >= 0:
        fact = _fact(data[good:end])
        if fact is None:
            break
        facts.append(fact)
        good = end + 1
    tail = data[good:].rstrip(b"\0")  # after a power cut a file may have its length, not its bytes
    if b"\n" in tail:
        later = sum(_fact(line) is not None for line in tail.split(b"\n")[1:])
        raise Damaged(
            f"the record at byte {good:,} of {len(data):,} does not fit its checksum; "
            + (f"{later:,} records after it do" if later else "nothing after it does")
        )
    fact = _fact(tail) or _fact(tail[:-1])  # all but its newline, or another byte in its place
    return (facts if fact is None else [*facts, fact]), good


def _fact(line: bytes) -> Fact | None:
    """Inverse of `encode`, without the newline; None: not a whole record."""
    text = line[9:]
    if not text or line[:9] != b"%08x " % crc32c(text):
        return None
    try:
        kind, content = json.loads(text)
    except (RecursionError, TypeError, ValueError):  # written by no journal
        return None
    return Fact(kind, content)


class Journal:
    def __init__(self, path: Path | None) -> None:
        # its folder; None: no journal is kept, and every method does nothing
        self.path = path
        self._lock = self._file = -1
        self._dirty, self._closed = threading.Event(), threading.Event()
        self._syncer: threading.Thread | None = None
        # Guards the fields below that say which file gets facts, and these files, between the loop
        # and the compacting thread. Held for a write(2) at most, never for a sync: the loop waits.
        self._guard = threading.RLock()
        self._new = -1  # the file that is to replace the present one; it gets all facts, too
        self._replaced = False  # it has the name of the present one already
        self._new_failed = False  # it misses a fact: it must not become the present one
        # Facts since a snapshot that is being written: they follow it in the new file.
        self._since_snapshot: list[bytes] | None = None
        self._retired: list[int] = []  # replaced files; the syncer closes them, which may block
        self._lasting: dict[object, bytes] = {}  # lines with which every compacted file begins
        self._noted: Counter[str] = Counter()  # lasting facts by kind
        self._state: dict[str, Any] = {}  # file, size and checksum of the newest state's arrays
        self._grown = 0  # bytes of facts since the last state
        self._due = GROWN_BYTES  # `_grown` at which the next compaction begins
        self._compactor: threading.Thread | None = None
        self._given_up = False  # it could not be written, and may be kept again
        # Given up for good: no compaction has some fact, or the folder is not its own any more.
        self._is_over = False
        self._has_folder = True  # nobody has removed the folder, or moved it away
        self._base = b""  # a base that could not be written: the next compaction begins with it
        self._again_at, self._tries = 0.0, 0
        # What `read` found: the first record; the bytes to write at `_good`, where the last whole
        # record ends, before this master notes anything.
        self._first = self._mend = b""
        self._good = 0

    @property
    def kept(self) -> bool:
        """Whether facts are kept, so that another master could continue."""
        return self._file >= 0

    # --- an earlier run ------------------------------------------------------------------------

    def take(self) -> bool:
        """Lock the folder; whether it has a journal. ClusterError if another process holds it."""
        if self.path is None:
            return False
        try:
            self._lock = take_folder(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.rmdir()  # unless there is something in it
            raise self._error(error) from None
        except FolderTaken as taken:
            raise ClusterError(
                f"{self.path}: another master keeps its journal here ({taken}). Wait until it "
                "ends, or end it if it hangs; or choose another output or journal_dir"
            ) from None
        return any((self.path / name).exists() for name in (FACTS, CLUSTER, JOURNAL_COPY))

    def read(self) -> list[Fact]:
        """The facts of an unfinished run, if any. Changes nothing: after a ClusterError, which
        names the damage and its cure, the user still has all files."""
        if self.path is None:
            return []
        facts, copy = self._content(FACTS), self._content(CLUSTER)
        if copy is None:
            copy = self._content(JOURNAL_COPY)
        if facts is None and copy is None:
            if (self.path / GIVEN_UP).exists():
                log.warning(
                    "%s: the journal of the previous run could not be written to its end: a new "
                    "run begins, and processes left of the previous one are refused", self.path,
                )  # fmt: skip
            return []
        if facts is None:
            raise self._damaged(FACTS, f"it is missing, and {CLUSTER} says that there is a run")
        first = facts[: facts.find(b"\n") + 1]
        intact = [line for line in (first, copy) if line and self._is_first(line)]
        if not intact:
            raise self._damaged(
                FACTS,
                f"neither its first record nor the copy of that, {CLUSTER}, fits its checksum",
            )
        if intact[-1] != intact[0]:
            raise self._damaged(
                FACTS, f"its first record is of another run than the copy of it, {CLUSTER}"
            )
        self._first = intact[0]
        try:
            read, self._good = decode(facts, len(self._first))
        except Damaged as error:
            raise self._damaged(FACTS, str(error)) from None
        if BEGUN not in read:
            raise self._damaged(FACTS, f"its beginning is incomplete, {len(facts):,} bytes")
        # A last record that lacks only its newline counts: it is written again, whole.
        lines = facts[len(self._first) : self._good].count(b"\n")
        self._mend = b"".join(encode(fact) for fact in read[lines:])
        if self._good < len(facts) and not self._mend:
            log.warning(
                "%s: incomplete from byte %s on, as after a power cut: the last %s bytes are "
                "dropped. What they recorded is asked of the nodes, or done again",
                self.path / FACTS, f"{self._good:,}", f"{len(facts) - self._good:,}",
            )  # fmt: skip
        for fact in read:
            line = encode(fact)
            self._remember(fact, line)
            self._grown = 0 if fact == BEGUN else self._grown + len(line)
        state = [fact.data for fact in read if fact.kind == "state"]
        if state:
            self._state = state[-1]["file"]
            self._due = max(GROWN_BYTES, int(self._state["bytes"]) // GROWN_SHARE)
        return [*decode(self._first)[0], *read]

    def go_on(self, facts: Iterable[Fact] = ()) -> None:
        """Continue after the facts that were read, with these; synced to disk on return."""
        if self.path is None:
            return
        try:
            file = os.open(self.path / FACTS, os.O_RDWR | os.O_CLOEXEC)
            if os.pread(file, len(self._first), 0) != self._first:
                log.warning(
                    "%s: its first record was damaged; its copy, %s, has it",
                    self.path / FACTS,
                    CLUSTER,
                )
                os.pwrite(file, self._first, 0)
            os.ftruncate(file, self._good)
            os.lseek(file, 0, os.SEEK_END)
            for fact in facts:
                self._remember(fact, line := encode(fact))
                self._mend += line
            write_all(file, self._mend)
            os.fsync(file)
            self._keep_first()
        except OSError as error:
            raise self._error(error) from None
        self._tidy()
        self._go(file)

    # --- this run ------------------------------------------------------------------------------

    def begin(self, facts: Sequence[Fact]) -> None:
        """Begin a journal with these facts, the first of which names the cluster; synced to disk on
        return. What an earlier run left goes."""
        if self.path is None:
            return
        lines = [encode(fact) for fact in facts]
        self._first, self._lasting, self._state, self._grown = lines[0], {}, {}, 0
        for fact, line in zip(facts[1:], lines[1:], strict=True):
            self._remember(fact, line)
        part = self.path / f"{FACTS}.part"
        try:
            for name in (CLUSTER, JOURNAL_COPY):  # at no moment are there two that differ
                (self.path / name).unlink(missing_ok=True)
            self._sync_folder()
            file = create_file(part)
            write_all(file, b"".join([*lines, encode(BEGUN)]))
            os.fsync(file)
            part.replace(self.path / FACTS)
            self._sync_folder()
            self._keep_first()
        except OSError as error:
            raise self._error(error) from None
        self._tidy()
        self._go(file)

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """Add a fact, from the master's loop: a write(2), some microseconds. If it fails the job
        goes on without a journal (`_give_up`)."""
        if not self._is_in_use:
            return
        fact = Fact(kind, data)
        try:
            line = encode(fact)
        except (TypeError, ValueError, RecursionError) as error:
            with self._guard:
                self._is_over = True
                self._give_up(error)
            return
        with self._guard:
            if not self._is_in_use:
                return
            self._remember(fact, line)
            self._grown += len(line)
            if self._file >= 0:
                try:
                    write_all(self._file, line)
                except OSError as error:
                    self._give_up(error)
            # During a compaction a fact goes to both files, as either may turn out to be the
            # journal: first to a list, as the new file does not have its snapshot yet.
            if self._since_snapshot is not None:
                self._since_snapshot.append(line)
            elif self._new >= 0:
                try:
                    write_all(self._new, line)
                except OSError as error:
                    self._new_failed = True
                    if self._replaced:  # it is the journal already, by name
                        self._give_up(error)
        self._dirty.set()

    def sync(self) -> None:
        """Have all facts so far on disk; blocks, from any thread. Without a working disk the
        journal is given up, and the caller goes on."""
        with self._guard:
            files = [(file, os.dup(file)) for file in (self._file, self._new) if file >= 0]
        for file, open_file in files:  # the syncer may close what a compaction replaces
            try:
                os.fdatasync(open_file)
            except OSError as error:
                self._not_synced(file, error)
            finally:
                os.close(open_file)

    def keep_base(self, data: bytes) -> None:
        """Keep the snapshot at which the training begins, synced to disk; from any thread."""
        if self.path is None or not self._is_in_use:
            return
        data = b"%08x %016x\n" % (crc32c(data), len(data)) + data
        try:
            self._put(BASE, data)
            self._base = b""
        except OSError as error:
            with self._guard:
                self._base = data
                self._give_up(error)

    def base(self) -> bytes:
        """The bytes given to `keep_base`; ClusterError if they are missing or damaged."""
        data = self._content(BASE)
        if data is None:
            raise self._damaged(BASE, "it is missing")
        if data[:26] != b"%08x %016x\n" % (crc32c(memoryview(data)[26:]), len(data) - 26):
            raise self._damaged(BASE, "it does not fit its length or its checksum")
        return data[26:]

    # --- compaction ----------------------------------------------------------------------------

    @property
    def is_long(self) -> bool:
        """Whether the journal has grown enough to `compact` it."""
        return self._file >= 0 and self._compactor is None and self._grown > self._due

    def is_to_be_kept_again(self, now: float) -> bool:
        """Whether to `compact` now, as the journal could not be written before; `now` is monotonic
        seconds."""
        idle = self._compactor is None and not (self._is_over or self._closed.is_set())
        if not (self._given_up and idle) or now < self._again_at:
            return False
        self._again_at = now + AGAIN_S
        return True

    @property
    def _is_in_use(self) -> bool:
        """Whether facts are noted: in the file, or to be kept again."""
        return self._file >= 0 or self._given_up

    def compact(self, snapshot: Snapshot) -> None:
        """Begin a new file that has this state of the job in place of the facts that led to it.

        From the master's loop, which does not wait: a thread writes the file. Facts noted meanwhile
        go to both files. The new one replaces the old by a rename, once it is complete and synced:
        at each moment one file by the name of the journal has everything.
        """
        with self._guard:
            if not self._is_in_use:
                return
            self._since_snapshot, self._replaced, self._new_failed = [], False, False
            lasting = [self._first, *self._lasting.values()]
        self._compactor = threading.Thread(
            target=self._compact, args=(lasting, snapshot), name="snailps-compact", daemon=True
        )
        try:
            self._compactor.start()
        except RuntimeError as error:  # no thread can start now
            with self._guard:
                self._since_snapshot = None
            self._compactor = None
            self._not_compacted(error)

    def check(self, facts: Iterable[Fact]) -> tuple[bytes, dict[str, NDArray[Any]]]:
        """The base and the arrays that these facts name, checksums compared; empty where they name
        none."""
        kinds = {fact.kind for fact in facts}
        base = self.base() if kinds & {"summary", "train"} else b""
        return base, self.state_arrays() if "state" in kinds else {}

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the newest state that was read; ClusterError if missing or damaged."""
        name, stated = self._state["name"], self._state["arrays"]
        data = self._content(name)
        if data is None:
            raise self._damaged(name, "it is missing")
        if [len(data), crc32c(data)] != [self._state["bytes"], self._state["crc32c"]]:
            raise self._damaged(name, "it does not fit its length or its checksum")
        arrays, offset = {}, 0
        for key, kind, count in stated:
            dtype = np.dtype([tuple(pair) for pair in kind] if isinstance(kind, list) else kind)
            arrays[key] = np.frombuffer(data, dtype, count, offset)
            offset += dtype.itemsize * count
        return arrays

    def _compact(self, lasting: list[bytes], snapshot: Snapshot) -> None:
        """The thread of `compact`. In this sequence, so that a death or a power cut at any point
        leaves either the old file or the new one, each complete:

        1. the arrays, synced: the new file names them
        2. the new file: lasting facts, state, facts since the snapshot; from here on `note` writes
           to both
        3. sync, rename, sync of the folder: now the new file is the journal
        4. facts go to the new file alone; the old arrays are removed
        """
        assert self.path is not None
        part, file, old = self.path / f"{FACTS}.part", -1, self._state.get("name", "")
        name = f"{STATE}{int(old.removeprefix(STATE) or 0) + 1}"
        try:
            if self._base:
                self._put(BASE, self._base)
                self._base = b""
            state = {"name": name, **self._write_state(self.path / name, snapshot.arrays)}
            fact = Fact("state", {"file": state, **snapshot.state})
            lines = [*lasting, *map(encode, [fact, *snapshot.facts]), encode(BEGUN)]
            file = create_file(part)
            write_all(file, b"".join(lines))
            os.fsync(file)
            with self._guard:
                self._check_wanted()
                assert self._since_snapshot is not None
                later = b"".join(self._since_snapshot)
                write_all(file, later)
                self._since_snapshot, self._new = None, file
            os.fsync(file)
            self._sync_folder()  # the state's file is in it before the facts that name it are
            self._replace(part)
            # Until this a power cut may bring the old file back, so it gets all facts until then.
            self._sync_folder()
            with self._guard:
                if self._new_failed or self._closed.is_set():
                    return
                if self._file >= 0:
                    self._retired.append(self._file)
                again, self._given_up = self._given_up, False
                self._file, self._new, file = file, -1, -1
                self._state, written = state, sum(map(len, lines)) + state["bytes"]
                self._grown = len(later)
                self._due = max(GROWN_BYTES, written // GROWN_SHARE)
            if again:
                self._keep_first()
                self._tries = 0
                log.warning("%s: the journal is kept again", self.path)
            with contextlib.suppress(OSError):
                (self.path / GIVEN_UP).unlink(missing_ok=True)
                if old:
                    (self.path / old).unlink(missing_ok=True)
        except Exception as error:
            with self._guard:
                if self._replaced:
                    # The old file, which gets the facts, has lost its name to the new one, which
                    # may not be on disk: neither can be relied on.
                    self._give_up(error)
            self._not_compacted(error)
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
                if not self._replaced:
                    (self.path / name).unlink(missing_ok=True)
        finally:
            with self._guard:
                self._since_snapshot, self._new = None, -1
            if file >= 0:
                _close(file)
            self._dirty.set()
            self._compactor = None

    def _not_compacted(self, error: Exception) -> None:
        self._due = self._grown + GROWN_BYTES
        if self._given_up:
            self._tries += 1
            if self._tries % SAID_TRIES == 0:
                log.warning("%s: still cannot be written: %s", self.path, why_of(error))
        if self._file >= 0 and not self._closed.is_set():
            log.warning(
                "%s: the journal cannot be compacted (%s): it keeps growing, and a takeover takes "
                "longer. Make room on its disk", self.path, why_of(error),
            )  # fmt: skip

    def _write_state(self, path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Write and sync the arrays of a state; returns their description for the facts."""
        checksum = 0
        file = create_file(path)
        try:
            for array in arrays.values():
                raw = np.ascontiguousarray(array).view(np.uint8)
                checksum = crc32c(raw, checksum)
                write_all(file, raw.data)
            os.fsync(file)
        finally:
            os.close(file)
        return {
            "bytes": sum(array.nbytes for array in arrays.values()),
            "crc32c": checksum,
            "arrays": [
                [key, array.dtype.descr if array.dtype.names else array.dtype.str, len(array)]
                for key, array in arrays.items()
            ],
        }

    def _check_wanted(self) -> None:
        if not self._is_in_use or self._new_failed or self._closed.is_set():
            raise OSError("the journal is no longer kept, or its disk is full")

    def _replace(self, part: Path) -> None:
        """Give the new file the name of the old one, which still gets all facts, too."""
        assert self.path is not None
        with self._guard:
            self._check_wanted()
            part.replace(self.path / FACTS)
            self._replaced = True

    # --- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """Remove the journal of a run that has ended and cannot be taken over."""
        self._check_names()
        self.close()
        if self.path is None or not self._has_folder:
            return
        with contextlib.suppress(OSError):
            # The copy of the first record goes first. If this process dies in between, facts
            # without the copy are a journal of a run that has stopped; a copy without facts would
            # be damage.
            for name in (CLUSTER, FACTS, BASE, LOCK):
                (self.path / name).unlink(missing_ok=True)
            self._tidy(all_=True)
            self.path.rmdir()

    def leave(self) -> None:
        """Stop writing, with all facts synced: another master takes over."""
        with self._guard, contextlib.suppress(OSError):  # the machine may end next, too
            if self._file >= 0:
                os.fdatasync(self._file)
        self.close()

    def release(self) -> None:
        """Unlock the folder of a process that could not begin; remove it unless it has a run."""
        if self.path is None or self._lock < 0:
            return
        if any(os.path.lexists(self.path / name) for name in (FACTS, CLUSTER, JOURNAL_COPY)):
            self.close()
        else:
            self.end()

    def close(self) -> None:
        """Stop writing, and unlock the folder last: the next master must find nobody at work in
        it. Idempotent."""
        self._closed.set()
        self._dirty.set()
        compactor = self._compactor
        if compactor is not None:
            compactor.join(LAST_S)
        if self._syncer is not None:
            self._syncer.join(SYNC_S)
        with self._guard:
            if self._file >= 0:
                file, self._file = self._file, -1
                try:
                    os.close(file)
                except OSError as error:  # some file systems report lost writes here
                    self._give_up(error)
            for descriptor in (self._lock, *self._retired):
                if descriptor >= 0:
                    _close(descriptor)
            self._lock = -1
            self._retired.clear()

    # --- how -----------------------------------------------------------------------------------

    def _go(self, file: int) -> None:
        self._file = file
        self._syncer = threading.Thread(target=self._sync, name="snailps-journal", daemon=True)
        self._syncer.start()

    def _remember(self, fact: Fact, line: bytes) -> None:
        """Keep the line of a fact that no snapshot has, for the compacted file."""
        if fact.kind in _IN_STATE:
            return
        self._noted[fact.kind] += 1
        number = 0 if fact.kind in _NEWEST else self._noted[fact.kind]
        self._lasting[fact.kind, number] = line
        if fact.kind in _NEWEST_FEW:
            self._lasting.pop((fact.kind, number - _NEWEST_FEW[fact.kind]), None)

    def _sync(self) -> None:
        while not self._closed.wait(SYNC_S):
            self._dirty.wait()
            self._dirty.clear()
            self.sync_files()

    def sync_files(self) -> None:
        """Sync the open files, and close those that were replaced."""
        self._check_names()
        with self._guard:
            files = [file for file in (self._file, self._new) if file >= 0]
            retired, self._retired = self._retired, []
        for file in files:
            try:
                os.fdatasync(file)
            except OSError as error:
                self._not_synced(file, error)
        for file in retired:
            _close(file)

    def _check_names(self) -> None:
        """Give the journal up if its files were removed or moved away under this master: writes to
        them succeed, and the next master would not find them."""
        with self._guard:
            if self.path is None or self._lock < 0:
                return
            if not is_named(self._lock, self.path / LOCK):
                # Whoever makes the folder anew can lock it, too, and what is there is then theirs.
                self._has_folder, self._is_over = False, True
            # Between the rename of a compaction and its end the new file has the name.
            newest = self._new if self._new >= 0 and self._replaced else self._file
            is_there = self._has_folder and is_named(newest, self.path / FACTS)
            if self._file >= 0 and not is_there:
                self._give_up(ClusterError("its files were removed or moved away"))

    def _not_synced(self, file: int, error: OSError) -> None:
        """A sync failed. The kernel has dropped the data, and reports success from now on: to try
        again would hide a gap."""
        with self._guard:
            if file == self._file or (file == self._new and self._replaced):
                self._give_up(error)
            elif file == self._new:
                self._new_failed = True

    def _put(self, name: str, data: bytes) -> None:
        """Write a file so that a death or power cut leaves it complete, absent, or as it was."""
        assert self.path is not None
        part = self.path / f"{name}.part"
        file = create_file(part)
        try:
            write_all(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        part.replace(self.path / name)
        self._sync_folder()

    def _keep_first(self) -> None:
        if self._content(CLUSTER) != self._first:
            self._put(CLUSTER, self._first)

    def _is_first(self, line: bytes) -> bool:
        fact = _fact(line[:-1])
        return fact is not None and fact.kind in ("cluster", FIRST_FACT) and line[-1:] == b"\n"

    def _content(self, name: str) -> bytes | None:
        assert self.path is not None
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error) from None

    def _tidy(self, *, all_: bool = False) -> None:
        """Remove what a dead master left incomplete, and old states; `all_`: every state."""
        assert self.path is not None
        present = "" if all_ else self._state.get("name", "")
        with contextlib.suppress(OSError):
            for file in self.path.iterdir():
                stale = file.name.startswith(STATE) and file.name != present
                if stale or file.suffix == ".part" or file.name in (GIVEN_UP, JOURNAL_COPY):
                    file.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        assert self.path is not None
        sync_folder(OS_DISK, self.path)

    def _give_up(self, error: Exception) -> None:
        """Stop writing, and take the journal's name away: a master that replayed one with a gap
        would repeat orders. The job goes on; the process reports `JournalFailed` to the core."""
        assert self.path is not None
        text = "" if self._is_over else f". It is tried again every {AGAIN_S:.0f} s: make room"
        if not self._given_up:
            log.error(
                "%s: THE JOURNAL CANNOT BE WRITTEN (%s): the job goes on, but ends if this master "
                "dies%s", self.path, why_of(error), text,
            )  # fmt: skip
        self._given_up = self._new_failed = True
        if self._has_folder:
            with contextlib.suppress(OSError):
                (self.path / CLUSTER).unlink(missing_ok=True)
                (self.path / FACTS).replace(self.path / GIVEN_UP)
        file, self._file = self._file, -1
        if file >= 0:
            _close(file)

    def _damaged(self, name: str, why: str) -> ClusterError:
        assert self.path is not None
        return ClusterError(
            f"{self.path / name} is damaged: {why}. Nothing was changed or begun; servers and "
            "workers of the run wait for a master for master_time_out. Restore the file from a "
            f"copy and start again: the run goes on. Or move {self.path} away: the same command "
            "then continues from the newest checkpoint, if there is one. Or start over with --fresh"
        )

    def _error(self, error: OSError) -> ClusterError:
        assert self.path is not None
        advice = "Choose another journal_dir"
        if error.errno in FULL:
            advice = "Make room on its disk, or choose another journal_dir"
        if any(os.path.lexists(self.path / name) for name in (FACTS, CLUSTER)):
            # Another journal_dir would begin a new run, and the rows of this one would be lost.
            mend = "Make room on its disk" if error.errno in FULL else "Mend its folder"
            advice = f"{mend}, and start again: the run goes on"
        why = error.strerror or error
        return ClusterError(f"{self.path}: the master's journal cannot be used: {why}. {advice}")


def is_named(file: int, path: Path) -> bool:
    """Whether an open file still has this name; True also if that cannot be said now."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def why_of(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def create_file(path: Path) -> int:
    """Create a file that only this user can read: it names the user's files, and hosts."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _close(file: int) -> None:
    """Close a file that nothing relies on any more."""
    with contextlib.suppress(OSError):
        os.close(file)


def write_all(file: int, data: bytes | memoryview) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[os.write(file, unwritten) :]
