# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A batch through a table at the client: forward as sparse examples, back as dL/dZ.

  examples (CSR), keys -> fragment -> shard -> entries by shard and example -> FORWARD parts
  PRODUCT parts -> a slab a shard, which the caller adds up in the order of the shards
  dL/dZ -> BACKWARD parts, those of a batch in order, each with a number

What a shard keeps of a batch belongs to the connection and ends with it.  So on a new connection,
and whenever a shard says that it does not know a batch (which ends the connection), parts that
were answered before are sent once more, quietly, in front of the part that needs them
(`catch_up`): the shard always gets a batch from its beginning, in order, once a connection.
Nothing newer can be applied in between, so the push keeps its number and is applied once.

Knows no sockets.  Sorting runs in the caller's thread, the rest is done under `Core.turn`.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._wire_types cimport WIRE_FLOAT16, WIRE_FLOAT32, WireOps
from snailps.transport._frame cimport (
    EXAMPLE_ENTRIES_MAX, KIND_BACKWARD, OPTION_KEY_SHIFT, OPTION_WIRE_SHIFT, PART_BYTES,
    PRODUCT_KEEP, PRODUCT_ONES, PRODUCT_QUIET, PRODUCT_STORED, ProductHead, key_bytes, narrow_keys_bytes,
    wide_product_bytes, write_narrow_keys,
)
from snailps.transport.client._request cimport (
    NO_SLAB, SORT_NO_MEMORY, SORT_TOO_LONG, Order, Product, Request, Sent, product_calls,
)

cdef enum:
    ENTRY_BYTES = 12                # at most: a whole key and its value


cdef Product *product_new(const Order *order, uint32_t examples, uint64_t entries,
                          bint back) noexcept nogil:
    cdef uint64_t ends = 0 if back else order.shards * (<uint64_t>examples + 1)
    cdef uint64_t starts = 0 if back else order.shards + <uint64_t>1
    cdef char *at = <char *>calloc(1, sizeof(Product) + order.shards * (sizeof(Sent) + 4)
                                   + starts * 8 + entries * 12 + ends * 4)
    cdef Product *p = <Product *>at
    if p == NULL:
        return NULL
    p.examples = examples
    at += sizeof(Product)
    p.sent = <Sent *>at
    at += order.shards * sizeof(Sent)
    p.shard_start = <uint64_t *>at
    at += starts * 8
    p.keys = <uint64_t *>at
    at += entries * 8
    p.values = <float *>at
    at += entries * 4
    p.ends = <uint32_t *>at
    at += ends * 4
    p.slab = <uint32_t *>at
    return p


cdef uint32_t *_ends_of(const Product *p, uint32_t shard) noexcept nogil:
    return p.ends + shard * (<uint64_t>p.examples + 1)


cdef int sort_entries(const Order *order, Product *p, const int64_t *ptr, const uint64_t *keys,
                      const float *values) noexcept nogil:
    # `values` NULL = all are 1.
    cdef uint64_t entries = ptr[p.examples] - ptr[0]
    cdef uint32_t *owner = <uint32_t *>malloc(entries * 4 + order.shards * <size_t>8 + 8)
    cdef uint64_t *at
    cdef uint32_t *ends
    cdef uint32_t i, s, slabs = 0
    cdef uint64_t k, to
    cdef float one = 1
    cdef bint ones = True
    if owner == NULL:
        return SORT_NO_MEMORY
    at = <uint64_t *>(owner + (entries + 1 & ~<uint64_t>1))
    keys += ptr[0]
    if values != NULL:
        values += ptr[0]
    for i in range(p.examples):
        for k in range(<uint64_t>(ptr[i] - ptr[0]), <uint64_t>(ptr[i + 1] - ptr[0])):
            s = order.owner[fragment_of_hash(hash_key(keys[k]), order.frag_num)]
            owner[k] = s
            _ends_of(p, s)[i + 1] += 1
    for s in range(order.shards):
        ends = _ends_of(p, s)
        for i in range(p.examples):
            if ends[i + 1] > EXAMPLE_ENTRIES_MAX:
                free(owner)
                return SORT_TOO_LONG
            ends[i + 1] += ends[i]
        at[s] = p.shard_start[s]
        p.shard_start[s + 1] = p.shard_start[s] + ends[p.examples]
        p.slab[s] = NO_SLAB
        if ends[p.examples]:
            p.slab[s] = slabs
            slabs += 1
    for k in range(entries):
        s = owner[k]
        to = at[s]
        at[s] += 1
        p.keys[to] = keys[k]
        p.values[to] = values[k] if values != NULL else one
        ones &= p.values[to] == one
    p.ones = ones
    free(owner)
    return 0


cdef const Product *_entries_of(const Request *r) noexcept nogil:
    """The product that has the entries of the request's batch."""
    return r.product if r.product.forward == NULL else r.product.forward.product


