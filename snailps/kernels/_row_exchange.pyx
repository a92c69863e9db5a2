# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Exchange of rows that a worker keeps: owns each row's base, key, counts, and the size of its pushes.

    rows as trained, bases, counts of steps -> RowExchange.send -> deltas to push, their keys
    answers -> RowExchange.merge -> rows as trained, bases
    examples, steps -> RowExchange.count -> RowExchange.intervals -> when to exchange a row

A row's *base* is what the servers have of it, as far as this worker knows: the row that was pulled last,
plus the deltas pushed since.  Hence ``row - base`` is what has not been pushed, and ``answer - base`` what
other workers have changed meanwhile.  Several workers that push whole deltas of one row would move it too
far, because each started from the same copy; `DriftEstimate` says by how much a delta must be reduced.

Each method is one pass over the rows without the GIL.  Its cost is memory access, so everything about a
row except its count lies in one record.  Must not know tables or requests (`models/kept_rows.py`).  A NumPy
twin is in tests/support/twins/row_exchange.py.  The functions at the end are for rows that count no steps
(`models/rotation`).
"""
from libc.math cimport expf, sqrtf
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset

import numpy as np

from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch, fetch_row_to_write, fetch_to_write
from snailps.abi._row_ops cimport ACCESS_ADAGRAD, ACCESS_FTRL, ACCESS_SGD

cdef extern from "kernels/_optimizers.h" nogil:
    ctypedef struct FtrlBy "snail_ftrl_by":
        float per_rate
        float base
        float l1
    FtrlBy ftrl_of "snail_ftrl_of"(float rate, float l1, float beta)
    float ftrl_weight "snail_ftrl_weight"(float z, float root, const FtrlBy *by)
    void shorten_adagrad "snail_shorten_adagrad"(int64_t dim, float *row, float *delta,
                                                 const float *squares, const float *before,
                                                 float least, float others)

cdef enum:
    AHEAD = 16                  # rows that are prefetched ahead
    RECORD = 4                  # floats of Record
    C_QUIET_MAX = 3
    # A byte of `quiet`: PUSHED | skipped pushes << SKIPPED_AT | level of quiet
    QUIET = 3                   # mask: answers in a row that showed no change of others, up to QUIET_MAX
    SOLE = 2                    # from this level on a row counts as trained by this worker alone
    SKIPPED_AT = 2              # shift: pushes since the last answer
    SKIPPED_MAX = 7
    PUSHED = 128                # bit: pushed, and no answer pulled since
cdef float C_CORRELATION = 0.3, C_FAR_OF_ALL = 2.0, C_ONE_STEP = 1.01, LEAST_OWN = 1e-4
cdef float C_OTHERS_LEAST = 0.3

# Share of a step's curvature that all workers have in common.
CORRELATION: Final[float] = C_CORRELATION
# For a row that every example uses, such as a bias: when steps of all workers x rate x curvature reach
# this, half of what was not pushed is given up.  Otherwise the row would oscillate.
FAR_OF_ALL: Final[float] = C_FAR_OF_ALL
# A delta of (estimated) no more than this many steps is pushed whole.
ONE_STEP: Final[float] = C_ONE_STEP
# AdaGrad's steps are shortened as if each other worker had made at least this many steps for each step of
# this one: on a row with a single step others are rarely observed, but have often made one too.
OTHERS_LEAST: Final[float] = C_OTHERS_LEAST
# A row that no other worker has changed is pulled in every 2nd, 4th, then 8th push period that uses it,
# and pushed whole from the second such answer on.
QUIET_MAX: Final[int] = C_QUIET_MAX

cdef struct Record:             # of a row; its base follows, so a record is not aligned to 8 bytes
    uint32_t key[2]             # hence a uint64 in two halves
    uint32_t last               # last exchange, in examples modulo 2^32: differences are right anyway
    float rest                  # steps since the base that were reduced away, not pushed


cdef class DriftEstimate:
    """Estimates how far a model's steps move a row: rate x curvature x steps.

    `method`: 1 (rows without state), 2 (AdaGrad) or 4 (FTRL), with 1, 2 or 3 parts of `dim` columns.
    `outputs`: how many columns are weights of outputs; the others are factors, which move together.
    `far`: when the steps of all workers on any row reach this, half of what was not pushed is given up;
    infinite if steps on rare rows add up whatever number of workers makes them.  `least` is added to the
    root of a sum of squared gradients: epsilon, or FTRL's beta.  `lr`, `l1`, `beta`: FTRL's, because its
    z must agree with a reduced weight.
    """

    cdef int method
    cdef int64_t dim, outputs, parts
    cdef float far, least, others_least, lr, l1, beta
    cdef public float a_step, a_factor_step     # rate x curvature of a step, before any root
    cdef public float lead      # steps of copies for each step of this worker (`models/lead.py`)
    cdef FtrlBy ftrl

    def __init__(self, int method, Py_ssize_t dim, *, Py_ssize_t outputs=0, float far,
                 float least=0, float others_least=C_OTHERS_LEAST, float lr=1, float l1=0,
                 float beta=0):
        if method not in (ACCESS_SGD, ACCESS_ADAGRAD, ACCESS_FTRL):
            raise ValueError(f"method must be 1 (sgd), 2 (adagrad) or 4 (ftrl), got {method}")
        if dim < 1 or not 0 <= outputs <= dim or not lr > 0:
            raise ValueError(f"expected dim of 1 or more, outputs up to dim, lr above 0; got {dim}, "
                             f"{outputs}, {lr}")
        self.method, self.dim, self.outputs, self.far, self.least = method, dim, outputs, far, least
        self.others_least, self.lead = others_least, 1
        self.lr, self.l1, self.beta = lr, l1, beta
        self.parts = 3 if method == ACCESS_FTRL else 2 if method == ACCESS_ADAGRAD else 1
        self.ftrl = ftrl_of(lr, l1, beta)

    def scale(self, int others, const float[:, ::1] rows not None, float[:, ::1] deltas not None,
              const float[::1] counts not None) -> None:
        """Reduce deltas of copies whose sum with the deltas of `others` workers would be too long a step.

        Rows, as trained, are (n, parts x stride), deltas (n, parts x dim).  A row that c examples use
        (`counts`) is assumed to be moved c steps by this worker and c - 1 by each other: a row of a single
        example is probably in no other block, and needs its whole delta.  Threads may call it for
        different rows.
        """
        cdef Py_ssize_t i, n = deltas.shape[0]
        cdef int64_t stride = rows.shape[1] // self.parts
        cdef float factor
        if rows.shape[0] != n or counts.shape[0] != n or deltas.shape[1] != self.parts * self.dim \
                or rows.shape[1] % self.parts or stride < self.dim:
            raise ValueError(f"expected rows of {self.parts} parts, deltas of {self.parts * self.dim} floats and "
                             f"counts, one a row; got {rows.shape[0]} x {rows.shape[1]}, {n} x "
                             f"{deltas.shape[1]}, {counts.shape[0]}")
        cdef float[::1] own = np.empty(max(1, self.outputs), np.float32)
        with nogil:
            for i in range(n):
                if counts[i] > 1:
                    longest(self, &rows[i, 0], stride, &deltas[i, 0], counts[i], &own[0], &factor)
                    share(self, &rows[i, 0], stride, &deltas[i, 0], &own[0], factor,
                          (counts[i] - 1) / counts[i] * others)


cdef inline uint32_t ticks(double now) noexcept nogil:
    """Convert a number of examples to the 32 bits of a Record, modulo 2^32."""
    return <uint32_t><uint64_t>now


# ---- a row -------------------------------------------------------------------------------------

cdef inline float root_of(DriftEstimate estimate, const float *row, int64_t stride,
                          int64_t column) noexcept nogil:
    """Return the divisor of a column's steps: the root of its sum of squared gradients."""
    return sqrtf(row[(estimate.parts - 1) * stride + column]) + estimate.least


