# cython: cdivision=True
# A connection's turn: frames in its input are answered, parked, replayed or refused.
#
#   input buffer -> frame, checked in place -> Handler.handle -> output buffer, or parked
#                                           -> Handler.replay -> acknowledged, of a primary's stream
#
# It owns no connection: one that has to end is told to (`closing`), or to the caller (-1).  It knows
# the frame header and nothing of tables, keys or rows.
from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memmove

from snailps.transport._frame cimport *
from snailps.transport._posix cimport *
from snailps.transport.loop._connection cimport *
from snailps.transport.loop._fault_injection cimport POINT_REPLAYED, passes
from snailps.transport.loop._handler cimport OUTCOME_PARK, Reply
from snailps.transport.loop._loop_state cimport Loop
from snailps.transport.loop._parked_requests cimport park
from snailps.transport.loop._replication_stream cimport held_put

cdef enum:
    WAIT_BYTES = 512                # answers to pushes that may wait for the end of the next one
    ACKNOWLEDGE_BYTES = 256 << 10   # of a stream: more is never done without saying so
    TURN_BYTES = 128 << 10          # work a connection may do before the next has its turn


cdef inline const char *behind() noexcept nogil:
    """What a request waits for whose handler was not asked."""
    return b"an earlier push of the same connection, which itself waits"


# --- requests ------------------------------------------------------------------------------------

cdef inline void reply_error(Loop *loop, Conn *conn, uint64_t request, const char *code,
                       const char *text) noexcept nogil:
    cdef FrameHeader *head
    cdef int n
    loop.refused += 1
    conn.urgent = True
    if not out_reserve(conn, FRAME_HEADER_BYTES + 1024):
        conn.closing = True
        return
    head = <FrameHeader *>(conn.out + conn.out_end)
    n = snprintf(<char *>head + FRAME_HEADER_BYTES, 1024, b'{"code":"%s","text":"%s"}', code, text)
    n = min(n, 1023)
    fill_head(head, KIND_ERROR, request, n)
    conn.out_end += FRAME_HEADER_BYTES + n


cdef inline bint attempt(Loop *loop, Conn *conn, const FrameHeader *asked, const char *body,
                   Reply *reply) noexcept nogil:
    """Lets the handler write straight into the output; False when the request has to wait."""
    cdef char *out = conn.out + conn.out_end
    reply.body_bytes = 0
    reply.kind = KIND_ERROR
    reply.unkept = False
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
        if held_put(&loop.stream, conn.id, asked.request, reply.kind, reply.unkept, reply.hold):
            conn.owed += 1
        else:
            conn.closing = True         # no memory: the client asks again on another connection
            conn.since = now_s()
        return True
    fill_head(<FrameHeader *>out, reply.kind, asked.request, reply.body_bytes)
    if reply.unkept:
        (<FrameHeader *>out).table = LIST_UNKEPT
    if reply.kind == KIND_ERROR:
        loop.refused += 1
    if reply.last:
        conn.closing = True
        conn.since = now_s()
    conn.urgent |= reply.kind != KIND_PUSHED and reply.kind != KIND_STEPPED
    conn.out_end += FRAME_HEADER_BYTES + reply.body_bytes
    return True


cdef inline void _handle(Loop *loop, Conn *conn, const FrameHeader *head, const char *body,
                  double now) noexcept nogil:
    """Answers or parks one data frame of an open connection."""
    cdef Reply reply
    loop.asked_at = now
    if head.job != conn.job:
        reply_error(loop, conn, head.request, b"job", b"request of another cluster")
        return
    if not out_reserve(conn, FRAME_HEADER_BYTES + DATA_BODY_MAX):
        reply_error(loop, conn, head.request, b"memory", b"server is out of memory")
        return
    reply.reason = behind()
    reply.limit_s = 0
    if conn.parked_pushes == 0 and attempt(loop, conn, head, body, &reply):
        return
    if not park(&loop.parking, conn, head, body, reply.reason, now,
                max(reply.limit_s, loop.park_limit_s)):
        reply_error(loop, conn, head.request, b"memory", b"server is out of memory")


# --- a primary's stream, at its standby ----------------------------------------------------------

cdef inline bint _replay(Loop *loop, Conn *conn, const FrameHeader *head,
                  double now) noexcept nogil:
    """Does what a frame of the stream says; False = not now, or never: the connection ends then."""
    cdef Reply reply
    reply.kind = KIND_REPLICATED
    reply.reason = b""
    reply.wake = False
    if head.request != conn.replayed + 1:
        reply_error(loop, conn, 0, b"stream", b"frames of the stream are missing")
        conn.closing = True
        conn.since = now
        return False
    if not out_reserve(conn, 2 * FRAME_HEADER_BYTES + HANDSHAKE_BODY_MAX):
        conn.closing = True
        conn.since = now
        return False
    if loop.handler.replay(loop.handler.context, head, <const char *>head + FRAME_HEADER_BYTES,
                           conn.out + conn.out_end + FRAME_HEADER_BYTES, &reply) == OUTCOME_PARK:
        if not conn.stuck:
            conn.since = now
        conn.stuck = True
        conn.stuck_why = reply.reason
        if now - conn.since <= loop.stuck_limit_s:
            return False
        reply_error(loop, conn, 0, b"timeout", reply.reason)
        conn.closing = True
        conn.since = now
        return False
    conn.stuck = False
    loop.retry_parked |= reply.wake
    if reply.kind == KIND_ERROR:
        loop.refused += 1
        fill_head(<FrameHeader *>(conn.out + conn.out_end), KIND_ERROR, 0, reply.body_bytes)
        conn.out_end += FRAME_HEADER_BYTES + reply.body_bytes
        conn.closing = True
        conn.since = now
        return False
    conn.replayed += 1
    conn.replayed_bytes += FRAME_HEADER_BYTES + head.body_bytes
    return True


