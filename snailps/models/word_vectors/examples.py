"""The examples of a text, in groups that share negatives, and the kernel calls that train them.

    words -> bags_of: their input rows, numbered
    text -> Pairs (skip-gram, sorted) | Windows (CBOW) -> at: places of their output rows
         -> train: one kernel call a thread -> loss, examples

Threads write the same rows without locks (Hogwild): a lost update is one step of many.  Knows
neither which rows these are nor how they travel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.abi.key_hash import MASK64
from snailps.data._subwords import subwords_csr
from snailps.dataclass import dataclass
from snailps.models.local_sgd import Floats, Keys, LocalSgd
from snailps.models.rotation.trainer import Judged, Rates, Span
from snailps.models.rows import distinct
from snailps.models.text_model import BUCKET_KEY
from snailps.models.word_vectors.outputs import Targets
from snailps.models.word_vectors.row_classes import RowClasses
from snailps.models.word_vectors.settings import ADAGRAD_EPS, WordVectorSettings

Ints = NDArray[np.int32]
Rows = tuple[Floats, ...]
"""Rows of a table to train, and with AdaGrad their sums of squares."""
Call = tuple[Callable[..., Judged], tuple[Any, ...], dict[str, Any]]
"""A kernel, its arguments before the bags, and its named arguments."""

THREAD_BUNDLES = 128
THREAD_TARGETS = 1000
PART_WINDOWS = 50
"""Least length of a thread's part of a text, in windows, so that it cuts 2% of pairs at most."""


@dataclass(frozen=True, slots=True)
class Bags:
    """The places of each word's input rows, also in the form that kernels have checked."""

    ptr: NDArray[np.int64]
    rows: Ints
    weights: Floats | None
    """How many equal rows each entry stands for (`row_classes`); None: one."""
    checked: kernels.CheckedBags

    @classmethod
    def of(cls, ptr: NDArray[np.int64], rows: Ints, weights: Floats | None, row_num: int) -> Bags:
        """Make bags for a table of `row_num` rows; the arrays become read-only."""
        return cls(ptr, rows, weights, kernels.checked_bags(ptr, rows, row_num))

    def entries(self, words: NDArray[np.integer]) -> tuple[NDArray[np.int64], Ints, Floats]:
        """The numbers of entries of some words' bags; their rows and weights, bag after bag."""
        sizes = self.ptr[words + 1] - self.ptr[words]
        ends = sizes.cumsum()
        entries = np.repeat(self.ptr[words] - ends + sizes, sizes) + np.arange(sizes.sum())
        rows = self.rows[entries]
        weights = None if self.weights is None else self.weights[entries]
        return sizes, rows, times_of(rows, weights)


def times_of(rows: Ints, weights: Floats | None) -> Floats:
    """How many equal rows each entry of bags stands for, by `Bags.weights` of these entries."""
    return np.ones(len(rows), np.float32) if weights is None else weights


def bags_of(
    s: WordVectorSettings, classes: RowClasses | None, words: Sequence[bytes], own: Keys
) -> tuple[NDArray[np.int64], Ints, Floats | None, Keys]:
    """Make bags with subwords of words of the vocabulary that has these `classes`.

    Returns pointers, rows, weights (`Bags.weights`), and the rows' keys, with the words' `own`
    first.
    """
    n, weights = len(words), None
    ptr, ids = subwords_csr(words, s.minn, s.maxn, s.bucket)
    if classes is not None:
        ptr, ids, weights = classes.bags(ptr, ids, own)
    used, (rows,) = distinct([ids], n + s.bucket)  # all below n are used: the words' own rows
    keys = np.concatenate((own, used[n:].astype(np.uint64) + np.uint64(BUCKET_KEY - n)))
    return ptr, rows, weights, keys


def shared_rows(
    kept: NDArray[np.float64], ptr: NDArray[np.int64], rows: Ints, weights: Floats | None
) -> float:
    """How much of a word's bag a random other word of the text shares, as a multiple of the bag.

    `kept` is how often each word is trained, the rest is as in `Bags`.  Some .003 in English text,
    .4 for names as item0123, .85 for addresses that begin alike.
    """
    if not len(kept):
        return 0.0
    sizes = np.diff(ptr)
    times = times_of(rows, weights)
    share = np.repeat(kept / kept.sum(), sizes)
    of_others = times * (np.bincount(rows, weights=share)[rows] - share)
    whole = np.repeat(np.add.reduceat(times, ptr[:-1]), sizes)  # of each entry's word
    return float((share * of_others / whole).sum())


