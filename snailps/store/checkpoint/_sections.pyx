# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A fragment as bytes: its section of a checkpoint's file, copied out of a shard and put back.

    ShardStore, fragments -> copy_fragments -> sections, one behind the other, in the caller's buffer
    section -> put_section -> ShardStore: the fragment's rows and marks become the section's

Owns the layout of a section (docs/checkpoint_format.md).  Runs in the shard's own thread, and copies a
section in one go: rows, state and marks of a fragment are of one moment.  Knows no file, no checksum
and no checkpoint.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.store._store cimport ShardStore
from snailps.store.core._retention cimport retention_bytes, retention_copy, retention_put
from snailps.store.core._slab cimport KEY_BYTES, Part, Slab, part_copy, part_drop, part_put
from snailps.store.tables cimport (
    TRACK_COUNT, TRACK_PUSH, Mark, Shard, Table, marks_copy, store_keeps, store_owns, store_set_mark, store_table,
)

import numpy as np

from snailps.errors import CheckpointError, SnailError

cdef enum:
    SECTION_MAGIC = 0x47415246      # "FRAG"
    ALIGN = 64

cdef struct SectionHead:            # 32 bytes, little endian like all that follows
    uint32_t magic
    uint32_t fragment
    uint32_t table_num
    uint32_t mark_num
    uint64_t bytes                  # of the section, a multiple of ALIGN
    uint64_t rows                   # of all tables

cdef struct TableHead:              # 48 bytes
    uint32_t table
    uint32_t floats                 # of weights and state
    uint32_t track
    uint32_t row_bytes              # key, floats, tick
    uint64_t rows
    uint64_t retention_bytes        # behind the rows, where the table admits or limits rows; else 0
    uint64_t reserved[2]            # 0


cdef uint64_t _padded(uint64_t length, uint64_t to) noexcept nogil:
    return (length + to - 1) // to * to


cdef uint64_t _section_bytes(const Shard *shard, uint32_t fragment) noexcept nogil:
    cdef uint64_t total = sizeof(SectionHead) \
        + shard.fragments[fragment].marks.num * <uint64_t>sizeof(Mark)
    cdef const Table *table
    cdef const Part *part
    cdef uint32_t t
    for t in range(shard.table_cap):
        table = shard.tables[t]
        if table != NULL:
            part = &table.slab.parts[fragment]
            if store_keeps(table, fragment):
                total += sizeof(TableHead) + _padded(part.rows * <uint64_t>table.slab.stride, 8) \
                    + retention_bytes(part)
    return _padded(total, ALIGN)


cdef uint64_t _copy_section(const Shard *shard, uint32_t fragment, uint64_t length,
                            char *to) noexcept nogil:
    """Write the section of a fragment, `length` bytes (_section_bytes); return its rows."""
    cdef SectionHead head
    cdef TableHead top
    cdef const Table *table
    cdef const Part *part
    cdef char *begin = to
    cdef char *end
    cdef uint32_t t, number
    memset(&head, 0, sizeof(head))
    head.magic = SECTION_MAGIC
    head.fragment = fragment
    head.mark_num = shard.fragments[fragment].marks.num
    head.bytes = length
    to = marks_copy(&shard.fragments[fragment].marks, to + sizeof(head))
    for t in range(shard.table_cap):
        table = shard.tables[t]
        if table == NULL:
            continue
        part = &table.slab.parts[fragment]
        if not store_keeps(table, fragment):
            continue
        memset(&top, 0, sizeof(top))
        top.table = t
        top.floats = table.slab.floats
        top.track = table.track
        top.row_bytes = table.slab.stride
        top.rows = part.rows
        top.retention_bytes = retention_bytes(part)
        memcpy(to, &top, sizeof(top))
        number = 0
        end = part_copy(&table.slab, part, &number, part.rows, to + sizeof(top))
        to += sizeof(top) + _padded(end - to - sizeof(top), 8)
        memset(end, 0, to - end)
        if top.retention_bytes:
            to = retention_copy(part, to)
        head.table_num += 1
        head.rows += part.rows
    memset(to, 0, begin + length - to)
    memcpy(begin, &head, sizeof(head))
    return head.rows


def copy_fragments(ShardStore store not None, fragments: NDArray[Any], Py_ssize_t start,
                   buffer: NDArray[Any]) -> tuple[int, int, list[tuple[int, int, int, int]]]:
    """Copy owned fragments, from ``fragments[start]`` on, that fit whole into a uint8 buffer.

    Returns stop (fragments before it are copied), used (bytes of the buffer; those that the first
    fragment needs if it does not fit), and (fragment, offset, bytes, rows) of each copied one.
    Runs without the GIL; the shard serves nothing else meanwhile.
    """
    cdef const uint32_t[::1] numbers = np.ascontiguousarray(fragments, np.uint32)
    cdef uint8_t[::1] room = buffer
    cdef Shard *shard = store.shard
    cdef uint64_t used = 0
    cdef uint64_t length, rows
    cdef uint64_t capacity = room.shape[0]
    cdef Py_ssize_t at = start
    cdef Py_ssize_t most = numbers.shape[0]
    sections = []
    while at < most:
        if not store_owns(shard, numbers[at]):
            raise SnailError(f"fragment {numbers[at]} is not owned by this shard (any more)")
        length = _section_bytes(shard, numbers[at])
        if used + length > capacity:
            if used == 0:
                return at, length, sections
            break
        with nogil:
            rows = _copy_section(shard, numbers[at], length, <char *>&room[used])
        sections.append((numbers[at], used, length, rows))
        used += length
        at += 1
    return at, used, sections


