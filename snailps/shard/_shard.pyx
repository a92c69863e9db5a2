# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard: the only place where frames meet tables.

    frame of the loop -> body of a request, checked -> store -> body of the reply

It owns the meaning of data bodies (laid out in transport/_frame.pxd) and the counters per shard:
what was asked is `_row_request.pxd`, with the lists of keys that it remembers in
`_key_list_cache.pxd`; answers of the store are `_row_reply.pxd`; FORWARD and BACKWARD are
`_product_requests.pxd`, with the batches that it keeps in `_connection_memory.pxd`; what belongs to
a clock is `_clock_requests.pxd`; what a primary tells its standby is `_primary.pxd`, what that
makes of it `_standby.pxd`, with the doors to both in `_replication`; here are the requests as a
whole and the other doors to Python.  It knows no socket: the loop calls it through `Handler`, in
the shard's own thread, without the GIL, which is taken only for access methods in Python, for
orders (both `_python_methods`).
"""

import threading

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from snailps.abi._row_ops cimport ACCESS_PYTHON
from snailps.abi._wire_types cimport WIRE_FLOAT32, WireOps
from snailps.shard._clock_requests cimport (
    comes_early, is_fenced, is_late, keep_in_step, not_at_the_standby, reach, refuse_broken, seal,
    show_clock, stage,
)
from snailps.shard._connection_memory cimport ConnectionMemory, columns_free, memory_free, memory_of
from snailps.shard._key_list_cache cimport KeyLists
from snailps.shard._primary cimport Told, must_wait, seed, tell_push, tell_seal, told_push
from snailps.shard._product_requests cimport backward, forward
from snailps.shard._python_methods cimport (
    python_pull, python_push, python_scan, python_sums, why_broken,
)
from snailps.shard._replication cimport ReplicatedShard
from snailps.shard._row_reply cimport narrow_rows, pull_all, push_rows
from snailps.shard._row_request cimport *
from snailps.shard._standby cimport replay
from snailps.store.core._clock_buffer cimport SEAL_AGAIN, SEAL_BROKEN, SEAL_CLOSED
from snailps.store.core._marks cimport marks_drop
from snailps.store.tables cimport *
from snailps.transport._frame cimport *
from snailps.transport.loop._fault_injection cimport FAULT_NO_FENCE, POINT_APPLIED, passes
from snailps.transport.loop._handler cimport Handler, OUTCOME_PARK, OUTCOME_REPLY, Outcome, Reply
from snailps.transport.loop._loop cimport ShardLoop
from snailps.transport.loop._replication_stream cimport STREAM_NONE, stream_has

from snailps.errors import MisuseError
from snailps.shard._python_methods import PythonMethods as PyMethods
from snailps.store._store import ShardStore
from snailps.store.checkpoint._sections import copy_fragments, put_section

ROW_FLOATS_MAX = ROW_BYTES_MAX // 4
CLOCK_LIMIT_S = 3600.0      # a clock lasts as long as its slowest slot
STAGED_BYTES_MAX = 2 << 30
STATE_FLOATS_MAX = 2 * ROW_FLOATS_MAX + 1   # a row with its state is still one body


cdef Outcome _handle(void *context, void **memory, const FrameHeader *head, const char *body,
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
    if is_fenced(me, head.incarnation) \
            and not me.faults.left_out & FAULT_NO_FENCE:
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
    # Whoever knows a later route than one that yielded waits for its promotion: it stands in again.
    if me.role == ROLE_STANDBY and not (me.standby.resigned and head.epoch <= me.epoch):
        reply.reason = b"this shard, which stands by for another: the master has yet to promote it"
        return OUTCOME_PARK
    reply.last = True
    if me.role:
        return refuse(out, reply, b"stale-route", b"this shard has yielded to another (its route epoch "
                      b"was %llu, the request's %llu): fetch the new route", me.epoch, head.epoch)
    return refuse(out, reply, b"stale-route", b"route epoch %llu is over, this shard serves since epoch "
                  b"%llu: fetch the new route", head.epoch, me.epoch_min)


cdef void _forget(void *memory) noexcept nogil:
    memory_free(<ConnectionMemory *>memory)


cdef Outcome _await_clock(Context *me, char *out, Reply *reply) noexcept nogil:
    """A request for a clock to come waits; where one that was held could not be applied, it is told."""
    if not me.slots.broken:
        return OUTCOME_PARK
    refuse_broken(me, out, reply)
    why_broken(me.door, out, reply)
    return OUTCOME_REPLY


cdef bint _wants_state(const FrameHeader *head, const char *body) noexcept nogil:
    return head.body_bytes >= sizeof(GroupHead) \
        and (<const GroupHead *>body).options & OPTION_STATE


cdef Outcome _pull(Context *me, KeyLists **lists, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef bint state = _wants_state(head, body)
    cdef uint64_t *marks = <uint64_t *>out
    cdef uint64_t most
    cdef char *rows
    cdef char *end
    cdef uint32_t g
    cdef RowRequest asked
    # Before anything else is read: it may be tried again many times.
    if comes_early(me, head, body, reply):
        return _await_clock(me, out, reply)
    if not read_asked(me, lists, head, body, store_floats(table) if state else store_dim(table),
                      &asked, out, reply):
        return OUTCOME_REPLY
    if is_late(me, &asked, out, reply):
        return OUTCOME_REPLY
    most = padded(asked.group_num * <uint64_t>8 + asked.key_num * <uint64_t>asked.row_bytes)
    if most > DATA_BODY_MAX:
        return refuse(out, reply, b"too-long", b"the reply could have %llu bytes, limit %llu",
                      most, DATA_BODY_MAX)
    rows = <char *>(marks + asked.group_num)
    for g in range(asked.group_num):
        marks[g] = store_mark(me.shard, asked.groups[g].fragment, head.incarnation)
    if store_access(table) == ACCESS_PYTHON:
        if not python_pull(me.door, table, head.table, &asked, state,
                            me.rows if asked.wire else <float *>rows, out, reply):
            return OUTCOME_REPLY
        end = narrow_rows(me, &asked, me.rows, asked.key_num, rows) if asked.wire \
            else rows + asked.key_num * <uint64_t>asked.row_bytes
    else:
        end = pull_all(me, table, &asked, rows)
    while (end - out) & 7:
        end[0] = 0
        end += 1
    me.pulls += 1
    me.rows_pulled += asked.key_num
    reply.kind = KIND_PULLED
    reply.body_bytes = end - out
    return OUTCOME_REPLY


cdef Outcome _push(Context *me, KeyLists **lists, Table *table, const FrameHeader *head,
                   const char *body, char *out, Reply *reply) noexcept nogil:
    cdef bint state = _wants_state(head, body)
    cdef bint done
    cdef Told told
    cdef RowRequest asked
    told.groups = 0
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
    if me.stream.begun:
        tell_push(me, head, &asked, &told)
    if asked.options & OPTION_CLOCK:
        keep_in_step(me)
        done = stage(me, table, head, &asked, state, out, reply)
    elif store_access(table) == ACCESS_PYTHON:
        done = python_push(me.door, table, head, &asked, out, reply)
    else:
        done = push_rows(me, table, &asked, head.incarnation, state, out, reply)
    told_push(me, head, &asked, &told, done)
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
        why_broken(me.door, out, reply)
    elif reply.kind == KIND_SEALED:
        if said != SEAL_AGAIN:
            tell_seal(me, head, body)
        keep_in_step(me)
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
        if not python_scan(me.door, table, head.table, ask.fragment, &cursor, keys, rows, &n, room,
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


class FragmentCursor:
    """How far fragments (uint32 array) have been copied; the shard's thread moves it."""

    def __init__(self, fragments):
        self.fragments = fragments
        self.at = 0


