"""`MasterCore` by events alone, without process, socket or thread: what it wants done."""

import pytest
from cluster_models import COUNTER, write_numbers
from master_world import Files, World, rejoin, takes_over

from snailps.api.tables import Table
from snailps.config import JobSettings, MasterSettings, RawConfig
from snailps.errors import ClusterError, ConnectionLost, ProtocolError, RemoteError
from snailps.master import effects, events
from snailps.master.job.controller import SPENT_S
from snailps.master.job.ended_jobs import ENDED_MAX
from snailps.master.job.job import Job
from snailps.master.job.state import pack
from snailps.master.job.survey import PART_BYTES, PART_BYTES_MAX, PARTS_BYTES_MAX, SurveyMerge
from snailps.master.leases.late_workers import DROP_S
from snailps.master.phases import CLUSTER, JOB, ClusterPhase, JobPhase, cluster_step, job_step
from snailps.master.services import InspectionResult, Opened
from snailps.node.effects import WorkDone
from snailps.node.limits import ORDER_S
from snailps.transport import messages as m
from snailps.transport.control.encoded import Encoded
from snailps.transport.messages.terms import ChunkBlock, Partition


@pytest.fixture
def make_job(tmp_path):
    write_numbers(tmp_path / "in.txt", 100)

    def make(**settings):
        raw = RawConfig.from_mapping({**values, **settings}, "test")
        return Job(raw, (JobSettings, MasterSettings), 100.0)

    values = {"worker_class": COUNTER, "input": str(tmp_path / "in.txt"), "block_bytes": "50"}
    make.values = values
    return make


# --- forming -------------------------------------------------------------------------------------


def test_nobody_comes_in_time_and_the_master_says_who_lacks():
    world = World(master_time_out=60.0)
    world.join("server")
    world.tick(seconds=61.0)
    assert world.core.phase is ClusterPhase.STOPPING
    assert "waited 60 s (master_time_out) for 2 more of 3 nodes" in world.core.lifecycle.verdict


def test_worker_that_is_lost_while_the_cluster_forms_is_replaced(make_job):
    world = World(make_job())
    server, lost = world.join("server"), world.join("worker")
    world.handle(events.Gone(lost, "connection closed"))
    others = [world.join("worker"), world.join("worker")]
    world.tick(times=4)
    assert world.core.phase is ClusterPhase.FORMED
    assert all(world.sent(worker, m.Start) for worker in others)
    assert not world.sent(server, m.Stop)


# --- joining, losses -----------------------------------------------------------------------------


def test_server_that_does_not_obey_is_expelled_but_not_for_a_stop_of_all_processes(make_job):
    """Ctrl-Z in a terminal stops all of a cluster on one machine."""
    world = World(make_job(), expected_node_num=4, expected_servers=2)
    world.obey, answered = False, set()

    def pass_(seconds):
        pass_time = world.stands_still if seconds > 60 else world.tick
        pass_time(seconds)
        orders = [effect for effect in world.effects if isinstance(effect, effects.Order)]
        for order in orders:
            if order.number not in answered and not isinstance(order.message, m.HostStandby):
                answered.add(order.number)
                world.handle(events.Answered(order.number, world.does(order.message)))

    servers = [world.join("server"), world.join("server")]
    world.join("worker"), world.join("worker")
    for seconds in (*[0.05] * 8, 3600.0, *[1.0] * (int(ORDER_S) - 3)):
        pass_(seconds)
    assert not any(world.sent(server, m.Stop) for server in servers)
    for _ in range(4):
        pass_(1.0)
    told = [stop.text for server in servers for stop in world.sent(server, m.Stop)]
    assert "it has not answered HostStandby for 30 s" in told[0]


def test_server_lost_without_standby_ends_the_job_with_the_whole_reason(make_job):
    """Lines of lives are cut before it."""
    world = World(make_job(), replication="none")
    server, *workers = world.forms()
    world.handle(events.Gone(server, "connection closed"))
    verdict = world.core.lifecycle.verdict
    assert "connection closed. Its own log may say more; replication is 'none'" in verdict
    assert {world.sent(worker, m.Stop)[0].text for worker in workers} == {verdict}
    (said,) = [e for e in world.effects if isinstance(e, effects.Say) and "is lost" in e.text]
    assert said.reported  # the display shows the event of the loss: the line is not shown twice


def test_order_to_a_server_that_is_lost_is_answered_by_the_loss(make_job):
    """`Answered` and `Gone` come in that order, and the first decides nothing."""
    world = World(make_job())
    server, *_ = world.forms()
    world.obey = False
    world.tick(seconds=2.0)  # it asks for statistics
    order = [e for e in world.effects if isinstance(e, effects.Order) and e.peer == server][-1]
    world.handle(events.Answered(order.number, ConnectionLost("closed")))
    assert world.core.phase is ClusterPhase.FORMED


# --- the end -------------------------------------------------------------------------------------


