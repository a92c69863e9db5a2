# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=True
"""Numeric loops: first values and updates of stored rows, word-vector training, row arithmetic.

    seed, key -> init -> row              row, pushed value -> apply -> row        (_optimizers.h)
    row -> narrow -> bytes on the wire -> widen -> row                             (_wire_types.h)
    tokens, rows of a block, noise words -> train_words -> the same rows, trained
    features and labels of lines, rows   -> train_labels -> the same rows, trained
    sparse examples, rows with state     -> train_linear -> the same rows, trained
    sparse examples, rows -> csr_product -> first layer, dL/dZ -> csr_gradients    (_csr.pxd)
    windows of words, a network -> train_cbow -> the same network, trained         (_cbow.pxd)

Built several times from this one source (see setup.py); `snailps.kernels` picks a build, and the
docstrings of the public functions are in `_kernels.pyi`.  The loops allocate nothing, release the
GIL and know arrays only: no keys of tables, no threads' lives, no sockets.  Each has a NumPy twin
in tests/twins.  How word vectors are trained is in _word_vectors.pxd, classifiers in
_classifier.pxd, linear models in _linear.pxd.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport hash_key, mix64
from snailps.abi._row_ops cimport *
from snailps.abi._wire_types cimport *
from snailps.kernels._cbow cimport (
    C_NO_PLACE, CbowNet, CbowScratch, SNAIL_PANEL, cbow_forward, cbow_step, lay_out_cbow, panels_of,
    snail_add_weighted,
)
from snailps.kernels._classifier cimport (
    C_TOGETHER, ONE_VS_ALL, SAMPLING, SOFTMAX, LabelJob, LabelScratch, train_lines,
)
from snailps.kernels._csr cimport Csr, csr_columns, csr_gradient, csr_times_rows, snail_csr_sum
from snailps.kernels._fm cimport (
    FmJob, FmScratch, fm_constants, fm_difference, fm_score, fm_train, fm_unpack,
)
from snailps.kernels._linear cimport (
    LOGISTIC, MULTINOMIAL, SQUARED, STEP_ADAGRAD, STEP_FTRL, STEP_SGD, LinearJob, LinearScratch,
    scores_of, train_examples, weights_of,
)
from snailps.kernels._word_vectors cimport (
    C_GROUP, C_PAD, C_SHARED, CBOW, SKIP_GRAM, Group, Job, Scratch, lay_out, prefetch_row, train,
)

import numpy as np

cdef extern from "kernels/_tiles.h" nogil:
    const int SNAIL_LANES
    float snail_sigmoid(float x)
    float snail_log(float x)
    float snail_grid(uint64_t draw)
    float snail_normal(uint64_t draw)

cdef extern from "kernels/_optimizers.h" nogil:
    void snail_step_add(const float *, float *, const float *, uint32_t) noexcept
    void snail_step_sgd(const float *, float *, const float *, uint32_t) noexcept
    void snail_step_adagrad(const float *, float *, const float *, uint32_t) noexcept
    void snail_step_adam(const float *, float *, const float *, uint32_t) noexcept
    void snail_step_ftrl(const float *, float *, const float *, uint32_t) noexcept
    void snail_step_momentum(const float *, float *, const float *, uint32_t) noexcept
    void snail_step_average(const float *, float *, const float *, uint32_t) noexcept
    void snail_merge_adagrad(const float *, float *, const float *, uint32_t) noexcept
    void snail_merge_ftrl(const float *, float *, const float *, uint32_t) noexcept
    void snail_first_ftrl(const float *, float *, uint32_t) noexcept

ctypedef void (*Narrow)(const float *, char *, uint32_t) noexcept nogil
ctypedef void (*Widen)(const char *, float *, uint32_t) noexcept nogil
ctypedef void (*NarrowOwing)(const float *, float *, char *, uint32_t) noexcept nogil

cdef extern from "kernels/_wire_types.h" nogil:
    Narrow snail_narrow_float32, snail_narrow_float16, snail_narrow_bfloat16, snail_narrow_int8
    Widen snail_widen_float32, snail_widen_float16, snail_widen_bfloat16, snail_widen_int8
    NarrowOwing snail_narrow_owing_float32, snail_narrow_owing_float16
    NarrowOwing snail_narrow_owing_bfloat16, snail_narrow_owing_int8

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef enum:
    C_DIM_MAX = 65536
    C_WINDOW_MAX = 256
    C_ROWS_AHEAD = 8        # rows, whose places are known, asked for ahead

cdef uint64_t GOLDEN = <uint64_t>0x9E3779B97F4A7C15

LANES = SNAIL_LANES
GROUP = C_GROUP
SHARED = C_SHARED
PAD = C_PAD
PANEL = SNAIL_PANEL


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
    elif kind == INIT_NORMAL or kind == INIT_FACTORS:
        for j in range(dim):
            row[j] = scale * snail_normal(mix64(start + golden * (j + <uint64_t>1)))
        if kind == INIT_FACTORS:
            row[0] = 0
    else:
        memset(row, 0, dim * sizeof(float))


cdef void init_state(int access, const float *hyper, float *row, uint32_t dim) noexcept nogil:
    if access == ACCESS_FTRL:
        snail_first_ftrl(hyper, row, dim)
    else:
        memset(row + dim, 0, state_floats_of(access, dim) * sizeof(float))


cdef RowOps ROW_OPS
ROW_OPS.init = init
ROW_OPS.init_state = init_state
ROW_OPS.apply[ACCESS_ADD] = snail_step_add
ROW_OPS.apply[ACCESS_SGD] = snail_step_sgd
ROW_OPS.apply[ACCESS_ADAGRAD] = snail_step_adagrad
ROW_OPS.apply[ACCESS_ADAM] = snail_step_adam
ROW_OPS.apply[ACCESS_FTRL] = snail_step_ftrl
ROW_OPS.apply[ACCESS_AVERAGE] = snail_step_average
ROW_OPS.apply[ACCESS_MOMENTUM] = snail_step_momentum
ROW_OPS.add_state[ACCESS_ADD] = snail_step_add
ROW_OPS.add_state[ACCESS_SGD] = snail_step_add
ROW_OPS.add_state[ACCESS_ADAGRAD] = snail_merge_adagrad
ROW_OPS.add_state[ACCESS_ADAM] = NULL           # moments decay: two workers' do not add up
ROW_OPS.add_state[ACCESS_FTRL] = snail_merge_ftrl
ROW_OPS.add_state[ACCESS_AVERAGE] = NULL        # values are what adds up
ROW_OPS.add_state[ACCESS_MOMENTUM] = NULL       # as adam's
ROW_OPS.sum = snail_csr_sum


def row_ops():
    return PyCapsule_New(&ROW_OPS, b"snailps.row_ops", NULL)


def init_row(int kind, float scale, uint64_t seed, uint64_t key, Py_ssize_t dim):
    if kind not in (INIT_ZEROS, INIT_UNIFORM, INIT_NORMAL, INIT_FACTORS):
        raise ValueError(f"kind must be 0 (zeros), 1 (uniform), 2 (normal) or 3 (factors), got {kind}")
    if not 1 <= dim <= C_DIM_MAX:
        raise ValueError(f"dim must be 1 to {C_DIM_MAX}, got {dim}")
    row = np.empty(dim, np.float32)
    cdef float[::1] view = row
    with nogil:
        init(kind, scale, seed, key, &view[0], <uint32_t>dim)
    return row


cdef object check_step(int access, Py_ssize_t hyper_num, Py_ssize_t row_floats, Py_ssize_t dim):
    """Refuses what a step would read or write outside of its arrays."""
    if not 0 <= access < ACCESS_NUM:
        raise ValueError(f"access must be 0 to {ACCESS_NUM - 1} (see Access in abi/_row_ops.pxd), "
                         f"got {access}")
    if hyper_num != HYPER_NUM:
        raise ValueError(f"hyper must have {HYPER_NUM} numbers, got {hyper_num}")
    if not 1 <= dim <= C_DIM_MAX:
        raise ValueError(f"dim must be 1 to {C_DIM_MAX}, got {dim}")
    wanted = dim + state_floats_of(access, <uint32_t>dim)
    if row_floats != wanted:
        raise ValueError(f"row must have {wanted} numbers for dim {dim}, got {row_floats}")


def apply_row(int access, const float[::1] hyper, float[::1] row, const float[::1] value):
    cdef Py_ssize_t dim = value.shape[0] - (access == ACCESS_AVERAGE)
    check_step(access, hyper.shape[0], row.shape[0], dim)
    with nogil:
        ROW_OPS.apply[access](&hyper[0], &row[0], &value[0], <uint32_t>dim)


def add_state_row(int access, const float[::1] hyper, float[::1] row, const float[::1] delta,
                  Py_ssize_t dim):
    check_step(access, hyper.shape[0], row.shape[0], dim)
    if ROW_OPS.add_state[access] == NULL:
        raise ValueError(f"access {access} has no state that adds up")
    if delta.shape[0] != row.shape[0]:
        raise ValueError(f"delta must have {row.shape[0]} numbers like row, got {delta.shape[0]}")
    with nogil:
        ROW_OPS.add_state[access](&hyper[0], &row[0], &delta[0], <uint32_t>dim)


def init_state_row(int access, const float[::1] hyper, float[::1] row, Py_ssize_t dim):
    check_step(access, hyper.shape[0], row.shape[0], dim)
    with nogil:
        init_state(access, &hyper[0], &row[0], <uint32_t>dim)


# ---- rows on the wire ----------------------------------------------------------------------------

cdef WireOps WIRE_OPS
WIRE_OPS.narrow[:] = [snail_narrow_float32, snail_narrow_float16, snail_narrow_bfloat16,
                      snail_narrow_int8]
WIRE_OPS.widen[:] = [snail_widen_float32, snail_widen_float16, snail_widen_bfloat16,
                     snail_widen_int8]
WIRE_OPS.narrow_owing[:] = [snail_narrow_owing_float32, snail_narrow_owing_float16,
                            snail_narrow_owing_bfloat16, snail_narrow_owing_int8]


def wire_ops():
    return PyCapsule_New(&WIRE_OPS, b"snailps.wire_ops", NULL)


cdef Py_ssize_t check_wire(int wire, Py_ssize_t floats) except -1:
    """Bytes of a row on the wire."""
    if not 0 <= wire < WIRE_NUM:
        raise ValueError(f"wire must be 0 to {WIRE_NUM - 1} (see kernels.WIRE_TYPES), got {wire}")
    if not 1 <= floats <= C_DIM_MAX:
        raise ValueError(f"rows must have 1 to {C_DIM_MAX} floats, got {floats}")
    return wire_row_bytes(wire, <uint32_t>floats)


def narrow_rows(int wire, const float[:, ::1] rows):
    cdef Py_ssize_t i, n = rows.shape[0], floats = rows.shape[1]
    packed = np.empty((n, check_wire(wire, floats)), np.uint8)
    cdef uint8_t[:, ::1] out = packed
    with nogil:
        for i in range(n):
            WIRE_OPS.narrow[wire](&rows[i, 0], <char *>&out[i, 0], <uint32_t>floats)
    return packed


def widen_rows(int wire, const uint8_t[:, ::1] packed, Py_ssize_t floats):
    cdef Py_ssize_t i, n = packed.shape[0], row_bytes = check_wire(wire, floats)
    if packed.shape[1] != row_bytes:
        raise ValueError(f"packed must have {row_bytes} bytes a row for {floats} floats of wire "
                         f"type {wire}, got {packed.shape[1]}")
    rows = np.empty((n, floats), np.float32)
    cdef float[:, ::1] out = rows
    with nogil:
        for i in range(n):
            WIRE_OPS.widen[wire](<const char *>&packed[i, 0], &out[i, 0], <uint32_t>floats)
    return rows


def narrow_owing_rows(int wire, const float[:, ::1] rows, float[:, ::1] residues):
    cdef Py_ssize_t i, n = rows.shape[0], floats = rows.shape[1]
    packed = np.empty((n, check_wire(wire, floats)), np.uint8)
    cdef uint8_t[:, ::1] out = packed
    if residues.shape[0] != n or residues.shape[1] != floats:
        raise ValueError(f"residues ({residues.shape[0]} x {residues.shape[1]}) must have the "
                         f"shape of rows ({n} x {floats})")
    if n and &residues[0, 0] == &rows[0, 0]:
        raise ValueError("residues must not be rows: both are read, and residues written")
    with nogil:
        for i in range(n):
            WIRE_OPS.narrow_owing[wire](&rows[i, 0], &residues[i, 0], <char *>&out[i, 0],
                                        <uint32_t>floats)
    return packed


# ---- word vectors: one call, checked ---------------------------------------------------------------

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
                       Py_ssize_t row_num, int64_t least, str ptr="bag_ptr",
                       str rows="bag_rows", str table="inputs"):
    """Bags of at least `least` rows, all inside the table."""
    cdef Py_ssize_t w
    cdef int bad = 0
    if bag_ptr.shape[0] < 1 or bag_ptr[0] != 0 or bag_ptr[bag_ptr.shape[0] - 1] > bag_rows.shape[0]:
        raise ValueError(
            f"{ptr} must start with 0 and end within {rows} ({bag_rows.shape[0]} entries)")
    with nogil:
        for w in range(bag_ptr.shape[0] - 1):
            bad |= bag_ptr[w + 1] - bag_ptr[w] < least
    if bad:
        raise ValueError(f"{ptr} must rise by at least {least} from one to the next")
    if bag_rows.shape[0] and not in_range(&bag_rows[0], bag_rows.shape[0], 0, row_num):
        raise ValueError(f"{rows} must lie in 0..{row_num - 1}, the rows of {table}")


def train_words(float[:, ::1] inputs, float[:, ::1] outputs, int dim, const int32_t[::1] tokens,
                bag_ptr, const int32_t[::1] bag_rows, const int32_t[::1] noise,
                const float[::1] noise_logit, *, int model, int window, int negatives,
                float lr_start, float lr_stop, uint64_t seed, squares=None, float eps=1e-8):
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
    cdef float[:, ::1] input_squares
    cdef float[:, ::1] output_squares
    job.input_squares = NULL
    job.output_squares = NULL
    if squares is not None:
        input_squares, output_squares = squares
        check_rows("squares of inputs", input_squares)
        check_rows("squares of outputs", output_squares)
        if input_squares.shape[0] != inputs.shape[0] or output_squares.shape[0] != out_num \
                or input_squares.shape[1] != inputs.shape[1] \
                or output_squares.shape[1] != inputs.shape[1]:
            raise ValueError(f"squares must have the shapes of the rows, got "
                             f"{input_squares.shape[0]} x {input_squares.shape[1]} and "
                             f"{output_squares.shape[0]} x {output_squares.shape[1]}")
        if not eps > 0:
            raise ValueError(f"eps must be above 0, got {eps}")
        job.input_squares = &input_squares[0, 0]
        job.output_squares = &output_squares[0, 0]
    job.epsilon = eps
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


# ---- classifier: one call, checked ----------------------------------------------------------------

def train_labels(float[:, ::1] inputs, float[:, ::1] outputs, int dim, const int64_t[::1] bag_ptr,
                 const int32_t[::1] bag_rows, const int64_t[::1] label_ptr,
                 const int32_t[::1] labels, const int32_t[::1] noise, *, int loss, int negatives,
                 bint shared, float lr_start, float lr_stop, uint64_t seed, Py_ssize_t first,
                 Py_ssize_t last):
    cdef Py_ssize_t label_num = outputs.shape[0]
    check_rows("inputs", inputs)
    check_rows("outputs", outputs)
    check_bags(bag_ptr, bag_rows, inputs.shape[0], 0)
    check_bags(label_ptr, labels, label_num, 0, "label_ptr", "labels", "outputs")
    if inputs.shape[1] != outputs.shape[1] or not 1 <= dim <= inputs.shape[1]:
        raise ValueError(f"inputs and outputs must be as wide as each other and at least dim = "
                         f"{dim}, at least 1; got {inputs.shape[1]} and {outputs.shape[1]}")
    if bag_ptr.shape[0] != label_ptr.shape[0] or not 0 <= first <= last < bag_ptr.shape[0]:
        raise ValueError(f"lines {first}..{last - 1} must be among those of bag_ptr and label_ptr, "
                         f"which have {bag_ptr.shape[0] - 1} and {label_ptr.shape[0] - 1}")
    if loss not in (SOFTMAX, ONE_VS_ALL, SAMPLING):
        raise ValueError(f"loss must be 0 (softmax), 1 (one-versus-all) or 2 (sampling), got {loss}")
    if loss == SAMPLING and (negatives < 0 or noise.shape[0] < (negatives > 0)):
        raise ValueError(f"negatives must be at least 0, got {negatives}, and noise not be empty "
                         f"if there are any, got {noise.shape[0]} labels")
    if noise.shape[0] and not in_range(&noise[0], noise.shape[0], 0, label_num):
        raise ValueError(f"noise must lie in 0..{label_num - 1}, the rows of outputs")
    if bag_rows.shape[0] == 0 or labels.shape[0] == 0 or first == last:
        return 0.0, 0           # no line has both
    cdef LabelJob job
    cdef LabelScratch scratch
    cdef float *arena = NULL
    cdef size_t row = inputs.shape[1]
    cdef size_t scores = (label_num + C_PAD - 1) // C_PAD * C_PAD
    cdef size_t copy = label_num * row
    cdef double total = 0
    cdef int64_t examples = 0
    if not shared or (loss == SAMPLING and label_num > C_TOGETHER * (1 + <int64_t>negatives)):
        copy = 0                # more to exchange than was written
    cdef size_t size = (2 * row + 2 * scores + 2 * copy) * sizeof(float)
    if posix_memalign(<void **>&arena, 64, size) != 0:
        raise MemoryError(f"no memory for {size} bytes of scratch")
    job.inputs = &inputs[0, 0]
    job.outputs = &outputs[0, 0]
    job.bag_ptr = &bag_ptr[0]
    job.bag_rows = &bag_rows[0]
    job.label_ptr = &label_ptr[0]
    job.labels = &labels[0]
    job.noise = &noise[0] if noise.shape[0] else NULL
    job.noise_num = noise.shape[0]
    job.label_num = label_num
    job.stride = row
    job.first = first
    job.last = last
    job.loss = loss
    job.negatives = negatives
    job.rate_start = lr_start
    job.rate_stop = lr_stop
    job.stream = hash_key(seed)
    scratch.hidden = arena
    scratch.gradient = arena + row
    scratch.scores = arena + 2 * row
    scratch.truth = scratch.scores + scores
    scratch.own = scratch.truth + scores if copy else NULL
    scratch.base = scratch.truth + scores + copy
    scratch.drawn = 0
    with nogil:
        memset(arena, 0, (2 * row + 2 * scores) * sizeof(float))
        train_lines(&job, &scratch, &total, &examples)
        free(arena)
    return total, examples


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


cdef object check_kept(const float[:, ::1] kept, const int32_t[::1] index,
                       const float[:, ::1] rows):
    cdef Py_ssize_t n = rows.shape[0]
    if index.shape[0] != n or kept.shape[1] != rows.shape[1]:
        raise ValueError(f"rows ({n} x {rows.shape[1]}) must have a row for each of "
                         f"{index.shape[0]} indices and be as wide as kept ({kept.shape[1]})")
    if n and not in_range(&index[0], n, 0, kept.shape[0]):
        raise ValueError(f"index must lie in 0..{kept.shape[0] - 1}, the rows of kept")


def take_rows(const float[:, ::1] kept, const int32_t[::1] index, float[:, ::1] rows):
    cdef Py_ssize_t i, n = rows.shape[0], stride = rows.shape[1]
    check_kept(kept, index, rows)
    if n == 0 or stride == 0:
        return
    cdef const float *src = &kept[0, 0]
    cdef float *to = &rows[0, 0]
    with nogil:
        for i in range(n):
            if i + C_ROWS_AHEAD < n:
                prefetch_row(src + index[i + C_ROWS_AHEAD] * stride, stride)
            memcpy(to + i * stride, src + index[i] * stride, stride * sizeof(float))


def settle_rows(float[:, ::1] kept, const int32_t[::1] index, float[:, ::1] rows):
    cdef Py_ssize_t i, d, n = rows.shape[0], stride = rows.shape[1]
    check_kept(kept, index, rows)
    if n == 0 or stride == 0:
        return
    cdef float *old = &kept[0, 0]
    cdef float *new = &rows[0, 0]
    cdef float *row
    cdef float value
    with nogil:
        for i in range(n):
            if i + C_ROWS_AHEAD < n:
                prefetch_row(old + index[i + C_ROWS_AHEAD] * stride, stride)
            row = old + index[i] * stride
            for d in range(stride):
                value = new[d]
                new[d] = value - row[d]
                row[d] = value
            new += stride


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


# ---- linear models on sparse examples: calls, checked ----------------------------------------------

cdef object check_examples(const int64_t[::1] ptr, const int32_t[::1] places,
                           const float[::1] values, Py_ssize_t row_num, int64_t bias):
    """Examples whose features are all rows, and a bias that is one, too."""
    check_bags(ptr, places, row_num, 0, "ptr", "places", "rows")
    if values.shape[0] != places.shape[0]:
        raise ValueError(f"values ({values.shape[0]}) must be as many as places "
                         f"({places.shape[0]})")
    if not -1 <= bias < row_num:
        raise ValueError(f"bias must be -1 (none) or one of {row_num} rows, got {bias}")


def train_linear(float[:, ::1] rows, const int64_t[::1] ptr, const int32_t[::1] places,
                 const float[::1] values, const float[::1] labels, const float[::1] weights, *,
                 int outputs, int loss, int method, Py_ssize_t bias, Py_ssize_t hot,
                 float lr_start, float lr_stop, float eps, float l1, float l2, float beta,
                 Py_ssize_t first, Py_ssize_t last):
    cdef Py_ssize_t i, example_num = ptr.shape[0] - 1
    cdef int bad = 0
    check_examples(ptr, places, values, rows.shape[0], bias)
    if method not in (STEP_SGD, STEP_ADAGRAD, STEP_FTRL):
        raise ValueError(f"method must be 1 (sgd), 2 (adagrad) or 4 (ftrl), got {method}")
    if not LOGISTIC <= loss <= MULTINOMIAL:
        raise ValueError(f"loss must be 0 (logistic), 1 (squared) or 2 (multinomial), got {loss}")
    if outputs < 1 or (outputs > 1 and loss != MULTINOMIAL):
        raise ValueError(f"outputs must be 1, or more for loss 2 (multinomial), got {outputs}")
    if rows.shape[1] != outputs + state_floats_of(method, <uint32_t>outputs):
        raise ValueError(f"rows must have {outputs + state_floats_of(method, <uint32_t>outputs)} "
                         f"columns for {outputs} outputs, got {rows.shape[1]}")
    if labels.shape[0] != example_num or weights.shape[0] not in (0, example_num):
        raise ValueError(f"labels ({labels.shape[0]}) must be as many as examples ({example_num}), "
                         f"weights ({weights.shape[0]}) too, or none")
    if not 0 <= first <= last <= example_num:
        raise ValueError(f"examples {first}..{last - 1} must be among the {example_num} of ptr")
    if not 0 <= hot <= rows.shape[0]:
        raise ValueError(f"hot must be 0 to {rows.shape[0]}, got {hot}")
    if not (lr_start > 0 and lr_stop > 0 and eps >= 0 and l1 >= 0 and l2 >= 0 and beta >= 0):
        raise ValueError(f"rates must be above 0, eps, l1, l2, beta at least 0; got {lr_start}, "
                         f"{lr_stop}, {eps}, {l1}, {l2}, {beta}")
    if loss == MULTINOMIAL:
        for i in range(first, last):
            bad |= not 0 <= labels[i] < outputs
        if bad:
            raise ValueError(f"labels must be class numbers 0 to {outputs - 1}")
    if first == last or rows.shape[0] == 0:
        return 0.0, 0.0
    cdef LinearJob job
    cdef LinearScratch scratch
    cdef float *arena = NULL
    cdef size_t width = rows.shape[1]
    cdef size_t own = (hot + 1) * width if hot else 0   # 0: a lone thread, on the rows themselves
    cdef double total = 0, weight = 0
    cdef size_t size = (2 * own + outputs + C_PAD) * sizeof(float)
    if posix_memalign(<void **>&arena, 64, size) != 0:
        raise MemoryError(f"no memory for {size} bytes of scratch")
    job.rows = &rows[0, 0]
    job.width = width
    job.ptr = &ptr[0]
    job.places = &places[0] if places.shape[0] else NULL
    job.values = &values[0] if values.shape[0] else NULL
    job.labels = &labels[0]
    job.weights = &weights[0] if weights.shape[0] else NULL
    job.bias = bias
    job.hot = hot
    job.outputs = outputs
    job.first = first
    job.last = last
    job.loss = loss
    job.method = method
    job.rate_start = lr_start
    job.rate_stop = lr_stop
    job.eps = eps
    job.l1 = l1
    job.l2 = l2
    job.beta = beta
    scratch.own = arena if own else NULL
    scratch.base = arena + own
    scratch.scores = arena + 2 * own
    with nogil:
        memset(arena, 0, size)
        train_examples(&job, &scratch, &total, &weight)
        free(arena)
    return total, weight


def linear_scores(const float[:, ::1] rows, const int64_t[::1] ptr, const int32_t[::1] places,
                  const float[::1] values, *, int outputs, Py_ssize_t bias):
    cdef Py_ssize_t i, example_num = ptr.shape[0] - 1
    cdef LinearJob job
    cdef LinearScratch scratch
    check_examples(ptr, places, values, rows.shape[0], bias)
    if not 1 <= outputs <= rows.shape[1]:
        raise ValueError(f"outputs must be 1 to {rows.shape[1]}, the columns of rows, got {outputs}")
    scores = np.zeros((example_num, outputs), np.float32)
    if rows.shape[0] == 0 or example_num == 0:
        return scores
    cdef float[:, ::1] out = scores
    job.rows = <float *>&rows[0, 0]     # only read
    job.width = rows.shape[1]
    job.ptr = &ptr[0]
    job.places = &places[0] if places.shape[0] else NULL
    job.values = &values[0] if values.shape[0] else NULL
    job.bias = bias
    job.hot = 0
    job.outputs = outputs
    scratch.own = NULL
    with nogil:
        for i in range(example_num):
            scores_of(&job, &scratch, i, &out[i, 0])
    return scores


def ftrl_weights(float[:, ::1] rows, *, int outputs, float lr, float l1, float l2, float beta):
    cdef Py_ssize_t i
    if outputs < 1 or rows.shape[1] != 3 * outputs:
        raise ValueError(f"rows must have {3 * outputs} columns for {outputs} outputs, at least 1; "
                         f"got {rows.shape[1]}")
    if not (lr > 0 and l1 >= 0 and l2 >= 0 and beta >= 0):
        raise ValueError(f"lr must be above 0, l1, l2, beta at least 0; got {lr}, {l1}, {l2}, {beta}")
    with nogil:
        for i in range(rows.shape[0]):
            weights_of(&rows[i, 0], outputs, 1 / lr, beta / lr + l2, l1)


# ---- factorization machines: calls, checked --------------------------------------------------------

cdef Py_ssize_t check_machine(const int64_t[::1] ptr, const int32_t[::1] places,
                              const float[::1] values, const int32_t[::1] fields,
                              Py_ssize_t row_num, int64_t bias, Py_ssize_t factors,
                              Py_ssize_t field_num) except -1:
    """Floats of a row's weights, padded; refuses examples and sizes that do not fit."""
    check_examples(ptr, places, values, row_num, bias)
    if factors < 1 or field_num < 1 or 1 + factors * field_num > C_DIM_MAX:
        raise ValueError(f"factors and field_num must be at least 1, and 1 + their product at most "
                         f"{C_DIM_MAX}; got {factors} and {field_num}")
    if fields.shape[0] != places.shape[0] and (field_num > 1 or fields.shape[0]):
        raise ValueError(f"fields ({fields.shape[0]}) must be as many as places "
                         f"({places.shape[0]}); with field_num 1 they may be none")
    if fields.shape[0] and not in_range(&fields[0], fields.shape[0], 0, field_num):
        raise ValueError(f"fields must lie in 0..{field_num - 1}")
    return (factors * field_num + C_PAD) // C_PAD * C_PAD


