"""Rotating workers in one process: partitions are checked out by a lock, tables are in memory.

Vocabulary, text, kernels and trainers are the product's; there is no master and no shard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
from waiting import LIMIT_S

from snailps.api.block import Block
from snailps.api.rotation import outputs_for
from snailps.data.vocabulary import Vocabulary
from snailps.models.rotation.shared_blocks import ROW_FLOATS
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import WordVectors
from snailps.models.word_vectors.settings import WordVectorSettings
from snailps.pieces import Piece
from snailps.transport.messages.terms import ChunkBlock, Partition
from tests.support.blocks import HeldContent, held_block


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
        """Indices of the rows of keys."""
        at = keys.astype(np.int64)
        return np.where(at < BUCKET_KEY, at, at - BUCKET_KEY + self.words)

    def pull(self, table: str, keys: np.ndarray) -> np.ndarray:
        """A copy of rows."""
        with self.lock:
            self.moved[table] += len(keys)
            if table == "text":
                rows = np.zeros((len(keys), ROW_FLOATS), np.float32)
                for row, key in zip(rows, keys.tolist(), strict=True):
                    row[:] = self.text.get(key, 0)
                return rows
            return self.rows[table][self.places(keys)]

    def push(self, table: str, keys: np.ndarray, values: np.ndarray) -> None:
        """Adds to rows; each key comes once."""
        with self.lock:
            self.moved[table] += len(keys)
            self.rows[table][self.places(keys)] += values

    def assign(self, keys: np.ndarray, values: np.ndarray) -> None:
        """Replaces rows of the text."""
        with self.lock:
            self.moved["text"] += len(keys)
            self.text.update(zip(keys.tolist(), values, strict=True))


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
        """The rows now."""
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

    def assign(self, table: str, keys: Any, values: Any) -> None:
        """Replaces rows at once."""
        assert table == "text"
        self.memory.assign(keys, values)

    def push_async(self, table: str, keys: Any, values: Any, *, state: bool = False) -> Any:
        """A push that is done at once."""
        self.memory.push(table, keys, values)
        return SimpleNamespace(wait=lambda: values, done=True)


class Lost(Exception):
    """Raised in a worker that is lost."""


class SharedPartitions:
    """Output partitions of one chunk, each checked out by one worker at a time.

    Attributes
    ----------
    lost_after : int
        A partition is lost after this many checkouts, if it lacks others.
    """

    def __init__(self, output_parts: int) -> None:
        self.output_parts = output_parts
        self.free = set(range(output_parts))
        self.lost_after = output_parts
        self.changed = threading.Condition()
        self.handed_out: list[tuple[int, int]] = []
        self.again: list[int] = []

    encode_again: Callable[[int], None] = staticmethod(lambda index: None)
    """Encodes a block of the chunk once more."""

    def checkouts(self, part: int, parts: int) -> MemoryCheckouts:
        """The checkouts of one partition."""
        return MemoryCheckouts(self, part, parts)


class MemoryCheckouts:
    """Checkouts of one partition, like `api.rotation.Checkouts`."""

    def __init__(self, shared: SharedPartitions, part: int, parts: int) -> None:
        first = part * shared.output_parts // parts
        self.shared, self._part = shared, part
        self.left = [(first + n) % shared.output_parts for n in range(shared.output_parts)]
        self.had: list[int] = []
        self.figures: list[Mapping[str, float]] = []
        self.durable: list[int] = []

    def check_out(self) -> int | None:
        """Checks out the next free part."""
        with self.shared.changed:
            while self.left:
                if len(self.had) == self.shared.lost_after:
                    raise Lost
                for part in self.left:
                    if part in self.shared.free:
                        self.shared.free.remove(part)
                        self.left.remove(part)
                        self.had.append(part)
                        self.shared.handed_out.append((self._part, part))
                        return part
                came = self.shared.changed.wait(LIMIT_S)
                assert came, f"no partition of {self.left} has come back"
            return None

    def check_in(self, part: int, figures: Mapping[str, float], *, durable: bool = False) -> None:
        """Frees a part."""
        with self.shared.changed:
            assert part not in self.shared.free
            self.shared.free.add(part)
            self.shared.changed.notify_all()
        self.figures.append(figures)
        assert part in self.had
        if durable:
            self.durable.append(len(self.figures))

    def encode_again(self, index: int) -> None:
        """One worker at a time."""
        with self.shared.changed:
            self.shared.again.append(index)
            self.shared.encode_again(index)


def blocks_of_chunk(
    workers: list[MemoryWorker],
    chunk_blocks: list[bytes],
    chunk: int = 0,
    shares: tuple[float, float] = (0.0, 1.0),
    output_parts: int = 0,
    epoch: int = 0,
    passes: int = 1,
    is_kept: bool = False,
) -> list[Block]:
    """Encodes the blocks of a chunk, unless servers have them (`is_kept`); one partition for each
    worker."""
    num = len(workers)
    output_parts = output_parts or outputs_for(num)
    common: dict[str, Any] = {"piece": Piece(), "epoch": epoch, "progress": shares}
    for worker in workers:
        worker.workers = num
    encoded = []
    for at, data in enumerate(chunk_blocks):
        seed = 1000 * chunk + at
        terms = ChunkBlock(chunk, at, len(chunk_blocks))
        content = HeldContent(data, chunk_blocks[0])
        block = held_block(content, seed, seed=seed, terms=terms, **common)
        if not is_kept:
            workers[at % num].encode(block)
        encoded.append(block)
    shared = SharedPartitions(output_parts)

    def encode_again(index: int) -> None:
        encoded[index].again = True
        workers[index % num].encode(encoded[index])

    shared.encode_again = encode_again
    partitions = []
    for part in range(num):
        seed = 77_000 + num * chunk + part
        partition = Partition(chunk, len(chunk_blocks), part, num, output_parts, passes=passes)
        checkouts = shared.checkouts(part, num)
        block = held_block(number=seed, seed=seed, terms=partition, checkouts=checkouts, **common)
        partitions.append(block)
    return partitions


def train_rotating(
    workers: list[MemoryWorker],
    texts: list[list[bytes]],
    epochs: int = 1,
    at_once: bool = True,
    output_parts: int = 0,
    first: int = 0,
) -> list[dict[str, float]]:
    """Trains on chunks, each a list of blocks; the figures of all partitions.

    With `at_once` every worker has a thread, as in a cluster; otherwise partitions train one after
    the other, with all their checkouts.  `first` is the number of the first chunk.
    """
    num, total, figures = len(workers), epochs * len(texts), []

    def lease(worker: MemoryWorker, block: Block) -> None:
        block.prepared = worker.prepare(block)
        figures.append(worker.train(block))

    for chunk in range(total):
        # Not to the end: rows are freed there.
        shares = (0.999 * chunk / total, 0.999 * (chunk + 1) / total)
        chunk_blocks = texts[chunk % len(texts)]
        blocks = blocks_of_chunk(workers, chunk_blocks, first + chunk, shares, output_parts)
        with ThreadPoolExecutor(num if at_once else 1) as pool:
            list(pool.map(lease, workers, blocks))
    return figures
