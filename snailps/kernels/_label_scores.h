/* Labels lines by a trained classifier; only the answers are written, so any number of threads may ask.
 *
 * features of 16 lines -> means of their rows -> scores (16 lanes) -> the k best labels of each
 *
 * Rows are read where they lie, in a mapped file of any alignment, and prefetched some features ahead;
 * rows of a quantised model are put together from its centroids.  A line's answer depends neither on the
 * other lines of its group nor on how a text is cut, because its lane computes the same sums in the same
 * order.
 */
#ifndef SNAILPS_LABEL_SCORES_H
#define SNAILPS_LABEL_SCORES_H

#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_losses.h"
#include "_tiles.h"

enum {
    SNAIL_ROWS_AHEAD = 24,  /* how many features ahead rows are prefetched */
    SNAIL_CODES_ONCE = 64,  /* features whose quantised rows are added together: their codes stay near */
    SNAIL_PARTS_ONCE = 8,   /* parts of quantised rows that are summed in registers */
    SNAIL_LABELS_ONCE = 64, /* rows of labels that are multiplied with 16 lines at a time */
    SNAIL_FALL = 256 /* two factors above 2^-256 have a product that is a normal double */
};

/* A float of the file, and rows of them. */
typedef float snail_filed __attribute__((aligned(1), may_alias));

/* A node of the tree of labels with its probability, chance * 2^(-SNAIL_FALL * falls): a product of many
 * small numbers, which no float holds. */
typedef struct {
    int32_t node;
    int32_t falls;
    double chance;
} snail_branch;

typedef struct {
    const snail_labelling_job *job;
    float *hidden;       /* [GROUP, stride] */
    float *across;       /* [stride, GROUP] */
    float *scores;       /* [label_num, GROUP] */
    snail_branch *stack; /* [label_num + 1], of nodes that are still to be seen */
    snail_branch *top;   /* [k], the best labels so far */
} snail_labelling;

/* ---- the mean of rows ------------------------------------------------------------------------- */

SNAIL_INLINE const snail_filed *snail_filed_row(const snail_labelling_job *job, int32_t feature) {
    return (const snail_filed *)job->inputs + feature * job->dim;
}

SNAIL_INLINE void snail_ask_for(const snail_labelling_job *job, int32_t feature) {
    if (job->inputs) {
        const char *row = (const char *)snail_filed_row(job, feature);
        for (int64_t at = 0; at < job->dim * 4 + 63; at += 64) __builtin_prefetch(row + at, 0, 2);
    } else {
        const uint8_t *codes = job->codes + feature * (int64_t)job->part_num;
        for (int at = 0; at < job->part_num + 63; at += 64) __builtin_prefetch(codes + at, 0, 2);
        if (job->norm_codes) __builtin_prefetch(job->norm_codes + feature, 0, 2);
    }
}

SNAIL_INLINE void snail_add_filed(const snail_labelling_job *job, const int32_t *features, int64_t n,
                                  float *restrict sum) {
    const int64_t dim = job->dim;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) { /* the sum is read and written once for four rows */
        const snail_filed *a = snail_filed_row(job, features[i]);
        const snail_filed *b = snail_filed_row(job, features[i + 1]);
        const snail_filed *c = snail_filed_row(job, features[i + 2]);
        const snail_filed *d = snail_filed_row(job, features[i + 3]);
        for (int64_t k = 0; k < dim; k++) sum[k] += (a[k] + b[k]) + (c[k] + d[k]);
    }
    for (; i < n; i++) {
        const snail_filed *a = snail_filed_row(job, features[i]);
        for (int64_t k = 0; k < dim; k++) sum[k] += a[k];
    }
}

/* Adds up to four columns of `count` neighbouring parts of some features' rows to `sum`.  Parts are few, so
 * that the sums stay in registers and the centroids in the nearest cache; a load may reach behind the
 * columns, which is why the centroids end in padding. */
