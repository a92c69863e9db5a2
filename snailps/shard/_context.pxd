# The state that all C code of a shard shares: store, clock, stream, scratch memory, counters, replication.
#
# Structs and constants, and functions that run for each group of keys.  Only the shard's thread reads or writes
# a `Context`; other threads send that thread a command.
from libc.math cimport isinf
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf

from snailps.abi._wire_types cimport WireOps
from snailps.shard._connection_memory cimport Columns
from snailps.shard._fences cimport Fences
from snailps.store.core._clock_buffer cimport Slots
from snailps.store.tables cimport (
    Shard, Table, store_dim, store_floats, store_mark, store_value_floats,
)
from snailps.transport._frame cimport KIND_ERROR, OPTION_ASSIGN, OPTION_STATE, Group, write_error
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._replication_stream cimport Stream

cdef enum:
    ROOM_BYTES = 4 << 20            # keys, or rows as float32, of the largest part: int8 widened to float32
    WAITS_BYTES = 256

cdef enum:                          # what a shard is to its clients
    ROLE_PRIMARY = 0                # it serves
    ROLE_STANDBY = 1                # it follows a primary; requests wait for its promotion
    ROLE_YIELDED = 2                # it was a primary; another shard serves in its place

cdef enum:                          # of a fragment at a standby
    FRAGMENT_EXPECTED = 1           # the route gives it to this shard; rows are still to come
    FRAGMENT_WHOLE = 2              # all its rows have come


cdef struct Primary:                # what the present stream has sent to the standby
    uint32_t *fragments             # of this shard, ascending
    uint32_t fragment_num
    uint32_t at                     # number of fragments that are copied
    bint partly                     # the next fragment is begun
    bint pinned                     # its tables that must not change meanwhile are copied: pushes wait
    uint32_t table                  # of the present kind (pinned or not), tables below this are copied,
    uint32_t number                 # and of this table the slots below this
    bint resumes                    # the standby has everything: it was the primary
    uint8_t *copied                 # by fragment: its copy has begun, so changes to it are forwarded
    uint64_t clock                  # the last clock that clients see, or will see
    uint64_t clock_until            # clients see it once this frame is acknowledged; 0 = now
    bint yielding                   # changes of rows wait; the standby will execute them


cdef struct Standby:                # what has come of a primary's stream
    uint8_t *expects                # by fragment: FRAGMENT_..., or 0; NULL = no route yet
    uint32_t expected               # number of fragments that the route gives to it
    uint32_t whole                  # number of them that are complete
    bint begun                      # a stream has begun: BEGIN or RESUME has come
    bint seeded                     # everything has come: it may be promoted
    bint resigned                   # it was the primary, and yielded
    uint32_t filling                # the fragment that is being received


cdef struct Context:
    Shard *shard
    Slots *slots                    # contributions, by clock and slot
    double clock_limit_s            # how long a request may wait for a clock
    char waits[WAITS_BYTES]         # what requests wait for: "slot 3 of clock 17". Parked requests point here
    uint64_t waits_clock            # `waits` is right for this clock,
    uint32_t waits_sealed           # with so many slots sealed, + 1
    Fences fenced
    void *methods                   # the PythonMethods, for tables with a Python access method
    const WireOps *wire
    uint64_t *keys                  # ROOM_BYTES: narrow keys made whole
    float *rows                     # ROOM_BYTES: rows as float32, before or after a narrow type
    float *first                    # ROOM_BYTES: first values of keys without a row
    Columns columns                 # of the batch whose gradient is applied
    uint32_t frag_num
    uint32_t epoch
    uint32_t epoch_min              # of the route that made it primary: in older routes another shard served
    int role                        # ROLE_...
    bint all_new                    # no push counts as a repetition: at a standby, whose primary has checked
    Stream *stream                  # to the standby
    Primary primary
    Standby standby
    Faults *faults
    uint64_t pulls
    uint64_t pushes
    uint64_t repeated               # groups of pushes skipped because their mark is not lower
    uint64_t rows_pulled
    uint64_t rows_pushed            # at a standby rows of batches, too
    uint64_t pull_bytes             # of the replies
    uint64_t push_bytes             # of the requests
    uint64_t rows_scanned
    uint64_t products               # parts that went forward
    uint64_t entries_summed         # entries of these parts
    uint64_t rows_stepped           # rows changed by batches that went back
    uint64_t batches_unknown        # connections ended because a batch was not known


cdef struct RowRequest:             # a PULL or PUSH, read and checked
    uint64_t seq
    uint32_t options
    int wire
    uint32_t floats
    uint32_t row_bytes              # of a row as it travels
    uint32_t key_num
    uint32_t group_num
    uint64_t clock                  # with OPTION_CLOCK
    uint32_t slot
    float lr_scale                  # of a PUSH; 1 without OPTION_LR_SCALE
    const Group *groups
    const uint64_t *keys            # of the first group, then of the second, ...
    const char *values              # of a PUSH


cdef inline uint32_t pushed_floats(const Table *table, uint32_t options) noexcept nogil:
    """The number of floats of a value in a PUSH with these options."""
    if options & OPTION_STATE:
        return store_floats(table)
    return store_dim(table) if options & OPTION_ASSIGN else store_value_floats(table)


cdef inline uint64_t padded(uint64_t n) noexcept nogil:
    return (n + 7) & ~<uint64_t>7


cdef inline bint is_lr_scale(float scale) noexcept nogil:
    """Whether a step size may be multiplied by it; false for NaN, too."""
    return 0 <= scale < 1e30


cdef inline bint is_repeated(const Context *me, uint32_t fragment, uint64_t incarnation,
                             uint64_t seq) noexcept nogil:
    """Whether this push is applied to the fragment already.  Inline: called for each group."""
    return not me.all_new and store_mark(me.shard, fragment, incarnation) >= seq


cdef inline Outcome refuse(char *out, Reply *reply, const char *code, const char *text, uint64_t a,
                           uint64_t b) noexcept nogil:
    """Writes an ERROR body; `text` is a format with up to two numbers."""
    reply.kind = KIND_ERROR
    reply.body_bytes = write_error(out, code, text, a, b)
    return OUTCOME_REPLY


cdef inline Outcome refuse_value(char *out, Reply *reply, float value, const char *what,
                                 uint64_t number, uint64_t column) noexcept nogil:
    """Refuses a NaN or infinity in the row or example with this number."""
    cdef char[200] text
    snprintf(text, sizeof(text), b"expected finite values, got %s for %s %llu, column %llu: this part of "
             b"the push was not applied", (b"-inf" if value < 0 else b"inf") if isinf(value) else b"nan",
             what, <unsigned long long>number, <unsigned long long>column)
    return refuse(out, reply, b"not-finite", text, 0, 0)
