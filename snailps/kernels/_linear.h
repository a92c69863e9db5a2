/* Generalised linear models on sparse examples.
 *
 * features and label of an example -> score -> loss, gradient -> its rows, one step each
 *
 * A row is as in the store (abi/_row_ops.h): `weights_num` weights, one per output, then the state of the
 * method.  A feature that occurs twice in an example takes two steps.
 *
 * Threads write rows without locks (Hogwild): examples are sparse, so two threads rarely step the same row
 * at the same time, and a lost step is one of many.  The exceptions are the first `hot` rows and the bias,
 * of which each thread trains copies (_hot_rows.h): rows are numbered in the order of their first
 * appearance, so the frequent ones come first.
 *
 * With one output and FTRL or AdaGrad up to SNAIL_EXAMPLES examples are trained together:
 *
 *     weights of their rows -> scores -> gradients; rows -> copies, side by side -> a step -> the rows
 *
 * An example's gradient then does not wait for the steps of the example before, which would be half of
 * the time.  The price: its weights lack up to SNAIL_EXAMPLES - 1 steps, as they lack steps of other
 * threads anyway.  SGD takes one example at a time: its steps do not shrink, and several steps for the
 * same error may go too far.  Square roots and divisions are most of a step, and loops over the copies are
 * vector code.  A feature that is among the copies twice must take its second step from the result of the
 * first: AVX-512 finds equal places (conflict detection), other builds notice that the row has changed
 * since it was copied, and repeat the step on the row itself.
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
    SNAIL_EXAMPLES = 8,           /* trained together; 4 and 16 are as fast within noise */
    SNAIL_EXAMPLES_ENTRIES = 512, /* most features of these: their rows fit in the L1 cache */
    SNAIL_ENTRIES = 16,           /* features stepped together */
    SNAIL_LINEAR_EXCHANGE = 256, /* examples between two exchanges of the hot rows */
    SNAIL_LINEAR_AHEAD = 2,      /* with several outputs: how many examples ahead rows are prefetched */
    SNAIL_LINEAR_AHEAD_MAX = 64  /* most features of an example whose rows are prefetched */
};

/* Copies of the rows of some features, followed by zeros. */
typedef struct {
    float *row[SNAIL_ENTRIES];   /* not with AVX-512 */
    float g[SNAIL_ENTRIES];      /* gradient of each weight */
    float decay[SNAIL_ENTRIES];  /* L2 of each weight: its example's weight times the job's */
    float weight[SNAIL_ENTRIES]; /* weights, and the state of the method, as they were */
    float first[SNAIL_ENTRIES];
    float second[SNAIL_ENTRIES];
    float next[3][SNAIL_ENTRIES]; /* the same after the step */
} snail_entries;

/* A call: its job, its copies of hot rows, and what steps share. */
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
SNAIL_INLINE void snail_linear_step(const snail_linear *l, float *row, int64_t k, float g,
                                    float l2) {
    const snail_sparse_job *job = l->job;
    float *w = row + k, *state = w + job->weights_num;
    switch (job->method) {
    case SNAIL_FTRL:
        snail_ftrl(w, state, state + job->weights_num, g + l2 * *w, &l->ftrl);
        break;
    case SNAIL_ADAGRAD: snail_adagrad(w, state, g + l2 * *w, l->rate, job->eps); break;
    default: snail_sgd(w, g + l2 * *w, l->rate);
    }
}

/* ---- entries, together ------------------------------------------------------------------------ */

/* FTRL-proximal: first is z, second is n. */
SNAIL_INLINE void snail_step_entries_ftrl(snail_entries *restrict t, const snail_ftrl_by *shared) {
    const snail_ftrl_by by = *shared;
    for (int i = 0; i < SNAIL_ENTRIES; i++) {
        float w = t->weight[i], z = t->first[i], n = t->second[i];
        snail_ftrl(&w, &z, &n, t->g[i] + t->decay[i] * w, &by);
        t->next[0][i] = w;
        t->next[1][i] = z;
        t->next[2][i] = n;
    }
}

