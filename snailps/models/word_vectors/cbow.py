"""CBOW by several workers, in which no output row has two writers at a time: rotation.

    prepare: this part's share of the chunk's text -> its places, sorted by the visiting part of
             the word there: the targets of each visit
    train:   input rows <- PULL; then for each visiting part of the output rows:
             borrow -> PULL -> kernel threads, exchanges of input rows -> PUSH -> give back

A window has one target and several inputs.  Output rows are dealt by target into visiting parts, as
those of skip-gram are.  Its inputs are words of all parts, so nothing is resident: a tenancy is a
share of the text, and all input rows are copies, which workers exchange by rate (`input_exchange`).

Negatives of a target are drawn from its visiting part.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.worker import Block
from snailps.models.local_sgd import Floats
from snailps.models.word_vectors import shared_text
from snailps.models.word_vectors.contention import steps_a_word
from snailps.models.word_vectors.input_exchange import TURNS_MAX, Sharing
from snailps.models.word_vectors.kernel_threads import MASK64, Bags
from snailps.models.word_vectors.rotation import RotationTrainer, Tenancy, Visit
from snailps.models.word_vectors.settings import ADAGRAD_EPS

Ints = NDArray[np.int32]

WINDOW_CURVATURE = 0.3
"""Share of its way to the optimum that the hidden vector of a window goes in a step, a unit of the
learning rate.  Held-out loss with 8 workers in turns: 2.212 with sums (0), 2.216 at 0.1; in
lock-step, as real cores run, texts of two languages lose two thirds at 0.05 (rotation.md)."""
GRAM_CURVATURE = 0.2
"""The same with rows of n-grams, whose steps `gains_of_grams` counts (docs/design/rotation.md)."""
OCTAVES = 2
"""Rows whose frequencies are within so many factors of two are taken to step together."""
STEPS_APART_MIN, STEPS_APART_MAX = 100.0, 300.0
"""Steps of all workers on a word's row, in the midst of a training, between two exchanges, at least
and at most; with n-grams, steps of a word's whole bag."""
WORDS_A_STEP_APART = 100_000.0
"""Words of all epochs for each of these steps: copies lag by the same share of any training."""
BEGIN_APART, END_APART = 0.3, 2.7
"""Times these at the begin and at the end of a training: what workers know of each other's steps
counts most while vectors grow."""
THREAD_TARGETS = 1000
"""Least targets for a thread of its own."""
TURN_TARGETS = 1000
"""Least targets between two exchanges."""
GRAM_TURNS_MAX, GRAM_TURN_TARGETS = 64, 200
"""Exchanges in a visit at most, and these with rows of n-grams: some are in every window."""


@dataclass(slots=True, kw_only=True)
class CbowTenancy(Tenancy):
    """A share of a text, and its targets by visiting part, each a group of its own.

    Attributes
    ----------
    tokens : int32 array
        Words of the share, numbered among `present`; -1 ends a sentence.
    targets, target_words : int32 array
        Places of the targets in `tokens`, those of each visiting part in the order of the text;
        their words' numbers in the vocabulary.
    others : float32 array
        Expected steps of other workers on each of the rows of `keys`; empty for one worker.
    """

    tokens: Ints
    targets: Ints
    target_words: Ints
    others: Floats


