"""`MasterCore` of a session: jobs of drivers, one after the other."""

import pytest
from master_world import World
from without import is_there

from snailps.api.tables import Table
from snailps.errors import ClusterError, RemoteError
from snailps.master import effects, events
from snailps.master.job.ended_jobs import ENDED_MAX
from snailps.master.job.model_class import Look
from snailps.master.job.record import JobRecord
from snailps.master.leases.late_workers import DROP_S
from snailps.master.number_spans import NumberSpans
from snailps.master.phases import ClusterPhase
from snailps.node.effects import WorkDone
from snailps.transport import messages as m


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


def test_driver_that_is_gone_is_fenced_as_it_may_have_pushed():
    world = World(session=True)
    world.forms()
    world.join("driver")
    driver = world.join("driver")
    number = max(member.number for member in world.core.members.nodes("driver"))
    world.ask(driver, m.Declare([Table("rows", 4).to_dict()]))
    world.handle(events.Gone(driver, "killed"))
    world.tick()
    assert [order.message.incarnation for order in world.orders(m.Fence)] == [number]


def test_reader_that_comes_and_goes_costs_no_fence():
    """It has declared no table: it can have pushed to none."""
    world = World(session=True)
    world.forms()
    world.join("driver")
    for _ in range(20):
        world.handle(events.Gone(world.join("driver"), "killed"))
        world.tick()
    assert not world.orders(m.Fence)


def fenced_numbers(world):
    """What a shard knows that has carried out every fence."""
    numbers = NumberSpans()
    for order in world.orders(m.Fence):
        for first, last in [(order.message.incarnation,) * 2, *order.message.gone]:
            numbers.add(first, last)
    return numbers


def test_fences_of_a_session_are_a_span_for_each_process_that_is_there():
    """However many drivers and readers came beside a worker, a server and a driver that stay."""
    world = World(session=True, lasting=True)
    world.forms()
    world.join("driver")
    number_of = {}

    def join():
        peer = world.join("driver")
        number_of[peer] = world.core.members.peers[peer].number
        return peer

    pushed, reader, late = set(), join(), join()
    for turn in range(60):
        driver, next_reader = join(), join()
        world.ask(driver, m.Declare([Table("rows", 4).to_dict()]))
        pushed.add(number_of[driver])
        world.handle(events.Gone(driver, "killed"))
        world.handle(events.Gone(reader, "closed"))  # after the fence of the driver beside it
        reader = next_reader
        if turn == 30:
            world.handle(events.Gone(late, "closed"))
        members = world.core.members.all
        numbers = fenced_numbers(world)
        assert all(number in numbers for number in pushed)
        assert not any(number in numbers for number in members)
        assert len(list(numbers)) <= len(members)
    assert len(world.orders(m.Fence)) == 60  # none for a reader


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


def left_by(world, driver, job):
    """What a job has left, as a driver is told."""
    return world.ask(driver, m.AskJob(job)).data


def test_each_driver_is_told_of_its_own_job(make_job):
    world = World(session=True)
    _, *workers = world.forms()
    first, second = world.join("driver"), world.join("driver")
    assert world.ask(first, m.Submit(make_job.values)) == m.Submitted(1)
    world.tick()
    world.finishes(workers)
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
    assert not failed["is_wrong"]
    assert "no job 3" in str(world.ask(first, m.AskJob(3)))