SNAIL_INLINE void snail_add_parts(const int count, const int width, const snail_labelling_job *job,
                                  const int32_t *features, int64_t n, int part, int column, int columns,
                                  float *sum) {
    const float *centroids = job->centroids + (int64_t)part * SNAIL_CENTROIDS * job->part_width + column;
    snail_quad totals[SNAIL_PARTS_ONCE];
#pragma GCC unroll 8
    for (int p = 0; p < count; p++) totals[p] = (snail_quad){0};
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *codes = job->codes + features[i] * (int64_t)job->part_num + part;
        const float norm = job->norm_codes ? job->norms[job->norm_codes[features[i]]] : 1;
#pragma GCC unroll 8
        for (int p = 0; p < count; p++)
            totals[p] += norm *
                *(const snail_quad *)(centroids + (int64_t)(p * SNAIL_CENTROIDS + codes[p]) * width);
    }
#pragma GCC unroll 8
    for (int p = 0; p < count; p++)
        for (int k = 0; k < columns; k++) sum[p * width + k] += totals[p][k];
}

/* Parts of a width that the compiler knows, as many at a time as there are; returns the first part left. */
SNAIL_INLINE int snail_add_narrow(const int width, const snail_labelling_job *job,
                                  const int32_t *features, int64_t n, float *sum) {
    int part = 0;
    for (; part + SNAIL_PARTS_ONCE < job->part_num; part += SNAIL_PARTS_ONCE)
        snail_add_parts(SNAIL_PARTS_ONCE, width, job, features, n, part, 0, width, sum + part * width);
    for (; part < job->part_num - 1; part++)
        snail_add_parts(1, width, job, features, n, part, 0, width, sum + part * width);
    return part;
}

static void snail_add_quantised(const snail_labelling_job *job, const int32_t *features, int64_t n,
                                float *sum) {
    const int width = job->part_width;
    int part = 0;
    if (width == 1) part = snail_add_narrow(1, job, features, n, sum);
    else if (width == 2) part = snail_add_narrow(2, job, features, n, sum);
    else if (width == 3) part = snail_add_narrow(3, job, features, n, sum);
    else if (width == 4) part = snail_add_narrow(4, job, features, n, sum);
    for (; part < job->part_num; part++) { /* wide parts, and the last one, which may be narrower */
        const int64_t first = (int64_t)part * width;
        const int own = (int)snail_least64(width, job->dim - first);
        for (int column = 0; column < own; column += 4)
            snail_add_parts(1, own, job, features, n, part, column, own - column < 4 ? own - column : 4,
                            sum + first + column);
    }
}

/* Mean of a line's rows; zeros of a line without features; NaN in the place of infinity, which a sigmoid
 * would take for a certain label. */
static void snail_hide_line(const snail_labelling_job *job, int64_t line, float *hidden) {
    const int64_t begin = job->ptr[line], end = job->ptr[line + 1], all = job->ptr[job->last];
    memset(hidden, 0, (size_t)job->stride * sizeof(float));
    const int64_t step = job->inputs ? 4 : SNAIL_CODES_ONCE;
    for (int64_t first = begin; first < end; first += step) {
        const int64_t n = snail_least64(step, end - first);
        for (int64_t at = first + SNAIL_ROWS_AHEAD; at < first + SNAIL_ROWS_AHEAD + n && at < all; at++)
            snail_ask_for(job, job->features[at]);
        if (job->inputs) snail_add_filed(job, job->features + first, n, hidden);
        else snail_add_quantised(job, job->features + first, n, hidden);
    }
    if (end > begin) {
        const float share = 1 / (float)(end - begin);
        for (int64_t k = 0; k < job->dim; k++) {
            const float mean = hidden[k] * share;
            hidden[k] = __builtin_isinf(mean) ? __builtin_nanf("") : mean;
        }
    }
}

/* ---- the best labels -------------------------------------------------------------------------- */

/* Puts a label among the best of a line, which fall; equal ones stay in the order of labels. */
SNAIL_INLINE void snail_place_label(int32_t *best, float *chances, int k, int32_t label, float chance) {
    int at = k - 1;
    for (; at > 0 && chances[at - 1] < chance; at--) {
        chances[at] = chances[at - 1];
        best[at] = best[at - 1];
    }
    chances[at] = chance;
    best[at] = label;
}

/* exp(x) of x <= 0; NaN of NaN, which the approximation cannot take. */
SNAIL_INLINE float snail_share(float x) {
    const float found = snail_exp(x > -SNAIL_BOUND ? x : -SNAIL_BOUND);
    return x == x ? found : x;
}