Self = TypeVar("Self")


class ExampleGroups(Protocol):
    """Groups of examples, numbered from 0."""

    def __len__(self) -> int:
        """Number of groups."""

    @property
    def contexts(self) -> Ints:
        """The words whose output rows they train, in their order."""

    def at(self: Self, places: Ints) -> Self:
        """Replace `contexts` by places of output rows."""

    def thread_groups(self, settings: WordVectorSettings) -> int:
        """Least groups that are worth a thread."""

    def call(self, settings: WordVectorSettings, first: int, last: int) -> Call:
        """Make the call that trains groups `first` to `last - 1`."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Bundles of a centre's pairs, as `SortedPairs.take` returns them: each is a group."""

    centres: Ints
    starts: NDArray[np.int64]
    contexts: Ints
    lanes: int
    """Most bundles that are trained side by side."""

    def __len__(self) -> int:
        return len(self.centres)

    def at(self, places: Ints) -> Pairs:
        return Pairs(self.centres, self.starts, places, self.lanes)

    def thread_groups(self, settings: WordVectorSettings) -> int:
        return THREAD_BUNDLES

    def call(self, settings: WordVectorSettings, first: int, last: int) -> Call:
        own = self.centres[first:last], self.starts[first : last + 1], self.contexts
        return kernels.train_pairs, own, {"lanes": self.lanes}


@dataclass(frozen=True, slots=True)
class Windows:
    """A text whose words are targets: each is a group."""

    tokens: Ints
    """Places of the words' bags; -1 ends a sentence."""
    targets: Ints | None
    """Places in `tokens`, ascending in each range that is trained; None: all, in their order."""
    words: Ints
    """Output row of each target; without targets, of each token."""
    carry: bool = True
    """Whether a place of two successive groups is summed and stepped once (`train_words`)."""

    def __len__(self) -> int:
        return len(self.tokens if self.targets is None else self.targets)

    @property
    def contexts(self) -> Ints:
        return self.words

    def at(self, places: Ints) -> Windows:
        return Windows(self.tokens, self.targets, places, self.carry)

    def thread_groups(self, settings: WordVectorSettings) -> int:
        """Least groups that are worth a thread: the ends of a part cut windows."""
        return PART_WINDOWS * settings.window if self.targets is None else THREAD_TARGETS

    def call(self, settings: WordVectorSettings, first: int, last: int) -> Call:
        """Make the call with the tokens around its targets alone: the kernel checks all it gets."""
        window = settings.window
        named = {"window": window, "reach_min": settings.reach_min, "carry": self.carry}
        if self.targets is None:
            return kernels.train_words, (self.tokens[first:last],), named
        begin = max(0, int(self.targets[first]) - window)
        end = int(self.targets[last - 1]) + window + 1
        targets = self.targets[first:last] - np.int32(begin), self.words[first:last]
        return kernels.train_words, (self.tokens[begin:end],), named | {"targets": targets}


def train(
    sgd: LocalSgd,
    s: WordVectorSettings,
    examples: ExampleGroups,
    groups: Span,
    inputs: Rows,
    bags: Bags,
    outputs: Rows,
    targets: Targets,
    rates: Rates,
    seed: int,
) -> list[Future[Judged]]:
    """Start to train groups ``range(*groups)``, a kernel call a thread of `sgd`.

    The step size falls linearly from ``rates[0]`` to ``rates[1]``.  Each call writes `inputs` and
    `outputs` in place, without locks; its result is the sum of losses, and of examples.
    """
    first, last = groups
    threads = min(sgd.worker.threads, max(1, (last - first) // examples.thread_groups(s)))
    edges = np.linspace(first, last, threads + 1).astype(int).tolist()
    tasks = []
    for at, (a, b) in enumerate(itertools.pairwise(edges)):
        if b == a:
            continue
        kernel, own, named = examples.call(s, a, b)
        tasks.append(
            sgd.start(
                kernel,
                inputs[0],
                outputs[0],
                s.dim,
                *own,
                bags.ptr,
                bags.rows,
                lr_start=rates[0],
                lr_stop=rates[1],
                seed=(seed + at) & MASK64,
                squares=(inputs[1], outputs[1]) if len(inputs) > 1 else None,
                eps=ADAGRAD_EPS,
                bags=bags.checked,
                weights=bags.weights,
                shared=threads > 1,
                **targets.arguments(s),
                **named,
            )
        )
    return tasks
