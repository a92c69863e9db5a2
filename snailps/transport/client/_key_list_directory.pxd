# cython: cdivision=True
# What a client knows of the key lists that a shard remembers for its connection.
#
#   digest of a part's keys -> the place where the shard has that list, or one where it may put it
#
# The client alone decides what is where; the shard does as it is told and checks the digest.  A
# list is named only once the part that brought it is answered, and its place is not used again
# while a part that names it is not: so whatever order the shard serves parts in, it finds the list
# that was meant.  A new connection begins with nothing.
#
# What was used longest ago is replaced first, wherever it is: pulls of a block or two lie between a
# pull and the push that recalls its lists.  When the shard keeps no more (`Reply.unkept`), a new list
# takes the place of an old one from then on, which gives back that one's memory there.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from snailps.transport._frame cimport LISTS, LISTS_BYTES

cdef enum:
    NO_PLACE = 0xFFFFFFFF
    TRY_ONE_MORE = 16               # lists, after which a shard that was full is asked to keep another


cdef struct ListPlace:
    uint64_t digest                 # 0 = empty
    uint64_t used                   # when: a count of requests for a place
    uint32_t keys_bytes
    uint32_t open                   # unanswered parts that name it
    bint known                      # a part that named it was answered well: the shard has it


cdef struct Lists:
    ListPlace places[LISTS]
    uint64_t bytes
    uint64_t clock
    uint32_t num                    # places in use, or empty again: the first ones
    uint32_t full                   # lists with which the shard kept no more; 0 = it keeps them all


cdef inline void lists_clear(Lists *lists) noexcept nogil:
    memset(lists, 0, sizeof(Lists))


cdef inline uint32_t lists_place(Lists *lists, uint64_t digest, uint32_t keys_bytes,
                                 bint *known) noexcept nogil:
    """A place for the list, held until `lists_release`; NO_PLACE = it cannot be kept.

    It looks at all places, a microsecond for a part of 64 KiB.
    """
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


cdef inline void lists_release(Lists *lists, uint32_t place, bint refused) noexcept nogil:
    """A part that named the place is answered; if refused, the shard may not have the list."""
    if place == NO_PLACE or lists.places[place].open == 0:
        return
    lists.places[place].open -= 1
    lists.places[place].known = not refused and lists.places[place].digest != 0
    if refused:
        lists.places[place].digest = 0
        lists.bytes -= lists.places[place].keys_bytes
        lists.places[place].keys_bytes = 0


cdef inline void lists_full(Lists *lists) noexcept nogil:
    """The shard kept no more than it has."""
    cdef uint32_t i, there = 0
    for i in range(lists.num):
        if lists.places[i].known and lists.places[i].digest:
            there += 1
    lists.full = max(there, <uint32_t>1)
