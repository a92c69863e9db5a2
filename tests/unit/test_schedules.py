"""Schedules of leases that keep workers in step: each entry once, no worker too far ahead."""

import copy
import random

import numpy as np
import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st
from without import is_there

from snailps.config import JobSettings, settings_of
from snailps.config.consistency import STEPS
from snailps.master.leases import (
    CLOCKS_AHEAD,
    SCHEDULES,
    BspSchedule,
    Entries,
    QueueSchedule,
    SspSchedule,
)
from snailps.master.leases.records import OUTCOME, BlockRecords, BlockState
from snailps.master.leases.schedule import LOSSES_MAX
from snailps.pieces import Piece
from snailps.registry import named
from snailps.transport.messages.terms import Step


def blocks(num, size=10):
    return [Piece(str(at), 0, size) for at in range(num)]


def test_every_consistency_has_its_promises_and_its_schedule():
    names = settings_of(JobSettings)["consistency"].choices
    assert set(names) == set(STEPS) == set(SCHEDULES)


# --- seats -----------------------------------------------------------------------------------


def test_seats_beyond_their_number_wait_for_the_first_worker_that_leaves():
    book = QueueSchedule(Entries(blocks(9)), seats=2)
    assert [book.take(node).number for node in (1, 2)] == [0, 1]
    assert book.take(3) is None
    assert book.take(4) is None
    assert str(book.wait_of(3)) == "worker 1, worker 2 to leave: no more than 2 may train at a time"
    book.done(0, 1)
    assert book.woken({3, 4}) == []  # as often as a block is done
    book.retire(2)
    assert book.woken({3, 4}) == [3]
    assert book.take(3).number == 1  # what worker 2 had
    assert book.take(4) is None
    book.leave(4)
    book.leave(1)
    assert book.take(5) is not None


def test_seats_of_a_lost_master_are_those_of_the_workers_that_have_blocks():
    book = QueueSchedule(Entries(blocks(9)), seats=2)
    assert book.take(3) is not None
    for number, node in ((4, 1), (5, 2)):
        assert book.claim(number, node)
    assert all(book.take(node) is not None for node in (1, 2))
    book.leave(3)
    assert book.take(4) is None


def test_seats_of_assigned_blocks_go_to_the_worker_that_waits_longest():
    book = SspSchedule(Entries(blocks(8)), nodes=[1, 2, 3, 4], staleness=1, seats=2)
    assert [book.take(node).number for node in (1, 2)] == [0, 1]
    assert book.take(3) is None
    assert book.pace.slowest()[1] in (1, 2)  # others hold nobody up
    again = SspSchedule(Entries(blocks(8)), nodes=[1, 2, 3, 4], staleness=1, seats=2)
    again.resume(book.snapshot())
    again.join(4)  # the first that comes back to another master
    for schedule, waiting in ((book, 3), (again, 4)):
        schedule.retire(1)
        assert schedule.woken({3, 4}) == [waiting]
    assert {book.take(3).number, book.take(2).number} <= set(range(8))
    assert book.take(4) is None


def test_seats_of_one_give_its_assigned_blocks_to_the_next_worker():
    book = SspSchedule(Entries(blocks(4)), nodes=[1, 2], seats=1)
    book.done(book.take(1).number, 1)
    book.leave(1)
    while (entry := book.take(2)) is not None:
        book.done(entry.number, 2)
    assert book.over


# --- bounded staleness -----------------------------------------------------------------------


def test_assigned_gives_every_nth_entry_to_its_own_worker():
    book = SspSchedule(Entries(blocks(5), 2), nodes=[7, 8, 9])
    assert [book.take(8).number for _ in range(3)] == [1, 4, 7]
    assert book.take(8) is None
    assert [book.take(7).number for _ in range(4)] == [0, 3, 6, 9]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_assigned_with_a_worker_that_stands_still_lets_others_get_staleness_ahead(staleness):
    book = SspSchedule(Entries(blocks(40)), nodes=[1, 2], staleness=staleness)
    finished = 0
    while (entry := book.take(1)) is not None:
        assert book.done(entry.number, 1)
        finished += 1
    assert finished == staleness + 1  # begun at most `staleness` ahead
    assert book.pace.ahead_max == staleness
    assert book.pace.slowest() == (0, 2)
    assert str(book.wait_of(1)) == (
        f"worker 2 to finish its block 1, being at its own block {finished + 1} "
        f"(staleness {staleness})"
    )
    other = book.take(2)
    assert book.take(1) is None  # begun is not finished
    book.done(other.number, 2)
    assert book.take(1) is not None


