# Wire types, for Cython; see the C header.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "abi/_wire_types.h" nogil:
    enum:
        WIRE_FLOAT32 "SNAIL_WIRE_FLOAT32"
        WIRE_FLOAT16 "SNAIL_WIRE_FLOAT16"
        WIRE_INT8 "SNAIL_WIRE_INT8"
        WIRE_NUM "SNAIL_WIRE_NUM"

    ctypedef struct WireOps "snail_wire_ops":
        void (*narrow[4])(const float *row, char *out, uint32_t floats) noexcept nogil
        void (*widen[4])(const char *inp, float *row, uint32_t floats) noexcept nogil
        void (*narrow_owing[4])(const float *row, float *residue, char *out,
                                uint32_t floats) noexcept nogil
        uint64_t (*finite[4])(const char *rows, uint64_t stride, uint32_t n,
                              uint32_t floats) noexcept nogil
        uint64_t (*fitting[4])(const char *rows, uint64_t stride, uint32_t n,
                               uint32_t floats) noexcept nogil

    bint is_wire "snail_is_wire"(int64_t wire) noexcept nogil
    uint32_t wire_row_bytes "snail_wire_row_bytes"(int wire, uint32_t floats) noexcept nogil
