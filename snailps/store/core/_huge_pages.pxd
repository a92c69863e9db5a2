# Memory from the system: regions of huge pages, the next one touched before it is needed.
#
#   mmap -> region (2 MiB boundary, huge pages wanted) -> the arena that cuts it
#   spare_order -> a thread maps and touches the next region, then ends -> spare_take
#
# A page's first touch costs its clearing: 0.1 to 0.3 ms a huge page, and 5 ms in a virtual machine
# whose host has to find the memory first.  A push must not wait for that, so a thread does it that
# lives as long as one region takes.  Until it is done the region is the thread's alone, from
# `spare_take` on its owner's: nothing is shared but two flags.  Knows no rows, keys or indices.
from libc.stdint cimport uint64_t, uintptr_t

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
    int start_thread "snail_start"(pthread_t *thread, void *(*run)(void *) noexcept nogil,
                                   void *argument) noexcept nogil
    int pthread_join(pthread_t thread, void **result) noexcept nogil
    int load_flag "snail_load"(int *flag) noexcept nogil
    void store_flag "snail_store"(int *flag, int value) noexcept nogil

cdef enum:
    HUGE_BYTES = 2 << 20
    PAGE_BYTES = 4 << 10            # the smallest there is, where huge ones are not to be had
    REGION_HEAD = 64                # of a region, for its list

cdef struct Region:                 # heads each region
    Region *next
    uint64_t length

cdef struct Spare:                  # the region after this one
    pthread_t thread
    bint ordered                    # a thread was started and is not joined yet
    int done                        # by the thread: `region` is touched, or NULL
    int stop                        # by the owner: leave the rest untouched
    uint64_t length
    Region *region


cdef inline Region *region_map(uint64_t length, bint huge) noexcept nogil:
    """Zeros, `length` bytes (a multiple of 2 MiB) on a 2 MiB boundary; or NULL.

    `huge` asks for huge pages; else it is as the system likes it, small ones mostly.
    """
    cdef char *raw = <char *>mmap(NULL, length + HUGE_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef uint64_t head
    cdef Region *region
    if raw == <char *>-1:
        return NULL
    head = (HUGE_BYTES - <uintptr_t>raw % HUGE_BYTES) % HUGE_BYTES
    if head:
        munmap(raw, head)
    munmap(raw + head + length, HUGE_BYTES - head)
    if huge:
        want_huge_pages(raw + head, length)
    region = <Region *>(raw + head)
    region.next = NULL
    region.length = length
    return region


cdef inline void *_prepare(void *argument) noexcept nogil:
    """The thread: maps the spare region and touches every page of it."""
    cdef Spare *spare = <Spare *>argument
    cdef volatile char *page
    cdef uint64_t at = PAGE_BYTES           # the head has touched the first one
    spare.region = region_map(spare.length, True)
    if spare.region != NULL:
        page = <volatile char *>spare.region
        while at < spare.length and not load_flag(&spare.stop):
            page[at] = 0
            at += PAGE_BYTES
    store_flag(&spare.done, 1)
    return NULL


cdef inline void spare_order(Spare *spare, uint64_t length) noexcept nogil:
    """Starts making a spare region, unless one is there or being made.

    Some 30 us; without a thread there is no spare, and the arena maps what it needs.
    """
    if spare.ordered:
        return
    spare.length = length
    spare.done = 0
    spare.stop = 0
    spare.ordered = start_thread(&spare.thread, _prepare, spare) == 0


cdef inline bint spare_is_late(Spare *spare) noexcept nogil:
    """Whether a spare region is being made and not ready."""
    return spare.ordered and not load_flag(&spare.done)


cdef inline Region *spare_take(Spare *spare, uint64_t length, bint wait) noexcept nogil:
    """The spare region, if it has `length` bytes and is ready (or `wait` is set); else NULL."""
    if not spare.ordered or spare.length < length or not (wait or load_flag(&spare.done)):
        return NULL
    pthread_join(spare.thread, NULL)
    spare.ordered = False
    return spare.region


cdef inline void spare_end(Spare *spare) noexcept nogil:
    """Gives the spare region back; waits for one huge page's touch at most."""
    cdef Region *region
    store_flag(&spare.stop, 1)
    region = spare_take(spare, 0, True)
    if region != NULL:
        munmap(region, region.length)
