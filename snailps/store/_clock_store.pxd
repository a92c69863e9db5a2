# One shard's rows with contributions to clocks, as an object; C code uses `slots` by _clock_buffer.pxd.
from snailps.store._store cimport ShardStore
from snailps.store.core._clock_buffer cimport Slots


cdef class ClockStore(ShardStore):
    cdef Slots slots
