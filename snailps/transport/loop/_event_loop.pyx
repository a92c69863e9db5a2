# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The rounds of a shard's event loop; _event_loop.pxd has its owner, neighbours and invariants."""

from libc.errno cimport EAGAIN, EINTR, EMFILE, ENFILE, errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from snailps.transport._awake cimport now_s
from snailps.transport._frame cimport (
    DATA_BODY_MAX, FRAME_HEADER_BYTES, FRAME_MAGIC, HANDSHAKE_BODY_MAX, KIND_BACKWARD, KIND_ERROR,
    KIND_HEARTBEAT, KIND_PULL, KIND_PUSH, KIND_PUSHED, KIND_REACH, KIND_REPLICATE, KIND_REPLICATED,
    KIND_SCAN, KIND_SEAL, KIND_STEPPED, PART_BYTES, STREAM_BODY_MAX, FrameHeader, fill_head,
    head_is_known, kind_keeps_order,
)
from snailps.transport._posix cimport (
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_MOD, MSG_DONTWAIT, MSG_NOSIGNAL,
    RLIMIT_NOFILE, SHUT_WR, SOCK_CLOEXEC, SOCK_NONBLOCK, accept4, c_close, c_read, c_send,
    epoll_ctl, epoll_event, epoll_wait, getrlimit, rlimit, shutdown,
)
from snailps.transport._socket_io cimport (
    SOCKET_BUSY, SOCKET_GONE, Looks, buffer_held, buffer_receive, buffer_reserve, buffer_send, wait_events,
)
from snailps.transport.loop._connection cimport (
    Conn, Conns, conn_flush, conn_free, conn_is_full, conn_new, conn_of, conn_put_ready, conn_read,
    conn_watch, grow, in_reserve, oldest_unknown, set_options, unknown_max,
)
from snailps.transport.loop._fault_injection cimport (
    POINT_ACKNOWLEDGED, POINT_MID_SEND, POINT_REPLAYED, die, due, passes,
)
from snailps.transport.loop._handler cimport OUTCOME_PARK, Reply
from snailps.transport.loop._replication_stream cimport (
    STREAM_BYTES_MAX, STREAM_LOST, STREAM_NONE, STREAM_SEEDING, Held, Stream, held_forget, held_put, held_take,
    order_is_there, stream_break, stream_close, stream_cool, stream_has, stream_is_seeded, stream_limit,
    stream_listen, stream_lose, stream_may_seed, stream_open, stream_probe,
    stream_take, stream_waiting,
)

cdef enum:
    EVENTS_MAX = 64
    HANDSHAKE_LIMIT_S = 10
    LINGER_S = 2                    # how long a refused peer may take to read the reason
    ACCEPTS_MAX = 64                # a round: the handshakes of a burst have their turn in between
    STREAM_TURN_BYTES = 4 << 20     # sent to the standby before connections have their turn
    ASKED_S = 1                     # after a request, seeding is paced for so long
    WAIT_BYTES = 512                # answers to pushes that may wait for the end of the next push
    ACKNOWLEDGE_BYTES = 256 << 10   # of a stream: acknowledged at least this often
    TURN_BYTES = 128 << 10          # work for a connection before the next one has its turn

cdef double TIMER_S = 0.1           # how often deadlines are checked
cdef double IDLE_S = 1              # the longest wait for events

# What a request waits for if a push before it is parked: its handler was not asked.
cdef const char *BEHIND = b"an earlier push of the same connection, which is waiting itself"


# --- parked requests ------------------------------------------------------------------------------

cdef bint _park(Parking *parking, Conn *conn, const FrameHeader *head, const char *body,
               const char *reason, double now, double limit_s) noexcept nogil:
    """Parks a copy of a request, because the input buffer goes on to the next frame; False = no memory."""
    cdef size_t size = FRAME_HEADER_BYTES + head.body_bytes
    cdef char *copy = <char *>malloc(size)
    cdef Parked *place
    if copy == NULL or not grow(<void **>&parking.items, &parking.cap, parking.count + 1,
                                sizeof(Parked)):
        free(copy)
        return False
    memcpy(copy, head, FRAME_HEADER_BYTES)
    memcpy(copy + FRAME_HEADER_BYTES, body, head.body_bytes)
    place = &parking.items[parking.count]
    parking.count += 1
    conn.parked += 1
    conn.parked_pushes += kind_keeps_order(head.kind)
    conn.parked_bytes += size
    place.conn_id = conn.id
    place.frame = copy
    place.reason = reason
    place.since = now
    place.deadline = now + limit_s
    return True


