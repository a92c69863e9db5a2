# cython: cdivision=True
# The stream of this shard to its standby, as part of the loop's rounds.
#
#   what came together in a round -> socket      acknowledged -> replies that waited for it -> sockets
#
# Buffers and numbers are in `_replication_stream.pxd`.  What a standby lacks says the handler
# (`seed`), what is to become of one that is lost says whoever opened the stream (`tell`).
from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf

from snailps.transport._frame cimport *
from snailps.transport._posix cimport *
from snailps.transport.loop._accept cimport close
from snailps.transport.loop._connection cimport *
from snailps.transport.loop._fault_injection cimport POINT_ACKNOWLEDGED, passes
from snailps.transport.loop._loop_state cimport ID_STREAM, Loop
from snailps.transport.loop._replication_stream cimport *


cdef inline void release(Loop *loop) noexcept nogil:
    """Sends the replies that waited for what the standby has by now, and wakes requests that did."""
    cdef Stream *s = &loop.stream
    cdef Held *first
    cdef Conn *conn
    cdef uint32_t i
    if s.wanted and stream_has(s, s.wanted):
        s.wanted = 0
        loop.retry_parked = True
    if s.awaited and order_is_there(s, s.awaited):
        loop.obeyed(loop.self)
    loop.released_num = 0
    while held_is_due(s):
        first = &s.held[s.held_head]
        s.held_head = (s.held_head + 1) & (s.held_cap - 1)
        s.held_num -= 1
        conn = conn_of(&loop.conns, first.conn_id)
        if conn == NULL or conn.shut:
            continue
        conn.owed -= 1
        if not out_reserve(conn, FRAME_HEADER_BYTES) \
                or not grow(<void **>&loop.released, &loop.released_cap, loop.released_num + 1, 8):
            conn.lost = True
            continue
        fill_head(<FrameHeader *>(conn.out + conn.out_end), first.kind, first.request, 0)
        if first.unkept:
            (<FrameHeader *>(conn.out + conn.out_end)).table = LIST_UNKEPT
        conn.out_end += FRAME_HEADER_BYTES
        if not conn.released:
            conn.released = True
            loop.released[loop.released_num] = conn.id
            loop.released_num += 1
    for i in range(loop.released_num):
        conn = conn_of(&loop.conns, loop.released[i])
        if conn == NULL:
            continue
        conn.released = conn.waits = False
        if conn.lost or conn_flush(&loop.conns, conn) < 0 or not conn_watch(&loop.conns, conn):
            close(loop, conn)
    if loop.released_num:
        passes(&loop.faults, POINT_ACKNOWLEDGED)


cdef inline void _lost(Loop *loop) noexcept nogil:
    """Ends a stream that broke.  What the standby may be promoted without stays held."""
    cdef Stream *s = &loop.stream
    s.told_lost = True
    stream_close(s)
    if not (s.sync and s.seeded_at and s.acked >= s.seeded_at):
        s.holding = False
        release(loop)
    loop.retry_parked = True
    loop.tell(loop.self, b"lost", s.why)


cdef inline void stream_turn(Loop *loop, double now) noexcept nogil:
    """Sends what came together in this round, and more of what a new standby lacks."""
    cdef Stream *s = &loop.stream
    cdef epoll_event event
    cdef bint blocked
    loop.seeding = False
    if stream_may_seed(s, now - loop.asked_at < ASKED_S, now):
        loop.seeding = loop.handler.seed(loop.handler.context)
        s.piece_end = s.sent_bytes
    if s.state != STREAM_LOST:
        if s.probe == 0 and s.sent > s.acked:
            s.probe = s.sent
            s.probe_at = now
            s.moved_at = now
        blocked = stream_flush(s)
        if stream_waiting(s) and not blocked:
            loop.seeding = True             # its turn is over, and there is more
        if blocked != s.blocked:
            s.blocked = blocked
            event.events = EPOLLIN | (EPOLLOUT if blocked else 0)
            event.data.u64 = ID_STREAM
            epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_MOD, s.fd, &event)
        if s.parks and stream_waiting(s) < STREAM_BYTES_MAX // 2:
            s.parks = False
            loop.retry_parked = True
        if s.state == STREAM_SEEDING and s.seeded_at and s.acked >= s.seeded_at:
            s.state = STREAM_READY
            loop.tell(loop.self, b"ready", b"")
    if s.state == STREAM_LOST and not s.told_lost:
        _lost(loop)


cdef inline void stream_limit(Loop *loop, double now) noexcept nogil:
    """A standby that acknowledges nothing for long is given up."""
    cdef Stream *s = &loop.stream
    cdef char text[128]
    if s.fd >= 0 and s.sent > s.acked and now - s.moved_at > loop.silence_limit_s:
        snprintf(text, sizeof(text), b"the standby acknowledged nothing for %.0f s",
                 now - s.moved_at)
        stream_break(s, text)
