# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The client's connections to all shards: made, served, and made again when they are lost.

    requests -> fresh -> queues of the links <-> shards
    links lost -> mender -> connect(shard), given by the caller, in a thread of its own -> links again

Owns the descriptors, the threads, and the state that they share without the GIL (`Core` of
`_link.pxd`).  Must not know keys, nor arrays other than the route: requests and their callers
belong to `_pending.pyx`, what is sent and received to `_link.pyx`.

Who serves the links
--------------------
A caller that waits for an answer serves all links itself (`_drive`) if nobody else does: no other
thread has to be woken to send its request, and none has to wake it with the answer.  These two
wake-ups are most of the cost of a short pull.  While callers serve, the client's thread sleeps
(`_stand_back`); it serves what nobody waits for, such as asynchronous pushes.  Whoever serves holds
`Core.turn`, and serving never takes the GIL: a caller that computes with the GIL held stops nothing.

A lost link
-----------
Its open parts stay open.  The mender connects again, in a thread of its own, since `connect` may
block for long: until the shard answers, `failover_s` is over, or the route names another server.

A shard that closes each connection without an answer is tried at least FRUITLESS_MAX times and for
`failover_s`; then the client ends.  A shard that keeps the connection open and never answers does not lose
its link, because nothing here times it: each caller gets WaitTimeout with the shard's name.  If the master
declares that server lost, the owner of the client breaks the connection as the route changes (`Client.cut`).
"""

import threading

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport strlen

from snailps.errors import MisuseError, SnailError
from snailps.transport.frame import Frame, Kind
from snailps.transport.handshake import remote_error

from snailps.abi._wire_types cimport WireOps
from snailps.transport._awake cimport now_s
from snailps.transport._frame cimport KIND_PULL
from snailps.transport._posix cimport (
    CLOCK_MONOTONIC, EFD_CLOEXEC, EFD_NONBLOCK, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT,
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, SHUT_RDWR, c_close, c_read, c_write, epoll_create1,
    epoll_ctl, epoll_event, epoll_wait, eventfd, load_flag, pthread_cond_broadcast,
    pthread_cond_destroy, pthread_cond_init, pthread_cond_signal, pthread_cond_timedwait,
    pthread_condattr_destroy, pthread_condattr_init, pthread_condattr_setclock, pthread_condattr_t,
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_trylock,
    pthread_mutex_unlock, shutdown, store_flag, time_of, timespec,
)
from snailps.transport._socket_io cimport buffer_free, wait_events
from snailps.transport.client._error_feedback cimport owings_drop, owings_free, owings_init
from snailps.transport.client._link cimport (
    IN_BYTES, NO_PART, WINDOW, Core, Link, Queue, break_core, close_part, finish_if_done,
    leave_queue, no_parts, queue_by_clock, queue_put, receive_some, send_some,
)
from snailps.transport.client._request cimport (
    POOL_BLOCKS, Order, Request, pool_free, request_wants, trim_heap,
)

cdef enum:
    EVENTS_MAX = 64
    # A shard that accepts connections and closes them without an answer is tried again at once, then after
    # 0.05, 0.1, ... 1 s, 4 s in all.  Then, and after `failover_s`, the client ends.
    FRUITLESS_MAX = 9
    IDLE_FRUITLESS_MAX = 4          # of an idle link: it pauses between tries, and never ends the client
    PAUSE_MS = 50
    PAUSE_MAX_MS = 1000
    IDLE_MS = 1000
    TRIM_BYTES = 1 << 20            # less memory of ended requests is not worth giving back
    # After a caller has served, the next one probably will, too: the thread sleeps on for so long instead of
    # waking for every answer.
    STAND_BACK_MS = 50

cdef double MEND_PAUSE_S = 0.1      # between two tries to reach a shard; a new route ends the pause


cdef class Connections:
    """Connections to all shards of a cluster; the parameters are explained at `Client`."""

    def __cinit__(self, connect: Callable[[int], int], names: Sequence[str],
                  owner: NDArray[np.generic], uint32_t epoch, uint64_t job, uint64_t incarnation,
                  wire_ops: object, double failover_s):
        cdef epoll_event event
        owners = np.ascontiguousarray(owner, np.uint32)
        if owners.ndim != 1 or owners.shape[0] == 0 or np.max(owners) >= len(names):
            raise MisuseError("the route names a shard that does not exist")
        self.connect = connect
        self.names = list(names)
        self.threads = []
        self.core = _core_new(len(names))
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

    def start(self, requests: snailps.transport.client._pending.PendingRequests) -> None:
        """Connect to every shard, then serve `requests`, kept until `close`."""
        cdef uint32_t shard
        if self.threads or self.core.ended:
            raise MisuseError("a client starts once")
        self.requests = requests
        try:
            for shard in range(self.core.order.shards):
                self.core.links[shard].new_fd = self.connect(shard)
        except BaseException:
            _close_links(self.core)
            raise
        for target, name in ((self._loop, "snailps-client"), (self._mend, "snailps-mender")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self.threads.append(thread)

    def fail(self, text: str) -> None:
        cdef bytes words = text.encode("utf-8", "replace")
        break_core(self.core, words, len(words), False)
        self._wake()

    def reroute(self, uint32_t epoch, names: Sequence[str]) -> None:
        if len(names) != len(self.names):
            raise MisuseError(f"a route of {len(names)} shards, this client has {len(self.names)}: "
                              "their number does not change")
        self.names = list(names)
        with nogil:
            _mend_now(self.core, epoch)

    def drop_residues(self) -> None:
        with nogil:
            pthread_mutex_lock(&self.core.lock)
            self.core.drops_owing = True
            pthread_mutex_unlock(&self.core.lock)
        self._wake()

    @property
    def residue_bytes(self) -> int:
        return self.core.owing.bytes

    @property
    def residue_bytes_max(self) -> int:
        return self.core.owing.bytes_max

    @residue_bytes_max.setter
    def residue_bytes_max(self, uint64_t most):
        self.core.owing.bytes_max = most

    def goodput(self) -> tuple[int, float]:
        return self.core.goodput_bytes, self.core.goodput_s

    def counters(self) -> dict[str, Any]:
        return {
            "bytes_out": self.core.bytes_out,
            "bytes_in": self.core.bytes_in,
            "rows_pulled": self.core.rows_pulled,
            "rows_pushed": self.core.rows_pushed,
            "parts_pushed": self.core.seq,
            "batches_forgotten": self.core.batches_forgotten,
            "reconnects": sum(self.core.links[i].reconnects
                              for i in range(self.core.order.shards)),
            "open": self.core.open_requests,
        }

    def close(self) -> None:
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
                _end_exchange(self.core)
        _close_links(self.core)

    def cut(self, uint32_t shard) -> None:
        self.check_shard(shard)
        with nogil:
            pthread_mutex_lock(&self.core.lock)
            self.core.links[shard].cut = True
            pthread_mutex_unlock(&self.core.lock)
        self._wake()

    # --- for requests

    cdef void hand_in(self, Request *r, bint wake) noexcept:
        """Queues a request to be sent.  If the client has ended, the request is done, and failed, at once.

        Without `wake` no thread is woken: the caller is about to `wait_until` or `send_held`.
        """
        _enqueue(self.core, r, wake)

    cdef void send_held(self) noexcept:
        """Wakes a thread to send what was handed in without `wake`."""
        if self.core.fresh != NULL:
            _wake_exchange(self.core)

    cdef bint wait_until(self, Request *r, double until_s):
        """Waits for an answer, and serves the links meanwhile; False = there was none until then."""
        cdef Core *core = self.core
        cdef timespec until
        cdef bint done
        cdef bint serves = len(self.threads) > 0
        time_of(until_s, &until)
        with nogil:
            if serves and not load_flag(&r.done):
                _drive(core, r, until_s)
            pthread_mutex_lock(&core.lock)
            while not r.done:
                if pthread_cond_timedwait(&core.changed, &core.lock, &until) != 0:
                    break
            done = r.done
            pthread_mutex_unlock(&core.lock)
        return done

    cdef why_ended(self):
        """The reason for which every request fails; empty = the client works."""
        text = self.core.text[:self.core.text_bytes]
        return str(remote_error(Frame(Kind.ERROR, text))) if self.core.text_is_body \
            else text.decode("utf-8", "replace")

    cdef unanswered_by(self, Request *r):
        """Names the shards without an answer to a request.

        Reads without a lock what the serving thread writes: for messages, which may be a little off.
        """
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
        _wake_exchange(self.core)

    def _loop(self):
        with nogil:
            _exchange(self.core)

    def _mend(self):
        """Starts a thread for each lost link: a server that does not answer must not delay the others."""
        cdef int64_t shard
        while True:
            with nogil:
                shard = _next_to_mend(self.core)
            if shard < 0:
                return
            threading.Thread(target=self._mend_one, args=(shard,), name=f"snailps-mender-{shard}",
                             daemon=True).start()

    def _mend_one(self, uint32_t shard):
        cdef int fd
        cdef uint32_t epoch
        cdef bint patient, stale = True
        # The route may change during `connect`: then the port may belong to another server's shard by now, and
        # the connection is not used.
        while stale:
            epoch = self.core.epoch
            try:
                fd = self.connect(shard)
            except Exception as error:
                with nogil:
                    patient = _mend_again(self.core, shard, MEND_PAUSE_S)
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
            _core_free(self.core)


cdef int _take_memory(Core *core, owners) except -1:
    """Allocates the links' input buffers, and makes the order of the fragments (`_request.pyx`)."""
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


