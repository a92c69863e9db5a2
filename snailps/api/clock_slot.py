"""The clock and slot that a pull or a push belongs to, in a job with clocks.

    block being prepared or trained -> CurrentClockSlots.at, now -> clock, slot

Threads of a worker may be in different steps: the preparing thread in that of its block, all others
in that of the block being trained.  Must not know rows or clients.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from snailps.errors import MisuseError
from snailps.transport.client._client import Pending


@dataclass(frozen=True, slots=True)
class ClockSlot:
    """The step of a block in a job with clocks, and the block's slot in it."""

    clock: int
    slot: int
    preparing: bool
    pulls: list[Pending]


class CurrentClockSlots:
    """The current clock slots of a worker's threads."""

    def __init__(self) -> None:
        self._training: ClockSlot | None = None
        self._here = threading.local()

    @contextlib.contextmanager
    def at(self, moment: ClockSlot) -> Iterator[None]:
        """Sets the slot of pulls and pushes: of the calling thread if it prepares a block, else of
        all threads that do not.
        """
        if moment.preparing:
            self._here.moment = moment
        else:
            self._training = moment
        try:
            yield
        finally:
            if moment.preparing:
                self._here.moment = None
            else:
                self._training = None

    def now(self, what: str, *, preparing: bool = True) -> ClockSlot:
        """The slot of the calling thread; `preparing` allows that of `prepare`.

        Raises
        ------
        MisuseError
            There is none, or it is that of `prepare` and not allowed.
        """
        moment: ClockSlot | None = getattr(self._here, "moment", None) or self._training
        if moment is None:
            raise MisuseError(
                f"{what}() outside prepare() and train(): with clocks (consistency: bsp, or "
                "rounds) rows are those of a block's step, and pushes are parts of one"
            )
        if moment.preparing and not preparing:
            raise MisuseError(
                f"{what}() in prepare(): with clocks (consistency: bsp, or rounds) the step may "
                "not have begun, so use pull_async there, and wait and push in train()"
            )
        return moment