cdef void _unpark(Parked *place, Conn *conn) noexcept nogil:
    """Marks a request as done.  `_close_gaps` takes it out later: the caller is walking the array."""
    cdef FrameHeader *head = <FrameHeader *>place.frame
    conn.parked -= 1
    conn.parked_pushes -= kind_keeps_order(head.kind)
    conn.parked_bytes -= FRAME_HEADER_BYTES + head.body_bytes
    free(place.frame)
    place.frame = NULL


cdef void _close_gaps(Parking *parking) noexcept nogil:
    """Takes out requests that are done; the others keep their order."""
    cdef uint32_t i, count = 0
    for i in range(parking.count):
        if parking.items[i].frame != NULL:
            parking.items[count] = parking.items[i]
            count += 1
    parking.count = count


cdef void _park_forget(Parking *parking, Conn *conn) noexcept nogil:
    """Drops the parked requests of a connection that ends: its client sends them again on another."""
    cdef uint32_t i
    for i in range(parking.count):
        if parking.items[i].conn_id == conn.id:
            _unpark(&parking.items[i], conn)
    _close_gaps(parking)


cdef void parking_free(Parking *parking) noexcept nogil:
    cdef uint32_t i
    for i in range(parking.count):
        free(parking.items[i].frame)
    free(parking.items)
    parking.items = NULL
    parking.count = parking.cap = 0


# --- frames --------------------------------------------------------------------------------------

cdef void _end(Loop *loop, Conn *conn) noexcept nogil:
    """Flushes what is queued, then closes."""
    conn.closing = loop.limited = True
    conn.since = loop.now


# --- requests ------------------------------------------------------------------------------------

cdef void _reply_error(Loop *loop, Conn *conn, uint64_t request, const char *code,
                       const char *text) noexcept nogil:
    cdef FrameHeader *head
    cdef int n
    loop.refused += 1
    conn.urgent = True
    if not buffer_reserve(&conn.out, FRAME_HEADER_BYTES + 1024):
        conn.closing = True
        return
    head = <FrameHeader *>(conn.out.data + conn.out.end)
    n = snprintf(<char *>head + FRAME_HEADER_BYTES, 1024, b'{"code":"%s","text":"%s"}', code, text)
    n = min(n, 1023)
    fill_head(head, KIND_ERROR, request, n)
    conn.out.end += FRAME_HEADER_BYTES + n


cdef bint _attempt(Loop *loop, Conn *conn, const FrameHeader *asked, const char *body,
                   Reply *reply) noexcept nogil:
    """Has the handler write its reply straight into the output; False: the request has to wait."""
    cdef char *out = conn.out.data + conn.out.end
    reply.body_bytes = 0
    reply.kind = KIND_ERROR
    reply.last = False
    reply.wake = False
    reply.reason = b""
    reply.limit_s = 0
    reply.hold = 0
    if loop.handler.handle(loop.handler.context, &conn.memory, asked, body,
                           out + FRAME_HEADER_BYTES, reply) == OUTCOME_PARK:
        return False
    loop.retry_parked |= reply.wake
    if reply.hold:
        if held_put(&loop.stream, conn.id, asked.request, reply.kind, reply.hold):
            conn.unanswered += 1
        else:
            # No memory.  The push is applied and its reply is lost, so the connection ends: the client sends the
            # push again on another one, and the shard recognises it by its number.
            _end(loop, conn)
        return True
    fill_head(<FrameHeader *>out, reply.kind, asked.request, reply.body_bytes)
    if reply.kind == KIND_ERROR:
        loop.refused += 1
    if reply.last:
        _end(loop, conn)
    conn.urgent |= reply.kind != KIND_PUSHED and reply.kind != KIND_STEPPED
    conn.out.end += FRAME_HEADER_BYTES + reply.body_bytes
    return True