cdef uint32_t part_examples(const Request *r, uint32_t shard, uint32_t first) noexcept nogil:
    cdef const Product *p = r.product
    cdef const uint32_t *ends
    cdef uint32_t n = 1
    cdef uint32_t most = max(<uint32_t>PART_BYTES // r.row_bytes, <uint32_t>1)
    most = min(most, p.examples - first)
    if r.kind == KIND_BACKWARD:
        return most
    ends = _ends_of(p, shard) + first
    while n < most and (ends[n + 1] - <uint64_t>ends[0]) * ENTRY_BYTES \
            + (n + <uint64_t>1) * 4 <= PART_BYTES:
        n += 1
    return n


cdef size_t forward_bytes(const Request *r, uint32_t shard, uint32_t first, uint32_t count,
                          uint32_t *width, uint64_t *base) noexcept nogil:
    cdef const Product *p = r.product
    cdef const uint32_t *ends = _ends_of(p, shard)
    cdef uint32_t n = ends[first + count] - ends[first]
    cdef size_t need = sizeof(ProductHead) + ((<size_t>count * 4 + 7) & ~<size_t>7)
    width[0] = key_bytes(p.keys + p.shard_start[shard] + ends[first], n, base)
    need += narrow_keys_bytes(n, width[0]) if width[0] else <size_t>n * 8
    if not p.ones:
        need += (<size_t>n * 4 + 7) & ~<size_t>7
    return need


cdef size_t backward_bytes(const Request *r, uint32_t count) noexcept nogil:
    return sizeof(ProductHead) + ((<size_t>count * r.row_bytes + 7) & ~<size_t>7)


cdef void _write_head(ProductHead *top, const Request *r, uint32_t first, uint32_t count,
                      uint64_t seq) noexcept nogil:
    memset(top, 0, sizeof(ProductHead))
    top.batch = _entries_of(r).batch
    top.examples = r.product.examples
    top.first = first
    top.count = count
    top.floats = r.dim
    top.options = <uint32_t>r.wire << OPTION_WIRE_SHIFT
    if r.kind == KIND_BACKWARD:
        top.seq = seq
        top.scale = r.product.scale
        top.lr_scale = r.product.lr_scale


cdef void write_forward(char *to, const Request *r, uint32_t shard, uint32_t first, uint32_t count,
                        uint32_t width, uint64_t base, bint quiet) noexcept nogil:
    cdef const Product *p = r.product
    cdef const uint32_t *ends = _ends_of(p, shard) + first
    cdef const uint64_t *keys = p.keys + p.shard_start[shard] + ends[0]
    cdef const float *values = p.values + p.shard_start[shard] + ends[0]
    cdef ProductHead *top = <ProductHead *>to
    cdef uint32_t *counts = <uint32_t *>(to + sizeof(ProductHead))
    cdef uint32_t n = ends[count] - ends[0]
    cdef uint32_t i
    _write_head(top, r, first, count, 0)
    top.entries = n
    top.options |= width << OPTION_KEY_SHIFT
    if p.keep:
        top.options |= PRODUCT_KEEP
    if quiet:
        top.options |= PRODUCT_QUIET
    if p.ones:
        top.options |= PRODUCT_ONES
    if p.stored:
        top.options |= PRODUCT_STORED
    for i in range(count):
        counts[i] = ends[i + 1] - ends[i]
    if count & 1:
        counts[count] = 0
    to = <char *>(counts + (count + 1 & ~<uint32_t>1))
    if width:
        write_narrow_keys(to, keys, n, base, width)
        to += narrow_keys_bytes(n, width)
    else:
        memcpy(to, keys, <size_t>n * 8)
        to += <size_t>n * 8
    if not p.ones:
        memcpy(to, values, <size_t>n * 4)
        if n & 1:
            (<uint32_t *>to)[n] = 0


cdef void write_backward(const WireOps *wire, char *to, const Request *r, uint32_t first,
                         uint32_t count, uint64_t seq) noexcept nogil:
    cdef char *end = to + backward_bytes(r, count)
    cdef const char *row = r.rows + first * r.row_stride
    cdef uint32_t i
    _write_head(<ProductHead *>to, r, first, count, seq)
    to += sizeof(ProductHead)
    if r.wire == WIRE_FLOAT32:
        memcpy(to, row, <size_t>count * r.row_bytes)
        to += <size_t>count * r.row_bytes
    else:
        for i in range(count):
            wire.narrow[r.wire](<const float *>row, to, r.dim)
            row += r.row_stride
            to += r.row_bytes
    memset(to, 0, end - to)


cdef bint take_product(const WireOps *wire, const Request *r, uint32_t shard, uint32_t first,
                       uint32_t count, const char *body, uint64_t body_bytes) noexcept nogil:
    cdef uint32_t i
    cdef float *to = <float *>r.rows \
        + (r.product.slab[shard] * <uint64_t>r.product.examples + first) * r.dim
    if r.wire == WIRE_FLOAT16 and body_bytes == wide_product_bytes(count, r.dim):
        memcpy(to, body, <size_t>count * r.dim * 4)
        return True
    if body_bytes != ((<uint64_t>count * r.row_bytes + 7) & ~<uint64_t>7):
        return False
    if r.wire == WIRE_FLOAT32:
        memcpy(to, body, <size_t>count * r.row_bytes)
        return True
    for i in range(count):
        wire.widen[r.wire](body, to, r.dim)
        body += r.row_bytes
        to += r.dim
    return True


cdef Sent *sent_of(Product *p, uint32_t shard, uint64_t connection_id) noexcept nogil:
    cdef Sent *sent = &p.sent[shard]
    if sent.connection_id != connection_id:
        sent.connection_id = connection_id
        sent.examples = 0
    return sent


product_calls.make, product_calls.sort = product_new, sort_entries
product_calls.examples, product_calls.sent = part_examples, sent_of
product_calls.forward_bytes, product_calls.backward_bytes = forward_bytes, backward_bytes
product_calls.write_forward, product_calls.write_backward = write_forward, write_backward
product_calls.take = take_product
