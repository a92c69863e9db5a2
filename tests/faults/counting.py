"""A model whose pushes are counted, and the verdict: what was acknowledged against what is there.

    Counted.train: note "s" -> push -> acknowledged -> note "a"      one file a process, append only
    notes + tables of the result -> judge -> Verdict: lost, doubled, torn, ...

Each push adds 1 to `shared` keys, which all pushes have, and to `own` keys, which no other one
ever has, some at each shard.  So a wrong sum is no mere number: own keys say which push it was.
A note is one write(2): what was noted outlives kill -9 of its process.  What a push has at one
shard travels in one frame (`Plan.of` sees to it), which is applied wholly or not at all.
"""

import os
import time
from collections import Counter as Multiset
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np

from snailps import Block, JobSettings, Table, Worker, setting
from snailps.abi.key_hash import fragment_of
from snailps.store.route import Route, ShardAddress

TABLE = "counts"
COUNTED = "faults.counting:Counted"
OWN = 1 << 60
"""Own keys begin here: OWN, 24 bits of the process, 24 of its push, 12 of the key."""
PART_BYTES = 60_000
"""What surely travels as one frame a shard."""


@dataclass(frozen=True, slots=True)
class CountedSettings(JobSettings):
    """Of `Counted`."""

    notes: str = setting("", help="Folder of the notes.", when="Always.")
    shared: int = setting(32, help="Keys that all pushes have.", when="Pressure.", low=0)
    own: int = setting(
        8, help="Keys of each push alone, a shard.", when="Pressure.", low=1, high=64
    )
    shards: int = setting(2, help="Shards of the cluster.", when="Always.", low=1, high=16)
    frags: int = setting(1024, help="The cluster's frag_num.", when="Another one.", low=1)
    dim: int = setting(4, help="Width of a row.", when="Pressure.", low=1)
    pushes: int = setting(10, help="Pushes a block.", when="Length of the run.", low=1)
    window: int = setting(4, help="Pushes under way at once.", when="Pressure.", low=1)
    pause: float = setting(0.0, help="Seconds between pushes.", when="Length.", low=0.0)
    enough: str = setting("", help="A file; when it is there, blocks end.", when="Long blocks.")
    carry: bool = setting(False, help="Blocks end before their pushes do.", when="For Durable.")


class Notes:
    """The file in which one process notes what it pushes and what was acknowledged.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder):
        while True:  # a name that is new: 24 bits
            self.process = int.from_bytes(os.urandom(3), "little")
            self.pid = os.getpid()
            path = Path(folder) / f"{self.process}.{self.pid}"
            if not list(Path(folder).glob(f"{self.process}.*")):
                break
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        self.pushes = 0

    def note(self, what, number, *more):
        """Notes something of a push; safe from kill -9 when it returns."""
        words = (what, str(number), f"{time.monotonic():.6f}", *map(str, more))
        os.write(self._fd, (" ".join(words) + "\n").encode())

    def close(self):
        os.close(self._fd)


class Counted(Worker):
    """Pushes ones, `pushes` times a block, and notes what becomes of them."""

    Settings = CountedSettings

    def tables(self):
        return [Table(TABLE, self.settings.dim, wire="float32")]

    def setup(self):
        self._notes = Notes(self.settings.notes)
        self._plan = Plan.of(self.settings)
        self._shared = np.arange(self.settings.shared, dtype=np.uint64)
        self._open = deque()
        self._acknowledged = 0

    def train(self, block: Block):
        settings = self.settings
        enough = Path(settings.enough) if settings.enough else None
        self._check_pull()
        first = self._notes.pushes
        for _ in range(settings.pushes):
            while len(self._open) >= settings.window:
                self._take_one()
            number = self._notes.pushes
            self._notes.pushes += 1
            own, _ = self._plan.own(self._notes.process, number)
            keys = np.concatenate([self._shared, own])
            ones = np.ones((len(keys), settings.dim), np.float32)
            self._notes.note("s", number, block.number)
            self._open.append((number, ones, self.push_async(TABLE, keys, ones)))
            if settings.pause:
                time.sleep(settings.pause)
            if enough and enough.exists():
                break
        while self._open and not settings.carry:
            self._take_one()
        made = self._notes.pushes - first
        return {"units": made, "examples": made}

    def finish(self):
        while self._open:
            self._take_one()
        self._check_pull()
        self._notes.note("e", self._notes.pushes)
        self._notes.close()

    def _take_one(self):
        number, _, push = self._open.popleft()
        push.wait()
        self._notes.note("a", number)
        self._acknowledged += 1

    def _check_pull(self):
        """A pull sees at least what was acknowledged to the one who pulls."""
        if not len(self._shared):
            return
        self._notes.note("p", self._notes.pushes)
        rows = self.pull(TABLE, self._shared)
        self._notes.note("q", self._notes.pushes)
        if rows.min() < self._acknowledged:
            self._notes.note("v", self._notes.pushes, float(rows.min()), self._acknowledged)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Which keys a push has; worker and judge must agree.

    Attributes
    ----------
    owner : numpy.ndarray
        Shard of each fragment; a shard keeps its fragments as long as the cluster lives.
    """

    shared_num: int
    own_num: int
    owner: np.ndarray

    @classmethod
    def of(cls, settings):
        """The plan of a job."""
        keys = settings.shared + settings.own * settings.shards
        assert keys * (4 * settings.dim + 8) < PART_BYTES, "such a push may travel in several parts"
        nowhere = [ShardAddress(1, "nowhere", 1)] * settings.shards
        return cls(settings.shared, settings.own, Route.build(1, nowhere, settings.frags).owner)

    def own(self, process, push):
        """Keys that only this push of this process has, and their shards."""
        keys = np.uint64(OWN | process << 36 | push << 12) + np.arange(4096, dtype=np.uint64)
        at = self.shards_of(keys)
        chosen = [
            np.flatnonzero(at == shard)[: self.own_num] for shard in range(self.owner.max() + 1)
        ]
        chosen = np.concatenate(chosen)
        return keys[chosen], at[chosen]

    def shards_of(self, keys):
        """Shards of keys."""
        return self.owner[fragment_of(keys, len(self.owner))]


