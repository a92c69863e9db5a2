"""Declares the effects of `ReplicationPlanner`; orders (`pending_orders.PlannerOrder`) and
`effects.Rerouted` are others. The controller performs them."""

from __future__ import annotations

from snailps.dataclass import dataclass
from snailps.node.effects import Effect


@dataclass(frozen=True, slots=True)
class Emptied(Effect):
    """A server that was to leave has no shard any more."""

    server: int


@dataclass(frozen=True, slots=True)
class Stuck(Effect):
    """A server that was to leave cannot: no other server can take its shards."""

    server: int
    why: str


@dataclass(frozen=True, slots=True)
class Expelled(Effect):
    """A server does not obey: declare it lost; `ReplicationPlanner.lost` follows."""

    server: int
    why: str


@dataclass(frozen=True, slots=True)
class RowsLost(Effect):
    """A lost server had the only copy of these shards: the cluster ends."""

    server: int
    shards: tuple[int, ...]
    why: str
