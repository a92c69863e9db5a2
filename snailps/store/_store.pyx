# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The rows of one shard, for Python: setting up, commands, tests.

    ShardStore -> C functions of _tables.pxd -> index, slab, marks

One shard belongs to one thread, so nothing here locks.  No sockets, frames or routes: who asks,
and why this shard owns a fragment, is known elsewhere.  Where rows lie is `_slab.pxd`, where
their memory comes from `_arena.pxd`, what happens to a row `snailps._ops.RowOps`.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport isfinite
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from snailps._hash cimport fragment_of_hash, hash_key
from snailps._ops cimport (
    ACCESS_ADD, ACCESS_AVERAGE, ACCESS_PYTHON, HYPER_NUM, INIT_NORMAL, INIT_ZEROS, RowOps,
    state_floats_of, value_floats_of,
)
from snailps.store._arena cimport arena_end
from snailps.store._marks cimport Marks, marks_drop
from snailps.store._slab cimport (
    Part, Slab, holds_row, key_of, part_delete, part_find, row_at, slot_of,
)
from snailps.store._tables cimport *
from snailps.store._upkeep cimport close_part, drop_if_empty, expire_part

import numpy as np

from snailps.errors import ConfigError, SnailError
from snailps.store.route import fragment_of

cdef enum:
    TABLE_ID_MAX = 0xFFFF
    FRAG_NUM_MAX = 1 << 20
    DIM_MAX = 1 << 24
    STATE_MAX = 1 << 26


