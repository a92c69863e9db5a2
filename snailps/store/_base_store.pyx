# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What a shard has: its fragments, tables and marks.

    BaseStore -> Shard of tables.pxd: made, checked, counted, given back

`_store` adds what is done with rows.  Nothing here locks: one shard belongs to one thread.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport isfinite
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from snailps.abi._row_ops cimport (
    ACCESS_ADD, ACCESS_PYTHON, HYPER_NUM, INIT_FACTORS, INIT_ZEROS, RowOps, state_floats_of,
    value_floats_of,
)
from snailps.store.core._arena cimport arena_end
from snailps.store.core._marks cimport Marks, marks_drop
from snailps.store.tables cimport *

import numpy as np

from snailps.errors import ConfigError, SnailError
from snailps.store.route import fragment_of

cdef enum:
    TABLE_ID_MAX = 0xFFFF
    FRAG_NUM_MAX = 1 << 20
    DIM_MAX = 1 << 24
    STATE_MAX = 1 << 26


cdef class BaseStore:
    """Fragments, tables and marks of one shard; `ShardStore` is what is used.

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
    """

    def __cinit__(self, frag_num, row_ops):
        cdef Shard *shard
        frag_num = checked("frag_num", frag_num, 1, FRAG_NUM_MAX)
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
            Members of `Access` and `Init` in ``_row_ops.pxd``.
        scale : float
            Of the initialiser: half the width of the uniform, standard deviation of the normal.
        seed : int
            Of the initialiser, 0 to 2^64 - 1.
        hyper : sequence of float
            The access method's hyper-parameters, in the order of `Hyper` in ``_row_ops.pxd``; at most
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
        table_id = checked("table id", table_id, 0, TABLE_ID_MAX)
        dim = checked("dim", dim, 1, DIM_MAX)
        access = checked("access method", access, ACCESS_ADD, ACCESS_PYTHON)
        init = checked("initialiser", init, INIT_ZEROS, INIT_FACTORS)
        seed = checked("seed", seed, 0, 2**64 - 1)
        track = checked("track", track, 0, TRACK_TOUCH | TRACK_VERSION)
        state = checked("state_floats", state_floats, 0, STATE_MAX)
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

    # marks

    def mark(self, fragment, incarnation):
        """Highest seq applied to the fragment for the incarnation; 0 if none was."""
        return store_mark(self.shard, self._fragment(fragment),
                          checked("incarnation", incarnation, 0, 2**64 - 1))

    def set_mark(self, fragment, incarnation, seq):
        """Raises a mark, as a fragment that arrives from elsewhere needs; never lowers it."""
        if store_set_mark(self.shard, self._fragment(fragment),
                          checked("incarnation", incarnation, 0, 2**64 - 1),
                          checked("seq", seq, 0, 2**64 - 1)) < 0:
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

    cdef uint32_t _fragment(self, fragment) except? 0xFFFFFFFF:
        if not (0 <= fragment < self.shard.frag_num and store_owns(self.shard, fragment)):
            raise SnailError(f"fragment {fragment} is not owned by this shard; the route says "
                             "which shard to ask")
        return fragment


def checked(what, value, lowest, highest):
    """`value` as an int, or a ConfigError that names its range."""
    if int(value) != value or not lowest <= value <= highest:
        raise ConfigError(f"{what}: expected an integer from {lowest} to {highest}, got {value}")
    return int(value)
