# Tables whose access method is written in Python: what the shard's C code calls, with a PythonMethods.
from libc.stdint cimport uint32_t, uint64_t

from snailps.shard._context cimport Context, RowRequest
from snailps.store._store cimport ShardStore
from snailps.store.core._clock_buffer cimport Sums
from snailps.store.tables cimport Table
from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._handler cimport Reply


cdef class PythonMethods:
    cdef ShardStore store
    cdef Context *context
    cdef dict methods               # table number -> instance of AccessMethod
    cdef public object clock_error  # type: Exception | None  # a method failed when a clock was closed
    cdef public object obey  # type: Callable[[bytes], None] | None  # executes an order (JSON) of a primary's stream


cdef bint python_pull(void *methods, Table *table, uint32_t number, const RowRequest *asked,
                      bint state, float *rows, char *out, Reply *reply) noexcept with gil
cdef bint python_push(void *methods, Table *table, const FrameHeader *head, const RowRequest *asked,
                      char *out, Reply *reply) noexcept with gil
cdef bint python_sums(void *methods, Table *table, const Sums *sums) noexcept with gil
cdef bint python_scan(void *methods, Table *table, uint32_t number, uint32_t fragment,
                      uint64_t *cursor, uint64_t *keys, float *rows, uint32_t *n, uint32_t room,
                      char *out, Reply *reply) noexcept with gil
# Puts the words of the access method that failed into a refusal, if one did.
cdef void explain_broken(void *methods, char *out, Reply *reply) noexcept with gil
# Does an order that came in a stream; `reply` is an ERROR where it cannot be done.
cdef void obey_order(void *methods, const char *text, uint64_t n, char *out,
                     Reply *reply) noexcept with gil
