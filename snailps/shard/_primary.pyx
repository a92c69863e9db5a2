# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The primary's side of replication: what it appends to the stream, in which order, and what waits.

    PUSH, applied -> the same, canonical: keys written out, groups that counted only
    BACKWARD -> pushes of gradients, summed by row     SEAL, orders of the master -> the same
    a new standby -> clock, slots, then fragment after fragment: marks and rows as they lie in memory

Every change of rows is appended in the order in which it is executed.

How a fragment is copied while it changes: in pieces, between which pulls and pushes go on.  From its
first piece on, all its changes are forwarded.  A change to a row that is not copied yet gives the
standby a wrong row; the copy of that row, which contains the change, overwrites it later.  A change to a
row that is copied has the same result there as here.  So no lock and no snapshot is needed.

That does not hold for tables of access methods in Python, which may refuse a wrong row, nor for tables
that admit or limit rows, where a row's fate depends on the others.  Their rows are *pinned*: copied
first, while pushes wait if they are many.  Contributions to clocks are forwarded from the beginning,
after everything staged was copied.

Frames go to the stream (transport/loop/_replication_stream.pxd), which knows the socket; nothing here
blocks.  A complete standby replicates what it replays to a standby of its own in the same way.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._row_ops cimport ACCESS_PYTHON
from snailps.abi._wire_types cimport WIRE_FLOAT32
from snailps.shard._context cimport Context, Primary, RowRequest, is_repeated, padded, refuse
from snailps.shard._fences cimport Span
from snailps.store.core._clock_buffer cimport Run, Slots, Staged, Sums, slots_scale
from snailps.store.core._slab cimport (
    Part, Slab, part_copy, part_count, retention_bytes, retention_calls,
)
from snailps.store.tables cimport (
    Lookups, Mark, Marks, Table, Values, float_values, lookups_begin, lookups_push, lookups_put,
    lookups_skip, marks_copy,
    store_keeps, store_mark, store_set_mark,
)
from snailps.transport._frame cimport (
    KIND_BACKWARD, KIND_PUSH, KIND_REPLICATE, KIND_SEAL, NO_SLOT, OPTION_ASSIGN, OPTION_CLOCK,
    OPTION_LR_SCALE,
    OPTION_STATE, OPTION_WIRE_SHIFT, REPLICA_BEGIN, REPLICA_FRAGMENT, REPLICA_ORDER, REPLICA_RESUME,
    REPLICA_RETENTION, REPLICA_ROWS, REPLICA_SEEDED, REPLICA_SLOTS, REPLICA_STAGED, REPLICA_WHOLE,
    BeginHead, ClockHead, FrameHeader, Group, GroupHead, LrHead, ReplicaHead, RowsHead,
    SlotsHead, StagedHead,
)
from snailps.transport.loop._fault_injection cimport FAULT_NO_HOLD, leaves_out
from snailps.transport.loop._handler cimport Reply
from snailps.transport.loop._replication_stream cimport (
    SEED_BYTES, Stream, hold_until, stream_append, stream_break, stream_is_full, stream_take_back,
    stream_waiting,
)

cdef enum:
    PIECE_BYTES = 256 << 10         # of copied rows, in one frame
    PINNED_BYTES = 16 << 20         # of pinned rows, copied at once; with more of them pushes wait
    # With more bytes staged for a clock, seeding waits for the end of the clock, when nothing is staged.
    SEED_STAGED_MAX = 64 << 20


# --- what waits ----------------------------------------------------------------------------------

cdef bint must_wait(Context *me, uint8_t kind, Reply *reply) noexcept nogil:
    """Whether a request that changes rows has to wait; `reply` then says for what.

    Never a pull.  But the loop parks each frame that comes after a parked push of its connection.
    """
    if kind != KIND_PUSH and kind != KIND_SEAL and kind != KIND_BACKWARD:
        return False
    if me.primary.yielding:
        reply.reason = b"the shard's new place, which does not have the last pushes to the old one yet"
        return True
    if me.stream.begun and me.primary.pinned:
        me.stream.parks = True
        reply.reason = b"the standby of this shard: rows are copied to it that must not change meanwhile"
        return True
    if me.stream.begun and stream_is_full(me.stream):
        reply.reason = b"the standby of this shard, which is slower than the pushes"
        return True
    return False


