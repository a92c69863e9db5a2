"""`MasterCore`: tests after epochs (`snailps.master.job.epoch_tests`)."""

import pytest
from master_world import Files, World, rejoin, takes_over

from snailps.master import events
from snailps.master.services import Begun, Completed, Opened
from snailps.node.effects import WorkDone
from snailps.transport import messages as m

VALIDATED = {"worker_class": "cluster_models:Validated", "epochs": "2"}


def epochs_tested(world):
    return [test["epoch"] for test in world.core.job_controller.job.tested.tests]


def begins_a_test(world, worker):
    """A worker trains an epoch, whose test does not end."""
    assert world.trains(worker)
    world.tick()  # the validation data is read
    world.slow = True
    while world.trains(worker):
        pass
    world.tick()


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
    assert world.orders(m.Fence)
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
    begins_a_test(world, worker)
    (test,) = world.works
    world.works.clear()
    world.handle(events.Signal())
    for peer in (worker, other):
        world.note(peer, m.Finished({}))
    world.tick()
    assert not world.works
    world.handle(WorkDone(test.number, [{"f1": 0.5}]))
    world.tick()
    assert [work.lane for work in world.works] == ["checkpoint"]


class Folders(Files):
    """Checkpoints that have their names at once, and a folder of best rows."""

    def __init__(self):
        self.discarded, self.about = 0, []

    def open(self, settings, *, resumes, anyway=False, of_session=False):
        return Opened(1, "folder", []) if settings.saves_checkpoints else None

    def open_best(self, settings, name):
        return Opened(1, "best", [])

    def discard_best(self, taken, settings, name):
        self.discarded += 1

    def begin(self, above, cluster_id, needed_bytes):
        return Begun(above + 1, "part", "now")

    def complete(self, begun, files, state, **about):
        self.about.append(about["about"])
        return Completed(f"checkpoint-{begun.number}", 1, 1)


def saves(world, server):
    """The server has written what it was ordered to save last."""
    world.tick(times=2)
    order = world.orders(m.Save)[-1]
    world.note(server, m.Saved(order.message.number, []))
    world.tick()


@pytest.mark.parametrize("session", [False, True], ids=["job", "session"])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_best_rows_of_a_failed_job_stay_if_a_checkpoint_names_them(make_job, session, checkpoints):
    values = {**make_job.values, **VALIDATED, "worker_class": "cluster_models:Best", "epochs": "3"}
    if checkpoints:
        values |= {"checkpoint_dir": "folder", "checkpoint_interval": "10"}
    job = make_job(**values)
    world = World(None if session else job, session=session, files=Folders())
    server, *workers = world.forms()
    if session:
        assert world.ask(world.join("driver"), m.Submit(values)) == m.Submitted(1)
        world.tick()
    while world.trains(workers[0]):
        pass
    saves(world, server)  # the rows of the first epoch
    assert world.trains(workers[0])
    if checkpoints:
        world.tick(11)
        saves(world, server)
        assert world.services.files.about[-1]["best_rows"] == "checkpoint-1"
    job = world.core.job_controller.job
    assert (job.tested.kept, world.core.job_controller.checkpoints.place.saved) == (
        "checkpoint-1", checkpoints,
    )  # fmt: skip
    world.note(workers[0], m.Failed("a bug"))
    world.tick()
    assert (world.core.job_controller.job is None) == session
    assert world.services.files.discarded == 1 - checkpoints


def test_best_rows_are_removed_where_a_session_ends_with_its_driver(make_job):
    world = World(session=True, files=Folders())
    server, worker, _ = world.forms()
    driver = world.join("driver")
    values = {**make_job.values, "worker_class": "cluster_models:Best", "epochs": "3"}
    world.ask(driver, m.Submit(values))
    world.tick()
    while world.trains(worker):
        pass
    saves(world, server)
    world.core.lifecycle.stop(1, "the driver is gone")
    world.tick()
    assert world.services.files.discarded == 1


@pytest.mark.parametrize("during", ["reading", "testing", "opening"])
def test_job_that_fails_while_its_epoch_is_tested_keeps_no_rows(make_job, during, caplog):
    """What was under way ends later; by then a session may have its next job."""
    world = World(session=True, files=Folders())
    _, worker, _ = world.forms()
    values = {**make_job.values, "worker_class": "cluster_models:Best", "epochs": "3"}
    world.ask(world.join("driver"), m.Submit(values))
    world.tick()
    if during == "reading":
        world.slow = True
        assert world.trains(worker)
        world.tick()
    else:
        begins_a_test(world, worker)
    if during == "opening":
        test = world.works.pop()
        world.handle(WorkDone(test.number, test.run()))
    assert world.works
    world.note(worker, m.Failed("a bug"))
    world.tick()
    caplog.clear()
    world.slow = False
    world.work()
    world.tick(times=3)
    assert not caplog.records
    discarded = world.services.files.discarded
    assert (world.orders(m.Save), discarded) == ([], int(during == "opening"))
    assert "tested" not in [fact.kind for fact in world.facts()]
