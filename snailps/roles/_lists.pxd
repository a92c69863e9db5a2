# cython: cdivision=True
# Key lists that a shard remembers for one connection: what a client need not send twice.
#
#   place, digest, groups and keys (checked) -> a copy -> found again by place and digest
#
# The client chooses the places (transport/_lists.pxd); here only the bound on memory is kept, and
# that a list is never taken for another.  Belongs to the connection and ends with it.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from snailps.transport._frame cimport LISTS, LISTS_BYTES, Group


cdef struct KeyList:
    uint64_t digest                 # 0 = nothing is here
    uint32_t groups
    uint32_t keys
    uint32_t room                   # bytes at `data`
    char *data                      # groups, then keys: both kinds of 8 bytes


cdef struct KeyLists:
    KeyList places[LISTS]
    uint64_t bytes


cdef inline void key_lists_free(KeyLists *lists) noexcept nogil:
    cdef uint32_t i
    if lists != NULL:
        for i in range(LISTS):
            free(lists.places[i].data)
        free(lists)


cdef inline bint remember(KeyLists **mine, uint32_t place, uint64_t digest, const Group *groups,
                          uint32_t group_num, const uint64_t *keys, uint32_t key_num) noexcept nogil:
    """Keeps a list of one key at least; False = no memory, or more than a client may keep here.

    `realloc` of nothing would give the room back, and leave the place with it.
    """
    cdef uint32_t need = 8 * (group_num + key_num)
    cdef KeyLists *lists = mine[0]
    cdef KeyList *at
    cdef char *grown
    if lists == NULL:
        lists = mine[0] = <KeyLists *>calloc(1, sizeof(KeyLists))
        if lists == NULL:
            return False
    at = &lists.places[place]
    at.digest = 0
    # Never more than twice what the list needs: so all rooms together stay within twice what the
    # client may keep here, whatever lay in them before.
    if need > at.room or at.room // 2 > need:
        if lists.bytes + need - at.room > 2 * LISTS_BYTES:
            return False
        grown = <char *>realloc(at.data, need)
        if grown == NULL:
            return False
        lists.bytes = lists.bytes + need - at.room
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
