# Memory that will be read or written soon, brought into the cache: rows are found by key, so the
# processor cannot guess what comes next.
from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #define snail_fetch(address) __builtin_prefetch((const void *)(address), 0, 3)
    #define snail_fetch_to_write(address) __builtin_prefetch((const void *)(address), 1, 3)
    #define snail_fetch_far(address) __builtin_prefetch((const void *)(address), 0, 2)
    """
    void fetch "snail_fetch"(const void *address) noexcept nogil
    void fetch_to_write "snail_fetch_to_write"(const void *address) noexcept nogil
    void fetch_far "snail_fetch_far"(const void *address) noexcept nogil

cdef enum:                      # bytes of a row; the hardware prefetcher follows the rest
    FETCH_AT_SHARD = 2048
    FETCH_AT_CLIENT = 1024


cdef inline void fetch_row(const char *row, uint32_t row_bytes, uint32_t limit) noexcept nogil:
    """A row of at least one byte, up to `limit` bytes of it."""
    cdef uint32_t at
    cdef uint32_t end = min(row_bytes, limit)
    for at in range(0, end, 64):
        fetch(row + at)
    fetch(row + end - 1)


cdef inline void fetch_row_to_write(const char *row, uint32_t row_bytes,
                                    uint32_t limit) noexcept nogil:
    cdef uint32_t at
    cdef uint32_t end = min(row_bytes, limit)
    for at in range(0, end, 64):
        fetch_to_write(row + at)
    fetch_to_write(row + end - 1)


cdef inline void fetch_row_far(const char *row, uint32_t row_bytes, uint32_t limit) noexcept nogil:
    """Into the second-level cache, to be read or written: many rows ahead.

    The first level can fetch some 16 lines at a time.  A prefetch beyond that would stall, and so
    would the instructions after it.
    """
    cdef uint32_t at
    cdef uint32_t end = min(row_bytes, limit)
    for at in range(0, end, 64):
        fetch_far(row + at)
    fetch_far(row + end - 1)