cdef void _handle(Loop *loop, Conn *conn, const FrameHeader *head,
                  const char *body) noexcept nogil:
    """Answers or parks one data frame of an open connection."""
    cdef Reply reply
    loop.asked_at = loop.now
    if head.job != conn.job:
        _reply_error(loop, conn, head.request, b"job", b"request of another cluster")
        return
    if not buffer_reserve(&conn.out, FRAME_HEADER_BYTES + DATA_BODY_MAX):
        _reply_error(loop, conn, head.request, b"memory", b"server is out of memory")
        return
    reply.reason = BEHIND
    reply.limit_s = 0
    # A pull waits, too: it has to see the pushes that its client sent before it.
    if conn.parked_pushes == 0 and _attempt(loop, conn, head, body, &reply):
        return
    if not _park(&loop.parking, conn, head, body, reply.reason, loop.now,
                max(reply.limit_s, loop.park_limit_s)):
        _reply_error(loop, conn, head.request, b"memory", b"server is out of memory")


# --- a primary's stream, at its standby ----------------------------------------------------------

cdef bint _replay(Loop *loop, Conn *conn, const FrameHeader *head) noexcept nogil:
    """Executes a frame of a primary's stream; False: it has to wait, or the connection ends.

    A standby executes what its primary executed, in that order, or nothing: a frame that is missing or
    refused ends the stream, and the master gives up this copy.
    """
    cdef Reply reply
    reply.kind = KIND_REPLICATED
    reply.body_bytes = 0
    reply.reason = b""
    reply.wake = False
    if head.request != conn.replayed + 1:
        _reply_error(loop, conn, 0, b"stream", b"frames of the stream are missing")
        _end(loop, conn)
        return False
    if not buffer_reserve(&conn.out, 2 * FRAME_HEADER_BYTES + HANDSHAKE_BODY_MAX):
        _end(loop, conn)
        return False
    if loop.handler.replay(loop.handler.context, head, <const char *>head + FRAME_HEADER_BYTES,
                           conn.out.data + conn.out.end + FRAME_HEADER_BYTES, &reply) == OUTCOME_PARK:
        if not conn.stuck:
            conn.since = loop.now
        conn.stuck = loop.limited = True
        conn.stuck_why = reply.reason
        if loop.now - conn.since <= loop.stuck_limit_s:
            return False
        _reply_error(loop, conn, 0, b"timeout", reply.reason)
        _end(loop, conn)
        return False
    conn.stuck = False
    loop.retry_parked |= reply.wake
    if reply.kind == KIND_ERROR:
        loop.refused += 1
        fill_head(<FrameHeader *>(conn.out.data + conn.out.end), KIND_ERROR, 0, reply.body_bytes)
        conn.out.end += FRAME_HEADER_BYTES + reply.body_bytes
        _end(loop, conn)
        return False
    conn.replayed += 1
    conn.replayed_bytes += FRAME_HEADER_BYTES + head.body_bytes
    return True


cdef void _acknowledge(Loop *loop, Conn *conn) noexcept nogil:
    """Reports how far the stream is executed, once for all frames of a turn."""
    passes(&loop.faults, POINT_REPLAYED)
    if not buffer_reserve(&conn.out, FRAME_HEADER_BYTES + 8):
        conn.closing = True
        return
    fill_head(<FrameHeader *>(conn.out.data + conn.out.end), KIND_REPLICATED, conn.replayed, 8)
    memcpy(conn.out.data + conn.out.end + FRAME_HEADER_BYTES, &conn.replayed_bytes, 8)
    conn.out.end += FRAME_HEADER_BYTES + 8
    conn.acknowledged = conn.replayed
    conn.acknowledged_bytes = conn.replayed_bytes
    conn.urgent = True


# --- turns ---------------------------------------------------------------------------------------

