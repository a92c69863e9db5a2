"""``python -m with_time FILE server ...``: snailps with a clock that a test advances.

    Clock.advance -> size of FILE        -> seconds that the process's clock is ahead
    Clock.silent -> size of FILE.silent  -> seconds that stopped members were not heard of

Time limits in tests are so long that no load exceeds one.  A test about a limit advances the clock
of one process, or the time for which another process was silent.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from snailps.master import core
from snailps.master.heartbeats import HeartbeatMonitor
from snailps.transport import _awake

CLOCK = "clock"  # of a folder
LOOK_S = 0.02
"""How long it may take until a timer sees that time has passed."""

_now = time.monotonic


class Clock:
    """The time of the processes that are started by its `program`."""

    def __init__(self, folder):
        self._ahead = Path(folder) / CLOCK
        self._silent = Path(folder) / f"{CLOCK}.silent"
        for path in (self._ahead, self._silent):
            path.touch()
        self.program = [sys.executable, "-m", "with_time", str(self._ahead)]

    def advance(self, seconds):
        """Advances the clock."""
        os.truncate(self._ahead, self._ahead.stat().st_size + seconds)

    def silent(self, seconds):
        """Sets for how long masters have heard nothing of stopped members (SIGSTOP)."""
        os.truncate(self._silent, seconds)


class Timer(threading.Timer):
    """A `threading.Timer` that follows the clock."""

    def start(self):
        self.until = time.monotonic() + self.interval
        super().start()

    def run(self):
        while time.monotonic() < self.until and not self.finished.wait(LOOK_S):
            pass
        self.interval = 0
        super().run()


def is_stopped(pid):
    """Whether a process is stopped, as by SIGSTOP."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def let_pass(path):
    """Lets the time of this process follow a clock."""
    ahead, silent = Path(path), Path(f"{path}.silent")
    heard = HeartbeatMonitor.heard

    def later(self, event, now, **named):
        silences, silent_s = dict(event.silences), silent.stat().st_size
        for number in silences.keys() & self._members.all.keys():
            if silent_s and is_stopped(self._members.all[number].pid):
                silences[number] += silent_s
        heard(self, replace(event, silences=silences), now, **named)

    HeartbeatMonitor.heard = later
    core.AWAY_S = float("inf")  # its time passes by leaps, and it was not stopped
    time.monotonic = lambda: _now() + ahead.stat().st_size
    awake_s = _awake.awake_s
    for module in [*sys.modules.values()]:
        if getattr(module, "awake_s", None) is awake_s:
            module.awake_s = lambda: awake_s() + ahead.stat().st_size
    threading.Timer = Timer


if __name__ == "__main__":
    from snailps.cli.entry import main  # before: it imports modules that read the clock

    let_pass(sys.argv.pop(1))
    sys.argv[0] = "snailps"
    main()
