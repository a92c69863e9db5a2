# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What a client knows of the key lists that a shard remembers: see _key_list_directory.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from snailps.transport._frame cimport LISTS, LISTS_BYTES

cdef enum:
    TRY_ONE_MORE = 16               # lists, after which a shard that was full is asked to keep another


cdef void lists_clear(Lists *lists) noexcept nogil:
    memset(lists, 0, sizeof(Lists))


cdef uint32_t lists_place(Lists *lists, uint64_t digest, uint32_t keys_bytes,
                          bint *known) noexcept nogil:
    # It looks at all places, a microsecond for a part of 64 KiB.
    cdef uint32_t i, found = NO_PLACE, empty = NO_PLACE, there = 0
    cdef ListPlace *place
    lists.clock += 1
    for i in range(lists.num):
        place = &lists.places[i]
        if place.digest == digest:
            # Not known yet: this part could be served before the one that brings the list.
            known[0] = place.known
            if not place.known:
                return NO_PLACE
            place.used = lists.clock
            place.open += 1
            return i
        if place.digest == 0 and place.open == 0:
            empty = i
            continue
        there += 1
        if place.open == 0 and (found == NO_PLACE or place.used < lists.places[found].used):
            found = i
    known[0] = False
    if lists.full and lists.clock % TRY_ONE_MORE == 0:
        lists.full += 1
    if (lists.full == 0 or there < lists.full) and lists.bytes + keys_bytes <= LISTS_BYTES:
        if empty != NO_PLACE:
            found = empty
        elif lists.num < LISTS:
            found = lists.num
            lists.num += 1
    if found == NO_PLACE \
            or lists.bytes - lists.places[found].keys_bytes + keys_bytes > LISTS_BYTES:
        return NO_PLACE
    place = &lists.places[found]
    lists.bytes += keys_bytes - <uint64_t>place.keys_bytes
    place.digest = digest
    place.known = False
    place.used = lists.clock
    place.keys_bytes = keys_bytes
    place.open = 1
    return found


cdef void lists_release(Lists *lists, uint32_t place, bint refused) noexcept nogil:
    if place == NO_PLACE or lists.places[place].open == 0:
        return
    lists.places[place].open -= 1
    lists.places[place].known = not refused and lists.places[place].digest != 0
    if refused:
        lists.places[place].digest = 0
        lists.bytes -= lists.places[place].keys_bytes
        lists.places[place].keys_bytes = 0


cdef void lists_full(Lists *lists) noexcept nogil:
    cdef uint32_t i, there = 0
    for i in range(lists.num):
        if lists.places[i].known and lists.places[i].digest:
            there += 1
    lists.full = max(there, <uint32_t>1)
