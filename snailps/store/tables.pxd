# The rows of one shard, as C: what a shard's handler calls with the GIL released.
#
#   (table, fragment, keys) -> hash -> index -> rows -> floats out           store_pull
#   (table, fragment, keys, values) -> rows -> access method applied         store_push
#   (table, fragment, keys, rows) -> rows, replaced                          store_put
#   (fragment, incarnation) -> highest seq applied                           store_mark
#
# A Shard is owned and touched by one thread; nothing here locks.  The functions expect a table of
# this shard and a fragment that it owns (`store_owns`); they check neither.  `keys` must be 8-byte
# aligned and belong to the stated fragment, floats must be 4-byte aligned.  Every key is an
# ordinary key, 0 and 2^64 - 1 included.  Lookups run in batches, so that their cache misses
# overlap: `_lookup.pxd`.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._prefetch cimport fetch
from snailps.abi._row_ops cimport ACCESS_PYTHON, HYPER_NUM, RowOps, RowStep
from snailps.store.core._arena cimport BLOCK_MIN, Arena, arena_cut, arena_used
from snailps.store.core._lookup cimport Batch, batch_rows, copy_rows, find_rows, hash_batch
from snailps.store.core._marks cimport Marks, marks_bytes, marks_drop, marks_get, marks_raise
from snailps.store.core._row_maintenance cimport drop_rows, track_push
from snailps.store.core._slab cimport (
    CHUNK_BYTES, KEY_BYTES, NO_BUCKET, Bucket, Part, Slab, holds_row, key_of, part_clear, part_find,
    part_insert, row_at, slot_of, weights_of,
)

cdef enum:                      # what a table keeps beside its rows
    TRACK_TOUCH = 1
    TRACK_VERSION = 2

cdef struct Fragment:
    Marks marks
    bint owned

cdef struct Table:
    Slab slab
    uint32_t table_id
    uint32_t value_floats
    uint32_t track              # TRACK_TOUCH, TRACK_VERSION
    float[HYPER_NUM] hyper

cdef struct Shard:
    Arena arena
    Fragment *fragments
    Table **tables              # by table id; NULL = no such table
    uint32_t table_cap
    uint32_t frag_num
    uint32_t tick               # the caller's clock: what a push leaves in rows that track it
    const RowOps *ops


# --- lookups -------------------------------------------------------------------------------------

# NULL if this shard has no such table.
cdef inline Table *store_table(Shard *shard, uint32_t table_id) noexcept nogil:
    return shard.tables[table_id] if table_id < shard.table_cap else NULL


cdef inline uint32_t store_dim(Table *table) noexcept nogil:
    return table.slab.dim


# Floats of a row with its state; floats of one pushed value.
cdef inline uint32_t store_floats(Table *table) noexcept nogil:
    return table.slab.floats


cdef inline uint32_t store_value_floats(Table *table) noexcept nogil:
    return table.value_floats


cdef inline int store_access(Table *table) noexcept nogil:
    return table.slab.access


# Whether differences of weights and state may be pushed.
cdef inline bint store_adds_state(Table *table) noexcept nogil:
    return table.slab.access != ACCESS_PYTHON \
        and table.slab.ops.add_state[table.slab.access] != NULL


cdef inline bint store_owns(Shard *shard, uint32_t fragment) noexcept nogil:
    return fragment < shard.frag_num and shard.fragments[fragment].owned


cdef inline uint32_t _hash_mixed_batch(Batch *batch, Shard *shard, Slab *slab,
                                       const uint64_t *keys, uint32_t n) noexcept nogil:
    """First step for keys of any fragments; returns how many before the first not owned."""
    cdef uint32_t i, fragment
    cdef uint64_t hashed
    cdef Part *part
    for i in range(n):
        hashed = hash_key(keys[i])
        fragment = fragment_of_hash(hashed, shard.frag_num)
        if not shard.fragments[fragment].owned:
            n = i
            break
        batch.parts[i] = &slab.parts[fragment]
        batch.tags[i] = <uint32_t>hashed
        fetch(batch.parts[i])
    for i in range(n):
        part = batch.parts[i]
        fetch(&part.buckets[batch.tags[i] & part.mask])
        fetch(part.chunks)
    return n


# Copies n rows into `out` (n x floats, tightly packed), `floats` being store_dim (the weights) or
# store_floats (weights and state).  Never changes the store: a key that was never pushed reads as
# its seeded first value.
cdef inline void store_pull(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                     uint32_t n, float *out, uint32_t floats) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint32_t row_bytes = KEY_BYTES + floats * <uint32_t>sizeof(float)
    cdef uint32_t m
    cdef uint32_t most = batch_rows(row_bytes)
    cdef uint32_t hashed = 0        # keys through the first step of a lookup,
    cdef uint32_t found = 0         # ... the second,
    cdef uint32_t done = 0          # ... the third
    cdef uint32_t turn = 0
    cdef Batch[3] batches
    while done < n:
        if hashed < n:
            m = min(n - hashed, most)
            hash_batch(&batches[turn % 3], part, keys + hashed, m)
            hashed += m
        if turn >= 1 and found < n:
            m = min(n - found, most)
            find_rows(&batches[(turn - 1) % 3], slab, m, row_bytes)
            found += m
        if turn >= 2:
            m = min(n - done, most)
            copy_rows(&batches[(turn - 2) % 3], slab, keys + done, m,
                      out + <uint64_t>done * floats, floats)
            done += m
        turn += 1


