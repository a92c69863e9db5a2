"""Owns the phase of a cluster, its exit code and its verdict: why it ended, in a sentence.

    forming > idle > stopping > done | failed        fail(sentence), stop(code, sentence)
                   > left                            leave(code, sentence)

Must not know members or jobs. The first cause wins: a failure while the cluster stops is a
consequence, and would hide the reason from the user.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from snailps.master.effects import Outbox
from snailps.master.phases import ClusterPhase, cluster_step


class Lifecycle:
    def __init__(self, out: Outbox, on_stop: Callable[[bool, str], None], now: float) -> None:
        # ``on_stop(broken, verdict)`` sends every member the order to end; called once
        self._out, self._on_stop = out, on_stop
        self.now = now  # monotonic seconds of the present event; `MasterCore.handle` sets it
        self.phase = ClusterPhase.FORMING
        self.code = EXIT_OK
        self.failed = False
        self.verdict = ""  # why the cluster ended; empty for the ordinary end
        self.stopped_at: float | None = None  # when the members got the order to end

    @property
    def forming(self) -> bool:
        """Whether members are still missing."""
        return self.phase is ClusterPhase.FORMING

    @property
    def stopping(self) -> bool:
        """Whether members have the order to end."""
        return self.stopped_at is not None

    @property
    def over(self) -> bool:
        """Whether no further event has an effect: the process may end."""
        return self.phase in (ClusterPhase.DONE, ClusterPhase.FAILED, ClusterPhase.LEFT)

    @property
    def left(self) -> bool:
        """Whether this master ends alone: the journal stays, and members wait for the next one."""
        return self.phase is ClusterPhase.LEFT

    @property
    def ending(self) -> bool:
        """Whether the end is decided: further calls of `fail`, `stop` and `leave` do nothing."""
        return self.stopping or self.over

    def go(self, phase: ClusterPhase) -> None:
        """Enter a phase; an invalid transition is a defect."""
        self.phase = cluster_step(self.phase, phase)

    def fail(self, text: str, code: int = EXIT_FAILED) -> None:
        """End the cluster without a result; `text` is the verdict that users read."""
        if not self.ending:
            self.failed = code != EXIT_INTERRUPTED
            if self.failed:
                self._out.happened("warning", "", text)
            self.stop(code, text, broken=True)

    def stop(self, code: int, text: str, *, broken: bool = False) -> None:
        """End the cluster; `broken`: members do not finish what they have begun."""
        if self.ending:
            return
        self.code, self.verdict, self.stopped_at = code, text, self.now
        # Noted before any member hears of it: a master that took over in between would resume a
        # run whose members are ending.
        self._out.journal("stopped", {"code": code, "text": text})
        self.go(ClusterPhase.STOPPING)
        self._on_stop(broken, text)

    def leave(self, code: int, text: str) -> None:
        """End this master alone. Members notice what they would if it had been killed: a closed
        connection; they keep their state and wait for the next master."""
        if not self.ending:
            self.code, self.verdict = code, text
            self.go(ClusterPhase.LEFT)

    def stood_still(self, seconds: float) -> None:
        if self.stopped_at is not None:
            self.stopped_at += seconds

    def end(self) -> None:
        """End: all members have left, or have been waited for long enough."""
        self.go(ClusterPhase.FAILED if self.failed else ClusterPhase.DONE)
