/* Converts rows of float32 to and from wire types: the loops of snail_wire_ops in abi/_wire_types.h.
 *
 * row -> narrow -> bytes        bytes -> widen -> row        row, residue -> narrow_owing -> bytes,
 *                                                            residue
 *
 * float16: the nearest value, ties to even.  A finite value beyond the largest becomes
 * the largest, so that the residue carries the rest; inf stays inf and NaN stays NaN, because
 * a model that has diverged must show it.
 * int8: a float32 scale s, then q = the integer nearest to x * (1 / s), ties to even.  s is max|x|
 * / 127 to 17 bits: q * s is then exact, with and without fused multiply-add, and a row that was
 * widened narrows to the same bytes.  A row with an inf or NaN has a NaN for s; one whose s would
 * be subnormal (max|x| below 1.5e-36) has s = 0.
 * Residues that are not finite become 0.
 *
 * Every build gives the same bits, although this is compiled with -ffast-math: what rounds is
 * done on integers, or is one operation whose operands and result are stored.  In C for `restrict`
 * and for F16C; the bytes lie at any address.  A twin of each loop is in tests/support/twins/wire.py.
 */
#ifndef SNAILPS_WIRE_TYPES_H
#define SNAILPS_WIRE_TYPES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows travel little endian, and this machine is not"
#endif

#define SNAIL_WIRE_INLINE static inline __attribute__((always_inline))
#define SNAIL_INF 0x7f800000 /* bits of |inf|: beyond them lie the NaNs */

/* Bytes of a frame, wherever they lie. */
typedef float snail_loose __attribute__((aligned(1), may_alias));
typedef uint16_t snail_half __attribute__((aligned(1), may_alias));

SNAIL_WIRE_INLINE uint32_t snail_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

SNAIL_WIRE_INLINE float snail_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Bits of |x|, below 2^31: compared as int, which every vector unit can. */
SNAIL_WIRE_INLINE int32_t snail_size(float x) { return (int32_t)(snail_bits(x) & 0x7fffffffu); }

/* ---- one number ------------------------------------------------------------------------------ */

SNAIL_WIRE_INLINE uint16_t snail_to_float16(float x) {
    const int32_t size = snail_size(x);
    const int32_t top = size < 0x477fe000 ? size : 0x477fe000; /* 65504 */
    /* Exponent 127 - 15 less; half of the last place, less one when that place is even. */
    const uint32_t normal = ((uint32_t)top + 0xc8000fffu + ((uint32_t)top >> 13 & 1)) >> 13;
    /* 0.5 + x: float32's own rounding leaves x in units of 2^-24 in the last bits. */
    const uint32_t small = snail_bits(snail_float((uint32_t)top) + 0.5f) - 0x3f000000u;
    const uint32_t finite = top < 0x38800000 ? small : normal; /* 2^-14 */
    const uint32_t nan = 0x7e00u | ((uint32_t)size >> 13 & 0x3ffu);
    const uint32_t other = size > SNAIL_INF ? nan : 0x7c00u;
    const uint32_t sign = snail_bits(x) >> 16 & 0x8000;
    return (uint16_t)((size < SNAIL_INF ? finite : other) | sign);
}

SNAIL_WIRE_INLINE float snail_from_float16(uint16_t half) {
    const uint32_t size = half & 0x7fffu, shifted = size << 13;
    const float small = snail_float(shifted + 0x38800000u) - 0x1p-14f;
    const uint32_t nan = size > 0x7c00u ? 0x400000u : 0; /* quiet, as hardware makes it */
    const uint32_t large = (shifted + 0x70000000u) | nan;
    const uint32_t normal = shifted + 0x38000000u;
    const uint32_t wide = size < 0x400u ? snail_bits(small) : size < 0x7c00u ? normal : large;
    return snail_float(wide | (uint32_t)(half & 0x8000u) << 16);
}

SNAIL_WIRE_INLINE float snail_owed(float sum, float sent) {
    const float rest = sum - sent;
    return snail_float(snail_size(rest) < SNAIL_INF ? snail_bits(rest) : 0);
}

