# The rounds of a shard's loop: events, a turn for each connection, what waits, the stream, timers.
#
#   listener or relay -> Conn, unknown -> (reception: the handshake) -> opened ... -> closed
#   stream to the standby -> socket -> what is acknowledged
#
# It owns their order and the descriptors, and knows no frame.  Who a peer is, and what its refusal is
# called in the log, the reception knows (`_loop_state.pxd`); what a standby lacks, the handler; what is
# to become of one that is lost, whoever opened the stream.
from snailps.transport.loop._connection cimport Conn
from snailps.transport.loop._loop_state cimport Loop

# Rounds until `stop`, without the GIL.
cdef void run_loop(Loop *loop) noexcept nogil
# One round as of `now`, with what has come so far.
cdef void turn_loop(Loop *loop, double now) noexcept nogil

# Ends a connection: a primary's stream is read to its end first.
cdef void close_conn(Loop *loop, Conn *conn) noexcept nogil
cdef void close_all(Loop *loop) noexcept nogil

# Begins a stream over a connected, authenticated socket; -1 = it cannot be watched, and is the caller's.
cdef int open_stream(Loop *loop, int fd, bint sync, bint paced) noexcept nogil
# Forgets the stream: what waits for it is answered.
cdef void end_stream(Loop *loop) noexcept nogil
cdef void close_stream(Loop *loop) noexcept nogil
