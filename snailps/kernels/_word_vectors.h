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
 * Where bags have several rows, or rows have AdaGrad's squares, there are *slots*: each place of the text
 * in reach of the group is one, whose bag is summed once and stepped once, however many lanes see it.  The
 * lanes of a text are neighbours, so there are few more slots than lanes; with a list of targets (in a
 * rotation, the targets of one output partition) lanes are farther apart.  A slot that the next group has,
 * too, goes on there (`carry`): its sum moves by its gradient, and its rows take both groups' steps at once.
 * Plain rows of single words need no slots: each lane sums and steps the rows around it by itself.
 *
 * With a tree in the place of noise (hierarchical softmax, _paths.h), each lane's hidden vector meets the rows
 * of its target's path, one lane after the other.
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
#include "_narrow_products.h"
#include "_optimizers.h"
#include "_paths.h"
#include "_tiles.h"

enum {
    SNAIL_CBOW_NOISE = 24, /* noise words of a group */
    SNAIL_WAITING = 64,     /* most targets that wait for a group without their word */
    SNAIL_LANES_A_TURN = 6, /* lanes of a group with slots for each one that is judged in turn */
    SNAIL_ASKS = 40         /* how often rows of the next group are prefetched while a group is trained */
};

typedef struct { /* the words of one group */
    int lane_num;
    int64_t first; /* token or target with which the group begins: the rate depends on it */
    int64_t next;  /* token or target with which the next group begins */
    int32_t centre[SNAIL_GROUP]; /* output row or leaf; -1 in unused lanes */
    int contexts[SNAIL_GROUP];
    int shared[SNAIL_CBOW_NOISE]; /* noise words */
    uint8_t again[SNAIL_GROUP]; /* whether an earlier lane has this centre: snail_judge_again */
    int32_t *around; /* [GROUP, 2 * window] contexts of a lane: slots; without slots their rows */
    int32_t *slot;   /* words of slots; without slots, contexts that the lane before lacks */
    int64_t *at;     /* place of each slot in the text */
    int32_t *place;  /* of a slot among the slots that some lane sees */
    uint8_t *seen;   /* whether a lane sees the slot */
    int32_t *from;   /* slot of the group before that goes on in this one, or -1 */
    uint8_t *stays;  /* whether the slot goes on in the next group */
    float *bags;      /* [slots, stride] sums of the bags; without slots one row */
    float *gradients; /* [slots, stride] of the bags */
    float *sizes;     /* [slots] rows of each bag, by their weights */
    int slot_num;
    int output_num;  /* output rows to prefetch: of noise words and centres; none with a tree */
    int64_t row_num; /* rows to prefetch */
} snail_group;

typedef struct {
    int64_t at; /* its place in the text */
    int row;    /* of `outputs` */
} snail_target;

typedef struct { /* a stretch of the text whose places are successive slots */
    int64_t first, end; /* places first..end-1 */
    int slot;           /* of `first` */
} snail_run;

