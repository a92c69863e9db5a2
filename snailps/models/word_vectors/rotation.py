"""The trainer of word vectors: leases of partitions, in which no output row has two writers.

    encode:  a block of text -> word ids -> table "text"                 (by any worker, ahead)
    prepare: ids of the chunk -> examples of the input partition, sorted by output partition
    check out: groups of an output partition -> its words -> PULL -> negatives drawn from these

Words are split into input partitions for their input rows, and into output partitions for their
output rows (`partitions`).  What is an example of a text, and which rows it trains, is the
subclass's: `skip_gram`, `cbow`.  How leases are trained is `models.rotation.trainer`'s.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

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
    Judged,
    Lease,
    Partition,
    Rates,
    RotationTrainer,
    Span,
    Which,
    whole,
)
from snailps.models.row_bounds import are_bounded
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.block_size import NOISE_POWER, NOISE_REUSE, draw
from snailps.models.word_vectors.examples import Bags, Examples, Noise, Rows, train
from snailps.models.word_vectors.partitions import keeps_all_rows, keeps_part
from snailps.models.word_vectors.word_rows import WordRows

Ints = NDArray[np.int32]


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
    sharers: NDArray[np.int16] | None
    """Input partitions with a word that has an n-gram of a bucket, for each bucket."""
    bundling: Any
    """How the pairs of skip-gram are trained; None with CBOW."""

    @property
    def is_whole(self) -> bool:
        """Whether the only worker has all rows: none travel, a checkout is a share of the text."""
        return len(self.words) == 1


class WordPartition(Partition):
    """Words of an input partition.

    `place` of each word of the vocabulary is its number in the partition, or -1; -1 behind, for
    token -1.  `keys` of its input rows: words, then buckets.
    """

    def __init__(self, model: WordRows, of: Which, words: NDArray[np.int64]) -> None:
        super().__init__(of)
        self.word_num = len(words)
        self.place = np.full(len(model.vocabulary) + 1, -1, np.int32)
        self.place[words] = np.arange(len(words), dtype=np.int32)
        ptr, rows, self.keys = model.bags(words)
        self.bags = Bags.of(ptr, rows, len(self.keys))

    def rows_of(self, words: NDArray[np.integer]) -> NDArray[np.int64]:
        """Input rows of some of its words, given by their number in it; ascending."""
        seen = np.zeros(len(self.keys), np.bool_)
        seen[self.bags.entries(words)[1]] = True
        return np.flatnonzero(seen)


@dataclass(slots=True)
class WordLease(Lease):
    """A prepared lease of an input partition of words."""

    part: WordPartition
    split: Split
    """How words are split."""
    of_part: Callable[[int], Examples] | None = None
    """Makes the examples of an output partition, once each.  None: a checkout reads its share of
    the text."""
    first: tuple[int, Examples] | None = None
    """The first such checkout, and its examples."""


class WordTrainer(RotationTrainer):
    """Prepares and trains leases for a `WordVectors` worker, after its `setup`."""

    part: WordPartition | None = None

    def __init__(self, model: WordRows) -> None:
        super().__init__(model, model.sgd, "output")
        self.model = model
        self._vocabulary = model.vocabulary
        self._keep = model.keep
        self._noise = model.vocabulary.noise(NOISE_POWER)
        self.logit = model.noise_logit(slice(None))
        self._splits: dict[tuple[tuple[int, ...], int], Split] = {}
        self._too_large: Which | None = None  # a partition that does not fit into memory
        self.numbers = WordNumbers(len(model.vocabulary))  # of the thread that checks out

    # --- what an example is --------------------------------------------------------------------

    @abstractmethod
    def examples(self, tokens: Ints, seed: int) -> Examples:
        """All examples of a text, whose words have the same number as input and as output."""

    @abstractmethod
    def _sorted(self, block: Block, split: Split) -> WordLease:
        """A lease whose examples are sorted by output partition, and what else depends on these."""

    def _words_of(self, block: Block, split: Split) -> NDArray[np.int64]:
        """Words of which a partition has input rows."""
        return np.flatnonzero(split.inputs == block.part)

    # --- a lease, prepared while another one trains ------------------------------------------

    def lease(self, block: Block) -> WordLease:
        self.model.narrow_rows = block.parts > 1  # an only worker has the same bits each time
        split = self._split_of(block.sizes, block.output_parts)
        return self._whole(block, split) if split.is_whole else self._sorted(block, split)

    def _whole(self, block: Block, split: Split) -> WordLease:
        """A lease whose checkouts are shares of the text."""
        part = self._part_of(block, split)
        count = partial(shared_text.count, self.model, block.chunk, block.chunk_blocks)
        _, words = whole(block, count)
        rows, share = None, np.arange(block.output_parts + 1)
        lease = WordLease(part, rows, words, share, None, split)
        left = [checkout for checkout in range(block.output_parts) if checkout not in block.durable]
        if left:
            lease.first = left[0], self.read(block, left[0])
        return lease

    def read(self, block: Block, checkout: int) -> Examples:
        """All examples of a checkout's share of the text."""
        model, checkouts = self.model, block.output_parts
        blocks, sizes = block.chunk_blocks, (1,) * checkouts
        get = partial(shared_text.get_chunk, model, block.chunk, blocks, checkout, sizes)
        ids, _ = whole(block, get)
        seed = model.settings.seed * GOLDEN + block.chunk * checkouts + checkout
        return self.examples(ids, seed & MASK64)

    def _part_of(
        self,
        block: Block,
        split: Split,
        present: NDArray[np.int64] | None = None,
        tokens: int = 0,
    ) -> WordPartition:
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
            part = WordPartition(model, of, self._words_of(block, split))
            if present is not None and not keeps_part(model.settings, len(part.keys), tokens):
                part, self._too_large = None, of
        if part is None:
            assert present is not None
            part = WordPartition(model, of, present)
        if split.is_whole:
            keys = np.arange(len(self._vocabulary), dtype=np.uint64)
            part.staying = (PartitionRows(self.sgd, "output", keys, bases=False),)
        part.inputs = PartitionRows(self.sgd, "input", part.keys, bases=not part.staying)
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
        parts = len(sizes)
        inputs, sharers, bundling = self._input_parts(kept, sizes)
        outputs = assign_by_hash(kept, np.arange(len(kept), dtype=np.uint64), output_parts)
        words = tuple(np.flatnonzero(outputs == at).astype(np.int32) for at in range(output_parts))
        shares = np.zeros(parts + 1)
        shares[1:] = np.bincount(inputs, kept, parts).cumsum() / kept.sum()
        shares[-1] = 1.0
        noise_sums = tuple(self._noise[own].cumsum() for own in words)
        return Split(inputs, outputs, words, noise_sums, shares, sharers, bundling)

    def _input_parts(
        self, kept: NDArray[np.float64], sizes: tuple[int, ...]
    ) -> tuple[Ints, NDArray[np.int16] | None, Any]:
        """The partition of each word's input row, `Split.sharers` and `Split.bundling`."""
        return assign(kept, sizes, 2 * self.model.settings.seed), None, None

    # --- a lease, trained ---------------------------------------------------------------------

    def check_out(self, block: Block, lease: WordLease, part: int) -> Checkout:
        sgd = self.sgd
        if lease.part.staying:
            (first, examples), lease.first = lease.first or (-1, None), None
            if examples is None or first != part:
                examples = self.read(block, part)
            noise = Noise(self._draw(block, lease, 0, len(examples), part), self.logit)
            outputs = lease.part.staying[0].local
            a, b = (len(outputs[0]) * at // block.output_parts for at in (part, part + 1))
            begin = partial(self._begin, lease.part, examples, outputs, noise)
            bounded = partial(are_bounded, outputs[0][a:b])
            return Checkout(part, len(examples), begin, finite=bounded)
        assert lease.of_part is not None
        examples = lease.of_part(part)
        drawn = self._draw(block, lease, part, len(examples), part)
        words, contexts, negatives = self.numbers.number(examples.contexts, drawn)
        keys = words.astype(np.uint64)
        packed = sgd.pull_rows("output", keys).wait()
        local = sgd.make_trained(len(keys))
        sgd.layout.load(packed, *local)
        examples = examples.at(contexts)
        noise = Noise(negatives, self.model.noise_logit(words))

        def subtract() -> None:
            sgd.in_threads(sgd.layout.subtract, packed, *local)
            sgd.give_trained(local)

        begin = partial(self._begin, lease.part, examples, local, noise)
        finite = partial(are_bounded, local[0])
        return Checkout(part, len(examples), begin, subtract, keys, packed, finite)

    def _draw(self, block: Block, lease: WordLease, part: int, groups: int, checkout: int) -> Ints:
        """Negatives of an output partition for so many groups."""
        split = lease.split
        pool = groups * kernels.SHARED // kernels.GROUP // NOISE_REUSE
        pool = max(pool, kernels.SHARED) if groups else 0
        seed = (block.seed + checkout) & MASK64
        return split.words[part][draw(split.noise_sums[part], pool, seed)]

    def _begin(
        self,
        part: WordPartition,
        examples: Examples,
        outputs: Rows,
        noise: Noise,
        groups: Span,
        rates: Rates,
        seed: int,
    ) -> list[Future[Judged]]:
        s, rows = self.model.settings, part.inputs.local
        return train(self.sgd, s, examples, groups, rows, part.bags, outputs, noise, rates, seed)

    def rate(self, progress: float) -> float:
        return self.model.settings.rate * (1.0 - progress)

    def figures(self, results: Sequence[Judged], finite: bool) -> Mapping[str, float]:
        return self.model.figures_of(results, finite)