/* ---- blocks: n is 16, 4 or 1 where they are called, so that rows have short tails ---------- */

#define SNAIL_EACH _Pragma("GCC unroll 1") for (uint32_t j = 0; j < n; j++)

/* `call` for every block of n numbers of a row, from number i on. */
#define SNAIL_BLOCKS(call)                                                            \
    do {                                                                              \
        uint32_t i = 0;                                                               \
        for (const uint32_t n = 16; i + n <= floats; i += n) call;                    \
        for (const uint32_t n = 4; i + n <= floats; i += n) call;                     \
        for (const uint32_t n = 1; i < floats; i++) call;                             \
    } while (0)

SNAIL_WIRE_INLINE void snail_narrow_block_float16(const float *restrict row, char *restrict out,
                                                  const uint32_t n) {
    SNAIL_EACH((snail_half *)out)[j] = snail_to_float16(row[j]);
}

SNAIL_WIRE_INLINE void snail_widen_block_float16(const char *restrict inp, float *restrict row,
                                                 const uint32_t n) {
    SNAIL_EACH row[j] = snail_from_float16(((const snail_half *)inp)[j]);
}

SNAIL_WIRE_INLINE void snail_owing_block_float16(const float *restrict row,
                                                 float *restrict residue, char *restrict out,
                                                 const uint32_t n) {
    SNAIL_EACH {
        const float sum = row[j] + residue[j];
        const uint16_t half = snail_to_float16(sum);
        ((snail_half *)out)[j] = half;
        residue[j] = snail_owed(sum, snail_from_float16(half));
    }
}

#ifdef __F16C__

/* Eight numbers of a block of 16, or all of a smaller one and zeros. */
SNAIL_WIRE_INLINE __m256 snail_load_floats(const float *p, const uint32_t n) {
    return n == 16  ? _mm256_loadu_ps(p)
           : n == 4 ? _mm256_insertf128_ps(_mm256_setzero_ps(), _mm_loadu_ps(p), 0)
                    : _mm256_insertf128_ps(_mm256_setzero_ps(), _mm_load_ss(p), 0);
}

SNAIL_WIRE_INLINE void snail_store_floats(float *p, __m256 x, const uint32_t n) {
    if (n == 16) _mm256_storeu_ps(p, x);
    else if (n == 4) _mm_storeu_ps(p, _mm256_castps256_ps128(x));
    else *p = _mm256_cvtss_f32(x);
}

SNAIL_WIRE_INLINE __m128i snail_load_halves(const char *p, const uint32_t n) {
    return n == 16  ? _mm_loadu_si128((const __m128i *)p)
           : n == 4 ? _mm_loadl_epi64((const __m128i *)p)
                    : _mm_cvtsi32_si128(*(const snail_half *)p);
}

SNAIL_WIRE_INLINE void snail_store_halves(char *p, __m128i halves, const uint32_t n) {
    if (n == 16) _mm_storeu_si128((__m128i *)p, halves);
    else if (n == 4) _mm_storel_epi64((__m128i *)p, halves);
    else *(snail_half *)p = (uint16_t)_mm_cvtsi128_si32(halves);
}

/* Lanes that the hardware would make inf, or that are not finite: rare, and left to plain C. */
SNAIL_WIRE_INLINE __m256 snail_beyond_float16(__m256 x) {
    return _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), _mm256_set1_ps(65504),
                         _CMP_NLE_UQ);
}

SNAIL_WIRE_INLINE void snail_narrow_block_f16c(const float *restrict row, char *restrict out,
                                               const uint32_t n) {
    __m256 beyond = _mm256_setzero_ps();
    for (uint32_t j = 0; j < n; j += 8) {
        const __m256 x = snail_load_floats(row + j, n);
        beyond = _mm256_or_ps(beyond, snail_beyond_float16(x));
        snail_store_halves(out + 2 * j, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), n);
    }
    if (__builtin_expect(_mm256_movemask_ps(beyond), 0)) snail_narrow_block_float16(row, out, n);
}

