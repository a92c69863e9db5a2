# Index and slab: the rows of one table in one fragment (a Part).
#
#   key -> hash -> bucket (one cache line: 8 tags, 8 slots) -> slot -> chunk -> row (key, floats)
#
# The index holds 32 bits of each key's table hash (the tag) and the place of its row (the
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
#     the place of their keys.  `holds_row` asks the index whether a slot holds a row.
#   * A table may ask for the tick of a row's last push, behind the floats, and for its number
#     among the pushes of its part: what goes first where rows are limited.
#
# Cost of a row beyond its floats: 8 bytes of key and 10 to 23 of index (load 0.35 to 0.81), and
# 4 for the tick where the table tracks it, 4 where its rows are limited.
#
# Bodies here are what the lookups of `tables.pyx` run once a row.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.abi._row_ops cimport RowOps
from snailps.abi._table_hash cimport table_hash
from snailps.store.core._arena cimport Arena, FreeBlock, Piece

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
    KEY_BYTES = 8               # in front of each row's floats

cdef struct Bucket:
    uint32_t tags[BUCKET_SLOTS]
    uint32_t slots[BUCKET_SLOTS]        # slot + 1; 0 = empty

cdef struct Retention:          # which rows a part makes and keeps; `_retention` owns its meaning
    uint64_t bytes              # of all of it, a block of the arena
    uint32_t pushed             # number of the row pushed last
    uint32_t counted            # pushes counted since the counts were halved
    uint32_t cells              # counts behind this, a byte each
    uint32_t swept              # number of the row pushed last when old rows were looked for
    uint64_t[5] padding         # to one cache line

cdef struct Part:               # 64 bytes
    Bucket *buckets             # never NULL: an empty part has one that all share
    char **chunks
    char *first                 # the first chunk; `chunks` points here until there is a second
    uint32_t mask               # number of buckets - 1
    uint32_t rows
    uint32_t used               # slots handed out so far, of deleted rows, too
    uint32_t free_slot          # slot + 1 of the row deleted last; 0 = none to be used again
    uint32_t room               # rows that fit into the chunks there are
    uint32_t chunk_num
    uint32_t chunk_cap
    uint32_t first_class        # block class of the first chunk while it is a small one
    Retention *retention        # NULL: the table has none, or no row was pushed yet

cdef struct Walk:               # a copy of a part in pieces, between which its rows change
    Part *part                  # NULL: there is none
    uint64_t *made              # a bit for each row below `stop`: it was made since, where another was
    uint64_t bytes              # of these, a block of the arena
    uint32_t stop               # `used` of the part when the copy began
    bint any                    # whether a bit is set

cdef struct Slab:               # the rows of one table in one shard
    Part *parts                 # by fragment
    Arena *arena
    const RowOps *ops
    uint32_t dim
    uint32_t floats             # of weights and state
    int access
    const float *hyper
    const uint32_t *tick        # the caller's clock
    uint32_t touch_at           # bytes from the key to the tick of the last push; 0 = not tracked
    uint32_t push_at            # bytes from the key to the number of the last push; 0 = not kept
    bint retains                # its parts have a Retention
    uint32_t admit_after        # which push of a key makes its row; 0 = the first
    uint32_t admit_cells        # counts a part
    uint32_t rows_max           # of a part; 0 = no limit
    uint32_t age_max            # pushes of a part that a row outlives; 0 = all
    uint64_t made               # rows so far,
    uint64_t refused            # ... pushed values that made none,
    uint64_t evicted            # ... rows that went because of the limit,
    uint64_t expired            # ... and because of their age
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
    Walk walk


cdef inline uint32_t tag_of(uint64_t key) noexcept nogil:
    return <uint32_t>table_hash(key)


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


cdef inline void track_push(const Slab *slab, char *row) noexcept nogil:
    """Note the tick of a row's push, if the table tracks it."""
    if slab.touch_at:
        memcpy(row + slab.touch_at, slab.tick, sizeof(uint32_t))


# --- a table's slab ------------------------------------------------------------------------------

