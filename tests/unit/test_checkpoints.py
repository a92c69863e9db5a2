"""Checkpoints at the master, step by step: saved, restored, who is waited for, what gives up."""

import logging
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import stores
from cases import each
from cluster_models import COUNTER, write_numbers
from master_parts import TestOutbox

from snailps.api.tables import Table, Tensor
from snailps.config import CheckpointSettings, JobSettings, RawConfig
from snailps.errors import CheckpointError, ClusterError, ConfigError, ConnectionLost
from snailps.master.broadcast import Broadcast
from snailps.master.checkpoint_files import CheckpointFiles, newest_of
from snailps.master.checkpoint_place import Hooks
from snailps.master.checkpoints import CheckpointController, CheckpointSaver
from snailps.master.job.ending import end_pass
from snailps.master.job.job import Job
from snailps.master.job.record import JobRecord
from snailps.master.job.state import JobState
from snailps.master.leases import BspSchedule, Entries, QueueSchedule
from snailps.master.leases.schedule import NO_RECORDS
from snailps.master.services import Begun, Candidate, Completed, Opened
from snailps.master.transfers import LATE_S, STALL_S
from snailps.pieces import Piece
from snailps.store.checkpoint.shard_file import ShardFileWriter, new_buffer
from snailps.transport import messages as m


def server(number, saved_bytes=0):
    reports = SimpleNamespace(stats={"saved_bytes": saved_bytes})
    return SimpleNamespace(number=number, peer=number, name=f"server {number}", reports=reports)


class Files:
    """Checkpoints' folders, as names of what was done."""

    def clear(self):
        pass

    def __init__(self):
        self.done, self.full, self.number, self.unreadable = [], False, 3, set()

    def read_state(self, candidate):
        if candidate.number in self.unreadable:
            raise CheckpointError("gone")
        return f"position of {candidate.number}"

    def begin(self, above, cluster_id, needed_bytes):
        if self.full:
            raise CheckpointError("the disk is full")
        self.number = max(self.number, above) + 1
        return Begun(self.number, f"part-{self.number}", "now")

    def complete(self, begun, files, position, **about):
        self.done.append(("complete", begun.number, files, position))
        return Completed(f"checkpoint-{begun.number}", 10, 1000)

    def drop(self, begun):
        self.done.append(("drop", begun.number))


class World:
    """A controller, two servers, and answers that a test gives."""

    def __init__(self, monkeypatch, clocked=False):
        self.out, self.files, self.now = TestOutbox(), Files(), 100.0
        self.servers = [server(1), server(2)]
        self.restored, self.failed = [], []
        registry = SimpleNamespace(tables={}, adopt=self._adopt)
        members = SimpleNamespace(
            joined=lambda role: self.servers, nodes=lambda role: self.servers, cluster_id=7,
            frag_num=64, table_registry=registry,
            order=lambda member, order, then: self.out.order(member.peer, order, then),
        )  # fmt: skip
        self.rows = SimpleNamespace(moving=False)
        self.reports = SimpleNamespace(sum=lambda name: 0)
        hooks = Hooks(
            restored=lambda state, rows, now: self.restored.append(state),
            not_restored=lambda error: self.failed.append(str(error)),
        )
        self.controller = CheckpointController(
            self.out, members, self.rows, self.reports, self.files, hooks
        )
        self.transfers = self.controller.transfers
        self.place, self.saver = self.controller.place, self.controller.saver
        self.restorer = self.controller.restorer
        monkeypatch.setattr(
            CheckpointSaver, "dump_job",
            lambda self_, job, clock, now: (f"position {clock}", {"progress": 0.5}),
        )  # fmt: skip
        self.members = members
        blocks = [Piece("file", 0, 10)] * 12
        bsp = BspSchedule(Entries(blocks), micro_batches=2, nodes=[1])
        self.schedule = bsp if clocked else QueueSchedule(Entries(blocks))
        self.job = SimpleNamespace(
            clocked=clocked, rounds=0, schedule=self.schedule, goes_on=JobRecord.goes_on,
            describe_share=lambda share: f"{share:.0%} of the training",
            settings=CheckpointSettings(),
        )  # fmt: skip
        self.controller.opened(self.job, None, self.now, resumes=True)

    def opens(self, *candidates, period=0):
        """The job has a folder, with these checkpoints."""
        self.job.settings = SimpleNamespace(
            checkpoint_interval=0.0, param_backup_period=period, checkpoints_kept=1
        )
        found = Opened(1, "saved", list(candidates))
        self.controller.opened(self.job, found, self.now, resumes=True)

    def _adopt(self, tables, told, now, *, of_job):
        told(m.Declared([table_number + 10 for table_number in range(len(tables))]), now)

    def begin(self):
        self.saver.begin(self.job, self.now)
        self.out.do_works(self.now)

    def restore(self):
        self.restorer.restore(self.now)
        self.out.do_works(self.now)

    def orders(self, kind):
        """Open orders of a kind: the functions that take their answers."""
        found = [order for order in self.out.orders if isinstance(order[1], kind)]
        self.out.orders = [order for order in self.out.orders if order not in found]
        return found

    def saved(self, *numbers, checkpoint=4, text=""):
        for number in numbers:
            note = m.Saved(checkpoint, [{"of": number}], text)
            self.transfers.heard(self.servers[number - 1], note, self.now)
        self.out.do_works(self.now)

    def train(self, count):
        """Worker 1 trains so many blocks, if it gets them; the numbers of those that it got."""
        found = []
        for _ in range(count):
            entry = self.schedule.take(1)
            if entry is not None:
                self.schedule.done(entry.number, 1)
                found.append(entry.number)
        return found

    def step(self, seconds, times=1):
        for _ in range(times):
            self.now += seconds
            self.transfers.step(self.now)
            self.out.do_works(self.now)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_checkpoint_is_complete_when_all_servers_have_saved(world):
    world.begin()
    assert [order.folder for _, order, _ in world.orders(m.Save)] == ["part-4"] * 2
    world.saved(1)
    assert world.saver.running
    assert not world.files.done
    world.saved(2)
    (done,) = world.files.done
    assert done == ("complete", 4, [{"of": 1}, {"of": 2}], "position -1")
    assert (world.saver.running, world.place.saved) == (False, 1)


