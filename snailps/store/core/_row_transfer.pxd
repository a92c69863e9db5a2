# Rows of one fragment as bytes, just as they lie in memory: key, weights, state, tick, version.
#
#   part -> some rows at a time, in the order of their slots -> put into the same table elsewhere
#
# For checkpoints (`_sections.pyx`) and for standbys.  Runs in the shard's own thread; knows no frame.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.store.core._lookup cimport fetch
from snailps.store.core._slab cimport (
    KEY_BYTES, Part, Slab, holds_row, part_find, part_place, row_at, slot_of,
)
from snailps.store.tables cimport Shard, Table

cdef enum:
    AHEAD_LINES = 32                # of the next chunk of rows, fetched while one is copied


cdef inline bint part_is_kept(const Table *table, const Part *part) noexcept nogil:
    """Whether there is anything to say of the table's part: it has rows, or had some."""
    return table != NULL and (part.rows or part.version)


cdef inline uint32_t count_some(const Slab *slab, const Part *part, uint32_t number,
                                uint32_t most) noexcept nogil:
    """How many rows `copy_some` would copy."""
    cdef uint32_t n = 0
    if number >= part.used:
        return 0
    if part.rows == part.used:
        return min(most, part.used - number)
    while n < most and number < part.used:
        n += holds_row(slab, part, slot_of(slab, number))
        number += 1
    return n


cdef inline char *copy_some(const Slab *slab, const Part *part, uint32_t *number, uint32_t most,
                            char *to) noexcept nogil:
    """Copies up to `most` rows from slot number `number` on, and moves that behind them; where they
    end."""
    cdef bint whole = part.rows == part.used    # no holes: chunk by chunk, at the speed of memory
    cdef uint32_t slot, n, ahead
    while most and number[0] < part.used:
        slot = slot_of(slab, number[0])
        n = 1
        if whole:
            n = min(min(most, part.used - number[0]), slab.chunk_rows - number[0] % slab.chunk_rows)
            if n < part.used - number[0]:       # the processor itself looks no further than a page
                for ahead in range(<uint32_t>AHEAD_LINES):
                    fetch(row_at(slab, part, slot_of(slab, number[0] + n)) + ahead * 64)
        elif not holds_row(slab, part, slot):
            number[0] += 1
            continue
        memcpy(to, row_at(slab, part, slot), n * <uint64_t>slab.stride)
        to += n * <uint64_t>slab.stride
        number[0] += n
        most -= n
    return to


cdef inline int put_rows(Shard *shard, Table *table, uint32_t fragment, const char *rows,
                         uint64_t count) noexcept nogil:
    """Puts rows, over those of the same keys; 0, -1 = no memory, -2 = a key of another fragment."""
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef uint64_t i, key, hashed
    cdef char *row
    for i in range(count):
        memcpy(&key, rows, KEY_BYTES)
        hashed = hash_key(key)
        if fragment_of_hash(hashed, shard.frag_num) != fragment:
            return -2
        row = part_find(slab, part, key, <uint32_t>hashed)
        if row == NULL:
            row = part_place(slab, part, <uint32_t>hashed)
            if row == NULL:
                return -1
        memcpy(row, rows, slab.stride)
        rows += slab.stride
    return 0


cdef inline void put_version(Table *table, uint32_t fragment, uint64_t version,
                             uint64_t deleted) noexcept nogil:
    """Lets a part's changes be counted from there on, or from more."""
    cdef Slab *slab = &table.slab
    slab.parts[fragment].version = max(slab.parts[fragment].version, version)
    if slab.deleted != NULL:
        slab.deleted[fragment] = max(slab.deleted[fragment], deleted)
