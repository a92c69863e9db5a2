# Memory of one shard: huge-page regions, cut into rows and indices, taken back for re-use.
#
#   mmap'd regions -> bump pointer -> exact pieces (chunks of rows: arena_cut)
#                  -> free lists   -> power-of-two blocks (indices, first chunks: arena_block)
#
# Knows no rows, keys or threads.  Regions go back to the system only when the shard ends: a job
# that once needed the memory needs it again.  Every piece is 64-byte aligned.  NULL = no memory.
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS

cdef extern from *:
    """
    #include <sys/mman.h>
    /* Best effort: a kernel without transparent huge pages gives plain ones. */
    static inline void snail_want_huge_pages(void *address, size_t length) {
    #ifdef MADV_HUGEPAGE
        (void)madvise(address, length, MADV_HUGEPAGE);
    #else
        (void)address; (void)length;
    #endif
    }
    """
    void want_huge_pages "snail_want_huge_pages"(void *address, size_t length) noexcept nogil

cdef enum:
    BLOCK_MIN = 64                  # a cache line; class c is blocks of 64 << c bytes
    BLOCK_CLASSES = 40
    REGION_MIN = 2 << 20            # one huge page: all that a small shard takes
    REGION_MAX = 64 << 20

cdef struct FreeBlock:
    FreeBlock *next

cdef struct Region:                 # heads each region, in its first 64 bytes
    Region *next
    uint64_t length

cdef struct Arena:
    char *bump                      # never used, hence zero, up to `end`
    char *end
    Region *regions
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


cdef inline Region *_map_region(Arena *arena, uint64_t length) noexcept nogil:
    """A region of `length` bytes (a multiple of 2 MiB) on a 2 MiB boundary, or NULL."""
    cdef uint64_t spare = REGION_MIN
    cdef char *raw = <char *>mmap(NULL, length + spare, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef uint64_t head
    cdef Region *region
    if raw == <char *>-1:
        return NULL
    head = (spare - <uintptr_t>raw % spare) % spare
    if head:
        munmap(raw, head)
    munmap(raw + head + length, spare - head)
    want_huge_pages(raw + head, length)
    region = <Region *>(raw + head)
    region.next = arena.regions
    region.length = length
    arena.regions = region
    arena.reserved += length
    return region


cdef inline char *arena_cut(Arena *arena, uint64_t length) noexcept nogil:
    """A new piece of exactly `length` bytes (a multiple of 64), all zero."""
    cdef uint64_t usual = arena.reserved // 8       # regions grow with the shard
    cdef uint64_t needed
    cdef Region *region
    cdef char *piece
    if length > <uint64_t>(arena.end - arena.bump):
        usual = min(max(usual, <uint64_t>REGION_MIN), <uint64_t>REGION_MAX)
        needed = length + BLOCK_MIN
        if needed < usual:
            needed = usual
        needed = (needed + REGION_MIN - 1) // REGION_MIN * REGION_MIN
        region = _map_region(arena, needed)
        if region == NULL:
            return NULL
        # Go on in whichever of the two regions has more left; the rest of the other stays useful.
        piece = <char *>region + BLOCK_MIN
        if needed - BLOCK_MIN - length < <uint64_t>(arena.end - arena.bump):
            arena_give(arena, piece + length, needed - BLOCK_MIN - length)
            return piece
        if arena.end != arena.bump:
            arena_give(arena, arena.bump, <uint64_t>(arena.end - arena.bump))
        arena.bump = piece
        arena.end = <char *>region + needed
    piece = arena.bump
    arena.bump += length
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
    while region != NULL:
        following = region.next
        munmap(region, region.length)
        region = following
    arena.regions = NULL