cdef bint _header_is_good(const FrameHeader *head, bint opened, bint stream) noexcept nogil:
    if not head_is_known(head) or head.flags:
        return False
    if not opened:
        return head.body_bytes <= HANDSHAKE_BODY_MAX and head.kind < 16
    if head.body_bytes & 7:             # keys must stay aligned in the buffer
        return False
    if stream:
        return head.body_bytes <= STREAM_BODY_MAX \
            and (head.kind == KIND_PUSH or head.kind == KIND_SEAL or head.kind == KIND_REPLICATE
                 or head.kind == KIND_HEARTBEAT)
    return head.body_bytes <= DATA_BODY_MAX \
        and (head.kind == KIND_PULL or head.kind == KIND_SCAN or head.kind == KIND_HEARTBEAT
             or head.kind == KIND_REACH or kind_keeps_order(head.kind))


cdef int _serve(Loop *loop, Conn *conn) noexcept nogil:
    """Handles complete frames in the input buffer, for one turn; -1 = the caller has to close it."""
    cdef FrameHeader *head
    cdef size_t held, frame_bytes
    cdef size_t worked = 0
    conn.waits = False
    while not conn.closing:
        held = buffer_held(&conn.inp)
        head = <FrameHeader *>(conn.inp.data + conn.inp.start)
        if held < FRAME_HEADER_BYTES:
            if held >= 4 and head.magic != FRAME_MAGIC:
                loop.reception.refuse(loop.reception.self, conn.id, <const char *>head, held)
            elif not in_reserve(conn, FRAME_HEADER_BYTES):
                return -1
            break
        if not _header_is_good(head, conn.opened, conn.stream):
            loop.reception.refuse(loop.reception.self, conn.id, <const char *>head,
                                  FRAME_HEADER_BYTES)
            break
        frame_bytes = FRAME_HEADER_BYTES + head.body_bytes
        if held < frame_bytes:
            conn.waits = head.kind == KIND_PUSH or head.kind == KIND_BACKWARD
            if not in_reserve(conn, frame_bytes):   # which may move the bytes: `head` is not valid after it
                return -1
            break
        if conn_is_full(conn):
            if conn_flush(&loop.conns, conn) < 0:
                return -1
            if conn_is_full(conn):
                conn.held = True            # back-pressure: the peer has to read its replies first
                break
        if worked > TURN_BYTES:
            if not conn_put_ready(&loop.conns, conn):
                return -1
            break
        if conn.stream and head.kind != KIND_HEARTBEAT:
            if not _replay(loop, conn, head):
                break
            loop.asked_at = loop.now        # this standby's own standby is seeded at the same pace
            loop.frames_in += 1
            conn.inp.start += frame_bytes
            worked += frame_bytes
            continue
        loop.frames_in += 1
        conn.inp.start += frame_bytes
        if not conn.opened:
            loop.reception.greet(loop.reception.self, conn.id, <const char *>head, frame_bytes)
            if conn.opened and conn.inp.start & 7:
                memmove(conn.inp.data, conn.inp.data + conn.inp.start, buffer_held(&conn.inp))
                conn.inp.end -= conn.inp.start
                conn.inp.start = 0
        elif head.kind != KIND_HEARTBEAT:
            held = conn.out.end
            _handle(loop, conn, head, <const char *>head + FRAME_HEADER_BYTES)
            worked += frame_bytes + (conn.out.end - held if conn.out.end > held else 0)
            if buffer_held(&conn.out) >= PART_BYTES \
                    and conn_flush(&loop.conns, conn) < 0:
                return -1
    # If part of another frame is here, its acknowledgement will cover these frames, too.
    if conn.replayed > conn.acknowledged and not conn.closing and (
            buffer_held(&conn.inp) == 0 or conn.stuck
            or conn.replayed_bytes - conn.acknowledged_bytes > ACKNOWLEDGE_BYTES):
        _acknowledge(loop, conn)
    # The rest of that push comes in any case.  Replies to earlier pushes wait for its reply: the client is woken
    # once for all of them.
    conn.waits &= conn.opened and not conn.urgent \
        and buffer_held(&conn.out) <= WAIT_BYTES
    if not conn.waits and conn_flush(&loop.conns, conn) < 0:
        return -1
    if conn.closing:
        # Closing at once, with unread input, would reset the connection, and the peer would not get the ERROR that
        # says why.  So: send all, shut down this direction, and close when the peer does, or LINGER_S later.
        loop.limited = True
        conn.inp.start = conn.inp.end = 0
        if buffer_held(&conn.out) == 0 and not conn.shut:
            conn.shut = True
            conn.since = loop.now
            shutdown(conn.fd, SHUT_WR)
    return 0 if conn_watch(&loop.conns, conn) else -1


