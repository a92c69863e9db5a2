/* CBOW word-vector training, one group of centres at a time; skip-gram is in _word_pairs.h.
 *
 * tokens -> plan_group -> group (which words meet) -> train_group -> rows, changed in place
 *
 * How a group is trained.  16 consecutive centres are the 16 *lanes* of small matrices.
 *
 *     rows  R = [32 shared noise rows | rows of the centres]            read in place
 *     lanes H = means over the bags around                              16 x dim, scratch
 *     S = R H'      C = rate * weight * (label - sigmoid(S))            (rows x 16), scratch
 *     gradient of H = C' R,  then R += C H,  then each input row of a lane's bags += its gradient
 *
 * With AdaGrad C has no rate, and a row's part of C H, or of the gradient of a lane, is one step for
 * that row: its elements' squares are added up, and the step divided by their root.
 *
 * With a list of targets (a rotation: those of one visiting part) the lanes are the next 16 of these,
 * from anywhere in the text.  They share few contexts, so each lane sums the rows around it by itself,
 * and steps them by itself.  So does a lane of neighbours in the text whose words have one row each: a
 * product with all rows in reach takes longer than five sums.
 */
#ifndef SNAILPS_WORD_VECTORS_H
#define SNAILPS_WORD_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../abi/_key_hash.h"
#include "_jobs.h"
#include "_optimizers.h"
#include "_tiles.h"

enum {
    SNAIL_REPEAT = 1, /* lanes of a group that may have the same centre: see snail_plan_group */
    SNAIL_TILE = SNAIL_UPDATE_ROWS
};

typedef struct { /* which words meet in one group; slots are the tokens in reach of it */
    int lane_num;
    int slot_num;
    int64_t first; /* token of lane 0 */
    int64_t next;  /* first token behind the group */
    int centre[SNAIL_GROUP];
    int own[SNAIL_GROUP];   /* slot of the centre itself */
    int begin[SNAIL_GROUP]; /* contexts of a lane: slots begin..end-1 without `own`; */
    int end[SNAIL_GROUP];   /* begin = end = 0 in unused lanes */
    int contexts[SNAIL_GROUP];
    int shared[SNAIL_SHARED]; /* noise words */
    int *slot;                /* words; with targets slots are tokens */
    int fresh[SNAIL_GROUP];   /* first slot of a lane that the lane before does not reach */
} snail_group;

typedef struct { /* rows are `stride` floats */
    float *hidden;          /* [GROUP, stride] */
    float *hidden_gradient; /* [GROUP, stride] */
    float *across;          /* [stride, GROUP]: hidden, transposed */
    float *coef;            /* [the more of slots and SHARED, GROUP]: scores, then rates */
    float *idle;            /* [stride] zeros: stands in for rows that fill up a tile */
    float *steps;           /* AdaGrad: [TILE, stride], gradients of the rows of a tile */
    float *step_row[SNAIL_TILE];
    float *bags;        /* [slots, stride] sums, then gradients */
    float *mix;         /* [slots, GROUP] */
    const float *rows[SNAIL_SHARED];
    const float *centre_row[SNAIL_GROUP];
    float pull[SNAIL_GROUP]; /* coefficients of the centres */
    float **hidden_row; /* [GROUP] */
    float **hidden_gradient_row;
    float **bag_row; /* [slots] */
    int32_t *around; /* [2 * window + 1]: rows of the contexts of a lane */
    snail_group groups[2];
} snail_words;

/* Number k of a stream of random numbers. */
SNAIL_INLINE uint64_t snail_draw(uint64_t stream, uint64_t k) {
    return snail_mix64(stream + SNAIL_GOLDEN * (k + 1));
}

/* 0..bound-1 from the high half; the bias is below bound / 2^32. */
SNAIL_INLINE uint64_t snail_below(uint64_t random, uint64_t bound) {
    return ((random >> 32) * bound) >> 32;
}

SNAIL_INLINE int snail_least(int a, int b) { return a < b ? a : b; }
SNAIL_INLINE int snail_most(int a, int b) { return a > b ? a : b; }
SNAIL_INLINE int64_t snail_least64(int64_t a, int64_t b) { return a < b ? a : b; }

