/* Factorization machines of order 2, plain and field-aware, on sparse examples.
 *
 * features and label of an example -> score -> loss, gradient -> its rows, one step each
 *
 * A row is [w, v_1..v_k], field-aware [w, v of field 0, v of field 1, ...], followed by the state of the
 * method.  Each of these parts is padded to `weights_num`, here `stride`, a multiple of 16; the padding is
 * 0 and stays 0.  The score of an example is
 *
 *     sum_i x_i w_i + sum_{i<j} x_i x_j <v_i, v_j> = sum_i x_i w_i + 1/2 (|S|^2 - sum_i |x_i v_i|^2)
 *
 * with S = sum_i x_i v_i: n k steps instead of n^2 k.  The same works with fields: with S_f the sum of
 * x_i row_i over the features of field f, all pairs together are <S_f, T_f> summed over f, where T_f
 * has in the place of field g what S_g has in the place of field f.  So every pass is over whole
 * rows, which lie in one piece, and the plain machine is that of a single field.
 *
 * Threads write rows without locks (Hogwild), except the first `hot` rows and the bias, of which each
 * trains copies (_hot_rows.h).  See _linear.h for why.
 *
 * References: S. Rendle, "Factorization machines", ICDM 2010.  Y. Juan et al., "Field-aware
 * factorization machines for CTR prediction", RecSys 2016.
 */
#ifndef SNAILPS_FM_H
#define SNAILPS_FM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_hot_rows.h"
#include "_jobs.h"
#include "_losses.h"
#include "_optimizers.h"
#include "_tiles.h"

#define SNAIL_FM_TILE 16

enum {
    SNAIL_FM_TURN = 256,       /* examples between two exchanges of the hot rows */
    SNAIL_FM_AHEAD = 3,        /* how many examples ahead rows are prefetched */
    SNAIL_FM_AHEAD_MAX = 64,   /* most features of such an example */
    SNAIL_FM_AHEAD_FLOATS = 128 /* most floats of a row: the hardware prefetcher continues from there */
};

/* A call: its job, its scratch, and what all steps of an example share. */
typedef struct {
    const snail_sparse_job *job;
    snail_hot_rows hot;
    snail_ftrl_by ftrl;
    float rate;       /* step size; not ftrl's */
    float *decay;     /* [stride]: L2 of each column, times the weight of the example at hand */
    float decay_of;   /* that weight */
    float *sums;      /* [field_num, stride]: S */
    float *squares;   /* [field_num, stride]: sums of squares */
    float *turned;    /* [field_num, stride]: T; plain: the same memory as `sums` */
    float *itself;    /* [field_num, stride]: 1 where a feature of the field meets itself */
    float *only;      /* [stride]: 1, then zeros: the gradient of the bias */
    float **found;    /* [features of the longest example] */
    int64_t *stamps;  /* [field_num]: example that a field was last seen in, from 1 */
    int32_t *present; /* [field_num]: fields of the example at hand */
} snail_fm;

/* ---- sums ------------------------------------------------------------------------------------- */

/* sums[j] = sum over i of x_i row_i[j], squares[j] = sum of their squares; `add`: added to the old values. */
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

/* For each of `seen` fields g, copies field f's factor of sums[g] to the factor for field g of `to`.  An
 * example takes n^2 such short copies, so they are made in whole registers where the length allows it. */
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

/* Column j's gradient is c (pull_j - x own_j w_j): `pull` is the sum over all features, and `own` (1 or
 * 0) takes this feature out of it again.  L2 applies only where `pull` is not 0: factors for fields that
 * the example lacks stay as they are.  (The gradient itself would be no such sign: for the factors of a
 * lone feature it is 0 or a rounding error.) */
SNAIL_INLINE float snail_fm_gradient(float c, float x, float pull, float own, float w) {
    return c * (pull - x * own * w);
}

