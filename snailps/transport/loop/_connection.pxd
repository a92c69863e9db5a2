# cython: cdivision=True
# Connections of a shard's loop: their slots, their two buffers, what epoll watches for each.
#
#   recv -> inp[in_start:in_end] -> frames, in place     replies -> out[out_start:out_end] -> send
#
# Knows frame headers and nothing of what is served.  All of it runs in the loop's thread.
#
#   * An id is never used twice: an event or a parked request of a closed connection finds nothing.
#   * A connection that may not be served now, because its output is full or too much of it is
#     parked, is *held*: not read, and put on the ready list as soon as there is room again.
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove, memset

from snailps.transport._frame cimport (
    DATA_BODY_MAX, FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_VERSION, HANDSHAKE_BODY_MAX, FrameHeader,
)
from snailps.transport._posix cimport *

cdef enum:
    IN_BYTES_NEW = 8 << 10          # until a peer has proved who it is: one handshake frame fits
    IN_BYTES_MIN = 64 << 10         # afterwards: most connections stay at this
    IN_BYTES_STREAM = 256 << 10     # ... but a primary's stream, which is all that a standby reads
    PARKED_BYTES_MAX = 16 << 20     # of one connection: then it is not read until some are done
    PARKED_PER_CONN_MAX = 4096
    KEEPALIVE_IDLE_S = 60           # a peer whose machine is gone is noticed after two minutes
    KEEPALIVE_EVERY_S = 20
    KEEPALIVE_COUNT = 3
    ID_CONN_BASE = 16               # smaller ids are the loop's own descriptors


cdef struct Conn:
    uint64_t id                     # ID_CONN_BASE + (generation << 32 | slot): never used twice
    int fd
    bint opened                     # handshake done
    bint closing                    # send what is left, say no more, wait for the peer to close
    bint shut                       # ... and the sending direction is closed already
    bint lost                       # to be closed as soon as nobody looks at it
    bint starved                    # a parked request could be answered, but the output is full
    bint blocked                    # while parked ones are retried: a push of it still waits
    bint held                       # frames may wait in the input although no event will come
    bint waits                      # answers to pushes wait for the one whose first bytes are here
    bint urgent                     # the output holds other answers, too
    bint stream                     # what comes is a primary's stream
    bint stuck                      # ... whose next frame cannot be taken yet: `stuck_why`
    bint released                   # in the list of those that held replies were written to
    bint in_ready                   # already in the list of those with work left
    uint32_t events                 # what epoll watches now
    uint32_t parked
    uint32_t parked_pushes          # ... and batches: what keeps its order
    uint64_t parked_bytes
    uint32_t owed                   # replies to it that wait for the standby
    const char *stuck_why
    uint64_t replayed               # frames of the stream that are done,
    uint64_t replayed_bytes
    uint64_t acknowledged_bytes
    uint64_t acknowledged           # ... and of which that was said
    uint64_t job
    void *memory                    # the handler's, of this connection
    double since                    # accepted; later: when it began to close
    char *inp
    size_t in_cap
    size_t in_start
    size_t in_end
    char *out
    size_t out_cap
    size_t out_start
    size_t out_end


cdef struct Conns:
    int epoll_fd
    Conn **slots
    uint32_t count                  # slots in use or free again
    uint32_t cap
    uint32_t *free_slots
    uint32_t free_count
    uint32_t free_cap
    uint32_t generation
    uint32_t open
    uint64_t *ready
    uint32_t ready_count
    uint32_t ready_cap
    uint64_t bytes_in
    uint64_t bytes_out


cdef inline bint grow(void **array, uint32_t *cap, uint32_t need, size_t item) noexcept nogil:
    """Makes room for `need` items; False = no memory, nothing changed."""
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


cdef inline Conn *conn_of(Conns *conns, uint64_t conn_id) noexcept nogil:
    cdef uint32_t slot = <uint32_t>(conn_id - <uint64_t>ID_CONN_BASE)
    if slot >= conns.count or conns.slots[slot] == NULL or conns.slots[slot].id != conn_id:
        return NULL
    return conns.slots[slot]


cdef inline Conn *conn_new(Conns *conns, int fd) noexcept nogil:
    """A connection for an accepted socket; NULL = no memory, the socket is still the caller's."""
    cdef uint32_t slot
    cdef Conn *conn
    cdef epoll_event event
    if conns.free_count:
        slot = conns.free_slots[conns.free_count - 1]
    else:
        slot = conns.count
        # Room to free it again is made now, when running out of memory can still be told.
        if not grow(<void **>&conns.slots, &conns.cap, slot + 1, sizeof(Conn *)) \
                or not grow(<void **>&conns.free_slots, &conns.free_cap, slot + 1, 4):
            return NULL
    conn = <Conn *>calloc(1, sizeof(Conn))
    if conn == NULL:
        return NULL
    conn.inp = <char *>malloc(IN_BYTES_NEW)
    if conn.inp == NULL:
        free(conn)
        return NULL
    conn.in_cap = IN_BYTES_NEW
    conns.generation += 1
    conn.id = <uint64_t>ID_CONN_BASE + ((<uint64_t>conns.generation << 32) | slot)
    conn.fd = fd
    conn.since = now_s()
    conn.events = EPOLLIN
    event.events = EPOLLIN
    event.data.u64 = conn.id
    if epoll_ctl(conns.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
        free(conn.inp)
        free(conn)
        return NULL
    conns.slots[slot] = conn
    if slot == conns.count:
        conns.count += 1
    else:
        conns.free_count -= 1
    conns.open += 1
    return conn


cdef inline void conn_free(Conns *conns, Conn *conn) noexcept nogil:
    cdef uint32_t slot = <uint32_t>(conn.id - <uint64_t>ID_CONN_BASE)
    c_close(conn.fd)                # also takes it out of epoll
    free(conn.inp)
    free(conn.out)
    free(conn)
    conns.slots[slot] = NULL
    conns.free_slots[conns.free_count] = slot
    conns.free_count += 1
    conns.open -= 1


cdef inline void set_options(int fd) noexcept nogil:
    """No delay for small frames; a peer whose machine vanished is noticed in the end."""
    cdef int one = 1
    cdef int idle = KEEPALIVE_IDLE_S
    cdef int every = KEEPALIVE_EVERY_S
    cdef int count = KEEPALIVE_COUNT
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count))


