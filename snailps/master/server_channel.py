"""Orders to servers and what they say, for a thread beside the master's loop.

    thread: order, collect, in_loop -> queue -> step, in the loop -> servers
    servers' answers and notes -> heard -> queue -> collect, in the thread

So that a long affair with several servers reads from top to bottom.  One thread at a time.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from snailps.errors import CheckpointError, ConnectionLost, SnailError
from snailps.master.member import Answer, Member
from snailps.master.membership import Membership
from snailps.transport import messages

log = logging.getLogger(__name__)

LATE_S = 10.0
"""A save or a restore that moves no byte for so long is told of."""
STALL_S = 120.0
"""... and is given up then."""
LOOK_S = 0.02
Result = TypeVar("Result")


@dataclass(slots=True)
class _Heard:
    """What a server said, or that everything ends."""

    member: Member | None
    message: Answer


class ServerChannel:
    """A talk with servers.

    Parameters
    ----------
    members : Membership
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[_Heard] = queue.SimpleQueue()
        self._closed = threading.Event()

    # --- the loop's side -----------------------------------------------------------------------

    def step(self) -> None:
        """Runs what the thread asked for."""
        while not self._orders.empty():
            self._orders.get()()

    def heard(self, member: Member, message: messages.Saved | messages.Loaded) -> None:
        """A server tells how its part went."""
        self._heard.put(_Heard(member, message))

    def lost(self, member: Member, why: str) -> None:
        """A server is gone, whatever it had still to tell."""
        self._heard.put(_Heard(member, ConnectionLost(f"it is lost: {why}")))

    def close(self) -> None:
        """Ends what the thread waits for."""
        self._closed.set()
        self._heard.put(_Heard(None, CheckpointError("the cluster has ended")))

    def drain(self) -> None:
        """Forgets what servers said of earlier work."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._heard.get_nowait()

    # --- the thread's side ---------------------------------------------------------------------

    def order(self, servers: list[Member], order: messages.Message) -> None:
        """Sends an order to servers; a refusal is heard like any word of theirs."""

        def heard(member: Member) -> Callable[[Answer], None]:
            def note(answer: Answer) -> None:
                stopping = isinstance(order, messages.StopSaving)
                if isinstance(answer, SnailError | messages.Report) and not stopping:
                    self._heard.put(_Heard(member, answer))

            return note

        def send() -> None:
            for member in servers:
                self._members.call(member, order, heard(member))

        self._orders.put(send)

    def collect(self, servers: list[Member], kind: type[Any], number: int) -> list[Any]:
        """What each server has to tell, once all have.

        Raises
        ------
        CheckpointError
            One of them failed, the cluster ended, or nothing moved for too long.
        """
        asked = {member.number for member in servers}
        told: dict[int, Any] = {}
        moved, since, late = -1, time.monotonic(), False
        while len(told) < len(servers):
            try:
                heard = self._heard.get(timeout=1.0)
            except queue.Empty:
                now = sum(int(member.stats.get("saved_bytes", 0)) for member in servers)
                if now != moved:
                    moved, since, late = now, time.monotonic(), False
                silent_s = time.monotonic() - since
                names = ", ".join(m.name for m in servers if m.number not in told)
                if silent_s > LATE_S and not late:
                    late = True
                    log.warning("a checkpoint waits for %s: not a byte in %.0f s", names, silent_s)
                if silent_s > STALL_S:
                    raise CheckpointError(
                        f"waited for {names}: not a byte in {STALL_S:.0f} s; is the disk stuck?"
                    ) from None
                continue
            if heard.member is None:
                raise CheckpointError(str(heard.message))
            if heard.member.number in told or heard.member.number not in asked:
                continue  # whatever becomes of it, nothing more is wanted of it
            if isinstance(heard.message, SnailError):
                raise CheckpointError(f"{heard.member.name}: {heard.message}")
            if not isinstance(heard.message, kind):
                continue  # of one that was given up
            if isinstance(heard.message, messages.Report):
                told[heard.member.number] = heard.message
                continue
            if heard.message.number != number:
                continue
            if heard.message.text:
                raise CheckpointError(f"{heard.member.name}: {heard.message.text}")
            told[heard.member.number] = heard.message
        return list(told.values())

    def freeze(self, servers: list[Member]) -> int:
        """Has every shard keep its rows as they are at the beginning of one clock; that clock.

        Shards differ by one clock at most, because a worker waits for all of them.  So those that
        are behind go on by one, and then all stand at the same.
        """
        self.order(servers, messages.Freeze())
        reports = self.collect(servers, messages.Report, -1)
        clock = max(clock for report in reports for clock in report.data["clocks"])
        self.order(servers, messages.Freeze(int(clock)))
        self.collect(servers, messages.Report, -1)
        return int(clock)

    def in_loop(self, work: Callable[[], Result | None]) -> Result:
        """The result of `work`, which the master's loop runs again and again until there is one.

        Raises
        ------
        CheckpointError
            There is none for too long, or the cluster has ended.
        """
        answers: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        until = time.monotonic() + STALL_S
        while time.monotonic() < until and not self._closed.is_set():
            self._orders.put(lambda: answers.put(work()))
            with contextlib.suppress(queue.Empty):
                if (result := answers.get(timeout=1.0)) is not None:
                    return result
            self._closed.wait(LOOK_S)
        raise CheckpointError(
            f"no answer in {STALL_S:.0f} s: servers did not make their tables, or workers did not "
            "tell that their blocks are done"
        )