# --- birth and end -------------------------------------------------------------------------------

cdef Core *_core_new(uint32_t shards) noexcept nogil:
    """Makes a core with its links, not connected; NULL = no memory."""
    cdef pthread_condattr_t attr
    cdef Core *core = <Core *>calloc(1, sizeof(Core))
    cdef uint32_t i
    if core == NULL:
        return NULL
    core.links = <Link *>calloc(shards, sizeof(Link))
    if core.links == NULL:
        free(core)
        return NULL
    pthread_mutex_init(&core.lock, NULL)
    pthread_condattr_init(&attr)
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC)
    pthread_cond_init(&core.changed, &attr)
    pthread_cond_init(&core.mend, &attr)
    pthread_cond_init(&core.idle, &attr)
    pthread_mutex_init(&core.turn, NULL)
    pthread_condattr_destroy(&attr)
    core.epoll_fd = core.wake_fd = -1
    core.order.shards = shards
    owings_init(&core.owing)
    for i in range(shards):
        core.links[i].fd = core.links[i].new_fd = -1
        no_parts(&core.links[i])
    return core


cdef void _close_links(Core *core) noexcept nogil:
    """Closes all links; the client's thread does not run (any more)."""
    cdef uint32_t i
    pthread_mutex_lock(&core.lock)
    for i in range(core.order.shards):
        if core.links[i].fd >= 0:
            c_close(core.links[i].fd)
        if core.links[i].new_fd >= 0:
            c_close(core.links[i].new_fd)
        core.links[i].fd = core.links[i].new_fd = -1
    pthread_mutex_unlock(&core.lock)


