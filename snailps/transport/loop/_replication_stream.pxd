# cython: cdivision=True
# A primary's stream to its standby, as the loop keeps it.
#
#   frames, numbered from 1 -> out -> socket          socket -> acknowledgements -> `acked`
#   replies that wait for the standby -> held, small records -> sent once `acked` reaches their number
#
# The handler appends frames and says which replies wait (`hold_until`); what frames mean it knows
# alone.  Nothing here blocks: what the socket does not take stays in `out`, and whoever has too much
# there makes pushes wait (`stream_is_full`), never pulls.  All of it runs in the loop's thread.
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from snailps.transport._frame cimport *
from snailps.transport._posix cimport *
from snailps.transport.loop._fault_injection cimport POINT_MID_SEND, Faults, die, due

cdef enum:
    STREAM_BYTES_MAX = 128 << 20    # that the socket has not taken: more pushes wait for it
    ASYNC_BYTES_MAX = 64 << 20      # not acknowledged: in async, replies are held from here on
    SEED_BYTES = 1 << 20            # of seeding, in the output at a time; or one fragment
    STREAM_TURN_BYTES = 4 << 20     # sent before connections have their turn
    STREAM_IN_BYTES = 8 << 10
    STREAM_WHY_BYTES = 4200
    ASKED_S = 1                     # after a request, seeding is paced for so long,
    REST = 2                        # ... by a rest of so many times what each piece took

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
    bint unkept                     # as `Reply` has it

cdef struct Stream:
    int fd                          # -1 = none
    int state                       # StreamState
    bint sync
    bint paced                      # seeding gives way to requests
    bint begun                      # what changes rows is forwarded
    bint holding                    # acknowledgements count: see hold_until
    bint blocked                    # the socket takes no more: epoll will tell
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
    char *out
    size_t out_cap
    size_t out_start
    size_t out_end
    char inp[STREAM_IN_BYTES]
    uint32_t in_end
    Held *held                      # a ring of held_cap, a power of two
    uint32_t held_cap
    uint32_t held_head
    uint32_t held_num
    char why[STREAM_WHY_BYTES]      # STREAM_LOST: the words
    bint told_lost
    Faults *faults


cdef inline void stream_break(Stream *s, const char *why) noexcept nogil:
    """The standby is lost; the loop closes the socket and tells."""
    if s.state == STREAM_NONE or s.state == STREAM_LOST:
        return
    snprintf(s.why, STREAM_WHY_BYTES, b"%s", why)
    s.state = STREAM_LOST
    s.begun = False
    s.out_start = s.out_end = 0


cdef inline size_t stream_waiting(const Stream *s) noexcept nogil:
    """Bytes that the socket has not taken."""
    return s.out_end - s.out_start


cdef inline bint stream_is_full(Stream *s) noexcept nogil:
    """Whether what has to be forwarded must wait."""
    if s.out_end - s.out_start <= STREAM_BYTES_MAX:
        return False
    s.parks = True
    return True


# --- frames --------------------------------------------------------------------------------------

cdef inline char *stream_append(Stream *s, uint8_t kind, uint32_t table, uint32_t epoch,
                                uint64_t incarnation, uint64_t body_bytes) noexcept nogil:
    """Room for the body of the next frame, to be filled; NULL = no memory, the standby is lost."""
    cdef size_t need = FRAME_HEADER_BYTES + body_bytes
    cdef size_t waiting = s.out_end - s.out_start
    cdef FrameHeader *head
    cdef char *grown
    cdef size_t cap, gap
    if waiting == 0:
        s.out_start = s.out_end = 0
    if s.out_cap - s.out_end < need:
        # The gap is closed when that moves no more than twice what was sent since the last time.
        if s.out_start < waiting // 2 or s.out_cap - waiting < need + 8:
            cap = 2 * s.out_end + need + 8
            grown = <char *>realloc(s.out, cap)
            if grown == NULL:
                stream_break(s, b"this server has no memory for what its standby is to be sent")
                return NULL
            s.out = grown
            s.out_cap = cap
        gap = s.out_start & ~<size_t>7      # frames stay aligned
        memmove(s.out, s.out + gap, s.out_end - gap)
        s.out_start -= gap
        s.out_end -= gap
    s.sent += 1
    s.sent_bytes += need
    head = <FrameHeader *>(s.out + s.out_end)
    memset(head, 0, FRAME_HEADER_BYTES)
    head.magic = FRAME_MAGIC
    head.version = FRAME_VERSION
    head.kind = kind
    head.table = table
    head.epoch = epoch
    head.incarnation = incarnation
    head.request = s.sent
    head.body_bytes = body_bytes
    s.out_end += need
    return <char *>(head + 1)


