# What becomes of frames: answered, parked, replayed or refused; and of what waited, when it need not.
#
#   input buffer -> frame, checked in place -> Handler.handle -> output buffer, or parked
#                                           -> Handler.replay -> acknowledged, of a primary's stream
#   parked requests -> Handler.handle -> output buffer          held replies -> output buffer
#
# It owns no connection and closes none: one that has to end is told to (`closing`), marked (`lost`), or
# named to the caller (-1).  It knows the frame header and nothing of tables, keys or rows.
from snailps.transport.loop._connection cimport Conn
from snailps.transport.loop._loop_state cimport Loop

# Handles complete frames in the input buffer, for one turn; -1 = connection to be closed.
cdef int serve(Loop *loop, Conn *conn) noexcept nogil
# Tries every parked request again, oldest first, and gives up those past their deadline.
cdef void retry_parked(Loop *loop) noexcept nogil
# Sends the replies that waited for what the standby has by now, and wakes requests that did.
cdef void release_held(Loop *loop) noexcept nogil
