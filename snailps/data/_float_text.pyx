# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Numbers to text and back, fast enough to write an embedding after every round.

    float32 (n, dim) -> rows_as_text -> n lines of dim numbers with six decimals, blanks between
    words, float32 (n, dim) -> word_lines -> n lines of a word and dim numbers of five digits
    labels, their numbers and probabilities (n, k) -> label_lines -> n lines of up to k of both,
                                                      digits as many as give the same float32
    n such lines, with numbers of any length -> read_word_lines -> words, float32 (n, dim)
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from libc.math cimport fabs
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memchr, memcpy, strlen

import numpy as np

from snailps.data.packed_words import PackedWords

cdef extern from "data/_number_text.h" nogil:
    enum: SNAIL_SHORT_ROOM
    uint8_t *write_short "snail_write_short"(uint8_t *to, double x) noexcept
    uint8_t *write_same "snail_write_same"(uint8_t *to, float x) noexcept

cdef extern from "data/_number_parsing.h" nogil:
    int open_locale "snail_open_locale"() noexcept
    int read_real "snail_read_real"(const uint8_t **cursor, float *out) noexcept

cdef extern from "Python.h":
    char *PyOS_double_to_string(double x, char format, int precision, int flags, int *kind) except NULL

cdef enum:
    C_SHORT_BYTES = 12      # room for a number of five digits, such as -1.2345e-05, and a blank
    C_SAME_BYTES = 17       # for one of nine, such as -1.23456789e-05, and a tab
    C_MOST_BYTES = 19       # for a sign, ten digits, a point, six decimals, and a separator
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


def rows_as_text(const float[:, :] rows not None) -> bytes:
    """One line per row: numbers with six decimals, separated by blanks.

    ValueError: a number is not finite, or 1e9 or larger.
    """
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


# ---- five significant digits, as printf's %.5g ----

cdef uint8_t *write_exactly(uint8_t *to, double x, int digits) except NULL with gil:
    """Write a number by Python's exact code: for those that `write_short` and `write_same` refuse."""
    cdef char *text = PyOS_double_to_string(x, c"g", digits, 0, NULL)
    cdef size_t length = strlen(text)
    memcpy(to, text, length)
    PyMem_Free(text)
    return to + length


cdef inline uint8_t *write_digits(uint8_t *to, double x) except NULL nogil:
    cdef uint8_t *end = write_short(to, x)
    return end if end != NULL else write_exactly(to, x, 5)


def word_lines(words not None: Sequence[bytes], const float[:, ::1] rows not None) -> memoryview:
    """One line per word: the word and its row (float32 (n, dim), contiguous), as printf's ``%.5g``."""
    packed = PackedWords.of(words)
    cdef const uint8_t[::1] text = packed.text
    cdef const uint64_t[::1] starts = packed.starts
    cdef Py_ssize_t i, j, n = rows.shape[0], dim = rows.shape[1]
    cdef uint64_t length
    if n != starts.shape[0] - 1:
        raise ValueError(f"expected {n} words for as many rows, got {starts.shape[0] - 1}")
    if n == 0:
        return b""
    letters = starts[n] - starts[0]
    room = np.empty(letters + n * (1 + dim * C_SHORT_BYTES) + SNAIL_SHORT_ROOM, np.uint8)
    cdef uint8_t[::1] view = room
    cdef uint8_t *at = &view[0]
    cdef uint8_t *begin = at
    with nogil:
        for i in range(n):
            length = starts[i + 1] - starts[i]
            if length:
                memcpy(at, &text[starts[i]], length)
            at += length
            for j in range(dim):
                at[0] = c" "
                at = write_digits(at + 1, rows[i, j])
            at[0] = c"\n"
            at += 1
    return room[:at - begin].data


