"""A shard thread whose `Shard` methods tests call: done in its thread, waited for."""

import threading
import time

from snailps.errors import WaitTimeout
from snailps.shard.shard_thread import ShardThread

AT_STANDBY = {"set_tick", "expire_one", "set_clock", "close_clock", "seal", "fence"}
"""Orders: done once the standby has done them, too, or will not be promoted."""
LOOK_S = 0.001


class BlockingShard(ShardThread):
    """`thread.NAME(...)` is `Shard.NAME(...)` in the shard's thread, and waits for its result.

    In the shard's own thread, which cannot wait, the call is made at once.
    """

    def __getattr__(self, name):
        if name == "shard" or name.startswith("_"):  # not made yet
            raise AttributeError(name)
        method = getattr(self.shard, name)

        def do(*arguments, **named):
            return self._loop.submit(
                lambda: method(*arguments, **named), at_standby=name in AT_STANDBY
            )

        return do

    def stats(self):
        """Counters of loop, requests and store, as a dict of numbers."""
        return self._loop.submit(lambda: self.shard.stats(time.monotonic()))

    @property
    def yielding(self):
        """Whether it is handing over."""
        return self._loop.submit(lambda: self.shard.yielding)

    def yield_(self, timeout_s, stay=False):
        """Hands over to the standby and stops serving; with `stay` it becomes the standby.

        Raises WaitTimeout if the standby does not acknowledge everything in time, and what
        `Shard.begin_yield` and `Shard.finish_yield` raise; it then goes on serving.
        """
        self.begin_yield()
        try:
            until = time.monotonic() + timeout_s
            while not self.finish_yield(stay):
                if time.monotonic() > until or threading.get_ident() == self._thread.ident:
                    raise WaitTimeout(
                        f"the standby did not acknowledge all pushes in {timeout_s:g} s: "
                        "this shard goes on serving"
                    )
                time.sleep(LOOK_S)
        finally:
            self.end_yield()

    def test_faults(self, left_out=(), point="", passings=1):
        """Plants faults: leaves a safeguard of pushes out, or ends the process at a point."""
        self._loop.submit(lambda: self.shard.set_faults(left_out, point, passings))
