# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A request of the fan-out client, and its keys in order: see _request.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._key_table cimport number_of, slots_for
from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch_row, fetch_row_to_write
from snailps.abi._table_hash cimport table_hash
from snailps.transport._frame cimport KIND_BACKWARD, KIND_PUSH, KIND_SEAL

cdef enum:
    POOL_BLOCK_MAX = 256 << 20      # a larger one goes back to the system

cdef extern from *:
    """
    #define snail_lowest_bit64(bits) ((unsigned)__builtin_ctzll(bits))
    """
    unsigned int lowest_bit64 "snail_lowest_bit64"(uint64_t bits) noexcept nogil


cdef void pool_free(Pool *pool) noexcept nogil:
    cdef uint32_t i
    for i in range(POOL_BLOCKS):
        free(pool.blocks[i])
        pool.blocks[i] = NULL
        pool.sizes[i] = 0


cdef char *_pool_take(Pool *pool, size_t need, size_t *size) noexcept nogil:
    """A block of at least `need` bytes, preferably one whose pages are there; NULL = no memory."""
    # The caller holds the GIL: that is the pool's lock.
    cdef uint32_t i
    cdef uint32_t best = POOL_BLOCKS
    cdef char *block
    for i in range(POOL_BLOCKS):
        if pool.sizes[i] >= need and pool.sizes[i] // 4 <= need \
                and (best == POOL_BLOCKS or pool.sizes[i] < pool.sizes[best]):
            best = i
    if best == POOL_BLOCKS:
        size[0] = need
        return <char *>malloc(need)
    block = pool.blocks[best]
    size[0] = pool.sizes[best]
    pool.blocks[best] = NULL
    pool.sizes[best] = 0
    return block


cdef void _pool_give(Pool *pool, char *block, size_t size) noexcept nogil:
    """Keeps a block in the place of the smallest, which goes.  The caller holds the GIL."""
    cdef uint32_t i
    cdef uint32_t least = 0
    for i in range(1, POOL_BLOCKS):
        if pool.sizes[i] < pool.sizes[least]:
            least = i
    if size < pool.sizes[least] or size > POOL_BLOCK_MAX:
        free(block)
        return
    free(pool.blocks[least])
    pool.blocks[least] = block
    pool.sizes[least] = size


cdef void request_free(Pool *pool, Request *r) noexcept nogil:
    if r == NULL:
        return
    if r.block != NULL:
        _pool_give(pool, r.block, r.block_size)
    free(r.later)
    free(r.sum)
    free(r.product)
    free(r.raw_reply)
    free(r.text)
    free(r)


cdef Request *request_new(Pool *pool, const Order *order, uint32_t n) noexcept nogil:
    cdef Request *r = <Request *>calloc(1, sizeof(Request))
    cdef size_t groups = min(n, order.frag_num)
    cdef size_t need = <size_t>n * 20 + groups * 8 + order.shards * <size_t>4 + 64
    if r == NULL:
        return NULL
    r.block = _pool_take(pool, need, &r.block_size)
    if r.block == NULL:
        free(r)
        return NULL
    r.n = n
    r.keys = <uint64_t *>r.block
    r.stamps = r.keys + n
    r.order = <uint32_t *>(r.stamps + n)
    r.group_fragment = r.order + n
    r.group_start = r.group_fragment + groups
    r.shard_group = r.group_start + groups + 1
    memset(r.group_start, 0, (groups + 1) * 4)
    memset(r.shard_group, 0, (order.shards + <size_t>1) * 4)
    return r


cdef bint request_wants(const Request *r, uint32_t shard) noexcept nogil:
    if r.kind == KIND_RAW:
        return r.raw_shard == shard or r.raw_shard == <uint32_t>EVERY_SHARD
    if r.product != NULL:
        return r.product.slab[shard] != NO_SLAB
    return r.shard_group[shard] < r.shard_group[shard + 1]


cdef bint request_changes(const Request *r) noexcept nogil:
    return r.kind == KIND_PUSH or r.kind == KIND_BACKWARD \
        or (r.kind == KIND_RAW and r.raw_kind == KIND_SEAL)


cdef bint waits_for_clock(const Request *r) noexcept nogil:
    return r.clocked and not request_changes(r)


