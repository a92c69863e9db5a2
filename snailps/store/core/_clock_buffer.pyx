# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Contributions to clocks: staged by slot, summed in the order of the slots, applied once a clock.

    slots_stage: keys, values -> a part after its slot's others
    slots_seal -> the slot is complete -> sums by key, ((s0 + s1) + s2) + ...
    the last seal -> sums -> access method, each row once -> clock + 1

A key's later values are added to its first value, where that was staged: a sum needs no memory of its
own, and a part without a sum is freed at once.  Only the shard's thread uses a buffer.  Must not know
frames, marks or connections.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from snailps.abi._key_table cimport number_of
from snailps.abi._row_ops cimport ACCESS_AVERAGE, ACCESS_PYTHON, RowStep
from snailps.store.core._slab cimport part_close_round
from snailps.store.tables cimport (
    Lookups, Shard, Table, Values, float_values, lookups_begin, lookups_push, lookups_skip, store_integers,
    store_owns,
)

cdef enum:
    SUM_BYTES = 32                  # of a key's sum beside its value: counted when the value is staged
    # Memory of parts is used again: the next clock has parts of the same sizes, and touching new pages costs more
    # than all other work on their values.
    PAGE_BYTES = 4096
    SPARE_BYTES_MAX = 64 << 20
    NAMED = 8                       # the most missing slots that a message names

cdef enum:
    SEVERAL = 0xFFFFFFFFFFFFFFFF  # more than one incarnation was refused


# --- what is staged ------------------------------------------------------------------------------

cdef void staged_free(Slots *s, Staged *part) noexcept nogil:
    s.bytes -= part.bytes
    staged_give(s, part)


cdef void staged_give(Slots *s, Staged *part) noexcept nogil:
    if part.pages > SPARE_PAGES or s.spare_bytes > <uint64_t>SPARE_BYTES_MAX:
        free(part)
        return
    s.spare_bytes += part.pages * <uint64_t>PAGE_BYTES
    part.next = s.spare[part.pages]
    s.spare[part.pages] = part


cdef void _spare_free(Slots *s) noexcept nogil:
    cdef uint32_t pages
    cdef Staged *part
    for pages in range(SPARE_PAGES + 1):
        while s.spare[pages] != NULL:
            part = s.spare[pages]
            s.spare[pages] = part.next
            free(part)
    s.spare_bytes = 0


cdef Staged *staged_new(Slots *s, uint32_t key_num, uint32_t run_num,
                        uint32_t floats) noexcept nogil:
    cdef uint64_t bytes = staged_bytes_of(key_num, run_num, floats)
    cdef uint64_t pages = (bytes - key_num * <uint64_t>SUM_BYTES + PAGE_BYTES - 1) // PAGE_BYTES
    cdef Staged *part
    if pages <= SPARE_PAGES and s.spare[pages] != NULL:
        part = s.spare[pages]
        s.spare[pages] = part.next
        s.spare_bytes -= pages * PAGE_BYTES
    else:
        part = <Staged *>malloc(pages * PAGE_BYTES)
    if part == NULL:
        return NULL
    memset(part, 0, sizeof(Staged))
    part.pages = <uint32_t>min(pages, <uint64_t>0xFFFFFFFF)
    part.bytes = bytes
    part.key_num = key_num
    part.run_num = run_num
    part.floats = floats
    part.keys = <uint64_t *>(part + 1)
    part.runs = <Run *>(part.keys + key_num)
    part.values = <float *>(part.runs + run_num)
    return part


cdef uint64_t staged_bytes_of(uint32_t key_num, uint32_t run_num, uint32_t floats) noexcept nogil:
    return sizeof(Staged) + key_num * (8 + SUM_BYTES + <uint64_t>floats * sizeof(float)) \
        + run_num * <uint64_t>sizeof(Run)


cdef Slot *slot_at(Slots *s, uint32_t slot) noexcept nogil:
    cdef uint32_t cap = max(s.cap, <uint32_t>16)
    cdef Slot *grown
    while cap <= slot:
        cap *= 2
    if cap > s.cap:
        grown = <Slot *>realloc(s.slot, cap * sizeof(Slot))
        if grown == NULL:
            return NULL
        memset(grown + s.cap, 0, (cap - s.cap) * sizeof(Slot))
        s.slot = grown
        s.cap = cap
    return &s.slot[slot]


