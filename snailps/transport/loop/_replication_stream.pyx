# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A primary's stream to its standby; see _replication_stream.pxd."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from snailps.transport._frame cimport (
    FRAME_HEADER_BYTES, HANDSHAKE_BODY_MAX, KIND_ERROR, KIND_HEARTBEAT, KIND_REPLICATED,
    FrameHeader, fill_head, head_is_known,
)
from snailps.transport._socket_io cimport buffer_free, buffer_held, buffer_reserve

cdef enum:
    ASYNC_BYTES_MAX = 64 << 20      # unacknowledged bytes: beyond them replies wait without `sync`, too
    REST = 2                        # a rest between pieces of seeding, as a multiple of a piece's time


cdef void stream_break(Stream *s, const char *why) noexcept nogil:
    if s.state == STREAM_NONE or s.state == STREAM_LOST:
        return
    snprintf(s.why, STREAM_WHY_BYTES, b"%s", why)
    s.state = STREAM_LOST
    s.begun = False
    s.out.start = s.out.end = 0


cdef bint stream_is_full(Stream *s) noexcept nogil:
    if stream_waiting(s) <= STREAM_BYTES_MAX:
        return False
    s.parks = True
    return True


# --- frames --------------------------------------------------------------------------------------

cdef char *stream_append(Stream *s, uint8_t kind, uint32_t table, uint32_t epoch,
                         uint64_t incarnation, uint64_t body_bytes) noexcept nogil:
    cdef size_t need = FRAME_HEADER_BYTES + body_bytes
    cdef FrameHeader *head
    if not buffer_reserve(&s.out, need):
        stream_break(s, b"this server has no memory for frames to its standby")
        return NULL
    s.sent += 1
    s.sent_bytes += need
    head = <FrameHeader *>(s.out.data + s.out.end)
    fill_head(head, kind, s.sent, body_bytes)
    head.table = table
    head.epoch = epoch
    head.incarnation = incarnation
    s.out.end += need
    return <char *>(head + 1)


cdef void stream_take_back(Stream *s, size_t waiting, uint64_t sent) noexcept nogil:
    if s.begun:
        s.sent_bytes -= stream_waiting(s) - waiting
        s.out.end = s.out.start + waiting
        s.sent = sent


cdef void stream_cool(Stream *s) noexcept nogil:
    if stream_waiting(s) == 0 and s.out.cap > <size_t>STREAM_WARM:
        buffer_free(&s.out)


# --- the pace of seeding --------------------------------------------------------------------------

cdef bint stream_may_seed(Stream *s, bint asked, double now) noexcept nogil:
    # While clients use this shard, a paced stream has one piece on its way at a time, and rests REST times as long
    # as the piece took.  That time includes what the piece costs both ends and the clients that share their
    # machines.  So seeding takes at most 1 / (1 + REST) of the time, and lasts 1 + REST times as long as it would
    # alone.
    if s.state != STREAM_SEEDING or s.seeded_at or stream_waiting(s) >= SEED_BYTES // 4:
        return False
    if s.paced and asked and s.piece_end and not s.hurried:
        if s.acked_bytes < s.piece_end:
            return False
        if s.rest_until == 0:
            s.rest_until = now + REST * (now - s.piece_at)
        if now < s.rest_until:
            return False
    s.piece_at = now
    s.rest_until = 0
    return True


cdef bint stream_is_seeded(Stream *s) noexcept nogil:
    if s.state != STREAM_SEEDING or not s.seeded_at or s.acked < s.seeded_at:
        return False
    s.state = STREAM_READY
    return True


# --- acknowledgements ----------------------------------------------------------------------------

cdef void stream_probe(Stream *s, double now) noexcept nogil:
    if s.probe == 0 and s.sent > s.acked:
        s.probe = s.sent
        s.probe_at = now
        s.moved_at = now


cdef bint _take_acknowledgement(Stream *s, const FrameHeader *head, double now) noexcept nogil:
    cdef uint64_t done
    memcpy(&done, head + 1, sizeof(done))
    if head.request < s.acked or head.request > s.sent or done < s.acked_bytes \
            or done > s.sent_bytes:
        stream_break(s, b"the standby acknowledges frames that it was never sent")
        return False
    s.acked = head.request
    s.acked_bytes = done
    s.moved_at = now
    if s.probe and s.acked >= s.probe:
        s.lag_s = now - s.probe_at
        s.probe = 0
    return True


cdef bint stream_listen(Stream *s) noexcept nogil:
    if buffer_reserve(&s.inp, FRAME_HEADER_BYTES + HANDSHAKE_BODY_MAX):
        return True
    stream_break(s, b"this server has no memory for replies of its standby")
    return False


