# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fan-out client: pulls and pushes of many keys, spread over all shards at once.

    keys -> fragment (counting sort) -> parts of about 256 KiB -> one connection a shard
    replies, in any order -> scattered to their place in the caller's array

It owns the connections to the shards, the numbers of pushes, and every request until it is
answered.  It knows no models and no cluster: how to (re)connect is a function it is given, the
route an array.  One thread of its own sends and receives without the GIL; callers only sort keys
and wait.

What holds
----------
* Requests go out in the order of the calls, per shard.  A pull that was called before a push
  does not see it; a pull called after a push does.
* Nothing is forgotten before it is answered: after a lost connection every open part is sent
  again, in the original order and with its original number, before anything new.
* Sending never stops receiving: one epoll loop does both, and parts are built only when the
  socket takes them, so that memory does not grow with what is outstanding.
* Arrays given to an asynchronous call must not change until it is done.
"""

import queue
import threading

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from snailps.errors import ConnectionLost, MisuseError, RemoteError, SnailError, WaitTimeout
from snailps.transport.frame import Frame, Kind
from snailps.transport.session import remote_error

from snailps._hash cimport fragment_of_hash, hash_key
from snailps.transport._frame cimport *

cdef extern from "<sys/epoll.h>" nogil:
    enum: EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    enum: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)

cdef extern from "<sys/eventfd.h>" nogil:
    enum: EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int initval, int flags)

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_NOSIGNAL, MSG_DONTWAIT
    ssize_t c_recv "recv"(int fd, void *buf, size_t n, int flags)
    ssize_t c_send "send"(int fd, const void *buf, size_t n, int flags)

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    ssize_t c_read "read"(int fd, void *buf, size_t n)
    ssize_t c_write "write"(int fd, const void *buf, size_t n)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *m, void *attr)
    int pthread_mutex_destroy(pthread_mutex_t *m)
    int pthread_mutex_lock(pthread_mutex_t *m)
    int pthread_mutex_unlock(pthread_mutex_t *m)
    int pthread_condattr_init(pthread_condattr_t *a)
    int pthread_condattr_setclock(pthread_condattr_t *a, int clock)
    int pthread_cond_init(pthread_cond_t *c, pthread_condattr_t *a)
    int pthread_cond_destroy(pthread_cond_t *c)
    int pthread_cond_broadcast(pthread_cond_t *c)
    int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const timespec *t)

cdef extern from "<time.h>" nogil:
    enum: CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *t)

cdef enum:
    WINDOW = 1024                   # parts in flight per shard; a power of two
    OUT_BYTES_AIM = 512 << 10       # build no further part while this much waits to be sent
    IN_BYTES = DATA_BODY_MAX + FRAME_HEADER_BYTES + (256 << 10)
    EVENTS_MAX = 64
    KIND_RAW = 0                    # a request whose body and reply are opaque here (SCAN)
    TEXT_MAX = 3200


cdef struct Request:
    uint8_t kind                    # KIND_PULL, KIND_PUSH or KIND_RAW
    uint8_t raw_kind
    bint done
    bint failed
    uint32_t table
    uint32_t dim
    uint32_t n
    uint32_t groups
    uint64_t *keys                  # n, in order of shard and fragment
    uint32_t *order                 # n: place in the caller's arrays
    uint64_t *stamps                # n: seq of the push, or mark that came with the pulled row
    uint32_t *group_fragment        # groups
    uint32_t *group_start           # groups + 1
    uint32_t *shard_group           # shards + 1: first group of each shard
    char *rows                      # caller's values or output
    size_t row_stride               # bytes
    const char *raw_body
    uint32_t raw_bytes
    uint32_t raw_shard
    char *raw_reply
    uint64_t raw_reply_bytes
    uint32_t unsent                 # shards that still have parts to be built
    uint32_t open                   # parts in flight
    char text[TEXT_MAX]             # ERROR body of the first refusal
    uint32_t text_bytes
    Request *next                   # in the list of new requests


cdef struct Part:
    Request *request                # NULL = answered
    uint32_t start
    uint32_t count
    uint32_t group
    uint64_t seq


cdef struct Queue:                  # requests whose parts are still to be built, per shard
    Request **items
    uint32_t head
    uint32_t count
    uint32_t cap


cdef struct Link:                   # the connection to one shard
    int fd                          # -1 = down
    int new_fd                      # given by the mender, -1 = none
    uint32_t events
    Queue queue
    uint32_t group                  # where the first request of the queue goes on
    uint32_t at
    Part parts[WINDOW]
    uint64_t oldest                 # number of the oldest open part; numbers start at 1
    uint64_t next                   # number of the next new part
    uint64_t resend                 # next part to be sent again after a reconnection; == next: none
    char *inp
    size_t in_start
    size_t in_end
    char *out
    size_t out_cap
    size_t out_start
    size_t out_end
    uint64_t reconnects


cdef struct Core:
    pthread_mutex_t lock            # guards fresh, fresh_tail, done flags, new_fd, stop, broken
    pthread_cond_t changed
    int epoll_fd
    int wake_fd
    bint stop
    bint broken                     # every request fails with `text`
    char text[TEXT_MAX]
    uint32_t text_bytes
    Request *fresh
    Request *fresh_tail
    Link *links
    uint32_t shards
    uint32_t frag_num
    uint32_t *owner                 # fragment -> shard
    uint32_t *rank                  # fragment -> place in order of (shard, fragment)
    uint32_t epoch
    uint64_t job
    uint64_t incarnation
    uint64_t seq                    # last number given to a push part
    uint64_t bytes_out
    uint64_t bytes_in
    uint64_t rows_pulled
    uint64_t rows_pushed
    uint64_t open_requests


# --- sorting keys ----------------------------------------------------------------------------

cdef int _sort_keys(Core *core, Request *r, const uint64_t *keys) noexcept nogil:
    """Counting sort of the caller's keys by (shard, fragment); -1 = no memory."""
    cdef uint32_t frag_num = core.frag_num
    cdef uint32_t *place = <uint32_t *>malloc(<size_t>r.n * 4)
    cdef uint32_t *count = <uint32_t *>calloc(frag_num + 1, 4)
    cdef uint32_t *fragment_at = <uint32_t *>malloc(<size_t>frag_num * 4)
    cdef uint32_t i, p, g, s, total
    if place == NULL or count == NULL or fragment_at == NULL:
        free(place)
        free(count)
        free(fragment_at)
        return -1
    for i in range(frag_num):
        fragment_at[core.rank[i]] = i
    for i in range(r.n):
        p = core.rank[fragment_of_hash(hash_key(keys[i]), frag_num)]
        place[i] = p
        count[p] += 1
    g = 0
    total = 0
    s = 0
    r.shard_group[0] = 0
    for p in range(frag_num):
        while core.owner[fragment_at[p]] > s:
            s += 1
            r.shard_group[s] = g
        i = count[p]
        count[p] = total
        if i:
            r.group_fragment[g] = fragment_at[p]
            r.group_start[g] = total
            g += 1
        total += i
    while s < core.shards:
        s += 1
        r.shard_group[s] = g
    r.group_start[g] = total
    r.groups = g
    for i in range(r.n):
        p = count[place[i]]
        count[place[i]] += 1
        r.keys[p] = keys[i]
        r.order[p] = i
    free(place)
    free(count)
    free(fragment_at)
    return 0


