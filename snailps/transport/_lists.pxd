# cython: cdivision=True
# What a client knows of the key lists that a shard remembers for its connection.
#
#   digest of a part's keys -> the place where the shard has that list, or one where it may put it
#
# The client alone decides what is where; the shard does as it is told and checks the digest.  A
# list is named only once the part that brought it is answered, and its place is not used again
# while a part that names it is not: so whatever order the shard serves parts in, it finds the list
# that was meant.  A new connection begins with nothing.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from snailps.transport._frame cimport LISTS, LISTS_BYTES

cdef enum:
    WAYS = 8                        # places that a list may be in
    NO_PLACE = 0xFFFFFFFF


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


cdef inline void lists_clear(Lists *lists) noexcept nogil:
    memset(lists, 0, sizeof(Lists))


cdef inline uint32_t lists_place(Lists *lists, uint64_t digest, uint32_t keys_bytes,
                                 bint *known) noexcept nogil:
    """A place for the list, held until `lists_release`; NO_PLACE = it cannot be kept."""
    cdef uint32_t first = <uint32_t>(digest >> 40) % (LISTS // WAYS) * WAYS
    cdef uint32_t i, found = NO_PLACE
    cdef ListPlace *place
    lists.clock += 1
    for i in range(first, first + WAYS):
        place = &lists.places[i]
        if place.digest == digest:
            # Not known yet: this part could be served before the one that brings the list.
            known[0] = place.known
            if not place.known:
                return NO_PLACE
            place.used = lists.clock
            place.open += 1
            return i
        if place.open == 0 and (found == NO_PLACE or place.used < lists.places[found].used) \
                and lists.bytes - place.keys_bytes + keys_bytes <= LISTS_BYTES:
            found = i
    known[0] = False
    if found != NO_PLACE:
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
