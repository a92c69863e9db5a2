"""Blocks of numbers in a table: each written once by the worker that encodes it, read by all.

    head and numbers of a block -> put -> rows of 255 float32, and the stamp of their chunk
    heads -> what blocks have      read -> numbers of a range of each block, one after the other
    rows of another chunk -> LostBlocks -> Checkouts.encode_again

A block of a ring's slot has a row for its head, then rows of its numbers.  What the head says is
the model's.  With `replication: async` the new primary of a shard may lack the last pushes to the
lost one: its rows are those of an earlier chunk, or sums that no chunk has.  Each row is stamped
with its chunk, so a reader sees that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Table
from snailps.api.worker import Worker
from snailps.models.local_sgd import Floats, Keys

ROW_FLOATS = 256
ROW_NUMBERS = ROW_FLOATS - 1
"""Numbers of a row; its last float is the stamp."""
STAMPS = 1 << 20
"""Stamps, of 1 to this; a row that was never written has 0."""
_BLOCK_BITS, _ROW_BITS = 24, 24
AT_ONCE = 1 << 20
"""Numbers of blocks that are pulled together."""


class Puller(Protocol):
    """A worker, or the master's `Results`."""

    def pull(self, table: str, keys: Keys) -> Floats: ...


class ChunkPlace(NamedTuple):
    """Where the blocks of a chunk are: the slot of the ring, and whose they must be."""

    table: str
    slot: int
    chunk: int

    @property
    def stamp(self) -> float:
        return float(self.chunk % STAMPS + 1)

    def keys(self, index: int, first: int, count: int) -> Keys:
        """Keys of some rows of a block; its first one is the head."""
        base = (self.slot << _BLOCK_BITS | index) << _ROW_BITS
        return np.arange(base + first, base + first + count, dtype=np.uint64)


class LostBlocks(Exception):
    """Blocks of a chunk that the servers do not have, or not whole."""

    def __init__(self, indices: Iterable[int]) -> None:
        super().__init__(indices)
        self.indices = sorted(set(indices))


def table(name: str) -> Table:
    """The table; its values travel as they are."""
    return Table(name, dim=ROW_FLOATS, wire="float32")


def put(
    worker: Worker, place: ChunkPlace, index: int, head: Floats, numbers: NDArray[np.generic]
) -> None:
    """Writes a block; returns when it is acknowledged.

    One worker at a time.  Pushes the difference to what is there, so that a block may be written
    again, also over one of which a lost worker has written a part.
    """
    rows = np.zeros((1 + -(-len(numbers) // ROW_NUMBERS), ROW_FLOATS), np.float32)
    rows[0, : len(head)] = head
    whole, rest = divmod(len(numbers), ROW_NUMBERS)
    rows[1 : 1 + whole, :ROW_NUMBERS] = numbers[: whole * ROW_NUMBERS].reshape(-1, ROW_NUMBERS)
    rows[-1, :rest] = numbers[whole * ROW_NUMBERS :]
    rows[:, ROW_NUMBERS] = place.stamp
    keys = place.keys(index, 0, len(rows))
    rows -= worker.pull(place.table, keys)
    worker.push(place.table, keys, rows)


def heads(worker: Puller, place: ChunkPlace, indices: Sequence[int]) -> Floats:
    """Heads of some blocks, (blocks, 256).  LostBlocks: some have none."""
    keys = [place.keys(at, 0, 1) for at in indices]
    found: Floats = worker.pull(place.table, np.concatenate(keys))
    _check(place, found, indices)
    return found


def _check(place: ChunkPlace, rows: Floats, blocks: Sequence[int] | NDArray[np.int64]) -> None:
    """Raise LostBlocks if a row, of these blocks, is of no or another chunk."""
    wrong = np.flatnonzero(rows[:, ROW_NUMBERS] != place.stamp)
    if len(wrong):
        raise LostBlocks(np.asarray(blocks)[wrong].tolist())


def read(
    worker: Puller,
    place: ChunkPlace,
    begins: Sequence[int],
    stops: Sequence[int],
    out: NDArray[np.generic],
) -> None:
    """Fills `out` with numbers `begins` to `stops` of each block; pulls only the rows of these.
    LostBlocks: some are not there."""
    filled = 0
    for some in batches([stop - begin for begin, stop in zip(begins, stops, strict=True)]):
        spans = [(begins[at] // ROW_NUMBERS, -(-stops[at] // ROW_NUMBERS)) for at in some]
        keys = [
            place.keys(at, 1 + a, max(0, b - a)) for at, (a, b) in zip(some, spans, strict=True)
        ]
        rows = worker.pull(place.table, np.concatenate(keys))
        _check(place, rows, np.repeat(some, [len(own) for own in keys]))
        row = 0
        for at, (a, _), own in zip(some, spans, keys, strict=True):
            size = stops[at] - begins[at]
            skip = begins[at] - a * ROW_NUMBERS
            _take(rows[row : row + len(own), :ROW_NUMBERS], skip, out[filled : filled + size])
            row += len(own)
            filled += size


def _take(rows: Floats, skip: int, out: NDArray[np.generic]) -> None:
    """Fill `out` with the numbers of rows, one row after the other, but for the first `skip`."""
    first = min(len(out), ROW_NUMBERS - skip)
    out[:first] = rows[:1, skip : skip + first].ravel()
    whole, rest = divmod(len(out) - first, ROW_NUMBERS)
    middle = out[first : len(out) - rest].reshape(whole, ROW_NUMBERS)
    middle[:] = rows[1 : 1 + whole]
    out[len(out) - rest :] = rows[1 + whole : 2 + whole, :rest].ravel()


def batches(sizes: Sequence[int], most: int = AT_ONCE) -> Iterable[list[int]]:
    """Consecutive blocks that are pulled together: up to so many numbers, or one block."""
    some: list[int] = []
    total = 0
    for at, size in enumerate(sizes):
        if some and total + size > most:
            yield some
            some, total = [], 0
        some.append(at)
        total += size
    if some:
        yield some
