/* Product quantisation: k-means of a part's values, and the nearest centroid of each part of a row.
 *
 * points, column by column -> 256 centroids               (one part of the rows, Lloyd's algorithm)
 * rows, centroids of all parts -> a byte a part: the number of the nearest centroid
 *
 * A lane holds a point, and the loop goes over centroids: no sum crosses lanes, and a point's answer does
 * not depend on those beside it.  Of equally near centroids the first one is taken.
 *
 * H. Jegou, M. Douze, C. Schmid, "Product Quantization for Nearest Neighbor Search", 2011.
 */
#ifndef SNAILPS_CODEBOOKS_H
#define SNAILPS_CODEBOOKS_H

#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_tiles.h"

#if defined(__AVX512F__)
#define SNAIL_NEAR_VECS 4 /* points at a time: 4 x (distance, number, values) of 32 registers */
#else
#define SNAIL_NEAR_VECS 2 /* of 16 */
#endif

/* A float of a mapped file. */
typedef float snail_mapped_float __attribute__((aligned(1), may_alias));

/* ---- the nearest centroids -------------------------------------------------------------------- */

SNAIL_INLINE void snail_take_nearer(snail_vec distance, snail_ints number, snail_vec *best,
                                    snail_ints *nearest) {
#if defined(__AVX512F__)
    const __mmask16 nearer = _mm512_cmp_ps_mask((__m512)distance, (__m512)*best, _CMP_LT_OQ);
    *best = (snail_vec)_mm512_mask_mov_ps((__m512)*best, nearer, (__m512)distance);
    *nearest = (snail_ints)_mm512_mask_mov_epi32((__m512i)*nearest, nearer, (__m512i)number);
#elif defined(__AVX__)
    const __m256 nearer = _mm256_cmp_ps((__m256)distance, (__m256)*best, _CMP_LT_OQ);
    *best = (snail_vec)_mm256_blendv_ps((__m256)*best, (__m256)distance, nearer);
    *nearest = (snail_ints)_mm256_blendv_ps((__m256)*nearest, (__m256)number, nearer);
#else
    const snail_ints nearer = (snail_ints)(distance < *best);
    *best = (snail_vec)(((snail_ints)distance & nearer) | ((snail_ints)*best & ~nearer));
    *nearest = (number & nearer) | (*nearest & ~nearer);
#endif
}

/* Numbers of the nearest centroids of SNAIL_POINTS points, whose columns are `stride` apart. */
SNAIL_INLINE void snail_near_of(const int width, const float *columns, int64_t stride,
                                const float *centroids, int32_t *numbers) {
    for (int at = 0; at < SNAIL_POINTS; at += SNAIL_NEAR_VECS * SNAIL_LANES) {
        snail_vec best[SNAIL_NEAR_VECS];
        snail_ints nearest[SNAIL_NEAR_VECS], number = {0};
#pragma GCC unroll 4
        for (int v = 0; v < SNAIL_NEAR_VECS; v++) {
            best[v] = snail_all(__builtin_inff());
            nearest[v] = (snail_ints){0};
        }
        for (int c = 0; c < SNAIL_CENTROIDS; c++, number += 1)
#pragma GCC unroll 4
            for (int v = 0; v < SNAIL_NEAR_VECS; v++) {
                snail_vec distance = {0};
                for (int d = 0; d < width; d++) {
                    const snail_vec difference =
                        snail_load(columns + d * stride + at + v * SNAIL_LANES) -
                        centroids[c * width + d];
                    distance += difference * difference;
                }
                snail_take_nearer(distance, number, &best[v], &nearest[v]);
            }
#pragma GCC unroll 4
        for (int v = 0; v < SNAIL_NEAR_VECS; v++)
            *(snail_ints *)(numbers + at + v * SNAIL_LANES) = nearest[v];
    }
}

/* The usual widths are compiled for themselves: their values stay in registers. */
static void snail_near(int width, const float *columns, int64_t stride, const float *centroids,
                       int32_t *numbers) {
    if (width == 1) snail_near_of(1, columns, stride, centroids, numbers);
    else if (width == 2) snail_near_of(2, columns, stride, centroids, numbers);
    else if (width == 3) snail_near_of(3, columns, stride, centroids, numbers);
    else if (width == 4) snail_near_of(4, columns, stride, centroids, numbers);
    else snail_near_of(width, columns, stride, centroids, numbers);
}

/* ---- k-means ---------------------------------------------------------------------------------- */

static int64_t snail_codebook_scratch(const snail_codebook_job *job) {
    return SNAIL_CENTROIDS * (int64_t)((job->width + 1) * sizeof(double) + 2 * sizeof(int64_t))
        + (int64_t)(SNAIL_POINTS * sizeof(int32_t)) + job->stride;
}

/* Gives centroids without points new places: each that point of another centroid's which is farthest from
 * it, of the centroids with the largest sums of squared distances first. */
