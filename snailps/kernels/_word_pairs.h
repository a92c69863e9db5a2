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
 * The contexts of a bundle share its hidden vector, wherever in the text they are: it is computed once,
 * while training in the order of the text computes it at each place of the word.  A word in successive
 * groups stays in its lane, and its vector is computed once for all of them: the rows of its bag all get
 * the same gradient, so their mean moves by that gradient.  The sum of these gradients is owed to the bag
 * and added to it when the word leaves the lane.  (Not with AdaGrad, whose steps differ from row to row.)
 * Neighbours in the order of training are unrelated, as in any stochastic descent on shuffled examples.
 *
 * With a tree in the place of noise (hierarchical softmax, _paths.h), a context is the path to its leaf: its
 * rows meet the hidden vector one context after the other, as contexts do here.
 *
 * Threads write output rows without locks (Hogwild), as in _word_vectors.h.  While gradients are owed to a
 * bag, other threads do not see them: at most the groups of one word's run, which the sorter bounds.
 */
#ifndef SNAILPS_WORD_PAIRS_H
#define SNAILPS_WORD_PAIRS_H

#include "_paths.h"
#include "_word_vectors.h"

enum {
    SNAIL_NOISE = 32,         /* noise words of a group */
    SNAIL_CONTEXTS = 16,      /* contexts of a bundle that are judged at once */
    SNAIL_SHORT = SNAIL_CONTEXTS / 2,
    SNAIL_LEAVING_AHEAD = 4,  /* how many lanes ahead the bags of leaving words are prefetched */
    SNAIL_CONTEXTS_AHEAD = 12 /* how many contexts ahead rows are prefetched */
};

typedef float snail_eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t snail_eight_ints __attribute__((vector_size(32), aligned(4), may_alias));

typedef struct { /* one group: bundles first..first+num-1, each in a lane */
    int64_t first;
    int num;
    int64_t bundle[SNAIL_GROUP]; /* of each lane, or -1: idle */
    int32_t centre[SNAIL_GROUP]; /* of each lane, or -1 */
    int stays[SNAIL_GROUP];      /* whether its word was in the lane before: its vector is there */
    int noise[SNAIL_NOISE];
} snail_bundles;

typedef struct {
    float *hidden;          /* [GROUP, stride] */
    float *hidden_gradient; /* [GROUP, stride] */
    float *owed;            /* [GROUP, stride]: gradients that the bags have not got yet */
    float *across;          /* [stride, GROUP]: hidden, transposed */
    float *coef;            /* [SHARED, GROUP]: scores, then rates */
    float *steps;           /* AdaGrad: [TILE, stride] */
    float *copies;          /* of the walker */
    snail_narrow narrow;    /* of a job with narrow products */
    float *step_row[SNAIL_TILE];
    float *rows[SNAIL_NOISE];
    float *hidden_row[SNAIL_GROUP];
    float *hidden_gradient_row[SNAIL_GROUP];
    float length2[SNAIL_GROUP]; /* squared lengths of the hidden vectors */
    snail_walker walker;
    snail_bundles groups[2];
} snail_pairs;

/* Plans a group; bundle b is in lane b % 16.  A group has fewer than 16 bundles if the job says so, and
 * ends early where a centre would repeat, as in _word_vectors.h.
 *
 * A word that was in the same lane in the group before stays, and its vector with it: its bag is not
 * read, and its gradients are owed to the bag until it leaves. */
static void snail_plan_bundles(const snail_words_job *job, snail_bundles *g,
                               const snail_bundles *before, int64_t first, uint64_t number) {
    const int64_t end = snail_least64(first + job->lanes, job->bundle_num);
    int64_t b = first;
    for (int i = 0; i < SNAIL_GROUP; i++) g->bundle[i] = g->centre[i] = -1;
    for (; b < end; b++) {
        const int32_t centre = job->centres[b];
        int repeats = 0;
        for (int i = 0; i < SNAIL_GROUP; i++) repeats |= g->centre[i] == centre;
        if (repeats) break;
        g->bundle[b % SNAIL_GROUP] = b;
        g->centre[b % SNAIL_GROUP] = centre;
    }
    g->first = first;
    g->num = (int)(b - first);
    for (int i = 0; i < SNAIL_GROUP; i++)
        g->stays[i] = !job->input_squares & (g->centre[i] >= 0) & (g->centre[i] == before->centre[i]);
    if (!job->paths.ptr)
        snail_draw_noise(job->noise, job->noise_num, job->stream, number * SNAIL_NOISE,
                         (number + 1) * SNAIL_NOISE, SNAIL_NOISE, g->noise);
}

