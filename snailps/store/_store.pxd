# One shard's rows as an object; what C code does with them is in tables.pxd and _clock_buffer.pxd.
from libc.stdint cimport uint32_t

from snailps.store.core._clock_buffer cimport Slots
from snailps.store.tables cimport Shard, Table


cdef class ShardStore:
    cdef Shard *shard       # lives as long as this object
    cdef Slots slots        # what is staged for its present clock
    cdef readonly dict retentions  # type: dict[int, tuple[int, int, int, int]]  # by table, as declared
    cdef object _ops        # keeps the capsule of row operations and its module alive
    cdef Table *_table(self, table_id) except NULL
    cdef uint32_t _fragment(self, fragment) except? 0xFFFFFFFF