def test_words_of_an_earlier_checkpoint_and_of_those_that_have_told_are_no_answer(world):
    world.begin()
    world.saved(1, 2, checkpoint=3)
    world.saved(1, 1)
    assert world.saver.running
    world.saved(2)
    assert world.place.saved == 1


def test_disk_of_the_master_that_does_not_answer_is_named(world, caplog):
    world.saver.begin(world.job, world.now)
    for seconds in (0, LATE_S / 2, LATE_S + 2, LATE_S + 3):
        world.transfers.step(world.now + seconds)
    assert [record.message for record in caplog.records] == [
        f"a checkpoint waits for the disk of the master: {LATE_S + 2:.0f} s"
    ]
    world.out.do_works(world.now)
    world.saved(1, 2)
    assert world.place.saved == 1


def given_up(world, why):
    """Gives up a checkpoint that is being saved."""
    if why == "lost":
        world.transfers.lost(world.servers[1], "killed", world.now)
    elif why == "refused":
        world.orders(m.Save)[-1][2](ClusterError("no memory"), world.now)
    elif why == "told":
        world.saved(2, text="no space")
    elif why == "stalled":
        world.step(0.1)
        world.step(STALL_S / 3, times=4)
    else:
        world.controller.abandon("the job has failed")


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("lost", "it is lost: killed"), ("refused", "no memory"), ("told", "no space"),
    ],
)  # fmt: skip
def test_server_that_cannot_save_gives_the_checkpoint_up_and_all_are_told(
    world, caplog, why, words
):
    world.begin()
    given_up(world, why)
    world.out.do_works(world.now)
    assert (
        f"CHECKPOINT FAILED, training goes on unsaved (there is none yet): server 2: {words}"
        in caplog.text
    )
    assert len(world.orders(m.StopSaving)) == 2
    assert world.files.done == [("drop", 4)]
    assert not world.saver.running
    world.begin()
    assert world.orders(m.Save)[-1][1].number == 5


def test_server_that_is_lost_when_it_has_told_matters_no_more(world):
    world.begin()
    world.saved(1)
    world.transfers.lost(world.servers[0], "it left", world.now)
    world.transfers.lost(server(3), "it left", world.now)
    world.saved(2)
    assert world.place.saved == 1


