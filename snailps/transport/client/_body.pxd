# cython: cdivision=True
# Bodies of pulls and pushes at the client: a part of a request -> body; PULLED body -> rows.
#
#   keys of a part -> a list that the shard remembers | narrow keys | keys
#   caller's rows -> wire type -> values          rows on the wire -> caller's rows
#
# Knows no sockets and no order of things: `_link.pxd` says which part when.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch_row, fetch_row_to_write
from snailps.abi._wire_types cimport WIRE_FLOAT32, WireOps, wire_row_bytes
from snailps.transport._frame cimport *
from snailps.transport._key_coding cimport (
    key_bytes, keys_digest, narrow_keys_bytes, write_narrow_keys,
)
from snailps.transport.client._error_feedback cimport owing_fetch_index, owing_fetch_row, owing_row
from snailps.transport.client._key_list_directory cimport Lists, NO_PLACE, lists_place
from snailps.transport.client._request cimport Request, add_repeats

cdef enum:
    LIST_KEYS_MIN = 16              # a shorter list is not worth a place
    AHEAD = 10                      # rows fetched before they are needed


cdef struct Part:
    Request *request                # NULL = answered, the slot is free
    uint64_t number                 # grows with every part; what the reply names
    uint32_t before                 # slots of the open parts cut before and after this one
    uint32_t after
    uint32_t start
    uint32_t count
    uint32_t group                  # the one that `start` is in
    uint32_t place                  # of its key list at the shard; NO_PLACE = not there
    uint64_t seq
    char *kept                      # room for values as they went out, with feedback; or NULL
    bint kept_filled                # ... and they are there: the part has gone out before


cdef struct KeysPlan:               # how the keys of a part travel
    uint32_t options
    ListHead list
    uint32_t width
    uint64_t base
    size_t bytes


cdef inline uint32_t rows_per_part(const Request *r) noexcept nogil:
    """Equal for a pull and a push of the same keys, so that their parts have the same lists."""
    return max(<uint32_t>1, <uint32_t>PART_BYTES // (r.row_bytes + 8))


cdef inline uint32_t groups_of(const Request *r, const Part *part) noexcept nogil:
    """Groups that the part has keys of."""
    cdef uint32_t g = part.group
    while g < r.groups and r.group_start[g] < part.start + part.count:
        g += 1
    return g - part.group


cdef inline uint32_t keys_of_group(const Request *r, const Part *part, uint32_t g) noexcept nogil:
    """Keys that the part has of group g."""
    return min(r.group_start[g + 1], part.start + part.count) - max(r.group_start[g], part.start)


cdef inline void plan_keys(Lists *lists, const Request *r, Part *part, uint32_t groups,
                           KeysPlan *plan) noexcept nogil:
    """Decides how the keys of a part travel."""
    cdef const uint64_t *keys = r.keys + part.start
    cdef uint32_t n = part.count
    cdef bint known = False
    plan.options = 0
    plan.bytes = 0
    plan.width = 0
    if n >= LIST_KEYS_MIN and <uint64_t>r.n * 8 <= LISTS_BYTES // 2:
        plan.list.digest = keys_digest(keys, n)
        part.place = lists_place(lists, plan.list.digest, 8 * (groups + n), &known)
        plan.list.place = part.place
        plan.list.unused = 0
        if part.place != NO_PLACE:
            plan.options = OPTION_RECALL if known else OPTION_REMEMBER
            plan.bytes = sizeof(ListHead)
    if not known:
        plan.width = key_bytes(keys, n, &plan.base)
        plan.options |= plan.width << OPTION_KEY_SHIFT
        plan.bytes += <size_t>groups * sizeof(Group)
        plan.bytes += narrow_keys_bytes(n, plan.width) if plan.width else <size_t>n * 8


cdef inline char *write_keys(char *to, const Request *r, const Part *part, uint32_t groups,
                             const KeysPlan *plan) noexcept nogil:
    """Writes plan.bytes bytes; where they end."""
    cdef Group *group
    cdef uint32_t g
    if plan.options & (OPTION_REMEMBER | OPTION_RECALL):
        memcpy(to, &plan.list, sizeof(ListHead))
        to += sizeof(ListHead)
    if plan.options & OPTION_RECALL:
        return to
    group = <Group *>to
    for g in range(part.group, part.group + groups):
        group.fragment = r.group_fragment[g]
        group.keys = keys_of_group(r, part, g)
        group += 1
    to = <char *>group
    if plan.width:
        write_narrow_keys(to, r.keys + part.start, part.count, plan.base, plan.width)
        return to + narrow_keys_bytes(part.count, plan.width)
    memcpy(to, r.keys + part.start, <size_t>part.count * 8)
    return to + <size_t>part.count * 8


cdef inline bint write_values(const WireOps *wire, const Request *r, Part *part,
                              char *to) noexcept nogil:
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
            add_repeats(r, i, r.sum)
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


cdef inline void take_row(const WireOps *wire, const Request *r, uint32_t i,
                          const char *body) noexcept nogil:
    """One row of a reply to its place in the caller's array."""
    cdef char *to = r.rows + r.order[i] * r.row_stride
    if r.wire != WIRE_FLOAT32:
        wire.widen[r.wire](body, <float *>to, r.dim)
    elif r.dim == 1:                # a constant size compiles to one move
        memcpy(to, body, 4)
    else:
        memcpy(to, body, r.row_bytes)


cdef inline bint take_rows(const WireOps *wire, const Request *r, const Part *part,
                           const char *body, uint64_t body_bytes) noexcept nogil:
    """Scatters a PULLED body to the caller's rows; False when its length is another."""
    cdef uint32_t groups = groups_of(r, part)
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
            take_row(wire, r, i, body)
            body += r.row_bytes
    return True
