# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Numbers of a few bits each, in words of 32 bits, with any of them in reach.

    numbers from -1 on -> pack -> words      words, place of the first number -> unpack -> numbers

A number plus one is stored in `bits` bits, the lowest first.  So GROUP numbers fill `bits` words, and a
range of numbers is in a range of words, which servers keep as float32 (`models/rotation/shared_blocks.py`).
Must not know what a number means; the loops run without the GIL.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy

import numpy as np

GROUP = 32
"""Numbers that begin and end at words."""

cdef enum:
    BITS_MAX = 25               # a number and the bits before it in its first byte fit into 32 bits


def check_bits(int bits) -> None:
    """Raise ValueError unless numbers may have so many bits."""
    if not 1 <= bits <= BITS_MAX:
        raise ValueError(f"expected numbers of 1 to {BITS_MAX} bits, got {bits}")


def pack(const int32_t[::1] numbers not None, int bits) -> NDArray[np.float32]:
    """Pack numbers from -1 to ``2 ** bits - 2`` into whole groups.

    Returns words as float32, of which some may be no numbers.  ValueError: a number is out of range.
    """
    check_bits(bits)
    cdef Py_ssize_t n = numbers.shape[0], i
    cdef uint32_t[::1] words = np.zeros(-(-n // GROUP) * bits, np.uint32)
    cdef uint64_t filled = 0
    cdef uint32_t number, seen = 0
    cdef int held = 0
    cdef Py_ssize_t at = 0
    with nogil:
        for i in range(n):
            number = <uint32_t>(numbers[i] + 1)
            seen |= number
            filled |= <uint64_t>number << held
            held += bits
            if held >= 32:
                words[at] = <uint32_t>filled
                at += 1
                filled >>= 32
                held -= 32
        if held:
            words[at] = <uint32_t>filled
    if seen >> bits:
        raise ValueError(f"expected numbers from -1 to {(1 << bits) - 2}, got some beyond")
    return words.base.view(np.float32)


def unpack(const float[::1] words not None, int bits, int64_t first, int32_t[::1] out not None) -> None:
    """Fill `out` with the numbers from place `first` on.  ValueError: there are too few words."""
    check_bits(bits)
    cdef int64_t n = out.shape[0], i, bit, size = 4 * words.shape[0], whole
    if not 0 <= first <= 8 * size // bits - n:      # `first * bits` may wrap
        raise ValueError(f"expected {n} numbers of {bits} bits from place {first} on, got "
                         f"{words.shape[0]} words")
    bit = first * bits
    if n == 0:
        return
    cdef const uint8_t *base = <const uint8_t *>&words[0]
    cdef uint64_t eight
    cdef uint32_t mask = (<uint32_t>1 << bits) - 1
    with nogil:
        # Eight bytes are read for each number, but for the last few.
        whole = (8 * (size - 8) - bit) // bits + 1 if 8 * (size - 8) >= bit else 0
        for i in range(min(n, whole)):
            memcpy(&eight, base + (bit >> 3), 8)
            out[i] = <int32_t>(<uint32_t>(eight >> (bit & 7)) & mask) - 1
            bit += bits
        for i in range(min(n, whole), n):
            eight = 0
            memcpy(&eight, base + (bit >> 3), min(8, size - (bit >> 3)))
            out[i] = <int32_t>(<uint32_t>(eight >> (bit & 7)) & mask) - 1
            bit += bits
