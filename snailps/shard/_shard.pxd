# A shard without thread, connections or time, as an object.
from snailps.shard._context cimport Context
from snailps.shard._python_methods cimport PythonMethods
from snailps.store._store cimport ShardStore
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport Handler
from snailps.transport.loop._replication_stream cimport Stream


cdef class ShardCore:
    cdef readonly ShardStore store
    cdef PythonMethods methods
    cdef Context context
    cdef Handler handler
    cdef object wire_ops            # keeps what context.wire points into
    # Whose stream and faults it uses; they must outlive it.
    cdef Handler *attach(self, Stream *stream, Faults *faults)
