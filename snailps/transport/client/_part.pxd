# Parts of pulls and pushes at the client: a part of a request -> body; PULLED body -> rows.
#
#   keys of a part -> narrow keys | keys
#   caller's rows -> wire type -> values          rows on the wire -> caller's rows
#
# Knows no sockets and no order of things: `_link.pyx` says which part when.
from libc.stdint cimport uint32_t, uint64_t

from snailps.abi._wire_types cimport WireOps
from snailps.transport._socket_io cimport Buffer
from snailps.transport.client._request cimport Request

cdef struct Part:
    Request *request                # NULL = answered, the slot is free
    uint64_t number                 # grows with every part; what the reply names
    uint32_t before                 # slots of the open parts cut before and after this one
    uint32_t after
    uint32_t start
    uint32_t count
    uint32_t group                  # the one that `start` is in
    uint64_t seq
    char *kept                      # room for values as they went out, with feedback; or NULL
    bint kept_filled                # ... and they are there: the part has gone out before


# How many keys a part has at most: as many for a push as for a pull.
cdef uint32_t rows_per_part(const Request *r) noexcept nogil
# Body of a PULL or PUSH behind the header to come, which is room in `out`; its length, 0 = no memory.
cdef size_t write_body(const WireOps *wire, Request *r, Part *part, Buffer *out) noexcept nogil
# Scatters a PULLED body to the caller's rows; False when its length is another.
cdef bint take_rows(const WireOps *wire, const Request *r, const Part *part, const char *body,
                    uint64_t body_bytes) noexcept nogil
