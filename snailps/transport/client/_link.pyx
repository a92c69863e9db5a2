# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One connection to a shard: requests cut into parts, parts sent, replies received.  See _link.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen

from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch_row_far
from snailps.abi._wire_types cimport WIRE_FLOAT32, WireOps
from snailps.transport._awake cimport now_s
from snailps.transport._frame cimport (
    DATA_BODY_MAX, FRAME_HEADER_BYTES, KIND_BACKWARD, KIND_ERROR, KIND_FORWARD, KIND_PULL,
    KIND_PUSH, OPTION_CLOCK, OPTION_KEY_SHIFT, OPTION_LR_SCALE, OPTION_WIRE_SHIFT, PART_BYTES,
    ClockHead, FrameHeader, Group, GroupHead, LrHead, fill_head, head_is_known, key_bytes, narrow_keys_bytes,
    write_narrow_keys,
)
from snailps.transport._posix cimport (
    load_flag, pthread_cond_broadcast, pthread_mutex_lock, pthread_mutex_unlock, store_flag,
)
from snailps.transport._socket_io cimport (
    SOCKET_BUSY, SOCKET_GONE, Buffer, buffer_held, buffer_receive, buffer_reserve, buffer_send,
)
from snailps.transport.client._error_feedback cimport owing_fetch_index, owing_fetch_row, owing_row
from snailps.transport.client._request cimport (
    EVERY_SHARD, KIND_RAW, Request, Sent, product_calls, request_refused, sum_of, waits_for_clock,
)

cdef enum:
    # Open parts of pulls whose clock has not come.  A shard parks a bounded number of requests of a connection
    # and then stops reading it: without this limit parked pulls could fill it, and the push that ends their
    # clock would never be read.
    WAITING_MAX = 128
    OUT_BYTES_AIM = 128 << 10       # no further part is built while this much waits for the socket
    SEND_TURN_BYTES = 4 << 20       # sent to one shard before the other links have their turn
    GOODPUT_BYTES_MIN = 256 << 10   # a busy time that moved less measures latency, and is not counted
    GOODPUT_BYTES_MAX = 4 << 20     # a longer busy time is counted in pieces, so that figures stay recent
    RECV_BYTES = 128 << 10          # a recv: the rows are still in cache when they are scattered
    AHEAD = 40                      # rows prefetched before they are needed

# In the request number of examples that are sent again (`_catch_up`): the rest is the part after them.
cdef uint64_t CATCH_UP = <uint64_t>1 << 63


cdef void finish_if_done(Core *core, Request *r) noexcept nogil:
    if r.unsent == 0 and r.open == 0:
        pthread_mutex_lock(&core.lock)
        core.open_requests -= 1
        store_flag(&r.done, 1)
        pthread_cond_broadcast(&core.changed)
        pthread_mutex_unlock(&core.lock)


cdef void break_core(Core *core, const char *text, uint64_t text_bytes,
                     bint is_body) noexcept nogil:
    pthread_mutex_lock(&core.lock)
    if not core.broken:
        core.text_bytes = <uint32_t>min(text_bytes, <uint64_t>TEXT_MAX)
        memcpy(core.text, text, core.text_bytes)
        core.text_is_body = is_body
        store_flag(&core.broken, 1)
        pthread_cond_broadcast(&core.mend)
    pthread_mutex_unlock(&core.lock)


cdef void _note_goodput(Core *core) noexcept nogil:
    """Counts the busy time, or the piece of it, that ends now; one that moved too little is dropped."""
    cdef uint64_t moved = core.bytes_in + core.bytes_out - core.busy_bytes
    cdef double now
    if moved < GOODPUT_BYTES_MAX and (core.open_parts or moved < GOODPUT_BYTES_MIN):
        return
    now = now_s()
    core.goodput_s += now - core.busy_since
    core.goodput_bytes += moved
    core.busy_since = now
    core.busy_bytes += moved


# --- queues --------------------------------------------------------------------------------------

