"""The master's status of a run: types of the plain values in a `Report`.

The master writes it; `snailps.cli.progress` and drivers read it.  Declarations only.
"""

from __future__ import annotations

from collections.abc import Mapping
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


EventKind = Literal[
    "joined",
    "lost",
    "replaced",
    "left",
    "moved",
    "checkpoint",
    "files",
    "restored",
    "master",
    "warning",
]
Usage = Mapping[str, float]
"""What a process uses, as it tells the master: `cpu_s`, its processor seconds so far; `time_s`, its
own monotonic time; `rss_bytes`, its resident memory.
"""
EVENTS_MAX = 200
"""So many events the status has at most."""


EVENT_TOLD = {"told": True}
"""`extra` of a log record that an event of the status tells as well: displays leave it out."""


class EventStatus(TypedDict):
    """Something that happened to the cluster, in words for its user.

    `at_s`: seconds since this master began; what an earlier master of the run saw comes before
    that, with less than 0.  `who` is the process that it is about, as "server 2", or empty.
    """

    at_s: float
    kind: EventKind
    who: str
    text: str


class BlockCounts(TypedDict):
    """Blocks of the current pass, by state."""

    left: int
    leased: int
    done: int


class NodeStatus(TypedDict):
    """One process of the cluster.

    `address` is the peer address of its control connection, `endpoints` a server's shards; both
    are empty if it belonged to an earlier master and has not rejoined.  `heartbeat_s`: seconds
    since its last heartbeat, None before the first.  `waits` says what it waits for (empty:
    nothing), `waits_s` for how long.  `clock` is a worker's progress: blocks that it has finished
    (ssp), its current step or round (bsp, rounds); None without clocks.  `rate` is units per second
    over the last seconds, `done` its blocks of this job, `leased` those it holds, `block_s` seconds
    since it began the current one, `fetched` those whose bytes the master sent it because it cannot
    open `lacks`.  `cpu` is its share of one core since it was last asked (1.0: one core busy), and
    `rss_bytes` its resident memory, both None before it has told; servers tell each second, workers
    in turn, fifty a second.  `metrics` is the address of its metrics, empty without.
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
    cpu: float | None
    rss_bytes: int | None
    metrics: str


class MasterStatus(TypedDict):
    """The master's own process; it has no row in `nodes`."""

    host: str
    pid: int
    cpu: float | None
    rss_bytes: int | None
    metrics: str


class ShardStatus(TypedDict):
    """One shard: its servers and its state.

    `standby` is 0 if there is none; `state` is that of the standby (none, asked, seeding, ready) or
    of a change (yielding, promoting); `seeded` is the share of the rows copied to it; the lag is
    what it does not have yet.  The rest is from its server's last report, at most some seconds old:
    rows and all their memory, requests per second, `parked` requests (waiting for a clock or a
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
    """A wait: the process `who` waits for `whom` (a process, and the reason), for `seconds`."""

    who: str
    whom: str
    seconds: float


class CheckpointStatus(TypedDict):
    """The job's newest good checkpoint (`number` 0: none yet), and whether one is being written.

    `age_s` is None if an earlier run made it.
    """

    number: int
    progress: float
    age_s: float | None
    path: str
    writing: bool


class LoopStatus(TypedDict):
    """How busy the master's loop is: the time of each turn in which it does not wait.

    `busy_s` is the total; `busy_ms_p999` and `busy_ms_max` are the 99.9th percentile and the
    maximum of a turn.  `counts` is a histogram of turns by duration: pairs of an upper bound in ms
    and a count; `cpu_counts` the same by CPU time (the rest is waiting for a core).
    """

    turns: int
    busy_s: float
    busy_ms_p999: float
    busy_ms_max: float
    counts: list[list[float]]
    cpu_counts: list[list[float]]


class SessionStatus(TypedDict):
    """What only a session has.

    `jobs` is the number of the newest job, 0 before the first; `job` that of the one that is under
    way, 0 without one; `coming` counts workers of a failed job that are to begin anew and have not
    joined yet; `tables` counts those that servers hold, of earlier jobs too, whose rows stay until
    the cluster ends.
    """

    jobs: int
    job: int
    coming: int
    tables: int


class TableStatus(TypedDict):
    """A table at the shards that serve it; its standbys have as much again.

    `bytes` includes keys, state, index, and room that waits for rows.  `made` rows so far, by
    pushes to the servers that have it now; `refused` counts pushed values of keys that were not
    admitted, `evicted` rows that went because of `rows_max`, `expired` those that went for their
    age.
    """

    table: int
    name: str
    rows: int
    bytes: int
    made: int
    refused: int
    evicted: int
    expired: int


class Status(TypedDict):
    """The state of the run.

    `progress` is the share of the current pass, or of the export, of a restore or of loading first
    rows, 0 to 1; `pass_` names the pass, or the step of one of these and its progress; `eta_s` is
    theirs, else None.
    `units` counts words or examples since the start of the pass, `units_per_s` is the current
    rate; `elapsed_s` counts from the start of the master.
    `waits` lists all waits, the longest first.  `requests_per_s` counts
    pulls and pushes at all shards.  `checkpoint` is None if the job makes none.
    `session` is None where the cluster runs the one job of its master's file.
    `events` are the newest ones, the oldest first.  `job_name` is the model's name, or that of the
    user's class, `output` the path that its files begin with (empty: none), and `epochs` those of
    the training; empty, "" and 0 without a job.  `total_units` estimates the units of the whole
    training, None while nothing of it is done.
    `validation` is the last result of the model's inspector (for word vectors: words and their
    neighbours with cosines), empty before the first.  `message` says why the run ended, or, in an
    idle session, why its last job failed; else it is empty.
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
    tables: list[TableStatus]
    waits: list[WaitStatus]
    requests_per_s: float
    checkpoint: CheckpointStatus | None
    loop: LoopStatus
    message: str
    validation: dict[str, list[tuple[str, float]]]
    figures: dict[str, object]
    session: SessionStatus | None
    events: list[EventStatus]
    master: MasterStatus
    job_name: str
    output: str
    epochs: int
    total_units: int | None


class History(TypedDict):
    """The course of the newest job's training: the answer to ``Ask("history")``.

    Points in time, at most 512, the oldest first: seconds since this master began (below 0: what an
    earlier master of the run saw), units done, units per second, and the loss (None: none is
    known).  In a long job they are further apart.
    """

    at_s: list[float]
    units: list[int]
    units_per_s: list[float]
    loss: list[float | None]
