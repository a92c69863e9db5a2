"""What a worker does round its blocks: it asks for their steps ahead, reports short ones while it
trains on, and spares the collector."""

import gc
import math
import queue
import threading
import weakref
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from waiting import LIMIT_S, until

from snailps.api.traits import Gathered
from snailps.api.worker import Worker
from snailps.errors import ClusterError, DataError, NotFinite, WaitTimeout
from snailps.node.metric_samples import BlockTally
from snailps.node.process import ProcessEnd
from snailps.pieces import JoinedFile, Layout, Piece
from snailps.transport import messages
from snailps.transport.messages.terms import PassRange, Step
from snailps.worker import process, training
from snailps.worker.calls import MasterCalls
from snailps.worker.content import LeasedContent
from snailps.worker.context import JobContext
from snailps.worker.leases import Leases
from snailps.worker.orders import Orders
from snailps.worker.prefetch import BlockPrefetcher
from snailps.worker.reports import JobReports
from snailps.worker.resume_state import ResumeState
from snailps.worker.training import TrainPass
from tests.support.blocks import held_block


class Reach:
    """A request that shards answer when the step begins."""

    def __init__(self):
        self.begun, self.abandoned = threading.Event(), False

    def wait(self, timeout_s):
        if not self.begun.wait(min(timeout_s, 0.01)):
            raise WaitTimeout("the step has not begun")

    def abandon(self):
        self.abandoned = True


class Client:
    """Notes what is asked, in order."""

    def __init__(self, events):
        self.events, self.reaches = events, {}

    def counters(self):
        return {"parts_pushed": 0}

    def reach_async(self, clock):
        self.events.append(("reach", clock))
        self.reaches[clock] = Reach()
        return self.reaches[clock]

    def open_pushes(self):
        return []

    def flush(self, limit_s):
        pass


class Model(Worker):
    """Notes what it is asked; `between` is called in each block."""

    workers, prefetch = 1, 0

    def __init__(self, events, between=lambda number: None):
        self.settings = SimpleNamespace(consistency="async")
        self.events, self.between = events, between

    def prepare(self, block):
        self.events.append(("prepare", block.number))

    def _at(self, block, preparing=False):
        return nullcontext()

    def train(self, block):
        self.events.append(("train", block.number))
        self.between(block.number)
        return {"units": 1}


class Prepared(Leases):
    """Leases whose blocks are made by the test."""

    def __init__(self, job, reports):
        super().__init__(job, reports, None)
        self.blocks = queue.SimpleQueue()

    def lease(self, pass_, back=False, held=0, again=()):
        return self.blocks.get_nowait() if self.blocks.qsize() else None

    def block(self, lease, pass_):
        return lease


class Parts:
    """The parts of a worker's job round a model, with a client and a master of the test."""

    def __init__(self, model):
        self.events, self.model, self.orders = model.events, model, Orders()
        self.client, self.master = Client(self.events), Master(self.events)
        calls = MasterCalls(self.master, threading.Event(), end=None)
        job = JobContext(model, self.client, calls, ResumeState(), self.orders, BlockTally(), 10.0)
        reports = JobReports(job)
        self.leases = Prepared(job, reports)
        self.training = TrainPass(job, reports, self.leases)


@pytest.fixture
def parts():
    return Parts(Model([]))


def block(number, clock):
    return held_block(number=number, terms=Step(clock) if clock >= 0 else None)


def done(block):
    future = Future()
    future.set_result(block)
    return future


def test_step_of_a_block_is_asked_for_when_the_block_is_prepared(parts):
    parts.leases.blocks.put(block(3, 1))
    prepared = parts.leases.next(False)
    assert parts.events == [("prepare", 3), ("reach", 1)]
    parts.client.reaches[1].begun.set()
    assert parts.training.in_turn(prepared, BlockPrefetcher(done)) is prepared
    assert parts.events == [("prepare", 3), ("reach", 1)]


def test_blocks_without_clocks_ask_for_no_step(parts):
    parts.leases.blocks.put(block(3, -1))
    parts.leases.next(False)
    assert parts.events == [("prepare", 3)]


def test_block_that_is_put_back_keeps_what_it_asked_for(parts):
    later, earlier = block(8, 2), block(4, 1)
    prefetcher = BlockPrefetcher(lambda back: done(earlier if back else None))
    reach = parts.leases.step_begun(later)
    parts.leases.step_begun(earlier).begun.set()
    assert parts.training.in_turn(later, prefetcher) is earlier
    assert not reach.abandoned
    reach.begun.set()
    assert parts.training.in_turn(prefetcher.next(0), prefetcher) is later
    assert parts.events == [("reach", 2), ("reach", 1)]


def test_worker_that_leaves_abandons_the_step_it_waits_for(parts):
    waiting = block(8, 2)

    def leave(back):
        parts.orders.leaving = True
        return done(None)

    assert parts.training.in_turn(waiting, BlockPrefetcher(leave)) is None
    assert parts.client.reaches[2].abandoned


