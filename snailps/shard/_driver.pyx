# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard driven by calls: frames in, replies and the stream out, without sockets, threads or time.

    ask(connection, frame) -> Answer: a reply, held until the standby has it, or parked
    take_stream() -> frames for the standby's `replay` -> its answers for `acknowledge`

Frames are bytes, header and body.

What a `ShardLoop` does with sockets, in as far as it concerns the shard: simulations and unit tests put
whole clusters of shards into one process with it.  It is a `Carrier` of `replication.py`.  Nothing in
shipped code makes one.
"""

from dataclasses import dataclass

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from snailps.shard._shard cimport ShardCore
from snailps.transport._frame cimport (
    DATA_BODY_MAX, FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_VERSION, KIND_ERROR, KIND_REPLICATED,
    LIST_UNKEPT, STREAM_BODY_MAX, FrameHeader,
)
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport OUTCOME_PARK, Handler, Outcome, Reply
from snailps.transport.loop._replication_stream cimport (
    STREAM_LOST, STREAM_NONE, Held, Stream, held_forget, held_put, held_take, stream_break,
    stream_close, stream_free, stream_has, stream_is_seeded, stream_listen, stream_lose,
    stream_may_seed, stream_open, stream_take,
)

from snailps.transport.frame import Frame, Kind, encode_frame


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a frame.

    Attributes
    ----------
    frame : bytes or None
        The reply; None = parked, or held until the standby has what it acknowledges.
    reason : str
        Parked: what it waits for.
    limit_s : float
        Parked: how long it may wait; 0 = as long as any other.
    last : bool
        The connection ends behind the reply.
    """

    frame: bytes | None
    reason: str = ""
    limit_s: float = 0.0
    last: bool = False


