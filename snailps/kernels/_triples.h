/* Embeddings of graphs: triples (head, relation, tail), or pairs without a relation.
 *
 * a group of triples, negatives that it shares -> queries -> scores -> losses, gradients
 *     -> a step of each negative, then of each triple's rows
 *
 * Each model is a query and a metric: the query is made of the relation and of the end that stays
 * (the anchor), and every candidate for the other end is scored by one pass over its row.
 *
 *     TransE    h + r, t - r             -|q - e|, L1 or L2
 *     DistMult  h r, t r                 <q, e>
 *     ComplEx   h r, t conj(r)           <q, e>, complex numbers as pairs of real ones
 *     RotatE    h e^(i r), t e^(-i r)    -sum of |q_j - e_j| over complex numbers
 *     pairs     h                        <q, e>
 *
 * Rows are [weights, AdaGrad's sums of squares], each `stride` floats, of which `dim` are in use and
 * the rest is 0 and stays 0.  A complex row has dim / 2 real parts, then as many imaginary ones; a
 * relation of RotatE has dim / 2 phases, whose unit is `turn` radians.
 *
 * Threads write rows without locks (Hogwild): entities are many, so two threads rarely step the same row,
 * and a lost step is one of many.  Within a group negatives are stepped first, each by the sum of its
 * gradients; then the triples, one after the other, with the other end before the anchor.
 *
 * References: A. Bordes et al., "Translating embeddings for modeling multi-relational data", NIPS 2013.
 * B. Yang et al., ICLR 2015 (DistMult).  T. Trouillon et al., ICML 2016 (ComplEx).  Z. Sun et al.,
 * "RotatE", ICLR 2019 (self-adversarial negatives).  S. Rendle et al., UAI 2009 (BPR).
 */
#ifndef SNAILPS_TRIPLES_H
#define SNAILPS_TRIPLES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_jobs.h"
#include "_tiles.h"
#include "_word_vectors.h"

#define SNAIL_TINY 1e-12f /* keeps the root of a distance of 0 away from 0 */

/* A call: its job and its scratch. */
typedef struct {
    const snail_triples_job *job;
    float *queries;   /* [shared, stride] */
    float *pulls;     /* [shared, stride]: gradients of the queries */
    float *turns;     /* [shared, stride]: relations as complex numbers; RotatE's only */
    float *gradient;  /* [stride] */
    float *scores;    /* [shared, negatives + 1]: the last one is that of the triple itself */
    float *slopes;    /* the same: derivatives of the loss */
    int32_t *drawn;   /* [negatives] */
} snail_triples;

/* ---- a pair of a query and a candidate -------------------------------------------------------- */

/* Its score; `n` is `stride`, or for SNAIL_BY_MODULUS the number of complex numbers. */
SNAIL_INLINE float snail_pair_score(const int metric, int64_t n, const float *restrict q,
                                    const float *restrict e) {
    float total = 0;
    if (metric == SNAIL_BY_PRODUCT) {
        for (int64_t j = 0; j < n; j++) total += q[j] * e[j];
        return total;
    }
    if (metric == SNAIL_BY_L1) {
        for (int64_t j = 0; j < n; j++) total += fabsf(q[j] - e[j]);
        return -total;
    }
    if (metric == SNAIL_BY_L2) {
        for (int64_t j = 0; j < n; j++) total += (q[j] - e[j]) * (q[j] - e[j]);
        return -sqrtf(total + SNAIL_TINY);
    }
    for (int64_t j = 0; j < n; j++) {
        const float re = q[j] - e[j], im = q[n + j] - e[n + j];
        total += sqrtf(re * re + im * im + SNAIL_TINY);
    }
    return -total;
}

