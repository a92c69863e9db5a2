# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Error feedback: what rounding to a narrow wire type left unsent: see _error_feedback.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from snailps.abi._table_hash cimport table_hash

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef extern from "<sys/mman.h>" nogil:
    enum: MADV_HUGEPAGE
    int madvise(void *start, size_t size, int advice)

cdef enum:
    OWING_BYTES_MAX = 256 << 20     # rows of one table
    OWING_CHUNK = 2 << 20           # bytes of rows taken at a time: a huge page


cdef void owing_free(Owing *owing) noexcept nogil:
    cdef Owing *following
    cdef uint32_t i
    while owing != NULL:
        following = owing.next
        for i in range(owing.chunk_num):
            free(owing.chunks[i])
        free(owing.chunks)
        free(owing.slots)
        free(owing)
        owing = following


cdef Owing *owing_of(Owing **first, uint32_t table, uint32_t floats) noexcept nogil:
    cdef Owing *owing = first[0]
    while owing != NULL:
        if owing.table == table and owing.floats == floats:
            return owing
        owing = owing.next
    owing = <Owing *>calloc(1, sizeof(Owing))
    if owing == NULL:
        return NULL
    owing.table = table
    owing.floats = floats
    owing.chunk_rows = max(<uint32_t>OWING_CHUNK // (4 * floats), <uint32_t>1)
    owing.row_max = max(<uint32_t>OWING_BYTES_MAX // (4 * floats), <uint32_t>1)
    owing.next = first[0]
    first[0] = owing
    return owing


cdef bint _grow_index(Owing *owing) noexcept nogil:
    """Doubles the index; False = no memory, nothing changed."""
    cdef uint64_t size = (owing.mask + 1) * 2 if owing.slots != NULL else 1024
    cdef OwingSlot *slots = <OwingSlot *>calloc(size, sizeof(OwingSlot))
    cdef uint64_t i, at
    if slots == NULL:
        return False
    if owing.slots != NULL:
        for i in range(owing.mask + 1):
            if owing.slots[i].row:
                at = table_hash(owing.slots[i].key) & (size - 1)
                while slots[at].row:
                    at = (at + 1) & (size - 1)
                slots[at] = owing.slots[i]
    free(owing.slots)
    owing.slots = slots
    owing.mask = size - 1
    return True


cdef float *_new_row(Owing *owing, uint64_t at, uint64_t key) noexcept nogil:
    """A row of zeros for the key at an empty slot; NULL = no memory."""
    cdef char **grown
    cdef uint32_t row = owing.row_num
    if row == owing.chunk_num * owing.chunk_rows:
        grown = <char **>realloc(owing.chunks, (owing.chunk_num + 1) * sizeof(char *))
        if grown == NULL:
            return NULL
        owing.chunks = grown
        if posix_memalign(<void **>&grown[owing.chunk_num], OWING_CHUNK,
                          max(<uint32_t>OWING_CHUNK, 4 * owing.floats)) != 0:
            return NULL
        madvise(grown[owing.chunk_num], OWING_CHUNK, MADV_HUGEPAGE)
        owing.chunk_num += 1
    owing.row_num += 1
    owing.slots[at].key = key
    owing.slots[at].row = row + 1
    memset(owing_at(owing, row), 0, 4 * <uint64_t>owing.floats)
    return owing_at(owing, row)


cdef float *owing_new_row(Owing *owing, uint64_t key) noexcept nogil:
    cdef uint64_t at
    if owing.slots == NULL or owing.row_num * <uint64_t>4 > (owing.mask + 1) * 3:
        if not _grow_index(owing):
            return NULL
    if owing.row_num == owing.row_max:
        memset(owing.slots, 0, (owing.mask + 1) * sizeof(OwingSlot))
        owing.row_num = 0
    at = table_hash(key) & owing.mask
    while owing.slots[at].row:
        at = (at + 1) & owing.mask
    return _new_row(owing, at, key)