def test_assigned_to_none_waits_for_the_first_that_comes():
    book = SspSchedule(Entries(blocks(3), 2), nodes=[], staleness=1)
    assert not book.over
    book.join(7)
    assert [book.take(7).number for _ in range(2)] == [0, 1]


def test_assigned_with_a_worker_that_is_done_or_gone_does_not_wait_for_it():
    book = SspSchedule(
        Entries(blocks(7)), nodes=[1, 2, 3], staleness=0
    )  # worker 1 has three, the others two
    for _ in range(2):
        for node in (1, 2, 3):
            book.done(book.take(node).number, node)
    last = book.take(1)
    assert last.number == 6
    assert not book.over
    book.done(6, 1)
    assert book.over

    book = SspSchedule(Entries(blocks(9)), nodes=[1, 2, 3], staleness=0)
    book.take(3)
    for node in (1, 2):
        book.done(book.take(node).number, node)
    assert book.take(1) is None
    assert book.retire(3) == [2]
    assert book.take(1) is not None
    assert book.pace.slowest() == (1, 1)


def test_assigned_worker_that_leaves_finishes_its_block_and_its_rest_goes_to_others():
    book = SspSchedule(Entries(blocks(6)), nodes=[1, 2], staleness=1)
    mine = book.take(2)
    book.leave(2)
    assert book.take(2) is None
    assert book.done(mine.number, 2)
    assert book.pace.slowest() == (0, 1)
    assert [book.take(1).number for _ in range(2)] == [0, 2]
    book.done(0, 1)
    book.done(2, 1)
    rest = []
    while (entry := book.take(1)) is not None:
        rest.append(entry.number)
        book.done(entry.number, 1)
    assert rest == [3, 4, 5]
    assert book.over


def test_assigned_worker_that_comes_gets_a_share_and_the_slowest_clock():
    book = SspSchedule(Entries(blocks(40)), nodes=[1, 2], staleness=1)
    for _ in range(3):
        for node in (1, 2):
            book.done(book.take(node).number, node)
    book.join(9)
    assert book.clock_of(9) == 3
    mine = []
    while (entry := book.take(9)) is not None:
        mine.append(entry.number)
    assert len(mine) == 2  # and no more for now: others stand at 3
    total = {number for node in (1, 2, 9) for number in book.records.held_by(node)}
    assert total == set(mine)


BOOKS = {  # of blocks, epochs, workers, and a number
    "plain": lambda blocks, epochs, nodes, _: QueueSchedule(Entries(blocks, epochs)),
    "assigned": lambda blocks, epochs, nodes, n: SspSchedule(
        Entries(blocks, epochs), nodes=nodes, staleness=n - 2
    ),
    "stepped": lambda blocks, epochs, nodes, n: BspSchedule(
        Entries(blocks, epochs), micro_batches=n, nodes=nodes
    ),
}


