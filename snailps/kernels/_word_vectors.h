/* CBOW word-vector training, one group of centres at a time; skip-gram is in _word_pairs.h.
 *
 * tokens -> plan_group -> group (which words meet) -> train_group -> rows, changed in place
 *
 * How a group is trained.  16 consecutive centres are the 16 *lanes* of small matrices.
 *
 *     rows  R = [24 shared noise rows | rows of the centres]            read in place
 *     lanes H = means over the bags around                              16 x dim, scratch
 *     S = R H'      C = rate * weight * (label - sigmoid(S))            (rows x 16), scratch
 *     gradient of H = C' R,  then R += C H,  then each input row of a lane's bags += its gradient
 *
 * With AdaGrad C has no rate, and a row's part of C H, or of the gradient of a lane, is one step for
 * that row: the squares of its elements are added up, and the step is divided by their root.
 *
 * With a list of targets (in a rotation, the targets of one output partition) the lanes are the next 16
 * targets, from anywhere in the text.  They share few contexts, so each lane sums and steps the rows
 * around it by itself.  Lanes of neighbours in the text do the same if each word has one row: a product
 * with all rows in reach takes longer than five sums.  Since such a lane needs no neighbour, a target
 * whose word is already in the group waits for a later group.
 *
 * Threads train parts of one text on the same rows without locks (Hogwild).  A group reads all its rows
 * before it writes the first, so an addition of another thread is lost only if it falls into
 * `snail_step_rows` or the spreading of gradients, between the load and the store of the same vector.
 * What is lost then is one step of one group, which the noise of stochastic gradient descent hides.  Reads
 * need no order: any mixture of older and newer floats of a row is a row that training might have made.
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
    SNAIL_CBOW_NOISE = 24, /* noise words of a group */
    SNAIL_WAITING = 64, /* most targets that wait for a group without their word */
    SNAIL_ASKED = 4,    /* rows of the next group that are prefetched at once */
    SNAIL_TILE = SNAIL_UPDATE_ROWS
};

typedef struct { /* the words of one group */
    int lane_num;
    int64_t first; /* token or target with which the group begins: the rate depends on it */
    int64_t next;  /* token or target with which the next group begins */
    int centre[SNAIL_GROUP]; /* -1 in unused lanes */
    int contexts[SNAIL_GROUP];
    int shared[SNAIL_CBOW_NOISE]; /* noise words */
    /* The order of the text: slots are the tokens in reach of the group. */
    int slot_num;
    int own[SNAIL_GROUP];   /* slot of the centre itself */
    int begin[SNAIL_GROUP]; /* contexts of a lane: slots begin..end-1 without `own`; */
    int end[SNAIL_GROUP];   /* begin = end = 0 in unused lanes */
    int *slot;              /* words */
    /* Lane by lane. */
    int32_t *around; /* [GROUP, 2 * window] contexts of a lane: their rows if they have one each, else words */
    int32_t *fresh;  /* contexts that the lane before does not have: only these are prefetched */
    int fresh_num;
} snail_group;

typedef struct {
    int64_t at; /* its place in the text */
    int row;    /* of `outputs` */
} snail_target;

typedef struct { /* rows are `stride` floats */
    float *hidden;          /* [GROUP, stride] */
    float *hidden_gradient; /* [GROUP, stride] */
    float *across;          /* [stride, GROUP]: hidden, transposed */
    float *coef;            /* [the more of slots and CBOW_NOISE, GROUP]: scores, then rates */
    float *idle;            /* [stride] zeros: stands in for rows that fill up a tile */
    float *steps;           /* AdaGrad: [TILE, stride], gradients of the rows of a tile */
    float *step_row[SNAIL_TILE];
    float *bags;        /* [slots, stride] sums, then gradients */
    float *mix;         /* [slots, GROUP] */
    const float *rows[SNAIL_CBOW_NOISE];
    const float *centre_row[SNAIL_GROUP];
    float pull[SNAIL_GROUP]; /* coefficients of the centres */
    float **hidden_row; /* [GROUP] */
    float **hidden_gradient_row;
    float **bag_row; /* [slots] */
    snail_target waiting[SNAIL_WAITING];
    int waiting_num;
    int asked; /* rows of the next group that were asked for */
    snail_group groups[2];
} snail_words;