cdef uint64_t held_until(const Context *me) noexcept nogil:
    return 0 if leaves_out(me.faults, FAULT_NO_HOLD) else hold_until(me.stream)


cdef void hold(const Context *me, Reply *reply) noexcept nogil:
    reply.hold = held_until(me)


cdef void force_sync(Context *me) noexcept nogil:
    """Makes the stream synchronous from the first clock on.

    If a promoted standby lacked an acknowledged contribution or seal, no client would send it again,
    and all workers would wait for that clock.
    """
    me.stream.sync = True


cdef void show_clock(Context *me, uint64_t until) noexcept nogil:
    me.primary.clock = me.slots.clock
    me.primary.clock_until = me.stream.wanted = until


# --- what is done --------------------------------------------------------------------------------

cdef char *_append(Context *me, uint32_t what, uint32_t fragment, uint32_t table,
                   uint32_t floats, uint64_t count, uint64_t incarnation,
                   uint64_t body_bytes) noexcept nogil:
    """Appends a REPLICATE; returns room for the body after its head, padding zeroed; NULL = no memory."""
    cdef uint64_t whole = padded(sizeof(ReplicaHead) + body_bytes)
    cdef ReplicaHead *head = <ReplicaHead *>stream_append(
        me.stream, KIND_REPLICATE, table, me.epoch, incarnation, whole)
    if head == NULL:
        return NULL
    head.what = what
    head.fragment = fragment
    head.table = table
    head.floats = floats
    head.count = count
    memset(<char *>head + sizeof(ReplicaHead) + body_bytes, 0,
           whole - sizeof(ReplicaHead) - body_bytes)
    return <char *>(head + 1)


cdef bint _counts(const Context *me, const FrameHeader *head, const RowRequest *asked,
                  uint32_t fragment) noexcept nogil:
    """Whether a group is to be forwarded: it is no repetition, and the copy of its fragment has begun."""
    return (asked.options & OPTION_CLOCK or me.primary.copied[fragment]) \
        and not is_repeated(me, fragment, head.incarnation, asked.seq)


cdef void replicate_push(Context *me, const FrameHeader *head, const RowRequest *asked,
                         Appended *appended) noexcept nogil:
    """Appends a push that is about to be applied; `settle_push` takes it back if it is refused.

    Before it is applied, since only then the marks tell which groups are new.
    """
    cdef uint64_t keys = 0
    cdef uint64_t body
    cdef uint32_t g, at, n
    cdef GroupHead *top
    cdef Group *groups
    cdef char *to
    appended.waiting = stream_waiting(me.stream)
    appended.sent = me.stream.sent
    appended.groups = 0
    for g in range(asked.group_num):
        if _counts(me, head, asked, asked.groups[g].fragment):
            if appended.groups == 0:
                appended.fragment = asked.groups[g].fragment
            appended.groups += 1
            keys += asked.groups[g].keys
    if appended.groups == 0:
        return
    body = sizeof(GroupHead) + (sizeof(ClockHead) if asked.options & OPTION_CLOCK else 0) \
        + (sizeof(LrHead) if asked.options & OPTION_LR_SCALE else 0) \
        + appended.groups * <uint64_t>sizeof(Group) + keys * 8 \
        + padded(keys * <uint64_t>asked.row_bytes)
    top = <GroupHead *>stream_append(me.stream, KIND_PUSH, head.table, me.epoch, head.incarnation,
                                     body)
    if top == NULL:
        appended.groups = 0
        return
    top.seq = asked.seq
    top.keys = <uint32_t>keys
    top.groups = appended.groups
    top.floats = asked.floats
    top.options = asked.options & (OPTION_STATE | OPTION_ASSIGN | OPTION_CLOCK | OPTION_LR_SCALE
                                   | 3 << OPTION_WIRE_SHIFT)
    to = <char *>(top + 1)
    if asked.options & OPTION_CLOCK:
        (<ClockHead *>to).clock = asked.clock
        (<ClockHead *>to).slot = asked.slot
        (<ClockHead *>to).slots = 0
        to += sizeof(ClockHead)
    if asked.options & OPTION_LR_SCALE:
        (<LrHead *>to).lr_scale = asked.lr_scale
        (<LrHead *>to).unused = 0
        to += sizeof(LrHead)
    if appended.groups == asked.group_num:      # nearly always
        memcpy(to, asked.groups, asked.group_num * sizeof(Group))
        to += asked.group_num * sizeof(Group)
        memcpy(to, asked.keys, keys * 8)
        to += keys * 8
        memcpy(to, asked.values, keys * asked.row_bytes)
        to += keys * asked.row_bytes
    else:
        groups = <Group *>to
        to += appended.groups * sizeof(Group)
        at = 0
        for g in range(asked.group_num):
            n = asked.groups[g].keys
            if _counts(me, head, asked, asked.groups[g].fragment):
                groups[0] = asked.groups[g]
                groups += 1
                memcpy(to, asked.keys + at, n * <uint64_t>8)
                to += n * <uint64_t>8
            at += n
        at = 0
        for g in range(asked.group_num):
            n = asked.groups[g].keys
            if _counts(me, head, asked, asked.groups[g].fragment):
                memcpy(to, asked.values + at * <uint64_t>asked.row_bytes,
                       n * <uint64_t>asked.row_bytes)
                to += n * <uint64_t>asked.row_bytes
            at += n
    memset(to, 0, <char *>top + body - to)


