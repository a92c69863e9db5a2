# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Requests that wait at a shard: see _parked_requests.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from snailps.transport._frame cimport FRAME_HEADER_BYTES, FrameHeader, kind_keeps_order
from snailps.transport.loop._connection cimport Conn, grow


cdef bint park(Parking *parking, Conn *conn, const FrameHeader *head, const char *body,
               const char *reason, double now, double limit_s) noexcept nogil:
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


cdef void unpark(Parked *place, Conn *conn) noexcept nogil:
    cdef FrameHeader *head = <FrameHeader *>place.frame
    conn.parked -= 1
    conn.parked_pushes -= kind_keeps_order(head.kind)
    conn.parked_bytes -= FRAME_HEADER_BYTES + head.body_bytes
    free(place.frame)
    place.frame = NULL


cdef void close_gaps(Parking *parking) noexcept nogil:
    cdef uint32_t i, kept = 0
    for i in range(parking.count):
        if parking.items[i].frame != NULL:
            parking.items[kept] = parking.items[i]
            kept += 1
    parking.count = kept


cdef void park_forget(Parking *parking, Conn *conn) noexcept nogil:
    cdef uint32_t i
    for i in range(parking.count):
        if parking.items[i].conn_id == conn.id:
            unpark(&parking.items[i], conn)
    close_gaps(parking)


cdef void parking_free(Parking *parking) noexcept nogil:
    cdef uint32_t i
    for i in range(parking.count):
        free(parking.items[i].frame)
    free(parking.items)
    parking.items = NULL
    parking.count = parking.cap = 0
