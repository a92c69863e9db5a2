# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Sketches of sets of bytes, for `snailps.datasketch`.

    values, one after the other -> SetBins.put -> least values of bins -> SetBins.filled: none is empty

Owns the bins.  Their values are the same on each processor.  Must not know what is estimated by them.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from snailps.duplicates._pages import coprime_step

cdef extern from "_bins.h" nogil:
    const uint32_t EMPTY_ "SNAIL_EMPTY_BIN"
    uint64_t value_hash "snail_value_hash"(const uint8_t *bytes, uint64_t length)
    void put "snail_put"(uint32_t *bins, uint32_t count, uint64_t turn, uint64_t hash)
    void copy_bins "snail_copy_bins"(uint32_t count, const uint32_t *steps, const uint32_t *bins, uint32_t *filled)
    uint64_t mix "snail_mix"(uint64_t z)

EMPTY: int = EMPTY_


cdef dict known_steps = {}


cdef object steps_of(int bins):
    """Where each of so many empty bins looks for a full one."""
    if bins not in known_steps:
        known_steps[bins] = np.array([coprime_step(bin, bins) for bin in range(bins)], np.uint32)
    return known_steps[bins]


cdef class SetBins:
    """SetBins of a set of values: bytes, or hashes of 64 bits.  One thread may change them at a time."""

    cdef uint32_t[::1] least
    cdef const uint32_t[::1] steps
    cdef uint64_t turn

    def __init__(self, bins: int, seed: int) -> None:
        self.least = np.full(bins, EMPTY_, np.uint32)
        self.steps = steps_of(bins)
        self.turn = mix(mix(seed & 0xFFFFFFFFFFFFFFFF) + 1)

    cdef int put_bytes(self, object value) except -1:
        cdef Py_buffer view
        if type(value) is bytes:
            put(&self.least[0], <uint32_t>self.least.shape[0], self.turn,
                value_hash(<const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)))
            return 0
        if isinstance(value, str):
            raise TypeError("Strings must be encoded before hashing: MinHash takes bytes")
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
        put(&self.least[0], <uint32_t>self.least.shape[0], self.turn,
            value_hash(<const uint8_t *>view.buf, view.len))
        PyBuffer_Release(&view)
        return 0

    def put(self, value: object) -> None:
        """Add a value: bytes, or what has a buffer of bytes.  TypeError: it has none."""
        self.put_bytes(value)

    def put_each(self, values: Iterable[object]) -> None:
        """Add values; those before one that is refused stay."""
        for value in values:
            self.put_bytes(value)

    def put_hashes(self, const uint64_t[::1] hashes) -> None:
        """Add values by their hashes, uint64[n]."""
        cdef Py_ssize_t i
        with nogil:
            for i in range(hashes.shape[0]):
                put(&self.least[0], <uint32_t>self.least.shape[0], self.turn, hashes[i])

    @property
    def values(self) -> NDArray[np.uint32]:
        """The least value of each bin, uint32[bins]; EMPTY: it has none.  The caller may change it."""
        return self.least.base

    def filled(self) -> NDArray[np.uint32]:
        """A copy in which empty bins have values of others, if any bin is full."""
        copy = np.empty(self.least.shape[0], np.uint32)
        cdef uint32_t[::1] into = copy
        cdef Py_ssize_t bin = 0
        while bin < self.least.shape[0] and self.least[bin] == EMPTY_:
            bin += 1
        if bin == self.least.shape[0]:
            into[:] = EMPTY_
        else:
            copy_bins(<uint32_t>self.least.shape[0], &self.steps[0], &self.least[0], &into[0])
        return copy
