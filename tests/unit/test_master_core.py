"""`MasterCore` by events alone, without process, socket or thread: what it wants done."""

from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from cases import each
from master_world import World, rejoin, takes_over
from without import is_there

from snailps.errors import ClusterError, ConnectionLost, ProtocolError
from snailps.master import effects, events
from snailps.master.phases import CLUSTER, JOB, ClusterPhase, JobPhase, cluster_step, job_step
from snailps.node.limits import ORDER_S
from snailps.transport import messages as m

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
    assert world.core.job_controller.present.interrupted
    assert world.ask(workers[0], m.Lease("train")).number == -1
    world.handle(events.Signal())
    world.tick()
    assert (world.core.phase, world.core.lifecycle.code) == (ClusterPhase.STOPPING, 130)
    assert "nothing was saved" in world.sent(server, m.Stop)[0].text


@pytest.mark.parametrize("is_wrong", [False, True])
def test_exit_code_of_a_worker_that_fails_says_whether_the_input_is_wrong(make_job, is_wrong):
    world = World(make_job())
    _, worker, _ = world.forms()
    world.note(worker, m.Failed("in.txt, line 3: expected a number", "", is_wrong))
    assert world.core.lifecycle.code == 1 + is_wrong
    assert "in.txt, line 3" in world.core.lifecycle.verdict


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


WITHOUT_TABLE = [
    ("phases", "cluster_step(ClusterPhase.DONE, ClusterPhase.FORMED)", "does not go from done"),
    ("phases", "job_step(JobPhase.IDLE, JobPhase.TRAINING)", "does not go from idle to training"),
    ("phases", "after(STAY, Stay.GONE, 'said_bye')", "Stay GONE does not take 'said_bye'"),
    ("leases.records", "BlockRecords(1).release(0)", "block 0 does not go from WAITING to WAITING"),
    ("leases.records", "BlockRecords(1).skip([1])", "block 1 is not waiting"),
    ("leases.records", "BlockRecords(1).undo(0)", "block 0 is not done"),
]
if is_there("tests_in_training"):
    made = "EpochTests._go(type('Tests', (), {'_step': Step.OVER})(), Step.TESTING)"
    WITHOUT_TABLE.append(("job.epoch_tests", made, "OVER does not lead to TESTING"))


@each("name, call, why", WITHOUT_TABLE)
def test_transitions_that_are_not_in_a_table_raise_where_assert_is_removed(name, call, why):
    """As under `python -O`."""
    path = find_spec(f"snailps.master.{name}").origin
    module = ModuleType("optimised")
    exec(compile(Path(path).read_text(), path, "exec", optimize=1), vars(module))
    with pytest.raises(AssertionError, match=why):
        exec(compile(call, "call", "exec"), vars(module))
    assert set(CLUSTER) == set(ClusterPhase)
