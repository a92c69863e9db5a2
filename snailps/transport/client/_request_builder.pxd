# Requests from a caller's arrays: each is checked, handed in, and returned as what waits for it.
from libc.stdint cimport int64_t, uint8_t, uint32_t

from snailps.transport.client._pending cimport Forward, Pending, PendingRequests
from snailps.transport.client._request cimport Request


cdef Pending ask_rows(PendingRequests requests, int kind, uint32_t table, keys, rows, bint state,
                      bint merge, int wire, bint feedback, bint alone, bint ahead,
                      int64_t clock, uint32_t slot)
cdef Pending ask_all(PendingRequests requests, uint8_t kind, int64_t clock, uint32_t slot,
                     uint32_t slots)
cdef Pending ask_one(PendingRequests requests, uint32_t shard, uint8_t kind, uint32_t table,
                     bytes body)
cdef bytes reply_of(Pending pending)
cdef Forward ask_forward(PendingRequests requests, uint32_t table, ptr, keys, values, uint32_t dim,
                         int wire, bint keep)
cdef Pending ask_backward(PendingRequests requests, Forward forward, gradient, int wire)
cdef int take_rows(Request *r, rows, bint writable, bint state) except -1
