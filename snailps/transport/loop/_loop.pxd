# The shard's loop as an object: what a shard does with it.
from snailps.transport.loop._authentication cimport Authenticator
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport Handler
from snailps.transport.loop._event_loop cimport Loop
from snailps.transport.loop._replication_stream cimport Stream


cdef class ShardLoop:
    cdef Loop *loop
    cdef object listener
    cdef Authenticator receptionist
    cdef object commands        # deque: what is to run, oldest first; None ends the loop
    cdef object orders          # deque of (frame, command, result): what waits for the standby
    cdef object commands_lock
    cdef bint ended
    cdef object owner
    cdef object report
    cdef object thread_id
    cdef Stream *stream(self)
    cdef Faults *faults(self)
    cdef void set_handler(self, Handler *handler, object owner)
