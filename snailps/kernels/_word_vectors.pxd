# Word-vector training, one group of centres at a time; the body of _kernels.train_words.
#
#     tokens -> plan_group -> Group (who meets whom) -> train_group -> rows, changed in place
#
# Inline functions only: each build of the kernels compiles them for its own instruction set.
# Nothing here allocates, takes the GIL or checks an argument; the door in _kernels.pyx does.
#
# How a group is trained.  16 consecutive centres are the 16 *lanes* of small matrices.
#
#     rows  R = [32 shared noise rows | rows of the positive words]     read in place
#     lanes H = hidden vectors                                          16 x dim, scratch
#     S = R H'      C = rate * weight * (label - sigmoid(S))            (rows x 16), scratch
#     gradient of H = C' R,  then R += C H,  then each input row of a lane's bag += its gradient
#
# With AdaGrad C has no rate, and a row's part of C H, or of the gradient of a lane, is one step for
# that row: its elements' squares are added up, and the step divided by their root.
#
# Skip-gram: lane = centre word's bag, positive rows = the words around, C non-zero in a band.
# CBOW: lane = mean over the bags around, positive rows = the centres, C non-zero on the diagonal.
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memset

from snailps.abi._key_hash cimport mix64

cdef extern from "kernels/_tiles.h" nogil:
    void snail_score(int row_num, const float *const *rows, const float *across, int dim,
                     float *out)
    void snail_lanes_from_rows(int add, int src_num, const float *const *src, const float *coef,
                               float *const *dst, int stride)
    void snail_rows_from_lanes(int lane_num, const float *const *src, const float *coef,
                               float *const *dst, int stride)
    void snail_gradients_from_lanes(int lane_num, const float *const *src, const float *coef,
                                    float *const *dst, int stride)
    void snail_adagrad_row(int stride, float *row, float *squares, const float *value, float rate,
                           float epsilon)
    void snail_sum_rows(int row_num, const int32_t *rows, const float *table, int64_t stride,
                        float scale, float *out)
    void snail_transpose(const float *along, int stride, float *across)
    void snail_judge(float *coef, float noise_logit, float sign, float rate, const float *weight,
                     float *loss)

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void *address, int write, int locality) nogil

cdef enum:
    C_GROUP = 16            # lanes of a group; SNAIL_GROUP in _tiles.h
    C_SHARED = 32           # noise words of a group
    C_PAD = 16              # floats in a cache line: strides are multiples of it
    C_REPEAT = 1            # lanes of a group that may have the same centre: see plan_group
    C_TILE = 4              # rows that one update tile writes
    SKIP_GRAM = 0
    CBOW = 1


# ---- what a call and a group consist of ----------------------------------------------------------

cdef struct Job:            # constant during a call
    float *inputs
    float *outputs
    float *input_squares    # AdaGrad's state beside them, or NULL: plain steps
    float *output_squares
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
    float epsilon
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
    float *steps            # AdaGrad: [TILE, stride], gradients of the rows of a tile
    float *step_row[C_TILE]
    float *bags             # CBOW: [slots, stride] sums, then gradients
    float *mix              # CBOW: [slots, GROUP]
    const float **rows      # [row_max]
    float **hidden_row      # [GROUP]
    float **hidden_gradient_row
    float **bag_row         # CBOW: [slots]


cdef inline uint64_t draw(uint64_t stream, uint64_t k) noexcept nogil:
    return mix64(stream + <uint64_t>0x9E3779B97F4A7C15 * (k + 1))


cdef inline uint64_t below(uint64_t random, uint64_t bound) noexcept nogil:
    """0..bound-1 from the high half; the bias is below bound / 2^32."""
    return ((random >> 32) * bound) >> 32


cdef inline void plan_group(const Job *job, Group *g, Py_ssize_t start, uint64_t number) noexcept nogil:
    """The group whose first centre is the first word at or behind `start`.

    It ends early where a centre would come again.  All lanes start from the same vectors, so a
    word that is several lanes takes the same step several times: in small vocabularies, or text
    where words come in bursts, that overshoots until the vectors diverge (200 words at a rate of
    0.05: loss 37 instead of 0.26).  On ordinary text it costs 12 % of the speed and gains 0.03
    in loss.
    """
    cdef const int32_t *tokens = job.tokens
    cdef Py_ssize_t at = start, left, right
    cdef int window = job.window
    cdef int slots = 0, lanes = 0, sentence = 0, sentence_lane = 0
    cdef int reach, repeats, i, first, last
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
            repeats = 0
            for i in range(lanes):
                repeats += g.centre[i] == tokens[at]
            if repeats == C_REPEAT:
                break
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
        if job.input_squares != NULL:
            prefetch_row(job.input_squares + job.bag_rows[r] * job.stride, job.stride)


cdef inline void prefetch_output(const Job *job, int word) noexcept nogil:
    prefetch_row(job.outputs + word * job.stride, job.stride)
    if job.output_squares != NULL:
        prefetch_row(job.output_squares + word * job.stride, job.stride)


