"""Calls of word vectors' kernels, one a thread of a worker.

    bundles | text + rows, bags, negatives -> train_bundles | train_text -> tasks: loss, examples

Threads write the same rows without locks (Hogwild).  Must not know which rows these are, nor how
they travel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.models.local_sgd import Floats
from snailps.models.word_vectors.settings import ADAGRAD_EPS

if TYPE_CHECKING:
    from snailps.models.word_vectors.model import WordVectors

Ints = NDArray[np.int32]
Bundles = tuple[Ints, NDArray[np.int64], Ints]
"""Centres, starts and contexts, as `kernels.sort_pairs` returns them."""
Judged = tuple[float, int]
"""Sum of the loss, and examples."""
Rows = tuple[Floats, ...]
"""Of a table: rows to train, and AdaGrad's squares behind them."""

MASK64 = (1 << 64) - 1
THREAD_GROUPS = 128
"""Least bundles for a thread of its own."""
PART_WINDOWS = 50
"""Least length of a thread's part of a text, in windows: at most 2% of its pairs are cut."""


@dataclass(frozen=True, slots=True)
class Bags:
    """Places of the input rows of each word, and the same as checked by the kernels."""

    ptr: NDArray[np.int64]
    rows: Ints
    checked: kernels.CheckedBags

    @classmethod
    def of(cls, ptr: NDArray[np.int64], rows: Ints, row_num: int) -> Bags:
        """Bags of a table of so many rows; the arrays become read-only."""
        return cls(ptr, rows, kernels.checked_bags(ptr, rows, row_num))


@dataclass(frozen=True, slots=True)
class Noise:
    """Negatives that pairs draw from, and the logit of each output row (NCE; empty without)."""

    words: Ints
    logit: Floats


def train_bundles(
    model: WordVectors,
    inputs: Rows,
    outputs: Rows,
    bundles: Bundles,
    bags: Bags,
    noise: Noise,
    rates: tuple[float, float],
    seed: int,
) -> list[Future[Judged]]:
    """Skip-gram: begins to train sorted pairs at rates that fall from one to the other."""
    centres, starts, contexts = bundles
    threads = min(model.threads, max(1, len(centres) // THREAD_GROUPS))
    shares = [
        (centres[a:b], starts[a : b + 1], contexts) for a, b in _shares(len(centres), threads)
    ]
    train = partial(kernels.train_pairs, inputs[0], outputs[0], model.settings.dim)
    return _in_threads(model, train, shares, inputs, outputs, bags, noise, rates, seed)


def train_text(
    model: WordVectors,
    inputs: Rows,
    outputs: Rows,
    text: Ints,
    bags: Bags,
    noise: Noise,
    rates: tuple[float, float],
    seed: int,
) -> list[Future[Judged]]:
    """CBOW: begins to train a text in its order."""
    s = model.settings
    # A part loses the contexts across its edges, so it must be long against the window.
    threads = min(model.threads, max(1, len(text) // (PART_WINDOWS * s.window)))
    shares = [(text[a:b],) for a, b in _shares(len(text), threads)]
    train = partial(kernels.train_words, inputs[0], outputs[0], s.dim, window=s.window)
    return _in_threads(model, train, shares, inputs, outputs, bags, noise, rates, seed)


def _in_threads(
    model: WordVectors,
    train: Callable[..., Judged],
    shares: Sequence[tuple[NDArray[np.integer], ...]],
    inputs: Rows,
    outputs: Rows,
    bags: Bags,
    noise: Noise,
    rates: tuple[float, float],
    seed: int,
) -> list[Future[Judged]]:
    """Calls a kernel for the share of each thread, with what all have in common."""
    return [
        model.sgd.pool.submit(
            train,
            *share,
            bags.ptr,
            bags.rows,
            noise.words,
            noise.logit,
            negatives=model.settings.negatives,
            lr_start=rates[0],
            lr_stop=rates[1],
            seed=(seed + at) & MASK64,
            squares=squares_of(inputs, outputs),
            eps=ADAGRAD_EPS,
            bags=bags.checked,
        )
        for at, share in enumerate(shares)
    ]


def squares_of(inputs: Rows, outputs: Rows) -> tuple[Floats, Floats] | None:
    """AdaGrad's sums of both tables, if there are any."""
    return (inputs[1], outputs[1]) if len(inputs) > 1 else None


def _shares(count: int, threads: int) -> list[tuple[int, int]]:
    """Begin and end of the share of each thread that has one."""
    edges = np.linspace(0, count, threads + 1).astype(int).tolist()
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]
