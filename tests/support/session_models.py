"""Models for tests of sessions: they count their lines, and each but one fails in its own way."""

import os
import signal
from pathlib import Path

import numpy as np

from snailps import Table, Worker


class Lines(Worker):
    """Counts its lines in row 1."""

    def tables(self):
        return [Table("lines", 1)]

    def train(self, block):
        lines = len(block.data.splitlines())
        self.push("lines", [1], [[float(lines)]])
        return {"units": lines, "examples": lines, "loss": float(lines)}

    @classmethod
    def export(cls, results):
        return {"lines": float(results.pull("lines", [1])[0, 0])}


class Judges(Lines):
    """Its figures are not plain values."""

    kind: str = "odd"

    @classmethod
    def judge(cls, results):
        if results.settings.kind == "odd":
            return {"auc": object()}
        return {"auc": np.float32(0.5), "hits": np.int64(3), "at": [Path("a")]}


def inner():
    raise KeyError("planted failure")


class FailsInConstructor(Lines):
    def __init__(self, *_):
        inner()


class FailsInTrain(Lines):
    def train(self, block):
        inner()


class FailsInExport(Lines):
    @classmethod
    def export(cls, results):
        inner()


class FailsInCheck(Lines):
    @classmethod
    def check(cls, settings):
        inner()


class Exits(Lines):
    def __init__(self, *_):
        raise SystemExit(3)


class Leaves(Lines):
    def setup(self):
        os._exit(3)


class IsKilled(Lines):
    def train(self, block):
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Lines):
    """Makes a file beside its input, and hangs."""

    @staticmethod
    def mark(path):
        return Path(f"{path}.hangs")

    def train(self, block):
        self.mark(block.path).touch()
        while True:
            pass


class Prints(Lines):
    def train(self, block):
        figures = super().train(block)
        print("lines:", figures["units"])
        return figures

    @classmethod
    def check(cls, settings):
        super().check(settings)
        print("checked in the master")


class SpoilsItsProcess(Lines):
    """Fails after it has spoilt its process, which cannot be used for another job."""

    def train(self, block):
        os.chdir("/")
        os.environ["SNAILPS_THREADS"] = "none"
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        inner()


class Lingers(Lines):
    """Waits before its last block until a file beside its input allows it."""

    @staticmethod
    def let_end(path):
        Path(f"{path}.end").touch()

    def train(self, block):
        import time

        while block.progress[1] >= 1 and not Path(f"{block.path}.end").exists():
            time.sleep(0.01)
        return super().train(block)


class Sleeps(Lines):
    def train(self, block):
        import time

        time.sleep(0.05)
        return super().train(block)
