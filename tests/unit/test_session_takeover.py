"""A session's master that takes over; what drivers save and load: scripted peers, no process."""

import itertools
import signal
from dataclasses import replace

import pytest
from master_world import LIFE, Files, World
from waiting import until

from snailps.api.tables import Table
from snailps.errors import (
    EXIT_INTERRUPTED,
    CheckpointError,
    ClusterError,
    ConfigError,
    ProtocolError,
)
from snailps.master import effects, events
from snailps.master.effects import Fact
from snailps.master.job.ended_jobs import MASTER_DIED, SHARED
from snailps.master.job.record import JobRecord
from snailps.master.job.recovery import Recovered
from snailps.master.journal import FACTS, Journal, decode
from snailps.master.phases import ClusterPhase
from snailps.master.services import Begun, Candidate, Completed, Opened
from snailps.store.checkpoint.manifest import Manifest
from snailps.store.checkpoint.shard_file import FileEntry
from snailps.transport import messages as m

MODEL = "cluster_models:Counter"


def session(past=None, **settings):
    return World(None, past, session=True, lasting=True, **settings)


def formed(**settings):
    """A session with a server, a worker, and a driver that has declared a table."""
    world = session(expected_node_num=2, **settings)
    for role in ("server", "worker"):
        world.join(role)
    world.tick(times=4)
    assert world.core.phase is ClusterPhase.FORMED
    driver = world.join("driver")
    table = Table("w", 2)
    assert world.ask(driver, m.Declare([table.to_dict()])).numbers == [1]
    return world, driver


def after(world, **settings):
    """The next master of a session."""
    first = Fact("cluster", {"cluster_id": LIFE, "at": 0.0, "job": {}})
    numbers = Fact("numbers", {"until": 1024, "readers_until": 1 << 30})
    facts = [*world.earlier, *world.facts()]
    later = session(Recovered([first, numbers, *facts], "journal"), expected_node_num=2, **settings)
    later.earlier = facts
    return later


def back(world, role, number, **state):
    places = [["h", 5001]] if role == "server" else []
    if role == "server":
        state = {"standbys": []}
    elif role == "worker":
        idle = {"held": [], "reported": [], "not_durable": [], "finished": None, "started": False}
        state = {**idle, **state}
    message = m.Rejoin(LIFE, number, number, role, "h", number, 1, places, 1, "", state)
    return world.ask(number, message)


def all_back(world, **state):
    for role, number in (("server", 1), ("worker", 2), ("driver", 3)):
        welcome = back(world, role, number, **(state if role == "worker" else {}))
        assert isinstance(welcome, m.Welcome)
        assert welcome.patience_s > 0
    world.tick(times=4)


def test_session_taken_over_knows_its_tables_and_its_driver():
    world = after(formed()[0])
    all_back(world)
    assert world.core.reported_phase == "idle"
    assert [table for order in world.orders(m.MakeTables) for _, table in order.message.tables] \
        == [Table("w", 2).to_dict()]  # fmt: skip
    assert world.ask(3, m.Declare([Table("w", 2).to_dict()])).numbers == [1]
    assert world.ask(3, m.Declare([Table("v", 3).to_dict()])).numbers == [2]
    assert isinstance(world.ask(3, m.Declare([Table("w", 4).to_dict()])), ConfigError)


def test_one_fence_after_a_takeover_names_all_who_are_gone_and_nobody_else():
    """The lost master may not have had them fenced everywhere."""
    world, _ = formed()
    for _ in range(3):
        world.handle(events.Gone(world.join("driver"), "killed"))
    world.join("driver")  # 7, which does not come back yet
    world.handle(events.Gone(world.join("driver"), "killed"))
    world = after(world)
    all_back(world)
    assert [order.message for order in world.orders(m.Fence)] \
        == [m.Fence(8, shards=[0], gone=[[4, 6], [8, 8]])]  # fmt: skip


def test_call_of_a_driver_waits_until_the_servers_are_back():
    world = after(formed()[0])
    back(world, "driver", 3)
    call = world.call(3, m.Declare([Table("v", 3).to_dict()]))
    world.tick(times=4)
    assert call not in world.answers
    back(world, "server", 1)
    back(world, "worker", 2)
    world.tick(times=4)
    assert world.answers[call].numbers == [2]


