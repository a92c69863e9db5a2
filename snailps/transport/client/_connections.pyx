# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The client's connections to all shards: made, served, and made again when they are lost.

    requests -> exchange (the client's thread, or a caller while it waits) <-> shards
    lost -> mender -> connect(shard), given by the caller, in a thread of its own -> served again

It owns the descriptors, the threads, and the state that is shared with code without the GIL (`Core`
of `_link.pxd`).  It knows no keys and no arrays but the route: what a request says, and who waits
for it, is the business of those who hand it in.  The work itself is in `_event_loop.pyx`.
"""

import threading

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, malloc

from snailps.errors import MisuseError, SnailError
from snailps.transport.frame import Frame, Kind
from snailps.transport.handshake import remote_error

from snailps.abi._wire_types cimport WireOps
from snailps.transport._posix cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, c_close, epoll_create1,
    epoll_ctl, epoll_event, eventfd, load_flag, pthread_cond_broadcast, pthread_cond_timedwait,
    pthread_mutex_lock, pthread_mutex_unlock, store_flag, time_of, timespec,
)
from snailps.transport.client._event_loop cimport (
    close_links, core_free, core_new, drive, end_exchange, enqueue, exchange, mend_again, mend_now,
    next_to_mend, wake_exchange,
)
from snailps.transport.client._link cimport Core, IN_BYTES, Link, WINDOW, break_core
from snailps.transport.client._request cimport Order, Request

cdef double MEND_PAUSE_S = 0.1      # between two tries to reach a shard; a new route ends it


cdef class Connections:
    """What is connected to all shards of a cluster; its parameters are those of `Client`."""

    def __cinit__(self, connect, names, owner, uint32_t epoch, uint64_t job, uint64_t incarnation,
                  wire_ops, double failover_s):
        cdef epoll_event event
        owners = np.ascontiguousarray(owner, np.uint32)
        if owners.ndim != 1 or owners.shape[0] == 0 or np.max(owners) >= len(names):
            raise MisuseError("the route names a shard that is not there")
        self.connect = connect
        self.names = list(names)
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

    def start(self, requests):
        """Connects to every shard, then serves requests; `requests` is kept until `close`."""
        cdef uint32_t shard
        if self.threads or self.core.ended:
            raise MisuseError("a client starts once")
        self.requests = requests
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

    def fail(self, text):
        """Ends every request, now and later, with these words."""
        cdef bytes words = text.encode("utf-8", "replace")
        break_core(self.core, words, len(words), False)
        self._wake()

    def reroute(self, uint32_t epoch, names):
        """The route is another from now on."""
        if len(names) != len(self.names):
            raise MisuseError(f"a route of {len(names)} shards, this client has {len(self.names)}: "
                              "their number does not change")
        self.names = list(names)
        with nogil:
            mend_now(self.core, epoch)

    def goodput(self):
        """Bytes moved both ways, and the seconds during which something was under way."""
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
        """Ends the threads and closes the connections."""
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
        """Breaks the connection to a shard, as a network would."""
        self.check_shard(shard)
        with nogil:
            pthread_mutex_lock(&self.core.lock)
            self.core.links[shard].cut = True
            pthread_mutex_unlock(&self.core.lock)
        self._wake()

    # --- for requests

    cdef void hand_in(self, Request *r, bint wake) noexcept:
        """Has a request sent; done at once, and failed, when the connections have ended.

        Without `wake` the caller will `wait_until`.
        """
        enqueue(self.core, r, wake)

    cdef bint wait_until(self, Request *r, double until_s):
        """Waits for an answer and serves the connections meanwhile; False = the time has come."""
        cdef Core *core = self.core
        cdef timespec until
        cdef bint done
        cdef bint serves = len(self.threads) > 0
        time_of(until_s, &until)
        with nogil:
            if serves and not load_flag(&r.done):
                drive(core, r, until_s)
            pthread_mutex_lock(&core.lock)
            while not r.done:
                if pthread_cond_timedwait(&core.changed, &core.lock, &until) != 0:
                    break
            done = r.done
            pthread_mutex_unlock(&core.lock)
        return done

    cdef why_ended(self):
        """The words with which every request fails; empty = there are none."""
        text = self.core.text[:self.core.text_bytes]
        return str(remote_error(Frame(Kind.ERROR, text))) if self.core.text_is_body \
            else text.decode("utf-8", "replace")

    cdef whom(self, Request *r):
        """Names the shards that a request still waits for.  Looks without a lock: for messages."""
        cdef uint32_t s
        cdef uint32_t slot
        cdef Link *link
        slow = []
        for s in range(self.core.order.shards):
            link = &self.core.links[s]
            parts = 0
            for slot in range(WINDOW):
                if link.parts[slot].request == r:
                    parts += 1
            if parts or (link.fd < 0 and r.unsent):
                state = "not connected" if link.fd < 0 else f"{parts} parts unanswered"
                slow.append(f"{self.names[s]} ({state})")
        return ", ".join(slow) or "requests before it"

    cdef check_shard(self, uint32_t shard):
        if shard >= self.core.order.shards:
            raise MisuseError(f"no shard {shard}: the route has {self.core.order.shards}")

    # --- threads

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

    def __dealloc__(self):
        if self.core != NULL:
            core_free(self.core)


cdef int _take_memory(Core *core, owners) except -1:
    """Input buffers of the links and the order of the fragments (`_request.pyx`)."""
    cdef Order *order = &core.order
    cdef const uint32_t *owner = <const uint32_t *><uintptr_t>owners.ctypes.data
    places = np.argsort(owners, kind="stable").astype(np.uint32)
    cdef const uint32_t *by_place = <const uint32_t *><uintptr_t>places.ctypes.data
    cdef uint32_t i
    cdef uint32_t frag_num = <uint32_t>len(owners)
    order.frag_num = frag_num
    order.rank = <uint32_t *>malloc(<size_t>frag_num * 4)
    order.fragment_at = <uint32_t *>malloc(<size_t>frag_num * 4)
    order.shard_start = <uint32_t *>calloc(<size_t>order.shards + 1, 4)
    order.owner = <uint32_t *>malloc(<size_t>frag_num * 4)
    if order.rank == NULL or order.fragment_at == NULL or order.shard_start == NULL \
            or order.owner == NULL:
        raise MemoryError
    for i in range(order.shards):
        core.links[i].inp.data = <char *>malloc(IN_BYTES)
        if core.links[i].inp.data == NULL:
            raise MemoryError
        core.links[i].inp.cap = IN_BYTES
    for i in range(frag_num):
        order.owner[i] = owner[i]
        order.fragment_at[i] = by_place[i]
        order.rank[by_place[i]] = i
        order.shard_start[owner[i] + 1] += 1
    for i in range(order.shards):
        order.shard_start[i + 1] += order.shard_start[i]
    return 0
