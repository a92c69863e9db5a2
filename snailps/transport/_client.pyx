# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fan-out client: pulls and pushes of many keys, spread over all shards at once.

    keys -> fragment (counting sort) -> parts of about 64 KiB -> one connection a shard
    replies, in any order -> scattered to their place in the caller's array
    sparse examples -> each shard its entries -> partial products, added up; dL/dZ -> all of them

It owns the connections to the shards, the numbers of pushes, and every request until it is
answered.  It knows no models and no cluster: how to (re)connect is a function it is given, the
route an array.  A thread of its own, or a caller while it waits, sends and receives without the GIL;
others reconnect.  Here are the doors to Python; a request and the sorting of
its keys are in `_request.pxd`, a connection's parts in `_link.pxd`, their bodies in `_body.pxd`,
those of products in `_product.pxd`, sending and receiving in `_traffic.pxd`, the thread in
`_exchange.pxd`.

What holds
----------
* Requests go out in the order of the calls, per shard, but for pulls that may go ahead.  A pull
  called after a push sees it; a pull called before a push does not, unless the shard had to be
  asked again or let it wait (the mark that comes with a row says which pushes it contains: see
  `Client.correct`).
* Nothing is forgotten before it is answered: after a lost connection every open part is sent
  again, in the original order and with its original number, before anything new.
* Sending never stops receiving: one epoll loop does both, and parts are built only when the
  socket takes them, so that memory does not grow with what is outstanding.
* A pull as of a clock waits at the shards until the clock has come and is ordered with nothing else;
  pushes to a slot of a clock, and the seal behind them, keep their order.
* A batch that went forward to be trained on is kept until it has gone back: a shard that does not
  know it (any more) gets it again.
