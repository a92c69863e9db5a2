# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A cache of rows by key in fixed memory: owns which rows it has, their age, and what is evicted.

    keys -> RowCache.find -> rows copied out, and for each key: fresh, old or not there
    keys, rows -> RowCache.put -> stored; the least recently used row of the same set is evicted

Set-associative like a processor's cache: the hash of a key selects one set of eight places, and within
a set the least recently used row is evicted.  Memory is thus fixed from the start, nothing is moved or
chained, and a lookup reads two cache lines and the row.  Loops run without the GIL.  The caller passes
the time, a number that never falls, which is stored as 32 bits above `base`; there is no clock here.

Not thread-safe: `cached_rows` holds a lock around each call.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

from snailps.abi._prefetch cimport FETCH_AT_CLIENT, fetch, fetch_row
from snailps.abi._table_hash cimport table_hash
from snailps.errors import MisuseError

cdef enum:
    WAYS = 8
    AHEAD = 12                  # keys whose sets, or rows, are fetched before they are needed
    SET_BYTES = 128
    NEVER = 0                   # `since` of an empty place
    AGE_BITS = 31               # rows older than 2^31 ticks may be dropped (raise_base)

    NOT_THERE_ = 0
    OLD_ = 1
    FRESH_ = 2

NOT_THERE: int = NOT_THERE_
OLD: int = OLD_
FRESH: int = FRESH_

cdef struct Set:
    uint64_t keys[WAYS]
    uint32_t since[WAYS]        # time of the `put`, above the cache's base; 0: the place is empty
    uint32_t used[WAYS]         # number of the last call that asked for it

assert sizeof(Set) == SET_BYTES


cdef inline Set *set_of(Set *sets, uint64_t set_num, uint64_t key) noexcept nogil:
    return &sets[(<uint64_t><uint32_t>table_hash(key) * set_num) >> 32]


cdef inline void fetch_set(Set *sets, uint64_t set_num, uint64_t key) noexcept nogil:
    cdef const char *ahead = <const char *>set_of(sets, set_num, key)
    fetch(ahead)
    fetch(ahead + 64)


cdef inline int way_of(const Set *found, uint64_t key) noexcept nogil:
    """The place of a key in its set; -1: the set does not have it."""
    cdef int way
    for way in range(WAYS):
        if found.keys[way] == key and found.since[way] != NEVER:
            return way
    return -1


cdef int64_t find_places(Set *sets, uint64_t set_num, const uint64_t *keys, int64_t n, uint64_t oldest,
                         uint32_t call, int64_t *places, uint8_t *states) noexcept nogil:
    """Find place (or -1) and state of each key, and mark it as used; returns how many are fresh."""
    cdef int64_t i, fresh = 0
    cdef Set *found
    cdef int way
    for i in range(n):
        if i + AHEAD < n:
            fetch_set(sets, set_num, keys[i + AHEAD])
        found = set_of(sets, set_num, keys[i])
        way = way_of(found, keys[i])
        if way < 0:
            places[i] = -1
            states[i] = NOT_THERE_
            continue
        found.used[way] = call
        places[i] = (found - sets) * WAYS + way
        if found.since[way] >= oldest:
            states[i] = FRESH_
            fresh += 1
        else:
            states[i] = OLD_
    return fresh


cdef void copy_out(const char *rows, uint32_t row_bytes, const int64_t *places, int64_t n,
                   char *to) noexcept nogil:
    cdef int64_t i
    for i in range(n):
        if i + AHEAD < n and places[i + AHEAD] >= 0:
            fetch_row(rows + places[i + AHEAD] * row_bytes, row_bytes, FETCH_AT_CLIENT)
        if places[i] >= 0:
            memcpy(to + i * row_bytes, rows + places[i] * row_bytes, row_bytes)


cdef int64_t put_rows(Set *sets, uint64_t set_num, char *rows, uint32_t row_bytes, const uint64_t *keys,
                      const char *given, int64_t n, uint32_t now, uint32_t call,
                      int64_t *made) noexcept nogil:
    """Store rows; returns how many others were evicted.  `made` counts places that were empty.

    An answer may overtake one that was asked for later: a newer row stays.
    """
    cdef int64_t i, gone = 0
    cdef Set *found
    cdef int way, other
    for i in range(n):
        if i + AHEAD < n:
            fetch_set(sets, set_num, keys[i + AHEAD])
        found = set_of(sets, set_num, keys[i])
        way = way_of(found, keys[i])
        if way < 0:
            way = 0
            for other in range(WAYS):
                if found.since[other] == NEVER:
                    way = other
                    break
                if found.used[other] < found.used[way]:
                    way = other
            if found.since[way] == NEVER:
                made[0] += 1
            else:
                gone += 1
        elif found.since[way] > now:
            continue
        found.keys[way] = keys[i]
        found.since[way] = now
        found.used[way] = call
        memcpy(rows + ((found - sets) * WAYS + way) * row_bytes, given + i * row_bytes, row_bytes)
    return gone


