/* Each optimizer's step, defined once: for one weight, in kernels that train, and for a stored row.
 *
 * weight, state, gradient -> the same, one step on
 * hyper-parameters, row (weights then state), pushed value -> the same row, one step on
 *
 * In C and not in Cython because of `restrict`: weights, state and value never overlap, and only if the
 * compiler knows that does it make vector loops without a check before each row.  Places in `hyper`
 * are those of `Hyper` in _row_ops.pxd.  A twin of each function is in tests/support/twins/kernels.py; the
 * twin for copies of rows that others step too is in row_exchange.py beside it.
 *
 * References: AdaGrad: J. Duchi, E. Hazan, Y. Singer, JMLR 12 (2011).  Adam: D. P. Kingma, J. Ba,
 * ICLR 2015.  Row-wise AdaGrad: D. Mudigere et al., ISCA 2022.  FTRL-proximal: H. B. McMahan et al., KDD 2013.  Momentum: B. T. Polyak, USSR Comp.
 * Math. and Math. Phys. 4 (1964).
 */
#ifndef SNAILPS_OPTIMIZERS_H
#define SNAILPS_OPTIMIZERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "abi/_row_ops.h"

#define SNAIL_STEP static inline __attribute__((always_inline))

/* ---- one weight ------------------------------------------------------------------------------- */

SNAIL_STEP void snail_sgd(float *w, float g, float rate) { *w -= rate * g; }

SNAIL_STEP void snail_adagrad(float *w, float *s, float g, float rate, float epsilon) {
    const float total = *s + g * g;
    *s = total;
    *w -= rate * g / (sqrtf(total) + epsilon);
}

/* Shrinks z towards 0 by l1; 0 inside [-l1, l1]. */
SNAIL_STEP float snail_shrunk(float z, float l1) {
    return z - (z > l1 ? l1 : z < -l1 ? -l1 : z);
}

/* The constants from which, with z and n, FTRL's weights follow; base is beta / rate. */
typedef struct {
    float per_rate, base, l1;
} snail_ftrl_by;

SNAIL_STEP snail_ftrl_by snail_ftrl_of(float rate, float l1, float beta) {
    const float per_rate = 1 / rate;
    return (snail_ftrl_by){per_rate, beta * per_rate, l1};
}

/* FTRL's weight; `root` is the square root of n. */
SNAIL_STEP float snail_ftrl_weight(float z, float root, const snail_ftrl_by *by) {
    return -snail_shrunk(z, by->l1) / (root * by->per_rate + by->base);
}

SNAIL_STEP void snail_ftrl(float *w, float *z, float *n, float g, const snail_ftrl_by *by) {
    const float total = *n + g * g;
    const float root = sqrtf(total);
    /* The difference of two roots loses digits, but less than the last place of z, whose size is root /
     * rate times w.  A form without cancellation would take one more division, a fifth of the step. */
    const float sum = *z + g - (root - sqrtf(*n)) * by->per_rate * *w;
    *n = total;
    *z = sum;
    *w = snail_ftrl_weight(sum, root, by);
}

/* Computes FTRL's weights of a row from its z and n. */
SNAIL_STEP void snail_ftrl_weights(float *row, int64_t dim, const snail_ftrl_by *by) {
    float *restrict w = row;
    const float *restrict z = row + dim;
    const float *restrict n = row + 2 * dim;
    for (int64_t j = 0; j < dim; j++) w[j] = snail_ftrl_weight(z[j], sqrtf(n[j]), by);
}

/* ---- a stored row ----------------------------------------------------------------------------- */

static void snail_step_add(const float *hyper, float *restrict row, const float *restrict value,
                           uint32_t dim) {
    (void)hyper;
    for (uint32_t j = 0; j < dim; j++) row[j] += value[j];
}

static void snail_step_sgd(const float *hyper, float *restrict row, const float *restrict value,
                           uint32_t dim) {
    const float rate = hyper[0];
    for (uint32_t j = 0; j < dim; j++) snail_sgd(&row[j], value[j], rate);
}

static void snail_step_adagrad(const float *hyper, float *row, const float *restrict value,
                               uint32_t dim) {
    const float rate = hyper[0], epsilon = hyper[1];
    float *restrict w = row;
    float *restrict s = row + dim;
    for (uint32_t j = 0; j < dim; j++) snail_adagrad(&w[j], &s[j], value[j], rate, epsilon);
}

