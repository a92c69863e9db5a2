/* Classifier training, one line of text after the other.
 *
 * features, labels of a line -> hidden vector -> scores -> rates -> rows, changed in place
 *
 * The steps are exactly fastText's: h is the mean of the line's input rows, output row k moves by
 * rate * (y_k - p_k) h, every input row by the gradient of h divided by the number of features.
 *
 * Threads train different lines on the same rows without locks (Hogwild): texts share few input rows, and
 * a lost addition is one step of one line.  With softmax and one-vs-all every thread writes all output
 * rows at every line, so each trains copies of them (`copied`, _hot_rows.h); with negative sampling only
 * if labels are so few that an exchange costs less than the steps between two.
 */
#ifndef SNAILPS_CLASSIFIER_H
#define SNAILPS_CLASSIFIER_H

#include <stdint.h>
#include <string.h>

#include "_hot_rows.h"
#include "_jobs.h"
#include "_losses.h"
#include "_tiles.h"
#include "_word_vectors.h"

enum {
    SNAIL_TRIES = 8,          /* draws for a negative other than the line's label, before it is skipped */
    SNAIL_FEATURES_AHEAD = 16 /* features of the next line whose rows are prefetched */
};

typedef struct {
    const snail_labels_job *job;
    snail_hot_rows hot;
    float *outputs;  /* that this thread trains */
    float *hidden;   /* [stride] */
    float *gradient; /* [stride] */
    float *scores;   /* [label_num] */
    float *truth;    /* [label_num], zeros between lines */
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

SNAIL_INLINE uint64_t snail_next_below(snail_labels *s, uint64_t bound) {
    return snail_below(snail_draw(s->job->stream, ++s->drawn), bound);
}

/* A step of one label as a binary classification; returns its loss. */
SNAIL_INLINE float snail_binary(snail_labels *s, int64_t label, int wanted, float rate) {
    const int64_t stride = s->job->stride;
    float *row = s->outputs + label * stride;
    const float score = snail_sigmoid(snail_dot(row, s->hidden, stride));
    snail_label_step(row, s->hidden, s->gradient, rate * ((float)wanted - score), stride);
    return -snail_log(wanted ? score : (float)(1.0 - score + 1e-13f));
}

SNAIL_INLINE float snail_softmax_line(snail_labels *s, int32_t target, float rate) {
    const int64_t stride = s->job->stride, label_num = s->job->label_num;
    float loss;
    for (int64_t k = 0; k < label_num; k++)
        s->scores[k] = snail_dot(s->outputs + k * stride, s->hidden, stride);
    const float share = -rate / snail_softmax(s->scores, label_num, target, &loss);
    for (int64_t k = 0; k < label_num; k++) s->scores[k] *= share;
    s->scores[target] += rate;
    for (int64_t k = 0; k < label_num; k++)
        snail_label_step(s->outputs + k * stride, s->hidden, s->gradient, s->scores[k], stride);
    return loss;
}

SNAIL_INLINE float snail_one_vs_all(snail_labels *s, int64_t line, float rate) {
    const snail_labels_job *job = s->job;
    float loss = 0;
    for (int64_t k = job->label_ptr[line]; k < job->label_ptr[line + 1]; k++)
        s->truth[job->labels[k]] = 1;
    for (int64_t k = 0; k < job->label_num; k++) loss += snail_binary(s, k, s->truth[k] > 0, rate);
    for (int64_t k = job->label_ptr[line]; k < job->label_ptr[line + 1]; k++)
        s->truth[job->labels[k]] = 0;
    return loss;
}

SNAIL_INLINE float snail_sampling(snail_labels *s, int32_t target, float rate) {
    float loss = snail_binary(s, target, 1, rate);
    for (int i = 0; i < s->job->negatives; i++)
        for (int tries = 0; tries < SNAIL_TRIES; tries++) {
            const int32_t other = s->job->noise[snail_next_below(s, s->job->noise_num)];
            if (other != target) {
                loss += snail_binary(s, other, 0, rate);
                break;
            }
        }
    return loss;
}

SNAIL_INLINE float snail_train_line(snail_labels *s, int64_t line, float rate) {
    const snail_labels_job *job = s->job;
    const int64_t begin = job->bag_ptr[line], end = job->bag_ptr[line + 1], stride = job->stride;
    const int64_t label_num = job->label_ptr[line + 1] - job->label_ptr[line];
    const float share = 1 / (float)(end - begin);
    float loss;
    snail_sum_rows((int)(end - begin), job->bag_rows + begin, NULL, job->inputs, stride, share,
                   s->hidden);
    memset(s->gradient, 0, (size_t)stride * sizeof(float));
    if (job->loss == SNAIL_ONE_VS_ALL) loss = snail_one_vs_all(s, line, rate);
    else {
        /* As in fastText, a line of several labels is trained on one of them, drawn each time. */
        const uint64_t r = label_num > 1 ? snail_next_below(s, (uint64_t)label_num) : 0;
        const int32_t target = job->labels[job->label_ptr[line] + (int64_t)r];
        loss = job->loss == SNAIL_SOFTMAX ? snail_softmax_line(s, target, rate)
                                          : snail_sampling(s, target, rate);
    }
    for (int64_t d = 0; d < stride; d++) s->gradient[d] *= share;
    for (int64_t r = begin; r < end; r++) {
        float *row = job->inputs + job->bag_rows[r] * stride;
        for (int64_t d = 0; d < stride; d++) row[d] += s->gradient[d];
    }
    return loss;
}

SNAIL_INLINE int64_t snail_padded(int64_t n) { return (n + SNAIL_PAD - 1) / SNAIL_PAD * SNAIL_PAD; }

static int64_t snail_labels_scratch(const snail_labels_job *job) {
    const int64_t copies = job->copied ? snail_hot_floats(job->label_num, job->stride) : 0;
    return (2 * job->stride + 2 * snail_padded(job->label_num) + copies) * (int64_t)sizeof(float);
}

static void snail_train_labels(const snail_labels_job *job, char *scratch, double *loss,
                               int64_t *examples) {
    const int64_t start = job->bag_ptr[job->first], stop = job->bag_ptr[job->last];
    snail_labels s = {.job = job, .outputs = job->outputs};
    const float slope = (job->rate_stop - job->rate_start) / (float)(stop - start);
    int waiting = 0;
    s.hidden = (float *)scratch;
    s.gradient = s.hidden + job->stride;
    s.scores = s.gradient + job->stride;
    s.truth = s.scores + snail_padded(job->label_num);
    s.hot = (snail_hot_rows){job->outputs, NULL, NULL, job->label_num, -1, job->stride,
                             job->stride, NULL};
    if (job->copied) {
        s.outputs = s.hot.own = s.truth + snail_padded(job->label_num);
        s.hot.base = s.hot.own + (job->label_num + 1) * job->stride;
        snail_copy_hot(&s.hot);
    }
    for (int64_t line = job->first; line < job->last; line++) {
        for (int64_t at = job->bag_ptr[line + 1];
             at < stop && at < job->bag_ptr[line + 1] + SNAIL_FEATURES_AHEAD; at++)
            snail_prefetch_row(job->inputs + job->bag_rows[at] * job->stride, job->stride);
        if (job->bag_ptr[line + 1] == job->bag_ptr[line] ||
            job->label_ptr[line + 1] == job->label_ptr[line])
            continue;
        const float rate = job->rate_start + slope * (float)(job->bag_ptr[line] - start);
        *loss += snail_train_line(&s, line, rate);
        *examples += 1;
        if (job->copied && ++waiting == SNAIL_TOGETHER) {
            snail_exchange(&s.hot, 0);
            waiting = 0;
        }
    }
    if (job->copied) snail_exchange(&s.hot, 1);
}

#endif
