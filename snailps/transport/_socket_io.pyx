# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Buffers of a socket, and waiting for events: see _socket_io.pxd."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from snailps.transport._awake cimport now_s
from snailps.transport._posix cimport (
    MSG_DONTWAIT, MSG_NOSIGNAL, c_recv, c_send, epoll_event, epoll_wait, sched_yield,
)

# Sleeping and being woken costs both sides more than a short wait.  So look for a while before sleeping, and
# let other threads of the same core work meanwhile.  Where looking was in vain, or other threads took the core
# for long, the next waits sleep at once: a few after the first time, more each time that it happens again.
# Few at first, because an exchange in which both sides sleep and wake each other takes three times as long.
cdef enum:
    LOOK_US = 60
    LOOK_LONG_US = 600              # others have taken the core: it is busy
    VAIN_FIRST = 1                  # waits without a look,
    VAIN_MAX = 16
    LONG_FIRST = 64                 # ... and where the core is busy
    LONG_MAX = 1024


cdef bint buffer_reserve(Buffer *b, size_t need) noexcept nogil:
    cdef size_t held = b.end - b.start
    cdef size_t first = -held & 7       # where what is held is put, so that it ends aligned
    cdef size_t cap
    cdef char *grown
    if b.cap - b.end >= need and not b.end & 7 and (held or not b.start):
        return True
    # The gap in front is closed where that moves no more than twice what was taken from there since
    # the last time; else the buffer grows.
    if b.start < held // 2 or b.cap < first + held + need:
        cap = 2 * held + need + 8
        if cap > b.cap:
            grown = <char *>realloc(b.data, cap)
            if grown == NULL:
                return False
            b.data = grown
            b.cap = cap
    memmove(b.data + first, b.data + b.start, held)
    b.start = first
    b.end = first + held
    return True


cdef ssize_t buffer_send(Buffer *b, int fd, uint64_t *moved) noexcept nogil:
    cdef ssize_t sent = -1
    while sent < 0:
        sent = c_send(fd, b.data + b.start, b.end - b.start, MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0 and errno != EINTR:
            return SOCKET_BUSY if errno == EAGAIN else SOCKET_GONE
    b.start += sent
    moved[0] += sent
    if b.start == b.end:
        b.start = b.end = 0
    return sent


cdef ssize_t buffer_receive(Buffer *b, int fd, size_t most, uint64_t *moved) noexcept nogil:
    cdef ssize_t got = c_recv(fd, b.data + b.end, min(b.cap - b.end, most), MSG_DONTWAIT)
    if got < 0:
        return SOCKET_BUSY if errno == EAGAIN or errno == EINTR else SOCKET_GONE
    if got == 0:
        return SOCKET_GONE
    b.end += got
    moved[0] += got
    return got


cdef void buffer_free(Buffer *b) noexcept nogil:
    free(b.data)
    b.data = NULL
    b.cap = b.start = b.end = 0


cdef void note_look(Looks *looks, bint found, double took_s) noexcept nogil:
    """How many waits sleep at once after this look."""
    if took_s > LOOK_LONG_US * 1e-6:
        looks.last = looks.skip = min(max(4 * looks.last, <uint32_t>LONG_FIRST), <uint32_t>LONG_MAX)
    elif not found:
        if looks.last <= VAIN_MAX // 2:
            looks.last = max(2 * looks.last, <uint32_t>VAIN_FIRST)
        looks.skip = min(looks.last, <uint32_t>VAIN_MAX)
    else:
        looks.last >>= 1


cdef int wait_events(int epoll_fd, epoll_event *events, int most, int timeout_ms,
                     Looks *looks) noexcept nogil:
    cdef double begun, now
    cdef int n = 0
    if timeout_ms and looks.skip == 0:
        begun = now = now_s()
        while n == 0 and now - begun < LOOK_US * 1e-6:
            n = epoll_wait(epoll_fd, events, most, 0)
            if n == 0:
                sched_yield()
            now = now_s()
        note_look(looks, n != 0, now - begun)
        if n:
            return n
    elif timeout_ms:
        looks.skip -= 1
    return epoll_wait(epoll_fd, events, most, timeout_ms)


def skips_after(looks: int) -> int:
    """Waits that sleep at once after each of these looks, given as (found, seconds): for tests."""
    cdef Looks state = Looks(0, 0)
    skips = []
    for found, took_s in looks:
        state.skip = 0
        note_look(&state, found, took_s)
        skips.append(state.skip)
    return skips
