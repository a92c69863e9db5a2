# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Pulls, pushes, products and walks over the rows of one shard; the header has their contracts.

    keys -> hash, index lines fetched -> tags found, rows fetched -> keys compared -> rows copied,
            changed or summed

A lookup has three steps, each of which fetches the memory that the next one reads and runs some keys
ahead of it (`Lookups`): the cache misses of a request overlap, with each other and with the work on
rows, in any order of fragments.  What runs once a row is in this module, or a short body of
`_slab.pxd`; a key whose row is not the first with its tag, or that has none, costs a call of `_slab`.
Must not know frames, requests or clocks.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key, mix64
from snailps.abi._key_table cimport entry_of
from snailps.abi._prefetch cimport FETCH_AT_SHARD, fetch, fetch_row
from snailps.abi._row_ops cimport (
    ACCESS_PYTHON, HYPER_LR, HYPER_NUM, RowOps, RowStep, hyper_floats_of, value_floats_of,
)
from snailps.store.core._arena cimport Piece, arena_merge, arena_used
from snailps.store.core._slab cimport (
    CELLS_MAX, CELLS_MIN, KEY_BYTES, Bucket, Part, Retention, RetentionCalls, Slab, first_row, holds_row, key_of, lowest_bit, match8, part_drop,
    part_find, part_reach, part_retention, retention_calls, retention_note, row_at, slab_init, slab_pieces, slot_of, tag_of, track_push,
    walk_end, weights_of,
)

cdef enum:
    BATCH = 32                  # more misses than a core keeps in flight
    BATCH_BYTES = 12 << 10      # of rows fetched at once: they and the values must fit into L1
    BATCH_MIN = 8
    AHEAD_BYTES = 12 << 10      # of rows fetched before they are read or changed,
    AHEAD_MIN = 4
    AHEAD_MAX = 48
    INDEX_AHEAD = 24            # lines of the index fetched before those rows
    TURN_BYTES = 512            # rows up to this length are looked up and taken some at a time;
    TURN = 8                    # ... longer ones one by one, between the work on others
    AGAIN = 8                   # rows before its use at which a row is fetched once more
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
    return entry_of(marks.places, marks.cap - 1, mix64(incarnation), incarnation)


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
        if old[i].value:
            _mark_of(marks, old[i].key)[0] = old[i]
    free(old)
    return 0


cdef uint64_t marks_get(const Marks *marks, uint64_t incarnation) noexcept nogil:
    return _mark_of(marks, incarnation).value if marks.num else 0


cdef int marks_raise(Marks *marks, uint64_t incarnation, uint64_t seq) noexcept nogil:
    cdef Mark *mark
    if seq <= marks_get(marks, incarnation):
        return 0
    if 4 * (marks.num + 1) > 3 * marks.cap and _marks_grow(marks) < 0:
        return -1
    mark = _mark_of(marks, incarnation)
    if mark.value == 0:
        marks.num += 1
    mark.key = incarnation
    mark.value = seq
    return 0


cdef char *marks_copy(const Marks *marks, char *to) noexcept nogil:
    cdef uint32_t i
    for i in range(marks.cap):
        if marks.places[i].value:
            memcpy(to, &marks.places[i], sizeof(Mark))
            to += sizeof(Mark)
    return to


cdef void _marks_remove(Marks *marks, uint64_t incarnation) noexcept nogil:
    """Remove a mark and close the gap it leaves."""
    cdef uint32_t mask = marks.cap - 1
    cdef uint32_t gap, at, home
    cdef Mark *mark
    if marks.num == 0:
        return
    mark = _mark_of(marks, incarnation)
    if mark.value == 0:
        return
    gap = at = <uint32_t>(mark - marks.places)
    while True:
        at = (at + 1) & mask
        if marks.places[at].value == 0:
            break
        home = <uint32_t>mix64(marks.places[at].key) & mask
        if ((at - home) & mask) >= ((at - gap) & mask):
            marks.places[gap] = marks.places[at]
            gap = at
    marks.places[gap].value = 0
    marks.num -= 1
    if marks.num == 0:
        marks_drop(marks)


cdef void store_unmark(Shard *shard, uint64_t first, uint64_t last) noexcept nogil:
    cdef uint32_t f, i
    cdef Marks *marks
    for f in range(shard.frag_num):
        marks = &shard.fragments[f].marks
        if first == last:
            _marks_remove(marks, first)
            continue
        i = 0
        while i < marks.cap:        # a removal moves another mark to its place, which is looked at next
            if marks.places[i].value and first <= marks.places[i].key <= last:
                _marks_remove(marks, marks.places[i].key)
            else:
                i += 1


