/* Generalised linear models on sparse examples.
 *
 * features and label of an example -> score -> loss, gradient -> its rows, one step each
 *
 * A row is as the store keeps it (see abi/_row_ops.h): `weights_num` weights, one an output, then the
 * state of the method.  A feature that occurs twice in an example takes two steps.  Writers may race
 * (Hogwild), but not on the first `hot` rows (_hot_rows.h): rows are numbered in the order of their
 * first appearance, so the frequent ones are there.
 *
 * With one output up to SNAIL_ENTRIES features of an example are stepped together:
 *
 *     rows -> copies, side by side -> score; a step -> the rows
 *
 * in loops over the copies that the compiler turns into vector code: square roots and divisions are
 * most of a step.  A row that has changed under its copy, by another thread or because the example has
 * the feature twice, takes a step of its own.
 *
 * References: AdaGrad: J. Duchi, E. Hazan, Y. Singer, JMLR 12 (2011).  FTRL-proximal: H. B. McMahan
 * et al., "Ad click prediction: a view from the trenches", KDD 2013.
 */
#ifndef SNAILPS_LINEAR_H
#define SNAILPS_LINEAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_hot_rows.h"
#include "_jobs.h"
#include "_losses.h"
#include "_optimizers.h"
#include "_tiles.h"

enum {
    SNAIL_ENTRIES = 64,         /* features stepped together */
    SNAIL_LINEAR_EXCHANGE = 256, /* examples between two exchanges of the hot rows */
    SNAIL_LINEAR_AHEAD = 2,     /* examples ahead whose rows are asked for */
    SNAIL_LINEAR_AHEAD_MAX = 64 /* features of them, at most */
};

/* Rows of some features of one example; what lies behind `count`, up to the next 16, is 0. */
typedef struct {
    float *row[SNAIL_ENTRIES];
    float x[SNAIL_ENTRIES];      /* the example's values */
    float weight[SNAIL_ENTRIES]; /* weights, and the state of the method, as they were */
    float first[SNAIL_ENTRIES];
    float second[SNAIL_ENTRIES];
    float next[3][SNAIL_ENTRIES]; /* the same after the step */
    int count;
} snail_entries;

/* A call: its job, its copies of hot rows, and what the steps of one example share. */
typedef struct {
    const snail_sparse_job *job;
    snail_hot_rows hot;
    snail_ftrl_by ftrl;
    float rate;
    float *scores; /* [weights_num] */
    snail_entries entries;
} snail_linear;

/* A row where this thread trains it. */
SNAIL_INLINE float *snail_linear_row(const snail_linear *l, int64_t at) {
    return (at < l->hot.num ? l->hot.own : l->job->rows) + at * l->job->width;
}

SNAIL_INLINE float *snail_linear_bias(const snail_linear *l) {
    return l->hot.own ? l->hot.own + l->hot.num * l->job->width
                      : l->job->rows + l->job->bias * l->job->width;
}

/* ---- one weight ------------------------------------------------------------------------------- */

/* Weight k of a row takes one step against its gradient. */
SNAIL_INLINE void snail_linear_step(const snail_linear *l, float *row, int64_t k, float g) {
    const snail_sparse_job *job = l->job;
    float *w = row + k, *state = w + job->weights_num;
    switch (job->method) {
    case SNAIL_FTRL: snail_ftrl(w, state, state + job->weights_num, g, &l->ftrl); break;
    case SNAIL_ADAGRAD: snail_adagrad(w, state, g + job->l2 * *w, l->rate, job->eps); break;
    default: snail_sgd(w, g + job->l2 * *w, l->rate);
    }
}

/* ---- entries, together ------------------------------------------------------------------------ */

/* Copies rows already pointed at, `state` floats behind their weight; the sum of x * weight. */
SNAIL_INLINE float snail_gather_rows(snail_entries *t, const int state) {
    float sum = 0;
    int count = t->count;
    for (int i = 0; i < count; i++) {
        const float *row = t->row[i];
        t->weight[i] = row[0];
        if (state > 0) t->first[i] = row[1];
        if (state > 1) t->second[i] = row[2];
    }
    for (int i = count; i & 15; i++)
        t->x[i] = t->weight[i] = t->first[i] = t->second[i] = 0;
    count = (count + 15) & ~15;
    for (int i = 0; i < count; i++) sum += t->x[i] * t->weight[i];
    return sum;
}

SNAIL_INLINE int snail_linear_state(const snail_linear *l) {
    return l->job->method == SNAIL_FTRL ? 2 : l->job->method == SNAIL_ADAGRAD ? 1 : 0;
}

