"""A chunk's encoded text in a table: written once by the workers that encode it, read by all.

    text of a block -> cut_text -> parts to encode
    word ids of a block -> put_block -> shared block        get_chunk -> word ids of a chunk

Encoding a text costs several times what reading the ids does, so W workers that all need a whole
chunk encode 1 / W of it each.  An id below 2^24 is exact in float32.  The head of a block has the
number of its ids and of its words, each as two such numbers.  The rows of a chunk are used again
three chunks later.  What reads raises `LostBlocks` where servers have others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.rotation import CHUNKS_AHEAD
from snailps.api.tables import Table
from snailps.api.worker import Worker
from snailps.models.rotation import shared_blocks
from snailps.models.rotation.shared_blocks import ChunkPlace

TEXT = "text"
IDS_END = 1 << 24
"""Ids are below this."""
_COUNT_BASE = 1 << 20
_RING = CHUNKS_AHEAD + 1
_SEPARATOR = re.compile(rb"[ \n]")

Ints = NDArray[np.int32]


def text_table() -> Table:
    """The table of encoded text."""
    return shared_blocks.table(TEXT)


def cut_text(text: bytes, size: int) -> list[bytes]:
    """Parts of about `size` bytes, each cut behind a word or a line."""
    ends = [0]
    while (found := _SEPARATOR.search(text, ends[-1] + size)) is not None:
        ends.append(found.end())
    return [text[begin:end] for begin, end in itertools.pairwise([*ends, len(text)])]


def put_block(worker: Worker, chunk: int, index: int, ids: Ints, words: int) -> None:
    """Writes a block; returns when it is acknowledged."""
    head = np.array([*divmod(len(ids), _COUNT_BASE), *divmod(words, _COUNT_BASE)], np.float32)
    shared_blocks.put(worker, _place(chunk), index, head, ids)


def _place(chunk: int) -> ChunkPlace:
    return ChunkPlace(TEXT, chunk % _RING, chunk)


SPAN_IDS = 1 << 20
"""Ids that `get_near` reads at a time."""


def get_near(
    worker: Worker,
    chunk: int,
    blocks: int,
    inputs: Ints,
    part: int,
    window: int,
    leaves_out: Callable[[int], bool],
) -> tuple[Ints, Ints | None, int, int]:
    """Ids of a chunk, their places in it, how many it has, and words.

    If of so many ids it `leaves_out` some: those within a window of words of a part, which is all
    that skip-gram needs, read some at a time: memory does not grow with the chunk.  Else all, whose
    places are None.
    """
    counts = _counts(worker, chunk, blocks)
    total, words = counts.sum(0).tolist()
    if not leaves_out(total):
        return _read(worker, chunk, counts, 0, total), None, total, words
    found, begin, carried = [], 0, np.zeros(0, np.int32)  # places from `begin` on are undecided
    for first in range(0, max(1, total), SPAN_IDS):
        last = min(first + SPAN_IDS, total)
        ids = np.concatenate((carried, _read(worker, chunk, counts, first, last)))
        place = last - len(ids)
        skip, is_last = begin - place, last == total
        near = kernels.near(ids, inputs, part, window, first=place, skip=skip, last=is_last)
        found.append([some.copy() for some in near])  # they are views of as much as was read
        begin = max(begin, last - window)
        carried = ids[max(0, begin - window - place) :]
    ids, places = (np.concatenate(some) for some in zip(*found, strict=True))
    return ids, places, total, words


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
    before, after = (words * end // sum(sizes) for end in ends_of_parts)
    return _read(worker, chunk, counts, first, last), after - before


def _read(worker: Worker, chunk: int, counts: NDArray[np.int64], first: int, last: int) -> Ints:
    """Ids of a chunk at these places."""
    ends = counts[:, 0].cumsum()
    begins = np.clip(first - ends + counts[:, 0], 0, counts[:, 0]).tolist()  # of each block
    stops = np.clip(last - ends + counts[:, 0], 0, counts[:, 0]).tolist()
    found = np.empty(last - first, np.int32)
    shared_blocks.read(worker, _place(chunk), begins, stops, found)
    return found


def count(worker: Worker, chunk: int, blocks: int) -> tuple[int, int]:
    """How many ids a chunk has, and words."""
    ids, words = _counts(worker, chunk, blocks).sum(0).tolist()
    return ids, words


def _counts(worker: Worker, chunk: int, blocks: int) -> NDArray[np.int64]:
    """Ids and words of each block, int64 (blocks, 2)."""
    heads = shared_blocks.heads(worker, _place(chunk), range(blocks))
    return heads[:, :4:2].astype(np.int64) * _COUNT_BASE + heads[:, 1:4:2].astype(np.int64)