# A slab without rows for `frag_num` fragments, `floats` a row; False = no memory.  All zero before;
# access method, initialiser, hyper-parameters and tick are filled in by the caller.
cdef bint slab_init(Slab *slab, Arena *arena, const RowOps *ops, uint32_t frag_num, uint32_t dim,
                    uint32_t floats, bint touches, bint numbers) noexcept nogil

# Ends a slab: lists its pieces of the arena's memory and forgets them; their number.  `to` NULL: only
# counts.
cdef uint64_t slab_pieces(Slab *slab, uint32_t frag_num, Piece *to) noexcept nogil

# First value of a key: its weights, or (floats > dim) weights and state.
cdef void first_row(const Slab *slab, uint64_t key, float *row, uint32_t floats) noexcept nogil


# Bytes of a table's rows, indices and counts, with room that waits for rows.  Reads every part.
cdef uint64_t slab_bytes(const Slab *slab, uint32_t frag_num) noexcept nogil

# The part's Retention, made if it has none; NULL = no memory.
cdef Retention *part_retention(Slab *slab, Part *part) noexcept nogil


# --- one row -------------------------------------------------------------------------------------
# `tag` is `tag_of(key)`.

# The key's row, or NULL.
cdef char *part_find(const Slab *slab, const Part *part, uint64_t key, uint32_t tag) noexcept nogil

# The key's row, created if it has none: seeded weights, first state.  NULL = no memory.
# Where one was created, rows of this part may have moved if it has a single chunk.
cdef char *part_reach(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil

# Deletes a key's row; False = it had none.  The slot is the next one to be used again.
cdef bint part_delete(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil

# Whether a used slot holds a row.  Exact: what stands for the key of a deleted row may be the
# number of a key, but the index leads no key to this slot.
cdef bint holds_row(const Slab *slab, const Part *part, uint32_t slot) noexcept nogil


# --- all rows of a part --------------------------------------------------------------------------

# Drops all rows; their memory serves later ones.
cdef void part_drop(Slab *slab, Part *part) noexcept nogil

# Gives the memory of a part that lost its last row to the others, unless it counts pushes.
cdef void part_drop_if_empty(Slab *slab, Part *part) noexcept nogil

# Deletes the rows whose last push has a tick below `before`; their number.
cdef uint64_t part_expire(Slab *slab, Part *part, uint32_t before) noexcept nogil

# Replaces each pushed row of an average table by its weighted mean, and begins new sums; rows changed.
cdef uint64_t part_close_round(Slab *slab, Part *part) noexcept nogil


# --- rows as they lie ----------------------------------------------------------------------------
# Key, weights, state, tick and number of the last push in `stride` bytes a row: for checkpoints and standbys.

# A walk sees the rows that were there when it began, each once: not those that are made meanwhile, which
# may be rows that it has seen and that were deleted since.  A slab has one walk at a time: a new one
# ends that before it.  False = no memory.
cdef bint walk_begin(Slab *slab, Part *part) noexcept nogil
cdef void walk_end(Slab *slab) noexcept nogil


cdef inline uint32_t part_end(const Part *part, const Walk *walk) noexcept nogil:
    """Number at which a copy of a part ends."""
    return part.used if walk == NULL else min(part.used, walk.stop)


# How many rows `part_copy` would copy.
cdef uint32_t part_count(const Slab *slab, const Part *part, const Walk *walk, uint32_t number,
                         uint32_t most) noexcept nogil

# Copies up to `most` rows from slot number `number` on, and moves that behind them; where they end.
# `walk` NULL: all rows that there are now.
cdef char *part_copy(const Slab *slab, const Part *part, const Walk *walk, uint32_t *number,
                     uint32_t most, char *to) noexcept nogil

# Puts rows, replacing rows of the same keys.  0; -1 = no memory; -2 = a key of another fragment of
# `frag_num`: the rows before it are put.
cdef int part_put(Slab *slab, Part *part, uint32_t frag_num, const char *rows,
                  uint64_t count) noexcept nogil
