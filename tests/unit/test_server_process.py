"""`Performer`: what it reports to the core of shards that cannot start."""

import queue

from snailps.errors import ClusterError, ConnectionLost
from snailps.server import effects as fx
from snailps.server.performer import GONE, Performer


def refuses(effect):
    raise ClusterError("too many open files")


def test_order_to_a_shard_that_could_not_start_is_refused_with_the_reason():
    inbox = queue.SimpleQueue()
    performer = Performer(inbox, start=refuses, connect=None, note=None, close_listeners=None)
    starts = [fx.StartShard(5, 0, standby=False, listener=0)]
    posts = [fx.Post(number, number, lambda shard: None, at_standby=False) for number in (5, 6)]
    performer.perform([*starts, *posts])
    answers = [inbox.get_nowait() for _ in range(3)]
    assert [(answer.work, str(answer.error)) for answer in answers] == [
        (5, "too many open files"), (5, "too many open files"), (6, GONE),
    ]  # fmt: skip
    assert isinstance(answers[2].error, ConnectionLost)
