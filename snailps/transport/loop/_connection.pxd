# Connections of a shard's loop: a table of them, the two buffers of each, what epoll watches for it.
#
#   recv -> inp -> frames, in place          replies -> out -> send
#
# Knows frame headers and nothing of what is served.  All of it belongs to the loop's thread.
#
#   * An id is never used twice: an event or a parked request of a closed connection finds nothing.
#   * A connection that may not be served now, because its output is full or too much of it is
#     parked, is *held*: not read, and put on the ready list as soon as there is room again.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport._socket_io cimport Buffer

cdef enum:
    ID_CONN_BASE = 16               # smaller ids are the loop's own descriptors


cdef struct Conn:
    uint64_t id                     # ID_CONN_BASE + (generation << 32 | slot): never used twice
    int fd
    bint opened                     # handshake done
    bint closing                    # send what is left, say no more, wait for the peer to close
    bint shut                       # ... and the sending direction is closed already
    bint lost                       # to be closed at the end of the round
    bint starved                    # a parked request could be answered, but the output is full
    bint blocked                    # while parked ones are retried: a push of it still waits
    bint held                       # frames may wait in the input although no event will come
    bint waits                      # answers to pushes wait for the one whose first bytes are here
    bint urgent                     # the output holds other answers, too
    bint stream                     # what comes is a primary's stream
    bint stuck                      # ... whose next frame cannot be taken yet: `stuck_why`
    bint released                   # replies that were held for the standby were just written to it
    bint in_ready                   # already in the list of those with work left
    uint32_t events                 # what epoll watches now
    uint32_t parked
    uint32_t parked_pushes          # ... and batches: what keeps its order
    uint64_t parked_bytes
    uint32_t unanswered             # replies to it that wait for the standby
    const char *stuck_why
    uint64_t replayed               # frames of the stream that are done,
    uint64_t replayed_bytes
    uint64_t acknowledged_bytes
    uint64_t acknowledged           # ... and of which that was sent
    uint64_t job
    void *memory                    # the handler's, of this connection
    double since                    # accepted; later: when it began to close, or to be stuck
    Buffer inp
    Buffer out


cdef struct Conns:
    int epoll_fd
    Conn **slots
    uint32_t count                  # slots in use or free again
    uint32_t cap
    uint32_t *free_slots
    uint32_t free_count
    uint32_t free_cap
    uint32_t generation
    uint32_t open                   # connections,
    uint32_t unknown                # ... of which so many are not authenticated
    uint64_t accepted               # since the start
    uint64_t *ready                 # ids of those with work left
    uint32_t ready_count
    uint32_t ready_cap
    uint64_t bytes_in
    uint64_t bytes_out


cdef inline Conn *conn_of(Conns *conns, uint64_t conn_id) noexcept nogil:
    """The connection, NULL = it is closed.  Inline: a lookup for each event."""
    cdef uint32_t slot = <uint32_t>(conn_id - <uint64_t>ID_CONN_BASE)
    if slot >= conns.count or conns.slots[slot] == NULL or conns.slots[slot].id != conn_id:
        return NULL
    return conns.slots[slot]


# Makes room for `need` items in an array; False = no memory, nothing changed.
cdef bint grow(void **array, uint32_t *cap, uint32_t need, size_t item) noexcept nogil

# A connection for an accepted socket, not opened; NULL = no memory, the socket is still the caller's.
cdef Conn *conn_new(Conns *conns, int fd, double now) noexcept nogil
# Its handshake is done.
cdef void conn_opened(Conns *conns, Conn *conn) noexcept nogil
# Closes its socket and forgets it.
cdef void conn_free(Conns *conns, Conn *conn) noexcept nogil
cdef void conns_free(Conns *conns) noexcept nogil
# No delay for small frames; a peer whose machine vanished is noticed in the end.
cdef void set_options(int fd) noexcept nogil

# Whether no further request may be served: much waits to be read, or is parked.
cdef bint conn_is_full(const Conn *conn) noexcept nogil
# Sends what the socket takes; -1 = the peer is gone.
cdef int conn_flush(Conns *conns, Conn *conn) noexcept nogil
# Makes room for a frame of which a part is there, and some to read ahead; False = no memory.
cdef bint in_reserve(Conn *conn, size_t frame_bytes) noexcept nogil
# One recv into the input; -1 = the peer is gone.
cdef int conn_read(Conns *conns, Conn *conn) noexcept nogil

# Gives the connection a turn in the next round; False = no memory.
cdef bint conn_put_ready(Conns *conns, Conn *conn) noexcept nogil
# Tells epoll what the connection waits for: output room, input, both; False = no memory.
cdef bint conn_watch(Conns *conns, Conn *conn) noexcept nogil

# The connection to close first: the oldest that is not authenticated; NULL = all are.
cdef Conn *oldest_unknown(Conns *conns) noexcept nogil
# How many such may be kept when the newest has this descriptor and a process may have so many: as
# refusals.strangers_max.
cdef uint32_t unknown_max(long fd, unsigned long descriptors_max) noexcept nogil
