# One shard's rows with contributions to clocks, as an object; C code uses `slots` by _slots.pxd.
from snailps.store._slots cimport Slots
from snailps.store._store cimport ShardStore


cdef class ClockedStore(ShardStore):
    cdef Slots slots
