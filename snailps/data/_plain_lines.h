/* Lines of LIBSVM whose values are all 1, read by bit masks of 64 bytes and not byte by byte.
 *
 * 64 bytes -> masks of colons, blanks, ... -> bytes that a plain line cannot have; places of colons
 *          -> labels, examples; keys, from the digits before each colon
 *
 *     label index:1 index:1 ...           a plain line: single blanks, nothing else
 *
 * A line that is not plain is left to _entries.h, which reads any line, and finds what is wrong with one.  Here
 * no number waits for the one before it, and the number of its digits costs no branch: a third of the time on a
 * text of clicks.
 *
 * Written once, compiled for three instruction sets of x86-64; snail_plain_lines_of picks one at run time.  The text
 * needs SNAIL_PLAIN_BEFORE readable bytes in front of it: a Python object's header is at least as long.
 */
#ifndef SNAILPS_PLAIN_LINES_H
#define SNAILPS_PLAIN_LINES_H

#include <stdint.h>
#include <string.h>

#include "../abi/_key_hash.h"
#include "_example_lines.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define SNAIL_PLAIN_X86 1
#endif

#ifdef __SANITIZE_ADDRESS__ /* under it gcc cannot inline through a pointer to a function */
#define SNAIL_PLAIN static inline
#else
#define SNAIL_PLAIN static inline __attribute__((always_inline))
#endif

enum {
    SNAIL_PLAIN_BEFORE = 16,
    SNAIL_PLAIN_MASKS = 128, /* masks of a window: 8 KiB of text, whose keys fit into the first cache too */
    SNAIL_PLAIN_ROOM = 64 * SNAIL_PLAIN_MASKS + 32
};

/* Bit i: byte i of 64 is one. */
typedef struct {
    uint64_t colon, blank, line, digit, one;
} snail_classes;

/* The masks of a window, and what is derived from them. */
typedef struct {
    uint64_t colons[SNAIL_PLAIN_MASKS];
    uint64_t events[SNAIL_PLAIN_MASKS]; /* newlines, and ends of what is not `:1` */
    int32_t before[SNAIL_PLAIN_MASKS];  /* number of colons before each mask */
    uint32_t places[SNAIL_PLAIN_ROOM];  /* of colons */
} snail_plain_window;

/* What a build provides: the masks of 64 bytes; the places of a mask's bits (it may write 16 too many); the
 * keys at places, or 0 if one has 16 digits or more. */
typedef void (*snail_classify)(const uint8_t *text, snail_classes *found);
typedef void (*snail_flatten)(uint64_t mask, int count, uint32_t at, uint32_t *places);
typedef int (*snail_keys_of)(const uint8_t *text, const uint32_t *places, int64_t num,
                             uint64_t *keys);

/* ---- keys ------------------------------------------------------------------------------------- */

/* The number written by the digits at the end of 8 bytes, and how many digits there are. */
SNAIL_PLAIN uint64_t snail_last_digits(const uint8_t *text, int *digits) {
    const uint64_t chunk = snail_eight(text) ^ SNAIL_DIGIT_ZEROS;
    const uint64_t other = snail_other_than_digits_each(chunk);
    const int away = other ? 64 - __builtin_clzll(other) : 0; /* bits */
    *digits = 8 - away / 8;
    return away == 64 ? 0 : snail_value_of_eight(chunk >> away << away);
}

SNAIL_PLAIN int snail_plain_key(const uint8_t *colon, uint64_t *key) {
    int digits;
    *key = snail_last_digits(colon - 8, &digits);
    if (SNAIL_UNLIKELY(digits == 8)) {
        *key += 100000000 * snail_last_digits(colon - 16, &digits);
        return digits < 8;
    }
    return 1;
}

SNAIL_PLAIN int snail_plain_keys(const uint8_t *text, const uint32_t *places, int64_t num,
                                 uint64_t *keys) {
    for (int64_t i = 0; i < num; i++)
        if (SNAIL_UNLIKELY(!snail_plain_key(text + places[i], &keys[i]))) return 0;
    return 1;
}

/* ---- masks ------------------------------------------------------------------------------------ */

SNAIL_PLAIN void snail_plain_flatten(uint64_t mask, int count, uint32_t at, uint32_t *places) {
    for (int i = 0; i < count; i += 8) /* eight at a time: a branch for each would be mispredicted */
        for (int j = i; j < i + 8; j++) {
            places[j] = at + (uint32_t)__builtin_ctzll(mask | UINT64_C(1) << 63);
            mask &= mask - 1;
        }
}

