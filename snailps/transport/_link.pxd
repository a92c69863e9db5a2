# cython: cdivision=True
# The client's connection to one shard: parts of requests out, replies in.
#
#   queue of requests -> parts of about 256 KiB -> frames -> socket
#   socket -> replies, in any order -> rows to their places in the caller's array
#
# Knows neither how connections are made nor who waits.  All of it runs in the client's thread;
# what it shares with callers is in `Core`, under `Core.lock`.
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset, strlen

from snailps.transport._frame cimport *
from snailps.transport._posix cimport *
from snailps._wire cimport WireOps
from snailps.transport._body cimport *
from snailps.transport._lists cimport Lists, NO_PLACE, lists_release
from snailps.transport._owing cimport Owing
from snailps.transport._packing cimport Sampler, pack_body, sampler_says, unpack_body
from snailps.transport._request cimport KIND_RAW, Order, Pool, Request, request_refused

cdef enum:
    WINDOW = 1024                   # parts in flight per shard; a power of two
    NO_PART = WINDOW
    OUT_BYTES_AIM = 512 << 10       # build no further part while this much waits to be sent
    SEND_TURN_BYTES = 4 << 20       # sent to one shard before the others have their turn
    KEPT_MAX = 16
    GOODPUT_BYTES_MIN = 256 << 10   # a busy time that moved less says more of delays than of speed
    GOODPUT_BYTES_MAX = 4 << 20     # a longer one is counted in pieces
    IN_BYTES = DATA_BODY_MAX + FRAME_HEADER_BYTES + (256 << 10)
    TEXT_MAX = 4096


cdef struct Queue:                  # requests whose parts are still to be built
    Request **items
    uint32_t head
    uint32_t count
    uint32_t cap


cdef struct Link:                   # the connection to one shard
    int fd                          # -1 = down
    int new_fd                      # given by the mender, -1 = none
    bint wants_mending              # for the mender to see, with `mend_at`
    bint cut                        # break the connection: a test asks for it
    double mend_at
    uint32_t fruitless              # connections lost since a part was answered
    uint32_t events
    Queue queue
    uint32_t group                  # where the first request of the queue goes on
    uint32_t at
    # Open parts are a list in the order in which they were cut, in slots of a table: one that
    # waits long for its answer holds up none of the others.
    Part parts[WINDOW]
    uint32_t free_slots[WINDOW]
    uint32_t free_count
    uint32_t oldest
    uint32_t newest
    uint32_t unwritten              # first part that this connection has not seen yet
    Lists lists                     # of keys that the shard remembers
    Sampler sampler                 # whether packing pays
    char *kept[KEPT_MAX]            # rooms of parts, to be used again
    uint32_t kept_num
    uint64_t cut_parts              # so far
    char *inp                       # IN_BYTES
    size_t in_start
    size_t in_end
    char *out
    size_t out_cap
    size_t out_start
    size_t out_end
    uint64_t reconnects


cdef struct Core:
    pthread_mutex_t lock            # guards fresh, open_requests, done, new_fd, wants_mending, cut,
    pthread_cond_t changed          # ... stop, ended, broken and its text
    pthread_cond_t mend
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
    uint64_t job
    uint64_t incarnation
    uint64_t seq                    # last number given to a part of a push
    const WireOps *wire
    bint pack                       # the network is slow: try to pack bodies
    char *packing                   # DATA_BODY_MAX; NULL = not needed so far
    Owing *owing
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
    uint64_t open_requests


cdef inline void finish_if_done(Core *core, Request *r) noexcept nogil:
    """Tells who waits.  Whoever sees `done` may free the request: nothing touches it afterwards."""
    if r.unsent == 0 and r.open == 0:
        pthread_mutex_lock(&core.lock)
        core.open_requests -= 1
        store_flag(&r.done, 1)
        pthread_cond_broadcast(&core.changed)
        pthread_mutex_unlock(&core.lock)


cdef inline void break_core(Core *core, const char *text, uint64_t text_bytes,
                            bint is_body) noexcept nogil:
    """Every request fails from now on; the first reason stands."""
    pthread_mutex_lock(&core.lock)
    if not core.broken:
        core.text_bytes = <uint32_t>min(text_bytes, <uint64_t>TEXT_MAX)
        memcpy(core.text, text, core.text_bytes)
        core.text_is_body = is_body
        store_flag(&core.broken, 1)
        pthread_cond_broadcast(&core.mend)
    pthread_mutex_unlock(&core.lock)


