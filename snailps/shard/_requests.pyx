# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard's requests: a data frame in, the body of its reply out, or the reason why it has to wait.

    frame -> may it be served now? -> body, checked -> tables -> body of the reply
                                   -> parked: a route, a clock, the standby has to come first
    body -> options, clock, groups, keys (whole or narrow), values -> RowRequest
    RowRequest of a PULL -> store -> float32 rows -> wire type -> body of the reply
    RowRequest of a PUSH -> values -> float32 -> store, where a fragment's mark is lower

The only place that looks at a frame's kind.  PULL, PUSH and SCAN are here; FORWARD and BACKWARD in
the option `server_products`, SEAL and REACH in `_clock_requests`.  Changes are forwarded to the standby here, by
`_primary`, before or after they are executed.

A peer's body is never trusted: counts are compared with lengths before anything is read, every key with
its fragment, and NaN or infinite values are refused before any row changes.  Rows of narrow types pass
through 64 KiB of scratch memory, so that they are converted in cache.

Must not know sockets: the loop calls it through `Handler`, in the shard's thread, without the GIL, which
only access methods in Python take (`_python_methods`).
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._row_ops cimport ACCESS_PYTHON
from snailps.abi._wire_types cimport WIRE_FLOAT32, is_wire, wire_row_bytes
from snailps.shard._clock_requests cimport (
    awaits_clock, came_late, reach, refuse_broken, seal, stage,
)
from snailps.shard._connection_memory cimport ConnectionMemory, memory_free, memory_of
from snailps.shard._context cimport (
    ROLE_STANDBY, ROOM_BYTES, Context, RowRequest, is_lr_scale, padded, refuse, refuse_value,
    pushed_floats,
)
from snailps.shard._fences cimport fences_has
from snailps.shard._primary cimport (
    Appended, force_sync, hold, must_wait, push_rows, replicate_push, replicate_seal, settle_push,
    show_clock,
)
from snailps.shard._python_methods cimport explain_broken, python_pull, python_push, python_scan
from snailps.store.core._clock_buffer cimport SEAL_AGAIN, SEAL_BROKEN, SEAL_CLOSED, slots_refuse
from snailps.store.tables cimport (
    Table, store_access, store_adds_state, store_dim, store_floats, store_integers, store_mark, store_owns,
    store_pull, store_scales_lr, store_scan, store_table,
)
from snailps.transport._frame cimport (
    DATA_BODY_MAX, KIND_BACKWARD, KIND_FORWARD, KIND_PULL, KIND_PULLED, KIND_PUSH, KIND_PUSHED,
    KIND_REACH, KIND_SCANNED, KIND_SEAL, KIND_SEALED, OPTIONS_KNOWN, OPTION_ASSIGN, OPTION_CLOCK, OPTION_KEY_SHIFT,
    OPTION_LR_SCALE, OPTION_STATE, OPTION_WIRE_SHIFT, SCAN_FRAGMENTS_MAX, SLOTS_MAX, ClockHead, FrameHeader, Group,
    GroupHead, LrHead, ScanHead, ScannedHead, narrow_keys_bytes, read_narrow_keys,
)
from snailps.transport.loop._fault_injection cimport (
    FAULT_NO_FENCE, POINT_APPLIED, leaves_out, passes,
)
from snailps.transport.loop._handler cimport OUTCOME_PARK, OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._replication_stream cimport STREAM_NONE


# --- reading -------------------------------------------------------------------------------------

cdef bint _is_served(const Context *me, uint32_t fragment, bint clocked) noexcept nogil:
    """Whether the fragment is here.  To a standby, contributions to clocks come before their fragment."""
    return fragment < me.frag_num and (store_owns(me.shard, fragment) or (
        clocked and me.standby.expects != NULL and me.standby.expects[fragment]))


