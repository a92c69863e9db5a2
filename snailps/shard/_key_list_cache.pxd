# cython: cdivision=True
# Key lists that a shard remembers for one connection: what a client need not send twice.
#
#   place, digest, groups and keys (checked) -> a copy -> found again by place and digest
#
# The client chooses the places (transport/client/_key_list_directory.pxd); here only the bound on
# memory is kept, and that a list is never taken for another.  Belongs to the connection and ends
# with it.
#
# What a shard spends on all its connections is bounded: each has an equal share of LISTS_BYTES_ALL.
# A list beyond it is not kept, which the reply says (`Reply.unkept`): so the client never recalls it,
# and nothing that it was told is there is ever taken away.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from snailps.transport._frame cimport LISTS, LISTS_BYTES, Group

cdef enum:
    # Of one shard: 32 KiB, 4,000 keys, for each of a thousand workers.  Lists are recalled by the push
    # of the block that pulled them; older ones rarely.
    LISTS_BYTES_ALL = 32 << 20


cdef struct AllLists:               # of a shard
    uint64_t bytes
    uint32_t connections            # that had one kept


cdef struct KeyList:
    uint64_t digest                 # 0 = nothing is here
    uint32_t groups
    uint32_t keys
    uint32_t room                   # bytes at `data`
    char *data                      # groups, then keys: both kinds of 8 bytes


cdef struct KeyLists:
    KeyList places[LISTS]
    uint64_t bytes
    AllLists *all


cdef inline void key_lists_free(KeyLists *lists) noexcept nogil:
    cdef uint32_t i
    if lists != NULL:
        for i in range(LISTS):
            free(lists.places[i].data)
        lists.all.bytes -= lists.bytes
        lists.all.connections -= 1
        free(lists)


cdef inline void _forget_list(KeyLists *lists, KeyList *at) noexcept nogil:
    lists.bytes -= at.room
    lists.all.bytes -= at.room
    free(at.data)
    at.data = NULL
    at.room = 0


cdef inline bint remember(AllLists *all, KeyLists **mine, uint32_t place, uint64_t digest,
                          const Group *groups, uint32_t group_num, const uint64_t *keys,
                          uint32_t key_num) noexcept nogil:
    """Keeps a list of one key at least; False = it is not kept, and its place is empty.

    `realloc` of nothing would give the room back, and leave the place with it.
    """
    cdef uint32_t need = 8 * (group_num + key_num)
    cdef KeyLists *lists = mine[0]
    cdef uint64_t share
    cdef KeyList *at
    cdef char *grown
    if lists == NULL:
        lists = mine[0] = <KeyLists *>calloc(1, sizeof(KeyLists))
        if lists == NULL:
            return False
        lists.all = all
        all.connections += 1
    at = &lists.places[place]
    at.digest = 0
    share = min(<uint64_t>2 * LISTS_BYTES, <uint64_t>LISTS_BYTES_ALL // all.connections)
    if lists.bytes - at.room + need > share or all.bytes - at.room + need > LISTS_BYTES_ALL:
        _forget_list(lists, at)
        return False
    # Never more than twice what the list needs: rooms that others left are not kept for small ones.
    if need > at.room or at.room // 2 > need:
        grown = <char *>realloc(at.data, need)
        if grown == NULL:
            return False
        lists.bytes = lists.bytes + need - at.room
        all.bytes = all.bytes + need - at.room
        at.data = grown
        at.room = need
    memcpy(at.data, groups, 8 * <size_t>group_num)
    memcpy(at.data + 8 * <size_t>group_num, keys, 8 * <size_t>key_num)
    at.groups = group_num
    at.keys = key_num
    at.digest = digest
    return True


cdef inline KeyList *recall(KeyLists *lists, uint32_t place, uint64_t digest) noexcept nogil:
    """The list, or NULL where it is not."""
    if lists == NULL or lists.places[place].digest != digest:
        return NULL
    return &lists.places[place]
