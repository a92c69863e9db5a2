"""Ledgers of leases: who works on which block, and whom `service.py` lets wait.

    Ledger       a block to whoever asks for one
    SspLedger    every n-th entry is one worker's own; nobody gets far ahead of the slowest  (ssp)
    BspLedger    entry -> (clock, slot); a clock is complete when all its slots are done     (bsp)
    RoundLedger  one entry a drawn worker and round; a round is closed by the master

The last three keep workers in step.  Each is a `Ledger`, so whoever leases need not know which.
"""

from __future__ import annotations

from snailps.master.leases.bsp import CLOCKS_AHEAD, BspLedger
from snailps.master.leases.rounds import RoundLedger
from snailps.master.leases.ssp import SspLedger

__all__ = ["CLOCKS_AHEAD", "BspLedger", "RoundLedger", "SspLedger"]
