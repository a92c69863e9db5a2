/* Steps of hierarchical softmax: the rows of the inner nodes on a word's (or label's) path.
 *
 * hidden vector, path -> each node's score -> right or wrong turn -> rows, and the hidden gradient
 *
 * A path is a batch of different rows that meet one hidden vector: up to SNAIL_NODES of them are scored
 * together, judged in one register, and stepped together, as the contexts of a word are.
 *
 * The nodes near the root are on most paths, so threads would pass their cache lines to and fro at every
 * example.  Where several threads train, each has copies of the top nodes (_hot_rows.h); the others are
 * written without locks (Hogwild).  A node of the top has its number by the turns that lead to it, as in a
 * heap: the root is 0, the children of i are 2 i + 1 (left) and 2 i + 2.  So a walk finds copies without a
 * table, and they lie together.
 */
#ifndef SNAILPS_PATHS_H
#define SNAILPS_PATHS_H

#include <stdint.h>

#include "_hot_rows.h"
#include "_jobs.h"
#include "_tiles.h"

enum {
    SNAIL_NODES = SNAIL_GROUP, /* nodes of a path that are judged at once */
    SNAIL_NEAR_ROOT = 5,       /* nodes of a path whose rows need not be prefetched */
    /* how many walks ahead what a walk reads is prefetched */
    SNAIL_ROWS_OF_WALK = 1,
    SNAIL_TURNS_OF_WALK = 3,
    SNAIL_PTR_OF_WALK = 6
};

typedef struct {
    const snail_tree_paths *paths;
    snail_hot_rows hot; /* `own` is NULL where this thread trains alone */
    float *outputs;
    float *squares; /* AdaGrad's sums, beside `outputs`, or NULL */
    int64_t stride;
    float epsilon;
    int waiting; /* calls of snail_share_walks since the last exchange */
} snail_walker;

static int64_t snail_walker_floats(const snail_tree_paths *paths, int copied, int64_t stride) {
    return paths->ptr && copied ? snail_hot_floats(SNAIL_TOP, stride) : 0;
}

/* `copies` are snail_walker_floats floats; none of them: the walker trains the rows in place. */
static snail_walker snail_begin_walks(const snail_tree_paths *paths, float *outputs, float *squares,
                                      int64_t stride, float epsilon, int copied, float *copies) {
    snail_walker w = {paths, {0}, outputs, squares, stride, epsilon, 0};
    w.hot = (snail_hot_rows){outputs, NULL, NULL, SNAIL_TOP, -1, stride, stride, NULL, paths->top};
    if (copied) {
        w.hot.own = copies;
        w.hot.base = copies + (SNAIL_TOP + 1) * stride;
        snail_copy_hot(&w.hot);
    }
    return w;
}

/* Shares with the other threads what this one changed in its copies: every SNAIL_TOGETHER calls, and the
 * `last` time, which waits for locks. */
SNAIL_INLINE void snail_share_walks(snail_walker *w, int last) {
    if (!w->hot.own || (++w->waiting < SNAIL_TOGETHER && !last)) return;
    snail_exchange(&w->hot, last);
    w->waiting = 0;
}

/* Asks for what the walk to a leaf reads, in three steps, as each needs what the one before it asked for:
 * where its turns begin, its turns, and their rows; not for rows near the root, which are in the cache. */
SNAIL_INLINE void snail_prefetch_ptr(const snail_walker *w, int32_t leaf) {
    __builtin_prefetch(w->paths->ptr + leaf, 0, 3);
}

SNAIL_INLINE void snail_prefetch_turns(const snail_walker *w, int32_t leaf) {
    const int32_t *turns = w->paths->turns + w->paths->ptr[leaf];
    __builtin_prefetch(turns, 0, 3);
    __builtin_prefetch(turns + SNAIL_PAD, 0, 3);
}

SNAIL_INLINE void snail_prefetch_path(const snail_walker *w, int32_t leaf) {
    for (int64_t at = w->paths->ptr[leaf] + SNAIL_NEAR_ROOT; at < w->paths->ptr[leaf + 1]; at++) {
        const int64_t row = (w->paths->turns[at] >> 1) * w->stride;
        snail_prefetch_row(w->outputs + row, w->stride);
        if (w->squares) snail_prefetch_row(w->squares + row, w->stride);
    }
}

/* Prefetches for walks to come; `leaves` has `left` leaves, the first of the walk that begins now. */
SNAIL_INLINE void snail_prefetch_walks(const snail_walker *w, const int32_t *leaves, int64_t left) {
    if (left > SNAIL_PTR_OF_WALK) snail_prefetch_ptr(w, leaves[SNAIL_PTR_OF_WALK]);
    if (left > SNAIL_TURNS_OF_WALK) snail_prefetch_turns(w, leaves[SNAIL_TURNS_OF_WALK]);
    if (left > SNAIL_ROWS_OF_WALK) snail_prefetch_path(w, leaves[SNAIL_ROWS_OF_WALK]);
}

/* Steps the rows of a leaf's path; adds to the gradient of the hidden vector, and to SNAIL_NODES losses.
 * Plain steps and the gradient contain the rate. */
static void snail_walk(const snail_walker *w, int32_t leaf, const float *hidden, float *gradient,
                       float rate, float *losses) {
    const int32_t *turns = w->paths->turns;
    const int64_t end = w->paths->ptr[leaf + 1];
    int32_t node = 0; /* number in the top */
    for (int64_t at = w->paths->ptr[leaf]; at < end; at += SNAIL_NODES) {
        const int num = end - at < SNAIL_NODES ? (int)(end - at) : SNAIL_NODES;
        float *rows[SNAIL_NODES];
        float score[SNAIL_NODES] = {0}, side[SNAIL_NODES] = {0}, logit[SNAIL_NODES] = {0};
        for (int i = 0; i < num; i++) {
            const int32_t turn = turns[at + i];
            rows[i] = w->hot.own && node < SNAIL_TOP ? w->hot.own + node * w->stride
                                                     : w->outputs + (turn >> 1) * w->stride;
            side[i] = turn & 1 ? 1.0f : -1.0f;
            if (node < SNAIL_TOP) node = 2 * node + 1 + (turn & 1);
        }
        snail_dots_of(num, hidden, rows, w->stride, score);
        for (int i = 0; i < SNAIL_NODES; i++) score[i] *= side[i];
        snail_judge_true(score, logit, num, w->squares ? 1.0f : rate, losses);
        for (int i = 0; i < SNAIL_NODES; i++) score[i] *= side[i];
        if (w->squares)
            snail_meet_adagrad(num, hidden, rows, score, gradient, w->stride, w->outputs, w->squares, rate,
                               w->epsilon);
        else snail_meet_all(num, hidden, rows, score, gradient, w->stride);
    }
}

#endif
