# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Requests of callers: made from checked arrays, handed in, kept until the caller has the answer.

    keys, rows, checked -> Request (`_request.pyx`) -> Pending -> sent -> wait -> rows, or the error
    sparse examples -> entries by shard (`server_products`) -> Forward, then the gradient's Pending

Owns the checks of a caller's arrays, which are the only ones: the C code after them walks pointers.
Owns requests from their making until they are not needed: a `Pending` frees its request, and
`PendingRequests` keeps each open one alive, since a shard may be asked again long after the caller
has forgotten it.  Must not know sockets (`_connections.pyx`).
"""

import struct
import threading

import numpy as np

cimport cython
from cpython.buffer cimport (
    PyBUF_ND, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t, uintptr_t

from snailps.errors import ConnectionLost, MisuseError, NotFinite, SnailError, WaitTimeout
from snailps.registry import named
from snailps.transport.frame import Frame, Kind
from snailps.transport.handshake import remote_error

from snailps.abi._wire_types cimport WIRE_FLOAT16, WIRE_FLOAT32, WireOps, is_wire, wire_row_bytes
from snailps.transport._awake cimport now_s
from snailps.transport._frame cimport (
    EXAMPLE_ENTRIES_MAX, KIND_BACKWARD, KIND_FORWARD, KIND_PULL, KIND_PUSH, KIND_REACH, KIND_SEAL,
    OPTION_ASSIGN, OPTION_LR_SCALE, OPTION_STATE, ROW_BYTES_MAX, SLOTS_MAX,
)
from snailps.transport._posix cimport load_flag, store_flag
from snailps.transport.client._error_feedback cimport owing_of
from snailps.transport.client._link cimport Core
from snailps.transport.client._request cimport (
    EVERY_SHARD, KIND_RAW, NO_KEY, NO_SLAB, SORT_TOO_LONG, Request, merge_keys, product_calls,
    request_changes, request_free,
    request_new, sort_keys, sum_of, waits_for_clock,
)

ROW_FLOATS_MAX = ROW_BYTES_MAX // 4
SCALE_LOG2_MIN = -126           # the inverse of its power of two is a normal float32, too
STATE_FLOATS_MAX = 3 * ROW_FLOATS_MAX + 1   # such a row with the widest state there is
cdef object UINT64 = np.dtype(np.uint64)    # compared by address first: nearly all arrays share it
cdef object FLOAT32 = np.dtype(np.float32)
cdef tuple INTEGERS = (UINT64, np.dtype(np.int64))  # rows of them are two words of 32 bits a value
cdef object Array = np.ndarray
_CLOCK = struct.Struct("<QII")      # ClockHead of _frame.pxd
cdef str NOT_FINITE_HINT = (
    "A training that makes such values has diverged: lower its lr, and look for NaN in its input. To "
    "allow such values, declare the table with finite=False")

cdef double SIGNALS_EVERY_S = 0.1   # how often a wait checks for Ctrl-C: C code does not see it
REPORTED_S = 1.0                        # an open request of this age is in `waits`
REPORTED_MAX = 3
PRUNE_ALWAYS_BELOW = 64             # to look through so few live requests costs a microsecond


@cython.no_gc_clear                 # __dealloc__ needs the connections
cdef class Pending:
    """An asynchronous pull or push, or a batch through a table.

    `done`: whether it is answered, or has failed.  `rows` float32[n, dim]: the pushed values, the
    array for pulled rows, or Z of a forward once `wait` has returned it.  Rows of integers are uint64 or
    int64 instead.
    """

    def __init__(self):
        raise TypeError("a Pending comes from Client.pull_async or Client.push_async")

    def __dealloc__(self):
        if self.request != NULL:
            request_free(&self.connections.core.pool, self.request)

    @property
    def done(self) -> bool:
        return self.request != NULL and load_flag(&self.request.done) != 0

    def wait(self, timeout_s: float | None = None) -> NDArray[np.float32]:
        """Wait for the answer; return `rows`.

        WaitTimeout names the shards without an answer; the request goes on.  RemoteError: a shard
        refused. ConnectionLost: the cluster ended, or a shard was out of reach for too long.
        """
        return self.wait_for(self.requests.timeout_s if timeout_s is None else timeout_s)

    cdef wait_for(self, double limit_s):
        """`wait` without the costs of a call from Python."""
        cdef double until_s = now_s() + limit_s
        self.awaited = True
        if self.requests.corks and load_flag(&self.request.done):
            # A wait that is over at once serves no link, so nobody would send what a cork held back.
            self.connections.send_held()
        while not self.connections.wait_until(self.request,
                                              min(until_s, now_s() + SIGNALS_EVERY_S)):
            PyErr_CheckSignals()
            if now_s() >= until_s:
                lacking = self.connections.unanswered_by(self.request)
                raise WaitTimeout(f"{self.what()} waited {limit_s:g} s for {lacking}: "
                                  "is that server alive, and is its port open from here?")
        if self.request.failed:
            self.requests.settle(self)
            raise self._error()
        self.requests.settle(self)
        return self.rows

    def abandon(self) -> None:
        """Stop waiting: nobody takes the answer, and `flush` does not wait for it.

        A push is applied all the same.  Parts of a pull that were not sent are dropped.  Do not use
        the arrays again: the client writes into them until the sent parts are answered.
        """
        self.abandoned = True
        store_flag(&self.request.abandoned, 1)

    cdef what(self):
        cdef Request *r = self.request
        if r.kind == KIND_RAW and r.clocked:
            return f"seal of slot {r.slot} of clock {r.clock}" if r.raw_kind == KIND_SEAL \
                else f"reach of clock {r.clock}"
        table = self.requests.name_of(r.table)
        if r.kind == KIND_RAW:
            return f"{Kind(r.raw_kind).name} of {table}"
        if r.product != NULL:
            name = "forward" if r.kind == KIND_FORWARD else "backward"
            return f"{name} of {r.product.examples:,} examples through {table}"
        name = "pull" if r.kind == KIND_PULL else "push"
        when = ""
        if r.clocked:
            when = f" at clock {r.clock}" if r.kind == KIND_PULL \
                else f" to slot {r.slot} of clock {r.clock}"
        return f"{name} of {len(self.rows):,} rows of {table}{when}"

    cdef _error(self):
        if self.request.text != NULL:
            error = remote_error(Frame(Kind.ERROR, self.request.text[:self.request.text_bytes]))
            if error.code == NotFinite.code:
                return NotFinite(f"{self.requests.name_of(self.request.table)}: {error}")
            return error
        return ConnectionLost(f"{self.what()}: {self.connections.why_ended() or 'out of memory'}")


@cython.no_gc_clear
cdef class Forward(Pending):
    """A batch on its way through a table, whose shards multiply it by their rows; `wait` returns Z."""

    def wait(self, timeout_s: float | None = None) -> NDArray[np.float32]:
        """Wait for the answer; return `rows`.

        WaitTimeout names the shards without an answer; the request goes on.  RemoteError: a shard
        refused. ConnectionLost: the cluster ended, or a shard was out of reach for too long.
        """
        Pending.wait(self, timeout_s)
        if self.slabs is not None:
            for slab in self.slabs[1:]:
                self.rows += slab
            self.slabs = None
        return self.rows


cdef class PendingRequests:
    """Requests that are not done, or whose answer no caller has taken."""

    def __cinit__(self, Connections connections, double timeout_s):
        self.connections, self.timeout_s = connections, timeout_s
        self.live = {}
        self.corks = {}
        self.tables = {}
        self.live_lock = threading.Lock()

    def flush(self, timeout_s: float | None = None) -> None:
        """Implement `Client.flush`."""
        cdef Pending pending
        cdef double until_s = now_s() + (self.timeout_s if timeout_s is None else timeout_s)
        first = None
        with self.live_lock:
            waiting = list(self.live)
        for pending in waiting:
            if waits_for_clock(pending.request) or (
                    pending.abandoned and not request_changes(pending.request)):
                continue
            try:
                pending.wait_for(max(0.0, until_s - now_s()))   # Z is for its own waiter to sum
            except WaitTimeout:
                raise
            # Only a push's error is raised here: nobody may ever wait for that push.  A pull's error is
            # raised by its own `wait`.
            except SnailError as error:
                self.live.pop(pending, None)    # `settle` leaves requests of `wait_here` to their caller
                if first is None and request_changes(pending.request):
                    first = error
        if first is not None:
            raise first

    def open_pushes(self) -> list[Pending]:
        """Implement `Client.open_pushes`."""
        cdef Pending pending
        with self.live_lock:
            live = list(self.live)
        return [pending for pending in live
                if pending.request.kind in (KIND_PUSH, KIND_BACKWARD) and not pending.done]

    def waits(self) -> list[list[Any]]:
        """Implement `Client.waits`."""
        cdef Pending pending
        cdef double now = now_s()
        reported = []
        for pending in list(self.live):         # copied in one step under the GIL; oldest first
            if len(reported) == REPORTED_MAX or now - pending.begun_s < REPORTED_S:
                break
            if pending.done or pending.abandoned:
                continue
            # Rows at a clock are asked for long before a block needs them: their wait is normal until then.
            if pending.awaited or not waits_for_clock(pending.request):
                reported.append([pending.what(), self.connections.unanswered_by(pending.request),
                                 now - pending.begun_s])
        return reported

    cdef name_of(self, uint32_t table):
        """Names a table in messages."""
        declared = self.tables.get(table)
        return f"table {table}" if declared is None else f"table {declared[0]!r}"

    cdef bint takes_any(self, uint32_t table) except -1:
        """Whether a table was declared to take values that are not finite."""
        declared = self.tables.get(table)
        return declared is not None and not declared[1]

    cdef Pending add(self, Pending pending, Request *r):
        """Makes a new pending the owner of a request."""
        pending.request = r
        pending.connections = self.connections
        pending.requests = self
        return pending

    cdef send(self, Pending pending):
        pending.begun_s = now_s()
        if pending.waits:
            self.live[pending] = None       # no lock: one step under the GIL, and so is its removal
        else:
            with self.live_lock:
                if len(self.live) < PRUNE_ALWAYS_BELOW or len(self.live) >= self.prune_at:
                    self._prune()
                    self.prune_at = 2 * len(self.live)
                self.live[pending] = None
        # The caller of a blocking call serves the links itself; a cork sends later, several requests at once.
        is_held = pending.waits or (self.corks and threading.get_ident() in self.corks)
        self.connections.hand_in(pending.request, not is_held)

    cdef cork(self):
        """Holds back the requests of this thread until it waits or ends the cork."""
        thread = threading.get_ident()
        self.corks[thread] = self.corks.get(thread, 0) + 1

    cdef bint uncork(self) except -1:
        """Ends a `cork` of this thread; False: it had none."""
        thread = threading.get_ident()
        depth = self.corks.pop(thread, 0) - 1
        if depth > 0:
            self.corks[thread] = depth
        elif depth == 0:
            self.connections.send_held()
        return depth >= 0

    cdef wait_here(self, Pending pending):
        """Waits for a request that no other caller knows.

        If the wait ends early, the request stays in `live`: the links still read or fill its arrays.
        """
        try:
            return pending.wait_for(self.timeout_s)
        finally:
            if load_flag(&pending.request.done):
                self.live.pop(pending, None)

    cdef settle(self, Pending pending):
        """Drops a request whose answer the caller has."""
        if pending.waits:
            return                          # `wait_here` drops it
        with self.live_lock:
            self.live.pop(pending, None)

    cdef _prune(self):
        """Drops answered requests, but for failed pushes: `flush` still has to raise their errors."""
        cdef Pending pending
        for pending in list(self.live):
            if load_flag(&pending.request.done) \
                    and not (pending.request.failed and request_changes(pending.request)):
                self.live.pop(pending, None)


# --- requests from arrays -------------------------------------------------------------------------


cdef Pending ask_rows(PendingRequests requests, int kind, uint32_t table, keys, rows, bint state,
                      bint merge, int wire, bint feedback, bint coarse, bint waited,
                      bint ahead, int64_t clock, uint32_t slot, float lr_scale, bint assign):
    """Makes and sends a pull or push; `waited`: the caller waits for it with `wait_here`."""
    cdef Core *core = requests.connections.core
    cdef Request *r
    cdef Py_buffer wanted
    cdef int failed = 0
    cdef bint floats
    cdef uint64_t place
    cdef Pending pending
    if not _is_array(keys, UINT64, 1):
        raise MisuseError("keys must be a uint64 array of one dimension, got " + _shown(keys))
    if not is_wire(wire) or (wire != WIRE_FLOAT32 and (state or core.wire == NULL)):
        raise MisuseError(f"wire type {wire}: expected 0, 1 or 3, and 0 for rows with "
                          "state or where the client was made without wire_ops")
    if clock < -1 or slot >= <uint32_t>SLOTS_MAX:
        raise MisuseError(f"slot {slot} of clock {clock}: expected a clock of 0 or more (or -1: "
                          f"none) and a slot from 0 to {SLOTS_MAX - 1:,}")
    _check_lr_scale(lr_scale, state)
    PyObject_GetBuffer(keys, &wanted, PyBUF_STRIDES)
    if wanted.shape[0] > 1 and wanted.strides[0] != 8:
        PyBuffer_Release(&wanted)
        PyObject_GetBuffer(np.ascontiguousarray(keys), &wanted, PyBUF_ND)
    try:
        if wanted.shape[0] > 0xFFFFFFF0:
            raise MisuseError(f"{wanted.shape[0]:,} keys in one request, limit 4 thousand "
                              "million")
        r = request_new(&core.pool, &core.order, <uint32_t>wanted.shape[0])
        if r == NULL:
            raise MemoryError
        pending = requests.add(Pending.__new__(Pending), r)     # which frees r, also after an error below
        pending.rows = rows                                     # keeps the array alive
        pending.waits = waited
        r.kind = kind
        r.table = table
        take_rows(r, rows, kind == KIND_PULL, state)
        floats = _is_array(rows, FLOAT32, 2)
        if not floats and (merge or wire != WIRE_FLOAT32):
            raise MisuseError(f"rows of {rows.dtype} travel as they are, and are not summed: expected wire "
                              f"type 0 without merge, got {wire} and {merge}")
        r.options = (OPTION_STATE if state else 0) | (OPTION_LR_SCALE if lr_scale != 1 else 0) \
            | (OPTION_ASSIGN if assign else 0)
        r.lr_scale = lr_scale
        if kind == KIND_PUSH and core.wire != NULL and floats:
            with nogil:
                place = core.wire.fitting[wire](r.rows, r.row_stride, r.n, r.dim)
            if place < <uint64_t>r.n * r.dim:
                wire = WIRE_FLOAT32         # a narrower type would clip the value
                _check_finite(requests, r, <const uint64_t *>wanted.buf)
            elif wire == WIRE_FLOAT16 and not coarse and _has_faint_row(r):
                wire = WIRE_FLOAT32         # float16 would round off most digits of a row, or all
        r.wire = wire
        r.ahead = ahead
        r.clocked = clock >= 0
        r.clock = clock if r.clocked else 0
        r.slot = slot if r.clocked else 0
        r.row_bytes = wire_row_bytes(wire, r.dim)
        if kind == KIND_PUSH and feedback and wire != WIRE_FLOAT32:
            with requests.live_lock:        # callers add to the list; whoever serves the links only reads
                r.owing = owing_of(&core.owing, table, r.dim)
            failed = r.owing == NULL
        if r.n and not failed:
            with nogil:
                failed = sort_keys(&core.order, r, <const uint64_t *>wanted.buf)
                if merge and not failed:
                    failed = merge_keys(r)
                if r.later != NULL and not failed and not _sums_fit(core.wire, r, <uint32_t>wanted.shape[0]):
                    r.wire = WIRE_FLOAT32
                    r.row_bytes = 4 * r.dim
                    r.owing = NULL
    finally:
        PyBuffer_Release(&wanted)
    if failed:
        raise MemoryError
    requests.send(pending)
    return pending


cdef bint _are_below(const Request *r, uint32_t n, uint32_t exponent) noexcept nogil:
    """Whether all of n rows' values have exponents below this one: one pass without a branch."""
    cdef bint gapless = r.row_stride == 4 * <size_t>r.dim
    cdef uint64_t length = n * <uint64_t>r.dim if gapless else r.dim
    cdef uint32_t carry = <uint32_t>0x80000000 - (exponent << 23)
    cdef uint32_t carried = 0
    cdef const uint32_t *bits
    cdef uint32_t i
    cdef uint64_t j
    for i in range(1 if gapless else n):
        bits = <const uint32_t *>(r.rows + i * r.row_stride)
        for j in range(length):
            carried |= (bits[j] & <uint32_t>0x7F800000) + carry
    return not carried >> 31


