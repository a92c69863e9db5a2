"""Taking routes: the first connect, which a newer route ends, and what follows it."""

import threading

import pytest
from processes import LIMIT_S

from snailps.errors import ConnectionLost, WaitTimeout
from snailps.node.shard_connections import RouteFollower, connect
from snailps.store.route import Route, ShardAddress

FRAGS = 8


def route(epoch, *servers):
    return Route.build(epoch, [ShardAddress(n, "127.0.0.1", 1000 + n) for n in servers], FRAGS)


class Links:
    """As much of `shard_connections.ShardConnections` as a follower sees."""

    def __init__(self, route):
        self.route, self.closed = route, False

    def follow(self, route):
        if route.epoch > self.route.epoch:
            self.route = route

    def close(self):
        self.closed = True


class Network:
    """Servers that are there, and dead ones: the wait for those has to be broken off."""

    def __init__(self, *dead):
        self.dead = set(dead)
        self.dialling = threading.Semaphore(0)
        self.made = []

    def make(self, route, superseded):
        self.dialling.release()
        for shard in route.shards:
            waiter = threading.Event()
            end = 0
            while shard.server in self.dead:
                if superseded() or end > LIMIT_S / 0.005:
                    raise WaitTimeout(f"cannot reach server {shard.server}")
                waiter.wait(0.005)
                end += 1
        self.made.append(Links(route))
        return self.made[-1]

    def refuse(self, route, superseded):
        raise WaitTimeout("cannot reach server 1")


@pytest.fixture
def network():
    return Network(1)


def follower(make):
    told = []
    return RouteFollower(make, lambda links: told.append(links.route.epoch)), told


def test_take_answers_at_once_and_connects_meanwhile(network):
    made, told = follower(network.make)
    answer = made.take(route(1, 1, 2))
    assert network.dialling.acquire(timeout=LIMIT_S)
    assert not answer.done()
    network.dead.clear()
    answer.result(LIMIT_S)
    assert told == [1]
    assert made.links is network.made[0]


def test_newer_route_ends_the_first_connect_and_both_calls_are_answered(network):
    made, told = follower(network.make)
    answers = [made.take(route(1, 1, 2))]
    assert network.dialling.acquire(timeout=LIMIT_S)
    answers.append(made.take(route(2, 3, 2)))  # server 1 stays dead
    for answer in answers:
        answer.result(LIMIT_S)
    assert told == [2]
    assert made.links.route.epoch == 2


def test_newer_route_of_other_shards_is_connected_to_from_the_beginning():
    network = Network()
    made, told = follower(network.make)
    made.take(route(1, 1, 2)).result(LIMIT_S)
    made.take(route(2, 2)).result(LIMIT_S)  # formed anew
    assert [links.closed for links in network.made] == [True, False]
    assert told == [1, 2]


@pytest.mark.parametrize("in_use", [False, True])
def test_links_follow_and_stay_the_same(in_use):
    # Also before they are in use: the order to begin may be on its way, behind the route.
    network = Network()
    made, told = follower(network.make)
    made.take(route(1, 1, 2)).result(LIMIT_S)
    made.in_use = in_use
    made.take(route(2, 3, 2)).result(LIMIT_S)
    assert len(network.made) == 1
    assert not network.made[0].closed
    assert told == [1, 2]


def test_failed_connect_is_the_answer_and_the_same_route_may_be_tried_again(network):
    made, told = follower(network.refuse)
    with pytest.raises(WaitTimeout, match="server 1"):
        made.take(route(1, 1)).result(LIMIT_S)
    made._make = Network().make
    made.take(route(1, 1)).result(LIMIT_S)
    assert told == [1]


def test_connect_that_ends_after_the_process_closes_what_it_made(network):
    made, told = follower(network.make)
    answer = made.take(route(1, 1))
    assert network.dialling.acquire(timeout=LIMIT_S)
    made.close()
    network.dead.clear()
    with pytest.raises(ConnectionLost):
        answer.result(LIMIT_S)
    assert network.made[0].closed
    assert not told


def test_connect_of_the_master_goes_on_with_the_route_that_came_meanwhile(network):
    routes = [route(1, 1, 2)]
    found = []
    thread = threading.Thread(
        target=lambda: found.append(connect(lambda: routes[-1], network.make)), daemon=True
    )
    thread.start()
    assert network.dialling.acquire(timeout=LIMIT_S)
    routes.append(route(2, 3, 2))
    thread.join(LIMIT_S)
    assert found[0].route.epoch == 2