cdef Request *_request_new(Core *core, uint32_t n) noexcept nogil:
    cdef Request *r = <Request *>calloc(1, sizeof(Request))
    cdef uint32_t groups = min(n, core.frag_num)
    if r == NULL:
        return NULL
    r.n = n
    r.shard_group = <uint32_t *>calloc(core.shards + 1, 4)
    r.keys = <uint64_t *>malloc(<size_t>n * 8 + 8)
    r.stamps = <uint64_t *>calloc(<size_t>n + 1, 8)
    r.order = <uint32_t *>malloc(<size_t>n * 4 + 4)
    r.group_fragment = <uint32_t *>malloc(<size_t>groups * 4 + 4)
    r.group_start = <uint32_t *>malloc(<size_t>(groups + 1) * 4)
    if r.shard_group == NULL or r.keys == NULL or r.stamps == NULL or r.order == NULL \
            or r.group_fragment == NULL or r.group_start == NULL:
        _request_free(r)
        return NULL
    return r


cdef void _request_free(Request *r) noexcept nogil:
    if r == NULL:
        return
    free(r.shard_group)
    free(r.keys)
    free(r.stamps)
    free(r.order)
    free(r.group_fragment)
    free(r.group_start)
    free(r.raw_reply)
    free(r)


# --- the thread: sending ---------------------------------------------------------------------

cdef bint _queue_put(Queue *q, Request *r) noexcept nogil:
    cdef Request **grown
    cdef uint32_t cap
    if q.head + q.count == q.cap:
        if q.head > 0:
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