/* AdaGrad: first is the sum of squared gradients. */
SNAIL_INLINE void snail_step_entries_adagrad(snail_entries *restrict t, float rate, float eps) {
    for (int i = 0; i < SNAIL_ENTRIES; i++) {
        float w = t->weight[i], s = t->first[i];
        snail_adagrad(&w, &s, t->g[i] + t->decay[i] * w, rate, eps);
        t->next[0][i] = w;
        t->next[1][i] = s;
    }
}

SNAIL_INLINE void snail_step_entries_sgd(snail_entries *restrict t, float rate) {
    for (int i = 0; i < SNAIL_ENTRIES; i++) {
        float w = t->weight[i];
        snail_sgd(&w, t->g[i] + t->decay[i] * w, rate);
        t->next[0][i] = w;
    }
}

/* Writes row i unless it has changed since it was copied; returns whether it was written.  It has changed
 * if an earlier feature of this tile has the same row, or another thread stepped it: either way its step
 * is repeated from the new value.  A change that leaves all compared floats equal loses nothing. */
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

/* The copies take one step each. */
SNAIL_INLINE void snail_step_copies(snail_linear *l, const int state) {
    snail_entries *t = &l->entries;
    if (state == 2) snail_step_entries_ftrl(t, &l->ftrl);
    else if (state == 1) snail_step_entries_adagrad(t, l->rate, l->job->eps);
    else snail_step_entries_sgd(t, l->rate);
}

#if defined(__AVX512CD__)

/* ---- entries, in registers -------------------------------------------------------------------- */

typedef struct { /* of 16 rows */
    __m512i low, high;
} snail_addresses;

SNAIL_INLINE __m512i snail_eight_addresses(const snail_linear *l, __m256i places, __mmask8 hot) {
    const int64_t bytes = l->job->width * (int64_t)sizeof(float);
    const __m512i into = _mm512_mul_epu32(_mm512_cvtepu32_epi64(places), _mm512_set1_epi64(bytes));
    const __m512i at =
        _mm512_add_epi64(into, _mm512_set1_epi64((int64_t)(intptr_t)l->job->rows));
    const int64_t away = (int64_t)((intptr_t)l->hot.own - (intptr_t)l->job->rows);
    return _mm512_mask_add_epi64(at, hot, at, _mm512_set1_epi64(away));
}

/* Of copies, where the thread has some. */
SNAIL_INLINE snail_addresses snail_addresses_of(const snail_linear *l, __m512i places) {
    const __mmask16 hot = _mm512_cmplt_epi32_mask(places, _mm512_set1_epi32((int)l->hot.num));
    return (snail_addresses){
        snail_eight_addresses(l, _mm512_castsi512_si256(places), (__mmask8)hot),
        snail_eight_addresses(l, _mm512_extracti64x4_epi64(places, 1), (__mmask8)(hot >> 8))};
}

/* Float k of each of 16 rows; 0 where the mask has none. */
SNAIL_INLINE __m512 snail_gather(const snail_addresses *a, __mmask16 in, const int k) {
    const __m256 none = _mm256_setzero_ps();
    const void *from = (const void *)(sizeof(float) * (size_t)k);
    const __m256 low = _mm512_mask_i64gather_ps(none, (__mmask8)in, a->low, from, 1);
    const __m256 high = _mm512_mask_i64gather_ps(none, (__mmask8)(in >> 8), a->high, from, 1);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/* No two lanes of the mask have the same row. */
SNAIL_INLINE void snail_put(const snail_addresses *a, __mmask16 in, const int k, __m512 x) {
    void *to = (void *)(sizeof(float) * (size_t)k);
    _mm512_mask_i64scatter_ps(to, (__mmask8)in, a->low, _mm512_castps512_ps256(x), 1);
    _mm512_mask_i64scatter_ps(to, (__mmask8)(in >> 8), a->high, _mm512_extractf32x8_ps(x, 1), 1);
}

SNAIL_INLINE __mmask16 snail_lanes_of(int64_t left) {
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

SNAIL_INLINE float snail_linear_product(const snail_linear *l, int64_t begin, int64_t end) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t at = begin; at < end; at += 16) {
        const __mmask16 in = snail_lanes_of(end - at);
        const snail_addresses rows =
            snail_addresses_of(l, _mm512_maskz_loadu_epi32(in, l->job->places + at));
        const __m512 x = _mm512_maskz_loadu_ps(in, l->job->values + at);
        sum = _mm512_fmadd_ps(snail_gather(&rows, in, 0), x, sum);
    }
    return _mm512_reduce_add_ps(sum);
}

