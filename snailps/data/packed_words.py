"""Many words in little memory: their bytes one after another, and the offset of each.

    list of bytes, lines, text and offsets -> PackedWords -> a word, a range, a choice, an order

A Python list of two million words takes 110 MB; packed, a word takes its bytes and 8 more.  Must
not know counts or ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from snailps.data._shuffling import entries_in_order, pointers_in_order

TOGETHER = 1 << 16
"""Words converted to Python objects, or copied, at a time: bounds temporary memory."""
_KEY_BYTES = 8
"""Bytes of a number that words are sorted by."""


class PackedWords(Sequence[bytes]):
    """Words as one piece of memory; reads like a tuple of bytes.

    Word i is ``text[starts[i] : starts[i + 1]]``, with uint8 `text` and uint64 `starts` (n + 1,),
    rising; neither is copied.  Immutable: ranges share its memory, and any thread may read.
    """

    __slots__ = ("starts", "text")

    def __init__(self, text: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        self.text, self.starts = text, starts

    @classmethod
    def of(cls, words: Sequence[bytes]) -> PackedWords:
        """Pack the words of any sequence; return packed ones as they are."""
        if isinstance(words, PackedWords):
            return words
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        return cls(np.frombuffer(b"".join(words), np.uint8), _starts(lengths))

    @classmethod
    def of_lines(cls, text: NDArray[np.uint8], number: int) -> PackedWords:
        """Pack the `number` lines of a text, whose last one has no end of line.

        ValueError: the text has another number of lines.
        """
        ends = np.flatnonzero(text == ord("\n"))
        if len(ends) != max(0, number - 1) or (len(text) and not number):
            raise ValueError(f"expected {number:,} words, got {len(ends) + bool(len(text)):,}")
        starts = np.zeros(number + 1, np.uint64)
        starts[1:-1] = ends - np.arange(len(ends))
        starts[number:] = len(text) - len(ends)
        return cls(text[text != ord("\n")], starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def letters(self) -> int:
        return int(self.starts[-1]) - int(self.starts[0])

    @overload
    def __getitem__(self, which: int) -> bytes: ...
    @overload
    def __getitem__(self, which: slice) -> PackedWords: ...
    def __getitem__(self, which: int | slice) -> bytes | PackedWords:
        """A word, or a range of them that shares this object's memory."""
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            return PackedWords(self.text, self.starts[start : max(start, stop) + 1])
        i = which + len(self) if which < 0 else which
        if not 0 <= i < len(self):
            raise IndexError(f"expected a word below {len(self)}, got {which}")
        return self.text[int(self.starts[i]) : int(self.starts[i + 1])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        for begin in range(0, len(self), TOGETHER):
            starts = self.starts[begin : begin + TOGETHER + 1]
            first = int(starts[0])
            text = self.text[first : int(starts[-1])].tobytes()
            ends = (starts - np.uint64(first)).tolist()
            yield from (text[i:j] for i, j in pairwise(ends))

    def __add__(self, more: PackedWords) -> PackedWords:
        text = np.concatenate((self.joined(), more.joined()))
        lengths = np.concatenate((self.lengths, more.lengths))
        return PackedWords(text, _starts(lengths))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if isinstance(other, PackedWords):
            same = np.array_equal(self.lengths, other.lengths)
            return same and np.array_equal(self.joined(), other.joined())
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self)} words: {shown}{', ...' if len(self) > 3 else ''}>"

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each word, int64 (n,)."""
        return np.diff(self.starts).astype(np.int64)

    @property
    def nbytes(self) -> int:
        return int(self.starts[-1] - self.starts[0]) + self.starts.nbytes

    def joined(self) -> NDArray[np.uint8]:
        """The words' bytes in sequence; a view."""
        return self.text[int(self.starts[0]) : int(self.starts[-1])]

    def with_tails(self, tails: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Each word's bytes followed by its row of `tails`, uint8 (n, k); a copy."""
        out = np.empty(int(self.starts[-1] - self.starts[0]) + tails.size, np.uint8)
        begin = 0
        for first in range(0, len(self), TOGETHER):
            words, added = self[first : first + TOGETHER], tails[first : first + TOGETHER]
            ends = np.cumsum(words.lengths + tails.shape[1])
            part = out[begin : begin + int(ends[-1])]
            is_tail = np.zeros(len(part), np.bool_)
            for back in range(1, tails.shape[1] + 1):
                is_tail[ends - back] = True
            part[is_tail] = added.reshape(-1)
            part[~is_tail] = words.joined()
            begin += len(part)
        return out

    def take(self, ids: NDArray[np.integer[Any]]) -> PackedWords:
        """The words with these ids, in this order, copied."""
        order, starts = ids.astype(np.uint32), self.starts.astype(np.int64)
        taken = pointers_in_order(starts, order).astype(np.uint64)
        return PackedWords(entries_in_order(self.text, starts, order), taken)

    def begin_with(self, prefix: bytes) -> NDArray[np.bool_]:
        """Which words begin with `prefix`; bool (n,)."""
        has_prefix = self.lengths >= len(prefix)
        places = self.starts[:-1].astype(np.int64)
        for offset, byte in enumerate(prefix):
            candidates = np.flatnonzero(has_prefix)
            has_prefix[candidates] = self.text[places[candidates] + offset] == byte
        return has_prefix

    def order(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids by falling count, equal counts by ascending bytes; int64 (n,).

        Sorts by count, then repeatedly the words that are still tied, by their next bytes.
        """
        order = np.argsort(-counts, kind="stable")
        begins = _begins(counts[order])  # the first of each run of words that are equal so far
        longest, offset = int(self.lengths.max(initial=0)), 0
        # Bytes behind the text, so that eight can be read from any place of it.
        padded = np.concatenate((self.text, np.zeros(_KEY_BYTES, np.uint8)))
        eights = np.ndarray(len(self.text) + 1, ">u8", padded, strides=(1,))
        while offset < longest and len(tied := _tied(begins)):
            runs = np.cumsum(begins[tied], dtype=np.uint64)
            # One number to sort by: the run of the word, and as many of its bytes as have room.
            size = _KEY_BYTES - (int(runs[-1]).bit_length() + 7) // 8
            keys = self._keys(order[tied], offset, size, eights)
            keys |= runs << np.uint64(8 * size)
            by = np.argsort(keys)
            order[tied] = order[tied][by]
            begins[tied] |= _begins(keys[by])
            offset += size
        tied = _tied(begins)  # words that differ only in zeros at their end: the shorter first
        order[tied] = order[tied][np.lexsort((self.lengths[order[tied]], np.cumsum(begins[tied])))]
        return order

    def _keys(
        self, ids: NDArray[np.int64], offset: int, size: int, eights: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """`size` bytes of each word from byte `offset` on, as numbers that sort like the bytes;
        `eights` has the eight bytes from each place of the text on.
        """
        starts = self.starts.astype(np.int64)
        places = starts[:-1][ids] + offset
        lacking = np.clip(places + size - starts[1:][ids], 0, size).astype(np.uint64)
        keys: NDArray[np.uint64] = eights[np.minimum(places, len(eights) - 1)].astype(np.uint64)
        keys >>= np.uint64(8 * (_KEY_BYTES - size))
        keys >>= 8 * lacking
        keys <<= 8 * lacking
        return keys


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Offsets (n + 1,) of consecutive words of these lengths."""
    starts = np.zeros(len(lengths) + 1, np.uint64)
    starts[1:] = np.cumsum(lengths)
    return starts


def _begins(values: NDArray[Any]) -> NDArray[np.bool_]:
    """The first of each run of equal values."""
    out = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def _tied(begins: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Indices of elements in runs of more than one."""
    same = ~begins
    same[:-1] |= same[1:]
    return np.flatnonzero(same)