SNAIL_WIRE_INLINE void snail_widen_block_f16c(const char *restrict inp, float *restrict row,
                                              const uint32_t n) {
    for (uint32_t j = 0; j < n; j += 8)
        snail_store_floats(row + j, _mm256_cvtph_ps(snail_load_halves(inp + 2 * j, n)), n);
}

SNAIL_WIRE_INLINE void snail_owing_block_f16c(const float *restrict row, float *restrict residue,
                                              char *restrict out, const uint32_t n) {
    __m256 sum[2], beyond = _mm256_setzero_ps();
    for (uint32_t j = 0; j < n; j += 8) {
        const __m256 x = snail_load_floats(row + j, n), owed = snail_load_floats(residue + j, n);
        sum[j / 8] = _mm256_add_ps(x, owed);
        beyond = _mm256_or_ps(beyond, snail_beyond_float16(sum[j / 8]));
    }
    if (__builtin_expect(_mm256_movemask_ps(beyond), 0)) {
        snail_owing_block_float16(row, residue, out, n);
        return;
    }
    for (uint32_t j = 0; j < n; j += 8) {
        const __m128i halves = _mm256_cvtps_ph(sum[j / 8], _MM_FROUND_TO_NEAREST_INT);
        snail_store_halves(out + 2 * j, halves, n);
        snail_store_floats(residue + j, _mm256_sub_ps(sum[j / 8], _mm256_cvtph_ps(halves)), n);
    }
}
#endif

/* ---- rows ------------------------------------------------------------------------------------ */

#ifdef __F16C__
#define SNAIL_FLOAT16(what) snail_##what##_block_f16c
#else
#define SNAIL_FLOAT16(what) snail_##what##_block_float16
#endif

static void snail_narrow_float16(const float *restrict row, char *restrict out, uint32_t floats) {
    SNAIL_BLOCKS(SNAIL_FLOAT16(narrow)(row + i, out + 2 * i, n));
}

static void snail_widen_float16(const char *restrict inp, float *restrict row, uint32_t floats) {
    SNAIL_BLOCKS(SNAIL_FLOAT16(widen)(inp + 2 * i, row + i, n));
}

static void snail_narrow_owing_float16(const float *restrict row, float *restrict residue,
                                       char *restrict out, uint32_t floats) {
    SNAIL_BLOCKS(SNAIL_FLOAT16(owing)(row + i, residue + i, out + 2 * i, n));
}

static void snail_narrow_float32(const float *restrict row, char *restrict out, uint32_t floats) {
    memcpy(out, row, 4 * (size_t)floats);
}

static void snail_widen_float32(const char *restrict inp, float *restrict row, uint32_t floats) {
    memcpy(row, inp, 4 * (size_t)floats);
}

static void snail_narrow_owing_float32(const float *restrict row, float *restrict residue,
                                       char *restrict out, uint32_t floats) {
    for (uint32_t j = 0; j < floats; j++) {
        ((snail_loose *)out)[j] = row[j] + residue[j];
        residue[j] = 0;
    }
}

/* ---- int8 ------------------------------------------------------------------------------------ */

