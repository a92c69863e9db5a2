/* Dense arithmetic of the CBOW network with a full softmax: products of panels, softmax, Adam.
 *
 * hidden rows (examples x d), output weights (d x words) -> logits -> exp -> gradients -> Adam
 *
 * The output weights lie in panels of SNAIL_PANEL words: in a panel, row d holds the d-th weight of
 * each of its words, and the last row their biases.  So a register holds neighbouring words, a panel
 * is one piece of memory that stays in the cache while a batch passes over it, and Adam steps it
 * there.  In C, as _tiles.h, so that the accumulators of a product live in registers.  All sums run
 * in a fixed order.  Nothing here allocates or knows what a window of text is.
 */
#ifndef SNAILPS_CBOW_H
#define SNAILPS_CBOW_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_tiles.h"

#define SNAIL_PANEL 128 /* words: 33 rows of them are 17 KB, half of a first-level cache */

#if defined(__AVX512F__)
#define SNAIL_PRODUCT_ROWS 6 /* 6 rows x 4 vectors: 24 accumulators of 32 registers */
#define SNAIL_PRODUCT_VECS 4
#elif defined(__AVX__)
#define SNAIL_PRODUCT_ROWS 6 /* 12 of 16 */
#define SNAIL_PRODUCT_VECS 2
#else
#define SNAIL_PRODUCT_ROWS 4 /* 8 of 16 */
#define SNAIL_PRODUCT_VECS 2
#endif

/* ---- C[i][:] (+)= sum over k of A[i * by_i + k * by_k] * X[k][:] -------------------------------- */

SNAIL_INLINE void snail_product_tile(const int row_num, const int vec_num, const float *a,
                                     int64_t by_i, int64_t by_k, int k_num, const float *x,
                                     int64_t x_stride, float *c, int64_t c_stride, const int add) {
    snail_vec acc[SNAIL_PRODUCT_ROWS][SNAIL_PRODUCT_VECS];
#pragma GCC unroll 8
    for (int i = 0; i < row_num; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++)
            acc[i][v] = add ? snail_load(c + i * c_stride + v * SNAIL_LANES) : (snail_vec){0};
    for (int k = 0; k < k_num; k++, a += by_k, x += x_stride) {
        snail_vec row[SNAIL_PRODUCT_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) row[v] = snail_load(x + v * SNAIL_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < row_num; i++)
#pragma GCC unroll 4
            for (int v = 0; v < vec_num; v++) acc[i][v] += a[i * by_i] * row[v];
    }
#pragma GCC unroll 8
    for (int i = 0; i < row_num; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) snail_store(c + i * c_stride + v * SNAIL_LANES, acc[i][v]);
}

SNAIL_INLINE void snail_product_rows(const int vec_num, int i_num, const float *a, int64_t by_i,
                                     int64_t by_k, int k_num, const float *x, int64_t x_stride,
                                     float *c, int64_t c_stride, const int add) {
    int i = 0;
    for (; i + SNAIL_PRODUCT_ROWS <= i_num; i += SNAIL_PRODUCT_ROWS)
        snail_product_tile(SNAIL_PRODUCT_ROWS, vec_num, a + i * by_i, by_i, by_k, k_num, x,
                           x_stride, c + i * c_stride, c_stride, add);
    for (; i + 2 <= i_num; i += 2)
        snail_product_tile(2, vec_num, a + i * by_i, by_i, by_k, k_num, x, x_stride,
                           c + i * c_stride, c_stride, add);
    for (; i < i_num; i++)
        snail_product_tile(1, vec_num, a + i * by_i, by_i, by_k, k_num, x, x_stride,
                           c + i * c_stride, c_stride, add);
}

/* width is a multiple of SNAIL_LANES. */
SNAIL_INLINE void snail_product(int i_num, const float *a, int64_t by_i, int64_t by_k, int k_num,
                                const float *x, int64_t x_stride, int width, float *c,
                                int64_t c_stride, const int add) {
    int at = 0;
    for (; at + SNAIL_PRODUCT_VECS * SNAIL_LANES <= width; at += SNAIL_PRODUCT_VECS * SNAIL_LANES)
        snail_product_rows(SNAIL_PRODUCT_VECS, i_num, a, by_i, by_k, k_num, x + at, x_stride,
                           c + at, c_stride, add);
#if SNAIL_PRODUCT_VECS > 2
    for (; at + 2 * SNAIL_LANES <= width; at += 2 * SNAIL_LANES)
        snail_product_rows(2, i_num, a, by_i, by_k, k_num, x + at, x_stride, c + at, c_stride, add);
#endif
    for (; at < width; at += SNAIL_LANES)
        snail_product_rows(1, i_num, a, by_i, by_k, k_num, x + at, x_stride, c + at, c_stride, add);
}

