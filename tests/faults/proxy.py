"""A TCP proxy that misbehaves as it is told: delay, slowness, silence, cuts, partitions.

    Proxy().link(listen, target) -> Link: set(weather), cut(), cut_after(bytes)
    client <-> link <-> target                 all links: one thread, one epoll

A link passes bytes between its clients and one target.  Of what they mean it reads the
first frame alone, HELLO, so that faults can be meant for the connections of one role or process.
"""

import contextlib
import errno
import heapq
import itertools
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from waiting import LIMIT_S

from snailps.errors import ProtocolError
from snailps.transport.frame import HANDSHAKE_BODY_MAX, FrameDecoder
from snailps.transport.handshake import Hello

CHUNK = 64 << 10
BUFFERED_MAX = 256 << 10
"""Bytes on their way in one direction of a connection; a full pipe is not read from."""
LOOK_S = 0.1
_RESET = struct.pack("ii", 1, 0)


def anyone(hello):
    """The default of `clients`: all connections, also those whose `Hello` has not come yet."""
    return True


@dataclass(frozen=True, slots=True)
class Weather:
    """How a link treats its connections.

    Attributes
    ----------
    delay_s : float
        What every byte takes longer, each way.
    bytes_per_s : float
        Most that passes, each way of each connection; 0: no limit.
    silent : bool
        Nothing passes, not even the end of a connection: a hang, or a partition.
    mute : bool
        Nothing passes from the target: requests are done, and their answers do not arrive.
    clients : callable
        Given the client's `Hello`: whether this is meant for its connection.
    """

    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    silent: bool = False
    mute: bool = False
    clients: Callable[[Hello], bool] = anyone


FAIR = Weather()


