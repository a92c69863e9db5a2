# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A line as a classifier sees it: its labels and its features, as fastText numbers them.

    bytes -> LineReader.read -> Lines: features and labels, line by line
    feature ids -> number_rows -> the different ones, and every id as its place among them

A feature is a word of the vocabulary, a character n-gram of a word, or a hash of consecutive
words.  Must not know rules of vocabularies, or vectors.  The loops run without the GIL.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memmove, memset

from typing import NamedTuple

import numpy as np

from snailps.data._subwords cimport bag_of, fnv_hash
from snailps.data._text cimport (BATCH, Lexicon, Token, fetch_words, find_word, is_sentence_end,
                                 read_token, scan)

from snailps.data._subwords import check_settings
from snailps.data.packed_words import PackedWords

cdef enum:
    C_GRAM_MAX = 64         # longest word n-gram
    NUMBER_AHEAD = 24       # ids whose places are asked for before they are needed

cdef extern from *:
    """
    #define snail_fetch_place(p) __builtin_prefetch((p), 1, 3)
    """
    void fetch "snail_fetch_place"(const void *p) noexcept nogil

# fastText's multiplier of word n-grams.
cdef uint64_t GRAM_STEP = 116049371
cdef const uint8_t *END_TEXT = b"</s>\0\0\0\0"
cdef Token END
read_token(END_TEXT, 4, &END)

GRAM_MAX: int = C_GRAM_MAX


class Lines(NamedTuple):
    """A text as lines of features; see `LineReader.read`."""

    feature_ptr: NDArray[np.int64]
    features: NDArray[np.int32]
    label_ptr: NDArray[np.int64]
    labels: NDArray[np.int32]
    tokens: int
    unread: int


cdef struct Rules:
    const uint8_t *prefix       # of labels
    Py_ssize_t prefix_size
    int64_t words               # ids from here on are labels
    uint32_t bucket
    int word_ngrams
    int minn
    int maxn


cdef struct Reading:
    int64_t position            # in the text
    int64_t features            # written so far, like the next two
    int64_t labels
    int64_t lines               # finished
    int64_t tokens              # read
    int64_t unread              # words behind a `</s>` of their line
    bint open                   # the present line has tokens
    bint ended                  # one token was `</s>`: the rest of the line is not read
    int gram_num                # word n-grams that the next word extends:
    uint64_t grams[C_GRAM_MAX]  # the latest first


cdef inline int64_t room_for(const Token *tokens, int found, const Rules *rules) noexcept nogil:
    """Most features of these tokens: a word, its subwords, the word n-grams it ends."""
    cdef int64_t room = found * <int64_t>rules.word_ngrams
    cdef int i
    if rules.maxn > 0:
        for i in range(found):
            room += (tokens[i].length + 2) * min(<int64_t>(rules.maxn - rules.minn + 1),
                                                 tokens[i].length + 2)
    return room


cdef inline int64_t add_word(const Token *token, int64_t id, const Rules *rules, Reading *reading,
                             int32_t *out) noexcept nogil:
    """Write what a word adds to its line's features; the count."""
    cdef int64_t used = 0
    cdef uint64_t hashed
    cdef int i
    if id >= 0:
        out[0] = <int32_t>id
        used = 1
    if rules.maxn > 0 and not is_sentence_end(token):
        used += bag_of(token.text, token.length, rules.minn, rules.maxn, rules.bucket,
                       <int32_t>rules.words, out + used)
    if rules.word_ngrams > 1:
        # fastText keeps the hash as a signed 32-bit number: large ones flip the upper half.
        hashed = <uint64_t><int64_t><int32_t>fnv_hash(token.text, token.length)
        for i in range(reading.gram_num):
            reading.grams[i] = reading.grams[i] * GRAM_STEP + hashed
            out[used] = <int32_t>(rules.words + <int64_t>(reading.grams[i] % rules.bucket))
            used += 1
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
    """Read to the end (0), or until the next batch might not fit: the features it may need."""
    cdef Token tokens[BATCH]
    cdef const Token *token
    cdef int64_t before
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
        for i in range(found):
            token = &tokens[i]
            ends = is_sentence_end(token)
            if reading.ended:
                reading.unread += not ends
                if token.text == END_TEXT:
                    end_line(reading, feature_ptr, label_ptr)
                continue
            reading.open = True
            id = find_word(&lexicon.table, token)
            if id >= rules.words:
                labels[reading.labels] = <int32_t>(id - rules.words)
                reading.labels += 1
            elif (id >= 0 or token.length < rules.prefix_size
                    or memcmp(token.text, rules.prefix, rules.prefix_size) != 0):
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
    """Most lines of a text: one behind each newline."""
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


