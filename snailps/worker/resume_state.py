"""A worker's progress in its job, from which a master that takes over continues.

    leases, checkouts, reports, acknowledged pushes -> ResumeState -> Durable; Rejoin.state

Owns which blocks are held, reported and durable, and which output partitions each lease has had and
holds; must not know models or connections.  Leases and answers are recorded in the thread that
reads the control connection, before any later message is read: so the state never lacks what
the master has said.  The threads that train and prepare record the rest; a lock joins them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from snailps.dataclass import dataclass, field
from snailps.transport import messages
from snailps.transport.client._client import Client, Pending
from snailps.transport.messages.terms import Partition

REPORTED_MAX = 256
"""Reported blocks that a master that takes over hears again: more than its journal may lack, which
is nothing after the death of its process, and what a worker reports in 0.2 s after a power cut."""


@dataclass(slots=True)
class _HeldCheckouts:
    """The output partitions of a held lease: all that it has had, and those it holds now."""

    partition: Partition
    had: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)


class ResumeState:
    """The progress of a worker process; the same object through all its jobs."""

    def __init__(self) -> None:
        self._unpushed: list[int] = []  # trained blocks that the model has not fully pushed
        self._pushed: deque[tuple[int, list[Pending]]] = deque()
        self._started = False
        self._held: set[tuple[str, int]] = set()
        self._reported: deque[dict[str, Any]] = deque(maxlen=REPORTED_MAX)
        self._open: set[int] = set()  # reported blocks whose pushes are not all acknowledged
        self._figures: dict[str, float] | None = None
        self._checkouts: dict[int, _HeldCheckouts] = {}  # of held leases
        # of each block that is not durable: parts of pushes the client had sent when it started
        self._before: dict[int, int] = {}
        self._lock = threading.Lock()

    def start_job(self) -> None:
        """Forget the job before."""
        with self._lock:
            self._started, self._figures = True, None
            self._held.clear()
            self._reported.clear()
            self._open.clear()
            self._checkouts.clear()
            self._before.clear()

    def start_training(self) -> None:
        """Forget the survey's blocks."""
        with self._lock:
            self._unpushed.clear()
            self._pushed.clear()
            self._held.clear()
            self._checkouts.clear()
            self._before.clear()

    def leased(self, pass_: str, lease: messages.Leased) -> None:
        """Record a lease as held; a partition's with the output partitions that are durable."""
        with self._lock:
            self._held.add((pass_, lease.number))
            if isinstance(lease.terms, Partition):
                checkouts = _HeldCheckouts(lease.terms, set(lease.terms.durable))
                self._checkouts[lease.number] = checkouts

    def reported(self, done: messages.Done) -> None:
        """Record that the master has the result of a block, which is held no longer."""
        with self._lock:
            self._held.difference_update((done.pass_, n) for n in (*done.numbers, done.number))
            self._checkouts.pop(done.number, None)
            if done.pass_ == "train":
                self._open.add(done.number)
                self._reported.append(done.result())

    def checked_out(self, number: int, part: int) -> None:
        """Record that a lease holds an output partition."""
        with self._lock:
            checkouts = self._checkouts.get(number)
            if checkouts is not None:  # else its lease was reported meanwhile
                checkouts.had.add(part)
                checkouts.holds.add(part)

    def checked_in(self, number: int, part: int) -> bool:
        """Record that a lease has trained an output partition, all pushes acknowledged.

        False: the lease does not hold it.  Call this before the note to the master: a note to a
        lost master is not repeated, and its follower then learns it from this state.
        """
        with self._lock:
            checkouts = self._checkouts.get(number)
            if checkouts is None or part not in checkouts.holds:
                return False
            checkouts.holds.discard(part)
            return True

    def start_block(self, number: int, parts: int) -> None:
        """Record that a block is trained from now on; the client has sent `parts` of pushes."""
        with self._lock:
            self._before[number] = parts

    def is_half_pushed(self, parts: int) -> bool:
        """Whether the servers may have a part of what some block has learnt, and lack the rest.

        The master waits longer before it gives up such a worker: others would train its blocks
        again on top of that part.  `parts` is the number the client has sent by now.
        """
        with self._lock:
            return parts > min(self._before.values(), default=parts)

    def durable(self, number: int) -> None:
        """Record that all pushes of a reported block are acknowledged."""
        with self._lock:
            self._open.discard(number)
            self._before.pop(number, None)

    def trained(self, number: int, client: Client, unpushed: int) -> list[int]:
        """Record a trained block; returns the blocks that are durable by now.

        `unpushed` is `Gathered.unpushed`: how many of the last blocks the model has not pushed yet,
        True for all since it was last False.  A block is durable once the model has pushed it and
        every push that was open then is acknowledged; blocks become durable in their order.
        """
        with self._lock:
            self._unpushed.append(number)
            every = isinstance(unpushed, bool | np.bool_) and unpushed
            pushed = 0 if every else max(0, len(self._unpushed) - int(unpushed))
            pushes = client.open_pushes() if pushed else []
            self._pushed.extend((trained, pushes) for trained in self._unpushed[:pushed])
            del self._unpushed[:pushed]
            durable = []
            while self._pushed and all(push.done for push in self._pushed[0][1]):
                durable.append(self._pushed.popleft()[0])
            self._open.difference_update(durable)
            for number in durable:
                self._before.pop(number, None)
            return durable

    @property
    def is_durable(self) -> bool:
        """Whether the master has heard of all trained blocks that they are durable."""
        with self._lock:
            return not (self._unpushed or self._pushed)

    def all_durable(self) -> list[int]:
        """Record that every push is acknowledged; returns the blocks that are durable since."""
        with self._lock:
            durable = sorted({*self._unpushed, *(number for number, _ in self._pushed)})
            self._unpushed.clear()
            self._pushed.clear()
            self._open.difference_update(durable)
            for number in durable:
                self._before.pop(number, None)
            return durable

    def finish(self, figures: dict[str, float]) -> None:
        """Record the end of the job: all blocks are pushed and acknowledged."""
        with self._lock:
            self._pushed.clear()
            self._open.clear()
            self._before.clear()
            self._figures = figures

    def to_dict(self) -> dict[str, Any]:
        """Give `Rejoin.state` (docs/wire_format.md)."""
        with self._lock:
            return {
                "started": self._started,
                "held": sorted(self._held),
                "reported": list(self._reported),
                "not_durable": sorted(self._open),
                "finished": self._figures,
                "partitions": [
                    {
                        "number": number,
                        "parts": checkouts.partition.parts,
                        "sizes": list(checkouts.partition.sizes),
                        "had": sorted(checkouts.had),
                        "holds": sorted(checkouts.holds),
                    }
                    for number, checkouts in sorted(self._checkouts.items())
                ],
            }
