# What a shard has besides its requests: store, loop, context, methods; and its side of replication.
from snailps.shard._python_methods cimport PythonMethods
from snailps.shard._row_request cimport Context
from snailps.store._store cimport ShardStore
from snailps.transport.loop._loop cimport ShardLoop


cdef class ReplicatedShard:
    cdef ShardStore store
    cdef ShardLoop loop
    cdef Context context
    cdef PythonMethods methods
    cdef object thread
