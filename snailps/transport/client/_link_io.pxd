# cython: cdivision=True
# The client's traffic with one shard: parts out, replies in.
#
#   parts -> bodies (`_body.pxd`) -> frames -> socket
#   socket -> replies, in any order -> rows to their places in the caller's array
#
# Knows neither how connections are made nor who waits.  For who holds the client's turn.
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strlen

from snailps.transport._frame cimport *
from snailps.transport._posix cimport *
from snailps.transport.client._body cimport *
from snailps.transport.client._key_list_directory cimport lists_full
from snailps.transport.client._link cimport *
from snailps.transport.client._product_batch cimport *
from snailps.transport.client._request cimport (
    EVERY_SHARD, KIND_RAW, Request, Sent, request_refused, waits_for_clock,
)


# --- sending -------------------------------------------------------------------------------------

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
    cdef size_t body = sizeof(GroupHead)
    cdef size_t pad
    cdef GroupHead *top
    cdef char *to
    cdef KeysPlan plan
    plan_keys(&link.lists, r, part, groups, &plan)
    body += plan.bytes
    if r.clocked:
        body += sizeof(ClockHead)
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
    to = <char *>(top + 1)
    if r.clocked:
        top.options |= OPTION_CLOCK
        write_clock(<ClockHead *>to, r)
        to += sizeof(ClockHead)
    to = write_keys(to, r, part, groups, &plan)
    if r.kind == KIND_PUSH:
        if not write_values(core.wire, r, part, to):
            return 0
        to += <size_t>part.count * r.row_bytes
    memset(to, 0, pad)
    return body


cdef inline void write_clock(ClockHead *head, const Request *r) noexcept nogil:
    head.clock = r.clock
    head.slot = r.slot
    head.slots = 0


cdef inline bint keep_room(Link *link, Part *part) noexcept nogil:
    """Room for the values of a part as they go out."""
    cdef size_t need = <size_t>part.count * part.request.row_bytes
    if need <= PART_BYTES and link.kept_num:
        link.kept_num -= 1
        part.kept = link.kept[link.kept_num]
    else:
        part.kept = <char *>malloc(max(need, <size_t>PART_BYTES))
    return part.kept != NULL


cdef inline void write_header(Core *core, Link *link, const Request *r, uint64_t number,
                              size_t body) noexcept nogil:
    """The header in front of a body that is in its place; both become output."""
    cdef FrameHeader *head = <FrameHeader *>(link.out + link.out_end)
    head.magic = FRAME_MAGIC
    head.version = FRAME_VERSION
    head.kind = r.raw_kind if r.kind == KIND_RAW else r.kind
    head.flags = 0
    head.table = r.table
    head.epoch = core.epoch
    head.job = core.job
    head.incarnation = core.incarnation
    head.request = number
    head.body_bytes = body
    link.out_end += FRAME_HEADER_BYTES + body


cdef inline bint write_examples(Core *core, Link *link, const Request *r, uint32_t shard,
                                uint32_t first, uint32_t count, uint64_t seq, bint quiet,
                                uint64_t number) noexcept nogil:
    """Appends a FORWARD or BACKWARD of some examples to the output; False = no memory."""
    cdef uint32_t width = 0
    cdef uint64_t base = 0
    cdef size_t body
    cdef char *to
    if r.kind == KIND_FORWARD:
        body = forward_bytes(r, shard, first, count, &width, &base)
    else:
        body = backward_bytes(r, count)
    if not out_reserve(link, FRAME_HEADER_BYTES + body):
        return False
    to = link.out + link.out_end + FRAME_HEADER_BYTES
    if r.kind == KIND_FORWARD:
        write_forward(to, r, shard, first, count, width, base, quiet)
    else:
        write_backward(core.wire, to, r, first, count, seq)
    write_header(core, link, r, number, body)
    return True


cdef inline bint catch_up(Core *core, Link *link, Request *r, uint32_t shard, uint32_t upto,
                          uint64_t seq) noexcept nogil:
    """Sends the examples before `upto` that this connection has not carried; False = no memory.

    Number 0: their replies were had on an earlier connection, and nobody waits for another.
    """
    cdef Sent *sent = sent_of(r.product, shard, link.reconnects + 1)
    cdef uint32_t n
    while sent.examples < upto:
        n = min(part_examples(r, shard, sent.examples), upto - sent.examples)
        if not write_examples(core, link, r, shard, sent.examples, n, seq, True, 0):
            return False
        sent.examples += n
    return True


