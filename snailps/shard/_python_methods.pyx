# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Access methods that are written in Python, and orders of a stream: where C code takes the GIL.

    what was asked, checked -> arrays -> AccessMethod.init, pull, push -> rows of the store
    order of a stream -> `PythonMethods.obey` -> done, or the body of a refusal

Runs in the shard's own thread, with the GIL.  Knows no frames and no connections: what goes wrong in
a method becomes the body of a refusal.
"""

import traceback

import numpy as np

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from snailps.abi._wire_types cimport WireOps
from snailps.shard._context cimport RowRequest, is_repeated
from snailps.store.core._clock_buffer cimport Sums
from snailps.store.tables cimport (
    Shard, Table, store_dim, store_floats, store_has, store_pull, store_put, store_scan,
    store_set_mark,
)
from snailps.transport._frame cimport KIND_ERROR, OPTION_ASSIGN, OPTION_STATE, PART_BYTES, FrameHeader, Group
from snailps.transport.loop._handler cimport Reply

from snailps.errors import ProtocolError, RemoteError, SnailError
from snailps.transport.handshake import error_frame

TRACEBACK_HEAD, TRACEBACK_TAIL = 1000, 2000     # chars of a long one: what an ERROR body holds


cdef class PythonMethods:
    """Access methods of one shard, by number of the table."""

    def __init__(self):
        self.methods = {}
        self.clock_error = None

    def add(self, number: int, method: snailps.api.access_method.AccessMethod) -> None:
        """Takes a table's method, unless it has one."""
        self.methods.setdefault(number, method)

    def drop(self, number: int) -> None:
        """Forgets the method of a table, if it has one."""
        self.methods.pop(number, None)


# --- requests ------------------------------------------------------------------------------------

cdef bint python_pull(void *methods, Table *table, uint32_t number, const RowRequest *asked, bint state,
                      float *rows, char *out, Reply *reply) noexcept with gil:
    """Rows of a PULL, through the table's `init` and `pull`; False = `reply` is an ERROR."""
    cdef PythonMethods me = <PythonMethods>methods
    if asked.key_num == 0:
        return True
    try:
        whole = _whole_rows(me, table, number, asked)
        if not state:
            whole = _block(me.methods[number].pull(whole), asked.key_num, store_dim(table), "pull")
        memcpy(rows, _data(whole), <size_t>whole.nbytes)
        return True
    except BaseException as error:
        _python_error(error, me.methods[number], out, reply)
        return False


cdef bint python_push(void *methods, Table *table, const FrameHeader *head, const RowRequest *asked,
                      char *out, Reply *reply) noexcept with gil:
    """Applies a PUSH through the table's `push`: all of it or, on an exception, nothing."""
    cdef PythonMethods me = <PythonMethods>methods
    cdef Shard *shard = me.store.shard
    cdef uint32_t g, n, at = 0, new = 0, total = 0, count = 0
    cdef uint32_t *of
    cdef uint32_t *size
    cdef uint64_t *to_keys
    cdef float *to_values
    cdef bint assigns = asked.options & OPTION_ASSIGN
    cdef uint64_t seq = asked.seq
    cdef const Group *groups = asked.groups
    cdef uint32_t floats = store_floats(table)
    try:
        # All fragments of the request together: a call costs the same with one as with a thousand.
        fragments = np.empty(asked.group_num, np.uint32)
        sizes = np.empty(asked.group_num, np.uint32)
        keys = np.empty(asked.key_num, np.uint64)
        values = np.empty((asked.key_num, asked.floats), np.float32)
        of, size = <uint32_t *>_data(fragments), <uint32_t *>_data(sizes)
        to_keys, to_values = <uint64_t *>_data(keys), <float *>_data(values)
        for g in range(asked.group_num):
            n = groups[g].keys
            if is_repeated(me.context, groups[g].fragment, head.incarnation, seq):
                me.context.repeated += 1
            else:
                memcpy(to_keys + total, asked.keys + at, n * sizeof(uint64_t))
                _fill(to_values + total * <uint64_t>asked.floats, me.context.wire, asked, at, n)
                of[new], size[new] = groups[g].fragment, n
                new += 1
                total += n
            at += n
        if total:
            method, keys, values = me.methods[head.table], keys[:total], values[:total]
            if assigns:
                keys, rows = _last(keys, values)
                if not asked.options & OPTION_STATE:
                    rows = method.assign(keys, rows)
            else:
                has = _has(me, table, keys, of, size, new)
                keys, values, has = _merged(keys, values, has)
                rows = method.push(_rows_of(me, table, head.table, keys, has), values)
            count = <uint32_t>len(keys)
            rows = _stored(rows, count, floats, table.finite, "assign" if assigns else "push")
        for g in range(new):
            if store_set_mark(shard, of[g], head.incarnation, seq) < 0:
                raise MemoryError(f"no memory for a mark of fragment {of[g]}")
        if total:
            if store_put(shard, table, <const uint64_t *>_data(keys), count,
                         <const float *>_data(rows)) < 0:
                raise MemoryError(f"no memory for {count} rows")
            me.context.rows_pushed += count
        return True
    except BaseException as error:
        _python_error(error, me.methods[head.table], out, reply)
        return False


