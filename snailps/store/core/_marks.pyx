# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Marks of one fragment: which pushes of which incarnation have been applied.

    incarnation -> hash -> place -> highest seq applied

It must not know rows, fragments or what an incarnation is.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from snailps.abi._key_hash cimport mix64

cdef enum:
    MARKS_MIN = 4


cdef inline Mark *_place_of(const Marks *marks, uint64_t incarnation) noexcept nogil:
    """The incarnation's mark, or the empty place for it; there always is one."""
    cdef uint32_t position = <uint32_t>mix64(incarnation) & (marks.cap - 1)
    while (marks.places[position].seq != 0
           and marks.places[position].incarnation != incarnation):
        position = (position + 1) & (marks.cap - 1)
    return &marks.places[position]


cdef int _grow(Marks *marks) noexcept nogil:
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


cdef uint64_t marks_get(const Marks *marks, uint64_t incarnation) noexcept nogil:
    return _place_of(marks, incarnation).seq if marks.num else 0


cdef int marks_raise(Marks *marks, uint64_t incarnation, uint64_t seq) noexcept nogil:
    cdef Mark *mark
    if seq <= marks_get(marks, incarnation):
        return 0
    if 4 * (marks.num + 1) > 3 * marks.cap and _grow(marks) < 0:
        return -1
    mark = _place_of(marks, incarnation)
    if mark.seq == 0:
        marks.num += 1
    mark.incarnation = incarnation
    mark.seq = seq
    return 0


cdef char *marks_copy(const Marks *marks, char *to) noexcept nogil:
    cdef uint32_t i
    for i in range(marks.cap):
        if marks.places[i].seq:
            memcpy(to, &marks.places[i], sizeof(Mark))
            to += sizeof(Mark)
    return to


cdef void marks_drop(Marks *marks) noexcept nogil:
    free(marks.places)
    marks.places = NULL
    marks.cap = 0
    marks.num = 0
