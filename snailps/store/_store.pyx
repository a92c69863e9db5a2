# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The rows, marks and contributions of one shard, for Python.

    ShardStore -> C functions of tables.pxd, _clock_buffer.pxd -> index, slab, marks, slots

For commands, files and tests: its methods check, copy and sort, which a request cannot afford.  Requests
reach the same C functions through the shard's handler.  Must not know sockets, frames or routes.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport isfinite
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._row_ops cimport (
    ACCESS_ADD, ACCESS_PYTHON, HYPER_NUM, INIT_BITS, INIT_ZEROS, RowOps,
    state_floats_of,
)
from snailps.store.core._arena cimport arena_end
from snailps.store.core._clock_buffer cimport (
    SEAL_AGAIN, SEAL_BROKEN, SEAL_CLOSED, SEAL_FUTURE, SEAL_OK, SEAL_REFUSED, SEAL_SLOTS,
    STAGE_DROPPED, STAGE_OK, STAGED_BYTES_MAX, Slot, Slots, Staged, slot_at, slots_check, slots_end,
    slots_forget, slots_free, slots_lack, slots_refuse, slots_scale, slots_seal, slots_set,
    slots_stage, staged_bytes_of, staged_give, staged_new,
)
from snailps.store.core._slab cimport (
    ADMIT_MAX, Part, holds_row, key_of, part_delete, part_drop, part_drop_if_empty, part_expire, row_at, slab_bytes,
    slot_of, tag_of,
)
from snailps.store.tables cimport (
    TRACK_TOUCH, Fragment, Shard, Table, marks_drop, store_adds_state, store_bytes, store_disown,
    store_drop,
    store_mark, store_owns, store_pull, store_push, store_scales_lr, store_scan, store_set_mark,
    store_table, table_new,
)

import numpy as np

from snailps.abi.key_hash import fragment_of
from snailps.errors import ConfigError, NotFinite, SnailError
from snailps.registry import named

SLOTS_MAX = 4096        # of a clock, like frame.SLOTS_MAX

cdef enum:
    TABLE_ID_MAX = 0xFFFF
    FRAG_NUM_MAX = 1 << 20
    DIM_MAX = 1 << 24
    STATE_MAX = 1 << 26
    WORDS_BYTES = 256


def _check_finite(table_id, finite, values):
    if finite and not np.isfinite(values).all():
        raise NotFinite(f"table {table_id}: expected finite values to push")


