# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The subwords of words, as exactly fastText's bucket ids.

    word -> subword_ids -> bucket ids;  words -> subwords_csr -> one bag of ids a word
    word -> floret_ids  -> ids by the hashes of floret, for its models
    bags -> sign_bags -> which rows the same words have
    bags, masses -> sum_bags    -> mass of each n-gram, and how many have it
                 -> assign_bags -> partition of each word, so that few share an n-gram -> count_bits

The n-grams of `<word>`, of `minn` to `maxn` characters, are each hashed to one of `bucket` rows behind the
rows of the words (P. Bojanowski et al., TACL 5, 2017).  The hash is 32-bit FNV-1a with fastText's slip that
bytes are taken as signed: its published models depend on it.  Must not know texts, vocabularies or vectors.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import numpy as np

from snailps.data.packed_words import PackedWords
from snailps.data.word_counts import END_OF_LINE

cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil
    int __builtin_popcountll(unsigned long long) nogil

cdef enum:
    BRACKETED_MAX = 62      # bytes of a word that is copied between its brackets

# Score of a part that shares no n-gram with a word: among such parts the least loaded one wins.
cdef double NOTHING_SHARED = 1e-6
cdef uint32_t FNV_START = 2166136261


cdef inline uint32_t fnv_step(uint32_t h, uint8_t byte) noexcept nogil:
    # The sign extension is fastText's: bytes from 0x80 on also flip the upper 24 bits.
    return (h ^ <uint32_t><int8_t>byte) * <uint32_t>16777619


cdef uint32_t fnv_hash(const uint8_t *text, Py_ssize_t length) noexcept nogil:
    cdef uint32_t h = FNV_START
    cdef Py_ssize_t i
    for i in range(length):
        h = fnv_step(h, text[i])
    return h


cdef inline uint8_t byte_at(const uint8_t *word, Py_ssize_t length, Py_ssize_t i) noexcept nogil:
    """Byte `i` of `<word>`, for words too long to be copied between brackets."""
    if i == 0:
        return 60
    return word[i - 1] if i <= length else 62


cdef inline bint continues(uint8_t byte) noexcept nogil:
    """Whether a byte continues a UTF-8 character; any byte has an answer, valid text or not."""
    return (byte & 0xC0) == 0x80


cdef inline int64_t grams_of(const uint8_t *bracketed, const uint8_t *word, Py_ssize_t length,
                             int minn, int maxn, uint32_t bucket, int32_t first,
                             int32_t *out) noexcept nogil:
    """Count n-grams, and write their ids unless `out` is NULL; `bracketed`: `<word>`, or NULL."""
    cdef Py_ssize_t total = length + 2
    cdef uint64_t inverse = <uint64_t>-1 // bucket
    cdef Py_ssize_t i, j
    cdef uint32_t h
    cdef uint8_t byte
    cdef int64_t found = 0
    cdef int n
    for i in range(total):
        byte = bracketed[i] if bracketed != NULL else byte_at(word, length, i)
        if continues(byte):
            continue
        h = FNV_START
        j = i
        n = 1
        while j < total and n <= maxn:
            h = fnv_step(h, byte)
            j += 1
            while j < total:
                byte = bracketed[j] if bracketed != NULL else byte_at(word, length, j)
                if not continues(byte):
                    break
                h = fnv_step(h, byte)
                j += 1
            # A bracket alone is no n-gram.
            if n >= minn and not (n == 1 and (i == 0 or j == total)):
                if out != NULL:
                    out[found] = first + <int32_t>rest_of(h, bucket, inverse)
                found += 1
            n += 1
    return found


cdef int64_t bag_of(const uint8_t *word, Py_ssize_t length, int minn, int maxn, uint32_t bucket,
                    int32_t first, int32_t *out) noexcept nogil:
    cdef uint8_t bracketed[BRACKETED_MAX + 2]
    if length > BRACKETED_MAX:
        return grams_of(NULL, word, length, minn, maxn, bucket, first, out)
    bracketed[0] = 60
    memcpy(bracketed + 1, word, length)
    bracketed[length + 1] = 62
    return grams_of(bracketed, word, length, minn, maxn, bucket, first, out)


cdef inline bint is_end(const uint8_t *word, Py_ssize_t length) noexcept nogil:
    """Whether this is `</s>`, which has no n-grams."""
    return length == 4 and memcmp(word, b"</s>", 4) == 0


