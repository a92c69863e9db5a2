"""master.job.epoch_tests: a schedule that waits for tests, the best epoch, and its rows."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from snailps.api.range_passes import RangePasses
from snailps.api.rotation import Rotation
from snailps.config import JobSettings
from snailps.errors import CheckpointError, DataError
from snailps.master.checkpoint_files import CheckpointFiles, folder_of_best
from snailps.master.job.epoch_figures import EpochFigures
from snailps.master.job.epoch_tests import EpochTests
from snailps.master.job.job import Inspected, Job, JobClock
from snailps.master.job.model_class import Look
from snailps.master.leases import (
    BspSchedule,
    Entries,
    QueueSchedule,
    SspSchedule,
)
from snailps.master.leases.ranges import RangeSchedule
from snailps.master.leases.records import BlockResult
from snailps.master.leases.rotation import RotationSchedule
from snailps.master.services import Completed, Opened
from snailps.node.effects import WorkDone
from snailps.pieces import Piece

BLOCKS = [Piece(str(number), 0, 10) for number in range(5)]
EPOCHS = 3
SCHEDULES = {
    "async": lambda: QueueSchedule(Entries(BLOCKS, EPOCHS)),
    "own": lambda: SspSchedule(Entries(BLOCKS, EPOCHS), nodes=[1, 2]),
    "ssp": lambda: SspSchedule(Entries(BLOCKS, EPOCHS), nodes=[1, 2], staleness=1),
    "bsp": lambda: BspSchedule(Entries(BLOCKS, EPOCHS), micro_batches=2, nodes=[1, 2]),
    "ranges": lambda: RangeSchedule(BLOCKS, RangePasses(4, 2 * EPOCHS, 2, 1)),
    "rotation": lambda: RotationSchedule(
        Entries(BLOCKS, EPOCHS), Rotation(2, 2, 1), nodes=[1, 2]
    ),
}  # fmt: skip


def train_what_is_leased(schedule, durable=True, until=lambda: False):
    """Two workers train what they get, in turn; the numbers that are done."""
    for node in (1, 2):
        schedule.join(node)
    done, refused = [], 0
    while refused < 2 and not until():
        refused = 0
        for node in (1, 2):
            entry = schedule.take(node)
            if entry is None:
                refused += 1
                continue
            number = entry.number
            if schedule.checkouts is not None and schedule.plan.numbers.is_partition(number):
                while (part := schedule.checkouts.check_out(number, node)) >= 0:
                    schedule.checkouts.check_in(number, node, part, 1, 0.1)
            assert schedule.done(number, node, BlockResult(1))
            if durable:
                schedule.records.make_durable([number], node)
            done.append(number)
    return done


# --- schedules that wait ----------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_leased_after_an_epoch_until_the_next_is_let_through(name):
    schedule, everything = SCHEDULES[name](), []
    for epochs in range(1, EPOCHS + 1):
        schedule.hold(epochs)
        assert not schedule.at_hold
        everything += train_what_is_leased(schedule)
        assert schedule.at_hold
        assert not schedule.pushing()
        # With clocks the step of an epoch's last block is completed.
        share = min(1.0, (5 * epochs + epochs % 2) / 15) if name == "bsp" else epochs / EPOCHS
        assert schedule.progress == pytest.approx(share)
        assert schedule.over == (epochs == EPOCHS)
        assert all(schedule.take(node) is None for node in (1, 2)) or schedule.over
        assert schedule.woken({1, 2}) == [] or name in ("own", "ssp", "rotation", "bsp")
    assert len(everything) == len(set(everything))
    plain = SCHEDULES[name]()
    assert sorted(train_what_is_leased(plain)) == sorted(everything)


def test_blocks_that_are_encoded_after_an_epoch_are_nothing_new_to_test():
    schedule, tested = SCHEDULES["rotation"](), EpochFigures(1)
    schedule.hold(1)
    train_what_is_leased(schedule, until=lambda: schedule.at_hold)
    tested.add({"epoch": 1, "f1": 0.5}, "", schedule.progress)
    finished = schedule.finished
    train_what_is_leased(schedule)
    assert schedule.finished > finished
    assert not tested.is_new(schedule.progress)
    schedule.hold(2)
    train_what_is_leased(schedule)
    assert tested.is_new(schedule.progress)


@pytest.mark.parametrize("name", ["async", "own", "bsp"])
def test_entries_of_a_lost_worker_are_trained_before_the_test(name):
    schedule = SCHEDULES[name]()
    schedule.join(1)
    schedule.join(2)
    schedule.hold(1)
    lost = schedule.take(2)
    train_of_one = []
    while (entry := schedule.take(1)) is not None:
        schedule.done(entry.number, 1, BlockResult(1))
        train_of_one.append(entry.number)
    assert not schedule.at_hold
    schedule.retire(2)
    assert not schedule.at_hold
    while (entry := schedule.take(1)) is not None:
        schedule.done(entry.number, 1, BlockResult(1))
        train_of_one.append(entry.number)
    assert lost.number in train_of_one
    assert schedule.at_hold


def test_nobody_waits_for_a_worker_whose_blocks_wait_for_the_test():
    """A worker that joins gets the last entries of the others, which are of later epochs."""
    schedule = SspSchedule(Entries(BLOCKS, EPOCHS), nodes=[1], staleness=0)
    schedule.join(1)
    schedule.hold(1)
    first = schedule.take(1)
    schedule.join(2)
    assert schedule.take(2) is None
    done = [first.number]
    schedule.done(first.number, 1, BlockResult(1))
    while (entry := schedule.take(1)) is not None:
        schedule.done(entry.number, 1, BlockResult(1))
        done.append(entry.number)
    assert done == [0, 1, 2, 3, 4]
    assert schedule.at_hold
    schedule.hold(2)  # both go on from one clock, and one beside the other
    assert sorted(schedule.woken({1, 2})) == [1, 2]
    assert schedule.take(2) is not None
    assert schedule.take(1) is not None
    assert schedule.take(2) is None


def test_workers_whose_pushes_may_be_under_way_are_named():
    schedule = SCHEDULES["async"]()
    schedule.hold(1)
    train_what_is_leased(schedule, durable=False)
    assert schedule.pushing() == {1, 2}
    schedule.records.make_all_durable(1, ())
    assert schedule.pushing() == {2}


def test_step_that_waits_for_a_test_is_not_given_as_one_that_came_back():
    schedule = SCHEDULES["bsp"]()
    schedule.hold(1)
    train_what_is_leased(schedule)
    assert schedule.slots.take_back(1) is None
    assert schedule.slots.withhold(1) == schedule.slots.open  # rows can be saved at once
    schedule.slots.resume_leases()
    assert schedule.slots.withhold(2) == schedule.slots.open  # and again
    schedule.slots.resume_leases()
    schedule.hold(2)
    assert schedule.take(1) is not None


# --- the best epoch ---------------------------------------------------------------------------


def figures_of(figures, **more):
    epochs = EpochFigures(**more)
    for number, figure in enumerate(figures, 1):
        test = {"epoch": number, "progress": number / 10, "f1": figure}
        epochs.add(test, f"kept {number}", 5 * number)
    return epochs


@pytest.mark.parametrize(
    ("figures", "better", "best"),
    [
        ([0.1, 0.3, 0.2], "higher", 2),
        ([0.1, 0.3, 0.3], "higher", 2),
        ([0.5, 0.3, 0.4], "lower", 2),
        ([float("nan"), 0.3, float("nan")], "higher", 2),
        ([0.3, 0.2, 0.1], "higher", 1),
    ],
)
def test_first_of_the_best_figures_counts(figures, better, best):
    epochs = figures_of(figures, better=better, stop_after=9)
    assert epochs.best_test["epoch"] == best
    assert epochs.kept == f"kept {best}"
    assert epochs.figures == {"best_epoch": best, "saved_epoch": best}
    again = EpochFigures(9, better)
    again.load(epochs.dump())
    assert again == epochs


def test_enough_are_epochs_in_a_row_without_a_better_figure():
    figures, ends = [0.1, 0.3, 0.2, 0.25, 0.31, 0.3, 0.3], []
    for count in range(len(figures) + 1):
        ends.append(figures_of(figures[:count], stop_after=2).is_enough)
    assert ends == [False] * 4 + [True, False, False, True]
    assert not figures_of(figures, stop_after=0).is_enough
    assert figures_of([float("nan")] * 3, stop_after=2).is_enough


# --- tests of a job ---------------------------------------------------------------------------


class OfWorld(SimpleNamespace):
    """What tests of epochs ask of a `Job`."""

    epochs_done = Job.epochs_done


class World:
    """A job whose epochs have these figures, with a master that does everything at once."""

    def __init__(self, figures, stop_after=1, wrong=None, max_steps=0):
        self.figures, self.wrong, self.now = list(figures), dict(wrong or {}), 0.0
        self.noted, self.said, self.ended, self.failed, self.saved = [], [], "", "", []
        self.restored = self.discarded = ""
        self.schedule = QueueSchedule(Entries(BLOCKS, EPOCHS, max_steps))
        self.job = OfWorld(
            schedule=self.schedule, settings=JobSettings(epochs=EPOCHS, output="out/m"),
            inspected=Inspected(), tested=EpochFigures(stop_after), clock=JobClock(0.0, 0.0),
        )  # fmt: skip
        look = Look(("begin", "epoch"), lambda results, epoch: {}, True, stop_after)
        self.job.epoch_tested = lambda *given: Job.epoch_tested(self.job, *given)
        self.transfers, self.running = SimpleNamespace(newest=0), False
        self.saver = self.restorer = self
        self.place = SimpleNamespace(number=7)
        services = SimpleNamespace(reader=self, more_files=lambda: self)
        self.tests = EpochTests(self.job, look, "name", self, self, services, self, self)

    # what it asks of services, files, checkpoints and the course of the job

    def _goes_wrong(self, what):
        if self.wrong.get(what):
            raise self.wrong[what].pop()

    def reading(self, *, settled):
        assert settled

    def look(self, job, looks, epoch, reading):
        self._goes_wrong("test")
        return [{"f1": self.figures.pop(0) if self.schedule.finished % 5 == 0 else 0.0}]

    def work(self, run, then, lane=""):
        try:
            then(WorkDone(1, run()), self.now)
        except (DataError, CheckpointError) as error:
            then(WorkDone(1, None, error), self.now)

    def open_best(self, settings, name):
        self._goes_wrong("open")
        return Opened(1, "folder", [])

    def find(self, path):
        self._goes_wrong("find")
        return Opened(0, path, [])

    def clear(self):
        pass

    def discard_best(self, taken, settings, name):
        self.discarded = name

    def beside(self, files, hooks):
        self.hooks = hooks
        return self

    def opened(self, job, opened, now, *, resumes):
        self.path = opened.path

    holds_rows = False

    def begin(self, job, now):
        assert not self.running
        assert self.schedule.at_hold
        if self.wrong.get("save"):
            self.hooks.not_saved(self.wrong["save"].pop(), now)
        else:
            self.saved.append(self.schedule.finished)
            self.hooks.saved(Completed(f"epoch at {self.schedule.finished}", 1, 1), now)

    def restore(self, now):
        self.restored = self.path
        self.hooks.restored(None, 5, now)

    def journal(self, kind, data):
        self.noted.append((kind, data["test"]["epoch"], data["kept"]))

    def happened(self, *given):
        pass

    def say(self, text, *more, **named):
        self.said.append(text)

    def end_early(self, job, why, now):
        self.ended = why
        self.schedule.close()

    def leases_go_on(self, now):
        pass

    def fail_job(self, text, code=1, trace=""):
        self.failed = text

    def train(self):
        """Trains to the end; the epochs that were tested."""
        for _ in range(40):
            if self.failed:
                break
            entry = self.schedule.take(1)
            if entry is not None:
                self.schedule.done(entry.number, 1, BlockResult(1))
                self.schedule.records.make_durable([entry.number], 1)
            self.now += 1
            if self.schedule.over:
                if self.tests.ends(self.now):
                    break
            else:
                self.tests.step({1}, self.now)
        return [test["epoch"] for test in self.job.tested.tests]


def test_all_epochs_are_tested_and_the_last_rows_stay_without_a_limit():
    world = World([0.3, 0.2, 0.1], stop_after=0)
    assert world.train() == [1, 2, 3]
    assert (world.saved, world.restored, world.ended) == ([], "", "")
    assert world.noted == [("tested", epoch, "") for epoch in (1, 2, 3)]
    assert world.job.tested.figures == {}
    shown = [test["f1"] for _, test in world.job.inspected.tests]
    assert shown == [0.3, 0.2, 0.1]


def test_steps_that_end_the_training_do_not_change_when_epochs_are_tested():
    world = World([0.3, 0.5], stop_after=2, max_steps=12)
    assert world.train() == [1, 2, 2.4]  # of 5 blocks each
    assert world.restored == "epoch at 10"
    assert world.job.tested.figures["best_epoch"] == 2


def test_training_ends_after_epochs_that_are_no_better_and_the_best_rows_are_restored():
    world = World([0.3, 0.2])
    assert world.train() == [1, 2]
    assert world.ended == "stop_after"
    assert world.saved == [5]
    assert world.restored == "epoch at 5"
    assert world.noted == [("tested", 1, "epoch at 5"), ("tested", 2, "")]
    assert world.job.tested.figures == {"best_epoch": 1, "saved_epoch": 1}
    assert world.tests.ends(world.now)  # as often as it is asked
    world.tests.close(goes_on=False)
    assert world.discarded == "name"


def test_training_whose_figures_are_no_numbers_ends_with_the_last_rows():
    world = World([float("nan")] * 3, stop_after=2)
    assert world.train() == [1, 2, 3]
    world = World([float("nan")] * 3, stop_after=1)
    assert world.train() == [1, 2]
    assert world.said == ["no figure is a number: the last rows are saved"]
    assert (world.saved, world.restored, world.job.tested.figures) == ([], "", {})


def test_best_rows_of_the_last_epoch_are_neither_kept_nor_restored():
    world = World([0.1, 0.2, 0.3], stop_after=2)
    assert world.train() == [1, 2, 3]
    assert (world.saved, world.restored) == ([5, 10], "")
    assert world.job.tested.figures == {"best_epoch": 3, "saved_epoch": 3}


def test_an_epoch_waits_for_pushes_of_workers_that_are_here_and_for_no_others():
    world = World([0.1, 0.2, 0.3])
    while (entry := world.schedule.take(1)) is not None:
        world.schedule.done(entry.number, 1, BlockResult(1))
    for _ in range(3):
        world.tests.step({1}, world.now)
    assert not world.job.tested.tests
    world.tests.step({2}, world.now)  # worker 1 is gone: its pushes come no more
    assert [test["epoch"] for test in world.job.tested.tests] == [1]


def test_rows_trained_after_the_last_test_are_tested_before_the_best_are_chosen():
    world = World([0.3, 0.9], stop_after=2)
    while not world.job.tested.tests:
        if (entry := world.schedule.take(1)) is not None:
            world.schedule.done(entry.number, 1, BlockResult(1))
            world.schedule.records.make_durable([entry.number], 1)
        world.tests.step({1}, world.now)
    world.schedule.done(world.schedule.take(1).number, 1, BlockResult(1))
    world.schedule.close()  # as by max_seconds, or Ctrl-C
    while not world.tests.ends(world.now):
        pass
    assert [test["epoch"] for test in world.job.tested.tests] == [1, 1.2]
    assert world.restored == "epoch at 5"


def test_best_rows_are_restored_where_workers_end_after_the_last_test_without_training():
    """As they end they push what they held back: the servers' rows are not the tested ones."""
    world = World([0.3], stop_after=2)
    while not world.job.tested.tests:
        if (entry := world.schedule.take(1)) is not None:
            world.schedule.done(entry.number, 1, BlockResult(1))
            world.schedule.records.make_durable([entry.number], 1)
        world.tests.step({1}, world.now)
    world.schedule.close()  # as by max_seconds, or Ctrl-C
    while not world.tests.ends(world.now):
        pass
    assert ([test["epoch"] for test in world.job.tested.tests], world.restored) == (
        [1], "epoch at 5",
    )  # fmt: skip