/* logits[b][word] of a panel: hidden rows end in a 1, which meets the panel's biases. */
static void snail_panel_logits(int batch, const float *hidden, int64_t stride, int rows,
                               const float *panel, float *logits) {
    snail_product(batch, hidden, stride, 1, rows, panel, SNAIL_PANEL, SNAIL_PANEL, logits,
                  SNAIL_PANEL, 0);
}

/* gradient[d][word] = sum over b of hidden[b][d] * share[b][word]. */
static void snail_panel_gradient(int batch, const float *hidden, int64_t stride, int rows,
                                 const float *shares, float *gradient) {
    snail_product(rows, hidden, 1, stride, batch, shares, SNAIL_PANEL, SNAIL_PANEL, gradient,
                  SNAIL_PANEL, 0);
}

/* back[b][d] = sum over words of share[b][word] * across[word][d]. */
static void snail_panel_back(int batch, const float *shares, const float *across, int width,
                             float *back) {
    snail_product(batch, shares, SNAIL_PANEL, 1, SNAIL_PANEL, across, width, width, back, width, 0);
}

/* ---- softmax of a panel ------------------------------------------------------------------------ */

/* logits -> exp(logit - most), in place; returns their sum.  `most` grows to the largest so far, and
 * `sum`, that of the panels before, shrinks with it. */
SNAIL_INLINE float snail_panel_exp(float *restrict x, float *most, float sum) {
    float tops[16], top = *most;
    memcpy(tops, x, sizeof tops);
    for (int j = 16; j < SNAIL_PANEL; j += 16) /* lane by lane: so it becomes vector code */
        for (int i = 0; i < 16; i++) tops[i] = x[j + i] > tops[i] ? x[j + i] : tops[i];
    for (int i = 0; i < 16; i++) top = tops[i] > top ? tops[i] : top;
    if (top > *most) {
        const float less = *most - top;
        sum *= snail_exp(less < -80.0f ? -80.0f : less);
        *most = top;
    }
    float own = 0;
    for (int j = 0; j < SNAIL_PANEL; j++) {
        const float below = x[j] - top;
        x[j] = snail_exp(below < -80.0f ? -80.0f : below);
        own += x[j];
    }
    return sum + own;
}

/* ---- Adam, whole arrays --------------------------------------------------------------------- */

/* rate = lr / (1 - beta1^t), root = 1 / sqrt(1 - beta2^t). */
SNAIL_INLINE void snail_adam(int64_t n, float *restrict w, float *restrict m, float *restrict v,
                             const float *restrict g, float rate, float root, float beta1,
                             float beta2, float eps) {
    for (int64_t j = 0; j < n; j++) {
        m[j] = beta1 * m[j] + (1 - beta1) * g[j];
        v[j] = beta2 * v[j] + (1 - beta2) * g[j] * g[j];
        w[j] -= rate * m[j] / (root * sqrtf(v[j]) + eps);
    }
}

/* to[j] += weight * from[j]. */
static void snail_add_weighted(int64_t n, float *restrict to, const float *restrict from,
                               float weight) {
    for (int64_t j = 0; j < n; j++) to[j] += weight * from[j];
}

/* A panel's rows d < width (a multiple of 4) as rows of words: across[word][d]. */
static void snail_panel_across(const float *panel, int width, float *across) {
    for (int d = 0; d < width; d += 4) {
        const float *row = panel + d * SNAIL_PANEL;
        for (int j = 0; j < SNAIL_PANEL; j += 4) {
            snail_quad a = *(const snail_quad *)(row + j);
            snail_quad b = *(const snail_quad *)(row + SNAIL_PANEL + j);
            snail_quad c = *(const snail_quad *)(row + 2 * SNAIL_PANEL + j);
            snail_quad e = *(const snail_quad *)(row + 3 * SNAIL_PANEL + j);
            snail_quad ab0 = SNAIL_SHUFFLE(a, b, 0, 4, 1, 5);
            snail_quad ab2 = SNAIL_SHUFFLE(a, b, 2, 6, 3, 7);
            snail_quad ce0 = SNAIL_SHUFFLE(c, e, 0, 4, 1, 5);
            snail_quad ce2 = SNAIL_SHUFFLE(c, e, 2, 6, 3, 7);
            float *to = across + j * width + d;
            *(snail_quad *)(to) = SNAIL_SHUFFLE(ab0, ce0, 0, 1, 4, 5);
            *(snail_quad *)(to + width) = SNAIL_SHUFFLE(ab0, ce0, 2, 3, 6, 7);
            *(snail_quad *)(to + 2 * width) = SNAIL_SHUFFLE(ab2, ce2, 0, 1, 4, 5);
            *(snail_quad *)(to + 3 * width) = SNAIL_SHUFFLE(ab2, ce2, 2, 3, 6, 7);
        }
    }
}

#endif
