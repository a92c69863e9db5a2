# Classifier training, one line of text after the other; the body of _kernels.train_labels.
#
#     features, labels of a line -> hidden vector -> scores -> rates -> rows, changed in place
#
# Inline functions only: each build of the kernels compiles them for its own instruction set.
# Nothing here allocates, takes the GIL or checks an argument; the door in _kernels.pyx does.
#
# Exactly fastText's steps: h is the mean of the line's input rows, output row k moves by
# rate * (y_k - p_k) h, every input row by the gradient of h over the number of features.  Writers
# may race (Hogwild).  Where all threads write the few output rows at every line, the cores would
# only pass them to and fro; so each thread trains a copy of its own, and every C_TOGETHER lines
# adds its differences to the shared rows and takes what the others added.
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.kernels._word_vectors cimport below, draw, prefetch_row

cdef extern from "kernels/_tiles.h" nogil:
    void snail_sum_rows(int row_num, const int32_t *rows, const float *table, int64_t stride,
                        float scale, float *out)
    float snail_exp(float x)
    float snail_log(float x)
    float snail_sigmoid(float x)

cdef extern from "kernels/_row_locks.h" nogil:
    int snail_row_try(const float *row)
    void snail_row_take(const float *row)
    void snail_row_give(const float *row)

cdef enum:
    SOFTMAX = 0
    ONE_VS_ALL = 1
    SAMPLING = 2
    C_TOGETHER = 64         # lines between two exchanges of output rows
    C_TRIES = 8             # draws for a negative that is not the line's own label
    C_AHEAD = 16            # features of the next line whose rows are asked for


cdef struct LabelJob:       # constant during a call
    float *inputs
    float *outputs          # shared by all threads
    const int64_t *bag_ptr
    const int32_t *bag_rows
    const int64_t *label_ptr
    const int32_t *labels
    const int32_t *noise
    uint64_t noise_num
    int64_t label_num       # rows of `outputs`
    int64_t stride
    Py_ssize_t first        # lines first..last-1
    Py_ssize_t last
    int loss
    int negatives
    float rate_start
    float rate_stop
    uint64_t stream         # start of this call's SplitMix64 stream


cdef struct LabelScratch:
    float *hidden           # [stride]
    float *gradient         # [stride]
    float *scores           # [label_num]
    float *truth            # [label_num], zeros between lines
    float *own              # [label_num, stride]: this thread's output rows, or NULL: the shared
    float *base             # as they were at the last exchange
    uint64_t drawn          # random numbers so far


cdef inline float dot(const float *a, const float *b, int64_t n) noexcept nogil:
    cdef float total = 0
    cdef int64_t d
    for d in range(n):
        total += a[d] * b[d]
    return total


cdef inline void step(float *row, const float *hidden, float *gradient, float alpha,
                      int64_t n) noexcept nogil:
    cdef int64_t d
    for d in range(n):
        gradient[d] += alpha * row[d]
        row[d] += alpha * hidden[d]


cdef inline uint64_t next_below(const LabelJob *job, LabelScratch *s, uint64_t bound) noexcept nogil:
    s.drawn += 1
    return below(draw(job.stream, s.drawn), bound)


cdef inline float binary(const LabelJob *job, LabelScratch *s, float *row, bint wanted,
                         float rate) noexcept nogil:
    """One label as a question of yes or no; returns its loss."""
    cdef float score = snail_sigmoid(dot(row, s.hidden, job.stride))
    step(row, s.hidden, s.gradient, rate * (wanted - score), job.stride)
    return -snail_log(score if wanted else 1 - score + <float>1e-13)


cdef inline float softmax(const LabelJob *job, LabelScratch *s, float *outputs, int32_t target,
                          float rate) noexcept nogil:
    cdef int64_t k
    cdef float most, wanted, total = 0
    for k in range(job.label_num):
        s.scores[k] = dot(outputs + k * job.stride, s.hidden, job.stride)
    most = s.scores[0]
    for k in range(job.label_num):
        most = max(most, s.scores[k])
    wanted = s.scores[target] - most
    for k in range(job.label_num):
        s.scores[k] = snail_exp(max(s.scores[k] - most, <float>-80))
        total += s.scores[k]
    for k in range(job.label_num):
        s.scores[k] *= -rate / total
    s.scores[target] += rate
    for k in range(job.label_num):
        step(outputs + k * job.stride, s.hidden, s.gradient, s.scores[k], job.stride)
    return snail_log(total) - wanted


