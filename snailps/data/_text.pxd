# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Tokens of a text, and a hash table of words: the loops under `_text.pyx`.

    bytes -> scan -> Token (place, length, hash) -> table_find / table_add -> word id

A token is what fastText's reader makes of a text: bytes between separators (space, newline,
carriage return, tab, vertical tab, form feed, NUL), and one `</s>` for every newline.  A token
therefore never holds a NUL, so its first eight bytes, padded with zeros, *are* the token if it is
that short: most words of a text are compared by one integer.  Little-endian machines only, as the
whole of snailps.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #define SNAILPS_PREFETCH(address) __builtin_prefetch((address), 0, 3)
    #define SNAILPS_LOWEST_BIT(x) __builtin_ctzll(x)
    """
    void SNAILPS_PREFETCH(const void *address) noexcept nogil
    int SNAILPS_LOWEST_BIT(uint64_t x) noexcept nogil

cdef enum:
    # Tokens that are scanned, and whose slots are fetched, before the first one is looked up: long
    # enough to hide a cache miss, short enough that the batch stays in the first cache.
    BATCH = 64

cdef struct Token:
    uint64_t prefix             # first 8 bytes, padded with zeros
    uint64_t hash
    const uint8_t *text
    Py_ssize_t length

cdef struct Slot:
    uint64_t prefix
    uint32_t tag                # hash bits, and in bit 0 whether the word is longer than 8 bytes
    int32_t id_plus_1           # 0: an empty slot

cdef struct WordTable:
    Slot *slots                 # slot_mask + 1 of them, at most half of them full
    uint64_t slot_mask
    uint8_t *arena              # the words' bytes, in id order
    uint64_t arena_used
    uint64_t arena_size
    uint64_t *starts            # word i is arena[starts[i] : starts[i + 1]]
    int64_t words
    int64_t words_max           # room in `starts`, and half of the slots


cdef inline bint is_separator(uint32_t c) noexcept nogil:
    return c == 32 or (9 <= c <= 13) or c == 0


cdef inline uint64_t load8(const uint8_t *text, Py_ssize_t left) noexcept nogil:
    """The next 8 bytes, or the last `left` of them and zeros: never reads beyond the end."""
    cdef uint64_t chunk = 0
    if left >= 8:
        memcpy(&chunk, text, 8)
    elif left > 0:
        memcpy(&chunk, text, left)
    return chunk


cdef inline int separator_in(uint64_t chunk) noexcept nogil:
    """Index of the first separator among 8 bytes; 8 if there is none."""
    # Sets the high bit of every byte below 33, and of some above it that borrow: all separators
    # are among them, and the exact test decides.
    cdef uint64_t below = ((chunk - <uint64_t>0x2121212121212121) & ~chunk
                           & <uint64_t>0x8080808080808080)
    cdef int k
    while below:
        k = SNAILPS_LOWEST_BIT(below) >> 3
        if is_separator((chunk >> (8 * k)) & 255):
            return k
        below &= below - 1
    return 8


cdef inline uint64_t stir(uint64_t h, uint64_t chunk) noexcept nogil:
    """One multiply a chunk; the high half, which every bit reaches, is folded onto the low one."""
    h = (h ^ chunk) * <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 32)


cdef inline Py_ssize_t read_token(const uint8_t *text, Py_ssize_t left,
                                  Token *token) noexcept nogil:
    """The token that starts at `text`, which ends at a separator or after `left` bytes."""
    cdef uint64_t chunk = load8(text, left)
    cdef uint64_t h = <uint64_t>0x2545F4914F6CDD1D
    cdef int k = separator_in(chunk)
    cdef Py_ssize_t length = 0
    token.prefix = chunk
    while k == 8:
        h = stir(h, chunk)
        length += 8
        chunk = load8(text + length, left - length)
        k = separator_in(chunk)
    if k:
        chunk &= (<uint64_t>1 << (8 * k)) - 1
        h = stir(h, chunk)
        if length == 0:
            token.prefix = chunk
        length += k
    token.hash = h
    token.text = text
    token.length = length
    return length


cdef inline int scan(const uint8_t *data, Py_ssize_t size, Py_ssize_t *position,
                     const Token *sentence_end, Token *tokens) noexcept nogil:
    """Up to BATCH tokens from `position` on, which moves behind the last one.  0: no more."""
    cdef Py_ssize_t p = position[0]
    cdef uint32_t c
    cdef int found = 0
    while found < BATCH and p < size:
        c = data[p]
        if is_separator(c):
            p += 1
            if c == 10:
                tokens[found] = sentence_end[0]
                found += 1
        else:
            p += read_token(data + p, size - p, &tokens[found])
            found += 1
    position[0] = p
    return found


cdef inline void prefetch(const WordTable *table, const Token *tokens, int found) noexcept nogil:
    cdef int i
    for i in range(found):
        SNAILPS_PREFETCH(&table.slots[tokens[i].hash & table.slot_mask])


cdef inline uint32_t tag_of(const Token *token) noexcept nogil:
    return (<uint32_t>(token.hash >> 32) & <uint32_t>0xFFFFFFFE) | (token.length > 8)


cdef inline uint64_t slot_of(const WordTable *table, const Token *token) noexcept nogil:
    """The slot that holds this word, or the empty one where it belongs."""
    cdef uint64_t at = token.hash & table.slot_mask
    cdef uint32_t tag = tag_of(token)
    cdef const Slot *slot
    cdef uint64_t start
    while True:
        slot = &table.slots[at]
        if slot.id_plus_1 == 0:
            return at
        if slot.prefix == token.prefix and slot.tag == tag:
            if token.length <= 8:
                return at
            start = table.starts[slot.id_plus_1 - 1]
            if (table.starts[slot.id_plus_1] - start == <uint64_t>token.length
                    and memcmp(table.arena + start, token.text, token.length) == 0):
                return at
        at = (at + 1) & table.slot_mask


cdef inline int64_t table_find(const WordTable *table, const Token *token) noexcept nogil:
    """Id of a word, -1 if it is not there.  Any number of threads may ask at once."""
    return <int64_t>table.slots[slot_of(table, token)].id_plus_1 - 1


cdef inline int64_t table_add(WordTable *table, const Token *token) noexcept nogil:
    """Id of a word, a new one if need be.  The caller has made room for it."""
    cdef Slot *slot = &table.slots[slot_of(table, token)]
    if slot.id_plus_1 == 0:
        memcpy(table.arena + table.arena_used, token.text, token.length)
        table.arena_used += token.length
        table.words += 1
        table.starts[table.words] = table.arena_used
        slot.prefix = token.prefix
        slot.tag = tag_of(token)
        slot.id_plus_1 = <int32_t>table.words
    return slot.id_plus_1 - 1


cdef class Lexicon:
    cdef WordTable table
    cdef object packed          # keeps alive what the table borrows
    cdef int64_t end_id         # of `</s>`, -1 if it is no word
