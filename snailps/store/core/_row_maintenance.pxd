# What happens to the rows of one part besides pulls and pushes: tracking, expiry, rounds.
#
#   push -> tick and version beside the row        tick too old -> row deleted
#   sums of a round -> weighted mean -> weights
#
# Each is a walk over the part's slots, in the shard's own thread like everything else; it allocates
# nothing.  Knows no marks and no clocks: the tick is whatever the caller counts.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport hash_key
from snailps.store.core._slab cimport (
    Part, Slab, holds_row, key_of, part_delete, part_drop, row_at, slot_of, weights_of,
)


cdef inline void track_push(const Slab *slab, const Part *part, char *row) noexcept nogil:
    """Notes the push that has just changed a row, as far as the table tracks it."""
    if slab.touch_at:
        memcpy(row + slab.touch_at, slab.tick, sizeof(uint32_t))
    if slab.version_at:
        memcpy(row + slab.version_at, &part.version, sizeof(uint64_t))


cdef inline void drop_rows(Slab *slab, Part *part) noexcept nogil:
    """Drops all rows of a part; its version goes on, and where there were rows they are deleted."""
    cdef uint64_t version = part.version
    if part.rows and slab.deleted != NULL:
        version += 1
        slab.deleted[part - slab.parts] = version
    if part.used:
        part_drop(slab, part)
    part.version = version              # never counts backwards: others compare with it


cdef inline void drop_if_empty(Slab *slab, Part *part) noexcept nogil:
    """Gives the memory of a part that lost its last row to the others."""
    if part.rows == 0:
        drop_rows(slab, part)


cdef inline uint64_t expire_part(Slab *slab, Part *part, uint32_t before) noexcept nogil:
    """Deletes the rows whose last push has a tick below `before`; their number."""
    cdef uint64_t deleted = 0
    cdef uint64_t key
    cdef uint32_t number, slot, touch
    cdef char *row
    for number in range(part.used):
        slot = slot_of(slab, number)
        if not holds_row(slab, part, slot):
            continue
        row = row_at(slab, part, slot)
        memcpy(&touch, row + slab.touch_at, sizeof(uint32_t))
        if touch < before:
            key = key_of(row)
            deleted += part_delete(slab, part, key, <uint32_t>hash_key(key))
    drop_if_empty(slab, part)
    return deleted


cdef inline uint64_t close_part(Slab *slab, Part *part) noexcept nogil:
    """Every row of an average table that was pushed becomes its mean, sums begin anew; rows changed.

    Not a kernel: those may divide by way of a reciprocal, and the mean of equal values shall be
    that value.
    """
    cdef uint64_t changed = 0
    cdef uint32_t number, slot, j
    cdef uint32_t dim = slab.dim
    cdef uint64_t sums_bytes = (<uint64_t>dim + 1) * sizeof(float)
    cdef char *row
    cdef float *weights
    cdef float *sums
    cdef float total
    if slab.version_at and part.rows:
        part.version += 1
    for number in range(part.used):
        slot = slot_of(slab, number)
        if not holds_row(slab, part, slot):
            continue
        row = row_at(slab, part, slot)
        weights = weights_of(row)
        sums = weights + dim
        total = sums[dim]
        if total > 0:               # else nobody pushed it, or with no weight
            for j in range(dim):
                weights[j] = sums[j] / total
            track_push(slab, part, row)
            changed += 1
        memset(sums, 0, sums_bytes)
    return changed
