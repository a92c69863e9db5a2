/* Alternating least squares: rows of one side from the rows of the other, and sums of outer products.
 *
 * entries of a name (places of other rows, weights), Gram matrix, penalty -> conjugate gradients -> its row
 * rows -> sum of r r^T
 *
 * A name's row x minimises
 *
 *     sum over its entries of |w| (x.y - [w > 0])^2  +  x^T G x  +  penalty |x|^2
 *
 * where G is the weighted Gram matrix of all other rows: every pair, also one that nobody observed,
 * is drawn towards 0.  The steps begin at zero, not at the last row: x is then a function of the
 * other side, G and its own entries alone, so a range of names that is solved again, by whatever
 * worker, has the same bits.  That is worth the two steps that a warm start would save.
 *
 * Rows are `stride` floats long, a multiple of SNAIL_PAD; columns beyond dim are 0 everywhere, in G,
 * too, and so stay 0.  Threads solve ranges of names; no name depends on another.
 *
 * After S. Rendle, W. Krichene, L. Zhang, Y. Koren, "Revisiting the performance of iALS on item
 * recommendation benchmarks", RecSys 2022; conjugate gradients as in G. Takacs, I. Pilaszy, D. Tikk,
 * "Applications of the conjugate gradient method for implicit feedback collaborative filtering",
 * RecSys 2011.
 */
#ifndef SNAILPS_LEAST_SQUARES_H
#define SNAILPS_LEAST_SQUARES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_tiles.h"

#define SNAIL_GATHERED (1 << 16) /* floats of other rows that are copied together: the second cache */
#define SNAIL_CONVERGED 1e-12f   /* share of the first residual's square below which steps are noise */
#define SNAIL_GRAM_ROWS 64       /* rows that are summed in float before they are added in double */

SNAIL_INLINE float snail_inner(const float *restrict a, const float *restrict b, int64_t n) {
    snail_vec sum = {0};
    float total = 0;
    for (int64_t j = 0; j < n; j += SNAIL_LANES) sum += snail_load(a + j) * snail_load(b + j);
    for (int lane = 0; lane < SNAIL_LANES; lane++) total += sum[lane];
    return total;
}

/* to += a p + b q + c r + d s: four rows a pass, as each load and store of `to` costs as much as one. */
SNAIL_INLINE void snail_add_four(float *restrict to, int64_t n, const float *restrict p, float a,
                                 const float *restrict q, float b, const float *restrict r, float c,
                                 const float *restrict s, float d) {
    for (int64_t j = 0; j < n; j += SNAIL_LANES)
        snail_store(to + j, snail_load(to + j) + a * snail_load(p + j) + b * snail_load(q + j)
                                + c * snail_load(r + j) + d * snail_load(s + j));
}

SNAIL_INLINE void snail_add_one(float *restrict to, int64_t n, const float *restrict p, float a) {
    for (int64_t j = 0; j < n; j += SNAIL_LANES)
        snail_store(to + j, snail_load(to + j) + a * snail_load(p + j));
}

/* The other row of an entry, where it was copied to or where it is. */
SNAIL_INLINE const float *snail_other(const snail_solve_job *job, const float *gathered,
                                      int64_t first, int64_t l) {
    return gathered ? gathered + l * job->stride
                    : job->others + (int64_t)job->places[first + l] * job->stride;
}

/* out[at..] = G[at..] v + penalty v[at..], of `vecs` registers, a constant: sums stay in registers, two
 * of each, as one alone would wait for the step before. */
SNAIL_INLINE void snail_gram_part(const float *restrict gram, int64_t n, int64_t at, const int vecs,
                                  float penalty, const float *restrict v, float *restrict out) {
    snail_vec even[4], odd[4];
    for (int k = 0; k < vecs; k++) {
        even[k] = penalty * snail_load(v + at + k * SNAIL_LANES);
        odd[k] = (snail_vec){0};
    }
    for (int64_t i = 0; i < n; i += 2) { /* n is a multiple of SNAIL_PAD */
        const float *g = gram + i * n + at;
        for (int k = 0; k < vecs; k++) {
            even[k] += v[i] * snail_load(g + k * SNAIL_LANES);
            odd[k] += v[i + 1] * snail_load(g + n + k * SNAIL_LANES);
        }
    }
    for (int k = 0; k < vecs; k++) snail_store(out + at + k * SNAIL_LANES, even[k] + odd[k]);
}

