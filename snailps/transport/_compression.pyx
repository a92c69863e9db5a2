# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""lz4 for data bodies: see _compression.pxd."""

import lz4.block

from libc.string cimport memcpy, memset

from snailps.transport._frame cimport DATA_BODY_MAX, PackedHead
from snailps.transport._posix cimport now_s


cdef size_t _compress(const char *body, size_t n, char *out) noexcept with gil:
    cdef PackedHead *head = <PackedHead *>out
    cdef bytes block
    cdef size_t size, padded
    try:
        block = lz4.block.compress(<bytes>body[:n], store_size=False)
    except Exception:               # out of memory: it travels as it is
        return 0
    size = len(block)
    padded = (sizeof(PackedHead) + size + 7) & ~<size_t>7
    if padded * 10 > n * 9:
        return 0
    head.body_bytes = n
    head.block_bytes = size
    memcpy(out + sizeof(PackedHead), <const char *>block, size)
    memset(out + sizeof(PackedHead) + size, 0, padded - sizeof(PackedHead) - size)
    return padded


cdef size_t pack_body(Sampler *sampler, const char *body, size_t n, char *out) noexcept nogil:
    cdef double begun = now_s()
    cdef size_t size = _compress(body, n, out)
    if now_s() - begun > <double>n / PACK_BYTES_PER_S:
        sampler.wait = PACK_WAIT_SLOW
    elif size == 0:
        sampler.wait = PACK_WAIT
    return size


cdef size_t _decompress(const char *block, size_t n, size_t body_bytes, char *out) noexcept with gil:
    cdef bytes body
    try:
        body = lz4.block.decompress(<bytes>block[:n], uncompressed_size=body_bytes)
    except Exception:               # damaged: lz4 has several errors for it
        return 0
    if <size_t>len(body) != body_bytes:
        return 0
    memcpy(out, <const char *>body, body_bytes)
    return body_bytes


cdef size_t unpack_body(Sampler *sampler, const char *packed, size_t n, char *out) noexcept nogil:
    cdef double begun = now_s()
    cdef size_t size
    cdef PackedHead head
    if n < sizeof(PackedHead):
        return 0
    memcpy(&head, packed, sizeof(PackedHead))
    if head.body_bytes > DATA_BODY_MAX or head.block_bytes > n - sizeof(PackedHead):
        return 0
    size = _decompress(packed + sizeof(PackedHead), head.block_bytes, head.body_bytes, out)
    if sampler != NULL and now_s() - begun > <double>head.body_bytes / PACK_BYTES_PER_S:
        sampler.wait = PACK_WAIT_SLOW
    return size
