# The hash of keys; see the C header.
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "abi/_key_hash.h" nogil:
    const uint64_t GOLDEN "SNAIL_GOLDEN"
    uint64_t mix64 "snail_mix64"(uint64_t x) noexcept
    uint64_t hash_key "snail_hash_key"(uint64_t key) noexcept
    uint32_t fragment_of_hash "snail_fragment_of_hash"(uint64_t hashed, uint32_t frag_num) noexcept
