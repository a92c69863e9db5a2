/* Weighted sums of rows: what a product with a sparse matrix is made of.
 *
 * rows (anywhere in memory), coefficients -> out (+)= sum over k of coef[k] * rows[k]
 *
 * Forward, the rows are those of a table and the coefficients one example's values; backward, the
 * rows are dL/dZ of the examples and the coefficients one column's values.  In C, as _tiles.h, so
 * that accumulators live in registers.  Rows are as long as they are and lie as they do: blocks of
 * vectors, then quads, then single floats, and nothing is read behind a row's end.  Terms are
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

#endif