cdef float longest(DriftEstimate estimate, const float *row, int64_t stride, const float *delta,
                   float count, float *own, float *factor) noexcept nogil:
    """Estimate how far `count` steps have moved a row: each output (`own`), all factors; the longest.

    The curvature in a factor differs from row to row and grows with the factors, so it is measured by the
    squared gradients in `delta` (NULL: no step yet).  All numbers of a factor move together.
    """
    cdef int64_t j, dim = estimate.dim
    cdef float most = 0, sum = 0
    cdef const float *squares
    if estimate.method == ACCESS_SGD:
        factor[0] = count * estimate.a_step
        for j in range(estimate.outputs):
            own[j] = factor[0]
        return factor[0]
    for j in range(estimate.outputs):
        own[j] = count * estimate.a_step / root_of(estimate, row, stride, j)
        most = max(most, own[j])
    if estimate.outputs < dim and delta != NULL:
        squares = delta + (estimate.parts - 1) * dim
        for j in range(estimate.outputs, dim):
            sum += squares[j] / root_of(estimate, row, stride, j)
        factor[0] = sum * estimate.a_factor_step
        most = max(most, factor[0])
    else:
        factor[0] = 0
    return most


cdef inline float mean_left(float x) noexcept nogil:
    """(1 - exp(-x)) / x, 0 < x; the series is right to 1e-6 where the difference is not."""
    if x < 0.25:
        return 1 - x * (0.5 - x * (<float>(1 / 6.) - x * (<float>(1 / 24.) - x * <float>(1 / 120.))))
    return (1 - expf(-x)) / x


cdef inline float share_of(float own, float others) noexcept nogil:
    """Compute `share_of_delta` for one row."""
    own = max(own, LEAST_OWN)
    return mean_left(own + others) / mean_left(own)


cdef inline uint8_t quieter(uint8_t quiet, int64_t place) noexcept nogil:
    """Return `quiet` of a row after an answer that showed no change of others.

    The skipped count starts at a number that depends on the place, so that rows which become quieter
    together are not all pulled in the same push period.
    """
    cdef int level = quiet & QUIET
    if level == C_QUIET_MAX:
        return <uint8_t>level
    level += 1
    return <uint8_t>(level | (place & ((1 << level) - 1)) << SKIPPED_AT)


