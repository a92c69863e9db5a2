# One connection of the client to a shard (`Link`) and what all of them share (`Core`): requests that wait
# for their turn, the parts of requests that are in flight, frames out, replies in.
#
#   queue of requests -> parts of about 64 KiB, in order -> answered, in any order -> done
#   keys of a part -> narrow keys | keys; the caller's rows -> wire type -> values -> frame -> socket
#   socket -> replies, in any order -> rows to their places in the caller's array
#
# Must not know how connections are made, nor which callers wait.  Whoever holds `Core.turn` serves the links
# and may write a `Link`, its parts and queues; there is one such thread at a time, the client's or a caller's.
# Fields that other threads write too are listed at `Core.lock`.
#
# Two invariants carry the guarantees of a push:
#   * parts of pushes are numbered (`seq`) in the order in which they are cut, and a link sends its open parts
#     in that order, on a new connection before anything new.  A shard skips a number that is not above its
#     mark: a number that overtook another would make the shard drop the earlier push as a repetition.
#   * a part stays open until its reply is here, so that it can be sent again on the next connection.
from libc.stdint cimport uint32_t, uint64_t

from snailps.abi._wire_types cimport WireOps
from snailps.transport._frame cimport DATA_BODY_MAX, FRAME_HEADER_BYTES
from snailps.transport._posix cimport pthread_cond_t, pthread_mutex_t
from snailps.transport._socket_io cimport Buffer, Looks
from snailps.transport.client._error_feedback cimport Owings
from snailps.transport.client._request cimport Order, Pool, Request

cdef enum:
    WINDOW = 1024                   # parts in flight per shard; a power of two: a part's number ends in its slot
    NO_PART = WINDOW
    KEPT_MAX = 64                   # rooms kept for later parts: 4 MiB a shard
    IN_BYTES = DATA_BODY_MAX + FRAME_HEADER_BYTES + (256 << 10)
    TEXT_MAX = 4096
    WORDS_MAX = 512


cdef struct Part:
    Request *request                # NULL = answered, the slot is free
    # What the reply names.  It grows with every part, so that a reply to an earlier part of the same slot is
    # recognised, and ignored.
    uint64_t number
    uint32_t before                 # slots of the open parts cut before and after this one
    uint32_t after
    uint32_t start
    uint32_t count
    uint32_t group                  # the one that `start` is in
    uint64_t seq                    # of a push: its number at the shards; never changes on repetition
    # With feedback: the values as they went out, or NULL.  A part that is sent again has to be the same bytes:
    # rounding once more would add the residues a second time.
    char *kept
    bint kept_filled                # the part has been sent before


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
    bint wants_mending              # lost; the mender is to connect at `mend_at`
    bint cut                        # break the connection: `Client.cut` asks for it
    double mend_at
    double up_at                    # when the present connection, or the last one, was made
    double lost_at                  # since when the shard has not answered anything that was asked
    uint32_t fruitless              # connections lost in a row without an answer, or soon after they began
    char words[WORDS_MAX]           # the shard's last `stale-route`, to say why if patience runs out
    uint32_t events
    Queue queue                     # in the order of the calls
    Queue ahead                     # pulls that may overtake what is in `queue`
    Queue clocked                   # pulls at a future clock, lower clocks first
    uint64_t reached                # clock that the shard is known to have reached
    uint32_t waiting                # open parts of `clocked`
    # Open parts form a linked list in the order in which they were cut, in the slots of a table: a part whose
    # answer takes long does not keep the slots of later ones, as it would in a ring.
    Part parts[WINDOW]
    uint32_t free_slots[WINDOW]
    uint32_t free_count
    uint32_t oldest
    uint32_t newest
    uint32_t unwritten              # first open part that this connection has not sent
    char *kept[KEPT_MAX]            # free rooms of `Part.kept`
    uint32_t kept_num
    uint64_t cut_parts              # since the start
    Buffer inp                      # IN_BYTES
    Buffer out
    uint64_t reconnects


cdef struct Core:
    # Guards what threads without `turn` write or read: fresh, open_requests, Request.done, new_fd,
    # wants_mending, mend_at, cut, stop, ended, broken and its text, drivers, driven_at, drops_owing, epoch.
    pthread_mutex_t lock
    pthread_cond_t changed          # a request is done
    pthread_cond_t mend             # a link wants mending, the route has changed, or the client ends
    pthread_mutex_t turn            # who holds it serves the links: the client's thread, or a caller
    pthread_cond_t idle             # callers have stopped serving: the client's thread is to take over
    uint32_t drivers                # callers in `_drive`, one of which serves the links
    Looks looks                     # at sockets before sleeping, by drivers
    double driven_at                # when the last driver left
    int epoll_fd
    int wake_fd
    int stop
    bint ended                      # new requests fail at once: nothing serves them any more
    int broken                      # every request fails with `text`, for good
    bint text_is_body               # `text` is the body of a shard's ERROR frame
    char text[TEXT_MAX]
    uint32_t text_bytes
    Request *fresh                  # handed in and not yet in the queues of the links: a list
    Request *fresh_tail
    Link *links
    Order order
    uint32_t epoch
    double patience_s               # how long a shard may be out of reach
    uint64_t job
    uint64_t incarnation
    uint64_t seq                    # number of the last part of a push, over all shards
    const WireOps *wire
    Owings owing
    bint drops_owing                # `drop_residues` was called: whoever serves drops them
    Pool pool                       # only with the GIL
    uint32_t open_parts             # of all links
    double busy_since               # begin of the busy time that `goodput` counts next
    uint64_t busy_bytes             # bytes in and out at that moment
    double goodput_s                # busy times so far,
    uint64_t goodput_bytes          # ... and what moved in them
    uint64_t bytes_out
    uint64_t bytes_in
    uint64_t rows_pulled
    uint64_t rows_pushed
    uint64_t batches_forgotten      # connections that ended because a shard did not know a batch
    uint64_t open_requests


# Marks a request without unsent or open parts as done, and wakes callers.  The caller may free the request as
# soon as it sees `done`: do not touch the request afterwards.
cdef void finish_if_done(Core *core, Request *r) noexcept nogil
# Makes every request fail, now and later; the first reason stands.
cdef void break_core(Core *core, const char *text, uint64_t text_bytes, bint is_body) noexcept nogil
# Appends a request; False = no memory.
cdef bint queue_put(Queue *q, Request *r) noexcept nogil
# Moves the last request in front of requests of higher clocks, even of one that is half sent: a pull that
# waits for a clock must not hold up a pull that is needed to finish an earlier clock.
cdef void queue_by_clock(Queue *q) noexcept nogil
# Takes out the first request: all its parts are cut, or it failed.
cdef void leave_queue(Core *core, Queue *q) noexcept nogil
# Empties the table of open parts.
cdef void no_parts(Link *link) noexcept nogil
# Frees the slot of a part that is answered, or given up.
cdef void close_part(Core *core, Link *link, uint32_t slot) noexcept nogil
# Sends parts until the socket is full, the turn is over or nothing is left.  1 = there is more to send,
# 0 = nothing, -1 = the connection is lost.
cdef int send_some(Core *core, Link *link, uint32_t shard) noexcept nogil
# Takes one recv and all frames that it completes; -1 = the connection is lost, or the shard broke the protocol.
cdef int receive_some(Core *core, Link *link) noexcept nogil
