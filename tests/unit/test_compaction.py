"""The journal begun anew while it is written: whole at every moment, and it says the same."""

import errno
import json
import os
import random
import shutil
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from cases import seeds
from cluster_models import COUNTER, write_numbers
from master_parts import TestOutbox

from snailps.config import JobSettings, RawConfig
from snailps.config.settings import MasterSettings
from snailps.errors import ClusterError
from snailps.master import journal as module
from snailps.master.effects import Fact, Snapshot
from snailps.master.job.controller import JobController
from snailps.master.job.job import Job
from snailps.master.job.recovery import JobRecovery, Past
from snailps.master.job.snapshot import encode, pack
from snailps.master.journal import BASE, BEGUN, FACTS, LIFE, Journal
from snailps.master.leases import RoundLedger
from snailps.master.phases import JobPhase
from snailps.transport import messages

FIRST, NUMBERS = Fact("life", {"life": 7, "at": 0.0}), Fact("numbers", {"until": 1024})
TRAIN = Fact("train", {"nodes": [1, 2, 3], "at": 0.0, "restored": 0})
ARRAYS = {"outcomes": np.arange(5, dtype="<i4"), "none": np.zeros(0, [("a", "<u2"), ("b", "<f8")])}


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "journal")
    opened.take()
    opened.begin([FIRST, NUMBERS])
    opened.keep_base(b"base")
    opened.note(TRAIN.kind, TRAIN.data)
    yield opened
    opened.close()


def ended(journal):
    """Waits until a compaction is over."""
    if (thread := journal._compactor) is not None:
        thread.join(30)
        assert not thread.is_alive()


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
    ended(journal)
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
        FACTS, LIFE, BASE, "lock", "state-1"
    }  # fmt: skip


def test_journal_that_was_taken_over_is_compacted_as_any_other(journal):
    note(journal, 0)
    journal.compact(Snapshot({"seen": 1}, ARRAYS))
    ended(journal)
    note(journal, 1)
    journal.close()
    second = Journal(journal.path)
    second.take()
    second.read()
    second.go_on([Fact("numbers", {"until": 9})])
    note(second, 2)
    second.compact(Snapshot({"seen": 3}, ARRAYS))
    ended(second)
    facts, _ = read(journal.path)
    assert [fact.kind for fact in facts] == ["life", "numbers", "train", "state", "begun"]
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
        assert go_on.wait(30)
        sync(file)

    monkeypatch.setattr(module.os, "fsync", slow)
    note(journal, 0)
    journal.compact(Snapshot({"seen": 1}, ARRAYS))
    assert begun.wait(30)
    note(journal, 1, 2)
    assert not journal.is_long
    assert [f for f in read(journal.path)[0] if f.kind == "done"] == dones(0, 1, 2)
    go_on.set()
    ended(journal)
    note(journal, 3)
    assert [f for f in read(journal.path)[0] if f.kind == "done"] == dones(1, 2, 3)


def test_journal_that_is_left_anywhere_in_a_compaction_has_every_fact(journal, monkeypatch):
    """As kill -9 leaves it after each call that changes a file; a fact is noted before each."""
    copies, noted = [], [0]
    original = {name: getattr(module, name) for name in ("_create", "_write")}
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
                    loop.join(30)
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
            ended(journal)
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
        left = {file.name for file in copy.iterdir()} - {FACTS, LIFE, BASE, "lock"}
        assert len(left) == len(state), left
    assert 0 < new < len(copies)


@pytest.mark.parametrize("name", ["_create", "_write", "fsync"])
def test_journal_that_cannot_be_compacted_says_so_and_goes_on_as_it_is(
    journal, monkeypatch, caplog, name
):
    def full(*_):
        if threading.current_thread().name == "snailps-compact":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*_)

    owner = module.os if name == "fsync" else module
    original = getattr(owner, name)
    monkeypatch.setattr(module, "GROWN_BYTES", 100)
    journal._due = 100
    note(journal, *range(5))
    assert journal.is_long
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        journal.compact(Snapshot({"seen": 5}, ARRAYS))
        ended(journal)
    assert "cannot be compacted (No space left on device)" in caplog.text
    assert journal.kept
    assert not journal.is_long  # at once
    note(journal, *range(5, 9))
    assert [f for f in read(journal.path)[0] if f.kind == "done"] == dones(*range(9))
    assert not [*journal.path.glob("*.part"), *journal.path.glob("state-*")]
    assert journal.is_long
    journal.compact(Snapshot({"seen": 9}, ARRAYS))
    ended(journal)
    assert [f.data["seen"] for f in read(journal.path)[0] if f.kind == "state"] == [9]


def test_journal_that_ends_while_it_is_compacted_leaves_nothing(journal, monkeypatch):
    begun = threading.Event()
    sync = os.fsync

    def slow(file):
        begun.set()
        assert journal._closed.wait(30)
        sync(file)

    monkeypatch.setattr(module.os, "fsync", slow)
    journal.compact(Snapshot({}, ARRAYS))
    assert begun.wait(30)
    journal.end()
    assert not journal.path.exists()


