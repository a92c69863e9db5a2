"""The trainer of word vectors in a rotation: no output row has two writers at a time.

    encode:  a block of text -> word ids -> table "text"                 (by any worker, ahead)
    prepare: ids of the chunk -> examples of the input partition, sorted by output partition
    check out: groups of an output partition -> its words -> PULL -> negatives drawn from these

Words are split twice: into input partitions by their input rows, and into output partitions by
their output rows (`partitions`).  One lease at a time checks out an output partition.  Jobs that do
not rotate (`bsp`, `ssp`, `max_steps`, texts of few words) train copies of rows, which several
workers may have at once, and scale the deltas (`contention`).

Owns the split, the rows of a lease, and its negatives.  A subclass (`skip_gram`, `cbow`) owns what
an example of a text is, and which rows it trains; `models.rotation.trainer` owns how a lease is
trained.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.abi.key_hash import GOLDEN, MASK64
from snailps.api.worker import Block
from snailps.data._key_numbering import WordNumbers
from snailps.dataclass import dataclass
from snailps.models.rotation.partition_rows import PartitionRows
from snailps.models.rotation.splits import assign, assign_by_hash
from snailps.models.rotation.trainer import (
    Checkout,
    InputPartition,
    Judged,
    PreparedLease,
    Rates,
    RotationTrainer,
    Span,
    Which,
    whole,
)
from snailps.models.row_bounds import are_bounded
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.block_size import NOISE_REUSE
from snailps.models.word_vectors.examples import Bags, ExampleGroups, Rows, train
from snailps.models.word_vectors.outputs import Noise, SampledRows, Targets
from snailps.models.word_vectors.part_noise import PartNoise
from snailps.models.word_vectors.plan import keeps_all_rows, keeps_part
from snailps.models.word_vectors.private_rows import PrivateTurns, private_num
from snailps.models.word_vectors.word_rows import WordRows

FREQUENT = 4096
"""How many words `frequent` returns: enough to see what bags share."""

Ints = NDArray[np.int32]
NO_WORDS: Ints = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class WordSplit:
    """The partitions of all words, for given sizes of the input partitions."""

    inputs: Ints
    """The partition of each word's input row."""
    outputs: Ints
    """The partition of each word's output row."""
    noise: tuple[PartNoise, ...]
    """For each output partition, its words with their noise probabilities."""
    shares: NDArray[np.float64]
    """Running sum of the input partitions' shares of the text, from 0 to 1."""
    sharers: NDArray[np.int16] | None
    """For each bucket, how many input partitions have a word with one of its n-grams."""
    bundling: Any
    """How the pairs of skip-gram are trained; None with CBOW."""

    @property
    def is_whole(self) -> bool:
        """Whether one worker has all rows: none travel, and a checkout is a share of the text."""
        return len(self.noise) == 1


class WordPartition(InputPartition):
    """The words of an input partition.

    ``place[w]`` is the number of word w in the partition, or -1; a last entry maps token -1 to
    itself.  `keys` are those of its input rows: words, then buckets.
    """

    def __init__(self, model: WordRows, of: Which, words: NDArray[np.int64]) -> None:
        super().__init__(of)
        self.word_num = len(words)
        self.place = np.full(len(model.vocabulary) + 1, -1, np.int32)
        self.place[words] = np.arange(len(words), dtype=np.int32)
        self.bags, self.keys = model.bags(words)

    def rows_of(self, words: NDArray[np.integer]) -> NDArray[np.int64]:
        """Input rows of some of its words (given by their numbers in it), ascending."""
        seen = np.zeros(len(self.keys), np.bool_)
        seen[self.bags.entries(words)[1]] = True
        return np.flatnonzero(seen)


@dataclass(slots=True)
class WordLease(PreparedLease):
    """A prepared lease of an input partition of words."""

    part: WordPartition
    split: WordSplit
    of_part: Callable[[int], ExampleGroups] | None = None
    """``of_part(i)`` makes the examples of output partition i, once.  None: a checkout reads its
    share of the text."""
    first: tuple[int, ExampleGroups] | None = None
    """The first checkout that reads its share, and its examples, prepared ahead."""
    run_of: Callable[[Any], tuple[ExampleGroups, PrivateTurns]] | None = None
    """``run_of(examples)`` of a checkout opens private rows, and has the examples use their bags.
    None: all rows are trained in place."""