/* What the probability of a label follows from, beside its score. */
typedef struct {
    float most;  /* of the line's scores */
    float total; /* of exp(score - most) */
    float rest;  /* the same without the best label: 1 minus its probability, times `total` */
} snail_sums;

/* The probability of a label; NaN of NaN. */
SNAIL_INLINE float snail_chance(const snail_labelling_job *job, float score, const snail_sums *sums,
                                int is_best) {
    if (score != score) return score;
    const float shift = is_best ? job->shift : job->others;
    if (job->loss != SNAIL_SOFTMAX) return snail_likely(score + shift);
    const float share = snail_share(score - sums->most);
    if (!job->apart) return share / sums->total;
    /* The odds of its probability, without 1 - p, which loses digits near 1. */
    const float others = is_best ? sums->rest : sums->total - share;
    const float odds = score - sums->most - snail_log(others > 1e-35f ? others : 1e-35f);
    return snail_likely(job->slope * odds + shift);
}

/* The k best labels of all lines of a group, with their scores in the place of chances.  Most labels are
 * among the best of no line, which one comparison of 16 lanes says. */
static void snail_place_labels(const snail_labelling *s, int lanes, int64_t line) {
    const snail_labelling_job *job = s->job;
    const int k = job->k;
    float least[SNAIL_GROUP];
    for (int i = 0; i < SNAIL_GROUP; i++)
        least[i] = i < lanes ? job->chances[(line + i) * k + k - 1] : __builtin_inff();
    for (int64_t label = 0; label < job->label_num; label++) {
        const float *row = s->scores + label * SNAIL_GROUP;
        int is_better = 0;
        for (int i = 0; i < SNAIL_GROUP; i++) is_better |= row[i] > least[i];
        for (int i = 0; is_better && i < lanes; i++) {
            float *chances = job->chances + (line + i) * k;
            if (!(row[i] > least[i])) continue;
            snail_place_label(job->best + (line + i) * k, chances, k, (int32_t)label, row[i]);
            least[i] = chances[k - 1];
        }
    }
}

static void snail_choose(const snail_labelling *s, int lanes, int64_t line) {
    const snail_labelling_job *job = s->job;
    const int64_t label_num = job->label_num;
    const float *scores = s->scores;
    float most[SNAIL_GROUP], total[SNAIL_GROUP], rest[SNAIL_GROUP];
    int32_t first[SNAIL_GROUP];
    for (int i = 0; i < SNAIL_GROUP; i++) {
        most[i] = -__builtin_inff();
        first[i] = -1;
        total[i] = rest[i] = 0;
    }
    for (int64_t label = 0; label < label_num; label++) {
        const float *row = scores + label * SNAIL_GROUP;
        for (int i = 0; i < SNAIL_GROUP; i++) {
            first[i] = row[i] > most[i] ? (int32_t)label : first[i];
            most[i] = row[i] > most[i] ? row[i] : most[i];
        }
    }
    if (job->loss == SNAIL_SOFTMAX)
        for (int64_t label = 0; label < label_num; label++) {
            const float *row = scores + label * SNAIL_GROUP;
            for (int i = 0; i < SNAIL_GROUP; i++) total[i] += snail_share(row[i] - most[i]);
        }
    if (job->apart)
        for (int64_t label = 0; label < label_num; label++)
            for (int i = 0; i < lanes; i++)
                if (label != first[i]) rest[i] += snail_share(scores[label * SNAIL_GROUP + i] - most[i]);
    if (!job->all && job->k > 1) snail_place_labels(s, lanes, line);
    for (int i = 0; i < lanes; i++) {
        const snail_sums sums = {most[i], total[i], rest[i]};
        if (job->all) {
            float *all = job->all + (line + i) * label_num;
            for (int64_t label = 0; label < label_num; label++)
                all[label] = snail_chance(job, scores[label * SNAIL_GROUP + i], &sums, label == first[i]);
            if (job->scores)
                for (int64_t label = 0; label < label_num; label++)
                    job->scores[(line + i) * label_num + label] = scores[label * SNAIL_GROUP + i];
            /* Of the scores: probabilities that round to 1 are equal. */
            job->best[line + i] = first[i];
            continue;
        }
        int32_t *best = job->best + (line + i) * job->k;
        float *chances = job->chances + (line + i) * job->k;
        if (job->k == 1) {
            best[0] = first[i];
            chances[0] = snail_chance(job, most[i], &sums, 1);
        } else {
            for (int at = 0; at < job->k; at++)
                chances[at] = snail_chance(job, chances[at], &sums, at == 0);
        }
    }
}

