# One shard's rows as an object; what C code does with them is in tables.pxd.
from snailps.store._base_store cimport BaseStore


cdef class ShardStore(BaseStore):
    pass
