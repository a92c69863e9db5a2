# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Gradients of rows from gradients of lookups and bags.

    dL/d(bag) (m, dim), places of each bag's rows -> add_to_rows -> dL/d(row) (rows, dim)

A loop of our own, because PyTorch's backward of a lookup makes a tensor operation, or a BLAS call, for
each id: ten times the work for rows of 16 floats.  Must not know what ids and rows mean.
"""
from libc.stdint cimport int32_t, int64_t

from snailps.abi._prefetch cimport fetch_to_write

cdef enum:
    AHEAD = 8                   # rows that are fetched before they are needed


def add_to_rows(const float[:, ::1] gradient not None, const int32_t[::1] places not None,
                float[:, ::1] rows not None, const int64_t[::1] offsets=None,
                const float[::1] weights=None) -> None:
    """Add the gradient of each of m bags to the rows (u, dim) of which it consists.

    `places` (n,) has the row of each entry; a place outside 0..u-1 (padding) is ignored.  `offsets` (m,) is
    the first entry of each bag, ascending from 0; None: entry i is bag i.  `weights` (n,) are factors of
    entries.  Entries are added in order, by one thread, so the sums always have the same bits.
    """
    cdef int64_t m = gradient.shape[0], n = places.shape[0], bags = m, i, begin, stop, before = 0
    cdef int64_t b, dim = rows.shape[1], count = rows.shape[0]
    if gradient.shape[1] != dim:
        raise ValueError(f"expected gradients of {dim} floats, got {gradient.shape[1]}")
    if offsets is None and m != n:
        raise ValueError(f"expected a gradient for each of {n} entries, got {m}")
    if weights is not None and weights.shape[0] != n:
        raise ValueError(f"expected a weight for each of {n} entries, got {weights.shape[0]}")
    if offsets is not None:
        if offsets.shape[0] != m:
            raise ValueError(f"expected a gradient for each of {offsets.shape[0]} bags, got {m}")
        for i in range(m):
            if offsets[i] < before or offsets[i] > n:
                raise ValueError(f"offsets must ascend from 0 to {n}: got {offsets[i]} at {i}")
            before = offsets[i]
    if m == 0 or n == 0 or count == 0:
        return
    cdef const float *factors = NULL
    if weights is not None:
        factors = &weights[0]
    with nogil:
        if offsets is None:
            add_entries(&gradient[0, 0], 0, n, 0, dim, &places[0], n, factors, &rows[0, 0], count)
        else:
            for b in range(bags):
                begin = offsets[b]
                stop = offsets[b + 1] if b + 1 < bags else n
                add_entries(&gradient[b, 0], begin, stop, 1, dim, &places[0], n, factors,
                            &rows[0, 0], count)


cdef void add_entries(const float *gradient, int64_t begin, int64_t stop, bint one, int64_t dim,
                      const int32_t *places, int64_t n, const float *factors, float *rows,
                      int64_t count) noexcept nogil:
    """Add entries begin..stop-1, which share one `gradient`, or each have a row of it."""
    cdef int64_t i, j
    cdef const float *value = gradient
    cdef float *row
    cdef float factor
    for i in range(begin, stop):
        if i + AHEAD < n and <int64_t><unsigned int>places[i + AHEAD] < count:
            fetch_to_write(&rows[places[i + AHEAD] * dim])
        if <int64_t><unsigned int>places[i] >= count:
            continue
        if not one:
            value = gradient + i * dim
        row = rows + places[i] * dim
        if factors == NULL:
            for j in range(dim):
                row[j] += value[j]
        else:
            factor = factors[i]
            for j in range(dim):
                row[j] += factor * value[j]
