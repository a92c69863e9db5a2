"""A rotation at the master by events alone, and what a worker keeps of it: calls, figures, ends."""

import json
import threading

import pytest
from cluster_models import write_numbers
from master_world import World, rejoin, takes_over
from test_job_metrics import PassMetrics

from snailps.api.rotation import NoCheckouts, Rotation
from snailps.config import JobSettings, MasterSettings, RawConfig
from snailps.dataclass import asdict
from snailps.errors import ClusterError, ConfigError, MisuseError
from snailps.master import effects, events
from snailps.master.job.beginning import begin_training, prepare
from snailps.master.job.ending import figures_of
from snailps.master.job.job import Job
from snailps.master.job.record import JobRecord
from snailps.master.job.state import pack, unpack
from snailps.master.job.training_plan import plan_training
from snailps.master.leases.records import BlockResult
from snailps.transport import messages as m
from snailps.transport.messages.terms import ChunkBlock, Partition
from snailps.worker import checkouts as checkouts_module
from snailps.worker.checkouts import LeaseCheckouts
from snailps.worker.resume_state import ResumeState

TEXT_BLOCKS = 10
"""The least that an input is cut into."""
ANSWER = {"loss": 2.0, "examples": 1.0}


@pytest.fixture
def make_job(tmp_path):
    """Jobs of ten blocks in two chunks."""
    write_numbers(tmp_path / "in.txt", 100, rows=10)  # 200 bytes

    def make(**settings):
        values = {
            "worker_class": "rotation_models:Rotating", "input": str(tmp_path / "in.txt"),
            "block_bytes": "50", "epochs": "1",
        }  # fmt: skip
        raw = RawConfig.from_mapping({**values, **settings}, "test")
        return Job(raw, (JobSettings, MasterSettings), 100.0)

    return make


def deals(world, peer):
    """A worker encodes blocks until it gets a partition, or must wait; that lease."""
    while True:
        lease = world.ask(peer, m.Lease("train"))
        if lease is None or isinstance(lease.terms, Partition):
            return lease
        assert isinstance(world.ask(peer, m.Done("train", lease.number, 9, 0.1, ANSWER)), m.Ok)
        world.note(peer, m.Durable([lease.number]))


def tenants(world):
    """Both workers with their partition of the first chunk: (peer, lease) of each."""
    _, first, second = world.forms()
    early = deals(world, first)
    assert early is not None
    return (first, early), (second, deals(world, second))


def checks_in(world, peer, lease, part, durable=False, **figures):
    world.note(peer, m.CheckIn(lease.number, part, 5, 0.5, ANSWER | figures, durable))


def come_back(world, *partitions):
    """The server, and the workers with a partition each: (lease, parts that it had, and holds)."""
    rejoin(world, 1)
    for node, (lease, had, holds) in enumerate(partitions, 2):
        partition = {"number": lease.number, "parts": 2, "had": had, "holds": holds}
        held = [["train", lease.number]]
        rejoin(world, node, held=held, partitions=[partition])
    world.tick(times=4)


def fence_of(world):
    """The order to fence a lost worker."""
    return next(
        e for e in world.effects if isinstance(e, effects.Order) and isinstance(e.message, m.Fence)
    )


def facts(world, kind):
    return [fact.data for fact in world.facts() if fact.kind == kind]


@pytest.mark.parametrize("most_parts", [1, 2, 8])
def test_rotation_of_fewer_parts_than_workers_says_how_many_train(make_job, most_parts):
    world = World(make_job(most_parts=str(most_parts)))
    world.forms()
    said = [effect.text for effect in world.effects if isinstance(effect, effects.Say)]
    assert any("no more than 1 of 2 workers train at a time" in text for text in said) == (
        most_parts == 1
    )


# --- leases and parts ----------------------------------------------------------------------------


def test_refused_workers_are_answered_when_the_speeds_of_all_are_known(make_job):
    """Not when one of them asks for something else, which may be at the end of the chunk."""
    world = World(make_job(epochs="3"))
    leased = tenants(world)
    calls = []
    for peer, _ in leased:
        call = world.call(peer, m.Lease("train"))
        while (block := world.answers.get(call)) is not None:  # blocks of later chunks
            assert isinstance(block.terms, ChunkBlock)
            world.ask(peer, m.Done("train", block.number, 9, 0.1, ANSWER))
            call = world.call(peer, m.Lease("train"))
        calls.append(call)
    for peer, lease in leased:
        part = world.ask(peer, m.CheckOut(lease.number)).part
        world.note(peer, m.CheckIn(lease.number, part, 5, 1.0, ANSWER))
    answers = [world.answers[call] for call in calls]
    assert [(lease.terms.chunk, lease.first) for lease in answers] == [(1, False)] * 2


@pytest.mark.parametrize(
    "settings",
    [{"consistency": "ssp", "staleness": "1"}, {"consistency": "bsp"}, {"max_steps": "3"},
     {"assign": "own"}],
)  # fmt: skip
def test_training_that_asks_for_something_else_does_not_rotate(make_job, settings):
    job = make_job(**settings)
    prepare(job, 2)
    assert plan_training(job, 2) is None
    job = make_job()
    prepare(job, 2)
    assert [plan_training(job, workers) for workers in (1, 2)] == [Rotation(2, 8)] * 2