cdef inline void note_goodput(Core *core) noexcept nogil:
    """Counts the busy time that ends here, or a piece of it."""
    cdef uint64_t moved = core.bytes_in + core.bytes_out - core.busy_bytes
    cdef double now
    if moved < GOODPUT_BYTES_MAX and (core.open_parts or moved < GOODPUT_BYTES_MIN):
        return
    now = now_s()
    core.goodput_s += now - core.busy_since
    core.goodput_bytes += moved
    core.busy_since = now
    core.busy_bytes += moved


# --- sending -------------------------------------------------------------------------------------

cdef inline bint queue_put(Queue *q, Request *r) noexcept nogil:
    """False = no memory."""
    cdef Request **grown
    cdef uint32_t cap
    if q.head + q.count == q.cap:
        if q.head > q.cap >> 1:
            memmove(q.items, q.items + q.head, q.count * sizeof(Request *))
            q.head = 0
        else:
            cap = q.cap * 2 if q.cap else 16
            grown = <Request **>realloc(q.items, cap * sizeof(Request *))
            if grown == NULL:
                return False
            q.items = grown
            q.cap = cap
    q.items[q.head + q.count] = r
    q.count += 1
    return True


cdef inline void leave_queue(Core *core, Link *link) noexcept nogil:
    """The first request of the queue has all its parts."""
    cdef Request *r = link.queue.items[link.queue.head]
    link.queue.head += 1
    link.queue.count -= 1
    if link.queue.count == 0:
        link.queue.head = 0
    link.group = 0
    link.at = 0
    r.unsent -= 1
    finish_if_done(core, r)


cdef inline void no_parts(Link *link) noexcept nogil:
    """Empties the table of open parts."""
    cdef uint32_t i
    for i in range(WINDOW):
        link.parts[i].request = NULL
        link.free_slots[i] = WINDOW - 1 - i
    link.free_count = WINDOW
    link.oldest = link.newest = link.unwritten = NO_PART


cdef inline Part *open_part(Core *core, Link *link, Request *r) noexcept nogil:
    """A new part at the end of the list; there must be a free slot."""
    cdef uint32_t slot
    cdef Part *part
    link.free_count -= 1
    slot = link.free_slots[link.free_count]
    part = &link.parts[slot]
    link.cut_parts += 1
    part.number = link.cut_parts * WINDOW + slot
    part.request = r
    part.place = NO_PLACE
    part.kept = NULL
    part.before = link.newest
    part.after = NO_PART
    if link.newest == NO_PART:
        link.oldest = slot
    else:
        link.parts[link.newest].after = slot
    link.newest = slot
    if link.unwritten == NO_PART:
        link.unwritten = slot
    r.open += 1
    if core.open_parts == 0:
        core.busy_since = now_s()
        core.busy_bytes = core.bytes_in + core.bytes_out
    core.open_parts += 1
    return part


cdef inline void close_part(Core *core, Link *link, uint32_t slot, bint refused) noexcept nogil:
    cdef Part *part = &link.parts[slot]
    lists_release(&link.lists, part.place, refused)
    if part.kept != NULL:
        if link.kept_num < KEPT_MAX:
            link.kept[link.kept_num] = part.kept
            link.kept_num += 1
        else:
            free(part.kept)
    core.open_parts -= 1
    note_goodput(core)
    part.request.open -= 1
    part.request = NULL
    if part.before == NO_PART:
        link.oldest = part.after
    else:
        link.parts[part.before].after = part.after
    if part.after == NO_PART:
        link.newest = part.before
    else:
        link.parts[part.after].before = part.before
    if link.unwritten == slot:
        link.unwritten = part.after
    link.free_slots[link.free_count] = slot
    link.free_count += 1


