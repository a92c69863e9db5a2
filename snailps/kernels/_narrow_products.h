/* Products of bfloat16 whose sums are float32, of noise rows and the hidden vectors of a group.
 *
 * float32 rows, hidden vectors -> copies of 16 bits, once a group -> scores, gradients, steps: float32
 *
 * `vdpbf16ps` adds two products in the time of one.  Two of three numbers keep their 24 bits: rows, hidden
 * vectors and sums; what is rounded to 8 bits is the two factors of a product, anew in each group.  So no
 * step is lost by rounding, as it is where rows themselves have 16 bits: a step of them is mostly smaller
 * than half of a last bit.
 *
 * A word of a copy has two factors that meet in one instruction: successive numbers of a row, or the same
 * column of two rows.  The build for AVX-512 has these loops, and a processor without the instruction never
 * calls them (`snail_narrow_products`).
 *
 * Must not know what a row stands for.
 */
#ifndef SNAILPS_NARROW_PRODUCTS_H
#define SNAILPS_NARROW_PRODUCTS_H

#include <time.h>

#include "_tiles.h"

enum {
    SNAIL_NARROW_ROWS = 8 /* rows scored together: as many sums hide the latency of an addition */
};

typedef struct {
    uint32_t *hidden;      /* [GROUP, stride / 2] columns 2 j and 2 j + 1 of each hidden vector */
    uint32_t *across;      /* [stride / 2, GROUP] hidden, transposed */
    uint32_t *lane_pairs;  /* [GROUP / 2, stride] each column of the vectors of two lanes */
    uint32_t *rows;        /* [SHARED, stride / 2] as hidden */
    uint32_t *row_pairs;   /* [SHARED / 2, stride] as lane_pairs */
    uint32_t *coef;        /* [SHARED, GROUP / 2] coefficients of a row for two lanes */
    uint32_t *coef_pairs;  /* [SHARED / 2, GROUP] coefficients of two rows for a lane */
} snail_narrow;

/* Words of all parts, of a stride. */
SNAIL_INLINE int64_t snail_narrow_words(int64_t stride) {
    return (2 * SNAIL_GROUP + SNAIL_SHARED) * stride / 2 + (SNAIL_GROUP + SNAIL_SHARED) / 2 * stride +
           SNAIL_SHARED * SNAIL_GROUP;
}

/* Parts of some memory, each of which begins a cache line if the memory does: strides are whole lines, and
 * numbers of rows even. */
SNAIL_INLINE snail_narrow snail_narrow_parts(uint32_t *words, int64_t stride) {
    snail_narrow n;
    n.hidden = words;
    n.across = n.hidden + SNAIL_GROUP * stride / 2;
    n.lane_pairs = n.across + SNAIL_GROUP * stride / 2;
    n.rows = n.lane_pairs + SNAIL_GROUP / 2 * stride;
    n.row_pairs = n.rows + SNAIL_SHARED * stride / 2;
    n.coef = n.row_pairs + SNAIL_SHARED / 2 * stride;
    n.coef_pairs = n.coef + SNAIL_SHARED * SNAIL_GROUP / 2;
    return n;
}

#if defined(__AVX512F__) && \
    (defined(__clang__) ? __clang_major__ >= 9 : defined(__GNUC__) && __GNUC__ >= 10)

#define SNAIL_NARROW __attribute__((target("avx512bf16")))

/* 16 floats, and 16 after them, as 32 numbers of 16 bits. */
SNAIL_NARROW SNAIL_INLINE __m512i snail_narrow_32(const float *p) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p));
}

/* Word j: number j of one vector, and number j of the other. */
SNAIL_NARROW SNAIL_INLINE __m512i snail_narrow_two(const float *low, const float *high) {
    const __m512i places = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
        18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(
        places, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(high), _mm512_loadu_ps(low)));
}

SNAIL_NARROW SNAIL_INLINE __m512 snail_narrow_add(__m512 sum, __m512i a, uint32_t b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)_mm512_set1_epi32((int32_t)b));
}

/* Copies of rows in the order of their columns, and of pairs of rows; `num` is even. */
SNAIL_NARROW SNAIL_INLINE void snail_narrow_copies(const float *const *rows, int num, int64_t stride,
                                                    uint32_t *along, uint32_t *pairs) {
    for (int r = 0; r < num; r += 2) {
        for (int k = r; k < r + 2; k++) {
            uint32_t *to = along + k * stride / 2;
            int64_t d = 0;
            for (; d + 32 <= stride; d += 32) _mm512_storeu_si512(to + d / 2, snail_narrow_32(rows[k] + d));
            if (d < stride)
                _mm256_storeu_si256((__m256i *)(to + d / 2),
                                    (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(rows[k] + d)));
        }
        for (int64_t d = 0; d < stride; d += 16)
            _mm512_storeu_si512(pairs + r / 2 * stride + d, snail_narrow_two(rows[r] + d, rows[r + 1] + d));
    }
}

