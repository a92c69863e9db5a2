# Incarnations whose frames are refused, as spans of numbers.
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    FENCED_MAX = 1 << 18            # spans that a shard can keep: 4 MiB in a BEGIN

cdef struct Span:
    uint64_t first
    uint64_t last

cdef struct Fences:
    Span *spans                     # ascending; between two of them is at least one number that is not fenced
    uint32_t num
    uint32_t cap

# Number of spans that end before this incarnation.
cdef inline uint32_t fences_before(const Fences *fences, uint64_t incarnation) noexcept nogil:
    cdef uint32_t low = 0
    cdef uint32_t high = fences.num
    cdef uint32_t middle
    while low < high:
        middle = (low + high) // 2
        if fences.spans[middle].last < incarnation:
            low = middle + 1
        else:
            high = middle
    return low

# Whether the master gave this incarnation up: none of its frames is served.
cdef inline bint fences_has(const Fences *fences, uint64_t incarnation) noexcept nogil:
    cdef uint32_t i = fences_before(fences, incarnation)
    return i < fences.num and fences.spans[i].first <= incarnation

# Gets memory for one more span, which the next `fences_add` then does not lack.  0, or -1 = no memory.
cdef int fences_room(Fences *fences) noexcept nogil
# Fences `first` to `last`, after `fences_room`; spans that touch become one.
cdef void fences_add(Fences *fences, uint64_t first, uint64_t last) noexcept nogil
