"""The master's status of a run: types of the plain values in a `Report`.

The master writes it; `snailps.cli.view` and drivers read it.  Declarations only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

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
    "left",
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
    "input",
    "files",
    "restored",
    "master",
    "warning",
]
Usage = Mapping[str, float]
"""Use of a process: `cpu_s`, processor seconds; `time_s`, monotonic time; `rss_bytes`, memory."""
EVENTS_MAX = 200
"""Most events of a status."""


EVENT_REPORTED = {"reported": True}
"""`extra` of a log record that is also an event of the status: displays skip it."""


class EventStatus(TypedDict):
    """Something that happened to the cluster, in words for its user."""

    at_s: float  # seconds since this master began; below 0 under an earlier master
    kind: EventKind
    who: str  # the process that it is about, as "server 2", or empty
    text: str


class BlockCounts(TypedDict):
    """Blocks of the current pass, by state."""

    left: int
    leased: int
    done: int


class NodeStatus(TypedDict):
    role: str
    id: int
    host: str
    pid: int
    address: str  # peer of its control connection; empty if an earlier master's, not rejoined
    endpoints: list[str]  # of a server's shards; empty in the same case as `address`
    heartbeat_s: float | None  # seconds since its last heartbeat, None before the first
    epoch: int
    state: str
    waits: str  # what it waits for; empty: nothing
    waits_s: float  # seconds of that wait
    # a worker's finished blocks (ssp), current step or round (bsp, rounds); else None
    clock: int | None
    rate: float | None  # units per second over the last seconds
    done: int  # its blocks of this job
    leased: int  # blocks it holds
    block_s: float | None  # seconds since it began the current block
    fetched: int  # blocks whose bytes the master sent it
    lacks: str  # the path that it cannot open
    cpu: float | None  # share of one core since its last report (1.0: one core busy); None before
    # None before its first report; servers report each second, workers fifty a second in turn
    rss_bytes: int | None
    metrics: str  # address of its metrics, empty without


class MasterStatus(TypedDict):
    """The master's own process; it has no row in `nodes`."""

    host: str
    pid: int
    cpu: float | None
    rss_bytes: int | None
    metrics: str


class ShardStatus(TypedDict):
    """One shard: its servers and its state, with its server's last report, some seconds old."""

    shard: int
    primary: int
    address: str
    standby: int  # 0: none
    state: str  # of the standby (none, asked, seeding, ready) or a change (yielding, promoting)
    seeded: float  # share of the rows copied to the standby
    lag_bytes: int
    lag_s: float
    fragments: int
    rows: int
    bytes: int
    pulls_per_s: float
    pushes_per_s: float
    connections: int
    parked: int  # requests waiting for a clock or a standby
    clock: int
    waits: str


class WaitStatus(TypedDict):
    """A wait: the process `who` waits for `whom` (a process, and the reason), for `seconds`."""

    who: str
    whom: str
    seconds: float


class CheckpointStatus(TypedDict):
    """The job's newest good checkpoint (`number` 0: none yet), and whether one is being written.
    `age_s` is None if an earlier run made it."""

    number: int
    progress: float
    age_s: float | None
    path: str
    writing: bool


class LoopStatus(TypedDict):
    """How busy the master's loop is: the time of each turn without its waits."""

    turns: int
    busy_s: float  # total
    busy_ms_p999: float  # 99.9th percentile of a turn
    busy_ms_max: float
    # histogram of turns by duration: pairs of an upper bound in ms and a count
    counts: list[list[float]]
    cpu_counts: list[list[float]]  # the same by CPU time (the rest is waiting for a core)


class SessionStatus(TypedDict):
    jobs: int  # number of the newest job, 0 before the first
    job: int  # number of the present job, 0 without one
    coming: int  # workers of a failed job that are to begin anew and have not joined yet
    # at the servers, including tables of earlier jobs, whose rows stay until the cluster ends
    tables: int


class TableStatus(TypedDict):
    """A table at the shards that serve it; its standbys have as much again."""

    table: int
    name: str
    rows: int
    bytes: int  # with keys, state, index, and room for more rows
    made: int  # by pushes to the servers that have it now
    refused: int  # pushed values of keys that were not admitted
    evicted: int  # rows deleted because of `rows_max`
    expired: int  # rows deleted for their age


class ProgressStatus(TypedDict):
    """The part of a `Status` that takes as long to make with any number of processes."""

    units: int  # words or examples since the start of the pass
    units_per_s: float  # current rate
    loss: float | None
    elapsed_s: float  # from the start of the master
    session: SessionStatus | None  # None where the cluster runs the one job of its master's file


class Status(ProgressStatus):
    version: str
    address: str
    began_s: float  # when the master began, seconds since 1970
    cluster_id: str
    epoch: int
    phase: Phase
    waiting_for: str
    progress: float  # share of the pass, export, restore or loading of first rows, 0 to 1
    pass_: str  # the pass, or the step of an export, restore or loading and its progress
    unit: Literal["words", "examples"]
    lr: float | None
    eta_s: float | None  # seconds left of what `progress` measures; None if unknown
    blocks: BlockCounts
    nodes: list[NodeStatus]
    shards: list[ShardStatus]
    tables: list[TableStatus]
    waits: list[WaitStatus]  # all waits, the longest first
    requests_per_s: float  # pulls and pushes at all shards
    checkpoint: CheckpointStatus | None  # None if the job makes none
    loop: LoopStatus
    message: str  # why the run ended or, in an idle session, why its last job failed; else empty
    # last result of the model's inspector (of word vectors: words and neighbours with cosines)
    validation: dict[str, list[tuple[str, float]]]
    # figures of the model's tester so far, each with ``progress`` and ``at_s`` (see `FIGURED_AT`)
    tests: list[Mapping[str, float]]
    figures: dict[str, object]
    events: list[EventStatus]  # the newest ones, the oldest first
    master: MasterStatus
    job_name: str  # the model's name, or that of the user's class; empty without a job
    output: str  # path that the job's files begin with; empty: none
    epochs: int  # of the training; 0 without a job
    total_units: int | None  # estimate for the whole training; None before its first block is done


class HistoryAnswer(TypedDict):
    """The course of the newest job's training: the answer to ``Ask("history")``. At most 512
    points, the oldest first, further apart in a long job."""

    at_s: list[float]  # seconds since this master began; below 0 under an earlier master
    units: list[int]  # done so far
    units_per_s: list[float]
    loss: list[float | None]  # None: unknown


def job_number(status: ProgressStatus) -> int:
    """Return the number of the newest job."""
    return status["session"]["jobs"] if status["session"] is not None else 1


FIGURED_AT = ("epoch", "progress", "at_s")
"""Keys of an entry of `Status.tests` that are no figures: epochs that were trained (of tests after
epochs), the progress of the training, and the seconds since this master began, below 0 under an
earlier one."""


def json_text(value: Any) -> str:
    """JSON of one line, with null for NaN and infinite numbers."""
    text = json.dumps(value, default=dict)
    return json.dumps(json.loads(text, parse_constant=lambda _: None))