class Push:
    """A push under way; notes who waits for it."""

    def __init__(self, events, number):
        self.events, self.number = events, number

    def wait(self, timeout_s):
        self.events.append(("acknowledged", self.number))


def test_range_is_reported_after_its_pushes_while_the_next_one_has_trained(parts, monkeypatch):
    model, client = parts.model, parts.client
    model.prefetch = 1
    for number in (1, 2):
        parts.leases.blocks.put(held_block(number=number, terms=PassRange(1, number, 3, 1)))
        parts.master.script.append(messages.Ok())
    trained = []
    model.between = trained.append
    client.open_pushes = lambda: [Push(parts.events, trained[-1])]
    next_block = parts.leases.next

    def slow_to_end(back):
        """The next range is there at once; that there is none is known after the last report."""
        if not parts.leases.blocks.qsize():
            until(lambda: ("durable", 2) in parts.events, "the last report")
        return next_block(back)

    parts.leases.next = slow_to_end
    is_ready = BlockPrefetcher.is_ready.fget

    def ready(prefetcher):
        if len(trained) == 1:
            until(lambda: is_ready(prefetcher), "the next range")
        return is_ready(prefetcher)

    monkeypatch.setattr(BlockPrefetcher, "is_ready", property(ready))
    parts.training.run()
    assert [event for event in parts.events if event[0] != "prepare"] == [
        ("train", 1), ("train", 2), ("acknowledged", 1), ("done", 1), ("durable", 1),
        ("acknowledged", 2), ("done", 2), ("durable", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("module", ["snailps.models.any", "users"])
def test_push_that_is_not_finite_is_reported_as_a_loss_that_is_none(monkeypatch, module):
    """So that a training that diverges ends by one message; a user's class has the error's."""

    def diverge(number):
        raise NotFinite("table 'rows': expected finite values to push, got nan")

    monkeypatch.setattr(Model, "__module__", module)
    parts, losses = Parts(Model([], diverge)), []
    call = parts.master.call_async

    def noted(message, heard):
        losses.append((message.number, str(message.metrics["loss"])))
        return call(message, heard)

    parts.master.call_async = noted
    parts.leases.blocks.put(block(7, -1))
    parts.master.script.append(messages.Ok())
    with pytest.raises(ClusterError, match=r"Model\.train failed on block 7.*finite values"):
        parts.training.train_block(parts.leases.next(False))
    assert losses == ([(7, "nan")] if module.startswith("snailps.") else [])


@pytest.fixture
def frozen(monkeypatch):
    """Trains, with a cycle of garbage in what trained; whether that is still there."""
    monkeypatch.setattr(process, "COLLECT_S", 0.0)
    monkeypatch.setattr(process, "COLLECT_BYTES", 1 << 60)
    refs = []
    process.spare_collector()
    assert gc.get_freeze_count() > 10_000  # the collector does not walk over what was there before

    def train(number):
        garbage = Model([])
        garbage.me = garbage
        refs.append(weakref.ref(garbage))

    made = Parts(Model([], train))
    made.leases.blocks.put(block(0, -1))
    made.master.script.append(messages.Ok())
    made.training.run()
    yield lambda: refs[0]() is not None
    gc.unfreeze()


@pytest.fixture
def inbox():
    return queue.SimpleQueue()


def test_garbage_of_a_job_stays_where_the_process_ends(frozen, inbox):
    end = ProcessEnd(0, "")
    inbox.put(end)
    assert process.next_message(inbox) is end
    assert frozen()


def test_much_garbage_of_a_job_is_collected_at_once(frozen, inbox, monkeypatch):
    monkeypatch.setattr(process, "COLLECT_BYTES", 0)
    inbox.put(ProcessEnd(0, ""))
    process.next_message(inbox)
    assert not frozen()


def test_garbage_of_a_job_is_collected_before_the_next_one(frozen, inbox):
    start = messages.Again()
    inbox.put(start)
    assert process.next_message(inbox) is start
    assert not frozen()


def test_garbage_of_a_job_is_collected_while_nothing_comes(frozen, inbox):
    found = []
    waiter = threading.Thread(target=lambda: found.append(process.next_message(inbox)))
    waiter.start()
    until(lambda: not frozen(), "the collection")
    inbox.put(ProcessEnd(0, ""))
    waiter.join(LIMIT_S)
    assert len(found) == 1


class Asked(Future):
    """An answer that comes when it is waited for, if it has not come before."""

    def __init__(self, come):
        super().__init__()
        self.come = come

    def done(self):
        if not super().done():
            self.come()
        return super().done()


class Master:
    """The other end of a control connection: reports, and the answers that it is told to give."""

    away = False

    def __init__(self, events):
        self.events, self.open, self.script = events, [], []

    def call_async(self, message, heard):
        future = Asked(lambda: self.answer(self.script.pop(0)))
        self.events.append(("done", message.number))
        self.open.append((heard, future))
        return future

    def note(self, message):
        self.events.append(("durable", *message.numbers))

    def answer(self, answer):
        heard, future = self.open.pop(0)
        heard(answer)
        future.set_result(answer)


class Trained(Gathered, Model):
    """A model that keeps its rows."""

    unpushed = True


@pytest.fixture
def trained(monkeypatch):
    """Parts of a model whose blocks are short, however long this machine pauses in them."""
    monkeypatch.setattr(training, "SHORT_S", math.inf)
    parts = Parts(Trained([]))
    for number in range(4):
        parts.leases.blocks.put(block(number, -1))
    return parts


def trained_events(parts):
    """What comes of the training of all blocks, but for their preparation."""
    parts.training.run()
    return [event for event in parts.events if event[0] != "prepare"]


def test_short_block_is_answered_while_the_next_one_is_trained(trained):
    master, model = trained.master, trained.model

    def between(number):
        if number:
            master.answer(messages.Ok())
        if number == 3:  # closes the round
            model.unpushed = False
            master.script.append(messages.Ok())

    model.between = between
    *events, last = trained_events(trained)
    assert events == [(what, number) for number in range(4) for what in ("train", "done")]
    assert last == ("durable", 0, 1, 2, 3)


def test_training_that_has_reached_its_end_goes_on_for_one_short_block(trained):
    master = trained.master

    def between(number):
        if number == 1:
            master.answer(messages.Enough())
            master.script.append(messages.Enough())

    trained.model.between = between
    events = trained_events(trained)
    assert [number for what, number, *_ in events if what == "train"] == [0, 1]
    assert master.open == []  # the last report was answered, too


@pytest.mark.parametrize("why", ["long", "pushed", "ssp"])
def test_block_is_answered_before_the_next_one_if(trained, monkeypatch, why):
    if why == "long":
        monkeypatch.setattr(training, "SHORT_S", 0.0)
    elif why == "pushed":
        trained.model.unpushed = False
    else:
        trained.model.settings.consistency = "ssp"
    trained.master.script.append(messages.Enough())
    expected = [("train", 0), ("done", 0)] + [("durable", 0)] * (why == "pushed")
    assert trained_events(trained) == expected


FILES = (JoinedFile("a", 0, 50), JoinedFile("b", 50, 50))


@pytest.mark.parametrize("layout", [Layout(), Layout("", 100), Layout("", 100, FILES)])
def test_content_of_a_block_needs_no_collector(layout):
    scratch = SimpleNamespace(expect=lambda path, version: None)
    gc.disable()
    try:
        content = LeasedContent(Piece("a", 0, 10), layout, "line", scratch, None)
        assert (content.read_texts is not None) == bool(layout.files)
        assert (content.place is not None) == bool(layout.spread)
        gone = weakref.ref(content)
        del content
        assert gone() is None
    finally:
        gc.enable()


def test_all_that_was_trained_is_pushed_and_durable_before_the_next_epoch_is_asked_for(trained):
    model, events = trained.model, trained.events
    model.push_all = lambda: events.append(("push_all",))
    blocks = [trained.leases.blocks.get() for _ in range(4)]
    for lease in (*blocks[:2], messages.Leased(-1, flushes=True), *blocks[2:]):
        trained.leases.blocks.put(lease)
    trained.master.script += [messages.Ok()] * 4
    *events, last = trained_events(trained)
    assert [event for event in events if event[0] != "done"] == [
        ("train", 0), ("train", 1), ("push_all",), ("durable", 0, 1), ("train", 2), ("train", 3),
    ]  # fmt: skip
    assert last[0] == "done"


def test_nothing_is_pushed_after_the_master_has_heard_that_all_is_durable(trained):
    """It tests the rows from then on, and had asked more often, or while a period ended anyway."""
    model, events = trained.model, trained.events
    model.push_all = lambda: events.append(("push_all",))
    flush = messages.Leased(-1, flushes=True)
    blocks = [trained.leases.blocks.get() for _ in range(4)]
    durable, other, *last = blocks  # a period ends with the first one
    for lease in (durable, flush, flush, other, flush, flush, *last):
        trained.leases.blocks.put(lease)
    trained.master.script += [messages.Ok()] * 4
    model.between = lambda number: setattr(model, "unpushed", number != durable.number)
    pushes = [event for event in trained_events(trained) if event[0] in ("train", "push_all")]
    assert pushes == [
        ("train", 0), ("train", 1), ("push_all",), ("train", 2), ("train", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "code"),
    [(DataError("line 3"), 2), (ClusterError("a bug of the model"), 1), (ValueError("a bug"), 1)],
)
def test_worker_that_gives_up_says_whether_its_input_is_wrong(error, code):
    master, ends = SimpleNamespace(noted=[]), []
    master.note = master.noted.append
    MasterCalls(master, threading.Event(), lambda *end: ends.append(end)).give_up(error)
    ((got, text),), (failed,) = ends, master.noted
    assert (got, failed.text, failed.is_wrong) == (code, text, code == 2)
