# Connections of a shard's loop: a table, two buffers for each, and what epoll watches.
#
#   recv -> inp -> frames, in place          replies -> out -> send
#
# Must not know more of a frame than its header.  Only the loop's thread touches any of it.
#
#   * An id is never used twice: a late event or a parked request of a closed connection finds none.
#   * A connection whose output is full, or with too many parked requests, is *held*: it is not read, so
#     that TCP stops the peer, and is put on the ready list as soon as there is room again.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport._socket_io cimport Buffer

cdef enum:
    ID_CONN_BASE = 16               # smaller ids are the loop's own descriptors


cdef struct Conn:
    uint64_t id                     # ID_CONN_BASE + (generation << 32 | slot): never used twice
    int fd
    bint opened                     # handshake done
    bint closing                    # flush what is queued, take no more, wait for the peer to close
    bint shut                       # closing, and our sending direction is shut down
    bint lost                       # close at the end of the round: the caller still holds a pointer
    bint starved                    # a parked request could be answered, but the output is full
    bint blocked                    # while parked requests are retried: a push of it is still parked
    bint held                       # the input may hold whole frames, of which no event will come
    bint waits                      # answers to pushes wait for the push whose first bytes are here
    bint urgent                     # the output has answers that must not wait
    bint stream                     # the peer is this standby's primary
    bint stuck                      # the stream's next frame cannot be executed yet: `stuck_why`
    bint released                   # replies that waited for the standby were just written to it
    bint in_ready                   # it is in `Conns.ready`
    uint32_t events                 # what epoll watches now
    uint32_t parked                 # parked requests
    uint32_t parked_pushes          # of them pushes and batches: the kinds that keep their order
    uint64_t parked_bytes
    uint32_t unanswered             # replies that wait for the standby
    const char *stuck_why
    uint64_t replayed               # frames of the stream that are executed
    uint64_t replayed_bytes
    uint64_t acknowledged_bytes
    uint64_t acknowledged           # frames that were acknowledged
    uint64_t job
    void *memory                    # the handler's, of this connection
    double since                    # when it was accepted; later: when it began to close, or got stuck
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
    uint32_t open                   # connections
    uint32_t unknown                # of them not authenticated yet
    uint64_t accepted               # since the start
    uint64_t *ready                 # ids of connections with work left
    uint32_t ready_count
    uint32_t ready_cap
    uint64_t bytes_in
    uint64_t bytes_out


cdef inline Conn *conn_of(Conns *conns, uint64_t conn_id) noexcept nogil:
    """Finds a connection; NULL = it is closed.  Inline: called for each event."""
    cdef uint32_t slot = <uint32_t>(conn_id - <uint64_t>ID_CONN_BASE)
    if slot >= conns.count or conns.slots[slot] == NULL or conns.slots[slot].id != conn_id:
        return NULL
    return conns.slots[slot]


# Makes room for `need` items in an array; False = no memory, nothing changed.
cdef bint grow(void **array, uint32_t *cap, uint32_t need, size_t item) noexcept nogil

# A connection for an accepted socket, not opened; NULL = no memory, the socket is still the caller's.
cdef Conn *conn_new(Conns *conns, int fd, double now) noexcept nogil
# Marks a connection as authenticated.
cdef void conn_opened(Conns *conns, Conn *conn) noexcept nogil
# Closes its socket and forgets it.
cdef void conn_free(Conns *conns, Conn *conn) noexcept nogil
cdef void conns_free(Conns *conns) noexcept nogil
# Sets TCP_NODELAY, and keep-alive: a peer whose machine is gone is noticed after two minutes.
cdef void set_options(int fd) noexcept nogil

# Whether the connection may not be served now: many replies are unread, or many requests are parked.
cdef bint conn_is_full(const Conn *conn) noexcept nogil
# Sends what the socket takes; -1 = the peer is gone.
cdef int conn_flush(Conns *conns, Conn *conn) noexcept nogil
# Makes room for a frame of which a part is there, and to read ahead; False = no memory.
cdef bint in_reserve(Conn *conn, size_t frame_bytes) noexcept nogil
# One recv into the input; -1 = the peer is gone.
cdef int conn_read(Conns *conns, Conn *conn) noexcept nogil

# Gives the connection a turn in the next round; False = no memory.
cdef bint conn_put_ready(Conns *conns, Conn *conn) noexcept nogil
# Has epoll watch for what the connection waits for: room to send, input, both; False = no memory.
cdef bint conn_watch(Conns *conns, Conn *conn) noexcept nogil

# Returns the oldest unauthenticated connection, the first to be closed; NULL = there is none.
cdef Conn *oldest_unknown(Conns *conns) noexcept nogil
# The most unauthenticated connections, when the newest has this descriptor and the process may have so many
# descriptors; like refusals.strangers_max.
cdef uint32_t unknown_max(long fd, unsigned long descriptors_max) noexcept nogil
