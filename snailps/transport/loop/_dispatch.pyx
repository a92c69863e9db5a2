# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What becomes of frames: see _dispatch.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memmove

from snailps.transport._frame cimport (
    DATA_BODY_MAX, FRAME_HEADER_BYTES, FRAME_MAGIC, HANDSHAKE_BODY_MAX, KIND_BACKWARD,
    KIND_ERROR, KIND_HEARTBEAT, KIND_PULL, KIND_PUSH, KIND_PUSHED, KIND_REACH, KIND_REPLICATE,
    KIND_REPLICATED, KIND_SCAN, KIND_SEAL, KIND_STEPPED, PART_BYTES, STREAM_BODY_MAX,
    FrameHeader, fill_head, head_is_ours, kind_keeps_order,
)
from snailps.transport._posix cimport SHUT_WR, shutdown
from snailps.transport._socket_io cimport buffer_held, buffer_reserve
from snailps.transport.loop._connection cimport (
    Conn, conn_flush, conn_is_full, conn_of, conn_put_ready, conn_watch, grow, in_reserve,
)
from snailps.transport.loop._fault_injection cimport POINT_ACKNOWLEDGED, POINT_REPLAYED, passes
from snailps.transport.loop._handler cimport OUTCOME_PARK, Reply
from snailps.transport.loop._loop_state cimport Loop
from snailps.transport.loop._parked_requests cimport Parked, close_gaps, park, unpark
from snailps.transport.loop._replication_stream cimport (
    Held, Stream, held_put, held_take, order_is_there, stream_has,
)

cdef enum:
    WAIT_BYTES = 512                # answers to pushes that may wait for the end of the next one
    ACKNOWLEDGE_BYTES = 256 << 10   # of a stream: more is never done without saying so
    TURN_BYTES = 128 << 10          # work a connection may do before the next has its turn

# What a request waits for whose handler was not asked.
cdef const char *BEHIND = b"an earlier push of the same connection, which itself waits"


cdef void _end(Loop *loop, Conn *conn) noexcept nogil:
    """The connection says what it has to say, and no more."""
    conn.closing = True
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
    """Lets the handler write straight into the output; False when the request has to wait."""
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
            conn.owed += 1
        else:
            _end(loop, conn)                # no memory: the client asks again on another connection
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
    if conn.parked_pushes == 0 and _attempt(loop, conn, head, body, &reply):
        return
    if not park(&loop.parking, conn, head, body, reply.reason, loop.now,
                max(reply.limit_s, loop.park_limit_s)):
        _reply_error(loop, conn, head.request, b"memory", b"server is out of memory")


# --- a primary's stream, at its standby ----------------------------------------------------------

cdef bint _replay(Loop *loop, Conn *conn, const FrameHeader *head) noexcept nogil:
    """Does what a frame of the stream says; False = not now, or never: the connection ends then."""
    cdef Reply reply
    reply.kind = KIND_REPLICATED
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
        conn.stuck = True
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
    """Says how far the stream is done: once for all that came in one turn."""
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
    if not head_is_ours(head) or head.flags:
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


cdef int serve(Loop *loop, Conn *conn) noexcept nogil:
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
            if not in_reserve(conn, frame_bytes):   # the header lies elsewhere then
                return -1
            break
        if conn_is_full(conn):
            if conn_flush(&loop.conns, conn) < 0:
                return -1
            if conn_is_full(conn):
                conn.held = True            # back-pressure: the peer has to read first
                break
        if worked > TURN_BYTES:
            if not conn_put_ready(&loop.conns, conn):
                return -1
            break
        if conn.stream and head.kind != KIND_HEARTBEAT:
            if not _replay(loop, conn, head):
                break
            loop.asked_at = loop.now        # so a standby's own standby is filled at the same pace
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
    # While the rest of a frame is on its way, one acknowledgement can serve for that, too.
    if conn.replayed > conn.acknowledged and not conn.closing and (
            buffer_held(&conn.inp) == 0 or conn.stuck
            or conn.replayed_bytes - conn.acknowledged_bytes > ACKNOWLEDGE_BYTES):
        _acknowledge(loop, conn)
    # The rest of that push comes whatever we say, so its sender is woken once for both replies.
    conn.waits &= conn.opened and not conn.urgent \
        and buffer_held(&conn.out) <= WAIT_BYTES
    if not conn.waits and conn_flush(&loop.conns, conn) < 0:
        return -1
    if conn.closing:
        # Closing at once would reset the connection and destroy the words that say why.
        conn.inp.start = conn.inp.end = 0
        if buffer_held(&conn.out) == 0 and not conn.shut:
            conn.shut = True
            conn.since = loop.now
            shutdown(conn.fd, SHUT_WR)
    return 0 if conn_watch(&loop.conns, conn) else -1


# --- what waited ---------------------------------------------------------------------------------

cdef bint _retry(Loop *loop, Conn *conn, Parked *place) noexcept nogil:
    """Tries one parked request again; False = it goes on waiting."""
    cdef FrameHeader *head = <FrameHeader *>place.frame
    cdef Reply reply
    cdef char text[256]
    reply.reason = BEHIND
    reply.limit_s = 0
    if buffer_held(&conn.out) > DATA_BODY_MAX:
        conn.starved = True             # once more as soon as the peer has taken some
        place.reason = b"the asker, who does not read the answers that it has"
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


cdef void retry_parked(Loop *loop) noexcept nogil:
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
            # What waits behind a push stays behind it, wherever the push's own reason has gone.
            conn.blocked |= kind_keeps_order((<FrameHeader *>place.frame).kind)
            continue
        unpark(place, conn)
        conn.waits = False              # what was parked is answered at once
        if conn_flush(&loop.conns, conn) < 0 or not conn_watch(&loop.conns, conn):
            conn.lost = loop.lost = True
    close_gaps(&loop.parking)


cdef void release_held(Loop *loop) noexcept nogil:
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
        conn.owed -= 1
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