SNAIL_INLINE void snail_fm_sgd(const snail_fm *m, float *row, float c, float x,
                               const float *restrict pull, const float *restrict own,
                               int64_t stride) {
    float *restrict w = row;
    const float *restrict decay = m->decay;
    const float rate = m->rate;
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE)
        for (int64_t j = at; j < at + SNAIL_FM_TILE; j++) {
            const float g = snail_fm_gradient(c, x, pull[j], own[j], w[j]);
            snail_sgd(&w[j], g + (pull[j] != 0 ? decay[j] * w[j] : 0.0f), rate);
        }
}

SNAIL_INLINE void snail_fm_adagrad(const snail_fm *m, float *row, float c, float x,
                                   const float *restrict pull, const float *restrict own,
                                   int64_t stride) {
    float *restrict w = row;
    float *restrict s = row + stride;
    const float *restrict decay = m->decay;
    const float rate = m->rate, eps = m->job->eps;
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE)
        for (int64_t j = at; j < at + SNAIL_FM_TILE; j++) {
            float g = snail_fm_gradient(c, x, pull[j], own[j], w[j]);
            g += pull[j] != 0 ? decay[j] * w[j] : 0.0f;
            snail_adagrad(&w[j], &s[j], g, rate, eps);
        }
}

SNAIL_INLINE void snail_fm_ftrl(const snail_fm *m, float *row, float c, float x,
                                const float *restrict pull, const float *restrict own,
                                int64_t stride) {
    float *restrict w = row;
    float *restrict z = row + stride;
    float *restrict n = row + 2 * stride;
    const float *restrict decay = m->decay;
    const snail_ftrl_by by = m->ftrl;
    for (int64_t at = 0; at < stride; at += SNAIL_FM_TILE)
        for (int64_t j = at; j < at + SNAIL_FM_TILE; j++) {
            float g = snail_fm_gradient(c, x, pull[j], own[j], w[j]);
            g += pull[j] != 0 ? decay[j] * w[j] : 0.0f;
            snail_ftrl(&w[j], &z[j], &n[j], g, &by);
        }
}

SNAIL_INLINE void snail_fm_step(const snail_fm *m, float *row, float c, float x, const float *pull,
                                const float *own) {
    const int64_t stride = m->job->weights_num;
    switch (m->job->method) {
    case SNAIL_FTRL: snail_fm_ftrl(m, row, c, x, pull, own, stride); break;
    case SNAIL_ADAGRAD: snail_fm_adagrad(m, row, c, x, pull, own, stride); break;
    default: snail_fm_sgd(m, row, c, x, pull, own, stride);
    }
}

/* ---- scores ----------------------------------------------------------------------------------- */

/* A row where this thread trains it. */
SNAIL_INLINE float *snail_fm_row(const snail_fm *m, int64_t at) {
    return (at < m->hot.num ? m->hot.own : m->job->rows) + at * m->job->width;
}

SNAIL_INLINE float *snail_fm_bias(const snail_fm *m) {
    return m->hot.own ? m->hot.own + m->hot.num * m->job->width
                      : m->job->rows + m->job->bias * m->job->width;
}

/* Score; leaves S in `sums`, its column 0 being 0. */
SNAIL_INLINE float snail_plain_score(const snail_fm *m, float bias, int64_t begin,
                                     int64_t feature_num) {
    const int64_t stride = m->job->weights_num;
    snail_fm_sums(0, feature_num, (const float *const *)m->found, m->job->values + begin, stride,
                  m->sums, m->squares);
    const float linear = bias + m->sums[0];
    m->sums[0] = 0;
    m->squares[0] = 0;
    return linear + 0.5f * snail_fm_products(m->sums, m->sums, m->squares, stride);
}

/* Computes S of each field that the example has; returns their count, and writes their numbers to `present`. */
SNAIL_INLINE int64_t snail_sum_fields(const snail_fm *m, int64_t i, int64_t begin,
                                      int64_t feature_num) {
    const int64_t stride = m->job->weights_num;
    int64_t seen = 0;
    for (int64_t at = 0; at < feature_num; at++) {
        const int64_t field = m->job->fields[begin + at];
        const float *const *row = (const float *const *)m->found + at;
        const float *x = m->job->values + begin + at;
        float *sums = m->sums + field * stride, *squares = m->squares + field * stride;
        if (m->stamps[field] == i + 1) snail_fm_sums(1, 1, row, x, stride, sums, squares);
        else {
            snail_fm_sums(0, 1, row, x, stride, sums, squares);
            m->stamps[field] = i + 1;
            m->present[seen++] = (int32_t)field;
        }
    }
    return seen;
}

