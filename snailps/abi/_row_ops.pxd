# Row operations, for Cython; what each does, and how wide rows are, is in the C header.
from libc.stdint cimport uint32_t, uint64_t

cdef enum Hyper:            # places in a table's hyper-parameters, float32
    HYPER_LR = 0
    HYPER_EPS = 1
    HYPER_BETA1 = 2         # momentum's decay, too
    HYPER_BETA2 = 3
    HYPER_L1 = 4
    HYPER_L2 = 5
    HYPER_BETA = 6
    HYPER_NUM = 8

cdef extern from "abi/_row_ops.h" nogil:
    enum:                   # Access
        ACCESS_ADD "SNAIL_ADD"
        ACCESS_SGD "SNAIL_SGD"
        ACCESS_ADAGRAD "SNAIL_ADAGRAD"
        ACCESS_ADAM "SNAIL_ADAM"
        ACCESS_FTRL "SNAIL_FTRL"
        ACCESS_AVERAGE "SNAIL_AVERAGE"
        ACCESS_MOMENTUM "SNAIL_MOMENTUM"
        ACCESS_ROWWISE "SNAIL_ROWWISE"
        ACCESS_NUM "SNAIL_ACCESS_NUM"
        ACCESS_PYTHON "SNAIL_PYTHON"
    enum:                   # Init
        INIT_ZEROS "SNAIL_ZEROS"
        INIT_UNIFORM "SNAIL_UNIFORM"
        INIT_NORMAL "SNAIL_NORMAL"
        INIT_FACTORS "SNAIL_FACTORS"
        INIT_BITS "SNAIL_BITS"

    ctypedef void (*RowStep "snail_row_step")(const float *hyper, float *row, const float *value,
                                              uint32_t dim) noexcept nogil
    ctypedef struct RowOps "snail_row_ops":
        void (*init)(int kind, float scale, uint64_t seed, uint64_t key, float *row,
                     uint32_t dim) noexcept nogil
        void (*init_state)(int access, const float *hyper, float *row, uint32_t dim) noexcept nogil
        RowStep *apply          # SNAIL_ACCESS_NUM of each
        RowStep *add_state
        void (*prepare)(int access, float *hyper) noexcept nogil
        void (*sum)(uint32_t n, const float *const *rows, const float *coef, float *out,
                    uint32_t dim) noexcept nogil

    bint is_integer "snail_is_integer"(int access) noexcept nogil
    uint32_t state_floats_of "snail_state_floats"(int access, uint32_t dim) noexcept nogil
    uint32_t hyper_floats_of "snail_hyper_floats"(int access) noexcept nogil
    uint32_t value_floats_of "snail_value_floats"(int access, uint32_t dim) noexcept nogil
