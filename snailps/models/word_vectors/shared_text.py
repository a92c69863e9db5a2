"""A chunk's encoded text in a table: written once by the workers that encode it, read by all.

    word ids of a slice -> put_slice -> rows of 256 numbers        get_chunk -> word ids of a chunk

Encoding a text costs several times what reading the ids does, so W workers that all need a whole
chunk encode 1 / W of it each.  An id below 2^24 is exact in float32.  Row 0 of a slice has the
number of its ids and of its words, each as two such numbers.  The rows of a chunk are used again
three chunks later.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from snailps.api.tables import Table
from snailps.api.worker import Worker

TEXT = "text"
ROW_IDS = 256
IDS_END = 1 << 24
"""Ids are below this."""
_COUNT_BASE = 1 << 20
_RING = 3
_SLICE_BITS, _ROW_BITS = 24, 24

Ints = NDArray[np.int32]
Keys = NDArray[np.uint64]


def text_table() -> Table:
    """The table; its values travel as they are."""
    return Table(TEXT, dim=ROW_IDS, wire="float32")


def put_slice(worker: Worker, chunk: int, slice_: int, ids: Ints, words: int) -> None:
    """Writes a slice; returns when it is acknowledged.

    Pushes the difference to what is there, so that a slice may be written again, also over one of
    which a lost worker has written a part.

    Parameters
    ----------
    chunk, slice_ : int
        Numbers of the chunk over all epochs, and of the slice in it.
    ids : int32 array
        Below `IDS_END`; -1 ends a sentence.
    words : int
        Words read, for figures.
    """
    rows = np.zeros((1 + -(-len(ids) // ROW_IDS), ROW_IDS), np.float32)
    rows[0, :4] = *divmod(len(ids), _COUNT_BASE), *divmod(words, _COUNT_BASE)
    rows[1:].ravel()[: len(ids)] = ids
    keys = _keys(chunk, slice_, 0, len(rows))
    rows -= worker.pull(TEXT, keys)
    worker.push(TEXT, keys, rows)


def get_chunk(worker: Worker, chunk: int, slices: int) -> tuple[Ints, int]:
    """All ids of a chunk, slice after slice, and the number of its words."""
    heads = worker.pull(TEXT, np.concatenate([_keys(chunk, at, 0, 1) for at in range(slices)]))
    counts = heads[:, :4:2].astype(np.int64) * _COUNT_BASE + heads[:, 1:4:2].astype(np.int64)
    sizes = counts[:, 0].tolist()
    found = np.empty(sum(sizes), np.int32)
    ends = list(itertools.accumulate(sizes))
    for some in _batches(sizes):
        keys = [_keys(chunk, at, 1, -(-sizes[at] // ROW_IDS)) for at in some]
        rows = worker.pull(TEXT, np.concatenate(keys))
        first = 0
        for at, own in zip(some, keys, strict=True):
            size = sizes[at]
            found[ends[at] - size : ends[at]] = rows[first : first + len(own)].ravel()[:size]
            first += len(own)
    return found, int(counts[:, 1].sum())


def _keys(chunk: int, slice_: int, first: int, count: int) -> Keys:
    base = ((chunk % _RING) << _SLICE_BITS | slice_) << _ROW_BITS
    return np.arange(base + first, base + first + count, dtype=np.uint64)


def _batches(sizes: list[int], most: int = 4 << 20) -> Iterable[list[int]]:
    """Consecutive slices that are pulled together: up to so many ids, or one slice."""
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