cdef Py_ssize_t longest_of(const int64_t[::1] ptr, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Features of the longest of examples first..last-1."""
    cdef Py_ssize_t i, longest = 0
    for i in range(first, last):
        longest = max(longest, <Py_ssize_t>(ptr[i + 1] - ptr[i]))
    return longest


cdef char *machine_scratch(FmJob *job, FmScratch *s, Py_ssize_t own, Py_ssize_t longest) noexcept:
    """Memory, zeros, for what FmScratch points to; NULL: there is none.  Free it."""
    cdef size_t plane = job.field_num * job.stride
    cdef size_t planes = 4 if job.fields != NULL else 3
    cdef size_t floats = 2 * own + planes * plane + 3 * job.stride
    cdef size_t size = floats * sizeof(float) + (longest + job.field_num) * 8 + job.field_num * 4
    cdef char *arena = NULL
    if posix_memalign(<void **>&arena, 64, size) != 0:
        return NULL
    memset(arena, 0, size)
    s.own = <float *>arena if own else NULL
    s.base = <float *>arena + own
    s.sums = <float *>arena + 2 * own
    s.squares = s.sums + plane
    s.itself = s.squares + plane
    s.turned = s.itself + plane if job.fields != NULL else s.sums
    s.only = <float *>arena + 2 * own + planes * plane
    s.rate = s.only + job.stride
    s.decay = s.rate + job.stride
    s.found = <float **>(<float *>arena + floats)
    s.stamps = <int64_t *>(s.found + longest)
    s.present = <int32_t *>(s.stamps + job.field_num)
    return arena


def train_fm(float[:, ::1] rows, const int64_t[::1] ptr, const int32_t[::1] places,
             const float[::1] values, const int32_t[::1] fields, const float[::1] labels,
             const float[::1] weights, *, Py_ssize_t factors, Py_ssize_t field_num, int loss,
             int method, Py_ssize_t bias, Py_ssize_t hot, float lr_start, float lr_stop,
             float factor_rate, float eps, float l1, float l2, float factor_l2, float beta,
             Py_ssize_t first, Py_ssize_t last):
    cdef Py_ssize_t example_num = ptr.shape[0] - 1
    cdef Py_ssize_t stride = check_machine(ptr, places, values, fields, rows.shape[0], bias,
                                           factors, field_num)
    if method not in (STEP_SGD, STEP_ADAGRAD, STEP_FTRL):
        raise ValueError(f"method must be 1 (sgd), 2 (adagrad) or 4 (ftrl), got {method}")
    if not LOGISTIC <= loss <= SQUARED:
        raise ValueError(f"loss must be 0 (logistic) or 1 (squared), got {loss}")
    check_rows("rows", rows)
    if rows.shape[1] != stride + state_floats_of(method, <uint32_t>stride):
        raise ValueError(f"rows must have {stride + state_floats_of(method, <uint32_t>stride)} "
                         f"columns for {factors} factors and {field_num} fields, got "
                         f"{rows.shape[1]}")
    if labels.shape[0] != example_num or weights.shape[0] not in (0, example_num):
        raise ValueError(f"labels ({labels.shape[0]}) must be as many as examples ({example_num}), "
                         f"weights ({weights.shape[0]}) too, or none")
    if not 0 <= first <= last <= example_num:
        raise ValueError(f"examples {first}..{last - 1} must be among the {example_num} of ptr")
    if not 0 <= hot <= rows.shape[0]:
        raise ValueError(f"hot must be 0 to {rows.shape[0]}, got {hot}")
    if not (lr_start > 0 and lr_stop > 0 and factor_rate > 0 and eps >= 1e-30 and l1 >= 0
            and l2 >= 0 and factor_l2 >= 0 and beta > 0):
        raise ValueError(f"rates, eps and beta must be above 0, l1, l2, factor_l2 at least 0; got "
                         f"{lr_start}, {lr_stop}, {factor_rate}, {eps}, {beta}, {l1}, {l2}, "
                         f"{factor_l2}")
    if method == STEP_FTRL and (lr_start != lr_stop or factor_rate != 1 or factor_l2 != l2):
        raise ValueError("ftrl's weights follow from one step size and one l2: lr_stop must be "
                         "lr_start, factor_rate 1 and factor_l2 l2")
    if first == last or rows.shape[0] == 0:
        return 0.0, 0.0
    cdef FmJob job
    cdef FmScratch scratch
    cdef char *arena
    cdef double total = 0, weight = 0
    job.rows = &rows[0, 0]
    job.width = rows.shape[1]
    job.stride = stride
    job.ptr = &ptr[0]
    job.places = &places[0] if places.shape[0] else NULL
    job.values = &values[0] if values.shape[0] else NULL
    job.fields = &fields[0] if field_num > 1 and fields.shape[0] else NULL
    job.labels = &labels[0]
    job.weights = &weights[0] if weights.shape[0] else NULL
    job.bias = bias
    job.hot = hot
    job.field_num = field_num
    job.factors = factors
    job.first = first
    job.last = last
    job.loss = loss
    job.method = method
    job.rate_start = lr_start
    job.rate_stop = lr_stop
    job.factor_rate = factor_rate
    job.eps = eps
    job.l1 = l1
    job.l2 = l2
    job.factor_l2 = factor_l2
    job.beta = beta
    arena = machine_scratch(&job, &scratch, (hot + 1) * rows.shape[1] if hot else 0,
                            longest_of(ptr, first, last))
    if arena == NULL:
        raise MemoryError(f"no memory for copies of {hot} rows")
    with nogil:
        fm_train(&job, &scratch, &total, &weight)
        free(arena)
    return total, weight


def fm_scores(const float[:, ::1] rows, const int64_t[::1] ptr, const int32_t[::1] places,
              const float[::1] values, const int32_t[::1] fields, *, Py_ssize_t factors,
              Py_ssize_t field_num, Py_ssize_t bias):
    cdef Py_ssize_t i, example_num = ptr.shape[0] - 1
    cdef Py_ssize_t stride = check_machine(ptr, places, values, fields, rows.shape[0], bias,
                                           factors, field_num)
    cdef FmJob job
    cdef FmScratch scratch
    cdef char *arena
    check_rows("rows", rows)
    if rows.shape[1] < stride:
        raise ValueError(f"rows must have at least {stride} columns for {factors} factors and "
                         f"{field_num} fields, got {rows.shape[1]}")
    scores = np.zeros(example_num, np.float32)
    if example_num == 0 or rows.shape[0] == 0:
        return scores
    cdef float[::1] out = scores
    job.rows = <float *>&rows[0, 0]     # only read
    job.width = rows.shape[1]
    job.stride = stride
    job.ptr = &ptr[0]
    job.places = &places[0] if places.shape[0] else NULL
    job.values = &values[0] if values.shape[0] else NULL
    job.fields = &fields[0] if field_num > 1 and fields.shape[0] else NULL
    job.bias = bias
    job.hot = 0
    job.field_num = field_num
    job.factors = factors
    job.l2 = 0
    job.factor_l2 = 0
    arena = machine_scratch(&job, &scratch, 0, longest_of(ptr, 0, example_num))
    if arena == NULL:
        raise MemoryError(f"no memory for scratch of {field_num} fields")
    with nogil:
        fm_constants(&job, &scratch)
        for i in range(example_num):
            out[i] = fm_score(&job, &scratch, i)
        free(arena)
    return scores


cdef Py_ssize_t check_packed(const float[:, ::1] packed, const float[:, ::1] rows, Py_ssize_t dim,
                             Py_ssize_t parts) except -1:
    """Stride of the parts of `rows`."""
    if dim < 1 or parts < 1 or packed.shape[1] != dim * parts or rows.shape[0] != packed.shape[0]:
        raise ValueError(f"packed ({packed.shape[0]} x {packed.shape[1]}) must have as many rows "
                         f"as rows ({rows.shape[0]}) and {parts} parts of {dim} columns")
    if rows.shape[1] % parts or rows.shape[1] // parts < dim:
        raise ValueError(f"rows must have {parts} parts of at least {dim} columns, got "
                         f"{rows.shape[1]} columns")
    return rows.shape[1] // parts


def unpack_parts(const float[:, ::1] packed, float[:, ::1] rows, Py_ssize_t dim, Py_ssize_t parts):
    cdef Py_ssize_t i, stride = check_packed(packed, rows, dim, parts)
    with nogil:
        for i in range(packed.shape[0]):
            fm_unpack(&packed[i, 0], &rows[i, 0], dim, parts, stride)


def subtract_parts(const float[:, ::1] rows, float[:, ::1] packed, Py_ssize_t dim,
                   Py_ssize_t parts):
    cdef Py_ssize_t i, stride = check_packed(packed, rows, dim, parts)
    with nogil:
        for i in range(packed.shape[0]):
            fm_difference(&rows[i, 0], &packed[i, 0], dim, parts, stride)


def take_changes(const float[:, ::1] rows, float[:, ::1] packed, const int32_t[::1] ids,
                 float[:, ::1] out, Py_ssize_t dim, Py_ssize_t parts):
    cdef Py_ssize_t i, p, d, at, stride = check_packed(packed, rows, dim, parts)
    cdef float now
    if out.shape[0] != ids.shape[0] or out.shape[1] != packed.shape[1]:
        raise ValueError(f"out must be ({ids.shape[0]}, {packed.shape[1]}), a row an id, got "
                         f"({out.shape[0]}, {out.shape[1]})")
    if ids.shape[0] == 0:
        return
    if not in_range(&ids[0], ids.shape[0], 0, rows.shape[0]):
        raise ValueError(f"ids must lie in 0..{rows.shape[0] - 1}, the rows")
    with nogil:
        for i in range(ids.shape[0]):
            if i + C_ROWS_AHEAD < ids.shape[0]:
                prefetch_row(&rows[ids[i + C_ROWS_AHEAD], 0], C_PAD)
                prefetch_row(&packed[ids[i + C_ROWS_AHEAD], 0], C_PAD)
            at = ids[i]
            for p in range(parts):
                for d in range(p * dim, (p + 1) * dim):
                    now = rows[at, p * (stride - dim) + d]
                    out[i, d] = now - packed[at, d]
                    packed[at, d] = now


# ---- sparse products -------------------------------------------------------------------------------

cdef object check_csr(const int64_t[::1] ptr, const int32_t[::1] rows, const float[::1] values,
                      Py_ssize_t columns):
    """Refuses what the loops would read outside of the arrays."""
    check_bags(ptr, rows, columns, 0, "ptr", "rows", "the table")
    if values.shape[0] != rows.shape[0]:
        raise ValueError(f"values must have a number an entry ({rows.shape[0]}), got "
                         f"{values.shape[0]}")


def csr_product(const int64_t[::1] ptr, const int32_t[::1] rows, const float[::1] values,
                const float[:, :] table, float[:, ::1] out, *, Py_ssize_t first=0, last=None):
    cdef Py_ssize_t stop = out.shape[0] if last is None else last
    cdef Csr x
    check_csr(ptr, rows, values, table.shape[0])
    if out.shape[0] != ptr.shape[0] - 1 or out.shape[1] != table.shape[1]:
        raise ValueError(f"out must have a row an example and the table's columns, "
                         f"({ptr.shape[0] - 1}, {table.shape[1]}), got {out.shape[0], out.shape[1]}")
    if not 0 <= first <= stop <= out.shape[0]:
        raise ValueError(f"examples {first}..{stop - 1} must be among {out.shape[0]}")
    if table.shape[1] > C_DIM_MAX or table.strides[1] != sizeof(float) \
            or table.strides[0] % sizeof(float):
        raise ValueError(f"rows of the table must be contiguous and at most {C_DIM_MAX} wide")
    if first == stop or table.shape[1] == 0:
        return
    x.n = out.shape[0]
    x.columns = table.shape[0]
    x.dim = table.shape[1]
    x.ptr = &ptr[0]
    x.rows = &rows[0] if rows.shape[0] else NULL
    x.values = &values[0] if rows.shape[0] else NULL
    cdef const float *first_row = &table[0, 0] if table.shape[0] else NULL
    cdef int64_t stride = table.strides[0] // <Py_ssize_t>sizeof(float)
    with nogil:
        csr_times_rows(&x, first_row, stride, &out[0, 0], first, stop)


def csr_gradients(const int64_t[::1] ptr, const int32_t[::1] rows, const float[::1] values,
                  const float[:, ::1] dz, float[:, ::1] out):
    cdef Csr x
    check_csr(ptr, rows, values, out.shape[0])
    if dz.shape[0] != ptr.shape[0] - 1 or dz.shape[1] != out.shape[1] or dz.shape[1] > C_DIM_MAX:
        raise ValueError(f"dz must have a row an example ({ptr.shape[0] - 1}) and the columns of "
                         f"out ({out.shape[1]}), got {dz.shape[0], dz.shape[1]}")
    if out.shape[0] == 0 or out.shape[1] == 0:
        return
    start = np.empty(out.shape[0] + 2, np.int64)
    examples = np.empty(max(rows.shape[0], 1), np.int32)
    column_values = np.empty(max(rows.shape[0], 1), np.float32)
    cdef int64_t[::1] starts = start
    cdef int32_t[::1] of_entry = examples
    cdef float[::1] sorted_values = column_values
    x.n = dz.shape[0]
    x.columns = out.shape[0]
    x.dim = dz.shape[1]
    x.ptr = &ptr[0]
    x.rows = &rows[0] if rows.shape[0] else NULL
    x.values = &values[0] if rows.shape[0] else NULL
    cdef const float *gradient = &dz[0, 0] if dz.shape[0] else NULL
    with nogil:
        csr_columns(&x, &starts[0], &of_entry[0], &sorted_values[0])
        csr_gradient(&starts[0], &of_entry[0], &sorted_values[0], gradient, x.dim, &out[0, 0], 0,
                     x.columns)


# ---- the CBOW network ------------------------------------------------------------------------------

cdef object check_windows(const int32_t[:, ::1] windows, Py_ssize_t words):
    """Refuses what the loops would read outside of the embedding."""
    cdef Py_ssize_t i, j, window = windows.shape[1]
    cdef int64_t wrong = 0
    if window < 3 or window % 2 == 0 or window > C_WINDOW_MAX:
        raise ValueError(f"windows must have an odd number of columns, 3 to {C_WINDOW_MAX - 1}, "
                         f"got {window}")
    with nogil:
        for i in range(windows.shape[0]):
            for j in range(window):
                wrong += windows[i, j] < 0 or windows[i, j] >= words
    if wrong:
        raise ValueError(f"windows hold {wrong} numbers that are none of 0..{words - 1}")


cdef object check_network(const float[:, ::1] embedding, const float[:, :, ::1] output):
    cdef Py_ssize_t words = embedding.shape[0], width = embedding.shape[1]
    if words < 1 or width < 1 or width % C_PAD or width > C_DIM_MAX:
        raise ValueError(f"embedding must have a row or more and a multiple of {C_PAD} columns, got "
                         f"({words}, {width})")
    if output.shape[0] != panels_of(words) or output.shape[1] != width + 1 \
            or output.shape[2] != SNAIL_PANEL:
        raise ValueError(f"output must be ({panels_of(words)}, {width + 1}, {SNAIL_PANEL}) for "
                         f"{words} words, got {output.shape[0], output.shape[1], output.shape[2]}")


def cbow_scratch_floats(Py_ssize_t words, Py_ssize_t width, Py_ssize_t window, Py_ssize_t batch):
    cdef CbowScratch scratch
    if words < 1 or width < 1 or width % C_PAD or window < 3 or batch < 1:
        raise ValueError(f"no scratch for {words} words, width {width}, window {window}, batch {batch}")
    return lay_out_cbow(&scratch, words, width, window, batch, NULL)


cdef object lay_out_scratch(CbowScratch *s, float[::1] scratch, const int32_t[:, ::1] windows,
                            const float[:, ::1] embedding, Py_ssize_t batch):
    cdef Py_ssize_t needed, i
    if batch < 1:
        raise ValueError(f"batch must be 1 or more, got {batch}")
    needed = lay_out_cbow(s, embedding.shape[0], embedding.shape[1], windows.shape[1], batch,
                          &scratch[0] if scratch.shape[0] else NULL)
    if scratch.shape[0] < needed:
        raise ValueError(f"scratch must have {needed} floats (cbow_scratch_floats), got "
                         f"{scratch.shape[0]}")
    for i in range(embedding.shape[0]):
        s.places[i] = C_NO_PLACE


def cbow_loss(const int32_t[:, ::1] windows, const float[:, ::1] embedding,
              const float[:, :, ::1] output, float[::1] scratch, *, Py_ssize_t batch):
    cdef CbowNet net
    cdef CbowScratch s
    cdef Py_ssize_t at = 0
    cdef double loss = 0
    check_network(embedding, output)
    check_windows(windows, embedding.shape[0])
    lay_out_scratch(&s, scratch, windows, embedding, batch)
    if windows.shape[0] == 0:
        return 0.0
    net.words = embedding.shape[0]
    net.width = embedding.shape[1]
    net.window = windows.shape[1]
    net.embedding.weights = <float *>&embedding[0, 0]       # only read
    net.output.weights = <float *>&output[0, 0, 0]
    with nogil:
        while at < windows.shape[0]:
            loss += cbow_forward(&net, &s, &windows[at, 0],
                                 min(batch, windows.shape[0] - at), False)
            at += batch
    return loss


def train_cbow(const int32_t[:, ::1] windows, float[:, :, ::1] embedding, float[::1] counts,
               float[:, :, :, ::1] output, float[::1] scratch, *, Py_ssize_t batch, int64_t steps,
               double lr, double beta1, double beta2, double eps):
    cdef CbowNet net
    cdef CbowScratch s
    cdef Py_ssize_t at = 0
    cdef double loss = 0
    if embedding.shape[0] != 3 or output.shape[0] != 3 or counts.shape[0] != embedding.shape[1]:
        raise ValueError("embedding and output must be weights, first and second moments, and counts "
                         f"a number a word; got {embedding.shape[0]} and {output.shape[0]} arrays, "
                         f"{counts.shape[0]} counts for {embedding.shape[1]} words")
    check_network(embedding[0], output[0])
    check_windows(windows, embedding.shape[1])
    if steps < 0 or not lr > 0 or not eps > 0 or not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise ValueError(f"expected steps >= 0, lr > 0, eps > 0 and betas from 0, below 1; got "
                         f"{steps}, {lr}, {eps}, {beta1}, {beta2}")
    lay_out_scratch(&s, scratch, windows, embedding[0], batch)
    net.words = embedding.shape[1]
    net.width = embedding.shape[2]
    net.window = windows.shape[1]
    net.embedding.weights = &embedding[0, 0, 0]
    net.embedding.first = &embedding[1, 0, 0]
    net.embedding.second = &embedding[2, 0, 0]
    net.counts = &counts[0]
    net.output.weights = &output[0, 0, 0, 0]
    net.output.first = &output[1, 0, 0, 0]
    net.output.second = &output[2, 0, 0, 0]
    net.lr = lr
    net.beta1 = <float>beta1
    net.beta2 = <float>beta2
    net.eps = <float>eps
    with nogil:
        while at < windows.shape[0]:
            steps += 1
            loss += cbow_step(&net, &s, &windows[at, 0], min(batch, windows.shape[0] - at),
                              <double>steps)
            at += batch
    return loss


def add_weighted_rows(const float[:, ::1] rows, const float[::1] weights, float[:, ::1] out):
    cdef Py_ssize_t i, n = rows.shape[0], dim = rows.shape[1]
    if weights.shape[0] != n or out.shape[0] != n or out.shape[1] != dim:
        raise ValueError(f"rows ({n}, {dim}), weights ({weights.shape[0]}) and out "
                         f"({out.shape[0]}, {out.shape[1]}) do not fit each other")
    if dim == 0:
        return
    with nogil:
        for i in range(n):
            if weights[i] != 0:
                snail_add_weighted(dim, &out[i, 0], &rows[i, 0], weights[i])
