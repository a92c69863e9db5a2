# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A line as a classifier sees it: its labels and features, numbered as in fastText.

    bytes -> LineReader.read -> Lines: features, labels and weights, line by line
    bytes -> without_weights -> the same lines with plain labels, and the sums of their weights
    pairs of a pruned model -> KeptGrams -> rows of its n-grams; lines without the others

A feature is a word of the vocabulary, a character n-gram of a word, or a hash of consecutive words.  Must
not know which words a vocabulary has, or vectors.  The loops run without the GIL.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.math cimport NAN, isnan
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

import os
from typing import NamedTuple

import numpy as np

from snailps.data._normaliser cimport Bytes, Normaliser
from snailps.data._subwords cimport bag_of, fnv_hash, rest_of
from snailps.data._text cimport (BATCH, Lexicon, Token, fetch_long_words, fetch_words, find_word,
                                 is_sentence_end, read_token, scan)

from snailps.data._subwords import check_settings, subwords_csr
from snailps.data.packed_words import PackedWords
from snailps.errors import DataError

cdef extern from "_number_parsing.h" nogil:
    int snail_open_locale()
    bint read_real "snail_read_real"(const uint8_t **cursor, float *out)

if not snail_open_locale():
    raise MemoryError("no memory for the C locale")

cdef enum:
    NUMBER_BYTES = 40       # longest number of a weight
    BAGGED_MAX = 1 << 15    # words whose n-grams are computed once and kept: about 2 MB

# fastText's multiplier of word n-grams.
cdef uint64_t GRAM_STEP = 116049371
cdef const uint8_t *END_TEXT = b"</s>\0\0\0\0"
cdef Token END
read_token(END_TEXT, 4, &END)

GRAM_MAX: int = C_GRAM_MAX
WEIGHT_MAX: float = 1e6
NO_WEIGHTS: NDArray[np.float32] = np.zeros(0, np.float32)
NO_WEIGHTS.flags.writeable = False


class Lines(NamedTuple):
    """A text as lines of features; see `LineReader.read`.

    Empty weights are ones, empty `rests` zeros, as in `kernels.train_labels`.
    """

    feature_ptr: NDArray[np.int64]
    features: NDArray[np.int32]
    label_ptr: NDArray[np.int64]
    labels: NDArray[np.int32]
    tokens: int
    unread: int
    line_weights: NDArray[np.float32] = NO_WEIGHTS
    label_weights: NDArray[np.float32] = NO_WEIGHTS
    rests: NDArray[np.float32] = NO_WEIGHTS


class WeightError(DataError):
    """A label has a weight that is none; `offset` is its first byte in the text."""

    offset: int

    def __init__(self, label: bytes, offset: int) -> None:
        shown = label.decode(errors="replace")
        super().__init__(
            f"expected a weight from 0 to {WEIGHT_MAX:,.0f} after the last ':' of a label, got {shown!r:.80}; a "
            "label that has a ':' itself needs one more at its end")
        self.offset = offset


cdef inline int64_t name_of(const Token *token, Py_ssize_t prefix_size, float *weight) noexcept nogil:
    """Length of a label without its weight; NaN: it has none.  -1: what it has is no weight."""
    cdef int64_t name = token.length - 1
    cdef uint8_t number[NUMBER_BYTES + 8]   # eight bytes at a time are read
    cdef const uint8_t *at = number
    cdef int64_t size
    weight[0] = <float>NAN
    while name >= prefix_size and token.text[name] != b':':
        name -= 1
    if name < prefix_size:      # a ':' of the prefix begins no weight
        return token.length
    size = token.length - name - 1
    if size == 0:
        return name
    if size > NUMBER_BYTES:
        return -1
    memset(number, 0, sizeof(number))
    memcpy(number, token.text + name + 1, size)
    if not read_real(&at, weight) or at != number + size or not 0 <= weight[0] <= 1e6:
        return -1
    return name


cdef inline bint is_label(const Token *token, const uint8_t *prefix, Py_ssize_t size) noexcept nogil:
    return token.length >= size and memcmp(token.text, prefix, size) == 0


cdef object wrong_weight(const uint8_t *text, Py_ssize_t size, const uint8_t *label):
    cdef Token token
    read_token(label, text + size - label, &token)
    return WeightError(token.text[:token.length], label - text)


