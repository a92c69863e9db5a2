# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Parsers of sparse examples: allocate the output, run the loops, return what they wrote.

    bytes -> EntryReader.read | RowReader.read -> Examples, and the first fault of the text
    arrays and lists -> RowReader.of_columns -> Examples, and the first cell that is no text

Owns memory; the loops never allocate.  They are C headers and run without the GIL: `_entries.h` (LIBSVM,
LIBFFM), `_plain_lines.h` (most LIBSVM), `_cells.h` (CSV, TSV), `_example_lines.h` (all).  Must not know
settings or words of messages: `examples` and `columns` have these.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from typing import NamedTuple

import numpy as np

from snailps.data.packed_words import PackedWords

cdef extern from "data/_cells.h" nogil:
    enum:
        KIND_TEXT "SNAIL_TEXT"
        FAULT_LABEL "SNAIL_FAULT_LABEL"
        FAULT_INDEX "SNAIL_FAULT_INDEX"
        FAULT_COLON "SNAIL_FAULT_COLON"
        FAULT_VALUE "SNAIL_FAULT_VALUE"
        FAULT_FIELD "SNAIL_FAULT_FIELD"
        FAULT_FEATURE "SNAIL_FAULT_FEATURE"
        FAULT_QID "SNAIL_FAULT_QID"
        FAULT_CELLS "SNAIL_FAULT_CELLS"
        FAULT_QUOTE "SNAIL_FAULT_QUOTE"
        FAULT_CELL "SNAIL_FAULT_CELL"
    ctypedef enum Kind "snail_column_kind":
        pass

    ctypedef struct Cell "snail_cell":
        const uint8_t *text
        const uint8_t *stop
        int doubled
    ctypedef struct Output "snail_examples":
        double *labels
        int64_t *ptr
        uint64_t *keys
        float *values
        int32_t *fields
        int64_t n
        int64_t nnz
        int64_t bad
        Cell *cells
    ctypedef struct Trouble "snail_trouble":
        int fault
        const uint8_t *line
        const uint8_t *at
        int64_t column
        int64_t cells
    ctypedef struct Column "snail_column":
        Kind kind
        int log
        int32_t field
        int bits
        uint64_t seed
        uint64_t key
        int64_t bound
        int64_t bound_num
        int64_t bucket
    ctypedef struct CellRules "snail_cell_rules":
        const Column *columns
        int64_t column_num
        const double *bounds
        const uint64_t *bucket_keys
        int64_t text_num
        int shift
        uint8_t separator
        int quotes

    int open_locale "snail_open_locale"() noexcept
    void add_number "snail_add_number"(float number, const Column *column, const CellRules *rules,
                                       int64_t *nnz, Output *out) noexcept
    void add_text "snail_add_text"(const Cell *cell, const Column *column, const CellRules *rules,
                                   int64_t *nnz, Output *out) noexcept
    void add_example "snail_add_example"(Output *out, int64_t nnz) noexcept
    uint64_t hash_text "snail_hash_text"(uint64_t seed, const uint8_t *text, int64_t size) noexcept
    int next_cell "snail_next_cell"(const uint8_t **cursor, const uint8_t *end, const CellRules *rules,
                                    Cell *cell) noexcept
    int64_t rows_end_of "snail_rows_end"(const uint8_t *text, int64_t size,
                                         const CellRules *rules) noexcept
    void read_rows "snail_read_rows"(const uint8_t *text, int64_t size, const void *rules, int skip,
                                     Output *out, Trouble *trouble) noexcept

cdef extern from "data/_entries.h" nogil:
    ctypedef const uint8_t *(*PlainReader "snail_plain_reader")(const uint8_t *text, const uint8_t *stop,
                                                               int shift, Output *out) noexcept
    ctypedef struct EntryRules "snail_entry_rules":
        int has_fields
        int shift
        PlainReader plain

    PlainReader plain_lines_of "snail_plain_lines_of"(int build) noexcept

    void read_entries "snail_read_entries"(const uint8_t *text, int64_t size, const void *rules,
                                           int skip, Output *out, Trouble *trouble) noexcept

# Reads a text, whole lines, without the GIL.
ctypedef void (*Parser)(const uint8_t *text, int64_t size, const void *rules, int skip, Output *out,
                        Trouble *trouble) noexcept nogil

