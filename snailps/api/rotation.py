"""A rotation as a model sees it: training in which no row has two writers at a time.

    Rotated.rotation -> Rotation          at the master: how the training is cut
    block -> Rotated.encode               text becomes rows of a table, once for all workers
    partition -> Worker.prepare, train    input rows of its worker; Checkouts hands out output rows

The training is cut into *chunks*.  In a chunk, input rows are split into *input partitions*, of
which each worker leases one, and output rows into some more *output partitions*, which the worker
checks out one after the other.  The master decides who gets what (`master/leases/rotation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from snailps.dataclass import dataclass
from snailps.errors import MisuseError

CHUNKS_AHEAD = 2
"""Chunks that are encoded ahead of the one in training; tables have room for one more."""
OUTPUTS_PER_INPUT = 2
"""Output partitions for each input partition, at most."""
SPARE_OUTPUTS = 4
"""With four or more input partitions: by how many the output partitions exceed them, at least."""

PASSES_MAX = 1000
"""Most passes of an epoch: the master lists the blocks of all of them."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a training is cut into chunks and partitions.

    Attributes
    ----------
    chunks : int
        Chunks of an epoch, at least 1; with fewer blocks than that, a chunk for each block.
    most_parts : int
        Most input partitions of a chunk, at least 1.  Workers that join get one, up to this number.
    checkouts_of_one : int
        Checkouts of a chunk with a single partition, at least 1.  Its worker has all rows, so the
        model decides what a checkout means.
    sweeps : int
        How often a lease of the first chunk checks out each output partition, for a share of its
        work each time; with several partitions only.  Rows that have learnt nothing yet would
        otherwise fit one half of the others before they meet the other half.
    passes : int
        How often an epoch goes through its chunks of input, 1 to `PASSES_MAX`.  With more than one,
        each pass trains a part of the work, and splits the rows into other partitions: a row may be
        an input row in one chunk, and an output row in the next.  So a chunk begins when all
        partitions of the one before are done.
    is_kept : bool
        True: what `Rotated.encode` writes of a block serves all passes and epochs.  So each block
        comes to it once, in the first pass, and later only if servers have lost it (`Block.again`).
        False: it comes in each pass.

    Examples
    --------
    >>> rotation = Rotation(chunks=4, most_parts=8)
    >>> rotation.checkouts(parts=3), rotation.checkouts(parts=8)
    (6, 12)
    """

    chunks: int
    most_parts: int
    checkouts_of_one: int = OUTPUTS_PER_INPUT
    sweeps: int = 1
    passes: int = 1
    is_kept: bool = False
    option = "rotation"  # the one that has the schedule (`registry`)

    def __post_init__(self) -> None:
        for name in ("chunks", "most_parts", "checkouts_of_one", "sweeps", "passes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise MisuseError(f"Rotation.{name}: expected a whole number from 1, got {value!r}")
        if type(self.is_kept) is not bool:
            raise MisuseError(f"Rotation.is_kept: expected True or False, got {self.is_kept!r:.60}")
        if self.passes > PASSES_MAX:
            raise MisuseError(
                f"Rotation.passes: expected a whole number from 1 to {PASSES_MAX:,}, got "
                f"{self.passes:,}: set epochs for more passes over the input"
            )

    def checkouts(self, parts: int, chunk: int = 1) -> int:
        """Checkouts of each lease in a chunk of `parts` input partitions.

        With ``p = outputs_for(parts)``, checkout ``n * p + i`` is the n-th of output partition i.
        """
        sweeps = 1 if chunk else self.sweeps
        return sweeps * outputs_for(parts) if parts > 1 else self.checkouts_of_one


def outputs_for(parts: int) -> int:
    """Output partitions of a chunk that has `parts` input partitions.

    Twice as many for up to four, four more for up to eight, half as many more beyond.  With as many
    output as input partitions every worker would wait for the slowest; each further one costs each
    lease a checkout.
    """
    return parts + min(parts, max(SPARE_OUTPUTS, parts // 2))


class Checkouts(Protocol):
    """Hands out the output partitions of a lease, each exactly once.

    Notes
    -----
    Valid while `Worker.train` runs on the block, from any thread.  Several partitions may be held:
    one in training, one pulled ahead, one being pushed.  **A thread that waits in `check_out` must
    not be the one that checks in what is held**: two workers would wait for each other's partition.
    """

    def check_out(self) -> int | None:
        """Wait for a partition that this lease has not had, and that no other worker holds.

        Returns
        -------
        int or None
            0 to ``block.output_parts - 1``; in a first chunk with `Rotation.sweeps`, i means
            output partition ``i % outputs``.  None: the lease has had all, or the training ends.
            Then check in what is held, push the input rows and return from `train`.
        """

    def check_in(self, part: int, figures: Mapping[str, float], *, durable: bool = False) -> None:
        """Return a partition, after all pushes of its rows are acknowledged.

        In a chunk of one partition nobody waits for the rows: push them before `train` returns.

        Parameters
        ----------
        part : int
        figures : mapping
            Figures of this checkout, as `Worker.train` returns them for a block: ``loss``,
            ``examples``, and ``units`` in proportion to the work, because partitions are sized by
            units a second.  Shown at once, and replaced by what `train` returns.
        durable : bool
            True: the input rows are pushed and acknowledged, too, with all that this and earlier
            checkouts have learnt.  If this worker is lost, another one trains the remaining
            checkouts only (`Block.durable`); otherwise the whole lease.

        Raises
        ------
        MisuseError
            The partition is not held.
        """

    def encode_again(self, index: int) -> None:
        """Have a block of the chunk encoded again, because servers have lost some of it.

        This worker encodes it, unless another one does already: then this returns after a while,
        and the caller looks again.  May be called from any thread, also in `Worker.prepare`.

        Parameters
        ----------
        index : int
            The block's place in the chunk.

        Raises
        ------
        ClusterError
            Encoded eight times, or awaited for 300 s, and servers still lack the block.
        """


class NoCheckouts:
    """The checkouts of a block that is no partition: there are none."""

    def check_out(self) -> int | None:
        return None

    def check_in(self, part: int, figures: Mapping[str, float], *, durable: bool = False) -> None:
        """Raise `MisuseError`: this block holds no partition."""
        raise MisuseError(f"check_in({part}): this block is no partition and holds none")

    def encode_again(self, index: int) -> None:
        """Raise `MisuseError`: this block has no chunk."""
        raise MisuseError(f"encode_again({index}): this block is no partition")