def test_rotation_has_no_more_chunks_than_blocks_nor_parts_than_a_message_takes(make_job):
    job = make_job(chunks="100", most_parts="1000000")
    prepare(job, 2)
    assert plan_training(job, 2) == Rotation(TEXT_BLOCKS, 1 << 15)


@pytest.mark.parametrize("wrong", ["2", 7, (2, 3), ValueError("planted")])
def test_rotation_that_fails_or_is_none_ends_the_job_with_the_reason(make_job, monkeypatch, wrong):
    job = make_job()

    def rotation(settings, total_bytes, workers, summary):
        assert (total_bytes, workers, summary) == (200, 2, b"")
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    monkeypatch.setattr(job.model.cls, "rotation", rotation)
    world = World(job)
    for role in ("server", "worker", "worker"):
        world.join(role)
    world.tick(times=4)
    if isinstance(wrong, Exception):
        assert (
            "planning the training failed at the master: ValueError: planted"
            in world.core.lifecycle.verdict
        )
    else:
        assert "Rotating.rotation: expected a Rotation or None, got" in world.core.lifecycle.verdict


def test_worker_waits_until_a_part_is_checked_in_and_is_told_when_it_has_had_all(make_job):
    world = World(make_job())
    (a, one), (b, two) = tenants(world)
    assert [world.ask(a, m.CheckOut(one.number)).part for _ in range(4)] == [0, 1, 2, 3]
    waits = world.call(b, m.CheckOut(two.number))
    assert waits not in world.answers
    world.tick(seconds=1.0)
    (_, second) = world.core.members.joined("worker")
    assert second.waits.endswith("to check in partition 0")
    checks_in(world, a, one, 3)
    assert world.answers[waits] == m.CheckedOut(3)
    assert second.waits == ""
    assert world.ask(a, m.CheckOut(one.number)) == m.CheckedOut(-1)
    checks_in(world, b, two, 3)
    checks_in(world, b, two, 3)  # a second time, or what it does not hold: as after a takeover
    checks_in(world, b, one, 0)
    assert world.call(b, m.CheckOut(two.number)) not in world.answers


def test_checking_out_for_what_is_not_held_is_refused(make_job):
    world = World(make_job())
    (_, one), (b, _) = tenants(world)
    for number in (one.number, 0, 1 << 40):
        assert isinstance(world.ask(b, m.CheckOut(number)), ClusterError)


def test_checking_out_without_a_rotation_is_refused(make_job):
    world = World(make_job(assign="own"))
    _, worker, _ = world.forms()
    lease = world.ask(worker, m.Lease("train"))
    assert lease.terms is None
    assert "no rotation" in str(world.ask(worker, m.CheckOut(lease.number)))
    world.note(worker, m.CheckIn(lease.number, 0, 1, 1.0, {}))
    assert not [e for e in world.effects if isinstance(e, effects.Broken)]


def test_nothing_of_a_lost_worker_is_given_to_others_before_it_is_fenced(make_job):
    world = World(make_job())
    (a, one), (b, two) = tenants(world)
    assert [world.ask(a, m.CheckOut(one.number)).part for _ in range(4)] == [0, 1, 2, 3]
    checks_in(world, a, one, 0)
    checks_out, leases = world.call(b, m.CheckOut(two.number)), None
    assert world.answers[checks_out].part == 0
    checks_out = world.call(b, m.CheckOut(two.number))
    world.obey = False
    world.handle(events.Gone(a, "connection closed"))
    leases = world.call(b, m.Lease("train"))
    world.tick(times=3)
    assert checks_out not in world.answers
    assert leases not in world.answers
    fence = fence_of(world)
    world.obey = True
    world.handle(events.Answered(fence.number, world.does(fence.message)))
    world.tick()
    assert world.answers[checks_out].part == 2
    assert isinstance(world.answers[leases].terms, ChunkBlock)


def test_fetch_is_for_blocks_only(make_job):
    world = World(make_job())
    (a, one), _ = tenants(world)
    assert world.ask(a, m.Fetch(0, "train", "line")).blob.startswith(b"0\n1\n")
    assert world.ask(a, m.Fetch(1, "train", "head")).blob.startswith(b"0\n1\n")
    world.call(a, m.Fetch(one.number, "train", "line"))
    broken = [e for e in world.effects if isinstance(e, effects.Broken)]
    assert "no such block" in str(broken[0].error)


# --- figures -------------------------------------------------------------------------------------


