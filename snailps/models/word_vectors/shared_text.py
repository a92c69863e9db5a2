"""A chunk's encoded text in a table: written once by the workers that encode it, read by all.

    text of a block -> cut_text -> parts to encode
    word ids of a block -> put_block -> rows of 256 numbers        get_chunk -> word ids of a chunk

Encoding a text costs several times what reading the ids does, so W workers that all need a whole
chunk encode 1 / W of it each.  An id below 2^24 is exact in float32.  Row 0 of a block has the
number of its ids and of its words, each as two such numbers.  The rows of a chunk are used again
three chunks later.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps.api.rotation import CHUNKS_AHEAD
from snailps.api.tables import Table
from snailps.api.worker import Worker

TEXT = "text"
ROW_IDS = 256
IDS_END = 1 << 24
"""Ids are below this."""
_COUNT_BASE = 1 << 20
_RING = CHUNKS_AHEAD + 1
_SEPARATOR = re.compile(rb"[ \n]")
_BLOCK_BITS, _ROW_BITS = 24, 24

Ints = NDArray[np.int32]
Keys = NDArray[np.uint64]


def text_table() -> Table:
    """The table; its values travel as they are."""
    return Table(TEXT, dim=ROW_IDS, wire="float32")


def cut_text(text: bytes, size: int) -> list[bytes]:
    """Parts of about `size` bytes, each cut behind a word or a line."""
    ends = [0]
    while (found := _SEPARATOR.search(text, ends[-1] + size)) is not None:
        ends.append(found.end())
    return [text[begin:end] for begin, end in itertools.pairwise([*ends, len(text)])]


def put_block(worker: Worker, chunk: int, index: int, ids: Ints, words: int) -> None:
    """Writes a block; returns when it is acknowledged.

    Pushes the difference to what is there, so that a block may be written again, also over one of
    which a lost worker has written a part.
    """
    rows = np.zeros((1 + -(-len(ids) // ROW_IDS), ROW_IDS), np.float32)
    rows[0, :4] = *divmod(len(ids), _COUNT_BASE), *divmod(words, _COUNT_BASE)
    rows[1:].ravel()[: len(ids)] = ids
    keys = _keys(chunk, index, 0, len(rows))
    rows -= worker.pull(TEXT, keys)
    worker.push(TEXT, keys, rows)


def get_chunk(
    worker: Worker, chunk: int, blocks: int, part: int = 0, sizes: Sequence[int] = (1,)
) -> tuple[Ints, int]:
    """Ids of a chunk, block after block, and the number of its words.

    Those of one of its consecutive parts, whose ids are as `sizes`, to one: reads only its rows.
    """
    counts = _counts(worker, chunk, blocks)
    total, words = counts.sum(0).tolist()
    ends_of_parts = [sum(sizes[: part + at]) for at in (0, 1)]
    first, last = (total * end // sum(sizes) for end in ends_of_parts)
    ends = counts[:, 0].cumsum()
    begins = np.clip(first - ends + counts[:, 0], 0, counts[:, 0]).tolist()  # of each block
    stops = np.clip(last - ends + counts[:, 0], 0, counts[:, 0]).tolist()
    found = np.empty(last - first, np.int32)
    filled = 0
    for some in _batches([stop - begin for begin, stop in zip(begins, stops, strict=True)]):
        spans = [(begins[at] // ROW_IDS, -(-stops[at] // ROW_IDS)) for at in some]
        keys = [
            _keys(chunk, at, 1 + a, max(0, b - a)) for at, (a, b) in zip(some, spans, strict=True)
        ]
        rows = worker.pull(TEXT, np.concatenate(keys))
        row = 0
        for at, (a, _), own in zip(some, spans, keys, strict=True):
            size = stops[at] - begins[at]
            skip = begins[at] - a * ROW_IDS
            ids = rows[row : row + len(own)].ravel()[skip : skip + size]
            found[filled : filled + size] = ids
            row += len(own)
            filled += size
    before, after = (words * end // sum(sizes) for end in ends_of_parts)
    return found, after - before


def count(worker: Worker, chunk: int, blocks: int) -> tuple[int, int]:
    """How many ids a chunk has, and words."""
    ids, words = _counts(worker, chunk, blocks).sum(0).tolist()
    return ids, words


def _counts(worker: Worker, chunk: int, blocks: int) -> NDArray[np.int64]:
    """Ids and words of each block, int64 (blocks, 2)."""
    heads = worker.pull(TEXT, np.concatenate([_keys(chunk, at, 0, 1) for at in range(blocks)]))
    return heads[:, :4:2].astype(np.int64) * _COUNT_BASE + heads[:, 1:4:2].astype(np.int64)


def _keys(chunk: int, index: int, first: int, count: int) -> Keys:
    base = ((chunk % _RING) << _BLOCK_BITS | index) << _ROW_BITS
    return np.arange(base + first, base + first + count, dtype=np.uint64)


def _batches(sizes: list[int], most: int = 4 << 20) -> Iterable[list[int]]:
    """Consecutive blocks that are pulled together: up to so many ids, or one block."""
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
