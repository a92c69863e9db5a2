# The hash of tables in memory; see the C header.
from libc.stdint cimport uint64_t

cdef extern from "abi/_table_hash.h" nogil:
    uint64_t table_hash "snail_table_hash"(uint64_t key) noexcept
