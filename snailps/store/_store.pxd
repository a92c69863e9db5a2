# The rows of one shard, as C: what a shard's handler calls with the GIL released.
#
#   (table, fragment, keys) -> index -> slab row -> floats out, or a value applied to the row
#
# A Shard is owned and touched by one thread; nothing here locks.  The C functions expect a table
# of this shard and a fragment that it owns (`store_owns`); they check neither.  `keys` must be
# 8-byte aligned and belong to the stated fragment, floats must be 4-byte aligned.  Every key is
# an ordinary key, 0 and 2^64 - 1 included.
from libc.stdint cimport uint32_t, uint64_t

cdef struct Shard           # all rows of one shard
cdef struct Table           # one table's part of this shard


cdef class ShardStore:
    cdef Shard *shard       # lives as long as this object
    cdef object _ops        # keeps the capsule of row operations, and so its module, alive
    cdef Table *_table(self, table_id) except NULL
    cdef uint32_t _fragment(self, fragment) except? 0xFFFFFFFF


# NULL if this shard has no such table.
cdef Table *store_table(Shard *shard, uint32_t table_id) noexcept nogil
cdef uint32_t store_dim(Table *table) noexcept nogil
cdef bint store_owns(Shard *shard, uint32_t fragment) noexcept nogil

# Copies n rows' weights into `out` (n x dim, tightly packed).  Never changes the store: a key that
# was never pushed reads as its seeded first value.
cdef void store_pull(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                     uint32_t n, float *out) noexcept nogil
# The same for keys of any fragments, which it works out itself: lookups of different fragments
# overlap, so this is the one for short pulls.  Returns how many rows it copied: less than n means
# that keys[returned] belongs to a fragment that this shard does not own.
cdef uint32_t store_pull_any(Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                             float *out) noexcept nogil
# Applies n values (n x dim) by the table's access method, in order; creates missing rows.
# Returns 0, or -1 when memory ran out: rows before the one that found none are applied, that one
# and those after it are untouched.
cdef int store_push(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, const float *values) noexcept nogil
# Fetches into the cache what a pull or push of these keys, of any fragments, will read.  Worth it
# before a run of pushes of few keys each: their misses then overlap.  At most some 100 keys ahead.
cdef void store_fetch(Shard *shard, Table *table, const uint64_t *keys, uint32_t n) noexcept nogil

# Highest sequence number applied to the fragment for this incarnation; 0 = none.
cdef uint64_t store_mark(Shard *shard, uint32_t fragment, uint64_t incarnation) noexcept nogil
# Raises the mark to `seq` (a lower one leaves it).  0, or -1 when memory ran out.
cdef int store_set_mark(Shard *shard, uint32_t fragment, uint64_t incarnation,
                        uint64_t seq) noexcept nogil

# Copies up to max_rows (key, weights) of the fragment, in order of creation, from position
# *cursor on (0 = begin) and advances it.  Returns the count; 0 = end.  Rows created between two
# calls are seen by a later one; none is seen twice.
cdef uint32_t store_scan(Shard *shard, Table *table, uint32_t fragment, uint64_t *cursor,
                         uint64_t *keys, float *rows, uint32_t max_rows) noexcept nogil
cdef uint64_t store_rows(Shard *shard, Table *table) noexcept nogil
# Bytes taken for rows, indices, tables and marks, freed and kept for re-use included.
cdef uint64_t store_bytes(Shard *shard) noexcept nogil
