# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The standby's side of replication: it executes its primary's stream, in order, by the same functions.

    BEGIN, STAGED, SLOTS -> the clock
    FRAGMENT, ROWS, WHOLE -> a fragment, owned from FRAGMENT on
    PUSH, SEAL, ORDER -> executed as at the primary
    anything wrong -> a refusal, which ends the stream
    RESUME -> nothing: this was the primary, and has everything

The primary forwards only changes that counted, so no push is taken for a repetition here.  Lengths,
counts and keys are checked all the same: a primary is a peer.  The stream waits for a table or route
that the master has not sent here yet.

What is executed goes on to a standby of this standby, if there is one (`_primary`), which takes this
one's place when this one is promoted.  It is given up if it cannot keep up: it must not delay pushes to
the primary.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._row_ops cimport ACCESS_PYTHON
from snailps.shard._clock_requests cimport seal, stage
from snailps.shard._context cimport (
    FRAGMENT_EXPECTED, FRAGMENT_WHOLE, ROLE_STANDBY, Context, RowRequest, Standby,
    is_lr_scale, padded, refuse, pushed_floats,
)
from snailps.shard._fences cimport FENCED_MAX, Span, fences_add, fences_room
from snailps.shard._primary cimport (
    Appended, push_rows, replicate_push, replicate_retention, replicate_rows, replicate_seal, settle_push,
    unpin,
)
from snailps.shard._python_methods cimport explain_broken, obey_order, python_push
from snailps.shard._requests cimport read_row_request
from snailps.store.core._clock_buffer cimport (
    SEAL_AGAIN, SEAL_BROKEN, Run, Slot, Slots, Staged, slot_at, slots_scale, slots_set, slots_stage, staged_free,
    staged_give, staged_new, sum_part,
)
from snailps.store.core._slab cimport part_put, retention_calls
from snailps.store.tables cimport (
    Mark, Table, store_access, store_adds_state, store_disown, store_dropped, store_floats,
    store_owns, store_scales_lr, store_set_mark, store_table, store_value_floats,
)
from snailps.transport._frame cimport (
    KIND_REPLICATE, KIND_SEAL, KIND_SEALED, NO_SLOT, OPTION_ASSIGN, OPTION_CLOCK, OPTION_LR_SCALE,
    OPTION_STATE,
    OPTION_WIRE_SHIFT,
    REPLICA_BEGIN, REPLICA_FRAGMENT, REPLICA_ORDER, REPLICA_RESUME, REPLICA_RETENTION, REPLICA_ROWS, REPLICA_SEEDED,
    REPLICA_SLOTS, REPLICA_STAGED, REPLICA_WHOLE, SLOTS_MAX, STREAM_BODY_MAX,
    BeginHead, FrameHeader, GroupHead, ReplicaHead, RowsHead, SlotsHead,
    StagedHead,
)
from snailps.transport.loop._handler cimport OUTCOME_PARK, OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._replication_stream cimport stream_break, stream_is_full

cdef Outcome _broken(char *out, Reply *reply, const char *text, uint64_t a,
                     uint64_t b) noexcept nogil:
    return refuse(out, reply, b"stream", text, a, b)


cdef Outcome _no_memory(char *out, Reply *reply) noexcept nogil:
    return refuse(out, reply, b"memory", b"the standby has no memory left", 0, 0)


cdef Outcome replay(void *context, const FrameHeader *head, const char *body, char *out,
                    Reply *reply) noexcept nogil:
    cdef Context *me = <Context *>context
    if me.role != ROLE_STANDBY:
        return refuse(out, reply, b"stale-route", b"this shard is no standby (any more): it serves since "
                      b"route epoch %llu, and takes no stream", me.epoch_min, 0)
    if not me.standby.begun and (head.kind != KIND_REPLICATE or head.body_bytes < sizeof(ReplicaHead)
                                 or (<const ReplicaHead *>body).what != REPLICA_BEGIN
                                 and (<const ReplicaHead *>body).what != REPLICA_RESUME):
        return _broken(out, reply, b"a stream begins with BEGIN, got kind %llu", head.kind, 0)
    unpin(me)
    if me.stream.begun and stream_is_full(me.stream):
        stream_break(me.stream, b"it takes frames more slowly than they come from the primary")
    if head.kind == KIND_REPLICATE:
        return _replica(me, head, body, out, reply)
    if head.kind == KIND_SEAL:
        return _sealed(me, head, body, out, reply)
    return _pushed(me, head, body, out, reply)