cdef int slots_check(const Slots *s, uint64_t clock, uint32_t slot,
                     uint64_t incarnation) noexcept nogil:
    if clock < s.clock:
        return STAGE_DROPPED
    if clock > s.clock:
        return STAGE_FUTURE
    if s.slots and slot >= s.slots:
        return STAGE_SLOT
    if slot < s.cap and s.slot[slot].sealed:
        return STAGE_SEALED if s.slot[slot].sealed == incarnation else STAGE_DROPPED
    return STAGE_OK


cdef void slots_refuse(Slots *s, uint32_t slot, uint64_t incarnation) noexcept nogil:
    cdef Slot *place = slot_at(s, slot)
    if place != NULL:
        place.refused = <uint64_t>SEVERAL if place.refused and place.refused != incarnation \
            else incarnation


cdef void slots_stage(Slots *s, Slot *place, Staged *part) noexcept nogil:
    part.next = NULL
    if place.last == NULL:
        place.first = part
    else:
        place.last.next = part
    place.last = part
    s.bytes += part.bytes


cdef void _slot_drop(Slots *s, Slot *place, uint64_t incarnation) noexcept nogil:
    """Drops the parts of a slot, but for the parts of this incarnation (0 = all)."""
    cdef Staged *part = place.first
    cdef Staged *next_one
    cdef Staged *last = NULL
    place.first = NULL
    while part != NULL:
        next_one = part.next
        if incarnation and part.incarnation == incarnation:
            part.next = NULL
            if last == NULL:
                place.first = part
            else:
                last.next = part
            last = part
        else:
            s.dropped += 1
            staged_free(s, part)
        part = next_one
    place.last = last


# --- sums ----------------------------------------------------------------------------------------

cdef Sums *_sums_of(Slots *s, Table *table, bint state) noexcept nogil:
    """Finds the sums of a table, or makes them; NULL = no memory."""
    cdef Sums **link = &s.sums
    cdef Sums *sums
    while link[0] != NULL:
        if link[0].table == table and link[0].state == state:
            return link[0]
        link = &link[0].next
    sums = <Sums *>calloc(1, sizeof(Sums))
    if sums == NULL:
        return NULL
    sums.table = table
    sums.state = state
    sums.lr_scale = NO_LR_SCALE
    sums.floats = table.slab.floats if state else table.value_floats
    link[0] = sums
    return sums


cdef Sums *slots_scale(Slots *s, Table *table, bint state, float lr_scale) noexcept nogil:
    cdef Sums *sums = _sums_of(s, table, state)
    if sums != NULL and sums.lr_scale == NO_LR_SCALE:
        sums.lr_scale = lr_scale
    return sums


cdef bint _sums_grow(Sums *sums, uint64_t need) noexcept nogil:
    """Makes room for `need` keys; False = no memory, and nothing is lost."""
    cdef uint64_t cap = max(sums.cap, <uint32_t>256)
    cdef uint64_t *keys
    cdef float **rows
    cdef uint32_t *fragments
    cdef uint32_t *index
    cdef uint64_t slot
    cdef uint32_t i
    if need <= sums.cap:
        return True
    while cap < need:
        cap *= 2
    if cap > <uint64_t>1 << 31:
        return False
    keys = <uint64_t *>realloc(sums.keys, cap * 8)
    if keys != NULL:
        sums.keys = keys
    rows = <float **>realloc(sums.rows, cap * sizeof(float *))
    if rows != NULL:
        sums.rows = rows
    fragments = <uint32_t *>realloc(sums.fragments, cap * 4)
    if fragments != NULL:
        sums.fragments = fragments
    index = <uint32_t *>calloc(2 * cap, 4)
    if keys == NULL or rows == NULL or fragments == NULL or index == NULL:
        free(index)
        return False
    free(sums.index)
    sums.index = index
    sums.mask = <uint32_t>(2 * cap - 1)
    for i in range(sums.count):
        number_of(index, sums.mask, sums.keys, sums.keys[i], &slot)
        index[slot] = i + 1
    sums.cap = <uint32_t>cap
    return True


cdef void _add_floats(float *sum, const float *value, uint32_t n) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        sum[i] += value[i]


