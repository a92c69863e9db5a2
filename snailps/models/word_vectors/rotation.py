"""The trainer of word vectors: tenancies of a chunk, in which no output row has two writers.

    deal:    a slice of text -> word ids -> table "text"                 (by any worker, ahead)
    prepare: ids of the chunk -> examples of the worker's part, sorted by visiting part
    train:   rows of the part <- PULL, unless they are here; then for each visit:
             borrow -> output rows <- PULL -> kernel threads -> PUSH -> give back;
             deltas of the part's rows -> PUSH, at the end and, in long tenancies, between two
             visits: those are settled then

Words are dealt into resident parts, one a worker, for their input rows, and into twice as many
visiting parts for their output rows (`word_parts`).  The master lends a visiting part to one worker
at a time.  So a worker trains a visiting part with rows that all others have finished with, and
pushes exact differences: neither stale rows nor shares.  Rows of which several parts have a copy
are the exception (`input_exchange`).  Negatives are drawn from the visiting part.

A chunk of one part has one tenancy.  Its worker keeps the output rows, too, if it has memory for
all, and a visit is a share of the text: nothing travels between visits.  If workers join, the next
chunk has more parts, and begins when this one is pushed.

What is an example of a text, and which rows it trains, is the subclass's: `skip_gram`, `cbow`.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Block, Pending
from snailps.data._key_numbering import WordNumbers
from snailps.models.local_sgd import Floats, Keys, are_finite
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.block_size import NOISE_POWER, NOISE_REUSE, draw
from snailps.models.word_vectors.examples import (
    MASK64,
    Bags,
    Examples,
    Judged,
    Noise,
    Rows,
    train,
)
from snailps.models.word_vectors.input_exchange import InputExchange, Sharing
from snailps.models.word_vectors.part_rows import UNDER_WAY, PartRows, Places, Push
from snailps.models.word_vectors.word_parts import deal, keeps_all_rows, keeps_part

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

Ints = NDArray[np.int32]
PHI = 0x9E3779B97F4A7C15
SETTLE_SHARE = 0.25
"""Of a tenancy's visits, between two times that its rows are settled, at least."""
SETTLE_SECONDS = 4.0
"""The same in seconds: training that is lost for less costs less than its loss."""
SETTLE_ROWS = 0.2
"""Rows that are pushed for that, at most, of those that the tenancy moves anyhow."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """How words are dealt where there are so many resident and visiting parts.

    Attributes
    ----------
    resident, visiting : int32 array
        The part of each word's input row, and of its output row.
    words, noise_sums : tuple of arrays
        Of each visiting part: its words, and the running sum of their probabilities as negatives.
    shares : float64 array
        Running sum of the resident parts' shares of the text, from 0 to 1.
    """

    resident: Ints
    visiting: Ints
    words: tuple[Ints, ...]
    noise_sums: tuple[NDArray[np.float64], ...]
    shares: NDArray[np.float64]

    @property
    def is_whole(self) -> bool:
        """Whether the only worker has all rows: none travel, and a visit is a share of the text."""
        return len(self.words) == 1


class Part:
    """A resident part at its worker: its words, and the rows that stay.

    Attributes
    ----------
    of : tuple of int
        Its number, and the number of parts.
    place : int32 array
        Of each word of the vocabulary: its number in the part, or -1; at last -1, for token -1.
    word_num : int
    bags : Bags
        Of each word of the part.
    keys : uint64 array
        Of its input rows: words, then buckets.
    inputs : PartRows
    outputs : PartRows or None
        All output rows, where they stay, too.
    chunk : int
        The last one of which it has what was trained.
    """

    inputs: PartRows
    outputs: PartRows | None = None
    chunk: int

    def __init__(self, model: WordVectors, of: tuple[int, int], words: NDArray[np.int64]) -> None:
        self.of, self.word_num = of, len(words)
        self.place = np.full(len(model.vocabulary) + 1, -1, np.int32)
        self.place[words] = np.arange(len(words), dtype=np.int32)
        ptr, rows, self.keys = model.bags(words)
        self.bags = Bags.of(ptr, rows, len(self.keys))

    def rows_of(self, words: NDArray[np.integer]) -> NDArray[np.int64]:
        """Input rows of some of its words, given by their number in it; ascending."""
        seen = np.zeros(len(self.keys), np.bool_)
        seen[self.bags.entries(words)[1]] = True
        return np.flatnonzero(seen)

    def forget(self) -> None:
        """Has all rows pulled again: another worker has trained them."""
        for rows in self._tables():
            rows.forget()

    def free(self) -> None:
        """Frees the rows' memory."""
        for rows in self._tables():
            rows.free()

    def _tables(self) -> list[PartRows]:
        return [self.inputs] if self.outputs is None else [self.inputs, self.outputs]


