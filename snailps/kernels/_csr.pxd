# cython: cdivision=True
# Products of a sparse matrix with dense rows, and of its transpose: a first layer and its gradient.
#
#   CSR (examples x columns), rows of the columns -> Z (examples x dim)                csr_times_rows
#   the same CSR, dL/dZ -> gradients (columns x dim)                                   csr_gradient
#
# Both are weighted sums of rows (_csr.h): of a table's rows by example, of dL/dZ's by column.  Rows
# are visited at random, so each is fetched some terms ahead.  Loops of the worker; a shard sums
# rows where they lie in its slabs, by RowOps.sum.  Nothing here allocates.
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memset

cdef extern from "kernels/_csr.h" nogil:
    void snail_csr_sum(uint32_t n, const float *const *rows, const float *coef, float *out,
                       uint32_t dim) noexcept

cdef extern from *:
    """
    #define snail_csr_fetch(address) __builtin_prefetch((const void *)(address), 0, 3)
    """
    void csr_fetch "snail_csr_fetch"(const void *address) noexcept nogil

cdef enum:
    C_TERMS = 16                # summed at a time: the next ones are fetched meanwhile
    C_TERM_BYTES = 1024         # fetched of a row; of longer ones the processor follows by itself


cdef struct Csr:
    int64_t n                   # examples
    int64_t columns
    int64_t dim
    const int64_t *ptr          # n + 1
    const int32_t *rows         # column of each entry
    const float *values


cdef inline void fetch_term(const float *row, int64_t dim) noexcept nogil:
    cdef int64_t at
    for at in range(0, min(dim, <int64_t>(C_TERM_BYTES // 4)), 16):
        csr_fetch(row + at)


cdef inline void csr_times_rows(const Csr *x, const float *table, int64_t stride, float *out,
                                int64_t first, int64_t last) noexcept nogil:
    """Writes rows first..last-1 of Z.  Threads may share the rest."""
    cdef const float *rows[C_TERMS]
    cdef int64_t i, at, ahead, k, m
    cdef int64_t stop = x.ptr[last]
    for i in range(first, last):
        memset(out + i * x.dim, 0, x.dim * sizeof(float))
        at = x.ptr[i]
        while at < x.ptr[i + 1]:
            m = min(x.ptr[i + 1] - at, <int64_t>C_TERMS)
            for k in range(m):
                rows[k] = table + x.rows[at + k] * stride
            ahead = min(at + m + C_TERMS, stop)
            for k in range(at + m, ahead):
                fetch_term(table + x.rows[k] * stride, x.dim)
            snail_csr_sum(<uint32_t>m, rows, x.values + at, out + i * x.dim, <uint32_t>x.dim)
            at += m


cdef inline void csr_columns(const Csr *x, int64_t *start, int32_t *examples,
                             float *values) noexcept nogil:
    """The transpose: start (columns + 2, left as columns + 1 edges), example and value by column.

    A counting sort; entries of a column keep the order of their examples.
    """
    cdef int64_t i, k, to
    memset(start, 0, (x.columns + 2) * sizeof(int64_t))
    for k in range(x.ptr[0], x.ptr[x.n]):
        start[x.rows[k] + 2] += 1
    for i in range(x.columns):
        start[i + 2] += start[i + 1]
    for i in range(x.n):
        for k in range(x.ptr[i], x.ptr[i + 1]):
            to = start[x.rows[k] + 1]
            start[x.rows[k] + 1] += 1
            examples[to] = <int32_t>i
            values[to] = x.values[k]


cdef inline void csr_gradient(const int64_t *start, const int32_t *examples, const float *values,
                              const float *dz, int64_t dim, float *out, int64_t first,
                              int64_t last) noexcept nogil:
    """Writes rows first..last-1 of the gradient: of column j, sum of value * dz[example]."""
    cdef const float *rows[C_TERMS]
    cdef int64_t j, at, k, m
    for j in range(first, last):
        memset(out + j * dim, 0, dim * sizeof(float))
        at = start[j]
        while at < start[j + 1]:
            m = min(start[j + 1] - at, <int64_t>C_TERMS)
            for k in range(m):
                rows[k] = dz + examples[at + k] * dim
            snail_csr_sum(<uint32_t>m, rows, values + at, out + j * dim, <uint32_t>dim)
            at += m