def test_driver_that_does_not_come_back_is_given_up_and_nothing_waits_for_it():
    world = after(formed()[0])
    back(world, "server", 1)
    back(world, "worker", 2)
    world.tick(times=4)
    assert world.core.reported_phase == "idle"
    world.tick(20)
    world.handle(effects_of_silence(world))
    assert 3 not in world.core.members.all
    refusal = back(world, "driver", 3)
    assert isinstance(refusal, ClusterError)
    assert refusal.code == m.GIVEN_UP  # by which it knows that the cluster goes on
    assert world.facts()[-1] == Fact("drivers_gone", {"spans": [[3, 3]]})


def test_journal_is_compacted_to_the_drivers_that_are_there(tmp_path):
    """However many have come and gone; none that has gone is taken back."""
    world, _ = formed()
    for _ in range(40):
        world.handle(events.Gone(world.join("driver"), "killed"))
    world.join("driver")
    world.handle(events.JournalGrown())
    (compaction,) = [effect for effect in world.effects if isinstance(effect, effects.Compact)]
    journal = Journal(tmp_path / "journal")
    journal.take()
    journal.begin([Fact("cluster", {"cluster_id": LIFE, "at": 0.0, "job": {}})])
    for fact in world.facts():
        journal.note(fact.kind, fact.data)
    journal.compact(compaction.snapshot)
    until(lambda: len(of_drivers(journal)) == 3, "the journal is compacted")
    assert of_drivers(journal)[0] == Fact("drivers_gone", {"spans": [[4, 43]]})
    assert [fact.data["number"] for fact in of_drivers(journal)[1:]] == [3, 44]
    world = session(Recovered(decode((journal.path / FACTS).read_bytes())[0], "journal"))
    journal.close()
    all_back(world)
    assert isinstance(back(world, "driver", 44), m.Welcome)
    assert back(world, "driver", 20).code == m.GIVEN_UP


def test_server_that_is_missed_is_lost_once_whatever_its_heartbeats_do():
    """They may come back for a while, without it: its process hangs."""
    world, _ = formed()
    world = after(world)
    back(world, "server", 1)
    world.handle(gone(1))
    world.handle(events.Heartbeats({1: 1000.0}, frozenset()))
    back(world, "worker", 2)
    back(world, "driver", 3)
    world.tick(times=4)
    assert "server 1 (h, process 1) is lost: closed" in world.core.lifecycle.verdict


def of_drivers(journal):
    facts = decode((journal.path / FACTS).read_bytes())[0]
    return [fact for fact in facts if fact.kind in ("driver", "drivers_gone")]


def effects_of_silence(world):
    from snailps.master import events

    here = {number: 0.0 for number, one in world.core.members.all.items() if not one.away}
    return events.Heartbeats(here, frozenset())


def test_driver_of_a_job_of_a_file_is_not_taken_back():
    world, _ = formed()
    numbers = [member.number for member in world.core.members.all.values()]
    facts = [fact for fact in world.facts() if fact.kind in ("member", "driver")]
    assert [fact.data["number"] for fact in facts] == numbers  # of a session all are known
    world = World(None, Recovered([Fact("numbers", {"until": 9, "readers_until": 9})]))
    assert isinstance(back(world, "driver", 3), ClusterError)


def test_job_that_the_master_died_in_has_failed_may_be_submitted_again_and_its_worker_begins_anew(
    tmp_path,
):
    (tmp_path / "in.txt").write_text("0\n" * 10)
    world, driver = formed()
    settings = {"worker_class": MODEL, "input": str(tmp_path / "in.txt")}
    assert world.ask(driver, m.Submit(settings)).job == 1
    world.tick(times=4)
    world = after(world)
    all_back(world, started=True)
    left = world.ask(3, m.AskJob(1)).data
    assert (left["failure"], left["again"], left["tables"]) == (MASTER_DIED, True, None)
    assert left["settings"]["worker_class"] == MODEL
    (stop,) = world.sent(2, m.Stop)
    assert stop.again
    assert isinstance(world.ask(3, m.Submit(settings)), ClusterError)  # its worker is still here
    world.note(2, m.Bye({}))
    world.handle(gone(2))
    world.last_peer = 50
    world.join("worker")
    world.tick(times=4)
    assert world.ask(3, m.Submit(settings)).job == 2


