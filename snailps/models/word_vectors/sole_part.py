"""Training of a chunk's only part: all rows stay at its worker, and visits are shares of the text.

    prepare: a piece of the chunk's text -> sorted pairs, or the text itself, and negatives
    train:   rows <- PULL, unless they are here; the pieces of one visit after the other, each
             prepared while another one trains -> give back;
             at the end, all rows: what the servers have <- PULL, the difference -> PUSH

A chunk of one part has one tenancy, so no other worker has rows: none travel between visits, and
output rows need no dealing.  If workers join, the next chunk has more parts, and begins when this
one is pushed.  If the worker is lost, its tenancy is trained again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Block, Pending
from snailps.models.local_sgd import Floats, Keys, are_finite
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.block_size import NOISE_POWER, NOISE_REUSE, draw
from snailps.models.word_vectors.kernel_threads import (
    MASK64,
    Bags,
    Bundles,
    Judged,
    Noise,
    train_bundles,
    train_text,
)
from snailps.models.word_vectors.skip_gram import BUNDLE
from snailps.models.word_vectors.word_parts import piece_tokens

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

Ints = NDArray[np.int32]
ROWS_AT_ONCE = 1 << 13
"""Rows that one request pulls or pushes; two of each are under way."""

T = TypeVar("T")


class KeptTable:
    """All rows of a table, at the only worker that trains them.

    What the servers have is pulled again for the differences, some rows at a time: a copy of all
    would be two fifths of a worker's memory.  So a push also repairs what servers have lost
    (`replication: async`).

    Parameters
    ----------
    model : WordVectors
    table : str
    keys : uint64 array

    Attributes
    ----------
    local : tuple of arrays
        The rows to train, and AdaGrad's squares behind them.
    """

    def __init__(self, model: WordVectors, table: str, keys: Keys) -> None:
        layout = model.sgd.layout
        self._model, self._table, self._keys = model, table, keys
        self.local = tuple(layout.make(len(keys)) for _ in range(layout.arrays))

    def pull(self) -> None:
        """Takes the rows as the servers have them."""
        sgd = self._model.sgd
        for some, packed in self._pulled():
            sgd.in_threads(sgd.layout.load, packed, *(array[some] for array in self.local))
            sgd.packed.give(packed)

    def push(self) -> None:
        """Makes the servers' rows these, and waits until that is acknowledged."""
        sgd, before = self._model.sgd, None
        for some, packed in self._pulled():
            sgd.in_threads(sgd.layout.subtract, packed, *(array[some] for array in self.local))
            push = self._model.push_async(self._table, self._keys[some], packed, state=sgd.state)
            if before is not None:
                sgd.packed.give(before.wait())
            before = push
        if before is not None:
            sgd.packed.give(before.wait())

    def _pulled(self) -> Iterator[tuple[slice, Floats]]:
        """All rows as the servers have them, some at a time, in arrays of `packed`."""
        coming: tuple[slice, Pending] | None = None
        for first in range(0, len(self._keys), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            keys = self._keys[some]
            packed = self._model.sgd.packed.take(len(keys))
            begun = self._model.pull_async(self._table, keys, packed, state=self._model.sgd.state)
            if coming is not None:
                yield coming[0], coming[1].wait()
            coming = some, begun
        if coming is not None:
            yield coming[0], coming[1].wait()


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """A piece of a chunk's text, ready to be trained.

    Attributes
    ----------
    at : int
        Its place among all pieces of the chunk.
    words : int
        Of the text, kept or not.
    content
        Sorted pairs, or kept words.
    noise : Noise
    """

    at: int
    words: int
    content: T
    noise: Noise


class SoleTrainer(ABC, Generic[T]):
    """Prepares and trains tenancies of chunks of one part.

    Parameters
    ----------
    model : WordVectors
        After its `setup`.
    """

    _train: Callable[..., list[Judged]]
    """Trains a piece in threads: a function of `kernel_threads`."""

    def __init__(self, model: WordVectors) -> None:
        self._model = model
        vocabulary = model.vocabulary
        self._noise_sums = vocabulary.noise(NOISE_POWER).cumsum()
        self._logit = model.noise_logit(slice(None))
        kept = vocabulary.keep_probability(model.settings.sample)
        self._kept = float(vocabulary.counts @ kept)  # words of an epoch
        self._tables: tuple[KeptTable, KeptTable] | None = None  # input, output
        self._chunk = -1  # whose deltas were the last to be pushed
        self._ahead = ThreadPoolExecutor(1, "snailps-piece")

    def close(self) -> None:
        """Ends the thread."""
        self._ahead.shutdown()

    def free(self) -> None:
        """Frees the rows and their places: a chunk of more parts follows."""
        self._tables = None
        self.__dict__.pop("_bags", None)

    def prepare(self, block: Block) -> Piece[T] | None:
        """The first piece; the others are prepared beside the training."""
        left = [visit for visit in range(block.visiting) if visit not in block.settled]
        return self._piece(block, left[0] * self._pieces_of_visit(block)) if left else None

    def train(self, block: Block) -> dict[str, float]:
        """Trains the visits that the master lends, then pushes what has changed."""
        tables = self._open(block)
        (inputs, outputs), (bags, _) = (table.local for table in tables), self._bags
        begin, end = block.progress
        per_visit, trained, words = self._pieces_of_visit(block), 0, 0
        step = (end - begin) / (block.visiting * per_visit)
        totals = {"units": 0.0, "loss": 0.0, "examples": 0.0}
        results: list[Judged] = []
        pieces = self._lent(block)
        coming = self._ahead.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = self._ahead.submit(next, pieces, None)
            behind = [begin + step * (block.had * per_visit + trained + at) for at in (0, 1)]
            first, last = (self._model.settings.lr * (1.0 - share) for share in behind)
            seed = block.seed + piece.at * 0x9E3779B97F4A7C15
            results += self._train(
                self._model, inputs, outputs, piece.content, bags, piece.noise, (first, last), seed
            )
            trained, words = trained + 1, words + piece.words
            if trained % per_visit:
                continue
            judged = self._model.judged(results, are_finite(outputs[0]))
            figures = {"units": float(words), "lr": last, **judged}
            block.visits.give_back(piece.at // per_visit, figures)
            for name in totals:
                totals[name] += figures[name]
            totals["lr"] = last
            results, words = [], 0
        for table in tables:
            table.push()
        self._chunk = block.chunk
        return totals

    def _open(self, block: Block) -> tuple[KeptTable, KeptTable]:
        """The rows: as the chunk before left them if it was trained here, else from the servers."""
        model, keeps = self._model, self._chunk == block.chunk - 1
        if self._tables is None:
            keeps = False
            words = np.arange(len(model.vocabulary), dtype=np.uint64)
            self._tables = (
                KeptTable(model, "input", self._bags[1]),
                KeptTable(model, "output", words),
            )
        if not keeps:
            for table in self._tables:
                table.pull()
        return self._tables

    @cached_property
    def _bags(self) -> tuple[Bags, Keys]:
        """Of all words, and the keys of their input rows."""
        ptr, rows, keys = self._model.bags(np.arange(len(self._model.vocabulary)))
        return Bags.of(ptr, rows, len(keys)), keys

    def _pieces_of_visit(self, block: Block) -> int:
        """So many that each has `piece_tokens` at most, if the text is as elsewhere."""
        begin, end = block.progress
        kept = self._kept * self._model.settings.epochs * (end - begin)
        return max(1, ceil(kept / block.visiting / piece_tokens(self._model.settings)))

    def _lent(self, block: Block) -> Iterator[Piece[T]]:
        """The pieces of one visit after the other."""
        first: Piece[T] | None = block.prepared
        block.prepared = None  # so that its memory is returned when it is trained
        per_visit = self._pieces_of_visit(block)
        while (visit := block.visits.borrow()) is not None:
            for at in range(visit * per_visit, (visit + 1) * per_visit):
                piece, first = first, None
                if piece is None or piece.at != at:
                    piece = self._piece(block, at)
                yield piece

    def _piece(self, block: Block, at: int) -> Piece[T]:
        model, pieces = self._model, block.visiting * self._pieces_of_visit(block)
        ids, words = shared_text.get_chunk(model, block.chunk, block.slices, at, pieces)
        seed = model.settings.seed * 0x9E3779B97F4A7C15 + block.chunk * pieces + at
        content, groups = self._sorted(ids, seed & MASK64)
        pool = max(kernels.SHARED, groups * kernels.SHARED // kernels.GROUP // NOISE_REUSE)
        drawn = draw(self._noise_sums, pool, (block.seed + at) & MASK64)
        return Piece(at, words, content, Noise(drawn.astype(np.int32), self._logit))

    @abstractmethod
    def _sorted(self, ids: Ints, seed: int) -> tuple[T, int]:
        """What is trained of a text, and in how many groups: each shares its negatives."""


class SoleSkipGramTrainer(SoleTrainer[Bundles]):
    """Skip-gram: a piece is its sorted pairs."""

    _train = staticmethod(train_bundles)

    def _sorted(self, ids: Ints, seed: int) -> tuple[Bundles, int]:
        model = self._model
        centres, starts, contexts, _ = kernels.sort_pairs(
            ids, model.settings.window, seed, BUNDLE, run=model.run
        )
        return (centres, starts, contexts), len(centres)


class SoleCbowTrainer(SoleTrainer[Ints]):
    """CBOW: a piece is its text."""

    _train = staticmethod(train_text)

    def _sorted(self, ids: Ints, seed: int) -> tuple[Ints, int]:
        return ids, len(ids)