cdef bint _sums_fit(const WireOps *wire, const Request *r, uint32_t n) noexcept nogil:
    """Whether the sums of a merged push of n values fit its wire type; the values do.

    To sum them takes a third of the time of such a push.  It is done only where the largest value,
    times the most repetitions of a key, might not fit.
    """
    cdef uint32_t i, place, length
    cdef uint32_t most = 1
    cdef uint32_t exponent = 127 + 15       # of float16's largest power of two, as float32 has it
    if r.wire != WIRE_FLOAT16:
        return True
    for i in range(r.n):
        length = 1
        place = r.later[r.order[i]]
        while place != <uint32_t>NO_KEY:
            length += 1
            place = r.later[place]
        most = max(most, length)
    while most > 1:
        most = (most + 1) >> 1
        exponent -= 1
    if _are_below(r, n, exponent):
        return True
    for i in range(r.n):
        if r.later[r.order[i]] != <uint32_t>NO_KEY \
                and wire.fitting[r.wire](<const char *>sum_of(r, i), 4 * <uint64_t>r.dim, 1, r.dim) < r.dim:
            return False
    return True


cdef bint _has_faint_row(const Request *r) noexcept nogil:
    """Whether a row other than zero has only values below 2^-14, which float16 rounds to few digits.

    Mostly the first value of a row decides.
    """
    cdef const uint32_t *row
    cdef uint32_t i, j, size, nonzero_bits
    for i in range(r.n):
        row = <const uint32_t *>(r.rows + i * r.row_stride)
        nonzero_bits = 0
        for j in range(r.dim):
            size = row[j] & 0x7FFFFFFF
            if size >= <uint32_t>0x38800000:
                nonzero_bits = 0
                break
            nonzero_bits |= size
        if nonzero_bits:
            return True
    return False


