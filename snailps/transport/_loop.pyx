# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shard's event loop: one thread, one listening socket, any number of connections.

    socket -> input buffer -> frame, checked in place -> Handler.handle -> output buffer -> socket

It owns connections (`_conn.pxd`), parked requests (`_parked.pxd`) and their turns.  It knows the
frame header and nothing of tables, keys or rows: data frames go to a C function (`_loop.pxd`),
handshake frames to a `ServerSession` with the GIL held; a stream to a standby is `_stream.pxd`.  Everything else runs without the GIL and,
once buffers have grown to the size of the traffic, without allocating.

Rules that keep it fair and bounded
-----------------------------------
* A connection gets `TURN_BYTES` of work, then the next one has its turn.
* A frame is handled only while `DATA_BODY_MAX` bytes of output are free, so a reply always fits;
  a connection whose output is full is not read until its peer has taken some of it.
* A frame that cannot be answered yet is copied aside ("parked") with a reason and a deadline, and
  tried again after `wake()`, or when a handler's reply says so; the connection goes on, up to
  `PARKED_BYTES_MAX`.
* Nothing of a connection overtakes a parked push of the same connection.
* A reply that waits for the standby is a record of some bytes; nothing else of its connection waits.
"""

import logging
import os
import threading

from libc.errno cimport EAGAIN, EINTR, EMFILE, ENFILE, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from snailps.errors import ConnectionLost, ProtocolError, SnailError, WaitTimeout
from snailps.transport.attempts import LEFT, Attempts
from snailps.transport.frame import Frame, Kind, check_header, encode_frame
from snailps.transport.relay import Relay
from snailps.transport.session import Role, error_frame, remote_error
from snailps.transport.sockets import peer_of, show

from snailps.transport._conn cimport *
from snailps.transport._faults cimport (
    POINT_ACKNOWLEDGED, POINT_REPLAYED, Faults, passes,
)
from snailps.transport._frame cimport *
from snailps.transport._parked cimport Parked, Parking, close_gaps, park, parking_free, unpark
from snailps.transport._posix cimport *
from snailps.transport._stream cimport *

log = logging.getLogger(__name__)

cdef enum:
    WAIT_BYTES = 512                # answers to pushes that may wait for the end of the next one
    ACKNOWLEDGE_BYTES = 256 << 10   # of a stream: more is never done without saying so
    TURN_BYTES = 128 << 10          # work a connection may do before the next has its turn
    EVENTS_MAX = 64
    TIMER_MS = 100                  # how often deadlines are looked at
    ID_LISTENER = 1
    ID_WAKE = 2
    ID_STREAM = 3
    UNKNOWN_MAX = 512               # peers that have not proved who they are: one more, and the
                                    # oldest has to go
    ACCEPTS_MAX = 64                # at a time: those who shake hands have their turn in between

cdef double HANDSHAKE_LIMIT_S = 10.0
cdef double LINGER_S = 2.0          # how long a refused peer may take to read why
cdef const char *BEHIND = b"an earlier push of the same connection, which itself waits"
cdef const char *UNREAD = b"the asker, who does not read the answers that it has"


cdef struct Loop:
    Conns conns
    Parking parking
    Handler *handler
    double park_limit_s
    int wake_fd
    int listen_fd
    bint listening                  # off while there is no descriptor left for a new connection
    bint stop
    bint retry_parked
    Stream stream                   # to the standby of this shard
    bint seeding                    # more of what it lacks can be sent at once
    double asked_at                 # the last request of a client came
    uint64_t follows                # connection of the primary whose standby this is; 0 = none so far
    uint64_t *released              # connections that held replies were written to
    uint32_t released_num
    uint32_t released_cap
    Faults faults
    # counters, written by the loop's thread alone
    uint64_t frames_in
    uint64_t refused
    uint64_t accepted
    uint32_t unknown                # connections that are not opened
    bint relayed                    # the listener is a relay's: it is asked for connections
    bint unsaid                     # refusals are to be summed up in the log


# --- connections -----------------------------------------------------------------------------

cdef void _drain(Loop *loop, Conn *conn, void *self) noexcept nogil:
    """Takes all that has come of a primary's stream: nobody will send it again."""
    cdef uint64_t read = 0
    cdef size_t left = 0
    cdef bint more = conn.opened
    conn.out_start = conn.out_end = 0
    conn.acknowledged = <uint64_t>-1            # it may be gone: nothing more is said to it
    while more and not conn.closing and not conn.stuck:
        read = loop.conns.bytes_in
        left = conn.in_end - conn.in_start
        conn_read(&loop.conns, conn)
        if _serve(loop, conn, self, now_s()) < 0:
            return
        more = loop.conns.bytes_in != read or conn.in_end - conn.in_start != left


