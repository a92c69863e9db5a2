"""Which step of a job with clocks a pull or a push belongs to.

    block that is prepared or trained -> CurrentClockSlots.at, now -> clock, slot

Two threads of a worker are in different steps: that which prepares in the one of its block, all
others in that of the block that trains.  Knows no rows and no client.
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
    """What a job with clocks pulls for and pushes to: the step of a block, and its place in it."""

    clock: int
    slot: int
    preparing: bool
    pulls: list[Pending]


class CurrentClockSlots:
    """The moments of a worker's threads."""

    def __init__(self) -> None:
        self._training: ClockSlot | None = None
        self._here = threading.local()

    @contextlib.contextmanager
    def at(self, moment: ClockSlot) -> Iterator[None]:
        """Pulls and pushes belong to this moment: those of the calling thread if that prepares,
        else those of all threads that do not.
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
        """The moment of the calling thread; `preparing`: may it be that of `prepare`?

        Raises
        ------
        MisuseError
            There is none, or it may not.
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