cdef class LineReader:
    """Lines of text -> features and labels (A. Joulin et al., EACL 2017); any thread may read at once.

    `words` and `labels` are in id order; all that begins with `label_prefix` is a label, known or not.
    `word_ngrams`, 1 to 64, is the longest run of words that is a feature; `minn` and `maxn` are those of
    character n-grams, `maxn` 0: none.  Both are hashed to `bucket` rows.
    """

    cdef Lexicon lexicon
    cdef Rules rules
    cdef bytes prefix
    cdef readonly int64_t space

    def __cinit__(self, words: Sequence[bytes], labels: Sequence[bytes], *,
                  bytes label_prefix not None, int word_ngrams=1, int minn=0, int maxn=0,
                  int64_t bucket=0):
        if not 1 <= word_ngrams <= C_GRAM_MAX:
            raise ValueError(f"expected word_ngrams of 1 to {C_GRAM_MAX}, got {word_ngrams}")
        if not label_prefix:
            raise ValueError("expected a label_prefix of at least one byte, got none")
        hashes = word_ngrams > 1 or maxn > 0
        check_settings(minn, maxn if maxn > 0 else int(hashes), bucket, len(words))
        self.lexicon = Lexicon(PackedWords.of(words) + PackedWords.of(labels))
        self.prefix = label_prefix
        self.rules.prefix = <const uint8_t *>self.prefix
        self.rules.prefix_size = len(label_prefix)
        self.rules.words = len(words)
        self.rules.bucket = <uint32_t>bucket
        self.rules.word_ngrams = word_ngrams
        self.rules.minn = max(minn, 1)
        self.rules.maxn = maxn
        self.space = len(words) + (bucket if hashes else 0)

    def read(self, const uint8_t[::1] data not None) -> Lines:
        """The lines of a text, without the GIL; a last line without newline has no `</s>`, as in
        fastText.

        Line i has ``features[feature_ptr[i] : feature_ptr[i + 1]]`` (int32; int64 pointers), words by
        id, hashes behind them, below `space`; labels likewise.  ``tokens`` counts all, unknown ones and
        one `</s>` a newline included; ``unread`` the words behind a `</s>` of their line, where
        fastText's `predict` ends: neither features nor labels.  Unknown labels are left out, unknown
        words are in n-grams only.
        """
        cdef Py_ssize_t size = data.shape[0]
        cdef const uint8_t *text = &data[0] if size else NULL
        cdef Reading reading
        cdef int64_t room, most
        cdef int64_t[::1] feature_at, label_at
        cdef int32_t[::1] feature_view, label_view
        with nogil:
            most = line_ends(text, size) if size else 0
            memset(&reading, 0, sizeof(Reading))
        feature_ptr = np.zeros(most + 1, np.int64)
        label_ptr = np.zeros(most + 1, np.int64)
        feature_at, label_at = feature_ptr, label_ptr
        # English has a word every six bytes; denser text doubles the room.
        features = np.empty((size // 5 + BATCH) * self.rules.word_ngrams, np.int32)
        labels = np.empty(2 * most + BATCH, np.int32)
        while True:
            feature_view, label_view = features, labels
            with nogil:
                room = read_lines(self.lexicon, &self.rules, text, size, &reading,
                                  &feature_at[0], &feature_view[0], feature_view.shape[0],
                                  &label_at[0], &label_view[0], label_view.shape[0])
            if room == 0:
                break
            features = grown(features, reading.features, reading.features + room)
            labels = grown(labels, reading.labels, reading.labels + BATCH)
        n = reading.lines + 1
        return Lines(feature_ptr[:n], features[:reading.features], label_ptr[:n],
                     labels[:reading.labels], reading.tokens, reading.unread)


def grown(array: NDArray[Any], used: int, needed: int) -> NDArray[Any]:
    """The array with room for `needed` entries, at least doubled if it grows."""
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, 2 * len(array)), array.dtype)
    larger[:used] = array[:used]
    return larger


def number_rows(int32_t[::1] ids not None, int32_t[::1] place not None) -> NDArray[np.int32]:
    """Number ids by first appearance, in place; return the different ids (int32) in this order.

    Ids are below ``len(place)``; an id out of range leaves `ids` partly numbered.  `place` is all -1
    before and after, and no two calls at once may share it.  No sorting; frequent ids, which appear
    first, get low numbers.
    """
    cdef int64_t n = ids.shape[0], most = place.shape[0], used = 0, i, bad = -1
    cdef int32_t id
    if n == 0:
        return np.empty(0, np.int32)
    different = np.empty(min(n, most), np.int32)
    if most == 0:
        raise ValueError(f"expected no ids for an empty place, got {n}")
    cdef int32_t[::1] out = different
    with nogil:
        for i in range(n):
            if i + NUMBER_AHEAD < n:    # an address outside is harmless
                fetch(&place[0] + ids[i + NUMBER_AHEAD])
            id = ids[i]
            if id < 0 or id >= most:
                bad = i
                break
            if place[id] < 0:
                place[id] = <int32_t>used
                out[used] = id
                used += 1
            ids[i] = place[id]
        for i in range(used):
            place[out[i]] = -1
    if bad >= 0:
        raise ValueError(f"expected ids of 0 to {most - 1}, got {ids[bad]}")
    return different[:used].copy()