/* Reads the plain lines at the beginning of a text; returns where it stopped, the beginning of a line. */
SNAIL_PLAIN const uint8_t *snail_read_plain_lines(const uint8_t *text, const uint8_t *stop, int shift,
                                                  snail_examples *out,
                                                  const snail_classify classify,
                                                  const snail_flatten flatten,
                                                  const snail_keys_of keys_of) {
    snail_plain_window w;
    while (stop - text >= 64) {
        const int64_t size = (stop - text) / 64;
        const int masks = size < SNAIL_PLAIN_MASKS ? (int)size : SNAIL_PLAIN_MASKS;
        uint64_t colon_before = 0, blank_before = 0, digit_before = 0;
        uint64_t line_before = UINT64_C(1) << 63, bad = 0;
        int num = 0, good = 0;
        for (; good < masks && !bad; good++) {
            snail_classes c;
            classify(text + 64 * good, &c);
            const uint64_t behind_colon = c.colon << 1 | colon_before >> 63;
            const uint64_t behind_value = c.colon << 2 | colon_before >> 62;
            const uint64_t ends = c.blank | c.line;
            bad = ~(c.digit | c.colon | ends | c.line << 1 | line_before >> 63);
            bad |= c.colon & ~(c.digit << 1 | digit_before >> 63);
            bad |= behind_colon & ~c.one;
            bad |= behind_value & ~ends;
            bad |= (c.blank << 1 | blank_before >> 63) & ~(c.digit | c.line);
            const uint64_t below = bad ? (bad & -bad) - 1 : ~UINT64_C(0);
            w.colons[good] = c.colon & below;
            w.events[good] = (c.line | (ends & ~behind_value)) & below;
            w.before[good] = num;
            const int count = __builtin_popcountll(w.colons[good]);
            flatten(w.colons[good], count, 64 * (uint32_t)good, w.places + num);
            num += count;
            colon_before = c.colon;
            blank_before = c.blank;
            digit_before = c.digit;
            line_before = c.line;
        }
        /* Lines: a label's end, then a newline. */
        const int64_t first = out->nnz, first_line = out->n;
        uint32_t begin = 0;
        int in_line = 0;
        for (int i = 0; i < good; i++)
            for (uint64_t left = w.events[i]; left; left &= left - 1) {
                const uint32_t at = 64 * (uint32_t)i + (uint32_t)__builtin_ctzll(left);
                if (!in_line) {
                    const uint8_t *p = text + begin;
                    if (at == begin + 1 && snail_is_digit(*p)) out->labels[out->n] = *p - '0';
                    else if (!snail_read_label(&p, &out->labels[out->n]) || p != text + at)
                        goto stopped;
                    in_line = text[at] == ' ';
                    if (in_line) continue;
                } else if (text[at] != '\n' || (text[at - 1] != ' ' && text[at - 2] != ':'))
                    goto stopped;
                in_line = 0;
                begin = at + 1;
                const uint64_t below = (left & -left) - 1;
                out->n++;
                out->ptr[out->n] = out->nnz =
                    first + w.before[i] + __builtin_popcountll(w.colons[i] & below);
            }
    stopped:
        if (SNAIL_UNLIKELY(!keys_of(text, w.places, out->nnz - first, out->keys + first))) {
            out->n = first_line;
            out->nnz = first;
            break;
        }
        for (int64_t i = first; i < out->nnz; i++) out->values[i] = 1;
        if (shift)
            for (int64_t i = first; i < out->nnz; i++)
                out->keys[i] = snail_hash_key(out->keys[i]) >> shift;
        if (begin == 0) break;
        text += begin;
    }
    return text;
}

/* ---- builds ----------------------------------------------------------------------------------- */

typedef const uint8_t *(*snail_plain_reader)(const uint8_t *text, const uint8_t *stop, int shift,
                                             snail_examples *out);

#ifdef SNAIL_PLAIN_X86

SNAIL_PLAIN void snail_classify_base(const uint8_t *text, snail_classes *found) {
    memset(found, 0, sizeof(*found));
    for (int i = 0; i < 4; i++) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(text + 16 * i));
        const __m128i nine = _mm_sub_epi8(bytes, _mm_set1_epi8('0'));
#define SNAIL_MASK(test) ((uint64_t)(uint32_t)_mm_movemask_epi8(test) << (16 * i))
        found->colon |= SNAIL_MASK(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(':')));
        found->blank |= SNAIL_MASK(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(' ')));
        found->line |= SNAIL_MASK(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n')));
        found->one |= SNAIL_MASK(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('1')));
        found->digit |= SNAIL_MASK(_mm_cmpeq_epi8(_mm_min_epu8(nine, _mm_set1_epi8(9)), nine));
#undef SNAIL_MASK
    }
}

static const uint8_t *snail_plain_base(const uint8_t *text, const uint8_t *stop, int shift,
                                       snail_examples *out) {
    return snail_read_plain_lines(text, stop, shift, out, snail_classify_base, snail_plain_flatten,
                                  snail_plain_keys);
}

#define SNAIL_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))

SNAIL_AVX2 static inline void snail_classify_avx2(const uint8_t *text, snail_classes *found) {
    memset(found, 0, sizeof(*found));
    for (int i = 0; i < 2; i++) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)(text + 32 * i));
        const __m256i nine = _mm256_sub_epi8(bytes, _mm256_set1_epi8('0'));
