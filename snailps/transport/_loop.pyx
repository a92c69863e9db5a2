# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shard's event loop: one thread, one listening socket, any number of connections.

    socket -> input buffer -> frame, checked in place -> Handler.handle -> output buffer -> socket

It owns connections, buffers and parked requests.  It knows the frame header and nothing of tables,
keys or rows: data frames go to a C function (`_loop.pxd`), handshake frames to a `ServerSession`
with the GIL held.  Everything else runs without the GIL and, once buffers have grown to the size
of the traffic, without allocating.

Rules that keep it fair and bounded
-----------------------------------
* A connection gets `TURN_BYTES` of work, then the next one has its turn.
* A frame is handled only while `DATA_BODY_MAX` bytes of output are free, so a reply always fits;
  a connection whose output is full is not read until its peer has taken some of it.
* A frame that cannot be answered yet is copied aside ("parked") with a reason and a deadline, and
  tried again after `wake()`; the connection goes on.
"""

import threading

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from snailps.errors import ProtocolError, SnailError
from snailps.transport.frame import Frame, Kind, check_header, encode_frame
from snailps.transport.session import error_frame

from snailps.transport._frame cimport *

cdef extern from "<sys/epoll.h>" nogil:
    enum: EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    enum: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)

cdef extern from "<sys/eventfd.h>" nogil:
    enum: EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int initval, int flags)

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_NOSIGNAL, MSG_DONTWAIT, SOCK_NONBLOCK, SOCK_CLOEXEC
    int accept4(int fd, void *addr, void *length, int flags)
    ssize_t c_recv "recv"(int fd, void *buf, size_t n, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t n, int flags)
    int setsockopt(int fd, int level, int name, const void *value, unsigned int n)
    int shutdown(int fd, int how)
    enum: SHUT_WR

cdef extern from "<netinet/tcp.h>" nogil:
    enum: IPPROTO_TCP, TCP_NODELAY

cdef extern from "<netinet/in.h>" nogil:
    pass

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    ssize_t c_read "read"(int fd, void *buf, size_t n)
    ssize_t c_write "write"(int fd, const void *buf, size_t n)

cdef extern from "<time.h>" nogil:
    enum: CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *t)

cdef enum:
    IN_BYTES_MIN = 64 << 10         # most connections stay at this
    TURN_BYTES = 1 << 20            # work a connection may do before the next has its turn
    EVENTS_MAX = 64
    PARKED_PER_CONN_MAX = 4096
    ID_LISTENER = 1
    ID_WAKE = 2
    ID_CONN_BASE = 16

cdef double HANDSHAKE_LIMIT_S = 10.0
cdef double LINGER_S = 2.0              # how long a refused peer may take to read why
cdef double TIMER_S = 0.1           # how often deadlines are looked at


cdef struct Conn:
    uint64_t id                     # ID_CONN_BASE + (generation << 32 | slot): never used twice
    int fd
    bint opened                     # handshake done
    bint closing                    # send what is left, say no more, wait for the peer to close
    bint shut                       # ... and the sending direction is closed already
    bint in_ready                   # already in the list of those with work left
    uint32_t events                 # what epoll watches now
    uint32_t parked
    uint64_t job
    double since
    char *inp
    size_t in_cap
    size_t in_start
    size_t in_end
    char *out
    size_t out_cap
    size_t out_start
    size_t out_end


cdef struct Parked:
    uint64_t conn_id
    double deadline
    double since
    const char *reason
    char *frame                     # header and body


cdef struct Loop:
    int epoll_fd
    int wake_fd
    int listen_fd
    bint stop
    bint retry_parked
    Handler *handler
    double park_limit_s
    Conn **conns
    uint32_t conn_count             # slots in use or free again
    uint32_t conn_cap
    uint32_t generation
    uint64_t *ready
    uint32_t ready_count
    uint32_t ready_cap
    Parked *parked
    uint32_t parked_count
    uint32_t parked_cap
    # counters, written by the loop's thread alone
    uint64_t frames_in
    uint64_t bytes_in
    uint64_t bytes_out
    uint64_t refused
    uint64_t accepted


cdef double _now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + t.tv_nsec * 1e-9


# --- connections -----------------------------------------------------------------------------

cdef Conn *_conn_of(Loop *loop, uint64_t conn_id) noexcept nogil:
    cdef uint32_t slot = <uint32_t>(conn_id - <uint64_t>ID_CONN_BASE)
    if slot >= loop.conn_count or loop.conns[slot] == NULL or loop.conns[slot].id != conn_id:
        return NULL
    return loop.conns[slot]


cdef bint _grow(void **array, uint32_t *cap, uint32_t need, size_t item) noexcept nogil:
    cdef uint32_t size = cap[0] if cap[0] else 16
    cdef void *grown
    if need <= cap[0]:
        return True
    while size < need:
        size *= 2
    grown = realloc(array[0], size * item)
    if grown == NULL:
        return False
    array[0] = grown
    cap[0] = size
    return True


cdef Conn *_conn_new(Loop *loop, int fd) noexcept nogil:
    cdef uint32_t slot = 0
    cdef Conn *conn
    cdef epoll_event event
    while slot < loop.conn_count and loop.conns[slot] != NULL:
        slot += 1
    if not _grow(<void **>&loop.conns, &loop.conn_cap, slot + 1, sizeof(Conn *)):
        return NULL
    conn = <Conn *>calloc(1, sizeof(Conn))
    if conn == NULL:
        return NULL
    conn.inp = <char *>malloc(IN_BYTES_MIN)
    if conn.inp == NULL:
        free(conn)
        return NULL
    conn.in_cap = IN_BYTES_MIN
    loop.generation += 1
    conn.id = <uint64_t>ID_CONN_BASE + ((<uint64_t>loop.generation << 32) | slot)
    conn.fd = fd
    conn.since = _now()
    conn.events = EPOLLIN
    event.events = EPOLLIN
    event.data.u64 = conn.id
    if epoll_ctl(loop.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
        free(conn.inp)
        free(conn)
        return NULL
    loop.conns[slot] = conn
    if slot == loop.conn_count:
        loop.conn_count += 1
    return conn


cdef void _conn_close(Loop *loop, Conn *conn, void *self) noexcept nogil:
    cdef uint32_t slot = <uint32_t>(conn.id - <uint64_t>ID_CONN_BASE)
    cdef uint32_t i = 0
    while i < loop.parked_count:        # its parked requests have nobody to answer any more
        if loop.parked[i].conn_id == conn.id:
            _unpark(loop, i)
        else:
            i += 1
    c_close(conn.fd)                    # also takes it out of epoll
    if not conn.opened:
        _forget_session(self, conn.id)
    free(conn.inp)
    free(conn.out)
    free(conn)
    loop.conns[slot] = NULL


cdef void _watch(Loop *loop, Conn *conn) noexcept nogil:
    """Tells epoll what this connection waits for: output room, input, or both."""
    cdef epoll_event event
    cdef uint32_t wanted = 0
    if conn.out_end > conn.out_start:
        wanted |= EPOLLOUT
    if conn.closing or not _out_is_full(conn):
        wanted |= EPOLLIN
    if wanted != conn.events:
        conn.events = wanted
        event.events = wanted
        event.data.u64 = conn.id
        epoll_ctl(loop.epoll_fd, EPOLL_CTL_MOD, conn.fd, &event)


# --- output ----------------------------------------------------------------------------------

cdef bint _out_is_full(Conn *conn) noexcept nogil:
    """More than one whole body is waiting: no further request until the peer has read some."""
    return conn.out_end - conn.out_start > DATA_BODY_MAX


cdef bint _out_reserve(Conn *conn, size_t need) noexcept nogil:
    cdef size_t held = conn.out_end - conn.out_start
    cdef size_t cap
    cdef char *grown
    if conn.out_start > 0 and (held == 0 or conn.out_cap - conn.out_end < need):
        memmove(conn.out, conn.out + conn.out_start, held)
        conn.out_start = 0
        conn.out_end = held
    if conn.out_cap - conn.out_end >= need:
        return True
    cap = held + need
    grown = <char *>realloc(conn.out, cap)
    if grown == NULL:
        return False
    conn.out = grown
    conn.out_cap = cap
    return True


cdef int _flush(Loop *loop, Conn *conn) noexcept nogil:
    """Sends what it can; -1 when the peer is gone."""
    cdef ssize_t sent
    while conn.out_end > conn.out_start:
        sent = c_send(conn.fd, conn.out + conn.out_start, conn.out_end - conn.out_start,
                      MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        conn.out_start += sent
        loop.bytes_out += sent
    conn.out_start = conn.out_end = 0
    return 0


cdef void _reply_error(Loop *loop, Conn *conn, uint64_t request, const char *code,
                       const char *text) noexcept nogil:
    cdef FrameHeader *head
    cdef int n
    loop.refused += 1
    if not _out_reserve(conn, FRAME_HEADER_BYTES + 1024):
        conn.closing = True
        return
    head = <FrameHeader *>(conn.out + conn.out_end)
    n = snprintf(<char *>head + FRAME_HEADER_BYTES, 1024, b'{"code":"%s","text":"%s"}', code, text)
    if n > 1023:
        n = 1023
    _fill_head(head, KIND_ERROR, request, n)
    conn.out_end += FRAME_HEADER_BYTES + n


cdef void _fill_head(FrameHeader *head, uint8_t kind, uint64_t request, uint64_t n) noexcept nogil:
    memset(head, 0, FRAME_HEADER_BYTES)
    head.magic = FRAME_MAGIC
    head.version = FRAME_VERSION
    head.kind = kind
    head.request = request
    head.body_bytes = n


# --- requests --------------------------------------------------------------------------------

cdef void _handle(Loop *loop, Conn *conn, const FrameHeader *head, const char *body,
                  double now) noexcept nogil:
    """Answers or parks one data frame of an open connection."""
    cdef Reply reply
    cdef FrameHeader asked          # the reply may overwrite nothing of it, but keep it simple
    memcpy(&asked, head, FRAME_HEADER_BYTES)
    if asked.job != conn.job:
        _reply_error(loop, conn, asked.request, b"job", b"request of another cluster")
        return
    if not _out_reserve(conn, FRAME_HEADER_BYTES + DATA_BODY_MAX):
        _reply_error(loop, conn, asked.request, b"memory", b"server is out of memory")
        return
    if _attempt(loop, conn, &asked, body, &reply):
        return
    if conn.parked >= PARKED_PER_CONN_MAX:
        _reply_error(loop, conn, asked.request, b"parked", b"too many requests wait already")
        return
    _park(loop, conn, &asked, body, reply.reason, now)


cdef bint _attempt(Loop *loop, Conn *conn, const FrameHeader *asked, const char *body,
                   Reply *reply) noexcept nogil:
    """Lets the handler write straight into the output; False when the request has to wait."""
    cdef char *out = conn.out + conn.out_end
    reply.body_bytes = 0
    reply.kind = KIND_ERROR
    reply.reason = b""
    if loop.handler.handle(loop.handler.context, asked, body, out + FRAME_HEADER_BYTES,
                           reply) == OUTCOME_PARK:
        return False
    _fill_head(<FrameHeader *>out, reply.kind, asked.request, reply.body_bytes)
    if reply.kind == KIND_ERROR:
        loop.refused += 1
    conn.out_end += FRAME_HEADER_BYTES + reply.body_bytes
    return True


cdef void _park(Loop *loop, Conn *conn, const FrameHeader *head, const char *body,
                const char *reason, double now) noexcept nogil:
    cdef char *copy = <char *>malloc(FRAME_HEADER_BYTES + head.body_bytes)
    cdef Parked *place
    if copy == NULL or not _grow(<void **>&loop.parked, &loop.parked_cap, loop.parked_count + 1,
                                 sizeof(Parked)):
        free(copy)
        _reply_error(loop, conn, head.request, b"memory", b"server is out of memory")
        return
    memcpy(copy, head, FRAME_HEADER_BYTES)
    memcpy(copy + FRAME_HEADER_BYTES, body, head.body_bytes)
    place = &loop.parked[loop.parked_count]
    loop.parked_count += 1
    conn.parked += 1
    place.conn_id = conn.id
    place.frame = copy
    place.reason = reason
    place.since = now
    place.deadline = now + loop.park_limit_s


cdef void _unpark(Loop *loop, uint32_t i) noexcept nogil:
    free(loop.parked[i].frame)
    # order matters (pushes of one worker): close the gap rather than fill it with the last one
    memmove(&loop.parked[i], &loop.parked[i + 1], (loop.parked_count - i - 1) * sizeof(Parked))
    loop.parked_count -= 1


cdef void _retry_parked(Loop *loop, void *self, double now) noexcept nogil:
    """Tries every parked request again, oldest first, and gives up those past their deadline."""
    cdef uint32_t i = 0
    cdef Conn *conn
    cdef FrameHeader *head
    cdef Reply reply
    cdef char text[256]
    while i < loop.parked_count:
        conn = _conn_of(loop, loop.parked[i].conn_id)
        head = <FrameHeader *>loop.parked[i].frame
        if conn == NULL:
            _unpark(loop, i)
            continue
        if _out_is_full(conn) or not _out_reserve(conn, FRAME_HEADER_BYTES + DATA_BODY_MAX):
            i += 1
            continue
        if _attempt(loop, conn, head, loop.parked[i].frame + FRAME_HEADER_BYTES, &reply):
            conn.parked -= 1
            _unpark(loop, i)
        elif now > loop.parked[i].deadline:
            snprintf(text, sizeof(text), b"waited %.1f s at the shard for %s",
                     now - loop.parked[i].since, reply.reason)
            _reply_error(loop, conn, head.request, b"timeout", text)
            conn.parked -= 1
            _unpark(loop, i)
        else:
            i += 1
            continue
        if _flush(loop, conn) < 0:
            _conn_close(loop, conn, self)
        else:
            _watch(loop, conn)


# --- input -----------------------------------------------------------------------------------

cdef bint _header_is_good(const FrameHeader *head, bint opened) noexcept nogil:
    cdef uint64_t limit = DATA_BODY_MAX if opened else HANDSHAKE_BODY_MAX
    if head.magic != FRAME_MAGIC or head.version != FRAME_VERSION or head.flags != 0:
        return False
    if head.body_bytes > limit:
        return False
    if opened:
        if head.body_bytes & 7:             # keys must stay aligned in the buffer
            return False
        return head.kind == KIND_PULL or head.kind == KIND_PUSH or head.kind == KIND_SCAN \
            or head.kind == KIND_HEARTBEAT
    return head.kind < 16


cdef bint _in_reserve(Conn *conn, size_t frame_bytes) noexcept nogil:
    """Makes room for a frame of which part is there; keeps some room to read ahead."""
    cdef size_t held = conn.in_end - conn.in_start
    cdef size_t cap = conn.in_cap
    cdef char *grown
    if held == 0:
        conn.in_start = conn.in_end = 0
    elif conn.in_start > 0 and (conn.in_cap - conn.in_start < frame_bytes
                                or conn.in_end == conn.in_cap):
        memmove(conn.inp, conn.inp + conn.in_start, held)
        conn.in_start = 0
        conn.in_end = held
    if conn.in_cap < frame_bytes:
        cap = frame_bytes + IN_BYTES_MIN
        grown = <char *>realloc(conn.inp, cap)
        if grown == NULL:
            return False
        conn.inp = grown
        conn.in_cap = cap
    return True


cdef int _serve(Loop *loop, Conn *conn, void *self, double now) noexcept nogil:
    """Handles complete frames in the input buffer, for one turn; -1 = connection to be closed."""
    cdef FrameHeader *head
    cdef size_t held, frame_bytes
    cdef size_t worked = 0
    while not conn.closing:
        held = conn.in_end - conn.in_start
        head = <FrameHeader *>(conn.inp + conn.in_start)
        if held < FRAME_HEADER_BYTES:
            if held >= 4 and head.magic != FRAME_MAGIC:
                _refuse(self, conn.id, <const char *>head, held)
            elif not _in_reserve(conn, FRAME_HEADER_BYTES):
                return -1
            break
        if not _header_is_good(head, conn.opened):
            _refuse(self, conn.id, <const char *>head, FRAME_HEADER_BYTES)
            break
        frame_bytes = FRAME_HEADER_BYTES + head.body_bytes
        if held < frame_bytes:
            if not _in_reserve(conn, frame_bytes):
                return -1
            break
        if _out_is_full(conn):
            if _flush(loop, conn) < 0:
                return -1
            if _out_is_full(conn):
                break                       # back-pressure: the peer has to read first
        if worked > TURN_BYTES:
            return _put_ready(loop, conn)
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
            if conn.out_end - conn.out_start >= SUBFRAME_BYTES and _flush(loop, conn) < 0:
                return -1
    if _flush(loop, conn) < 0:
        return -1
    if conn.closing:
        # Closing at once would reset the connection and destroy the words that say why.
        conn.in_start = conn.in_end = 0
        if conn.out_end == conn.out_start and not conn.shut:
            conn.shut = True
            conn.since = now
            shutdown(conn.fd, SHUT_WR)
    _watch(loop, conn)
    return 0


cdef int _put_ready(Loop *loop, Conn *conn) noexcept nogil:
    if _flush(loop, conn) < 0:
        return -1
    if not _grow(<void **>&loop.ready, &loop.ready_cap, loop.ready_count + 1, sizeof(uint64_t)):
        return -1
    if not conn.in_ready:
        conn.in_ready = True
        loop.ready[loop.ready_count] = conn.id
        loop.ready_count += 1
    _watch(loop, conn)
    return 0


cdef int _read_some(Loop *loop, Conn *conn) noexcept nogil:
    """One recv into the input buffer; -1 = the peer is gone."""
    cdef ssize_t got
    if not _in_reserve(conn, FRAME_HEADER_BYTES):
        return -1
    if conn.in_end == conn.in_cap:
        return 0                            # whole frames are waiting for their turn
    got = c_recv(conn.fd, conn.inp + conn.in_end, conn.in_cap - conn.in_end, MSG_DONTWAIT)
    if got < 0:
        return 0 if errno == EAGAIN or errno == EINTR else -1
    if got == 0:
        return -1
    conn.in_end += got
    loop.bytes_in += got
    return 0


# --- the loop --------------------------------------------------------------------------------

cdef void _accept_all(Loop *loop) noexcept nogil:
    cdef int fd
    cdef int one = 1
    while True:
        fd = accept4(loop.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd < 0:
            return
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
        loop.accepted += 1
        if _conn_new(loop, fd) == NULL:
            c_close(fd)


cdef void _timers(Loop *loop, void *self, double now) noexcept nogil:
    cdef uint32_t i
    cdef Conn *conn
    for i in range(loop.conn_count):
        conn = loop.conns[i]
        if conn != NULL and ((conn.closing and now - conn.since > LINGER_S)
                             or (not conn.opened and now - conn.since > HANDSHAKE_LIMIT_S)):
            _conn_close(loop, conn, self)
    if loop.parked_count:
        _retry_parked(loop, self, now)


cdef void _run(Loop *loop, void *self) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n, i
    cdef uint32_t j, turns
    cdef uint64_t token
    cdef Conn *conn
    cdef double now, timers_at = 0
    while not loop.stop:
        n = epoll_wait(loop.epoll_fd, events, EVENTS_MAX, 0 if loop.ready_count else 100)
        now = _now()
        for i in range(n):
            token = events[i].data.u64
            if token == ID_LISTENER:
                _accept_all(loop)
            elif token == ID_WAKE:
                c_read(loop.wake_fd, &token, sizeof(token))
                _commands(self)
            else:
                conn = _conn_of(loop, token)
                if conn == NULL:            # closed earlier in this round
                    continue
                if events[i].events & (EPOLLERR | EPOLLHUP) \
                        or (events[i].events & EPOLLOUT and _flush(loop, conn) < 0) \
                        or (events[i].events & EPOLLIN and _read_some(loop, conn) < 0) \
                        or (not conn.in_ready and _serve(loop, conn, self, now) < 0):
                    _conn_close(loop, conn, self)
        turns = loop.ready_count            # those that become ready again wait for the next round
        for j in range(turns):
            conn = _conn_of(loop, loop.ready[j])
            if conn != NULL:
                conn.in_ready = False
                if _serve(loop, conn, self, now) < 0:
                    _conn_close(loop, conn, self)
        if turns:
            loop.ready_count -= turns
            memmove(loop.ready, loop.ready + turns, loop.ready_count * sizeof(uint64_t))
        if loop.retry_parked:
            loop.retry_parked = False
            _retry_parked(loop, self, now)
        if now - timers_at > TIMER_S:
            timers_at = now
            _timers(loop, self, now)


# --- doors to Python: the rare things --------------------------------------------------------

cdef void _commands(void *self) noexcept with gil:
    (<ShardLoop>self)._run_commands()


cdef void _forget_session(void *self, uint64_t conn_id) noexcept with gil:
    (<ShardLoop>self).sessions.pop(conn_id, None)


cdef void _greet(void *self, uint64_t conn_id, const char *frame, size_t n) noexcept with gil:
    """Feeds one handshake frame to the connection's session."""
    cdef ShardLoop door = <ShardLoop>self
    cdef Conn *conn = _conn_of(door.loop, conn_id)
    cdef FrameHeader *head = <FrameHeader *>frame
    cdef bytes body = (<char *>frame)[FRAME_HEADER_BYTES:n]
    try:
        session = door.sessions.get(conn_id)
        if session is None:
            session = door.sessions[conn_id] = door.make_session()
        answer = session.receive(
            Frame(Kind(head.kind), body, head.table, head.epoch, head.job, head.incarnation,
                  head.request)
        )
        if session.ready:
            conn.opened = True
            conn.job = session.peer.job
            del door.sessions[conn_id]
    except SnailError as error:
        door.loop.refused += 1
        answer = error_frame(error)
        conn.closing = True
        conn.since = _now()
    except Exception as error:
        door.loop.refused += 1
        answer = error_frame(ProtocolError(f"handshake failed: {error!r}", "handshake"))
        conn.closing = True
        conn.since = _now()
    _send_bytes(conn, encode_frame(answer))


