# The event loop of a shard: rounds of events, a turn for each connection, what waits, the stream, timers.
#
#   listener or relay -> Conn, unknown -> (reception: the handshake) -> opened ... -> closed
#   input buffer -> frame, checked in place -> Handler.handle -> output buffer, or parked
#                                           -> Handler.replay -> acknowledged, of a primary's stream
#   parked requests -> Handler.handle -> output buffer          held replies -> output buffer
#   stream to the standby -> socket -> what is acknowledged
#
# It owns their order, the descriptors and the parked requests.  It knows the frame header and nothing of
# tables, keys or rows.  The reception authenticates peers and logs refusals; the handler knows
# what a standby lacks; the stream's owner decides what becomes of one that is lost.
# What needs the GIL is rare, and behind the doors of `Loop`.
#
# Parked requests keep their order: a push that overtook an earlier one of the same sender would make the
# shard take the earlier one for a repetition and drop it.
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
    const char *reason              # the handler's words: they may change while it waits
    char *frame                     # header and body; NULL = done, to be taken out


cdef struct Parking:
    Parked *items                   # oldest first
    uint32_t count
    uint32_t cap


cdef struct Reception:              # authenticates peers, refuses others
    void *self
    int (*accept)(void *self) noexcept nogil    # ... where a relay has them: a descriptor, -1 = none
    void (*greet)(void *self, uint64_t conn_id, const char *frame, size_t n) noexcept nogil
    void (*refuse)(void *self, uint64_t conn_id, const char *head, size_t n) noexcept nogil
    void (*refused)(void *self, uint64_t conn_id, const char *why) noexcept nogil
    void (*forget)(void *self, uint64_t conn_id) noexcept nogil
    void (*sum_up)(void *self) noexcept nogil


cdef struct Loop:
    Conns conns
    Parking parking
    Handler *handler
    double park_limit_s
    double silence_limit_s          # ... that a standby may acknowledge nothing
    double stuck_limit_s            # ... that the stream of a primary may wait
    double now                      # of this round: nothing below looks at a clock
    double timers_at                # when deadlines were looked at last
    int wake_fd
    int listen_fd
    int stream_fd                   # to the standby; -1 = none
    bint listening                  # off while there is no descriptor left for a new connection
    bint stop
    bint retry_parked
    bint lost                       # some connection is: to be closed at the end of the round
    bint limited                    # some connection is closing, stuck or not opened: timers look at it
    Stream stream                   # to the standby of this shard
    bint seeding                    # more of what it lacks can be sent at once
    double asked_at                 # the last request of a client came, or frame of the primary
    uint64_t follows                # connection of the primary whose standby this is; 0 = none so far
    uint64_t *released              # connections to which held replies were written just now
    uint32_t released_num
    uint32_t released_cap
    Faults faults
    # counters, written by the loop's thread alone
    uint64_t frames_in
    uint64_t refused
    bint relayed                    # the listener is a relay's: it is asked for connections
    bint unreported                 # refusals are to be summed up in the log
    # doors to Python
    Reception reception
    void *self
    void (*commands)(void *self) noexcept nogil
    void (*obeyed)(void *self) noexcept nogil   # the standby has `stream.awaited`, or need not have it
    void (*report)(void *self, const char *state, const char *why) noexcept nogil  # of the stream


# Rounds until `stop`, without the GIL.
cdef void run_loop(Loop *loop) noexcept nogil
# One round as of `now`, with what has come so far; when the next is due if nothing comes.
cdef double turn_loop(Loop *loop, double now) noexcept nogil

# Ends a connection: a primary's stream is read to its end first.
cdef void close_conn(Loop *loop, Conn *conn) noexcept nogil
cdef void close_all(Loop *loop) noexcept nogil

# Begins a stream over a connected, authenticated socket; -1 = it cannot be watched, and is the caller's.
cdef int open_stream(Loop *loop, int fd, bint sync, bint paced) noexcept nogil
# Forgets the stream: what waits for it is answered.
cdef void end_stream(Loop *loop) noexcept nogil
cdef void close_stream(Loop *loop) noexcept nogil

cdef void parking_free(Parking *parking) noexcept nogil