def test_signal_ends_the_training_early_and_a_second_one_at_once(make_job):
    world = World(make_job())
    server, *workers = world.forms()
    world.handle(events.Signal())
    world.tick()
    assert world.core.job_controller.interrupted
    assert world.ask(workers[0], m.Lease("train")).number == -1
    world.handle(events.Signal())
    world.tick()
    assert (world.core.phase, world.core.lifecycle.code) == (ClusterPhase.STOPPING, 130)
    assert "nothing was saved" in world.sent(server, m.Stop)[0].text


@pytest.mark.parametrize("leaves", [False, True])
def test_job_without_a_worker_ends_where_none_comes(make_job, leaves):
    world = World(make_job(), master_time_out=10.0)
    _, *workers = world.forms()
    for worker in workers:
        if leaves:
            world.note(worker, m.Leaving("SIGTERM"))
            world.note(worker, m.Finished({}))
            world.note(worker, m.Bye({}))
        world.handle(events.Gone(worker, "connection closed"))
    world.tick()
    assert world.core.phase is ClusterPhase.FORMED
    world.tick(seconds=11.0)
    assert world.core.phase is ClusterPhase.STOPPING
    assert "every worker has left" in world.core.lifecycle.verdict
    assert "within 10 s" in world.core.lifecycle.verdict


def test_job_whose_last_worker_is_lost_while_its_survey_is_merged_waits_for_another(make_job):
    world = World(make_job(worker_class="cluster_models:Surveyed"))
    _, *workers = world.forms()
    world.handle(events.Gone(workers[1], "killed"))
    while (lease := world.ask(workers[0], m.Lease("survey"))).number >= 0:
        world.ask(workers[0], m.Done("survey", lease.number, 5, 0.1, {}, b"."))
    world.slow = True
    world.tick()  # the end of the survey is under way
    world.handle(events.Gone(workers[0], "killed"))
    assert world.core.phase is ClusterPhase.FORMED
    world.slow = False
    world.work()
    world.tick()
    other = world.join("worker")
    world.tick()
    assert world.sent(other, m.Start)
    while world.trains(other):
        pass
    assert world.core.job_controller.job.schedule.over


def test_shard_without_a_standby_is_not_behind(make_job):
    world = World(make_job())
    world.forms()
    (row,) = world.report.shards()
    member = world.core.members.all[row["primary"]]
    replica = {"state": "lost", "seeded": 1.0, "lag_bytes": 700_000, "lag_s": 4.7}
    member.reports.stats = {"shards": [{"shard": 0, "pulls": 0, "pushes": 0, "replica": replica}]}
    (row,) = world.report.shards()
    assert (row["standby"], row["lag_bytes"], row["lag_s"]) == (0, 0, 0.0)


def test_rows_of_a_shard_count_where_its_primary_is(make_job):
    """A server that had the shard may have reported it last."""
    world = World(make_job(), expected_servers=2)
    for role in ("server", "server", "worker"):
        world.join(role)
    world.tick(times=4)
    (row, *_) = world.report.shards()
    table = {"name": "t", "rows": 5}
    for member in world.core.members.nodes("server"):
        shard = {"shard": row["shard"], "rows": 5, "tables": {"0": table}}
        member.reports.stats = {"shards": [shard]}
    assert world.core.shard_reports.sum("rows") == 5
    (found,) = world.report.tables()
    assert found["rows"] == 5
    # The primary was the standby when it reported last, and the server before it is the standby.
    for member in world.core.members.nodes("server"):
        member.reports.stats = {"shards": [], "standbys": member.reports.stats["shards"]}
    assert world.core.shard_reports.sum("rows") == 5
    # That of the server that is the primary now is of when it was filled.
    first, second = world.core.members.nodes("server")
    filled = {"shard": row["shard"], "rows": 0, "replica": {"state": "seeding", "seeded": 0.1}}
    for member in (first, second):
        whole = member.reports.stats
        member.reports.stats = {"shards": [], "standbys": [filled]}
        assert world.core.shard_reports.sum("rows") == 5
        member.reports.stats = whole


@pytest.mark.parametrize("is_lost", [False, True])
def test_run_ends_once_each_server_has_told_its_counters_or_is_lost(make_job, is_lost):
    """Else figures of a short run lack the rows of a server that is slow to answer."""
    world = World(make_job())
    server, *workers = world.forms()
    while sum(world.trains(worker) for worker in workers):
        world.tick()
    world.obey, before = False, len(world.effects)
    for worker in workers:
        world.note(worker, m.Finished({}))
    world.tick(times=3)
    assert "exported" in [fact.kind for fact in world.facts()]
    assert not world.sent(server, m.Stop)
    (node,) = [node for node in world.status()["nodes"] if node["role"] == "server"]
    assert node["state"] == "asked for its counters"
    (order,) = [
        effect
        for effect in world.effects[before:]
        if isinstance(effect, effects.Order) and effect.message == m.Ask("stats")
    ]
    (row, *_) = world.report.shards()
    shard = {"shard": row["shard"], "rows": 5, "replica": {"seeded": 0.0}}
    report = m.Report({"shards": [shard], "standbys": []})
    answer = ConnectionLost("closed") if is_lost else report
    world.handle(events.Answered(order.number, answer))
    assert world.sent(server, m.Stop)
    assert world.core.shard_reports.sum("rows") == (0 if is_lost else 5)