cdef enum:
    PAD = 16                    # readable bytes after a text's last newline: loops load 8 at a time
    RUN = 240                   # bytes counted in 8 bits, so fewer than 256
    SHORT = 256                 # a shorter text is copied to the stack, for readable bytes after it

if not open_locale():
    raise ImportError("the C library has no locale named C")

FAULTS: dict[int, str] = {
    FAULT_LABEL: "label", FAULT_INDEX: "index", FAULT_COLON: "colon", FAULT_VALUE: "value",
    FAULT_FIELD: "field", FAULT_FEATURE: "feature", FAULT_QID: "qid", FAULT_CELLS: "cells",
    FAULT_QUOTE: "quote", FAULT_CELL: "cell",
}


class Examples(NamedTuple):
    """Sparse examples in the order of a text.

    Example i has the entries ``ptr[i]`` to before ``ptr[i + 1]`` (int64 (n + 1,)) of `keys` (uint64, below
    2^63 or 2^hash_bits), `values` (float32, finite) and `fields` (int32: LIBFFM's, or the number of a
    feature's column in CSV and TSV; empty for LIBSVM).  `labels`: float64 (n,), as written; `bad`: number
    of skipped lines; `weights`: float32 (n,), empty: all 1; `cells`: the cells of each column of kind
    text.
    """

    labels: NDArray[np.float64]
    ptr: NDArray[np.int64]
    keys: NDArray[np.uint64]
    values: NDArray[np.float32]
    fields: NDArray[np.int32]
    bad: int
    weights: NDArray[np.float32] = np.zeros(0, np.float32)
    cells: Sequence[snailps.data.packed_words.PackedWords] = ()


class Fault(NamedTuple):
    """A fault of a text: its kind, one of `FAULTS`; its byte, the byte at which its line begins, and the
    number of its column.

    `cells`: how many cells the line of a table has.
    """

    kind: str
    offset: int
    line: int
    column: int
    cells: int


cdef void count_two(const uint8_t *text, int64_t size, uint8_t one, uint8_t other,
                    int64_t *ones, int64_t *others) noexcept nogil:
    """Count two bytes, in runs whose counts fit into 8 bits, so that the loop is vectorised."""
    cdef int64_t i = 0, j
    cdef uint8_t run, other_run
    ones[0] = others[0] = 0
    while i + RUN <= size:      # of a constant length, for the compiler
        run = other_run = 0
        for j in range(RUN):
            run += text[i + j] == one
            other_run += text[i + j] == other
        ones[0] += run
        others[0] += other_run
        i += RUN
    for j in range(i, size):
        ones[0] += text[j] == one
        others[0] += text[j] == other


cdef class Sink:
    """The arrays that a text is read into, as Python objects and as the loops see them.

    Room for every line and entry that the text can have is made first, so the loops check no bounds.
    """

    cdef Output out
    cdef object labels, ptr, keys, values, fields
    cdef Cell *cells
    cdef object rest            # keeps alive what `cells` point to

    def __cinit__(self, int64_t n, int64_t nnz, bint has_fields, int64_t texts=0):
        cdef double[::1] labels
        cdef float[::1] values
        cdef int64_t[::1] ptr
        cdef uint64_t[::1] keys
        cdef int32_t[::1] fields
        self.labels = labels = np.empty(n + 1, np.float64)
        self.ptr = ptr = np.empty(n + 1, np.int64)
        self.keys = keys = np.empty(nnz + 1, np.uint64)
        self.values = values = np.empty(nnz + 1, np.float32)
        self.fields = fields = np.empty(nnz + 1 if has_fields else 1, np.int32)
        ptr[0] = 0
        memset(&self.out, 0, sizeof(Output))
        self.out.labels = &labels[0]
        self.out.ptr = &ptr[0]
        self.out.keys = &keys[0]
        self.out.values = &values[0]
        self.out.fields = &fields[0]
        if texts:
            self.cells = <Cell *>calloc((n + 1) * texts, sizeof(Cell))
            if self.cells == NULL:
                raise MemoryError(f"no memory for {texts} cells in each of {n} lines")
            self.out.cells = self.cells

    def __dealloc__(self):
        free(self.cells)

    def column(self, int64_t text, int64_t texts) -> snailps.data.packed_words.PackedWords:
        """The cells of a column of kind text, with doubled quotes undone."""
        cdef const Cell *cells = self.cells + text
        cdef int64_t n = self.out.n, i, size = 0
        for i in range(n):
            size += cells[i * texts].stop - cells[i * texts].text
        packed, ends = np.empty(size, np.uint8), np.zeros(n + 1, np.uint64)
        cdef uint8_t[::1] room = packed
        cdef uint64_t[::1] stops = ends
        cdef uint8_t *to = &room[0] if size else NULL
        cdef const uint8_t *at
        cdef const uint8_t *stop
        cdef int64_t used = 0
        with nogil:
            for i in range(n):
                at, stop = cells[i * texts].text, cells[i * texts].stop
                if not cells[i * texts].doubled:
                    if stop > at:
                        memcpy(to + used, at, stop - at)
                    used += stop - at
                else:
                    while at < stop:
                        to[used] = at[0]
                        used += 1
                        at += 2 if at[0] == 34 and at + 1 < stop and at[1] == 34 else 1
                stops[i + 1] = <uint64_t>used
        return PackedWords(packed, ends)

    def examples(self, bint has_fields) -> Examples:
        """The examples read so far, as views of the arrays."""
        n, nnz = self.out.n, self.out.nnz
        return Examples(self.labels[:n], self.ptr[:n + 1], self.keys[:nnz], self.values[:nnz],
                        self.fields[:nnz if has_fields else 0], self.out.bad)


