# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shard's event loop: one thread, one listening socket, any number of connections.

    socket -> input buffer -> frame, checked in place -> Handler.handle -> output buffer -> socket

This module is its interface to Python: start and end, commands for its thread, the socket of a stream.
The loop's work is in

    `_event_loop`          rounds: events; frames answered, parked, replayed or refused; parked
                           requests retried; connections that come and go; the stream's socket; timers
    `_replication_stream`  frames to the standby, acknowledgements, pace; replies and orders that wait
                           for the standby.  No system calls
    `_connection`          the connections, their buffers, what epoll watches
    `_authentication`      handshakes and refusals, with the GIL held

They share `Loop` of `_event_loop.pxd`, and its `now`: the time of a round is read once, or given by a
simulation (`turn`), so that time and bytes determine all that happens.  Must not know more of a frame
than its header: C functions serve the bodies (`_handler.pxd`).  Everything but commands and handshakes
runs without the GIL and, once the buffers have grown to the size of the traffic, without allocating.

Rules that keep it fair and bounded
-----------------------------------
* A connection gets `TURN_BYTES` of work, then the next one has its turn.
* A frame is handled only if `DATA_BODY_MAX` bytes of output are free, so a reply always fits.  A
  connection whose output is full is not read until its peer has read some replies.
* A frame that cannot be answered yet is *parked*: copied aside with a reason and a deadline, and tried
  again after `wake()`, or when a handler's reply says so.  Its connection is served on, up to
  `PARKED_BYTES_MAX`.