def check_settings(minn: int, maxn: int, bucket: int, nwords: int) -> None:
    """Raise ValueError unless the settings make sense and every id fits an int32."""
    if not 0 <= minn or not 0 <= maxn < 1 << 31:
        raise ValueError(f"expected minn and maxn of 0 or more, got minn {minn}, maxn {maxn}")
    if maxn > 0 and minn > maxn:
        raise ValueError(f"expected minn <= maxn (or maxn 0: no subwords), got {minn} > {maxn}")
    if maxn > 0 and not 1 <= bucket < 1 << 31:
        raise ValueError(f"expected a bucket of 1 to 2^31 - 1 with maxn {maxn}, got {bucket}")
    if nwords < 0 or nwords + (bucket if maxn > 0 else 0) > 1 << 31:
        raise ValueError(f"expected words + bucket of at most 2^31 ids, got {nwords} + {bucket}")


def ngram_hash(const uint8_t[::1] ngram not None) -> int:
    """fastText's hash of an n-gram: uint32, to be taken modulo the buckets.

    >>> hex(ngram_hash(b"a"))
    '0xe40c292c'
    """
    return fnv_hash(&ngram[0] if ngram.shape[0] else NULL, ngram.shape[0])


def subword_ids(bytes word not None, int minn, int maxn, int64_t bucket,
                int64_t nwords) -> NDArray[np.int32]:
    """Ids of the n-grams of any word (bytes), known or not; empty for `</s>`.

    n-grams have `minn` to `maxn` characters, the brackets of `<word>` included; `maxn` 0: none.  Ids are
    `nwords` to `nwords + bucket - 1`, int32, in fastText's order, repeats kept.  Bytes that are no
    UTF-8 are taken as fastText takes them.
    """
    check_settings(minn, maxn, bucket, nwords)
    cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(word)
    cdef Py_ssize_t length = PyBytes_GET_SIZE(word)
    cdef int64_t found = 0
    if maxn > 0 and word != END_OF_LINE:
        found = bag_of(text, length, minn, maxn, <uint32_t>bucket, 0, NULL)
    ids = np.empty(found, dtype=np.int32)
    cdef int32_t[::1] out = ids
    if found:
        bag_of(text, length, minn, maxn, <uint32_t>bucket, <int32_t>nwords, &out[0])
    return ids


cdef inline uint64_t rotated(uint64_t x, int by) noexcept nogil:
    return (x << by) | (x >> (64 - by))


cdef inline uint64_t mixed(uint64_t x) noexcept nogil:
    x = (x ^ (x >> 33)) * <uint64_t>0xff51afd7ed558ccd
    x = (x ^ (x >> 33)) * <uint64_t>0xc4ceb9fe1a85ec53
    return x ^ (x >> 33)


cdef void murmur(const uint8_t *text, Py_ssize_t length, uint64_t *out) noexcept nogil:
    """MurmurHash3_x64_128 (A. Appleby, public domain), by floret's seed: two numbers into `out`."""
    cdef uint64_t a = FNV_START, b = FNV_START
    cdef uint64_t c = <uint64_t>0x87c37b91114253d5, d = <uint64_t>0x4cf5ad432745937f
    cdef uint64_t block[2]
    cdef Py_ssize_t at = 0
    while at < length:
        block[0] = block[1] = 0
        memcpy(block, text + at, min(<Py_ssize_t>16, length - at))
        a ^= rotated(block[0] * c, 31) * d
        if at + 16 <= length:
            a = (rotated(a, 27) + b) * 5 + <uint64_t>0x52dce729
        b ^= rotated(block[1] * d, 33) * c
        if at + 16 <= length:
            b = (rotated(b, 31) + a) * 5 + <uint64_t>0x38495ab5
        at += 16
    a ^= <uint64_t>length
    b ^= <uint64_t>length
    a += b
    b += a
    a, b = mixed(a), mixed(b)
    a += b
    out[0] = a
    out[1] = b + a


