"""The trainings that bench/checkpoint.py watches; both begin by filling a large table.

    first blocks -> create the rows         later blocks -> train -> a line each in the journal

============  =====================================================================================
`Wander`      random rows of the large table: pulled, moved, pushed; nearly all of it is traffic
`Words`       fastText's skip-gram; the large table only lies there
============  =====================================================================================

Worker processes import it.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snailps import Block, JobSettings, Table, Worker, setting
from snailps.api.worker import Results
from snailps.models.word_vectors.model import WordVectors
from snailps.models.word_vectors.settings import WordVectorSettings

FILL = 65_536
FILL_WORDS = 262_144
PULL = 8_192
MULTIPLIERS = np.random.default_rng(1).integers(1, 1 << 63, 1 << 12, dtype=np.uint64) | np.uint64(1)


def digest(keys: np.ndarray, rows: np.ndarray) -> int:
    """A sum over rows that every bit of every row and key changes; the order does not."""
    words = np.ascontiguousarray(rows).view(np.uint32).astype(np.uint64)
    mixed = (words * MULTIPLIERS[: words.shape[1]]).sum(1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * (keys * np.uint64(2) + np.uint64(1))
    return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))


def digest_of(results: Results) -> dict[str, Any]:
    """Of the large table of a cluster."""
    total = rows = 0
    for keys, values in results.scan("rows"):
        total += digest(keys, values)
        rows += len(keys)
    return {"digest": total % (1 << 64), "digest_rows": rows}


@dataclass(frozen=True, slots=True)
class WanderSettings(JobSettings):
    """Of `Wander`."""

    rows: int = setting(1_000_000, help="Rows of the table.", when="In this benchmark.")
    dim: int = setting(100, help="Width of the table.", when="In this benchmark.")
    journal: str = setting("", help="Folder that gets a line a block.", when="In this benchmark.")


class Wander(Worker):
    """Fills a table, then moves random rows of it."""

    Settings = WanderSettings

    def tables(self) -> list[Table]:
        return [Table("rows", self.settings.dim)]

    def setup(self) -> None:
        self._mix = np.eye(self.settings.dim, dtype=np.float32)
        self._file = (Path(self.settings.journal) / str(os.getpid())).open("a", buffering=1)

    def prepare(self, block: Block) -> Any:
        rng = np.random.default_rng(block.seed)
        first = block.number * FILL
        if first < self.settings.rows:
            return np.arange(first, min(first + FILL, self.settings.rows), dtype=np.uint64), None
        keys = np.unique(rng.integers(0, self.settings.rows, PULL, dtype=np.uint64))
        return keys, self.pull_async("rows", keys)

    def train(self, block: Block) -> Mapping[str, float]:
        keys, pull = block.prepared
        if pull is None:
            values = np.random.default_rng(block.seed).random(
                (len(keys), self.settings.dim), np.float32
            )
        else:
            values = pull.wait()
            for _ in range(4):  # about what a model does with a row between pull and push
                values = np.tanh(values @ self._mix)
            values *= np.float32(1e-3)
        self.push("rows", keys, values)
        self._file.write(f"{time.time()} {len(keys)} {pull is None:d}\n")
        return {"units": len(keys)}

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        return digest_of(results)


@dataclass(frozen=True, slots=True)
class WordSettings(WordVectorSettings):
    """Of `Words`."""

    rows: int = setting(1_000_000, help="Rows of the table.", when="In this benchmark.")
    width: int = setting(100, help="Width of the table.", when="In this benchmark.")
    journal: str = setting("", help="Folder that gets a line a block.", when="In this benchmark.")


class Words(WordVectors):
    """fastText, with a table more."""

    Settings = WordSettings

    def tables(self) -> list[Any]:
        return [*super().tables(), Table("rows", self.settings.width)]

    def setup(self) -> None:
        super().setup()
        self._file = (Path(self.settings.journal) / str(os.getpid())).open("a", buffering=1)

    def train(self, block: Block) -> Mapping[str, float]:
        first = block.number * FILL_WORDS
        filling = first < self.settings.rows
        for at in range(first, min(first + FILL_WORDS, self.settings.rows), FILL):
            keys = np.arange(at, min(at + FILL, self.settings.rows), dtype=np.uint64)
            rng = np.random.default_rng([at, self.settings.seed])
            self.push("rows", keys, rng.random((len(keys), self.settings.width), np.float32))
        metrics = super().train(block)
        self._file.write(f"{time.time()} {int(metrics['units'])} {filling:d}\n")
        return metrics

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        return digest_of(results)
