# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The admission of features that occur often enough: a counting Bloom filter.

    keys -> Admission.count -> verdict, a bit per counter -> Admitted.admit -> which keys may pass

A key has four counters of one byte, one in each quarter of a cache line.  Counting raises only the lowest
of the four, so the least of them is never below the key's count: **a key that occurred often enough is
never refused**.  A rare one may pass, if its counters are shared.  Must not know features.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t

import threading

import numpy as np

from snailps.abi._key_hash cimport hash_key
from snailps.errors import DataError

cdef extern from *:
    """
    #define SNAILPS_PREFETCH(address) __builtin_prefetch((address), 0, 3)
    #define SNAILPS_PREFETCH_WRITE(address) __builtin_prefetch((address), 1, 3)
    """
    void SNAILPS_PREFETCH(const void *address) noexcept nogil
    void SNAILPS_PREFETCH_WRITE(const void *address) noexcept nogil

cdef enum:
    LINE_BYTES = 64
    AHEAD = 16                  # keys whose lines are fetched before they are needed
    BYTES_A_KEY = 8             # counters: two in each quarter of a line

MIN_COUNT_MAX = 255
LINES_MAX = 1 << 28
MAGIC = b"SNAV"
VERSION = 1


cdef inline uint8_t *line_of(uint8_t *counters, uint64_t lines, uint64_t hashed) noexcept nogil:
    return counters + LINE_BYTES * (((hashed >> 32) * lines) >> 32)


cdef inline uint8_t least_of(const uint8_t *line, uint64_t hashed) noexcept nogil:
    cdef uint8_t a = min(line[hashed & 15], line[16 + ((hashed >> 4) & 15)])
    cdef uint8_t b = min(line[32 + ((hashed >> 8) & 15)], line[48 + ((hashed >> 12) & 15)])
    return min(a, b)


cdef void count_keys(uint8_t *counters, uint64_t lines, const uint64_t *keys,
                     int64_t n) noexcept nogil:
    """Count keys; one writer at a time."""
    cdef int64_t i
    cdef uint64_t hashed
    cdef uint8_t *line
    cdef uint8_t least
    for i in range(n):
        if i + AHEAD < n:
            SNAILPS_PREFETCH_WRITE(line_of(counters, lines, hash_key(keys[i + AHEAD])))
        hashed = hash_key(keys[i])
        line = line_of(counters, lines, hashed)
        least = least_of(line, hashed)
        if least == 255:
            continue
        line[hashed & 15] += line[hashed & 15] == least
        line[16 + ((hashed >> 4) & 15)] += line[16 + ((hashed >> 4) & 15)] == least
        line[32 + ((hashed >> 8) & 15)] += line[32 + ((hashed >> 8) & 15)] == least
        line[48 + ((hashed >> 12) & 15)] += line[48 + ((hashed >> 12) & 15)] == least


cdef void judge_bits(const uint64_t *words, uint64_t lines, const uint64_t *keys, int64_t n,
                     uint8_t *out) noexcept nogil:
    """Whether all four counters of each key are high enough, by a bit per counter."""
    cdef int64_t i
    cdef uint64_t hashed, word, wanted
    for i in range(n):
        if i + AHEAD < n:
            hashed = hash_key(keys[i + AHEAD])
            SNAILPS_PREFETCH(&words[((hashed >> 32) * lines) >> 32])
        hashed = hash_key(keys[i])
        word = words[((hashed >> 32) * lines) >> 32]
        wanted = ((<uint64_t>1 << (hashed & 15)) | (<uint64_t>65536 << ((hashed >> 4) & 15))
                  | (<uint64_t>1 << (32 + ((hashed >> 8) & 15)))
                  | (<uint64_t>1 << (48 + ((hashed >> 12) & 15))))
        out[i] = (word & wanted) == wanted


