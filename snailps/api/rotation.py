"""Rotation: training in which no row has two writers at a time, as a model sees it.

    Worker.rotation -> Rotation           at the master: how the training is cut
    slice -> Worker.deal                  text becomes rows of a table, once for all workers
    tenancy -> Worker.prepare, train      one resident part of the rows; Visits lends the others

The training is cut into *chunks*.  The input rows of a chunk are dealt into *resident* parts, one a
tenancy; its output rows into twice as many *visiting* parts, which a tenancy borrows one after the
other.  Who gets what is decided at the master (`master/leases/rotation.py`); no leases here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from snailps.errors import MisuseError

VISITING_PER_PART = 2
"""Visiting parts for each resident part: with one for each, all would wait for the slowest."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a training is cut.

    Attributes
    ----------
    chunks : int
        Of an epoch, at least 1; at most one for each block is used.
    most_parts : int
        Resident parts of a chunk at most, at least 1: room for workers that join.
    visits_of_one : int
        Visits of a chunk that has one part, at least 1: its worker has all rows, so what a visit is
        is up to the model.
    """

    chunks: int
    most_parts: int
    visits_of_one: int = VISITING_PER_PART

    def __post_init__(self) -> None:
        for name in ("chunks", "most_parts", "visits_of_one"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise MisuseError(f"Rotation.{name}: expected a whole number from 1, got {value!r}")

    def visits(self, parts: int) -> int:
        """Visits of each tenancy of a chunk of so many resident parts."""
        return VISITING_PER_PART * parts if parts > 1 else self.visits_of_one


class Visits(Protocol):
    """The visiting parts of a tenancy: borrowed from the master one by one, each exactly once.

    Notes
    -----
    Valid while `Worker.train` runs on the block, from any thread.  Several parts may be held: one
    that trains, one pulled ahead, one being pushed.  **A thread that waits in `borrow` must not be
    the one that gives back what is held**: two workers would wait for each other's part.
    """

    def borrow(self) -> int | None:
        """Waits for a part that this tenancy has not had, and that no other worker holds.

        Returns
        -------
        int or None
            0 to ``block.visiting - 1``.  None: it has had all, or the training is to end: give
            back what is held, push the resident rows and return from `train`.
        """

    def give_back(self, part: int, figures: Mapping[str, float], *, settled: bool = False) -> None:
        """Returns a part, whose pushes must all be acknowledged.

        Where the chunk has one part, its rows may be pushed later, before `train` returns.

        Parameters
        ----------
        part : int
        figures : mapping
            Of this visit, as `Worker.train` returns them of a block: ``units``, ``loss``,
            ``examples``.  They are shown at once; those that `train` returns replace them.
        settled : bool
            Of all visits given back so far, this one included, the resident rows are pushed and
            acknowledged, too.  If this worker is lost, another one trains the others only
            (`Block.had`); otherwise the whole tenancy.

        Raises
        ------
        MisuseError
            The part is not held.
        """


class NoVisits:
    """The visits of a block that is no tenancy: none."""

    def borrow(self) -> int | None:
        """None."""
        return None

    def give_back(self, part: int, figures: Mapping[str, float], *, settled: bool = False) -> None:
        """Refuses any part."""
        raise MisuseError(f"give_back({part}): this block is no tenancy and holds no part")
