# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Numbers keys: the different ones, and each key's place among them.

    keys -> KeyNumbers.number -> unique keys, in the order of their first appearance; rows
    columns of keys -> KeyNumbers.number_columns -> the same of each column, one after another
    words -> WordNumbers.number -> the same for numbers below a bound, by a table of all of them
    keys -> KeptNumbers.find -> rows that stay the same over batches, keys that have none yet
         -> KeptNumbers.number -> rows of these

`KeyNumbers` has a hash table for one batch, whose slots are numbers of 4 bytes, so that more of them fit
into a near cache.  `KeptNumbers` has the keys themselves in its slots, and an array indexed by key for
small keys, such as columns of a matrix.  Must not know what a key means.  The loops run without the GIL and
allocate nothing.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

import threading

import numpy as np

from snailps.abi._prefetch cimport fetch, fetch_to_write
from snailps.abi._table_hash cimport table_hash

from snailps.abi.memory import private_memory

cdef extern from *:
    """
    #include <stdlib.h>
    #include <sys/mman.h>
    #ifdef MADV_HUGEPAGE    /* else each look-up hits another page, and walks the page tables too */
    #define snail_huge(start, size) ((void)madvise((start), (size), MADV_HUGEPAGE))
    #else
    #define snail_huge(start, size) ((void)0)
    #endif
    #define snail_set(place, bits) __atomic_fetch_or((place), (bits), __ATOMIC_RELAXED)
    """
    int posix_memalign(void **taken, size_t alignment, size_t size) nogil
    void huge "snail_huge"(void *start, size_t size) noexcept nogil
    uint64_t set_bits "snail_set"(uint64_t *place, uint64_t bits) noexcept nogil

cdef enum:
    AHEAD = 32                  # slots are prefetched so many keys before they are needed
    AHEAD_KEPT = 64             # the same for keys that are only looked up
    BITS_OF_BATCH = 12          # least size of a batch's table, as a power of two
    BITS_KEPT = 16              # first size of a table that is kept
    LOW_BITS = 22               # keys below 2^22 have their rows in a table by key: 16 MiB
    PAGE = 4096
    HUGE_PAGE = 2 << 20

cdef struct Slot:
    uint64_t key
    int64_t row                 # + 1; 0: an empty slot

cdef struct Table:
    Slot *slots                 # 2^bits of them
    uint64_t mask               # 2^bits - 1
    int bits


cdef inline uint64_t home_of(const Table *table, uint64_t key) noexcept nogil:
    """The first slot of a search."""
    return table_hash(key) >> (64 - table.bits)


cdef inline bint search(const Table *table, uint64_t key, Slot **found) noexcept nogil:
    """Whether a key is in the table; its slot, or the empty one where it belongs."""
    cdef uint64_t at = home_of(table, key)
    cdef Slot *slot
    while True:
        slot = &table.slots[at]
        found[0] = slot
        if slot.row == 0:
            return False
        if slot.key == key:
            return True
        at = (at + 1) & table.mask


cdef inline uint64_t place_of(uint64_t key, int bits) noexcept nogil:
    """Return the first slot of a search among 2^bits slots."""
    return table_hash(key) >> (64 - bits)


cdef int64_t add_all(uint32_t *slots, int bits, const uint64_t *keys, int64_t n, int64_t begin,
                     int64_t most, int64_t *known, uint64_t *unique, int32_t *rows,
                     int32_t first) noexcept nogil:
    """Number keys from `begin` on; append new ones to `unique`; rows are numbers + `first`.

    A slot holds a number + 1, or 0 if it is empty.  Returns how many keys are numbered in all: fewer than
    n if there are `most` different ones, and the caller has to enlarge the table.
    """
    cdef uint64_t mask = (<uint64_t>1 << bits) - 1, at, key
    cdef int64_t found = known[0], i
    cdef uint32_t slot
    for i in range(begin, n):
        if i + AHEAD < n:
            fetch_to_write(&slots[place_of(keys[i + AHEAD], bits)])
        key = keys[i]
        at = place_of(key, bits)
        slot = slots[at]
        while slot != 0 and unique[slot - 1] != key:
            at = (at + 1) & mask
            slot = slots[at]
        if slot == 0:
            if found == most:
                known[0] = found
                return i
            unique[found] = key
            found += 1
            slot = <uint32_t>found
            slots[at] = slot
        rows[i] = first + <int32_t>(slot - 1)
    known[0] = found
    return n


