/* Numbers in text, eight bytes at a time.
 *
 * bytes -> snail_read_whole -> uint64        bytes -> snail_read_real -> the nearest float32
 *                                            bytes -> snail_read_label -> the nearest double
 *
 * Every function takes a cursor and moves it past what it has read.  The caller guarantees that eight bytes
 * from the cursor on are readable.  Little-endian machines only, like all of snailps.
 */
#ifndef SNAILPS_NUMBER_PARSING_H
#define SNAILPS_NUMBER_PARSING_H

#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SNAIL_LOWEST_BIT(x) __builtin_ctzll(x)
#define SNAIL_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SNAIL_DIGIT_ZEROS UINT64_C(0x3030303030303030) /* the digit 0, eight times */

static const float snail_pow10f[11] = {1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f,
                                       1e6f, 1e7f, 1e8f, 1e9f, 1e10f};
static const double snail_pow10[65] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11, 1e12,
    1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25,
    1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38,
    1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45, 1e46, 1e47, 1e48, 1e49, 1e50, 1e51,
    1e52, 1e53, 1e54, 1e55, 1e56, 1e57, 1e58, 1e59, 1e60, 1e61, 1e62, 1e63, 1e64};
static const uint64_t snail_scale[9] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000,
                                        100000000};

/* strtof rounds correctly, but its decimal point is the locale's. */
static locale_t snail_c_locale = (locale_t)0;

static int snail_open_locale(void) {
    if (!snail_c_locale) snail_c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return snail_c_locale != (locale_t)0;
}

static inline uint64_t snail_eight(const uint8_t *p) {
    uint64_t chunk;
    memcpy(&chunk, p, 8);
    return chunk;
}

/* The high bits of the bytes, of 8 (xor-ed with 0x30), that are no digits; exact up to the first one.
 * Adding 0x76 sets the high bit of a byte above 9; a carry spoils only the bytes after it. */
static inline uint64_t snail_other_than_digits(uint64_t chunk) {
    return ((chunk + UINT64_C(0x7676767676767676)) | chunk) & UINT64_C(0x8080808080808080);
}

/* The same, exact for each byte. */
static inline uint64_t snail_other_than_digits_each(uint64_t chunk) {
    const uint64_t low = chunk & UINT64_C(0x7F7F7F7F7F7F7F7F);
    return ((low + UINT64_C(0x7676767676767676)) | chunk) & UINT64_C(0x8080808080808080);
}

/* The number of digits at the beginning of 8 bytes, each xor-ed with 0x30. */
static inline int snail_digits_in(uint64_t chunk) {
    const uint64_t other = snail_other_than_digits(chunk);
    return other ? SNAIL_LOWEST_BIT(other) >> 3 : 8;
}

/* The value of 8 digits (bytes xor-ed with 0x30). */
static inline uint64_t snail_value_of_eight(uint64_t chunk) {
    chunk = chunk * 10 + (chunk >> 8);
    return (((chunk & UINT64_C(0x000000FF000000FF)) * UINT64_C(0x000F424000000064)) +
            (((chunk >> 16) & UINT64_C(0x000000FF000000FF)) * UINT64_C(0x0000271000000001))) >>
           32;
}

/* The value of the first 1 to 8 digits of the bytes (xor-ed with 0x30). */
static inline uint64_t snail_value_of(uint64_t chunk, int digits) {
    return snail_value_of_eight(chunk << (64 - 8 * digits)); /* the first digit is the lowest byte: zeros lead */
}

/* Reads a whole number; 0: there is none, or it is above `most` (at most 2^63). */
static inline int snail_read_whole(const uint8_t **cursor, uint64_t most, uint64_t *out) {
    const uint8_t *p = *cursor;
    uint64_t chunk = snail_eight(p) ^ SNAIL_DIGIT_ZEROS, number;
    int n = snail_digits_in(chunk);
    if (n == 0) return 0;
    number = snail_value_of(chunk, n);
    p += n;
    if (n == 8) {
        chunk = snail_eight(p) ^ SNAIL_DIGIT_ZEROS;
        n = snail_digits_in(chunk);
        if (n) number = number * snail_scale[n] + snail_value_of(chunk, n);
        p += n;
    }
    if (n == 8)
        for (;; p++) {
            const uint64_t digit = (uint64_t)*p - '0';
            if (digit > 9) break;
            if (number > (most - digit) / 10) return 0;
            number = number * 10 + digit;
        }
    *out = number;
    *cursor = p;
    return number <= most;
}

/* The float32 nearest to digits * 10^power; `text` is the number, without sign, as it was written.
 * `digits` may lack digits after the nineteenth.  0: too large for a float32.
 *
 * A double product is off by less than 3 units in its last place (each factor, the product, and the
 * digits left out: at most half a unit each).  So it rounds to the right float32, unless it is that
 * close to the middle between two of them: then strtof decides. */