/* Bits of max|x|: as int exact in any order, and inf and NaN come out on top. */
SNAIL_WIRE_INLINE int32_t snail_largest(const float *row, uint32_t floats) {
    int32_t largest = 0;
    for (uint32_t j = 0; j < floats; j++) {
        const int32_t size = snail_size(row[j]);
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* The scale of a row, also written; inverse: 1 / scale, or 0 for a row whose q are all 0. */
SNAIL_WIRE_INLINE float snail_scale(int32_t largest, char *out, float *inverse) {
    const float exact = snail_float((uint32_t)largest) * (1.0f / 127);
    float scale = snail_float((snail_bits(exact) + 0x40) & 0xffffff80u);
    if (largest >= SNAIL_INF) scale = snail_float(0x7fc00000);
    else if (exact < 0x1p-126f) scale = 0;
    *inverse = scale > 0 ? 1 / scale : 0;
    *(snail_loose *)out = scale;
    return scale;
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)
/* Sixteen at a time to the end: what a compiler makes of the loops below has long tails. */
#define SNAIL_SIXTEENS(call)                                                                 \
    for (uint32_t i = 0; i < floats; i += 16) {                                              \
        const __mmask16 some = (__mmask16)(floats - i < 16 ? (1u << (floats - i)) - 1 : ~0u); \
        call;                                                                                \
    }

static void snail_narrow_int8(const float *restrict row, char *restrict out, uint32_t floats) {
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512i top = _mm512_setzero_si512();
    float inverse;
    SNAIL_SIXTEENS(top = _mm512_max_epi32(
                    top, _mm512_and_epi32(size, _mm512_maskz_loadu_epi32(some, row + i))));
    snail_scale(_mm512_reduce_max_epi32(top), out, &inverse);
    const __m512 factor = _mm512_set1_ps(inverse);
    out += 4;
    if (inverse > 0)
        SNAIL_SIXTEENS(_mm512_mask_cvtepi32_storeu_epi8(
            out + i, some,
            _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_maskz_loadu_ps(some, row + i), factor))))
    else memset(out, 0, floats);
}

static void snail_widen_int8(const char *restrict inp, float *restrict row, uint32_t floats) {
    const __m512 scale = _mm512_set1_ps(*(const snail_loose *)inp);
    inp += 4;
    SNAIL_SIXTEENS(_mm512_mask_storeu_ps(
        row + i, some,
        _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                                 _mm_maskz_loadu_epi8(some, inp + i))))))
}
#undef SNAIL_SIXTEENS
#else
static void snail_narrow_int8(const float *restrict row, char *restrict out, uint32_t floats) {
    float inverse;
    snail_scale(snail_largest(row, floats), out, &inverse);
    out += 4;
    if (inverse > 0)
        for (uint32_t j = 0; j < floats; j++) out[j] = (int8_t)(int32_t)rintf(row[j] * inverse);
    else memset(out, 0, floats);
}

static void snail_widen_int8(const char *restrict inp, float *restrict row, uint32_t floats) {
    const float scale = *(const snail_loose *)inp;
    const int8_t *restrict q = (const int8_t *)inp + 4;
    for (uint32_t j = 0; j < floats; j++) row[j] = q[j] * scale;
}
#endif

static void snail_narrow_owing_int8(const float *restrict row, float *restrict residue,
                                    char *restrict out, uint32_t floats) {
    float inverse;
    for (uint32_t j = 0; j < floats; j++) residue[j] += row[j];
    const float scale = snail_scale(snail_largest(residue, floats), out, &inverse);
    out += 4;
    if (inverse > 0)
        for (uint32_t j = 0; j < floats; j++) {
            const int32_t q = (int32_t)rintf(residue[j] * inverse);
            out[j] = (int8_t)q;
            residue[j] -= (float)q * scale;
        }
    else {
        memset(out, 0, floats);
        for (uint32_t j = 0; j < floats; j++) residue[j] = snail_owed(residue[j], scale);
    }
}

/* ---- what may be pushed ---------------------------------------------------------------------- */

/* Bytes of a step through each of four streams: they lie in as many pages, so that the processor, which
 * reads ahead inside a page only, reads ahead in four; the next page's are fetched in front. */
#define SNAIL_LOOK_STEP 128
#define SNAIL_LOOK_AHEAD 1024
#if defined(__AVX512F__)
#define SNAIL_LOOK_VECTOR 64
#elif defined(__AVX2__)
#define SNAIL_LOOK_VECTOR 32
#else
#define SNAIL_LOOK_VECTOR 16
#endif
typedef uint32_t snail_word __attribute__((aligned(1), may_alias));
typedef uint32_t snail_word_vector __attribute__((vector_size(SNAIL_LOOK_VECTOR), aligned(1), may_alias));
typedef uint16_t snail_half_vector __attribute__((vector_size(SNAIL_LOOK_VECTOR), aligned(1), may_alias));

