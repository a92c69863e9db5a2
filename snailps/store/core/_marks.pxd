# Marks of one fragment: the highest push applied, per incarnation.
#
#   incarnation -> hash -> place -> seq
#
# A small open-addressing table of its own: a fragment knows a few incarnations at a time, but over
# a long job with many workers thousands.  All zero is an empty table.
from libc.stdint cimport uint32_t, uint64_t

cdef struct Mark:
    uint64_t incarnation
    uint64_t seq                # 0 = an empty place: sequence numbers start at 1

cdef struct Marks:
    Mark *places                # a power of two of them, or NULL
    uint32_t cap
    uint32_t num

# The incarnation's seq; 0 = none.
cdef uint64_t marks_get(const Marks *marks, uint64_t incarnation) noexcept nogil

# Sets the seq unless it is at least that already.  0, or -1 = no memory.
cdef int marks_raise(Marks *marks, uint64_t incarnation, uint64_t seq) noexcept nogil

# Writes all marks to `to`, one after the other; where they end.
cdef char *marks_copy(const Marks *marks, char *to) noexcept nogil

cdef void marks_drop(Marks *marks) noexcept nogil
