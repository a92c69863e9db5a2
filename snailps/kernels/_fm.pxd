# Factorization machines of order 2, plain and field-aware, on sparse examples; the body of
# _kernels.train_fm and fm_scores.
#
#     features and label of an example -> score -> loss, gradient -> its rows, one step each
#
# Inline functions only: each build of the kernels compiles them for its own instruction set.
# Nothing here allocates, takes the GIL or checks an argument; the doors in _kernels.pyx do.
#
# A row is [w, v_1..v_k], field-aware [w, v of field 0, v of field 1, ...], and behind it the state of
# the method; each of these parts padded to `stride`, a multiple of 16.  The score of an example is
#
#     sum_i x_i w_i + sum_{i<j} x_i x_j <v_i, v_j> = sum_i x_i w_i + 1/2 (|S|^2 - sum_i |x_i v_i|^2)
#
# with S = sum_i x_i v_i: n k steps instead of n^2 k.  It carries over to fields: with S_f the sum of
# x_i row_i over the features of field f, all pairs together are <S_f, T_f> summed over f, where T_f
# has in the place of field g what S_g has in the place of field f.  So every pass is over whole
# rows, which lie in one piece, and the plain machine is that of a single field.
#
# Writers may race (Hogwild), but not on the first `hot` rows: each thread trains a copy of its own,
# and every C_TURN examples adds its differences to the shared rows, as in _linear.pxd.
#
# References: S. Rendle, "Factorization machines", ICDM 2010.  Y. Juan et al., "Field-aware
# factorization machines for CTR prediction", RecSys 2016.
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

from snailps.kernels._linear cimport (
    LOGISTIC, STEP_ADAGRAD, STEP_FTRL, likely, log_loss, snail_row_give, snail_row_take,
    snail_row_try,
)
from snailps.kernels._word_vectors cimport prefetch_row

cdef extern from "kernels/_fm.h" nogil:
    ctypedef struct By "snail_fm_by":
        const float *rate
        const float *decay
        float eps
        float per_rate
        float base
        float l1
    void snail_fm_sums(int add, int64_t row_num, const float **rows, const float *x, int64_t stride,
                       float *sums, float *squares)
    void snail_fm_turn(int64_t seen, const int32_t *fields, int64_t f, int64_t factors,
                       const float *sums, int64_t stride, float *to)
    float snail_fm_products(const float *a, const float *b, const float *c, int64_t stride)
    void snail_fm_sgd(const By *by, float *row, float c, float x, const float *pull,
                      const float *own, int64_t stride)
    void snail_fm_adagrad(const By *by, float *row, float c, float x, const float *pull,
                          const float *own, int64_t stride)
    void snail_fm_ftrl(const By *by, float *row, float c, float x, const float *pull,
                       const float *own, int64_t stride)
    void snail_fm_ftrl_weights(const By *by, float *row, int64_t stride)
    void snail_fm_merge(float *shared, float *own, float *base, int64_t width)

cdef enum:
    C_TURN = 256            # examples between two exchanges of the hot rows
    C_NEXT = 3              # examples ahead whose rows are asked for
    C_NEXT_MAX = 64         # features of them, at most
    C_NEXT_FLOATS = 128     # of a row, at most: what follows the processor fetches by itself


cdef struct FmJob:          # constant during a call
    float *rows             # [row_num, width]
    int64_t width           # of a row: weights and state
    int64_t stride          # of its weights
    const int64_t *ptr
    const int32_t *places
    const float *values
    const int32_t *fields   # or NULL: one field
    const float *labels
    const float *weights    # of examples, or NULL: 1 each
    int64_t bias            # row of the constant feature, or -1: only its w counts and moves
    int64_t hot             # rows that a thread has a copy of: 0..hot-1, and `bias`
    int64_t field_num       # 1: plain
    int64_t factors
    Py_ssize_t first        # examples first..last-1
    Py_ssize_t last
    int loss
    int method
    float rate_start
    float rate_stop
    float factor_rate       # step size of factors in units of that of w
    float eps
    float l1
    float l2
    float factor_l2
    float beta


cdef struct FmScratch:
    float *own              # [hot + 1, width]: this thread's hot rows, the last one is the bias
    float *base             # as they were at the last exchange
    float *sums             # [field_num, stride]: S
    float *squares          # [field_num, stride]: sums of squares
    float *turned           # [field_num, stride]: T; plain: the same memory as `sums`
    float *itself           # [field_num, stride]: 1 where a feature of the field meets itself
    float *only             # [stride]: 1, then zeros: the gradient of the bias
    float *rate             # [stride]
    float *decay            # [stride]
    float **found           # [features of the longest example]
    int64_t *stamps         # [field_num]: example that a field was last seen in, from 1
    int32_t *present        # [field_num]: fields of the example at hand


cdef inline float *fm_row(const FmJob *job, const FmScratch *s, int64_t at) noexcept nogil:
    """A row where this thread trains it."""
    return (s.own if at < job.hot else job.rows) + at * job.width