cdef Outcome _sealed(Context *me, const FrameHeader *head, const char *body, char *out,
                     Reply *reply) noexcept nogil:
    cdef int code = seal(me, head, body, out, reply)
    if code == SEAL_BROKEN:
        explain_broken(me.methods, out, reply)
    elif reply.kind == KIND_SEALED and code != SEAL_AGAIN:
        replicate_seal(me, head, body)
    return OUTCOME_REPLY


# --- pushes --------------------------------------------------------------------------------------

cdef Outcome _pushed(Context *me, const FrameHeader *head, const char *body, char *out,
                     Reply *reply) noexcept nogil:
    cdef const GroupHead *top = <const GroupHead *>body
    cdef Table *table = store_table(me.shard, head.table)
    cdef bint state, done
    cdef Appended appended
    cdef RowRequest asked
    appended.groups = 0
    if table == NULL and store_dropped(me.shard, head.table):
        return OUTCOME_REPLY            # dropped here already, at the primary soon: no request reads it
    if table == NULL:
        reply.reason = b"a table of the stream, which the master has not declared to the standby yet"
        return OUTCOME_PARK
    if head.body_bytes < sizeof(GroupHead) or head.incarnation == 0 or top.seq == 0:
        return _broken(out, reply, b"a push without number or incarnation, body of %llu bytes",
                       head.body_bytes, 0)
    if top.options & ~<uint32_t>(OPTION_STATE | OPTION_ASSIGN | OPTION_CLOCK | OPTION_LR_SCALE
                                 | 3 << OPTION_WIRE_SHIFT):
        return _broken(out, reply, b"a push with options %llu in a stream", top.options, 0)
    state = top.options & OPTION_STATE
    if state and not (top.options & OPTION_ASSIGN or store_adds_state(table)):
        return _broken(out, reply, b"differences of state for table %llu, whose state does not add up",
                       head.table, 0)
    if not read_row_request(me, head, body, pushed_floats(table, top.options), &asked, out, reply):
        return OUTCOME_REPLY
    if asked.lr_scale != 1 and not store_scales_lr(table):
        return _broken(out, reply, b"a scaled step for table %llu, which has no such step", head.table, 0)
    if me.stream.begun:
        replicate_push(me, head, &asked, &appended)
    if asked.options & OPTION_CLOCK:
        done = stage(me, table, head, &asked, state, out, reply)
    elif store_access(table) == ACCESS_PYTHON:
        done = python_push(me.methods, table, head, &asked, out, reply)
    else:
        done = push_rows(me, table, &asked, head.incarnation, state, out, reply)
    settle_push(me, head, &asked, &appended, done)
    me.pushes += 1
    me.push_bytes += head.body_bytes
    return OUTCOME_REPLY


# --- what the primary had before -----------------------------------------------------------------

