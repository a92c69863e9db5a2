"""Owns the tables of phases: of a cluster, its job, a member and a shard, and what may follow.

    cluster_step, job_step, after: a transition that a table lacks is a defect, and raises
    (AssertionError, by `raise`: `python -O` removes `assert`)

Values of a cluster's and a job's phase are words of `status` (`node.status.Phase`);
`status_report.py` makes the words for a member. Who writes a phase: `lifecycle.py` the cluster's,
`job/controller.py` the job's, `member.py` a member's, `replication/placement.py` a shard's.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar


class ClusterPhase(str, enum.Enum):
    FORMING = "forming"
    FORMED = "idle"  # its job has the phase then
    STOPPING = "stopping"
    LEFT = "left"  # the master alone ends, and its nodes wait for the next one
    DONE = "done"
    FAILED = "failed"


class JobPhase(str, enum.Enum):
    IDLE = "idle"  # there is none
    PREPARING = "preparing"  # its input is being found
    READY = "ready"  # its input is found: it waits for the cluster, or for a worker
    RESTORING = "restoring"  # servers take their rows from a checkpoint
    SURVEY = "survey"
    LOADING = "loading"  # the model's class fills tables
    TRAINING = "training"
    EXPORTING = "exporting"
    STOPPING = "stopping"  # it has failed, in a session: its workers are being stopped


AT_WORK = (JobPhase.SURVEY, JobPhase.LOADING, JobPhase.TRAINING)
"""Phases in which workers have the job."""
_C, _J = ClusterPhase, JobPhase
CLUSTER: dict[ClusterPhase, set[ClusterPhase]] = {
    _C.FORMING: {_C.FORMED, _C.STOPPING, _C.LEFT},
    _C.FORMED: {_C.STOPPING, _C.LEFT},
    _C.STOPPING: {_C.DONE, _C.FAILED},
    _C.LEFT: set(),
    _C.DONE: set(),
    _C.FAILED: set(),
}
_OVER = {_J.IDLE}  # in a session any phase may end the job
JOB: dict[JobPhase, set[JobPhase]] = {
    _J.IDLE: {_J.PREPARING, _J.STOPPING, _J.IDLE},
    _J.PREPARING: {_J.READY, *_OVER},
    _J.READY: {_J.RESTORING, _J.SURVEY, _J.TRAINING, *_OVER},
    _J.RESTORING: {_J.TRAINING, *_OVER},
    _J.SURVEY: {_J.LOADING, _J.TRAINING, *_OVER},
    _J.LOADING: {_J.TRAINING, *_OVER},
    _J.TRAINING: {_J.EXPORTING, *_OVER},
    _J.EXPORTING: {*_OVER},
    _J.STOPPING: {*_OVER},
}


def cluster_step(old: ClusterPhase, new: ClusterPhase) -> ClusterPhase:
    if new not in CLUSTER[old]:
        raise AssertionError(f"a cluster does not go from {old.value} to {new.value}")
    return new


def job_step(old: JobPhase, new: JobPhase) -> JobPhase:
    if new not in JOB[old]:
        raise AssertionError(f"a job does not go from {old.value} to {new.value}")
    return new


# --- a member: three tables, phase -> event -> phase ---------------------------------------------


class Reach(enum.Enum):
    """How far a member has come. `joined`: it has reached every server once, under this master or
    an earlier one. Before that it holds nothing, and its loss is none for the job."""

    AWAY = "away", True  # the journal of an earlier master has it, and it is not back yet
    BACK = "back", True  # it came back, and lacks the present route
    RECONNECTING = "reconnecting", True  # it came back, and has been sent the present route
    REGISTERED = "registered", False  # a newcomer, without a route
    CONNECTING = "connecting", False  # a newcomer that has been sent the route
    READY = "ready", True  # it has the route: it reaches every server

    def __init__(self, word: str, joined: bool) -> None:
        self.joined = joined


class Stay(enum.Enum):
    """Whether a member stays. `asked`: it leaves, or has left, because it was asked to."""

    HERE = "here", False  # as far as the master knows
    LEAVING = "leaving", True  # asked to leave: a worker ends its block, a server's shards move
    SENT_AWAY = "sent away", False  # a worker whose job has failed, in a session
    STOPPING = "stopping", False  # the cluster ends
    LEFT = "left", True  # it has said goodbye, after it was asked to leave
    ENDED = "ended", False  # it has said goodbye unasked, or because the cluster ends
    MISSED = "missed", False  # lost while members of an earlier master return: judged afterwards
    GONE = "gone", False  # its connection is closed

    def __init__(self, word: str, asked: bool) -> None:
        self.asked = asked


class Work(enum.Enum):
    """A worker's part in the job; other members stay `IDLE`. `begun`: it has had a block. `ended`:
    no block is left for it, and all of its pushes are acknowledged. `over`: the job no longer waits
    for it."""

    IDLE = "idle", False, False, False  # it has no job
    STARTING = "starting", False, False, False  # it has been sent the job
    COUNTING = "counting", True, False, False  # it has had a block of the survey
    TRAINING = "training", True, False, False  # it has had a block of the training
    FINISHED = "finished", True, True, True  # its part of the job is done
    SPARED = "spared", False, True, True  # the same, and it has had no block
    GIVEN_UP = "given up", False, False, True  # the job ends without its unfinished blocks

    def __init__(self, word: str, begun: bool, ended: bool, over: bool) -> None:
        self.begun, self.ended, self.over = begun, ended, over


_R, _S, _W = Reach, Stay, Work
REACH: dict[Reach, dict[str, Reach]] = {
    _R.AWAY: {"came_back": _R.BACK, "route_sent": _R.AWAY, "route_withdrawn": _R.AWAY},
    _R.BACK: {
        "route_sent": _R.RECONNECTING,
        "route_taken": _R.READY,  # it had it from the earlier master
        "route_withdrawn": _R.REGISTERED,
    },
    _R.RECONNECTING: {
        "route_sent": _R.RECONNECTING,
        "route_taken": _R.READY,
        "route_withdrawn": _R.REGISTERED,
    },
    _R.REGISTERED: {
        "route_sent": _R.CONNECTING,
        "route_taken": _R.READY,  # like BACK, but the journal lacks it
        "route_withdrawn": _R.REGISTERED,
    },
    _R.CONNECTING: {
        "route_sent": _R.CONNECTING,
        "route_taken": _R.READY,
        "route_withdrawn": _R.REGISTERED,
    },
    _R.READY: {
        "route_sent": _R.READY,
        "route_taken": _R.READY,
        "route_withdrawn": _R.REGISTERED,
    },
}
STAY: dict[Stay, dict[str, Stay]] = {
    _S.HERE: {
        "asked_to_leave": _S.LEAVING,
        "stays": _S.HERE,
        "sent_away": _S.SENT_AWAY,
        "stopped": _S.STOPPING,
        "said_bye": _S.ENDED,
        "was_missed": _S.MISSED,
        "was_lost": _S.GONE,
    },
    _S.LEAVING: {
        "asked_to_leave": _S.LEAVING,
        "stays": _S.HERE,
        "sent_away": _S.SENT_AWAY,
        "stopped": _S.STOPPING,
        "said_bye": _S.LEFT,
        "was_missed": _S.MISSED,
        "was_lost": _S.GONE,
    },
    _S.SENT_AWAY: {
        "asked_to_leave": _S.SENT_AWAY,
        "sent_away": _S.SENT_AWAY,
        "stopped": _S.STOPPING,
        "said_bye": _S.SENT_AWAY,
        "was_lost": _S.GONE,
    },
    _S.STOPPING: {
        "stays": _S.STOPPING,
        "stopped": _S.STOPPING,
        "said_bye": _S.ENDED,
        "was_lost": _S.GONE,
    },
    _S.LEFT: {
        "asked_to_leave": _S.LEFT,
        "stays": _S.ENDED,
        "sent_away": _S.SENT_AWAY,
        "stopped": _S.LEFT,
        "said_bye": _S.LEFT,
        "was_lost": _S.GONE,
    },
    _S.ENDED: {
        "asked_to_leave": _S.LEFT,
        "stays": _S.ENDED,
        "sent_away": _S.SENT_AWAY,
        "stopped": _S.ENDED,
        "said_bye": _S.ENDED,
        "was_lost": _S.GONE,
    },
    _S.MISSED: {"stays": _S.MISSED, "stopped": _S.MISSED, "was_lost": _S.GONE},
    _S.GONE: {"stays": _S.GONE, "stopped": _S.GONE},
}
WORK: dict[Work, dict[str, Work]] = {
    _W.IDLE: {
        "job_given": _W.STARTING,
        "counts": _W.COUNTING,
        "trains": _W.TRAINING,
        "part_ended": _W.SPARED,
        "given_up": _W.GIVEN_UP,
        "job_over": _W.IDLE,
    },
    _W.STARTING: {
        "job_given": _W.STARTING,
        "counts": _W.COUNTING,
        "trains": _W.TRAINING,
        "part_ended": _W.SPARED,
        "given_up": _W.GIVEN_UP,
        "job_over": _W.IDLE,
    },
    _W.COUNTING: {
        "job_given": _W.STARTING,
        "counts": _W.COUNTING,
        "trains": _W.TRAINING,
        "part_ended": _W.FINISHED,
        "given_up": _W.GIVEN_UP,
        "job_over": _W.IDLE,
    },
    _W.TRAINING: {
        "job_given": _W.STARTING,
        "trains": _W.TRAINING,
        "part_ended": _W.FINISHED,
        "given_up": _W.GIVEN_UP,
        "job_over": _W.IDLE,
    },
    _W.FINISHED: {
        "job_given": _W.STARTING,
        "counts": _W.COUNTING,
        "trains": _W.TRAINING,
        "part_ended": _W.FINISHED,
        "job_over": _W.IDLE,
    },
    _W.SPARED: {
        "job_given": _W.STARTING,
        "counts": _W.COUNTING,
        "trains": _W.TRAINING,
        "part_ended": _W.SPARED,
        "job_over": _W.IDLE,
    },
    _W.GIVEN_UP: {"caught_up": _W.IDLE, "job_over": _W.GIVEN_UP},
}


# --- a shard -------------------------------------------------------------------------------------


class Step(str, enum.Enum):
    """What a shard changes; a word of `status` and of the journal."""

    SERVING = ""  # nothing: its primary serves
    YIELDING = "yielding"  # the primary hands over all that it acknowledged, and goes
    SWAPPING = "swapping"  # the same, but the primary becomes the standby of its standby
    PROMOTING = "promoting"  # its new primary is ordered to serve


_P = Step
STEPS: dict[Step, dict[str, Step]] = {
    _P.SERVING: {"yields": _P.YIELDING, "swaps": _P.SWAPPING, "promoted": _P.PROMOTING},
    _P.YIELDING: {"stays": _P.SERVING, "promoted": _P.PROMOTING},
    _P.SWAPPING: {"stays": _P.SERVING, "promoted": _P.PROMOTING},
    _P.PROMOTING: {"promoted": _P.PROMOTING, "serves": _P.SERVING},
}
_Phase = TypeVar("_Phase", bound=enum.Enum)


def after(table: Mapping[_Phase, Mapping[str, _Phase]], phase: _Phase, event: str) -> _Phase:
    """The phase that follows an event. An event that the table lacks is a defect: raises."""
    if event not in table[phase]:
        raise AssertionError(f"{type(phase).__name__} {phase.name} does not take {event!r}")
    return table[phase][event]
