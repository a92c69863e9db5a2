# A trained classifier, for Cython: see _labelling.pyx.
from libc.stdint cimport int32_t, int64_t

from snailps.kernels._jobs cimport KernelTable, LabellingJob


cdef class Labelling:
    cdef object capsule                 # keeps what table points into
    cdef const KernelTable *table
    cdef LabellingJob job               # without lines and answers
    cdef list kept                      # what the job points into
    cdef readonly Py_ssize_t row_num

    cdef object take_inputs(self, inputs, Py_ssize_t dim)
    cdef object best_of_all(self, const int64_t[::1] ptr, const int32_t[::1] features, int k)
    cdef object all_of(self, const int64_t[::1] ptr, const int32_t[::1] features, float[:, ::1] scores)
    cdef object run(self, LabellingJob job, const int64_t[::1] ptr, const int32_t[::1] features)
