# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Loops over the arrays of matrix files: gather them from a file, check, convert.

    file, ranges -> gathered -> bytes
    keys of 32 or 64 bits -> wide_keys -> uint64 array, and the first one out of range
    dense rows -> nonzero_entries -> pointers, keys, values
    values, keys, factors by key -> scaled;  labels, classes -> places_among
    pointers -> first_falling;  floats -> first_not_finite

Must not know the format (`matrix_file`).  The loops run without the GIL.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import os

import numpy as np

from snailps.abi._key_hash cimport hash_key

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int fd, void *to, size_t size, int64_t offset)

cdef extern from "<errno.h>" nogil:
    int errno
    int EINTR

cdef enum:
    RUN = 4096                  # floats checked without a branch; then a faulty one is located

ctypedef fused Narrow:
    uint32_t
    uint64_t

ctypedef fused Real:
    float
    double


cdef int read_all(int fd, char *to, int64_t offset, int64_t length) noexcept nogil:
    """Read a range of a file; 0, an errno, or -1: the file ends before."""
    cdef Py_ssize_t got
    while length > 0:
        got = pread(fd, to, <size_t>length, offset)
        if got < 0 and errno == EINTR:
            continue
        if got <= 0:
            return errno if got < 0 else -1
        to += got
        offset += got
        length -= got
    return 0


def gathered(fds: int | Sequence[int], Py_ssize_t size, list buffers not None: list[tuple[int, bytes]],
             ranges not None: NDArray[np.int64] | list[tuple[int, int, int]]) -> bytes:
    """`size` bytes, filled by buffers and ranges of files, and zeros elsewhere.

    `buffers`: (offset, bytes); `ranges`: int64 (n, 3), offset in the result, offset in the file, length;
    both ascending.  `fds`: one descriptor, or one per range.  OSError: unreadable, or a file ends before.
    """
    cdef const int64_t[:, ::1] pieces = np.ascontiguousarray(ranges, np.int64).reshape(-1, 3)
    cdef const int64_t[:] files = np.broadcast_to(np.asarray(fds, np.int64), pieces.shape[0])
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    cdef char *to = PyBytes_AS_STRING(out)
    cdef Py_ssize_t at = 0, place, length, piece = 0, n = pieces.shape[0]
    cdef int wrong = 0
    cdef bint placed = True
    cdef bytes content
    for place, content in [*buffers, (size, b"")]:
        with nogil:
            while piece < n and pieces[piece, 0] < place and not wrong:
                placed = at <= pieces[piece, 0] and 0 <= pieces[piece, 2] <= size - pieces[piece, 0]
                if not placed:
                    break
                memset(to + at, 0, <size_t>(pieces[piece, 0] - at))
                wrong = read_all(
                    <int>files[piece], to + pieces[piece, 0], pieces[piece, 1], pieces[piece, 2]
                )
                at = pieces[piece, 0] + pieces[piece, 2]
                piece += 1
        if wrong > 0:
            raise OSError(wrong, os.strerror(wrong))
        if wrong < 0:
            end = pieces[piece - 1, 1] + pieces[piece - 1, 2]
            raise OSError(0, f"it ends before byte {end:,}")
        length = len(content)
        if not placed or not at <= place <= size - length:
            raise ValueError(f"expected pieces in order within {size} bytes, got one at {place}")
        memset(to + at, 0, place - at)
        memcpy(to + place, PyBytes_AS_STRING(content), length)
        at = place + length
    return out


def first_falling(const int64_t[::1] ptr not None) -> int:
    """Index of the first pointer that is below the one before it; -1: none is."""
    cdef Py_ssize_t i, n = ptr.shape[0]
    with nogil:
        for i in range(1, n):
            if ptr[i] < ptr[i - 1]:
                break
        else:
            i = -1
    return i


def first_not_finite(const float[::1] values not None) -> int:
    """Index of the first number that is NaN or infinite; -1: all are finite."""
    cdef Py_ssize_t i = 0, k, stop, n = values.shape[0], found = -1
    cdef const uint32_t *bits
    cdef uint32_t wrong
    if n == 0:
        return -1
    bits = <const uint32_t *>&values[0]
    with nogil:
        while i < n and found < 0:
            stop = min(i + RUN, n)
            wrong = 0
            for k in range(i, stop):
                wrong |= (bits[k] & 0x7F800000u) == 0x7F800000u
            if wrong:
                for k in range(i, stop):
                    if (bits[k] & 0x7F800000u) == 0x7F800000u:
                        found = k
                        break
            i = stop
    return found


cdef int64_t widen(const Narrow *keys, int64_t n, uint64_t limit, bint hashed, int bits,
                   uint64_t *out) noexcept nogil:
    """Index of the first key that is not below `limit`, or -1."""
    cdef int64_t i
    cdef uint64_t most = 0
    for i in range(n):
        most = max(most, <uint64_t>keys[i])
        out[i] = keys[i]
    if most >= limit:
        for i in range(n):
            if keys[i] >= limit:
                return i
    if bits and hashed:         # the upper 63 bits of a hash
        for i in range(n):
            out[i] >>= 63 - bits
    elif bits:
        for i in range(n):
            out[i] = hash_key(out[i]) >> (64 - bits)
    return -1


