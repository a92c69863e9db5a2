"""Owns how long each member may be silent before it is declared lost.

    Heartbeats (silences, who is closed), time -> HeartbeatMonitor -> Departures.expel

Must not know connections (`process.py` owns them) or what a loss means (`departures.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from snailps.master.context import Context
from snailps.master.departures import Departures
from snailps.master.effects import Forget
from snailps.master.events import Heartbeats
from snailps.master.lifecycle import Lifecycle
from snailps.master.membership import Membership
from snailps.master.phases import Stay


class HeartbeatMonitor:
    def __init__(
        self,
        context: Context,
        members: Membership,
        lifecycle: Lifecycle,
        departures: Departures,
        back_s: float,  # seconds that members of the previous master have to come back
    ) -> None:
        self._out, self._members = context.out, members
        self._lifecycle, self._departures = lifecycle, departures
        self._limit_s, self._back_s = context.settings.heartbeat_timeout, back_s
        self._stepped_at = self._deaf_until = self._heard_at = 0.0
        self._silences: Mapping[int, float] = {}

    def silence_s(self, number: int, now: float) -> float | None:
        """Seconds since a member was last heard; None: it has no heartbeat connection yet."""
        silence_s = self._silences.get(number)
        return None if silence_s is None else silence_s + now - self._heard_at

    def forget(self, number: int) -> None:
        self._out.put(Forget(number))

    def step(self, now: float) -> None:
        """Advance the time. After a stop of the master itself (a suspended machine, a debugger) no
        silence counts for one limit: the heartbeats that members sent meanwhile are unread, or the
        members were stopped too."""
        if self._stepped_at and now - self._stepped_at > self._limit_s / 2:
            self._deaf_until = now + self._limit_s
        self._stepped_at = now

    def heard(self, event: Heartbeats, now: float) -> None:
        """Expel silent members; not while the cluster stops, when members leave by themselves. A
        driver that is only silent stays: nobody waits for it, and it may be stopped (Ctrl-Z, a
        debugger, a paused container). TCP closes its connection if its machine is gone."""
        self.step(now)
        self._silences, self._heard_at = event.silences, now
        if now < self._deaf_until or self._lifecycle.stopping:
            return
        limit_s = self._limit_s
        for number, silence_s in event.silences.items():
            member = self._members.all.get(number)
            if member is None:
                self.forget(number)
            elif silence_s > limit_s and number in event.closed:
                self._departures.expel(
                    member,
                    f"its heartbeat connection was lost {silence_s:.0f} s ago, and it opened no "
                    "other (heartbeat_timeout)",
                    now,
                )
            elif silence_s > limit_s and member.role != "driver":
                self._departures.expel(
                    member, f"silent for {silence_s:.0f} s (heartbeat_timeout)", now
                )
        # `silences` lacks members without a heartbeat connection: their limit counts from the time
        # at which they registered, or at which this master took over.
        for member in list(self._members.all.values()):
            allowed_s = self._back_s if member.away else limit_s
            silent = member.number not in event.silences and now - member.since > allowed_s
            if silent and member.stay not in (Stay.GONE, Stay.MISSED):
                since = "this master took over" if member.away else "it registered"
                what = "it did not come back" if member.away else "no heartbeat"
                why = f"{what} within {allowed_s:.0f} s after {since}"
                self._departures.expel(member, why, now)
