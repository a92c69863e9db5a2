# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Lines of LIBSVM and LIBFFM -> labels and entries: the loop under `_examples.pyx`.

    label [qid:n] index:value index:value ...           LIBSVM
    label field:index:value field:index:value ...       LIBFFM

What is written here is shared with `_cells.pxd`: where the output lies, and what is wrong with a
line.  Outputs have room for every line and every colon of the text, so nothing is checked inside.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memchr

from snailps.abi._key_hash cimport hash_key
from snailps.data._number_parsing cimport SNAILPS_UNLIKELY, read_real, read_whole

cdef enum Fault:
    FAULT_NONE
    FAULT_LABEL
    FAULT_INDEX
    FAULT_COLON
    FAULT_VALUE
    FAULT_FIELD
    FAULT_FEATURE
    FAULT_QID
    FAULT_CELLS
    FAULT_QUOTE
    FAULT_CELL

cdef struct Output:
    float *labels
    int64_t *ptr                # ptr[0] is 0
    uint64_t *keys
    float *values
    int32_t *fields             # NULL: not wanted
    int64_t n                   # examples written
    int64_t nnz                 # entries written
    int64_t bad                 # lines left out

cdef struct Trouble:              # the first one
    Fault fault
    const uint8_t *at           # the first byte that is not as expected
    int64_t column              # of a table, from 0: where it is

cdef struct EntryRules:
    bint has_fields             # LIBFFM
    int shift                   # keys are the upper 64 - shift bits of their hash; 0: as written
    bint skip                   # leave malformed lines out


cdef inline bint is_blank(uint8_t c) noexcept nogil:
    return c == 32 or c == 9


cdef inline const uint8_t *line_end(const uint8_t *p, const uint8_t *stop) noexcept nogil:
    return <const uint8_t *>memchr(p, 10, stop - p)


cdef inline Fault read_entry(const uint8_t **cursor, const EntryRules *rules, int64_t at,
                             Output *out) noexcept nogil:
    """Reads one `index:value` or `field:index:value` into place `at`."""
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t key
    if rules.has_fields:
        if not read_whole(&p, 2147483647, &key):
            return FAULT_FIELD
        if p[0] != 58:
            cursor[0] = p
            return FAULT_FEATURE
        p += 1
        out.fields[at] = <int32_t>key
    if not read_whole(&p, 9223372036854775807, &key):
        cursor[0] = p
        return FAULT_INDEX
    if p[0] != 58:
        cursor[0] = p
        return FAULT_COLON
    p += 1
    out.keys[at] = hash_key(key) >> rules.shift if rules.shift else key
    if p[0] == 49 and (p[1] == 32 or p[1] == 10):
        out.values[at] = 1
        cursor[0] = p + 1
        return FAULT_NONE
    cursor[0] = p
    if not read_real(cursor, &out.values[at]):
        return FAULT_VALUE
    return FAULT_NONE


cdef inline Fault read_line(const uint8_t **cursor, const EntryRules *rules,
                            Output *out) noexcept nogil:
    """Reads the example that begins here, up to its newline or comment; commits it if it is good.

    The cursor ends behind the newline, at the `#`, or at what is wrong.
    """
    cdef int64_t nnz = out.nnz
    cdef Fault fault
    cdef uint64_t query
    cdef bint first = True
    cdef uint8_t c
    if not read_real(cursor, &out.labels[out.n]):
        return FAULT_LABEL
    while True:
        c = cursor[0][0]
        if c == 32 or c == 9:
            cursor[0] += 1
            while is_blank(cursor[0][0]):
                cursor[0] += 1
            c = cursor[0][0]
            if <unsigned int>(c - <unsigned int>48) <= 9:
                fault = read_entry(cursor, rules, nnz, out)
                if SNAILPS_UNLIKELY(fault != FAULT_NONE):
                    return fault
                nnz += 1
                first = False
                continue
        if c == 10:
            cursor[0] += 1
            break
        if c == 13 and cursor[0][1] == 10:
            cursor[0] += 2
            break
        if not is_blank((cursor[0] - 1)[0]):
            return FAULT_LABEL if first else FAULT_VALUE
        if c == 35:
            break
        if first and c == 113 and cursor[0][1] == 105 and cursor[0][2] == 100 \
                and cursor[0][3] == 58:
            cursor[0] += 4
            if not read_whole(cursor, 9223372036854775807, &query):
                return FAULT_QID
            first = False
            continue
        return FAULT_FIELD if rules.has_fields else FAULT_INDEX
    out.n += 1
    out.ptr[out.n] = nnz
    out.nnz = nnz
    return FAULT_NONE


cdef inline void read_entries(const uint8_t *text, Py_ssize_t size, const EntryRules *rules,
                              Output *out, Trouble *trouble) noexcept nogil:
    """Reads whole lines, the last one ended by its newline, 8 readable bytes behind it."""
    cdef const uint8_t *p = text
    cdef const uint8_t *stop = text + size
    cdef Fault fault
    while p < stop:
        while is_blank(p[0]):
            p += 1
        if p[0] == 10:
            p += 1
            continue
        if p[0] == 13 and p[1] == 10:
            p += 2
            continue
        if p[0] != 35:
            fault = read_line(&p, rules, out)
            if SNAILPS_UNLIKELY(fault != FAULT_NONE):
                if trouble.fault == FAULT_NONE:
                    trouble.fault = fault
                    trouble.at = p
                if not rules.skip:
                    return
                out.bad += 1
            elif (p - 1)[0] == 10:
                continue
        p = line_end(p, stop) + 1
