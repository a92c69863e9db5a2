"""What a server answers to orders for its shards, and when: all have obeyed, standbys included."""

import queue

import pytest
from server_pair import SHARDS, Pair
from shards import LIMIT_S

from snailps.transport import messages as m


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


ORDERS = [
    m.Fence(77, shards=list(range(SHARDS))),
    m.Expire(5, 2, list(range(SHARDS))),
    m.SetClock(3, True, list(range(SHARDS))),
    m.CloseClock(0, [], list(range(SHARDS))),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_shard_that_waits_for_a_silent_standby_hears_that_it_is_alone(pair, order):
    """What ends the wait is heard and answered at once, beside the order that waits."""
    pair.silence()
    pair.near.give(100, order)
    *others, last = range(SHARDS)
    for shard in others:
        pair.near.give(200 + shard, m.Alone(shard))
    assert sorted(pair.near.answers(len(others))) == [200 + shard for shard in others]
    pair.near.give(200 + last, m.Alone(last))
    assert pair.near.answers(2)[100].data["done"] == list(range(SHARDS))


def test_shards_whose_standby_answers_wait_for_no_other_shard(pair):
    pair.relays[0].open.clear()
    pair.near.give(100, m.Fence(77, shards=[0]))
    pair.near.give(101, m.Fence(77, shards=list(range(1, SHARDS))))
    assert pair.near.answers(1)[101].data["done"] == list(range(1, SHARDS))
    pair.relays[0].open.set()
    assert pair.near.answers(1)[100].data["done"] == [0]


def test_order_is_not_done_by_a_shard_that_is_lost_before_its_standby_has_it(pair):
    """The master gives it again, to the server that stands in."""
    pair.silence()
    pair.near.give(100, m.Fence(77, shards=[0, 1]))
    pair.near.give(101, m.Alone(1))
    assert 101 in pair.near.answers(1)
    assert pair.near.shard(0).stop(LIMIT_S)
    assert pair.near.answers(1)[100].data["done"] == [1]


def test_order_of_a_shard_whose_standby_is_out_of_reach_waits_for_the_master(pair):
    """It may be promoted without the order, as long as the master has not given it up."""
    assert pair.far.shard(0, standby=True).stop(LIMIT_S)
    note = pair.near.note()
    assert isinstance(note, m.Unbacked)
    pair.near.give(100, m.SetClock(4, False, [0]))
    pair.near.give(101, m.Ask("stats"))
    assert 101 in pair.near.answers(1)
    pair.near.give(102, m.Alone(0))
    assert sorted(pair.near.answers(2)) == [100, 102]


def test_shard_that_hangs_holds_up_no_order_for_another(pair):
    go_on = queue.SimpleQueue()
    pair.near.shard(0).post(lambda: go_on.get(timeout=LIMIT_S))
    pair.near.give(100, m.Alone(0))
    pair.near.give(101, m.Fence(77, shards=list(range(1, SHARDS))))
    assert pair.near.answers(1)[101].data["done"] == list(range(1, SHARDS))
    go_on.put(None)
    assert 100 in pair.near.answers(1)


def test_promoted_shard_gets_the_order_that_its_primary_took_with_it(pair):
    """End to end: given again after the loss, the fence holds at the shard that stands in."""
    pair.silence()
    pair.near.give(100, m.Fence(77, shards=[0]))
    assert pair.near.shard(0).stop(LIMIT_S)
    assert pair.near.answers(1)[100].data["done"] == []
    pair.relays[0].open.set()
    pair.far.give(100, m.Promote(0, 2))
    pair.far.give(101, m.Fence(77, shards=[0]))
    assert pair.far.answers(2)[101].data["done"] == [0]
