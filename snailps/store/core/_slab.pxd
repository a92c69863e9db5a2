# Index and slab: the rows of one table in one fragment (a Part), and how they grow.
#
#   key -> hash -> bucket (one cache line: 8 tags, 8 slots) -> slot -> chunk -> row (key, floats)
#
# The index holds the low 32 bits of each key's hash (the tag) and the place of its row (the
# slot: chunk and place in it); the key stands in front of the row, where it is read with it.
# So a lookup costs one line of the index and the row; growing the index moves 8 bytes a row and
# touches no row; the slab alone, walked by slot, is the list of a fragment's rows.
#
#   * A bucket fills from its front, and a full one overflows into the next: a lookup ends at the
#     first bucket with an empty entry.  A deletion closes the gap it leaves: it moves an entry
#     back that had overflowed past it, so there are no tombstones and lookups know no deletions.
#   * Rows never move: a Part grows by whole chunks.  The exception is its first chunk, which
#     starts at one row and doubles by copying, at most 8 KiB, so that thousands of fragments
#     with a few rows each stay small.
#   * The slot of a deleted row is the next one to be used again: such slots are a list through
#     the place of their keys.  Whether a slot holds a row is asked of the index (`holds_row`).
#   * A table may ask for the tick of a row's last push and for its version, behind the floats.
#
# Cost of a row beyond its floats: 8 bytes of key and 10 to 23 of index (load 0.35 to 0.81), 4 for
# the tick and 8 for the version where the table tracks them.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport hash_key
from snailps.abi._row_ops cimport ACCESS_PYTHON, RowOps
from snailps.store.core._arena cimport (
    BLOCK_CLASSES, BLOCK_MIN, Arena, FreeBlock, arena_block, arena_cut, arena_give, block_class,
)

cdef extern from *:
    """
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif
    /* Bit i is set if values[i] == wanted, i in 0..7. */
    static inline unsigned snail_match8(const unsigned int *values, unsigned int wanted) {
    #if defined(__SSE2__)
        const __m128i w = _mm_set1_epi32((int)wanted);
        const __m128i a = _mm_cmpeq_epi32(w, _mm_loadu_si128((const __m128i *)values));
        const __m128i b = _mm_cmpeq_epi32(w, _mm_loadu_si128((const __m128i *)(values + 4)));
        return (unsigned)_mm_movemask_ps(_mm_castsi128_ps(a))
               | (unsigned)_mm_movemask_ps(_mm_castsi128_ps(b)) << 4;
    #else
        unsigned found = 0;
        for (int i = 0; i < 8; i++) found |= (unsigned)(values[i] == wanted) << i;
        return found;
    #endif
    }
    """
    uint32_t match8 "snail_match8"(const uint32_t *values, uint32_t wanted) noexcept nogil
    int lowest_bit "__builtin_ctz"(uint32_t bits) noexcept nogil

cdef enum:
    BUCKET_SLOTS = 8
    CHUNK_BYTES = 8 << 10       # at most, unless one row is longer; half a chunk a part lies idle
    ROWS_MAX = 0x7FFFFFF0       # of a part: slots are 32 bits, up to half of them between chunks
    KEY_BYTES = 8               # in front of each row's floats

cdef struct Bucket:
    uint32_t tags[BUCKET_SLOTS]
    uint32_t slots[BUCKET_SLOTS]        # slot + 1; 0 = empty

cdef struct Part:               # 64 bytes
    Bucket *buckets             # never NULL: an empty part has the slab's `no_bucket`
    char **chunks
    char *first                 # the first chunk; `chunks` points here until there is a second
    uint32_t mask               # number of buckets - 1
    uint32_t rows
    uint32_t used               # slots handed out so far, those of deleted rows included
    uint32_t free_slot          # slot + 1 of the row deleted last; 0 = none to be used again
    uint32_t room               # rows that fit into the chunks there are
    uint32_t chunk_num
    uint32_t chunk_cap
    uint32_t first_class        # block class of the first chunk while it is a small one
    uint64_t version            # of its newest change; 0 = none, or not tracked

cdef struct Slab:               # the rows of one table in one shard
    Part *parts                 # by fragment
    Arena *arena
    Bucket *no_bucket           # one for all: each extension module has a NO_BUCKET of its own
    const RowOps *ops
    uint32_t dim
    uint32_t floats             # of weights and state
    int access
    const float *hyper
    const uint32_t *tick        # the caller's clock
    uint32_t touch_at           # bytes from the key to the tick of the last push; 0 = not tracked
    uint32_t version_at         # ... to the version
    uint64_t *deleted           # by fragment: version of the newest deletion; NULL = not tracked
    uint32_t stride             # bytes from one row's key to the next one's
    uint32_t chunk_rows
    uint32_t chunk_shift        # 1 << chunk_shift >= chunk_rows: slot = chunk << shift | place
    int init
    float scale
    uint64_t seed
    uint64_t rows
    uint64_t chunk_bytes
    FreeBlock *free_chunks
    char *window                # part of a freed block that is being cut into chunks
    char *window_end

