"""Measures how long shards were without a standby or out of reach; reports it to users.

    out_of_reach, followed, check -> Redundancy -> lines for the log, events; ReplicationMetrics

Must not decide anything: `planner.py` and `actions.py` do. They ask here only whether a lost copy
is still to be replaced (`hurt`), which makes copies run at full speed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from snailps.dataclass import dataclass, field
from snailps.master.effects import Say, StatusEvent
from snailps.master.replication.placed_shard import PlacedShard
from snailps.master.replication.placement import Placement
from snailps.node.effects import EffectQueue


@dataclass(slots=True)
class ReplicationMetrics:
    """Metrics of the run."""

    failovers: int = 0  # lost servers whose standbys were promoted
    resume_s_max: float = 0.0  # longest time from a noticed loss until its shards were in reach
    moves: int = 0
    unprotected_s: float = 0.0  # in which another loss would have lost rows

    def figures(self) -> dict[str, Any]:
        """Metrics that are not 0, for the summary."""
        figures: dict[str, Any] = {}
        if self.failovers:
            figures |= {"failovers": self.failovers, "resume_s_max": round(self.resume_s_max, 3)}
            figures["unprotected_s"] = round(self.unprotected_s, 3)
        if self.moves:
            figures["moves"] = self.moves
        return figures


@dataclass(slots=True)
class Redundancy:
    """The periods in which the loss of a server would lose rows."""

    places: Placement
    out: EffectQueue  # gets lines and events for users
    metrics: ReplicationMetrics = field(default_factory=ReplicationMetrics)
    # a standby was lost or given up, not only moved; until every shard has one again
    hurt: bool = False
    was_full: bool = False  # every shard has had its standby since the cluster was formed
    _followed: int = 0
    _resuming: list[tuple[PlacedShard, int, float]] = field(default_factory=list)
    _thin_since: float | None = None
    _thin_s: float | None = None  # in all, since the last report that every shard has its standby
    _warned: bool = False
    _single_reported: bool = False

    def figures(self) -> dict[str, Any]:
        """Losses and moves since the last call."""
        metrics, self.metrics = self.metrics, ReplicationMetrics()
        return metrics.figures()

    @property
    def resuming(self) -> bool:
        """Whether shards of a lost server may still be out of reach."""
        return bool(self._resuming)

    # --- out of reach ----------------------------------------------------------------------------

    def out_of_reach(self, shard: PlacedShard, epoch: int, since: float) -> None:
        """A shard's server was lost at `since`; the route of `epoch` names another one."""
        self._resuming.append((shard, epoch, since))

    def followed(self, epoch: int, now: float) -> None:
        self._followed = max(self._followed, epoch)
        self.note_resumed(now)

    def note_resumed(self, now: float) -> None:
        """Count how long shards of a lost server were out of reach, once they are in reach."""
        back = [
            (shard, epoch, since)
            for shard, epoch, since in self._resuming
            if epoch <= self._followed and not shard.step
        ]
        if back:
            self._resuming = [
                item for item in self._resuming if item[1] > self._followed or item[0].step
            ]
            took_s = max(now - since for _, _, since in back)
            self.metrics.resume_s_max = max(self.metrics.resume_s_max, took_s)
            names = shards_text(shard.number for shard, _, _ in back)
            line = f"{names} reachable again, {took_s:.2f} s after the loss was noticed"
            self.out.put(Say(line))
            by = " and ".join(
                f"server {n}" for n in sorted({shard.primary for shard, _, _ in back})
            )
            are = "is" if len(back) == 1 else "are"
            text = f"{by} took over: {names} {are} reachable again after {took_s:.2f} s"
            self.out.put(StatusEvent("replaced", by, text))

    # --- without standby -------------------------------------------------------------------------

    def joined(self) -> None:
        """Another server has joined: log the next shard without standby again."""
        self._single_reported = False

    def check(self, now: float) -> None:
        """Log when shards have lost their standbys, and when all have one again. Moves alone are
        not logged before all shards are at their places."""
        if self.places.is_redundant:
            self._note_full(now)
            return
        if self._thin_since is None:
            self._thin_since = now
        if self.hurt and self.was_full and not self._warned:
            self._warned = True
            lacking = (
                f"{len(self.places.index.bare)} of {len(self.places.shards)} shards have no standby"
            )
            line = f"{lacking} at present: another loss would end the job"
            self.out.put(Say(line, logging.WARNING, reported=True))
            text = f"{lacking} now: another loss would end the job"
            self.out.put(StatusEvent("warning", "", text))
        if len(self.places.servers) < 2 and not self._single_reported:
            self._single_reported = True
            self.hurt = self._warned = True  # as where one was lost
            line = (
                "there is only one server: no shard can have a standby, and the loss of the server "
                "ends the job. Start another one: snailps server"
            )
            self.out.put(Say(line))

    def _note_full(self, now: float) -> None:
        if self._thin_since is not None and self.was_full:
            took_s = now - self._thin_since
            self.metrics.unprotected_s += took_s
            self._thin_s = (self._thin_s or 0.0) + took_s
        self._thin_since = None
        if self.places.index.going and self.was_full and not self._warned:
            return  # what changes over will need another one
        if not self.was_full:
            self.out.put(Say("every shard has its standby"))
        elif self._thin_s is not None:
            text = f"every shard has its standby again, after {self._thin_s:.1f} s"
            level = logging.WARNING if self._warned else logging.INFO
            self.out.put(Say(text, level, reported=True))
            if self._warned:
                self.out.put(StatusEvent("replaced", "", text))
        self.was_full, self._thin_s = True, None
        self.hurt = self._warned = False


def shards_text(shards: Iterable[int]) -> str:
    numbers = list(shards)
    listed = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"shard{'s' if len(numbers) > 1 else ''} {listed}"
