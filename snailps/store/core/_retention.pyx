# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Which rows a part makes and keeps: a row is made after some pushes of its key, and deleted when it is among
the least recently pushed of too many rows, or too old.

  key without a row -> counted -> enough pushes? -> its row is made
  a part as full as it may be -> its oldest sixteenth goes
  half an age of pushes since the last look -> rows without a push for an age go

A part decides by the pushes to it and nothing else, so that a standby, or a replay, that executes
the same pushes in the same order makes and keeps the same rows.  For the same reason a copy of a part
is made with its `Retention`.

Counts are a sketch of fixed size (count-min with conservative update: G. Cormode, S. Muthukrishnan,
2005; C. Estan, G. Varghese, 2002), of four cells in one cache line a key.  A count is never too low,
except that all counts are halved whenever one push for each 8 cells was counted, so that old pushes
fade (TinyLFU: G. Einziger et al., 2017).  A collision admits a key early.

    a pushed key without a row -> four cells of one line -> the least of them + 1 -> admitted?
    numbers of last pushes -> histogram, three times -> the excess-th lowest -> rows up to it deleted
    number of the last push, less the age -> rows up to it deleted

Owns counts and numbers; rows, index and memory are `_slab`'s.  Must not know tables, marks or frames.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport hash_key, mix64
from snailps.store.core._slab cimport (
    CELLS_MAX, Part, Retention, Slab, holds_row, key_of, part_delete, part_retention, retention_calls, row_at,
    slot_of, tag_of,
)

cdef enum:
    LINE_CELLS = 64
    ROWS_A_CELL = 8             # cells for each push that is counted until counts are halved
    BIN_BITS = 11               # 3 x 11 bits hold a number
    BINS = 1 << 11
    EVICTED_SHIFT = 4           # a sixteenth at a time

cdef packed struct RetentionHead:       # of a Retention as bytes; its cells follow
    uint32_t pushed
    uint32_t counted
    uint32_t cells
    uint32_t swept


# --- admission -----------------------------------------------------------------------------------

cdef inline uint8_t *_cells(Part *part) noexcept nogil:
    return <uint8_t *>(part.retention + 1)


cdef void _halve(Part *part) noexcept nogil:
    cdef uint8_t *cells = _cells(part)
    cdef uint32_t i
    for i in range(part.retention.cells):
        cells[i] >>= 1
    part.retention.counted = 0


