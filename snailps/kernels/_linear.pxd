# Generalised linear models on sparse examples; the body of _kernels.train_linear and linear_scores.
#
#     features and label of an example -> score -> loss, gradient -> its rows, one step each
#
# Inline functions only: each build of the kernels compiles them for its own instruction set.
# Nothing here allocates, takes the GIL or checks an argument; the doors in _kernels.pyx do.
#
# A row is as the store keeps it (see _row_ops.pxd): `outputs` weights, then the state of the method.  A
# feature that occurs twice in an example takes two steps.  With one output all features of an example
# are stepped together (_linear.h).  Writers may race (Hogwild), but not on the first `hot` rows: rows
# are numbered in the order of their first appearance, so the frequent ones are there, and cores would
# only pass them to and fro.  Each thread trains a copy of its own, and every C_EXCHANGE examples adds
# its differences to the shared rows, one thread at a time (_row_locks.h), and goes on from these.
#
# References: AdaGrad: J. Duchi, E. Hazan, Y. Singer, JMLR 12 (2011).  FTRL-proximal: H. B. McMahan
# et al., "Ad click prediction: a view from the trenches", KDD 2013.
from libc.math cimport sqrtf
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy, memset

cdef extern from "kernels/_tiles.h" nogil:
    float snail_exp(float x)
    float snail_log(float x)

cdef extern from "kernels/_linear.h" nogil:
    const int SNAIL_TOGETHER
    ctypedef struct snail_together:
        float **row             # arrays of SNAIL_TOGETHER
        float *x
        int count
    ctypedef struct snail_linear_by:
        float g, rate, per_rate, base, eps, l1, l2
    float snail_gather(snail_together *t, int state) noexcept
    void snail_together_sgd(snail_together *t, const snail_linear_by *by) noexcept
    void snail_together_adagrad(snail_together *t, const snail_linear_by *by) noexcept
    void snail_together_ftrl(snail_together *t, const snail_linear_by *by) noexcept
    bint snail_scatter(const snail_together *t, int i, int state) noexcept

cdef extern from *:
    """
    #define snail_touch(p) __builtin_prefetch((p), 1, 3)
    """
    void snail_touch(const void *p) noexcept nogil

cdef enum:                  # losses
    LOGISTIC = 0            # labels above 0 mean yes
    SQUARED = 1
    MULTINOMIAL = 2         # labels are class numbers

cdef enum:                  # access methods that these kernels can run: values of _row_ops.pxd
    STEP_SGD = 1
    STEP_ADAGRAD = 2
    STEP_FTRL = 4

cdef extern from "kernels/_row_locks.h" nogil:
    int snail_row_try(const float *row)
    void snail_row_take(const float *row)
    void snail_row_give(const float *row)

cdef enum:
    C_EXCHANGE = 256        # examples between two exchanges of the hot rows
    C_LOOK = 2              # examples ahead whose rows are asked for
    C_LOOK_MAX = 64         # features of them, at most
    C_BOUND = 80            # exp(-80) is about the least float


cdef struct LinearJob:      # constant during a call
    float *rows             # [row_num, width]
    int64_t width
    const int64_t *ptr
    const int32_t *places
    const float *values
    const float *labels
    const float *weights    # of examples, or NULL: 1 each
    int64_t bias            # row of the constant feature, or -1
    int64_t hot             # rows that a thread has a copy of: 0..hot-1, and `bias`
    int64_t outputs
    Py_ssize_t first        # examples first..last-1
    Py_ssize_t last
    int loss
    int method
    float rate_start
    float rate_stop
    float eps
    float l1
    float l2
    float beta


cdef struct LinearScratch:
    float *own              # [hot + 1, width]: this thread's hot rows, the last one is the bias
    float *base             # as they were at the last exchange
    float *scores           # [outputs]


cdef struct Rates:          # of one example
    float rate
    float per_rate
    float base


cdef inline float log_loss(float score, bint yes) noexcept nogil:
    """-log P(label) for P(yes) = 1 / (1 + exp(-score)), without overflow."""
    cdef float wrong = -score if yes else score
    cdef float away = -wrong if wrong > 0 else wrong
    return max(wrong, <float>0) + snail_log(1 + snail_exp(max(away, <float>-C_BOUND)))


cdef inline float likely(float score) noexcept nogil:
    """1 / (1 + exp(-score)), in (0, 1) as far as float goes."""
    return 1 / (1 + snail_exp(min(max(-score, <float>-C_BOUND), <float>C_BOUND)))


cdef inline float shrunk(float z, float l1) noexcept nogil:
    """z without what L1 takes off: 0 inside [-l1, l1]."""
    return z - (l1 if z > l1 else (-l1 if z < -l1 else z))


