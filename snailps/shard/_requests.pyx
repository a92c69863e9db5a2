# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard's requests: a data frame in, the body of its reply out, or why it has to wait.

    frame -> who may be served now -> body, checked -> tables -> body of the reply
                                   -> parked: a route, a clock, the standby has to come first

The one place where a frame's kind is looked at.  PULL, PUSH and SCAN are here, with `_row_bodies` for
what is in them; FORWARD and BACKWARD are `_product_requests`, SEAL and REACH `_clock_requests`.  What is
to be told to the standby is told here (`_primary`), before or after it is done.  It knows no socket: the
loop, or a `ShardDriver`, calls it through `Handler`, in the shard's own thread, without the GIL, which
is taken only for access methods in Python (`_python_methods`).
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from snailps.abi._row_ops cimport ACCESS_PYTHON
from snailps.shard._clock_requests cimport (
    awaits_clock, came_late, is_fenced, reach, refuse_broken, seal, stage,
)
from snailps.shard._connection_memory cimport ConnectionMemory, memory_free, memory_of
from snailps.shard._context cimport ROLE_STANDBY, Context, padded
from snailps.shard._primary cimport (
    Appended, force_sync, hold, must_wait, replicate_push, replicate_seal, settle_push, show_clock,
)
from snailps.shard._product_requests cimport backward, forward
from snailps.shard._python_methods cimport explain_broken, python_pull, python_push, python_scan
from snailps.shard._row_bodies cimport (
    RowRequest, narrow_rows, pull_rows, push_rows, read_row_request, refuse,
)
from snailps.store.core._clock_buffer cimport SEAL_AGAIN, SEAL_BROKEN, SEAL_CLOSED
from snailps.store.tables cimport (
    Table, store_access, store_adds_state, store_dim, store_floats, store_mark, store_owns, store_scan,
    store_table, store_value_floats,
)
from snailps.transport._frame cimport (
    DATA_BODY_MAX, KIND_BACKWARD, KIND_FORWARD, KIND_PULL, KIND_PULLED, KIND_PUSH, KIND_PUSHED,
    KIND_REACH, KIND_SCANNED, KIND_SEAL, KIND_SEALED, OPTION_CLOCK, OPTION_STATE, FrameHeader,
    GroupHead, ScanHead, ScannedHead,
)
from snailps.transport.loop._fault_injection cimport FAULT_NO_FENCE, POINT_APPLIED, passes
from snailps.transport.loop._handler cimport OUTCOME_PARK, OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._replication_stream cimport STREAM_NONE


cdef Outcome handle(void *context, void **memory, const FrameHeader *head, const char *body,
                    char *out, Reply *reply) noexcept nogil:
    cdef Context *me = <Context *>context
    cdef ConnectionMemory *mine = memory_of(memory)
    cdef Table *table
    if mine == NULL:
        return refuse(out, reply, b"memory", b"the server has no memory left for a connection", 0, 0)
    if me.role or head.epoch < me.epoch_min:
        return _not_served(me, head, out, reply)
    if head.epoch > me.epoch:
        reply.reason = b"the route that the asker knows already: the master has yet to send it"
        return OUTCOME_PARK
    if me.stream.state != STREAM_NONE and must_wait(me, head.kind, reply):
        return OUTCOME_PARK
    if is_fenced(me, head.incarnation) and not me.faults.left_out & FAULT_NO_FENCE:
        reply.last = True
        return refuse(out, reply, b"fenced", b"incarnation %llu was given up by the master: its work "
                      b"is done by others", head.incarnation, 0)
    if head.kind == KIND_SEAL:
        return _seal(me, head, body, out, reply)
    if head.kind == KIND_REACH:
        if reach(me, head, body, out, reply) == OUTCOME_PARK:
            return _await_clock(me, out, reply)
        return OUTCOME_REPLY
    table = store_table(me.shard, head.table)
    if table == NULL:
        return refuse(out, reply, b"table", b"no table %llu here: declare it first", head.table, 0)
    if head.kind == KIND_PULL:
        return _pull(me, table, head, body, out, reply)
    if head.kind == KIND_PUSH:
        return _push(me, table, head, body, out, reply)
    if head.kind == KIND_FORWARD:
        return forward(me, mine, table, head, body, out, reply)
    if head.kind == KIND_BACKWARD:
        return backward(me, mine, table, head, body, out, reply)
    return _scan(me, table, head, body, out, reply)