# --- what was noted ------------------------------------------------------------------------------


@dataclass(slots=True)
class Process:
    """What a process noted.

    Attributes
    ----------
    started, acknowledged : dict
        Number of a push -> when.
    pulls : list of tuple
        When each pull began and ended (None: never).
    block : dict
        Number of a push -> of its block.
    stale : list of str
        Pulls that lacked what had been acknowledged.
    ended : bool
        It came to its `finish`.
    """

    number: int
    pid: int
    started: dict = field(default_factory=dict)
    acknowledged: dict = field(default_factory=dict)
    pulls: list = field(default_factory=list)
    block: dict = field(default_factory=dict)
    stale: list = field(default_factory=list)
    ended: bool = False


def read_notes(folder):
    """All processes that noted something: process number -> `Process`."""
    found = {}
    for path in sorted(Path(folder).iterdir()):
        number, pid = map(int, path.name.split("."))
        one = found[number] = Process(number, pid)
        for line in path.read_bytes().decode().splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # killed in the middle of a write, which wrote nothing of weight
            what, push, when, *more = line.split()
            push, when = int(push), float(when)
            if what == "s":
                one.started[push], one.block[push] = when, int(more[0])
            elif what == "a":
                one.acknowledged[push] = when
            elif what == "p":
                one.pulls.append((when, None))
            elif what == "q":
                one.pulls[-1] = (one.pulls[-1][0], when)
            elif what == "v":
                one.stale.append(f"process {pid}: a pull showed {more[0]} after {more[1]} were "
                                 f"acknowledged, before push {push}")  # fmt: skip
            elif what == "e":
                one.ended = True
    return found


class Tally:
    """Counts the acknowledged pushes of a folder of notes while they grow."""

    def __init__(self, folder):
        self._folder = Path(folder)
        self._read = {}  # path -> bytes read
        self._count = 0

    def acknowledged(self):
        """How many there are by now."""
        for path in self._folder.iterdir():
            begin = self._read.get(path, 0)
            if path.stat().st_size > begin:
                with open(path, "rb") as file:
                    file.seek(begin)
                    data = file.read()
                self._read[path] = begin + len(data)
                self._count += data.count(b"a ")
        return self._count


def pushes_of(process):
    """When its pushes began and were acknowledged."""
    return [(process.started[push], when) for push, when in process.acknowledged.items()]


def pulls_of(process):
    """When its pulls began and ended."""
    return [pull for pull in process.pulls if pull[1] is not None]


def later_s(processes, at, requests_of):
    """How long after a moment each worker that lived on had a new request answered; the longest."""
    found = []
    for process in processes:
        requests = requests_of(process)
        after = [end for begin, end in requests if begin >= at]
        if after and any(end < at for _, end in requests):
            found.append(min(after) - at)
    return max(found, default=None)