@pytest.mark.parametrize("kind", BOOKS)
@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 1 << 32),
)
def test_any_comings_and_goings_leave_every_entry_done_once(
    kind, workers, block_num, epochs, number, seed
):
    nodes = list(range(1, workers + 1))
    book = BOOKS[kind](blocks(block_num), epochs, nodes, number)
    done = run_to_the_end(book, set(nodes), random.Random(seed))
    assert sorted(done) == list(range(block_num * epochs))
    assert (book.finished, book.progress, book.take(1)) == (len(done), 1.0, None)
    if kind == "assigned" and number >= 2:
        assert book.pace.ahead_max <= number - 2
    if kind == "stepped":
        clocks = [entry // number for entry in done]
        assert clocks == sorted(clocks)  # no clock begins before the one before is complete
        assert book.slots.open == -(-block_num * epochs // number)


def test_assigned_with_a_stalled_worker_knows_the_slowest_and_keeps_one_clock_a_worker():
    book, rng = SspSchedule(Entries(blocks(600)), nodes=[1, 2, 3]), random.Random(1)

    def slowest():
        at_work = [n for n in (1, 2, 3) if book.has_left(n) or book.records.count_of(n)]
        return min((book.clock_of(node), node) for node in at_work)

    book.take(2)  # and is at it for ever
    for _ in range(300):
        node = rng.choice((1, 3))
        if (entry := book.take(node)) is not None:
            book.done(entry.number, node)
        assert book.pace.slowest() == slowest() == (0, 2)
    heap = book.pace._slow
    assert len(heap) <= 3
    book.leave(2)
    book.join(2)  # as one that comes back to another master
    for node in (3, 3, 2, 2, 1, 2, 2, 3, 1, 1):
        book.done(book.take(node).number, node)
        assert book.pace.slowest() == slowest()
    assert len(heap) <= 4  # one more for each time that a worker left


def run_to_the_end(book, alive, rng: random.Random):
    """Drives a book at random, with workers lost, leaving and coming; numbers done, in order."""
    held = {node: [] for node in alive}
    done, newest, steps = [], 100, 0
    while not book.over:
        steps += 1
        assert steps < 20_000, "no worker proceeds"
        action = rng.random()
        if action < 0.03 and len(alive) > 1:
            node = rng.choice(sorted(alive))
            alive.discard(node)
            assert sorted(book.retire(node)) == sorted(held.pop(node))
        elif action < 0.06:
            newest += 1
            alive.add(newest)
            held[newest] = []
            book.join(newest)
        else:
            node = rng.choice(sorted(alive))
            if len(held[node]) < 2 and (entry := book.take(node)) is not None:
                held[node].append(entry.number)
            # Trains the earliest clock that it holds, where that has begun, or is slow with it.
            held[node].sort()
            if held[node] and can_train(book, held[node][0]):
                if rng.random() < 0.7:
                    number = held[node].pop(0)
                    assert book.done(number, node)
                    done.append(number)
            elif held[node] and book.slots is not None:
                entry = book.slots.take_back(node)
                held[node] += [entry.number] if entry else []
        at_work = {node: sorted(numbers) for node, numbers in held.items() if numbers}
        assert {node: book.records.held_by(node) for node in book.records.holders()} == at_work
        assert (book.records.leased, book.finished) == (sum(map(len, at_work.values())), len(done))
    return done


def can_train(book, number):
    slots = book.slots
    return slots is None or number // slots.micro_batches <= slots.open


# --- who waits -------------------------------------------------------------------------------


def _books(workers, block_num, micro_batches):
    nodes = list(range(1, workers + 1))
    return [
        QueueSchedule(Entries(blocks(block_num), 2)),
        SspSchedule(Entries(blocks(block_num), 2), nodes=nodes, staleness=1),
        SspSchedule(Entries(blocks(block_num), 2), nodes=nodes),
        BspSchedule(Entries(blocks(block_num), 2), micro_batches=micro_batches, nodes=nodes),
        *([named("rounds").RoundSchedule(5, nodes, 0.5)] if is_there("rounds") else ()),
    ]


@given(
    st.integers(0, 4), st.integers(1, 6), st.integers(1, 12), st.integers(1, 5),
    st.integers(0, 1 << 32),
)  # fmt: skip
@examples(15)
def test_worker_that_waits_and_could_go_is_woken(kind, workers, block_num, micro_batches, seed):
    """Workers ask only when the schedule names them; none waits that would get an entry."""
    rng = random.Random(seed)
    book = _books(workers, block_num, micro_batches)[kind]
    alive, waiting, newest = set(range(1, workers + 1)), set(), 100
    for _ in range(60):
        choice = rng.random()
        node = rng.choice(sorted(alive)) if alive else 0
        held = book.records.held_by(node)
        if choice < 0.04 and len(alive) > 1:
            alive.discard(node)
            waiting.discard(node)
            book.retire(node)
        elif choice < 0.06 and len(alive) > 1:
            book.leave(node)
        elif choice < 0.1:
            newest += 1
            alive.add(newest)
            book.join(newest)
        elif choice < 0.13 and book.rounds is not None and book.rounds.ready:
            book.rounds.advance()
        elif choice < 0.14:
            book.close()
        elif choice < 0.17:
            book.release(node)
        elif choice < 0.6 and node not in waiting and len(held) < 2:
            if node and book.take(node) is None:
                waiting.add(node)
        elif held and can_train(book, held[0]):
            book.done(held[0], node)
        for woken in book.woken(waiting):
            assert woken in waiting
            if book.take(woken) is not None:
                waiting.discard(woken)
        for node in waiting:
            assert copy.deepcopy(book).take(node) is None, (book, node)


@pytest.mark.parametrize("kind", range(4))
def test_many_that_wait_cost_nothing_until_one_of_them_can_go(kind):
    book = _books(400, 1200, 400)[kind]
    if kind == 0:  # all is leased
        while book.take(1) is not None:
            pass
    waiting = set()
    for node in range(1, 401):
        while kind and book.take(node) is not None:
            pass
        if book.take(node) is None:
            waiting.add(node)
    woken, dones = 0, 0
    for node in range(1, 200):
        for number in book.records.held_by(node)[:1]:
            book.done(number, node)
            dones += 1
        woken += len(book.woken(waiting))
    assert dones
    assert woken <= dones  # the one that was done, in steps; in the others the slowest stands


def test_stepped_does_not_walk_over_its_history_when_a_clock_is_done(monkeypatch):
    looked = []

    def spy(name):
        look = getattr(BlockRecords, name)

        def spied(records, start, stop):
            looked.append(stop - start)
            return look(records, start, stop)

        monkeypatch.setattr(BlockRecords, name, spied)

    spy("waiting"), spy("not_done")
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1])
    while (entry := book.take(1)) is not None:
        book.done(entry.number, 1)
    assert book.finished == 40
    assert max(looked) == 2


