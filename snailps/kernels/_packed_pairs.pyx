# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Pairs of numbers in two to four bytes each: lines of ranges of names, as servers and workers keep them.

    pairs of a block -> pack -> bytes of each range, in the order of the block
    bytes of a range, from any number of blocks -> unpack -> pairs in order, by their first number
    pairs in order -> pack_sorted -> bytes -> unpack
    second numbers -> place -> places of the rows of these numbers, those that have none yet

The pairs of a piece begin with their count.  A pair is the step from the second number of the pair before
it, twice, plus one if its first number differs; then the step of the first number, if so; then the weight,
4 bytes, if pairs have weights.  Steps may be negative: 0, -1, 1, -2 are written as 0, 1, 2, 3.  A number
has seven bits a byte, the lowest first; all bytes but its last are 128 or more.

`unpack` orders pairs by their numbers, then by weight, whatever the order in which they came.  Pairs in
order take one pass.  Its bytes come from other processes, so numbers beyond their bounds are refused.
Must not know tables; the loops run without the GIL.
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy, memset

import numpy as np

cdef uint32_t SIGN = 1U << 31

cdef enum:
    NUMBER_MAX = 1 << 26        # above the largest number that is written, so that a pair has a bound:
    PAIR_BYTES = 4 + 4 + 4      # step and mark, step, weight
    HEAD_BYTES = 5 + 3          # count, and what fills the last word
    FEW = 48                    # numbers that are faster inserted than counted by their bytes


cdef inline uint8_t *put(uint8_t *to, uint32_t number) noexcept nogil:
    while number >= 128:
        to[0] = <uint8_t>(number | 128)
        number >>= 7
        to += 1
    to[0] = <uint8_t>number
    return to + 1


cdef inline uint32_t folded(int32_t step) noexcept nogil:
    return (<uint32_t>step << 1) ^ <uint32_t>(step >> 31)


cdef inline int32_t unfolded(uint32_t number) noexcept nogil:
    return <int32_t>(number >> 1) ^ -<int32_t>(number & 1)


cdef struct Reader:
    const uint8_t *at
    const uint8_t *end          # of the piece
    int32_t first               # numbers of the last pair
    int32_t second
    float weight


cdef inline int64_t take(Reader *reader) noexcept nogil:
    """The next number; -1: the piece ends before it does, or it is too large."""
    cdef uint64_t number = 0
    cdef int shift = 0
    cdef uint8_t byte = 128
    while byte >= 128:
        if reader.at >= reader.end or shift > 28:
            return -1
        byte = reader.at[0]
        reader.at += 1
        number |= <uint64_t>(byte & 127) << shift
        shift += 7
    return <int64_t>number


cdef inline bint take_pair(Reader *reader, bint has_weights) noexcept nogil:
    """Read a pair; False: there is none."""
    cdef int64_t number = take(reader), step
    if number < 0 or number >= 2 * NUMBER_MAX:
        return False
    if number & 1:
        step = take(reader)
        if step < 0 or step >= NUMBER_MAX:
            return False
        reader.first += unfolded(<uint32_t>step)
    reader.second += unfolded(<uint32_t>(number >> 1))
    if has_weights:
        if reader.end - reader.at < 4:
            return False
        memcpy(&reader.weight, reader.at, 4)
        reader.at += 4
    return True


cdef inline uint8_t *put_pair(uint8_t *to, int32_t first, int32_t second, const float *weight,
                              int32_t *before) noexcept nogil:
    """Write a pair after those that `before` has of the last one, and keep it there."""
    cdef bint differs = first != before[0]
    to = put(to, folded(second - before[1]) << 1 | differs)
    if differs:
        to = put(to, folded(first - before[0]))
    if weight != NULL:
        memcpy(to, weight, 4)
        to += 4
    before[0], before[1] = first, second
    return to


cdef inline uint8_t *filled(const uint8_t *base, uint8_t *to) noexcept nogil:
    """The end of the word that `to` is in."""
    while (to - base) % 4:
        to[0] = 0
        to += 1
    return to


cdef object check_count(Py_ssize_t n):
    """Refuse pairs whose number does not fit into the head of a piece, nor their places into int32."""
    if n >= <int64_t>1 << 31:
        raise ValueError(f"expected fewer than 2^31 pairs, got {n}")


