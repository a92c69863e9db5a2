# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Index and slab: how the rows of a table in a fragment are found, made, deleted and walked.

    key, tag -> part_find, part_reach, part_delete -> row
    part -> part_copy -> rows as bytes -> part_put -> the same table elsewhere
    part -> part_expire, part_close_round -> rows deleted, rows changed

`_slab.pxd` says how rows lie.  Memory comes from `_arena`, first values from `RowOps`.  Only the shard's
thread runs this.  Must not know marks, clocks, frames or tables; lookups of many keys at once are in
`tables.pyx`.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._prefetch cimport fetch
from snailps.abi._row_ops cimport ACCESS_PYTHON, RowOps
from snailps.store.core._arena cimport (
    BLOCK_MIN, Arena, FreeBlock, Piece, arena_block, arena_cut, arena_free_block, arena_give, block_class,
)

cdef extern from *:
    """
    /* The index of every empty part: all entries empty, never written. */
    static unsigned int snail_no_bucket[16] __attribute__((aligned(64)));
    """
    uint32_t[16] NO_BUCKET "snail_no_bucket"

cdef enum:
    CHUNK_BYTES = 8 << 10       # at most, unless a row is longer; on average half a chunk a part is unused
    ROWS_MAX = 0x7FFFFFF0       # of a part: slots have 32 bits, and up to half of them fall between chunks
    AHEAD_LINES = 32            # cache lines of the next chunk, fetched while one is copied


# --- a table's slab ------------------------------------------------------------------------------

cdef void _part_clear(Part *part) noexcept nogil:
    memset(part, 0, sizeof(Part))
    part.buckets = <Bucket *>NO_BUCKET
    part.chunks = &part.first


cdef char *_take_piece(Arena *arena, uint64_t length) noexcept nogil:
    """Takes a free piece of memory, or a new one; its contents are arbitrary."""
    cdef uint64_t whole
    cdef char *block = arena_free_block(arena, length, &whole)
    if block == NULL:
        return arena_cut(arena, length)
    arena_give(arena, block + length, whole - length)
    return block


