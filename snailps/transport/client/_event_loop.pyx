# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Who serves the client's connections, and what becomes of lost ones: see _event_loop.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport strlen

from snailps.transport._frame cimport KIND_PULL
from snailps.transport._posix cimport (
    CLOCK_MONOTONIC, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_MOD, SHUT_RDWR,
    c_close, c_read, c_write, epoll_ctl, epoll_event, epoll_wait, load_flag, now_s,
    pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_timedwait, pthread_condattr_destroy, pthread_condattr_init,
    pthread_condattr_setclock, pthread_condattr_t, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock, shutdown, store_flag, time_of,
    timespec,
)
from snailps.transport._socket_io cimport buffer_free, wait_events
from snailps.transport.client._error_feedback cimport owing_free
from snailps.transport.client._link cimport (
    NO_PART, Core, Link, Queue, break_core, close_part, finish_if_done, leave_queue, no_parts,
    queue_by_clock, queue_put, receive_some, send_some,
)
from snailps.transport.client._request cimport Request, pool_free, request_wants

cdef enum:
    EVENTS_MAX = 64
    # A shard that takes connections and closes them again without an answer: once more at once,
    # then after 0.05, 0.1, ... 1 s, some 4 s in all.
    FRUITLESS_MAX = 9
    PAUSE_MS = 50
    PAUSE_MAX_MS = 1000
    STAND_BACK_MS = 50              # after a caller has served, the next one probably will, too


# --- birth and end -------------------------------------------------------------------------------

cdef Core *core_new(uint32_t shards) noexcept nogil:
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
    for i in range(shards):
        core.links[i].fd = core.links[i].new_fd = -1
        no_parts(&core.links[i])
    return core


cdef void close_links(Core *core) noexcept nogil:
    cdef uint32_t i
    pthread_mutex_lock(&core.lock)
    for i in range(core.order.shards):
        if core.links[i].fd >= 0:
            c_close(core.links[i].fd)
        if core.links[i].new_fd >= 0:
            c_close(core.links[i].new_fd)
        core.links[i].fd = core.links[i].new_fd = -1
    pthread_mutex_unlock(&core.lock)


cdef void core_free(Core *core) noexcept nogil:
    cdef uint32_t i, j
    close_links(core)
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
    owing_free(core.owing)
    pool_free(&core.pool)
    free(core.links)
    free(core.order.rank)
    free(core.order.fragment_at)
    free(core.order.shard_start)
    free(core.order.owner)
    free(core)


# --- links ---------------------------------------------------------------------------------------

cdef void _link_down(Core *core, Link *link) noexcept nogil:
    """Closes a lost connection and asks for a new one; its open parts will be sent again."""
    cdef const char *why = b"a server closes the connection again and again without answering: " \
        b"see its log"
    cdef uint32_t pause_ms = 0
    cdef uint32_t i
    cdef double now = now_s()
    c_close(link.fd)
    link.inp.start = link.inp.end = 0
    link.out.start = link.out.end = 0
    link.unwritten = link.oldest
    core.busy_since = now           # the time until the next connection says nothing of speed
    core.busy_bytes = core.bytes_in + core.bytes_out
    if link.fruitless == 0:
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


cdef int64_t next_to_mend(Core *core) noexcept nogil:
    cdef int64_t found = -1
    cdef uint32_t s
    cdef double now, soonest
    cdef timespec until
    pthread_mutex_lock(&core.lock)
    while found < 0 and not core.stop and not core.broken:
        now = now_s()
        soonest = now + 3600
        for s in range(core.order.shards):
            if core.links[s].wants_mending:
                soonest = min(soonest, core.links[s].mend_at)
                if core.links[s].mend_at <= now:
                    core.links[s].wants_mending = False
                    found = s
                    break
        if found < 0:
            time_of(soonest, &until)
            pthread_cond_timedwait(&core.mend, &core.lock, &until)
    pthread_mutex_unlock(&core.lock)
    return found


cdef bint mend_again(Core *core, uint32_t shard, double pause_s) noexcept nogil:
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


