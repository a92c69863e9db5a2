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

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
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
from snailps.models.word_vectors.resident_rows import UNDER_WAY, pieces
from snailps.models.word_vectors.skip_gram import BUNDLE
from snailps.models.word_vectors.word_parts import piece_tokens

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

Ints = NDArray[np.int32]

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
        self._model, self._name, self._keys = model, table, keys
        self.local = tuple(layout.make(len(keys)) for _ in range(layout.arrays))

    @staticmethod
    def pull(tables: Sequence[KeptTable]) -> None:
        """Takes the rows of tables as the servers have them."""
        for table, some, packed in KeptTable._pulled(tables):
            sgd = table._model.sgd
            sgd.in_threads(sgd.layout.load, packed, *(array[some] for array in table.local))
            sgd.packed.give(packed)

    @staticmethod
    def push(tables: Sequence[KeptTable]) -> None:
        """Makes the servers' rows these, and waits until that is acknowledged."""
        pushes: deque[Pending] = deque()
        for table, some, packed in KeptTable._pulled(tables):
            model, sgd = table._model, table._model.sgd
            sgd.in_threads(sgd.layout.subtract, packed, *(array[some] for array in table.local))
            keys = table._keys[some]
            pushes.append(model.push_async(table._name, keys, packed, state=sgd.state))
            if len(pushes) > UNDER_WAY:
                sgd.packed.give(pushes.popleft().wait())
        for push in pushes:
            sgd.packed.give(push.wait())

    @staticmethod
    def _pulled(tables: Sequence[KeptTable]) -> Iterator[tuple[KeptTable, slice, Floats]]:
        """All rows as the servers have them, some at a time, in arrays of `packed`."""
        coming: deque[tuple[KeptTable, slice, Pending]] = deque()
        for table in tables:
            model, sgd = table._model, table._model.sgd
            for some in pieces(len(table._keys), sgd.layout.width):
                keys = table._keys[some]
                packed = sgd.packed.take(len(keys))
                pull = model.pull_async(table._name, keys, packed, state=sgd.state)
                coming.append((table, some, pull))
                if len(coming) > UNDER_WAY:
                    of, which, begun = coming.popleft()
                    yield of, which, begun.wait()
        for of, which, begun in coming:
            yield of, which, begun.wait()


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


@dataclass(frozen=True, slots=True)
class Trained:
    """A piece that is trained: place, words, last learning rate, results of the kernels."""

    at: int
    words: int
    rate: float
    results: list[Judged]

    @classmethod
    def of(cls, at: int, words: int, rate: float, tasks: Sequence[Future[Judged]]) -> Trained:
        """Waits for the kernels."""
        return cls(at, words, rate, [task.result() for task in tasks])


