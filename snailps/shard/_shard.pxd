# A shard's compiled half, as an object.
from snailps.shard._context cimport Context
from snailps.shard._python_methods cimport PythonMethods
from snailps.store._store cimport ShardStore
from snailps.transport.loop._handler cimport Handler
from snailps.transport.loop._loop cimport ShardLoop


cdef class ShardCore:
    cdef readonly ShardLoop loop
    cdef readonly ShardStore store
    cdef PythonMethods methods
    cdef Context context
    cdef Handler handler
    cdef object wire_ops            # keeps what context.wire points into
