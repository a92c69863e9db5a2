"""The schedule of passes over ranges: none begins before all of the one before is done."""

import copy
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snailps.api.range_passes import RangePasses
from snailps.errors import MisuseError
from snailps.master.leases.ranges import RangeSchedule
from snailps.pieces import Piece
from snailps.transport.messages.terms import PassRange

BLOCKS = [Piece("a", 0, 10), Piece("a", 10, 30), Piece("b", 0, 5)]
PLAN = RangePasses(ranges=2, passes=4, per_epoch=2, before=1)


def schedule_of(plan=PLAN, known=None):
    return RangeSchedule(BLOCKS, plan, known)


def finish(schedule, node):
    """Lease and finish all that a worker gets; terms, epochs and shares."""
    entries = []
    while (entry := schedule.take(node)) is not None:
        assert schedule.done(entry.number, node)
        entries.append(entry)
    return entries


def test_blocks_come_first_then_each_pass_over_its_ranges():
    schedule = schedule_of()
    entries = finish(schedule, 1)
    assert [e.piece for e in entries[:3]] == BLOCKS
    assert [e.terms for e in entries[:4]] == [
        PassRange(0, 0, 3, 3), PassRange(0, 1, 3, 3), PassRange(0, 2, 3, 3), PassRange(1, 0, 2, 3)
    ]  # fmt: skip
    assert [(e.terms.pass_index, e.epoch) for e in entries[3::2]] == [
        (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)
    ]  # fmt: skip
    assert [e.progress[1] for e in entries[4:]] == [k / 8 for k in range(9)]
    assert schedule.over
    assert schedule.progress == 1.0
    assert schedule.epoch == 2


def test_a_worker_waits_for_the_range_of_another_and_has_its_own_again():
    schedule = schedule_of(RangePasses(2, 3))
    assert finish(schedule, 1)[-1].terms.pass_index == 3  # alone it waits for nobody
    schedule = schedule_of(RangePasses(2, 3))
    for _ in BLOCKS:
        schedule.done(schedule.take(7).number, 7)
    first, second = schedule.take(1), schedule.take(2)
    assert schedule.take(1) is None
    schedule.done(first.number, 1)
    assert schedule.take(1) is None
    assert str(schedule.wait_of(1)) == "worker 2 to finish pass 1 of 3"
    assert schedule.woken({1}) == []
    schedule.done(second.number, 2)
    assert schedule.woken({1}) == [1]
    assert schedule.take(2).terms == PassRange(2, 1, 2, 3)
    assert schedule.take(1).terms == PassRange(2, 0, 2, 3)
    assert schedule.needs == "fence"


def test_ranges_of_a_lost_worker_are_leased_first():
    schedule = schedule_of()
    finish_blocks = [schedule.take(1).number for _ in BLOCKS]
    assert schedule.retire(1) == finish_blocks
    assert [schedule.take(2).number for _ in BLOCKS] == finish_blocks
    assert schedule.take(2) is None
    assert not schedule.done(finish_blocks[0], 1)


def test_only_leases_of_the_present_pass_are_claimed():
    schedule = schedule_of()
    assert not schedule.claim(3, 1)
    assert schedule.claim(1, 1)
    assert [schedule.take(2).number, schedule.take(2).number, schedule.take(2)] == [0, 2, None]


@given(st.integers(0, 1 << 32))
def test_every_entry_is_done_once_whoever_is_lost_and_whichever_master_goes_on(seed):
    schedule, done, held, random = schedule_of(), [], {1: [], 2: [], 3: []}, Random(seed)
    while not schedule.over:
        node, what = random.choice((1, 2, 3)), random.randrange(10)
        if what == 0:
            assert schedule.retire(node) == sorted(held[node])
            held[node] = []
        elif what == 1:  # its records alone are left, and workers report what they hold
            known, numbers = copy.deepcopy(schedule.known()), dict(held)
            schedule = schedule_of(known=known)
            for other, mine in numbers.items():
                assert all(schedule.claim(number, other) for number in mine)
        elif what < 6 and (entry := schedule.take(node)) is not None:
            numbers = schedule.plan.numbers_of(entry.terms.pass_index)
            assert set(done) >= set(range(numbers.start)), "a pass begins before the last one ends"
            held[node].append(entry.number)
        elif held[node]:
            number = held[node].pop(0)
            assert schedule.done(number, node)
            done.append(number)
    assert sorted(done) == list(range(schedule.size))
    assert schedule.finished == schedule.size


@pytest.mark.parametrize("wrong", [{"ranges": 0}, {"passes": 1.0}, {"before": -1}])
def test_plans_that_are_none_are_refused(wrong):
    with pytest.raises(MisuseError, match=next(iter(wrong))):
        RangePasses(**{"ranges": 1, "passes": 1, **wrong})
