"""Owns what the master knows of one process of the cluster.

    Register / Rejoin -> Member      what happens to it -> its phases      -> name, phases, waits

No other module assigns a field: each event has a method, and what may follow is in the tables of
`phases.py`. Must not decide anything; `membership.py` and `departures.py` do.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from snailps.dataclass import dataclass, field
from snailps.master.phases import (
    REACH,
    STAY,
    WORK,
    Reach,
    Stay,
    Work,
    after,
)

log = logging.getLogger(__name__)

WAIT_LOGGED_S = 3.0
"""Seconds that a worker waits for others before the log says so."""
RATE_WINDOW_S = 10.0
"""Seconds over which rates are measured."""
_SECONDS_LEAST = 1e-6
"""Least time to divide by: the resolution of clocks."""
NAMED_MAX = 8
"""Members that a message names one by one; it counts the others."""

NO_PEER = 0
"""Number of a missing connection; what is sent to it is dropped."""
_READY, _GIVEN_UP = Reach.READY, Work.GIVEN_UP
"""Bound once for properties that each turn asks of a thousand members: to look up a member of an
enum takes 0.1 us longer."""
_WORK_OF = {"survey": "counts", "train": "trains"}
"""Event of a block, by its pass."""


@dataclass(eq=False, slots=True)
class Rate:
    """Units per second that a worker trains, over the last `RATE_WINDOW_S` seconds."""

    _units: deque[tuple[float, int]] = field(default_factory=deque)
    _since: float = 0.0
    _checkout_units: int = 0

    def trained(self, units: int, seconds: float, now: float, *, checkout: bool = False) -> None:
        """Note that `units` were trained. In a rotation the units of a `checkout` are reported
        again with its lease, and not counted twice."""
        if not self._units or now - self._units[-1][0] > RATE_WINDOW_S:
            self._units.clear()
            self._since = now - seconds
        new = units if checkout else max(0, units - self._checkout_units)
        self._checkout_units = self._checkout_units + units if checkout else 0
        self._units.append((now, new))

    def per_s(self, now: float) -> float | None:
        """Units per second; None before the first training."""
        if not self._units:
            return None
        while len(self._units) > 1 and now - self._units[0][0] > RATE_WINDOW_S:
            self._units.popleft()
        units = sum(count for time, count in self._units if now - time <= RATE_WINDOW_S)
        return units / max(min(RATE_WINDOW_S, now - self._since), _SECONDS_LEAST)


@dataclass(eq=False, slots=True)
class Reports:
    """The last report of a process on itself, and the one before, for rates."""

    stats: dict[str, Any] = field(default_factory=dict)
    stats_before: dict[str, Any] = field(default_factory=dict)
    stats_at: float = 0.0  # when `stats` came, monotonic seconds
    stats_s: float = 0.0  # seconds between the two; 0 before there are two
    usage: dict[str, float] = field(default_factory=dict)
    usage_before: dict[str, float] = field(default_factory=dict)
    metrics: str = ""  # address of its metrics; empty without

    def take_stats(self, stats: dict[str, Any], now: float) -> None:
        self.stats_before, self.stats_s = self.stats, now - self.stats_at if self.stats else 0.0
        self.stats, self.stats_at = stats, now
        self.take_usage(stats)

    def take_usage(self, stats: dict[str, Any]) -> None:
        if usage := stats.get("usage"):
            self.usage_before, self.usage = self.usage, usage
            self.metrics = stats.get("metrics", "")


@dataclass(eq=False, slots=True)
class Member:
    """A process of the cluster. Others read its fields; a method named for an event writes them.

    `phases.py` has the tables of `reach`, `stay` and `work`.
    """

    number: int
    role: str
    host: str
    pid: int
    peer: int  # number of its connection, or `NO_PEER`
    endpoints: list[tuple[str, int]]
    cores: float = 1.0  # that it may keep busy
    since: float = 0.0  # when it registered or came back, monotonic seconds
    address: tuple[str, int] = ("", 0)  # peer address of its connection; empty without one
    reach: Reach = Reach.REGISTERED
    stay: Stay = Stay.HERE
    work: Work = Work.IDLE
    late: bool = False  # it joined after the cluster had formed; in a session, after the job began
    declared: bool = False  # it has declared a table: before that it can push to none
    routed_at: float = 0.0  # when it was sent the route that it has not acknowledged yet
    epoch: int = 0  # of the route that it acknowledged last
    missed: str = ""  # why it was lost; empty unless `Stay.MISSED`
    given_up_in: int = 0  # number of the job; 0 unless `Work.GIVEN_UP`
    resume_state: dict[str, Any] = field(default_factory=dict)  # of `Rejoin.state`
    figures: dict[str, Any] = field(default_factory=dict)  # its last `Finished` or `Bye`
    reports: Reports = field(default_factory=Reports)
    # of the present job:
    done: int = 0  # blocks
    block_since: float = 0.0  # when it began its present block, or asked for one; 0: neither
    fetched: int = 0  # blocks whose bytes the master sent it
    lacks: str = ""  # the path that it could not open
    rate: Rate = field(default_factory=Rate)
    waits: str = ""  # what it waits for, in words for users; see `wait_for`
    waited_s: float = 0.0  # seconds that it has waited for others, present wait excluded
    _waits_since: float = 0.0
    _wait_logged: bool = False

    @property
    def name(self) -> str:
        return f"{self.role} {self.number} ({self.host}, process {self.pid})"

    @property
    def short_name(self) -> str:
        """Name where the host does not matter."""
        return f"{self.role} {self.number}"

    # --- what follows from its phases ----------------------------------------------------------

    @property
    def joined(self) -> bool:
        return self.reach.joined

    @property
    def has_route(self) -> bool:
        return self.reach is _READY

    @property
    def away(self) -> bool:
        """Whether an earlier master knew it, and it has not come back yet."""
        return self.reach is Reach.AWAY and self.stay is not Stay.MISSED

    @property
    def leaving(self) -> bool:
        """Whether it leaves, or has left, because it was asked to."""
        return self.stay.asked

    @property
    def takes_blocks(self) -> bool:
        """Whether it may get a free block."""
        return self.work is not _GIVEN_UP and not self.stay.asked

    @property
    def dropped(self) -> bool:
        """Whether the job ends without the blocks that it has not finished."""
        return self.work is _GIVEN_UP

    @property
    def finished(self) -> bool:
        """Whether its part of the job is done."""
        return self.work.ended

    # --- connection and route ------------------------------------------------------------------

    def came_back(
        self,
        peer: int,
        address: tuple[str, int],
        cores: float,
        resume_state: dict[str, Any],
        now: float,
    ) -> None:
        """It rejoins, after an earlier master."""
        self.reach = after(REACH, self.reach, "came_back")
        self.peer, self.address, self.cores, self.since = peer, address, cores, now
        self.resume_state = resume_state

    def route_sent(self, now: float) -> None:
        self.reach = after(REACH, self.reach, "route_sent")
        if self.reach is not Reach.READY:
            self.routed_at = now

    def route_taken(self, epoch: int) -> None:
        self.reach = after(REACH, self.reach, "route_taken")
        self.epoch = max(self.epoch, epoch)

    def route_withdrawn(self) -> None:
        self.reach = after(REACH, self.reach, "route_withdrawn")

    def declares(self) -> None:
        self.declared = True

    def disconnected(self) -> None:
        self.peer = NO_PEER

    def stood_still(self, seconds: float) -> None:
        """The master was stopped."""
        self.routed_at += seconds

    # --- its end -------------------------------------------------------------------------------

    def asked_to_leave(self) -> None:
        self.stay = after(STAY, self.stay, "asked_to_leave")

    def stays(self) -> None:
        """It cannot leave after all."""
        self.stay = after(STAY, self.stay, "stays")

    def sent_away(self) -> None:
        """Its job has failed."""
        self.stay = after(STAY, self.stay, "sent_away")

    def stopped(self) -> None:
        """The cluster ends."""
        self.stay = after(STAY, self.stay, "stopped")

    def said_bye(self, figures: dict[str, Any]) -> None:
        self.stay = after(STAY, self.stay, "said_bye")
        self.figures = {**self.figures, **figures}

    def was_missed(self, why: str) -> None:
        """It is lost, while members of an earlier master come back."""
        self.stay, self.missed = after(STAY, self.stay, "was_missed"), why

    def was_lost(self) -> None:
        self.stay, self.missed = after(STAY, self.stay, "was_lost"), ""

    def removed(self) -> None:
        """Drop what only a connected member needs; metrics stay."""
        self.peer = NO_PEER
        self.resume_state, self.reports.stats_before = {}, {}

    def was_removed(self, figures: dict[str, Any]) -> None:
        """An earlier master removed it."""
        self.figures = figures

    # --- the job -------------------------------------------------------------------------------

    def job_given(self) -> None:
        self.work = after(WORK, self.work, "job_given")
        self.block_since = 0.0

    def job_submitted(self) -> None:
        """A session begins a job: no member is late for it that is here."""
        self.late = False

    def training_begins(self, now: float) -> None:
        """Count blocks and waits from now."""
        self.wait_for("", now)
        self.waited_s = self.block_since = 0.0
        self.done = self.fetched = 0

    def resumed(self, pass_: str) -> None:
        """It has reported to a new master what it has of the job."""
        self.work = after(WORK, self.work, _WORK_OF[pass_])

    def leased(self, pass_: str, now: float) -> None:
        if self.waits or not self.block_since:
            self.block_since = now
        self.wait_for("", now)
        self.work = after(WORK, self.work, _WORK_OF[pass_])

    def block_done(self, blocks: int, now: float) -> None:
        """A block ends; `blocks` are counted now: 0 if they were before, or count elsewhere."""
        self.done += blocks
        self.block_since = now

    def counted(self, blocks: int) -> None:
        """Blocks count as done, while it goes on with others."""
        self.done += blocks

    def block_fetched(self, path: str) -> None:
        """The master sends it the bytes of a block, as it cannot open `path`."""
        self.fetched += 1
        self.lacks = path

    def part_ended(self, figures: dict[str, Any]) -> None:
        self.work = after(WORK, self.work, "part_ended")
        self.figures = figures

    def given_up(self, job: int) -> None:
        """A job ends without the blocks that it has not finished."""
        self.work, self.given_up_in = after(WORK, self.work, "given_up"), job

    def caught_up(self) -> int:
        """It has ended its part of a job that ended without it; returns the number of that job."""
        self.work = after(WORK, self.work, "caught_up")
        job, self.given_up_in = self.given_up_in, 0
        return job

    def job_over(self) -> None:
        self.work = after(WORK, self.work, "job_over")

    # --- waits ---------------------------------------------------------------------------------

    def wait_for(self, what: str, now: float) -> None:
        """Set what it waits for, in words; empty: nothing. A changed text continues the wait."""
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
        """Log a wait of more than `WAIT_LOGGED_S`, once; its end is logged, too."""
        waited_s = now - self._waits_since
        if self.waits and not self._wait_logged and waited_s >= WAIT_LOGGED_S:
            self._wait_logged = True
            log.info("%s waits for %s, for %.1f s now", self.name, self.waits, waited_s)

    def waits_s(self, now: float) -> float:
        return now - self._waits_since if self.waits else 0.0


class Expel(Protocol):
    """Declare a member lost that may still run; `after`: what follows on its loss, in words."""

    def __call__(self, member: Member, why: str, now: float, after: str = "") -> None: ...


def names_of(members: list[Member]) -> str:
    """Members in a message: each one, or the first few and a count of the others."""
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
