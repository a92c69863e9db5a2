"""What a server makes of the master's orders for its shards; the shards themselves are left out."""

import queue
import socket
from concurrent.futures import Future
from dataclasses import replace

import pytest

from snailps.config import ServerSettings
from snailps.server import shard_host
from snailps.server.shard_host import ShardHost
from snailps.transport import messages
from snailps.transport.security.trust import OPEN

LIMIT_S = 20.0


class Primary:
    """Keeps what it is told."""

    def __init__(self):
        self.done = queue.SimpleQueue()

    def back_up(self, fd, *, sync, paced, resume, tell):
        socket.socket(fileno=fd).close()
        self.done.put(("copy", paced))
        begun = Future()
        begun.set_result(None)
        return begun

    def pace(self, paced):
        self.done.put(("pace", paced))


@pytest.fixture
def host(monkeypatch):
    def dial(address, *args, **named):
        near, far = socket.socketpair()
        far.close()
        return near

    monkeypatch.setattr(shard_host, "dial", dial)
    welcome = messages.Welcome(1, 1, 1, 64, 1.0, 10.0)
    made = ShardHost(ServerSettings(), OPEN, welcome, lambda message: None)
    made.primaries[0] = Primary()
    return made


def test_second_order_for_the_same_copy_changes_the_pace_alone(host):
    done = host.primaries[0].done
    order = messages.BackUp(0, 4, "127.0.0.1", 5000, True, True)
    host.back_up(order)
    assert done.get(timeout=LIMIT_S) == ("copy", True)
    host.back_up(replace(order, paced=False))
    assert done.get(timeout=LIMIT_S) == ("pace", False)
    for other in (replace(order, copy=5), replace(order, copy=5, port=5001)):
        host.back_up(other)
        assert done.get(timeout=LIMIT_S) == ("copy", True)
    assert done.empty()


def test_pace_that_changes_while_the_standby_is_dialled_counts(host, monkeypatch):
    done, order = host.primaries[0].done, messages.BackUp(0, 4, "127.0.0.1", 5000, True, True)
    go_on, dial = queue.SimpleQueue(), shard_host.dial

    def slow(*args, **named):
        go_on.get(timeout=LIMIT_S)
        return dial(*args, **named)

    monkeypatch.setattr(shard_host, "dial", slow)
    host.back_up(order)
    host.back_up(replace(order, paced=False))
    assert done.get(timeout=LIMIT_S) == ("pace", False)
    go_on.put(None)
    assert done.get(timeout=LIMIT_S) == ("copy", False)