def test_silence_is_told_and_then_given_up_naming_who_is_silent(world, caplog):
    world.begin()
    world.saved(1)
    world.step(1.0)
    world.servers[1].reports.stats["saved_bytes"] = 5
    world.step(LATE_S)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        world.step(LATE_S + 1)
        world.step(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        f"a checkpoint waits for server 2: not a byte in {LATE_S + 1:.0f} s"
    ]
    world.step(STALL_S / 3, times=3)
    assert "waited for server 2: not a byte in" in caplog.text
    assert world.files.done == [("drop", 4)]


def test_pushes_of_the_job_before_in_a_session_bring_no_checkpoint(world):
    saver, pushes = world.saver, [1000]
    world.reports.sum = lambda name: pushes[0]
    world.opens(period=100)
    saver.wait(world.now, pushes=saver.pushes)
    saver.check(world.job, world.now)
    assert not saver.running
    pushes[0] += 100
    saver.check(world.job, world.now)
    assert saver.running


def test_full_disk_is_told_before_any_server_is_asked(world, caplog):
    world.files.full = True
    world.begin()
    assert "the disk is full" in caplog.text
    assert not world.out.orders
    assert not world.saver.running


@pytest.fixture
def clocked(monkeypatch):
    return World(monkeypatch, clocked=True)


def test_checkpoint_with_clocks_is_of_a_clock_that_waits_for_it(clocked):
    world = clocked
    assert world.train(1) == [0]
    world.schedule.take(1)  # 1, the last one of clock 0
    world.begin()
    assert not world.orders(m.Save)
    assert not world.saver.holds_rows  # it waits for the step: shards may move
    world.step(3 * STALL_S)  # steps may take long
    assert not world.orders(m.Save)
    world.schedule.done(1, 1)
    assert world.train(3) == [2]
    world.step(0.1)
    saves = world.orders(m.Save)
    assert [order.clock for _, order, _ in saves] == [1, 1]
    assert world.saver.holds_rows
    world.saved(1)
    assert world.train(1) == []
    wait = "the master to copy the rows of clock 1 for checkpoint 4"
    assert str(world.schedule.wait_of(1)) == wait
    world.saved(2)
    assert world.files.done[0][3] == "position 1"
    assert world.train(9) == list(range(3, 12))


def test_next_checkpoint_is_of_a_later_clock(clocked):
    for clock in (0, 1, 2):
        clocked.begin()
        assert [order.clock for _, order, _ in clocked.orders(m.Save)] == [clock] * 2
        clocked.saved(1, 2, checkpoint=4 + clock)
        clocked.train(2)
    assert clocked.place.saved == 3


def test_rows_are_saved_when_no_shard_changes_over(clocked):
    clocked.rows.moving = True
    clocked.begin()
    clocked.step(1.0)
    assert not clocked.orders(m.Save)
    assert clocked.saver.holds_rows  # no other begins to move
    clocked.rows.moving = False
    clocked.servers.append(server(3))  # it has come meanwhile
    clocked.step(1.0)
    assert [peer for peer, _, _ in clocked.orders(m.Save)] == [1, 2, 3]


@pytest.mark.parametrize("why", ["lost", "refused", "told", "stalled", "abandoned"])
def test_slot_is_leased_when_the_checkpoint_is_given_up(clocked, why):
    clocked.begin()
    assert clocked.train(3) == [0]
    given_up(clocked, why)
    assert not clocked.saver.running
    assert clocked.train(2) == [1, 2]


def test_server_that_is_lost_before_the_clock_begins_is_not_asked(clocked):
    clocked.schedule.take(1)
    clocked.schedule.take(1)
    clocked.begin()
    clocked.transfers.lost(clocked.servers.pop(), "killed", clocked.now)
    assert clocked.saver.running
    clocked.schedule.done(0, 1)
    clocked.schedule.done(1, 1)
    clocked.step(0.1)
    assert [peer for peer, _, _ in clocked.orders(m.Save)] == [1]


@pytest.mark.parametrize("end", ["closed", "abandoned"])
def test_checkpoint_of_a_clock_that_does_not_come_is_given_up(clocked, caplog, end):
    clocked.schedule.take(1)
    clocked.schedule.take(1)
    clocked.begin()  # of clock 1
    if end == "closed":
        clocked.schedule.release(1)
        clocked.schedule.close()
    else:
        clocked.schedule.abandon(1)
    clocked.step(0.1)
    assert not clocked.saver.running
    assert "the training ends before clock 1, whose rows it was to save" in caplog.text
    assert not clocked.orders(m.StopSaving)  # no server knows of it


