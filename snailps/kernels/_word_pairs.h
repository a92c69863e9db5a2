/* Skip-gram training on pairs that are sorted by centre word, one group of bundles at a time.
 *
 * bundles (a centre word and a few of its contexts) -> groups of 16 -> rows, changed in place
 *
 * The 16 bundles of a group are the lanes of small matrices; see _word_vectors.h for the terms.
 *
 *     noise rows   S = R H'   C = rate * weight * -sigmoid(S)   gradient of H = C' R   R += C H
 *     then, lane by lane, each context row c:   s = rate * (1 - sigmoid(c . h))
 *                                               gradient of h += s c,   c += s h
 *     then each input row of the lane's bag += the gradient of h
 *
 * A bundle shares its hidden vector among its contexts, wherever in the text they are: it is computed
 * once where text order computes it for each place of the word.  Neighbours in the order of training
 * have nothing to do with each other, as in any stochastic descent on shuffled examples.
 */
#ifndef SNAILPS_WORD_PAIRS_H
#define SNAILPS_WORD_PAIRS_H

#include "_word_vectors.h"

typedef struct { /* one group: bundles first..first+num-1 */
    int64_t first;
    int num;
    int noise[SNAIL_SHARED];
} snail_bundles;

typedef struct {
    float *hidden;          /* [GROUP, stride] */
    float *hidden_gradient; /* [GROUP, stride] */
    float *across;          /* [stride, GROUP]: hidden, transposed */
    float *coef;            /* [SHARED, GROUP]: scores, then rates */
    float *steps;           /* AdaGrad: [TILE, stride] */
    float *step_row[SNAIL_TILE];
    float *rows[SNAIL_SHARED];
    float *hidden_row[SNAIL_GROUP];
    float *hidden_gradient_row[SNAIL_GROUP];
    snail_bundles groups[2];
} snail_pairs;

/* A group ends early where a centre would come again, as in _word_vectors.h. */
static void snail_plan_bundles(const snail_pairs_job *job, snail_bundles *g, int64_t first,
                               uint64_t number) {
    const uint64_t k = number * SNAIL_SHARED;
    g->first = first;
    g->num = 0;
    while (g->num < SNAIL_GROUP && first + g->num < job->bundle_num) {
        const int32_t centre = job->centres[first + g->num];
        int repeats = 0;
        for (int i = 0; i < g->num; i++) repeats |= job->centres[first + i] == centre;
        if (repeats) break;
        g->num++;
    }
    for (uint64_t i = 0; i < SNAIL_SHARED; i++)
        g->noise[i] =
            job->noise[snail_below(snail_draw(job->stream, k + i), job->noise_num)];
}

SNAIL_INLINE void snail_prefetch_output_of(const snail_pairs_job *job, int word) {
    snail_prefetch_row(job->outputs + word * job->stride, job->stride);
    if (job->output_squares)
        snail_prefetch_row(job->output_squares + word * job->stride, job->stride);
}

/* Asks for the bags and noise rows of a group while the one before it is being computed. */
static void snail_prefetch_bundles(const snail_pairs_job *job, const snail_bundles *g) {
    for (int i = 0; i < SNAIL_SHARED; i++) snail_prefetch_output_of(job, g->noise[i]);
    for (int i = 0; i < g->num; i++) {
        const int word = job->centres[g->first + i];
        for (int64_t r = job->bag_ptr[word]; r < job->bag_ptr[word + 1]; r++) {
            const int64_t at = job->bag_rows[r] * job->stride;
            snail_prefetch_row(job->inputs + at, job->stride);
            if (job->input_squares) snail_prefetch_row(job->input_squares + at, job->stride);
        }
    }
}

SNAIL_INLINE void snail_prefetch_contexts(const snail_pairs_job *job, int64_t bundle) {
    if (bundle >= job->bundle_num) return;
    for (int64_t c = job->starts[bundle]; c < job->starts[bundle + 1]; c++)
        snail_prefetch_output_of(job, job->contexts[c]);
}

/* How often each noise word counts in each lane: not for the pairs whose context it is. */
SNAIL_INLINE void snail_weigh_noise(const snail_pairs_job *job, const snail_bundles *g,
                                    float weight[SNAIL_SHARED][SNAIL_GROUP]) {
    const float share = job->negatives / SNAIL_SHARED;
    float full[SNAIL_GROUP] = {0};
    for (int i = 0; i < g->num; i++)
        full[i] = share * (float)(job->starts[g->first + i + 1] - job->starts[g->first + i]);
    for (int t = 0; t < SNAIL_SHARED; t++) memcpy(weight[t], full, sizeof full);
    for (int i = 0; i < g->num; i++)
        for (int64_t c = job->starts[g->first + i]; c < job->starts[g->first + i + 1]; c++) {
            const int word = job->contexts[c];
            int met = 0;
            for (int t = 0; t < SNAIL_SHARED; t++) met |= g->noise[t] == word;
            for (int t = 0; met && t < SNAIL_SHARED; t++)
                if (g->noise[t] == word)
                    weight[t][i] = weight[t][i] > share ? weight[t][i] - share : 0;
        }
}

