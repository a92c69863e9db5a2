"""Private rows: for a run of targets one row stands for the rare rows of a word's bag.

    bags, frequent rows -> PrivateRows: bags of frequent rows and a private row
    targets -> PrivateRows.run: the words that come often enough in them -> Run
    Run.open:  private row = mean of the word's rare rows
    kernels train frequent rows and private rows, which are in the same table
    Run.close: what a private row has learnt -> each of the rare rows

All rows of a bag get the same gradient, so the mean of some of them moves as each of them does.
What a word lacks until a run ends is what other words have taught its rare rows, here and at other
workers.  So a row that would travel within a run is no rare row: it is stepped at once.

A target of a checkout has four to five places of the text to itself, each with a bag of some 16
rows; of these a private row leaves the frequent ones.  Not with AdaGrad, whose steps differ from
row to row.  Does not know how rows travel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.dataclass import dataclass
from snailps.models.local_sgd import Floats, LocalSgd
from snailps.models.rotation.partition_rows import PartitionRows
from snailps.models.word_vectors.examples import Bags, Windows, times_of
from snailps.models.word_vectors.settings import WordVectorSettings

Ints = NDArray[np.int32]

RUN_TARGETS = 16_384
"""Targets of a run, where a checkout has more: longer ones cost loss, shorter ones time."""
PLACES_LEAST = 4
"""Least places of a run's text that have a word, for which its private row is opened: to open and
to close it takes as many reads and writes as training two or three places."""


@dataclass(frozen=True, slots=True)
class PrivateRows:
    """The bags of a lease's words, whole, and with private rows.

    The table has `row_num` rows of bags, then a private row for each word.  `bags` has two bags for
    each of `words`: number w is the whole bag of word w, number ``words + w`` its frequent rows and
    its private row.
    """

    row_num: int
    words: int
    bags: Bags
    ptr: NDArray[np.int64]
    """Where the rare rows of each word are in `rows`; a word without private row has none."""
    rows: Ints
    weights: Floats

    @classmethod
    def of(cls, bags: Bags, is_rare: NDArray[np.bool_]) -> PrivateRows:
        """Make private rows for words with at least two rows of which `is_rare` is true."""
        words, row_num = len(bags.ptr) - 1, len(is_rare)
        weights = times_of(bags.rows, bags.weights)
        word = np.repeat(np.arange(words), np.diff(bags.ptr))
        rare = is_rare[bags.rows]
        numbers = np.bincount(word[rare], minlength=words)
        has = numbers > 1
        rare &= has[word]
        numbers *= has
        stays, private = ~rare, np.flatnonzero(has)
        of_private = np.bincount(word[rare], weights[rare], words)[private]
        order = np.argsort(np.concatenate((word[stays], private)), kind="stable")
        places = np.concatenate((bags.rows[stays], row_num + private))[order]
        times = np.concatenate((weights[stays], of_private))[order]
        ends = bags.ptr[1:] - (numbers - has).cumsum()
        both = Bags.of(
            np.concatenate((bags.ptr, bags.ptr[-1] + ends)),
            np.concatenate((bags.rows, places)).astype(np.int32),
            np.concatenate((weights, times)).astype(np.float32),
            row_num + words,
        )
        ptr = np.concatenate(([0], numbers.cumsum()))
        return cls(row_num, words, both, ptr, bags.rows[rare], weights[rare])

    def run(
        self,
        sgd: LocalSgd,
        rows: PartitionRows,
        reach: int,
        runs: int,
        turns: int,
        windows: Windows,
    ) -> tuple[Windows, PrivateTurns]:
        """Choose the words of a checkout of `runs` runs, of `turns` turns each.

        `windows` have a list of targets, of which each sees some `reach` places to each side.
        Returns them with the numbers of the bags to use, and their private rows among `rows`.
        """
        tokens, targets = windows.tokens, windows.targets
        assert targets is not None
        ends = np.bincount(np.maximum(targets - reach, 0), minlength=len(tokens) + 1)
        ends -= np.bincount(np.minimum(targets + reach + 1, len(tokens)), minlength=len(tokens) + 1)
        near = tokens[(ends.cumsum() > 0)[:-1]]
        places = np.bincount(near[near >= 0], minlength=self.words)
        opened = (places >= PLACES_LEAST * runs) & (np.diff(self.ptr) > 0)
        bag = np.arange(-1, self.words, dtype=np.int32)  # of each token, from -1 on
        bag[1:] += opened * np.int32(self.words)
        words = np.flatnonzero(opened).astype(np.int32)
        of_run = Windows(bag[tokens + 1], targets, windows.words, windows.carry)
        return of_run, PrivateTurns(self, words, turns, sgd, rows)


def private_num(s: WordVectorSettings, parts: int, words: int) -> int:
    """Private rows for which a partition of `words` has room: one a word, or none.

    A single worker trains in the order of the text, where targets share their places.  AdaGrad's
    steps differ from row to row.
    """
    has = s.model == "cbow" and s.maxn and s.optimizer != "adagrad" and parts > 1
    return words if has else 0


class PrivateTurns:
    """The private rows of a checkout, which are open for `turns` turns at a time.

    Written by the thread that trains; kernels write the rows between `open` and `close`.
    """

    def __init__(
        self, private: PrivateRows, words: Ints, turns: int, sgd: LocalSgd, rows: PartitionRows
    ) -> None:
        self.turns, self._private, self._words = turns, private, words
        self._sgd, self._rows = sgd, rows
        self._begins: tuple[Floats, ...] = ()

    @property
    def bags(self) -> Bags:
        return self._private.bags

    def open(self) -> None:
        """Set the private rows to the means of the rare rows."""
        self._begins = self._sgd.make_trained(len(self._words))
        self._sgd.in_threads(self._open, self._words, *self._begins)

    def close(self) -> None:
        """Add what the private rows have learnt to the rare rows; other threads may do so, too."""
        self._sgd.in_threads(self._close, self._words, *self._begins)
        self._sgd.give_trained(self._begins)

    def _open(self, words: Ints, begins: Floats) -> None:
        table, private = self._rows.local[0], self._private
        kernels.open_private(
            table, words, private.ptr, private.rows, begins, private.row_num, private.weights
        )

    def _close(self, words: Ints, begins: Floats) -> None:
        table, private = self._rows.local[0], self._private
        kernels.close_private(table, words, private.ptr, private.rows, begins, private.row_num)
