# Handshakes of a shard's new connections; the loop calls it through `Reception` of _event_loop.pxd.
from snailps.transport.loop._event_loop cimport Loop


cdef class Authenticator:
    cdef Loop *loop
    cdef object listener
    cdef object make_session
    cdef dict sessions              # of connections that are not opened
    cdef dict origins               # of relayed ones among them: whose they are
    cdef object attempts
    cdef void take_up(self, Loop *loop)