def test_figures_of_checkouts_count_at_once_and_those_of_the_partition_in_their_place(
    make_job,
):
    job = make_job()
    world = World(job)
    (a, one), _ = tenants(world)
    assert job.metrics.units == 0
    assert not any(job.metrics.loss_by_epoch())
    for part in range(4):
        assert world.ask(a, m.CheckOut(one.number)).part == part
        world.now += 0.5
        checks_in(world, a, one, part)
    assert (job.metrics.units, job.metrics.loss) == (20, 2.0)
    assert job.metrics.loss_by_epoch() == [2.0]
    assert job.schedule.progress == pytest.approx(1 / 4)
    assert job.metrics.rate(job.clock.pass_begun, world.now) > 0
    (member, _) = world.core.members.joined("worker")
    assert member.rate.per_s(world.now) == 10
    assert member.done == 4  # what it has trained, and not the blocks that were encoded
    world.ask(a, m.Done("train", one.number, 30, 2.0, {"loss": 9.0, "examples": 3.0}))
    assert (job.metrics.units, job.metrics.loss) == (30, 2.0)  # shown is the mean of checkouts
    assert job.metrics.loss_by_epoch() == [3.0]
    assert job.schedule.progress == pytest.approx(1 / 4)
    assert member.rate.per_s(world.now) == 15


def test_figures_of_a_lost_partition_are_withdrawn(make_job):
    job = make_job()
    world = World(job)
    (a, one), (b, two) = tenants(world)
    for peer, lease in ((a, one), (b, two)):
        checks_in(world, peer, lease, world.ask(peer, m.CheckOut(lease.number)).part, loss=3.0)
    assert (job.metrics.units, job.metrics.loss_by_epoch()) == (10, [3.0])
    world.handle(events.Gone(a, "connection closed"))
    assert (job.metrics.units, job.metrics.loss) == (5, 3.0)
    assert job.schedule.progress == pytest.approx(1 / 16)
    world.handle(events.Gone(b, "connection closed"))
    assert (job.metrics.units, job.metrics.loss) == (0, None)
    assert not any(job.metrics.loss_by_epoch())


def leases_again(world, lease):
    """A worker that joins and gets the partition of one that is lost."""
    peer = world.join("worker")
    world.tick(times=4)
    again = deals(world, peer)
    assert again.number == lease.number
    return peer, again


def test_durable_checkouts_of_a_lost_worker_count_and_the_next_one_trains_the_others(make_job):
    job = make_job()
    world = World(job)
    (a, one), (b, _) = tenants(world)
    for part, durable in ((0, False), (1, True), (2, False)):
        assert world.ask(a, m.CheckOut(one.number)).part == part
        checks_in(world, a, one, part, durable)
    (member, _) = world.core.members.joined("worker")
    node = member.number
    assert facts(world, "checkouts") == [
        {"number": one.number, "node": node, "parts": [0, 1], "units": 10, "loss": 4.0,
         "examples": 2.0}
    ]  # fmt: skip
    assert job.metrics.units == 15
    world.handle(events.Gone(a, "connection closed"))
    assert (job.metrics.units, job.metrics.loss_by_epoch()) == (10, [2.0])
    assert job.schedule.progress == pytest.approx(2 / 16)
    c, again = leases_again(world, one)
    assert (again.terms.durable, one.first, again.first) == ((0, 1), True, False)
    assert [world.ask(c, m.CheckOut(one.number)).part for _ in range(2)] == [2, 3]
    checks_in(world, c, again, 2, durable=True, loss=1.0)
    checks_in(world, c, again, 3, loss=1.0)
    assert world.ask(c, m.CheckOut(one.number)) == m.CheckedOut(-1)
    assert job.metrics.units == 20
    # What it reports is of its own checkouts, and replaces those.
    world.ask(c, m.Done("train", one.number, 12, 1.0, {"loss": 2.0, "examples": 2.0}))
    assert (job.metrics.units, job.metrics.losses[0]) == (22, [6.0, 4.0])
    assert job.metrics.unfinished == []
    assert job.schedule.records.is_done(one.number)
    checks_in(world, b, one, 0, durable=True)  # it has nothing of that partition
    assert len(facts(world, "checkouts")) == 2


def test_checkpoint_has_no_figures_of_durable_checkouts_and_a_takeover_has_them(make_job):
    before = World(make_job())
    (a, one), (_, two) = tenants(before)
    for part in range(2):
        before.ask(a, m.CheckOut(one.number))
        checks_in(before, a, one, part, durable=part == 1)
    job = before.core.job_controller.job
    assert job.metrics.units == 10
    assert unpack(pack(JobRecord(job).dump(before.now))).units == 0
    world = takes_over(before, make_job())
    come_back(world, (one, [0, 1, 2], [2]), (two, [], []))
    again = world.core.job_controller.job
    assert (again.metrics.units, again.metrics.losses[0]) == (10, [4.0, 2.0])
    assert again.schedule.progress == pytest.approx(2 / 16)
    checks_in(world, 2, one, 2)
    world.handle(events.Gone(2, "connection closed"))
    assert (again.metrics.units, again.metrics.losses[0]) == (10, [4.0, 2.0])
    world.ask(3, m.Done("train", two.number, 0, 1.0, {}))
    lease = deals(world, 3)
    assert (lease.number, lease.terms.durable) == (one.number, (0, 1))
    world.ask(3, m.Done("train", one.number, 7, 1.0, {"loss": 2.0, "examples": 2.0}))
    assert (again.metrics.units, again.metrics.losses[0]) == (17, [6.0, 4.0])