cdef void stream_take(Stream *s, double now) noexcept nogil:
    cdef const FrameHeader *head
    cdef char words[HANDSHAKE_BODY_MAX + 1]
    while buffer_held(&s.inp) >= FRAME_HEADER_BYTES:
        head = <const FrameHeader *>(s.inp.data + s.inp.start)
        if not head_is_known(head) \
                or not (head.kind == KIND_ERROR and head.body_bytes <= HANDSHAKE_BODY_MAX
                        or head.kind == KIND_HEARTBEAT and head.body_bytes == 0
                        or head.kind == KIND_REPLICATED and head.body_bytes == 8):
            stream_break(s, b"the standby sent a frame that is no acknowledgement")
            return
        if buffer_held(&s.inp) < FRAME_HEADER_BYTES + head.body_bytes:
            return
        if head.kind == KIND_ERROR:
            memcpy(words, head + 1, head.body_bytes)
            words[head.body_bytes] = 0
            stream_break(s, words)
            return
        if head.kind == KIND_REPLICATED and not _take_acknowledgement(s, head, now):
            return
        s.inp.start += FRAME_HEADER_BYTES + head.body_bytes


cdef void stream_limit(Stream *s, double limit_s, double now) noexcept nogil:
    cdef char text[128]
    if s.sent > s.acked and now - s.moved_at > limit_s:
        snprintf(text, sizeof(text), b"the standby acknowledged nothing for %.0f s",
                 now - s.moved_at)
        stream_break(s, text)


# --- replies that wait ---------------------------------------------------------------------------

cdef uint64_t hold_until(const Stream *s) noexcept nogil:
    if not s.holding:
        return 0
    if s.state == STREAM_LOST:
        return <uint64_t>-1             # until `holding` ends
    if s.sent == s.acked or (not s.sync and s.sent_bytes - s.acked_bytes <= ASYNC_BYTES_MAX):
        return 0
    return s.sent


cdef bint held_put(Stream *s, uint64_t conn_id, uint64_t request, uint8_t kind,
                   uint64_t number) noexcept nogil:
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
    s.held[i].number = number
    s.held_num += 1
    return True


cdef bint held_take(Stream *s, Held *first) noexcept nogil:
    if s.held_num == 0:
        return False
    first[0] = s.held[s.held_head]
    if s.holding and first.number > s.acked \
            and (s.sync or s.sent_bytes - s.acked_bytes > ASYNC_BYTES_MAX):
        return False
    s.held_head = (s.held_head + 1) & (s.held_cap - 1)
    s.held_num -= 1
    return True


cdef void held_forget(Stream *s, uint64_t conn_id) noexcept nogil:
    cdef uint32_t mask = s.held_cap - 1
    cdef uint32_t i, count = 0
    for i in range(s.held_num):
        if s.held[(s.held_head + i) & mask].conn_id != conn_id:
            s.held[(s.held_head + count) & mask] = s.held[(s.held_head + i) & mask]
            count += 1
    s.held_num = count


# --- orders that wait ----------------------------------------------------------------------------

cdef bint _may_serve(const Stream *s) noexcept nogil:
    """Whether the master may promote the standby, as far as this shard knows.

    A stream that is not lost counts from the moment the last frame of seeding is sent: the standby may
    have executed it before its acknowledgement is here.
    """
    if s.state == STREAM_LOST:
        return s.seeded_at and s.acked >= s.seeded_at
    return s.state != STREAM_NONE and s.seeded_at


cdef uint64_t order_until(const Stream *s) noexcept nogil:
    if not _may_serve(s) or (s.state != STREAM_LOST and s.sent == s.acked):
        return 0
    return <uint64_t>-1 if s.state == STREAM_LOST else s.sent


cdef bint order_is_there(const Stream *s, uint64_t number) noexcept nogil:
    return number <= s.acked or not _may_serve(s)


# --- birth and end -------------------------------------------------------------------------------

cdef void stream_open(Stream *s, bint sync, bint paced, double now) noexcept nogil:
    s.state = STREAM_SEEDING
    s.sync = sync
    s.paced = paced
    s.begun = s.hurried = s.holding = s.blocked = s.parks = s.reported_lost = False
    s.seeded_at = s.sent = s.acked = s.sent_bytes = s.acked_bytes = s.probe = s.piece_end = 0
    s.wanted = 0
    s.rest_until = 0
    s.lag_s = 0
    s.moved_at = now
    s.out.start = s.out.end = s.inp.start = s.inp.end = 0


cdef void stream_close(Stream *s) noexcept nogil:
    s.begun = False
    buffer_free(&s.out)


cdef bint stream_lose(Stream *s) noexcept nogil:
    if s.state != STREAM_LOST or s.reported_lost:
        return False
    s.reported_lost = True
    stream_close(s)
    if not (s.sync and s.seeded_at and s.acked >= s.seeded_at):
        s.holding = False
    return True


cdef void stream_free(Stream *s) noexcept nogil:
    buffer_free(&s.out)
    buffer_free(&s.inp)
    free(s.held)
    s.held = NULL
