/* The best products of queries with many rows, exact, without most of the products.
 *
 * query, rows from the longest to the shortest -> scores of 16 rows -> heap of the best -> sorted
 *
 * |product| <= |query| |row|: once that bound is below the worst of a query's best, no later row counts,
 * as none is longer.  Of recommenders' rows a query sees 5 to 20 % on average; where all rows are equally
 * long it sees all, which still is faster than to write all scores and read them again.
 *
 * A score is a sum in the order of the columns, whatever else is computed beside it: equal rows have equal
 * scores, and answers do not depend on how queries are shared among threads.
 */
#ifndef SNAILPS_BEST_PRODUCTS_H
#define SNAILPS_BEST_PRODUCTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_tiles.h"

#define SNAIL_QUERIES 256 /* queries that read the same rows one after the other: the second cache */

typedef struct { /* the best answers to a query: a heap, with the worst at its root */
    int32_t *numbers;
    float *scores;
    int64_t size;
} snail_best;

typedef struct { /* a query that may still find better rows */
    int64_t query;
    float length;
} snail_asking;

static int64_t snail_best_scratch(void) {
    return SNAIL_QUERIES * (int64_t)sizeof(snail_asking);
}

/* Of equal scores the higher number is worse. */
SNAIL_INLINE int snail_is_worse(float score, int32_t number, float than, int32_t its_number) {
    return score < than || (score == than && number > its_number);
}

/* Puts an answer in the place of the root of the first `size` answers, and mends the heap. */
static void snail_sift(const snail_best *best, int64_t size, float score, int32_t number) {
    int64_t at = 0;
    for (int64_t child = 1; child < size; child = 2 * at + 1) {
        const int64_t next = child + 1;
        if (next < size && snail_is_worse(best->scores[next], best->numbers[next],
                                          best->scores[child], best->numbers[child]))
            child = next;
        if (!snail_is_worse(best->scores[child], best->numbers[child], score, number)) break;
        best->scores[at] = best->scores[child], best->numbers[at] = best->numbers[child];
        at = child;
    }
    best->scores[at] = score, best->numbers[at] = number;
}

/* Makes the heap a list, best first; -1 fills places without an answer. */
static void snail_best_first(const snail_best *best) {
    for (int64_t last = best->size - 1; last > 0; last--) {
        const float score = best->scores[last];
        const int32_t number = best->numbers[last];
        best->scores[last] = best->scores[0], best->numbers[last] = best->numbers[0];
        snail_sift(best, last, score, number);
    }
    for (int64_t at = 0; at < best->size; at++)
        if (best->scores[at] == -INFINITY) best->numbers[at] = -1;
}

SNAIL_INLINE int snail_has(const int32_t *ascending, int64_t n, int32_t number) {
    const int32_t *end = ascending + n;
    while (n > 0) {
        const int64_t half = n / 2;
        if (ascending[half] < number) ascending += half + 1, n -= half + 1;
        else n = half;
    }
    return ascending < end && *ascending == number;
}

/* Bits of the lanes with at least so much. */
SNAIL_INLINE unsigned snail_reaching(const float *scores, float least) {
    unsigned bits = 0;
#if defined(__AVX512F__)
    bits = _mm512_cmp_ps_mask(_mm512_loadu_ps(scores), _mm512_set1_ps(least), _CMP_GE_OQ);
#elif defined(__AVX__)
    for (int v = 0; v < SNAIL_GROUP; v += 8)
        bits |= (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(scores + v),
                                                           _mm256_set1_ps(least), _CMP_GE_OQ)) << v;
#else
    for (int v = 0; v < SNAIL_GROUP; v++) bits |= (unsigned)(scores[v] >= least) << v;
#endif
    return bits;
}

/* Keeps those of 16 scores, of rows from `row` on, that are among a query's best. */
static void snail_keep_best(const snail_best_job *job, int64_t query, int64_t row, const float *scores,
                            unsigned lanes) {
    const int64_t at = (query - job->first) * job->top;
    const snail_best best = {job->best + at, job->scores + at, job->top};
    const int32_t *without = job->without + job->ptr[query];
    const int64_t withouts = job->ptr[query + 1] - job->ptr[query];
    for (; lanes; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        const int32_t number = job->numbers[row + lane];
        if (snail_is_worse(scores[lane], number, best.scores[0], best.numbers[0])) continue;
        if (scores[lane] == -INFINITY || snail_has(without, withouts, number)) continue;
        snail_sift(&best, best.size, scores[lane], number);
    }
}

/* Forgets queries whose best rows are all better than any row of this length; returns the others. */
static int64_t snail_still_asking(const snail_best_job *job, snail_asking *asking, int64_t n,
                                  float longest) {
    int64_t left = 0;
    for (int64_t i = 0; i < n; i++) {
        const float bound = asking[i].length * longest;
        if (bound < job->scores[(asking[i].query - job->first) * job->top]) continue;
        asking[left++] = asking[i];
    }
    return left;
}

static float snail_length(const float *row, int64_t dim) {
    double sum = 0;
    for (int64_t d = 0; d < dim; d++) sum += (double)row[d] * row[d];
    return (float)sqrt(sum);
}

static void snail_best_of_some(const snail_best_job *job, int64_t first, int64_t last,
                               snail_asking *asking) {
    float scores[SNAIL_SCORE_ROWS * SNAIL_GROUP];
    int64_t n = 0;
    for (int64_t q = first; q < last; q++)
        asking[n++] = (snail_asking){q, snail_length(job->queries + q * job->dim, job->dim)};
    for (int64_t row = 0; row < job->row_num && n; row += SNAIL_GROUP) {
        const float *across = job->across + row * job->dim;
        n = snail_still_asking(job, asking, n, job->longest[row / SNAIL_GROUP]);
        const unsigned lanes = row + SNAIL_GROUP <= job->row_num
                                   ? (1u << SNAIL_GROUP) - 1 : (1u << (job->row_num - row)) - 1;
        for (int64_t i = 0; i < n; i += SNAIL_SCORE_ROWS) {
            const float *queries[SNAIL_SCORE_ROWS];
            const int together = (int)(n - i < SNAIL_SCORE_ROWS ? n - i : SNAIL_SCORE_ROWS);
            for (int k = 0; k < together; k++)
                queries[k] = job->queries + asking[i + k].query * job->dim;
            snail_score(together, queries, across, (int)job->dim, scores);
            for (int k = 0; k < together; k++) {
                const int64_t query = asking[i + k].query;
                const float worst = job->scores[(query - job->first) * job->top];
                const unsigned good = lanes & snail_reaching(scores + k * SNAIL_GROUP, worst);
                if (good) snail_keep_best(job, query, row, scores + k * SNAIL_GROUP, good);
            }
        }
    }
}

/* The `top` best rows of queries first..last-1, best first, of equal scores the lower number first; scores
 * that are -inf or no numbers are never among them. */
static void snail_best_products(const snail_best_job *job, char *scratch) {
    const int64_t size = (job->last - job->first) * job->top;
    for (int64_t at = 0; at < size; at++) job->best[at] = INT32_MAX, job->scores[at] = -INFINITY;
    for (int64_t q = job->first; q < job->last; q += SNAIL_QUERIES)
        snail_best_of_some(job, q, q + SNAIL_QUERIES < job->last ? q + SNAIL_QUERIES : job->last,
                           (snail_asking *)scratch);
    for (int64_t at = 0; at < size; at += job->top) {
        const snail_best best = {job->best + at, job->scores + at, job->top};
        snail_best_first(&best);
    }
}

#endif
