"""`MasterCore`: a survey, whose parts are merged once."""

from master_world import World

from snailps.master import effects, events
from snailps.master.job.survey import PART_BYTES, PART_BYTES_MAX, PARTS_BYTES_MAX, SurveyMerge
from snailps.master.phases import ClusterPhase
from snailps.transport import messages as m
from snailps.transport.control.encoded import Encoded


def counts(world, peer, part=b"part"):
    """A worker counts one block; the call of its `Done`, None without a block."""
    lease = world.ask(peer, m.Lease("survey"))
    if lease is None or lease.number < 0:
        return None
    return world.call(peer, m.Done("survey", lease.number, 5, 0.1, {}, part))


def leases(world, peer, held=0):
    """The answer to a worker that holds such a part of the survey; None: it waits."""
    return world.ask(peer, m.Lease("survey", held=held))


def test_part_of_several_blocks_is_merged_once_and_that_of_a_lost_worker_counted_again(make_job):
    job = make_job(worker_class="cluster_models:Surveyed")
    world = World(job)
    _, lost, other = world.forms()
    assert [leases(world, lost).number, leases(world, lost, 9).number] == [0, 1]
    assert job.progress(world.now) > 0
    world.handle(events.Gone(lost, "killed"))
    assert (job.schedule.records.leased, job.progress(world.now)) == (0, 0.0)
    numbers = [leases(world, other).number]
    while (lease := leases(world, other, 9)).number >= 0:
        numbers.append(lease.number)
    assert sorted(numbers) == list(range(job.schedule.size))
    assert job.progress(world.now) == 1.0
    world.ask(other, m.Done("survey", numbers[0], 5, 0.1, {}, b"part", numbers[1:]))
    world.tick()
    assert job.survey.summary == b"part"
    assert world.core.reported_phase == "training"


def test_driver_reads_settings_and_survey_of_the_job_at_work_once_that_is_merged(make_job):
    job = make_job(worker_class="cluster_models:Surveyed")
    world = World(job)
    _, worker, _ = world.forms()
    driver = world.join("driver")
    asked = world.ask(driver, m.Ask("job")).data
    assert asked["settings"]["worker_class"] == "cluster_models:Surveyed"
    assert world.ask(driver, m.Summarise(asked["job"])) == m.Summary(b"")
    numbers = []
    while (lease := leases(world, worker, 9)).number >= 0:
        numbers.append(lease.number)
    world.ask(worker, m.Done("survey", numbers[0], 5, 0.1, {}, b"part", numbers[1:]))
    world.tick()
    merged = world.ask(driver, m.Summarise(asked["job"]))
    assert merged.body == Encoded(m.Summary(b"part")).body
    assert "no job 9" in str(world.ask(driver, m.Summarise(9)))


def test_session_names_its_job_until_the_tables_are_gone(make_job):
    world = World(session=True)
    _, *workers = world.forms()
    driver = world.join("driver")
    assert world.ask(driver, m.Ask("job")).data == {"job": 0, "settings": {}}
    for number, epochs in ((1, "5"), (2, "2")):
        world.ask(driver, m.Submit({**make_job.values, "epochs": epochs}))
        world.tick()
        for _ in range(2):  # at work, and ended
            asked = world.ask(driver, m.Ask("job")).data
            assert (asked["job"], asked["settings"]["epochs"]) == (number, epochs)
            world.finishes(workers)


def test_block_that_came_back_is_counted_by_a_worker_that_waits_for_its_turn(make_job):
    job = make_job(worker_class="cluster_models:Surveyed")
    world = World(job)
    _, lost, other = world.forms()
    first = leases(world, lost).number
    numbers = [leases(world, other).number]
    while len(numbers) < job.schedule.size - 1:
        numbers.append(leases(world, other, 9).number)
    assert leases(world, other, 9).number == -1
    assert isinstance(
        world.ask(other, m.Done("survey", numbers[0], 5, 0.1, {}, b"part", numbers[1:])), m.Ok
    )
    waiting = world.call(other, m.Lease("survey"))
    assert waiting not in world.answers
    world.handle(events.Gone(lost, "killed"))
    assert world.answers[waiting].number == first


def test_parts_that_are_large_travel_in_turns(make_job):
    job = make_job(worker_class="cluster_models:Surveyed")
    world = World(job)
    _, one, other = world.forms()
    number = leases(world, one).number
    leases(world, other)
    assert leases(world, one, PART_BYTES_MAX).number == -1
    waiting = world.call(other, m.Lease("survey", held=PART_BYTES_MAX))
    assert waiting not in world.answers  # its part is as large as one may be
    assert world.core.members.all[other].waits == "the master to merge the survey"
    world.ask(one, m.Done("survey", number, 5, 0.1, {}, b"part"))
    assert world.answers[waiting].number == -1


def test_worker_with_a_part_gets_blocks_until_it_has_its_turn(make_job):
    job = make_job(worker_class="cluster_models:Surveyed")
    world = World(job)
    _, one, other = world.forms()
    leases(world, one), leases(world, other)
    assert leases(world, one, PARTS_BYTES_MAX).number == -1
    assert leases(world, other, PART_BYTES).number == 2
    world.handle(events.Gone(one, "killed"))  # its turn ends with it
    assert leases(world, other, PART_BYTES).number == -1


def test_part_with_a_block_of_another_worker_is_refused(make_job):
    job = make_job(worker_class="cluster_models:Surveyed")
    world = World(job)
    _, one, other = world.forms()
    mine, theirs = leases(world, one).number, leases(world, other).number
    for numbers in ([theirs], [mine]):
        answer = world.ask(one, m.Done("survey", mine, 5, 0.1, {}, b"part", numbers))
        assert "are leased to worker 2" in str(answer)
        assert job.schedule.records.leased == 2


class Choosy:
    """A surveyor with a bug."""

    def add(self, part):
        if part == b"bad":
            raise KeyError("a bug of the model's")

    def result(self):
        return b""


def test_part_that_the_surveyor_fails_at_breaks_its_sender_and_is_counted_again(make_job):
    job = make_job(worker_class="cluster_models:Surveyed")
    job.survey.merge = SurveyMerge(Choosy(), in_order=False)
    world = World(job, expected_node_num=6)
    peers = [world.join(role) for role in ("server", *["worker"] * 5)]
    world.tick(times=4)
    for worker in peers[1:4]:
        assert world.core.phase is ClusterPhase.FORMED
        counts(world, worker, b"bad")
        broken = [e for e in world.effects if isinstance(e, effects.Broken)]
        assert (broken[-1].peer, type(broken[-1].error)) == (worker, KeyError)
        world.handle(events.Gone(worker, "broken"))
    assert "block 0 (" in world.core.lifecycle.verdict
    assert "has cost 3 workers" in world.core.lifecycle.verdict


def test_clocks_are_noted_as_set_by_the_first_block_of_the_training_not_of_the_survey(make_job):
    """A master that takes over sets them again otherwise, and drops what the shards have."""
    world = World(
        make_job(worker_class="cluster_models:Surveyed", consistency="bsp", micro_batches="1")
    )
    _, worker, _ = world.forms()
    while (lease := world.ask(worker, m.Lease("survey"))).number >= 0:
        world.ask(worker, m.Done("survey", lease.number, 5, 0.1, {}, b"."))
    world.tick()
    assert "clocks" not in [fact.kind for fact in world.facts()]
    assert world.trains(worker)
    kinds = [fact.kind for fact in world.facts()]
    assert kinds.index("train") < kinds.index("clocks")