cdef bint python_sums(void *methods, Table *table, const Sums *sums) noexcept with gil:
    """Applies the sums of a clock through the table's `push`: all of them or, on an exception,
    nothing.  Those of fragments that are not here are left out: their rows come with them applied."""
    cdef PythonMethods me = <PythonMethods>methods
    cdef uint32_t i, width = sums.floats
    cdef uint32_t floats = store_floats(table)
    cdef uint64_t row_bytes = width * <uint64_t>sizeof(float)
    cdef char *to
    try:
        keys = np.empty(sums.count, np.uint64)
        owners = np.empty(sums.count, np.uint32)
        values = np.empty((sums.count, width), np.float32)
        memcpy(_data(keys), sums.keys, sums.count * <uint64_t>sizeof(uint64_t))
        memcpy(_data(owners), sums.fragments, sums.count * <uint64_t>sizeof(uint32_t))
        to = _data(values)
        for i in range(sums.count):
            memcpy(to + i * row_bytes, sums.rows[i], row_bytes)
        order = np.argsort(owners, kind="stable")
        order = order[np.isin(owners[order], me.store.fragments())]
        if not len(order):
            return True
        keys, owners, values = keys[order], owners[order], values[order]
        fragments, sizes = np.unique(owners, return_counts=True)
        sizes = sizes.astype(np.uint32)
        has = _has(me, table, keys, <uint32_t *>_data(fragments), <uint32_t *>_data(sizes),
                   <uint32_t>len(fragments))
        rows = _rows_of(me, table, table.table_id, keys, has)
        rows = me.methods[table.table_id].push(rows, values)
        rows = _stored(rows, len(keys), floats, table.finite, "push")
        if store_put(me.store.shard, table, <const uint64_t *>_data(keys), <uint32_t>len(keys),
                     <const float *>_data(rows)) < 0:
            raise MemoryError(f"no memory for {len(keys)} rows")
        return True
    except BaseException as error:
        me.clock_error = _access_error(error, me.methods[table.table_id])
        return False


cdef void explain_broken(void *methods, char *out, Reply *reply) noexcept with gil:
    """Puts the words of the access method that failed into a refusal, if one did."""
    cdef bytes body
    error = (<PythonMethods>methods).clock_error
    if error is not None:
        body = error_frame(error).body
        memcpy(out, <const char *>body, len(body))
        reply.body_bytes = len(body)


