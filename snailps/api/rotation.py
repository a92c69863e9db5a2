"""Rotation: training in which no row has two writers at a time, as a model sees it.

    Rotated.rotation -> Rotation          at the master: how the training is cut
    block -> Rotated.encode               text becomes rows of a table, once for all workers
    partition -> Worker.prepare, train    input rows of its worker; Checkouts hands out output rows

The training is cut into *chunks*.  The input rows of a chunk are split into *input partitions*, of
which a worker leases one; its output rows into some more *output partitions*, which it checks
out one after the other.  Who gets what is decided at the master (`master/leases/rotation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from snailps.dataclass import dataclass
from snailps.errors import MisuseError

CHUNKS_AHEAD = 2
"""Chunks encoded ahead of the first with partitions left; tables have rows for one more."""
OUTPUTS_PER_INPUT = 2
"""Output partitions for each input partition, at most."""
SPARE_OUTPUTS = 4
"""With four or more input partitions: how many more output partitions there are, at least."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a training is cut.

    Attributes
    ----------
    chunks : int
        Of an epoch, at least 1; at most one for each block is used.
    most_parts : int
        Input partitions of a chunk at most, at least 1: room for workers that join.
    checkouts_of_one : int
        Checkouts of a chunk that has one partition, at least 1: its worker has all rows, so what a
        checkout is is up to the model.
    sweeps : int
        Of the first chunk, where it has several partitions: how often a lease checks out each
        output partition, for a share of the work each time.  Rows that have learnt nothing yet
        learn one half of the others by heart where they meet it whole before the other half.
    """

    chunks: int
    most_parts: int
    checkouts_of_one: int = OUTPUTS_PER_INPUT
    sweeps: int = 1

    def __post_init__(self) -> None:
        for name in ("chunks", "most_parts", "checkouts_of_one", "sweeps"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise MisuseError(f"Rotation.{name}: expected a whole number from 1, got {value!r}")

    def checkouts(self, parts: int, chunk: int = 1) -> int:
        """Checkouts of each lease of a chunk of so many input partitions: number ``n p + i`` is the
        n-th of output partition i of p."""
        sweeps = 1 if chunk else self.sweeps
        return sweeps * outputs_for(parts) if parts > 1 else self.checkouts_of_one


def outputs_for(parts: int) -> int:
    """Output partitions of a chunk that has so many input partitions.

    Twice as many for up to four, four more for up to eight, half as many more beyond.  With only as
    many as input partitions all would wait for the slowest; each one more costs a checkout a lease.
    """
    return parts + min(parts, max(SPARE_OUTPUTS, parts // 2))


class Checkouts(Protocol):
    """The output partitions of a lease: checked out from the master one by one, each exactly once.

    Notes
    -----
    Valid while `Worker.train` runs on the block, from any thread.  Several may be held: one that
    trains, one pulled ahead, one being pushed.  **A thread that waits in `check_out` must not be
    the one that checks in what is held**: two workers would wait for each other's partition.
    """

    def check_out(self) -> int | None:
        """Waits for a partition that this lease has not had, and that no other worker holds.

        Returns
        -------
        int or None
            0 to ``block.output_parts - 1``: in a first chunk with `Rotation.sweeps` output
            partition ``i % outputs``.  None: it has had all, or the training is to end: check
            in what is held, push the input rows and return from `train`.
        """

    def check_in(self, part: int, figures: Mapping[str, float], *, durable: bool = False) -> None:
        """Returns a partition, whose pushes must all be acknowledged.

        Where the chunk has one partition, its rows may be pushed later, before `train` returns.

        Parameters
        ----------
        part : int
        figures : mapping
            Of this checkout, as `Worker.train` returns them of a block: ``units`` (in proportion to
            the work: partitions are sized by units a second), ``loss``,
            ``examples``.  They are shown at once; those that `train` returns replace them.
        durable : bool
            Of all checkouts checked in so far, this one included, the input rows are pushed and
            acknowledged, too.  If this worker is lost, another one trains the others only
            (`Block.had`); otherwise the whole lease.

        Raises
        ------
        MisuseError
            The partition is not held.
        """

    def encode_again(self, index: int) -> None:
        """Has a block of the chunk encoded once more, of which servers have lost something.

        By this worker, unless another one does: then it returns after a while, and the caller looks
        again.  From any thread, also in `Worker.prepare`.

        Parameters
        ----------
        index : int
            The block's place in the chunk.

        Raises
        ------
        ClusterError
            That does not help.
        """


class NoCheckouts:
    """The checkouts of a block that is no partition: none."""

    def check_out(self) -> int | None:
        return None

    def check_in(self, part: int, figures: Mapping[str, float], *, durable: bool = False) -> None:
        """Refuses any partition."""
        raise MisuseError(f"check_in({part}): this block is no partition and holds none")

    def encode_again(self, index: int) -> None:
        """Refuses any block."""
        raise MisuseError(f"encode_again({index}): this block is no partition")
