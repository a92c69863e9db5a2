# Memory of one shard: regions, cut into rows and indices, taken back for re-use.
#
#   regions (_huge_pages.pxd) -> bump pointer -> exact pieces (chunks of rows: arena_cut)
#                          -> free lists   -> power-of-two blocks (indices, first chunks: arena_block)
#
# Knows no rows, keys or threads.  Regions go back to the system only when the shard ends: a job
# that once needed the memory needs it again.  Every piece is 64-byte aligned.  NULL = no memory.
from libc.stdint cimport uint32_t, uint64_t

from snailps.store.core._huge_pages cimport (
    HUGE_BYTES, REGION_HEAD, Region, Spare, munmap, region_map, spare_end, spare_is_late,
    spare_order, spare_take,
)

cdef enum:
    BLOCK_MIN = 64                  # a cache line; class c is blocks of 64 << c bytes
    BLOCK_CLASSES = 40
    REGION_MIN = HUGE_BYTES         # all that a small shard takes
    REGION_MAX = 32 << 20           # one and a half of them are touched before they are needed

cdef struct FreeBlock:
    FreeBlock *next

cdef struct Arena:
    char *bump                      # never used, hence zero, up to `end`
    char *end
    Region *regions
    Spare spare
    bint patient                    # touching memory may take long: nobody waits for the owner
    uint64_t reserved               # bytes of all regions
    FreeBlock *free[BLOCK_CLASSES]


cdef inline uint32_t block_class(uint64_t length) noexcept nogil:
    """Class of the smallest block that holds `length` bytes."""
    cdef uint32_t c = 0
    while (<uint64_t>BLOCK_MIN << c) < length:
        c += 1
    return c


cdef inline uint64_t arena_used(Arena *arena) noexcept nogil:
    """Bytes cut so far, those on the free lists included."""
    return arena.reserved - <uint64_t>(arena.end - arena.bump)


cdef inline void arena_give(Arena *arena, char *piece, uint64_t length) noexcept nogil:
    """Puts any 64-byte multiple on the free lists, as the largest blocks that fit."""
    cdef uint32_t c
    cdef FreeBlock *block
    while length >= BLOCK_MIN:
        c = 0
        while c + 1 < BLOCK_CLASSES and (<uint64_t>BLOCK_MIN << (c + 1)) <= length:
            c += 1
        block = <FreeBlock *>piece
        block.next = arena.free[c]
        arena.free[c] = block
        piece += <uint64_t>BLOCK_MIN << c
        length -= <uint64_t>BLOCK_MIN << c


cdef inline uint64_t _usual_region(const Arena *arena) noexcept nogil:
    """Bytes of the next region: they grow with the shard."""
    cdef uint64_t eighth = arena.reserved // 8 // HUGE_BYTES * HUGE_BYTES
    return min(max(eighth, <uint64_t>REGION_MIN), <uint64_t>REGION_MAX)


cdef inline Region *_new_region(Arena *arena, uint64_t room) noexcept nogil:
    """A region for a piece of `room` bytes, the spare one if it can be; NULL = no memory."""
    cdef uint64_t needed = (room + REGION_HEAD + HUGE_BYTES - 1) // HUGE_BYTES * HUGE_BYTES
    cdef Region *region = spare_take(&arena.spare, needed, False)
    if region == NULL and spare_is_late(&arena.spare) and not arena.patient:
        # This thread touches these pages itself: in small steps, and no more than it must.
        region = region_map(needed, False)
    elif region == NULL:
        region = region_map(max(needed, _usual_region(arena)), True)
    if region == NULL:
        region = spare_take(&arena.spare, needed, True)
    if region != NULL:
        region.next = arena.regions
        arena.regions = region
        arena.reserved += region.length
    return region


cdef inline char *arena_cut(Arena *arena, uint64_t length) noexcept nogil:
    """A new piece of exactly `length` bytes (a multiple of 64), all zero."""
    cdef uint64_t left = <uint64_t>(arena.end - arena.bump)
    cdef Region *region
    cdef char *piece
    if length > left:
        region = _new_region(arena, length)
        if region == NULL:
            return NULL
        # Go on in whichever of the two regions has more left; the rest of the other stays useful.
        piece = <char *>region + REGION_HEAD
        if region.length - REGION_HEAD - length < left:
            arena_give(arena, piece + length, region.length - REGION_HEAD - length)
            return piece
        arena_give(arena, arena.bump, left)
        arena.bump = piece
        arena.end = <char *>region + region.length
    piece = arena.bump
    arena.bump += length
    if not arena.patient and <uint64_t>(arena.end - arena.bump) < _usual_region(arena) // 2:
        spare_order(&arena.spare, _usual_region(arena))
    return piece


cdef inline char *arena_block(Arena *arena, uint32_t c) noexcept nogil:
    """A block of class `c`, contents arbitrary: re-used, split from a larger one, or new."""
    cdef uint32_t larger = c
    cdef FreeBlock *block
    if c >= BLOCK_CLASSES:
        return NULL
    while larger < BLOCK_CLASSES and arena.free[larger] == NULL:
        larger += 1
    if larger == BLOCK_CLASSES:
        return arena_cut(arena, <uint64_t>BLOCK_MIN << c)
    block = arena.free[larger]
    arena.free[larger] = block.next
    if larger > c:
        arena_give(arena, <char *>block + (<uint64_t>BLOCK_MIN << c),
                   (<uint64_t>BLOCK_MIN << larger) - (<uint64_t>BLOCK_MIN << c))
    return <char *>block


cdef inline void arena_end(Arena *arena) noexcept nogil:
    """Gives every region back to the system."""
    cdef Region *region = arena.regions
    cdef Region *following
    spare_end(&arena.spare)
    while region != NULL:
        following = region.next
        munmap(region, region.length)
        region = following
    arena.regions = NULL