/* Whether a word that has been in its lane for some groups is in it for the last time. */
SNAIL_INLINE int snail_leaves(const snail_bundles *g, const snail_bundles *ahead, int lane) {
    return g->stays[lane] && !ahead->stays[lane];
}

/* Prefetches the rows of a lane of the next group, and its part of the noise rows.  A few at a time,
 * because a core stalls when more cache lines are requested than it has fill buffers for. */
SNAIL_INLINE void snail_prefetch_lane(const snail_words_job *job, const snail_bundles *ahead,
                                      int lane) {
    for (int t = lane; t < SNAIL_NOISE && !job->paths.ptr; t += SNAIL_GROUP)
        snail_prefetch_output(job, ahead->noise[t]);
    if (ahead->bundle[lane] >= 0 && !ahead->stays[lane])
        snail_prefetch_bag(job, ahead->centre[lane]);
}

/* Computes how often each noise word counts in each lane: `full`, or weight[t] if some[t] is set, which
 * leaves out the pairs whose context is the noise word itself. */
SNAIL_INLINE void snail_weigh_noise(const snail_words_job *job, const snail_bundles *g,
                                    float full[SNAIL_GROUP], uint8_t some[SNAIL_NOISE],
                                    float weight[SNAIL_NOISE][SNAIL_GROUP]) {
    const float share = job->negatives / SNAIL_NOISE;
    uint64_t noise[32] = {0}; /* a bit for each word modulo 2048: most contexts are none of them */
    for (int t = 0; t < SNAIL_NOISE; t++)
        noise[g->noise[t] / 64 % 32] |= UINT64_C(1) << g->noise[t] % 64;
    for (int i = 0; i < SNAIL_GROUP; i++) {
        const int64_t b = g->bundle[i];
        full[i] = b < 0 ? 0 : share * (float)(job->starts[b + 1] - job->starts[b]);
    }
    const int64_t end = job->starts[g->first + g->num];
    for (int64_t c = job->starts[g->first]; c < end; c++) {
        const uint32_t word = (uint32_t)job->contexts[c];
        if (!(noise[word / 64 % 32] >> word % 64 & 1)) continue;
        int64_t b = g->first;
        while (job->starts[b + 1] <= c) b++;
        for (int t = 0; t < SNAIL_NOISE; t++) {
            if (g->noise[t] != (int)word) continue;
            if (!some[t]) memcpy(weight[t], full, SNAIL_GROUP * sizeof *full);
            float *own = &weight[t][b % SNAIL_GROUP];
            some[t] = 1;
            *own = *own > share ? *own - share : 0;
        }
    }
}

/* Scores of the noise rows become coefficients; returns the loss. */
static double snail_judge_noise(const snail_words_job *job, const snail_bundles *g, snail_pairs *s,
                                float factor) {
    float weight[SNAIL_NOISE][SNAIL_GROUP], full[SNAIL_GROUP], logit[SNAIL_NOISE];
    float loss[SNAIL_GROUP] = {0};
    uint8_t some[SNAIL_NOISE] = {0};
    double total = 0;
    snail_weigh_noise(job, g, full, some, weight);
    for (int t = 0; t < SNAIL_NOISE; t++) logit[t] = snail_logit(job->noise_logit, g->noise[t]);
    snail_judge_noise_rows(SNAIL_NOISE, (float(*)[SNAIL_GROUP])s->coef, logit, factor, full, weight,
                           some, loss);
    for (int i = 0; i < SNAIL_GROUP; i++) total += loss[i];
    return total;
}

/* How many of the contexts are different words, from the first on. */
SNAIL_INLINE int snail_different(const int32_t *contexts, int64_t left) {
    const int most = left < SNAIL_CONTEXTS ? (int)left : SNAIL_CONTEXTS;
    for (int i = 1; i < most; i++) {
        int repeats = 0;
        for (int k = 0; k < i; k++) repeats |= contexts[k] == contexts[i];
        if (repeats) return i;
    }
    return most;
}

