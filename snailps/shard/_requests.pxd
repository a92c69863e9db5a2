# A shard's requests: a data frame in, the body of its reply out, or why it has to wait.
from libc.stdint cimport uint32_t, uint64_t

from snailps.shard._connection_memory cimport ConnectionMemory
from snailps.shard._context cimport Context, RowRequest
from snailps.store.tables cimport Table
from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._handler cimport Outcome, Reply


# As `Handler` has them: `context` is a Context, `memory` holds a connection's ConnectionMemory.
cdef Outcome handle(void *context, void **memory, const FrameHeader *head, const char *body, char *out,
                    Reply *reply) noexcept nogil
cdef void forget(void *memory) noexcept nogil

# FORWARD and BACKWARD: the option `server_products` fills them; NULL where this installation lacks it.
cdef struct ProductRequests:
    Outcome (*forward)(Context *me, ConnectionMemory *mine, Table *table, const FrameHeader *head,
                       const char *body, char *out, Reply *reply) noexcept nogil
    Outcome (*backward)(Context *me, ConnectionMemory *mine, Table *table, const FrameHeader *head,
                        const char *body, char *out, Reply *reply) noexcept nogil
cdef ProductRequests product_requests

# For a standby, which does what its primary did.

# Reads and checks a PULL or PUSH of rows of `floats`; False = `reply` is a refusal.  `asked` points
# into the body or `me.keys`: it is good until the next request is read.
cdef bint read_row_request(Context *me, const FrameHeader *head, const char *body, uint64_t floats,
                           RowRequest *asked, char *out, Reply *reply) noexcept nogil
