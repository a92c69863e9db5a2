"""Models for tests, which worker processes import: they count, wait, fail when told to."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import with_time
from waiting import LIMIT_S

from snailps import Block, JobSettings, Table, Worker, setting
from snailps.api.rotation import Rotation
from snailps.api.traits import Cut, Limited, Reported
from snailps.api.validation import Validation
from snailps.master import core
from snailps.master.leases import late_workers
from snailps.node import process
from snailps.store.checkpoint import folder as checkpoints
from snailps.store.checkpoint.manifest import NAME


@dataclass(frozen=True, slots=True)
class CountSettings(JobSettings):
    """Of the models below."""

    gates: str = setting("", help="Folder of named pipes; see processes.Gate.", when="In tests.")
    fails_on: int = setting(-1, help="Block that train() fails on.", when="In tests.")
    fails_in: str = setting("train", help="Method that fails.", when="In tests.")
    dim: int = setting(1, help="Width of the table.", when="In tests.", low=1)
    lines: int = setting(0, help="Lines that `Surveyed` has to see.", when="In tests.")
    journal: str = setting("", help="Folder that gets a line a block.", when="In tests.")
    pace_s: float = setting(0.0, help="Least seconds of a block.", when="In tests.", low=0)


class Counter(Worker, Cut, Limited, Reported):
    """Counts lines by their text: a line that is the number k adds 1 to row k of "counts"."""

    Settings = CountSettings

    def tables(self):
        return [Table("counts", self.settings.dim)]

    def setup(self):
        self._fail_in("setup")

    def prepare(self, block: Block):
        self._fail_in("prepare", block)

    def train(self, block: Block) -> Mapping[str, float]:
        self._wait(block.number)
        self._fail_in("train", block)
        lines = block.data.decode().splitlines()
        keys = np.array([int(line) for line in lines], np.uint64)
        if len(keys):
            self.pull("counts", keys)
            self.push("counts", keys, np.ones((len(keys), self.settings.dim), np.float32))
        if self.settings.journal:
            self._note(block)
        return {"units": len(lines), "examples": len(lines), "loss": float(len(lines))}

    def finish(self):
        self._fail_in("finish")

    def _note(self, block: Block):
        with open(Path(self.settings.journal) / str(os.getpid()), "a") as file:
            file.write(f"{block.number} {block.epoch} {block.seed}\n")

    def _wait(self, number: int, kind: str = "block"):
        wait_at(self.settings, f"{kind}-{number}")

    def _fail_in(self, method: str, block: Block | None = None):
        if self.settings.fails_in == method and (
            block is None or block.number == self.settings.fails_on
        ):
            raise ValueError("planted failure")


class OfChangedInput(Counter):
    """Its input, a URL, changes before a worker reads it."""

    def setup(self):
        urlopen(f"{self.settings.input[0]}?change", timeout=LIMIT_S).close()


class Signalling(Counter):
    """Uses signals: of its own, and to end a child that it forks, as pools of processes do."""

    def setup(self):
        self._heard = 0
        signal.signal(signal.SIGUSR1, self._hear)

    def _hear(self, number, frame):
        self._heard += 1

    def train(self, block: Block) -> Mapping[str, float]:
        if (child := os.fork()) == 0:
            while True:
                signal.pause()
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        before = self._heard
        signal.raise_signal(signal.SIGUSR1)
        assert self._heard == before + 1
        return super().train(block)


class FailsBefore(Counter):
    """Fails at the master, in what it is asked before the job begins."""

    @classmethod
    def check(cls, settings):
        cls._asked("check", settings)

    @classmethod
    def result_files(cls, settings):
        cls._asked("result_files", settings)
        return super().result_files(settings)

    @classmethod
    def block_bytes(cls, settings, total_bytes, workers):
        cls._asked("block_bytes", settings)
        return super().block_bytes(settings, total_bytes, workers)

    @classmethod
    def _asked(cls, method, settings):
        if settings.fails_in == method:
            raise ValueError("planted failure")


class Surveyed(Counter):
    """Counts its lines in a first pass, with gates of their own."""

    def survey(self, block: Block) -> bytes:
        self._wait(block.number, "survey")
        self._fail_in("survey", block)
        return b"." * len(block.data.splitlines())

    def setup(self):
        if len(self.summary) != self.settings.lines:
            raise ValueError(f"surveyed {len(self.summary)} lines")

    @classmethod
    def surveyor(cls, settings):
        return Joined()


class Together(Surveyed):
    """The same; a worker keeps what it has counted until the master takes it."""

    def survey_part(self):
        return Lines(self)


class Rotating(Counter):
    """Trains by rotation; for masters alone, as it trains nothing."""

    @classmethod
    def rotation(cls, settings, total_bytes, workers, summary):
        return Rotation(2, 2)


class Lines:
    """A dot a line of some blocks."""

    def __init__(self, model):
        self.model, self.part = model, b""

    @property
    def size_bytes(self):
        return len(self.part)

    def add(self, block: Block):
        self.part += self.model.survey(block)

    def take(self) -> bytes:
        part, self.part = self.part, b""
        return part


class Joined:
    """Joins what the surveys return."""

    def __init__(self):
        self.parts = []

    def add(self, part: bytes):
        self.parts.append(part)

    def result(self) -> bytes:
        return b"".join(self.parts)


class Threaded(Counter):
    """Its loss is the number of its threads."""

    def train(self, block: Block) -> Mapping[str, float]:
        return {"units": 1, "examples": 1, "loss": self.threads}


class Judged(Counter):
    """Has a figure of a name that means something elsewhere."""

    @classmethod
    def judge(cls, results):
        return {"failed": 3}


@dataclass(frozen=True, slots=True)
class OddSettings(CountSettings):
    """Of `Odd`."""

    odd: str = setting("", help="What `Odd` does at block 2.", when="In tests.")


class Odd(Counter):
    """Does at block 2 what a model should not."""

    Settings = OddSettings

    def train(self, block: Block) -> Mapping[str, float]:
        figures = super().train(block)
        odd = self.settings.odd if block.number == 2 else ""
        if odd == "exit":
            sys.exit("enough")
        elif odd == "push":  # and tells no loss, which would say so
            self.push("counts", [9, 3], np.log([[1.0], [-1.0]]))
        return {"units": figures["units"]}


class OddSurvey(Surveyed):
    """Its survey returns no bytes."""

    def survey(self, block: Block) -> bytes:
        return None


class Infinite(Surveyed):
    """Its learning rate is infinite."""

    def train(self, block: Block) -> Mapping[str, float]:
        return {**super().train(block), "lr": float("inf")}


class Diverges(Counter):
    """Its loss is no number from block 2 on."""

    def train(self, block: Block) -> Mapping[str, float]:
        figures = super().train(block)
        return {**figures, "examples": 1, "loss": float("nan") if block.number >= 2 else 1.0}


class Loaded(Surveyed):
    """Its counts begin at 1000.5; the master stops at the gate ``load-0`` before it puts them."""

    @classmethod
    def loader(cls, settings):
        def load(results):
            wait_at(settings, "load-0")
            results.put("counts", np.arange(50, dtype=np.uint64), np.full((50, 1), 1000.5, "f4"))

        return load


class Watched(Counter):
    """Its inspector tells the count of row 7, and fails once that is above 20, if told to."""

    @classmethod
    def inspector(cls, settings):
        def look(results):
            count = float(results.pull("counts", np.array([7], np.uint64))[0, 0])
            if settings.fails_in == "look" and count > 20:
                raise ValueError("planted failure")
            return {"seven": [("count", count)]}

        return look


class Hurried(Counter):
    """Once the job is to end, its master waits for a block half a second, its worker one more."""

    def setup(self):
        process.GRACE_S = 1.0

    @classmethod
    def check(cls, settings):
        # Only the master checks settings, in a process of its own.
        late_workers.DROP_S = late_workers.ASK_S = 0.5
        if (clock := Path(settings.gates) / with_time.CLOCK).exists():
            with_time.let_pass(clock)

    @classmethod
    def export(cls, results):
        wait_at(results.settings, "export-0")
        return Counter.export(results)


class Paused(Counter):
    """Its master waits half a second for a block, and was stopped if it had no turn for as long."""

    @classmethod
    def check(cls, settings):
        late_workers.DROP_S = core.AWAY_S = 0.5


class HalfPushed(Hurried):
    """Stops at the gate ``half-N`` when a half of block N is pushed and acknowledged."""

    def train(self, block: Block) -> Mapping[str, float]:
        keys = np.array([int(line) for line in block.data.split()], np.uint64)
        first, second = np.array_split(keys, 2)
        for half in (first, second):
            self.push("counts", half, np.ones((len(half), 1), np.float32))
            self._wait(block.number, "half")
        return {"units": len(keys), "examples": len(keys), "loss": float(len(keys))}


class SlowExport(Counter):
    """Stops at the gate ``export-0``, then reads its table, and writes it."""

    @classmethod
    def export(cls, results):
        wait_at(results.settings, "export-0")
        scanned = sum(len(keys) for keys, _ in results.scan("counts"))
        return {"scanned": scanned, **Counter.export(results)}


class HalfScanned(Counter):
    """Stops at the gate ``export-0`` in the middle of reading its table, then writes it."""

    @classmethod
    def export(cls, results):
        pieces = results.scan("counts")
        begun = [next(pieces)]
        wait_at(results.settings, "export-0")
        keys = np.concatenate([keys for keys, _ in [*begun, *pieces]])
        return {"scanned": sorted(keys.tolist()), **Counter.export(results)}


class Wide(Counter):
    """Line k stands for a thousand rows of 50 floats; stops before and behind its export."""

    def tables(self):
        return [Table("counts", 50)]

    def train(self, block: Block) -> Mapping[str, float]:
        for line in block.data.split():
            keys = np.arange(1000, dtype=np.uint64) + np.uint64(1000 * int(line))
            self.push("counts", keys, np.ones((1000, 50), np.float32))
        return {"units": 1.0}

    @classmethod
    def export(cls, results):
        wait_at(results.settings, "export-0")
        figures = Worker.export.__func__(cls, results)
        wait_at(results.settings, "export-1")
        return figures


class Extremes(Counter):
    """Keeps the least, the greatest and the bits of what lines push: each is KEY NUMBER."""

    def tables(self):
        make = partial(Table, dim=1, dtype="int64")
        return [make(access, access=access) for access in ("min", "max", "or")]

    def train(self, block: Block) -> Mapping[str, float]:
        self._wait(block.number)
        pairs = [[int(word) for word in line.split()] for line in block.data.decode().splitlines()]
        keys, numbers = np.array(pairs, np.int64).reshape(-1, 2).T
        for access in ("min", "max", "or"):
            self.push(access, keys, numbers[:, None])
        return {"units": len(pairs)}


class SlowManifest(Counter):
    """Its master stops at the gate ``manifest-0`` with half a manifest written."""

    @classmethod
    def check(cls, settings):
        write = checkpoints.write_or_refuse

        def stopping(disk, path, data):
            if path.name == NAME:
                write(disk, path, data[: len(data) // 2])
                wait_at(settings, "manifest-0")
            write(disk, path, data)

        checkpoints.write_or_refuse = stopping  # of the master's process only


def wait_at(settings, name):
    """Stops at a gate in the test's folder, if there is one."""
    if settings.gates:
        stop_at(Path(settings.gates) / name)


