"""`MasterCore`: what a master that takes over finds noted, and what it does again."""

import pytest
from master_world import World, rejoin, takes_over
from without import is_there

from snailps.master import effects, events
from snailps.master.job.controller import SPENT_S
from snailps.master.job.record import JobRecord
from snailps.master.job.state import pack
from snailps.transport import messages as m
from snailps.transport.messages.terms import ChunkBlock, Partition


def test_status_of_a_master_that_takes_over_has_what_the_first_noted_and_who_came_back(make_job):
    before = World(make_job())
    before.forms()
    told = comes_back(before, make_job()).status()["events"]
    assert [(event["kind"], event["text"]) for event in told[:2]] == [
        ("joined", "the cluster is complete: 1 server and 2 workers"),  # as the first master noted
        ("master", "the master was started again; 1 server and 2 workers came back to it"),
    ]


def comes_back(before, job, **state):
    """The master that takes over from `before`, with all members back; worker 2 says this."""
    world = takes_over(before, job)
    world.effects[:0] = [e for e in before.effects if isinstance(e, effects.Journaled)]
    world.services.base = before.services.base
    rejoin(world, 1)
    rejoin(world, 2, **state)
    rejoin(world, 3)
    world.tick(times=4)
    assert world.core.reported_phase == "training"
    return world


def is_durable(world, number):
    """Whether a block that has been reported counts in a checkpoint."""
    records = world.core.job_controller.job.schedule.records
    assert records.is_done(number)
    return number not in records.undurable()


def test_block_that_was_noted_as_done_and_not_answered_is_not_taken_for_durable(make_job):
    """Its pushes may be under way: a checkpoint must not have it without them."""
    before = World(make_job())
    _, first, _ = before.forms()
    number = before.ask(first, m.Lease("train")).number
    figures = {"loss": 1.0, "examples": 1.0}
    before.ask(first, m.Done("train", number, 5, 0.1, figures))  # and its answer is lost
    world = comes_back(before, make_job(), held=[["train", number]])
    assert not is_durable(world, number)
    world.ask(2, m.Done("train", number, 5, 0.1, figures))
    assert not is_durable(world, number)
    world.note(2, m.Durable([number]))
    assert is_durable(world, number)
    assert is_durable(comes_back(world, make_job()), number)


def torn(world, kind):
    """Facts of this kind, and those behind the first of them, were lost with the machine."""
    kinds = [getattr(effect, "kind", "") for effect in world.effects]
    del world.effects[kinds.index(kind) :]


@pytest.mark.parametrize("key", ["held", "reported", "not_durable"])
def test_clocks_that_the_journal_has_lost_are_not_set_again_where_a_worker_has_trained(
    make_job, key
):
    """What shards have staged of the first clock would be dropped, and never come again."""
    before = World(make_job(consistency="bsp", micro_batches="2"))
    _, first, _ = before.forms()
    number = before.ask(first, m.Lease("train")).number
    torn(before, "clocks")
    done = m.Done("train", number, 5, 0.1, {"loss": 1.0, "examples": 1.0}).result()
    states = {"held": [["train", number]], "reported": [done], "not_durable": [number]}
    world = comes_back(before, make_job(consistency="bsp", micro_batches="2"), **{key: states[key]})
    assert not [e for e in world.effects if isinstance(getattr(e, "message", None), m.SetClock)]
    assert world.trains(3)


@pytest.mark.parametrize(
    "settings",
    [
        {"consistency": "ssp", "staleness": "1"},
        {"consistency": "bsp", "micro_batches": "2"},
        *([{"worker_class": "cluster_models:Rotating"}] if is_there("rotation") else ()),
    ],
)
def test_worker_whose_loss_the_journal_has_in_part_keeps_nothing_of_the_training(
    make_job, settings
):
    """Its blocks were its own: no other would ever get them."""
    before = World(make_job(**settings))
    _, _, lost = before.forms()
    while isinstance((lease := before.ask(lost, m.Lease("train"))).terms, ChunkBlock):
        before.ask(lost, m.Done("train", lease.number, 5, 0.1, {}))
    before.handle(events.Gone(lost, "connection closed"))
    torn(before, "retire")
    assert "gone" in [fact.kind for fact in before.facts()]
    world = takes_over(before, make_job(**settings))
    rejoin(world, 1)
    rejoin(world, 2)
    world.tick(times=4)
    assert world.core.reported_phase == "training"
    while trains_any(world, 2):
        pass
    assert world.core.job_controller.job.schedule.over


def trains_any(world, peer):
    """A worker trains a block, or a partition with all that it checks out."""
    lease = world.ask(peer, m.Lease("train"))
    if lease is None or lease.number < 0:
        return False
    while isinstance(lease.terms, Partition):
        checked_out = world.ask(peer, m.CheckOut(lease.number))
        if checked_out.part < 0:
            break
        world.note(peer, m.CheckIn(lease.number, checked_out.part, 5, 0.1, {}, True))
    world.ask(peer, m.Done("train", lease.number, 5, 0.1, {"loss": 1.0, "examples": 1.0}))
    world.note(peer, m.Durable([lease.number]))
    return True


def test_worker_whose_start_the_journal_has_lost_gets_blocks_of_its_own(make_job):
    settings = {"consistency": "ssp", "staleness": "1"}
    before = World(make_job(**settings))
    before.forms()
    late = before.join("worker")
    before.tick()
    number = before.ask(late, m.Lease("train")).number
    before.effects = [e for e in before.effects if getattr(e, "data", {}) != {"node": late}]
    world = takes_over(before, make_job(**settings))
    rejoin(world, 1)
    rejoin(world, 2)
    rejoin(world, 3)
    rejoin(world, 4, held=[["train", number]])
    world.tick(times=4)
    world.ask(4, m.Done("train", number, 5, 0.1, {"loss": 1.0, "examples": 1.0}))
    assert world.ask(4, m.Lease("train")).number >= 0


def elapsed(world):
    return world.core.job_controller.job.clock.elapsed_s(world.now)


def works(world, seconds):
    """So long, second by second, with everybody there."""
    for _ in range(seconds):
        world.handle(events.Heartbeats({1: 0.1, 2: 0.1, 3: 0.1}))
        world.tick(seconds=1.0)


def test_time_of_a_training_outlives_masters_and_lacks_their_outages(make_job):
    world = World(make_job(max_seconds="100"))
    world.forms()
    works(world, 40)
    before = elapsed(world)
    for _ in range(3):
        world = comes_back(world, make_job(max_seconds="100"))
        assert before - SPENT_S - 1 <= elapsed(world) <= before + 1
        works(world, 10)
        before = elapsed(world)
    assert 50 <= before <= 71


@pytest.mark.parametrize("noted", [False, True])
def test_time_before_a_checkpoint_outlives_a_master(make_job, noted):
    """It is in the base of the training, and in what is noted later."""
    first = World(make_job(max_seconds="100"))
    first.forms()
    works(first, 50)
    first.services.base = pack(JobRecord(first.core.job_controller.job).dump(first.now))
    first.effects = [e for e in first.effects if getattr(e, "kind", "") != "spent"]
    if noted:
        works(first, 12)
    second = comes_back(first, make_job(max_seconds="100"))
    assert abs(elapsed(second) - (60 if noted else 50)) < SPENT_S
