/* Classifier training, one line of text after the other.
 *
 * features, labels of a line -> hidden vector -> scores -> rates -> rows, changed in place
 *
 * The steps are exactly fastText's: h is the mean of the line's input rows, output row k moves by
 * rate * (y_k - p_k) h, every input row by the gradient of h divided by the number of features.
 *
 * A label of a line has a weight, which multiplies its loss and its gradient: that of the line times that of
 * the label in it.  Where none is given, both are 1: such a job runs a copy of the loop without `weighed`,
 * a constant there, from which compilers leave out all that is times 1 or plus 0.
 *
 * Threads train different lines on the same rows without locks (Hogwild): texts share few input rows, and
 * a lost addition is one step of one line.  With softmax and one-vs-all every thread writes all output
 * rows at every line, so each trains copies of them (`copied`, _hot_rows.h); with negative sampling only
 * if labels are so few that an exchange costs less than the steps between two; with a tree of labels the
 * top of the tree (_paths.h).
 */
#ifndef SNAILPS_CLASSIFIER_H
#define SNAILPS_CLASSIFIER_H

#include <stdint.h>
#include <string.h>

#include "_hot_rows.h"
#include "_jobs.h"
#include "_losses.h"
#include "_paths.h"
#include "_tiles.h"
#include "_word_vectors.h"

enum {
    SNAIL_TRIES = 8,           /* draws for a negative other than the line's label, before it is skipped */
    SNAIL_FLOATS_AHEAD = 1792, /* of the next line's rows are prefetched */
    SNAIL_SLOWLY = 16
};

typedef struct {
    const snail_labels_job *job;
    snail_hot_rows hot;
    snail_walker walker;
    float *outputs;  /* that this thread trains */
    float *hidden;   /* [stride] */
    float *gradient; /* [stride] */
    float *scores;   /* [label_num]; one-vs-all: weight of a label's no, ones between lines */
    float *truth;    /* [label_num], weight of a label's yes, zeros between lines */
    uint64_t drawn;  /* random numbers so far */
} snail_labels;

SNAIL_INLINE float snail_dot(const float *a, const float *b, int64_t n) {
    float total = 0;
    for (int64_t d = 0; d < n; d++) total += a[d] * b[d];
    return total;
}

SNAIL_INLINE void snail_label_step(float *row, const float *hidden, float *gradient, float alpha,
                                   int64_t n) {
    for (int64_t d = 0; d < n; d++) {
        gradient[d] += alpha * row[d];
        row[d] += alpha * hidden[d];
    }
}

/* Scores of all labels: products of 4 rows at a time, whose lanes are summed together. */
static SNAIL_APART void snail_all_scores(const float *rows, int64_t label_num, int64_t stride,
                                         const float *hidden, float *scores) {
    int64_t k = 0;
    for (; k + SNAIL_TILE <= label_num; k += SNAIL_TILE, rows += SNAIL_TILE * stride) {
        snail_vec sum[SNAIL_TILE];
#pragma GCC unroll 4
        for (int r = 0; r < SNAIL_TILE; r++) sum[r] = (snail_vec){0};
        for (int64_t d = 0; d < stride; d += SNAIL_LANES) {
            const snail_vec along = snail_load(hidden + d);
#pragma GCC unroll 4
            for (int r = 0; r < SNAIL_TILE; r++) sum[r] += along * snail_load(rows + r * stride + d);
        }
        *(snail_quad *)(scores + k) = snail_sum_lanes(sum);
    }
    for (; k < label_num; k++, rows += stride) scores[k] = snail_dot(rows, hidden, stride);
}

/* Steps of all labels on `vec_num` vectors of their rows.  The gradient stays in registers: in memory each
 * label would wait until the one before has stored it. */
SNAIL_INLINE void snail_steps_tile(const int vec_num, float *rows, int64_t label_num, int64_t stride,
                                   const float *alphas, const float *hidden, float *gradient) {
    snail_vec along[4], sum[2][4];
#pragma GCC unroll 4
    for (int v = 0; v < vec_num; v++) {
        along[v] = snail_load(hidden + v * SNAIL_LANES);
        sum[0][v] = snail_load(gradient + v * SNAIL_LANES);
        sum[1][v] = (snail_vec){0};
    }
    for (int64_t k = 0; k < label_num; k += 2) {
        const int two = k + 1 < label_num;
#pragma GCC unroll 2
        for (int r = 0; r < 1 + two; r++, rows += stride)
#pragma GCC unroll 4
            for (int v = 0; v < vec_num; v++) {
                const snail_vec row = snail_load(rows + v * SNAIL_LANES);
                sum[r][v] += alphas[k + r] * row;
                snail_store(rows + v * SNAIL_LANES, row + alphas[k + r] * along[v]);
            }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vec_num; v++) snail_store(gradient + v * SNAIL_LANES, sum[0][v] + sum[1][v]);
}

