"""Ledgers of leases: the records of blocks, and policies for leasing them.

    BlockRecords    waiting, leased, done, durable: the one record of each block
    Ledger          a block to each worker that asks
    SspLedger       every n-th entry belongs to one worker; clocks stay close  (ssp)
    BspLedger       entry -> (clock, slot); a clock is complete when all its slots are done  (bsp)
    RoundLedger     one entry a drawn worker and round; the master closes a round
    RotationLedger  blocks of text, then partitions of the rows, which check out other partitions
    Seats           workers that train at the same time, where not all may

Each is a `Ledger`: `service.py` never asks which.
"""

from __future__ import annotations

from collections.abc import Callable

from snailps.master.leases.bsp import CLOCKS_AHEAD, BspLedger
from snailps.master.leases.ledger import Ledger
from snailps.master.leases.rotation import RotationLedger
from snailps.master.leases.rounds import RoundLedger
from snailps.master.leases.ssp import SspLedger

__all__ = ["CLOCKS_AHEAD", "SCHEDULES", "BspLedger", "RotationLedger", "RoundLedger", "SspLedger"]

SCHEDULES: dict[str, Callable[..., Ledger]] = {
    "async": lambda s, nodes, seats, *a: (
        SspLedger(*a, nodes=nodes, seats=seats) if s.assign == "own" else Ledger(*a, seats=seats)
    ),
    "ssp": lambda s, nodes, seats, *a: SspLedger(
        *a, nodes=nodes, staleness=s.staleness, seats=seats
    ),
    "bsp": lambda s, nodes, seats, *a: BspLedger(*a, nodes=nodes, micro_batches=s.micro_batches),
}
"""Ledgers by `consistency`, made of a job's settings, its workers, how many of them train at a time
(bsp: all), and what each `Ledger` takes."""