cdef void mend_now(Core *core, uint32_t epoch) noexcept nogil:
    cdef uint32_t s
    pthread_mutex_lock(&core.lock)
    core.epoch = epoch
    for s in range(core.order.shards):
        core.links[s].mend_at = 0
    pthread_cond_broadcast(&core.mend)
    pthread_mutex_unlock(&core.lock)


# --- requests ------------------------------------------------------------------------------------

cdef void _queue_request(Core *core, Request *r) noexcept nogil:
    """Puts a new request into the queues of its shards; it is done at once if it has none."""
    cdef uint32_t s
    cdef Link *link
    cdef Queue *q
    r.unsent = 1                    # ours, so that it cannot be done before all queues have it
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
    """Takes over new requests, mended connections and wishes to cut one."""
    cdef Request *r
    cdef Request *next_one
    cdef Link *link
    cdef uint32_t s
    cdef epoll_event event
    pthread_mutex_lock(&core.lock)
    r = core.fresh
    core.fresh = core.fresh_tail = NULL
    for s in range(core.order.shards):
        link = &core.links[s]
        if link.new_fd >= 0 and link.fd < 0:
            link.fd = link.new_fd
            link.new_fd = -1
            link.events = 0
        if link.cut:
            link.cut = False
            if link.fd >= 0:
                shutdown(link.fd, SHUT_RDWR)
    pthread_mutex_unlock(&core.lock)
    while r != NULL:
        next_one = r.next           # before it is done: then it may be freed
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
    """Ends every request with the client's own error."""
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
        if link.fd >= 0 and link.events != EPOLLIN:     # nobody wants to send any more
            link.events = EPOLLIN
            event.events = EPOLLIN
            event.data.u64 = s + 1
            epoll_ctl(core.epoll_fd, EPOLL_CTL_MOD, link.fd, &event)
        link.out.start = link.out.end = 0


cdef void end_exchange(Core *core) noexcept nogil:
    pthread_mutex_lock(&core.lock)
    core.ended = True
    pthread_mutex_unlock(&core.lock)
    _take_fresh(core)
    _fail_all(core)


cdef bint enqueue(Core *core, Request *r, bint wake) noexcept nogil:
    # Without `wake` the caller will `drive`.
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
        wake_exchange(core)
    return not ended


cdef void wake_exchange(Core *core) noexcept nogil:
    cdef uint64_t one = 1
    c_write(core.wake_fd, &one, sizeof(one))
    pthread_cond_signal(&core.idle)


# --- serving -------------------------------------------------------------------------------------

cdef void _exchange_turn(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Sends what it can to one shard; epoll tells when it can take more."""
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
    """Takes what came in and what is new, sends what can go.  For who holds the turn."""
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
    """Lets callers serve the links, for as long as they do and a little longer."""
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


cdef void exchange(Core *core) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n
    while not load_flag(&core.stop):
        n = epoll_wait(core.epoll_fd, events, EVENTS_MAX, 1000)
        if pthread_mutex_trylock(&core.turn) != 0:
            _stand_back(core)
            continue
        _serve(core, events, n)
        pthread_mutex_unlock(&core.turn)
    pthread_mutex_lock(&core.turn)
    end_exchange(core)
    pthread_mutex_unlock(&core.turn)


cdef void drive(Core *core, const Request *r, double until_s) noexcept nogil:
    # Does nothing while another one serves: then that one was told of the request.
    cdef epoll_event events[EVENTS_MAX]
    cdef int n = 0
    cdef double left
    pthread_mutex_lock(&core.lock)
    core.drivers += 1
    pthread_mutex_unlock(&core.lock)
    if pthread_mutex_trylock(&core.turn) == 0:
        while True:
            _serve(core, events, n)
            left = until_s - now_s()
            if load_flag(&(<Request *>r).done) or left <= 0 or load_flag(&core.stop):
                break
            n = wait_events(core.epoll_fd, events, EVENTS_MAX, <int>(left * 1e3) + 1, &core.blind)
            n = max(n, 0)
        pthread_mutex_unlock(&core.turn)
    else:
        wake_exchange(core)
    pthread_mutex_lock(&core.lock)
    core.drivers -= 1
    core.driven_at = now_s()
    if core.open_requests and core.drivers == 0:
        pthread_cond_signal(&core.idle)
    pthread_mutex_unlock(&core.lock)