def test_report_of_a_server_whose_shards_have_stopped_is_not_taken_for_that_of_the_run(make_job):
    """A look around may be answered behind the order to stop, without shards that are gone."""
    world = World(make_job())
    server, *workers = world.forms()
    while sum(world.trains(worker) for worker in workers):
        world.tick()
    world.obey, before = False, len(world.effects)
    world.core.shard_reports.ask()
    for worker in workers:
        world.note(worker, m.Finished({}))
    world.tick(times=3)
    late, asked = [
        effect
        for effect in world.effects[before:]
        if isinstance(effect, effects.Order) and effect.message == m.Ask("stats")
    ]
    (row, *_) = world.report.shards()
    shard = {"shard": row["shard"], "rows": 5, "replica": {"seeded": 0.0}}
    world.handle(events.Answered(asked.number, m.Report({"shards": [shard], "standbys": []})))
    assert world.sent(server, m.Stop)
    world.handle(events.Answered(late.number, m.Report({"shards": [], "standbys": []})))
    assert world.core.shard_reports.sum("rows") == 5


def test_job_without_a_worker_that_is_interrupted_is_saved(make_job):
    world = World(make_job())
    _, *workers = world.forms()
    for worker in workers:
        world.handle(events.Gone(worker, "connection closed"))
    world.handle(events.Signal())
    world.tick(times=3)
    assert (world.core.phase, world.core.lifecycle.code) == (ClusterPhase.STOPPING, 130)
    assert "exported" in [fact.kind for fact in world.facts()]


def test_server_that_is_told_to_leave_while_the_cluster_ends_may_do_so(make_job):
    world = World(make_job())
    server = world.join("server")
    world.handle(events.Signal())
    world.tick()
    assert world.core.phase is ClusterPhase.STOPPING
    world.note(server, m.Leaving("SIGTERM"))
    assert not any(isinstance(e, effects.Broken) for e in world.effects)


def test_members_that_say_no_goodbye_are_not_waited_for_without_end(make_job):
    world = World(make_job())
    world.forms()
    for _ in range(2):
        world.handle(events.Signal())
    world.tick()
    world.tick(seconds=60.0)
    assert world.core.lifecycle.over


# --- takeover ------------------------------------------------------------------------------------


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
    world.effects[:0] = [e for e in before.effects if isinstance(e, effects.Note)]
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
        {"worker_class": "cluster_models:Rotating"},
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
    return world.core.job_controller.job.elapsed_s(world.now)


def works(world, seconds):
    """So long, second by second, with everybody there."""
    for _ in range(seconds):
        world.handle(events.Heartbeats({1: 0.1, 2: 0.1, 3: 0.1}))
        world.tick(seconds=1.0)


def test_round_whose_only_worker_was_lost_with_the_master_begins_anew_at_the_shards():
    """They may have its seal at some places only."""
    values = {"worker_class": "clock_models:Mean", "fraction": "0.34"}

    def job():
        return Job(RawConfig.from_mapping(values, "test"), (JobSettings, MasterSettings), 100.0)

    world = World(job())
    _, *workers = world.forms()
    drawn = next(one for one in workers if world.ask(one, m.Lease("train")) is not None)
    (other,) = {*workers} - {drawn}
    after = takes_over(world, job())
    for number in (1, other):
        rejoin(after, number)
    for _ in range(50):
        after.tick()
        after.handle(events.Heartbeats({1: 0.1, other: 0.1}))
        after.now += 1.0
    assert after.core.reported_phase == "training"
    orders = [effect.message for effect in after.effects if isinstance(effect, effects.Order)]
    assert [one.clock for one in orders if isinstance(one, m.SetClock)] == [0]
    assert after.ask(other, m.Lease("train")).terms.slot == 0


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
    first.services.base = pack(first.core.job_controller.job.dump(first.now))
    first.effects = [e for e in first.effects if getattr(e, "kind", "") != "spent"]
    if noted:
        works(first, 12)
    second = comes_back(first, make_job(max_seconds="100"))
    assert abs(elapsed(second) - (60 if noted else 50)) < SPENT_S


# --- a survey ------------------------------------------------------------------------------------


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
    assert job.summary == b"part"
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
            finishes(world, workers)


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
    job.survey = SurveyMerge(Choosy(), in_order=False)
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


# --- sessions ------------------------------------------------------------------------------------


