# Lookups of up to 32 keys at once, in three steps.
#
#   hash the keys, fetch index lines -> find tags, fetch rows -> check the keys, copy or apply
#
# Each step fetches the memory that the next one reads, so that the cache misses of a batch overlap
# instead of adding up.  No step allocates or changes a row.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.abi._key_hash cimport hash_key
from snailps.abi._prefetch cimport FETCH_AT_SHARD, fetch, fetch_row
from snailps.store.core._slab cimport (
    Bucket, Part, Slab, first_row, key_of, lowest_bit, match8, part_find, row_at, weights_of,
)

cdef enum:
    BATCH = 32                  # more misses than a core keeps in flight
    BATCH_BYTES = 12 << 10      # of rows fetched at once: they and the values must fit into L1
    BATCH_MIN = 8

cdef struct Batch:
    Part *parts[BATCH]
    uint32_t tags[BATCH]
    char *rows[BATCH]           # a candidate whose tag fits, its key not yet looked at; or NULL


cdef inline uint32_t batch_rows(uint32_t row_bytes) noexcept nogil:
    """Rows to look up at once: 32 narrow ones; 8 with two floats of state beside each weight,
    which at dim 100 takes a push from 168 to 144 ns a row."""
    return max(min(BATCH_BYTES // row_bytes, <uint32_t>BATCH), <uint32_t>BATCH_MIN)


cdef inline void hash_batch(Batch *batch, Part *part, const uint64_t *keys,
                             uint32_t n) noexcept nogil:
    """First step, when all keys are of one fragment."""
    cdef uint32_t i, tag
    cdef const Bucket *buckets = part.buckets
    cdef uint32_t mask = part.mask
    for i in range(n):
        tag = <uint32_t>hash_key(keys[i])
        batch.parts[i] = part
        batch.tags[i] = tag
        fetch(&buckets[tag & mask])


cdef inline void find_rows(Batch *batch, const Slab *slab, uint32_t n,
                            uint32_t row_bytes) noexcept nogil:
    """Second step: the first row whose tag fits.  Only its line of the index is read."""
    cdef uint32_t i, found, slot
    cdef const Bucket *bucket
    cdef Part *part
    cdef char *row
    for i in range(n):
        part = batch.parts[i]
        bucket = &part.buckets[batch.tags[i] & part.mask]
        found = match8(bucket.tags, batch.tags[i])
        slot = bucket.slots[lowest_bit(found)] if found else 0
        row = NULL
        if slot:
            row = row_at(slab, part, slot - 1)
            fetch_row(row, row_bytes, FETCH_AT_SHARD)
        batch.rows[i] = row


cdef inline void _copy_floats(float *out, const float *weights, uint32_t n) noexcept nogil:
    cdef uint32_t i
    if n <= 8:                  # a call of memcpy would cost more than the copy
        for i in range(n):
            out[i] = weights[i]
    else:
        memcpy(out, weights, n * sizeof(float))


cdef inline void copy_rows(Batch *batch, const Slab *slab, const uint64_t *keys, uint32_t n,
                            float *out, uint32_t floats) noexcept nogil:
    """Third step of a pull: the weights (floats = dim), or weights and state of each row."""
    cdef uint32_t i
    cdef char *row
    for i in range(n):
        row = batch.rows[i]
        if row == NULL or key_of(row) != keys[i]:
            row = part_find(slab, batch.parts[i], keys[i], batch.tags[i])
        if row != NULL:
            _copy_floats(out, weights_of(row), floats)
        else:
            first_row(slab, keys[i], out, floats)
        out += floats
