"""The schedule of shared blocks: every entry is done exactly once, whatever happens in between."""

from functools import partial
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snailps.master.job.expiry import TICKS, ExpiryClock, oldest_kept
from snailps.master.leases import Entries, QueueSchedule
from snailps.pieces import Piece


def blocks(sizes):
    return [Piece(str(at), 0, size) for at, size in enumerate(sizes)]


def test_schedule_with_entries_tells_epochs_and_shares_of_bytes():
    schedule = QueueSchedule(Entries(blocks([10, 30]), 2))
    entries = [schedule.take(1) for _ in range(4)]
    assert [(e.number, int(e.piece.path), e.epoch) for e in entries] == [
        (0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)
    ]  # fmt: skip
    assert [e.progress for e in entries] == [
        (0, 0.125), (0.125, 0.5), (0.5, 0.625), (0.625, 1.0)
    ]  # fmt: skip


@pytest.mark.parametrize(("limit", "size", "shares"), [(3, 3, [0.2, 0.8, 1.0]), (9, 4, None)])
def test_schedule_with_limit_ends_there_and_shares_add_up_to_all(limit, size, shares):
    schedule = QueueSchedule(Entries(blocks([10, 30]), 2, limit))
    entries = [schedule.take(1) for _ in range(size)]
    assert schedule.size == size
    assert schedule.take(1) is None
    assert entries[-1].progress[1] == 1.0
    if shares is not None:
        assert [entry.progress[1] for entry in entries] == shares
    for entry in entries:
        assert schedule.done(entry.number, 1)
    assert schedule.over
    assert schedule.progress == 1.0


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.integers(1, 6),
    st.integers(0, 40),
    st.integers(0, (1 << 64) - 1),
)
def test_schedule_with_an_order_leases_each_block_once_an_epoch_and_shares_add_up(
    sizes, epochs, limit, seed
):
    made = partial(QueueSchedule, Entries(blocks(sizes), epochs, limit, seed))
    schedule, before = made(), 0.0
    taken, n = [], len(sizes)
    while (entry := schedule.take(1)) is not None:
        assert entry.progress[0] == pytest.approx(before)
        assert entry == schedule.plan.entry(entry.number) == made().plan.entry(entry.number)
        assert schedule.done(entry.number, 1)
        before = entry.progress[1]
        assert schedule.progress == pytest.approx(before)
        taken.append(int(entry.piece.path))
        schedule.records.make_durable([entry.number], 1)
        again = made(known=schedule.durable())
        assert again.progress == pytest.approx(before)
        assert again.plan.share(range(len(taken))) == pytest.approx(before)
    assert before == pytest.approx(1.0)
    for first in range(0, len(taken) // n * n, n):
        assert sorted(taken[first : first + n]) == list(range(n))


def test_order_of_a_schedule_is_another_one_for_each_seed_and_epoch():
    orders = set()
    for seed in (1, 2):
        schedule = QueueSchedule(Entries(blocks([1] * 50), 3, order=seed))
        taken = [int(schedule.take(1).piece.path) for _ in range(150)]
        orders |= {tuple(taken[at : at + 50]) for at in (0, 50, 100)}
    assert len(orders) == 6
    assert tuple(range(50)) not in orders


def dealt(schedule, turns):
    """Blocks by worker, of workers that ask in turns and finish what they get."""
    found = {node: [] for node in turns}
    for node in turns:
        entry = schedule.take(node)
        assert entry is not None
        assert schedule.done(entry.number, node)
        found[node].append(int(entry.piece.path))
    return found


@given(st.integers(1, 4), st.integers(1, 12), st.integers(2, 4), st.none() | st.integers(0, 99))
def test_worker_has_the_same_blocks_in_each_epoch_while_all_are_as_fast(
    workers, each, epochs, order
):
    schedule = QueueSchedule(Entries(blocks([1] * workers * each), epochs, order=order))
    turns = list(range(1, workers + 1)) * each
    first = dealt(schedule, turns)
    for _ in range(epochs - 1):
        again = dealt(schedule, turns)
        assert {node: sorted(had) for node, had in again.items()} == {
            node: sorted(had) for node, had in first.items()
        }
    assert schedule.over


def test_worker_without_blocks_of_its_own_takes_from_the_one_that_has_most_left():
    schedule = QueueSchedule(Entries(blocks([1] * 8), 2))
    first = dealt(schedule, [1, 1, 1, 1, 2, 2, 2, 3])
    assert first == {1: [0, 1, 2, 3], 2: [4, 5, 6], 3: [7]}
    # Worker 1 is gone, 4 has come; 3 is the fastest.
    second = dealt(schedule, [3, 3, 4, 2, 3, 2, 4, 2])
    assert second == {3: [7, 0, 2], 4: [1, 3], 2: [4, 5, 6]}


def test_loss_counts_against_the_block_that_was_trained_first_not_that_of_the_least_number():
    schedule = QueueSchedule(Entries(blocks([1] * 4), 2))
    dealt(schedule, [1, 1, 2, 2])
    assert [schedule.take(2).number for _ in range(3)] == [6, 7, 4]  # the last was worker 1's
    assert schedule.blame(2) == -1
    assert schedule.losses == {6: 1}


def test_takeover_leaves_each_worker_its_blocks():
    schedule = QueueSchedule(Entries(blocks([1] * 6), 3))
    dealt(schedule, [1, 2, 3] * 2)
    held = {node: schedule.take(node).number for node in (3, 2, 1)}
    again = QueueSchedule(Entries(blocks([1] * 6), 3), known=schedule.known())
    for node, number in held.items():
        assert again.claim(number, node)
    rest = {node: again.take(node).number for node in (2, 1, 3)}
    assert {node: {held[node] - 6, rest[node] - 6} for node in held} == {
        1: {0, 3}, 2: {1, 4}, 3: {2, 5}
    }  # fmt: skip


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 999))
def test_entries_that_are_claimed_or_returned_are_leased_once(claimed, seed):
    """As in a takeover: workers report what they hold before any asks."""
    random = Random(seed)
    schedule = QueueSchedule(Entries(blocks([1] * 5), 4, order=3))
    for number in claimed:
        held = schedule.records.holder(number)
        assert schedule.claim(number, 7) == (held in (0, 7))
    taken = {number for number in range(20) if schedule.records.holder(number) == 7}
    while (entry := schedule.take(node := random.randint(1, 3))) is not None:
        assert entry.number not in taken
        taken.add(entry.number)
        if random.random() < 0.3:
            taken -= set(schedule.release(node))
        elif (other := random.randrange(20)) not in taken and random.random() < 0.3:
            assert schedule.claim(other, 9)
            taken.add(other)
        elif schedule.records.holder(entry.number) == node:
            assert schedule.done(entry.number, node)
    assert taken == set(range(20))


