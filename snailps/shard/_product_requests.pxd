# FORWARD and BACKWARD: a first layer whose weights stay where they live.
from libc.stdint cimport uint32_t

from snailps.shard._connection_memory cimport ConnectionMemory
from snailps.shard._context cimport Context
from snailps.store.tables cimport Table
from snailps.transport._frame cimport FrameHeader
from snailps.transport.loop._handler cimport Outcome, Reply


cdef Outcome forward(Context *me, ConnectionMemory *mine, Table *table, const FrameHeader *head,
                     const char *body, char *out, Reply *reply) noexcept nogil
cdef Outcome backward(Context *me, ConnectionMemory *mine, Table *table, const FrameHeader *head,
                      const char *body, char *out, Reply *reply) noexcept nogil