@pytest.mark.parametrize("name", ["state-1", FACTS])
def test_state_with_a_flipped_bit_anywhere_is_refused(journal, name):
    journal.compact(Snapshot({"seen": 1}, ARRAYS))
    ended(journal)
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


def test_journal_is_compacted_when_it_has_grown_by_a_share_of_its_state(journal, monkeypatch):
    monkeypatch.setattr(module, "GROWN_BYTES", 1000)
    journal._due = 1000
    assert not journal.is_long
    note(journal, *range(60))
    assert journal.is_long
    journal.compact(Snapshot({}, {"outcomes": np.zeros(40_000, np.uint8)}))
    ended(journal)
    note(journal, *range(200))
    assert 1000 < journal._grown < 10_000
    assert not journal.is_long
    journal.close()
    other = Journal(journal.path)
    other.take()
    other.read()
    other.go_on()
    assert journal._grown <= other._grown < 10_000
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


def worker(number):
    return SimpleNamespace(
        number=number, name=f"worker {number}", dropped=False, finished=False, leaving=False,
        wait_for=lambda text, now: None, log_wait=lambda now: None, waits="", resume_state={},
        done=0, block_since=0.0, rate=0.0,
    )  # fmt: skip


class Rows:
    """Orders to servers, as they were given."""

    clocks_set, expiring, moving = True, False, False

    def __init__(self):
        self.given = []

    def __getattr__(self, name):
        return lambda *arguments, **named: self.given.append((name, arguments, named))


class Side:
    """A master's course, job and journal, with workers that only the test knows."""

    def __init__(self, folder, kind, facts=None):
        values = {"worker_class": COUNTER, "input": str(folder / "in.txt"), "block_bytes": "100"}
        raw = RawConfig.from_mapping({**values, **JOBS[kind]}, "test")
        self.job = Job(raw, (JobSettings, MasterSettings), NOW)
        self.job.prepare(3)
        self.journal = Journal(folder / "journal")
        self.members = SimpleNamespace(
            all={number: worker(number) for number in NODES}, nodes=lambda role="": [],
            rows=Rows(), gone={4: True, 5: True}, shards={"shards": [1]},
            table_registry=SimpleNamespace(remake=lambda now: None),
        )  # fmt: skip
        self.out = self.members.out = TestOutbox()
        services = SimpleNamespace(files=None, reader=None)
        told = {"fail": pytest.fail, "on_end": lambda now: None}
        self.controller = JobController(self.members, self.out, services, 1.0, **told)
        self.controller.phase = JobPhase.READY
        self.facts = []
        if facts is None:
            self.journal.take()
            self.journal.begin([FIRST])
            self.journal.keep_base(pack(self.job.base()))
            self.out.note = self._note
            self._note(TRAIN.kind, TRAIN.data)
            self.controller.job = self.job
            self.controller.begin_training(self.job, NODES[:3], None, NOW)
        else:
            self.controller.job = self.job
            past = Past(facts, "", *self.journal.check(self.journal.read()))
            JobRecovery(past, self.members).go_on(self.controller, self.job, NOW)

    def _note(self, kind, data):
        self.facts.append(Fact(kind, json.loads(json.dumps(data))))
        Journal.note(self.journal, kind, data)

    def close(self):
        self.job.close()
        self.journal.close()

    def compact(self):
        self.journal.compact(self.controller.snapshot(NOW))
        ended(self.journal)

    def stands(self):
        """All that can be told of where the job stands."""
        state, arrays = encode(self.job.snapshot(NOW, exact=True), with_input=False)
        state["figures"] |= {"wall_s": 0, "train_s": 0}
        return {
            "state": json.loads(json.dumps(state)),
            **{name: array.tolist() for name, array in arrays.items()},
            "done": self.job.ledger.records.done().tolist(),
            "closed": self.job.ledger.closed,
            "ended by": self.job.ended_by,
            "ticks": self.controller.expiry.ticks,
            "clocks": self.controller.leases.clocks_noted,
            "closing": self.controller.round is not None and self.controller.round.closing,
            "figures": self.job.figures({}, NOW) | {"wall_s": 0, "train_s": 0},
            "rows": self.members.rows.given,
        }

    def rest(self):
        """Every entry that is still given out."""
        numbers = []
        for _ in range(2000):
            for node in NODES:
                if (entry := self.job.ledger.take(node)) is not None:
                    numbers.append(entry.number)
                    self.job.ledger.done(entry.number, node)
        return sorted(numbers)


