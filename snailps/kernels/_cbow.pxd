# cython: cdivision=True
# A CBOW network with a full softmax: the loss of windows of words, and steps of Adam on batches.
#
#   windows (n x window), embedding -> mean of the words round the middle one -> hidden (n x width + 1)
#   hidden, output weights -> panel by panel: logits -> softmax -> loss                     cbow_loss
#   ... -> gradient of the panel -> Adam on it; -> gradient of hidden -> Adam on the rows   cbow_step
#
# A panel of output weights passes the cache twice a batch: once for the sums of the softmax, once
# for gradient and step (_cbow.h).  Between the two the exponentials of the whole batch are kept.  Of
# the embedding only the rows that a batch touched move, each counting its own steps, as the access
# method `adam` has it.  Nothing here allocates; all sums run in a fixed order.
from libc.math cimport log, pow, sqrt
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

cdef extern from "kernels/_cbow.h" nogil:
    const int SNAIL_PANEL
    float snail_exp(float x)
    void snail_panel_logits(int batch, const float *hidden, int64_t stride, int rows,
                            const float *panel, float *logits) noexcept
    void snail_panel_gradient(int batch, const float *hidden, int64_t stride, int rows,
                              const float *shares, float *gradient) noexcept
    void snail_panel_back(int batch, const float *shares, const float *across, int width,
                          float *back) noexcept
    void snail_panel_across(const float *panel, int width, float *across) noexcept
    float snail_panel_exp(float *x, float *most, float sum) noexcept
    void snail_adam(int64_t n, float *w, float *m, float *v, const float *g, float rate,
                    float root, float beta1, float beta2, float eps) noexcept
    void snail_add_weighted(int64_t n, float *to, const float *from_, float weight) noexcept

cdef enum:
    C_NO_PLACE = -1
    C_LEAST = -40               # exp of less is no share worth a float's range


cdef struct Moments:
    float *weights
    float *first                # of Adam; NULL where only the loss is wanted
    float *second


cdef struct CbowNet:
    int64_t words
    int64_t width               # columns of the embedding, a multiple of 16
    int64_t window
    Moments embedding           # words x width
    float *counts               # steps of each of its rows
    Moments output              # panels x (width + 1) x SNAIL_PANEL
    double lr
    float beta1
    float beta2
    float eps


cdef struct CbowScratch:        # for batches of up to `batch` windows
    int64_t batch
    float *hidden               # batch x hidden_stride: means, then a 1, then zeros
    float *scaled               # the same shape
    float *shares               # panels x batch x SNAIL_PANEL: exponentials of the logits
    float *shift                # panels x batch: what was taken from them first
    float *most                 # batch
    float *sums                 # batch
    float *target               # batch: logit of the true word
    float *back                 # batch x width: of one panel
    float *down                 # batch x width: dL/d mean
    float *gradient             # (width + 1) x SNAIL_PANEL
    float *across               # SNAIL_PANEL x width
    float *rows                 # (batch * window) x width: gradients of the rows touched
    int32_t *places             # words: where in `rows`; all C_NO_PLACE between two batches
    int32_t *touched            # batch * window


cdef inline int64_t panels_of(int64_t words) noexcept nogil:
    return (words + SNAIL_PANEL - 1) // SNAIL_PANEL


cdef inline int64_t hidden_stride(int64_t width) noexcept nogil:
    return width + 16


cdef inline int64_t padded_floats(int64_t n) noexcept nogil:
    return (n + 15) & ~<int64_t>15


cdef inline int64_t lay_out_cbow(CbowScratch *s, int64_t words, int64_t width, int64_t window,
                                 int64_t batch, float *base) noexcept nogil:
    """Cuts `base` into the parts of a scratch; returns its size in floats (base may be NULL)."""
    cdef int64_t panels = panels_of(words), at = 0, k
    cdef int64_t sizes[14]
    cdef float *parts[14]
    sizes[0] = batch * hidden_stride(width)
    sizes[1] = sizes[0]
    sizes[2] = panels * batch * SNAIL_PANEL
    sizes[3] = panels * batch
    sizes[4] = batch
    sizes[5] = batch
    sizes[6] = batch
    sizes[7] = batch * width
    sizes[8] = sizes[7]
    sizes[9] = (width + 1) * SNAIL_PANEL
    sizes[10] = SNAIL_PANEL * width
    sizes[11] = batch * window * width
    sizes[12] = words
    sizes[13] = batch * window
    for k in range(14):
        parts[k] = base + at if base != NULL else NULL
        at += padded_floats(sizes[k])
    s.batch = batch
    s.hidden = parts[0]
    s.scaled = parts[1]
    s.shares = parts[2]
    s.shift = parts[3]
    s.most = parts[4]
    s.sums = parts[5]
    s.target = parts[6]
    s.back = parts[7]
    s.down = parts[8]
    s.gradient = parts[9]
    s.across = parts[10]
    s.rows = parts[11]
    s.places = <int32_t *>parts[12]
    s.touched = <int32_t *>parts[13]
    return at


cdef inline void cbow_means(const CbowNet *net, CbowScratch *s, const int32_t *windows,
                            int64_t n) noexcept nogil:
    """Hidden rows: the mean of a window's words but the middle one; a 1 that meets the biases."""
    cdef int64_t i, j, d, width = net.width, middle = net.window // 2
    cdef float share = <float>(1.0 / (net.window - 1))
    cdef float *hidden
    cdef const float *row
    for i in range(n):
        hidden = s.hidden + i * hidden_stride(width)
        memset(hidden, 0, hidden_stride(width) * sizeof(float))
        for j in range(net.window):
            if j != middle:
                row = net.embedding.weights + windows[i * net.window + j] * width
                for d in range(width):
                    hidden[d] += row[d]
        for d in range(width):
            hidden[d] *= share
        hidden[width] = 1


