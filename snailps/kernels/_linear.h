/* One step of the rows of an example that a linear model with one output takes, many rows at once.
 *
 * rows of up to SNAIL_TOGETHER features -> copies, side by side -> score; a step -> the rows
 *
 * In C and not in Cython for loops over the copies that the compiler turns into vector code: square
 * roots and divisions are most of a step.  A row that has changed under its copy, by another thread
 * or because the example has the feature twice, is left to the caller.
 */
#ifndef SNAILPS_LINEAR_H
#define SNAILPS_LINEAR_H

#include <math.h>
#include <stdint.h>

#include "_tiles.h"

enum { SNAIL_TOGETHER = 64 };

/* Rows of some features of one example; what lies behind `count`, up to the next 16, is 0. */
typedef struct {
    float *row[SNAIL_TOGETHER];
    float x[SNAIL_TOGETHER];      /* the example's values */
    float weight[SNAIL_TOGETHER]; /* weights, and the state of the method, as they were */
    float first[SNAIL_TOGETHER];
    float second[SNAIL_TOGETHER];
    float next[3][SNAIL_TOGETHER]; /* the same after the step */
    int count;
} snail_together;

/* What all steps of one example share; not every method needs all. */
typedef struct {
    float g, rate, per_rate, base, eps, l1, l2;
} snail_linear_by;

/* Copies rows already pointed at, `state` floats behind their weight; the sum of x * weight. */
SNAIL_INLINE float snail_gather(snail_together *t, const int state) {
    float sum = 0;
    int count = t->count;
    for (int i = 0; i < count; i++) {
        const float *row = t->row[i];
        t->weight[i] = row[0];
        if (state > 0) t->first[i] = row[1];
        if (state > 1) t->second[i] = row[2];
    }
    for (int i = count; i & 15; i++)
        t->x[i] = t->weight[i] = t->first[i] = t->second[i] = 0;
    count = (count + 15) & ~15;
    for (int i = 0; i < count; i++) sum += t->x[i] * t->weight[i];
    return sum;
}

/* FTRL-proximal: first is z, second is n. */
SNAIL_INLINE void snail_together_ftrl(snail_together *restrict t, const snail_linear_by *by) {
    int count = (t->count + 15) & ~15;
    const float l1 = by->l1, per_rate = by->per_rate, base = by->base, g0 = by->g;
    for (int i = 0; i < count; i++) {
        float g = g0 * t->x[i], old = t->second[i];
        float square = g * g, total = old + square, root = sqrtf(total);
        /* sqrt(total) - sqrt(old), without cancellation; the tiny number makes 0 / 0 a 0 */
        float z = t->first[i] + g -
                  square / (root + sqrtf(old) + 1e-30f) * per_rate * t->weight[i];
        float inside = z > l1 ? l1 : z;
        inside = inside < -l1 ? -l1 : inside;
        t->next[0][i] = (inside - z) / (root * per_rate + base);
        t->next[1][i] = z;
        t->next[2][i] = total;
    }
}

/* AdaGrad: first is the sum of squared gradients. */
SNAIL_INLINE void snail_together_adagrad(snail_together *restrict t, const snail_linear_by *by) {
    int count = (t->count + 15) & ~15;
    const float rate = by->rate, eps = by->eps, l2 = by->l2, g0 = by->g;
    for (int i = 0; i < count; i++) {
        float w = t->weight[i], g = g0 * t->x[i] + l2 * w;
        float total = t->first[i] + g * g;
        t->next[0][i] = w - rate * g / (sqrtf(total) + eps);
        t->next[1][i] = total;
    }
}

SNAIL_INLINE void snail_together_sgd(snail_together *restrict t, const snail_linear_by *by) {
    int count = (t->count + 15) & ~15;
    const float rate = by->rate, l2 = by->l2, g0 = by->g;
    for (int i = 0; i < count; i++) {
        float w = t->weight[i];
        t->next[0][i] = w - rate * (g0 * t->x[i] + l2 * w);
    }
}

/* Writes row i if it is as it was copied; whether it is. */
SNAIL_INLINE int snail_scatter(const snail_together *t, int i, const int state) {
    float *row = t->row[i];
    if (row[0] != t->weight[i]) return 0;
    if (state == 1 && row[1] != t->first[i]) return 0;
    if (state == 2 && row[2] != t->second[i]) return 0;
    row[0] = t->next[0][i];
    if (state > 0) row[1] = t->next[1][i];
    if (state > 1) row[2] = t->next[2][i];
    return 1;
}

#endif
