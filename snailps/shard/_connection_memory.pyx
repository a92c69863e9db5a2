# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a shard keeps for one connection: batches that went forward.

    parts of a FORWARD, in order -> entries      parts of a BACKWARD, in order -> dL/dZ
    entries of the whole batch -> by fragment and key (Columns): what a row's gradient is summed over

It owns that memory and its bounds.  A batch's place is its number modulo BATCHES; what was there is
dropped.  It knows no tables and no frames.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._key_table cimport number_of, slots_for
from snailps.transport._frame cimport BATCHES, BATCHES_BYTES

cdef enum:
    KEPT_ENTRY_BYTES = 16           # key, value, example
    COLUMNS_WARM = 16 << 20         # bytes of scratch kept for the next batch


cdef ConnectionMemory *memory_of(void **memory) noexcept nogil:
    """The connection's memory; NULL = there is none left."""
    if memory[0] == NULL:
        memory[0] = calloc(1, sizeof(ConnectionMemory))
    return <ConnectionMemory *>memory[0]


cdef void memory_free(ConnectionMemory *mine) noexcept nogil:
    cdef uint32_t i
    if mine != NULL:
        for i in range(BATCHES):
            batch_drop(mine, &mine.batches[i])
        free(mine)


# --- batches -------------------------------------------------------------------------------------

cdef void batch_drop(ConnectionMemory *mine, KeptBatch *batch) noexcept nogil:
    free(batch.keys)
    free(batch.values)
    free(batch.of)
    free(batch.dz)
    mine.bytes -= batch.bytes
    memset(batch, 0, sizeof(KeptBatch))


cdef KeptBatch *batch_begin(ConnectionMemory *mine, uint64_t number, uint32_t table,
                            uint32_t examples, uint32_t floats) noexcept nogil:
    """An empty batch in its place; refused, if with its dL/dZ there would be too much."""
    cdef KeptBatch *batch = &mine.batches[number % BATCHES]
    cdef uint64_t values = <uint64_t>examples * floats
    batch_drop(mine, batch)
    batch.number = number
    batch.table = table
    batch.examples = examples
    batch.floats = floats
    batch.refused = values > BATCHES_BYTES // 4 or mine.bytes + 4 * values > BATCHES_BYTES
    if not batch.refused:
        mine.bytes += 4 * values
        batch.bytes = 4 * values
    return batch


cdef void batch_refuse(ConnectionMemory *mine, KeptBatch *batch) noexcept nogil:
    """Frees what is kept of a batch, and remembers that it was refused."""
    cdef KeptBatch named = batch[0]
    batch_drop(mine, batch)
    batch.number = named.number
    batch.table = named.table
    batch.examples = named.examples
    batch.floats = named.floats
    batch.refused = True


cdef KeptBatch *batch_of(ConnectionMemory *mine, uint64_t number, uint32_t table,
                         uint32_t examples, uint32_t floats) noexcept nogil:
    """The batch of this number; NULL = it is not, or no longer, known."""
    cdef KeptBatch *batch = &mine.batches[number % BATCHES]
    if batch.number != number or batch.table != table \
            or batch.examples != examples or batch.floats != floats:
        return NULL
    return batch


cdef bint _batch_grow(ConnectionMemory *mine, KeptBatch *batch, uint64_t entries) noexcept nogil:
    """Room for so many entries; False = too much, or no memory."""
    cdef uint64_t room = max(batch.room, <uint64_t>1024)
    cdef void *grown
    while room < entries:
        room *= 2
    if room == batch.room:
        return True
    if mine.bytes + (room - batch.room) * KEPT_ENTRY_BYTES > BATCHES_BYTES:
        return False
    grown = realloc(batch.keys, room * 8)
    if grown == NULL:
        return False
    batch.keys = <uint64_t *>grown
    grown = realloc(batch.values, room * 4)
    if grown == NULL:
        return False
    batch.values = <float *>grown
    grown = realloc(batch.of, room * 4)
    if grown == NULL:
        return False
    batch.of = <uint32_t *>grown
    mine.bytes += (room - batch.room) * KEPT_ENTRY_BYTES
    batch.bytes += (room - batch.room) * KEPT_ENTRY_BYTES
    batch.room = room
    return True


