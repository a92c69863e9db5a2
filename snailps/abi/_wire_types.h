/* Wire types: the C table that a kernel build fills and the transport calls (as a PyCapsule named
 * "snailps.wire_ops"), and the sizes of rows on the wire.
 *
 * A row is `floats` float32 in memory and snail_wire_row_bytes() on the wire, little endian, at any
 * address.  How each type rounds is in kernels/_wire_types.h.
 *
 * A wire type needs its size in snail_wire_row_bytes() and, in snail_wire_ops, functions that narrow, widen
 * and check rows; `fitting` only if its range is smaller than float32's.  A client that was made without the
 * capsule sends and asks for float32 only.
 */
#ifndef SNAILPS_WIRE_OPS_H
#define SNAILPS_WIRE_OPS_H

#include <stdint.h>

enum {                      /* what a row is on the wire                 bytes */
    SNAIL_WIRE_FLOAT32 = 0, /* as it is                                  4 floats */
    SNAIL_WIRE_FLOAT16 = 1, /* IEEE 754 binary16                         2 floats */
    /* 2 was bfloat16: reserved, and refused */
    SNAIL_WIRE_INT8 = 3,    /* one float32 scale, then multiples of it   4 + floats */
    SNAIL_WIRE_NUM = 4
};

typedef struct {
    /* By wire type; NULL where there is none.  No two arguments of a call may overlap. */
    void (*narrow[SNAIL_WIRE_NUM])(const float *row, char *out, uint32_t floats);
    void (*widen[SNAIL_WIRE_NUM])(const char *inp, float *row, uint32_t floats);
    /* row + residue -> out; residue = row + residue - widened(out): what this row still owes. */
    void (*narrow_owing[SNAIL_WIRE_NUM])(const float *row, float *residue, char *out,
                                         uint32_t floats);
    /* Checks n rows that begin `stride` bytes apart: the number of values before the first that is
     * NaN or infinite after widening; n * floats if there is none. */
    uint64_t (*finite[SNAIL_WIRE_NUM])(const char *rows, uint64_t stride, uint32_t n,
                                       uint32_t floats);
    /* The same for float32 rows to be narrowed: the number of values before the first that the type
     * cannot hold, so that narrowing would change it by more than rounding. */
    uint64_t (*fitting[SNAIL_WIRE_NUM])(const char *rows, uint64_t stride, uint32_t n,
                                        uint32_t floats);
} snail_wire_ops;

static inline int snail_is_wire(int64_t wire) {
    return wire == SNAIL_WIRE_FLOAT32 || wire == SNAIL_WIRE_FLOAT16 || wire == SNAIL_WIRE_INT8;
}

static inline uint32_t snail_wire_row_bytes(int wire, uint32_t floats) {
    return wire == SNAIL_WIRE_FLOAT32 ? 4 * floats
           : wire == SNAIL_WIRE_INT8  ? 4 + floats
                                      : 2 * floats;
}

#endif
