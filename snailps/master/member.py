"""A process that belongs to the cluster, as the master sees it.

    Register / Rejoin -> Member -> name, state, what it waits for, since when

Owns what is known of one process; decides nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger(__name__)

WAIT_TOLD_S = 3.0
"""How long a worker waits for others before the log says so."""
RATE_WINDOW_S = 10.0
"""Rates are means over so long."""
_SECONDS_LEAST = 1e-6
"""Clocks tell nothing finer."""
NAMED_MAX = 8
"""Members that a message names one by one."""

NOBODY = 0
"""The number of a connection that is not there: what is sent to it is lost."""


@dataclass(eq=False, slots=True)
class Member:
    """A registered process.

    Attributes
    ----------
    peer : int
        Number of its connection, or `NOBODY`.
    state, waits : str
        What it does and what it waits for, in words for users; see `wait_for`.
    waited_s : float
        How long it has waited for others in this job.
    acknowledged : bool
        It has the route.
    joined : bool
        It has had one and reached every server, under this master or an earlier one: it belongs to
        the cluster, and is no newcomer any more that can go without being missed.
    routed_at : float
        When it was sent the route that it does not have yet, monotonic seconds.
    finished : bool
        A worker: no block left, all pushes acknowledged.
    leaving : bool
        It was told to leave (SIGTERM).
    late : bool
        It joined after the start.
    worked : bool
        It has had a block.
    dropped : bool
        The job ended without the block it still works on.
    since : float
        When it registered, monotonic seconds.
    epoch : int
        Of the route that it has last taken.
    away : bool
        Known from the journal of an earlier master, and not back yet.
    missed : str
        Why it did not come back, or was lost again before the job went on.
    resume_state : dict
        What it told of itself when it came back (`Rejoin.state`).
    address : (str, int)
        Where its connection comes from; empty where it has none.
    figures, stats : dict
        Its last `Finished` or `Bye`; a server's last `Report`.
    stats_before : dict
        The `Report` before that one.
    stats_s, stats_at : float
        Seconds between the two, 0 before there are two; when it came, monotonic seconds.
    metrics : str
        Address of its metrics, empty where it has none.
    usage, usage_before : dict
        What its process uses, as last told, and the time before.
    done : int
        Its blocks of this job.
    block_since : float
        When it began its present block, or asked for it, monotonic seconds.
    fetched, lacks : int, str
        Blocks whose bytes it asked the master for, and the path that it could not open.
    """

    number: int
    role: str
    host: str
    pid: int
    peer: int
    endpoints: list[tuple[str, int]]
    state: str = "registered"
    waits: str = ""
    acknowledged: bool = False
    joined: bool = False
    routed_at: float = 0.0
    finished: bool = False
    leaving: bool = False
    late: bool = False
    worked: bool = False
    dropped: bool = False
    since: float = 0.0
    epoch: int = 0
    waited_s: float = 0.0
    away: bool = False
    missed: str = ""
    resume_state: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    stats_before: dict[str, Any] = field(default_factory=dict)
    stats_s: float = 0.0
    metrics: str = ""
    usage: dict[str, float] = field(default_factory=dict)
    usage_before: dict[str, float] = field(default_factory=dict)
    done: int = 0
    block_since: float = 0.0
    fetched: int = 0
    lacks: str = ""
    stats_at: float = 0.0
    address: tuple[str, int] = ("", 0)
    _units: deque[tuple[float, int]] = field(default_factory=deque)
    _units_since: float = 0.0
    _visits_units: int = 0
    _waits_since: float = 0.0
    _wait_told: bool = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.role} {self.number} ({self.host}, process {self.pid})"

    def trained(self, units: int, seconds: float, now: float, *, visit: bool = False) -> None:
        """It has trained so many units, in so long.

        In a rotation the units of `visit` are a part of those of the tenancy, which follow.
        """
        if not self._units or now - self._units[-1][0] > RATE_WINDOW_S:
            self._units.clear()
            self._units_since = now - seconds
        new = units if visit else max(0, units - self._visits_units)
        self._visits_units = self._visits_units + units if visit else 0
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
        """Its name where its host does not matter."""
        return f"{self.role} {self.number}"

    def wait_for(self, what: str, now: float) -> None:
        """Records what it waits for; empty: it does not wait."""
        if what and not self.waits:
            self._waits_since = now
        elif self.waits and not what:
            waited_s = now - self._waits_since
            self.waited_s += waited_s
            if self._wait_told:
                log.info("%s goes on after %.1f s", self.name, waited_s)
                self._wait_told = False
        self.waits = what

    def log_wait(self, now: float) -> None:
        """Logs, once, that it has been waiting for long."""
        waited_s = now - self._waits_since
        if self.waits and not self._wait_told and waited_s >= WAIT_TOLD_S:
            self._wait_told = True
            log.info("%s waits for %s, for %.1f s now", self.name, self.waits, waited_s)

    def waits_s(self, now: float) -> float:
        """How long it has waited, if it waits, seconds."""
        return now - self._waits_since if self.waits else 0.0

    def let_go(self) -> None:
        """It has left: keeps what figures need, and nothing of its connection."""
        self.peer = NOBODY
        self.resume_state, self.stats_before = {}, {}

    def take_stats(self, stats: dict[str, Any], now: float) -> None:
        """Keeps a server's report, and the one before it, for figures a second."""
        self.stats_before, self.stats_s = self.stats, now - self.stats_at if self.stats else 0.0
        self.stats, self.stats_at = stats, now
        self.take_usage(stats)

    def take_usage(self, stats: dict[str, Any]) -> None:
        """Keeps what its process uses, of a report."""
        if usage := stats.get("usage"):
            self.usage_before, self.usage = self.usage, usage
            self.metrics = stats.get("metrics", "")


def names_of(members: list[Member]) -> str:
    """Several members in a message: each one, or the first few and how many more there are."""
    names = [member.name for member in members[:NAMED_MAX]]
    if len(members) > NAMED_MAX:
        names.append(f"{len(members) - NAMED_MAX} more")
    return ", ".join(names)


def cpu_share(now: Mapping[str, float], before: Mapping[str, float]) -> float | None:
    """Share of one core between two reports of a process; None where that is not known."""
    if not (now and before):
        return None
    seconds = now["time_s"] - before["time_s"]
    return max(0.0, now["cpu_s"] - before["cpu_s"]) / seconds if seconds > 0 else None