def test_submitted_job_is_loaded_beside_the_loop_and_one_that_cannot_be_is_refused(make_job):
    world = World(session=True)
    world.forms()
    driver = world.join("driver")
    world.slow = True
    first = world.call(driver, m.Submit({"worker_class": "nowhere:Class"}))
    assert first not in world.answers
    refused = str(world.ask(driver, m.Submit({})))
    assert "is preparing. Submit the job again when `snailps status` shows idle" in refused
    world.slow = False
    world.work()
    assert "nowhere" in str(world.answers[first])
    submitted = world.ask(driver, m.Submit(make_job.values))
    assert submitted == m.Submitted(1)
    world.tick()
    assert world.core.reported_phase == "training"


@pytest.mark.parametrize("files", [[], ["driver:h:1/ab/7"]])
def test_job_of_a_driver_that_has_gone_ends_if_it_reads_the_drivers_data(make_job, tmp_path, files):
    world = World(session=True)
    _, *workers = world.forms()
    world.join("driver")  # for another one the session lasts
    driver = world.join("driver")
    values = {**make_job.values, "output": str(tmp_path / "out")}
    assert world.ask(driver, m.Submit(values, files)) == m.Submitted(1)
    world.tick()
    world.handle(events.Gone(driver, "killed"))
    told = [stop.text for worker in workers for stop in world.sent(worker, m.Stop)]
    lost = "the Python process that has the data (h:1) has ended"
    assert told == ([lost] * 2 if files else [])
    assert world.core.phase is ClusterPhase.FORMED


def fenced_in(world):
    return [
        e.message.incarnation
        for e in world.effects
        if isinstance(e, effects.Order) and isinstance(e.message, m.Fence)
    ]


def test_driver_that_is_gone_is_fenced_as_it_may_have_pushed():
    world = World(session=True)
    world.forms()
    world.join("driver")
    driver = world.join("driver")
    number = max(member.number for member in world.core.members.nodes("driver"))
    world.ask(driver, m.Declare([Table("rows", 4).to_dict()]))
    world.handle(events.Gone(driver, "killed"))
    world.tick()
    assert fenced_in(world) == [number]


def test_reader_that_comes_and_goes_costs_no_fence():
    """It has declared no table: it can have pushed to none."""
    world = World(session=True)
    world.forms()
    world.join("driver")
    for _ in range(20):
        world.handle(events.Gone(world.join("driver"), "killed"))
        world.tick()
    assert not fenced_in(world)


def test_fence_names_the_number_below_which_nobody_is_left():
    world = World(session=True, lasting=True)
    _, first, second = world.forms()
    members = {peer: world.core.members.peers[peer].number for peer in (first, second)}
    world.handle(events.Gone(second, "killed"))
    world.tick()
    drivers = [world.join("driver") for _ in range(3)]
    for driver in drivers[:2]:
        world.handle(events.Gone(driver, "killed"))
    world.handle(events.Gone(first, "killed"))
    world.tick()
    below = [order.message.below for order in world.orders(m.Fence)]
    last = world.core.members.peers[drivers[2]].number
    assert below == [members[first], last]
    assert last > max(members.values()) + 2


def test_server_that_refuses_a_fence_is_lost(make_job):
    """A worker that it does not shut out may push beside the one that has its block."""
    world = World(make_job(), replication="none")
    _, first, _ = world.forms()
    does = world.does
    refusal = RemoteError("no memory left for incarnations that were given up")
    world.does = lambda order: refusal if isinstance(order, m.Fence) else does(order)
    world.handle(events.Gone(first, "killed"))
    world.tick()
    assert "it cannot fence a worker: no memory left" in world.core.lifecycle.verdict


def test_job_that_names_data_of_another_process_is_refused(make_job):
    world = World(session=True)
    world.forms()
    values = {**make_job.values, "input": "driver:h:1/ab/7"}
    refused = world.ask(world.join("driver"), m.Submit(values, ["driver:h:1/ab/8"]))
    assert "names data that a Python process has" in str(refused)


def finishes(world, workers, slow=False):
    """The workers train all blocks of the job, and it is exported, unless works are `slow`."""
    while sum(world.trains(worker) for worker in workers):
        world.tick()
    world.slow = slow
    for worker in workers:
        world.note(worker, m.Finished({}))
    world.tick(times=3)


def left_by(world, driver, job):
    """What a job has left, as a driver is told."""
    return world.ask(driver, m.AskJob(job)).data


def test_each_driver_is_told_of_its_own_job(make_job):
    world = World(session=True)
    _, *workers = world.forms()
    first, second = world.join("driver"), world.join("driver")
    assert world.ask(first, m.Submit(make_job.values)) == m.Submitted(1)
    world.tick()
    finishes(world, workers)
    assert left_by(world, first, 1)["tables"] == []
    assert world.ask(second, m.Submit({**make_job.values, "epochs": "2"})) == m.Submitted(2)
    world.tick()
    assert left_by(world, first, 1)["tables"] is None
    world.note(workers[0], m.Failed("a bug", "in inner"))
    done, failed = left_by(world, first, 1), left_by(world, second, 2)
    assert (done["failure"], done["settings"]["epochs"]) == ("", "5")
    assert done["figures"]
    assert failed["failure"].endswith("failed: a bug")
    assert (failed["trace"], failed["figures"], failed["tables"]) == ("in inner", {}, None)
    assert "no job 3" in str(world.ask(first, m.AskJob(3)))