cdef bint _groups_are_good(Context *me, const RowRequest *asked, char *out,
                           Reply *reply) noexcept nogil:
    """Checks order, ownership and counts of groups, and that each key is of its fragment."""
    cdef const Group *groups = asked.groups
    cdef uint64_t total = 0
    cdef uint32_t g, i, fragment
    for g in range(asked.group_num):
        fragment = groups[g].fragment
        # Each fragment once: the mark of its first group would make its second one a repetition.
        if g and fragment <= groups[g - 1].fragment:
            refuse(out, reply, b"order", b"fragment %llu comes after fragment %llu",
                   fragment, groups[g - 1].fragment)
            return False
        if not _is_served(me, fragment, asked.options & OPTION_CLOCK):
            refuse(out, reply, b"stale-route",
                   b"fragment %llu is not here (route epoch %llu): fetch the new route",
                   fragment, me.epoch)
            return False
        if groups[g].keys > asked.key_num - total:
            refuse(out, reply, b"length", b"groups have more than %llu keys", asked.key_num, 0)
            return False
        for i in range(groups[g].keys):
            if fragment_of_hash(hash_key(asked.keys[total + i]), me.frag_num) != fragment:
                refuse(out, reply, b"fragment", b"key %llu is not of fragment %llu",
                       asked.keys[total + i], fragment)
                return False
        total += groups[g].keys
    if total != asked.key_num:
        refuse(out, reply, b"length", b"groups have %llu keys, the body %llu",
               total, asked.key_num)
        return False
    return True


cdef bint _read_keys(Context *me, RowRequest *asked, const char **at, const char *end, char *out,
                     Reply *reply) noexcept nogil:
    """Reads groups and keys at `at`, and advances it; False = `reply` is a refusal."""
    cdef uint32_t width = asked.options >> OPTION_KEY_SHIFT & 7
    cdef uint64_t need = asked.group_num * <uint64_t>sizeof(Group)
    need += narrow_keys_bytes(asked.key_num, width) if width else asked.key_num * <uint64_t>8
    if need > <uint64_t>(end - at[0]):
        refuse(out, reply, b"length", b"%llu keys do not fit into the body", asked.key_num, 0)
        return False
    asked.groups = <const Group *>at[0]
    at[0] += need
    asked.keys = <const uint64_t *>(asked.groups + asked.group_num)
    if width:
        read_narrow_keys(<const char *>asked.keys, me.keys, asked.key_num, width)
        asked.keys = me.keys
    return _groups_are_good(me, asked, out, reply)


cdef bint _read_clock(RowRequest *asked, bint push, const char **at, const char *end, char *out,
                      Reply *reply) noexcept nogil:
    """Reads the clock at `at`, and advances it; False = `reply` is a refusal."""
    cdef const ClockHead *head = <const ClockHead *>at[0]
    at[0] += sizeof(ClockHead)
    if at[0] > end:
        refuse(out, reply, b"length", b"the body ends before the clock", 0, 0)
        return False
    if head.slot >= <uint32_t>(SLOTS_MAX if push else 1) or head.slots:
        refuse(out, reply, b"clock", b"slot %llu of %llu: a push has a slot below 4096, a pull slot 0,"
               b" and neither has a number of slots", head.slot, head.slots)
        return False
    asked.clock = head.clock
    asked.slot = head.slot
    return True


cdef bint _read_lr_scale(RowRequest *asked, bint push, const char **at, const char *end, char *out,
                         Reply *reply) noexcept nogil:
    """Reads the factor of the step size at `at`, and advances it; False = `reply` is a refusal."""
    cdef const LrHead *head = <const LrHead *>at[0]
    at[0] += sizeof(LrHead)
    if at[0] > end:
        refuse(out, reply, b"length", b"the body ends before the scale of the step size", 0, 0)
        return False
    if not push or asked.options & OPTION_STATE or head.unused or not is_lr_scale(head.lr_scale):
        refuse(out, reply, b"option", b"only pushes of gradients scale the step size, by a number from 0, "
               b"below 1e30", 0, 0)
        return False
    asked.lr_scale = head.lr_scale
    return True


