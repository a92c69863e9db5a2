# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard: the only place where frames meet tables.

    frame of the loop -> body of PULL / PUSH / SCAN, checked -> store -> body of the reply

It owns the meaning of data bodies (laid out in transport/_frame.pxd) and the counters per shard.
It knows no socket: the loop calls it through `Handler`, in the shard's own thread, without the
GIL.  A peer's body is never trusted: counts are compared with lengths before anything is read, and
every key with the fragment that it claims.
"""

import threading

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memmove, memset

from snailps._hash cimport fragment_of_hash, hash_key
from snailps.store._store cimport *
from snailps.transport._frame cimport *
from snailps.transport._loop cimport Handler, OUTCOME_PARK, OUTCOME_REPLY, Outcome, Reply, ShardLoop

from snailps.errors import MisuseError
from snailps.store._store import ShardStore as PyShardStore

cdef enum:
    FETCH_KEYS = 32                 # of a push of small groups: fetched at a time,
    FETCH_AHEAD = 64                # ... until this many are ahead; more would not stay in cache

ROW_FLOATS_MAX = SUBFRAME_BYTES // 4


cdef struct Context:
    Shard *shard
    uint32_t frag_num
    uint32_t epoch
    uint64_t pulls
    uint64_t pushes
    uint64_t repeated           # groups of pushes skipped because their mark is not lower
    uint64_t rows_pulled
    uint64_t rows_pushed
    uint64_t rows_scanned


cdef Outcome _error(char *out, Reply *reply, const char *code, const char *text,
                    uint64_t a, uint64_t b) noexcept nogil:
    """Writes an ERROR body; `text` is a format of ours with up to two numbers."""
    cdef int n = snprintf(out, 1024, b'{"code":"%s","text":"', code)
    n += snprintf(out + n, 900, text, <unsigned long long>a, <unsigned long long>b)
    n += snprintf(out + n, 16, b'"}')
    reply.kind = KIND_ERROR
    reply.body_bytes = n
    return OUTCOME_REPLY


cdef Outcome _handle(void *context, const FrameHeader *head, const char *body, char *out,
                     Reply *reply) noexcept nogil:
    cdef Context *me = <Context *>context
    cdef Table *table
    if head.epoch > me.epoch:
        reply.reason = b"the route that the asker knows already: the master has yet to send it"
        return OUTCOME_PARK
    table = store_table(me.shard, head.table)
    if table == NULL:
        return _error(out, reply, b"table", b"no table %llu here: declare it first", head.table, 0)
    if head.kind == KIND_PULL:
        return _pull(me, table, head, body, out, reply)
    if head.kind == KIND_PUSH:
        return _push(me, table, head, body, out, reply)
    return _scan(me, table, head, body, out, reply)


cdef uint64_t _padded(uint64_t n) noexcept nogil:
    return (n + 7) & ~<uint64_t>7


cdef Outcome _groups_are_good(Context *me, const FrameHeader *head, const char *body,
                              uint64_t dim, uint64_t row_bytes, char *out, Reply *reply,
                              bint *good) noexcept nogil:
    """Checks counts, lengths, ownership and the fragment of every key of a PULL or PUSH."""
    cdef const GroupHead *top = <const GroupHead *>body
    cdef const Group *groups = <const Group *>(body + sizeof(GroupHead))
    cdef const uint64_t *keys
    cdef uint64_t expected, total = 0
    cdef uint32_t g, i, fragment
    good[0] = False
    if head.body_bytes < sizeof(GroupHead):
        return _error(out, reply, b"length", b"body of %llu bytes, at least %llu expected",
                      head.body_bytes, sizeof(GroupHead))
    if top.dim != dim:
        return _error(out, reply, b"dim", b"rows of %llu floats here, the request is for %llu",
                      dim, top.dim)
    expected = _padded(sizeof(GroupHead) + <uint64_t>top.groups * sizeof(Group)
                       + <uint64_t>top.keys * (8 + row_bytes))
    if head.body_bytes != expected:
        return _error(out, reply, b"length", b"body of %llu bytes, its counts make %llu",
                      head.body_bytes, expected)
    keys = <const uint64_t *>(groups + top.groups)
    for g in range(top.groups):
        fragment = groups[g].fragment
        if g and fragment <= groups[g - 1].fragment:    # twice in one push: it would be dropped
            return _error(out, reply, b"order", b"fragment %llu stands behind fragment %llu",
                          fragment, groups[g - 1].fragment)
        if fragment >= me.frag_num or not store_owns(me.shard, fragment):
            return _error(out, reply, b"stale-route",
                          b"fragment %llu is not here (route epoch %llu): fetch the new route",
                          fragment, me.epoch)
        if groups[g].keys > top.keys - total:
            return _error(out, reply, b"length", b"groups have more than %llu keys", top.keys, 0)
        for i in range(groups[g].keys):
            if fragment_of_hash(hash_key(keys[total + i]), me.frag_num) != fragment:
                return _error(out, reply, b"fragment", b"key %llu is not of fragment %llu",
                              keys[total + i], fragment)
        total += groups[g].keys
    if total != top.keys:
        return _error(out, reply, b"length", b"groups have %llu keys, the body %llu",
                      total, top.keys)
    good[0] = True
    return OUTCOME_REPLY


cdef Outcome _pull(Context *me, Table *table, const FrameHeader *head, const char *body,
                   char *out, Reply *reply) noexcept nogil:
    cdef const GroupHead *top = <const GroupHead *>body
    cdef const Group *groups = <const Group *>(body + sizeof(GroupHead))
    cdef const uint64_t *keys
    cdef uint64_t dim = store_dim(table)
    cdef uint64_t *marks = <uint64_t *>out
    cdef float *rows
    cdef uint64_t reply_bytes
    cdef uint32_t g, at = 0
    cdef bint good
    cdef Outcome outcome = _groups_are_good(me, head, body, dim, 0, out, reply, &good)
    if not good:
        return outcome
    reply_bytes = _padded(<uint64_t>top.groups * 8 + top.keys * dim * 4)
    if reply_bytes > DATA_BODY_MAX:
        return _error(out, reply, b"too-long", b"the reply would have %llu bytes, limit %llu",
                      reply_bytes, DATA_BODY_MAX)
    keys = <const uint64_t *>(groups + top.groups)
    rows = <float *>(marks + top.groups)
    for g in range(top.groups):
        marks[g] = store_mark(me.shard, groups[g].fragment, head.incarnation)
    if top.keys < 4 * top.groups:           # few keys a fragment: overlap their lookups
        store_pull_any(me.shard, table, keys, top.keys, rows)
    else:
        for g in range(top.groups):
            store_pull(me.shard, table, groups[g].fragment, keys + at, groups[g].keys,
                       rows + at * dim)
            at += groups[g].keys
    if (top.keys * dim) & 1:
        rows[top.keys * dim] = 0
    me.pulls += 1
    me.rows_pulled += top.keys
    reply.kind = KIND_PULLED
    reply.body_bytes = reply_bytes
    return OUTCOME_REPLY


cdef Outcome _push(Context *me, Table *table, const FrameHeader *head, const char *body,
                   char *out, Reply *reply) noexcept nogil:
    cdef const GroupHead *top = <const GroupHead *>body
    cdef const Group *groups = <const Group *>(body + sizeof(GroupHead))
    cdef const uint64_t *keys
    cdef uint64_t dim = store_dim(table)
    cdef const float *values
    cdef uint32_t g, fetched, at = 0
    cdef bint good
    cdef Outcome outcome = _groups_are_good(me, head, body, dim, dim * 4, out,
                                            reply, &good)
    if not good:
        return outcome
    if top.seq == 0 or head.incarnation == 0:
        return _error(out, reply, b"seq", b"a push needs a number and an incarnation", 0, 0)
    keys = <const uint64_t *>(groups + top.groups)
    values = <const float *>(keys + top.keys)
    fetched = 0 if top.keys < 8 * <uint64_t>top.groups else top.keys
    for g in range(top.groups):
        while fetched < top.keys and fetched < at + groups[g].keys + FETCH_AHEAD:
            store_fetch(me.shard, table, keys + fetched,
                        min(<uint32_t>FETCH_KEYS, top.keys - fetched))
            fetched += min(<uint32_t>FETCH_KEYS, top.keys - fetched)
        if store_mark(me.shard, groups[g].fragment, head.incarnation) >= top.seq:
            me.repeated += 1
        else:
            # The mark first: a push that ran out of memory half-way must not be applied again.
            if store_set_mark(me.shard, groups[g].fragment, head.incarnation, top.seq) < 0 \
                    or store_push(me.shard, table, groups[g].fragment, keys + at, groups[g].keys,
                                  values + at * dim) < 0:
                return _error(out, reply, b"memory",
                              b"the server has no memory left for fragment %llu",
                              groups[g].fragment, 0)
            me.rows_pushed += groups[g].keys
        at += groups[g].keys
    me.pushes += 1
    reply.kind = KIND_PUSHED
    reply.body_bytes = 0
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
        return _error(out, reply, b"length", b"SCAN body of %llu bytes, %llu expected",
                      head.body_bytes, sizeof(ScanHead))
    if ask.fragment >= me.frag_num or not store_owns(me.shard, ask.fragment):
        return _error(out, reply, b"stale-route",
                      b"fragment %llu is not here (route epoch %llu): fetch the new route",
                      ask.fragment, me.epoch)
    if ask.keys_max == 0:
        return _error(out, reply, b"length", b"SCAN asks for no key", 0, 0)
    if ask.keys_max < room:
        room = ask.keys_max
    cursor = ask.cursor
    rows = <float *>(keys + room)
    n = store_scan(me.shard, table, ask.fragment, &cursor, keys, rows, room)
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
    reply.body_bytes = _padded(sizeof(ScannedHead) + n * (8 + dim * 4))
    return OUTCOME_REPLY


cdef class ShardThread:
    """One shard: its store, its loop, and the thread that owns both.

    Parameters
    ----------
    listener : socket.socket
        Listening socket; owned by the loop from now on.
    make_session : callable
        Gives a `ServerSession` for each connection.
    row_ops : PyCapsule
        Row operations of the kernel build in use.
    frag_num : int
        Fragments of the cluster.
    park_limit_s : float
        How long a request may wait here, seconds.
    name : str
        Name of the thread.
    """

    cdef ShardStore store
    cdef ShardLoop loop
    cdef Handler handler
    cdef Context context
    cdef object thread

    def __init__(self, listener, make_session, row_ops, int frag_num, double park_limit_s, name):
        self.store = PyShardStore(frag_num, row_ops)
        self.loop = ShardLoop(listener, make_session, park_limit_s)
        memset(&self.context, 0, sizeof(Context))
        self.context.shard = self.store.shard
        self.context.frag_num = frag_num
        self.handler.context = &self.context
        self.handler.handle = _handle
        self.loop.set_handler(&self.handler, self)     # both must outlive the loop
        self.thread = threading.Thread(target=self.loop.run, name=name, daemon=True)

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

    def add_table(self, number, dim, access, init, scale, seed, hyper):
        """Makes a table known to this shard.  Waits for the shard's thread.

        Raises
        ------
        MisuseError
            Rows wider than one part of a pull or push can carry.
        """
        if not 1 <= dim <= ROW_FLOATS_MAX:
            raise MisuseError(f"rows of {dim:,} floats, 1 to {ROW_FLOATS_MAX:,} expected")
        self.loop.submit(
            lambda: self.store.add_table(number, dim, access, init, scale, seed, hyper))

    def stats(self):
        """Counters of loop, requests and store, as a dict of numbers."""
        return self.loop.submit(self._stats)

    def _stats(self):
        return {
            **self.loop.counters(),
            **self.store.stats(),
            "epoch": self.context.epoch,
            "pulls": self.context.pulls,
            "pushes": self.context.pushes,
            "repeated": self.context.repeated,
            "rows_pulled": self.context.rows_pulled,
            "rows_pushed": self.context.rows_pushed,
            "rows_scanned": self.context.rows_scanned,
        }
