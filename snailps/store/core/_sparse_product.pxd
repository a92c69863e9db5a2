# Products with rows where they lie: a sparse matrix times the rows of a table.
#
#   keys and values by example -> index -> rows (or first values) -> sums, one an example
#
# Lookups run in batches, in three steps as those of a pull; the sum is the kernel's (RowOps.sum).
# Changes nothing: a key that was never pushed counts as its seeded first value.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from snailps.store.core._lookup cimport BATCH, BATCH_BYTES, BATCH_MIN, Batch, batch_rows, find_rows
from snailps.store.core._slab cimport KEY_BYTES, Slab, first_row, key_of, part_find, weights_of
from snailps.store.tables cimport Shard, Table, _hash_mixed_batch


cdef struct Sums:                   # where a walk over entries is
    const uint32_t *counts          # entries of each example
    uint32_t left                   # ... of the present one, not summed yet
    float *out                      # its sum


cdef inline void sum_rows(Batch *batch, const Slab *slab, const uint64_t *keys,
                          const float *values, uint32_t n, float *first, Sums *sums) noexcept nogil:
    """Third step: adds the rows of a batch to the sums of their examples."""
    cdef const float *rows[BATCH]
    cdef uint32_t i, run
    cdef char *row
    for i in range(n):
        row = batch.rows[i]
        if row == NULL or key_of(row) != keys[i]:
            row = part_find(slab, batch.parts[i], keys[i], batch.tags[i])
        if row != NULL:
            rows[i] = weights_of(row)
        else:
            first_row(slab, keys[i], first + i * <uint64_t>slab.dim, slab.dim)
            rows[i] = first + i * <uint64_t>slab.dim
    i = 0
    while i < n:
        while sums.left == 0:
            sums.counts += 1
            sums.out += slab.dim
            sums.left = sums.counts[0]
        run = min(sums.left, n - i)
        slab.ops.sum(run, rows + i, values + i, sums.out, slab.dim)
        sums.left -= run
        i += run


# out[e] = sum over the entries of example e of value * row, dim floats; `counts` are the entries of
# each of the examples, n in all; `values` NULL = all are 1.  All keys are of fragments that this
# shard owns.  `first` has room for BATCH_BYTES of rows, or BATCH_MIN rows where those are longer.
cdef inline void store_sum(Shard *shard, Table *table, const uint64_t *keys, const float *values,
                           uint32_t n, const uint32_t *counts, uint32_t examples, float *out,
                           float *first) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef uint32_t row_bytes = KEY_BYTES + slab.dim * <uint32_t>sizeof(float)
    cdef uint32_t most = batch_rows(row_bytes)
    cdef uint32_t hashed = 0        # keys through the first step of a lookup,
    cdef uint32_t found = 0         # ... the second,
    cdef uint32_t done = 0          # ... the third
    cdef uint32_t turn = 0
    cdef uint32_t m
    cdef float ones[BATCH]
    cdef const float *factors = values
    cdef Batch[3] batches
    cdef Sums sums
    memset(out, 0, <uint64_t>examples * slab.dim * sizeof(float))
    if n == 0:
        return
    for m in range(BATCH):
        ones[m] = 1
    if values == NULL:
        factors = &ones[0]
    sums.counts = counts
    sums.left = counts[0]
    sums.out = out
    while done < n:
        if hashed < n:
            m = min(n - hashed, most)
            _hash_mixed_batch(&batches[turn % 3], shard, slab, keys + hashed, m)
            hashed += m
        if turn >= 1 and found < n:
            m = min(n - found, most)
            find_rows(&batches[(turn - 1) % 3], slab, m, row_bytes)
            found += m
        if turn >= 2:
            m = min(n - done, most)
            sum_rows(&batches[(turn - 2) % 3], slab, keys + done, factors, m, first, &sums)
            done += m
            if values != NULL:
                factors += m
        turn += 1