/* Copies the hidden vectors and the rows of a group; writes the squared lengths of the vectors, or not. */
SNAIL_NARROW static SNAIL_APART void snail_narrow_group(const snail_narrow *n, const float *const *hidden,
                                                        const float *const *rows, int num, int64_t stride,
                                                        float *length2) {
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    snail_narrow_copies(hidden, SNAIL_GROUP, stride, n->hidden, n->lane_pairs);
    snail_narrow_copies(rows, num, stride, n->rows, n->row_pairs);
    snail_across((const float *)n->hidden, SNAIL_GROUP, (int)stride / 2, (float *)n->across);
    for (int64_t d = 0; length2 && d < stride / 2; d++) {
        const __m512bh x = (__m512bh)_mm512_loadu_si512(n->across + d * SNAIL_GROUP);
        sum[d & 1] = _mm512_dpbf16_ps(sum[d & 1], x, x);
    }
    if (length2) _mm512_storeu_ps(length2, sum[0] + sum[1]);
}

/* scores[r][lane] of rows first..first+NARROW_ROWS-1. */
SNAIL_NARROW static SNAIL_APART void snail_narrow_scores(const snail_narrow *n, int first, int dim,
                                                         int64_t stride, float *scores) {
    const uint32_t *rows = n->rows + first * stride / 2;
    __m512 sum[SNAIL_NARROW_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < SNAIL_NARROW_ROWS; r++) sum[r] = _mm512_setzero_ps();
    for (int d = 0; d < (dim + 1) / 2; d++) {
        const __m512i x = _mm512_loadu_si512(n->across + d * SNAIL_GROUP);
#pragma GCC unroll 8
        for (int r = 0; r < SNAIL_NARROW_ROWS; r++)
            sum[r] = snail_narrow_add(sum[r], x, rows[r * stride / 2 + d]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < SNAIL_NARROW_ROWS; r++)
        _mm512_storeu_ps(scores + (first + r) * SNAIL_GROUP, sum[r]);
}

/* Copies the coefficients of all rows, coef[r][lane]. */
SNAIL_NARROW static SNAIL_APART void snail_narrow_coefs(const snail_narrow *n, int num, const float *coef) {
    for (int r = 0; r < num; r += 2) {
        const float *two = coef + r * SNAIL_GROUP;
        _mm512_storeu_si512(n->coef + r * SNAIL_GROUP / 2, snail_narrow_32(two));
        _mm512_storeu_si512(n->coef_pairs + r / 2 * SNAIL_GROUP, snail_narrow_two(two, two + SNAIL_GROUP));
    }
}

/* dst[r] (+)= sum over pairs k of coef[k * by_k + r * by_r] * src[k], 4 rows r: see snail_update_tile. */
SNAIL_NARROW SNAIL_INLINE void snail_narrow_tile(const int vec_num, const int by_k, const int by_r,
                                                  const int add, int num, const uint32_t *src,
                                                  const uint32_t *coef, float *const *dst, int64_t stride,
                                                  int64_t at) {
    __m512 sum[SNAIL_UPDATE_ROWS][SNAIL_UPDATE_VECS];
#pragma GCC unroll 4
    for (int r = 0; r < SNAIL_UPDATE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) sum[r][v] = _mm512_setzero_ps();
    for (int k = 0; k < num; k++) {
        __m512i x[SNAIL_UPDATE_VECS];
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) x[v] = _mm512_loadu_si512(src + k * stride + at + v * 16);
#pragma GCC unroll 4
        for (int r = 0; r < SNAIL_UPDATE_ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < vec_num; v++)
                sum[r][v] = snail_narrow_add(sum[r][v], x[v], coef[k * by_k + r * by_r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < SNAIL_UPDATE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vec_num; v++) {
            float *to = dst[r] + at + v * 16;
            if (add) sum[r][v] += _mm512_loadu_ps(to);
            _mm512_storeu_ps(to, sum[r][v]);
        }
}

SNAIL_NARROW SNAIL_INLINE void snail_narrow_update(const int by_k, const int by_r, const int add, int num,
                                                    const uint32_t *src, const uint32_t *coef,
                                                    float *const *dst, int64_t stride) {
    int64_t at = 0;
    for (; at + 64 <= stride; at += 64)
        snail_narrow_tile(4, by_k, by_r, add, num, src, coef, dst, stride, at);
    switch ((stride - at) / 16) {
    case 3: snail_narrow_tile(3, by_k, by_r, add, num, src, coef, dst, stride, at); break;
    case 2: snail_narrow_tile(2, by_k, by_r, add, num, src, coef, dst, stride, at); break;
    case 1: snail_narrow_tile(1, by_k, by_r, add, num, src, coef, dst, stride, at); break;
    default: break;
    }
}

/* dst[i] = sum over rows of coef[r][first + i] * row r: gradients of 4 lanes. */
SNAIL_NARROW static SNAIL_APART void snail_narrow_lanes(const snail_narrow *n, int first, int num,
                                                        float *const *dst, int64_t stride) {
    snail_narrow_update(SNAIL_GROUP, 1, 0, num / 2, n->row_pairs, n->coef_pairs + first, dst, stride);
}

/* dst[i] += sum over lanes of coef[first + i][lane] * hidden vector: of 4 rows. */
SNAIL_NARROW static SNAIL_APART void snail_narrow_step(const snail_narrow *n, int first, float *const *dst,
                                                       int64_t stride) {
    snail_narrow_update(1, SNAIL_GROUP / 2, 1, SNAIL_GROUP / 2, n->lane_pairs,
                        n->coef + first * SNAIL_GROUP / 2, dst, stride);
}

/* Processor time of the products of some groups, in seconds; of float32 where n is NULL. */
static SNAIL_APART double snail_time_products(const snail_narrow *n, float *const *hidden,
                                              float *const *rows, float *const *gradients, float *across,
                                              float *coef, int64_t stride) {
    const float *const *from = (const float *const *)hidden, *const *noise = (const float *const *)rows;
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (int turn = 0; turn < 8; turn++) {
        if (n) {
            snail_narrow_group(n, from, noise, SNAIL_SHARED, stride, coef);
            for (int r = 0; r < SNAIL_SHARED; r += SNAIL_NARROW_ROWS)
                snail_narrow_scores(n, r, (int)stride, stride, coef);
            snail_narrow_coefs(n, SNAIL_SHARED, coef);
            for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
                snail_narrow_lanes(n, i, SNAIL_SHARED, gradients + i, stride);
            for (int r = 0; r < SNAIL_SHARED; r += SNAIL_TILE)
                snail_narrow_step(n, r, rows + r, stride);
            continue;
        }
        snail_transpose(hidden[0], (int)stride, across);
        snail_lengths2(across, stride, coef);
        snail_score(SNAIL_SHARED, noise, across, (int)stride, coef);
        for (int i = 0; i < SNAIL_GROUP; i += SNAIL_TILE)
            snail_lanes_from_rows(0, SNAIL_SHARED, noise, coef + i, gradients + i, (int)stride);
        for (int r = 0; r < SNAIL_SHARED; r += SNAIL_TILE)
            snail_rows_from_lanes(SNAIL_GROUP, from, coef + r * SNAIL_GROUP, rows + r, (int)stride);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
}

/* 2: these products take at most .9 of the time of float32's here, as measured in a millisecond.  1: they do
 * not: some processors split the instruction.  0: this one has none.  For one thread at a time. */
static int snail_narrow_products(void) {
    enum { STRIDE = 112, WORDS = (3 * SNAIL_GROUP / 2 + SNAIL_SHARED) * STRIDE + SNAIL_SHARED * SNAIL_GROUP };
    static float floats[3 * SNAIL_GROUP * STRIDE + SNAIL_SHARED * STRIDE + SNAIL_SHARED * SNAIL_GROUP]
        __attribute__((aligned(64)));
    static uint32_t words[WORDS] __attribute__((aligned(64)));
    float *hidden[SNAIL_GROUP], *gradients[SNAIL_GROUP], *rows[SNAIL_SHARED];
    const snail_narrow n = snail_narrow_parts(words, STRIDE);
    float *across = floats + (2 * SNAIL_GROUP + SNAIL_SHARED) * STRIDE;
    float *coef = across + SNAIL_GROUP * STRIDE;
    double wide_s = 1, narrow_s = 1;
    if (!__builtin_cpu_supports("avx512bf16")) return 0;
    for (int i = 0; i < SNAIL_GROUP; i++) {
        hidden[i] = floats + i * STRIDE;
        gradients[i] = floats + (SNAIL_GROUP + i) * STRIDE;
    }
    for (int r = 0; r < SNAIL_SHARED; r++) rows[r] = floats + (2 * SNAIL_GROUP + r) * STRIDE;
    for (int turn = 0; turn < 5; turn++) { /* the least of each: what disturbs makes both longer */
        wide_s = fmin(wide_s, snail_time_products(NULL, hidden, rows, gradients, across, coef, STRIDE));
        narrow_s = fmin(narrow_s, snail_time_products(&n, hidden, rows, gradients, across, coef, STRIDE));
    }
    return narrow_s < .9 * wide_s ? 2 : 1;
}

#else /* only the last one is ever called */

static void snail_narrow_group(const snail_narrow *n, const float *const *hidden, const float *const *rows,
                               int num, int64_t stride, float *length2) {
    (void)n, (void)hidden, (void)rows, (void)num, (void)stride, (void)length2;
}
static void snail_narrow_scores(const snail_narrow *n, int first, int dim, int64_t stride, float *scores) {
    (void)n, (void)first, (void)dim, (void)stride, (void)scores;
}
static void snail_narrow_coefs(const snail_narrow *n, int num, const float *coef) {
    (void)n, (void)num, (void)coef;
}
static void snail_narrow_lanes(const snail_narrow *n, int first, int num, float *const *dst,
                               int64_t stride) {
    (void)n, (void)first, (void)num, (void)dst, (void)stride;
}
static void snail_narrow_step(const snail_narrow *n, int first, float *const *dst, int64_t stride) {
    (void)n, (void)first, (void)dst, (void)stride;
}
static int snail_narrow_products(void) { return 0; }

#endif
#endif