class WordTrainer(RotationTrainer):
    """Prepares and trains leases for a worker, after its `setup`."""

    part: WordPartition | None = None
    absent_share: ClassVar[float] = 1.0
    """Share of the words absent from a checkout that its negatives are drawn from."""
    narrows_deltas: ClassVar[bool] = False
    """`Worker.narrow_deltas`, with several workers."""

    def __init__(self, model: WordRows) -> None:
        super().__init__(model, model.sgd, "output")
        self.model = model
        self._vocabulary = model.vocabulary
        self._keep = model.keep
        self._noise = model.vocabulary.noise(model.settings.ns_exponent)
        self._splits: dict[tuple[tuple[int, ...], int], WordSplit] = {}
        self._too_large: Which | None = None  # a partition whose rows do not fit into memory
        self.numbers = WordNumbers(len(model.vocabulary))  # used by the thread that checks out

    # --- what an example is --------------------------------------------------------------------

    @abstractmethod
    def examples(self, tokens: Ints, seed: int) -> ExampleGroups:
        """Make all examples of a text, whose words are numbered alike as input and as output."""

    @abstractmethod
    def _sorted(self, block: Block, split: WordSplit) -> WordLease:
        """Prepare a lease whose examples are sorted by output partition."""

    def _words_of(self, block: Block, split: WordSplit) -> NDArray[np.int64]:
        """The words whose input rows a partition has."""
        return np.flatnonzero(split.inputs == block.part)

    def frequent(self, words: NDArray[np.int64]) -> tuple[NDArray[np.float64], Bags]:
        """Return how often each of the most frequent of some words is trained, and their bags."""
        kept = self._vocabulary.counts.astype(np.float64) * self._keep
        most = np.sort(words[np.argsort(-kept[words], kind="stable")[:FREQUENT]])
        return kept[most], self.model.bags(most)[0]

    # --- a lease, prepared while another one trains ------------------------------------------

    def lease(self, block: Block) -> WordLease:
        self.model.narrow_rows = block.parts > 1  # a single worker gives the same bits each time
        self.model.narrow_deltas = self.narrows_deltas
        split = self._split_of(block.sizes, block.output_parts)
        return self._whole(block, split) if split.is_whole else self._sorted(block, split)

    def _whole(self, block: Block, split: WordSplit) -> WordLease:
        """Prepare a lease whose checkouts are shares of the text."""
        part = self._part_of(block, split)
        count = partial(shared_text.count, self.model, block.chunk, block.chunk_blocks)
        _, words = whole(block, count)
        rows, share = None, np.arange(block.output_parts + 1)
        lease = WordLease(part, rows, words, share, None, split)
        to_train = [i for i in range(block.output_parts) if i not in block.durable]
        if to_train:
            lease.first = to_train[0], self.read(block, to_train[0])
        return lease

    def read(self, block: Block, checkout: int) -> ExampleGroups:
        """Make all examples of a checkout's share of the text."""
        model, checkouts = self.model, block.output_parts
        blocks, sizes = block.chunk_blocks, (1,) * checkouts
        get = partial(shared_text.get_chunk, model, block.chunk, blocks, checkout, sizes)
        ids, _ = whole(block, get)
        seed = model.settings.seed * GOLDEN + block.chunk * checkouts + checkout
        return self.examples(ids, seed & MASK64)

    def _part_of(
        self,
        block: Block,
        split: WordSplit,
        present: NDArray[np.int64] | None = None,
        tokens: int = 0,
    ) -> WordPartition:
        """Get the partition of a lease: the one that is here, or a new one.

        A new partition has only the words that are `present`, if memory has no room for all of its
        rows beside the `tokens` of a lease.
        """
        model, of = self.model, (block.part, block.sizes)
        before = self.part
        if before is not None and before.of == of and of != self._too_large:
            return before
        part = None
        if of != self._too_large:
            part = WordPartition(model, of, self._words_of(block, split))
            rows = len(part.keys) + private_num(model.settings, block.parts, part.word_num)
            if present is not None and not keeps_part(model.settings, rows, tokens):
                part, self._too_large = None, of
        if part is None:
            assert present is not None
            part = WordPartition(model, of, present)
        if split.is_whole:
            keys = np.arange(len(self._vocabulary), dtype=np.uint64)
            part.staying = (PartitionRows(self.sgd, "output", keys, bases=False),)
        spare = private_num(model.settings, block.parts, part.word_num)
        part.inputs = PartitionRows(
            self.sgd, "input", part.keys, bases=not part.staying, spare=spare
        )
        self.part = part
        return part

    def _split_of(self, sizes: tuple[int, ...], output_parts: int) -> WordSplit:
        """The split into these partitions; kept, since it changes only with workers and speeds."""
        split = self._splits.get((sizes, output_parts))
        if split is None:
            whole = len(sizes) == 1 and keeps_all_rows(self._vocabulary, self.model.settings)
            split = self._new_split(sizes, 1 if whole else output_parts)
            self._splits = {(sizes, output_parts): split}
        return split

    def _new_split(self, sizes: tuple[int, ...], output_parts: int) -> WordSplit:
        kept = self._vocabulary.counts.astype(np.float64) * self._keep
        parts = len(sizes)
        inputs, sharers, bundling = self._input_parts(kept, sizes)
        outputs = assign_by_hash(kept, np.arange(len(kept), dtype=np.uint64), output_parts)
        words = tuple(np.flatnonzero(outputs == i).astype(np.int32) for i in range(output_parts))
        shares = np.zeros(parts + 1)
        shares[1:] = np.bincount(inputs, kept, parts).cumsum() / kept.sum()
        shares[-1] = 1.0
        noise = tuple(PartNoise(of_part, self._noise[of_part]) for of_part in words)
        return WordSplit(inputs, outputs, noise, shares, sharers, bundling)

    def _input_parts(
        self, kept: NDArray[np.float64], sizes: tuple[int, ...]
    ) -> tuple[Ints, NDArray[np.int16] | None, Any]:
        """The partition of each word's input row, `WordSplit.sharers` and `WordSplit.bundling`."""
        return assign(kept, sizes, 2 * self.model.settings.seed), None, None

    # --- a lease, trained ---------------------------------------------------------------------

    def check_out(self, block: Block, lease: WordLease, part: int) -> Checkout:
        sgd = self.sgd
        if lease.part.staying:
            (first, examples), lease.first = lease.first or (-1, None), None
            if examples is None or first != part:
                examples = self.read(block, part)
            targets = self.model.outputs.whole or self._noise_of(
                self._draw(block, lease.split.noise[0], len(examples), part), slice(None)
            )
            outputs = lease.part.staying[0].local
            a, b = (len(outputs[0]) * at // block.output_parts for at in (part, part + 1))
            begin = partial(self._begin, lease.part, lease.part.bags, examples, outputs, targets)
            bounded = partial(are_bounded, outputs[0][a:b])
            return Checkout(part, len(examples), begin, finite=bounded)
        assert lease.of_part is not None
        examples = lease.of_part(part)
        present, contexts, _ = self.numbers.number(examples.contexts, NO_WORDS)
        seed = (block.seed + ~part) & MASK64
        noise = lease.split.noise[part].among(present, self.absent_share, seed)
        drawn = self._draw(block, noise, len(examples), part)
        words, _, negatives = self.numbers.number(present, drawn)
        keys = words.astype(np.uint64)
        packed = sgd.pull_rows("output", keys).wait()
        local = sgd.make_trained(len(keys))
        sgd.layout.load(packed, *local)
        examples = examples.at(contexts)
        targets = self._noise_of(negatives, words)
        bags, run = lease.part.bags, None
        if lease.run_of is not None:
            examples, run = lease.run_of(examples)
            bags = run.bags

        def subtract() -> None:
            sgd.in_threads(sgd.layout.subtract, packed, *local)
            sgd.give_trained(local)

        begin = partial(self._begin, lease.part, bags, examples, local, targets)
        finite = partial(are_bounded, local[0])
        return Checkout(part, len(examples), begin, subtract, keys, packed, finite, run)

    def _noise_of(self, negatives: Ints, words: NDArray[Any] | slice) -> Noise:
        """Negatives of which some words, whose output rows are here, have the places."""
        assert isinstance(self.model.outputs, SampledRows)  # rows of a tree stay with one worker
        return Noise(negatives, self.model.outputs.logit(words))

    def _draw(self, block: Block, noise: PartNoise, groups: int, checkout: int) -> Ints:
        """Draw the negatives of a checkout with this many groups."""
        pool = groups * kernels.SHARED // kernels.GROUP // NOISE_REUSE
        pool = max(pool, kernels.SHARED) if groups else 0
        return noise.draw(pool, (block.seed + checkout) & MASK64)

    def _begin(
        self,
        part: WordPartition,
        bags: Bags,
        examples: ExampleGroups,
        outputs: Rows,
        targets: Targets,
        groups: Span,
        rates: Rates,
        seed: int,
    ) -> list[Future[Judged]]:
        s, rows = self.model.settings, part.inputs.local
        return train(self.sgd, s, examples, groups, rows, bags, outputs, targets, rates, seed)

    @property
    def first_rate(self) -> float:
        """The initial rate: `lr`, with auto resolved for the words of this training."""
        return self.model.settings.rate

    def rate(self, progress: float) -> float:
        return self.first_rate * (1.0 - progress)

    def figures(self, results: Sequence[Judged], finite: bool) -> Mapping[str, float]:
        return self.model.figures_of(results, finite)