/* Scores of the rows of some contexts of a lane, no word twice among them. */
SNAIL_INLINE void snail_score_contexts(const snail_words_job *job, const int32_t *contexts, int num,
                                       const float *hidden, float **rows, float *score,
                                       float *logit) {
    const int64_t stride = job->stride;
    const int32_t *end = job->contexts + job->starts[job->bundle_num];
    for (int i = 0; i < num; i++) {
        rows[i] = job->outputs + contexts[i] * stride;
        logit[i] = snail_logit(job->noise_logit, contexts[i]);
    }
    for (int i = 0; i < num; i += SNAIL_TILE) {
        if (contexts + i + SNAIL_CONTEXTS_AHEAD + SNAIL_TILE <= end)
#pragma GCC unroll 4
            for (int k = 0; k < SNAIL_TILE; k++)
                snail_prefetch_output(job, contexts[i + SNAIL_CONTEXTS_AHEAD + k]);
        switch (num - i) {
        case 1: snail_dots(1, hidden, rows + i, stride, score + i); break;
        case 2: snail_dots(2, hidden, rows + i, stride, score + i); break;
        case 3: snail_dots(3, hidden, rows + i, stride, score + i); break;
        default: snail_dots(4, hidden, rows + i, stride, score + i); break;
        }
    }
}

/* Steps of these rows, and the gradient of the hidden vector. */
SNAIL_INLINE void snail_step_contexts(const snail_words_job *job, int num, const float *hidden,
                                      float *const *rows, const float *pull, float *gradient,
                                      float rate) {
    if (job->output_squares)
        snail_meet_adagrad(num, hidden, rows, pull, gradient, job->stride, job->outputs,
                           job->output_squares, rate, job->epsilon);
    else snail_meet_all(num, hidden, rows, pull, gradient, job->stride);
}

/* Trains the contexts of one lane.  A word that repeats is scored anew, after its first step: `different`
 * runs of contexts are trained one after the other. */
static void snail_train_contexts(const snail_words_job *job, int64_t bundle, const float *hidden,
                                 float *gradient, float rate, float *loss) {
    const int32_t *contexts = job->contexts + job->starts[bundle];
    int64_t left = job->starts[bundle + 1] - job->starts[bundle];
    while (left > 0) {
        const int num = snail_different(contexts, left);
        float *rows[SNAIL_CONTEXTS];
        float score[SNAIL_CONTEXTS] = {0}, logit[SNAIL_CONTEXTS] = {0};
        snail_score_contexts(job, contexts, num, hidden, rows, score, logit);
        snail_judge_true(score, logit, num, job->output_squares ? 1.0f : rate, loss);
        snail_step_contexts(job, num, hidden, rows, score, gradient, rate);
        contexts += num;
        left -= num;
    }
}

/* Turns probabilities of the wrong answer into coefficients, in place, for both halves of SNAIL_CONTEXTS;
 * a context whose word came before in the bundle gets a shorter step.
 *
 * The contexts are scored together, so a repeated word is scored by its row before its earlier steps.
 * These have moved the row along the hidden vector h, by `moved`, and its score with it.  How much shorter
 * a step p becomes is estimated by the slope of the sigmoid: p / (1 + (1 - p / rate) moved |h|^2), which is
 * positive however long the steps are. */
SNAIL_INLINE void snail_shorten_repeats(const int32_t *restrict words, const float *length2, float rate,
                                        float *restrict wrong) {
    float moved[SNAIL_CONTEXTS];
#pragma GCC unroll 2
    for (int first = 0; first < SNAIL_CONTEXTS; first += SNAIL_SHORT) {
        const snail_eight_ints word = *(const snail_eight_ints *)(words + first);
        snail_eight sum = {0};
        snail_eight_ints behind = {0, -1, -1, -1, -1, -1, -1, -1};
#pragma GCC unroll 8
        for (int k = 0; k < SNAIL_SHORT - 1; k++) {
            const snail_eight by = wrong[first + k] - (snail_eight){0};
            sum += (snail_eight)((word == words[first + k]) & behind & (snail_eight_ints)by);
            behind[k + 1] = 0;
        }
        *(snail_eight *)(moved + first) = sum * (rate * length2[first / SNAIL_SHORT]);
    }
    for (int v = 0; v < SNAIL_CONTEXTS; v += SNAIL_LANES) {
        const snail_vec q = snail_load(wrong + v);
        snail_store(wrong + v, rate * q * snail_inverse(1.0f + (1.0f - q) * snail_load(moved + v)));
    }
}

/* Whether a lane's contexts are judged at once with those of another one: plain steps only. */
SNAIL_INLINE int snail_is_short(const snail_words_job *job, int64_t bundle) {
    return bundle >= 0 && !job->output_squares &&
           job->starts[bundle + 1] - job->starts[bundle] <= SNAIL_SHORT;
}

/* Trains the contexts of two lanes together: a core computes the scores of one lane while it waits for
 * rows of the other. */