cdef Outcome _replica(Context *me, const FrameHeader *frame, const char *body, char *out,
                      Reply *reply) noexcept nogil:
    cdef const ReplicaHead *head = <const ReplicaHead *>body
    cdef const char *at = body + sizeof(ReplicaHead)
    cdef uint64_t rest = frame.body_bytes - sizeof(ReplicaHead)
    if frame.body_bytes < sizeof(ReplicaHead) or head.count > STREAM_BODY_MAX:
        return _broken(out, reply, b"a body of %llu bytes cannot hold %llu of anything",
                       frame.body_bytes, head.count)
    if head.what == REPLICA_BEGIN:
        return _begin(me, head, at, rest, out, reply)
    if head.what == REPLICA_RESUME:
        return _resume(me, at, rest, out, reply)
    if head.what == REPLICA_STAGED:
        return _staged(me, head, frame.incarnation, at, rest, out, reply)
    if head.what == REPLICA_SLOTS:
        return _slots(me, head, at, rest, out, reply)
    if head.what == REPLICA_FRAGMENT:
        return _fragment(me, head, at, rest, out, reply)
    if head.what == REPLICA_ROWS:
        return _rows(me, head, at, rest, out, reply)
    if head.what == REPLICA_RETENTION:
        return _retention(me, head, at, rest, out, reply)
    if head.what == REPLICA_WHOLE:
        if not me.standby.expects[me.standby.filling] or head.fragment != me.standby.filling:
            return _broken(out, reply, b"fragment %llu ends, %llu was begun", head.fragment,
                           me.standby.filling)
        me.standby.whole += me.standby.expects[head.fragment] != FRAGMENT_WHOLE
        me.standby.expects[head.fragment] = FRAGMENT_WHOLE
        return OUTCOME_REPLY
    if head.what == REPLICA_SEEDED:
        if me.standby.whole != me.standby.expected:
            return _broken(out, reply, b"only %llu of %llu fragments have come", me.standby.whole,
                           me.standby.expected)
        me.standby.seeded = True
        me.shard.arena.patient = False
        return OUTCOME_REPLY
    if head.what == REPLICA_ORDER:
        if head.count > rest:
            return _broken(out, reply, b"an order of %llu bytes, %llu are there", head.count, rest)
        obey_order(me.methods, at, head.count, out, reply)
        return OUTCOME_REPLY
    return _broken(out, reply, b"a REPLICATE of kind %llu is not known", head.what, 0)


cdef Outcome _begin(Context *me, const ReplicaHead *head, const char *at, uint64_t rest,
                    char *out, Reply *reply) noexcept nogil:
    cdef const BeginHead *begin = <const BeginHead *>at
    cdef const uint32_t *fragments = <const uint32_t *>(at + sizeof(BeginHead))
    cdef uint64_t listed = padded(head.count * 4)
    cdef uint64_t i
    cdef Span span
    if me.standby.expects == NULL:
        reply.reason = b"the route, which the master has not sent to the standby yet"
        return OUTCOME_PARK
    if me.standby.begun or rest < sizeof(BeginHead) or begin.fenced > FENCED_MAX \
            or rest != sizeof(BeginHead) + listed + begin.fenced * <uint64_t>sizeof(Span):
        return _broken(out, reply, b"BEGIN of %llu bytes with %llu fragments", rest, head.count)
    if begin.frag_num != me.frag_num or head.count != me.standby.expected:
        return _broken(out, reply, b"a stream of %llu fragments, this standby is for %llu", head.count,
                       me.standby.expected)
    for i in range(head.count):
        if fragments[i] >= me.frag_num or not me.standby.expects[fragments[i]]:
            return _broken(out, reply, b"a stream of fragment %llu, which this standby is not for",
                           fragments[i], 0)
    for i in range(begin.fenced):
        memcpy(&span, <const char *>fragments + listed + i * sizeof(Span), sizeof(Span))
        if span.first == 0 or span.first > span.last or span.last >> 63:
            return _broken(out, reply, b"a fence of incarnations %llu to %llu", span.first, span.last)
        if fences_room(&me.fenced) < 0:
            return _no_memory(out, reply)
        fences_add(&me.fenced, span.first, span.last)
    me.shard.tick = begin.tick
    slots_set(me.slots, begin.clock, begin.early)
    me.standby.begun = True
    me.shard.arena.patient = True   # no client waits for a standby
    return OUTCOME_REPLY


cdef Outcome _resume(Context *me, const char *at, uint64_t rest, char *out,
                     Reply *reply) noexcept nogil:
    """Begins the stream of the shard that took this one's place, and has executed nothing since."""
    cdef const BeginHead *begin = <const BeginHead *>at
    if me.standby.begun or not me.standby.seeded or rest != sizeof(BeginHead):
        return _broken(out, reply, b"RESUME of %llu bytes: this standby lacks everything", rest, 0)
    if begin.frag_num != me.frag_num or begin.clock != me.slots.clock \
            or begin.tick != me.shard.tick or begin.early != <uint32_t>me.slots.early \
            or begin.fenced != me.fenced.num:
        return _broken(out, reply, b"RESUME at clock %llu, and this one yielded at clock %llu, or another "
                       b"part of the state differs", begin.clock, me.slots.clock)
    me.standby.begun = True
    return OUTCOME_REPLY


