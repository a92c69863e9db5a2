# The rows of one shard, as C: what a shard's handler calls with the GIL released.
#
#   (table, fragment, keys) -> index -> slab row -> floats out, or a value applied to the row
#
# A Shard is owned and touched by one thread; nothing here locks.  The C functions expect a table
# of this shard and a fragment that it owns (`store_owns`); they check neither.  `keys` must be
# 8-byte aligned and belong to the stated fragment, floats must be 4-byte aligned.  Every key is
# an ordinary key, 0 and 2^64 - 1 included.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef struct Shard           # all rows of one shard
cdef struct Table           # one table's part of this shard


cdef class ShardStore:
    cdef Shard *shard       # lives as long as this object
    cdef object _ops        # keeps the capsule of row operations, and so its module, alive
    cdef Table *_table(self, table_id) except NULL
    cdef Table *_tracking(self, table_id, what) except NULL
    cdef uint32_t _fragment(self, fragment) except? 0xFFFFFFFF


# NULL if this shard has no such table.
cdef Table *store_table(Shard *shard, uint32_t table_id) noexcept nogil
cdef uint32_t store_dim(Table *table) noexcept nogil
# Floats of a row with its state; floats of one pushed value.
cdef uint32_t store_floats(Table *table) noexcept nogil
cdef uint32_t store_value_floats(Table *table) noexcept nogil
cdef int store_access(Table *table) noexcept nogil
# Whether differences of weights and state may be pushed.
cdef bint store_adds_state(Table *table) noexcept nogil
cdef bint store_owns(Shard *shard, uint32_t fragment) noexcept nogil

# Copies n rows into `out` (n x floats, tightly packed), `floats` being store_dim (the weights) or
# store_floats (weights and state).  Never changes the store: a key that was never pushed reads as
# its seeded first value.
cdef void store_pull(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                     uint32_t n, float *out, uint32_t floats) noexcept nogil
# The same for keys of any fragments, which it works out itself: lookups of different fragments
# overlap, so this is the one for short pulls.  Returns how many rows it copied: less than n means
# that keys[returned] belongs to a fragment that this shard does not own.
cdef uint32_t store_pull_any(Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                             float *out, uint32_t floats) noexcept nogil
# Applies n values (n x store_value_floats) by the table's access method, in order; creates missing
# rows.  With `state` the values are differences of weights and state (n x store_floats), and only
# for tables that add them (store_adds_state).
# Returns 0, or -1 when memory ran out: rows before the one that found none are applied, that one
# and those after it are untouched.
cdef int store_push(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, const float *values, bint state) noexcept nogil
# Puts whole rows, weights and state (n x store_floats), in the place of what is there.  Counts as
# a push of them.  0, or -1 as store_push.
cdef int store_put(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                   uint32_t n, const float *rows) noexcept nogil
# found[i] = 1 where the key has a row, else 0.
cdef void store_has(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, uint8_t *found) noexcept nogil
# Fetches into the cache what a pull or push of these keys, of any fragments, will read.  Worth it
# before a run of pushes of few keys each: their misses then overlap.  At most some 100 keys ahead.
cdef void store_fetch(Shard *shard, Table *table, const uint64_t *keys, uint32_t n) noexcept nogil

# Highest sequence number applied to the fragment for this incarnation; 0 = none.
cdef uint64_t store_mark(Shard *shard, uint32_t fragment, uint64_t incarnation) noexcept nogil
# Raises the mark to `seq` (a lower one leaves it).  0, or -1 when memory ran out.
cdef int store_set_mark(Shard *shard, uint32_t fragment, uint64_t incarnation,
                        uint64_t seq) noexcept nogil

# Copies up to max_rows (key, floats as in store_pull) of the fragment, in order of slots, from
# position *cursor on (0 = begin) and advances it.  Returns the count; 0 = end.  A row that exists
# during the whole of a walk is seen exactly once.  One created or deleted meanwhile may be seen or
# not; a key that is deleted and created again meanwhile may be seen twice.  Where nothing is
# deleted, slots are in order of creation, and rows created between two calls are seen by a later.
cdef uint32_t store_scan(Shard *shard, Table *table, uint32_t fragment, uint64_t *cursor,
                         uint64_t *keys, float *rows, uint32_t floats,
                         uint32_t max_rows) noexcept nogil
cdef uint64_t store_rows(Shard *shard, Table *table) noexcept nogil
# Bytes taken for rows, indices, tables and marks, freed and kept for re-use included.
cdef uint64_t store_bytes(Shard *shard) noexcept nogil