def wide_keys(keys not None: NDArray[Any], uint64_t limit, bint hashed,
              int hash_bits) -> tuple[NDArray[np.uint64], int]:
    """Keys as uint64, folded to `hash_bits` (0: not), and the index of the first key that is not below
    `limit`, or -1.

    `hashed`: keys are the upper 63 bits of hashes, so they are folded by dropping further low bits; other
    keys are hashed first.
    """
    cdef const uint32_t[::1] narrow
    cdef const uint64_t[::1] wide
    cdef uint64_t[::1] out
    cdef int64_t wrong = -1, n = len(keys)
    if not 0 <= hash_bits <= 62:
        raise ValueError(f"expected hash_bits of 0 to 62, got {hash_bits}")
    made = np.empty(n, np.uint64)
    if n == 0:
        return made, -1
    out = made
    if keys.dtype == np.uint32:
        narrow = keys
        with nogil:
            wrong = widen(&narrow[0], n, limit, hashed, hash_bits, &out[0])
    else:
        wide = keys
        with nogil:
            wrong = widen(&wide[0], n, limit, hashed, hash_bits, &out[0])
    return made, wrong


cdef int64_t add_nonzero(const Real *row, int64_t columns, uint32_t *keys, float *values) noexcept nogil:
    """Write a row's entries that are not 0; returns how many there are.

    Both arrays have room for a whole row: a zero is written, and then overwritten by the next entry.
    """
    cdef int64_t column, count = 0
    for column in range(columns):
        count += row[column] != 0
    if count == columns:        # no store depends on an entry before it
        for column in range(columns):
            keys[column] = <uint32_t>column
        for column in range(columns):
            values[column] = <float>row[column]
        return count
    count = 0
    for column in range(columns):
        keys[count] = <uint32_t>column
        values[count] = <float>row[column]
        count += row[column] != 0
    return count


cdef int64_t add_rows(const Real[:, ::1] rows, int64_t[::1] ptr, uint32_t[::1] keys,
                      float[::1] values) noexcept nogil:
    """Write the entries of all rows that are not 0; returns how many there are."""
    cdef int64_t i, columns = rows.shape[1], count = 0
    for i in range(rows.shape[0]):
        count += add_nonzero(&rows[i, 0], columns, &keys[count], &values[count])
        ptr[i + 1] = count
    return count


def nonzero_entries(rows not None: NDArray[Any]) -> tuple[
        NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]]:
    """The entries of dense rows (float32 or float64, contiguous) that are not 0, NaN among them.

    Pointers, columns and values; values beyond the range of float32 become infinite, those below it 0.
    """
    cdef int64_t[::1] ptr
    cdef uint32_t[::1] keys
    cdef float[::1] values
    cdef const float[:, ::1] narrow
    cdef const double[:, ::1] wide
    cdef int64_t count = 0, size = rows.size
    ptr_array = np.zeros(len(rows) + 1, np.int64)
    key_array, value_array = np.empty(size, np.uint32), np.empty(size, np.float32)
    if size:
        ptr, keys, values = ptr_array, key_array, value_array
        if rows.dtype == np.float32:
            narrow = rows
            with nogil:
                count = add_rows(narrow, ptr, keys, values)
        else:
            wide = rows
            with nogil:
                count = add_rows(wide, ptr, keys, values)
    return ptr_array, key_array[:count], value_array[:count]


def scaled(const float[::1] values not None, const uint64_t[::1] keys not None,
           const float[::1] factors not None) -> tuple[NDArray[np.float32], float]:
    """Values times the factors of their keys, and the largest of these products without sign, at least 0.

    `factors` has one by key, the last one for all larger keys.  A product may be infinite, not NaN.
    """
    cdef int64_t i, n = values.shape[0]
    cdef uint64_t last = factors.shape[0] - 1
    cdef float product
    cdef uint32_t size, largest = 0     # floats without sign are in the order of their bits
    cdef float[::1] out
    if keys.shape[0] != n or factors.shape[0] == 0:
        raise ValueError(f"expected a key for each of {n} values, and factors; got {keys.shape[0]} keys")
    products = np.empty(n, np.float32)
    out = products
    with nogil:
        for i in range(n):
            product = values[i] * factors[min(keys[i], last)]
            out[i] = product
            memcpy(&size, &product, 4)
            largest = max(largest, size & 0x7FFFFFFFu)
    memcpy(&product, &largest, 4)
    return products, product


def places_among(const double[::1] classes not None,
                 const double[::1] labels not None) -> tuple[NDArray[np.float32], bool]:
    """By label, its place among the classes, ascending and at least one; whether all are among them.

    The place of another label is arbitrary.
    """
    cdef int64_t i, base, count, half, n = labels.shape[0]
    cdef bint are_known = True
    cdef float[::1] out
    if classes.shape[0] == 0:
        raise ValueError("expected classes, got none")
    places = np.empty(n, np.float32)
    out = places
    with nogil:
        for i in range(n):
            base, count = 0, classes.shape[0]
            while count > 1:    # the last class that is not above the label
                half = count >> 1
                base += half if classes[base + half] <= labels[i] else 0
                count -= half
            are_known &= classes[base] == labels[i]
            out[i] = <float>base
    return places, are_known