cdef void _core_free(Core *core) noexcept nogil:
    cdef uint32_t i, j
    _close_links(core)
    for i in range(core.order.shards):
        buffer_free(&core.links[i].inp)
        buffer_free(&core.links[i].out)
        free(core.links[i].queue.items)
        free(core.links[i].ahead.items)
        free(core.links[i].clocked.items)
        for j in range(core.links[i].kept_num):
            free(core.links[i].kept[j])
    if core.epoll_fd >= 0:
        c_close(core.epoll_fd)
    if core.wake_fd >= 0:
        c_close(core.wake_fd)
    pthread_mutex_destroy(&core.lock)
    pthread_cond_destroy(&core.changed)
    pthread_cond_destroy(&core.mend)
    pthread_cond_destroy(&core.idle)
    pthread_mutex_destroy(&core.turn)
    owings_free(&core.owing)
    pool_free(&core.pool)
    free(core.links)
    free(core.order.rank)
    free(core.order.fragment_at)
    free(core.order.shard_start)
    free(core.order.owner)
    free(core)


# --- links ---------------------------------------------------------------------------------------

cdef inline bint _asks_nothing(const Link *link) noexcept nogil:
    return link.oldest == NO_PART and link.queue.count == 0 and link.ahead.count == 0 \
        and link.clocked.count == 0


