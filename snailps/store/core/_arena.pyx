# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Memory of one shard: regions of huge pages, the next one touched before it is needed.

    mmap -> region (2 MiB boundary, huge pages wanted) -> pieces and blocks, taken back for re-use
    region half used -> a thread maps and touches the next one, makes pages huge that are not, ends

The first touch of a page is slow (docs/design/rows-in-memory.md), so a thread does it and no push waits.
Until the region is touched only this thread uses it, from `_spare_take` on only the arena does; they
share two flags.

Where rows come faster than the thread makes pages, small pages are used meanwhile, which the next
thread has the kernel gather into huge ones: each access to a small page of a large table walks the
page table.  Nothing here locks: an arena belongs to one shard's thread.  Must not know rows, keys or
indices.
"""

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int prot, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS

cdef extern from *:
    """
    #include <pthread.h>
    #include <signal.h>
    #include <sys/mman.h>
    /* Best effort: a kernel without transparent huge pages gives plain ones. */
    static inline void snail_want_huge_pages(void *address, size_t length) {
    #ifdef MADV_HUGEPAGE
        (void)madvise(address, length, MADV_HUGEPAGE);
    #else
        (void)address; (void)length;
    #endif
    }
    #ifndef MADV_COLLAPSE
    #define MADV_COLLAPSE 25    /* Linux 6.1; before, the kernel's own thread does it some time */
    #endif
    static inline void snail_make_huge(void *address, size_t length) {
        snail_want_huge_pages(address, length);
        (void)madvise(address, length, MADV_COLLAPSE);
    }
    #define SNAIL_STACK (256 << 10)
    /* 0, or an error number.  Signals are for the threads that expect them. */
    static inline int snail_start(pthread_t *thread, void *(*run)(void *), void *argument) {
        pthread_attr_t attributes;
        sigset_t all, before;
        int failed = pthread_attr_init(&attributes);
        if (failed) return failed;
        (void)pthread_attr_setstacksize(&attributes, SNAIL_STACK);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        failed = pthread_create(thread, &attributes, run, argument);
        pthread_sigmask(SIG_SETMASK, &before, 0);
        pthread_attr_destroy(&attributes);
        return failed;
    }
    #define snail_load(flag) __atomic_load_n(flag, __ATOMIC_ACQUIRE)
    #define snail_store(flag, value) __atomic_store_n(flag, value, __ATOMIC_RELEASE)
    """
    ctypedef struct pthread_t:      # any size: never looked into
        pass
    void want_huge_pages "snail_want_huge_pages"(void *address, size_t length) noexcept nogil
    void make_huge "snail_make_huge"(void *address, size_t length) noexcept nogil
    int start_thread "snail_start"(pthread_t *thread, void *(*run)(void *) noexcept nogil,
                                   void *argument) noexcept nogil
    int pthread_join(pthread_t thread, void **result) noexcept nogil
    int load_flag "snail_load"(int *flag) noexcept nogil
    void store_flag "snail_store"(int *flag, int value) noexcept nogil

cdef enum:
    HUGE_BYTES = 2 << 20
    PAGE_BYTES = 4 << 10            # the smallest there is, where huge ones are not to be had
    REGION_HEAD = 64                # of a region, for its list
    REGION_MIN = HUGE_BYTES         # all that a small shard takes
    REGION_MAX = 16 << 20           # up to 1.5 of them are touched ahead

cdef struct Region:                 # heads each region
    Region *next
    Region *next_small              # of those with small pages
    uint64_t length

cdef enum:                          # Spare.done, set by the thread
    SPARE_READY = 1                 # `region` is touched, or NULL
    SPARE_ENDED = 2                 # ... and small pages are gathered

cdef struct Spare:
    pthread_t thread
    bint ordered                    # a thread was started and is not joined yet
    bint taken                      # its region was
    int done
    int stop                        # set by the owner: leave the rest as it is
    uint64_t length
    Region *region
    Region *small                   # in use, but nothing here looks at their heads


# --- regions -------------------------------------------------------------------------------------

cdef Region *_region_map(uint64_t length, bint huge) noexcept nogil:
    """Zeros, `length` bytes (a multiple of 2 MiB) on a 2 MiB boundary; or NULL.

    Without `huge` the system decides on huge pages, mostly against.
    """
    cdef char *raw = <char *>mmap(NULL, length + HUGE_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef uint64_t head
    cdef Region *region
    if raw == <char *>-1:
        return NULL
    # Trim the lower end where possible: the system maps downwards, so regions become neighbours, which
    # count as one of the 65,530 maps that a process may have.
    head = HUGE_BYTES - <uintptr_t>raw % HUGE_BYTES
    munmap(raw, head)
    if head < HUGE_BYTES:
        munmap(raw + head + length, HUGE_BYTES - head)
    if huge:
        want_huge_pages(raw + head, length)
    region = <Region *>(raw + head)
    region.next = NULL
    region.length = length
    return region


cdef void *_prepare(void *argument) noexcept nogil:
    """The thread: map the spare region and touch every page of it."""
    cdef Spare *spare = <Spare *>argument
    cdef volatile char *page
    cdef uint64_t at = PAGE_BYTES           # the head has touched the first one
    spare.region = _region_map(spare.length, True)
    if spare.region != NULL:
        page = <volatile char *>spare.region
        while at < spare.length and not load_flag(&spare.stop):
            page[at] = 0
            at += PAGE_BYTES
    store_flag(&spare.done, SPARE_READY)
    while spare.small != NULL and not load_flag(&spare.stop):
        make_huge(spare.small, spare.small.length)
        spare.small = spare.small.next_small
    store_flag(&spare.done, SPARE_ENDED)
    return NULL


cdef void _spare_order(Arena *arena, uint64_t length) noexcept nogil:
    """Start making a spare region, unless one is there or being made.

    Some 30 us; without a thread there is no spare, and the arena maps what it needs.
    """
    cdef Spare *spare = arena.spare
    if spare == NULL:
        spare = arena.spare = <Spare *>calloc(1, sizeof(Spare))
    if spare == NULL:
        return
    if spare.ordered and spare.taken and load_flag(&spare.done) == SPARE_ENDED:
        pthread_join(spare.thread, NULL)
        spare.ordered = False
    if spare.ordered:
        return
    spare.length = length
    spare.done = 0
    spare.stop = 0
    spare.taken = False
    spare.small = arena.small
    spare.ordered = start_thread(&spare.thread, _prepare, spare) == 0
    if spare.ordered:
        arena.small = NULL


cdef bint _spare_is_late(const Arena *arena) noexcept nogil:
    """Whether a spare region is not ready yet, or its thread is still at small pages."""
    cdef int done
    if arena.spare == NULL or not arena.spare.ordered:
        return False
    done = load_flag(&arena.spare.done)
    return done == 0 or (arena.spare.taken and done != SPARE_ENDED)


cdef Region *_spare_take(Arena *arena, uint64_t length, bint wait) noexcept nogil:
    """The spare region, if it has `length` bytes and is ready (or `wait` is set); else NULL."""
    cdef Spare *spare = arena.spare
    cdef Region *region
    if spare == NULL or not spare.ordered or spare.length < length \
            or not (wait or load_flag(&spare.done)):
        return NULL
    if wait:
        pthread_join(spare.thread, NULL)
        spare.ordered = False
    region = NULL if spare.taken else spare.region
    spare.taken = True
    return region


cdef uint64_t _usual_region(const Arena *arena) noexcept nogil:
    """Bytes of the next region: an eighth of the shard's, within bounds."""
    cdef uint64_t eighth = arena.reserved // 8 // HUGE_BYTES * HUGE_BYTES
    return min(max(eighth, <uint64_t>REGION_MIN), <uint64_t>REGION_MAX)


