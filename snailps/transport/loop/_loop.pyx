# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The shard's event loop: one thread, one listening socket, any number of connections.

    socket -> input buffer -> frame, checked in place -> Handler.handle -> output buffer -> socket

Here is its door to Python: birth, end, commands for its thread, and the socket of a stream.  What the
loop does:

    `_event_loop`          rounds: events, frames answered, parked, replayed or refused, parked ones
                           tried again, connections that come and go, the stream's socket, timers
    `_replication_stream`  frames to the standby, acknowledgements, pace,
                           replies and orders that wait for it                no system calls
    `_connection`          the connections, their buffers, what epoll watches
    `_authentication`      handshakes and refusals, with the GIL held

They share `Loop` of `_event_loop.pxd`, and its `now`: the time of a round is read once, or given
(`turn`, by simulations), so that time and bytes determine what happens.  The loop knows the frame
header and nothing of tables, keys or rows: data frames go to C functions (`_handler.pxd`).  All but
commands and handshakes runs without the GIL and, once buffers have grown to the size of the traffic,
without allocating.

Rules that keep it fair and bounded
-----------------------------------
* A connection gets `TURN_BYTES` of work, then the next one has its turn.
* A frame is handled only while `DATA_BODY_MAX` bytes of output are free, so a reply always fits;
  a connection whose output is full is not read until its peer has taken some of it.
* A frame that cannot be answered yet is copied aside ("parked") with a reason and a deadline, and
  tried again after `wake()`, or when a handler's reply says so; the connection goes on, up to
  `PARKED_BYTES_MAX`.
* Nothing of a connection overtakes a parked push of the same connection.
* A reply that waits for the standby is a record of some bytes; nothing else of its connection waits.
"""

import logging
import os
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
from snailps.transport.security.tls_relay import TlsRelay

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
    if text.startswith("{"):                # the body of the standby's ERROR
        text = f"the standby says: {remote_error(Frame(Kind.ERROR, text.encode()))}"
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
    """A function for the loop's thread: run once, or never if cancelled before.

    With `at_standby` it is done once the standby has what it forwarded.  Resources that it takes
    are returned by `add_done_callback` where it did not run.
    """

    def __init__(self, function: Callable[[], T], at_standby: bool):
        super().__init__()
        self.function, self.at_standby = function, at_standby


cdef class ShardLoop:
    """Event loop of one shard.

    Owns `listener`; ``make_session()`` gives a `ServerSession` a connection.  `park_limit_s`:
    longest wait of a request; `silence_limit_s`: longest silence of a standby; `stuck_limit_s`:
    longest wait of a primary's stream.  `run` belongs to one thread; `post`, `submit`, `stop` and
    `counters` to any.
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
        self.loop.relayed = isinstance(listener, TlsRelay)
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
        """Connect the loop to its tables; `owner` lives as long as the loop."""
        self.loop.handler = handler
        self.owner = owner

    def run(self) -> None:
        """Serve until `stop`, once; releases the GIL."""
        self._take_thread()
        try:
            with nogil:
                run_loop(self.loop)
        finally:
            self._close_all()

    def turn(self, double now) -> float:
        """One round of `run` as of a time `now`, which must not go back; waits for nothing.

        When the next one is due if nothing comes: by `now` where there is more to do, inf after
        `stop`.  All decisions by time (deadlines, silence, pace of seeding) use `now`.
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
        """Run ``function()`` in the loop's thread, with the GIL; commands in order, one a round.

        With `at_standby` the command is done once the standby has the orders that it forwards, or
        none could be promoted; later commands do not wait for that.  ConnectionLost where the loop
        ends first.
        """
        command = _Command(function, at_standby)
        try:
            self._enqueue(command)
        except ConnectionLost as error:
            command.set_exception(error)
        return command

    def submit(self, function: Callable[[], T], timeout_s: float = 60.0,
               at_standby: bool = False) -> T:
        """`post`, and its result.

        WaitTimeout: withdrawn, it will not run; or, with `at_standby`, it ran and is not
        acknowledged.
        """
        if threading.get_ident() == self.thread_id:     # it cannot wait for itself
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
        except BaseException:           # also Ctrl-C: then it must not run behind our back
            command.cancel()
            raise
        return command.result()         # it runs already, or has failed with a timeout of its own

    def stop(self) -> None:
        """End `run` soon; from any thread, idempotent."""
        self._enqueue(None)

    def wake(self) -> None:
        """Retry parked requests soon; for submitted functions."""
        self.loop.retry_parked = True

    # What follows is to be called in a submitted function.

    def open_stream(self, int fd, bint sync, bint paced, report: Callable[[str, str], None]) -> None:
        """Begin a stream to the standby over a connected socket, owned by the loop."""
        os.set_blocking(fd, False)
        self.report = report
        if open_stream(self.loop, fd, sync, paced) < 0:
            raise OSError(errno, "cannot watch the connection to the standby")

    def end_stream(self) -> None:
        """Forget the stream: answer what waits for it."""
        end_stream(self.loop)

    def end_following(self) -> None:
        """Take what is received of the primary's stream, and close its connection."""
        cdef Conn *conn = conn_of(&self.loop.conns, self.loop.follows)
        if conn != NULL:
            close_conn(self.loop, conn)

    def hears_primary(self) -> bool:
        """Whether the primary of this standby can be heard."""
        return conn_of(&self.loop.conns, self.loop.follows) != NULL

    def await_primary(self) -> None:
        """Let another primary begin a stream to this shard."""
        self.loop.follows = 0

    def close_connections(self) -> None:
        """Close all connections, once what fits of their answers is sent."""
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
        """Run the command that waited longest; the next round runs the next."""
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
        """End the commands whose orders the standby has, or need not have."""
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
        self.owner = None               # which may know this loop in turn
        for _, command, _ in orders:    # it is not known whether the standby has them
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