cdef inline void reduce(DriftEstimate estimate, const float *row, int64_t stride, float *delta, int64_t j,
                        float lost) noexcept nogil:
    """Take away the part `lost` of a column's delta, as if the weight had moved less.

    Sums of squared gradients are pushed whole, because they do add up over workers.  FTRL's z is set to
    the value that gives the reduced weight.
    """
    cdef float taken = delta[j] * lost, wanted, z
    delta[j] -= taken
    if estimate.method == ACCESS_FTRL:
        wanted = row[j] - taken
        if wanted != 0:
            z = -wanted * (estimate.beta + sqrtf(row[2 * stride + j])) / estimate.lr
            z -= estimate.l1 if wanted > 0 else -estimate.l1
            delta[estimate.dim + j] += z - row[stride + j]


cdef float share(DriftEstimate estimate, const float *row, int64_t stride, float *delta, const float *own,
                 float factor, float others) noexcept nogil:
    """Reduce a delta to its share, column by column; return the mean share.

    `own` and `factor` say how far this worker has moved the row.  Other workers are assumed to have moved
    it `others` times as far.
    """
    cdef int64_t j
    cdef float lost, sum = 0
    for j in range(estimate.outputs):
        lost = 1 - share_of(own[j], own[j] * others)
        sum += 1 - lost
        reduce(estimate, row, stride, delta, j, lost)
    if estimate.outputs < estimate.dim:
        lost = 1 - share_of(factor, factor * others)
        sum += (1 - lost) * (estimate.dim - estimate.outputs)
        for j in range(estimate.outputs, estimate.dim):
            reduce(estimate, row, stride, delta, j, lost)
    return sum / estimate.dim


