# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A fragment as bytes: its sections of a checkpoint's file, copied out of a shard and put back.

    ShardStore, cursor -> copy_fragments -> sections, one after the other, in the caller's buffer
    section -> read_section -> where its rows lie -> put_section -> rows of a ShardStore

Owns the layout of a section (docs/checkpoint_format.md).  Runs in the shard's own thread.  A fragment that
is larger than the buffer has several sections, between which its rows change: each row is as it was when
it was copied, and a row that is made meanwhile is in none (docs/design/checkpoints.md).  Knows no file, no
checksum and no checkpoint.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from snailps.store._store cimport ShardStore
from snailps.store.core._slab cimport (
    KEY_BYTES, Part, Slab, Walk, part_copy, part_count, part_end, part_put, retention_bytes,
    retention_calls, walk_begin, walk_end,
)
from snailps.store.tables cimport (
    TRACK_COUNT, TRACK_PUSH, Mark, Shard, Table, marks_copy, store_keeps, store_owns, store_table,
)

from typing import NamedTuple

import numpy as np

from snailps.errors import CheckpointError, MisuseError, SnailError

cdef enum:
    SECTION_MAGIC = 0x47415246      # "FRAG"
    ALIGN = 64

cdef struct SectionHead:            # 32 bytes, little endian like all that follows
    uint32_t magic
    uint32_t fragment
    uint32_t table_num
    uint32_t mark_num               # in the first section of its fragment
    uint64_t bytes                  # of the section, a multiple of ALIGN
    uint64_t rows                   # of all tables

cdef struct TableHead:              # 48 bytes
    uint32_t table
    uint32_t floats                 # of weights and state
    uint32_t track
    uint32_t row_bytes              # key, floats, tick
    uint64_t rows
    uint64_t retention_bytes        # after the rows, where the table admits or limits rows; else 0
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


cdef enum Copied:
    COPIED_ALL = 0
    COPIED_SOME = 1
    COPIED_NO_MEMORY = -1
    COPIED_LOST = -2                # another copy has begun since

cdef struct Place:                  # in a fragment
    bint begun                      # it has a section
    uint32_t table                  # those below are copied,
    uint32_t number                 # ... and of this one the rows of slots below


