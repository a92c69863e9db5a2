"""Contributions to clocks in plain Python: the twin of store/core/_clock_buffer.pxd."""

import numpy as np


class Slots:
    """What one shard keeps of its present clock, and what it has applied so far.

    `applied` lists, per clock, the sums as (key, float32 value) in the order in which rows come
    into being.
    """

    def __init__(self):
        self.clock, self.applied = 0, []
        self._begin()

    def _begin(self):
        self.slots, self.staged, self.sealed = 0, {}, {}

    def stage(self, clock, slot, who, keys, values):
        """Whether it counts; None = refused."""
        if clock > self.clock or (clock == self.clock and self.slots and slot >= self.slots):
            return None
        if clock < self.clock:
            return False
        if slot in self.sealed:
            return None if self.sealed[slot] == who else False
        parts = self.staged.setdefault((slot, who), [])
        parts.append((list(keys), np.array(values, np.float32)))
        return True

    def seal(self, clock, slot, slots, who):
        """Whether the clock went on; None = refused."""
        if clock < self.clock:
            return False
        beyond = any(other >= slots and parts for (other, _), parts in self.staged.items())
        if clock > self.clock or (self.slots not in (0, slots)) or (not self.slots and beyond):
            return None
        self.slots = slots
        self.sealed.setdefault(slot, who)
        for other in [key for key in self.staged if key[0] == slot]:
            if other[1] != self.sealed[slot]:
                del self.staged[other]
        if len(self.sealed) < slots:
            return False
        self.close(range(slots))
        return True

    def close(self, slots):
        """Applies these slots."""
        sums = {}
        for slot in sorted(slots):
            for keys, values in self.staged.get((slot, self.sealed[slot]), []):
                for key, value in zip(keys, values, strict=True):
                    sums[key] = sums[key] + value if key in sums else value.copy()
        self.applied.append(list(sums.items()))
        self.clock += 1
        self._begin()
