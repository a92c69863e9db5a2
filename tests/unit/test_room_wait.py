"""A full disk at the end: the model, or a session's last checkpoint, waits for room."""

import errno
import signal
from pathlib import Path

import pytest
from master_world import Files, World
from test_session_takeover import Unusable, formed, saved

from snailps.errors import CheckpointError, ClusterError, ModelWriteError, is_full
from snailps.files.atomic import check_target, write_error
from snailps.master import events
from snailps.master.phases import ClusterPhase, JobPhase
from snailps.master.room_wait import AGAIN_S
from snailps.store.checkpoint.shard_file import write_error as checkpoint_error
from snailps.transport import messages as m

LIMIT_S = 60.0


def caused(error, cause):
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (FULL, True),
        (caused(ModelWriteError("m"), FULL), True),
        (caused(ClusterError("C.export failed"), caused(ValueError(), FULL)), True),
        (caused(ModelWriteError("m"), OSError(errno.EACCES, "no")), False),
        (CheckpointError("damaged"), False),
    ],
)
def test_full_disk_is_found_among_the_causes_of_an_error(error, full):
    assert is_full(error) == full


def test_what_is_refused_before_the_disk_is_full_has_that_cause(tmp_path):
    with pytest.raises(ModelWriteError, match="make room") as caught:
        check_target(tmp_path / "out", bytes_needed=1 << 62)
    assert is_full(caught.value)


class FullFiles(Files):
    """No checkpoint can be saved either: the folder is on the same disk."""

    def open(self, settings, *, resumes, anyway=False, of_session=False):
        if anyway:
            raise checkpoint_error(Path("out"), FULL)


def ends_without_room(make_job, **how):
    """A job whose training is done, and its disk full."""
    world = World(make_job(), files=FullFiles(), **how)
    _, *workers = world.forms()
    world.room, world.tries = False, 0

    def export(job, reading, told):
        world.tries += 1
        if not world.room:
            raise caused(ModelWriteError("out: the disk is full"), FULL)
        return {"files": []}

    world.services.reader.export = export
    world.finishes(workers)
    assert world.core.job_controller.phase is JobPhase.EXPORTING
    assert world.core.phase is ClusterPhase.FORMED
    return world


@pytest.mark.parametrize("kept", [True, False])
def test_export_on_a_full_disk_goes_on_when_there_is_room(make_job, caplog, kept):
    """It exported once, and all that was trained was lost."""
    world = ends_without_room(make_job, kept=kept)
    assert "out: the disk is full. It is tried again every 5 s, for 60 s" in caplog.text
    world.tick(seconds=AGAIN_S, times=3)
    assert world.tries == 4
    assert caplog.text.count("It is tried again") == 1  # once a minute
    world.room = True
    world.tick(seconds=AGAIN_S, times=2)
    assert world.tries == 5
    assert (world.core.phase, world.core.lifecycle.code) == (ClusterPhase.STOPPING, 0)


@pytest.mark.parametrize("kept", [True, False])
def test_export_without_room_in_time_is_left_to_the_next_master(make_job, kept):
    world = ends_without_room(make_job, kept=kept)
    world.tick(seconds=LIMIT_S + 2 * AGAIN_S)
    ended = ClusterPhase.LEFT if kept else ClusterPhase.FAILED
    assert (world.core.phase, world.core.lifecycle.code) == (ended, 1)
    assert "the disk is full" in world.core.lifecycle.verdict
    assert "stopped" not in {fact.kind for fact in world.facts()}


def test_second_signal_ends_the_wait_for_room(make_job):
    world = ends_without_room(make_job)
    for _ in range(2):
        world.handle(events.Signal(signal.SIGINT))
        world.tick()
    tries = world.tries
    world.tick(seconds=2 * AGAIN_S)
    assert world.tries == tries
    assert (world.core.phase, world.core.lifecycle.code) == (ClusterPhase.LEFT, 130)


class FullFolder(Unusable):
    def begin(self, above, life, needed):
        if not self.room:
            raise checkpoint_error(Path("saved"), FULL)
        return super().begin(above, life, needed)


def ending_session(**how):
    """A session that has had SIGINT, and cannot save its tables."""
    files = FullFolder(None)
    files.room = False
    world, _ = formed(files=files, saves={"checkpoint_interval": "500"}, **how)
    world.handle(events.Signal(signal.SIGINT))
    world.tick(times=4)
    assert world.core.phase is ClusterPhase.FORMED
    return world, files


def test_last_checkpoint_of_a_session_waits_for_room(caplog):
    """The session ended, and its rows were lost."""
    world, files = ending_session()
    assert "the tables of the session cannot be saved" in caplog.text
    assert "make room" in caplog.text
    world.tick(seconds=AGAIN_S, times=2)
    assert world.core.phase is ClusterPhase.FORMED
    files.room = True
    world.tick(seconds=AGAIN_S, times=2)
    (order,) = world.orders(m.Save)
    saved(world, order.message.number)
    assert (world.core.phase, world.core.lifecycle.code) == (ClusterPhase.STOPPING, 0)


@pytest.mark.parametrize(("stays", "phase"), [(True, "left"), (False, "failed")])
def test_session_without_room_in_time_is_left_to_the_next_master(stays, phase):
    world, _ = ending_session(nodes_stay=stays)
    world.tick(seconds=LIMIT_S + 2 * AGAIN_S)
    assert world.core.phase.value == phase
    assert ("stopped" in {fact.kind for fact in world.facts()}) != stays


def test_second_signal_ends_a_session_without_its_last_checkpoint():
    world, _ = ending_session()
    world.handle(events.Signal(signal.SIGINT))
    world.tick()
    assert world.core.phase is ClusterPhase.STOPPING


def test_error_of_a_full_disk_says_so_for_models_as_for_checkpoints(tmp_path):
    assert "is full" in str(write_error(tmp_path / "out", FULL, None))
    assert "is full" in str(checkpoint_error(tmp_path / "out", FULL))