class Proxy:
    """The thread that serves all links.  A context manager; calls from any thread."""

    def __init__(self):
        self.links = []
        self._selector = selectors.DefaultSelector()
        self._timers = []
        self._order = itertools.count()
        self._orders = deque()
        self._over = False
        self._hears, self._wakes = socket.socketpair()
        self._hears.setblocking(False)
        self._selector.register(self._hears, selectors.EVENT_READ, self._obey)
        self._thread = threading.Thread(target=self._run, name="faults-proxy", daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()

    def link(self, target, listen=("127.0.0.1", 0)):
        """A link from a new listening socket to (host, port)."""
        return self.do(lambda: Link(self, target, listen))

    def partition(self, links, clients=anyone):
        """Silence on these links until `heal`."""
        for link in links:
            link.set(Weather(silent=True, clients=clients))

    def heal(self, links=None):
        """Fair weather on these links, default all."""
        for link in self.links if links is None else links:
            link.set(FAIR)

    def close(self):
        """Closes everything and ends the thread."""

        def end():
            self._over = True

        self.do(end)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"the proxy's thread has not ended for {LIMIT_S:g} s"
        self._hears.close()
        self._wakes.close()

    # --- in the thread ---------------------------------------------------------------------------

    def do(self, order):
        """Has the thread do something; what it returned."""
        if threading.current_thread() is self._thread:
            return order()
        done, answer = threading.Event(), []

        def obey():
            try:
                answer.append((order(), None))
            except Exception as error:
                answer.append((None, error))
            done.set()

        self._orders.append(obey)
        self._wakes.send(b".")
        end = time.monotonic() + LIMIT_S
        while not done.wait(LOOK_S):
            assert self._thread.is_alive(), "the proxy's thread has died"
            assert time.monotonic() < end, f"the proxy has not obeyed for {LIMIT_S:g} s"
        value, error = answer[0]
        if error is not None:
            raise error
        return value

    def watch(self, sock, events, callback):
        """Has a callback called when a socket is ready; no events: not any more."""
        with contextlib.suppress(KeyError):
            if not events:
                self._selector.unregister(sock)
                return
            self._selector.modify(sock, events, callback)
            return
        if events:
            self._selector.register(sock, events, callback)

    def at(self, when, callback):
        """Has a callback called at a time."""
        heapq.heappush(self._timers, (when, next(self._order), callback))

    def _obey(self, events):
        with contextlib.suppress(BlockingIOError):
            self._hears.recv(4096)
        while self._orders:
            self._orders.popleft()()

    def _run(self):
        while not self._over:
            now = time.monotonic()
            limit_s = max(0.0, self._timers[0][0] - now) if self._timers else None
            for key, events in self._selector.select(limit_s):
                if self._selector.get_map().get(key.fd) is key:  # not closed by one before it
                    key.data(events)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
        for link in self.links:
            link._close()
        self._selector.close()


class Link:
    """A listening address whose connections go on to a target; made by `Proxy.link`.

    Attributes
    ----------
    address : tuple
        Host and port to connect to.
    target : tuple
        Where that leads; may be changed.
    pipes : set of Pipe
        Connections.
    """

    def __init__(self, proxy, target, listen):
        self.proxy, self.target = proxy, target
        self.pipes = set()
        self.weather = FAIR
        self.accepted = self.cuts = 0
        self.fuse = None  # (bytes left, clients): the pipe that uses it up is cut
        self._socket = socket.create_server(listen, backlog=256)
        self._socket.setblocking(False)
        self.address = self._socket.getsockname()[:2]
        proxy.links.append(self)
        proxy.watch(self._socket, selectors.EVENT_READ, self._accept)

    def set(self, weather):
        """Changes the weather, for connections that exist and those to come."""

        def change():
            self.weather = weather
            for pipe in list(self.pipes):
                pipe.turn()

        self.proxy.do(change)

    def cut(self, clients=anyone):
        """Resets the connections, or those of some clients; how many."""

        def cut():
            victims = [pipe for pipe in self.pipes if pipe.is_of(clients)]
            for pipe in victims:
                pipe.reset()
            return len(victims)

        return self.proxy.do(cut)

    def held(self, clients=anyone):
        """Kinds of the frames from the target that `mute` weather holds back, of some clients."""
        return self.proxy.do(
            lambda: [kind for pipe in self.pipes if pipe.is_of(clients) for kind in pipe.held()]
        )

    def cut_after(self, count, clients=anyone):
        """Resets the connection that brings the next `count` bytes of a client, in mid-frame."""

        def arm():
            self.fuse = [count, clients]

        self.proxy.do(arm)

    def _accept(self, events):
        with contextlib.suppress(BlockingIOError):
            while True:
                client, _ = self._socket.accept()
                self.accepted += 1
                self.pipes.add(Pipe(self, client))

    def _close(self):
        self.proxy.watch(self._socket, 0, None)
        self._socket.close()
        for pipe in list(self.pipes):
            pipe.reset()


class Pipe:
    """One connection through a link: two sockets, two ways.

    Attributes
    ----------
    hello : Hello or None
        What the client said of itself, once it has.
    """

    def __init__(self, link, client):
        self.link, self.hello = link, None
        self._decoder = FrameDecoder(HANDSHAKE_BODY_MAX)
        server = socket.socket(socket.AF_INET)
        for sock in (client, server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets = (client, server)
        self._ways = (_Way(client, server), _Way(server, client))
        self._connected = False
        self._alarm = float("inf")
        code = server.connect_ex(link.target)
        if code not in (0, errno.EINPROGRESS):
            link.proxy.at(time.monotonic(), self.reset)
            return
        link.proxy.watch(server, selectors.EVENT_WRITE, self._on_connected)

    def is_of(self, clients):
        """Whether the client is one of those; before it has said who it is: no."""
        return clients is anyone or (self.hello is not None and clients(self.hello))

    def held(self):
        """Kinds of whole frames on their way to the client, if the first bytes begin one."""
        frames = FrameDecoder()
        with contextlib.suppress(ProtocolError):
            return [frame.kind for frame in frames.feed(self._ways[1].waiting)]
        return []

    def reset(self):
        """Closes both sides as a crash does."""
        if self not in self.link.pipes:
            return
        self.link.pipes.discard(self)
        self.link.cuts += 1
        for sock in self._sockets:
            self.link.proxy.watch(sock, 0, None)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            sock.close()

    def turn(self, events=0):
        """Moves what can be moved, then waits for what is next."""
        if self not in self.link.pipes or not self._connected:
            return
        weather = self.link.weather
        if weather is not FAIR and not self.is_of(weather.clients):
            weather = FAIR
        wanted = dict.fromkeys(self._sockets, 0)
        if weather.silent:
            for sock in self._sockets:
                self.link.proxy.watch(sock, 0, None)
            return
        now = time.monotonic()
        try:
            for index, way in enumerate(self._ways):
                data = way.read(now, weather)
                if index == 0 and data and not self._look(data, way):
                    return
                due = None if index == 1 and weather.mute else way.write(now, weather)
                if due is not None and due < self._alarm:
                    self._alarm = due
                    self.link.proxy.at(due, self._wake)
                if way.wants_read:
                    wanted[way.source] |= selectors.EVENT_READ
                if way.blocked:
                    wanted[way.sink] |= selectors.EVENT_WRITE
        except OSError:
            self.reset()
            return
        if all(way.over for way in self._ways):
            self.reset()
            return
        for sock, events_wanted in wanted.items():
            self.link.proxy.watch(sock, events_wanted, self.turn)

    def _look(self, data, way):
        """Reads HELLO, and burns the fuse; False if that cut the connection."""
        if self.hello is None and self._decoder is not None:
            try:
                for frame in self._decoder.feed(data):
                    self.hello = Hello.from_frame(frame)
                    break
            except ProtocolError:
                self._decoder = None
            return True
        fuse = self.link.fuse
        if fuse is None or not self.is_of(fuse[1]):
            return True
        fuse[0] -= len(data)
        if fuse[0] > 0:
            return True
        self.link.fuse = None
        way.shorten(-fuse[0])
        with contextlib.suppress(OSError):
            way.write(float("inf"), FAIR)
        # A reset would take back what the other side has not read yet: let it see half a frame.
        client, server = self._sockets
        self.link.pipes.discard(self)
        self.link.cuts += 1
        for sock in (client, server):
            self.link.proxy.watch(sock, 0, None)
            sock.close()
        return False

    def _wake(self):
        self._alarm = float("inf")
        self.turn()

    def _on_connected(self, events):
        _, server = self._sockets
        if server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.reset()
            return
        self.link.proxy.watch(server, 0, None)
        self._connected = True
        self.turn()


class _Way:
    """One direction of a pipe."""

    def __init__(self, source, sink):
        self.source, self.sink = source, sink
        self.ended = self.over = self.blocked = False
        self._chunks = deque()  # (due, bytes)
        self._held = 0
        self._free_at = 0.0

    @property
    def wants_read(self):
        return not self.ended and self._held < BUFFERED_MAX

    @property
    def waiting(self):
        """What was read and not written yet."""
        return b"".join(data for _, data in self._chunks)

    def read(self, now, weather):
        """Takes what has come; the bytes, for looking at."""
        if not self.wants_read:
            return b""
        try:
            data = self.source.recv(CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            self.ended = True
            return b""
        self._chunks.append((now + weather.delay_s, data))
        self._held += len(data)
        return data

    def shorten(self, count):
        """Drops the last bytes that were read."""
        while count > 0 and self._chunks:
            due, data = self._chunks.pop()
            self._held -= len(data)
            if len(data) > count:
                self._chunks.append((due, data[:-count]))
                self._held += len(data) - count
            count -= len(data)

    def write(self, now, weather):
        """Passes on what is due; when there is more to do, None if a socket will tell."""
        self.blocked = False
        while self._chunks:
            due, data = self._chunks[0]
            due = max(due, self._free_at if weather.bytes_per_s else 0.0)
            if due > now:
                return due
            piece = data
            if weather.bytes_per_s:  # a hundredth of a second's worth at a time
                piece = data[: max(1, int(weather.bytes_per_s / 100))]
            try:
                sent = self.sink.send(piece)
            except BlockingIOError:
                self.blocked = True
                return None
            if weather.bytes_per_s:
                self._free_at = max(now, self._free_at) + sent / weather.bytes_per_s
            self._held -= sent
            if sent == len(data):
                self._chunks.popleft()
            else:
                self._chunks[0] = (self._chunks[0][0], data[sent:])
        if self.ended and not self.over:
            self.over = True
            with contextlib.suppress(OSError):
                self.sink.shutdown(socket.SHUT_WR)
        return None
