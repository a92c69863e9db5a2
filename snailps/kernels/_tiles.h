/* Register tiles and bounded approximations, in the vector width of the build at hand.
 *
 * rows, coefficients -> small matrix products.  GCC's vector type makes the same text compile to
 * SSE2, AVX2 or AVX-512 (and NEON): a `vec` is what one register holds.  Here and not in Cython
 * because the accumulators of a tile must live in registers, which plain loops over arrays do
 * not get from the compiler.  Nothing here allocates, branches on data or knows what a word is.
 *
 * Rows are 64-byte multiples long (stride % 16 == 0), so no tile has a tail.
 */
#ifndef SNAILPS_TILES_H
#define SNAILPS_TILES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "_jobs.h"
#include "_optimizers.h"

#if defined(__AVX512F__)
#define SNAIL_LANES 16
#define SNAIL_SCORE_ROWS 8   /* 8 accumulators hide the FMA's latency of 4 at 2 a cycle */
#define SNAIL_UPDATE_VECS 4  /* 4 rows x 4 vectors: 16 accumulators of 32 registers */
#elif defined(__AVX__)
#define SNAIL_LANES 8
#define SNAIL_SCORE_ROWS 4   /* 4 rows x 2 vectors of 16 registers */
#define SNAIL_UPDATE_VECS 2
#else
#define SNAIL_LANES 4
#define SNAIL_SCORE_ROWS 2
#define SNAIL_UPDATE_VECS 2
#endif

#define SNAIL_GROUP_VECS (SNAIL_GROUP / SNAIL_LANES)
#define SNAIL_UPDATE_ROWS 4
#define SNAIL_TILE SNAIL_UPDATE_ROWS

#define SNAIL_INLINE static inline __attribute__((always_inline))
#define SNAIL_APART __attribute__((noinline))

