"""Books of leases that keep workers in step: bounded staleness, synchronous steps, rounds.

    Dealt     every n-th entry is one worker's own; nobody gets far ahead of the slowest  (ssp)
    Stepped   entry -> (clock, slot); a clock is complete when all of its slots are done   (bsp)
    Rounds    one entry a drawn worker and round; a round is closed by the master

Each is a `Ledger`, so whoever leases need not know which.
"""

from __future__ import annotations

from snailps.roles.dealt import Dealt
from snailps.roles.drawn import Rounds
from snailps.roles.stepped import CLOCKS_AHEAD, Stepped

__all__ = ["CLOCKS_AHEAD", "Dealt", "Rounds", "Stepped"]
