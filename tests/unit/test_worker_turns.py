"""What a worker does round its blocks: it asks for their steps ahead, reports short ones while it
trains on, and spares the collector."""

import gc
import math
import queue
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from waiting import LIMIT_S, until

from snailps.api.parts import Gathered
from snailps.errors import WaitTimeout
from snailps.node.metric_samples import BlockTally
from snailps.node.process import End
from snailps.transport import messages
from snailps.transport.messages.terms import Step
from snailps.worker import process
from snailps.worker.prefetch import BlockPrefetcher
from snailps.worker.process import WorkerProcess
from snailps.worker.resume_state import ResumeState
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


class Model:
    def __init__(self, events):
        self.events = events

    def prepare(self, block):
        self.events.append(("prepare", block.number))

    def _at(self, block, preparing):
        return ThreadPoolExecutor(1)  # any context


@pytest.fixture
def worker():
    made = object.__new__(WorkerProcess)
    made.events = []
    made._client, made._leaving, made._waited_s = Client(made.events), False, 0.0
    made._came_back, made.ended = threading.Event(), threading.Event()
    made._workers_changed = threading.Event()
    made.leases = queue.SimpleQueue()
    made._leased = lambda pass_, back: made.leases.get_nowait()
    made._block = lambda lease, *rest: lease
    return made


def block(number, clock):
    return held_block(number=number, terms=Step(clock))


def done(block):
    future = Future()
    future.set_result(block)
    return future


def test_step_of_a_block_is_asked_for_when_the_block_is_prepared(worker):
    worker.leases.put(block(3, 1))
    prepared = worker._next_block(Model(worker.events), None, False)
    assert worker.events == [("prepare", 3), ("reach", 1)]
    worker._client.reaches[1].begun.set()
    assert worker._in_turn(prepared, BlockPrefetcher(done)) is prepared
    assert worker.events == [("prepare", 3), ("reach", 1)]


def test_blocks_without_clocks_ask_for_no_step(worker):
    worker.leases.put(block(3, -1))
    worker._next_block(Model(worker.events), None, False)
    assert worker.events == [("prepare", 3)]


def test_block_that_is_put_back_keeps_what_it_asked_for(worker):
    later, earlier = block(8, 2), block(4, 1)
    prefetcher = BlockPrefetcher(lambda back: done(earlier if back else None))
    reach = worker._reach(later)
    worker._reach(earlier).begun.set()
    assert worker._in_turn(later, prefetcher) is earlier
    assert not reach.abandoned
    reach.begun.set()
    assert worker._in_turn(prefetcher.next(0), prefetcher) is later
    assert worker.events == [("reach", 2), ("reach", 1)]


def test_worker_that_leaves_abandons_the_step_it_waits_for(worker):
    waiting = block(8, 2)

    def leave(back):
        worker._leaving = True
        return done(None)

    assert worker._in_turn(waiting, BlockPrefetcher(leave)) is None
    assert waiting._reach.abandoned


@pytest.fixture
def frozen(worker, monkeypatch):
    """Trains, with a cycle of garbage in what trained; whether that is still there."""
    monkeypatch.setattr(process, "COLLECT_S", 0.0)
    monkeypatch.setattr(process, "COLLECT_BYTES", 1 << 60)
    gc.unfreeze()  # what another test may have left so
    refs, counts = [], []

    def train(*_):
        model = Model([])
        model.me = model
        refs.append(weakref.ref(model))
        counts.append(gc.get_freeze_count())

    worker._train_blocks, worker._inbox = train, queue.SimpleQueue()
    worker._train(None, None)
    assert counts[0] > 10_000  # the collector does not walk over what was there before
    yield lambda: refs[0]() is not None
    gc.unfreeze()


def test_garbage_of_a_job_stays_where_the_process_ends(worker, frozen):
    end = End(0, "")
    worker._inbox.put(end)
    assert worker._next_message() is end
    assert frozen()


def test_much_garbage_of_a_job_is_collected_at_once(worker, frozen, monkeypatch):
    monkeypatch.setattr(process, "COLLECT_BYTES", 0)
    worker._inbox.put(End(0, ""))
    worker._next_message()
    assert not frozen()


def test_garbage_of_a_job_is_collected_before_the_next_one(worker, frozen):
    start = messages.Again()
    worker._inbox.put(start)
    assert worker._next_message() is start
    assert not frozen()


def test_garbage_of_a_job_is_collected_while_nothing_comes(worker, frozen):
    found = []
    waiter = threading.Thread(target=lambda: found.append(worker._next_message()))
    waiter.start()
    until(lambda: not frozen(), "the collection")
    worker._inbox.put(End(0, ""))
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


class Trained(Gathered):
    """A model that keeps its rows; `between` is called in each block."""

    workers, prefetch, unpushed = 1, 0, True

    def __init__(self, events, between=lambda number: None):
        self.events, self.between = events, between
        self.settings = SimpleNamespace(consistency="async")

    def _at(self, block):
        return nullcontext()

    def train(self, block):
        self.events.append(("train", block.number))
        self.between(block.number)
        return {"units": 1}


@pytest.fixture
def training(worker, monkeypatch):
    """A worker whose blocks are short, however long this machine pauses in them."""
    monkeypatch.setattr(process, "SHORT_S", math.inf)
    worker.settings = SimpleNamespace(request_timeout=10.0)
    worker._control, worker._stand = Master(worker.events), ResumeState()
    worker._tally, worker._report, worker._workers = BlockTally(), None, 1
    worker._client.open_pushes = list
    for number in range(4):
        worker.leases.put(block(number, -1))
    return worker


def run(worker, model):
    """Trains what is leased; blocks come from this thread."""
    worker._model = model
    with ThreadPoolExecutor(1) as helper:
        worker._next_block = lambda *_: (
            worker.leases.get_nowait() if worker.leases.qsize() else None
        )
        worker._train_blocks(model, None, helper)


def test_short_block_is_answered_while_the_next_one_is_trained(training):
    master = training.control
    model = Trained(training.events)

    def between(number):
        if number:
            master.answer(messages.Ok())
        if number == 3:  # closes the round
            model.unpushed = False
            master.script.append(messages.Ok())

    model.between = between
    run(training, model)
    trained = [one for one in training.events if one[0] != "durable"]
    assert trained == [(what, number) for number in range(4) for what in ("train", "done")]
    assert training.events[-1] == ("durable", 0, 1, 2, 3)


def test_training_that_has_reached_its_end_goes_on_for_one_short_block(training):
    master = training.control

    def between(number):
        if number == 1:
            master.answer(messages.Enough())
            master.script.append(messages.Enough())

    run(training, Trained(training.events, between))
    assert [number for what, number, *_ in training.events if what == "train"] == [0, 1]
    assert master.open == []  # the last report was answered, too


@pytest.mark.parametrize("why", ["long", "pushed", "ssp"])
def test_block_is_answered_before_the_next_one_if(training, monkeypatch, why):
    master, model = training.control, Trained(training.events)
    if why == "long":
        monkeypatch.setattr(process, "SHORT_S", 0.0)
    elif why == "pushed":
        model.unpushed = False
    else:
        model.settings.consistency = "ssp"
        training._client.flush = lambda limit_s: None

    master.script.append(messages.Enough())
    run(training, model)
    expected = [("train", 0), ("done", 0)] + [("durable", 0)] * (why == "pushed")
    assert training.events == expected
