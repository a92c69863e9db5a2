# Marks of one fragment: the highest push applied, per incarnation.
#
#   incarnation -> hash -> place -> seq
#
# A small open-addressing table of its own: a fragment knows a few incarnations at a time, but over
# a long job with many workers thousands.  Knows no rows.  All zero is an empty table.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from snailps.abi._key_hash cimport mix64

cdef enum:
    MARKS_MIN = 4

cdef struct Mark:
    uint64_t incarnation
    uint64_t seq                # 0 = an empty place: sequence numbers start at 1

cdef struct Marks:
    Mark *places                # a power of two of them, or NULL
    uint32_t cap
    uint32_t num


cdef inline Mark *_place_of(Marks *marks, uint64_t incarnation) noexcept nogil:
    """The incarnation's mark, or the empty place for it; there always is one."""
    cdef uint32_t position = <uint32_t>mix64(incarnation) & (marks.cap - 1)
    while (marks.places[position].seq != 0
           and marks.places[position].incarnation != incarnation):
        position = (position + 1) & (marks.cap - 1)
    return &marks.places[position]


cdef inline int _grow_marks(Marks *marks) noexcept nogil:
    cdef Mark *old = marks.places
    cdef uint32_t old_cap = marks.cap
    cdef uint32_t cap = 2 * old_cap if old_cap else MARKS_MIN
    cdef uint32_t i
    cdef Mark *places = <Mark *>calloc(cap, sizeof(Mark))
    if places == NULL:
        return -1
    marks.places = places
    marks.cap = cap
    for i in range(old_cap):
        if old[i].seq:
            _place_of(marks, old[i].incarnation)[0] = old[i]
    free(old)
    return 0


cdef inline uint64_t marks_get(Marks *marks, uint64_t incarnation) noexcept nogil:
    """The incarnation's seq; 0 = none."""
    return _place_of(marks, incarnation).seq if marks.num else 0


cdef inline int marks_raise(Marks *marks, uint64_t incarnation, uint64_t seq) noexcept nogil:
    """Sets the seq unless it is at least that already.  0, or -1 = no memory."""
    cdef Mark *mark
    if seq <= marks_get(marks, incarnation):
        return 0
    if 4 * (marks.num + 1) > 3 * marks.cap and _grow_marks(marks) < 0:
        return -1
    mark = _place_of(marks, incarnation)
    if mark.seq == 0:
        marks.num += 1
    mark.incarnation = incarnation
    mark.seq = seq
    return 0


cdef inline uint64_t marks_bytes(const Marks *marks) noexcept nogil:
    return marks.cap * sizeof(Mark)


cdef inline void marks_drop(Marks *marks) noexcept nogil:
    free(marks.places)
    marks.places = NULL
    marks.cap = 0
    marks.num = 0
