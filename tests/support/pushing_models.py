"""Models as users write them: a linear regression that pushes gradients, differences or means."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import AccessMethod, JobSettings, Table, Worker, setting
from snailps.api.concurrency import Concurrency
from snailps.files.input_files import InputFiles

Floats = NDArray[np.float32]
FEATURES = 60
KEYS = np.arange(1, FEATURES + 1, dtype=np.uint64)


class Nesterov(AccessMethod):
    """The access method of docs/access_methods.md."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.state_floats = table.dim

    def push(self, rows: Floats, values: Floats) -> Floats:
        speed = 0.9 * rows[:, self.dim :] + values
        rows[:, : self.dim] -= self.table.lr * (0.9 * speed + values)
        rows[:, self.dim :] = speed
        return rows


@dataclass(frozen=True, slots=True)
class PushingSettings(JobSettings):
    access: str = setting("sgd", help="Access method.", when="Always.")
    way: Literal["gradients", "deltas", "means"] = setting("gradients", help="Pushed.", when="Any.")
    lr: float = setting(0.1, help="Step size.", when="Always.", low=1e-6, high=10.0)
    batch: int = setting(50, help="Lines a step.", when="Always.", low=1)
    test: tuple[str, ...] = setting((), help="File to judge by.", when="Always.")


def examples_of(data: bytes) -> tuple[Floats, Floats]:
    """Features (n, FEATURES) and labels of lines of LIBSVM's format."""
    lines = data.splitlines()
    x, y = np.zeros((len(lines), FEATURES), np.float32), np.zeros(len(lines), np.float32)
    for number, line in enumerate(lines):
        label, *entries = line.split()
        y[number] = float(label)
        for entry in entries:
            key, _, value = entry.partition(b":")
            x[number, int(key) - 1] = float(value)
    return x, y


class Pushing(Worker):
    """Squared loss; the optimiser runs at the shard, or here for a block (`way`)."""

    Settings = PushingSettings
    settings: PushingSettings

    def tables(self) -> list[Table]:
        rate = {} if self.settings.access in ("add", "average") else {"lr": self.settings.lr}
        return [Table("w", dim=1, access=self.settings.access, **rate)]

    def train(self, block: Any) -> Mapping[str, float]:
        x, y = examples_of(block.data)
        loss = getattr(self, f"_{self.settings.way}")(x, y)
        return {"units": len(y), "examples": len(y), "loss": loss}

    def _batches(self, x: Floats, y: Floats) -> Iterator[tuple[Floats, Floats]]:
        for at in range(0, len(y), self.settings.batch):
            yield x[at : at + self.settings.batch], y[at : at + self.settings.batch]

    def _gradients(self, x: Floats, y: Floats) -> float:
        loss = 0.0
        for some, of_some in self._batches(x, y):
            wrong = some @ self.pull("w", KEYS)[:, 0] - of_some
            self.push("w", KEYS, (some.T @ wrong / len(wrong))[:, None])
            loss += float(wrong @ wrong) / 2
        return loss

    def _local(self, base: Floats, x: Floats, y: Floats) -> tuple[Floats, float]:
        rows, loss = base.copy(), 0.0
        for some, of_some in self._batches(x, y):
            wrong = some @ rows[:, 0] - of_some
            gradient = (some.T @ wrong / len(wrong))[:, None]
            if rows.shape[1] > 1:  # AdaGrad's sums of squares
                rows[:, 1:] += gradient**2
                gradient /= np.sqrt(rows[:, 1:]) + 1e-8
            rows[:, :1] -= self.settings.lr * gradient
            loss += float(wrong @ wrong) / 2
        return rows, loss

    def _deltas(self, x: Floats, y: Floats) -> float:
        state = self.settings.access != "add"
        base = self.pull("w", KEYS, state=state)
        rows, loss = self._local(base, x, y)
        self.push("w", KEYS, rows - base, state=state)
        return loss

    def _means(self, x: Floats, y: Floats) -> float:
        rows, loss = self._local(self.pull("w", KEYS), x, y)
        weights = np.full((FEATURES, 1), len(y), np.float32)
        self.push("w", KEYS, np.concatenate((rows * len(y), weights), axis=1))
        return loss

    @classmethod
    def judge(cls, results: Any) -> Mapping[str, Any]:
        x, y = examples_of(Path(results.settings.test[0]).read_bytes())
        wrong = x @ results.pull("w", KEYS)[:, 0] - y
        return {"test": {"rmse": float(np.sqrt((wrong**2).mean()))}}


class PushingBounded(Pushing):
    """A loss far beyond the first one ends the job."""

    loss_bound = 10.0


class PushingFew(Pushing):
    """Its steps limit how many workers train."""

    @classmethod
    def workers_at_once(cls, settings: PushingSettings, files: InputFiles) -> Concurrency:
        return Concurrency.by_step(settings.lr, "with a large lr gradients lack each other's steps")