/* Adds slope x its derivatives to both sides' gradients. */
SNAIL_INLINE void snail_pair_pull(const int metric, int64_t n, float score, float slope,
                                  const float *restrict q, const float *restrict e,
                                  float *restrict of_q, float *restrict of_e) {
    if (metric == SNAIL_BY_PRODUCT) {
        for (int64_t j = 0; j < n; j++) {
            of_q[j] += slope * e[j];
            of_e[j] += slope * q[j];
        }
    } else if (metric == SNAIL_BY_L1) {
        for (int64_t j = 0; j < n; j++) {
            const float d = q[j] - e[j];
            const float g = d > 0 ? slope : d < 0 ? -slope : 0;
            of_q[j] -= g;
            of_e[j] += g;
        }
    } else if (metric == SNAIL_BY_L2) {
        const float w = -slope / score;
        for (int64_t j = 0; j < n; j++) {
            const float g = w * (q[j] - e[j]);
            of_q[j] -= g;
            of_e[j] += g;
        }
    } else {
        for (int64_t j = 0; j < n; j++) {
            const float re = q[j] - e[j], im = q[n + j] - e[n + j];
            const float w = slope / sqrtf(re * re + im * im + SNAIL_TINY);
            of_q[j] -= w * re;
            of_e[j] += w * re;
            of_q[n + j] -= w * im;
            of_e[n + j] += w * im;
        }
    }
}

/* ---- queries ---------------------------------------------------------------------------------- */

/* sin(2 pi u) for |u| <= 1/2. */
SNAIL_INLINE float snail_sin_of_turns(float u) {
    const float folded = u > 0.25f ? 0.5f - u : u < -0.25f ? -0.5f - u : u;
    return snail_sin_turns(folded);
}

/* out = e^(i unit phases): n real parts, then n imaginary ones. */
SNAIL_INLINE void snail_turn_of(int64_t n, const float *restrict phases, float unit,
                                float *restrict out) {
    for (int64_t j = 0; j < n; j++) {
        float u = phases[j] * unit * 0.159154943f;
        u -= (float)(int32_t)(u + (u < 0 ? -0.5f : 0.5f));
        const float v = u + 0.25f;
        out[j] = snail_sin_of_turns(v > 0.5f ? v - 1 : v);
        out[n + j] = snail_sin_of_turns(u);
    }
}

/* out = a b, or a conj(b); complex. */
SNAIL_INLINE void snail_complex_product(int64_t n, const float *restrict a, const float *restrict b,
                                        float sign, float *restrict out) {
    for (int64_t j = 0; j < n; j++) {
        const float b_im = sign * b[n + j];
        const float re = a[j] * b[j] - a[n + j] * b_im;
        const float im = a[j] * b_im + a[n + j] * b[j];
        out[j] = re;
        out[n + j] = im;
    }
}

/* The query of an anchor and a relation; `tail`: whether tails are the candidates. */
SNAIL_INLINE void snail_query(const snail_triples *m, int tail, const float *anchor,
                              const float *relation, float *turn, float *q) {
    const int64_t stride = m->job->stride, half = m->job->dim / 2;
    switch (m->job->relation) {
    case SNAIL_TRANSLATES: {
        const float sign = tail ? 1 : -1;
        for (int64_t j = 0; j < stride; j++) q[j] = anchor[j] + sign * relation[j];
        break;
    }
    case SNAIL_SCALES:
        for (int64_t j = 0; j < stride; j++) q[j] = anchor[j] * relation[j];
        break;
    case SNAIL_ROTATES:
        snail_complex_product(half, anchor, relation, tail ? 1 : -1, q);
        break;
    case SNAIL_TURNS:
        snail_turn_of(half, relation, m->job->turn, turn);
        snail_complex_product(half, anchor, turn, tail ? 1 : -1, q);
        break;
    default: memcpy(q, anchor, (size_t)stride * sizeof(float));
    }
}

