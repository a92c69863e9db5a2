# The normal form of texts, for Cython: see _normaliser.pyx.
from libc.stdint cimport int64_t, uint8_t

from snailps.data._text cimport WordTable

cdef extern from "data/_normal_form.h" nogil:
    ctypedef struct NormalRules "snail_normal_rules":
        uint8_t upper
        uint8_t digits
        uint8_t is_special[256]
        const uint8_t *prefix
        int64_t prefix_size
        bint has_addresses
        bint has_forms
    ctypedef struct Bytes "snail_bytes":
        uint8_t *data
        int64_t used
        int64_t size


cdef class Forms:
    cdef WordTable words
    cdef Bytes text
    cdef Bytes ends             # int64 (words,): where the form of each ends in `text`

    cdef int add(self, const uint8_t *word, int64_t length, const uint8_t *form,
                 int64_t form_length) except -1
    cdef bint is_full(self) noexcept


cdef class Normaliser:
    cdef NormalRules rules
    cdef NormalRules plain      # the same without forms
    cdef bytes prefix
    cdef object convert         # bytes -> bytes
    cdef list free              # tables of forms that no thread uses
    cdef readonly str parts

    cdef int normalise(self, const uint8_t *text, int64_t size, Bytes *out) except -1
    cdef int add_forms(self, Forms forms, const Bytes *missing) except -1
    cdef bint is_reserved(self, bytes form)
