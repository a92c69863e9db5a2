"""The end of a training: who is waited for, who is given up, which results count."""

import pytest
from cluster_models import Counter
from master_world import World, rejoin, takes_over

from snailps.api.concurrency import Concurrency
from snailps.master import effects, events
from snailps.master.leases import BspSchedule, Entries, QueueSchedule, SspSchedule
from snailps.master.leases.late_workers import DROP_S
from snailps.master.leases.records import BlockResult
from snailps.pieces import Piece
from snailps.transport import messages as m
from snailps.worker.resume_state import ResumeState

LONG_S = 300


@pytest.fixture
def make_job(make_job):
    """Jobs that are over in 5 s."""
    make_job.values["max_seconds"] = "5"
    return make_job


class Ending(World):
    """A job that is over in 5 s; its workers answer `told` when they are asked how far they are."""

    def __init__(self, job, **settings):
        self.told = {}
        super().__init__(job, **settings)

    def does(self, order):
        if order == m.Ask("stats"):
            return m.Report({**super().does(order).data, **self.told})
        return super().does(order)

    def begins(self):
        """The first worker has a block when the training is to end; the other has finished."""
        _, late, other = self.forms()
        assert self.ask(late, m.Lease("train")).number >= 0
        assert self.trains(other)
        self.tick(6.0)
        self.note(other, m.Finished({}))
        self.tick()
        return late, other

    def is_given_up(self, worker):
        return bool(self.sent(worker, m.Stop))


def test_worker_that_moves_bytes_is_waited_for_however_long_that_takes(make_job):
    world = Ending(make_job())
    world.told = {"moved_bytes": 0, "half_pushed": True}
    late, _ = world.begins()
    for second in range(LONG_S):
        world.told["moved_bytes"] = second
        world.tick(1.0)
    assert world.core.reported_phase == "training"
    world.note(late, m.Finished({}))
    world.tick(times=3)
    assert world.core.reported_phase == "stopping"


def test_worker_that_has_pushed_nothing_of_its_block_is_given_up_when_it_is_quiet(make_job):
    world = Ending(make_job())
    world.told = {"moved_bytes": 7, "half_pushed": False}
    late, _ = world.begins()
    world.tick(DROP_S - 3)
    assert not world.is_given_up(late)
    world.tick(3.0)
    assert world.is_given_up(late)


def test_worker_that_has_pushed_a_part_is_waited_for_longer_than_its_requests_may_take(make_job):
    world = Ending(make_job(), request_timeout=60.0)
    world.told = {"moved_bytes": 7, "half_pushed": True}
    late, _ = world.begins()
    world.tick(DROP_S + 100)
    assert not world.is_given_up(late)
    world.tick(30.0)
    assert world.is_given_up(late)


def test_worker_that_answers_nothing_counts_as_one_that_has_pushed_a_part(make_job):
    world = Ending(make_job())
    late, _ = world.begins()
    world.obey = False
    world.tick(DROP_S + 100)
    assert not world.is_given_up(late)
    world.tick(30.0)
    assert world.is_given_up(late)


def test_worker_that_was_given_up_before_it_began_and_says_that_it_has_ended_gets_the_next_job(
    make_job,
):
    """It is not given up again: nothing would make it catch up then."""
    world = Ending(make_job())
    world.told = {"moved_bytes": 7, "half_pushed": True}
    _, late, idle = world.forms()
    assert world.ask(late, m.Lease("train")).number >= 0
    world.tick(6.0)
    world.tick(DROP_S + 2)
    assert world.core.members.all[idle].dropped
    world.note(idle, m.Finished({}))
    world.tick()
    member = world.core.members.all[idle]
    assert (member.finished, member.dropped) == (True, False)


def test_nothing_is_exported_before_all_shards_have_fenced_a_worker_that_was_given_up(make_job):
    world = Ending(make_job())
    late, _ = world.begins()
    does = world.does
    world.does = lambda order: m.Report({"done": []}) if isinstance(order, m.Fence) else does(order)
    world.tick(DROP_S + 2)
    assert world.is_given_up(late)
    assert world.core.reported_phase == "training"
    world.does = does
    world.tick(3.0)
    (fence, *_) = world.orders(m.Fence)
    assert fence.message.incarnation == late
    assert world.core.reported_phase == "stopping"


def test_nothing_is_exported_before_a_worker_that_was_lost_at_the_end_is_fenced(make_job):
    world = Ending(make_job())
    late, _ = world.begins()
    does = world.does
    world.does = lambda order: m.Report({"done": []}) if isinstance(order, m.Fence) else does(order)
    world.handle(events.Gone(late, "killed"))
    world.tick(10.0)
    assert world.core.reported_phase == "training"
    world.does = does
    world.tick(3.0)
    assert world.core.reported_phase == "stopping"


def test_master_that_takes_over_fences_again_who_was_given_up(make_job):
    world = Ending(make_job())
    late, other = world.begins()
    does = world.does
    world.does = lambda order: m.Report({"done": []}) if isinstance(order, m.Fence) else does(order)
    world.tick(DROP_S + 2)
    assert world.is_given_up(late)
    after = takes_over(world, make_job())
    for number in (1, other):
        assert isinstance(rejoin(after, number, finished=None), m.Welcome)
    after.tick(times=4)
    assert late in [order.message.incarnation for order in after.orders(m.Fence)]