class Workers:
    """Does with a job what workers do, at random; what is held is known here."""

    def __init__(self, side, seed):
        self.side, self.random = side, random.Random(seed)
        self.held = {node: [] for node in NODES}
        self.trained = {node: [] for node in NODES}
        self.here = set(NODES[:3])

    def step(self):
        side, leases, chance = self.side, self.side.controller.leases, self.random
        job, node = side.job, chance.choice(NODES)
        member, held = side.members.all[node], self.held[node]
        action = chance.choices(
            ["lease", "done", "settle", "settle all", "come", "go", "tick", "round"],
            [30, 30, 8, 2, 2, 2, 1, 8],
        )[0]
        if action == "lease" and node in self.here and len(held) < 2:
            leases.lease(member, messages.Lease("train"), partial(self._got, node), NOW)
            leases._asking.clear()
            leases._refused.clear()
        elif action == "done" and held:
            number = held.pop(0)
            figures = {"loss": chance.random() * 9, "examples": 3.0, "lr": chance.random()}
            said = messages.Done("train", number, chance.randrange(9), chance.random(), figures)
            leases.done(member, said, lambda answer: None, NOW)
            self.trained[node].append(number)
        elif action == "settle" and not job.rounds:
            leases.settled(member, self.trained[node][-3:])
        elif action == "settle all" and not job.rounds:
            side._note("settled_all", {"node": node, "but": self.trained[node][-2:]})
            job.ledger.records.settle_all(node, self.trained[node][-2:])
        elif action == "come" and node not in self.here:
            self.here.add(node)
            side._note("join", {"node": node})
            job.ledger.join(node)
        elif action == "go" and not held and len(self.here) > 1 and node in self.here:
            self.here.discard(node)
            leases.released(member, lambda now: None, NOW)
        elif action == "tick":
            side._note("tick", {"tick": side.controller.expiry.ticks[-1] + 1})
            side.controller.expiry.ticks.append(side.controller.expiry.ticks[-1] + 1)
        elif action == "round" and isinstance(job.ledger, RoundLedger) and job.ledger.ready:
            self._round(job)

    def _got(self, node, answer):
        if answer.number >= 0:
            self.held[node].append(answer.number)

    def _round(self, job):
        controller = self.side.controller
        if not controller.round.closing:
            controller.round.close(job.ledger.parts, NOW)
            return
        figures = {"loss": self.random.random()}
        self.side._note("round", {"figures": figures})
        job.round_done(figures)
        controller.round.closing = False
        job.ledger.advance()
        job.begin_round()


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("kind", JOBS)
def test_job_goes_on_from_a_compacted_journal_as_from_all_its_facts(tmp_path, kind, seed):
    write_numbers(tmp_path / "in.txt", 400)
    living = Side(tmp_path, kind)
    workers = Workers(living, seed)
    for at in range(240):
        workers.step()
        if at in (60, 61, 150):
            living.compact()
        if at == 200 and seed == 3:
            living.controller._end_early(living.job, "max_seconds", NOW)
    living.journal.close()
    facts, _ = read(living.journal.path)
    assert len(facts) < len(living.facts)
    sides = [Side(tmp_path, kind, found) for found in (facts, [FIRST, *living.facts])]
    compacted, plain = (side.stands() for side in sides)
    if kind in ("own", "ssp"):
        # Who joins or leaves moves what is not leased, and only the living book knows that.
        compacted.pop("owner"), plain.pop("owner")
        most = living.job.ledger.ahead_max
        for stands in (compacted, plain):
            assert stands["state"]["exact"]["ledger"].pop("ahead_max") <= most
            stands["figures"].pop("ahead_max", 0)
    assert compacted == plain
    assert len(plain["done"]) > 20 or kind == "rounds"
    assert sides[0].rest() == sides[1].rest()
    for side in (living, *sides):
        side.close()


@pytest.mark.parametrize("kind", ["own", "ssp"])
def test_entries_of_a_compacted_journal_are_dealt_as_they_were(tmp_path, kind):
    write_numbers(tmp_path / "in.txt", 400)
    living = Side(tmp_path, kind)
    workers = Workers(living, 9)
    for _ in range(150):
        workers.step()
    living.compact()
    living.journal.close()
    resumed = Side(tmp_path, kind, read(living.journal.path)[0])
    assert resumed.stands()["state"] == living.stands()["state"]
    for node, numbers in workers.held.items():
        for number in numbers:
            assert resumed.job.ledger.claim(number, node)
    assert {n: [*left] for n, left in resumed.job.ledger._left.items()} == {
        n: [*left] for n, left in living.job.ledger._left.items()
    }
    living.close(), resumed.close()


@pytest.mark.parametrize("kind", [kind for kind in JOBS if kind != "rounds"])
def test_job_goes_on_from_a_journal_compacted_when_every_block_is_done(tmp_path, kind):
    """Its workers may not have finished, or the export has yet to be written."""
    write_numbers(tmp_path / "in.txt", 400)
    living = Side(tmp_path, kind)
    leases, workers = living.controller.leases, Workers(living, 1)
    while not living.job.ledger.over:
        for node in NODES[:3]:
            member = living.members.all[node]
            leases.lease(member, messages.Lease("train"), partial(workers._got, node), NOW)
            leases._asking.clear()
            leases._refused.clear()
            for number in workers.held[node]:
                said = messages.Done("train", number, 1, 1.0, {"loss": 1.0, "examples": 1.0})
                leases.done(member, said, lambda answer: None, NOW)
            workers.held[node].clear()
    living.compact()
    living.journal.close()
    resumed = Side(tmp_path, kind, read(living.journal.path)[0])
    assert resumed.job.ledger.over
    assert resumed.stands()["state"] == living.stands()["state"]
    living.close(), resumed.close()
