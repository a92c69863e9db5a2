# What changes rows: what a primary appends to the stream to its standby, and what has to wait for it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from snailps.shard._context cimport Context, RowRequest
from snailps.store.tables cimport Table
from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._handler cimport Reply

cdef struct Appended:               # a push that was appended before it was done
    size_t waiting                  # of the stream before it
    uint64_t sent
    uint32_t groups                 # 0 = nothing was
    uint32_t fragment               # of the first group


# Whether a request that changes rows has to wait; then `reply` says for what.  A pull never does:
# at most it waits in the loop, after a push of its own connection that is parked.  A change waits while the shard yields, while pinned rows are copied, and while the standby is so slow that more than
# STREAM_BYTES_MAX (128 MiB) of frames are unsent.  Below that it is executed at once, and only its reply waits for
# the standby (`held_until`).  A standby that acknowledges nothing for the silence limit is given up.
cdef bint must_wait(Context *me, uint8_t kind, Reply *reply) noexcept nogil
# The frame that the standby must have before what is done by now is acknowledged; 0 = none.
cdef uint64_t held_until(const Context *me) noexcept nogil
# Lets a reply wait until the standby has what it acknowledges.
cdef void hold(const Context *me, Reply *reply) noexcept nogil
# Where clocks count, nothing is acknowledged before the standby has it, in `async` either.
cdef void force_sync(Context *me) noexcept nogil
# A clock has come: it is shown once the standby has this frame; 0 = now.
cdef void show_clock(Context *me, uint64_t until) noexcept nogil

# Appends a push that is about to be done; `settle_push` reports how that went.
cdef void replicate_push(Context *me, const FrameHeader *head, const RowRequest *asked,
                         Appended *appended) noexcept nogil
# The push was done, or was refused and its frame is taken back.
cdef void settle_push(Context *me, const FrameHeader *head, const RowRequest *asked,
                      const Appended *appended, bint done) noexcept nogil
# Applies the values to every fragment that has not had them; False = `reply` is a refusal.
cdef bint push_rows(Context *me, Table *table, const RowRequest *asked, uint64_t incarnation,
                    bint state, char *out, Reply *reply) noexcept nogil
# Appends a seal that was done.
cdef void replicate_seal(Context *me, const FrameHeader *head, const char *body) noexcept nogil
# Appends an order that was done, as JSON.
cdef void replicate_order(Context *me, const char *text, uint64_t n) noexcept nogil

# Appends rows that were put, as they lie, and the counts of a fragment, unless that is still to be copied.
cdef void replicate_rows(Context *me, const Table *table, uint32_t fragment, const char *rows,
                         uint64_t count) noexcept nogil
cdef void replicate_retention(Context *me, const Table *table, uint32_t fragment) noexcept nogil
# Copies the rest of what must not change while it is copied: something else than a request will.
cdef void unpin(Context *me) noexcept nogil
# Appends some of what a new standby lacks; False = nothing can be sent now.  `context` is a Context.
cdef bint seed(void *context) noexcept nogil