cdef bytes bytes_of(const Cell *cell):
    cdef bytes found = PyBytes_FromStringAndSize(<const char *>cell.text, cell.stop - cell.text)
    return found.replace(b'""', b'"') if cell.doubled else found


cdef int check_part(bytes data, Py_ssize_t begin, Py_ssize_t end) except -1:
    if not 0 <= begin <= end <= len(data):
        raise ValueError(f"expected a part of {len(data)} bytes, got {begin} to {end}")
    return 0


cdef bytes padded(bytes lines):
    """Add a newline behind the last line, and readable bytes behind that."""
    return lines + (b"\n" if lines and not lines.endswith(b"\n") else b"") + bytes(PAD)


cdef object run(Parser read, const void *rules, bint skip, bytes data, Py_ssize_t begin,
                Py_ssize_t end, Sink sink, bint is_split=True):
    """Read a part of a text; return its first `Fault`, or None.

    The loops load 8 bytes at a time, up to 8 beyond a newline, and rely on a last newline.  A text has
    neither for certain, so its last lines are read from a copy that has both.  If rows may span lines
    (not `is_split`), all of it is copied.
    """
    cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(data) + begin
    cdef Py_ssize_t cut = begin
    cdef bytes rest
    cdef Py_ssize_t rest_size
    cdef const uint8_t *last
    cdef Trouble trouble
    cdef Output *out = &sink.out
    if is_split:
        cut = max(data.rfind(b"\n", begin, max(begin, end - PAD)) + 1, begin)
    sink.rest = rest = padded(data[cut:end])
    cut -= begin
    rest_size = len(rest) - PAD
    last = <const uint8_t *>PyBytes_AS_STRING(rest)
    memset(&trouble, 0, sizeof(Trouble))
    with nogil:
        read(text, cut, rules, skip, out, &trouble)
    fault = fault_of(&trouble, text, 0)
    if fault is None or skip:
        memset(&trouble, 0, sizeof(Trouble))
        with nogil:
            read(last, rest_size, rules, skip, out, &trouble)
        if fault is None:
            fault = fault_of(&trouble, last, cut)
    return fault


cdef object fault_of(const Trouble *trouble, const uint8_t *text, Py_ssize_t offset):
    if trouble.fault == 0:
        return None
    return Fault(FAULTS[trouble.fault], trouble.at - text + offset, trouble.line - text + offset,
                 trouble.column, trouble.cells)


BUILDS: tuple[str, ...] = tuple(name for i, name in enumerate(("base", "avx2", "avx512"))
               if plain_lines_of(<int>i) != NULL)


