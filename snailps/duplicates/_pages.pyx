# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What near-duplicates are found by, of pages that lie in one buffer.

    data, begin -> PageKeys.of -> keys, 128 bits of the sequence of words, numbers of words
    data, begin -> sets_of -> sets of 3-grams; pairs of them -> shared_grams -> sizes of intersections
    keys -> KeyTable.note -> KeyTable.push -> KeyTable.pull -> the least value of keys that came again
    lines of benchmarks -> BenchmarkWindows.of(data, begin) -> overlap of pages, hits of lines

Page `i` is ``data[begin[i]:begin[i + 1]]``, of Arrow or NumPy, and no byte beside it is read.  A call is one
thread, without the GIL; threads may share all objects.  docs/duplicates.md has the definitions, which are
those of stored keys: they are the same on each processor.  Must not know rows of files, or which page stays.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from math import gcd
from typing import NamedTuple

import numpy as np

from snailps.abi.memory import private_memory

cdef extern from "_pages.h" nogil:
    const uint64_t NO_KEY_ "SNAIL_NO_KEY"
    ctypedef struct Desk "snail_desk":
        uint64_t *words
        uint32_t *grams
        uint64_t *exact
    int open_desk "snail_open_desk"(Desk *desk, int64_t bytes)
    void close_desk "snail_close_desk"(Desk *desk)
    int64_t read_words "snail_read_words"(const uint8_t *text, int64_t size, Desk *desk)
    int64_t find_grams "snail_grams"(Desk *desk, int64_t count)
    int64_t distinct "snail_distinct"(Desk *desk, int64_t count)
    int64_t shared "snail_shared"(const uint32_t *a, int64_t a_size, const uint32_t *b, int64_t b_size)
    uint64_t power "snail_power"(int64_t exponent)
    uint64_t mix "snail_mix"(uint64_t z)
    ctypedef struct KeyPlan "snail_key_plan":
        int bands
        int rows
        int windows
        int64_t window
        uint32_t factor
        uint32_t term
        uint64_t order
        uint64_t power
        uint32_t *bins
        const uint32_t *steps
    void page_keys "snail_page_keys"(const KeyPlan *plan, Desk *desk, int64_t count, uint64_t *keys)
    ctypedef struct LineWindow "snail_line_window":
        pass
    ctypedef struct Benchmark "snail_benchmark":
        LineWindow *cells
        uint64_t *filter
        uint8_t *lengths
        int cell_bits
        int filter_bits
        int64_t window
        int64_t shortest
        int64_t longest
        uint64_t power
    void add_line "snail_add_line"(Benchmark *lines, const uint64_t *words, int64_t count, uint32_t line)
    int64_t covered "snail_covered"(const Benchmark *lines, Desk *desk, int64_t count, uint32_t page,
                                    uint32_t *stamps, int64_t *hits)

cdef extern from "_least_rows.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *lock, void *attributes)
    int pthread_mutex_lock(pthread_mutex_t *lock)
    int pthread_mutex_unlock(pthread_mutex_t *lock)
    void *aligned_alloc(size_t alignment, size_t size)
    ctypedef struct Cell "snail_cell":
        pass
    ctypedef struct Shard "snail_shard":
        pthread_mutex_t lock
        Cell *cells
        int bits
        uint64_t used
    ctypedef struct LeastRows "snail_least_rows":
        Shard *shards
        uint64_t *seen
        uint64_t *again
        uint64_t seen_lines
        uint64_t again_lines
        int shard_bits
    ctypedef struct Chosen "snail_chosen":
        uint64_t *hashes
        int64_t *places
    int64_t choose "snail_choose"(const LeastRows *table, const uint64_t *keys, int64_t count, bint again,
                                  Chosen *chosen)
    void group "snail_group"(const LeastRows *table, const Chosen *chosen, int64_t count, Chosen *grouped,
                             int64_t *begin)
    void note_in "snail_note"(const LeastRows *table, const uint64_t *hashes, int64_t count)
    int push_in "snail_push"(const LeastRows *table, Shard *shard, const uint64_t *hashes,
                             const int64_t *places, int64_t count, const uint64_t *values)
    void pull_in "snail_pull"(const LeastRows *table, const Shard *shard, const uint64_t *hashes,
                              const int64_t *places, int64_t count, uint64_t *values)

