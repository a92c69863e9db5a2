"""Passes over ranges of names, as a model sees them; a pass begins when the one before is done.

    Ranged.range_passes -> RangePasses        at the master: how the training is cut
    Block.terms: PassRange                    which range of which pass a lease is

Pass 0 goes over the blocks of the input, of which the model keeps what its ranges will need.  Later
passes go over ranges, of which a worker leases one after the other.  What pass n reads, pass n - 1
has written completely, and pass n writes none of it: so the result is the same with any number of
workers.
Who gets which range is decided at the master (`master/leases/ranges.py`).
"""

from __future__ import annotations

from snailps.api.rotation import Rotation
from snailps.dataclass import dataclass
from snailps.errors import MisuseError
from snailps.transport.messages.terms import PassRange as PassRange


@dataclass(frozen=True, slots=True)
class RangePasses:
    """How a training in passes over ranges is cut.

    Attributes
    ----------
    ranges : int
        Ranges of each pass after the first, at least 1.  It must follow from the input alone: a
        number that depended on the workers would make the result depend on them.
    passes : int
        Passes that train, at least 1.
    per_epoch : int
        How many of these an epoch of the job is.
    before : int
        Passes over ranges between pass 0 and the training, which count in no epoch.
    """

    ranges: int
    passes: int
    per_epoch: int = 1
    before: int = 0
    option = "ranges"  # the one that has the schedule (`registry`)

    def __post_init__(self) -> None:
        for name, least in (("ranges", 1), ("passes", 1), ("per_epoch", 1), ("before", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise MisuseError(
                    f"RangePasses.{name}: expected a whole number from {least}, got {value!r}"
                )


TrainingPlan = Rotation | RangePasses
"""The plan of a training that is not cut into ordinary blocks; it replaces `consistency`."""
