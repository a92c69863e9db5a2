# cython: cdivision=True
# The rounds of a shard's loop: events, a turn for each connection, what waits, the stream, timers.
#
# It owns their order, and knows no frame.  Runs until `stop`, without the GIL.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from snailps.transport._posix cimport *
from snailps.transport.loop._accept cimport accept_some, close, listen
from snailps.transport.loop._connection cimport *
from snailps.transport.loop._dispatch cimport serve
from snailps.transport.loop._loop_state cimport ID_LISTENER, ID_STREAM, ID_WAKE, Loop
from snailps.transport.loop._replication_sender cimport release, stream_limit, stream_turn
from snailps.transport.loop._replication_stream cimport STREAM_SEEDING, stream_read
from snailps.transport.loop._retry cimport retry_parked

cdef enum:
    EVENTS_MAX = 64
    TIMER_MS = 100                  # how often deadlines are looked at
    HANDSHAKE_LIMIT_S = 10
    LINGER_S = 2                    # how long a refused peer may take to read why


cdef inline void _timers(Loop *loop, double now) noexcept nogil:
    cdef uint32_t i
    cdef Conn *conn
    for i in range(loop.conns.count):
        conn = loop.conns.slots[i]
        if conn != NULL and conn.closing and now - conn.since > LINGER_S:
            close(loop, conn)
        elif conn != NULL and not conn.opened and now - conn.since > HANDSHAKE_LIMIT_S:
            loop.reception.refused(loop.reception.self, conn.id, b"no handshake within 10 s")
            close(loop, conn)
        elif conn != NULL and conn.stuck and not conn_put_ready(&loop.conns, conn):
            close(loop, conn)
    stream_limit(loop, now)
    if loop.parking.count:
        retry_parked(loop, now)
    if not loop.listening:
        listen(loop, True)
    if loop.unsaid:
        loop.reception.sum_up(loop.reception.self)


cdef inline void _event(Loop *loop, uint64_t token, uint32_t events, double now) noexcept nogil:
    cdef Conn *conn
    if token == ID_LISTENER:
        accept_some(loop)
    elif token == ID_WAKE:
        c_read(loop.wake_fd, &token, sizeof(token))
        loop.commands(loop.self)
        if loop.retry_parked:       # at once: what came later must not be served before them
            loop.retry_parked = False
            retry_parked(loop, now)
    elif token == ID_STREAM:
        if loop.stream.fd >= 0:
            stream_read(&loop.stream, now)
            release(loop)
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
                or (not conn.in_ready and serve(loop, conn, now) < 0):
            close(loop, conn)


cdef inline void _turns(Loop *loop, double now) noexcept nogil:
    """A turn for each connection with work left; those that have more wait for the next round."""
    cdef Conns *conns = &loop.conns
    cdef uint32_t i
    cdef uint32_t turns = conns.ready_count
    cdef Conn *conn
    for i in range(turns):
        conn = conn_of(conns, conns.ready[i])
        if conn != NULL:
            conn.in_ready = False
            if serve(loop, conn, now) < 0:
                close(loop, conn)
    if turns:
        conns.ready_count -= turns
        memmove(conns.ready, conns.ready + turns, conns.ready_count * sizeof(uint64_t))


cdef inline int _idle_ms(const Loop *loop) noexcept nogil:
    """How long to wait for events: no longer than a rest of seeding lasts."""
    cdef double rest_s = loop.stream.rest_until - now_s()
    if loop.stream.state != STREAM_SEEDING or loop.stream.rest_until == 0:
        return TIMER_MS
    return min(<int>TIMER_MS, 1 + <int>(1e3 * max(rest_s, 0.0)))


cdef inline void run_loop(Loop *loop) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n, i
    cdef double now, timers_at = 0
    cdef uint32_t blind = 0
    while not loop.stop:
        n = wait_events(loop.conns.epoll_fd, events, EVENTS_MAX,
                        0 if loop.conns.ready_count or loop.retry_parked or loop.seeding
                        else _idle_ms(loop), &blind)
        now = now_s()
        for i in range(n):
            _event(loop, events[i].data.u64, events[i].events, now)
        _turns(loop, now)
        if loop.retry_parked:
            loop.retry_parked = False
            retry_parked(loop, now)
        if loop.stream.fd >= 0:
            stream_turn(loop, now)
        if now - timers_at > TIMER_MS * 1e-3:
            timers_at = now
            _timers(loop, now)
