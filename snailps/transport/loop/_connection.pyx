# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Connections of a shard's loop; see _connection.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove

from snailps.transport._frame cimport DATA_BODY_MAX, FRAME_HEADER_BYTES
from snailps.transport._posix cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET,
    TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_NODELAY, c_close, epoll_ctl, epoll_event,
    setsockopt,
)
from snailps.transport._socket_io cimport (
    SOCKET_GONE, buffer_free, buffer_held, buffer_receive, buffer_send,
)

cdef enum:
    IN_BYTES_NEW = 8 << 10          # until a peer is authenticated: one handshake frame fits
    IN_BYTES_MIN = 64 << 10         # afterwards: most connections stay at this
    IN_BYTES_STREAM = 256 << 10     # of a primary's stream, the only busy connection of a standby
    PARKED_BYTES_MAX = 16 << 20     # of one connection: with more it is not read
    PARKED_PER_CONN_MAX = 4096
    KEEPALIVE_IDLE_S = 60           # a peer whose machine is gone is noticed after two minutes
    KEEPALIVE_EVERY_S = 20
    KEEPALIVE_COUNT = 3
    UNKNOWN_MAX = 512               # unauthenticated peers; for one more the oldest is closed
    UNKNOWN_SHARE = 4               # they get at most a quarter of the descriptors that are left


# --- the table -------------------------------------------------------------------------------------

cdef bint grow(void **array, uint32_t *cap, uint32_t need, size_t item) noexcept nogil:
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


cdef Conn *conn_new(Conns *conns, int fd, double now) noexcept nogil:
    cdef uint32_t slot
    cdef Conn *conn
    cdef epoll_event event
    conns.accepted += 1
    if conns.free_count:
        slot = conns.free_slots[conns.free_count - 1]
    else:
        slot = conns.count
        # Room for the slot in `free_slots` is allocated now: `conn_free` could not report a lack of memory.
        if not grow(<void **>&conns.slots, &conns.cap, slot + 1, sizeof(Conn *)) \
                or not grow(<void **>&conns.free_slots, &conns.free_cap, slot + 1, 4):
            return NULL
    conn = <Conn *>calloc(1, sizeof(Conn))
    if conn == NULL:
        return NULL
    conn.inp.data = <char *>malloc(IN_BYTES_NEW)
    if conn.inp.data == NULL:
        free(conn)
        return NULL
    conn.inp.cap = IN_BYTES_NEW
    conns.generation += 1
    conn.id = <uint64_t>ID_CONN_BASE + ((<uint64_t>conns.generation << 32) | slot)
    conn.fd = fd
    conn.since = now
    conn.events = EPOLLIN
    event.events = EPOLLIN
    event.data.u64 = conn.id
    if epoll_ctl(conns.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
        free(conn.inp.data)
        free(conn)
        return NULL
    conns.slots[slot] = conn
    if slot == conns.count:
        conns.count += 1
    else:
        conns.free_count -= 1
    conns.open += 1
    conns.unknown += 1
    return conn


cdef void conn_opened(Conns *conns, Conn *conn) noexcept nogil:
    conn.opened = True
    conns.unknown -= 1


cdef void conn_free(Conns *conns, Conn *conn) noexcept nogil:
    cdef uint32_t slot = <uint32_t>(conn.id - <uint64_t>ID_CONN_BASE)
    conns.unknown -= not conn.opened
    c_close(conn.fd)                # also takes it out of epoll
    buffer_free(&conn.inp)
    buffer_free(&conn.out)
    free(conn)
    conns.slots[slot] = NULL
    conns.free_slots[conns.free_count] = slot
    conns.free_count += 1
    conns.open -= 1


cdef void conns_free(Conns *conns) noexcept nogil:
    cdef uint32_t i
    for i in range(conns.count):
        if conns.slots[i] != NULL:
            conn_free(conns, conns.slots[i])
    free(conns.slots)
    free(conns.free_slots)
    free(conns.ready)


cdef void set_options(int fd) noexcept nogil:
    cdef int one = 1
    cdef int idle = KEEPALIVE_IDLE_S
    cdef int every = KEEPALIVE_EVERY_S
    cdef int count = KEEPALIVE_COUNT
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count))


