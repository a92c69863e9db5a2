# What other loops over text take from _subwords.pyx, by their C names.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

# fastText's hash of any bytes.
cdef uint32_t fnv_hash(const uint8_t *text, Py_ssize_t length) noexcept nogil

# Number of n-grams of a word; their ids, from `first` on, go to `out` unless it is NULL.
cdef int64_t bag_of(const uint8_t *word, Py_ssize_t length, int minn, int maxn, uint32_t bucket,
                    int32_t first, int32_t *out) noexcept nogil
