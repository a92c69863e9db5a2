# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Owns the numbering of keys: which different ones there are, and every key as its place among them.

    keys -> KeyNumbers.number -> unique keys, in the order of their first appearance; rows
    keys -> KeptNumbers.find -> rows that stay the same over batches, keys that have none yet
         -> KeptNumbers.number -> rows of these

What a key means is nobody's here.  The loop runs without the GIL and allocates nothing.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import threading

import numpy as np

cdef extern from *:
    """
    #define SNAILPS_PREFETCH_WRITE(address) __builtin_prefetch((address), 1, 3)
    #define SNAILPS_PREFETCH_READ(address) __builtin_prefetch((address), 0, 3)
    #define SNAILPS_EXCHANGE(place, value) __atomic_exchange_n((place), (value), __ATOMIC_RELAXED)
    """
    void SNAILPS_PREFETCH_WRITE(const void *address) noexcept nogil
    void SNAILPS_PREFETCH_READ(const void *address) noexcept nogil
    uint32_t SNAILPS_EXCHANGE(uint32_t *place, uint32_t value) noexcept nogil

cdef extern from *:
    """
    #include <sys/mman.h>
    #ifdef MADV_HUGEPAGE    /* a key a page otherwise: each costs a walk of the page tables, too */
    #define snailps_huge(start, size) ((void)madvise((start), (size), MADV_HUGEPAGE))
    #else
    #define snailps_huge(start, size) ((void)0)
    #endif
    """
    void snailps_huge(void *start, size_t size) noexcept nogil

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef enum:
    AHEAD = 16                  # keys whose slots are fetched before they are needed

cdef struct Slot:
    uint64_t key
    uint32_t round              # the slot is empty unless it was filled in this round
    int32_t row


cdef inline uint64_t place_of(uint64_t key, int shift) noexcept nogil:
    """Fibonacci hashing; the upper half is folded down first, which a product would lose."""
    return ((key ^ (key >> 32)) * <uint64_t>0x9E3779B97F4A7C15) >> shift


cdef int64_t number(Slot *slots, int shift, uint32_t round, const uint64_t *keys, int64_t n,
                    int64_t begin, int64_t *used, uint64_t *unique, int32_t *rows) noexcept nogil:
    """Numbers keys from `begin` on until the end, or until half of the slots are full.

    Returns how many keys have been numbered in all.  One caller a table.
    """
    cdef uint64_t mask = (<uint64_t>1 << (64 - shift)) - 1
    cdef int64_t most = (mask + 1) // 2
    cdef int64_t i, found = used[0]
    cdef uint64_t key, at
    cdef Slot *slot
    for i in range(begin, n):
        if i + AHEAD < n:
            SNAILPS_PREFETCH_WRITE(&slots[place_of(keys[i + AHEAD], shift)])
        key = keys[i]
        at = place_of(key, shift)
        while True:
            slot = &slots[at]
            if slot.round != round:
                if found == most:
                    used[0] = found
                    return i
                slot.key = key
                slot.round = round
                slot.row = <int32_t>found
                unique[found] = key
                rows[i] = <int32_t>found
                found += 1
                break
            if slot.key == key:
                rows[i] = slot.row
                break
            at = (at + 1) & mask
    used[0] = found
    return n


cdef void fill(Slot *slots, int shift, uint32_t round, const uint64_t *unique,
               int64_t used) noexcept nogil:
    """Puts keys that are known to differ into an empty table."""
    cdef uint64_t mask = (<uint64_t>1 << (64 - shift)) - 1
    cdef uint64_t at
    cdef int64_t i
    for i in range(used):
        at = place_of(unique[i], shift)
        while slots[at].round == round:
            at = (at + 1) & mask
        slots[at].key = unique[i]
        slots[at].round = round
        slots[at].row = <int32_t>i


