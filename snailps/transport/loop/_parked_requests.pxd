# Requests that wait at a shard: kept as the frames they came as, in the order they came.
#
#   frame, reason, deadline -> queue -> tried again, oldest first (`_dispatch.pyx`) -> done, or late
#
# Knows neither why they wait nor how they are answered.  Order is what matters here: a push that
# overtook an earlier one of the same sender would make the shard take the earlier one for a repetition
# and drop it.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._connection cimport Conn


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


# Keeps a copy of a request; False = no memory.
cdef bint park(Parking *parking, Conn *conn, const FrameHeader *head, const char *body,
               const char *reason, double now, double limit_s) noexcept nogil
# Marks a request as done; `close_gaps` takes it out.
cdef void unpark(Parked *place, Conn *conn) noexcept nogil
# Takes out what is done; the others keep their order.
cdef void close_gaps(Parking *parking) noexcept nogil
# Drops what a connection that ends has parked: nobody waits for the answers any more.
cdef void park_forget(Parking *parking, Conn *conn) noexcept nogil
cdef void parking_free(Parking *parking) noexcept nogil
