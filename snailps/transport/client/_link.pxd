# The client's connections: all of them (`Core`) and one (`Link`), with the requests that wait for their
# turn and the parts of them that are under way; parts out, replies in.
#
#   queue of requests -> parts of about 64 KiB, in order -> answered, in any order -> done
#   keys of a part -> narrow keys | keys; the caller's rows -> wire type -> values -> frame -> socket
#   socket -> replies, in any order -> rows to their places in the caller's array
#
# Knows neither how connections are made nor which callers wait.  All of it is used under `Core.turn`;
# what it shares with others is in `Core`, under `Core.lock`.
from libc.stdint cimport uint32_t, uint64_t

from snailps.abi._wire_types cimport WireOps
from snailps.transport._frame cimport DATA_BODY_MAX, FRAME_HEADER_BYTES
from snailps.transport._posix cimport pthread_cond_t, pthread_mutex_t
from snailps.transport._socket_io cimport Buffer, Looks
from snailps.transport.client._error_feedback cimport Owings
from snailps.transport.client._request cimport Order, Pool, Request

cdef enum:
    WINDOW = 1024                   # parts in flight per shard; a power of two
    NO_PART = WINDOW
    KEPT_MAX = 64                   # rooms kept for later parts
    IN_BYTES = DATA_BODY_MAX + FRAME_HEADER_BYTES + (256 << 10)
    TEXT_MAX = 4096
    WORDS_MAX = 512


cdef struct Part:
    Request *request                # NULL = answered, the slot is free
    uint64_t number                 # grows with every part; what the reply names
    uint32_t before                 # slots of the open parts cut before and after this one
    uint32_t after
    uint32_t start
    uint32_t count
    uint32_t group                  # the one that `start` is in
    uint64_t seq
    char *kept                      # room for values as they went out, with feedback; or NULL
    bint kept_filled                # ... and they are there: the part has gone out before


cdef struct Turn:                   # a request whose parts are still to be built
    Request *request
    uint32_t group                  # where it goes on
    uint32_t at


cdef struct Queue:
    Turn *items
    uint32_t head
    uint32_t count
    uint32_t cap


cdef struct Link:                   # the connection to one shard
    int fd                          # -1 = down
    int new_fd                      # given by the mender, -1 = none
    bint wants_mending              # for the mender to see, with `mend_at`
    bint cut                        # break the connection: a test asks for it
    double mend_at
    double up_at                    # when the present connection, or the last one, came
    double lost_at                  # since when no shard is there that answers what is asked
    uint32_t fruitless              # connections lost since one answered, or lasted
    char words[WORDS_MAX]           # with which the shard sent us elsewhere since then
    uint32_t events
    Queue queue
    Queue ahead                     # pulls that may overtake what is in the queue
    Queue clocked                   # pulls as of a clock to come, those of lower clocks first
    uint64_t reached                # clock that the shard is known to have reached
    uint32_t waiting                # open parts of `clocked`
    # Open parts are a list in the order in which they were cut, in slots of a table: one that
    # waits long for its answer holds up none of the others.
    Part parts[WINDOW]
    uint32_t free_slots[WINDOW]
    uint32_t free_count
    uint32_t oldest
    uint32_t newest
    uint32_t unwritten              # first part that this connection has not seen yet
    char *kept[KEPT_MAX]            # rooms of parts, to be used again
    uint32_t kept_num
    uint64_t cut_parts              # so far
    Buffer inp                      # IN_BYTES
    Buffer out
    uint64_t reconnects


cdef struct Core:
    pthread_mutex_t lock            # guards fresh, open_requests, done, new_fd, wants_mending, cut,
    pthread_cond_t changed          # ... stop, ended, broken and its text, drivers, driven_at, drops_owing
    pthread_cond_t mend
    pthread_mutex_t turn            # held while links are served: by the client's thread, or a caller
    pthread_cond_t idle             # ... during which that thread stands back
    uint32_t drivers                # callers that serve the links while they wait
    Looks looks                     # of drivers
    double driven_at                # when the last of them went
    int epoll_fd
    int wake_fd
    int stop
    bint ended                      # the thread takes no request any more
    int broken                      # every request fails with `text`
    bint text_is_body               # `text` is the body of a shard's ERROR
    char text[TEXT_MAX]
    uint32_t text_bytes
    Request *fresh
    Request *fresh_tail
    Link *links
    Order order
    uint32_t epoch
    double patience_s               # how long a shard may be out of reach
    uint64_t job
    uint64_t incarnation
    uint64_t seq                    # last number given to a part of a push
    const WireOps *wire
    Owings owing
    bint drops_owing                # its residues are to go: the caller asks for it
    Pool pool                       # under the GIL
    uint32_t open_parts             # of all links
    double busy_since               # the first of them was cut, or the last piece was counted
    uint64_t busy_bytes             # bytes in and out until then
    double goodput_s                # busy times so far,
    uint64_t goodput_bytes          # ... and what moved in them
    uint64_t bytes_out
    uint64_t bytes_in
    uint64_t rows_pulled
    uint64_t rows_pushed
    uint64_t batches_forgotten      # connections that ended because a shard did not know a batch
    uint64_t open_requests


# Wakes the waiting caller.  It may free the request once it sees `done`: nothing touches it afterwards.
cdef void finish_if_done(Core *core, Request *r) noexcept nogil
# Every request fails from now on; the first reason stands.
cdef void break_core(Core *core, const char *text, uint64_t text_bytes, bint is_body) noexcept nogil
# Puts a request behind the others; False = no memory.
cdef bint queue_put(Queue *q, Request *r) noexcept nogil
# Moves the last one in front of those of higher clocks, begun or not: a wait for a clock
# must not hold up what ends the clock before.
cdef void queue_by_clock(Queue *q) noexcept nogil
# The first request of the queue has all its parts.
cdef void leave_queue(Core *core, Queue *q) noexcept nogil
# Empties the table of open parts.
cdef void no_parts(Link *link) noexcept nogil
# A part is answered, or given up.
cdef void close_part(Core *core, Link *link, uint32_t slot) noexcept nogil
# Sends parts until the socket is full, the turn is over or nothing is left: 1 = more is to be sent, 0 =
# nothing is, -1 = the connection is lost.
cdef int send_some(Core *core, Link *link, uint32_t shard) noexcept nogil
# One recv and all frames that it completes; -1 = the connection is lost.
cdef int receive_some(Core *core, Link *link) noexcept nogil
