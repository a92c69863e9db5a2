# The C table of row operations that every kernel build exports (as a PyCapsule named
# "snailps.row_ops") and the store calls.  Declarations, and the widths that follow from them.
#
# A stored row is `dim` float32 weights followed by the access method's state.  Formulae and costs
# are in docs/access_methods.md.
from libc.stdint cimport uint32_t, uint64_t

cdef enum:                  # Access: what a push does       state                    pushed
    ACCESS_ADD = 0          # w += value                     none                     dim
    ACCESS_SGD = 1          # w -= lr * value                none                     dim
    ACCESS_ADAGRAD = 2      # s += value^2, w -= lr * ...    s                        dim
    ACCESS_ADAM = 3         # Adam, steps counted per row    m, v, one step count     dim
    ACCESS_FTRL = 4         # FTRL-proximal                  z, n                     dim
    ACCESS_AVERAGE = 5      # sums until a round is closed   sum, one sum of weights  dim + 1
    ACCESS_MOMENTUM = 6     # v = beta1 v + g, w -= lr v     v                        dim
    ACCESS_NUM = 7          # of those that the kernels know
    ACCESS_PYTHON = 7       # rows are computed elsewhere; the store only keeps them

cdef enum Hyper:            # places in a table's hyper-parameters, float32
    HYPER_LR = 0
    HYPER_EPS = 1
    HYPER_BETA1 = 2         # momentum's decay, too
    HYPER_BETA2 = 3
    HYPER_L1 = 4
    HYPER_L2 = 5
    HYPER_BETA = 6
    HYPER_NUM = 8

cdef enum Init:             # a row's first weights, from (seed, key) alone
    INIT_ZEROS = 0
    INIT_UNIFORM = 1        # uniform in [-scale, scale)
    INIT_NORMAL = 2         # normal, mean 0, standard deviation scale
    INIT_FACTORS = 3        # the same, but 0 in column 0: a weight, and factors behind it

# Changes one stored row (weights then state) by one value.
ctypedef void (*RowStep)(const float *hyper, float *row, const float *value,
                         uint32_t dim) noexcept nogil

ctypedef struct RowOps:
    # First value of a row's weights.  Does not touch the state part.
    void (*init)(int kind, float scale, uint64_t seed, uint64_t key,
                 float *row, uint32_t dim) noexcept nogil
    # First state of a row whose first weights are in place: zeros, but ftrl's z.
    void (*init_state)(int access, const float *hyper, float *row, uint32_t dim) noexcept nogil
    # By access method.  `apply`: a pushed value (dim floats, average: dim + 1).  `add_state`: a
    # difference of whole rows, weights and state; NULL where differences do not add up.
    RowStep apply[ACCESS_NUM]
    RowStep add_state[ACCESS_NUM]
    # out += sum of coef[k] * rows[k], in this order, dim floats each; `out` is none of the rows.
    void (*sum)(uint32_t n, const float *const *rows, const float *coef, float *out,
                uint32_t dim) noexcept nogil


cdef inline uint32_t state_floats_of(int access, uint32_t dim) noexcept nogil:
    if access == ACCESS_ADAGRAD or access == ACCESS_MOMENTUM:
        return dim
    if access == ACCESS_ADAM:
        return 2 * dim + 1
    if access == ACCESS_FTRL:
        return 2 * dim
    if access == ACCESS_AVERAGE:
        return dim + 1
    return 0


cdef inline uint32_t value_floats_of(int access, uint32_t dim) noexcept nogil:
    return dim + 1 if access == ACCESS_AVERAGE else dim