def test_checkpoint_of_a_training_that_is_over_is_of_the_clock_behind_it(clocked):
    assert len(clocked.train(12)) == 12
    clocked.begin()
    assert [order.clock for _, order, _ in clocked.orders(m.Save)] == [6, 6]
    clocked.saved(1, 2)
    assert clocked.place.saved == 1


def test_checkpoint_that_is_given_up_while_it_begins_leaves_nothing(world):
    world.saver.begin(world.job, world.now)
    world.controller.abandon("the job has failed")
    world.out.do_works(world.now)
    assert world.files.done == [("drop", 4)]
    assert not world.orders(m.Save)


def job_of(folder, **raw):
    write_numbers(folder / "in.txt", 100)
    raw = {"input": str(folder / "in.txt"), **raw}
    return JobRecord(Job(RawConfig.from_mapping(raw, "test"), now=100.0))


def checkpoint_of(job, sources=None, frag_num=64, tables=(), **changed):
    """What the folder has of a job, but for what is changed."""
    manifest = SimpleNamespace(job=job.identity(()) | changed, frag_num=frag_num, tables=tables)
    found = Candidate(1, "checkpoint-1", manifest, sources or job.sources)
    return Opened(1, "folder", [found])


@each(
    "there, words",
    [
        ({"dim": "1"}, "dim is 2 here and 1 there"),
        (
            {"worker_class": "a:B", "dim": "1"},
            r"worker_class is cluster_models:Counter here and a:B there\. ",
        ),
        ({"sources": [("in.txt", 11)]}, "the input has other files, or files of other lengths"),
        ({"wire": "x" * 100_000}, r"wire is \w+ here and x{60} there\. "),
        ({"frag_num": 16}, "frag_num is 64 here and 16 there"),
        ({}, ""),
    ],
)
def test_checkpoint_of_another_job_is_refused(world, tmp_path, there, words):
    job = job_of(tmp_path, worker_class=COUNTER, dim="2")
    opened = checkpoint_of(job, **there)
    if not words:
        world.place.check_opened(job, opened)
        return
    with pytest.raises(ConfigError, match=rf"checkpoint-1 is a .* of another job: {words}.*fresh"):
        world.place.check_opened(job, opened)


def test_checkpoint_of_a_session_is_refused_without_the_advice_to_give_it_up(world, tmp_path):
    job = job_of(tmp_path, worker_class=COUNTER, dim="2")
    with pytest.raises(ConfigError, match=r"session there\. Choose another checkpoint_dir$"):
        world.place.check_opened(job, checkpoint_of(job, worker_class="session"))


def test_settings_without_effect_make_no_other_job(world, tmp_path):
    """A checkpoint of 0.1.0 lacks `column`, and has a `bucket` also where no n-gram is read."""
    words = "snailps.models.word_vectors:WordVectors"
    job = job_of(tmp_path, worker_class=words, maxn="0", output="x")
    opened = checkpoint_of(job, bucket="2000000")
    del opened.candidates[0].manifest.job["column"]
    world.place.check_opened(job, opened)


@each("model", ["snailps.models.sparse.net:Net", "snailps.models.sparse.linear:Linear"])
def test_settings_that_follow_from_counts_make_no_other_job(world, tmp_path, model):
    """A job whose export fails saves after they are known; the next run, which exports, has none.
    Versions before had no `learnt_batch`."""
    job = job_of(tmp_path, worker_class=model, output="x")
    begun = job.identity(())
    job.job.pass_, job.job.metrics.units = "train", 1000
    job.job.metrics.counts = {"5": 3.0, **({"batches": 10.0} if model.endswith("Net") else {})}
    end_pass(job.job, 200.0)
    assert "5" in job.job.settings.encoding
    assert job.identity(()) == begun
    opened = checkpoint_of(job)
    opened.candidates[0].manifest.job.pop("learnt_batch", None)
    world.place.check_opened(job_of(tmp_path, worker_class=model, output="x"), opened)