@pytest.mark.parametrize(
    ("settings", "declared", "checkpoints", "twice"),
    [
        ({}, ["own"], 0, ""), ({}, ["w"], 0, "w"), ({}, ["own", "v", "w"], 0, "v, w"),
        ({}, ["own"], 1, ""), ({}, ["v", "w"], 1, ""), ({"fresh": "true"}, ["w"], 1, "w"),
        ({}, ["w", "v"], 2, "v"),  # the newest checkpoint was made before `v` was declared
        ({}, ["own", "w"], 3, "own, w"),  # its driver declares the job's table while it runs
    ],
)  # fmt: skip
def test_job_is_repeated_only_if_nothing_is_pushed_twice_to_tables_of_the_session(
    tmp_path, settings, declared, checkpoints, twice
):
    (tmp_path / "in.txt").write_text("0\n" * 10)
    world, driver = formed()
    world.ask(driver, m.Declare([Table("v", 2).to_dict()]))
    settings |= {"worker_class": MODEL, "input": str(tmp_path / "in.txt")}
    settings |= {"checkpoint_dir": str(tmp_path)}
    assert world.ask(driver, m.Submit(settings)).job == 1
    world.tick(times=4)
    saved = world.core.job_controller.opening.saved
    for position, name in enumerate(declared):
        if checkpoints == 2 and position == 1:
            saved()
        assert isinstance(world.ask(2, m.Declare([Table(name, 2).to_dict()])), m.Declared)
    if checkpoints == 3:
        assert isinstance(world.ask(driver, m.Declare([Table("own", 2).to_dict()])), m.Declared)
    if checkpoints == 1:
        saved()
    world.tick()
    world = after(world)
    all_back(world, started=True)
    left = world.ask(3, m.AskJob(1)).data
    assert left["again"] == (not twice)
    assert left["failure"] == (SHARED.format(twice) if twice else MASTER_DIED)


def gone(peer):
    return events.Gone(peer, "closed")


def test_job_that_has_ended_is_told_by_the_next_master_and_its_worker_stays(tmp_path):
    world, _ = formed()
    ended = {
        "settings": {"a": "b"},
        "figures": {"n": 3},
        "failure": "",
        "trace": "",
        "again": False,
        "is_wrong": False,
    }
    world.core.out.journal("job", {"number": 4, "settings": {"a": "b"}})
    tables = [[7, Table("of-job", 3).to_dict()]]
    world.core.out.journal("ended", {"number": 4, "job": {**ended, "tables": tables}})
    world.tick()
    world = after(world)
    all_back(world, started=True)
    assert world.ask(3, m.AskJob(4)).data == {**ended, "tables": tables}
    assert not world.sent(2, m.Stop)
    assert world.core.job_controller.ended_jobs.newest == 4


def test_workers_are_not_asked_how_far_they_are_once_their_job_has_ended(tmp_path):
    """The status of a session that has nothing to do would wait for them."""
    (tmp_path / "in.txt").write_text("0\n" * 10)
    world, driver = formed()
    settings = {"worker_class": MODEL, "input": str(tmp_path / "in.txt")}
    assert world.ask(driver, m.Submit(settings)).job == 1
    world.tick(times=4)
    while world.trains(2):
        pass
    world.note(2, m.Finished({}))
    world.tick(times=8)
    assert world.status()["phase"] == "idle"
    world.tick(3.0)
    asked = len(world.orders(m.Ask))
    world.call(driver, m.Ask("status"))
    assert len(world.orders(m.Ask)) == asked


def test_facts_of_a_job_are_not_in_the_journal_of_a_session():
    world, _ = formed()
    before = len(world.facts())
    world.core.out.journal("done", {"number": 1})
    world.tick()
    assert len(world.facts()) == before


def test_session_forms_of_two_servers_without_being_told_so():
    world = session(expected_node_num=2, expected_servers=0)
    for _ in range(2):
        world.join("server")
    world.tick(times=4)
    assert world.core.phase is ClusterPhase.FORMED


# --- saving and loading --------------------------------------------------------------------------


class Unusable(Files):
    """A folder of checkpoints that cannot be opened until it is mended."""

    def __init__(self, error):
        self.error, self.opened = error, 0

    def path_of(self, settings):
        return "saved"

    def open(self, settings, *, resumes, anyway=False, of_session=False):
        if self.error is not None:
            raise self.error
        self.opened += 1
        return Opened(self.opened, "saved", [])

    def begin(self, above, life, needed):
        return Begun(above + 1, f"part-{above + 1}", "now")

    def complete(self, begun, files, state, **about):
        return Completed(f"checkpoint-{begun.number}", 12, 345)