class SoleTrainer(ABC, Generic[T]):
    """Prepares and trains tenancies of chunks of one part.

    Parameters
    ----------
    model : WordVectors
        After its `setup`.
    """

    _train: Callable[..., list[Future[Judged]]]
    """Begins to train a piece in threads: a function of `kernel_threads`."""

    def __init__(self, model: WordVectors) -> None:
        self._model = model
        vocabulary = model.vocabulary
        self._noise_sums = vocabulary.noise(NOISE_POWER).cumsum()
        self._logit = model.noise_logit(slice(None))
        self._pieces: dict[int, int] = {}  # of a visit, by chunk
        self._tables: tuple[KeptTable, KeptTable] | None = None  # input, output
        self._chunk = -1  # whose deltas were the last to be pushed
        self._opening: Future[tuple[KeptTable, KeptTable]] | None = None
        self._ahead = ThreadPoolExecutor(1, "snailps-piece")

    def close(self) -> None:
        """Ends the thread."""
        self._ahead.shutdown()

    def free(self) -> None:
        """Frees the rows and their places: a chunk of more parts follows."""
        if self._opening is not None:
            self._opening.result()
        self._tables = self._opening = None
        self.__dict__.pop("_bags", None)

    def begin(self) -> None:
        """Pulls all rows while the first chunk is dealt, before anything is trained."""
        if self._opening is None:
            self._opening = self._ahead.submit(self._pulled)

    def prepare(self, block: Block) -> Piece[T] | None:
        """The first piece; the others are prepared beside the training."""
        left = [visit for visit in range(block.visiting) if visit not in block.settled]
        return self._piece(block, left[0] * self._pieces_of_visit(block)) if left else None

    def train(self, block: Block) -> dict[str, float]:
        """Trains the visits that the master lends, then pushes what has changed."""
        tables = self._open(block)
        outputs = tables[1].local
        per_visit = self._pieces_of_visit(block)
        totals = {"units": 0.0, "loss": 0.0, "examples": 0.0}
        trained: list[Trained] = []
        for piece in self._trained(block, tables):
            trained.append(piece)
            if len(trained) < per_visit:
                continue
            results = [judged for one in trained for judged in one.results]
            figures = {
                "units": float(sum(one.words for one in trained)),
                "lr": piece.rate,
                **self._model.judged(results, are_finite(outputs[0])),
            }
            block.visits.give_back(piece.at // per_visit, figures)
            for name in totals:
                totals[name] += figures[name]
            totals["lr"] = piece.rate
            trained = []
        KeptTable.push(tables)
        self._chunk = block.chunk
        if block.progress[1] >= 1.0:
            self.free()  # before the master, which is told next, begins to export
        return totals

    def _trained(self, block: Block, tables: tuple[KeptTable, KeptTable]) -> Iterator[Trained]:
        """Trains the pieces of the visits, in their order.

        The kernels of a piece are queued before those of the one before are done, so that no thread
        waits for another; the next one is prepared when they are, so that two are in memory.
        """
        (inputs, outputs), (bags, _) = (table.local for table in tables), self._bags
        begin, end = block.progress
        per_visit, lr = self._pieces_of_visit(block), self._model.settings.lr
        step = (end - begin) / (block.visiting * per_visit)
        before: Callable[[], Trained] | None = None
        pieces = self._lent(block)
        coming = self._ahead.submit(next, pieces, None)
        for number in itertools.count(block.had * per_visit):
            piece = coming.result()
            if piece is None:
                break
            first, last = (lr * (1.0 - begin - step * (number + at)) for at in (0, 1))
            seed = block.seed + piece.at * 0x9E3779B97F4A7C15
            tasks = self._train(
                self._model, inputs, outputs, piece.content, bags, piece.noise, (first, last), seed
            )
            done = before and before()
            before = partial(Trained.of, piece.at, piece.words, last, tasks)
            coming = self._ahead.submit(next, pieces, None)
            if done:
                yield done
        if before:
            yield before()

    def _open(self, block: Block) -> tuple[KeptTable, KeptTable]:
        """The rows: as the chunk before left them if it was trained here, else from the servers."""
        if self._opening is not None:
            self._tables, self._opening = self._opening.result(), None
        if self._tables is None:
            self._tables = self._pulled()
        elif self._chunk != block.chunk - 1 or (block.had and block.chunk == 0):
            KeptTable.pull(self._tables)
        return self._tables

    def _pulled(self) -> tuple[KeptTable, KeptTable]:
        """All rows as the servers have them."""
        words = np.arange(len(self._model.vocabulary), dtype=np.uint64)
        tables = (
            KeptTable(self._model, "input", self._bags[1]),
            KeptTable(self._model, "output", words),
        )
        KeptTable.pull(tables)
        return tables

    @cached_property
    def _bags(self) -> tuple[Bags, Keys]:
        """Of all words, and the keys of their input rows."""
        ptr, rows, keys = self._model.bags(np.arange(len(self._model.vocabulary)))
        return Bags.of(ptr, rows, len(keys)), keys

    def _pieces_of_visit(self, block: Block) -> int:
        """So many that each has `piece_tokens` at most: the progress may be one of time."""
        found = self._pieces.get(block.chunk, 0)
        if not found:
            ids = shared_text.count_ids(self._model, block.chunk, block.slices)
            found = max(1, ceil(ids / block.visiting / piece_tokens(self._model.settings)))
            # The chunk before may still train.
            self._pieces = {block.chunk: found, **dict(islice(self._pieces.items(), 1))}
        return found

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
