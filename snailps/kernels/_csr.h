/* Products of a sparse matrix with dense rows, and of its transpose: a first layer, its gradient.
 *
 * rows (anywhere in memory), coefficients -> out (+)= sum over k of coef[k] * rows[k]     snail_csr_sum
 * CSR (examples x columns), rows of the columns -> Z (examples x dim)           snail_csr_times_rows
 * the same CSR, dL/dZ -> gradients (columns x dim)                                 snail_csr_gradient
 *
 * Both are weighted sums of rows: of a table's rows by example, of dL/dZ's by column.  Rows are
 * visited at random, so each is fetched some terms ahead.  These are loops of the worker; a shard sums
 * rows where they lie in its slabs, by RowOps.sum.
 *
 * In a sum accumulators live in registers.  Rows may have any length and alignment: blocks of vectors
 * are read, then quads, then single floats, and nothing beyond the end of a row.  Terms are
 * added in their order, one by one, so that a result does not depend on how a sum is cut.
 */
#ifndef SNAILPS_CSR_H
#define SNAILPS_CSR_H

#include <stdint.h>

#include "_tiles.h"

#define SNAIL_SUM_VECS 8 /* accumulators: twice what hides an FMA's latency, a sixth of a row of 400 */

SNAIL_INLINE void snail_csr_tile(const int vec_num, uint32_t n, const float *const *rows,
                                 const float *coef, uint32_t at, float *out) {
    snail_vec acc[SNAIL_SUM_VECS];
#pragma GCC unroll 8
    for (int v = 0; v < vec_num; v++) acc[v] = snail_load(out + at + v * SNAIL_LANES);
    for (uint32_t k = 0; k < n; k++) {
        const float *row = rows[k] + at;
        const float x = coef[k];
#pragma GCC unroll 8
        for (int v = 0; v < vec_num; v++) acc[v] += x * snail_load(row + v * SNAIL_LANES);
    }
#pragma GCC unroll 8
    for (int v = 0; v < vec_num; v++) snail_store(out + at + v * SNAIL_LANES, acc[v]);
}

/* out += sum of coef[k] * rows[k], dim floats each; `out` is none of the rows. */
static void snail_csr_sum(uint32_t n, const float *const *rows, const float *coef, float *out,
                          uint32_t dim) {
    uint32_t at = 0;
    for (; at + SNAIL_SUM_VECS * SNAIL_LANES <= dim; at += SNAIL_SUM_VECS * SNAIL_LANES)
        snail_csr_tile(SNAIL_SUM_VECS, n, rows, coef, at, out);
    for (; at + 2 * SNAIL_LANES <= dim; at += 2 * SNAIL_LANES)
        snail_csr_tile(2, n, rows, coef, at, out);
    for (; at + SNAIL_LANES <= dim; at += SNAIL_LANES)
        snail_csr_tile(1, n, rows, coef, at, out);
#if SNAIL_LANES > 4
    for (; at + 4 <= dim; at += 4) {
        snail_quad acc = *(const snail_quad *)(out + at);
        for (uint32_t k = 0; k < n; k++) acc += coef[k] * *(const snail_quad *)(rows[k] + at);
        *(snail_quad *)(out + at) = acc;
    }
#endif
    for (; at < dim; at++) {
        float acc = out[at];
        for (uint32_t k = 0; k < n; k++) acc += coef[k] * rows[k][at];
        out[at] = acc;
    }
}

enum {
    SNAIL_TERMS = 16,       /* summed at a time: the next ones are fetched meanwhile */
    SNAIL_TERM_FLOATS = 256 /* fetched of a row; of longer ones the processor follows by itself */
};

SNAIL_INLINE void snail_fetch_term(const float *row, int64_t dim) {
    for (int64_t at = 0; at < dim && at < SNAIL_TERM_FLOATS; at += SNAIL_PAD)
        __builtin_prefetch(row + at, 0, 3);
}

static void snail_csr_times_rows(const snail_csr *x, const float *table, int64_t stride,
                                 float *out) {
    const float *rows[SNAIL_TERMS];
    const int64_t stop = x->ptr[x->n];
    for (int64_t i = 0; i < x->n; i++) {
        memset(out + i * x->dim, 0, (size_t)x->dim * sizeof(float));
        for (int64_t at = x->ptr[i]; at < x->ptr[i + 1];) {
            const int64_t left = x->ptr[i + 1] - at, m = left < SNAIL_TERMS ? left : SNAIL_TERMS;
            for (int64_t k = 0; k < m; k++) rows[k] = table + x->rows[at + k] * stride;
            for (int64_t k = at + m; k < at + m + SNAIL_TERMS && k < stop; k++)
                snail_fetch_term(table + x->rows[k] * stride, x->dim);
            snail_csr_sum((uint32_t)m, rows, x->values + at, out + i * x->dim, (uint32_t)x->dim);
            at += m;
        }
    }
}

/* The transpose: start (columns + 2, left as columns + 1 edges), example and value by column.  A
 * counting sort; entries of a column keep the order of their examples. */
static void snail_csr_columns(const snail_csr *x, int64_t *start, int32_t *examples,
                              float *values) {
    memset(start, 0, (size_t)(x->columns + 2) * sizeof(int64_t));
    for (int64_t k = x->ptr[0]; k < x->ptr[x->n]; k++) start[x->rows[k] + 2]++;
    for (int64_t i = 0; i < x->columns; i++) start[i + 2] += start[i + 1];
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t k = x->ptr[i]; k < x->ptr[i + 1]; k++) {
            const int64_t to = start[x->rows[k] + 1]++;
            examples[to] = (int32_t)i;
            values[to] = x->values[k];
        }
}

/* out: of column j, the sum of value * dz[example]. */
static void snail_csr_gradient(const snail_csr *x, const int64_t *start, const int32_t *examples,
                               const float *values, const float *dz, float *out) {
    const float *rows[SNAIL_TERMS];
    for (int64_t j = 0; j < x->columns; j++) {
        memset(out + j * x->dim, 0, (size_t)x->dim * sizeof(float));
        for (int64_t at = start[j]; at < start[j + 1];) {
            const int64_t left = start[j + 1] - at, m = left < SNAIL_TERMS ? left : SNAIL_TERMS;
            for (int64_t k = 0; k < m; k++) rows[k] = dz + examples[at + k] * x->dim;
            snail_csr_sum((uint32_t)m, rows, values + at, out + j * x->dim, (uint32_t)x->dim);
            at += m;
        }
    }
}

#endif
