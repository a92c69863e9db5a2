# What a shard has besides its requests: store, loop, context, methods; and its side of replication.
from snailps.shard._python_methods cimport Methods
from snailps.shard._row_request cimport Context
from snailps.store._clock_store cimport ClockedStore
from snailps.transport.loop._loop cimport ShardLoop


cdef class ReplicatedShard:
    cdef ClockedStore store
    cdef ShardLoop loop
    cdef Context context
    cdef Methods methods
    cdef object thread
