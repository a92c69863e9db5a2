# What a shard has, as an object; what C code does with it is in tables.pxd.
from libc.stdint cimport uint32_t

from snailps.store.tables cimport Shard, Table


cdef class BaseStore:
    cdef Shard *shard       # lives as long as this object
    cdef object _ops        # keeps the capsule of row operations, and so its module, alive
    cdef Table *_table(self, table_id) except NULL
    cdef Table *_tracking(self, table_id, what) except NULL
    cdef uint32_t _fragment(self, fragment) except? 0xFFFFFFFF
