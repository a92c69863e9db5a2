# A shard's requests: a data frame in, the body of its reply out, or why it has to wait.
from snailps.shard._context cimport Context
from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._handler cimport Outcome, Reply


# As `Handler` has them: `context` is a Context, `memory` holds a connection's ConnectionMemory.
cdef Outcome handle(void *context, void **memory, const FrameHeader *head, const char *body, char *out,
                    Reply *reply) noexcept nogil
cdef void forget(void *memory) noexcept nogil