cdef void request_refused(Request *r, const char *text, size_t text_bytes) noexcept nogil:
    if r.failed:
        return
    r.failed = True
    r.text = <char *>malloc(text_bytes + 1)
    if r.text != NULL:
        memcpy(r.text, text, text_bytes)
        r.text_bytes = <uint32_t>text_bytes


cdef int sort_keys(const Order *order, Request *r, const uint64_t *keys) noexcept nogil:
    # Which places have keys is kept as bits, so that a short request walks over some words and not
    # over all fragments.
    cdef uint32_t words = (order.frag_num + 63) >> 6
    cdef uint32_t *place = <uint32_t *>r.stamps             # which are not in use yet
    cdef uint64_t *seen = <uint64_t *>malloc(words * <size_t>8 + order.frag_num * <size_t>4)
    cdef uint32_t *at = <uint32_t *>(seen + words)          # keys of a place; then where they go
    cdef uint64_t bits
    cdef uint32_t i, p, w, keys_here
    cdef uint32_t g = 0
    cdef uint32_t shard = 0
    cdef uint32_t total = 0
    if seen == NULL:
        return -1
    memset(seen, 0, words * <size_t>8 + order.frag_num * <size_t>4)
    for i in range(r.n):
        p = order.rank[fragment_of_hash(hash_key(keys[i]), order.frag_num)]
        place[i] = p
        seen[p >> 6] |= <uint64_t>1 << (p & 63)
        at[p] += 1
    for w in range(words):
        bits = seen[w]
        while bits:
            p = (w << 6) + lowest_bit64(bits)
            bits &= bits - 1
            while p >= order.shard_start[shard + 1]:
                shard += 1
                r.shard_group[shard] = g
            keys_here = at[p]
            at[p] = total
            r.group_fragment[g] = order.fragment_at[p]
            r.group_start[g] = total
            g += 1
            total += keys_here
    while shard < order.shards:
        shard += 1
        r.shard_group[shard] = g
    r.group_start[g] = total
    r.groups = g
    # Keys are gathered in a loop of their own: two scattered stores a key take up to twice the time.
    for i in range(r.n):
        p = place[i]
        r.order[at[p]] = i
        at[p] += 1
    for i in range(r.n):
        r.keys[i] = keys[r.order[i]]
    memset(r.stamps, 0, <size_t>r.n * 8)
    free(seen)
    return 0


cdef int merge_keys(Request *r) noexcept nogil:
    # Runs after `sort_keys`: repetitions are in the same group, so a table as small as a group finds
    # them in cache, at some 8 ns a key.  Here and not at the shard, because the parts that a large
    # push is cut into could hold one key twice.
    cdef uint32_t g, i, widest = 0
    cdef uint32_t first, kept = 0
    cdef uint64_t size, slot
    cdef uint32_t place
    cdef uint32_t *places           # numbers of the group's keys so far
    cdef uint32_t *last             # by place, where its chain ends
    for g in range(r.groups):
        widest = max(widest, r.group_start[g + 1] - r.group_start[g])
    size = slots_for(widest)
    places = <uint32_t *>malloc(size * 4)
    last = <uint32_t *>malloc(<size_t>r.n * 4 + 4)
    r.later = <uint32_t *>malloc(<size_t>r.n * 4 + 4)
    if places == NULL or last == NULL or r.later == NULL:
        free(places)
        free(last)
        return -1
    for g in range(r.groups):
        first = r.group_start[g]
        r.group_start[g] = kept
        size = slots_for(r.group_start[g + 1] - first)
        memset(places, 0, size * 4)
        for i in range(first, r.group_start[g + 1]):
            place = number_of(places, size - 1, r.keys, r.keys[i], &slot)
            if place:
                r.later[last[place - 1]] = r.order[i]
                last[place - 1] = r.order[i]
            else:
                r.keys[kept] = r.keys[i]
                r.order[kept] = r.order[i]
                last[kept] = r.order[i]
                kept += 1
                places[slot] = kept
            r.later[r.order[i]] = NO_KEY
    r.group_start[r.groups] = kept
    free(places)
    free(last)
    if kept == r.n:                 # the usual case: values are copied as they are
        free(r.later)
        r.later = NULL
        return 0
    r.n = kept
    r.sum = <float *>malloc(<size_t>r.dim * 4)
    return 0 if r.sum != NULL else -1


