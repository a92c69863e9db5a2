# Index and slab: the rows of one table in one fragment (a Part).
#
#   key -> hash -> bucket (one cache line: 8 tags, 8 slots) -> slot -> chunk -> row (key, floats)
#
# The index holds 32 bits of each key's table hash (the tag) and where its row is (the slot: chunk and
# place in the chunk); the key stands before the row's floats, so one read brings both.  A lookup costs
# one cache line of the index and the row.  Growing the index moves 8 bytes a row and touches no row.
# Walking the slab by slot lists a fragment's rows without the index.
#
#   * A bucket fills from its front, and a full bucket overflows into the next: a lookup ends at the
#     first bucket with an empty entry.  A deletion closes its gap by moving back an entry that had
#     overflowed past it: there are no tombstones, and lookups do not slow down after deletions.
#   * Rows never move, since a Part grows by whole chunks.  The exception is the first chunk: it starts
#     with one row and doubles by copying up to 8 KiB, so that thousands of fragments with a few rows
#     each stay small.
#   * Slots of deleted rows form a list, linked through the place of their keys; the slot freed last is
#     used first.  `holds_row` asks the index whether a slot holds a row.
#   * A table may keep, after the floats, the tick of a row's last push (for `expire`) and its number
#     among the pushes of its part (which rows go first if their number is limited).
#
# Only the shard's thread calls any of this: no row, index or counter has a lock.
#
# A row costs, beyond its floats, 8 bytes of key and 10 to 23 of index (load 0.35 to 0.81), 4 for the
# tick and 4 for the number where the table keeps them.
#
# Inline functions here run once a row in the lookups of `tables.pyx`.
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

cdef struct Retention:          # which rows a part makes and keeps; the option `retention` owns its meaning
    uint64_t bytes              # of the whole block, from the arena
    uint32_t pushed             # number of the last push
    uint32_t counted            # pushes counted since the counts were halved
    uint32_t cells              # counts after this struct, a byte each
    uint32_t swept              # `pushed` when old rows were looked for last
    uint64_t[5] padding         # to one cache line

cdef enum:                      # of a Retention
    CELLS_MIN = 64              # one cache line
    CELLS_MAX = 4 << 20         # of a part
    ADMIT_MAX = 100             # a count fits into a byte

cdef struct Part:               # 64 bytes
    Bucket *buckets             # never NULL: empty parts share one bucket, which is never written
    char **chunks
    char *first                 # the first chunk; `chunks` points here until there is a second
    uint32_t mask               # number of buckets - 1
    uint32_t rows
    uint32_t used               # slots handed out, those of deleted rows included
    uint32_t free_slot          # slot + 1 of the row deleted last; 0 = no free slot
    uint32_t room               # rows that fit into the chunks
    uint32_t chunk_num
    uint32_t chunk_cap
    uint32_t first_class        # block class of the first chunk while it is a small one
    Retention *retention        # NULL: the table has none, or no row was pushed yet

cdef struct Walk:               # a copy of a part in pieces, between which its rows may change
    Part *part                  # NULL: no copy is under way
    uint64_t *made              # a bit for each slot below `stop`: its row was made since the begin
    uint64_t bytes              # of the bits: a block of the arena
    uint32_t stop               # `used` of the part at the begin: later slots are not copied
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
    uint32_t admit_after        # the push of a key that makes its row; 0 = the first
    uint32_t admit_cells        # counts of a part
    uint32_t rows_max           # of a part; 0 = no limit
    uint32_t age_max            # a row goes after so many pushes to its part without one to it; 0 = never
    uint64_t made               # rows made since the start
    uint64_t refused            # values of keys that were not admitted
    uint64_t evicted            # rows deleted because of `rows_max`
    uint64_t expired            # rows deleted because of their age
    uint32_t stride             # bytes from one row's key to the next one's
    uint32_t chunk_rows
    uint32_t chunk_shift        # 1 << chunk_shift >= chunk_rows: slot = chunk << shift | place
    int init
    float scale
    uint64_t seed
    uint64_t rows
    uint64_t chunk_bytes
    FreeBlock *free_chunks
    char *window                # what is left of a freed block that is cut into chunks
    char *window_end
    Walk walk