cdef class ShardStore:
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
    command to that thread.  Requests go through the C functions of ``_tables.pxd``; the methods
    here copy and sort, which they can afford.
    """

    def __cinit__(self, frag_num, row_ops):
        cdef Shard *shard
        frag_num = _checked("frag_num", frag_num, 1, FRAG_NUM_MAX)
        self.shard = shard = <Shard *>calloc(1, sizeof(Shard))
        if shard == NULL:
            raise MemoryError
        shard.ops = <const RowOps *>PyCapsule_GetPointer(row_ops, "snailps.row_ops")
        self._ops = row_ops
        shard.frag_num = frag_num
        shard.fragments = <Fragment *>calloc(frag_num, sizeof(Fragment))
        if shard.fragments == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Shard *shard = self.shard
        cdef uint32_t i
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

    def own(self, fragments):
        """Adds empty fragments, given as integers, to those this shard owns.

        A fragment that it owns already keeps its rows.

        Raises
        ------
        SnailError
            If a fragment is not in ``0..frag_num - 1``; none is added then.
        """
        numbers = np.asarray(fragments, dtype=np.int64).ravel()
        for fragment in numbers[(numbers < 0) | (numbers >= self.shard.frag_num)]:
            raise SnailError(f"fragment {fragment} cannot be owned: a cluster with frag_num "
                             f"{self.shard.frag_num} has 0 to {self.shard.frag_num - 1}")
        for fragment in numbers:
            self.shard.fragments[<uint32_t>fragment].owned = True

    def disown(self, fragment):
        """Drops a fragment with its rows, of all tables, and its marks.

        Raises
        ------
        SnailError
            If this shard does not own it.
        """
        store_disown(self.shard, self._fragment(fragment))

    def add_table(self, table_id, dim, access, init, scale, seed, hyper, track=0, state_floats=0):
        """Declares a table; doing so again with the same settings has no effect.

        Parameters
        ----------
        table_id : int
            0 to 65,535.
        dim : int
            float32 weights a row, 1 to 16,777,216.
        access, init : int
            Members of `Access` and `Init` in ``_ops.pxd``.
        scale : float
            Of the initialiser: half the width of the uniform, standard deviation of the normal.
        seed : int
            Of the initialiser, 0 to 2^64 - 1.
        hyper : sequence of float
            The access method's hyper-parameters, in the order of `Hyper` in ``_ops.pxd``; at most
            8, missing ones are 0.
        track : int
            What is kept beside each row: 1 the tick of its last push, 2 its version, 3 both.
        state_floats : int
            Floats of state behind the weights, for access method 6 (Python); the others have
            theirs.

        Raises
        ------
        ConfigError
            If a value is out of range, or the table exists with other settings.
        """
        cdef Table *table
        table_id = _checked("table id", table_id, 0, TABLE_ID_MAX)
        dim = _checked("dim", dim, 1, DIM_MAX)
        access = _checked("access method", access, ACCESS_ADD, ACCESS_PYTHON)
        init = _checked("initialiser", init, INIT_ZEROS, INIT_NORMAL)
        seed = _checked("seed", seed, 0, 2**64 - 1)
        track = _checked("track", track, 0, TRACK_TOUCH | TRACK_VERSION)
        state = _checked("state_floats", state_floats, 0, STATE_MAX)
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
        wanted = (dim, access, init, seed, *settings, track, state)
        table = store_table(self.shard, table_id)
        if table != NULL:
            present = (table.slab.dim, table.slab.access, table.slab.init, table.slab.seed,
                       table.slab.scale, *[table.hyper[i] for i in range(<int>HYPER_NUM)],
                       table.track, table.slab.floats - table.slab.dim)
            if present != wanted:
                raise ConfigError(
                    f"table {table_id} exists with (dim, access, init, seed, scale, hyper, track, "
                    f"state) = {present}, and is declared again with {wanted}: use another table "
                    "or name")
            return
        table = table_new(self.shard, table_id, dim, state, track)
        if table == NULL:
            raise MemoryError(f"no memory for table {table_id} of {self.shard.frag_num} fragments")
        table.value_floats = value_floats_of(access, dim)
        table.slab.access = access
        table.slab.init = init
        table.slab.seed = seed
        table.slab.scale = settings[0]
        for i in range(<int>HYPER_NUM):
            table.hyper[i] = settings[1 + i]

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
        cdef uint64_t who = _checked("incarnation", incarnation, 0, 2**64 - 1)
        cdef uint64_t number = _checked("seq", seq, 1, 2**64 - 1)
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
        owners = fragment_of(keys, self.shard.frag_num)
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        key_view = np.ascontiguousarray(keys[order])
        value_view = np.ascontiguousarray(values[order])
        starts = np.flatnonzero(np.diff(owners, prepend=-1)) if len(keys) else ()
        for start in starts:
            self._fragment(owners[start])
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
        cdef uint32_t limit = _checked("max_rows", max_rows, 1, 1 << 24)
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
        self.shard.tick = _checked("tick", tick, 0, 2**32 - 1)

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

        Pushes to the table in one fragment are numbered from 1; a row's version is the number of
        the last one that changed it.

        Raises
        ------
        SnailError
            If the table is unknown or does not track it, or a key's fragment is not owned.
        """
        return self._beside(table_id, keys, "version", np.uint64)

    def version(self, table_id, fragment):
        """Number of the newest push to the table in a fragment; 0 = none so far."""
        cdef Table *table = self._tracking(table_id, "version")
        return table.slab.parts[self._fragment(fragment)].version

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
        cdef uint32_t before = _checked("tick", before_tick, 0, 2**32 - 1)
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

    # marks

    def mark(self, fragment, incarnation):
        """Highest seq applied to the fragment for the incarnation; 0 if none was."""
        return store_mark(self.shard, self._fragment(fragment),
                          _checked("incarnation", incarnation, 0, 2**64 - 1))

    def set_mark(self, fragment, incarnation, seq):
        """Raises a mark, as a fragment that arrives from elsewhere needs; never lowers it."""
        if store_set_mark(self.shard, self._fragment(fragment),
                          _checked("incarnation", incarnation, 0, 2**64 - 1),
                          _checked("seq", seq, 0, 2**64 - 1)) < 0:
            raise MemoryError(f"no memory for a mark of fragment {fragment}")

    def marks(self, fragment):
        """All marks of a fragment: ``{incarnation: seq}``."""
        cdef Marks *marks = &self.shard.fragments[self._fragment(fragment)].marks
        return {marks.places[i].incarnation: marks.places[i].seq
                for i in range(marks.cap) if marks.places[i].seq}

    # sums

    def rows(self, table_id):
        """Number of rows of a table in this shard."""
        return store_rows(self.shard, self._table(table_id))

    @property
    def bytes(self):
        """Bytes taken for rows, indices, tables and marks; freed and kept ones included."""
        return store_bytes(self.shard)

    def fragments(self):
        """The fragments this shard owns, uint32, ascending."""
        return np.array([i for i in range(self.shard.frag_num) if self.shard.fragments[i].owned],
                        dtype=np.uint32)

    def stats(self):
        """Sums for people: ``rows``, ``bytes``, ``fragments``, ``marks``, ``tables``.

        ``tables`` maps a table id to its ``dim``, ``rows`` and ``row_bytes`` (weights and state
        only, without key, index and what is tracked).
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
                }
        owned = self.fragments()
        return {
            "rows": sum(t["rows"] for t in tables.values()),
            "bytes": store_bytes(self.shard),
            "fragments": len(owned),
            "marks": sum(self.shard.fragments[<uint32_t>f].marks.num for f in owned),
            "tables": tables,
        }

    # checks

    cdef Table *_table(self, table_id) except NULL:
        cdef Table *table = NULL
        if 0 <= table_id <= TABLE_ID_MAX:
            table = store_table(self.shard, table_id)
        if table == NULL:
            known = [t for t in range(self.shard.table_cap) if self.shard.tables[t] != NULL]
            raise SnailError(f"no table {table_id} in this shard: it has {known}; "
                             "add_table declares one")
        return table

    cdef Table *_tracking(self, table_id, what) except NULL:
        """The table, if it keeps "touch" or "version" beside its rows."""
        cdef Table *table = self._table(table_id)
        if not table.track & (TRACK_TOUCH if what == "touch" else TRACK_VERSION):
            raise SnailError(f"table {table_id} does not track {what}: declare it so")
        return table

    def _owned(self, keys):
        """Fragments of `keys` as uint32 [n]; a SnailError if one is not owned."""
        owners = fragment_of(np.asarray(keys, np.uint64), self.shard.frag_num).astype(np.uint32)
        for fragment in np.unique(owners).tolist():
            self._fragment(fragment)
        return owners

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

    cdef uint32_t _fragment(self, fragment) except? 0xFFFFFFFF:
        if not (0 <= fragment < self.shard.frag_num and store_owns(self.shard, fragment)):
            raise SnailError(f"fragment {fragment} is not owned by this shard; the route says "
                             "which shard to ask")
        return fragment


def _checked(what, value, lowest, highest):
    """`value` as an int, or a ConfigError that names its range."""
    if int(value) != value or not lowest <= value <= highest:
        raise ConfigError(f"{what}: expected an integer from {lowest} to {highest}, got {value}")
    return int(value)


cdef uint32_t _count(n) except? 0xFFFFFFFF:
    if n >= 0xFFFFFFFF:
        raise SnailError(f"{n} keys in one call, at most 4,294,967,294: use several calls")
    return n