* Arrays given to an asynchronous call must not change until it is done.
"""

import struct
import threading

import numpy as np

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, malloc
from libc.string cimport memset

from snailps.errors import (
    ConnectionLost, MisuseError, ProtocolError, SnailError, WaitTimeout,
)
from snailps.transport.frame import Frame, Kind
from snailps.transport.session import remote_error

from cpython.pycapsule cimport PyCapsule_GetPointer
from snailps._wire cimport WIRE_FLOAT32, WIRE_NUM, WireOps, wire_row_bytes
from snailps.transport._exchange cimport *
from snailps.transport._frame cimport *
from snailps.transport._link cimport Core, IN_BYTES, Link, WINDOW, break_core
from snailps.transport._owing cimport owing_of
from snailps.transport._posix cimport *
from snailps.transport._product cimport SORT_TOO_LONG, product_new, sort_entries
from snailps.transport._request cimport (
    EVERY_SHARD, KIND_RAW, NO_SLAB, Order, Request, add_newer, merge_keys, request_changes,
    request_free, request_new, sort_keys, waits_for_clock,
)

cdef double MEND_PAUSE_S = 0.1      # between two tries to reach a shard; a new route ends it
cdef double SIGNALS_EVERY_S = 0.1   # a wait looks this often whether Ctrl-C was pressed
ROW_FLOATS_MAX = ROW_BYTES_MAX // 4
STATE_FLOATS_MAX = 3 * ROW_FLOATS_MAX + 1   # such a row with the widest state there is
_SCAN = struct.Struct("<QII")       # ScanHead and ScannedHead of _frame.pxd
_SCANNED = struct.Struct("<QII")
_CLOCK = struct.Struct("<QII")      # ClockHead
TOLD_S = 1.0                        # an open request of this age is told of by `waits`
TOLD_MAX = 3
PRUNE_ALWAYS_BELOW = 64             # looking through so few live requests costs a microsecond


@cython.no_gc_clear                 # __dealloc__ needs the client
cdef class Pending:
    """A pull or push under way, or a batch through a table.

    Attributes
    ----------
    done : bool
        Whether it is answered, well or badly; `wait` then returns at once.
    rows : numpy.ndarray
        float32 (n, dim): the caller's values, or where the pulled rows go.  Of a forward: Z, once
        `wait` has returned it.
    """

    cdef Request *request
    cdef Client client
    cdef readonly object rows
    cdef object keys                # keeps a raw body, or the numbers of a pull, alive
    cdef bint waits                 # nobody but the caller, who waits, holds it
    cdef bint told                  # its failure was raised to somebody
    cdef bint abandoned             # nobody waits for it any more
    cdef double begun_s

    def __init__(self):
        raise TypeError("a Pending comes from Client.pull_async or Client.push_async")

    def __dealloc__(self):
        if self.request != NULL:
            request_free(&self.client.core.pool, self.request)

    @property
    def done(self):
        return self.request != NULL and load_flag(&self.request.done) != 0

    def wait(self, timeout_s=None):
        """Waits for the answer and returns `rows`.

        Parameters
        ----------
        timeout_s : float, optional
            Limit, seconds; the client's own `timeout_s` if not given.

        Raises
        ------
        WaitTimeout
            Names the shards that have not answered.  The request goes on; wait again if you like.
        RemoteError
            A shard refused; its own words.
        ConnectionLost
            The cluster ended or a shard could not be reached again.
        """
        cdef double limit_s = self.client.timeout_s if timeout_s is None else timeout_s
        cdef double until_s = now_s() + limit_s
        while not self._wait_until(min(until_s, now_s() + SIGNALS_EVERY_S)):
            PyErr_CheckSignals()
            if now_s() >= until_s:
                raise WaitTimeout(
                    f"{self._what()} waited {limit_s:g} s for {self.client._whom(self)}: "
                    "is that server alive, and is its port open from here?")
        if self.request.failed:
            self.told = True
            self.client._settle(self)
            raise self._error()
        self.client._settle(self)
        return self.rows

    def abandon(self):
        """Says that nobody waits for it any more.

        What of a pull was not sent yet is not sent; what was is answered some time, and until then
        the client keeps the arrays, which must not be used meanwhile.  `flush` does not wait for
        it.  A push is applied all the same.
        """
        self.abandoned = True
        store_flag(&self.request.abandoned, 1)

    cdef bint _wait_until(self, double until_s):
        cdef Core *core = self.client.core
        cdef timespec until
        cdef bint done
        cdef bint serves = len(self.client.threads) > 0
        time_of(until_s, &until)
        with nogil:
            if serves and not load_flag(&self.request.done):
                drive(core, self.request, until_s)
            pthread_mutex_lock(&core.lock)
            while not self.request.done:
                if pthread_cond_timedwait(&core.changed, &core.lock, &until) != 0:
                    break
            done = self.request.done
            pthread_mutex_unlock(&core.lock)
        return done

    def _what(self):
        cdef Request *r = self.request
        if r.kind == KIND_RAW and r.clocked:
            return f"seal of slot {r.slot} of clock {r.clock}" if r.raw_kind == KIND_SEAL \
                else f"reach of clock {r.clock}"
        if r.kind == KIND_RAW:
            return f"{Kind(r.raw_kind).name} of table {r.table}"
        if r.product != NULL:
            name = "forward" if r.kind == KIND_FORWARD else "backward"
            return f"{name} of {r.product.examples:,} examples through table {r.table}"
        name = "pull" if r.kind == KIND_PULL else "push"
        when = ""
        if r.clocked:
            when = f" as of clock {r.clock}" if r.kind == KIND_PULL \
                else f" to slot {r.slot} of clock {r.clock}"
        return f"{name} of {len(self.rows):,} rows of table {r.table}{when}"

    def _error(self):
        cdef Core *core = self.client.core
        if self.request.text != NULL:
            return remote_error(Frame(Kind.ERROR, self.request.text[:self.request.text_bytes]))
        text = core.text[:core.text_bytes]
        why = str(remote_error(Frame(Kind.ERROR, text))) if core.text_is_body \
            else text.decode("utf-8", "replace")
        return ConnectionLost(f"{self._what()}: {why or 'out of memory'}")


@cython.no_gc_clear
cdef class Forward(Pending):
    """A batch on its way through a table whose shards do the product; what `wait` returns is Z."""

    cdef object slabs               # a product a shard that has entries; None = they are added up
    cdef bint went_back
    cdef readonly int wire          # as what Z travels

    def wait(self, timeout_s=None):
        """Waits for the products of all shards and returns their sum, float32 (m, dim).

        Added in the order of the shards, so that it does not depend on which was first.  Parameters
        and errors are those of `Pending.wait`.
        """
        Pending.wait(self, timeout_s)
        if self.slabs is not None:
            for slab in self.slabs[1:]:
                self.rows += slab
            self.slabs = None
        return self.rows


cdef class Client:
    """Pulls from and pushes to all shards of a cluster.

    Parameters
    ----------
    connect : callable
        ``connect(shard: int) -> int``: a connected, authenticated socket's descriptor, which the
        client owns from then on.  Called in helper threads of the client, for several shards at a
        time; an exception raised there ends the client, once `failover_s` is over.  Should give up
        soon: it is called again, and may then know another address.
    names : list of str
        What to call each shard in messages.
    owner : numpy.ndarray
        uint32 (frag_num,): shard of each fragment.
    epoch, job, incarnation : int
        Route epoch; life of the cluster; life of this process.  A push's number is unique only
        together with the incarnation, so use one client an incarnation.
    timeout_s : float
        Default limit of a wait, seconds.
    wire_ops : PyCapsule, optional
        What `snailps.kernels.wire_ops()` returns; without it rows travel as float32 only.
    failover_s : float
        How long a shard may be out of reach, seconds, until the client ends.  Until then `connect` is
        called again and again, and a shard that says that another has its place is left.  0: the
        first connection that cannot be made again is the end.

    Notes
    -----
    Thread-safe.  Calls made by one thread keep their order.
    """

    cdef Core *core
    cdef object connect
    cdef list threads
    cdef dict live                  # Pending -> None, oldest first: what may not be freed yet
    cdef Py_ssize_t prune_at
    cdef object live_lock
    cdef uint64_t batches           # numbers given to batches so far
    cdef object wire_ops            # keeps what core.wire points into
    cdef readonly list names
    cdef readonly double timeout_s

    def __cinit__(self, connect, names, owner, uint32_t epoch, uint64_t job, uint64_t incarnation,
                  double timeout_s=60.0, wire_ops=None, double failover_s=0.0):
        cdef epoll_event event
        owners = np.ascontiguousarray(owner, np.uint32)
        if owners.ndim != 1 or owners.shape[0] == 0 or np.max(owners) >= len(names):
            raise MisuseError("the route names a shard that is not there")
        self.connect = connect
        self.names = list(names)
        self.timeout_s = timeout_s
        self.live = {}
        self.live_lock = threading.Lock()
        self.threads = []
        self.core = core_new(len(names))
        if self.core == NULL:
            raise MemoryError
        _take_memory(self.core, owners)
        self.core.epoch = epoch
        self.core.patience_s = failover_s
        self.core.job = job
        self.core.incarnation = incarnation
        self.wire_ops = wire_ops
        if wire_ops is not None:
            self.core.wire = <const WireOps *>PyCapsule_GetPointer(wire_ops, "snailps.wire_ops")
        self.core.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.core.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.core.epoll_fd < 0 or self.core.wake_fd < 0:
            raise OSError(errno, "cannot make an event loop: too many open files?")
        event.events = EPOLLIN
        event.data.u64 = 0
        epoll_ctl(self.core.epoll_fd, EPOLL_CTL_ADD, self.core.wake_fd, &event)

    def start(self):
        """Connects to every shard, then serves requests.

        Raises
        ------
        SnailError
            Whatever `connect` raises for a shard that cannot be reached; nothing stays open then.
        """
        cdef uint32_t shard
        if self.threads or self.core.ended:
            raise MisuseError("a client starts once")
        try:
            for shard in range(self.core.order.shards):
                self.core.links[shard].new_fd = self.connect(shard)
        except BaseException:
            close_links(self.core)
            raise
        for target, name in ((self._loop, "snailps-client"), (self._mend, "snailps-mender")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self.threads.append(thread)

    def pull_async(self, uint32_t table, keys, rows, bint state=False, int wire=0, held=None,
                   bint ahead=False, int64_t clock=-1):
        """Starts a pull of the rows of `keys` into `rows`.

        Parameters
        ----------
        table : int
            Table number.
        keys : numpy.ndarray
            uint64 (n,).  Repeated keys are allowed.  Copied: may change at once.
        rows : numpy.ndarray
            float32 (n, dim), written in place; rows contiguous, their stride free.
        state : bool
            Pull weights and the optimiser's state: `rows` are dim + state wide.  As float32 only.
        wire : int
            Type of the rows while they travel, a value of `snailps.kernels.WIRE_TYPES`.
        held : numpy.ndarray, optional
            uint64 (n,), for tables that track versions: the number that came with the row that is
            in `rows` already, 0 = nothing is.  Rows that have not changed since are not sent and
            keep what is there; every number is replaced by the one that holds now.
        ahead : bool
            Overtake pushes that still wait for the socket, so that rows come in while values go
            out; `correct` then adds what the rows lack.
        clock : int
            0 or more: rows as they are when all clocks below are applied.  Each shard lets its part
            wait until then.  Ordered with nothing: it may overtake pushes, and `flush` does not
            wait for it.  -1: rows as they are.  A clock that is over is refused (`RemoteError` with
            the code ``late``), unless clocks are closed by command: the slot that somebody trains
            for is then sealed by another one already, at that shard.

        Returns
        -------
        Pending
        """
        return self._submit(KIND_PULL, table, keys, rows, state, False, wire, False, held, True,
                            ahead, clock)

    def push_async(self, uint32_t table, keys, values, bint state=False, bint merge=False,
                   int wire=0, bint feedback=True, int64_t clock=-1, uint32_t slot=0):
        """Starts a push of `values` to the rows of `keys`; applied exactly once each.

        Parameters
        ----------
        table : int
            Table number.
        keys : numpy.ndarray
            uint64 (n,).  Copied.
        values : numpy.ndarray
            float32 (n, dim); rows contiguous, their stride free.  Must not change until done.
        state : bool
            `values` are differences of weights and state, dim + state wide.  As float32 only.
        merge : bool
            Sum the values of a repeated key first.  By default they are applied one after the
            other, which is the same where what a push does is linear in its value.
        wire : int
            Type of the values while they travel, a value of `snailps.kernels.WIRE_TYPES`.
        feedback : bool
            Keep what rounding to `wire` took from a key's value and add it to the key's next push.
        clock : int
            0 or more: a contribution to a slot of this clock, which the shards keep until all slots
            are sealed (`seal_async`).  Without effect if the clock was applied already, or the slot
            was sealed by another incarnation.  -1: applied when it comes.
        slot : int
            0 to 4,095; with `clock`.

        Returns
        -------
        Pending
        """
        return self._submit(KIND_PUSH, table, keys, values, state, merge, wire, feedback, None, True,
                            False, clock, slot)

    def pull(self, uint32_t table, keys, rows, bint state=False, int wire=0, held=None,
             int64_t clock=-1):
        """`pull_async` and its `wait`, some microseconds faster; returns `rows`."""
        return self._wait_alone(self._submit(KIND_PULL, table, keys, rows, state, False, wire,
                                             False, held, False, False, clock))

    def push(self, uint32_t table, keys, values, bint state=False, bint merge=False,
             int wire=0, bint feedback=True, int64_t clock=-1, uint32_t slot=0):
        """`push_async` and its `wait`, some microseconds faster."""
        self._wait_alone(self._submit(KIND_PUSH, table, keys, values, state, merge, wire, feedback,
                                      None, False, False, clock, slot))

    def seal_async(self, int64_t clock, uint32_t slot, uint32_t slots):
        """Says to every shard that a slot has all its contributions: those pushed before.

        The first incarnation that seals a slot at a shard is the one that counts there; what others
        pushed to it is dropped.  With the last of its `slots` a clock is applied: the contributions
        to each row are summed in the order of the slots, and handed to the access method once.

        Parameters
        ----------
        clock : int
            The clock that the shards have reached (`reach_async`), 0 or more.
        slot, slots : int
            0 to slots - 1; 1 to 4,096, the same in all seals of a clock.

        Returns
        -------
        Pending
            Done when all shards have it.  Wait for the pushes first: one that was refused is known
            only then.  Sent again after a lost connection, behind what was pushed before.
        """
        return self._to_all(KIND_SEAL, clock, slot, slots)

    def reach_async(self, int64_t clock):
        """Asks every shard to answer when it has applied all clocks below `clock`.

        Returns
        -------
        Pending
            Overtakes what waits to be sent; `flush` does not wait for it.
        """
        return self._to_all(KIND_REACH, clock, 0, 0)

    cdef Pending _to_all(self, uint8_t kind, int64_t clock, uint32_t slot, uint32_t slots):
        cdef Request *r
        cdef Pending pending
        if clock < 0 or (kind == KIND_SEAL and not slot < slots <= SLOTS_MAX):
            raise MisuseError(f"slot {slot} of {slots} of clock {clock}: expected a clock of 0 or more "
                              f"and slots from 0 on, at most {SLOTS_MAX:,} of them")
        r = request_new(&self.core.pool, &self.core.order, 0)
        if r == NULL:
            raise MemoryError
        pending = Pending.__new__(Pending)
        pending.request = r
        pending.client = self
        pending.keys = body = _CLOCK.pack(clock, slot, slots)
        r.kind = KIND_RAW
        r.raw_kind = kind
        r.raw_body = <const char *><bytes>body
        r.raw_bytes = <uint32_t>len(body)
        r.raw_shard = EVERY_SHARD
        r.ahead = kind == KIND_REACH
        r.clocked = True
        r.clock = clock
        r.slot = slot
        self._send(pending)
        return pending

    def forward_async(self, uint32_t table, ptr, keys, values, uint32_t dim, int wire=0,
                      bint keep=True):
        """Starts ``Z[i] = sum of values[k] * W[keys[k]], k in ptr[i]..ptr[i + 1] - 1`` at the shards.

        Each shard gets its entries of the batch and answers with its part of the product; rows
        that were never pushed count as their first value.  Sees all pushes called before.

        Parameters
        ----------
        table : int
            Table number; its access method must be a built-in one other than ``average``.
        ptr, keys, values : numpy.ndarray
            Examples as CSR: int64 (m + 1,), uint64 (nnz,), float32 (nnz,) or None if all are 1.
            Copied: may change at once.
        dim : int
            Floats of a row of W, and of Z.
        wire : int
            Type of Z's rows while they travel, a value of `snailps.kernels.WIRE_TYPES`.
        keep : bool
            A `backward_async` of this batch will follow: the shards keep it, 8 batches of a client
            and 256 MiB at most.  Not for prediction.

        Returns
        -------
        Forward

        Raises
        ------
        MisuseError
            Arrays of another type or shape, or an example with more than 65,536 entries at a shard.
        """
        cdef const int64_t[::1] edges = _array("ptr", ptr, np.int64, None)
        cdef Py_ssize_t nnz = edges[edges.shape[0] - 1] if edges.shape[0] else -1
        cdef Py_ssize_t m = edges.shape[0] - 1
        cdef const uint64_t[::1] wanted
        cdef const float[::1] factors = None
        cdef const float *factor = NULL
        cdef const uint64_t *key = NULL
        cdef Request *r
        cdef Forward pending
        cdef int failed
        cdef uint32_t s, slabs = 0
        if not 0 <= m < 0x7FFFFFFF or edges[0] != 0 or not 0 <= nnz < 0x7FFFFFFF \
                or (np.diff(ptr) < 0).any():
            raise MisuseError("ptr must begin with 0 and rise to the number of keys, which are fewer "
                              "than 2^31")
        wanted = _array("keys", keys, np.uint64, nnz)
        if values is not None:
            factors = _array("values", values, np.float32, nnz)
        if nnz:
            key = &wanted[0]
            factor = &factors[0] if values is not None else NULL
        pending = Forward.__new__(Forward)
        pending.wire = wire
        r = self._product(pending, KIND_FORWARD, table, <uint32_t>m, <uint64_t>nnz, dim, wire)
        r.product.keep = keep
        with self.live_lock:
            self.batches += 1
            r.product.batch = self.batches
        with nogil:
            failed = sort_entries(&self.core.order, r.product, &edges[0], key, factor)
        if failed == SORT_TOO_LONG:
            raise MisuseError(f"an example has more than {EXAMPLE_ENTRIES_MAX:,} entries of one "
                              "shard: cut it in two and add their rows of Z")
        if failed:
            raise MemoryError
        for s in range(self.core.order.shards):
            slabs += r.product.slab[s] != NO_SLAB
        if slabs:
            pending.slabs = np.empty((slabs, m, dim), np.float32)
            pending.rows = pending.slabs[0]
            r.rows = <char *><uintptr_t>pending.slabs.ctypes.data
        else:
            pending.rows = np.zeros((m, dim), np.float32)
        self._send(pending)
        return pending

    def backward_async(self, Forward forward, gradient, int wire=0):
        """Starts the way back of a batch: dL/dZ to the shards, which step the rows that it touched.

        Each shard sums the gradient of every row over the whole batch and hands it to the table's
        access method once, in the order of this client's pushes and exactly once.

        Parameters
        ----------
        forward : Forward
            What `forward_async` returned with `keep`, waited for; goes back once.
        gradient : numpy.ndarray
            float32 (m, dim), C-contiguous: dL/dZ.  Must not change until done.
        wire : int
            Type of its rows while they travel.  A narrow one is scaled so that the largest value
            is between 1 and 2: small gradients do not vanish.

        Returns
        -------
        Pending

        Raises
        ------
        MisuseError
            Another shape, or a batch that cannot go back.
        """
        cdef Request *r
        cdef Request *f = forward.request
        cdef Pending pending
        cdef float scale = 1
        cdef uint32_t s
        if forward.client is not self or not f.product.keep or not load_flag(&f.done) or f.failed \
                or forward.went_back:
            raise MisuseError("backward() wants a batch of this client that went forward with keep, "
                              "was waited for, and has not gone back yet")
        if not isinstance(gradient, np.ndarray) or gradient.dtype != np.float32 \
                or gradient.shape != (f.product.examples, f.dim) or not gradient.flags.c_contiguous:
            raise MisuseError(f"gradient must be a C-contiguous float32 array of shape "
                              f"({f.product.examples}, {f.dim}), got {gradient!r:.80}")
        if wire != WIRE_FLOAT32 and gradient.size:
            most = float(np.max(np.abs(gradient)))
            if 0 < most < np.inf:
                scale = 2.0 ** np.floor(np.log2(most))
                gradient = gradient * np.float32(1 / scale)
        pending = Pending.__new__(Pending)
        r = self._product(pending, KIND_BACKWARD, f.table, f.product.examples, 0, f.dim, wire)
        pending.rows = gradient
        pending.keys = forward              # has what is sent again to a shard that forgot
        forward.went_back = True
        r.rows = <char *><uintptr_t>gradient.ctypes.data
        r.row_stride = 4 * <size_t>f.dim
        r.product.forward = f
        r.product.scale = scale
        for s in range(self.core.order.shards):
            r.product.slab[s] = f.product.slab[s]
        self._send(pending)
        return pending

    cdef Request *_product(self, Pending pending, int kind, uint32_t table, uint32_t examples,
                           uint64_t entries, uint32_t dim, int wire) except NULL:
        """The pending's new request, empty but for what forward and backward have in common."""
        cdef Request *r
        if not 1 <= dim <= ROW_FLOATS_MAX:
            raise MisuseError(f"rows of {dim:,} floats, 1 to {ROW_FLOATS_MAX:,} expected")
        if not 0 <= wire < WIRE_NUM or (wire != WIRE_FLOAT32 and self.core.wire == NULL):
            raise MisuseError(f"wire type {wire}: expected 0 to {WIRE_NUM - 1}, and 0 where the "
                              "client was made without wire_ops")
        r = request_new(&self.core.pool, &self.core.order, 0)
        if r == NULL:
            raise MemoryError
        pending.request = r                 # which owns it from here on
        pending.client = self
        r.kind = kind
        r.table = table
        r.dim = dim
        r.wire = wire
        r.row_bytes = wire_row_bytes(wire, dim)
        r.product = product_new(&self.core.order, examples, entries, kind == KIND_BACKWARD)
        if r.product == NULL:
            raise MemoryError
        return r

    cdef _wait_alone(self, Pending pending):
        """Waits for a request of this caller alone; if it gives up, the client keeps it."""
        try:
            return pending.wait()
        finally:
            if load_flag(&pending.request.done):
                self.live.pop(pending, None)

    def scan(self, uint32_t table, uint32_t dim, fragments, uint32_t shard):
        """Yields all stored rows of some fragments of one shard, in pieces of up to 1 MiB.

        Yields
        ------
        keys : numpy.ndarray
            uint64 (n,).
        rows : numpy.ndarray
            float32 (n, dim).

        Raises
        ------
        MisuseError
            No such shard, or the table's rows are not `dim` wide.
        """
        self._check_shard(shard)
        for fragment in fragments:
            cursor = 0
            while True:
                reply = self._ask(shard, KIND_SCAN, table,
                                  _SCAN.pack(cursor, fragment, 0xFFFFFFFF))
                cursor, n, width = _SCANNED.unpack_from(reply) if len(reply) >= 16 else (0, 0, dim)
                if width != dim:
                    raise MisuseError(f"rows of table {table} have {width:,} floats, not {dim:,}")
                if len(reply) != (_SCANNED.size + n * (8 + 4 * dim) + 7) & ~7:
                    raise ProtocolError(
                        f"SCANNED of {len(reply):,} bytes does not hold {n:,} rows of {dim:,} "
                        "floats", "length")
                if n:
                    yield (np.frombuffer(reply, "<u8", n, 16),
                           np.frombuffer(reply, "<f4", n * dim, 16 + 8 * n).reshape(n, dim))
                if cursor == 0:
                    break

    def correct(self, Pending pull, Pending push, base=None):
        """Adds to pulled rows what an own push added after they were read.

        A prefetched row may lack a delta of this very client that was still on its way.  The reply
        says, per fragment, the highest own push that it contains; for every key of `pull` that
        `push` carries with a higher number, the pushed value is added to the pulled row (and to
        `base`, its untouched copy).  Only right for access method `add`, and for pulls and pushes
        with state.

        Parameters
        ----------
        pull, push : Pending
            Of the same table and client; `pull` done, `push` submitted after it, or before it if the
            pull went ahead.
        base : numpy.ndarray, optional
            float32 (n, dim) beside `pull.rows`.

        Returns
        -------
        int
            Rows corrected.

        Raises
        ------
        MisuseError
            Not such a pair, or a `base` of another shape.

        Notes
        -----
        A hash join, fragment by fragment; nothing but a look at the marks where no row lacks
        anything.  Releases the GIL.
        """
        cdef Request *a = pull.request
        cdef Request *b = push.request
        cdef Request where              # of `base`
        cdef char *second = NULL
        cdef size_t second_stride = 0
        cdef int64_t corrected
        if not load_flag(&a.done) or a.failed or a.kind != KIND_PULL or b.kind != KIND_PUSH \
                or a.table != b.table or a.dim != b.dim \
                or (a.options ^ b.options) & OPTION_STATE \
                or b.later != NULL \
                or pull.client is not self or push.client is not self:
            raise MisuseError("correct() wants a finished pull and a push of the same table, "
                              "both of this client")
        if base is not None:
            memset(&where, 0, sizeof(Request))
            where.n = a.n
            _take_rows(&where, base, True, STATE_FLOATS_MAX)
            if where.dim != a.dim:
                raise MisuseError(f"base has rows of {where.dim} floats, the pull of {a.dim}")
            second = where.rows
            second_stride = where.row_stride
        with nogil:
            corrected = add_newer(&self.core.order, a, b, second, second_stride)
        if corrected < 0:
            raise MemoryError
        return corrected

    def flush(self, timeout_s=None):
        """Waits until every request so far is answered; raises the first error of a push or seal.

        Not for what waits for a clock, nor for what was abandoned.

        Parameters
        ----------
        timeout_s : float, optional
            Limit for all of them together, seconds; the client's own `timeout_s` if not given.
        """
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
                pending.wait(max(0.0, until_s - now_s()))
            except WaitTimeout:
                raise
            except SnailError as error:     # of a pull: whoever waits for that one is told
                if first is None and request_changes(pending.request):
                    first = error
        if first is not None:
            raise first

    def open_pushes(self):
        """Pushes, and batches on their way back, that are not answered yet: a list of `Pending`."""
        cdef Pending pending
        with self.live_lock:
            live = list(self.live)
        return [pending for pending in live
                if pending.request.kind in (KIND_PUSH, KIND_BACKWARD) and not pending.done]

    def waits(self):
        """The oldest requests of more than `TOLD_S` that are not answered: what, by whom, seconds.

        A list of [str, str, float], the oldest first, at most `TOLD_MAX`.  From any thread.
        """
        cdef Pending pending
        cdef double now = now_s()
        found = []
        for pending in list(self.live):         # one step under the GIL; oldest first
            if len(found) == TOLD_MAX or now - pending.begun_s < TOLD_S:
                break
            if not pending.done and not pending.abandoned:
                found.append([pending._what(), self._whom(pending), now - pending.begun_s])
        return found

    def fail(self, text):
        """Ends every request, now and later, with `ConnectionLost(text)`."""
        cdef bytes words = text.encode("utf-8", "replace")
        break_core(self.core, words, len(words), False)
        self._wake()

    def reroute(self, uint32_t epoch, names):
        """The route is another from now on: its epoch, and what to call its shards.

        `connect` must know the new addresses when this is called.  Connections that hold stay as they
        are; those that are lost are made again at once.
        """
        if len(names) != len(self.names):
            raise MisuseError(f"a route of {len(names)} shards, this client has {len(self.names)}: "
                              "their number does not change")
        self.names = list(names)
        with nogil:
            mend_now(self.core, epoch)

    def pack(self, bint on):
        """Tries lz4 on pushes and pulls from now on: worth it where the network is slow."""
        self.core.pack = on

    def goodput(self):
        """Bytes moved both ways, and the seconds during which something was under way.

        Only of times that moved enough to tell the speed of the network from its delays.
        """
        return self.core.goodput_bytes, self.core.goodput_s

    def counters(self):
        """Counts since the start, as a dict of numbers."""
        return {
            "bytes_out": self.core.bytes_out,
            "bytes_in": self.core.bytes_in,
            "rows_pulled": self.core.rows_pulled,
            "rows_pushed": self.core.rows_pushed,
            "batches_forgotten": self.core.batches_forgotten,
            "reconnects": sum(self.core.links[i].reconnects
                              for i in range(self.core.order.shards)),
            "open": self.core.open_requests,
        }

    def close(self):
        """Ends the threads and closes the connections.  Open requests fail.  Twice is harmless."""
        self.fail("the client was closed")
        with nogil:
            pthread_mutex_lock(&self.core.lock)
            store_flag(&self.core.stop, 1)
            pthread_cond_broadcast(&self.core.mend)
            pthread_mutex_unlock(&self.core.lock)
        self._wake()
        if self.threads:
            self.threads[0].join()
            # The mender may be in the middle of connecting: it closes what it gets by itself.
            self.threads[1].join(0.2)
        else:
            with nogil:
                end_exchange(self.core)
        close_links(self.core)

    def cut(self, uint32_t shard):
        """Breaks the connection to a shard, as a network would.  For tests of recovery."""
        self._check_shard(shard)
        with nogil:
            pthread_mutex_lock(&self.core.lock)
            self.core.links[shard].cut = True
            pthread_mutex_unlock(&self.core.lock)
        self._wake()

    cdef Pending _submit(self, int kind, uint32_t table, keys, rows, bint state, bint merge,
                         int wire, bint feedback, held, bint wake, bint ahead=False,
                         int64_t clock=-1, uint32_t slot=0):
        cdef Request *r
        cdef Py_buffer wanted
        cdef int failed = 0
        cdef Pending pending
        if not isinstance(keys, np.ndarray) or keys.dtype != np.uint64 or keys.ndim != 1:
            raise MisuseError(f"keys must be a uint64 array of one dimension, got {keys!r:.80}")
        if not 0 <= wire < WIRE_NUM or (wire != WIRE_FLOAT32 and (state or self.core.wire == NULL)):
            raise MisuseError(f"wire type {wire}: expected 0 to {WIRE_NUM - 1}, and 0 for rows with "
                              "state or where the client was made without wire_ops")
        if clock < -1 or slot >= <uint32_t>SLOTS_MAX:
            raise MisuseError(f"slot {slot} of clock {clock}: expected a clock of 0 or more (or -1: "
                              f"none) and a slot from 0 to {SLOTS_MAX - 1:,}")
        if not keys.flags.c_contiguous:
            keys = np.ascontiguousarray(keys)
        PyObject_GetBuffer(keys, &wanted, PyBUF_FORMAT | PyBUF_ND)
        try:
            if wanted.shape[0] > 0xFFFFFFF0:
                raise MisuseError(f"{wanted.shape[0]:,} keys in one request, limit 4 thousand "
                                  "million")
            if held is not None and not (
                    isinstance(held, np.ndarray) and held.dtype == np.uint64
                    and held.shape == (wanted.shape[0],) and held.flags.carray):
                raise MisuseError(f"held must be a writable uint64 array with a number a key, "
                                  f"got {held!r:.80}")
            r = request_new(&self.core.pool, &self.core.order, <uint32_t>wanted.shape[0])
            if r == NULL:
                raise MemoryError
            pending = Pending.__new__(Pending)      # owns the request from here on
            pending.request = r
            pending.client = self
            pending.rows = rows
            pending.keys = held
            pending.waits = not wake
            r.kind = kind
            r.table = table
            _take_rows(r, rows, kind == KIND_PULL, STATE_FLOATS_MAX if state else ROW_FLOATS_MAX)
            r.options = (OPTION_STATE if state else 0) | (OPTION_CHANGED if held is not None else 0)
            r.wire = wire
            r.ahead = ahead
            r.clocked = clock >= 0
            r.clock = clock if r.clocked else 0
            r.slot = slot if r.clocked else 0
            r.row_bytes = wire_row_bytes(wire, r.dim)
            if held is not None:
                r.held = <uint64_t *><uintptr_t>held.ctypes.data
            if kind == KIND_PUSH and feedback and wire != WIRE_FLOAT32:
                with self.live_lock:            # the client's thread only reads the list
                    r.owing = owing_of(&self.core.owing, table, r.dim)
                failed = r.owing == NULL
            if r.n and not failed:
                with nogil:
                    failed = sort_keys(&self.core.order, r, <const uint64_t *>wanted.buf)
                    if merge and not failed:
                        failed = merge_keys(r)
        finally:
            PyBuffer_Release(&wanted)
        if failed:
            raise MemoryError
        self._send(pending)
        return pending

    def _ask(self, uint32_t shard, uint8_t kind, uint32_t table, bytes body):
        """Sends a body as it is to one shard and returns the reply's body."""
        cdef Request *r = request_new(&self.core.pool, &self.core.order, 0)
        cdef Pending pending
        if r == NULL:
            raise MemoryError
        r.kind = KIND_RAW
        r.raw_kind = kind
        r.table = table
        r.raw_body = body
        r.raw_bytes = len(body)
        r.raw_shard = shard
        pending = Pending.__new__(Pending)
        pending.request = r
        pending.client = self
        pending.keys = body
        pending.waits = True
        self._send(pending)
        self._wait_alone(pending)
        return r.raw_reply[:r.raw_reply_bytes]

    cdef _send(self, Pending pending):
        pending.begun_s = now_s()
        if pending.waits:
            self.live[pending] = None       # one step under the GIL, and so is its end
        else:
            with self.live_lock:
                if len(self.live) < PRUNE_ALWAYS_BELOW or len(self.live) >= self.prune_at:
                    self._prune()
                    self.prune_at = 2 * len(self.live)
                self.live[pending] = None
        enqueue(self.core, pending.request, not pending.waits)

    cdef _prune(self):
        """Lets go of what is answered; failed pushes that nobody was told of stay until flush."""
        cdef Pending pending
        for pending in list(self.live):
            if load_flag(&pending.request.done) \
                    and not (pending.request.failed and request_changes(pending.request)):
                self.live.pop(pending, None)

    def _settle(self, Pending pending):
        """Its answer was seen: the client need not keep it any longer."""
        if pending.waits:
            return                          # `_wait_alone` lets go of it
        with self.live_lock:
            self.live.pop(pending, None)

    def _check_shard(self, uint32_t shard):
        if shard >= self.core.order.shards:
            raise MisuseError(f"no shard {shard}: the route has {self.core.order.shards}")

    def _wake(self):
        wake_exchange(self.core)

    def _loop(self):
        with nogil:
            exchange(self.core)

    def _mend(self):
        """Has lost connections made again, each in a thread of its own: none waits for another."""
        cdef int64_t shard
        while True:
            with nogil:
                shard = next_to_mend(self.core)
            if shard < 0:
                return
            threading.Thread(target=self._mend_one, args=(shard,), name=f"snailps-mender-{shard}",
                             daemon=True).start()

    def _mend_one(self, uint32_t shard):
        cdef int fd
        cdef uint32_t epoch
        cdef bint patient, stale = True
        while stale:                # the route changed while we dialled: that may be another's port
            epoch = self.core.epoch
            try:
                fd = self.connect(shard)
            except Exception as error:
                with nogil:
                    patient = mend_again(self.core, shard, MEND_PAUSE_S)
                if not patient:
                    self._fail_to_mend(shard, error)
                return
            with nogil:
                pthread_mutex_lock(&self.core.lock)
                stale = self.core.epoch != epoch and not self.core.stop and not self.core.ended
                if stale or self.core.stop or self.core.ended:
                    c_close(fd)
                else:
                    self.core.links[shard].new_fd = fd
                pthread_mutex_unlock(&self.core.lock)
        self._wake()

    def _fail_to_mend(self, uint32_t shard, error):
        words = str(error) if isinstance(error, SnailError) \
            else f"cannot reconnect to {self.names[shard]}: {error!r}"
        if self.core.patience_s > 0:
            words = (f"shard {shard}, {self.names[shard]}, was out of reach for "
                     f"{self.core.patience_s:g} s, and the master named no other server for it: "
                     f"{words}")
        self.fail(words)

    def _whom(self, Pending pending):
        """Names the shards that a request still waits for.  Looks without a lock: for messages."""
        cdef uint32_t s
        cdef uint32_t slot
        cdef Link *link
        slow = []
        for s in range(self.core.order.shards):
            link = &self.core.links[s]
            parts = 0
            for slot in range(WINDOW):
                if link.parts[slot].request == pending.request:
                    parts += 1
            if parts or (link.fd < 0 and pending.request.unsent):
                state = "not connected" if link.fd < 0 else f"{parts} parts unanswered"
                slow.append(f"{self.names[s]} ({state})")
        return ", ".join(slow) or "requests before it"

    def __dealloc__(self):
        if self.core != NULL:
            core_free(self.core)