UNUSABLE = {
    "damaged": CheckpointError("no checkpoint here can be used"),
    "full": CheckpointError("saved: cannot be written: No space left on device"),
    "of another job": ConfigError("is a checkpoint of another job"),
    "a defect": ValueError("a manifest that no reader expects"),
}


@pytest.mark.parametrize("error", UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize("times", [1, 2])
def test_takeover_goes_on_without_its_checkpoints_and_makes_the_next_one(error, times, caplog):
    world, _ = formed()
    for _ in range(times):
        world = after(world, files=Unusable(error), saves={"checkpoint_interval": "5"})
        all_back(world)
        assert world.core.reported_phase == "idle"
        assert str(error) in caplog.text
        assert world.ask(3, m.Declare([Table("w", 2).to_dict()])).numbers == [1]
    world.core.shard_reports.sum = lambda counter: 7  # a driver has pushed
    world.tick(times=7, seconds=1)
    assert not world.orders(m.Save)
    assert "the session goes on unsaved" in caplog.text
    world.services.files.error = None
    world.tick(times=12, seconds=1)
    (order,) = world.orders(m.Save)
    saved(world, order.message.number)
    assert world.core.rows.checkpoints.place.saved == 1


@pytest.mark.parametrize("error", UNUSABLE.values(), ids=UNUSABLE)
def test_first_master_does_not_begin_beside_checkpoints_that_it_cannot_use(error):
    world = session(files=Unusable(error), saves={"checkpoint_interval": "5"})
    assert world.core.lifecycle.failed
    assert str(error) in world.core.lifecycle.verdict


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signal_before_rows_are_open_again_waits_for_the_last_checkpoint(number):
    """They are newer than any checkpoint, although this master has not opened its folder yet."""
    world, _ = formed(nodes_stay=False)
    files = Unusable(None)
    world = after(
        world, files=files, saves={"checkpoint_interval": "500"}, nodes_stay=False, slow=True
    )
    all_back(world)
    assert not world.core.rows.is_open
    world.handle(events.Signal(number))
    world.tick(times=4)
    assert world.core.phase is ClusterPhase.FORMED
    world.slow = False
    world.work()
    world.tick(times=2)
    (order,) = world.orders(m.Save)
    saved(world, order.message.number)
    assert world.core.phase is ClusterPhase.STOPPING


class Folder(Files):
    """A folder with checkpoints, and what was done with it."""

    def __init__(self, candidates=(), error=None):
        self.candidates, self.error, self.done = list(candidates), error, []

    def open(self, settings, *, resumes, anyway=False, of_session=False):
        self.done.append(("open", settings.checkpoint_dir))
        return Opened(1, settings.checkpoint_dir, self.candidates)

    def find(self, folder):
        if self.error is not None:
            raise self.error
        return Opened(0, folder, self.candidates)

    def begin(self, above, life, needed):
        return Begun(above + 1, f"part-{above + 1}", "now")

    def complete(self, begun, files, state, **about):
        self.done.append(("complete", about["tables"], about["about"]["worker_class"]))
        self.about = about
        return Completed(f"checkpoint-{begun.number}", 12, 345)

    def drop(self, begun):
        self.done.append(("drop", begun.number))

    def read_state(self, candidate):
        return "state"

    def release(self, taken, why):
        self.done.append(("release", taken))


def with_folder(folder, **settings):
    """A session whose drivers' folders are this one."""
    world, driver = formed(**settings)
    world.services.more_files = lambda: folder
    return world, driver


def saved(world, number, text=""):
    files = [] if text else [{"name": "server-1-shard-0.rows"}]
    world.note(1, m.Saved(number, files, text))
    world.tick(times=2)


def candidate(tables=None, frag_num=1024):
    tables = tables or [Table("w", 2)]
    course = FileEntry("course.npz", 1, 0, 0, 0, 0, 0)
    numbered = tuple({"number": 5 + at, "table": t.to_dict()} for at, t in enumerate(tables))
    manifest = Manifest(3, LIFE, "then", frag_num, numbered, (), {"progress": 0.0}, course)
    return Candidate(3, "there/checkpoint-000003", manifest, [])


def test_driver_saves_all_tables_and_is_told_where():
    folder = Folder()
    world, driver = with_folder(folder)
    call = world.call(driver, m.SaveRows("/there"))
    world.tick(times=2)
    (order,) = world.orders(m.Save)
    assert (order.message.number, order.message.clock) == (1, -1)
    saved(world, 1)
    assert world.answers[call] == m.Report({"path": "checkpoint-1", "rows": 12})
    tables = ({"number": 1, "table": Table("w", 2).to_dict()},)
    assert folder.done == [("open", "/there"), ("complete", tables, "session"), ("release", 1)]


def test_second_save_waits_for_the_first_and_has_another_number():
    world, driver = with_folder(Folder())
    first, second = (world.call(driver, m.SaveRows("/there")) for _ in range(2))
    world.tick(times=2)
    saved(world, 1)
    assert first in world.answers
    assert second not in world.answers
    assert [order.message.number for order in world.orders(m.Save)] == [1, 2]
    saved(world, 2)
    assert second in world.answers


def test_save_that_a_server_cannot_make_is_told_to_the_driver():
    folder = Folder()
    world, driver = with_folder(folder)
    call = world.call(driver, m.SaveRows("/there"))
    world.tick(times=2)
    saved(world, 1, "no room")
    assert isinstance(world.answers[call], CheckpointError)
    assert "no room" in str(world.answers[call])
    assert ("drop", 1) in folder.done


def test_driver_loads_rows_into_the_tables_that_there_are():
    world, driver = with_folder(Folder([candidate([Table("w", 2), Table("new", 3)])]))
    call = world.call(driver, m.LoadRows("/there"))
    world.tick(times=2)
    (order,) = world.orders(m.Load)
    assert order.message == m.Load(3, "there/checkpoint-000003", [[5, 1], [6, 2]])
    world.note(1, m.Loaded(3, 7))
    world.tick(times=2)
    assert world.answers[call] == m.Report({"path": "there/checkpoint-000003", "rows": 7})
    assert world.ask(driver, m.Declare([Table("new", 3).to_dict()])).numbers == [2]


@pytest.mark.parametrize("writer", [MODEL, "session"])
def test_loaded_rows_stay_when_a_job_begins(writer):
    """Whoever wrote the checkpoint, and whether the tables were there as the last job's."""
    saved = candidate([Table("new", 3), Table("last", 1)])
    saved.manifest.job.update(worker_class=writer, tables_of_job=["new", "last"])
    world, driver = with_folder(Folder([saved]))
    assert world.ask(2, m.Declare([Table("last", 1).to_dict()])).numbers == [2]
    call = world.call(driver, m.LoadRows("/there"))
    world.tick(times=2)
    world.note(1, m.Loaded(3, 7))
    world.tick(times=2)
    assert call in world.answers
    for core in (world.core, after(world).core):
        registry = core.members.table_registry
        registry.forget_job(world.now)
        assert sorted(registry.tables) == ["last", "new", "w"]


@pytest.mark.parametrize(
    ("why", "words"), [("", "they are loaded again"), ("its checksum is wrong", "a part of them")]
)
def test_load_that_a_lost_master_had_begun_is_done_by_the_next_one(why, words):
    """Its driver may be lost, too: tables would have a part of the rows, without a word."""
    folder = Folder([candidate([Table("w", 2)])])
    world, driver = with_folder(folder)
    world.call(driver, m.LoadRows("/there"))
    world.tick(times=2)
    assert len(world.orders(m.Load)) == 1
    world = after(world)
    world.services.more_files = lambda: folder
    back(world, "server", 1)
    back(world, "worker", 2)
    world.tick(times=4)
    (load,) = world.orders(m.Load)
    assert load.message == m.Load(3, "there/checkpoint-000003", [[5, 1]])
    assert [fact.kind for fact in world.facts()].count("load") == 1
    world.note(1, m.Loaded(3, 7 if not why else 0, why))
    world.tick(times=2)
    (said,) = [
        effect.text
        for effect in world.effects
        if isinstance(effect, effects.StatusEvent) and effect.kind == "warning"
        and "while a driver loaded" in effect.text
    ]  # fmt: skip
    assert words in said
    assert [fact.data for fact in world.facts() if fact.kind == "load"][-1] == {"folder": ""}
    assert world.core.reported_phase == "idle"


@pytest.mark.parametrize(("folder", "words"), [
    (Folder([candidate(frag_num=8)]), "frag_num is 1024 here and 8 there.*frag_num=8"),
    (Folder([candidate([Table("w", 9)])]), "'w' is declared in two ways: dim=2, and dim=9"),
    (Folder([candidate([Table("w", 2, access="os:system")])]), "add this module to 'modules'"),
    (Folder(error=CheckpointError("there: no good one")), "no good one"),
])  # fmt: skip
def test_load_of_what_does_not_fit_is_refused_and_changes_nothing(folder, words):
    world, driver = with_folder(folder)
    call = world.call(driver, m.LoadRows("/there"))
    world.tick(times=2)
    with pytest.raises((ConfigError, CheckpointError), match=words):
        raise world.answers[call]
    assert not world.orders(m.Load)
    assert world.core.reported_phase == "idle"


def test_load_that_fails_says_why_and_that_rows_may_be_gone():
    world, driver = with_folder(Folder([candidate()]))
    call = world.call(driver, m.LoadRows("/there"))
    world.tick(times=2)
    world.note(1, m.Loaded(3, 0, "its checksum is wrong"))
    world.tick(times=2)
    words = "/there: no checkpoint could be used: checkpoint 3: .*checksum is wrong.*may be gone"
    with pytest.raises(CheckpointError, match=words):
        raise world.answers[call]


def test_server_that_is_lost_while_it_loads_is_waited_for_no_more():
    world, driver = with_folder(Folder([candidate()]))
    call = world.call(driver, m.LoadRows("/there"))
    world.tick(times=2)
    world.handle(gone(1))  # the only one: all rows are lost
    world.tick(times=2)
    assert call not in world.answers
    assert world.core.lifecycle.failed


def test_master_with_a_job_of_its_own_saves_for_no_driver(tmp_path):
    world = World(None)
    world.join("server")
    world.core.lifecycle.go(ClusterPhase.FORMED)
    driver = world.join("driver")
    answer = world.ask(driver, m.SaveRows("/there"))
    assert isinstance(answer, ClusterError | ProtocolError)


# --- checkpoints of its own ----------------------------------------------------------------------


def with_own(folder, past=None, joins=True, **settings):
    """A session that makes checkpoints."""
    from snailps.config import RawConfig
    from snailps.master.job import session as of_session

    texts = {"checkpoint_dir": "own", "checkpoint_interval": "5"}
    raw = RawConfig.from_mapping(texts, "the test")
    made = of_session.SessionJob(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("master_world.SessionJob", lambda raw: made)
        patch.setattr("master_world.Services.more_files", lambda services: folder)
        world = session(past, expected_node_num=1, expected_servers=1, **settings)
    if joins:
        world.join("server")
    return world


def test_session_begins_with_the_newest_checkpoint_and_declarations_wait_for_it():
    found = candidate()
    found.manifest.job["worker_class"] = "session"
    world = with_own(Folder([found]))
    driver = world.join("driver")
    call = world.call(driver, m.Declare([Table("w", 2).to_dict()]))
    world.tick(times=4)
    assert world.core.reported_phase == "restoring"
    assert call not in world.answers
    assert isinstance(world.ask(driver, m.Submit({"worker_class": MODEL})), ClusterError | None)
    world.note(1, m.Loaded(3, 7))
    world.tick(times=4)
    assert world.answers[call].numbers == [1]
    assert world.core.reported_phase == "idle"
    assert [fact.kind for fact in world.facts()].count("open") == 1


def test_session_that_loses_its_rows_says_from_which_checkpoint_it_goes_on():
    found = candidate()
    found.manifest.job["worker_class"] = "session"
    world = with_own(Folder([found]))
    world.tick(times=4)
    world.note(1, m.Loaded(3, 7))
    world.tick(times=4)
    world.handle(gone(1))
    world.tick(times=4)
    assert world.core.lifecycle.verdict.endswith(
        "The same command goes on from checkpoint 3, the tables of the session, in own"
    )


def test_servers_make_a_table_once_the_journal_has_it_on_disk():
    """Else they take pushes to a table that the master after a power cut does not know."""
    world, driver = formed()
    world.slow = True
    world.call(driver, m.Declare([Table("late", 1).to_dict()]))
    world.tick(times=2)
    named = [
        table["name"] for order in world.orders(m.MakeTables) for _, table in order.message.tables
    ]
    assert named == ["w"]
    world.work()
    world.tick(times=2)
    named = [
        table["name"] for order in world.orders(m.MakeTables) for _, table in order.message.tables
    ]
    assert named == ["w", "late"]


def test_session_saves_after_its_interval_where_rows_have_changed():
    world = with_own(Folder())
    world.tick(times=4)
    world.core.shard_reports.sum = lambda name: 9
    world.tick(6)
    assert len(world.orders(m.Save)) == 1
    saved(world, 1)
    world.tick(30)
    assert len(world.orders(m.Save)) == 1  # nothing was pushed since
    world.core.shard_reports.sum = lambda name: 10
    world.tick(2)
    assert len(world.orders(m.Save)) == 2


def test_checkpoint_that_failed_is_made_again_though_nothing_was_pushed_since():
    world = with_own(Folder())
    world.tick(times=4)
    world.core.shard_reports.sum = lambda name: 9
    world.tick(6)
    saved(world, 1, "the disk is full")
    world.tick(11)
    assert [order.message.number for order in world.orders(m.Save)] == [1, 2]


def test_tables_of_a_job_that_a_session_restores_are_not_those_of_the_next_job():
    """Each job begins with tables of its own, whoever was the master when the last one ran."""
    folder = Folder([candidate([Table("w", 2), Table("of-job", 3)])])
    folder.candidates[0].manifest.job.update(worker_class="session", tables_of_job=["of-job"])
    world = with_own(folder)
    world.tick(times=4)
    world.note(1, m.Loaded(3, 7))
    world.tick(times=4)
    tables = world.core.members.table_registry
    assert sorted(tables.tables) == ["of-job", "w"]
    world.core.shard_reports.sum = lambda name: 9
    world.tick(6)
    saved(world, 1)
    assert folder.about["about"]["tables_of_job"] == ["of-job"]
    tables.forget_job(world.now)
    assert list(tables.tables) == ["w"]


def test_job_that_resumes_leaves_tables_of_drivers_as_they_are(tmp_path):
    """Their checkpoint is older than what drivers have pushed since."""
    (tmp_path / "in.txt").write_text("0\n" * 10)
    world, driver = formed()
    settings = {
        "worker_class": MODEL, "input": str(tmp_path / "in.txt"), "checkpoint_dir": str(tmp_path),
    }  # fmt: skip
    job = world.services.load_job(settings, 0.0)
    saved = candidate([Table("w", 2), Table("of-job", 3), Table("v", 1)])
    saved.manifest.job.update(JobRecord(job).identity(()), tables_of_job=["of-job", "v"])
    world.ask(driver, m.Declare([Table("v", 1).to_dict()]))
    folder = Folder([replace(saved, sources=[(settings["input"], 20)])])
    for name in ("open", "read_state", "release"):
        setattr(world.services.files, name, getattr(folder, name))
    assert world.ask(driver, m.Submit(settings)).job == 1
    world.tick(times=4)
    (load,) = world.orders(m.Load)
    tables = world.core.members.table_registry
    numbers = {name: number for name, (number, _) in tables.tables.items()}
    assert load.message.tables == [[6, numbers["of-job"]], [7, numbers["v"]]]
    assert list(tables.of_job) == ["of-job"]


def test_session_that_ends_during_a_job_ends_the_job_and_saves_then(tmp_path):
    (tmp_path / "in.txt").write_text("0\n" * 10)
    world = with_own(Folder())
    world.join("worker")
    world.tick(times=4)
    driver = world.join("driver")
    settings = {"worker_class": MODEL, "input": str(tmp_path / "in.txt")}
    assert world.ask(driver, m.Submit(settings)).job == 1
    world.tick(times=4)
    assert isinstance(world.ask(driver, m.Shutdown()), m.Ok)
    world.tick(times=4)
    assert world.core.job_controller.present.failure == "the session ends"
    assert not world.orders(m.Save)  # its worker is still here
    world.note(2, m.Bye({}))
    world.handle(gone(2))
    world.tick(times=4)
    saved(world, 1)
    assert (world.core.lifecycle.code, world.core.lifecycle.stopping) == (0, True)


def test_rows_are_not_saved_while_the_class_of_a_job_is_loaded():
    """The job might restore a checkpoint meanwhile, and servers know one."""
    world, driver = with_folder(Folder())
    other = world.join("driver")
    world.slow = True
    job = world.call(driver, m.Submit({"worker_class": "nowhere:Model"}))
    call = world.call(other, m.SaveRows("/there"))
    world.tick(times=4)
    assert not world.orders(m.Save)
    world.slow = False
    while world.works:
        world.work()
    world.tick(times=4)
    assert isinstance(world.answers[job], ConfigError)
    assert len(world.orders(m.Save)) == 1
    saved(world, 1)
    assert call in world.answers


def test_session_that_ends_saves_before_that():
    world = with_own(Folder())
    world.tick(times=4)
    world.core.interrupts.signal(signal.SIGINT, world.now)
    world.tick(times=4)
    assert not world.core.lifecycle.stopping
    saved(world, 1)
    assert world.core.lifecycle.stopping


def test_second_signal_ends_a_session_that_saves_at_once():
    world = with_own(Folder())
    world.tick(times=4)
    for _ in range(2):
        world.core.interrupts.signal(signal.SIGINT, world.now)
        world.tick(times=2)
    assert world.core.lifecycle.stopping


def test_session_in_the_folder_of_a_job_is_refused():
    found = candidate()
    found.manifest.job["worker_class"] = MODEL
    world = with_own(Folder([found]), joins=False)
    world.tick(times=4)
    assert world.core.lifecycle.failed
    assert (
        "a checkpoint of another job: worker_class is session here" in world.core.lifecycle.verdict
    )


def test_order_of_saving_is_not_given_while_a_job_is_at_work():
    world, driver = with_folder(Folder())
    world.core.job_controller.present.go(world.core.job_controller.phase.PREPARING)
    assert "a job is at work" in str(world.ask(driver, m.SaveRows("/there")))
    assert not [
        e for e in world.effects if isinstance(e, effects.Order) and isinstance(e.message, m.Save)
    ]


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGTERM"])
def test_signal_at_a_member_of_an_idle_session_has_that_member_leave(name):
    world, _ = formed()
    world.note(2, m.Leaving(name))
    world.tick(times=2)
    assert world.sent(2, m.Stop) == [m.Stop(False, "left as asked")]
    assert world.core.reported_phase == "idle"
    world.note(1, m.Leaving(name))  # the only server: all rows would go
    world.tick(times=4)
    assert (world.core.lifecycle.code, world.core.lifecycle.stopping) == (EXIT_INTERRUPTED, True)
    assert "its rows would go with it" in world.core.lifecycle.verdict


def with_rows_that_change(tmp_path, folder):
    """A session that makes checkpoints while rows are pushed, and a job's settings."""
    (tmp_path / "in.txt").write_text("0\n" * 10)
    world = with_own(folder)
    world.services.more_files = lambda: folder
    pushes = itertools.count(1)
    world.core.shard_reports.sum = lambda name: next(pushes)
    world.join("worker")
    world.tick(times=4)
    return world, {"worker_class": MODEL, "input": str(tmp_path / "in.txt")}


def test_checkpoint_that_is_due_goes_before_a_job_once(tmp_path):
    """Each takes longer than its interval, so another one is due when it ends."""
    world, settings = with_rows_that_change(tmp_path, Folder())
    driver = world.join("driver")
    world.tick(6)
    call = world.call(driver, m.Submit(settings))
    world.tick(7)
    assert call not in world.answers
    saved(world, 1)
    assert world.answers[call].job == 1
    assert len(world.orders(m.Save)) == 1


def test_drivers_that_save_in_close_succession_keep_no_job_from_beginning(tmp_path):
    world, settings = with_rows_that_change(tmp_path, Folder())
    driver, other = world.join("driver"), world.join("driver")
    world.tick(1)
    first = world.call(other, m.SaveRows("/there"))
    job = world.call(driver, m.Submit(settings))
    second = world.call(other, m.SaveRows("/there"))
    world.note(1, m.Saved(1, [{"name": "server-1-shard-0.rows"}], ""))
    assert first in world.answers
    third = world.call(other, m.SaveRows("/there"))  # at once, as in a loop
    world.tick(times=2)
    assert world.answers[job].job == 1
    for call in (second, third):
        assert "a job is at work here" in str(world.answers[call])
    assert len(world.orders(m.Save)) == 1


def test_job_that_is_cancelled_while_it_waits_for_a_checkpoint_never_begins(tmp_path):
    world, settings = with_rows_that_change(tmp_path, Folder())
    driver, other = world.join("driver"), world.join("driver")
    world.tick(6)
    call = world.call(driver, m.Submit(settings))
    assert isinstance(world.ask(other, m.Cancel()), m.Ok)  # another driver's
    assert isinstance(world.ask(driver, m.Cancel(early=True)), m.Ok)  # nothing trains yet
    assert call not in world.answers
    assert isinstance(world.ask(driver, m.Cancel()), m.Ok)
    assert "the job was cancelled" in str(world.answers[call])
    saved(world, 1)
    assert world.core.reported_phase == "idle"