cdef inline void prefetch_group(const Job *job, const Group *g) noexcept nogil:
    """Asks for the rows of a group while the one before it is being computed."""
    cdef int i
    for i in range(C_SHARED):
        prefetch_output(job, g.shared[i])
    if job.model == SKIP_GRAM:
        for i in range(g.slot_num):
            prefetch_output(job, g.slot[i])
        for i in range(g.lane_num):
            prefetch_bag(job, g.centre[i])
    else:
        for i in range(g.lane_num):
            prefetch_output(job, g.centre[i])
        for i in range(g.slot_num):
            prefetch_bag(job, g.slot[i])


# ---- one group -----------------------------------------------------------------------------------

cdef inline void add_to_bag(const Job *job, int word, const float *gradient,
                            float rate) noexcept nogil:
    """A step of each row of a bag; plain gradients have the rate in them already."""
    cdef int64_t r
    cdef int64_t d
    cdef int64_t stride = job.stride
    cdef float *row
    if job.input_squares != NULL:
        for r in range(job.bag_ptr[word], job.bag_ptr[word + 1]):
            d = job.bag_rows[r] * stride
            snail_adagrad_row(<int>stride, job.inputs + d, job.input_squares + d, gradient, rate,
                              job.epsilon)
        return
    for r in range(job.bag_ptr[word], job.bag_ptr[word + 1]):
        row = job.inputs + job.bag_rows[r] * stride
        for d in range(stride):
            row[d] += gradient[d]


cdef inline void step_outputs(const Job *job, Scratch *s, int first, int row_num, int lane_num,
                              const float *const *hidden, const float *coef,
                              float rate) noexcept nogil:
    """A step of AdaGrad of the output rows of a tile, of which the last may only fill it up."""
    cdef int i
    cdef float *row
    snail_gradients_from_lanes(lane_num, hidden, coef, <float *const *>s.step_row,
                               <int>job.stride)
    for i in range(min(C_TILE, row_num - first)):
        row = <float *>s.rows[first + i]
        snail_adagrad_row(<int>job.stride, row, job.output_squares + (row - job.outputs),
                          s.step_row[i], rate, job.epsilon)


cdef inline int sum_bag(const Job *job, int word, bint mean, float *out) noexcept nogil:
    """Sum or mean of a word's rows; returns how many there are."""
    cdef int64_t begin = job.bag_ptr[word]
    cdef int count = <int>(job.bag_ptr[word + 1] - begin)
    snail_sum_rows(count, job.bag_rows + begin, job.inputs, job.stride,
                   (<float>1.0 / count) if mean else <float>1.0, out)
    return count


cdef inline void hide_skip_gram(const Job *job, const Group *g, Scratch *s) noexcept nogil:
    """Hidden vector of a lane: the mean of its centre's bag."""
    cdef int i
    for i in range(g.lane_num):
        sum_bag(job, g.centre[i], True, s.hidden_row[i])


cdef inline void hide_cbow(const Job *job, const Group *g, Scratch *s) noexcept nogil:
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


cdef inline void spread_cbow(const Job *job, const Group *g, Scratch *s,
                             float rate) noexcept nogil:
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
        add_to_bag(job, g.slot[j], s.bag_row[j], rate)


cdef inline double train_group(const Job *job, const Group *g, Scratch *s, float rate) noexcept nogil:
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
    cdef float factor = rate if job.output_squares == NULL else <float>1
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
        word = &g.centre[0]
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
        snail_judge(s.coef + t * C_GROUP, job.noise_logit[g.shared[t]], -1, factor, weight, loss)
    for j in range(positives):
        for i in range(C_GROUP):
            weight[i] = (begin[i] <= j) & (j < end[i]) & (own[i] != j)
        snail_judge(s.coef + (C_SHARED + j) * C_GROUP, job.noise_logit[word[j]], 1, factor, weight,
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
        if job.output_squares != NULL:
            step_outputs(job, s, t, C_SHARED + positives, high - low,
                         <const float *const *>(s.hidden_row + low), s.coef + t * C_GROUP + low,
                         rate)
            continue
        snail_rows_from_lanes(high - low, <const float *const *>(s.hidden_row + low),
                              s.coef + t * C_GROUP + low, <float *const *>(s.rows + t), stride)
    if job.model == SKIP_GRAM:
        for i in range(g.lane_num):
            if g.contexts[i] > 0:
                add_to_bag(job, g.centre[i], s.hidden_gradient_row[i], rate)
    else:
        spread_cbow(job, g, s, rate)
    return total


# ---- one call ------------------------------------------------------------------------------------

cdef inline void *take(char **arena, size_t size) noexcept nogil:
    cdef void *taken = arena[0]
    arena[0] += (size + 63) // 64 * 64
    return taken


cdef inline size_t lay_out(char *arena, const Job *job, Scratch *s, Group *groups) noexcept nogil:
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
    s.steps = <float *>take(&at, C_TILE * row)
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


cdef inline void train(const Job *job, Scratch *s, Group *groups, double *loss,
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
    for i in range(C_TILE):
        s.step_row[i] = s.steps + i * job.stride
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