cdef inline bint cut_part(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Makes the next part of the queue's first request; False when there is none or no slot."""
    cdef Request *r
    cdef Part *part
    cdef uint32_t i, stop_group
    if link.free_count == 0 or link.queue.count == 0:
        return False
    r = link.queue.items[link.queue.head]
    part = open_part(core, link, r)
    part.seq = 0
    if r.kind == KIND_RAW:
        leave_queue(core, link)
        return True
    stop_group = r.shard_group[shard + 1]
    if link.group < r.shard_group[shard]:       # the first part of this request
        link.group = r.shard_group[shard]
        link.at = r.group_start[link.group]
    part.start = link.at
    part.group = link.group
    part.count = min(rows_per_part(r), r.group_start[stop_group] - link.at)
    if r.kind == KIND_PUSH:
        core.seq += 1
        part.seq = core.seq
        for i in range(part.start, part.start + part.count):
            r.stamps[i] = part.seq
    link.at += part.count
    while link.group < stop_group and r.group_start[link.group + 1] <= link.at:
        link.group += 1
    if link.group == stop_group:
        leave_queue(core, link)
    return True


cdef inline bint out_reserve(Link *link, size_t need) noexcept nogil:
    cdef size_t held = link.out_end - link.out_start
    cdef char *grown
    if link.out_start > 0 and (held == 0 or link.out_cap - link.out_end < need):
        memmove(link.out, link.out + link.out_start, held)
        link.out_start = 0
        link.out_end = held
    if link.out_cap - link.out_end >= need:
        return True
    grown = <char *>realloc(link.out, held + need)
    if grown == NULL:
        return False
    link.out = grown
    link.out_cap = held + need
    return True


cdef inline size_t write_body(Core *core, Link *link, Request *r, Part *part) noexcept nogil:
    """Body of a PULL or PUSH behind the header to come; its length, 0 = no memory."""
    cdef uint32_t groups = groups_of(r, part)
    cdef uint32_t i
    cdef size_t body = sizeof(GroupHead)
    cdef size_t pad
    cdef GroupHead *top
    cdef uint64_t *held
    cdef char *to
    cdef KeysPlan plan
    plan_keys(&link.lists, r, part, groups, &plan)
    body += plan.bytes
    if r.held != NULL:
        body += <size_t>part.count * 8
    if r.kind == KIND_PUSH:
        body += <size_t>part.count * r.row_bytes
        if r.owing != NULL and part.kept == NULL and not keep_room(link, part):
            return 0
    pad = (8 - (body & 7)) & 7
    body += pad
    if not out_reserve(link, FRAME_HEADER_BYTES + body):
        return 0
    top = <GroupHead *>(link.out + link.out_end + FRAME_HEADER_BYTES)
    top.seq = part.seq
    top.keys = part.count
    top.groups = groups
    top.floats = r.dim
    top.options = r.options | plan.options | <uint32_t>r.wire << OPTION_WIRE_SHIFT
    if core.pack and r.kind == KIND_PULL:
        top.options |= OPTION_PACK
    to = write_keys(<char *>(top + 1), r, part, groups, &plan)
    if r.held != NULL:
        held = <uint64_t *>to
        for i in range(part.start, part.start + part.count):
            held[0] = r.held[r.order[i]]
            held += 1
        to = <char *>held
    if r.kind == KIND_PUSH:
        if not write_values(core.wire, r, part, to):
            return 0
        to += <size_t>part.count * r.row_bytes
    memset(to, 0, pad)
    return body


cdef inline bint keep_room(Link *link, Part *part) noexcept nogil:
    """Room for the values of a part as they go out, and a byte that says whether they are there."""
    if link.kept_num:
        link.kept_num -= 1
        part.kept = link.kept[link.kept_num]
    else:
        part.kept = <char *>malloc(SUBFRAME_BYTES + 1)
        if part.kept == NULL:
            return False
    part.kept[SUBFRAME_BYTES] = 0
    return True


cdef inline size_t pack_part(Core *core, Link *link, char *body, size_t n) noexcept nogil:
    """Packs the body of a push in place, where that pays; its new length, 0 = it stays."""
    cdef size_t packed
    if not core.pack or not sampler_says(&link.sampler, n) or not room_for_packing(core):
        return 0
    packed = pack_body(&link.sampler, body, n, core.packing)
    if packed:
        memcpy(body, core.packing, packed)
    return packed


cdef inline bint room_for_packing(Core *core) noexcept nogil:
    if core.packing == NULL:
        core.packing = <char *>malloc(DATA_BODY_MAX)
    return core.packing != NULL


cdef inline bint write_part(Core *core, Link *link, Part *part) noexcept nogil:
    """Appends the frame of a part to the output; False = no memory."""
    cdef Request *r = part.request
    cdef FrameHeader *head
    cdef size_t body
    cdef size_t packed = 0
    if r.kind == KIND_RAW:
        body = r.raw_bytes
        if not out_reserve(link, FRAME_HEADER_BYTES + body):
            return False
        memcpy(link.out + link.out_end + FRAME_HEADER_BYTES, r.raw_body, body)
    else:
        body = write_body(core, link, r, part)
        if body == 0:
            return False
        if r.kind == KIND_PUSH:
            packed = pack_part(core, link, link.out + link.out_end + FRAME_HEADER_BYTES, body)
            if packed:
                body = packed
    head = <FrameHeader *>(link.out + link.out_end)
    head.magic = FRAME_MAGIC
    head.version = FRAME_VERSION
    head.kind = r.raw_kind if r.kind == KIND_RAW else r.kind
    head.flags = FLAG_PACKED if packed else 0
    head.table = r.table
    head.epoch = core.epoch
    head.job = core.job
    head.incarnation = core.incarnation
    head.request = part.number
    head.body_bytes = body
    link.out_end += FRAME_HEADER_BYTES + body
    return True


cdef inline int send_some(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Sends parts until the socket is full, the turn is over or nothing is left.

    Returns 1 when more is to be sent, 0 when nothing is, -1 when the connection is lost.
    """
    cdef ssize_t sent
    cdef Part *part
    cdef uint64_t turn = 0
    while True:
        while link.out_end - link.out_start < OUT_BYTES_AIM:
            if link.unwritten == NO_PART and not cut_part(core, link, shard):
                break
            part = &link.parts[link.unwritten]
            if not write_part(core, link, part):
                return -1
            link.unwritten = part.after
        if link.out_end == link.out_start:
            link.out_start = link.out_end = 0
            return 0
        if turn > SEND_TURN_BYTES:
            return 1
        sent = c_send(link.fd, link.out + link.out_start, link.out_end - link.out_start,
                      MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            if errno == EINTR:
                continue
            return 1 if errno == EAGAIN else -1
        link.out_start += sent
        core.bytes_out += sent
        turn += sent


# --- receiving -----------------------------------------------------------------------------------

cdef inline int take_frame(Core *core, Link *link, const FrameHeader *head,
                           const char *body) noexcept nogil:
    """Takes one reply; -1 = the shard broke the protocol."""
    cdef const char *width = b'{"code":"width","text":"the shard\'s rows of this table have ' \
        b'another width than the array: declare the table with that dim"}'
    cdef Part *part
    cdef Request *r
    cdef uint64_t body_bytes = head.body_bytes
    if head.flags:
        body_bytes = unpack_body(body, body_bytes, core.packing) if room_for_packing(core) else 0
        if body_bytes == 0:
            return -1
        body = core.packing
    if head.request == 0 and head.kind == KIND_ERROR:   # the shard ends the connection: why
        break_core(core, body, head.body_bytes, True)
        return 0
    part = &link.parts[head.request & (WINDOW - 1)]
    r = part.request
    if r == NULL or part.number != head.request:
        return 0                                    # answered before: a repeated reply
    if head.kind == KIND_ERROR:
        request_refused(r, body, head.body_bytes)
    elif r.kind == KIND_RAW:
        if head.kind != r.raw_kind + 1:             # replies are numbered next to what they answer
            return -1
        r.raw_reply = <char *>malloc(head.body_bytes + 1)
        if r.raw_reply == NULL:
            return -1
        memcpy(r.raw_reply, body, head.body_bytes)
        r.raw_reply_bytes = head.body_bytes
    elif head.kind != r.kind + 1:
        return -1
    elif r.kind == KIND_PUSH:
        core.rows_pushed += part.count
    elif take_rows(core.wire, r, part, body, body_bytes):
        core.rows_pulled += part.count
    else:
        request_refused(r, width, strlen(width))
    link.fruitless = 0
    close_part(core, link, head.request & (WINDOW - 1), head.kind == KIND_ERROR)
    finish_if_done(core, r)
    return 0


cdef inline int receive_some(Core *core, Link *link) noexcept nogil:
    """One recv and all frames that it completes; -1 = the connection is lost."""
    cdef ssize_t got
    cdef FrameHeader *head
    cdef size_t held
    if link.in_start > 0 and IN_BYTES - link.in_end < <size_t>DATA_BODY_MAX >> 1:
        memmove(link.inp, link.inp + link.in_start, link.in_end - link.in_start)
        link.in_end -= link.in_start
        link.in_start = 0
    got = c_recv(link.fd, link.inp + link.in_end, IN_BYTES - link.in_end, MSG_DONTWAIT)
    if got < 0:
        return 0 if errno == EAGAIN or errno == EINTR else -1
    if got == 0:
        return -1
    link.in_end += got
    core.bytes_in += got
    while True:
        held = link.in_end - link.in_start
        if held < FRAME_HEADER_BYTES:
            break
        head = <FrameHeader *>(link.inp + link.in_start)
        if head.magic != FRAME_MAGIC or head.version != FRAME_VERSION \
                or head.flags & ~<uint32_t>(FLAG_PACKED if head.kind == KIND_PULLED else 0) \
                or head.body_bytes > DATA_BODY_MAX:
            return -1
        if held < FRAME_HEADER_BYTES + head.body_bytes:
            break
        if take_frame(core, link, head, <const char *>head + FRAME_HEADER_BYTES) < 0:
            return -1
        link.in_start += FRAME_HEADER_BYTES + head.body_bytes
    if link.in_start == link.in_end:
        link.in_start = link.in_end = 0
    return 0