# The same for keys of any fragments, which it works out itself: lookups of different fragments
# overlap, so this is the one for short pulls.  Returns how many rows it copied: less than n means
# that keys[returned] belongs to a fragment that this shard does not own.
cdef inline uint32_t store_pull_any(Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                             float *out, uint32_t floats) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef uint32_t row_bytes = KEY_BYTES + floats * <uint32_t>sizeof(float)
    cdef uint32_t done = 0
    cdef uint32_t m, owned
    cdef uint32_t most = batch_rows(row_bytes)
    cdef Batch batch
    while done < n:
        m = min(n - done, most)
        owned = _hash_mixed_batch(&batch, shard, slab, keys + done, m)
        find_rows(&batch, slab, owned, row_bytes)
        copy_rows(&batch, slab, keys + done, owned, out + <uint64_t>done * floats, floats)
        done += owned
        if owned < m:
            break
    return done


# Fetches into the cache what a pull or push of these keys, of any fragments, will read.  Worth it
# before a run of pushes of few keys each: their misses then overlap.  At most some 100 keys ahead.
cdef inline void store_fetch(Shard *shard, Table *table, const uint64_t *keys,
                      uint32_t n) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef uint32_t m, owned
    cdef uint32_t most = batch_rows(slab.stride)
    cdef Batch batch
    while n:
        m = min(n, most)
        owned = _hash_mixed_batch(&batch, shard, slab, keys, m)
        find_rows(&batch, slab, owned, slab.stride)
        if owned < m:
            return
        keys += m
        n -= m


cdef inline int _change_rows(Table *table, uint32_t fragment, const uint64_t *keys,
                      uint32_t n, const float *values, uint32_t value_floats,
                      RowStep step) noexcept nogil:
    """Takes each key's row through `step`, or (step NULL) copies the value over it."""
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint32_t m, i
    cdef bint tracked = slab.touch_at or slab.version_at
    cdef bint moved             # an insertion moved rows: this batch's candidates are void
    cdef char *row
    cdef uint32_t most = batch_rows(slab.stride)
    cdef Batch batch
    if slab.version_at and n:
        part.version += 1
    while n:
        m = min(n, most)
        hash_batch(&batch, part, keys, m)
        find_rows(&batch, slab, m, slab.stride)
        moved = False
        for i in range(m):
            row = NULL if moved else batch.rows[i]
            if row == NULL or key_of(row) != keys[i]:
                row = part_find(slab, part, keys[i], batch.tags[i])
                if row == NULL:
                    row = part_insert(slab, part, keys[i], batch.tags[i])
                    if row == NULL:
                        return -1
                    moved = moved or part.chunk_num == 1
            if step == NULL:
                memcpy(weights_of(row), values, value_floats * sizeof(float))
            else:
                step(table.hyper, weights_of(row), values, slab.dim)
            if tracked:
                track_push(slab, part, row)
            values += value_floats
        keys += m
        n -= m
    return 0


# Applies n values (n x store_value_floats) by the table's access method, in order; creates missing
# rows.  With `state` the values are differences of weights and state (n x store_floats), and only
# for tables that add them (store_adds_state).
# Returns 0, or -1 when memory ran out: rows before the one that found none are applied, that one
# and those after it are untouched.
cdef inline int store_push(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, const float *values, bint state) noexcept nogil:
    cdef const RowOps *ops = table.slab.ops
    if state:
        return _change_rows(table, fragment, keys, n, values, table.slab.floats,
                            ops.add_state[table.slab.access])
    return _change_rows(table, fragment, keys, n, values, table.value_floats,
                        ops.apply[table.slab.access])


# Puts whole rows, weights and state (n x store_floats), in the place of what is there.  Counts as
# a push of them.  0, or -1 as store_push.
cdef inline int store_put(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                   uint32_t n, const float *rows) noexcept nogil:
    return _change_rows(table, fragment, keys, n, rows, table.slab.floats, NULL)


# found[i] = 1 where the key has a row, else 0.
cdef inline void store_has(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, uint8_t *found) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint32_t i
    for i in range(n):
        found[i] = part_find(slab, part, keys[i], <uint32_t>hash_key(keys[i])) != NULL


# --- marks ---------------------------------------------------------------------------------------

# Highest sequence number applied to the fragment for this incarnation; 0 = none.
cdef inline uint64_t store_mark(Shard *shard, uint32_t fragment,
                                uint64_t incarnation) noexcept nogil:
    return marks_get(&shard.fragments[fragment].marks, incarnation)