/* A search for the first number whose exponent is `limit` or more: with `carry` added, such an
 * exponent, and no lower one, reaches the sign's place.  One pass without a branch over lines as the
 * cache has them; a second one only where there is such a number. */
#define SNAIL_SEARCH(name, kind, vector, exponents, carry)                                    \
    SNAIL_WIRE_INLINE int name##_carries(kind number) {                                       \
        return (kind)((number & exponents) + carry) >> (8 * sizeof(kind) - 1);                \
    }                                                                                         \
    static int name##_any(const char *at, const char *const end) {                            \
        vector carried = {0};                                                                 \
        int any = 0;                                                                          \
        for (; at < end && (uintptr_t)at % 64 >= sizeof(kind); at += sizeof(kind))            \
            any |= name##_carries(*(const kind *)at);                                         \
        const int64_t stream = (end - at) / 4 / SNAIL_LOOK_STEP * SNAIL_LOOK_STEP;                      \
        for (int64_t i = 0; i < stream; i += SNAIL_LOOK_STEP)                                      \
            for (int s = 0; s < 4; s++) {                                                     \
                const char *const step = at + s * stream + i;                                 \
                __builtin_prefetch(step + SNAIL_LOOK_AHEAD);                                  \
                __builtin_prefetch(step + SNAIL_LOOK_AHEAD + 64);                             \
                _Pragma("GCC unroll 8")                                                       \
                for (int v = 0; v < SNAIL_LOOK_STEP; v += SNAIL_LOOK_VECTOR)                            \
                    carried |= (*(const vector *)(step + v) & (kind)exponents) + (kind)carry; \
            }                                                                                 \
        for (uint32_t v = 0; v < SNAIL_LOOK_VECTOR / sizeof(kind); v++)                            \
            any |= carried[v] >> (8 * sizeof(kind) - 1);                                      \
        for (at += 4 * stream; at < end; at += sizeof(kind))                                  \
            any |= name##_carries(*(const kind *)at);                                         \
        return any;                                                                           \
    }                                                                                         \
    static uint64_t name(const char *rows, uint64_t stride, uint32_t n, uint32_t floats) {    \
        const int gapless = stride == sizeof(kind) * floats;                                  \
        const uint64_t length = gapless ? (uint64_t)n * floats : floats;                      \
        for (uint32_t i = 0; i < (gapless ? n != 0 : n); i++, rows += stride)                 \
            if (__builtin_expect(name##_any(rows, rows + sizeof(kind) * length), 0))          \
                for (uint64_t at = 0;; at++)                                                  \
                    if (name##_carries(((const kind *)rows)[at])) return i * length + at;     \
        return (uint64_t)n * floats;                                                          \
    }

SNAIL_SEARCH(snail_finite_float32, snail_word, snail_word_vector, 0x7f800000u, 0x00800000u)
SNAIL_SEARCH(snail_finite_float16, snail_half, snail_half_vector, 0x7c00u, 0x0400u)
/* 65,536 and more; what is between that and 65,504 rounds to it. */
SNAIL_SEARCH(snail_fitting_float16, snail_word, snail_word_vector, 0x7f800000u, 0x80000000u - 0x47800000u)

static uint64_t snail_finite_int8(const char *rows, uint64_t stride, uint32_t n, uint32_t floats) {
    for (uint32_t i = 0; i < n; i++, rows += stride) {
        const float scale = *(const snail_loose *)rows;
        if (snail_size(scale) <= 0x7b7fffff) continue; /* FLT_MAX / 128: no product is beyond */
        for (uint32_t j = 0; j < floats; j++) {
            const volatile float value = ((const int8_t *)rows + 4)[j] * scale;
            if (snail_size(value) >= SNAIL_INF) return (uint64_t)i * floats + j;
        }
    }
    return (uint64_t)n * floats;
}

#endif
