"""CBOW: windows of a text, each with its target.

    prepare: this partition's share of the chunk's text -> its places, sorted by the output
             partition of the word there: the targets of each checkout

A window has one target and several inputs.  Output rows are split by target, as with skip-gram.
Inputs may be any words, so an input partition is a share of the text, and each worker has a copy of
all input rows, which it exchanges by rate (`input_exchange`).  Owns how far a step on a window
moves other windows, on which the shares of deltas depend.  Negatives come from the target's
partition.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Block
from snailps.models.rotation.input_exchange import Held, Sharing
from snailps.models.rotation.trainer import whole
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.contention import steps_a_word
from snailps.models.word_vectors.examples import Windows, shared_rows
from snailps.models.word_vectors.private_rows import (
    RUN_TARGETS,
    PrivateRows,
    private_num,
)
from snailps.models.word_vectors.rotation import WordLease, WordPartition, WordSplit, WordTrainer
from snailps.models.word_vectors.settings import LR

Ints = NDArray[np.int32]

WINDOW_CURVATURE = 0.3
"""Share of its way to the optimum that a window's hidden vector goes in a step, at rate 1."""
GRAM_CURVATURE = 0.2
"""`WINDOW_CURVATURE` with rows of n-grams, whose steps `gains_of_grams` counts."""
OCTAVES = 2
"""Rows whose frequencies differ by a factor of 2 ** OCTAVES at most are taken to step together."""
STEPS_APART_MIN, STEPS_APART_MAX = 100.0, 300.0
"""Least and most steps of all workers on the row (or bag) of a word between two exchanges, in the
middle of a training."""
WORDS_A_STEP_APART = 100_000.0
"""One such step is allowed for this many words of all epochs: copies then lag by a fixed share of a
training."""
BEGIN_APART, END_APART = 0.3, 2.7
"""Factors of the number of these steps at the beginning and at the end of a training: copies must
agree most while vectors still grow."""
TURNS_MAX, TURN_TARGETS = 16, 1000
"""Most exchanges in a checkout, and least targets between two."""
GRAM_TURNS_MAX, GRAM_TURN_TARGETS = 16, 200
"""`TURNS_MAX` and `TURN_TARGETS` with rows of n-grams, some of which are in every window."""
LARGE_TURNS_MAX, LARGE_TURN_TARGETS = 64, 2_000
"""The same in checkouts that have so many targets for each of more turns."""
SHARED_MAX = 0.15
"""Most `shared_rows` with which sums of bags are carried, which meanwhile lack others' steps, and
steps are as long as for words alone: addresses share .85, and diverge at that rate."""


