# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Find rows of one table in the sections of a checkpoint that is mapped into memory.

    sections in memory -> RowIndex.add -> where each fragment's rows lie
    RowIndex.build -> a place for each key -> RowIndex.find -> copies of the rows that exist

Rows stay in the file; the index has 6 bytes a row.  A key's fragment selects the part of the index; an
entry has the row's number and bits of the key's tag, so that nearly each row read is the right one.  The
rows of a fragment with several sections are numbered consecutively.  Knows no file and no checksum;
`_sections` knows the layout of a section.  Loops run without the GIL; any number of callers may search at
a time.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from snailps.abi._key_hash cimport fragment_of_hash, hash_key
from snailps.abi._prefetch cimport fetch
from snailps.abi._table_hash cimport table_hash

import numpy as np

from snailps.errors import CheckpointError, MisuseError
from snailps.store.checkpoint._sections import read_section

cdef enum:
    KEY_BYTES = 8
    AHEAD = 16                      # keys whose entries are fetched before they are needed
    WINDOW = 64                     # keys that go through both steps of a lookup at a time

cdef struct Piece:                  # the rows of a fragment in one section
    const char *rows
    uint32_t begin                  # rows of the fragment in sections before it
    uint32_t row_bytes

cdef struct Part:                   # the rows of one fragment
    const Piece *pieces
    uint32_t piece_num
    uint64_t first                  # of its entries in the index
    uint32_t count                  # of rows
    uint32_t places                 # of entries


cdef inline uint64_t wide_at(const char *at) noexcept nogil:
    cdef uint64_t number
    memcpy(&number, at, sizeof(number))
    return number


cdef inline uint32_t tag_of(uint64_t key) noexcept nogil:
    return <uint32_t>table_hash(key)


cdef inline uint32_t home_of(const Part *part, uint32_t tag) noexcept nogil:
    return <uint32_t>((<uint64_t>tag * part.places) >> 32)


cdef inline const char *row_of(const Part *part, uint32_t number) noexcept nogil:
    """Row `number` of a part, which is one of its rows."""
    cdef const Piece *pieces = part.pieces
    cdef uint32_t n = part.piece_num
    cdef uint32_t half
    while n > 1:                        # the last piece that begins at it or before
        half = n // 2
        if pieces[half].begin <= number:
            pieces += half
            n -= half
        else:
            n = half
    return pieces.rows + <uint64_t>(number - pieces.begin) * pieces.row_bytes


cdef void fill_part(const Part *part, uint32_t *entries, uint32_t row_bits) noexcept nogil:
    cdef uint32_t i, at
    cdef uint32_t tag
    for i in range(part.count):
        tag = tag_of(wide_at(row_of(part, i)))
        at = home_of(part, tag)
        while entries[at] != 0:
            at = at + 1 if at + 1 < part.places else 0
        entries[at] = (tag << row_bits if row_bits < 32 else 0) | (i + 1)


cdef const char *find_row(const Part *part, const uint32_t *entries, uint32_t row_bits,
                          uint64_t key) noexcept nogil:
    """The row of a key, key first; NULL: there is none."""
    cdef uint32_t mask, entry, at
    cdef uint32_t tag = tag_of(key)
    cdef const char *row
    if part.count == 0:
        return NULL
    mask = 0xFFFFFFFF if row_bits >= 32 else (<uint32_t>1 << row_bits) - 1
    at = home_of(part, tag)
    tag = 0 if row_bits >= 32 else tag << row_bits
    while True:
        entry = entries[at]
        if entry == 0:
            return NULL
        if (entry & ~mask) == tag:
            row = row_of(part, (entry & mask) - 1)
            if wide_at(row) == key:
                return row
        at = at + 1 if at + 1 < part.places else 0


cdef void find_rows(const Part *parts, uint32_t frag_num, const uint32_t *index, uint32_t row_bits,
                    const uint64_t *keys, int64_t n, uint32_t width, char *to,
                    uint8_t *found) noexcept nogil:
    """Fetch entries, then rows, of a window of keys at a time: cache misses overlap."""
    cdef char *rows[WINDOW]
    cdef const Part *part
    cdef int64_t begin = 0, i, length
    while begin < n:
        length = min(<int64_t>WINDOW, n - begin)
        for i in range(begin, begin + length):
            part = &parts[fragment_of_hash(hash_key(keys[i]), frag_num)]
            if part.count:
                fetch(index + part.first + home_of(part, tag_of(keys[i])))
        for i in range(length):
            part = &parts[fragment_of_hash(hash_key(keys[begin + i]), frag_num)]
            rows[i] = <char *>find_row(part, index + part.first, row_bits, keys[begin + i])
        for i in range(length):
            found[begin + i] = rows[i] != NULL
            if rows[i] != NULL and width:
                memcpy(to + (begin + i) * 4 * width, rows[i] + KEY_BYTES, 4 * width)
        begin += length