static inline int snail_round_decimal(const uint8_t *text, uint64_t digits, int64_t power,
                                      float *out) {
    if (digits <= 16777216 && -10 <= power && power <= 0) {
        *out = (float)digits / snail_pow10f[-power]; /* both exact: one rounding */
        return 1;
    }
    if (-64 <= power && power <= 64) {
        double product = (double)digits;
        if (power < 0) product /= snail_pow10[-power];
        else product *= snail_pow10[power];
        if (1.2e-38 < product && product < 3.4e38) {
            uint64_t bits;
            memcpy(&bits, &product, 8);
            const uint64_t tail = bits & 0x1FFFFFFF; /* the bits that a float32 has no room for */
            if (tail < 0x0FFFFFF8 || tail > 0x10000008) {
                *out = (float)product;
                return 1;
            }
        }
    }
    *out = strtof_l((const char *)text, NULL, snail_c_locale);
    return *out <= 3.4028234663852886e38f;
}

static inline int snail_is_digit(uint8_t c) { return (unsigned)c - '0' <= 9; }

/* A number without sign, byte by byte: any number of digits, point, exponent. */
static int snail_read_long(const uint8_t **cursor, float *out) {
    const uint8_t *p = *cursor;
    uint64_t digits = 0;
    int64_t power = 0, written = 0;
    int kept = 0, point = 0;
    for (;; p++) {
        if (snail_is_digit(*p)) {
            written++;
            if (kept < 19) {
                digits = digits * 10 + (uint64_t)(*p - '0');
                kept += digits > 0;
                power -= point;
            } else power += !point;
        } else if (*p == '.' && !point) point = 1;
        else break;
    }
    if (written == 0) return 0;
    if (*p == 'e' || *p == 'E') {
        const int less = p[1] == '-';
        p += 1 + (p[1] == '-' || p[1] == '+');
        if (!snail_is_digit(*p)) return 0;
        for (written = 0; snail_is_digit(*p); p++)
            if (written < 1000000000) /* far beyond any float; strtof decides between 0 and infinity */
                written = written * 10 + (*p - '0');
        power += less ? -written : written;
    }
    if (digits == 0) *out = 0;
    else if (!snail_round_decimal(*cursor, digits, power, out)) return 0;
    *cursor = p;
    return 1;
}

/* Reads a decimal number: sign, digits with or without a point, exponent.
 * 0: there is none, or it is too large for a float32.  No nan, inf or hexadecimals. */
static inline int snail_read_real(const uint8_t **cursor, float *out) {
    const uint8_t *p = *cursor;
    const int minus = *p == '-';
    p += minus || *p == '+';
    const uint8_t *first = p;
    uint64_t chunk = snail_eight(p) ^ SNAIL_DIGIT_ZEROS;
    const int whole = snail_digits_in(chunk);
    int n = 0, more = 0; /* digits after the point: in its first eight bytes, and in the next eight */
    if (whole && whole < 8) {
        uint64_t digits = snail_value_of(chunk, whole);
        p += whole;
        if (*p == '.') {
            chunk = snail_eight(++p) ^ SNAIL_DIGIT_ZEROS;
            n = snail_digits_in(chunk);
            if (n) digits = digits * snail_scale[n] + snail_value_of(chunk, n);
            p += n;
            if (n == 8) {
                chunk = snail_eight(p) ^ SNAIL_DIGIT_ZEROS;
                more = snail_digits_in(chunk);
                /* 7 + 8 + 8 digits may not fit into 64 bits: longer numbers are read byte by byte. */
                if (more && whole + more > 11) more = 8;
                else if (more) digits = digits * snail_scale[more] + snail_value_of(chunk, more);
                p += more;
            }
        }
        if (more < 8 && (*p | 32) != 'e' && snail_round_decimal(first, digits, -n - more, out)) {
            if (minus) *out = -*out;
            *cursor = p;
            return 1;
        }
    }
    p = first;
    if (!snail_read_long(&p, out)) return 0;
    if (minus) *out = -*out;
    *cursor = p;
    return 1;
}

/* The same as a double: a float32 holds every whole number up to 2^24 only, and labels may be ids of
 * classes, or times. */
static inline int snail_read_label(const uint8_t **cursor, double *out) {
    const uint8_t *first = *cursor;
    float near;
    if (!snail_read_real(cursor, &near)) return 0;
    /* Up to seven characters, hence six digits and a point, are distinct as float32, so a whole one is exact.
     * Up to three characters cannot be a number so small that it becomes 0. */
    const int64_t length = *cursor - first;
    const int is_plain = length <= 3 || (length <= 7 && near != 0);
    if (is_plain && near > -16777216.0f && near < 16777216.0f && near == (float)(int32_t)near)
        *out = near;
    else *out = strtod_l((const char *)first, NULL, snail_c_locale);
    return 1;
}

#endif