cdef class EntryReader:
    """Reads LIBSVM, or LIBFFM if `has_fields`; see `examples.ExampleReader`.  Threads may share it.

    `build`: instruction set for plain lines, one of `BUILDS`, by default the last; "none": read all lines
    byte by byte.
    """

    cdef EntryRules rules
    cdef bint skip

    def __cinit__(self, bint has_fields, int hash_bits, bint skip, build: str = ""):
        if not 0 <= hash_bits <= 62:
            raise ValueError(f"expected hash_bits of 0 to 62, got {hash_bits}")
        self.rules.has_fields = has_fields
        self.rules.shift = 64 - hash_bits if hash_bits else 0
        if not has_fields and build != "none":
            self.rules.plain = plain_lines_of(<int>BUILDS.index(build) if build else len(BUILDS) - 1)
        self.skip = skip

    def read(self, bytes data not None, Py_ssize_t begin=0,
             end: int | None = None) -> tuple[Examples, Fault | None]:
        """The examples of whole lines from `begin` to before `end`, and the first `Fault` or None.

        Reading stops at the fault, unless `skip`.  Its offset counts from `begin`.
        """
        cdef Py_ssize_t stop = PyBytes_GET_SIZE(data) if end is None else end
        cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(data) + begin
        cdef int64_t lines, colons
        cdef Sink sink
        check_part(data, begin, stop)
        with nogil:
            count_two(text, stop - begin, 10, 58, &lines, &colons)
        sink = Sink(lines + 1, colons, self.rules.has_fields)
        fault = run(read_entries, &self.rules, self.skip, data, begin, stop, sink)
        return sink.examples(self.rules.has_fields), fault


cdef enum:
    STAMPS = 13     # bits


cdef inline uint64_t hash_of_entry(uint64_t key, int32_t field) noexcept nogil:
    return (key ^ <uint64_t>field << 32) * <uint64_t>0x9E3779B97F4A7C15


def rows_that_repeat(const int64_t[::1] ptr not None, const uint64_t[::1] keys not None,
                     const int32_t[::1] fields not None) -> NDArray[np.bool_]:
    """Which rows have a key twice, in one field if there are `fields`; empty: none.

    Keys that ascend in their row, as in most files, cost a comparison each; others leave a stamp by
    their hash, and only rows with two keys at one stamp are looked at again.
    """
    cdef int64_t rows = ptr.shape[0] - 1, row, i, j, first, last, most = 0, size, slot
    cdef bint has_fields = fields.shape[0] > 0, has_any = False
    cdef uint64_t mask
    made, marks, table = np.zeros(1 << STAMPS, np.int64), np.zeros(rows, np.uint8), np.zeros(0, np.int64)
    cdef int64_t[::1] stamps = made, slots = table
    cdef uint8_t[::1] repeats = marks
    with nogil:
        for row in range(rows):
            first, last = ptr[row], ptr[row + 1]
            i = first + 1
            if has_fields:
                while i < last and (fields[i - 1] < fields[i] or (
                        fields[i - 1] == fields[i] and keys[i - 1] < keys[i])):
                    i += 1
            else:
                while i < last and keys[i - 1] < keys[i]:
                    i += 1
            if i >= last:
                continue
            for i in range(first, last):
                slot = <int64_t>(hash_of_entry(keys[i], fields[i] if has_fields else 0) >> (64 - STAMPS))
                if stamps[slot] > row:
                    repeats[row] = 1
                    most = max(most, last - first)
                    break
                stamps[slot] = row + 1
    if not most:
        return np.zeros(0, bool)
    size = 1
    while size < 2 * most:
        size *= 2
    # A slot has the number of an entry; those of earlier rows are below `first`, and free again.
    table = np.full(size, -1, np.int64)
    slots, mask = table, size - 1
    with nogil:
        for row in range(rows):
            if not repeats[row]:
                continue
            first, last = ptr[row], ptr[row + 1]
            repeats[row] = 0
            for i in range(first, last):
                slot = <int64_t>(hash_of_entry(keys[i], fields[i] if has_fields else 0) >> 32 & mask)
                j = slots[slot]
                while j >= first and not (keys[j] == keys[i] and (not has_fields or fields[j] == fields[i])):
                    slot = <int64_t>(<uint64_t>(slot + 1) & mask)
                    j = slots[slot]
                if j >= first:
                    repeats[row] = has_any = True
                    break
                slots[slot] = i
    return marks.view(bool) if has_any else np.zeros(0, bool)