cdef extern from *:
    """
    /* What an empty part's index points at: all entries empty, and nobody writes to it. */
    static unsigned int snail_no_bucket[16] __attribute__((aligned(64)));
    """
    uint32_t[16] NO_BUCKET "snail_no_bucket"


cdef inline char *row_at(const Slab *slab, const Part *part, uint32_t slot) noexcept nogil:
    return (part.chunks[slot >> slab.chunk_shift]
            + <uint64_t>(slot & ((<uint32_t>1 << slab.chunk_shift) - 1)) * slab.stride)


cdef inline uint32_t slot_of(const Slab *slab, uint32_t number) noexcept nogil:
    """Slot of a part's row `number`, counted in order of creation."""
    return (number // slab.chunk_rows << slab.chunk_shift) | number % slab.chunk_rows


cdef inline uint64_t key_of(const char *row) noexcept nogil:
    cdef uint64_t key           # rows of odd length leave the next key on a 4-byte boundary
    memcpy(&key, row, KEY_BYTES)
    return key


cdef inline float *weights_of(char *row) noexcept nogil:
    return <float *>(row + KEY_BYTES)


cdef inline uint32_t index_room(const Slab *slab, const Part *part) noexcept nogil:
    """Rows at which the index doubles: 13/16 full; longer runs cost more than the memory saves.

    Up to 1/8 earlier, by the number of the fragment: all fragments of a table fill in step, and
    a push of many new keys should not find several of them about to grow.
    """
    cdef uint64_t early = <uint64_t>(part - slab.parts) & 15
    if part.buckets == slab.no_bucket:
        return 0
    return <uint32_t>min((<uint64_t>part.mask + 1) * (104 - early) >> 4, <uint64_t>ROWS_MAX)


cdef inline void first_row(const Slab *slab, uint64_t key, float *row,
                           uint32_t floats) noexcept nogil:
    """First value of a key: its weights, or (floats > dim) weights and state."""
    slab.ops.init(slab.init, slab.scale, slab.seed, key, row, slab.dim)
    if floats > slab.dim:
        if slab.access == ACCESS_PYTHON:
            memset(row + slab.dim, 0, (floats - slab.dim) * sizeof(float))
        else:
            slab.ops.init_state(slab.access, slab.hyper, row, slab.dim)


cdef inline void part_clear(const Slab *slab, Part *part) noexcept nogil:
    memset(part, 0, sizeof(Part))
    part.buckets = slab.no_bucket
    part.chunks = &part.first


cdef inline char *part_find(const Slab *slab, const Part *part, uint64_t key,
                            uint32_t tag) noexcept nogil:
    """The key's row, or NULL."""
    cdef uint32_t position = tag & part.mask
    cdef uint32_t found, slot
    cdef const Bucket *bucket
    cdef char *row
    while True:
        bucket = &part.buckets[position]
        found = match8(bucket.tags, tag)
        while found:
            slot = bucket.slots[lowest_bit(found)]
            if slot == 0:               # an empty entry's tag is 0 by chance
                return NULL
            row = row_at(slab, part, slot - 1)
            if key_of(row) == key:
                return row
            found &= found - 1
        if bucket.slots[BUCKET_SLOTS - 1] == 0:
            return NULL
        position = (position + 1) & part.mask


cdef inline void _index_put(Bucket *buckets, uint32_t mask, uint32_t tag,
                            uint32_t slot_plus_1) noexcept nogil:
    cdef uint32_t position = tag & mask
    cdef uint32_t empty = match8(buckets[position].slots, 0)
    cdef int i
    while empty == 0:
        position = (position + 1) & mask
        empty = match8(buckets[position].slots, 0)
    i = lowest_bit(empty)
    buckets[position].tags[i] = tag
    buckets[position].slots[i] = slot_plus_1


cdef inline int _grow_index(Slab *slab, Part *part) noexcept nogil:
    """Doubles the index: 8 bytes a row are moved, some 0.3 ms where a fragment has 50,000."""
    cdef bint first = part.buckets == slab.no_bucket
    cdef uint64_t old_num = 0 if first else <uint64_t>part.mask + 1
    cdef uint64_t bucket_num = 1 if first else 2 * old_num
    cdef uint64_t b
    cdef int i
    cdef Bucket *buckets = <Bucket *>arena_block(
        slab.arena, block_class(bucket_num * sizeof(Bucket)))
    if buckets == NULL:
        return -1
    memset(buckets, 0, bucket_num * sizeof(Bucket))
    for b in range(old_num):
        for i in range(BUCKET_SLOTS):
            if part.buckets[b].slots[i] == 0:
                break
            _index_put(buckets, <uint32_t>(bucket_num - 1), part.buckets[b].tags[i],
                       part.buckets[b].slots[i])
    if not first:
        arena_give(slab.arena, <char *>part.buckets, old_num * sizeof(Bucket))
    part.buckets = buckets
    part.mask = <uint32_t>(bucket_num - 1)
    return 0


cdef inline char *_take_chunk(Slab *slab) noexcept nogil:
    """Room for `chunk_rows` rows: a freed chunk, part of a freed index, or new."""
    cdef FreeBlock *block = slab.free_chunks
    cdef Arena *arena = slab.arena
    cdef uint32_t c
    cdef char *chunk
    if block != NULL:
        slab.free_chunks = block.next
        return <char *>block
    if <uint64_t>(slab.window_end - slab.window) < slab.chunk_bytes:
        # Fragments grow in step, so the indices they leave would pile up: cut chunks out of
        # them, where the cut loses no more than 1/16.
        c = block_class(slab.chunk_bytes)
        while c < BLOCK_CLASSES and (
                arena.free[c] == NULL
                or (<uint64_t>BLOCK_MIN << c) % slab.chunk_bytes > <uint64_t>BLOCK_MIN << c >> 4):
            c += 1
        if c >= BLOCK_CLASSES:
            return arena_cut(arena, slab.chunk_bytes)
        arena_give(arena, slab.window, <uint64_t>(slab.window_end - slab.window))
        block = arena.free[c]
        arena.free[c] = block.next
        slab.window = <char *>block
        slab.window_end = slab.window + (<uint64_t>BLOCK_MIN << c)
    chunk = slab.window
    slab.window += slab.chunk_bytes
    return chunk


cdef inline void _give_chunk(Slab *slab, char *chunk) noexcept nogil:
    cdef FreeBlock *block = <FreeBlock *>chunk
    block.next = slab.free_chunks
    slab.free_chunks = block


cdef inline int _grow_first(Slab *slab, Part *part) noexcept nogil:
    """Gives a part its first chunk, or one of twice the size with the rows copied."""
    cdef uint32_t c = part.first_class + 1 if part.chunk_num else block_class(slab.stride)
    cdef uint64_t length = <uint64_t>BLOCK_MIN << c
    cdef bint whole = length >= slab.chunk_bytes
    cdef char *chunk = _take_chunk(slab) if whole else arena_block(slab.arena, c)
    if chunk == NULL:
        return -1
    if part.chunk_num:
        memcpy(chunk, part.first, <uint64_t>part.used * slab.stride)
        arena_give(slab.arena, part.first, length // 2)
    part.first = chunk
    part.first_class = c
    part.chunk_num = 1
    part.chunk_cap = 1
    part.room = slab.chunk_rows if whole else <uint32_t>(length // slab.stride)
    return 0


cdef inline int _grow_slab(Slab *slab, Part *part) noexcept nogil:
    cdef uint32_t chunk_cap
    cdef char *chunk
    cdef char **chunks
    if part.room < slab.chunk_rows:
        return _grow_first(slab, part)
    if part.room > <uint32_t>ROWS_MAX - slab.chunk_rows:
        return -1
    if part.chunk_num == part.chunk_cap:
        chunk_cap = 8 if part.chunk_cap == 1 else 2 * part.chunk_cap
        chunks = <char **>arena_block(slab.arena, block_class(chunk_cap * sizeof(char *)))
        if chunks == NULL:
            return -1
        memcpy(chunks, part.chunks, part.chunk_num * sizeof(char *))
        if part.chunk_cap > 1:
            arena_give(slab.arena, <char *>part.chunks, part.chunk_cap * sizeof(char *))
        part.chunks = chunks
        part.chunk_cap = chunk_cap
    chunk = _take_chunk(slab)
    if chunk == NULL:
        return -1
    part.chunks[part.chunk_num] = chunk
    part.chunk_num += 1
    part.room += slab.chunk_rows
    return 0


cdef inline char *part_place(Slab *slab, Part *part, uint32_t tag) noexcept nogil:
    """Makes room for the row of a key that has none; all of it, the key too, is to be written now.
    NULL = no memory.

    Rows of this part may have moved afterwards if it has a single chunk.
    """
    cdef uint32_t slot = part.free_slot - 1 if part.free_slot else slot_of(slab, part.used)
    cdef char *row
    if part.free_slot == 0 and part.used == part.room and _grow_slab(slab, part) < 0:
        return NULL
    if part.rows >= index_room(slab, part) and _grow_index(slab, part) < 0:
        return NULL
    row = row_at(slab, part, slot)
    if part.free_slot:
        part.free_slot = <uint32_t>key_of(row)
    else:
        part.used += 1
    part.rows += 1
    slab.rows += 1
    _index_put(part.buckets, part.mask, tag, slot + 1)
    return row


cdef inline char *part_insert(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil:
    """Creates the row of a key that has none: seeded weights, first state.  NULL = no memory.

    Rows of this part may have moved afterwards, as by `part_place`.
    """
    cdef char *row = part_place(slab, part, tag)
    if row != NULL:
        memcpy(row, &key, KEY_BYTES)
        first_row(slab, key, weights_of(row), slab.floats)
        memset(row + KEY_BYTES + slab.floats * sizeof(float), 0,
               slab.stride - KEY_BYTES - slab.floats * sizeof(float))
    return row


cdef inline bint _move_back(Part *part, uint32_t *position, int *entry) noexcept nogil:
    """Fills the last entry of a bucket that was full with one that overflowed past it.

    `position` and `entry` become the gap that it leaves; False = nothing overflowed past it.
    """
    cdef uint32_t gap = position[0]
    cdef uint32_t at = gap
    cdef uint32_t distance
    cdef Bucket *bucket
    cdef int i
    while True:
        at = (at + 1) & part.mask
        bucket = &part.buckets[at]
        distance = (at - gap) & part.mask
        for i in range(BUCKET_SLOTS):
            if bucket.slots[i] == 0:
                return False
            # How far the entry is from where it belongs: may it be as far back as the gap?
            if ((at - (bucket.tags[i] & part.mask)) & part.mask) >= distance:
                part.buckets[gap].tags[BUCKET_SLOTS - 1] = bucket.tags[i]
                part.buckets[gap].slots[BUCKET_SLOTS - 1] = bucket.slots[i]
                position[0] = at
                entry[0] = i
                return True


cdef inline uint32_t _index_take(Part *part, const Slab *slab, uint64_t key,
                                 uint32_t tag) noexcept nogil:
    """Takes a key out of the index; its slot + 1, 0 = it was not there."""
    cdef uint32_t position = tag & part.mask
    cdef uint32_t found, slot = 0
    cdef Bucket *bucket
    cdef int i = 0
    cdef int last
    while slot == 0:
        bucket = &part.buckets[position]
        found = match8(bucket.tags, tag)
        while found:
            i = lowest_bit(found)
            if bucket.slots[i] and key_of(row_at(slab, part, bucket.slots[i] - 1)) == key:
                slot = bucket.slots[i]
                break
            found &= found - 1
        if slot == 0:
            if bucket.slots[BUCKET_SLOTS - 1] == 0:
                return 0
            position = (position + 1) & part.mask
    while True:
        bucket = &part.buckets[position]
        last = BUCKET_SLOTS - 1
        while bucket.slots[last] == 0:
            last -= 1
        bucket.tags[i] = bucket.tags[last]
        bucket.slots[i] = bucket.slots[last]
        bucket.tags[last] = 0
        bucket.slots[last] = 0
        # Only past a bucket that was full can anything have overflowed.
        if last < BUCKET_SLOTS - 1 or not _move_back(part, &position, &i):
            return slot


cdef inline bint part_delete(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil:
    """Deletes a key's row; False = it had none.  The slot is the next one to be used again."""
    cdef uint32_t slot = _index_take(part, slab, key, tag)
    cdef uint64_t following = part.free_slot
    if slot == 0:
        return False
    memcpy(row_at(slab, part, slot - 1), &following, KEY_BYTES)
    part.free_slot = slot
    if slab.deleted != NULL:
        part.version += 1
        slab.deleted[part - slab.parts] = part.version
    part.rows -= 1
    slab.rows -= 1
    return True


cdef inline bint holds_row(const Slab *slab, const Part *part, uint32_t slot) noexcept nogil:
    """Whether a used slot holds a row.  Exact: what stands for the key of a deleted row may be the
    number of a key, but the index leads no key to this slot."""
    cdef char *row = row_at(slab, part, slot)
    cdef uint64_t key
    if part.rows == part.used:
        return True
    key = key_of(row)
    return part_find(slab, part, key, <uint32_t>hash_key(key)) == row


cdef inline void part_drop(Slab *slab, Part *part) noexcept nogil:
    """Forgets all rows; their memory serves later ones."""
    cdef uint32_t i
    if part.chunk_num == 1 and part.room < slab.chunk_rows:
        arena_give(slab.arena, part.first, <uint64_t>BLOCK_MIN << part.first_class)
    else:
        for i in range(part.chunk_num):
            _give_chunk(slab, part.chunks[i])
    if part.chunk_cap > 1:
        arena_give(slab.arena, <char *>part.chunks, part.chunk_cap * sizeof(char *))
    if part.buckets != slab.no_bucket:
        arena_give(slab.arena, <char *>part.buckets, (<uint64_t>part.mask + 1) * sizeof(Bucket))
    slab.rows -= part.rows
    part_clear(slab, part)