/* Number k of a stream of random numbers. */
SNAIL_INLINE uint64_t snail_draw(uint64_t stream, uint64_t k) {
    return snail_mix64(stream + SNAIL_GOLDEN * (k + 1));
}

/* 0..bound-1 from the high half; cheaper than a remainder, with a bias below bound / 2^32. */
SNAIL_INLINE uint64_t snail_below(uint64_t random, uint64_t bound) {
    return ((random >> 32) * bound) >> 32;
}

/* Of a row, where there are logits. */
SNAIL_INLINE float snail_logit(const float *logits, int row) { return logits ? logits[row] : 0; }

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

/* Drops the slots that no lane sees, because the outermost reaches are rarely the whole window. */
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
    const uint64_t next = k + SNAIL_GROUP + SNAIL_CBOW_NOISE;
    snail_draw_noise(job->noise, job->noise_num, job->stream, k, next, SNAIL_CBOW_NOISE, g->shared);
}

/* Plans the group whose first centre is the first word from `start` on.
 *
 * The group ends early where a centre would repeat.  All lanes start from the same vectors, so a word
 * in several lanes would take the same step several times: in small vocabularies, or where words come in
 * bursts, that overshoots until the vectors diverge (200 words at a rate of 0.05: loss 37 instead of
 * 0.26).  On ordinary text ending early costs 12 % of the speed and gains 0.03 in loss. */