cdef bint read_row_request(Context *me, const FrameHeader *head, const char *body, uint64_t floats,
                           RowRequest *asked, char *out, Reply *reply) noexcept nogil:
    """Reads and checks a PULL or PUSH of rows of `floats`; False = `reply` is a refusal."""
    cdef const GroupHead *top = <const GroupHead *>body
    cdef bint push = head.kind == KIND_PUSH
    cdef const char *at = body + sizeof(GroupHead)
    cdef const char *end = body + head.body_bytes
    cdef uint64_t rest = 0
    cdef uint64_t most = DATA_BODY_MAX
    if head.body_bytes < sizeof(GroupHead):
        refuse(out, reply, b"length", b"body of %llu bytes, at least %llu expected",
               head.body_bytes, sizeof(GroupHead))
        return False
    asked.seq = top.seq
    asked.options = top.options
    asked.wire = top.options >> OPTION_WIRE_SHIFT & 3
    asked.key_num = top.keys
    asked.group_num = top.groups
    asked.floats = top.floats
    asked.row_bytes = wire_row_bytes(asked.wire, top.floats)
    if top.options & ~<uint32_t>OPTIONS_KNOWN or not is_wire(asked.wire) \
            or (asked.wire and top.options & (OPTION_STATE | OPTION_ASSIGN)) \
            or (top.options & OPTION_ASSIGN
                and (not push or top.options & (OPTION_CLOCK | OPTION_LR_SCALE))):
        refuse(out, reply, b"option", b"options %llu are unknown, or cannot be combined; known are %llu",
               top.options, OPTIONS_KNOWN)
        return False
    if top.floats != floats:
        refuse(out, reply, b"dim", b"rows of %llu floats here, the request is for %llu",
               floats, top.floats)
        return False
    if me.role == ROLE_STANDBY:         # the primary forwards a whole batch's gradients as one push
        most = ROOM_BYTES
    # Checked before the scratch memory is used: the rows of all keys fit into one body, here or in the reply.
    if top.keys * <uint64_t>asked.row_bytes > most:
        refuse(out, reply, b"too-long", b"rows of %llu bytes, limit %llu",
               top.keys * <uint64_t>asked.row_bytes, most)
        return False
    if asked.options & OPTION_CLOCK and not _read_clock(asked, push, &at, end, out, reply):
        return False
    asked.lr_scale = 1
    if asked.options & OPTION_LR_SCALE and not _read_lr_scale(asked, push, &at, end, out, reply):
        return False
    if not _read_keys(me, asked, &at, end, out, reply):
        return False
    asked.values = at
    if push:
        rest = asked.key_num * <uint64_t>asked.row_bytes
    if padded(rest) != <uint64_t>(end - at):
        refuse(out, reply, b"length", b"body of %llu bytes, its counts need %llu",
               head.body_bytes, (at - body) + padded(rest))
        return False
    return True


cdef bint _values_are_good(Context *me, const Table *table, const FrameHeader *head,
                           const RowRequest *asked, char *out, Reply *reply) noexcept nogil:
    """Whether the table takes all values of a PUSH; if not, its slot cannot be sealed, either.

    Checked before the marks: a part that was refused is refused again when it is repeated, and not
    taken for applied.
    """
    cdef uint64_t place, row
    if not table.finite:
        return True
    place = me.wire.finite[asked.wire](asked.values, asked.row_bytes, asked.key_num, asked.floats)
    row = place // asked.floats
    if row == asked.key_num:
        return True
    me.wire.widen[asked.wire](asked.values + row * asked.row_bytes, me.rows, asked.floats)
    if asked.options & OPTION_CLOCK and asked.clock == me.slots.clock:
        slots_refuse(me.slots, asked.slot, head.incarnation)
    refuse_value(out, reply, me.rows[place % asked.floats], b"row", asked.keys[row],
                 place % asked.floats)
    return False


# --- rows ----------------------------------------------------------------------------------------

cdef char *_narrow_rows(Context *me, const RowRequest *asked, const float *rows, uint32_t n,
                       char *to) noexcept nogil:
    """Writes rows in the request's wire type; returns their end."""
    cdef uint32_t i
    for i in range(n):
        me.wire.narrow[asked.wire](rows, to, asked.floats)
        rows += asked.floats
        to += asked.row_bytes
    return to


cdef char *_pull_rows(Context *me, Table *table, const RowRequest *asked, char *to) noexcept nogil:
    """Writes the rows of all keys; returns their end."""
    store_pull(me.shard, table, asked.keys, asked.key_num, asked.floats, to, asked.row_bytes,
               NULL if asked.wire == WIRE_FLOAT32 else me.wire.narrow[asked.wire], me.rows)
    return to + asked.key_num * <uint64_t>asked.row_bytes


# --- requests -------------------------------------------------------------------------------------