/* Scores of the noise rows become coefficients; returns the loss. */
static double snail_judge_noise(const snail_pairs_job *job, const snail_bundles *g, snail_pairs *s,
                                float factor) {
    float weight[SNAIL_SHARED][SNAIL_GROUP], loss[SNAIL_GROUP] = {0};
    double total = 0;
    snail_weigh_noise(job, g, weight);
    for (int t = 0; t < SNAIL_SHARED; t++)
        snail_judge(s->coef + t * SNAIL_GROUP, job->noise_logit[g->noise[t]], -1, factor, weight[t],
                    loss);
    for (int i = 0; i < SNAIL_GROUP; i++) total += loss[i];
    return total;
}

static void snail_step_noise(const snail_pairs_job *job, const snail_bundles *g, snail_pairs *s,
                             float rate) {
    const float *const *hidden = (const float *const *)s->hidden_row;
    for (int t = 0; t < SNAIL_SHARED; t += SNAIL_TILE) {
        const float *coef = s->coef + t * SNAIL_GROUP;
        if (!job->output_squares) {
            snail_rows_from_lanes(g->num, hidden, coef, s->rows + t, (int)job->stride);
            continue;
        }
        snail_gradients_from_lanes(g->num, hidden, coef, s->step_row, (int)job->stride);
        for (int i = 0; i < SNAIL_TILE; i++)
            snail_adagrad_up(job->stride, s->rows[t + i],
                             job->output_squares + (s->rows[t + i] - job->outputs),
                             s->step_row[i], rate, job->epsilon);
    }
}

/* Dot products of a hidden vector and a few rows. */
SNAIL_INLINE void snail_dots(const int num, const float *hidden, float *const *rows, int64_t stride,
                             float *out) {
    snail_vec sum[SNAIL_TILE][2];
#pragma GCC unroll 4
    for (int r = 0; r < num; r++) sum[r][0] = sum[r][1] = (snail_vec){0};
    int64_t d = 0;
    for (; d + 2 * SNAIL_LANES <= stride; d += 2 * SNAIL_LANES) {
        const snail_vec x = snail_load(hidden + d), y = snail_load(hidden + d + SNAIL_LANES);
#pragma GCC unroll 4
        for (int r = 0; r < num; r++) {
            sum[r][0] += x * snail_load(rows[r] + d);
            sum[r][1] += y * snail_load(rows[r] + d + SNAIL_LANES);
        }
    }
    for (; d < stride; d += SNAIL_LANES) {
        const snail_vec x = snail_load(hidden + d);
#pragma GCC unroll 4
        for (int r = 0; r < num; r++) sum[r][0] += x * snail_load(rows[r] + d);
    }
#pragma GCC unroll 4
    for (int r = 0; r < num; r++) {
        const snail_vec both = sum[r][0] + sum[r][1];
        out[r] = 0;
        for (int i = 0; i < SNAIL_LANES; i++) out[r] += both[i];
    }
}

/* gradient += sum of pull[r] * rows[r], then rows[r] += pull[r] * hidden. */
SNAIL_INLINE void snail_meet(const int num, const float *restrict hidden, float *const *rows,
                             const float *pull, float *restrict gradient, int64_t stride) {
    for (int64_t d = 0; d < stride; d += SNAIL_LANES) {
        const snail_vec h = snail_load(hidden + d);
        snail_vec sum = snail_load(gradient + d);
#pragma GCC unroll 4
        for (int r = 0; r < num; r++) {
            const snail_vec x = snail_load(rows[r] + d);
            sum += pull[r] * x;
            snail_store(rows[r] + d, x + pull[r] * h);
        }
        snail_store(gradient + d, sum);
    }
}

/* The same with AdaGrad, whose gradients have no rate in them. */
SNAIL_INLINE void snail_meet_adagrad(const snail_pairs_job *job, const float *restrict hidden,
                                     float *restrict row, float pull, float *restrict gradient,
                                     float rate) {
    float *squares = job->output_squares + (row - job->outputs);
    for (int64_t d = 0; d < job->stride; d++) {
        gradient[d] += pull * row[d];
        snail_adagrad(&row[d], &squares[d], pull * hidden[d], -rate, job->epsilon);
    }
}

/* A few contexts of one lane, no word twice among them. */
SNAIL_INLINE double snail_train_some(const int num, const snail_pairs_job *job,
                                     const int32_t *contexts, const float *hidden, float *gradient,
                                     float rate) {
    float *rows[SNAIL_TILE], score[SNAIL_TILE];
    double loss = 0;
#pragma GCC unroll 4
    for (int r = 0; r < num; r++) rows[r] = job->outputs + contexts[r] * job->stride;
    snail_dots(num, hidden, rows, job->stride, score);
#pragma GCC unroll 4
    for (int r = 0; r < num; r++) {
        const float truth = snail_sigmoid(score[r] - job->noise_logit[contexts[r]]);
        loss -= snail_log(truth);
        score[r] = (job->output_squares ? 1.0f : rate) * (1.0f - truth);
    }
    if (!job->output_squares) snail_meet(num, hidden, rows, score, gradient, job->stride);
    else
        for (int r = 0; r < num; r++)
            snail_meet_adagrad(job, hidden, rows[r], score[r], gradient, rate);
    return loss;
}

