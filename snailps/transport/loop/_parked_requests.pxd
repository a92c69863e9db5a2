# cython: cdivision=True
# Requests that wait at a shard: kept as the frames they came as, in the order they came.
#
# Knows nothing of why they wait.  Order is what matters here: a push that overtook an earlier one
# of the same sender would make the shard take the earlier one for a repetition and drop it.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from snailps.transport._frame cimport FRAME_HEADER_BYTES, FrameHeader, kind_keeps_order
from snailps.transport.loop._connection cimport Conn, grow


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


cdef inline bint park(Parking *parking, Conn *conn, const FrameHeader *head, const char *body,
                      const char *reason, double now, double limit_s) noexcept nogil:
    """Keeps a copy of a request; False = no memory."""
    cdef size_t size = FRAME_HEADER_BYTES + head.body_bytes
    cdef char *copy = <char *>malloc(size)
    cdef Parked *place
    if copy == NULL or not grow(<void **>&parking.items, &parking.cap, parking.count + 1,
                                sizeof(Parked)):
        free(copy)
        return False
    memcpy(copy, head, FRAME_HEADER_BYTES)
    memcpy(copy + FRAME_HEADER_BYTES, body, head.body_bytes)
    place = &parking.items[parking.count]
    parking.count += 1
    conn.parked += 1
    conn.parked_pushes += kind_keeps_order(head.kind)
    conn.parked_bytes += size
    place.conn_id = conn.id
    place.frame = copy
    place.reason = reason
    place.since = now
    place.deadline = now + limit_s
    return True


cdef inline void unpark(Parked *place, Conn *conn) noexcept nogil:
    """Marks a request as done; `conn` NULL = its connection is gone.  `close_gaps` takes it out."""
    cdef FrameHeader *head = <FrameHeader *>place.frame
    if conn != NULL:
        conn.parked -= 1
        conn.parked_pushes -= kind_keeps_order(head.kind)
        conn.parked_bytes -= FRAME_HEADER_BYTES + head.body_bytes
    free(place.frame)
    place.frame = NULL


cdef inline void close_gaps(Parking *parking) noexcept nogil:
    """Takes out what is done; the others keep their order."""
    cdef uint32_t i, kept = 0
    for i in range(parking.count):
        if parking.items[i].frame != NULL:
            parking.items[kept] = parking.items[i]
            kept += 1
    parking.count = kept


cdef inline void parking_free(Parking *parking) noexcept nogil:
    cdef uint32_t i
    for i in range(parking.count):
        free(parking.items[i].frame)
    free(parking.items)
    parking.items = NULL
    parking.count = parking.cap = 0
