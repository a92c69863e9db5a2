"""`ReplicationPlanner` without a cluster: every order of losses, joins and drains, and what comes
of it."""

import logging
import random

import pytest
from cases import seeds
from planner_world import World, assert_counted, emptied, rows_lost, stuck

from snailps.master.effects import Say
from snailps.master.replication import planner as module
from snailps.master.replication.effects import Expelled
from snailps.master.replication.pending_orders import ORDER_S
from snailps.master.replication.shard_index import COPIES_MAX
from snailps.transport import messages as m


class Counted(dict):
    """How many values were looked at by walking over them."""

    seen = 0

    def values(self):
        self.seen += len(self)
        return super().values()

    def __iter__(self):
        self.seen += len(self)
        return super().__iter__()


class CountedList(list):
    """The same of a list."""

    seen = 0

    def __iter__(self):
        self.seen += len(self)
        return super().__iter__()


def test_an_event_costs_a_look_over_servers_and_shards_and_a_quiet_tick_nothing():
    """With a walk over all shards for each server and shard the first plan takes half a minute."""
    servers, world = 100, World(servers=100, shards=8, obey=False, counted=False)
    places = world.plan.placement
    places.servers, places.shards = Counted(places.servers), CountedList(places.shards)
    for _ in range(1000):
        before = places.servers.seen + places.shards.seen
        if world.orders:
            world.obey(0)
        else:
            world.deliver(0)
        cost = places.servers.seen + places.shards.seen - before
        assert cost <= 20 * (servers + len(places.shards))
    mean = (places.servers.seen + places.shards.seen) / 1000
    assert mean <= 4 * servers
    world.settle(10_000)
    world.wait(1.0)  # what is even is found to be so
    before = places.servers.seen + places.shards.seen
    for _ in range(100):
        world.wait(0.05)
    assert places.servers.seen + places.shards.seen == before
    assert_counted(places)
    load = [places.index.load(number) for number in range(1, servers + 1)]
    assert set(load) == {16}


def test_where_many_wait_for_a_copy_as_many_are_made_at_a_time_as_can_be():
    world = World(servers=20, shards=8, obey=False)
    begun = [s for s in world.plan.status() if s["standby"]]
    assert len(begun) == 20 // 2 * COPIES_MAX
    assert len({n for s in begun for n in (s["primary"], s["standby"])}) == 20


def test_standbys_are_on_another_host_where_there_is_one():
    world = World(hosts={1: "a", 2: "a", 3: "b"})
    assert world.roles()[0] == (1, 3)
    assert world.roles()[1] == (2, 3)
    world.check()


def test_one_server_has_no_standby_and_says_so():
    world = World(servers=1)
    assert world.roles() == {0: (1, 0)}
    (line,) = world.lines
    assert "only one server" in line.text


def test_a_lost_server_is_stood_in_for_and_redundancy_comes_back():
    world = World(servers=3)
    for shard in range(3):
        world.push(shard)
    world.now = 5.0
    world.kill(2)
    assert [s.server for s in world.routes[-1].shards][1] != 2
    world.now = 5.5
    world.settle()
    world.plan.followed(world.plan.route.epoch, 5.75)
    world.check()
    assert not rows_lost(world)
    assert world.plan.redundancy.metrics.figures() == {
        "failovers": 1, "resume_s_max": 0.75, "unprotected_s": 0.5,
    }  # fmt: skip


def test_resuming_counts_until_the_promoted_one_serves():
    world = World()
    world.kill(1)
    world.plan.followed(world.plan.route.epoch, 1.0)
    assert world.plan.redundancy.metrics.resume_s_max == 0.0
    world.now = 3.0
    world.settle()
    assert world.plan.redundancy.metrics.resume_s_max == 3.0


@pytest.mark.parametrize("first", [1, 2])
def test_two_losses_at_once_lose_rows_and_say_which(first):
    world = World(servers=3)
    pairs = world.roles()
    world.kill(first)
    other = next(s for shard, (p, s) in pairs.items() if p == first)
    world.kill(other)
    assert rows_lost(world)


def test_loss_while_the_standby_is_seeded_loses_rows_and_says_which():
    world = World(servers=2, obey=False)
    world.until(m.BackUp)
    world.kill(1)
    assert rows_lost(world) == [(0,)]


def test_loss_of_a_standbys_server_leaves_its_primary_alone_first():
    world = World(servers=2)
    world.kill(2)
    kinds = [(o.server, type(o.message)) for o in world.orders]
    assert (1, m.Alone) in kinds
    world.settle()
    world.check()