cdef bint _lacks_some(const Request *pull, uint32_t g, const Request *push,
                      uint32_t h) noexcept nogil:
    """Whether a row of the pull's group g was read before some value of the push's group h."""
    cdef uint64_t newest = 0
    cdef uint64_t oldest = <uint64_t>0xFFFFFFFFFFFFFFFF
    cdef uint32_t i
    for i in range(push.group_start[h], push.group_start[h + 1]):
        newest = max(newest, push.stamps[i] - 1)    # 0, a part not cut yet, becomes the newest
    for i in range(pull.group_start[g], pull.group_start[g + 1]):
        oldest = min(oldest, pull.stamps[i])
    return newest >= oldest


cdef int64_t _add_group(const Request *pull, uint32_t g, const Request *push, uint32_t h,
                        char *second, size_t second_stride, uint32_t *heads,
                        uint32_t *later) noexcept nogil:
    """The join of one fragment; `heads` is a power of two above twice the push's keys in it."""
    cdef uint32_t first = push.group_start[h]
    cdef uint32_t n = push.group_start[h + 1] - first
    cdef uint64_t slot, mask = slots_for(n) - 1
    cdef const uint64_t *keys = push.keys + first
    cdef uint32_t i, j
    cdef int64_t corrected = 0
    cdef const float *value
    memset(heads, 0, (mask + 1) * 4)
    for i in range(n):
        j = n - 1 - i                               # backwards: the first becomes the head
        later[j] = number_of(heads, mask, keys, keys[j], &slot)
        heads[slot] = j + 1
    for i in range(pull.group_start[g], pull.group_start[g + 1]):
        if i + 8 < pull.group_start[g + 1]:         # the join of a row ahead, as far as it is sure
            fetch_row_to_write(pull.rows + pull.order[i + 8] * pull.row_stride, 4 * pull.dim,
                               FETCH_AT_CLIENT)
            j = heads[table_hash(pull.keys[i + 8]) & mask]
            if j:
                fetch_row(push.rows + push.order[first + j - 1] * push.row_stride, 4 * pull.dim,
                          FETCH_AT_CLIENT)
        j = number_of(heads, mask, keys, pull.keys[i], &slot)
        while j:
            # A part that is not cut yet (stamp 0) goes out after the pull, so it is newer too.
            if push.stamps[first + j - 1] == 0 or push.stamps[first + j - 1] > pull.stamps[i]:
                value = <const float *>(push.rows + push.order[first + j - 1] * push.row_stride)
                add_row(<float *>(pull.rows + pull.order[i] * pull.row_stride), value, pull.dim)
                if second != NULL:
                    add_row(<float *>(second + pull.order[i] * second_stride), value, pull.dim)
                corrected += 1
            j = later[j - 1]
    return corrected


cdef int64_t add_newer(const Order *order, const Request *pull, const Request *push, char *second,
                       size_t second_stride) noexcept nogil:
    # A hash join fragment by fragment, which both are sorted by: its tables fit into the cache, and
    # fragments that lack nothing are passed over.  A key's repetitions are a chain in their order,
    # so that they cost no more than others and sums have the shard's order.
    cdef uint32_t g = 0, h = 0, widest = 0
    cdef uint64_t size
    cdef int64_t corrected = 0
    cdef uint32_t *heads
    for h in range(push.groups):
        widest = max(widest, push.group_start[h + 1] - push.group_start[h])
    size = slots_for(widest)
    heads = <uint32_t *>malloc((size + widest) * 4)     # ... followed by the chains
    if heads == NULL:
        return -1
    h = 0
    while g < pull.groups and h < push.groups:
        if pull.group_fragment[g] != push.group_fragment[h]:
            if order.rank[pull.group_fragment[g]] < order.rank[push.group_fragment[h]]:
                g += 1
            else:
                h += 1
            continue
        if _lacks_some(pull, g, push, h):
            corrected += _add_group(pull, g, push, h, second, second_stride, heads, heads + size)
        g += 1
        h += 1
    free(heads)
    return corrected