/* The contexts of one lane, a tile at a time: each sees its row as the one before left it. */
static double snail_train_contexts(const snail_pairs_job *job, int64_t bundle, const float *hidden,
                                   float *gradient, float rate) {
    const int32_t *c = job->contexts + job->starts[bundle];
    int64_t left = job->starts[bundle + 1] - job->starts[bundle];
    double loss = 0;
    while (left > 0) {
        int num = 1;
        if (left >= SNAIL_TILE)
            num = c[0] != c[1] && c[0] != c[2] && c[0] != c[3] && c[1] != c[2] && c[1] != c[3] &&
                          c[2] != c[3]
                      ? SNAIL_TILE
                      : 1;
        loss += num == SNAIL_TILE ? snail_train_some(SNAIL_TILE, job, c, hidden, gradient, rate)
                                  : snail_train_some(1, job, c, hidden, gradient, rate);
        c += num;
        left -= num;
    }
    return loss;
}

static SNAIL_APART double snail_train_bundles(const snail_pairs_job *job, const snail_bundles *g,
                                              snail_pairs *s, float rate) {
    const int64_t stride = job->stride;
    double loss;
    for (int i = 0; i < g->num; i++) {
        const int64_t begin = job->bag_ptr[job->centres[g->first + i]];
        const int count = (int)(job->bag_ptr[job->centres[g->first + i] + 1] - begin);
        snail_sum_rows(count, job->bag_rows + begin, job->inputs, stride, 1.0f / (float)count,
                       s->hidden_row[i]);
    }
    for (int t = 0; t < SNAIL_SHARED; t++) s->rows[t] = job->outputs + g->noise[t] * stride;
    snail_transpose(s->hidden, (int)stride, s->across);
    snail_score(SNAIL_SHARED, (const float *const *)s->rows, s->across, job->dim, s->coef);
    loss = snail_judge_noise(job, g, s, job->output_squares ? 1 : rate);
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
        snail_lanes_from_rows(0, SNAIL_SHARED, (const float *const *)s->rows, s->coef + i,
                              s->hidden_gradient_row + i, (int)stride);
    snail_step_noise(job, g, s, rate);
    for (int i = 0; i < g->num; i++) {
        float *gradient = s->hidden_gradient_row[i];
        snail_prefetch_contexts(job, g->first + i + 1);
        loss += snail_train_contexts(job, g->first + i, s->hidden_row[i], gradient, rate);
        snail_step_bag(job->inputs, job->input_squares, stride, job->bag_ptr, job->bag_rows,
                       job->centres[g->first + i], gradient, rate, job->epsilon);
    }
    return loss;
}

/* Cuts scratch into parts; returns its size (scratch may be NULL to ask). */
static int64_t snail_lay_out_pairs(char *scratch, const snail_pairs_job *job, snail_pairs *s) {
    const int64_t row = job->stride * 4;
    int64_t at = 0;
    s->hidden = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->hidden_gradient = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->across = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->coef = snail_cut(scratch, &at, SNAIL_SHARED * SNAIL_GROUP * 4);
    s->steps = snail_cut(scratch, &at, SNAIL_TILE * row);
    return at;
}

static int64_t snail_pairs_scratch(const snail_pairs_job *job) {
    snail_pairs s;
    return snail_lay_out_pairs(NULL, job, &s);
}

/* All bundles, one group ahead with planning and prefetching. */
static void snail_train_pairs(const snail_pairs_job *job, char *scratch, double *loss,
                              int64_t *examples) {
    snail_pairs s;
    snail_bundles *now = &s.groups[0], *ahead = &s.groups[1];
    const float slope = (job->rate_stop - job->rate_start) / (float)job->bundle_num;
    snail_lay_out_pairs(scratch, job, &s);
    for (int i = 0; i < SNAIL_GROUP; i++) {
        s.hidden_row[i] = s.hidden + i * job->stride;
        s.hidden_gradient_row[i] = s.hidden_gradient + i * job->stride;
    }
    for (int i = 0; i < SNAIL_TILE; i++) s.step_row[i] = s.steps + i * job->stride;
    snail_plan_bundles(job, now, 0, 0);
    for (uint64_t number = 1; now->num > 0; number++) {
        snail_plan_bundles(job, ahead, now->first + now->num, number);
        snail_prefetch_bundles(job, ahead);
        *loss += snail_train_bundles(job, now, &s,
                                     job->rate_start + slope * (float)now->first);
        *examples += job->starts[now->first + now->num] - job->starts[now->first];
        snail_bundles *swap = now;
        now = ahead;
        ahead = swap;
    }
}

#endif
