# The rows of one shard: the C functions that a shard's handler calls without the GIL.
#
#   (table, keys) -> rows, or first values -> floats, or narrower            store_pull
#   (table, keys, values) -> rows -> access method applied                   store_push
#   (table, keys of a request), values of a fragment, ... -> the same        lookups_push
#   (table, keys, rows) -> rows, replaced                                    store_put
#   (table, examples of keys and values) -> rows -> a sum an example         store_sum
#   (fragment, incarnation) -> highest seq applied                           store_mark
#
# One thread owns a Shard, and alone calls these functions: nothing locks.  They expect a table of this shard
# and keys of fragments that it owns (`store_owns`), and check neither: the handler has.  `keys` must be 8-byte
# aligned, floats 4-byte aligned.  Any uint64 is an ordinary key, 0 and 2^64 - 1 included.
#
# A pull never changes anything here.  Pushes, puts and orders do, and a standby executes the same calls in the
# same order: they must depend on nothing but the shard and their arguments.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from snailps.abi._row_ops cimport (
    ACCESS_ADAGRAD, ACCESS_ADAM, ACCESS_MOMENTUM, ACCESS_PYTHON, ACCESS_ROWWISE, ACCESS_SGD, HYPER_NUM,
    RowOps, is_integer,
)
from snailps.abi._key_table cimport Entry
from snailps.store.core._arena cimport Arena
from snailps.store.core._slab cimport Part, Slab

cdef enum:                      # what a table keeps beside its rows
    TRACK_TOUCH = 1
    TRACK_PUSH = 4              # numbers of last pushes, for a limit of rows or an age
    TRACK_COUNT = 8             # pushes of keys that have no row yet

ctypedef Entry Mark             # of an incarnation: the highest sequence number that is applied, 1 or above

cdef struct Marks:
    Mark *places                # a power of two, or NULL
    uint32_t cap
    uint32_t num

cdef struct Fragment:
    Marks marks
    bint owned

cdef struct Table:
    Slab slab
    uint32_t table_id
    uint32_t value_floats
    uint32_t track              # TRACK_..., together
    bint finite                 # NaN and infinity are refused
    float[HYPER_NUM] hyper      # last: values derived from them follow in memory

cdef struct Shard:
    Arena arena
    Fragment *fragments
    Table **tables              # by table id; NULL = no such table
    uint32_t table_cap
    uint32_t table_end          # every table made so far has a lower number
    uint32_t frag_num
    uint32_t tick               # what pushes note in rows of tables that track it
    const RowOps *ops

ctypedef void (*Narrow)(const float *row, char *out, uint32_t floats) noexcept nogil
ctypedef void (*Widen)(const char *inp, float *row, uint32_t floats) noexcept nogil

cdef struct Values:             # pushed values as they lie in a request
    const char *at              # the next one
    uint32_t bytes              # of each
    uint32_t floats
    Widen widen                 # NULL: they are float32
    float *room                 # for a widened value

cdef enum:
    LOOKUPS = 128               # a power of two

cdef struct Lookups:            # of a request's keys, in order, in three steps that run ahead of each other
    const uint64_t *keys
    uint32_t n
    uint32_t frag_num
    uint32_t row_bytes          # bytes, from the key on, that will be read or written
    uint32_t turn               # keys taken at a time
    uint32_t ahead              # rows prefetched before they are needed
    uint32_t again              # the distance at which they are prefetched once more
    uint32_t hashed             # keys through the first step: hashed, their index prefetched
    uint32_t found              # keys through the second: candidate found, its row prefetched
    uint32_t done               # keys through the third: row used
    Part *parts[LOOKUPS]
    uint32_t tags[LOOKUPS]
    char *rows[LOOKUPS]         # a row whose tag fits, its key not compared yet; or NULL


cdef inline Values float_values(const float *values, uint32_t floats) noexcept nogil:
    return Values(<const char *>values, floats * <uint32_t>sizeof(float), floats, NULL, NULL)


# --- getters -------------------------------------------------------------------------------------