cdef Conn *oldest_unknown(Conns *conns) noexcept nogil:
    cdef Conn *oldest = NULL
    cdef Conn *conn
    cdef uint32_t i
    for i in range(conns.count):
        conn = conns.slots[i]
        if conn != NULL and not conn.opened and (oldest == NULL or conn.since < oldest.since):
            oldest = conn
    return oldest


cdef uint32_t unknown_max(long fd, unsigned long descriptors_max) noexcept nogil:
    if descriptors_max > 1 << 30:
        return UNKNOWN_MAX
    return max(1, min(UNKNOWN_MAX, (<long>descriptors_max - fd) // UNKNOWN_SHARE))


# --- buffers -------------------------------------------------------------------------------------

cdef bint conn_is_full(const Conn *conn) noexcept nogil:
    return buffer_held(&conn.out) > DATA_BODY_MAX or conn.parked_bytes > PARKED_BYTES_MAX \
        or conn.parked >= PARKED_PER_CONN_MAX or conn.unanswered >= PARKED_PER_CONN_MAX


cdef int conn_flush(Conns *conns, Conn *conn) noexcept nogil:
    cdef ssize_t sent = 1
    while sent > 0 and buffer_held(&conn.out):
        sent = buffer_send(&conn.out, conn.fd, &conns.bytes_out)
    if sent == SOCKET_GONE:
        return -1
    if buffer_held(&conn.out) == 0:
        conn.urgent = False
    return 0


cdef bint in_reserve(Conn *conn, size_t frame_bytes) noexcept nogil:
    cdef Buffer *inp = &conn.inp
    cdef size_t held = inp.end - inp.start
    cdef size_t cap = inp.cap
    cdef char *grown
    if held == 0:
        inp.start = inp.end = 0
    elif inp.start > 0 and (inp.cap - inp.start < frame_bytes or inp.end == inp.cap):
        memmove(inp.data, inp.data + inp.start, held)
        inp.start = 0
        inp.end = held
    if frame_bytes > cap:
        cap = frame_bytes + IN_BYTES_MIN
    elif conn.opened and cap < IN_BYTES_MIN:
        cap = IN_BYTES_STREAM if conn.stream else IN_BYTES_MIN
    if cap > inp.cap:
        grown = <char *>realloc(inp.data, cap)
        if grown == NULL:
            return False
        inp.data = grown
        inp.cap = cap
    return True


cdef int conn_read(Conns *conns, Conn *conn) noexcept nogil:
    if not in_reserve(conn, FRAME_HEADER_BYTES):
        return -1
    if conn.inp.end == conn.inp.cap:
        return 0                    # the buffer is full of whole frames, which wait for their turn
    return -1 if buffer_receive(&conn.inp, conn.fd, conn.inp.cap, &conns.bytes_in) == SOCKET_GONE \
        else 0


# --- what it waits for ---------------------------------------------------------------------------

cdef bint conn_put_ready(Conns *conns, Conn *conn) noexcept nogil:
    if conn.in_ready:
        return True
    if not grow(<void **>&conns.ready, &conns.ready_cap, conns.ready_count + 1, sizeof(uint64_t)):
        return False
    conn.in_ready = True
    conns.ready[conns.ready_count] = conn.id
    conns.ready_count += 1
    return True


cdef bint conn_watch(Conns *conns, Conn *conn) noexcept nogil:
    cdef epoll_event event
    cdef uint32_t wanted = 0
    cdef bint full = conn_is_full(conn)
    if buffer_held(&conn.out) and not conn.waits:
        wanted |= EPOLLOUT
    if conn.closing or not (full or conn.stuck):
        wanted |= EPOLLIN
    if wanted != conn.events:
        conn.events = wanted
        event.events = wanted
        event.data.u64 = conn.id
        epoll_ctl(conns.epoll_fd, EPOLL_CTL_MOD, conn.fd, &event)
    if conn.held and not full:
        conn.held = False           # its frames are in the buffer, not in the socket: epoll reports nothing
        return conn_put_ready(conns, conn)
    return True
