"""Owns the parts of a survey: which blocks a worker has counted, and whose part is being merged.

    leased -> count -> merge -> merged: done        merge -> failed: its worker's again

A part of the schedule of a survey's pass, over its records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from snailps.master.leases.entries import Entries
from snailps.master.leases.records import BlockRecords, BlockResult


class SurveyParts:
    """Parts that are not merged yet, measured in bytes of their blocks."""

    def __init__(
        self,
        records: BlockRecords,
        entries: Entries,
        finish: Callable[[int, BlockResult], None],  # of the schedule, for a block that is merged
    ) -> None:
        self._records, self._entries, self._finish = records, entries, finish
        self.counted_bytes = 0

    def count(self, node: int) -> list[int]:
        """Count all leases of a worker as surveyed into its part; returns the new ones."""
        records = self._records
        numbers = [n for n in records.held_by(node) if not records.is_counted(n)]
        for number in numbers:
            records.count(number)
            self.counted_bytes += self._entries.bytes_of(number)
        return numbers

    def merge(self, numbers: Collection[int], node: int) -> bool:
        """Begin the merge of a part; False if an entry is not this worker's, or comes twice."""
        records = self._records
        if len(set(numbers)) < len(numbers):
            return False
        if any(records.holder(number) != node for number in numbers):
            return False
        for number in numbers:
            if not records.is_counted(number):
                self.counted_bytes += self._entries.bytes_of(number)
            records.merge(number)
        return True

    def merged(self, number: int, result: BlockResult) -> None:
        self.counted_bytes -= self._entries.bytes_of(number)
        self._finish(number, result)

    def failed(self, number: int) -> None:
        """The part with an entry cannot be merged: its worker holds the entry again."""
        self.counted_bytes -= self._entries.bytes_of(number)
        self._records.merge_failed(number)

    def released(self, number: int) -> None:
        """An entry is returned, counted or not."""
        if self._records.is_counted(number):
            self.counted_bytes -= self._entries.bytes_of(number)