/* Copies of the rows of entries begin..end-1; the sum of their values times weights. */
SNAIL_INLINE float snail_gather(snail_linear *l, int64_t begin, int64_t end) {
    snail_entries *t = &l->entries;
    t->count = (int)(end - begin);
    for (int64_t at = begin; at < end; at++) {
        t->row[at - begin] = snail_linear_row(l, l->job->places[at]);
        t->x[at - begin] = l->job->values[at];
    }
    return snail_gather_rows(t, snail_linear_state(l));
}

/* FTRL-proximal: first is z, second is n. */
SNAIL_INLINE void snail_step_entries_ftrl(snail_entries *restrict t, const snail_ftrl_by *shared,
                                          float g) {
    const int count = (t->count + 15) & ~15;
    const snail_ftrl_by by = *shared;
    for (int i = 0; i < count; i++) {
        float w = t->weight[i], z = t->first[i], n = t->second[i];
        snail_ftrl(&w, &z, &n, g * t->x[i], &by);
        t->next[0][i] = w;
        t->next[1][i] = z;
        t->next[2][i] = n;
    }
}

/* AdaGrad: first is the sum of squared gradients. */
SNAIL_INLINE void snail_step_entries_adagrad(snail_entries *restrict t, float g, float rate,
                                             float eps, float l2) {
    const int count = (t->count + 15) & ~15;
    for (int i = 0; i < count; i++) {
        float w = t->weight[i], s = t->first[i];
        snail_adagrad(&w, &s, g * t->x[i] + l2 * w, rate, eps);
        t->next[0][i] = w;
        t->next[1][i] = s;
    }
}

SNAIL_INLINE void snail_step_entries_sgd(snail_entries *restrict t, float g, float rate, float l2) {
    const int count = (t->count + 15) & ~15;
    for (int i = 0; i < count; i++) {
        float w = t->weight[i];
        snail_sgd(&w, g * t->x[i] + l2 * w, rate);
        t->next[0][i] = w;
    }
}

/* Writes row i if it is as it was copied; whether it is. */
SNAIL_INLINE int snail_scatter(const snail_entries *t, int i, const int state) {
    float *row = t->row[i];
    if (row[0] != t->weight[i]) return 0;
    if (state == 1 && row[1] != t->first[i]) return 0;
    if (state == 2 && row[2] != t->second[i]) return 0;
    row[0] = t->next[0][i];
    if (state > 0) row[1] = t->next[1][i];
    if (state > 1) row[2] = t->next[2][i];
    return 1;
}

/* The rows of the copies take one step each, where the score's gradient is `g`. */
SNAIL_INLINE void snail_step_entries(snail_linear *l, float g) {
    snail_entries *t = &l->entries;
    const snail_sparse_job *job = l->job;
    const int state = snail_linear_state(l);
    switch (job->method) {
    case SNAIL_FTRL: snail_step_entries_ftrl(t, &l->ftrl, g); break;
    case SNAIL_ADAGRAD: snail_step_entries_adagrad(t, g, l->rate, job->eps, job->l2); break;
    default: snail_step_entries_sgd(t, g, l->rate, job->l2);
    }
    for (int i = 0; i < t->count; i++)
        if (!snail_scatter(t, i, state)) snail_linear_step(l, t->row[i], 0, g * t->x[i]);
}

/* ---- an example ------------------------------------------------------------------------------- */

SNAIL_INLINE int64_t snail_piece_end(int64_t at, int64_t end) {
    return end < at + SNAIL_ENTRIES ? end : at + SNAIL_ENTRIES;
}

/* An example of a model with one output; its loss before the step. */
static SNAIL_APART float snail_linear_one(snail_linear *l, int64_t i, float weight) {
    const snail_sparse_job *job = l->job;
    const int64_t begin = job->ptr[i], end = job->ptr[i + 1];
    float *bias = job->bias >= 0 ? snail_linear_bias(l) : NULL;
    float score = bias ? *bias : 0, g;
    for (int64_t at = begin; at < end; at += SNAIL_ENTRIES)
        score += snail_gather(l, at, snail_piece_end(at, end));
    const float loss = snail_loss(job->loss, score, job->labels[i], weight, &g);
    for (int64_t at = begin; at < end; at += SNAIL_ENTRIES) {
        if (end - begin > SNAIL_ENTRIES) /* else they are still there */
            snail_gather(l, at, snail_piece_end(at, end));
        snail_step_entries(l, g);
    }
    if (bias) snail_linear_step(l, bias, 0, g);
    return loss;
}

/* Scores of all outputs. */
SNAIL_INLINE void snail_linear_scores_of(const snail_linear *l, int64_t i, float *scores) {
    const snail_sparse_job *job = l->job;
    const int64_t outputs = job->weights_num;
    if (job->bias >= 0) {
        const float *row = snail_linear_bias(l);
        for (int64_t k = 0; k < outputs; k++) scores[k] = row[k];
    } else memset(scores, 0, (size_t)outputs * sizeof(float));
    for (int64_t at = job->ptr[i]; at < job->ptr[i + 1]; at++) {
        const float *row = snail_linear_row(l, job->places[at]);
        const float x = job->values[at];
        for (int64_t k = 0; k < outputs; k++) scores[k] += x * row[k];
    }
}