cdef bint sum_part(Slots *s, Staged *part) noexcept nogil:
    cdef Sums *sums = _sums_of(s, part.table, part.state)
    cdef float *value = part.values
    # Of integers remains what pushing all contributions would leave; they are not added up.
    cdef RowStep combine = part.table.slab.ops.apply[part.table.slab.access] \
        if store_integers(part.table) else NULL
    cdef uint32_t begun, g, i
    cdef uint32_t key_index = 0
    # Number of the sum after the previous key's: in a part with the same list of keys it is the next key's, and
    # no lookup is needed.
    cdef uint32_t sum_number = 0
    cdef uint64_t slot
    if sums == NULL or not _sums_grow(sums, <uint64_t>sums.count + part.key_num):
        return False
    begun = sums.count
    for g in range(part.run_num):
        for i in range(part.runs[g].keys):
            if sum_number >= sums.count or sums.keys[sum_number] != part.keys[key_index]:
                sum_number = number_of(sums.index, sums.mask, sums.keys, part.keys[key_index], &slot)
                if sum_number == 0:
                    sums.keys[sums.count] = part.keys[key_index]
                    sums.rows[sums.count] = value
                    sums.fragments[sums.count] = part.runs[g].fragment
                    sums.count += 1
                    sums.index[slot] = sum_number = sums.count
                    value += part.floats
                    key_index += 1
                    continue
                sum_number -= 1
            if combine == NULL:
                _add_floats(sums.rows[sum_number], value, part.floats)
            else:
                combine(NULL, sums.rows[sum_number], value, part.floats)
            sum_number += 1
            value += part.floats
            key_index += 1
    if sums.count > begun:
        part.next = sums.parts
        sums.parts = part
    else:
        staged_free(s, part)
    return True


cdef bint _sum_slot(Slots *s, Slot *place) noexcept nogil:
    """Adds a sealed slot to the sums; False = no memory, and parts that were not added stay in the slot."""
    cdef Staged *part
    while place.first != NULL:
        part = place.first
        place.first = part.next
        if not sum_part(s, part):
            part.next = place.first
            place.first = part
            return False
    place.last = NULL
    return True


cdef void _sums_clear(Slots *s, Sums *sums) noexcept nogil:
    """Forgets the sums; their memory is used for the next clock."""
    cdef Staged *part = sums.parts
    cdef Staged *next_one
    while part != NULL:
        next_one = part.next
        staged_free(s, part)
        part = next_one
    sums.parts = NULL
    if sums.count:
        memset(sums.index, 0, (<uint64_t>sums.mask + 1) * 4)
    sums.count = 0


# --- the end of a clock --------------------------------------------------------------------------

cdef bint _apply_sums(Shard *shard, const Sums *sums) noexcept nogil:
    """Applies the sums of a table; False = no memory."""
    cdef Values value = float_values(NULL, sums.floats)
    cdef Lookups lookups
    cdef uint32_t i
    lookups_begin(&lookups, shard, sums.table, sums.keys, sums.count, sums.table.slab.stride)
    for i in range(sums.count):
        value.at = <const char *>sums.rows[i]
        if not store_owns(shard, sums.fragments[i]):
            lookups_skip(&lookups, 1)       # the fragment has moved to another shard, with its contributions
        elif lookups_push(&lookups, sums.table, 1, &value, sums.state, sums.lr_scale) < 0:
            return False
    return True


cdef void _close_average(Shard *shard, Table *table) noexcept nogil:
    cdef uint32_t f
    for f in range(shard.frag_num):
        if table.slab.parts[f].used:
            part_close_round(&table.slab, &table.slab.parts[f])


cdef int _apply_clock(Slots *s, Shard *shard) noexcept nogil:
    """Applies all sums and begins the next clock: SEAL_CLOSED, or SEAL_BROKEN."""
    cdef Sums *sums = s.sums
    while sums != NULL:
        if sums.count:
            if sums.table.slab.access == ACCESS_PYTHON:
                if s.apply_elsewhere == NULL or not s.apply_elsewhere(s.door, sums.table, sums):
                    s.broken = BROKEN_METHOD
                    return SEAL_BROKEN
            elif not _apply_sums(shard, sums):
                s.broken = BROKEN_MEMORY
                return SEAL_BROKEN
            if sums.table.slab.access == ACCESS_AVERAGE:
                _close_average(shard, sums.table)
            _sums_clear(s, sums)
        sums = sums.next
    _slots_begin(s, s.clock + 1)
    return SEAL_CLOSED


cdef void _slots_begin(Slots *s, uint64_t clock) noexcept nogil:
    """Begins an empty clock, and drops all staged parts."""
    cdef uint32_t i
    cdef Sums *sums = s.sums
    while sums != NULL:
        sums.lr_scale = NO_LR_SCALE
        sums = sums.next
    for i in range(s.cap):
        _slot_drop(s, &s.slot[i], 0)
        s.slot[i].sealed = 0
        s.slot[i].refused = 0
    s.clock = clock
    s.slots = 0
    s.sealed = 0
    s.summed = 0