/* AdaGrad with one sum per row: of the mean squares of its gradients. */
static void snail_step_rowwise(const float *hyper, float *row, const float *restrict value,
                               uint32_t dim) {
    const float epsilon = hyper[1];
    float *restrict w = row;
    float squares = 0;
    for (uint32_t j = 0; j < dim; j++) squares += value[j] * value[j];
    const float total = row[dim] + squares / (float)dim;
    const float rate = hyper[0] / (sqrtf(total) + epsilon);
    row[dim] = total;
    for (uint32_t j = 0; j < dim; j++) snail_sgd(&w[j], value[j], rate);
}

/* Adam's corrections of one step: 1 / (1 - beta1^step) and 1 / sqrt(1 - beta2^step).  In double,
 * because 1 - 0.999^1 in float keeps four digits. */
SNAIL_STEP void snail_adam_corrections(double power1, double power2, float *out) {
    out[0] = (float)(1 / (1 - power1));
    out[1] = (float)(1 / sqrt(1 - power2));
}

/* Tabulates the corrections of step s at 2 (s - 1) after the hyper-parameters: computing two powers per
 * row took a tenth of a push of dim 100, and more of a shorter row's. */
static void snail_prepare(int access, float *hyper) {
    double power1 = 1, power2 = 1;
    if (access != SNAIL_ADAM) return;
    for (uint32_t s = 0; s < SNAIL_ADAM_STEPS; s++) {
        power1 *= hyper[2];
        power2 *= hyper[3];
        snail_adam_corrections(power1, power2, hyper + SNAIL_HYPER_NUM + 2 * s);
    }
}

/* Adam, lazy: only rows that are pushed move.  Each row counts its own steps in its last float, which is
 * exact up to 2^24; by then both corrections are 1. */
static void snail_step_adam(const float *hyper, float *row, const float *restrict value,
                            uint32_t dim) {
    const float beta1 = hyper[2], beta2 = hyper[3], epsilon = hyper[1];
    float *restrict w = row;
    float *restrict m = row + dim;
    float *restrict v = row + 2 * (uint64_t)dim;
    float *restrict count = row + 3 * (uint64_t)dim;
    const float step = *count + 1;
    float beyond[2];
    const float *corrections = beyond;
    if (step >= 1 && step <= SNAIL_ADAM_STEPS)
        corrections = hyper + SNAIL_HYPER_NUM + 2 * ((uint32_t)step - 1);
    else snail_adam_corrections(pow(beta1, step), pow(beta2, step), beyond);
    const float rate = hyper[0] * corrections[0], root = corrections[1];
    *count = step;
    for (uint32_t j = 0; j < dim; j++) {
        const float g = value[j];
        m[j] = beta1 * m[j] + (1 - beta1) * g;
        v[j] = beta2 * v[j] + (1 - beta2) * g * g;
        w[j] -= rate * m[j] / (root * sqrtf(v[j]) + epsilon);
    }
}

/* Weights are stored beside z and n, although they follow from them, so that a pull is a copy.  L2 is
 * added to each gradient: in FTRL's denominator it would act only once, and the first gradients would
 * cancel it. */
static void snail_step_ftrl(const float *hyper, float *row, const float *restrict value,
                            uint32_t dim) {
    const snail_ftrl_by by = snail_ftrl_of(hyper[0], hyper[4], hyper[6]);
    float *restrict w = row;
    float *restrict z = row + dim;
    float *restrict n = row + 2 * (uint64_t)dim;
    const float l2 = hyper[5];
    for (uint32_t j = 0; j < dim; j++) snail_ftrl(&w[j], &z[j], &n[j], value[j] + l2 * w[j], &by);
}

/* The speed v is a sum of gradients, each weighing beta1 times as much as the one after it. */
static void snail_step_momentum(const float *hyper, float *row, const float *restrict value,
                                uint32_t dim) {
    const float rate = hyper[0], decay = hyper[2];
    float *restrict w = row;
    float *restrict v = row + dim;
    for (uint32_t j = 0; j < dim; j++) {
        const float speed = decay * v[j] + value[j];
        v[j] = speed;
        w[j] -= rate * speed;
    }
}

/* `value` has dim values that are multiplied by their weight, then the weight: all are added to the sums. */
static void snail_step_average(const float *hyper, float *row, const float *restrict value,
                               uint32_t dim) {
    snail_step_add(hyper, row + dim, value, dim + 1);
}

/* Rows of 64-bit integers, `dim` words of 32 bits.  Loads and stores by memcpy: a row begins after its key, but a
 * pushed value lies anywhere in its request. */