SNAIL_INLINE float snail_dot_lanes(const float *a, const float *b, int64_t stride) {
    snail_vec sum = {0};
    float total = 0;
    for (int64_t d = 0; d < stride; d += SNAIL_LANES) sum += snail_load(a + d) * snail_load(b + d);
    for (int i = 0; i < SNAIL_LANES; i++) total += sum[i];
    return total;
}

/* exp(-x) of x >= 0, down to the least double; NaN of NaN. */
SNAIL_INLINE double snail_tiny_exp(float x) {
    double part = 1;
    if (x != x) return x;
    for (x = x < 700 ? x : 700; x > SNAIL_BOUND; x -= SNAIL_BOUND) part *= 1.8048513878454153e-35; /* exp(-80) */
    return part * snail_exp(-x);
}

/* A child with a share of its parent's probability. */
SNAIL_INLINE snail_branch snail_child(const snail_branch *parent, int32_t node, double share) {
    snail_branch child = {node, parent->falls, parent->chance};
    for (; share > 0 && share < 0x1p-256; child.falls++) share *= 0x1p256;
    child.chance *= share;
    if (child.chance > 0 && child.chance < 0x1p-256) {
        child.chance *= 0x1p256;
        child.falls++;
    }
    return child;
}

SNAIL_INLINE int snail_likelier(const snail_branch *a, const snail_branch *b) {
    return a->falls != b->falls ? a->falls < b->falls : a->chance > b->chance;
}

SNAIL_INLINE float snail_chance_of(const snail_branch *at) {
    return at->falls ? 0 : (float)at->chance; /* 2^-256 is 0 as a float */
}

/* The logarithm of its probability, which orders labels whose probabilities are 0 as floats. */
SNAIL_INLINE float snail_log_chance(const snail_branch *at) {
    uint64_t bits;
    double part;
    if (!(at->chance > 0)) return (float)at->chance;
    memcpy(&bits, &at->chance, sizeof bits);
    const int power = (int)(bits >> 52) - 1023 - SNAIL_FALL * at->falls;
    bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    memcpy(&part, &bits, sizeof part);
    return (float)(power * 0.6931471805599453 + snail_log((float)part));
}

/* Walks down fastText's tree of labels, the likelier child first; skips a node that is no more probable
 * than the k-th best label so far: no label below it can be. */
static void snail_descend(const snail_labelling *s, const float *hidden, int64_t line) {
    const snail_labelling_job *job = s->job;
    const int64_t label_num = job->label_num;
    const int k = job->all ? 1 : job->k;
    int64_t left = 1;
    for (int i = 0; i < k; i++) s->top[i] = (snail_branch){-1, INT32_MAX, 0};
    s->stack[0] = (snail_branch){(int32_t)(2 * label_num - 2), 0, 1};
    while (left) {
        const snail_branch at = s->stack[--left];
        const int is_better = at.chance == at.chance && snail_likelier(&at, &s->top[k - 1]);
        if (!job->all && !is_better) continue;
        if (at.node < label_num) {
            if (job->all) job->all[line * label_num + at.node] = snail_chance_of(&at);
            if (job->scores) job->scores[line * label_num + at.node] = snail_log_chance(&at);
            if (!is_better) continue;
            int place = k - 1;
            for (; place > 0 && snail_likelier(&at, &s->top[place - 1]); place--) s->top[place] = s->top[place - 1];
            s->top[place] = at;
            continue;
        }
        const int64_t inner = at.node - label_num;
        const float score =
            snail_dot_lanes(job->outputs + inner * job->stride, hidden, job->stride);
        const double less = snail_tiny_exp(score < 0 ? -score : score), more = 1 / (1 + less);
        const int32_t *child = job->children + 2 * inner;
        const int likelier = score > 0;
        s->stack[left++] = snail_child(&at, child[!likelier], less * more);
        s->stack[left++] = snail_child(&at, child[likelier], more);
    }
    for (int i = 0; i < k; i++) {
        job->best[line * k + i] = s->top[i].node;
        if (!job->all) job->chances[line * k + i] = s->top[i].node < 0 ? -1 : snail_chance_of(&s->top[i]);
    }
}