cdef void settle_push(Context *me, const FrameHeader *head, const RowRequest *asked,
                      const Appended *appended, bint done) noexcept nogil:
    """Keeps the frame of an applied push, and takes back the frame of a refused one.

    A push that ran out of memory half-way gives up the standby: what the frame would do there is not
    what happened here.
    """
    if appended.groups == 0:
        return
    if store_mark(me.shard, appended.fragment, head.incarnation) < asked.seq:
        stream_take_back(me.stream, appended.waiting, appended.sent)
    elif not done:
        stream_break(me.stream, b"the primary ran out of memory in the middle of a push")


cdef inline int _put_or_push(Lookups *lookups, Table *table, uint32_t n, Values *values,
                             const RowRequest *asked, bint state) noexcept nogil:
    if asked.options & OPTION_ASSIGN:
        return lookups_put(lookups, table, n, values)
    return lookups_push(lookups, table, n, values, state, asked.lr_scale)


cdef bint push_rows(Context *me, Table *table, const RowRequest *asked, uint64_t incarnation,
                    bint state, char *out, Reply *reply) noexcept nogil:
    """Applies the values to every fragment whose mark is lower; False = `reply` is a refusal."""
    cdef uint32_t g, n, fragment
    cdef Lookups lookups
    cdef Values values = float_values(<const float *>asked.values, asked.floats)
    if asked.wire != WIRE_FLOAT32:
        values.bytes = asked.row_bytes
        values.widen = me.wire.widen[asked.wire]
        values.room = me.rows
    lookups_begin(&lookups, me.shard, table, asked.keys, asked.key_num, table.slab.stride)
    for g in range(asked.group_num):
        n = asked.groups[g].keys
        fragment = asked.groups[g].fragment
        if is_repeated(me, fragment, incarnation, asked.seq):
            me.repeated += 1
            lookups_skip(&lookups, n)
            values.at += n * <uint64_t>asked.row_bytes
            continue
        # The mark first: if memory runs out half-way, a repetition must not apply the first rows again.
        if store_set_mark(me.shard, fragment, incarnation, asked.seq) < 0 \
                or _put_or_push(&lookups, table, n, &values, asked, state) < 0:
            refuse(out, reply, b"memory", b"the server has no memory left for fragment %llu",
                   fragment, 0)
            return False
        me.rows_pushed += n
    return True


