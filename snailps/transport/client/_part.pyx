# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Parts of pulls and pushes: their bodies, and rows out of replies: see _part.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch_row, fetch_row_to_write
from snailps.abi._wire_types cimport WIRE_FLOAT32, WireOps
from snailps.transport._frame cimport (
    FRAME_HEADER_BYTES, KIND_PUSH, OPTION_CLOCK, OPTION_KEY_SHIFT, OPTION_WIRE_SHIFT, PART_BYTES,
    ClockHead, Group, GroupHead,
)
from snailps.transport._key_coding cimport (
    key_bytes, narrow_keys_bytes, write_narrow_keys,
)
from snailps.transport._socket_io cimport Buffer, buffer_reserve
from snailps.transport.client._error_feedback cimport owing_fetch_index, owing_fetch_row, owing_row
from snailps.transport.client._request cimport NO_KEY, Request, add_row

cdef enum:
    AHEAD = 10                      # rows fetched before they are needed


cdef uint32_t rows_per_part(const Request *r) noexcept nogil:
    return max(<uint32_t>1, <uint32_t>PART_BYTES // (r.row_bytes + 8))


cdef uint32_t _groups_of(const Request *r, const Part *part) noexcept nogil:
    """Groups that the part has keys of."""
    cdef uint32_t g = part.group
    while g < r.groups and r.group_start[g] < part.start + part.count:
        g += 1
    return g - part.group


cdef uint32_t _keys_of_group(const Request *r, const Part *part, uint32_t g) noexcept nogil:
    """Keys that the part has of group g."""
    return min(r.group_start[g + 1], part.start + part.count) - max(r.group_start[g], part.start)


cdef char *_write_keys(char *to, const Request *r, const Part *part, uint32_t groups, uint32_t width,
                       uint64_t base) noexcept nogil:
    """Writes groups and keys, in `width` bytes a key beyond `base` unless that is 0; where they end."""
    cdef Group *group = <Group *>to
    cdef const uint64_t *keys = r.keys + part.start
    cdef uint32_t g
    for g in range(part.group, part.group + groups):
        group.fragment = r.group_fragment[g]
        group.keys = _keys_of_group(r, part, g)
        group += 1
    to = <char *>group
    if width:
        write_narrow_keys(to, keys, part.count, base, width)
        return to + narrow_keys_bytes(part.count, width)
    memcpy(to, keys, <size_t>part.count * 8)
    return to + <size_t>part.count * 8


cdef void _add_repeats(const Request *r, uint32_t i, float *value) noexcept nogil:
    """Adds what other places hold for the key at `i` of a merged push, in their order."""
    cdef uint32_t place = r.later[r.order[i]]
    while place != NO_KEY:
        add_row(value, <const float *>(r.rows + place * r.row_stride), r.dim)
        place = r.later[place]


cdef bint _write_values(const WireOps *wire, const Request *r, Part *part, char *to) noexcept nogil:
    """Writes the values of a push part; False = no memory."""
    cdef uint32_t last = part.start + part.count
    cdef uint32_t i
    cdef const float *value
    cdef float *residue
    cdef char *first = to
    if part.kept_filled:
        memcpy(to, part.kept, <size_t>part.count * r.row_bytes)
        return True
    for i in range(part.start, last):
        if i + AHEAD < last:
            fetch_row(r.rows + r.order[i + AHEAD] * r.row_stride, 4 * r.dim, FETCH_AT_CLIENT)
        value = <const float *>(r.rows + r.order[i] * r.row_stride)
        if r.later != NULL:
            memcpy(r.sum, value, <size_t>r.dim * 4)
            _add_repeats(r, i, r.sum)
            value = r.sum
        if r.owing != NULL:
            if i + 2 * AHEAD < last:
                owing_fetch_index(r.owing, r.keys[i + 2 * AHEAD])
                owing_fetch_row(r.owing, r.keys[i + AHEAD])
            residue = owing_row(r.owing, r.keys[i])
            if residue == NULL:
                return False
            wire.narrow_owing[r.wire](value, residue, to, r.dim)
        elif r.wire != WIRE_FLOAT32:
            wire.narrow[r.wire](value, to, r.dim)
        else:
            memcpy(to, value, r.row_bytes)
        to += r.row_bytes
    if part.kept != NULL:
        memcpy(part.kept, first, to - first)
        part.kept_filled = True
    return True


cdef void _write_clock(ClockHead *head, const Request *r) noexcept nogil:
    head.clock = r.clock
    head.slot = r.slot
    head.slots = 0


cdef size_t write_body(const WireOps *wire, Request *r, Part *part, Buffer *out) noexcept nogil:
    cdef uint32_t groups = _groups_of(r, part)
    cdef size_t body = sizeof(GroupHead)
    cdef size_t pad
    cdef GroupHead *top
    cdef char *to
    cdef uint64_t base = 0
    cdef uint32_t width = key_bytes(r.keys + part.start, part.count, &base)
    body += groups * sizeof(Group)
    body += narrow_keys_bytes(part.count, width) if width else <size_t>part.count * 8
    if r.clocked:
        body += sizeof(ClockHead)
    if r.kind == KIND_PUSH:
        body += <size_t>part.count * r.row_bytes
    pad = (8 - (body & 7)) & 7
    body += pad
    if not buffer_reserve(out, FRAME_HEADER_BYTES + body):
        return 0
    top = <GroupHead *>(out.data + out.end + FRAME_HEADER_BYTES)
    top.seq = part.seq
    top.keys = part.count
    top.groups = groups
    top.floats = r.dim
    top.options = r.options | <uint32_t>r.wire << OPTION_WIRE_SHIFT | width << OPTION_KEY_SHIFT
    to = <char *>(top + 1)
    if r.clocked:
        top.options |= OPTION_CLOCK
        _write_clock(<ClockHead *>to, r)
        to += sizeof(ClockHead)
    to = _write_keys(to, r, part, groups, width, base)
    if r.kind == KIND_PUSH:
        if not _write_values(wire, r, part, to):
            return 0
        to += <size_t>part.count * r.row_bytes
    memset(to, 0, pad)
    return body


cdef void _take_row(const WireOps *wire, const Request *r, uint32_t i,
                    const char *body) noexcept nogil:
    """One row of a reply to its place in the caller's array."""
    cdef char *to = r.rows + r.order[i] * r.row_stride
    if r.wire != WIRE_FLOAT32:
        wire.widen[r.wire](body, <float *>to, r.dim)
    elif r.dim == 1:                # a constant size compiles to one move
        memcpy(to, body, 4)
    else:
        memcpy(to, body, r.row_bytes)


cdef bint take_rows(const WireOps *wire, const Request *r, const Part *part, const char *body,
                    uint64_t body_bytes) noexcept nogil:
    cdef uint32_t groups = _groups_of(r, part)
    cdef uint32_t last = part.start + part.count
    cdef uint32_t g, stop
    cdef uint32_t i = part.start
    cdef uint64_t mark
    if body_bytes < <uint64_t>groups * 8:
        return False
    for g in range(part.group, part.group + groups):
        memcpy(&mark, body, 8)
        body += 8
        stop = min(r.group_start[g + 1], last)
        while i < stop:
            r.stamps[i] = mark
            i += 1
    body_bytes -= <uint64_t>groups * 8
    if body_bytes != ((<uint64_t>part.count * r.row_bytes + 7) & ~<uint64_t>7):
        return False
    if r.wire == WIRE_FLOAT32 and r.dim == 1:
        for i in range(part.start, last):
            memcpy(r.rows + r.order[i] * r.row_stride, body, 4)
            body += 4
    elif r.wire == WIRE_FLOAT32:
        for i in range(part.start, last):
            if i + AHEAD < last:
                fetch_row_to_write(r.rows + r.order[i + AHEAD] * r.row_stride, r.row_bytes,
                                   FETCH_AT_CLIENT)
            memcpy(r.rows + r.order[i] * r.row_stride, body, r.row_bytes)
            body += r.row_bytes
    else:
        for i in range(part.start, last):
            if i + AHEAD < last:
                fetch_row_to_write(r.rows + r.order[i + AHEAD] * r.row_stride, 4 * r.dim,
                                   FETCH_AT_CLIENT)
            _take_row(wire, r, i, body)
            body += r.row_bytes
    return True
