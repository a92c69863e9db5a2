# The C table of wire conversions that every kernel build exports (as a PyCapsule named
# "snailps.wire_ops") and the transport calls.  Declarations, and the sizes that follow from them.
#
# A row is `floats` float32 at home and wire_row_bytes() on the wire, little endian, at any
# address.  How each type rounds is in _wire_types.h.
from libc.stdint cimport uint32_t

cdef enum:                  # what a row is on the wire                 bytes
    WIRE_FLOAT32 = 0        # as it is                                  4 floats
    WIRE_FLOAT16 = 1        # IEEE 754 binary16                         2 floats
    WIRE_BFLOAT16 = 2       # the upper half of a float32               2 floats
    WIRE_INT8 = 3           # one float32 scale, then multiples of it   4 + floats
    WIRE_NUM = 4

ctypedef struct WireOps:
    # By wire type.  No two arguments of a call may overlap.
    void (*narrow[WIRE_NUM])(const float *row, char *out, uint32_t floats) noexcept nogil
    void (*widen[WIRE_NUM])(const char *inp, float *row, uint32_t floats) noexcept nogil
    # row + residue -> out; residue = row + residue - widened(out): what this row still owes.
    void (*narrow_owing[WIRE_NUM])(const float *row, float *residue, char *out,
                                   uint32_t floats) noexcept nogil


cdef inline uint32_t wire_row_bytes(int wire, uint32_t floats) noexcept nogil:
    if wire == WIRE_FLOAT32:
        return 4 * floats
    if wire == WIRE_INT8:
        return 4 + floats
    return 2 * floats