/* `snail_label_step` of all labels, label k with alphas[k]. */
static SNAIL_APART void snail_all_steps(float *rows, int64_t label_num, int64_t stride,
                                        const float *alphas, const float *hidden, float *gradient) {
    int64_t left = stride / SNAIL_LANES;
    for (; left >= 4; left -= 4, rows += 4 * SNAIL_LANES, hidden += 4 * SNAIL_LANES, gradient += 4 * SNAIL_LANES)
        snail_steps_tile(4, rows, label_num, stride, alphas, hidden, gradient);
    switch (left) {
    case 3: snail_steps_tile(3, rows, label_num, stride, alphas, hidden, gradient); break;
    case 2: snail_steps_tile(2, rows, label_num, stride, alphas, hidden, gradient); break;
    case 1: snail_steps_tile(1, rows, label_num, stride, alphas, hidden, gradient); break;
    default: break;
    }
}

SNAIL_INLINE uint64_t snail_next_below(snail_labels *s, uint64_t bound) {
    return snail_below(snail_draw(s->job->stream, ++s->drawn), bound);
}

/* A step of one label as a binary classification, whose yes and no have weights; returns its loss.  Where
 * they are not `weighed`, one is 1 and the other 0. */
SNAIL_INLINE float snail_binary(snail_labels *s, int64_t label, float yes, float no, float rate,
                                int weighed) {
    const int64_t stride = s->job->stride;
    float *row = s->outputs + label * stride, loss = 0;
    const float score = snail_sigmoid(snail_dot(row, s->hidden, stride));
    const float both = weighed ? yes + no : 1;
    snail_label_step(row, s->hidden, s->gradient, rate * (yes - both * score), stride);
    if (!weighed) return -snail_log(yes > 0 ? score : (float)(1.0 - score + 1e-13f));
    if (yes > 0) loss -= yes * snail_log(score);
    if (no > 0) loss -= no * snail_log((float)(1.0 - score + 1e-13f));
    return loss;
}

/* Labels of a line that are trained, as places in `labels`, and the weight of the line: not `weighed`, it is 1. */
typedef struct {
    int64_t first, last;
    float weight;
    int weighed;
} snail_targets;

SNAIL_INLINE float snail_target_weight(const snail_labels *s, const snail_targets *targets, int64_t at) {
    const float *weights = targets->weighed ? s->job->label_weights : NULL;
    return weights ? targets->weight * weights[at] : targets->weight;
}

/* One step for all targets: their weights share out the probability, so the sum of their losses is a cross
 * entropy. */
SNAIL_INLINE float snail_softmax_line(snail_labels *s, const snail_targets *targets, float weight,
                                      float rate) {
    const snail_labels_job *job = s->job;
    const int64_t stride = job->stride, label_num = job->label_num;
    const int32_t target = job->labels[targets->first];
    const int64_t last = targets->weighed ? targets->last : targets->first + 1;
    float loss, apart = 0;
    snail_all_scores(s->outputs, label_num, stride, s->hidden, s->scores);
    for (int64_t at = targets->first + 1; at < last; at++)
        apart += snail_target_weight(s, targets, at) * (s->scores[target] - s->scores[job->labels[at]]);
    const float share = -rate * weight / snail_softmax(s->scores, label_num, target, &loss);
    for (int64_t k = 0; k < label_num; k++) s->scores[k] *= share;
    for (int64_t at = targets->first; at < last; at++)
        s->scores[job->labels[at]] += rate * snail_target_weight(s, targets, at);
    snail_all_steps(s->outputs, label_num, stride, s->scores, s->hidden, s->gradient);
    return weight * loss + apart;
}

/* A label of weight t is a yes of weight t, and a no of the rest to 1 (`rests`). */
SNAIL_INLINE float snail_one_vs_all(snail_labels *s, const snail_targets *targets, float rate) {
    const snail_labels_job *job = s->job;
    const float *weights = targets->weighed ? job->label_weights : NULL;
    const float *rests = targets->weighed ? job->rests : NULL;
    float loss = 0;
    for (int64_t at = targets->first; at < targets->last; at++) {
        const int32_t k = job->labels[at];
        const float yes = weights ? weights[at] : 1, no = rests ? rests[at] : 0;
        if (yes > s->truth[k]) s->truth[k] = yes; /* a label may be repeated */
        if (targets->weighed && no < s->scores[k]) s->scores[k] = no;
    }
    for (int64_t k = 0; k < job->label_num; k++) {
        const float no = targets->weighed ? s->scores[k] : 0;
        loss += snail_binary(s, k, s->truth[k], no, rate * targets->weight, targets->weighed);
    }
    for (int64_t at = targets->first; at < targets->last; at++) {
        s->truth[job->labels[at]] = 0;
        if (targets->weighed) s->scores[job->labels[at]] = 1;
    }
    return targets->weight * loss;
}