# --- what waited ---------------------------------------------------------------------------------

cdef bint _retry(Loop *loop, Conn *conn, Parked *place) noexcept nogil:
    """Tries a parked request again; False = it stays parked."""
    cdef FrameHeader *head = <FrameHeader *>place.frame
    cdef Reply reply
    cdef char text[256]
    reply.reason = BEHIND
    reply.limit_s = 0
    if buffer_held(&conn.out) > DATA_BODY_MAX:
        conn.starved = True             # tried again as soon as the peer has read some replies
        place.reason = b"the client, which does not read the replies that it has"
    elif buffer_reserve(&conn.out, FRAME_HEADER_BYTES + DATA_BODY_MAX):
        if not conn.blocked \
                and _attempt(loop, conn, head, place.frame + FRAME_HEADER_BYTES, &reply):
            return True
        place.reason = reply.reason
        place.deadline = max(place.deadline, place.since + reply.limit_s)
    if loop.now <= place.deadline:
        return False
    snprintf(text, sizeof(text), b"waited %.1f s at the shard for %s",
             loop.now - place.since, place.reason)
    _reply_error(loop, conn, head.request, b"timeout", text)
    return True


cdef void _retry_parked(Loop *loop) noexcept nogil:
    """Tries every parked request again, oldest first; a request past its deadline is refused.

    All of them, whatever came: what a request waits for (a route, a clock, the standby) is known to the
    handler alone, which looks at it anew.

    `Conn.blocked` is set for the rest of the walk when a push of the connection stays parked: nothing of
    that connection may overtake it.
    """
    cdef uint32_t i
    cdef Conn *conn
    cdef Parked *place
    for i in range(loop.parking.count):
        conn = conn_of(&loop.conns, loop.parking.items[i].conn_id)
        conn.blocked = False
    for i in range(loop.parking.count):
        place = &loop.parking.items[i]
        conn = conn_of(&loop.conns, place.conn_id)
        if conn.lost or conn.closing:
            continue
        if not _retry(loop, conn, place):
            conn.blocked |= kind_keeps_order((<FrameHeader *>place.frame).kind)
            continue
        _unpark(place, conn)
        conn.waits = False              # its client has waited long enough: the reply goes out now
        if conn_flush(&loop.conns, conn) < 0 or not conn_watch(&loop.conns, conn):
            conn.lost = loop.lost = True
    _close_gaps(&loop.parking)


cdef void _release_held(Loop *loop) noexcept nogil:
    """Sends replies whose frames the standby has acknowledged, and wakes requests that waited for it.

    All replies are written first, and each connection is flushed once afterwards.
    """
    cdef Stream *s = &loop.stream
    cdef Held first
    cdef Conn *conn
    cdef uint32_t i
    if s.wanted and stream_has(s, s.wanted):
        s.wanted = 0
        loop.retry_parked = True
    if s.awaited and order_is_there(s, s.awaited):
        loop.obeyed(loop.self)
    loop.released_num = 0
    while held_take(s, &first):
        conn = conn_of(&loop.conns, first.conn_id)
        if conn == NULL or conn.shut:
            continue
        conn.unanswered -= 1
        if not buffer_reserve(&conn.out, FRAME_HEADER_BYTES) \
                or not grow(<void **>&loop.released, &loop.released_cap, loop.released_num + 1, 8):
            conn.lost = loop.lost = True
            continue
        fill_head(<FrameHeader *>(conn.out.data + conn.out.end), first.kind, first.request, 0)
        conn.out.end += FRAME_HEADER_BYTES
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
            conn.lost = loop.lost = True
    if loop.released_num:
        passes(&loop.faults, POINT_ACKNOWLEDGED)


# --- connections that come and go ----------------------------------------------------------------

