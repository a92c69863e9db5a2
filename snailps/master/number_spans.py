"""Numbers of processes as spans, so that a set of them takes the room of its gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator


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
