# Lists of keys on the wire: their digest, and keys in fewer than eight bytes.
#
#   keys -> smallest, bytes that the others need beyond it -> base, narrow keys -> keys
#
# Both sides of the data plane use it; it knows no frames and no connections.  Keys keep their
# order: a difference to the smallest costs a byte more than one to the neighbour would in sorted
# keys, and no sorting.
from libc.stdint cimport uint32_t, uint64_t


cdef inline size_t narrow_keys_bytes(uint32_t n, uint32_t width) noexcept nogil:
    """Length of base and narrow keys, padded to a multiple of 8."""
    return (8 + <size_t>n * width + 7) & ~<size_t>7


# Bytes a key beyond `base`, the smallest; 0 = whole keys serve better.
cdef uint32_t key_bytes(const uint64_t *keys, uint32_t n, uint64_t *base) noexcept nogil
# Writes narrow_keys_bytes() bytes.
cdef void write_narrow_keys(char *to, const uint64_t *keys, uint32_t n, uint64_t base,
                            uint32_t width) noexcept nogil
# The n keys of base and narrow keys at `inp`.
cdef void read_narrow_keys(const char *inp, uint64_t *keys, uint32_t n,
                           uint32_t width) noexcept nogil
