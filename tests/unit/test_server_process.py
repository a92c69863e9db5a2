"""`Server`: what it tells the core of shards that cannot start."""

import queue
from functools import partial
from types import SimpleNamespace

from snailps.errors import ClusterError, ConnectionLost
from snailps.server import effects as fx
from snailps.server.process import GONE, Server


def server(make_shard):
    """A server whose shards are made by the test."""
    one = object.__new__(Server)
    one._inbox, one._shards, one._not_started, one._posts = queue.SimpleQueue(), {}, {}, {}
    one._listeners = {0: SimpleNamespace(close=lambda: None, getsockname=lambda: ("h", 1))}
    one._server_settings = SimpleNamespace(advertise_addr="h:1")
    one._make_shard = make_shard
    return one


def refuses(error, *given):
    raise error


def test_order_to_a_shard_that_could_not_start_is_refused_with_the_reason():
    one = server(partial(refuses, ClusterError("too many open files")))
    one._start_shard(fx.StartShard(5, 0, standby=False, listener=0))
    for number in (5, 6):
        one._post(fx.Post(number, number, lambda shard: None, at_standby=False))
    answers = [one._inbox.get_nowait() for _ in range(3)]
    assert [(one.work, str(one.error)) for one in answers] == [
        (5, "too many open files"), (5, "too many open files"), (6, GONE),
    ]  # fmt: skip
    assert isinstance(answers[2].error, ConnectionLost)
