# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The rounds of a shard's loop: see _iteration.pxd."""

from libc.errno cimport EAGAIN, EINTR, EMFILE, ENFILE, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from snailps.transport._posix cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL,
    RLIMIT_NOFILE, SOCK_CLOEXEC, SOCK_NONBLOCK, accept4, c_close, c_read, c_send, epoll_ctl,
    epoll_event, epoll_wait, getrlimit, now_s, rlimit,
)
from snailps.transport._socket_io cimport (
    SOCKET_BUSY, SOCKET_GONE, buffer_held, buffer_receive, buffer_send, wait_events,
)
from snailps.transport.loop._connection cimport (
    Conn, Conns, conn_flush, conn_free, conn_new, conn_of, conn_put_ready, conn_read,
    oldest_unknown, set_options, unknown_max,
)
from snailps.transport.loop._dispatch cimport release_held, retry_parked, serve
from snailps.transport.loop._fault_injection cimport POINT_MID_SEND, die, due
from snailps.transport.loop._loop_state cimport ID_LISTENER, ID_STREAM, ID_WAKE, Loop
from snailps.transport.loop._parked_requests cimport park_forget
from snailps.transport.loop._replication_stream cimport (
    STREAM_BYTES_MAX, STREAM_LOST, STREAM_NONE, Stream, held_forget, stream_break, stream_close,
    stream_is_seeded, stream_limit, stream_listen, stream_lose, stream_may_seed, stream_open,
    stream_probe, stream_rest_ms, stream_take, stream_waiting,
)

cdef enum:
    EVENTS_MAX = 64
    TIMER_MS = 100                  # how often deadlines are looked at
    HANDSHAKE_LIMIT_S = 10
    LINGER_S = 2                    # how long a refused peer may take to read why
    ACCEPTS_MAX = 64                # at a time: those who shake hands have their turn in between
    STREAM_TURN_BYTES = 4 << 20     # sent before connections have their turn
    ASKED_S = 1                     # after a request, seeding is paced for so long


# --- connections that come and go ----------------------------------------------------------------

cdef void _drain(Loop *loop, Conn *conn) noexcept nogil:
    """Takes all that has come of a primary's stream: nobody will send it again."""
    cdef uint64_t read = 0
    cdef size_t left = 0
    cdef bint more = conn.opened
    conn.out.start = conn.out.end = 0
    conn.acknowledged = <uint64_t>-1            # it may be gone: nothing more is said to it
    while more and not conn.closing and not conn.stuck:
        read = loop.conns.bytes_in
        left = buffer_held(&conn.inp)
        conn_read(&loop.conns, conn)
        if serve(loop, conn) < 0:
            return
        more = loop.conns.bytes_in != read or buffer_held(&conn.inp) != left


cdef void close_conn(Loop *loop, Conn *conn) noexcept nogil:
    if conn.stream and not loop.stop:
        _drain(loop, conn)
    if conn.parked:
        park_forget(&loop.parking, conn)
    if not conn.opened:
        loop.reception.forget(loop.reception.self, conn.id)
    if conn.owed:
        held_forget(&loop.stream, conn.id)
    if conn.id == loop.follows and conn.replayed == 0:
        loop.follows = 0            # it said nothing: another may come
    loop.handler.forget(conn.memory)
    conn_free(&loop.conns, conn)


cdef void close_all(Loop *loop) noexcept nogil:
    cdef uint32_t i
    for i in range(loop.conns.count):
        if loop.conns.slots[i] != NULL:
            conn_flush(&loop.conns, loop.conns.slots[i])
            close_conn(loop, loop.conns.slots[i])


cdef void _close_lost(Loop *loop) noexcept nogil:
    cdef uint32_t i
    if not loop.lost:
        return
    loop.lost = False
    for i in range(loop.conns.count):
        if loop.conns.slots[i] != NULL and loop.conns.slots[i].lost:
            close_conn(loop, loop.conns.slots[i])


cdef void _listen(Loop *loop, bint on) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN if on else 0
    event.data.u64 = ID_LISTENER
    epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_MOD, loop.listen_fd, &event)
    loop.listening = on


cdef void _make_room(Loop *loop) noexcept nogil:
    cdef Conn *oldest = oldest_unknown(&loop.conns)
    loop.reception.refused(loop.reception.self, oldest.id, b"made room for newer connections")
    close_conn(loop, oldest)