/* Score; leaves T in `turned`, column 0 being 0. */
SNAIL_INLINE float snail_fields_score(const snail_fm *m, float bias, int64_t i, int64_t begin,
                                      int64_t feature_num) {
    const int64_t stride = m->job->weights_num;
    const int64_t seen = snail_sum_fields(m, i, begin, feature_num);
    float linear = 0, pairs = 0;
    for (int64_t a = 0; a < seen; a++) {
        const int64_t f = m->present[a];
        float *to = m->turned + f * stride, *squares = m->squares + f * stride;
        memset(to, 0, (size_t)stride * sizeof(float));
        snail_fm_turn(seen, m->present, f, m->job->factors, m->sums, stride, to);
        linear += m->sums[f * stride];
        for (int64_t d = 0; d < stride; d++) squares[d] *= m->itself[f * stride + d];
        pairs += snail_fm_products(m->sums + f * stride, to, squares, stride);
    }
    return bias + linear + 0.5f * pairs;
}

/* Score of an example; leaves in `turned` what its gradients need. */
static SNAIL_APART float snail_fm_score(const snail_fm *m, int64_t i) {
    const snail_sparse_job *job = m->job;
    const int64_t begin = job->ptr[i], feature_num = job->ptr[i + 1] - begin;
    const float bias = job->bias >= 0 ? *snail_fm_bias(m) : 0;
    for (int64_t at = 0; at < feature_num; at++)
        m->found[at] = snail_fm_row(m, job->places[begin + at]);
    return job->fields ? snail_fields_score(m, bias, i, begin, feature_num)
                       : snail_plain_score(m, bias, begin, feature_num);
}

/* ---- training --------------------------------------------------------------------------------- */

/* One step on an example; its loss before the step. */
SNAIL_INLINE float snail_fm_one(const snail_fm *m, int64_t i, float weight) {
    const snail_sparse_job *job = m->job;
    const int64_t begin = job->ptr[i], stride = job->weights_num;
    int64_t field = 0;
    float g;
    const float loss = snail_loss(job->loss, snail_fm_score(m, i), job->labels[i], weight, &g);
    for (int64_t at = 0; at < job->ptr[i + 1] - begin; at++) {
        const float x = job->values[begin + at];
        if (job->fields) field = job->fields[begin + at];
        m->turned[field * stride] = 1; /* the gradient of w */
        snail_fm_step(m, m->found[at], g * x, x, m->turned + field * stride,
                      m->itself + field * stride);
    }
    if (job->bias >= 0) snail_fm_step(m, snail_fm_bias(m), g, 0, m->only, m->only);
    return loss;
}

/* Prefetches the rows of an example that comes soon. */
SNAIL_INLINE void snail_fm_look_ahead(const snail_sparse_job *job, int64_t i) {
    if (i >= job->last) return;
    const int64_t floats = job->width < SNAIL_FM_AHEAD_FLOATS ? job->width : SNAIL_FM_AHEAD_FLOATS;
    int64_t stop = job->ptr[i] + SNAIL_FM_AHEAD_MAX;
    if (job->ptr[i + 1] < stop) stop = job->ptr[i + 1];
    for (int64_t at = job->ptr[i]; at < stop; at++)
        snail_prefetch_row(job->rows + job->places[at] * job->width, floats);
}

SNAIL_INLINE void snail_fm_set_rate(snail_fm *m, float rate) {
    m->rate = rate;
    m->ftrl = snail_ftrl_of(rate, m->job->l1, m->job->beta);
}

/* ---- a call ----------------------------------------------------------------------------------- */