cdef class RowExchange:
    """Bases, keys and counts of kept rows by place, with the exchange of these rows.

    `rows` float32[room, parts x stride] are the rows as trained.  A place takes 21 bytes and its base
    besides, when it is first written.  Without `bases`, `send` and `merge` raise ValueError.

    Threads may call `load` and `send` for different places at once.  Nothing may train rows meanwhile:
    a step between reading the delta and moving the base would be lost.  Places out of range, and arrays
    that do not fit together, raise ValueError.
    """

    cdef float[:, ::1] rows
    cdef float[:, ::1] records
    cdef float[::1] counts
    cdef uint8_t[::1] quiet     # QUIET, SKIPPED and PUSHED of each row
    cdef int64_t dim, parts, stride, width
    cdef readonly double examples
    cdef readonly bint has_bases
    cdef double weight          # of one step in `counts`: grows, so that earlier counts need no decay

    def __init__(self, float[:, ::1] rows not None, Py_ssize_t dim, Py_ssize_t parts, *,
                 bint bases=True):
        if dim < 1 or parts < 1 or rows.shape[1] % parts or rows.shape[1] // parts < dim:
            raise ValueError(f"rows must have {parts} parts of at least {dim} columns, got "
                             f"{rows.shape[1]} columns")
        self.rows, self.dim, self.parts = rows, dim, parts
        self.stride, self.width = rows.shape[1] // parts, dim * parts
        self.has_bases = bases
        # `empty` and `zeros` of this size take pages only when these are first written.
        self.records = np.empty((rows.shape[0], RECORD + bases * self.width), np.float32)
        self.quiet = np.zeros(rows.shape[0], np.uint8)
        self.counts = np.zeros(rows.shape[0], np.float32)
        self.weight = 1

    cdef object check(self, const int32_t[::1] places, Py_ssize_t packed, Py_ssize_t width,
                      DriftEstimate estimate):
        cdef Py_ssize_t i
        cdef int bad = 0
        cdef Py_ssize_t room = self.rows.shape[0]
        with nogil:
            for i in range(places.shape[0]):
                bad |= not 0 <= places[i] < room
        if bad:
            raise ValueError(f"places must lie in 0..{room - 1}")
        if packed >= 0 and (packed != places.shape[0] or width != self.width):
            raise ValueError(f"packed rows must be ({places.shape[0]}, {self.width}), got "
                             f"({packed}, {width})")
        if estimate is not None and (estimate.dim != self.dim or estimate.parts != self.parts):
            raise ValueError(f"the estimate is of {estimate.parts} parts of {estimate.dim}, the rows are "
                             f"of {self.parts} parts of {self.dim}")

    cdef object check_bases(self):
        if not self.has_bases:
            raise ValueError("these rows have no bases")

    cdef inline Record *record(self, int64_t place) noexcept nogil:
        return <Record *>&self.records[place, 0]

    cdef inline float *base(self, int64_t place) noexcept nogil:
        return &self.records[place, RECORD]

    cdef inline void fetch(self, int64_t place) noexcept nogil:
        fetch_row_to_write(<char *>&self.rows[place, 0], 4 * <uint32_t>self.rows.shape[1],
                           FETCH_AT_CLIENT)
        fetch_row_to_write(<char *>&self.records[place, 0], 4 * <uint32_t>self.records.shape[1],
                           FETCH_AT_CLIENT)

    def load(self, const int32_t[::1] places not None, const uint64_t[::1] keys not None,
             const float[:, ::1] packed not None, double now) -> None:
        """Store rows as they were pulled; they are their own bases.  `now` is in examples."""
        cdef Py_ssize_t i, n = keys.shape[0]
        cdef int64_t p, j
        cdef Record *of
        cdef float *base
        cdef float *row
        cdef const float *from_
        self.check(places, packed.shape[0], packed.shape[1], None)
        if n != places.shape[0]:
            raise ValueError(f"expected a key for each of {places.shape[0]} places, got {n}")
        with nogil:
            for i in range(n):
                of, base, row = self.record(places[i]), self.base(places[i]), &self.rows[places[i], 0]
                of.last, of.rest = ticks(now), 0
                memcpy(of.key, &keys[i], sizeof(uint64_t))
                from_ = &packed[i, 0]
                if self.has_bases:
                    memcpy(base, from_, self.width * sizeof(float))
                for p in range(self.parts):
                    for j in range(self.dim):
                        row[p * self.stride + j] = from_[p * self.dim + j]
                    memset(row + p * self.stride + self.dim, 0, (self.stride - self.dim) * sizeof(float))

    def keep_bases(self, Py_ssize_t used) -> None:
        """Begin to keep bases, when a second worker joins; rows below `used` count as just pushed.

        Each row is its own base, so what a single worker trained is not pushed a second time.  All are
        marked as pushed without an answer, so that the next `stale` pulls them.
        """
        cdef const float[:, ::1] before = self.records
        cdef int64_t i, p
        if not 0 <= used <= self.rows.shape[0]:
            raise ValueError(f"expected at most {self.rows.shape[0]} places, got {used}")
        if self.has_bases:
            return
        self.records = np.empty((self.rows.shape[0], RECORD + self.width), np.float32)
        self.has_bases = True
        with nogil:
            for i in range(used):
                memcpy(self.record(i), &before[i, 0], RECORD * sizeof(float))
                for p in range(self.parts):
                    memcpy(self.base(i) + p * self.dim, &self.rows[i, p * self.stride],
                           self.dim * sizeof(float))
                self.quiet[i] |= PUSHED

    def keys(self, const int32_t[::1] places not None) -> NDArray[np.uint64]:
        cdef Py_ssize_t i
        self.check(places, -1, 0, None)
        array = np.empty(places.shape[0], np.uint64)
        cdef uint64_t[::1] keys = array
        with nogil:
            for i in range(places.shape[0]):
                if i + AHEAD < places.shape[0]:
                    fetch(self.record(places[i + AHEAD]))
                memcpy(&keys[i], self.record(places[i]).key, sizeof(uint64_t))
        return array

    def subtract(self, const int32_t[::1] places not None, float[:, ::1] packed not None) -> None:
        """Write ``packed = rows - packed``: the deltas of rows whose bases are in `packed`."""
        cdef Py_ssize_t i, n = places.shape[0]
        cdef int64_t p, j
        cdef float *row
        cdef float *delta
        self.check(places, packed.shape[0], packed.shape[1], None)
        with nogil:
            for i in range(n):
                if i + AHEAD < n:
                    fetch_row_to_write(<char *>&self.rows[places[i + AHEAD], 0],
                                       4 * <uint32_t>self.rows.shape[1], FETCH_AT_CLIENT)
                row, delta = &self.rows[places[i], 0], &packed[i, 0]
                for p in range(self.parts):
                    for j in range(self.dim):
                        delta[p * self.dim + j] = row[p * self.stride + j] - delta[p * self.dim + j]

    # ---- frequencies ---------------------------------------------------------------------------

    def count(self, const int32_t[::1] places not None, Py_ssize_t examples, float memory,
              const float[::1] weights=None) -> None:
        """Count steps of a sample at places (`weights`; None: one each); earlier counts weigh `memory`."""
        cdef Py_ssize_t i, n = places.shape[0]
        cdef float one
        self.check(places, -1, 0, None)
        if weights is not None and weights.shape[0] != n:
            raise ValueError(f"expected a weight for each of {n} places, got {weights.shape[0]}")
        if not 0 < memory <= 1:
            raise ValueError(f"memory must be above 0 and at most 1, got {memory}")
        self.weight /= memory
        self.examples = memory * self.examples + examples
        if self.weight > 1e12:  # long before float32 overflows
            array = np.asarray(self.counts)
            array *= np.float32(1 / self.weight)
            self.weight = 1
        one = <float>self.weight
        with nogil:
            if weights is None:
                for i in range(n):
                    if i + AHEAD < n:
                        fetch_to_write(&self.counts[places[i + AHEAD]])
                    self.counts[places[i]] += one
            else:
                for i in range(n):
                    if i + AHEAD < n:
                        fetch_to_write(&self.counts[places[i + AHEAD]])
                    self.counts[places[i]] += one * weights[i]

    def frequent(self, Py_ssize_t used, double least) -> NDArray[np.int32]:
        """Return the places below `used` with a count above `least`, ascending."""
        cdef Py_ssize_t i, found = 0
        cdef float bound = <float>(least * self.weight)
        if not 0 <= used <= self.counts.shape[0]:
            raise ValueError(f"expected at most {self.counts.shape[0]} places, got {used}")
        array = np.empty(used, np.int32)
        cdef int32_t[::1] out = array
        with nogil:
            for i in range(used):
                if self.counts[i] > bound:
                    out[found] = <int32_t>i
                    found += 1
        return array[:found].copy()

    def counted(self, const int32_t[::1] places not None) -> NDArray[np.float32]:
        self.check(places, -1, 0, None)
        return np.asarray(self.counts)[np.asarray(places)] / np.float32(self.weight)

    def intervals(self, DriftEstimate estimate not None, const int32_t[::1] places not None, *, int workers,
                  float drift, float steps_min, double now,
                  float factor_drift=float("inf")) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the examples between two exchanges of counted rows, and when the last exchange was.

        An interval lasts until the steps of all workers have moved the row by `drift`, but at least
        `steps_min` steps of this worker.  With AdaGrad it also ends when factors have moved by
        `factor_drift`; their speed follows from the sums of squared gradients of all workers, made while
        this worker trained `now` examples.
        """
        cdef Py_ssize_t i, n = places.shape[0]
        cdef int64_t j
        cdef float factor, step, roots
        cdef bint bounds = estimate.method == ACCESS_ADAGRAD and factor_drift < float("inf")
        self.check(places, -1, 0, estimate)
        interval_array, last_array = np.empty(n), np.empty(n)
        own_array = np.empty(max(1, estimate.outputs), np.float32)
        cdef double[::1] intervals = interval_array, last = last_array
        cdef float[::1] own = own_array
        cdef double per_count = self.examples * self.weight
        with nogil:
            for i in range(n):
                if i + AHEAD < n:
                    fetch(self.record(places[i + AHEAD]))
                    fetch(&self.rows[places[i + AHEAD], 0])
                step = longest(estimate, &self.rows[places[i], 0], self.stride, NULL, 1, &own[0],
                               &factor)
                step = max(steps_min, drift / max(step * workers, <float>1e-9))
                intervals[i] = step * per_count / self.counts[places[i]]
                if bounds:
                    roots = 0
                    for j in range(estimate.outputs, self.dim):
                        roots += root_of(estimate, &self.rows[places[i], 0], self.stride, j)
                    step = max(estimate.a_factor_step * roots, <float>1e-9)
                    intervals[i] = min(intervals[i], max(now * factor_drift / step,
                                                         steps_min * per_count / self.counts[places[i]]))
                last[i] = now - <uint32_t>(ticks(now) - self.record(places[i]).last)
        return interval_array, last_array

    def since(self, const int32_t[::1] places not None, double now) -> NDArray[np.float64]:
        """Return the examples between the last exchange of each row and `now`."""
        cdef Py_ssize_t i, n = places.shape[0]
        self.check(places, -1, 0, None)
        array = np.empty(n)
        cdef double[::1] examples = array
        with nogil:
            for i in range(n):
                if i + AHEAD < n:
                    fetch(self.record(places[i + AHEAD]))
                examples[i] = <uint32_t>(ticks(now) - self.record(places[i]).last)
        return array

    # ---- exchange ------------------------------------------------------------------------------

    def expect(self, const int32_t[::1] places not None, const float[::1] shares not None,
               double now) -> None:
        """Move the bases of rows without state by shares of their deltas, which others are expected to push.

        `send` then leaves these shares out; the next answer replaces what was expected.  What is left of
        earlier deltas (the rest) is this worker's alone: `shares` are of steps since the last exchange.
        """
        cdef Py_ssize_t i, n = places.shape[0]
        cdef int64_t j
        cdef Record *of
        cdef float share, steps
        cdef double per_count = max(1.0, self.examples) * self.weight
        cdef float *base
        cdef float *row
        self.check(places, -1, 0, None)
        self.check_bases()
        if self.width > self.dim or shares.shape[0] != n:
            raise ValueError(f"expected rows without state and a share for each of {n} places, got "
                             f"{self.parts} parts and {shares.shape[0]} shares")
        with nogil:
            for i in range(n):
                if i + AHEAD < n:
                    self.fetch(places[i + AHEAD])
                of, share = self.record(places[i]), shares[i]
                if not 0 < share < 1:
                    continue
                if of.rest > 0:
                    steps = <float>(self.counts[places[i]] / per_count) * <uint32_t>(ticks(now) - of.last)
                    share *= steps / (steps + of.rest * (1 - share))
                base, row = self.base(places[i]), &self.rows[places[i], 0]
                for j in range(self.dim):
                    base[j] += share * (row[j] - base[j])

    def send(self, DriftEstimate estimate not None, const int32_t[::1] places not None,
             uint64_t[::1] keys not None, float[:, ::1] deltas not None, *, int workers, double now,
             bint giving) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Write the deltas to push into `deltas` (n, width), and their keys; move the bases by them.

        A row that no other worker has changed for SOLE answers is pushed whole.  The delta of any other
        row is reduced to its share (`reduced`).  With AdaGrad and several workers its steps, in the row
        too, are first shortened to what they would have been after the steps of the others.

        The base moves by the pushed delta at once, before the push is acknowledged: the next delta must
        not contain it again.  Returns, if `giving`, what the local rows give up when the answer comes
        (for `merge`), and at which of the places.
        """
        cdef Py_ssize_t i, n = places.shape[0], given_num = 0
        cdef int64_t p, j
        cdef Record *of
        cdef float *base
        cdef float *row
        cdef float *delta
        cdef float count, held
        self.check(places, deltas.shape[0], deltas.shape[1], estimate)
        self.check_bases()
        if keys.shape[0] != n:
            raise ValueError(f"expected room for {n} keys, got {keys.shape[0]}")
        own_array = np.empty(max(1, estimate.outputs), np.float32)
        given_array = np.empty((n if giving else 0, self.width), np.float32)
        at_array = np.empty(len(given_array), np.int32)
        cdef float[::1] own = own_array
        cdef float[:, ::1] given = given_array
        cdef int32_t[::1] given_at = at_array
        with nogil:
            for i in range(n):
                if i + AHEAD < n:
                    self.fetch(places[i + AHEAD])
                    fetch(&self.counts[places[i + AHEAD]])
                    fetch_to_write(&self.quiet[places[i + AHEAD]])
                of, base, row = self.record(places[i]), self.base(places[i]), &self.rows[places[i], 0]
                delta = &deltas[i, 0]
                memcpy(&keys[i], of.key, sizeof(uint64_t))
                for p in range(self.parts):
                    for j in range(self.dim):
                        delta[p * self.dim + j] = row[p * self.stride + j] - base[p * self.dim + j]
                if workers > 1 and self.quiet[places[i]] & QUIET < SOLE:
                    count = <float>(self.counts[places[i]] / self.weight / max(1.0, self.examples))
                    held = self.reduced(estimate, row, base, delta, workers, min(count, <float>1),
                                        max(count * <uint32_t>(ticks(now) - of.last), <float>1), of, &own[0],
                                        &given[given_num, 0] if giving else NULL)
                    if held < 1 and giving:
                        given_at[given_num] = <int32_t>i
                        given_num += 1
                else:
                    of.rest = 0
                of.last = ticks(now)
                self.quiet[places[i]] |= PUSHED
                for j in range(self.width):
                    base[j] += delta[j]
        return given_array[:given_num], at_array[:given_num]

    cdef float reduced(self, DriftEstimate estimate, float *row, const float *base, float *delta, int workers,
                       float common, float count, Record *of, float *own,
                       float *given) noexcept nogil:
        """Reduce a delta to the share that is pushed; return which part of the rest the row keeps.

        The rest, ``delta - share``, stays in the local row and is pushed later, unless the workers
        together have gone too far: then the row keeps only a part (the returned one) and what it gives up
        is written to `given`, if that is not NULL.  `common` is the share of all examples that use the
        row, `count` the number of own steps since the last exchange.
        """
        cdef int64_t j
        cdef float factor, beyond, held, mixed
        count += of.rest
        of.rest = 0
        if estimate.method == ACCESS_ADAGRAD:
            shorten_adagrad(self.dim, row, delta, delta + self.dim, base + self.dim, estimate.least,
                            max((count - 1) / count, estimate.others_least) * (workers - 1))
        # A row with one step is probably no other worker's: it is pushed whole.
        if count <= C_ONE_STEP:
            return 1
        beyond = longest(estimate, row, self.stride, delta, count, own, &factor) * workers - 1
        held = 1
        if beyond > 0:
            held /= 1 + (beyond * common / C_FAR_OF_ALL) ** 2 + (beyond / estimate.far) ** 2
            if given != NULL:
                memcpy(given, delta, self.width * sizeof(float))
        mixed = C_CORRELATION * held + (1 - held)
        for j in range(estimate.outputs):
            own[j] *= mixed
        of.rest = count * held * (1 - share(estimate, row, self.stride, delta, own, factor * mixed,
                                            (count - 1) / count * (workers - 1)))
        if beyond > 0 and given != NULL:
            for j in range(self.width):
                given[j] = (given[j] - delta[j]) * (1 - held)
        return held

    def asked(self, const int32_t[::1] places not None) -> None:
        """Mark rows as pulled after their last push, so they are not stale."""
        cdef Py_ssize_t i
        self.check(places, -1, 0, None)
        with nogil:
            for i in range(places.shape[0]):
                self.quiet[places[i]] &= <uint8_t>~PUSHED

    def share_anew(self) -> None:
        """Forget which rows are quiet, because the workers have changed: any may train any row now."""
        cdef Py_ssize_t i
        with nogil:
            for i in range(self.quiet.shape[0]):
                self.quiet[i] &= PUSHED

    def stale(self, const int32_t[::1] places not None, *,
              bint quiet_too=False) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        """Return places and keys of rows that were pushed and not pulled since; mark them as pulled.

        Rows that no other worker has changed lately are left out of most calls (QUIET_MAX), unless
        `quiet_too`: pulling them would cost as much as pulling busy rows, and bring nothing.
        """
        cdef Py_ssize_t i, found = 0
        cdef uint8_t quiet, skipped
        self.check(places, -1, 0, None)
        array, key_array = np.empty(places.shape[0], np.int32), np.empty(places.shape[0], np.uint64)
        cdef int32_t[::1] out = array
        cdef uint64_t[::1] keys = key_array
        with nogil:
            for i in range(places.shape[0]):
                if i + AHEAD < places.shape[0]:
                    fetch(&self.quiet[places[i + AHEAD]])
                    fetch(self.record(places[i + AHEAD]))
                quiet = self.quiet[places[i]]
                if not quiet & PUSHED:
                    continue
                skipped = (quiet >> SKIPPED_AT) & SKIPPED_MAX
                if not quiet_too and skipped + 1 < 1 << (quiet & QUIET):
                    self.quiet[places[i]] = <uint8_t>(quiet + (1 << SKIPPED_AT))
                else:
                    self.quiet[places[i]] = quiet & QUIET
                    memcpy(&keys[found], self.record(places[i]).key, sizeof(uint64_t))
                    out[found] = places[i]
                    found += 1
        return array[:found].copy(), key_array[:found].copy()

    def merge(self, DriftEstimate estimate not None, const int32_t[::1] places not None,
              const float[:, ::1] answers not None, const float[:, ::1] given not None,
              const int32_t[::1] given_at not None) -> None:
        """Add what others have changed to the rows, subtract what `send` gave up; answers are new bases.

        `answers` are rows pulled after the push of `send`, so they contain it.  The row keeps what it has
        trained since: ``row += answer - base``, and not ``row = answer``.
        """
        cdef Py_ssize_t i, n = places.shape[0], next_given = 0, given_num = given_at.shape[0]
        cdef int64_t p, j, first
        cdef Record *of
        cdef float *base
        cdef float *row
        cdef const float *answer
        cdef bint changed, gives
        self.check(places, answers.shape[0], answers.shape[1], estimate)
        self.check_bases()
        if given.shape[0] != given_num or (given_num and given.shape[1] != self.width):
            raise ValueError(f"given must be ({given_num}, {self.width}), got ({given.shape[0]}, "
                             f"{given.shape[1]})")
        for i in range(given_num):
            if not (given_at[i - 1] if i else -1) < given_at[i] < n:
                raise ValueError(f"given_at must rise within 0..{n - 1}, the answers, got "
                                 f"{given_at[i]} at {i}")
        # FTRL's weights follow from z and n, and are rounded differently here and at the servers: only
        # the state shows whether others have changed a row.
        first = self.dim if estimate.method == ACCESS_FTRL else 0
        with nogil:
            for i in range(n):
                if i + AHEAD < n:
                    self.fetch(places[i + AHEAD])
                of, base, row = self.record(places[i]), self.base(places[i]), &self.rows[places[i], 0]
                answer = &answers[i, 0]
                changed = False
                for j in range(first, self.width):
                    changed |= answer[j] != base[j]
                self.quiet[places[i]] = 0 if changed else quieter(self.quiet[places[i]], places[i])
                gives = next_given < given_num and given_at[next_given] == i
                if not changed and not gives:
                    continue
                for p in range(self.parts):
                    for j in range(self.dim):
                        row[p * self.stride + j] += answer[p * self.dim + j] - base[p * self.dim + j]
                if gives:
                    for p in range(self.parts):
                        for j in range(self.dim):
                            row[p * self.stride + j] -= given[next_given, p * self.dim + j]
                    next_given += 1
                for j in range(self.width):
                    base[j] = answer[j]
                if estimate.method == ACCESS_FTRL:
                    for j in range(self.dim):
                        row[j] = ftrl_weight(row[self.stride + j], sqrtf(row[2 * self.stride + j]),
                                             &estimate.ftrl)