cdef class ShardStore:
    """All rows of one shard; `row_ops` is the capsule of `abi.loops.row_ops()`.

    One thread owns a shard, and calls all methods; other threads submit commands to it.  Methods raise
    `SnailError` for an unknown table, and for a fragment that this shard does not own.
    """

    def __cinit__(self, frag_num: int, row_ops: object):
        cdef Shard *shard
        frag_num = checked("frag_num", frag_num, 1, FRAG_NUM_MAX)
        memset(&self.slots, 0, sizeof(Slots))
        self.slots.bytes_max = STAGED_BYTES_MAX
        self.shard = shard = <Shard *>calloc(1, sizeof(Shard))
        if shard == NULL:
            raise MemoryError
        shard.ops = <const RowOps *>PyCapsule_GetPointer(row_ops, "snailps.row_ops")
        self._ops = row_ops
        self.retentions = {}
        shard.frag_num = frag_num
        shard.fragments = <Fragment *>calloc(frag_num, sizeof(Fragment))
        if shard.fragments == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Shard *shard = self.shard
        cdef uint32_t i
        slots_free(&self.slots)
        if shard == NULL:
            return
        if shard.fragments != NULL:
            for i in range(shard.frag_num):
                marks_drop(&shard.fragments[i].marks)
        for i in range(shard.table_cap):
            free(shard.tables[i])
        free(shard.fragments)
        free(shard.tables)
        arena_end(&shard.arena)
        free(shard)
        self.shard = NULL

    # setting up

    def own(self, fragments: ArrayLike) -> None:
        """Add empty fragments, all or none; a fragment that is owned already keeps its rows."""
        numbers = np.asarray(fragments, dtype=np.int64).ravel()
        for fragment in numbers[(numbers < 0) | (numbers >= self.shard.frag_num)]:
            raise SnailError(f"fragment {fragment} cannot be owned: a cluster with frag_num "
                             f"{self.shard.frag_num} has 0 to {self.shard.frag_num - 1}")
        for fragment in numbers:
            self.shard.fragments[<uint32_t>fragment].owned = True

    def disown(self, fragment: int) -> None:
        """Drop a fragment: its rows of all tables, and its marks."""
        store_disown(self.shard, self._fragment(fragment))

    def add_table(self, table_id: int, dim: int, access: int, init: int, scale: float, seed: int,
                  hyper: Sequence[float], track: int = 0,
                  retention: tuple[int, int, int, int] = (0, 0, 0, 0), finite: bool = True,
                  state_floats: int = 0) -> None:
        """Declare a table.  Repeating a declaration has no effect; another one is a ConfigError.

        `access`, `init` and the order of `hyper` (up to 8 numbers, missing ones 0) are in
        ``_row_ops.pxd``.  `scale`: half the width of a uniform distribution, or the deviation of a
        normal one.  `track` 1 keeps the tick of each row's last push.  `retention`:
        ``Table.admit_after, admit_bytes, rows_max, age_max``; all but the first are totals over the
        cluster's fragments.  `state_floats`: for an access method in Python; the others have their own.
        """
        cdef Table *table
        cdef float[HYPER_NUM] numbers
        table_id = checked("table id", table_id, 0, TABLE_ID_MAX)
        dim = checked("dim", dim, 1, DIM_MAX)
        access = checked("access method", access, ACCESS_ADD, ACCESS_PYTHON)
        init = checked("initialiser", init, INIT_ZEROS, INIT_BITS)
        seed = checked("seed", seed, 0, 2**64 - 1)
        track = checked("track", track, 0, TRACK_TOUCH)
        state = checked("state_floats", state_floats, 0, STATE_MAX)
        admit_after = checked("admit_after", retention[0], 0, ADMIT_MAX)
        admit_bytes = checked("admit_bytes", retention[1], 0, 2**40)
        rows_max = checked("rows_max", retention[2], 0, 2**48)
        age_max = checked("age_max", retention[3], 0, 2**48)
        if access != ACCESS_PYTHON:
            state = state_floats_of(access, dim)
        if len(hyper) > HYPER_NUM:
            raise ConfigError(f"table {table_id}: expected at most {HYPER_NUM} hyper-parameters, "
                              f"got {len(hyper)}")
        settings = tuple(float(np.float32(x)) for x in (scale, *hyper))
        settings += (0.0,) * (1 + HYPER_NUM - len(settings))
        if not all(isfinite(x) for x in settings):
            raise ConfigError(f"table {table_id}: scale and hyper-parameters must be finite "
                              f"float32 numbers, got {scale} and {list(hyper)}")
        wanted = (dim, access, init, seed, *settings, track, state, tuple(retention), bool(finite))
        table = store_table(self.shard, table_id)
        if table != NULL:
            present = (table.slab.dim, table.slab.access, table.slab.init, table.slab.seed,
                       table.slab.scale, *[table.hyper[i] for i in range(<int>HYPER_NUM)],
                       table.track & TRACK_TOUCH, table.slab.floats - table.slab.dim,
                       self.retentions[table_id], bool(table.finite))
            if present != wanted:
                raise ConfigError(
                    f"table {table_id} exists with (dim, access, init, seed, scale, hyper, track, "
                    f"state, retention, finite) = {present}, and is declared again with {wanted}: use another table "
                    "or name")
            return
        if admit_after > 1 or rows_max or age_max:
            named("retention")          # refused now, where this installation lacks it
        for i in range(<int>HYPER_NUM):
            numbers[i] = settings[1 + i]
        table = table_new(self.shard, table_id, access, numbers, dim, state, track, admit_after,
                          admit_bytes, rows_max, age_max)
        if table == NULL:
            raise MemoryError(f"no memory for table {table_id} of {self.shard.frag_num} fragments")
        table.slab.init = init
        table.slab.seed = seed
        table.slab.scale = settings[0]
        table.finite = finite
        self.retentions[table_id] = tuple(retention)

    def drop_tables(self, table_ids: Iterable[int]) -> None:
        """Drop tables with their rows and contributions; skip numbers without a table.

        It reads each index and list of chunks: 0.1 s for 10 GB, during which the shard serves nothing.
        """
        cdef Table *table
        cdef uint32_t number
        for number in table_ids:
            table = store_table(self.shard, number)
            if table != NULL:
                slots_forget(&self.slots, table)
                store_drop(self.shard, number)
                del self.retentions[number]

    def clear(self, table_ids: Iterable[int]) -> None:
        """Delete all rows of tables, with their counts of pushes; skip numbers without a table."""
        cdef Table *table
        cdef uint32_t number, fragment
        for table_id in table_ids:
            number = checked("table", table_id, 0, TABLE_ID_MAX)
            table = store_table(self.shard, number)
            if table != NULL:
                for fragment in range(self.shard.frag_num):
                    part_drop(&table.slab, &table.slab.parts[fragment])

    # sums

    def rows(self, table_id: int) -> int:
        return self._table(table_id).slab.rows

    @property
    def bytes(self) -> int:
        """Bytes of rows, indices, tables and marks, free memory that is kept included."""
        return store_bytes(self.shard)

    def fragments(self) -> NDArray[np.uint32]:
        """Return the fragments that this shard owns, uint32, ascending."""
        return np.array([i for i in range(self.shard.frag_num) if self.shard.fragments[i].owned],
                        dtype=np.uint32)

    def stats(self) -> dict[str, Any]:
        """Return counts for reports: ``rows``, ``bytes``, ``fragments``, ``marks``, ``tables``.

        ``tables`` maps a table id to ``dim``, ``rows``, ``row_bytes`` (weights and state only),
        ``bytes`` (with unused room), and counts of rows ``made``, ``evicted`` and ``expired`` and of
        values ``refused``, whose keys were not admitted.
        """
        cdef Table *table
        cdef uint32_t t
        tables = {}
        for t in range(self.shard.table_cap):
            table = self.shard.tables[t]
            if table != NULL:
                tables[t] = {
                    "dim": table.slab.dim,
                    "rows": table.slab.rows,
                    "row_bytes": table.slab.rows * table.slab.floats * sizeof(float),
                    "bytes": slab_bytes(&table.slab, self.shard.frag_num),
                    "made": table.slab.made,
                    "refused": table.slab.refused,
                    "evicted": table.slab.evicted,
                    "expired": table.slab.expired,
                }
        owned = self.fragments()
        return {
            "rows": sum(t["rows"] for t in tables.values()),
            "bytes": store_bytes(self.shard),
            "fragments": len(owned),
            "marks": sum(self.shard.fragments[<uint32_t>f].marks.num for f in owned),
            "tables": tables,
        }

    # rows

    def pull(self, table_id: int, keys: ArrayLike, state: bool = False) -> NDArray[np.float32]:
        """Return the weights of `keys` (uint64 [n], of any owned fragments), float32 [n, dim].

        With `state` the optimiser's state follows the weights: float32 [n, dim + state].
        """
        cdef Table *table = self._table(table_id)
        cdef const uint64_t[::1] key_view = np.ascontiguousarray(keys, dtype=np.uint64)
        cdef uint32_t n = _count(key_view.shape[0])
        cdef uint32_t floats = table.slab.floats if state else table.slab.dim
        cdef uint32_t done = 0
        rows = np.empty((n, floats), dtype=np.float32)
        cdef float[:, ::1] row_view = rows
        if n == 0:
            return rows
        while done < n and store_owns(self.shard, fragment_of_hash(hash_key(key_view[done]),
                                                                   self.shard.frag_num)):
            done += 1
        if done < n:
            self._owned([key_view[done]])
        with nogil:
            store_pull(self.shard, table, &key_view[0], n, floats, <char *>&row_view[0, 0],
                       4 * floats, NULL, NULL)
        return rows

    def push(self, table_id: int, incarnation: int, seq: int, keys: ArrayLike, values: ArrayLike,
             state: bool = False, float lr_scale=1) -> int:
        """Apply values (float32 [n, dim]) to `keys` (uint64 [n]); return how many were applied.

        Skips fragments whose mark for the incarnation is at least `seq`, and raises the marks of the
        others to `seq`.  Values have dim + 1 floats for access method ``average``; with `state` they
        are differences of weights and state, float32 [n, dim + state].  `lr_scale` multiplies the
        table's step size.  If it raises, nothing was applied, except in a `MemoryError`: then
        earlier rows are.
        """
        cdef Table *table = self._table(table_id)
        cdef uint64_t who = checked("incarnation", incarnation, 0, 2**64 - 1)
        cdef uint64_t number = checked("seq", seq, 1, 2**64 - 1)
        cdef const uint64_t[::1] key_view
        cdef const float[:, ::1] value_view
        cdef uint32_t fragment, start, stop
        cdef bint whole = state
        cdef int failed
        keys = np.asarray(keys, dtype=np.uint64)
        values = np.asarray(values, dtype=np.float32)
        width = table.slab.floats if whole else table.value_floats
        _count(len(keys))
        if table.slab.access == ACCESS_PYTHON or (whole and not store_adds_state(table)):
            raise SnailError(f"push to table {table_id}: access method {table.slab.access} takes "
                             f"no {'differences of state' if whole else 'values here'}")
        if lr_scale != 1 and (whole or not store_scales_lr(table)):
            raise SnailError(f"push to table {table_id}: no step size to scale")
        if keys.ndim != 1 or values.shape != (len(keys), width):
            raise SnailError(f"push to table {table_id}: expected values of shape "
                             f"({len(keys)}, {width}), got {values.shape}")
        _check_finite(table_id, table.finite, values)
        owners, order, starts = self._grouped(keys)
        key_view = np.ascontiguousarray(keys[order])
        value_view = np.ascontiguousarray(values[order])
        applied = 0
        for start, stop in zip(starts, [*starts, len(keys)][1:], strict=True):
            fragment = owners[start]
            if store_mark(self.shard, fragment, who) >= number:
                continue
            with nogil:
                failed = store_push(self.shard, table, &key_view[start], stop - start,
                                    &value_view[start, 0], whole, lr_scale)
                if failed == 0:
                    failed = store_set_mark(self.shard, fragment, who, number)
            if failed:
                raise MemoryError(f"no memory for a row of table {table_id}, fragment {fragment}")
            applied += stop - start
        return applied

    def scan(self, table_id: int, fragment: int, cursor: int = 0,
             max_rows: int = 1024) -> tuple[int, NDArray[np.uint64], NDArray[np.float32]]:
        """Return the next rows of a fragment: ``(cursor, keys uint64 [m], rows float32 [m, dim])``.

        Begin with cursor 0; no rows mean the end.  A row that exists throughout is returned exactly
        once.  A row made or deleted meanwhile may be missed; one that is deleted and made again may be
        returned twice.
        """
        cdef Table *table = self._table(table_id)
        cdef uint64_t position = cursor
        cdef uint32_t number = self._fragment(fragment)
        cdef uint32_t limit = checked("max_rows", max_rows, 1, 1 << 24)
        keys = np.empty(limit, dtype=np.uint64)
        rows = np.empty((limit, table.slab.dim), dtype=np.float32)
        cdef uint64_t[::1] key_view = keys
        cdef float[:, ::1] row_view = rows
        count = store_scan(self.shard, table, number, &position, &key_view[0], &row_view[0, 0],
                           table.slab.dim, limit)
        return position, keys[:count].copy(), rows[:count].copy()

    def keys(self, table_id: int) -> NDArray[np.uint64]:
        """Return all keys of a table that have a row here, uint64, by fragment and slot.

        Slots are in order of creation until a row is deleted: the next new row gets its slot.
        """
        cdef Table *table = self._table(table_id)
        cdef uint64_t[::1] view
        cdef Part *part
        cdef uint64_t n = 0
        cdef uint32_t fragment, number, slot
        keys = np.empty(table.slab.rows, dtype=np.uint64)
        view = keys
        for fragment in range(self.shard.frag_num):
            part = &table.slab.parts[fragment]
            for number in range(part.used):
                slot = slot_of(&table.slab, number)
                if holds_row(&table.slab, part, slot):
                    view[n] = key_of(row_at(&table.slab, part, slot))
                    n += 1
        return keys

    # deletion

    def delete(self, table_id: int, keys: ArrayLike) -> int:
        """Delete the rows of `keys` (uint64 [n], of any owned fragments); return how many there were.

        A deleted key reads as its first value again.
        """
        cdef Table *table = self._table(table_id)
        cdef const uint64_t[::1] key_view = np.ascontiguousarray(keys, dtype=np.uint64)
        cdef const uint32_t[::1] owner = self._owned(key_view)
        cdef Py_ssize_t i
        cdef uint64_t deleted = 0
        for i in range(key_view.shape[0]):
            deleted += part_delete(&table.slab, &table.slab.parts[owner[i]], key_view[i],
                                   tag_of(key_view[i]))
        for i in range(key_view.shape[0]):
            part_drop_if_empty(&table.slab, &table.slab.parts[owner[i]])
        return deleted

    def set_tick(self, tick: int) -> None:
        """Set the tick that pushes note in rows of tables with `track`: uint32, in the caller's unit."""
        self.shard.tick = checked("tick", tick, 0, 2**32 - 1)

    def expire(self, table_id: int, before_tick: int,
               fragments: Iterable[int] | None = None) -> int:
        """Delete rows last pushed before `before_tick`, in these or all fragments; return their number.

        It reads each row's tick, 5 to 30 ms for a million rows, during which the shard serves nothing:
        pass a few fragments at a time if that matters.
        """
        cdef Table *table = self._table(table_id)
        cdef uint32_t before = checked("tick", before_tick, 0, 2**32 - 1)
        if not table.track & TRACK_TOUCH:
            raise SnailError(f"table {table_id} does not track touch: declare it with track 1")
        numbers = self.fragments() if fragments is None else fragments
        return sum([part_expire(&table.slab, &table.slab.parts[self._fragment(f)], before)
                    for f in numbers])

    # contributions to clocks

    def stage(self, table_id: int, clock: int, slot: int, incarnation: int, keys: ArrayLike,
              values: ArrayLike, state: bool = False, float lr_scale=1) -> bool:
        """Stage values (float32 [n, dim]) of `keys` (uint64 [n]) for a slot of the present clock.

        Parameters are like those of `push`; repetitions are not recognised.  False: the slot was
        sealed by another incarnation, or the clock is over.  `SnailError`: a later clock, a slot that
        this incarnation has sealed, a slot that the clock lacks, differences of state for a table that
        cannot add them, or too many bytes.
        """
        cdef Table *table = self._table(table_id)
        cdef uint64_t who = checked("incarnation", incarnation, 1, 2**64 - 1)
        cdef uint32_t place = checked("slot", slot, 0, SLOTS_MAX - 1)
        cdef const uint64_t[::1] key_view
        cdef const float[:, ::1] value_view
        cdef Staged *part
        cdef Slot *target
        cdef uint32_t n, g, at, width
        cdef int code = slots_check(&self.slots, checked("clock", clock, 0, 2**63), place, who)
        keys = np.asarray(keys, np.uint64)
        values = np.asarray(values, np.float32)
        width = table.slab.floats if state else table.value_floats
        if table.slab.access != ACCESS_PYTHON and state and not store_adds_state(table):
            raise SnailError(f"table {table_id} takes no differences of state")
        if keys.ndim != 1 or values.shape != (len(keys), width):
            raise SnailError(f"stage of table {table_id}: expected values of shape "
                             f"({len(keys)}, {width}), got {values.shape}")
        _check_finite(table_id, table.finite, values)
        if code == STAGE_DROPPED:
            return False
        if code != STAGE_OK:
            raise SnailError(f"slot {slot} of clock {clock} takes nothing: this is clock "
                             f"{self.slots.clock} with {self.slots.slots} slots")
        owners, order, starts = self._grouped(keys)
        key_view = np.ascontiguousarray(keys[order])
        value_view = np.ascontiguousarray(values[order])
        n = len(keys)
        if self.slots.bytes + staged_bytes_of(n, len(starts), width) > self.slots.bytes_max:
            slots_refuse(&self.slots, place, who)
            raise SnailError(f"{self.slots.bytes:,} bytes staged, limit {self.slots.bytes_max:,}")
        target = slot_at(&self.slots, place)
        part = staged_new(&self.slots, n, len(starts), width)
        if part == NULL or target == NULL or slots_scale(&self.slots, table, state, lr_scale) == NULL:
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
        slots_stage(&self.slots, target, part)
        return True

    def seal(self, clock: int, slot: int, slots: int, incarnation: int) -> bool:
        """Seal a slot of a clock of `slots` slots; True: it was the last one, and the clock advanced.

        The first seal of a slot counts.  `SnailError`: a later clock, another number of slots than in
        earlier seals, a slot to which a push was refused, or sums that cannot be applied.
        """
        cdef uint32_t most = checked("slots", slots, 1, SLOTS_MAX)
        cdef uint32_t place = checked("slot", slot, 0, slots - 1)
        cdef uint64_t number = checked("clock", clock, 0, 2**63)
        cdef uint64_t who = checked("incarnation", incarnation, 1, 2**64 - 1)
        cdef int code
        with nogil:
            code = slots_seal(&self.slots, self.shard, number, place, most, who)
        if code in (SEAL_OK, SEAL_AGAIN, SEAL_CLOSED):
            return code == SEAL_CLOSED
        raise SnailError(f"seal of slot {slot} of clock {clock}: "
                         + {SEAL_FUTURE: f"this is clock {self.slots.clock}",
                            SEAL_SLOTS: f"other seals or pushes have another number of slots than {slots}",
                            SEAL_REFUSED: "a push to it was refused"}.get(code, "not applied"))

    def set_clock(self, clock: int, early: bool = False) -> None:
        """Begin at `clock`, and forget all that is staged and sealed.

        `early`: `close_clock` closes clocks, maybe without some slots; else the last seal does.
        """
        slots_set(&self.slots, checked("clock", clock, 0, 2**63), early)

    def close_clock(self, clock: int, slots: Sequence[int]) -> dict[str, Any]:
        """Apply exactly these slots of the present clock, which must be sealed, and drop the others.

        Returns `clock_state` of the moment before; does nothing for a clock that is applied.
        `SnailError`, and nothing changed: a slot is not sealed, or another one is summed already
        (after `set_clock` without `early`).
        """
        cdef unsigned char[::1] view
        cdef int code
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
        code = SEAL_BROKEN
        if not self.slots.broken:
            with nogil:
                code = slots_end(&self.slots, self.shard, &view[0])
        if code != SEAL_CLOSED:
            raise SnailError(f"clock {clock} could not be applied")
        return state

    def clock_state(self) -> dict[str, Any]:
        """Return ``clock``, ``slots`` (0: no seal yet), ``sealed`` (a list), ``staged_bytes``."""
        cdef uint32_t i
        return {
            "clock": self.slots.clock,
            "slots": self.slots.slots,
            "sealed": [i for i in range(self.slots.slots) if self.slots.slot[i].sealed],
            "staged_bytes": self.slots.bytes,
        }

    def clock_stats(self) -> dict[str, Any]:
        """Return counts for reports; ``waits_for`` names the slots that the clock lacks."""
        return {
            "clock": self.slots.clock,
            "slots": self.slots.slots,
            "slots_sealed": self.slots.sealed,
            "staged_bytes": self.slots.bytes,
            "parts_dropped": self.slots.dropped,
            "waits_for": self.waits_for(),
        }

    def waits_for(self) -> str:
        """Return what the clock waits for: "slot 3 of clock 17"; empty before its first seal."""
        cdef char text[WORDS_BYTES]
        if not self.slots.slots:
            return ""
        slots_lack(&self.slots, text, WORDS_BYTES)
        return text.decode()

    def limit_staged(self, bytes_max: int) -> None:
        self.slots.bytes_max = checked("staged bytes", bytes_max, 0, 2**63)

    # checks

    cdef Table *_table(self, table_id) except NULL:
        cdef Table *table = NULL
        if 0 <= table_id <= TABLE_ID_MAX:
            table = store_table(self.shard, table_id)
        if table == NULL:
            table_ids = [t for t in range(self.shard.table_cap) if self.shard.tables[t] != NULL]
            raise SnailError(f"no table {table_id} in this shard: it has {table_ids}; "
                             "add_table declares one")
        return table

    def _owned(self, keys):
        """Return the fragments of `keys`, uint32 [n]; SnailError: one is not owned."""
        owners = fragment_of(np.asarray(keys, np.uint64), self.shard.frag_num).astype(np.uint32)
        for fragment in np.unique(owners).tolist():
            self._fragment(fragment)
        return owners

    cdef uint32_t _fragment(self, fragment) except? 0xFFFFFFFF:
        if not (0 <= fragment < self.shard.frag_num and store_owns(self.shard, fragment)):
            raise SnailError(f"fragment {fragment} is not owned by this shard: ask the shard that the "
                             "route names")
        return fragment

    def _grouped(self, keys):
        """Return the sorted fragments of `keys`, the order that sorts them, and where each begins."""
        owners = fragment_of(keys, self.shard.frag_num)
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        starts = np.flatnonzero(np.diff(owners, prepend=-1)) if len(keys) else ()
        for start in starts:
            self._fragment(owners[start])
        return owners, order, starts


def checked(what: str, value: int, lowest: int, highest: int) -> int:
    """Convert to int, or raise a ConfigError that names the range."""
    if int(value) != value or not lowest <= value <= highest:
        raise ConfigError(f"{what}: expected an integer from {lowest} to {highest}, got {value}")
    return int(value)


cdef uint32_t _count(n) except? 0xFFFFFFFF:
    if n >= 0xFFFFFFFF:
        raise SnailError(f"{n} keys in one call, at most 4,294,967,294: use several calls")
    return n
