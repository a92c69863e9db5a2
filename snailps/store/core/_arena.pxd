# Memory of one shard: regions of the system, cut into rows and indices, taken back for re-use.
#
#   regions -> bump pointer -> exact pieces (chunks of rows)                arena_cut
#           -> free lists   -> power-of-two blocks (indices, first chunks)  arena_block
#
# Regions go back to the system only when the shard ends: a job that once needed the memory needs it
# again.  Every piece is 64-byte aligned.  NULL = no memory.  All zero is an empty arena.
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    BLOCK_MIN = 64                  # a cache line; class c is blocks of 64 << c bytes
    BLOCK_CLASSES = 40

cdef struct Region                  # of the system's memory
cdef struct Spare                   # the next region, touched ahead by a thread

cdef struct FreeBlock:
    FreeBlock *next

cdef struct Piece:
    char *at
    uint64_t length                 # a multiple of 64

cdef struct Arena:
    char *bump                      # never used, hence zero, up to `end`
    char *end
    Region *regions
    Region *small                   # ... with small pages, not given to a thread yet
    Spare *spare                    # NULL until the first one is ordered
    bint patient                    # no request waits for this shard: touch pages in its own thread
    uint64_t reserved               # bytes of all regions
    FreeBlock *free[BLOCK_CLASSES]

# Class of the smallest block that holds `length` bytes.
cdef uint32_t block_class(uint64_t length) noexcept nogil

# A new piece of exactly `length` bytes (a multiple of 64), all zero.
cdef char *arena_cut(Arena *arena, uint64_t length) noexcept nogil

# A block of class `c`, contents arbitrary: re-used, split from a larger one, or new.
cdef char *arena_block(Arena *arena, uint32_t c) noexcept nogil

# A free block to be cut into pieces of `piece` bytes, where the cut loses at most 1/16 of it; its
# bytes in `length`.  NULL = there is none; nothing new is taken.
cdef char *arena_free_block(Arena *arena, uint64_t piece, uint64_t *length) noexcept nogil

# Puts any 64-byte multiple on the free lists, as the largest blocks that fit.
cdef void arena_give(Arena *arena, char *piece, uint64_t length) noexcept nogil

# Gives pieces back, and merges all that is free: neighbours become one block, out of which pieces of
# any length can be cut.  Reads every free block; without memory for that, nothing is merged.
cdef void arena_merge(Arena *arena, const Piece *pieces, uint64_t n) noexcept nogil

# Bytes cut so far, those on the free lists included.
cdef uint64_t arena_used(const Arena *arena) noexcept nogil

# Gives every region back to the system.
cdef void arena_end(Arena *arena) noexcept nogil
