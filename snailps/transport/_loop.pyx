# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shard's event loop: one thread, one listening socket, any number of connections.

    socket -> input buffer -> frame, checked in place -> Handler.handle -> output buffer -> socket

It owns connections (`_conn.pxd`), parked requests (`_parked.pxd`) and their turns.  It knows the
frame header and nothing of tables, keys or rows: data frames go to a C function (`_loop.pxd`),
handshake frames to a `ServerSession` with the GIL held.  Everything else runs without the GIL and,
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
"""

import threading

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from snailps.errors import ConnectionLost, ProtocolError, SnailError, WaitTimeout
from snailps.transport.frame import Frame, Kind, check_header, encode_frame
from snailps.transport.session import error_frame

from snailps.transport._conn cimport *
from snailps.transport._frame cimport *
from snailps.transport._parked cimport Parked, Parking, close_gaps, park, parking_free, unpark
from snailps.transport._posix cimport *

cdef enum:
    WAIT_BYTES = 512                # answers to pushes that may wait for the end of the next one
    TURN_BYTES = 128 << 10          # work a connection may do before the next has its turn
    EVENTS_MAX = 64
    TIMER_MS = 100                  # how often deadlines are looked at
    ID_LISTENER = 1
    ID_WAKE = 2

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
    # counters, written by the loop's thread alone
    uint64_t frames_in
    uint64_t refused
    uint64_t accepted


# --- connections -----------------------------------------------------------------------------

cdef void _close(Loop *loop, Conn *conn, void *self) noexcept nogil:
    cdef uint32_t i
    if conn.parked:                 # its parked requests have nobody to answer any more
        for i in range(loop.parking.count):
            if loop.parking.items[i].conn_id == conn.id:
                unpark(&loop.parking.items[i], conn)
        close_gaps(&loop.parking)
    if not conn.opened:
        _forget_session(self, conn.id)
    loop.handler.forget(conn.memory)
    conn_free(&loop.conns, conn)


cdef void _listen(Loop *loop, bint on) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN if on else 0
    event.data.u64 = ID_LISTENER
    epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_MOD, loop.listen_fd, &event)
    loop.listening = on


cdef void _accept_all(Loop *loop) noexcept nogil:
    cdef int fd
    while True:
        fd = accept4(loop.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd < 0:
            # Out of descriptors: epoll would report the waiting peer for ever.  Try again later.
            if errno != EAGAIN and errno != EINTR:
                _listen(loop, False)
            return
        set_options(fd)
        loop.accepted += 1
        if conn_new(&loop.conns, fd) == NULL:
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
    if loop.handler.handle(loop.handler.context, &conn.memory, asked, body,
                           out + FRAME_HEADER_BYTES, reply) == OUTCOME_PARK:
        return False
    loop.retry_parked |= reply.wake
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

cdef bint _header_is_good(const FrameHeader *head, bint opened) noexcept nogil:
    cdef uint64_t limit = DATA_BODY_MAX if opened else HANDSHAKE_BODY_MAX
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
        if not _header_is_good(head, conn.opened):
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
        if conn != NULL and ((conn.closing and now - conn.since > LINGER_S)
                             or (not conn.opened and now - conn.since > HANDSHAKE_LIMIT_S)):
            _close(loop, conn, self)
    if loop.parking.count:
        _retry_parked(loop, self, now)
    if not loop.listening:
        _listen(loop, True)


cdef void _event(Loop *loop, uint64_t token, uint32_t events, void *self,
                 double now) noexcept nogil:
    cdef Conn *conn
    if token == ID_LISTENER:
        _accept_all(loop)
    elif token == ID_WAKE:
        c_read(loop.wake_fd, &token, sizeof(token))
        _commands(self)
        if loop.retry_parked:       # at once: what came later must not be served before them
            loop.retry_parked = False
            _retry_parked(loop, self, now)
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


cdef void _run(Loop *loop, void *self) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef int n, i
    cdef double now, timers_at = 0
    cdef uint32_t blind = 0
    while not loop.stop:
        n = wait_events(loop.conns.epoll_fd, events, EVENTS_MAX,
                        0 if loop.conns.ready_count or loop.retry_parked else TIMER_MS, &blind)
        now = now_s()
        for i in range(n):
            _event(loop, events[i].data.u64, events[i].events, self, now)
        _turns(loop, self, now)
        if loop.retry_parked:
            loop.retry_parked = False
            _retry_parked(loop, self, now)
        if now - timers_at > TIMER_MS * 1e-3:
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
            conn.job = session.peer.job
            del door.sessions[conn_id]
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
        self.loop.conns.epoll_fd = self.loop.wake_fd = -1
        self.listener = listener
        self.make_session = make_session
        self.sessions = {}
        self.commands = []
        self.commands_lock = threading.Lock()
        listener.setblocking(False)
        self.loop.park_limit_s = park_limit_s
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

    cdef void set_handler(self, Handler *handler, object owner):
        """Connects the loop to its tables; `owner` is kept alive as long as the loop."""
        self.loop.handler = handler
        self.owner = owner

    def run(self):
        """Serves until `stop`, once.  Releases the GIL."""
        if self.loop.handler == NULL or self.ended:
            raise RuntimeError("the loop has no handler, or has ended")
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
        free(self.loop.conns.slots)
        free(self.loop.conns.free_slots)
        free(self.loop.conns.ready)
        _close_own(self.loop)
        free(self.loop)
