"""Phases of a cluster and of its job, and which may follow which.

    cluster_step, job_step: a transition that the table does not have is a defect, and raises

The values are those of `status`; see `node.status.Phase`.
"""

from __future__ import annotations

import enum


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
    READY = "ready"  # ... and found: it waits for the cluster, or a worker
    RESTORING = "restoring"  # servers take their rows from a checkpoint
    SURVEY = "survey"
    LOADING = "loading"  # the model's class fills tables
    TRAINING = "training"
    EXPORTING = "exporting"
    STOPPING = "stopping"  # it has failed; its workers are stopped


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
    assert new in CLUSTER[old], f"a cluster does not go from {old.value} to {new.value}"
    return new


def job_step(old: JobPhase, new: JobPhase) -> JobPhase:
    assert new in JOB[old], f"a job does not go from {old.value} to {new.value}"
    return new
