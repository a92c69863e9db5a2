"""The slot that `bsp` withholds for a checkpoint: rows stay as they are, and no job stays with it.

`Cluster` is a schedule, its workers, and a checkpoint; each of its moves is one call of it.
Tests take the moves in every order, or at random: where nothing can move, the job must be over.
"""

import copy
import random
from types import SimpleNamespace

import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from master_parts import TestOutbox, context_of, worker_of

from snailps.master.leases import CLOCKS_AHEAD, BspSchedule, Entries
from snailps.master.leases.late_workers import DROP_S
from snailps.master.leases.schedule import LOSSES_MAX
from snailps.master.leases.service import LeaseService
from snailps.pieces import Piece
from snailps.transport import messages

TROUBLE = ("lose", "join", "leave", "withhold", "give up", "close", "abandon")
"""Moves that may come, or not: without them the job ends all the same."""


def blocks(num):
    return [Piece("file", 0, 10)] * num


class Cluster:
    """Workers that prefetch one block, as `worker/training.py` does, and their schedule."""

    def __init__(self, workers, clocks, micro_batches, short=0, **most):
        nodes = list(range(1, workers + 1))
        size = clocks * micro_batches - short
        self.book = BspSchedule(Entries(blocks(size)), micro_batches=micro_batches, nodes=nodes)
        self.waiting, self.back, self.leaving = set(), set(), set()
        self.alive, self.newest = set(nodes), 100
        self.clock = -1  # that is withheld, or copied
        self.most = {"lose": 0, "join": 0, "leave": 0, "withhold": 0, "close": 0, **most}

    # --- moves

    def moves(self):
        """What can happen next: those that must, and then those that may."""
        book, must, may = self.book, [], []
        for node in sorted(self.alive):
            held = book.records.held_by(node)
            if held and held[0] // book.slots.micro_batches <= book.slots.open:
                must.append(("train", node))
            elif held and node in self.back and node not in self.waiting:
                must.append(("back", node))
            if node in self.leaving:
                if not held:
                    must.append(("part", node))
            elif node not in self.waiting and len(held) < 2 and not book.over:
                must.append(("ask", node))
            may += [("lose", node)] * (len(self.alive) > 1)
            may += [("leave", node)] * (len(self.alive - self.leaving) > 1)
        if self.clock >= 0:
            copied = book.slots.open >= self.clock
            must += [("copied", 0)] * (copied or not book.slots.comes(self.clock))
            may.append(("give up", 0))
        else:
            may.append(("withhold", 0))
        may += [("join", 0), ("close", 0)]
        return must, [move for move in may if self.most.get(move[0], 1) > 0]

    def do(self, kind, node):
        book = self.book
        if kind in self.most:
            self.most[kind] -= 1
        if kind == "train":
            assert book.done(book.records.held_by(node)[0], node)
            self.back.add(node)  # it asks once when it begins to wait
        elif kind == "back":
            self.back.discard(node)
            book.slots.take_back(node)
        elif kind == "ask":
            self.waiting.add(node)
            if book.take(node) is not None:
                self.waiting.discard(node)
        elif kind == "lose":
            self.gone(node)
        elif kind == "leave":
            self.leaving.add(node)
            self.waiting.discard(node)
            book.leave(node)
        elif kind == "part":
            self.gone(node)
        elif kind == "join":
            self.newest += 1
            self.alive.add(self.newest)
            book.join(self.newest)
        elif kind == "withhold":
            self.clock = book.slots.withhold(7)
            assert book.slots.open <= self.clock <= book.slots.open + CLOCKS_AHEAD + 1
        elif kind in ("copied", "give up"):
            self.clock = -1
            book.slots.resume_leases()
        elif kind == "close":
            book.close()
        for woken in book.woken(self.waiting):
            if book.take(woken) is not None:
                self.waiting.discard(woken)
        self.check()

    def gone(self, node):
        for nodes in (self.alive, self.waiting, self.leaving, self.back):
            nodes.discard(node)
        if self.book.retire(node):
            self.back |= self.alive  # CameBack

    # --- what must hold

    def check(self):
        """Nothing that is withheld is leased, and so its clock is not applied."""
        book = self.book
        if self.clock >= 0 and book.slots.comes(self.clock):
            assert book.slots.open <= self.clock
            withheld = (self.clock + 1) * book.slots.micro_batches - 1
            assert book.records.last < max(withheld, book.size - (withheld >= book.size))
        for node in self.waiting:
            assert self.fork().book.take(node) is None, f"worker {node} is not woken"

    def fork(self):
        """Another one in the same state."""
        return copy.deepcopy(self, {id(self.book.plan): self.book.plan})

    def check_end(self):
        book = self.book
        assert book.over, (
            [*book.records.holders()],
            self.waiting,
            self.clock,
            book.slots.missing(),
        )
        assert book.finished == book.size
        assert book.slots.open == -(-book.size // book.slots.micro_batches)

    def key(self):
        book, slots = self.book, self.book.slots
        return (
            bytes(book.records._all.data), slots.size, slots.open, slots._withheld, slots._copied,
            tuple(sorted((at, *free) for at, free in slots.free.items())), tuple(book._refused),
            slots.has_news, frozenset(book._done_now), frozenset(book.workers), self.clock,
            frozenset(self.waiting), frozenset(self.back), frozenset(self.leaving),
            frozenset(self.alive), tuple(self.most.items()),
        )  # fmt: skip


def go_everywhere(cluster):
    """Takes every move from every state; how many states there are."""
    seen, todo = {cluster.key()}, [cluster]
    while todo:
        at = todo.pop()
        must, may = at.moves()
        if not must:
            at.check_end()
        for move in (*must, *may):
            after = at.fork()
            after.do(*move)
            if (key := after.key()) not in seen:
                seen.add(key)
                todo.append(after)
    return len(seen)


@pytest.mark.parametrize(
    ("workers", "clocks", "micro_batches", "most"),
    [
        (1, 3, 1, {"withhold": 3, "close": 1}),
        (1, 2, 2, {"withhold": 2, "close": 1}),
        (1, 2, 3, {"withhold": 1}),
        (2, 2, 1, {"withhold": 1, "lose": 1}),
        (2, 2, 2, {"withhold": 1}),
        (2, 1, 2, {"withhold": 1, "lose": 1}),
    ],
)
def test_job_ends_in_every_order_of_moves(workers, clocks, micro_batches, most):
    assert go_everywhere(Cluster(workers, clocks, micro_batches, **most)) > 50


@given(
    st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(0, 1 << 32)
)  # fmt: skip
@examples(40)
def test_job_ends_in_any_order_of_moves(workers, clocks, micro_batches, short, seed):
    rng = random.Random(seed)
    short = short and micro_batches > 1
    most = {"withhold": 5, "lose": LOSSES_MAX, "join": 2, "leave": 2, "close": 1}
    cluster = Cluster(workers, clocks, micro_batches, short, **most)
    while True:
        must, may = cluster.moves()
        if not must:
            break
        cluster.do(*rng.choice(may if may and rng.random() < 0.1 else must))
    cluster.check_end()


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_checkpoints_without_a_pause_copy_each_clock_once(micro_batches):
    """An interval shorter than a step: the clock that was copied is applied before another is."""
    cluster = Cluster(2, 8, micro_batches, withhold=1000)
    rng, copied = random.Random(3), []
    while True:
        must, may = cluster.moves()
        if not must:
            break
        if ("withhold", 0) in may and not cluster.book.over:
            cluster.do("withhold", 0)
            copied.append(cluster.clock)
        else:
            cluster.do(*rng.choice(must))
    cluster.check_end()
    assert copied == sorted(set(copied))
    assert len(copied) > 3


def test_last_slot_of_a_clock_waits_for_the_copy_and_who_waits_is_told():
    book = BspSchedule(Entries(blocks(40)), micro_batches=3, nodes=[1, 2])
    assert [book.take(node).number for node in (1, 2)] == [0, 1]
    assert book.slots.withhold(7) == 0
    assert book.take(1) is None
    assert str(book.wait_of(1)) == "worker 2 to finish slot 1 of clock 0"
    book.done(1, 2)
    assert not book.slots.waits_for_copy
    book.done(0, 1)
    assert book.slots.waits_for_copy
    assert str(book.wait_of(1)) == "the master to copy the rows of clock 0 for checkpoint 7"
    assert book.woken({1}) == [1]  # it has finished one, and asks in vain
    assert book.take(1) is None
    book.slots.resume_leases()
    assert not book.slots.waits_for_copy
    assert book.woken({1}) == [1]
    assert book.take(1).number == 2
    assert book.take(1).number == 3
    assert book.slots.withhold(8) == 1


def test_clock_behind_all_that_is_leased_is_withheld_as_soon_as_it_may_be_leased():
    book = BspSchedule(Entries(blocks(40)), micro_batches=1, nodes=[1])
    for number in range(CLOCKS_AHEAD + 1):
        assert book.take(1).number == number
    assert book.slots.withhold(7) == CLOCKS_AHEAD + 1
    for number in range(CLOCKS_AHEAD + 1):
        book.done(number, 1)
        assert book.take(1) is None
    assert book.slots.waits_for_copy
    book.slots.resume_leases()
    assert book.take(1).number == CLOCKS_AHEAD + 1


def test_at_the_end_nothing_is_withheld_and_the_clock_is_the_one_behind_the_last():
    book = BspSchedule(Entries(blocks(3)), micro_batches=2)
    while (entry := book.take(1)) is not None:
        book.done(entry.number, 1)
    assert book.over
    assert book.slots.withhold(7) == book.slots.open == 2
    assert book.slots.comes(2)
    book.slots.resume_leases()
    assert book.over


def test_block_of_a_lost_worker_is_leased_while_a_slot_is_withheld():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1, 2])
    assert [book.take(1).number, book.take(2).number, book.take(1).number] == [0, 1, 2]
    assert book.slots.withhold(7) == 1
    assert book.retire(1) == [0, 2]
    assert book.woken({2}) == []  # it was not refused
    assert [book.take(2).number, book.take(2).number] == [0, 2]
    assert book.take(2) is None


