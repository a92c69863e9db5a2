# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=True
"""Numeric loops: first values and updates of stored rows, word-vector training, row arithmetic.

    seed, key -> init -> row              row, pushed value -> apply -> row
    tokens, rows of a block, noise words -> train_words -> the same rows, trained

Built several times from this one source (see setup.py); `snailps.kernels` picks a build, and the
docstrings of the public functions are in `_kernels.pyi`.  The loops allocate nothing, release the
GIL and know arrays only: no keys of tables, no threads' lives, no sockets.  Each has a NumPy twin
in tests/twins/kernels.py.

How a group is trained.  16 consecutive centres are the 16 *lanes* of small matrices.

    rows  R = [32 shared noise rows | rows of the positive words]     read in place
    lanes H = hidden vectors                                          16 x dim, scratch
    S = R H'      C = rate * weight * (label - sigmoid(S))            (rows x 16), scratch
    gradient of H = C' R,  then R += C H,  then each input row of a lane's bag += its gradient

Skip-gram: lane = centre word's bag, positive rows = the words around, C non-zero in a band.
CBOW: lane = mean over the bags around, positive rows = the centres, C non-zero on the diagonal.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport sqrtf
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from snailps._hash cimport hash_key, mix64
from snailps._ops cimport (
    ACCESS_ADAGRAD, ACCESS_ADD, ACCESS_SGD, INIT_NORMAL, INIT_UNIFORM, INIT_ZEROS, RowOps,
)

import numpy as np

cdef extern from "_tiles.h" nogil:
    const int SNAIL_LANES
    void snail_score(int row_num, const float *const *rows, const float *across, int dim,
                     float *out)
    void snail_lanes_from_rows(int add, int src_num, const float *const *src, const float *coef,
                               float *const *dst, int stride)
    void snail_rows_from_lanes(int lane_num, const float *const *src, const float *coef,
                               float *const *dst, int stride)
    void snail_sum_rows(int row_num, const int32_t *rows, const float *table, int64_t stride,
                        float scale, float *out)
    void snail_transpose(const float *along, int stride, float *across)
    void snail_judge(float *coef, float noise_logit, float sign, float rate, const float *weight,
                     float *loss)
    float snail_sigmoid(float x)
    float snail_log(float x)
    float snail_grid(uint64_t draw)
    float snail_normal(uint64_t draw)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address, int write, int locality) nogil

cdef enum:
    C_GROUP = 16            # lanes of a group; SNAIL_GROUP in _tiles.h
    C_SHARED = 32           # noise words of a group
    C_PAD = 16              # floats in a cache line: strides are multiples of it
    C_TILE = 4              # rows that one update tile writes
    C_DIM_MAX = 65536
    C_WINDOW_MAX = 256
    SKIP_GRAM = 0
    CBOW = 1

cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15

LANES = SNAIL_LANES
GROUP = C_GROUP
SHARED = C_SHARED
PAD = C_PAD


# ---- stored rows ---------------------------------------------------------------------------------

cdef void init(int kind, float scale, uint64_t seed, uint64_t key,
               float *row, uint32_t dim) noexcept nogil:
    """Element j takes draw j + 1 of SplitMix64 started at a hash of (seed, key)."""
    cdef uint64_t start = mix64(hash_key(key) ^ hash_key(~seed))
    cdef uint64_t golden = GOLDEN
    cdef uint32_t j
    cdef float step
    if kind == INIT_UNIFORM:
        step = scale * <float>(1.0 / (1 << 23))
        for j in range(dim):
            row[j] = step * snail_grid(mix64(start + golden * (j + <uint64_t>1)))
    elif kind == INIT_NORMAL:
        for j in range(dim):
            row[j] = scale * snail_normal(mix64(start + golden * (j + <uint64_t>1)))
    else:
        memset(row, 0, dim * sizeof(float))


cdef void apply(int access, const float *hyper, float *row,
                const float *value, uint32_t dim) noexcept nogil:
    cdef uint32_t j
    cdef float rate = hyper[0]
    cdef float epsilon = hyper[1]
    cdef float total
    cdef float *state = row + dim
    if access == ACCESS_ADD:
        for j in range(dim):
            row[j] += value[j]
    elif access == ACCESS_SGD:
        for j in range(dim):
            row[j] -= rate * value[j]
    elif access == ACCESS_ADAGRAD:
        for j in range(dim):
            total = state[j] + value[j] * value[j]
            state[j] = total
            row[j] -= rate * value[j] / (sqrtf(total) + epsilon)


cdef RowOps ROW_OPS
ROW_OPS.init = init
ROW_OPS.apply = apply


def row_ops():
    return PyCapsule_New(&ROW_OPS, b"snailps.row_ops", NULL)


def init_row(int kind, float scale, uint64_t seed, uint64_t key, Py_ssize_t dim):
    if kind not in (INIT_ZEROS, INIT_UNIFORM, INIT_NORMAL):
        raise ValueError(f"kind must be 0 (zeros), 1 (uniform) or 2 (normal), got {kind}")
    if not 1 <= dim <= C_DIM_MAX:
        raise ValueError(f"dim must be 1 to {C_DIM_MAX}, got {dim}")
    row = np.empty(dim, np.float32)
    cdef float[::1] view = row
    with nogil:
        init(kind, scale, seed, key, &view[0], <uint32_t>dim)
    return row


def apply_row(int access, const float[::1] hyper, float[::1] row, const float[::1] value):
    if access not in (ACCESS_ADD, ACCESS_SGD, ACCESS_ADAGRAD):
        raise ValueError(f"access must be 0 (add), 1 (sgd) or 2 (adagrad), got {access}")
    cdef Py_ssize_t dim = value.shape[0]
    cdef Py_ssize_t wanted = 2 * dim if access == ACCESS_ADAGRAD else dim
    if hyper.shape[0] != 4:
        raise ValueError(f"hyper must have 4 numbers, got {hyper.shape[0]}")
    if not 1 <= dim <= C_DIM_MAX:
        raise ValueError(f"value must have 1 to {C_DIM_MAX} numbers, got {dim}")
    if row.shape[0] != wanted:
        raise ValueError(f"row must have {wanted} numbers for {dim} values, got {row.shape[0]}")
    with nogil:
        apply(access, &hyper[0], &row[0], &value[0], <uint32_t>dim)


# ---- word vectors: what a call and a group consist of --------------------------------------------

cdef struct Job:            # constant during a call
    float *inputs
    float *outputs
    const int32_t *tokens
    const int64_t *bag_ptr
    const int32_t *bag_rows
    const int32_t *noise
    const float *noise_logit
    Py_ssize_t token_num
    uint64_t noise_num
    int64_t stride
    int dim
    int model
    int window
    float negatives
    float rate_start
    float rate_stop
    uint64_t stream         # start of this call's SplitMix64 stream


cdef struct Group:          # which words meet in one group; slots are the tokens in reach of it
    int lane_num
    int slot_num
    Py_ssize_t first                # token of lane 0
    Py_ssize_t next                 # first token behind the group
    int centre[C_GROUP]
    int own[C_GROUP]                # slot of the centre itself
    int begin[C_GROUP]              # contexts of a lane: slots begin..end-1 without `own`;
    int end[C_GROUP]                # begin = end = 0 in unused lanes
    int contexts[C_GROUP]
    int shared[C_SHARED]            # noise words
    int *slot                       # words


cdef struct Scratch:        # rows are `stride` floats; row_max = slots + SHARED, rounded up to a tile
    float *hidden           # [GROUP, stride]
    float *hidden_gradient  # [GROUP, stride]
    float *across           # [stride, GROUP]: hidden, transposed
    float *coef             # [row_max, GROUP]: scores, then rates
    float *idle             # [stride] zeros: stands in for rows that fill up a tile
    float *bags             # CBOW: [slots, stride] sums, then gradients
    float *mix              # CBOW: [slots, GROUP]
    const float **rows      # [row_max]
    float **hidden_row      # [GROUP]
    float **hidden_gradient_row
    float **bag_row         # CBOW: [slots]


cdef inline uint64_t draw(uint64_t stream, uint64_t k) noexcept nogil:
    return mix64(stream + GOLDEN * (k + 1))


cdef inline uint64_t below(uint64_t random, uint64_t bound) noexcept nogil:
    """0..bound-1 from the high half; the bias is below bound / 2^32."""
    return ((random >> 32) * bound) >> 32


cdef void plan_group(const Job *job, Group *g, Py_ssize_t start, uint64_t number) noexcept nogil:
    """The group whose first centre is the first word at or behind `start`."""
    cdef const int32_t *tokens = job.tokens
    cdef Py_ssize_t at = start, left, right
    cdef int window = job.window
    cdef int slots = 0, lanes = 0, sentence = 0, sentence_lane = 0, reach, i, first, last
    cdef uint64_t k = number * (C_GROUP + C_SHARED)
    while at < job.token_num and tokens[at] < 0:
        at += 1
    g.first = at
    left = at
    while left > 0 and at - left < window and tokens[left - 1] >= 0:
        left -= 1
    while left < at:
        g.slot[slots] = tokens[left]
        slots += 1
        left += 1
    while at < job.token_num and lanes < C_GROUP:
        if tokens[at] < 0:
            for i in range(sentence_lane, lanes):
                g.end[i] = min(g.end[i], slots)
            sentence = slots
            sentence_lane = lanes
        else:
            reach = 1 + <int>below(draw(job.stream, k + lanes), window)
            g.centre[lanes] = tokens[at]
            g.own[lanes] = slots
            g.begin[lanes] = max(sentence, slots - reach)
            g.end[lanes] = slots + 1 + reach
            g.slot[slots] = tokens[at]
            slots += 1
            lanes += 1
        at += 1
    right = at
    while right < job.token_num and right - at < window and tokens[right] >= 0:
        g.slot[slots] = tokens[right]
        slots += 1
        right += 1
    # Only slots that some lane can see stay: the outermost reaches are rarely the whole window.
    first = slots
    last = 0
    for i in range(lanes):
        if i >= sentence_lane:
            g.end[i] = min(g.end[i], slots)
        g.contexts[i] = g.end[i] - g.begin[i] - 1
        first = min(first, g.begin[i])
        last = max(last, g.end[i])
    for i in range(last - first):
        g.slot[i] = g.slot[i + first]
    for i in range(lanes):
        g.own[i] -= first
        g.begin[i] -= first
        g.end[i] -= first
    for i in range(lanes, C_GROUP):
        g.centre[i] = -1
        g.own[i] = g.begin[i] = g.end[i] = g.contexts[i] = 0
    for i in range(C_SHARED):
        g.shared[i] = job.noise[below(draw(job.stream, k + C_GROUP + i), job.noise_num)]
    g.slot_num = max(last - first, 0)
    g.lane_num = lanes
    g.next = at


cdef inline void prefetch_row(const float *row, int64_t stride) noexcept nogil:
    cdef int64_t line
    for line in range(stride // C_PAD):
        prefetch(row + line * C_PAD, 1, 3)


cdef inline void prefetch_bag(const Job *job, int word) noexcept nogil:
    cdef int64_t r
    for r in range(job.bag_ptr[word], job.bag_ptr[word + 1]):
        prefetch_row(job.inputs + job.bag_rows[r] * job.stride, job.stride)


cdef void prefetch_group(const Job *job, const Group *g) noexcept nogil:
    """Asks for the rows of a group while the one before it is being computed."""
    cdef int i
    for i in range(C_SHARED):
        prefetch_row(job.outputs + g.shared[i] * job.stride, job.stride)
    if job.model == SKIP_GRAM:
        for i in range(g.slot_num):
            prefetch_row(job.outputs + g.slot[i] * job.stride, job.stride)
        for i in range(g.lane_num):
            prefetch_bag(job, g.centre[i])
    else:
        for i in range(g.lane_num):
            prefetch_row(job.outputs + g.centre[i] * job.stride, job.stride)
        for i in range(g.slot_num):
            prefetch_bag(job, g.slot[i])


# ---- word vectors: one group ---------------------------------------------------------------------

cdef inline void add_to_bag(const Job *job, int word, const float *gradient) noexcept nogil:
    cdef int64_t r
    cdef int64_t d
    cdef int64_t stride = job.stride
    cdef float *row
    for r in range(job.bag_ptr[word], job.bag_ptr[word + 1]):
        row = job.inputs + job.bag_rows[r] * stride
        for d in range(stride):
            row[d] += gradient[d]


cdef inline int sum_bag(const Job *job, int word, bint mean, float *out) noexcept nogil:
    """Sum or mean of a word's rows; returns how many there are."""
    cdef int64_t begin = job.bag_ptr[word]
    cdef int count = <int>(job.bag_ptr[word + 1] - begin)
    snail_sum_rows(count, job.bag_rows + begin, job.inputs, job.stride,
                   (<float>1.0 / count) if mean else <float>1.0, out)
    return count