def test_a_standby_out_of_reach_is_never_promoted():
    world = World(servers=2)
    copy = world.plan.placement.shards[0].standby.number
    world.notes.append((1, m.Unbacked(0, copy, "reset")))
    world.deliver(0)
    world.kill(1)
    assert rows_lost(world) == [(0,)]


def test_late_news_of_an_older_standby_is_ignored():
    world = World(servers=3)
    old = world.plan.placement.shards[0].standby
    world.kill(old.server)
    world.settle()
    new = world.plan.placement.shards[0].standby
    world.notes += [(1, m.Unbacked(0, old.number, "reset")), (2, m.Backed(0, new.number))]
    world.settle()
    assert world.plan.placement.shards[0].standby is new
    world.check()


def test_a_server_that_cannot_host_is_left_alone_for_a_while_and_asked_again():
    world = World(servers=2, obey=False)
    for _ in range(3):
        at = next(i for i, o in enumerate(world.orders) if isinstance(o.message, m.HostStandby))
        world.obey(at, fail="no port is free")
        assert not [o for o in world.orders if isinstance(o.message, m.HostStandby)][1:]
        world.settle()
        world.wait(60.0)
    world.settle()
    world.check()


def test_a_copy_that_does_not_get_on_is_given_up_and_made_anew():
    world = World(servers=2, obey=False)
    world.until(m.BackUp)
    order = next(o for o in world.orders if isinstance(o.message, m.BackUp))
    world.orders.remove(order)
    world.plan.answered(order, m.Ok(), "", world.now)
    world.take()
    shard = order.message.shard
    world.settle()
    world.plan.seeded(order.server, shard, 0.5, module.STALL_S - 1)
    world.wait(module.STALL_S + 1)
    assert world.plan.placement.shards[shard].standby.number == order.message.copy
    world.wait(module.STALL_S)
    world.settle()
    world.wait(module.STALL_S)
    world.settle()
    world.check()


def test_a_server_that_does_not_obey_is_expelled():
    world = World(servers=2)
    world.kill(1)
    order = world.until(m.Promote)
    world.orders.remove(order)
    world.wait(ORDER_S + 1)
    assert [t.server for t in world.told if isinstance(t, Expelled)] == [2]


def test_drained_server_hands_everything_over():
    world = World(servers=3, shards=2)
    world.drain(1)
    world.settle()
    assert emptied(world) == [1]
    assert not any(1 in pair for pair in world.roles().values())
    world.kill(1)  # it leaves
    world.check()
    assert not world.plan.redundancy.metrics.failovers
    assert world.plan.redundancy.metrics.moves == 4  # two of each kind


def test_drain_without_replication_makes_standbys_for_the_move_only():
    world = World(servers=2, shards=2, replicated=False)
    world.drain(1)
    world.settle()
    assert emptied(world) == [1]
    assert set(world.roles().values()) == {(2, 0)}
    world.check()


@pytest.mark.parametrize("replicated", [True, False])
def test_drain_of_the_only_server_is_refused(replicated):
    world = World(servers=1, replicated=replicated)
    world.drain(1)
    assert stuck(world) == [1]
    world.settle()
    world.check()


def test_drained_server_gets_nothing_new_before_it_leaves():
    world = World(servers=2)
    world.drain(2)
    world.settle()
    world.wait(100.0)
    world.settle()
    assert not world.copies[2]


def test_drain_is_given_up_when_standbys_fail_again_and_again():
    world = World(servers=2, replicated=False)
    world.drain(1)
    for _ in range(module.FAILURES_MAX):
        at = next(i for i, o in enumerate(world.orders) if isinstance(o.message, m.HostStandby))
        world.obey(at, fail="no port is free")
        world.settle()
        world.wait(100.0)
    assert stuck(world) == [1]
    world.check()


@pytest.mark.parametrize("victim", ["leaving", "target"])
@pytest.mark.parametrize("kind", [m.Yield, m.Promote])
def test_loss_in_the_middle_of_a_change_over_loses_nothing(kind, victim):
    world = World(servers=3)
    world.push(0)
    target = world.roles()[0][1]
    world.drain(1)
    world.until(kind)
    world.kill(1 if victim == "leaving" else target)
    assert not rows_lost(world)
    world.settle()
    world.check()


def test_loss_of_the_target_behind_the_yield_has_the_yielded_one_serve_again():
    world = World(servers=2)
    world.push(0)
    world.drain(1)
    world.until(m.Yield)
    world.obey(next(i for i, o in enumerate(world.orders) if isinstance(o.message, m.Yield)))
    assert world.copies[1][0]["role"] == "yielded"
    world.kill(2)  # before the word of the first arrives
    world.settle()
    assert world.copies[1][0]["role"] == "primary"
    assert stuck(world) == [1]
    world.check()