cdef Region *_new_region(Arena *arena, uint64_t room) noexcept nogil:
    """A region for a piece of `room` bytes, the spare one if possible; NULL = no memory."""
    cdef uint64_t needed = (room + REGION_HEAD + HUGE_BYTES - 1) // HUGE_BYTES * HUGE_BYTES
    cdef Region *region = _spare_take(arena, needed, False)
    if region == NULL and _spare_is_late(arena) and not arena.patient:
        # This thread touches these pages itself: small ones, as few as possible.
        region = _region_map(needed, False)
        if region != NULL:
            region.next_small = arena.small
            arena.small = region
    elif region == NULL:
        region = _region_map(max(needed, _usual_region(arena)), True)
    if region == NULL:
        region = _spare_take(arena, needed, True)
    if region != NULL:
        region.next = arena.regions
        arena.regions = region
        arena.reserved += region.length
    return region


# --- pieces and blocks ---------------------------------------------------------------------------

cdef uint32_t block_class(uint64_t length) noexcept nogil:
    cdef uint32_t c = 0
    while (<uint64_t>BLOCK_MIN << c) < length:
        c += 1
    return c


cdef void arena_give(Arena *arena, char *piece, uint64_t length) noexcept nogil:
    cdef uint32_t c
    cdef FreeBlock *block
    while length >= BLOCK_MIN:
        c = 0
        while c + 1 < BLOCK_CLASSES and (<uint64_t>BLOCK_MIN << (c + 1)) <= length:
            c += 1
        block = <FreeBlock *>piece
        block.next = arena.free[c]
        arena.free[c] = block
        piece += <uint64_t>BLOCK_MIN << c
        length -= <uint64_t>BLOCK_MIN << c


