# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Reorders the rows of a CSR matrix randomly; the loops run without the GIL.

    seed, rows -> drawn_order -> order
    pointers, order -> pointers_in_order;  entries, pointers, order -> entries_in_order
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from snailps.abi._key_hash cimport GOLDEN, hash_key
from snailps.abi._prefetch cimport fetch

cdef enum:
    AHEAD = 8                   # a row is prefetched so many rows before it is copied
    FETCHED = 256               # bytes of it; the hardware prefetches what follows


cdef void mix(uint64_t seed, uint32_t *order, int64_t n) noexcept nogil:
    """The Fisher-Yates shuffle of 0 to n - 1, with draws of SplitMix64."""
    cdef int64_t i
    cdef uint64_t other
    for i in range(n):
        other = ((hash_key(seed + <uint64_t>i * GOLDEN) >> 32) * <uint64_t>(i + 1)) >> 32
        order[i] = order[other]
        order[other] = <uint32_t>i


cdef void copy_rows(const uint32_t *order, int64_t n, const int64_t *ptr, const char *values,
                    int64_t size, char *to) noexcept nogil:
    """Copy the entries, `size` bytes each, of rows in this order."""
    cdef int64_t i, k, begin, end
    for i in range(n):
        if i + AHEAD < n:
            begin, end = size * ptr[order[i + AHEAD]], size * ptr[order[i + AHEAD] + 1]
            for k in range(begin, min(end, begin + FETCHED), 64):
                fetch(values + k)
        begin, end = size * ptr[order[i]], size * ptr[order[i] + 1]
        memcpy(to, values + begin, <size_t>(end - begin))
        to += end - begin


def drawn_order(uint64_t seed, int64_t n) -> NDArray[np.uint32]:
    """A permutation of 0 to n - 1, uint32, that `seed` (uint64) determines."""
    cdef uint32_t[::1] order
    if not 0 <= n < 1 << 32:
        raise ValueError(f"expected fewer than 2^32 rows, got {n}")
    drawn = np.empty(n, np.uint32)
    order = drawn
    with nogil:
        mix(seed, &order[0], n)
    return drawn


cdef object check_rows(const int64_t[::1] ptr, const uint32_t[::1] order):
    """ValueError: the order has rows that the pointers do not have."""
    cdef int64_t i, n = ptr.shape[0] - 1
    cdef bint right = True
    for i in range(order.shape[0]):
        right &= order[i] < n
    if not right:
        raise ValueError(f"expected numbers of {n} rows")


def pointers_in_order(const int64_t[::1] ptr not None,
                      const uint32_t[::1] order not None) -> NDArray[np.int64]:
    """Pointers of rows of a CSR matrix in another order; the first is 0."""
    cdef int64_t i, n = order.shape[0]
    cdef int64_t[::1] behind
    check_rows(ptr, order)
    found = np.empty(n + 1, np.int64)
    behind = found
    with nogil:
        behind[0] = 0
        for i in range(n):
            behind[i + 1] = behind[i] + ptr[order[i] + 1] - ptr[order[i]]
    return found


def entries_in_order(array not None: NDArray[Any], const int64_t[::1] ptr not None,
                     const uint32_t[::1] order not None) -> NDArray[Any]:
    """The entries of rows of a CSR matrix in another order.

    Row i has ``array[ptr[i] : ptr[i + 1]]``; `ptr` must not fall.
    """
    cdef int64_t i, n = order.shape[0], size = array.itemsize, entries = 0
    # Not of `char`, which has no sign on arm64.
    cdef const uint8_t[::1] given = array.view(np.uint8)
    cdef uint8_t[::1] made
    check_rows(ptr, order)
    if ptr[0] < 0 or given.shape[0] // size < ptr[ptr.shape[0] - 1]:     # a product may wrap
        raise ValueError(f"expected {ptr.shape[0] - 1} rows within {len(array)} entries")
    for i in range(n):
        entries += ptr[order[i] + 1] - ptr[order[i]]
    found = np.empty(entries, array.dtype)
    if entries:
        made = found.view(np.uint8)
        with nogil:
            copy_rows(&order[0], n, &ptr[0], <const char *>&given[0], size, <char *>&made[0])
    return found
