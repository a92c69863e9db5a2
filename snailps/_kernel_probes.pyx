# cython: language_level=3, embedsignature=True
"""What the kernels do with one row, one by one, for tests and benches: in no wheel (setup.py).

    Kernels.capsule -> Probes -> a function of the build's table, its arguments checked

The product reaches these functions by capsules, from compiled loops.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t, uint32_t

from snailps.abi._row_ops cimport (
    ACCESS_AVERAGE, ACCESS_NUM, HYPER_NUM, hyper_floats_of, state_floats_of,
)
from snailps.abi._wire_types cimport is_wire, wire_row_bytes
from snailps.kernels._jobs cimport KernelTable

import numpy as np

cdef enum:
    C_DIM_MAX = 65536


cdef class Probes:
    """The functions of one build, from `Kernels.capsule`."""

    cdef readonly object capsule    # keeps what table points into
    cdef const KernelTable *table

    def __init__(self, capsule: object):
        self.capsule = capsule
        self.table = <const KernelTable *>PyCapsule_GetPointer(capsule, b"snailps.kernels")

    cdef object check_step(self, int access, Py_ssize_t hyper_num, Py_ssize_t row_floats,
                           Py_ssize_t dim):
        """Refuses what a step would read or write outside of its arrays."""
        if not 0 <= access < ACCESS_NUM:
            raise ValueError(f"access must be 0 to {ACCESS_NUM - 1} (see Access in "
                             f"abi/_row_ops.h), got {access}")
        if hyper_num != HYPER_NUM:
            raise ValueError(f"hyper must have {HYPER_NUM} numbers, got {hyper_num}")
        if not 1 <= dim <= C_DIM_MAX:
            raise ValueError(f"dim must be 1 to {C_DIM_MAX}, got {dim}")
        wanted = dim + state_floats_of(access, <uint32_t>dim)
        if row_floats != wanted:
            raise ValueError(f"row must have {wanted} numbers for dim {dim}, got {row_floats}")

    def apply_row(self, int access, const float[::1] hyper, float[::1] row,
                  const float[::1] value) -> None:
        """`RowOps.apply` of one row (weights, then state); hyper float32[8]."""
        cdef Py_ssize_t dim = value.shape[0] - (access == ACCESS_AVERAGE)
        self.check_step(access, hyper.shape[0], row.shape[0], dim)
        prepared = np.zeros(hyper_floats_of(access), np.float32)
        prepared[:HYPER_NUM] = hyper
        cdef float[::1] view = prepared
        self.table.rows.prepare(access, &view[0])
        self.table.rows.apply[access](&view[0], &row[0], &value[0], <uint32_t>dim)

    def add_state_row(self, int access, const float[::1] hyper, float[::1] row,
                      const float[::1] delta, Py_ssize_t dim) -> None:
        """`RowOps.add_state` of one row."""
        self.check_step(access, hyper.shape[0], row.shape[0], dim)
        if self.table.rows.add_state[access] == NULL:
            raise ValueError(f"access {access} has no state that adds up")
        if delta.shape[0] != row.shape[0]:
            raise ValueError(
                f"delta must have {row.shape[0]} numbers like row, got {delta.shape[0]}")
        self.table.rows.add_state[access](&hyper[0], &row[0], &delta[0], <uint32_t>dim)

    def init_state_row(self, int access, const float[::1] hyper, float[::1] row,
                       Py_ssize_t dim) -> None:
        """`RowOps.init_state` of one row."""
        self.check_step(access, hyper.shape[0], row.shape[0], dim)
        self.table.rows.init_state(access, &hyper[0], &row[0], <uint32_t>dim)

    cdef Py_ssize_t check_wire(self, int wire, Py_ssize_t floats,
                               const uint8_t[:, ::1] packed=None) except -1:
        """Bytes of a row on the wire."""
        if not is_wire(wire):
            raise ValueError(f"wire must be 0, 1 or 3 (see kernels.WIRE_TYPES), got {wire}")
        if not 1 <= floats <= C_DIM_MAX:
            raise ValueError(f"rows must have 1 to {C_DIM_MAX} floats, got {floats}")
        cdef Py_ssize_t row_bytes = wire_row_bytes(wire, <uint32_t>floats)
        if packed is not None and packed.shape[1] != row_bytes:
            raise ValueError(f"packed must have {row_bytes} bytes a row for {floats} floats of "
                             f"wire type {wire}, got {packed.shape[1]}")
        return row_bytes

    def narrow_rows(self, int wire, const float[:, ::1] rows) -> NDArray[np.uint8]:
        """`WireOps.narrow` of rows float32[n, floats]: uint8[n, row_bytes]."""
        cdef Py_ssize_t i, n = rows.shape[0], floats = rows.shape[1]
        packed = np.empty((n, self.check_wire(wire, floats)), np.uint8)
        cdef uint8_t[:, ::1] out = packed
        for i in range(n):
            self.table.wire.narrow[wire](&rows[i, 0], <char *>&out[i, 0], <uint32_t>floats)
        return packed

    def widen_rows(self, int wire, const uint8_t[:, ::1] packed,
                   Py_ssize_t floats) -> NDArray[np.float32]:
        """`WireOps.widen` of rows; exact."""
        cdef Py_ssize_t i, n = packed.shape[0]
        self.check_wire(wire, floats, packed)
        rows = np.empty((n, floats), np.float32)
        cdef float[:, ::1] out = rows
        for i in range(n):
            self.table.wire.widen[wire](<const char *>&packed[i, 0], &out[i, 0], <uint32_t>floats)
        return rows

    def narrow_owing_rows(self, int wire, const float[:, ::1] rows,
                          float[:, ::1] residues) -> NDArray[np.uint8]:
        """`WireOps.narrow_owing` of rows: ``narrow_rows(wire, rows + residues)``.

        `residues` becomes ``rows + residues - widened``, or 0 where that is not finite.
        """
        cdef Py_ssize_t i, n = rows.shape[0], floats = rows.shape[1]
        packed = np.empty((n, self.check_wire(wire, floats)), np.uint8)
        cdef uint8_t[:, ::1] out = packed
        if residues.shape[0] != n or residues.shape[1] != floats:
            raise ValueError(f"residues ({residues.shape[0]} x {residues.shape[1]}) must have the "
                             f"shape of rows ({n} x {floats})")
        if n and &residues[0, 0] == &rows[0, 0]:
            raise ValueError("residues must not be rows: both are read, and residues written")
        for i in range(n):
            self.table.wire.narrow_owing[wire](&rows[i, 0], &residues[i, 0], <char *>&out[i, 0],
                                               <uint32_t>floats)
        return packed

    def finite_rows(self, int wire, const uint8_t[:, ::1] packed, Py_ssize_t floats) -> int:
        """`WireOps.finite` of rows."""
        cdef Py_ssize_t n = packed.shape[0], row_bytes = self.check_wire(wire, floats, packed)
        return self.table.wire.finite[wire](<const char *>&packed[0, 0] if n else NULL, row_bytes,
                                            <uint32_t>n, <uint32_t>floats)

    def fitting_rows(self, int wire, const float[:, :] rows) -> int:
        """`WireOps.fitting` of rows float32[n, floats]; rows may have gaps."""
        cdef Py_ssize_t n = rows.shape[0], floats = rows.shape[1]
        self.check_wire(wire, floats)
        if rows.strides[1] != 4 or rows.strides[0] < 0:
            raise ValueError("rows must be contiguous, one behind the other")
        return self.table.wire.fitting[wire](<const char *>&rows[0, 0] if n else NULL,
                                             rows.strides[0], <uint32_t>n, <uint32_t>floats)

    def score_probe(self, const float[::1] x) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The sigmoid of the kernels and -log(sigmoid)."""
        sigmoid = np.empty(x.shape[0], np.float32)
        loss = np.empty(x.shape[0], np.float32)
        cdef float[::1] a = sigmoid
        cdef float[::1] b = loss
        if x.shape[0]:
            with nogil:
                self.table.score_probe(&x[0], x.shape[0], &a[0], &b[0])
        return sigmoid, loss
