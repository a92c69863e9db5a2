# The exchange: new requests in, all links served in turns, lost links handed to the mender.
#
#   callers -> fresh -> queues of the links <-> shards        links lost -> mender -> links again
#
# It is done by the client's thread, or by a caller that waits for an answer: two wake-ups less,
# which is most of what a short pull costs.  Whoever does it holds `Core.turn`.
# Never takes the GIL.  `Core` and `Link` are in `_link.pxd`; threads and arrays are the caller's.
from libc.stdint cimport int64_t, uint32_t

from snailps.transport.client._link cimport Core
from snailps.transport.client._request cimport Request

# A core with its links, not connected; NULL = no memory.
cdef Core *core_new(uint32_t shards) noexcept nogil
cdef void core_free(Core *core) noexcept nogil
# Closes what is connected; the client's thread does not run (any more).
cdef void close_links(Core *core) noexcept nogil
# The last word: fails what is left; requests that come later fail in `enqueue`.
cdef void end_exchange(Core *core) noexcept nogil
# Hands in a request; False = it has failed already: the client has ended.  Without `wake` the caller
# will `drive`.
cdef bint enqueue(Core *core, Request *r, bint wake) noexcept nogil
# Something is new: whoever serves the links shall look.
cdef void wake_exchange(Core *core) noexcept nogil
# The client's thread: serves until `stop`, when no caller does.
cdef void exchange(Core *core) noexcept nogil
# Serves the links in the caller's thread until the request is done or the time has come; does nothing
# while another one serves: then that one was told of the request.
cdef void drive(Core *core, const Request *r, double until_s) noexcept nogil
# Waits for a lost link whose time has come and returns its shard; -1 = the client ends.
cdef int64_t next_to_mend(Core *core) noexcept nogil
# A link could not be mended: once more after a pause; False = it was out of reach for too long.
cdef bint mend_again(Core *core, uint32_t shard, double pause_s) noexcept nogil
# The route is another: links are mended at once, whatever the pause.
cdef void mend_now(Core *core, uint32_t epoch) noexcept nogil
