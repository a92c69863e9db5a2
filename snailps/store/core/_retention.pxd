# Which rows a part makes and keeps: a row is made after some pushes of its key, and deleted when it is among
# the least recently pushed of too many rows, or too old.
#
#   key without a row -> counted -> enough pushes? -> its row is made
#   a part as full as it may be -> its oldest sixteenth goes
#   half an age of pushes since the last look -> rows without a push for an age go
#
# A part decides by the pushes to it and nothing else, so that a standby, or a replay, that executes
# the same pushes in the same order makes and keeps the same rows.  For the same reason a copy of a part
# is made with its `Retention`.
#
# Counts are a sketch of fixed size (count-min with conservative update: G. Cormode, S. Muthukrishnan,
# 2005; C. Estan, G. Varghese, 2002), of four cells in one cache line a key.  A count is never too low,
# except that all counts are halved whenever one push for each 8 cells was counted, so that old pushes
# fade (TinyLFU: G. Einziger et al., 2017).  A collision admits a key early.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.store.core._slab cimport Part, Retention, Slab

cdef enum:
    CELLS_MIN = 64              # one cache line
    CELLS_MAX = 4 << 20         # of a part
    ADMIT_MAX = 100             # a count fits into a byte

cdef packed struct RetentionHead:       # of a Retention as bytes; its cells follow
    uint32_t pushed
    uint32_t counted
    uint32_t cells
    uint32_t swept


# Counts a push of a key that has no row; returns whether to make the row.  The part has a Retention.
cdef bint retention_admits(Slab *slab, Part *part, uint64_t key) noexcept nogil

# Makes room for one more row; returns the number of deleted rows.  The part has a Retention.
cdef uint32_t retention_make_room(Slab *slab, Part *part) noexcept nogil

# Deletes the rows that none of the part's last `age_max` pushes reached; looks once in `age_max` / 2 pushes.  Returns
# the number of deleted rows.  The table has an age, the part a Retention.
cdef uint32_t retention_expire(Slab *slab, Part *part) noexcept nogil

# Halves the numbers of all rows of a part, before the next one would not fit.
cdef void retention_renumber(Slab *slab, Part *part) noexcept nogil


cdef inline void retention_note(Slab *slab, Part *part, char *row) noexcept nogil:
    """Give a row that was just pushed the next number.  Inline: once a row."""
    if part.retention.pushed == <uint32_t>0xFFFFFFFF:
        retention_renumber(slab, part)
    part.retention.pushed += 1
    memcpy(row + slab.push_at, &part.retention.pushed, sizeof(uint32_t))


# --- as bytes ------------------------------------------------------------------------------------

# Length of a part's Retention as bytes, a multiple of 8; 0 = it has none.
cdef uint64_t retention_bytes(const Part *part) noexcept nogil

# Writes them; returns their end.
cdef char *retention_copy(const Part *part, char *to) noexcept nogil

# Reads them; 0, -1 = no memory, -2 = malformed.  Ignores counts of another number of cells.
cdef int retention_put(Slab *slab, Part *part, const char *data, uint64_t length) noexcept nogil