cdef int _take_memory(Core *core, owners) except -1:
    """Input buffers of the links and the order of the fragments (`_request.pxd`)."""
    cdef Order *order = &core.order
    cdef const uint32_t[::1] owner = owners
    cdef const uint32_t[::1] by_place = np.argsort(owners, kind="stable").astype(np.uint32)
    cdef uint32_t i
    cdef uint32_t frag_num = <uint32_t>owner.shape[0]
    order.frag_num = frag_num
    order.rank = <uint32_t *>malloc(<size_t>frag_num * 4)
    order.fragment_at = <uint32_t *>malloc(<size_t>frag_num * 4)
    order.shard_start = <uint32_t *>calloc(<size_t>order.shards + 1, 4)
    order.owner = <uint32_t *>malloc(<size_t>frag_num * 4)
    if order.rank == NULL or order.fragment_at == NULL or order.shard_start == NULL \
            or order.owner == NULL:
        raise MemoryError
    for i in range(order.shards):
        core.links[i].inp = <char *>malloc(IN_BYTES)
        if core.links[i].inp == NULL:
            raise MemoryError
    for i in range(frag_num):
        order.owner[i] = owner[i]
        order.fragment_at[i] = by_place[i]
        order.rank[by_place[i]] = i
        order.shard_start[owner[i] + 1] += 1
    for i in range(order.shards):
        order.shard_start[i + 1] += order.shard_start[i]
    return 0


