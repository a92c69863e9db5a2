# A request of the fan-out client: its keys in order of shard and fragment, where its rows lie, how much of it
# is sent and answered.
#
#   keys -> fragment -> counting sort -> groups (one a fragment), the groups of a shard side by side
#
# Must not know connections.  The caller's thread sorts and fills the request before it hands it in.  From then
# until `done` only the thread that serves the links writes it (`Core.turn`), but for `abandoned`; `done` and
# `abandoned` are the flags that both read without a lock.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.abi._wire_types cimport WireOps
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
    # Returns free memory that the C library keeps to the system: milliseconds where there is much.
    void trim_heap "snail_trim_heap"() noexcept nogil

cdef enum:
    KIND_RAW = 0                    # a request whose body and reply are opaque here (SCAN, SEAL, REACH)
    NO_KEY = 0xFFFFFFFF
    NO_SLAB = 0xFFFFFFFF            # a shard without entries of the batch
    EVERY_SHARD = 0xFFFFFFFF        # a raw body that goes to all of them
    POOL_BLOCKS = 4
    SORT_NO_MEMORY = -1             # of `ProductCalls.sort`
    SORT_TOO_LONG = -2


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


cdef struct Sent:                   # how much of a batch a connection has carried, in one direction
    uint64_t connection_id          # number of the connection; another one begins with the first example
    uint32_t examples


cdef struct Product:                # a batch on its way through a table: the option `server_products`
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
    int done                        # set last: from then on its caller may free the request
    bint failed                     # `text` says why, or else the client's own text
    bint ahead                      # may overtake pushes that wait to be sent
    bint clocked                    # belongs to `clock`: a pull at that clock, or a push to its slot
    int abandoned                   # no caller waits for it: parts that were not sent may be dropped
    uint64_t clock
    uint32_t slot
    uint32_t table
    uint32_t dim                    # floats a row: of weights, or of weights and state
    uint32_t options                # OPTION_STATE, OPTION_LR_SCALE
    float lr_scale                  # with OPTION_LR_SCALE
    int wire                        # how rows travel: WIRE_...
    uint32_t row_bytes              # of a row as it travels
    Owing *owing                    # residues of earlier pushes' rounding; NULL = no feedback
    uint32_t n
    uint32_t groups
    char *block                     # one allocation for the arrays down to shard_group
    size_t block_size
    uint64_t *keys                  # n, in order of shard and fragment
    uint32_t *order                 # n: place in the caller's arrays
    uint32_t *later                 # of a merged push: place -> the next place with this key; else NULL
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
    char *text                      # ERROR body of the first refusal; NULL = `Core.text`
    uint32_t text_bytes
    Request *next                   # in the list of new requests


cdef inline void add_row(float *row, const float *value, uint32_t dim) noexcept nogil:
    """Adds a row.  Inline: called for each row of a merged push, often of one float."""
    cdef uint32_t d
    for d in range(dim):
        row[d] += value[d]


cdef inline const float *sum_of(const Request *r, uint32_t i) noexcept nogil:
    """Sums the values that a merged push has for the key at `i`, in their order; valid until the next call."""
    cdef uint32_t place = r.later[r.order[i]]
    memcpy(r.sum, r.rows + r.order[i] * r.row_stride, <size_t>r.dim * 4)
    while place != <uint32_t>NO_KEY:
        add_row(r.sum, <const float *>(r.rows + place * r.row_stride), r.dim)
        place = r.later[place]
    return r.sum


cdef struct ProductCalls:           # what a batch needs: the option `server_products` fills it, as it is asked for
    # An empty product, a forward's with room for its entries; NULL = no memory.
    Product *(*make)(const Order *order, uint32_t examples, uint64_t entries, bint back) noexcept nogil
    # Deals the entries out to the shards, each keeping the order; 0, or SORT_... .
    int (*sort)(const Order *order, Product *p, const int64_t *ptr, const uint64_t *keys,
                const float *values) noexcept nogil
    # How many examples a part has that begins with `first`: body and reply have PART_BYTES.
    uint32_t (*examples)(const Request *r, uint32_t shard, uint32_t first) noexcept nogil
    # Length of the body of such a part, and how its keys travel.
    size_t (*forward_bytes)(const Request *r, uint32_t shard, uint32_t first, uint32_t count,
                            uint32_t *width, uint64_t *base) noexcept nogil
    size_t (*backward_bytes)(const Request *r, uint32_t count) noexcept nogil
    # Writes forward_bytes() bytes.
    void (*write_forward)(char *to, const Request *r, uint32_t shard, uint32_t first, uint32_t count,
                          uint32_t width, uint64_t base, bint quiet) noexcept nogil
    # Writes backward_bytes() bytes.
    void (*write_backward)(const WireOps *wire, char *to, const Request *r, uint32_t first,
                           uint32_t count, uint64_t seq) noexcept nogil
    # Rows of a PRODUCT to the shard's slab; False when its length is another.
    bint (*take)(const WireOps *wire, const Request *r, uint32_t shard, uint32_t first,
                 uint32_t count, const char *body, uint64_t body_bytes) noexcept nogil
    # What this connection has carried of the batch: nothing, if it is a new one.
    Sent *(*sent)(Product *p, uint32_t shard, uint64_t connection_id) noexcept nogil
cdef ProductCalls product_calls


# Frees the pool's memory.  The caller holds the GIL, or is the pool's last user.
cdef void pool_free(Pool *pool) noexcept nogil
# An empty request with room for n keys; NULL = no memory.
cdef Request *request_new(Pool *pool, const Order *order, uint32_t n) noexcept nogil
cdef void request_free(Pool *pool, Request *r) noexcept nogil
# Whether this shard has a part of the request.
cdef bint request_wants(const Request *r, uint32_t shard) noexcept nogil
# Whether it changes rows, now or at the end of a clock: a push, a batch on its way back, a seal.
cdef bint request_changes(const Request *r) noexcept nogil
# Whether it may wait at a shard until others have done their part.
cdef bint waits_for_clock(const Request *r) noexcept nogil
# Remembers the first refusal; without memory for its words the request still fails.
cdef void request_refused(Request *r, const char *text, size_t text_bytes) noexcept nogil
# Counting sort of the caller's keys by (shard, fragment), stable; -1 = no memory.
cdef int sort_keys(const Order *order, Request *r, const uint64_t *keys) noexcept nogil
# Leaves each key once; its values are summed as they are sent.  -1 = no memory.
cdef int merge_keys(Request *r) noexcept nogil
# Adds pushed values to pulled rows that were read before them; rows added, -1 = no memory.
cdef int64_t add_newer(const Order *order, const Request *pull, const Request *push, char *second,
                       size_t second_stride) noexcept nogil
