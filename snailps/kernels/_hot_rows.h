/* Hot rows, which all threads write at almost every example: each thread trains a copy of them.
 *
 * shared rows -> copy (own, base) -> trained -> differences added to the shared rows, again and again
 *
 * On other rows writers race without a lock (Hogwild): two threads rarely meet in a row, and an addition
 * that is lost is one step of one example.  On hot rows they meet all the time, and the cores would mostly
 * pass cache lines to and fro.  So each thread trains a copy, and every few examples adds what it changed
 * to the shared rows, under the row's lock (_row_locks.h), and continues from the sum.
 *
 * What holds: the shared hot rows are written by `snail_exchange` alone, under the lock.  `own - base` is
 * exactly what this thread has changed since its last exchange of the row.
 */
#ifndef SNAILPS_HOT_ROWS_H
#define SNAILPS_HOT_ROWS_H

#include <stdint.h>
#include <string.h>

#include "_optimizers.h"
#include "_row_locks.h"

typedef struct {
    float *rows; /* shared by all threads: rows 0..num-1 or `places`, and row `bias` */
    float *own;  /* [num + 1, width]: this thread's copies, the bias last; NULL: it has none */
    float *base; /* the shared rows as they were at this thread's last exchange */
    int64_t num;
    int64_t bias; /* row of the bias, or -1 */
    int64_t width;
    int64_t weights_num;       /* ftrl: weights of a row, which are computed from the state after them */
    const snail_ftrl_by *ftrl; /* NULL: another method, where sums of differences are a valid row */
    const int32_t *places;     /* [num] which rows they are, -1: none; NULL: rows 0..num-1 */
} snail_hot_rows;

static inline int64_t snail_hot_floats(int64_t num, int64_t width) {
    return num ? 2 * (num + 1) * width : 0;
}

/* The shared row of copy r, or NULL. */
static inline float *snail_shared_row(const snail_hot_rows *hot, int64_t r) {
    int64_t row = r < hot->num ? r : hot->bias;
    if (r < hot->num && hot->places) row = hot->places[r];
    return row < 0 ? NULL : hot->rows + row * hot->width;
}

/* Copies the shared rows, without locks.  A row that another thread is writing may be copied half old,
 * half new: that does not matter, because `base` is the same mixture, so `own - base` is still right. */
static void snail_copy_hot(const snail_hot_rows *hot) {
    const size_t row = (size_t)hot->width * sizeof(float);
    for (int64_t r = 0; r < hot->num + (hot->bias >= 0); r++) {
        const float *shared = snail_shared_row(hot, r);
        if (shared) memcpy(hot->own + r * hot->width, shared, row);
    }
    memcpy(hot->base, hot->own, (size_t)(hot->num + (hot->bias >= 0)) * row);
}

static void snail_exchange_row(const snail_hot_rows *hot, float *restrict shared,
                               float *restrict own, float *restrict base) {
    for (int64_t j = 0; j < hot->width; j++) own[j] = shared[j] + (own[j] - base[j]);
    /* FTRL's z and n are sums, so differences add up; a weight is no sum but follows from both. */
    if (hot->ftrl) snail_ftrl_weights(own, hot->weights_num, hot->ftrl);
    memcpy(shared, own, (size_t)hot->width * sizeof(float));
    memcpy(base, own, (size_t)hot->width * sizeof(float));
}

/* Adds what this thread changed to the shared rows, and continues from the sums.  A row whose lock is
 * taken is left for the next exchange: its difference only grows, and nobody waits.  The `last` exchange
 * of a call waits for each lock, because the copies are gone afterwards. */
static void snail_exchange(const snail_hot_rows *hot, int last) {
    for (int64_t r = 0; r < hot->num + (hot->bias >= 0); r++) {
        float *shared = snail_shared_row(hot, r);
        if (!shared) continue;
        if (last) snail_row_take(shared);
        else if (!snail_row_try(shared)) continue;
        snail_exchange_row(hot, shared, hot->own + r * hot->width, hot->base + r * hot->width);
        snail_row_give(shared);
    }
}

#endif
