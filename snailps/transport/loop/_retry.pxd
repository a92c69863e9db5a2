# cython: cdivision=True
# Parked requests, tried again: answered, or given up when they have waited too long.
#
# Why they wait says the handler.  What this keeps is their order: nothing of a connection overtakes
# a parked push of the same connection.
from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf

from snailps.transport._frame cimport *
from snailps.transport.loop._accept cimport close
from snailps.transport.loop._connection cimport *
from snailps.transport.loop._dispatch cimport attempt, behind, reply_error
from snailps.transport.loop._handler cimport Reply
from snailps.transport.loop._loop_state cimport Loop
from snailps.transport.loop._parked_requests cimport Parked, close_gaps, unpark


cdef inline bint _retry(Loop *loop, Conn *conn, Parked *place, double now) noexcept nogil:
    """Tries one parked request again; False = it goes on waiting."""
    cdef FrameHeader *head = <FrameHeader *>place.frame
    cdef Reply reply
    cdef char text[256]
    reply.reason = behind()
    reply.limit_s = 0
    if conn.out_end - conn.out_start > DATA_BODY_MAX:
        conn.starved = True             # once more as soon as the peer has taken some
        place.reason = b"the asker, who does not read the answers that it has"
    elif out_reserve(conn, FRAME_HEADER_BYTES + DATA_BODY_MAX):
        if not conn.blocked \
                and attempt(loop, conn, head, place.frame + FRAME_HEADER_BYTES, &reply):
            return True
        place.reason = reply.reason
        place.deadline = max(place.deadline, place.since + reply.limit_s)
    if now <= place.deadline:
        return False
    snprintf(text, sizeof(text), b"waited %.1f s at the shard for %s",
             now - place.since, place.reason)
    reply_error(loop, conn, head.request, b"timeout", text)
    return True


cdef inline void retry_parked(Loop *loop, double now) noexcept nogil:
    """Tries every parked request again, oldest first, and gives up those past their deadline."""
    cdef uint32_t i
    cdef Conn *conn
    cdef Parked *place
    cdef bint lost = False
    for i in range(loop.parking.count):
        conn = conn_of(&loop.conns, loop.parking.items[i].conn_id)
        conn.blocked = False
    for i in range(loop.parking.count):
        place = &loop.parking.items[i]
        conn = conn_of(&loop.conns, place.conn_id)
        if conn.lost or conn.closing:
            continue
        if not _retry(loop, conn, place, now):
            # What waits behind a push stays behind it, wherever the push's own reason has gone.
            conn.blocked |= kind_keeps_order((<FrameHeader *>place.frame).kind)
            continue
        unpark(place, conn)
        conn.waits = False              # what was parked is answered at once
        if conn_flush(&loop.conns, conn) < 0 or not conn_watch(&loop.conns, conn):
            conn.lost = lost = True
    close_gaps(&loop.parking)
    if lost:
        for i in range(loop.conns.count):
            conn = loop.conns.slots[i]
            if conn != NULL and conn.lost:
                close(loop, conn)
