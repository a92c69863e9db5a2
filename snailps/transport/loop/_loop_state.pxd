# What a shard's loop works on, and the doors through which it comes to what needs the GIL.
#
# Data alone: what is done with it, in the loop's thread, is in `_iteration.pyx` and `_dispatch.pyx`.
# Behind the doors are the rare things, in Python.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport.loop._connection cimport Conns
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport Handler
from snailps.transport.loop._parked_requests cimport Parking
from snailps.transport.loop._replication_stream cimport Stream

cdef enum:                          # smaller than ID_CONN_BASE
    ID_LISTENER = 1
    ID_WAKE = 2
    ID_STREAM = 3


cdef struct Reception:              # who a peer is, and what is said to one that is refused
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
    bint lost                       # some connection is: to be closed when nobody looks at it
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
    bint unsaid                     # refusals are to be summed up in the log
    # doors to Python
    Reception reception
    void *self
    void (*commands)(void *self) noexcept nogil
    void (*obeyed)(void *self) noexcept nogil   # the standby has `stream.awaited`, or need not have it
    void (*tell)(void *self, const char *state, const char *why) noexcept nogil  # of the stream
