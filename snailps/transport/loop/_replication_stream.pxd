# A primary's stream to its standby: numbered frames, how many are acknowledged, and the replies and orders that
# wait for an acknowledgement.
#
#   frames, numbered from 1 -> out           inp -> acknowledgements -> `acked`
#   replies that wait for the standby -> held, small records -> sent once `acked` reaches their number
#
# The handler appends frames, alone knows what they mean, and says which replies wait (`hold_until`).  Must not
# know sockets or a clock: the loop moves the two buffers and gives the time (`_event_loop.pyx`); its thread is the
# only one here.  Nothing blocks: too much in `out` makes pushes wait (`stream_is_full`), and with
# them what comes after them on their connections.  No other pull waits, but for one at a clock.
#
# What if the standby is late?  Replies to pushes wait in `held`, each a record of a few bytes, while pulls go on;
# beyond STREAM_BYTES_MAX pushes are parked; after the loop's silence limit the stream is LOST.  With `sync`, a
# lost standby that has all rows may be promoted by the master: then `held` stays until the master has ruled that
# out and ends the stream (`end_stream`).  A reply before that could acknowledge a push that the promoted standby
# does not have.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from snailps.transport._socket_io cimport Buffer

cdef enum:
    STREAM_BYTES_MAX = 128 << 20    # unsent bytes: beyond them pushes are parked
    SEED_BYTES = 1 << 20            # of seeding, in the output at a time; or one fragment
    STREAM_WHY_BYTES = 4200
    STREAM_WARM = 8 << 20           # an empty output with more memory gives it back

cdef enum StreamState:
    STREAM_NONE = 0
    STREAM_SEEDING = 1              # the standby lacks rows, and cannot be promoted: nothing waits for it
    STREAM_READY = 2                # it has everything, and may be promoted
    STREAM_LOST = 3                 # it cannot be reached; it may be promoted if it was READY

cdef struct Held:                   # a reply without a body, which waits for the standby
    uint64_t conn_id
    uint64_t request
    uint64_t number                 # it goes out once this frame is acknowledged
    uint8_t kind

cdef struct Stream:
    int state                       # StreamState
    bint sync                       # a push is acknowledged when the standby has it
    bint paced                      # seeding gives way to requests
    bint hurried                    # requests wait for the end of seeding: no pace now
    bint begun                      # changes of rows are forwarded
    bint holding                    # replies wait for acknowledgements (hold_until)
    bint blocked                    # the socket is full: epoll reports when it takes more
    bint parks                      # pushes are parked until there is room
    uint64_t seeded_at              # number of the frame that ends seeding; 0 = not sent yet
    uint64_t piece_end              # sent_bytes after the present piece of seeding
    double piece_at                 # when that piece was begun
    double rest_until               # when the next piece may begin; 0 = the piece is not acknowledged
    uint64_t sent                   # number of the last frame
    uint64_t acked                  # number of the last frame that the standby has executed
    uint64_t wanted                 # a frame that parked requests wait for; 0 = none
    uint64_t awaited                # the first frame that an order of the master waits for; 0 = none
    uint64_t sent_bytes             # of all frames since the stream began
    uint64_t acked_bytes
    uint64_t probe                  # a frame whose acknowledgement is timed; 0 = none
    double probe_at
    double moved_at                 # of the last acknowledgement, or of the first frame after all were
    double lag_s                    # of the last probe: from sending to acknowledgement
    Buffer out                      # frames that the socket has not taken
    Buffer inp                      # replies of the standby
    Held *held                      # a ring of held_cap, a power of two
    uint32_t held_cap
    uint32_t held_head
    uint32_t held_num
    char why[STREAM_WHY_BYTES]      # with STREAM_LOST: the reason
    bint reported_lost


cdef inline size_t stream_waiting(const Stream *s) noexcept nogil:
    """The number of bytes that the socket has not taken."""
    return s.out.end - s.out.start


cdef inline bint stream_has(const Stream *s, uint64_t number) noexcept nogil:
    """Whether the standby has a frame that `hold_until` returned, or replies do not wait any more."""
    return not s.holding or number <= s.acked


# Marks the standby as lost, for this reason; the loop closes the socket and reports.  The first reason stands.
cdef void stream_break(Stream *s, const char *why) noexcept nogil
# Whether pushes have to wait for room; then they are retried when there is.
cdef bint stream_is_full(Stream *s) noexcept nogil

# --- frames

# Returns room for the body of the next frame, to be filled; NULL = no memory, and the standby is lost.
cdef char *stream_append(Stream *s, uint8_t kind, uint32_t table, uint32_t epoch,
                         uint64_t incarnation, uint64_t body_bytes) noexcept nogil
# Takes back the frames appended since `waiting` bytes and the frame `sent` were the last: the change that they
# forward was refused.
cdef void stream_take_back(Stream *s, size_t waiting, uint64_t sent) noexcept nogil

# Frees the memory of a backlog once it is sent.
cdef void stream_cool(Stream *s) noexcept nogil

# --- the pace of seeding

# Whether a new standby may be sent more rows; `asked`: clients use this shard, or did a moment ago.
cdef bint stream_may_seed(Stream *s, bint asked, double now) noexcept nogil
# Whether the standby has just acknowledged the end of seeding; true once.
cdef bint stream_is_seeded(Stream *s) noexcept nogil

# --- acknowledgements

# Begins to time an acknowledgement, of the last frame that is about to be sent.
cdef void stream_probe(Stream *s, double now) noexcept nogil
# Makes room for a reply of the standby; False = no memory, and it is lost.
cdef bint stream_listen(Stream *s) noexcept nogil
# Takes replies of the standby; an ERROR, or anything that is no acknowledgement, breaks the stream.
cdef void stream_take(Stream *s, double now) noexcept nogil
# Marks a standby as lost that owes an acknowledgement and sent none for `limit_s`.
cdef void stream_limit(Stream *s, double limit_s, double now) noexcept nogil

# --- replies that wait

# Which frame a reply must wait for whose change was forwarded just now; 0 = none, -1 (as unsigned): until the
# stream ends.
cdef uint64_t hold_until(const Stream *s) noexcept nogil
# Holds a reply back; False = no memory.
cdef bint held_put(Stream *s, uint64_t conn_id, uint64_t request, uint8_t kind,
                   uint64_t number) noexcept nogil
# Takes the oldest reply, if it may go out.  Order holds among all connections: numbers rise along the ring.
cdef bint held_take(Stream *s, Held *first) noexcept nogil
# Drops the replies of a closed connection.
cdef void held_forget(Stream *s, uint64_t conn_id) noexcept nogil

# --- orders that wait
#
# An order is done when no copy that may serve later can lack it: a fence that a promoted standby did not know
# would let a lost worker's pushes in again.  So an order waits for every standby that the master may promote,
# also without `sync`, and also for one that is out of reach.

# Which frame an order forwarded just now must wait for; 0 = none.
cdef uint64_t order_until(const Stream *s) noexcept nogil
# Whether the standby has a frame that `order_until` returned, or cannot be promoted any more.
cdef bint order_is_there(const Stream *s, uint64_t number) noexcept nogil

# --- birth and end

# Begins a stream to a new standby; the buffers are used again.
cdef void stream_open(Stream *s, bint sync, bint paced, double now) noexcept nogil
# The socket is closed.  Replies stay held for a standby that may be promoted.
cdef void stream_close(Stream *s) noexcept nogil
# Ends a stream that broke; False = it did not, or this was done.  Replies wait on only if the standby may be
# promoted.
cdef bint stream_lose(Stream *s) noexcept nogil
cdef void stream_free(Stream *s) noexcept nogil