cdef bint queue_put(Queue *q, Request *r) noexcept nogil:
    cdef Turn *grown
    cdef uint32_t cap
    if q.head + q.count == q.cap:
        if q.head > q.cap >> 1:
            memmove(q.items, q.items + q.head, q.count * sizeof(Turn))
            q.head = 0
        else:
            cap = q.cap * 2 if q.cap else 16
            grown = <Turn *>realloc(q.items, cap * sizeof(Turn))
            if grown == NULL:
                return False
            q.items = grown
            q.cap = cap
    # From group 0 `_cut_part` goes to the shard's first group.
    q.items[q.head + q.count].request = r
    q.items[q.head + q.count].group = 0
    q.items[q.head + q.count].at = 0
    q.count += 1
    return True


cdef void queue_by_clock(Queue *q) noexcept nogil:
    cdef uint32_t i = q.head + q.count - 1
    cdef Turn last = q.items[i]
    while i > q.head and q.items[i - 1].request.clock > last.request.clock:
        q.items[i] = q.items[i - 1]
        i -= 1
    q.items[i] = last


cdef void leave_queue(Core *core, Queue *q) noexcept nogil:
    cdef Request *r = q.items[q.head].request
    q.head += 1
    q.count -= 1
    if q.count == 0:
        q.head = 0
    r.unsent -= 1
    finish_if_done(core, r)


# --- parts ---------------------------------------------------------------------------------------

cdef void no_parts(Link *link) noexcept nogil:
    cdef uint32_t i
    for i in range(WINDOW):
        link.parts[i].request = NULL
        link.free_slots[i] = WINDOW - 1 - i
    link.free_count = WINDOW
    link.oldest = link.newest = link.unwritten = NO_PART


cdef Part *_open_part(Core *core, Link *link, Request *r) noexcept nogil:
    """Opens a part at the end of the list; there must be a free slot."""
    cdef uint32_t slot
    cdef Part *part
    link.free_count -= 1
    slot = link.free_slots[link.free_count]
    part = &link.parts[slot]
    link.cut_parts += 1
    part.number = link.cut_parts * WINDOW + slot
    part.request = r
    part.kept = NULL
    part.kept_filled = False
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


cdef void close_part(Core *core, Link *link, uint32_t slot) noexcept nogil:
    cdef Part *part = &link.parts[slot]
    if part.kept != NULL:
        if link.kept_num < KEPT_MAX:
            link.kept[link.kept_num] = part.kept
            link.kept_num += 1
        else:
            free(part.kept)
    core.open_parts -= 1
    link.waiting -= part.request.clocked and part.request.kind == KIND_PULL
    _note_goodput(core)
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


cdef bint _waits_for_so_early(const Link *link, uint64_t clock) noexcept nogil:
    """Whether an open part waits for this clock or an earlier one: its answer will say that it has come."""
    cdef uint32_t slot = link.oldest
    cdef const Request *r
    while slot != NO_PART:
        r = link.parts[slot].request
        if r.clocked and r.kind == KIND_PULL and r.clock <= clock:
            return True
        slot = link.parts[slot].after
    return False


cdef Queue *_next_queue(Core *core, Link *link) noexcept nogil:
    """Chooses the queue of the next part: pulls that go ahead, then pulls at a clock, then the rest.

    A pull at a clock that may not have come is sent while fewer than WAITING_MAX parts wait at the
    shard.  Beyond that it is sent only if no open part waits for its clock or an earlier one: the
    answer to such a part says that the shard has come so far, and nothing else would.
    """
    cdef Request *r
    if link.ahead.count:
        return &link.ahead
    while link.clocked.count:
        r = link.clocked.items[link.clocked.head].request
        if load_flag(&r.abandoned):
            leave_queue(core, &link.clocked)
        elif r.clock <= link.reached or link.waiting < WAITING_MAX \
                or not _waits_for_so_early(link, r.clock):
            return &link.clocked
        else:
            break
    return &link.queue