cdef void _link_down(Core *core, Link *link) noexcept nogil:
    """Closes a lost connection and asks the mender for a new one; its open parts will be sent again."""
    cdef const char *why = b"a server closes the connection again and again without answering: " \
        b"see its log"
    cdef uint32_t pause_ms = 0
    cdef uint32_t i
    cdef double now = now_s()
    # A fork of this process may have a copy of the socket: closing ours alone would leave the connection open,
    # and epoll would go on watching it.
    epoll_ctl(core.epoll_fd, EPOLL_CTL_DEL, link.fd, NULL)
    shutdown(link.fd, SHUT_RDWR)
    c_close(link.fd)
    link.inp.start = link.inp.end = 0
    link.out.start = link.out.end = 0
    link.unwritten = link.oldest    # all open parts again, oldest first: the order of their numbers
    core.busy_since = now           # the time until the next connection says nothing about speed
    core.busy_bytes = core.bytes_in + core.bytes_out
    if now - link.up_at > max(core.patience_s, PAUSE_MAX_MS * 1e-3):
        link.fruitless = 0
    # An idle link proves nothing: the peer may be well, and close what it does not use.
    if _asks_nothing(link):
        link.fruitless = min(link.fruitless, <uint32_t>IDLE_FRUITLESS_MAX - 1)
        link.lost_at = now
    elif link.fruitless == 0:
        link.lost_at = now
    link.fruitless += 1
    for i in range(1, min(link.fruitless, <uint32_t>FRUITLESS_MAX)):
        pause_ms = min(max(pause_ms * 2, <uint32_t>PAUSE_MS), <uint32_t>PAUSE_MAX_MS)
    if link.fruitless > FRUITLESS_MAX and now - link.lost_at > core.patience_s:
        if link.words[0]:
            break_core(core, link.words, strlen(link.words), True)
        break_core(core, why, strlen(why), False)
    pthread_mutex_lock(&core.lock)
    link.fd = -1
    link.reconnects += 1
    link.mend_at = now + pause_ms * 1e-3
    link.wants_mending = True
    pthread_cond_broadcast(&core.mend)
    pthread_mutex_unlock(&core.lock)


cdef int64_t _next_to_mend(Core *core) noexcept nogil:
    """Waits until a lost link is to be tried, and returns its shard; -1 = the client ends."""
    cdef int64_t shard = -1
    cdef uint32_t s
    cdef double now, soonest
    cdef timespec until
    pthread_mutex_lock(&core.lock)
    while shard < 0 and not core.stop and not core.broken:
        now = now_s()
        soonest = now + 3600
        for s in range(core.order.shards):
            if core.links[s].wants_mending:
                soonest = min(soonest, core.links[s].mend_at)
                if core.links[s].mend_at <= now:
                    core.links[s].wants_mending = False
                    shard = s
                    break
        if shard < 0:
            time_of(soonest, &until)
            pthread_cond_timedwait(&core.mend, &core.lock, &until)
    pthread_mutex_unlock(&core.lock)
    return shard


cdef bint _mend_again(Core *core, uint32_t shard, double pause_s) noexcept nogil:
    """Schedules another try for a link; False = its shard was out of reach for `failover_s`."""
    cdef Link *link = &core.links[shard]
    cdef bint patient
    pthread_mutex_lock(&core.lock)
    patient = now_s() - link.lost_at < core.patience_s
    if patient:
        link.mend_at = now_s() + pause_s
        link.wants_mending = True
        pthread_cond_broadcast(&core.mend)
    pthread_mutex_unlock(&core.lock)
    return patient


cdef void _mend_now(Core *core, uint32_t epoch) noexcept nogil:
    """Takes the epoch of a new route, and has lost links tried at once: their shards may have moved."""
    cdef uint32_t s
    pthread_mutex_lock(&core.lock)
    core.epoch = epoch
    for s in range(core.order.shards):
        core.links[s].mend_at = 0
    pthread_cond_broadcast(&core.mend)
    pthread_mutex_unlock(&core.lock)


# --- requests ------------------------------------------------------------------------------------

cdef void _queue_request(Core *core, Request *r) noexcept nogil:
    """Puts a new request into the queues of its shards; without a shard it is done at once."""
    cdef uint32_t s
    cdef Link *link
    cdef Queue *q
    r.unsent = 1                    # one more, so that it cannot be done before all queues have it
    for s in range(core.order.shards):
        if request_wants(r, s):
            link = &core.links[s]
            q = &link.queue
            if r.kind == KIND_PULL and r.clocked and r.clock > link.reached:
                q = &link.clocked
            elif r.ahead:
                q = &link.ahead
            if queue_put(q, r):
                r.unsent += 1
                if q == &link.clocked:
                    queue_by_clock(q)
            else:
                r.failed = True
    r.unsent -= 1
    finish_if_done(core, r)


