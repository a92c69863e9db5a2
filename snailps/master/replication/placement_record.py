"""Owns what the journal says of the shards: all of them at first, then what changed.

    Placement, epoch, number of the next copy -> snapshot, changes -> journal -> with_changes

A cluster that forms makes its standbys one after the other. With all shards in each fact its
journal would grow with the square of their number.
"""

from __future__ import annotations

from typing import Any

from snailps.master.replication.placement import Placement


class PlacementRecord:
    """State of a placement as values for JSON."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._last: tuple[int, int, list[int]] | None = None

    def snapshot(self, epoch: int, next_copy: int) -> dict[str, Any]:
        """All shards, for `ReplicationPlanner.restore`."""
        return {
            "epoch": epoch,
            "copy": next_copy,
            "leaving": sorted(self._placement.leaving),
            "shards": [shard.snapshot() for shard in self._placement.shards],
        }

    def changes(self, epoch: int, next_copy: int) -> dict[str, Any]:
        """Changes since the last call; the first call returns `snapshot`."""
        placement = self._placement
        now = (epoch, next_copy, sorted(placement.leaving))
        if now == self._last and not placement.has_news:
            return {}
        first, self._last = self._last is None, now
        numbers = placement.take_news()
        if first:
            return self.snapshot(epoch, next_copy)
        changed = [[number, placement.shards[number].snapshot()] for number in numbers]
        return {"epoch": epoch, "copy": next_copy, "leaving": now[2], "changed": changed}


def with_changes(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The snapshot that follows from an earlier one and the result of `changes`."""
    if "shards" in changes:
        return changes
    shards = list(before["shards"])
    for number, snapshot in changes["changed"]:
        shards[number] = snapshot
    return {**{name: changes[name] for name in changes if name != "changed"}, "shards": shards}