/* The noise words of a group, from draw k on; asks for the places of the next one's, from draw `next` on. */
SNAIL_INLINE void snail_draw_noise(const int32_t *noise, uint64_t noise_num, uint64_t stream, uint64_t k,
                                   uint64_t next, int num, int *drawn) {
    for (uint64_t i = 0; i < (uint64_t)num; i++) {
        drawn[i] = noise[snail_below(snail_draw(stream, k + i), noise_num)];
        __builtin_prefetch(noise + snail_below(snail_draw(stream, next + i), noise_num), 0, 3);
    }
}

/* ---- which words meet ------------------------------------------------------------------------- */

/* Only slots that some lane can see stay: the outermost reaches are rarely the whole window. */
SNAIL_INLINE void snail_trim_group(snail_group *g, int slots, int lanes, int sentence_lane) {
    int first = slots, last = 0;
    for (int i = 0; i < lanes; i++) {
        if (i >= sentence_lane) g->end[i] = snail_least(g->end[i], slots);
        g->contexts[i] = g->end[i] - g->begin[i] - 1;
        first = snail_least(first, g->begin[i]);
        last = snail_most(last, g->end[i]);
    }
    for (int i = 0; i < last - first; i++) g->slot[i] = g->slot[i + first];
    for (int i = 0; i < lanes; i++) {
        g->own[i] -= first;
        g->begin[i] -= first;
        g->end[i] -= first;
    }
    for (int i = lanes; i < SNAIL_GROUP; i++) {
        g->centre[i] = -1;
        g->own[i] = g->begin[i] = g->end[i] = g->contexts[i] = 0;
    }
    g->slot_num = snail_most(last - first, 0);
    g->lane_num = lanes;
}

/* The noise words of a group, from draw k on. */
SNAIL_INLINE void snail_draw_shared(const snail_words_job *job, snail_group *g, uint64_t k) {
    const uint64_t next = k + SNAIL_GROUP + SNAIL_SHARED;
    snail_draw_noise(job->noise, job->noise_num, job->stream, k, next, SNAIL_SHARED, g->shared);
}

/* The group whose first centre is the first word at or behind `start`.
 *
 * It ends early where a centre would come again.  All lanes start from the same vectors, so a word
 * that is several lanes takes the same step several times: in small vocabularies, or text where words
 * come in bursts, that overshoots until the vectors diverge (200 words at a rate of 0.05: loss 37
 * instead of 0.26).  On ordinary text it costs 12 % of the speed and gains 0.03 in loss. */
static SNAIL_APART void snail_plan_group(const snail_words_job *job, snail_group *g, int64_t start,
                             uint64_t number) {
    const int32_t *tokens = job->tokens;
    const int window = job->window;
    const uint64_t k = number * (SNAIL_GROUP + SNAIL_SHARED);
    int slots = 0, lanes = 0, sentence = 0, sentence_lane = 0;
    int64_t at = start;
    while (at < job->token_num && tokens[at] < 0) at++;
    g->first = at;
    int64_t left = at;
    while (left > 0 && at - left < window && tokens[left - 1] >= 0) left--;
    while (left < at) g->slot[slots++] = tokens[left++];
    for (; at < job->token_num && lanes < SNAIL_GROUP; at++) {
        if (tokens[at] < 0) {
            for (int i = sentence_lane; i < lanes; i++) g->end[i] = snail_least(g->end[i], slots);
            sentence = slots;
            sentence_lane = lanes;
            continue;
        }
        int repeats = 0;
        for (int i = 0; i < lanes; i++) repeats += g->centre[i] == tokens[at];
        if (repeats == SNAIL_REPEAT) break;
        const uint64_t random = snail_draw(job->stream, k + (uint64_t)lanes);
        const int reach = 1 + (int)snail_below(random, (uint64_t)window);
        g->centre[lanes] = tokens[at];
        g->own[lanes] = slots;
        g->begin[lanes] = snail_most(sentence, slots - reach);
        g->end[lanes] = slots + 1 + reach;
        g->slot[slots++] = tokens[at];
        lanes++;
    }
    for (int64_t right = at; right < job->token_num && right - at < window && tokens[right] >= 0;)
        g->slot[slots++] = tokens[right++];
    g->next = at;
    snail_trim_group(g, slots, lanes, sentence_lane);
    snail_draw_shared(job, g, k + SNAIL_GROUP);
}

