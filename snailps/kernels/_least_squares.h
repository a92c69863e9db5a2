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
#define SNAIL_SOLVED_TOGETHER 4  /* names that step together */
#if SNAIL_LANES == 16
#define SNAIL_GRAM_VECS 4 /* of each name: 16 sums of 32 registers */
#else
#define SNAIL_GRAM_VECS 2 /* 8 of 16 */
#endif
#define SNAIL_GRAM_ROWS 64       /* rows that are summed in float before they are added in double */

/* The lanes of a register, added to four. */
SNAIL_INLINE snail_quad snail_to_quad(snail_vec v) {
    const union {
        snail_vec whole;
        snail_quad parts[SNAIL_LANES / 4];
    } lanes = {v};
    snail_quad sum = lanes.parts[0];
    for (int k = 1; k < SNAIL_LANES / 4; k++) sum += lanes.parts[k];
    return sum;
}

SNAIL_INLINE float snail_lane_sum(snail_vec v) {
    const snail_quad sum = snail_to_quad(v);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

SNAIL_INLINE float snail_inner(const float *restrict a, const float *restrict b, int64_t n) {
    snail_vec sum = {0};
    for (int64_t j = 0; j < n; j += SNAIL_LANES) sum += snail_load(a + j) * snail_load(b + j);
    return snail_lane_sum(sum);
}

/* Inner products of four rows with v: lanes of four registers are added together. */
SNAIL_INLINE snail_quad snail_inner_four(const float *const rows[4], const float *restrict v, int64_t n) {
    snail_vec sums[4] = {{0}, {0}, {0}, {0}};
    for (int64_t j = 0; j < n; j += SNAIL_LANES) {
        const snail_vec x = snail_load(v + j);
        for (int k = 0; k < 4; k++) sums[k] += x * snail_load(rows[k] + j);
    }
    const snail_quad a = snail_to_quad(sums[0]), b = snail_to_quad(sums[1]);
    const snail_quad c = snail_to_quad(sums[2]), d = snail_to_quad(sums[3]);
    const snail_quad ab = SNAIL_SHUFFLE(a, b, 0, 1, 4, 5) + SNAIL_SHUFFLE(a, b, 2, 3, 6, 7);
    const snail_quad cd = SNAIL_SHUFFLE(c, d, 0, 1, 4, 5) + SNAIL_SHUFFLE(c, d, 2, 3, 6, 7);
    return SNAIL_SHUFFLE(ab, cd, 0, 2, 4, 6) + SNAIL_SHUFFLE(ab, cd, 1, 3, 5, 7);
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

/* out[k][at..] = G[at..] v[k] + penalties[k] v[k][at..] of `SNAIL_SOLVED_TOGETHER` names k, `vecs` registers
 * each, a constant: the sums stay in registers, and a load of G serves all names. */
SNAIL_INLINE void snail_gram_part(const float *restrict gram, int64_t n, int64_t at, const int vecs,
                                  const float *restrict penalties, const float *restrict v,
                                  float *restrict out) {
    snail_vec sums[SNAIL_SOLVED_TOGETHER][SNAIL_GRAM_VECS];
    for (int k = 0; k < SNAIL_SOLVED_TOGETHER; k++)
        for (int j = 0; j < vecs; j++)
            sums[k][j] = penalties[k] * snail_load(v + k * n + at + j * SNAIL_LANES);
    for (int64_t i = 0; i < n; i++) {
        snail_vec g[SNAIL_GRAM_VECS];
        for (int j = 0; j < vecs; j++) g[j] = snail_load(gram + i * n + at + j * SNAIL_LANES);
        for (int k = 0; k < SNAIL_SOLVED_TOGETHER; k++)
            for (int j = 0; j < vecs; j++) sums[k][j] += v[k * n + i] * g[j];
    }
    for (int k = 0; k < SNAIL_SOLVED_TOGETHER; k++)
        for (int j = 0; j < vecs; j++) snail_store(out + k * n + at + j * SNAIL_LANES, sums[k][j]);
}

/* out[k] = (G + penalties[k]) v[k] of each name k */
static void snail_gram_products(const float *gram, int64_t n, const float *penalties, const float *v,
                                float *out) {
    int64_t at = 0;
    for (; at + SNAIL_GRAM_VECS * SNAIL_LANES <= n; at += SNAIL_GRAM_VECS * SNAIL_LANES)
        snail_gram_part(gram, n, at, SNAIL_GRAM_VECS, penalties, v, out);
    for (; at < n; at += SNAIL_LANES) snail_gram_part(gram, n, at, 1, penalties, v, out);
}

/* A name that is being solved. */
typedef struct {
    int64_t first, count; /* entries */
    const float *gathered;
    float *x, *r, *p, *ap; /* its row; residual, direction, matrix times direction */
    double wanted, reached;
    float old, enough; /* square of the residual; where steps end, as they would be noise */
    int steps;         /* that may still come */
} snail_solve;

/* out += sum of |w| y y^T v over a name's entries */
SNAIL_INLINE void snail_add_entries(const snail_solve_job *job, const snail_solve *name,
                                    const float *restrict v, float *restrict out) {
    for (int64_t l = 0; l < name->count; l += 4) {
        const float *rows[4];
        for (int k = 0; k < 4; k++) /* behind the last entry: that one, times 0 */
            rows[k] = snail_other(job, name->gathered, name->first,
                                  l + k < name->count ? l + k : name->count - 1);
        snail_quad by = snail_inner_four(rows, v, job->stride);
        for (int k = 0; k < 4; k++)
            if (l + k >= name->count)
                by[k] = 0;
            else if (job->weights)
                by[k] *= fabsf(job->weights[name->first + l + k]);
        snail_add_four(out, job->stride, rows[0], by[0], rows[1], by[1], rows[2], by[2], rows[3], by[3]);
    }
}

static int64_t snail_solve_scratch(const snail_solve_job *job) {
    return (3 * SNAIL_SOLVED_TOGETHER * job->stride + SNAIL_GATHERED) * (int64_t)sizeof(float);
}

/* Begins at x = 0, where the residual is the sum of the rows of wanted entries. */
static void snail_solve_begin(const snail_solve_job *job, snail_solve *name, float *restrict room) {
    const int64_t n = job->stride, first = name->first;
    name->gathered = NULL;
    name->wanted = name->reached = 0;
    if (name->count * n <= SNAIL_GATHERED / SNAIL_SOLVED_TOGETHER) { /* each step reads them all */
        for (int64_t l = 0; l < name->count; l++)
            memcpy(room + l * n, job->others + (int64_t)job->places[first + l] * n,
                   (size_t)n * sizeof(float));
        name->gathered = room;
    }
    memset(name->x, 0, (size_t)n * sizeof(float));
    memset(name->r, 0, (size_t)n * sizeof(float));
    for (int64_t l = 0; l < name->count; l++) {
        const float w = job->weights ? job->weights[first + l] : 1;
        if (w <= 0) continue; /* wanted to be 0 */
        name->wanted += w;
        snail_add_one(name->r, n, snail_other(job, name->gathered, first, l), w);
    }
    memcpy(name->p, name->r, (size_t)n * sizeof(float));
    name->old = snail_inner(name->r, name->r, n);
    name->enough = SNAIL_CONVERGED * name->old;
    name->steps = name->old > name->enough ? job->steps : 0;
}

/* A step, whose `ap` has G and the penalty times p. */
SNAIL_INLINE void snail_solve_step(const snail_solve_job *job, snail_solve *name) {
    const int64_t n = job->stride;
    float *restrict x = name->x, *restrict r = name->r, *restrict p = name->p, *restrict ap = name->ap;
    snail_add_entries(job, name, p, ap);
    const float curvature = snail_inner(p, ap, n);
    if (!(curvature > 0)) { /* rounding, or rows that are no numbers */
        name->steps = 0;
        return;
    }
    const float by = name->old / curvature;
    name->reached += (double)by * name->old;
    snail_vec squares = {0};
    for (int64_t j = 0; j < n; j += SNAIL_LANES) {
        const snail_vec rest = snail_load(r + j) - by * snail_load(ap + j);
        snail_store(x + j, snail_load(x + j) + by * snail_load(p + j));
        snail_store(r + j, rest);
        squares += rest * rest;
    }
    const float now = snail_lane_sum(squares), keep = now / name->old;
    for (int64_t j = 0; j < n; j += SNAIL_LANES)
        snail_store(p + j, snail_load(r + j) + keep * snail_load(p + j));
    name->old = now;
    name->steps = now > name->enough ? name->steps - 1 : 0;
}

/* Solves names first..last-1, and adds to `loss` the minimum of the sum above for each of them.  Steps that
 * begin at zero end where x^T A x = x^T b, so the minimum is the weight of wanted entries less x^T b.
 * Names step together, so that G is read once for all; none reads what another has. */
static void snail_solve_rows(const snail_solve_job *job, char *scratch, double *loss) {
    const int64_t n = job->stride;
    float *vectors = (float *)scratch, *room = vectors + 3 * SNAIL_SOLVED_TOGETHER * n;
    float *r = vectors, *p = r + SNAIL_SOLVED_TOGETHER * n, *ap = p + SNAIL_SOLVED_TOGETHER * n;
    memset(p, 0, (size_t)(SNAIL_SOLVED_TOGETHER * n) * sizeof(float));
    for (int64_t name = job->first; name < job->last; name += SNAIL_SOLVED_TOGETHER) {
        snail_solve names[SNAIL_SOLVED_TOGETHER];
        float penalties[SNAIL_SOLVED_TOGETHER] = {0};
        const int64_t behind = job->last - name;
        const int count = behind < SNAIL_SOLVED_TOGETHER ? (int)behind : SNAIL_SOLVED_TOGETHER;
        int running = 0;
        for (int k = 0; k < count; k++) {
            const int64_t first = job->ptr[name + k];
            penalties[k] = job->penalties[name + k];
            names[k].first = first, names[k].count = job->ptr[name + k + 1] - first;
            names[k].x = job->rows + (name + k) * n;
            names[k].r = r + k * n, names[k].p = p + k * n, names[k].ap = ap + k * n;
            snail_solve_begin(job, names + k, room + k * (SNAIL_GATHERED / SNAIL_SOLVED_TOGETHER));
            running |= names[k].steps;
        }
        while (running) {
            snail_gram_products(job->gram, n, penalties, p, ap);
            running = 0;
            for (int k = 0; k < count; k++) {
                if (names[k].steps) snail_solve_step(job, names + k);
                running |= names[k].steps;
            }
        }
        for (int k = 0; k < count; k++) *loss += names[k].wanted - names[k].reached;
    }
}

/* Adds r r^T of all rows to `out`, [stride, stride], which is symmetric: to rows first..last-1 from the
 * diagonal on, and to the columns that mirror these.  `room`: as many floats as these rows.  Each number of
 * `out` is one sum in the order of the rows, however many threads share its rows. */
static void snail_add_gram(const float *rows, int64_t count, int64_t stride, int64_t first,
                           int64_t last, float *restrict room, double *restrict out) {
    const int64_t n = stride;
    for (int64_t at = 0; at < count; at += SNAIL_GRAM_ROWS) {
        const int64_t stop = at + SNAIL_GRAM_ROWS < count ? at + SNAIL_GRAM_ROWS : count;
        int64_t k = at;
        memset(room, 0, (size_t)((last - first) * n) * sizeof(float));
        for (; k + 4 <= stop; k += 4)
            for (int64_t i = first; i < last; i++) {
                const int64_t j = i / SNAIL_LANES * SNAIL_LANES; /* of the register with the diagonal */
                const float *p = rows + k * n, *q = p + n, *r = q + n, *s = r + n;
                snail_add_four(room + (i - first) * n + j, n - j, p + j, p[i], q + j, q[i], r + j, r[i],
                               s + j, s[i]);
            }
        for (; k < stop; k++)
            for (int64_t i = first; i < last; i++) {
                const int64_t j = i / SNAIL_LANES * SNAIL_LANES;
                snail_add_one(room + (i - first) * n + j, n - j, rows + k * n + j, rows[k * n + i]);
            }
        for (int64_t i = first; i < last; i++)
            for (int64_t j = i; j < n; j++) out[i * n + j] += room[(i - first) * n + j];
    }
    for (int64_t i = first; i < last; i++)
        for (int64_t j = i + 1; j < n; j++) out[j * n + i] = out[i * n + j];
}

#endif