def test_what_an_input_tells_is_not_said_of_another_input(world, tmp_path):
    path = tmp_path / "x.svm"
    path.write_text("0 1:5\n1 1:9\n")
    linear = "snailps.models.sparse.linear:Linear"
    job = job_of(tmp_path, worker_class=linear, input=str(path), output="x")
    words = r"of another job: the input has other files, or files of other lengths\. Choose"
    opened = checkpoint_of(job, sources=[(str(path), 11)], encoding="{}")
    with pytest.raises(ConfigError, match=words):
        world.place.check_opened(job, opened)


@each("access", ["python_methods:Plain", "python_methods:Momentum"])
def test_checkpoint_whose_tables_name_a_class_is_used_only_if_the_job_declares_it(
    world, tmp_path, access
):
    """The class is looked up by its name alone: nothing is imported here."""
    job = job_of(tmp_path, worker_class="python_methods:Model")
    table = Table("w", 2, access=access, lr=0.1).to_dict()
    opened = checkpoint_of(job, tables=[{"number": 1, "table": table}])
    if access == "python_methods:Momentum":
        world.place.check_opened(job, opened)
        return
    with pytest.raises(ConfigError, match=rf"table 'w' has the access method {access}, which this"):
        world.place.check_opened(job, opened)


def test_class_of_a_tensor_is_one_that_the_job_declares(tmp_path, monkeypatch):
    job = job_of(tmp_path, worker_class="python_methods:Model")
    tensor = Tensor("dense", (3, 4), access="python_methods:Momentum")
    monkeypatch.setattr(job.job.model.cls, "tables", lambda self: [tensor])
    job.check_methods([tensor.table()], "checkpoint-1")
    with pytest.raises(ConfigError, match="which this job does not declare"):
        job.check_methods([Table("w", 2, access="python_methods:Model")], "checkpoint-1")


# --- restoring -----------------------------------------------------------------------------------


def candidate(number):
    manifest = SimpleNamespace(
        tables=[{"number": 1, "table": Table("rows", 4).to_dict()}], job={"progress": 0.5},
        saved_at="then", files=[SimpleNamespace(bytes=3_000_000), SimpleNamespace(bytes=5_000_000)],
    )  # fmt: skip
    return Candidate(number, f"checkpoint-{number}", manifest, [])


def test_newest_checkpoint_that_can_be_loaded_is_gone_on_from(world, caplog):
    world.opens(candidate(8), candidate(7))
    world.restore()
    first = world.orders(m.Load)
    assert [order.folder for _, order, _ in first] == ["checkpoint-8"] * 2
    assert first[0][1].tables == [[1, 10]]
    world.transfers.heard(world.servers[0], m.Loaded(8, 5, "damaged"), world.now)
    world.out.do_works(world.now)
    assert "checkpoint 8 cannot be used: server 1: damaged" in caplog.text
    assert len(world.orders(m.StopSaving)) == 2
    for one in world.servers:
        world.transfers.heard(one, m.Loaded(8, 5, ""), world.now)  # late: of the one given up
    assert not world.restored
    for one in world.servers:
        world.transfers.heard(one, m.Loaded(7, 5, ""), world.now)
    assert world.restored == ["position of 7"]
    assert (world.place.continued_from, world.place.resumes) == (7, False)


def test_checkpoint_whose_state_cannot_be_read_is_passed_over(world, caplog):
    world.files.unreadable = {8}
    world.opens(candidate(8), candidate(7))
    world.restore()
    assert "checkpoint 8 cannot be used: gone" in caplog.text
    assert {order.folder for _, order, _ in world.orders(m.Load)} == {"checkpoint-7"}


def test_checkpoint_that_is_not_restored_yet_is_the_one_to_go_on_from(world):
    """Interrupted before that, a job said that there is none."""
    world.opens(candidate(8), candidate(7))
    assert world.place.status(world.now, writing=False)["number"] == 8
    assert world.place.can_resume
    world.restore()
    world.transfers.heard(world.servers[0], m.Loaded(8, 5, "damaged"), world.now)
    assert world.place.status(world.now, writing=False)["number"] == 7
    world.out.do_works(world.now)
    world.transfers.heard(world.servers[0], m.Loaded(7, 5, "damaged"), world.now)
    assert world.place.status(world.now, writing=False)["number"] == 0