def test_training_that_ends_before_the_clock_says_that_it_does_not_come():
    book = BspSchedule(Entries(blocks(40)), micro_batches=1, nodes=[1])
    book.take(1), book.take(1)
    assert book.slots.withhold(7) == 2
    book.release(1)
    book.close()
    assert book.size == 0
    assert not book.slots.comes(2)
    book.slots.resume_leases()
    assert book.over


def test_training_that_ends_in_the_clock_ends_with_the_slot_that_was_withheld():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1])
    book.take(1)
    assert book.slots.withhold(7) == 0
    book.close()
    assert (book.size, book.slots.comes(0)) == (2, True)
    book.done(0, 1)
    assert not book.over
    book.slots.resume_leases()
    book.done(book.take(1).number, 1)
    assert book.over


def test_abandoned_training_stays_at_the_clock_that_it_had_come_to():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1])
    assert book.take(1).number == 0
    assert book.slots.withhold(7) == 0
    book.close()
    book.abandon(1)
    assert book.over
    assert (book.slots.comes(0), book.slots.comes(1)) == (True, False)
    book.slots.resume_leases()
    assert book.take(1) is None
    assert book.slots.withhold(8) == 0


def test_master_that_takes_over_withholds_nothing():
    book = BspSchedule(Entries(blocks(4)), micro_batches=2, nodes=[1])
    book.take(1)
    book.slots.withhold(7)
    other = BspSchedule(Entries(blocks(4)), micro_batches=2, nodes=[1], known=book.records.known())
    other.resume(book.snapshot())
    assert other.claim(0, 1)
    assert other.take(1).number == 1


