"""Effects of `ReplicationPlanner`, and the metrics of what it has seen. Declarations only."""

from __future__ import annotations

from typing import Any

from snailps.dataclass import dataclass
from snailps.transport import messages


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a server; its answer goes to `ReplicationPlanner.answered`, with the order."""

    number: int
    server: int
    message: messages.Message


@dataclass(frozen=True, slots=True)
class Rerouted:
    """All members are to take the new route."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """A server that was to leave has no shard any more."""

    server: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """A server that was to leave cannot: no other server can take its shards."""

    server: int
    why: str


@dataclass(frozen=True, slots=True)
class Expelled:
    """A server does not obey: expel it; `lost` is called for it."""

    server: int
    why: str


@dataclass(frozen=True, slots=True)
class RowsLost:
    """A lost server was the only one with these shards."""

    server: int
    shards: tuple[int, ...]
    why: str


Effect = Order | Rerouted | Emptied | Stuck | Expelled | RowsLost


@dataclass(slots=True)
class ReplicationMetrics:
    """Metrics of the run: lost servers whose standbys were promoted, the longest pause, moves."""

    failovers: int = 0
    resume_s_max: float = 0.0
    moves: int = 0
    unprotected_s: float = 0.0

    def figures(self) -> dict[str, Any]:
        """Metrics that are not 0, for the summary."""
        found: dict[str, Any] = {}
        if self.failovers:
            found |= {"failovers": self.failovers, "resume_s_max": round(self.resume_s_max, 3)}
            found["unprotected_s"] = round(self.unprotected_s, 3)
        if self.moves:
            found["moves"] = self.moves
        return found
