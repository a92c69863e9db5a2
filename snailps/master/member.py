"""A process that belongs to the cluster, as the master sees it.

    Register / Rejoin -> Member -> name, state, what it waits for, since when

Owns what is known of one process; decides nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from snailps.dataclass import dataclass, field

log = logging.getLogger(__name__)

WAIT_LOGGED_S = 3.0
"""Seconds that a worker waits for others before a log line."""
RATE_WINDOW_S = 10.0
"""Window of rates, seconds."""
_SECONDS_LEAST = 1e-6
"""Resolution of clocks."""
NAMED_MAX = 8
"""Members that a message names one by one."""

NO_PEER = 0
"""Number of a missing connection: what is sent to it is dropped."""


@dataclass(eq=False, slots=True)
class Member:
    number: int
    role: str
    host: str
    pid: int
    peer: int  # number of its connection, or `NO_PEER`
    endpoints: list[tuple[str, int]]
    cores: float = 1.0  # that it may keep busy
    state: str = "registered"  # what it does, in words for users
    waits: str = ""  # what it waits for, in words for users; see `wait_for`
    acknowledged: bool = False  # it has the route
    # reached every server once, also under an earlier master: no newcomer that may go unmissed
    joined: bool = False
    routed_at: float = 0.0  # when it was sent the route that it does not have yet
    finished: bool = False  # a worker: no block left, all pushes acknowledged
    leaving: bool = False  # it has the order to leave (SIGTERM)
    late: bool = False  # it joined after the start
    declared: bool = False  # a table: before that a process can push to none
    worked: bool = False  # it has had a block of this job
    dropped: int = 0  # number of the job that ended without what it still works on; 0: none
    since: float = 0.0  # when it registered, monotonic seconds
    epoch: int = 0  # of the route that it took last
    waited_s: float = 0.0  # waits for others in this job
    away: bool = False  # known from the journal of an earlier master, and not back yet
    missed: str = ""  # why it did not come back, or was lost again before the job resumed
    resume_state: dict[str, Any] = field(default_factory=dict)  # of `Rejoin.state`
    figures: dict[str, Any] = field(default_factory=dict)  # its last `Finished` or `Bye`
    stats: dict[str, Any] = field(default_factory=dict)  # a server's last `Report`
    stats_before: dict[str, Any] = field(default_factory=dict)  # the `Report` before that one
    stats_s: float = 0.0  # seconds between the two; 0 before there are two
    metrics: str = ""  # address of its metrics; empty without
    usage: dict[str, float] = field(default_factory=dict)  # what its process uses, as last reported
    usage_before: dict[str, float] = field(default_factory=dict)  # the report before that
    done: int = 0  # its blocks of this job
    block_since: float = 0.0  # when it began its present block, or asked for it
    fetched: int = 0  # blocks whose bytes the master sent it
    lacks: str = ""  # the path that it could not open
    stats_at: float = 0.0  # when the last came, monotonic seconds
    address: tuple[str, int] = ("", 0)  # peer address of its connection; empty without one
    _units: deque[tuple[float, int]] = field(default_factory=deque)
    _units_since: float = 0.0
    _checkout_units: int = 0
    _waits_since: float = 0.0
    _wait_logged: bool = False

    @property
    def name(self) -> str:
        return f"{self.role} {self.number} ({self.host}, process {self.pid})"

    def trained(self, units: int, seconds: float, now: float, *, checkout: bool = False) -> None:
        """Note training of `units`. In a rotation those of a `checkout` are a part of those of its
        lease, which follow."""
        if not self._units or now - self._units[-1][0] > RATE_WINDOW_S:
            self._units.clear()
            self._units_since = now - seconds
        new = units if checkout else max(0, units - self._checkout_units)
        self._checkout_units = self._checkout_units + units if checkout else 0
        self._units.append((now, new))

    def rate(self, now: float) -> float | None:
        """Units per second over the last `RATE_WINDOW_S` seconds; None before the first."""
        if not self._units:
            return None
        while len(self._units) > 1 and now - self._units[0][0] > RATE_WINDOW_S:
            self._units.popleft()
        units = sum(n for at, n in self._units if now - at <= RATE_WINDOW_S)
        return units / max(min(RATE_WINDOW_S, now - self._units_since), _SECONDS_LEAST)

    @property
    def short_name(self) -> str:
        """Name where the host does not matter."""
        return f"{self.role} {self.number}"

    def wait_for(self, what: str, now: float) -> None:
        """Set what it waits for; empty: nothing."""
        if what and not self.waits:
            self._waits_since = now
        elif self.waits and not what:
            waited_s = now - self._waits_since
            self.waited_s += waited_s
            if self._wait_logged:
                log.info("%s goes on after %.1f s", self.name, waited_s)
                self._wait_logged = False
        self.waits = what

    def log_wait(self, now: float) -> None:
        """Log a long wait, once."""
        waited_s = now - self._waits_since
        if self.waits and not self._wait_logged and waited_s >= WAIT_LOGGED_S:
            self._wait_logged = True
            log.info("%s waits for %s, for %.1f s now", self.name, self.waits, waited_s)

    def waits_s(self, now: float) -> float:
        return now - self._waits_since if self.waits else 0.0

    def let_go(self) -> None:
        """Drop what only a connected member needs; metrics stay."""
        self.peer = NO_PEER
        self.resume_state, self.stats_before = {}, {}

    def take_stats(self, stats: dict[str, Any], now: float) -> None:
        """Keep a server's report, and the one before, for rates."""
        self.stats_before, self.stats_s = self.stats, now - self.stats_at if self.stats else 0.0
        self.stats, self.stats_at = stats, now
        self.take_usage(stats)

    def take_usage(self, stats: dict[str, Any]) -> None:
        if usage := stats.get("usage"):
            self.usage_before, self.usage = self.usage, usage
            self.metrics = stats.get("metrics", "")


def names_of(members: list[Member]) -> str:
    """Members in a message: each one, or the first few and a count of the rest."""
    names = [member.name for member in members[:NAMED_MAX]]
    if len(members) > NAMED_MAX:
        names.append(f"{len(members) - NAMED_MAX} more")
    return ", ".join(names)


def cpu_share(now: Mapping[str, float], before: Mapping[str, float]) -> float | None:
    """Share of one core between two reports of a process; None if unknown."""
    if not (now and before):
        return None
    seconds = now["time_s"] - before["time_s"]
    return max(0.0, now["cpu_s"] - before["cpu_s"]) / seconds if seconds > 0 else None