cdef Outcome _staged(Context *me, const ReplicaHead *head, uint64_t incarnation,
                     const char *at, uint64_t rest, char *out, Reply *reply) noexcept nogil:
    cdef const StagedHead *top = <const StagedHead *>at
    cdef Table *table = store_table(me.shard, head.table)
    cdef const uint64_t *keys = <const uint64_t *>(top + 1)
    cdef const Run *runs = <const Run *>(keys + head.count)
    cdef uint64_t total = 0
    cdef uint32_t g, i
    cdef Slot *slot
    cdef Staged *part
    if table == NULL and store_dropped(me.shard, head.table):
        return OUTCOME_REPLY            # dropped here already, at the primary soon: no request reads it
    if table == NULL:
        reply.reason = b"a table of the stream, which the master has not declared to the standby yet"
        return OUTCOME_PARK
    if rest < sizeof(StagedHead) or top.runs > STREAM_BODY_MAX \
            or top.unused or not is_lr_scale(top.lr_scale) \
            or (top.lr_scale != 1 and (top.state or not store_scales_lr(table))) \
            or head.floats != (store_floats(table) if top.state else store_value_floats(table)) \
            or rest != sizeof(StagedHead) + head.count * 8 + top.runs * <uint64_t>sizeof(Run) \
            + padded(head.count * head.floats * sizeof(float)) \
            or (head.fragment >= <uint32_t>SLOTS_MAX and head.fragment != <uint32_t>NO_SLOT):
        return _broken(out, reply, b"%llu staged values do not fit a body of %llu bytes", head.count,
                       rest)
    for g in range(top.runs):
        if runs[g].fragment >= me.frag_num or runs[g].keys > head.count - total:
            return _broken(out, reply, b"staged values of fragment %llu, or too many",
                           runs[g].fragment, 0)
        for i in range(runs[g].keys):
            if fragment_of_hash(hash_key(keys[total + i]), me.frag_num) != runs[g].fragment:
                return _broken(out, reply, b"key %llu is not of fragment %llu", keys[total + i],
                               runs[g].fragment)
        total += runs[g].keys
    if total != head.count:
        return _broken(out, reply, b"runs have %llu keys, the part %llu", total, head.count)
    part = staged_new(me.slots, <uint32_t>head.count, top.runs, head.floats)
    slot = slot_at(me.slots, 0 if head.fragment == <uint32_t>NO_SLOT else head.fragment)
    if part == NULL or slot == NULL:
        if part != NULL:
            staged_give(me.slots, part)
        return _no_memory(out, reply)
    part.table = table
    part.state = top.state
    slots_scale(me.slots, table, top.state, top.lr_scale)   # sum_part and later contributions use it
    part.incarnation = incarnation
    memcpy(part.keys, keys, head.count * 8)
    memcpy(part.runs, runs, top.runs * <uint64_t>sizeof(Run))
    memcpy(part.values, runs + top.runs, head.count * head.floats * sizeof(float))
    if head.fragment != <uint32_t>NO_SLOT:
        slots_stage(me.slots, slot, part)
    else:
        me.slots.bytes += part.bytes
        if not sum_part(me.slots, part):
            staged_free(me.slots, part)
            return _no_memory(out, reply)
    return OUTCOME_REPLY