/* An example of a multinomial model; its loss before the step. */
SNAIL_INLINE float snail_linear_classes(snail_linear *l, int64_t i, float weight) {
    const snail_sparse_job *job = l->job;
    const int64_t outputs = job->weights_num, target = (int64_t)job->labels[i];
    float *g = l->scores, loss;
    snail_linear_scores_of(l, i, g);
    const float share = weight / snail_softmax(g, outputs, target, &loss);
    for (int64_t k = 0; k < outputs; k++) g[k] *= share;
    g[target] -= weight;
    for (int64_t at = job->ptr[i]; at < job->ptr[i + 1]; at++) {
        float *row = snail_linear_row(l, job->places[at]);
        for (int64_t k = 0; k < outputs; k++)
            snail_linear_step(l, row, k, g[k] * job->values[at]);
    }
    if (job->bias >= 0)
        for (int64_t k = 0; k < outputs; k++) snail_linear_step(l, snail_linear_bias(l), k, g[k]);
    return weight * loss;
}

/* ---- a call ----------------------------------------------------------------------------------- */

/* Asks for the rows of an example that comes soon. */
SNAIL_INLINE void snail_linear_look_ahead(const snail_sparse_job *job, int64_t i) {
    if (i >= job->last) return;
    int64_t stop = job->ptr[i] + SNAIL_LINEAR_AHEAD_MAX;
    if (job->ptr[i + 1] < stop) stop = job->ptr[i + 1];
    for (int64_t at = job->ptr[i]; at < stop; at++)
        __builtin_prefetch(job->rows + job->places[at] * job->width, 1, 3);
}

static int64_t snail_linear_scratch(const snail_sparse_job *job) {
    return (snail_hot_floats(job->hot, job->width) + job->weights_num + SNAIL_PAD) *
           (int64_t)sizeof(float);
}

/* Step size after `done` examples.  Not inlined: so -ffast-math rounds it the same way everywhere. */
static SNAIL_APART float snail_linear_rate(const snail_sparse_job *job, float done, float share) {
    return job->rate_start + done * (job->rate_stop - job->rate_start) * share;
}

/* Trains examples first..last-1; adds up their losses before each step, and their weights. */
static void snail_train_linear(const snail_sparse_job *job, char *scratch, double *loss,
                               double *weights) {
    snail_linear call = {.job = job}, *l = &call;
    const float share = 1 / (float)(job->last - job->first);
    const snail_ftrl_by constant = snail_ftrl_of(job->rate_start, job->l1, job->l2, job->beta);
    float weight = 1;
    int waiting = 0;
    l->scores = (float *)scratch + snail_hot_floats(job->hot, job->width);
    l->hot = (snail_hot_rows){job->rows, NULL, NULL, job->hot, job->bias, job->width,
                              job->weights_num, job->method == SNAIL_FTRL ? &constant : NULL};
    if (job->hot) {
        l->hot.own = (float *)scratch;
        l->hot.base = l->hot.own + (job->hot + 1) * job->width;
        snail_copy_hot(&l->hot);
    }
    for (int64_t i = job->first; i < job->last; i++) {
        snail_linear_look_ahead(job, i + SNAIL_LINEAR_AHEAD);
        l->rate = snail_linear_rate(job, (float)(i - job->first), share);
        l->ftrl = snail_ftrl_of(l->rate, job->l1, job->l2, job->beta);
        if (job->weights) weight = job->weights[i];
        *loss += job->loss == SNAIL_MULTINOMIAL ? snail_linear_classes(l, i, weight)
                                                : snail_linear_one(l, i, weight);
        *weights += weight;
        if (l->hot.own && ++waiting == SNAIL_LINEAR_EXCHANGE) {
            snail_exchange(&l->hot, 0);
            waiting = 0;
        }
    }
    if (l->hot.own) snail_exchange(&l->hot, 1);
}

static void snail_linear_scores(const snail_sparse_job *job, float *scores) {
    const snail_linear call = {.job = job};
    for (int64_t i = job->first; i < job->last; i++)
        snail_linear_scores_of(&call, i, scores + (i - job->first) * job->weights_num);
}

static void snail_ftrl_weights_of(float *rows, int64_t n, int64_t weights_num, float per_rate,
                                  float base, float l1) {
    const snail_ftrl_by by = {per_rate, base, l1};
    for (int64_t i = 0; i < n; i++) snail_ftrl_weights(rows + i * 3 * weights_num, weights_num, &by);
}

#endif
