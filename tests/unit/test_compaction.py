"""The journal begun anew while it is written: whole at every moment, and it says the same."""

import errno
import json
import os
import shutil
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from cluster_models import COUNTER, write_numbers
from master_parts import TestOutbox, controller_of, worker_of
from waiting import happens, joined

from snailps.config import JobSettings, RawConfig
from snailps.config.settings import MasterSettings
from snailps.errors import ClusterError
from snailps.master import journal as module
from snailps.master.effects import Fact, Snapshot
from snailps.master.job.beginning import prepare
from snailps.master.job.ending import figures_of
from snailps.master.job.job import Job
from snailps.master.job.record import JobRecord
from snailps.master.job.recovery import Recovered
from snailps.master.job.state import pack
from snailps.master.journal import BASE, BEGUN, CLUSTER, FACTS, Journal
from snailps.master.phases import JobPhase
from snailps.node.status import EVENTS_MAX
from snailps.transport import messages

FIRST, NUMBERS = Fact("cluster", {"cluster_id": 7, "at": 0.0}), Fact("numbers", {"until": 1024})
TRAIN = Fact("train", {"nodes": [1, 2, 3], "at": 0.0, "restored": 0})
ARRAYS = {"outcomes": np.arange(5, dtype="<i4"), "none": np.zeros(0, [("a", "<u2"), ("b", "<f8")])}


@pytest.fixture
def grown_bytes():
    return module.GROWN_BYTES


@pytest.fixture
def journal(tmp_path, monkeypatch, grown_bytes):
    monkeypatch.setattr(module, "GROWN_BYTES", grown_bytes)
    opened = Journal(tmp_path / "journal")
    opened.take()
    opened.begin([FIRST, NUMBERS])
    opened.keep_base(b"base")
    opened.note(TRAIN.kind, TRAIN.data)
    yield opened
    opened.close()


def ended():
    """Waits until a compaction is over."""
    for thread in threading.enumerate():
        if thread.name == "snailps-compact":
            joined(thread)


def read(path):
    """What a master finds that takes over: the facts, and the arrays of their state."""
    other = Journal(path)
    facts = other.read()
    other.check(facts)
    return facts, other.state_arrays() if any(fact.kind == "state" for fact in facts) else {}


def dones(*numbers):
    return [Fact("done", {"number": number}) for number in numbers]


def note(journal, *numbers):
    for fact in dones(*numbers):
        journal.note(fact.kind, fact.data)


def test_compacted_journal_has_what_lasts_the_state_and_what_came_since(journal):
    note(journal, 0, 1)
    journal.note("numbers", {"until": 2048})
    journal.compact(Snapshot({"seen": 2}, ARRAYS, [Fact("clocks", {})]))
    ended()
    note(journal, 2)
    facts, arrays = read(journal.path)
    state = next(fact for fact in facts if fact.kind == "state")
    assert state.data["seen"] == 2
    lasting = [FIRST, Fact("numbers", {"until": 2048}), TRAIN]
    assert facts == [*lasting, state, Fact("clocks", {}), BEGUN, *dones(2)]
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].tolist() == array.tolist()
    assert {file.name for file in journal.path.iterdir()} == {
        FACTS, CLUSTER, BASE, "lock", "state-1"
    }  # fmt: skip


def test_compacted_journal_of_a_long_run_has_the_newest_events_only(journal):
    events = [Fact("event", {"text": str(number)}) for number in range(EVENTS_MAX + 30)]
    for event in events:
        journal.note(event.kind, event.data)
    journal.compact(Snapshot({"seen": 0}, ARRAYS))
    ended()
    facts, _ = read(journal.path)
    assert facts[:3] == [FIRST, NUMBERS, TRAIN]
    assert [fact for fact in facts if fact.kind == "event"] == events[-EVENTS_MAX:]


def test_journal_that_was_taken_over_is_compacted_as_any_other(journal):
    note(journal, 0)
    journal.compact(Snapshot({"seen": 1}, ARRAYS))
    ended()
    note(journal, 1)
    journal.close()
    second = Journal(journal.path)
    second.take()
    second.read()
    second.go_on([Fact("numbers", {"until": 9})])
    note(second, 2)
    second.compact(Snapshot({"seen": 3}, ARRAYS))
    ended()
    facts, _ = read(journal.path)
    assert [fact.kind for fact in facts] == ["cluster", "numbers", "train", "state", "begun"]
    assert facts[1].data == {"until": 9}
    assert facts[3].data["seen"] == 3
    assert sorted(file.name for file in journal.path.glob("state-*")) == ["state-2"]
    second.close()


def test_facts_that_are_noted_while_it_is_compacted_are_in_the_old_file_and_the_new(
    journal, monkeypatch
):
    begun, go_on = threading.Event(), threading.Event()
    sync = os.fsync

    def slow(file):
        begun.set()
        happens(go_on, "the facts that are noted meanwhile")
        sync(file)

    monkeypatch.setattr(module.os, "fsync", slow)
    note(journal, 0)
    journal.compact(Snapshot({"seen": 1}, ARRAYS))
    happens(begun, "a sync of the new file")
    note(journal, 1, 2)
    assert not journal.is_long
    assert [f for f in read(journal.path)[0] if f.kind == "done"] == dones(0, 1, 2)
    go_on.set()
    ended()
    note(journal, 3)
    assert [f for f in read(journal.path)[0] if f.kind == "done"] == dones(1, 2, 3)