static SNAIL_APART void snail_plan_group(const snail_words_job *job, snail_group *g, int64_t start,
                             uint64_t number) {
    const int32_t *tokens = job->tokens;
    const int window = job->window;
    const uint64_t k = number * (SNAIL_GROUP + SNAIL_CBOW_NOISE);
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
        int again = 0;
        for (int i = 0; i < lanes; i++) again |= g->centre[i] == tokens[at];
        if (again) break;
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

/* Takes the next target from *next on, in the text or in the list, and moves *next past it; 0: none. */
SNAIL_INLINE int snail_next_target(const snail_words_job *job, int64_t *next, snail_target *target) {
    if (job->targets) {
        if (*next >= job->target_num) return 0;
        target->at = job->targets[*next];
        target->row = job->target_rows[(*next)++];
        return 1;
    }
    int64_t at = *next;
    while (at < job->token_num && job->tokens[at] < 0) at++;
    if (at >= job->token_num) return 0;
    target->at = at;
    target->row = job->tokens[at];
    *next = at + 1;
    return 1;
}

/* Fills a lane with a target.  before[0]..before[1]-1 is the window of the previous lane; on return it is
 * the window of this lane. */
SNAIL_INLINE void snail_plan_lane(const snail_words_job *job, snail_group *g, int lane,
                                  const snail_target *target, int reach, int64_t before[2]) {
    const int32_t *tokens = job->tokens, *rows = job->single && !job->own ? job->bag_rows : NULL;
    int32_t *around = g->around + lane * 2 * job->window;
    int64_t begin = target->at, end = target->at + 1;
    int num = 0;
    while (begin > 0 && target->at - begin < reach && tokens[begin - 1] >= 0) begin--;
    while (end < job->token_num && end - target->at <= reach && tokens[end] >= 0) end++;
    for (int64_t t = begin; t < end; t++) {
        if (t == target->at) continue;
        around[num] = rows ? rows[tokens[t]] : tokens[t];
        g->fresh[g->fresh_num] = around[num++];
        g->fresh_num += (t < before[0]) | (t >= before[1]);
    }
    before[0] = begin;
    before[1] = end;
    g->centre[lane] = target->row;
    g->contexts[lane] = num;
}

/* Plans the group of the waiting targets, then of the targets from `start` on.  A target whose word is in
 * the group already waits for the next group, if there is room among the waiting; if not, the group ends.
 * The same word twice in a group would take the same step twice; see snail_plan_group. */
static SNAIL_APART void snail_plan_targets(const snail_words_job *job, snail_words *s, snail_group *g,
                                           int64_t start, uint64_t number) {
    const uint64_t k = number * (SNAIL_GROUP + SNAIL_CBOW_NOISE);
    int64_t before[2] = {0, 0};
    int lanes = 0, taken = 0, left = 0;
    for (int i = 0; i < SNAIL_GROUP; i++) {
        g->centre[i] = -1;
        g->contexts[i] = 0;
    }
    g->fresh_num = 0;
    g->first = g->next = start;
    while (lanes < SNAIL_GROUP) {
        snail_target target;
        if (taken < s->waiting_num) target = s->waiting[taken++];
        else if (left == SNAIL_WAITING || !snail_next_target(job, &g->next, &target)) break;
        int again = 0; /* not a count: on arm64 GCC 12 makes it negative, with -O3 -fwrapv */
        for (int i = 0; i < SNAIL_GROUP; i++) again |= g->centre[i] == target.row;
        if (again) {
            s->waiting[left++] = target;
            continue;
        }
        const uint64_t random = snail_draw(job->stream, k + (uint64_t)lanes);
        const int reach = 1 + (int)snail_below(random, (uint64_t)job->window);
        snail_plan_lane(job, g, lanes++, &target, reach, before);
    }
    while (taken < s->waiting_num) s->waiting[left++] = s->waiting[taken++];
    s->waiting_num = left;
    g->lane_num = lanes;
    snail_draw_shared(job, g, k + SNAIL_GROUP);
}

SNAIL_INLINE void snail_prefetch_input(const snail_words_job *job, int32_t row) {
    const int64_t at = row * job->stride;
    snail_prefetch_row(job->inputs + at, job->stride);
    if (job->input_squares) snail_prefetch_row(job->input_squares + at, job->stride);
}

SNAIL_INLINE void snail_prefetch_bag(const snail_words_job *job, int word) {
    for (int64_t r = job->bag_ptr[word]; r < job->bag_ptr[word + 1]; r++)
        snail_prefetch_input(job, job->bag_rows[r]);
}

SNAIL_INLINE void snail_prefetch_output(const snail_words_job *job, int word) {
    snail_prefetch_row(job->outputs + word * job->stride, job->stride);
    if (job->output_squares)
        snail_prefetch_row(job->output_squares + word * job->stride, job->stride);
}

/* Prefetches the rows of a group while the group before it is being computed. */
static void snail_prefetch_group(const snail_words_job *job, const snail_group *g) {
    for (int i = 0; i < SNAIL_CBOW_NOISE; i++) snail_prefetch_output(job, g->shared[i]);
    for (int i = 0; i < g->slot_num; i++) snail_prefetch_bag(job, g->slot[i]);
    for (int i = 0; i < g->lane_num; i++) snail_prefetch_output(job, g->centre[i]);
}

/* Whether each lane sums and steps the rows around it by itself. */
SNAIL_INLINE int snail_is_by_lane(const snail_words_job *job) {
    return job->targets || (job->single && !job->input_squares);
}

/* Prefetches `num` more rows of the next group, if each lane sums by itself.  A few at a time, because a
 * core stalls when more cache lines are requested than it has fill buffers for. */
SNAIL_INLINE void snail_ask(const snail_words_job *job, const snail_group *ahead, snail_words *s, int num) {
    const int words = SNAIL_CBOW_NOISE + ahead->lane_num;
    const int end = snail_least(s->asked + num, words + ahead->fresh_num);
    for (; s->asked < snail_least(end, SNAIL_CBOW_NOISE); s->asked++)
        snail_prefetch_output(job, ahead->shared[s->asked]);
    for (; s->asked < snail_least(end, words); s->asked++)
        snail_prefetch_output(job, ahead->centre[s->asked - SNAIL_CBOW_NOISE]);
    for (; s->asked < end; s->asked++) {
        const int32_t input = ahead->fresh[s->asked - words];
        if (job->single)
            snail_prefetch_input(job, input);
        else
            snail_prefetch_bag(job, input);
    }
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

/* Steps each row of a word's bag; plain gradients already contain the rate. */
SNAIL_INLINE void snail_step_bag(const snail_words_job *job, int word, const float *gradient,
                                 float rate) {
    const int64_t stride = job->stride;
    for (int64_t r = job->bag_ptr[word]; r < job->bag_ptr[word + 1]; r++) {
        const int64_t at = job->bag_rows[r] * stride;
        float *row = job->inputs + at;
        if (job->input_squares)
            snail_adagrad_up(stride, row, job->input_squares + at, gradient, rate, job->epsilon);
        else
            for (int64_t d = 0; d < stride; d++) row[d] += gradient[d];
    }
}

SNAIL_INLINE void snail_add_tile(const int vec_num, int row_num, const int32_t *rows,
                                 const float *from, int64_t stride, float *table) {
    snail_vec x[8];
#pragma GCC unroll 8
    for (int v = 0; v < vec_num; v++) x[v] = snail_load(from + v * SNAIL_LANES);
    for (int r = 0; r < row_num; r++) {
        float *row = table + rows[r] * stride;
#pragma GCC unroll 8
        for (int v = 0; v < vec_num; v++)
            snail_store(row + v * SNAIL_LANES, snail_load(row + v * SNAIL_LANES) + x[v]);
    }
}

/* table[rows[r]] += from, stride floats. */
static void snail_add_to_rows(int row_num, const int32_t *rows, const float *from, int64_t stride,
                              float *table) {
    int64_t left = stride / SNAIL_LANES;
    for (; left >= 8; left -= 8, table += 8 * SNAIL_LANES, from += 8 * SNAIL_LANES)
        snail_add_tile(8, row_num, rows, from, stride, table);
    switch (left) {
    case 7: snail_add_tile(7, row_num, rows, from, stride, table); break;
    case 6: snail_add_tile(6, row_num, rows, from, stride, table); break;
    case 5: snail_add_tile(5, row_num, rows, from, stride, table); break;
    case 4: snail_add_tile(4, row_num, rows, from, stride, table); break;
    case 3: snail_add_tile(3, row_num, rows, from, stride, table); break;
    case 2: snail_add_tile(2, row_num, rows, from, stride, table); break;
    case 1: snail_add_tile(1, row_num, rows, from, stride, table); break;
    default: break;
    }
}

/* A step of AdaGrad of the noise rows of a tile. */
SNAIL_INLINE void snail_step_outputs(const snail_words_job *job, const float *const *rows,
                                     float *const *step_row, const float *const *hidden,
                                     const float *coef, float rate) {
    snail_gradients_from_lanes(SNAIL_GROUP, hidden, coef, step_row, (int)job->stride);
    for (int i = 0; i < SNAIL_TILE; i++)
        snail_adagrad_up(job->stride, (float *)rows[i], job->output_squares + (rows[i] - job->outputs),
                         step_row[i], rate, job->epsilon);
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

/* Computes the hidden vector of each lane: the mean over all rows of all bags around its centre. */
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
    for (int j = 0; j < g->slot_num; j++) snail_step_bag(job, g->slot[j], s->bag_row[j], rate);
}

/* Hidden vectors, lane by lane. */
static void snail_hide_by_lane(const snail_words_job *job, const snail_group *g, snail_words *s) {
    const int64_t stride = job->stride;
    for (int i = 0; i < SNAIL_GROUP; i++) {
        const int32_t *around = g->around + i * 2 * job->window;
        float *restrict hidden = s->hidden_row[i], *restrict bag = s->bag_row[0];
        int rows = g->contexts[i];
        if (job->single) {
            snail_sum_rows(rows, around, job->inputs, stride, rows > 0 ? 1.0f / (float)rows : 0, hidden);
            continue;
        }
        memset(hidden, 0, (size_t)stride * sizeof(float));
        rows = 0;
        for (int k = 0; k < g->contexts[i]; k++) {
            rows += snail_sum_bag(job, around[k], bag);
            for (int64_t d = 0; d < stride; d++) hidden[d] += bag[d];
        }
        const float share = rows > 0 ? 1.0f / (float)rows : 0;
        for (int64_t d = 0; d < stride; d++) hidden[d] *= share;
    }
}

/* Adds the gradient of each lane to every row of every bag around it. */
static void snail_spread_by_lane(const snail_words_job *job, const snail_group *g,
                                 const snail_group *ahead, snail_words *s, float rate) {
    for (int i = 0; i < SNAIL_GROUP; i++) {
        const int32_t *around = g->around + i * 2 * job->window;
        const float *gradient = s->hidden_gradient_row[i];
        snail_ask(job, ahead, s, SNAIL_ASKED);
        if (job->single && !job->input_squares)
            snail_add_to_rows(g->contexts[i], around, gradient, job->stride, job->inputs);
        else
            for (int k = 0; k < g->contexts[i]; k++)
                if (job->single) snail_adagrad_up(job->stride, job->inputs + around[k] * job->stride,
                                                  job->input_squares + around[k] * job->stride,
                                                  gradient, rate, job->epsilon);
                else snail_step_bag(job, around[k], gradient, rate);
    }
    snail_ask(job, ahead, s, ahead->fresh_num); /* the rest */
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

/* Turns the scores of the centres' rows into coefficients, `pull`; returns the loss. */
static double snail_judge_centres(const snail_words_job *job, const snail_group *g, snail_words *s,
                                  float factor) {
    float logit[SNAIL_GROUP] = {0}, loss[SNAIL_GROUP] = {0};
    double total = 0;
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
        snail_own_dots(s->hidden_row + i, s->centre_row + i, job->stride, s->pull + i);
    for (int i = 0; i < g->lane_num; i++) logit[i] = snail_logit(job->noise_logit, g->centre[i]);
    snail_judge_true(s->pull, logit, g->lane_num, factor, loss);
    for (int i = 0; i < SNAIL_GROUP; i++) {
        s->pull[i] = g->contexts[i] > 0 ? s->pull[i] : 0;
        total += g->contexts[i] > 0 ? loss[i] : 0;
    }
    return total;
}

/* Turns the scores of the noise rows, in `coef`, into coefficients; returns the loss. */
static double snail_judge_shared(const snail_words_job *job, const snail_group *g, snail_words *s,
                                 float share, float factor) {
    float weight[SNAIL_CBOW_NOISE][SNAIL_GROUP], full[SNAIL_GROUP], logit[SNAIL_CBOW_NOISE];
    float loss[SNAIL_GROUP] = {0};
    uint8_t some[SNAIL_CBOW_NOISE];
    double total = 0;
    for (int i = 0; i < SNAIL_GROUP; i++) full[i] = g->contexts[i] > 0 ? share : 0;
    /* A noise word that is the centre of a lane has weight 0 there: it is the right answer. */
    for (int t = 0; t < SNAIL_CBOW_NOISE; t++) {
        int own = 0;
        for (int i = 0; i < SNAIL_GROUP; i++) own |= g->centre[i] == g->shared[t];
        some[t] = (uint8_t)own;
        if (own)
            for (int i = 0; i < SNAIL_GROUP; i++)
                weight[t][i] = g->centre[i] == g->shared[t] ? 0 : full[i];
        logit[t] = snail_logit(job->noise_logit, g->shared[t]);
    }
    snail_judge_noise_rows(SNAIL_CBOW_NOISE, (float(*)[SNAIL_GROUP])s->coef, logit, factor, full, weight,
                           some, loss);
    for (int i = 0; i < SNAIL_GROUP; i++) total += loss[i];
    return total;
}

/* Gradients of the hidden vectors. */
static void snail_hidden_gradients(const snail_words_job *job, const snail_group *g,
                                   const snail_group *ahead, snail_words *s) {
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE) {
        snail_ask(job, ahead, s, SNAIL_ASKED);
        snail_lanes_from_rows(0, SNAIL_CBOW_NOISE, s->rows, s->coef + i, s->hidden_gradient_row + i,
                              (int)job->stride);
    }
    for (int i = 0; i < g->lane_num; i++)
        snail_add_times(job->stride, s->hidden_gradient_row[i], s->pull[i], s->centre_row[i]);
}

/* Steps output rows in place.  Here, and where gradients are spread over input rows, an addition of
 * another thread can be lost: between the load and the store of a vector (see the top). */
static void snail_step_rows(const snail_words_job *job, const snail_group *g, const snail_group *ahead,
                            snail_words *s, float rate) {
    const float *const *hidden = (const float *const *)s->hidden_row;
    for (int t = 0; t < SNAIL_CBOW_NOISE; t += SNAIL_TILE) {
        const float *coef = s->coef + t * SNAIL_GROUP;
        snail_ask(job, ahead, s, SNAIL_ASKED);
        if (job->output_squares)
            snail_step_outputs(job, s->rows + t, s->step_row, hidden, coef, rate);
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

/* Trains one group; returns its loss.  All rows are read before the first is changed, so the result of a
 * group does not depend on the order of its lanes. */
static SNAIL_APART double snail_train_group(const snail_words_job *job, const snail_group *g,
                                            const snail_group *ahead, snail_words *s, float rate) {
    const int stride = (int)job->stride;
    const float share = job->negatives / SNAIL_CBOW_NOISE, factor = job->output_squares ? 1 : rate;
    if (snail_is_by_lane(job))
        snail_hide_by_lane(job, g, s);
    else
        snail_hide_cbow(job, g, s);
    for (int t = 0; t < SNAIL_CBOW_NOISE; t++) s->rows[t] = job->outputs + g->shared[t] * job->stride;
    for (int i = 0; i < SNAIL_GROUP; i++)
        s->centre_row[i] = i < g->lane_num ? job->outputs + g->centre[i] * job->stride : s->idle;
    snail_transpose(s->hidden, stride, s->across);
    for (int t = 0; t < SNAIL_CBOW_NOISE; t += SNAIL_SCORE_ROWS) {
        snail_ask(job, ahead, s, SNAIL_ASKED);
        snail_score(SNAIL_SCORE_ROWS, s->rows + t, s->across, job->dim, s->coef + t * SNAIL_GROUP);
    }
    const double loss =
        snail_judge_shared(job, g, s, share, factor) + snail_judge_centres(job, g, s, factor);
    snail_hidden_gradients(job, g, ahead, s);
    snail_step_rows(job, g, ahead, s, rate);
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
    const int64_t around = SNAIL_GROUP * 2 * job->window * (int64_t)sizeof(int32_t);
    const int64_t rows = snail_most((int)slots, SNAIL_CBOW_NOISE);
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
    for (int i = 0; i < 2; i++) {
        s->groups[i].slot = snail_cut(scratch, &at, slots * (int64_t)sizeof(int));
        s->groups[i].around = snail_cut(scratch, &at, around);
        s->groups[i].fresh = snail_cut(scratch, &at, around + (int64_t)sizeof(int32_t));
    }
    return at;
}

static int64_t snail_words_scratch(const snail_words_job *job) {
    snail_words s;
    return snail_lay_out_words(NULL, job, &s);
}

/* Plans the group after another one, and prefetches its rows. */
SNAIL_INLINE void snail_plan_ahead(const snail_words_job *job, snail_words *s, snail_group *g,
                                   int64_t start, uint64_t number) {
    if (snail_is_by_lane(job)) {
        snail_plan_targets(job, s, g, start, number);
        s->asked = 0; /* its rows are prefetched bit by bit while the group before is trained */
    } else {
        snail_plan_group(job, g, start, number);
        snail_prefetch_group(job, g);
        g->fresh_num = 0;
        s->asked = SNAIL_CBOW_NOISE + g->lane_num;
    }
}

/* Trains all tokens or targets; planning and prefetching are one group ahead, so that rows have arrived
 * from memory when their group begins. */
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
    s.waiting_num = 0;
    snail_plan_ahead(job, &s, now, 0, 0);
    for (uint64_t number = 1; now->lane_num > 0; number++) {
        int64_t found = 0;
        snail_plan_ahead(job, &s, ahead, now->next, number);
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
