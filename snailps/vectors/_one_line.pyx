# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Labels one short line without arrays or threads, in about the time of the classifier alone.

    line, k -> OneLine.best -> numbers and probabilities of its labels; None: use the general way

Longer texts, several lines, and lines that need a warning or an error go through
`label_prediction`, which gives the same answers.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcpy, memset

from snailps.data._labelled cimport KeptGrams, LineReader, Reading, read_lines
from snailps.kernels._jobs cimport LabellingJob
from snailps.kernels._labelling cimport Labelling

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)

cdef enum:
    BYTES_MAX = 2000
    FEATURES_MAX = 8192
    LABELS_MAX = 512
    K_MAX = 8


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
        return [(best[i], chances[i]) for i in range(k) if best[i] >= 0]