/* out = (sum of |w| y y^T + G + penalty) v */
SNAIL_INLINE void snail_solve_product(const snail_solve_job *job, const float *gathered,
                                      int64_t first, int64_t count, float penalty,
                                      const float *restrict v, float *restrict out) {
    const int64_t n = job->stride;
    int64_t at = 0;
    for (; at + 4 * SNAIL_LANES <= n; at += 4 * SNAIL_LANES)
        snail_gram_part(job->gram, n, at, 4, penalty, v, out);
    for (; at + 2 * SNAIL_LANES <= n; at += 2 * SNAIL_LANES)
        snail_gram_part(job->gram, n, at, 2, penalty, v, out);
    for (; at < n; at += SNAIL_LANES) snail_gram_part(job->gram, n, at, 1, penalty, v, out);
    int64_t l = 0;
    for (; l + 4 <= count; l += 4) {
        const float *rows[4];
        float by[4];
        for (int k = 0; k < 4; k++) {
            rows[k] = snail_other(job, gathered, first, l + k);
            by[k] = snail_inner(rows[k], v, n);
            if (job->weights) by[k] *= fabsf(job->weights[first + l + k]);
        }
        snail_add_four(out, n, rows[0], by[0], rows[1], by[1], rows[2], by[2], rows[3], by[3]);
    }
    for (; l < count; l++) {
        const float *row = snail_other(job, gathered, first, l);
        const float by = snail_inner(row, v, n);
        snail_add_one(out, n, row, job->weights ? by * fabsf(job->weights[first + l]) : by);
    }
}

static int64_t snail_solve_scratch(const snail_solve_job *job) {
    return (3 * job->stride + SNAIL_GATHERED) * (int64_t)sizeof(float);
}

/* Solves names first..last-1, and adds to `loss` the minimum of the sum above for each of them.  Steps that
 * begin at zero end where x^T A x = x^T b, so the minimum is the weight of wanted entries less x^T b. */
static void snail_solve_rows(const snail_solve_job *job, char *scratch, double *loss) {
    const int64_t n = job->stride;
    float *r = (float *)scratch, *p = r + n, *ap = p + n, *room = ap + n;
    for (int64_t name = job->first; name < job->last; name++) {
        const int64_t first = job->ptr[name], count = job->ptr[name + 1] - first;
        const float penalty = job->penalties[name];
        float *x = job->rows + name * n;
        const float *gathered = NULL;
        double wanted = 0, reached = 0;
        if (count * n <= SNAIL_GATHERED) { /* each step reads them all */
            for (int64_t l = 0; l < count; l++)
                memcpy(room + l * n, job->others + (int64_t)job->places[first + l] * n,
                       (size_t)n * sizeof(float));
            gathered = room;
        }
        memset(x, 0, (size_t)n * sizeof(float));
        memset(r, 0, (size_t)n * sizeof(float));
        for (int64_t l = 0; l < count; l++) {
            const float w = job->weights ? job->weights[first + l] : 1;
            if (w <= 0) continue; /* wanted to be 0 */
            wanted += w;
            snail_add_one(r, n, snail_other(job, gathered, first, l), w);
        }
        memcpy(p, r, (size_t)n * sizeof(float));
        float old = snail_inner(r, r, n);
        const float enough = SNAIL_CONVERGED * old;
        for (int step = 0; step < job->steps && old > enough; step++) {
            snail_solve_product(job, gathered, first, count, penalty, p, ap);
            const float curvature = snail_inner(p, ap, n);
            if (!(curvature > 0)) break; /* rounding, or rows that are no numbers */
            const float by = old / curvature;
            reached += (double)by * old;
            for (int64_t j = 0; j < n; j++) x[j] += by * p[j], r[j] -= by * ap[j];
            const float now = snail_inner(r, r, n), keep = now / old;
            for (int64_t j = 0; j < n; j++) p[j] = r[j] + keep * p[j];
            old = now;
        }
        *loss += wanted - reached;
    }
}

/* Adds r r^T of all rows to rows first..last-1 of `out`, [stride, stride]; `room`: as many floats.  Each
 * number of `out` is one sum in the order of the rows, however many threads share its rows. */
static void snail_add_gram(const float *rows, int64_t count, int64_t stride, int64_t first,
                           int64_t last, float *restrict room, double *restrict out) {
    const int64_t n = stride, size = (last - first) * n;
    for (int64_t at = 0; at < count; at += SNAIL_GRAM_ROWS) {
        const int64_t stop = at + SNAIL_GRAM_ROWS < count ? at + SNAIL_GRAM_ROWS : count;
        int64_t k = at;
        memset(room, 0, (size_t)size * sizeof(float));
        for (; k + 4 <= stop; k += 4) {
            const float *p = rows + k * n;
            for (int64_t i = first; i < last; i++)
                snail_add_four(room + (i - first) * n, n, p, p[i], p + n, p[n + i], p + 2 * n,
                               p[2 * n + i], p + 3 * n, p[3 * n + i]);
        }
        for (; k < stop; k++)
            for (int64_t i = first; i < last; i++)
                snail_add_one(room + (i - first) * n, n, rows + k * n, rows[k * n + i]);
        for (int64_t j = 0; j < size; j++) out[first * n + j] += room[j];
    }
}

#endif