typedef struct { /* rows are `stride` floats */
    float *hidden;          /* [GROUP, stride] */
    float *hidden_gradient; /* [GROUP, stride] */
    float *across;          /* [stride, GROUP]: hidden, transposed */
    float *coef;            /* [CBOW_NOISE, GROUP]: scores, then rates */
    float *idle;            /* [stride] zeros: stands in for rows that fill up a tile */
    float *steps;           /* AdaGrad: [TILE, stride], gradients of the rows of a tile */
    float *step_row[SNAIL_TILE];
    const float *rows[SNAIL_CBOW_NOISE];
    const float *centre_row[SNAIL_GROUP];
    float pull[SNAIL_GROUP]; /* coefficients of the centres */
    float **hidden_row; /* [GROUP] */
    float **hidden_gradient_row;
    snail_target waiting[SNAIL_WAITING];
    int waiting_num;
    snail_walker walker;
    float *copies; /* of the walker */
    snail_narrow narrow; /* of a job with narrow products */
    int asked;         /* words of the next group of which all rows were asked for */
    int64_t asked_row; /* how many rows of the bag after these */
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

SNAIL_INLINE int snail_draw_reach(const snail_words_job *job, uint64_t random) {
    return job->reach_min + (int)snail_below(random, (uint64_t)(job->window - job->reach_min + 1));
}

/* The noise words of a group, from draw k on. */
SNAIL_INLINE void snail_draw_shared(const snail_words_job *job, snail_group *g, uint64_t k) {
    const uint64_t next = k + SNAIL_GROUP + SNAIL_CBOW_NOISE;
    snail_draw_noise(job->noise, job->noise_num, job->stream, k, next, SNAIL_CBOW_NOISE, g->shared);
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

/* Whether places of the text are slots. */
SNAIL_INLINE int snail_has_slots(const snail_words_job *job) {
    return !job->single || job->input_squares;
}

/* Fills a lane with a target: its contexts are slots.  Successive lanes share slots where the text around
 * them overlaps; `run` is such a stretch of the text. */
SNAIL_INLINE void snail_plan_slots(const snail_words_job *job, snail_group *g, int lane,
                                   const snail_target *target, int reach, snail_run *run) {
    const int32_t *tokens = job->tokens;
    const int64_t at = target->at, low = at < job->window ? 0 : at - job->window;
    int64_t begin = at, end = at + 1;
    int num = 0;
    while (begin > 0 && at - begin < reach && tokens[begin - 1] >= 0) begin--;
    while (end < job->token_num && end - at <= reach && tokens[end] >= 0) end++;
    if (low < run->first || low > run->end) {
        run->first = run->end = low;
        run->slot = g->slot_num;
    }
    for (; run->end < end; run->end++) {
        g->seen[g->slot_num] = 0;
        g->at[g->slot_num] = run->end;
        g->slot[g->slot_num++] = tokens[run->end];
    }
    for (int64_t t = begin; t < end; t++) {
        if (t == at) continue;
        const int slot = run->slot + (int)(t - run->first);
        g->around[lane * 2 * job->window + num++] = slot;
        g->seen[slot] = 1;
    }
    g->contexts[lane] = num;
}

/* Numbers the slots that a lane sees, finds those that go on from the group before, and counts the rows to
 * prefetch.  A slot goes on once at most: in wide windows a place has many groups, and would be without the
 * steps of other places for too long. */
SNAIL_INLINE void snail_close_slots(const snail_words_job *job, snail_group *before, snail_group *g) {
    int num = 0, old = job->carry ? 0 : before->slot_num;
    memset(before->stays, 0, (size_t)before->slot_num);
    for (int j = 0; j < g->slot_num; j++) {
        g->place[j] = num;
        if (!g->seen[j]) continue;
        const int word = g->slot[j];
        const int64_t at = g->at[j];
        while (old < before->slot_num && before->at[old] < at) old++;
        const int stays = old < before->slot_num && before->at[old] == at && before->from[old] < 0;
        g->from[num] = stays ? old : -1;
        if (stays) before->stays[old] = 1;
        else g->row_num += job->bag_ptr[word + 1] - job->bag_ptr[word];
        g->at[num] = at;
        g->slot[num++] = word;
    }
    g->slot_num = num;
    for (int i = 0; i < g->lane_num; i++)
        for (int k = 0; k < g->contexts[i]; k++) {
            int32_t *slot = g->around + i * 2 * job->window + k;
            *slot = g->place[*slot];
        }
}

/* Fills a lane with a target: its contexts are rows.  before[0]..before[1]-1 is the window of the previous
 * lane; on return it is the window of this lane. */
SNAIL_INLINE void snail_plan_lane(const snail_words_job *job, snail_group *g, int lane,
                                  const snail_target *target, int reach, int64_t before[2]) {
    const int32_t *tokens = job->tokens, *rows = job->own ? NULL : job->bag_rows;
    int32_t *around = g->around + lane * 2 * job->window;
    int64_t begin = target->at, end = target->at + 1;
    int num = 0;
    while (begin > 0 && target->at - begin < reach && tokens[begin - 1] >= 0) begin--;
    while (end < job->token_num && end - target->at <= reach && tokens[end] >= 0) end++;
    for (int64_t t = begin; t < end; t++) {
        if (t == target->at) continue;
        around[num] = rows ? rows[tokens[t]] : tokens[t];
        g->slot[g->slot_num] = around[num++];
        g->slot_num += (t < before[0]) | (t >= before[1]);
    }
    before[0] = begin;
    before[1] = end;
    g->contexts[lane] = num;
}

/* Plans the group of the waiting targets, then of the targets from `start` on; `previous` is trained before it.
 *
 * All lanes start from the same vectors, so a word that is the target of several lanes would take the same
 * step several times: in small vocabularies, or where words come in bursts, that overshoots until the vectors
 * diverge.  Without slots such a target waits for the next group, if there is room among the waiting; if not,
 * the group ends.  With slots it stays with its neighbours and is judged in turn, by the output row as the
 * lanes before have left it.  The group ends before more than one lane in LANES_A_TURN would be judged so:
 * where words repeat that often, lanes share their contexts, too. */
static SNAIL_APART void snail_plan_group(const snail_words_job *job, snail_words *s, snail_group *previous,
                                         snail_group *g, int64_t start, uint64_t number) {
    const uint64_t k = number * (SNAIL_GROUP + SNAIL_CBOW_NOISE);
    const int slots = snail_has_slots(job);
    int64_t before[2] = {0, 0};
    snail_run run = {0, -1, 0};
    int lanes = 0, taken = 0, left = 0, turns = 0;
    for (int i = 0; i < SNAIL_GROUP; i++) {
        g->centre[i] = -1;
        g->contexts[i] = 0;
    }
    g->slot_num = 0;
    g->first = g->next = start;
    while (lanes < SNAIL_GROUP) {
        snail_target target;
        const int64_t here = g->next;
        if (taken < s->waiting_num) target = s->waiting[taken++];
        else if (left == SNAIL_WAITING || !snail_next_target(job, &g->next, &target)) break;
        int again = 0; /* not a count: on arm64 GCC 12 makes it negative, with -O3 -fwrapv */
        for (int i = 0; i < SNAIL_GROUP && !job->paths.ptr; i++) again |= g->centre[i] == target.row;
        if (again && !slots) {
            s->waiting[left++] = target;
            continue;
        }
        if (again && ++turns * SNAIL_LANES_A_TURN > lanes) {
            g->next = here;
            break;
        }
        const uint64_t random = snail_draw(job->stream, k + (uint64_t)lanes);
        const int reach = snail_draw_reach(job, random);
        g->centre[lanes] = target.row;
        g->again[lanes] = (uint8_t)again;
        if (slots) snail_plan_slots(job, g, lanes++, &target, reach, &run);
        else snail_plan_lane(job, g, lanes++, &target, reach, before);
    }
    while (taken < s->waiting_num) s->waiting[left++] = s->waiting[taken++];
    s->waiting_num = left;
    g->lane_num = lanes;
    g->output_num = job->paths.ptr ? 0 : SNAIL_CBOW_NOISE + lanes;
    g->row_num = g->output_num + (slots ? 0 : g->slot_num);
    if (slots) snail_close_slots(job, previous, g);
    if (!job->paths.ptr) snail_draw_shared(job, g, k + SNAIL_GROUP);
}

SNAIL_INLINE void snail_prefetch_input(const snail_words_job *job, int32_t row) {
    const int64_t at = row * job->stride;
    snail_prefetch_row(job->inputs + at, job->stride);
    if (job->input_squares) snail_prefetch_row(job->input_squares + at, job->stride);
}

/* Prefetches a row of the next group's bags: into the second-level cache, since the first has no room for all. */
SNAIL_INLINE void snail_prefetch_far(const snail_words_job *job, int32_t row) {
    const int64_t at = row * job->stride;
    for (int64_t d = 0; d < job->stride; d += SNAIL_PAD)
        __builtin_prefetch(job->inputs + at + d, 1, 2);
    for (int64_t d = 0; job->input_squares && d < job->stride; d += SNAIL_PAD)
        __builtin_prefetch(job->input_squares + at + d, 1, 2);
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

/* Prefetches `num` more rows of the next group.  A few at a time, because a core stalls when more cache
 * lines are requested than it has fill buffers for. */
SNAIL_INLINE void snail_ask(const snail_words_job *job, const snail_group *ahead, snail_words *s,
                            int64_t num) {
    const int words = ahead->output_num, noise = words ? SNAIL_CBOW_NOISE : 0;
    for (; num > 0 && s->asked < noise; num--)
        snail_prefetch_output(job, ahead->shared[s->asked++]);
    for (; num > 0 && s->asked < words; num--)
        snail_prefetch_output(job, ahead->centre[s->asked++ - SNAIL_CBOW_NOISE]);
    if (!snail_has_slots(job)) {
        for (; num > 0 && s->asked < words + ahead->slot_num; num--)
            snail_prefetch_input(job, ahead->slot[s->asked++ - words]);
        return;
    }
    while (num > 0 && s->asked < words + ahead->slot_num) {
        const int word = ahead->slot[s->asked - words];
        const int64_t end = job->bag_ptr[word + 1];
        int64_t r = job->bag_ptr[word] + s->asked_row;
        if (ahead->from[s->asked - words] >= 0) r = end; /* its rows are not summed again */
        for (; num > 0 && r < end; num--, r++) snail_prefetch_far(job, job->bag_rows[r]);
        s->asked_row = r - job->bag_ptr[word];
        if (r == end) {
            s->asked++;
            s->asked_row = 0;
        }
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

/* Steps each row of a word's bag; plain gradients already contain the rate. */
SNAIL_INLINE void snail_step_bag(const snail_words_job *job, int word, const float *gradient,
                                 float rate) {
    const int64_t begin = job->bag_ptr[word], end = job->bag_ptr[word + 1];
    if (!job->input_squares) {
        snail_add_to_rows((int)(end - begin), job->bag_rows + begin, gradient, job->stride, job->inputs);
        return;
    }
    for (int64_t r = begin; r < end; r++) {
        const int64_t at = job->bag_rows[r] * job->stride;
        snail_adagrad_up(job->stride, job->inputs + at, job->input_squares + at, gradient, rate,
                         job->epsilon);
    }
}

/* ---- products of a group's hidden vectors with its noise rows, in the precision of the job ------- */

/* Lays out what the products take; writes the squared lengths of the vectors unless `length2` is NULL. */
SNAIL_INLINE void snail_begin_products(const snail_words_job *job, const snail_narrow *narrow,
                                       float *const *hidden, const float *const *rows, int num,
                                       float *across, float *length2) {
    if (job->narrow) {
        snail_narrow_group(narrow, (const float *const *)hidden, rows, num, job->stride, length2);
        return;
    }
    snail_transpose(hidden[0], (int)job->stride, across);
    if (length2) snail_lengths2(across, job->stride, length2);
}

/* Scores of rows t..t+SCORE_ROWS-1 in coef[t..]. */
SNAIL_INLINE void snail_score_rows(const snail_words_job *job, const snail_narrow *narrow,
                                   const float *const *rows, const float *across, int t, float *coef) {
    if (job->narrow) snail_narrow_scores(narrow, t, job->dim, job->stride, coef);
    else snail_score(SNAIL_SCORE_ROWS, rows + t, across, job->dim, coef + t * SNAIL_GROUP);
}

/* Gradients of hidden vectors i..i+TILE-1, dst[0..]. */
SNAIL_INLINE void snail_lane_gradients(const snail_words_job *job, const snail_narrow *narrow,
                                       const float *const *rows, int num, const float *coef, int i,
                                       float *const *dst) {
    if (job->narrow) snail_narrow_lanes(narrow, i, num, dst, job->stride);
    else snail_lanes_from_rows(0, num, rows, coef + i, dst, (int)job->stride);
}

/* Steps rows t..t+TILE-1.  Those of AdaGrad need the squares of gradients of float32. */
SNAIL_INLINE void snail_step_tile(const snail_words_job *job, const snail_narrow *narrow,
                                  float *const *rows, int t, float *const *hidden, const float *coef,
                                  float *const *step_row, float rate) {
    const float *const *from = (const float *const *)hidden;
    coef += t * SNAIL_GROUP;
    rows += t;
    if (!job->output_squares) {
        if (job->narrow) snail_narrow_step(narrow, t, rows, job->stride);
        else snail_rows_from_lanes(SNAIL_GROUP, from, coef, rows, (int)job->stride);
        return;
    }
    snail_gradients_from_lanes(SNAIL_GROUP, from, coef, step_row, (int)job->stride);
    for (int i = 0; i < SNAIL_TILE; i++)
        snail_adagrad_up(job->stride, rows[i], job->output_squares + (rows[i] - job->outputs),
                         step_row[i], rate, job->epsilon);
}

/* How many rows a word's bag has, by their weights. */
SNAIL_INLINE float snail_bag_size(const snail_words_job *job, int word) {
    const int64_t begin = job->bag_ptr[word], end = job->bag_ptr[word + 1];
    float size = job->bag_weights ? 0 : (float)(end - begin);
    for (int64_t r = begin; job->bag_weights && r < end; r++) size += job->bag_weights[r];
    return size;
}

/* Sum of a word's rows; returns how many there are. */
SNAIL_INLINE float snail_sum_bag(const snail_words_job *job, int word, float *out) {
    const int64_t begin = job->bag_ptr[word];
    const int count = (int)(job->bag_ptr[word + 1] - begin);
    const float *weights = job->bag_weights ? job->bag_weights + begin : NULL;
    snail_sum_rows(count, job->bag_rows + begin, weights, job->inputs, job->stride, 1, out);
    return snail_bag_size(job, word);
}

/* Computes the hidden vector of each lane: the mean over all rows of all bags around its centre. */
static void snail_hide(const snail_words_job *job, const snail_group *g, snail_words *s) {
    const int slots = snail_has_slots(job);
    if (slots)
        for (int j = 0; j < g->slot_num; j++)
            if (g->from[j] < 0) g->sizes[j] = snail_sum_bag(job, g->slot[j], g->bags + j * job->stride);
    for (int i = 0; i < SNAIL_GROUP; i++) {
        const int32_t *around = g->around + i * 2 * job->window;
        float rows = slots ? 0 : (float)g->contexts[i];
        for (int k = 0; slots && k < g->contexts[i]; k++) rows += g->sizes[around[k]];
        snail_sum_rows(g->contexts[i], around, NULL, slots ? g->bags : job->inputs, job->stride,
                       rows > 0 ? 1 / rows : 0, s->hidden_row[i]);
    }
}

/* Adds each lane's gradient to every row of every bag around it, but for slots that stay. */
static void snail_spread(const snail_words_job *job, const snail_group *g, const snail_group *ahead,
                         snail_words *s, float rate, int64_t quota) {
    const int slots = snail_has_slots(job);
    for (int i = 0; i < SNAIL_GROUP; i++) {
        if (!slots) snail_ask(job, ahead, s, quota);
        snail_add_to_rows(g->contexts[i], g->around + i * 2 * job->window, s->hidden_gradient_row[i],
                          job->stride, slots ? g->gradients : job->inputs);
    }
    for (int j = 0; slots && j < g->slot_num; j++) {
        snail_ask(job, ahead, s, quota);
        if (!g->stays[j]) snail_step_bag(job, g->slot[j], g->gradients + j * job->stride, rate);
    }
    snail_ask(job, ahead, s, ahead->row_num); /* the rest */
}

/* Hands over the slots that go on in the next group: a sum moves by the gradient as if the rows had been stepped,
 * by its size, which is exact where no row is twice in the bag.  Gradients of other slots begin with zeros. */
static void snail_hand_over(const snail_words_job *job, const snail_group *g, snail_group *ahead) {
    for (int j = 0; snail_has_slots(job) && j < ahead->slot_num; j++) {
        const int64_t to = j * job->stride, old = ahead->from[j], from = old * job->stride;
        if (old < 0) {
            memset(ahead->gradients + to, 0, (size_t)job->stride * sizeof(float));
            continue;
        }
        const float size = ahead->sizes[j] = g->sizes[old];
        for (int64_t d = 0; d < job->stride; d += SNAIL_LANES) {
            const snail_vec gradient = snail_load(g->gradients + from + d);
            snail_store(ahead->gradients + to + d, gradient);
            snail_store(ahead->bags + to + d, snail_load(g->bags + from + d) + size * gradient);
        }
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
        const int now = g->contexts[i] > 0 && !(i < g->lane_num && g->again[i]);
        s->pull[i] = now ? s->pull[i] : 0;
        total += now ? loss[i] : 0;
    }
    return total;
}

/* Judges a lane whose centre an earlier lane has, by the row as it is now; returns the loss. */
static double snail_judge_again(const snail_words_job *job, const snail_group *g, snail_words *s,
                                int lane, float factor) {
    float score[SNAIL_GROUP] = {0}, logit[SNAIL_GROUP] = {0}, loss[SNAIL_GROUP] = {0};
    const float *rows[SNAIL_TILE];
    float *hidden[SNAIL_TILE];
    for (int i = 0; i < SNAIL_TILE; i++) rows[i] = s->centre_row[lane], hidden[i] = s->hidden_row[lane];
    snail_own_dots(hidden, rows, job->stride, score);
    logit[0] = snail_logit(job->noise_logit, g->centre[lane]);
    snail_judge_true(score, logit, 1, factor, loss);
    s->pull[lane] = score[0];
    snail_add_times(job->stride, s->hidden_gradient_row[lane], score[0], s->centre_row[lane]);
    return loss[0];
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
                                   const snail_group *ahead, snail_words *s, int64_t quota) {
    if (job->narrow) snail_narrow_coefs(&s->narrow, SNAIL_CBOW_NOISE, s->coef);
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE) {
        snail_ask(job, ahead, s, quota);
        snail_lane_gradients(job, &s->narrow, s->rows, SNAIL_CBOW_NOISE, s->coef, i,
                             s->hidden_gradient_row + i);
    }
    for (int i = 0; i < g->lane_num; i++)
        snail_add_times(job->stride, s->hidden_gradient_row[i], s->pull[i], s->centre_row[i]);
}

/* Steps output rows in place; returns the loss of lanes judged in turn.  Here, and where gradients are spread
 * over input rows, an addition of another thread can be lost: between the load and the store of a vector (see
 * the top). */
static double snail_step_rows(const snail_words_job *job, const snail_group *g, const snail_group *ahead,
                              snail_words *s, float rate, float factor, int64_t quota) {
    double loss = 0;
    for (int t = 0; t < SNAIL_CBOW_NOISE; t += SNAIL_TILE) {
        snail_ask(job, ahead, s, quota);
        snail_step_tile(job, &s->narrow, (float *const *)s->rows, t, s->hidden_row, s->coef, s->step_row,
                        rate);
    }
    for (int i = 0; i < g->lane_num; i++) {
        float *row = (float *)s->centre_row[i];
        if (g->again[i] && g->contexts[i] > 0) loss += snail_judge_again(job, g, s, i, factor);
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
    return loss;
}

/* Trains each lane by the path to its target; returns the loss. */
static double snail_walk_lanes(const snail_words_job *job, const snail_group *g, snail_words *s, float rate) {
    float losses[SNAIL_NODES] = {0};
    double loss = 0;
    memset(s->hidden_gradient, 0, (size_t)(SNAIL_GROUP * job->stride) * sizeof(float));
    for (int i = 0; i < g->lane_num; i++) {
        snail_prefetch_walks(&s->walker, g->centre + i, g->lane_num - i);
        if (g->contexts[i] > 0)
            snail_walk(&s->walker, g->centre[i], s->hidden_row[i], s->hidden_gradient_row[i], rate, losses);
    }
    snail_share_walks(&s->walker, 0);
    for (int i = 0; i < SNAIL_NODES; i++) loss += losses[i];
    return loss;
}

/* Trains one group; returns its loss.  All rows are read before the first is changed, but for lanes that are
 * judged in turn, so the result of a group does not depend on the order of the other lanes. */
static SNAIL_APART double snail_train_group(const snail_words_job *job, const snail_group *g,
                                            const snail_group *ahead, snail_words *s, float rate) {
    const float share = job->negatives / SNAIL_CBOW_NOISE, factor = job->output_squares ? 1 : rate;
    const int64_t quota = 1 + ahead->row_num / SNAIL_ASKS;
    s->asked = 0;
    s->asked_row = 0;
    snail_hide(job, g, s);
    if (job->paths.ptr) {
        const double walked = snail_walk_lanes(job, g, s, rate);
        snail_spread(job, g, ahead, s, rate, quota);
        return walked;
    }
    for (int t = 0; t < SNAIL_CBOW_NOISE; t++) s->rows[t] = job->outputs + g->shared[t] * job->stride;
    for (int i = 0; i < SNAIL_GROUP; i++)
        s->centre_row[i] = i < g->lane_num ? job->outputs + g->centre[i] * job->stride : s->idle;
    snail_begin_products(job, &s->narrow, s->hidden_row, s->rows, SNAIL_CBOW_NOISE, s->across, NULL);
    for (int t = 0; t < SNAIL_CBOW_NOISE; t += SNAIL_SCORE_ROWS) {
        snail_ask(job, ahead, s, quota);
        snail_score_rows(job, &s->narrow, s->rows, s->across, t, s->coef);
    }
    double loss =
        snail_judge_shared(job, g, s, share, factor) + snail_judge_centres(job, g, s, factor);
    snail_hidden_gradients(job, g, ahead, s, quota);
    loss += snail_step_rows(job, g, ahead, s, rate, factor, quota);
    snail_spread(job, g, ahead, s, rate, quota);
    return loss;
}

/* ---- private rows: what a run of targets keeps apart of some words' bags ------------------------ */

/* Asks for the rows of the bag of word number i. */
SNAIL_INLINE void snail_ask_private(const snail_private_job *job, int64_t i) {
    if (i >= job->num) return;
    const int word = job->words[i];
    snail_prefetch_row(job->inputs + (job->first + word) * job->stride, job->stride);
    for (int64_t r = job->bag_ptr[word]; r < job->bag_ptr[word + 1]; r++)
        snail_prefetch_row(job->inputs + job->bag_rows[r] * job->stride, job->stride);
}

/* Sets the private row of each word, row first + words[i], to the mean of its bag, and copies it to
 * begins[i], stride floats. */
static void snail_open_private(const snail_private_job *job, float *begins) {
    const int64_t stride = job->stride;
    for (int64_t i = 0; i < job->num; i++) {
        const int word = job->words[i];
        const int64_t begin = job->bag_ptr[word], end = job->bag_ptr[word + 1];
        float size = job->bag_weights ? 0 : (float)(end - begin);
        float *row = job->inputs + (job->first + word) * stride;
        snail_ask_private(job, i + 1);
        for (int64_t r = begin; job->bag_weights && r < end; r++) size += job->bag_weights[r];
        snail_sum_rows((int)(end - begin), job->bag_rows + begin,
                       job->bag_weights ? job->bag_weights + begin : NULL, job->inputs, stride,
                       size > 0 ? 1 / size : 0, row);
        memcpy(begins + i * stride, row, (size_t)stride * sizeof(float));
    }
}

/* Adds what each private row has learnt since it was opened to every row of its bag. */
static void snail_close_private(const snail_private_job *job, float *begins) {
    const int64_t stride = job->stride;
    for (int64_t i = 0; i < job->num; i++) {
        const int word = job->words[i];
        const int64_t begin = job->bag_ptr[word];
        const float *row = job->inputs + (job->first + word) * stride;
        float *learnt = begins + i * stride;
        snail_ask_private(job, i + 1);
        for (int64_t d = 0; d < stride; d++) learnt[d] = row[d] - learnt[d];
        snail_add_to_rows((int)(job->bag_ptr[word + 1] - begin), job->bag_rows + begin, learnt, stride,
                          job->inputs);
    }
}

/* ---- a call ----------------------------------------------------------------------------------- */

SNAIL_INLINE void *snail_cut(char *scratch, int64_t *at, int64_t bytes) {
    void *taken = scratch ? scratch + *at : NULL;
    *at += (bytes + 63) / 64 * 64;
    return taken;
}

SNAIL_INLINE snail_narrow snail_cut_narrow(char *scratch, int64_t *at, const snail_words_job *job) {
    const int64_t words = job->narrow ? snail_narrow_words(job->stride) : 0;
    return snail_narrow_parts(snail_cut(scratch, at, words * 4), job->stride);
}

/* Cuts scratch into parts; returns its size (scratch may be NULL to ask). */
static int64_t snail_lay_out_words(char *scratch, const snail_words_job *job, snail_words *s) {
    const int64_t row = job->stride * 4, lane = SNAIL_GROUP * 4, pointer = sizeof(void *);
    const int64_t seen = SNAIL_GROUP * 2 * job->window, slots = snail_has_slots(job) ? seen : 1;
    const int64_t places = SNAIL_GROUP * (2 * (int64_t)job->window + 1);
    int64_t at = 0;
    s->hidden = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->hidden_gradient = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->across = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->coef = snail_cut(scratch, &at, SNAIL_CBOW_NOISE * lane);
    s->idle = snail_cut(scratch, &at, row);
    s->steps = snail_cut(scratch, &at, SNAIL_TILE * row);
    s->hidden_row = snail_cut(scratch, &at, SNAIL_GROUP * pointer);
    s->hidden_gradient_row = snail_cut(scratch, &at, SNAIL_GROUP * pointer);
    s->copies = snail_cut(scratch, &at, snail_walker_floats(&job->paths, job->copied, job->stride) * 4);
    s->narrow = snail_cut_narrow(scratch, &at, job);
    for (int i = 0; i < 2; i++) {
        s->groups[i].around = snail_cut(scratch, &at, seen * (int64_t)sizeof(int32_t));
        s->groups[i].slot = snail_cut(scratch, &at, (places + 1) * (int64_t)sizeof(int32_t));
        s->groups[i].place = snail_cut(scratch, &at, places * (int64_t)sizeof(int32_t));
        s->groups[i].seen = snail_cut(scratch, &at, places);
        s->groups[i].stays = snail_cut(scratch, &at, places);
        s->groups[i].at = snail_cut(scratch, &at, places * (int64_t)sizeof(int64_t));
        s->groups[i].from = snail_cut(scratch, &at, places * (int64_t)sizeof(int32_t));
        s->groups[i].bags = snail_cut(scratch, &at, slots * row);
        s->groups[i].gradients = snail_cut(scratch, &at, slots * row);
        s->groups[i].sizes = snail_cut(scratch, &at, slots * (int64_t)sizeof(float));
    }
    return at;
}

static int64_t snail_words_scratch(const snail_words_job *job) {
    snail_words s;
    return snail_lay_out_words(NULL, job, &s);
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
    s.waiting_num = 0;
    ahead->slot_num = 0; /* no slot goes on in the first group, and its gradients are zeros as scratch is */
    s.walker = snail_begin_walks(&job->paths, job->outputs, job->output_squares, job->stride,
                                 job->epsilon, job->copied, s.copies);
    snail_plan_group(job, &s, ahead, now, 0, 0);
    for (uint64_t number = 1; now->lane_num > 0; number++) {
        int64_t found = 0;
        snail_plan_group(job, &s, now, ahead, now->next, number);
        for (int i = 0; i < now->lane_num; i++) found += now->contexts[i] > 0;
        if (found > 0) {
            const float rate = job->rate_start + slope * (float)now->first;
            *loss += snail_train_group(job, now, ahead, &s, rate);
            *examples += found;
        }
        snail_hand_over(job, now, ahead);
        snail_group *swap = now;
        now = ahead;
        ahead = swap;
    }
    snail_share_walks(&s.walker, 1);
}

#endif