# --- synchronous steps -----------------------------------------------------------------------


def test_stepped_entries_have_clock_slot_and_number_of_slots():
    book = BspSchedule(Entries(blocks(5), 2), micro_batches=4)
    entries = [book.slots.entry(number) for number in range(10)]
    assert [(e.terms.clock, e.terms.slot, e.terms.slots) for e in entries] == [
        *((0, slot, 4) for slot in range(4)), *((1, slot, 4) for slot in range(4)), (2, 0, 2),
        (2, 1, 2),
    ]  # fmt: skip
    assert [(e.epoch, int(e.piece.path)) for e in entries[4:6]] == [(0, 4), (1, 0)]


def test_stepped_leases_in_order_and_no_more_than_some_clocks_ahead():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1])
    numbers = []
    while (entry := book.take(1)) is not None:
        numbers.append(entry.number)
    assert numbers == list(range(2 * (CLOCKS_AHEAD + 1)))
    book.done(1, 1)
    assert book.take(1) is None
    assert book.slots.missing() == [(0, 1)]
    book.done(0, 1)
    assert book.slots.open == 1
    assert book.take(1).number == 2 * (CLOCKS_AHEAD + 1)


@pytest.mark.parametrize("micro_batches", [2, 3, 4, 6])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_stepped_with_equal_workers_deals_each_clock_evenly(workers, micro_batches):
    nodes = list(range(1, workers + 1))
    book = BspSchedule(
        Entries(blocks(60 * micro_batches)), micro_batches=micro_batches, nodes=nodes
    )
    held = {node: [book.take(node), book.take(node)] for node in nodes}  # one asks before the next
    turns = 0
    while not book.over:
        turns += 1  # in which everybody trains what it can
        begun = {
            node: next((e for e in entries if e and e.terms.clock <= book.slots.open), None)
            for node, entries in held.items()
        }
        for node, entry in begun.items():
            if entry is not None:
                held[node].remove(entry)
                book.done(entry.number, node)
        for node in nodes:
            held[node] = [entry for entry in held[node] if entry]
            while len(held[node]) < 2 and (entry := book.take(node)):
                held[node].append(entry)
    assert turns <= 60 * -(-micro_batches // workers) + 2


def test_stepped_slot_that_was_left_for_another_worker_is_given_to_who_has_nothing_else():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1, 2])
    assert book.take(1).number == 0
    assert book.take(1).number == 2  # ahead; 1 is for worker 2, which does not come
    book.done(0, 1)
    assert book.take(1).number == 1