static void snail_train_two(const snail_words_job *job, const snail_bundles *g, int lane,
                            snail_pairs *s, float rate, float *loss) {
    float *rows[SNAIL_CONTEXTS];
    float pull[SNAIL_CONTEXTS] = {0}, logit[SNAIL_CONTEXTS] = {0}, losses[SNAIL_CONTEXTS] = {0};
    int32_t words[SNAIL_CONTEXTS];
    int num[2];
    for (int i = 0; i < 2; i++) {
        const int64_t *starts = job->starts + g->bundle[lane + i];
        const int at = i * SNAIL_SHORT;
        num[i] = (int)(starts[1] - starts[0]);
        for (int k = 0; k < SNAIL_SHORT; k++)
            words[at + k] = k < num[i] ? job->contexts[starts[0] + k] : -1 - k;
        snail_score_contexts(job, job->contexts + starts[0], num[i], s->hidden_row[lane + i], rows + at, pull + at,
                             logit + at);
    }
    snail_judge_true(pull, logit, SNAIL_CONTEXTS, 1, losses);
    snail_shorten_repeats(words, s->length2 + lane, rate, pull);
    for (int i = 0; i < 2; i++) {
        const int at = i * SNAIL_SHORT;
        for (int k = 0; k < num[i]; k++) loss[at + k] += losses[at + k];
        snail_step_contexts(job, num[i], s->hidden_row[lane + i], rows + at, pull + at,
                            s->hidden_gradient_row[lane + i], rate);
    }
}

SNAIL_INLINE void snail_add_row(int64_t stride, float *restrict to, const float *restrict from) {
    for (int64_t d = 0; d < stride; d++) to[d] += from[d];
}

/* Steps a lane's word by its gradient: its hidden vector while it stays in the lane, its bag when it
 * leaves. */
SNAIL_INLINE void snail_step_lane(const snail_words_job *job, const snail_bundles *g,
                                  const snail_bundles *ahead, snail_pairs *s, int lane, float rate) {
    const int64_t stride = job->stride;
    float *gradient = s->hidden_gradient_row[lane], *owed = s->owed + lane * stride;
    if (ahead->stays[lane]) { /* all rows of the bag will get this gradient, so their mean moves by it */
        snail_add_row(stride, s->hidden_row[lane], gradient);
        if (g->stays[lane]) snail_add_row(stride, owed, gradient);
        else memcpy(owed, gradient, (size_t)stride * sizeof *owed);
        return;
    }
    if (g->stays[lane]) snail_add_row(stride, gradient, owed);
    snail_step_bag(job, g->centre[lane], gradient, rate);
}

/* Prefetches for a lane, while it is trained, what the lanes after it need. */
SNAIL_INLINE void snail_prefetch_around(const snail_words_job *job, const snail_bundles *g,
                                        const snail_bundles *ahead, int lane) {
    snail_prefetch_lane(job, ahead, lane);
    if (lane + SNAIL_LEAVING_AHEAD < SNAIL_GROUP && snail_leaves(g, ahead, lane + SNAIL_LEAVING_AHEAD))
        snail_prefetch_bag(job, g->centre[lane + SNAIL_LEAVING_AHEAD]);
}

/* Trains the contexts of all lanes by the paths to them; returns the loss. */
static double snail_walk_bundles(const snail_words_job *job, const snail_bundles *g,
                                 const snail_bundles *ahead, snail_pairs *s, float rate) {
    const int64_t end = job->starts[job->bundle_num];
    float losses[SNAIL_NODES] = {0};
    double loss = 0;
    memset(s->hidden_gradient, 0, (size_t)(SNAIL_GROUP * job->stride) * sizeof(float));
    for (int i = 0; i < SNAIL_GROUP; i++) {
        snail_prefetch_around(job, g, ahead, i);
        if (g->bundle[i] < 0) continue;
        for (int64_t c = job->starts[g->bundle[i]]; c < job->starts[g->bundle[i] + 1]; c++) {
            snail_prefetch_walks(&s->walker, job->contexts + c, end - c);
            snail_walk(&s->walker, job->contexts[c], s->hidden_row[i], s->hidden_gradient_row[i], rate,
                       losses);
        }
        snail_step_lane(job, g, ahead, s, i, rate);
    }
    snail_share_walks(&s->walker, 0);
    for (int i = 0; i < SNAIL_NODES; i++) loss += losses[i];
    return loss;
}