@pytest.mark.parametrize("resumes", [True, False])
def test_damaged_checkpoints_are_refused_only_where_rows_are_to_come_from_them(tmp_path, resumes):
    (tmp_path / "checkpoint-000003").mkdir(exist_ok=True)
    settings = RawConfig.from_mapping({"checkpoint_dir": str(tmp_path)}, "a test").build(
        CheckpointSettings
    )
    files = CheckpointFiles()
    if resumes:
        with pytest.raises(CheckpointError, match="no checkpoint here can be used, and 3 is dam"):
            files.open(settings, resumes=True)
    else:
        assert files.open(settings, resumes=False).candidates == []
        assert files.begin(0, 7, 0).number == 4
    assert newest_of(settings) is None


def test_restore_tells_how_much_of_the_files_is_read_and_how_long_the_rest_takes(world):
    assert world.restorer.progress(world.now) == (0.0, "", None)
    world.opens(candidate(8))
    world.restore()
    assert world.restorer.progress(world.now) == (
        0.0, "reading checkpoint 8, 0 of 8 MB", None
    )  # fmt: skip
    for one, read in zip(world.servers, (1_500_000, 500_000), strict=True):
        one.reports.stats = {"saved_bytes": read}
    share, text, left_s = world.restorer.progress(world.now + 3)
    assert (share, text, left_s) == (0.25, "reading checkpoint 8, 2 of 8 MB", pytest.approx(9.0))


def test_restore_outlives_a_stop_of_the_master_and_of_all_servers(world):
    """Ctrl-Z in a terminal stops all of a cluster on one machine."""
    world.opens(candidate(8))
    world.restore()
    world.step(1.0)
    world.transfers.stood_still(3600.0)
    world.step(3600.0)
    world.step(1.0, times=int(STALL_S) - 2)
    assert not world.failed
    world.step(1.0, times=3)
    assert "no checkpoint could be used" in world.failed[0]


def test_no_checkpoint_that_can_be_loaded_is_the_end(world):
    world.opens(candidate(8))
    world.restore()
    world.transfers.heard(world.servers[1], m.Loaded(8, 0, "damaged"), world.now)
    assert "no checkpoint could be used" in world.failed[0]
    assert not world.restored


@pytest.mark.parametrize("is_first_done", [False, True])
def test_checkpoint_is_read_again_when_a_server_is_lost_meanwhile(world, is_first_done):
    """It is as good as it was; the standbys of the lost server have a part of its rows."""
    world.opens(candidate(8), candidate(7))
    world.restore()
    first, lost = world.servers
    answers = [then for _, _, then in world.orders(m.Load)]
    answers[1](ConnectionLost("closed"), world.now)
    if is_first_done:
        world.transfers.heard(first, m.Loaded(8, 5, ""), world.now)
    world.servers.remove(lost)
    world.rows.moving = True
    world.transfers.lost(lost, "killed", world.now)
    world.step(5.0)
    assert not world.orders(m.Load)
    assert "goes on from checkpoint 8" in world.place.advice()
    world.rows.moving = False
    world.step(1.0)
    world.transfers.heard(first, m.Loaded(8, 0, "stopped"), world.now)
    assert not world.orders(m.Load)
    ((_, _, stopped),) = world.orders(m.StopSaving)
    stopped(m.Ok(), world.now)
    world.step(1.0)
    (again,) = world.orders(m.Load)
    assert (again[0], again[1].folder) == (first.peer, "checkpoint-8")
    world.transfers.heard(first, m.Loaded(8, 9, ""), world.now)
    assert world.restored == ["position of 8"]


def test_second_server_that_is_lost_meanwhile_does_not_hide_that_the_rest_still_read(monkeypatch):
    """What the rest report of the first read is no answer to the next one."""
    world = World(monkeypatch)
    world.servers.append(server(3))
    world.opens(candidate(8))
    world.restore()
    last = world.servers[2]
    for lost in world.servers[:2]:
        world.servers.remove(lost)
        world.transfers.lost(lost, "killed", world.now)
    world.step(1.0)
    assert len(world.orders(m.Load)) == 3  # the first read's
    stops = [(peer, then) for peer, _, then in world.orders(m.StopSaving) if peer == last.peer]
    assert len(stops) == 2
    stops[0][1](m.Ok(), world.now)
    world.step(1.0)
    assert not world.orders(m.Load)
    stops[1][1](m.Ok(), world.now)
    world.step(1.0)
    assert [peer for peer, _, _ in world.orders(m.Load)] == [last.peer]