cdef inline uint32_t tag_of(uint64_t key) noexcept nogil:
    return <uint32_t>table_hash(key)


cdef inline char *row_at(const Slab *slab, const Part *part, uint32_t slot) noexcept nogil:
    return (part.chunks[slot >> slab.chunk_shift]
            + <uint64_t>(slot & ((<uint32_t>1 << slab.chunk_shift) - 1)) * slab.stride)


cdef inline uint32_t slot_of(const Slab *slab, uint32_t number) noexcept nogil:
    """The slot of a part's row `number`, counted in the order in which slots were handed out."""
    return (number // slab.chunk_rows << slab.chunk_shift) | number % slab.chunk_rows


cdef inline uint64_t key_of(const char *row) noexcept nogil:
    cdef uint64_t key           # copied: after a row of odd length a key is only 4-byte aligned
    memcpy(&key, row, KEY_BYTES)
    return key


cdef inline float *weights_of(char *row) noexcept nogil:
    return <float *>(row + KEY_BYTES)


cdef inline void track_push(const Slab *slab, char *row) noexcept nogil:
    """Notes the tick of a push to a row, if the table tracks it."""
    if slab.touch_at:
        memcpy(row + slab.touch_at, slab.tick, sizeof(uint32_t))


# --- rows that a part makes and keeps ------------------------------------------------------------

# The option `retention` fills it, before there is a table that asks for it.  The part has a Retention.
cdef struct RetentionCalls:
    # Counts a push of a key that has no row; returns whether to make the row.
    bint (*admits)(Slab *slab, Part *part, uint64_t key) noexcept nogil
    # Makes room for one more row; returns the number of deleted rows.
    uint32_t (*make_room)(Slab *slab, Part *part) noexcept nogil
    # Deletes the rows that none of the part's last `age_max` pushes reached; looks once in `age_max` / 2
    # pushes.  Returns the number of deleted rows.  The table has an age.
    uint32_t (*expire)(Slab *slab, Part *part) noexcept nogil
    # Halves the numbers of all rows of a part, before the next one would not fit.
    void (*renumber)(Slab *slab, Part *part) noexcept nogil
    # Length as bytes, a multiple of 8.
    uint64_t (*bytes)(const Part *part) noexcept nogil
    # Writes them; returns their end.
    char *(*copy)(const Part *part, char *to) noexcept nogil
    # Reads them; 0, -1 = no memory, -2 = malformed.  Ignores counts of another number of cells.
    int (*put)(Slab *slab, Part *part, const char *data, uint64_t length) noexcept nogil
cdef RetentionCalls retention_calls


cdef inline void retention_note(Slab *slab, Part *part, char *row) noexcept nogil:
    """Give a row that was just pushed the next number.  Inline: once a row."""
    if part.retention.pushed == <uint32_t>0xFFFFFFFF:
        retention_calls.renumber(slab, part)
    part.retention.pushed += 1
    memcpy(row + slab.push_at, &part.retention.pushed, sizeof(uint32_t))


cdef inline uint64_t retention_bytes(const Part *part) noexcept nogil:
    """Length of a part's Retention as bytes, a multiple of 8; 0 = it has none."""
    return retention_calls.bytes(part) if part.retention != NULL else 0


# --- a table's slab ------------------------------------------------------------------------------

# Makes a slab without rows for `frag_num` fragments, `floats` a row; False = no memory.  The caller passes it
# all zero, and fills in access method, initialiser, hyper-parameters and tick.
cdef bint slab_init(Slab *slab, Arena *arena, const RowOps *ops, uint32_t frag_num, uint32_t dim,
                    uint32_t floats, bint touches, bint numbers) noexcept nogil

# Ends a slab: writes its pieces of the arena's memory to `to`, and returns their number.  `to` NULL: only
# counts.
cdef uint64_t slab_pieces(Slab *slab, uint32_t frag_num, Piece *to) noexcept nogil

# Writes the first value of a key: its weights, or (floats > dim) weights and state.
cdef void first_row(const Slab *slab, uint64_t key, float *row, uint32_t floats) noexcept nogil


# Returns the bytes of a table's rows, indices and counts, unused room included.  Reads every part.
cdef uint64_t slab_bytes(const Slab *slab, uint32_t frag_num) noexcept nogil

# Returns the part's Retention, and makes it at first use; NULL = no memory.
cdef Retention *part_retention(Slab *slab, Part *part) noexcept nogil


# --- one row -------------------------------------------------------------------------------------
# `tag` is `tag_of(key)`.

# Returns the key's row, or NULL.
cdef char *part_find(const Slab *slab, const Part *part, uint64_t key, uint32_t tag) noexcept nogil

# Returns the key's row; a missing row is made, with seeded weights and first state.  NULL = no memory.
# Making one may move the rows of a part with a single chunk: pointers to them are invalid afterwards.
cdef char *part_reach(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil

# Deletes a key's row; False = there was none.  Its slot is used for the next new row.
cdef bint part_delete(Slab *slab, Part *part, uint64_t key, uint32_t tag) noexcept nogil

# Whether a used slot holds a row.  Exact: the link that stands in the key's place of a deleted row may look
# like a key, but the index leads no key to this slot.
cdef bint holds_row(const Slab *slab, const Part *part, uint32_t slot) noexcept nogil


# --- all rows of a part --------------------------------------------------------------------------

# Drops all rows; their memory is used for later ones.
cdef void part_drop(Slab *slab, Part *part) noexcept nogil

# Frees the memory of a part without rows for the other parts, unless the part counts pushes.
cdef void part_drop_if_empty(Slab *slab, Part *part) noexcept nogil

# Deletes the rows whose last push has a tick below `before`; returns their number.
cdef uint64_t part_expire(Slab *slab, Part *part, uint32_t before) noexcept nogil

# Replaces each pushed row of an average table by its weighted mean, and begins new sums; returns the number of
# changed rows.
cdef uint64_t part_close_round(Slab *slab, Part *part) noexcept nogil


# --- rows as they lie ----------------------------------------------------------------------------
# Key, weights, state, tick and number of the last push in `stride` bytes a row: for checkpoints and standbys.

# Begins a walk, which sees each row that was there at its begin once, unless it is deleted first.  It skips rows
# made since: such a row may be one that it has seen, deleted and made again in another slot, and the copy must not
# have a key twice.  A slab has one walk at a time: a new one ends the one before.  False = no memory.
cdef bint walk_begin(Slab *slab, Part *part) noexcept nogil
cdef void walk_end(Slab *slab) noexcept nogil


cdef inline uint32_t part_end(const Part *part, const Walk *walk) noexcept nogil:
    """The slot number at which a copy of a part ends."""
    return part.used if walk == NULL else min(part.used, walk.stop)


# Returns how many rows `part_copy` would copy.
cdef uint32_t part_count(const Slab *slab, const Part *part, const Walk *walk, uint32_t number,
                         uint32_t most) noexcept nogil

# Copies up to `most` rows from slot number `number` on, and advances `number`; returns the end of the copy.
# `walk` NULL: all rows of this moment.
cdef char *part_copy(const Slab *slab, const Part *part, const Walk *walk, uint32_t *number,
                     uint32_t most, char *to) noexcept nogil

# Puts rows, replacing rows of the same keys.  0; -1 = no memory; -2 = a key belongs to another fragment: the rows
# before it are put.
cdef int part_put(Slab *slab, Part *part, uint32_t frag_num, const char *rows,
                  uint64_t count) noexcept nogil