cdef void finish_weights(double[::1] weights, int64_t first, int64_t last, double of_line,
                         bint shares) noexcept nogil:
    """Multiply the weights of a line's labels by the line's; those without one (NaN) get theirs."""
    cdef int64_t at
    for at in range(first, last):
        if isnan(weights[at]):
            weights[at] = 1.0 / (last - first) if shares else 1
        weights[at] *= of_line


def without_weights(const uint8_t[::1] data not None, bytes prefix not None, *, bint weighed=True,
                    bint shares=False) -> tuple[bytes, PackedWords, NDArray[np.float64]]:
    """A text of which labels may have weights, as plain text; its labels, and their weights.

    A label is a word that begins with `prefix`; ``prefix + name + ":0.5"`` has the weight 0.5, and ``prefix +
    ":2"`` is no label, but the weight of its line.  In the text blanks take the place of weights, so it is as
    long.  Labels (n) are those before a `</s>`; a weight, float64 (n,), is that of the label (1 without one)
    times that of its line.  `WeightError`: malformed, negative, not finite or too large.

    With `shares` a label without a weight has 1 / the number of its line's labels.  Not `weighed`: no label
    has a weight, whatever it ends with.
    """
    cdef Py_ssize_t size = data.shape[0], prefix_size = len(prefix)
    cdef bytearray plain = bytearray(data)
    cdef uint8_t *text = plain
    cdef const uint8_t *beginning = prefix
    cdef const uint8_t *wrong = NULL
    cdef Token tokens[BATCH]
    cdef int64_t position = 0, room = 0, labels = 0, first = 0, name, at
    cdef int64_t[::1] spans = np.empty(0, np.int64)
    cdef double[::1] weights = np.empty(0, np.float64)
    cdef double of_line = 1
    cdef float weight = NAN
    cdef bint ended = False
    cdef int found, i
    while wrong == NULL:
        if labels + BATCH > room:
            room = max(1024, 2 * room)
            spans = grown(np.asarray(spans), 2 * labels, 2 * room)
            weights = grown(np.asarray(weights), labels, room)
        with nogil:
            found = scan(text, size, &position, &END, tokens)
            for i in range(found):
                if is_sentence_end(&tokens[i]):
                    ended = tokens[i].text != END_TEXT
                    if not ended:
                        finish_weights(weights, first, labels, of_line, shares)
                        first, of_line = labels, 1
                    continue
                if not is_label(&tokens[i], beginning, prefix_size):
                    continue
                name = name_of(&tokens[i], prefix_size, &weight) if weighed else tokens[i].length
                if name < 0:
                    wrong = tokens[i].text
                    break
                at = tokens[i].text - text
                if name == prefix_size and not isnan(weight):
                    if not ended:
                        of_line = weight
                    memset(text + at, b' ', tokens[i].length)
                    continue
                memset(text + at + name, b' ', tokens[i].length - name)
                if not ended:
                    spans[2 * labels], spans[2 * labels + 1] = at, at + name
                    weights[labels] = weight
                    labels += 1
        if found == 0:
            break
    if wrong != NULL:
        raise wrong_weight(&data[0], size, &data[0] + (wrong - text))
    finish_weights(weights, first, labels, of_line, shares)
    packed = PackedWords.of([bytes(plain[spans[2 * at]:spans[2 * at + 1]]) for at in range(labels)])
    return bytes(plain), packed, np.asarray(weights[:labels])


cdef inline int64_t room_for(const Token *tokens, int found, const Rules *rules) noexcept nogil:
    """Upper bound of the features of these tokens: each word, its subwords, the word n-grams it ends."""
    cdef int64_t room = found * <int64_t>rules.word_ngrams
    cdef int i
    if rules.maxn > 0:
        for i in range(found):
            room += (tokens[i].length + 2) * min(<int64_t>(rules.maxn - rules.minn + 1),
                                                 tokens[i].length + 2)
    return room