/* Gradients of a relation, in `out`, and of the anchor, in place of the query's (`pull`). */
SNAIL_INLINE void snail_query_back(const snail_triples *m, int tail, const float *anchor,
                                   const float *relation, const float *turn, float *restrict pull,
                                   float *restrict out) {
    const int64_t stride = m->job->stride, half = m->job->dim / 2;
    const float sign = tail ? 1 : -1;
    switch (m->job->relation) {
    case SNAIL_TRANSLATES:
        for (int64_t j = 0; j < stride; j++) out[j] = sign * pull[j];
        break;
    case SNAIL_SCALES:
        for (int64_t j = 0; j < stride; j++) {
            out[j] = pull[j] * anchor[j];
            pull[j] *= relation[j];
        }
        break;
    case SNAIL_ROTATES:
    case SNAIL_TURNS: {
        const float *r = m->job->relation == SNAIL_TURNS ? turn : relation;
        for (int64_t j = 0; j < half; j++) {
            const float g_re = pull[j], g_im = pull[half + j];
            const float a_re = anchor[j], a_im = anchor[half + j];
            const float r_re = r[j], r_im = sign * r[half + j];
            /* q = a b with b = r or conj(r): of a it is g conj(b), of b g conj(a) */
            pull[j] = g_re * r_re + g_im * r_im;
            pull[half + j] = g_im * r_re - g_re * r_im;
            const float of_re = g_re * a_re + g_im * a_im;
            const float of_im = sign * (g_im * a_re - g_re * a_im);
            if (m->job->relation == SNAIL_TURNS)
                out[j] = m->job->turn * (of_im * r[j] - of_re * r[half + j]);
            else {
                out[j] = of_re;
                out[half + j] = of_im;
            }
        }
        break;
    }
    default: break;
    }
}

/* ---- losses ----------------------------------------------------------------------------------- */

SNAIL_INLINE float snail_softplus(float x) { return -snail_log(snail_sigmoid(-x)); }

/* out = softmax of factor x scores; the sum of exponentials before it, and the maximum in `most`. */
SNAIL_INLINE float snail_softmax_of(int64_t n, const float *restrict scores, float factor,
                                    float *restrict out, float *most) {
    float high = factor * scores[0], sum = 0;
    for (int64_t k = 1; k < n; k++) high = factor * scores[k] > high ? factor * scores[k] : high;
    for (int64_t k = 0; k < n; k++) {
        const float x = factor * scores[k] - high;
        out[k] = snail_exp(x < -80 ? -80 : x);
        sum += out[k];
    }
    const float inverse = 1 / sum;
    for (int64_t k = 0; k < n; k++) out[k] *= inverse;
    *most = high;
    return sum;
}

/* Loss of a triple by its scores, its own being the last; derivatives in `slopes`. */
static float snail_triple_loss(const snail_triples_job *job, const float *restrict scores,
                               float *restrict slopes) {
    const int64_t n = job->negatives;
    const float own = scores[n], margin = job->margin, each = 1 / (float)n;
    float loss = 0, most, total = 0;
    switch (job->loss) {
    case SNAIL_SELF_ADVERSARIAL:
        if (job->temperature > 0) snail_softmax_of(n, scores, job->temperature, slopes, &most);
        else
            for (int64_t k = 0; k < n; k++) slopes[k] = each;
        for (int64_t k = 0; k < n; k++) {
            const float q = snail_sigmoid(-scores[k] - margin);
            loss -= slopes[k] * snail_log(q);
            slopes[k] *= 1 - q;
        }
        slopes[n] = snail_sigmoid(own + margin) - 1;
        return loss + snail_softplus(-own - margin);
    case SNAIL_MARGIN:
        for (int64_t k = 0; k < n; k++) {
            const float x = margin + scores[k] - own;
            slopes[k] = x > 0 ? each : 0;
            loss += x > 0 ? x * each : 0;
            total += slopes[k];
        }
        slopes[n] = -total;
        return loss;
    case SNAIL_CROSS_ENTROPY: {
        const float sum = snail_softmax_of(n + 1, scores, 1, slopes, &most);
        slopes[n] -= 1;
        return most + snail_log(sum) - own;
    }
    default:
        for (int64_t k = 0; k < n; k++) {
            const float q = snail_sigmoid(own - scores[k]);
            slopes[k] = each * (1 - q);
            loss -= each * snail_log(q);
            total += slopes[k];
        }
        slopes[n] = -total;
        return loss;
    }
}