cdef int _check_finite(PendingRequests requests, const Request *r, const uint64_t *keys) except -1:
    """Raises NotFinite for a NaN or infinity, unless the table was declared to take them."""
    cdef uint64_t place = requests.connections.core.wire.finite[<int>WIRE_FLOAT32](
        r.rows, r.row_stride, r.n, r.dim)
    cdef uint64_t row = place // r.dim
    if row < r.n and not requests.takes_any(r.table):
        value = (<const float *>(r.rows + row * r.row_stride))[place % r.dim]
        raise NotFinite(f"{requests.name_of(r.table)}: expected finite values to push, got {value} for "
                        f"row {keys[row]}, column {place % r.dim}: nothing of this push was applied. "
                        + NOT_FINITE_HINT)
    return 0


cdef Pending ask_all(PendingRequests requests, uint8_t kind, int64_t clock, uint32_t slot,
                     uint32_t slots):
    """Sends a seal, or a wait for a clock, to every shard."""
    if clock < 0 or (kind == KIND_SEAL and not slot < slots <= SLOTS_MAX):
        raise MisuseError(f"slot {slot} of {slots} of clock {clock}: expected a clock of 0 or more "
                          f"and slots from 0 on, at most {SLOTS_MAX:,} of them")
    return ask_one(requests, EVERY_SHARD, kind, 0, _CLOCK.pack(clock, slot, slots), clock, slot)