cdef enum:
    NOTE = 0
    PUSH = 1
    PULL = 2
    LINE_BYTES = 64
    SHARD_KEYS = 1 << 18        # their filter, 300 kB, stays in a core's cache while a batch visits it
    SHARD_BITS_MIN = 6          # for threads, which would wait for each other
    SHARD_BITS_MAX = 12

BINS_MAX = 1 << 16              # bands x rows; far above what finds anything
WINDOWS_MAX = 1 << 12
WORDS_MAX = 1 << 16             # of a window
PAGE_BYTES_MAX = (1 << 32) - 256

NO_KEY: int = NO_KEY_
"""No key, as of a window where a page has too few words; KeyTable skips it."""


class PageKeysOf(NamedTuple):
    """What `PageKeys.of` finds in pages."""

    keys: NDArray[np.uint64]
    exact: NDArray[np.uint64]
    words: NDArray[np.uint32]


cdef object bytes_of(object data):
    """A buffer as uint8: Arrow's has another format."""
    cdef object view = memoryview(data)
    return np.frombuffer(data, np.uint8) if view.nbytes else np.zeros(0, np.uint8)


cdef object checked(str name, object array, object dtype, int dims):
    cdef object found = np.ascontiguousarray(array)
    if found.dtype != dtype or (dims and found.ndim != dims):
        raise ValueError(f"expected {name} of {np.dtype(dtype)}{' in one dimension' if dims == 1 else ''}, got "
                         f"{found.dtype} of shape {found.shape}")
    return found


cdef int64_t check_begin(const int64_t[::1] begin, int64_t size, str where) except -1:
    """Bytes of the longest page; ValueError where one ends before it begins, or outside of the data."""
    cdef int64_t i, longest = 0, wrong = -1
    if begin.shape[0] == 0:
        raise ValueError(f"expected one {where} more than there are pages, got none")
    with nogil:
        if begin[0] < 0 or begin[0] > size:
            wrong = 0
        for i in range(begin.shape[0] - 1 if wrong < 0 else 0):
            if begin[i + 1] < begin[i] or begin[i + 1] > size:
                wrong = i + 1
                break
            longest = max(longest, begin[i + 1] - begin[i])
    if wrong >= 0:
        raise ValueError(f"expected {where} that ascend from 0 to {size:,}, the length of the data, got "
                         f"{begin[wrong]:,} at {wrong:,}" + (f" after {begin[wrong - 1]:,}" if wrong else ""))
    return longest


cdef class Pages:
    """A batch of pages, checked, and a desk to read them at."""

    cdef const uint8_t[::1] data
    cdef const int64_t[::1] begin
    cdef Desk desk
    cdef int64_t count
    cdef const uint8_t *text

    def __cinit__(self, data: Buffer, begin: NDArray[np.int64]) -> None:
        cdef int64_t longest
        self.data = bytes_of(data)
        self.begin = checked("begin", begin, np.int64, 1)
        longest = check_begin(self.begin, self.data.shape[0], "begin")
        if longest > PAGE_BYTES_MAX:
            raise ValueError(f"a page may have up to {PAGE_BYTES_MAX:,} bytes, one has {longest:,}")
        self.count = self.begin.shape[0] - 1
        self.text = &self.data[0] if self.data.shape[0] else NULL
        if open_desk(&self.desk, longest):
            raise MemoryError(f"no memory for a page of {longest:,} bytes")

    def __dealloc__(self) -> None:
        close_desk(&self.desk)

    cdef inline int64_t read(self, int64_t page) noexcept nogil:
        """Words of a page; their hashes lie on the desk."""
        return read_words(self.text + self.begin[page], self.begin[page + 1] - self.begin[page], &self.desk)


