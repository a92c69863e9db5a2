# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard: the only place where frames meet tables.

    frame of the loop -> body of a request, checked -> store -> body of the reply

It owns the meaning of data bodies (laid out in transport/_frame.pxd) and the counters per shard:
what was asked is `_asked.pxd`, with the lists of keys that it remembers in `_lists.pxd`; answers
of the store are `_answers.pxd`; FORWARD and BACKWARD are `_products.pxd`, with the batches that it
keeps in `_kept.pxd`; what belongs to a clock is `_clocked.pxd`; here are the requests as a whole and the
doors to Python.  It knows no socket: the loop calls it through `Handler`, in the shard's own thread,
without the GIL, which is taken only for tables whose access method is written in Python, and for
lz4.
"""

import os
import threading
import traceback

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from snailps._ops cimport ACCESS_PYTHON
from snailps._wire cimport WIRE_FLOAT32, WireOps
from snailps.roles._answers cimport narrow_rows, pull_all, pull_changed, push_rows
from snailps.roles._asked cimport *
from snailps.roles._clocked cimport comes_early, is_fenced, is_late, reach, seal, stage
from snailps.roles._kept cimport Memory, columns_free, memory_free, memory_of
from snailps.roles._lists cimport KeyLists
from snailps.roles._products cimport backward, forward
from snailps.store._clocked cimport ClockedStore
from snailps.store._slots cimport SEAL_BROKEN, Sums
from snailps.store._tables cimport *
from snailps.transport._frame cimport *
from snailps.transport._loop cimport Handler, OUTCOME_PARK, OUTCOME_REPLY, Outcome, Reply, ShardLoop
from snailps.transport._packing cimport pack_body, sampler_says, unpack_body

from snailps.errors import MisuseError, RemoteError, SnailError
from snailps.store._clocked import ClockedStore as PyClockedStore
from snailps.store._owned import checked
from snailps.store._sections import copy_fragments, put_section
from snailps.transport.session import error_frame

ROW_FLOATS_MAX = ROW_BYTES_MAX // 4
CLOCK_LIMIT_S = 3600.0      # a clock lasts as long as its slowest slot
STAGED_BYTES_MAX = 2 << 30
STATE_FLOATS_MAX = 2 * ROW_FLOATS_MAX + 1   # a row with its state is still one body
TRACEBACK_HEAD, TRACEBACK_TAIL = 1000, 2000     # chars of a long one: what an ERROR body holds


cdef Outcome _handle(void *context, void **memory, const FrameHeader *head, const char *body,
                     char *out, Reply *reply) noexcept nogil:
    cdef Context *me = <Context *>context
    cdef Memory *mine = memory_of(memory)
    cdef FrameHeader plain
    cdef Table *table
    if mine == NULL:
        return refuse(out, reply, b"memory", b"the server has no memory left for a connection", 0, 0)
    if me.role or head.epoch < me.epoch_min:
        return _not_served(me, head, out, reply)
    if head.epoch > me.epoch:
        reply.reason = b"the route that the asker knows already: the master has yet to send it"
        return OUTCOME_PARK
    if head.flags:
        plain = head[0]
        plain.flags = 0
        plain.body_bytes = unpack_body(NULL, body, head.body_bytes, me.packing)
        if plain.body_bytes == 0 or plain.body_bytes & 7:
            return refuse(out, reply, b"packed", b"the packed body of %llu bytes is damaged",
                          head.body_bytes, 0)
        head = &plain
        body = me.packing
    if me.fenced_num and is_fenced(me, head.incarnation):
        reply.last = True
        return refuse(out, reply, b"fenced", b"incarnation %llu was given up by the master: its work "
                      b"is done by others", head.incarnation, 0)
    if head.kind == KIND_SEAL:
        return _seal(me, head, body, out, reply)
    if head.kind == KIND_REACH:
        return reach(me, head, body, out, reply)
    table = store_table(me.shard, head.table)
    if table == NULL:
        return refuse(out, reply, b"table", b"no table %llu here: declare it first", head.table, 0)
    if head.kind == KIND_PULL:
        return _pull(me, &mine.lists, table, head, body, out, reply)
    if head.kind == KIND_PUSH:
        return _push(me, &mine.lists, table, head, body, out, reply)
    if head.kind == KIND_FORWARD:
        return forward(me, mine, table, head, body, out, reply)
    if head.kind == KIND_BACKWARD:
        return backward(me, mine, table, head, body, out, reply)
    return _scan(me, table, head, body, out, reply)


cdef Outcome _not_served(Context *me, const FrameHeader *head, char *out,
                         Reply *reply) noexcept nogil:
    """A request for a shard that is not the primary, or was not when the asker's route was made."""
    if me.role == ROLE_STANDBY:
        reply.reason = b"this shard, which stands by for another: the master has yet to promote it"
        return OUTCOME_PARK
    reply.last = True
    if me.role == ROLE_YIELDED:
        return refuse(out, reply, b"stale-route", b"this shard has yielded to another (its route epoch "
                      b"was %llu, the request's %llu): fetch the new route", me.epoch, head.epoch)
    return refuse(out, reply, b"stale-route", b"route epoch %llu is over, this shard serves since epoch "
                  b"%llu: fetch the new route", head.epoch, me.epoch_min)


