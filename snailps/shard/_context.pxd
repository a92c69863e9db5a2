# What a shard is to its C code: store, clock, stream, scratch, counters; its part in replication.
#
# Structs and constants, which all of snailps/shard shares.  A `Context` belongs to the thread that owns
# the shard.  Of functions there are only those that are called for each group of keys, and `refuse`.
from libc.math cimport isinf
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf

from snailps.abi._wire_types cimport WireOps
from snailps.shard._connection_memory cimport Columns
from snailps.store.core._clock_buffer cimport Slots
from snailps.store.tables cimport (
    Marks, Shard, Table, store_dim, store_floats, store_mark, store_value_floats,
)
from snailps.transport._frame cimport KIND_ERROR, OPTION_ASSIGN, OPTION_STATE, Group, write_error
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._replication_stream cimport Stream

cdef enum:
    ROOM_BYTES = 4 << 20            # keys, or rows as float32, of the largest part: int8 to float32
    FENCED_MAX = 1 << 19            # incarnations that a shard can fence: 4 MiB of a BEGIN
    WAITS_BYTES = 256

cdef enum:                          # what a shard is to its clients
    ROLE_PRIMARY = 0                # it serves
    ROLE_STANDBY = 1                # it follows a primary; requests wait for its promotion
    ROLE_YIELDED = 2                # it was a primary, and another shard has taken its place

cdef enum:                          # of a fragment at a standby
    FRAGMENT_EXPECTED = 1           # it belongs to this shard,
    FRAGMENT_WHOLE = 2              # ... and all its rows have come


cdef struct Primary:                # what the present stream has sent to the standby
    uint32_t *fragments             # of this shard, ascending
    uint32_t fragment_num
    uint32_t at                     # so many of them are copied
    bint partly                     # the next one is begun,
    bint pinned                     # ... and tables are copied that must not change meanwhile: pushes wait.
    uint32_t table                  # Copied are the tables below this, of the others or of those,
    uint32_t number                 # ... and of that one the slots below this
    bint resumes                    # the standby has everything: it was the primary
    uint8_t *copied                 # by fragment, from its begin on: what changes it is forwarded
    uint64_t clock                  # the last one that is shown, or will be
    uint64_t clock_until            # the present clock is shown once this frame is acknowledged; 0 = now
    bint yielding                   # what changes rows waits, and will be done at the standby


cdef struct Standby:                # what has come of a primary's stream
    uint8_t *expects                # by fragment: FRAGMENT_..., or 0; NULL = no route yet
    uint32_t expected               # how many do
    uint32_t whole                  # ... and have come
    bint begun                      # the stream has named its sender
    bint seeded
    bint resigned                   # it was the primary, and yielded
    uint32_t filling                # the fragment that comes in


cdef struct Context:
    Shard *shard
    Slots *slots                    # what is staged, by clock and slot
    double clock_limit_s            # how long a request may wait for a clock
    char waits[WAITS_BYTES]         # for what: "slot 3 of clock 17"
    uint64_t waits_clock            # ... as of this clock
    uint32_t waits_sealed           # ... with so many slots sealed, + 1
    Marks fenced                    # incarnations whose frames are refused, each with the number 1
    void *methods                   # the PythonMethods, for tables with a Python access method
    const WireOps *wire
    uint64_t *keys                  # ROOM_BYTES: narrow keys made whole
    float *rows                     # ROOM_BYTES: rows before or after another type
    float *first                    # ROOM_BYTES: first values of rows that are not there
    Columns columns                 # of the batch that is being stepped
    uint32_t frag_num
    uint32_t epoch
    uint32_t epoch_min              # of the route that made it a primary: older ones name another shard
    int role                        # ROLE_...
    bint all_new                    # no push is taken for a repetition: at a standby, whose primary looked
    Stream *stream                  # to the standby
    Primary primary
    Standby standby
    Faults *faults
    uint64_t pulls
    uint64_t pushes
    uint64_t repeated               # groups of pushes skipped because their mark is not lower
    uint64_t rows_pulled
    uint64_t rows_pushed            # at a standby those of batches, too
    uint64_t pull_bytes             # of the answers
    uint64_t push_bytes             # of the requests
    uint64_t rows_scanned
    uint64_t products               # parts that went forward
    uint64_t entries_summed         # ... and their entries
    uint64_t rows_stepped           # by batches that went back
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
    const uint64_t *keys            # those of the first group, then of the second, ...
    const char *values              # of a PUSH


cdef inline uint32_t pushed_floats(const Table *table, uint32_t options) noexcept nogil:
    """Floats of a value of a PUSH with these options."""
    if options & OPTION_STATE:
        return store_floats(table)
    return store_dim(table) if options & OPTION_ASSIGN else store_value_floats(table)


cdef inline uint64_t padded(uint64_t n) noexcept nogil:
    return (n + 7) & ~<uint64_t>7


cdef inline bint is_lr_scale(float scale) noexcept nogil:
    """Whether a step size may be multiplied by it; nothing compares with not-a-number."""
    return 0 <= scale < 1e30


cdef inline bint is_repeated(const Context *me, uint32_t fragment, uint64_t incarnation,
                             uint64_t seq) noexcept nogil:
    """Whether the fragment has had this push.  Inline: once a group, in the loop over groups."""
    return not me.all_new and store_mark(me.shard, fragment, incarnation) >= seq


cdef inline Outcome refuse(char *out, Reply *reply, const char *code, const char *text, uint64_t a,
                           uint64_t b) noexcept nogil:
    """Writes an ERROR body; `text` is a format of ours with up to two numbers."""
    reply.kind = KIND_ERROR
    reply.body_bytes = write_error(out, code, text, a, b)
    return OUTCOME_REPLY


cdef inline Outcome refuse_value(char *out, Reply *reply, float value, const char *what,
                                 uint64_t number, uint64_t column) noexcept nogil:
    """Refuses a value that is not finite, of the row or example with this number."""
    cdef char[200] text
    snprintf(text, sizeof(text), b"expected finite values, got %s for %s %llu, column %llu: this part of "
             b"the push was not applied", (b"-inf" if value < 0 else b"inf") if isinf(value) else b"nan",
             what, <unsigned long long>number, <unsigned long long>column)
    return refuse(out, reply, b"not-finite", text, 0, 0)
