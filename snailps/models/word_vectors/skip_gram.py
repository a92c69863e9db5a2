"""Skip-gram: pairs of a centre and a context, sorted into bundles, a group each.

    prepare: the chunk's text -> pairs whose centre is in the input partition, by output partition

docs/design/word-pairs.md says why pairs are sorted at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Block
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.examples import MASK64, PHI, Pairs
from snailps.models.word_vectors.input_exchange import Sharing
from snailps.models.word_vectors.partitions import STEPS_APART, assign_by_grams
from snailps.models.word_vectors.rotation import Partition, PartitionLease, RotationTrainer, Split

BUNDLE = 8
"""Contexts that a centre word is trained with at a time, at most."""
RUN_MAX = 16
"""Bundles of a word that are trained one after the other, with its hidden vector at hand."""
RUN_WORDS = 4096
"""The most frequent words, from which `longest_run` estimates how much bags share."""
_SHARED_MAX = 4.0
"""Gradients of other words that a hidden vector may lack in a run."""
TURNS_MAX = 16
"""Exchanges in a checkout at most."""
TURN_GROUPS = 64
"""Least groups of pairs between two exchanges."""
GROUP_CURVATURE = 4.0
"""Share of its way to the optimum that a group's hidden vector goes in a step, at rate 1."""
LANES = 16
"""Words that the kernel trains side by side."""

Ints = NDArray[np.int32]


class SkipGramTrainer(RotationTrainer):
    """A lease has the pairs whose centre is in its input partition."""

    def examples(self, tokens: Ints, seed: int) -> Pairs:
        window, run = self.model.settings.window, max(1, self.model.run)
        centres, starts, contexts, _ = kernels.sort_pairs(tokens, window, seed, BUNDLE, run=run)
        return Pairs(centres, starts, contexts)

    def _input_parts(self, kept: NDArray[np.float64], parts: int) -> tuple[Ints, Ints | None, int]:
        """Words that share n-grams come together, unless a worker could then train none at once."""
        s = self.model.settings
        if s.maxn == 0 or parts == 1:
            return (*super()._input_parts(kept, parts)[:2], max(1, self.model.run))
        for together in (True, False):
            inputs, sharers = assign_by_grams(self._vocabulary, s, kept, parts, together=together)
            run = min(self.model.run_of(np.flatnonzero(inputs == part)) for part in range(parts))
            if run > 0:
                break
        return inputs, sharers, max(1, run)

    def _sorted(self, block: Block, split: Split) -> PartitionLease:
        """Sort the pairs, without those of durable checkouts."""
        s = self.model.settings
        ids, words = shared_text.get_chunk(self.model, block.chunk, block.chunk_blocks)
        pairs = np.empty(block.output_parts, np.int64)
        centres, starts, contexts, bounds = kernels.sort_pairs(
            ids,
            s.window,
            (s.seed * PHI + block.chunk) & MASK64,
            BUNDLE,
            run=split.run,
            inputs=split.inputs,
            part=block.part,
            outputs=split.outputs,
            parts=block.output_parts,
            # How often rows of n-grams travel follows from all groups of a lease.
            without=() if s.maxn else block.durable,
            pairs=pairs,
        )
        tokens = len(ids) // block.parts
        del ids
        seen = np.zeros(len(split.inputs), np.bool_)
        seen[centres] = True
        present = np.flatnonzero(seen)
        part = self._part_of(block, split, present, tokens)
        centres = part.place[centres]
        rows = part.rows_of(part.place[present])
        before, after = (int(words * share) for share in split.shares[block.part : block.part + 2])
        return PartitionLease(
            split,
            part,
            rows,
            after - before,
            np.concatenate(([0], pairs.cumsum())),
            self._sharing(block, split, part, rows, centres),
            Pairs(centres, starts, contexts),
            bounds,
        )

    def _sharing(
        self, block: Block, split: Split, part: Partition, rows: NDArray[np.int64], centres: Ints
    ) -> Sharing | None:
        """Partitions share rows of n-grams, and step as often as each other."""
        s = self.model.settings
        if split.sharers is None or not len(rows):
            return None
        keys = part.keys[rows]
        sharers = np.ones(len(keys), np.int32)
        words = int(np.searchsorted(keys, BUCKET_KEY))
        buckets = (keys[words:] - np.uint64(BUCKET_KEY)).astype(np.int64)
        sharers[words:] = split.sharers[buckets]
        if (sharers < 2).all():
            return None
        groups = np.bincount(centres, minlength=part.word_num)
        present = np.flatnonzero(groups)
        groups = groups[present]
        sizes, entries = part.bags.entries(present)
        own = np.bincount(entries, np.repeat(groups, sizes), len(part.keys))[rows]
        way = np.bincount(entries, np.repeat(groups / sizes, sizes), len(part.keys))[rows]
        rate = GROUP_CURVATURE * s.rate * (1.0 - block.progress[0])
        turns = max(1, min(TURNS_MAX, len(centres) // (block.output_parts * TURN_GROUPS)))
        # Of all workers: what a copy lacks are the steps of the others.
        apart = STEPS_APART * sharers / np.maximum(sharers - 1, 1)
        return Sharing(sharers, own, rate * way, apart, turns)


def longest_run(
    kept: NDArray[np.float64], bag_ptr: NDArray[np.int64], bag_rows: Ints, threads: int
) -> int:
    """How many bundles of a word may be trained in a run: fewer where bags share most rows.

    A word's hidden vector misses what the other `LANES` words of each thread change in rows of its
    bag until its run ends.  `kept` is how often each word is trained.  0: even bundles that follow
    each other in no run share too much, and may diverge.
    """
    if not len(kept):
        return RUN_MAX
    sizes = np.diff(bag_ptr)
    share = np.repeat(kept / kept.sum(), sizes)
    of_others = np.bincount(bag_rows, weights=share)[bag_rows] - share
    shared = (LANES * threads - 1) * float((share * of_others / np.repeat(sizes, sizes)).sum())
    return int(np.clip(_SHARED_MAX / max(shared, 1e-9), 0, RUN_MAX))