cdef class PageKeys:
    """Keys of pages: `bands` of `rows` least 3-grams, and the least `windows` of `window` words.

    Pages that are alike share a key of a band; a page inside another one shares a window.  `seed` chooses
    which 3-grams and windows are least, so keys of two seeds, or of other bands, have nothing in common.
    """

    cdef KeyPlan plan
    cdef object steps
    cdef readonly int bands, rows, windows, window
    cdef readonly uint64_t seed

    def __init__(self, int bands=18, int rows=9, int windows=6, int window=25, uint64_t seed=0) -> None:
        cdef uint64_t first
        cdef uint32_t[::1] steps
        for name, value, least, most in (("bands", bands, 1, BINS_MAX), ("rows", rows, 1, BINS_MAX),
                                         ("windows", windows, 0, WINDOWS_MAX), ("window", window, 1, WORDS_MAX)):
            if not least <= value <= most:
                raise ValueError(f"expected {name} from {least} to {most:,}, got {value}")
        if bands * <int64_t>rows > BINS_MAX:
            raise ValueError(f"bands x rows may be up to {BINS_MAX:,}, got {bands} x {rows}")
        self.bands, self.rows, self.windows, self.window, self.seed = bands, rows, windows, window, seed
        first = mix(seed)
        self.steps = np.array([coprime_step(bin, bands * rows) for bin in range(bands * rows)], np.uint32)
        steps = self.steps
        self.plan = KeyPlan(bands, rows, windows, window, <uint32_t>mix(first + 1) | 1, <uint32_t>mix(first + 2),
                            mix(first + 3), power(window), NULL, &steps[0])

    @property
    def count(self) -> int:
        """Keys of a page."""
        return self.bands + self.windows

    def of(self, data: Buffer, begin: NDArray[np.int64]) -> PageKeysOf:
        """Keys (n, count), 128 bits of the sequence of words (n, 2), and words (n,) of n pages.

        Bands come first, then windows in ascending order of what chooses them; `NO_KEY` where a page has no
        more.  A page without a word has no key.
        """
        cdef Pages pages = Pages(data, begin)
        cdef int64_t n = pages.count, page, count
        cdef int width = self.bands + self.windows
        cdef KeyPlan plan = self.plan
        cdef object keys = np.empty((n, width), np.uint64), exact = np.empty((n, 2), np.uint64)
        cdef object words = np.empty(n, np.uint32)
        cdef uint64_t[:, ::1] key_view = keys, exact_view = exact
        cdef uint32_t[::1] word_view = words
        plan.bins = <uint32_t *>malloc(2 * sizeof(uint32_t) * <size_t>(self.bands * self.rows))
        if plan.bins == NULL:
            raise MemoryError("no memory for the bins of a page")
        with nogil:
            for page in range(n):
                count = pages.read(page)
                exact_view[page, 0], exact_view[page, 1] = pages.desk.exact[0], pages.desk.exact[1]
                word_view[page] = <uint32_t>count
                page_keys(&plan, &pages.desk, count, &key_view[page, 0])
        free(plan.bins)
        return PageKeysOf(keys, exact, words)


def coprime_step(uint32_t bin, uint32_t bins) -> int:
    """How far an empty bin looks: a step that reaches each bin, another one for most bins."""
    cdef uint32_t step
    if bins == 1:
        return 0
    step = <uint32_t>(mix(bin) % (bins - 1)) + 1
    while gcd(step, bins) != 1:
        step = step + 1 if step + 1 < bins else 1
    return step