# Raises the mark to `seq` (a lower one leaves it).  0, or -1 when memory ran out.
cdef inline int store_set_mark(Shard *shard, uint32_t fragment, uint64_t incarnation,
                        uint64_t seq) noexcept nogil:
    return marks_raise(&shard.fragments[fragment].marks, incarnation, seq)


# --- walks and sums ------------------------------------------------------------------------------

# Copies up to max_rows (key, floats as in store_pull) of the fragment, in order of slots, from
# position *cursor on (0 = begin) and advances it.  Returns the count; 0 = end.  A row that exists
# during the whole of a walk is seen exactly once.  One created or deleted meanwhile may be seen or
# not; a key that is deleted and created again meanwhile may be seen twice.  Where nothing is
# deleted, slots are in order of creation, and rows created between two calls are seen by a later.
cdef inline uint32_t store_scan(Shard *shard, Table *table, uint32_t fragment, uint64_t *cursor,
                         uint64_t *keys, float *rows, uint32_t floats,
                         uint32_t max_rows) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint32_t count = 0
    cdef uint32_t slot
    cdef char *row
    while count < max_rows and cursor[0] < part.used:
        slot = slot_of(slab, <uint32_t>cursor[0])
        cursor[0] += 1
        if not holds_row(slab, part, slot):
            continue
        row = row_at(slab, part, slot)
        keys[count] = key_of(row)
        memcpy(rows + <uint64_t>count * floats, weights_of(row), floats * sizeof(float))
        count += 1
    return count


cdef inline uint64_t store_rows(Shard *shard, Table *table) noexcept nogil:
    return table.slab.rows


# Bytes taken for rows, indices, tables and marks, freed and kept for re-use included.
cdef inline uint64_t store_bytes(Shard *shard) noexcept nogil:
    cdef uint64_t total = arena_used(&shard.arena) + shard.table_cap * sizeof(Table *)
    cdef uint32_t f
    for f in range(shard.frag_num):
        total += sizeof(Fragment) + marks_bytes(&shard.fragments[f].marks)
    return total


cdef inline void store_disown(Shard *shard, uint32_t fragment) noexcept nogil:
    cdef uint32_t t
    for t in range(shard.table_cap):
        if shard.tables[t] != NULL:
            drop_rows(&shard.tables[t].slab, &shard.tables[t].slab.parts[fragment])
    marks_drop(&shard.fragments[fragment].marks)
    shard.fragments[fragment].owned = False


cdef inline Table *table_new(Shard *shard, uint32_t table_id, uint32_t dim,
                       uint32_t state_floats, uint32_t track) noexcept nogil:
    """A table without rows; NULL = no memory.  The caller fills in its settings."""
    cdef uint32_t table_cap = max(shard.table_cap, <uint32_t>8)
    cdef Table **tables
    cdef Table *table
    cdef Slab *slab
    cdef uint64_t *deleted = NULL
    cdef uint32_t f
    while table_cap <= table_id:
        table_cap *= 2
    if table_cap > shard.table_cap:
        tables = <Table **>realloc(shard.tables, table_cap * sizeof(Table *))
        if tables == NULL:
            return NULL
        memset(tables + shard.table_cap, 0, (table_cap - shard.table_cap) * sizeof(Table *))
        shard.tables = tables
        shard.table_cap = table_cap
    table = <Table *>calloc(1, sizeof(Table))
    if table == NULL:
        return NULL
    slab = &table.slab
    slab.parts = <Part *>arena_cut(&shard.arena, shard.frag_num * sizeof(Part))
    if track & TRACK_VERSION:
        deleted = <uint64_t *>arena_cut(&shard.arena, (shard.frag_num + 7) // 8 * BLOCK_MIN)
    if slab.parts == NULL or (track & TRACK_VERSION and deleted == NULL):
        free(table)
        return NULL
    slab.no_bucket = <Bucket *>NO_BUCKET
    for f in range(shard.frag_num):
        part_clear(slab, &slab.parts[f])
    table.table_id = table_id
    table.track = track
    slab.arena = &shard.arena
    slab.ops = shard.ops
    slab.dim = dim
    slab.floats = dim + state_floats
    slab.hyper = table.hyper
    slab.tick = &shard.tick
    slab.stride = KEY_BYTES + slab.floats * <uint32_t>sizeof(float)
    if track & TRACK_TOUCH:
        slab.touch_at = slab.stride
        slab.stride += sizeof(uint32_t)
    if track & TRACK_VERSION:
        slab.version_at = slab.stride
        slab.stride += sizeof(uint64_t)
        slab.deleted = deleted
    slab.chunk_rows = max(CHUNK_BYTES // slab.stride, <uint32_t>1)
    while <uint32_t>1 << slab.chunk_shift < slab.chunk_rows:
        slab.chunk_shift += 1
    slab.chunk_bytes = (<uint64_t>slab.chunk_rows * slab.stride + 63) // 64 * 64
    shard.tables[table_id] = table
    return table