/* Trains a group and prefetches the rows of the next one; returns its loss. */
static SNAIL_APART double snail_train_bundles(const snail_words_job *job, const snail_bundles *g,
                                              const snail_bundles *ahead, snail_pairs *s,
                                              float rate) {
    const int64_t stride = job->stride;
    const float *const *rows = (const float *const *)s->rows;
    float losses[SNAIL_CONTEXTS] = {0};
    double loss;
    for (int i = 0; i < SNAIL_GROUP; i++) {
        if (g->bundle[i] < 0 || g->stays[i]) continue;
        const int64_t begin = job->bag_ptr[g->centre[i]];
        const int count = (int)(job->bag_ptr[g->centre[i] + 1] - begin);
        const float *weights = job->bag_weights ? job->bag_weights + begin : NULL;
        snail_sum_rows(count, job->bag_rows + begin, weights, job->inputs, stride,
                       1 / snail_bag_size(job, g->centre[i]), s->hidden_row[i]);
    }
    if (job->paths.ptr) return snail_walk_bundles(job, g, ahead, s, rate);
    for (int t = 0; t < SNAIL_NOISE; t++) s->rows[t] = job->outputs + g->noise[t] * stride;
    snail_begin_products(job, &s->narrow, s->hidden_row, rows, SNAIL_NOISE, s->across, s->length2);
    for (int t = 0; t < SNAIL_NOISE; t += SNAIL_SCORE_ROWS)
        snail_score_rows(job, &s->narrow, rows, s->across, t, s->coef);
    loss = snail_judge_noise(job, g, s, job->output_squares ? 1 : rate);
    if (job->narrow) snail_narrow_coefs(&s->narrow, SNAIL_NOISE, s->coef);
    for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
        snail_lane_gradients(job, &s->narrow, rows, SNAIL_NOISE, s->coef, i, s->hidden_gradient_row + i);
    for (int t = 0; t < SNAIL_NOISE; t += SNAIL_TILE)
        snail_step_tile(job, &s->narrow, s->rows, t, s->hidden_row, s->coef, s->step_row, rate);
    for (int i = 0; i < SNAIL_GROUP; i += 2) {
        for (int k = i; k < i + 2; k++) snail_prefetch_around(job, g, ahead, k);
        if (snail_is_short(job, g->bundle[i]) && snail_is_short(job, g->bundle[i + 1]))
            snail_train_two(job, g, i, s, rate, losses);
        else
            for (int k = i; k < i + 2; k++)
                if (g->bundle[k] >= 0)
                    snail_train_contexts(job, g->bundle[k], s->hidden_row[k],
                                         s->hidden_gradient_row[k], rate, losses);
        for (int k = i; k < i + 2; k++)
            if (g->bundle[k] >= 0) snail_step_lane(job, g, ahead, s, k, rate);
    }
    for (int i = 0; i < SNAIL_CONTEXTS; i++) loss += losses[i];
    return loss;
}

/* Cuts scratch into parts; returns its size (scratch may be NULL to ask). */
static int64_t snail_lay_out_pairs(char *scratch, const snail_words_job *job, snail_pairs *s) {
    const int64_t row = job->stride * 4;
    int64_t at = 0;
    s->hidden = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->hidden_gradient = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->owed = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->across = snail_cut(scratch, &at, SNAIL_GROUP * row);
    s->coef = snail_cut(scratch, &at, SNAIL_NOISE * SNAIL_GROUP * 4);
    s->steps = snail_cut(scratch, &at, SNAIL_TILE * row);
    s->copies = snail_cut(scratch, &at, snail_walker_floats(&job->paths, job->copied, job->stride) * 4);
    s->narrow = snail_cut_narrow(scratch, &at, job);
    return at;
}

static int64_t snail_pairs_scratch(const snail_words_job *job) {
    snail_pairs s;
    return snail_lay_out_pairs(NULL, job, &s);
}

/* All bundles, one group ahead with planning and prefetching. */
static void snail_train_pairs(const snail_words_job *job, char *scratch, double *loss,
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
    for (int i = 0; i < SNAIL_GROUP; i++) ahead->centre[i] = -1;
    s.walker = snail_begin_walks(&job->paths, job->outputs, job->output_squares, job->stride,
                                 job->epsilon, job->copied, s.copies);
    snail_plan_bundles(job, now, ahead, 0, 0);
    for (uint64_t number = 1; now->num > 0; number++) {
        snail_plan_bundles(job, ahead, now, now->first + now->num, number);
        *loss += snail_train_bundles(job, now, ahead, &s,
                                     job->rate_start + slope * (float)now->first);
        *examples += job->starts[now->first + now->num] - job->starts[now->first];
        snail_bundles *swap = now;
        now = ahead;
        ahead = swap;
    }
    snail_share_walks(&s.walker, 1);
}

#endif
