"""Skip-gram: pairs of a centre and a context, sorted into bundles of one centre.

    prepare: the chunk's text -> pairs whose centre is in the input partition, by output partition

Owns how many pairs are trained side by side (`Bundling`), and how often shared rows of n-grams are
exchanged.  docs/design/word-pairs.md says why pairs are sorted at all.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.abi.key_hash import GOLDEN, MASK64
from snailps.api.worker import Block
from snailps.models.rotation.input_exchange import Sharing
from snailps.models.rotation.trainer import whole
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.examples import Pairs, shared_rows
from snailps.models.word_vectors.partitions import STEPS_APART, assign_by_grams
from snailps.models.word_vectors.plan import keeps_near
from snailps.models.word_vectors.rotation import WordLease, WordPartition, WordSplit, WordTrainer

BUNDLE = 8
"""Most contexts that a centre word is trained with at a time."""
RUN_MAX = 16
"""Most bundles of a word that are trained one after the other, with its hidden vector at hand."""
_SHARED_MAX = 4.0
"""Most gradients of other words that a hidden vector may lack in a run."""
TURNS_MAX = 8
"""Most exchanges in a checkout."""
TURN_GROUPS = 64
"""Least groups of pairs between two exchanges."""
GROUP_CURVATURE = 4.0
"""Share of its way to the optimum that a group's hidden vector goes in a step, at rate 1."""
ABSENT_SHARE = 0.25
"""`WordTrainer.absent_share`: an eighth of all output rows travel less for .002 of the loss."""
LANES = 16
"""Most words that the kernel trains side by side."""
LANES_SHARED = 2.5
"""Most rows that the words beside one may share with it, as a multiple of its bag."""

Ints = NDArray[np.int32]