cdef bint _cut_part(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Cuts the next part of a queue's first request; False: there is no request or no free slot."""
    cdef Queue *q = _next_queue(core, link)
    cdef Turn *turn
    cdef Request *r
    cdef Part *part
    cdef uint32_t i, stop_group
    if link.free_count == 0 or q.count == 0:
        return False
    turn = &q.items[q.head]
    r = turn.request
    part = _open_part(core, link, r)
    part.seq = 0
    if r.kind == KIND_RAW:
        leave_queue(core, q)
        return True
    if r.product != NULL:
        part.start = turn.at                    # examples, where others have keys
        part.count = product_calls.examples(r, shard, turn.at)
        if r.kind == KIND_BACKWARD:
            core.seq += 1
            part.seq = core.seq
        turn.at += part.count
        if turn.at == r.product.examples:
            leave_queue(core, q)
        return True
    stop_group = r.shard_group[shard + 1]
    if turn.group < r.shard_group[shard]:       # the first part of this request
        turn.group = r.shard_group[shard]
        turn.at = r.group_start[turn.group]
    part.start = turn.at
    part.group = turn.group
    part.count = min(_rows_per_part(r), r.group_start[stop_group] - turn.at)
    if r.kind == KIND_PUSH:
        # Numbered here, and only once: a part keeps its number on every connection that carries it.
        core.seq += 1
        part.seq = core.seq
        for i in range(part.start, part.start + part.count):
            r.stamps[i] = part.seq
    link.waiting += r.clocked and r.kind == KIND_PULL
    turn.at += part.count
    while turn.group < stop_group and r.group_start[turn.group + 1] <= turn.at:
        turn.group += 1
    if turn.group == stop_group:
        leave_queue(core, q)
    return True


# --- bodies of pulls and pushes -------------------------------------------------------------------

cdef uint32_t _rows_per_part(const Request *r) noexcept nogil:
    """The most keys of a part: a pull has as many as a push, so that its reply has the size of a part."""
    return max(<uint32_t>1, <uint32_t>PART_BYTES // (r.row_bytes + 8))


cdef uint32_t _groups_of(const Request *r, const Part *part) noexcept nogil:
    """The number of fragments that the part has keys of."""
    cdef uint32_t g = part.group
    while g < r.groups and r.group_start[g] < part.start + part.count:
        g += 1
    return g - part.group


cdef uint32_t _keys_of_group(const Request *r, const Part *part, uint32_t g) noexcept nogil:
    """The number of keys that the part has of group g."""
    return min(r.group_start[g + 1], part.start + part.count) - max(r.group_start[g], part.start)


cdef char *_write_keys(char *to, const Request *r, const Part *part, uint32_t groups, uint32_t width,
                       uint64_t base) noexcept nogil:
    """Writes groups and keys; returns their end.  `width` not 0: each key as so many bytes above `base`."""
    cdef Group *group = <Group *>to
    cdef const uint64_t *keys = r.keys + part.start
    cdef uint32_t g
    for g in range(part.group, part.group + groups):
        group.fragment = r.group_fragment[g]
        group.keys = _keys_of_group(r, part, g)
        group += 1
    to = <char *>group
    if width:
        write_narrow_keys(to, keys, part.count, base, width)
        return to + narrow_keys_bytes(part.count, width)
    memcpy(to, keys, <size_t>part.count * 8)
    return to + <size_t>part.count * 8


cdef bint _write_values(const WireOps *wire, const Request *r, Part *part, char *to) noexcept nogil:
    """Writes the values of a part of a push, as its wire type; False = no memory."""
    cdef uint32_t last = part.start + part.count
    cdef uint32_t i
    cdef const float *value
    cdef float *residue
    cdef char *first = to
    if part.kept_filled:
        memcpy(to, part.kept, <size_t>part.count * r.row_bytes)
        return True
    for i in range(part.start, last):
        if i + AHEAD < r.n:             # beyond this part, too: the next part is written right after it
            fetch_row_far(r.rows + r.order[i + AHEAD] * r.row_stride, 4 * r.dim, FETCH_AT_CLIENT)
        if r.later != NULL:
            value = sum_of(r, i)
        else:
            value = <const float *>(r.rows + r.order[i] * r.row_stride)
        if r.owing != NULL:
            if i + 2 * AHEAD < r.n:
                owing_fetch_index(r.owing, r.keys[i + 2 * AHEAD])
                owing_fetch_row(r.owing, r.keys[i + AHEAD])
            residue = owing_row(r.owing, r.keys[i])
            if residue == NULL:
                return False
            wire.narrow_owing[r.wire](value, residue, to, r.dim)
        elif r.wire != WIRE_FLOAT32:
            wire.narrow[r.wire](value, to, r.dim)
        else:
            memcpy(to, value, r.row_bytes)
        to += r.row_bytes
    if part.kept != NULL:
        memcpy(part.kept, first, to - first)
        part.kept_filled = True
    return True


cdef void _write_clock(ClockHead *head, const Request *r) noexcept nogil:
    head.clock = r.clock
    head.slot = r.slot
    head.slots = 0


cdef size_t _write_body(const WireOps *wire, Request *r, Part *part, Buffer *out) noexcept nogil:
    cdef uint32_t groups = _groups_of(r, part)
    cdef size_t body = sizeof(GroupHead)
    cdef size_t pad
    cdef GroupHead *top
    cdef char *to
    cdef uint64_t base = 0
    cdef uint32_t width = key_bytes(r.keys + part.start, part.count, &base)
    body += groups * sizeof(Group)
    body += narrow_keys_bytes(part.count, width) if width else <size_t>part.count * 8
    if r.clocked:
        body += sizeof(ClockHead)
    if r.options & OPTION_LR_SCALE:
        body += sizeof(LrHead)
    if r.kind == KIND_PUSH:
        body += <size_t>part.count * r.row_bytes
    pad = (8 - (body & 7)) & 7
    body += pad
    if not buffer_reserve(out, FRAME_HEADER_BYTES + body):
        return 0
    top = <GroupHead *>(out.data + out.end + FRAME_HEADER_BYTES)
    top.seq = part.seq
    top.keys = part.count
    top.groups = groups
    top.floats = r.dim
    top.options = r.options | <uint32_t>r.wire << OPTION_WIRE_SHIFT | width << OPTION_KEY_SHIFT
    to = <char *>(top + 1)
    if r.clocked:
        top.options |= OPTION_CLOCK
        _write_clock(<ClockHead *>to, r)
        to += sizeof(ClockHead)
    if r.options & OPTION_LR_SCALE:
        (<LrHead *>to).lr_scale = r.lr_scale
        (<LrHead *>to).unused = 0
        to += sizeof(LrHead)
    to = _write_keys(to, r, part, groups, width, base)
    if r.kind == KIND_PUSH:
        if not _write_values(wire, r, part, to):
            return 0
        to += <size_t>part.count * r.row_bytes
    memset(to, 0, pad)
    return body


cdef void _take_row(const WireOps *wire, const Request *r, uint32_t i,
                    const char *body) noexcept nogil:
    """Copies or widens a row of a reply to its place in the caller's array."""
    cdef char *to = r.rows + r.order[i] * r.row_stride
    if r.wire != WIRE_FLOAT32:
        wire.widen[r.wire](body, <float *>to, r.dim)
    elif r.dim == 1:                # a constant size compiles to one move
        memcpy(to, body, 4)
    else:
        memcpy(to, body, r.row_bytes)


cdef bint _take_rows(const WireOps *wire, const Request *r, const Part *part, const char *body,
                    uint64_t body_bytes) noexcept nogil:
    """Takes marks and rows of a reply; False: its length does not fit rows of this width."""
    cdef uint32_t groups = _groups_of(r, part)
    cdef uint32_t last = part.start + part.count
    cdef uint32_t g, stop
    cdef uint32_t i = part.start
    cdef uint64_t mark
    if body_bytes < <uint64_t>groups * 8:
        return False
    for g in range(part.group, part.group + groups):
        memcpy(&mark, body, 8)
        body += 8
        stop = min(r.group_start[g + 1], last)
        while i < stop:
            r.stamps[i] = mark
            i += 1
    body_bytes -= <uint64_t>groups * 8
    if body_bytes != ((<uint64_t>part.count * r.row_bytes + 7) & ~<uint64_t>7):
        return False
    if r.wire == WIRE_FLOAT32 and r.dim == 1:
        for i in range(part.start, last):
            memcpy(r.rows + r.order[i] * r.row_stride, body, 4)
            body += 4
    elif r.wire == WIRE_FLOAT32:
        for i in range(part.start, last):
            if i + AHEAD < r.n:
                fetch_row_far(r.rows + r.order[i + AHEAD] * r.row_stride, r.row_bytes,
                              FETCH_AT_CLIENT)
            memcpy(r.rows + r.order[i] * r.row_stride, body, r.row_bytes)
            body += r.row_bytes
    else:
        for i in range(part.start, last):
            if i + AHEAD < r.n:
                fetch_row_far(r.rows + r.order[i + AHEAD] * r.row_stride, 4 * r.dim,
                              FETCH_AT_CLIENT)
            _take_row(wire, r, i, body)
            body += r.row_bytes
    return True


# --- sending -------------------------------------------------------------------------------------

cdef bint _keep_room(Link *link, Part *part) noexcept nogil:
    """Gets room for `Part.kept`, used again where possible; False = no memory."""
    cdef size_t need = <size_t>part.count * part.request.row_bytes
    if need <= PART_BYTES and link.kept_num:
        link.kept_num -= 1
        part.kept = link.kept[link.kept_num]
    else:
        part.kept = <char *>malloc(max(need, <size_t>PART_BYTES))
    return part.kept != NULL


cdef void _write_header(Core *core, Link *link, const Request *r, uint64_t number,
                        size_t body) noexcept nogil:
    """Writes the header before a body that is in its place, and makes both output."""
    cdef FrameHeader *head = <FrameHeader *>(link.out.data + link.out.end)
    fill_head(head, r.raw_kind if r.kind == KIND_RAW else r.kind, number, body)
    head.table = r.table
    head.epoch = core.epoch
    head.job = core.job
    head.incarnation = core.incarnation
    link.out.end += FRAME_HEADER_BYTES + body


cdef bint _write_examples(Core *core, Link *link, const Request *r, uint32_t shard, uint32_t first,
                          uint32_t count, uint64_t seq, bint quiet, uint64_t number) noexcept nogil:
    """Appends a FORWARD or BACKWARD of some examples to the output; False = no memory."""
    cdef uint32_t width = 0
    cdef uint64_t base = 0
    cdef size_t body
    cdef char *to
    if r.kind == KIND_FORWARD:
        body = product_calls.forward_bytes(r, shard, first, count, &width, &base)
    else:
        body = product_calls.backward_bytes(r, count)
    if not buffer_reserve(&link.out, FRAME_HEADER_BYTES + body):
        return False
    to = link.out.data + link.out.end + FRAME_HEADER_BYTES
    if r.kind == KIND_FORWARD:
        product_calls.write_forward(to, r, shard, first, count, width, base, quiet)
    else:
        product_calls.write_backward(core.wire, to, r, first, count, seq)
    _write_header(core, link, r, number, body)
    return True


cdef bint _catch_up(Core *core, Link *link, Request *r, uint32_t shard, uint32_t upto,
                    uint64_t seq, uint64_t number) noexcept nogil:
    """Sends the examples before `upto` that this connection has not carried; False = no memory.

    A shard keeps a batch with the connection that brought it, so a new connection has to carry all
    examples again from the first one on, also those whose replies are here.  Their replies are
    ignored; a refusal counts as one of the part after them, `number`.
    """
    cdef Sent *sent = product_calls.sent(r.product, shard, link.reconnects + 1)
    cdef uint32_t n
    while sent.examples < upto:
        n = min(product_calls.examples(r, shard, sent.examples), upto - sent.examples)
        if not _write_examples(core, link, r, shard, sent.examples, n, seq, True,
                               CATCH_UP | number):
            return False
        sent.examples += n
    return True


cdef bint _write_product_part(Core *core, Link *link, Part *part, uint32_t shard) noexcept nogil:
    """Appends a part of a batch, after the examples that the shard must have before it."""
    cdef Request *r = part.request
    cdef Request *forward = r.product.forward
    if r.kind == KIND_BACKWARD \
            and not _catch_up(core, link, forward, shard, r.product.examples, 0, part.number):
        return False
    if (r.kind == KIND_BACKWARD or r.product.keep) \
            and not _catch_up(core, link, r, shard, part.start, part.seq, part.number):
        return False
    product_calls.sent(r.product, shard, link.reconnects + 1).examples = part.start + part.count
    return _write_examples(core, link, r, shard, part.start, part.count, part.seq, False,
                          part.number)


cdef bint _write_part(Core *core, Link *link, Part *part, uint32_t shard) noexcept nogil:
    """Appends the frame of a part to the output; False = no memory."""
    cdef Request *r = part.request
    cdef size_t body
    if r.product != NULL:
        return _write_product_part(core, link, part, shard)
    if r.kind == KIND_RAW:
        body = r.raw_bytes
        if not buffer_reserve(&link.out, FRAME_HEADER_BYTES + body):
            return False
        memcpy(link.out.data + link.out.end + FRAME_HEADER_BYTES, r.raw_body, body)
    else:
        if r.kind == KIND_PUSH and r.owing != NULL and part.kept == NULL \
                and not _keep_room(link, part):
            return False
        body = _write_body(core.wire, r, part, &link.out)
        if body == 0:
            return False
    _write_header(core, link, r, part.number, body)
    return True


cdef int send_some(Core *core, Link *link, uint32_t shard) noexcept nogil:
    # Frames are built only as the socket takes them: memory does not grow with what is outstanding, values
    # are read late, and a pull that goes ahead overtakes all but OUT_BYTES_AIM.
    cdef ssize_t sent
    cdef Part *part
    cdef uint64_t begun = core.bytes_out
    while True:
        while buffer_held(&link.out) < OUT_BYTES_AIM:
            if link.unwritten == NO_PART and not _cut_part(core, link, shard):
                break
            part = &link.parts[link.unwritten]
            if not _write_part(core, link, part, shard):
                return -1
            link.unwritten = part.after
        if buffer_held(&link.out) == 0:
            return 0
        if core.bytes_out - begun > SEND_TURN_BYTES:
            return 1
        sent = buffer_send(&link.out, link.fd, &core.bytes_out)
        if sent == SOCKET_GONE:
            return -1
        if sent == SOCKET_BUSY:
            return 1


# --- receiving -----------------------------------------------------------------------------------

cdef bint _says_unknown_batch(const FrameHeader *head, const char *body) noexcept nogil:
    """Whether the shard ends the connection because it does not know a batch: it restarted, or dropped it."""
    cdef const char *words = b'{"code":"batch"'
    return head.kind == KIND_ERROR and head.body_bytes > 15 and memcmp(body, words, 15) == 0


cdef bint _sends_elsewhere(Core *core, Link *link, const FrameHeader *head,
                           const char *body) noexcept nogil:
    """Whether another server has the shard now: a new connection goes where the route says by then.

    With `failover_s` 0 a client does not wait for another server: this is an error like any other.
    """
    cdef const char *code = b'{"code":"stale-route"'
    cdef size_t n = <size_t>min(head.body_bytes, <uint64_t>(WORDS_MAX - 1))
    if core.patience_s <= 0 or head.kind != KIND_ERROR or n < strlen(code) \
            or memcmp(body, code, strlen(code)) != 0:
        return False
    memcpy(link.words, body, n)
    link.words[n] = 0
    return True


cdef int _take_frame(Core *core, Link *link, const FrameHeader *head,
                     const char *body) noexcept nogil:
    """Takes one reply; -1 = the shard broke the protocol."""
    cdef const char *width = b'{"code":"width","text":"the shard\'s rows of this table have ' \
        b'another width than the array: declare the table with that dim"}'
    cdef Part *part
    cdef Request *r
    if _says_unknown_batch(head, body):
        core.batches_forgotten += 1
        return -1                                   # the next connection carries the whole batch
    if _sends_elsewhere(core, link, head, body):
        return -1
    if head.request == 0 and head.kind == KIND_ERROR:   # of the connection: asking again would not help
        break_core(core, body, head.body_bytes, True)
        return 0
    part = &link.parts[head.request & (WINDOW - 1)]
    r = part.request
    if r == NULL or part.number != (head.request & ~CATCH_UP) \
            or (head.request & CATCH_UP and head.kind != KIND_ERROR):
        # A reply to a part that an earlier connection's reply has closed, or to examples sent again.
        return 0
    if head.kind == KIND_ERROR:
        request_refused(r, body, head.body_bytes)
    elif head.kind != (r.raw_kind if r.kind == KIND_RAW else r.kind) + 1:
        return -1                       # the kind of a reply is that of its request plus one
    elif r.kind == KIND_RAW and r.raw_shard == <uint32_t>EVERY_SHARD:
        pass                            # each shard's reply is empty
    elif r.kind == KIND_RAW:
        r.raw_reply = <char *>malloc(head.body_bytes + 1)
        if r.raw_reply == NULL:
            return -1
        memcpy(r.raw_reply, body, head.body_bytes)
        r.raw_reply_bytes = head.body_bytes
    elif r.kind == KIND_PUSH:
        core.rows_pushed += part.count
    elif r.kind == KIND_BACKWARD:
        pass
    elif r.kind == KIND_FORWARD:
        if not product_calls.take(core.wire, r, <uint32_t>(link - core.links), part.start, part.count,
                            body, head.body_bytes):
            request_refused(r, width, strlen(width))
    elif _take_rows(core.wire, r, part, body, head.body_bytes):
        core.rows_pulled += part.count
    else:
        request_refused(r, width, strlen(width))
    if waits_for_clock(r) and head.kind != KIND_ERROR:
        link.reached = max(link.reached, r.clock)
    link.fruitless = 0                  # it answers: whatever was wrong is over
    link.words[0] = 0
    close_part(core, link, head.request & (WINDOW - 1))
    finish_if_done(core, r)
    return 0


cdef int receive_some(Core *core, Link *link) noexcept nogil:
    cdef Buffer *inp = &link.inp
    cdef FrameHeader *head
    # IN_BYTES hold a frame of any length, so the buffer never grows.  What is held moves to the front only when
    # less than half a body fits after it: moving at every recv would cost as much as the recv.
    if inp.start > 0 and IN_BYTES - inp.end < <size_t>DATA_BODY_MAX >> 1:
        memmove(inp.data, inp.data + inp.start, buffer_held(inp))
        inp.end -= inp.start
        inp.start = 0
    if buffer_receive(inp, link.fd, RECV_BYTES, &core.bytes_in) == SOCKET_GONE:
        return -1
    while buffer_held(inp) >= FRAME_HEADER_BYTES:
        head = <FrameHeader *>(inp.data + inp.start)
        if not head_is_known(head) or head.flags or head.body_bytes > DATA_BODY_MAX:
            return -1
        if buffer_held(inp) < FRAME_HEADER_BYTES + head.body_bytes:
            break
        if _take_frame(core, link, head, <const char *>head + FRAME_HEADER_BYTES) < 0:
            return -1
        inp.start += FRAME_HEADER_BYTES + head.body_bytes
    if inp.start == inp.end:
        inp.start = inp.end = 0
    return 0