def test_checkouts_made_durable_by_one_worker_are_not_withdrawn_when_the_next_one_is_done():
    metrics = PassMetrics()
    metrics.count_checkout(40, 0, BlockResult(5, 3.0, 2.0), 2)
    assert metrics.make_durable(40) == {"units": 5, "loss": 3.0, "examples": 2.0}
    metrics.count_checkout(40, 0, BlockResult(1, 1.0, 1.0), 2)
    later = PassMetrics()
    later.resume(json.loads(json.dumps(metrics.snapshot(exact=True))))
    assert (later.units, later.losses, later.unfinished) == (5, [[3.0, 2.0]], [40])
    later.adopt_durable(40, 0, 2, {"units": 1, "loss": 1.0, "examples": 1.0})
    assert later.end_checkouts(40, 3) == 0  # a worker that has checked out nothing itself
    assert (later.units, later.losses, later.unfinished) == (6, [[4.0, 3.0]], [])
    assert metrics.lose_checkouts(40) == 1
    assert metrics.lose_checkouts(40) == 0
    metrics.adopt_durable(40, 0, 3, {"units": 2, "loss": 0.0, "examples": 0.0})
    assert metrics.units == 7
    assert metrics.end_checkouts(40, 3) == 2
    assert (metrics.units, metrics.losses) == (5, [[3.0, 2.0]])
    assert metrics.snapshot()["units"] == 5
    assert metrics.make_durable(41) == {"units": 0, "loss": 0.0, "examples": 0.0}


def test_loss_of_a_checkout_that_is_no_number_ends_the_job(make_job):
    world = World(make_job())
    (a, one), _ = tenants(world)
    checks_in(world, a, one, world.ask(a, m.CheckOut(one.number)).part, loss=float("nan"))
    world.tick()
    assert "the training has diverged" in world.core.lifecycle.verdict


def test_metrics_under_another_master_are_without_checkouts_that_were_not_whole():
    first, second = PassMetrics(), PassMetrics()
    first.count(0, BlockResult(7, 1.0, 2.0))
    first.count_checkout(40, 1, BlockResult(5, 3.0, 2.0))
    first.count_checkout(40, 1, BlockResult(5))
    first.count_checkout(41, 1, BlockResult(1, 1.0, 1.0))
    second.resume(json.loads(json.dumps(first.snapshot())))
    assert second.units == 7
    assert second.losses == [[1.0, 2.0], [0.0, 0.0]]
    assert first.end_checkouts(40) == 10
    assert first.end_checkouts(40) == 0
    assert first.unfinished == [41]
    assert first.lose_checkouts(41) == 1
    assert (first.units, first.losses) == (second.units, second.losses)


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["interrupt", "max_seconds", "target_loss"])
def test_training_that_ends_hands_out_nothing_and_what_ends_early_is_not_done(make_job, why):
    limits = {"max_seconds": {"max_seconds": "50"}, "target_loss": {"target_loss": "1.5"}}
    job = make_job(**limits.get(why, {}))
    world = World(job)
    (a, one), (b, two) = tenants(world)
    assert [world.ask(a, m.CheckOut(one.number)).part for _ in range(2)] == [0, 1]
    assert [world.ask(b, m.CheckOut(two.number)).part for _ in range(2)] == [2, 3]
    if why == "interrupt":
        world.handle(events.Signal())
    elif why == "max_seconds":
        world.now += 51
    else:
        for _ in range(16):  # so many decide
            job.metrics.count_checkout(one.number, 0, BlockResult(1, 1.0, 1.0))
    world.tick()
    assert world.ask(a, m.Lease("train")).number == -1
    assert world.ask(b, m.CheckOut(two.number)) == m.CheckedOut(-1, ends=True)
    units = job.metrics.units
    checks_in(world, b, two, 2)
    checks_in(world, b, two, 3)
    assert job.metrics.units == units + 10
    answer = world.ask(b, m.Done("train", two.number, 10, 1.0, ANSWER, whole=False))
    assert isinstance(answer, m.Enough)
    assert not job.schedule.records.is_done(two.number)
    assert job.metrics.units == units + 10
    assert facts(world, "done")[-1]["whole"] is False


def test_units_of_what_ended_early_count_once_in_a_run_that_goes_on(make_job):
    job = make_job()
    world = World(job)
    (a, one), (b, two) = tenants(world)
    assert [world.ask(b, m.CheckOut(two.number)).part for _ in range(2)] == [2, 3]
    world.ask(a, m.Done("train", one.number, 20, 1.0, {"loss": 4.0, "examples": 2.0}))
    world.handle(events.Signal())
    world.tick()
    checks_in(world, b, two, 2)
    checks_in(world, b, two, 3)
    world.ask(b, m.Done("train", two.number, 10, 1.0, ANSWER, whole=False))
    assert (job.metrics.units, job.metrics.losses[0]) == (30, [6.0, 3.0])  # the model has these
    figures = figures_of(job, {}, world.now)
    assert (figures["examples"], figures["loss_by_epoch"]) == (30, [2.0])
    again = make_job()
    prepare(again, 2)
    begin_training(again, 0.0, [8, 9], unpack(pack(JobRecord(job).dump(world.now))))
    assert (again.metrics.units, again.metrics.losses[0]) == (20, [4.0, 2.0])
    after = takes_over(world, make_job())  # a takeover ends the same training
    for member in (1, 2, 3):
        rejoin(after, member)
    after.tick(times=4)
    metrics = after.core.job_controller.job.metrics
    assert (metrics.units, metrics.losses[0]) == (30, [6.0, 3.0])
    metrics.resume(metrics.snapshot(exact=True))
    assert (metrics.units, metrics.losses[0]) == (30, [6.0, 3.0])


