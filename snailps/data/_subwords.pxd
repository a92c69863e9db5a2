# What other loops over text take from _subwords.pyx, by their C names.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    /* x % divisor by its inverse, 2^64 / divisor: the quotient is at most two too small. */
    static inline uint64_t snail_rest_of(uint64_t x, uint64_t divisor, uint64_t inverse) {
        uint64_t rest = x - (uint64_t)((unsigned __int128)x * inverse >> 64) * divisor;
        while (rest >= divisor) rest -= divisor;
        return rest;
    }
    """
    uint64_t rest_of "snail_rest_of"(uint64_t x, uint64_t divisor, uint64_t inverse) noexcept nogil

# fastText's hash of any bytes.
cdef uint32_t fnv_hash(const uint8_t *text, Py_ssize_t length) noexcept nogil

# Number of n-grams of a word; their ids, from `first` on, go to `out` unless it is NULL.
cdef int64_t bag_of(const uint8_t *word, Py_ssize_t length, int minn, int maxn, uint32_t bucket,
                    int32_t first, int32_t *out) noexcept nogil