cdef bint slab_init(Slab *slab, Arena *arena, const RowOps *ops, uint32_t frag_num, uint32_t dim,
                    uint32_t floats, bint touches, bint numbers) noexcept nogil:
    cdef uint32_t f
    slab.parts = <Part *>_take_piece(arena, frag_num * sizeof(Part))
    if slab.parts == NULL:
        return False
    for f in range(frag_num):
        _part_clear(&slab.parts[f])
    slab.arena = arena
    slab.ops = ops
    slab.dim = dim
    slab.floats = floats
    slab.stride = KEY_BYTES + floats * <uint32_t>sizeof(float)
    if touches:
        slab.touch_at = slab.stride
        slab.stride += sizeof(uint32_t)
    if numbers:
        slab.push_at = slab.stride
        slab.stride += sizeof(uint32_t)
    slab.chunk_rows = max(CHUNK_BYTES // slab.stride, <uint32_t>1)
    while <uint32_t>1 << slab.chunk_shift < slab.chunk_rows:
        slab.chunk_shift += 1
    slab.chunk_bytes = (<uint64_t>slab.chunk_rows * slab.stride + 63) // 64 * 64
    return True


cdef inline uint64_t _piece(Piece *to, uint64_t n, char *at, uint64_t length) noexcept nogil:
    """Appends a piece unless it is empty; returns the number of pieces."""
    if length == 0:
        return n
    if to != NULL:
        to[n].at = at
        to[n].length = length
    return n + 1


cdef uint64_t slab_pieces(Slab *slab, uint32_t frag_num, Piece *to) noexcept nogil:
    cdef uint64_t n = 0
    cdef uint32_t f, i
    cdef FreeBlock *block = slab.free_chunks
    cdef Part *part
    for f in range(frag_num):
        part = &slab.parts[f]
        if part.chunk_num == 1 and part.room < slab.chunk_rows:
            n = _piece(to, n, part.first, <uint64_t>BLOCK_MIN << part.first_class)
        else:
            for i in range(part.chunk_num):
                n = _piece(to, n, part.chunks[i], slab.chunk_bytes)
        if part.chunk_cap > 1:
            n = _piece(to, n, <char *>part.chunks, part.chunk_cap * sizeof(char *))
        if part.retention != NULL:
            n = _piece(to, n, <char *>part.retention, part.retention.bytes)
        if part.buckets != <Bucket *>NO_BUCKET:
            n = _piece(to, n, <char *>part.buckets, (<uint64_t>part.mask + 1) * sizeof(Bucket))
    while block != NULL:
        n = _piece(to, n, <char *>block, slab.chunk_bytes)
        block = block.next
    n = _piece(to, n, slab.window, <uint64_t>(slab.window_end - slab.window))
    n = _piece(to, n, <char *>slab.walk.made, slab.walk.bytes)
    n = _piece(to, n, <char *>slab.parts, frag_num * sizeof(Part))
    if to != NULL:
        slab.parts = NULL
    return n


cdef uint64_t slab_bytes(const Slab *slab, uint32_t frag_num) noexcept nogil:
    cdef uint64_t total = frag_num * sizeof(Part)
    cdef uint32_t f
    cdef const Part *part
    for f in range(frag_num):
        part = &slab.parts[f]
        if part.chunk_num == 1 and part.room < slab.chunk_rows:
            total += <uint64_t>BLOCK_MIN << part.first_class
        else:
            total += part.chunk_num * slab.chunk_bytes
        if part.chunk_cap > 1:
            total += part.chunk_cap * sizeof(char *)
        if part.retention != NULL:
            total += part.retention.bytes
        if part.buckets != <const Bucket *>NO_BUCKET:
            total += (<uint64_t>part.mask + 1) * sizeof(Bucket)
    return total


cdef inline void _first_row(const Slab *slab, uint64_t key, float *row,
                            uint32_t floats) noexcept nogil:
    slab.ops.init(slab.init, slab.scale, slab.seed, key, row, slab.dim)
    if floats > slab.dim:
        if slab.access == ACCESS_PYTHON:
            memset(row + slab.dim, 0, (floats - slab.dim) * sizeof(float))
        else:
            slab.ops.init_state(slab.access, slab.hyper, row, slab.dim)


cdef void first_row(const Slab *slab, uint64_t key, float *row, uint32_t floats) noexcept nogil:
    _first_row(slab, key, row, floats)


# --- the index -----------------------------------------------------------------------------------

cdef inline uint32_t _index_room(const Slab *slab, const Part *part) noexcept nogil:
    """The number of rows at which the index doubles: 13/16 full.  Fuller, lookups cost more than it saves.

    Some fragments grow up to 1/8 earlier, by their number: all fragments of a table fill at the same
    rate, and a push of many new keys should not have to double several of them at once.
    """
    cdef uint64_t early = <uint64_t>(part - slab.parts) & 15
    if part.buckets == <Bucket *>NO_BUCKET:
        return 0
    # In sixteenths of a row a bucket: 8 slots * 13/16 are 104/16, and `early` takes up to 15/128 of the slots.
    return <uint32_t>min((<uint64_t>part.mask + 1) * (104 - early) >> 4, <uint64_t>ROWS_MAX)


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


cdef int _grow_index(Slab *slab, Part *part) noexcept nogil:
    """Doubles the index: moves 8 bytes a row, 0.3 ms for a fragment of 50,000 rows."""
    cdef bint first = part.buckets == <Bucket *>NO_BUCKET
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


cdef inline char *_find(const Slab *slab, const Part *part, uint64_t key,
                        uint32_t tag) noexcept nogil:
    cdef uint32_t position = tag & part.mask
    cdef uint32_t matches, slot
    cdef const Bucket *bucket
    cdef char *row
    while True:
        bucket = &part.buckets[position]
        matches = match8(bucket.tags, tag)
        while matches:
            slot = bucket.slots[lowest_bit(matches)]
            if slot == 0:               # the tag is 0, as in empty entries: the key is not here
                return NULL
            row = row_at(slab, part, slot - 1)
            if key_of(row) == key:
                return row
            matches &= matches - 1
        if bucket.slots[BUCKET_SLOTS - 1] == 0:
            return NULL
        position = (position + 1) & part.mask


cdef char *part_find(const Slab *slab, const Part *part, uint64_t key,
                     uint32_t tag) noexcept nogil:
    return _find(slab, part, key, tag)


cdef uint32_t _index_take(Part *part, const Slab *slab, uint64_t key, uint32_t tag) noexcept nogil:
    """Takes a key out of the index; returns its slot + 1, 0 = it is not there."""
    cdef uint32_t position = tag & part.mask
    cdef uint32_t matches, slot = 0
    cdef Bucket *bucket
    cdef int i = 0
    cdef int last
    while slot == 0:
        bucket = &part.buckets[position]
        matches = match8(bucket.tags, tag)
        while matches:
            i = lowest_bit(matches)
            if bucket.slots[i] and key_of(row_at(slab, part, bucket.slots[i] - 1)) == key:
                slot = bucket.slots[i]
                break
            matches &= matches - 1
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
        # Entries overflow only from a full bucket: if this one was not full, nothing has to move back.
        if last < BUCKET_SLOTS - 1 or not _move_back(part, &position, &i):
            return slot


cdef bint _move_back(Part *part, uint32_t *position, int *entry) noexcept nogil:
    """Fills the last entry of a bucket that was full with an entry that had overflowed past it.

    Without this a lookup would end at the new gap and miss that entry.  `position` and `entry` become
    the gap that it leaves; False = no entry had overflowed past the bucket.
    """
    cdef uint32_t gap = position[0]
    cdef uint32_t other = gap
    cdef uint32_t distance
    cdef Bucket *bucket
    cdef int i
    while True:
        other = (other + 1) & part.mask
        bucket = &part.buckets[other]
        distance = (other - gap) & part.mask
        for i in range(BUCKET_SLOTS):
            if bucket.slots[i] == 0:
                return False
            # An entry may move back to the gap if its own bucket is the gap's, or before it.
            if ((other - (bucket.tags[i] & part.mask)) & part.mask) >= distance:
                part.buckets[gap].tags[BUCKET_SLOTS - 1] = bucket.tags[i]
                part.buckets[gap].slots[BUCKET_SLOTS - 1] = bucket.slots[i]
                position[0] = other
                entry[0] = i
                return True


# --- rows ----------------------------------------------------------------------------------------

cdef inline char *_take_chunk(Slab *slab) noexcept nogil:
    """Takes room for `chunk_rows` rows: a freed chunk, a piece of a freed index, or new memory."""
    cdef FreeBlock *block = slab.free_chunks
    cdef uint64_t length
    cdef char *chunk
    if block != NULL:
        slab.free_chunks = block.next
        return <char *>block
    if <uint64_t>(slab.window_end - slab.window) < slab.chunk_bytes:
        # Fragments grow at the same rate: when one leaves an index of some size, no other needs that size any more.
        # Without this such memory would pile up, so chunks of rows are cut out of it.
        chunk = arena_free_block(slab.arena, slab.chunk_bytes, &length)
        if chunk == NULL:
            return arena_cut(slab.arena, slab.chunk_bytes)
        arena_give(slab.arena, slab.window, <uint64_t>(slab.window_end - slab.window))
        slab.window = chunk
        slab.window_end = chunk + length
    chunk = slab.window
    slab.window += slab.chunk_bytes
    return chunk


cdef void _give_chunk(Slab *slab, char *chunk) noexcept nogil:
    cdef FreeBlock *block = <FreeBlock *>chunk
    block.next = slab.free_chunks
    slab.free_chunks = block


cdef int _grow_first(Slab *slab, Part *part) noexcept nogil:
    """Gives a part its first chunk, or a chunk of twice the size with the rows copied."""
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


cdef int _grow_slab(Slab *slab, Part *part) noexcept nogil:
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


cdef void _walk_note(Slab *slab, uint32_t slot) noexcept nogil:
    """Notes a row that is made in a part which a walk copies."""
    cdef uint32_t number = (slot >> slab.chunk_shift) * slab.chunk_rows \
        + (slot & ((<uint32_t>1 << slab.chunk_shift) - 1))
    if number < slab.walk.stop:
        slab.walk.made[number >> 6] |= <uint64_t>1 << (number & 63)
        slab.walk.any = True


cdef inline char *_part_place(Slab *slab, Part *part, uint32_t tag) noexcept nogil:
    """Makes room for the row of a key that has none; the caller writes all of it, with the key.

    NULL = no memory, and nothing changed.  It may move the rows of a part with a single chunk.
    """
    cdef uint32_t slot = part.free_slot - 1 if part.free_slot else slot_of(slab, part.used)
    cdef char *row
    if part.free_slot == 0 and part.used == part.room and _grow_slab(slab, part) < 0:
        return NULL
    if part.rows >= _index_room(slab, part) and _grow_index(slab, part) < 0:
        return NULL
    row = row_at(slab, part, slot)
    if part == slab.walk.part:
        _walk_note(slab, slot)
    if part.free_slot:
        part.free_slot = <uint32_t>key_of(row)
    else:
        part.used += 1
    part.rows += 1
    slab.rows += 1
    _index_put(part.buckets, part.mask, tag, slot + 1)
    return row


cdef char *part_reach(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil:
    cdef char *row = _find(slab, part, key, tag)
    if row != NULL:
        return row
    row = _part_place(slab, part, tag)
    if row != NULL:
        memcpy(row, &key, KEY_BYTES)
        _first_row(slab, key, weights_of(row), slab.floats)
        if slab.touch_at:
            memset(row + slab.touch_at, 0, sizeof(uint32_t))
        if slab.push_at:
            memset(row + slab.push_at, 0, sizeof(uint32_t))
        slab.made += 1
    return row


cdef bint part_delete(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil:
    cdef uint32_t slot = _index_take(part, slab, key, tag)
    cdef uint64_t after = part.free_slot
    if slot == 0:
        return False
    memcpy(row_at(slab, part, slot - 1), &after, KEY_BYTES)
    part.free_slot = slot
    part.rows -= 1
    slab.rows -= 1
    return True


cdef bint holds_row(const Slab *slab, const Part *part, uint32_t slot) noexcept nogil:
    cdef char *row = row_at(slab, part, slot)
    cdef uint64_t key
    if part.rows == part.used:
        return True
    key = key_of(row)
    return part_find(slab, part, key, tag_of(key)) == row


# --- all rows of a part --------------------------------------------------------------------------

cdef void part_drop(Slab *slab, Part *part) noexcept nogil:
    cdef uint32_t i
    if part.retention != NULL:
        arena_give(slab.arena, <char *>part.retention, part.retention.bytes)
        part.retention = NULL
    if part.used == 0:
        return
    if part.chunk_num == 1 and part.room < slab.chunk_rows:
        arena_give(slab.arena, part.first, <uint64_t>BLOCK_MIN << part.first_class)
    else:
        for i in range(part.chunk_num):
            _give_chunk(slab, part.chunks[i])
    if part.chunk_cap > 1:
        arena_give(slab.arena, <char *>part.chunks, part.chunk_cap * sizeof(char *))
    if part.buckets != <Bucket *>NO_BUCKET:
        arena_give(slab.arena, <char *>part.buckets, (<uint64_t>part.mask + 1) * sizeof(Bucket))
    slab.rows -= part.rows
    _part_clear(part)


cdef void part_drop_if_empty(Slab *slab, Part *part) noexcept nogil:
    if part.rows == 0 and part.retention == NULL:
        part_drop(slab, part)


cdef Retention *part_retention(Slab *slab, Part *part) noexcept nogil:
    cdef uint32_t c
    if part.retention == NULL:
        c = block_class(sizeof(Retention) + slab.admit_cells)
        part.retention = <Retention *>arena_block(slab.arena, c)
        if part.retention != NULL:
            memset(part.retention, 0, sizeof(Retention) + slab.admit_cells)
            part.retention.bytes = <uint64_t>BLOCK_MIN << c
            part.retention.cells = slab.admit_cells
    return part.retention


cdef uint64_t part_expire(Slab *slab, Part *part, uint32_t before) noexcept nogil:
    cdef uint64_t deleted = 0
    cdef uint64_t key
    cdef uint32_t number, slot, touch
    cdef char *row
    for number in range(part.used):
        slot = slot_of(slab, number)
        if not holds_row(slab, part, slot):
            continue
        row = row_at(slab, part, slot)
        memcpy(&touch, row + slab.touch_at, sizeof(uint32_t))
        if touch < before:
            key = key_of(row)
            deleted += part_delete(slab, part, key, tag_of(key))
    part_drop_if_empty(slab, part)
    slab.expired += deleted
    return deleted


cdef uint64_t part_close_round(Slab *slab, Part *part) noexcept nogil:
    cdef uint64_t changed = 0
    cdef uint32_t number, slot, j
    cdef uint32_t dim = slab.dim
    cdef uint64_t sums_bytes = (<uint64_t>dim + 1) * sizeof(float)
    cdef char *row
    cdef float *weights
    cdef float *sums
    cdef float total
    for number in range(part.used):
        slot = slot_of(slab, number)
        if not holds_row(slab, part, slot):
            continue
        row = row_at(slab, part, slot)
        weights = weights_of(row)
        sums = weights + dim
        total = sums[dim]
        if total > 0:               # else nothing was pushed, or only with weight 0
            for j in range(dim):
                weights[j] = sums[j] / total    # not by a kernel: it may multiply by a reciprocal, and bits differ
            track_push(slab, row)
            changed += 1
        memset(sums, 0, sums_bytes)
    return changed


# --- rows as they lie ----------------------------------------------------------------------------

cdef bint walk_begin(Slab *slab, Part *part) noexcept nogil:
    cdef uint64_t words = (<uint64_t>part.used + 63) // 64
    cdef uint32_t c = block_class(words * sizeof(uint64_t))
    walk_end(slab)
    slab.walk.made = <uint64_t *>arena_block(slab.arena, c)
    if slab.walk.made == NULL:
        return False
    memset(slab.walk.made, 0, words * sizeof(uint64_t))
    slab.walk.bytes = <uint64_t>BLOCK_MIN << c
    slab.walk.part = part
    slab.walk.stop = part.used
    return True


cdef void walk_end(Slab *slab) noexcept nogil:
    if slab.walk.bytes:
        arena_give(slab.arena, <char *>slab.walk.made, slab.walk.bytes)
    memset(&slab.walk, 0, sizeof(Walk))


cdef inline bint _is_copied(const Slab *slab, const Part *part, const Walk *walk,
                            uint32_t number) noexcept nogil:
    return (walk == NULL or not walk.made[number >> 6] >> (number & 63) & 1) \
        and holds_row(slab, part, slot_of(slab, number))


cdef inline bint _lacks_none(const Part *part, const Walk *walk) noexcept nogil:
    """Whether every slot is copied: no row was deleted, nor made again since the walk began."""
    return part.rows == part.used and (walk == NULL or not walk.any)


cdef uint32_t part_count(const Slab *slab, const Part *part, const Walk *walk, uint32_t number,
                         uint32_t most) noexcept nogil:
    cdef uint32_t n = 0
    cdef uint32_t end = part_end(part, walk)
    if number >= end:
        return 0
    if _lacks_none(part, walk):
        return min(most, end - number)
    while n < most and number < end:
        n += _is_copied(slab, part, walk, number)
        number += 1
    return n


cdef char *part_copy(const Slab *slab, const Part *part, const Walk *walk, uint32_t *number,
                     uint32_t most, char *to) noexcept nogil:
    cdef bint whole = _lacks_none(part, walk)   # then chunk by chunk, as fast as memory
    cdef uint32_t end = part_end(part, walk)
    cdef uint32_t slot, n, ahead
    while most and number[0] < end:
        slot = slot_of(slab, number[0])
        n = 1
        if whole:
            n = min(min(most, end - number[0]), slab.chunk_rows - number[0] % slab.chunk_rows)
            if n < end - number[0]:     # the hardware prefetcher does not go on to the next chunk
                for ahead in range(<uint32_t>AHEAD_LINES):
                    fetch(row_at(slab, part, slot_of(slab, number[0] + n)) + ahead * 64)
        elif not _is_copied(slab, part, walk, number[0]):
            number[0] += 1
            continue
        memcpy(to, row_at(slab, part, slot), n * <uint64_t>slab.stride)
        to += n * <uint64_t>slab.stride
        number[0] += n
        most -= n
    return to


cdef int part_put(Slab *slab, Part *part, uint32_t frag_num, const char *rows,
                  uint64_t count) noexcept nogil:
    cdef uint32_t fragment = <uint32_t>(part - slab.parts)
    cdef uint64_t i, key
    cdef uint32_t number, tag
    cdef char *row
    if slab.retains and part_retention(slab, part) == NULL:
        return -1
    for i in range(count):
        memcpy(&key, rows, KEY_BYTES)
        if fragment_of_hash(hash_key(key), frag_num) != fragment:
            return -2
        tag = tag_of(key)
        row = part_find(slab, part, key, tag)
        if row == NULL:
            row = _part_place(slab, part, tag)
            if row == NULL:
                return -1
        memcpy(row, rows, slab.stride)
        if slab.push_at:
            memcpy(&number, row + slab.push_at, sizeof(uint32_t))
            part.retention.pushed = max(part.retention.pushed, number)
        rows += slab.stride
    return 0
