# cython: cdivision=True
# What the client keeps of all its connections (`Core`) and of one (`Link`): requests that wait for
# their turn, and the parts of them that are under way.
#
#   queue of requests -> parts of about 64 KiB, in order -> answered, in any order -> done
#
# `_link_io.pxd` sends and receives them.  All of it belongs to who holds `Core.turn`; what it shares
# with others is in `Core`, under `Core.lock`.
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove

from snailps.abi._wire_types cimport WireOps
from snailps.transport._frame cimport *
from snailps.transport._posix cimport *
from snailps.transport.client._body cimport *
from snailps.transport.client._error_feedback cimport Owing
from snailps.transport.client._key_list_directory cimport Lists, NO_PLACE, lists_release
from snailps.transport.client._product_batch cimport part_examples
from snailps.transport.client._request cimport KIND_RAW, Order, Pool, Request

cdef enum:
    WINDOW = 1024                   # parts in flight per shard; a power of two
    NO_PART = WINDOW
    # Parts of pulls whose clock has not come: what a shard keeps of a connection is bounded, and a
    # push that could not be sent behind them would be what they wait for.
    WAITING_MAX = 128
    OUT_BYTES_AIM = 128 << 10       # build no further part while this much waits to be sent
    SEND_TURN_BYTES = 4 << 20       # sent to one shard before the others have their turn
    KEPT_MAX = 64                   # rooms kept for later parts
    GOODPUT_BYTES_MIN = 256 << 10   # a busy time that moved less says more of delays than of speed
    GOODPUT_BYTES_MAX = 4 << 20     # a longer one is counted in pieces
    RECV_BYTES = 128 << 10          # taken at a time: still in cache when it is scattered
    IN_BYTES = DATA_BODY_MAX + FRAME_HEADER_BYTES + (256 << 10)
    TEXT_MAX = 4096
    WORDS_MAX = 512


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
    double lost_at                  # the first connection was lost since a part was answered
    uint32_t fruitless              # connections lost since a part was answered
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
    Lists lists                     # of keys that the shard remembers
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
    pthread_cond_t changed          # ... stop, ended, broken and its text, drivers, driven_at
    pthread_cond_t mend
    pthread_mutex_t turn            # held by who serves the links: the client's thread, or a caller
    pthread_cond_t idle             # ... for whom that thread stands back
    uint32_t drivers                # callers that serve the links while they wait
    uint32_t blind                  # waits of drivers that sleep at once: see wait_events
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
    uint64_t batches_forgotten      # connections that ended because a shard did not know a batch
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


# --- parts ---------------------------------------------------------------------------------------

cdef inline bint queue_put(Queue *q, Request *r) noexcept nogil:
    """False = no memory."""
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
    q.items[q.head + q.count].request = r
    q.items[q.head + q.count].group = 0
    q.items[q.head + q.count].at = 0
    q.count += 1
    return True


cdef inline void queue_by_clock(Queue *q) noexcept nogil:
    """Moves the last one in front of those of higher clocks, begun or not: who waits for a clock must
    not hold up who is needed to end the one before."""
    cdef uint32_t i = q.head + q.count - 1
    cdef Turn last = q.items[i]
    while i > q.head and q.items[i - 1].request.clock > last.request.clock:
        q.items[i] = q.items[i - 1]
        i -= 1
    q.items[i] = last


cdef inline void leave_queue(Core *core, Queue *q) noexcept nogil:
    """The first request of the queue has all its parts."""
    cdef Request *r = q.items[q.head].request
    q.head += 1
    q.count -= 1
    if q.count == 0:
        q.head = 0
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
    link.waiting -= part.request.clocked and part.request.kind == KIND_PULL
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


cdef inline bint waits_for_so_early(const Link *link, uint64_t clock) noexcept nogil:
    """Whether a part is open that waits for this clock or one before: its answer would tell."""
    cdef uint32_t slot = link.oldest
    cdef const Request *r
    while slot != NO_PART:
        r = link.parts[slot].request
        if r.clocked and r.kind == KIND_PULL and r.clock <= clock:
            return True
        slot = link.parts[slot].after
    return False


cdef inline Queue *next_queue(Core *core, Link *link) noexcept nogil:
    """Where the next part comes from."""
    cdef Request *r
    if link.ahead.count:
        return &link.ahead
    while link.clocked.count:
        r = link.clocked.items[link.clocked.head].request
        if load_flag(&r.abandoned):
            leave_queue(core, &link.clocked)
        elif r.clock <= link.reached or link.waiting < WAITING_MAX \
                or not waits_for_so_early(link, r.clock):
            return &link.clocked
        else:
            break
    return &link.queue


cdef inline bint cut_part(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Makes the next part of a queue's first request; False when there is none or no slot."""
    cdef Queue *q = next_queue(core, link)
    cdef Turn *turn
    cdef Request *r
    cdef Part *part
    cdef uint32_t i, stop_group
    if link.free_count == 0 or q.count == 0:
        return False
    turn = &q.items[q.head]
    r = turn.request
    part = open_part(core, link, r)
    part.seq = 0
    if r.kind == KIND_RAW:
        leave_queue(core, q)
        return True
    if r.product != NULL:
        part.start = turn.at                    # examples, where others have keys
        part.count = part_examples(r, shard, turn.at)
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
    part.count = min(rows_per_part(r), r.group_start[stop_group] - turn.at)
    if r.kind == KIND_PUSH:
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