def floret_ids(bytes word not None, int minn, int maxn, int64_t bucket, int hashes,
               int64_t first) -> NDArray[np.int32]:
    """Ids of a word and its n-grams in floret's mode, `hashes` (1 to 4) of each; empty for `</s>`.

    The word is hashed in its brackets, like an n-gram, and comes first.  Ids are `first` to
    ``first + bucket - 1``, int32, in floret's order, repeats kept.
    """
    if not (0 <= minn and 0 <= maxn < 1 << 31 and 1 <= bucket < 1 << 31 and 1 <= hashes <= 4
            and 0 <= first <= (1 << 31) - bucket):
        raise ValueError(f"expected 1 to 4 hashes into 1 to 2^31 rows, got minn {minn}, maxn {maxn}, "
                         f"bucket {bucket}, {hashes} hashes, first {first}")
    if word == END_OF_LINE:
        return np.empty(0, np.int32)
    cdef bytes bracketed = b"<" + word + b">"
    cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(bracketed)
    cdef Py_ssize_t total = PyBytes_GET_SIZE(bracketed), i, j
    cdef uint64_t of_gram[2]
    cdef list ids = []
    cdef list spans = [(0, total)]
    cdef int n, number
    for i in range(total):
        if continues(text[i]):
            continue
        j, n = i, 1
        while j < total and n <= maxn:
            j += 1
            while j < total and continues(text[j]):
                j += 1
            if n >= minn and not (n == 1 and (i == 0 or j == total)):
                spans.append((i, j))
            n += 1
    for i, j in spans:
        murmur(text + i, j - i, of_gram)
        for number in range(hashes):
            ids.append(first + (of_gram[number >> 1] >> (32 * (number & 1)) & 0xffffffff) % bucket)
    return np.array(ids, np.int32)