def test_driver_that_asks_of_the_job_at_work_is_told_when_that_has_ended(make_job):
    world = World(session=True)
    _, *workers = world.forms()
    driver = world.join("driver")
    for number, failure in ((1, ""), (2, "a bug")):
        assert world.ask(driver, m.Submit(make_job.values)) == m.Submitted(number)
        world.tick()
        call = world.call(driver, m.AskJob(number))
        world.tick()
        assert call not in world.answers
        if failure:
            world.note(workers[0], m.Failed(failure, ""))
        else:
            finishes(world, workers)
        assert world.answers[call].data == left_by(world, driver, number)
        assert world.answers[call].data["failure"].endswith(failure)


@pytest.mark.parametrize(
    "more", [{}, {"consistency": "ssp", "staleness": "2"}, {"assign": "own"}], ids=str
)
def test_worker_that_is_given_up_is_shut_out_and_has_no_part_in_the_next_jobs(make_job, more):
    world = World(session=True)
    _, worker, stuck = world.forms()
    driver = world.join("driver")
    world.ask(driver, m.Submit({**make_job.values, "max_seconds": "5"}))
    world.tick()
    assert world.ask(stuck, m.Lease("train")).number >= 0
    assert world.trains(worker)
    world.tick(6.0)
    world.note(worker, m.Finished({}))
    world.tick(DROP_S + 1, times=2)
    assert world.core.reported_phase == "idle"
    for number in (2, 3):
        submit = m.Submit({**make_job.values, **more, "epochs": "1"})
        assert world.ask(driver, submit) == m.Submitted(number)
        world.tick()
        if number == 2:
            finishes(world, [worker])
    assert len(world.sent(stuck, m.Start)) == 1
    (stop,) = world.sent(stuck, m.Stop)
    assert "20 s at its last blocks, and none of them pushed" in stop.text
    assert [e.message.incarnation for e in world.orders(m.Fence)] == [stuck]
    finishes(world, [worker])


def test_newcomer_that_does_not_begin_is_named_at_the_end_and_given_up(make_job):
    world = World(make_job())
    _, *workers = world.forms()
    newcomer = world.join("worker")
    world.tick(times=3)
    assert world.sent(newcomer, m.Start)
    while any(world.trains(worker) for worker in workers):
        world.tick()
    for worker in workers:
        world.note(worker, m.Finished({}))
    world.tick(DROP_S / 2)
    (wait,) = world.status()["waits"]
    assert (wait["who"], wait["whom"]) == ("the job", "the end of worker 4's part")
    world.tick(DROP_S / 2 + 1)
    assert world.core.reported_phase == "stopping"


def test_session_whose_only_worker_is_lost_during_the_export_has_its_result(make_job, tmp_path):
    world, driver, workers = exporting_session(make_job, tmp_path)
    for worker in workers:
        world.handle(events.Gone(worker, "killed"))
    assert world.core.reported_phase == "exporting"
    world.slow = False
    world.work()
    world.tick()
    assert left_by(world, driver, 1)["failure"] == ""


def test_export_of_a_job_that_fails_meanwhile_is_cancelled(make_job, tmp_path):
    world, _, (worker, _) = exporting_session(make_job, tmp_path)
    progress = world.core.job_controller.export.progress
    world.note(worker, m.Failed("it cannot end"))
    assert progress.cancelled
    assert any(isinstance(effect, effects.CancelExport) for effect in world.effects)


def test_master_remembers_the_last_jobs_only(make_job):
    world = World(session=True)
    _, *workers = world.forms()
    driver = world.join("driver")
    one_epoch = {**make_job.values, "epochs": "1"}
    for number in range(1, ENDED_MAX + 2):
        assert world.ask(driver, m.Submit(one_epoch)) == m.Submitted(number)
        world.tick()
        finishes(world, workers)
    assert isinstance(world.ask(driver, m.AskJob(1)), ClusterError)
    assert left_by(world, driver, 2)["failure"] == ""


@pytest.mark.parametrize(
    ("given_up", "words"),
    [
        ("cancelled", "the job was cancelled"),
        ("gone", "its driver is gone"),
        ("late", "was not loaded within 1 s: does its module wait"),
    ],
)
def test_job_that_is_given_up_while_its_class_is_loaded_never_begins(
    make_job, monkeypatch, given_up, words
):
    monkeypatch.setattr("snailps.master.job.submissions.LOAD_S", 1.0)
    world = World(session=True)
    world.forms()
    driver, other = world.join("driver"), world.join("driver")
    world.slow = True
    submitted = world.call(driver, m.Submit(make_job.values))
    assert world.core.reported_phase == "preparing"
    assert "its phase is preparing" in str(world.ask(other, m.Submit(make_job.values)))
    assert isinstance(world.ask(other, m.Cancel()), m.Ok)  # of another driver: nothing happens
    assert submitted not in world.answers
    if given_up == "cancelled":
        assert isinstance(world.ask(driver, m.Cancel()), m.Ok)
    elif given_up == "gone":
        world.handle(events.Gone(driver, "killed"))
    else:
        world.tick(1.5)
    assert words in str(world.answers[submitted])
    assert world.core.reported_phase == "idle"
    world.slow = False
    world.work()
    world.tick()
    assert world.core.reported_phase == "idle"
    assert world.ask(other, m.Submit(make_job.values)) == m.Submitted(1)