#define SNAIL_INTEGER_STEP(name, type, better)                                                     \
    static void snail_step_##name(const float *hyper, float *restrict row,                          \
                                  const float *restrict value, uint32_t dim) {                      \
        (void)hyper;                                                                                \
        for (uint32_t j = 0; j + 1 < dim; j += 2) {                                                 \
            type a, b;                                                                              \
            memcpy(&a, row + j, sizeof a);                                                          \
            memcpy(&b, value + j, sizeof b);                                                        \
            a = better;                                                                             \
            memcpy(row + j, &a, sizeof a);                                                          \
        }                                                                                           \
    }

SNAIL_INTEGER_STEP(min_uint64, uint64_t, b < a ? b : a)
SNAIL_INTEGER_STEP(max_uint64, uint64_t, b > a ? b : a)
SNAIL_INTEGER_STEP(min_int64, int64_t, b < a ? b : a)
SNAIL_INTEGER_STEP(max_int64, int64_t, b > a ? b : a)
SNAIL_INTEGER_STEP(or, uint64_t, a | b)

/* Bits that were seen, then as many that were seen again.  A value has both halves as well, so that values may be
 * combined on their way, in any order. */
static void snail_step_again(const float *hyper, float *restrict row, const float *restrict value, uint32_t dim) {
    (void)hyper;
    for (uint32_t j = 0; j < dim / 2; j++) {
        uint32_t seen, again, bits, twice;
        memcpy(&seen, row + j, sizeof seen);
        memcpy(&again, row + dim / 2 + j, sizeof again);
        memcpy(&bits, value + j, sizeof bits);
        memcpy(&twice, value + dim / 2 + j, sizeof twice);
        again |= twice | (seen & bits);
        seen |= bits;
        memcpy(row + j, &seen, sizeof seen);
        memcpy(row + dim / 2 + j, &again, sizeof again);
    }
}

/* ---- differences of whole rows ---------------------------------------------------------------- */

static void snail_merge_adagrad(const float *hyper, float *row, const float *delta, uint32_t dim) {
    snail_step_add(hyper, row, delta, 2 * dim);
}

static void snail_merge_rowwise(const float *hyper, float *row, const float *delta, uint32_t dim) {
    snail_step_add(hyper, row, delta, dim + 1);
}

static void snail_merge_momentum(const float *hyper, float *row, const float *delta,
                                 uint32_t dim) {
    snail_step_add(hyper, row, delta, 2 * dim);
}

static void snail_merge_adam(const float *hyper, float *row, const float *delta, uint32_t dim) {
    snail_step_add(hyper, row, delta, 3 * dim + 1);
}

static void snail_merge_ftrl(const float *hyper, float *row, const float *restrict delta,
                             uint32_t dim) {
    const snail_ftrl_by by = snail_ftrl_of(hyper[0], hyper[4], hyper[6]);
    snail_step_add(hyper, row + dim, delta + dim, 2 * dim);
    snail_ftrl_weights(row, dim, &by);
}

/* Computes the z that gives the first weights at n = 0. */
static void snail_first_ftrl(const float *hyper, float *row, uint32_t dim) {
    const float l1 = hyper[4];
    const float base = hyper[6] / hyper[0];
    for (uint32_t j = 0; j < dim; j++) {
        const float w = row[j];
        row[dim + j] = -w * base - (w > 0 ? l1 : w < 0 ? -l1 : 0);
        row[2 * (uint64_t)dim + j] = 0;
    }
}

/* Shortens AdaGrad's steps, whose sum is `delta`, to the length that they would have after the steps of
 * others, of which there are `others` for each.
 *
 * The factor is the ratio of two means of 1 / (sqrt(n) + least): as n grows from `before` by the squares of
 * all workers, and as it grows by this worker's `squares` only.  The row loses the difference too, because
 * it is not a step that remains to be pushed. */
static inline void snail_shorten_adagrad(int64_t dim, float *restrict row, float *restrict delta,
                                         const float *restrict squares, const float *restrict before,
                                         float least, float others) {
    for (int64_t j = 0; j < dim; j++) {
        const float root = sqrtf(before[j]) + 2 * least;
        const float own = sqrtf(before[j] + squares[j]) + root;
        const float all = sqrtf(before[j] + squares[j] * (1 + others)) + root;
        const float taken = squares[j] > 0 ? delta[j] * (1 - own / all) : 0;
        delta[j] -= taken;
        row[j] -= taken;
    }
}

#endif