cdef void put_all(uint32_t *slots, int bits, const uint64_t *unique, int64_t n) noexcept nogil:
    """Put distinct keys into an empty table; their numbers are their places in `unique`."""
    cdef uint64_t mask = (<uint64_t>1 << bits) - 1, at
    cdef int64_t i
    for i in range(n):
        if i + AHEAD < n:
            fetch_to_write(&slots[place_of(unique[i + AHEAD], bits)])
        at = place_of(unique[i], bits)
        while slots[at] != 0:
            at = (at + 1) & mask
        slots[at] = <uint32_t>(i + 1)


cdef int64_t add_kept(const Table *shared, int32_t *low, uint64_t *touched, const uint64_t *keys,
                      const int32_t *places, int64_t n, int64_t begin, int64_t most, int64_t room,
                      int64_t *known, int64_t *hashed, uint64_t *new, int32_t *rows) noexcept nogil:
    """Number keys[places[i]] as `add_all` does; at most `room` of them (`hashed`) are in the hash table.

    One caller at a time: nobody else may read the table meanwhile.
    """
    cdef Table table = shared[0]
    cdef int64_t first = known[0], found = first, i, at
    cdef uint64_t key
    cdef Slot *slot
    for i in range(begin, n):
        if i + AHEAD < n:
            key = keys[places[i + AHEAD]]
            if key < <uint64_t>1 << LOW_BITS:
                fetch_to_write(&low[key])
            else:
                fetch_to_write(&table.slots[home_of(&table, key)])
        at = places[i]
        key = keys[at]
        if key < <uint64_t>1 << LOW_BITS:
            if low[key]:
                rows[at] = low[key] - 1
                continue
            if found == most:
                break
            low[key] = <int32_t>found + 1
        else:
            if search(&table, key, &slot):
                rows[at] = <int32_t>(slot.row - 1)
                continue
            if found == most or hashed[0] == room:
                break
            slot.key = key
            slot.row = found + 1
            hashed[0] += 1
        touched[found >> 6] |= <uint64_t>1 << (found & 63)
        new[found - first] = key
        rows[at] = <int32_t>found
        found += 1
    else:
        i = n
    known[0] = found
    return i


cdef int64_t find_kept(const Table *shared, const int32_t *low, uint64_t *touched,
                       const uint64_t *keys, int64_t n, int32_t *rows, int32_t *missing,
                       int32_t *first, int64_t *first_num) noexcept nogil:
    """Rows of known keys, -1 for others; returns how many others there are.

    Threads may search at the same time.  The one that sets a row's bit in `touched` reports the row in
    `first`, so each row is reported once a period.  Frequent rows have low numbers, so their bits are in
    the nearest cache.
    """
    cdef Table table = shared[0]
    cdef int64_t i, lacks = 0, count = 0
    cdef uint64_t key, bit
    cdef Slot *slot
    cdef int32_t row
    for i in range(n):
        if i + AHEAD_KEPT < n:
            key = keys[i + AHEAD_KEPT]
            if key < <uint64_t>1 << LOW_BITS:
                fetch(&low[key])
            else:
                fetch(&table.slots[home_of(&table, key)])
        key = keys[i]
        if key < <uint64_t>1 << LOW_BITS:
            row = low[key] - 1
        else:
            search(&table, key, &slot)
            row = <int32_t>(slot.row - 1)
        rows[i] = row
        if row < 0:
            missing[lacks] = <int32_t>i
            lacks += 1
            continue
        bit = <uint64_t>1 << (row & 63)
        if not touched[row >> 6] & bit and not set_bits(&touched[row >> 6], bit) & bit:
            first[count] = row
            count += 1
    first_num[0] = count
    return lacks


cdef int resize(Table *table, int bits) except -1:
    """Give a table 2^bits slots, keeping its keys."""
    cdef Table old = table[0]
    cdef Slot *slot
    cdef void *memory = NULL
    cdef size_t size = (<size_t>1 << bits) * sizeof(Slot)
    cdef int64_t i
    if posix_memalign(&memory, HUGE_PAGE if size >= HUGE_PAGE else PAGE, size):
        raise MemoryError(f"no memory for a table of 2^{bits} keys")
    huge(memory, size)
    with nogil:
        memset(memory, 0, size)
        table.slots = <Slot *>memory
        table.bits = bits
        table.mask = (<uint64_t>1 << bits) - 1
        if old.slots != NULL:
            for i in range(<int64_t>1 << old.bits):
                if old.slots[i].row:
                    search(table, old.slots[i].key, &slot)
                    slot[0] = old.slots[i]
            free(old.slots)
    return 0


