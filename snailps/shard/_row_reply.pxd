# cython: cdivision=True
# PULL and PUSH of tables that the kernels know: what was asked, checked -> store -> body of a reply.
#
#   PULL  keys -> store -> float32 rows -> wire type -> body
#   PUSH  values -> float32 -> store, where a fragment's mark is lower
#
# Rows of another type than float32 pass through a room of some 64 KiB, so that they are turned
# where they are in cache.
from libc.stdint cimport uint32_t, uint64_t

from snailps.abi._wire_types cimport WIRE_FLOAT32
from snailps.shard._row_request cimport RowRequest, Context, is_repeated, refuse
from snailps.store.tables cimport *
from snailps.transport._frame cimport *
from snailps.transport.loop._handler cimport Reply

cdef enum:
    FETCH_KEYS = 32                 # of a push of small groups: fetched at a time,
    FETCH_AHEAD = 64                # ... until this many are ahead; more would not stay in cache
    TURN_FLOATS = 16 << 10          # turned into another type at a time


cdef inline char *narrow_rows(Context *me, const RowRequest *asked, const float *rows, uint32_t n,
                              char *to) noexcept nogil:
    """Writes rows in the type that was asked for; where they end."""
    cdef uint32_t i
    for i in range(n):
        me.wire.narrow[asked.wire](rows, to, asked.floats)
        rows += asked.floats
        to += asked.row_bytes
    return to


cdef inline char *pull_all(Context *me, Table *table, const RowRequest *asked, char *to) noexcept nogil:
    """Writes the rows of all keys; where they end."""
    cdef const uint64_t *keys = asked.keys
    cdef uint32_t at_once = max(<uint32_t>TURN_FLOATS // asked.floats, <uint32_t>1)
    cdef bint short_groups = asked.key_num < 4 * <uint64_t>asked.group_num
    cdef uint32_t g, m, left
    if asked.wire == WIRE_FLOAT32 and not short_groups:
        for g in range(asked.group_num):
            store_pull(me.shard, table, asked.groups[g].fragment, keys, asked.groups[g].keys,
                       <float *>to, asked.floats)
            keys += asked.groups[g].keys
            to += asked.groups[g].keys * <uint64_t>asked.row_bytes
        return to
    if asked.wire == WIRE_FLOAT32:          # few keys a fragment: overlap their lookups
        store_pull_any(me.shard, table, keys, asked.key_num, <float *>to, asked.floats)
        return to + asked.key_num * <uint64_t>asked.row_bytes
    left = asked.key_num
    while left:                             # the wire is the limit: one way for all groups
        m = min(left, at_once)
        store_pull_any(me.shard, table, keys, m, me.rows, asked.floats)
        to = narrow_rows(me, asked, me.rows, m, to)
        keys += m
        left -= m
    return to


cdef inline bint push_rows(Context *me, Table *table, const RowRequest *asked, uint64_t incarnation,
                           bint state, char *out, Reply *reply) noexcept nogil:
    """Applies the values to every fragment that has not had them; False = `reply` is a refusal."""
    cdef const uint64_t *keys = asked.keys
    cdef const char *values = asked.values
    cdef uint32_t fetched = 0
    cdef uint32_t g, n, fragment, at = 0
    if asked.key_num >= 8 * <uint64_t>asked.group_num:
        fetched = asked.key_num
    for g in range(asked.group_num):
        n = asked.groups[g].keys
        fragment = asked.groups[g].fragment
        while fetched < asked.key_num and fetched < at + n + FETCH_AHEAD:
            store_fetch(me.shard, table, keys + fetched,
                        min(<uint32_t>FETCH_KEYS, asked.key_num - fetched))
            fetched += min(<uint32_t>FETCH_KEYS, asked.key_num - fetched)
        if is_repeated(me, fragment, incarnation, asked.seq):
            me.repeated += 1
        else:
            # The mark first: a push that ran out of memory half-way must not be applied again.
            if store_set_mark(me.shard, fragment, incarnation, asked.seq) < 0 \
                    or push_group(me, table, asked, fragment, keys + at, n, values, state) < 0:
                refuse(out, reply, b"memory", b"the server has no memory left for fragment %llu",
                       fragment, 0)
                return False
            me.rows_pushed += n
        at += n
        values += n * <uint64_t>asked.row_bytes
    return True


cdef inline int push_group(Context *me, Table *table, const RowRequest *asked, uint32_t fragment,
                           const uint64_t *keys, uint32_t n, const char *values,
                           bint state) noexcept nogil:
    """Applies the values of one fragment; -1 = no memory."""
    cdef uint32_t at_once = max(<uint32_t>TURN_FLOATS // asked.floats, <uint32_t>1)
    cdef uint32_t m, i
    if asked.wire == WIRE_FLOAT32:
        return store_push(me.shard, table, fragment, keys, n, <const float *>values, state)
    while n:
        m = min(n, at_once)
        for i in range(m):
            me.wire.widen[asked.wire](values, me.rows + i * <uint64_t>asked.floats, asked.floats)
            values += asked.row_bytes
        if store_push(me.shard, table, fragment, keys, m, me.rows, state) < 0:
            return -1
        keys += m
        n -= m
    return 0