cdef void _drain(Loop *loop, Conn *conn) noexcept nogil:
    """Executes all that has arrived of a primary's stream before its connection is closed.

    Nothing of it will be sent again.  Without `sync` clients may have their replies to these pushes: a
    standby that is promoted must not lack them.
    """
    cdef uint64_t bytes_before = 0
    cdef size_t held_before = 0
    cdef bint more = conn.opened
    conn.out.start = conn.out.end = 0
    conn.acknowledged = <uint64_t>-1            # the primary may be gone: no acknowledgements are written
    while more and not conn.closing and not conn.stuck:
        bytes_before = loop.conns.bytes_in
        held_before = buffer_held(&conn.inp)
        conn_read(&loop.conns, conn)
        if _serve(loop, conn) < 0:
            return
        more = loop.conns.bytes_in != bytes_before or buffer_held(&conn.inp) != held_before


cdef void close_conn(Loop *loop, Conn *conn) noexcept nogil:
    if conn.stream and not loop.stop:
        _drain(loop, conn)
    if conn.parked:
        _park_forget(&loop.parking, conn)
    if not conn.opened:
        loop.reception.forget(loop.reception.self, conn.id)
    if conn.unanswered:
        held_forget(&loop.stream, conn.id)
    if conn.id == loop.follows and conn.replayed == 0:
        loop.follows = 0            # nothing was executed: another primary may begin a stream
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
    """Accepts a connection; -1 = none is waiting, or the process has no descriptor left."""
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
            # Without a free descriptor accept fails even when no connection waits.  The first call of a round has
            # a connection waiting, since epoll reported it: the oldest unauthenticated peer has to go for it.
            if i == 0 and not loop.relayed and errno != EAGAIN and errno != EINTR:
                if (errno == EMFILE or errno == ENFILE) and loop.conns.unknown:
                    _make_room(loop)
                    continue
                # Epoll would report the waiting connection in every round: the next `_timers` listens again.
                _listen(loop, False)
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
    _release_held(loop)
    loop.retry_parked = True


cdef bint _send_stream(Loop *loop) noexcept nogil:
    """Sends frames until the socket is full or the turn is over; True = the socket is full."""
    cdef Stream *s = &loop.stream
    cdef ssize_t sent
    cdef uint64_t turn = 0
    while stream_waiting(s) and turn < STREAM_TURN_BYTES:
        if due(&loop.faults, POINT_MID_SEND):
            c_send(loop.stream_fd, s.out.data + s.out.start, stream_waiting(s) // 2 + 1,
                   MSG_NOSIGNAL | MSG_DONTWAIT)
            die()
        sent = buffer_send(&s.out, loop.stream_fd, &turn)
        if sent == SOCKET_GONE:
            s.out.start = s.out.end     # not broken yet: the standby's ERROR may still be unread
        if sent == SOCKET_GONE or sent == SOCKET_BUSY:
            return True
    return False


cdef void _read_stream(Loop *loop) noexcept nogil:
    """Takes acknowledgements; a closed connection or anything else breaks the stream."""
    cdef Stream *s = &loop.stream
    cdef uint64_t moved = 0
    if not stream_listen(s):
        return
    if buffer_receive(&s.inp, loop.stream_fd, s.inp.cap, &moved) == SOCKET_GONE:
        stream_break(s, b"the connection to the standby was closed")
    elif moved:
        stream_take(s, loop.now)


cdef void _turn_stream(Loop *loop) noexcept nogil:
    """Sends the frames of this round, and more rows that a new standby lacks; reports a lost standby.

    Once a round, after all connections: pushes of one round travel to the standby together.
    """
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
        stream_cool(s)
        if stream_waiting(s) and not blocked:
            loop.seeding = True             # the turn is over, and there is more to send
        if blocked != s.blocked:
            s.blocked = blocked
            event.events = EPOLLIN | (EPOLLOUT if blocked else 0)
            event.data.u64 = ID_STREAM
            epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_MOD, loop.stream_fd, &event)
        if s.parks and not s.hurried and stream_waiting(s) < STREAM_BYTES_MAX // 2:
            s.parks = False
            loop.retry_parked = True
        if stream_is_seeded(s):
            loop.report(loop.self, b"ready", b"")
    if stream_lose(s):
        close_stream(loop)
        if not s.holding:
            _release_held(loop)
        loop.retry_parked = True
        loop.report(loop.self, b"lost", s.why)