cdef void marks_drop(Marks *marks) noexcept nogil:
    free(marks.places)
    marks.places = NULL
    marks.cap = 0
    marks.num = 0


# --- lookups -------------------------------------------------------------------------------------

cdef inline uint32_t _batch_rows(uint32_t row_bytes) noexcept nogil:
    """Rows to look up at once: 32 narrow ones, 8 where state makes them long."""
    return max(min(BATCH_BYTES // row_bytes, <uint32_t>BATCH), <uint32_t>BATCH_MIN)


cdef inline void _hash_batch(Batch *batch, const Shard *shard, const Slab *slab,
                             const uint64_t *keys, uint32_t n) noexcept nogil:
    """First step."""
    cdef uint32_t i
    cdef Part *part
    for i in range(n):
        batch.parts[i] = &slab.parts[fragment_of_hash(hash_key(keys[i]), shard.frag_num)]
        batch.tags[i] = tag_of(keys[i])
        fetch(batch.parts[i])
    for i in range(n):
        part = batch.parts[i]
        fetch(&part.buckets[batch.tags[i] & part.mask])
        fetch(part.chunks)


cdef inline void _find_rows(Batch *batch, const Slab *slab, uint32_t n,
                            uint32_t row_bytes) noexcept nogil:
    """Second step: the first row whose tag fits.  Only its line of the index is read."""
    cdef uint32_t i
    for i in range(n):
        batch.rows[i] = _candidate(slab, batch.parts[i], batch.tags[i], row_bytes)


cdef inline char *_candidate(const Slab *slab, const Part *part, uint32_t tag,
                             uint32_t row_bytes) noexcept nogil:
    """The first row in the tag's line of the index whose tag fits, its memory fetched; or NULL."""
    cdef const Bucket *bucket = &part.buckets[tag & part.mask]
    cdef uint32_t found = match8(bucket.tags, tag)
    cdef uint32_t slot = bucket.slots[lowest_bit(found)] if found else 0
    cdef char *row = NULL
    if slot:
        row = row_at(slab, part, slot - 1)
        fetch_row(row, row_bytes, FETCH_AT_SHARD)
    return row


cdef void lookups_begin(Lookups *l, const Shard *shard, Table *table, const uint64_t *keys,
                        uint32_t n, uint32_t row_bytes) noexcept nogil:
    l.keys = keys
    l.n = n
    l.frag_num = shard.frag_num
    l.row_bytes = row_bytes
    l.turn = <uint32_t>TURN if row_bytes <= <uint32_t>TURN_BYTES else 1
    l.ahead = max(min(AHEAD_BYTES // row_bytes, <uint32_t>AHEAD_MAX), <uint32_t>AHEAD_MIN)
    l.again = min(<uint32_t>AGAIN, l.ahead // 2)
    l.hashed = l.found = l.done = 0


cdef inline void _hash_until(Lookups *l, const Slab *slab, uint32_t end) noexcept nogil:
    """First step: fragment and tag of each key, and the line of its index fetched."""
    cdef uint32_t i, at
    cdef uint64_t hashed
    cdef Part *part
    for i in range(l.hashed, end):
        hashed = hash_key(l.keys[i])
        at = i & (LOOKUPS - 1)
        part = &slab.parts[fragment_of_hash(hashed, l.frag_num)]
        l.parts[at] = part
        l.tags[at] = tag_of(l.keys[i])
        fetch(part)
    for i in range(l.hashed, end):
        at = i & (LOOKUPS - 1)
        part = l.parts[at]
        fetch(&part.buckets[l.tags[at] & part.mask])
        fetch(part.chunks)
    l.hashed = end


cdef inline uint32_t _look(Lookups *l, const Slab *slab) noexcept nogil:
    """Advance the lookups ahead of the next rows; the key up to which the third step may go.

    Fetches rows twice, when found and shortly before their use (docs/design/rows-in-memory.md).
    """
    cdef uint32_t i, at
    cdef uint32_t stop = min(l.n, l.done + l.turn)
    cdef uint32_t end = min(l.n, stop + l.ahead)
    if l.hashed < l.n:
        _hash_until(l, slab, min(l.n, end + INDEX_AHEAD))
    for i in range(l.found, end):
        at = i & (LOOKUPS - 1)
        l.rows[at] = _candidate(slab, l.parts[at], l.tags[at], l.row_bytes)
    l.found = end
    for i in range(l.done + l.again, min(end, stop + l.again)):
        at = i & (LOOKUPS - 1)
        if l.rows[at] != NULL:
            fetch_row(l.rows[at], l.row_bytes, FETCH_AT_SHARD)
    return stop


cdef void _forget_rows(Lookups *l) noexcept nogil:
    """Void the candidates from the present key on, after rows have moved or gone."""
    cdef uint32_t i
    for i in range(l.done, l.found):
        l.rows[i & (LOOKUPS - 1)] = NULL


cdef inline void _copy_floats(float *out, const float *weights, uint32_t n) noexcept nogil:
    cdef uint32_t i
    if n <= 8:                  # a call of memcpy would cost more than the copy
        for i in range(n):
            out[i] = weights[i]
    else:
        memcpy(out, weights, n * sizeof(float))


# --- pulls ---------------------------------------------------------------------------------------

cdef void store_pull(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                     uint32_t floats, char *out, uint32_t out_bytes, Narrow narrow,
                     float *first) noexcept nogil:
    cdef Slab *slab = &table.slab
    cdef uint32_t i, at, stop
    cdef char *row
    cdef Lookups l
    lookups_begin(&l, shard, table, keys, n, KEY_BYTES + floats * <uint32_t>sizeof(float))
    while l.done < n:
        stop = _look(&l, slab)
        for i in range(l.done, stop):
            at = i & (LOOKUPS - 1)
            row = l.rows[at]
            if row == NULL or key_of(row) != keys[i]:
                row = part_find(slab, l.parts[at], keys[i], l.tags[at])
            if narrow == NULL:
                if row != NULL:
                    _copy_floats(<float *>out, weights_of(row), floats)
                else:
                    first_row(slab, keys[i], <float *>out, floats)
            elif row != NULL:
                narrow(weights_of(row), out, floats)
            else:
                first_row(slab, keys[i], first, floats)
                narrow(first, out, floats)
            out += out_bytes
        l.done = stop


cdef void store_has(const Shard *shard, const Table *table, uint32_t fragment, const uint64_t *keys,
                    uint32_t n, uint8_t *found) noexcept nogil:
    cdef const Slab *slab = &table.slab
    cdef const Part *part = &slab.parts[fragment]
    cdef uint32_t i
    for i in range(n):
        found[i] = part_find(slab, part, keys[i], tag_of(keys[i])) != NULL


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

cdef int _change_rows(Lookups *l, Table *table, uint32_t n, Values *values, RowStep step) noexcept nogil:
    """Apply `step` to the rows of the next n keys, or (step NULL) copy the values over them."""
    cdef Slab *slab = &table.slab
    cdef Part *part
    cdef uint32_t stop, at, rows
    cdef uint32_t end = l.done + n
    cdef uint64_t key
    cdef bint moved
    cdef const float *value
    cdef char *row
    cdef const RetentionCalls *calls = &retention_calls     # of another module: looked up once
    while l.done < end:
        stop = min(_look(l, slab), end)
        while l.done < stop:
            at = l.done & (LOOKUPS - 1)
            key = l.keys[l.done]
            row = l.rows[at]
            if row == NULL or key_of(row) != key:
                part = l.parts[at]
                moved = False
                if slab.retains and part_find(slab, part, key, l.tags[at]) == NULL:
                    if part_retention(slab, part) == NULL:
                        return -1
                    if step != NULL and not calls.admits(slab, part, key):
                        values.at += values.bytes
                        l.done += 1
                        continue
                    moved = calls.make_room(slab, part) != 0
                rows = part.rows
                row = part_reach(slab, part, key, l.tags[at])
                if row == NULL:
                    return -1
                if moved or (part.rows > rows and part.chunk_num == 1):
                    _forget_rows(l)
            value = <const float *>values.at
            if values.widen != NULL:
                values.widen(values.at, values.room, values.floats)
                value = values.room
            if step == NULL:
                memcpy(weights_of(row), value, values.bytes)
                if values.floats < slab.floats:
                    slab.ops.init_state(slab.access, table.hyper, weights_of(row), slab.dim)
            else:
                step(table.hyper, weights_of(row), value, slab.dim)
            track_push(slab, row)
            if slab.push_at:
                retention_note(slab, l.parts[at], row)
                if slab.age_max and calls.expire(slab, l.parts[at]):
                    _forget_rows(l)
            values.at += values.bytes
            l.done += 1
    return 0


cdef int lookups_push(Lookups *l, Table *table, uint32_t n, Values *values, bint state,
                      float lr_scale) noexcept nogil:
    cdef const RowOps *ops = table.slab.ops
    cdef float lr = table.hyper[<int>HYPER_LR]
    cdef int failed
    if state:
        return _change_rows(l, table, n, values, ops.add_state[table.slab.access])
    table.hyper[<int>HYPER_LR] = lr * lr_scale      # nothing else reads it meanwhile
    failed = _change_rows(l, table, n, values, ops.apply[table.slab.access])
    table.hyper[<int>HYPER_LR] = lr
    return failed


cdef int lookups_put(Lookups *l, Table *table, uint32_t n, Values *values) noexcept nogil:
    return _change_rows(l, table, n, values, NULL)


cdef int store_push(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                    const float *values, bint state, float lr_scale) noexcept nogil:
    cdef Lookups l
    cdef Values whole = float_values(values, table.slab.floats if state else table.value_floats)
    lookups_begin(&l, shard, table, keys, n, table.slab.stride)
    return lookups_push(&l, table, n, &whole, state, lr_scale)


cdef int store_put(const Shard *shard, Table *table, const uint64_t *keys, uint32_t n,
                   const float *rows) noexcept nogil:
    cdef Lookups l
    cdef Values whole = float_values(rows, table.slab.floats)
    lookups_begin(&l, shard, table, keys, n, table.slab.stride)
    return _change_rows(&l, table, n, &whole, NULL)


# --- products with rows where they lie -----------------------------------------------------------

cdef inline void _sum_rows(Batch *batch, const Slab *slab, const uint64_t *keys,
                           const float *values, uint32_t n, float *first, bint stored,
                           Sums *sums) noexcept nogil:
    """Third step: add the rows of a batch to the sums of their examples; `stored`: `first` is zeros."""
    cdef const float *rows[BATCH]
    cdef uint32_t i, run
    cdef char *row
    for i in range(n):
        row = batch.rows[i]
        if row == NULL or key_of(row) != keys[i]:
            row = part_find(slab, batch.parts[i], keys[i], batch.tags[i])
        if row != NULL:
            rows[i] = weights_of(row)
        elif stored:
            rows[i] = first
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
                    float *first, bint stored) noexcept nogil:
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
    if stored:
        memset(first, 0, slab.dim * sizeof(float))
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
            _hash_batch(&batches[turn % 3], shard, slab, keys + hashed, m)
            hashed += m
        if turn >= 1 and found < n:
            m = min(n - found, most)
            _find_rows(&batches[(turn - 1) % 3], slab, m, row_bytes)
            found += m
        if turn >= 2:
            m = min(n - done, most)
            _sum_rows(&batches[(turn - 2) % 3], slab, keys + done, factors, m, first, stored, &sums)
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
            if shard.tables[t].slab.walk.part == &shard.tables[t].slab.parts[fragment]:
                walk_end(&shard.tables[t].slab)     # it would take all that comes back for new rows
            part_drop(&shard.tables[t].slab, &shard.tables[t].slab.parts[fragment])
    marks_drop(&shard.fragments[fragment].marks)
    shard.fragments[fragment].owned = False


cdef inline uint32_t _share_of(uint64_t total, uint32_t frag_num) noexcept nogil:
    """A fragment's share, at least 1."""
    return <uint32_t>min(max(total // frag_num, <uint64_t>1), <uint64_t>0x7FFFFFF0)


cdef Table *table_new(Shard *shard, uint32_t table_id, int access, const float *hyper, uint32_t dim,
                      uint32_t state_floats,
                      uint32_t track, uint32_t admit_after, uint64_t admit_bytes,
                      uint64_t rows_max, uint64_t age_max) noexcept nogil:
    cdef uint32_t table_cap = max(shard.table_cap, <uint32_t>8)
    cdef uint32_t counts = 2 * CELLS_MIN    # bytes of a Retention: a power of two, as blocks are
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
    table = <Table *>calloc(1, sizeof(Table)
                            + (hyper_floats_of(access) - <uint32_t>HYPER_NUM) * sizeof(float))
    if table == NULL:
        return NULL
    memcpy(table.hyper, hyper, sizeof(table.hyper))
    if access != ACCESS_PYTHON:
        shard.ops.prepare(access, table.hyper)
    table.value_floats = value_floats_of(access, dim)
    table.slab.access = access
    if not slab_init(&table.slab, &shard.arena, shard.ops, shard.frag_num, dim, dim + state_floats,
                     track & TRACK_TOUCH, rows_max != 0 or age_max != 0):
        free(table)
        return NULL
    if rows_max or age_max:
        track |= TRACK_PUSH
    if rows_max:
        table.slab.rows_max = _share_of(rows_max, shard.frag_num)
    if age_max:
        table.slab.age_max = _share_of(age_max, shard.frag_num)
    if admit_after > 1:
        track |= TRACK_COUNT
        while counts < <uint32_t>CELLS_MAX and <uint64_t>counts * shard.frag_num < admit_bytes:
            counts *= 2
        table.slab.admit_after = admit_after
        table.slab.admit_cells = counts - <uint32_t>sizeof(Retention)
    table.slab.retains = rows_max != 0 or age_max != 0 or admit_after > 1
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