cdef inline bint write_product_part(Core *core, Link *link, Part *part,
                                    uint32_t shard) noexcept nogil:
    """Appends a part of a batch, behind what the shard must have got before it."""
    cdef Request *r = part.request
    cdef Request *forward = r.product.forward
    if r.kind == KIND_BACKWARD \
            and not catch_up(core, link, forward, shard, r.product.examples, 0):
        return False
    if (r.kind == KIND_BACKWARD or r.product.keep) \
            and not catch_up(core, link, r, shard, part.start, part.seq):
        return False
    sent_of(r.product, shard, link.reconnects + 1).examples = part.start + part.count
    return write_examples(core, link, r, shard, part.start, part.count, part.seq, False,
                          part.number)


cdef inline bint write_part(Core *core, Link *link, Part *part, uint32_t shard) noexcept nogil:
    """Appends the frame of a part to the output; False = no memory."""
    cdef Request *r = part.request
    cdef size_t body
    if r.product != NULL:
        return write_product_part(core, link, part, shard)
    if r.kind == KIND_RAW:
        body = r.raw_bytes
        if not out_reserve(link, FRAME_HEADER_BYTES + body):
            return False
        memcpy(link.out + link.out_end + FRAME_HEADER_BYTES, r.raw_body, body)
    else:
        body = write_body(core, link, r, part)
        if body == 0:
            return False
    write_header(core, link, r, part.number, body)
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
            if not write_part(core, link, part, shard):
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

cdef inline bint says_unknown_batch(const FrameHeader *head, const char *body) noexcept nogil:
    """Whether the shard ends the connection because it does not (or no longer) know a batch."""
    cdef const char *words = b'{"code":"batch"'
    return head.kind == KIND_ERROR and head.body_bytes > 15 and memcmp(body, words, 15) == 0


cdef inline bint sends_elsewhere(Core *core, Link *link, const FrameHeader *head,
                                 const char *body) noexcept nogil:
    """Whether the shard says that another has its place: a new connection finds that one."""
    cdef const char *code = b'{"code":"stale-route"'
    cdef size_t n = <size_t>min(head.body_bytes, <uint64_t>(WORDS_MAX - 1))
    if core.patience_s <= 0 or head.kind != KIND_ERROR or n < strlen(code) \
            or memcmp(body, code, strlen(code)) != 0:
        return False
    memcpy(link.words, body, n)
    link.words[n] = 0
    return True


cdef inline int take_frame(Core *core, Link *link, const FrameHeader *head,
                           const char *body) noexcept nogil:
    """Takes one reply; -1 = the shard broke the protocol."""
    cdef const char *width = b'{"code":"width","text":"the shard\'s rows of this table have ' \
        b'another width than the array: declare the table with that dim"}'
    cdef Part *part
    cdef Request *r
    if says_unknown_batch(head, body):
        core.batches_forgotten += 1
        return -1                                   # the next connection begins with the batch
    if sends_elsewhere(core, link, head, body):
        return -1
    if head.request == 0 and head.kind == KIND_ERROR:   # the shard ends the connection: why
        break_core(core, body, head.body_bytes, True)
        return 0
    part = &link.parts[head.request & (WINDOW - 1)]
    r = part.request
    if r == NULL or part.number != head.request:
        return 0                                    # answered before: a repeated reply
    if head.kind == KIND_ERROR:
        request_refused(r, body, head.body_bytes)
    elif head.kind != (r.raw_kind if r.kind == KIND_RAW else r.kind) + 1:
        return -1                       # replies are numbered next to what they answer
    elif r.kind == KIND_RAW and r.raw_shard == <uint32_t>EVERY_SHARD:
        pass                            # of which each only says that it is so
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
        if not take_product(core.wire, r, <uint32_t>(link - core.links), part.start, part.count,
                            body, head.body_bytes):
            request_refused(r, width, strlen(width))
    elif take_rows(core.wire, r, part, body, head.body_bytes):
        core.rows_pulled += part.count
    else:
        request_refused(r, width, strlen(width))
    if waits_for_clock(r) and head.kind != KIND_ERROR:
        link.reached = max(link.reached, r.clock)
    link.fruitless = 0
    link.words[0] = 0
    close_part(core, link, head.request & (WINDOW - 1),
               head.kind == KIND_ERROR or head.table == LIST_UNKEPT)
    if head.table == LIST_UNKEPT:
        lists_full(&link.lists)
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
    got = c_recv(link.fd, link.inp + link.in_end,
                 min(<size_t>IN_BYTES - link.in_end, <size_t>RECV_BYTES), MSG_DONTWAIT)
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
                or head.flags or head.body_bytes > DATA_BODY_MAX:
            return -1
        if held < FRAME_HEADER_BYTES + head.body_bytes:
            break
        if take_frame(core, link, head, <const char *>head + FRAME_HEADER_BYTES) < 0:
            return -1
        link.in_start += FRAME_HEADER_BYTES + head.body_bytes
    if link.in_start == link.in_end:
        link.in_start = link.in_end = 0
    return 0