cdef inline void step(const LinearJob *job, const Rates *by, float *row, int64_t k,
                      float g) noexcept nogil:
    """Weight k of a row takes one step against its gradient."""
    cdef float w = row[k]
    cdef float square, total, root, old
    cdef float *state = row + job.outputs + k
    if job.method == STEP_FTRL:
        old = state[job.outputs]
        square = g * g
        total = old + square
        root = sqrtf(total)
        # sqrt(total) - sqrt(old), without cancellation; the tiny number makes 0 / 0 a 0
        g -= square / (root + sqrtf(old) + <float>1e-30) * by.per_rate * w
        state[job.outputs] = total
        state[0] += g
        row[k] = -shrunk(state[0], job.l1) / (root * by.per_rate + by.base)
    elif job.method == STEP_ADAGRAD:
        g += job.l2 * w
        total = state[0] + g * g
        state[0] = total
        row[k] = w - by.rate * g / (sqrtf(total) + job.eps)
    else:
        row[k] = w - by.rate * (g + job.l2 * w)


cdef inline void weights_of(float *row, int64_t outputs, float per_rate, float base,
                            float l1) noexcept nogil:
    """FTRL's weights of a row, which follow from its z and n."""
    cdef int64_t k
    for k in range(outputs):
        row[k] = -shrunk(row[outputs + k], l1) / (sqrtf(row[2 * outputs + k]) * per_rate + base)


cdef inline float *row_of(const LinearJob *job, const LinearScratch *s, int64_t at) noexcept nogil:
    """A row where this thread trains it."""
    return (s.own if at < job.hot else job.rows) + at * job.width


cdef inline float *bias_of(const LinearJob *job, const LinearScratch *s) noexcept nogil:
    return s.own + job.hot * job.width if s.own != NULL else job.rows + job.bias * job.width


cdef inline void copy_hot(const LinearJob *job, LinearScratch *s) noexcept nogil:
    """This thread's copies of the shared rows as they are now."""
    memcpy(s.own, job.rows, job.hot * job.width * sizeof(float))
    if job.bias >= 0:
        memcpy(s.own + job.hot * job.width, job.rows + job.bias * job.width,
               job.width * sizeof(float))
    memcpy(s.base, s.own, (job.hot + 1) * job.width * sizeof(float))


cdef inline void exchange_row(const LinearJob *job, float *shared, float *own, float *base) noexcept nogil:
    """Adds what this thread changed to a shared row, and goes on from the sum."""
    cdef int64_t d
    cdef float now
    cdef float per_rate = 1 / job.rate_start
    for d in range(job.width):
        now = shared[d] + (own[d] - base[d])
        own[d] = now
    if job.method == STEP_FTRL:     # differences of weights do not add up
        weights_of(own, job.outputs, per_rate, job.beta * per_rate + job.l2, job.l1)
    for d in range(job.width):
        shared[d] = own[d]
        base[d] = own[d]


cdef inline void exchange(const LinearJob *job, LinearScratch *s, bint last) noexcept nogil:
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
        exchange_row(job, shared, s.own + r * job.width, s.base + r * job.width)
        snail_row_give(shared)


cdef inline void look_ahead(const LinearJob *job, Py_ssize_t example) noexcept nogil:
    """Asks for the rows of an example that comes soon."""
    cdef int64_t at
    cdef int64_t stop
    if example < job.last:
        stop = min(job.ptr[example + 1], job.ptr[example] + C_LOOK_MAX)
        for at in range(job.ptr[example], stop):
            snail_touch(job.rows + job.places[at] * job.width)


cdef inline int state_of(const LinearJob *job) noexcept nogil:
    """Floats of state behind a weight."""
    return 2 if job.method == STEP_FTRL else (1 if job.method == STEP_ADAGRAD else 0)


cdef inline float gather(const LinearJob *job, const LinearScratch *s, snail_together *t,
                         int64_t begin, int64_t end) noexcept nogil:
    """Copies of the rows of entries begin..end-1; the sum of their values times weights."""
    cdef int64_t at
    t.count = <int>(end - begin)
    for at in range(begin, end):
        t.row[at - begin] = row_of(job, s, job.places[at])
        t.x[at - begin] = job.values[at]
    return snail_gather(t, state_of(job))


cdef inline void step_together(const LinearJob *job, const Rates *by, snail_together *t,
                               float g) noexcept nogil:
    """The rows of the copies take one step each, where the score's gradient is `g`."""
    cdef snail_linear_by all
    cdef int i
    cdef int state = state_of(job)
    all.g, all.rate, all.per_rate, all.base = g, by.rate, by.per_rate, by.base
    all.eps, all.l1, all.l2 = job.eps, job.l1, job.l2
    if job.method == STEP_FTRL:
        snail_together_ftrl(t, &all)
    elif job.method == STEP_ADAGRAD:
        snail_together_adagrad(t, &all)
    else:
        snail_together_sgd(t, &all)
    for i in range(t.count):
        if not snail_scatter(t, i, state):
            step(job, by, t.row[i], 0, g * t.x[i])


