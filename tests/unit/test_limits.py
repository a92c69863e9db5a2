"""Limits along a chain of waits fall from the outside in: a caller is served before it gives up."""

import threading
from itertools import pairwise, product

import numpy as np
import pytest
from cases import each
from server_pair import TABLES, Pair
from shards import LIMIT_S

from snailps.config import MasterSettings, ServerSettings, WorkerSettings
from snailps.errors import RemoteError
from snailps.master import transfers
from snailps.node import limits
from snailps.node.limits import Limits
from snailps.node.shard_connections import ShardConnections
from snailps.server.checkpoints import RESTORE_LIMIT_S
from snailps.transport import messages as m
from snailps.transport.handshake import Role
from snailps.transport.security.refusals import HANDSHAKE_LIMIT_S

EXTREMES = [0.1, 1.0, 60.0, 900.0, 86_400.0]
"""Of `request_timeout`, its default among them."""


@each("request_s", EXTREMES)
def test_limits_of_a_request_fall_from_the_outside_in(request_s):
    of = Limits.of(request_s)
    chain = [request_s, of.reach_s, of.parked_s, of.silence_s, of.stuck_s, of.yield_s, of.try_s]
    assert all(outer > inner > 0 for outer, inner in pairwise(chain)), chain
    # After the inner one there is time left to act on it, and to be served.
    assert of.parked_s - of.silence_s >= 0.2 * request_s
    assert of.silence_s < limits.STALL_S
    assert of.silence_s < RESTORE_LIMIT_S
    assert of.changeover_s > limits.ORDER_S + of.yield_s


@each("request_s, init_s", product(EXTREMES, EXTREMES))
def test_first_connect_ends_before_those_who_wait_for_it(request_s, init_s):
    assert 0 < Limits.of(request_s).connect_s(init_s) < min(request_s, init_s)


def test_limits_of_orders_fall_from_the_outside_in():
    chain = [transfers.STALL_S, limits.STALL_S, limits.ORDER_S, limits.DIAL_S]
    assert all(outer > inner for outer, inner in pairwise(chain)), chain
    assert limits.DIAL_S > HANDSHAKE_LIMIT_S


def test_limits_of_the_end_fall_from_the_outside_in():
    chain = [limits.END_S, limits.GOODBYE_S, limits.GRACE_S, 2 * limits.STOP_S]
    assert all(outer > inner for outer, inner in pairwise(chain)), chain


def test_default_settings_serve_a_request_whose_server_falls_silent():
    """It is lost, its standby is promoted; if that hangs, too, the request ends in an error."""
    for settings in (MasterSettings(), ServerSettings(), WorkerSettings()):
        of = Limits.of(settings.request_timeout)
        assert settings.heartbeat_timeout + limits.ORDER_S < of.parked_s
        assert settings.heartbeat_timeout < of.silence_s


REQUEST_S = 10.0
"""Between limits that follow each other are 0.1 to 0.3 of it: a loaded machine must not stand still
for as long as that.
"""


@pytest.fixture
def pair():
    made = Pair(request_timeout=REQUEST_S)
    yield made
    made.close()


@pytest.fixture
def links(pair):
    made = ShardConnections(
        pair.route, Role.WORKER, node=3, incarnation=3, job=7, timeout_s=REQUEST_S
    )
    yield made
    made.close()


def test_push_behind_a_silent_standby_is_served_before_its_time_is_over(pair, links):
    """The primary says that it hears nothing, the master that it is alone."""
    keys, rows = np.arange(10, dtype=np.uint64), np.ones((10, 4), np.float32)
    pair.silence()
    over = threading.Event()
    master = threading.Thread(target=alone_when_told, args=(pair, over))
    push = links.client.push_async(TABLES[0][0], keys, rows)
    master.start()
    push.wait()
    over.set()
    pair.near.give(999, m.Ask("stats"))  # the answer wakes it
    master.join(LIMIT_S)


def alone_when_told(pair, over):
    """What the master does with what primaries tell, until the test is over."""
    while not over.is_set():
        pair.near.hear()
        while pair.near.notes:
            note = pair.near.note()
            assert isinstance(note, m.Unbacked), note
            pair.near.give(400 + note.shard, m.Alone(note.shard))


def test_request_that_waits_at_a_shard_is_told_for_what_before_its_time_is_over(pair, links):
    keys, rows = np.arange(10, dtype=np.uint64), np.ones((10, 4), np.float32)
    links.client.reroute(5, [f"shard {n}" for n in range(len(pair.route.shards))])
    with pytest.raises(RemoteError, match="at the shard for the client's route"):
        links.client.pull(TABLES[0][0], keys, rows)


def test_standby_that_lacks_something_says_so_before_its_primary_loses_patience(pair, links):
    """A table that the master has told the primary alone."""
    pair.near.give(300, m.MakeTables([[2, TABLES[0][1]]]))
    pair.near.answers(1)
    keys, rows = np.arange(64, dtype=np.uint64), np.ones((64, 4), np.float32)
    push = links.client.push_async(2, keys, rows)
    notes = [pair.near.note() for _ in pair.route.shards]
    assert all("a table of the stream" in note.text for note in notes), notes
    for note in notes:
        pair.near.give(400 + note.shard, m.Alone(note.shard))
    push.wait()
