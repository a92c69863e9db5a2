/* Sums over the rows of an example, and one step of a row, for factorization machines.
 *
 * rows, values -> sums, squares          coefficient, row, its gradient's parts -> the row, stepped
 *
 * In C and not in Cython for `restrict` and for sums that stay in registers over all rows of an
 * example.  Rows consist of parts (weights, then the state of the method), each `stride` floats
 * long, a multiple of 16; what pads them is 0 and stays 0.
 */
#ifndef SNAILPS_FM_H
#define SNAILPS_FM_H

#include <math.h>
#include <stdint.h>

#include "_tiles.h"

#define SNAIL_FM_TILE 16

/* What all steps of one example share. */
typedef struct {
    const float *rate;  /* [stride]: step size of each column; not ftrl's */
    const float *decay; /* [stride]: L2 of each column; not ftrl's */
    float eps;          /* adagrad's */
    float per_rate;     /* ftrl's: 1 / alpha */
    float base;         /* beta / alpha + l2 */
    float l1;
} snail_fm_by;

/* sums[j] (+)= x_i row_i[j] over i, squares[j] (+)= its square; `add`: to what is there. */
SNAIL_INLINE void snail_fm_sums(const int add, int64_t row_num, const float *const *rows,
                                const float *x, int64_t stride, float *restrict sums,
                                float *restrict squares) {
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE) {
        snail_vec sum[SNAIL_FM_TILE / SNAIL_LANES], square[SNAIL_FM_TILE / SNAIL_LANES];
#pragma GCC unroll 4
        for (int v = 0; v < SNAIL_FM_TILE / SNAIL_LANES; v++) {
            sum[v] = add ? snail_load(sums + at + v * SNAIL_LANES) : (snail_vec){0};
            square[v] = add ? snail_load(squares + at + v * SNAIL_LANES) : (snail_vec){0};
        }
        for (int64_t i = 0; i < row_num; i++)
#pragma GCC unroll 4
            for (int v = 0; v < SNAIL_FM_TILE / SNAIL_LANES; v++) {
                snail_vec part = x[i] * snail_load(rows[i] + at + v * SNAIL_LANES);
                sum[v] += part;
                square[v] += part * part;
            }
#pragma GCC unroll 4
        for (int v = 0; v < SNAIL_FM_TILE / SNAIL_LANES; v++) {
            snail_store(sums + at + v * SNAIL_LANES, sum[v]);
            snail_store(squares + at + v * SNAIL_LANES, square[v]);
        }
    }
}

/* to's factor for field g = field f's factor of sums[g], for each of `seen` fields g: n^2 short
 * copies an example, so whole registers where the length allows it. */
SNAIL_INLINE void snail_fm_turn(int64_t seen, const int32_t *fields, int64_t f, int64_t factors,
                                const float *restrict sums, int64_t stride, float *restrict to) {
    const float *from = sums + 1 + f * factors;
    to++;
    if (factors == 4)
        for (int64_t i = 0; i < seen; i++)
            *(snail_quad *)(to + fields[i] * 4) = *(const snail_quad *)(from + fields[i] * stride);
    else
        for (int64_t i = 0; i < seen; i++)
            for (int64_t j = 0; j < factors; j++)
                to[fields[i] * factors + j] = from[fields[i] * stride + j];
}

/* Sum of (a b - c) over all columns. */
SNAIL_INLINE float snail_fm_products(const float *restrict a, const float *restrict b,
                                     const float *restrict c, int64_t stride) {
    float total = 0;
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE)
        for (int64_t j = at; j < at + SNAIL_FM_TILE; j++) total += a[j] * b[j] - c[j];
    return total;
}

/* Column j's gradient is c (pull_j - x own_j w_j): `pull` is the sum over the other features and
 * this one, of which `own` (1 or 0) takes this one out again.  L2 only where `pull` is something:
 * factors for fields that the example lacks stay as they are.  (Not where the gradient is: that of
 * a lone feature's factors is 0, or what rounding left of it.) */
SNAIL_INLINE float snail_fm_gradient(float c, float x, float pull, float own, float w) {
    return c * (pull - x * own * w);
}

SNAIL_INLINE void snail_fm_sgd(const snail_fm_by *by, float *row, float c, float x,
                               const float *restrict pull, const float *restrict own,
                               int64_t stride) {
    float *restrict w = row;
    const float *restrict rate = by->rate, *restrict decay = by->decay;
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE)
        for (int64_t j = at; j < at + SNAIL_FM_TILE; j++) {
            const float g = snail_fm_gradient(c, x, pull[j], own[j], w[j]);
            w[j] -= rate[j] * (g + (pull[j] != 0 ? decay[j] * w[j] : 0.0f));
        }
}

SNAIL_INLINE void snail_fm_adagrad(const snail_fm_by *by, float *row, float c, float x,
                                   const float *restrict pull, const float *restrict own,
                                   int64_t stride) {
    float *restrict w = row;
    float *restrict s = row + stride;
    const float *restrict rate = by->rate, *restrict decay = by->decay;
    const float eps = by->eps;
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE)
        for (int64_t j = at; j < at + SNAIL_FM_TILE; j++) {
            float g = snail_fm_gradient(c, x, pull[j], own[j], w[j]);
            g += pull[j] != 0 ? decay[j] * w[j] : 0.0f;
            const float total = s[j] + g * g;
            s[j] = total;
            w[j] -= rate[j] * g / (sqrtf(total) + eps);
        }
}

/* z without what L1 takes off: 0 inside [-l1, l1]. */
SNAIL_INLINE float snail_fm_shrunk(float z, float l1) {
    return z - (z > l1 ? l1 : z < -l1 ? -l1 : z);
}

SNAIL_INLINE void snail_fm_ftrl(const snail_fm_by *by, float *row, float c, float x,
                                const float *restrict pull, const float *restrict own,
                                int64_t stride) {
    float *restrict w = row;
    float *restrict z = row + stride;
    float *restrict n = row + 2 * stride;
    const float per_rate = by->per_rate, base = by->base, l1 = by->l1;
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE)
        for (int64_t j = at; j < at + SNAIL_FM_TILE; j++) {
            const float g = snail_fm_gradient(c, x, pull[j], own[j], w[j]);
            const float square = g * g;
            const float total = n[j] + square;
            const float root = sqrtf(total);
            /* sqrt(total) - sqrt(n), without cancellation; the tiny number makes 0 / 0 a 0 */
            const float sigma = square / (root + sqrtf(n[j]) + 1e-30f) * per_rate;
            const float sum = z[j] + g - sigma * w[j];
            n[j] = total;
            z[j] = sum;
            w[j] = -snail_fm_shrunk(sum, l1) / (root * per_rate + base);
        }
}

/* ftrl's weights, which follow from its z and n. */
SNAIL_INLINE void snail_fm_ftrl_weights(const snail_fm_by *by, float *row, int64_t stride) {
    float *restrict w = row;
    const float *restrict z = row + stride;
    const float *restrict n = row + 2 * stride;
    for (int64_t j = 0; j < stride; j++)
        w[j] = -snail_fm_shrunk(z[j], by->l1) / (sqrtf(n[j]) * by->per_rate + by->base);
}

/* Adds what a thread changed in its copy of a row to the shared row, and goes on from the sum. */
SNAIL_INLINE void snail_fm_merge(float *restrict shared, float *restrict own, float *restrict base,
                                 int64_t width) {
    for (int64_t j = 0; j < width; j++) {
        const float now = shared[j] + (own[j] - base[j]);
        shared[j] = now;
        own[j] = now;
        base[j] = now;
    }
}

#endif