def _array(name, given, dtype, length):
    """A contiguous array of this type, one-dimensional, `length` long unless that is None."""
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.ndim != 1 \
            or (length is not None and len(given) != length):
        raise MisuseError(f"{name} must be a {np.dtype(dtype).name} array of one dimension"
                          + (f" with {length:,} elements" if length is not None else "")
                          + f", got {given!r:.80}")
    return np.ascontiguousarray(given)


cdef int _take_rows(Request *r, rows, bint writable, Py_ssize_t floats_max) except -1:
    """Where the caller's rows are; refuses what C cannot walk: contiguous, aligned floats."""
    cdef Py_buffer view
    cdef Py_ssize_t dim, stride
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.ndim != 2:
        raise MisuseError(f"rows must be a float32 array of two dimensions, got {rows!r:.80}")
    PyObject_GetBuffer(rows, &view, PyBUF_FORMAT | PyBUF_STRIDES)
    try:
        dim = view.shape[1]
        stride = view.strides[0]
        if view.shape[0] != r.n:
            raise MisuseError(f"{r.n} keys but {view.shape[0]} rows")
        if not 1 <= dim <= floats_max:
            raise MisuseError(f"rows of {dim:,} floats, 1 to {floats_max:,} expected")
        if r.n and dim > 1 and view.strides[1] != 4:
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
        r.row_stride = stride if r.n > 1 else 0     # of one row it may be anything
    finally:
        PyBuffer_Release(&view)     # the Pending keeps the array
    return 0
