# A request of the fan-out client: its keys in order of shard and fragment, where its rows lie, and
# how far it is.
#
#   keys -> fragment -> counting sort -> groups (one a fragment), those of a shard side by side
#
# Knows no connections.  Sorting runs in the caller's thread, before the client's thread sees the
# request; `done` is the only field that both look at later without the client's lock.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.transport.client._error_feedback cimport Owing

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #define snail_trim_heap() malloc_trim(0)
    #else
    #define snail_trim_heap() ((void)0)
    #endif
    """
    # Gives the system what free memory the C library keeps: milliseconds where there is much.
    void trim_heap "snail_trim_heap"() noexcept nogil

cdef enum:
    KIND_RAW = 0                    # a request whose body and reply are opaque here (SCAN)
    NO_KEY = 0xFFFFFFFF
    NO_SLAB = 0xFFFFFFFF            # a shard without entries of the batch
    EVERY_SHARD = 0xFFFFFFFF        # a raw body that goes to all of them
    POOL_BLOCKS = 4


cdef struct Order:                  # of the fragments: by shard, then by number
    uint32_t frag_num
    uint32_t shards
    uint32_t *rank                  # fragment -> place
    uint32_t *fragment_at           # place -> fragment
    uint32_t *shard_start           # shards + 1: first place of each shard
    uint32_t *owner                 # fragment -> shard


cdef struct Pool:                   # memory of ended requests, to be used again
    char *blocks[POOL_BLOCKS]
    size_t sizes[POOL_BLOCKS]


cdef struct Request


cdef struct Sent:                   # what a connection has carried of a batch, one way
    uint64_t connection_id          # of that connection
    uint32_t examples


cdef struct Product:                # a batch on its way through a table: `_product_batch.pyx`
    uint64_t batch
    uint32_t examples
    bint keep                       # a BACKWARD follows
    bint stored                     # keys without a row count 0
    bint ones                       # all values are 1
    float scale                     # BACKWARD
    float lr_scale                  # ... by which the step size is multiplied
    Request *forward                # BACKWARD: the FORWARD of its batch, which has the entries
    uint64_t *keys                  # of all entries: by shard, then by example
    float *values
    uint64_t *shard_start           # shards + 1: first entry of each shard
    uint32_t *ends                  # shards x (examples + 1): a shard's entries before each example
    uint32_t *slab                  # by shard: which of the caller's arrays takes its product
    Sent *sent                      # by shard


cdef struct Request:
    uint8_t kind                    # KIND_PULL, KIND_PUSH, KIND_FORWARD, KIND_BACKWARD, KIND_RAW
    uint8_t raw_kind
    int done                        # set last: then its caller may free the request
    bint failed
    bint ahead                      # may overtake pushes that wait to be sent
    bint clocked                    # belongs to `clock`: a pull as of it, a push to its slot
    int abandoned                   # no caller waits for it: what was not sent need not be
    uint64_t clock
    uint32_t slot
    uint32_t table
    uint32_t dim                    # floats a row: of weights, or of weights and state
    uint32_t options                # OPTION_STATE, OPTION_LR_SCALE
    float lr_scale                  # with OPTION_LR_SCALE
    int wire                        # how rows travel: WIRE_...
    uint32_t row_bytes              # a row, there
    Owing *owing                    # what earlier pushes rounded away; NULL = no feedback
    uint32_t n
    uint32_t groups
    char *block                     # what the arrays down to shard_group lie in
    size_t block_size
    uint64_t *keys                  # n, in order of shard and fragment
    uint32_t *order                 # n: place in the caller's arrays
    uint32_t *later                 # a merged push: by place, the next one of its key; else NULL
    uint64_t *stamps                # n: seq of the push, or mark that came with the pulled row
    uint32_t *group_fragment        # groups
    uint32_t *group_start           # groups + 1
    uint32_t *shard_group           # shards + 1: first group of each shard
    float *sum                      # of a key's values while they are written; or NULL
    char *rows                      # caller's values or output
    size_t row_stride               # bytes
    const char *raw_body
    uint32_t raw_bytes
    uint32_t raw_shard
    Product *product                # KIND_FORWARD, KIND_BACKWARD; else NULL
    char *raw_reply
    uint64_t raw_reply_bytes
    uint32_t unsent                 # shards that still have parts to be built
    uint32_t open                   # parts in flight
    char *text                      # ERROR body of the first refusal; NULL = the client's own text
    uint32_t text_bytes
    Request *next                   # in the list of new requests


cdef inline void add_row(float *row, const float *value, uint32_t dim) noexcept nogil:
    """Inline: a row of a merged push or of a correction each, often of one float."""
    cdef uint32_t d
    for d in range(dim):
        row[d] += value[d]


cdef inline const float *sum_of(const Request *r, uint32_t i) noexcept nogil:
    """The sum of what a merged push has for the key at `i`, in its order; good until the next one.

    Inline: a row each.
    """
    cdef uint32_t place = r.later[r.order[i]]
    memcpy(r.sum, r.rows + r.order[i] * r.row_stride, <size_t>r.dim * 4)
    while place != <uint32_t>NO_KEY:
        add_row(r.sum, <const float *>(r.rows + place * r.row_stride), r.dim)
        place = r.later[place]
    return r.sum


# Frees all that is kept.  The caller holds the GIL, or is the pool's last user.
cdef void pool_free(Pool *pool) noexcept nogil
# An empty request with room for n keys; NULL = no memory.
cdef Request *request_new(Pool *pool, const Order *order, uint32_t n) noexcept nogil
cdef void request_free(Pool *pool, Request *r) noexcept nogil
# Whether this shard has a part of the request.
cdef bint request_wants(const Request *r, uint32_t shard) noexcept nogil
# Whether it changes rows, or says that they are to be changed.
cdef bint request_changes(const Request *r) noexcept nogil
# Whether it may wait at a shard until others have done their part.
cdef bint waits_for_clock(const Request *r) noexcept nogil
# Remembers the first refusal; without memory for its words the request still fails.
cdef void request_refused(Request *r, const char *text, size_t text_bytes) noexcept nogil
# Counting sort of the caller's keys by (shard, fragment), stable; -1 = no memory.
cdef int sort_keys(const Order *order, Request *r, const uint64_t *keys) noexcept nogil
# Leaves each key once, its values to be summed when they are sent; -1 = no memory.
cdef int merge_keys(Request *r) noexcept nogil
# Adds pushed values to pulled rows that were read before them; rows added, -1 = no memory.
cdef int64_t add_newer(const Order *order, const Request *pull, const Request *push, char *second,
                       size_t second_stride) noexcept nogil