cdef void _close(Loop *loop, Conn *conn, void *self) noexcept nogil:
    cdef uint32_t i
    if conn.stream and not loop.stop:
        _drain(loop, conn, self)
    if conn.parked:                 # its parked requests have nobody to answer any more
        for i in range(loop.parking.count):
            if loop.parking.items[i].conn_id == conn.id:
                unpark(&loop.parking.items[i], conn)
        close_gaps(&loop.parking)
    if not conn.opened:
        loop.unknown -= 1
        _forget_session(self, conn.id)
    if conn.owed:
        held_forget(&loop.stream, conn.id)
    if conn.id == loop.follows and conn.replayed == 0:
        loop.follows = 0            # it said nothing: another may come
    loop.handler.forget(conn.memory)
    conn_free(&loop.conns, conn)


cdef void _listen(Loop *loop, bint on) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN if on else 0
    event.data.u64 = ID_LISTENER
    epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_MOD, loop.listen_fd, &event)
    loop.listening = on


cdef Conn *_welcome(Loop *loop, int fd) noexcept nogil:
    """A new connection; NULL = no memory, the socket is still the caller's."""
    cdef Conn *conn = conn_new(&loop.conns, fd)
    loop.accepted += 1
    loop.unknown += conn != NULL
    return conn


cdef void _make_room(Loop *loop, void *self) noexcept nogil:
    """Closes the oldest connection whose peer has not proved who it is."""
    cdef Conn *oldest = NULL
    cdef Conn *conn
    cdef uint32_t i
    for i in range(loop.conns.count):
        conn = loop.conns.slots[i]
        if conn != NULL and not conn.opened and (oldest == NULL or conn.since < oldest.since):
            oldest = conn
    _refused(self, oldest.id, b"made room for newer connections")
    _close(loop, oldest, self)