def test_error_of_the_first_test_fails_the_job_and_a_later_one_is_tried_again():
    world = World([0.3, 0.2, 0.1], wrong={"test": [DataError("no label")]})
    world.train()
    assert world.failed == "the model could not be tested: no label"
    world = World([0.3, 0.2, 0.1], stop_after=0)
    world.schedule.hold(1)
    entry = world.schedule.take(1)
    world.schedule.done(entry.number, 1, BlockResult(1))
    world.tests.step({1}, world.now)  # reads its data
    world.wrong = {"test": [DataError("a server is lost")]}
    world.schedule.records.make_durable([entry.number], 1)
    assert world.train() == [1, 2, 3]
    world.wrong = {"test": [DataError("a server is lost") for _ in range(9)]}
    assert not world.failed


def test_rows_that_cannot_be_kept_are_tried_again_then_the_last_rows_are_saved_and_it_says_so():
    world = World([0.3, 0.2], wrong={"save": ["a server is lost"] * 2})
    world.train()
    assert world.restored == "epoch at 5"
    world = World([0.3, 0.2], wrong={"save": ["the disk is full"] * 3})
    world.train()
    assert world.restored == ""
    assert "the rows of epoch 1 are not kept: the disk is full" in world.said[0]
    assert "the rows of the best epoch, 1, cannot be saved" in world.said[-1]
    assert world.job.tested.figures == {"best_epoch": 1, "saved_epoch": 2}
    world = World([0.3, 0.2], wrong={"find": [CheckpointError("it is damaged")]})
    world.train()
    assert "it is damaged" in world.said[-1]
    world = World([0.3, 0.2], wrong={"open": [CheckpointError("no such disk")] * 3})
    world.train()
    assert "no such disk" in world.said[0]