#define SNAIL_MASK(test) ((uint64_t)(uint32_t)_mm256_movemask_epi8(test) << (32 * i))
        found->colon |= SNAIL_MASK(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(':')));
        found->blank |= SNAIL_MASK(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(' ')));
        found->line |= SNAIL_MASK(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('\n')));
        found->one |= SNAIL_MASK(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8('1')));
        found->digit |=
            SNAIL_MASK(_mm256_cmpeq_epi8(_mm256_min_epu8(nine, _mm256_set1_epi8(9)), nine));
#undef SNAIL_MASK
    }
}

SNAIL_AVX2 static const uint8_t *snail_plain_avx2(const uint8_t *text, const uint8_t *stop,
                                                  int shift, snail_examples *out) {
    return snail_read_plain_lines(text, stop, shift, out, snail_classify_avx2, snail_plain_flatten,
                                  snail_plain_keys);
}

#define SNAIL_AVX512                                                                              \
    __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,"    \
                          "avx2,bmi,bmi2,lzcnt,popcnt")))

SNAIL_AVX512 static inline void snail_classify_avx512(const uint8_t *text, snail_classes *found) {
    const __m512i bytes = _mm512_loadu_si512(text);
    found->colon = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(':'));
    found->blank = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(' '));
    found->line = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\n'));
    found->one = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('1'));
    found->digit = _mm512_cmple_epu8_mask(_mm512_sub_epi8(bytes, _mm512_set1_epi8('0')),
                                          _mm512_set1_epi8(9));
}

SNAIL_AVX512 static inline void snail_flatten_avx512(uint64_t mask, int count, uint32_t at,
                                                     uint32_t *places) {
    static const uint8_t numbers[64] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    uint8_t of_mask[64];
    _mm512_storeu_si512(of_mask,
                        _mm512_maskz_compress_epi8(mask, _mm512_loadu_si512(numbers)));
    for (int i = 0; i < count; i += 16) {
        const __m128i sixteen = _mm_loadu_si128((const __m128i *)(of_mask + i));
        _mm512_storeu_si512(places + i, _mm512_add_epi32(_mm512_cvtepu8_epi32(sixteen),
                                                         _mm512_set1_epi32((int)at)));
    }
}

/* Eight keys of up to 7 digits at once, in lanes of 8 bytes. */
SNAIL_AVX512 static inline int snail_keys_avx512(const uint8_t *text, const uint32_t *places,
                                                 int64_t num, uint64_t *keys) {
    const __m512i tens = _mm512_set1_epi16(1 << 8 | 10), hundreds = _mm512_set1_epi32(1 << 16 | 100);
    int64_t i = 0;
    for (; i + 8 <= num; i += 8) {
        const __m512i at =
            _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)(places + i)));
        const __m512i bytes = _mm512_sub_epi8(_mm512_i64gather_epi64(at, text - 8, 1),
                                              _mm512_set1_epi8('0'));
        const __m512i other = _mm512_movm_epi8(_mm512_cmpgt_epu8_mask(bytes, _mm512_set1_epi8(9)));
        const __m512i away =
            _mm512_sub_epi64(_mm512_set1_epi64(64), _mm512_lzcnt_epi64(other)); /* bits */
        const __m512i digits = _mm512_sllv_epi64(_mm512_srlv_epi64(bytes, away), away);
        const __m512i twos = _mm512_maddubs_epi16(digits, tens);
        const __m512i fours = _mm512_madd_epi16(twos, hundreds);
        const __m512i eights = _mm512_add_epi64(
            _mm512_mul_epu32(fours, _mm512_set1_epi64(10000)), _mm512_srli_epi64(fours, 32));
        _mm512_storeu_si512(keys + i, eights);
        for (unsigned longer = _mm512_testn_epi64_mask(other, other); SNAIL_UNLIKELY(longer);
             longer &= longer - 1) {
            const int lane = __builtin_ctz(longer);
            if (!snail_plain_key(text + places[i + lane], &keys[i + lane])) return 0;
        }
    }
    return snail_plain_keys(text, places + i, num - i, keys + i);
}

SNAIL_AVX512 static const uint8_t *snail_plain_avx512(const uint8_t *text, const uint8_t *stop,
                                                      int shift, snail_examples *out) {
    return snail_read_plain_lines(text, stop, shift, out, snail_classify_avx512,
                                  snail_flatten_avx512, snail_keys_avx512);
}

#endif

/* The reader of a build: 0 base, 1 AVX2, 2 AVX-512; NULL if this machine cannot run it.  Machines other than x86-64
 * have none: making masks byte by byte would take longer than reading the lines byte by byte. */
static snail_plain_reader snail_plain_lines_of(int build) {
#ifdef SNAIL_PLAIN_X86
    if (build == 0) return snail_plain_base;
    if (build == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        return snail_plain_avx2;
    if (build == 2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512vbmi2"))
        return snail_plain_avx512;
#else
    (void)build;
#endif
    return NULL;
}

#endif