@dataclass(slots=True)
class Tenancy:
    """A prepared tenancy.

    Attributes
    ----------
    dealing, part
        How words are dealt, and what stays here.
    rows : int64 array or None
        Input rows of the part that it trains; None: all.
    words : int
        Of the text that count as this tenancy's, settled visits or not.
    share : int64 array
        Running sum of the visits' shares of these words, in any unit.
    sharing : Sharing or None
        How rows travel that other parts have, too.
    examples : Examples or None
        Sorted by visiting part: those of part p are groups ``bounds[p]`` to ``bounds[p + 1] - 1``.
        None: a visit reads its share of the text.
    first : tuple or None
        The first such visit, and its examples.
    opening : Future or None
        Pulls the rows of a part that is new here, and returns their number.
    """

    dealing: Dealing
    part: Part
    rows: Places
    words: int
    share: NDArray[np.int64]
    sharing: Sharing | None = None
    examples: Examples | None = None
    bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    first: tuple[int, Examples] | None = None
    opening: Future[int] | None = None

    def words_of(self, visit: int) -> int:
        """Words that count as trained by a visit."""
        return words_between(self.words, self.share, visit)


def words_between(words: int, ends: NDArray[np.int64], part: int) -> int:
    """The share of so many words that lies between two of these ends."""
    whole = max(1, int(ends[-1]))
    before, after = (words * int(end) // whole for end in ends[part : part + 2])
    return after - before


@dataclass(slots=True)
class Visit:
    """A visit that was borrowed.

    Attributes
    ----------
    outputs : tuple of arrays
        The rows that it trains.
    judged : array
        Those that are looked at for values that are not finite.
    keys, packed : arrays
        Of rows that travel; as the servers have them, then their deltas.
    number : int
        Visits of the tenancy before this one.
    tasks, results
        Of the kernels: at work; done.
    """

    part: int
    examples: Examples
    noise: Noise
    outputs: Rows
    judged: Floats
    keys: Keys | None = None
    packed: Floats | None = None
    number: int = 0
    tasks: list[Future[Judged]] = field(default_factory=list)
    results: list[Judged] = field(default_factory=list)

    def wait(self) -> None:
        """Waits for the kernels."""
        self.results += [task.result() for task in self.tasks]
        self.tasks = []


class Settling:
    """After which visits of a tenancy its input rows are settled, besides its end.

    If its worker is lost, those visits are not trained again.  `rows` are pushed each time;
    `opened` were pulled when the tenancy began.
    """

    def __init__(self, block: Block, rows: int, opened: int) -> None:
        self._first = self._last = block.had
        self._visiting, self._rows, self._opened = block.visiting, max(1, rows), opened
        self._since = time.monotonic()

    def is_due(self, visits: int, moved: int) -> bool:
        """Whether rows should be settled after so many visits, which moved so many rows."""
        left = self._visiting - self._first
        whole = self._opened + self._rows + moved * left / (visits - self._first)
        times = int(SETTLE_ROWS * whole / self._rows)
        apart = max(SETTLE_SHARE * self._visiting, left / (times + 1))
        lasts = time.monotonic() - self._since
        return self._last + apart <= visits < self._visiting and lasts >= SETTLE_SECONDS

    def note(self, visits: int) -> None:
        """Rows are settled after so many visits."""
        self._last, self._since = visits, time.monotonic()


class RotationTrainer(ABC):
    """Prepares and trains tenancies for a `WordVectors` worker, after its `setup`."""

    def __init__(self, model: WordVectors) -> None:
        self.model = model
        self._vocabulary = model.vocabulary
        self._keep = model.vocabulary.keep_probability(model.settings.sample)
        self._noise = model.vocabulary.noise(NOISE_POWER)
        self.logit = model.noise_logit(slice(None))
        self._dealings: dict[tuple[int, int], Dealing] = {}
        self.part: Part | None = None  # the last one that was prepared
        self._too_large: tuple[int, int] | None = None  # a part that does not fit into memory
        # A thread that borrows waits for other workers, so another one gives back.
        self.ahead = ThreadPoolExecutor(1, "snailps-borrow")
        self.behind = ThreadPoolExecutor(1, "snailps-give-back")
        self.numbers = WordNumbers(len(model.vocabulary))  # of the thread that borrows

    def close(self) -> None:
        """Ends the threads."""
        self.ahead.shutdown()
        self.behind.shutdown()

    # --- what an example is --------------------------------------------------------------------

    @abstractmethod
    def examples(self, tokens: Ints, seed: int) -> Examples:
        """All examples of a text, whose words have the same number as input and as output."""

    @abstractmethod
    def _sorted(self, block: Block, dealing: Dealing) -> Tenancy:
        """A tenancy whose examples are sorted by visiting part, and what else depends on these."""

    def _words_of(self, block: Block, dealing: Dealing) -> NDArray[np.int64]:
        """Words of which a part has input rows."""
        return np.flatnonzero(dealing.resident == block.part)

    # --- a tenancy, prepared while another one trains ------------------------------------------

    def prepare(self, block: Block) -> Tenancy:
        """Makes the examples of a tenancy, or of its first visit; begins to open a new part."""
        before = self.part
        dealing = self._dealing_of(block.parts, block.visiting)
        tenancy = self._whole(block, dealing) if dealing.is_whole else self._sorted(block, dealing)
        if tenancy.part is not before:
            tenancy.part.chunk = block.chunk - 1
            if before is None or before.of != tenancy.part.of:  # else it may still be trained here
                tenancy.opening = self.ahead.submit(self._open, tenancy)
        return tenancy

    def _whole(self, block: Block, dealing: Dealing) -> Tenancy:
        """A tenancy whose visits are shares of the text."""
        part = self._part_of(block, dealing)
        _, words = shared_text.count(self.model, block.chunk, block.slices)
        rows, share = None, np.arange(block.visiting + 1)
        tenancy = Tenancy(dealing, part, rows, words, share)
        left = [visit for visit in range(block.visiting) if visit not in block.settled]
        if left:
            tenancy.first = left[0], self.read(block, left[0])
        return tenancy

    def read(self, block: Block, visit: int) -> Examples:
        """All examples of a visit's share of the text."""
        model, visits = self.model, block.visiting
        ids, _ = shared_text.get_chunk(model, block.chunk, block.slices, visit, visits)
        seed = model.settings.seed * PHI + block.chunk * visits + visit
        return self.examples(ids, seed & MASK64)

    def _open(self, tenancy: Tenancy) -> int:
        """Pulls rows that are not here; returns how many input rows these were."""
        part = tenancy.part
        if part.outputs is not None:
            part.outputs.open(None)
        return part.inputs.open(tenancy.rows)

    def _part_of(
        self,
        block: Block,
        dealing: Dealing,
        present: NDArray[np.int64] | None = None,
        tokens: int = 0,
    ) -> Part:
        """The part of a tenancy: as it is here, else a new one.

        Of the words that are `present` alone, where memory has no room for its rows beside the kept
        `tokens` of a tenancy.
        """
        model, of = self.model, (block.part, block.parts)
        before = self.part
        if before is not None and before.of == of and of != self._too_large:
            return before
        part = None
        if of != self._too_large:
            part = Part(model, of, self._words_of(block, dealing))
            if present is not None and not keeps_part(model.settings, len(part.keys), tokens):
                part, self._too_large = None, of
        if part is None:
            assert present is not None
            part = Part(model, of, present)
        part.inputs = PartRows(model, "input", part.keys, bases=not dealing.is_whole)
        if dealing.is_whole:
            keys = np.arange(len(self._vocabulary), dtype=np.uint64)
            part.outputs = PartRows(model, "output", keys, bases=False)
        self.part = part
        return part

    def _dealing_of(self, parts: int, visiting: int) -> Dealing:
        """The dealing for so many parts; remembered, as it changes only when workers come or go."""
        found = self._dealings.get((parts, visiting))
        if found is None:
            whole = parts == 1 and keeps_all_rows(self._vocabulary, self.model.settings)
            found = self._dealt(parts, 1 if whole else visiting)
            self._dealings = {(parts, visiting): found}
        return found

    def _dealt(self, parts: int, visiting: int) -> Dealing:
        kept = self._vocabulary.counts.astype(np.float64) * self._keep
        seed = self.model.settings.seed
        resident, visits = deal(kept, parts, 2 * seed), deal(kept, visiting, 2 * seed + 1)
        words = tuple(np.flatnonzero(visits == part).astype(np.int32) for part in range(visiting))
        shares = np.zeros(parts + 1)
        shares[1:] = np.bincount(resident, kept, parts).cumsum() / kept.sum()
        shares[-1] = 1.0
        return Dealing(
            resident, visits, words, tuple(self._noise[own].cumsum() for own in words), shares
        )

    # --- a tenancy, trained ---------------------------------------------------------------------

    def train(self, block: Block) -> dict[str, float]:
        """Trains a tenancy: all its visits, in the order in which the master lends them."""
        part = block.prepared.part
        figures = _Training(self, block).run()
        part.chunk = block.chunk
        if block.progress[1] >= 1.0:
            part.free()  # before the master, which is told next, begins to export
        return figures


class _Training:
    """A tenancy that is trained.

    Where no rows are exchanged, the kernels of a visit are queued before those of the one before
    are done, so that no thread waits for another.  Behind a visit that settles rows they are not:
    deltas of the next one's steps would be pushed, and trained again if this worker is lost.
    """

    def __init__(self, trainer: RotationTrainer, block: Block) -> None:
        self._trainer, self._model, self._block = trainer, trainer.model, block
        tenancy: Tenancy = block.prepared
        self._tenancy, self._part = tenancy, tenancy.part
        block.prepared = None  # so that memory of the first visit is returned when it is trained
        opened = tenancy.opening.result() if tenancy.opening is not None else 0
        if self._part.chunk != block.chunk - 1 or block.had:
            self._part.forget()  # another worker has trained it
        if self._part.outputs is not None:
            self._part.outputs.open(None)
        self._inputs = InputExchange(
            self._model, self._part.inputs, tenancy.rows, tenancy.sharing, block
        )
        self._settling = Settling(
            block,
            len(self._part.keys if tenancy.rows is None else tenancy.rows),
            opened + self._inputs.opened,
        )
        self._totals = {"units": 0.0, "loss": 0.0, "examples": 0.0}
        self._begun = self._done = block.had  # visits
        self._moved = 0  # output rows
        self._returned: deque[Future[None]] = deque()

    def run(self) -> dict[str, float]:
        """Trains all visits and pushes the part's deltas."""
        coming, queued = self._trainer.ahead.submit(self._borrow), None
        while True:
            if queued is not None and (
                self._is_to_settle(queued) or not _comes_first(coming, queued.tasks)
            ):
                self._finish(queued)  # another worker may wait for its part
                queued = None
            visit = coming.result()
            if visit is None:
                break
            while self._returned and (self._returned[0].done() or len(self._returned) > UNDER_WAY):
                self._returned.popleft().result()  # raises if its push has failed
            turns = self._turns(visit)
            next(turns)
            if queued is not None:
                self._finish(queued)
            coming, queued = self._trainer.ahead.submit(self._borrow), visit
            if self._inputs.shares:
                for _ in turns:
                    pass
                self._finish(visit)
                queued = None
        if queued is not None:
            self._finish(queued)
        self._inputs.close()
        if self._part.outputs is not None:
            self._part.outputs.close(None)
        for task in self._returned:
            task.result()
        if self._done == self._block.visiting and not self._block.had:  # else it is to end
            self._totals["units"] = float(self._tenancy.words)  # of a text without pairs, too
        return self._totals

    def _borrow(self) -> Visit | None:
        """Waits for a visiting part and for its rows; None when this tenancy has had all."""
        block, tenancy, model = self._block, self._tenancy, self._model
        part = block.visits.borrow()
        if part is None:
            return None
        if self._part.outputs is not None:
            (first, examples), tenancy.first = tenancy.first or (-1, None), None
            if examples is None or first != part:
                examples = self._trainer.read(block, part)
            drawn = self._draw(0, len(examples), part)
            outputs = self._part.outputs.local
            a, b = (len(outputs[0]) * at // block.visiting for at in (part, part + 1))
            return Visit(
                part, examples, Noise(drawn, self._trainer.logit), outputs, outputs[0][a:b]
            )
        assert tenancy.examples is not None
        groups = slice(int(tenancy.bounds[part]), int(tenancy.bounds[part + 1]))
        drawn = self._draw(part, groups.stop - groups.start, part)
        contexts = tenancy.examples.contexts_of(groups)
        words, contexts, negatives = self._trainer.numbers.number(contexts, drawn)
        keys = words.astype(np.uint64)
        packed = model.sgd.pull_rows("output", keys).wait()
        local = model.sgd.make_trained(len(keys))
        model.sgd.layout.load(packed, *local)
        examples = tenancy.examples.select(groups, contexts)
        noise = Noise(negatives, model.noise_logit(words))
        return Visit(part, examples, noise, local, local[0], keys, packed)

    def _draw(self, part: int, groups: int, visit: int) -> Ints:
        """Negatives of a visiting part for so many groups."""
        dealing = self._tenancy.dealing
        pool = groups * kernels.SHARED // kernels.GROUP // NOISE_REUSE
        pool = max(pool, kernels.SHARED) if groups else 0
        seed = (self._block.seed + visit) & MASK64
        return dealing.words[part][draw(dealing.noise_sums[part], pool, seed)]

    def _turns(self, visit: Visit) -> Iterator[None]:
        """Trains a visit: begins a turn for each `next`, with an exchange behind each."""
        visit.number, self._begun = self._begun, self._begun + 1
        turns, part = self._inputs.turns, self._part
        edges = np.linspace(0, len(visit.examples), turns + 1).astype(int).tolist()
        begin, end = self._rates(visit.number)
        for turn, groups in enumerate(itertools.pairwise(edges)):
            lr = [begin + (end - begin) * at / turns for at in (turn, turn + 1)]
            seed = self._block.seed + visit.part * PHI + (turn << 32)
            visit.tasks = train(
                self._model, visit.examples, groups, part.inputs.local, part.bags, visit.outputs,
                visit.noise, (lr[0], lr[1]), seed,
            )  # fmt: skip
            yield
            visit.wait()
            self._inputs.exchange(visit.number * turns + turn + 1)

    def _rates(self, number: int) -> tuple[float, float]:
        """Learning rate at the begin and at the end of a visit."""
        begin, end = self._block.progress
        step, lr = (end - begin) / self._block.visiting, self._model.settings.lr
        return lr * (1.0 - begin - step * number), lr * (1.0 - begin - step * (number + 1))

    def _finish(self, visit: Visit) -> None:
        """Waits for the kernels; has what changed pushed, and the visit given back."""
        visit.wait()
        sgd = self._model.sgd
        figures = {
            "units": float(self._tenancy.words_of(visit.part)),
            "lr": self._rates(visit.number)[1],
            **self._model.figures_of(visit.results, are_finite(visit.judged)),
        }
        for name in self._totals:
            self._totals[name] += figures[name]
        self._totals["lr"] = figures["lr"]
        settling = self._is_to_settle(visit)
        self._done += 1
        push, settles = None, None
        if visit.keys is not None and visit.packed is not None:
            sgd.in_threads(sgd.layout.subtract, visit.packed, *visit.outputs)
            sgd.give_trained(visit.outputs)
            push = self._model.push_async("output", visit.keys, visit.packed, state=sgd.state)
            self._moved += 2 * len(visit.keys)
            if settling:
                settles = self._inputs.settle()
                self._settling.note(self._done)
        former = self._returned[-1] if self._returned else None
        self._returned.append(
            self._trainer.behind.submit(self._give_back, visit.part, figures, push, settles, former)
        )

    def _is_to_settle(self, visit: Visit) -> bool:
        """Whether rows should be settled behind this visit, and no other one has begun."""
        if visit.keys is None or self._begun > visit.number + 1:
            return False
        moved = self._moved + 2 * len(visit.keys) + self._inputs.exchanged
        return self._settling.is_due(visit.number + 1, moved)

    def _give_back(
        self,
        part: int,
        figures: dict[str, float],
        push: Pending | None,
        settles: list[Push] | None,
        former: Future[None] | None,
    ) -> None:
        """Gives a visit back once its deltas are acknowledged, and those that settle it.

        `former` has given back the one before: if it failed, nothing behind it is settled.
        """
        if former is not None:
            former.result()
        if push is not None:
            self._model.sgd.packed.give(push.wait())
        self._part.inputs.wait_for(settles or ())
        self._block.visits.give_back(part, figures, settled=settles is not None)


def _comes_first(coming: Future[Any], tasks: Sequence[Future[Any]]) -> bool:
    """Whether the next visit comes before these kernels are done."""
    while not coming.done() and (at_work := [task for task in tasks if not task.done()]):
        wait([coming, *at_work], return_when=FIRST_COMPLETED)
    return coming.done() and coming.exception() is None
