# Requests that belong to a clock: contributions staged, slots sealed, others that wait for them.
from libc.stdint cimport uint64_t

from snailps.shard._context cimport Context, RowRequest
from snailps.store.tables cimport Table
from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._handler cimport Outcome, Reply


# What a request waits for while the present clock is applied here, and not shown yet.
cdef const char *clock_not_shown() noexcept nogil
# Whether a PULL is for a clock that has not come; then `reply` says what it waits for.
cdef bint awaits_clock(Context *me, const FrameHeader *head, const char *body,
                       Reply *reply) noexcept nogil
# Whether the rows that a PULL is for are gone: its clock was applied.  `reply` is a refusal then.
cdef bint came_late(Context *me, const RowRequest *asked, char *out, Reply *reply) noexcept nogil
# No clock comes any more; a caller may add why.
cdef void refuse_broken(Context *me, char *out, Reply *reply) noexcept nogil

# REACH: answered, refused or parked.
cdef Outcome reach(Context *me, const FrameHeader *head, const char *body, char *out,
                   Reply *reply) noexcept nogil
# Keeps a contribution until its clock is closed; False = `reply` is a refusal.
cdef bint stage(Context *me, Table *table, const FrameHeader *head, const RowRequest *asked,
                bint state, char *out, Reply *reply) noexcept nogil
# Seals a slot; what `slots_seal` returned, which a caller may add to where it is SEAL_BROKEN.
cdef int seal(Context *me, const FrameHeader *head, const char *body, char *out,
              Reply *reply) noexcept nogil