def test_former_primary_serves_alone_when_its_successor_is_lost():
    """Its own stream leads there, and may break much later."""
    world = World(servers=1, shards=2)
    world.join(2)
    world.settle()
    assert list(world.roles().values()).count((2, 1)) == 1  # one has changed places
    world.kill(2)
    world.settle()
    assert [world.push(at) for at in (0, 1)] == [True, True]
    world.check()


def test_a_primary_that_cannot_yield_serves_on_and_the_move_is_tried_again():
    world = World(servers=3)
    world.drain(1)
    order = world.until(m.Yield)
    world.orders.remove(order)
    world.plan.answered(order, m.Ok(), "", world.now)
    world.notes.append((order.server, m.Yielded(order.message.shard, "its standby took 5 s")))
    world.settle()
    assert not emptied(world)
    world.wait(60.0)
    world.settle()
    assert emptied(world) == [1]


def test_a_server_that_joins_takes_shards_of_those_that_have_two_more():
    world = World(servers=2, shards=3)
    world.join(3)
    world.settle()
    world.check()
    primaries = [primary for primary, _ in world.roles().values()]
    assert sorted(primaries.count(n) for n in (1, 2, 3)) == [2, 2, 2]
    load = [sum(n in pair for pair in world.roles().values()) for n in (1, 2, 3)]
    assert max(load) - min(load) <= 1


def test_a_server_that_joins_a_small_cluster_stands_ready():
    world = World(servers=2, shards=1)
    world.join(3)
    world.settle()
    world.check()
    assert [primary for primary, _ in world.roles().values()] == [1, 2]


def said(world):
    """Lines of the log that are said of standbys."""
    lines = [line for line in world.lines if isinstance(line, Say)]
    return [line for line in lines if "have no standby" in line.text or "every shard" in line.text]


@pytest.mark.parametrize("change", [lambda w: w.join(4), lambda w: w.drain(1)])
def test_of_what_only_moves_nothing_is_said_for_nothing_lacks_its_standby(change):
    world = World(servers=3, shards=3)
    world.lines.clear()
    world.paces.clear()
    change(world)
    world.settle()
    assert said(world) == []
    assert set(world.paces) == {True}


def test_what_was_lost_is_copied_without_rests():
    world = World(servers=3, shards=3)
    world.paces.clear()
    world.kill(1)
    world.settle()
    assert set(world.paces) == {False}  # as when the cluster formed


def test_a_loss_ends_copies_that_only_move_and_those_that_make_it_good_go_first():
    world = World(servers=4)
    world.join(5)
    while (moving := world.until(m.BackUp)).message.resume:
        world.obey(world.orders.index(moving))
    shard = world.plan.placement.shards[moving.message.shard]
    assert moving.message.paced
    assert moving.server == shard.standby.server
    world.paces.clear()
    world.kill(({1, 2, 3, 4} - {shard.primary, shard.standby.server}).pop())
    ends = [(o.server, type(o.message)) for o in world.orders if o.message.shard == shard.number]
    assert ends[-2:] == [(moving.server, m.Alone), (5, m.DropShard)]
    world.settle()
    assert world.paces[:2] == [True, False]  # that which was on its way, what makes it good
    world.check()


def test_a_second_server_after_one_alone_is_copied_to_without_rests():
    world = World(servers=2)
    world.drain(1)
    world.settle()
    world.kill(1)  # it had nothing any more
    world.settle()
    world.paces.clear()
    world.join(3)
    world.settle()
    assert world.paces == [False, False]  # then one of the shards changes places with its standby
    assert world.plan.redundant


def test_a_loss_is_a_warning_also_while_shards_move():
    world = World(servers=4)
    world.drain(1)
    world.until(m.Yield)
    shards = world.plan.status()
    bare = {s["primary"] for s in shards if s["state"] not in ("ready", "yielding")}
    world.lines.clear()
    world.kill(({2, 3, 4} - bare).pop())
    world.settle()
    assert not rows_lost(world)
    assert [line.level for line in said(world)] == [logging.WARNING] * 2
    world.check()


def test_a_master_that_finds_its_servers_lost_does_not_first_say_that_all_is_well():
    world = World(servers=2)
    for server in (1, 2):
        world.alive.discard(server)
        world.copies[server] = {}
    world.lines.clear()  # of the master before
    world.replace_master(random.Random(1))
    assert rows_lost(world)
    assert not any("every shard" in line.text for line in said(world))