cdef class Admission:
    """Counts keys, for those that occur at least `min_count` (1 to 255) times; threads take turns.

    Takes 8 bytes for each of `keys_expected` different keys, at most 16 GiB.  Of the keys that occur once,
    1 in 100 passes a `min_count` of 2, and 1 in 10,000 one of 3 or more.  With four times as many different
    keys as expected it is 1 in 3 and 1 in 100.

    References: L. Fan et al., ToN 2000 (counting); F. Putze, P. Sanders, J. Singler, WEA 2007 (one
    cache line a key); C. Estan, G. Varghese, SIGCOMM 2002 (raising only the lowest).
    """

    cdef readonly int min_count
    cdef readonly int64_t lines
    cdef readonly int64_t counted
    cdef object array
    cdef uint8_t[::1] view
    cdef uint8_t *counters
    cdef object lock

    def __cinit__(self, int min_count, keys_expected: int):
        if not 1 <= min_count <= MIN_COUNT_MAX:
            raise ValueError(f"expected min_count of 1 to {MIN_COUNT_MAX}, got {min_count}")
        if keys_expected < 1:
            raise ValueError(f"expected keys_expected of at least 1, got {keys_expected}")
        self.lock = threading.Lock()
        self.min_count = min_count
        self.lines = min(LINES_MAX, -(-keys_expected * BYTES_A_KEY // LINE_BYTES))
        # One line more than needed, so that the first can begin where a cache line does.
        self.array = np.zeros((self.lines + 1) * LINE_BYTES, np.uint8)
        self.view = self.array
        skip = -(<size_t>&self.view[0]) % LINE_BYTES
        self.array = self.array[skip:skip + self.lines * LINE_BYTES]
        self.view = self.array
        self.counters = &self.view[0]

    def count(self, const uint64_t[::1] keys not None) -> None:
        """Count every key once."""
        cdef int64_t n = keys.shape[0]
        if n:
            with self.lock:
                with nogil:
                    count_keys(self.counters, self.lines, &keys[0], n)
                self.counted += n

    def verdict(self) -> bytes:
        """The bytes for `Admitted`, an eighth of the counters' size.

        Little endian: ``SNAV``, uint32 version (1), uint32 min_count, uint32 lines; then a bit per
        counter, the lowest first: whether it is at least `min_count`.
        """
        with self.lock:
            bits = np.packbits(self.array >= self.min_count, bitorder="little")
        numbers = np.array([VERSION, self.min_count, self.lines], "<u4")
        return MAGIC + numbers.tobytes() + bits.tobytes()


cdef class Admitted:
    """The keys that an `Admission` admits, from its `verdict`; any number of threads may ask.

    DataError: the bytes, which come from another process, are malformed.
    """

    cdef readonly int64_t lines
    cdef const uint64_t[::1] words

    def __cinit__(self, part: bytes):
        part = bytes(part)
        if len(part) < 16:
            raise refusal(part, "expected a header of 16 bytes")
        lines = int.from_bytes(part[12:16], "little")
        head = MAGIC + VERSION.to_bytes(4, "little")
        if part[:8] != head:
            raise refusal(part, f"expected them to begin with {head!r}, got {part[:8]!r}")
        if not 1 <= lines <= LINES_MAX or len(part) != 16 + 8 * lines:
            raise refusal(part, f"{lines} lines of counters do not have {len(part) - 16} bytes")
        self.lines = lines
        self.words = np.frombuffer(part, "<u8", lines, 16)

    def admit(self, const uint64_t[::1] keys not None) -> NDArray[np.bool_]:
        """Which keys occurred at least `min_count` times (and a few more): bool, one per key."""
        cdef int64_t n = keys.shape[0]
        cdef uint8_t[::1] out
        admitted = np.empty(n, np.bool_)
        if n:
            out = admitted.view(np.uint8)
            with nogil:
                judge_bits(&self.words[0], self.lines, &keys[0], n, &out[0])
        return admitted


def refusal(part: bytes, what: str) -> ValueError:
    return DataError(
        f"cannot read counts of features ({len(part)} bytes): {what}. "
        "Check that all nodes run the same version of snailps with the same settings"
    )