static void snail_fill_empty(const snail_codebook_job *job, const uint8_t *codes, const int64_t *counts,
                             double *errors, int64_t *farthest) {
    const int width = job->width;
    double most[SNAIL_CENTROIDS] = {0};
    memset(errors, 0, SNAIL_CENTROIDS * sizeof(double));
    for (int64_t i = 0; i < job->point_num; i++) {
        const float *centroid = job->centroids + codes[i] * width;
        double distance = 0;
        for (int d = 0; d < width; d++) {
            const double difference = job->columns[d * job->stride + i] - centroid[d];
            distance += difference * difference;
        }
        errors[codes[i]] += distance;
        if (distance > most[codes[i]]) {
            most[codes[i]] = distance;
            farthest[codes[i]] = i;
        }
    }
    for (int empty = 0; empty < SNAIL_CENTROIDS; empty++) {
        if (counts[empty]) continue;
        int worst = 0;
        for (int c = 1; c < SNAIL_CENTROIDS; c++)
            if (errors[c] > errors[worst]) worst = c;
        if (!(errors[worst] > 0)) return; /* fewer different points than centroids */
        errors[worst] = 0;
        for (int d = 0; d < width; d++)
            job->centroids[empty * width + d] = job->columns[d * job->stride + farthest[worst]];
    }
}

/* Lloyd's algorithm, until no point changes its centroid or `rounds` have passed. */
static void snail_train_codebook(const snail_codebook_job *job, char *scratch) {
    const int width = job->width;
    double *sums = (double *)scratch, *errors = sums + SNAIL_CENTROIDS * width;
    int64_t *counts = (int64_t *)(errors + SNAIL_CENTROIDS), *farthest = counts + SNAIL_CENTROIDS;
    int32_t *numbers = (int32_t *)(farthest + SNAIL_CENTROIDS);
    uint8_t *codes = (uint8_t *)(numbers + SNAIL_POINTS);
    for (int round = 0; round < job->rounds; round++) {
        int64_t changed = 0, empty = 0;
        for (int64_t i = 0; i < job->point_num; i += SNAIL_POINTS) {
            snail_near(width, job->columns + i, job->stride, job->centroids, numbers);
            for (int p = 0; p < SNAIL_POINTS && i + p < job->point_num; p++) {
                changed += codes[i + p] != (uint8_t)numbers[p];
                codes[i + p] = (uint8_t)numbers[p];
            }
        }
        if (round && !changed) return;
        memset(sums, 0, (size_t)(SNAIL_CENTROIDS * width) * sizeof(double));
        memset(counts, 0, SNAIL_CENTROIDS * sizeof(int64_t));
        for (int64_t i = 0; i < job->point_num; i++) {
            counts[codes[i]]++;
            for (int d = 0; d < width; d++)
                sums[codes[i] * width + d] += job->columns[d * job->stride + i];
        }
        for (int c = 0; c < SNAIL_CENTROIDS; c++) {
            empty += !counts[c];
            for (int d = 0; counts[c] && d < width; d++)
                job->centroids[c * width + d] = (float)(sums[c * width + d] / (double)counts[c]);
        }
        if (empty) snail_fill_empty(job, codes, counts, errors, farthest);
    }
}

/* ---- codes of rows ---------------------------------------------------------------------------- */

static int64_t snail_encode_scratch(const snail_encode_job *job) {
    return (int64_t)sizeof(float) * SNAIL_POINTS * (job->dim + 1);
}

static void snail_encode_rows(const snail_encode_job *job, char *scratch) {
    const int64_t dim = job->dim;
    const int part_num = job->part_num, part_width = job->part_width;
    float *across = (float *)scratch; /* [dim, POINTS] */
    int32_t *numbers = (int32_t *)(across + SNAIL_POINTS * dim);
    for (int64_t row = 0; row < job->row_num; row += SNAIL_POINTS) {
        const int count = (int)snail_least64(SNAIL_POINTS, job->row_num - row);
        if (count < SNAIL_POINTS) memset(across, 0, (size_t)(SNAIL_POINTS * dim) * sizeof(float));
        for (int i = 0; i < count; i++) {
            const snail_mapped_float *values = (const snail_mapped_float *)job->rows + (row + i) * dim;
            const float scale = job->scales ? job->scales[row + i] : 1;
            for (int64_t d = 0; d < dim; d++) across[d * SNAIL_POINTS + i] = values[d] * scale;
        }
        for (int part = 0; part < part_num; part++) {
            const int64_t column = (int64_t)part * part_width;
            snail_near((int)snail_least64(part_width, dim - column), across + column * SNAIL_POINTS,
                       SNAIL_POINTS, job->centroids + SNAIL_CENTROIDS * column, numbers);
            for (int i = 0; i < count; i++)
                job->codes[(row + i) * part_num + part] = (uint8_t)numbers[i];
        }
    }
}

#endif