cdef void _forget(void *memory) noexcept nogil:
    memory_free(<Memory *>memory)


cdef bint _wants_state(const FrameHeader *head, const char *body) noexcept nogil:
    return head.body_bytes >= sizeof(GroupHead) \
        and (<const GroupHead *>body).options & OPTION_STATE


cdef Outcome _pull(Context *me, KeyLists **lists, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef bint state = _wants_state(head, body)
    cdef uint64_t *marks = <uint64_t *>out
    cdef uint64_t packed, most
    cdef char *rows
    cdef char *end
    cdef uint32_t g
    cdef Asked asked
    # Before anything else is read: it may be tried again many times.
    if comes_early(me, head, body, reply):
        return OUTCOME_PARK
    if not read_asked(me, lists, head, body, store_floats(table) if state else store_dim(table),
                      &asked, out, reply):
        return OUTCOME_REPLY
    if is_late(me, &asked, out, reply):
        return OUTCOME_REPLY
    most = asked.group_num * <uint64_t>24 + asked.key_num * (asked.row_bytes + <uint64_t>1) + 8
    if most > DATA_BODY_MAX:
        return refuse(out, reply, b"too-long", b"the reply could have %llu bytes, limit %llu",
                      most, DATA_BODY_MAX)
    if asked.held != NULL and (not (table.track & TRACK_VERSION)
                               or store_access(table) == ACCESS_PYTHON):
        return refuse(out, reply, b"option", b"table %llu keeps no versions of rows for a pull of "
                      b"changes: declare it with track version and a built-in access method",
                      head.table, 0)
    rows = <char *>(marks + asked.group_num)
    for g in range(asked.group_num):
        marks[g] = store_mark(me.shard, asked.groups[g].fragment, head.incarnation)
    if store_access(table) == ACCESS_PYTHON:
        if not _python_pull(me.door, table, head.table, &asked, state,
                            me.rows if asked.wire else <float *>rows, out, reply):
            return OUTCOME_REPLY
        end = narrow_rows(me, &asked, me.rows, asked.key_num, rows) if asked.wire \
            else rows + asked.key_num * <uint64_t>asked.row_bytes
    elif asked.held != NULL:
        end = pull_changed(me, table, &asked, marks + asked.group_num,
                           <char *>(marks + 2 * <uint64_t>asked.group_num))
    else:
        end = pull_all(me, table, &asked, rows)
    while (end - out) & 7:
        end[0] = 0
        end += 1
    me.pulls += 1
    me.rows_pulled += asked.key_num
    reply.kind = KIND_PULLED
    reply.body_bytes = end - out
    if asked.options & OPTION_PACK and sampler_says(&me.sampler, reply.body_bytes):
        packed = pack_body(&me.sampler, out, reply.body_bytes, me.packing)
        if packed:
            memcpy(out, me.packing, packed)
            reply.body_bytes = packed
            reply.packed = True
    return OUTCOME_REPLY


cdef Outcome _push(Context *me, KeyLists **lists, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef bint state = _wants_state(head, body)
    cdef bint done
    cdef Asked asked
    if not read_asked(me, lists, head, body,
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
    if asked.options & OPTION_CLOCK:
        done = stage(me, table, head, &asked, state, out, reply)
    elif store_access(table) == ACCESS_PYTHON:
        done = _python_push(me.door, table, head, &asked, out, reply)
    else:
        done = push_rows(me, table, &asked, head.incarnation, state, out, reply)
    if done:
        me.pushes += 1
        reply.kind = KIND_PUSHED
        reply.body_bytes = 0
    return OUTCOME_REPLY


cdef Outcome _seal(Context *me, const FrameHeader *head, const char *body, char *out,
                   Reply *reply) noexcept nogil:
    if seal(me, head, body, out, reply) == SEAL_BROKEN:
        _why_broken(me.door, out, reply)
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
        if not _python_scan(me.door, table, head.table, ask.fragment, &cursor, keys, rows, &n, room,
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


# --- tables whose access method is written in Python ---------------------------------------------

cdef bint _python_pull(void *door, Table *table, uint32_t number, const Asked *asked, bint state,
                       float *rows, char *out, Reply *reply) noexcept with gil:
    """Rows of a PULL, through the table's `init` and `pull`; False = `reply` is an ERROR."""
    cdef ShardThread me = <ShardThread>door
    cdef const float[:, ::1] view
    if asked.key_num == 0:
        return True
    try:
        whole = _whole_rows(me, table, number, asked)
        if not state:
            whole = _block(me.methods[number].pull(whole), asked.key_num, store_dim(table), "pull")
        view = whole
        memcpy(rows, &view[0, 0], view.shape[0] * view.shape[1] * sizeof(float))
        return True
    except BaseException as error:
        _python_error(error, me.methods[number], out, reply)
        return False


cdef bint _python_push(void *door, Table *table, const FrameHeader *head, const Asked *asked,
                       char *out, Reply *reply) noexcept with gil:
    """Applies a PUSH through the table's `push`: all of it or, on an exception, nothing."""
    cdef ShardThread me = <ShardThread>door
    cdef Shard *shard = me.store.shard
    cdef uint32_t g, at, fragment
    cdef uint32_t dim = store_dim(table)
    cdef uint64_t seq = asked.seq
    cdef const Group *groups = asked.groups
    cdef const float[:, ::1] changed
    cdef const uint64_t[::1] unique
    try:
        at = 0
        work = []               # per fragment that has not had it: (fragment, keys, start in rows)
        blocks, gradients, total = [], [], 0
        for g in range(asked.group_num):
            fragment = groups[g].fragment
            if store_mark(shard, fragment, head.incarnation) >= seq:
                me.context.repeated += 1
            elif groups[g].keys:
                some = _copied(asked.keys + at, groups[g].keys)
                pushed = np.empty((groups[g].keys, dim), np.float32)
                _fill(pushed, me.context.wire, asked, at)
                some, pushed = _merged(some, pushed)
                work.append((fragment, some, total))
                blocks.append(_rows_of(me, table, head.table, fragment, some))
                gradients.append(pushed)
                total += len(some)
            else:
                work.append((fragment, np.empty(0, np.uint64), total))
            at += groups[g].keys
        if total:
            rows = me.methods[head.table].push(np.concatenate(blocks), np.concatenate(gradients))
            changed = _block(rows, total, store_floats(table), "push")
        for fragment, some, start in work:
            if store_set_mark(shard, fragment, head.incarnation, seq) < 0:
                raise MemoryError(f"no memory for a mark of fragment {fragment}")
            unique = some
            if len(some) and store_put(shard, table, fragment, &unique[0], <uint32_t>len(some),
                                       &changed[<uint32_t>start, 0]) < 0:
                raise MemoryError(f"no memory for rows of fragment {fragment}")
            me.context.rows_pushed += len(some)
        return True
    except BaseException as error:
        _python_error(error, me.methods[head.table], out, reply)
        return False


cdef bint _python_sums(void *door, Table *table, const Sums *sums) noexcept with gil:
    """Applies the sums of a clock through the table's `push`: all of them or, on an exception,
    nothing."""
    cdef ShardThread me = <ShardThread>door
    cdef Shard *shard = me.store.shard
    cdef uint32_t i, stop, width = sums.floats
    cdef uint64_t[::1] key_view
    cdef uint32_t[::1] owner_view
    cdef float[:, ::1] value_view
    cdef const uint64_t[::1] some
    cdef const float[:, ::1] changed
    try:
        keys = np.empty(sums.count, np.uint64)
        owners = np.empty(sums.count, np.uint32)
        values = np.empty((sums.count, width), np.float32)
        key_view, owner_view, value_view = keys, owners, values
        for i in range(sums.count):
            key_view[i] = sums.keys[i]
            owner_view[i] = sums.fragments[i]
            memcpy(&value_view[i, 0], sums.rows[i], width * sizeof(float))
        order = np.argsort(owners, kind="stable")
        keys, owners, values = keys[order], owners[order], values[order]
        starts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
        ends = [*starts[1:], len(keys)]
        rows = np.concatenate([
            _rows_of(me, table, table.table_id, owners[a], keys[a:b])
            for a, b in zip(starts, ends, strict=True)])
        rows = me.methods[table.table_id].push(rows, values)
        changed = _block(rows, len(keys), store_floats(table), "push")
        some = keys
        for i, stop in zip(starts, ends, strict=True):
            if store_put(shard, table, owners[i], &some[i], stop - i, &changed[i, 0]) < 0:
                raise MemoryError(f"no memory for rows of fragment {owners[i]}")
        return True
    except BaseException as error:
        me.clock_error = _told(error, me.methods[table.table_id])
        return False


cdef void _why_broken(void *door, char *out, Reply *reply) noexcept with gil:
    """Puts the words of the access method that failed into a refusal, if one did."""
    cdef bytes body
    error = (<ShardThread>door).clock_error
    if error is not None:
        body = error_frame(error).body
        memcpy(out, <const char *>body, len(body))
        reply.body_bytes = len(body)


cdef bint _python_scan(void *door, Table *table, uint32_t number, uint32_t fragment,
                       uint64_t *cursor, uint64_t *keys, float *rows, uint32_t *n, uint32_t room,
                       char *out, Reply *reply) noexcept with gil:
    """Rows of a SCAN as a pull would give them; False = `reply` is an ERROR."""
    cdef ShardThread me = <ShardThread>door
    cdef uint32_t floats = store_floats(table)
    cdef float[:, ::1] whole
    cdef const float[:, ::1] view
    try:
        room = min(room, max(<uint32_t>1, <uint32_t>(PART_BYTES // (4 * floats))))
        stored = np.empty((room, floats), np.float32)
        whole = stored
        n[0] = store_scan(me.store.shard, table, fragment, cursor, keys, &whole[0, 0], floats, room)
        if n[0]:
            view = _block(me.methods[number].pull(stored[:n[0]]), n[0], store_dim(table), "pull")
            memcpy(rows, &view[0, 0], view.shape[0] * view.shape[1] * sizeof(float))
        return True
    except BaseException as error:
        _python_error(error, me.methods[number], out, reply)
        return False


cdef _copied(const uint64_t *keys, uint32_t n):
    """The keys as an array of their own."""
    cdef uint64_t[::1] view
    found = np.empty(n, np.uint64)
    view = found
    memcpy(&view[0], keys, n * sizeof(uint64_t))
    return found


cdef _fill(rows, const WireOps *wire, const Asked *asked, uint32_t start):
    """The values from number `start` on, as float32."""
    cdef float[:, ::1] view = rows
    cdef const char *values = asked.values + start * <uint64_t>asked.row_bytes
    cdef Py_ssize_t i
    for i in range(view.shape[0]):
        wire.widen[asked.wire](values, &view[i, 0], asked.floats)
        values += asked.row_bytes


cdef _whole_rows(ShardThread me, Table *table, uint32_t number, const Asked *asked):
    """Weights and state of all keys of a request, in their order."""
    cdef uint32_t g, at = 0
    blocks = []
    for g in range(asked.group_num):
        if asked.groups[g].keys:
            blocks.append(_rows_of(me, table, number, asked.groups[g].fragment,
                                   _copied(asked.keys + at, asked.groups[g].keys)))
        at += asked.groups[g].keys
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


cdef _rows_of(ShardThread me, Table *table, uint32_t number, uint32_t fragment, keys):
    """Weights and state of a fragment's keys; those without a row from the table's `init`."""
    cdef const uint64_t[::1] wanted = keys
    cdef uint32_t n = <uint32_t>wanted.shape[0]
    cdef uint32_t floats = store_floats(table)
    cdef uint8_t[::1] found
    cdef float[:, ::1] view
    rows = np.empty((n, floats), np.float32)
    has = np.empty(n, np.uint8)
    view, found = rows, has
    store_has(me.store.shard, table, fragment, &wanted[0], n, &found[0])
    store_pull(me.store.shard, table, fragment, &wanted[0], n, &view[0, 0], floats)
    fresh = has == 0
    if fresh.any():
        rows[fresh] = _block(me.methods[number].init(keys[fresh]), int(fresh.sum()), floats, "init")
    return rows


def _merged(keys, values):
    """Each key once, with the sum of its values."""
    unique, first, place = np.unique(keys, return_index=True, return_inverse=True)
    if len(unique) == len(keys):
        return keys, values
    sums = np.zeros((len(unique), values.shape[1]), np.float32)
    np.add.at(sums, place, values)
    return unique, sums


def _block(rows, n, floats, name):
    """What a method returned, as float32 (n, floats); says so if it is anything else."""
    block = np.ascontiguousarray(rows, np.float32)
    if block.shape != (n, floats):
        raise ValueError(f"{name}() must return rows of shape ({n}, {floats}), it returned "
                         f"{block.shape}")
    return block


cdef void _python_error(error, method, char *out, Reply *reply) noexcept:
    """An ERROR body with the traceback, for whoever sent the request."""
    cdef bytes body = error_frame(_told(error, method)).body
    memcpy(out, <const char *>body, len(body))
    reply.kind = KIND_ERROR
    reply.body_bytes = len(body)


def _told(error, method):
    """What a method in Python raised, with its traceback, for whoever asked."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    if len(text) > TRACEBACK_HEAD + TRACEBACK_TAIL:
        text = f"{text[:TRACEBACK_HEAD]}\n...\n{text[-TRACEBACK_TAIL:]}"
    name = f"{type(method).__module__}:{type(method).__qualname__}"
    return RemoteError(f"access method {name} failed at the server:\n{text}", "access")


class FragmentCursor:
    """How far fragments (uint32 array) have been copied; the shard's thread moves it."""

    def __init__(self, fragments):
        self.fragments = fragments
        self.at = 0


cdef class ShardThread:
    """One shard: its store, its loop, and the thread that owns both.

    Parameters
    ----------
    listener : socket.socket
        Listening socket; owned by the loop from now on.
    make_session : callable
        Gives a `ServerSession` for each connection.
    row_ops, wire_ops : PyCapsule
        Row operations and wire types of the kernel build in use.
    frag_num : int
        Fragments of the cluster.
    park_limit_s : float
        How long a request may wait here, seconds.
    name : str
        Name of the thread.
    clock_limit_s : float
        How long a request may wait here for a clock, seconds: others have to train first.
    staged_bytes_max : int
        How much may be staged here for a clock, bytes.
    """

    cdef ClockedStore store
    cdef ShardLoop loop
    cdef Handler handler
    cdef Context context
    cdef dict methods           # table number -> instance of AccessMethod
    cdef object thread
    cdef object wire_ops        # keeps what context.wire points into
    cdef dict replica
    cdef object clock_error     # RemoteError: a method in Python failed when a clock was closed

    def __init__(self, listener, make_session, row_ops, wire_ops, int frag_num,
                 double park_limit_s, name, double clock_limit_s=CLOCK_LIMIT_S,
                 staged_bytes_max=STAGED_BYTES_MAX, bint standby=False):
        self.store = PyClockedStore(frag_num, row_ops)
        self.store.limit_staged(staged_bytes_max)
        self.store.slots.apply_elsewhere = _python_sums
        self.store.slots.door = <void *>self
        self.loop = ShardLoop(listener, make_session, park_limit_s)
        memset(&self.context, 0, sizeof(Context))
        self.methods = {}
        self.context.door = <void *>self
        self.context.shard = self.store.shard
        self.context.slots = &self.store.slots
        self.context.clock_limit_s = clock_limit_s
        self.context.frag_num = frag_num
        self.context.role = ROLE_STANDBY if standby else ROLE_PRIMARY
        self.replica = {"role": "standby" if standby else "primary", "state": "none", "sync": False,
                        "sent": 0, "acknowledged": 0, "lag_bytes": 0, "lag_s": 0.0, "held": 0,
                        "seeded": 0.0}
        self.wire_ops = wire_ops
        self.context.wire = <const WireOps *>PyCapsule_GetPointer(wire_ops, "snailps.wire_ops")
        self.context.keys = <uint64_t *>malloc(ROOM_BYTES)
        self.context.rows = <float *>malloc(ROOM_BYTES)
        self.context.first = <float *>malloc(ROOM_BYTES)
        self.context.packing = <char *>malloc(DATA_BODY_MAX)
        if self.context.keys == NULL or self.context.rows == NULL \
                or self.context.first == NULL or self.context.packing == NULL:
            raise MemoryError
        self.handler.context = &self.context
        self.handler.handle = _handle
        self.handler.forget = _forget
        self.loop.set_handler(&self.handler, self)     # both must outlive the loop
        self.thread = threading.Thread(target=self.loop.run, name=name, daemon=True)

    def __dealloc__(self):
        free(self.context.keys)
        free(self.context.rows)
        free(self.context.first)
        columns_free(&self.context.columns)
        free(self.context.fenced)
        free(self.context.packing)

    def start(self):
        """Starts serving."""
        self.thread.start()

    def stop(self, timeout_s=5.0):
        """Stops serving and closes every connection; True once the thread has ended."""
        self.loop.stop()
        if self.thread.ident is None:       # never started: closes the listener
            self.loop.run()
            return True
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def take_route(self, uint32_t epoch, fragments):
        """Owns these fragments (uint32 array) from this epoch on.  Waits for the shard's thread."""
        def take():
            self.store.own(fragments)
            self.context.epoch = epoch
            self.loop.wake()
        self.loop.submit(take)

    def add_table(self, number, dim, access, init, scale, seed, hyper, track=0, method=None):
        """Makes a table known to this shard.  Waits for the shard's thread.

        Parameters
        ----------
        number, dim, access, init, scale, seed, hyper, track
            As `ShardStore.add_table` takes them.
        method : AccessMethod, optional
            What access method 6 (Python) calls, in the shard's thread: an instance for this shard
            alone.

        Raises
        ------
        MisuseError
            Rows wider than one part of a pull or push can carry, or a method too many or missing.
        """
        if not 1 <= dim <= ROW_FLOATS_MAX:
            raise MisuseError(f"rows of {dim:,} floats, 1 to {ROW_FLOATS_MAX:,} expected")
        if (access == ACCESS_PYTHON) != (method is not None):
            raise MisuseError(f"table {number}: access method {ACCESS_PYTHON} and no other needs "
                              f"an AccessMethod, got access {access} and {method!r}")
        state_floats = 0 if method is None else method.state_floats
        if type(state_floats) is not int or not 0 <= state_floats <= STATE_FLOATS_MAX:
            raise MisuseError(f"{type(method).__qualname__}.state_floats must be an integer from 0 "
                              f"to {STATE_FLOATS_MAX:,}, got {state_floats!r}")

        def add():
            self.store.add_table(number, dim, access, init, scale, seed, hyper, track, state_floats)
            if method is not None:
                self.methods.setdefault(number, method)
        self.loop.submit(add)

    def close_round(self, number):
        """Ends a round of an ``average`` table in this shard; the rows that it changed.

        Each row that was pushed becomes the weighted mean of what was pushed.  Waits for the
        shard's thread, which serves nothing else meanwhile: a walk at the speed of memory.
        """
        return self.loop.submit(lambda: self.store.close_round(number))

    def set_tick(self, tick):
        """Sets the clock (uint32) that pushes leave in rows of tables that track touches."""
        self.loop.submit(lambda: self.store.set_tick(tick))

    def delete(self, number, keys):
        """Deletes the rows of `keys` (uint64 (n,), all of this shard's fragments); their number."""
        return self.loop.submit(lambda: self.store.delete(number, keys))

    def expire(self, number, before_tick):
        """Deletes rows that no push has touched since `before_tick`; their number.

        Goes from fragment to fragment, so that requests are served in between.
        """
        fragments = self.loop.submit(self.store.fragments)
        return sum([
            self.loop.submit(lambda f=f: self.store.expire(number, before_tick, [f]))
            for f in fragments])

    def touched(self, number, keys):
        """Ticks of the last pushes to `keys`: uint32 (n,)."""
        return self.loop.submit(lambda: self.store.touched(number, keys))

    def versions(self, number, keys):
        """Versions of the rows of `keys`: uint64 (n,)."""
        return self.loop.submit(lambda: self.store.versions(number, keys))

    def fragments(self):
        """The fragments that this shard owns, uint32, ascending."""
        return self.loop.submit(self.store.fragments)

    def copy_next(self, cursor, buffer):
        """Copies the fragments that come next, as many as fit, into a buffer.

        Parameters
        ----------
        cursor : FragmentCursor
            Moved behind them by the shard's thread, so that several may ask at a time.
        buffer : numpy.ndarray
            uint8, writable.

        Returns
        -------
        used : int
            Bytes of the buffer; 0: there are no more; without sections: the bytes that it needs.
        sections : list of tuple
            As `copy_fragments` of `store._sections` gives them.

        Notes
        -----
        Waits for the shard's thread, which serves nothing else while it copies: 2 to 4 ms for
        16 MiB.
        """
        def copy():
            stop, used, sections = copy_fragments(self.store, cursor.fragments, cursor.at, buffer)
            cursor.at = stop
            return used, sections
        return self.loop.submit(copy)

    def put_section(self, section, tables, marks):
        """Gives a fragment the rows of a section, as `put_section` of `store._sections` does."""
        return self.loop.submit(lambda: put_section(self.store, section, tables, marks))

    def set_clock(self, clock, early=False):
        """Begins at `clock`: forgets what is staged and sealed.  Parameters: `ClockedStore`."""
        def begin():
            self.store.set_clock(clock, early)
            self.clock_error = None
            self.context.waits_sealed = 0       # its words are of what was
            self.loop.wake()
        self.loop.submit(begin)

    def freeze(self, clock=-1):
        """Keeps the rows as they are when a clock begins; the present clock.  See `ClockedStore`."""
        def hold():
            now = self.store.freeze(clock)
            self.loop.wake()
            return now
        return self.loop.submit(hold)

    def thaw(self):
        """Lets clocks go on."""
        def let_go():
            self.store.thaw()
            self.loop.wake()
        self.loop.submit(let_go)

    def clock(self):
        """The present clock: all below are applied."""
        return self.loop.submit(lambda: self.store.clock_state()["clock"])

    def close_clock(self, clock, slots):
        """Applies exactly these slots of `clock`, which must be sealed, and drops the others.

        Returns and raises what `ClockedStore.close_clock` does, or raises what an access method in
        Python did.
        """
        def close():
            try:
                return self.store.close_clock(clock, slots)
            except SnailError:
                if self.clock_error is None:
                    raise
                raise self.clock_error from None
            finally:
                self.loop.wake()
        return self.loop.submit(close)

    def limit_staged(self, bytes_max):
        """Sets how many bytes may be staged here for a clock."""
        self.loop.submit(lambda: self.store.limit_staged(bytes_max))

    def seal(self, clock, slot, slots, incarnation):
        """Seals a slot in the place of an incarnation that has pushed all of it and is gone.

        Returns and raises what `ClockedStore.seal` does, or raises what an access method in Python
        did.
        """
        def close():
            try:
                return self.store.seal(clock, slot, slots, incarnation)
            except SnailError:
                if self.clock_error is None:
                    raise
                raise self.clock_error from None
            finally:
                self.loop.wake()
        return self.loop.submit(close)

    def fence(self, incarnation):
        """Refuses whatever comes from this incarnation from now on, and ends its connections."""
        cdef uint64_t who = checked("incarnation", incarnation, 1, 2**64 - 1)

        def shut_out():
            cdef uint64_t *fenced = self.context.fenced
            if fenced == NULL:
                fenced = <uint64_t *>malloc(FENCED_MAX * sizeof(uint64_t))
                if fenced == NULL:
                    raise MemoryError
                self.context.fenced = fenced
            fenced[self.context.fenced_num % FENCED_MAX] = who
            self.context.fenced_num += 1
            self.loop.wake()
        self.loop.submit(shut_out)

    def back_up(self, int fd, *, bint sync, tell):
        os.close(fd)
        self.replica.update(state="ready", sync=sync, seeded=1.0)
        tell("ready", "")

    def alone(self):
        self.replica.update(state="none", seeded=0.0)

    def promote(self, uint32_t epoch):
        def serve():
            self.context.role = ROLE_PRIMARY
            self.context.epoch = self.context.epoch_min = epoch
            self.replica.update(role="primary", state="none")
            self.loop.wake()
        self.loop.submit(serve)

    def yield_(self, double timeout_s):
        def leave():
            self.context.role = ROLE_YIELDED
            self.replica.update(role="yielded")
            self.loop.wake()
        self.loop.submit(leave)

    def forget_batches(self):
        """Forgets what every connection's batches went forward with.  For tests of recovery."""
        def forget():
            self.context.life += 1
        self.loop.submit(forget)

    def stats(self):
        """Counters of loop, requests and store, as a dict of numbers."""
        return self.loop.submit(self._stats)

    def _stats(self):
        return {
            **self.loop.counters(),
            **self.store.stats(),
            **self.store.clock_stats(),
            "epoch": self.context.epoch,
            "pulls": self.context.pulls,
            "pushes": self.context.pushes,
            "repeated": self.context.repeated,
            "rows_pulled": self.context.rows_pulled,
            "rows_pushed": self.context.rows_pushed,
            "rows_unchanged": self.context.rows_unchanged,
            "lists_recalled": self.context.lists_recalled,
            "rows_scanned": self.context.rows_scanned,
            "products": self.context.products,
            "entries_summed": self.context.entries_summed,
            "rows_stepped": self.context.rows_stepped,
            "batches_unknown": self.context.batches_unknown,
            "replica": self.replica,
        }