/* The row of each entry begin..end-1 takes a step against its gradient in `g`.  `decay` has the L2 of each
 * entry; NULL: all have the job's, which `l->entries` holds. */
SNAIL_INLINE void snail_linear_steps(snail_linear *l, int64_t begin, int64_t end, const float *g,
                                     const float *decay, const int state) {
    snail_entries *t = &l->entries;
    for (int64_t at = begin; at < end; at += 16) {
        const __mmask16 in = snail_lanes_of(end - at);
        const __m512i places = _mm512_maskz_loadu_epi32(in, l->job->places + at);
        const snail_addresses rows = snail_addresses_of(l, places);
        _mm512_storeu_ps(t->g, _mm512_maskz_loadu_ps(in, g + (at - begin)));
        if (decay) _mm512_storeu_ps(t->decay, _mm512_maskz_loadu_ps(in, decay + (at - begin)));
        _mm512_storeu_ps(t->weight, snail_gather(&rows, in, 0));
        if (state > 0) _mm512_storeu_ps(t->first, snail_gather(&rows, in, 1));
        if (state > 1) _mm512_storeu_ps(t->second, snail_gather(&rows, in, 2));
        snail_step_copies(l, state);
        const __m512i earlier = _mm512_conflict_epi32(places);
        unsigned again = _mm512_mask_test_epi32_mask(in, earlier, earlier);
        const __mmask16 once = in & (__mmask16)~again;
        snail_put(&rows, once, 0, _mm512_loadu_ps(t->next[0]));
        if (state > 0) snail_put(&rows, once, 1, _mm512_loadu_ps(t->next[1]));
        if (state > 1) snail_put(&rows, once, 2, _mm512_loadu_ps(t->next[2]));
        for (; __builtin_expect(again, 0); again &= again - 1) {
            const int lane = __builtin_ctz(again);
            float *row = snail_linear_row(l, l->job->places[at + lane]);
            snail_linear_step(l, row, 0, t->g[lane], t->decay[lane]);
        }
    }
}

#else

SNAIL_INLINE float snail_linear_product(const snail_linear *l, int64_t begin, int64_t end) {
    float sum = 0;
    for (int64_t at = begin; at < end; at++)
        sum += l->job->values[at] * *snail_linear_row(l, l->job->places[at]);
    return sum;
}

SNAIL_INLINE void snail_step_few(snail_linear *l, int64_t at, const float *g, const float *decay,
                                 const int count, const int state) {
    snail_entries *t = &l->entries;
    for (int i = 0; i < count; i++) {
        float *row = snail_linear_row(l, l->job->places[at + i]);
        t->row[i] = row;
        t->g[i] = g[i];
        if (decay) t->decay[i] = decay[i];
        t->weight[i] = row[0];
        if (state > 0) t->first[i] = row[1];
        if (state > 1) t->second[i] = row[2];
    }
    for (int i = count; i < SNAIL_ENTRIES; i++)
        t->g[i] = t->weight[i] = t->first[i] = t->second[i] = 0;
    snail_step_copies(l, state);
    for (int i = 0; i < count; i++)
        if (!snail_scatter(t, i, state)) snail_linear_step(l, t->row[i], 0, t->g[i], t->decay[i]);
}

