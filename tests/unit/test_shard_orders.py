"""`ShardOrders`: each shard does what changes rows, in order, on whichever server it is by then."""

import pytest

from snailps.errors import ConnectionLost, RemoteError
from snailps.master.replication.shard_orders import ShardOrders
from snailps.transport import messages as m
from snailps.transport.messages.terms import Step

LIMIT_S = 10.0


class World:
    """Four shards, two a server, and calls that the test answers."""

    def __init__(self, **parts):
        self.serves = {0: 1, 1: 1, 2: 2, 3: 2}
        self.calls, self.failed, self.expelled, self.now = [], [], [], 0.0
        parts = {"expel": self._expel, **parts}
        self.shard_orders = ShardOrders(
            lambda: 4, self.serves.__getitem__, self._call, self.failed.append, LIMIT_S, **parts
        )

    def _expel(self, server, why, now):
        self.expelled.append((server, why))
        self.serves.update({shard: 0 for shard, at in self.serves.items() if at == server})

    def _call(self, server, message, on_answer, now):
        self.calls.append((server, message, on_answer))

    def answer(self, at=0, done=None, error=None, **data):
        """Answers an open call; by default all that was asked is done."""
        _, message, on_answer = self.calls.pop(at)
        shards = message.shards if done is None else done
        on_answer(error or m.Report({"done": shards, **data}), self.now)

    @property
    def asked(self):
        return [(server, type(message), message.shards) for server, message, _ in self.calls]


@pytest.fixture
def world():
    return World()


def test_each_server_is_asked_once_for_all_its_shards(world):
    world.shard_orders.set_clock(3, early=True, now=0.0)
    assert world.asked == [(1, m.SetClock, [0, 1]), (2, m.SetClock, [2, 3])]
    assert not world.shard_orders.clocks_set
    world.answer()
    world.answer()
    assert world.shard_orders.clocks_set
    world.shard_orders.step(world.now)
    assert not world.calls


def test_shards_of_a_lost_server_are_asked_where_they_are_then(world):
    world.shard_orders.close_clock(3, [0, 1], 0.0)
    world.answer(error=ConnectionLost("closed"))
    world.answer()
    world.serves.update({0: 2, 1: 2})
    world.shard_orders.step(world.now)
    assert world.asked == [(2, m.CloseClock, [0, 1])]
    world.answer()
    assert world.shard_orders.clocks_set


def test_a_shard_that_changes_over_is_asked_afterwards(world):
    world.serves[2] = 0
    world.shard_orders.fence(7, 0.0)
    assert world.asked == [(1, m.Fence, [0, 1]), (2, m.Fence, [3])]
    world.serves[2] = 1
    world.shard_orders.step(world.now)
    assert world.asked[2:] == [(1, m.Fence, [2])]


def test_a_server_that_has_just_handed_a_shard_over_leaves_it_undone(world):
    world.shard_orders.set_clock(0, early=False, now=0.0)
    world.answer(1, done=[2])
    world.serves[3] = 1
    world.shard_orders.step(world.now)
    assert world.asked == [(1, m.SetClock, [0, 1]), (1, m.SetClock, [3])]


def test_a_shard_does_one_after_the_other(world):
    world.shard_orders.set_clock(0, early=False, now=0.0)
    world.shard_orders.fence(7, 0.0, Step(4, 1, 2))
    assert len(world.calls) == 2
    world.answer()
    world.shard_orders.step(world.now)
    assert world.asked == [(2, m.SetClock, [2, 3]), (1, m.Fence, [0, 1])]
    assert world.calls[1][1] == m.Fence(7, 4, 1, 2, [0, 1])


def test_a_refusal_of_what_must_be_done_ends_the_job(world):
    world.shard_orders.set_clock(0, early=False, now=0.0)
    world.answer(error=RemoteError("no memory"))
    assert world.failed == ["server 1 cannot set its clock: no memory"]


@pytest.mark.parametrize(
    ("give", "what", "kind"),
    [
        (lambda orders: orders.fence(7, 0.0), "fence a worker", "fence"),
        (lambda orders: orders.expire(8, 2, 0.0), "expire rows", "expire"),
    ],
    ids=["fence", "expire"],
)
def test_a_server_that_refuses_is_lost_and_its_standbys_do_it(world, give, what, kind):
    """A worker that is not fenced may still push, and its blocks are leased to others."""
    give(world.shard_orders)
    world.answer(error=RemoteError("no memory"))
    world.answer()
    assert world.expelled == [(1, f"it cannot {what}: no memory")]
    assert world.shard_orders.open(kind)
    world.serves.update({0: 2, 1: 2})
    world.shard_orders.step(world.now)
    assert [(server, shards) for server, _, shards in world.asked] == [(2, [0, 1])]
    world.answer()
    assert not world.shard_orders.open(kind)
    assert not world.failed


def test_a_refusal_where_no_server_can_be_replaced_ends_the_job():
    world = World(expel=None)
    world.shard_orders.fence(7, 0.0)
    world.answer(error=RemoteError("no memory"))
    assert world.failed == ["server 1 cannot fence a worker: no memory"]
    assert world.shard_orders.open("fence")


def test_a_shard_that_nobody_serves_for_too_long_is_named(world):
    world.serves[2] = 0
    world.shard_orders.close_clock(3, [0], 0.0)
    world.answer()
    world.answer()
    world.now = LIMIT_S + 1
    world.shard_orders.step(world.now)
    assert "close clock 3 for shard 2" in world.failed[0]


def test_orders_that_all_wait_for_one_cost_nothing_while_they_do():
    """A hundred workers lost at once had each look of the loop go over all shards for each."""
    looks = []
    shard_orders = ShardOrders(
        lambda: 800, lambda shard: looks.append(shard) or 1, lambda *call: None, pytest.fail, 60.0
    )
    for worker in range(100):
        shard_orders.fence(worker, 0.0)
    assert len(looks) == 800
    shard_orders.step(0.0)
    assert len(looks) == 800