cdef void _take_fresh(Core *core) noexcept nogil:
    """Takes over what other threads left under `Core.lock`: requests, new connections, links to cut."""
    cdef Request *r
    cdef Request *next_one
    cdef Link *link
    cdef uint32_t s
    cdef epoll_event event
    pthread_mutex_lock(&core.lock)
    r = core.fresh
    core.fresh = core.fresh_tail = NULL
    if core.drops_owing:
        core.drops_owing = False
        owings_drop(&core.owing)
    for s in range(core.order.shards):
        link = &core.links[s]
        if link.new_fd >= 0 and link.fd < 0:
            link.fd = link.new_fd
            link.new_fd = -1
            link.up_at = now_s()
            link.events = 0
        if link.cut:
            link.cut = False
            if link.fd >= 0:
                shutdown(link.fd, SHUT_RDWR)
    pthread_mutex_unlock(&core.lock)
    while r != NULL:
        next_one = r.next           # read first: once the request is done, its caller may free it
        _queue_request(core, r)
        r = next_one
    for s in range(core.order.shards):
        link = &core.links[s]
        if link.fd >= 0 and link.events == 0:
            link.events = EPOLLIN
            event.events = EPOLLIN
            event.data.u64 = s + 1
            if epoll_ctl(core.epoll_fd, EPOLL_CTL_ADD, link.fd, &event) < 0:
                _link_down(core, link)


cdef void _fail_queue(Core *core, Queue *q) noexcept nogil:
    while q.count:
        q.items[q.head].request.failed = True
        leave_queue(core, q)


cdef void _fail_all(Core *core) noexcept nogil:
    """Fails every request with the reason in `Core.text`."""
    cdef epoll_event event
    cdef Link *link
    cdef uint32_t s
    cdef Request *r
    for s in range(core.order.shards):
        link = &core.links[s]
        while link.oldest != NO_PART:
            r = link.parts[link.oldest].request
            r.failed = True
            close_part(core, link, link.oldest)
            finish_if_done(core, r)
        _fail_queue(core, &link.ahead)
        _fail_queue(core, &link.clocked)
        _fail_queue(core, &link.queue)
        if link.fd >= 0 and link.events != EPOLLIN:     # else epoll would report room to send for ever
            link.events = EPOLLIN
            event.events = EPOLLIN
            event.data.u64 = s + 1
            epoll_ctl(core.epoll_fd, EPOLL_CTL_MOD, link.fd, &event)
        link.out.start = link.out.end = 0


cdef void _end_exchange(Core *core) noexcept nogil:
    """Fails all open requests; from now on `_enqueue` fails new ones."""
    cdef uint32_t s
    pthread_mutex_lock(&core.lock)
    core.ended = True
    pthread_mutex_unlock(&core.lock)
    _take_fresh(core)
    _fail_all(core)
    # A fork of this process may have copies of the sockets, which closing ours would not end.  The fork itself
    # never gets here: it has none of these threads.
    for s in range(core.order.shards):
        if core.links[s].fd >= 0:
            shutdown(core.links[s].fd, SHUT_RDWR)


cdef bint _enqueue(Core *core, Request *r, bint wake) noexcept nogil:
    """Adds a request to `fresh`; False = the client has ended, and the request has failed.

    Without `wake` the caller serves the links itself (`_drive`), or wakes later.
    """
    cdef bint ended
    pthread_mutex_lock(&core.lock)
    ended = core.ended
    if ended:
        r.failed = True
        store_flag(&r.done, 1)
    else:
        core.open_requests += 1
        if core.fresh_tail == NULL:
            core.fresh = r
        else:
            core.fresh_tail.next = r
        core.fresh_tail = r
    pthread_mutex_unlock(&core.lock)
    if wake:
        _wake_exchange(core)
    return not ended


cdef void _wake_exchange(Core *core) noexcept nogil:
    """Wakes the thread that serves the links, and the client's thread if it stands back."""
    cdef uint64_t one = 1
    c_write(core.wake_fd, &one, sizeof(one))
    pthread_cond_signal(&core.idle)


# --- serving -------------------------------------------------------------------------------------