def test_schedule_with_entry_of_another_node_refuses_its_end():
    schedule = QueueSchedule(Entries(blocks([1, 1])))
    schedule.take(1)
    assert not schedule.done(0, 2)
    assert not schedule.done(1, 1)
    assert schedule.done(0, 1)
    assert not schedule.done(0, 1)


def test_schedule_with_released_entries_gives_them_out_first():
    schedule = QueueSchedule(Entries(blocks([1] * 5)))
    taken = [schedule.take(node).number for node in (1, 2, 1)]
    assert taken == [0, 1, 2]
    assert schedule.release(1) == [0, 2]
    assert [schedule.take(2).number for _ in range(3)] == [0, 2, 3]


def test_schedule_when_closed_gives_nothing_and_is_over_when_leases_end():
    schedule = QueueSchedule(Entries(blocks([1] * 5)))
    schedule.take(1)
    schedule.close()
    assert schedule.take(1) is None
    assert not schedule.over
    assert schedule.done(0, 1)
    assert schedule.over
    assert schedule.progress == 0.2


@pytest.mark.parametrize(
    ("ticks", "oldest"),
    [
        ([0, 1], 0),
        ([0, 1, 2, 9], 0),
        ([0, 1, 2, 10], 1),  # the first tick's rows may have been touched until 2, 8 ticks ago
        ([0, 1, 2, 3, 10], 1),
        ([0, 1, 2, 3, 11], 2),
        ([0, 20, 28], 0),  # a slow shard may have had 0 until 28 was given
        ([0, 20, 30, 38], 1),
    ],
)
def test_oldest_kept_counts_from_when_the_clock_moved_on(ticks, oldest):
    assert oldest_kept(ticks) == oldest


def test_clock_of_a_long_training_keeps_few_ticks_and_deletes_the_same_rows():
    orders = []
    rows = SimpleNamespace(expiring=False, expire=lambda *order: orders.append(order[:2]))
    out = SimpleNamespace(journal=lambda *_: None)
    clock = ExpiryClock(out, rows)
    job = SimpleNamespace(
        model=SimpleNamespace(expires=TICKS), metrics=SimpleNamespace(units=0),
        clock=SimpleNamespace(ticks=[0]),
    )  # fmt: skip
    all_ = [0]
    for step in range(1, 300):
        job.metrics.units += 1 + step % 3  # some ticks are left out
        all_.append(job.metrics.units)
        clock.step(job, 0.0)
        assert orders[-1] == (all_[-1], oldest_kept(all_))
        assert len(job.clock.ticks) <= TICKS + 2
    other = SimpleNamespace(clock=SimpleNamespace(ticks=all_))
    ExpiryClock(out, rows).resume(other, 0.0)
    assert other.clock.ticks == job.clock.ticks
