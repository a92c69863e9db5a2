# Bodies of PULL and PUSH: read and checked, and rows as they travel.
from libc.stdint cimport uint32_t, uint64_t

from snailps.shard._context cimport Context
from snailps.store.tables cimport Table
from snailps.transport._frame cimport FrameHeader, Group
from snailps.transport.loop._handler cimport Outcome, Reply


cdef struct RowRequest:
    uint64_t seq
    uint32_t options
    int wire
    uint32_t floats
    uint32_t row_bytes              # of a row as it travels
    uint32_t key_num
    uint32_t group_num
    uint64_t clock                  # with OPTION_CLOCK
    uint32_t slot
    const Group *groups
    const uint64_t *keys            # those of the first group, then of the second, ...
    const char *values              # of a PUSH


# Writes an ERROR body; `text` is a format of ours with up to two numbers.
cdef Outcome refuse(char *out, Reply *reply, const char *code, const char *text, uint64_t a,
                    uint64_t b) noexcept nogil

# Reads and checks a PULL or PUSH of rows of `floats`; False = `reply` is a refusal.  `asked` points
# into the body or `me.keys`: it is good until the next request is read.
cdef bint read_row_request(Context *me, const FrameHeader *head, const char *body, uint64_t floats,
                           RowRequest *asked, char *out, Reply *reply) noexcept nogil

# Writes the rows of all keys, of a table that the kernels know, as they travel; where they end.
cdef char *pull_rows(Context *me, Table *table, const RowRequest *asked, char *to) noexcept nogil
# Writes n rows in the type that was asked for; where they end.
cdef char *narrow_rows(Context *me, const RowRequest *asked, const float *rows, uint32_t n,
                       char *to) noexcept nogil
# Applies the values to every fragment that has not had them; False = `reply` is a refusal.
cdef bint push_rows(Context *me, Table *table, const RowRequest *asked, uint64_t incarnation,
                    bint state, char *out, Reply *reply) noexcept nogil
