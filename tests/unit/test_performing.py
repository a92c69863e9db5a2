"""Effects of the master that fail: their receiver hears of it, and later ones are performed."""

import threading
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from waiting import until

from snailps.errors import ClusterError, MisuseError, SnailError
from snailps.master import effects
from snailps.master.background_tasks import BackgroundTasks
from snailps.master.effects import Snapshot
from snailps.master.journal import Journal
from snailps.master.performer import Performer
from snailps.node.background import in_thread
from snailps.node.effects import Answering, Work
from snailps.transport import messages
from snailps.transport.messages.codec import CONTAINERS_MAX, JSON_BYTES_MAX, encode

BAD = messages.Report({"auc": np.float32(0.5)})
LONG = messages.Report({"text": "a" * JSON_BYTES_MAX})
MANY = messages.Report({"lists": [[]] * (CONTAINERS_MAX + 1)})
GOOD = messages.Report({"auc": 0.5})


@pytest.mark.parametrize(
    ("message", "words"),
    [(BAD, "float32 is not JSON"), (LONG, "bytes of JSON, limit"), (MANY, "262,144 lists")],
)
def test_message_that_no_peer_could_decode_is_not_encoded(message, words):
    with pytest.raises(MisuseError, match=words):
        encode(message)


class Server:
    """The control server of a master: encodes, and keeps what goes out."""

    def __init__(self):
        self.out = []

    def note(self, peer, message):
        encode(message)
        self.out.append((peer.name, message))

    def call(self, peer, message, on_answer):
        self.note(peer, message)

    def contain(self, peer, do):
        with pytest.raises(SnailError) as error:
            do()
        self.out.append((peer.name, str(error.value)))

    def reply_to(self, peer):
        def reply(answer):
            if not isinstance(answer, SnailError):
                encode(answer)
            self.out.append((peer.name, answer))

        return reply


class Performing:
    """A performer with two peers, each of which has made a call."""

    def __init__(self):
        self.server, self.events = Server(), []
        self.performer = Performer(self.server, self.events.append, {}, status=None, closed=None)
        for name in ("first", "second"):
            peer = SimpleNamespace(name=name, tag=None, address=("h", 1))
            self.performer.received(peer, messages.Ask("status"), self.server.reply_to(peer))
        self.peers = [event.peer for event in self.events]
        self.calls = [event.call for event in self.events]
        self.events.clear()


@pytest.fixture
def performing():
    return Performing()


def test_answer_that_cannot_be_encoded_is_an_error_to_its_caller_and_later_ones_leave(performing):
    first, second = performing.calls
    performing.performer.perform([Answering(first, BAD), Answering(second, GOOD)])
    (caller, error), other = performing.server.out
    assert (caller, other) == ("first", ("second", GOOD))
    assert isinstance(error, SnailError)
    assert "Report cannot be sent: Object of type float32" in str(error)
    performing.performer.perform([Answering(first, GOOD)])
    assert len(performing.server.out) == 2  # the call is over


def test_note_that_cannot_be_encoded_ends_its_peer_and_an_order_is_answered(performing):
    first, second = performing.peers
    performing.performer.perform(
        [effects.Order(first, LONG, 5), effects.Send(first, BAD), effects.Send(second, GOOD)]
    )
    (ended, why), last = performing.server.out
    assert (ended, last) == ("first", ("second", GOOD))
    assert "Report cannot be sent" in why
    (answered,) = performing.events
    assert (answered.order, str(answered.answer)[:11]) == (5, "Report has ")


def test_calls_that_are_answered_cost_no_memory(performing):
    """Each block is two calls of its worker: over days they are very many."""
    peer, server = SimpleNamespace(name="w", tag=None, address=("h", 1)), performing.server

    def ask(times):
        for _ in range(times):
            performing.performer.received(peer, messages.Ask("status"), server.reply_to(peer))
            performing.performer.perform([Answering(performing.events.pop().call, GOOD)])
            server.out.clear()

    ask(10)
    tracemalloc.start()
    ask(3000)
    growth_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert growth_bytes < 20_000  # less than a reference for each


def no_thread(self):
    raise RuntimeError("can't start new thread")


def test_thread_that_cannot_start_fails_its_task_and_no_other(monkeypatch):
    tasks, found = BackgroundTasks(), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        tasks.begin(Work(1, lambda: 1, "export"))
        assert in_thread("x", lambda: 1).exception() is not None
    tasks.begin(Work(2, lambda: 2, "export"))
    until(lambda: found.extend(tasks.ended()) or len(found) >= 2, "the end of works")
    assert isinstance(found[0].error, ClusterError)
    assert "can't start new thread" in str(found[0].error)
    assert "ulimit -u" in str(found[0].error)
    assert [(one.work, one.result) for one in found] == [(1, None), (2, 2)]


def test_journal_outlives_a_compaction_whose_thread_cannot_start(tmp_path, monkeypatch, caplog):
    journal = Journal(tmp_path / "j")
    journal.path.mkdir()
    journal.take()
    journal.begin([effects.Fact("cluster", {})])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        journal.compact(Snapshot({}))
    assert "cannot be compacted (can't start new thread)" in caplog.text
    journal.note("done", {"number": 1})
    journal.close()
    again = Journal(tmp_path / "j")
    again.take()
    assert [fact.kind for fact in again.read()] == ["cluster", "begun", "done"]
    again.close()


def test_fact_that_cannot_be_encoded_gives_the_journal_up(tmp_path, caplog):
    journal = Journal(tmp_path / "j")
    journal.path.mkdir()
    journal.take()
    journal.begin([effects.Fact("cluster", {})])
    journal.note("exported", {"figures": object()})
    assert not journal.kept
    assert "THE JOURNAL CANNOT BE WRITTEN" in caplog.text
    journal.close()