cdef inline void _acknowledge(Loop *loop, Conn *conn) noexcept nogil:
    """Says how far the stream is done: once for all that came in one turn."""
    passes(&loop.faults, POINT_REPLAYED)
    if not out_reserve(conn, FRAME_HEADER_BYTES + 8):
        conn.closing = True
        return
    fill_head(<FrameHeader *>(conn.out + conn.out_end), KIND_REPLICATED, conn.replayed, 8)
    memcpy(conn.out + conn.out_end + FRAME_HEADER_BYTES, &conn.replayed_bytes, 8)
    conn.out_end += FRAME_HEADER_BYTES + 8
    conn.acknowledged = conn.replayed
    conn.acknowledged_bytes = conn.replayed_bytes
    conn.urgent = True


# --- turns ---------------------------------------------------------------------------------------

cdef inline bint _header_is_good(const FrameHeader *head, bint opened, bint stream) noexcept nogil:
    cdef uint64_t limit = DATA_BODY_MAX if opened else HANDSHAKE_BODY_MAX
    if stream:
        return head.magic == FRAME_MAGIC and head.version == FRAME_VERSION and head.flags == 0 \
            and head.body_bytes <= STREAM_BODY_MAX and head.body_bytes & 7 == 0 \
            and (head.kind == KIND_PUSH or head.kind == KIND_SEAL or head.kind == KIND_REPLICATE
                 or head.kind == KIND_HEARTBEAT)
    if head.magic != FRAME_MAGIC or head.version != FRAME_VERSION or head.flags \
            or head.body_bytes > limit:
        return False
    if opened:
        if head.body_bytes & 7:             # keys must stay aligned in the buffer
            return False
        return head.kind == KIND_PULL or head.kind == KIND_SCAN or head.kind == KIND_HEARTBEAT \
            or head.kind == KIND_REACH or kind_keeps_order(head.kind)
    return head.kind < 16


cdef inline int serve(Loop *loop, Conn *conn, double now) noexcept nogil:
    """Handles complete frames in the input buffer, for one turn; -1 = connection to be closed."""
    cdef FrameHeader *head
    cdef size_t held, frame_bytes
    cdef size_t worked = 0
    conn.waits = False
    while not conn.closing:
        held = conn.in_end - conn.in_start
        head = <FrameHeader *>(conn.inp + conn.in_start)
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
            if not _replay(loop, conn, head, now):
                break
            loop.asked_at = now             # so a standby's own standby is filled at the same pace
            loop.frames_in += 1
            conn.in_start += frame_bytes
            worked += frame_bytes
            continue
        loop.frames_in += 1
        conn.in_start += frame_bytes
        if not conn.opened:
            loop.reception.greet(loop.reception.self, conn.id, <const char *>head, frame_bytes)
            if conn.opened and conn.in_start & 7:
                memmove(conn.inp, conn.inp + conn.in_start, conn.in_end - conn.in_start)
                conn.in_end -= conn.in_start
                conn.in_start = 0
        elif head.kind != KIND_HEARTBEAT:
            held = conn.out_end
            _handle(loop, conn, head, <const char *>head + FRAME_HEADER_BYTES, now)
            worked += frame_bytes + (conn.out_end - held if conn.out_end > held else 0)
            if conn.out_end - conn.out_start >= PART_BYTES \
                    and conn_flush(&loop.conns, conn) < 0:
                return -1
    # While the rest of a frame is on its way, one acknowledgement can serve for that, too.
    if conn.replayed > conn.acknowledged and not conn.closing and (
            conn.in_end == conn.in_start or conn.stuck
            or conn.replayed_bytes - conn.acknowledged_bytes > ACKNOWLEDGE_BYTES):
        _acknowledge(loop, conn)
    # The rest of that push comes whatever we say, so its sender is woken once for both replies.
    conn.waits &= conn.opened and not conn.urgent \
        and conn.out_end - conn.out_start <= WAIT_BYTES
    if not conn.waits and conn_flush(&loop.conns, conn) < 0:
        return -1
    if conn.closing:
        # Closing at once would reset the connection and destroy the words that say why.
        conn.in_start = conn.in_end = 0
        if conn.out_end == conn.out_start and not conn.shut:
            conn.shut = True
            conn.since = now
            shutdown(conn.fd, SHUT_WR)
    return 0 if conn_watch(&loop.conns, conn) else -1