SNAIL_INLINE float snail_sampling(snail_labels *s, int32_t target, float rate) {
    float loss = snail_binary(s, target, 1, 0, rate, 0);
    for (int i = 0; i < s->job->negatives; i++)
        for (int tries = 0; tries < SNAIL_TRIES; tries++) {
            const int32_t other = s->job->noise[snail_next_below(s, s->job->noise_num)];
            if (other != target) {
                loss += snail_binary(s, other, 0, 1, rate, 0);
                break;
            }
        }
    return loss;
}

SNAIL_INLINE float snail_hierarchical(snail_labels *s, int32_t target, float rate) {
    float losses[SNAIL_NODES] = {0}, loss = 0;
    snail_walk(&s->walker, target, s->hidden, s->gradient, rate, losses);
    for (int i = 0; i < SNAIL_NODES; i++) loss += losses[i];
    return loss;
}

/* One step for each target. */
SNAIL_INLINE float snail_targets_apart(snail_labels *s, const snail_targets *targets, float rate) {
    const int64_t last = targets->weighed ? targets->last : targets->first + 1;
    float loss = 0;
    for (int64_t at = targets->first; at < last; at++) {
        const float weight = snail_target_weight(s, targets, at);
        const int32_t label = s->job->labels[at];
        if (weight > 0)
            loss += weight * (s->job->loss == SNAIL_HIERARCHICAL
                                  ? snail_hierarchical(s, label, rate * weight)
                                  : snail_sampling(s, label, rate * weight));
    }
    return loss;
}

/* Without weights of labels, a line of several is trained on one of them, drawn each time, as in fastText. */
SNAIL_INLINE snail_targets snail_targets_of(snail_labels *s, int64_t line, int weighed) {
    const snail_labels_job *job = s->job;
    const float weight = weighed && job->line_weights ? job->line_weights[line] : 1;
    snail_targets targets = {job->label_ptr[line], job->label_ptr[line + 1], weight, weighed};
    const int64_t label_num = targets.last - targets.first;
    if (!(weighed && job->label_weights) && job->loss != SNAIL_ONE_VS_ALL) {
        if (label_num > 1) targets.first += (int64_t)snail_next_below(s, (uint64_t)label_num);
        targets.last = targets.first + 1;
    }
    return targets;
}

/* The weight of a line's step: the sum of its targets', or the largest where each label is a step. */
SNAIL_INLINE float snail_line_weight(const snail_labels *s, const snail_targets *targets) {
    if (!targets->weighed || !s->job->label_weights) return targets->weight;
    const int one_vs_all = s->job->loss == SNAIL_ONE_VS_ALL;
    float weight = one_vs_all ? targets->weight : 0;
    for (int64_t at = targets->first; at < targets->last; at++) {
        const float of_label = snail_target_weight(s, targets, at);
        weight = !one_vs_all ? weight + of_label : of_label > weight ? of_label : weight;
    }
    return weight;
}

/* Trains a line by one step of this weight; returns its loss. */
SNAIL_INLINE float snail_step_line(snail_labels *s, int64_t line, const snail_targets *targets,
                                   float weight, float rate) {
    const snail_labels_job *job = s->job;
    const int64_t begin = job->bag_ptr[line], end = job->bag_ptr[line + 1], stride = job->stride;
    const float share = 1 / (float)(end - begin), moved = share * job->lead;
    float loss;
    snail_sum_rows((int)(end - begin), job->bag_rows + begin, NULL, job->inputs, stride, share,
                   s->hidden);
    memset(s->gradient, 0, (size_t)stride * sizeof(float));
    if (job->loss == SNAIL_ONE_VS_ALL) loss = snail_one_vs_all(s, targets, rate);
    else if (job->loss == SNAIL_SOFTMAX) loss = snail_softmax_line(s, targets, weight, rate);
    else loss = snail_targets_apart(s, targets, rate);
    for (int64_t d = 0; d < stride; d++) s->gradient[d] *= moved;
    for (int64_t r = begin; r < end; r++) {
        float *row = job->inputs + job->bag_rows[r] * stride;
        for (int64_t d = 0; d < stride; d++) row[d] += s->gradient[d];
    }
    return loss;
}

/* Returns the weight of the line in the mean loss; 0: the line was left out.
 *
 * A step of a large weight would overshoot, and rows grow without bound.  So a line of weight 2 is trained
 * twice.  The gradient falls meanwhile, so steps grow: with softmax and a tree their weights are 1, 1, 2,
 * 4, 8 and so on.  A label's own logistic loss does not fall that fast, and negatives are other ones at
 * each step: there a step is at most 1 / SNAIL_SLOWLY of what was done. */