def test_blocks_are_of_the_text_and_partitions_have_their_own_figure(make_job):
    job = make_job()
    world = World(job)
    (a, one), (b, two) = tenants(world)

    def counts():
        figures = figures_of(job, {}, world.now)
        return [figures[name] for name in ("blocks", "blocks_per_epoch", "partitions", "epochs")]

    assert counts() == [0, 10, 0, 0]
    world.ask(a, m.Done("train", one.number, 5, 1.0, ANSWER))
    assert counts() == [0, 10, 1, 1]
    world.ask(b, m.Done("train", two.number, 5, 1.0, ANSWER))
    assert counts() == [5, 10, 2, 1]
    while (lease := deals(world, a)) is not None and lease.number >= 0:
        world.ask(a, m.Done("train", lease.number, 5, 1.0, ANSWER))
    if (lease := deals(world, b)).number >= 0:
        world.ask(b, m.Done("train", lease.number, 5, 1.0, ANSWER))
    assert counts() == [10, 10, 4, 1]


def test_partition_that_had_all_when_the_training_ended_is_whole(make_job):
    world = World(make_job())
    (a, one), (b, two) = tenants(world)
    for part in range(4):
        assert world.ask(a, m.CheckOut(one.number)).part == part
    world.handle(events.Signal())
    world.tick()
    assert world.ask(a, m.CheckOut(one.number)) == m.CheckedOut(-1)
    assert world.ask(b, m.CheckOut(two.number)) == m.CheckedOut(-1, ends=True)


def test_master_is_at_rest_when_a_training_ends_while_a_worker_is_fenced(make_job):
    world = World(make_job())
    (a, one), (b, two) = tenants(world)
    assert [world.ask(a, m.CheckOut(one.number)).part for _ in range(4)] == [0, 1, 2, 3]
    waits = world.call(b, m.CheckOut(two.number))
    world.obey = False
    world.handle(events.Gone(a, "connection closed"))
    leases = world.core.job_controller.leases
    world.tick()
    assert waits not in world.answers
    world.handle(events.Signal())
    world.tick()
    assert world.answers[waits] == m.CheckedOut(-1, ends=True)
    fence = fence_of(world)
    world.handle(events.Answered(fence.number, world.does(fence.message)))
    assert not leases.busy


def test_worker_whose_checkouts_do_not_end_is_given_up(make_job):
    world = World(make_job())
    (a, one), (b, two) = tenants(world)
    part = world.ask(a, m.CheckOut(one.number)).part
    world.handle(events.Signal())
    world.ask(b, m.Done("train", two.number, 0, 1.0, {}, whole=False))
    world.note(b, m.Finished({}))
    world.tick(seconds=15.0)
    checks_in(world, a, one, part)
    world.tick(seconds=15.0)
    (first, _) = world.core.members.joined("worker")
    assert not first.dropped
    world.tick(seconds=6.0)
    assert first.dropped
    assert first.number not in world.core.members.all  # it is expelled, and fenced
    assert isinstance(fence_of(world).message, m.Fence)


# --- going on ------------------------------------------------------------------------------------


def test_master_that_takes_over_knows_what_each_partition_had_and_holds(make_job):
    before = World(make_job())
    (a, one), (b, two) = tenants(before)
    parts = [before.ask(a, m.CheckOut(one.number)).part for _ in range(2)]
    checks_in(before, a, one, parts[0])
    assert before.ask(b, m.CheckOut(two.number)).part == 2
    assert isinstance(
        before.ask(b, m.Done("train", two.number, 7, 1.0, {"loss": 1.0, "examples": 1.0})), m.Ok
    )
    world = takes_over(before, make_job())
    # The lost master had noted that the second one is done, and not answered.
    come_back(world, (one, parts, parts[1:]), (two, [2], [2]))
    assert world.core.reported_phase == "training"
    schedule = world.core.job_controller.job.schedule
    assert schedule.chunks.extent["parts"] == [2, 0]
    assert schedule.records.is_done(two.number)
    assert schedule.progress == pytest.approx(1 / 4 + 1 / 16)
    assert world.ask(2, m.CheckOut(one.number)).part == 2
    assert isinstance(world.ask(3, m.Done("train", two.number, 7, 1.0, {})), m.Ok)  # once more
    assert world.core.job_controller.job.metrics.units == 7


