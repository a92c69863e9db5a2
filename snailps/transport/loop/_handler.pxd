# The seam between the shard loop and the owner of tables: a C table of function pointers.
# The loop hands complete data frames in and sends what comes back; it does not know what they mean.
from libc.stdint cimport uint8_t, uint64_t

from snailps.transport._frame cimport FrameHeader

cdef enum Outcome:
    OUTCOME_REPLY = 0           # `out` holds reply.body_bytes of a body, to be sent as reply.kind
    OUTCOME_PARK = 1            # cannot be answered yet: keep it, try again after wake()

ctypedef struct Reply:
    uint64_t body_bytes
    uint8_t kind
    bint last                   # the connection is closed after this reply
    bint wake                   # others that wait may be answered now
    const char *reason          # OUTCOME_PARK: what it waits for; lives as long as the handler
    uint64_t hold               # the reply waits for this frame of the stream; 0 = for none
    double limit_s              # OUTCOME_PARK: how long it may wait; 0 = as long as any other

ctypedef struct Handler:
    void *context
    # `body` is head.body_bytes long and 8-byte aligned; `out` has room for DATA_BODY_MAX bytes.
    # `memory` is the handler's own, one a connection, NULL at first; `forget` is called when the
    # connection has ended.  Runs in the loop's thread without the GIL, must not block and must not
    # keep pointers.
    Outcome (*handle)(void *context, void **memory, const FrameHeader *head, const char *body,
                      char *out, Reply *reply) noexcept nogil
    void (*forget)(void *memory) noexcept nogil
    # A frame of a primary's stream, to be done as there.  OUTCOME_PARK: it cannot be done yet, and is
    # tried again; an ERROR in `reply` ends the stream.
    Outcome (*replay)(void *context, const FrameHeader *head, const char *body, char *out,
                      Reply *reply) noexcept nogil
    # Appends some of what the standby lacks to the stream; False = nothing can be sent now.
    bint (*seed)(void *context) noexcept nogil
