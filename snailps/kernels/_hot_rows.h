/* Rows that all threads write at every example: each thread trains a copy of them.
 *
 * shared rows -> copy (own, base) -> trained -> differences added to the shared rows, again and again
 *
 * Writers may race on other rows (Hogwild); on the hot ones cores would only pass the lines of their
 * caches to and fro.  So every some examples a thread adds what its copies changed to the shared rows,
 * one thread at a time (_row_locks.h), and goes on from the sums.
 */
#ifndef SNAILPS_HOT_ROWS_H
#define SNAILPS_HOT_ROWS_H

#include <stdint.h>
#include <string.h>

#include "_optimizers.h"
#include "_row_locks.h"

typedef struct {
    float *rows; /* shared: rows 0..num-1, and `bias` if it is one */
    float *own;  /* [num + 1, width]: this thread's, the last one is the bias; NULL: no copies */
    float *base; /* as they were at the last exchange */
    int64_t num;
    int64_t bias; /* or -1 */
    int64_t width;
    int64_t weights_num;       /* ftrl: of a row, which follow from the state behind them */
    const snail_ftrl_by *ftrl; /* or NULL: differences of whole rows add up */
} snail_hot_rows;

static inline int64_t snail_hot_floats(int64_t num, int64_t width) {
    return num ? 2 * (num + 1) * width : 0;
}

/* This thread's copies of the shared rows as they are now. */
static void snail_copy_hot(const snail_hot_rows *hot) {
    const size_t row = (size_t)hot->width * sizeof(float);
    memcpy(hot->own, hot->rows, (size_t)hot->num * row);
    if (hot->bias >= 0)
        memcpy(hot->own + hot->num * hot->width, hot->rows + hot->bias * hot->width, row);
    memcpy(hot->base, hot->own, (size_t)(hot->num + (hot->bias >= 0)) * row);
}

static void snail_exchange_row(const snail_hot_rows *hot, float *restrict shared,
                               float *restrict own, float *restrict base) {
    for (int64_t j = 0; j < hot->width; j++) own[j] = shared[j] + (own[j] - base[j]);
    if (hot->ftrl) snail_ftrl_weights(own, hot->weights_num, hot->ftrl);
    memcpy(shared, own, (size_t)hot->width * sizeof(float));
    memcpy(base, own, (size_t)hot->width * sizeof(float));
}

/* Adds what this thread changed to the shared rows, and goes on from these.  A row whose
 * lock is taken is left for the next exchange, unless this is the `last`. */
static void snail_exchange(const snail_hot_rows *hot, int last) {
    for (int64_t r = 0; r < hot->num + (hot->bias >= 0); r++) {
        float *shared = hot->rows + (r < hot->num ? r : hot->bias) * hot->width;
        if (last) snail_row_take(shared);
        else if (!snail_row_try(shared)) continue;
        snail_exchange_row(hot, shared, hot->own + r * hot->width, hot->base + r * hot->width);
        snail_row_give(shared);
    }
}

#endif
