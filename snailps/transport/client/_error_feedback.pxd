# Error feedback: what rounding to a narrow wire type left unsent, by key.
#
#   table, key -> residue (float32 row) -> added to the key's next push, replaced by what is left
#
# So the sum of a key's pushes arrives exactly but for its last rounding.  Memory is bounded: when
# OWING_BYTES_MAX is reached, all residues are dropped and it begins anew; that costs each key one
# rounding, as without feedback.  Knows no frames; used under `Core.turn`.
from libc.stdint cimport uint32_t, uint64_t

from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch, fetch_row
from snailps.abi._table_hash cimport table_hash

cdef struct OwingSlot:
    uint64_t key
    uint64_t row                    # + 1; 0 = the slot is empty


cdef struct Owing:                  # of one table
    Owing *next
    uint32_t table
    uint32_t floats
    OwingSlot *slots                # open addressing
    uint64_t mask
    char **chunks
    uint32_t chunk_num
    uint32_t chunk_rows
    uint32_t row_num
    uint32_t row_max


# The residues of a table; NULL = no memory.
cdef Owing *owing_of(Owing **first, uint32_t table, uint32_t floats) noexcept nogil
# Frees the list that begins here.
cdef void owing_free(Owing *owing) noexcept nogil


cdef inline float *owing_at(const Owing *owing, uint64_t row) noexcept nogil:
    return <float *>owing.chunks[row // owing.chunk_rows] \
        + <uint64_t>(row % owing.chunk_rows) * owing.floats


# The row of a key that has none yet.
cdef float *owing_new_row(Owing *owing, uint64_t key) noexcept nogil


cdef inline float *owing_row(Owing *owing, uint64_t key) noexcept nogil:
    """The residue of a key, zeros if it is new; NULL = no memory.  Inline: a lookup for each value."""
    cdef uint64_t at
    if owing.slots != NULL:
        at = table_hash(key) & owing.mask
        while owing.slots[at].row:
            if owing.slots[at].key == key:
                return owing_at(owing, owing.slots[at].row - 1)
            at = (at + 1) & owing.mask
    return owing_new_row(owing, key)


cdef inline void owing_fetch_index(const Owing *owing, uint64_t key) noexcept nogil:
    """Brings what `owing_row` looks at first into the cache."""
    cdef uint64_t at
    if owing.slots != NULL:
        at = table_hash(key) & owing.mask
        fetch(&owing.slots[at])


cdef inline void owing_fetch_row(const Owing *owing, uint64_t key) noexcept nogil:
    """Brings the row of a key that is in its first slot into the cache: most are."""
    cdef uint64_t at
    if owing.slots != NULL:
        at = table_hash(key) & owing.mask
        if owing.slots[at].row:
            fetch_row(<const char *>owing_at(owing, owing.slots[at].row - 1),
                      4 * owing.floats, FETCH_AT_CLIENT)
