# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Labels one short line, or sums one word's rows, without arrays or threads: calls cost little more.

    line, k -> OneLine.best -> numbers and probabilities of its labels; None: use the general way
    word, its number -> OneWord.vector -> the mean of its rows

Longer texts, several lines, and lines that need a warning or an error go through
`label_prediction`, which gives the same answers.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset

import numpy as np

from snailps.data._labelled cimport KeptGrams, LineReader, Reading, read_lines
from snailps.data._subwords cimport bag_of
from snailps.kernels._jobs cimport LabellingJob
from snailps.kernels._labelling cimport Labelling

from snailps.data._subwords import check_settings
from snailps.data.word_counts import END_OF_LINE

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef enum:
    BYTES_MAX = 2000
    FEATURES_MAX = 8192
    LABELS_MAX = 512
    K_MAX = 8
    GRAMS_MAX = 512     # n-grams of a word whose numbers lie on the stack


cdef class OneLine:
    """A reader of lines, a classifier, and for a pruned model the n-grams that have rows."""

    cdef LineReader reader
    cdef Labelling labelling
    cdef KeptGrams kept

    def __init__(self, LineReader reader not None, Labelling labelling not None,
                 KeptGrams kept=None):
        self.reader = reader
        self.labelling = labelling
        self.kept = kept

    def best(self, bytes line not None, int k) -> list[tuple[int, float]] | None:
        """Return up to `k` labels with their probabilities, best first; None: use the general way.

        Nothing is stored in this object, so threads may share it.
        """
        cdef uint8_t text[BYTES_MAX + 8]
        cdef int32_t features[FEATURES_MAX]
        cdef int32_t labels[LABELS_MAX]
        cdef int64_t feature_ptr[3]
        cdef int64_t label_ptr[3]
        cdef int32_t best[K_MAX]
        cdef float chances[K_MAX]
        cdef Reading reading
        cdef LabellingJob job = self.labelling.job
        cdef char *scratch = NULL
        cdef Py_ssize_t size = PyBytes_GET_SIZE(line), i
        cdef int64_t feature_num
        if not 0 < size < BYTES_MAX or not 1 <= k <= K_MAX:
            return None
        if memchr(PyBytes_AS_STRING(line), 10, <size_t>size) != NULL:
            return None
        if self.reader.normaliser is not None:
            line = self.reader.normaliser.of(line)
            size = PyBytes_GET_SIZE(line)
            if size >= BYTES_MAX:
                return None
        memcpy(text, PyBytes_AS_STRING(line), <size_t>size)
        text[size] = 10
        memset(&reading, 0, sizeof(Reading))
        feature_ptr[0] = label_ptr[0] = 0
        if read_lines(self.reader.lexicon, &self.reader.rules, text, size + 1, &reading,
                      feature_ptr, features, FEATURES_MAX, label_ptr, labels, LABELS_MAX) \
                or reading.lines != 1 or reading.unread:
            return None
        feature_num = feature_ptr[1]
        if self.kept is not None:
            feature_num = self.kept.keep_some(features, 0, feature_num, 0,
                                              <int32_t>self.reader.rules.words)
            feature_ptr[1] = feature_num
        for i in range(feature_num):  # a damaged model: the general way raises the error
            if not 0 <= features[i] < self.labelling.row_num:
                return None
        job.ptr = feature_ptr
        job.features = features
        job.last = 1
        job.k = k
        job.best = best
        job.chances = chances
        if posix_memalign(<void **>&scratch, 64,
                          <size_t>self.labelling.table.labelling_scratch(&job)) != 0:
            raise MemoryError(f"no memory for the scores of {job.label_num} labels")
        with nogil:
            self.labelling.table.label_lines(&job, scratch)
            free(scratch)
        if best[0] < 0 < feature_num:  # rows that are not finite: the general way says so
            return None
        return [(best[i], chances[i]) for i in range(k) if best[i] >= 0]


cdef class OneWord:
    """Rows of a fastText model, float32[n, dim] at any alignment; threads may share it.

    Row i of the first `words` is of word i; the row of an n-gram is `words` and its bucket.  `maxn` 0:
    words have no n-grams.  Further rows are not read.
    """

    cdef object rows
    cdef const uint8_t *base
    cdef Py_ssize_t dim
    cdef int64_t words, bucket
    cdef int minn, maxn

    def __init__(self, rows: NDArray[np.float32], int minn, int maxn, int64_t bucket,
                 int64_t words) -> None:
        check_settings(minn, maxn, bucket, words)
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.strides != (4 * rows.shape[1], 4) \
                or rows.shape[0] < words + (bucket if maxn else 0):
            raise ValueError(f"rows must be float32, row by row, at least "
                             f"{words + (bucket if maxn else 0)}, got {rows.dtype}{list(rows.shape)}")
        self.rows = rows
        self.base = <const uint8_t *><uintptr_t>rows.__array_interface__["data"][0]
        self.dim = rows.shape[1]
        self.words, self.bucket, self.minn, self.maxn = words, bucket, minn, maxn

    def __reduce__(self) -> None:
        """Refuse to be pickled: the address of the rows is of this process."""
        raise TypeError("a OneWord cannot be pickled: make one of the rows")

    def vector(self, int64_t number, bytes word not None) -> NDArray[np.float32]:
        """Return the mean of a word's rows, float32[dim]: of its own, then of its n-grams; zeros for
        none.  `number` is the word's place among the words, -1: it is not among them.

        The rows are summed in order, as in fastText.
        """
        cdef int32_t few[GRAMS_MAX]
        cdef int32_t *grams = few
        cdef const uint8_t *text = <const uint8_t *>PyBytes_AS_STRING(word)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(word), d, dim = self.dim
        cdef int64_t gram_num = 0, i, row
        cdef float share
        if not -1 <= number < self.words:
            raise ValueError(f"number must be -1 to {self.words - 1}, got {number}")
        made = np.zeros(dim, np.float32)
        cdef float[::1] sums = made
        if dim == 0:
            return made
        if self.maxn > 0 and word != END_OF_LINE:
            gram_num = bag_of(text, length, self.minn, self.maxn, <uint32_t>self.bucket, 0, NULL)
        if gram_num > GRAMS_MAX:
            grams = <int32_t *>malloc(<size_t>gram_num * sizeof(int32_t))
            if grams == NULL:
                raise MemoryError(f"no memory for {gram_num} n-grams of a word")
        if gram_num:
            bag_of(text, length, self.minn, self.maxn, <uint32_t>self.bucket,
                   <int32_t>self.words, grams)
        share = <float>(1.0 / max(1, gram_num + (number >= 0)))
        if number >= 0:
            add_row(&sums[0], self.base + <size_t>(4 * number * dim), dim)
        for i in range(gram_num):
            row = grams[i]
            add_row(&sums[0], self.base + <size_t>(4 * row * dim), dim)
        for d in range(dim):
            sums[d] *= share
        if grams != few:
            free(grams)
        return made


cdef inline void add_row(float *sums, const uint8_t *row, Py_ssize_t dim) noexcept nogil:
    cdef Py_ssize_t d
    cdef float value
    for d in range(dim):
        memcpy(&value, row + 4 * d, 4)   # rows of a mapped file are not aligned
        sums[d] += value