cdef int _accept(Loop *loop) noexcept nogil:
    """A new connection's descriptor; -1 = there is none now, or none is left for it."""
    cdef int fd
    if loop.relayed:
        return loop.reception.accept(loop.reception.self)
    fd = accept4(loop.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if fd >= 0:
        set_options(fd)
        if conn_new(&loop.conns, fd, loop.now) == NULL:
            c_close(fd)
    return fd


cdef void _accept_some(Loop *loop) noexcept nogil:
    cdef int fd, i
    cdef rlimit limits
    if getrlimit(RLIMIT_NOFILE, &limits) < 0:
        limits.rlim_cur = <unsigned long>-1
    for i in range(ACCEPTS_MAX):
        fd = _accept(loop)
        if fd < 0:
            # Without descriptors it fails even when nobody waits.  At first somebody does, and gets
            # one of a stranger's; later epoll would tell.
            if i == 0 and not loop.relayed and errno != EAGAIN and errno != EINTR:
                if (errno == EMFILE or errno == ENFILE) and loop.conns.unknown:
                    _make_room(loop)
                    continue
                _listen(loop, False)    # epoll would report him for ever: try again later
            return
        while loop.conns.unknown > unknown_max(fd, limits.rlim_cur):
            _make_room(loop)


# --- the stream to the standby -------------------------------------------------------------------

cdef int open_stream(Loop *loop, int fd, bint sync, bint paced) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN
    event.data.u64 = ID_STREAM
    if epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
        return -1
    loop.stream_fd = fd
    stream_open(&loop.stream, sync, paced, loop.now)
    loop.seeding = True
    return 0


cdef void close_stream(Loop *loop) noexcept nogil:
    if loop.stream_fd >= 0:
        c_close(loop.stream_fd)     # also takes it out of epoll
    loop.stream_fd = -1
    stream_close(&loop.stream)


cdef void end_stream(Loop *loop) noexcept nogil:
    close_stream(loop)
    loop.stream.state = STREAM_NONE
    loop.stream.holding = False
    release_held(loop)
    loop.retry_parked = True


cdef bint _send_stream(Loop *loop) noexcept nogil:
    """Sends what the socket takes; True = it takes no more."""
    cdef Stream *s = &loop.stream
    cdef ssize_t sent
    cdef uint64_t turn = 0
    while stream_waiting(s) and turn < STREAM_TURN_BYTES:
        if loop.faults.point == POINT_MID_SEND and due(&loop.faults, POINT_MID_SEND):
            c_send(loop.stream_fd, s.out.data + s.out.start, stream_waiting(s) // 2 + 1,
                   MSG_NOSIGNAL | MSG_DONTWAIT)
            die()
        sent = buffer_send(&s.out, loop.stream_fd, &turn)
        if sent == SOCKET_GONE:
            s.out.start = s.out.end     # its last words may still be there: they are read first
        if sent == SOCKET_GONE or sent == SOCKET_BUSY:
            return True
    return False


cdef void _read_stream(Loop *loop) noexcept nogil:
    """Takes what the standby says; the stream is broken when it ends or says nonsense."""
    cdef Stream *s = &loop.stream
    cdef uint64_t moved = 0
    if not stream_listen(s):
        return
    if buffer_receive(&s.inp, loop.stream_fd, s.inp.cap, &moved) == SOCKET_GONE:
        stream_break(s, b"the connection to the standby was closed")
    elif moved:
        stream_take(s, loop.now)


cdef void _turn_stream(Loop *loop) noexcept nogil:
    """Sends what came together in this round, and more of what a new standby lacks."""
    cdef Stream *s = &loop.stream
    cdef epoll_event event
    cdef bint blocked
    loop.seeding = False
    if stream_may_seed(s, loop.now - loop.asked_at < ASKED_S, loop.now):
        loop.seeding = loop.handler.seed(loop.handler.context)
        s.piece_end = s.sent_bytes
    if s.state != STREAM_LOST:
        stream_probe(s, loop.now)
        blocked = _send_stream(loop)
        if stream_waiting(s) and not blocked:
            loop.seeding = True             # its turn is over, and there is more
        if blocked != s.blocked:
            s.blocked = blocked
            event.events = EPOLLIN | (EPOLLOUT if blocked else 0)
            event.data.u64 = ID_STREAM
            epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_MOD, loop.stream_fd, &event)
        if s.parks and stream_waiting(s) < STREAM_BYTES_MAX // 2:
            s.parks = False
            loop.retry_parked = True
        if stream_is_seeded(s):
            loop.tell(loop.self, b"ready", b"")
    if stream_lose(s):
        close_stream(loop)
        if not s.holding:
            release_held(loop)
        loop.retry_parked = True
        loop.tell(loop.self, b"lost", s.why)