cdef Outcome handle(void *context, void **memory, const FrameHeader *head, const char *body,
                    char *out, Reply *reply) noexcept nogil:
    cdef Context *me = <Context *>context
    cdef ConnectionMemory *mine
    cdef Table *table
    if me.role or head.epoch < me.epoch_min:
        return _not_served(me, head, out, reply)
    if head.epoch > me.epoch:
        reply.reason = b"the client's route: the master has not sent it to this server yet"
        return OUTCOME_PARK
    # Before the fence, which loses nothing by that: what is parked comes here again, and is refused then.
    if me.stream.state != STREAM_NONE and must_wait(me, head.kind, reply):
        return OUTCOME_PARK
    if fences_has(&me.fenced, head.incarnation) and not leaves_out(me.faults, FAULT_NO_FENCE):
        reply.last = True
        return refuse(out, reply, b"fenced", b"the master has given up incarnation %llu: others do its "
                      b"work", head.incarnation, 0)
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
    if head.kind != KIND_FORWARD and head.kind != KIND_BACKWARD:
        return _scan(me, table, head, body, out, reply)
    if product_requests.forward == NULL:
        return refuse(out, reply, b"kind", b"table %llu: the option server_products is not installed here. "
                      b"Install snailps again, or pull the rows instead", head.table, 0)
    mine = memory_of(memory)
    if mine == NULL:
        return refuse(out, reply, b"memory", b"the server has no memory left for a connection", 0, 0)
    if head.kind == KIND_FORWARD:
        return product_requests.forward(me, mine, table, head, body, out, reply)
    return product_requests.backward(me, mine, table, head, body, out, reply)


cdef Outcome _not_served(Context *me, const FrameHeader *head, char *out,
                         Reply *reply) noexcept nogil:
    """Parks or refuses a request to a shard that is not primary, or was not in the client's route.

    A standby parks it: a client with this address has a route in which the shard is, or will be,
    primary.  The exception is a shard that yielded: a client whose route is not newer than its own
    has to get the new route.
    """
    if me.role == ROLE_STANDBY and not (me.standby.resigned and head.epoch <= me.epoch):
        reply.reason = b"this shard, a standby that the master has not promoted yet"
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
    """Parks a request for a future clock; refuses it if the present clock could not be applied."""
    if not me.slots.broken:
        return OUTCOME_PARK
    refuse_broken(me, out, reply)
    explain_broken(me.methods, out, reply)
    return OUTCOME_REPLY


cdef inline uint32_t _options(const FrameHeader *head, const char *body) noexcept nogil:
    """Returns the options of a request before it is checked."""
    return (<const GroupHead *>body).options if head.body_bytes >= sizeof(GroupHead) else 0


cdef bint _rounds_integers(const Table *table, const FrameHeader *head, const RowRequest *asked, char *out,
                           Reply *reply) noexcept nogil:
    """Whether a request names a narrow type for rows of integers; `reply` is a refusal then."""
    if asked.wire == WIRE_FLOAT32 or not store_integers(table):
        return False
    refuse(out, reply, b"option", b"table %llu has rows of integers, which travel as they are: wire type "
           b"%llu would round them", head.table, asked.wire)
    return True