cdef inline int64_t add_word(const Token *token, int64_t id, const Rules *rules, Reading *reading,
                             int32_t *out) noexcept nogil:
    """Write the features that a word adds to its line; how many."""
    cdef int64_t used = 0, at
    cdef uint64_t hashed
    cdef int i
    if id >= 0:
        out[0] = <int32_t>id
        used = 1
    if 0 <= id < rules.bagged:
        for at in range(rules.bag_ptr[id] + 1, rules.bag_ptr[id + 1]):
            out[used] = rules.bag_ids[at] + rules.bag_first
            used += 1
    elif rules.maxn > 0 and not is_sentence_end(token):
        used += bag_of(token.text, token.length, rules.minn, rules.maxn, rules.bucket,
                       <int32_t>rules.words, out + used)
    if rules.word_ngrams > 1:
        # fastText keeps the hash as a signed 32-bit number: large ones flip the upper half.
        hashed = <uint64_t><int64_t><int32_t>(
            rules.hashes[id] if id >= 0 else fnv_hash(token.text, token.length))
        for i in range(reading.gram_num):
            reading.grams[i] = reading.grams[i] * GRAM_STEP + hashed
            out[used] = <int32_t>(rules.words + <int64_t>rest_of(reading.grams[i], rules.bucket,
                                                                 rules.inverse))
            used += 1
        if rules.word_ngrams > 2:
            memmove(&reading.grams[1], &reading.grams[0],
                    (rules.word_ngrams - 2) * sizeof(uint64_t))
        reading.grams[0] = hashed
        reading.gram_num = min(reading.gram_num + 1, rules.word_ngrams - 1)
    return used


cdef inline void end_line(Reading *reading, int64_t *feature_ptr, int64_t *label_ptr) noexcept nogil:
    reading.lines += 1
    feature_ptr[reading.lines] = reading.features
    label_ptr[reading.lines] = reading.labels
    reading.gram_num = 0
    reading.open = reading.ended = False


cdef int64_t read_lines(Lexicon lexicon, const Rules *rules, const uint8_t *data, Py_ssize_t size,
                        Reading *reading, int64_t *feature_ptr, int32_t *features,
                        int64_t features_max, int64_t *label_ptr, int32_t *labels,
                        int64_t labels_max) noexcept nogil:
    """Read to the end (0), or until the next batch might not fit: then the features that it may need."""
    cdef Token tokens[BATCH]
    cdef Token bare
    cdef const Token *token
    cdef float weight = 0
    cdef int64_t before, name
    cdef int64_t room, id
    cdef bint ends
    cdef int found, i
    while True:
        before = reading.position
        found = scan(data, size, &reading.position, &END, tokens)
        if found == 0:
            break
        room = room_for(tokens, found, rules)
        if reading.features + room > features_max or reading.labels + found > labels_max:
            reading.position = before
            return room
        reading.tokens += found
        fetch_words(&lexicon.table, tokens, found)
        fetch_long_words(&lexicon.table, tokens, found)
        for i in range(found):
            token = &tokens[i]
            ends = is_sentence_end(token)
            if reading.ended:
                reading.unread += not ends
                if token.text == END_TEXT:
                    end_line(reading, feature_ptr, label_ptr)
                continue
            reading.open = True
            if rules.weighed and is_label(token, rules.prefix, rules.prefix_size):
                name = name_of(token, rules.prefix_size, &weight)
                if name < 0:
                    reading.wrong = token.text
                    return 0
                if name == rules.prefix_size and not isnan(weight):
                    reading.line_weights[reading.lines] = weight
                    continue
                reading.label_weights[reading.labels] = weight
                read_token(token.text, name, &bare)
                token = &bare
            id = find_word(&lexicon.table, token)
            if id >= rules.words:
                labels[reading.labels] = <int32_t>(id - rules.words)
                reading.labels += 1
            elif id >= 0 or not is_label(token, rules.prefix, rules.prefix_size):
                reading.features += add_word(token, id, rules, reading,
                                             features + reading.features)
            if token.text == END_TEXT:
                end_line(reading, feature_ptr, label_ptr)
            else:
                reading.ended = ends
    if reading.open:
        end_line(reading, feature_ptr, label_ptr)
    return 0