def test_driver_is_told_that_a_worker_found_the_input_wrong(make_job):
    world = World(session=True)
    _, *workers = world.forms()
    driver = world.join("driver")
    assert world.ask(driver, m.Submit(make_job.values)) == m.Submitted(1)
    world.tick()
    world.note(workers[0], m.Failed("a.svm, line 3: no label", "", True))
    assert left_by(world, driver, 1)["is_wrong"]


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
            world.finishes(workers)
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
            world.finishes([worker])
    assert len(world.sent(stuck, m.Start)) == 1
    (stop,) = world.sent(stuck, m.Stop)
    assert "20 s at its last blocks, and none of them pushed" in stop.text
    assert [e.message.incarnation for e in world.orders(m.Fence)] == [stuck]
    world.finishes([worker])


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
    progress = world.core.job_controller.exporting.export.progress
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
        world.finishes(workers)
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
    if can_look := is_there("tests_in_training"):  # for TensorBoard, say
        world.services.reader.looks = (Look(("tenth",), lambda results, tenth: {}),)
    world.ask(driver, m.Submit(make_job.values))
    controller, replication = world.core.job_controller, world.core.replication
    looks, told = controller.looks, []
    world.slow = True
    world.services.reader.landmarks = lambda job, reading, sharp: {"of": job}
    looks.map(controller.job, told.append, world.now)
    controller.job.progress = lambda now: 0.1
    world.tick()
    assert looks.running == can_look
    replication.standbys.redundancy.metrics.moves = 3
    controller.job.clock.ticks, controller.expiry._tick = [0, 7], 7
    assert world.ask(driver, m.Cancel()) == m.Ok()
    for worker in workers:
        world.handle(events.Gone(worker, "begins anew"))
        world.join("worker")
    world.tick(times=3)
    late, world.works, world.slow = list(world.works), [], False
    assert world.ask(driver, m.Submit(make_job.values)) == m.Submitted(2)
    assert not looks.running  # its training ends with no inspection under way
    world.works = late
    world.work()  # what the first job began beside the loop ends now
    assert looks.last_map == {}
    assert replication.figures() == {}
    snapshot, _ = controller.checkpoints.saver.dump_job(JobRecord(controller.job), -1, world.now)
    assert snapshot.figures["ticks"] == [0]
    orders = [e.message for e in world.effects if isinstance(e, effects.Order)]
    assert [order for order in orders if isinstance(order, m.Expire)] == [m.Expire(0, 0, [0])]


def test_checkpoint_at_the_end_of_a_training_has_its_ticks(make_job):
    """Ctrl-C ends a training with one, whenever another one was made before."""
    world = World(make_job())
    world.forms()
    controller = world.core.job_controller
    controller.job.clock.ticks = [0, 7]
    snapshot, _ = controller.checkpoints.saver.dump_job(JobRecord(controller.job), -1, world.now)
    assert snapshot.figures["ticks"] == [0, 7]


def test_job_that_is_given_up_while_its_input_is_found_takes_no_folder_of_checkpoints(make_job):
    """Its successor has its own by then, and would write into that of another job."""
    world = World(session=True)
    world.forms()
    driver, opened = world.join("driver"), []
    world.services.files.open = lambda settings, resumes, anyway=False, of_session=False: (
        opened.append(settings.checkpoint_dir)
    )
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
    world.finishes(workers, slow=True)
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
    assert world.core.stops.coming == 1
    world.join("worker")
    assert world.core.stops.coming == 0


def test_workers_that_do_not_come_back_are_not_expected_for_ever(make_job, monkeypatch, caplog):
    monkeypatch.setattr("snailps.master.stop_orders.ANEW_S", 1.0)
    world, workers = failed_lasting_session(make_job)
    for worker in workers:
        world.handle(events.Gone(worker, "connection closed"))
    world.tick(1.5)
    assert world.core.stops.coming == 0
    assert "2 workers of a failed job did not join again within 1 s: 0 are left" in caplog.text


def test_worker_that_is_slow_to_end_with_its_job_begins_anew_all_the_same(make_job, monkeypatch):
    monkeypatch.setattr("snailps.master.stop_orders.GOODBYE_S", 0.5)
    world, workers = failed_lasting_session(make_job)
    world.tick(1.0)
    stops = world.sent(workers[1], m.Stop)
    assert [stop.again for stop in stops] == [True, True]
    assert "did not end with its job" in stops[1].text


@pytest.mark.parametrize("lasting", [False, True])
def test_worker_that_fails_between_jobs_is_sent_away_alone(make_job, monkeypatch, lasting):
    monkeypatch.setattr("snailps.master.stop_orders.LATER_S", 1.0)
    world = World(session=True, lasting=lasting)
    _, *workers = world.forms()
    driver = world.join("driver")
    world.ask(driver, m.Submit(make_job.values))
    world.tick()
    world.finishes(workers)
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
    assert world.core.job_controller.present.figures["peak_rss_mb"] == 100.0
