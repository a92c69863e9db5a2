# lz4 for data bodies, and the sampling that decides whether it is worth a try.
#
#   body -> PackedHead, block, zeros          (where it saves a tenth; else nothing)
#
# The rare path: it takes the GIL for the lz4 package, which releases it for the work itself.  Only
# used where the network, not the processor, is the limit.
from libc.stdint cimport uint32_t

cdef enum:
    PACK_BODY_MIN = 4096            # smaller bodies travel as they are
    PACK_WAIT = 32                  # bodies left alone after one that did not pay,
    PACK_WAIT_SLOW = 1024           # ... and after one that took longer than the network
    PACK_BYTES_PER_S = 150000000    # the fastest network that packing is used for


cdef struct Sampler:
    uint32_t wait


# Whether the next body should be tried.
cdef inline bint sampler_says(Sampler *sampler, size_t body_bytes) noexcept nogil:
    if body_bytes < PACK_BODY_MIN:
        return False
    if sampler.wait:
        sampler.wait -= 1
        return False
    return True


# Packs `body` into `out` (room for n bytes); the packed length, 0 = it does not pay.
cdef size_t pack_body(Sampler *sampler, const char *body, size_t n, char *out) noexcept nogil

# Unpacks into `out` (room for DATA_BODY_MAX bytes); the length, 0 = damaged.  The sampler is that of
# who asks for packed bodies (NULL for who was sent one unasked): where Python is busy, the GIL may
# come too late for them.
cdef size_t unpack_body(Sampler *sampler, const char *packed, size_t n, char *out) noexcept nogil
