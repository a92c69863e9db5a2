"""Blocks of numbers in a table: each written once by the worker that encodes it, read by all.

    head and numbers of a block -> put -> rows of 256 float32
    heads -> what blocks have      read -> numbers of a range of each block, one after the other

A block of a ring's `slot` has a row for its head, then rows of its numbers.  What the head says is
the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Table
from snailps.api.worker import Worker
from snailps.models.local_sgd import Floats, Keys

ROW_NUMBERS = 256
_BLOCK_BITS, _ROW_BITS = 24, 24
AT_ONCE = 1 << 20
"""Numbers of blocks that are pulled together."""


def table(name: str) -> Table:
    """The table; its values travel as they are."""
    return Table(name, dim=ROW_NUMBERS, wire="float32")


def put(
    worker: Worker, table: str, slot: int, index: int, head: Floats, numbers: NDArray[np.generic]
) -> None:
    """Writes a block; returns when it is acknowledged.

    One worker at a time.  Pushes the difference to what is there, so that a block may be written
    again, also over one of which a lost worker has written a part.
    """
    rows = np.zeros((1 + -(-len(numbers) // ROW_NUMBERS), ROW_NUMBERS), np.float32)
    rows[0, : len(head)] = head
    rows[1:].ravel()[: len(numbers)] = numbers
    keys = _keys(slot, index, 0, len(rows))
    rows -= worker.pull(table, keys)
    worker.push(table, keys, rows)


def heads(worker: Worker, table: str, slot: int, indices: Iterable[int]) -> Floats:
    """Heads of some blocks, (blocks, 256)."""
    keys = [_keys(slot, at, 0, 1) for at in indices]
    found: Floats = worker.pull(table, np.concatenate(keys))
    return found


def read(
    worker: Worker,
    table: str,
    slot: int,
    begins: Sequence[int],
    stops: Sequence[int],
    out: NDArray[np.generic],
) -> None:
    """Fills `out` with numbers `begins` to `stops` of each block; pulls only the rows of these."""
    filled = 0
    for some in batches([stop - begin for begin, stop in zip(begins, stops, strict=True)]):
        spans = [(begins[at] // ROW_NUMBERS, -(-stops[at] // ROW_NUMBERS)) for at in some]
        keys = [
            _keys(slot, at, 1 + a, max(0, b - a)) for at, (a, b) in zip(some, spans, strict=True)
        ]
        rows = worker.pull(table, np.concatenate(keys))
        row = 0
        for at, (a, _), own in zip(some, spans, keys, strict=True):
            size = stops[at] - begins[at]
            skip = begins[at] - a * ROW_NUMBERS
            numbers = rows[row : row + len(own)].ravel()[skip : skip + size]
            out[filled : filled + size] = numbers
            row += len(own)
            filled += size


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


def _keys(slot: int, index: int, first: int, count: int) -> Keys:
    base = (slot << _BLOCK_BITS | index) << _ROW_BITS
    return np.arange(base + first, base + first + count, dtype=np.uint64)