cdef bint batch_add(ConnectionMemory *mine, KeptBatch *batch, const uint64_t *keys,
                    const float *values, const uint32_t *counts, uint32_t count,
                    uint32_t entries) noexcept nogil:
    """Keeps the entries of the next examples (`values` NULL = all 1); False = too much."""
    cdef uint64_t at = batch.entries
    cdef uint32_t i, k
    if batch.refused:
        return False
    if not _batch_grow(mine, batch, at + entries):
        batch_refuse(mine, batch)
        return False
    memcpy(batch.keys + at, keys, <uint64_t>entries * 8)
    if values != NULL:
        memcpy(batch.values + at, values, <uint64_t>entries * 4)
    else:
        for k in range(entries):
            batch.values[at + k] = 1
    for i in range(count):
        for k in range(counts[i]):
            batch.of[at] = batch.forth + i
            at += 1
    batch.entries = at
    batch.forth += count
    return True


# --- by column -----------------------------------------------------------------------------------

cdef void columns_free(Columns *c) noexcept nogil:
    free(c.block)
    c.block = NULL
    c.block_bytes = 0


cdef bint _columns_room(Columns *c, uint64_t need) noexcept nogil:
    if need > c.block_bytes:
        columns_free(c)
        c.block = <char *>malloc(need)
        if c.block == NULL:
            return False
        c.block_bytes = need
    return True


cdef bint columns_of(Columns *c, const KeptBatch *batch, uint32_t frag_num) noexcept nogil:
    """Sorts a batch's entries by fragment and key; False = no memory.

    A key's entries keep the order of their examples, keys of a fragment that of their appearance.
    """
    cdef uint64_t n = batch.entries
    cdef uint64_t size = slots_for(n)
    cdef uint32_t *slots            # numbers of keys
    cdef uint32_t *number           # of each entry's key
    cdef uint32_t *count            # by number: entries of the key, later where the next one goes
    cdef uint32_t *fragment         # by number
    cdef uint32_t *place            # by number: where the key stands in the end
    cdef uint32_t *at               # by fragment
    cdef uint64_t *key              # by number
    cdef char *room
    cdef uint32_t f, u, sum_keys = 0, sum_entries = 0
    cdef uint64_t k, slot
    if not _columns_room(c, n * 44 + size * 4 + (frag_num + <uint64_t>1) * 12 + 64):
        return False
    room = c.block
    key = <uint64_t *>room
    c.key = key + n
    number = <uint32_t *>(c.key + n)
    count = number + n
    fragment = count + n
    place = fragment + n
    c.example = place + n
    c.value = <float *>(c.example + n)
    c.start = <uint32_t *>(c.value + n)
    slots = c.start + n + 1
    at = slots + size
    c.group = <Group *>(at + frag_num + 1)
    memset(slots, 0, size * 4)
    memset(at, 0, (frag_num + <uint64_t>1) * 4)
    c.keys = 0
    for k in range(n):
        u = number_of(slots, size - 1, key, batch.keys[k], &slot)
        if u == 0:
            u = c.keys
            c.keys += 1
            slots[slot] = c.keys
            key[u] = batch.keys[k]
            count[u] = 0
            fragment[u] = fragment_of_hash(hash_key(batch.keys[k]), frag_num)
            at[fragment[u]] += 1
        else:
            u -= 1
        number[k] = u
        count[u] += 1
    c.groups = 0
    for f in range(frag_num):
        u = at[f]
        at[f] = sum_keys
        sum_keys += u
        if u:
            c.group[c.groups].fragment = f
            c.group[c.groups].keys = u
            c.groups += 1
    for u in range(c.keys):
        place[u] = at[fragment[u]]
        at[fragment[u]] += 1
        c.key[place[u]] = key[u]
        c.start[place[u]] = count[u]
    for u in range(c.keys):
        k = c.start[u]
        c.start[u] = sum_entries
        sum_entries += <uint32_t>k
    c.start[c.keys] = sum_entries
    for u in range(c.keys):
        count[u] = c.start[place[u]]
    for k in range(n):
        u = number[k]
        c.example[count[u]] = batch.of[k]
        c.value[count[u]] = batch.values[k]
        count[u] += 1
    return True


cdef void columns_cool(Columns *c) noexcept nogil:
    """A huge batch leaves no huge scratch behind."""
    if c.block_bytes > COLUMNS_WARM:
        columns_free(c)
