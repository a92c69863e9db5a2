"""Training in which no output row has two writers at a time: rotation; skip-gram's way of it.

    deal:    a slice of text -> word ids -> table "text"                 (by any worker, ahead)
    prepare: ids of the chunk -> pairs whose centre word is in the worker's part, sorted
    train:   resident input rows, new ones by PULL; then for each visiting part of the output rows:
             borrow -> PULL -> kernel threads -> PUSH -> give back;  resident deltas -> PUSH, at
             the end and, in long tenancies, between two visits: they are settled then

`RotationTrainer` is what skip-gram and CBOW have in common; the rest is of skip-gram; `cbow` has
the other.

Words are dealt into resident parts, one a worker, for their input rows, and into twice as many
visiting parts for their output rows (`word_parts`).  The master lends a visiting part to one worker
at a time.  So a worker trains a visiting part with rows that all others have finished with, and
pushes exact differences: neither stale rows nor shares.  Rows of n-grams are the exception: words
of several parts have them, each worker trains a copy (`input_exchange`).

Negatives of a pair are drawn from the visiting part of its context.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Block, Pending
from snailps.data._key_numbering import WordNumbers
from snailps.models.local_sgd import ArrayPool, Floats, Keys, are_finite
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.block_size import COPIES, NOISE_POWER, NOISE_REUSE, draw
from snailps.models.word_vectors.input_exchange import InputExchange, Sharing, sharing_of_grams
from snailps.models.word_vectors.kernel_threads import MASK64, Bags, Noise, train_bundles
from snailps.models.word_vectors.resident_rows import UNDER_WAY, ResidentRows
from snailps.models.word_vectors.skip_gram import BUNDLE
from snailps.models.word_vectors.word_parts import deal, sharers_of_grams

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

Ints = NDArray[np.int32]
SETTLE_SHARE = 0.25
"""Of a tenancy's visits, between two times that its rows are settled, at least."""
SETTLE_SECONDS = 4.0
"""The same in seconds: training that is lost for less costs less than its loss."""
SETTLE_ROWS = 0.2
"""Rows that are pushed for that, at most, of those that the tenancy moves anyhow."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How words are dealt where there are so many resident and visiting parts.

    Attributes
    ----------
    resident, visiting : int32 array
        The part of each word's input row, and of its output row.
    words, noise_sums : tuple of arrays
        Of each visiting part: its words, and the running sum of their probabilities as negatives.
    shares : float64 array
        Running sum of the resident parts' shares of the text, from 0 to 1.
    sharers : int32 array
        Of each bucket of n-grams: resident parts with a word that has one; empty without n-grams,
        and with CBOW, of which any part may have each.
    """

    resident: Ints
    visiting: Ints
    words: tuple[Ints, ...]
    noise_sums: tuple[NDArray[np.float64], ...]
    shares: NDArray[np.float64]
    sharers: Ints