cdef class RowIndex:
    """The rows of one table (by its number in the files) in a checkpoint's sections.

    `floats` are those of a stored row, weights and state.
    """

    cdef readonly uint32_t table, frag_num, floats
    cdef readonly uint64_t rows
    cdef object _kept, _parts, _pieces, _index
    cdef Part *parts
    cdef uint32_t *index
    cdef uint32_t row_bits

    def __init__(self, uint32_t table, uint32_t frag_num, uint32_t floats):
        cdef uint8_t[::1] memory
        self.table, self.frag_num, self.floats = table, frag_num, floats
        self._kept = []
        memory = self._parts = np.zeros(max(frag_num, 1) * sizeof(Part), np.uint8)
        self.parts = <Part *>&memory[0]
        self.index = NULL

    def add(self, section: NDArray[np.uint8]) -> None:
        """Add the rows of one section: uint8 (n,), its checksum compared; the section stays in use.

        `CheckpointError` if the bytes are no section, or of a table with other rows.
        """
        if self.index != NULL:
            raise MisuseError("the index is built: no section can be added")
        found = read_section(section)
        if found.fragment >= self.frag_num:
            raise CheckpointError(f"a section of fragment {found.fragment} of {self.frag_num}")
        for piece in found.tables:
            if piece.table != self.table or piece.rows == 0:
                continue
            if piece.floats != self.floats:
                raise CheckpointError(
                    f"table {self.table} has rows of {piece.floats} floats in the section of "
                    f"fragment {found.fragment}, and {self.floats} in its declaration")
            self._kept.append((found.fragment, piece, section))
            self.rows += piece.rows

    def build(self) -> None:
        """Make the index, after the last `add`."""
        cdef uint64_t total = 0
        cdef uint32_t f, most = 0
        cdef uint32_t[::1] entries
        cdef uint8_t[::1] memory
        cdef const uint8_t[::1] view
        cdef Piece *piece
        cdef Part *part
        self._kept.sort(key=lambda kept: kept[0])
        memory = self._pieces = np.zeros(max(len(self._kept), 1) * sizeof(Piece), np.uint8)
        piece = <Piece *>&memory[0]
        for fragment, table, section in self._kept:
            part = &self.parts[<uint32_t>fragment]
            if part.piece_num == 0:
                part.pieces = piece
            if part.count + table.rows >= 0x7FFFFFFF:
                raise CheckpointError(f"fragment {fragment} has more rows than a table can have")
            view = section
            piece.rows = <const char *>&view[0] + <uint64_t>table.at
            piece.begin, piece.row_bytes = part.count, table.row_bytes
            part.piece_num += 1
            part.count += table.rows
            piece += 1
        for f in range(self.frag_num):
            part = &self.parts[f]
            part.first = total
            if part.count:
                part.places = part.count + part.count // 2 + 1
            total += part.places
            most = max(most, part.count)
        self.row_bits = int(most).bit_length()
        entries = self._index = np.zeros(total + 1, np.uint32)
        self.index = &entries[0]
        with nogil:
            for f in range(self.frag_num):
                fill_part(&self.parts[f], self.index + self.parts[f].first, self.row_bits)

    def find(self, keys: NDArray[np.uint64],
             rows: NDArray[np.float32] | None = None) -> NDArray[np.bool_]:
        """Copy the rows of keys (uint64 (n,)) that exist; which do, as bool (n,).

        `rows` is float32 (n, width), C-contiguous, for the first `width` floats of each row.
        """
        cdef const uint64_t[::1] asked = keys
        cdef int64_t n = asked.shape[0]
        cdef float[:, ::1] to
        cdef uint8_t[::1] there
        cdef uint32_t width = 0
        cdef char *out = NULL
        if self.index == NULL:
            raise MisuseError("build the index first")
        found = np.zeros(n, np.uint8)
        if n == 0:
            return found.view(np.bool_)
        if rows is not None:
            to = rows
            if to.shape[0] != n or not 1 <= to.shape[1] <= <int64_t>self.floats:
                raise MisuseError(f"{n} keys, rows of {self.floats} floats: got {rows.shape}")
            width, out = to.shape[1], <char *>&to[0, 0]
        there = found
        with nogil:
            find_rows(self.parts, self.frag_num, self.index, self.row_bits, &asked[0], n, width, out,
                      &there[0])
        return found.view(np.bool_)

    def keys_of(self, uint32_t fragment) -> NDArray[np.uint64]:
        """The keys of a fragment, uint64 (n,), in the order of the file."""
        cdef uint64_t[::1] to
        cdef const Part *part
        cdef uint32_t i
        if fragment >= self.frag_num:
            raise MisuseError(f"fragment {fragment} of {self.frag_num}")
        part = &self.parts[fragment]
        keys = np.empty(part.count, np.uint64)
        to = keys
        for i in range(part.count):
            to[i] = wide_at(row_of(part, i))
        return keys

    @property
    def index_bytes(self) -> int:
        """Memory of the index; rows are in the caller's sections."""
        if self.index == NULL:
            return self._parts.nbytes
        return self._parts.nbytes + self._pieces.nbytes + self._index.nbytes
