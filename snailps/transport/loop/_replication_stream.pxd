# A primary's stream to its standby: its frames, what is acknowledged of them, and what waits for that.
#
#   frames, numbered from 1 -> out           inp -> acknowledgements -> `acked`
#   replies that wait for the standby -> held, small records -> sent once `acked` reaches their number
#
# The handler appends frames and says which replies wait (`hold_until`); what frames mean it knows
# alone.  No sockets, no clock: the loop moves the two buffers and gives the time (`_event_loop.pyx`).
# Nothing here blocks: too much in `out` makes pushes wait (`stream_is_full`), never pulls.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from snailps.transport._socket_io cimport Buffer

cdef enum:
    STREAM_BYTES_MAX = 128 << 20    # that the socket has not taken: more pushes wait for it
    SEED_BYTES = 1 << 20            # of seeding, in the output at a time; or one fragment
    STREAM_WHY_BYTES = 4200
    STREAM_WARM = 8 << 20           # bytes of the output that are kept when it is empty

cdef enum StreamState:
    STREAM_NONE = 0
    STREAM_SEEDING = 1              # the standby does not have everything yet: nothing waits for it
    STREAM_READY = 2                # it may be promoted
    STREAM_LOST = 3                 # it may be promoted, and cannot be reached: what is held stays held

cdef struct Held:                   # a reply without a body that waits
    uint64_t conn_id
    uint64_t request
    uint64_t number                 # until this frame is acknowledged
    uint8_t kind

cdef struct Stream:
    int state                       # StreamState
    bint sync
    bint paced                      # seeding gives way to requests,
    bint hurried                    # ... but not now: they wait for it
    bint begun                      # what changes rows is forwarded
    bint holding                    # acknowledgements count: see hold_until
    bint blocked                    # the socket takes no more: the loop will hear of it
    bint parks                      # pushes wait for room
    uint64_t seeded_at              # number of the frame that ends seeding; 0 = not sent yet
    uint64_t piece_end              # sent_bytes behind the piece of seeding that is under way
    double piece_at                 # when it was begun
    double rest_until               # ... and the next one may be; 0 = it is not acknowledged yet
    uint64_t sent                   # number of the last frame
    uint64_t acked
    uint64_t wanted                 # a frame that parked requests wait for; 0 = none
    uint64_t awaited                # the first frame that an order of the master waits for; 0 = none
    uint64_t sent_bytes             # of all frames so far
    uint64_t acked_bytes
    uint64_t probe                  # a frame whose acknowledgement is timed; 0 = none
    double probe_at
    double moved_at                 # the last acknowledgement came, or something to acknowledge did
    double lag_s
    Buffer out                      # frames that the socket has not taken
    Buffer inp                      # what the standby says
    Held *held                      # a ring of held_cap, a power of two
    uint32_t held_cap
    uint32_t held_head
    uint32_t held_num
    char why[STREAM_WHY_BYTES]      # STREAM_LOST: the words
    bint reported_lost


cdef inline size_t stream_waiting(const Stream *s) noexcept nogil:
    """Bytes that the socket has not taken."""
    return s.out.end - s.out.start


cdef inline bint stream_has(const Stream *s, uint64_t number) noexcept nogil:
    """Whether the standby has a frame that `hold_until` named, or need not have it any more."""
    return not s.holding or number <= s.acked


# The standby is lost; the loop closes the socket and reports.
cdef void stream_break(Stream *s, const char *why) noexcept nogil
# Whether what has to be forwarded must wait.
cdef bint stream_is_full(Stream *s) noexcept nogil

# --- frames

# Room for the body of the next frame, to be filled; NULL = no memory, the standby is lost.
cdef char *stream_append(Stream *s, uint8_t kind, uint32_t table, uint32_t epoch,
                         uint64_t incarnation, uint64_t body_bytes) noexcept nogil
# Takes back what was appended since so much was waiting, with this frame the last.
cdef void stream_take_back(Stream *s, size_t waiting, uint64_t sent) noexcept nogil

# Gives the memory of a backlog back once it has gone out.
cdef void stream_cool(Stream *s) noexcept nogil

# --- the pace of seeding

# Whether a new standby may be sent more of what it lacks; `asked`: clients ask something of this
# shard, or did a moment ago.
cdef bint stream_may_seed(Stream *s, bint asked, double now) noexcept nogil
# Whether the standby has got everything just now: once.
cdef bint stream_is_seeded(Stream *s) noexcept nogil

# --- acknowledgements

# Frames are about to be sent: the time of their acknowledgement is taken.
cdef void stream_probe(Stream *s, double now) noexcept nogil
# Room for what the standby says next; False = no memory, it is lost.
cdef bint stream_listen(Stream *s) noexcept nogil
# Takes what the standby sent; the stream is broken when that is nonsense, or why it ends.
cdef void stream_take(Stream *s, double now) noexcept nogil
# Gives up a standby that acknowledges nothing for long.
cdef void stream_limit(Stream *s, double limit_s, double now) noexcept nogil

# --- replies that wait

# Which frame a reply to what is in the stream by now has to wait for; 0 = none.
cdef uint64_t hold_until(const Stream *s) noexcept nogil
# Keeps a reply back; False = no memory.
cdef bint held_put(Stream *s, uint64_t conn_id, uint64_t request, uint8_t kind,
                   uint64_t number) noexcept nogil
# Takes the reply that waits longest, if it may go out.
cdef bint held_take(Stream *s, Held *first) noexcept nogil
# A connection is closed: its replies are dropped.
cdef void held_forget(Stream *s, uint64_t conn_id) noexcept nogil

# --- orders that wait
#
# An order counts once nothing can come of this shard that has not done it.  So, other than a push in
# `async`, it waits for every standby that the master may promote, also for one that is out of reach.

# Which frame what was forwarded by now has to wait for; 0 = none.
cdef uint64_t order_until(const Stream *s) noexcept nogil
# Whether the standby has a frame that `order_until` named, or need not have it any more.
cdef bint order_is_there(const Stream *s, uint64_t number) noexcept nogil

# --- birth and end

# Begins anew; buffers are used again.
cdef void stream_open(Stream *s, bint sync, bint paced, double now) noexcept nogil
# There is no socket any more.  What may be promoted goes on holding replies.
cdef void stream_close(Stream *s) noexcept nogil
# Ends a stream that broke; False = that was done.  What the standby may be promoted without is released.
cdef bint stream_lose(Stream *s) noexcept nogil
cdef void stream_free(Stream *s) noexcept nogil
