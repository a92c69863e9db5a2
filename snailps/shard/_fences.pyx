# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Incarnations that the master gave up, as spans of numbers.

Processes come and go for as long as a cluster runs, and no fence is ever lifted.  Numbers are given in
sequence, so what is gone lies side by side: there are as many spans as gaps, which are the processes that
are there, however many there were.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove


cdef int fences_room(Fences *fences) noexcept nogil:
    cdef uint32_t cap = 2 * fences.cap if fences.cap else 4
    cdef Span *spans
    if fences.num < fences.cap:
        return 0
    spans = <Span *>realloc(fences.spans, cap * sizeof(Span))
    if spans == NULL:
        return -1
    fences.spans = spans
    fences.cap = cap
    return 0


cdef void fences_add(Fences *fences, uint64_t first, uint64_t last) noexcept nogil:
    # The span before it is joined, too, if it ends at `first` - 1.
    cdef uint32_t start = fences_before(fences, first - 1)
    cdef uint32_t end = start
    while end < fences.num and fences.spans[end].first <= last + 1:
        first = min(first, fences.spans[end].first)
        last = max(last, fences.spans[end].last)
        end += 1
    memmove(&fences.spans[start + 1], &fences.spans[end], (fences.num - end) * sizeof(Span))
    fences.num = fences.num + 1 - (end - start)
    fences.spans[start].first = first
    fences.spans[start].last = last