SNAIL_INLINE void snail_linear_steps(snail_linear *l, int64_t begin, int64_t end, const float *g,
                                     const float *decay, const int state) {
    for (int64_t at = begin; at < end; at += SNAIL_ENTRIES) {
        const float *some = decay ? decay + (at - begin) : NULL;
        if (at + SNAIL_ENTRIES <= end)
            snail_step_few(l, at, g + (at - begin), some, SNAIL_ENTRIES, state);
        else snail_step_few(l, at, g + (at - begin), some, (int)(end - at), state);
    }
}

#endif

/* ---- examples, together ----------------------------------------------------------------------- */

/* Prefetches the rows of an example that comes soon. */
SNAIL_INLINE void snail_linear_look_ahead(const snail_sparse_job *job, int64_t i) {
    if (i >= job->last) return;
    int64_t stop = job->ptr[i] + SNAIL_LINEAR_AHEAD_MAX;
    if (job->ptr[i + 1] < stop) stop = job->ptr[i + 1];
    for (int64_t at = job->ptr[i]; at < stop; at++)
        __builtin_prefetch(job->rows + job->places[at] * job->width, 1, 3);
}

/* How many examples from i on are trained together. */
SNAIL_INLINE int64_t snail_linear_together(const snail_sparse_job *job, int64_t i) {
    int64_t stop = i + 1;
    if (job->method == SNAIL_SGD) return 1;
    while (stop < job->last && stop < i + SNAIL_EXAMPLES &&
           job->ptr[stop + 1] - job->ptr[i] <= SNAIL_EXAMPLES_ENTRIES)
        stop++;
    return stop - i;
}

/* Whether examples differ in the L2 of their rows: it is the job's, times the example's weight. */
SNAIL_INLINE int snail_has_own_decay(const snail_sparse_job *job) {
    return job->weights && job->l2 != 0;
}

SNAIL_INLINE void snail_fill(float *to, int64_t n, float with) {
    for (int64_t k = 0; k < n; k++) to[k] = with;
}

SNAIL_INLINE void snail_times(const float *restrict values, int64_t n, float by, float *restrict out) {
    for (int64_t k = 0; k < n; k++) out[k] = by * values[k];
}

/* Scores, losses and gradients of `num` examples, then the steps; adds up losses and weights. */
SNAIL_INLINE void snail_linear_some(snail_linear *l, int64_t i, int64_t num, const int state,
                                    double *loss, double *weights) {
    const snail_sparse_job *job = l->job;
    const int64_t *ptr = job->ptr + i;
    float *bias = job->bias >= 0 ? snail_linear_bias(l) : NULL;
    float of_example[SNAIL_EXAMPLES], l2[SNAIL_EXAMPLES];
    float g[SNAIL_EXAMPLES_ENTRIES], decays[SNAIL_EXAMPLES_ENTRIES];
    const float *decay = snail_has_own_decay(job) ? decays : NULL;
    for (int64_t e = 0; e < num; e++) {
        snail_linear_look_ahead(job, i + num + e);
        of_example[e] = (bias ? *bias : 0) + snail_linear_product(l, ptr[e], ptr[e + 1]);
    }
    for (int64_t e = 0; e < num; e++) {
        const float weight = job->weights ? job->weights[i + e] : 1;
        *loss += snail_loss(job->loss, of_example[e], job->labels[i + e], weight, &of_example[e]);
        *weights += weight;
        l2[e] = weight * job->l2;
    }
    for (int64_t e = 0; e < num && num > 1; e++) {
        const int64_t to = ptr[e] - ptr[0], entries = ptr[e + 1] - ptr[e];
        snail_times(job->values + ptr[e], entries, of_example[e], g + to);
        if (decay) snail_fill(decays + to, entries, l2[e]);
    }
    for (int64_t at = ptr[0], stop; at < ptr[num]; at = stop) { /* one example may have more */
        stop = at + SNAIL_EXAMPLES_ENTRIES;
        if (stop > ptr[num]) stop = ptr[num];
        if (num == 1) {
            snail_times(job->values + at, stop - at, *of_example, g);
            if (decay) snail_fill(decays, stop - at, *l2);
        }
        snail_linear_steps(l, at, stop, g, decay, state);
    }
    for (int64_t e = 0; bias && e < num; e++) snail_linear_step(l, bias, 0, of_example[e], l2[e]);
}

