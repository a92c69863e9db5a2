/* Losses of one score, and their derivatives.
 *
 * Every function is finite for any finite score: a wild step of the training must show as a large loss,
 * not as NaN in rows that other workers will pull.
 */
#ifndef SNAILPS_LOSSES_H
#define SNAILPS_LOSSES_H

#include "_tiles.h"

#define SNAIL_BOUND 80.0f /* exp(-80) is about the smallest normal float */
#define SNAIL_STEEP 7.0f  /* exp(7) is 1,100 */

/* -log P(label) for P(yes) = 1 / (1 + exp(-score)), without overflow. */
SNAIL_INLINE float snail_log_loss(float score, int yes) {
    const float wrong = yes ? -score : score;
    const float away = wrong > 0 ? -wrong : wrong;
    return (wrong > 0 ? wrong : 0) + snail_log((float)(1.0 + snail_exp(away < -SNAIL_BOUND ? -SNAIL_BOUND : away)));
}

/* 1 / (1 + exp(-score)), in (0, 1) as far as float goes. */
SNAIL_INLINE float snail_likely(float score) {
    float x = -score < -SNAIL_BOUND ? -SNAIL_BOUND : -score;
    x = x > SNAIL_BOUND ? SNAIL_BOUND : x;
    return (float)(1.0 / (1.0 + snail_exp(x)));
}

/* Half the deviance of a count whose mean is exp(score).  Where the mean exceeds exp(SNAIL_STEEP) times
 * max(label, 1) it continues as a straight line: then a wild step does not overflow, and does not leave a
 * sum of squared gradients beside which all later gradients are negligible. */
SNAIL_INLINE float snail_half_deviance(float score, float label, float *gradient) {
    const float own = label > 0 ? snail_log(label) : 0, most = SNAIL_STEEP + (own > 0 ? own : 0);
    const float at = score > most ? most : score;
    const float mean = snail_exp(at < -SNAIL_BOUND ? -SNAIL_BOUND : at > SNAIL_BOUND ? SNAIL_BOUND : at);
    *gradient = mean - label;
    return *gradient - label * (at - own) + *gradient * (score - at);
}

/* Loss of an example with one score, times its weight; its derivative by the score. */
SNAIL_INLINE float snail_loss(int loss, float score, float label, float weight, float *gradient) {
    float found, g;
    if (loss == SNAIL_LOGISTIC) {
        found = snail_log_loss(score, label > 0);
        g = snail_likely(score) - (label > 0);
    } else if (loss == SNAIL_POISSON) found = snail_half_deviance(score, label, &g);
    else {
        g = score - label;
        found = g * g / 2;
    }
    *gradient = g * weight;
    return found * weight;
}

/* Scores of n classes -> exp(score - most), in place; their sum, and -log of the target's share. */
SNAIL_INLINE float snail_softmax(float *scores, int64_t n, int64_t target, float *loss) {
    float most = scores[0], total = 0;
    for (int64_t k = 0; k < n; k++) most = scores[k] > most ? scores[k] : most;
    const float wanted = scores[target] - most;
    for (int64_t k = 0; k < n; k++) {
        const float below = scores[k] - most;
        scores[k] = snail_exp(below < -SNAIL_BOUND ? -SNAIL_BOUND : below);
        total += scores[k];
    }
    *loss = snail_log(total) - wanted;
    return total;
}

#endif