def test_job_that_follows_on_one_that_failed_has_nothing_of_it(make_job):
    world = World(session=True, lasting=True)
    _, *workers = world.forms()
    driver = world.join("driver")
    world.ask(driver, m.Submit(make_job.values))
    controller, replication = world.core.job_controller, world.core.replication
    inspection, told = controller.inspection, []
    world.slow = True
    world.services.reader.landmarks = lambda job, reading, sharp: {"of": job}
    inspection.map(controller.job, told.append, world.now)
    controller.job.progress = lambda now: 0.1
    inspection.step(controller.job, {}, world.now)
    world.tick()
    assert inspection.running
    replication.standbys.redundancy.metrics.moves = 3
    controller.job.ticks, controller.expiry._tick = [0, 7], 7
    assert world.ask(driver, m.Cancel()) == m.Ok()
    for worker in workers:
        world.handle(events.Gone(worker, "begins anew"))
        world.join("worker")
    world.tick(times=3)
    late, world.works, world.slow = list(world.works), [], False
    assert world.ask(driver, m.Submit(make_job.values)) == m.Submitted(2)
    assert not inspection.running  # its training ends with no inspection under way
    world.works = late
    world.work()  # what the first job began beside the loop ends now
    assert inspection.last_map == {}
    assert replication.figures() == {}
    snapshot, _ = controller.checkpoints.dump_job(controller.job, -1, world.now)
    assert snapshot.figures["ticks"] == [0]
    orders = [e.message for e in world.effects if isinstance(e, effects.Order)]
    assert [order for order in orders if isinstance(order, m.Expire)] == [m.Expire(0, 0, [0])]


def test_checkpoint_at_the_end_of_a_training_has_its_ticks(make_job):
    """Ctrl-C ends a training with one, whenever another one was made before."""
    world = World(make_job())
    world.forms()
    controller = world.core.job_controller
    controller.job.ticks = [0, 7]
    snapshot, _ = controller.checkpoints.dump_job(controller.job, -1, world.now)
    assert snapshot.figures["ticks"] == [0, 7]


def test_job_that_is_given_up_while_its_input_is_found_takes_no_folder_of_checkpoints(make_job):
    """Its successor has its own by then, and would write into that of another job."""
    world = World(session=True)
    world.forms()
    driver, opened = world.join("driver"), []
    world.services.files.open = lambda settings, resumes: opened.append(settings.checkpoint_dir)
    world.slow = True
    world.call(driver, m.Submit({**make_job.values, "checkpoint_dir": "first"}))
    world.handle(WorkDone(world.works[0].number, world.works.pop(0).run()))
    assert world.core.reported_phase == "preparing"
    finds_input = world.works.pop(0)
    world.ask(driver, m.Cancel())
    world.tick()
    world.slow = False
    submitted = world.ask(driver, m.Submit({**make_job.values, "checkpoint_dir": "second"}))
    assert isinstance(submitted, m.Submitted)
    finds_input.run()
    assert opened == ["second"]


def exporting_session(make_job, tmp_path, **more):
    """A session whose job is exported just now; its driver and its workers."""
    world = World(session=True, lasting=True)
    _, *workers = world.forms()
    driver = world.join("driver")
    submit = m.Submit({**make_job.values, "output": str(tmp_path / "out")}, **more)
    assert isinstance(world.ask(driver, submit), m.Submitted)
    world.tick()
    finishes(world, workers, slow=True)
    assert world.core.reported_phase == "exporting"
    return world, driver, workers


def test_worker_that_joins_a_session_while_it_exports_has_part_in_the_next_job(make_job, tmp_path):
    world, driver, workers = exporting_session(make_job, tmp_path)
    newcomer = world.join("worker")
    world.tick()
    assert not world.sent(newcomer, m.Start)
    world.slow = False
    world.work()
    world.tick()
    assert world.ask(driver, m.Submit(make_job.values)) == m.Submitted(2)
    world.tick()
    assert [len(world.sent(one, m.Start)) for one in [*workers, newcomer]] == [2, 2, 1]


def test_export_goes_on_without_the_driver_whose_data_the_job_has_read(make_job, tmp_path):
    world, driver, _ = exporting_session(make_job, tmp_path, files=["driver:h:1/ab/7"])
    other = world.join("driver")
    world.handle(events.Gone(driver, "killed"))
    world.slow = False
    world.work()
    world.tick()
    assert world.core.reported_phase == "idle"
    assert left_by(world, other, 1)["failure"] == ""