cdef inline float train_one(const LinearJob *job, LinearScratch *s, snail_together *t, Py_ssize_t i,
                            float weight, const Rates *by) noexcept nogil:
    """An example of a model with one output; its loss before the step."""
    cdef int64_t begin = job.ptr[i]
    cdef int64_t end = job.ptr[i + 1]
    cdef int64_t at
    cdef float score = 0
    cdef float g, loss
    cdef float *bias = NULL
    if job.bias >= 0:
        bias = bias_of(job, s)
        score = bias[0]
    at = begin
    while at < end:
        score += gather(job, s, t, at, min(end, at + SNAIL_TOGETHER))
        at += SNAIL_TOGETHER
    if job.loss == LOGISTIC:
        loss = log_loss(score, job.labels[i] > 0)
        g = likely(score) - (job.labels[i] > 0)
    else:
        g = score - job.labels[i]
        loss = g * g / 2
    g *= weight
    at = begin
    while at < end:
        if end - begin > SNAIL_TOGETHER:    # else they are still there
            gather(job, s, t, at, min(end, at + SNAIL_TOGETHER))
        step_together(job, by, t, g)
        at += SNAIL_TOGETHER
    if bias != NULL:
        step(job, by, bias, 0, g)
    return loss * weight


cdef inline void scores_of(const LinearJob *job, const LinearScratch *s, Py_ssize_t i,
                           float *scores) noexcept nogil:
    """Scores of all outputs."""
    cdef int64_t at, k
    cdef float x
    cdef const float *row
    if job.bias >= 0:
        row = bias_of(job, s)
        for k in range(job.outputs):
            scores[k] = row[k]
    else:
        memset(scores, 0, job.outputs * sizeof(float))
    for at in range(job.ptr[i], job.ptr[i + 1]):
        row = row_of(job, s, job.places[at])
        x = job.values[at]
        for k in range(job.outputs):
            scores[k] += x * row[k]


cdef inline float train_classes(const LinearJob *job, LinearScratch *s, Py_ssize_t i, float weight,
                                const Rates *by) noexcept nogil:
    """An example of a multinomial model; its loss before the step."""
    cdef int64_t at, k
    cdef int64_t target = <int64_t>job.labels[i]
    cdef float most, wanted, total = 0
    cdef float *row
    cdef float *g = s.scores
    scores_of(job, s, i, g)
    most = g[0]
    for k in range(job.outputs):
        most = max(most, g[k])
    wanted = g[target] - most
    for k in range(job.outputs):
        g[k] = snail_exp(max(g[k] - most, <float>-C_BOUND))
        total += g[k]
    for k in range(job.outputs):
        g[k] *= weight / total
    g[target] -= weight
    for at in range(job.ptr[i], job.ptr[i + 1]):
        row = row_of(job, s, job.places[at])
        for k in range(job.outputs):
            step(job, by, row, k, g[k] * job.values[at])
    if job.bias >= 0:
        row = bias_of(job, s)
        for k in range(job.outputs):
            step(job, by, row, k, g[k])
    return weight * (snail_log(total) - wanted)


cdef inline void train_examples(const LinearJob *job, LinearScratch *s, double *loss,
                                double *weights) noexcept nogil:
    """Trains examples first..last-1; adds up their losses before each step, and their weights."""
    cdef Py_ssize_t i
    cdef float weight = 1
    cdef float share = 1 / <float>max(<Py_ssize_t>1, job.last - job.first)
    cdef Rates by
    cdef snail_together together
    cdef int waiting = 0
    if s.own != NULL:
        copy_hot(job, s)
    for i in range(job.first, job.last):
        look_ahead(job, i + C_LOOK)
        by.rate = job.rate_start + (job.rate_stop - job.rate_start) * (share * (i - job.first))
        by.per_rate = 1 / by.rate
        by.base = job.beta * by.per_rate + job.l2
        if job.weights != NULL:
            weight = job.weights[i]
        if job.loss == MULTINOMIAL:
            loss[0] += train_classes(job, s, i, weight, &by)
        else:
            loss[0] += train_one(job, s, &together, i, weight, &by)
        weights[0] += weight
        waiting += 1
        if s.own != NULL and waiting == C_EXCHANGE:
            exchange(job, s, False)
            waiting = 0
    if s.own != NULL:
        exchange(job, s, True)
