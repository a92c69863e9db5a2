"""Who is heard: heartbeats at the master, and how long each member may be silent.

    heartbeat connections -> HeartbeatThread -> silences -> expel(member, why)

It owns the heartbeat connections and the limits; what becomes of a silent member is `process.py`'s.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from snailps.config import MasterSettings
from snailps.master.member import Member
from snailps.master.membership import Membership
from snailps.transport._heartbeat import HeartbeatThread
from snailps.transport.handshake import Hello

LOOK_S = 0.25
"""Between two looks at heartbeats."""


class HeartbeatMonitor:
    """Listens for all members.

    Parameters
    ----------
    settings : MasterSettings
    members : Membership
    expel : callable
        ``expel(member, why)``: it has been silent for too long.
    """

    def __init__(
        self, settings: MasterSettings, members: Membership, expel: Callable[[Member, str], None]
    ) -> None:
        self._members, self._expel = members, expel
        self._limit_s = settings.heartbeat_timeout
        self.back_s = self._limit_s
        """How long members of a master before may take to come back, seconds."""
        self._pulse = HeartbeatThread(settings.heartbeat_interval)
        self._pulse.start()
        self._stepped_at = self._deaf_until = self._looked_at = 0.0
        self.silences = self._pulse.silences

    def add(self, hello: Hello, sock: socket.socket) -> None:
        """A member's heartbeat connection; others' are closed."""
        member = self._members.all.get(hello.node)
        if member is None or hello.incarnation != member.number or hello.job != self._members.life:
            sock.close()
            return
        self._pulse.add(sock, member.number)

    def forget(self, number: int) -> None:
        """A member is gone."""
        self._pulse.remove(number)

    def step(self, now: float, *, stopping: bool) -> None:
        """Expels whoever is silent, unless all are about to end."""
        limit_s = self._limit_s
        # A master that was stopped itself has heard nobody: that is not their silence.
        if self._stepped_at and now - self._stepped_at > limit_s / 2:
            self._deaf_until = now + limit_s
        self._stepped_at = now
        if now < self._looked_at + LOOK_S or now < self._deaf_until or stopping:
            return
        self._looked_at = now
        silences, closed = self._pulse.silences(), self._pulse.closed()
        for number, silence_s in silences.items():
            member = self._members.all.get(number)
            if member is None:
                self._pulse.remove(number)
            elif silence_s > limit_s and number in closed:
                self._expel(
                    member,
                    f"its heartbeat connection was lost {silence_s:.0f} s ago and it made no other "
                    "one (heartbeat_timeout)",
                )
            elif silence_s > limit_s:
                self._expel(member, f"silent for {silence_s:.0f} s (heartbeat_timeout)")
        for member in list(self._members.all.values()):
            allowed_s = self.back_s if member.away else limit_s
            silent = member.number not in silences and now - member.since > allowed_s
            if silent and member.state != "gone" and not member.missed:
                since = "this master took over" if member.away else "it registered"
                what = "it did not come back" if member.away else "no heartbeat"
                self._expel(member, f"{what} within {allowed_s:.0f} s after {since}")

    def close(self) -> None:
        """Listens no more."""
        self._pulse.stop()
