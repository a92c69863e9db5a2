# cython: cdivision=True
# Connections come and go: accepted while there is room, closed with all that belongs to them.
#
#   listener or relay -> Conn, unknown -> (reception: the handshake) -> opened ... -> close
#
# Who a peer is, and what its refusal is called in the log, the reception knows (`_loop_state.pxd`).
from libc.errno cimport EAGAIN, EINTR, EMFILE, ENFILE, errno
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport._posix cimport *
from snailps.transport.loop._connection cimport *
from snailps.transport.loop._dispatch cimport serve
from snailps.transport.loop._loop_state cimport ID_LISTENER, Loop, welcome
from snailps.transport.loop._parked_requests cimport close_gaps, unpark
from snailps.transport.loop._replication_stream cimport held_forget

cdef enum:
    UNKNOWN_MAX = 512               # peers that have not proved who they are: one more, and the
                                    # oldest has to go
    STRANGERS_SHARE = 4             # ... and no more than a part of the descriptors that are left
    ACCEPTS_MAX = 64                # at a time: those who shake hands have their turn in between


cdef inline void _drain(Loop *loop, Conn *conn) noexcept nogil:
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
        if serve(loop, conn, now_s()) < 0:
            return
        more = loop.conns.bytes_in != read or conn.in_end - conn.in_start != left


cdef inline void close(Loop *loop, Conn *conn) noexcept nogil:
    cdef uint32_t i
    if conn.stream and not loop.stop:
        _drain(loop, conn)
    if conn.parked:                 # its parked requests have nobody to answer any more
        for i in range(loop.parking.count):
            if loop.parking.items[i].conn_id == conn.id:
                unpark(&loop.parking.items[i], conn)
        close_gaps(&loop.parking)
    if not conn.opened:
        loop.unknown -= 1
        loop.reception.forget(loop.reception.self, conn.id)
    if conn.owed:
        held_forget(&loop.stream, conn.id)
    if conn.id == loop.follows and conn.replayed == 0:
        loop.follows = 0            # it said nothing: another may come
    loop.handler.forget(conn.memory)
    conn_free(&loop.conns, conn)


cdef inline void listen(Loop *loop, bint on) noexcept nogil:
    cdef epoll_event event
    event.events = EPOLLIN if on else 0
    event.data.u64 = ID_LISTENER
    epoll_ctl(loop.conns.epoll_fd, EPOLL_CTL_MOD, loop.listen_fd, &event)
    loop.listening = on


cdef inline void make_room(Loop *loop) noexcept nogil:
    """Closes the oldest connection whose peer has not proved who it is."""
    cdef Conn *oldest = NULL
    cdef Conn *conn
    cdef uint32_t i
    for i in range(loop.conns.count):
        conn = loop.conns.slots[i]
        if conn != NULL and not conn.opened and (oldest == NULL or conn.since < oldest.since):
            oldest = conn
    loop.reception.refused(loop.reception.self, oldest.id, b"made room for newer connections")
    close(loop, oldest)


cdef inline uint32_t _strangers_max(int fd) noexcept nogil:
    """As strangers.strangers_max: how many are kept when the newest has this descriptor."""
    cdef rlimit limits
    if getrlimit(RLIMIT_NOFILE, &limits) < 0 or limits.rlim_cur > 1 << 30:
        return UNKNOWN_MAX
    return max(1, min(UNKNOWN_MAX, (<long>limits.rlim_cur - fd) // STRANGERS_SHARE))


cdef inline int _accept(Loop *loop) noexcept nogil:
    """A new connection's descriptor; -1 = there is none now, or none is left for it."""
    cdef int fd
    if loop.relayed:
        return loop.reception.accept(loop.reception.self)
    fd = accept4(loop.listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if fd >= 0:
        set_options(fd)
        if welcome(loop, fd) == NULL:
            c_close(fd)
    return fd


cdef inline void accept_some(Loop *loop) noexcept nogil:
    cdef int fd, i
    for i in range(ACCEPTS_MAX):
        fd = _accept(loop)
        if fd < 0:
            # Without descriptors it fails even when nobody waits.  At first somebody does, and gets
            # one of a stranger's; later epoll would tell.
            if i == 0 and not loop.relayed and errno != EAGAIN and errno != EINTR:
                if (errno == EMFILE or errno == ENFILE) and loop.unknown:
                    make_room(loop)
                    continue
                listen(loop, False)     # epoll would report him for ever: try again later
            return
        while loop.unknown > _strangers_max(fd):
            make_room(loop)