cdef bint _admits(Slab *slab, Part *part, uint64_t key) noexcept nogil:
    cdef Retention *retention = part.retention
    cdef uint64_t bits
    cdef uint8_t *line
    cdef uint8_t least = 255
    cdef uint32_t i, place
    if slab.admit_after < 2:
        return True
    bits = mix64(hash_key(key))         # the hash itself has chosen the part
    line = _cells(part) + ((bits >> 32) * (retention.cells // LINE_CELLS) >> 32) * LINE_CELLS
    for i in range(4):
        least = min(least, line[bits >> 6 * i & 63])
    if least + 1 < <int>slab.admit_after:
        for i in range(4):
            place = bits >> 6 * i & 63
            if line[place] == least:
                line[place] = least + 1
        retention.counted += 1
        if retention.counted >= max(retention.cells // ROWS_A_CELL, <uint32_t>1):
            _halve(part)
        slab.refused += 1
        return False
    return True


# --- the limit -----------------------------------------------------------------------------------

cdef inline uint32_t _number_of(const Slab *slab, const char *row) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, row + slab.push_at, sizeof(uint32_t))
    return number


cdef uint32_t _lowest(const Slab *slab, const Part *part, uint32_t wanted) noexcept nogil:
    """The `wanted`-th lowest number of a last push, from 1 on."""
    cdef uint32_t bins[BINS]
    cdef uint32_t known = 0             # the upper bits of the answer
    cdef uint32_t shift = 3 * BIN_BITS
    cdef uint32_t i, slot, number, b
    while shift:
        memset(bins, 0, sizeof(bins))
        for i in range(part.used):
            slot = slot_of(slab, i)
            if holds_row(slab, part, slot):
                number = _number_of(slab, row_at(slab, part, slot))
                if <uint64_t>number >> shift == <uint64_t>known >> shift:
                    bins[number >> (shift - BIN_BITS) & (BINS - 1)] += 1
        shift -= BIN_BITS
        b = 0
        while bins[b] < wanted:
            wanted -= bins[b]
            b += 1
        known |= b << shift
    return known


cdef uint32_t _delete_upto(Slab *slab, Part *part, uint32_t last) noexcept nogil:
    """Delete the rows with numbers up to `last`; their count."""
    cdef uint32_t before = part.rows
    cdef uint32_t i, slot
    cdef uint64_t key
    cdef bint whole = part.rows == part.used    # no gaps; deletions leave later slots as they are
    for i in range(part.used):
        slot = slot_of(slab, i)
        if (whole or holds_row(slab, part, slot)) \
                and _number_of(slab, row_at(slab, part, slot)) <= last:
            key = key_of(row_at(slab, part, slot))
            part_delete(slab, part, key, tag_of(key))
    return before - part.rows


cdef uint32_t _make_room(Slab *slab, Part *part) noexcept nogil:
    cdef uint32_t limit = slab.rows_max
    cdef uint32_t last, gone
    if limit == 0 or part.rows < limit:
        return 0
    last = _lowest(slab, part, part.rows - limit + max(limit >> EVICTED_SHIFT, <uint32_t>1))
    gone = _delete_upto(slab, part, last)
    slab.evicted += gone
    return gone


cdef uint32_t _expire(Slab *slab, Part *part) noexcept nogil:
    cdef Retention *retention = part.retention
    cdef uint32_t gone
    if retention.pushed - retention.swept < max(slab.age_max >> 1, <uint32_t>1):
        return 0
    retention.swept = retention.pushed
    if retention.pushed <= slab.age_max:
        return 0
    gone = _delete_upto(slab, part, retention.pushed - slab.age_max)
    slab.expired += gone
    return gone


cdef void _renumber(Slab *slab, Part *part) noexcept nogil:
    cdef uint32_t i, slot, number
    for i in range(part.used):
        slot = slot_of(slab, i)
        if holds_row(slab, part, slot):
            number = _number_of(slab, row_at(slab, part, slot)) >> 1
            memcpy(row_at(slab, part, slot) + slab.push_at, &number, sizeof(uint32_t))
    part.retention.pushed >>= 1
    part.retention.swept >>= 1


# --- as bytes ------------------------------------------------------------------------------------

cdef uint64_t _bytes(const Part *part) noexcept nogil:
    return sizeof(RetentionHead) + part.retention.cells


cdef char *_copy(const Part *part, char *to) noexcept nogil:
    cdef RetentionHead head
    head.pushed = part.retention.pushed
    head.counted = part.retention.counted
    head.cells = part.retention.cells
    head.swept = part.retention.swept
    memcpy(to, &head, sizeof(head))
    memcpy(to + sizeof(head), part.retention + 1, head.cells)
    return to + sizeof(head) + head.cells


cdef int _put(Slab *slab, Part *part, const char *data, uint64_t length) noexcept nogil:
    cdef RetentionHead head
    if length < sizeof(head):
        return -2
    memcpy(&head, data, sizeof(head))
    if head.swept > head.pushed or head.cells > <uint32_t>CELLS_MAX or length != sizeof(head) + head.cells:
        return -2
    if part_retention(slab, part) == NULL:
        return -1
    part.retention.pushed = max(part.retention.pushed, head.pushed)
    part.retention.swept = head.swept
    if head.cells == part.retention.cells:
        part.retention.counted = head.counted
        memcpy(part.retention + 1, data + sizeof(head), head.cells)
    return 0


retention_calls.admits, retention_calls.make_room = _admits, _make_room
retention_calls.expire, retention_calls.renumber = _expire, _renumber
retention_calls.bytes, retention_calls.copy, retention_calls.put = _bytes, _copy, _put