def subwords_csr(words: Sequence[bytes], int minn, int maxn,
                 int64_t bucket) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The bag of every word, ``ids[indptr[i] : indptr[i + 1]]``: its own id, then those of its n-grams.

    `indptr` is int64, `ids` int32; n-grams are from ``len(words)`` on, repeats kept.  With `maxn` 0 a
    bag is the word alone.  English words have about 20 n-grams of 3 to 6 characters: 80 bytes.
    """
    cdef Py_ssize_t nwords = len(words)
    check_settings(minn, maxn, bucket, nwords)
    indptr = np.arange(nwords + 1, dtype=np.int64)
    if maxn == 0:
        return indptr, np.arange(nwords, dtype=np.int32)
    packed = PackedWords.of(words)
    cdef const uint8_t[::1] joined = packed.text
    cdef const uint8_t *text = &joined[0] if joined.shape[0] else NULL
    cdef const uint64_t[::1] start = packed.starts
    cdef int64_t[::1] bag = indptr
    cdef int64_t i
    with nogil:
        for i in range(nwords):
            bag[i + 1] = bag[i] + 1
            if not is_end(text + start[i], start[i + 1] - start[i]):
                bag[i + 1] += bag_of(text + start[i], start[i + 1] - start[i], minn, maxn,
                                     <uint32_t>bucket, 0, NULL)
    ids = np.empty(indptr[nwords], dtype=np.int32)
    cdef int32_t[::1] out = ids
    with nogil:
        for i in range(nwords):
            out[bag[i]] = <int32_t>i
            if not is_end(text + start[i], start[i + 1] - start[i]):
                bag_of(text + start[i], start[i + 1] - start[i], minn, maxn, <uint32_t>bucket,
                       <int32_t>nwords, &out[bag[i] + 1])
    return indptr, ids


cdef object check_bags(const int64_t[::1] indptr, const int32_t[::1] ids, int skipped, int64_t least,
                       int64_t stop):
    """Refuse bags that are not in `ids`, or with rows not from `least` to `stop` - 1 after the first
    `skipped` of a bag: the loops index by them."""
    cdef Py_ssize_t i, bags = indptr.shape[0] - 1
    cdef int64_t at
    cdef bint bad = bags < 0 or indptr[0] < 0 or indptr[bags] > ids.shape[0]
    if not bad:
        with nogil:
            for i in range(bags):
                bad |= indptr[i] > indptr[i + 1]
            if not bad:
                for i in range(bags):
                    for at in range(indptr[i] + skipped, indptr[i + 1]):
                        bad |= not least <= ids[at] < stop
    if bad:
        raise ValueError(f"expected bags of rows from {least} to {stop - 1}, one after the other")


def sign_bags(const int64_t[::1] indptr not None, const int32_t[::1] ids not None, int64_t first,
              int64_t words, uint64_t[::1] signs not None) -> None:
    """Add a number of each word to the `signs` (words + bucket,) of its rows, once for each time.

    The bags are those of `subwords_csr` of words `first`, `first + 1`, ... of `words`.  Rows with equal
    signs are in the same words, each as often: of a million rows, two others agree by chance with a
    probability of 3e-8.
    """
    cdef Py_ssize_t own = indptr.shape[0] - 1, i
    cdef int64_t at, row
    cdef uint64_t sign
    if not 0 <= first <= words - own or signs.shape[0] < words:
        raise ValueError(f"expected words {first} to {first + own - 1} among {words}, with a sign each, "
                         f"got {signs.shape[0]} signs")
    check_bags(indptr, ids, 0, 0, own + signs.shape[0] - words)
    with nogil:
        for i in range(own):
            sign = mixed(<uint64_t>(first + i + 1))
            for at in range(indptr[i], indptr[i + 1]):
                row = ids[at] + (first if ids[at] < own else words - own)
                signs[row] += sign


def number_bags(const int64_t[::1] indptr not None, int32_t[::1] ids not None,
                int32_t[::1] numbers not None, int32_t numbered) -> int:
    """Replace the n-grams of words of `subwords_csr` by their numbers; returns how many there are.

    `numbers` (buckets,) are those of n-grams so far, from 1 to `numbered`; 0: none yet.  What is kept of
    each n-gram by its number is in few pages.
    """
    cdef Py_ssize_t words = indptr.shape[0] - 1, i, row
    cdef int64_t at
    check_bags(indptr, ids, 1, words, words + numbers.shape[0])
    with nogil:
        for i in range(words):
            for at in range(indptr[i] + 1, indptr[i + 1]):
                row = ids[at] - words
                if numbers[row] == 0:
                    numbered += 1
                    numbers[row] = numbered
                ids[at] = numbers[row]
    return numbered


def sum_bags(const int64_t[::1] indptr not None, const int32_t[::1] ids not None,
             const double[::1] mass not None, double[:, ::1] sums not None) -> None:
    """Add to `sums` (n-grams, 2) of each n-gram of words of `number_bags` their mass, and 1."""
    cdef Py_ssize_t words = mass.shape[0], i
    cdef int64_t at
    check_bags(indptr, ids, 1, 0, sums.shape[0])
    if indptr.shape[0] != words + 1 or sums.shape[1] != 2:
        raise ValueError(f"expected a mass for each of {indptr.shape[0] - 1} bags, and two sums")
    with nogil:
        for i in range(words):
            for at in range(indptr[i] + 1, indptr[i + 1]):
                sums[ids[at], 0] += mass[i]
                sums[ids[at], 1] += 1.0


def count_bits(const uint64_t[:, ::1] has not None) -> NDArray[np.int32]:
    """Number of bits set in each row, int32."""
    cdef Py_ssize_t i, block
    found = np.zeros(has.shape[0], np.int32)
    cdef int32_t[::1] out = found
    with nogil:
        for i in range(has.shape[0]):
            for block in range(has.shape[1]):
                out[i] += __builtin_popcountll(has[i, block])
    return found


def assign_bags(const int64_t[::1] indptr not None, const int32_t[::1] ids not None,
              const double[::1] mass not None, const float[::1] worth not None,
              uint64_t[:, ::1] has not None, double[::1] load not None,
              const double[::1] most not None, int32_t[::1] out not None) -> None:
    """Assign words to partitions one by one, each to the part that has most of its n-grams already.

    `mass` (words,) is what a word of `number_bags` adds to the load of its part, `worth` (n-grams,) that
    of an n-gram that the part has, `most` (parts,) the load that a part may have; where none has room,
    the one with the least of its own takes the word.  Read and written: `has` (n-grams, words of 64
    bits), a bit for each part that has the n-gram, and `load` (parts,).  Written: `out`, the part of
    each word.
    """
    cdef Py_ssize_t parts = load.shape[0], blocks = has.shape[1], words = mass.shape[0]
    cdef Py_ssize_t i, part, best, block, row
    cdef int64_t at
    cdef uint64_t bits
    cdef double found, score
    cdef double[::1] shared = np.empty(parts)
    check_bags(indptr, ids, 1, 0, min(has.shape[0], worth.shape[0]))
    if indptr.shape[0] != words + 1 or out.shape[0] < words or most.shape[0] != parts \
            or 64 * blocks < parts:
        raise ValueError(f"expected a mass and a part for each of {indptr.shape[0] - 1} bags, and bits "
                         f"for {parts} parts")
    with nogil:
        for i in range(words):
            for part in range(parts):
                shared[part] = NOTHING_SHARED
            for at in range(indptr[i] + 1, indptr[i + 1]):
                row = ids[at]
                for block in range(blocks):
                    bits = has[row, block]
                    while bits:
                        shared[block * 64 + __builtin_ctzll(bits)] += worth[row]
                        bits &= bits - 1
            best, score = 0, -1.0
            for part in range(parts):
                found = shared[part] * (1.0 - load[part] / most[part])
                if load[part] + mass[i] <= most[part] and found > score:
                    best, score = part, found
            if score < 0.0:
                for part in range(1, parts):
                    if load[part] * most[best] < load[best] * most[part]:
                        best = part
            out[i] = <int32_t>best
            load[best] += mass[i]
            for at in range(indptr[i] + 1, indptr[i + 1]):
                has[ids[at], best >> 6] |= (<uint64_t>1) << (best & 63)