cdef class KeyNumbers:
    """Numbers the keys of one batch after another; threads that call it at the same time take turns.

    The table has 4 bytes a slot and begins with 4 to 8 slots for each key that the batch is expected to
    have: as many different ones as the batch before, and a quarter more.  It grows when half full.  So it
    takes 8 to 32 bytes for each different key of the largest batch.
    """

    cdef uint32_t *slots
    cdef int64_t room               # of `slots`
    cdef int64_t before             # different keys of the batch before
    cdef object lock

    def __cinit__(self):
        self.lock = threading.Lock()

    def __dealloc__(self):
        free(self.slots)

    cdef int empty(self, int bits) except -1:
        """Make a table of 2^bits empty slots."""
        cdef void *memory = NULL
        cdef size_t size = (<size_t>1 << bits) * 4
        if <int64_t>1 << bits > self.room:
            if posix_memalign(&memory, HUGE_PAGE if size >= HUGE_PAGE else PAGE, size):
                raise MemoryError(f"no memory for a table of 2^{bits} keys")
            huge(memory, size)
            free(self.slots)
            self.slots = <uint32_t *>memory
            self.room = <int64_t>1 << bits
        with nogil:
            memset(self.slots, 0, size)
        return 0

    cdef int64_t add(self, const uint64_t *keys, int64_t n, uint64_t *unique, int32_t *rows,
                     int32_t first) except -1:
        """Number keys while the lock is held; how many different ones there are."""
        cdef int64_t done = 0, used = 0
        cdef int64_t likely = min(n, max(self.before + (self.before >> 2), 1 << (BITS_OF_BATCH - 1)))
        cdef int bits = 4
        while <int64_t>1 << (bits - 2) < likely:
            bits += 1
        self.empty(bits)
        while True:
            with nogil:
                done = add_all(self.slots, bits, keys, n, done, <int64_t>1 << (bits - 1), &used,
                               unique, rows, first)
            if done == n:
                break
            bits += 1
            self.empty(bits)
            with nogil:
                put_all(self.slots, bits, unique, used)
        self.before = used
        return used

    def number(self,
               const uint64_t[::1] keys not None) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """The different keys (uint64 (u,)), in order of first appearance, and rows (int32 (n,)).

        ``unique[rows]`` are the keys, fewer than 2^31.
        """
        cdef int64_t n = keys.shape[0], used
        cdef uint64_t[::1] unique
        cdef int32_t[::1] rows
        if n >= <int64_t>1 << 31:
            raise ValueError(f"expected fewer than 2^31 keys, got {n}")
        unique_array, row_array = np.empty(n, np.uint64), np.empty(n, np.int32)
        if n == 0:
            return unique_array, row_array
        unique, rows = unique_array, row_array
        with self.lock:
            used = self.add(&keys[0], n, &unique[0], &rows[0], 0)
        return shortened(unique_array, used), row_array

    def number_columns(self,
                       const uint64_t[:, :] keys not None) -> tuple[
            NDArray[np.uint64], list[int], NDArray[np.int32]]:
        """The different keys of each column of keys (n, c), and rows among those of all columns.

        `unique` has those of each column in order of first appearance, which begin at c + 1 `starts`;
        ``unique[rows]`` are the keys: equal keys of two columns have two places.
        """
        cdef int64_t n = keys.shape[0], columns = keys.shape[1], i, c, used = 0
        cdef uint64_t[::1] unique, column
        cdef int32_t[:, ::1] rows
        cdef int32_t[::1] row
        if n * columns >= <int64_t>1 << 31:
            raise ValueError(f"expected fewer than 2^31 keys, got {n * columns}")
        unique_array, row_array = np.empty(n * columns, np.uint64), np.empty((n, columns), np.int32)
        starts = [0] * (columns + 1)
        if n == 0 or columns == 0:
            return unique_array, starts, row_array
        unique, rows = unique_array, row_array
        column, row = np.empty(n, np.uint64), np.empty(n, np.int32)
        with self.lock:
            for c in range(columns):
                for i in range(n):
                    column[i] = keys[i, c]
                used += self.add(&column[0], n, &unique[used], &row[0], <int32_t>used)
                for i in range(n):
                    rows[i, c] = row[i]
                starts[c + 1] = used
        return shortened(unique_array, used), starts, row_array


