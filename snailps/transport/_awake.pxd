# The clock of waits; see the module.
cdef double now_s() noexcept nogil          # seconds in which this process was not stopped
cdef double slept_s() noexcept nogil        # monotonic time less that