cdef void replicate_seal(Context *me, const FrameHeader *head, const char *body) noexcept nogil:
    """Appends an executed seal."""
    cdef char *to
    if me.stream.begun:
        to = stream_append(me.stream, KIND_SEAL, 0, me.epoch, head.incarnation, sizeof(ClockHead))
        if to != NULL:
            memcpy(to, body, sizeof(ClockHead))


cdef void replicate_order(Context *me, const char *text, uint64_t n) noexcept nogil:
    cdef char *to = _append(me, REPLICA_ORDER, 0, 0, 0, n, 0, n)
    if to != NULL:
        memcpy(to, text, n)


# --- what a new standby lacks --------------------------------------------------------------------

cdef void _copy_begin(Context *me) noexcept nogil:
    cdef bint resumes = me.primary.resumes
    cdef uint64_t fragments = 0 if resumes else padded(me.primary.fragment_num * <uint64_t>4)
    cdef uint64_t fenced = 0 if resumes else me.fenced.num
    cdef char *to = _append(me, REPLICA_RESUME if resumes else REPLICA_BEGIN, 0, 0, 0,
                                 0 if resumes else me.primary.fragment_num, 0,
                                 sizeof(BeginHead) + fragments + fenced * <uint64_t>sizeof(Span))
    cdef BeginHead *head = <BeginHead *>to
    if to == NULL:
        return
    head.clock = me.slots.clock
    head.tick = me.shard.tick
    head.early = me.slots.early
    head.frag_num = me.frag_num
    head.fenced = me.fenced.num
    if resumes:
        return
    to += sizeof(BeginHead)
    memset(to + fragments - min(fragments, <uint64_t>8), 0, min(fragments, <uint64_t>8))
    memcpy(to, me.primary.fragments, me.primary.fragment_num * <uint64_t>4)
    if fenced:
        memcpy(to + fragments, me.fenced.spans, fenced * <uint64_t>sizeof(Span))


cdef void _copy_staged(Context *me, uint32_t slot, const Staged *part) noexcept nogil:
    cdef uint64_t values = part.key_num * <uint64_t>part.floats * sizeof(float)
    cdef char *to = _append(
        me, REPLICA_STAGED, slot, part.table.table_id, part.floats, part.key_num, part.incarnation,
        sizeof(StagedHead) + part.key_num * <uint64_t>8 + part.run_num * <uint64_t>sizeof(Run) + values)
    if to == NULL:
        return
    (<StagedHead *>to).runs = part.run_num
    (<StagedHead *>to).state = part.state
    (<StagedHead *>to).lr_scale = slots_scale(me.slots, part.table, part.state, 1).lr_scale
    (<StagedHead *>to).unused = 0
    to += sizeof(StagedHead)
    memcpy(to, part.keys, part.key_num * <uint64_t>8)
    to += part.key_num * <uint64_t>8
    memcpy(to, part.runs, part.run_num * <uint64_t>sizeof(Run))
    memcpy(to + part.run_num * <uint64_t>sizeof(Run), part.values, values)