/* The same of a list of targets: the lanes are number `start` and what follows it. */
static SNAIL_APART void snail_plan_targets(const snail_words_job *job, snail_group *g,
                                           int64_t start, uint64_t number) {
    const int32_t *tokens = job->tokens;
    const uint64_t k = number * (SNAIL_GROUP + SNAIL_SHARED);
    int lanes = 0;
    for (int64_t t = start; t < job->target_num && lanes < SNAIL_GROUP; t++, lanes++) {
        const int at = job->targets[t], row = job->target_rows[t];
        const int reach =
            1 + (int)snail_below(snail_draw(job->stream, k + (uint64_t)lanes), (uint64_t)job->window);
        int begin = at, end = at + 1, repeats = 0;
        for (int i = 0; i < lanes; i++) repeats += g->centre[i] == row;
        if (repeats == SNAIL_REPEAT) break;
        while (begin > 0 && at - begin < reach && tokens[begin - 1] >= 0) begin--;
        while (end < job->token_num && end - at <= reach && tokens[end] >= 0) end++;
        g->centre[lanes] = row;
        g->own[lanes] = at;
        g->begin[lanes] = begin;
        g->end[lanes] = end;
        g->contexts[lanes] = end - begin - 1;
    }
    for (int i = lanes; i < SNAIL_GROUP; i++) {
        g->centre[i] = -1;
        g->own[i] = g->begin[i] = g->end[i] = g->contexts[i] = 0;
    }
    g->slot_num = 0;
    g->lane_num = lanes;
    g->first = start;
    g->next = start + lanes;
    snail_draw_shared(job, g, k + SNAIL_GROUP);
}

SNAIL_INLINE void snail_prefetch_bag(const snail_words_job *job, int word) {
    for (int64_t r = job->bag_ptr[word]; r < job->bag_ptr[word + 1]; r++) {
        const int64_t at = job->bag_rows[r] * job->stride;
        snail_prefetch_row(job->inputs + at, job->stride);
        if (job->input_squares) snail_prefetch_row(job->input_squares + at, job->stride);
    }
}

SNAIL_INLINE void snail_prefetch_output(const snail_words_job *job, int word) {
    snail_prefetch_row(job->outputs + word * job->stride, job->stride);
    if (job->output_squares)
        snail_prefetch_row(job->output_squares + word * job->stride, job->stride);
}

/* Asks for the rows of a group while the one before it is being computed. */
static void snail_prefetch_group(const snail_words_job *job, const snail_group *g) {
    for (int i = 0; i < SNAIL_SHARED; i++) snail_prefetch_output(job, g->shared[i]);
    for (int i = 0; i < g->slot_num; i++) snail_prefetch_bag(job, g->slot[i]);
    for (int i = 0; i < g->lane_num; i++) snail_prefetch_output(job, g->centre[i]);
}

/* Whether each lane sums and steps the rows around it by itself. */
SNAIL_INLINE int snail_is_by_lane(const snail_words_job *job) {
    return job->targets || (job->single && !job->input_squares);
}

/* Words of the slots of a group. */
SNAIL_INLINE const int32_t *snail_slots(const snail_words_job *job, const snail_group *g) {
    return job->targets ? job->tokens : g->slot;
}

/* Where the slots begin that the lane before has not asked for. */
SNAIL_INLINE void snail_find_fresh(snail_group *g) {
    g->fresh[0] = g->begin[0];
    for (int i = 1; i < SNAIL_GROUP; i++)
        g->fresh[i] = g->begin[i] >= g->begin[i - 1] ? snail_most(g->begin[i], g->end[i - 1])
                                                     : g->begin[i];
}

/* The part of this that a lane has, where each sums by itself: a few rows at a time, because a core
 * waits where more lines are asked for than it has buffers for. */
SNAIL_INLINE void snail_prefetch_target(const snail_words_job *job, const snail_group *g, int i) {
    const int32_t *words = snail_slots(job, g);
    for (int t = i; t < SNAIL_SHARED; t += SNAIL_GROUP) snail_prefetch_output(job, g->shared[t]);
    if (i >= g->lane_num) return;
    snail_prefetch_output(job, g->centre[i]);
    for (int at = g->fresh[i]; at < g->end[i]; at++) snail_prefetch_bag(job, words[at]);
}

/* ---- one group -------------------------------------------------------------------------------- */

/* to += factor * from */
SNAIL_INLINE void snail_add_times(int64_t stride, float *restrict to, float factor,
                                  const float *restrict from) {
    for (int64_t d = 0; d < stride; d += SNAIL_LANES)
        snail_store(to + d, snail_load(to + d) + factor * snail_load(from + d));
}