cdef int _copy_table(Table *table, uint32_t fragment, Place *place, SectionHead *head, char **to,
                     const char *end) noexcept nogil:
    """Write rows of a table, and with the last one its counts, up to `end`."""
    cdef Slab *slab = &table.slab
    cdef Part *part = &slab.parts[fragment]
    cdef const Walk *walk = NULL
    cdef TableHead top
    cdef uint64_t room, counts
    cdef uint32_t rows, most
    cdef bint ends
    cdef char *at = to[0] + sizeof(top)
    cdef char *stop
    if place.number == 0 and not store_keeps(table, fragment):
        return COPIED_ALL
    if place.number:
        if slab.walk.part != part:
            return COPIED_LOST
        walk = &slab.walk
    if end - to[0] < <int64_t>sizeof(top):
        return COPIED_SOME
    room = end - at
    most = <uint32_t>min(room // slab.stride, <uint64_t>0x7FFFFFFF)
    rows = part_count(slab, part, walk, place.number, most)
    stop = part_copy(slab, part, walk, &place.number, most, at)
    room -= _padded(stop - at, 8)
    counts = retention_bytes(part)
    ends = place.number >= part_end(part, walk) and counts <= room
    if rows or (ends and counts):
        memset(&top, 0, sizeof(top))
        top.table = table.table_id
        top.floats = slab.floats
        top.track = table.track
        top.row_bytes = slab.stride
        top.rows = rows
        top.retention_bytes = counts if ends else 0
        memcpy(to[0], &top, sizeof(top))
        to[0] = at + _padded(stop - at, 8)
        memset(stop, 0, to[0] - stop)
        if top.retention_bytes:
            to[0] = retention_calls.copy(part, to[0])
        head.table_num += 1
        head.rows += rows
    if ends:
        if walk != NULL:
            walk_end(slab)
        return COPIED_ALL
    if place.number and walk == NULL and not walk_begin(slab, part):
        return COPIED_NO_MEMORY
    return COPIED_SOME


cdef int _copy_section(const Shard *shard, uint32_t fragment, Place *place, SectionHead *head,
                       char *to, uint64_t room) noexcept nogil:
    """Write what fits into `room`, a multiple of ALIGN, of what follows the place, and move that."""
    cdef char *begin = to
    cdef Table *table
    cdef int code = COPIED_ALL
    memset(head, 0, sizeof(head[0]))
    head.magic = SECTION_MAGIC
    head.fragment = fragment
    to += sizeof(head[0])
    if not place.begun:
        head.mark_num = shard.fragments[fragment].marks.num
        if head.mark_num * <uint64_t>sizeof(Mark) > room - sizeof(head[0]):
            return COPIED_SOME
        to = marks_copy(&shard.fragments[fragment].marks, to)
        place.begun = True
    while place.table < shard.table_cap:
        table = shard.tables[place.table]
        if table != NULL:
            code = _copy_table(table, fragment, place, head, &to, begin + room)
            if code != COPIED_ALL:
                break
        place.table += 1
        place.number = 0
    head.bytes = _padded(to - begin, ALIGN)
    memset(to, 0, begin + head.bytes - to)
    memcpy(begin, head, sizeof(head[0]))
    return code


cdef class FragmentCursor:
    """How far fragments (uint32 array) are copied; moved in the shard's thread."""

    cdef const uint32_t[::1] fragments
    cdef Py_ssize_t at
    cdef Place place

    def __init__(self, fragments: NDArray[Any]):
        self.fragments = np.ascontiguousarray(fragments, np.uint32)


def copy_fragments(ShardStore store not None, FragmentCursor cursor not None,
                   buffer: NDArray[Any]) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Copy what follows the cursor, as much as fits into a uint8 buffer, and move the cursor.

    Returns used bytes of the buffer, 0: no more fragments, and (fragment, offset, bytes, rows) of each
    section.  A fragment begins in a buffer that has room for all of it, or has nothing else yet.
    Runs without the GIL; the shard serves nothing else meanwhile.
    """
    cdef uint8_t[::1] room = buffer
    cdef Shard *shard = store.shard
    cdef uint64_t capacity = room.shape[0] // ALIGN * ALIGN
    cdef uint64_t used = 0
    cdef uint32_t fragment
    cdef bint begun
    cdef int code = COPIED_ALL
    cdef SectionHead head
    sections = []
    while cursor.at < cursor.fragments.shape[0] and capacity - used >= ALIGN:
        fragment = cursor.fragments[cursor.at]
        if not store_owns(shard, fragment):
            raise SnailError(f"fragment {fragment} is not owned by this shard (any more)")
        begun = cursor.place.begun
        if used and not begun and _section_bytes(shard, fragment) > capacity - used:
            break
        with nogil:
            code = _copy_section(shard, fragment, &cursor.place, &head, <char *>&room[used],
                                 capacity - used)
        if code == COPIED_NO_MEMORY:
            raise MemoryError(f"no memory to copy fragment {fragment}")
        if code == COPIED_LOST:
            raise SnailError(f"the copy of fragment {fragment} was given up for another")
        if code == COPIED_SOME and head.table_num == 0 and (begun or not cursor.place.begun):
            raise MisuseError(f"a buffer of {capacity:,} bytes has no room for any of fragment {fragment}")
        sections.append((fragment, used, head.bytes, head.rows))
        used += head.bytes
        if code == COPIED_SOME:
            break
        memset(&cursor.place, 0, sizeof(Place))
        cursor.at += 1
    if not sections and cursor.at < cursor.fragments.shape[0]:
        raise MisuseError(f"a buffer of {capacity:,} bytes has no room for a section")
    return used, sections


# --- the way back --------------------------------------------------------------------------------

class SectionTable(NamedTuple):
    """Rows of a table in a section: where they lie, and the counts of the fragment after them."""

    table: int
    floats: int
    track: int
    row_bytes: int
    rows: int
    at: int
    counts_at: int
    counts_bytes: int           # 0: none


class Section(NamedTuple):
    fragment: int
    rows: int                   # of all tables
    marks: int
    tables: list[SectionTable]


def read_section(section: NDArray[np.uint8]) -> Section:
    """What a section (uint8 (n,)) holds, every length compared with its own; CheckpointError."""
    cdef const uint8_t[::1] view = section
    cdef uint64_t length = view.shape[0]
    cdef uint64_t at = sizeof(SectionHead)
    cdef uint64_t counts_at, retained
    cdef uint64_t rows = 0
    cdef uint32_t i
    cdef SectionHead head
    cdef TableHead top
    if length >= sizeof(head):
        memcpy(&head, &view[0], sizeof(head))
    if length < sizeof(head) or head.magic != SECTION_MAGIC or head.bytes != length \
            or head.mark_num > length // sizeof(Mark):
        raise CheckpointError(f"{length:,} bytes are no section of a fragment")
    _check_room(at, head.mark_num * <uint64_t>sizeof(Mark), length, head.fragment)
    at += head.mark_num * <uint64_t>sizeof(Mark)
    tables = []
    for i in range(head.table_num):
        _check_room(at, sizeof(top), length, head.fragment)
        memcpy(&top, &view[at], sizeof(top))
        at += sizeof(top)
        if top.row_bytes < KEY_BYTES + 4 * <uint64_t>top.floats or top.rows > length // top.row_bytes:
            raise CheckpointError(f"section of fragment {head.fragment}: {top.rows:,} rows of "
                                  f"{top.row_bytes} bytes do not fit its {length:,} bytes")
        _check_room(at, _padded(top.rows * top.row_bytes, 8), length, head.fragment)
        retained = top.retention_bytes if top.track & (TRACK_PUSH | TRACK_COUNT) else 0
        counts_at = at + _padded(top.rows * top.row_bytes, 8)
        _check_room(counts_at, retained, length, head.fragment)
        tables.append(SectionTable(top.table, top.floats, top.track, top.row_bytes, top.rows, at,
                                   counts_at, retained))
        at = counts_at + retained
        rows += top.rows
    if rows != head.rows:
        raise CheckpointError(f"section of fragment {head.fragment}: its tables have {rows:,} rows, and "
                              f"its head says {head.rows:,}")
    return Section(head.fragment, rows, head.mark_num, tables)


def put_section(ShardStore store not None, section: NDArray[Any], tables: Mapping[int, int]) -> int:
    """Put a section's rows (uint8 (n,)) in the place of what these tables have of them; their count.

    `tables` maps numbers in the section to numbers here; others are ignored.  Rows keep the order of
    their slots.  Marks are not taken: the cluster has its own.  `CheckpointError` if the bytes are no
    section, or of a table with other rows.
    """
    cdef const uint8_t[::1] view = section
    cdef uint64_t at, count
    cdef uint64_t rows = 0
    cdef uint32_t fragment
    cdef int failed
    cdef Table *table
    found = read_section(section)
    fragment = found.fragment
    if not store_owns(store.shard, fragment):
        raise SnailError(f"fragment {fragment} is not owned by this shard")
    for piece in found.tables:
        if piece.table not in tables:
            continue
        table = store_table(store.shard, tables[piece.table])
        if table == NULL:
            raise SnailError(f"no table {tables[piece.table]} in this shard: declare it first")
        if (piece.floats, piece.track & ~TRACK_COUNT, piece.row_bytes) != (
                table.slab.floats, table.track & ~TRACK_COUNT, table.slab.stride):
            raise CheckpointError(
                f"table {piece.table} of the checkpoint has rows of {piece.floats} floats (track "
                f"{piece.track}), the table here {table.slab.floats} (track {table.track})")
        at, count = piece.at, piece.rows
        with nogil:
            failed = part_put(&table.slab, &table.slab.parts[fragment], store.shard.frag_num,
                              <const char *>&view[0] + at, count)
        if failed == -2:
            raise CheckpointError(f"section of fragment {fragment}: a key of another one "
                                  "(frag_num is not the checkpoint's)")
        if failed:
            raise MemoryError(f"no memory for rows of fragment {fragment}")
        rows += count
        at, count = piece.counts_at, piece.counts_bytes
        if count and table.slab.retains:
            failed = retention_calls.put(&table.slab, &table.slab.parts[fragment],
                                   <const char *>&view[0] + at, count)
            if failed == -2:
                raise CheckpointError(f"section of fragment {fragment}: its counts of "
                                      f"table {piece.table} are not as they are written")
            if failed:
                raise MemoryError(f"no memory for counts of fragment {fragment}")
    return rows


cdef int _check_room(uint64_t at, uint64_t needed, uint64_t length, uint32_t fragment) except -1:
    if needed > length - at:
        raise CheckpointError(f"section of fragment {fragment} ends in the middle of what it says "
                              "to hold")
    return 0