cdef class ShardThread(ReplicatedShard):
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
    standby : bool
        Follows a primary until it is promoted; requests of clients wait meanwhile.
    clock_limit_s : float
        How long a request may wait here for a clock, seconds: others have to train first.
    staged_bytes_max : int
        How much may be staged here for a clock, bytes.
    silence_limit_s : float
        How long a standby of this shard may acknowledge nothing, seconds; then it counts as lost.
    stuck_limit_s : float
        How long this shard, as a standby, waits for what its primary's stream needs, seconds.
    """

    cdef Handler handler
    cdef object wire_ops        # keeps what context.wire points into

    def __init__(self, listener, make_session, row_ops, wire_ops, int frag_num,
                 double park_limit_s, name, double clock_limit_s=CLOCK_LIMIT_S,
                 staged_bytes_max=STAGED_BYTES_MAX, bint standby=False,
                 double silence_limit_s=30.0, double stuck_limit_s=24.0):
        self.store = ShardStore(frag_num, row_ops)
        self.store.limit_staged(staged_bytes_max)
        self.methods = PyMethods()
        self.methods.store = self.store
        self.methods.context = &self.context
        self.store.slots.apply_elsewhere = python_sums
        self.store.slots.door = <void *>self.methods
        self.loop = ShardLoop(listener, make_session, park_limit_s, silence_limit_s, stuck_limit_s)
        memset(&self.context, 0, sizeof(Context))
        self.context.door = <void *>self.methods
        self.context.stream = self.loop.stream()
        self.context.faults = self.loop.faults()
        self.context.shard = self.store.shard
        self.context.slots = &self.store.slots
        self.context.clock_limit_s = clock_limit_s
        self.context.frag_num = frag_num
        self.context.role = ROLE_STANDBY if standby else ROLE_PRIMARY
        self.context.all_new = standby
        self.wire_ops = wire_ops
        self.context.wire = <const WireOps *>PyCapsule_GetPointer(wire_ops, "snailps.wire_ops")
        self.context.keys = <uint64_t *>malloc(ROOM_BYTES)
        self.context.rows = <float *>malloc(ROOM_BYTES)
        self.context.first = <float *>malloc(ROOM_BYTES)
        if self.context.keys == NULL or self.context.rows == NULL \
                or self.context.first == NULL:
            raise MemoryError
        self.handler.context = &self.context
        self.handler.handle = _handle
        self.handler.forget = _forget
        self.handler.replay = replay
        self.handler.seed = seed
        self.loop.set_handler(&self.handler, self)     # both must outlive the loop
        self.thread = threading.Thread(target=self.loop.run, name=name, daemon=True)

    def __dealloc__(self):
        free(self.context.keys)
        free(self.context.rows)
        free(self.context.first)
        columns_free(&self.context.columns)
        marks_drop(&self.context.fenced)

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
        """Owns these fragments (uint32 array) from this epoch on.  Waits for the shard's thread.

        A standby owns a fragment once its primary has copied it there.
        """
        def take():
            if self.context.role == ROLE_STANDBY:
                self._expect(fragments)
            else:
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
                self.methods.add(number, method)
        self.loop.submit(add)

    def close_round(self, number):
        """Ends a round of an ``average`` table in this shard; the rows that it changed.

        Each row that was pushed becomes the weighted mean of what was pushed.  Waits for the
        shard's thread, which serves nothing else meanwhile: a walk at the speed of memory.
        """
        return self._order({"do": "close_round", "table": number})

    def set_tick(self, tick):
        """Sets the clock (uint32) that pushes leave in rows of tables that track touches."""
        self._order({"do": "set_tick", "tick": int(tick)})

    def delete(self, number, keys):
        """Deletes the rows of `keys` (uint64 (n,), all of this shard's fragments); their number."""
        return self._order({"do": "delete", "table": number, "keys": np.asarray(keys, np.uint64)})

    def expire(self, number, before_tick):
        """Deletes rows that no push has touched since `before_tick`; their number.

        Goes from fragment to fragment, so that requests are served in between.
        """
        return sum([self.expire_one(number, before_tick, f) for f in self.fragments().tolist()])

    def expire_one(self, number, before_tick, fragment):
        """Does of `expire` what concerns one of this shard's fragments."""
        return self._order({"do": "expire", "table": number, "before": before_tick,
                            "fragments": [fragment]})

    def touched(self, number, keys):
        """Ticks of the last pushes to `keys`: uint32 (n,)."""
        return self.loop.submit(lambda: self.store.touched(number, keys))

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
            As `copy_fragments` of `store.checkpoint._sections` gives them.

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
        """Gives a fragment the rows of a section, as `put_section` of `store.checkpoint._sections` does."""
        def put():
            rows = put_section(self.store, section, tables, marks)
            self._put_again(int(section[4:8].view("<u4")[0]))
            return rows
        rows = self.loop.submit(put)
        self._wait_for_room()
        return rows

    def set_clock(self, clock, early=False):
        """Begins at `clock`: forgets what is staged and sealed.  Parameters: `ShardStore`."""
        self._order({"do": "set_clock", "clock": clock, "early": bool(early)})

    def freeze(self, clock=-1):
        """Keeps the rows as they are when a clock begins, the standby's, too; the clock that it was.

        Returns and raises what `ShardStore.freeze` does.  A standby that is promoted goes on.
        """
        # Whatever it holds comes behind it, and a standby that has yet to get it goes on by itself.
        return self._order({"do": "freeze", "clock": clock}, wait=False)

    def thaw(self):
        """Lets clocks go on; where the shard has yielded, they do so at its new place."""
        def let_go():
            if self.context.role == ROLE_PRIMARY:
                self._let_go()
        self.loop.submit(let_go)

    def clock(self):
        """The present clock: all below are applied."""
        return self.loop.submit(lambda: self.store.clock_state()["clock"])

    def close_clock(self, clock, slots):
        """Applies exactly these slots of `clock`, which must be sealed, and drops the others.

        Returns and raises what `ShardStore.close_clock` does, or raises what an access method in
        Python did.
        """
        return self._order({"do": "close_clock", "clock": clock,
                            "slots": [int(slot) for slot in slots]})

    def limit_staged(self, bytes_max):
        """Sets how many bytes may be staged here for a clock."""
        self.loop.submit(lambda: self.store.limit_staged(bytes_max))

    def seal(self, clock, slot, slots, incarnation):
        """Seals a slot in the place of an incarnation that has pushed all of it and is gone.

        Returns and raises what `ShardStore.seal` does, or raises what an access method in Python
        did.
        """
        return self._order({"do": "seal", "clock": clock, "slot": slot, "slots": slots,
                            "incarnation": incarnation})

    def fence(self, incarnation):
        """Refuses whatever comes from this incarnation from now on, and ends its connections."""
        self._order({"do": "fence", "incarnation": incarnation})

    def forget_batches(self):
        """Forgets what every connection's batches went forward with.  For tests of recovery."""
        def forget():
            self.context.life += 1
        self.loop.submit(forget)

    def stats(self):
        """Counters of loop, requests and store, as a dict of numbers."""
        return self.loop.submit(self._stats)

    def _stats(self):
        clock = self.store.clock_stats()
        if not stream_has(self.context.stream, self.context.primary.clock_until):
            clock["waits_for"] = not_at_the_standby().decode()
        return {
            **self.loop.counters(),
            **self.store.stats(),
            **clock,
            "epoch": self.context.epoch,
            "pulls": self.context.pulls,
            "pushes": self.context.pushes,
            "repeated": self.context.repeated,
            "rows_pulled": self.context.rows_pulled,
            "rows_pushed": self.context.rows_pushed,
            "lists_recalled": self.context.lists_recalled,
            "lists_bytes": self.context.lists.bytes,
            "rows_scanned": self.context.rows_scanned,
            "products": self.context.products,
            "entries_summed": self.context.entries_summed,
            "rows_stepped": self.context.rows_stepped,
            "batches_unknown": self.context.batches_unknown,
            "replica": self._replica(),
        }
