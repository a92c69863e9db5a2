# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Pulls, pushes, products and walks over the rows of one shard; what they promise is in the header.

    keys -> hash, index lines fetched -> tags found, rows fetched -> keys compared -> rows copied,
            changed or summed

A lookup of up to 32 keys goes in three steps, each of which fetches the memory that the next one
reads: the cache misses of a batch overlap instead of adding up.  All that runs once a row is in this
module, or a short body of `_slab.pxd`; a key whose row is not the first with its tag, or that has
none, costs a call of `_slab`.  It must not know frames, requests or clocks.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key, mix64
from snailps.abi._prefetch cimport FETCH_AT_SHARD, fetch, fetch_row
from snailps.abi._row_ops cimport HYPER_LR, HYPER_NUM, RowOps, RowStep
from snailps.store.core._arena cimport Piece, arena_merge, arena_used
from snailps.store.core._retention cimport (
    CELLS_MAX, CELLS_MIN, retention_admits, retention_make_room, retention_note,
)
from snailps.store.core._slab cimport (
    KEY_BYTES, Bucket, Part, Slab, first_row, holds_row, key_of, lowest_bit, match8, part_drop,
    part_find, part_reach, part_retention, row_at, slab_init, slab_pieces, slot_of, track_push, weights_of,
)

cdef enum:
    BATCH = 32                  # more misses than a core keeps in flight
    BATCH_BYTES = 12 << 10      # of rows fetched at once: they and the values must fit into L1
    BATCH_MIN = 8
    MARKS_MIN = 4

cdef struct Batch:
    Part *parts[BATCH]
    uint32_t tags[BATCH]
    char *rows[BATCH]           # a candidate whose tag fits, its key not yet looked at; or NULL

cdef struct Sums:                   # where a walk over entries is
    const uint32_t *counts          # entries of each example
    uint32_t left                   # ... of the present one, not summed yet
    float *out                      # its sum


# --- marks ---------------------------------------------------------------------------------------

cdef inline Mark *_mark_of(const Marks *marks, uint64_t incarnation) noexcept nogil:
    """The incarnation's mark, or the empty place for it; there always is one."""
    cdef uint32_t position = <uint32_t>mix64(incarnation) & (marks.cap - 1)
    while (marks.places[position].seq != 0
           and marks.places[position].incarnation != incarnation):
        position = (position + 1) & (marks.cap - 1)
    return &marks.places[position]


cdef int _marks_grow(Marks *marks) noexcept nogil:
    cdef Mark *old = marks.places
    cdef uint32_t old_cap = marks.cap
    cdef uint32_t cap = 2 * old_cap if old_cap else MARKS_MIN
    cdef uint32_t i
    cdef Mark *places = <Mark *>calloc(cap, sizeof(Mark))
    if places == NULL:
        return -1
    marks.places = places
    marks.cap = cap
    for i in range(old_cap):
        if old[i].seq:
            _mark_of(marks, old[i].incarnation)[0] = old[i]
    free(old)
    return 0


cdef uint64_t marks_get(const Marks *marks, uint64_t incarnation) noexcept nogil:
    return _mark_of(marks, incarnation).seq if marks.num else 0


cdef int marks_raise(Marks *marks, uint64_t incarnation, uint64_t seq) noexcept nogil:
    cdef Mark *mark
    if seq <= marks_get(marks, incarnation):
        return 0
    if 4 * (marks.num + 1) > 3 * marks.cap and _marks_grow(marks) < 0:
        return -1
    mark = _mark_of(marks, incarnation)
    if mark.seq == 0:
        marks.num += 1
    mark.incarnation = incarnation
    mark.seq = seq
    return 0


cdef char *marks_copy(const Marks *marks, char *to) noexcept nogil:
    cdef uint32_t i
    for i in range(marks.cap):
        if marks.places[i].seq:
            memcpy(to, &marks.places[i], sizeof(Mark))
            to += sizeof(Mark)
    return to


cdef void marks_drop(Marks *marks) noexcept nogil:
    free(marks.places)
    marks.places = NULL
    marks.cap = 0
    marks.num = 0


# --- lookups -------------------------------------------------------------------------------------