cdef int64_t line_ends(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Upper bound of the lines of a text: its newlines and one more."""
    cdef const uint8_t *at = data
    cdef const uint8_t *stop = data + size
    cdef int64_t found = 1
    while at < stop:
        at = <const uint8_t *>memchr(at, 10, stop - at)
        if at == NULL:
            break
        found += 1
        at += 1
    return found


cdef object word_hashes(words):
    """fastText's hash of each word, uint32 (n,): by bytes, which costs more than a look-up."""
    cdef const uint8_t[::1] text = words.text
    cdef const uint64_t[::1] starts = words.starts
    cdef int64_t count = len(words), i
    hashes = np.empty(count, np.uint32)
    cdef uint32_t[::1] out = hashes
    with nogil:
        for i in range(count):
            out[i] = fnv_hash(&text[0] + starts[i], starts[i + 1] - starts[i])
    return hashes


cdef class LineReader:
    """Reads lines of text as features and labels (A. Joulin et al., EACL 2017); threads may share it.

    `words` and `labels`: in the order of their ids.  A token that begins with `label_prefix` is a label,
    known or not.  `word_ngrams`: the longest run of words that is a feature, 1 to 64.  `minn`, `maxn`:
    lengths of character n-grams; `maxn` 0: none.  N-grams of both kinds are hashed to `bucket` rows.
    `normalize`: parts of the normal form that a text is given first (`normal_forms`).
    `weighed`: labels may have weights, and so may lines, as `without_weights` says.
    """

    def __cinit__(self, words: Sequence[bytes], labels: Sequence[bytes], *,
                  bytes label_prefix not None, int word_ngrams=1, int minn=0, int maxn=0,
                  int64_t bucket=0, str normalize="", bint weighed=False):
        cdef uint32_t[::1] of_words
        if not 1 <= word_ngrams <= C_GRAM_MAX:
            raise ValueError(f"expected word_ngrams of 1 to {C_GRAM_MAX}, got {word_ngrams}")
        if not label_prefix:
            raise ValueError("expected a label_prefix of at least one byte, got none")
        hashes = word_ngrams > 1 or maxn > 0
        # Pairs of words need hash rows, too; without n-grams of characters `minn` is not read.
        check_settings(*((minn, maxn) if maxn > 0 else (0, int(hashes))), bucket, len(words))
        self.lexicon = Lexicon(PackedWords.of(words) + PackedWords.of(labels))
        self.prefix = label_prefix
        if normalize:
            self.normaliser = Normaliser(normalize, label_prefix=label_prefix)
        self.rules.prefix = <const uint8_t *>self.prefix
        self.rules.prefix_size = len(label_prefix)
        self.rules.words = len(words)
        self.rules.weighed = weighed
        self.rules.bucket = <uint32_t>bucket
        if bucket > 0:
            self.rules.inverse = <uint64_t>-1 // <uint64_t>bucket
        self.rules.word_ngrams = word_ngrams
        if word_ngrams > 1 and len(words):
            self.hashes = of_words = word_hashes(PackedWords.of(words))
            self.rules.hashes = &of_words[0]
        self.rules.minn = max(minn, 1)
        self.rules.maxn = maxn
        self.space = len(words) + (bucket if hashes else 0)
        if maxn > 0:
            self.keep_bags(words, bucket)

    cdef object keep_bags(self, words, int64_t bucket):
        """Compute the n-grams of the most frequent words, which make up most of a text, only once."""
        frequent = PackedWords.of(words)[:BAGGED_MAX]
        cdef const int64_t[::1] ptr
        cdef const int32_t[::1] ids
        self.bags = subwords_csr(frequent, self.rules.minn, self.rules.maxn, bucket)
        ptr, ids = self.bags
        if ids.shape[0]:
            self.rules.bagged = ptr.shape[0] - 1
            self.rules.bag_ptr = &ptr[0]
            self.rules.bag_ids = &ids[0]
            self.rules.bag_first = <int32_t>(self.rules.words - self.rules.bagged)

    def read(self, const uint8_t[::1] data not None,
             const int64_t[::1] offsets=None) -> Lines:
        """The lines of a text, read without the GIL.

        A last line without a newline has no `</s>`, as in fastText.  With `offsets`, text i is
        ``data[offsets[i]:offsets[i + 1]]``: one line, with its `</s>`, and its newlines are blanks.

        Line i has the features ``features[feature_ptr[i] : feature_ptr[i + 1]]`` (int32; pointers int64):
        words by id, then hashes, all below `space`; labels likewise.  ``tokens``: all tokens, including
        unknown ones and a `</s>` for each newline.  ``unread``: words behind a `</s>` in their line, where
        fastText's `predict` stops; they give neither features nor labels.  Unknown labels are left out;
        unknown words give n-grams only.
        """
        cdef Py_ssize_t size = data.shape[0], texts = 0
        cdef const uint8_t *text = &data[0] if size else NULL
        cdef uint8_t *joined = NULL
        if offsets is None:
            return self.read_normal(text, size)
        texts = offsets.shape[0] - 1
        check_offsets(offsets, size)
        size = offsets[texts] - offsets[0] + texts
        joined = <uint8_t *>malloc(size + 8)
        if joined == NULL:
            raise MemoryError(f"no memory for {size} bytes of text")
        try:
            with nogil:
                join_texts(text, &offsets[0], texts, joined)
            return self.read_normal(joined, size)
        finally:
            free(joined)

    cdef object read_normal(self, const uint8_t *text, Py_ssize_t size):
        cdef Bytes normal
        if self.normaliser is None:
            return self.read_text(text, size)
        memset(&normal, 0, sizeof(Bytes))
        try:
            self.normaliser.normalise(text, size, &normal)
            return self.read_text(normal.data, normal.used)
        finally:
            free(normal.data)

    cdef object read_text(self, const uint8_t *text, Py_ssize_t size):
        cdef Reading reading
        cdef int64_t room, most
        cdef int64_t[::1] feature_at, label_at
        cdef int32_t[::1] feature_view, label_view
        cdef float[::1] line_view, weight_view
        with nogil:
            most = line_ends(text, size) if size else 0
            memset(&reading, 0, sizeof(Reading))
        feature_ptr = np.zeros(most + 1, np.int64)
        label_ptr = np.zeros(most + 1, np.int64)
        feature_at, label_at = feature_ptr, label_ptr
        # English has a word every six bytes; denser text doubles the room.
        features = np.empty((size // 5 + BATCH) * self.rules.word_ngrams, np.int32)
        labels = np.empty(2 * most + BATCH, np.int32)
        # A text may go on in the last line, so that has a place, too.
        line_weights = np.ones(self.rules.weighed * (most + 1), np.float32)
        label_weights = np.empty(self.rules.weighed * len(labels), np.float32)
        while True:
            feature_view, label_view = features, labels
            line_view, weight_view = line_weights, label_weights
            if self.rules.weighed:
                reading.line_weights, reading.label_weights = &line_view[0], &weight_view[0]
            with nogil:
                room = read_lines(self.lexicon, &self.rules, text, size, &reading,
                                  &feature_at[0], &feature_view[0], feature_view.shape[0],
                                  &label_at[0], &label_view[0], label_view.shape[0])
            if reading.wrong != NULL:
                raise wrong_weight(text, size, reading.wrong)
            if room == 0:
                break
            features = grown(features, reading.features, reading.features + room)
            labels = grown(labels, reading.labels, reading.labels + BATCH)
            if self.rules.weighed:
                label_weights = grown(label_weights, reading.labels, len(labels))
        n = reading.lines + 1
        return Lines(feature_ptr[:n], features[:reading.features], label_ptr[:n],
                     labels[:reading.labels], reading.tokens, reading.unread,
                     line_weights[:self.rules.weighed * reading.lines],
                     label_weights[:self.rules.weighed * reading.labels])


cdef object check_offsets(const int64_t[::1] offsets, Py_ssize_t size):
    cdef Py_ssize_t texts = offsets.shape[0] - 1, i
    cdef int bad = texts < 0 or offsets[0] < 0 or offsets[texts] > size
    for i in range(texts):
        bad |= offsets[i] > offsets[i + 1]
    if bad:
        raise ValueError(f"expected offsets that rise from 0 or more to at most {size} bytes")


cdef void join_texts(const uint8_t *data, const int64_t *offsets, Py_ssize_t texts,
                     uint8_t *out) noexcept nogil:
    """Write texts as one line each; newlines within a text become blanks."""
    cdef Py_ssize_t i
    cdef int64_t at, size
    cdef uint8_t byte
    for i in range(texts):
        size = offsets[i + 1] - offsets[i]
        for at in range(size):
            byte = data[offsets[i] + at]
            out[at] = 32 if byte == 10 else byte
        out[size] = 10
        out += size + 1


def grown(array: NDArray[Any], used: int, needed: int) -> NDArray[Any]:
    """The array with room for `needed` entries, at least doubled if it grows."""
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, 2 * len(array)), array.dtype)
    larger[:used] = array[:used]
    return larger


cdef class KeptGrams:
    """Rows of the n-grams that a pruned model kept; `pairs`: int32[k, 2], buckets and their rows.

    Threads may share it.
    """

    def __cinit__(self, const int32_t[:, :] pairs not None):
        cdef Py_ssize_t i
        cdef uint32_t at, bits = 4
        if pairs.shape[1] != 2:
            raise ValueError(f"expected pairs, got {pairs.shape[1]} columns")
        if pairs.shape[0] > <int64_t>1 << 30:   # twice as many slots have numbers of 32 bits
            raise ValueError(f"expected at most 2^30 n-grams, got {pairs.shape[0]}")
        self.pairs_array = np.asarray(pairs)
        self.number = pairs.shape[0]
        while (<int64_t>1 << bits) < 2 * self.number:
            bits += 1
        self.shift = 32 - bits
        self.factor = <uint32_t>int.from_bytes(os.urandom(4), "little") | 1
        self.slots = <KeptRow *>malloc((<size_t>1 << bits) * sizeof(KeptRow))
        if self.slots == NULL:
            raise MemoryError(f"no memory for {self.number} n-grams")
        memset(self.slots, 0xff, (<size_t>1 << bits) * sizeof(KeptRow))
        for i in range(self.number):
            if pairs[i, 0] < 0 or pairs[i, 1] < 0:
                raise ValueError("expected buckets and rows of 0 or more")
            at = self.slot_of(pairs[i, 0])
            if self.slots[at].bucket < 0:       # if a bucket is repeated, its first row counts
                self.slots[at].bucket = pairs[i, 0]
                self.slots[at].row = pairs[i, 1]

    def __dealloc__(self):
        free(self.slots)

    def __len__(self) -> int:
        return self.number

    @property
    def pairs(self) -> NDArray[np.int32]:
        """Buckets and their rows as they were given, int32[k, 2]; of a mapped file a view."""
        return self.pairs_array

    cdef uint32_t slot_of(self, int32_t bucket) noexcept nogil:
        """Where a bucket is, or would be."""
        cdef uint32_t at = (<uint32_t>bucket * self.factor) >> self.shift
        while self.slots[at].bucket >= 0 and self.slots[at].bucket != bucket:
            at = (at + 1) & (<uint32_t>0xffffffff >> self.shift)
        return at

    def rows(self, const int32_t[::1] buckets not None) -> NDArray[np.int32]:
        """The row of each bucket, int32; -1 for one that was pruned, or is negative."""
        cdef Py_ssize_t i
        found = np.empty(buckets.shape[0], np.int32)
        cdef int32_t[::1] out = found
        with nogil:
            for i in range(buckets.shape[0]):
                out[i] = self.slots[self.slot_of(buckets[i])].row if buckets[i] >= 0 else -1
        return found

    cdef int64_t keep_some(self, int32_t *features, int64_t first, int64_t stop, int64_t used,
                           int32_t words) noexcept nogil:
        """Move those of features `first` to before `stop` that have rows behind the first `used` ones; the
        new number of used ones."""
        cdef int64_t at
        cdef int32_t row
        for at in range(first, stop):
            row = features[at]
            if row >= words:
                row = self.slots[self.slot_of(row - words)].row
                if row < 0:
                    continue
                row += words
            features[used] = row
            used += 1
        return used

    def keep(self, lines: Lines, int32_t words) -> Lines:
        """Renumber the n-grams of lines, features from `words` on, by their rows, in place; n-grams without
        rows are removed."""
        cdef int64_t[::1] ptr = lines.feature_ptr
        cdef int32_t[::1] features = lines.features
        cdef int64_t line, stop, used = 0, first = 0
        if not features.shape[0]:
            return lines
        with nogil:
            for line in range(1, ptr.shape[0]):
                stop = ptr[line]
                used = self.keep_some(&features[0], first, stop, used, words)
                ptr[line] = used
                first = stop
        return lines._replace(features=lines.features[:used])
