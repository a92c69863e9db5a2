/* A CBOW network with a full softmax: the loss of windows of words, and steps of Adam on batches.
 *
 * windows (n x window), embedding -> mean of the words round the middle one -> hidden rows
 * hidden rows, output weights -> panel by panel: logits -> softmax -> loss
 * ... -> gradient of the panel -> Adam on it; -> gradient of hidden -> Adam on the rows
 *
 * The output weights lie in panels of SNAIL_PANEL words: in a panel, row d holds the d-th weight of
 * each of its words, and the last row their biases.  So a register holds neighbouring words, a panel
 * is one piece of memory that stays in the cache while a batch passes over it, and Adam steps it
 * there.  A panel passes the cache twice a batch: once for the sums of the softmax, once for gradient
 * and step; between the two the exponentials of the whole batch are kept.  In the embedding only rows
 * that a batch touches are stepped, and each counts its own steps, as with the access method `adam`.
 *
 * The accumulators of a product live in registers.  All sums run in a fixed order.
 */
#ifndef SNAILPS_CBOW_H
#define SNAILPS_CBOW_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_rows.h"
#include "_tiles.h"

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

/* logits -> exp(logit - most), in place; adds them to `sum`, of the panels before, and returns it.  If a
 * logit exceeds `most`, the largest so far, `most` becomes that logit, and `sum` is scaled down to it. */
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

/* ---- scratch ---------------------------------------------------------------------------------- */

enum { SNAIL_NO_PLACE = -1 };
#define SNAIL_LEAST_LOGIT -40.0f /* below it, exp is a negligible share */

typedef struct {      /* for batches of up to `batch` windows */
    int64_t batch;
    float *hidden;    /* batch x hidden stride: means, then a 1, then zeros */
    float *scaled;    /* the same shape */
    float *shares;    /* panels x batch x SNAIL_PANEL: exponentials of the logits */
    float *shift;     /* panels x batch: what was subtracted from the logits before exp */
    float *most;      /* batch */
    float *sums;      /* batch */
    float *target;    /* batch: logit of the true word */
    float *back;      /* batch x width: of one panel */
    float *down;      /* batch x width: dL/d mean */
    float *gradient;  /* (width + 1) x SNAIL_PANEL */
    float *across;    /* SNAIL_PANEL x width */
    float *rows;      /* (batch * window) x width: gradients of the rows touched */
    int32_t *places;  /* words: where in `rows`; all SNAIL_NO_PLACE between two batches */
    int32_t *touched; /* batch * window */
} snail_cbow;

SNAIL_INLINE int64_t snail_panels(int64_t words) { return (words + SNAIL_PANEL - 1) / SNAIL_PANEL; }

SNAIL_INLINE int64_t snail_hidden_stride(int64_t width) { return width + 16; }

SNAIL_INLINE float *snail_cut_floats(float *base, int64_t *at, int64_t n) {
    float *taken = base ? base + *at : NULL;
    *at += (n + 15) & ~(int64_t)15;
    return taken;
}

/* Cuts `base` into parts; returns its size in floats (base may be NULL). */
static int64_t snail_lay_out_cbow(snail_cbow *s, int64_t words, int64_t width, int64_t window,
                                  int64_t batch, float *base) {
    const int64_t panels = snail_panels(words);
    int64_t at = 0;
    s->batch = batch;
    s->hidden = snail_cut_floats(base, &at, batch * snail_hidden_stride(width));
    s->scaled = snail_cut_floats(base, &at, batch * snail_hidden_stride(width));
    s->shares = snail_cut_floats(base, &at, panels * batch * SNAIL_PANEL);
    s->shift = snail_cut_floats(base, &at, panels * batch);
    s->most = snail_cut_floats(base, &at, batch);
    s->sums = snail_cut_floats(base, &at, batch);
    s->target = snail_cut_floats(base, &at, batch);
    s->back = snail_cut_floats(base, &at, batch * width);
    s->down = snail_cut_floats(base, &at, batch * width);
    s->gradient = snail_cut_floats(base, &at, (width + 1) * SNAIL_PANEL);
    s->across = snail_cut_floats(base, &at, SNAIL_PANEL * width);
    s->rows = snail_cut_floats(base, &at, batch * window * width);
    s->places = (int32_t *)snail_cut_floats(base, &at, words);
    s->touched = (int32_t *)snail_cut_floats(base, &at, batch * window);
    return at;
}