cdef Outcome _not_served(Context *me, const FrameHeader *head, char *out,
                         Reply *reply) noexcept nogil:
    """A request for a shard that is not the primary, or was not when the asker's route was made."""
    # A client with a later route than a shard that yielded waits for its promotion: it serves again.
    if me.role == ROLE_STANDBY and not (me.standby.resigned and head.epoch <= me.epoch):
        reply.reason = b"this shard, which stands by for another: the master has yet to promote it"
        return OUTCOME_PARK
    reply.last = True
    if me.role:
        return refuse(out, reply, b"stale-route", b"this shard has yielded to another (its route epoch "
                      b"was %llu, the request's %llu): fetch the new route", me.epoch, head.epoch)
    return refuse(out, reply, b"stale-route", b"route epoch %llu is over, this shard serves since epoch "
                  b"%llu: fetch the new route", head.epoch, me.epoch_min)


cdef void forget(void *memory) noexcept nogil:
    memory_free(<ConnectionMemory *>memory)


cdef Outcome _await_clock(Context *me, char *out, Reply *reply) noexcept nogil:
    """A request for a clock to come waits; refused where the present one could not be applied."""
    if not me.slots.broken:
        return OUTCOME_PARK
    refuse_broken(me, out, reply)
    explain_broken(me.methods, out, reply)
    return OUTCOME_REPLY


cdef bint _wants_state(const FrameHeader *head, const char *body) noexcept nogil:
    return head.body_bytes >= sizeof(GroupHead) \
        and (<const GroupHead *>body).options & OPTION_STATE