cdef inline uint32_t _batch_rows(uint32_t row_bytes) noexcept nogil:
    """Rows to look up at once: 32 narrow ones; 8 with two floats of state beside each weight,
    which at dim 100 takes a push from 168 to 144 ns a row."""
    return max(min(BATCH_BYTES // row_bytes, <uint32_t>BATCH), <uint32_t>BATCH_MIN)


cdef inline void _hash_batch(Batch *batch, Part *part, const uint64_t *keys,
                             uint32_t n) noexcept nogil:
    """First step, when all keys are of one fragment."""
    cdef uint32_t i, tag
    cdef const Bucket *buckets = part.buckets
    cdef uint32_t mask = part.mask
    for i in range(n):
        tag = <uint32_t>hash_key(keys[i])
        batch.parts[i] = part
        batch.tags[i] = tag
        fetch(&buckets[tag & mask])


cdef inline uint32_t _hash_mixed_batch(Batch *batch, const Shard *shard, const Slab *slab,
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


cdef inline void _find_rows(Batch *batch, const Slab *slab, uint32_t n,
                            uint32_t row_bytes) noexcept nogil:
    """Second step: the first row whose tag fits.  Only its line of the index is read."""
    cdef uint32_t i, found, slot
    cdef const Bucket *bucket
    cdef Part *part
    cdef char *row
    for i in range(n):
        part = batch.parts[i]
        bucket = &part.buckets[batch.tags[i] & part.mask]
        found = match8(bucket.tags, batch.tags[i])
        slot = bucket.slots[lowest_bit(found)] if found else 0
        row = NULL
        if slot:
            row = row_at(slab, part, slot - 1)
            fetch_row(row, row_bytes, FETCH_AT_SHARD)
        batch.rows[i] = row


cdef inline void _copy_floats(float *out, const float *weights, uint32_t n) noexcept nogil:
    cdef uint32_t i
    if n <= 8:                  # a call of memcpy would cost more than the copy
        for i in range(n):
            out[i] = weights[i]
    else:
        memcpy(out, weights, n * sizeof(float))


cdef inline void _copy_rows(Batch *batch, const Slab *slab, const uint64_t *keys, uint32_t n,
                            float *out, uint32_t floats) noexcept nogil:
    """Third step of a pull: the weights (floats = dim), or weights and state of each row."""
    cdef uint32_t i
    cdef char *row
    for i in range(n):
        row = batch.rows[i]
        if row == NULL or key_of(row) != keys[i]:
            row = part_find(slab, batch.parts[i], keys[i], batch.tags[i])
        if row != NULL:
            _copy_floats(out, weights_of(row), floats)
        else:
            first_row(slab, keys[i], out, floats)
        out += floats


# --- pulls ---------------------------------------------------------------------------------------

cdef void store_pull(const Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                     uint32_t n, float *out, uint32_t floats) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint32_t row_bytes = KEY_BYTES + floats * <uint32_t>sizeof(float)
    cdef uint32_t m
    cdef uint32_t most = _batch_rows(row_bytes)
    cdef uint32_t hashed = 0        # keys through the first step of a lookup,
    cdef uint32_t found = 0         # ... the second,
    cdef uint32_t done = 0          # ... the third
    cdef uint32_t turn = 0
    cdef Batch[3] batches
    while done < n:
        if hashed < n:
            m = min(n - hashed, most)
            _hash_batch(&batches[turn % 3], part, keys + hashed, m)
            hashed += m
        if turn >= 1 and found < n:
            m = min(n - found, most)
            _find_rows(&batches[(turn - 1) % 3], slab, m, row_bytes)
            found += m
        if turn >= 2:
            m = min(n - done, most)
            _copy_rows(&batches[(turn - 2) % 3], slab, keys + done, m,
                       out + <uint64_t>done * floats, floats)
            done += m
        turn += 1


cdef uint32_t store_pull_any(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                             float *out, uint32_t floats) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef uint32_t row_bytes = KEY_BYTES + floats * <uint32_t>sizeof(float)
    cdef uint32_t done = 0
    cdef uint32_t m, owned
    cdef uint32_t most = _batch_rows(row_bytes)
    cdef Batch batch
    while done < n:
        m = min(n - done, most)
        owned = _hash_mixed_batch(&batch, shard, slab, keys + done, m)
        _find_rows(&batch, slab, owned, row_bytes)
        _copy_rows(&batch, slab, keys + done, owned, out + <uint64_t>done * floats, floats)
        done += owned
        if owned < m:
            break
    return done


cdef void store_fetch(const Shard *shard, Table *table, const uint64_t *keys,
                      uint32_t n) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef uint32_t m, owned
    cdef uint32_t most = _batch_rows(slab.stride)
    cdef Batch batch
    while n:
        m = min(n, most)
        owned = _hash_mixed_batch(&batch, shard, slab, keys, m)
        _find_rows(&batch, slab, owned, slab.stride)
        if owned < m:
            return
        keys += m
        n -= m


cdef void store_has(const Shard *shard, const Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, uint8_t *found) noexcept nogil:
    cdef const Slab *slab = &table.slab
    cdef const Part *part = &slab.parts[fragment]
    cdef uint32_t i
    for i in range(n):
        found[i] = part_find(slab, part, keys[i], <uint32_t>hash_key(keys[i])) != NULL


cdef uint32_t store_scan(const Shard *shard, const Table *table, uint32_t fragment,
                         uint64_t *cursor, uint64_t *keys, float *rows, uint32_t floats,
                         uint32_t max_rows) noexcept nogil:
    cdef const Slab *slab = &table.slab
    cdef const Part *part = &slab.parts[fragment]
    cdef uint32_t count = 0
    cdef uint32_t slot
    cdef bint gaps = part.rows != part.used
    cdef char *row
    while count < max_rows and cursor[0] < part.used:
        slot = slot_of(slab, <uint32_t>cursor[0])
        cursor[0] += 1
        if gaps and not holds_row(slab, part, slot):
            continue
        row = row_at(slab, part, slot)
        keys[count] = key_of(row)
        memcpy(rows + <uint64_t>count * floats, weights_of(row), floats * sizeof(float))
        count += 1
    return count


# --- pushes --------------------------------------------------------------------------------------

cdef inline int _change_rows(Table *table, uint32_t fragment, const uint64_t *keys,
                             uint32_t n, const float *values, uint32_t value_floats,
                             RowStep step, const float *hyper) noexcept nogil:
    """Takes each key's row through `step`, or (step NULL) copies the value over it."""
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint32_t m, i, rows
    cdef bint tracked = slab.touch_at != 0
    cdef bint retains = slab.retains
    cdef bint moved             # an insertion moved rows: this batch's candidates are void
    cdef char *row
    cdef uint32_t most = _batch_rows(slab.stride)
    cdef Batch batch
    if retains and part_retention(slab, part) == NULL:
        return -1
    while n:
        m = min(n, most)
        _hash_batch(&batch, part, keys, m)
        _find_rows(&batch, slab, m, slab.stride)
        moved = False
        for i in range(m):
            row = NULL if moved else batch.rows[i]
            if row == NULL or key_of(row) != keys[i]:
                if retains and part_find(slab, part, keys[i], batch.tags[i]) == NULL:
                    if step != NULL and not retention_admits(slab, part, keys[i]):
                        values += value_floats
                        continue
                    moved = retention_make_room(slab, part) != 0 or moved
                rows = part.rows
                row = part_reach(slab, part, keys[i], batch.tags[i])
                if row == NULL:
                    return -1
                moved = moved or (part.rows > rows and part.chunk_num == 1)
            if step == NULL:
                memcpy(weights_of(row), values, value_floats * sizeof(float))
            else:
                step(hyper, weights_of(row), values, slab.dim)
            if tracked:
                track_push(slab, row)
            if slab.push_at:
                retention_note(slab, part, row)
            values += value_floats
        keys += m
        n -= m
    return 0


cdef int store_push(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, const float *values, bint state, float lr_scale) noexcept nogil:
    cdef const RowOps *ops = table.slab.ops
    cdef float[HYPER_NUM] scaled
    cdef const float *hyper = table.hyper
    if state:
        return _change_rows(table, fragment, keys, n, values, table.slab.floats,
                            ops.add_state[table.slab.access], hyper)
    if lr_scale != 1:
        memcpy(scaled, hyper, sizeof(scaled))
        scaled[<int>HYPER_LR] *= lr_scale
        hyper = scaled
    return _change_rows(table, fragment, keys, n, values, table.value_floats,
                        ops.apply[table.slab.access], hyper)


cdef int store_put(Shard *shard, Table *table, uint32_t fragment, const uint64_t *keys,
                   uint32_t n, const float *rows) noexcept nogil:
    return _change_rows(table, fragment, keys, n, rows, table.slab.floats, NULL, NULL)


# --- products with rows where they lie -----------------------------------------------------------

cdef inline void _sum_rows(Batch *batch, const Slab *slab, const uint64_t *keys,
                           const float *values, uint32_t n, float *first, Sums *sums) noexcept nogil:
    """Third step: adds the rows of a batch to the sums of their examples."""
    cdef const float *rows[BATCH]
    cdef uint32_t i, run
    cdef char *row
    for i in range(n):
        row = batch.rows[i]
        if row == NULL or key_of(row) != keys[i]:
            row = part_find(slab, batch.parts[i], keys[i], batch.tags[i])
        if row != NULL:
            rows[i] = weights_of(row)
        else:
            first_row(slab, keys[i], first + i * <uint64_t>slab.dim, slab.dim)
            rows[i] = first + i * <uint64_t>slab.dim
    i = 0
    while i < n:
        while sums.left == 0:
            sums.counts += 1
            sums.out += slab.dim
            sums.left = sums.counts[0]
        run = min(sums.left, n - i)
        slab.ops.sum(run, rows + i, values + i, sums.out, slab.dim)
        sums.left -= run
        i += run


cdef void store_sum(const Shard *shard, Table *table, const uint64_t *keys, const float *values,
                    uint32_t n, const uint32_t *counts, uint32_t examples, float *out,
                    float *first) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef uint32_t row_bytes = KEY_BYTES + slab.dim * <uint32_t>sizeof(float)
    cdef uint32_t most = _batch_rows(row_bytes)
    cdef uint32_t hashed = 0        # keys through the first step of a lookup,
    cdef uint32_t found = 0         # ... the second,
    cdef uint32_t done = 0          # ... the third
    cdef uint32_t turn = 0
    cdef uint32_t m
    cdef float ones[BATCH]
    cdef const float *factors = values
    cdef Batch[3] batches
    cdef Sums sums
    memset(out, 0, <uint64_t>examples * slab.dim * sizeof(float))
    if n == 0:
        return
    for m in range(BATCH):
        ones[m] = 1
    if values == NULL:
        factors = &ones[0]
    sums.counts = counts
    sums.left = counts[0]
    sums.out = out
    while done < n:
        if hashed < n:
            m = min(n - hashed, most)
            _hash_mixed_batch(&batches[turn % 3], shard, slab, keys + hashed, m)
            hashed += m
        if turn >= 1 and found < n:
            m = min(n - found, most)
            _find_rows(&batches[(turn - 1) % 3], slab, m, row_bytes)
            found += m
        if turn >= 2:
            m = min(n - done, most)
            _sum_rows(&batches[(turn - 2) % 3], slab, keys + done, factors, m, first, &sums)
            done += m
            if values != NULL:
                factors += m
        turn += 1


# --- tables --------------------------------------------------------------------------------------

cdef uint64_t store_bytes(const Shard *shard) noexcept nogil:
    cdef uint64_t total = arena_used(&shard.arena) + shard.table_cap * sizeof(Table *)
    cdef uint32_t f
    for f in range(shard.frag_num):
        total += sizeof(Fragment) + shard.fragments[f].marks.cap * sizeof(Mark)
    return total


cdef void store_disown(Shard *shard, uint32_t fragment) noexcept nogil:
    cdef uint32_t t
    for t in range(shard.table_cap):
        if shard.tables[t] != NULL:
            part_drop(&shard.tables[t].slab, &shard.tables[t].slab.parts[fragment])
    marks_drop(&shard.fragments[fragment].marks)
    shard.fragments[fragment].owned = False


cdef Table *table_new(Shard *shard, uint32_t table_id, uint32_t dim, uint32_t state_floats,
                      uint32_t track, uint32_t admit_after, uint64_t admit_bytes,
                      uint64_t rows_max) noexcept nogil:
    cdef uint32_t table_cap = max(shard.table_cap, <uint32_t>8)
    cdef uint32_t cells = CELLS_MIN
    cdef Table **tables
    cdef Table *table
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
    if not slab_init(&table.slab, &shard.arena, shard.ops, shard.frag_num, dim, dim + state_floats,
                     track & TRACK_TOUCH, rows_max != 0):
        free(table)
        return NULL
    if rows_max:
        track |= TRACK_PUSH
        table.slab.rows_max = <uint32_t>min(max(rows_max // shard.frag_num, <uint64_t>1),
                                            <uint64_t>0x7FFFFFF0)
    if admit_after > 1:
        track |= TRACK_COUNT
        while cells < <uint32_t>CELLS_MAX and <uint64_t>cells * shard.frag_num < admit_bytes:
            cells *= 2
        table.slab.admit_after = admit_after
        table.slab.admit_cells = cells
    table.slab.retains = rows_max != 0 or admit_after > 1
    table.table_id = table_id
    table.track = track
    table.slab.hyper = table.hyper
    table.slab.tick = &shard.tick
    shard.tables[table_id] = table
    shard.table_end = max(shard.table_end, table_id + 1)
    return table


cdef void store_drop(Shard *shard, uint32_t table_id) noexcept nogil:
    cdef Table *table = shard.tables[table_id]
    cdef uint64_t n = slab_pieces(&table.slab, shard.frag_num, NULL)
    cdef Piece *pieces = <Piece *>malloc(n * sizeof(Piece))
    if pieces == NULL:                  # its rows' memory goes with the shard
        free(table)
        shard.tables[table_id] = NULL
        return
    slab_pieces(&table.slab, shard.frag_num, pieces)
    free(table)
    shard.tables[table_id] = NULL
    arena_merge(&shard.arena, pieces, n)
    free(pieces)
