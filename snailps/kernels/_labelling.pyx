# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""A trained classifier's arrays, checked once, and their queries: features of lines -> labels.

    rows of words and n-grams, rows of labels -> Labelling
    features, line by line -> best, chances, hidden -> labels and probabilities

Rows may lie in a mapped file, at any alignment, and are not copied.  The loop is in _label_scores.h.
Must not know texts, names of labels, or files.
"""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

import numpy as np

from snailps.kernels._jobs cimport ONE_VS_ALL, PAD, SOFTMAX, KernelTable, LabellingJob

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **taken, size_t alignment, size_t size)


cdef enum:
    CENTROID_PAD = 4            # the kernel reads four columns at a time
    PLACED_MAX = 32             # up to so many labels of a line are sorted by insertion
    SORTED_ONCE = 1 << 22       # scores


cdef class Labelling:
    """A classifier; any number of threads may query it at once, because nothing is written.

    `inputs`: float32 (rows, dim) at any alignment; or quantised rows: codes uint8 (rows, parts), the
    centroids of all parts in one float32 array, (256, columns of the part) each, columns of a part, and
    codes uint8 (rows,) and values float32 (256,) of lengths, or None for both.  `outputs`: float32
    (labels, stride) from `kernels.padded`, zeros from column `dim` on.  `softmax`: the probabilities of all
    labels sum to 1; else each label has its own.  `children`: int32 (labels - 1, 2), a tree: a number below
    `labels` is a label, others are inner nodes, each the child of a later node; the last is the root.  The
    score of an inner node is for turning to its second child.

    Without `softmax` `shift` is added to the score of a line's best label, `others` to the scores of its other
    labels.  With `apart` a label's share by softmax, of odds o, has the score ``slope * log(o)``, and these
    are added to it.
    """

    def __init__(self, kernels: snailps._kernels.Kernels, inputs: object,
                 const float[:, ::1] outputs not None, int dim, bint softmax,
                 const int32_t[:, ::1] children=None, float shift=0, float others=0, bint apart=False,
                 float slope=1):
        cdef Py_ssize_t label_num = outputs.shape[0]
        if not 1 <= label_num < 1 << 30 or not 1 <= dim <= outputs.shape[1] \
                or outputs.shape[1] % PAD or <uintptr_t>&outputs[0, 0] % (4 * PAD):
            raise ValueError(f"outputs must be of kernels.padded, with a row for each of 1 to 2^30 "
                             f"labels and at least dim = {dim} columns, got {label_num} x "
                             f"{outputs.shape[1]}")
        if children is not None:
            check_tree(np.asarray(children), label_num)
        self.capsule = kernels.capsule
        self.table = <const KernelTable *>PyCapsule_GetPointer(self.capsule, b"snailps.kernels")
        memset(&self.job, 0, sizeof(LabellingJob))
        self.kept = [outputs, children]
        self.take_inputs(inputs, dim)
        self.job.outputs = &outputs[0, 0]
        self.job.children = &children[0, 0] if children is not None and label_num > 1 else NULL
        self.job.label_num = label_num
        self.job.dim = dim
        self.job.stride = outputs.shape[1]
        self.job.loss = SOFTMAX if softmax else ONE_VS_ALL
        self.job.apart, self.job.slope = apart, slope
        self.job.shift, self.job.others = shift, others

    cdef object take_inputs(self, inputs, Py_ssize_t dim):
        if not isinstance(inputs, tuple):
            if inputs.dtype != np.float32 or inputs.ndim != 2 or inputs.shape[1] != dim \
                    or inputs.strides != (4 * dim, 4):
                raise ValueError(f"inputs must be float32[n, {dim}], row by row, got {inputs.dtype}"
                                 f"{list(inputs.shape)}")
            self.job.inputs = <const void *><uintptr_t>inputs.__array_interface__["data"][0]
            self.row_num = inputs.shape[0]
            self.kept.append(inputs)
            return
        codes, centroids, width, norm_codes, norms = inputs
        cdef const uint8_t[:, ::1] of_rows = codes
        cdef const float[::1] of_parts = np.append(centroids, np.zeros(CENTROID_PAD, np.float32))
        cdef const uint8_t[::1] lengths = norm_codes
        cdef const float[::1] of_lengths = norms
        cdef Py_ssize_t parts = of_rows.shape[1]
        if parts < 1 or width < 1 or not (parts - 1) * width < dim <= parts * width \
                or len(centroids) != 256 * dim:
            raise ValueError(f"{parts} parts of {width} columns and {len(centroids)} values of "
                             f"centroids do not make rows of {dim} columns")
        if (norms is None) != (norm_codes is None) or norms is not None and (
                of_lengths.shape[0] != 256 or lengths.shape[0] != of_rows.shape[0]):
            raise ValueError("lengths must be 256 values, and the number of one for each row")
        self.row_num = of_rows.shape[0]
        self.job.codes = &of_rows[0, 0] if self.row_num else NULL
        self.job.centroids = &of_parts[0]
        self.job.part_num = <int>parts
        self.job.part_width = <int>min(width, dim)
        if norms is not None and self.row_num:
            self.job.norm_codes = &lengths[0]
            self.job.norms = &of_lengths[0]
        self.kept += [of_rows, of_parts, lengths, of_lengths]

    cdef object run(self, LabellingJob job, const int64_t[::1] ptr, const int32_t[::1] features):
        cdef char *scratch = NULL
        cdef Py_ssize_t lines = ptr.shape[0] - 1, i
        cdef int bad = lines < 0 or ptr[0] != 0 or ptr[lines] > features.shape[0]
        for i in range(lines):
            bad |= ptr[i] > ptr[i + 1]
        if bad:
            raise ValueError(f"ptr must rise from 0 to at most the {features.shape[0]} features")
        if lines == 0:
            return
        if ptr[lines] and (self.row_num == 0 or not self.table.in_range(
                &features[0], ptr[lines], 0, <int32_t>min(self.row_num - 1, 0x7fffffff))):
            raise ValueError(f"features must lie in 0..{self.row_num - 1}, the rows of inputs")
        job.ptr = &ptr[0]
        job.features = &features[0] if features.shape[0] else NULL
        job.last = lines
        if posix_memalign(<void **>&scratch, 64, <size_t>self.table.labelling_scratch(&job)) != 0:
            raise MemoryError(f"no memory for the scores of {job.label_num} labels")
        with nogil:
            self.table.label_lines(&job, scratch)
            free(scratch)

    def best(self, const int64_t[::1] ptr not None, const int32_t[::1] features not None,
             int k) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the `k` best labels of each line and their probabilities, int32 and float32 [lines, k].

        Line i has the features ``features[ptr[i]:ptr[i + 1]]``, which are rows of `inputs`.  Best
        first, of equal ones the first label; -1 and NaN of a line without features, or behind the
        last label.
        """
        cdef Py_ssize_t lines = max(<Py_ssize_t>0, ptr.shape[0] - 1)
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if k > PLACED_MAX:
            return self.best_of_all(ptr, features, k)
        best, chances = np.empty((lines, k), np.int32), np.empty((lines, k), np.float32)
        cdef int32_t[:, ::1] of_lines = best
        cdef float[:, ::1] likely = chances
        cdef LabellingJob job = self.job
        job.k = k
        if lines:
            job.best = &of_lines[0, 0]
            job.chances = &likely[0, 0]
        self.run(job, ptr, features)
        return best, chances

    cdef object best_of_all(self, const int64_t[::1] ptr, const int32_t[::1] features, int k):
        """Find many labels by sorting: insertion would take time quadratic in their number."""
        cdef Py_ssize_t lines = max(<Py_ssize_t>0, ptr.shape[0] - 1), first, last
        cdef Py_ssize_t step = max(<int64_t>1, SORTED_ONCE // self.job.label_num)
        cdef float[:, ::1] of_labels
        cdef Py_ssize_t number = min(<int64_t>k, self.job.label_num)
        best, chances = np.full((lines, k), -1, np.int32), np.full((lines, k), np.nan, np.float32)
        pointers = np.asarray(ptr)
        for first in range(0, lines, step):
            last = min(first + step, lines)
            own = pointers[first:last + 1]
            scores = np.full((last - first, self.job.label_num), np.nan, np.float32)
            of_labels = scores
            _, all_ = self.all_of(own - own[0], features[own[0]:own[last - first]], of_labels)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :number]
            likely = np.take_along_axis(all_, order, axis=1)
            best[first:last, :number] = np.where(np.isnan(likely), -1, order)
            chances[first:last, :number] = likely
        return best, chances

    def chances(self, const int64_t[::1] ptr not None, const int32_t[::1] features not None
                ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return each line's best label, int32[lines], and all probabilities, float32[lines, labels].

        A line without features gets -1 and NaN.  The best label is the one that `best` returns:
        probabilities may be equal after rounding, so their maximum does not identify it.
        """
        return self.all_of(ptr, features, None)

    cdef object all_of(self, const int64_t[::1] ptr, const int32_t[::1] features, float[:, ::1] scores):
        """Like `chances`; writes the scores that order the labels into `scores`, unless it is None."""
        cdef Py_ssize_t lines = max(<Py_ssize_t>0, ptr.shape[0] - 1)
        best = np.empty(lines, np.int32)
        chances = np.empty((lines, self.job.label_num), np.float32)
        cdef int32_t[::1] of_lines = best
        cdef float[:, ::1] likely = chances
        cdef LabellingJob job = self.job
        job.k = 1
        if lines:
            job.best = &of_lines[0]
            job.all = &likely[0, 0]
            if scores is not None:
                job.scores = &scores[0, 0]
        self.run(job, ptr, features)
        return best, chances

    def hidden(self, const int64_t[::1] ptr not None,
               const int32_t[::1] features not None) -> NDArray[np.float32]:
        """Return the mean of each line's rows, float32[lines, dim]; zeros for a line without features."""
        found = np.empty((max(<Py_ssize_t>0, ptr.shape[0] - 1), self.job.dim), np.float32)
        cdef float[:, ::1] rows = found
        cdef LabellingJob job = self.job
        if len(found):
            job.hidden = &rows[0, 0]
        self.run(job, ptr, features)
        return found


cdef object check_tree(children, Py_ssize_t label_num):
    nodes = np.arange(2 * label_num - 2)
    if children.shape != (label_num - 1, 2) or (np.sort(children.ravel()) != nodes).any() \
            or (children >= label_num + nodes[:label_num - 1, None]).any():
        raise ValueError(f"children must make one tree of {label_num} labels")
