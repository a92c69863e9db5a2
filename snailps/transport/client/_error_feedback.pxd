# Error feedback: what rounding to a narrow wire type left unsent, by key.
#
#   table, key -> residue (float32 row) -> added to the key's next push, replaced by what is left
#
# So the sum of a key's pushes arrives exactly, except for the rounding of its last push.  One limit bounds the
# memory of all tables: at the limit the residues of the least recently used table are dropped, those of the
# table in use last.  Dropping costs each key one rounding, as without feedback.  The table's `Owing` stays in
# the list, because requests point to it.  Knows no frames.  Everything runs under `Core.turn`, except
# `owing_of`, which callers use.
from libc.stdint cimport uint32_t, uint64_t

from snailps.abi._key_table cimport Entry, entry_of
from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch, fetch_row_far
from snailps.abi._table_hash cimport table_hash

cdef struct Owings:                 # of all tables of a client
    Owing *first
    uint64_t bytes                  # of rows, with their index
    uint64_t bytes_max
    uint64_t uses


cdef struct Owing:                  # of one table
    Owing *next
    Owings *all
    uint64_t used                   # number of its last use
    uint32_t table
    uint32_t floats
    Entry *slots                    # of a key: its row + 1
    uint64_t mask
    char **chunks
    uint32_t chunk_num
    uint32_t chunk_rows
    uint32_t row_num


cdef void owings_init(Owings *all) noexcept nogil
# The residues of a table; NULL = no memory.  One caller at a time, beside the one that serves.
cdef Owing *owing_of(Owings *all, uint32_t table, uint32_t floats) noexcept nogil
# Drops all residues.
cdef void owings_drop(Owings *all) noexcept nogil
# Frees everything.
cdef void owings_free(Owings *all) noexcept nogil


cdef inline float *owing_at(const Owing *owing, uint64_t row) noexcept nogil:
    return <float *>owing.chunks[row // owing.chunk_rows] \
        + <uint64_t>(row % owing.chunk_rows) * owing.floats


# The row of a key that has none yet.
cdef float *owing_new_row(Owing *owing, uint64_t key) noexcept nogil


cdef inline float *owing_row(Owing *owing, uint64_t key) noexcept nogil:
    """The residue of a key, zeros if it is new; NULL = no memory.  Inline: a lookup for each value."""
    cdef uint64_t row = 0
    if owing.slots != NULL:
        row = entry_of(owing.slots, owing.mask, table_hash(key), key).value
    return owing_at(owing, row - 1) if row else owing_new_row(owing, key)


cdef inline void owing_fetch_index(const Owing *owing, uint64_t key) noexcept nogil:
    """Brings what `owing_row` looks at first into the cache."""
    if owing.slots != NULL:
        fetch(&owing.slots[table_hash(key) & owing.mask])


cdef inline void owing_fetch_row(const Owing *owing, uint64_t key) noexcept nogil:
    """Brings the row of a key that is in its first slot into the cache: most are."""
    cdef uint64_t at
    if owing.slots != NULL:
        at = table_hash(key) & owing.mask
        if owing.slots[at].value:
            fetch_row_far(<const char *>owing_at(owing, owing.slots[at].value - 1),
                          4 * owing.floats, FETCH_AT_CLIENT)
