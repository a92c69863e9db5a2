"""Owns the life of a cluster on this machine: start, wait, stop, result.

    settings, sizes -> Run.start -> Launcher -> processes, the master's address
    the master's status -> Run.wait -> show        Run.stop -> Result: exit code, figures

`snailps train`, `local` and `demo` wait until the job of a run has ended.  A session (cluster.py),
on which estimators fit, joins its run as a driver.  Must not know displays.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from typing import Any

from snailps.config import ClusterSettings, RawConfig
from snailps.dataclass import dataclass
from snailps.errors import SnailError, WaitTimeout
from snailps.local.launcher import Launcher
from snailps.node.limits import END_S
from snailps.node.status import Status
from snailps.node.status_line import StatusLine
from snailps.transport._awake import awake_s, watch
from snailps.transport.control import Trust

SERVERS_MAX, WORKERS_MAX = 64, 256
"""Most processes of a cluster on one machine."""
LOCAL = {"master_addr": "127.0.0.1:16831", "listen_addr": "127.0.0.1:0"}
LOOK_S = 0.2
SILENT_S = 3.0
"""After this many seconds without an answer, the status says that the master does not answer."""
ENDING_S = 20.0
"""Seconds for a master to end after it has closed its connection."""
PATIENCE = 2
"""This many interrupts are passed to the master; the next one ends it by force."""
STARTING = ("forming", "preparing")
REPLACING = ("survey", "loading", "training")
"""Phases in which a server or worker that was killed is replaced."""


@dataclass(frozen=True, slots=True)
class Result:
    """The master's exit code, None if it did not end, and its figures, empty if it was killed."""

    code: int | None
    figures: dict[str, Any]


class ClusterProcesses:
    """The processes of a cluster, from start to end.

    `how`: further arguments of `launcher`, a kind of `Launcher`.  All methods but `interrupt` are
    called from one thread; `interrupt` may be a signal's handler.
    """

    def __init__(self, raw: RawConfig, launcher: type[Launcher] | None = None, **how: Any) -> None:
        self.launcher = (launcher or Launcher)(raw, **how)
        self.interrupts = 0

    def interrupt(self, *_: object) -> None:
        """Ask for the end: the first time in order, the second time at once, then by force."""
        self.interrupts += 1

    def start(self, until: float = math.inf) -> bool:
        """Start all processes; return whether the master listens.

        Gives up after an interrupt, and at the monotonic time `until`.
        """
        self.launcher.start(lambda: self.interrupts > 0 or awake_s() > until)
        # Not before: its thread would keep the launcher from forking, which saves each process its
        # imports, .15 s of the processor.
        watch()
        return bool(self.launcher.address)

    def wait(
        self,
        settings: ClusterSettings,
        show: Callable[[Status], object],
        turn: Callable[[], object] = lambda: None,
    ) -> None:
        """Show the status until the master ends; restart the master and nodes that were killed.

        Also returns when the master has refused connections for `ENDING_S` seconds.  `turn` is
        called a few times per second.
        """
        launcher, asked = self.launcher, 0
        status: Status | None = None
        heard_at = awake_s()
        lost_at: float | None = None
        trust = Trust.of(settings, secret=launcher.secret)
        with contextlib.closing(StatusLine(launcher.address, trust)) as line:
            while self.interrupts <= PATIENCE:
                if launcher.poll() is not None:
                    if self.interrupts or not launcher.restart_killed(
                        [0], lambda: self.interrupts > 0
                    ):
                        return
                    line.close()
                    lost_at = None
                while asked < self.interrupts:
                    asked += 1
                    launcher.interrupt()
                turn()
                now = awake_s()
                try:
                    status = line.look(LOOK_S)
                except WaitTimeout:
                    if now - heard_at > SILENT_S and status is not None:
                        # It is suspended, or swaps.  Not for us to end: the nodes decide when the
                        # silence has lasted too long.
                        show({**status, "message": "the master does not answer"})
                    continue
                except SnailError:
                    # It is ending, and reports the reason itself; or it is too busy to accept.
                    line.close()
                    lost_at = lost_at or now
                    if now - lost_at > ENDING_S:
                        return
                    launcher.wait(LOOK_S)
                    continue
                heard_at, lost_at = awake_s(), None
                if status["phase"] in STARTING:
                    launcher.check()
                if status["phase"] not in ("stopping", "done", "failed"):
                    if status["phase"] in REPLACING and not self.interrupts:
                        launcher.restart_killed(range(1, len(launcher.children)))
                    show(status)
                launcher.wait(LOOK_S)

    def stop(self, limit_s: float = END_S) -> Result:
        """End all processes in order within `limit_s` seconds, then by force; idempotent."""
        launcher = self.launcher
        # Two interrupts: end at once.  A master that was interrupted before it listened got one.
        if (
            launcher.children
            and launcher.poll() is None
            and (launcher.address or not self.interrupts)
        ):
            launcher.interrupt()
            launcher.interrupt()
        launcher.end(limit_s if self.interrupts <= PATIENCE else LOOK_S)
        figures: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            figures = json.loads(launcher.output)
        return Result(launcher.poll(), figures)
