# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""CRC-32C, the checksum of checkpoints, by the processor's instruction or by tables.

    bytes, the sum of those before them -> crc32c -> sum

Speed matters: a file of 4 GB is summed while a training wants every core.
"""

from libc.stdint cimport uint8_t, uint32_t

cdef extern from "_crc32c.h" nogil:
    void crc32c_fill_tables()
    uint32_t crc32c_by_tables(uint32_t crc, const uint8_t *p, size_t n)
    uint32_t crc32c_by_instruction(uint32_t crc, const uint8_t *p, size_t n)
    int crc32c_has_instruction()

crc32c_fill_tables()
HAS_INSTRUCTION: bool = crc32c_has_instruction() != 0
cdef bint fast = HAS_INSTRUCTION


def crc32c(data: Any, uint32_t value=0, *, bint by_tables=False) -> int:
    """CRC-32C (RFC 3720) of contiguous bytes, continuing from the sum `value`; releases the GIL.

    `by_tables` leaves the processor's instruction out, for tests.
    """
    cdef const uint8_t[::1] view = data
    cdef size_t n = view.shape[0]
    cdef uint32_t crc = value ^ 0xFFFFFFFFu
    if n == 0:
        return value
    with nogil:
        if fast and not by_tables:
            crc = crc32c_by_instruction(crc, &view[0], n)
        else:
            crc = crc32c_by_tables(crc, &view[0], n)
    return crc ^ 0xFFFFFFFFu
