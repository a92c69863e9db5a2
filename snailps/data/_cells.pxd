# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Lines of CSV and TSV -> labels and entries, by declared columns: the loop under `_examples.pyx`.

    line -> cells -> Column (what to do with this one) -> label | key, value, field

Keys are hashes of a column's name and a cell's text (`hash_text`).  Outputs have room for every
cell of the text.  Eight bytes behind every newline are readable.
"""
from libc.math cimport log1p
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from snailps.abi._key_hash cimport mix64
from snailps.data._entries cimport (
    FAULT_CELL, FAULT_CELLS, FAULT_LABEL, FAULT_NONE, FAULT_QUOTE, Fault, Output, Trouble, line_end,
)
from snailps.data._number_parsing cimport SNAILPS_LOWEST_BIT, SNAILPS_UNLIKELY, eight, read_real

cdef enum Kind:
    KIND_IGNORE
    KIND_LABEL
    KIND_NUMERIC
    KIND_BUCKET
    KIND_CATEGORICAL
    KIND_HASHED

cdef struct Column:
    Kind kind
    bint log                    # of numbers: sign(x) log(1 + |x|)
    int32_t field
    int bits                    # KIND_HASHED: of the cell's own hash
    uint64_t seed               # hash of the column's name
    uint64_t key                # KIND_NUMERIC: of its entries
    int64_t bound               # KIND_BUCKET: where its bounds begin, and how many there are
    int64_t bound_num
    int64_t bucket              # ... and where the keys of its buckets begin, one more

cdef struct CellRules:
    const Column *columns
    int64_t column_num
    const double *bounds
    const uint64_t *bucket_keys
    int shift                   # keys are the upper 64 - shift bits of a hash
    uint8_t separator
    bint quotes
    bint skip

cdef struct Cell:
    const uint8_t *text
    const uint8_t *stop
    bint doubled                # holds doubled quotes


cdef inline uint64_t hash_text(uint64_t seed, const uint8_t *text, int64_t size) noexcept nogil:
    """Hash of a text: 8 bytes a step, little endian, the last ones padded with zeros.

    h = seed + size * 0x9E3779B97F4A7C15, then h = mix64(h ^ chunk) a chunk; at least one chunk.
    Eight bytes from `text` + `size` on must be readable.
    """
    cdef uint64_t h = seed + <uint64_t>size * <uint64_t>0x9E3779B97F4A7C15
    while size >= 8:
        h = mix64(h ^ eight(text))
        text += 8
        size -= 8
        if size == 0:
            return h
    # Two shifts: one by 64 is not defined.
    return mix64(h ^ (eight(text) & (((<uint64_t>1) << (8 * size)) - 1)))


cdef inline uint64_t hash_doubled(uint64_t seed, const uint8_t *text,
                                  const uint8_t *stop) noexcept nogil:
    """`hash_text` of a cell in which `""` stands for `"`."""
    cdef uint64_t h, chunk = 0
    cdef const uint8_t *p = text
    cdef int64_t size = 0
    cdef int filled = 0
    while p < stop:
        p += 2 if p[0] == 34 else 1
        size += 1
    h = seed + <uint64_t>size * <uint64_t>0x9E3779B97F4A7C15
    p = text
    while p < stop:
        chunk |= <uint64_t>p[0] << (8 * filled)
        filled += 1
        p += 2 if p[0] == 34 else 1
        if filled == 8 and p < stop:
            h = mix64(h ^ chunk)
            chunk = 0
            filled = 0
    return mix64(h ^ chunk)


cdef inline uint64_t zero_bytes(uint64_t chunk) noexcept nogil:
    """High bits of the bytes that are 0, right up to the lowest one."""
    return (chunk - <uint64_t>0x0101010101010101) & ~chunk & <uint64_t>0x8080808080808080


cdef inline const uint8_t *cell_end(const uint8_t *p, uint64_t separators) noexcept nogil:
    """The next separator or newline."""
    cdef uint64_t chunk, found
    while True:
        chunk = eight(p)
        found = (zero_bytes(chunk ^ separators)
                 | zero_bytes(chunk ^ <uint64_t>0x0A0A0A0A0A0A0A0A))
        if found:
            return p + (SNAILPS_LOWEST_BIT(found) >> 3)
        p += 8


cdef inline Fault read_quoted(const uint8_t **cursor, Cell *cell) noexcept nogil:
    """Reads a cell from its opening quote on; the cursor ends behind the closing one."""
    cdef const uint8_t *p = cursor[0] + 1
    cell.text = p
    cell.doubled = False
    while True:
        if p[0] == 10:
            return FAULT_QUOTE
        if p[0] == 34:
            if p[1] != 34:
                break
            cell.doubled = True
            p += 1
        p += 1
    cell.stop = p
    cursor[0] = p + 1
    return FAULT_NONE


cdef inline Fault next_cell(const uint8_t **cursor, uint64_t separators, const CellRules *rules,
                            Cell *cell) noexcept nogil:
    """Reads a cell without the spaces round it; the cursor ends at the separator or newline."""
    cdef const uint8_t *p = cursor[0]
    cdef const uint8_t *stop
    cdef Fault fault
    while p[0] == 32:
        p += 1
    if rules.quotes and p[0] == 34:
        fault = read_quoted(&p, cell)
        if fault != FAULT_NONE:
            return fault
        while p[0] == 32:
            p += 1
        p += p[0] == 13 and p[1] == 10
        if p[0] != rules.separator and p[0] != 10:
            return FAULT_QUOTE
        cursor[0] = p
        return FAULT_NONE
    stop = cell_end(p, separators)
    cursor[0] = stop
    cell.text = p
    cell.doubled = False
    if stop[0] == 10 and stop > p and (stop - 1)[0] == 13:
        stop -= 1
    while stop > p and (stop - 1)[0] == 32:
        stop -= 1
    cell.stop = stop
    return FAULT_NONE


cdef inline bint whole_number(const Cell *cell, float *out) noexcept nogil:
    cdef const uint8_t *p = cell.text
    return read_real(&p, out) and p == cell.stop


cdef inline Fault add_cell(const Cell *cell, const Column *column, const CellRules *rules,
                           int64_t *nnz, Output *out) noexcept nogil:
    """Writes what a cell adds to the example: its label, an entry, or nothing."""
    cdef float number
    cdef uint64_t hashed
    cdef int64_t i
    cdef int64_t at = nnz[0]
    if column.kind == KIND_IGNORE:
        return FAULT_NONE
    if column.kind == KIND_LABEL:
        return FAULT_NONE if whole_number(cell, &out.labels[out.n]) else FAULT_LABEL
    if cell.text == cell.stop:
        return FAULT_NONE
    if column.kind == KIND_CATEGORICAL or column.kind == KIND_HASHED:
        if SNAILPS_UNLIKELY(cell.doubled):
            hashed = hash_doubled(column.seed, cell.text, cell.stop)
        else:
            hashed = hash_text(column.seed, cell.text, cell.stop - cell.text)
        if column.kind == KIND_HASHED:
            hashed >>= 64 - column.bits
            hashed = hash_text(column.seed, <const uint8_t *>&hashed, 8)
        out.keys[at] = hashed >> rules.shift
        out.values[at] = 1
    else:
        if not whole_number(cell, &number):
            return FAULT_CELL
        if column.log:
            number = <float>(log1p(number) if number >= 0 else -log1p(-number))
        if column.kind == KIND_NUMERIC:
            out.keys[at] = column.key
            out.values[at] = number
        else:
            i = 0
            while i < column.bound_num and number >= rules.bounds[column.bound + i]:
                i += 1
            out.keys[at] = rules.bucket_keys[column.bucket + i]
            out.values[at] = 1
    out.fields[at] = column.field
    nnz[0] = at + 1
    return FAULT_NONE


cdef inline Fault read_row(const uint8_t **cursor, uint64_t separators, const CellRules *rules,
                           Output *out, int64_t *column) noexcept nogil:
    """Reads the line that begins here; commits it if it is good, and ends behind its newline."""
    cdef int64_t nnz = out.nnz
    cdef int64_t i
    cdef Cell cell
    cdef Fault fault
    for i in range(rules.column_num):
        column[0] = i
        fault = next_cell(cursor, separators, rules, &cell)
        if fault != FAULT_NONE:
            return fault
        fault = add_cell(&cell, &rules.columns[i], rules, &nnz, out)
        if SNAILPS_UNLIKELY(fault != FAULT_NONE):
            cursor[0] = cell.text
            return fault
        if (cursor[0][0] == 10) != (i + 1 == rules.column_num):
            return FAULT_CELLS
        cursor[0] += 1
    out.n += 1
    out.ptr[out.n] = nnz
    out.nnz = nnz
    return FAULT_NONE


cdef inline void read_rows(const uint8_t *text, Py_ssize_t size, const CellRules *rules,
                           Output *out, Trouble *trouble) noexcept nogil:
    """Reads whole lines, the last one ended by its newline, 8 readable bytes behind it."""
    cdef const uint8_t *p = text
    cdef const uint8_t *stop = text + size
    cdef uint64_t separators = rules.separator * <uint64_t>0x0101010101010101
    cdef Fault fault
    cdef int64_t column = 0
    while p < stop:
        if p[0] == 10 or (p[0] == 13 and p[1] == 10):
            p += 1 if p[0] == 10 else 2
            continue
        fault = read_row(&p, separators, rules, out, &column)
        if SNAILPS_UNLIKELY(fault != FAULT_NONE):
            if trouble.fault == FAULT_NONE:
                trouble.fault = fault
                trouble.at = p
                trouble.column = column
            if not rules.skip:
                return
            out.bad += 1
            p = line_end(p, stop) + 1