def without_cuts(world):
    """A power cut has taken how chunks are cut from the journal."""
    facts = world.facts
    world.facts = lambda: [fact for fact in facts() if fact.kind != "chunk"]
    return world


@pytest.mark.parametrize("told_first", [False, True])
def test_cut_that_only_workers_know_is_noted_before_what_is_done_in_it(make_job, told_first):
    before = World(make_job())
    (_, one), (_, two) = tenants(before)
    second = takes_over(without_cuts(before), make_job())
    partition = {"number": two.number, "parts": 2, "had": [], "holds": []}
    done = {"number": one.number, "units": 7, "seconds": 1.0, "metrics": {}}
    holds = [{**partition, "number": one.number}]
    # Worker 2 has ended its partition, in the eyes of the lost master or of this one; 3 trains.
    state = (
        {"reported": [done]}
        if told_first
        else {"held": [["train", one.number]], "partitions": holds}
    )
    rejoin(second, 1)
    rejoin(second, 2, **state)
    rejoin(second, 3, held=[["train", two.number]], partitions=[partition])
    second.tick(times=4)
    if not told_first:
        second.ask(2, m.Done("train", one.number, 7, 1.0, {}))
    kinds = [fact.kind for fact in second.facts() if fact.kind in ("chunk", "done")]
    assert kinds[-2:] == ["chunk", "done"]
    assert second.core.job_controller.job.metrics.units == 7
    noted = [*before.facts(), *second.facts()]
    second.facts, second.services.base = lambda: noted, before.services.base
    third = takes_over(second, make_job())
    rejoin(third, 1)
    rejoin(third, 2)
    rejoin(third, 3, held=[["train", two.number]], partitions=[partition])
    third.tick(times=4)
    again = third.core.job_controller.job
    assert (again.schedule.chunks.extent["parts"][0], again.metrics.units) == (2, 7)
    assert again.schedule.records.is_done(one.number)


def test_replay_that_has_no_place_for_what_is_done_says_so(make_job, caplog):
    before = World(make_job())
    (a, one), _ = tenants(before)
    before.ask(a, m.Done("train", one.number, 7, 1.0, {}))
    world = takes_over(without_cuts(before), make_job())
    for member in (1, 2, 3):
        rejoin(world, member)
    world.tick(times=4)
    assert (
        f"partition {one.number} is reported as done, but how its chunk was cut is unknown"
        in caplog.text
    )


def test_worker_that_reports_parts_of_another_is_not_taken_back(make_job):
    before = World(make_job())
    (_, one), (_, two) = tenants(before)
    world = takes_over(before, make_job())
    come_back(world, (one, [1], [1]), (two, [1], [1]))
    broken = [e.error for e in world.effects if isinstance(e, effects.Broken)]
    assert [str(error) for error in broken] == ["output partition 1 is checked out already"]


def test_checkpoint_has_the_rotation_and_a_job_goes_on_with_it(make_job):
    job = make_job()
    world = World(job)
    (a, one), (b, two) = tenants(world)
    world.ask(a, m.Done("train", one.number, 30, 2.0, {"loss": 9.0, "examples": 3.0}))
    world.ask(b, m.CheckOut(two.number))
    saved = unpack(pack(JobRecord(job).dump(world.now)))
    extent = {"open": 0, "closed_partitions": 0, "parts_max": 2, "parts": [2, 0], "sizes": [[], []]}
    metrics = saved.figures["rotation"].pop("metrics")
    rotation = asdict(Rotation(chunks=2, most_parts=8))
    assert saved.figures["rotation"] == {**rotation, "extent": extent}
    saved.figures["rotation"]["metrics"] = metrics
    assert saved.units == 30
    assert job.schedule.plan.share(saved.done) == pytest.approx(1 / 4)
    again = make_job(chunks="1")  # what the class says now does not matter
    prepare(again, 1)
    assert plan_training(again, 1, saved) == Rotation(2, 8)
    begin_training(again, 0.0, [9], saved)
    assert again.schedule.chunks.extent == extent
    assert again.metrics.units == 30
    assert again.metrics.loss_by_epoch() == [3.0]
    first = [again.lease(9, 0.0) for _ in range(2)]
    assert [(lease.terms.chunk, lease.terms.chunk_index) for lease in first] == [(0, 0), (0, 1)]
    assert not any(lease.first for lease in first)


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_checkpoint_goes_on_for_more_epochs_or_fewer(make_job, epochs):
    job = make_job(epochs="2")
    world = World(job)
    (a, one), (b, two) = tenants(world)
    for peer, lease, units in ((a, one, 30), (b, two, 12)):
        world.ask(peer, m.Done("train", lease.number, units, 2.0, {"loss": 9.0, "examples": 3.0}))
    saved = unpack(pack(JobRecord(job).dump(world.now)))
    again = make_job(epochs=str(epochs))
    prepare(again, 2)
    begin_training(again, 0.0, [8, 9], saved)
    schedule = again.schedule
    assert schedule.records.done().tolist() == []  # the chunk is closed
    assert schedule.finished == 2 + TEXT_BLOCKS // 2
    assert (again.metrics.units, again.metrics.loss_by_epoch()[0]) == (42, 3.0)
    assert schedule.progress == pytest.approx(1 / 2 / epochs)
    assert (schedule.chunks.extent["open"], schedule.epoch) == (1, 0)
    assert again.lease(8, 0.0).terms.chunk == 1