def service_and_worker(book):
    """A service that may give up its only worker, which has had a block and answers nothing new;
    what steps it."""
    out = TestOutbox()
    service, worker = LeaseService(
        context_of(out), SimpleNamespace(returning=False), SimpleNamespace(stopping=False),
        SimpleNamespace(), SimpleNamespace(newest=1),
        expel=lambda *args, after: None, retired=pytest.fail,
    ), worker_of(1)  # fmt: skip
    service.job = SimpleNamespace(schedule=book, pass_="train", withdraw_checkouts=lambda: None)

    def step(now):
        late = service.wait_for_late(book, [worker], now)
        orders, out.orders = out.orders, []
        for _, _, on_answer in orders:
            on_answer(messages.Report({"moved_bytes": 0}), now)
        return late and not worker.dropped

    return service, step


def test_workers_that_wait_for_the_copy_at_the_end_are_not_given_up():
    """A copy may take longer than a late block is waited for."""
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1, 2])
    service, is_waited_for = service_and_worker(book)
    book.take(1)
    book.slots.withhold(7)
    book.close()
    service.late.progress(0.0)
    assert is_waited_for(0.0)
    book.done(0, 1)
    assert is_waited_for(5 * DROP_S)
    book.slots.resume_leases()
    book.take(1)
    assert is_waited_for(6 * DROP_S - 1)
    assert not is_waited_for(6 * DROP_S)
    assert book.over


def test_worker_that_hangs_while_a_slot_is_withheld_is_given_up():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1, 2])
    service, is_waited_for = service_and_worker(book)
    book.take(1)
    book.slots.withhold(7)
    book.close()
    service.late.progress(0.0)
    assert is_waited_for(0.0)
    assert not is_waited_for(DROP_S)
    assert book.over
    assert book.slots.comes(0)
