# The rows of one shard, as C: what a shard's handler calls with the GIL released.
#
#   (table, keys) -> rows, or first values -> floats, or narrower            store_pull
#   (table, keys, values) -> rows -> access method applied                   store_push
#   (table, keys of a request), values of a fragment, ... -> the same        lookups_push
#   (table, keys, rows) -> rows, replaced                                    store_put
#   (table, examples of keys and values) -> rows -> a sum an example         store_sum
#   (fragment, incarnation) -> highest seq applied                           store_mark
#
# A Shard is owned and touched by one thread; nothing here locks.  The functions expect a table of
# this shard and keys of fragments that it owns (`store_owns`); they check neither.  `keys` must be
# 8-byte aligned, floats 4-byte aligned.  Every key is an
# ordinary key, 0 and 2^64 - 1 included.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from snailps.abi._row_ops cimport (
    ACCESS_ADAGRAD, ACCESS_ADAM, ACCESS_MOMENTUM, ACCESS_PYTHON, ACCESS_ROWWISE, ACCESS_SGD, HYPER_NUM,
    RowOps,
)
from snailps.abi._key_table cimport Entry
from snailps.store.core._arena cimport Arena
from snailps.store.core._slab cimport Part, Slab

cdef enum:                      # what a table keeps beside its rows
    TRACK_TOUCH = 1
    TRACK_PUSH = 4              # numbers of last pushes, for a limit of rows or an age
    TRACK_COUNT = 8             # pushes of keys that have no row yet

ctypedef Entry Mark             # of an incarnation: its highest sequence number, 1 or above

cdef struct Marks:
    Mark *places                # a power of two of them, or NULL
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
    bint finite                 # what is pushed has to be
    float[HYPER_NUM] hyper      # last: behind them is what follows from them

cdef struct Shard:
    Arena arena
    Fragment *fragments
    Table **tables              # by table id; NULL = no such table
    uint32_t table_cap
    uint32_t table_end          # tables made so far have numbers below
    uint32_t frag_num
    uint32_t tick               # the caller's clock: what a push leaves in rows that track it
    const RowOps *ops

ctypedef void (*Narrow)(const float *row, char *out, uint32_t floats) noexcept nogil
ctypedef void (*Widen)(const char *inp, float *row, uint32_t floats) noexcept nogil

cdef struct Values:             # pushed values as they lie in a request
    const char *at              # the next one
    uint32_t bytes              # of each
    uint32_t floats
    Widen widen                 # NULL: they are floats
    float *room                 # for one that was widened

cdef enum:
    LOOKUPS = 128               # a power of two

cdef struct Lookups:            # of a request's keys, in order
    const uint64_t *keys
    uint32_t n
    uint32_t frag_num
    uint32_t row_bytes          # from the key on, that will be read or written
    uint32_t turn               # keys taken a time
    uint32_t ahead              # rows fetched before they are needed,
    uint32_t again              # ... and once more, nearer
    uint32_t hashed             # keys through the first step of a lookup,
    uint32_t found              # ... the second,
    uint32_t done               # ... the third
    Part *parts[LOOKUPS]
    uint32_t tags[LOOKUPS]
    char *rows[LOOKUPS]         # a candidate whose tag fits, its key not yet looked at; or NULL


cdef inline Values float_values(const float *values, uint32_t floats) noexcept nogil:
    return Values(<const char *>values, floats * <uint32_t>sizeof(float), floats, NULL, NULL)


# --- getters -------------------------------------------------------------------------------------

# NULL if this shard has no such table.
cdef inline Table *store_table(Shard *shard, uint32_t table_id) noexcept nogil:
    return shard.tables[table_id] if table_id < shard.table_cap else NULL


# Whether a table was here: numbers are given once, and in rising order.
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


# Whether a push may scale the step size.  Not of FTRL: its z holds the weights as of one step size.
cdef inline bint store_scales_lr(const Table *table) noexcept nogil:
    return table.slab.access in (ACCESS_SGD, ACCESS_ADAGRAD, ACCESS_ADAM, ACCESS_MOMENTUM,
                                  ACCESS_ROWWISE)


cdef inline bint store_owns(const Shard *shard, uint32_t fragment) noexcept nogil:
    return fragment < shard.frag_num and shard.fragments[fragment].owned


# Whether a table has rows of a fragment, or counts pushes of keys without one.
cdef inline bint store_keeps(const Table *table, uint32_t fragment) noexcept nogil:
    return table.slab.parts[fragment].rows != 0 or table.slab.parts[fragment].retention != NULL


# --- tables --------------------------------------------------------------------------------------

# A table without rows; NULL = no memory.  The caller fills in its initialiser.
cdef Table *table_new(Shard *shard, uint32_t table_id, int access, const float *hyper, uint32_t dim,
                      uint32_t state_floats,
                      uint32_t track, uint32_t admit_after, uint64_t admit_bytes,
                      uint64_t rows_max, uint64_t age_max) noexcept nogil

# Drops a table with its rows; others re-use the memory.  Nothing may point to it any more.
cdef void store_drop(Shard *shard, uint32_t table_id) noexcept nogil

# Bytes taken for rows, indices, tables and marks, freed and kept for re-use included.
cdef uint64_t store_bytes(const Shard *shard) noexcept nogil

# Drops a fragment: its rows of all tables, and its marks.
cdef void store_disown(Shard *shard, uint32_t fragment) noexcept nogil