* No request of a connection overtakes a parked push of that connection.
* A reply that waits for the standby is a record of a few bytes; its connection is served on.
"""

import logging
import os
import socket
import threading
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from snailps.errors import ConnectionLost, WaitTimeout
from snailps.transport.frame import Frame, Kind
from snailps.transport.handshake import remote_error

from snailps.transport._posix cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLIN, c_close, c_write,
    epoll_create1, epoll_ctl, epoll_event, eventfd,
)
from snailps.transport.loop._authentication cimport Authenticator
from snailps.transport.loop._connection cimport Conn, conn_of, conns_free
from snailps.transport.loop._event_loop cimport (
    ID_LISTENER, ID_WAKE, Loop, close_all, close_conn, close_stream, end_stream, open_stream,
    parking_free, run_loop, turn_loop,
)
from snailps.transport.loop._fault_injection cimport Faults
from snailps.transport.loop._handler cimport Handler
from snailps.transport.loop._replication_stream cimport (
    Stream, order_is_there, order_until, stream_free,
)

log = logging.getLogger(__name__)
T = TypeVar("T")


cdef void _commands(void *self) noexcept with gil:
    (<ShardLoop>self)._run_commands()


cdef void _obeyed(void *self) noexcept with gil:
    (<ShardLoop>self)._complete_orders()


cdef void _report(void *self, const char *state, const char *why) noexcept with gil:
    """Report the state of the stream to its owner."""
    cdef ShardLoop door = <ShardLoop>self
    text = why.decode("utf-8", "replace")
    if text.startswith("{"):                # the body of an ERROR of the standby
        text = f"the standby reports: {remote_error(Frame(Kind.ERROR, text.encode()))}"
    try:
        door.report(state.decode(), text)
    except Exception:
        log.exception("could not report that the standby is %s", state.decode())


cdef void _close_own(Loop *loop) noexcept nogil:
    if loop.conns.epoll_fd >= 0:
        c_close(loop.conns.epoll_fd)
    if loop.wake_fd >= 0:
        c_close(loop.wake_fd)
    loop.conns.epoll_fd = loop.wake_fd = -1


class _Command(Future):
    """A function for the loop's thread; it runs once, or never if it is cancelled in time.

    With `at_standby` the future is done only when the standby has the frames that the function
    forwarded.  A caller that hands over a resource frees it in `add_done_callback` if it did not run.
    """

    def __init__(self, function: Callable[[], T], at_standby: bool):
        super().__init__()
        self.function, self.at_standby = function, at_standby


cdef class ShardLoop:
    """Event loop of one shard.

    Owns `listener`; ``make_session()`` makes a `ServerSession` for a connection.  `park_limit_s`: how
    long a request may be parked; `silence_limit_s`: how long a standby may acknowledge nothing;
    `stuck_limit_s`: how long a primary's stream may wait.  One thread calls `run`; any thread may call
    `post`, `submit`, `stop` and `counters`.
    """

    def __cinit__(self, listener: snailps.transport.sockets.Listener,
                  make_session: Callable[[], snailps.transport.handshake.ServerSession],
                  double park_limit_s=60.0, double silence_limit_s=30.0, double stuck_limit_s=24.0):
        cdef epoll_event event
        self.loop = <Loop *>calloc(1, sizeof(Loop))
        if self.loop == NULL:
            raise MemoryError
        self.loop.conns.epoll_fd = self.loop.wake_fd = self.loop.stream_fd = -1
        self.listener = listener
        self.receptionist = Authenticator(listener, make_session)
        self.receptionist.take_up(self.loop)
        self.loop.self = <void *>self
        self.loop.commands = _commands
        self.loop.report = _report
        self.loop.obeyed = _obeyed
        self.commands = deque()
        self.orders = deque()
        self.commands_lock = threading.Lock()
        listener.setblocking(False)
        self.loop.relayed = not isinstance(listener, socket.socket)   # a relay of TLS
        self.loop.park_limit_s = park_limit_s
        self.loop.silence_limit_s = silence_limit_s
        self.loop.stuck_limit_s = stuck_limit_s
        self.loop.listen_fd = listener.fileno()
        self.loop.conns.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.loop.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.loop.conns.epoll_fd < 0 or self.loop.wake_fd < 0:
            raise OSError(errno, "cannot make an event loop: too many open files?")
        event.events = EPOLLIN
        event.data.u64 = ID_LISTENER
        epoll_ctl(self.loop.conns.epoll_fd, EPOLL_CTL_ADD, self.loop.listen_fd, &event)
        self.loop.listening = True
        event.data.u64 = ID_WAKE
        epoll_ctl(self.loop.conns.epoll_fd, EPOLL_CTL_ADD, self.loop.wake_fd, &event)

    cdef Stream *stream(self):
        return &self.loop.stream

    cdef Faults *faults(self):
        return &self.loop.faults

    cdef void set_handler(self, Handler *handler, object owner):
        """Sets the functions that serve frames; `owner`, which they belong to, is kept alive."""
        self.loop.handler = handler
        self.owner = owner

    def run(self) -> None:
        """Serve until `stop`; releases the GIL.  A loop runs once."""
        self._take_thread()
        try:
            with nogil:
                run_loop(self.loop)
        finally:
            self._close_all()

    def turn(self, double now) -> float:
        """Run one round at a time `now`, which must not go back, without waiting.

        Returns when the next round is due if nothing comes: `now` if there is more to do, inf after
        `stop`.  Deadlines, silence and the pace of seeding all use `now`.
        """
        cdef double due
        self._take_thread()
        with nogil:
            due = turn_loop(self.loop, now)
        if self.loop.stop:
            self._close_all()
        return due

    def _take_thread(self):
        if self.loop.handler == NULL or self.ended:
            raise RuntimeError("the loop has no handler, or has ended")
        self.thread_id = threading.get_ident()

    def post(self, function: Callable[[], T], at_standby: bool = False) -> Future[T]:
        """Run ``function()`` in the loop's thread, with the GIL; in order, one command a round.

        With `at_standby` the future is done once the standby has the orders that the function
        forwards, or no standby can be promoted; later commands do not wait for it.  ConnectionLost:
        the loop ended first.
        """
        command = _Command(function, at_standby)
        try:
            self._enqueue(command)
        except ConnectionLost as error:
            command.set_exception(error)
        return command

    def submit(self, function: Callable[[], T], timeout_s: float = 60.0,
               at_standby: bool = False) -> T:
        """`post` a function, and return its result.

        WaitTimeout: the function was withdrawn and will not run; or, with `at_standby`, it ran and the
        standby has not acknowledged it.
        """
        if threading.get_ident() == self.thread_id:     # the loop cannot wait for itself
            return function()
        command = self.post(function, at_standby)
        try:
            return command.result(timeout_s)
        except FutureTimeout:
            if command.cancel():
                raise WaitTimeout(
                    f"the shard's loop did not answer within {timeout_s} s: the machine is overloaded, "
                    "or a request that the shard serves does not end") from None
            if at_standby and not command.done():
                raise WaitTimeout(
                    f"done here, and not acknowledged by the standby within {timeout_s} s: it hangs, "
                    "or the network is cut") from None
        except BaseException:           # Ctrl-C, say: the function must not run after its caller has gone
            command.cancel()
            raise
        return command.result()         # it runs already, or raised a TimeoutError itself

    def stop(self) -> None:
        """Have `run` end soon.  Idempotent; for any thread."""
        self._enqueue(None)

    def wake(self) -> None:
        """Have parked requests retried soon; only for submitted functions."""
        self.loop.retry_parked = True

    # Only submitted functions may call the following: they touch the loop's state without a lock.

    def open_stream(self, int fd, bint sync, bint paced, report: Callable[[str, str], None]) -> None:
        """Begin a stream to the standby over a connected socket, owned by the loop."""
        os.set_blocking(fd, False)
        self.report = report
        if open_stream(self.loop, fd, sync, paced) < 0:
            raise OSError(errno, "cannot watch the connection to the standby")

    def end_stream(self) -> None:
        """Forget the stream; send the replies that waited for the standby."""
        end_stream(self.loop)

    def end_following(self) -> None:
        """Execute what has arrived of the primary's stream, and close its connection."""
        cdef Conn *conn = conn_of(&self.loop.conns, self.loop.follows)
        if conn != NULL:
            close_conn(self.loop, conn)

    def hears_primary(self) -> bool:
        """Whether this standby's primary is connected."""
        return conn_of(&self.loop.conns, self.loop.follows) != NULL

    def await_primary(self) -> None:
        """Let another primary begin a stream to this shard."""
        self.loop.follows = 0

    def close_connections(self) -> None:
        """Send the replies that the sockets take, then close all connections."""
        close_all(self.loop)

    def counters(self) -> dict[str, int]:
        """Counts since the start: frames, bytes, refusals, connections, parked requests."""
        return {
            "frames_in": self.loop.frames_in,
            "bytes_in": self.loop.conns.bytes_in,
            "bytes_out": self.loop.conns.bytes_out,
            "refused": self.loop.refused,
            "accepted": self.loop.conns.accepted,
            "connections": self.loop.conns.open,
            "parked": self.loop.parking.count,
        }

    def _enqueue(self, command):
        cdef uint64_t one = 1
        with self.commands_lock:
            if not self.ended:
                self.commands.append(command)
                c_write(self.loop.wake_fd, &one, sizeof(one))
            elif command is not None:
                raise ConnectionLost("the shard has stopped serving")

    def _run_commands(self):
        """Run the oldest command; the next one waits for the next round, so connections have a turn."""
        cdef uint64_t one = 1
        cdef uint64_t number = 0
        with self.commands_lock:
            if not self.commands:
                return
            command = self.commands.popleft()
            if self.commands:
                c_write(self.loop.wake_fd, &one, sizeof(one))
        if command is None:
            self.loop.stop = True
            return
        if not command.set_running_or_notify_cancel():
            return
        try:
            result = command.function()
        except BaseException as error:
            command.set_exception(error)
            return
        if command.at_standby:
            number = order_until(&self.loop.stream)
        if number:
            self.orders.append((number, command, result))
            self.loop.stream.awaited = self.orders[0][0]
        else:
            command.set_result(result)

    def _complete_orders(self):
        """Complete commands whose orders the standby has, or that wait for no standby any more."""
        while self.orders and order_is_there(&self.loop.stream, self.orders[0][0]):
            _, command, result = self.orders.popleft()
            command.set_result(result)
        self.loop.stream.awaited = self.orders[0][0] if self.orders else 0

    def _close_all(self):
        close_all(self.loop)
        close_stream(self.loop)
        self.listener.close()
        with self.commands_lock:
            self.ended = True
            commands, self.commands = self.commands, deque()
            orders, self.orders = self.orders, deque()
            _close_own(self.loop)
        self.owner = None               # it may refer to this loop: no cycle that must be collected
        for _, command, _ in orders:    # whether the standby has them is unknown
            command.set_exception(ConnectionLost("the shard has stopped serving"))
        for command in commands:
            if command is not None and command.set_running_or_notify_cancel():
                command.set_exception(ConnectionLost("the shard has stopped serving"))

    def __dealloc__(self):
        if self.loop == NULL:
            return
        conns_free(&self.loop.conns)
        parking_free(&self.loop.parking)
        close_stream(self.loop)
        stream_free(&self.loop.stream)
        free(self.loop.released)
        _close_own(self.loop)
        free(self.loop)