def test_server_that_does_not_stop_reading_costs_the_checkpoint_once(world, caplog):
    world.opens(candidate(8), candidate(7))
    world.restore()
    world.orders(m.Load)
    lost = world.servers.pop()
    world.transfers.lost(lost, "killed", world.now)
    world.step(1.0, times=int(STALL_S) + 2)
    assert "checkpoint 8 cannot be used: servers did not stop" in caplog.text
    assert [order.folder for _, order, _ in world.orders(m.Load)] == ["checkpoint-7"]
    for _, _, stopped in world.orders(m.StopSaving):
        stopped(m.Ok(), world.now)
    world.step(1.0, times=3)
    assert not world.orders(m.Load)


def test_notes_and_losses_reach_the_folder_that_they_are_of(world):
    """A session's folder beside the job's: their servers are the same, and so may numbers be."""
    ended = []
    hooks = Hooks(
        restored=lambda state, rows, now: ended.append(f"{state}, {rows} rows"),
        not_restored=lambda error: ended.append(str(error)),
    )
    session = world.controller.beside(world.files, hooks)
    session.opened(world.job, Opened(2, "session", [candidate(4)]), world.now, resumes=True)
    world.begin()  # of checkpoint 4, too
    session.restorer.restore(world.now)
    world.out.do_works(world.now)
    for one in world.servers:
        world.transfers.heard(one, m.Loaded(4, 6, ""), world.now)
    assert (ended, world.saver.running) == (["position of 4, 12 rows"], True)
    world.transfers.lost(world.servers[0], "killed", world.now)
    assert (world.saver.running, session.restorer.running) == (False, False)
    world.begin()
    assert world.orders(m.Save)[-1][1].number == 5
    world.saved(1, 2, checkpoint=4)  # late
    assert world.saver.running
    world.saved(1, 2, checkpoint=5)
    assert (world.place.saved, session.place.saved) == (1, 0)


# --- broadcasts ----------------------------------------------------------------------------------


def test_broadcast_ends_once_with_what_all_have_answered():
    out, ended = TestOutbox(), []
    servers = [server(1), server(2)]
    cast = Broadcast(
        out, servers, m.Ask("stats"), lambda cast, now: ended.append(now), 0.0, loss="drop"
    )
    out.orders[0][2](m.Report({"a": 1}), 1.0)
    assert cast.waits_for == "server 2"
    cast.lost(servers[1], "killed", 2.0)
    out.orders[1][2](m.Report({"a": 2}), 3.0)
    assert (ended, cast.error) == ([2.0], "")
    assert cast.answers == {1: m.Report({"a": 1})}


def test_broadcast_to_nobody_ends_at_once():
    ended = []
    Broadcast(TestOutbox(), [], m.Ok(), lambda cast, now: ended.append(now), 5.0, loss="fail")
    assert ended == [5.0]


def test_checkpoint_of_a_job_that_was_given_up_does_nothing_to_the_folder_of_the_next(tmp_path):
    """It may be completed, beside the loop, when the next job of a session has begun.

    What else it would do there is to remove checkpoints that the next job keeps.
    """
    files = CheckpointFiles()
    state = JobState({}, {"outcomes": NO_RECORDS})

    def begin(name):
        path = str(tmp_path / name)
        settings = JobSettings(checkpoint_dir=path, checkpoint_interval=1.0, worker_class="a:B")
        files.open(settings, resumes=True)
        return files.begin(0, 7, 0)

    def complete(begun):
        about = {"cluster_id": 7, "frag_num": 0, "tables": (), "about": {}, "kept": 1}
        return files.complete(begun, [], state, **about)

    first = begin("first")
    second = begin("second")
    complete(second)
    with pytest.raises(CheckpointError, match="checkpoint 1: its job is over"):
        complete(first)
    assert not [*(tmp_path / "first").glob("checkpoint-000001")]
    assert [*(tmp_path / "second").glob("checkpoint-000001")]
    files.release(2, "")


def file_of_rows(begun):
    """The file of the only shard of a checkpoint."""
    (section,) = stores.sections_of(stores.make_store())
    buffer = new_buffer(len(section))
    buffer[: len(section)] = section
    writer = ShardFileWriter(Path(begun.part) / "a.rows", 7, begun.number, 1)
    writer.write(buffer, len(section), [(0, 0, len(section), 0)])
    return writer.close()


