"""Owns which workers train at the same time, where not all of them may.

    take(node) -> whether it trains        leave(node) -> workers that may ask again

The first workers that ask get the seats, and keep them until they leave. No entries, no time.
"""

from __future__ import annotations

from collections.abc import Sequence


class Seats:
    """At most `count` workers have a seat; the others wait in the order in which they asked."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken: dict[int, None] = {}
        self._waiting: dict[int, None] = {}

    @property
    def taken(self) -> Sequence[int]:
        """Workers with a seat."""
        return tuple(self._taken)

    def waits(self, node: int) -> bool:
        """Whether a worker waits for a seat."""
        return node in self._waiting

    def take(self, node: int) -> bool:
        """Give a worker a seat if one is free; False: it waits for one from now on."""
        if node not in self._taken and len(self._taken) >= self.count:
            self._waiting[node] = None
            return False
        self.keep(node)
        return True

    def keep(self, node: int) -> None:
        """Give a seat to a worker that holds a block of an earlier master, even beyond `count`: it
        trains already."""
        self._waiting.pop(node, None)
        self._taken[node] = None

    def leave(self, node: int) -> list[int]:
        """Take a worker's seat away; returns the workers that have waited longest, one for each
        free seat."""
        self._waiting.pop(node, None)
        if self._taken.pop(node, self) is self:
            return []
        return list(self._waiting)[: max(0, self.count - len(self._taken))]