@pytest.mark.parametrize("goes_on", [False, True])
def test_rows_of_an_earlier_run_stay_while_the_folder_is_opened_if_a_checkpoint_needs_them(goes_on):
    world, waiting, released = World([0.3, 0.5]), [], []
    world.job.tested.add({"epoch": 0, "f1": 0.1}, "epoch before", 0.0)
    world.release = lambda taken, why: released.append(taken)
    at_once = world.work

    def work(run, then, lane=""):
        # The first of this lane opens the folder.
        waiting.append((run, then)) if lane and not waiting else at_once(run, then)

    world.work = work
    world.train()
    assert (len(waiting), world.saved) == (1, [])
    world.tests.close(goes_on=goes_on)  # the job has failed
    at_once(*waiting[0])
    assert world.discarded == ("" if goes_on else "name")
    assert (1 in released) == goes_on


def test_rows_are_kept_beside_the_output_or_the_checkpoints():
    def folder(**settings):
        return str(folder_of_best(JobSettings(**settings), "name"))

    assert folder(output="/out/m") == "/out/m.best"
    assert folder(output="out/m", checkpoint_dir="/shared/c") == "/shared/c.best"
    assert folder(checkpoint_interval=5) == str(Path("checkpoints.best").absolute())
    assert folder(scratch_dir="/scratch") == "/scratch/snailps-best-name"


def test_best_rows_that_a_killed_session_has_left_are_removed_by_the_next_one(tmp_path):
    settings = JobSettings(scratch_dir=str(tmp_path))
    killed, lives, later = (tmp_path / f"snailps-best-{n}" for n in ("killed", "lives", "later"))
    of_others = tmp_path / "of_others"
    for folder in (killed, of_others):
        (folder / "checkpoint-000001").mkdir(parents=True)
        (folder / "lock").touch()
    living, files = CheckpointFiles(), CheckpointFiles()
    living.open_best(settings, "lives")
    (lives / "checkpoint-000001").mkdir()
    files.open_best(settings, "later")
    assert sorted(tmp_path.iterdir()) == [of_others, later, lives]
    assert (lives / "checkpoint-000001").is_dir()
    for opened, name in ((living, "lives"), (files, "later")):
        opened.discard_best(1, settings, name)
    assert list(tmp_path.iterdir()) == [of_others]