# --- rounds --------------------------------------------------------------------------------------

cdef void _timers(Loop *loop) noexcept nogil:
    cdef uint32_t i
    cdef Conn *conn
    loop.limited = False
    for i in range(loop.conns.count):
        conn = loop.conns.slots[i]
        if conn == NULL:
            continue
        loop.limited |= conn.closing or conn.stuck
        if conn.closing and loop.now - conn.since > LINGER_S:
            close_conn(loop, conn)
        elif not conn.opened and loop.now - conn.since > HANDSHAKE_LIMIT_S:
            loop.reception.refused(loop.reception.self, conn.id, b"no handshake within 10 s")
            close_conn(loop, conn)
        elif conn.stuck and not conn_put_ready(&loop.conns, conn):
            close_conn(loop, conn)
    if loop.stream_fd >= 0:
        stream_limit(&loop.stream, loop.silence_limit_s, loop.now)
    if loop.parking.count:
        _retry_parked(loop)
    if not loop.listening:
        _listen(loop, True)
    if loop.unreported:
        loop.reception.sum_up(loop.reception.self)


cdef void _event(Loop *loop, uint64_t token, uint32_t events) noexcept nogil:
    cdef Conn *conn
    if token == ID_LISTENER:
        _accept_some(loop)
    elif token == ID_WAKE:
        c_read(loop.wake_fd, &token, sizeof(token))
        loop.commands(loop.self)
        # A command, such as the end of a clock, may free parked requests: they go before later requests.
        if loop.retry_parked:
            loop.retry_parked = False
            _retry_parked(loop)
        _close_lost(loop)
    elif token == ID_STREAM:
        if loop.stream_fd >= 0:
            _read_stream(loop)
            _release_held(loop)
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
                or (not conn.in_ready and _serve(loop, conn) < 0):
            close_conn(loop, conn)


cdef void _turns(Loop *loop) noexcept nogil:
    """Gives each connection with work left a turn; whatever is left then waits for the next round."""
    cdef Conns *conns = &loop.conns
    cdef uint32_t i
    cdef uint32_t turns = conns.ready_count
    cdef Conn *conn
    for i in range(turns):
        conn = conn_of(conns, conns.ready[i])
        if conn != NULL:
            conn.in_ready = False
            if _serve(loop, conn) < 0:
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
        _retry_parked(loop)
    if loop.stream_fd >= 0:
        _turn_stream(loop)
    if loop.now - loop.timers_at > TIMER_S:
        loop.timers_at = loop.now
        _timers(loop)
    _close_lost(loop)


cdef double _due(const Loop *loop) noexcept nogil:
    """Returns when the next round is due if nothing comes."""
    cdef const Stream *s = &loop.stream
    cdef double due = INFINITY
    if loop.conns.ready_count or loop.retry_parked or loop.seeding:
        return loop.now
    if loop.limited or loop.conns.unknown or loop.parking.count or loop.unreported or not loop.listening \
            or (loop.stream_fd >= 0 and (s.sent > s.acked or s.state == STREAM_SEEDING)):
        due = loop.timers_at + TIMER_S + 1e-6       # the rounding error of such sums is smaller
    if s.state == STREAM_SEEDING and s.rest_until > loop.now:
        due = min(due, s.rest_until)
    return due


cdef void run_loop(Loop *loop) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef double wait_s = 0
    cdef int n
    cdef Looks looks = Looks(0, 0)
    while not loop.stop:
        n = wait_events(loop.conns.epoll_fd, events, EVENTS_MAX, <int>ceil(1e3 * wait_s), &looks)
        loop.now = now_s()
        _round(loop, events, n)
        wait_s = min(max(_due(loop) - loop.now, 0.0), IDLE_S)


cdef double turn_loop(Loop *loop, double now) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n = epoll_wait(loop.conns.epoll_fd, events, EVENTS_MAX, 0)
    loop.now = now
    _round(loop, events, n)
    if loop.stop:
        return INFINITY
    return now if n else _due(loop)