class CbowTrainer(WordTrainer):
    """Trains leases that have a share of the chunk's text, with targets by output partition."""

    def _words_of(self, block: Block, split: WordSplit) -> NDArray[np.int64]:
        """All words: any may be an input."""
        return np.arange(len(self._vocabulary))

    @cached_property
    def shares_few(self) -> bool:
        """Whether words of this vocabulary share few rows: for `Windows.carry` and the rate."""
        kept, bags = self.frequent(np.arange(len(self._vocabulary)))
        return shared_rows(kept, bags.ptr, bags.rows, bags.weights) <= SHARED_MAX

    @property
    def first_rate(self) -> float:
        s = self.model.settings
        if s.lr or s.optimizer == "adagrad" or self.shares_few:
            return s.rate
        return min(s.rate, LR)

    def examples(self, tokens: Ints, seed: int) -> Windows:
        return Windows(tokens, None, tokens, self.shares_few)

    def _sorted(self, block: Block, split: WordSplit) -> WordLease:
        """Read this partition's share of the chunk, and sort its targets."""
        place = block.chunk, block.chunk_blocks, block.part
        get = partial(shared_text.get_chunk, self.model, *place, block.sizes)
        ids, words = whole(block, get)
        kept = np.flatnonzero(ids >= 0)
        outputs = split.outputs[ids[kept]].astype(np.uint16)  # a type that sorts in one pass
        order = np.argsort(outputs, kind="stable")
        bounds = np.zeros(block.output_parts + 1, np.int64)
        np.cumsum(np.bincount(outputs, minlength=block.output_parts), out=bounds[1:])
        targets = kept[order].astype(np.int32)
        seen = np.zeros(len(self._vocabulary), np.bool_)
        seen[ids[kept]] = True
        present = np.flatnonzero(seen)
        part = self._part_of(block, split, present, len(targets))
        rows, examples = (
            part.rows_of(part.place[present]),
            Windows(part.place[ids], targets, ids[targets], self.shares_few),
        )
        sharing = self._sharing(block, part, rows, examples)

        def of_part(at: int) -> Windows:
            of_at = slice(int(bounds[at]), int(bounds[at + 1]))
            return Windows(examples.tokens, targets[of_at], examples.words[of_at], self.shares_few)

        lease = WordLease(part, rows, words, bounds, sharing, split, of_part)
        if sharing is not None and sharing.held is not None:
            rare = np.zeros(len(part.keys), np.bool_)
            rare[rows] = sharing.held.rows
            private, of_run = PrivateRows.of(part.bags, rare), sharing.held.turns
            reach = (self.model.settings.reach_min + self.model.settings.window) // 2
            runs = sharing.turns // of_run
            lease.run_of = partial(private.run, self.sgd, part.inputs, reach, runs, of_run)
        return lease

    def _sharing(
        self, block: Block, part: WordPartition, rows: NDArray[np.int64], examples: Windows
    ) -> Sharing | None:
        """Plan the exchange of all rows; the vocabulary says how often others step on each."""
        s, contention = self.model.settings, self.model.contention(block.parts)
        if contention is None or not len(examples):
            return None
        keys, number = part.keys[rows], len(part.keys)
        others, _ = contention.steps_elsewhere(len(examples), keys, keys[:0])
        size = block.sizes[block.part]
        others *= (sum(block.sizes) - size) / max(1, block.parts - 1) / size
        counts = np.bincount(part.place[examples.words], minlength=part.word_num)
        present = np.flatnonzero(counts)
        counts = counts[present]
        sizes, entries, weights = part.bags.entries(present)
        windows, _ = steps_a_word(s)
        occurrences = np.bincount(entries, np.repeat(counts * windows, sizes), number)
        targets, held = len(examples) // block.output_parts, None  # of a checkout
        if s.maxn:
            ptr = np.concatenate(([0], sizes.cumsum()))
            gains, moves = gains_of_grams(ptr, entries, weights, counts, occurrences)
            curvature, turns = GRAM_CURVATURE, turns_of_grams(targets)
        else:
            gains = moves = occurrences / windows
            curvature, turns = WINDOW_CURVATURE, min(TURNS_MAX, targets // TURN_TARGETS)
        turns = max(1, turns)
        begin, _ = block.progress
        way = gains[rows] * (curvature * self.rate(begin))
        apart = s.epochs * self._vocabulary.tokens / WORDS_A_STEP_APART
        apart = min(max(apart, STEPS_APART_MIN), STEPS_APART_MAX)
        apart *= BEGIN_APART + (END_APART - BEGIN_APART) * begin
        crowding, own = 1.0 + others / occurrences[rows], moves[rows] * windows
        if private_num(s, block.parts, part.word_num):
            runs = min(turns, max(1, round(targets / RUN_TARGETS)))
            turns -= turns % runs
            in_lease = block.output_parts * runs
            # What would travel within a run must not wait for its end.
            held = Held(own * crowding <= apart * in_lease, turns // runs)
        return Sharing(crowding, own, way, apart, turns, held)


def turns_of_grams(targets: int) -> int:
    """Most exchanges in a checkout of so many targets, with rows of n-grams."""
    few = min(GRAM_TURNS_MAX, targets // GRAM_TURN_TARGETS)
    return max(few, min(LARGE_TURNS_MAX, targets // LARGE_TURN_TARGETS))


def gains_of_grams(
    ptr: NDArray[np.int64],
    rows: Ints,
    weights: NDArray[Any],
    counts: NDArray[Any],
    occurrences: NDArray[Any],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far a row's steps move the hidden vectors of windows that have it, in whole steps.

    Returns two estimates: with all rows that step together with it in a word, for the share of its
    delta; and with the root of their number, for exchanges, since with all of them rare rows would
    travel so often that frequent rows wait.  `ptr`, `rows` and `weights` are the bags of words: an
    entry of weight m stands for m rows that step together.  `counts` says of how many windows each
    word is the target, `occurrences` of how many each row is an input.

    A window's hidden vector is the mean of n rows, with row r c(r) times, and a step adds as much
    to r for each time.  So a step on window v moves window w by sum c_v(r) c_w(r) / n of itself.
    At worst, rows in equally many windows are in the same windows: each row of the same word counts
    for all of them, and rows of other words count by the mean, f(r)^2 / n.  Frequent rows do not
    count for rare ones: a quadratic form of b bands is at most b times the sum of each band's form,
    so each band's shares are right whatever the others do.
    """
    targets, sizes = counts.sum(), np.diff(ptr)
    frequency = occurrences / targets
    alike = np.zeros(len(occurrences))  # rows that each one stands for
    alike[rows] = weights
    size = occurrences @ alike / targets
    bands = (np.log2(np.maximum(frequency, 1e-9)) / OCTAVES).astype(np.int64)
    bands -= bands.min(initial=0)
    apart = np.bincount(bands, alike * frequency * frequency)[bands]
    words, bands = np.repeat(np.arange(len(sizes)), sizes), bands[rows]
    together = np.empty(len(rows))
    for band in np.unique(bands).tolist():
        of_band = np.flatnonzero(bands == band)
        together[of_band] = np.bincount(words[of_band], weights[of_band])[words[of_band]]
    often = np.repeat(counts.astype(np.float64), sizes)
    number = len(occurrences)  # of all rows: some may belong to no word here
    beside = np.bincount(rows, often * together, number)
    alike = beside / np.maximum(np.bincount(rows, often, number), 1)
    steps = targets * -np.expm1(-frequency) / size  # windows with the row, times one row's part
    return steps * (alike + apart), steps * (np.sqrt(alike) + apart)
