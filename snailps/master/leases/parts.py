"""What the core asks of parts that only the schedule of an option has (`registry.OPTIONS`).

    Schedule.rounds -> Rounds: job/round_controller.py fills it

The core must run without an option, so it knows the part by these questions alone.  Whoever adds
one to a part that the core asks adds it here.
"""

from __future__ import annotations

from typing import Any, Protocol


class Rounds(Protocol):
    """Clocks that the master closes, of workers that it draws."""

    round: int
    """The present one, from 0: those before are in the rows."""

    @property
    def width(self) -> int:
        """Workers as models count them."""

    def of(self, node: int) -> int | None:
        """The present round, if a worker takes part; else None."""

    def is_void(self, number: int) -> bool:
        """Whether an entry came too late to count."""

    def stage(self) -> str:
        """Progress in words."""

    def figures(self) -> dict[str, Any]: ...