# --- marks ---------------------------------------------------------------------------------------

# Of one fragment, or of a shard (incarnations that it refuses): a small open-addressing table.  A
# fragment knows a few incarnations at a time, but over a long job with many workers thousands.  All zero
# is an empty table.

# The incarnation's seq; 0 = none.
cdef uint64_t marks_get(const Marks *marks, uint64_t incarnation) noexcept nogil

# Sets the seq unless it is at least that already.  0, or -1 = no memory.
cdef int marks_raise(Marks *marks, uint64_t incarnation, uint64_t seq) noexcept nogil

# Writes all marks to `to`, one after the other; where they end.
cdef char *marks_copy(const Marks *marks, char *to) noexcept nogil

cdef void marks_drop(Marks *marks) noexcept nogil

# Highest sequence number applied to the fragment for this incarnation; 0 = none.
cdef inline uint64_t store_mark(const Shard *shard, uint32_t fragment,
                                uint64_t incarnation) noexcept nogil:
    return marks_get(&shard.fragments[fragment].marks, incarnation)


# Raises the mark to `seq` (a lower one leaves it).  0, or -1 when memory ran out.
cdef inline int store_set_mark(Shard *shard, uint32_t fragment, uint64_t incarnation,
                               uint64_t seq) noexcept nogil:
    return marks_raise(&shard.fragments[fragment].marks, incarnation, seq)


# Drops the marks of an incarnation that is refused from now on, of all fragments.
cdef void store_unmark(Shard *shard, uint64_t incarnation) noexcept nogil


# --- rows ----------------------------------------------------------------------------------------

# Copies the rows of keys of any fragments into `out`, `floats` of each: store_dim (the weights) or
# store_floats (weights and state); through `narrow`, in `out_bytes` each, unless that is NULL.  Never
# changes the store: a key that was never pushed reads as its seeded first value, for which `first`
# has room while it is narrowed.
cdef void store_pull(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                     uint32_t floats, char *out, uint32_t out_bytes, Narrow narrow,
                     float *first) noexcept nogil

# Begins lookups of n keys of any fragments for pushes to a table; nothing is read of what follows
# the keys.  Until they are done, or given up, rows are made and deleted by these pushes alone.
cdef void lookups_begin(Lookups *l, const Shard *shard, Table *table, const uint64_t *keys,
                        uint32_t n, uint32_t row_bytes) noexcept nogil


# Passes over the next n keys.
cdef inline void lookups_skip(Lookups *l, uint32_t n) noexcept nogil:
    l.done += n
    l.found = max(l.found, l.done)
    l.hashed = max(l.hashed, l.done)


# Applies values to the next n keys by the table's access method, in order; creates missing rows, unless
# the table refuses them, and may delete others (`_retention`).  With `state` the values are
# differences of weights and state (store_floats each), and only for tables that add them
# (store_adds_state).  The step size is `lr_scale` times the table's, 1 for tables that know none
# (store_scales_lr).
# Returns 0, or -1 when memory ran out: rows before the one that found none are applied, that one
# and those after it are untouched.
cdef int lookups_push(Lookups *l, Table *table, uint32_t n, Values *values, bint state,
                      float lr_scale) noexcept nogil

# Puts values in the place of the next n rows, which are made where they are missing, also where the
# table would refuse them: of weights (store_dim), with the first state of a row that has these, or of
# whole rows (store_floats).  0, or -1 as lookups_push.
cdef int lookups_put(Lookups *l, Table *table, uint32_t n, Values *values) noexcept nogil

# lookups_push of n values (n x store_value_floats, or store_floats) as they are, and nothing else.
cdef int store_push(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                    const float *values, bint state, float lr_scale) noexcept nogil

# Puts whole rows, weights and state (n x store_floats), in the place of what is there.  Counts as
# a push of them.  0, or -1 as store_push.
cdef int store_put(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                   const float *rows) noexcept nogil

# found[i] = 1 where the key has a row, else 0.
cdef void store_has(const Shard *shard, const Table *table, uint32_t fragment,
                    const uint64_t *keys, uint32_t n, uint8_t *found) noexcept nogil

# out[e] = sum over the entries of example e of value * row, dim floats; `counts` are the entries of
# each of the examples, n in all; `values` NULL = all are 1.  All keys are of fragments that this
# shard owns.  `first` has room for 12 KiB of rows, or 8 rows where those are longer.  A key without
# a row has its first value; `stored`: 0.
cdef void store_sum(const Shard *shard, Table *table, const uint64_t *keys, const float *values,
                    uint32_t n, const uint32_t *counts, uint32_t examples, float *out,
                    float *first, bint stored) noexcept nogil

# Copies up to max_rows (key, floats as in store_pull) of the fragment, in order of slots, from
# position *cursor on (0 = begin) and advances it.  Returns the count; 0 = end.  A row that exists
# during the whole of a walk is seen exactly once.  One created or deleted meanwhile may be seen or
# not; a key that is deleted and created again meanwhile may be seen twice.  Where nothing is
# deleted, slots are in order of creation, and rows created between two calls are seen by a later.
cdef uint32_t store_scan(const Shard *shard, const Table *table, uint32_t fragment,
                         uint64_t *cursor, uint64_t *keys, float *rows, uint32_t floats,
                         uint32_t max_rows) noexcept nogil
