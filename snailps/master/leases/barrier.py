"""The ledger of barriers (`barrier`): all workers meet after every few blocks of each.

    entry -> its owner; a worker begins a stretch once all have finished the one before

A policy over the records of `Ledger`.  No files, sockets or time.
"""

from __future__ import annotations

from typing import Any

from snailps.master.leases.ssp import SspLedger


class BarrierLedger(SspLedger):
    """As `SspLedger`, but a stretch of ``staleness + 1`` blocks waits for the end of the last."""

    def _needed(self, node: int) -> int:
        stretch = self._staleness + 1
        return self._begun(node) // stretch * stretch

    def figures(self) -> dict[str, Any]:
        return {**super().figures(), "consistency": "barrier"}