cdef Outcome _pull(Context *me, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef bint state = _wants_state(head, body)
    cdef uint64_t *marks = <uint64_t *>out
    cdef uint64_t most
    cdef char *rows
    cdef char *end
    cdef uint32_t g
    cdef RowRequest asked
    # Before anything else is read: it may be tried again many times.
    if awaits_clock(me, head, body, reply):
        return _await_clock(me, out, reply)
    if not read_row_request(me, head, body, store_floats(table) if state else store_dim(table),
                      &asked, out, reply):
        return OUTCOME_REPLY
    if came_late(me, &asked, out, reply):
        return OUTCOME_REPLY
    most = padded(asked.group_num * <uint64_t>8 + asked.key_num * <uint64_t>asked.row_bytes)
    if most > DATA_BODY_MAX:
        return refuse(out, reply, b"too-long", b"the reply could have %llu bytes, limit %llu",
                      most, DATA_BODY_MAX)
    rows = <char *>(marks + asked.group_num)
    for g in range(asked.group_num):
        marks[g] = store_mark(me.shard, asked.groups[g].fragment, head.incarnation)
    if store_access(table) == ACCESS_PYTHON:
        if not python_pull(me.methods, table, head.table, &asked, state,
                            me.rows if asked.wire else <float *>rows, out, reply):
            return OUTCOME_REPLY
        end = narrow_rows(me, &asked, me.rows, asked.key_num, rows) if asked.wire \
            else rows + asked.key_num * <uint64_t>asked.row_bytes
    else:
        end = pull_rows(me, table, &asked, rows)
    while (end - out) & 7:
        end[0] = 0
        end += 1
    me.pulls += 1
    me.rows_pulled += asked.key_num
    reply.kind = KIND_PULLED
    reply.body_bytes = end - out
    return OUTCOME_REPLY


cdef Outcome _push(Context *me, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef bint state = _wants_state(head, body)
    cdef bint done
    cdef Appended told
    cdef RowRequest asked
    told.groups = 0
    if not read_row_request(me, head, body,
                      store_floats(table) if state else store_value_floats(table),
                      &asked, out, reply):
        return OUTCOME_REPLY
    if state and not store_adds_state(table):
        return refuse(out, reply, b"state", b"the state of table %llu does not add up: only add, "
                      b"sgd, adagrad and ftrl take differences of rows. Push gradients (adam), "
                      b"weighted values (average) or what the Python method expects",
                      head.table, 0)
    if asked.seq == 0 or head.incarnation == 0:
        return refuse(out, reply, b"seq", b"a push needs a number and an incarnation", 0, 0)
    if me.stream.begun:
        replicate_push(me, head, &asked, &told)
    if asked.options & OPTION_CLOCK:
        force_sync(me)
        done = stage(me, table, head, &asked, state, out, reply)
    elif store_access(table) == ACCESS_PYTHON:
        done = python_push(me.methods, table, head, &asked, out, reply)
    else:
        done = push_rows(me, table, &asked, head.incarnation, state, out, reply)
    settle_push(me, head, &asked, &told, done)
    if done:
        passes(me.faults, POINT_APPLIED)
        me.pushes += 1
        reply.kind = KIND_PUSHED
        reply.body_bytes = 0
        hold(me, reply)
    return OUTCOME_REPLY


cdef Outcome _seal(Context *me, const FrameHeader *head, const char *body, char *out,
                   Reply *reply) noexcept nogil:
    cdef int said = seal(me, head, body, out, reply)
    if said == SEAL_BROKEN:
        explain_broken(me.methods, out, reply)
    elif reply.kind == KIND_SEALED:
        if said != SEAL_AGAIN:
            replicate_seal(me, head, body)
        force_sync(me)
        hold(me, reply)
        if said == SEAL_CLOSED:
            show_clock(me, reply.hold)
            reply.wake = reply.hold == 0
    return OUTCOME_REPLY


cdef Outcome _scan(Context *me, Table *table, const FrameHeader *head, const char *body,
                   char *out, Reply *reply) noexcept nogil:
    cdef const ScanHead *ask = <const ScanHead *>body
    cdef ScannedHead *top = <ScannedHead *>out
    cdef uint64_t dim = store_dim(table)
    cdef uint64_t cursor
    cdef uint32_t room = <uint32_t>((DATA_BODY_MAX - 24) // (8 + dim * 4))
    cdef uint32_t n
    cdef uint64_t *keys = <uint64_t *>(out + sizeof(ScannedHead))
    cdef float *rows
    cdef float *packed
    if head.body_bytes != sizeof(ScanHead):
        return refuse(out, reply, b"length", b"SCAN body of %llu bytes, %llu expected",
                      head.body_bytes, sizeof(ScanHead))
    if ask.fragment >= me.frag_num or not store_owns(me.shard, ask.fragment):
        return refuse(out, reply, b"stale-route",
                      b"fragment %llu is not here (route epoch %llu): fetch the new route",
                      ask.fragment, me.epoch)
    if ask.keys_max == 0:
        return refuse(out, reply, b"length", b"SCAN asks for no key", 0, 0)
    if ask.keys_max < room:
        room = ask.keys_max
    cursor = ask.cursor
    rows = <float *>(keys + room)
    if store_access(table) == ACCESS_PYTHON:
        if not python_scan(me.methods, table, head.table, ask.fragment, &cursor, keys, rows, &n, room,
                            out, reply):
            return OUTCOME_REPLY
    else:
        n = store_scan(me.shard, table, ask.fragment, &cursor, keys, rows, <uint32_t>dim, room)
    packed = <float *>(keys + n)            # fewer keys came than there was room for: close the gap
    if n < room:
        memmove(packed, rows, n * dim * 4)
    if (n * dim) & 1:
        packed[n * dim] = 0
    top.cursor = cursor if n else 0
    top.keys = n
    top.dim = <uint32_t>dim
    me.rows_scanned += n
    reply.kind = KIND_SCANNED
    reply.body_bytes = padded(sizeof(ScannedHead) + n * (8 + dim * 4))
    return OUTCOME_REPLY
