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

#define SNAIL_INLINE static inline __attribute__((always_inline))
#define SNAIL_APART __attribute__((noinline))

/* may_alias and the alignment of a float: a load or store of floats wherever they lie. */
typedef float snail_vec __attribute__((vector_size(4 * SNAIL_LANES), aligned(4), may_alias));
typedef float snail_quad __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define SNAIL_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t snail_quad_index __attribute__((vector_size(16)));
#define SNAIL_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, (snail_quad_index){i, j, k, l})
#endif

SNAIL_INLINE snail_vec snail_load(const float *p) { return *(const snail_vec *)p; }
SNAIL_INLINE void snail_store(float *p, snail_vec v) { *(snail_vec *)p = v; }

/* ---- AdaGrad: rows[d] += rate * g / (sqrt(squares[d] + g * g) + epsilon) --------------------- */

/* 1 / (sqrt(x) + epsilon), x >= 0, epsilon > 0.  Root and division proper take longer than all else of a
 * step, so wide registers estimate both and take a step of Newton's method each: to 1e-6. */
SNAIL_INLINE snail_vec snail_inverse_root(snail_vec x, float epsilon) {
#if defined(__AVX__)
    const snail_vec above = x + 1e-30f; /* the root of 0 is 0 times something finite */
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

/* ---- updates: dst[r] (+)= sum over k of coef[k * by_k + r * by_r] * src[k], 4 rows r --------- */

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
    /* Two of the rows may be the same memory (a word twice in a group): strictly in turn. */
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

/* Asks for a row that will be read and written. */
SNAIL_INLINE void snail_prefetch_row(const float *row, int64_t stride) {
    for (int64_t line = 0; line < stride / SNAIL_PAD; line++)
        __builtin_prefetch(row + line * SNAIL_PAD, 1, 3);
}

/* ---- sums of rows ------------------------------------------------------------------------------ */

SNAIL_INLINE void snail_sum_tile(const int vec_num, int row_num, const int32_t *rows,
                                 const float *table, int64_t stride, float scale, float *out) {
    snail_vec acc[8];
#pragma GCC unroll 8
    for (int v = 0; v < vec_num; v++) acc[v] = (snail_vec){0};
    for (int r = 0; r < row_num; r++) {
        const float *row = table + rows[r] * stride;
#pragma GCC unroll 8
        for (int v = 0; v < vec_num; v++) acc[v] += snail_load(row + v * SNAIL_LANES);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vec_num; v++) snail_store(out + v * SNAIL_LANES, acc[v] * scale);
}

/* out = scale * sum of table[rows[r]], stride floats. */
static void snail_sum_rows(int row_num, const int32_t *rows, const float *table, int64_t stride,
                           float scale, float *out) {
    int64_t left = stride / SNAIL_LANES;
    for (; left >= 8; left -= 8, table += 8 * SNAIL_LANES, out += 8 * SNAIL_LANES)
        snail_sum_tile(8, row_num, rows, table, stride, scale, out);
    switch (left) {
    case 7: snail_sum_tile(7, row_num, rows, table, stride, scale, out); break;
    case 6: snail_sum_tile(6, row_num, rows, table, stride, scale, out); break;
    case 5: snail_sum_tile(5, row_num, rows, table, stride, scale, out); break;
    case 4: snail_sum_tile(4, row_num, rows, table, stride, scale, out); break;
    case 3: snail_sum_tile(3, row_num, rows, table, stride, scale, out); break;
    case 2: snail_sum_tile(2, row_num, rows, table, stride, scale, out); break;
    case 1: snail_sum_tile(1, row_num, rows, table, stride, scale, out); break;
    default: break;
    }
}

/* ---- transposition: across[d][lane] = along[lane][d] ------------------------------------------ */

static void snail_transpose(const float *along, int stride, float *across) {
    for (int lane = 0; lane < SNAIL_GROUP; lane += 4) {
        const float *row = along + lane * stride;
        for (int d = 0; d < stride; d += 4) {
            snail_quad a = *(const snail_quad *)(row + d);
            snail_quad b = *(const snail_quad *)(row + stride + d);
            snail_quad c = *(const snail_quad *)(row + 2 * stride + d);
            snail_quad e = *(const snail_quad *)(row + 3 * stride + d);
            snail_quad ab0 = SNAIL_SHUFFLE(a, b, 0, 4, 1, 5);
            snail_quad ab2 = SNAIL_SHUFFLE(a, b, 2, 6, 3, 7);
            snail_quad ce0 = SNAIL_SHUFFLE(c, e, 0, 4, 1, 5);
            snail_quad ce2 = SNAIL_SHUFFLE(c, e, 2, 6, 3, 7);
            float *to = across + d * SNAIL_GROUP + lane;
            *(snail_quad *)(to) = SNAIL_SHUFFLE(ab0, ce0, 0, 1, 4, 5);
            *(snail_quad *)(to + SNAIL_GROUP) = SNAIL_SHUFFLE(ab0, ce0, 2, 3, 6, 7);
            *(snail_quad *)(to + 2 * SNAIL_GROUP) = SNAIL_SHUFFLE(ab2, ce2, 0, 1, 4, 5);
            *(snail_quad *)(to + 3 * SNAIL_GROUP) = SNAIL_SHUFFLE(ab2, ce2, 2, 3, 6, 7);
        }
    }
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
    int32_t n = (int32_t)(scaled + 128.5f) - 128; /* positive before it is cut: rounds, no branch */
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

/* Scores of one row -> its coefficients, in place, and each lane's loss.  sign is +1 for a positive
 * word, -1 for noise; q is the probability that the truth gets. */
static void snail_judge(float *restrict coef, float noise_logit, float sign, float rate,
                        const float *restrict weight, float *restrict loss) {
    for (int i = 0; i < SNAIL_GROUP; i++) {
        float q = snail_sigmoid(sign * (coef[i] - noise_logit));
        loss[i] -= weight[i] * snail_log(q);
        coef[i] = sign * rate * weight[i] * (1.0f - q);
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