cdef uint32_t _rows_per_part(Request *r) noexcept nogil:
    cdef uint32_t row_bytes = r.dim * 4
    if r.kind == KIND_PUSH:
        row_bytes += 8
    return max(<uint32_t>1, <uint32_t>SUBFRAME_BYTES // row_bytes)


cdef bint _cut_part(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Makes the next part of the queue's first request; False when there is none or no slot."""
    cdef Request *r
    cdef Part *part
    cdef uint32_t i, stop_group
    if link.next - link.oldest >= WINDOW or link.queue.count == 0:
        return False
    r = link.queue.items[link.queue.head]
    part = &link.parts[link.next & (WINDOW - 1)]
    part.request = r
    part.seq = 0
    r.open += 1
    link.next += 1
    if r.kind == KIND_RAW:
        _leave_queue(core, link, r)
        return True
    stop_group = r.shard_group[shard + 1]
    if link.group < r.shard_group[shard]:       # the first part of this request
        link.group = r.shard_group[shard]
        link.at = r.group_start[link.group]
    part.start = link.at
    part.group = link.group
    part.count = min(_rows_per_part(r), r.group_start[stop_group] - link.at)
    if r.kind == KIND_PUSH:
        core.seq += 1
        part.seq = core.seq
        for i in range(part.start, part.start + part.count):
            r.stamps[i] = part.seq
    link.at += part.count
    while link.group < stop_group and r.group_start[link.group + 1] <= link.at:
        link.group += 1
    if link.group == stop_group:
        _leave_queue(core, link, r)
    return True


cdef void _leave_queue(Core *core, Link *link, Request *r) noexcept nogil:
    link.queue.head += 1
    link.queue.count -= 1
    link.group = 0
    link.at = 0
    r.unsent -= 1
    _finish_if_done(core, r)


cdef void _finish_if_done(Core *core, Request *r) noexcept nogil:
    if r.unsent == 0 and r.open == 0 and not r.done:
        pthread_mutex_lock(&core.lock)
        r.done = True
        core.open_requests -= 1
        pthread_cond_broadcast(&core.changed)
        pthread_mutex_unlock(&core.lock)


cdef bint _out_reserve(Link *link, size_t need) noexcept nogil:
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


cdef bint _write_part(Core *core, Link *link, uint64_t number) noexcept nogil:
    """Appends the frame of a part to the output; False = no memory."""
    cdef Part *part = &link.parts[number & (WINDOW - 1)]
    cdef Request *r = part.request
    cdef FrameHeader *head
    cdef GroupHead *top
    cdef Group *group
    cdef uint32_t groups = 0
    cdef uint32_t g, i, last
    cdef size_t body, pad, row_bytes = <size_t>r.dim * 4
    cdef char *to
    if r.kind == KIND_RAW:
        body = r.raw_bytes
        if not _out_reserve(link, FRAME_HEADER_BYTES + body):
            return False
        memcpy(link.out + link.out_end + FRAME_HEADER_BYTES, r.raw_body, body)
    else:
        last = part.start + part.count
        g = part.group
        while r.group_start[g] < last:
            g += 1
            groups += 1
            if g == r.groups:
                break
        body = sizeof(GroupHead) + groups * sizeof(Group) + <size_t>part.count * 8
        if r.kind == KIND_PUSH:
            body += part.count * row_bytes
        pad = (8 - (body & 7)) & 7
        body += pad
        if not _out_reserve(link, FRAME_HEADER_BYTES + body):
            return False
        top = <GroupHead *>(link.out + link.out_end + FRAME_HEADER_BYTES)
        top.seq = part.seq
        top.keys = part.count
        top.groups = groups
        group = <Group *>(top + 1)
        for g in range(part.group, part.group + groups):
            group.fragment = r.group_fragment[g]
            group.keys = min(r.group_start[g + 1], last) - max(r.group_start[g], part.start)
            group += 1
        to = <char *>group
        memcpy(to, r.keys + part.start, <size_t>part.count * 8)
        to += <size_t>part.count * 8
        if r.kind == KIND_PUSH:
            for i in range(part.start, last):
                memcpy(to, r.rows + r.order[i] * r.row_stride, row_bytes)
                to += row_bytes
        memset(to, 0, pad)
    head = <FrameHeader *>(link.out + link.out_end)
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
    return True


cdef int _send_some(Core *core, Link *link, uint32_t shard) noexcept nogil:
    """Sends parts until the socket is full or nothing is left; -1 = the connection is lost."""
    cdef ssize_t sent
    cdef uint64_t number
    while True:
        while link.out_end - link.out_start < OUT_BYTES_AIM:
            while link.resend < link.next \
                    and link.parts[link.resend & (WINDOW - 1)].request == NULL:
                link.resend += 1
            if link.resend == link.next and not _cut_part(core, link, shard):
                break
            number = link.resend
            if not _write_part(core, link, number):
                return -1
            link.resend = number + 1
        if link.out_end == link.out_start:
            link.out_start = link.out_end = 0
            return 0
        sent = c_send(link.fd, link.out + link.out_start, link.out_end - link.out_start,
                      MSG_NOSIGNAL | MSG_DONTWAIT)
        if sent < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        link.out_start += sent
        core.bytes_out += sent


# --- the thread: receiving -------------------------------------------------------------------

cdef void _answered(Core *core, Link *link, uint64_t number) noexcept nogil:
    cdef Request *r = link.parts[number & (WINDOW - 1)].request
    link.parts[number & (WINDOW - 1)].request = NULL
    while link.oldest < link.next and link.parts[link.oldest & (WINDOW - 1)].request == NULL:
        link.oldest += 1
    r.open -= 1
    _finish_if_done(core, r)


cdef int _take_frame(Core *core, Link *link, const FrameHeader *head,
                     const char *body) noexcept nogil:
    """Takes one reply; -1 = the shard broke the protocol."""
    cdef uint64_t number = head.request
    cdef Part *part
    cdef Request *r
    cdef uint32_t i, g, last, groups = 0
    cdef size_t row_bytes
    cdef uint64_t mark
    if number == 0 and head.kind == KIND_ERROR:     # the shard ends the connection, for this reason
        pthread_mutex_lock(&core.lock)
        core.text_bytes = <uint32_t>min(head.body_bytes, <uint64_t>TEXT_MAX)
        memcpy(core.text, body, core.text_bytes)
        core.broken = True
        pthread_mutex_unlock(&core.lock)
        return 0
    if number < link.oldest or number >= link.next \
            or link.parts[number & (WINDOW - 1)].request == NULL:
        return 0                                    # answered before: a repeated reply
    part = &link.parts[number & (WINDOW - 1)]
    r = part.request
    row_bytes = <size_t>r.dim * 4
    if head.kind == KIND_ERROR:
        if not r.failed:
            r.failed = True
            r.text_bytes = <uint32_t>min(head.body_bytes, <uint64_t>TEXT_MAX)
            memcpy(r.text, body, r.text_bytes)
    elif r.kind == KIND_RAW:
        r.raw_reply = <char *>malloc(head.body_bytes + 1)
        if r.raw_reply == NULL:
            return -1
        memcpy(r.raw_reply, body, head.body_bytes)
        r.raw_reply_bytes = head.body_bytes
    elif r.kind == KIND_PUSH:
        if head.kind != KIND_PUSHED:
            return -1
        core.rows_pushed += part.count
    else:
        last = part.start + part.count
        g = part.group
        while g + groups < r.groups and r.group_start[g + groups] < last:
            groups += 1
        if head.kind != KIND_PULLED \
                or head.body_bytes != ((groups * 8 + part.count * row_bytes + 7) & ~<uint64_t>7):
            return -1
        i = part.start
        for g in range(part.group, part.group + groups):
            memcpy(&mark, body, 8)
            body += 8
            while i < min(r.group_start[g + 1], last):
                r.stamps[i] = mark
                i += 1
        if r.dim == 1:
            for i in range(part.start, last):
                (<float *>(r.rows + r.order[i] * r.row_stride))[0] = (<const float *>body)[0]
                body += 4
        else:
            for i in range(part.start, last):
                memcpy(r.rows + r.order[i] * r.row_stride, body, row_bytes)
                body += row_bytes
        core.rows_pulled += part.count
    _answered(core, link, number)
    return 0


cdef int _receive_some(Core *core, Link *link) noexcept nogil:
    """One recv and all frames that it completes; -1 = the connection is lost."""
    cdef ssize_t got
    cdef FrameHeader *head
    cdef size_t held
    if link.in_start > 0 and IN_BYTES - link.in_end < DATA_BODY_MAX // 2:
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
        if head.magic != FRAME_MAGIC or head.version != FRAME_VERSION or head.flags != 0 \
                or head.body_bytes > DATA_BODY_MAX:
            return -1
        if held < FRAME_HEADER_BYTES + head.body_bytes:
            break
        if _take_frame(core, link, head, <const char *>head + FRAME_HEADER_BYTES) < 0:
            return -1
        link.in_start += FRAME_HEADER_BYTES + head.body_bytes
    if link.in_start == link.in_end:
        link.in_start = link.in_end = 0
    return 0


# --- the thread: its loop --------------------------------------------------------------------

cdef void _take_fresh(Core *core, void *self) noexcept nogil:
    """Moves new requests into the shards' queues and takes over mended connections."""
    cdef Request *r
    cdef Request *next_one
    cdef Link *link
    cdef uint32_t s
    cdef epoll_event event
    cdef uint32_t unsent
    pthread_mutex_lock(&core.lock)
    r = core.fresh
    core.fresh = core.fresh_tail = NULL
    pthread_mutex_unlock(&core.lock)
    while r != NULL:
        next_one = r.next
        unsent = 0
        for s in range(core.shards):
            if (r.kind == KIND_RAW and r.raw_shard == s) or \
                    (r.kind != KIND_RAW and r.shard_group[s] < r.shard_group[s + 1]):
                unsent += 1
        r.unsent = unsent
        if unsent == 0:
            _finish_if_done(core, r)
        else:
            for s in range(core.shards):
                if (r.kind == KIND_RAW and r.raw_shard == s) or \
                        (r.kind != KIND_RAW and r.shard_group[s] < r.shard_group[s + 1]):
                    _queue_put(&core.links[s].queue, r)
        r = next_one
    for s in range(core.shards):
        link = &core.links[s]
        if link.new_fd >= 0:
            pthread_mutex_lock(&core.lock)
            link.fd = link.new_fd
            link.new_fd = -1
            pthread_mutex_unlock(&core.lock)
            link.events = EPOLLIN
            event.events = EPOLLIN
            event.data.u64 = s + 1
            if epoll_ctl(core.epoll_fd, EPOLL_CTL_ADD, link.fd, &event) < 0:
                _link_down(core, link, s, self)


cdef void _link_down(Core *core, Link *link, uint32_t shard, void *self) noexcept nogil:
    """Closes a lost connection and asks for a new one; its open parts will be sent again."""
    c_close(link.fd)
    link.fd = -1
    link.in_start = link.in_end = 0
    link.out_start = link.out_end = 0
    link.resend = link.oldest
    link.reconnects += 1
    if not core.stop:
        _ask_mender(self, shard)


cdef void _fail_all(Core *core) noexcept nogil:
    """Ends every request with the client's own error."""
    cdef Link *link
    cdef uint32_t s
    cdef uint64_t number
    cdef Request *r
    for s in range(core.shards):
        link = &core.links[s]
        for number in range(link.oldest, link.next):
            r = link.parts[number & (WINDOW - 1)].request
            if r != NULL:
                r.failed = True
                link.parts[number & (WINDOW - 1)].request = NULL
                r.open -= 1
                _finish_if_done(core, r)
        link.oldest = link.resend = link.next
        while link.queue.count:
            r = link.queue.items[link.queue.head]
            r.failed = True
            _leave_queue(core, link, r)
        link.out_start = link.out_end = 0


cdef void _run(Core *core, void *self) noexcept nogil:
    cdef epoll_event events[EVENTS_MAX]
    cdef epoll_event event
    cdef uint64_t token
    cdef uint32_t s, wanted
    cdef int n, i
    cdef Link *link
    while not core.stop:
        n = epoll_wait(core.epoll_fd, events, EVENTS_MAX, 1000)
        for i in range(n):
            token = events[i].data.u64
            if token == 0:
                c_read(core.wake_fd, &token, sizeof(token))
                continue
            link = &core.links[token - 1]
            if link.fd >= 0 and events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP) \
                    and _receive_some(core, link) < 0:
                _link_down(core, link, <uint32_t>(token - 1), self)
        _take_fresh(core, self)
        if core.broken:
            _fail_all(core)
            continue
        for s in range(core.shards):
            link = &core.links[s]
            if link.fd < 0:
                continue
            if _send_some(core, link, s) < 0:
                _link_down(core, link, s, self)
                continue
            wanted = EPOLLIN | (EPOLLOUT if link.out_end > link.out_start else 0)
            if wanted != link.events:
                link.events = wanted
                event.events = wanted
                event.data.u64 = s + 1
                epoll_ctl(core.epoll_fd, EPOLL_CTL_MOD, link.fd, &event)
    core.broken = True
    _take_fresh(core, self)
    _fail_all(core)


cdef void _ask_mender(void *self, uint32_t shard) noexcept with gil:
    (<Client>self).to_mend.put(shard)


# --- Python side -----------------------------------------------------------------------------

cdef class Pending:
    """A pull or push under way.

    Attributes
    ----------
    done : bool
        Whether it is answered, well or badly; `wait` then returns at once.
    rows : numpy.ndarray
        float32 (n, dim): the caller's values, or where the pulled rows go.
    """

    cdef Request *request
    cdef Client client
    cdef readonly object rows
    cdef object keys
    cdef str what

    def __dealloc__(self):
        _request_free(self.request)

    @property
    def done(self):
        return bool(self.request.done)

    def wait(self, timeout_s=None):
        """Waits for the answer and returns `rows`.

        Parameters
        ----------
        timeout_s : float, optional
            Limit, seconds; the client's own `timeout_s` if not given.

        Raises
        ------
        WaitTimeout
            Names the shards that have not answered.  The request goes on; wait again if you like.
        RemoteError
            A shard refused; its own words.
        ConnectionLost
            The cluster ended or a shard could not be reached again.
        """
        cdef Core *core = self.client.core
        cdef timespec until
        cdef double limit = self.client.timeout_s if timeout_s is None else timeout_s
        cdef double waited = 0
        cdef bint done = False
        while True:
            with nogil:
                clock_gettime(CLOCK_MONOTONIC, &until)
                until.tv_nsec += 100000000
                if until.tv_nsec >= 1000000000:
                    until.tv_nsec -= 1000000000
                    until.tv_sec += 1
                pthread_mutex_lock(&core.lock)
                if not self.request.done:
                    pthread_cond_timedwait(&core.changed, &core.lock, &until)
                    waited += 0.1
                done = self.request.done
                pthread_mutex_unlock(&core.lock)
            if done:
                break
            PyErr_CheckSignals()
            if waited > limit:
                raise WaitTimeout(
                    f"{self.what} waited {limit:.0f} s for {self.client._whom(self)}: "
                    "is that server alive, and is its port open from here?")
        if self.request.failed:
            if self.request.text_bytes:
                raise remote_error(
                    Frame(Kind.ERROR, self.request.text[:self.request.text_bytes]))
            raise ConnectionLost(
                f"{self.what}: {core.text[:core.text_bytes].decode('utf-8', 'replace')}")
        return self.rows


cdef class Client:
    """Pulls from and pushes to all shards of a cluster.

    Parameters
    ----------
    connect : callable
        ``connect(shard: int) -> int``: a connected, authenticated socket's descriptor, which the
        client owns from then on.  Called in the client's own helper thread; raises a `SnailError`
        when the shard cannot be reached in time, which ends the client.
    names : list of str
        What to call each shard in messages.
    owner : numpy.ndarray
        uint32 (frag_num,): shard of each fragment.
    epoch, job, incarnation : int
        Route epoch; life of the cluster; life of this process.  A push's number is unique only
        together with the incarnation, so use one client an incarnation.
    timeout_s : float
        Default limit of a wait, seconds.

    Notes
    -----
    Thread-safe.  Calls made by one thread keep their order.
    """

    cdef Core *core
    cdef object connect
    cdef object to_mend
    cdef object threads
    cdef object live
    cdef object live_lock
    cdef readonly list names
    cdef readonly double timeout_s

    def __cinit__(self, connect, names, owner, uint32_t epoch, uint64_t job, uint64_t incarnation,
                  double timeout_s=60.0):
        cdef pthread_condattr_t attr
        cdef epoll_event event
        cdef uint32_t i
        cdef const uint32_t[::1] owners = np.ascontiguousarray(owner, np.uint32)
        cdef const uint32_t[::1] by_place
        if owners.shape[0] == 0 or np.max(owner) >= len(names):
            raise MisuseError("the route names a shard that is not there")
        self.core = <Core *>calloc(1, sizeof(Core))
        if self.core == NULL:
            raise MemoryError
        pthread_mutex_init(&self.core.lock, NULL)
        pthread_condattr_init(&attr)
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC)
        pthread_cond_init(&self.core.changed, &attr)
        self.core.shards = len(names)
        self.core.frag_num = owners.shape[0]
        self.core.epoch = epoch
        self.core.job = job
        self.core.incarnation = incarnation
        self.core.links = <Link *>calloc(self.core.shards, sizeof(Link))
        self.core.owner = <uint32_t *>malloc(<size_t>self.core.frag_num * 4)
        self.core.rank = <uint32_t *>malloc(<size_t>self.core.frag_num * 4)
        if self.core.links == NULL or self.core.owner == NULL or self.core.rank == NULL:
            raise MemoryError
        by_place = np.argsort(owner, kind="stable").astype(np.uint32)
        for i in range(self.core.frag_num):
            self.core.owner[i] = owners[i]
            self.core.rank[by_place[i]] = i
        for i in range(self.core.shards):
            self.core.links[i].fd = self.core.links[i].new_fd = -1
            self.core.links[i].oldest = self.core.links[i].next = self.core.links[i].resend = 1
            self.core.links[i].inp = <char *>malloc(IN_BYTES)
            if self.core.links[i].inp == NULL:
                raise MemoryError
        self.core.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.core.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.core.epoll_fd < 0 or self.core.wake_fd < 0:
            raise OSError(errno, "cannot make an event loop: too many open files?")
        event.events = EPOLLIN
        event.data.u64 = 0
        epoll_ctl(self.core.epoll_fd, EPOLL_CTL_ADD, self.core.wake_fd, &event)
        self.connect = connect
        self.names = list(names)
        self.timeout_s = timeout_s
        self.to_mend = queue.SimpleQueue()
        self.live = []
        self.live_lock = threading.Lock()
        self.threads = []

    def start(self):
        """Connects to every shard, then serves requests.

        Raises
        ------
        SnailError
            Whatever `connect` raises for a shard that cannot be reached.
        """
        for shard in range(self.core.shards):
            self.core.links[shard].new_fd = self.connect(shard)
        for target, name in ((self._loop, "snailps-client"), (self._mend, "snailps-mender")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self.threads.append(thread)

    def pull_async(self, uint32_t table, keys, rows):
        """Starts a pull of the rows of `keys` into `rows`.

        Parameters
        ----------
        table : int
            Table number.
        keys : numpy.ndarray
            uint64 (n,), contiguous.  Repeated keys are allowed.
        rows : numpy.ndarray
            float32 (n, dim), written in place; rows contiguous, their stride free.

        Returns
        -------
        Pending
        """
        return self._submit(KIND_PULL, table, keys, rows)

    def push_async(self, uint32_t table, keys, values):
        """Starts a push of `values` to the rows of `keys`; applied exactly once each.

        Parameters
        ----------
        table : int
            Table number.
        keys : numpy.ndarray
            uint64 (n,), contiguous.  Repeated keys are applied one after the other.
        values : numpy.ndarray
            float32 (n, dim); rows contiguous, their stride free.  Must not change until done.

        Returns
        -------
        Pending
        """
        return self._submit(KIND_PUSH, table, keys, values)

    def scan(self, uint32_t table, uint32_t dim, fragments, shard):
        """Yields all stored rows of some fragments of one shard, in pieces of up to 1 MiB.

        Yields
        ------
        keys : numpy.ndarray
            uint64 (n,).
        rows : numpy.ndarray
            float32 (n, dim).
        """
        for fragment in fragments:
            cursor = 0
            while True:
                ask = np.array([cursor], "<u8").tobytes() \
                    + np.array([fragment, 0xFFFFFFFF], "<u4").tobytes()
                reply = self._ask(shard, KIND_SCAN, table, ask)
                cursor, n = np.frombuffer(reply, "<u8", 2).tolist()
                if n:
                    yield (np.frombuffer(reply, "<u8", n, 16),
                           np.frombuffer(reply, "<f4", n * dim, 16 + 8 * n).reshape(n, dim))
                if cursor == 0:
                    break

    def correct(self, Pending pull, Pending push, base=None):
        """Adds to pulled rows what an own push added after they were read.

        A prefetched row may lack a delta of this very client that was still on its way.  The reply
        says, per fragment, the highest own push that it contains; for every key of `pull` that
        `push` carries with a higher number, the pushed value is added to the pulled row (and to
        `base`, its untouched copy).  Only right for access method `add`.

        Parameters
        ----------
        pull, push : Pending
            Of the same table; `pull` done, `push` submitted after `pull`.
        base : numpy.ndarray, optional
            float32 (n, dim) beside `pull.rows`.

        Returns
        -------
        int
            Rows corrected.

        Notes
        -----
        A hash join, about 20 ns a key.  Releases the GIL.
        """
        cdef Request *a = pull.request
        cdef Request *b = push.request
        cdef char *second = NULL
        cdef size_t second_stride = 0
        cdef int64_t corrected
        if not a.done or a.kind != KIND_PULL or b.kind != KIND_PUSH or a.table != b.table:
            raise MisuseError("correct() wants a finished pull and a push of the same table")
        if base is not None:
            _check_rows(base, a.n, True)
            second = <char *><uintptr_t>base.ctypes.data
            second_stride = base.strides[0]
        with nogil:
            corrected = _correct(a, b, second, second_stride)
        if corrected < 0:
            raise MemoryError
        return corrected

    def flush(self, timeout_s=None):
        """Waits until every request so far is answered; raises the first error of a push."""
        with self.live_lock:
            waiting = list(self.live)
        try:
            for pending in waiting:
                pending.wait(timeout_s)
        finally:
            with self.live_lock:
                self.live = [p for p in self.live if not (<Pending>p).request.done]

    def fail(self, text):
        """Ends every request, now and later, with `ConnectionLost(text)`."""
        cdef bytes words = text.encode()[:TEXT_MAX]
        cdef const char *source = words
        pthread_mutex_lock(&self.core.lock)
        if not self.core.broken:
            self.core.text_bytes = len(words)
            memcpy(self.core.text, source, len(words))
            self.core.broken = True
        pthread_mutex_unlock(&self.core.lock)
        self._wake()

    def counters(self):
        """Counts since the start, as a dict of numbers."""
        return {
            "bytes_out": self.core.bytes_out,
            "bytes_in": self.core.bytes_in,
            "rows_pulled": self.core.rows_pulled,
            "rows_pushed": self.core.rows_pushed,
            "reconnects": sum(self.core.links[i].reconnects for i in range(self.core.shards)),
            "open": self.core.open_requests,
        }

    def close(self):
        """Ends the threads and closes the connections.  Open requests fail."""
        self.fail("the client was closed")
        self.core.stop = True
        self._wake()
        self.to_mend.put(None)
        for thread in self.threads:
            thread.join(10.0)
        for i in range(self.core.shards):
            if self.core.links[i].fd >= 0:
                c_close(self.core.links[i].fd)
                self.core.links[i].fd = -1

    def cut(self, uint32_t shard):
        """Breaks the connection to a shard, as a network would.  For tests of recovery."""
        import os
        import socket
        fd = self.core.links[shard].fd
        if fd >= 0:
            with socket.socket(fileno=os.dup(fd)) as link:
                link.shutdown(socket.SHUT_RDWR)

    cdef Pending _new_pending(self, Request *r, rows, keys, str what):
        cdef Pending pending = Pending.__new__(Pending)
        pending.request = r
        pending.client = self
        pending.rows = rows
        pending.keys = keys
        pending.what = what
        return pending

    cdef Pending _submit(self, int kind, uint32_t table, keys, rows):
        cdef Request *r
        cdef const uint64_t[::1] wanted
        cdef int failed = 0
        cdef Pending pending
        if not isinstance(keys, np.ndarray) or keys.dtype != np.uint64 or keys.ndim != 1:
            raise MisuseError(f"keys must be a uint64 array of one dimension, got {keys!r:.80}")
        wanted = np.ascontiguousarray(keys)
        if wanted.shape[0] > 0xFFFFFFF0:
            raise MisuseError(f"{wanted.shape[0]:,} keys in one request, limit 4 thousand million")
        _check_rows(rows, wanted.shape[0], kind == KIND_PULL)
        r = _request_new(self.core, <uint32_t>wanted.shape[0])
        if r == NULL:
            raise MemoryError
        r.kind = kind
        r.table = table
        r.dim = rows.shape[1]
        r.rows = <char *><uintptr_t>rows.ctypes.data
        r.row_stride = rows.strides[0]
        if r.dim * 4 > SUBFRAME_BYTES:
            _request_free(r)
            raise MisuseError(f"rows of {rows.shape[1]} floats, limit {SUBFRAME_BYTES // 4}")
        name = "pull" if kind == KIND_PULL else "push"
        pending = self._new_pending(r, rows, None, f"{name} of {r.n:,} rows of table {table}")
        if r.n:
            with nogil:
                failed = _sort_keys(self.core, r, &wanted[0])
        if failed:
            raise MemoryError
        self._enqueue(pending)
        return pending

    def _ask(self, uint32_t shard, uint8_t kind, uint32_t table, bytes body):
        cdef Request *r = _request_new(self.core, 0)
        cdef Pending pending
        if r == NULL:
            raise MemoryError
        r.kind = KIND_RAW
        r.raw_kind = kind
        r.table = table
        r.raw_body = body
        r.raw_bytes = len(body)
        r.raw_shard = shard
        pending = self._new_pending(r, None, body, f"{Kind(kind).name} of table {table}")
        self._enqueue(pending)
        pending.wait()
        return r.raw_reply[:r.raw_reply_bytes]

    cdef _enqueue(self, Pending pending):
        cdef Request *r = pending.request
        self._forget_done()
        with self.live_lock:
            self.live.append(pending)
        r.unsent = 1                # until the thread has counted its shards
        pthread_mutex_lock(&self.core.lock)
        self.core.open_requests += 1
        if self.core.fresh_tail == NULL:
            self.core.fresh = r
        else:
            self.core.fresh_tail.next = r
        self.core.fresh_tail = r
        pthread_mutex_unlock(&self.core.lock)
        self._wake()

    def _forget_done(self):
        """Drops finished requests; keeps failed pushes that nobody has waited for until flush."""
        with self.live_lock:
            self.live = [p for p in self.live if not _is_settled(p)]

    def _wake(self):
        cdef uint64_t one = 1
        c_write(self.core.wake_fd, &one, sizeof(one))

    def _loop(self):
        with nogil:
            _run(self.core, <void *>self)

    def _mend(self):
        while True:
            shard = self.to_mend.get()
            if shard is None or self.core.stop:
                return
            try:
                fd = self.connect(shard)
            except SnailError as error:
                self.fail(str(error))
                continue
            pthread_mutex_lock(&self.core.lock)
            self.core.links[<uint32_t>shard].new_fd = fd
            pthread_mutex_unlock(&self.core.lock)
            self._wake()

    def _whom(self, Pending pending):
        """Names the shards that a request still waits for."""
        cdef uint32_t s
        cdef uint64_t number
        cdef Link *link
        slow = []
        for s in range(self.core.shards):
            link = &self.core.links[s]
            parts = 0
            for number in range(link.oldest, link.next):
                if link.parts[number & (WINDOW - 1)].request == pending.request:
                    parts += 1
            if parts or (link.fd < 0 and pending.request.unsent):
                state = "not connected" if link.fd < 0 else f"{parts} parts unanswered"
                slow.append(f"{self.names[s]} ({state})")
        return ", ".join(slow) or "the client's own thread"

    def __dealloc__(self):
        cdef uint32_t i
        if self.core == NULL:
            return
        if self.core.links != NULL:
            for i in range(self.core.shards):
                if self.core.links[i].fd >= 0:
                    c_close(self.core.links[i].fd)
                free(self.core.links[i].inp)
                free(self.core.links[i].out)
                free(self.core.links[i].queue.items)
        if self.core.epoll_fd > 0:
            c_close(self.core.epoll_fd)
        if self.core.wake_fd > 0:
            c_close(self.core.wake_fd)
        pthread_mutex_destroy(&self.core.lock)
        pthread_cond_destroy(&self.core.changed)
        free(self.core.links)
        free(self.core.owner)
        free(self.core.rank)
        free(self.core)


def _is_settled(Pending pending):
    return pending.request.done and not (pending.request.failed
                                         and pending.request.kind == KIND_PUSH)


def _check_rows(rows, n, writable):
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float32 or rows.ndim != 2:
        raise MisuseError(f"rows must be a float32 array of two dimensions, got {rows!r:.80}")
    if rows.shape[0] != n:
        raise MisuseError(f"{n} keys but {rows.shape[0]} rows")
    if rows.shape[1] < 1 or (n and rows.strides[1] != 4) or rows.strides[0] < 0:
        raise MisuseError("each row must be contiguous")
    if writable and not rows.flags.writeable:
        raise MisuseError("rows to be pulled into must be writable")


cdef int64_t _correct(Request *a, Request *b, char *second, size_t stride) noexcept nogil:
    cdef uint64_t size = 16
    cdef uint64_t mask, at
    cdef uint32_t i, j, d
    cdef int64_t corrected = 0
    cdef uint32_t *table
    cdef float *row
    cdef const float *value
    while size < <uint64_t>b.n * 2:
        size *= 2
    mask = size - 1
    table = <uint32_t *>calloc(size, 4)             # position in b + 1, 0 = empty
    if table == NULL:
        return -1
    for j in range(b.n):
        at = hash_key(b.keys[j]) & mask
        while table[at]:
            at = (at + 1) & mask
        table[at] = j + 1
    for i in range(a.n):
        at = hash_key(a.keys[i]) & mask
        while table[at]:
            j = table[at] - 1
            # A part that is not cut yet (stamp 0) goes out after the pull, so it is newer too.
            if b.keys[j] == a.keys[i] and (b.stamps[j] > a.stamps[i] or b.stamps[j] == 0):
                value = <const float *>(b.rows + b.order[j] * b.row_stride)
                row = <float *>(a.rows + a.order[i] * a.row_stride)
                for d in range(a.dim):
                    row[d] += value[d]
                if second != NULL:
                    row = <float *>(second + a.order[i] * stride)
                    for d in range(a.dim):
                        row[d] += value[d]
                corrected += 1
            at = (at + 1) & mask
    free(table)
    return corrected
