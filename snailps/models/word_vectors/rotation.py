"""The trainer of word vectors: leases of partitions, in which no output row has two writers.

    encode:  a block of text -> word ids -> table "text"                 (by any worker, ahead)
    prepare: ids of the chunk -> examples of the input partition, sorted by output partition
    train:   input rows <- PULL, unless they are here; then for each checkout:
             check out -> output rows <- PULL -> kernel threads -> PUSH -> check in;
             deltas of input rows -> PUSH, at the end and, in long leases, between two
             checkouts: these are durable then

Words are split into input partitions, one a worker, for their input rows, and into twice as many
output partitions for their output rows (`partitions`).  One worker at a time checks out an output
partition.  So it trains output rows that all others have finished with, and pushes exact
differences: neither stale rows nor shares.  Rows of which several input partitions have a copy are
the exception (`input_exchange`).  Negatives are drawn from the output partition.

A chunk of one partition has one lease.  Its worker keeps the output rows, too, if it has memory
for all, and a checkout is a share of the text: nothing travels between checkouts.  If workers join,
the next chunk has more partitions, and begins when this one is pushed.

What is an example of a text, and which rows it trains, is the subclass's: `skip_gram`, `cbow`.
"""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Block, Pending
from snailps.data._key_numbering import WordNumbers
from snailps.dataclass import dataclass, field
from snailps.models.local_sgd import Floats, Keys, are_finite
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.block_size import NOISE_POWER, NOISE_REUSE, draw
from snailps.models.word_vectors.examples import (
    MASK64,
    PHI,
    Bags,
    Examples,
    Judged,
    Noise,
    Rows,
    train,
)
from snailps.models.word_vectors.input_exchange import InputExchange, Sharing
from snailps.models.word_vectors.partition_rows import UNDER_WAY, PartitionRows, Places, Push
from snailps.models.word_vectors.partitions import assign, keeps_all_rows, keeps_part

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

Ints = NDArray[np.int32]
Which = tuple[int, tuple[int, ...]]
"""An input partition: its number, and the sizes of all."""
DURABLE_SHARE = 0.25
"""Share of a lease's checkouts between two times that they are made durable, at least."""
DURABLE_SECONDS = 4.0
"""Seconds between two such times, at least: to train less than that again costs little."""
DURABLE_ROWS = 0.2
"""Rows that are pushed for that, at most, as a share of those that the lease moves anyhow."""


@dataclass(frozen=True, slots=True)
class Split:
    """Assignment of the words to input and output partitions, for a number of each."""

    inputs: Ints
    outputs: Ints
    """The partition of each word's input row, and of its output row."""
    words: tuple[Ints, ...]
    noise_sums: tuple[NDArray[np.float64], ...]
    """Words of each output partition, and the running sum of their noise probabilities."""
    shares: NDArray[np.float64]
    """Running sum of the input partitions' shares of the text, from 0 to 1."""
    sharers: Ints | None
    """Input partitions with a word that has an n-gram of a bucket, for each bucket."""
    bundling: Any
    """How the pairs of skip-gram are trained; None with CBOW."""

    @property
    def is_whole(self) -> bool:
        """Whether the only worker has all rows: none travel, a checkout is a share of the text."""
        return len(self.words) == 1


class Partition:
    """An input partition at its worker: its words, and the rows that stay.

    `of`: its number, and the sizes of all.  `place` of each word of the vocabulary is its number
    in the partition, or -1; -1 behind, for token -1.  `keys` of its input rows: words, then
    buckets. `outputs` are all output rows, where they stay, too.  `chunk` is the last one of which
    it has what was trained.
    """

    inputs: PartitionRows
    outputs: PartitionRows | None = None
    chunk: int

    def __init__(self, model: WordVectors, of: Which, words: NDArray[np.int64]) -> None:
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

    def _tables(self) -> list[PartitionRows]:
        return [self.inputs] if self.outputs is None else [self.inputs, self.outputs]


@dataclass(slots=True)
class PartitionLease:
    """A prepared lease of an input partition."""

    split: Split
    part: Partition
    """How words are split, and what stays here."""
    rows: Places
    """Input rows that it trains; None: all."""
    words: int
    """Words of the text that count as this lease's, durable checkouts or not."""
    share: NDArray[np.int64]
    """Running sum of the checkouts' shares of these words, in any unit."""
    sharing: Sharing | None = None
    """How rows travel that other partitions have, too."""
    examples: Examples | None = None
    """Sorted by output partition: those of p are groups ``bounds[p]`` to ``bounds[p + 1] - 1``.
    None: a checkout reads its share of the text."""
    bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    first: tuple[int, Examples] | None = None
    """The first such checkout, and its examples."""
    opening: Future[int] | None = None
    """Pulls the rows of a partition that is new here, and returns their number."""

    def words_of(self, checkout: int) -> int:
        """Words that count as trained by a checkout."""
        return words_between(self.words, self.share, checkout)