# --- the way back --------------------------------------------------------------------------------

def put_section(ShardStore store not None, section: NDArray[Any], tables: Mapping[int, int],
                bint marks) -> int:
    """Replace a fragment's rows of these tables by those of a section (uint8 (n,)); count of rows.

    `tables` maps numbers in the section to numbers here; others are ignored.  `marks`: take the
    section's marks too, which are of this cluster's id.  Rows keep the order of their slots.
    `CheckpointError` if the bytes are no section, or of a table with other rows.
    """
    cdef const uint8_t[::1] view = section
    cdef uint64_t length = view.shape[0]
    cdef uint64_t at = sizeof(SectionHead)
    cdef uint64_t rows = 0
    cdef uint32_t i
    cdef int failed
    cdef SectionHead head
    cdef TableHead top
    cdef Mark mark
    cdef Table *table
    if length >= sizeof(head):
        memcpy(&head, &view[0], sizeof(head))
    if length < sizeof(head) or head.magic != SECTION_MAGIC or head.bytes != length \
            or head.mark_num > length // sizeof(Mark):
        raise CheckpointError(f"{length:,} bytes are no section of a fragment")
    if not store_owns(store.shard, head.fragment):
        raise SnailError(f"fragment {head.fragment} is not owned by this shard")
    for i in range(head.mark_num):
        _check_room(at, sizeof(Mark), length, head.fragment)
        memcpy(&mark, &view[at], sizeof(Mark))
        at += sizeof(Mark)
        if marks and store_set_mark(store.shard, head.fragment, mark.key, mark.value) < 0:
            raise MemoryError(f"no memory for a mark of fragment {head.fragment}")
    for number in tables.values():
        table = store_table(store.shard, number)
        if table == NULL:
            raise SnailError(f"no table {number} in this shard: declare it first")
        part_drop(&table.slab, &table.slab.parts[head.fragment])
    for i in range(head.table_num):
        _check_room(at, sizeof(top), length, head.fragment)
        memcpy(&top, &view[at], sizeof(top))
        at += sizeof(top)
        if top.row_bytes < KEY_BYTES or top.rows > length // top.row_bytes:
            raise CheckpointError(f"section of fragment {head.fragment}: {top.rows:,} rows of "
                                  f"{top.row_bytes} bytes do not fit its {length:,} bytes")
        _check_room(at, _padded(top.rows * top.row_bytes, 8), length, head.fragment)
        if top.table in tables:
            table = store_table(store.shard, tables[top.table])
            if (top.floats, top.track & ~TRACK_COUNT, top.row_bytes) != (
                    table.slab.floats, table.track & ~TRACK_COUNT, table.slab.stride):
                raise CheckpointError(
                    f"table {top.table} of the checkpoint has rows of {top.floats} floats (track "
                    f"{top.track}), the table here {table.slab.floats} (track {table.track})")
            with nogil:
                failed = part_put(&table.slab, &table.slab.parts[head.fragment],
                                  store.shard.frag_num, <const char *>&view[0] + at, top.rows)
            if failed == -2:
                raise CheckpointError(f"section of fragment {head.fragment}: a key of another one "
                                      "(frag_num is not the checkpoint's)")
            if failed:
                raise MemoryError(f"no memory for rows of fragment {head.fragment}")
            rows += top.rows
        at += _padded(top.rows * top.row_bytes, 8)
        if top.track & (TRACK_PUSH | TRACK_COUNT):
            _check_room(at, top.retention_bytes, length, head.fragment)
            if top.table in tables and top.retention_bytes and table.slab.retains:
                failed = retention_put(&table.slab, &table.slab.parts[head.fragment],
                                       <const char *>&view[0] + at, top.retention_bytes)
                if failed == -2:
                    raise CheckpointError(f"section of fragment {head.fragment}: its counts of "
                                          f"table {top.table} are not as they are written")
                if failed:
                    raise MemoryError(f"no memory for counts of fragment {head.fragment}")
            at += top.retention_bytes
    return rows


cdef int _check_room(uint64_t at, uint64_t needed, uint64_t length, uint32_t fragment) except -1:
    if needed > length - at:
        raise CheckpointError(f"section of fragment {fragment} ends in the middle of what it says "
                              "to hold")
    return 0
