# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Rows of several CSR matrices, mixed: drawn one by one from all of them.

    seed, pointers, arrays by row, arrays by entry -> shuffled -> the same, rows in another order

The loops run without the GIL.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

from snailps.abi._prefetch cimport fetch

cdef enum:
    AHEAD = 8                   # rows that are fetched before they are copied
    FETCHED = 4                 # cache lines of such a row: what follows the processor guesses

ctypedef struct Row:            # where a row is
    int64_t begin               # its first entry
    int32_t entries
    int32_t matrix
    int64_t place


cdef uint64_t draw(uint64_t *state) noexcept nogil:
    """The next number of SplitMix64."""
    cdef uint64_t x
    state[0] += 0x9E3779B97F4A7C15u
    x = state[0]
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu
    return x ^ (x >> 31)


cdef void mix(uint64_t seed, Row *rows, int64_t n) noexcept nogil:
    """Fisher and Yates' shuffle."""
    cdef int64_t i, other
    cdef Row kept
    for i in range(n - 1, 0, -1):
        other = <int64_t>(((draw(&seed) >> 32) * <uint64_t>(i + 1)) >> 32)
        kept = rows[i]
        rows[i] = rows[other]
        rows[other] = kept


cdef void copy_rows(const Row *rows, int64_t n, const uint32_t **sources, int64_t stride,
                    uint32_t *to) noexcept nogil:
    """Copies the entries of rows behind each other; matrix m has its array at sources[m * stride]."""
    cdef int64_t i, k
    cdef const Row *row
    cdef const uint32_t *begin
    for i in range(n):
        if i + AHEAD < n:
            row = rows + i + AHEAD
            begin = sources[row.matrix * stride] + row.begin
            for k in range(0, min(row.entries, 16 * FETCHED), 16):
                fetch(begin + k)
        row = rows + i
        memcpy(to, sources[row.matrix * stride] + row.begin, 4 * <size_t>row.entries)
        to += row.entries


cdef void copy_numbers(const Row *rows, int64_t n, const uint32_t **sources, int64_t stride,
                       uint32_t *to) noexcept nogil:
    """Copies the numbers of rows, one each."""
    cdef int64_t i
    for i in range(n):
        to[i] = sources[rows[i].matrix * stride][rows[i].place]


def shuffled(uint64_t seed, list ptrs not None, list by_row not None, list by_entry not None):
    """Rows of several CSR matrices in an order that is drawn, as as many matrices.

    Parameters
    ----------
    seed : int
        uint64; with the matrices it determines the order.
    ptrs : list of int64 array (rows + 1,)
        Of each matrix: row i has the entries ptr[i] to before ptr[i + 1] of its arrays.
    by_row, by_entry : list of list of array
        Of each matrix the arrays that have a number of 4 bytes for each row, and for each entry: of
        one type in all matrices.  Fewer than 2^31 entries a row.

    Returns
    -------
    ptrs, by_row, by_entry : list
        As given, but for the order; all matrices have about as many rows.
    """
    cdef int64_t n = 0, i, at, first, last, entries, matrices = len(ptrs)
    cdef int64_t of_rows, of_entries
    cdef const int64_t[::1] ptr
    cdef int64_t[::1] made
    cdef const uint32_t **sources
    cdef Row *rows
    cdef size_t address
    if matrices == 0:
        return [], [], []
    of_rows, of_entries = len(by_row[0]), len(by_entry[0])
    for one, numbers, arrays in zip(ptrs, by_row, by_entry, strict=True):
        n += len(one) - 1
        if len(numbers) != of_rows or len(arrays) != of_entries:
            raise ValueError("expected as many arrays of each matrix")
        for array in numbers:
            if len(array) != len(one) - 1 or array.itemsize != 4 or not array.flags.c_contiguous:
                raise ValueError("expected a number of 4 bytes for each row")
        for array in arrays:
            if len(array) < one[len(one) - 1] or array.itemsize != 4 or not array.flags.c_contiguous:
                raise ValueError("expected a number of 4 bytes for each entry")
    if n >= 1 << 32:
        raise ValueError(f"expected fewer than 2^32 rows, got {n}")
    rows = <Row *>malloc(max(1, n) * sizeof(Row))
    sources = <const uint32_t **>malloc(
        max(1, matrices * (of_rows + of_entries)) * sizeof(uint32_t *)
    )
    try:
        if rows == NULL or sources == NULL:
            raise MemoryError
        at = 0
        for matrix, one in enumerate(ptrs):
            for i, array in enumerate(by_row[matrix] + by_entry[matrix]):
                address = array.ctypes.data
                sources[matrix * (of_rows + of_entries) + i] = <const uint32_t *>address
            ptr = one
            for i in range(ptr.shape[0] - 1):
                rows[at].begin, rows[at].entries = ptr[i], <int32_t>(ptr[i + 1] - ptr[i])
                rows[at].matrix, rows[at].place = <int32_t>matrix, i
                at += 1
        with nogil:
            mix(seed, rows, n)
        found = [], [], []
        for matrix in range(matrices):
            first, last = n * matrix // matrices, n * (matrix + 1) // matrices
            one = np.empty(last - first + 1, np.int64)
            made, entries = one, 0
            made[0] = 0
            for i in range(first, last):
                entries += rows[i].entries
                made[i - first + 1] = entries
            numbers = [np.empty(last - first, array.dtype) for array in by_row[0]]
            arrays = [np.empty(entries, array.dtype) for array in by_entry[0]]
            for i, array in enumerate(numbers + arrays):
                address = array.ctypes.data
                with nogil:
                    if i < of_rows:
                        copy_numbers(rows + first, last - first, sources + i, of_rows + of_entries,
                                     <uint32_t *>address)
                    else:
                        copy_rows(rows + first, last - first, sources + i, of_rows + of_entries,
                                  <uint32_t *>address)
            found[0].append(one)
            found[1].append(numbers)
            found[2].append(arrays)
        return found
    finally:
        free(rows)
        free(sources)
