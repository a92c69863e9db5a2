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
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
    shared_blocks.read(worker, _place(chunk), begins, stops, found)
    before, after = (words * end // sum(sizes) for end in ends_of_parts)
    return found, after - before


def count(worker: Worker, chunk: int, blocks: int) -> tuple[int, int]:
    """How many ids a chunk has, and words."""
    ids, words = _counts(worker, chunk, blocks).sum(0).tolist()
    return ids, words


def _counts(worker: Worker, chunk: int, blocks: int) -> NDArray[np.int64]:
    """Ids and words of each block, int64 (blocks, 2)."""
    heads = shared_blocks.heads(worker, _place(chunk), range(blocks))
    return heads[:, :4:2].astype(np.int64) * _COUNT_BASE + heads[:, 1:4:2].astype(np.int64)
