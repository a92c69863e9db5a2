# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Numbers in text, eight bytes at a time: the loops under `_examples.pyx`.

    bytes -> read_whole -> uint64          bytes -> read_real -> the nearest float32

Every function takes a cursor and moves it behind what it has read; eight bytes from there on must
be readable, which the caller sees to.  Little-endian machines only, as the whole of snailps.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <locale.h>
    #include <stdlib.h>
    #define SNAILPS_LOWEST_BIT(x) __builtin_ctzll(x)
    #define SNAILPS_UNLIKELY(x) __builtin_expect(!!(x), 0)

    static const float snailps_pow10f[11] = {
        1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f, 1e6f, 1e7f, 1e8f, 1e9f, 1e10f};
    static const double snailps_pow10[65] = {
        1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11, 1e12,
        1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25,
        1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38,
        1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45, 1e46, 1e47, 1e48, 1e49, 1e50, 1e51,
        1e52, 1e53, 1e54, 1e55, 1e56, 1e57, 1e58, 1e59, 1e60, 1e61, 1e62, 1e63, 1e64};
    static const uint64_t snailps_scale[9] = {
        1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

    /* strtof rounds correctly, but its decimal point is the locale's. */
    static locale_t snailps_c_locale = (locale_t)0;
    static int snailps_open_locale(void) {
        if (!snailps_c_locale) snailps_c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        return snailps_c_locale != (locale_t)0;
    }
    static float snailps_exact(const uint8_t *text) {
        return strtof_l((const char *)text, NULL, snailps_c_locale);
    }
    """
    int SNAILPS_LOWEST_BIT(uint64_t x) noexcept nogil
    bint SNAILPS_UNLIKELY(bint x) noexcept nogil
    const float snailps_pow10f[11]
    const double snailps_pow10[65]
    const uint64_t snailps_scale[9]
    int snailps_open_locale() noexcept nogil
    float snailps_exact(const uint8_t *text) noexcept nogil


cdef inline uint64_t eight(const uint8_t *p) noexcept nogil:
    cdef uint64_t chunk
    memcpy(&chunk, p, 8)
    return chunk


cdef inline int digits_in(uint64_t chunk) noexcept nogil:
    """How many digits 8 bytes begin with; the bytes come xor-ed with 0x30 each."""
    # Adding 0x76 sets the high bit of what is above 9; a carry spoils only what lies behind.
    cdef uint64_t other = ((chunk + <uint64_t>0x7676767676767676) | chunk) \
        & <uint64_t>0x8080808080808080
    return SNAILPS_LOWEST_BIT(other) >> 3 if other else 8


cdef inline uint64_t value_of(uint64_t chunk, int digits) noexcept nogil:
    """The number that the first 1 to 8 of the bytes (xor-ed with 0x30) write."""
    chunk <<= 64 - 8 * digits       # the first digit is the lowest byte: zeros lead
    chunk = chunk * 10 + (chunk >> 8)
    return (((chunk & <uint64_t>0x000000FF000000FF) * <uint64_t>0x000F424000000064)
            + (((chunk >> 16) & <uint64_t>0x000000FF000000FF) * <uint64_t>0x0000271000000001)
            ) >> 32


cdef inline bint read_whole(const uint8_t **cursor, uint64_t most, uint64_t *out) noexcept nogil:
    """Reads a run of digits; False if there is none or it is above `most` (at most 2^63)."""
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t chunk = eight(p) ^ <uint64_t>0x3030303030303030
    cdef int n = digits_in(chunk)
    cdef uint64_t number, digit
    if n == 0:
        return False
    number = value_of(chunk, n)
    p += n
    if n == 8:
        chunk = eight(p) ^ <uint64_t>0x3030303030303030
        n = digits_in(chunk)
        if n:
            number = number * snailps_scale[n] + value_of(chunk, n)
            p += n
    if n == 8:
        while True:
            digit = <uint64_t>p[0] - 48
            if digit > 9:
                break
            if number > (most - digit) // 10:
                return False
            number = number * 10 + digit
            p += 1
    out[0] = number
    cursor[0] = p
    return number <= most


cdef inline bint round_decimal(const uint8_t *text, uint64_t digits, int64_t power,
                               float *out) noexcept nogil:
    """The float32 nearest to digits * 10^power; `text` is the number (no sign) as it was written.

    `digits` may lack what lies behind its nineteenth digit.  False: too large for a float32.

    Notes
    -----
    A double product is off by less than 3 units of its last place (each factor, the product, and
    the digits left out: half a unit or less each).  So it rounds to the right float32, unless it
    lies that near to the middle between two of them: strtof then decides.
    """
    cdef double product
    cdef uint64_t bits, tail
    if digits <= 16777216 and -10 <= power <= 0:
        out[0] = <float>digits / snailps_pow10f[-power]     # both exact: one rounding
        return True
    if -64 <= power <= 64:
        product = <double>digits
        if power < 0:
            product /= snailps_pow10[-power]
        else:
            product *= snailps_pow10[power]
        if 1.2e-38 < product < 3.4e38:
            memcpy(&bits, &product, 8)
            tail = bits & <uint64_t>0x1FFFFFFF      # what a float32 has no room for
            if not <uint64_t>0x0FFFFFF8 <= tail <= <uint64_t>0x10000008:
                out[0] = <float>product
                return True
    out[0] = snailps_exact(text)
    return out[0] <= <float>3.4028234663852886e38


cdef inline bint read_long(const uint8_t **cursor, float *out) noexcept nogil:
    """A number without sign, byte by byte: any number of digits, point, exponent."""
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t digits = 0
    cdef int64_t power = 0, written = 0
    cdef int kept = 0, digit
    cdef bint point = False, less
    while True:
        digit = <int>p[0] - 48
        if 0 <= digit <= 9:
            written += 1
            if kept < 19:
                digits = digits * 10 + digit
                kept += digits > 0
                power -= point
            else:
                power += not point
        elif p[0] == 46 and not point:
            point = True
        else:
            break
        p += 1
    if written == 0:
        return False
    if p[0] == 101 or p[0] == 69:       # e, E
        p += 1
        less = p[0] == 45
        p += p[0] == 45 or p[0] == 43
        written = 0
        digit = <int>p[0] - 48
        if not 0 <= digit <= 9:
            return False
        while 0 <= digit <= 9:
            if written < 1000000000:    # far beyond any float; strtof says which end it is
                written = written * 10 + digit
            p += 1
            digit = <int>p[0] - 48
        power += -written if less else written
    if digits == 0:
        out[0] = 0
    elif not round_decimal(cursor[0], digits, power, out):
        return False
    cursor[0] = p
    return True


cdef inline bint read_real(const uint8_t **cursor, float *out) noexcept nogil:
    """Reads a decimal number: sign, digits with a point or without, exponent.

    False: there is none, or it is too large for a float32.  No nan, no inf, no hexadecimals.
    """
    cdef const uint8_t *p = cursor[0]
    cdef bint minus = p[0] == 45
    cdef uint64_t chunk, digits
    cdef const uint8_t *first
    cdef int whole, n = 0, more = 0
    p += minus or p[0] == 43
    first = p
    chunk = eight(p) ^ <uint64_t>0x3030303030303030
    whole = digits_in(chunk)
    if whole and whole < 8:
        digits = value_of(chunk, whole)
        p += whole
        if p[0] == 46:
            p += 1
            chunk = eight(p) ^ <uint64_t>0x3030303030303030
            n = digits_in(chunk)
            if n:
                digits = digits * snailps_scale[n] + value_of(chunk, n)
                p += n
            if n == 8:
                chunk = eight(p) ^ <uint64_t>0x3030303030303030
                more = digits_in(chunk)
                if more:
                    # 7 + 8 + 8 digits could be too many for 64 bits: what is too long goes on.
                    if whole + more > 11:
                        more = 8
                    else:
                        digits = digits * snailps_scale[more] + value_of(chunk, more)
                    p += more
        if more < 8 and (p[0] | 32) != 101 and round_decimal(first, digits, -n - more, out):
            if minus:
                out[0] = -out[0]
            cursor[0] = p
            return True
    p = first
    if not read_long(&p, out):
        return False
    if minus:
        out[0] = -out[0]
    cursor[0] = p
    return True
