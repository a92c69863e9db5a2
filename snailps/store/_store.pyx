# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The rows of one shard, for Python: commands and doors for tests.

    ShardStore -> C functions of tables.pxd, _row_versions.pxd, _row_maintenance.pxd -> index, slab, marks

What a shard has, and how it is set up, is `_base_store`.  No sockets, frames or routes: who asks, and
why this shard owns a fragment, is known elsewhere.  Where rows lie is `_slab.pxd`, where their
memory comes from `_arena.pxd`, what happens to a row `snailps.abi._row_ops.RowOps`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._row_ops cimport ACCESS_AVERAGE, ACCESS_PYTHON
from snailps.store._base_store cimport BaseStore
from snailps.store.core._row_maintenance cimport close_part, drop_if_empty, expire_part
from snailps.store.core._row_versions cimport store_pull_changed, store_raise_version, store_version
from snailps.store.core._slab cimport (
    Part, Slab, holds_row, key_of, part_delete, part_find, row_at, slot_of,
)
from snailps.store.tables cimport *

import numpy as np

from snailps.errors import SnailError
from snailps.store._base_store import checked
from snailps.store.route import fragment_of


cdef class ShardStore(BaseStore):
    """All rows of one shard, with doors for setting it up, for commands and for tests.

    Parameters
    ----------
    frag_num : int
        Fragments of the cluster, 1 to 1,048,576.
    row_ops : PyCapsule
        What `snailps.kernels.row_ops()` returns.

    Raises
    ------
    ConfigError
        If `frag_num` is out of range.

    Notes
    -----
    Not thread-safe: one thread owns a shard, and whoever else wants something of it submits a
    command to that thread.  Requests go through the C functions of ``tables.pxd``; the methods
    here copy and sort, which they can afford.
    """

    # rows

    def pull(self, table_id, keys, state=False):
        """Weights of `keys` (uint64 [n], any owned fragments) as float32 [n, dim].

        With `state` the optimiser's state follows the weights: float32 [n, dim + state].

        Raises
        ------
        SnailError
            If the table is unknown, or a key's fragment not owned.
        """
        cdef Table *table = self._table(table_id)
        cdef const uint64_t[::1] key_view = np.ascontiguousarray(keys, dtype=np.uint64)
        cdef uint32_t n = _count(key_view.shape[0])
        cdef uint32_t floats = table.slab.floats if state else table.slab.dim
        cdef uint32_t done
        rows = np.empty((n, floats), dtype=np.float32)
        cdef float[:, ::1] row_view = rows
        if n == 0:
            return rows
        with nogil:
            done = store_pull_any(self.shard, table, &key_view[0], n, &row_view[0, 0], floats)
        if done < n:
            self._owned([key_view[done]])
        return rows

    def pull_fragment(self, table_id, fragment, keys):
        """The same for keys that all belong to one owned fragment, as requests bring them.

        Raises
        ------
        SnailError
            If the table is unknown, the fragment not owned, or a key of another one.
        """
        cdef Table *table = self._table(table_id)
        cdef uint32_t number = self._fragment(fragment)
        keys = np.ascontiguousarray(keys, dtype=np.uint64)
        cdef const uint64_t[::1] key_view = keys
        cdef uint32_t n = _count(key_view.shape[0])
        cdef uint32_t i
        rows = np.empty((n, table.slab.dim), dtype=np.float32)
        cdef float[:, ::1] row_view = rows
        for i in range(n):
            if fragment_of_hash(hash_key(key_view[i]), self.shard.frag_num) != number:
                raise SnailError(f"key {keys[i]} does not belong to fragment {fragment}")
        if n:
            with nogil:
                store_pull(self.shard, table, number, &key_view[0], n, &row_view[0, 0],
                           table.slab.dim)
        return rows

    def pull_changed(self, table_id, keys, held, state=False):
        """Rows of `keys` (uint64 [n], any owned fragments) that changed since the asker's copies.

        Parameters
        ----------
        table_id : int
            A table that tracks versions.
        keys : uint64 [n]
        held : uint64 [n]
            The number that came with the copy of each key; 0 = the asker holds none.
        state : bool
            The optimiser's state follows the weights, as in `pull`.

        Returns
        -------
        numbers : uint64 [n]
            To be held from now on, for keys that did not change as well.
        changed : bool [n]
        rows : float32 [changed.sum(), dim (+ state)]
            Of the changed keys, in their order.

        Raises
        ------
        SnailError
            If the table is unknown or tracks no versions, a key's fragment is not owned or the
            shapes do not fit.

        Notes
        -----
        Numbers are good in this object only: ``_row_versions.pxd`` says what that asks of a caller.
        """
        cdef Table *table = self._tracking(table_id, "version")
        cdef uint32_t floats = table.slab.floats if state else table.slab.dim
        cdef uint32_t fragment, start, stop, count, total = 0
        cdef const uint64_t[::1] key_view, held_view
        cdef uint8_t[::1] bit_view
        cdef float[:, ::1] row_view
        keys = np.asarray(keys, dtype=np.uint64)
        held = np.asarray(held, dtype=np.uint64)
        _count(len(keys))
        if keys.ndim != 1 or held.shape != keys.shape:
            raise SnailError(f"pull of changes of table {table_id}: expected a number for each of "
                             f"{len(keys)} keys, got shape {held.shape}")
        owners, order, starts = self._grouped(keys)
        key_view = np.ascontiguousarray(keys[order])
        held_view = np.ascontiguousarray(held[order])
        numbers = np.empty(len(keys), np.uint64)
        changed = np.zeros(len(keys), bool)
        bits = np.empty(len(keys) // 8 + 1, np.uint8)
        packed = np.empty((len(keys) + 1, floats), np.float32)
        bit_view, row_view = bits, packed
        for start, stop in zip(starts, [*starts, len(keys)][1:], strict=True):
            fragment = owners[start]
            count = store_pull_changed(self.shard, table, fragment, &key_view[start], stop - start,
                                       &held_view[start], &bit_view[0], &row_view[total, 0],
                                       floats)
            here = np.unpackbits(bits, bitorder="little", count=stop - start)
            changed[order[start:stop]] = here
            numbers[order[start:stop]] = store_version(table, fragment)
            total += count
        rows = np.empty((total, floats), np.float32)
        rows[np.cumsum(changed)[order[changed[order]]] - 1] = packed[:total]
        return numbers, changed, rows

    def fetch(self, table_id, keys):
        """Fetches into the cache what `keys` (uint64 [n]) will need; changes nothing.

        Raises
        ------
        SnailError
            If the table is unknown.
        """
        cdef Table *table = self._table(table_id)
        cdef const uint64_t[::1] key_view = np.ascontiguousarray(keys, dtype=np.uint64)
        cdef uint32_t n = _count(key_view.shape[0])
        if n:
            store_fetch(self.shard, table, &key_view[0], n)

    def push(self, table_id, incarnation, seq, keys, values, state=False):
        """Applies values (float32 [n, dim]) to `keys` (uint64 [n], any owned fragments).

        A fragment whose mark for the incarnation is `seq` or higher is left out, the marks of the
        others become `seq`.  Values have dim + 1 floats for access method ``average``; with
        `state` they are differences of weights and state, float32 [n, dim + state].

        Returns
        -------
        int
            Number of values applied.

        Raises
        ------
        SnailError
            If the table is unknown, a key's fragment not owned, the shapes do not fit or the
            table's state does not add up; nothing is applied then.
        MemoryError
            If a row could not be created; earlier ones are applied.
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
        if keys.ndim != 1 or values.shape != (len(keys), width):
            raise SnailError(f"push to table {table_id}: expected values of shape "
                             f"({len(keys)}, {width}), got {values.shape}")
        owners, order, starts = self._grouped(keys)
        key_view = np.ascontiguousarray(keys[order])
        value_view = np.ascontiguousarray(values[order])
        applied = 0
        for start, stop in zip(starts, [*starts, len(keys)][1:], strict=True):
            fragment = owners[start]
            if store_mark(self.shard, fragment, who) >= number:
                continue
            with nogil:
                failed = store_push(self.shard, table, fragment, &key_view[start], stop - start,
                                    &value_view[start, 0], whole)
                if failed == 0:
                    failed = store_set_mark(self.shard, fragment, who, number)
            if failed:
                raise MemoryError(f"no memory for a row of table {table_id}, fragment {fragment}")
            applied += stop - start
        return applied

    def scan(self, table_id, fragment, cursor=0, max_rows=1024):
        """The next rows of a fragment: ``(cursor, keys uint64 [m], rows float32 [m, dim])``.

        Begin with cursor 0; no rows mean the end.  A row that exists during the whole of a walk
        is seen exactly once; one that is created or deleted meanwhile may be missed; a key that
        is deleted and created again meanwhile may come twice.

        Raises
        ------
        SnailError
            If the table is unknown or the fragment not owned.
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

    def keys(self, table_id):
        """Every key of the table that has a row here, uint64, by fragment and slot.

        Slots are in order of creation until a row is deleted: its slot goes to a later one.
        """
        cdef Table *table = self._table(table_id)
        cdef uint64_t[::1] view
        cdef Part *part
        cdef uint64_t n = 0
        cdef uint32_t fragment, number, slot
        found = np.empty(table.slab.rows, dtype=np.uint64)
        view = found
        for fragment in range(self.shard.frag_num):
            part = &table.slab.parts[fragment]
            for number in range(part.used):
                slot = slot_of(&table.slab, number)
                if holds_row(&table.slab, part, slot):
                    view[n] = key_of(row_at(&table.slab, part, slot))
                    n += 1
        return found

    # what happens to rows besides

    def delete(self, table_id, keys):
        """Deletes the rows of `keys` (uint64 [n], any owned fragments).

        A deleted key reads as its first value again; its slot is used for the next new row.

        Returns
        -------
        int
            Rows deleted; keys without one are no error.

        Raises
        ------
        SnailError
            If the table is unknown or a key's fragment not owned; nothing is deleted then.
        """
        cdef Table *table = self._table(table_id)
        cdef const uint64_t[::1] key_view = np.ascontiguousarray(keys, dtype=np.uint64)
        cdef const uint32_t[::1] owner = self._owned(key_view)
        cdef Py_ssize_t i
        cdef uint64_t deleted = 0
        for i in range(key_view.shape[0]):
            deleted += part_delete(&table.slab, &table.slab.parts[owner[i]], key_view[i],
                                   <uint32_t>hash_key(key_view[i]))
        for i in range(key_view.shape[0]):
            drop_if_empty(&table.slab, &table.slab.parts[owner[i]])
        return deleted

    def set_tick(self, tick):
        """Sets the clock whose value a push leaves in rows of tables that track it.

        Parameters
        ----------
        tick : int
            0 to 2^32 - 1; seconds, rounds or whatever the caller counts.
        """
        self.shard.tick = checked("tick", tick, 0, 2**32 - 1)

    def touched(self, table_id, keys):
        """Tick of the last push to each of `keys` (uint64 [n]) as uint32 [n]; 0 without a row.

        Raises
        ------
        SnailError
            If the table is unknown or does not track it, or a key's fragment is not owned.
        """
        return self._beside(table_id, keys, "touch", np.uint32)

    def versions(self, table_id, keys):
        """Version of each row of `keys` (uint64 [n]) as uint64 [n]; 0 without a row.

        Changes of the table in one fragment, pushes and deletions of a row, are numbered from 1;
        a row's version is the number of the last one that wrote it.

        Raises
        ------
        SnailError
            If the table is unknown or does not track it, or a key's fragment is not owned.
        """
        return self._beside(table_id, keys, "version", np.uint64)

    def version(self, table_id, fragment):
        """Number of the newest change of the table in a fragment; 0 = none so far."""
        cdef Table *table = self._tracking(table_id, "version")
        return table.slab.parts[self._fragment(fragment)].version

    def raise_version(self, table_id, fragment, version):
        """Lets a table's changes in a fragment be counted from `version` on, or from more.

        For a fragment that arrives from elsewhere, before its rows: `version` is what the method
        of that name said there.  Numbers held from there are then good here.
        """
        cdef Table *table = self._tracking(table_id, "version")
        store_raise_version(table, self._fragment(fragment),
                            checked("version", version, 0, 2**64 - 2))

    def expire(self, table_id, before_tick, fragments=None):
        """Deletes the rows whose last push has a tick below `before_tick`.

        Parameters
        ----------
        table_id, before_tick : int
        fragments : sequence of int, optional
            Look at these only; at all that are owned by default.

        Returns
        -------
        int
            Rows deleted.

        Notes
        -----
        Reads every row's tick: 5 to 30 ms a million rows, during which the shard serves nothing
        else.  Give it a few fragments at a time where that matters.
        """
        cdef Table *table = self._tracking(table_id, "touch")
        cdef uint32_t before = checked("tick", before_tick, 0, 2**32 - 1)
        numbers = self.fragments() if fragments is None else fragments
        return sum([expire_part(&table.slab, &table.slab.parts[self._fragment(f)], before)
                    for f in numbers])

    def close_round(self, table_id):
        """Ends a round of an ``average`` table: each row pushed becomes its weighted mean.

        Returns
        -------
        int
            Rows changed.

        Raises
        ------
        SnailError
            If the table is unknown or has another access method.

        Notes
        -----
        One walk over the table's rows at the speed of memory.
        """
        cdef Table *table = self._table(table_id)
        cdef uint64_t changed = 0
        cdef uint32_t fragment
        if table.slab.access != ACCESS_AVERAGE:
            raise SnailError(f"table {table_id} has no rounds: only access method average has")
        with nogil:
            for fragment in range(self.shard.frag_num):
                changed += close_part(&table.slab, &table.slab.parts[fragment])
        return changed

    # checks

    def _grouped(self, keys):
        """Fragments of `keys` in ascending order, the order that sorts them, where each begins."""
        owners = fragment_of(keys, self.shard.frag_num)
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        starts = np.flatnonzero(np.diff(owners, prepend=-1)) if len(keys) else ()
        for start in starts:
            self._fragment(owners[start])
        return owners, order, starts

    def _beside(self, table_id, keys, what, dtype):
        """What is tracked beside the rows of `keys`; 0 for those that have none."""
        cdef Table *table = self._tracking(table_id, what)
        cdef const uint64_t[::1] key_view = np.ascontiguousarray(keys, dtype=np.uint64)
        cdef const uint32_t[::1] owner = self._owned(key_view)
        cdef uint32_t at = table.slab.touch_at if what == "touch" else table.slab.version_at
        cdef uint64_t one
        cdef Py_ssize_t i
        cdef char *row
        found = np.zeros(key_view.shape[0], dtype)
        for i in range(key_view.shape[0]):
            row = part_find(&table.slab, &table.slab.parts[owner[i]], key_view[i],
                            <uint32_t>hash_key(key_view[i]))
            if row != NULL:
                one = 0         # little endian: the tick is its low half
                memcpy(&one, row + at, found.itemsize)
                found[i] = one
        return found


cdef uint32_t _count(n) except? 0xFFFFFFFF:
    if n >= 0xFFFFFFFF:
        raise SnailError(f"{n} keys in one call, at most 4,294,967,294: use several calls")
    return n