/* ---- steps ------------------------------------------------------------------------------------ */

SNAIL_INLINE void snail_weights_step(const snail_triples_job *job, float *row, const float *gradient,
                                 float rate, float l2) {
    const int64_t stride = job->stride;
    if (job->method == SNAIL_ADAGRAD)
        for (int64_t at = 0; at < stride; at += SNAIL_LANES) {
            const snail_vec w = snail_load(row + at);
            const snail_vec g = snail_load(gradient + at) + l2 * w;
            snail_store(row + at,
                        snail_adagrad_step(w, row + stride + at, -g, rate, job->eps));
        }
    else
        for (int64_t at = 0; at < stride; at += SNAIL_LANES) {
            const snail_vec w = snail_load(row + at);
            snail_store(row + at, w - rate * (snail_load(gradient + at) + l2 * w));
        }
}

/* A step of an entity's row; with `normalize` its weights are then scaled to length 1. */
SNAIL_INLINE void snail_entity_step(const snail_triples_job *job, float *row, const float *gradient,
                                    float rate, float l2) {
    snail_weights_step(job, row, gradient, rate, l2);
    if (!job->normalize) return;
    float squares = 0;
    for (int64_t j = 0; j < job->stride; j++) squares += row[j] * row[j];
    if (!(squares > 1e-12f)) return; /* has no direction; or has diverged, which the loss shows */
    const float scale = 1 / sqrtf(squares);
    for (int64_t j = 0; j < job->stride; j++) row[j] *= scale;
}

SNAIL_INLINE float *snail_triple_row(const snail_triples_job *job, int32_t place) {
    return job->rows + place * job->width;
}

/* Trains a group; the sum of its losses. */
SNAIL_INLINE double snail_train_group_by(const int metric, const snail_triples *m, int64_t first,
                                      int64_t count, int tail, float rate) {
    const snail_triples_job *job = m->job;
    const int64_t stride = job->stride, n = job->negatives;
    const int64_t length = metric == SNAIL_BY_MODULUS ? job->dim / 2 : stride;
    const int32_t *anchors = tail ? job->heads : job->tails;
    const int32_t *others = tail ? job->tails : job->heads;
    double loss = 0;
    for (int64_t i = 0; i < count; i++) {
        const float *relation =
            job->relations ? snail_triple_row(job, job->relations[first + i]) : NULL;
        float *q = m->queries + i * stride;
        snail_query(m, tail, snail_triple_row(job, anchors[first + i]), relation,
                    m->turns + i * stride, q);
        m->scores[i * (n + 1) + n] =
            snail_pair_score(metric, length, q, snail_triple_row(job, others[first + i]));
    }
    for (int64_t k = 0; k < n; k++) {
        const float *row = snail_triple_row(job, m->drawn[k]);
        for (int64_t i = 0; i < count; i++)
            m->scores[i * (n + 1) + k] =
                snail_pair_score(metric, length, m->queries + i * stride, row);
    }
    for (int64_t i = 0; i < count; i++)
        loss += snail_triple_loss(job, m->scores + i * (n + 1), m->slopes + i * (n + 1));
    memset(m->pulls, 0, (size_t)(count * stride) * sizeof(float));
    for (int64_t k = 0; k < n; k++) {
        float *row = snail_triple_row(job, m->drawn[k]);
        memset(m->gradient, 0, (size_t)stride * sizeof(float));
        for (int64_t i = 0; i < count; i++)
            snail_pair_pull(metric, length, m->scores[i * (n + 1) + k], m->slopes[i * (n + 1) + k],
                            m->queries + i * stride, row, m->pulls + i * stride, m->gradient);
        snail_entity_step(job, row, m->gradient, rate, 0);
    }
    for (int64_t i = 0; i < count; i++) {
        float *other = snail_triple_row(job, others[first + i]);
        float *anchor = snail_triple_row(job, anchors[first + i]);
        float *pull = m->pulls + i * stride;
        memset(m->gradient, 0, (size_t)stride * sizeof(float));
        snail_pair_pull(metric, length, m->scores[i * (n + 1) + n], m->slopes[i * (n + 1) + n],
                        m->queries + i * stride, other, pull, m->gradient);
        snail_entity_step(job, other, m->gradient, rate, job->l2);
        if (job->relations) {
            float *relation = snail_triple_row(job, job->relations[first + i]);
            memset(m->gradient, 0, (size_t)stride * sizeof(float));
            snail_query_back(m, tail, anchor, relation, m->turns + i * stride, pull, m->gradient);
            snail_weights_step(job, relation, m->gradient, rate,
                           job->relation == SNAIL_TURNS ? 0 : job->l2);
        }
        snail_entity_step(job, anchor, pull, rate, job->l2);
    }
    return loss;
}

