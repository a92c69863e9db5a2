"""Owns the numbers of processes: which are given out, and which are gone for ever.

give, reserve -> a fact of the journal, before a number is used
went -> gone, as spans: a set of numbers takes the room of its gaps -> fenced_with
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from snailps.master.effects import Outbox

NUMBERS_AHEAD = 64
"""Numbers that are noted before they are given out. A master that takes over skips them, as its
journal cannot say which of them were used; a number given twice would undo a fence."""
READERS_FROM = 1 << 30
"""First incarnation of the master's own readers, so that node numbers, which are names, stay
small."""


class NumberSpans:
    def __init__(self) -> None:
        # Ascending; between two spans is at least one number that is not in the set.
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._firsts, number)
        return place > 0 and number <= self._lasts[place - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The first and the last number of each span."""
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def around(self, number: int) -> tuple[int, int]:
        """The span that has this number."""
        place = bisect_right(self._firsts, number) - 1
        return self._firsts[place], self._lasts[place]

    def add(self, first: int, last: int = 0) -> None:
        """Add a number, or all from `first` to `last`."""
        last = last or first
        # Spans that overlap or touch become one.
        start = bisect_right(self._lasts, first - 2)
        end = bisect_right(self._firsts, last + 1)
        if start < end:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[end - 1])
        self._firsts[start:end], self._lasts[start:end] = [first], [last]


class NodeNumbers:
    def __init__(self, out: Outbox) -> None:
        self._out = out
        self.gone = NumberSpans()  # must not come back
        self._to_fence = NumberSpans()  # of these, numbers that no fence has named yet
        self._next, self._next_reader = 1, READERS_FROM
        self._given_before = 0  # numbers below may be those of members that another master knew
        self._kept = self._readers_kept = 0  # numbers below are noted in the journal

    def give(self) -> int:
        """A number for a node, which is its incarnation, too; never given twice in a run."""
        self._next += 1
        if self._next > self._kept - NUMBERS_AHEAD // 2:
            self._out.journal(*self.keep())
        return self._next - 1

    def reserve(self, count: int) -> range:
        """Incarnations for the master's own connections to shards; no node has them."""
        first = self._next_reader
        self._next_reader += count
        if self._next_reader > self._readers_kept - NUMBERS_AHEAD // 2:
            self._out.journal(*self.keep())
        return range(first, self._next_reader)

    def keep(self) -> tuple[str, dict[str, Any]]:
        """The fact that numbers are given out; a master that takes over begins after them."""
        self._kept = self._next + NUMBERS_AHEAD
        self._readers_kept = self._next_reader + NUMBERS_AHEAD
        return "numbers", {"until": self._kept, "readers_until": self._readers_kept}

    def replay(self, until: int, readers_until: int) -> None:
        """Take the fact of an earlier master."""
        self._next = self._given_before = until
        self._next_reader = readers_until

    def were_given(self, number: int) -> bool:
        """Whether an earlier master may have given a number out: it noted it before."""
        return number < self._given_before

    def went(self, first: int, last: int = 0) -> None:
        """A number is gone, or all from `first` to `last`."""
        self.gone.add(first, last)
        self._to_fence.add(first, last)

    def fenced_with(self, number: int) -> list[tuple[int, int]]:
        """The spans of gone numbers that a fence of this one is to name (`Fence.gone`): around it,
        and around those that went since the last fence and needed none, such as readers. So shards
        keep a span for each gap, which is a process that is there, however many have gone."""
        spans = {self.gone.around(first) for first, _ in self._to_fence}
        self._to_fence = NumberSpans()
        return sorted(spans)
