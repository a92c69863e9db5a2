# A batch through a table at the client: forward as sparse examples, back as dL/dZ.
#
#   examples (CSR), keys -> fragment -> shard -> entries by shard and example -> FORWARD parts
#   PRODUCT parts -> a slab a shard, which the caller adds up in the order of the shards
#   dL/dZ -> BACKWARD parts, those of a batch in order, each with a number
#
# What a shard keeps of a batch belongs to the connection and ends with it.  So on a new connection,
# and whenever a shard says that it does not know a batch (which ends the connection), parts that
# were answered before are sent once more, quietly, in front of the part that needs them
# (`catch_up`): the shard always gets a batch from its beginning, in order, once a connection.
# Nothing newer can be applied in between, so the push keeps its number and is applied once.
#
# Knows no sockets.  Sorting runs in the caller's thread, the rest is done under `Core.turn`.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from snailps.abi._wire_types cimport WireOps
from snailps.transport.client._request cimport Order, Product, Request, Sent

cdef enum:
    SORT_NO_MEMORY = -1
    SORT_TOO_LONG = -2


# An empty product, a forward's with room for its entries; NULL = no memory.
cdef Product *product_new(const Order *order, uint32_t examples, uint64_t entries,
                          bint back) noexcept nogil
# Deals the entries out to the shards, each keeping the order; 0, or SORT_... .
cdef int sort_entries(const Order *order, Product *p, const int64_t *ptr, const uint64_t *keys,
                      const float *values) noexcept nogil
# How many examples a part has that begins with `first`: body and reply have PART_BYTES.
cdef uint32_t part_examples(const Request *r, uint32_t shard, uint32_t first) noexcept nogil
# Length of the body of such a part, and how its keys travel.
cdef size_t forward_bytes(const Request *r, uint32_t shard, uint32_t first, uint32_t count,
                          uint32_t *width, uint64_t *base) noexcept nogil
cdef size_t backward_bytes(const Request *r, uint32_t count) noexcept nogil
# Writes forward_bytes() bytes.
cdef void write_forward(char *to, const Request *r, uint32_t shard, uint32_t first, uint32_t count,
                        uint32_t width, uint64_t base, bint quiet) noexcept nogil
# Writes backward_bytes() bytes.
cdef void write_backward(const WireOps *wire, char *to, const Request *r, uint32_t first,
                         uint32_t count, uint64_t seq) noexcept nogil
# Rows of a PRODUCT to the shard's slab; False when its length is another.
cdef bint take_product(const WireOps *wire, const Request *r, uint32_t shard, uint32_t first,
                       uint32_t count, const char *body, uint64_t body_bytes) noexcept nogil
# What this connection has carried of the batch: nothing, if it is a new one.
cdef Sent *sent_of(Product *p, uint32_t shard, uint64_t connection_id) noexcept nogil