def failed_lasting_session(make_job):
    """A session that does not end with its drivers, in whose job a worker has failed."""
    world = World(session=True, lasting=True)
    _, *workers = world.forms()
    world.ask(world.join("driver"), m.Submit(make_job.values))
    world.tick()
    world.note(workers[0], m.Failed("a bug"))
    return world, workers


def test_workers_of_a_failed_job_are_expected_back(make_job):
    world, workers = failed_lasting_session(make_job)
    assert [stop.again for one in workers for stop in world.sent(one, m.Stop)] == [True, True]
    assert world.status()["session"]["coming"] == 2
    for worker in workers:
        world.handle(events.Gone(worker, "connection closed"))
    world.join("worker")
    assert world.core.departures.coming == 1
    world.join("worker")
    assert world.core.departures.coming == 0


def test_workers_that_do_not_come_back_are_not_expected_for_ever(make_job, monkeypatch, caplog):
    monkeypatch.setattr("snailps.master.departures.ANEW_S", 1.0)
    world, workers = failed_lasting_session(make_job)
    for worker in workers:
        world.handle(events.Gone(worker, "connection closed"))
    world.tick(1.5)
    assert world.core.departures.coming == 0
    assert "2 workers of a failed job did not join again within 1 s: 0 are left" in caplog.text


def test_worker_that_is_slow_to_end_with_its_job_begins_anew_all_the_same(make_job, monkeypatch):
    monkeypatch.setattr("snailps.master.departures.GOODBYE_S", 0.5)
    world, workers = failed_lasting_session(make_job)
    world.tick(1.0)
    stops = world.sent(workers[1], m.Stop)
    assert [stop.again for stop in stops] == [True, True]
    assert "did not end with its job" in stops[1].text


@pytest.mark.parametrize("lasting", [False, True])
def test_worker_that_fails_between_jobs_is_sent_away_alone(make_job, monkeypatch, lasting):
    monkeypatch.setattr("snailps.master.departures.LATER_S", 1.0)
    world = World(session=True, lasting=lasting)
    _, *workers = world.forms()
    driver = world.join("driver")
    world.ask(driver, m.Submit(make_job.values))
    world.tick()
    finishes(world, workers)
    world.note(workers[0], m.Failed("its disk is full"))
    assert bool(world.sent(workers[0], m.Stop)) != lasting
    world.tick(1.5)  # at once it might fail again and again
    assert [stop.again for stop in world.sent(workers[0], m.Stop)] == [lasting]
    assert world.core.phase is ClusterPhase.FORMED
    assert world.ask(driver, m.Submit(make_job.values)) == m.Submitted(2)


def test_peak_memory_of_the_process_is_in_the_figures(make_job):
    world = World(make_job())
    _, *workers = world.forms()
    while sum(world.trains(worker) for worker in workers):
        world.tick()
    for peer in [1, *workers]:
        world.note(peer, m.Finished({})) if peer != 1 else None
    world.tick(times=3)
    for peer in [1, *workers]:
        world.note(peer, m.Bye({"peak_rss_mb": 10.0}))
        world.handle(events.Gone(peer, "connection closed"))
    world.tick()
    assert world.core.lifecycle.over
    assert world.core.job_controller.figures["peak_rss_mb"] == 100.0


# --- what peers may not do -----------------------------------------------------------------------


def test_message_that_cannot_be_handled_breaks_its_sender_alone(make_job):
    world = World(make_job())
    _, worker, _ = world.forms()
    world.note(worker, m.Done("train", 0, 1, 1.0, {}))  # is a call
    world.note(77, m.Finished({}))
    broken = [e for e in world.effects if isinstance(e, effects.Broken)]
    assert [(e.peer, type(e.error)) for e in broken] == [
        (worker, ProtocolError),
        (77, ProtocolError),
    ]
    assert world.core.phase is ClusterPhase.FORMED


def test_call_that_is_refused_is_answered_with_the_reason():
    world = World()
    world.join("server")
    driver = world.join("driver")
    assert "start its master with `snailps master --session`" in str(
        world.ask(driver, m.Submit({}))
    )
    assert isinstance(world.ask(driver, m.Drain(1)), ClusterError)


def test_server_that_was_to_leave_leaves_at_the_next_master_too(make_job):
    """After `snailps drain` it does not know itself; what leaves as asked is not lost."""
    world = World(make_job(), expected_servers=2)
    for role in ("server", "server", "worker"):
        world.join(role)
    world.tick(times=4)
    world.call(1, m.Drain(2))
    after = takes_over(world, make_job())
    for number in (1, 2):
        rejoin(after, number, servers=2)
    rejoin(after, 3, servers=2, started=False)
    after.tick(times=4)
    assert [node["state"] for node in after.status()["nodes"][:2]] == ["ready", "leaving"]
    after.note(2, m.Bye({}))
    after.handle(events.Gone(2, "it closed its connection"))
    texts = [event["text"] for event in after.status()["events"]]
    assert "server 2 left; other servers have its shards" in texts