cdef void hide_skip_gram(const Job *job, const Group *g, Scratch *s) noexcept nogil:
    """Hidden vector of a lane: the mean of its centre's bag."""
    cdef int i
    for i in range(g.lane_num):
        sum_bag(job, g.centre[i], True, s.hidden_row[i])


cdef void hide_cbow(const Job *job, const Group *g, Scratch *s) noexcept nogil:
    """Hidden vector of a lane: the mean over all rows of all bags around its centre."""
    cdef float count[C_GROUP]
    cdef float bag
    cdef int i, j
    for i in range(C_GROUP):
        count[i] = 0
    for j in range(g.slot_num):
        bag = sum_bag(job, g.slot[j], False, s.bag_row[j])
        for i in range(C_GROUP):
            if g.begin[i] <= j and j < g.end[i] and g.own[i] != j:
                s.mix[j * C_GROUP + i] = 1
                count[i] += bag
            else:
                s.mix[j * C_GROUP + i] = 0
    for i in range(C_GROUP):
        count[i] = 1 / count[i] if count[i] > 0 else 0
    for j in range(g.slot_num):
        for i in range(C_GROUP):
            s.coef[j * C_GROUP + i] = s.mix[j * C_GROUP + i] * count[i]
    for i in range(C_GROUP // C_TILE):
        snail_lanes_from_rows(0, g.slot_num, <const float *const *>s.bag_row,
                              s.coef + i * C_TILE, s.hidden_row + i * C_TILE, <int>job.stride)


cdef void spread_cbow(const Job *job, const Group *g, Scratch *s) noexcept nogil:
    """Adds each lane's gradient to every row of every bag around it."""
    cdef int j
    cdef int tiles = (g.slot_num + C_TILE - 1) // C_TILE * C_TILE
    memset(s.bags, 0, g.slot_num * job.stride * sizeof(float))
    for j in range(g.slot_num * C_GROUP, tiles * C_GROUP):
        s.mix[j] = 0
    for j in range(g.slot_num, tiles):
        s.bag_row[j] = s.idle
    for j in range(tiles // C_TILE):
        snail_rows_from_lanes(C_GROUP, <const float *const *>s.hidden_gradient_row,
                              s.mix + j * C_TILE * C_GROUP, s.bag_row + j * C_TILE,
                              <int>job.stride)
    for j in range(g.slot_num, tiles):
        s.bag_row[j] = s.bags + j * job.stride
    for j in range(g.slot_num):
        add_to_bag(job, g.slot[j], s.bag_row[j])


cdef double train_group(const Job *job, const Group *g, Scratch *s, float rate) noexcept nogil:
    """Trains one group; returns its loss.  All rows are read before the first one changes."""
    cdef int stride = <int>job.stride
    cdef int positives = g.slot_num if job.model == SKIP_GRAM else g.lane_num
    cdef int rows = (C_SHARED + positives + C_TILE - 1) // C_TILE * C_TILE
    cdef int begin[C_GROUP]         # positive rows begin..end-1 except `own` belong to a lane
    cdef int end[C_GROUP]
    cdef int own[C_GROUP]
    cdef float noise_weight[C_GROUP]
    cdef float weight[C_GROUP]
    cdef float loss[C_GROUP]
    cdef const int *word
    cdef float share = job.negatives / C_SHARED
    cdef double total = 0
    cdef int i, j, t, tile, low, high, hit

    if job.model == SKIP_GRAM:
        hide_skip_gram(job, g, s)
        word = g.slot
        for i in range(C_GROUP):
            begin[i] = g.begin[i]
            end[i] = g.end[i]
            own[i] = g.own[i]
            noise_weight[i] = share * g.contexts[i]
    else:
        hide_cbow(job, g, s)
        word = g.centre
        for i in range(C_GROUP):
            begin[i] = i
            end[i] = i + min(g.contexts[i], 1)
            own[i] = -1
            noise_weight[i] = share * min(g.contexts[i], 1)
    for i in range(C_GROUP):
        loss[i] = 0

    # scores
    for t in range(C_SHARED):
        s.rows[t] = job.outputs + g.shared[t] * job.stride
    for j in range(positives):
        s.rows[C_SHARED + j] = job.outputs + word[j] * job.stride
    for j in range(C_SHARED + positives, rows):
        s.rows[j] = s.idle
    snail_transpose(s.hidden, stride, s.across)
    snail_score(rows, s.rows, s.across, job.dim, s.coef)

    # coefficients: noise, positives, fill
    for t in range(C_SHARED):
        hit = 0
        for j in range(positives):
            hit |= word[j] == g.shared[t]
        for i in range(C_GROUP):
            weight[i] = noise_weight[i]
        if hit:
            for j in range(positives):
                if word[j] == g.shared[t]:
                    for i in range(C_GROUP):
                        if begin[i] <= j and j < end[i] and own[i] != j:
                            weight[i] = max(weight[i] - share, <float>0)
        snail_judge(s.coef + t * C_GROUP, job.noise_logit[g.shared[t]], -1, rate, weight, loss)
    for j in range(positives):
        for i in range(C_GROUP):
            weight[i] = (begin[i] <= j) & (j < end[i]) & (own[i] != j)
        snail_judge(s.coef + (C_SHARED + j) * C_GROUP, job.noise_logit[word[j]], 1, rate, weight,
                  loss)
    memset(s.coef + (C_SHARED + positives) * C_GROUP, 0,
           (rows - C_SHARED - positives) * C_GROUP * sizeof(float))
    for i in range(C_GROUP):
        total += loss[i]

    # gradient of the hidden vectors; of the positive rows only those that the tile's lanes see
    for tile in range(C_GROUP // C_TILE):
        i = tile * C_TILE
        snail_lanes_from_rows(0, C_SHARED, s.rows, s.coef + i, s.hidden_gradient_row + i, stride)
        low = positives
        high = 0
        for j in range(i, i + C_TILE):
            if begin[j] < end[j]:
                low = min(low, begin[j])
                high = max(high, end[j])
        if low < high:
            snail_lanes_from_rows(1, high - low, s.rows + C_SHARED + low,
                                  s.coef + (C_SHARED + low) * C_GROUP + i,
                                  s.hidden_gradient_row + i, stride)

    # rows, in place: the only moment at which another thread's addition to them can be lost
    for tile in range(rows // C_TILE):
        t = tile * C_TILE
        low = 0
        high = g.lane_num
        if t >= C_SHARED:
            j = t - C_SHARED
            while low < high and (end[low] <= j or begin[low] >= j + C_TILE):
                low += 1
            while low < high and (end[high - 1] <= j or begin[high - 1] >= j + C_TILE):
                high -= 1
        snail_rows_from_lanes(high - low, <const float *const *>(s.hidden_row + low),
                              s.coef + t * C_GROUP + low, <float *const *>(s.rows + t), stride)
    if job.model == SKIP_GRAM:
        for i in range(g.lane_num):
            if g.contexts[i] > 0:
                add_to_bag(job, g.centre[i], s.hidden_gradient_row[i])
    else:
        spread_cbow(job, g, s)
    return total


# ---- word vectors: one call ----------------------------------------------------------------------

cdef inline void *take(char **arena, size_t size) noexcept nogil:
    cdef void *taken = arena[0]
    arena[0] += (size + 63) // 64 * 64
    return taken


cdef size_t lay_out(char *arena, const Job *job, Scratch *s, Group *groups) noexcept nogil:
    """Places the scratch of a call at `arena`; returns its size (arena may be NULL to ask)."""
    cdef char *at = arena
    cdef size_t row = job.stride * sizeof(float)
    cdef size_t lane = C_GROUP * sizeof(float)
    cdef size_t slots = C_GROUP + 2 * job.window + C_TILE
    cdef size_t rows = slots + C_SHARED
    s.hidden = <float *>take(&at, C_GROUP * row)
    s.hidden_gradient = <float *>take(&at, C_GROUP * row)
    s.across = <float *>take(&at, C_GROUP * row)
    s.coef = <float *>take(&at, rows * lane)
    s.idle = <float *>take(&at, row)
    s.rows = <const float **>take(&at, rows * sizeof(void *))
    s.hidden_row = <float **>take(&at, C_GROUP * sizeof(void *))
    s.hidden_gradient_row = <float **>take(&at, C_GROUP * sizeof(void *))
    if job.model == CBOW:
        s.bags = <float *>take(&at, slots * row)
        s.mix = <float *>take(&at, slots * lane)
        s.bag_row = <float **>take(&at, slots * sizeof(void *))
    groups[0].slot = <int *>take(&at, slots * sizeof(int))
    groups[1].slot = <int *>take(&at, slots * sizeof(int))
    return at - arena


cdef void train(const Job *job, Scratch *s, Group *groups, double *loss,
                int64_t *examples) noexcept nogil:
    """Walks over the tokens, one group ahead with planning and prefetching."""
    cdef Group *now = &groups[0]
    cdef Group *ahead = &groups[1]
    cdef Group *swap
    cdef uint64_t number = 0
    cdef int64_t found
    cdef int i
    cdef float rate
    for i in range(C_GROUP):
        s.hidden_row[i] = s.hidden + i * job.stride
        s.hidden_gradient_row[i] = s.hidden_gradient + i * job.stride
    if job.model == CBOW:
        for i in range(C_GROUP + 2 * job.window + C_TILE):
            s.bag_row[i] = s.bags + i * job.stride
    plan_group(job, now, 0, number)
    while now.lane_num > 0:
        number += 1
        plan_group(job, ahead, now.next, number)
        prefetch_group(job, ahead)
        found = 0
        for i in range(now.lane_num):
            found += now.contexts[i] if job.model == SKIP_GRAM else min(now.contexts[i], 1)
        if found > 0:
            rate = job.rate_start + (job.rate_stop - job.rate_start) * (
                <float>now.first / <float>job.token_num)
            loss[0] += train_group(job, now, s, rate)
            examples[0] += found
        swap = now
        now = ahead
        ahead = swap


cdef bint in_range(const int32_t *x, Py_ssize_t n, int64_t low, int64_t high) noexcept nogil:
    """Whether all of x is in low..high-1; vectorises."""
    cdef Py_ssize_t i
    cdef int bad = 0
    cdef int32_t least = <int32_t>low
    cdef int32_t most = <int32_t>(high - 1)
    for i in range(n):
        bad |= (x[i] < least) | (x[i] > most)
    return bad == 0


cdef object check_rows(str name, const float[:, ::1] rows):
    if rows.shape[1] % C_PAD or (rows.shape[0] and (<uintptr_t>&rows[0, 0]) % (4 * C_PAD)):
        raise ValueError(
            f"{name} must have a stride that is a multiple of {C_PAD} and 64-byte alignment, got "
            f"shape ({rows.shape[0]}, {rows.shape[1]}); allocate it with snailps.kernels.padded")


cdef object check_bags(const int64_t[::1] bag_ptr, const int32_t[::1] bag_rows,
                       Py_ssize_t row_num, int64_t least):
    """Bags of at least `least` rows, all inside the table."""
    cdef Py_ssize_t w
    cdef int bad = 0
    if bag_ptr.shape[0] < 1 or bag_ptr[0] != 0 or bag_ptr[bag_ptr.shape[0] - 1] > bag_rows.shape[0]:
        raise ValueError(
            f"bag_ptr must start with 0 and end within bag_rows ({bag_rows.shape[0]} entries)")
    with nogil:
        for w in range(bag_ptr.shape[0] - 1):
            bad |= bag_ptr[w + 1] - bag_ptr[w] < least
    if bad:
        raise ValueError(f"bag_ptr must rise by at least {least} from word to word")
    if bag_rows.shape[0] and not in_range(&bag_rows[0], bag_rows.shape[0], 0, row_num):
        raise ValueError(f"bag_rows must lie in 0..{row_num - 1}, the rows of inputs")


def train_words(float[:, ::1] inputs, float[:, ::1] outputs, int dim, const int32_t[::1] tokens,
                bag_ptr, const int32_t[::1] bag_rows, const int32_t[::1] noise,
                const float[::1] noise_logit, *, int model, int window, int negatives,
                float lr_start, float lr_stop, uint64_t seed):
    cdef const int64_t[::1] pointers = np.ascontiguousarray(bag_ptr, dtype=np.int64)
    cdef Py_ssize_t word_num = pointers.shape[0] - 1
    cdef Py_ssize_t out_num = outputs.shape[0]
    check_rows("inputs", inputs)
    check_rows("outputs", outputs)
    check_bags(pointers, bag_rows, inputs.shape[0], 1)
    if inputs.shape[1] != outputs.shape[1] or not 1 <= dim <= inputs.shape[1]:
        raise ValueError(f"inputs and outputs must be as wide as each other and at least dim = "
                         f"{dim}, at least 1; got {inputs.shape[1]} and {outputs.shape[1]}")
    if inputs.shape[1] > C_DIM_MAX:
        raise ValueError(f"rows must have at most {C_DIM_MAX} columns, got {inputs.shape[1]}")
    if noise_logit.shape[0] != out_num or word_num > out_num:
        raise ValueError(f"outputs ({out_num} rows) must have a row a word ({word_num}) and "
                         f"noise_logit a number a row, got {noise_logit.shape[0]}")
    if model not in (SKIP_GRAM, CBOW):
        raise ValueError(f"model must be 0 (skip-gram) or 1 (CBOW), got {model}")
    if not 1 <= window <= C_WINDOW_MAX:
        raise ValueError(f"window must be 1 to {C_WINDOW_MAX}, got {window}")
    if negatives < 1 or noise.shape[0] < 1:
        raise ValueError(f"negatives must be at least 1, got {negatives}, and noise must not be "
                         f"empty, got {noise.shape[0]} words")
    if not in_range(&noise[0], noise.shape[0], 0, out_num):
        raise ValueError(f"noise must lie in 0..{out_num - 1}, the rows of outputs")
    if tokens.shape[0] == 0:
        return 0.0, 0
    if not in_range(&tokens[0], tokens.shape[0], -1, word_num):
        raise ValueError(f"tokens must lie in -1..{word_num - 1}: words that have a bag")
    if word_num == 0 or inputs.shape[0] == 0:
        return 0.0, 0           # nothing but sentence ends

    cdef Job job
    cdef Scratch scratch
    cdef Group groups[2]
    cdef char *arena = NULL
    cdef size_t size
    cdef double loss = 0
    cdef int64_t examples = 0
    job.inputs = &inputs[0, 0]
    job.outputs = &outputs[0, 0]
    job.tokens = &tokens[0]
    job.bag_ptr = &pointers[0]
    job.bag_rows = &bag_rows[0]
    job.noise = &noise[0]
    job.noise_logit = &noise_logit[0]
    job.token_num = tokens.shape[0]
    job.noise_num = noise.shape[0]
    job.stride = inputs.shape[1]
    job.dim = dim
    job.model = model
    job.window = window
    job.negatives = negatives
    job.rate_start = lr_start
    job.rate_stop = lr_stop
    job.stream = hash_key(seed)
    size = lay_out(NULL, &job, &scratch, groups)
    if posix_memalign(<void **>&arena, 64, size) != 0:
        raise MemoryError(f"no memory for {size} bytes of scratch")
    with nogil:
        memset(arena, 0, size)
        lay_out(arena, &job, &scratch, groups)
        train(&job, &scratch, groups, &loss, &examples)
        free(arena)
    return loss, examples


# ---- row arithmetic ------------------------------------------------------------------------------

cdef object check_narrow(str narrow, Py_ssize_t n, Py_ssize_t dim, str wide, Py_ssize_t m,
                         Py_ssize_t stride):
    if n != m or dim > stride:
        raise ValueError(f"{narrow} ({n} x {dim}) must have as many rows as {wide} "
                         f"({m} x {stride}) and not be wider")


def subtract_rows(const float[:, ::1] new, const float[:, ::1] base, float[:, ::1] out):
    cdef Py_ssize_t i, d, n = out.shape[0], dim = out.shape[1], stride = new.shape[1]
    check_narrow("out", n, dim, "new", new.shape[0], stride)
    check_narrow("base", base.shape[0], base.shape[1], "new", new.shape[0], stride)
    if base.shape[1] != stride:
        raise ValueError(f"new and base must be equally wide, got {stride} and {base.shape[1]}")
    if n == 0 or dim == 0:
        return
    cdef const float *a = &new[0, 0]
    cdef const float *b = &base[0, 0]
    cdef float *c = &out[0, 0]
    with nogil:
        for i in range(n):
            for d in range(dim):
                c[i * dim + d] = a[i * stride + d] - b[i * stride + d]


def add_rows_at(float[:, ::1] target, const int32_t[::1] index, const float[:, ::1] values):
    cdef Py_ssize_t i, d, n = values.shape[0], dim = values.shape[1], stride = target.shape[1]
    if index.shape[0] != n or dim > stride:
        raise ValueError(f"values ({n} x {dim}) must have a row for each of {index.shape[0]} "
                         f"indices and not be wider than target ({stride})")
    if n == 0 or dim == 0:
        return
    if not in_range(&index[0], n, 0, target.shape[0]):
        raise ValueError(f"index must lie in 0..{target.shape[0] - 1}, the rows of target")
    cdef float *to = &target[0, 0]
    cdef const float *a = &values[0, 0]
    cdef float *row
    with nogil:
        for i in range(n):
            row = to + index[i] * stride
            for d in range(dim):
                row[d] += a[i * dim + d]


def copy_rows(const float[:, ::1] src, float[:, ::1] dst):
    cdef Py_ssize_t i, n = src.shape[0], dim = src.shape[1], stride = dst.shape[1]
    check_narrow("src", n, dim, "dst", dst.shape[0], stride)
    if n == 0 or stride == 0:
        return
    cdef const float *a = &src[0, 0] if dim else NULL
    cdef float *to = &dst[0, 0]
    with nogil:
        for i in range(n):
            if dim:
                memcpy(to + i * stride, a + i * dim, dim * sizeof(float))
            memset(to + i * stride + dim, 0, (stride - dim) * sizeof(float))


def bag_means(const float[:, ::1] inputs, bag_ptr, const int32_t[::1] bag_rows,
              float[:, ::1] out):
    cdef const int64_t[::1] pointers = np.ascontiguousarray(bag_ptr, dtype=np.int64)
    cdef Py_ssize_t k, n = out.shape[0], dim = out.shape[1], stride = inputs.shape[1]
    cdef Py_ssize_t d
    cdef int64_t r
    cdef float scale
    check_bags(pointers, bag_rows, inputs.shape[0], 0)
    if pointers.shape[0] - 1 != n or dim > stride:
        raise ValueError(f"out ({n} x {dim}) must have a row for each of {pointers.shape[0] - 1} "
                         f"bags and not be wider than inputs ({stride})")
    if n == 0 or dim == 0:
        return
    cdef const float *rows = &inputs[0, 0] if inputs.shape[0] else NULL
    cdef float *to = &out[0, 0]
    cdef const float *row
    with nogil:
        for k in range(n):
            memset(to + k * dim, 0, dim * sizeof(float))
            for r in range(pointers[k], pointers[k + 1]):
                row = rows + bag_rows[r] * stride
                for d in range(dim):
                    to[k * dim + d] += row[d]
            if pointers[k + 1] > pointers[k]:
                scale = 1 / <float>(pointers[k + 1] - pointers[k])
                for d in range(dim):
                    to[k * dim + d] *= scale


def score_probe(const float[::1] x):
    cdef Py_ssize_t i, n = x.shape[0]
    sigmoid = np.empty(n, np.float32)
    loss = np.empty(n, np.float32)
    cdef float[::1] a = sigmoid
    cdef float[::1] b = loss
    with nogil:
        for i in range(n):
            a[i] = snail_sigmoid(x[i])
            b[i] = -snail_log(a[i])
    return sigmoid, loss
