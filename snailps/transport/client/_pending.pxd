# Requests under way, as objects, and what makes them from a caller's arrays.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from snailps.transport.client._connections cimport Connections
from snailps.transport.client._request cimport Request


cdef class Pending:
    cdef Request *request
    cdef Connections connections    # of whose memory it is
    cdef PendingRequests requests
    cdef readonly object rows  # type: NDArray[np.float32]
    cdef object keys                # keeps a raw body, or the numbers of a pull, alive
    cdef bint waits                 # only the waiting caller holds it
    cdef bint abandoned             # no caller waits for it any more
    cdef bint awaited               # a caller has waited for it
    cdef double begun_s
    cdef what(self)
    cdef wait_for(self, double limit_s)
    cdef _error(self)


cdef class Forward(Pending):
    cdef object slabs               # a product of each shard that has entries; None = they are summed
    cdef bint went_back
    cdef readonly int wire          # wire type of Z


cdef class PendingRequests:
    cdef Connections connections
    cdef double timeout_s
    cdef dict live                  # Pending -> None, oldest first: what may not be freed yet
    cdef Py_ssize_t prune_at
    cdef object live_lock
    cdef uint64_t batches           # numbers given to batches so far
    cdef dict tables                # number -> name, whether it takes finite values only
    cdef dict corks                 # thread -> its calls of `Client.cork` that have not ended
    cdef name_of(self, uint32_t table)
    cdef bint takes_any(self, uint32_t table) except -1
    cdef Pending add(self, Pending pending, Request *r)
    cdef send(self, Pending pending)
    cdef wait_here(self, Pending pending)
    cdef settle(self, Pending pending)
    cdef cork(self)
    cdef bint uncork(self) except -1
    cdef _prune(self)


cdef Pending ask_rows(PendingRequests requests, int kind, uint32_t table, keys, rows, bint state,
                      bint merge, int wire, bint feedback, bint coarse, bint waited,
                      bint ahead, int64_t clock, uint32_t slot, float lr_scale, bint assign)
cdef Pending ask_all(PendingRequests requests, uint8_t kind, int64_t clock, uint32_t slot,
                     uint32_t slots)
cdef Pending ask_one(PendingRequests requests, uint32_t shard, uint8_t kind, uint32_t table,
                     bytes body, int64_t clock=*, uint32_t slot=*)
cdef bytes reply_of(Pending pending)
cdef Forward ask_forward(PendingRequests requests, uint32_t table, ptr, keys, values, uint32_t dim,
                         int wire, bint keep, bint stored)
cdef Pending ask_backward(PendingRequests requests, Forward forward, gradient, int wire,
                          float lr_scale)
cdef int take_rows(Request *r, rows, bint writable, bint state) except -1