cdef bint python_scan(void *methods, Table *table, uint32_t number, uint32_t fragment,
                      uint64_t *cursor, uint64_t *keys, float *rows, uint32_t *n, uint32_t room,
                      char *out, Reply *reply) noexcept with gil:
    """Rows of a SCAN as a pull would give them; False = `reply` is an ERROR."""
    cdef PythonMethods me = <PythonMethods>methods
    cdef uint32_t floats = store_floats(table)
    try:
        room = min(room, max(<uint32_t>1, <uint32_t>(PART_BYTES // (4 * floats))))
        stored = np.empty((room, floats), np.float32)
        n[0] = store_scan(me.store.shard, table, fragment, cursor, keys, <float *>_data(stored), floats,
                          room)
        if n[0]:
            shown = _block(me.methods[number].pull(stored[:n[0]]), n[0], store_dim(table), "pull")
            memcpy(rows, _data(shown), <size_t>shown.nbytes)
        return True
    except BaseException as error:
        _python_error(error, me.methods[number], out, reply)
        return False


cdef char *_data(array) except NULL:
    """Where a contiguous array lies; the caller holds it.  Memory views would cost seconds of compiling."""
    return <char *><uintptr_t>array.__array_interface__["data"][0]


cdef void _fill(float *to, const WireOps *wire, const RowRequest *asked, uint32_t start,
                uint32_t n) noexcept:
    """The n values from number `start` on, as float32."""
    cdef const char *values = asked.values + start * <uint64_t>asked.row_bytes
    cdef uint32_t i
    for i in range(n):
        wire.widen[asked.wire](values, to, asked.floats)
        values += asked.row_bytes
        to += asked.floats


cdef _whole_rows(PythonMethods me, Table *table, uint32_t number, const RowRequest *asked):
    """Weights and state of all keys of a request, in their order."""
    cdef uint32_t g
    cdef uint32_t *of
    cdef uint32_t *size
    keys = np.empty(asked.key_num, np.uint64)
    memcpy(_data(keys), asked.keys, asked.key_num * <uint64_t>8)
    fragments = np.empty(asked.group_num, np.uint32)
    sizes = np.empty(asked.group_num, np.uint32)
    of, size = <uint32_t *>_data(fragments), <uint32_t *>_data(sizes)
    for g in range(asked.group_num):
        of[g], size[g] = asked.groups[g].fragment, asked.groups[g].keys
    has = _has(me, table, keys, of, size, asked.group_num)
    return _rows_of(me, table, number, keys, has)


cdef _has(PythonMethods me, Table *table, keys, const uint32_t *fragments, const uint32_t *sizes,
          uint32_t groups):
    """Which keys have a row, uint8; `sizes` of them are in each of the fragments."""
    cdef uint32_t g
    cdef uint64_t at = 0
    cdef const uint64_t *wanted = <const uint64_t *>_data(keys)
    cdef uint8_t *to
    found = np.empty(len(keys), np.uint8)
    to = <uint8_t *>_data(found)
    for g in range(groups):
        store_has(me.store.shard, table, fragments[g], wanted + at, sizes[g], to + at)
        at += sizes[g]
    return found


cdef _rows_of(PythonMethods me, Table *table, uint32_t number, keys, has):
    """Weights and state of keys; of those without a row from the table's `init`."""
    cdef uint32_t n = <uint32_t>len(keys)
    cdef uint32_t floats = store_floats(table)
    rows = np.empty((n, floats), np.float32)
    store_pull(me.store.shard, table, <const uint64_t *>_data(keys), n, floats, _data(rows),
               4 * floats, NULL, NULL)
    fresh = has == 0
    if fresh.any():
        rows[fresh] = _block(me.methods[number].init(keys[fresh]), int(fresh.sum()), floats, "init")
    return rows


def _merged(keys, values, has):
    """Each key once, with the sum of its values, and whether it has a row."""
    unique, first, place = np.unique(keys, return_index=True, return_inverse=True)
    if len(unique) == len(keys):
        return keys, values, has
    sums = np.zeros((len(unique), values.shape[1]), np.float32)
    np.add.at(sums, place, values)
    return unique, sums, has[first]


def _last(keys, values):
    """Each key once, with the last of its values."""
    unique, place = np.unique(keys[::-1], return_index=True)
    return unique, values[::-1][place]


def _block(rows, n, floats, name):
    """What a method returned, as float32 (n, floats); says so if it is anything else."""
    block = np.ascontiguousarray(rows, np.float32)
    if block.shape != (n, floats):
        raise ValueError(f"{name}() must return rows of shape ({n}, {floats}), it returned "
                         f"{block.shape}")
    return block


def _stored(rows, n, floats, finite, name):
    """What `push` or `assign` returned for a table, which may have to be finite."""
    block = _block(rows, n, floats, name)
    if finite and not np.isfinite(block).all():
        row, column = np.argwhere(~np.isfinite(block))[0].tolist()
        raise ValueError(f"{name}() made {block[row, column]} in column {column} of a row from finite "
                         "values; a table whose rows may hold that is declared with finite=False")
    return block


cdef void _python_error(error, method, char *out, Reply *reply) noexcept:
    """An ERROR body with the traceback, for the client."""
    _refuse(_access_error(error, method), out, reply)


cdef void _refuse(error, char *out, Reply *reply) noexcept:
    cdef bytes body = error_frame(error).body
    memcpy(out, <const char *>body, len(body))
    reply.kind = KIND_ERROR
    reply.body_bytes = len(body)


def _access_error(error, method):
    """What a method in Python raised, with its traceback, for the client."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    if len(text) > TRACEBACK_HEAD + TRACEBACK_TAIL:
        text = f"{text[:TRACEBACK_HEAD]}\n...\n{text[len(text) - TRACEBACK_TAIL:]}"
    name = f"{type(method).__module__}:{type(method).__qualname__}"
    return RemoteError(f"access method {name} failed at the server:\n{text}", "access")


cdef void obey_order(void *methods, const char *text, uint64_t n, char *out,
                     Reply *reply) noexcept with gil:
    try:
        (<PythonMethods>methods).obey(text[:n])
    except BaseException as error:
        if not isinstance(error, SnailError):
            error = ProtocolError(f"an order in the stream: {error!r}", "stream")
        _refuse(error, out, reply)
