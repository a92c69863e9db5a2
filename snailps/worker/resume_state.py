"""A worker's progress in its job, for a master that takes over.

    leases, reported results, acknowledged pushes -> ResumeState -> Settled; Rejoin.state

Owns which blocks are held, reported and settled; must not know models or connections.  Leases and
answers are recorded in the control connection's reader thread, the rest in the worker's own.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from snailps.transport import messages
from snailps.transport.client._client import Client, Pending

TOLD_MAX = 256
"""Finished blocks reported again to a master that takes over: more than its journal may lack."""


class ResumeState:
    """The progress of one worker, through successive jobs."""

    def __init__(self) -> None:
        self._unpushed: list[int] = []  # trained blocks that the model has not fully pushed
        self._unsettled: deque[tuple[int, list[Pending]]] = deque()
        self._started = False
        self._held: set[tuple[str, int]] = set()
        self._told: deque[dict[str, Any]] = deque(maxlen=TOLD_MAX)
        self._open: set[int] = set()  # finished blocks with pushes that are not acknowledged
        self._figures: dict[str, float] | None = None

    def start(self) -> None:
        """Another job begins."""
        self._started, self._figures = True, None
        self._held.clear()
        self._told.clear()
        self._open.clear()

    def train(self) -> None:
        """The job's training begins."""
        self._unpushed.clear()
        self._unsettled.clear()
        self._held.clear()

    def got(self, pass_: str, number: int) -> None:
        """A block is leased."""
        self._held.add((pass_, number))

    def told(self, done: messages.Done) -> None:
        """The master has answered the result of a block."""
        self._held.difference_update((done.pass_, n) for n in (*done.numbers, done.number))
        if done.pass_ == "train":
            self._open.add(done.number)
            self._told.append(done.result())

    def settle(self, number: int, pushed: Client | None) -> list[int]:
        """A block is trained; `pushed` is the client that has its pushes, None if more will come.

        Returns
        -------
        list of int
            Blocks whose pushes are all acknowledged by now, so that a checkpoint includes them.
        """
        self._unpushed.append(number)
        if pushed is not None:
            pushes = pushed.open_pushes()
            self._unsettled.extend((trained, pushes) for trained in self._unpushed)
            self._unpushed.clear()
        settled = []
        while self._unsettled and all(push.done for push in self._unsettled[0][1]):
            settled.append(self._unsettled.popleft()[0])
        self._open.difference_update(settled)
        return settled

    def finish(self, figures: dict[str, float]) -> None:
        """All blocks are pushed and acknowledged."""
        self._unsettled.clear()
        self._open.clear()
        self._figures = figures

    def to_dict(self) -> dict[str, Any]:
        """As `Rejoin.state` has it (docs/wire_format.md)."""
        return {
            "started": self._started,
            "held": sorted(self._held),
            "told": list(self._told),
            "unsettled": sorted(self._open),
            "finished": self._figures,
        }