/* A step of AdaGrad of a row, up along `value`. */
static void snail_adagrad_up(int64_t stride, float *restrict row, float *restrict squares,
                             const float *restrict value, float rate, float epsilon) {
    for (int64_t d = 0; d < stride; d += SNAIL_LANES)
        snail_store(row + d, snail_adagrad_step(snail_load(row + d), squares + d,
                                                snail_load(value + d), rate, epsilon));
}

/* A step of each row of a bag; plain gradients have the rate in them already. */
SNAIL_INLINE void snail_step_bag(float *inputs, float *squares, int64_t stride,
                                 const int64_t *bag_ptr, const int32_t *bag_rows, int word,
                                 const float *gradient, float rate, float epsilon) {
    for (int64_t r = bag_ptr[word]; r < bag_ptr[word + 1]; r++) {
        const int64_t at = bag_rows[r] * stride;
        float *row = inputs + at;
        if (squares)
            snail_adagrad_up(stride, row, squares + at, gradient, rate, epsilon);
        else
            for (int64_t d = 0; d < stride; d++) row[d] += gradient[d];
    }
}

SNAIL_INLINE void snail_add_to_bag(const snail_words_job *job, int word, const float *gradient,
                                   float rate) {
    snail_step_bag(job->inputs, job->input_squares, job->stride, job->bag_ptr, job->bag_rows, word,
                   gradient, rate, job->epsilon);
}

/* A step of AdaGrad of the noise rows of a tile. */
SNAIL_INLINE void snail_step_outputs(const snail_words_job *job, snail_words *s, int first,
                                     const float *const *hidden, const float *coef, float rate) {
    snail_gradients_from_lanes(SNAIL_GROUP, hidden, coef, s->step_row, (int)job->stride);
    for (int i = 0; i < SNAIL_TILE; i++) {
        float *row = (float *)s->rows[first + i];
        snail_adagrad_up(job->stride, row, job->output_squares + (row - job->outputs),
                         s->step_row[i], rate, job->epsilon);
    }
}

/* Sum of a word's rows; returns how many there are. */
SNAIL_INLINE int snail_sum_bag(const snail_words_job *job, int word, float *out) {
    const int64_t begin = job->bag_ptr[word];
    const int count = (int)(job->bag_ptr[word + 1] - begin);
    snail_sum_rows(count, job->bag_rows + begin, job->inputs, job->stride, 1, out);
    return count;
}

/* Whether slot j is a context of lane i. */
SNAIL_INLINE int snail_sees(const int *begin, const int *end, const int *own, int i, int j) {
    return (begin[i] <= j) & (j < end[i]) & (own[i] != j);
}

/* Hidden vector of a lane: the mean over all rows of all bags around its centre. */
static void snail_hide_cbow(const snail_words_job *job, const snail_group *g, snail_words *s) {
    float count[SNAIL_GROUP] = {0};
    for (int j = 0; j < g->slot_num; j++) {
        const float bag = (float)snail_sum_bag(job, g->slot[j], s->bag_row[j]);
        for (int i = 0; i < SNAIL_GROUP; i++) {
            const float seen = (float)snail_sees(g->begin, g->end, g->own, i, j);
            s->mix[j * SNAIL_GROUP + i] = seen;
            count[i] += seen * bag;
        }
    }
    for (int i = 0; i < SNAIL_GROUP; i++) count[i] = count[i] > 0 ? 1 / count[i] : 0;
    for (int j = 0; j < g->slot_num; j++)
        for (int i = 0; i < SNAIL_GROUP; i++)
            s->coef[j * SNAIL_GROUP + i] = s->mix[j * SNAIL_GROUP + i] * count[i];
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
        snail_lanes_from_rows(0, g->slot_num, (const float *const *)s->bag_row, s->coef + i,
                              s->hidden_row + i, (int)job->stride);
}

