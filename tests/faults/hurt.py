"""``python -m faults.hurt server ...``: snailps with something left out, or with a place to die at.

    HURT='{"die": "package.module:Class.method", "call": 2, "when": "after"}'  -> kill -9 of itself
    HURT='{"left_out": ["no-hold"], "point": "applied", "passings": 3}' -> ShardThread.test_faults

The harness's own way to aim: the program itself knows nothing of it.
"""

import functools
import importlib
import json
import os
import signal
import sys
import threading

from snailps.cli.entry import main
from snailps.roles import hosting


def die_at(path, call, when):
    """Has this process die when a function is called for the `call`-th time."""
    module, _, names = path.partition(":")
    *outer, name = names.split(".")
    owner = importlib.import_module(module)
    for one in outer:
        owner = getattr(owner, one)
    original = getattr(owner, name)
    calls, lock = [0], threading.Lock()

    @functools.wraps(original)
    def counted(*arguments, **named):
        with lock:
            calls[0] += 1
            due = calls[0] == call
        if due and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def hurt_shards(left_out, point, passings):
    """Has every shard of this process leave something out, or die at a point of its own."""

    class Hurt(hosting.ShardThread):
        def start(self):
            super().start()
            self.test_faults(left_out, point, passings)

    hosting.ShardThread = Hurt


def run():
    """Hurts what `HURT` says, then is snailps."""
    wish = json.loads(os.environ.get("HURT", "{}"))
    if "die" in wish:
        die_at(wish["die"], wish.get("call", 1), wish.get("when", "before"))
    if "left_out" in wish or "point" in wish:
        hurt_shards(wish.get("left_out", ()), wish.get("point", ""), wish.get("passings", 1))
    sys.argv[0] = "snailps"
    main()


if __name__ == "__main__":
    run()