cdef Pending ask_one(PendingRequests requests, uint32_t shard, uint8_t kind, uint32_t table,
                     bytes body, int64_t clock=-1, uint32_t slot=0):
    """Sends a body as it is to one shard or to all; after a wait `reply_of` has one shard's reply.

    `clock`: of a seal, or the clock that is waited for; -1: none.
    """
    cdef Core *core = requests.connections.core
    cdef Request *r = request_new(&core.pool, &core.order, 0)
    cdef Pending pending
    if r == NULL:
        raise MemoryError
    r.kind = KIND_RAW
    r.raw_kind = kind
    r.table = table
    r.raw_body = body
    r.raw_bytes = len(body)
    r.raw_shard = shard
    r.ahead = kind == KIND_REACH
    r.clocked = clock >= 0
    r.clock = max(clock, 0)
    r.slot = slot
    pending = requests.add(Pending.__new__(Pending), r)
    pending.keys = body
    requests.send(pending)
    return pending


cdef bytes reply_of(Pending pending):
    """The body of the reply, as it came."""
    return pending.request.raw_reply[:pending.request.raw_reply_bytes]


cdef Forward ask_forward(PendingRequests requests, uint32_t table, ptr, keys, values, uint32_t dim,
                         int wire, bint keep, bint stored):
    """Sends examples, as CSR, to the shards, each of which returns its part of the product."""
    cdef Core *core = requests.connections.core
    cdef Py_ssize_t m, nnz
    cdef const int64_t *edge
    cdef const uint64_t *key = NULL
    cdef const float *factor = NULL
    cdef Request *r
    cdef Forward pending
    cdef int failed
    cdef uint64_t at
    cdef uint32_t s, slabs = 0
    edges = _array("ptr", ptr, np.int64, None)
    edge = <const int64_t *><uintptr_t>edges.ctypes.data
    m = len(edges) - 1
    nnz = edge[m] if m >= 0 else -1
    if not 0 <= m < 0x7FFFFFFF or edge[0] != 0 or not 0 <= nnz < 0x7FFFFFFF \
            or (edges[1:] < edges[:m]).any():
        raise MisuseError("ptr must begin with 0 and rise to the number of keys, which are fewer "
                          "than 2^31")
    wanted = _array("keys", keys, np.uint64, nnz)
    key = <const uint64_t *><uintptr_t>wanted.ctypes.data
    if values is not None:
        factors = _array("values", values, np.float32, nnz)
        factor = <const float *><uintptr_t>factors.ctypes.data
        if keep and core.wire != NULL:      # the shards multiply the gradient by them
            at = core.wire.finite[<int>WIRE_FLOAT32](<const char *>factor, 4, <uint32_t>nnz, 1)
            if at < <uint64_t>nnz and not requests.takes_any(table):
                raise NotFinite(
                    f"{requests.name_of(table)}: expected finite values of examples, got "
                    f"{factors[at]} for row {wanted[at]}: the batch was not sent. "
                    + NOT_FINITE_HINT)
    pending = Forward.__new__(Forward)
    pending.wire = wire
    r = _product(requests, pending, KIND_FORWARD, table, <uint32_t>m, <uint64_t>nnz, dim, wire)
    r.product.keep, r.product.stored = keep, stored
    with requests.live_lock:
        requests.batches += 1
        r.product.batch = requests.batches
    with nogil:
        failed = product_calls.sort(&core.order, r.product, edge, key, factor)
    if failed == SORT_TOO_LONG:
        raise MisuseError(f"an example has more than {EXAMPLE_ENTRIES_MAX:,} entries of one "
                          "shard: cut it in two and add their rows of Z")
    if failed:
        raise MemoryError
    for s in range(core.order.shards):
        slabs += r.product.slab[s] != NO_SLAB
    if slabs:
        pending.slabs = np.empty((slabs, m, dim), np.float32)
        pending.rows = pending.slabs[0]
        r.rows = <char *><uintptr_t>pending.slabs.ctypes.data
    else:
        pending.rows = np.zeros((m, dim), np.float32)
    requests.send(pending)
    return pending


