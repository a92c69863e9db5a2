# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Handshakes of a shard's new connections, and the log of those that are refused.

    handshake frame -> ServerSession -> answer; opened, or turned away with the reason
    refused -> RefusalLog -> the log

Owns the sessions of connections that are not authenticated, and the texts for refused peers.  Must
not know requests.  It runs in the loop's thread with the GIL held: handshakes are rare.  The loop
decides when a peer has waited too long, or has to make room.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from snailps.errors import ProtocolError, SnailError
from snailps.transport.frame import Frame, Kind, check_header, encode_frame
from snailps.transport.handshake import Role, error_frame
from snailps.transport.security.refusals import LEFT, RefusalLog
from snailps.transport.sockets import peer_of, show

from snailps.transport._frame cimport (
    DATA_BODY_MAX, FRAME_HEADER_BYTES, HANDSHAKE_BODY_MAX, STREAM_BODY_MAX, FrameHeader,
)
from snailps.transport._socket_io cimport buffer_reserve
from snailps.transport.loop._connection cimport Conn, conn_new, conn_of, conn_opened
from snailps.transport.loop._event_loop cimport Loop


cdef class Authenticator:
    """Authenticates the new connections of one loop.

    `listener` yields connections if it is a TLS relay; else the loop accepts them itself.
    """

    def __cinit__(self, listener: snailps.transport.sockets.Listener,
                  make_session: Callable[[], snailps.transport.handshake.ServerSession]):
        self.listener = listener
        self.make_session = make_session
        self.sessions = {}
        self.origins = {}
        self.attempts = RefusalLog()

    cdef void take_up(self, Loop *loop):
        """Has a loop call this object from now on."""
        self.loop = loop
        loop.reception.self = <void *>self
        loop.reception.accept = _accept
        loop.reception.greet = _greet
        loop.reception.refuse = _refuse
        loop.reception.refused = _refused
        loop.reception.forget = _forget
        loop.reception.sum_up = _sum_up


cdef int _accept(void *self) noexcept with gil:
    """Takes a connection from the TLS relay; -1 = there is none."""
    cdef Authenticator door = <Authenticator>self
    cdef Conn *conn
    try:
        sock, address = door.listener.accept()
        sock.setblocking(False)
        conn = conn_new(&door.loop.conns, sock.fileno(), door.loop.now)
        if conn != NULL:
            sock.detach()
            door.origins[conn.id] = show(address)
            return conn.fd
    except OSError:
        pass
    return -1


cdef void _greet(void *self, uint64_t conn_id, const char *frame, size_t n) noexcept with gil:
    """Feeds one handshake frame to the connection's session."""
    cdef Authenticator door = <Authenticator>self
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
            conn_opened(&door.loop.conns, conn)
            door.origins.pop(conn_id, None)
            conn.job = session.peer.job
            del door.sessions[conn_id]
            if session.peer.role == Role.SERVER:
                if door.loop.follows:
                    raise ProtocolError("this shard follows a primary already, or did: a standby "
                                        "takes one stream, and a second would lack frames", "stream")
                conn.stream = True
                door.loop.follows = conn.id
        _send_bytes(conn, answer)
    except SnailError as error:
        _turn_away(door, conn, error, 0)
    except Exception as error:
        _turn_away(door, conn, ProtocolError(f"handshake failed: {error!r}", "handshake"), 0)


cdef void _refuse(void *self, uint64_t conn_id, const char *head, size_t n) noexcept with gil:
    """Answers a bad header with the error of frame.check_header, then closes."""
    cdef Authenticator door = <Authenticator>self
    cdef Conn *conn = conn_of(&door.loop.conns, conn_id)
    cdef FrameHeader whole
    cdef uint64_t limit = DATA_BODY_MAX if conn.opened else HANDSHAKE_BODY_MAX
    if conn.stream:
        limit = STREAM_BODY_MAX
    memset(&whole, 0, sizeof(whole))
    memcpy(&whole, head, min(n, <size_t>FRAME_HEADER_BYTES))
    try:
        check_header((<char *>&whole)[:4], whole.version, whole.kind, whole.flags,
                     whole.body_bytes, limit)
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


cdef void _refused(void *self, uint64_t conn_id, const char *why) noexcept with gil:
    cdef Authenticator door = <Authenticator>self
    cdef Conn *conn = conn_of(&door.loop.conns, conn_id)
    door.sessions.pop(conn_id, None)
    if not conn.closing:                # else `_turn_away` has reported it
        _note(door, conn, why.decode())


cdef void _forget(void *self, uint64_t conn_id) noexcept with gil:
    cdef Authenticator door = <Authenticator>self
    cdef Conn *conn = conn_of(&door.loop.conns, conn_id)
    if door.sessions.pop(conn_id, None) is not None and not conn.closing and not door.loop.stop:
        _note(door, conn, LEFT)
    door.origins.pop(conn_id, None)


cdef void _sum_up(void *self) noexcept with gil:
    cdef Authenticator door = <Authenticator>self
    door.attempts.sum_up()
    door.loop.unreported = door.attempts.unreported


cdef void _turn_away(Authenticator door, Conn *conn, error, uint64_t request) noexcept:
    door.loop.refused += 1
    if not conn.opened and not conn.closing:
        _note(door, conn, error)
    conn.closing = True
    conn.since = door.loop.now
    _send_bytes(conn, encode_frame(error_frame(error, request)))


cdef void _note(Authenticator door, Conn *conn, why) noexcept:
    """Logs a refusal, unless there are too many."""
    door.attempts.note(door.origins.get(conn.id) or peer_of(conn.fd), str(why))
    door.loop.unreported = door.attempts.unreported


cdef void _send_bytes(Conn *conn, bytes data) noexcept:
    cdef size_t n = len(data)
    cdef const char *source = data
    if not buffer_reserve(&conn.out, n):
        conn.closing = True
        return
    memcpy(conn.out.data + conn.out.end, source, n)
    conn.out.end += n
