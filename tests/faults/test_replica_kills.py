"""Shards in processes of their own, killed at any moment: what was acknowledged is there, once."""

import contextlib
import random
import threading

import numpy as np
import pytest
from replicas import Counting, Replicas
from shard_process import ShardProcess
from waiting import until


class Line(contextlib.AbstractContextManager):
    """A primary and its standby in processes, workers that count here, kills."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.cluster = Replicas()
        self.cluster.add_table(1, 4, 0, 0)
        self.all, self.epoch = [], 1
        self.primary = self.new("primary")
        self.cluster.ports[0] = self.primary.port
        self.counting = Counting(self.cluster)
        self.standby = None
        self.restore()

    def __exit__(self, *failure):
        self.counting.over.set()
        self.cluster.__exit__(*failure)
        for one in self.all:
            one.end()

    def new(self, role):
        made = ShardProcess(role)
        self.all.append(made)
        return made

    def restore(self):
        """Makes a new standby; returns when it is ready, or the primary has died."""
        self.standby = self.new("standby")
        return self.primary.order(back_up=self.standby.port) and self.primary.until("ready")

    def await_death(self):
        """Waits until the primary is dead."""
        until(
            lambda: self.primary.process.poll() is not None, "the death of the primary",
            over=lambda: str(self.counting.errors or ""),
        )  # fmt: skip

    def fail_over(self):
        """The primary is dead: its standby takes over."""
        self.await_death()
        self.epoch += 1
        assert self.standby.order(promote=self.epoch)
        self.primary = self.standby
        self.cluster.reroute(self.primary.port, epoch=self.epoch)

    def check(self):
        self.counting.more()
        found, acknowledged = self.counting.end()
        assert np.array_equal(found, acknowledged)


def test_acknowledged_pushes_survive_kills_of_the_primary_at_any_moment():
    with Line(1) as line:
        for _ in range(5):
            line.counting.more(line.random.randrange(50, 2000))
            line.primary.process.kill()
            line.fail_over()
            line.restore()
        line.check()


@pytest.mark.parametrize("point", ["mid-send", "applied", "acknowledged"])
def test_acknowledged_pushes_survive_the_death_of_the_primary_at(point):
    with Line(2) as line:
        for _ in range(2):
            line.counting.more(200)
            line.primary.order(faults=[[], point, line.random.randrange(1, 60)])
            line.fail_over()
            line.restore()
        line.check()


def test_acknowledged_pushes_survive_the_death_of_the_standby_before_it_acknowledges():
    with Line(3) as line:
        for _ in range(2):
            line.counting.more(200)
            line.standby.order(faults=[[], "replayed", line.random.randrange(1, 60)])
            assert line.primary.until("lost")
            line.primary.order(alone=True)
            line.restore()
        line.counting.more(200)
        line.primary.process.kill()
        line.fail_over()
        line.check()


def test_death_of_the_primary_while_its_standby_is_made_is_no_promotion():
    with Line(4) as line:
        line.counting.more(200)
        line.primary.order(alone=True)
        standby = line.new("standby")
        line.primary.order(faults=[[], "mid-send", 1])
        line.primary.order(back_up=standby.port)
        line.await_death()
        standby.order(stats=True)
        assert standby.order(promote=2) in (False, None)
        line.counting.over.set()
        for client in line.counting.clients:
            client.fail("the test is over")


def test_standby_that_dies_at_its_promotion_says_nothing():
    with Line(5) as line:
        line.counting.more(200)
        line.standby.order(faults=[[], "promoted", 1])
        line.primary.process.kill()
        line.await_death()
        assert not line.standby.order(promote=2)
        line.counting.over.set()
        for client in line.counting.clients:
            client.fail("the test is over")
        assert threading.active_count() > 0