cdef inline void stream_take_back(Stream *s, size_t waiting, uint64_t sent) noexcept nogil:
    """Takes back what was appended since so much was waiting, with this frame the last."""
    if s.begun:
        s.sent_bytes -= (s.out_end - s.out_start) - waiting
        s.out_end = s.out_start + waiting
        s.sent = sent


cdef inline int stream_flush(Stream *s) noexcept nogil:
    """Sends what the socket takes; 1 = it takes no more."""
    cdef ssize_t sent
    cdef size_t turn = 0
    while s.out_end > s.out_start and turn < STREAM_TURN_BYTES:
        if s.faults.point == POINT_MID_SEND and due(s.faults, POINT_MID_SEND):
            c_send(s.fd, s.out + s.out_start, (s.out_end - s.out_start) // 2 + 1,
                   MSG_NOSIGNAL | MSG_DONTWAIT)
            die()
        sent = c_send(s.fd, s.out + s.out_start, s.out_end - s.out_start,
                      MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                # Its last words may still be there to be read: the loop does that first.
                s.out_start = s.out_end
            return 1
        s.out_start += sent
        turn += sent
    if s.out_start == s.out_end:
        s.out_start = s.out_end = 0
    return 0


# --- the pace of seeding ---------------------------------------------------------------------------

cdef inline bint stream_may_seed(Stream *s, bint asked, double now) noexcept nogil:
    """Whether a new standby may be sent more of what it lacks.

    While others ask something of this shard, a paced stream has one piece on its way at a time, and a
    rest follows it: what a piece costs both ends, and the machines that they may share with those who
    ask, is in the time that it takes.  So seeding takes 1 / (1 + REST) of it at most, and 1 + REST
    times as long as it would alone.
    """
    if s.state != STREAM_SEEDING or s.seeded_at or stream_waiting(s) >= SEED_BYTES // 4:
        return False
    if s.paced and asked and s.piece_end:
        if s.acked_bytes < s.piece_end:
            return False
        if s.rest_until == 0:
            s.rest_until = now + REST * (now - s.piece_at)
        if now < s.rest_until:
            return False
    s.piece_at = now
    s.rest_until = 0
    return True


# --- acknowledgements ----------------------------------------------------------------------------

cdef inline bint _take_acknowledgement(Stream *s, const FrameHeader *head, double now) noexcept nogil:
    cdef uint64_t done
    memcpy(&done, head + 1, sizeof(done))
    if head.request < s.acked or head.request > s.sent or done < s.acked_bytes \
            or done > s.sent_bytes:
        stream_break(s, b"the standby acknowledges what it was never sent")
        return False
    s.acked = head.request
    s.acked_bytes = done
    s.moved_at = now
    if s.probe and s.acked >= s.probe:
        s.lag_s = now - s.probe_at
        s.probe = 0
    return True


cdef inline void stream_read(Stream *s, double now) noexcept nogil:
    """Takes what the standby says; the stream is broken when it ends or says nonsense."""
    cdef ssize_t got
    cdef uint32_t at = 0
    cdef uint32_t size
    cdef const FrameHeader *head
    got = c_recv(s.fd, s.inp + s.in_end, STREAM_IN_BYTES - s.in_end, MSG_DONTWAIT)
    if got < 0 and (errno == EAGAIN or errno == EINTR):
        return
    if got <= 0:
        stream_break(s, b"the connection to the standby was closed")
        return
    s.in_end += <uint32_t>got
    while s.in_end - at >= FRAME_HEADER_BYTES:
        head = <const FrameHeader *>(s.inp + at)
        if head.magic != FRAME_MAGIC or head.version != FRAME_VERSION \
                or not (head.kind == KIND_ERROR and head.body_bytes <= HANDSHAKE_BODY_MAX
                        or head.kind == KIND_HEARTBEAT and head.body_bytes == 0
                        or head.kind == KIND_REPLICATED and head.body_bytes == 8):
            stream_break(s, b"the standby sent what is no acknowledgement")
            return
        size = FRAME_HEADER_BYTES + <uint32_t>head.body_bytes
        if s.in_end - at < size:
            break
        if head.kind == KIND_ERROR:
            s.inp[min(at + size, <uint32_t>(STREAM_IN_BYTES - 1))] = 0
            stream_break(s, s.inp + at + FRAME_HEADER_BYTES)
            return
        if head.kind == KIND_REPLICATED and not _take_acknowledgement(s, head, now):
            return
        at += size
    s.in_end -= at
    memmove(s.inp, s.inp + at, s.in_end)


# --- replies that wait ---------------------------------------------------------------------------

cdef inline uint64_t hold_until(const Stream *s) noexcept nogil:
    """Which frame a reply to what is in the stream by now has to wait for; 0 = none."""
    if not s.holding:
        return 0
    if s.state == STREAM_LOST:
        return <uint64_t>-1             # until `holding` ends
    if s.sent == s.acked or (not s.sync and s.sent_bytes - s.acked_bytes <= ASYNC_BYTES_MAX):
        return 0
    return s.sent


cdef inline bint stream_has(const Stream *s, uint64_t number) noexcept nogil:
    """Whether the standby has a frame that `hold_until` named, or need not have it any more."""
    return not s.holding or number <= s.acked


# --- orders that wait -----------------------------------------------------------------------------
#
# An order counts once nothing can come of this shard that has not done it.  So, other than a push in
# `async`, it waits for every standby that the master may promote, also for one that is out of reach.

cdef inline bint stream_may_serve(const Stream *s) noexcept nogil:
    """Whether the standby may be promoted, for all that is known here."""
    if s.state == STREAM_LOST:
        return s.seeded_at and s.acked >= s.seeded_at
    return s.state != STREAM_NONE and s.seeded_at


cdef inline uint64_t order_until(const Stream *s) noexcept nogil:
    """Which frame what was forwarded by now has to wait for; 0 = none."""
    if not stream_may_serve(s) or (s.state != STREAM_LOST and s.sent == s.acked):
        return 0
    return <uint64_t>-1 if s.state == STREAM_LOST else s.sent


cdef inline bint order_is_there(const Stream *s, uint64_t number) noexcept nogil:
    """Whether the standby has a frame that `order_until` named, or need not have it any more."""
    return number <= s.acked or not stream_may_serve(s)


cdef inline bint held_put(Stream *s, uint64_t conn_id, uint64_t request, uint8_t kind,
                          bint unkept, uint64_t number) noexcept nogil:
    """Keeps a reply back; False = no memory."""
    cdef Held *grown
    cdef uint32_t i
    cdef uint32_t cap = 2 * s.held_cap if s.held_cap else 256
    if s.held_num == s.held_cap:
        grown = <Held *>malloc(cap * sizeof(Held))
        if grown == NULL:
            return False
        for i in range(s.held_num):
            grown[i] = s.held[(s.held_head + i) & (s.held_cap - 1)]
        free(s.held)
        s.held = grown
        s.held_cap = cap
        s.held_head = 0
    i = (s.held_head + s.held_num) & (s.held_cap - 1)
    s.held[i].conn_id = conn_id
    s.held[i].request = request
    s.held[i].kind = kind
    s.held[i].unkept = unkept
    s.held[i].number = number
    s.held_num += 1
    return True


cdef inline bint held_is_due(const Stream *s) noexcept nogil:
    """Whether the reply that waits longest may go out."""
    if s.held_num == 0:
        return False
    return not s.holding or s.held[s.held_head].number <= s.acked \
        or (not s.sync and s.sent_bytes - s.acked_bytes <= ASYNC_BYTES_MAX)


cdef inline void held_forget(Stream *s, uint64_t conn_id) noexcept nogil:
    """A connection is closed: nobody waits for its replies any more."""
    cdef uint32_t mask = s.held_cap - 1
    cdef uint32_t i, kept = 0
    for i in range(s.held_num):
        if s.held[(s.held_head + i) & mask].conn_id != conn_id:
            s.held[(s.held_head + kept) & mask] = s.held[(s.held_head + i) & mask]
            kept += 1
    s.held_num = kept


# --- birth and end -------------------------------------------------------------------------------

cdef inline void stream_open(Stream *s, int fd, bint sync, bint paced, double now) noexcept nogil:
    """Begins anew with a connected, authenticated socket; buffers are used again."""
    s.fd = fd
    s.state = STREAM_SEEDING
    s.sync = sync
    s.paced = paced
    s.begun = s.holding = s.blocked = s.parks = s.told_lost = False
    s.seeded_at = s.sent = s.acked = s.sent_bytes = s.acked_bytes = s.probe = s.piece_end = 0
    s.wanted = 0
    s.rest_until = 0
    s.lag_s = 0
    s.moved_at = now
    s.out_start = s.out_end = 0
    s.in_end = 0


cdef inline void stream_close(Stream *s) noexcept nogil:
    if s.fd >= 0:
        c_close(s.fd)               # also takes it out of epoll
    s.fd = -1
    s.begun = False
    s.out_start = s.out_end = 0


cdef inline void stream_free(Stream *s) noexcept nogil:
    stream_close(s)
    free(s.out)
    free(s.held)
    s.out = NULL
    s.held = NULL