def test_checkpoint_of_more_epochs_than_there_are_now_is_over(make_job):
    job = make_job(epochs="2")
    world = World(job)
    for at, (peer, lease) in enumerate(tenants(world) * 3):
        if at > 1:
            lease = deals(world, peer)
        world.ask(peer, m.Done("train", lease.number, 5, 1.0, ANSWER))
    assert job.schedule.chunks.extent["open"] == 3
    saved = unpack(pack(JobRecord(job).dump(world.now)))
    again = make_job(epochs="1")
    prepare(again, 2)
    begin_training(again, 0.0, [8, 9], saved)
    assert again.schedule.over
    assert again.schedule.progress == 1.0


def test_checkpoint_of_a_rotation_does_not_go_on_by_steps(make_job):
    job = make_job()
    World(job).forms()
    saved = unpack(pack(JobRecord(job).dump(0.0)))
    again = make_job(max_steps="3")
    prepare(again, 2)
    with pytest.raises(ConfigError, match="max_steps: the checkpoint is of a training by rotation"):
        plan_training(again, 2, saved)


def test_checkpoint_of_ordinary_blocks_goes_on_with_those(make_job):
    job = make_job()
    prepare(job, 1)
    begin_training(job, 0.0, [1])
    saved = unpack(pack(JobRecord(job).dump(0.0)))
    assert "rotation" not in saved.figures
    assert plan_training(job, 2, saved) is None


# --- what servers have lost ----------------------------------------------------------------------


def test_block_that_servers_have_lost_is_leased_to_the_worker_that_missed_it(make_job, caplog):
    world = World(job := make_job())
    _, first, _ = world.forms()
    lease = world.ask(first, m.Lease("train"))
    world.ask(first, m.Done("train", lease.number, 0, 0.1, {"bad_lines": 3}))
    world.note(first, m.Durable([lease.number]))
    one, two = deals(world, first), deals(world, 3)
    finished, bad = job.schedule.finished, job.metrics.bad_lines
    again = world.ask(first, m.Lease("train", again=[one.number, lease.terms.chunk_index]))
    assert (again.number, again.terms) == (lease.number, lease.terms)
    assert f"encodes block {lease.terms.chunk_index} of chunk 0 once more" in caplog.text
    assert (job.schedule.finished, job.metrics.bad_lines) == (finished - 1, bad - 3)
    # Others that miss it look again later, and no partition of the chunk is leased meanwhile.
    assert world.ask(3, m.Lease("train", again=[two.number, lease.terms.chunk_index])).number == -1
    assert isinstance(
        world.ask(first, m.Done("train", lease.number, 0, 0.1, {"bad_lines": 3})), m.Ok
    )
    assert (job.schedule.finished, job.metrics.bad_lines) == (finished, bad)
    assert job.schedule.chunks.at(0).unencoded == 0
    for wrong in ([two.number, 0], [one.number, 99], [lease.number, 0]):
        assert isinstance(world.ask(first, m.Lease("train", again=wrong)), ClusterError)


def test_block_that_is_encoded_again_goes_to_others_where_its_worker_is_lost(make_job):
    world = World(job := make_job())
    (a, one), (b, two) = tenants(world)
    lost = world.ask(a, m.Lease("train", again=[one.number, 0]))
    world.obey = False
    world.handle(events.Gone(a, "connection closed"))
    assert world.ask(b, m.Lease("train", again=[two.number, 0])).number == -1  # not fenced yet
    world.tick(times=3)
    fence, world.obey = fence_of(world), True
    world.handle(events.Answered(fence.number, world.does(fence.message)))
    assert world.ask(b, m.Lease("train", again=[two.number, 0])).number == lost.number
    world.ask(b, m.Done("train", lost.number, 0, 0.1, {}))
    world.ask(b, m.Done("train", two.number, 7, 1.0, {}))
    assert deals(world, b).number == one.number
    assert job.schedule.chunks.at(0).unencoded == 0


# --- at a worker ---------------------------------------------------------------------------------


class Master:
    """Answers what checkouts ask."""

    def __init__(self, *answers):
        self.answers, self.notes = list(answers), []

    def ask(self, message, limit_s, heard):
        assert message == m.CheckOut(9)
        answer = self.answers.pop(0)
        heard(answer)
        return answer


def leased(number, had=()):
    """A partition of two, one three times as large as the other."""
    partition = Partition(0, 1, 0, 2, 4, durable=tuple(had), sizes=(3, 1))
    return m.Leased(number, progress=(0.0, 1.0), terms=partition)


def outputs_of(*answers):
    master, stand = Master(*answers), ResumeState()
    stand.leased("train", leased(9))
    checkouts = LeaseCheckouts(9, master.ask, master.notes.append, stand)
    checkouts.begin()
    return checkouts, master, stand


