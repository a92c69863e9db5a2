"""Decides who trains which slot of a clock: the schedule of synchronous steps (`bsp`).

    entry -> (clock, slot); a clock is complete when all of its slots are done

A policy over the records of `Schedule`; `slots.py` has the clocks.  No files, sockets or time.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from snailps.master.leases.entries import Entries, Entry
from snailps.master.leases.records import NO_RESULT, BlockResult
from snailps.master.leases.schedule import BlockSchedule
from snailps.master.leases.slots import SlotClocks
from snailps.master.leases.waits import Wait


class BspSchedule(BlockSchedule):
    """Each worker gets one slot of a clock first. It gets another slot of the same clock only if
    enough free slots are left for the workers that have none.

    Otherwise one worker could hold two slots of the open clock and train them one after the other,
    while the others wait.

    The slots of a lost worker are free again and go out before later ones. A worker that holds
    slots of later clocks gets one in addition (`SlotClocks.take_back`), because all wait for it.
    """

    slots: SlotClocks

    def __init__(
        self,
        entries: Entries,
        known: NDArray[Any] | None = None,
        *,
        micro_batches: int,  # slots of a clock; the last clock may have fewer
        nodes: Sequence[int] = (),  # the workers
    ) -> None:
        super().__init__(entries, known, nodes)
        self.slots = SlotClocks(self.records, entries, micro_batches)
        self._done_now: set[int] = set()  # workers that finished an entry since the last `woken`

    @property
    def size(self) -> int:
        return self.slots.size

    def _next_of(self, node: int) -> Entry | None:
        """Also None if the next entry is too many clocks ahead."""
        slots = self.slots
        if slots.is_abandoned:
            return None
        for clock in sorted(slots.free):
            if clock >= slots.stop:
                return None
            holders, free = slots.holders(clock), len(slots.free[clock])
            if node not in holders or free > len(self.workers.keys() - holders.keys()):
                return slots.give(clock, node)
        return None

    def woken(self, waiting: Container[int]) -> list[int]:
        """Workers that finished an entry, then workers that may get a free one."""
        slots = self.slots
        done, self._done_now = self._done_now, set()
        news, slots.has_news = slots.has_news, False
        nodes = sorted(node for node in done if node in waiting and node in self._refused)
        if not news or not slots.free:
            return nodes
        free = sum(map(len, slots.free.values()))
        # A worker without an entry of these clocks gets one for certain; the others may get what
        # these leave.
        held = {n for clock in slots.free for n in slots.holders(clock)}
        others = [n for n in self._still(waiting) if n not in done]
        nodes += [n for n in others if n not in held][:free]
        return nodes if len(nodes) >= free else nodes + [n for n in others if n in held]

    def hold(self, epochs: int) -> None:
        """The clock with an epoch's last entry is completed: it may have some of the next one."""
        super().hold(epochs)
        self.slots.stop = -(-self.plan.first_of(epochs) // self.slots.micro_batches)

    @property
    def at_hold(self) -> bool:
        is_there = self.held is not None and self.slots.open >= self.slots.stop
        return is_there and not self.records.leased

    def wait_of(self, node: int) -> Wait:
        """What the open clock lacks, and who is to finish it."""
        return self.slots.wait_of(node) or super().wait_of(node)

    def _adopt(self, number: int, node: int) -> None:
        self.slots.adopt(number, node)

    def done(self, number: int, node: int, result: BlockResult = NO_RESULT) -> bool:
        """A worker has pushed all of an entry, and seals it next."""
        if not super().done(number, node, result):
            return False
        self.slots.done(number, node)
        self._done_now.add(node)
        return True

    def _finish(self, number: int, result: BlockResult) -> None:
        self.slots.ends(number)
        super()._finish(number, result)

    def _release(self, number: int) -> None:
        self.slots.ends(number)
        super()._release(number)

    def release(self, node: int) -> list[int]:
        numbers = self._release_all(node)
        self.slots.put_back(numbers)
        return numbers

    def leave(self, node: int) -> None:
        super().leave(node)
        self.slots.has_news = True

    def close(self, size: int | None = None) -> None:
        super().close(size)
        self.slots.close(size)

    def abandon(self, node: int) -> None:
        """Stop waiting for a worker, as the training ends. The clock that it held up is never
        applied: a sum without one of its slots is not what `bsp` promises."""
        self._release_all(node)
        self.slots.is_abandoned = True

    @property
    def over(self) -> bool:
        """Every clock complete, or abandoned."""
        is_done = self.slots.is_abandoned or self.finished >= self.size
        return not self.records.leased and is_done

    def unpushed(self) -> list[int]:
        """Entries that are done, of clocks that no shard will apply."""
        return self.slots.unapplied()

    def withdraw(self) -> dict[int, BlockResult]:
        counted = self.slots.uncount()
        return {n: result for n, result in super().withdraw().items() if n < counted}

    def snapshot(self) -> dict[str, Any]:
        nodes = sorted(self.workers)
        return {**super().snapshot(), "nodes": nodes, **self.slots.snapshot()}

    def resume(self, snapshot: Mapping[str, Any]) -> None:
        super().resume(snapshot)
        self.workers = dict.fromkeys(map(int, snapshot["nodes"]))
        self.slots.resume(snapshot["last"])