cdef Pending ask_backward(PendingRequests requests, Forward forward, gradient, int wire,
                          float lr_scale):
    """Sends dL/dZ of a batch to the shards that it went forward to."""
    cdef Core *core = requests.connections.core
    cdef Request *r
    cdef Request *f = forward.request
    cdef Pending pending
    cdef float scale = 1
    cdef uint64_t at
    cdef uint32_t s
    if forward.requests is not requests or not f.product.keep or not load_flag(&f.done) \
            or f.failed or forward.went_back:
        raise MisuseError("backward() wants a batch of this client that went forward with keep, "
                          "was waited for, and has not gone back yet")
    if not isinstance(gradient, np.ndarray) or gradient.dtype != np.float32 \
            or gradient.shape != (f.product.examples, f.dim) or not gradient.flags.c_contiguous:
        raise MisuseError(f"gradient must be a C-contiguous float32 array of shape "
                          f"({f.product.examples}, {f.dim}), got " + _shown(gradient))
    _check_lr_scale(lr_scale, False)
    if core.wire != NULL:
        at = core.wire.finite[<int>WIRE_FLOAT32](
            <const char *><uintptr_t>gradient.ctypes.data, 4 * <uint64_t>f.dim, f.product.examples, f.dim)
        if at < <uint64_t>f.product.examples * f.dim and not requests.takes_any(f.table):
            raise NotFinite(
                f"{requests.name_of(f.table)}: expected a finite gradient, got "
                f"{gradient[at // f.dim, at % f.dim]} for example {at // f.dim}, column {at % f.dim}: "
                "nothing of this batch was applied. " + NOT_FINITE_HINT)
    if wire != WIRE_FLOAT32 and gradient.size:
        most = float(np.max(np.abs(gradient)))
        if 0 < most < np.inf:
            scale = 2.0 ** max(np.floor(np.log2(most)), SCALE_LOG2_MIN)
            gradient = gradient * np.float32(1 / scale)
    pending = Pending.__new__(Pending)
    r = _product(requests, pending, KIND_BACKWARD, f.table, f.product.examples, 0, f.dim, wire)
    pending.rows = gradient
    pending.keys = forward              # keeps the entries: a shard that lost the batch gets them again
    forward.went_back = True
    r.rows = <char *><uintptr_t>gradient.ctypes.data
    r.row_stride = 4 * <size_t>f.dim
    r.product.forward = f
    r.product.scale = scale
    r.product.lr_scale = lr_scale
    for s in range(core.order.shards):
        r.product.slab[s] = f.product.slab[s]
    requests.send(pending)
    return pending