def test_checkouts_check_out_until_all_are_had_and_check_in_with_figures():
    checkouts, master, stand = outputs_of(m.CheckedOut(2), m.CheckedOut(0), m.CheckedOut(-1))
    assert [checkouts.check_out(), checkouts.check_out()] == [2, 0]
    assert stand.to_dict()["partitions"] == [
        {"number": 9, "parts": 2, "sizes": [3, 1], "had": [0, 2], "holds": [0, 2]}
    ]
    checkouts.check_in(2, {"units": 4, "loss": 1.5, "examples": 3})
    (note,) = master.notes
    assert (note.number, note.part, note.units, note.metrics) == (
        9, 2, 4, {"loss": 1.5, "examples": 3.0},
    )  # fmt: skip
    assert note.seconds >= 0
    assert not note.durable
    assert stand.to_dict()["partitions"][0]["holds"] == [0]
    checkouts.check_in(0, {"units": 4}, durable=True)
    assert master.notes[-1].durable
    assert checkouts.check_out() is None
    assert checkouts.check_out() is None  # without asking again
    assert not checkouts.cut


def test_worker_that_goes_on_with_a_partition_tells_a_master_what_was_durable_before():
    stand = ResumeState()
    stand.leased("train", leased(9, [0, 3]))
    stand.checked_out(9, 1)
    assert stand.to_dict()["partitions"] == [
        {"number": 9, "parts": 2, "sizes": [3, 1], "had": [0, 1, 3], "holds": [1]}
    ]


def test_checkouts_that_end_early_are_cut():
    checkouts, _, _ = outputs_of(m.CheckedOut(2), m.CheckedOut(-1, ends=True))
    assert checkouts.check_out() == 2
    assert checkouts.check_out() is None
    assert checkouts.cut


def test_lost_block_is_encoded_by_its_worker_or_looked_at_again_and_not_for_ever(monkeypatch):
    asked, answers = [], [False, True, False]
    monkeypatch.setattr(checkouts_module, "LOOK_S", 0.0)

    def encode_again(number, index):
        asked.append((number, index))
        return answers.pop(0) if answers else True

    checkouts = LeaseCheckouts(7, None, None, ResumeState(), encode_again)
    for _ in range(3 + checkouts_module.AGAIN_MAX - 1):
        checkouts.encode_again(2)
    with pytest.raises(ClusterError, match="block 2 of the chunk was encoded 8 times, and servers"):
        checkouts.encode_again(2)
    assert set(asked) == {(7, 2)}
    monkeypatch.setattr(checkouts_module, "AGAIN_S", -1.0)
    answers[:] = [False]
    with pytest.raises(ClusterError, match="servers have lost block 3 of the chunk, and no worker"):
        checkouts.encode_again(3)


def test_checkouts_refuse_misuse():
    checkouts, master, stand = outputs_of(m.CheckedOut(2))
    with pytest.raises(MisuseError, match="does not hold that part"):
        checkouts.check_in(2, {"units": 1})
    assert checkouts.check_out() == 2
    with pytest.raises(ValueError, match="units"):
        checkouts.check_in(2, {"loss": 1.0})
    assert stand.to_dict()["partitions"][0]["holds"] == [2]
    checkouts.check_in(2, {"units": 1})
    with pytest.raises(MisuseError, match="does not hold that part"):
        checkouts.check_in(2, {"units": 1})
    assert len(master.notes) == 1
    checkouts.end()
    with pytest.raises(MisuseError, match="outside train"):
        checkouts.check_out()
    none = NoCheckouts()
    assert none.check_out() is None
    with pytest.raises(MisuseError, match="no partition"):
        none.check_in(0, {})


def test_state_of_a_worker_is_whole_whatever_its_threads_do():
    stand, stop, seen = ResumeState(), threading.Event(), []

    def look():
        while not stop.is_set():
            seen.append(stand.to_dict())

    def encode(base):
        for number in range(base, base + 500):
            stand.leased("train", leased(number))
            stand.checked_out(number, 1)
            assert stand.checked_in(number, 1)
            stand.reported(m.Done("train", number, 1, 1.0, {}))
            stand.durable(number)

    threads = [threading.Thread(target=encode, args=(base,)) for base in (0, 1000, 2000)]
    looker = threading.Thread(target=look)
    for thread in (*threads, looker):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    looker.join()
    last = stand.to_dict()
    assert (last["held"], last["partitions"], last["not_durable"]) == ([], [], [])
    assert len(last["reported"]) == 256
    for state in seen:
        held = {number for _, number in state["held"]}
        assert {checkout["number"] for checkout in state["partitions"]} == held
        for checkout in state["partitions"]:
            assert set(checkout["holds"]) <= set(checkout["had"])
    stand.start_job()
    stand.leased("train", m.Leased(1, progress=(0.0, 1.0)))
    assert stand.to_dict()["partitions"] == []
    assert not stand.checked_in(1, 0)
    stand.checked_out(1, 0)  # of a partition that has ended
