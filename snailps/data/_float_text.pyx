# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Rows of numbers as text, fast enough to write an embedding after every round.

    float32 (n, dim) -> n lines of dim numbers with six decimals, blanks between
"""

from libc.math cimport fabs
from libc.stdint cimport int64_t, uint32_t, uint8_t

import numpy as np

cdef enum:
    C_MOST_BYTES = 19       # a sign, ten digits, a point, six decimals, and what comes behind
    SCALE = 1000000         # six decimals

cdef double MOST = 1e9


cdef uint8_t PAIRS[200]     # "00" to "99"
cdef int _pair
for _pair in range(100):
    PAIRS[2 * _pair] = <uint8_t>(c"0" + _pair // 10)
    PAIRS[2 * _pair + 1] = <uint8_t>(c"0" + _pair % 10)


cdef inline uint8_t *write_pair(uint8_t *to, uint32_t pair) noexcept nogil:
    to[0] = PAIRS[2 * pair]
    to[1] = PAIRS[2 * pair + 1]
    return to + 2


cdef inline uint8_t *write_number(uint8_t *to, double x, uint8_t behind) noexcept nogil:
    cdef double scaled = fabs(x) * SCALE
    cdef int64_t units = <int64_t>scaled
    cdef uint32_t whole, rest           # 32 bits: a division by a constant is then two instructions
    cdef uint8_t digits[12]
    cdef int count = 0, k
    units += scaled - units >= 0.5      # as llround: halves go up
    whole, rest = <uint32_t>(units // SCALE), <uint32_t>(units % SCALE)
    if x < 0 and units:
        to[0] = c"-"
        to += 1
    while whole >= 10:
        digits[count] = <uint8_t>(c"0" + whole % 10)
        count += 1
        whole = whole // 10
    to[0] = <uint8_t>(c"0" + whole)
    for k in range(count):
        to[k + 1] = digits[count - 1 - k]
    to += count + 1
    to[0] = c"."
    to = write_pair(to + 1, rest // 10000)
    to = write_pair(to, rest // 100 % 100)
    to = write_pair(to, rest % 100)
    to[0] = behind
    return to + 1


def rows_as_text(const float[:, :] rows not None):
    cdef Py_ssize_t i, j, n = rows.shape[0], dim = rows.shape[1]
    cdef int64_t wrong = 0
    if dim < 1:
        raise ValueError("rows need at least one column")
    with nogil:
        for i in range(n):
            for j in range(dim):
                wrong += not fabs(rows[i, j]) < MOST
    if wrong:
        raise ValueError(f"{wrong} of the numbers are not finite, or not below 1e9")
    room = np.empty(n * dim * C_MOST_BYTES + 1, np.uint8)
    cdef uint8_t[::1] view = room
    cdef uint8_t *at = &view[0]
    cdef uint8_t *begin = at
    with nogil:
        for i in range(n):
            for j in range(dim):
                at = write_number(at, rows[i, j], c"\n" if j == dim - 1 else c" ")
    return room[:at - begin].tobytes()