cdef class KeyNumbers:
    """Numbers the keys of one batch after another; keeps its hash table between them.

    Notes
    -----
    The table has 16 bytes a slot and at most every second one full: 32 to 64 bytes a different key
    of the largest batch.  Calls from several threads take turns.
    """

    cdef Slot *slots
    cdef int bits
    cdef uint32_t round
    cdef object lock

    def __cinit__(self):
        self.lock = threading.Lock()
        self.slots = NULL
        self.make(12)

    def __dealloc__(self):
        free(self.slots)

    cdef int make(self, int bits) except -1:
        cdef Slot *slots = <Slot *>calloc(<size_t>1 << bits, sizeof(Slot))
        if slots == NULL:
            raise MemoryError(f"no memory for a table of 2^{bits} keys")
        free(self.slots)
        self.slots = slots
        self.bits = bits
        self.round = 0
        return 0

    def number(self, const uint64_t[::1] keys not None):
        """The different keys and every key's place among them.

        Parameters
        ----------
        keys : uint64 array (n,)
            n below 2^31.

        Returns
        -------
        unique : uint64 array (u,)
            In the order of their first appearance.
        rows : int32 array (n,)
            ``unique[rows]`` are the keys.

        Raises
        ------
        ValueError
            There are 2^31 keys or more.

        Notes
        -----
        One cache line a key, fetched ahead.
        """
        cdef int64_t n = keys.shape[0], done = 0, used = 0
        cdef uint64_t[::1] unique
        cdef int32_t[::1] rows
        if n >= <int64_t>1 << 31:
            raise ValueError(f"expected fewer than 2^31 keys, got {n}")
        unique_array, row_array = np.empty(n, np.uint64), np.empty(n, np.int32)
        if n == 0:
            return unique_array, row_array
        unique, rows = unique_array, row_array
        with self.lock:
            if self.round == 0xFFFFFFFF:
                self.make(self.bits)    # rounds begin anew, with empty slots
            self.round += 1
            while True:
                with nogil:
                    done = number(self.slots, 64 - self.bits, self.round, &keys[0], n, done,
                                  &used, &unique[0], &rows[0])
                if done == n:
                    break
                self.make(self.bits + 1)
                self.round = 1
                with nogil:
                    fill(self.slots, 64 - self.bits, self.round, &unique[0], used)
        return unique_array[:used].copy(), row_array


cdef int64_t look(Slot *slots, int shift, uint32_t round, const uint64_t *keys, int64_t n,
                  int32_t *rows, int32_t *missing, int32_t *touched,
                  int64_t *touch_num) noexcept nogil:
    """Numbers of the keys that a table knows, -1 of others; returns how many others there are.

    A slot is empty if its row is -1; its round tells whether the key came in this round already.
    Several threads may look at once: who changes a round first has touched that key.
    """
    cdef uint64_t mask = (<uint64_t>1 << (64 - shift)) - 1
    cdef int64_t i, lacks = 0, count = 0
    cdef uint64_t key, at
    cdef Slot *slot
    for i in range(n):
        if i + AHEAD < n:
            SNAILPS_PREFETCH_READ(&slots[place_of(keys[i + AHEAD], shift)])
        key = keys[i]
        at = place_of(key, shift)
        while slots[at].row >= 0 and slots[at].key != key:
            at = (at + 1) & mask
        slot = &slots[at]
        rows[i] = slot.row
        if slot.row < 0:
            missing[lacks] = <int32_t>i
            lacks += 1
        elif slot.round != round and SNAILPS_EXCHANGE(&slot.round, round) != round:
            touched[count] = slot.row
            count += 1
    touch_num[0] = count
    return lacks


cdef int64_t grow(Slot *slots, int shift, uint32_t round, const uint64_t *keys,
                  const int32_t *missing, int64_t n, int64_t begin, int64_t most, int64_t *known,
                  uint64_t *new, int32_t *rows) noexcept nogil:
    """Numbers those keys that were missing, from `begin` on.

    Returns how many have been numbered in all: fewer than n where `most` keys are known.
    """
    cdef uint64_t mask = (<uint64_t>1 << (64 - shift)) - 1
    cdef int64_t i, found = known[0], first = known[0]
    cdef uint64_t key, at
    for i in range(begin, n):
        if i + AHEAD < n:
            SNAILPS_PREFETCH_WRITE(&slots[place_of(keys[missing[i + AHEAD]], shift)])
        key = keys[missing[i]]
        at = place_of(key, shift)
        while slots[at].row >= 0 and slots[at].key != key:
            at = (at + 1) & mask
        if slots[at].row < 0:
            if found == most:
                known[0] = found
                return i
            slots[at].key = key
            slots[at].row = <int32_t>found
            slots[at].round = round
            new[found - first] = key
            found += 1
        rows[missing[i]] = slots[at].row
    known[0] = found
    return n


