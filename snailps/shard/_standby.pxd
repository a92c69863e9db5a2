# What a standby makes of its primary's stream: the same as the primary did, in the same order.
from snailps.shard._context cimport Context, Standby
from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._handler cimport Outcome, Reply


# One frame of the stream; `context` is a Context.  Parked while the master has not sent a table or
# the route; an ERROR in `reply` ends the stream.
cdef Outcome replay(void *context, const FrameHeader *head, const char *body, char *out,
                    Reply *reply) noexcept nogil
cdef void standby_free(Standby *s) noexcept nogil
