/* First values of stored rows, and arithmetic on whole rows.
 *
 * seed, key -> init -> row                    rows as they travel <-> rows to train
 */
#ifndef SNAILPS_ROWS_H
#define SNAILPS_ROWS_H

#include <stdint.h>
#include <string.h>

#include "../abi/_key_hash.h"
#include "_optimizers.h"
#include "_tiles.h"


/* ---- stored rows ------------------------------------------------------------------------------ */

/* First value of a row: element j is draw j + 1 of SplitMix64, started at a hash of (seed, key).  It
 * depends on nothing else, so server, standby and worker compute the same row without asking each other. */
static void snail_init(int kind, float scale, uint64_t seed, uint64_t key, float *row,
                       uint32_t dim) {
    const uint64_t start = snail_mix64(snail_hash_key(key) ^ snail_hash_key(~seed));
    if (kind == SNAIL_UNIFORM) {
        const float step = scale * (float)(1.0 / (1 << 23));
        for (uint32_t j = 0; j < dim; j++)
            row[j] = step * snail_grid(snail_mix64(start + SNAIL_GOLDEN * (j + UINT64_C(1))));
    } else if (kind == SNAIL_NORMAL || kind == SNAIL_FACTORS) {
        for (uint32_t j = 0; j < dim; j++)
            row[j] = scale * snail_normal(snail_mix64(start + SNAIL_GOLDEN * (j + UINT64_C(1))));
        if (kind == SNAIL_FACTORS) row[0] = 0;
    } else if (kind == SNAIL_BITS) {
        for (uint32_t j = 0; j + 1 < dim; j += 2) memcpy(row + j, &seed, sizeof seed);
    } else memset(row, 0, dim * sizeof(float));
}

/* First state of a row: zeros, except FTRL's, whose z must agree with the first weight. */
static void snail_init_state(int access, const float *hyper, float *row, uint32_t dim) {
    if (access == SNAIL_FTRL) snail_first_ftrl(hyper, row, dim);
    else memset(row + dim, 0, snail_state_floats(access, dim) * sizeof(float));
}

/* ---- whole rows -------------------------------------------------------------------------------- */

/* Whether all of x is in least..most; without a branch, so that it is vector code. */
static int snail_in_range(const int32_t *x, int64_t n, int32_t least, int32_t most) {
    int bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= (x[i] < least) | (x[i] > most);
    return !bad;
}

/* Copies dim columns of each row, and pads it with zeros. */
static void snail_copy_rows(const float *src, int64_t dim, float *dst, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (dim) memcpy(dst + i * stride, src + i * dim, (size_t)dim * sizeof(float));
        memset(dst + i * stride + dim, 0, (size_t)(stride - dim) * sizeof(float));
    }
}

static void snail_bag_means(const float *inputs, int64_t stride, const int64_t *ptr,
                            const int32_t *rows, const float *weights, float *out, int64_t dim,
                            int64_t n) {
    for (int64_t k = 0; k < n; k++, out += dim) {
        float size = 0;
        memset(out, 0, (size_t)dim * sizeof(float));
        for (int64_t r = ptr[k]; r < ptr[k + 1]; r++) {
            const float *row = inputs + rows[r] * stride, weight = weights ? weights[r] : 1;
            for (int64_t d = 0; d < dim; d++) out[d] += weight * row[d];
            size += weight;
        }
        if (size > 0) {
            const float scale = 1 / size;
            for (int64_t d = 0; d < dim; d++) out[d] *= scale;
        }
    }
}

/* [part, dim] -> [part, stride], padded with zeros. */
static void snail_unpack_parts(const float *packed, float *rows, int64_t dim, int64_t parts,
                               int64_t stride, int64_t n) {
    snail_copy_rows(packed, dim, rows, stride, n * parts);
}

/* packed = rows - packed, without the padding of rows. */
static void snail_subtract_parts(const float *rows, float *packed, int64_t dim, int64_t parts,
                                 int64_t stride, int64_t n) {
    for (int64_t p = 0; p < n * parts; p++)
        for (int64_t d = 0; d < dim; d++)
            packed[p * dim + d] = rows[p * stride + d] - packed[p * dim + d];
}

/* to += weight * from. */
static void snail_add_weighted(int64_t n, float *restrict to, const float *restrict from,
                               float weight) {
    for (int64_t j = 0; j < n; j++) to[j] += weight * from[j];
}

static void snail_score_probe(const float *x, int64_t n, float *sigmoid, float *loss) {
    for (int64_t i = 0; i < n; i++) {
        sigmoid[i] = snail_sigmoid(x[i]);
        loss[i] = -snail_log(sigmoid[i]);
    }
}

#endif
