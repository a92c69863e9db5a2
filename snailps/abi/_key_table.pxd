# Hash tables of keys in memory: linear probing in two forms, a power of two of slots that is never full.
#
#   entries   a key and its value in each slot; value 0 = the slot is empty
#   numbers   4 bytes a slot: the index + 1 of a key in the caller's array; 0 = the slot is empty
#
# Any uint64 may be a key, 0 and 2^64 - 1 included: a slot is empty by its value or number, never by its key.
# The caller owns the memory and decides its size.  Slots are chosen by `table_hash`, except where their order reaches
# files or the wire.  Some tables are not made of these: rows by tag (`_slab`), rows in a file, a cache of
# sets, words, numbers of a batch.  Each of them has a layout that makes its own lookups faster.
from libc.stdint cimport uint32_t, uint64_t

from snailps.abi._table_hash cimport table_hash


cdef struct Entry:
    uint64_t key
    uint64_t value


cdef inline Entry *entry_of(Entry *entries, uint64_t mask, uint64_t hashed, uint64_t key) noexcept nogil:
    """The entry of a key, or the empty one where it belongs."""
    cdef uint64_t at = hashed & mask
    while entries[at].value and entries[at].key != key:
        at = (at + 1) & mask
    return &entries[at]


cdef inline uint32_t number_of(const uint32_t *numbers, uint64_t mask, const uint64_t *keys,
                               uint64_t key, uint64_t *slot) noexcept nogil:
    """The number + 1 of a key, and its slot; or 0, and the slot where it belongs."""
    cdef uint64_t at = table_hash(key) & mask
    cdef uint32_t number = numbers[at]
    while number and keys[number - 1] != key:
        at = (at + 1) & mask
        number = numbers[at]
    slot[0] = at
    return number


cdef inline uint64_t slots_for(uint64_t keys) noexcept nogil:
    """Number of slots that `keys` keys fill by half at most."""
    cdef uint64_t slots = 16
    while slots < 2 * keys:
        slots *= 2
    return slots