/* may_alias and the alignment of a float: a load or store of floats wherever they lie. */
typedef float snail_vec __attribute__((vector_size(4 * SNAIL_LANES), aligned(4), may_alias));
typedef float snail_quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t snail_ints __attribute__((vector_size(4 * SNAIL_LANES), aligned(4), may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define SNAIL_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t snail_quad_index __attribute__((vector_size(16)));
#define SNAIL_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (snail_quad_index){i, j, k, l})
#endif

SNAIL_INLINE snail_vec snail_load(const float *p) { return *(const snail_vec *)p; }
SNAIL_INLINE void snail_store(float *p, snail_vec v) { *(snail_vec *)p = v; }

SNAIL_INLINE snail_vec snail_all(float x) { return x - (snail_vec){0}; }

/* ---- AdaGrad: rows[d] += rate * g / (sqrt(squares[d] + g * g) + epsilon) --------------------- */

/* 1 / (sqrt(x) + epsilon), x >= 0, epsilon > 0.  Exact root and division take longer than the rest of a
 * step, so wide registers estimate both and improve each by one step of Newton's method: to 1e-6. */
SNAIL_INLINE snail_vec snail_inverse_root(snail_vec x, float epsilon) {
#if defined(__AVX__)
    const snail_vec above = x + 1e-30f; /* so that x = 0 gives 0 times a finite number, not 0 * inf */
#if defined(__AVX512F__)
    snail_vec inverse = (snail_vec)_mm512_rsqrt14_ps((__m512)above);
#else
    snail_vec inverse = (snail_vec)_mm256_rsqrt_ps((__m256)above);
#endif
    const snail_vec root = x * inverse * (1.5f - 0.5f * above * inverse * inverse) + epsilon;
#if defined(__AVX512F__)
    inverse = (snail_vec)_mm512_rcp14_ps((__m512)root);
#else
    inverse = (snail_vec)_mm256_rcp_ps((__m256)root);
#endif
    return inverse * (2.0f - root * inverse);
#else
    snail_vec root;
    for (int i = 0; i < SNAIL_LANES; i++) root[i] = sqrtf(x[i]);
    return 1.0f / (root + epsilon);
#endif
}

/* A step of some weights, whose sums of squares are `squares`; returns the weights. */
SNAIL_INLINE snail_vec snail_adagrad_step(snail_vec weights, float *squares, snail_vec g, float rate,
                                          float epsilon) {
    const snail_vec total = snail_load(squares) + g * g;
    snail_store(squares, total);
    return weights + rate * g * snail_inverse_root(total, epsilon);
}

/* ---- scores: out[r][lane] = sum over d of rows[r][d] * across[d][lane] ---------------------- */

SNAIL_INLINE void snail_score_tile(const int row_num, const float *const *rows,
                                   const float *across, int dim, float *out) {
    snail_vec acc[SNAIL_SCORE_ROWS][SNAIL_GROUP_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < row_num; r++)
#pragma GCC unroll 4
        for (int v = 0; v < SNAIL_GROUP_VECS; v++) acc[r][v] = (snail_vec){0};
    for (int d = 0; d < dim; d++, across += SNAIL_GROUP) {
        snail_vec column[SNAIL_GROUP_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < SNAIL_GROUP_VECS; v++) column[v] = snail_load(across + v * SNAIL_LANES);
#pragma GCC unroll 8
        for (int r = 0; r < row_num; r++)
#pragma GCC unroll 4
            for (int v = 0; v < SNAIL_GROUP_VECS; v++) acc[r][v] += rows[r][d] * column[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < row_num; r++)
#pragma GCC unroll 4
        for (int v = 0; v < SNAIL_GROUP_VECS; v++)
            snail_store(out + r * SNAIL_GROUP + v * SNAIL_LANES, acc[r][v]);
}

static void snail_score(int row_num, const float *const *rows, const float *across, int dim,
                        float *out) {
    int r = 0;
    for (; r + SNAIL_SCORE_ROWS <= row_num; r += SNAIL_SCORE_ROWS)
        snail_score_tile(SNAIL_SCORE_ROWS, rows + r, across, dim, out + r * SNAIL_GROUP);
#if SNAIL_SCORE_ROWS > 4
    for (; r + 4 <= row_num; r += 4)
        snail_score_tile(4, rows + r, across, dim, out + r * SNAIL_GROUP);
#endif
#if SNAIL_SCORE_ROWS > 2
    for (; r + 2 <= row_num; r += 2)
        snail_score_tile(2, rows + r, across, dim, out + r * SNAIL_GROUP);
#endif
    for (; r < row_num; r++) snail_score_tile(1, rows + r, across, dim, out + r * SNAIL_GROUP);
}

/* Squared lengths of the lanes; stride is a multiple of 4. */
static void snail_lengths2(const float *across, int64_t stride, float *out) {
    for (int v = 0; v < SNAIL_GROUP; v += SNAIL_LANES) {
        snail_vec sum[4] = {{0}, {0}, {0}, {0}};
        for (int64_t d = 0; d < stride; d += 4)
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                const snail_vec x = snail_load(across + (d + k) * SNAIL_GROUP + v);
                sum[k] += x * x;
            }
        snail_store(out + v, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
}

/* ---- updates: dst[r] (+)= sum over k of coef[k * by_k + r * by_r] * src[k], 4 rows r ---------
 *
 * The sum is complete before a row is loaded, added to and stored.  So where threads race for a row, the
 * time in which an addition of another thread is lost is one load and one store, not the whole sum. */

SNAIL_INLINE void snail_update_tile(const int vec_num, const int by_k, const int by_r, const int add,
                                    int src_num, const float *const *src, const float *coef,
                                    float *const *dst, int at) {
    snail_vec acc[SNAIL_UPDATE_ROWS][SNAIL_UPDATE_VECS];
#pragma GCC unroll 4
    for (int r = 0; r < SNAIL_UPDATE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) acc[r][v] = (snail_vec){0};
    for (int k = 0; k < src_num; k++, coef += by_k) {
        snail_vec x[SNAIL_UPDATE_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) x[v] = snail_load(src[k] + at + v * SNAIL_LANES);
#pragma GCC unroll 4
        for (int r = 0; r < SNAIL_UPDATE_ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vec_num; v++) acc[r][v] += coef[r * by_r] * x[v];
    }
    /* Two of the rows may be the same memory (a noise word drawn twice), so each is loaded only after the
     * one before it was stored: else one of the two additions would be lost. */
#pragma GCC unroll 4
    for (int r = 0; r < SNAIL_UPDATE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) {
            float *to = dst[r] + at + v * SNAIL_LANES;
            if (add) acc[r][v] += snail_load(to);
            snail_store(to, acc[r][v]);
        }
}

SNAIL_INLINE void snail_update(const int by_k, const int by_r, const int add, int src_num,
                               const float *const *src, const float *coef, float *const *dst,
                               int stride) {
    int at = 0;
    for (; at + SNAIL_UPDATE_VECS * SNAIL_LANES <= stride; at += SNAIL_UPDATE_VECS * SNAIL_LANES)
        snail_update_tile(SNAIL_UPDATE_VECS, by_k, by_r, add, src_num, src, coef, dst, at);
#if SNAIL_UPDATE_VECS * SNAIL_LANES > 16
    switch ((stride - at) / SNAIL_LANES) {
    case 3: snail_update_tile(3, by_k, by_r, add, src_num, src, coef, dst, at); break;
    case 2: snail_update_tile(2, by_k, by_r, add, src_num, src, coef, dst, at); break;
    case 1: snail_update_tile(1, by_k, by_r, add, src_num, src, coef, dst, at); break;
    default: break;
    }
#endif
}

/* dst[r] = (or +=) sum over k of coef[k][r] * src[k]; coef has GROUP columns: gradients and means
 * of the lanes. */
static void snail_lanes_from_rows(int add, int src_num, const float *const *src, const float *coef,
                                  float *const *dst, int stride) {
    if (add)
        snail_update(SNAIL_GROUP, 1, 1, src_num, src, coef, dst, stride);
    else
        snail_update(SNAIL_GROUP, 1, 0, src_num, src, coef, dst, stride);
}

/* dst[r] += sum over lanes k of coef[r][k] * src[k]: gradients of the rows. */
static void snail_rows_from_lanes(int lane_num, const float *const *src, const float *coef,
                                  float *const *dst, int stride) {
    snail_update(1, SNAIL_GROUP, 1, lane_num, src, coef, dst, stride);
}

/* dst[r] = the same sum alone: what AdaGrad makes a step of. */
static void snail_gradients_from_lanes(int lane_num, const float *const *src, const float *coef,
                                       float *const *dst, int stride) {
    snail_update(1, SNAIL_GROUP, 0, lane_num, src, coef, dst, stride);
}

/* Sums over the lanes of 4 vectors. */
SNAIL_INLINE snail_quad snail_sum_lanes(const snail_vec *v) {
#if defined(__AVX512F__)
    const __m512 a = (__m512)v[0], b = (__m512)v[1], c = (__m512)v[2], d = (__m512)v[3];
    const __m512d ab = (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512d cd = (__m512d)_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 q = (__m512)_mm512_unpacklo_pd(ab, cd) + (__m512)_mm512_unpackhi_pd(ab, cd);
    const __m256 half = _mm512_castps512_ps256(q) + _mm512_extractf32x8_ps(q, 1);
    return (snail_quad)(_mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
#elif defined(__AVX__)
    const __m256 a = (__m256)v[0], b = (__m256)v[1], c = (__m256)v[2], d = (__m256)v[3];
    const __m256 q = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return (snail_quad)(_mm256_castps256_ps128(q) + _mm256_extractf128_ps(q, 1));
#else
    const snail_vec ab = SNAIL_SHUFFLE(v[0], v[1], 0, 4, 1, 5) + SNAIL_SHUFFLE(v[0], v[1], 2, 6, 3, 7);
    const snail_vec cd = SNAIL_SHUFFLE(v[2], v[3], 0, 4, 1, 5) + SNAIL_SHUFFLE(v[2], v[3], 2, 6, 3, 7);
    return SNAIL_SHUFFLE(ab, cd, 0, 1, 4, 5) + SNAIL_SHUFFLE(ab, cd, 2, 3, 6, 7);
#endif
}

/* Prefetches a row that will be read and written. */
SNAIL_INLINE void snail_prefetch_row(const float *row, int64_t stride) {
    const float *end = row + stride;
    for (; row + 4 * SNAIL_PAD <= end; row += 4 * SNAIL_PAD)
#pragma GCC unroll 4
        for (int line = 0; line < 4; line++) __builtin_prefetch(row + line * SNAIL_PAD, 1, 3);
    for (; row < end; row += SNAIL_PAD) __builtin_prefetch(row, 1, 3);
}

/* ---- sums of rows ------------------------------------------------------------------------------ */

SNAIL_INLINE void snail_sum_tile(const int vec_num, int row_num, const int32_t *rows,
                                 const float *weights, const float *table, int64_t stride,
                                 float scale, float *out) {
    snail_vec acc[8];
#pragma GCC unroll 8
    for (int v = 0; v < vec_num; v++) acc[v] = (snail_vec){0};
    for (int r = 0; r < row_num; r++) {
        const float *row = table + rows[r] * stride;
        const float weight = weights ? weights[r] : 1;
#pragma GCC unroll 8
        for (int v = 0; v < vec_num; v++) acc[v] += weight * snail_load(row + v * SNAIL_LANES);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vec_num; v++) snail_store(out + v * SNAIL_LANES, acc[v] * scale);
}

SNAIL_INLINE void snail_sum_tiles(int row_num, const int32_t *rows, const float *weights,
                                  const float *table, int64_t stride, float scale, float *out) {
    int64_t left = stride / SNAIL_LANES;
    for (; left >= 8; left -= 8, table += 8 * SNAIL_LANES, out += 8 * SNAIL_LANES)
        snail_sum_tile(8, row_num, rows, weights, table, stride, scale, out);
    switch (left) {
    case 7: snail_sum_tile(7, row_num, rows, weights, table, stride, scale, out); break;
    case 6: snail_sum_tile(6, row_num, rows, weights, table, stride, scale, out); break;
    case 5: snail_sum_tile(5, row_num, rows, weights, table, stride, scale, out); break;
    case 4: snail_sum_tile(4, row_num, rows, weights, table, stride, scale, out); break;
    case 3: snail_sum_tile(3, row_num, rows, weights, table, stride, scale, out); break;
    case 2: snail_sum_tile(2, row_num, rows, weights, table, stride, scale, out); break;
    case 1: snail_sum_tile(1, row_num, rows, weights, table, stride, scale, out); break;
    default: break;
    }
}

/* out = scale * sum of weights[r] * table[rows[r]], stride floats; `weights` NULL: all are 1. */
static void snail_sum_rows(int row_num, const int32_t *rows, const float *weights, const float *table,
                           int64_t stride, float scale, float *out) {
    if (weights) snail_sum_tiles(row_num, rows, weights, table, stride, scale, out);
    else snail_sum_tiles(row_num, rows, NULL, table, stride, scale, out);
}

/* ---- transposition: to[c][r] = from[r][c], rows and columns multiples of 4 ------------------- */

SNAIL_INLINE void snail_across(const float *from, int rows, int columns, float *to) {
    for (int r = 0; r < rows; r += 4) {
        const float *row = from + r * columns;
        for (int c = 0; c < columns; c += 4) {
            snail_quad a = *(const snail_quad *)(row + c);
            snail_quad b = *(const snail_quad *)(row + columns + c);
            snail_quad d = *(const snail_quad *)(row + 2 * columns + c);
            snail_quad e = *(const snail_quad *)(row + 3 * columns + c);
            snail_quad ab0 = SNAIL_SHUFFLE(a, b, 0, 4, 1, 5);
            snail_quad ab2 = SNAIL_SHUFFLE(a, b, 2, 6, 3, 7);
            snail_quad de0 = SNAIL_SHUFFLE(d, e, 0, 4, 1, 5);
            snail_quad de2 = SNAIL_SHUFFLE(d, e, 2, 6, 3, 7);
            float *here = to + c * rows + r;
            *(snail_quad *)(here) = SNAIL_SHUFFLE(ab0, de0, 0, 1, 4, 5);
            *(snail_quad *)(here + rows) = SNAIL_SHUFFLE(ab0, de0, 2, 3, 6, 7);
            *(snail_quad *)(here + 2 * rows) = SNAIL_SHUFFLE(ab2, de2, 0, 1, 4, 5);
            *(snail_quad *)(here + 3 * rows) = SNAIL_SHUFFLE(ab2, de2, 2, 3, 6, 7);
        }
    }
}

static void snail_transpose(const float *along, int stride, float *across) {
    snail_across(along, SNAIL_GROUP, stride, across);
}

/* ---- approximations: branch-free, so that loops over them vectorise -------------------------- */

SNAIL_INLINE float snail_as_float(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

SNAIL_INLINE int32_t snail_as_int(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* exp(x) for |x| <= 80.  2^n by the exponent field, n the integer nearest to x / ln 2, times the
 * Taylor polynomial of degree 6 on |f| <= ln 2 / 2: relative error below 3e-7. */
SNAIL_INLINE float snail_exp(float x) {
    float scaled = x * 1.44269504f;
    int32_t n = (int32_t)(scaled + 128.5f) - 128; /* truncates a positive number: rounds, no branch */
    float f = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * f + 1.0f / 120;
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    return p * snail_as_float((n + 127) << 23);
}

/* Logistic function, its argument bounded to +-30: absolute error below 3e-7. */
SNAIL_INLINE float snail_sigmoid(float x) {
    x = x > 30.0f ? 30.0f : x;
    x = x < -30.0f ? -30.0f : x;
    return 1.0f / (1.0f + snail_exp(-x));
}

/* Natural logarithm of a normal, positive x: absolute error below 1e-6 + 1e-7 |ln x|.  x = m 2^n,
 * m in [sqrt 1/2, sqrt 2); ln m = 2 artanh((m - 1) / (m + 1)), the series up to the 9th power. */
SNAIL_INLINE float snail_log(float x) {
    int32_t bits = snail_as_int(x) - 0x3f3504f3;
    int32_t n = bits >> 23;
    float m = snail_as_float((bits & 0x7fffff) + 0x3f3504f3);
    float t = (m - 1.0f) / (m + 1.0f);
    float tt = t * t;
    float p = 2.0f / 9;
    p = p * tt + 2.0f / 7;
    p = p * tt + 2.0f / 5;
    p = p * tt + 2.0f / 3;
    p = p * tt + 2.0f;
    return p * t + n * 0.69314718f;
}

/* ---- the same of a register ------------------------------------------------------------------- */

/* x, its values bounded to +-most. */
SNAIL_INLINE snail_vec snail_bounded(snail_vec x, float most) {
#if defined(__AVX512F__)
    const __m512 high = _mm512_set1_ps(most), low = _mm512_set1_ps(-most);
    return (snail_vec)_mm512_max_ps(_mm512_min_ps((__m512)x, high), low);
#elif defined(__AVX__)
    const __m256 high = _mm256_set1_ps(most), low = _mm256_set1_ps(-most);
    return (snail_vec)_mm256_max_ps(_mm256_min_ps((__m256)x, high), low);
#else
    for (int i = 0; i < SNAIL_LANES; i++) {
        x[i] = x[i] > most ? most : x[i];
        x[i] = x[i] < -most ? -most : x[i];
    }
    return x;
#endif
}

/* 1 / x, x > 0: an estimate and a step of Newton's method take a third of a division's time. */
SNAIL_INLINE snail_vec snail_inverse(snail_vec x) {
#if defined(__AVX512F__)
    const snail_vec inverse = (snail_vec)_mm512_rcp14_ps((__m512)x);
    return inverse * (2.0f - x * inverse);
#elif defined(__AVX__)
    const snail_vec inverse = (snail_vec)_mm256_rcp_ps((__m256)x);
    return inverse * (2.0f - x * inverse);
#else
    return 1.0f / x;
#endif
}

/* exp(x), |x| <= 80: see snail_exp. */
SNAIL_INLINE snail_vec snail_exps(snail_vec x) {
    const snail_ints n = __builtin_convertvector(x * 1.44269504f + 128.5f, snail_ints) - 128;
    const snail_vec whole = __builtin_convertvector(n, snail_vec);
    const snail_vec f = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    snail_vec p = f * (1.0f / 720) + 1.0f / 120;
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    return p * (snail_vec)((n + 127) << 23);
}

/* ln x of normal, positive x: see snail_log. */
SNAIL_INLINE snail_vec snail_logs(snail_vec x) {
    const snail_ints bits = (snail_ints)x - 0x3f3504f3, n = bits >> 23;
    const snail_vec m = (snail_vec)((bits & 0x7fffff) + 0x3f3504f3);
    const snail_vec t = (m - 1.0f) * snail_inverse(m + 1.0f), tt = t * t;
    snail_vec p = tt * (2.0f / 9) + 2.0f / 7;
    p = p * tt + 2.0f / 5;
    p = p * tt + 2.0f / 3;
    p = p * tt + 2.0f;
    return p * t + __builtin_convertvector(n, snail_vec) * 0.69314718f;
}

/* A sum of logarithms, kept as the logarithm of a product: up to 100 factors of at least 1. */
typedef struct {
    snail_vec mantissas; /* product */
    snail_ints exponents;
} snail_log_sum;

SNAIL_INLINE snail_log_sum snail_no_logs(void) {
    const snail_log_sum none = {snail_all(1.0f), {0}};
    return none;
}

SNAIL_INLINE void snail_add_logs(snail_log_sum *sum, snail_vec x) {
    const snail_ints bits = (snail_ints)x;
    sum->exponents += (bits >> 23) - 127;
    sum->mantissas *= (snail_vec)((bits & 0x7fffff) | 0x3f800000);
}

SNAIL_INLINE snail_vec snail_sum_of_logs(const snail_log_sum *sum) {
    return snail_logs(sum->mantissas) +
           __builtin_convertvector(sum->exponents, snail_vec) * 0.69314718f;
}

/* Judges scores, x = logit - score for a true word and score - logit for noise: returns the probability
 * of the wrong answer, and in *odds the exponential of its loss, 1 + exp(x). */
SNAIL_INLINE snail_vec snail_wrong(snail_vec x, snail_vec *odds) {
    const snail_vec e = snail_exps(snail_bounded(x, 30.0f));
    *odds = 1.0f + e;
    return e * snail_inverse(*odds);
}

/* Turns the scores of noise rows into coefficients, in place; adds each lane's loss.
 *
 * A row counts `full` times in a lane, or weight[t] times if some[t] is set. */
static void snail_judge_noise_rows(int row_num, float (*restrict coef)[SNAIL_GROUP],
                                   const float *restrict logit, float rate,
                                   const float *restrict full,
                                   float (*restrict weight)[SNAIL_GROUP], const uint8_t *some,
                                   float *restrict loss) {
    for (int v = 0; v < SNAIL_GROUP; v += SNAIL_LANES) {
        const snail_vec often = snail_load(full + v), pull = often * -rate;
        snail_log_sum sum = snail_no_logs();
        snail_vec less = {0}, odds;
        for (int t = 0; t < row_num; t++) {
            const snail_vec wrong = snail_wrong(snail_load(coef[t] + v) - logit[t], &odds);
            snail_add_logs(&sum, odds);
            if (some[t]) {
                const snail_vec own = snail_load(weight[t] + v);
                less += (often - own) * snail_logs(odds);
                snail_store(coef[t] + v, wrong * own * -rate);
            } else {
                snail_store(coef[t] + v, wrong * pull);
            }
        }
        snail_store(loss + v, snail_load(loss + v) + often * snail_sum_of_logs(&sum) - less);
    }
}

/* Turns the scores of `num` true words into coefficients, in place; adds their losses. */
SNAIL_INLINE void snail_judge_true(float *restrict score, const float *restrict logit, int num,
                                   float rate, float *restrict loss) {
    for (int v = 0; v < SNAIL_GROUP; v += SNAIL_LANES) {
        snail_vec odds, wrong = snail_wrong(snail_load(logit + v) - snail_load(score + v), &odds);
        float some[SNAIL_LANES];
        for (int i = 0; i < SNAIL_LANES; i++) some[i] = v + i < num;
        snail_store(score + v, wrong * rate);
        snail_store(loss + v, snail_load(loss + v) + snail_load(some) * snail_logs(odds));
    }
}

/* Dot products of a hidden vector and up to 4 rows; writes 4 numbers. */
SNAIL_INLINE void snail_dots(const int num, const float *hidden, float *const *rows, int64_t stride,
                             float *out) {
    snail_vec sum[SNAIL_TILE];
#pragma GCC unroll 4
    for (int r = 0; r < SNAIL_TILE; r++) sum[r] = (snail_vec){0};
    for (int64_t d = 0; d < stride; d += SNAIL_LANES) {
        const snail_vec x = snail_load(hidden + d);
#pragma GCC unroll 4
        for (int r = 0; r < num; r++) sum[r] += x * snail_load(rows[r] + d);
    }
    *(snail_quad *)out = snail_sum_lanes(sum);
}

/* gradient += sum of pull[r] * rows[r], then rows[r] += pull[r] * hidden. */
SNAIL_INLINE void snail_meet(const int num, const float *restrict hidden, float *const *rows,
                             const float *pull, float *restrict gradient, int64_t stride) {
    for (int64_t d = 0; d < stride; d += SNAIL_LANES) {
        const snail_vec h = snail_load(hidden + d);
        snail_vec sum = snail_load(gradient + d);
#pragma GCC unroll 4
        for (int r = 0; r < num; r++) {
            const snail_vec x = snail_load(rows[r] + d);
            sum += pull[r] * x;
            snail_store(rows[r] + d, x + pull[r] * h);
        }
        snail_store(gradient + d, sum);
    }
}

/* The same with AdaGrad, whose gradients have no rate in them; the rows are different ones of `table`, and
 * their sums of squares lie as they do. */
SNAIL_INLINE void snail_meet_adagrad(const int num, const float *restrict hidden, float *const *rows,
                                     const float *pull, float *restrict gradient, int64_t stride,
                                     const float *table, float *table_squares, float rate,
                                     float epsilon) {
    for (int64_t d = 0; d < stride; d += SNAIL_LANES) {
        const snail_vec h = snail_load(hidden + d);
        snail_vec sum = snail_load(gradient + d);
        for (int r = 0; r < num; r++) {
            const snail_vec x = snail_load(rows[r] + d);
            sum += pull[r] * x;
            float *squares = table_squares + (rows[r] - table);
            snail_store(rows[r] + d,
                        snail_adagrad_step(x, squares + d, pull[r] * h, rate, epsilon));
        }
        snail_store(gradient + d, sum);
    }
}

/* snail_dots of any number of rows; `out` has room for a multiple of SNAIL_TILE. */
SNAIL_INLINE void snail_dots_of(int num, const float *hidden, float *const *rows, int64_t stride,
                                float *out) {
    for (int i = 0; i < num; i += SNAIL_TILE)
        switch (num - i) {
        case 1: snail_dots(1, hidden, rows + i, stride, out + i); break;
        case 2: snail_dots(2, hidden, rows + i, stride, out + i); break;
        case 3: snail_dots(3, hidden, rows + i, stride, out + i); break;
        default: snail_dots(4, hidden, rows + i, stride, out + i); break;
        }
}

/* snail_meet of any number of different rows. */
SNAIL_INLINE void snail_meet_all(int num, const float *hidden, float *const *rows, const float *pull,
                                 float *gradient, int64_t stride) {
    for (int i = 0; i < num; i += SNAIL_TILE)
        switch (num - i) {
        case 1: snail_meet(1, hidden, rows + i, pull + i, gradient, stride); break;
        case 2: snail_meet(2, hidden, rows + i, pull + i, gradient, stride); break;
        case 3: snail_meet(3, hidden, rows + i, pull + i, gradient, stride); break;
        default: snail_meet(4, hidden, rows + i, pull + i, gradient, stride); break;
        }
}

/* sin(2 pi u) for |u| <= 1/4: Taylor up to the 11th power, absolute error below 2e-7. */
SNAIL_INLINE float snail_sin_turns(float u) {
    float x = u * 6.28318531f;
    float xx = x * x;
    float p = -1.0f / 39916800;
    p = p * xx + 1.0f / 362880;
    p = p * xx - 1.0f / 5040;
    p = p * xx + 1.0f / 120;
    p = p * xx - 1.0f / 6;
    p = p * xx + 1.0f;
    return p * x;
}

/* Uniform on the 24-bit grid of [-2^23, 2^23), from the high bits of a draw. */
SNAIL_INLINE float snail_grid(uint64_t draw) {
    return (float)((int32_t)(uint32_t)(draw >> 40) - (1 << 23));
}

/* Standard normal from one draw (Box and Muller, 1958), at most 5.8 from 0. */
SNAIL_INLINE float snail_normal(uint64_t draw) {
    float u = (float)((int32_t)(draw >> 40) + 1) * (1.0f / 16777216);      /* (0, 1] */
    float v = (float)(int32_t)(draw & 0xffffff) * (1.0f / 16777216);       /* [0, 1) */
    float turned = v - 0.5f;
    float r2 = -2.0f * snail_log(u);
    r2 = r2 < 0 ? 0 : r2;
    return __builtin_sqrtf(r2) * snail_sin_turns((turned < 0 ? -turned : turned) - 0.25f);
}

#endif