def stop_at(gate):
    """Stops at a gate of the test, if it is there; it may be opened at this very moment.

    `processes.Gate.pid` is what it leaves there.
    """
    if gate.exists():
        Path(f"{gate}.pid").write_text(str(os.getpid()))
        with contextlib.suppress(FileNotFoundError), gate.open() as pipe:
            pipe.read()


def counting_job(folder, *made, **changed):
    """Ten blocks that count 1,000 lines, 20 for each of 50 rows.

    Of folders that it names, which may be "gates" and "journal", it has the settings.
    """
    write_numbers(folder / "in.txt", 1000)
    job = {"worker_class": COUNTER, "input": "in.txt", "output": "out", "epochs": 1}
    for name in made:
        (folder / name).mkdir()
        job[name] = str(folder / name)
    return job | changed


def gated_job(folder):
    """The same; `processes.Gate` holds its blocks up in folder/gates."""
    return counting_job(folder, gates=str(folder / "gates"), frag_num=64)


def write_numbers(path, lines, rows=50):
    """A text for `Counter`: `lines` lines with the numbers from 0 to rows - 1 in turns."""
    path.write_text("".join(f"{at % rows}\n" for at in range(lines)))
    return path


COUNTER = "cluster_models:Counter"


class Validated(Counter):
    """Is tested after each epoch: its figure is the sum of all rows, which grows."""

    @classmethod
    def validation(cls, settings):
        return Validation(cls._sum, stop_after=0)

    @classmethod
    def _sum(cls, results):
        return {"rows": float(sum(rows.sum() for _, rows in results.scan("counts")))}


class Best(Validated):
    """Its figure is worse after each epoch: the first one is the best."""

    @classmethod
    def validation(cls, settings):
        return Validation(cls._sum, stop_after=1, better="lower")


class Paced(Counter):
    """Takes `pace_s` a block, and does not begin the last one, until its folder has "finish"."""

    def train(self, block: Block) -> Mapping[str, float]:
        until = time.monotonic() + self.settings.pace_s
        over = Path(self.settings.gates) / "finish"
        while not over.exists() and (block.progress[1] >= 1 or time.monotonic() < until):
            time.sleep(self.settings.pace_s / 10)
        return super().train(block)


class Chatty(Counter):
    """Prints and logs as users' models do, and then fails or not, as told."""

    def train(self, block: Block) -> Mapping[str, float]:
        print(f"at block {block.number}")
        print('a "quoted"\x1b[31m word\n\nand no end', file=sys.stderr, end="")
        sys.stderr.write(" yet\n")
        return super().train(block)
