# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""FORWARD and BACKWARD: a first layer whose weights stay where they live.

    FORWARD   entries of some examples -> checked -> [kept for the way back] -> their rows of Z
    BACKWARD  dL/dZ of some examples -> kept; with the last of them: gradient of each row that the
              batch touched, summed over the whole batch -> applied as a PUSH would be, once a row

Parts of a batch come in order, once a connection; one that does not fit what is kept is answered with
`batch`, which ends the connection: so nothing newer is applied before the client has sent the batch
again, and marks keep their meaning.  A part is computed at once, the step of a batch with its last part
(25,000 rows of 400 floats: some 20 ms): the shard serves no other request meanwhile.  What is kept of a
batch is `_connection_memory`.
"""

from libc.math cimport isfinite
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy, memset

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._row_ops cimport ACCESS_AVERAGE, ACCESS_PYTHON
from snailps.abi._wire_types cimport WIRE_FLOAT16, WIRE_FLOAT32, is_wire, wire_row_bytes
from snailps.shard._connection_memory cimport (
    Columns, ConnectionMemory, KeptBatch, batch_add, batch_begin, batch_drop, batch_of, batch_refuse,
    columns_cool, columns_of,
)
from snailps.shard._context cimport (
    ROOM_BYTES, Context, RowRequest, is_lr_scale, padded, refuse, refuse_value,
)
from snailps.shard._primary cimport Appended, hold, push_rows, replicate_push, settle_push
from snailps.shard._requests cimport product_requests
from snailps.store.tables cimport (
    Table, store_access, store_dim, store_integers, store_owns, store_scales_lr, store_sum,
)
from snailps.transport._frame cimport (
    BATCHES_BYTES, DATA_BODY_MAX, KIND_BACKWARD, KIND_PRODUCT, KIND_STEPPED, OPTION_KEY_SHIFT,
    OPTION_LR_SCALE, OPTION_WIRE_SHIFT, PRODUCT_KEEP, PRODUCT_ONES, PRODUCT_OPTIONS_KNOWN, PRODUCT_QUIET,
    PRODUCT_STORED, FrameHeader, Group, ProductHead, narrow_keys_bytes, read_narrow_keys, wide_product_bytes,
)
from snailps.transport.loop._handler cimport OUTCOME_REPLY, Outcome, Reply

cdef enum:
    SUMMED_BYTES = 64 << 10         # gradients that are summed, then pushed, at a time: they stay in cache
    STEP_TERMS = 32                 # examples of a row summed at a time


cdef struct Examples:                   # of a FORWARD or BACKWARD, checked
    const ProductHead *top
    int wire
    uint32_t row_bytes
    const uint32_t *counts          # FORWARD: entries of each example
    const uint64_t *keys
    const float *values             # NULL = all are 1
    const char *rows                # BACKWARD: dL/dZ


cdef bint _read_part(Context *me, Table *table, const FrameHeader *head, const char *body,
                     Examples *part, char *out, Reply *reply) noexcept nogil:
    """Reads and checks the head that both kinds have; False = `reply` is a refusal."""
    cdef const ProductHead *top = <const ProductHead *>body
    cdef uint32_t known = PRODUCT_OPTIONS_KNOWN
    if head.kind == KIND_BACKWARD:
        known = 3 << OPTION_WIRE_SHIFT
    if head.body_bytes < sizeof(ProductHead):
        refuse(out, reply, b"length", b"body of %llu bytes, at least %llu expected",
               head.body_bytes, sizeof(ProductHead))
        return False
    part.top = top
    part.wire = top.options >> OPTION_WIRE_SHIFT & 3
    part.row_bytes = wire_row_bytes(part.wire, top.floats)
    if top.options & ~known or not is_wire(part.wire) \
            or (top.options & PRODUCT_QUIET and not top.options & PRODUCT_KEEP):
        refuse(out, reply, b"option", b"options %llu are unknown, or cannot be combined; known are "
               b"%llu", top.options, known)
        return False
    if store_access(table) == ACCESS_PYTHON or store_access(table) == ACCESS_AVERAGE \
            or store_integers(table):
        refuse(out, reply, b"access", b"table %llu: products need rows of floats, and a built-in access "
               b"method other than average; pull its rows instead", head.table, 0)
        return False
    if top.floats != store_dim(table):
        refuse(out, reply, b"dim", b"rows of %llu floats here, the request is for %llu",
               store_dim(table), top.floats)
        return False
    if top.batch == 0:
        refuse(out, reply, b"seq", b"a batch needs a number", 0, 0)
        return False
    if top.count == 0 or <uint64_t>top.first + top.count > top.examples:
        refuse(out, reply, b"length", b"the part ends with example %llu of %llu, or has none",
               <uint64_t>top.first + top.count, top.examples)
        return False
    # Before any room is used: the rows of the part fit into one body, there or back.
    if top.count * <uint64_t>part.row_bytes > DATA_BODY_MAX:
        refuse(out, reply, b"too-long", b"rows of %llu bytes, limit %llu",
               top.count * <uint64_t>part.row_bytes, DATA_BODY_MAX)
        return False
    return True


cdef bint _read_entries(Context *me, const FrameHeader *head, const char *body, Examples *part,
                        char *out, Reply *reply) noexcept nogil:
    """The entries of a FORWARD; False = `reply` is a refusal."""
    cdef const ProductHead *top = part.top
    cdef uint32_t width = top.options >> OPTION_KEY_SHIFT & 7
    cdef uint64_t need = sizeof(ProductHead) + padded(top.count * <uint64_t>4)
    cdef uint64_t total = 0
    cdef uint64_t keys_bytes = narrow_keys_bytes(top.entries, width) if width \
        else top.entries * <uint64_t>8
    cdef const char *at = body + need
    cdef uint32_t i, fragment
    if top.entries > ROOM_BYTES // 8:
        refuse(out, reply, b"too-long", b"%llu entries in one part, limit %llu", top.entries,
               ROOM_BYTES // 8)
        return False
    need += keys_bytes
    if not top.options & PRODUCT_ONES:
        need += padded(top.entries * <uint64_t>4)
    if need != head.body_bytes:
        refuse(out, reply, b"length", b"body of %llu bytes, its counts need %llu",
               head.body_bytes, need)
        return False
    part.counts = <const uint32_t *>(body + sizeof(ProductHead))
    for i in range(top.count):
        total += part.counts[i]
    if total != top.entries:
        refuse(out, reply, b"length", b"the examples have %llu entries, the part %llu", total,
               top.entries)
        return False
    part.keys = <const uint64_t *>at
    if width:
        read_narrow_keys(at, me.keys, top.entries, width)
        part.keys = me.keys
    part.values = NULL
    if not top.options & PRODUCT_ONES:
        part.values = <const float *>(at + keys_bytes)
    for i in range(top.entries):
        fragment = fragment_of_hash(hash_key(part.keys[i]), me.frag_num)
        if not store_owns(me.shard, fragment):
            refuse(out, reply, b"stale-route",
                   b"fragment %llu is not here (route epoch %llu): fetch the new route",
                   fragment, me.epoch)
            return False
    return True


cdef Outcome _unknown_batch(Context *me, uint64_t number, char *out,
                            Reply *reply) noexcept nogil:
    """The client has to send the batch again, and nothing else before: so the connection ends."""
    me.batches_unknown += 1
    refuse(out, reply, b"batch", b"batch %llu is not (or no longer) known here: send it again",
           number, 0)
    reply.last = True
    return OUTCOME_REPLY


cdef bint _goes_wide(const Context *me, const Examples *part) noexcept nogil:
    """Whether rows of Z in `rows` are cut by the type that was asked for, and fit into a body as they are."""
    cdef const ProductHead *top = part.top
    return part.wire == WIRE_FLOAT16 and wide_product_bytes(top.count, top.floats) <= DATA_BODY_MAX \
        and me.wire.fitting[part.wire](<const char *>me.rows, 4 * <uint64_t>top.floats, top.count,
                                       top.floats) < top.count * <uint64_t>top.floats


cdef Outcome forward(Context *me, ConnectionMemory *mine, Table *table, const FrameHeader *head,
                     const char *body, char *out, Reply *reply) noexcept nogil:
    cdef Examples part
    cdef const ProductHead *top
    cdef KeptBatch *batch
    cdef float *rows
    cdef char *to = out
    cdef uint64_t at
    cdef uint32_t i
    if not _read_part(me, table, head, body, &part, out, reply) \
            or not _read_entries(me, head, body, &part, out, reply):
        return OUTCOME_REPLY
    top = part.top
    if top.options & PRODUCT_KEEP:
        if top.first == 0:
            batch = batch_begin(mine, top.batch, head.table, top.examples, top.floats)
        else:
            batch = batch_of(mine, top.batch, head.table, top.examples, top.floats)
            if batch == NULL or (batch.forth != top.first and not batch.refused):
                return _unknown_batch(me, top.batch, out, reply)
        if table.finite and part.values != NULL:    # they are factors of what comes back
            at = me.wire.finite[<int>WIRE_FLOAT32](<const char *>part.values, 4, top.entries, 1)
            if at < top.entries:
                batch_refuse(mine, batch)
                return refuse_value(out, reply, part.values[at], b"a value of row", part.keys[at], 0)
        if not batch_add(mine, batch, part.keys, part.values, part.counts, top.count,
                         top.entries):
            return refuse(out, reply, b"too-long", b"batch %llu does not fit: a connection may keep "
                          b"%llu bytes of batches. Make them smaller", top.batch, BATCHES_BYTES)
    reply.kind = KIND_PRODUCT
    reply.body_bytes = 0
    me.products += 1
    if top.options & PRODUCT_QUIET:
        return OUTCOME_REPLY
    rows = <float *>out if part.wire == WIRE_FLOAT32 else me.rows
    store_sum(me.shard, table, part.keys, part.values, top.entries, part.counts, top.count, rows,
              me.first, top.options & PRODUCT_STORED)
    me.entries_summed += top.entries
    if part.wire == WIRE_FLOAT32:
        to += top.count * <uint64_t>part.row_bytes
    elif _goes_wide(me, &part):
        reply.body_bytes = wide_product_bytes(top.count, top.floats)
        memset(out + reply.body_bytes - 16, 0, 16)
        memcpy(out, rows, top.count * <uint64_t>top.floats * sizeof(float))
        return OUTCOME_REPLY
    else:
        for i in range(top.count):
            me.wire.narrow[part.wire](rows, to, top.floats)
            rows += top.floats
            to += part.row_bytes
    while (to - out) & 7:
        to[0] = 0
        to += 1
    reply.body_bytes = to - out
    return OUTCOME_REPLY


cdef Outcome backward(Context *me, ConnectionMemory *mine, Table *table, const FrameHeader *head,
                      const char *body, char *out, Reply *reply) noexcept nogil:
    cdef Examples part
    cdef const ProductHead *top
    cdef KeptBatch *batch
    cdef uint64_t at
    cdef uint32_t i
    cdef float *to
    if not _read_part(me, table, head, body, &part, out, reply):
        return OUTCOME_REPLY
    top = part.top
    if top.seq == 0 or head.incarnation == 0:
        return refuse(out, reply, b"seq", b"a push needs a number and an incarnation", 0, 0)
    if head.body_bytes != sizeof(ProductHead) + padded(top.count * <uint64_t>part.row_bytes) \
            or top.entries:
        return refuse(out, reply, b"length", b"body of %llu bytes, its counts need %llu",
                      head.body_bytes,
                      sizeof(ProductHead) + padded(top.count * <uint64_t>part.row_bytes))
    if top.lr_scale != 1 and (not store_scales_lr(table) or not is_lr_scale(top.lr_scale)):
        return refuse(out, reply, b"access", b"table %llu: its access method has no step size that a "
                      b"batch may scale", head.table, 0)
    if not (top.scale > 0 and isfinite(top.scale)):
        return refuse(out, reply, b"option", b"batch %llu: its scale is no number above 0", top.batch, 0)
    batch = batch_of(mine, top.batch, head.table, top.examples, top.floats)
    if batch != NULL and batch.refused:
        return refuse(out, reply, b"batch-refused", b"batch %llu was refused before", top.batch, 0)
    if batch == NULL or batch.forth != batch.examples or batch.back != top.first:
        return _unknown_batch(me, top.batch, out, reply)
    if batch.dz == NULL:
        batch.dz = <float *>malloc(<uint64_t>batch.examples * batch.floats * 4)
        if batch.dz == NULL:
            return refuse(out, reply, b"memory", b"the server has no memory left for batch %llu",
                          top.batch, 0)
    part.rows = body + sizeof(ProductHead)
    at = me.wire.finite[part.wire](part.rows, part.row_bytes, top.count, top.floats)
    if table.finite and at < top.count * <uint64_t>top.floats:
        me.wire.widen[part.wire](part.rows + at // top.floats * part.row_bytes, me.rows, top.floats)
        batch_refuse(mine, batch)
        return refuse_value(out, reply, me.rows[at % top.floats], b"example",
                            top.first + at // top.floats, at % top.floats)
    to = batch.dz + <uint64_t>top.first * batch.floats
    if part.wire == WIRE_FLOAT32:
        memcpy(to, part.rows, top.count * <uint64_t>part.row_bytes)
    else:
        for i in range(top.count):
            me.wire.widen[part.wire](part.rows, to, top.floats)
            part.rows += part.row_bytes
            to += top.floats
    batch.back += top.count
    if batch.back == batch.examples:
        if not _step_batch(me, table, batch, head, top.seq, top.scale, top.lr_scale, out, reply):
            return OUTCOME_REPLY
        batch_drop(mine, batch)
        hold(me, reply)
    reply.kind = KIND_STEPPED
    reply.body_bytes = 0
    return OUTCOME_REPLY


cdef bint _step_batch(Context *me, Table *table, const KeptBatch *batch, const FrameHeader *head,
                      uint64_t seq, float scale, float lr_scale, char *out, Reply *reply) noexcept nogil:
    """Steps every row that a batch touched, unless its fragment has had this push; False = refused."""
    cdef Columns *c = &me.columns
    cdef RowRequest asked
    cdef Appended appended
    cdef uint64_t row_bytes = batch.floats * <uint64_t>sizeof(float)
    cdef uint64_t pushed = me.rows_pushed
    cdef const Group *end
    cdef uint32_t g, k
    cdef uint32_t at = 0
    cdef bint done = True
    if not columns_of(c, batch, me.frag_num):
        refuse(out, reply, b"memory", b"the server has no memory left for batch %llu",
               batch.number, 0)
        return False
    for g in range(c.groups):
        if not store_owns(me.shard, c.group[g].fragment):
            refuse(out, reply, b"stale-route",
                   b"fragment %llu is not here (route epoch %llu): fetch the new route",
                   c.group[g].fragment, me.epoch)
            columns_cool(c)
            return False
        # In `me.rows`, and in one frame to the standby.
        if c.group[g].keys * (sizeof(uint64_t) + row_bytes) > ROOM_BYTES:
            refuse(out, reply, b"too-long", b"the gradients of a batch take %llu bytes in one fragment, "
                   b"limit %llu: use smaller batches or more fragments (frag_num)",
                   c.group[g].keys * (sizeof(uint64_t) + row_bytes), ROOM_BYTES)
            columns_cool(c)
            return False
    if scale != 1:
        for k in range(c.start[c.keys]):
            c.value[k] *= scale
    asked.seq = seq
    asked.options = OPTION_LR_SCALE if lr_scale != 1 else 0
    asked.lr_scale = lr_scale
    asked.wire = WIRE_FLOAT32
    asked.floats = batch.floats
    asked.row_bytes = <uint32_t>row_bytes
    asked.values = <const char *>me.rows
    asked.groups = c.group
    end = c.group + c.groups
    while done and asked.groups < end:
        asked.group_num = 0
        asked.key_num = 0
        while asked.groups + asked.group_num < end and (asked.group_num == 0 or row_bytes * (
                asked.key_num + asked.groups[asked.group_num].keys) <= <uint64_t>SUMMED_BYTES):
            asked.key_num += asked.groups[asked.group_num].keys
            asked.group_num += 1
        asked.keys = c.key + at
        for k in range(asked.key_num):
            _sum_column(table, batch, c, at + k, me.rows + k * <uint64_t>batch.floats)
        if me.stream.begun:
            replicate_push(me, head, &asked, &appended)
        else:
            appended.groups = 0
        done = push_rows(me, table, &asked, head.incarnation, False, out, reply)
        settle_push(me, head, &asked, &appended, done)
        at += asked.key_num
        asked.groups += asked.group_num
    me.rows_stepped += me.rows_pushed - pushed
    me.rows_pushed = pushed
    columns_cool(c)
    return done


cdef void _sum_column(const Table *table, const KeptBatch *batch, const Columns *c,
                      uint32_t column, float *gradient) noexcept nogil:
    """The gradient of one row: sum over its examples of value * dL/dZ."""
    cdef const float *rows[STEP_TERMS]
    cdef uint32_t at = c.start[column]
    cdef uint32_t m, i
    memset(gradient, 0, batch.floats * sizeof(float))
    while at < c.start[column + 1]:
        m = min(c.start[column + 1] - at, <uint32_t>STEP_TERMS)
        for i in range(m):
            rows[i] = batch.dz + <uint64_t>c.example[at + i] * batch.floats
        table.slab.ops.sum(m, rows, c.value + at, gradient, batch.floats)
        at += m


product_requests.forward, product_requests.backward = forward, backward
