# The connections of a client as an object: requests are handed in here, and waited for.
from libc.stdint cimport uint32_t

from snailps.transport.client._link cimport Core
from snailps.transport.client._request cimport Request


cdef class Connections:
    cdef Core *core
    cdef object connect
    cdef list threads               # the client's own, and the mender; none before `start`
    cdef object wire_ops            # keeps what core.wire points into
    cdef object requests            # kept as long as the threads run: they read what it owns
    cdef list names
    cdef void hand_in(self, Request *r, bint wake) noexcept
    cdef void send_held(self) noexcept
    cdef bint wait_until(self, Request *r, double until_s)
    cdef unanswered_by(self, Request *r)
    cdef why_ended(self)
    cdef check_shard(self, uint32_t shard)
