"""A chunk's encoded text in a table: each worker encodes some blocks, and all read them.

    text of a block -> cut_text -> parts to encode
    word ids of a block -> put_block -> shared block        get_chunk -> word ids of a chunk

Encoding a text costs several times what reading its ids does, so W workers that all need a whole
chunk encode 1 / W of it each.  Every worker reads all ids of a chunk, so an id takes as many bits
as the vocabulary needs: 17 of 68,050 words.  The head of a block has its numbers of ids and of
words, each as two numbers below 2^24, which are exact in float32.  Three chunks later the rows are
used again.  Functions that read raise `LostBlocks` where servers lack a block.
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
from snailps.kernels import _packed_numbers as packed
from snailps.models.rotation import shared_blocks
from snailps.models.rotation.shared_blocks import ChunkPlace
from snailps.models.word_vectors.word_rows import WordRows

TEXT = "text"
IDS_END = 1 << 24
"""All ids are below it."""
_COUNT_BASE = 1 << 20
_RING = CHUNKS_AHEAD + 1
_SEPARATOR = re.compile(rb"[ \n]")

Ints = NDArray[np.int32]


def text_table() -> Table:
    """Declare the table of encoded text."""
    return shared_blocks.table(TEXT, finite=False)


def id_bits(words: int) -> int:
    """Bits of an id below `words`, or of -1."""
    return max(1, words.bit_length())


def cut_text(text: bytes, size: int) -> list[bytes]:
    """Cut a text into parts of about `size` bytes, each after a word or a line."""
    ends = [0]
    while (separator := _SEPARATOR.search(text, ends[-1] + size)) is not None:
        ends.append(separator.end())
    return [text[begin:end] for begin, end in itertools.pairwise([*ends, len(text)])]


def put_block(model: WordRows, chunk: int, index: int, ids: Ints, words: int) -> None:
    """Write a block; returns when servers have acknowledged it."""
    head = np.array([*divmod(len(ids), _COUNT_BASE), *divmod(words, _COUNT_BASE)], np.float32)
    numbers = packed.pack(ids, id_bits(len(model.vocabulary)))
    shared_blocks.put(model, _place(chunk), index, head, numbers)


def _place(chunk: int) -> ChunkPlace:
    return ChunkPlace(TEXT, chunk % _RING, chunk)


SPAN_IDS = 1 << 20
"""Ids that `get_near` reads at a time."""


def get_near(
    model: WordRows,
    chunk: int,
    blocks: int,
    inputs: Ints,
    part: int,
    window: int,
    leaves_out: Callable[[int], bool],
) -> tuple[Ints, Ints | None, int, int]:
    """Read ids of a chunk: ids, their places in it, how many ids the chunk has, how many words.

    If ``leaves_out(count)``, the result has only ids within a window of the partition's words, all
    that skip-gram needs; the chunk is read in spans, so that memory does not grow with it.  Else
    the result has all ids, and None as places.
    """
    counts = _counts(model, chunk, blocks)
    total, words = counts.sum(0).tolist()
    if not leaves_out(total):
        return _read(model, chunk, counts, 0, total), None, total, words
    pieces, begin, carried = [], 0, np.zeros(0, np.int32)  # places from `begin` on are undecided
    for first in range(0, max(1, total), SPAN_IDS):
        last = min(first + SPAN_IDS, total)
        ids = np.concatenate((carried, _read(model, chunk, counts, first, last)))
        place = last - len(ids)
        skip, is_last = begin - place, last == total
        near = kernels.near(ids, inputs, part, window, first=place, skip=skip, last=is_last)
        pieces.append([part.copy() for part in near])  # views would keep all that was read
        begin = max(begin, last - window)
        carried = ids[max(0, begin - window - place) :]
    ids, places = (np.concatenate(each) for each in zip(*pieces, strict=True))
    return ids, places, total, words


def get_chunk(
    model: WordRows, chunk: int, blocks: int, part: int = 0, sizes: Sequence[int] = (1,)
) -> tuple[Ints, int]:
    """Read the ids of a chunk, block after block, and count its words.

    With `sizes`, the ids of one of consecutive parts of these relative sizes: only the rows of that
    part are read.
    """
    counts = _counts(model, chunk, blocks)
    total, words = counts.sum(0).tolist()
    ends_of_parts = [sum(sizes[: part + at]) for at in (0, 1)]
    first, last = (total * end // sum(sizes) for end in ends_of_parts)
    before, after = (words * end // sum(sizes) for end in ends_of_parts)
    return _read(model, chunk, counts, first, last), after - before


def _read(model: WordRows, chunk: int, counts: NDArray[np.int64], first: int, last: int) -> Ints:
    """Read the ids of a chunk at places `first` to `last`."""
    ends = counts[:, 0].cumsum()
    begins = np.clip(first - ends + counts[:, 0], 0, counts[:, 0])  # of each block
    stops = np.clip(last - ends + counts[:, 0], 0, counts[:, 0])
    bits = id_bits(len(model.vocabulary))
    from_word = begins // packed.GROUP * bits
    to_word = np.where(stops > begins, -(-stops // packed.GROUP) * bits, from_word)
    words = np.empty(int((to_word - from_word).sum()), np.float32)
    shared_blocks.read(model, _place(chunk), from_word.tolist(), to_word.tolist(), words)
    ids = np.empty(last - first, np.int32)
    id_ends, word_ends = (stops - begins).cumsum(), (to_word - from_word).cumsum()
    for at in np.flatnonzero(stops > begins).tolist():
        of_block = words[word_ends[at] - to_word[at] + from_word[at] : word_ends[at]]
        out = ids[id_ends[at] - stops[at] + begins[at] : id_ends[at]]
        packed.unpack(of_block, bits, int(begins[at]) % packed.GROUP, out)
    return ids


def count(model: WordRows, chunk: int, blocks: int) -> tuple[int, int]:
    """Count the ids and the words of a chunk."""
    ids, words = _counts(model, chunk, blocks).sum(0).tolist()
    return ids, words


def _counts(model: WordRows, chunk: int, blocks: int) -> NDArray[np.int64]:
    """Read how many ids and words each block has, int64 (blocks, 2)."""
    heads = shared_blocks.heads(model, _place(chunk), range(blocks))
    return heads[:, :4:2].astype(np.int64) * _COUNT_BASE + heads[:, 1:4:2].astype(np.int64)