/* Adds each lane's gradient to every row of every bag around it. */
static void snail_spread_cbow(const snail_words_job *job, const snail_group *g, snail_words *s,
                              float rate) {
    const int tiles = (g->slot_num + SNAIL_TILE - 1) / SNAIL_TILE * SNAIL_TILE;
    memset(s->bags, 0, (size_t)(g->slot_num * job->stride) * sizeof(float));
    for (int j = g->slot_num * SNAIL_GROUP; j < tiles * SNAIL_GROUP; j++) s->mix[j] = 0;
    for (int j = g->slot_num; j < tiles; j++) s->bag_row[j] = s->idle;
    for (int j = 0; j < tiles; j += SNAIL_TILE)
        snail_rows_from_lanes(SNAIL_GROUP, (const float *const *)s->hidden_gradient_row,
                              s->mix + j * SNAIL_GROUP, s->bag_row + j, (int)job->stride);
    for (int j = g->slot_num; j < tiles; j++) s->bag_row[j] = s->bags + j * job->stride;
    for (int j = 0; j < g->slot_num; j++) snail_add_to_bag(job, g->slot[j], s->bag_row[j], rate);
}

/* Rows of the contexts of a lane, of one row each, into `rows`; returns how many. */
SNAIL_INLINE int snail_rows_around(const snail_words_job *job, const snail_group *g, int lane,
                                   int32_t *rows) {
    const int32_t *words = snail_slots(job, g);
    int num = 0;
    for (int at = g->begin[lane]; at < g->end[lane]; at++) {
        rows[num] = job->bag_rows[words[at]];
        num += at != g->own[lane];
    }
    return num;
}

/* Hidden vectors, lane by lane. */
static void snail_hide_by_lane(const snail_words_job *job, const snail_group *g, snail_words *s) {
    const int64_t stride = job->stride;
    for (int i = 0; i < SNAIL_GROUP; i++) {
        float *restrict hidden = s->hidden_row[i], *restrict bag = s->bag_row[0];
        int rows = 0;
        if (job->single) {
            rows = snail_rows_around(job, g, i, s->around);
            snail_sum_rows(rows, s->around, job->inputs, stride, rows > 0 ? 1.0f / (float)rows : 0,
                           hidden);
            continue;
        }
        memset(hidden, 0, (size_t)stride * sizeof(float));
        for (int at = g->begin[i]; at < g->end[i]; at++) {
            if (at == g->own[i]) continue;
            rows += snail_sum_bag(job, job->tokens[at], bag);
            for (int64_t d = 0; d < stride; d++) hidden[d] += bag[d];
        }
        const float share = rows > 0 ? 1.0f / (float)rows : 0;
        for (int64_t d = 0; d < stride; d++) hidden[d] *= share;
    }
}

/* Adds the gradient of each lane to every row of every bag around it; asks for the next group's. */
static void snail_spread_by_lane(const snail_words_job *job, const snail_group *g,
                                 const snail_group *ahead, snail_words *s, float rate) {
    for (int i = 0; i < SNAIL_GROUP; i++) {
        const float *gradient = s->hidden_gradient_row[i];
        snail_prefetch_target(job, ahead, i);
        if (job->single && !job->input_squares) {
            const int num = snail_rows_around(job, g, i, s->around);
            for (int k = 0; k < num; k++)
                snail_add_times(job->stride, job->inputs + s->around[k] * job->stride, 1, gradient);
            continue;
        }
        for (int at = g->begin[i]; at < g->end[i]; at++)
            if (at != g->own[i]) snail_add_to_bag(job, job->tokens[at], gradient, rate);
    }
}

/* Dot products of 4 hidden vectors, each with a row of its own; writes 4 numbers. */
SNAIL_INLINE void snail_own_dots(float *const *hidden, const float *const *rows, int64_t stride,
                                 float *out) {
    snail_vec sum[SNAIL_TILE];
#pragma GCC unroll 4
    for (int r = 0; r < SNAIL_TILE; r++) sum[r] = (snail_vec){0};
    for (int64_t d = 0; d < stride; d += SNAIL_LANES)
#pragma GCC unroll 4
        for (int r = 0; r < SNAIL_TILE; r++) sum[r] += snail_load(hidden[r] + d) * snail_load(rows[r] + d);
    *(snail_quad *)out = snail_sum_lanes(sum);
}

/* Scores of the centres' rows become coefficients, `pull`; returns the loss. */
static double snail_judge_centres(const snail_words_job *job, const snail_group *g, snail_words *s,
                                  float factor) {
    float logit[SNAIL_GROUP] = {0}, loss[SNAIL_GROUP] = {0};
    double total = 0;
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
        snail_own_dots(s->hidden_row + i, s->centre_row + i, job->stride, s->pull + i);
    for (int i = 0; i < g->lane_num; i++) logit[i] = job->noise_logit[g->centre[i]];
    snail_judge_true(s->pull, logit, g->lane_num, factor, loss);
    for (int i = 0; i < SNAIL_GROUP; i++) {
        s->pull[i] = g->contexts[i] > 0 ? s->pull[i] : 0;
        total += g->contexts[i] > 0 ? loss[i] : 0;
    }
    return total;
}

