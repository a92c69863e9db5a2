"""Seats: the workers that train at the same time, where not all may.

    take(node) -> whether it trains        leave(node) -> workers that may ask again

Who asks first gets a seat and has it until it leaves.  No entries here, no time.
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
        """A worker has a block, from an earlier master: its seat is there, whoever has others."""
        self._waiting.pop(node, None)
        self._taken[node] = None

    def leave(self, node: int) -> list[int]:
        """A worker gives up its seat; those that have waited longest, one for each free seat."""
        self._waiting.pop(node, None)
        if self._taken.pop(node, self) is self:
            return []
        return list(self._waiting)[: max(0, self.count - len(self._taken))]
