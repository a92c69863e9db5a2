"""Several `WordVectors` workers in one process: tables in memory, visiting parts lent by a lock.

Real vocabulary, text, kernels and trainers; no master, no shards.  For unit tests and experiments.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

from snailps.api.block import Block
from snailps.data.vocabulary import Vocabulary
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import WordVectors
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.models.word_vectors.shared_text import ROW_IDS


class MemoryTables:
    """Tables "input", "output" and "text"; counts the rows that are pulled and pushed."""

    def __init__(self, settings: WordVectorSettings, words: int) -> None:
        rng = np.random.default_rng(settings.seed)
        shape = (words + (settings.bucket if settings.maxn else 0), settings.dim)
        first = (rng.random(shape, np.float32) * 2 - 1) / settings.dim
        self.words = words
        self.rows = {"input": first, "output": np.zeros((words, settings.dim), np.float32)}
        self.text: dict[int, np.ndarray] = {}
        self.moved = {"input": 0, "output": 0, "text": 0}
        self.lock = threading.Lock()

    def places(self, keys: np.ndarray) -> np.ndarray:
        """Where the rows of keys are."""
        at = keys.astype(np.int64)
        return np.where(at < BUCKET_KEY, at, at - BUCKET_KEY + self.words)

    def pull(self, table: str, keys: np.ndarray) -> np.ndarray:
        """A copy of rows."""
        with self.lock:
            self.moved[table] += len(keys)
            if table == "text":
                found = np.zeros((len(keys), ROW_IDS), np.float32)
                for row, key in zip(found, keys.tolist(), strict=True):
                    row[:] = self.text.get(key, 0)
                return found
            return self.rows[table][self.places(keys)]

    def push(self, table: str, keys: np.ndarray, values: np.ndarray) -> None:
        """Adds to rows; keys are there once."""
        with self.lock:
            self.moved[table] += len(keys)
            if table == "text":
                for key, row in zip(keys.tolist(), values, strict=True):
                    self.text[key] = self.text.get(key, np.float32(0)) + row
            else:
                self.rows[table][self.places(keys)] += values


class MemoryWorker(WordVectors):
    """A worker whose tables are in memory."""

    def __init__(
        self, settings: WordVectorSettings, vocabulary: Vocabulary, tables: MemoryTables
    ) -> None:
        super().__init__(settings, 1)
        self.memory = tables
        self.summary = vocabulary.to_bytes()
        self.setup()

    def pull(self, table: str, keys: Any, out: Any = None, *, state: bool = False) -> Any:
        """Rows as they are now."""
        rows = self.memory.pull(table, keys)
        if out is None:
            return rows
        out[:] = rows
        return out

    def pull_async(
        self, table: str, keys: Any, out: Any = None, *, state: bool = False, ahead: bool = False
    ) -> Any:
        """A pull that is done at once."""
        rows = self.pull(table, keys, out)
        return SimpleNamespace(wait=lambda: rows, done=True)

    def push(self, table: str, keys: Any, values: Any, *, state: bool = False) -> None:
        """Adds at once."""
        self.memory.push(table, keys, values)

    def push_async(self, table: str, keys: Any, values: Any, *, state: bool = False) -> Any:
        """A push that is done at once."""
        self.memory.push(table, keys, values)
        return SimpleNamespace(wait=lambda: values, done=True)


class Lost(Exception):
    """A worker is lost."""


class LentParts:
    """Visiting parts of one chunk, each lent to one worker at a time.

    Attributes
    ----------
    lost_after : int
        A tenancy that has had so many, and lacks others, is lost.
    """

    def __init__(self, visiting: int) -> None:
        self.visiting = visiting
        self.free = set(range(visiting))
        self.lost_after = visiting
        self.changed = threading.Condition()
        self.lent: list[tuple[int, int]] = []

    def visits(self, part: int, parts: int) -> LentVisits:
        """Those of one tenancy."""
        return LentVisits(self, part, parts)


class LentVisits:
    """As `api.rotation.Visits`."""

    def __init__(self, lent: LentParts, part: int, parts: int) -> None:
        first = part * lent.visiting // parts
        self._lent, self._part = lent, part
        self._left = [(first + n) % lent.visiting for n in range(lent.visiting)]
        self.had: list[int] = []
        self.figures: list[Mapping[str, float]] = []
        self.settled: list[int] = []

    def borrow(self) -> int | None:
        """The next part that is free."""
        with self._lent.changed:
            while self._left:
                if len(self.had) == self._lent.lost_after:
                    raise Lost
                for part in self._left:
                    if part in self._lent.free:
                        self._lent.free.remove(part)
                        self._left.remove(part)
                        self.had.append(part)
                        self._lent.lent.append((self._part, part))
                        return part
                assert self._lent.changed.wait(60)
            return None

    def give_back(self, part: int, figures: Mapping[str, float], *, settled: bool = False) -> None:
        """The part is free again."""
        with self._lent.changed:
            assert part not in self._lent.free
            self._lent.free.add(part)
            self._lent.changed.notify_all()
        self.figures.append(figures)
        assert part in self.had
        if settled:
            self.settled.append(len(self.figures))


def blocks_of_chunk(
    workers: list[MemoryWorker],
    slices: list[bytes],
    chunk: int = 0,
    shares: tuple[float, float] = (0.0, 1.0),
    visiting: int = 0,
) -> list[Block]:
    """Deals the slices of a chunk; its tenancies, one for each worker."""
    num = len(workers)
    visiting = visiting or 2 * num
    common = {"path": "", "start": 0, "stop": 0, "epoch": 0, "read": bytes, "progress": shares}
    for worker in workers:
        worker.workers = num
    for at, data in enumerate(slices):
        seed = 1000 * chunk + at
        block = Block(number=seed, seed=seed, **common)  # type: ignore[arg-type]
        block.chunk, block.slice, block.slices, block._data = chunk, at, len(slices), data
        workers[at % num].deal(block)
    lent = LentParts(visiting)
    tenancies = []
    for part in range(num):
        seed = 77_000 + num * chunk + part
        block = Block(number=seed, seed=seed, **common)  # type: ignore[arg-type]
        block.chunk, block.slices, block.part, block.parts = chunk, len(slices), part, num
        block.visiting, block.visits = visiting, lent.visits(part, num)  # type: ignore[assignment]
        tenancies.append(block)
    return tenancies


def train_rotating(
    workers: list[MemoryWorker],
    texts: list[list[bytes]],
    epochs: int = 1,
    at_once: bool = True,
    visiting: int = 0,
    first: int = 0,
) -> list[dict[str, float]]:
    """Trains on chunks, each a list of slices; the figures of all tenancies.

    With `at_once` every worker has a thread, as in a cluster; otherwise one tenancy trains at a
    time, visits and all.  `first` is the number of the first chunk.
    """
    num, total, found = len(workers), epochs * len(texts), []

    def tenancy(worker: MemoryWorker, block: Block) -> None:
        block.prepared = worker.prepare(block)
        found.append(worker.train(block))

    for chunk in range(total):
        # Not to the end: rows are freed there.
        shares = (0.999 * chunk / total, 0.999 * (chunk + 1) / total)
        slices = texts[chunk % len(texts)]
        blocks = blocks_of_chunk(workers, slices, first + chunk, shares, visiting)
        with ThreadPoolExecutor(num if at_once else 1) as pool:
            list(pool.map(tenancy, workers, blocks))
    return found
