"""Stages of a pipeline that makes batches of context windows from text.

    blocks of files -> Reader -> bytes of whole words -> Tokenizer -> words, lower case, one blank
    between -> Filter -> int32 numbers of known words -> Batcher -> int32 (bs, window)

Docstrings describe each stage's items, so a user's stage can be put between any two that fit.  Also
divides an input among pipelines.  Must not know tables or learners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.data._text import Lexicon
from snailps.data.pipeline import LAPS, Lap, Stage
from snailps.errors import DataError
from snailps.files.blocks import InputFile, cut, read_block
from snailps.files.scratch import Scratch
from snailps.pieces import Piece

Ids = NDArray[np.int32]

PIECE_BYTES = 1 << 16
_LETTERS = bytes(
    c if 97 <= c <= 122 else c + 32 if 65 <= c <= 90 else 32 for c in range(256)
)  # ASCII letters in lower case, everything else a blank


def letters_only(text: bytes) -> bytes:
    """ASCII letters in lower case; every other byte becomes a blank."""
    return text.translate(_LETTERS)


def share_of_input(sources: Sequence[InputFile], index: int, count: int) -> list[Piece]:
    """The share of pipeline `index` of `count`, in pieces of up to 64 KiB.

    A file if there are as many files as pipelines, else an equal range of all bytes.  All pipelines
    together read each byte once.  DataError: more pipelines than bytes.
    """
    if len(sources) == count:
        return cut(sources[index : index + 1], PIECE_BYTES)
    total = sum(source.bytes for source in sources)
    start, stop = total * index // count, total * (index + 1) // count
    if start == stop:
        raise DataError(
            f"{count} pipelines are more than the input's {total} bytes: use fewer pipelines, or "
            "more text"
        )
    pieces: list[Piece] = []
    file_begin = 0
    for source in sources:
        first, last = max(start - file_begin, 0), min(stop - file_begin, source.bytes)
        for low in range(first, last, PIECE_BYTES):
            pieces.append(Piece(source.path, low, min(low + PIECE_BYTES, last)))
        file_begin += source.bytes
    return pieces


class WordReader(Stage):
    """Source: bytes of whole words, piece by piece, `passes` times (0: without end).

    Unpacks files in `scratch_dir` (`Scratch`).  `laps`: mark the first repetitions with a `Lap`.
    """

    def __init__(
        self,
        blocks: Sequence[Piece],
        passes: int = 0,
        scratch_dir: str = "",
        scratch_bytes: int = 0,
        *,
        laps: bool = False,
    ) -> None:
        self.blocks, self.passes = list(blocks), passes
        self.laps = LAPS if laps else 0
        self.scratch_dir, self.scratch_bytes = scratch_dir, scratch_bytes

    def __call__(self, items: Iterator[object]) -> Iterator[Any]:
        with Scratch(self.scratch_dir, self.scratch_bytes) as scratch:
            done = 0
            while not self.passes or done < self.passes:
                for block in self.blocks:
                    yield read_block(
                        block.path, block.start, block.stop, unit="word", scratch=scratch
                    )
                done += 1
                if done <= self.laps:
                    yield Lap()


def _checked(stage: str, items: Iterator[Any], expected: str, ndim: int = 0) -> Iterator[Any]:
    """Items of the stage before, which may be a user's: bytes, or arrays int32 of `ndim`."""
    for item in items:
        if ndim:
            fits = isinstance(item, np.ndarray) and (item.dtype, item.ndim) == (np.int32, ndim)
        else:
            fits = isinstance(item, bytes)
        if not fits:
            raise DataError(
                f"stage {stage} of a pipeline: expected {expected} from the stage before it, got "
                f"{item!r:.60}"
            )
        yield item


class Tokenizer(Stage):
    """Words: lower-cased runs of ASCII letters, separated by all other bytes."""

    def __call__(self, items: Iterator[bytes]) -> Iterator[bytes]:
        """Bytes of whole words -> bytes of words, one blank between two; no empty items."""
        for piece in _checked("Tokenizer", items, "a text, bytes"):
            words = b" ".join(letters_only(piece).split())
            if words:
                yield words


class KnownWords(Stage):
    """Numbers of the words that are in the vocabulary `words`, without the others.

    Fails after `bytes_max` bytes of unknown words in a row (0: never): a repeated input would never
    give an item.
    """

    def __init__(self, words: Sequence[bytes], bytes_max: int = 0) -> None:
        self.words, self.bytes_max = list(words), bytes_max

    def __call__(self, items: Iterator[bytes]) -> Iterator[Ids]:
        """Words with a blank between two -> their numbers, int32, as many as are known."""
        lexicon, unknown = Lexicon(self.words), 0
        for words in _checked("Filter", items, "words with a blank between, bytes"):
            ids, _ = lexicon.encode(words)
            ids = ids[ids >= 0]  # without marks of a sentence's end
            unknown = 0 if len(ids) else unknown + len(words) + 1
            if len(ids):
                yield ids
            elif self.bytes_max and unknown > self.bytes_max:
                raise DataError(
                    "no word of a pipeline's whole text is in the vocabulary, such as "
                    f"{words[:40].decode(errors='replace')!r}: is vocab.txt of another text?"
                )


class Batcher(Stage):
    """Batches of `bs` windows: each run of `window` neighbours in the stream is in one, once.

    The middle word of a window is the target.  Gathers `shuffle` windows for a random order by
    `seed` (0: the text's), reading a short text as often as needed.
    """

    gathers = True

    def __init__(self, window: int, bs: int, shuffle: int = 0, seed: int = 0) -> None:
        self.window, self.bs, self.shuffle, self.seed = window, bs, shuffle, seed

    def __call__(self, items: Iterator[Ids]) -> Iterator[Ids]:
        """Numbers of words -> int32 (bs, window); at the end of the input one may be shorter."""
        rng = np.random.Generator(np.random.PCG64(self.seed))
        held = np.zeros((0, self.window), np.int32)
        pool = max(self.shuffle, self.bs)
        for windows in self._windows(items):
            held = np.concatenate([held, windows])
            while len(held) >= pool:
                mixed, held = self._mixed(held[:pool], rng), held[pool:]
                whole = len(mixed) - len(mixed) % self.bs
                yield from self._cut(mixed[:whole])
                held = np.concatenate([mixed[whole:], held])
        yield from self._cut(self._mixed(held, rng))

    def _windows(self, items: Iterator[Ids]) -> Iterator[Ids]:
        """Windows of the stream, some at a time; the last words stay for the next ones."""
        last = np.zeros(0, np.int32)
        for ids in _checked("Batcher", items, "numbers of words, an array int32 (n,)", 1):
            stream = np.concatenate([last, ids])
            if len(stream) >= self.window:
                yield np.lib.stride_tricks.sliding_window_view(stream, self.window)
            last = stream[max(0, len(stream) - self.window + 1) :]

    def _mixed(self, windows: Ids, rng: np.random.Generator) -> Ids:
        return windows[rng.permutation(len(windows))] if self.shuffle else windows

    def _cut(self, windows: Ids) -> Iterator[Ids]:
        for first in range(0, len(windows), self.bs):
            yield np.ascontiguousarray(windows[first : first + self.bs])
