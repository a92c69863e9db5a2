# The C table of row operations that every kernel build exports (as a PyCapsule named
# "snailps.row_ops") and the store calls.  Pure declarations: no code, no state.
#
# A stored row is `dim` float32 weights followed by the access method's state (adagrad: `dim`
# sums of squared gradients).  `hyper` is the table's four float32 hyper-parameters.
from libc.stdint cimport uint32_t, uint64_t

cdef enum Access:           # how a push changes a row
    ACCESS_ADD = 0          # w += value                                     state: none
    ACCESS_SGD = 1          # w -= lr * value                                state: none, hyper[0] = lr
    ACCESS_ADAGRAD = 2      # s += value^2; w -= lr * value / (sqrt(s)+eps)  state: dim, hyper[0] = lr, hyper[1] = eps

cdef enum Init:             # a row's first weights, from (seed, key) alone
    INIT_ZEROS = 0
    INIT_UNIFORM = 1        # uniform in [-scale, scale)
    INIT_NORMAL = 2         # normal, mean 0, standard deviation scale

ctypedef struct RowOps:
    # First value of a row's weights.  Does not touch the state part.
    void (*init)(int kind, float scale, uint64_t seed, uint64_t key,
                 float *row, uint32_t dim) noexcept nogil
    # Applies one pushed value (dim floats) to one stored row (weights then state).
    void (*apply)(int access, const float *hyper, float *row,
                  const float *value, uint32_t dim) noexcept nogil