def words_between(words: int, ends: NDArray[np.int64], part: int) -> int:
    """The share of so many words that lies between two of these ends."""
    whole = max(1, int(ends[-1]))
    before, after = (words * int(end) // whole for end in ends[part : part + 2])
    return after - before


@dataclass(slots=True)
class Checkout:
    """A checkout, until it is checked in."""

    part: int
    examples: Examples
    noise: Noise
    outputs: Rows
    """The rows that it trains."""
    judged: Floats
    """Rows that are searched for values that are not finite."""
    keys: Keys | None = None
    packed: Floats | None = None
    """Keys and rows that travel: as the servers have them, then their deltas."""
    number: int = 0
    """Checkouts of the lease before this one."""
    rates: tuple[float, float] = (0.0, 0.0)
    """Learning rate at its begin and at its end."""
    tasks: list[Future[Judged]] = field(default_factory=list)
    results: list[Judged] = field(default_factory=list)
    """Kernels at work, and results of those that are done."""

    def wait(self) -> None:
        """Waits for the kernels."""
        self.results += [task.result() for task in self.tasks]
        self.tasks = []


class DurablePoints:
    """Points of a lease, besides its end, at which its checkouts are made durable.

    If its worker is lost, those checkouts are not trained again.  `rows` are pushed each time;
    `opened` were pulled when the lease began.
    """

    def __init__(self, block: Block, rows: int, opened: int) -> None:
        self._first = self._last = block.had
        self._output_parts, self._rows, self._opened = block.output_parts, max(1, rows), opened
        self._since = time.monotonic()

    def is_due(self, checkouts: int, moved: int) -> bool:
        """Whether to make the first `checkouts` durable, which moved `moved` rows."""
        left = self._output_parts - self._first
        whole = self._opened + self._rows + moved * left / (checkouts - self._first)
        times = int(DURABLE_ROWS * whole / self._rows)
        apart = max(DURABLE_SHARE * self._output_parts, left / (times + 1))
        lasts = time.monotonic() - self._since
        return self._last + apart <= checkouts < self._output_parts and lasts >= DURABLE_SECONDS

    def note(self, checkouts: int) -> None:
        """Record that the lease's first `checkouts` are durable."""
        self._last, self._since = checkouts, time.monotonic()


class RotationTrainer(ABC):
    """Prepares and trains leases for a `WordVectors` worker, after its `setup`."""

    def __init__(self, model: WordVectors) -> None:
        self.model = model
        self._vocabulary = model.vocabulary
        self._keep = model.vocabulary.keep_probability(model.settings.sample)
        self._noise = model.vocabulary.noise(NOISE_POWER)
        self.logit = model.noise_logit(slice(None))
        self._splits: dict[tuple[tuple[int, ...], int], Split] = {}
        self.part: Partition | None = None  # the last one that was prepared
        self._too_large: Which | None = None  # a partition that does not fit into memory
        # A thread that checks out waits for other workers, so another one checks in.
        self.ahead = ThreadPoolExecutor(1, "snailps-check-out")
        self.behind = ThreadPoolExecutor(1, "snailps-check-in")
        self.numbers = WordNumbers(len(model.vocabulary))  # of the thread that checks out

    def close(self) -> None:
        """Ends the threads."""
        self.ahead.shutdown()
        self.behind.shutdown()

    # --- what an example is --------------------------------------------------------------------

    @abstractmethod
    def examples(self, tokens: Ints, seed: int) -> Examples:
        """All examples of a text, whose words have the same number as input and as output."""

    @abstractmethod
    def _sorted(self, block: Block, split: Split) -> PartitionLease:
        """A lease whose examples are sorted by output partition, and what else depends on these."""

    def _words_of(self, block: Block, split: Split) -> NDArray[np.int64]:
        """Words of which a partition has input rows."""
        return np.flatnonzero(split.inputs == block.part)

    # --- a lease, prepared while another one trains ------------------------------------------

    def prepare(self, block: Block) -> PartitionLease:
        """Makes the examples of a lease, or of its first checkout; begins to open a new one."""
        before = self.part
        self.model.narrow_rows = block.parts > 1  # an only worker has the same bits each time
        split = self._split_of(block.sizes, block.output_parts)
        lease = self._whole(block, split) if split.is_whole else self._sorted(block, split)
        if lease.part is not before:
            lease.part.chunk = block.chunk - 1
            if before is None or before.of != lease.part.of:  # else it may still be trained here
                lease.opening = self.ahead.submit(self._open, lease)
        return lease

    def _whole(self, block: Block, split: Split) -> PartitionLease:
        """A lease whose checkouts are shares of the text."""
        part = self._part_of(block, split)
        _, words = shared_text.count(self.model, block.chunk, block.chunk_blocks)
        rows, share = None, np.arange(block.output_parts + 1)
        lease = PartitionLease(split, part, rows, words, share)
        left = [checkout for checkout in range(block.output_parts) if checkout not in block.durable]
        if left:
            lease.first = left[0], self.read(block, left[0])
        return lease

    def read(self, block: Block, checkout: int) -> Examples:
        """All examples of a checkout's share of the text."""
        model, checkouts = self.model, block.output_parts
        ids, _ = shared_text.get_chunk(
            model, block.chunk, block.chunk_blocks, checkout, (1,) * checkouts
        )
        seed = model.settings.seed * PHI + block.chunk * checkouts + checkout
        return self.examples(ids, seed & MASK64)

    def _open(self, lease: PartitionLease) -> int:
        """Pulls rows that are not here; returns how many input rows these were."""
        part = lease.part
        if part.outputs is not None:
            part.outputs.open(None)
        return part.inputs.open(lease.rows)

    def _part_of(
        self,
        block: Block,
        split: Split,
        present: NDArray[np.int64] | None = None,
        tokens: int = 0,
    ) -> Partition:
        """Return the partition of a lease: as it is here, else a new one.

        A new one has only the words that are `present`, where memory has no room for all its rows
        beside the kept `tokens` of a lease.
        """
        model, of = self.model, (block.part, block.sizes)
        before = self.part
        if before is not None and before.of == of and of != self._too_large:
            return before
        part = None
        if of != self._too_large:
            part = Partition(model, of, self._words_of(block, split))
            if present is not None and not keeps_part(model.settings, len(part.keys), tokens):
                part, self._too_large = None, of
        if part is None:
            assert present is not None
            part = Partition(model, of, present)
        part.inputs = PartitionRows(model, "input", part.keys, bases=not split.is_whole)
        if split.is_whole:
            keys = np.arange(len(self._vocabulary), dtype=np.uint64)
            part.outputs = PartitionRows(model, "output", keys, bases=False)
        self.part = part
        return part

    def _split_of(self, sizes: tuple[int, ...], output_parts: int) -> Split:
        """The split into such parts; remembered, as it changes only when workers come or go, or
        their speeds."""
        found = self._splits.get((sizes, output_parts))
        if found is None:
            whole = len(sizes) == 1 and keeps_all_rows(self._vocabulary, self.model.settings)
            found = self._new_split(sizes, 1 if whole else output_parts)
            self._splits = {(sizes, output_parts): found}
        return found

    def _new_split(self, sizes: tuple[int, ...], output_parts: int) -> Split:
        kept = self._vocabulary.counts.astype(np.float64) * self._keep
        seed, parts = self.model.settings.seed, len(sizes)
        inputs, sharers, bundling = self._input_parts(kept, sizes)
        outputs = assign(kept, (1,) * output_parts, 2 * seed + 1)
        words = tuple(np.flatnonzero(outputs == at).astype(np.int32) for at in range(output_parts))
        shares = np.zeros(parts + 1)
        shares[1:] = np.bincount(inputs, kept, parts).cumsum() / kept.sum()
        shares[-1] = 1.0
        noise_sums = tuple(self._noise[own].cumsum() for own in words)
        return Split(inputs, outputs, words, noise_sums, shares, sharers, bundling)

    def _input_parts(
        self, kept: NDArray[np.float64], sizes: tuple[int, ...]
    ) -> tuple[Ints, Ints | None, Any]:
        """The partition of each word's input row, `Split.sharers` and `Split.bundling`."""
        return assign(kept, sizes, 2 * self.model.settings.seed), None, None

    # --- a lease, trained ---------------------------------------------------------------------

    def train(self, block: Block) -> dict[str, float]:
        """Trains a lease: all its checkouts, in the order in which the master hands them out."""
        part = block.prepared.part
        figures = _Training(self, block).run()
        part.chunk = block.chunk
        if block.progress[1] >= 1.0:
            part.free()  # before the master, which is told next, begins to export
        return figures


class _Training:
    """A lease that is trained.

    Where no rows are exchanged, the kernels of a checkout are queued before those of the one before
    are done, so that no thread waits for another.  Behind one that makes rows durable they are not:
    deltas of the next one's steps would be pushed, and trained again if this worker is lost.
    """

    def __init__(self, trainer: RotationTrainer, block: Block) -> None:
        self._trainer, self._model, self._block = trainer, trainer.model, block
        lease: PartitionLease = block.prepared
        self._lease, self._part = lease, lease.part
        block.prepared = None  # so that memory of the first checkout is returned when it is trained
        opened = lease.opening.result() if lease.opening is not None else 0
        if self._part.chunk != block.chunk - 1 or block.had:
            self._part.forget()  # another worker has trained it
        if self._part.outputs is not None:
            self._part.outputs.open(None)
        self._inputs = InputExchange(
            self._model, self._part.inputs, lease.rows, lease.sharing, block
        )
        self._durable_points = DurablePoints(
            block,
            len(self._part.keys if lease.rows is None else lease.rows),
            opened + self._inputs.opened,
        )
        self._totals = {"units": 0.0, "loss": 0.0, "examples": 0.0}
        self._begun = self._done = block.had  # checkouts
        self._since = time.monotonic()
        self._moved = 0  # output rows
        self._returned: deque[Future[None]] = deque()

    def run(self) -> dict[str, float]:
        """Trains all checkouts and pushes the deltas of input rows."""
        coming, queued = self._trainer.ahead.submit(self._check_out), None
        while True:
            if queued is not None and (
                self._makes_durable(queued) or not _comes_first(coming, queued.tasks)
            ):
                self._finish(queued)  # another worker may wait for its partition
                queued = None
            checkout = coming.result()
            if checkout is None:
                break
            while self._returned and (self._returned[0].done() or len(self._returned) > UNDER_WAY):
                self._returned.popleft().result()  # raises if its push has failed
            turns = self._turns(checkout)
            next(turns)
            if queued is not None:
                self._finish(queued)
            coming, queued = self._trainer.ahead.submit(self._check_out), checkout
            if self._inputs.shares:
                for _ in turns:
                    pass
                self._finish(checkout)
                queued = None
        if queued is not None:
            self._finish(queued)
        self._inputs.close()
        if self._part.outputs is not None:
            self._part.outputs.close(None)
        for task in self._returned:
            task.result()
        if self._done == self._block.output_parts and not self._block.had:  # else it is to end
            self._totals["units"] = float(self._lease.words)  # of a text without pairs, too
        return self._totals

    def _check_out(self) -> Checkout | None:
        """Waits for an output partition and for its rows; None when this lease has had all."""
        block, lease, model = self._block, self._lease, self._model
        part = block.checkouts.check_out()
        if part is None:
            return None
        if self._part.outputs is not None:
            (first, examples), lease.first = lease.first or (-1, None), None
            if examples is None or first != part:
                examples = self._trainer.read(block, part)
            drawn = self._draw(0, len(examples), part)
            outputs = self._part.outputs.local
            a, b = (len(outputs[0]) * at // block.output_parts for at in (part, part + 1))
            return Checkout(
                part, examples, Noise(drawn, self._trainer.logit), outputs, outputs[0][a:b]
            )
        assert lease.examples is not None
        groups = slice(int(lease.bounds[part]), int(lease.bounds[part + 1]))
        drawn = self._draw(part, groups.stop - groups.start, part)
        contexts = lease.examples.contexts_of(groups)
        words, contexts, negatives = self._trainer.numbers.number(contexts, drawn)
        keys = words.astype(np.uint64)
        packed = model.sgd.pull_rows("output", keys).wait()
        local = model.sgd.make_trained(len(keys))
        model.sgd.layout.load(packed, *local)
        examples = lease.examples.select(groups, contexts)
        noise = Noise(negatives, model.noise_logit(words))
        return Checkout(part, examples, noise, local, local[0], keys, packed)

    def _draw(self, part: int, groups: int, checkout: int) -> Ints:
        """Negatives of an output partition for so many groups."""
        split = self._lease.split
        pool = groups * kernels.SHARED // kernels.GROUP // NOISE_REUSE
        pool = max(pool, kernels.SHARED) if groups else 0
        seed = (self._block.seed + checkout) & MASK64
        return split.words[part][draw(split.noise_sums[part], pool, seed)]

    def _turns(self, checkout: Checkout) -> Iterator[None]:
        """Trains a checkout: begins a turn for each `next`, with an exchange behind each."""
        checkout.number, self._begun = self._begun, self._begun + 1
        turns, part = self._inputs.turns, self._part
        edges = np.linspace(0, len(checkout.examples), turns + 1).astype(int).tolist()
        begin, end = checkout.rates = self._rates(checkout.number)
        for turn, groups in enumerate(itertools.pairwise(edges)):
            lr = [begin + (end - begin) * at / turns for at in (turn, turn + 1)]
            seed = self._block.seed + checkout.part * PHI + (turn << 32)
            checkout.tasks = train(
                self._model, checkout.examples, groups, part.inputs.local, part.bags,
                checkout.outputs, checkout.noise, (lr[0], lr[1]), seed,
            )  # fmt: skip
            yield
            checkout.wait()
            self._inputs.exchange(checkout.number * turns + turn + 1)

    def _rates(self, number: int) -> tuple[float, float]:
        """Learning rate at the begin and at the end of a checkout that begins now.

        Where time is limited, a lease may be longer than what is left of it.
        """
        begin, end = self._block.progress
        step, settings = (end - begin) / self._block.output_parts, self._model.settings
        first, last = (1.0 - begin - step * at for at in (number, number + 1))
        if settings.max_seconds:
            spent = (time.monotonic() - self._since) / settings.max_seconds
            each = spent / max(1, number - self._block.had)  # of the checkouts so far
            first, last = min(first, 1.0 - begin - spent), min(last, 1.0 - begin - spent - each)
        return settings.rate * max(0.0, first), settings.rate * max(0.0, last)

    def _finish(self, checkout: Checkout) -> None:
        """Waits for the kernels; has what changed pushed, and the partition checked in."""
        checkout.wait()
        sgd = self._model.sgd
        figures = {
            "units": float(self._lease.words_of(checkout.part)),
            "lr": checkout.rates[1],
            **self._model.figures_of(checkout.results, are_finite(checkout.judged)),
        }
        for name in self._totals:
            self._totals[name] += figures[name]
        self._totals["lr"] = figures["lr"]
        makes_durable = self._makes_durable(checkout)
        self._done += 1
        push, pushes = None, None
        if checkout.keys is not None and checkout.packed is not None:
            sgd.in_threads(sgd.layout.subtract, checkout.packed, *checkout.outputs)
            sgd.give_trained(checkout.outputs)
            push = self._model.push_async("output", checkout.keys, checkout.packed, state=sgd.state)
            self._moved += 2 * len(checkout.keys)
            if makes_durable:
                pushes = self._inputs.push_all()
                self._durable_points.note(self._done)
        previous = self._returned[-1] if self._returned else None
        self._returned.append(
            self._trainer.behind.submit(
                self._check_in, checkout.part, figures, push, pushes, previous
            )
        )

    def _makes_durable(self, checkout: Checkout) -> bool:
        """Whether to make this checkout durable, and no other one has begun."""
        if checkout.keys is None or self._begun > checkout.number + 1:
            return False
        moved = self._moved + 2 * len(checkout.keys) + self._inputs.exchanged
        return self._durable_points.is_due(checkout.number + 1, moved)

    def _check_in(
        self,
        part: int,
        figures: dict[str, float],
        push: Pending | None,
        pushes: list[Push] | None,
        previous: Future[None] | None,
    ) -> None:
        """Checks a partition in once its deltas are acknowledged, and those that make it durable.

        `previous` checks in the one before: if it failed, nothing behind it is durable.
        """
        if previous is not None:
            previous.result()
        if push is not None:
            self._model.sgd.packed.give(push.wait())
        self._part.inputs.wait_for(pushes or ())
        self._block.checkouts.check_in(part, figures, durable=pushes is not None)


def _comes_first(coming: Future[Any], tasks: Sequence[Future[Any]]) -> bool:
    """Whether the next checkout comes before these kernels are done."""
    while not coming.done() and (at_work := [task for task in tasks if not task.done()]):
        wait([coming, *at_work], return_when=FIRST_COMPLETED)
    return coming.done() and coming.exception() is None