def test_master_that_was_stopped_gives_nobody_up(make_job):
    """The workers, too, have had no chance to move a byte."""
    world = Ending(make_job())
    late, _ = world.begins()
    world.stands_still(3600.0)
    world.tick(DROP_S - 3)
    assert not world.is_given_up(late)


def test_master_that_takes_over_does_not_count_the_time_in_which_workers_come_back(make_job):
    world = Ending(make_job(), heartbeat_timeout=60.0)
    late, other = world.begins()
    after = takes_over(world, make_job())
    assert isinstance(rejoin(after, 1), m.Welcome)
    assert isinstance(rejoin(after, other), m.Welcome)
    after.tick(DROP_S + 5)
    (node,) = [node for node in after.status()["nodes"] if node["id"] == late]
    assert node["state"] == "not back yet"


def test_results_whose_pushes_nobody_acknowledged_do_not_count(make_job):
    """Kept rows: a block is reported long before its deltas are pushed."""
    world = Ending(make_job(epochs="1"))
    _, late, other = world.forms()
    lease = world.ask(late, m.Lease("train"))
    world.ask(late, m.Done("train", lease.number, 1000, 0.1, {"loss": 5.0, "examples": 1000.0}))
    assert world.trains(other)
    world.tick(6.0)
    world.note(other, m.Finished({}))
    world.tick(DROP_S + 3)
    assert world.is_given_up(late)
    job = world.core.job_controller.job
    assert (job.metrics.units, job.schedule.finished) == (5, 1)
    assert job.metrics.loss_by_epoch()[0] == 1.0
    assert job.schedule.progress == pytest.approx(1 / len(job.input.blocks), rel=0.2)


def blocks(count):
    return [Piece("in", 10 * at, 10 * at + 10) for at in range(count)]


@pytest.mark.parametrize("settled", [(), (0,), (0, 1)])
def test_schedule_withdraws_what_is_done_and_not_durable(settled):
    book = QueueSchedule(Entries(blocks(4)))
    for number in (0, 1):
        book.take(1)
        assert book.done(number, 1, BlockResult(units=10 + number))
    book.records.make_durable(settled, 1)
    book.close()
    left = [number for number in (0, 1) if number not in settled]
    assert {number: result.units for number, result in book.withdraw().items()} == {
        number: 10 + number for number in left
    }
    assert (book.finished, book.progress) == (len(settled), len(settled) / 4)
    assert book.over
    assert not book.withdraw()


@pytest.mark.parametrize(("staleness", "lost"), [(1, []), (-1, [0])])
def test_assigned_block_is_durable_once_done_only_where_it_is_pushed_before(staleness, lost):
    book = SspSchedule(Entries(blocks(4)), nodes=[1], staleness=staleness)
    book.done(book.take(1).number, 1)
    book.close()
    assert [*book.withdraw()] == lost  # a checkpoint would have counted it


def test_steps_withdraw_the_slots_of_a_clock_that_is_never_applied():
    book = BspSchedule(Entries(blocks(8)), micro_batches=2, nodes=[1, 2])
    taken = [book.take(node).number for node in (1, 2, 1)]
    assert taken == [0, 1, 2]
    for number, node in zip(taken, (1, 2, 1), strict=True):
        book.done(number, node, BlockResult(units=1))
        list(book.slots.in_order())
    assert book.take(2).number == 3
    book.close()
    book.abandon(2)
    assert list(book.withdraw()) == [2]
    assert (book.finished, book.slots.open) == (2, 1)


def test_worker_is_half_pushed_from_the_first_part_of_a_block_to_its_last_acknowledgement():
    stand = ResumeState()
    assert not stand.is_half_pushed(3)
    stand.start_block(0, 3)
    assert not stand.is_half_pushed(3)
    assert stand.is_half_pushed(4)
    stand.start_block(1, 4)  # trained while pushes of the block before are under way
    assert stand.is_half_pushed(4)
    stand.durable(0)
    assert not stand.is_half_pushed(4)
    assert stand.is_half_pushed(5)
    stand.finish({})
    assert not stand.is_half_pushed(9)


@pytest.fixture
def at_most(monkeypatch):
    """Has the counter train with so many workers at a time."""

    def at_most(most):
        few = Concurrency(most, "lr is large")
        at_once = classmethod(lambda cls, settings, files: few)
        monkeypatch.setattr(Counter, "workers_at_once", at_once, raising=False)

    return at_most


def test_job_that_not_all_workers_train_at_a_time_says_so_and_is_counted_so(make_job, at_most):
    at_most(1)
    world = World(make_job())
    world.forms()
    said = [effect.text for effect in world.effects if isinstance(effect, effects.Say)]
    assert "no more than 1 of 2 workers train at a time, because lr is large" in said
    newcomer = world.join("worker")
    world.tick()
    assert [start.workers for start in world.sent(newcomer, m.Start)] == [1]
