# What a shard keeps for one connection: batches that went forward.
#
# It belongs to the connection and ends with it: a client that lost one begins anew, so nothing of a
# client that died stays behind.  Knows no tables, frames or other connections.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport._frame cimport BATCHES, Group

cdef struct KeptBatch:
    uint64_t number                 # 0 = nothing is here
    uint32_t table
    uint32_t floats
    uint32_t examples
    uint32_t forth                  # examples whose entries are here
    uint32_t back                   # ... whose dL/dZ is here
    bint refused                    # nothing is kept, and all its parts are refused
    uint64_t entries
    uint64_t room                   # entries
    uint64_t *keys
    float *values
    uint32_t *of                    # example of each entry
    float *dz                       # examples x floats; NULL before the first part of it
    uint64_t bytes                  # counted in ConnectionMemory.bytes


cdef struct ConnectionMemory:
    uint64_t bytes                  # of all batches
    KeptBatch batches[BATCHES]


cdef struct Columns:                # a batch by column: scratch, one a shard
    char *block
    uint64_t block_bytes
    uint32_t keys                   # different ones
    uint32_t groups                 # fragments that they are of
    Group *group                    # ascending
    uint64_t *key                   # in order of the fragments
    uint32_t *start                 # keys + 1: first entry of each
    uint32_t *example               # of each entry
    float *value


# The connection's memory, made when it is first asked for; NULL = there is none left.
cdef ConnectionMemory *memory_of(void **memory) noexcept nogil
cdef void memory_free(ConnectionMemory *mine) noexcept nogil

# Begins an empty batch, in the place of an older one.  It is marked as refused if its dL/dZ would exceed the limit
# of bytes for batches.
cdef KeptBatch *batch_begin(ConnectionMemory *mine, uint64_t number, uint32_t table,
                            uint32_t examples, uint32_t floats) noexcept nogil
# The batch with this number, table and shape; NULL = there is none, or it was replaced.
cdef KeptBatch *batch_of(ConnectionMemory *mine, uint64_t number, uint32_t table,
                         uint32_t examples, uint32_t floats) noexcept nogil
# Keeps the entries of the next examples (`values` NULL = all 1); False = too much.
cdef bint batch_add(ConnectionMemory *mine, KeptBatch *batch, const uint64_t *keys,
                    const float *values, const uint32_t *counts, uint32_t count,
                    uint32_t entries) noexcept nogil
# Frees what is kept of a batch, and remembers that it was refused.
cdef void batch_refuse(ConnectionMemory *mine, KeptBatch *batch) noexcept nogil
cdef void batch_drop(ConnectionMemory *mine, KeptBatch *batch) noexcept nogil

# Sorts a batch's entries by fragment and key; False = no memory.  A key's entries keep the order of
# their examples, keys of a fragment that of their appearance.
cdef bint columns_of(Columns *c, const KeptBatch *batch, uint32_t frag_num) noexcept nogil
cdef void columns_cool(Columns *c) noexcept nogil
cdef void columns_free(Columns *c) noexcept nogil