class CbowTrainer(RotationTrainer[CbowTenancy]):
    """Deals slices, prepares and trains tenancies for a `WordVectors` worker with `model: cbow`."""

    def prepare(self, block: Block) -> CbowTenancy:
        """Reads this part's share of the chunk and sorts its targets."""
        parts = self._parts_of(block.parts, block.visiting)
        ids, words = shared_text.get_chunk(
            self._model, block.chunk, block.slices, block.part, block.parts
        )
        kept = np.flatnonzero(ids >= 0)
        visiting = parts.visiting[ids[kept]].astype(np.uint16)  # which sort in one pass
        order = np.argsort(visiting, kind="stable")
        bounds = np.zeros(block.visiting + 1, np.int64)
        np.cumsum(np.bincount(visiting, minlength=block.visiting), out=bounds[1:])
        targets = kept[order].astype(np.int32)
        seen = np.zeros(len(self._vocabulary), np.bool_)
        seen[ids[kept]] = True
        present = np.flatnonzero(seen)
        place = np.full(len(seen) + 1, -1, np.int32)  # the last one maps -1 to itself
        place[present] = np.arange(len(present), dtype=np.int32)
        bag_ptr, bag_rows, keys = self._model.bags(present)
        resident, rows = self._place(block, keys)
        others = np.zeros(0, np.float32)
        if (contention := self._model.contention(block.parts)) is not None:
            others, _ = contention.steps_elsewhere(len(targets), keys, keys[:0])
        return CbowTenancy(
            parts=parts,
            bounds=bounds,
            present=present,
            bags=Bags.of(
                bag_ptr, rows[bag_rows].astype(np.int32), len(keys) and int(rows.max()) + 1
            ),
            resident=resident,
            keys=keys,
            rows=rows,
            words=words,
            tokens=place[ids],
            targets=targets,
            target_words=ids[targets],
            others=others,
        )

    def _rows_of(self, block: Block) -> int:
        s = self._model.settings
        return len(self._vocabulary) + (s.bucket if s.maxn else 0)

    def _sharing(self, block: Block, tenancy: CbowTenancy) -> Sharing:
        """All rows; other workers' steps on each are estimated from the vocabulary."""
        s, num = self._model.settings, len(tenancy.keys)
        if block.parts == 1 or not len(tenancy.targets):
            return Sharing(np.ones(num), np.zeros(num), np.zeros(num), 1.0, 1)
        counts = np.bincount(tenancy.tokens[tenancy.targets], minlength=len(tenancy.present))
        sizes = np.diff(tenancy.bags.ptr)
        windows, _ = steps_a_word(s)
        occurrences = np.bincount(tenancy.bags.rows, np.repeat(counts * windows, sizes))
        crowding = 1.0 + tenancy.others / occurrences[tenancy.rows]
        if s.maxn:
            gains, moves = gains_of_grams(tenancy.bags.ptr, tenancy.bags.rows, counts, occurrences)
            curvature, most, least = GRAM_CURVATURE, GRAM_TURNS_MAX, GRAM_TURN_TARGETS
        else:
            gains = moves = occurrences / windows
            curvature, most, least = WINDOW_CURVATURE, TURNS_MAX, TURN_TARGETS
        begin, _ = block.progress
        way = gains[tenancy.rows] * (curvature * s.lr * (1.0 - begin))
        turns = max(1, min(most, len(tenancy.targets) // (block.visiting * least)))
        apart = s.epochs * self._vocabulary.tokens / WORDS_A_STEP_APART
        apart = min(max(apart, STEPS_APART_MIN), STEPS_APART_MAX)
        apart *= BEGIN_APART + (END_APART - BEGIN_APART) * begin
        return Sharing(crowding, moves[tenancy.rows] * windows, way, apart, turns)

    def _contexts_of(self, tenancy: CbowTenancy, groups: slice) -> Ints:
        """The targets' words."""
        return tenancy.target_words[groups]

    def _train_groups(
        self,
        tenancy: CbowTenancy,
        visit: Visit,
        inputs: tuple[Floats, ...],
        first: int,
        last: int,
        rates: list[float],
        seed: int,
    ) -> list[tuple[float, int]]:
        """Trains some targets in the kernel's threads: loss and targets of each."""
        s, sgd = self._model.settings, self._model.sgd
        threads = min(self._model.threads, max(1, (last - first) // THREAD_TARGETS))
        edges = np.linspace(first, last, threads + 1).astype(int).tolist()
        offset = visit.groups.start
        tasks = []
        for at, (a, b) in enumerate(itertools.pairwise(edges)):
            if b == a:
                continue
            # They are in the order of the text: the kernel gets, and checks, their range alone.
            begin = max(0, int(tenancy.targets[a]) - s.window)
            end = int(tenancy.targets[b - 1]) + s.window + 1
            tasks.append(
                sgd.pool.submit(
                    kernels.train_words,
                    inputs[0],
                    visit.local[0],
                    s.dim,
                    tenancy.tokens[begin:end],
                    tenancy.bags.ptr,
                    tenancy.bags.rows,
                    visit.noise,
                    visit.noise_logit,
                    window=s.window,
                    negatives=s.negatives,
                    lr_start=rates[0],
                    lr_stop=rates[1],
                    seed=(seed + at) & MASK64,
                    targets=(
                        tenancy.targets[a:b] - np.int32(begin),
                        visit.contexts[a - offset : b - offset],
                    ),
                    squares=(inputs[1], visit.local[1]) if sgd.state else None,
                    eps=ADAGRAD_EPS,
                    bags=tenancy.bags.checked,
                )
            )
        return [task.result() for task in tasks]


def gains_of_grams(
    ptr: NDArray[np.int64], rows: Ints, counts: NDArray[Any], occurrences: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far a row's steps move the hidden vectors of the windows that have it: in whole steps.

    With the rows that step together with it in a word, as the share needs it; and with the root of
    their number, for exchanges: with all of them rare rows travel so often that frequent ones wait.
    5 MB of prose, one epoch, 8 workers, 1 worker 2.705: 2.96 with all, 2.698, 2.732 with none.

    Parameters
    ----------
    ptr, rows : arrays
        Bag of each word: its rows.
    counts : int array
        Of each word: windows of which it is the target.
    occurrences : array
        Of each row: times that it is an input.

    Notes
    -----
    The hidden vector of a window is the mean of n rows, row r c(r) times, and a step adds as much
    to r for each of these.  So a step on window v moves that of window w by sum c_v(r) c_w(r) / n
    of itself.  Rows in as many windows are in the same ones, at worst: each of those in the
    same word counts for all of them, and each of the other words' by the mean, f(r)^2 / n.
    Frequent rows do not count for rare ones: a quadratic form of b bands is at most b times the sum
    of those of each band, so shares of each are right whatever the others do.  Without n-grams, and
    with no word in many windows, it is occurrences / words of a window.
    """
    targets, sizes = counts.sum(), np.diff(ptr)
    frequency = occurrences / targets
    size = occurrences.sum() / targets
    bands = (np.log2(np.maximum(frequency, 1e-9)) / OCTAVES).astype(np.int64)
    bands -= bands.min(initial=0)
    apart = np.bincount(bands, frequency * frequency)[bands]
    words, bands = np.repeat(np.arange(len(sizes)), sizes), bands[rows]
    together = np.empty(len(rows))
    for band in np.unique(bands).tolist():
        some = np.flatnonzero(bands == band)
        together[some] = np.bincount(words[some])[words[some]]
    weights = np.repeat(counts.astype(np.float64), sizes)
    alike = np.bincount(rows, weights * together) / np.maximum(np.bincount(rows, weights), 1)
    steps = targets * -np.expm1(-frequency) / size  # windows that have the row, by one row's part
    return steps * (alike + apart), steps * (np.sqrt(alike) + apart)
