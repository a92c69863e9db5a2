# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Contributions to clocks, for Python: commands, and doors for tests.

    ClockStore -> C functions of _clock_buffer.pxd -> sums in slot order -> rows

What a clock is made of, and in which order it is summed, is `_clock_buffer.pxd`.  No sockets or frames
here: requests reach the same C functions through the shard's handler.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._row_ops cimport ACCESS_PYTHON
from snailps.store._store cimport ShardStore
from snailps.store.core._clock_buffer cimport *
from snailps.store.tables cimport Table, store_adds_state, store_owns

import numpy as np

from snailps.errors import SnailError
from snailps.store._base_store import checked

SLOTS_MAX = 4096        # of a clock, as frame.SLOTS_MAX

cdef enum:
    WORDS_BYTES = 256


cdef class ClockStore(ShardStore):
    """The rows of one shard, and what is staged for its present clock.

    Parameters
    ----------
    frag_num, row_ops
        As `ShardStore` takes them.

    Notes
    -----
    Not thread-safe, as `ShardStore`.
    """

    def __cinit__(self, frag_num, row_ops):
        memset(&self.slots, 0, sizeof(Slots))
        self.slots.bytes_max = STAGED_BYTES_MAX

    def __dealloc__(self):
        slots_free(&self.slots)

    def stage(self, table_id, clock, slot, incarnation, keys, values, state=False):
        """Stages values (float32 [n, dim]) of `keys` (uint64 [n]) for a slot of the present clock.

        Nothing is applied before the slots are sealed.  Parameters are those of `ShardStore.push`,
        which knows repetitions by their number; here nothing does.

        Returns
        -------
        bool
            Whether it counts; False if the slot or the clock is done already.

        Raises
        ------
        SnailError
            A clock that has not come, a slot that the incarnation has sealed, no such slot, an
            unknown table, a fragment not owned, shapes that do not fit, or the limit of bytes.
        """
        cdef Table *table = self._table(table_id)
        cdef uint64_t who = checked("incarnation", incarnation, 1, 2**64 - 1)
        cdef uint32_t place = checked("slot", slot, 0, SLOTS_MAX - 1)
        cdef const uint64_t[::1] key_view
        cdef const float[:, ::1] value_view
        cdef Staged *part
        cdef Slot *found
        cdef uint32_t n, g, at, width
        cdef int said = slots_check(&self.slots, checked("clock", clock, 0, 2**63), place, who)
        keys = np.asarray(keys, np.uint64)
        values = np.asarray(values, np.float32)
        width = table.slab.floats if state else table.value_floats
        if table.slab.access != ACCESS_PYTHON and state and not store_adds_state(table):
            raise SnailError(f"table {table_id} takes no differences of state")
        if keys.ndim != 1 or values.shape != (len(keys), width):
            raise SnailError(f"stage of table {table_id}: expected values of shape "
                             f"({len(keys)}, {width}), got {values.shape}")
        if said == STAGE_DROPPED:
            return False
        if said != STAGE_OK:
            raise SnailError(f"slot {slot} of clock {clock} takes nothing: this is clock "
                             f"{self.slots.clock} with {self.slots.slots} slots")
        owners, order, starts = self._grouped(keys)
        key_view = np.ascontiguousarray(keys[order])
        value_view = np.ascontiguousarray(values[order])
        n = len(keys)
        if self.slots.bytes + staged_bytes_of(n, len(starts), width) > self.slots.bytes_max:
            slots_refuse(&self.slots, place, who)
            raise SnailError(f"{self.slots.bytes:,} bytes staged, limit {self.slots.bytes_max:,}")
        found = slot_at(&self.slots, place)
        part = staged_new(&self.slots, n, len(starts), width)
        if part == NULL or found == NULL:
            if part != NULL:
                staged_give(&self.slots, part)
            raise MemoryError
        part.table = table
        part.incarnation = who
        part.state = state
        if n:
            memcpy(part.keys, &key_view[0], n * <uint64_t>8)
            memcpy(part.values, &value_view[0, 0], n * <uint64_t>width * sizeof(float))
        for g, at in enumerate(starts):
            part.runs[g].fragment = owners[at]
            part.runs[g].keys = (starts[g + 1] if g + 1 < len(starts) else n) - at
        slots_stage(&self.slots, found, part)
        return True

    def seal(self, clock, slot, slots, incarnation):
        """Says that a slot of a clock of `slots` slots is complete; the first to say so counts.

        Returns
        -------
        bool
            Whether it was the last one, and the clock went on.

        Raises
        ------
        SnailError
            A clock that has not come, another number of slots than other seals said, a slot to
            which a push was refused, or sums that could not be applied.
        """
        cdef uint32_t most = checked("slots", slots, 1, SLOTS_MAX)
        cdef uint32_t place = checked("slot", slot, 0, slots - 1)
        cdef uint64_t number = checked("clock", clock, 0, 2**63)
        cdef uint64_t who = checked("incarnation", incarnation, 1, 2**64 - 1)
        cdef int said
        with nogil:
            said = slots_seal(&self.slots, self.shard, number, place, most, who)
        if said in (SEAL_OK, SEAL_AGAIN, SEAL_CLOSED):
            return said == SEAL_CLOSED
        raise SnailError(f"seal of slot {slot} of clock {clock}: "
                         + {SEAL_FUTURE: f"this is clock {self.slots.clock}",
                            SEAL_SLOTS: f"{slots} slots are not what other seals or pushes said",
                            SEAL_REFUSED: "a push to it was refused"}.get(said, "not applied"))

    def set_clock(self, clock, early=False):
        """Begins at `clock`: forgets what is staged and sealed.

        Parameters
        ----------
        clock : int
            0 to 2^63.
        early : bool
            Clocks are closed by `close_clock` alone, maybe without some of their slots; otherwise
            by their last seal.
        """
        slots_set(&self.slots, checked("clock", clock, 0, 2**63), early)

    def freeze(self, clock=-1):
        """Does not apply the present clock or, if that is the next one, `clock`, before `thaw`.

        So the rows stay as they are when the clock begins; pulls go on, pushes are staged, and
        seals are taken.  Where the next one is held, the present one is not (any more).

        Returns
        -------
        int
            The present clock.

        Raises
        ------
        SnailError
            `clock` is neither the present one nor the next; or a clock could not be applied.
        """
        cdef bint ahead
        now = self.slots.clock
        if clock >= 0 and not now <= clock <= now + 1:
            raise SnailError(f"clock {clock} cannot be held, this is clock {now}")
        ahead = clock > now
        self._hold(not ahead, ahead)
        return now

    def thaw(self):
        """Ends what `freeze` began, and applies the clock if all of it is sealed.

        Raises
        ------
        SnailError
            The sums could not be applied.
        """
        self._hold(False, False)

    def _hold(self, bint present, bint next_one):
        cdef int said
        with nogil:
            said = slots_hold(&self.slots, self.shard, present, next_one)
        if said == SEAL_BROKEN:
            raise SnailError(f"clock {self.slots.clock} could not be applied")

    def close_clock(self, clock, slots):
        """Applies exactly these slots of the present clock, which are sealed; drops the others.

        Parameters
        ----------
        clock : int
        slots : sequence of int

        Returns
        -------
        dict
            As `clock_state` was just before.  A clock applied already is left alone.

        Raises
        ------
        SnailError
            One of the slots is not sealed, or one of the others is summed already, as happens
            where `set_clock` was not told `early`; nothing changes then.  Or the sums could not be
            applied.
        """
        cdef unsigned char[::1] view
        cdef int said
        state = self.clock_state()
        if clock > self.slots.clock:
            raise SnailError(f"clock {clock} cannot be closed, this is clock {self.slots.clock}")
        if clock < self.slots.clock:
            return state
        counts = np.zeros(SLOTS_MAX, np.uint8)
        if not set(slots) <= set(state["sealed"]):
            raise SnailError(f"clock {clock} cannot be closed with the slots {list(slots)}: only "
                             f"{state['sealed']} are sealed")
        counts[list(slots)] = 1
        if not counts[:self.slots.summed].all():
            raise SnailError(f"clock {clock} cannot be closed without slot "
                             f"{int(np.argmin(counts))}, which is summed already: set_clock with "
                             "early")
        view = counts
        said = SEAL_BROKEN
        if not self.slots.broken:
            with nogil:
                said = slots_end(&self.slots, self.shard, &view[0])
        if said != SEAL_CLOSED:
            raise SnailError(f"clock {clock} could not be applied")
        return state

    def clock_state(self):
        """The present clock, as a dict.

        ``clock``, ``slots`` (0 = no seal has said), ``sealed`` (list of slots), ``staged_bytes``.
        """
        cdef uint32_t i
        return {
            "clock": self.slots.clock,
            "slots": self.slots.slots,
            "sealed": [i for i in range(self.slots.slots) if self.slots.slot[i].sealed],
            "staged_bytes": self.slots.bytes,
        }

    def clock_stats(self):
        """Counters of clocks, as a dict of numbers; ``waits_for`` says what the clock lacks."""
        return {
            "clock": self.slots.clock,
            "slots": self.slots.slots,
            "slots_sealed": self.slots.sealed,
            "staged_bytes": self.slots.bytes,
            "values_staged": self.slots.staged,
            "parts_dropped": self.slots.dropped,
            "rows_clocked": self.slots.applied,
            "waits_for": self.waits_for(),
        }

    def waits_for(self):
        """What the present clock waits for: "slot 3 of clock 17"; empty before its first seal."""
        cdef char text[WORDS_BYTES]
        if not self.slots.slots:
            return ""
        slots_lack(&self.slots, text, WORDS_BYTES)
        return text.decode()

    def limit_staged(self, bytes_max):
        """Sets how many bytes may be staged here."""
        self.slots.bytes_max = checked("staged bytes", bytes_max, 0, 2**63)