cdef class RowCache:
    """A cache of `rows` rows of one table, at most `capacity`, in fixed memory.

    It takes 16 bytes per row beside its floats, and some tens of nanoseconds per key and lookup.  If
    `bytes_max` is less than a set of eight rows, nothing is cached.  `evicted` counts rows that made
    room for others.
    """

    cdef readonly uint32_t dim
    cdef readonly int64_t capacity, rows, evicted
    cdef uint64_t set_num
    cdef uint64_t base              # times in a Set are counted from here
    cdef uint32_t call
    cdef object _memory, _rows      # own the memory that the pointers point to
    cdef Set *sets
    cdef char *data

    def __init__(self, uint32_t dim, int64_t bytes_max):
        if dim < 1 or bytes_max < 0:
            raise MisuseError(f"a cache of {bytes_max} bytes for rows of {dim} floats")
        cdef const uint8_t[::1] memory
        cdef const float[:, ::1] rows
        self.dim = dim
        self.set_num = min(bytes_max // (SET_BYTES + WAYS * 4 * <int64_t>dim), <int64_t>0xFFFFFFFF)
        self.capacity = self.set_num * WAYS
        self.base = 0
        self.call = 0
        # Pages of zeros that are never touched take no memory.  One set more, because the first one
        # is moved to the start of a cache line: a set must not straddle three lines.
        memory = self._memory = np.zeros((self.set_num + 1) * SET_BYTES, np.uint8)
        rows = self._rows = np.empty((self.capacity + 1, dim), np.float32)
        self.sets = <Set *>((<uint64_t>&memory[0] + 63) // 64 * 64)
        self.data = <char *>&rows[0, 0]

    @property
    def bytes(self) -> int:
        """Memory of the full cache, in bytes."""
        return self.set_num * SET_BYTES + self.capacity * 4 * <int64_t>self.dim

    def find(self, keys: NDArray[np.uint64], uint64_t oldest,
             rows: NDArray[np.float32]) -> tuple[NDArray[np.uint8], int]:
        """Copy cached rows into `rows`; return the state of each key and how many are fresh.

        A row is FRESH if it was stored at the time `oldest` or later, else OLD; its row is copied in both
        cases, because a caller may accept an old row when its server is lost.  Other keys are NOT_THERE.
        """
        cdef const uint64_t[::1] asked = keys
        cdef float[:, ::1] to = rows
        cdef int64_t n = asked.shape[0], fresh = 0
        cdef int64_t[::1] places
        cdef uint8_t[::1] states
        if to.shape[0] != n or to.shape[1] != <int64_t>self.dim:
            raise MisuseError(f"rows of {n} keys: expected ({n}, {self.dim}), got {rows.shape}")
        found = np.zeros(n, np.uint8)
        if n == 0 or self.set_num == 0:
            return found, 0
        at = np.empty(n, np.int64)
        places, states = at, found
        oldest = oldest - self.base if oldest > self.base else 1
        self.next_call()
        with nogil:
            fresh = find_places(self.sets, self.set_num, &asked[0], n, oldest, self.call, &places[0],
                                &states[0])
            copy_out(self.data, 4 * self.dim, &places[0], n, <char *>&to[0, 0])
        return found, fresh

    def put(self, keys: NDArray[np.uint64], rows: NDArray[np.float32], uint64_t now) -> None:
        """Store rows float32 (n, dim) of keys uint64 (n,) with the time `now`, at least 1.

        Rows with a later time stay as they are.
        """
        cdef const uint64_t[::1] given = keys
        cdef const float[:, ::1] values = rows
        cdef int64_t n = given.shape[0], made = 0, gone = 0
        if values.shape[0] != n or values.shape[1] != <int64_t>self.dim or now == NEVER:
            raise MisuseError(f"rows of {n} keys: expected ({n}, {self.dim}), got {rows.shape}")
        if n == 0 or self.set_num == 0:
            return
        if now > self.base + <uint64_t>0xFFFFFFFF:
            self.raise_base(now - (<uint64_t>1 << AGE_BITS))
        now = now - self.base if now > self.base else 1
        self.next_call()
        with nogil:
            gone = put_rows(self.sets, self.set_num, self.data, 4 * self.dim, &given[0],
                            <const char *>&values[0, 0], n, <uint32_t>now, self.call, &made)
        self.rows += made
        self.evicted += gone

    def clear(self) -> None:
        """Drop all rows."""
        self._memory[:] = 0
        self.rows = 0

    cdef void raise_base(self, uint64_t base) noexcept:
        """Count times from `base` on, before 32 bits overflow; rows from before are dropped.

        `base` is 2^31 ticks before now, so only rows are dropped that are older than that: 248 days at
        10 ms a tick.
        """
        cdef uint64_t i, later = base - self.base
        cdef int way
        cdef Set *one
        for i in range(self.set_num):
            one = &self.sets[i]
            for way in range(WAYS):
                if one.since[way] > later:
                    one.since[way] -= <uint32_t>later
                elif one.since[way] != NEVER:
                    one.since[way] = NEVER
                    self.rows -= 1
        self.base = base

    cdef void next_call(self) noexcept:
        """Number this call; when the number wraps after 2^32 calls, all rows count as used equally."""
        cdef uint64_t i
        cdef int way
        self.call += 1
        if self.call == 0:
            for i in range(self.set_num):
                for way in range(WAYS):
                    self.sets[i].used[way] = 0
            self.call = 1