# --- output --------------------------------------------------------------------------------------

cdef inline bint conn_is_full(Conn *conn) noexcept nogil:
    """Whether no further request may be served: much waits to be read, or is parked."""
    return conn.out_end - conn.out_start > DATA_BODY_MAX or conn.parked_bytes > PARKED_BYTES_MAX \
        or conn.parked >= PARKED_PER_CONN_MAX or conn.owed >= PARKED_PER_CONN_MAX


cdef inline bint out_reserve(Conn *conn, size_t need) noexcept nogil:
    """Room for `need` bytes behind out_end, aligned for the numbers of a body; False = no memory."""
    cdef size_t held = conn.out_end - conn.out_start
    cdef size_t first = -held & 7       # where what is held is put, so that it ends aligned
    cdef size_t cap
    cdef char *grown
    # Only words end elsewhere: an ERROR, a handshake.
    if conn.out_cap - conn.out_end >= need and not conn.out_end & 7 \
            and (held or not conn.out_start):
        return True
    if conn.out_cap < first + held + need:
        # As small as the traffic allows, so that it stays in cache; yet twice what is held, so that
        # closing the gap moves no more than was written since the last time.
        cap = 2 * held + need + 8
        grown = <char *>realloc(conn.out, cap)
        if grown == NULL:
            return False
        conn.out = grown
        conn.out_cap = cap
    memmove(conn.out + first, conn.out + conn.out_start, held)
    conn.out_start = first
    conn.out_end = first + held
    return True


cdef inline void fill_head(FrameHeader *head, uint8_t kind, uint64_t request,
                           uint64_t body_bytes) noexcept nogil:
    """Header of a reply: who asked knows the table, the job and itself."""
    memset(head, 0, FRAME_HEADER_BYTES)
    head.magic = FRAME_MAGIC
    head.version = FRAME_VERSION
    head.kind = kind
    head.request = request
    head.body_bytes = body_bytes


cdef inline int conn_flush(Conns *conns, Conn *conn) noexcept nogil:
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
        conns.bytes_out += sent
    conn.out_start = conn.out_end = 0
    conn.urgent = False
    return 0


# --- input ---------------------------------------------------------------------------------------

cdef inline bint in_reserve(Conn *conn, size_t frame_bytes) noexcept nogil:
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
    if frame_bytes > cap:
        cap = frame_bytes + IN_BYTES_MIN
    elif conn.opened and cap < IN_BYTES_MIN:
        cap = IN_BYTES_STREAM if conn.stream else IN_BYTES_MIN
    if cap > conn.in_cap:
        grown = <char *>realloc(conn.inp, cap)
        if grown == NULL:
            return False
        conn.inp = grown
        conn.in_cap = cap
    return True


cdef inline int conn_read(Conns *conns, Conn *conn) noexcept nogil:
    """One recv into the input buffer; -1 = the peer is gone."""
    cdef ssize_t got
    if not in_reserve(conn, FRAME_HEADER_BYTES):
        return -1
    if conn.in_end == conn.in_cap:
        return 0                    # whole frames are waiting for their turn
    got = c_recv(conn.fd, conn.inp + conn.in_end, conn.in_cap - conn.in_end, MSG_DONTWAIT)
    if got < 0:
        return 0 if errno == EAGAIN or errno == EINTR else -1
    if got == 0:
        return -1
    conn.in_end += got
    conns.bytes_in += got
    return 0


# --- what it waits for ---------------------------------------------------------------------------

cdef inline bint conn_put_ready(Conns *conns, Conn *conn) noexcept nogil:
    """Gives the connection a turn in the next round; False = no memory."""
    if conn.in_ready:
        return True
    if not grow(<void **>&conns.ready, &conns.ready_cap, conns.ready_count + 1, sizeof(uint64_t)):
        return False
    conn.in_ready = True
    conns.ready[conns.ready_count] = conn.id
    conns.ready_count += 1
    return True


cdef inline bint conn_watch(Conns *conns, Conn *conn) noexcept nogil:
    """Tells epoll what the connection waits for: output room, input, both; False = no memory."""
    cdef epoll_event event
    cdef uint32_t wanted = 0
    cdef bint full = conn_is_full(conn)
    if conn.out_end > conn.out_start and not conn.waits:
        wanted |= EPOLLOUT
    if conn.closing or not (full or conn.stuck):
        wanted |= EPOLLIN
    if wanted != conn.events:
        conn.events = wanted
        event.events = wanted
        event.data.u64 = conn.id
        epoll_ctl(conns.epoll_fd, EPOLL_CTL_MOD, conn.fd, &event)
    if conn.held and not full:
        conn.held = False           # its frames are in our buffer: epoll would not tell of them
        return conn_put_ready(conns, conn)
    return True