# --- phases --------------------------------------------------------------------------------------


def test_transitions_that_are_not_in_the_table_raise():
    assert job_step(JobPhase.IDLE, JobPhase.PREPARING) is JobPhase.PREPARING
    with pytest.raises(AssertionError, match="does not go from idle to training"):
        job_step(JobPhase.IDLE, JobPhase.TRAINING)
    with pytest.raises(AssertionError, match="does not go from done to idle"):
        cluster_step(ClusterPhase.DONE, ClusterPhase.FORMED)
    assert set(JOB) == set(JobPhase)
    assert set(CLUSTER) == set(ClusterPhase)


# --- tests after epochs --------------------------------------------------------------------------

VALIDATED = {"worker_class": "cluster_models:Validated", "epochs": "2"}


def epochs_tested(world):
    return [test["epoch"] for test in world.core.job_controller.job.tested.tests]


def test_worker_that_waits_when_its_last_block_of_an_epoch_is_done_is_asked_to_push_all(make_job):
    """It asks for the next block while it trains, so before there is anything to push."""
    world = World(make_job(**VALIDATED))
    _, worker, _ = world.forms()
    lease, numbers = world.ask(worker, m.Lease("train")), []
    while lease.number >= 0:
        waiting = world.call(worker, m.Lease("train"))
        numbers.append(lease.number)
        figures = {"loss": 1.0, "examples": 1.0}
        world.ask(worker, m.Done("train", lease.number, 5, 0.1, figures))
        lease = world.answers[waiting]
    assert lease.flushes
    assert world.ask(worker, m.Lease("train")).flushes  # as long as it has not pushed all
    world.tick()
    assert epochs_tested(world) == []
    world.note(worker, m.Durable(numbers))
    waiting = world.call(worker, m.Lease("train"))
    assert waiting not in world.answers
    world.tick()
    assert epochs_tested(world) == [1]
    assert world.answers[waiting].number == len(numbers)


def test_master_that_takes_over_tests_an_epoch_again_unless_that_was_noted(make_job):
    before = World(make_job(**VALIDATED))
    _, worker, _ = before.forms()
    assert before.trains(worker)
    before.tick()
    before.slow = True  # no test ends
    while before.trains(worker):
        pass
    before.tick()
    for is_noted in (False, True):
        if is_noted:
            before.slow = False
            before.work()
            before.tick()
            assert epochs_tested(before) == [1]
        world = takes_over(before, make_job(**VALIDATED))
        for number in (1, 2, 3):
            rejoin(world, number)
        waiting = world.call(2, m.Lease("train"))
        world.tick(times=4)
        assert epochs_tested(world) == [1]
        assert sum(fact.kind == "tested" for fact in world.facts()) == (not is_noted)
        assert world.answers[waiting].number >= 0


def test_an_epoch_is_tested_once_a_lost_worker_is_fenced(make_job):
    """Else a push of its that comes late would change rows between the test and their saving."""
    world = World(make_job(**VALIDATED))
    server, worker, lost = world.forms()
    lease = world.ask(lost, m.Lease("train"))
    while world.trains(worker):
        pass
    figures = {"loss": 1.0, "examples": 1.0}
    world.ask(lost, m.Done("train", lease.number, 5, 0.1, figures))  # its pushes are under way
    world.obey = False
    world.handle(events.Gone(lost, "connection closed"))
    world.tick(times=3)
    assert fenced_in(world)
    assert epochs_tested(world) == []
    fence = next(order for order in world.orders(m.Fence) if order.peer == server)
    world.obey = True
    world.handle(events.Answered(fence.number, world.does(fence.message)))
    world.tick()
    assert epochs_tested(world) == [1]


def test_last_checkpoint_of_an_interrupted_training_waits_for_the_test_of_its_epoch(
    make_job, monkeypatch
):
    """Servers refuse a save while they work on another one, such as the best epoch's."""
    monkeypatch.setattr(Files, "open", lambda files, settings, **more: Opened(1, "folder", []))
    monkeypatch.setattr(Files, "begin", pytest.fail, raising=False)  # is not called: a slow disk
    world = World(make_job(**VALIDATED, checkpoint_interval="3600"))
    _, worker, other = world.forms()
    assert world.trains(worker)
    world.tick()  # the validation data is read
    world.slow = True
    while world.trains(worker):
        pass
    world.tick()
    inspection, test = world.works
    world.works.clear()
    world.handle(WorkDone(inspection.number, InspectionResult()))
    world.handle(events.Signal())
    for peer in (worker, other):
        world.note(peer, m.Finished({}))
    world.tick()
    assert not world.works
    world.handle(WorkDone(test.number, {"f1": 0.5}))
    world.tick()
    assert [work.lane for work in world.works] == ["checkpoint"]