def test_without_replication_a_server_that_joins_takes_shards_too():
    world = World(servers=1, shards=4, replicated=False)
    world.join(2)
    world.settle()
    world.check()
    assert sorted(world.roles().values()) == [(1, 0), (1, 0), (2, 0), (2, 0)]
    assert set(world.paces) == {True}  # nothing was lost: these only move


def test_the_same_server_lost_twice_counts_once():
    world = World(servers=3)
    world.kill(2)
    world.kill(2)
    world.settle()
    world.check()
    assert world.plan.redundancy.metrics.failovers == 1


@pytest.mark.parametrize("order", [m.Yield, m.BackUp])
def test_primary_lost_with_the_master_while_it_changes_over_is_stood_in_for(order):
    for chance in map(random.Random, range(8)):
        world = World(servers=3)
        world.push(0)
        primary, standby = world.roles()[0]
        world.drain(standby)  # it leaves: it is made the primary first
        while world.until(order).message.shard != 0:
            world.obey(0)
        world.replace_master(chance, lost=primary)
        world.settle()
        assert not rows_lost(world)
        world.wait(100.0)
        world.settle()
        world.check()


def test_held_plan_stands_in_for_the_lost_and_moves_nothing():
    world = World(servers=3)
    world.plan.held = True
    world.kill(1)
    world.drain(2)
    world.settle()
    assert not emptied(world)
    assert not world.plan.redundant
    assert all(world.push(shard) for shard in range(3))
    world.plan.held = False
    world.wait(1.0)
    world.settle()
    assert emptied(world) == [2]
    world.kill(2)
    world.check()


def course_of_moves(seed, steps):
    """A cluster in which servers join and leave, and none is lost; yields after each event."""
    chance = random.Random(seed)
    world = World(chance.randint(2, 4), chance.randint(1, 3))
    number = max(world.alive)
    for _ in range(steps):
        choice = world.passes(chance)
        stay = [s for s in world.plan.placement.servers.values() if not s.leaving]
        if 0.9 <= choice < 0.95 and len(world.alive) < 6:
            number += 1
            world.join(number)
        elif choice and len(stay) > 2:
            world.drain(chance.choice(stay).number)
        world.end_emptied()
        yield world


@pytest.mark.parametrize("seed", seeds(5))
def test_what_moves_has_two_copies_of_all_that_was_acknowledged_all_the_time(seed):
    for world in course_of_moves(seed, 400):
        assert world.plan.redundant
        for shard, acknowledged in enumerate(world.acknowledged):
            have = [c[shard]["n"] for n, c in world.copies.items() if shard in c]
            assert sum(n >= acknowledged for n in have) >= 2
    assert world.plan.redundancy.metrics.moves > 3
    assert not world.plan.redundancy.metrics.unprotected_s


@pytest.mark.parametrize("seed", seeds(5))
def test_a_loss_at_any_moment_of_any_move_is_survived(seed):
    chance = random.Random(-seed)
    for _ in range(4):
        *_, world = course_of_moves(seed, chance.randint(1, 250))
        world.kill(chance.choice(sorted(world.alive)))
        assert not rows_lost(world)
        world.rest()
        assert not rows_lost(world)
        assert set(world.plan.placement.leaving) <= set(stuck(world))
        world.check()


@pytest.mark.parametrize("seed", seeds(10, 152, 241))
def test_any_order_of_events_loses_no_acknowledged_push(seed):
    """Losses only while redundant; orders and notes are obeyed and delivered at random.

    Servers are slow, but none so slow that it would be expelled.  Every now and then another master
    takes over, from what the last one had kept; servers may have been lost while there was none,
    unless a shard was just changing over, and may have come.
    """
    chance = random.Random(seed)
    world = World(chance.randint(2, 4), chance.randint(1, 3), obey=False)
    number = max(world.alive)
    for _ in range(400):
        choice = world.passes(chance)
        if 0.9 <= choice < 0.93 and world.plan.redundant and len(world.alive) > 1:
            world.kill(chance.choice(sorted(world.alive)))
        elif 0.9 <= choice < 0.95 and len(world.alive) < 6:
            number += 1
            world.join(number)
        elif 0.9 <= choice < 0.96:
            world.drain(chance.choice(sorted(world.alive)))
        elif 0.9 <= choice < 0.98:
            lost = come = 0
            safe = world.plan.redundant and not world.plan.moving and len(world.alive) > 1
            if safe and chance.random() < 0.5:
                lost = chance.choice(sorted(world.alive))
            if len(world.alive) < 6 and chance.random() < 0.5:
                number += 1
                come = number
            world.replace_master(chance, lost, come)
        world.end_emptied()
    world.rest()
    assert not rows_lost(world)
    assert not [t for t in world.told if isinstance(t, Expelled)]
    world.check()
