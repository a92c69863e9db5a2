/* Row operations: the C table that a kernel build fills and the store calls (as a PyCapsule named
 * "snailps.row_ops"), and the widths of rows.
 *
 * A stored row is `dim` float32 weights followed by the access method's state.  Formulae and costs
 * are in docs/access_methods.md.  Rows of 64-bit integers are two such words a value, of which only the step of
 * their access method knows: all else copies them.
 */
#ifndef SNAILPS_ROW_OPS_H
#define SNAILPS_ROW_OPS_H

#include <stdint.h>

enum {                    /* what a push does                state                   pushed */
    SNAIL_ADD = 0,        /* w += value                      none                    dim */
    SNAIL_SGD = 1,        /* w -= lr * value                 none                    dim */
    SNAIL_ADAGRAD = 2,    /* s += value^2, w -= lr * ...     s                       dim */
    SNAIL_ADAM = 3,       /* Adam, steps counted per row     m, v, one step count    dim */
    SNAIL_FTRL = 4,       /* FTRL-proximal                   z, n                    dim */
    SNAIL_AVERAGE = 5,    /* sums until a round is closed    sum, sum of weights     dim + 1 */
    SNAIL_MOMENTUM = 6,   /* v = beta1 v + g, w -= lr v      v                       dim */
    SNAIL_ROWWISE = 7,    /* adagrad, one s a row            s                       dim */
    SNAIL_MIN_UINT64 = 8, /* the less of both                    none                    dim */
    SNAIL_MAX_UINT64 = 9,
    SNAIL_MIN_INT64 = 10,
    SNAIL_MAX_INT64 = 11,
    SNAIL_OR = 12,         /* bits of either                      none                    dim */
    SNAIL_AGAIN = 13,      /* seen, seen again: half the row each none                    dim */
    SNAIL_ACCESS_NUM = 14, /* number of methods that the kernels have */
    SNAIL_PYTHON = 14      /* rows are computed elsewhere; the store only keeps them */
};

enum {                 /* a row's first weights, from (seed, key) alone */
    SNAIL_ZEROS = 0,
    SNAIL_UNIFORM = 1, /* uniform in [-scale, scale) */
    SNAIL_NORMAL = 2,  /* normal, mean 0, standard deviation scale */
    SNAIL_FACTORS = 3, /* like NORMAL, but 0 in column 0: a weight, followed by factors */
    SNAIL_BITS = 4     /* each value is the 64 bits of the seed: of integers, what changes no other value */
};

enum {
    SNAIL_HYPER_NUM = 8,
    SNAIL_ADAM_STEPS = 16384 /* first steps of a row, whose bias corrections are in a table; for
                              * beta2 up to 0.999 the corrections of later steps are 1 */
};

/* Changes one stored row (weights then state) by one value.  `hyper`: SNAIL_HYPER_NUM numbers,
 * followed by what `prepare` has derived from them. */
typedef void (*snail_row_step)(const float *hyper, float *row, const float *value, uint32_t dim);

typedef struct {
    /* First value of a row's weights.  Does not touch the state part. */
    void (*init)(int kind, float scale, uint64_t seed, uint64_t key, float *row, uint32_t dim);
    /* First state of a row whose first weights are in place: zeros, but ftrl's z. */
    void (*init_state)(int access, const float *hyper, float *row, uint32_t dim);
    /* By access method.  `apply`: a pushed value (dim floats, average: dim + 1).  `add_state`: a
     * difference of whole rows, weights and state; NULL where differences do not add up. */
    snail_row_step apply[SNAIL_ACCESS_NUM];
    snail_row_step add_state[SNAIL_ACCESS_NUM];
    /* Appends what can be derived from the hyper-parameters: snail_hyper_floats() numbers in all.  Nothing
     * is derived from the step size, because a push may scale it. */
    void (*prepare)(int access, float *hyper);
    /* out += sum of coef[k] * rows[k], in this order, dim floats each; `out` is none of the rows. */
    void (*sum)(uint32_t n, const float *const *rows, const float *coef, float *out, uint32_t dim);
} snail_row_ops;

/* Whether values are 64-bit integers, which are never rounded, added up or searched for NaN. */
static inline int snail_is_integer(int access) {
    return access >= SNAIL_MIN_UINT64 && access <= SNAIL_AGAIN;
}

static inline uint32_t snail_state_floats(int access, uint32_t dim) {
    switch (access) {
    case SNAIL_ADAGRAD:
    case SNAIL_MOMENTUM: return dim;
    case SNAIL_ADAM: return 2 * dim + 1;
    case SNAIL_FTRL: return 2 * dim;
    case SNAIL_AVERAGE: return dim + 1;
    case SNAIL_ROWWISE: return 1;
    default: return 0;
    }
}

/* Number of hyper-parameters with what `prepare` appends: for Adam two corrections a step in its table. */
static inline uint32_t snail_hyper_floats(int access) {
    return SNAIL_HYPER_NUM + (access == SNAIL_ADAM ? 2 * SNAIL_ADAM_STEPS : 0);
}

static inline uint32_t snail_value_floats(int access, uint32_t dim) {
    return access == SNAIL_AVERAGE ? dim + 1 : dim;
}

#endif