cdef inline float *fm_bias(const FmJob *job, const FmScratch *s) noexcept nogil:
    return s.own + job.hot * job.width if s.own != NULL else job.rows + job.bias * job.width


cdef inline void fm_constants(const FmJob *job, FmScratch *s) noexcept nogil:
    """What does not change from one example to the next; scratch is zeros before."""
    cdef int64_t f, j
    s.only[0] = 1
    s.decay[0] = job.l2
    for j in range(1, 1 + job.field_num * job.factors):
        s.decay[j] = job.factor_l2
    for f in range(job.field_num):
        for j in range(1 + f * job.factors, 1 + (f + 1) * job.factors):
            s.itself[f * job.stride + j] = 1


cdef inline void fm_rates(const FmJob *job, FmScratch *s, By *by, float rate) noexcept nogil:
    cdef int64_t j
    for j in range(job.stride):
        s.rate[j] = rate * job.factor_rate
    s.rate[0] = rate
    by.rate = s.rate
    by.decay = s.decay
    by.eps = job.eps
    by.l1 = job.l1
    by.per_rate = 1 / rate
    by.base = job.beta * by.per_rate + job.l2


cdef inline void fm_step(const FmJob *job, const By *by, float *row, float c, float x,
                         const float *pull, const float *own) noexcept nogil:
    if job.method == STEP_FTRL:
        snail_fm_ftrl(by, row, c, x, pull, own, job.stride)
    elif job.method == STEP_ADAGRAD:
        snail_fm_adagrad(by, row, c, x, pull, own, job.stride)
    else:
        snail_fm_sgd(by, row, c, x, pull, own, job.stride)


# ---- scores ----------------------------------------------------------------------------------------

cdef inline float plain_score(const FmJob *job, FmScratch *s, int64_t begin,
                              int64_t feature_num) noexcept nogil:
    """Score without bias; leaves S in `sums`, its column 0 being 0."""
    cdef float linear
    snail_fm_sums(0, feature_num, <const float **>s.found, job.values + begin, job.stride, s.sums,
                  s.squares)
    linear = s.sums[0]
    s.sums[0] = 0
    s.squares[0] = 0
    return linear + <float>0.5 * snail_fm_products(s.sums, s.sums, s.squares, job.stride)


cdef inline int64_t sum_fields(const FmJob *job, FmScratch *s, Py_ssize_t i, int64_t begin,
                               int64_t feature_num) noexcept nogil:
    """S of each field that the example has; how many these are, their numbers in `present`."""
    cdef int64_t at, field
    cdef int64_t seen = 0
    for at in range(feature_num):
        field = job.fields[begin + at]
        if s.stamps[field] == i + 1:
            snail_fm_sums(1, 1, <const float **>s.found + at, job.values + begin + at, job.stride,
                          s.sums + field * job.stride, s.squares + field * job.stride)
        else:
            snail_fm_sums(0, 1, <const float **>s.found + at, job.values + begin + at, job.stride,
                          s.sums + field * job.stride, s.squares + field * job.stride)
            s.stamps[field] = i + 1
            s.present[seen] = <int32_t>field
            seen += 1
    return seen


cdef inline float fields_score(const FmJob *job, FmScratch *s, Py_ssize_t i, int64_t begin,
                               int64_t feature_num) noexcept nogil:
    """Score without bias; leaves T in `turned`, column 0 being 0."""
    cdef int64_t a, d, f
    cdef int64_t seen = sum_fields(job, s, i, begin, feature_num)
    cdef float *to
    cdef float *squares
    cdef float linear = 0, pairs = 0
    for a in range(seen):
        f = s.present[a]
        to = s.turned + f * job.stride
        memset(to, 0, job.stride * sizeof(float))
        snail_fm_turn(seen, s.present, f, job.factors, s.sums, job.stride, to)
        linear += s.sums[f * job.stride]
        squares = s.squares + f * job.stride
        for d in range(job.stride):
            squares[d] *= s.itself[f * job.stride + d]
        pairs += snail_fm_products(s.sums + f * job.stride, to, squares, job.stride)
    return linear + <float>0.5 * pairs


cdef inline float fm_score(const FmJob *job, FmScratch *s, Py_ssize_t i) noexcept nogil:
    """Score of an example; leaves in `turned` what its gradients need."""
    cdef int64_t begin = job.ptr[i]
    cdef int64_t feature_num = job.ptr[i + 1] - begin
    cdef int64_t at
    cdef float score = fm_bias(job, s)[0] if job.bias >= 0 else 0
    for at in range(feature_num):
        s.found[at] = fm_row(job, s, job.places[begin + at])
    if job.fields == NULL:
        return score + plain_score(job, s, begin, feature_num)
    return score + fields_score(job, s, i, begin, feature_num)


# ---- training --------------------------------------------------------------------------------------