/* ---- all lines -------------------------------------------------------------------------------- */

static int64_t snail_labelling_scratch(const snail_labelling_job *job) {
    const int64_t floats = 2 * SNAIL_GROUP * job->stride + (job->children ? 0 : SNAIL_GROUP * job->label_num);
    return floats * (int64_t)sizeof(float)
        + (job->children ? (job->label_num + 1 + job->k) * (int64_t)sizeof(snail_branch) : 0);
}

/* Starts a line's answers: no label is found yet. */
static void snail_clear_answers(const snail_labelling_job *job, int64_t line) {
    for (int at = 0; at < job->k; at++) {
        job->best[line * job->k + at] = -1;
        if (!job->all) job->chances[line * job->k + at] = -__builtin_inff();
    }
}

/* Marks missing answers of a line by label -1 (and NaN): it has no features, or its scores are NaN. */
static void snail_void_answers(const snail_labelling_job *job, int64_t line) {
    const int empty = job->ptr[line + 1] == job->ptr[line];
    if (job->all) {
        float *all = job->all + line * job->label_num;
        for (int64_t label = 0; empty && label < job->label_num; label++) all[label] = __builtin_nanf("");
        if (empty || job->best[line] < 0 || !(all[job->best[line]] >= 0)) job->best[line] = -1;
        return;
    }
    for (int64_t at = line * job->k; at < (line + 1) * job->k; at++)
        if (empty || job->best[at] < 0 || !(job->chances[at] >= 0)) {
            job->best[at] = -1;
            job->chances[at] = __builtin_nanf("");
        }
}

static void snail_label_lines(const snail_labelling_job *job, char *scratch) {
    snail_labelling s = {.job = job};
    const float *rows[SNAIL_LABELS_ONCE];
    s.hidden = (float *)scratch;
    s.across = s.hidden + SNAIL_GROUP * job->stride;
    s.scores = s.across + SNAIL_GROUP * job->stride;
    s.stack = (snail_branch *)s.scores;
    s.top = s.stack + job->label_num + 1;
    for (int64_t at = job->ptr[job->first]; at < job->ptr[job->last] && at < job->ptr[job->first] + SNAIL_ROWS_AHEAD; at++)
        snail_ask_for(job, job->features[at]);
    for (int64_t line = job->first; line < job->last; line += SNAIL_GROUP) {
        const int lanes = (int)snail_least64(SNAIL_GROUP, job->last - line);
        for (int i = 0; i < lanes; i++) {
            snail_hide_line(job, line + i, s.hidden + i * job->stride);
            if (job->hidden)
                memcpy(job->hidden + (line + i) * job->dim, s.hidden + i * job->stride,
                       (size_t)job->dim * sizeof(float));
            else snail_clear_answers(job, line + i);
        }
        if (job->hidden) continue;
        if (job->children)
            for (int i = 0; i < lanes; i++) snail_descend(&s, s.hidden + i * job->stride, line + i);
        else {
            memset(s.hidden + lanes * job->stride, 0,
                   (size_t)((SNAIL_GROUP - lanes) * job->stride) * sizeof(float));
            snail_transpose(s.hidden, (int)job->stride, s.across);
            for (int64_t label = 0; label < job->label_num; label += SNAIL_LABELS_ONCE) {
                const int n = (int)snail_least64(SNAIL_LABELS_ONCE, job->label_num - label);
                for (int r = 0; r < n; r++) rows[r] = job->outputs + (label + r) * job->stride;
                snail_score(n, rows, s.across, (int)job->dim, s.scores + label * SNAIL_GROUP);
            }
            snail_choose(&s, lanes, line);
        }
        for (int i = 0; i < lanes; i++) snail_void_answers(job, line + i);
    }
}

#endif