cdef Request *_product(PendingRequests requests, Pending pending, int kind, uint32_t table,
                       uint32_t examples, uint64_t entries, uint32_t dim, int wire) except NULL:
    """Makes a request with the fields that forward and backward share; `pending` owns it."""
    cdef Core *core = requests.connections.core
    cdef Request *r
    if product_calls.make == NULL:
        named("server_products.client")
    if not 1 <= dim <= ROW_FLOATS_MAX:
        raise MisuseError(f"rows of {dim:,} floats, 1 to {ROW_FLOATS_MAX:,} expected")
    if not is_wire(wire) or (wire != WIRE_FLOAT32 and core.wire == NULL):
        raise MisuseError(f"wire type {wire}: expected 0, 1 or 3, and 0 where the "
                          "client was made without wire_ops")
    r = request_new(&core.pool, &core.order, 0)
    if r == NULL:
        raise MemoryError
    requests.add(pending, r)            # which frees r, also after an error below
    r.kind = kind
    r.table = table
    r.dim = dim
    r.wire = wire
    r.row_bytes = wire_row_bytes(wire, dim)
    r.product = product_calls.make(&core.order, examples, entries, kind == KIND_BACKWARD)
    if r.product == NULL:
        raise MemoryError
    return r


cdef bint _is_array(value, dtype, int ndim) except -1:
    """Whether an object is a NumPy array of this type and `ndim` dimensions."""
    if not isinstance(value, Array) or value.ndim != ndim:
        return False
    own_dtype = value.dtype
    return own_dtype is dtype or own_dtype == dtype


