"""``python -m faults.hurt server ...``: snailps with something left out, or a place to die at.

    HURT='{"left_out": ["no-hold"]}'                    -> Shard.set_faults, from the start
    HURT_LATER=PREFIX, SIGUSR1, file PREFIX + pid       -> from then on
        {"point": "applied", "passings": 3}                as Shard.set_faults has it
        {"die": "package.module:Class.method", "call": 2, "when": "after"}
        {"set": {"package.module:NAME": 1000}}

    HURT_SILENT=FOLDER, file PID: seconds               -> a member was silent for so much longer
                        file PID.fenced                 <- it was expelled, every shard refuses it

A process that comes by the place for the n-th time dies as by kill -9.  The program itself knows
nothing of this but `Shard.set_faults`.
"""

import contextlib
import functools
import importlib
import json
import os
import signal
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path

from blocking_shard import BlockingShard

from snailps.cli.entry import main
from snailps.errors import ConnectionLost
from snailps.master.core import MasterCore
from snailps.master.events import Heartbeats
from snailps.node import shard_connections
from snailps.server import process

SILENT_S = 1.0
"""What a member has to be silent for really, before it is longer."""
LONG_S = 3600.0
"""Longer than any master waits for a member to come back."""

_shards, _faults = [], [(), "", 1]
_known = weakref.WeakSet()
_lock = threading.Lock()  # of these: shards are made by other threads than the one that obeys


def know(owner, name):
    """Has objects of a class known here, from now on."""

    base = getattr(owner, name)

    class Known(base):
        def __init__(self, *arguments, **named):
            if base.__init__ is not object.__init__:  # others are made by their __cinit__ alone
                super().__init__(*arguments, **named)
            with _lock:
                _known.add(self)

    setattr(owner, name, Known)


def die_at(path, call, when):
    """Has this process die when a function is called for the `call`-th time from now on."""
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


def obey(wish):
    """Hurts this process as wished: the shards that it has, and those to come."""
    for path, value in wish.get("set", {}).items():
        module, _, name = path.partition(":")
        setattr(importlib.import_module(module), name, value)
    if "die" in wish:
        die_at(wish["die"], wish.get("call", 1), wish.get("when", "before"))
        return
    with _lock:
        _faults[:] = wish.get("left_out", ()), wish.get("point", ""), wish.get("passings", 1)
        for shard in _shards:
            with contextlib.suppress(ConnectionLost):  # it was dropped meanwhile
                shard.test_faults(*_faults)


def hurt_to_come():
    """Has shards be hurt, from now on, as was wished last when they start."""

    class Hurt(process.ShardThread):
        def start(self):
            super().start()
            with _lock:
                self.test_faults(*_faults)
                _shards.append(self)

    process.ShardThread = Hurt


def obey_later(number, frame):
    """A handler: a thread reads the wish and obeys, whatever the main one holds or waits for."""
    path = Path(os.environ["HURT_LATER"] + str(os.getpid()))
    threading.Thread(target=lambda: obey(json.loads(path.read_text())), daemon=True).start()


def miss(folder):
    """Has a master miss members at once that will not be heard, however long its limits are.

    Of those that are silent for a while the folder says that it is longer; those of an earlier
    master that are dead cannot come back.
    """
    handle = MasterCore.handle

    def later(self, event, now):
        if not isinstance(event, Heartbeats):
            return handle(self, event, now)
        members, silences = self.members, dict(event.silences)
        silent = {int(path.name): path for path in folder.glob("*[0-9]")}
        for member in members.all.values():
            if member.pid in silent and silences.get(member.number, 0.0) > SILENT_S:
                silences[member.number] += float(silent[member.pid].read_text())
            if member.away and not Path(f"/proc/{member.pid}").exists():
                member.since = min(member.since, now - LONG_S)
        wanted = handle(self, replace(event, silences=silences), now)
        if not self.replication.shard_orders.open("fence", "clock"):
            for pid in silent.keys() - {member.pid for member in members.all.values()}:
                (folder / f"{pid}.fenced").touch()
        return wanted

    MasterCore.handle = later


def tell(number, frame):
    """A handler: what shards and clients here count goes to standard error, for reports."""

    def look():
        with _lock:
            known = list(_known)
        for one in known:
            if hasattr(one, "stats"):
                with contextlib.suppress(ConnectionLost):
                    print("shard", one.stats(), file=sys.stderr, flush=True)
            else:
                print("client", one.counters(), file=sys.stderr, flush=True)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":
    process.ShardThread = BlockingShard
    know(process, "ShardThread")
    know(shard_connections, "Client")
    signal.signal(signal.SIGUSR2, tell)
    hurt_to_come()
    if "HURT_SILENT" in os.environ:
        miss(Path(os.environ["HURT_SILENT"]))
    obey(json.loads(os.environ.get("HURT", "{}")))
    signal.signal(signal.SIGUSR1, obey_later)
    sys.argv[0] = "snailps"
    main()