def test_journal_that_is_left_anywhere_in_a_compaction_has_every_fact(journal, monkeypatch):
    """As kill -9 leaves it after each call that changes a file; a fact is noted before each."""
    copies, noted = [], [0]
    original = {name: getattr(module, name) for name in ("create_file", "write_all")}
    sync, replace, unlink = os.fsync, module.Path.replace, module.Path.unlink

    def spied(call):
        def wrapped(*arguments, **named):
            if threading.current_thread().name != "snailps-compact":
                return call(*arguments, **named)
            for side in ("before", "after"):
                if not journal._guard._is_owned():  # as the loop can, and no sooner
                    number = len(noted)
                    noted.append(number)
                    loop = threading.Thread(target=note, args=(journal, number))
                    loop.start()
                    joined(loop)
                copy = journal.path.with_name(f"copy-{len(copies)}")
                shutil.copytree(journal.path, copy)
                copies.append((copy, len(noted)))
                if side == "before":
                    result = call(*arguments, **named)
            return result

        return wrapped

    note(journal, 0)
    with monkeypatch.context() as patch:
        for name, call in original.items():
            patch.setattr(module, name, spied(call))
        patch.setattr(module.os, "fsync", spied(sync))
        patch.setattr(module.Path, "replace", spied(replace))
        patch.setattr(module.Path, "unlink", spied(unlink))
        for _ in range(2):  # the second has an old state to let go of
            journal.compact(Snapshot({"seen": len(noted)}, ARRAYS))
            ended()
    assert len(copies) > 30
    new = 0
    for copy, count in copies:
        facts, arrays = read(copy)
        state = [fact.data["seen"] for fact in facts if fact.kind == "state"]
        numbers = [fact.data["number"] for fact in facts if fact.kind == "done"]
        assert [*range(*(state or [0])), *numbers] == [*range(count)]
        assert len(state) <= 1
        assert bool(arrays) == bool(state)
        new += bool(state)
        again = Journal(copy)
        again.take()
        again.read()
        again.go_on()
        again.close()
        left = {file.name for file in copy.iterdir()} - {FACTS, CLUSTER, BASE, "lock"}
        assert len(left) == len(state), left
    assert 0 < new < len(copies)


@pytest.mark.parametrize("grown_bytes", [100])
@pytest.mark.parametrize("name", ["create_file", "write_all", "fsync"])
def test_journal_that_cannot_be_compacted_says_so_and_goes_on_as_it_is(
    journal, monkeypatch, caplog, name
):
    def full(*_):
        if threading.current_thread().name == "snailps-compact":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*_)

    owner = module.os if name == "fsync" else module
    original = getattr(owner, name)
    note(journal, *range(5))
    assert journal.is_long
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        journal.compact(Snapshot({"seen": 5}, ARRAYS))
        ended()
    assert "cannot be compacted (No space left on device)" in caplog.text
    assert journal.kept
    assert not journal.is_long  # at once
    note(journal, *range(5, 9))
    assert [f for f in read(journal.path)[0] if f.kind == "done"] == dones(*range(9))
    assert not [*journal.path.glob("*.part"), *journal.path.glob("state-*")]
    assert journal.is_long
    journal.compact(Snapshot({"seen": 9}, ARRAYS))
    ended()
    assert [f.data["seen"] for f in read(journal.path)[0] if f.kind == "state"] == [9]


def test_journal_that_ends_while_it_is_compacted_leaves_nothing(journal, monkeypatch):
    begun = threading.Event()
    sync = os.fsync

    def slow(file):
        begun.set()
        happens(journal._closed, "the end of the journal")
        sync(file)

    monkeypatch.setattr(module.os, "fsync", slow)
    journal.compact(Snapshot({}, ARRAYS))
    happens(begun, "a sync of the new file")
    journal.end()
    assert not journal.path.exists()


@pytest.mark.parametrize("name", ["state-1", FACTS])
def test_state_with_a_flipped_bit_anywhere_is_refused(journal, name):
    journal.compact(Snapshot({"seen": 1}, ARRAYS))
    ended()
    facts, _ = read(journal.path)
    data = (journal.path / name).read_bytes()
    with (journal.path / name).open("r+b", buffering=0) as file:
        for at in range(len(data)):
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << at % 8]), at)
            if name == FACTS and (at < len(module.encode(FIRST)) or at == len(data) - 1):
                assert read(journal.path)[0] == facts  # the copy has it; a newline says nothing
            else:
                with pytest.raises(ClusterError, match=f"{name} is damaged"):
                    read(journal.path)
            os.pwrite(file.fileno(), data[at : at + 1], at)
    (journal.path / "state-1").unlink()
    with pytest.raises(ClusterError, match="state-1 is damaged: it is missing"):
        read(journal.path)