cdef int _check_lr_scale(float lr_scale, bint state) except -1:
    if not 0 <= lr_scale < 1e30:        # true for NaN, too
        raise MisuseError(f"lr_scale {lr_scale:g}: expected a number from 0, below 1e30")
    if state and lr_scale != 1:
        raise MisuseError("lr_scale goes with gradients: differences of weights and state are of "
                          "steps taken here")
    return 0


cdef int take_rows(Request *r, rows, bint writable, bint state) except -1:
    """Notes where the caller's rows are, in words of 32 bits; MisuseError for rows that are not contiguous, aligned
    floats, or integers of 64 bits."""
    cdef Py_buffer view
    cdef Py_ssize_t dim, stride, words = 1
    cdef Py_ssize_t floats_max = STATE_FLOATS_MAX if state else ROW_FLOATS_MAX
    if not _is_array(rows, FLOAT32, 2):
        if not any(_is_array(rows, dtype, 2) for dtype in INTEGERS):
            raise MisuseError("rows must be a float32 array of two dimensions, or int64 or uint64, got "
                              + _shown(rows))
        words = 2
    PyObject_GetBuffer(rows, &view, PyBUF_STRIDES)
    try:
        dim = view.shape[1] * words
        stride = view.strides[0]
        if view.shape[0] != r.n:
            raise MisuseError(f"{r.n} keys but {view.shape[0]} rows")
        if not 1 <= dim <= floats_max:
            raise MisuseError(f"rows of {dim:,} floats, 1 to {floats_max:,} expected")
        if r.n and view.shape[1] > 1 and view.strides[1] != 4 * words:
            raise MisuseError("each row must be contiguous")
        if <uintptr_t>view.buf & 3 or (r.n > 1 and stride & 3):
            raise MisuseError("rows must be aligned to 4 bytes")
        if r.n > 1 and stride < (4 * dim if writable else 0):
            raise MisuseError("rows must follow each other"
                              + (" without overlap" if writable else "")
                              + f": their stride is {stride} bytes")
        if writable and view.readonly:
            raise MisuseError("rows to be pulled into must be writable")
        r.dim = <uint32_t>dim
        r.rows = <char *>view.buf
        r.row_stride = stride if r.n > 1 else 0     # of one row NumPy's may be anything
    finally:
        PyBuffer_Release(&view)     # the Pending keeps the array
    return 0


def _array(name, value, dtype, length):
    """Return a contiguous array; MisuseError unless `value` has this type, one dimension and this length."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1 \
            or (length is not None and len(value) != length):
        raise MisuseError(f"{name} must be a {np.dtype(dtype).name} array of one dimension"
                          + (f" with {length:,} elements" if length is not None else "")
                          + ", got " + _shown(value))
    return np.ascontiguousarray(value)


def _shown(value):
    """Describe an unfit argument in a message: its type before its values."""
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value!r:.80}"
    order = "" if value.flags.c_contiguous else ", not contiguous"
    return f"{value.dtype} of shape {value.shape}{order}: {value!r:.80}"