def test_stepped_block_of_a_lost_worker_is_given_first_and_others_are_told_whom_they_wait_for():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1, 2])
    for node, number in [(1, 0), (2, 1), (2, 2), (1, 3)]:
        assert book.take(node).number == number
    book.done(1, 2)
    assert book.slots.held_up(1) is None  # it trains slot 0
    assert str(book.slots.held_up(2)) == "worker 1 to finish slot 0 of clock 0"
    assert book.slots.take_back(2) is None
    assert book.retire(1) == [0, 3]
    assert str(book.slots.held_up(2)) == "the next free worker to finish slot 0 of clock 0"
    assert book.slots.take_back(2).number == 0
    assert book.slots.held_up(2) is None
    assert book.slots.take_back(2) is None
    assert book.take(3).number == 3


def test_stepped_gives_back_what_is_earlier_than_all_that_a_worker_holds():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1, 2])
    for node, number in [(1, 0), (2, 1), (1, 2), (2, 3)]:
        assert book.take(node).number == number
    assert book.take(1).number == 4
    assert book.retire(2) == [1, 3]
    assert book.slots.take_back(1) is None  # it is at clock 0 itself
    book.done(0, 1)
    assert book.slots.take_back(1).number == 1
    book.done(1, 1)
    book.done(2, 1)
    assert book.slots.take_back(1).number == 3  # it holds 4, of clock 2
    assert book.slots.take_back(1) is None


def test_stepped_gives_nothing_back_to_a_worker_that_holds_nothing():
    # It asked while it waited for a clock, and has trained that block by now: it asks by its
    # ordinary call next, and would not look at what comes back.
    book = BspSchedule(Entries(blocks(40)), micro_batches=2, nodes=[1, 2])
    assert [book.take(node).number for node in (1, 2)] == [0, 1]
    book.done(0, 1)
    assert book.retire(2) == [1]
    assert book.slots.take_back(1) is None
    assert book.take(1).number == 1


def test_stepped_knows_what_a_worker_finished_last():
    book = BspSchedule(Entries(blocks(8)), micro_batches=2, nodes=[1, 2])
    assert book.slots.last_of(1) is None
    for number in (0, 1, 2, 3):
        book.take(1)
        book.done(number, 1)
    last = book.slots.last_of(1)
    assert last == Step(1, 1, 2)
    book.retire(1)
    assert book.slots.last_of(1) == last


def test_stepped_closed_early_ends_with_a_whole_clock():
    book = BspSchedule(Entries(blocks(40)), micro_batches=4)
    for number in range(5):
        assert book.take(1).number == number
    book.close()
    assert (book.closed, book.drops, book.size) == (True, False, 8)
    for number in range(5):
        book.done(number, 1)
    for number in range(5, 8):
        assert book.take(1).number == number
        assert not book.over
        book.done(number, 1)
    assert book.take(1) is None
    assert book.over
    assert book.slots.open == 2


def test_stepped_closed_before_anything_was_leased_is_over():
    book = BspSchedule(Entries(blocks(4)), micro_batches=4)
    book.close()
    assert book.over
    assert book.take(1) is None


def test_stepped_that_gives_up_a_worker_is_over_without_it():
    book = BspSchedule(Entries(blocks(40)), micro_batches=2)
    book.take(1)
    book.take(2)
    book.close()
    book.done(1, 2)
    assert not book.over
    book.abandon(1)
    assert book.over
    assert book.take(2) is None


def test_stepped_that_goes_on_from_done_entries_begins_behind_them():
    known = np.zeros(4, OUTCOME)
    known["state"] = BlockState.DURABLE
    book = BspSchedule(Entries(blocks(10)), micro_batches=4, known=known)
    assert book.slots.open == 1
    assert book.take(1).number == 4
    assert book.progress == 0.4


# --- lost workers ----------------------------------------------------------------------------


def test_schedule_blames_the_block_at_which_several_workers_were_lost():
    book = QueueSchedule(Entries(blocks(4)))
    for node in range(1, LOSSES_MAX + 1):
        assert book.take(node).number == 0
        book.take(node)  # prefetched: innocent
        assert book.blame(node) == (0 if node == LOSSES_MAX else -1)
        book.retire(node)
    assert book.blame(99) == -1