def hash_bytes(uint64_t seed, bytes text not None) -> int:
    """64-bit hash of a text, given a seed (docs/sparse_data.md)."""
    padded = text + bytes(8)
    return hash_text(seed, <const uint8_t *>PyBytes_AS_STRING(padded), PyBytes_GET_SIZE(text))


def rows_end(bytes data not None, bytes separator, int quotes) -> int:
    """The end of the last complete row; `separator` and `quotes` are those of `RowReader`."""
    cdef CellRules rules
    cdef bytes text
    cdef Py_ssize_t size = data.rfind(b"\n") + 1
    if quotes < 2 or b'"' not in data:
        return size
    memset(&rules, 0, sizeof(CellRules))
    rules.separator, rules.quotes = separator[0], quotes
    text = padded(data[:size])
    return rows_end_of(<const uint8_t *>PyBytes_AS_STRING(text), size, &rules)


def first_row(bytes data not None, bytes separator, int quotes) -> tuple[list[bytes], int]:
    """The cells of a text's first row, up to a malformed one, and where the row ends."""
    cdef CellRules rules
    cdef bytes text = padded(data) if data else b"\n" + bytes(PAD)
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(text)
    cdef const uint8_t *begin = p
    cdef const uint8_t *end = begin + len(text) - PAD
    cdef Cell cell
    memset(&rules, 0, sizeof(CellRules))
    rules.separator, rules.quotes = separator[0], quotes
    found = []
    while not next_cell(&p, end, &rules, &cell):
        found.append(bytes_of(&cell))
        if p[0] == 10:
            break
        p += 1
    return found, min(p + 1 - begin, len(data))