cdef void _refuse(void *self, uint64_t conn_id, const char *head, size_t n) noexcept with gil:
    """Tells a peer what is wrong with its header, in the words of frame.check_header; then ends."""
    cdef ShardLoop door = <ShardLoop>self
    cdef Conn *conn = _conn_of(door.loop, conn_id)
    cdef FrameHeader whole
    memset(&whole, 0, sizeof(whole))
    memcpy(&whole, head, min(n, <size_t>FRAME_HEADER_BYTES))
    door.loop.refused += 1
    conn.closing = True
    conn.since = _now()
    try:
        check_header((<char *>&whole)[:4], whole.version, whole.kind, whole.flags,
                     whole.body_bytes, DATA_BODY_MAX if conn.opened else HANDSHAKE_BODY_MAX)
        error = ProtocolError(
            f"body of {whole.body_bytes} bytes is not a multiple of 8"
            if whole.kind >= 16 and whole.body_bytes & 7 else
            f"{Kind(whole.kind).name} is not expected "
            f"{'on a data connection' if conn.opened else 'before the handshake'}", "kind")
    except ProtocolError as caught:
        error = caught
    _send_bytes(conn, encode_frame(error_frame(error, whole.request if n >= 48 else 0)))


cdef void _send_bytes(Conn *conn, bytes data):
    cdef size_t n = len(data)
    cdef const char *source = data
    if not _out_reserve(conn, n):
        conn.closing = True
        return
    memcpy(conn.out + conn.out_end, source, n)
    conn.out_end += n


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
    listener : socket.socket
        Listening socket; the loop owns it from now on.
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
        self.listener = listener
        self.make_session = make_session
        self.sessions = {}
        self.commands = []
        self.commands_lock = threading.Lock()
        listener.setblocking(False)
        self.loop.park_limit_s = park_limit_s
        self.loop.listen_fd = listener.fileno()
        self.loop.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.loop.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.loop.epoll_fd < 0 or self.loop.wake_fd < 0:
            raise OSError(errno, "cannot make an event loop: too many open files?")
        event.events = EPOLLIN
        event.data.u64 = ID_LISTENER
        epoll_ctl(self.loop.epoll_fd, EPOLL_CTL_ADD, self.loop.listen_fd, &event)
        event.data.u64 = ID_WAKE
        epoll_ctl(self.loop.epoll_fd, EPOLL_CTL_ADD, self.loop.wake_fd, &event)

    cdef void set_handler(self, Handler *handler, object owner):
        """Connects the loop to its tables; `owner` is kept alive as long as the loop."""
        self.loop.handler = handler
        self.owner = owner

    def run(self):
        """Serves until `stop`.  Releases the GIL."""
        if self.loop.handler == NULL:
            raise RuntimeError("the loop has no handler")
        with nogil:
            _run(self.loop, <void *>self)
        self._close_all()

    def submit(self, function, timeout_s=60.0):
        """Runs `function()` in the loop's thread, with the GIL, and returns its result.

        Raises
        ------
        TimeoutError
            The loop did not come to it within `timeout_s` seconds.
        """
        command = Command(function)
        self._enqueue(command)
        if not command.done.wait(timeout_s):
            raise TimeoutError(f"the shard's loop did not answer within {timeout_s} s")
        if command.error is not None:
            raise command.error
        return command.result

    def stop(self):
        """Ends `run` soon.  Callable from any thread, more than once."""
        self._enqueue(None)

    def wake(self):
        """Has parked requests tried again soon.  To be called in a submitted function."""
        self.loop.retry_parked = True

    def counters(self):
        """Counts since the start: frames, bytes, refusals, connections, parked requests."""
        open_now = 0
        for i in range(self.loop.conn_count):
            if self.loop.conns[i] != NULL:
                open_now += 1
        return {
            "frames_in": self.loop.frames_in,
            "bytes_in": self.loop.bytes_in,
            "bytes_out": self.loop.bytes_out,
            "refused": self.loop.refused,
            "accepted": self.loop.accepted,
            "connections": open_now,
            "parked": self.loop.parked_count,
        }

    def _enqueue(self, command):
        cdef uint64_t one = 1
        with self.commands_lock:
            self.commands.append(command)
        c_write(self.loop.wake_fd, &one, sizeof(one))

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
        for i in range(self.loop.conn_count):
            if self.loop.conns[i] != NULL:
                _flush(self.loop, self.loop.conns[i])
                _conn_close(self.loop, self.loop.conns[i], <void *>self)
        self.listener.close()

    def __dealloc__(self):
        cdef uint32_t i
        if self.loop == NULL:
            return
        for i in range(self.loop.conn_count):
            if self.loop.conns[i] != NULL:
                c_close(self.loop.conns[i].fd)
                free(self.loop.conns[i].inp)
                free(self.loop.conns[i].out)
                free(self.loop.conns[i])
        for i in range(self.loop.parked_count):
            free(self.loop.parked[i].frame)
        free(self.loop.conns)
        free(self.loop.ready)
        free(self.loop.parked)
        if self.loop.epoll_fd > 0:
            c_close(self.loop.epoll_fd)
        if self.loop.wake_fd > 0:
            c_close(self.loop.wake_fd)
        free(self.loop)