cdef int slots_seal(Slots *s, Shard *shard, uint64_t clock, uint32_t slot, uint32_t slots,
                    uint64_t incarnation) noexcept nogil:
    cdef Slot *place
    if clock < s.clock:
        return SEAL_AGAIN
    if clock > s.clock:
        return SEAL_FUTURE
    if s.broken:
        return SEAL_BROKEN
    if s.slots == 0 and not _slots_fit(s, slots):
        return SEAL_SLOTS
    if s.slots and s.slots != slots:
        return SEAL_SLOTS
    place = slot_at(s, slots - 1)       # makes room for all slots: the code below indexes them
    if place == NULL:
        s.broken = BROKEN_MEMORY
        return SEAL_BROKEN
    place = &s.slot[slot]
    if place.sealed:
        return SEAL_AGAIN
    if place.refused == incarnation or place.refused == <uint64_t>SEVERAL:
        return SEAL_REFUSED
    s.slots = slots
    place.sealed = incarnation
    s.sealed += 1
    _slot_drop(s, place, incarnation)
    if s.early:
        return SEAL_OK
    while s.summed < slots and s.slot[s.summed].sealed:
        if not _sum_slot(s, &s.slot[s.summed]):
            s.broken = BROKEN_MEMORY
            return SEAL_BROKEN
        s.summed += 1
    if s.sealed < slots:
        return SEAL_OK
    return slots_end(s, shard, NULL)


cdef void slots_lack(const Slots *s, char *text, size_t room) noexcept nogil:
    cdef unsigned long long clock = s.clock
    cdef uint32_t missing = s.slots - s.sealed
    cdef uint32_t named = 0
    cdef uint32_t i
    cdef int n
    if s.broken:
        snprintf(text, room, b"nothing more: clock %llu could not be applied", clock)
    elif s.slots == 0:
        snprintf(text, room, b"the first slot of clock %llu", clock)
    elif missing == 0:
        snprintf(text, room, b"the master to close clock %llu", clock)
    else:
        n = snprintf(text, room, b"%s", b"slots" if missing > 1 else b"slot")
        for i in range(s.slots):
            if s.slot[i].sealed == 0 and named < NAMED:
                n += snprintf(text + n, room - n, b", %u" if named else b" %u", i)
                named += 1
        if missing > named:
            n += snprintf(text + n, room - n, b" and %u others", missing - named)
        snprintf(text + n, room - n, b" of clock %llu", clock)


cdef bint _slots_fit(const Slots *s, uint32_t slots) noexcept nogil:
    """Whether nothing is staged beyond the slots of a clock that has `slots` slots."""
    cdef uint32_t i
    for i in range(slots, s.cap):
        if s.slot[i].first != NULL:
            return False
    return True


cdef int slots_end(Slots *s, Shard *shard, const unsigned char *counts) noexcept nogil:
    while s.summed < s.slots:
        if counts == NULL or counts[s.summed]:
            if not _sum_slot(s, &s.slot[s.summed]):
                s.broken = BROKEN_MEMORY
                return SEAL_BROKEN
        s.summed += 1
    return _apply_clock(s, shard)


cdef void slots_set(Slots *s, uint64_t clock, bint early) noexcept nogil:
    cdef Sums *sums = s.sums
    while sums != NULL:
        _sums_clear(s, sums)
        sums = sums.next
    _slots_begin(s, clock)
    _spare_free(s)
    s.early = early
    s.broken = BROKEN_NOT


cdef void slots_forget(Slots *s, const Table *table) noexcept nogil:
    cdef Sums **link = &s.sums
    cdef Sums *sums
    cdef Staged *part
    cdef Staged *next_one
    cdef Staged *last
    cdef uint32_t i
    for i in range(s.cap):
        part = s.slot[i].first
        last = NULL
        while part != NULL:
            next_one = part.next
            if part.table == table:
                if last == NULL:
                    s.slot[i].first = next_one
                else:
                    last.next = next_one
                staged_free(s, part)
            else:
                last = part
            part = next_one
        s.slot[i].last = last
    while link[0] != NULL:
        sums = link[0]
        if sums.table == table:
            link[0] = sums.next
            _sums_clear(s, sums)
            _sums_free(sums)
        else:
            link = &sums.next


cdef void _sums_free(Sums *sums) noexcept nogil:
    free(sums.keys)
    free(sums.rows)
    free(sums.fragments)
    free(sums.index)
    free(sums)


cdef void slots_free(Slots *s) noexcept nogil:
    cdef Sums *sums
    slots_set(s, 0, False)
    while s.sums != NULL:
        sums = s.sums
        s.sums = sums.next
        _sums_free(sums)
    free(s.slot)
    s.slot = NULL
