"""What the master tells about a run, as plain values that travel in a `Report`.

The master writes it, `snailps.cli.progress` and drivers read it.  Declarations only.
"""

from __future__ import annotations

from typing import Literal, TypedDict

Phase = Literal[
    "forming",
    "preparing",
    "ready",
    "idle",
    "restoring",
    "survey",
    "loading",
    "training",
    "exporting",
    "stopping",
    "done",
    "failed",
]


class BlockCounts(TypedDict):
    """Blocks of the present pass, by what became of them."""

    left: int
    leased: int
    done: int


class NodeStatus(TypedDict):
    """One process of the cluster.  `waits` is empty when it waits for nothing.

    `clock` is where a worker stands: blocks that it has finished (ssp), the step or round that it
    is at (bsp, rounds); None where there are no clocks.
    """

    role: str
    id: int
    host: str
    pid: int
    state: str
    waits: str
    clock: int | None
    rate: float | None


class ShardStatus(TypedDict):
    """One shard: the servers that have it.

    `standby` is 0 where there is none; `state` that of the standby (none, asked, seeding, ready) or
    of a change (yielding, promoting); `seeded` the share of the rows that it has; the lag is what
    it does not have yet.
    """

    shard: int
    primary: int
    standby: int
    state: str
    seeded: float
    lag_bytes: int
    lag_s: float


class Status(TypedDict):
    """A picture of the run.

    `progress` is the share of the present pass, 0 to 1; `units` counts words or examples since
    its start, `units_per_s` is the present rate; `elapsed_s` counts from the birth of the master.
    `validation` is what the model's inspector saw last (for word vectors: words and their
    neighbours with cosines), empty before.
    """

    phase: Phase
    waiting_for: str
    progress: float
    pass_: str
    unit: Literal["words", "examples"]
    units: int
    units_per_s: float
    loss: float | None
    lr: float | None
    eta_s: float | None
    elapsed_s: float
    blocks: BlockCounts
    nodes: list[NodeStatus]
    shards: list[ShardStatus]
    message: str
    validation: dict[str, list[tuple[str, float]]]
    figures: dict[str, object]