def pack(const int64_t[::1] first, const int64_t[::1] second, const float[::1] weights,
         const int64_t[::1] bounds) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Pack pairs by ranges of their first number, ``bounds[i]`` to ``bounds[i + 1] - 1``.

    first, second int64 (n,), below 2^24; weights float32, (n,) or empty: none.  Returns the bytes as
    float32, of which some may be no numbers, and where each range ends in them.  In a range, first
    numbers count from its bound, and pairs keep their order.
    """
    cdef Py_ssize_t n = first.shape[0], ranges = bounds.shape[0] - 1, i, j
    cdef bint has_weights = weights.shape[0] > 0
    check_count(n)
    if second.shape[0] != n or (has_weights and weights.shape[0] != n):
        raise ValueError(f"expected {n} pairs, got {second.shape[0]} and {weights.shape[0]} weights")
    part_of_array = np.repeat(np.arange(ranges, dtype=np.int32), np.diff(bounds))
    cdef const int32_t[::1] part_of = part_of_array
    # A step between first numbers must be one that `unpack` takes.
    cdef Py_ssize_t numbers = min(part_of.shape[0], NUMBER_MAX >> 2)
    order_array, counts_array = np.empty(n, np.int32), np.zeros(ranges + 1, np.int64)
    room_array = np.empty(n * PAIR_BYTES + ranges * HEAD_BYTES, np.uint8)
    ends_array = np.empty(ranges, np.int64)
    cdef int32_t[::1] order = order_array
    cdef int64_t[::1] counts = counts_array, ends = ends_array
    cdef uint8_t[::1] room = room_array
    cdef uint8_t *base = &room[0] if room.shape[0] else NULL
    cdef uint8_t *to = base
    cdef int32_t before[2]
    cdef int64_t stop
    cdef bint fits = True
    with nogil:
        for i in range(n):
            if not (0 <= first[i] < numbers and 0 <= second[i] < NUMBER_MAX >> 2):
                fits = False
                break
            counts[part_of[first[i]] + 1] += 1
        if fits:
            for j in range(ranges):
                counts[j + 1] += counts[j]
            for i in range(n):                      # counts[j] moves from begin to end of range j
                j = part_of[first[i]]
                order[counts[j]] = <int32_t>i
                counts[j] += 1
            i = 0
            for j in range(ranges):
                stop = counts[j]
                if i < stop:
                    to = put(to, <uint32_t>(stop - i))
                    before[0] = before[1] = 0
                    while i < stop:
                        to = put_pair(to, <int32_t>(first[order[i]] - bounds[j]),
                                      <int32_t>second[order[i]],
                                      &weights[order[i]] if has_weights else NULL, before)
                        i += 1
                    to = filled(base, to)
                ends[j] = (to - base) // 4
    if not fits:
        raise ValueError(f"expected first numbers below {numbers}, second ones below "
                         f"{NUMBER_MAX >> 2}, got {first[i]} and {second[i]}")
    return room_array[: to - base].copy().view(np.float32), ends_array


def pack_sorted(const int64_t[::1] ptr, const int32_t[::1] seconds, const float[::1] weights
                ) -> NDArray[np.float32]:
    """Pack pairs in order, as `unpack` gives them, as one piece."""
    cdef Py_ssize_t numbers = ptr.shape[0] - 1, n = seconds.shape[0], i, j
    cdef bint has_weights = weights.shape[0] > 0
    cdef bint fits = numbers <= NUMBER_MAX >> 2
    check_count(n)
    if ptr[0] != 0 or ptr[numbers] != n or (has_weights and weights.shape[0] != n):
        raise ValueError(f"expected {ptr[numbers]} pairs, got {n} and {weights.shape[0]} weights")
    for i in range(numbers):
        fits &= ptr[i] <= ptr[i + 1]
    for j in range(n):
        fits &= 0 <= seconds[j] < NUMBER_MAX >> 2
    if not fits:
        raise ValueError(f"expected numbers below {NUMBER_MAX >> 2}, and pointers that rise")
    room_array = np.empty(n * PAIR_BYTES + HEAD_BYTES, np.uint8)
    cdef uint8_t[::1] room = room_array
    cdef uint8_t *base = &room[0]
    cdef uint8_t *to = base
    cdef int32_t before[2]
    if n == 0:
        return np.zeros(0, np.float32)
    with nogil:
        to = put(to, <uint32_t>n)
        before[0] = before[1] = 0
        for i in range(numbers):
            for j in range(ptr[i], ptr[i + 1]):
                to = put_pair(to, <int32_t>i, seconds[j], &weights[j] if has_weights else NULL, before)
        to = filled(base, to)
    return room_array[: to - base].copy().view(np.float32)


cdef inline uint64_t key_of(int32_t second, float weight) noexcept nogil:
    """Sorts like the number, then like the weight."""
    cdef uint32_t bits
    memcpy(&bits, &weight, 4)
    bits ^= <uint32_t>-<int32_t>(bits >> 31) | SIGN     # all bits of a negative one
    return <uint64_t>second << 32 | bits


cdef inline float weight_of(uint64_t key) noexcept nogil:
    cdef uint32_t bits = <uint32_t>key
    cdef float weight
    bits ^= <uint32_t>((<int64_t>bits >> 31) - 1) | SIGN
    memcpy(&weight, &bits, 4)
    return weight


cdef void sort_keys(uint64_t *keys, uint64_t *room, int64_t n) noexcept nogil:
    """Sort keys; `room` is as large."""
    cdef uint64_t key, differ = 0
    cdef uint64_t *swap
    cdef uint64_t *home = keys
    cdef int64_t starts[256]
    cdef int64_t i, j, total, count
    cdef int shift
    if n <= FEW:
        for i in range(1, n):
            key, j = keys[i], i
            while j > 0 and keys[j - 1] > key:
                keys[j] = keys[j - 1]
                j -= 1
            keys[j] = key
        return
    for i in range(1, n):
        differ |= keys[i] ^ keys[0]
    for shift in range(0, 64, 8):
        if not differ >> shift & 255:
            continue
        memset(starts, 0, sizeof(starts))
        for i in range(n):
            starts[keys[i] >> shift & 255] += 1
        total = 0
        for i in range(256):
            count, starts[i] = starts[i], total
            total += count
        for i in range(n):
            j = keys[i] >> shift & 255
            room[starts[j]] = keys[i]
            starts[j] += 1
        swap, keys, room = keys, room, keys
    if keys != home:
        memcpy(home, keys, n * sizeof(uint64_t))


cdef struct Pieces:
    const uint8_t *bytes
    const int64_t *sizes        # in words
    Py_ssize_t count
    int64_t firsts              # bounds of numbers
    int64_t seconds
    bint has_weights


cdef int64_t begun(const Pieces *pieces, Py_ssize_t piece, int64_t *at, Reader *reader) noexcept nogil:
    """Begin to read a piece at byte `at`, which moves to the next: how many pairs it has; -1: damaged."""
    if pieces.sizes[piece] == 0:
        return 0
    reader.at = pieces.bytes + at[0]
    at[0] += 4 * pieces.sizes[piece]
    reader.end = pieces.bytes + at[0]
    reader.first = reader.second = 0
    cdef int64_t count = take(reader)
    return count if count <= reader.end - reader.at else -1


cdef inline bint is_in(const Pieces *pieces, const Reader *reader) noexcept nogil:
    return 0 <= reader.first < pieces.firsts and 0 <= reader.second < pieces.seconds


cdef int64_t count_of(const Pieces *pieces) noexcept nogil:
    """How many pairs there are; -1: damaged."""
    cdef int64_t at = 0, total = 0, count
    cdef Py_ssize_t piece
    cdef Reader reader
    for piece in range(pieces.count):
        count = begun(pieces, piece, &at, &reader)
        if count < 0:
            return -1
        total += count
    return total


cdef int in_order(const Pieces *pieces, int64_t *ptr, int32_t *seconds, float *weights) noexcept nogil:
    """Unpack pairs that are in order: 1; 0: they are not; -1: damaged."""
    cdef int64_t at = 0, count, done = 0, last = -1
    cdef int32_t second = 0
    cdef float weight = 0
    cdef Py_ssize_t piece
    cdef Reader reader
    for piece in range(pieces.count):
        count = begun(pieces, piece, &at, &reader)
        while count > 0:
            if not take_pair(&reader, pieces.has_weights) or not is_in(pieces, &reader):
                return -1
            if reader.first <= last:
                if reader.first < last or reader.second < second:
                    return 0
                if pieces.has_weights and reader.second == second and reader.weight < weight:
                    return 0
            while last < reader.first:
                last += 1
                ptr[last] = done
            second = seconds[done] = reader.second
            if pieces.has_weights:
                weight = weights[done] = reader.weight
            done += 1
            count -= 1
    while last < pieces.firsts:
        last += 1
        ptr[last] = done
    return 1


cdef bint put_in_order(const Pieces *pieces, int64_t *ptr, uint64_t *keys, uint64_t *room) noexcept nogil:
    """Unpack pairs in any order into keys in order; False: damaged."""
    cdef int64_t at = 0, count, i, j
    cdef Py_ssize_t piece
    cdef Reader reader
    memset(ptr, 0, (pieces.firsts + 1) * sizeof(int64_t))
    for piece in range(pieces.count):
        count = begun(pieces, piece, &at, &reader)
        for i in range(count):
            if not take_pair(&reader, pieces.has_weights) or not is_in(pieces, &reader):
                return False
            ptr[reader.first + 1] += 1
    for i in range(pieces.firsts):
        ptr[i + 1] += ptr[i]
    at = 0
    reader.weight = 0
    for piece in range(pieces.count):               # ptr[i] moves from begin to end of number i
        count = begun(pieces, piece, &at, &reader)
        for i in range(count):
            take_pair(&reader, pieces.has_weights)
            keys[ptr[reader.first]] = key_of(reader.second, reader.weight)
            ptr[reader.first] += 1
    for i in range(pieces.firsts, 0, -1):
        ptr[i] = ptr[i - 1]
    ptr[0] = 0
    for i in range(pieces.firsts):
        for j in range(ptr[i] + 1, ptr[i + 1]):
            if keys[j] < keys[j - 1]:
                sort_keys(keys + ptr[i], room, ptr[i + 1] - ptr[i])
                break
    return True


def unpack(const float[::1] words, const int64_t[::1] sizes, int64_t firsts, int64_t seconds,
           bint has_weights
           ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Unpack pieces of these sizes, in words, one after the other: ptr, second numbers, weights.

    first number i has ``seconds[ptr[i] : ptr[i + 1]]``, ascending, equal ones by ascending weight.
    `firsts`, `seconds`: what all numbers are below.  ValueError: the bytes are no such pairs.
    """
    cdef Pieces pieces
    cdef int64_t n, left = words.shape[0], i
    cdef int ordered
    for i in range(sizes.shape[0]):
        if not 0 <= sizes[i] <= left:       # before it is added: a sum of any numbers may wrap
            raise ValueError(f"expected pieces of {words.shape[0]} words, got one of {sizes[i]} "
                             f"where {left} are left")
        left -= sizes[i]
    if left:
        raise ValueError(f"expected {words.shape[0] - left} words, got {words.shape[0]}")
    pieces.bytes = <const uint8_t *>&words[0] if words.shape[0] else NULL
    pieces.sizes = &sizes[0] if sizes.shape[0] else NULL
    pieces.count, pieces.has_weights = sizes.shape[0], has_weights
    pieces.firsts, pieces.seconds = firsts, seconds
    n = count_of(&pieces)
    ordered = -1
    if n >= 0:
        ptr_array = np.zeros(firsts + 1, np.int64)
        seconds_array = np.empty(max(1, n), np.int32)
        weights_array = np.empty(max(1, n) if has_weights else 1, np.float32)
        ordered = _unpacked(&pieces, ptr_array, seconds_array, weights_array, n)
    if ordered < 0:
        raise ValueError(f"damaged pairs: expected numbers below {firsts} and {seconds}")
    return ptr_array, seconds_array[:n], weights_array[:n if has_weights else 0]