cdef inline double cbow_forward(const CbowNet *net, CbowScratch *s, const int32_t *windows,
                                int64_t n, bint keep) noexcept nogil:
    """Sum of the losses of n windows; with `keep` the exponentials of all panels stay."""
    cdef int64_t i, p, j, count, middle = net.window // 2, rows = net.width + 1
    cdef int64_t panel_num = panels_of(net.words)
    cdef int32_t word
    cdef float *shares
    cdef double loss = 0
    cbow_means(net, s, windows, n)
    for i in range(n):
        s.most[i] = <float>-3e38
        s.sums[i] = 0
    for p in range(panel_num):
        shares = s.shares + (p * n * SNAIL_PANEL if keep else 0)
        count = min(net.words - p * SNAIL_PANEL, <int64_t>SNAIL_PANEL)
        snail_panel_logits(<int>n, s.hidden, hidden_stride(net.width), <int>rows,
                           net.output.weights + p * rows * SNAIL_PANEL, shares)
        for i in range(n):
            word = windows[i * net.window + middle]
            if word // SNAIL_PANEL == p:
                s.target[i] = shares[i * SNAIL_PANEL + word % SNAIL_PANEL]
            for j in range(count, SNAIL_PANEL):     # places of no word: no share of the sum,
                shares[i * SNAIL_PANEL + j] = <float>-3e38
            s.sums[i] = snail_panel_exp(shares + i * SNAIL_PANEL, &s.most[i], s.sums[i])
            for j in range(count, SNAIL_PANEL):     # and no gradient
                shares[i * SNAIL_PANEL + j] = 0
            s.shift[p * s.batch + i] = s.most[i]
    for i in range(n):
        loss += s.most[i] + log(s.sums[i]) - s.target[i]
    return loss


cdef inline void cbow_panel_step(const CbowNet *net, CbowScratch *s, const int32_t *windows,
                                 int64_t n, int64_t p, float rate, float root) noexcept nogil:
    """Gradient of the mean loss by a panel; its part of dL/d mean; and the panel's step."""
    cdef int64_t i, d, middle = net.window // 2, width = net.width, rows = net.width + 1
    cdef int64_t stride = hidden_stride(width), first = p * rows * SNAIL_PANEL
    cdef float *shares = s.shares + p * n * SNAIL_PANEL
    cdef float *panel = net.output.weights + first
    cdef int32_t word
    cdef float factor
    snail_panel_across(panel, <int>width, s.across)
    for i in range(n):
        factor = snail_exp(max(s.shift[p * s.batch + i] - s.most[i], <float>C_LEAST)) \
            / (s.sums[i] * n)
        s.shift[p * s.batch + i] = factor
        for d in range(rows):
            s.scaled[i * stride + d] = s.hidden[i * stride + d] * factor
        word = windows[i * net.window + middle]
        if word // SNAIL_PANEL == p:                # the truth: 1/n, in the panel's scale
            shares[i * SNAIL_PANEL + word % SNAIL_PANEL] -= 1 / (factor * n)
    snail_panel_gradient(<int>n, s.scaled, stride, <int>rows, shares, s.gradient)
    snail_panel_back(<int>n, shares, s.across, <int>width, s.back)
    for i in range(n):
        factor = s.shift[p * s.batch + i]
        for d in range(width):
            s.down[i * width + d] += factor * s.back[i * width + d]
    snail_adam(rows * SNAIL_PANEL, panel, net.output.first + first, net.output.second + first,
               s.gradient, rate, root, net.beta1, net.beta2, net.eps)


cdef inline void cbow_rows_step(const CbowNet *net, CbowScratch *s, const int32_t *windows,
                                int64_t n) noexcept nogil:
    """The step of the embedding's rows that the batch touched, each once."""
    cdef int64_t i, j, d, at, count = 0, width = net.width, middle = net.window // 2
    cdef float share = <float>(1.0 / (net.window - 1))
    cdef int32_t word
    cdef double steps
    cdef float *row
    for i in range(n):
        for j in range(net.window):
            if j == middle:
                continue
            word = windows[i * net.window + j]
            if s.places[word] == C_NO_PLACE:
                s.places[word] = <int32_t>count
                s.touched[count] = word
                memset(s.rows + count * width, 0, width * sizeof(float))
                count += 1
            row = s.rows + s.places[word] * width
            for d in range(width):
                row[d] += share * s.down[i * width + d]
    for at in range(count):
        word = s.touched[at]
        s.places[word] = C_NO_PLACE
        net.counts[word] += 1
        steps = net.counts[word]
        snail_adam(width, net.embedding.weights + word * width,
                   net.embedding.first + word * width, net.embedding.second + word * width,
                   s.rows + at * width, <float>(net.lr / (1 - pow(net.beta1, steps))),
                   <float>(1 / sqrt(1 - pow(net.beta2, steps))), net.beta1, net.beta2, net.eps)


cdef inline double cbow_step(const CbowNet *net, CbowScratch *s, const int32_t *windows, int64_t n,
                             double steps) noexcept nogil:
    """Sum of the losses of a batch before its step, which is the `steps`-th of the output weights."""
    cdef double loss = cbow_forward(net, s, windows, n, True)
    cdef float rate = <float>(net.lr / (1 - pow(net.beta1, steps)))
    cdef float root = <float>(1 / sqrt(1 - pow(net.beta2, steps)))
    cdef int64_t p
    memset(s.down, 0, n * net.width * sizeof(float))
    for p in range(panels_of(net.words)):
        cbow_panel_step(net, s, windows, n, p, rate, root)
    cbow_rows_step(net, s, windows, n)
    return loss