static SNAIL_APART double snail_train_triple_group(const snail_triples *m, int64_t first,
                                               int64_t count, int tail, float rate) {
    switch (m->job->metric) {
    case SNAIL_BY_L1: return snail_train_group_by(SNAIL_BY_L1, m, first, count, tail, rate);
    case SNAIL_BY_L2: return snail_train_group_by(SNAIL_BY_L2, m, first, count, tail, rate);
    case SNAIL_BY_MODULUS: return snail_train_group_by(SNAIL_BY_MODULUS, m, first, count, tail, rate);
    default: return snail_train_group_by(SNAIL_BY_PRODUCT, m, first, count, tail, rate);
    }
}

/* ---- a call ----------------------------------------------------------------------------------- */

static int64_t snail_triples_scratch(const snail_triples_job *job) {
    const int64_t floats = (3 * job->shared + 1) * job->stride +
                           2 * job->shared * (job->negatives + 1) + 2 * SNAIL_PAD;
    return floats * (int64_t)sizeof(float) + job->negatives * (int64_t)sizeof(int32_t);
}

/* Trains triples first..last-1; adds up their losses before each step. */
static void snail_train_triples(const snail_triples_job *job, char *scratch, double *loss) {
    snail_triples m = {.job = job, .queries = (float *)scratch};
    const int64_t stride = job->stride, n = job->negatives;
    m.pulls = m.queries + job->shared * stride;
    m.turns = m.pulls + job->shared * stride;
    m.gradient = m.turns + job->shared * stride;
    m.scores = m.gradient + stride;
    m.slopes = m.scores + job->shared * (n + 1);
    m.drawn = (int32_t *)(m.slopes + job->shared * (n + 1));
    const float slope = (job->rate_stop - job->rate_start) / (float)(job->last - job->first);
    uint64_t k = 0;
    for (int64_t first = job->first; first < job->last; first += job->shared) {
        const int64_t left = job->last - first;
        const int64_t count = left < job->shared ? left : job->shared;
        const int tail = job->side ? job->side > 0 : (int)(snail_draw(job->stream, k++) >> 63);
        for (int64_t i = 0; i < n; i++) {
            m.drawn[i] = job->noise[snail_below(snail_draw(job->stream, k++), job->noise_num)];
            snail_prefetch_row(snail_triple_row(job, m.drawn[i]), job->width);
        }
        for (int64_t i = 0; i < count; i++) {
            snail_prefetch_row(snail_triple_row(job, job->heads[first + i]), job->width);
            snail_prefetch_row(snail_triple_row(job, job->tails[first + i]), job->width);
        }
        *loss += snail_train_triple_group(&m, first, count, tail,
                                      job->rate_start + slope * (float)(first - job->first));
    }
}

/* out[i, k] = score of query i and row k; all `stride` floats apart. */
static void snail_pair_scores(int metric, int64_t dim, int64_t stride, const float *queries,
                              int64_t query_num, const float *rows, int64_t row_num, float *out) {
    const int64_t half = dim / 2;
    for (int64_t k = 0; k < row_num; k++)
        for (int64_t i = 0; i < query_num; i++) {
            const float *q = queries + i * stride, *e = rows + k * stride;
            float *to = out + i * row_num + k;
            switch (metric) {
            case SNAIL_BY_L1: *to = snail_pair_score(SNAIL_BY_L1, stride, q, e); break;
            case SNAIL_BY_L2: *to = snail_pair_score(SNAIL_BY_L2, stride, q, e); break;
            case SNAIL_BY_MODULUS: *to = snail_pair_score(SNAIL_BY_MODULUS, half, q, e); break;
            default: *to = snail_pair_score(SNAIL_BY_PRODUCT, stride, q, e);
            }
        }
}