cdef Outcome _pull(Context *me, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef bint state = _options(head, body) & OPTION_STATE
    cdef uint64_t *marks = <uint64_t *>out
    cdef uint64_t most
    cdef char *rows
    cdef char *end
    cdef uint32_t g
    cdef RowRequest asked
    # First of all: a parked pull is tried again many times, and should not be read and checked each time.
    if awaits_clock(me, head, body, reply):
        return _await_clock(me, out, reply)
    if not read_row_request(me, head, body, store_floats(table) if state else store_dim(table),
                      &asked, out, reply):
        return OUTCOME_REPLY
    if _rounds_integers(table, head, &asked, out, reply) or came_late(me, &asked, out, reply):
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
        end = _narrow_rows(me, &asked, me.rows, asked.key_num, rows) if asked.wire \
            else rows + asked.key_num * <uint64_t>asked.row_bytes
    else:
        end = _pull_rows(me, table, &asked, rows)
    while (end - out) & 7:
        end[0] = 0
        end += 1
    me.pulls += 1
    me.rows_pulled += asked.key_num
    me.pull_bytes += end - out
    reply.kind = KIND_PULLED
    reply.body_bytes = end - out
    return OUTCOME_REPLY


cdef Outcome _push(Context *me, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef uint32_t options = _options(head, body)
    cdef bint state = options & OPTION_STATE
    cdef bint done
    cdef Appended appended
    cdef RowRequest asked
    appended.groups = 0
    if not read_row_request(me, head, body, pushed_floats(table, options), &asked, out, reply):
        return OUTCOME_REPLY
    if _rounds_integers(table, head, &asked, out, reply):
        return OUTCOME_REPLY
    if state and not (options & OPTION_ASSIGN or store_adds_state(table)):
        return refuse(out, reply, b"state", b"table %llu takes no differences of rows with their "
                      b"state: push weighted values (average) or what the Python method expects",
                      head.table, 0)
    if asked.lr_scale != 1 and not store_scales_lr(table):
        return refuse(out, reply, b"access", b"table %llu: its access method has no step size that a push "
                      b"may scale", head.table, 0)
    if asked.seq == 0 or head.incarnation == 0:
        return refuse(out, reply, b"seq", b"a push needs a number and an incarnation", 0, 0)
    if not _values_are_good(me, table, head, &asked, out, reply):
        return OUTCOME_REPLY
    if me.stream.begun:
        replicate_push(me, head, &asked, &appended)
    if asked.options & OPTION_CLOCK:
        force_sync(me)
        done = stage(me, table, head, &asked, state, out, reply)
    elif store_access(table) == ACCESS_PYTHON:
        done = python_push(me.methods, table, head, &asked, out, reply)
    else:
        done = push_rows(me, table, &asked, head.incarnation, state, out, reply)
    settle_push(me, head, &asked, &appended, done)
    if done:
        passes(me.faults, POINT_APPLIED)
        me.pushes += 1
        me.push_bytes += head.body_bytes
        reply.kind = KIND_PUSHED
        reply.body_bytes = 0
        hold(me, reply)
    return OUTCOME_REPLY


cdef Outcome _seal(Context *me, const FrameHeader *head, const char *body, char *out,
                   Reply *reply) noexcept nogil:
    cdef int code = seal(me, head, body, out, reply)
    if code == SEAL_BROKEN:
        explain_broken(me.methods, out, reply)
    elif reply.kind == KIND_SEALED:
        if code != SEAL_AGAIN:
            replicate_seal(me, head, body)
        force_sync(me)
        hold(me, reply)
        if code == SEAL_CLOSED:
            show_clock(me, reply.hold)
            reply.wake = reply.hold == 0
    return OUTCOME_REPLY


cdef Outcome _scan(Context *me, Table *table, const FrameHeader *head, const char *body,
                   char *out, Reply *reply) noexcept nogil:
    cdef const ScanHead *ask = <const ScanHead *>body
    cdef ScannedHead *top = <ScannedHead *>out
    cdef uint64_t dim = store_dim(table)
    cdef uint64_t cursor
    cdef uint32_t room = <uint32_t>((DATA_BODY_MAX - sizeof(ScannedHead) - 8) // (8 + dim * 4))
    cdef uint32_t n = 0
    cdef uint32_t fragment, more
    cdef uint64_t *keys = <uint64_t *>(out + sizeof(ScannedHead))
    cdef float *rows
    cdef float *packed
    if head.body_bytes != sizeof(ScanHead):
        return refuse(out, reply, b"length", b"SCAN body of %llu bytes, %llu expected",
                      head.body_bytes, sizeof(ScanHead))
    if ask.end <= ask.fragment or ask.end - ask.fragment > SCAN_FRAGMENTS_MAX:
        return refuse(out, reply, b"length", b"SCAN asks for fragments %llu to %llu: for none, or too many",
                      ask.fragment, ask.end)
    for fragment in range(ask.fragment, ask.end):
        if fragment >= me.frag_num or not store_owns(me.shard, fragment):
            return refuse(out, reply, b"stale-route",
                          b"fragment %llu is not here (route epoch %llu): fetch the new route",
                          fragment, me.epoch)
    if ask.keys_max == 0:
        return refuse(out, reply, b"length", b"SCAN asks for no key", 0, 0)
    if ask.keys_max < room:
        room = ask.keys_max
    cursor, fragment = ask.cursor, ask.fragment
    rows = <float *>(keys + room)
    while fragment < ask.end and n < room:
        if store_access(table) == ACCESS_PYTHON:
            if not python_scan(me.methods, table, head.table, fragment, &cursor, keys + n, rows + n * dim,
                               &more, room - n, out, reply):
                return OUTCOME_REPLY
        else:
            more = store_scan(me.shard, table, fragment, &cursor, keys + n, rows + n * dim,
                              <uint32_t>dim, room - n)
        n += more
        if more == 0:
            fragment, cursor = fragment + 1, 0
    packed = <float *>(keys + n)            # rows follow the keys without a gap
    if n < room:
        memmove(packed, rows, n * dim * 4)
    if (n * dim) & 1:
        packed[n * dim] = 0
    top.cursor = cursor
    top.fragment = fragment
    top.keys = n
    top.dim = <uint32_t>dim
    top.unused = 0
    me.rows_scanned += n
    reply.kind = KIND_SCANNED
    reply.body_bytes = padded(sizeof(ScannedHead) + n * (8 + dim * 4))
    return OUTCOME_REPLY