static int64_t snail_fm_longest(const snail_sparse_job *job) {
    int64_t longest = 0;
    for (int64_t i = job->first; i < job->last; i++) {
        const int64_t features = job->ptr[i + 1] - job->ptr[i];
        longest = features > longest ? features : longest;
    }
    return longest;
}

static int64_t snail_fm_scratch(const snail_sparse_job *job) {
    const int64_t planes = (job->fields ? 4 : 3) * job->field_num + 2;
    const int64_t floats = snail_hot_floats(job->hot, job->width) + planes * job->weights_num;
    return floats * (int64_t)sizeof(float) + (snail_fm_longest(job) + job->field_num) * 8 +
           job->field_num * 4;
}

/* Sets the L2 of an example: the job's, times the example's weight. */
SNAIL_INLINE void snail_fm_set_decay(snail_fm *m, float weight) {
    const snail_sparse_job *job = m->job;
    m->decay[0] = weight * job->l2;
    for (int64_t j = 1; j < 1 + job->field_num * job->factors; j++)
        m->decay[j] = weight * job->factor_l2;
    m->decay_of = weight;
}

/* Cuts scratch, zeros, into parts, and fills in what does not change from example to example. */
static snail_fm snail_fm_of(const snail_sparse_job *job, char *scratch) {
    const int64_t stride = job->weights_num, plane = job->field_num * stride;
    float *at = (float *)scratch;
    snail_fm m = {.job = job};
    m.hot = (snail_hot_rows){job->rows, NULL, NULL, job->hot, job->bias, job->width, stride, NULL, NULL};
    if (job->hot) {
        m.hot.own = at;
        m.hot.base = at + (job->hot + 1) * job->width;
        at += snail_hot_floats(job->hot, job->width);
    }
    m.sums = at;
    m.squares = m.sums + plane;
    m.itself = m.squares + plane;
    m.turned = job->fields ? m.itself + plane : m.sums;
    m.only = m.itself + plane + (job->fields ? plane : 0);
    m.decay = m.only + stride;
    m.found = (float **)(m.decay + stride);
    m.stamps = (int64_t *)(m.found + snail_fm_longest(job));
    m.present = (int32_t *)(m.stamps + job->field_num);
    m.only[0] = 1;
    snail_fm_set_decay(&m, 1);
    for (int64_t f = 0; f < job->field_num; f++)
        for (int64_t j = 1 + f * job->factors; j < 1 + (f + 1) * job->factors; j++)
            m.itself[f * stride + j] = 1;
    return m;
}

/* Trains examples first..last-1; adds up their losses before each step, and their weights. */
static void snail_train_fm(const snail_sparse_job *job, char *scratch, double *loss,
                           double *weights) {
    snail_fm m = snail_fm_of(job, scratch);
    const float slope = (job->rate_stop - job->rate_start) / (float)(job->last - job->first);
    float weight = 1;
    int waiting = 0;
    snail_fm_set_rate(&m, job->rate_start);
    if (job->method == SNAIL_FTRL) m.hot.ftrl = &m.ftrl;
    if (m.hot.own) snail_copy_hot(&m.hot);
    for (int64_t i = job->first; i < job->last; i++) {
        snail_fm_look_ahead(job, i + SNAIL_FM_AHEAD);
        if (job->weights) weight = job->weights[i];
        if (weight != m.decay_of) snail_fm_set_decay(&m, weight);
        *loss += snail_fm_one(&m, i, weight);
        *weights += weight;
        if (++waiting == SNAIL_FM_TURN) {
            if (m.hot.own) snail_exchange(&m.hot, 0);
            if (slope != 0)
                snail_fm_set_rate(&m, job->rate_start + slope * (float)(i + 1 - job->first));
            waiting = 0;
        }
    }
    if (m.hot.own) snail_exchange(&m.hot, 1);
}

static void snail_fm_scores(const snail_sparse_job *job, char *scratch, float *scores) {
    const snail_fm m = snail_fm_of(job, scratch);
    for (int64_t i = job->first; i < job->last; i++) scores[i - job->first] = snail_fm_score(&m, i);
}

#endif