cdef class KeptNumbers:
    """Numbers keys for good: a key keeps its number over all batches.

    Parameters
    ----------
    most : int
        How many keys there may be, below 2^30.

    Notes
    -----
    The table has 16 bytes a slot and three slots of four full at most, so 21 to 43 bytes a key.
    Several threads may call `find` at once; nobody else may call anything meanwhile.
    """

    cdef Slot *slots
    cdef int bits
    cdef uint32_t round
    cdef int64_t most, known

    def __cinit__(self, int64_t most):
        if not 0 < most < <int64_t>1 << 30:
            raise ValueError(f"expected room for 1 to 2^30 - 1 keys, got {most}")
        self.slots = NULL
        self.most = most
        self.round = 1
        self.make(16)

    def __dealloc__(self):
        free(self.slots)

    def __len__(self):
        return self.known

    cdef int make(self, int bits) except -1:
        """A table of 2^bits slots, with what the old one knows."""
        cdef Slot *slots = NULL
        cdef Slot *slot
        cdef Slot *old
        cdef size_t size = (<size_t>1 << bits) * sizeof(Slot)
        cdef uint64_t mask = (<uint64_t>1 << bits) - 1, at
        cdef int64_t i, count = <int64_t>1 << bits
        if posix_memalign(<void **>&slots, max(<size_t>4096, min(size, <size_t>2 << 20)), size):
            raise MemoryError(f"no memory for a table of 2^{bits} keys")
        snailps_huge(slots, size)
        with nogil:
            for i in range(count):
                slots[i].key = 0
                slots[i].row = -1
                slots[i].round = 0
            if self.slots != NULL:
                for i in range(<int64_t>1 << self.bits):
                    old = &self.slots[i]
                    if old.row < 0:
                        continue
                    at = place_of(old.key, 64 - bits)
                    while slots[at].row >= 0:
                        at = (at + 1) & mask
                    slots[at] = old[0]
            free(self.slots)
        self.slots = slots
        self.bits = bits
        return 0

    def begin_round(self):
        """From here on every key is touched anew."""
        self.round += 1

    def find(self, const uint64_t[::1] keys not None):
        """Numbers of the keys that are known.

        Parameters
        ----------
        keys : uint64 array (n,)
            n below 2^31.

        Returns
        -------
        rows : int32 array (n,)
            -1 where a key is not known.
        missing : int32 array
            The places of those.
        touched : int32 array
            Numbers of known keys that came in this round for the first time.
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
            lacks = look(self.slots, 64 - self.bits, self.round, &keys[0], n, &rows[0],
                         &missing[0], &touched[0], &touch_num)
        return row_array, missing_array[:lacks].copy(), touched_array[:touch_num].copy()

    def number(self, const uint64_t[::1] keys not None, const int32_t[::1] missing not None,
               int32_t[::1] rows not None):
        """Gives keys that `find` did not know numbers, and writes these to `rows`.

        They are touched in this round.

        Returns
        -------
        new : uint64 array
            The different ones: they got the next numbers, in this order.
        fitted : bool
            Whether all have a number.  If not, there is no room for more, and `rows` is not to be
            used.
        """
        cdef int64_t n = missing.shape[0], done = 0, begin, first = self.known, most
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
            most = min(self.most, (<int64_t>3 << self.bits) // 4)
            begin = self.known
            with nogil:
                done = grow(self.slots, 64 - self.bits, self.round, &keys[0], &missing[0], n,
                            done, most, &self.known, &new[begin - first], &rows[0])
            if done == n or most == self.most:
                break
            self.make(self.bits + 1)
        return new_array[:self.known - first].copy(), done == n


_local = threading.local()


def number_keys(keys):
    """`KeyNumbers.number` with a table of the calling thread's own.

    Parameters
    ----------
    keys : uint64 array (n,)

    Returns
    -------
    unique : uint64 array (u,)
    rows : int32 array (n,)
    """
    try:
        table = _local.table
    except AttributeError:
        table = _local.table = KeyNumbers()
    return table.number(keys)
