"""The schedule of rows that may be so many seconds old (`dated`): the next block to each worker
that asks, which is told how old its rows may be.

A policy over the records of `Schedule`.  No files, sockets or time.
"""

from __future__ import annotations

from typing import Any

from snailps.dataclass import replace
from snailps.master.leases.entries import Entry
from snailps.master.leases.shared import QueueSchedule
from snailps.transport.messages.terms import Dated


class DatedSchedule(QueueSchedule):
    """Every entry of the queue, with rows of this age at most."""

    def __init__(self, *args: Any, age_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._terms = Dated(age_s)

    def entry(self, number: int) -> Entry:
        return replace(super().entry(number), terms=self._terms)