SNAIL_INLINE float snail_train_line(snail_labels *s, int64_t line, float rate, int weighed,
                                    double *loss) {
    const snail_labels_job *job = s->job;
    const snail_targets targets = snail_targets_of(s, line, weighed);
    const float weight = snail_line_weight(s, &targets);
    const float growth = job->loss == SNAIL_SOFTMAX || job->loss == SNAIL_HIERARCHICAL ? 1 : 1.0f / SNAIL_SLOWLY;
    for (float done = 0, part; done < weight; done += part) {
        part = done * growth < 1 ? 1 : done * growth;
        part = part < weight - done ? part : weight - done;
        const int whole = part == weight; /* nearly always: no division is waited for */
        const float of_part = whole ? targets.weight : targets.weight * (part / weight);
        const snail_targets some = {targets.first, targets.last, of_part, weighed};
        const float before = snail_step_line(s, line, &some, part, rate);
        if (done == 0) *loss += whole ? before : before / part * weight;
    }
    return job->loss == SNAIL_ONE_VS_ALL ? targets.weight : weight;
}

SNAIL_INLINE int64_t snail_padded(int64_t n) { return (n + SNAIL_PAD - 1) / SNAIL_PAD * SNAIL_PAD; }

static int64_t snail_labels_scratch(const snail_labels_job *job) {
    const int64_t copies = job->paths.ptr ? snail_walker_floats(&job->paths, job->copied, job->stride)
                         : job->copied    ? snail_hot_floats(job->label_num, job->stride)
                                          : 0;
    const int64_t scores = job->paths.ptr ? 0 : 2 * snail_padded(job->label_num);
    return (2 * job->stride + scores + copies) * (int64_t)sizeof(float);
}

SNAIL_INLINE void snail_train_lines(const snail_labels_job *job, char *scratch, int weighed,
                                    double *loss, double *weight) {
    const int64_t start = job->bag_ptr[job->first], stop = job->bag_ptr[job->last];
    snail_labels s = {.job = job, .outputs = job->outputs};
    const float slope = (job->rate_stop - job->rate_start) / (float)(stop - start);
    const int64_t ahead = SNAIL_FLOATS_AHEAD / job->stride;
    int waiting = 0;
    s.hidden = (float *)scratch;
    s.gradient = s.hidden + job->stride;
    s.scores = s.gradient + job->stride;
    s.truth = s.scores + snail_padded(job->label_num);
    for (int64_t k = 0; k < job->label_num && !job->paths.ptr; k++) s.scores[k] = 1;
    s.hot = (snail_hot_rows){job->outputs, NULL, NULL, job->label_num, -1, job->stride,
                             job->stride, NULL, NULL};
    if (job->paths.ptr) {
        s.walker = snail_begin_walks(&job->paths, job->outputs, NULL, job->stride, 0, job->copied, s.scores);
        s.hot = s.walker.hot;
    } else if (job->copied) {
        s.outputs = s.hot.own = s.truth + snail_padded(job->label_num);
        s.hot.base = s.hot.own + (job->label_num + 1) * job->stride;
        snail_copy_hot(&s.hot);
    }
    for (int64_t line = job->first; line < job->last; line++) {
        for (int64_t at = job->bag_ptr[line + 1];
             at < stop && at < job->bag_ptr[line + 1] + ahead; at++)
            snail_prefetch_row(job->inputs + job->bag_rows[at] * job->stride, job->stride);
        if (job->bag_ptr[line + 1] == job->bag_ptr[line] ||
            job->label_ptr[line + 1] == job->label_ptr[line])
            continue;
        const float rate = job->rate_start + slope * (float)(job->bag_ptr[line] - start);
        const float trained = snail_train_line(&s, line, rate, weighed, loss);
        *weight += trained;
        if (job->copied && trained > 0 && ++waiting == SNAIL_TOGETHER) {
            snail_exchange(&s.hot, 0);
            waiting = 0;
        }
    }
    if (job->copied) snail_exchange(&s.hot, 1);
}

/* Functions of their own: in one, registers would be shared out among both loops. */
static SNAIL_APART void snail_train_weighed(const snail_labels_job *job, char *scratch,
                                            double *loss, double *weight) {
    snail_train_lines(job, scratch, 1, loss, weight);
}

static SNAIL_APART void snail_train_plain(const snail_labels_job *job, char *scratch,
                                          double *loss, double *weight) {
    snail_train_lines(job, scratch, 0, loss, weight);
}

static void snail_train_labels(const snail_labels_job *job, char *scratch, double *loss,
                               double *weight) {
    if (job->line_weights || job->label_weights || job->rests)
        snail_train_weighed(job, scratch, loss, weight);
    else snail_train_plain(job, scratch, loss, weight);
}

#endif
