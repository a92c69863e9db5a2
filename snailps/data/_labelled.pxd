# Lines of a classifier, for Cython: see _labelled.pyx.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from snailps.data._normaliser cimport Normaliser
from snailps.data._text cimport Lexicon, Token

cdef enum:
    C_GRAM_MAX = 64             # longest word n-gram

cdef struct Rules:
    const uint8_t *prefix       # of labels
    Py_ssize_t prefix_size
    int64_t words               # ids from here on are labels
    uint32_t bucket
    uint64_t inverse            # 2^64 / bucket
    int64_t bagged              # words whose n-grams are precomputed: those of id i are
    const int64_t *bag_ptr      # bag_ids[bag_ptr[i] + 1 : bag_ptr[i + 1]] + bag_first
    const int32_t *bag_ids
    int32_t bag_first
    int word_ngrams
    int minn
    int maxn
    bint weighed                # labels may have weights
    const uint32_t *hashes      # of each word, where runs of words are features


cdef struct Reading:
    int64_t position            # in the text
    int64_t features            # written so far, like the next two
    int64_t labels
    int64_t lines               # finished
    int64_t tokens              # read
    int64_t unread              # words after a `</s>` in their line
    bint open                   # the current line has tokens
    bint ended                  # the current line has had a `</s>`: its rest is not read
    # only if `Rules.weighed`:
    float *line_weights         # of each line
    float *label_weights        # of each label; NaN: the text has none
    const uint8_t *wrong        # a label whose weight is none, or NULL
    int gram_num                # word n-grams that the next word extends:
    uint64_t grams[C_GRAM_MAX]  # the latest first


# Reads to the end (0), or until the next batch might not fit: then the features that it may need.
cdef int64_t read_lines(Lexicon lexicon, const Rules *rules, const uint8_t *data, Py_ssize_t size,
                        Reading *reading, int64_t *feature_ptr, int32_t *features,
                        int64_t features_max, int64_t *label_ptr, int32_t *labels,
                        int64_t labels_max) noexcept nogil


cdef class LineReader:
    cdef Lexicon lexicon
    cdef Rules rules
    cdef readonly Normaliser normaliser     # None: texts are read as they are
    cdef bytes prefix
    cdef object hashes          # keeps the hashes of words
    cdef tuple bags             # keeps the n-grams of frequent words
    cdef readonly int64_t space

    cdef object keep_bags(self, words, int64_t bucket)
    cdef object read_normal(self, const uint8_t *text, Py_ssize_t size)
    cdef object read_text(self, const uint8_t *text, Py_ssize_t size)


cdef struct KeptRow:
    int32_t bucket              # -1: no row
    int32_t row


cdef class KeptGrams:
    cdef KeptRow *slots         # open addressing, at most half full
    cdef uint32_t shift
    cdef uint32_t factor        # odd and random: no file can make its buckets collide
    cdef readonly Py_ssize_t number
    cdef object pairs_array

    cdef uint32_t slot_of(self, int32_t bucket) noexcept nogil
    cdef int64_t keep_some(self, int32_t *features, int64_t first, int64_t stop, int64_t used,
                           int32_t words) noexcept nogil
