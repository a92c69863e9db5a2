/* A number with five significant digits, the bytes of printf's %.5g, or with as few digits as give the
 * same float32 again.  Mostly without branches that depend on the digits: one misprediction costs as
 * much as all the rest.
 *
 *     float32 as double -> snail_write_short -> at most 11 bytes; NULL: it needs exact arithmetic
 *     float32           -> snail_write_same  -> at most 15 bytes; NULL: likewise
 *
 * One multiplication or division by an exact power of ten is off by at most 1e-11 of a unit in the
 * last digit.  Values closer than that to the middle between two results are left to the caller, as are
 * values outside 1e-17 to 1e26.  Writes up to SNAIL_SHORT_ROOM bytes; bytes after the returned end are
 * garbage.  Little-endian machines only, like all of snailps. */

#ifndef SNAIL_NUMBER_TEXT_H
#define SNAIL_NUMBER_TEXT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SNAIL_SHORT_ROOM 20

/* 10^(i - 18): place + 1 of the smallest number is -16, 4 - place of the largest is out of use. */
static const double snail_tens[46] = {
    1e-18, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7,
    1e-6,  1e-5,  1e-4,  1e-3,  1e-2,  1e-1,  1e0,   1e1,   1e2,   1e3,  1e4,  1e5,
    1e6,   1e7,   1e8,   1e9,   1e10,  1e11,  1e12,  1e13,  1e14,  1e15, 1e16, 1e17,
    1e18,  1e19,  1e20,  1e21,  1e22,  1e23,  1e24,  1e25,  1e26,  1e27};

/* The digits of 0 to 9999 in the first four bytes, thousands first: pairs of digits, then digits. */
static inline uint64_t snail_four_digits(uint32_t number) {
    uint32_t hundreds = (number * 5243) >> 19;
    uint32_t pairs = hundreds | (number - 100 * hundreds) << 16;
    uint32_t tens = ((pairs * 103) >> 10) & 0x000f000f;
    return tens | (pairs - 10 * tens) << 8;
}

static inline uint8_t *snail_write_short(uint8_t *to, double x) {
    double size = fabs(x), scaled, rest;
    uint64_t bits, text;
    uint32_t digits, first;
    int place, left;
    if (!(size > 1e-17 && size < 1e26)) {
        if (size == 0 && !signbit(x)) {
            *to = '0';
            return to + 1;
        }
        return NULL;
    }
    memcpy(&bits, &size, 8);
    place = (((int)(bits >> 52) - 1023) * 1233) >> 12; /* of the first digit, or one less */
    place += size >= snail_tens[place + 19];
    scaled = place <= 4 ? size * snail_tens[22 - place] : size / snail_tens[14 + place];
    digits = (uint32_t)scaled;
    rest = scaled - digits;
    if (fabs(rest - 0.5) < 1e-6) return NULL;
    digits += rest > 0.5;
    if (digits == 100000) {
        digits = 10000;
        place++;
    }
    first = digits / 10000;
    text = first | snail_four_digits(digits - first * 10000) << 8;
    left = (71 - __builtin_clzll(text)) / 8; /* digits without the zeros at the end */
    text |= 0x3030303030;
    *to = '-';
    to += x < 0;
    if (place < 0 && place >= -4) {
        memcpy(to, "0.000000", 8);
        memcpy(to + 1 - place, &text, 8);
        return to + 1 - place + left;
    }
    if (place >= 0 && place < 5) {
        memcpy(to, &text, 8);
        text >>= 8 * (place + 1);
        memcpy(to + place + 2, &text, 8);
        to[place + 1] = '.';
        return to + (left > place + 1 ? left + 1 : place + 1);
    }
    *to = (uint8_t)text;
    text >>= 8;
    memcpy(to + 2, &text, 8);
    to[1] = '.';
    to += left > 1 ? left + 1 : 1;
    to[0] = 'e';
    to[1] = place < 0 ? '-' : '+';
    place = place < 0 ? -place : place;
    to[2] = '0' + place / 10;
    to[3] = '0' + place % 10;
    return to + 4;
}

/* The fewest digits, at most nine, that are read as the same float32; in %g's form.
 *
 * With nine digits the scaled number is off by 1e-7 of a unit, and half the distance to the next float32
 * is at least three units.  Different numbers of up to six digits are different float32: so only one of
 * six digits, from which zeros at the end are removed, can be read as this. */
static inline uint8_t *snail_write_same(uint8_t *to, float x) {
    const double size = fabs((double)x);
    double scaled, gap;
    uint64_t rest;
    uint32_t bits, digits, first;
    uint8_t text[16];
    int place, left;
    if (!(size > 1e-17 && size < 1e17)) {
        if (size == 0 && !signbit(x)) {
            *to = '0';
            return to + 1;
        }
        return NULL;
    }
    memcpy(&bits, &x, 4);
    place = ((((int)(bits >> 23) & 0xff) - 127) * 1233) >> 12; /* of the first digit, or one less */
    place += size >= snail_tens[place + 19];
    scaled = place <= 8 ? size * snail_tens[26 - place] : size / snail_tens[10 + place];
    gap = scaled / ((bits & 0x7fffff) | 0x800000); /* of neighbours */
    gap *= bits & 0x7fffff ? 0.499999 : 0.249999;
    digits = (uint32_t)(scaled * 1e-3 + 0.5) * 1000;
    if (fabs(scaled - digits) >= gap) digits = (uint32_t)(scaled * 1e-2 + 0.5) * 100;
    if (fabs(scaled - digits) >= gap) digits = (uint32_t)(scaled * 1e-1 + 0.5) * 10;
    if (fabs(scaled - digits) >= gap) digits = (uint32_t)(scaled + 0.5);
    if (digits == 1000000000) {
        digits = 100000000;
        place++;
    }
    first = digits / 100000000;
    digits -= first * 100000000;
    rest = snail_four_digits(digits / 10000) | snail_four_digits(digits % 10000) << 32;
    left = rest ? 1 + (71 - __builtin_clzll(rest)) / 8 : 1; /* digits without zeros at the end */
    text[0] = (uint8_t)('0' + first);
    rest |= 0x3030303030303030;
    memcpy(text + 1, &rest, 8);
    *to = '-';
    to += x < 0;
    if (place < 0 && place >= -4) {
        memcpy(to, "0.000", 5);
        memcpy(to + 1 - place, text, 9);
        return to + 1 - place + left;
    }
    if (place >= 0 && place < 9) {
        memcpy(to, text, 9);
        to += place + 1;
        if (left <= place + 1) return to;
        *to = '.';
        memcpy(to + 1, text + place + 1, 9 - place);
        return to + left - place;
    }
    *to++ = text[0];
    if (left > 1) {
        *to = '.';
        memcpy(to + 1, text + 1, 8);
        to += left;
    }
    to[0] = 'e';
    to[1] = place < 0 ? '-' : '+';
    place = place < 0 ? -place : place;
    to[2] = '0' + place / 10;
    to[3] = '0' + place % 10;
    return to + 4;
}

#endif