@pytest.mark.parametrize("grown_bytes", [1000])
def test_journal_is_compacted_when_it_has_grown_by_a_share_of_its_state(journal):
    assert not journal.is_long
    note(journal, *range(60))
    assert journal.is_long
    journal.compact(Snapshot({}, {"outcomes": np.zeros(40_000, np.uint8)}))
    ended()
    note(journal, *range(200))
    assert not journal.is_long
    journal.close()
    other = Journal(journal.path)
    other.take()
    other.read()
    other.go_on()
    assert not other.is_long
    note(other, *range(200))
    assert other.is_long
    other.close()


# --- what a job's state says --------------------------------------------------------------------

NODES = [1, 2, 3, 4, 5]
NOW = 1000.0
JOBS = {
    "plain": {"epochs": "3"},
    "own": {"epochs": "3", "assign": "own"},
    "ssp": {"epochs": "3", "consistency": "ssp", "staleness": "2"},
    "bsp": {"epochs": "3", "consistency": "bsp", "micro_batches": "3"},
    "rounds": {"worker_class": "clock_models:Mean", "rounds": "40", "input": ""},
}


class Side:
    """A master's course, job and journal, with workers that only the test knows."""

    def __init__(self, folder, kind, facts=None):
        values = {"worker_class": COUNTER, "input": str(folder / "in.txt"), "block_bytes": "100"}
        if kind == "rounds":
            del values["block_bytes"]
        raw = RawConfig.from_mapping({**values, **JOBS[kind]}, "test")
        self.job = Job(raw, (JobSettings, MasterSettings), NOW)
        prepare(self.job, 3)
        self.journal = Journal(folder / "journal")
        self.members = SimpleNamespace(
            cores_of=lambda number: 1.0,
            all={number: worker_of(number) for number in NODES}, nodes=lambda role="": [],
            gone_nodes={4: True, 5: True}, shard_facts=lambda: [Fact("shards", {"shards": [1]})],
            table_registry=SimpleNamespace(remake=lambda now: None),
        )  # fmt: skip
        self.out = self.members.out = TestOutbox()
        rows = MagicMock(clocks_set=True, expiring=False, moving=False, open=lambda *_: False)
        past = None
        if facts is not None:
            past = Recovered(facts, "", *self.journal.check(self.journal.read()))
        self.controller = controller_of(self.members, self.out, rows, past)
        self.controller.leases.job = self.job
        self.controller.present.phase = JobPhase.READY
        if facts is None:
            self.journal.take()
            self.journal.begin([FIRST])
            self.journal.keep_base(pack(JobRecord(self.job).base()))
            self.out.journal = self.journal.note
            self.out.journal(TRAIN.kind, TRAIN.data)
            self.controller.training.begin(self.job, NODES[:3], None, NOW)
        else:
            self.controller.opening.recovery.go_on(self.job, NOW)

    def close(self):
        self.job.close()
        self.journal.close()

    def train(self, turns, hold):
        """Three workers train entries, each with so many more at hand; what they hold then."""
        leases, held = self.controller.leases, {node: [] for node in NODES[:3]}
        for _ in range(turns):
            for node, mine in held.items():
                member = self.members.all[node]
                leases.lease(
                    member, messages.Lease("train"), lambda got, to=mine: to.append(got), NOW
                )
                leases._asking.clear()
                leases._refused.clear()
                mine[:] = [got for got in mine if got.number >= 0]
                while len(mine) > hold:
                    number = mine.pop(0).number
                    figures = {"loss": number / 7, "examples": 3.0, "lr": 1 / (1 + number)}
                    said = messages.Done("train", number, number % 9, 0.3, figures)
                    leases.done(member, said, lambda answer: None, NOW)
        return {node: [got.number for got in mine] for node, mine in held.items()}

    def stands(self):
        """All that can be told of where the job stands."""
        state = JobRecord(self.job).dump(NOW, exact=True)
        state.figures.update(wall_s=0, train_s=0)
        return {
            "state": json.loads(json.dumps(state.about)),
            **{name: array.tolist() for name, array in state.arrays.items()},
            "done": self.job.schedule.records.done().tolist(),
            "closed": self.job.schedule.closed,
            "figures": figures_of(self.job, {}, NOW) | {"wall_s": 0, "train_s": 0},
        }


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize(("turns", "hold"), [(6, 1), (50, 0)], ids=["half of it", "all of it"])
def test_job_goes_on_from_a_compacted_journal_where_it_stood(tmp_path, kind, turns, hold):
    """Of rounds too, in the first; and its workers may not have finished when all is done."""
    write_numbers(tmp_path / "in.txt", 400)
    living = Side(tmp_path, kind)
    held = living.train(turns, hold)
    assert living.job.schedule.over == (not hold and kind != "rounds")
    living.journal.compact(living.controller.training.snapshot(NOW))
    ended()
    living.journal.close()
    facts, _ = read(living.journal.path)
    resumed = Side(tmp_path, kind, facts)
    assert resumed.stands() == living.stands()
    for node, numbers in held.items():
        assert all(resumed.job.schedule.claim(number, node) for number in numbers)
    living.close(), resumed.close()