cdef class ShardDriver:
    """Drives one shard.

    Parameters
    ----------
    core : ShardCore
    """

    cdef ShardCore core
    cdef Handler *handler
    cdef Stream stream
    cdef Faults faults
    cdef dict memories              # connection -> address of its memory
    cdef char *body                 # aligned room for one body
    cdef char *out
    cdef object tell
    cdef public bint woken          # parked requests are to be asked again
    cdef public bint closed         # all connections are to be closed
    cdef public bint primary_heard  # a primary's stream comes in
    cdef uint64_t replayed
    cdef uint64_t replayed_bytes

    def __init__(self, ShardCore core):
        memset(&self.stream, 0, sizeof(Stream))
        memset(&self.faults, 0, sizeof(Faults))
        self.core = core
        self.handler = core.attach(&self.stream, &self.faults)
        self.memories = {}
        self.body = <char *>malloc(STREAM_BODY_MAX)
        self.out = <char *>malloc(DATA_BODY_MAX)
        if self.body == NULL or self.out == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.memories is not None:
            for connection in self.memories:
                self._forget(connection)
        stream_free(&self.stream)
        free(self.body)
        free(self.out)

    # --- requests

    def ask(self, connection, bytes frame):
        """Hands in a data frame of a connection (any number); an `Answer`."""
        cdef Reply reply
        cdef FrameHeader head
        cdef uint64_t place = self.memories.get(connection, 0)
        cdef void *memory = <void *>place
        cdef Outcome outcome
        self._load(frame, &head, DATA_BODY_MAX)
        memset(&reply, 0, sizeof(Reply))
        reply.kind = KIND_ERROR
        reply.reason = b""
        with nogil:
            outcome = self.handler.handle(self.handler.context, &memory, &head, self.body, self.out,
                                          &reply)
        self.memories[connection] = <uint64_t>memory
        self.woken |= reply.wake
        if outcome == OUTCOME_PARK:
            return Answer(None, reply.reason.decode(), reply.limit_s)
        if reply.hold:
            if not held_put(&self.stream, connection, head.request, reply.kind, reply.unkept,
                            reply.hold):
                raise MemoryError
            return Answer(None)
        return Answer(_frame(reply.kind, head.request, self.out[:reply.body_bytes], reply.unkept),
                      last=reply.last)

    def released(self):
        """Replies that waited and may go out by now: list of (connection, frame)."""
        cdef Held first
        found = []
        while held_take(&self.stream, &first):
            found.append((first.conn_id, _frame(first.kind, first.request, b"", first.unkept)))
        return found

    def close(self, connection):
        """The connection has ended: forgets what was kept for it."""
        held_forget(&self.stream, connection)
        self._forget(connection)
        self.memories.pop(connection, None)

    # --- the stream to the standby

    def take_stream(self, double now=0.0):
        """Frames that are to be sent to the standby now; copies more to a new one."""
        cdef Stream *s = &self.stream
        cdef uint64_t n
        if stream_may_seed(s, False, now):
            with nogil:
                self.handler.seed(self.handler.context)
            s.piece_end = s.sent_bytes
        found = []
        while s.out.start < s.out.end:
            n = FRAME_HEADER_BYTES + (<const FrameHeader *>(s.out.data + s.out.start)).body_bytes
            found.append(s.out.data[s.out.start:s.out.start + n])
            s.out.start += n
        s.out.start = s.out.end = 0
        return found

    def acknowledge(self, bytes frame, double now=0.0):
        """Takes an answer of the standby's `replay`."""
        cdef Stream *s = &self.stream
        if not stream_listen(s) or <size_t>len(frame) > s.inp.cap - s.inp.end:
            raise MemoryError
        memcpy(s.inp.data + s.inp.end, <const char *>frame, len(frame))
        s.inp.end += len(frame)
        stream_take(s, now)
        if s.wanted and stream_has(s, s.wanted):
            s.wanted = 0
            self.woken = True
        if stream_is_seeded(s):
            self.tell("ready", "")
        self._end_lost()

    def lose_stream(self, why):
        """The standby cannot be reached any more."""
        text = why.encode()
        stream_break(&self.stream, text)
        self._end_lost()

    def _end_lost(self):
        if self.stream.state == STREAM_LOST and stream_lose(&self.stream):
            self.woken = True
            self.tell("lost", self.stream.why.decode("utf-8", "replace"))

    # --- the stream of a primary

    def replay(self, bytes frame):
        """Hands in a frame of the primary's stream; an `Answer`.

        Done, or refused, which ends the stream: `frame` is for the primary's `acknowledge`.
        """
        cdef Reply reply
        cdef FrameHeader head
        cdef Outcome outcome
        self._load(frame, &head, STREAM_BODY_MAX)
        memset(&reply, 0, sizeof(Reply))
        reply.kind = KIND_REPLICATED
        reply.reason = b""
        self.primary_heard = True
        with nogil:
            outcome = self.handler.replay(self.handler.context, &head, self.body, self.out, &reply)
        self.woken |= reply.wake
        if outcome == OUTCOME_PARK:
            return Answer(None, reply.reason.decode())
        if reply.kind == KIND_ERROR:
            self.primary_heard = False
            return Answer(_frame(KIND_ERROR, 0, self.out[:reply.body_bytes], False), last=True)
        self.replayed += 1
        self.replayed_bytes += FRAME_HEADER_BYTES + head.body_bytes
        return Answer(_frame(KIND_REPLICATED, self.replayed,
                             self.replayed_bytes.to_bytes(8, "little"), False))

    # --- as a Carrier

    def open_stream(self, fd, bint sync, bint paced, tell):
        """Begins a stream; `fd` is any number, and not used."""
        self.tell = tell
        stream_open(&self.stream, sync, paced, 0.0)

    def end_stream(self):
        """Forgets the stream: what waits for it is due."""
        stream_close(&self.stream)
        self.stream.state = STREAM_NONE
        self.stream.holding = False
        self.woken = True

    def end_following(self):
        """The primary is not heard any more."""
        self.primary_heard = False

    def following(self):
        """Whether the primary whose standby this is can be heard."""
        return self.primary_heard

    def await_primary(self):
        """Another primary may begin a stream to this shard."""
        self.primary_heard = False
        self.replayed = self.replayed_bytes = 0

    def close_connections(self):
        """All connections are to be closed: see `closed`."""
        self.closed = True

    def wake(self):
        """Parked requests are to be asked again: see `woken`."""
        self.woken = True

    # ---

    cdef int _load(self, bytes frame, FrameHeader *head, uint64_t most) except -1:
        """Header and body of a frame, checked as far as a loop does."""
        cdef uint64_t n = len(frame)
        if n >= FRAME_HEADER_BYTES:
            memcpy(head, <const char *>frame, FRAME_HEADER_BYTES)
        if n < FRAME_HEADER_BYTES or head.magic != FRAME_MAGIC or head.version != FRAME_VERSION \
                or head.flags or head.body_bytes > most or n != FRAME_HEADER_BYTES + head.body_bytes:
            raise ValueError(f"{n:,} bytes are no data frame")
        memcpy(self.body, <const char *>frame + FRAME_HEADER_BYTES, head.body_bytes)
        return 0

    cdef void _forget(self, connection):
        cdef uint64_t place = self.memories.get(connection, 0)
        self.handler.forget(<void *>place)


cdef bytes _frame(int kind, uint64_t request, bytes body, bint unkept):
    return encode_frame(Frame(Kind(kind), body, LIST_UNKEPT if unkept else 0, request=request))