static SNAIL_APART void snail_linear_ones(snail_linear *l, int64_t i, int64_t num, double *loss,
                                          double *weights) {
    switch (l->job->method) {
    case SNAIL_FTRL: snail_linear_some(l, i, num, 2, loss, weights); break;
    case SNAIL_ADAGRAD: snail_linear_some(l, i, num, 1, loss, weights); break;
    default: snail_linear_some(l, i, num, 0, loss, weights);
    }
}

/* ---- an example of several outputs ------------------------------------------------------------ */

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
    const float l2 = weight * job->l2, share = weight / snail_softmax(g, outputs, target, &loss);
    for (int64_t k = 0; k < outputs; k++) g[k] *= share;
    g[target] -= weight;
    for (int64_t at = job->ptr[i]; at < job->ptr[i + 1]; at++) {
        float *row = snail_linear_row(l, job->places[at]);
        for (int64_t k = 0; k < outputs; k++)
            snail_linear_step(l, row, k, g[k] * job->values[at], l2);
    }
    if (job->bias >= 0)
        for (int64_t k = 0; k < outputs; k++)
            snail_linear_step(l, snail_linear_bias(l), k, g[k], l2);
    return weight * loss;
}

/* ---- a call ----------------------------------------------------------------------------------- */

static int64_t snail_linear_scratch(const snail_sparse_job *job) {
    return (snail_hot_floats(job->hot, job->width) + job->weights_num + SNAIL_PAD) *
           (int64_t)sizeof(float);
}

/* Step size after `done` examples.  Not inlined, so that -ffast-math rounds it the same way at each use. */
static SNAIL_APART float snail_linear_rate(const snail_sparse_job *job, float done, float share) {
    return job->rate_start + done * (job->rate_stop - job->rate_start) * share;
}

/* Trains examples first..last-1; adds up their losses before each step, and their weights. */
static void snail_train_linear(const snail_sparse_job *job, char *scratch, double *loss,
                               double *weights) {
    snail_linear call = {.job = job}, *l = &call;
    const float share = 1 / (float)(job->last - job->first);
    const snail_ftrl_by constant = snail_ftrl_of(job->rate_start, job->l1, job->beta);
    int64_t waiting = 0;
    l->scores = (float *)scratch + snail_hot_floats(job->hot, job->width);
    snail_fill(l->entries.decay, SNAIL_ENTRIES, job->l2);
    l->hot = (snail_hot_rows){job->rows, NULL, NULL, job->hot, job->bias, job->width,
                              job->weights_num, job->method == SNAIL_FTRL ? &constant : NULL, NULL};
    if (job->hot) {
        l->hot.own = (float *)scratch;
        l->hot.base = l->hot.own + (job->hot + 1) * job->width;
        snail_copy_hot(&l->hot);
    }
    for (int64_t i = job->first, num; i < job->last; i += num) {
        num = job->loss == SNAIL_MULTINOMIAL ? 1 : snail_linear_together(job, i);
        l->rate = snail_linear_rate(job, (float)(i - job->first), share);
        l->ftrl = snail_ftrl_of(l->rate, job->l1, job->beta);
        if (job->loss != SNAIL_MULTINOMIAL) snail_linear_ones(l, i, num, loss, weights);
        else {
            const float weight = job->weights ? job->weights[i] : 1;
            snail_linear_look_ahead(job, i + SNAIL_LINEAR_AHEAD);
            *loss += snail_linear_classes(l, i, weight);
            *weights += weight;
        }
        if (l->hot.own && (waiting += num) >= SNAIL_LINEAR_EXCHANGE) {
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
