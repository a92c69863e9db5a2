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
    """One process of the cluster.

    `address` is where its control connection comes from, `endpoints` a server's shards; both are
    empty where an earlier master knew them and it is not back.  `heartbeat_s`: since it was last
    heard, None: never yet.  `waits` says what it waits for, empty: nothing, and `waits_s` how long
    by now.  `clock` is where a worker stands: blocks that it has finished (ssp), the step or round
    that it is at (bsp, rounds); None where there are no clocks.  `rate` counts units a second on
    its last block, `done` its blocks of this job, `leased` those that it has, `block_s` how long it
    has been at the present one, `fetched` those whose bytes the master sent it, because it cannot
    open `lacks`.
    """

    role: str
    id: int
    host: str
    pid: int
    address: str
    endpoints: list[str]
    heartbeat_s: float | None
    epoch: int
    state: str
    waits: str
    waits_s: float
    clock: int | None
    rate: float | None
    done: int
    leased: int
    block_s: float | None
    fetched: int
    lacks: str


class ShardStatus(TypedDict):
    """One shard: the servers that have it, and what it does.

    `standby` is 0 where there is none; `state` that of the standby (none, asked, seeding, ready) or
    of a change (yielding, promoting); `seeded` the share of the rows that it has; the lag is what
    it does not have yet.  The rest is as its server last told, at most some seconds ago: rows and
    all their memory, requests a second, requests that wait for something (`parked`: a clock, a
    standby), and what the clock waits for.
    """

    shard: int
    primary: int
    address: str
    standby: int
    state: str
    seeded: float
    lag_bytes: int
    lag_s: float
    fragments: int
    rows: int
    bytes: int
    pulls_per_s: float
    pushes_per_s: float
    connections: int
    parked: int
    clock: int
    waits: str


class WaitStatus(TypedDict):
    """A wait: which process, for whom and what, for how many seconds."""

    who: str
    whom: str
    seconds: float


class CheckpointStatus(TypedDict):
    """Checkpoints of the job: the newest good one (`number` 0: none yet), and one under way.

    `age_s` is None where an earlier run made it.
    """

    number: int
    progress: float
    age_s: float | None
    path: str
    writing: bool


class LoopStatus(TypedDict):
    """How busy the master's loop is: of each turn the time that it did not wait.

    `busy_s` in all, the longest turn, and what 999 of 1,000 turns stay below; `counts` has the
    turns by duration: an upper bound in ms, and how many; `cpu_counts` by what of it the loop had
    the processor: the rest it waited for that.
    """

    turns: int
    busy_s: float
    busy_ms_p999: float
    busy_ms_max: float
    counts: list[list[float]]
    cpu_counts: list[list[float]]


class Status(TypedDict):
    """A picture of the run.

    `progress` is the share of the present pass, or of the export, 0 to 1; `pass_` says which pass,
    or what the export does and how much of that is done; `eta_s` is the export's, else None.
    `units` counts words or examples since the start of the pass, `units_per_s` is the present
    rate; `elapsed_s` counts from the birth of the master.
    `waits` lists all waits, the longest first.  `requests_per_s` counts
    pulls and pushes at all shards.  `checkpoint` is None where the job makes none.
    `validation` is what the model's inspector saw last (for word vectors: words and their
    neighbours with cosines), empty before.  `message` says why the run ended, or, in a session
    that is idle, why its last job failed; else it is empty.
    """

    version: str
    address: str
    life: str
    epoch: int
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
    waits: list[WaitStatus]
    requests_per_s: float
    checkpoint: CheckpointStatus | None
    loop: LoopStatus
    message: str
    validation: dict[str, list[tuple[str, float]]]
    figures: dict[str, object]