/* Scores of the noise rows, in `coef`, become coefficients; returns the loss. */
static double snail_judge_shared(const snail_words_job *job, const snail_group *g, snail_words *s,
                                 float share, float factor) {
    float weight[SNAIL_SHARED][SNAIL_GROUP], full[SNAIL_GROUP], logit[SNAIL_SHARED];
    float loss[SNAIL_GROUP] = {0};
    uint8_t some[SNAIL_SHARED];
    double total = 0;
    for (int i = 0; i < SNAIL_GROUP; i++) full[i] = g->contexts[i] > 0 ? share : 0;
    for (int t = 0; t < SNAIL_SHARED; t++) { /* a lane's own centre is no noise for it */
        int own = 0;
        for (int i = 0; i < SNAIL_GROUP; i++) own |= g->centre[i] == g->shared[t];
        some[t] = (uint8_t)own;
        if (own)
            for (int i = 0; i < SNAIL_GROUP; i++)
                weight[t][i] = g->centre[i] == g->shared[t] ? 0 : full[i];
        logit[t] = job->noise_logit[g->shared[t]];
    }
    snail_judge_noise_rows(SNAIL_SHARED, (float(*)[SNAIL_GROUP])s->coef, logit, factor, full, weight,
                           some, loss);
    for (int i = 0; i < SNAIL_GROUP; i++) total += loss[i];
    return total;
}

/* Gradients of the hidden vectors. */
static void snail_hidden_gradients(const snail_words_job *job, const snail_group *g,
                                   snail_words *s) {
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
        snail_lanes_from_rows(0, SNAIL_SHARED, s->rows, s->coef + i, s->hidden_gradient_row + i,
                              (int)job->stride);
    for (int i = 0; i < g->lane_num; i++)
        snail_add_times(job->stride, s->hidden_gradient_row[i], s->pull[i], s->centre_row[i]);
}

/* Rows, in place: the only moment at which another thread's addition to them can be lost. */
static void snail_step_rows(const snail_words_job *job, const snail_group *g, snail_words *s,
                            float rate) {
    const float *const *hidden = (const float *const *)s->hidden_row;
    for (int t = 0; t < SNAIL_SHARED; t += SNAIL_TILE) {
        const float *coef = s->coef + t * SNAIL_GROUP;
        if (job->output_squares)
            snail_step_outputs(job, s, t, hidden, coef, rate);
        else
            snail_rows_from_lanes(SNAIL_GROUP, hidden, coef, (float *const *)(s->rows + t),
                                  (int)job->stride);
    }
    for (int i = 0; i < g->lane_num; i++) {
        float *row = (float *)s->centre_row[i];
        if (!job->output_squares) {
            snail_add_times(job->stride, row, s->pull[i], s->hidden_row[i]);
            continue;
        }
        for (int64_t d = 0; d < job->stride; d += SNAIL_LANES)
            snail_store(row + d, snail_adagrad_step(snail_load(row + d),
                                                    job->output_squares + (row - job->outputs) + d,
                                                    s->pull[i] * snail_load(s->hidden_row[i] + d),
                                                    rate, job->epsilon));
    }
}

/* Trains one group; returns its loss.  All rows are read before the first one changes. */
static SNAIL_APART double snail_train_group(const snail_words_job *job, const snail_group *g,
                                            const snail_group *ahead, snail_words *s, float rate) {
    const int stride = (int)job->stride;
    const float share = job->negatives / SNAIL_SHARED, factor = job->output_squares ? 1 : rate;
    if (snail_is_by_lane(job))
        snail_hide_by_lane(job, g, s);
    else
        snail_hide_cbow(job, g, s);
    for (int t = 0; t < SNAIL_SHARED; t++) s->rows[t] = job->outputs + g->shared[t] * job->stride;
    for (int i = 0; i < SNAIL_GROUP; i++)
        s->centre_row[i] = i < g->lane_num ? job->outputs + g->centre[i] * job->stride : s->idle;
    snail_transpose(s->hidden, stride, s->across);
    snail_score(SNAIL_SHARED, s->rows, s->across, job->dim, s->coef);
    const double loss =
        snail_judge_shared(job, g, s, share, factor) + snail_judge_centres(job, g, s, factor);
    snail_hidden_gradients(job, g, s);
    snail_step_rows(job, g, s, rate);
    if (snail_is_by_lane(job))
        snail_spread_by_lane(job, g, ahead, s, rate);
    else
        snail_spread_cbow(job, g, s, rate);
    return loss;
}