def words_between(words: int, ends: NDArray[np.int64], part: int) -> int:
    """The share of so many words that lies between two of these ends."""
    whole = max(1, int(ends[-1]))
    before, after = (words * int(end) // whole for end in ends[part : part + 2])
    return after - before


@dataclass(slots=True, kw_only=True)
class Tenancy:
    """A prepared tenancy: which rows it trains; its groups of pairs or targets are of the model.

    Attributes
    ----------
    bounds : int64 array
        Groups of visiting part p are number ``bounds[p]`` to ``bounds[p + 1] - 1``.
    present : int64 array
        Words that it has input rows of, ascending.
    bags : Bags
        Of each of these: the places of its input rows in `resident`.
    resident : ResidentRows
        The input rows of the part.
    keys, rows : arrays
        Of all input rows that are trained, words first: their keys, and their places.
    words : int
        Words of the text that count as this tenancy's, settled visits or not.
    """

    parts: Parts
    bounds: NDArray[np.int64]
    present: NDArray[np.int64]
    bags: Bags
    resident: ResidentRows
    keys: Keys
    rows: NDArray[np.int64]
    words: int

    def words_of(self, part: int) -> int:
        """Words that count as trained by the visit of a part."""
        return words_between(self.words, self.bounds, part)


@dataclass(slots=True, kw_only=True)
class SkipGramTenancy(Tenancy):
    """A tenancy of sorted pairs.

    Attributes
    ----------
    centres, starts, contexts
        As `kernels.sort_pairs` returns them; centres are numbered among `present`.
    pairs_before : int64 array
        Pairs of the visiting parts before each one, settled or not; at the end of all.
    """

    centres: Ints
    starts: NDArray[np.int64]
    contexts: Ints
    pairs_before: NDArray[np.int64]

    def words_of(self, part: int) -> int:
        """By the pairs."""
        return words_between(self.words, self.pairs_before, part)


@dataclass(slots=True)
class Visit:
    """A visiting part that is borrowed: the pairs to train, and the rows that they need."""

    part: int
    groups: slice
    keys: Keys
    contexts: Ints
    noise: Ints
    noise_logit: Floats
    packed: Floats
    local: tuple[Floats, ...]
    figures: dict[str, float] = field(default_factory=dict)


class Settling:
    """After which visits of a tenancy its input rows are settled, besides its end.

    If its worker is lost, those visits are not trained again.

    Parameters
    ----------
    block : Block
    rows : int
        Input rows, pushed each time.
    opened : int
        Rows that were pulled when it began.
    """

    def __init__(self, block: Block, rows: int, opened: int) -> None:
        self._first = self._last = block.had
        self._visiting, self._rows, self._opened = block.visiting, max(1, rows), opened
        self._since = time.monotonic()

    def is_due(self, visits: int, moved: int) -> bool:
        """Whether rows are to be settled after so many visits, which moved so many rows."""
        left = self._visiting - self._first
        whole = self._opened + self._rows + moved * left / (visits - self._first)
        times = int(SETTLE_ROWS * whole / self._rows)
        apart = max(SETTLE_SHARE * self._visiting, left / (times + 1))
        now = time.monotonic()
        due = self._last + apart <= visits < self._visiting and now - self._since >= SETTLE_SECONDS
        if due:
            self._last, self._since = visits, now
        return due


T = TypeVar("T", bound=Tenancy)


class RotationTrainer(ABC, Generic[T]):
    """Prepares and trains tenancies for a `WordVectors` worker.

    Parameters
    ----------
    model : WordVectors
        After its `setup`.
    """

    def __init__(self, model: WordVectors) -> None:
        self._model = model
        self._vocabulary = model.vocabulary
        self._keep = model.vocabulary.keep_probability(model.settings.sample)
        self._noise = model.vocabulary.noise(NOISE_POWER)
        self._parts: dict[tuple[int, int], Parts] = {}
        self._trained = ArrayPool(model.sgd.layout.make)
        self._residents: tuple[tuple[int, int, int], ResidentRows] | None = None
        # A thread that borrows waits for other workers, so another one gives back.
        self._ahead = ThreadPoolExecutor(1, "snailps-borrow")
        self._behind = ThreadPoolExecutor(1, "snailps-give-back")
        self._numbers = WordNumbers(len(model.vocabulary))  # of the thread that borrows

    def close(self) -> None:
        """Ends the threads."""
        self._ahead.shutdown()
        self._behind.shutdown()

    def free(self) -> None:
        """Frees the rows of parts: a chunk of another number of parts follows."""
        if self._residents is not None:
            self._residents[1].free()
        self._residents = None

    # --- a tenancy, prepared while another one trains ------------------------------------------

    @abstractmethod
    def prepare(self, block: Block) -> T:
        """Reads the chunk and sorts what this part is to train by visiting part."""

    def _place(self, block: Block, keys: Keys) -> tuple[ResidentRows, NDArray[np.int64]]:
        """Places of these input rows: where the part's are, if it was here in the chunk before."""
        resident = rows = None
        if self._residents is not None:
            before, resident = self._residents
            if before == (block.chunk - 1, block.part, block.parts):
                rows = resident.place(keys)
        if resident is None or rows is None:
            s = self._model.settings
            fits = int(s.worker_memory / (4 * COPIES * self._model.sgd.layout.width))
            resident = ResidentRows(self._model, max(len(keys), min(self._rows_of(block), fits)))
            rows = resident.place(keys)
            assert rows is not None
        self._residents = (block.chunk, block.part, block.parts), resident
        return resident, rows

    def _parts_of(self, parts: int, visiting: int) -> Parts:
        """The dealing for so many parts; remembered, as it changes only when workers come or go."""
        found = self._parts.get((parts, visiting))
        if found is None:
            self._parts = {(parts, visiting): (found := self._dealt(parts, visiting))}
        return found

    def _dealt(self, parts: int, visiting: int) -> Parts:
        kept = self._vocabulary.counts.astype(np.float64) * self._keep
        seed = self._model.settings.seed
        resident, visits = deal(kept, parts, 2 * seed), deal(kept, visiting, 2 * seed + 1)
        words = tuple(np.flatnonzero(visits == part).astype(np.int32) for part in range(visiting))
        shares = np.zeros(parts + 1)
        shares[1:] = np.bincount(resident, kept, parts).cumsum() / kept.sum()
        shares[-1] = 1.0
        sums = tuple(self._noise[own].cumsum() for own in words)
        return Parts(resident, visits, words, sums, shares, self._sharers(resident, parts))

    def _sharers(self, resident: Ints, parts: int) -> Ints:
        """Resident parts that have each n-gram."""
        return np.zeros(0, np.int32)

    # --- a tenancy, trained ---------------------------------------------------------------------

    def train(self, block: Block) -> dict[str, float]:
        """Trains a tenancy: all its visits, in the order in which the master lends the parts."""
        tenancy: T = block.prepared
        totals = {"units": 0.0, "loss": 0.0, "examples": 0.0}
        coming = self._ahead.submit(self._borrow, block, tenancy)
        inputs = InputExchange(self._model, tenancy, block, self._sharing(block, tenancy))
        sgd = self._model.sgd
        settling = Settling(block, len(tenancy.keys), inputs.opened)
        returned: deque[Future[None]] = deque()
        number, moved = block.had, 0
        while (visit := coming.result()) is not None:
            while returned and (returned[0].done() or len(returned) > UNDER_WAY):
                returned.popleft().result()  # raises if its push has failed
            coming = self._ahead.submit(self._borrow, block, tenancy)
            self._train_visit(block, tenancy, visit, inputs, number)
            sgd.in_threads(sgd.layout.subtract, visit.packed, *visit.local)
            for array in visit.local:
                self._trained.give(array)
            push = self._model.push_async("output", visit.keys, visit.packed, state=sgd.state)
            number, moved = number + 1, moved + 2 * len(visit.keys)
            is_due = settling.is_due(number, moved + inputs.exchanged)
            settles = inputs.settle() if is_due else None
            former = returned[-1] if returned else None
            returned.append(
                self._behind.submit(self._give_back, block, visit, push, settles, former)
            )
            for name in totals:
                totals[name] += visit.figures[name]
            totals["lr"] = visit.figures["lr"]
        inputs.close()
        if self._residents is not None and self._residents[1] is not tenancy.resident:
            tenancy.resident.free()  # the next one has rows of its own
        for task in returned:
            task.result()
        if number == block.visiting and not block.had:  # else the training is to end
            totals["units"] = float(tenancy.words)  # of a text without pairs, too
        return totals

    def _borrow(self, block: Block, tenancy: T) -> Visit | None:
        """Waits for a visiting part and for its rows; None when this tenancy has had all."""
        part = block.visits.borrow()
        if part is None:
            return None
        model, parts = self._model, tenancy.parts
        groups = slice(int(tenancy.bounds[part]), int(tenancy.bounds[part + 1]))
        pool = (groups.stop - groups.start) * kernels.SHARED // kernels.GROUP // NOISE_REUSE
        if groups.stop > groups.start:
            pool = max(pool, kernels.SHARED)
        drawn = draw(parts.noise_sums[part], pool, (block.seed + part) & MASK64)
        words, contexts, noise = self._numbers.number(
            self._contexts_of(tenancy, groups), parts.words[part][drawn]
        )
        keys = words.astype(np.uint64)
        packed = model.sgd.pull_rows("output", keys).wait()
        local = tuple(self._trained.take(len(keys)) for _ in range(model.sgd.layout.arrays))
        model.sgd.layout.load(packed, *local)
        logit = model.noise_logit(words)
        return Visit(part, groups, keys, contexts, noise, logit, packed, local)

    def _train_visit(
        self, block: Block, tenancy: T, visit: Visit, inputs: InputExchange, number: int
    ) -> None:
        """Trains the pairs of a visit, and notes its figures."""
        s = self._model.settings
        begin, end = block.progress
        step = (end - begin) / block.visiting
        rates = [s.lr * (1.0 - begin - step * (number + at)) for at in (0, 1)]
        first, last = visit.groups.start, visit.groups.stop
        edges = np.linspace(first, last, inputs.turns + 1).astype(int).tolist()
        results: list[tuple[float, int]] = []
        for turn, (a, b) in enumerate(itertools.pairwise(edges)):
            lr = [rates[0] + (rates[1] - rates[0]) * (turn + at) / inputs.turns for at in (0, 1)]
            seed = block.seed + visit.part * 0x9E3779B97F4A7C15 + (turn << 32)
            results += self._train_groups(tenancy, visit, inputs.local, a, b, lr, seed)
            inputs.exchange(number * inputs.turns + turn + 1)
        visit.figures = {
            "units": float(tenancy.words_of(visit.part)),
            "lr": rates[1],
            **self._model.judged(results, are_finite(visit.local[0])),
        }

    @abstractmethod
    def _rows_of(self, block: Block) -> int:
        """Input rows of a part at most."""

    @abstractmethod
    def _sharing(self, block: Block, tenancy: T) -> Sharing:
        """How the input rows of a tenancy travel."""

    @abstractmethod
    def _contexts_of(self, tenancy: T, groups: slice) -> Ints:
        """Words whose output rows some groups of a visit need, in their order."""

    @abstractmethod
    def _train_groups(
        self,
        tenancy: T,
        visit: Visit,
        inputs: tuple[Floats, ...],
        first: int,
        last: int,
        rates: list[float],
        seed: int,
    ) -> list[tuple[float, int]]:
        """Trains groups `first` to `last - 1` in threads: loss and examples of each thread."""

    def _give_back(
        self,
        block: Block,
        visit: Visit,
        push: Pending,
        settles: list[Pending] | None,
        former: Future[None] | None,
    ) -> None:
        """Gives a part back once its deltas are acknowledged, and those that settle it.

        `former` has given back the part before: if it failed, nothing behind it is settled.
        """
        if former is not None:
            former.result()
        self._model.sgd.packed.give(push.wait())
        for settle in settles or ():
            settle.wait()
        block.visits.give_back(visit.part, visit.figures, settled=settles is not None)


class SkipGramTrainer(RotationTrainer[SkipGramTenancy]):
    """Skip-gram: a tenancy has the pairs whose centre is in its resident part."""

    def prepare(self, block: Block) -> SkipGramTenancy:
        """Reads the chunk and sorts the pairs of this part, without those of settled visits."""
        s, parts = self._model.settings, self._parts_of(block.parts, block.visiting)
        ids, words = shared_text.get_chunk(self._model, block.chunk, block.slices)
        # How often rows of n-grams travel follows from all groups of a tenancy.
        without = () if s.maxn else block.settled
        pairs = np.empty(block.visiting, np.int64)
        centres, starts, contexts, bounds = kernels.sort_pairs(
            ids,
            s.window,
            (s.seed * 0x9E3779B97F4A7C15 + block.chunk) & MASK64,
            BUNDLE,
            run=self._model.run,
            resident=parts.resident,
            part=block.part,
            visiting=parts.visiting,
            parts=block.visiting,
            without=without,
            pairs=pairs,
        )
        del ids
        seen = np.zeros(len(self._vocabulary), np.bool_)
        seen[centres] = True
        present = np.flatnonzero(seen)
        place = np.empty(len(seen), np.int32)
        place[present] = np.arange(len(present), dtype=np.int32)
        bag_ptr, bag_rows, keys = self._model.bags(present)
        resident, rows = self._place(block, keys)
        before, after = (int(words * share) for share in parts.shares[block.part : block.part + 2])
        return SkipGramTenancy(
            parts=parts,
            bounds=bounds,
            present=present,
            bags=Bags.of(
                bag_ptr, rows[bag_rows].astype(np.int32), len(keys) and int(rows.max()) + 1
            ),
            resident=resident,
            keys=keys,
            rows=rows,
            words=after - before,
            centres=place[centres],
            starts=starts,
            contexts=contexts,
            pairs_before=np.concatenate(([0], pairs.cumsum())),
        )

    def _sharers(self, resident: Ints, parts: int) -> Ints:
        s = self._model.settings
        if not s.maxn:
            return super()._sharers(resident, parts)
        return sharers_of_grams(self._vocabulary, s, resident, parts)

    def _sharing(self, block: Block, tenancy: SkipGramTenancy) -> Sharing:
        return sharing_of_grams(self._model.settings, tenancy, block)

    def _rows_of(self, block: Block) -> int:
        parts = self._parts_of(block.parts, block.visiting)
        own = np.count_nonzero(parts.resident == block.part)
        return int(own + np.count_nonzero(parts.sharers))

    def _contexts_of(self, tenancy: SkipGramTenancy, groups: slice) -> Ints:
        return tenancy.contexts[tenancy.starts[groups.start] : tenancy.starts[groups.stop]]

    def _train_groups(
        self,
        tenancy: SkipGramTenancy,
        visit: Visit,
        inputs: tuple[Floats, ...],
        first: int,
        last: int,
        rates: list[float],
        seed: int,
    ) -> list[tuple[float, int]]:
        """Trains some groups of pairs in the kernel's threads: loss and pairs of each."""
        starts = tenancy.starts[first : last + 1] - tenancy.starts[visit.groups.start]
        tasks = train_bundles(
            self._model,
            inputs,
            visit.local,
            (tenancy.centres[first:last], starts, visit.contexts),
            tenancy.bags,
            Noise(visit.noise, visit.noise_logit),
            (rates[0], rates[1]),
            seed,
        )
        return [task.result() for task in tasks]