def sets_of(data: Buffer, begin: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Distinct 3-grams of n pages, ascending, one page after the other; and where each begins (n + 1,)."""
    cdef Pages pages = Pages(data, begin)
    cdef int64_t n = pages.count, page = 0, count, used = 0, room = 0, size = 0
    cdef object grams, first = np.zeros(n + 1, np.int64)
    cdef int64_t[::1] first_view = first
    cdef uint32_t[::1] view
    # At most a word for two bytes.  Memory that is not written is not taken.
    if n:
        room = (pages.begin[n] - pages.begin[0]) // 2 + n
    grams = np.empty(room, np.uint32)
    view = grams
    with nogil:
        for page in range(n):
            count = pages.read(page)
            size = distinct(&pages.desk, find_grams(&pages.desk, count)) if count else 0
            if size:
                copy(&view[used], pages.desk.grams, size)
            used += size
            first_view[page + 1] = used
    view = None
    grams.resize(used, refcheck=False)
    return grams, first


cdef inline void copy(uint32_t *to, const uint32_t *source, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        to[i] = source[i]


def shared_grams(grams: NDArray[np.uint32], first: NDArray[np.int64], pages: NDArray[np.int64],
                 anchors: NDArray[np.int64]) -> NDArray[np.uint32]:
    """How many 3-grams each pair of pages shares, uint32 (m,); `grams` and `first` as of `sets_of`."""
    cdef const uint32_t[::1] sets = checked("grams", grams, np.uint32, 1)
    cdef const int64_t[::1] begin = checked("first", first, np.int64, 1)
    cdef const int64_t[::1] left = checked("pages", pages, np.int64, 1)
    cdef const int64_t[::1] right = checked("anchors", anchors, np.int64, 1)
    cdef int64_t m = left.shape[0], n, i, a, b, wrong = -1
    cdef object same = np.empty(m, np.uint32)
    cdef uint32_t[::1] view = same
    cdef const uint32_t *base = &sets[0] if sets.shape[0] else NULL
    check_begin(begin, sets.shape[0], "first")
    n = begin.shape[0] - 1
    if right.shape[0] != m:
        raise ValueError(f"expected an anchor for each page, got {m:,} pages and {right.shape[0]:,} anchors")
    with nogil:
        for i in range(m):
            a, b = left[i], right[i]
            if a < 0 or a >= n or b < 0 or b >= n:
                wrong = i
                break
            view[i] = <uint32_t>shared(base + begin[a], begin[a + 1] - begin[a], base + begin[b],
                                       begin[b + 1] - begin[b])
    if wrong >= 0:
        raise ValueError(f"expected pages and anchors below {n:,}, the number of sets, got {left[wrong]:,} and "
                         f"{right[wrong]:,} at {wrong:,}")
    return same


cdef class KeyTable:
    """The least value of each key that came more than once; threads may share it.

    First all keys are noted, then all are pushed with values, then they are pulled: what a key that came
    twice has does not depend on order or threads, or on pushes that come again.  A key that came once has no
    row or, rarely, one with its own value: which depends on the order of the notes.
    """

    cdef LeastRows table
    cdef object memory          # of the filters
    cdef int64_t filter_bytes

    def __cinit__(self, int64_t expected_keys, int bits_a_key=8) -> None:
        cdef int64_t shards, i
        cdef uint8_t[::1] view
        if expected_keys < 0:
            raise ValueError(f"expected_keys may not be negative, got {expected_keys:,}")
        if not 1 <= bits_a_key <= 64:
            raise ValueError(f"expected bits_a_key from 1 to 64, got {bits_a_key}")
        self.table.shard_bits = SHARD_BITS_MIN
        while (self.table.shard_bits < SHARD_BITS_MAX
               and expected_keys >> self.table.shard_bits > SHARD_KEYS):
            self.table.shard_bits += 1
        shards = 1 << self.table.shard_bits
        self.table.seen_lines = expected_keys * bits_a_key // (8 * LINE_BYTES) // shards + 1
        self.table.again_lines = self.table.seen_lines // 6 + 1
        self.filter_bytes = LINE_BYTES * shards * <int64_t>(self.table.seen_lines + self.table.again_lines)
        self.memory = private_memory(self.filter_bytes, huge=self.filter_bytes >= 1 << 22)
        view = np.frombuffer(self.memory, np.uint8)
        self.table.seen = <uint64_t *>&view[0]
        self.table.again = self.table.seen + LINE_BYTES // 8 * shards * self.table.seen_lines
        self.table.shards = <Shard *>aligned_alloc(LINE_BYTES, sizeof(Shard) * shards)
        if self.table.shards == NULL:
            raise MemoryError("no memory for the shards of a table")
        for i in range(shards):
            pthread_mutex_init(&self.table.shards[i].lock, NULL)
            self.table.shards[i].cells = NULL
            self.table.shards[i].bits = 0
            self.table.shards[i].used = 0

    def __dealloc__(self) -> None:
        cdef int64_t i
        if self.table.shards != NULL:
            for i in range(1 << self.table.shard_bits):
                free(self.table.shards[i].cells)
            free(self.table.shards)

    @property
    def rows(self) -> int:
        """Keys that have a row."""
        cdef int64_t i
        cdef uint64_t used = 0
        for i in range(1 << self.table.shard_bits):
            used += self.table.shards[i].used
        return used

    @property
    def bytes(self) -> int:
        """Memory of filters and rows."""
        cdef int64_t i
        cdef uint64_t cells = 0
        for i in range(1 << self.table.shard_bits):
            if self.table.shards[i].cells != NULL:
                cells += <uint64_t>1 << self.table.shards[i].bits
        return self.filter_bytes + sizeof(Cell) * cells

    def note(self, keys: NDArray[np.uint64]) -> None:
        """See keys: those that come again may have rows."""
        self.visit(NOTE, checked("keys", keys, np.uint64, 0), None, None)

    def push(self, keys: NDArray[np.uint64], values: NDArray[np.uint64]) -> None:
        """Keep the least value of each key that was noted more than once; all ones are no value."""
        cdef object all_keys = checked("keys", keys, np.uint64, 0), all_values = checked("values", values, np.uint64, 0)
        if all_keys.shape != all_values.shape:
            raise ValueError(f"expected a value for each key, got keys of shape {all_keys.shape} and values of "
                             f"{all_values.shape}")
        self.visit(PUSH, all_keys, all_values, None)

    def pull(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The least value of each key, in the shape of `keys`; all ones where it has no row."""
        cdef object all_keys = checked("keys", keys, np.uint64, 0)
        cdef object least = np.full(all_keys.shape, NO_KEY_, np.uint64)
        self.visit(PULL, all_keys, None, least)
        return least

    cdef int visit(self, int what, object keys, object values, object least) except -1:
        cdef const uint64_t[::1] key_view = keys.reshape(-1), value_view
        cdef uint64_t[::1] least_view
        cdef const uint64_t *value_data = NULL
        cdef uint64_t *least_data = NULL
        cdef int64_t n = key_view.shape[0], shards = 1 << self.table.shard_bits, i, at, first, count
        cdef Chosen chosen, grouped
        cdef int64_t *begin
        cdef Shard *shard
        cdef int failed = 0
        if n == 0:
            return 0
        if what == PUSH:
            value_view = values.reshape(-1)
            value_data = &value_view[0]
        if what == PULL:
            least_view = least.reshape(-1)
            least_data = &least_view[0]
        chosen.hashes, grouped.hashes = <uint64_t *>malloc(8 * n), <uint64_t *>malloc(8 * n)
        chosen.places = grouped.places = NULL
        if what != NOTE:
            chosen.places, grouped.places = <int64_t *>malloc(8 * n), <int64_t *>malloc(8 * n)
        begin = <int64_t *>malloc(8 * (shards + 1))
        if (chosen.hashes == NULL or grouped.hashes == NULL or begin == NULL
                or (what != NOTE and (chosen.places == NULL or grouped.places == NULL))):
            failed = 1
        else:
            with nogil:
                group(&self.table, &chosen, choose(&self.table, &key_view[0], n, what != NOTE, &chosen), &grouped,
                      begin)
                # Threads begin at different shards, or each would wait for the one before it.
                at = <int64_t>(mix(key_view[n - 1]) & <uint64_t>(shards - 1))
                for i in range(shards):
                    first, count = begin[at], begin[at + 1] - begin[at]
                    if count:
                        shard = self.table.shards + at
                        pthread_mutex_lock(&shard.lock)
                        if what == NOTE:
                            note_in(&self.table, grouped.hashes + first, count)
                        elif what == PUSH:
                            failed = push_in(&self.table, shard, grouped.hashes + first, grouped.places + first,
                                             count, value_data)
                        else:
                            pull_in(&self.table, shard, grouped.hashes + first, grouped.places + first, count,
                                    least_data)
                        pthread_mutex_unlock(&shard.lock)
                        if failed:
                            break
                    at = at + 1 if at + 1 < shards else 0
        free(chosen.hashes)
        free(chosen.places)
        free(grouped.hashes)
        free(grouped.places)
        free(begin)
        if failed:
            raise MemoryError(f"no memory for {n:,} more keys beside {self.rows:,} rows; what was pushed stays")
        return 0


cdef class BenchmarkWindows:
    """Lines of benchmarks: all windows of `window` words, and shorter lines as a whole, down to `shortest`.

    A line with fewer words is not searched: five words also meet by chance.  A window that several lines have
    belongs to the first one.
    """

    cdef Benchmark lines
    cdef readonly int64_t count
    cdef readonly int64_t short
    cdef readonly int window, shortest

    def __cinit__(self, data: Buffer, begin: NDArray[np.int64], int window=13, int shortest=8) -> None:
        cdef Pages pages
        cdef int64_t line, count
        if not 1 <= shortest <= window <= WORDS_MAX:
            raise ValueError(f"expected shortest from 1 to window, and window up to {WORDS_MAX:,}, got shortest="
                             f"{shortest} and window={window}")
        pages = Pages(data, begin)
        self.count, self.short, self.window, self.shortest = pages.count, 0, window, shortest
        self.lines.window, self.lines.shortest, self.lines.power = window, shortest, power(shortest)
        self.lines.longest = 0
        count = 0
        with nogil:
            for line in range(pages.count):
                count += max(0, pages.read(line) - shortest + 1)
        # Twice as many cells as windows; 64 bits of filter a window, of which two are set.
        self.lines.cell_bits = self.lines.filter_bits = 4
        while <int64_t>1 << self.lines.cell_bits < 2 * count:
            self.lines.cell_bits += 1
        while <int64_t>1 << self.lines.filter_bits < count:
            self.lines.filter_bits += 1
        self.lines.cells = <LineWindow *>calloc(<size_t>1 << self.lines.cell_bits, sizeof(LineWindow))
        self.lines.filter = <uint64_t *>calloc(<size_t>1 << self.lines.filter_bits, 8)
        self.lines.lengths = <uint8_t *>calloc(window + 1, 1)
        if self.lines.cells == NULL or self.lines.filter == NULL or self.lines.lengths == NULL:
            raise MemoryError(f"no memory for {count:,} windows of benchmarks")
        with nogil:
            for line in range(pages.count):
                count = pages.read(line)
                self.short += count < shortest
                add_line(&self.lines, pages.desk.words, count, <uint32_t>line)

    def __dealloc__(self) -> None:
        free(self.lines.cells)
        free(self.lines.filter)
        free(self.lines.lengths)

    def of(self, data: Buffer, begin: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Share of each page's words that lie inside windows (n,); pages that have something of each line."""
        cdef Pages pages = Pages(data, begin)
        cdef int64_t page, count
        cdef object overlap = np.zeros(pages.count, np.float32), hits = np.zeros(self.count, np.int64)
        cdef object stamps = np.zeros(self.count + 1, np.uint32)
        cdef float[::1] overlap_view = overlap
        cdef int64_t[::1] hit_view = hits
        cdef uint32_t[::1] stamp_view = stamps
        cdef int64_t *hit_data = &hit_view[0] if self.count else NULL
        with nogil:
            for page in range(pages.count):
                count = pages.read(page)
                if count:
                    overlap_view[page] = <float>(covered(&self.lines, &pages.desk, count, <uint32_t>page + 1,
                                                         &stamp_view[0], hit_data) / <double>count)
        return overlap, hits