cdef void _copy_sums(Context *me, const Sums *sums) noexcept nogil:
    """Copies the sums of a table, in the order of their keys' first contributions."""
    cdef uint32_t most = max(<uint32_t>1, <uint32_t>(PIECE_BYTES // (16 + 4 * <uint64_t>sums.floats)))
    cdef uint32_t at = 0
    cdef uint32_t n, i, runs
    cdef uint64_t row_bytes = sums.floats * <uint64_t>sizeof(float)
    cdef Group *run
    cdef char *to
    while at < sums.count:
        n = min(sums.count - at, most)
        runs = 0
        for i in range(at, at + n):
            runs += i == at or sums.fragments[i] != sums.fragments[i - 1]
        to = _append(me, REPLICA_STAGED, NO_SLOT, sums.table.table_id, sums.floats, n, 0,
                          sizeof(StagedHead) + n * <uint64_t>8 + runs * <uint64_t>sizeof(Group)
                          + n * row_bytes)
        if to == NULL:
            return
        (<StagedHead *>to).runs = runs
        (<StagedHead *>to).state = sums.state
        (<StagedHead *>to).lr_scale = sums.lr_scale
        (<StagedHead *>to).unused = 0
        to += sizeof(StagedHead)
        memcpy(to, sums.keys + at, n * <uint64_t>8)
        to += n * <uint64_t>8
        run = <Group *>to - 1
        for i in range(at, at + n):
            if i == at or sums.fragments[i] != sums.fragments[i - 1]:
                run += 1
                run.fragment = sums.fragments[i]
                run.keys = 0
            run.keys += 1
        to += runs * <uint64_t>sizeof(Group)
        for i in range(at, at + n):
            memcpy(to, sums.rows[i], row_bytes)
            to += row_bytes
        at += n


cdef void _copy_slots(Context *me) noexcept nogil:
    """Copies all contributions to the present clock, then which slots are sealed."""
    cdef const Slots *s = me.slots
    cdef const Sums *sums = s.sums
    cdef const Staged *part
    cdef uint32_t i
    cdef uint64_t *pair
    cdef char *to
    while sums != NULL:
        _copy_sums(me, sums)
        sums = sums.next
    for i in range(s.cap):
        part = s.slot[i].first
        while part != NULL:
            _copy_staged(me, i, part)
            part = part.next
    to = _append(me, REPLICA_SLOTS, 0, 0, 0, s.cap, 0,
                      sizeof(SlotsHead) + s.cap * <uint64_t>16)
    if to == NULL:
        return
    (<SlotsHead *>to).slots = s.slots
    (<SlotsHead *>to).summed = s.summed
    (<SlotsHead *>to).broken = s.broken
    (<SlotsHead *>to).held = 0
    pair = <uint64_t *>(to + sizeof(SlotsHead))
    for i in range(s.cap):
        pair[0] = s.slot[i].sealed
        pair[1] = s.slot[i].refused
        pair += 2


cdef char *_append_rows(Context *me, const Table *table, uint32_t fragment,
                        uint64_t count) noexcept nogil:
    """Appends a frame of rows as they lie in memory; returns room for them; NULL = no memory."""
    cdef RowsHead *head = <RowsHead *>_append(
        me, REPLICA_ROWS, fragment, table.table_id, table.slab.floats, count, 0,
        sizeof(RowsHead) + count * table.slab.stride)
    if head == NULL:
        return NULL
    head.version = head.deleted = 0
    head.track = table.track
    head.row_bytes = table.slab.stride
    return <char *>(head + 1)


cdef inline uint32_t _piece_rows(const Table *table) noexcept nogil:
    return max(<uint32_t>1, <uint32_t>(PIECE_BYTES // table.slab.stride))


cdef bint _copy_rows(Context *me, const Table *table, uint32_t fragment,
                     uint32_t *number) noexcept nogil:
    """Copies some rows from slot `number` on, and advances `number`; returns whether they were the last."""
    cdef const Slab *slab = &table.slab
    cdef const Part *part = &slab.parts[fragment]
    cdef uint32_t most = _piece_rows(table)
    cdef uint32_t n = part_count(slab, part, NULL, number[0], most)
    cdef char *to = _append_rows(me, table, fragment, n)
    if to == NULL:
        return True
    part_copy(slab, part, NULL, number, n, to)
    return n < most or number[0] >= part.used


cdef void replicate_rows(Context *me, const Table *table, uint32_t fragment, const char *rows,
                         uint64_t count) noexcept nogil:
    """Appends rows that were put, as they lie, if the copy of their fragment has begun."""
    cdef uint64_t n
    cdef char *to
    while count and me.stream.begun and me.primary.copied[fragment]:
        n = min(count, <uint64_t>_piece_rows(table))
        to = _append_rows(me, table, fragment, n)
        if to != NULL:
            memcpy(to, rows, n * table.slab.stride)
        rows += n * table.slab.stride
        count -= n


cdef void replicate_retention(Context *me, const Table *table, uint32_t fragment) noexcept nogil:
    """Appends the counts of a fragment, if its copy has begun."""
    if me.stream.begun and me.primary.copied[fragment]:
        _copy_retention(me, table, fragment)


cdef void _copy_retention(Context *me, const Table *table, uint32_t fragment) noexcept nogil:
    cdef const Part *part = &table.slab.parts[fragment]
    cdef uint64_t n = retention_bytes(part)
    cdef char *to
    if n:
        to = _append(me, REPLICA_RETENTION, fragment, table.table_id, 0, n, 0, n)
        if to != NULL:
            retention_calls.copy(part, to)


cdef bint _copies(const Context *me, uint32_t number, uint32_t fragment,
                  bint pinned) noexcept nogil:
    """Whether a table is of this kind, and has anything of the fragment to copy."""
    cdef const Table *table = me.shard.tables[number]
    return table != NULL and store_keeps(table, fragment) \
        and (table.slab.access == ACCESS_PYTHON or table.slab.retains) == pinned


cdef bint _copy_marks(Context *me, uint32_t fragment) noexcept nogil:
    """Begins the copy of a fragment: its changes are forwarded from now on; False = no memory."""
    cdef const Marks *marks = &me.shard.fragments[fragment].marks
    cdef char *to = _append(me, REPLICA_FRAGMENT, fragment, 0, 0, marks.num, 0,
                                 marks.num * <uint64_t>sizeof(Mark))
    if to == NULL:
        return False
    marks_copy(marks, to)
    me.primary.copied[fragment] = True
    return True


cdef bint _copy_tables(Context *me, bint pinned, size_t waiting_max) noexcept nogil:
    """Goes on with the fragment that is begun, until `waiting_max` bytes wait for the socket.

    Returns whether all tables of this kind are copied.  `pinned`: tables of access methods in Python,
    and tables that admit or limit rows (see the module's docstring).
    """
    cdef Primary *mine = &me.primary
    cdef uint32_t fragment = mine.fragments[mine.at]
    while mine.table < me.shard.table_cap and me.stream.begun:
        if stream_waiting(me.stream) >= waiting_max:
            return False
        if not _copies(me, mine.table, fragment, pinned):
            mine.table += 1
            mine.number = 0
        elif _copy_rows(me, me.shard.tables[mine.table], fragment, &mine.number):
            if pinned:
                _copy_retention(me, me.shard.tables[mine.table], fragment)
            mine.table += 1
            mine.number = 0
    mine.table = mine.number = 0
    return True


cdef void unpin(Context *me) noexcept nogil:
    if me.primary.pinned and me.stream.begun:
        _copy_tables(me, True, <size_t>-1)
    me.primary.pinned = me.stream.hurried = False


cdef bint seed(void *context) noexcept nogil:
    """Appends more of what the standby lacks; False = nothing more can be sent now, or all is sent."""
    cdef Context *me = <Context *>context
    cdef Primary *mine = &me.primary
    cdef Stream *s = me.stream
    if not s.begun:
        if me.slots.bytes > SEED_STAGED_MAX and not mine.resumes:
            return False
        s.begun = True
        _copy_begin(me)
        if not mine.resumes:
            _copy_slots(me)
    while s.begun and mine.at < mine.fragment_num and stream_waiting(s) < SEED_BYTES:
        if not mine.partly:
            mine.partly = mine.pinned = _copy_marks(me, mine.fragments[mine.at])
            mine.table = mine.number = 0
        if mine.pinned:
            # Mostly this copies all pinned rows at once, and no push ever waits.
            mine.pinned = not _copy_tables(me, True, PINNED_BYTES)
            s.hurried = mine.pinned
        elif mine.partly and _copy_tables(me, False, SEED_BYTES):
            _append(me, REPLICA_WHOLE, mine.fragments[mine.at], 0, 0, 0, 0, 0)
            mine.partly = False
            mine.at += 1
    if s.begun and mine.at == mine.fragment_num:
        _append(me, REPLICA_SEEDED, 0, 0, 0, 0, 0, 0)
        s.seeded_at = s.sent
        s.holding = s.begun
        return False
    return s.begun
