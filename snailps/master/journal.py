"""The master's journal: what it must know again if it dies, as a file of facts that only grows.

    note(kind, data) -> line: checksum, JSON -> file       thread: fdatasync, a few times a second
    compact(state of the job) -> a new file in place of the old one, beside the loop, at any time
    take, read -> facts of an unended run -> Membership, JobRecovery (they replay what they noted)

It owns a folder, the order of facts and their safety on disk; what a fact means is known to the
module that notes it.  No connections here.

    facts       life, facts that stay true, the job's state if there is one, "begun", facts since
    life        the first line of `facts` once more: one bad sector does not take both
    base        the snapshot at which the training begins, behind its checksum
    state-N     arrays of the job's state that `facts` names with their checksum

Notes
-----
A fact is with the kernel when `note` returns: the death of the process loses none.  The death of
the machine loses what the last `SYNC_S` seconds or so brought, and what lies behind that.

A power cut leaves a file that ends in the middle of a record, or in zeros.  Anything else that does
not fit its checksum is damage: `read` refuses it and changes nothing.
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

from snailps.errors import ClusterError
from snailps.master.effects import Fact, Snapshot
from snailps.node.status import EVENTS_MAX
from snailps.store.checkpoint._crc32c import crc32c
from snailps.store.checkpoint.disk import OS_DISK, sync_folder
from snailps.store.checkpoint.lock import LOCK, FolderTaken, take_folder

log = logging.getLogger(__name__)

FACTS, LIFE, BASE, STATE = "facts", "life", "base", "state-"
GIVEN_UP = "facts.given-up"
"""The name of facts with a gap behind them: from these no master goes on."""
SYNC_S = 0.2
"""Pause between two fdatasyncs; each may take as long as the disk likes."""
GROWN_BYTES = 8 << 20
"""So much behind the last state is worth another one: 80,000 facts, a second of replaying."""
GROWN_SHARE = 4
"""Where the state is large: it is not written again for less than this part of its size."""
LAST_S = 10.0
"""How long the end waits for a compaction that is under way, seconds."""

_NEWEST = {"numbers", "route"}
"""Kinds of which the newest fact says all."""
_NEWEST_FEW = {"event": EVENTS_MAX}
"""Kinds of which so many of the newest facts say all."""
_IN_STATE = {
    "begun", "state", "shards", "done", "settled", "settled_all", "join", "leave", "retire", "loss",
    "clocks", "tick", "early", "close", "look", "round", "chunk",
    "visits", "spent",
}  # fmt: skip
"""Kinds that a `Snapshot` replaces."""


BEGUN = Fact("begun", {})
"""Ends what was written at once: a file without it lacks something."""


class Damaged(Exception):
    """A file is not as it was written; the text says where."""


def encode(fact: Fact) -> bytes:
    """A fact as a line: CRC-32C of the rest in hex, a space, JSON in ASCII."""
    text = json.dumps([fact.kind, fact.data], separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def decode(data: bytes, start: int = 0) -> tuple[list[Fact], int]:
    """The facts of a file from a byte on, and where the last one ends that has its newline.

    What lies behind that is a record that was being written when the machine stopped.

    Raises
    ------
    Damaged
        A record is not as it was written, and it is not the last one, or it is complete.
    """
    facts: list[Fact] = []
    good = start
    while (end := data.find(b"\n", good)) >= 0:
        fact = _fact(data[good:end])
        if fact is None:
            break
        facts.append(fact)
        good = end + 1
    rest = data[good:].rstrip(b"\0")  # a file may have got its length, and not its bytes
    if b"\n" in rest:
        behind = sum(_fact(line) is not None for line in rest.split(b"\n")[1:])
        raise Damaged(
            f"the record at byte {good:,} of {len(data):,} does not fit its checksum; "
            + (f"{behind:,} records behind it do" if behind else "nothing behind it does")
        )
    fact = _fact(rest) or _fact(rest[:-1])  # all but its newline, or in place of that another byte
    return (facts if fact is None else [*facts, fact]), good


def _fact(line: bytes) -> Fact | None:
    text = line[9:]
    if not text or line[:9] != b"%08x " % crc32c(text):
        return None
    try:
        kind, content = json.loads(text)
    except (RecursionError, TypeError, ValueError):  # written by no journal
        return None
    return Fact(kind, content)


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
        # Of the loop, and of the thread that compacts: which file gets facts, and what it has.
        self._guard = threading.RLock()
        self._new = -1  # the file that is to take the place of the present one, and gets all, too
        self._replaced = False  # and has its name already
        self._new_failed = False
        self._behind: list[bytes] | None = None  # noted since a snapshot that is being written
        self._retired: list[int] = []  # files that the syncer closes
        self._lasting: dict[object, bytes] = {}  # lines that every compacted file begins with
        self._noted: Counter[str] = Counter()  # lasting facts by kind
        self._state: dict[str, Any] = {}  # where the arrays of the newest state are
        self._grown = 0  # bytes of facts since the last state
        self._due = GROWN_BYTES
        self._compactor: threading.Thread | None = None
        # As it was read: the first record, where its last whole one ends, what to write there.
        self._life = self._mend = b""
        self._good = 0

    @property
    def kept(self) -> bool:
        """Whether facts are kept: the master can be started again."""
        return self._file >= 0

    # --- an earlier run ------------------------------------------------------------------------

    def take(self) -> bool:
        """Keeps the folder for this process; whether there is a journal in it.

        Raises
        ------
        ClusterError
            Another process has it, or it cannot be used.
        """
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
                f"{self.path}: another master keeps its journal here ({taken}): wait for its end, "
                "or, if it hangs, end it; or choose another output or journal_dir"
            ) from None
        return any((self.path / name).exists() for name in (FACTS, LIFE))

    def read(self) -> list[Fact]:
        """The facts of a run that has not ended, if there are; changes nothing.

        Raises
        ------
        ClusterError
            It cannot be read, or is damaged: says where, and what can be done.
        """
        if self.path is None:
            return []
        facts, life = self._content(FACTS), self._content(LIFE)
        if facts is None and life is None:
            if (self.path / GIVEN_UP).exists():
                log.warning(
                    "%s: the journal of the run before could not be written to its end: a new run "
                    "begins, and what still lives of that one is told so", self.path,
                )  # fmt: skip
            return []
        if facts is None:
            raise self._damaged(FACTS, "it is missing, and life tells of a run")
        first = facts[: facts.find(b"\n") + 1]
        known = [line for line in (first, life) if line and self._is_life(line)]
        if not known:
            raise self._damaged(
                FACTS, "neither its first record nor the other copy of that, life, fits its sum"
            )
        if known[-1] != known[0]:
            raise self._damaged(FACTS, "it tells of another run than life, the copy of its begin")
        self._life = known[0]
        try:
            found, self._good = decode(facts, len(self._life))
        except Damaged as error:
            raise self._damaged(FACTS, str(error)) from None
        if BEGUN not in found:
            raise self._damaged(FACTS, f"its beginning is incomplete, {len(facts):,} bytes")
        lines = facts[len(self._life) : self._good].count(b"\n")
        self._mend = b"".join(encode(fact) for fact in found[lines:])
        if self._good < len(facts) and not self._mend:
            log.warning(
                "%s: damaged from byte %s on: the last %s bytes are cut off; what they told is "
                "asked of the nodes, or done again",
                self.path / FACTS, f"{self._good:,}", f"{len(facts) - self._good:,}",
            )  # fmt: skip
        for fact in found:
            line = encode(fact)
            self._remember(fact, line)
            self._grown = 0 if fact == BEGUN else self._grown + len(line)
        state = [fact.data for fact in found if fact.kind == "state"]
        if state:
            self._state = state[-1]["file"]
            self._due = max(GROWN_BYTES, int(self._state["bytes"]) // GROWN_SHARE)
        return [*decode(self._life)[0], *found]

    def go_on(self, facts: Iterable[Fact] = ()) -> None:
        """Goes on behind the facts that were read, with these; they are safe on disk then.

        Raises
        ------
        ClusterError
            It cannot be written.
        """
        if self.path is None:
            return
        try:
            file = os.open(self.path / FACTS, os.O_RDWR | os.O_CLOEXEC)
            if os.pread(file, len(self._life), 0) != self._life:
                log.warning("%s: its first record was damaged; life has it", self.path / FACTS)
                os.pwrite(file, self._life, 0)
            os.ftruncate(file, self._good)
            os.lseek(file, 0, os.SEEK_END)
            for fact in facts:
                self._remember(fact, line := encode(fact))
                self._mend += line
            _write(file, self._mend)
            os.fsync(file)
            self._keep_life()
        except OSError as error:
            raise self._error(error) from None
        self._tidy()
        self._go(file)

    # --- this run ------------------------------------------------------------------------------

    def begin(self, facts: Sequence[Fact]) -> None:
        """Begins with these facts, the first of which names the life; they are safe on disk then.

        Raises
        ------
        ClusterError
            It cannot be written.
        """
        if self.path is None:
            return
        lines = [encode(fact) for fact in facts]
        self._life, self._lasting, self._state, self._grown = lines[0], {}, {}, 0
        for fact, line in zip(facts[1:], lines[1:], strict=True):
            self._remember(fact, line)
        part = self.path / f"{FACTS}.part"
        try:
            (self.path / LIFE).unlink(missing_ok=True)  # no moment has two that differ
            self._sync_folder()
            file = _create(part)
            _write(file, b"".join([*lines, encode(BEGUN)]))
            os.fsync(file)
            part.replace(self.path / FACTS)
            self._sync_folder()
            self._keep_life()
        except OSError as error:
            raise self._error(error) from None
        self._tidy()
        self._go(file)

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """Adds a fact.  Of the master's loop; costs some microseconds."""
        if self._file < 0:
            return
        fact = Fact(kind, data)
        line = encode(fact)
        with self._guard:
            if self._file < 0:
                return
            self._remember(fact, line)
            self._grown += len(line)
            try:
                _write(self._file, line)
            except OSError as error:
                self._give_up(error)
                return
            if self._behind is not None:
                self._behind.append(line)
            elif self._new >= 0:
                try:
                    _write(self._new, line)
                except OSError as error:
                    self._new_failed = True
                    if self._replaced:
                        self._give_up(error)
        self._dirty.set()

    def keep_base(self, data: bytes) -> None:
        """Keeps the snapshot at which the training begins, safe on disk.  From any thread.

        Raises
        ------
        ClusterError
            It cannot be written.
        """
        if self.path is None or self._file < 0:
            return
        try:
            self._put(BASE, b"%08x %016x\n" % (crc32c(data), len(data)) + data)
        except OSError as error:
            raise self._error(error) from None

    def base(self) -> bytes:
        """What `keep_base` was given.

        Raises
        ------
        ClusterError
            It is not there, or damaged.
        """
        data = self._content(BASE)
        if data is None:
            raise self._damaged(BASE, "it is missing")
        if data[:26] != b"%08x %016x\n" % (crc32c(memoryview(data)[26:]), len(data) - 26):
            raise self._damaged(BASE, "it does not fit its length or its checksum")
        return data[26:]

    # --- compaction ----------------------------------------------------------------------------

    @property
    def is_long(self) -> bool:
        """Whether it has grown enough for a `compact`."""
        return self._file >= 0 and self._compactor is None and self._grown > self._due

    def compact(self, snapshot: Snapshot) -> None:
        """Begins to write a new file with this state of the job instead of the facts before.

        Of the master's loop, which goes on at once.  Facts noted meanwhile are in the old file; the
        new one takes its place when it is whole and safe on disk, and has these, too.
        """
        with self._guard:
            if self._file < 0:
                return
            self._behind, self._replaced, self._new_failed = [], False, False
            lasting = [self._life, *self._lasting.values()]
        self._compactor = threading.Thread(
            target=self._compact, args=(lasting, snapshot), name="snailps-compact", daemon=True
        )
        self._compactor.start()

    def check(self, facts: Iterable[Fact]) -> tuple[bytes, dict[str, NDArray[Any]]]:
        """What these facts, read before, refer to: the base, and the arrays of the state.

        Both are compared with their checksums; empty where the facts name none.

        Raises
        ------
        ClusterError
            One is not there, or damaged.
        """
        kinds = {fact.kind for fact in facts}
        base = self.base() if kinds & {"summary", "train"} else b""
        return base, self.state_arrays() if "state" in kinds else {}

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the newest state that was read.

        Raises
        ------
        ClusterError
            They are not there, or damaged.
        """
        name, stated = self._state["name"], self._state["arrays"]
        data = self._content(name)
        if data is None:
            raise self._damaged(name, "it is missing")
        if [len(data), crc32c(data)] != [self._state["bytes"], self._state["crc32c"]]:
            raise self._damaged(name, "it does not fit its length or its checksum")
        found, at = {}, 0
        for key, kind, count in stated:
            dtype = np.dtype([tuple(pair) for pair in kind] if isinstance(kind, list) else kind)
            found[key] = np.frombuffer(data, dtype, count, at)
            at += dtype.itemsize * count
        return found

    def _compact(self, lasting: list[bytes], snapshot: Snapshot) -> None:
        """The thread of `compact`."""
        assert self.path is not None
        part, file, old = self.path / f"{FACTS}.part", -1, self._state.get("name", "")
        name = f"{STATE}{int(old.removeprefix(STATE) or 0) + 1}"
        try:
            state = {"name": name, **self._write_state(self.path / name, snapshot.arrays)}
            fact = Fact("state", {"file": state, **snapshot.state})
            lines = [*lasting, *map(encode, [fact, *snapshot.facts]), encode(BEGUN)]
            file = _create(part)
            _write(file, b"".join(lines))
            os.fsync(file)
            with self._guard:
                self._check_wanted()
                assert self._behind is not None
                behind = b"".join(self._behind)
                _write(file, behind)
                self._behind, self._new = None, file
            os.fsync(file)
            self._sync_folder()  # it has the state's file
            self._replace(part)
            self._sync_folder()  # until then a power cut may bring the old file back
            with self._guard:
                if self._file < 0:
                    return
                self._retired.append(self._file)
                self._file, self._new, file = file, -1, -1
                self._state, written = state, sum(map(len, lines)) + state["bytes"]
                self._grown = len(behind)
                self._due = max(GROWN_BYTES, written // GROWN_SHARE)
            with contextlib.suppress(OSError):
                if old:
                    (self.path / old).unlink(missing_ok=True)
        except Exception as error:
            with self._guard:
                if self._replaced and self._file >= 0:
                    self._give_up(error)  # what still gets the facts has no name any more
            self._due = self._grown + GROWN_BYTES
            if self._file >= 0 and not self._closed.is_set():
                log.warning(
                    "%s: the journal cannot be compacted (%s): it grows on, and a takeover needs "
                    "longer", self.path, getattr(error, "strerror", None) or error,
                )  # fmt: skip
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
                if not self._replaced:
                    (self.path / name).unlink(missing_ok=True)
        finally:
            with self._guard:
                self._behind, self._new = None, -1
            if file >= 0:
                _close(file)
            self._dirty.set()
            self._compactor = None

    def _write_state(self, path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Writes the arrays of a state, safe on disk; what is to be known of them."""
        checksum = 0
        file = _create(path)
        try:
            for array in arrays.values():
                raw = np.ascontiguousarray(array).view(np.uint8)
                checksum = crc32c(raw, checksum)
                _write(file, raw.data)
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
        if self._file < 0 or self._new_failed or self._closed.is_set():
            raise OSError("the journal is no longer kept, or its disk is full")

    def _replace(self, part: Path) -> None:
        """Gives the new file the name of the old one, which goes on to get all facts for now."""
        assert self.path is not None
        with self._guard:
            self._check_wanted()
            part.replace(self.path / FACTS)
            self._replaced = True

    # --- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """The run has ended and is not to be taken over.  Removes the journal."""
        self.close()
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            # The copy of the first record goes first: facts without it are a journal, it without
            # facts is damage.
            for name in (LIFE, FACTS, BASE, LOCK):
                (self.path / name).unlink(missing_ok=True)
            self._tidy(all_=True)
            self.path.rmdir()

    def release(self) -> None:
        """This process runs nothing: lets go of the folder, and leaves none without a run in it."""
        if self.path is None or self._lock < 0:
            return
        if any(os.path.lexists(self.path / name) for name in (FACTS, LIFE)):
            self.close()
        else:
            self.end()

    def close(self) -> None:
        """Writes no more and lets go of the folder; twice is harmless."""
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
                except OSError as error:  # some file systems tell of lost writes here
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
        """Keeps the line of a fact that is in no snapshot."""
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

    def _not_synced(self, file: int, error: OSError) -> None:
        """What was written is not there, and no later sync tells of it again."""
        with self._guard:
            if file == self._file or (file == self._new and self._replaced):
                self._give_up(error)
            elif file == self._new:
                self._new_failed = True

    def _put(self, name: str, data: bytes) -> None:
        """Writes a file that is whole or not there, or as it was."""
        assert self.path is not None
        part = self.path / f"{name}.part"
        file = _create(part)
        try:
            _write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        part.replace(self.path / name)
        self._sync_folder()

    def _keep_life(self) -> None:
        if self._content(LIFE) != self._life:
            self._put(LIFE, self._life)

    def _is_life(self, line: bytes) -> bool:
        fact = _fact(line[:-1])
        return fact is not None and fact.kind == "life" and line[-1:] == b"\n"

    def _content(self, name: str) -> bytes | None:
        assert self.path is not None
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error(error) from None

    def _tidy(self, *, all_: bool = False) -> None:
        """Removes what a master that died left half written, and old states."""
        assert self.path is not None
        present = "" if all_ else self._state.get("name", "")
        with contextlib.suppress(OSError):
            for file in self.path.iterdir():
                stale = file.name.startswith(STATE) and file.name != present
                if stale or file.suffix == ".part" or file.name == GIVEN_UP:
                    file.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        assert self.path is not None
        sync_folder(OS_DISK, self.path)

    def _give_up(self, error: Exception) -> None:
        """Stops writing: a master that replayed a journal with a gap would repeat orders."""
        assert self.path is not None
        log.error(
            "%s: THE JOURNAL CANNOT BE WRITTEN (%s): the job goes on, but ends if this master dies",
            self.path, getattr(error, "strerror", None) or error,
        )  # fmt: skip
        with contextlib.suppress(OSError):
            (self.path / LIFE).unlink(missing_ok=True)
            (self.path / FACTS).replace(self.path / GIVEN_UP)
        file, self._file = self._file, -1
        if file >= 0:
            _close(file)

    def _damaged(self, name: str, why: str) -> ClusterError:
        assert self.path is not None
        return ClusterError(
            f"{self.path / name} is damaged: {why}. Nothing was changed or begun, and what still "
            "lives of the run waits for master_time_out. Put the file back from a copy, and start "
            f"again: the run goes on. Or move {self.path} away: the same command then continues "
            "from the newest checkpoint, if there is one. With --fresh all begins anew"
        )

    def _error(self, error: OSError) -> ClusterError:
        return ClusterError(
            f"{self.path}: the master's journal cannot be used: {error.strerror or error}. Choose "
            "another journal_dir"
        )


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def _close(file: int) -> None:
    """Closes what nothing is promised of any more."""
    with contextlib.suppress(OSError):
        os.close(file)


def _write(file: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