# NULL if this shard has no such table.
cdef inline Table *store_table(Shard *shard, uint32_t table_id) noexcept nogil:
    return shard.tables[table_id] if table_id < shard.table_cap else NULL


# Whether a table was here and was dropped: numbers are given once, in rising order.
cdef inline bint store_dropped(const Shard *shard, uint32_t table_id) noexcept nogil:
    return table_id < shard.table_end and shard.tables[table_id] == NULL


cdef inline uint32_t store_dim(const Table *table) noexcept nogil:
    return table.slab.dim


# Floats of a row with its state; floats of one pushed value.
cdef inline uint32_t store_floats(const Table *table) noexcept nogil:
    return table.slab.floats


cdef inline uint32_t store_value_floats(const Table *table) noexcept nogil:
    return table.value_floats


cdef inline int store_access(const Table *table) noexcept nogil:
    return table.slab.access


# Whether differences of weights and state may be pushed.
cdef inline bint store_adds_state(const Table *table) noexcept nogil:
    return table.slab.access != ACCESS_PYTHON \
        and table.slab.ops.add_state[table.slab.access] != NULL


# Whether values are 64-bit integers, two floats wide, that nothing but the access method may change.
cdef inline bint store_integers(const Table *table) noexcept nogil:
    return is_integer(table.slab.access)


# Whether a push may scale the step size.  FTRL cannot: its z depends on the step size of all earlier pushes.
cdef inline bint store_scales_lr(const Table *table) noexcept nogil:
    return table.slab.access in (ACCESS_SGD, ACCESS_ADAGRAD, ACCESS_ADAM, ACCESS_MOMENTUM,
                                  ACCESS_ROWWISE)


cdef inline bint store_owns(const Shard *shard, uint32_t fragment) noexcept nogil:
    return fragment < shard.frag_num and shard.fragments[fragment].owned


# Whether a table has rows of a fragment, or counts pushes of keys without one.
cdef inline bint store_keeps(const Table *table, uint32_t fragment) noexcept nogil:
    return table.slab.parts[fragment].rows != 0 or table.slab.parts[fragment].retention != NULL


# --- tables --------------------------------------------------------------------------------------

# Makes a table without rows; NULL = no memory.  The caller fills in its initialiser.
cdef Table *table_new(Shard *shard, uint32_t table_id, int access, const float *hyper, uint32_t dim,
                      uint32_t state_floats,
                      uint32_t track, uint32_t admit_after, uint64_t admit_bytes,
                      uint64_t rows_max, uint64_t age_max) noexcept nogil

# Drops a table with its rows; their memory is used again.  Nothing may point to it any more.
cdef void store_drop(Shard *shard, uint32_t table_id) noexcept nogil

# Returns the bytes of rows, indices, tables and marks, free memory that is kept included.
cdef uint64_t store_bytes(const Shard *shard) noexcept nogil

# Drops a fragment: its rows of all tables, and its marks.
cdef void store_disown(Shard *shard, uint32_t fragment) noexcept nogil


# --- marks ---------------------------------------------------------------------------------------

# Marks of one fragment, or of a shard (the incarnations that it refuses): a small open-addressing table, all zero
# when empty.  A fragment has a few incarnations at a time, and over a long job with many workers thousands.

# Returns the incarnation's seq; 0 = none.
cdef uint64_t marks_get(const Marks *marks, uint64_t incarnation) noexcept nogil

# Sets the seq unless it is at least that already.  0, or -1 = no memory.
cdef int marks_raise(Marks *marks, uint64_t incarnation, uint64_t seq) noexcept nogil

# Writes all marks to `to`, one after the other; returns their end.
cdef char *marks_copy(const Marks *marks, char *to) noexcept nogil

cdef void marks_drop(Marks *marks) noexcept nogil

# Returns the highest sequence number of this incarnation that is applied to the fragment; 0 = none.
cdef inline uint64_t store_mark(const Shard *shard, uint32_t fragment,
                                uint64_t incarnation) noexcept nogil:
    return marks_get(&shard.fragments[fragment].marks, incarnation)


