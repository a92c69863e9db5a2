"""master.replication.placement: what is noted of shards is what has changed of them."""

import random

import pytest
from planner_world import World

from snailps.master.replication.placed_shard import STILL, Copy, Move, PlacedShard, Server
from snailps.master.replication.placement import Placement
from snailps.store.route import ShardAddress

SERVERS, SHARDS = range(1, 6), range(6)


def test_facts_of_a_cluster_that_forms_grow_with_its_shards_and_not_with_their_square():
    few, many = World(servers=4, shards=4), World(servers=4, shards=16)
    assert few.plan.redundant
    assert many.plan.redundant
    assert many.noted < 6 * few.noted


def changes(placement, shard, draw):
    """Changes that a shard may go through next."""
    copies = [copy for copy in (shard.standby, shard.next) if copy is not None]
    copy = draw.choice(copies) if copies else None
    new = Copy(draw.randrange(1 << 30), draw.choice(SERVERS), "asked", 0.0)
    server = draw.choice(SERVERS)
    return [
        lambda: placement.aim(shard, draw.choice([STILL, Move(server)])),
        lambda: placement.yielded(shard),
        lambda: placement.settle(shard),
        lambda: placement.lost(shard, server),
        lambda: placement.drop_standby(shard),
        lambda: placement.drop_next(shard),
        *[lambda: placement.add_copy(shard, new)] * 3,
        *[lambda: placement.take_back(shard)] * (shard.previous is not None),
        *[lambda: placement.promote(shard)] * (shard.standby is not None),
        *[lambda: placement.hosted(shard, copy, "h", 9, 1.0, paced=False)] * bool(copies),
        *[lambda: placement.seed(shard, copy)] * bool(copies),
        *[lambda: placement.complete(shard, copy)] * 2 * bool(copies),
    ]


def indices(placement):
    index = placement.index
    numbers = [index.unbacked, index.unready, index.bare, index.going, index.changing]
    servers = [(index.shards_of(n), index.served(n), index.has_room(n)) for n in SERVERS]
    return numbers, servers, placement.restless(replicated=True)


@pytest.mark.parametrize("seed", range(3))
def test_each_change_is_noted_and_counted_in_the_same_step(seed):
    draw = random.Random(seed)
    servers = [Server(number, "h") for number in SERVERS]
    shards = [PlacedShard(n, ShardAddress(draw.choice(SERVERS), "h", n)) for n in SHARDS]
    placement = Placement()
    placement.begin(servers, shards)
    assert placement.take_news() == [*SHARDS]
    for _ in range(300):
        before = [shard.snapshot() for shard in shards]
        version = placement.version
        draw.choice(changes(placement, draw.choice(shards), draw))()
        changed = [n for n in SHARDS if shards[n].snapshot() != before[n]]
        assert not changed or version < placement.version
        assert set(changed) <= set(placement.take_news())
        anew = Placement()
        anew.begin(servers, shards)
        assert indices(placement) == indices(anew)
