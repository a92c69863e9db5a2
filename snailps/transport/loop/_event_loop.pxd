# The event loop of a shard: rounds of events, a turn for each connection, parked requests, the stream, timers.
#
#   listener or relay -> Conn, unknown -> (reception: the handshake) -> opened ... -> closed
#   input buffer -> frame, checked in place -> Handler.handle -> output buffer, or parked
#                                           -> Handler.replay -> acknowledged, of a primary's stream
#   parked requests -> Handler.handle -> output buffer          held replies -> output buffer
#   stream to the standby -> socket -> what is acknowledged
#
# Owns the order of all this, the descriptors and the parked requests.  Must not know more of a frame than its
# header: no tables, keys or rows.  The reception authenticates peers and logs refusals; the handler knows what a
# standby lacks; the stream's owner decides what follows when a standby is lost.
#
# One thread runs the loop, and it alone reads and writes `Loop` and all that hangs on it: no field has a lock.
# Other threads send it commands through `wake_fd` (`ShardLoop.post`).  What needs the GIL is rare, and is called
# through the function pointers of `Loop`.
#
# Invariants:
#   * Nothing overtakes a parked push of its connection: each later frame, a pull too, is parked after it.  A shard
#     skips a push that is not above its sender's mark, so a push that overtook an earlier one would make the shard
#     drop the earlier one as a repetition.  A parked pull keeps no order: a later push may overtake it.
#   * A frame is handled only if DATA_BODY_MAX bytes of output are free: a handler can always write its reply.
#   * Nothing here blocks.  What cannot go on is parked, held, or stuck, with a deadline that `_timers` checks.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport.loop._connection cimport Conn, Conns
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport Handler
from snailps.transport.loop._replication_stream cimport Stream

cdef enum:                          # smaller than ID_CONN_BASE
    ID_LISTENER = 1
    ID_WAKE = 2
    ID_STREAM = 3


cdef struct Parked:
    uint64_t conn_id
    double deadline
    double since
    const char *reason              # what it waits for, by the handler's last answer
    char *frame                     # copy of header and body; NULL = done, `_close_gaps` takes it out


cdef struct Parking:
    Parked *items                   # oldest first
    uint32_t count
    uint32_t cap


cdef struct Reception:              # authenticates peers, refuses others
    void *self
    int (*accept)(void *self) noexcept nogil    # takes a connection from the TLS relay; -1 = none
    void (*greet)(void *self, uint64_t conn_id, const char *frame, size_t n) noexcept nogil
    void (*refuse)(void *self, uint64_t conn_id, const char *head, size_t n) noexcept nogil
    void (*refused)(void *self, uint64_t conn_id, const char *why) noexcept nogil
    void (*forget)(void *self, uint64_t conn_id) noexcept nogil
    void (*sum_up)(void *self) noexcept nogil


cdef struct Loop:
    Conns conns
    Parking parking
    Handler *handler
    double park_limit_s             # how long a request may be parked
    double silence_limit_s          # how long a standby may acknowledge nothing
    double stuck_limit_s            # how long the stream of a primary may wait
    double now                      # of this round, read once: simulations give it, and all else follows
    double timers_at                # when deadlines were checked last
    int wake_fd
    int listen_fd
    int stream_fd                   # to the standby; -1 = none
    bint listening                  # off while no descriptor is left for a new connection
    bint stop
    bint retry_parked               # something that parked requests wait for may have come
    bint lost                       # some `Conn.lost` is set: it is closed at the end of the round
    bint limited                    # some connection is closing, stuck or not opened: timers check it
    Stream stream                   # to the standby of this shard
    bint seeding                    # there is more to send to it right now
    double asked_at                 # of the last request of a client, or frame of the primary
    uint64_t follows                # connection of this standby's primary; 0 = none so far
    uint64_t *released              # connections to which held replies were written just now
    uint32_t released_num
    uint32_t released_cap
    Faults faults
    # counters, written by the loop's thread alone
    uint64_t frames_in
    uint64_t refused
    bint relayed                    # connections come from the TLS relay, by `Reception.accept`
    bint unreported                 # refusals are to be summed up in the log
    # calls into Python, which take the GIL
    Reception reception
    void *self
    void (*commands)(void *self) noexcept nogil
    void (*obeyed)(void *self) noexcept nogil   # the standby has `stream.awaited`, or can never be promoted
    void (*report)(void *self, const char *state, const char *why) noexcept nogil  # of the stream


# Runs rounds until `stop`, without the GIL.
cdef void run_loop(Loop *loop) noexcept nogil
# Runs one round at the time `now`, with what has come so far; returns when the next is due if nothing comes.
cdef double turn_loop(Loop *loop, double now) noexcept nogil

# Closes a connection; a primary's stream is read to its end first.
cdef void close_conn(Loop *loop, Conn *conn) noexcept nogil
cdef void close_all(Loop *loop) noexcept nogil

# Begins a stream over a connected, authenticated socket; -1 = epoll refused it, and the caller still owns it.
cdef int open_stream(Loop *loop, int fd, bint sync, bint paced) noexcept nogil
# Forgets the stream: replies that waited for the standby go out.
cdef void end_stream(Loop *loop) noexcept nogil
cdef void close_stream(Loop *loop) noexcept nogil

cdef void parking_free(Parking *parking) noexcept nogil