# Raises the mark to `seq`; a lower `seq` changes nothing.  0, or -1 = no memory.
cdef inline int store_set_mark(Shard *shard, uint32_t fragment, uint64_t incarnation,
                               uint64_t seq) noexcept nogil:
    return marks_raise(&shard.fragments[fragment].marks, incarnation, seq)


# Drops the marks of incarnations `first` to `last`, which are fenced, in all fragments: their pushes are refused
# before marks are compared.
cdef void store_unmark(Shard *shard, uint64_t first, uint64_t last) noexcept nogil


# --- rows ----------------------------------------------------------------------------------------

# Copies the rows of keys of any fragments to `out`, `floats` of each: store_dim (weights) or store_floats (weights
# and state); through `narrow`, in `out_bytes` each, unless that is NULL.  Never changes the store: a key that was
# never pushed reads as its seeded first value.  `first` has room for one such value while it is narrowed.
cdef void store_pull(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                     uint32_t floats, char *out, uint32_t out_bytes, Narrow narrow,
                     float *first) noexcept nogil

# Begins lookups of n keys of any fragments for pushes to a table.  Until they are done or given up, only these
# pushes may make or delete rows: candidates found ahead would be stale.
cdef void lookups_begin(Lookups *l, const Shard *shard, Table *table, const uint64_t *keys,
                        uint32_t n, uint32_t row_bytes) noexcept nogil


# Skips the next n keys.
cdef inline void lookups_skip(Lookups *l, uint32_t n) noexcept nogil:
    l.done += n
    l.found = max(l.found, l.done)
    l.hashed = max(l.hashed, l.done)


# Applies values to the next n keys by the table's access method, in order.  Makes missing rows, unless the table
# refuses them, and may delete others (`_retention`).  With `state` the values are differences of weights and state
# (store_floats each), for tables that can add them (store_adds_state).  The step size is `lr_scale` times the
# table's; 1 for tables without one (store_scales_lr).
# 0, or -1 = no memory: the values before the row that found none are applied, the others are not.
cdef int lookups_push(Lookups *l, Table *table, uint32_t n, Values *values, bint state,
                      float lr_scale) noexcept nogil

# Replaces the next n rows; missing rows are made, also if the table would refuse them.  Values are weights
# (store_dim), and the row gets its first state, or whole rows (store_floats).  0, or -1 like lookups_push.
cdef int lookups_put(Lookups *l, Table *table, uint32_t n, Values *values) noexcept nogil

# Does a whole lookups_push of n float32 values (n x store_value_floats, or store_floats).
cdef int store_push(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                    const float *values, bint state, float lr_scale) noexcept nogil

# Replaces whole rows, weights and state (n x store_floats).  Counts as a push to them.  0, or -1 like store_push.
cdef int store_put(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                   const float *rows) noexcept nogil

# Sets found[i] to 1 if key i has a row, else to 0.
cdef void store_has(const Shard *shard, const Table *table, uint32_t fragment,
                    const uint64_t *keys, uint32_t n, uint8_t *found) noexcept nogil

# Sets out[e], dim floats, to the sum of value * row over the entries of example e.  `counts`: entries of each
# example, n in all; `values` NULL = all are 1.  `first` has room for 12 KiB of rows, or for 8 longer rows.  A key
# without a row counts as its first value; with `stored` as 0.
cdef void store_sum(const Shard *shard, Table *table, const uint64_t *keys, const float *values,
                    uint32_t n, const uint32_t *counts, uint32_t examples, float *out,
                    float *first, bint stored) noexcept nogil

# Copies up to max_rows rows (key, floats like store_pull) of a fragment, in order of slots, from *cursor on (0 =
# begin), and advances it.  Returns their number; 0 = end.  A row that exists throughout is copied exactly once.
# A row made or deleted meanwhile may be copied or not; a key that is deleted and made again meanwhile may be copied
# twice.  If nothing is deleted, slots are in order of creation, and a row made between two calls is copied later.
cdef uint32_t store_scan(const Shard *shard, const Table *table, uint32_t fragment,
                         uint64_t *cursor, uint64_t *keys, float *rows, uint32_t floats,
                         uint32_t max_rows) noexcept nogil