class SkipGramTrainer(WordTrainer):
    """Trains leases that have the pairs whose centre is in their input partition."""

    absent_share, narrows_deltas = ABSENT_SHARE, True

    @cached_property
    def bundling(self) -> Bundling:
        """`bundling_of` all words."""
        return self.bundling_of(np.arange(len(self._vocabulary)))

    def bundling_of(self, words: NDArray[np.int64]) -> Bundling:
        """Choose how pairs are trained where a worker trains these words."""
        model, (kept, bags) = self.model, self.frequent(words)
        rate = model.settings.rate / model.settings.usual_rate
        return bundling(kept, bags.ptr, bags.rows, model.threads, rate, bags.weights)

    def examples(self, tokens: Ints, seed: int) -> Pairs:
        s, (lanes, run) = self.model.settings, self.bundling
        pairs = kernels.sort_pairs(tokens, s.window, seed, BUNDLE, run=run, reach_min=s.reach_min)
        return Pairs(*pairs.take(0), lanes)

    def _input_parts(
        self, kept: NDArray[np.float64], sizes: tuple[int, ...]
    ) -> tuple[Ints, NDArray[np.int16] | None, Bundling]:
        """Put words that share n-grams together, unless few could then be trained side by side."""
        s, parts = self.model.settings, len(sizes)
        if s.maxn == 0 or parts == 1:
            return (*super()._input_parts(kept, sizes)[:2], self.bundling)
        for together in (True, False):
            inputs, sharers = assign_by_grams(self._vocabulary, s, kept, sizes, together=together)
            each = [self.bundling_of(np.flatnonzero(inputs == at)) for at in range(parts)]
            least = Bundling(*map(min, zip(*each, strict=True)))
            if least.lanes >= LANES // 2:
                break
        return inputs, sharers, least

    def _sorted(self, block: Block, split: WordSplit) -> WordLease:
        """Sort the pairs by output partition; durable checkouts have none."""
        s = self.model.settings
        get = partial(
            shared_text.get_near,
            self.model,
            block.chunk,
            block.chunk_blocks,
            split.inputs,
            block.part,
            s.window,
            partial(keeps_near, s, block.parts),
        )
        ids, places, number, words = whole(block, get)
        pairs = kernels.sort_pairs(
            ids,
            s.window,
            (s.seed * GOLDEN + block.chunk) & MASK64,
            BUNDLE,
            run=split.bundling.run,
            reach_min=s.reach_min,
            inputs=split.inputs,
            part=block.part,
            outputs=split.outputs,
            parts=block.output_parts,
            # With n-grams all are needed: how often their rows travel follows from all groups.
            without=() if s.maxn else block.durable,
            origins=places,
        )
        tokens = number * block.sizes[block.part] // sum(block.sizes)
        del ids, places
        met = pairs.bundles > 0
        present = pairs.words[met].astype(np.int64)
        part = self._part_of(block, split, present, tokens)
        words_met = part.place[present]
        rows = part.rows_of(words_met)
        before, after = (int(words * share) for share in split.shares[block.part : block.part + 2])

        def of_part(at: int) -> Pairs:
            centres, starts, contexts = pairs.take(at)
            return Pairs(part.place[centres], starts, contexts, split.bundling.lanes)

        return WordLease(
            part,
            rows,
            after - before,
            np.concatenate(([0], pairs.pairs.cumsum())),
            self._sharing(block, split, part, rows, words_met, pairs.bundles[met]),
            split,
            of_part,
        )

    def _sharing(
        self,
        block: Block,
        split: WordSplit,
        part: WordPartition,
        rows: NDArray[np.int64],
        words: Ints,
        groups: NDArray[np.int64],
    ) -> Sharing | None:
        """Plan the exchange of rows of n-grams that other partitions have, too.

        `words` are those with pairs, ascending, each with its number of `groups`; `rows` are their
        input rows.  Other partitions are expected to step on a row as often as this one.
        """
        s = self.model.settings
        if split.sharers is None or not len(rows):
            return None
        keys = part.keys[rows]
        sharers = np.ones(len(keys), np.int32)
        of_words = int(np.searchsorted(keys, BUCKET_KEY))
        buckets = (keys[of_words:] - np.uint64(BUCKET_KEY)).astype(np.int64)
        sharers[of_words:] = split.sharers[buckets]
        if (sharers < 2).all():
            return None
        sizes, entries, weights = part.bags.entries(words)
        own = np.bincount(entries, np.repeat(groups, sizes), len(part.keys))
        # A step on a word moves another word's hidden vector by each row that both have: by this
        # row, and by other shared rows as often as words have them.
        often = np.zeros(len(own))
        often[rows] = np.where(sharers > 1, own[rows] / groups.sum(), 0.0)
        ptr = np.concatenate(([0], sizes.cumsum()))
        beside = np.add.reduceat(weights * often[entries], ptr[:-1])
        moves = np.repeat(groups / np.add.reduceat(weights, ptr[:-1]), sizes) * (
            1.0 + np.repeat(beside, sizes) - often[entries]
        )
        way, own = np.bincount(entries, moves, len(own))[rows], own[rows]
        rate = GROUP_CURVATURE * s.rate * (1.0 - block.progress[0])
        turns = max(1, min(TURNS_MAX, int(groups.sum()) // (block.output_parts * TURN_GROUPS)))
        # Steps of all workers between two exchanges: a copy lacks those of the others.
        size = block.sizes[block.part]
        others = (sharers - 1) * ((sum(block.sizes) - size) / max(1, block.parts - 1) / size)
        apart = STEPS_APART * (1.0 + 1.0 / np.where(others > 0, others, 1.0))
        return Sharing(1.0 + others, own, rate * way, apart, turns)


class Bundling(NamedTuple):
    """How many centres are trained side by side, and how many bundles of one in a row."""

    lanes: int
    run: int


def bundling(
    kept: NDArray[np.float64],
    bag_ptr: NDArray[np.int64],
    bag_rows: Ints,
    threads: int,
    rate: float = 1.0,
    weights: NDArray[np.float32] | None = None,
) -> Bundling:
    """Choose lanes and runs: fewer and shorter where words' bags share most of their rows.

    Until its run ends, a word's hidden vector lacks what words in other lanes change in rows of its
    bag.  Steps that go the same way then add up, and diverge if there are many.  `kept` is how
    often each word is trained, `rate` the step size as a multiple of the default, `weights` are
    `Bags.weights`.
    """
    shared = max(1e-9, threads * shared_rows(kept, bag_ptr, bag_rows, weights))
    lanes = LANES
    while lanes > 1 and lanes * shared * rate > LANES_SHARED:
        lanes //= 2
    run = int(np.clip(_SHARED_MAX / (LANES * shared), 1, RUN_MAX))
    return Bundling(lanes, run if lanes == LANES else 1)  # what is in a lane stays in whole groups