def label_lines(labels not None: Sequence[bytes], const int32_t[:, ::1] best not None,
                const float[:, ::1] chances not None, double threshold) -> memoryview:
    """Lines of labels and probabilities, shortest text of these, between tabs; ``-`` for none.

    `best`: int32 (n, k), numbers of `labels`, -1 for none; `chances`: float32 (n, k).
    """
    packed = PackedWords.of(labels)
    cdef const uint8_t[::1] text = packed.text
    cdef const uint64_t[::1] starts = packed.starts
    cdef Py_ssize_t i, j, n = best.shape[0], k = best.shape[1]
    cdef Py_ssize_t room = SNAIL_SHORT_ROOM, number = starts.shape[0] - 1
    cdef uint64_t length
    cdef uint8_t *at
    cdef uint8_t *begin
    cdef uint8_t *end
    cdef uint8_t *number_end
    if chances.shape[0] != n or chances.shape[1] != k:
        raise ValueError("expected as many probabilities as labels")
    for i in range(n):
        for j in range(k):
            if best[i, j] >= number:
                raise ValueError(f"label {best[i, j]} of {number}")
            if best[i, j] >= 0:
                room += <Py_ssize_t>(starts[best[i, j] + 1] - starts[best[i, j]]) + 2 + C_SAME_BYTES
    lines = np.empty(room + 4 * n, np.uint8)
    cdef uint8_t[::1] view = lines
    at = begin = &view[0]
    with nogil:
        for i in range(n):
            end = at
            for j in range(k):
                if best[i, j] < 0 or not chances[i, j] >= threshold:
                    continue
                length = starts[best[i, j] + 1] - starts[best[i, j]]
                if length:
                    memcpy(at, &text[starts[best[i, j]]], length)
                at[length] = c"\t"
                at += length + 1
                number_end = write_same(at, chances[i, j])
                at = number_end if number_end != NULL else write_exactly(at, chances[i, j], 9)
                at[0] = c"\t"
                at += 1
            if at == end:
                memcpy(at, b"-\t-\t", 4)
                at += 4
            (at - 1)[0] = c"\n"
    return lines[:at - begin].data


cdef bint read_numbers(const uint8_t *at, const uint8_t *end, float *row,
                       Py_ssize_t dim) noexcept nogil:
    """Read numbers with blanks before each, up to the newline at `end`; False: other text."""
    cdef Py_ssize_t j
    for j in range(dim):
        if at[0] != c" " and at[0] != c"\t":
            return False
        while at[0] == c" " or at[0] == c"\t":
            at += 1
        if not read_real(&at, &row[j]):
            return False
    while at[0] == c" " or at[0] == c"\t" or at[0] == c"\r":
        at += 1
    return at == end


def read_word_lines(list lines not None: list[bytes],
                    float[:, ::1] rows not None) -> list[bytes] | None:
    """Read lines as `word_lines` writes them into `rows` (float32 (n, dim)); return the words.

    None: a line has another form, and `rows` is undefined; the caller has a slower reader that says what
    is wrong.  Each line has its newline.
    """
    cdef Py_ssize_t i, length, n = rows.shape[0], dim = rows.shape[1]
    cdef const uint8_t *text
    cdef const uint8_t *blank
    cdef bytes line
    if n != len(lines) or dim < 1:
        raise ValueError(f"expected a row for each of {len(lines)} lines, got {n} of {dim}")
    if not open_locale():
        raise MemoryError("no memory for a locale")
    words = []
    padding = bytes(8)          # numbers are read eight bytes at a time
    for i in range(n):
        line = lines[i] + padding
        text = <const uint8_t *>PyBytes_AS_STRING(line)
        length = PyBytes_GET_SIZE(line) - 8
        blank = <const uint8_t *>memchr(text, c" ", length)
        if blank == NULL or blank == text or text[length - 1] != c"\n":
            return None
        if not read_numbers(blank, text + length - 1, &rows[i, 0], dim):
            return None
        words.append(PyBytes_FromStringAndSize(<const char *>text, blank - text))
    return words
