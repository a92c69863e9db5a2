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

from snailps.transport._frame cimport LISTS

cdef enum:
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
    uint32_t num                    # places in use, or empty again: the first ones
    uint32_t full                   # lists with which the shard kept no more; 0 = it keeps them all


cdef void lists_clear(Lists *lists) noexcept nogil
# A place for the list, held until `lists_release`; NO_PLACE = it cannot be kept.
cdef uint32_t lists_place(Lists *lists, uint64_t digest, uint32_t keys_bytes,
                          bint *known) noexcept nogil
# A part that named the place is answered; if refused, the shard may not have the list.
cdef void lists_release(Lists *lists, uint32_t place, bint refused) noexcept nogil
# The shard kept no more than it has.
cdef void lists_full(Lists *lists) noexcept nogil