# ---- rows of a part, whose steps are not measured -----------------------------------------------

cdef object check_places(const int64_t[::1] places, Py_ssize_t rows, Py_ssize_t columns,
                         const float[:, ::1] packed, Py_ssize_t first, Py_ssize_t dim,
                         Py_ssize_t at):
    cdef Py_ssize_t i
    cdef bint bad = False
    with nogil:
        for i in range(places.shape[0]):
            bad |= not 0 <= places[i] < rows
    if bad:
        raise ValueError(f"places must lie in 0..{rows - 1}")
    if packed.shape[0] != places.shape[0] or not 0 <= first <= packed.shape[1] - dim \
            or not 0 <= at <= columns - dim:
        raise ValueError(f"expected {places.shape[0]} packed rows with columns {first} to "
                         f"{first + dim - 1}, got ({packed.shape[0]}, {packed.shape[1]})")


cdef inline void fetch_columns(float[:, ::1] rows, int64_t place, Py_ssize_t first,
                               Py_ssize_t dim) noexcept nogil:
    fetch_row_to_write(<char *>&rows[place, first], 4 * <uint32_t>dim, FETCH_AT_CLIENT)


def share_of_delta(own: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute which share of a row's delta to push while other workers train the row: above 0, at most 1.

    On a quadratic loss n steps of rate r and curvature h leave ``exp(-h r n)`` of the distance to the
    minimum.  Two workers that start from the same copy and go x and y (`own`, `others`: h r n, arrays of
    one shape) cover ``1 - exp(-x)`` and ``1 - exp(-y)`` of the distance, together too much.  One after the
    other they would cover ``1 - exp(-x - y)``, of which ``x / (x + y)`` is this worker's part.
    """
    cdef const float[::1] x = np.ascontiguousarray(own, np.float32).reshape(-1)
    cdef const float[::1] y = np.ascontiguousarray(others, np.float32).reshape(-1)
    cdef Py_ssize_t i, n = x.shape[0]
    if y.shape[0] != n:
        raise ValueError(f"expected as many steps of others as own ones, {n}, got {y.shape[0]}")
    made = np.empty(own.shape, np.float32)
    cdef float[::1] shares = made.reshape(-1)
    with nogil:
        for i in range(n):
            shares[i] = share_of(x[i], y[i])
    return made


def load_columns(float[:, ::1] rows not None, const int64_t[::1] places not None,
                 const float[:, ::1] packed not None, Py_ssize_t first, Py_ssize_t dim,
                 Py_ssize_t at=0) -> None:
    """Do ``rows[places, at : at + dim] = packed[:, first : first + dim]``.

    Threads may call it for different rows.
    """
    cdef Py_ssize_t i
    check_places(places, rows.shape[0], rows.shape[1], packed, first, dim, at)
    with nogil:
        for i in range(places.shape[0]):
            if i + AHEAD < places.shape[0]:
                fetch_columns(rows, places[i + AHEAD], at, dim)
            memcpy(&rows[places[i], at], &packed[i, first], dim * sizeof(float))


def subtract_columns(float[:, ::1] rows not None, const int64_t[::1] places not None,
                     float[:, ::1] deltas not None, Py_ssize_t first, Py_ssize_t dim,
                     float[:, ::1] bases=None, const float[::1] shares=None,
                     Py_ssize_t at=0) -> None:
    """Write the deltas of rows, from column `at` on, into columns ``first : first + dim`` of `deltas`.

    A delta is the row as trained minus its base, times its share; the base is then set to the row.
    Without `bases` the base is what `deltas` has.  Threads may call it for different rows.
    """
    cdef Py_ssize_t i, j
    cdef float share = 1
    cdef float *row
    cdef float *base
    cdef float *delta
    check_places(places, rows.shape[0], rows.shape[1], deltas, first, dim, at)
    if bases is not None and (bases.shape[0] != rows.shape[0] or bases.shape[1] != deltas.shape[1]):
        raise ValueError(f"expected bases of ({rows.shape[0]}, {deltas.shape[1]}), got "
                         f"({bases.shape[0]}, {bases.shape[1]})")
    if shares is not None and shares.shape[0] != places.shape[0]:
        raise ValueError(f"expected {places.shape[0]} shares, got {shares.shape[0]}")
    with nogil:
        for i in range(places.shape[0]):
            if i + AHEAD < places.shape[0]:
                fetch_columns(rows, places[i + AHEAD], at, dim)
                if bases is not None:
                    fetch_columns(bases, places[i + AHEAD], first, dim)
            row, delta = &rows[places[i], at], &deltas[i, first]
            if bases is None:
                for j in range(dim):
                    delta[j] = row[j] - delta[j]
                continue
            base = &bases[places[i], first]
            if shares is not None:
                share = shares[i]
            for j in range(dim):
                delta[j] = (row[j] - base[j]) * share
                base[j] = row[j]


def move_changed(float[:, ::1] deltas not None) -> NDArray[np.int64]:
    """Move the rows that are not all zeros to the front; return their former places, ascending."""
    cdef Py_ssize_t i, j, found = 0, width = deltas.shape[1]
    places = np.empty(deltas.shape[0], np.int64)
    cdef int64_t[::1] at = places
    with nogil:
        for i in range(deltas.shape[0]):
            j = 0
            while j < width and deltas[i, j] == 0:
                j += 1
            if j == width:
                continue
            if found < i:
                memcpy(&deltas[found, 0], &deltas[i, 0], width * sizeof(float))
            at[found] = i
            found += 1
    return places[:found]


def merge_columns(float[:, ::1] rows not None, const int64_t[::1] places not None,
                  float[:, ::1] bases not None, const float[:, ::1] merged not None,
                  Py_ssize_t first, Py_ssize_t dim, Py_ssize_t at=0) -> None:
    """Add ``merged - bases`` to rows, from column `at` on; `merged` (packed rows) is the new base."""
    cdef Py_ssize_t i, j
    cdef float *row
    cdef float *base
    cdef const float *now
    check_places(places, rows.shape[0], rows.shape[1], merged, first, dim, at)
    if bases.shape[0] != rows.shape[0] or bases.shape[1] != merged.shape[1]:
        raise ValueError(f"expected bases of ({rows.shape[0]}, {merged.shape[1]}), got "
                         f"({bases.shape[0]}, {bases.shape[1]})")
    with nogil:
        for i in range(places.shape[0]):
            if i + AHEAD < places.shape[0]:
                fetch_columns(rows, places[i + AHEAD], at, dim)
                fetch_columns(bases, places[i + AHEAD], first, dim)
            row, base, now = &rows[places[i], at], &bases[places[i], first], &merged[i, first]
            for j in range(dim):
                row[j] += now[j] - base[j]
                base[j] = now[j]
