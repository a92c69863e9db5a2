# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Bodies of PULL and PUSH: read and checked, and rows as they travel.

    body -> options, clock, groups, keys (whole or narrow), values -> RowRequest
    RowRequest of a PULL -> store -> float32 rows -> wire type -> body of the reply
    RowRequest of a PUSH -> values -> float32 -> store, where a fragment's mark is lower

A peer's body is never trusted: counts are compared with lengths before anything is read, and every key
with the fragment that it claims.  Rows of another type than
float32 pass through a room of some 64 KiB, so that they are turned where they are in cache.  It owns no
state; it knows neither clocks nor the stream to a standby.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._wire_types cimport WIRE_FLOAT32, is_wire, wire_row_bytes
from snailps.shard._context cimport Context, is_repeated, padded
from snailps.store.tables cimport (
    Table, store_fetch, store_owns, store_pull, store_pull_any, store_push, store_set_mark,
)
from snailps.transport._frame cimport (
    DATA_BODY_MAX, KIND_ERROR, KIND_PUSH, OPTION_CLOCK, OPTION_KEY_SHIFT, OPTION_STATE,
    OPTION_WIRE_SHIFT, OPTIONS_KNOWN, SLOTS_MAX, ClockHead, FrameHeader, Group, GroupHead,
)
from snailps.transport._key_coding cimport narrow_keys_bytes, read_narrow_keys
from snailps.transport.loop._handler cimport OUTCOME_REPLY, Outcome, Reply

cdef enum:
    FETCH_KEYS = 32                 # of a push of small groups: fetched at a time,
    FETCH_AHEAD = 64                # ... until this many are ahead; more would not stay in cache
    TURN_FLOATS = 16 << 10          # turned into another type at a time


cdef Outcome refuse(char *out, Reply *reply, const char *code, const char *text,
                    uint64_t a, uint64_t b) noexcept nogil:
    """Writes an ERROR body; `text` is a format of ours with up to two numbers."""
    cdef int n = snprintf(out, 1024, b'{"code":"%s","text":"', code)
    n += snprintf(out + n, 900, text, <unsigned long long>a, <unsigned long long>b)
    n += snprintf(out + n, 16, b'"}')
    reply.kind = KIND_ERROR
    reply.body_bytes = n
    return OUTCOME_REPLY


# --- reading -------------------------------------------------------------------------------------

cdef bint _is_served(const Context *me, uint32_t fragment, bint clocked) noexcept nogil:
    """Whether the fragment is here; at a standby contributions to clocks come before it does."""
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
        if g and fragment <= groups[g - 1].fragment:    # twice in one push: it would be dropped
            refuse(out, reply, b"order", b"fragment %llu stands behind fragment %llu",
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
    """Reads groups and keys at `at` and moves it behind; False = `reply` is a refusal."""
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
    """Reads the clock at `at` and moves it behind; False = `reply` is a refusal."""
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


cdef bint read_row_request(Context *me, const FrameHeader *head, const char *body, uint64_t floats,
                           RowRequest *asked, char *out, Reply *reply) noexcept nogil:
    """Reads and checks a PULL or PUSH of rows of `floats`; False = `reply` is a refusal."""
    cdef const GroupHead *top = <const GroupHead *>body
    cdef bint push = head.kind == KIND_PUSH
    cdef const char *at = body + sizeof(GroupHead)
    cdef const char *end = body + head.body_bytes
    cdef uint64_t rest = 0
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
            or (asked.wire and top.options & OPTION_STATE):
        refuse(out, reply, b"option", b"options %llu are not known or do not go together, known "
               b"are %llu", top.options, OPTIONS_KNOWN)
        return False
    if top.floats != floats:
        refuse(out, reply, b"dim", b"rows of %llu floats here, the request is for %llu",
               floats, top.floats)
        return False
    # Before any room is used: the rows of all keys fit into one body, there or back.
    if top.keys * <uint64_t>asked.row_bytes > DATA_BODY_MAX:
        refuse(out, reply, b"too-long", b"rows of %llu bytes, limit %llu",
               top.keys * <uint64_t>asked.row_bytes, DATA_BODY_MAX)
        return False
    if asked.options & OPTION_CLOCK and not _read_clock(asked, push, &at, end, out, reply):
        return False
    if not _read_keys(me, asked, &at, end, out, reply):
        return False
    asked.values = at
    if push:
        rest = asked.key_num * <uint64_t>asked.row_bytes
    if padded(rest) != <uint64_t>(end - at):
        refuse(out, reply, b"length", b"body of %llu bytes, its counts make %llu",
               head.body_bytes, (at - body) + padded(rest))
        return False
    return True


# --- rows ----------------------------------------------------------------------------------------

cdef char *narrow_rows(Context *me, const RowRequest *asked, const float *rows, uint32_t n,
                       char *to) noexcept nogil:
    """Writes rows in the type that was asked for; where they end."""
    cdef uint32_t i
    for i in range(n):
        me.wire.narrow[asked.wire](rows, to, asked.floats)
        rows += asked.floats
        to += asked.row_bytes
    return to


cdef char *pull_rows(Context *me, Table *table, const RowRequest *asked, char *to) noexcept nogil:
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


cdef int _push_group(Context *me, Table *table, const RowRequest *asked, uint32_t fragment,
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


cdef bint push_rows(Context *me, Table *table, const RowRequest *asked, uint64_t incarnation,
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
                    or _push_group(me, table, asked, fragment, keys + at, n, values, state) < 0:
                refuse(out, reply, b"memory", b"the server has no memory left for fragment %llu",
                       fragment, 0)
                return False
            me.rows_pushed += n
        at += n
        values += n * <uint64_t>asked.row_bytes
    return True