cdef class RowReader:
    """Reads CSV, TSV and cells separated by blanks; see `examples.ExampleReader`.  Threads may share it.

    `separator`: one byte; a blank stands for any number of blanks.  `quotes`: 0, or 1: cells may be
    quoted, and close on their line, or 2: they may span lines.  Keys have 63 bits, or `hash_bits`.
    """

    cdef CellRules rules
    cdef bint skip
    cdef Column *columns
    cdef object bounds, bucket_keys     # keep what `rules` points to

    def __cinit__(self, columns: Sequence[snailps.data.columns.DeclaredColumn], bytes separator, int quotes,
                  int hash_bits, bint skip):
        cdef double[::1] bounds
        cdef uint64_t[::1] bucket_keys
        cdef Column *made
        if not 0 <= hash_bits <= 62:
            raise ValueError(f"expected hash_bits of 0 to 62, got {hash_bits}")
        self.rules.shift = 64 - (hash_bits or 63)
        self.rules.separator = separator[0]
        self.rules.quotes = quotes
        self.skip = skip
        self.rules.column_num = len(columns)
        self.columns = <Column *>calloc(len(columns) + 1, sizeof(Column))
        if self.columns == NULL:
            raise MemoryError(f"no memory for {len(columns)} columns")
        self.rules.columns = self.columns
        bound_list, key_list, field = [], [], 0
        for i, column in enumerate(columns):
            made = &self.columns[i]
            made.kind = <Kind><int>int(column.kind)
            made.log = column.log
            made.bits = column.bits
            made.seed = hash_bytes(0, column.name.encode())
            made.key = hash_bytes(made.seed, b"") >> self.rules.shift
            made.bound, made.bound_num = len(bound_list), len(column.bounds)
            made.bucket = len(key_list)
            if column.bounds:
                bound_list += column.bounds
                key_list += [hash_bytes(made.seed, str(k).encode()) >> self.rules.shift
                             for k in range(len(column.bounds) + 1)]
            if column.is_feature:
                made.field = field
                field += 1
            elif column.kind == KIND_TEXT:
                made.field = self.rules.text_num
                self.rules.text_num += 1
        self.bounds = bounds = np.array([*bound_list, 0.0], np.float64)
        self.bucket_keys = bucket_keys = np.array([*key_list, 0], np.uint64)
        self.rules.bounds = &bounds[0]
        self.rules.bucket_keys = &bucket_keys[0]

    def __dealloc__(self):
        free(self.columns)

    def read(self, bytes data not None, Py_ssize_t begin=0,
             end: int | None = None) -> tuple[Examples, Fault | None]:
        """The examples of whole lines from `begin` to before `end`, and the first `Fault`.

        Reading stops there, unless `skip`; the fault's offset is from `begin` on.
        """
        cdef Py_ssize_t stop = PyBytes_GET_SIZE(data) if end is None else end
        cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(data) + begin
        cdef int64_t lines, cells, rows, entries
        cdef Sink sink
        check_part(data, begin, stop)
        with nogil:
            count_two(text, stop - begin, 10, self.rules.separator, &lines, &cells)
        # A line's entries are written before it is known whether it has too many cells.
        entries = cells + lines + 1 + self.rules.column_num
        rows = min(lines + 1, cells // max(1, self.rules.column_num - 1) + 1)
        if self.rules.column_num == 1:
            rows = lines + 1
        sink = Sink(rows, entries, True, self.rules.text_num)
        fault = run(read_rows, &self.rules, self.skip, data, begin, stop, sink, self.rules.quotes < 2)
        found = sink.examples(True)
        texts = [sink.column(i, self.rules.text_num) for i in range(self.rules.text_num)]
        return found._replace(cells=texts), fault

    def of_columns(self, list columns not None: list[NDArray[np.float32] | list[Any]], Py_ssize_t rows,
                   text_of: Callable[[Any], Any] | None) -> tuple[Examples, tuple[int, int] | None]:
        """The examples of rows of a table, and row and column of the first cell that is no text, or None.

        `columns`: one for each declared column, all of them features: an array of numbers, NaN where one
        is missing, or a list of texts, None or NaN where one is missing.  `text_of` makes texts of other
        values; None: none is made.  Needs the GIL for texts.
        """
        cdef const float[::1] numbers
        cdef const float **found = <const float **>calloc(len(columns) + 1, sizeof(float *))
        cdef Sink sink = Sink(rows, rows * len(columns), True)
        cdef int64_t nnz = 0
        cdef Py_ssize_t i, j
        cdef float number
        if found == NULL:
            raise MemoryError(f"no memory for {len(columns)} columns")
        if len(columns) != self.rules.column_num or any(len(column) != rows for column in columns):
            raise ValueError(f"expected {self.rules.column_num} columns of {rows} rows")
        try:
            for j, column in enumerate(columns):
                if rows and not isinstance(column, list):
                    numbers = column
                    found[j] = &numbers[0]
            for i in range(rows):
                for j in range(self.rules.column_num):
                    if found[j] == NULL:
                        if self.add(j, (<list>columns[j])[i], text_of, &nnz, &sink.out) < 0:
                            return sink.examples(True), (i, j)
                        continue
                    number = found[j][i]
                    if number == number:
                        add_number(number, &self.columns[j], &self.rules, &nnz, &sink.out)
                add_example(&sink.out, nnz)
        finally:
            free(found)
        return sink.examples(True), None

    cdef int add(self, Py_ssize_t column, element, text_of, int64_t *nnz, Output *out) except? -2:
        """Add a text without the blanks around it, unless it is empty or missing; -1: it is no text."""
        cdef uint8_t padded[SHORT + 8]
        cdef const char *text
        cdef Py_ssize_t size
        cdef bytes copy
        cdef Cell cell
        if not isinstance(element, str):
            if element is None or not _is_there(element):
                return 0
            element = element if text_of is None else text_of(element)
            if not isinstance(element, str):
                return -1
        try:
            text = PyUnicode_AsUTF8AndSize(element, &size)
        except UnicodeEncodeError:      # lone surrogates
            return -1
        while size and text[0] == c' ':
            text += 1
            size -= 1
        while size and text[size - 1] == c' ':
            size -= 1
        if size == 0:
            return 0
        if size <= SHORT:
            memcpy(padded, text, size)
            memset(padded + size, 0, 8)
            cell.text = padded
        else:
            copy = text[:size] + bytes(8)
            cell.text = <const uint8_t *>PyBytes_AS_STRING(copy)
        cell.stop = cell.text + size
        cell.doubled = 0
        add_text(&cell, &self.columns[column], &self.rules, nnz, out)
        return 0


cdef bint _is_there(element):
    """Whether a value is present: NaN is not equal to itself, and pandas' NA refuses to be a bool."""
    try:
        return bool(element == element)
    except TypeError:
        return False
    except ValueError:                      # an array
        return True