/* ---- a call ----------------------------------------------------------------------------------- */

SNAIL_INLINE void *snail_cut(char *scratch, int64_t *at, int64_t bytes) {
    void *taken = scratch ? scratch + *at : NULL;
    *at += (bytes + 63) / 64 * 64;
    return taken;
}

/* Cuts scratch into parts; returns its size (scratch may be NULL to ask). */
static int64_t snail_lay_out_words(char *scratch, const snail_words_job *job, snail_words *s) {
    const int64_t row = job->stride * 4, lane = SNAIL_GROUP * 4, pointer = sizeof(void *);
    const int64_t slots = SNAIL_GROUP + 2 * job->window + SNAIL_TILE;
    const int64_t rows = snail_most((int)slots, SNAIL_SHARED);
    int64_t at = 0;
    s->hidden = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->hidden_gradient = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->across = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->coef = snail_cut(scratch, &at, rows * lane);
    s->idle = snail_cut(scratch, &at, row);
    s->steps = snail_cut(scratch, &at, SNAIL_TILE * row);
    s->hidden_row = snail_cut(scratch, &at, SNAIL_GROUP * pointer);
    s->hidden_gradient_row = snail_cut(scratch, &at, SNAIL_GROUP * pointer);
    s->bags = snail_cut(scratch, &at, slots * row);
    s->mix = snail_cut(scratch, &at, slots * lane);
    s->bag_row = snail_cut(scratch, &at, slots * pointer);
    s->around = snail_cut(scratch, &at, (2 * job->window + 1) * (int64_t)sizeof(int32_t));
    for (int i = 0; i < 2; i++)
        s->groups[i].slot = snail_cut(scratch, &at, slots * (int64_t)sizeof(int));
    return at;
}

static int64_t snail_words_scratch(const snail_words_job *job) {
    snail_words s;
    return snail_lay_out_words(NULL, job, &s);
}

/* Plans the group behind another one, and asks for its rows. */
SNAIL_INLINE void snail_plan_ahead(const snail_words_job *job, snail_group *g, int64_t start,
                                   uint64_t number) {
    if (job->targets)
        snail_plan_targets(job, g, start, number);
    else
        snail_plan_group(job, g, start, number);
    if (snail_is_by_lane(job))
        snail_find_fresh(g); /* asked for in snail_spread_by_lane */
    else
        snail_prefetch_group(job, g);
}

/* Walks over the tokens or the targets, one group ahead with planning and prefetching. */
static void snail_train_words(const snail_words_job *job, char *scratch, double *loss,
                              int64_t *examples) {
    snail_words s;
    snail_group *now = &s.groups[0], *ahead = &s.groups[1];
    const int64_t num = job->targets ? job->target_num : job->token_num;
    const float slope = (job->rate_stop - job->rate_start) / (float)num;
    snail_lay_out_words(scratch, job, &s);
    for (int i = 0; i < SNAIL_GROUP; i++) {
        s.hidden_row[i] = s.hidden + i * job->stride;
        s.hidden_gradient_row[i] = s.hidden_gradient + i * job->stride;
    }
    for (int i = 0; i < SNAIL_TILE; i++) s.step_row[i] = s.steps + i * job->stride;
    for (int i = 0; i < SNAIL_GROUP + 2 * job->window + SNAIL_TILE; i++)
        s.bag_row[i] = s.bags + i * job->stride;
    snail_plan_ahead(job, now, 0, 0);
    for (uint64_t number = 1; now->lane_num > 0; number++) {
        int64_t found = 0;
        snail_plan_ahead(job, ahead, now->next, number);
        for (int i = 0; i < now->lane_num; i++) found += now->contexts[i] > 0;
        if (found > 0) {
            const float rate = job->rate_start + slope * (float)now->first;
            *loss += snail_train_group(job, now, ahead, &s, rate);
            *examples += found;
        }
        snail_group *swap = now;
        now = ahead;
        ahead = swap;
    }
}

#endif
