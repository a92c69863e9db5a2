"""Effects of `ReplicationPlanner`, beside orders (`pending_orders.Order`) and `effects.Rerouted`.

Declarations only.
"""

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
    """A server does not obey: expel it; `lost` is called for it."""

    server: int
    why: str


@dataclass(frozen=True, slots=True)
class RowsLost(Effect):
    """A lost server was the only one with these shards."""

    server: int
    shards: tuple[int, ...]
    why: str