cdef Outcome _slots(Context *me, const ReplicaHead *head, const char *at, uint64_t rest,
                    char *out, Reply *reply) noexcept nogil:
    cdef const SlotsHead *top = <const SlotsHead *>at
    cdef const uint64_t *pair = <const uint64_t *>(top + 1)
    cdef Slots *s = me.slots
    cdef uint32_t i
    if rest != sizeof(SlotsHead) + head.count * 16 or head.count > 2 * <uint64_t>SLOTS_MAX \
            or top.slots > head.count or top.summed > top.slots or top.held:
        return _broken(out, reply, b"%llu slots do not fit a body of %llu bytes", head.count, rest)
    if head.count and slot_at(s, <uint32_t>head.count - 1) == NULL:
        return _no_memory(out, reply)
    s.slots = top.slots
    s.summed = top.summed
    s.broken = top.broken
    s.sealed = 0
    for i in range(head.count):
        s.slot[i].sealed = pair[0]
        s.slot[i].refused = pair[1]
        s.sealed += pair[0] != 0
        pair += 2
    me.waits_sealed = 0
    return OUTCOME_REPLY


cdef Outcome _fragment(Context *me, const ReplicaHead *head, const char *at, uint64_t rest,
                       char *out, Reply *reply) noexcept nogil:
    cdef Mark mark
    cdef uint64_t i
    if head.fragment >= me.frag_num or me.standby.expects[head.fragment] != FRAGMENT_EXPECTED \
            or rest != head.count * sizeof(Mark):
        return _broken(out, reply, b"fragment %llu is not expected, or its marks do not fit",
                       head.fragment, 0)
    store_disown(me.shard, head.fragment)
    me.shard.fragments[head.fragment].owned = True      # from now on its changes come with the stream
    me.standby.filling = head.fragment
    for i in range(head.count):
        memcpy(&mark, at + i * sizeof(Mark), sizeof(Mark))
        if store_set_mark(me.shard, head.fragment, mark.key, mark.value) < 0:
            return _no_memory(out, reply)
    return OUTCOME_REPLY


cdef Outcome _rows(Context *me, const ReplicaHead *head, const char *at, uint64_t rest,
                   char *out, Reply *reply) noexcept nogil:
    cdef const RowsHead *top = <const RowsHead *>at
    cdef Table *table = store_table(me.shard, head.table)
    cdef int failed
    if table == NULL and store_dropped(me.shard, head.table):
        return OUTCOME_REPLY            # dropped here already, at the primary soon: no request reads it
    if table == NULL:
        reply.reason = b"a table of the stream, which the master has not declared to the standby yet"
        return OUTCOME_PARK
    if rest < sizeof(RowsHead) or not store_owns(me.shard, head.fragment) \
            or top.row_bytes != table.slab.stride or head.floats != store_floats(table) \
            or top.track != table.track or top.version or top.deleted \
            or rest != padded(sizeof(RowsHead) + head.count * top.row_bytes):
        return _broken(out, reply, b"rows of table %llu in fragment %llu are not as declared here",
                       head.table, head.fragment)
    failed = part_put(&table.slab, &table.slab.parts[head.fragment], me.frag_num,
                      at + sizeof(RowsHead), head.count)
    if failed == -1:
        return _no_memory(out, reply)
    if failed:
        return _broken(out, reply, b"a row of table %llu is not of fragment %llu", head.table,
                       head.fragment)
    replicate_rows(me, table, head.fragment, at + sizeof(RowsHead), head.count)
    return OUTCOME_REPLY


cdef Outcome _retention(Context *me, const ReplicaHead *head, const char *at, uint64_t rest,
                        char *out, Reply *reply) noexcept nogil:
    cdef Table *table = store_table(me.shard, head.table)
    cdef int failed = -2
    if table == NULL:
        return OUTCOME_REPLY            # its rows came before these counts: it was dropped since
    if store_owns(me.shard, head.fragment) and table.slab.retains and head.count <= rest \
            and rest == padded(head.count):
        failed = retention_calls.put(&table.slab, &table.slab.parts[head.fragment], at, head.count)
    if failed == -1:
        return _no_memory(out, reply)
    if failed:
        return _broken(out, reply, b"counts of table %llu in fragment %llu are not as declared here",
                       head.table, head.fragment)
    replicate_retention(me, table, head.fragment)
    return OUTCOME_REPLY


cdef void standby_free(Standby *s) noexcept nogil:
    free(s.expects)
    s.expects = NULL