cdef inline float fm_train_one(const FmJob *job, FmScratch *s, const By *by, Py_ssize_t i,
                               float weight) noexcept nogil:
    """One step on an example; its loss before the step."""
    cdef int64_t begin = job.ptr[i]
    cdef int64_t at
    cdef int64_t field = 0
    cdef float score = fm_score(job, s, i)
    cdef float g, loss
    if job.loss == LOGISTIC:
        loss = log_loss(score, job.labels[i] > 0)
        g = likely(score) - (job.labels[i] > 0)
    else:
        g = score - job.labels[i]
        loss = g * g / 2
    g *= weight
    for at in range(job.ptr[i + 1] - begin):
        if job.fields != NULL:
            field = job.fields[begin + at]
        s.turned[field * job.stride] = 1            # the gradient of w
        fm_step(job, by, s.found[at], g * job.values[begin + at], job.values[begin + at],
                s.turned + field * job.stride, s.itself + field * job.stride)
    if job.bias >= 0:
        fm_step(job, by, fm_bias(job, s), g, 0, s.only, s.only)
    return loss * weight


cdef inline void fm_copy_hot(const FmJob *job, FmScratch *s) noexcept nogil:
    """This thread's copies of the shared rows as they are now."""
    memcpy(s.own, job.rows, job.hot * job.width * sizeof(float))
    if job.bias >= 0:
        memcpy(s.own + job.hot * job.width, job.rows + job.bias * job.width,
               job.width * sizeof(float))
    memcpy(s.base, s.own, (job.hot + 1) * job.width * sizeof(float))


cdef inline void fm_exchange_row(const FmJob *job, const By *by, float *shared, float *own,
                                 float *base) noexcept nogil:
    snail_fm_merge(shared, own, base, job.width)
    if job.method == STEP_FTRL:         # weights follow from the sums of z and n
        snail_fm_ftrl_weights(by, own, job.stride)
        memcpy(shared, own, job.stride * sizeof(float))
        memcpy(base, own, job.stride * sizeof(float))


cdef inline void fm_exchange(const FmJob *job, FmScratch *s, const By *by,
                             bint last) noexcept nogil:
    """Adds what this thread changed to the shared hot rows, and goes on from these.

    A row that another thread is at is left for the next exchange, but by the `last`.
    """
    cdef int64_t r
    cdef float *shared
    for r in range(job.hot + (job.bias >= 0)):
        shared = job.rows + (r if r < job.hot else job.bias) * job.width
        if last:
            snail_row_take(shared)
        elif not snail_row_try(shared):
            continue
        fm_exchange_row(job, by, shared, s.own + r * job.width, s.base + r * job.width)
        snail_row_give(shared)


cdef inline void fm_look_ahead(const FmJob *job, Py_ssize_t example) noexcept nogil:
    """Asks for the rows of an example that comes soon."""
    cdef int64_t at
    if example < job.last:
        for at in range(job.ptr[example], min(job.ptr[example + 1],
                                              job.ptr[example] + C_NEXT_MAX)):
            prefetch_row(job.rows + job.places[at] * job.width,
                         min(job.width, <int64_t>C_NEXT_FLOATS))


cdef inline void fm_train(const FmJob *job, FmScratch *s, double *loss,
                          double *weights) noexcept nogil:
    """Trains examples first..last-1; adds up their losses before each step, and their weights."""
    cdef Py_ssize_t i
    cdef float weight = 1
    cdef float slope = (job.rate_stop - job.rate_start) / <float>(job.last - job.first)
    cdef int waiting = 0
    cdef By by
    fm_constants(job, s)
    fm_rates(job, s, &by, job.rate_start)
    if s.own != NULL:
        fm_copy_hot(job, s)
    for i in range(job.first, job.last):
        fm_look_ahead(job, i + C_NEXT)
        if job.weights != NULL:
            weight = job.weights[i]
        loss[0] += fm_train_one(job, s, &by, i, weight)
        weights[0] += weight
        waiting += 1
        if waiting == C_TURN:
            if s.own != NULL:
                fm_exchange(job, s, &by, False)
            if slope != 0:
                fm_rates(job, s, &by, job.rate_start + slope * <float>(i + 1 - job.first))
            waiting = 0
    if s.own != NULL:
        fm_exchange(job, s, &by, True)


# ---- rows as they travel <-> rows to train ---------------------------------------------------------

cdef inline void fm_unpack(const float *packed, float *row, int64_t dim, int64_t parts,
                           int64_t stride) noexcept nogil:
    """[part, dim] -> [part, stride], zeros behind."""
    cdef int64_t p
    for p in range(parts):
        memcpy(row + p * stride, packed + p * dim, dim * sizeof(float))
        memset(row + p * stride + dim, 0, (stride - dim) * sizeof(float))


cdef inline void fm_difference(const float *row, float *packed, int64_t dim, int64_t parts,
                               int64_t stride) noexcept nogil:
    """packed = row - packed, without what pads the row."""
    cdef int64_t p, d
    for p in range(parts):
        for d in range(dim):
            packed[p * dim + d] = row[p * stride + d] - packed[p * dim + d]