cdef void _exchange_turn(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Sends what a shard's socket takes, and has epoll report when it takes more."""
    cdef epoll_event event
    cdef uint32_t wanted
    cdef int more = send_some(core, link, shard)
    if more < 0:
        _link_down(core, link)
        return
    wanted = EPOLLIN | (EPOLLOUT if more else 0)
    if wanted != link.events:
        link.events = wanted
        event.events = wanted
        event.data.u64 = shard + 1
        epoll_ctl(core.epoll_fd, EPOLL_CTL_MOD, link.fd, &event)


cdef void _serve(Core *core, const epoll_event *events, int n) noexcept nogil:
    """Takes replies and new requests, then sends what the sockets take.  Under `Core.turn`.

    Receiving comes first: a shard that cannot get rid of its replies stops reading, so a client that
    only sent could wait for a shard that waits for it.
    """
    cdef uint64_t token
    cdef uint32_t s
    cdef int i
    cdef Link *link
    for i in range(n):
        token = events[i].data.u64
        if token == 0:
            c_read(core.wake_fd, &token, sizeof(token))
            continue
        link = &core.links[token - 1]
        if link.fd >= 0 and events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP) \
                and receive_some(core, link) < 0:
            _link_down(core, link)
    _take_fresh(core)
    if load_flag(&core.broken):
        _fail_all(core)
        return
    for s in range(core.order.shards):
        if core.links[s].fd >= 0:
            _exchange_turn(core, &core.links[s], s)


cdef void _stand_back(Core *core) noexcept nogil:
    """Sleeps while callers serve the links, and STAND_BACK_MS longer.

    It ends early when requests are open and no caller serves any more (`_drive` signals it): those
    requests are asynchronous, and nobody else would take their answers.
    """
    cdef double now = now_s()
    cdef timespec until
    pthread_mutex_lock(&core.lock)
    while not core.stop and (core.drivers or (
            core.open_requests == 0 and core.fresh == NULL
            and now < core.driven_at + STAND_BACK_MS * 1e-3)):
        time_of(now + STAND_BACK_MS * 1e-3, &until)
        pthread_cond_timedwait(&core.idle, &core.lock, &until)
        now = now_s()
    pthread_mutex_unlock(&core.lock)


cdef void _give_memory_back(Core *core) noexcept nogil:
    """Frees the memory of ended requests: nothing happened for IDLE_MS."""
    cdef uint32_t i
    cdef size_t pool_bytes = 0
    cdef bint idle
    pthread_mutex_lock(&core.lock)
    idle = core.open_requests == 0
    pthread_mutex_unlock(&core.lock)
    # Read without the GIL that guards the pool, because others may hold that for long.  A wrong sum costs a
    # needless `pool_free`, or is right a second later.
    for i in range(POOL_BLOCKS):
        pool_bytes += core.pool.sizes[i]
    if idle and pool_bytes >= <size_t>TRIM_BYTES:
        with gil:
            pool_free(&core.pool)
        trim_heap()


cdef void _exchange(Core *core) noexcept nogil:
    """Runs the client's thread: serves the links until `stop`, whenever no caller does."""
    cdef epoll_event events[EVENTS_MAX]
    cdef int n
    while not load_flag(&core.stop):
        n = epoll_wait(core.epoll_fd, events, EVENTS_MAX, IDLE_MS)
        if n == 0:
            _give_memory_back(core)
        if pthread_mutex_trylock(&core.turn) != 0:
            _stand_back(core)
            continue
        _serve(core, events, n)
        pthread_mutex_unlock(&core.turn)
    pthread_mutex_lock(&core.turn)
    _end_exchange(core)
    pthread_mutex_unlock(&core.turn)


cdef void _drive(Core *core, const Request *r, double until_s) noexcept nogil:
    """Serves the links in the caller's thread until its request is done or the time has come.

    Returns at once if another thread serves: that thread is woken, and sends the request.  The caller
    then sleeps in `wait_until`.  When a caller leaves with requests still open and no other driver, it
    wakes the client's thread: otherwise nobody would take their answers.
    """
    cdef epoll_event events[EVENTS_MAX]
    cdef int n = 0
    cdef double left_s
    pthread_mutex_lock(&core.lock)
    core.drivers += 1
    pthread_mutex_unlock(&core.lock)
    if pthread_mutex_trylock(&core.turn) == 0:
        while True:
            _serve(core, events, n)
            left_s = until_s - now_s()
            if load_flag(&(<Request *>r).done) or left_s <= 0 or load_flag(&core.stop):
                break
            n = wait_events(core.epoll_fd, events, EVENTS_MAX, <int>(left_s * 1e3) + 1, &core.looks)
            n = max(n, 0)
        pthread_mutex_unlock(&core.turn)
    else:
        _wake_exchange(core)
    pthread_mutex_lock(&core.lock)
    core.drivers -= 1
    core.driven_at = now_s()
    if core.open_requests and core.drivers == 0:
        pthread_cond_signal(&core.idle)
    pthread_mutex_unlock(&core.lock)