cdef inline float one_vs_all(const LabelJob *job, LabelScratch *s, float *outputs, Py_ssize_t line,
                             float rate) noexcept nogil:
    cdef float loss = 0
    cdef int64_t k
    for k in range(job.label_ptr[line], job.label_ptr[line + 1]):
        s.truth[job.labels[k]] = 1
    for k in range(job.label_num):
        loss += binary(job, s, outputs + k * job.stride, s.truth[k] > 0, rate)
    for k in range(job.label_ptr[line], job.label_ptr[line + 1]):
        s.truth[job.labels[k]] = 0
    return loss


cdef inline float sampling(const LabelJob *job, LabelScratch *s, float *outputs, int32_t target,
                           float rate) noexcept nogil:
    cdef float loss = binary(job, s, outputs + target * job.stride, True, rate)
    cdef int32_t other
    cdef int i, tries
    for i in range(job.negatives):
        for tries in range(C_TRIES):
            other = job.noise[next_below(job, s, job.noise_num)]
            if other != target:
                loss += binary(job, s, outputs + other * job.stride, False, rate)
                break
    return loss


cdef inline void exchange(const LabelJob *job, LabelScratch *s, bint last) noexcept nogil:
    """Adds what this thread changed to the shared output rows, and goes on from these.

    A row that another thread is at is left for the next exchange, but by the `last`.
    """
    cdef int64_t k, i
    cdef float now
    cdef float *shared
    for k in range(job.label_num):
        shared = job.outputs + k * job.stride
        if last:
            snail_row_take(shared)
        elif not snail_row_try(shared):
            continue
        for i in range(k * job.stride, (k + 1) * job.stride):
            now = job.outputs[i] + (s.own[i] - s.base[i])
            job.outputs[i] = now
            s.own[i] = now
            s.base[i] = now
        snail_row_give(shared)


cdef inline void train_line(const LabelJob *job, LabelScratch *s, Py_ssize_t line, float rate,
                            double *loss) noexcept nogil:
    cdef int64_t begin = job.bag_ptr[line]
    cdef int64_t end = job.bag_ptr[line + 1]
    cdef int64_t label_num = job.label_ptr[line + 1] - job.label_ptr[line]
    cdef float share = 1 / <float>(end - begin)
    cdef float *outputs = job.outputs if s.own == NULL else s.own
    cdef float *row
    cdef int32_t target
    cdef int64_t r, d
    snail_sum_rows(<int>(end - begin), job.bag_rows + begin, job.inputs, job.stride, share,
                   s.hidden)
    memset(s.gradient, 0, job.stride * sizeof(float))
    if job.loss == ONE_VS_ALL:
        loss[0] += one_vs_all(job, s, outputs, line, rate)
    else:
        # As in fastText, a line of several labels is trained on one of them, drawn anew each time.
        r = next_below(job, s, label_num) if label_num > 1 else 0
        target = job.labels[job.label_ptr[line] + r]
        if job.loss == SOFTMAX:
            loss[0] += softmax(job, s, outputs, target, rate)
        else:
            loss[0] += sampling(job, s, outputs, target, rate)
    for d in range(job.stride):
        s.gradient[d] *= share
    for r in range(begin, end):
        row = job.inputs + job.bag_rows[r] * job.stride
        for d in range(job.stride):
            row[d] += s.gradient[d]


cdef inline void train_lines(const LabelJob *job, LabelScratch *s, double *loss,
                             int64_t *examples) noexcept nogil:
    cdef Py_ssize_t line, at
    cdef int64_t start = job.bag_ptr[job.first]
    cdef int64_t stop = job.bag_ptr[job.last]
    cdef float rate
    cdef int waiting = 0
    if s.own != NULL:
        memcpy(s.own, job.outputs, job.label_num * job.stride * sizeof(float))
        memcpy(s.base, s.own, job.label_num * job.stride * sizeof(float))
    for line in range(job.first, job.last):
        for at in range(job.bag_ptr[line + 1], min(job.bag_ptr[line + 1] + C_AHEAD, stop)):
            prefetch_row(job.inputs + job.bag_rows[at] * job.stride, job.stride)
        if job.bag_ptr[line + 1] == job.bag_ptr[line] or (
                job.label_ptr[line + 1] == job.label_ptr[line]):
            continue
        rate = job.rate_start + (job.rate_stop - job.rate_start) * (
            <float>(job.bag_ptr[line] - start) / <float>(stop - start))
        train_line(job, s, line, rate, loss)
        examples[0] += 1
        waiting += 1
        if s.own != NULL and waiting == C_TOGETHER:
            exchange(job, s, False)
            waiting = 0
    if s.own != NULL:
        exchange(job, s, True)