static int64_t snail_cbow_scratch(int64_t words, int64_t width, int64_t window, int64_t batch) {
    snail_cbow s;
    return snail_lay_out_cbow(&s, words, width, window, batch, NULL);
}

/* ---- forward ---------------------------------------------------------------------------------- */

/* Hidden rows: the mean of a window's words but the middle one; a 1 that meets the biases. */
static void snail_cbow_means(const snail_cbow_net *net, snail_cbow *s, const int32_t *windows,
                             int64_t n) {
    const int64_t width = net->width, stride = snail_hidden_stride(width), middle = net->window / 2;
    const float share = (float)(1.0 / (double)(net->window - 1));
    for (int64_t i = 0; i < n; i++) {
        float *hidden = s->hidden + i * stride;
        memset(hidden, 0, (size_t)stride * sizeof(float));
        for (int64_t j = 0; j < net->window; j++) {
            if (j == middle) continue;
            const float *row = net->embedding.weights + windows[i * net->window + j] * width;
            for (int64_t d = 0; d < width; d++) hidden[d] += row[d];
        }
        for (int64_t d = 0; d < width; d++) hidden[d] *= share;
        hidden[width] = 1;
    }
}

/* Sum of the losses of n windows; with `keep` the exponentials of all panels stay. */
static double snail_cbow_forward(const snail_cbow_net *net, snail_cbow *s, const int32_t *windows,
                                 int64_t n, int keep) {
    const int64_t rows = net->width + 1, middle = net->window / 2;
    double loss = 0;
    snail_cbow_means(net, s, windows, n);
    for (int64_t i = 0; i < n; i++) {
        s->most[i] = -3e38f;
        s->sums[i] = 0;
    }
    for (int64_t p = 0; p < snail_panels(net->words); p++) {
        float *shares = s->shares + (keep ? p * n * SNAIL_PANEL : 0);
        const int64_t left = net->words - p * SNAIL_PANEL;
        snail_panel_logits((int)n, s->hidden, snail_hidden_stride(net->width), (int)rows,
                           net->output.weights + p * rows * SNAIL_PANEL, shares);
        for (int64_t i = 0; i < n; i++) {
            float *share = shares + i * SNAIL_PANEL;
            const int32_t word = windows[i * net->window + middle];
            if (word / SNAIL_PANEL == p) s->target[i] = share[word % SNAIL_PANEL];
            for (int64_t j = left; j < SNAIL_PANEL; j++) share[j] = -3e38f; /* places of no word: */
            s->sums[i] = snail_panel_exp(share, &s->most[i], s->sums[i]);   /* no part of the sum */
            for (int64_t j = left; j < SNAIL_PANEL; j++) share[j] = 0;      /* and no gradient */
            s->shift[p * s->batch + i] = s->most[i];
        }
    }
    for (int64_t i = 0; i < n; i++)
        loss += s->most[i] + log((double)s->sums[i]) - s->target[i];
    return loss;
}

/* ---- steps ------------------------------------------------------------------------------------ */

/* Gradient of the mean loss by a panel; its part of dL/d mean; and the panel's step. */
static void snail_cbow_panel_step(const snail_cbow_net *net, snail_cbow *s, const int32_t *windows,
                                  int64_t n, int64_t p, float rate, float root) {
    const int64_t width = net->width, rows = width + 1, stride = snail_hidden_stride(width);
    const int64_t middle = net->window / 2, first = p * rows * SNAIL_PANEL;
    float *shares = s->shares + p * n * SNAIL_PANEL, *panel = net->output.weights + first;
    snail_across(panel, (int)width, SNAIL_PANEL, s->across);
    for (int64_t i = 0; i < n; i++) {
        float *shift = s->shift + p * s->batch + i;
        const float less = *shift - s->most[i];
        const float factor = snail_exp(less < SNAIL_LEAST_LOGIT ? SNAIL_LEAST_LOGIT : less) /
                             (s->sums[i] * (float)n);
        const int32_t word = windows[i * net->window + middle];
        *shift = factor;
        for (int64_t d = 0; d < rows; d++)
            s->scaled[i * stride + d] = s->hidden[i * stride + d] * factor;
        if (word / SNAIL_PANEL == p) /* the truth: 1/n, in the panel's scale */
            shares[i * SNAIL_PANEL + word % SNAIL_PANEL] -= 1.0 / (factor * (float)n);
    }
    snail_panel_gradient((int)n, s->scaled, stride, (int)rows, shares, s->gradient);
    snail_panel_back((int)n, shares, s->across, (int)width, s->back);
    for (int64_t i = 0; i < n; i++) {
        const float factor = s->shift[p * s->batch + i];
        for (int64_t d = 0; d < width; d++)
            s->down[i * width + d] += factor * s->back[i * width + d];
    }
    snail_adam(rows * SNAIL_PANEL, panel, net->output.first + first, net->output.second + first,
               s->gradient, rate, root, net->beta1, net->beta2, net->eps);
}