/* ---- ratings ---------------------------------------------------------------------------------- */

/* Biased matrix factorisation: b_u + b_i + <p_u, q_i>, squared loss.  A row is [b, p..].
 * Writers may race.  Reference: Y. Koren, R. Bell, C. Volinsky, IEEE Computer 42 (2009). */

enum { SNAIL_RATINGS_AHEAD = 6 };
/* Largest multiple of the other row that a plain step adds to a row: an outlier would add many times it. */
#define SNAIL_RATINGS_STEP 0.5f

SNAIL_INLINE float snail_rating_score(const snail_ratings_job *job, const float *restrict u,
                                      const float *restrict v) {
    float total = 0;
    for (int64_t j = 0; j < job->stride; j++) total += u[j] * v[j];
    return u[0] + v[0] + total - u[0] * v[0];
}

SNAIL_INLINE void snail_rating_sgd(float *restrict u, float *restrict v, int64_t stride, float g,
                                   float rate, float l2) {
    const float far = rate * g, decay = 1 - rate * l2;
    const float most = SNAIL_RATINGS_STEP;
    const float step = far > most ? -most : far < -most ? most : -far;
    const float b_u = u[0] * decay + step, b_v = v[0] * decay + step;
    for (int64_t j = 0; j < stride; j++) {
        const float was = u[j];
        u[j] = decay * was + step * v[j];
        v[j] = decay * v[j] + step * was;
    }
    u[0] = b_u;
    v[0] = b_v;
}

SNAIL_INLINE void snail_rating_adagrad(float *restrict u, float *restrict v, int64_t stride, float g,
                                       float rate, float l2, float eps) {
    const float b_u = u[0], b_v = v[0], s_u = u[stride], s_v = v[stride];
    for (int64_t at = 0; at < stride; at += SNAIL_LANES) {
        const snail_vec p = snail_load(u + at), q = snail_load(v + at);
        snail_store(u + at, snail_adagrad_step(p, u + stride + at, -(g * q + l2 * p), rate, eps));
        snail_store(v + at, snail_adagrad_step(q, v + stride + at, -(g * p + l2 * q), rate, eps));
    }
    u[0] = b_u, v[0] = b_v, u[stride] = s_u, v[stride] = s_v; /* the biases' gradient is g */
    snail_adagrad(u, u + stride, g + l2 * b_u, rate, eps);
    snail_adagrad(v, v + stride, g + l2 * b_v, rate, eps);
}

/* Trains ratings first..last-1; adds up half their squared errors before each step. */
static void snail_train_ratings(const snail_ratings_job *job, double *loss) {
    const float slope = (job->rate_stop - job->rate_start) / (float)(job->last - job->first);
    for (int64_t i = job->first; i < job->last; i++) {
        if (i + SNAIL_RATINGS_AHEAD < job->last) {
            const int64_t next = i + SNAIL_RATINGS_AHEAD;
            snail_prefetch_row(job->rows + job->users[next] * job->width, job->width);
            snail_prefetch_row(job->rows + job->items[next] * job->width, job->width);
        }
        float *u = job->rows + job->users[i] * job->width;
        float *v = job->rows + job->items[i] * job->width;
        const float rate = job->rate_start + slope * (float)(i - job->first);
        const float g = snail_rating_score(job, u, v) - job->ratings[i];
        *loss += 0.5 * (double)g * g;
        if (job->method == SNAIL_ADAGRAD)
            snail_rating_adagrad(u, v, job->stride, g, rate, job->l2, job->eps);
        else
            snail_rating_sgd(u, v, job->stride, g, rate, job->l2);
    }
}

#endif