cdef int _by_place(const void *one, const void *other) noexcept nogil:
    cdef const char *a = (<const Piece *>one).at
    cdef const char *b = (<const Piece *>other).at
    return (a > b) - (a < b)


cdef void arena_merge(Arena *arena, const Piece *pieces, uint64_t n) noexcept nogil:
    cdef uint64_t count = n
    cdef uint64_t at, first
    cdef uint32_t c
    cdef FreeBlock *block
    cdef Piece *all
    for c in range(BLOCK_CLASSES):
        block = arena.free[c]
        while block != NULL:
            count += 1
            block = block.next
    all = <Piece *>malloc(max(count, <uint64_t>1) * sizeof(Piece))
    if all == NULL:
        for at in range(n):
            arena_give(arena, pieces[at].at, pieces[at].length)
        return
    memcpy(all, pieces, n * sizeof(Piece))
    at = n
    for c in range(BLOCK_CLASSES):
        block = arena.free[c]
        while block != NULL:
            all[at].at = <char *>block
            all[at].length = <uint64_t>BLOCK_MIN << c
            at += 1
            block = block.next
        arena.free[c] = NULL
    qsort(all, count, sizeof(Piece), _by_place)
    while count:                        # highest address first: what is given last is taken first
        first = count - 1
        while first and all[first - 1].at + all[first - 1].length == all[first].at:
            all[first - 1].length += all[first].length
            first -= 1
        arena_give(arena, all[first].at, all[first].length)
        count = first
    free(all)


cdef char *arena_cut(Arena *arena, uint64_t length) noexcept nogil:
    cdef uint64_t left = <uint64_t>(arena.end - arena.bump)
    cdef Region *region
    cdef char *piece
    if length > left:
        region = _new_region(arena, length)
        if region == NULL:
            return NULL
        # Continue in the region with more left; the rest of the other goes on the free lists.
        piece = <char *>region + REGION_HEAD
        if region.length - REGION_HEAD - length < left:
            arena_give(arena, piece + length, region.length - REGION_HEAD - length)
            return piece
        arena_give(arena, arena.bump, left)
        arena.bump = piece
        arena.end = <char *>region + region.length
    piece = arena.bump
    arena.bump += length
    if not arena.patient and <uint64_t>(arena.end - arena.bump) < _usual_region(arena) // 2:
        _spare_order(arena, _usual_region(arena))
    return piece


cdef char *arena_block(Arena *arena, uint32_t c) noexcept nogil:
    cdef uint32_t larger = c
    cdef FreeBlock *block
    if c >= BLOCK_CLASSES:
        return NULL
    while larger < BLOCK_CLASSES and arena.free[larger] == NULL:
        larger += 1
    if larger == BLOCK_CLASSES:
        return arena_cut(arena, <uint64_t>BLOCK_MIN << c)
    block = arena.free[larger]
    arena.free[larger] = block.next
    if larger > c:
        arena_give(arena, <char *>block + (<uint64_t>BLOCK_MIN << c),
                   (<uint64_t>BLOCK_MIN << larger) - (<uint64_t>BLOCK_MIN << c))
    return <char *>block


cdef char *arena_free_block(Arena *arena, uint64_t piece, uint64_t *length) noexcept nogil:
    cdef uint32_t c = block_class(piece)
    cdef FreeBlock *block
    while c < BLOCK_CLASSES and (
            arena.free[c] == NULL
            or (<uint64_t>BLOCK_MIN << c) % piece > <uint64_t>BLOCK_MIN << c >> 4):
        c += 1
    if c == BLOCK_CLASSES:
        return NULL
    block = arena.free[c]
    arena.free[c] = block.next
    length[0] = <uint64_t>BLOCK_MIN << c
    return <char *>block


cdef uint64_t arena_used(const Arena *arena) noexcept nogil:
    return arena.reserved - <uint64_t>(arena.end - arena.bump)


cdef void arena_end(Arena *arena) noexcept nogil:
    cdef Region *region
    cdef Region *after
    if arena.spare != NULL:
        store_flag(&arena.spare.stop, 1)        # waits for one huge page's touch at most
        region = _spare_take(arena, 0, True)
        if region != NULL:
            munmap(region, region.length)
        free(arena.spare)
        arena.spare = NULL
    region = arena.regions
    while region != NULL:
        after = region.next
        munmap(region, region.length)
        region = after
    arena.regions = NULL