# --- rounds --------------------------------------------------------------------------------------

cdef void _timers(Loop *loop) noexcept nogil:
    cdef uint32_t i
    cdef Conn *conn
    for i in range(loop.conns.count):
        conn = loop.conns.slots[i]
        if conn != NULL and conn.closing and loop.now - conn.since > LINGER_S:
            close_conn(loop, conn)
        elif conn != NULL and not conn.opened and loop.now - conn.since > HANDSHAKE_LIMIT_S:
            loop.reception.refused(loop.reception.self, conn.id, b"no handshake within 10 s")
            close_conn(loop, conn)
        elif conn != NULL and conn.stuck and not conn_put_ready(&loop.conns, conn):
            close_conn(loop, conn)
    if loop.stream_fd >= 0:
        stream_limit(&loop.stream, loop.silence_limit_s, loop.now)
    if loop.parking.count:
        retry_parked(loop)
    if not loop.listening:
        _listen(loop, True)
    if loop.unsaid:
        loop.reception.sum_up(loop.reception.self)


cdef void _event(Loop *loop, uint64_t token, uint32_t events) noexcept nogil:
    cdef Conn *conn
    if token == ID_LISTENER:
        _accept_some(loop)
    elif token == ID_WAKE:
        c_read(loop.wake_fd, &token, sizeof(token))
        loop.commands(loop.self)
        if loop.retry_parked:       # at once: what came later must not be served before them
            loop.retry_parked = False
            retry_parked(loop)
        _close_lost(loop)
    elif token == ID_STREAM:
        if loop.stream_fd >= 0:
            _read_stream(loop)
            release_held(loop)
            _close_lost(loop)
    else:
        conn = conn_of(&loop.conns, token)
        if conn == NULL:            # closed earlier in this round
            return
        if events & EPOLLOUT and conn.starved:
            conn.starved = False
            loop.retry_parked = True
        if events & (EPOLLERR | EPOLLHUP) \
                or (events & EPOLLOUT and conn_flush(&loop.conns, conn) < 0) \
                or (events & EPOLLIN and conn_read(&loop.conns, conn) < 0) \
                or (not conn.in_ready and serve(loop, conn) < 0):
            close_conn(loop, conn)


cdef void _turns(Loop *loop) noexcept nogil:
    """A turn for each connection with work left; those that have more wait for the next round."""
    cdef Conns *conns = &loop.conns
    cdef uint32_t i
    cdef uint32_t turns = conns.ready_count
    cdef Conn *conn
    for i in range(turns):
        conn = conn_of(conns, conns.ready[i])
        if conn != NULL:
            conn.in_ready = False
            if serve(loop, conn) < 0:
                close_conn(loop, conn)
    if turns:
        conns.ready_count -= turns
        memmove(conns.ready, conns.ready + turns, conns.ready_count * sizeof(uint64_t))


cdef void _round(Loop *loop, const epoll_event *events, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        _event(loop, events[i].data.u64, events[i].events)
    _turns(loop)
    if loop.retry_parked:
        loop.retry_parked = False
        retry_parked(loop)
    if loop.stream_fd >= 0:
        _turn_stream(loop)
    if loop.now - loop.timers_at > TIMER_MS * 1e-3:
        loop.timers_at = loop.now
        _timers(loop)
    _close_lost(loop)


cdef int _wait_ms(const Loop *loop) noexcept nogil:
    """How long to wait for events."""
    if loop.conns.ready_count or loop.retry_parked or loop.seeding:
        return 0
    return stream_rest_ms(&loop.stream, now_s(), TIMER_MS)


cdef void run_loop(Loop *loop) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n
    cdef uint32_t blind = 0
    while not loop.stop:
        n = wait_events(loop.conns.epoll_fd, events, EVENTS_MAX, _wait_ms(loop), &blind)
        loop.now = now_s()
        _round(loop, events, n)


cdef void turn_loop(Loop *loop, double now) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    loop.now = now
    _round(loop, events, epoll_wait(loop.conns.epoll_fd, events, EVENTS_MAX, 0))
