# Buffers between frames and a non-blocking socket, and waiting for events of several.
#
#   frames -> buffer -> buffer_send -> socket          buffer_receive <- socket
#
# For the shard's loop and the client.  Knows neither frames nor connections.  Each function makes one system
# call, so the call through a pointer from another module costs nothing that can be measured.
from libc.stdint cimport uint32_t, uint64_t

from snailps.transport._posix cimport epoll_event

cdef enum:
    SOCKET_GONE = -1            # closed by the peer, or broken
    SOCKET_BUSY = 0             # takes nothing now, or has nothing now


cdef struct Buffer:             # data[start:end] is held; zero when it is new
    char *data
    size_t cap
    size_t start
    size_t end


cdef inline size_t buffer_held(const Buffer *b) noexcept nogil:
    return b.end - b.start


# Room for `need` bytes after `end`, which is a multiple of 8 then; False = no memory.
cdef bint buffer_reserve(Buffer *b, size_t need) noexcept nogil

# One send of what is held; bytes that went, or SOCKET_BUSY, SOCKET_GONE.  Counts in `moved`.
cdef ssize_t buffer_send(Buffer *b, int fd, uint64_t *moved) noexcept nogil

# One recv of `most` bytes at most into the room after `end`; bytes that came, or SOCKET_BUSY,
# SOCKET_GONE.  Counts in `moved`.
cdef ssize_t buffer_receive(Buffer *b, int fd, size_t most, uint64_t *moved) noexcept nogil

cdef void buffer_free(Buffer *b) noexcept nogil

cdef struct Looks:              # zero when it is new
    uint32_t skip               # how many further waits sleep at once, because looking was in vain
    uint32_t last               # what `skip` was set to the last time


# epoll_wait that looks for a while before it sleeps, where that has been of use.
cdef int wait_events(int epoll_fd, epoll_event *events, int most, int timeout_ms,
                     Looks *looks) noexcept nogil
