# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Rows of numbers as text, fast enough to write an embedding after every round.

    float32 (n, dim) -> n lines of dim numbers with six decimals, blanks between
"""

from libc.math cimport fabs, llround
from libc.stdint cimport int64_t, uint8_t

import numpy as np

cdef enum:
    C_DECIMALS = 6
    C_MOST_BYTES = 19       # a sign, ten digits, a point, six decimals, and what comes behind

cdef double MOST = 1e9
cdef int64_t SCALE = 1000000


cdef uint8_t *write_number(uint8_t *to, double x, uint8_t behind) noexcept nogil:
    cdef int64_t units = llround(fabs(x) * SCALE), whole = units // SCALE, rest = units % SCALE
    cdef uint8_t digits[12]
    cdef int count = 0, k
    if x < 0 and units:
        to[0] = c"-"
        to += 1
    while True:
        digits[count] = <uint8_t>(c"0" + whole % 10)
        count += 1
        whole = whole // 10
        if whole == 0:
            break
    for k in range(count):
        to[k] = digits[count - 1 - k]
    to += count
    to[0] = c"."
    for k in range(C_DECIMALS, 0, -1):
        to[k] = <uint8_t>(c"0" + rest % 10)
        rest = rest // 10
    to[C_DECIMALS + 1] = behind
    return to + C_DECIMALS + 2


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