cdef int _unpacked(const Pieces *pieces, int64_t[::1] ptr, int32_t[::1] seconds, float[::1] weights,
                   int64_t n) except -2:
    cdef int64_t i
    cdef int ordered
    cdef uint64_t[::1] keys, room
    with nogil:
        ordered = in_order(pieces, &ptr[0], &seconds[0], &weights[0])
    if ordered == 0:
        keys, room = np.empty(n, np.uint64), np.empty(n, np.uint64)
        with nogil:
            ordered = 1 if put_in_order(pieces, &ptr[0], &keys[0], &room[0]) else -1
            for i in range(n):
                seconds[i] = <int32_t>(keys[i] >> 32)
                if pieces.has_weights:
                    weights[i] = weight_of(keys[i])
    return ordered


def place(const int32_t[::1] numbers, int32_t[::1] place_of, int64_t held
          ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Give numbers that have no place yet, -1 in `place_of`, the next ones from `held` on, ascending.

    Returns these numbers, and the place of each of all, both int32.  ValueError: a number is not
    below ``len(place_of)``.
    """
    cdef Py_ssize_t n = numbers.shape[0], bound = place_of.shape[0], i
    cdef int64_t count = 0, low = bound, high = -1
    cdef int32_t number
    cdef bint fits = True
    places_array = np.empty(n, np.int32)
    cdef int32_t[::1] places = places_array
    with nogil:
        for i in range(n):
            number = numbers[i]
            if not 0 <= number < bound:
                fits = False
                break
            if place_of[number] < 0:
                count += place_of[number] == -1
                place_of[number] = -2
                low = min(low, number)
                high = max(high, number)
    if not fits:
        raise ValueError(f"expected numbers below {bound}, got {numbers[i]}")
    new_array = np.empty(count, np.int32)
    cdef int32_t[::1] new = new_array
    with nogil:
        count = 0
        for i in range(low, high + 1):
            if place_of[i] == -2:
                place_of[i] = <int32_t>(held + count)
                new[count] = <int32_t>i
                count += 1
        for i in range(n):
            places[i] = place_of[numbers[i]]
    return new_array, places_array
