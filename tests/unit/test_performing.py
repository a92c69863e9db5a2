"""Effects of the master that fail: their receiver hears of it, and later ones are performed."""

import threading

import numpy as np
import pytest
from waiting import until

from snailps.config import MasterSettings, RawConfig
from snailps.errors import ClusterError, MisuseError, SnailError
from snailps.master import effects
from snailps.master.background_tasks import BackgroundTasks
from snailps.master.effects import Snapshot
from snailps.master.journal import Journal
from snailps.master.process import Master
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


class Peers:
    """The control server of a master: encodes, and keeps what goes out."""

    def __init__(self):
        self.out = []

    def note(self, peer, message):
        encode(message)
        self.out.append((peer, message))

    def call(self, peer, message, on_answer):
        self.note(peer, message)

    def fence(self, peer, do):
        with pytest.raises(SnailError) as error:
            do()
        self.out.append((peer, str(error.value)))

    def reply(self, peer):
        def reply(answer):
            if not isinstance(answer, SnailError):
                encode(answer)
            self.out.append((peer, answer))

        return reply


@pytest.fixture
def master():
    made = Master(MasterSettings(listen_addr="127.0.0.1:0"), RawConfig(), session=True)
    made._server = Peers()
    for number in (1, 2):
        made._peers[number] = f"peer {number}"
        made._calls[number] = {10 + number}
        made._replies[10 + number] = number, made._server.reply(number)
    return made


def test_answer_that_cannot_be_encoded_is_an_error_to_its_caller_and_later_ones_leave(master):
    master._perform([Answering(11, BAD), Answering(12, GOOD)])
    (first, error), second = master._server.out
    assert (first, second) == (1, (2, GOOD))
    assert isinstance(error, SnailError)
    assert "Report cannot be sent: Object of type float32" in str(error)
    assert not master._replies


def test_note_that_cannot_be_encoded_ends_its_peer_and_an_order_is_answered(master):
    answers = []
    master._on_answer = lambda order, answer: answers.append((order, str(answer)[:11]))
    master._perform([effects.Order(1, LONG, 5), effects.Send(1, BAD), effects.Send(2, GOOD)])
    (ended, why), last = master._server.out
    assert (ended, last) == ("peer 1", ("peer 2", GOOD))
    assert "Report cannot be sent" in why
    assert answers == [(5, "Report has ")]


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
    journal.begin([effects.Fact("life", {})])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        journal.compact(Snapshot({}))
    assert "cannot be compacted (can't start new thread)" in caplog.text
    journal.note("done", {"number": 1})
    journal.close()
    again = Journal(tmp_path / "j")
    again.take()
    assert [fact.kind for fact in again.read()] == ["life", "begun", "done"]
    again.close()


def test_fact_that_cannot_be_encoded_gives_the_journal_up(tmp_path, caplog):
    journal = Journal(tmp_path / "j")
    journal.path.mkdir()
    journal.take()
    journal.begin([effects.Fact("life", {})])
    journal.note("exported", {"figures": object()})
    assert not journal.kept
    assert "THE JOURNAL CANNOT BE WRITTEN" in caplog.text
    journal.close()