cdef shortened(array, int64_t used):
    """The first `used` values, copied if the array is much larger."""
    return array[:used] if 2 * used >= array.shape[0] else array[:used].copy()


cdef class KeptNumbers:
    """Numbers at most `most` keys permanently: a key keeps its number over all batches.

    The hash table has 16 bytes a slot and is at most 3/4 full: 21 to 43 bytes a key.  Keys below 2^22 take
    4 bytes each, up to the largest one seen.  Threads may call `find` and `touch` at the same time; while
    `number` or `begin_period` runs nobody may call anything else.
    """

    cdef Table table
    cdef int32_t[::1] low           # by small key: its row + 1, or 0
    cdef uint64_t[::1] touched      # by row, a bit: it was used in this push period
    cdef int64_t most, known, hashed

    def __cinit__(self, int64_t most):
        if not 0 < most < <int64_t>1 << 30:
            raise ValueError(f"expected room for 1 to 2^30 - 1 keys, got {most}")
        self.most = most
        resize(&self.table, BITS_KEPT)
        self.low = np.frombuffer(private_memory(4 << LOW_BITS), np.int32)
        self.touched = np.frombuffer(private_memory((most + 63) // 64 * 8), np.uint64)

    def __dealloc__(self):
        free(self.table.slots)

    def __len__(self):
        return self.known

    def begin_period(self) -> None:
        """Begin a push period: mark every key as not touched."""
        memset(&self.touched[0], 0, ((self.known + 63) // 64) * sizeof(uint64_t))

    def find(self,
             const uint64_t[::1] keys not None) -> tuple[
            NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Numbers of keys (-1: unknown), places of the unknown ones, numbers first touched this period.

        All int32; fewer than 2^31 keys.
        """
        cdef int64_t n = keys.shape[0], lacks, touch_num = 0
        cdef int32_t[::1] rows, missing, touched
        if n >= <int64_t>1 << 31:
            raise ValueError(f"expected fewer than 2^31 keys, got {n}")
        row_array, missing_array, touched_array = (np.empty(n, np.int32) for _ in range(3))
        if n == 0:
            return row_array, missing_array, touched_array
        rows, missing, touched = row_array, missing_array, touched_array
        with nogil:
            lacks = find_kept(&self.table, &self.low[0], &self.touched[0], &keys[0], n, &rows[0],
                              &missing[0], &touched[0], &touch_num)
        return row_array, missing_array[:lacks].copy(), touched_array[:touch_num].copy()

    def touch(self, const int32_t[::1] rows not None) -> NDArray[np.int32]:
        """Which of these numbers, each below ``len(self)``, are first touched this period, int32.

        Threads may call it at the same time.
        """
        cdef int64_t n = rows.shape[0], count = 0, i
        cdef uint64_t bit
        cdef int32_t row
        cdef bint wrong = False
        array = np.empty(n, np.int32)
        cdef int32_t[::1] first = array
        with nogil:
            for i in range(n):
                row = rows[i]
                if row < 0 or row >= self.known:
                    wrong = True
                    break
                bit = <uint64_t>1 << (row & 63)
                if not self.touched[row >> 6] & bit and not set_bits(&self.touched[row >> 6], bit) & bit:
                    first[count] = row
                    count += 1
        if wrong:
            raise ValueError(f"expected numbers of 0 to {self.known - 1}")
        return array[:count].copy()

    def number(self, const uint64_t[::1] keys not None, const int32_t[::1] missing not None,
               int32_t[::1] rows not None) -> tuple[NDArray[np.uint64], bool]:
        """Number the keys that `find` did not know (`missing`), write their numbers to `rows`, touch them.

        Returns the different new keys, which get the next numbers in this order, and whether there was
        room for all; if not, `rows` is undefined.
        """
        cdef int64_t n = missing.shape[0], done = 0, before, first = self.known, room
        cdef uint64_t[::1] new
        if rows.shape[0] != keys.shape[0]:
            raise ValueError(f"expected room for {keys.shape[0]} numbers, got {rows.shape[0]}")
        new_array = np.empty(n, np.uint64)
        if n == 0:
            return new_array, True
        if np.min(missing) < 0 or np.max(missing) >= keys.shape[0]:
            raise ValueError(f"missing must be places of the {keys.shape[0]} keys")
        new = new_array
        while True:
            room = (<int64_t>3 << self.table.bits) // 4
            before = self.known
            with nogil:
                done = add_kept(&self.table, &self.low[0], &self.touched[0], &keys[0], &missing[0], n,
                                done, self.most, room, &self.known, &self.hashed,
                                &new[before - first], &rows[0])
            if done == n or self.known == self.most:
                break
            resize(&self.table, self.table.bits + 1)
        return new_array[:self.known - first].copy(), done == n


cdef class WordNumbers:
    """Numbers words below `bound` by an array with 4 bytes for each; one call at a time.

    In order of first appearance, without sorting: frequent words get low numbers.
    """

    cdef object _places         # all -1 between calls

    def __init__(self, bound: int):
        self._places = np.full(bound, -1, np.int32)

    def number(self, const int32_t[::1] first not None,
               const int32_t[::1] second not None) -> tuple[
            NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """The different words of two arrays (int32), by first appearance, and the places of each word."""
        one, two = np.empty(first.shape[0], np.int32), np.empty(second.shape[0], np.int32)
        return self.number_into(first, one, second, two), one, two

    def number_in_place(self, int32_t[::1] words not None) -> NDArray[np.int32]:
        """Replace words by their places among the different ones, which are returned (see `number`).

        ValueError: a word is out of range; `words` is then partly replaced.
        """
        return self.number_into(words, words, words[:0], words[:0]).copy()

    cdef object number_into(self, const int32_t[::1] first, int32_t[::1] of_first,
                            const int32_t[::1] second, int32_t[::1] of_second):
        cdef int32_t[::1] places = self._places
        cdef int64_t bound = places.shape[0], known = 0, i
        different = np.empty(min(bound, first.shape[0] + second.shape[0]), np.int32)
        cdef int32_t[::1] words = different
        cdef bint right
        with nogil:
            right = number_words(first, places, bound, words, of_first, &known)
            right = right and number_words(second, places, bound, words, of_second, &known)
            for i in range(known):
                places[words[i]] = -1
        if not right:
            given = np.concatenate((first, second))
            bad = given[(given < 0) | (given >= bound)][0]
            raise ValueError(f"expected words below {bound}, got {bad}")
        return different[:known]


cdef bint number_words(const int32_t[::1] given, int32_t[::1] places, int64_t bound,
                       int32_t[::1] words, int32_t[::1] out, int64_t *known) noexcept nogil:
    """Append new words to those known; False: it stopped at a word out of range."""
    cdef int64_t n = given.shape[0], found = known[0], i
    cdef int32_t word, place
    for i in range(n):
        if i + AHEAD < n:           # an address outside is harmless
            fetch_to_write(&places[0] + given[i + AHEAD])
        word = given[i]
        if word < 0 or word >= bound:
            break
        place = places[word]
        if place < 0:
            place = <int32_t>found
            places[word] = place
            words[found] = word
            found += 1
        out[i] = place
    else:
        i = n
    known[0] = found
    return i == n


def renumber(int32_t[::1] numbers not None, const int32_t[::1] places not None) -> None:
    """Replace each number by ``places[number]``, in place.

    ValueError: a number is out of range; those before it are then replaced.
    """
    cdef int64_t i, n = numbers.shape[0], bound = places.shape[0]
    with nogil:
        for i in range(n):
            if numbers[i] < 0 or numbers[i] >= bound:
                break
            numbers[i] = places[numbers[i]]
        else:
            i = n
    if i < n:
        raise ValueError(f"expected numbers below {bound}, got {numbers[i]}")


_local = threading.local()


cdef KeyNumbers own_table():
    try:
        return _local.table
    except AttributeError:
        _local.table = KeyNumbers()
        return _local.table


def number_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """`KeyNumbers.number` with a table of the calling thread's own."""
    return own_table().number(keys)


def number_columns(keys: NDArray[np.uint64]) -> tuple[
        NDArray[np.uint64], list[int], NDArray[np.int32]]:
    """`KeyNumbers.number_columns` with a table of the calling thread's own."""
    return own_table().number_columns(keys)
