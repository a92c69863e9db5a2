# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Error feedback: what rounding to a narrow wire type left unsent: see _error_feedback.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from snailps.abi._key_table cimport Entry, entry_of
from snailps.abi._table_hash cimport table_hash

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef extern from "<sys/mman.h>" nogil:
    enum: MADV_HUGEPAGE
    int madvise(void *start, size_t size, int advice)

cdef enum:
    OWING_CHUNK = 2 << 20           # bytes of rows taken at a time: a huge page

cdef uint64_t OWING_BYTES_MAX = 512 << 20   # of all tables


cdef void owings_init(Owings *all) noexcept nogil:
    memset(all, 0, sizeof(Owings))
    all.bytes_max = OWING_BYTES_MAX


cdef void _drop(Owing *owing) noexcept nogil:
    cdef uint32_t i
    for i in range(owing.chunk_num):
        free(owing.chunks[i])
    free(owing.chunks)
    free(owing.slots)
    owing.all.bytes -= _row_bytes(owing) * owing.row_num
    owing.chunks = NULL
    owing.slots = NULL
    owing.chunk_num = owing.row_num = 0
    owing.mask = 0


cdef void owings_drop(Owings *all) noexcept nogil:
    cdef Owing *owing = all.first
    while owing != NULL:
        _drop(owing)
        owing = owing.next


cdef void owings_free(Owings *all) noexcept nogil:
    cdef Owing *after
    owings_drop(all)
    while all.first != NULL:
        after = all.first.next
        free(all.first)
        all.first = after


cdef Owing *owing_of(Owings *all, uint32_t table, uint32_t floats) noexcept nogil:
    cdef Owing *owing = all.first
    while owing != NULL and (owing.table != table or owing.floats != floats):
        owing = owing.next
    if owing == NULL:
        owing = <Owing *>calloc(1, sizeof(Owing))
        if owing == NULL:
            return NULL
        owing.all = all
        owing.table = table
        owing.floats = floats
        owing.chunk_rows = max(<uint32_t>OWING_CHUNK // (4 * floats), <uint32_t>1)
        owing.next = all.first
        all.first = owing
    all.uses += 1
    owing.used = all.uses
    return owing


cdef inline uint64_t _row_bytes(const Owing *owing) noexcept nogil:
    """With its share of the index: 21 to 43 bytes, by how full that is."""
    return 4 * <uint64_t>owing.floats + 2 * sizeof(Entry)


cdef void _make_room(Owing *owing) noexcept nogil:
    """Drops residues until one more row is within the limit: of other tables first."""
    cdef Owings *all = owing.all
    cdef Owing *other
    cdef Owing *oldest
    while all.bytes + _row_bytes(owing) > all.bytes_max:
        oldest = NULL
        other = all.first
        while other != NULL:
            if other != owing and other.row_num and (oldest == NULL or other.used < oldest.used):
                oldest = other
            other = other.next
        if oldest == NULL:
            if owing.row_num:           # begins anew, in the same memory
                memset(owing.slots, 0, (owing.mask + 1) * sizeof(Entry))
                all.bytes -= _row_bytes(owing) * owing.row_num
                owing.row_num = 0
            return
        _drop(oldest)


cdef bint _grow_index(Owing *owing) noexcept nogil:
    """Doubles the index; False = no memory, nothing changed."""
    cdef uint64_t size = (owing.mask + 1) * 2 if owing.slots != NULL else 1024
    cdef Entry *slots = <Entry *>calloc(size, sizeof(Entry))
    cdef Entry *old
    cdef uint64_t i
    if slots == NULL:
        return False
    if owing.slots != NULL:
        for i in range(owing.mask + 1):
            old = &owing.slots[i]
            if old.value:
                entry_of(slots, size - 1, table_hash(old.key), old.key)[0] = old[0]
    free(owing.slots)
    owing.slots = slots
    owing.mask = size - 1
    return True


cdef float *owing_new_row(Owing *owing, uint64_t key) noexcept nogil:
    cdef char **grown
    cdef Entry *entry
    cdef uint32_t row
    if owing.slots == NULL or owing.row_num * <uint64_t>4 > (owing.mask + 1) * 3:
        if not _grow_index(owing):
            return NULL
    _make_room(owing)
    row = owing.row_num
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
    owing.all.bytes += _row_bytes(owing)
    entry = entry_of(owing.slots, owing.mask, table_hash(key), key)
    entry.key = key
    entry.value = row + 1
    memset(owing_at(owing, row), 0, 4 * <uint64_t>owing.floats)
    return owing_at(owing, row)