# --- the verdict ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Verdict:
    """What became of the pushes.

    Attributes
    ----------
    acknowledged, in_flight, applied : int
        Pushes that were acknowledged; that died with their worker, unanswered; how many of those
        were applied.
    lost, doubled, torn, unanswered, undead, stale, wrong : list of str
        Acknowledged and not there, or not all of it; applied twice; applied in part though they
        travel whole; not answered to a worker that lived; pulls that lacked what was acknowledged;
        sums of shared keys that do not fit, though own keys do.
    """

    acknowledged: int = 0
    in_flight: int = 0
    applied: int = 0
    lost: list = field(default_factory=list)
    doubled: list = field(default_factory=list)
    torn: list = field(default_factory=list)
    unanswered: list = field(default_factory=list)
    undead: list = field(default_factory=list)
    stale: list = field(default_factory=list)
    wrong: list = field(default_factory=list)

    FAULTS = ("lost", "doubled", "torn", "unanswered", "undead", "stale", "wrong")

    @property
    def good(self):
        return not any(getattr(self, name) for name in self.FAULTS)

    def __str__(self):
        lines = [
            f"{self.acknowledged} pushes acknowledged; {self.in_flight} in flight when their "
            f"worker died, {self.applied} of them applied"
        ]
        for name in self.FAULTS:
            found = getattr(self, name)
            if found:
                lines += [f"{len(found)} {name}:", *(f"  {text}" for text in found[:10])]
        return "\n".join(lines)


def judge(folder, tables, plan, given_up=MappingProxyType({})):
    """Compares what was noted in a folder with the tables of the result, ``OUTPUT.npz``.

    `given_up`: process id -> since when all shards knew that its worker was given up.
    """
    with np.load(tables) as found:
        keys, rows = found[f"{TABLE}.keys"], found[f"{TABLE}.rows"]
    verdict = Verdict()
    uneven = (rows != rows[:, :1]).any(axis=1)
    verdict.torn += [f"row of key {key}" for key in keys[uneven].tolist()]
    there = dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True))
    sums = Multiset()  # shard -> pushes that are there
    for process in read_notes(folder).values():
        verdict.stale += process.stale
        for push, when in process.started.items():
            own, at = plan.own(process.number, push)
            values = np.array([there.pop(key, 0.0) for key in own.tolist()])
            for shard in np.unique(at).tolist():
                sums[shard] += values[at == shard].max()
            name = (
                f"push {push} of process {process.pid} (block {process.block[push]}, at {when:.3f})"
            )
            if values.any() and when > given_up.get(process.pid, float("inf")):
                verdict.undead.append(
                    f"{name} was begun after its worker was given up, and applied"
                )
            _judge_one(verdict, name, values, at, push in process.acknowledged, process.ended)
    shared = np.arange(plan.shared_num, dtype=np.uint64)
    for key, shard in zip(shared.tolist(), plan.shards_of(shared).tolist(), strict=True):
        value = there.pop(key, 0.0)
        if value != sums[shard]:
            verdict.wrong.append(
                f"shared key {key} of shard {shard}: {value:g}, own keys {sums[shard]:g}"
            )
    if there:
        verdict.wrong.append(f"{len(there)} keys that were not pushed, such as {next(iter(there))}")
    return verdict


def _judge_one(verdict, name, values, at, acknowledged, ended):
    """One push: `values` of its own keys, `at` their shards."""
    shown = ", ".join(f"shard {s}: {sorted(set(values[at == s].tolist()))}" for s in np.unique(at))
    verdict.acknowledged += acknowledged
    if (values > 1).any():
        verdict.doubled.append(f"{name} counts {shown}")
    if acknowledged:
        if (values < 1).any():
            verdict.lost.append(f"{name} was acknowledged and counts {shown}")
        return
    if ended:
        verdict.unanswered.append(f"{name} was never acknowledged, its worker ended well: {shown}")
    verdict.in_flight += 1
    verdict.applied += bool(values.any())
    if any(len(set(values[at == shard].tolist())) > 1 for shard in np.unique(at)):
        verdict.torn.append(f"{name} was in flight and counts {shown}")


class Walk(Counted):
    """Steps that depend on the rows before them and on the block: to compare bits, not counts."""

    def train(self, block: Block):
        rows = self.pull(TABLE, self._shared)
        step = np.sin(rows + np.float32(block.seed % 1000)).astype(np.float32)
        number = self._notes.pushes
        self._notes.pushes += 1
        self._notes.note("s", number, block.number)
        self.push(TABLE, self._shared, step)
        self._notes.note("a", number)
        time.sleep(self.settings.pause)
        return {"units": 1, "examples": 1}

    def finish(self):
        self._notes.close()
