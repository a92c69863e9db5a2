"""A worker's progress in its job, for a master that takes over.

    leases, parts, reported results, acknowledged pushes -> ResumeState -> Settled; Rejoin.state

Owns which blocks are held, reported and durable, and which output partitions leases had and hold;
must not know models or connections.  Leases and answers are recorded in the control connection's
reader thread, the rest in the worker's main thread and in the one that prepares.
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
"""Finished blocks reported again to a master that takes over: more than its journal may lack."""


@dataclass(slots=True)
class _Checkouts:
    """The output partitions of a held lease: all that it had, and those that it holds."""

    partition: Partition
    had: set[int] = field(default_factory=set)
    holds: set[int] = field(default_factory=set)


class ResumeState:
    """The progress of one worker, through successive jobs."""

    def __init__(self) -> None:
        self._unpushed: list[int] = []  # trained blocks that the model has not fully pushed
        self._pushed: deque[tuple[int, list[Pending]]] = deque()
        self._started = False
        self._held: set[tuple[str, int]] = set()
        self._reported: deque[dict[str, Any]] = deque(maxlen=REPORTED_MAX)
        self._open: set[int] = set()  # finished blocks with pushes that are not acknowledged
        self._figures: dict[str, float] | None = None
        self._checkouts: dict[int, _Checkouts] = {}  # of held leases
        # parts of pushes that were sent before a block began, of blocks that are not durable
        self._before: dict[int, int] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Reset for another job."""
        with self._lock:
            self._started, self._figures = True, None
            self._held.clear()
            self._reported.clear()
            self._open.clear()
            self._checkouts.clear()
            self._before.clear()

    def train(self) -> None:
        with self._lock:
            self._unpushed.clear()
            self._pushed.clear()
            self._held.clear()
            self._checkouts.clear()
            self._before.clear()

    def got(self, pass_: str, lease: messages.Leased) -> None:
        """Note a leased block, or a leased partition of a chunk, with what it had."""
        with self._lock:
            self._held.add((pass_, lease.number))
            if isinstance(lease.terms, Partition):
                checkouts = _Checkouts(lease.terms, set(lease.terms.durable))
                self._checkouts[lease.number] = checkouts

    def reported(self, done: messages.Done) -> None:
        """Note that the master has the result of a block."""
        with self._lock:
            self._held.difference_update((done.pass_, n) for n in (*done.numbers, done.number))
            self._checkouts.pop(done.number, None)
            if done.pass_ == "train":
                self._open.add(done.number)
                self._reported.append(done.result())

    def checked_out(self, number: int, part: int) -> None:
        """A lease has checked out a partition."""
        with self._lock:
            checkouts = self._checkouts.get(number)
            if checkouts is not None:
                checkouts.had.add(part)
                checkouts.holds.add(part)

    def checked_in(self, number: int, part: int) -> bool:
        """A lease has trained a partition, all pushes acknowledged; False: it does not hold it.
        To be called before the master gets the note: a note to a lost master is not repeated."""
        with self._lock:
            checkouts = self._checkouts.get(number)
            if checkouts is None or part not in checkouts.holds:
                return False
            checkouts.holds.discard(part)
            return True

    def begins(self, number: int, parts: int) -> None:
        """A block is trained from now on; the client has sent so many parts of pushes."""
        with self._lock:
            self._before[number] = parts

    def is_half_pushed(self, parts: int) -> bool:
        """Whether a part of what blocks have learnt may be sent, and not all of it acknowledged."""
        with self._lock:
            return parts > min(self._before.values(), default=parts)

    def durable(self, number: int) -> None:
        """All pushes of a finished block are acknowledged."""
        with self._lock:
            self._open.discard(number)
            self._before.pop(number, None)

    def trained(self, number: int, client: Client, unpushed: int) -> list[int]:
        """Note a trained block, behind which so many are `unpushed` (`Gathered.unpushed`); returns
        blocks whose pushes are all acknowledged by now, so that a checkpoint includes them."""
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

    def finish(self, figures: dict[str, float]) -> None:
        """All blocks are pushed and acknowledged."""
        with self._lock:
            self._pushed.clear()
            self._open.clear()
            self._before.clear()
            self._figures = figures

    def to_dict(self) -> dict[str, Any]:
        """Make `Rejoin.state` (docs/wire_format.md)."""
        with self._lock:
            return {
                "started": self._started,
                "held": sorted(self._held),
                "told": list(self._reported),
                "unsettled": sorted(self._open),
                "finished": self._figures,
                "visits": [
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
