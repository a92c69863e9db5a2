# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A shard driven by calls: frames in, replies and the stream out, without sockets, threads or time.

    ask(connection, frame) -> Answer: a reply, held until the standby has it, or parked
    take_stream() -> frames for the standby's `replay` -> its answers for `acknowledge`
    turn(now) -> what has become due: held and parked replies, refusals, acknowledgements

Frames are bytes, header and body.  Connections and links are numbers of the caller.

What a `ShardLoop` does with sockets, in as far as it concerns the shard: simulations and unit tests put
whole clusters of shards into one process with it.  It is a `Carrier` of `replication.py`.  Nothing in
shipped code makes one.
"""

import json
import math
from collections import deque
from dataclasses import dataclass

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from snailps.shard._shard cimport ShardCore
from snailps.transport._frame cimport (
    DATA_BODY_MAX, FRAME_HEADER_BYTES, FRAME_MAGIC, FRAME_VERSION, KIND_ERROR, KIND_REPLICATED,
    STREAM_BODY_MAX, FrameHeader, kind_keeps_order,
)
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport OUTCOME_PARK, Handler, Outcome, Reply
from snailps.transport.loop._replication_stream cimport (
    SEED_BYTES, STREAM_BYTES_MAX, STREAM_LOST, STREAM_NONE, STREAM_SEEDING, Held, Stream, held_forget, held_put,
    held_take, order_is_there, order_until, stream_break, stream_close, stream_free, stream_has,
    stream_is_seeded, stream_limit, stream_listen, stream_lose, stream_may_seed, stream_open,
    stream_probe, stream_take, stream_waiting,
)

from snailps.errors import ConnectionLost, ProtocolError
from snailps.transport.frame import Frame, Kind, encode_frame
from snailps.transport.handshake import remote_error

ASKED_S = 1.0                           # as in the loop: after a request, seeding is paced for so long
TIMER_S = 0.1                           # ... and how often deadlines are looked at
TINY_S = 1e-6                           # more than sums of times are inexact by
BEHIND = "an earlier push of the same connection, which itself waits"


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a frame: the reply, or None where it is parked or held for the standby.

    `reason` and `limit_s`: what a parked one waits for, and how long; 0 as any.  `last`: the
    connection ends behind the reply.
    """

    frame: bytes | None
    reason: str = ""
    limit_s: float = 0.0
    last: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame that goes out on a connection; `last`: the connection ends behind it."""

    connection: int
    frame: bytes
    last: bool = False


class _Parked:
    __slots__ = ("connection", "deadline", "frame", "reason", "since")

    def __init__(self, connection, frame, reason, since, limit_s):
        self.connection, self.frame, self.reason = connection, frame, reason
        self.since, self.deadline = since, since + limit_s


cdef class ShardDriver:
    """Drives one shard; limits as of `ShardLoop`.

    `link`: given to `open_stream`, -1 for none.  `woken`: `turn` retries parked requests.  The
    caller handles and resets `closed` (close all connections), `hung_up` (connections to close) and
    `cut_links` (links to close).  `primary_heard`: a primary's stream comes in.  After each call
    that may have changed the shard, call `turn` and `take_stream` until neither gives anything;
    nothing more happens before `due`.
    """

    cdef ShardCore core
    cdef Handler *handler
    cdef Stream stream
    cdef Faults faults
    cdef dict memories              # connection -> address of its memory
    cdef char *body                 # aligned room for one body
    cdef char *out
    cdef object tell
    cdef public object link  # type: int
    cdef public bint woken
    cdef public bint closed
    cdef public list hung_up  # type: list[int]
    cdef public list cut_links  # type: list[int]
    cdef public bint primary_heard
    cdef double park_limit_s
    cdef double silence_limit_s
    cdef double stuck_limit_s
    cdef double now
    cdef double asked_at
    cdef double timers_at
    cdef bint seeding               # more can be copied at once
    cdef bint ended
    cdef list parked                # _Parked, in order
    cdef set closing                # connections whose last word is said
    cdef object orders              # (number, done, result) that the standby has yet to execute
    cdef object follows             # connection of the primary whose standby this is; None = none so far
    cdef object stuck               # frames of the primary that wait
    cdef double stuck_since
    cdef uint64_t replayed
    cdef uint64_t replayed_bytes
    cdef uint64_t frames_in
    cdef uint64_t refused

    def __init__(self, ShardCore core, double park_limit_s=60.0, double silence_limit_s=30.0,
                 double stuck_limit_s=24.0):
        memset(&self.stream, 0, sizeof(Stream))
        memset(&self.faults, 0, sizeof(Faults))
        self.core = core
        self.handler = core.attach(&self.stream, &self.faults)
        self.memories = {}
        self.body = <char *>malloc(STREAM_BODY_MAX)
        self.out = <char *>malloc(DATA_BODY_MAX)
        if self.body == NULL or self.out == NULL:
            raise MemoryError
        self.link = -1
        self.hung_up, self.cut_links = [], []
        self.park_limit_s, self.silence_limit_s = park_limit_s, silence_limit_s
        self.stuck_limit_s = stuck_limit_s
        self.asked_at = -math.inf
        self.parked, self.closing = [], set()
        self.orders, self.stuck = deque(), deque()

    def __dealloc__(self):
        if self.memories is not None:
            for connection in self.memories:
                self._forget(connection)
        stream_free(&self.stream)
        free(self.body)
        free(self.out)

    # --- requests

    def ask(self, connection: int, bytes frame, double now=0.0) -> Answer:
        """Take a data frame of a connection; results of parked or held frames come of `turn`."""
        cdef FrameHeader head
        self._load(frame, &head, DATA_BODY_MAX)
        self.now = max(self.now, now)
        self.asked_at = self.now
        self.frames_in += 1
        for one in self.parked:
            if one.connection == connection and _keeps_order(one.frame):
                self.parked.append(_Parked(connection, frame, BEHIND, self.now, self.park_limit_s))
                return Answer(None, BEHIND)
        answer, held = self._attempt(connection, frame)
        if answer.frame is None and not held:
            limit_s = max(answer.limit_s, self.park_limit_s)
            self.parked.append(_Parked(connection, frame, answer.reason, self.now, limit_s))
        return answer

    def released(self) -> list[tuple[int, bytes]]:
        """Held replies that may go out: (connection, frame)."""
        cdef Held first
        found = []
        while held_take(&self.stream, &first):
            found.append((first.conn_id, _frame(first.kind, first.request, b"")))
        return found

    def close(self, connection: int) -> None:
        """The connection has ended."""
        held_forget(&self.stream, connection)
        self.parked = [one for one in self.parked if one.connection != connection]
        self.closing.discard(connection)
        self._forget(connection)
        self.memories.pop(connection, None)
        if connection == self.follows:
            self._drain()
            self.primary_heard = False
            if self.replayed == 0:
                self.follows = None     # it said nothing: another may come

    def _attempt(self, connection, bytes frame):
        """Ask the handler: an `Answer`, and whether it is held."""
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
        if outcome == OUTCOME_PARK:
            return Answer(None, reply.reason.decode(), reply.limit_s), False
        self.woken |= reply.wake
        if reply.hold:
            if not held_put(&self.stream, connection, head.request, reply.kind, reply.hold):
                raise MemoryError
            return Answer(None), True
        if reply.kind == KIND_ERROR:
            self.refused += 1
        if reply.last:
            self.closing.add(connection)
        return Answer(_frame(reply.kind, head.request, self.out[:reply.body_bytes]),
                      last=reply.last), False

    def _retry(self):
        """Retry what is parked; what goes out.  Nothing overtakes a push of its connection."""
        found, kept, blocked = [], [], set()
        for one in self.parked:
            if one.connection in self.closing:
                continue
            if one.connection not in blocked:
                answer, held = self._attempt(one.connection, one.frame)
                if held:
                    continue
                if answer.frame is not None:
                    found.append(Sent(one.connection, answer.frame, answer.last))
                    continue
                one.reason = answer.reason
                one.deadline = max(one.deadline, one.since + answer.limit_s)
            else:
                one.reason = BEHIND
            if self.now > one.deadline:
                text = f"waited {self.now - one.since:.1f} s at the shard for {one.reason}"
                found.append(Sent(one.connection, _error("timeout", text, _request(one.frame))))
                self.refused += 1
                continue
            if _keeps_order(one.frame):
                blocked.add(one.connection)
            kept.append(one)
        self.parked = kept
        return found

    # --- time

    def turn(self, double now) -> list[Sent]:
        """Frames that go out by now, in order.

        Retries parked requests and frames of the primary, refuses overdue ones, gives up a silent
        standby.
        """
        self.now = max(self.now, now)
        found = []
        timers = self.now - self.timers_at > TIMER_S - TINY_S
        if timers:
            self.timers_at = self.now
        if timers and self.link != -1:
            stream_probe(&self.stream, self.now)    # its time begins with the first frame
            stream_limit(&self.stream, self.silence_limit_s, self.now)
        self._end_lost()
        if self.stuck and (timers or self.woken):
            found += self._go_on()
        if timers and self.parked:
            self.woken = True
        while self.woken:
            self.woken = False
            found += self._retry()
        found += [Sent(connection, frame) for connection, frame in self.released()]
        self._complete()
        return found

    @property
    def due(self) -> float:
        """When `turn` and `take_stream` must be called next; -inf: at once; inf: nothing waits."""
        cdef Stream *s = &self.stream
        if self.woken or self.seeding:
            return -math.inf
        at = math.inf
        if self.parked or self.stuck:
            at = self.timers_at + TIMER_S
        if self.link != -1 and s.state != STREAM_LOST and s.sent > s.acked:
            at = min(at, max(self.timers_at + TIMER_S, s.moved_at + self.silence_limit_s + TINY_S))
        if s.state == STREAM_SEEDING and not s.seeded_at and s.paced \
                and stream_waiting(s) < SEED_BYTES // 4:
            if self.now - self.asked_at < ASKED_S:
                at = min(at, self.asked_at + ASKED_S + TINY_S)
            if s.rest_until > self.now:
                at = min(at, s.rest_until)
        return at

    # --- orders

    def post(self, do: Callable[[], Any], done: Callable[[Any, BaseException | None], None],
             bint at_standby=False) -> None:
        """Run ``do()``; then ``done(result, error)``, once, which must not call the driver.

        With `at_standby` `done` comes once the standby has what it forwarded, or need not; posts
        behind it do not wait.
        """
        cdef uint64_t number = 0
        if self.ended:
            done(None, ConnectionLost("the shard has stopped serving"))
            return
        try:
            result = do()
        except BaseException as error:
            done(None, error)
            return
        if at_standby:
            number = order_until(&self.stream)
        if number:
            self.orders.append((number, done, result))
        else:
            done(result, None)
        self._complete()

    def _complete(self):
        """End posts whose orders the standby has, or need not have."""
        while self.orders and order_is_there(&self.stream, self.orders[0][0]):
            _, done, result = self.orders.popleft()
            done(result, None)

    def stop(self) -> None:
        """The shard serves no more: close everything."""
        self.ended = self.closed = True
        self._cut()
        stream_close(&self.stream)
        orders, self.orders = self.orders, deque()
        for _, done, _ in orders:
            done(None, ConnectionLost("the shard has stopped serving"))

    # --- the stream to the standby

    def take_stream(self, double now=0.0, most: float = math.inf) -> list[bytes]:
        """Frames for the standby, up to `most` bytes or one frame; copies more to a new one."""
        cdef Stream *s = &self.stream
        cdef uint64_t n
        self.now = max(self.now, now)
        self.seeding = False
        if stream_may_seed(s, self.now - self.asked_at < ASKED_S, self.now):
            with nogil:
                self.seeding = self.handler.seed(self.handler.context)
            s.piece_end = s.sent_bytes
        found = []
        taken = 0
        if s.state != STREAM_LOST:
            stream_probe(s, self.now)
        while s.out.start < s.out.end:
            n = FRAME_HEADER_BYTES + (<const FrameHeader *>(s.out.data + s.out.start)).body_bytes
            if found and taken + n > most:
                break
            found.append(s.out.data[s.out.start:s.out.start + n])
            s.out.start += n
            taken += n
        if s.out.start == s.out.end:
            s.out.start = s.out.end = 0
        if s.parks and stream_waiting(s) < STREAM_BYTES_MAX // 2:
            s.parks = False
            self.woken = True
        return found

    def acknowledge(self, bytes frame, double now=0.0) -> None:
        """Take an answer of the standby's `replay`."""
        cdef Stream *s = &self.stream
        self.now = max(self.now, now)
        if s.state == STREAM_NONE or s.state == STREAM_LOST:
            return                      # of a link that is cut
        if not stream_listen(s) or <size_t>len(frame) > s.inp.cap - s.inp.end:
            raise MemoryError
        memcpy(s.inp.data + s.inp.end, <const char *>frame, len(frame))
        s.inp.end += len(frame)
        stream_take(s, self.now)
        if s.wanted and stream_has(s, s.wanted):
            s.wanted = 0
            self.woken = True
        if stream_is_seeded(s):
            self.tell("ready", "")
        self._end_lost()
        self._complete()

    def lose_stream(self, why: str) -> None:
        """The standby is unreachable."""
        text = why.encode()
        stream_break(&self.stream, text)
        self._end_lost()
        self._complete()

    def _end_lost(self):
        if self.stream.state == STREAM_LOST and stream_lose(&self.stream):
            self._cut()
            self.woken = True
            why = self.stream.why.decode("utf-8", "replace")
            if why.startswith("{"):     # the body of the standby's ERROR
                why = f"the standby says: {remote_error(Frame(Kind.ERROR, why.encode()))}"
            self.tell("lost", why)

    def _cut(self):
        if self.link != -1:
            self.cut_links.append(self.link)
        self.link = -1
        self.seeding = False

    # --- the stream of a primary

    def accept_stream(self, connection: int) -> None:
        """A connection has shaken hands as a primary; ProtocolError: this shard follows another."""
        if self.follows is not None:
            raise ProtocolError("this shard follows a primary already, or did: a standby takes one "
                                "stream in its life", "stream")
        self.follows = connection
        self.primary_heard = True
        self.replayed = self.replayed_bytes = 0
        self.stuck.clear()

    def replay(self, bytes frame, double now=0.0, connection: int = 0) -> Answer:
        """Take a frame of the primary's stream.

        Done, or refused, which ends the stream: `frame` is for the primary's `acknowledge`.
        Parked: it is kept with those behind it, for `turn`.  Frames of other connections have no
        effect.
        """
        self.now = max(self.now, now)
        if self.follows is None:
            self.accept_stream(connection)
        if connection != self.follows or not self.primary_heard:
            return Answer(None, "a stream that is over")
        self.asked_at = self.now
        if self.stuck:
            self.stuck.append(frame)
            return Answer(None, BEHIND)
        answer = self._replay(frame)
        if answer.frame is None:
            self.stuck.append(frame)
            self.stuck_since = self.now
        return answer

    def _replay(self, bytes frame):
        cdef Reply reply
        cdef FrameHeader head
        cdef Outcome outcome
        self._load(frame, &head, STREAM_BODY_MAX)
        if head.request != self.replayed + 1:
            return self._end_of_stream(_error("stream", "frames of the stream are missing", 0))
        memset(&reply, 0, sizeof(Reply))
        reply.kind = KIND_REPLICATED
        reply.reason = b""
        with nogil:
            outcome = self.handler.replay(self.handler.context, &head, self.body, self.out, &reply)
        if outcome == OUTCOME_PARK:
            return Answer(None, reply.reason.decode())
        self.woken |= reply.wake
        if reply.kind == KIND_ERROR:
            return self._end_of_stream(_frame(KIND_ERROR, 0, self.out[:reply.body_bytes]))
        self.frames_in += 1
        self.replayed += 1
        self.replayed_bytes += FRAME_HEADER_BYTES + head.body_bytes
        return Answer(_frame(KIND_REPLICATED, self.replayed,
                             self.replayed_bytes.to_bytes(8, "little")))

    def _end_of_stream(self, bytes error):
        self.refused += 1
        self.primary_heard = False
        self.stuck.clear()
        return Answer(error, last=True)

    def _go_on(self):
        """Retry waiting frames of the primary; what goes out to it."""
        found = []
        while self.stuck:
            answer = self._replay(self.stuck[0])
            if answer.frame is None:
                if self.now - self.stuck_since <= self.stuck_limit_s:
                    break
                answer = self._end_of_stream(_error("timeout", answer.reason, 0))
            if self.stuck:
                self.stuck.popleft()
                self.stuck_since = self.now
            found.append(Sent(self.follows, answer.frame, answer.last))
        return found

    def _drain(self):
        """Execute what the primary has sent: it will not send it again."""
        if self.primary_heard and not self.ended:
            self._go_on()
        self.stuck.clear()

    # --- as a Carrier

    def open_stream(self, link: int, bint sync, bint paced,
                    tell: snailps.shard.replication.Tell) -> None:
        """As `Carrier.open_stream`."""
        self.tell = tell
        self.link = link
        stream_open(&self.stream, sync, paced, self.now)
        self.seeding = True

    def end_stream(self) -> None:
        """As `Carrier.end_stream`."""
        self._cut()
        stream_close(&self.stream)
        self.stream.state = STREAM_NONE
        self.stream.holding = False
        self.woken = True

    def end_following(self) -> None:
        """As `Carrier.end_following`."""
        if self.primary_heard:
            self.hung_up.append(self.follows)
        self._drain()
        self.primary_heard = False

    def following(self) -> bool:
        """As `Carrier.following`."""
        return self.primary_heard

    def await_primary(self) -> None:
        """As `Carrier.await_primary`."""
        self.primary_heard = False
        self.follows = None
        self.stuck.clear()
        self.replayed = self.replayed_bytes = 0

    def close_connections(self) -> None:
        """As `Carrier.close_connections`."""
        self.closed = True

    def wake(self) -> None:
        """As `Carrier.wake`."""
        self.woken = True

    def counters(self) -> dict[str, int]:
        """Counts of `ShardLoop`, as far as they are known here."""
        return {
            "frames_in": self.frames_in,
            "refused": self.refused,
            "connections": len(self.memories),
            "parked": len(self.parked),
        }

    # ---

    cdef int _load(self, bytes frame, FrameHeader *head, uint64_t most) except -1:
        """Header and body of a frame, checked as a loop does."""
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


cdef bytes _frame(int kind, uint64_t request, bytes body):
    return encode_frame(Frame(Kind(kind), body, request=request))


cdef bytes _error(code, text, uint64_t request):
    body = json.dumps({"code": code, "text": text}).encode()
    return encode_frame(Frame(Kind.ERROR, body, request=request))


cdef bint _keeps_order(bytes frame):
    return kind_keeps_order((<const FrameHeader *><const char *>frame).kind)


cdef uint64_t _request(bytes frame):
    return (<const FrameHeader *><const char *>frame).request
