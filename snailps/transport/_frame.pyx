# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Parts of bodies that both ends of the data plane write or read: narrow keys, refusals.

    keys -> smallest, bytes that the others need beyond it -> base, narrow keys -> keys
    code, words, numbers -> body of an ERROR

The layout is in _frame.pxd.  Keys keep their order.  A difference from the smallest key takes a byte more
than a difference between neighbours would in sorted keys, but nothing has to be sorted.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

cdef enum:
    NARROW_KEY_MAX = 4              # wider ones would save less than a reader's copy costs


cdef uint32_t key_bytes(const uint64_t *keys, uint32_t n, uint64_t *base) noexcept nogil:
    cdef uint64_t low = <uint64_t>0xFFFFFFFFFFFFFFFF
    cdef uint64_t high = 0
    cdef uint32_t i
    cdef uint32_t wanted = 1
    if n < 4:
        return 0
    for i in range(n):
        low = min(low, keys[i])
        high = max(high, keys[i])
        if not i & 15 and (high - low) >> (8 * NARROW_KEY_MAX):     # if keys are hashes, the first ones show it
            return 0
    base[0] = low
    while wanted <= NARROW_KEY_MAX and (high - low) >> (8 * wanted):
        wanted += 1
    return wanted if wanted <= NARROW_KEY_MAX else 0


cdef void write_narrow_keys(char *to, const uint64_t *keys, uint32_t n, uint64_t base,
                            uint32_t width) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t rest
    cdef char *end = to + narrow_keys_bytes(n, width)
    memcpy(to, &base, 8)
    to += 8
    for i in range(n):
        rest = keys[i] - base
        if end - to >= 8:           # eight bytes in one store; the next key overwrites the zeros
            memcpy(to, &rest, 8)
        else:
            memcpy(to, &rest, width)
        to += width
    while to < end:
        to[0] = 0
        to += 1


cdef void read_narrow_keys(const char *inp, uint64_t *keys, uint32_t n,
                           uint32_t width) noexcept nogil:
    cdef const char *end = inp + narrow_keys_bytes(n, width)
    cdef uint64_t mask = (<uint64_t>1 << (8 * width)) - 1
    cdef uint64_t base, rest
    cdef uint32_t i
    memcpy(&base, inp, 8)
    inp += 8
    for i in range(n):
        if end - inp >= 8:
            memcpy(&rest, inp, 8)
        else:
            rest = 0
            memcpy(&rest, inp, width)
        keys[i] = base + (rest & mask)
        inp += width


cdef uint64_t write_error(char *to, const char *code, const char *text, uint64_t a,
                          uint64_t b) noexcept nogil:
    cdef int n = snprintf(to, ERROR_BYTES_MAX, b'{"code":"%s","text":"', code)
    n += snprintf(to + n, ERROR_BYTES_MAX - 124, text, <unsigned long long>a, <unsigned long long>b)
    n += snprintf(to + n, 16, b'"}')
    return n
