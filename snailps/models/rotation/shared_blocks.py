"""Blocks of numbers in a table: one worker encodes and writes each, all workers read it.

    head and numbers of a block -> put -> rows of 255 float32, and the stamp of their chunk
    heads -> what blocks have      read -> numbers of a range of each block, one after the other
    rows of another chunk -> LostBlocks -> Checkouts.encode_again

Owns the layout: in a slot of a ring, a block has a row for its head, then rows of its numbers.  The
model decides what a head says.  With `replication: async` the new primary of a shard may lack the
last pushes to the lost one: it then has rows of an earlier chunk, or none.  So
each row is stamped with its chunk, and a reader notices.
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
"""Stamps are 1 to `STAMPS`; a row that was never written has 0."""
_BLOCK_BITS, _ROW_BITS = 24, 24
AT_ONCE = 1 << 20
"""Numbers that are pulled together, of one block or more."""


class Puller(Protocol):
    """A worker, or the master's `Results`."""

    def pull(self, table: str, keys: Keys) -> Floats: ...


class ChunkPlace(NamedTuple):
    """Where the blocks of a chunk are (a slot of the ring), and the chunk they must be of."""

    table: str
    slot: int
    chunk: int

    @property
    def stamp(self) -> float:
        return float(self.chunk % STAMPS + 1)

    def keys(self, index: int, first: int, count: int) -> Keys:
        """Keys of `count` rows of a block, from row `first` on; row 0 is the head."""
        base = (self.slot << _BLOCK_BITS | index) << _ROW_BITS
        return np.arange(base + first, base + first + count, dtype=np.uint64)


class LostBlocks(Exception):
    """The servers lack blocks of a chunk, or parts of them."""

    def __init__(self, indices: Iterable[int]) -> None:
        super().__init__(indices)
        self.indices = sorted(set(indices))


def table(name: str, *, finite: bool = True) -> Table:
    """Declare a table of blocks; its rows travel as float32, since numbers must be exact.

    `finite`: numbers are floats; False: they may have any bits.
    """
    return Table(name, dim=ROW_FLOATS, wire="float32", finite=finite)


def put(
    worker: Worker, place: ChunkPlace, index: int, head: Floats, numbers: NDArray[np.generic]
) -> None:
    """Write a block; returns when servers have acknowledged it.

    It is assigned, so a block may be written again, also where a lost worker has written a part
    of it.
    """
    worker.assign(place.table, *rows_of(place, index, head, numbers))


def rows_of(
    place: ChunkPlace, index: int, head: Floats, numbers: NDArray[np.generic]
) -> tuple[Keys, Floats]:
    """Make the rows of a block, with their keys."""
    rows = np.zeros((1 + -(-len(numbers) // ROW_NUMBERS), ROW_FLOATS), np.float32)
    rows[0, : len(head)] = head
    full_rows, last_count = divmod(len(numbers), ROW_NUMBERS)
    full = numbers[: full_rows * ROW_NUMBERS].reshape(-1, ROW_NUMBERS)
    rows[1 : 1 + full_rows, :ROW_NUMBERS] = full
    rows[-1, :last_count] = numbers[full_rows * ROW_NUMBERS :]
    rows[:, ROW_NUMBERS] = place.stamp
    return place.keys(index, 0, len(rows)), rows


def heads(worker: Puller, place: ChunkPlace, indices: Sequence[int]) -> Floats:
    """Read the heads of blocks, float32 (blocks, 256); `LostBlocks` if servers lack one."""
    keys = [place.keys(index, 0, 1) for index in indices]
    rows: Floats = worker.pull(place.table, np.concatenate(keys))
    _check(place, rows, indices)
    return rows


def _check(place: ChunkPlace, rows: Floats, blocks: Sequence[int] | NDArray[np.int64]) -> None:
    """Raise `LostBlocks` if a row (of the block at its index) belongs to no or another chunk."""
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
    """Fill `out` with the numbers from `begins` to `stops` of each block, block after block.

    Only the rows that hold them are pulled.  `LostBlocks` if servers lack one.
    """
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
    """Fill `out` with the numbers of rows, row after row, without the first `skip`."""
    first = min(len(out), ROW_NUMBERS - skip)
    out[:first] = rows[:1, skip : skip + first].ravel()
    full_rows, last_count = divmod(len(out) - first, ROW_NUMBERS)
    middle = out[first : len(out) - last_count].reshape(full_rows, ROW_NUMBERS)
    middle[:] = rows[1 : 1 + full_rows]
    out[len(out) - last_count :] = rows[1 + full_rows : 2 + full_rows, :last_count].ravel()


def batches(sizes: Sequence[int], most: int = AT_ONCE) -> Iterable[list[int]]:
    """Yield the indices of consecutive blocks that have up to `most` numbers together, or one."""
    batch: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if batch and total + size > most:
            yield batch
            batch, total = [], 0
        batch.append(index)
        total += size
    if batch:
        yield batch