def test_best_rows_stay_while_a_checkpoint_of_their_job_names_them(tmp_path):
    settings = JobSettings(
        checkpoint_dir=str(tmp_path / "job"), checkpoint_interval=1.0, worker_class="a:B"
    )
    job, best = CheckpointFiles(), CheckpointFiles()
    job.open(settings, resumes=True)
    best.open_best(settings, "name")

    def save(files, **about):
        begun, state = files.begin(0, 7, 0), JobState({}, {"outcomes": NO_RECORDS})
        saved = [file_of_rows(begun).to_dict()]
        about = {"cluster_id": 7, "frag_num": 1, "tables": (), "about": about, "kept": 1}
        return files.complete(begun, saved, state, **about).path

    def kept():
        return sorted(map(str, (tmp_path / "job.best").glob("checkpoint-*")))

    save(best)
    second = save(best)
    assert kept() == [second]
    save(job, best_rows=second)
    save(best)
    fourth = save(best)
    assert kept() == [second, fourth]
    save(job, best_rows=fourth)
    fifth = save(best)
    assert kept() == [fourth, fifth]
    job.release(1, "the run ended")
    sixth = save(best)
    assert kept() == [sixth]
    best.release(1, "")


@pytest.mark.parametrize("saved_by", ["session", "a:B"])
@pytest.mark.parametrize("begun_by", ["session", "a:B"])
def test_fresh_gives_up_no_rows_of_a_session_for_a_job_nor_of_a_job_for_a_session(
    tmp_path, saved_by, begun_by
):
    """They were hidden, and the next checkpoints then removed them."""
    settings = JobSettings(checkpoint_dir=str(tmp_path), checkpoint_interval=1.0)
    files, fresh = CheckpointFiles(), replace(settings, fresh=True)
    opened = files.open(settings, resumes=True, of_session=saved_by == "session")
    state = {"sources": [], "paths": [], "block_bytes": 1, "clock": -1, "has_summary": False}
    begun = files.begin(0, 7, 0)
    files.complete(
        begun, [file_of_rows(begun).to_dict()],
        JobState({**state, "figures": {}}, {"outcomes": NO_RECORDS}), cluster_id=7, frag_num=1,
        tables=(), about={"worker_class": saved_by, "progress": 0.5}, kept=9,
    )  # fmt: skip
    files.release(opened.taken, "")
    is_session = begun_by == "session"
    if saved_by == begun_by:
        assert files.open(fresh, resumes=True, of_session=is_session).candidates == []
        return
    theirs = "a session, which --fresh of this job" if begun_by == "a:B" else "a job, which --fresh"
    with pytest.raises(CheckpointError, match=f"checkpoint-000001: is a checkpoint of {theirs}"):
        files.open(fresh, resumes=True, of_session=is_session)
    assert newest_of(settings)["number"] == 1


def opened_peak(folder, count, mebibytes):
    """Most memory that opening a folder of so many checkpoints took."""
    files = CheckpointFiles()
    settings = JobSettings(
        checkpoint_dir=str(folder), checkpoint_interval=1.0, worker_class="a:B", checkpoints_kept=9
    )
    files.open(settings, resumes=True)
    arrays = {
        "outcomes": NO_RECORDS, "cuts": np.zeros((0, 3), np.int64),
        "summary": np.zeros(mebibytes << 20, np.uint8),
    }  # fmt: skip
    plain = {"paths": [], "block_bytes": 1, "clock": -1, "has_summary": True, "figures": {}}
    state = JobState({"sources": [["a", 1]], **plain}, arrays)
    about = {"cluster_id": 7, "frag_num": 1, "tables": (), "about": {}, "kept": 9}
    for _ in range(count):
        begun = files.begin(0, 7, 0)
        files.complete(begun, [file_of_rows(begun).to_dict()], state, **about)
    tracemalloc.start()
    opened = files.open(settings, resumes=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [one.sources for one in opened.candidates] == [[("a", 1)]] * count
    assert len(files.read_state(opened.candidates[0]).summary) == mebibytes << 20
    files.release(opened.taken, "")
    return peak


def test_states_of_all_checkpoints_are_read_one_at_a_time(tmp_path):
    one, five = (opened_peak(tmp_path / f"{count}", count, 4) for count in (1, 5))
    assert five < 1.2 * one