/* Both corrections of Adam's moments at its `steps`-th step. */
SNAIL_INLINE float snail_adam_rate(const snail_cbow_net *net, double steps, float *root) {
    *root = (float)(1 / sqrt(1 - pow((double)net->beta2, steps)));
    return (float)(net->lr / (1 - pow((double)net->beta1, steps)));
}

/* The step of the embedding's rows that the batch touched, each once. */
static void snail_cbow_rows_step(const snail_cbow_net *net, snail_cbow *s, const int32_t *windows,
                                 int64_t n) {
    const int64_t width = net->width, middle = net->window / 2;
    const float share = (float)(1.0 / (double)(net->window - 1));
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < net->window; j++) {
            if (j == middle) continue;
            const int32_t word = windows[i * net->window + j];
            if (s->places[word] == SNAIL_NO_PLACE) {
                s->places[word] = (int32_t)count;
                s->touched[count] = word;
                memset(s->rows + count++ * width, 0, (size_t)width * sizeof(float));
            }
            float *row = s->rows + s->places[word] * width;
            for (int64_t d = 0; d < width; d++) row[d] += share * s->down[i * width + d];
        }
    for (int64_t at = 0; at < count; at++) {
        const int32_t word = s->touched[at];
        const int64_t first = word * width;
        float root;
        s->places[word] = SNAIL_NO_PLACE;
        net->counts[word] += 1;
        const float rate = snail_adam_rate(net, net->counts[word], &root);
        snail_adam(width, net->embedding.weights + first, net->embedding.first + first,
                   net->embedding.second + first, s->rows + at * width, rate, root, net->beta1,
                   net->beta2, net->eps);
    }
}

/* ---- a call ----------------------------------------------------------------------------------- */

static double snail_cbow_loss(const snail_cbow_net *net, const int32_t *windows, int64_t n,
                              int64_t batch, float *scratch) {
    snail_cbow s;
    double loss = 0;
    snail_lay_out_cbow(&s, net->words, net->width, net->window, batch, scratch);
    for (int64_t at = 0; at < n; at += batch)
        loss += snail_cbow_forward(net, &s, windows + at * net->window,
                                   n - at < batch ? n - at : batch, 0);
    return loss;
}

/* Sum of the losses of each batch before its step; the output weights have taken `steps` before. */
static double snail_train_cbow(const snail_cbow_net *net, const int32_t *windows, int64_t n,
                               int64_t batch, int64_t steps, float *scratch) {
    snail_cbow s;
    double loss = 0;
    snail_lay_out_cbow(&s, net->words, net->width, net->window, batch, scratch);
    for (int64_t i = 0; i < net->words; i++) s.places[i] = SNAIL_NO_PLACE;
    for (int64_t at = 0; at < n; at += batch) {
        const int32_t *now = windows + at * net->window;
        const int64_t m = n - at < batch ? n - at : batch;
        float root;
        const float rate = snail_adam_rate(net, (double)++steps, &root);
        loss += snail_cbow_forward(net, &s, now, m, 1);
        memset(s.down, 0, (size_t)(m * net->width) * sizeof(float));
        for (int64_t p = 0; p < snail_panels(net->words); p++)
            snail_cbow_panel_step(net, &s, now, m, p, rate, root);
        snail_cbow_rows_step(net, &s, now, m);
    }
    return loss;
}

#endif