cdef void _accept_some(Loop *loop, void *self) noexcept nogil:
    cdef int fd, i
    for i in range(ACCEPTS_MAX):
        if loop.unknown > UNKNOWN_MAX:
            _make_room(loop, self)
        if loop.relayed:
            if not _accept_relayed(self):
                return
            continue
        fd = accept4(loop.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd < 0:
            if (errno == EMFILE or errno == ENFILE) and loop.unknown:
                _make_room(loop, self)
                continue
            # Out of descriptors: epoll would report the waiting peer for ever.  Try again later.
            if errno != EAGAIN and errno != EINTR:
                _listen(loop, False)
            return
        set_options(fd)
        if _welcome(loop, fd) == NULL:
            c_close(fd)


# --- requests --------------------------------------------------------------------------------

cdef void _reply_error(Loop *loop, Conn *conn, uint64_t request, const char *code,
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


cdef bint _attempt(Loop *loop, Conn *conn, const FrameHeader *asked, const char *body,
                   Reply *reply) noexcept nogil:
    """Lets the handler write straight into the output; False when the request has to wait."""
    cdef char *out = conn.out + conn.out_end
    reply.body_bytes = 0
    reply.kind = KIND_ERROR
    reply.packed = False
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
            conn.closing = True         # no memory: the client asks again on another connection
            conn.since = now_s()
        return True
    fill_head(<FrameHeader *>out, reply.kind, asked.request, reply.body_bytes)
    if reply.packed:
        (<FrameHeader *>out).flags = FLAG_PACKED
    if reply.kind == KIND_ERROR:
        loop.refused += 1
    if reply.last:
        conn.closing = True
        conn.since = now_s()
    conn.urgent |= reply.kind != KIND_PUSHED and reply.kind != KIND_STEPPED
    conn.out_end += FRAME_HEADER_BYTES + reply.body_bytes
    return True


cdef void _handle(Loop *loop, Conn *conn, const FrameHeader *head, const char *body,
                  double now) noexcept nogil:
    """Answers or parks one data frame of an open connection."""
    cdef Reply reply
    loop.asked_at = now
    if head.job != conn.job:
        _reply_error(loop, conn, head.request, b"job", b"request of another cluster")
        return
    if not out_reserve(conn, FRAME_HEADER_BYTES + DATA_BODY_MAX):
        _reply_error(loop, conn, head.request, b"memory", b"server is out of memory")
        return
    reply.reason = BEHIND
    reply.limit_s = 0
    if conn.parked_pushes == 0 and _attempt(loop, conn, head, body, &reply):
        return
    if not park(&loop.parking, conn, head, body, reply.reason, now,
                max(reply.limit_s, loop.park_limit_s)):
        _reply_error(loop, conn, head.request, b"memory", b"server is out of memory")


cdef bint _retry(Loop *loop, Conn *conn, Parked *place, double now) noexcept nogil:
    """Tries one parked request again; False = it goes on waiting."""
    cdef FrameHeader *head = <FrameHeader *>place.frame
    cdef Reply reply
    cdef char text[256]
    reply.reason = BEHIND
    reply.limit_s = 0
    if conn.out_end - conn.out_start > DATA_BODY_MAX:
        conn.starved = True             # once more as soon as the peer has taken some
        place.reason = UNREAD
    elif out_reserve(conn, FRAME_HEADER_BYTES + DATA_BODY_MAX):
        if not conn.blocked \
                and _attempt(loop, conn, head, place.frame + FRAME_HEADER_BYTES, &reply):
            return True
        place.reason = reply.reason
        place.deadline = max(place.deadline, place.since + reply.limit_s)
    if now <= place.deadline:
        return False
    snprintf(text, sizeof(text), b"waited %.1f s at the shard for %s",
             now - place.since, place.reason)
    _reply_error(loop, conn, head.request, b"timeout", text)
    return True


cdef void _retry_parked(Loop *loop, void *self, double now) noexcept nogil:
    """Tries every parked request again, oldest first, and gives up those past their deadline."""
    cdef uint32_t i
    cdef Conn *conn
    cdef Parked *place
    cdef bint lost = False
    for i in range(loop.parking.count):
        conn = conn_of(&loop.conns, loop.parking.items[i].conn_id)
        conn.blocked = False
    for i in range(loop.parking.count):
        place = &loop.parking.items[i]
        conn = conn_of(&loop.conns, place.conn_id)
        if conn.lost or conn.closing:
            continue
        if not _retry(loop, conn, place, now):
            # What waits behind a push stays behind it, wherever the push's own reason has gone.
            conn.blocked |= kind_keeps_order((<FrameHeader *>place.frame).kind)
            continue
        unpark(place, conn)
        conn.waits = False              # what was parked is answered at once
        if conn_flush(&loop.conns, conn) < 0 or not conn_watch(&loop.conns, conn):
            conn.lost = lost = True
    close_gaps(&loop.parking)
    if lost:
        for i in range(loop.conns.count):
            conn = loop.conns.slots[i]
            if conn != NULL and conn.lost:
                _close(loop, conn, self)


# --- input -----------------------------------------------------------------------------------

cdef bint _header_is_good(const FrameHeader *head, bint opened, bint stream) noexcept nogil:
    cdef uint64_t limit = DATA_BODY_MAX if opened else HANDSHAKE_BODY_MAX
    if stream:
        return head.magic == FRAME_MAGIC and head.version == FRAME_VERSION and head.flags == 0 \
            and head.body_bytes <= STREAM_BODY_MAX and head.body_bytes & 7 == 0 \
            and (head.kind == KIND_PUSH or head.kind == KIND_SEAL or head.kind == KIND_REPLICATE
                 or head.kind == KIND_HEARTBEAT)
    if head.magic != FRAME_MAGIC or head.version != FRAME_VERSION:
        return False
    if head.flags and (head.flags != FLAG_PACKED or not opened or head.kind != KIND_PUSH):
        return False
    if head.body_bytes > limit:
        return False
    if opened:
        if head.body_bytes & 7:             # keys must stay aligned in the buffer
            return False
        return head.kind == KIND_PULL or head.kind == KIND_SCAN or head.kind == KIND_HEARTBEAT \
            or head.kind == KIND_REACH or kind_keeps_order(head.kind)
    return head.kind < 16


# --- a primary's stream, at its standby ----------------------------------------------------------

cdef bint _replay(Loop *loop, Conn *conn, const FrameHeader *head, void *self,
                  double now) noexcept nogil:
    """Does what a frame of the stream says; False = not now, or never: the connection ends then."""
    cdef Reply reply
    reply.kind = KIND_REPLICATED
    reply.reason = b""
    reply.wake = False
    if head.request != conn.replayed + 1:
        _reply_error(loop, conn, 0, b"stream", b"frames of the stream are missing")
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
        if now - conn.since <= loop.park_limit_s:
            return False
        _reply_error(loop, conn, 0, b"timeout", reply.reason)
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


cdef void _acknowledge(Loop *loop, Conn *conn) noexcept nogil:
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


# --- the stream of this shard --------------------------------------------------------------------

cdef void _release(Loop *loop, void *self) noexcept nogil:
    """Sends the replies that waited for what the standby has by now."""
    cdef Stream *s = &loop.stream
    cdef Held *first
    cdef Conn *conn
    cdef uint32_t i
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
            _close(loop, conn, self)
    if loop.released_num:
        passes(&loop.faults, POINT_ACKNOWLEDGED)


cdef void _lost(Loop *loop, void *self) noexcept nogil:
    """Ends a stream that broke.  What the standby may be promoted without stays held."""
    cdef Stream *s = &loop.stream
    s.told_lost = True
    stream_close(s)
    if not (s.sync and s.seeded_at and s.acked >= s.seeded_at):
        s.holding = False
        _release(loop, self)
    loop.retry_parked = True
    _tell(self, b"lost", s.why)


cdef void _stream_turn(Loop *loop, void *self, double now) noexcept nogil:
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
            _tell(self, b"ready", b"")
    if s.state == STREAM_LOST and not s.told_lost:
        _lost(loop, self)


cdef void _stream_limit(Loop *loop, double now) noexcept nogil:
    """A standby that acknowledges nothing for long is given up."""
    cdef Stream *s = &loop.stream
    cdef char text[128]
    if s.fd >= 0 and s.sent > s.acked and now - s.moved_at > loop.park_limit_s:
        snprintf(text, sizeof(text), b"the standby acknowledged nothing for %.0f s",
                 now - s.moved_at)
        stream_break(s, text)


# --- turns ---------------------------------------------------------------------------------------

cdef int _serve(Loop *loop, Conn *conn, void *self, double now) noexcept nogil:
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
                _refuse(self, conn.id, <const char *>head, held)
            elif not in_reserve(conn, FRAME_HEADER_BYTES):
                return -1
            break
        if not _header_is_good(head, conn.opened, conn.stream):
            _refuse(self, conn.id, <const char *>head, FRAME_HEADER_BYTES)
            break
        frame_bytes = FRAME_HEADER_BYTES + head.body_bytes
        if held < frame_bytes:
            if not in_reserve(conn, frame_bytes):
                return -1
            conn.waits = head.kind == KIND_PUSH or head.kind == KIND_BACKWARD
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
            if not _replay(loop, conn, head, self, now):
                break
            loop.frames_in += 1
            conn.in_start += frame_bytes
            worked += frame_bytes
            continue
        loop.frames_in += 1
        conn.in_start += frame_bytes
        if not conn.opened:
            _greet(self, conn.id, <const char *>head, frame_bytes)
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


# --- the loop --------------------------------------------------------------------------------

cdef void _timers(Loop *loop, void *self, double now) noexcept nogil:
    cdef uint32_t i
    cdef Conn *conn
    for i in range(loop.conns.count):
        conn = loop.conns.slots[i]
        if conn != NULL and conn.closing and now - conn.since > LINGER_S:
            _close(loop, conn, self)
        elif conn != NULL and not conn.opened and now - conn.since > HANDSHAKE_LIMIT_S:
            _refused(self, conn.id, b"no handshake within 10 s")
            _close(loop, conn, self)
        elif conn != NULL and conn.stuck and not conn_put_ready(&loop.conns, conn):
            _close(loop, conn, self)
    _stream_limit(loop, now)
    if loop.parking.count:
        _retry_parked(loop, self, now)
    if not loop.listening:
        _listen(loop, True)
    if loop.unsaid:
        _sum_up(self)


cdef void _event(Loop *loop, uint64_t token, uint32_t events, void *self,
                 double now) noexcept nogil:
    cdef Conn *conn
    if token == ID_LISTENER:
        _accept_some(loop, self)
    elif token == ID_WAKE:
        c_read(loop.wake_fd, &token, sizeof(token))
        _commands(self)
        if loop.retry_parked:       # at once: what came later must not be served before them
            loop.retry_parked = False
            _retry_parked(loop, self, now)
    elif token == ID_STREAM:
        if loop.stream.fd >= 0:
            stream_read(&loop.stream, now)
            _release(loop, self)
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
                or (not conn.in_ready and _serve(loop, conn, self, now) < 0):
            _close(loop, conn, self)


cdef void _turns(Loop *loop, void *self, double now) noexcept nogil:
    """A turn for each connection with work left; those that have more wait for the next round."""
    cdef Conns *conns = &loop.conns
    cdef uint32_t i
    cdef uint32_t turns = conns.ready_count
    cdef Conn *conn
    for i in range(turns):
        conn = conn_of(conns, conns.ready[i])
        if conn != NULL:
            conn.in_ready = False
            if _serve(loop, conn, self, now) < 0:
                _close(loop, conn, self)
    if turns:
        conns.ready_count -= turns
        memmove(conns.ready, conns.ready + turns, conns.ready_count * sizeof(uint64_t))


cdef int _idle_ms(const Loop *loop) noexcept nogil:
    """How long to wait for events: no longer than a rest of seeding lasts."""
    cdef double rest_s = loop.stream.rest_until - now_s()
    if loop.stream.state != STREAM_SEEDING or loop.stream.rest_until == 0:
        return TIMER_MS
    return min(<int>TIMER_MS, 1 + <int>(1e3 * max(rest_s, 0.0)))


cdef void _run(Loop *loop, void *self) noexcept nogil:
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
            _event(loop, events[i].data.u64, events[i].events, self, now)
        _turns(loop, self, now)
        if loop.retry_parked:
            loop.retry_parked = False
            _retry_parked(loop, self, now)
        if loop.stream.fd >= 0:
            _stream_turn(loop, self, now)
        if now - timers_at > TIMER_MS * 1e-3:
            timers_at = now
            _timers(loop, self, now)


# --- doors to Python: the rare things --------------------------------------------------------

cdef void _commands(void *self) noexcept with gil:
    (<ShardLoop>self)._run_commands()


cdef void _tell(void *self, const char *state, const char *why) noexcept with gil:
    """Tells whoever gave the stream's socket what became of it."""
    cdef ShardLoop door = <ShardLoop>self
    text = why.decode("utf-8", "replace")
    if text.startswith("{"):                # the body of the standby's ERROR
        text = f"the standby says: {remote_error(Frame(Kind.ERROR, text.encode()))}"
    try:
        door.tell(state.decode(), text)
    except Exception:
        log.exception("nobody was told that the standby is %s", state.decode())


cdef void _forget_session(void *self, uint64_t conn_id) noexcept with gil:
    cdef ShardLoop door = <ShardLoop>self
    cdef Conn *conn = conn_of(&door.loop.conns, conn_id)
    if door.sessions.pop(conn_id, None) is not None and not conn.closing and not door.loop.stop:
        _note(door, conn, LEFT)
    door.origins.pop(conn_id, None)


cdef bint _accept_relayed(void *self) noexcept with gil:
    """Takes a connection from the relay; False = there is none."""
    cdef ShardLoop door = <ShardLoop>self
    cdef Conn *conn
    try:
        sock, address = door.listener.accept()
        sock.setblocking(False)
        conn = _welcome(door.loop, sock.fileno())
        if conn != NULL:
            sock.detach()
            door.origins[conn.id] = show(address)
        return True
    except OSError:
        return False


cdef void _refused(void *self, uint64_t conn_id, const char *why) noexcept with gil:
    cdef ShardLoop door = <ShardLoop>self
    cdef Conn *conn = conn_of(&door.loop.conns, conn_id)
    door.sessions.pop(conn_id, None)
    if not conn.closing:                # else that was said
        _note(door, conn, why.decode())


cdef void _note(ShardLoop door, Conn *conn, why) noexcept:
    """Has the log say who was refused, if it is not too much."""
    door.attempts.note(door.origins.get(conn.id) or peer_of(conn.fd), str(why))
    door.loop.unsaid = door.attempts.unsaid


cdef void _sum_up(void *self) noexcept with gil:
    cdef ShardLoop door = <ShardLoop>self
    door.attempts.sum_up()
    door.loop.unsaid = door.attempts.unsaid


cdef void _greet(void *self, uint64_t conn_id, const char *frame, size_t n) noexcept with gil:
    """Feeds one handshake frame to the connection's session."""
    cdef ShardLoop door = <ShardLoop>self
    cdef Conn *conn = conn_of(&door.loop.conns, conn_id)
    cdef FrameHeader *head = <FrameHeader *>frame
    try:
        session = door.sessions.get(conn_id)
        if session is None:
            session = door.sessions[conn_id] = door.make_session()
        body = (<char *>frame)[FRAME_HEADER_BYTES:n]
        answer = encode_frame(session.receive(
            Frame(Kind(head.kind), body, head.table, head.epoch, head.job, head.incarnation,
                  head.request)
        ))
        if session.ready:
            conn.opened = True
            door.loop.unknown -= 1
            door.origins.pop(conn_id, None)
            conn.job = session.peer.job
            del door.sessions[conn_id]
            if session.peer.role == Role.SERVER:
                if door.loop.follows:
                    raise ProtocolError("this shard follows a primary already, or did: a standby "
                                        "takes one stream in its life", "stream")
                conn.stream = True
                door.loop.follows = conn.id
        _send_bytes(conn, answer)
    except SnailError as error:
        _turn_away(door, conn, error, 0)
    except Exception as error:
        _turn_away(door, conn, ProtocolError(f"handshake failed: {error!r}", "handshake"), 0)


cdef void _refuse(void *self, uint64_t conn_id, const char *head, size_t n) noexcept with gil:
    """Tells a peer what is wrong with its header, in the words of frame.check_header; then ends."""
    cdef ShardLoop door = <ShardLoop>self
    cdef Conn *conn = conn_of(&door.loop.conns, conn_id)
    cdef FrameHeader whole
    memset(&whole, 0, sizeof(whole))
    memcpy(&whole, head, min(n, <size_t>FRAME_HEADER_BYTES))
    try:
        check_header((<char *>&whole)[:4], whole.version, whole.kind, whole.flags,
                     whole.body_bytes, DATA_BODY_MAX if conn.opened else HANDSHAKE_BODY_MAX)
        if whole.flags:
            error = ProtocolError(f"a packed {Kind(whole.kind).name} is not expected", "flag")
        elif 16 <= whole.kind < 32 and whole.body_bytes & 7:
            error = ProtocolError(
                f"body of {whole.body_bytes} bytes is not a multiple of 8", "length")
        else:
            error = ProtocolError(
                f"{Kind(whole.kind).name} is not expected "
                f"{'on a data connection' if conn.opened else 'before the handshake'}", "kind")
    except ProtocolError as caught:
        error = caught
    _turn_away(door, conn, error, whole.request if n >= FRAME_HEADER_BYTES else 0)


cdef void _turn_away(ShardLoop door, Conn *conn, error, uint64_t request) noexcept:
    door.loop.refused += 1
    if not conn.opened and not conn.closing:
        _note(door, conn, error)
    conn.closing = True
    conn.since = now_s()
    _send_bytes(conn, encode_frame(error_frame(error, request)))


cdef void _send_bytes(Conn *conn, bytes data) noexcept:
    cdef size_t n = len(data)
    cdef const char *source = data
    if not out_reserve(conn, n):
        conn.closing = True
        return
    memcpy(conn.out + conn.out_end, source, n)
    conn.out_end += n


cdef void _close_own(Loop *loop) noexcept nogil:
    if loop.conns.epoll_fd >= 0:
        c_close(loop.conns.epoll_fd)
    if loop.wake_fd >= 0:
        c_close(loop.wake_fd)
    loop.conns.epoll_fd = loop.wake_fd = -1


class Command:
    """What was submitted to a loop: a function, later its result."""

    def __init__(self, function):
        self.function = function
        self.done = threading.Event()
        self.result = None
        self.error = None


cdef class ShardLoop:
    """Event loop of one shard.

    Parameters
    ----------
    listener : Listener
        Where connections come from; the loop owns it from now on.
    make_session : callable
        Gives a fresh `ServerSession` for a new connection.
    park_limit_s : float
        How long a request may wait at the shard, seconds.

    Notes
    -----
    `run` belongs to one thread and releases the GIL.  `submit`, `stop` and `counters` may be
    called from any thread.
    """

    def __cinit__(self, listener, make_session, double park_limit_s=60.0):
        cdef epoll_event event
        self.loop = <Loop *>calloc(1, sizeof(Loop))
        if self.loop == NULL:
            raise MemoryError
        self.loop.conns.epoll_fd = self.loop.wake_fd = -1
        self.listener = listener
        self.make_session = make_session
        self.sessions = {}
        self.origins = {}
        self.attempts = Attempts()
        self.commands = []
        self.commands_lock = threading.Lock()
        listener.setblocking(False)
        self.loop.relayed = isinstance(listener, Relay)
        self.loop.park_limit_s = park_limit_s
        self.loop.stream.fd = -1
        self.loop.stream.faults = &self.loop.faults
        self.loop.listen_fd = listener.fileno()
        self.loop.conns.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.loop.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.loop.conns.epoll_fd < 0 or self.loop.wake_fd < 0:
            raise OSError(errno, "cannot make an event loop: too many open files?")
        event.events = EPOLLIN
        event.data.u64 = ID_LISTENER
        epoll_ctl(self.loop.conns.epoll_fd, EPOLL_CTL_ADD, self.loop.listen_fd, &event)
        self.loop.listening = True
        event.data.u64 = ID_WAKE
        epoll_ctl(self.loop.conns.epoll_fd, EPOLL_CTL_ADD, self.loop.wake_fd, &event)

    cdef Stream *stream(self):
        return &self.loop.stream

    cdef Faults *faults(self):
        return &self.loop.faults

    cdef void set_handler(self, Handler *handler, object owner):
        """Connects the loop to its tables; `owner` is kept alive as long as the loop."""
        self.loop.handler = handler
        self.owner = owner

    def run(self):
        """Serves until `stop`, once.  Releases the GIL."""
        if self.loop.handler == NULL or self.ended:
            raise RuntimeError("the loop has no handler, or has ended")
        self.thread_id = threading.get_ident()
        try:
            with nogil:
                _run(self.loop, <void *>self)
        finally:
            self._close_all()

    def submit(self, function, timeout_s=60.0):
        """Runs `function()` in the loop's thread, with the GIL, and returns its result.

        Raises
        ------
        WaitTimeout
            The loop did not come to it within `timeout_s` seconds.
        ConnectionLost
            The loop has ended.
        """
        if threading.get_ident() == self.thread_id:     # it cannot wait for itself
            return function()
        command = Command(function)
        self._enqueue(command)
        if not command.done.wait(timeout_s):
            raise WaitTimeout(
                f"the shard's loop did not answer within {timeout_s} s: the machine is overloaded, "
                "or a request that the shard serves does not end")
        if command.error is not None:
            raise command.error
        return command.result

    def stop(self):
        """Ends `run` soon.  Callable from any thread, more than once."""
        self._enqueue(None)

    def wake(self):
        """Has parked requests tried again soon.  To be called in a submitted function."""
        self.loop.retry_parked = True

    # What follows is to be called in a submitted function.

    def open_stream(self, int fd, bint sync, tell):
        """Begins a stream over a connected socket, which the loop owns from now on."""
        cdef epoll_event event
        os.set_blocking(fd, False)
        event.events = EPOLLIN
        event.data.u64 = ID_STREAM
        if epoll_ctl(self.loop.conns.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, "cannot watch the connection to the standby")
        self.tell = tell
        stream_open(&self.loop.stream, fd, sync, now_s())
        self.loop.seeding = True

    def end_stream(self):
        """Forgets the stream: what waits for it is answered."""
        stream_close(&self.loop.stream)
        self.loop.stream.state = STREAM_NONE
        self.loop.stream.holding = False
        _release(self.loop, <void *>self)
        self.loop.retry_parked = True

    def end_following(self):
        """Takes what has come of a primary's stream, and closes its connection."""
        cdef Conn *conn = conn_of(&self.loop.conns, self.loop.follows)
        if conn != NULL:
            _close(self.loop, conn, <void *>self)

    def following(self):
        """Whether the primary whose standby this is can be heard."""
        return conn_of(&self.loop.conns, self.loop.follows) != NULL

    def close_connections(self):
        """Closes all connections, once what fits of their answers is sent."""
        cdef uint32_t i
        for i in range(self.loop.conns.count):
            if self.loop.conns.slots[i] != NULL:
                conn_flush(&self.loop.conns, self.loop.conns.slots[i])
                _close(self.loop, self.loop.conns.slots[i], <void *>self)

    def counters(self):
        """Counts since the start: frames, bytes, refusals, connections, parked requests."""
        return {
            "frames_in": self.loop.frames_in,
            "bytes_in": self.loop.conns.bytes_in,
            "bytes_out": self.loop.conns.bytes_out,
            "refused": self.loop.refused,
            "accepted": self.loop.accepted,
            "connections": self.loop.conns.open,
            "parked": self.loop.parking.count,
        }

    def _enqueue(self, command):
        cdef uint64_t one = 1
        with self.commands_lock:
            if not self.ended:
                self.commands.append(command)
                c_write(self.loop.wake_fd, &one, sizeof(one))
            elif command is not None:
                raise ConnectionLost("the shard has stopped serving")

    def _run_commands(self):
        with self.commands_lock:
            commands, self.commands = self.commands, []
        for command in commands:
            if command is None:
                self.loop.stop = True
                continue
            try:
                command.result = command.function()
            except BaseException as error:
                command.error = error
            command.done.set()

    def _close_all(self):
        cdef uint32_t i
        for i in range(self.loop.conns.count):
            if self.loop.conns.slots[i] != NULL:
                conn_flush(&self.loop.conns, self.loop.conns.slots[i])
                _close(self.loop, self.loop.conns.slots[i], <void *>self)
        stream_close(&self.loop.stream)
        self.listener.close()
        with self.commands_lock:
            self.ended = True
            commands, self.commands = self.commands, []
            _close_own(self.loop)
        self.owner = None               # which may know this loop in turn
        for command in commands:
            if command is not None:
                command.error = ConnectionLost("the shard has stopped serving")
                command.done.set()

    def __dealloc__(self):
        cdef uint32_t i
        if self.loop == NULL:
            return
        for i in range(self.loop.conns.count):
            if self.loop.conns.slots[i] != NULL:
                conn_free(&self.loop.conns, self.loop.conns.slots[i])
        parking_free(&self.loop.parking)
        stream_free(&self.loop.stream)
        free(self.loop.released)
        free(self.loop.conns.slots)
        free(self.loop.conns.free_slots)
        free(self.loop.conns.ready)
        _close_own(self.loop)
        free(self.loop)
